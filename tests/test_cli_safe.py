"""What was logged never acts on the terminal that shows it: escapes, JSON, tables."""

import json
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runjournal.cli.output import Cell, Column, cut, table, width_of
from runjournal.cli.safe import block, dumps, escape_json, line, preview

# What steers, reorders or hides: by category, and the invisible letters and marks that the categories don't tell.
HIDDEN = {0x34F, 0x115F, 0x1160, 0x3164, 0xFFA0, *range(0xFE00, 0xFE10), *range(0xE0000, 0xE1000)}


def harmful(char):
    """Whether a character must never reach a terminal as it is."""
    code = ord(char)
    return (
        unicodedata.category(char) in {"Cc", "Zl", "Zp", "Cs"}
        or code in HIDDEN
        or (unicodedata.category(char) == "Cf" and not 0x600 <= code <= 0x8E2 and code not in {0x110BD, 0x110CD})
        or code == 0x61C
    )


anything = st.text(st.characters(exclude_categories=()))


@pytest.mark.requirement("R140")
@given(anything)
def test_line_is_harmless(text):
    """Whatever is logged, a line of it holds no control, bidi or invisible character, and no line break."""
    assert [] == [char for char in line(text) if harmful(char)]


@given(anything)
def test_block_is_harmless(text):
    """A block keeps line breaks, every line behind its indent, and holds no other such character."""
    shown = block(text, "> ")
    assert [] == [char for char in shown if harmful(char) and char != "\n"]
    assert all(each.startswith("> ") for each in shown.split("\n"))


@given(st.recursive(anything, lambda inner: st.lists(inner) | st.dictionaries(anything, inner), max_leaves=20))
@settings(max_examples=200)  # its values are large: with more of them a machine under load takes minutes
def test_json_is_harmless_and_equal(value):
    """JSON shows no such character, and parsed it is the value."""
    text = dumps(value)
    assert [] == [char for char in text if harmful(char)]
    assert value == json.loads(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("a\rb", "a\\x0db"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("a\u200bb", "a\\u200bb"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
        ("line\nbreak\ttab", "line break tab"),
        ("[red]no markup[/red]", "[red]no markup[/red]"),
        ("日本語 🎲", "日本語 🎲"),
    ],
)
def test_line(text, expected):
    """Harmful characters become visible escapes, everything else stays as it is."""
    assert expected == line(text)


def test_line_is_cut():
    """A long text is cut to its bound, with an ellipsis."""
    assert "abc…" == line("abcdef", 4)


def test_piled_marks():
    """Combining marks that would grow over other lines are cut."""
    assert "a" + "\u0301" * 4 + "…" == line("a" + "\u0301" * 500)


def test_block_cannot_forge():
    """Text that imitates what stands around it stays behind its indent."""
    assert "  ok\n  Findings (0)" == block("ok\r\nFindings (0)", "  ")


def test_escape_json_of_exact_bytes():
    """A line of an export reads the same after escaping."""
    text = json.dumps({"body": "\x7f\x9b\u2028é"}, ensure_ascii=False)
    assert json.loads(text) == json.loads(escape_json(text))
    assert "é" in escape_json(text)


def test_preview():
    """A value is shown as JSON, a text as it is."""
    assert ('{"a": "\\u001b"}', "x\\x1b") == (preview({"a": "\x1b"}, 40), preview("x\x1b", 40))


def test_table():
    """Numbers stand right, columns as wide as their widest cell, every cell safe."""
    lines = list(table([Column("A"), Column("N", right=True)], [("x\x1b", 5), (Cell("日本", "bad"), 1000)]))
    assert ["\x1b[2mA\x1b[0m         \x1b[2mN\x1b[0m", "x\\x1b     5"] == lines[:2]
    assert lines[2].endswith("  1000")


def test_empty_table():
    """A table without rows has no head either."""
    assert [] == list(table([Column("A")], []))


def test_width():
    """Wide characters count twice, and what is cut fits."""
    assert (4, "日…") == (width_of("日本"), cut("日本語", 4))
