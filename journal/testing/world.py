"""`World`: what an agent changes outside its run, in a file that no crash takes back."""

from __future__ import annotations

import json
import os
from contextvars import ContextVar
from pathlib import Path
from typing import Final, NamedTuple

from runjournal.engine.failures import Mistake
from runjournal.log import failpoint
from runjournal.log.errors import InvalidArgument

CALL: ContextVar[str] = ContextVar("runjournal_crash_call", default="")
"""The id of the call in whose body this code runs, while `crash_points` watches."""
_BEGIN: Final = "begin"


class WorldEffect(NamedTuple):
    """Something that a World was asked to do."""

    what: str
    key: str
    once: bool
    call: str
    again: bool

    @property
    def counted(self) -> bool:
        """Return whether it may happen only once: it was done with `once`, or under a key."""
        return self.once or bool(self.key)


class World:
    """The outside world of an agent that is tested: a ledger of what the agent did, in a file that no crash takes back.

    `path` is that file; its folder is there. Tools of the tested agent call `did` in place of the mail server, the bank
    or the database; a World that others wrote before is gone on with. Raises InvalidArgument for a path that can't be
    written, or a file that holds anything else.

    >>> world = World("/tmp/world")  # doctest: +SKIP
    >>> world.did("charge 100", key="order-7", once=True)  # doctest: +SKIP
    True
    >>> world.did("charge 100", key="order-7", once=True)  # doctest: +SKIP
    False
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self._since = 0
        self._walked = False
        if self.path.is_dir():
            raise InvalidArgument(f"{self.path} is a folder, expected a file for what the world did: name one in it")
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            self.effects()
        except OSError as error:
            raise InvalidArgument(f"{self.path} can't be written ({error.strerror}); name another file") from error
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidArgument(
                f"{self.path} holds something else than what a World did; name another file"
            ) from error

    def did(self, what: str, key: str = "", *, once: bool = False) -> bool:
        """Note that something happened outside; return whether it did: not again under a `key` that is known.

        `what` says what happened, with all that tells it from other effects: "charge 100 to ada". With a `key` the
        World is a receiver that dedupes: what comes again under the same key is noted, and doesn't happen. `once` says
        that it may happen only once without a key, too. When this returns, the file has it on disk. Raises
        InvalidArgument, and Mistake in an agent that `crash_points` walks without this World.
        """
        given: list[object] = [what, key]  # callers aren't all typed
        if not all(isinstance(each, str) for each in given) or not what:
            raise InvalidArgument(
                f"did: expected texts, what happened and maybe its key, got {type(what).__name__} {str(what)[:40]!r}, "
                f"{type(key).__name__} {str(key)[:40]!r}"
            )
        if failpoint.hit is not None and not self._walked:
            raise Mistake(f"call crash_points(agent, world=world): it doesn't know the world {self.path}")
        import fcntl  # where there is none there is no fork either

        line = {"what": what, "key": key, "once": once, "call": CALL.get()}
        ledger = os.open(self.path, os.O_RDWR | os.O_APPEND)
        try:
            fcntl.flock(ledger, fcntl.LOCK_EX)
            line["again"] = again = bool(key) and any((e.what, e.key) == (what, key) for e in self.effects())
            os.write(ledger, json.dumps(line).encode() + b"\n")
            os.fsync(ledger)
        finally:
            os.close(ledger)
        if not again:
            failpoint.passed("effect", what)
        return not again

    def effects(self) -> list[WorldEffect]:
        """Return what it was asked to do, in order; in a walk of `crash_points`, since the run began."""
        with self.path.open("rb") as ledger:
            ledger.seek(self._since)
            lines = [json.loads(line) for line in ledger.read().splitlines()]
        found = list[WorldEffect]()
        for line in lines:
            if _BEGIN in line:
                found.clear()
            else:
                found.append(WorldEffect(**line))
        return found

    def happened(self, what: str, key: str = "") -> bool:
        """Return whether something happened, under this key if one is named: what a `reconcile` hook asks."""
        return any(each.what == what and key in ("", each.key) for each in self.effects())

    def begin(self, title: str) -> None:
        """Begin anew, for another run of the same agent: what happened so far stays in the file, and counts no more."""
        with self.path.open("ab") as ledger:
            self._since, self._walked = ledger.tell(), True
            ledger.write(json.dumps({_BEGIN: title}).encode() + b"\n")
