r"""What was logged never acts on the terminal that shows it.

Everything that comes from a log, a file name or an id goes through `line` or `block`, and through `dumps` where the
output is JSON. Characters that steer a terminal, reorder text or can't be seen become visible escapes: `\x1b`,
`\u202e`, `\U000e0041`.
"""

from __future__ import annotations

import re
from typing import Any, Final

ELLIPSIS: Final = "…"
_HARMLESS_BREAKS: Final = "\t\n"
# By number, so that this file holds no such character itself.
_RANGES: Final = (
    (0x00, 0x1F),  # C0: ESC, CR, BEL …
    (0x7F, 0x9F),  # DEL and C1, where 0x9B alone is CSI
    (0xAD, 0xAD),  # soft hyphen
    (0x34F, 0x34F),  # combining grapheme joiner
    (0x61C, 0x61C),  # Arabic letter mark
    (0x115F, 0x1160),  # Hangul fillers: blank letters
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),  # Mongolian variation selectors
    (0x200B, 0x200F),  # zero width, directional marks
    (0x2028, 0x202E),  # line and paragraph separator, bidi embeddings and overrides
    (0x2060, 0x206F),  # word joiner, bidi isolates, deprecated format characters
    (0x3164, 0x3164),
    (0xD800, 0xDFFF),  # lone surrogates
    (0xFE00, 0xFE0F),  # variation selectors
    (0xFEFF, 0xFEFF),  # byte order mark
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFB),  # interlinear annotation
    (0xFFFE, 0xFFFF),
    (0x13430, 0x1345F),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),  # tags, more variation selectors
)
_UNSAFE: Final = re.compile("[" + "".join(f"\\U{a:08x}-\\U{b:08x}" for a, b in _RANGES) + "]")
_UNSAFE_IN_BLOCK: Final = re.compile(f"(?![{_HARMLESS_BREAKS}]){_UNSAFE.pattern}")
_MARK: Final = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_MARKS: Final = re.compile(f"({_MARK}{{4}}){_MARK}+")  # a pile of marks grows over the lines above and below


def line(value: object, chars_max: int | None = None) -> str:
    """A value as text for one line: line breaks and tabs become spaces; cut to `chars_max` characters."""
    text = value if isinstance(value, str) else str(value)
    if chars_max is not None and len(text) > chars_max:
        text = text[: max(0, chars_max - 1)] + ELLIPSIS
    plain = text.removesuffix(ELLIPSIS)
    if plain.isascii() and plain.isprintable():
        return text
    text = text.replace("\r\n", " ").replace("\n", " ").replace("\t", " ")
    return _MARKS.sub(r"\1" + ELLIPSIS, _UNSAFE.sub(_escape, text))


def block(value: str, indent: str = "") -> str:
    """A text that keeps its line breaks, each line behind `indent`, so that it can't pass for what stands around it."""
    text = value.replace("\r\n", "\n").expandtabs(4)
    text = _MARKS.sub(r"\1" + ELLIPSIS, _UNSAFE_IN_BLOCK.sub(_escape, text))
    return "\n".join(indent + part for part in text.split("\n"))


def dumps(value: Any, *, indent: int | None = None) -> str:
    """JSON that reads as what it is and shows no such character; parsed, it is the value."""
    import json  # half of the commands need none

    return escape_json(json.dumps(value, ensure_ascii=False, indent=indent, default=str))


def escape_json(text: str) -> str:
    r"""The same JSON, the characters that aren't safe to show as `\uXXXX`; line breaks between values stay."""
    if text.isascii() and "\x7f" not in text:
        return text
    return _UNSAFE_IN_BLOCK.sub(_json_escape, text)


def preview(value: Any, chars_max: int) -> str:
    """A JSON value as one short line."""
    text = value if isinstance(value, str) else dumps(value)
    return line(text, chars_max)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004


def _json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))
