"""Lines of a file that may be torn, glued, too long, or growing while it is read."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from typing import IO, Any, Final, NamedTuple

from runjournal.log.limits import (
    import_piece_bytes,
    transcript_depth_max,
    transcript_line_bytes_max,
    transcript_values_max,
)

from .values import Bad

_BOM: Final = b"\xef\xbb\xbf"
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[][{},]', re.DOTALL)
_OPENING: Final = frozenset({b"[", b"{"})
_CLOSING: Final = frozenset({b"]", b"}"})
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
    `before` is the hash of the bytes before it and `hash` that of the bytes up to its end, `offset`.
    """

    def __init__(self, file: IO[bytes], boundary: int = 0) -> None:
        file.seek(0)
        self.size = os.fstat(file.fileno()).st_size
        self.offset = 0
        self.hash = hashlib.sha256()
        self.before = self.hash.copy()
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


def parse(line: TextLine) -> tuple[str, Any] | None:
    """Return the text of a line and the JSON value that it is; None if the line is blank. Raises Bad."""
    if line.data is None:
        raise Bad(f"longer than transcript_line_bytes_max = {transcript_line_bytes_max}")
    if not line.data.strip():
        return None
    if line.rest:
        raise Bad("goes on after it was complete: a second record was glued to it")
    _check_size(line.data)
    try:
        text = line.data.decode().strip(" \t\r")
    except UnicodeDecodeError as error:
        raise Bad(f"not valid UTF-8 at byte {error.start + 1}") from None
    try:
        return text, json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise Bad(_cause(text, error)) from None
    except ValueError:
        raise Bad("a number with too many digits") from None
    except RecursionError:
        raise Bad("nested too deep") from None


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


def _cause(text: str, error: json.JSONDecodeError) -> str:
    if "\0" in text:
        return f"not valid JSON: NUL bytes from column {text.index(chr(0)) + 1}"
    if error.msg == "Extra data":
        glued = text[error.pos] in "{["
        return f"{'two records glued together' if glued else 'something follows the record'} at column {error.pos + 1}"
    return f"not valid JSON: {error.msg} at column {error.pos + 1}"
