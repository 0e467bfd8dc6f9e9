"""Every rule, each with the smallest agent that shows it: the model's own tests, on the model and on the product."""

from collections.abc import Callable, Iterator
from typing import Any

import model.rules_children
import model.rules_resumes  # noqa: F401 - their rules are in RULES, too
import pytest
from model import reference_model
from model.product import Product
from model.rules import RULES


@pytest.fixture(params=["model", "memory", "sqlite"])
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "model":
        yield reference_model
    else:
        product = Product(request.param)
        yield product
        product.close()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__.removeprefix("test_"))
def test_the_rule(rule: Callable[[Any], None], engine: Any) -> None:
    """The rule holds in the model, and in the product on each store."""
    rule(engine)
