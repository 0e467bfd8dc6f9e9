"""What a person may edit args to: a subset of JSON Schema, small enough to read.

A schema is `{name: rule}` by the names that are asked about. A rule is a dict of these keywords of JSON Schema, each
with its meaning there (https://json-schema.org/draft/2020-12/json-schema-validation): `type` (one of "string",
"integer", "number", "boolean", "array", "object", "null", or a list of them), `enum`, `minimum`, `maximum`,
`minLength`, `maxLength`, `items` (a rule), `maxItems`, `description`. A name without a rule may hold anything, and
names that weren't asked about may come with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from runjournal.log.base import Json
from runjournal.log.shapes import kind_of

from .failures import WrongArgument

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_BOUNDS: Final[Mapping[str, tuple[str, Callable[[Any, Any], bool], str]]] = {
    "minimum": ("number", lambda value, bound: value >= bound, "at least {}"),
    "maximum": ("number", lambda value, bound: value <= bound, "at most {}"),
    "minLength": ("string", lambda value, bound: len(value) >= bound, "at least {} characters"),
    "maxLength": ("string", lambda value, bound: len(value) <= bound, "at most {} characters"),
    "maxItems": ("array", lambda value, bound: len(value) <= bound, "at most {} items"),
}
_KEYWORDS: Final = ("type", "enum", *_BOUNDS, "items", "description")


def check_schema(schema: Json, asked: Mapping[str, Json]) -> None:
    """Raise WrongArgument for a schema that can't be used, or that the args that are asked about don't fit."""
    if kind_of(schema) is not dict:
        raise WrongArgument(f"ask: schema is {{name: rule}} by the names of args, got {type(schema).__name__}")
    for name, rule in schema.items():
        if name not in asked:
            raise WrongArgument(f"ask: schema has a rule for {name!r}, which isn't asked about: {', '.join(asked)}")
        _check_rule(rule, name)
    for wrong in violations(schema, asked):
        raise WrongArgument(f"ask: what is asked about doesn't fit its own schema: {wrong}")


def _check_rule(rule: Json, where: str) -> None:
    if kind_of(rule) is not dict:
        raise WrongArgument(f"ask: schema: the rule of {where} is a dict of {', '.join(_KEYWORDS)}, got {rule!r:.80}")
    for keyword, value in rule.items():
        if keyword not in _KEYWORDS:
            raise WrongArgument(f"ask: schema: {where} has {keyword!r}; it may have {', '.join(_KEYWORDS)}")
        if keyword == "type" and not (names := _names(value)) <= _TYPES.keys():
            unknown = ", ".join(sorted(map(repr, names - _TYPES.keys())))
            raise WrongArgument(f"ask: schema: {where}: type {unknown} is none of {', '.join(_TYPES)}")
        if keyword == "enum" and not (isinstance(value, list) and value):
            raise WrongArgument(f"ask: schema: {where}: enum is a list of what is allowed, got {value!r:.80}")
        if keyword in _BOUNDS and not _is(value, "number"):
            raise WrongArgument(f"ask: schema: {where}: {keyword} is a number, got {value!r:.80}")
        if keyword == "items":
            _check_rule(value, f"{where}[]")


def violations(schema: Mapping[str, Json], args: Mapping[str, Json]) -> Iterator[str]:
    """Yield in words, oldest name first, what in args doesn't fit a schema."""
    for name, rule in schema.items():
        if name in args and kind_of(rule) is dict:
            yield from _broken(rule, args[name], name)


def _broken(rule: Mapping[str, Any], value: Json, where: str) -> Iterator[str]:
    got = f"got {value!r:.80}"
    wanted = _names(rule["type"]) if "type" in rule else set[str]()
    if wanted and not any(_is(value, name) for name in wanted):
        yield f"{where}: expected {' or '.join(sorted(wanted))}, {got}"
        return
    if "enum" in rule and not any(type(each) is type(value) and each == value for each in rule["enum"]):
        yield f"{where}: expected one of {', '.join(f'{each!r}' for each in rule['enum'])}, {got}"
    for keyword, (kind, holds, words) in _BOUNDS.items():
        if keyword in rule and _is(value, kind) and not holds(value, rule[keyword]):
            yield f"{where}: expected {words.format(rule[keyword])}, {got}"
    if "items" in rule and kind_of(value) is list:
        for place, item in enumerate(value):
            yield from _broken(rule["items"], item, f"{where}[{place}]")


def _names(told: Json) -> set[str]:
    """Return the types of a rule: one, or a list of them."""
    return {str(each) for each in told} if kind_of(told) is list else {str(told)}


def _is(value: Json, name: str) -> bool:
    """Return whether a value is of a type; true and false are no numbers."""
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return kind_of(value) in _TYPES[name]
