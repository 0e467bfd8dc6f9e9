"""A mutant finds its place by name and tokens, whatever the layout; where it has none, the text says what was found."""

import ast

import pytest
from mutating import Mutant, NoPlaceError, definitions, mutated, piece

ENGINE = """
TERMINALS = frozenset({"done", "failed"})


class Core:
    limit: int = 3

    def begin(self, step):
        if self.open is not None and self.open != step:  # one at a time
            raise ValueError(step)
        self.open = step
        return (self.open or step) is None

    def fail(self, error):
        def kept():
            return [error, None]

        try:
            self.open = None
        except OSError:
            raise
        return kept()
"""
SOURCES = {"journal/engine.py": ENGINE, "projections/steps.py": "def load(a):\n    return a + 1\n"}


def replaced(where: str, old: str, new: str, sources: dict[str, str] = SOURCES) -> str:
    """What the module then is, without its layout."""
    _, text = mutated(sources, Mutant("it", where, old, new))
    return ast.unparse(ast.parse(text))


def refused(where: str, old: str, sources: dict[str, str] = SOURCES) -> str:
    with pytest.raises(NoPlaceError) as caught:
        mutated(sources, Mutant("it", where, old, "pass"))
    return str(caught.value)


@pytest.mark.parametrize(
    ("where", "old", "new", "before", "after"),
    [
        (
            "Core.begin",
            "self.open is not None and",
            "",
            "self.open is not None and self.open != step",
            "self.open != step",
        ),
        (
            "Core.begin",
            "raise ValueError(step)\nself.open = step",
            "pass",
            "raise ValueError(step)\n        self.open = step",
            "    pass",
        ),
        (
            "Core.begin",
            "self.open = step",
            "if step:\n    self.open = step",
            "self.open = step",
            "if step:\n            self.open = step",
        ),
        (
            "Core.fail",
            "except OSError:\n    raise",
            "except ():\n    pass",
            "except OSError:\n            raise",
            "except ():\n            pass",
        ),
        ("Core.fail.kept", ", None", "", ", None", ""),
        ("Core.limit", "3", "4", "= 3", "= 4"),
        ("TERMINALS", '"done",', "", "'done', ", ""),
        ("steps:load", "+ 1", "", " + 1", ""),
    ],
)
def test_a_piece_is_replaced_where_it_stands(where: str, old: str, new: str, before: str, after: str):
    """An expression, a run of statements or a part of either gives way to the new text, at the margin of its place."""
    plain = {path: ast.unparse(ast.parse(text)) for path, text in SOURCES.items()}
    module = plain["projections/steps.py" if where == "steps:load" else "journal/engine.py"]
    expected = module.replace(before, after, 1)
    assert module != expected
    assert ast.unparse(ast.parse(expected)) == replaced(where, old, new)


@pytest.mark.parametrize(
    "line",
    [
        "return one(a, b) and (two or c)",
        "return (\n        one(\n            a,\n            b,  # second\n        )\n        and (two or c)\n    )",
        "return one(a, b) and (\n        two\n        or c\n    )",
        "return ((one(a, b))) and \\\n        (two or c)",
    ],
)
def test_layout_is_not_compared(line: str):
    """Line breaks, comments, grouping parentheses and trailing commas may come and go."""
    sources = {"cli/a.py": f"def f(a, b, c):\n    x, y = a\n    {line}\n"}
    assert replaced("f", "one(a, b) and (two or c)", "None", sources).endswith("return None")
    assert replaced("f", "one(a, b)", "None", sources).endswith("return None and (two or c)")
    assert replaced("f", "return one(a, b) and two or c", "return None", sources).endswith("\n    return None")


def test_a_target_in_parentheses_is_one_without():
    """The parenthesis that begins a statement groups, whatever stands before it."""
    sources = {"cli/a.py": "def f(a):\n    print(a)\n    (\n        x,\n        y,\n    ) = a\n"}
    assert replaced("f", "x, y = a", "x = a", sources).endswith("print(a)\n    x = a")


def test_the_parentheses_of_a_call_are_compared():
    """A call isn't what stands in it, and no empty tuple is lost."""
    assert ["f", "(", "a", ")"] == piece("f(a,)")
    assert ["f", "(", "(", ")", ")"] == piece("f(())")
    assert ["return", "a"] == piece("return (a)")


def test_a_definition_begins_with_its_decorators():
    """Decorators, branches and second definitions of a name count, but not the variables of a function."""
    source = "if True:\n    @a\n    def f(): ...\nelse:\n    def f(): z = 1\n\nx = y = 1\n"
    assert {"f": [(2, 3), (5, 5)], "x": [(7, 7)], "y": [(7, 7)]} == definitions(source)


def test_a_module_may_move():
    """The folder is no part of a place."""
    moved = {path.replace("journal/", "journal/engine/"): text for path, text in SOURCES.items()}
    assert (
        mutated(SOURCES, Mutant("it", "TERMINALS", '"done",', ""))[1]
        == (mutated(moved, Mutant("it", "TERMINALS", '"done",', ""))[1])
    )


def test_a_module_s_name_tells_two_definitions_apart():
    """Two definitions of one name that hold the piece are two places, unless the module is named."""
    sources = SOURCES | {"cli/runs.py": "def load(b):\n    return b + 1\n"}
    said = refused("load", "+ 1", sources)
    assert "load (projections/steps.py:1, cli/runs.py:1) holds it 2 times" in said
    assert replaced("runs:load", "+ 1", "", sources).endswith("return b")


def test_a_piece_that_is_not_there_is_named_with_where_else_it_is():
    """The text names the mutant, the definition, how often it holds the piece, and who does."""
    said = refused("Core.begin", "self.open = None")
    assert "mutant 'it': Core.begin (journal/engine.py:8) holds it 0 times" in said
    assert "where the package has it: Core.fail (journal/engine.py:19)" in said
    assert "CONTRIBUTING.md" in said


def test_a_piece_that_is_there_twice_is_no_place():
    """A piece that its definition holds more than once is refused with each of the places."""
    said = refused("Core.begin", "self.open")
    assert "Core.begin (journal/engine.py:8) holds it 4 times" in said
    assert 2 == said.count("Core.begin (journal/engine.py:9)")


def test_a_definition_that_is_gone_is_named_with_names_like_it():
    """Whoever renamed it finds it among them: by a name that is close, and by the same last part."""
    assert "there is no Core.begni; names like it: Core.begin" in refused("Core.begni", "x")
    assert "there is no AsyncRunning.fail; names like it: Core.fail" in refused("AsyncRunning.fail", "x")


def test_half_a_bracket_is_no_piece():
    """A piece whose brackets aren't balanced is refused with the name of its mutant."""
    assert "mutant 'it': its text isn't a piece of Python: begin(" in refused("Core.begin", "begin(")
