"""Exit codes, and the one place where an error becomes a message and a code."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, Final

import click

from .safe import dumps, line

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
FINDINGS: Final = 3
NOT_FOUND: Final = 4
CONFLICT: Final = 5
UNAVAILABLE: Final = 75  # EX_TEMPFAIL of sysexits.h
INTERRUPTED: Final = 130  # 128 + SIGINT
PIPE_CLOSED: Final = 141  # 128 + SIGPIPE: the reader of our output has gone, as in `runjournal ls | head -1`

_BY_CODE: Final = {
    "invalid_argument": USAGE,
    "run_not_found": NOT_FOUND,
    "import_conflict": CONFLICT,
    "not_a_store": UNAVAILABLE,
    "newer_schema": UNAVAILABLE,
    "unsafe_place": UNAVAILABLE,
    "run_waiting": FINDINGS,
    "run_busy": CONFLICT,
    "run_not_due": UNAVAILABLE,
    "input_differs": CONFLICT,
    "kind_differs": CONFLICT,
}


_ADVICE: Final = {
    errno.ENOENT: "check the path: neither the file nor its folder is made",
    errno.EEXIST: "nothing was written, name a new file",
    errno.EISDIR: "expected a file, name one in it",
    errno.ENOTDIR: "expected a folder above the file, check the path",
    errno.EACCES: "check owner and mode",
    errno.EROFS: "name a place that can be written",
    errno.ENOSPC: "make room and try again",
    errno.EFBIG: "the file would grow over a limit; raise it (ulimit -f) and try again",
}


def guarded(command: Callable[[], Any], *, as_json: Callable[[], bool]) -> int:
    """Call a command; return its exit code. An error is told on stderr, as JSON if `as_json()` says so.

    A command that had to leave out rows which can't be read ends with FINDINGS.
    """
    left_out: list[str] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = functools.partial(_warn, as_json, left_out)
            result = command()
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.Abort:
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except KeyboardInterrupt:
        return INTERRUPTED
    except click.ClickException as error:
        return _tell_usage(error, as_json=as_json())
    except Exception as error:  # noqa: BLE001 - the one place: no traceback ever reaches a user who didn't ask for it
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            _let_go_of_stdout()
            return PIPE_CLOSED
        return told(error, as_json=as_json())
    code = result if isinstance(result, int) else OK
    return FINDINGS if left_out and code == OK else code


def told(error: BaseException, *, as_json: bool) -> int:
    """Say on stderr what went wrong; return its exit code."""
    code, name, text = _explain(error)
    if os.environ.get("RUNJOURNAL_DEBUG", "") not in ("", "0"):
        import traceback

        click.echo(line_by_line("".join(traceback.format_exception(error))), err=True)
    _tell(name, text, as_json=as_json)
    return code


def code_of(error: BaseException) -> int:
    """Return the exit code of an error."""
    return _explain(error)[0]


def _tell_usage(error: click.ClickException, *, as_json: bool) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        if not as_json:
            click.echo(error.ctx.get_help(), err=True)
            return error.exit_code
        error = click.UsageError(f"a command is missing; help: {error.ctx.command_path} --help", error.ctx)
    text = error.format_message()
    _tell("usage" if error.exit_code == USAGE else "failed", text, as_json=as_json)
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is not None and not as_json:
        click.echo(
            f"usage: {context.get_usage().removeprefix('Usage: ')}\nhelp: {context.command_path} --help", err=True
        )
    return error.exit_code


def _explain(error: BaseException) -> tuple[int, str, str]:
    """Return the exit code, the stable name and the text of an error."""
    from runjournal.log.errors import AppendRefused, JournalError, StoreUnavailable  # not for --help

    if isinstance(error, JournalError):
        code = _BY_CODE.get(error.code, FAILED)
        if isinstance(error, AppendRefused):
            code = CONFLICT
        elif isinstance(error, StoreUnavailable):
            code = UNAVAILABLE
        return code, error.code, str(error)
    if isinstance(error, OSError) and error.strerror:
        place = f"{os.fspath(error.filename)!s}: " if error.filename is not None else ""
        advice = _ADVICE.get(error.errno or 0, "check the path and the rights on it")
        return FAILED, "os_error", f"{place}{error.strerror}; {advice}"
    hint = "" if os.environ.get("RUNJOURNAL_DEBUG") else " (RUNJOURNAL_DEBUG=1 shows where)"
    return FAILED, "unexpected", f"{type(error).__name__}: {error}"[:500] + hint


def _warn(as_json: Callable[[], bool], left_out: list[str], message: Warning | str, *_: Any, **__: Any) -> None:
    if type(message).__name__ == "RowWarning":  # by name: importing it would cost each command that warns of nothing
        left_out.append(str(message))
    click.echo(dumps({"warning": str(message)}) if as_json() else f"warning: {line(message)}", err=True)


def _tell(name: str, text: str, *, as_json: bool) -> None:
    click.echo(dumps({"error": {"code": name, "message": text}}) if as_json else f"error: {line(text)}", err=True)


def line_by_line(text: str) -> str:
    """A text of several lines, each of them safe."""
    return "\n".join(line(part) for part in text.splitlines())


def _let_go_of_stdout() -> None:
    """Point stdout elsewhere: nobody reads it any more, and what is still buffered must not raise when Python exits."""
    with contextlib.suppress(OSError, ValueError):  # a test's stdout has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
