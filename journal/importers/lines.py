"""Lines of a file that may be torn, glued, too long, or growing while it is read."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from typing import IO, Any, Final, NamedTuple

import orjson

from runjournal.log.limits import (
    foreign_depth_max,
    import_piece_bytes,
    transcript_depth_max,
    transcript_line_bytes_max,
    transcript_values_max,
)

from .values import Bad, storable

_BOM: Final = b"\xef\xbb\xbf"
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[][{},]', re.DOTALL)
_OPENING: Final = frozenset({b"[", b"{"})
_CLOSING: Final = frozenset({b"]", b"}"})
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_AFTER: Final = "something that is no whole record follows the record at column {}"
_COUNTED: Final = frozenset({b"[", b"{", b","})


class TextLine(NamedTuple):
    """A line as it stands in the file.

    `number` counts from 1, `start` is its offset in bytes. `data` is without its newline, and None if it is longer than
    `transcript_line_bytes_max`. `ended` says whether it has a newline; `rest` that it is only what came behind the part
    of a line that was taken before.
    """

    number: int
    start: int
    data: bytes | None
    ended: bool
    rest: bool


def open_file(path: str) -> IO[bytes]:
    """Open a regular file for reading, without waiting at a pipe. Raises OSError."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(0, "not a regular file")
    return file


class Reader:
    """Reads the lines of a file up to the size that it had at the start, and hashes them.

    `boundary` is an offset that no line reaches across: up to there the file was taken before. After each line,
    `before` is the hash of the bytes before it and `hash` that of the bytes up to its end, `offset`. `marks` are some
    ends of lines, each at least twice as far as the one before it, with the hash up to there.
    """

    def __init__(self, file: IO[bytes], boundary: int = 0) -> None:
        file.seek(0)
        self.size = os.fstat(file.fileno()).st_size
        self.offset = 0
        self.hash = hashlib.sha256()
        self.before = self.hash.copy()
        self.marks: list[tuple[int, str]] = []
        self._file = file
        self._boundary = boundary

    def __iter__(self) -> Iterator[TextLine]:
        number, ended = 0, True
        while self.offset < self.size:
            rest = not ended
            number += ended
            start, self.before = self.offset, self.hash.copy()
            data, ended = self._line(self._boundary if start < self._boundary else self.size)
            if self.offset == start:
                return  # the file has shrunk meanwhile
            if ended and self.offset >= 2 * (self.marks[-1][0] if self.marks else 0):
                self.marks.append((self.offset, self.hash.hexdigest()))
            if data is not None and start == 0:
                data = data.removeprefix(_BOM)
            yield TextLine(number, start, data, ended, rest)

    def _line(self, end: int) -> tuple[bytes | None, bool]:
        """The bytes up to the next newline or to `end`, and whether there was a newline."""
        whole: bytearray | None = bytearray()
        while self.offset < end and (piece := self._file.readline(min(end - self.offset, import_piece_bytes))):
            self.hash.update(piece)
            self.offset += len(piece)
            whole = None if whole is None or len(whole) + len(piece) > transcript_line_bytes_max else whole
            ended = piece.endswith(b"\n")
            if whole is not None:
                whole += piece.removesuffix(b"\n")
            if ended:
                return None if whole is None else bytes(whole), True
        return None if whole is None else bytes(whole), False


class Parsed(NamedTuple):
    """A record of a line: its text, the JSON value that it is, and that value as the journal can hold it.

    `changed` says whether that took a change.
    """

    text: str
    value: Any
    clean: Any
    changed: bool


def parse(line: TextLine) -> tuple[list[Parsed], Bad | None]:
    """Return the records of a line, and what is wrong with what follows them. A blank line has none.

    A line holds one JSON value. Where several objects are glued together, each is a record. What is no whole object
    behind them is bad, and is all of a line that has no newline yet: the file may go on there.
    """
    if line.data is None:
        return [], Bad(f"longer than transcript_line_bytes_max = {transcript_line_bytes_max}")
    try:
        if (found := _canonical(line.data)) is not None:
            return [found], None
        if not line.data.strip():
            return [], None
        return _parse(line, line.data)
    except Bad as bad:
        return [], bad


def _canonical(data: bytes) -> Parsed | None:
    """Return the record of a line that is written as `JSON.stringify` does, as nearly all are; None for any other.

    What comes back as the same bytes has no key twice, no lone surrogate and no number that JSON holds and we don't.
    """
    openers = data.count(b"[") + data.count(b"{")
    if openers + data.count(b",") >= transcript_values_max:
        return None
    try:
        value = orjson.loads(data)
        if orjson.dumps(value, option=orjson.OPT_STRICT_INTEGER) != data:
            return None
    except (ValueError, TypeError):  # no JSON; or deeper than orjson goes, or a number of more than 53 bits
        return None
    if type(value) is not dict or (openers > foreign_depth_max and _deep(value)):
        return None
    return Parsed(data.decode(), value, value, changed=False)


def _deep(value: Any) -> bool:
    """Return whether a value nests deeper than `foreign_depth_max`."""
    level: list[Any] = [value]
    for _ in range(foreign_depth_max):
        level = [item for each in level for item in _inner(each)]
        if not level:
            return False
    return True


def _inner(value: Any) -> list[Any]:
    """Return the objects and lists right inside of an object or a list."""
    items: list[Any] = list(value.values()) if isinstance(value, dict) else value  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - of whatever
    return [item for item in items if isinstance(item, dict | list)]


def _parse(line: TextLine, data: bytes) -> tuple[list[Parsed], Bad | None]:
    _check_size(data)
    try:
        text = data.decode().strip(" \t\r")
    except UnicodeDecodeError as error:
        raise Bad(f"not valid UTF-8 at byte {error.start + 1}") from None
    found: list[Parsed] = []
    place = 0
    while True:
        try:
            value, end = _DECODER.raw_decode(text, place)
        except json.JSONDecodeError as error:
            bad = Bad(_cause(text, error)) if not (found or line.rest) else Bad(_AFTER.format(place + 1))
        except ValueError:
            bad = Bad("a number with too many digits")
        except RecursionError:
            bad = Bad("nested too deep")
        except Bad as twice:
            bad = twice
        else:
            rest = _SPACE.match(text, end)
            after = rest.end() if rest else end
            whole = after == len(text)
            if isinstance(value, dict) or (whole and not found and not line.rest and line.ended):
                found.append(Parsed(text[place:end], value, *storable(value)))
                if whole:
                    return found, None
                place = after
                continue
            bad = Bad("it may go on" if whole and not line.ended else _AFTER.format((place if found else after) + 1))
        return found if line.ended else [], bad


def _check_size(data: bytes) -> None:
    """Raise Bad for what nests too deep or holds too many values to be read, whatever of it is JSON.

    Values take up to a hundred times the memory of their text, and each level takes some of the stack, here and
    wherever the value goes. What stands in texts isn't counted.
    """
    openers = data.count(b"[") + data.count(b"{")
    if openers <= transcript_depth_max and openers + data.count(b",") < transcript_values_max:
        return
    depth, values = 0, 1
    for token in _TOKEN.finditer(data):
        mark = token[0]
        if mark in _OPENING:
            depth += 1
            if depth > transcript_depth_max:
                raise Bad(f"nested deeper than transcript_depth_max = {transcript_depth_max}")
        elif mark in _CLOSING:
            depth -= 1
        if mark in _COUNTED:
            values += 1
            if values > transcript_values_max:
                raise Bad(f"more values than transcript_values_max = {transcript_values_max}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Bad("a key of an object comes twice")
    return found


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_once)


def _cause(text: str, error: json.JSONDecodeError) -> str:
    if "\0" in text:
        return f"not valid JSON: NUL bytes from column {text.index(chr(0)) + 1}"
    return f"not valid JSON: {error.msg} at column {error.pos + 1}"
