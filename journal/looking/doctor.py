"""The doctor: whether a store lies safely, and what is missing to recover the runs that haven't ended.

It looks and changes nothing. What can't be known is said to be unknown, never taken for good.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
import platform
import shlex
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from runjournal.log import blob_names, owner
from runjournal.log import events as e
from runjournal.log.base import ERASED, BlobRef, NewerEvent, UnreadableEvent, plan_of
from runjournal.log.clock import parse_timestamp
from runjournal.log.errors import JournalError
from runjournal.log.head import Head
from runjournal.log.limits import (
    clock_skew_s,
    disk_free_bytes_min,
    doctor_audit_events_max,
    read_page_events_max,
    runs_named_max,
    wal_size_limit_bytes,
)
from runjournal.log.own_types import load_own_types
from runjournal.log.store import Store, all_heads
from runjournal.logbook import Logbook
from runjournal.projections.findings import BESIDE, shown, spoken
from runjournal.projections.shell import command, show_events
from runjournal.projections.state import RunState
from runjournal.writing.checkpoints import fold_name

from .audit import audit_store
from .audit_rows import DAMAGE, IndexRow, rows
from .family import stands


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: `ok` is True, False, or None if it can't be known or is only worth knowing.

    `what` says it in a sentence, `next` is the command to type next, "" if there is nothing to do.
    """

    name: str
    ok: bool | None
    what: str
    next: str = ""


def doctor(journal: Logbook | Store, url: str = "") -> list[Check]:
    """Look at a store, its place and its runs. `url` is what commands name. A check that can't be made says so."""
    store = journal.store if isinstance(journal, Logbook) else journal
    patient = _Patient(store, url or store.url)
    checks: list[Callable[[], Iterator[Check]]] = [
        patient.versions, patient.engine, patient.settings, patient.schema, patient.file, patient.place, patient.disk,
        patient.integrity, patient.erased, patient.lock, patient.others, patient.clock, patient.tables, patient.runs,
        patient.recovery, patient.tail,
    ]  # fmt: skip
    found: list[Check] = []
    for check in checks:
        try:
            found += check()
        except (JournalError, OSError, UnicodeError) as error:
            what = f"it couldn't be looked at ({type(error).__name__})"
            found.append(Check(check.__name__, False if isinstance(error, DAMAGE) else None, what, "runjournal verify"))
    return found


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


class _Patient:
    """A store, looked at from all sides; `path` is "" if it has no file."""

    def __init__(self, store: Store, url: str) -> None:
        self.store = store
        self.url = url
        self._info: dict[str, Any] | None = None
        self.sqlite = store.url.startswith("sqlite:")
        self.path = store.url.removeprefix("sqlite:") if self.sqlite else ""

    @property
    def info(self) -> dict[str, Any]:
        """Return what the store says of itself."""
        if self._info is None:
            self._info = self.store.info()
        return self._info

    # Programs.

    def versions(self) -> Iterator[Check]:
        """What runs here."""
        names = ("runjournal", "apsw", "orjson", "eventsourcing")
        packages = ", ".join(f"{name} {_version(name)}" for name in names)
        yield Check("versions", True, f"Python {platform.python_version()}, {packages}")
        found = load_own_types()
        for name, why in found.failed:
            yield Check("event types", False, f"those of {shown(name)} can't be loaded: {shown(why)}", "pip check")
        if found.loaded:
            yield Check(
                "event types", True, f"{len(found.loaded)} packages bring event types{_list(list(found.loaded))}"
            )

    def engine(self) -> Iterator[Check]:
        """Whether the engine has the fixes that a journal needs."""
        if not self.sqlite:
            yield Check("engine", None, "a store in memory keeps nothing", "runjournal doctor --db runjournal.db")
            return
        from runjournal.log.errors import UnsafePlace
        from runjournal.log.sqlite_place import ENGINE_MIN, check_engine

        found = str(self.info["engine"])
        try:
            check_engine(found.removeprefix("SQLite "))
        except UnsafePlace:
            yield Check("engine", False, f"{found}, expected {ENGINE_MIN} or newer", "pip install --upgrade apsw")
        else:
            yield Check("engine", True, f"{found}, at least {ENGINE_MIN}: the faults known of older ones are fixed")

    def settings(self) -> Iterator[Check]:
        """WAL, and the settings of each connection, read back."""
        if not self.sqlite:
            return
        from runjournal.log.sqlite_errors import translated
        from runjournal.log.sqlite_place import connect

        mode, limit = self.info["journal_mode"], self.info["journal_size_limit"]
        wal = mode == "wal"
        yield Check("wal", wal, f"the journal mode is {mode}, expected wal", "" if wal else self._command("doctor"))
        with translated(self.path):
            connect(self.path, 0.0).close()  # raises UnsafePlace if one of them can't be read back
        sound = limit >= wal_size_limit_bytes
        yield Check("settings", sound, f"the settings of a connection read back; the WAL is kept at {limit} bytes")

    def schema(self) -> Iterator[Check]:
        """Whether the store has the newest schema."""
        if self.sqlite:
            found, known = self.info["schema"], self.info["schema_known"]
            what = f"the store has schema {found}, this version knows {known}"
            yield Check("schema", found == known, what, "" if found == known else "pip install --upgrade runjournal")
        own = list[str]()
        for fault in self.store.faults():
            if fault.code == "schema_own":
                own.append(fault.part)
            else:
                yield Check("schema", False, f"{shown(fault.part)[1:-1]}: {fault.what}", self._command("db rebuild"))
        if own:
            yield Check("schema", None, f"{len(own)} tables and indexes were made by the store's user{_list(own)}")

    def erased(self) -> Iterator[Check]:
        """Whether what was erased or purged is gone from every file of the store."""
        if self.store.unscrubbed():
            what = "a reader that began before an erasure or a purge keeps older pages of it: end it, or wait for it"
            yield Check("erased", False, what, self._command("doctor"))

    def tables(self) -> Iterator[Check]:
        """Whether the rows beside the events are what follows from these; a store of many events is left to `audit`."""
        if (last := self.store.last_position()) > doctor_audit_events_max:
            what = f"the rows beside {last} events weren't compared with them: more than {doctor_audit_events_max}"
            yield Check("tables", None, what, self._command("audit"))
            return
        wrong = [each for each in audit_store(self.store) if each.code in BESIDE]
        for each in wrong[:runs_named_max]:
            where = f"run {shown(each.run_id)}: " if each.run_id else ""
            yield Check("tables", False, where + each.what, each.next)
        if len(wrong) > runs_named_max:
            yield Check("tables", False, f"{len(wrong) - runs_named_max} more", self._command("audit"))
        if not wrong:
            yield Check("tables", True, "the rows beside the events are what follows from these")

    # Place.

    def file(self) -> Iterator[Check]:
        """Who may read it."""
        if not self.path:
            return
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                mode = stat.S_IMODE(Path(self.path + suffix).stat().st_mode)
                if mode & 0o077:
                    what = f"others may open {self.path}{suffix} (mode {mode:04o})"
                    yield Check("file mode", False, what, f"chmod 600 {shlex.quote(self.path + suffix)}")
                    return
        yield Check("file mode", True, f"{self.path} is its owner's alone")

    def place(self) -> Iterator[Check]:
        """Whether machines share the file system."""
        if not self.path:
            return
        from runjournal.log.errors import UnsafePlace
        from runjournal.log.sqlite_place import check_file_system, file_system, mountinfo

        mounts = mountinfo()
        kind = file_system(self.path, mounts)
        try:
            check_file_system(self.path, mounts)
        except UnsafePlace:
            what = f"it lies on {kind}, which machines share, where SQLite's WAL isn't safe: move it to a local disk"
            yield Check("place", False, what, f"df -T {shlex.quote(self.path)}")
        else:
            yield Check("place", True if kind else None, f"the file system is {kind or 'unknown'}")

    def disk(self) -> Iterator[Check]:
        """Whether there is room."""
        if self.path:
            folder = Path(self.path).parent
            free = shutil.disk_usage(folder).free
            roomy = free >= disk_free_bytes_min
            what = f"{free} bytes are free, the store has {self.info['file_bytes'] + self.info['wal_bytes']}"
            yield Check("disk", roomy, what, "" if roomy else f"df -h {shlex.quote(str(folder))}")

    def integrity(self) -> Iterator[Check]:
        """SQLite's own check of the file's structure."""
        if not self.sqlite:
            return
        from runjournal.log.sqlite_errors import translated
        from runjournal.log.sqlite_place import connect, value

        with translated(self.path):
            connection = connect(self.path, 0.0)
            try:
                said = str(value(connection, "PRAGMA quick_check(1)"))
            finally:
                connection.close()
        sound = said == "ok"
        what = "the structure of the file is sound" if sound else f"the structure of the file is damaged: {shown(said)}"
        yield Check("integrity", sound, what, "" if sound else self._command("verify"))

    # Others.

    def lock(self) -> Iterator[Check]:
        """Whether somebody holds the write lock just now."""
        if not self.sqlite:
            return
        from runjournal.log.errors import StoreBusy
        from runjournal.log.sqlite_errors import translated
        from runjournal.log.sqlite_place import connect

        try:
            with translated(self.path):
                connection = connect(self.path, 0.0)
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    connection.execute("ROLLBACK")
                finally:
                    connection.close()
        except StoreBusy:
            yield Check("lock", None, "somebody is writing just now", self._command("doctor"))
        else:
            yield Check("lock", True, "nobody holds the write lock")
        if self.info["poisoned"]:
            what = "a commit of this process has an unknown outcome: restart it"
            yield Check("poisoned", False, what, self._command("ls"))

    def others(self) -> Iterator[Check]:
        """Which processes of this machine have the file open, and with what library, as far as they can be seen."""
        if not self.path:
            return
        if not Path("/proc/self/fd").exists():
            yield Check("others", None, "which processes have the file open can't be known on this system")
            return
        pids = [pid for pid in _openers(self.path) if pid != os.getpid()]
        foreign = [pid for pid in pids if _maps_system_sqlite(pid)]
        hidden = "; processes of other users and containers can't be seen"
        if foreign:
            what = f"processes{_list(foreign)} have it open with the system's SQLite, whose fixes aren't known{hidden}"
            yield Check("others", None, what, f"ps -fp {','.join(map(str, foreign))}")
        else:
            yield Check("others", True, f"{len(pids)} other processes have it open{_list(pids)}{hidden}")

    def clock(self) -> Iterator[Check]:
        """Whether the wall clock can be right."""
        newest = next(iter(self.store.read_all(self.store.last_position() - 1)), None)
        now = self.store.clock.now()
        if newest is None:
            yield Check("clock", None, f"it is {now:%Y-%m-%d %H:%M:%S} UTC; there is no event to compare it with")
            return
        with suppress(ValueError):
            ahead = parse_timestamp(newest.at) - now
            sound = ahead <= timedelta(seconds=clock_skew_s)
            what = "the wall clock is not behind the newest event"
            if not sound:
                behind = spoken(ahead.total_seconds())
                what = f"the wall clock is {behind} behind the newest event: one of them is wrong"
            yield Check("clock", sound, what, "" if sound else "timedatectl")

    # Runs.

    def runs(self) -> Iterator[Check]:
        """Who hasn't ended, and who cares for it."""
        here, gone, alive = owner.here(), list[str](), 0
        for head in self._heads("running"):
            if self.store.imported(head.run_id) is not None:
                continue  # it lives in another store
            if owner.gone(head, here, self.store.clock):
                gone.append(head.run_id)
            else:
                alive += 1
        yield Check("running", True, f"{alive} runs are running and have a living owner")
        what = f"{len(gone)} running runs have no living owner{_list(gone)}"
        yield Check("abandoned", not gone, what, self._run_command("explain", gone))
        for status in ("queued", "scheduled_retry", "imported", "open"):
            yield Check(status, True, f"{sum(1 for _ in self._heads(status))} runs are {status}")
        stopped, waiting = dict[str, list[str]](), list[str]()
        for head in self._heads("waiting"):
            word = stands(self.store, head)
            (stopped.setdefault(word, []) if word else waiting).append(head.run_id)
        for word, runs in sorted(stopped.items()):
            next_command = self._run_command("explain", runs)
            yield Check("stopped", False, f"{len(runs)} runs are {word}{_list(runs)}", next_command)
        what = f"{len(waiting)} runs wait for an answer, a signal, a child or a time{_list(waiting)}"
        yield Check("waiting", None if waiting else True, what, self._run_command("explain", waiting))

    def recovery(self) -> Iterator[Check]:
        """What is missing to recover the runs that haven't ended: events that can't be folded, values, checkpoints."""
        count, stale, complete = 0, list[str](), True
        for status in ("running", "waiting", "queued", "scheduled_retry"):
            for head in self._heads(status):
                if self.store.imported(head.run_id) is not None:
                    continue
                count += 1
                for check in self._missing(head):
                    complete = False
                    yield check
                if any(each.fold != fold_name(RunState) for each in self.store.checkpoints(head.run_id)):
                    stale.append(head.run_id)
        if complete:
            yield Check("recovery", True, f"all that is needed to recover {count} unfinished runs is there")
        if stale:
            named = f"{len(stale)} unfinished runs{_list(stale)}"
            what = f"{named} have checkpoints of other versions: recovery reads their whole log"
            yield Check("checkpoints", None, what, self._run_command("replay", stale))

    def _missing(self, head: Head) -> Iterator[Check]:
        last = 0
        for each in rows(self.store, head.run_id, head.head_seq):
            if not isinstance(each, IndexRow):
                last = each.seq
                yield self._lost(head.run_id, last, "its row can't be read")
                continue
            record = each.record
            if record.seq != last + 1:
                yield self._lost(head.run_id, last + 1, "it is missing")
            last, event = record.seq, record.event
            if isinstance(event, UnreadableEvent):
                yield self._lost(head.run_id, last, "it can't be read: no fold goes past it")
            elif isinstance(event, NewerEvent):
                yield self._lost(head.run_id, last, "a newer runjournal wrote it: update this one")
            elif event.BLOBS and blob_names.may_name(each.body):
                for field in plan_of(type(event)):
                    value = getattr(event, field.attribute)
                    if isinstance(value, BlobRef) and value != ERASED and self.store.blob(value.sha256) is None:
                        yield self._lost(head.run_id, last, f"the value of {field.name} isn't in the store")
            if any(self.store.blob(digest) is None for digest in blob_names.names(each.body)):
                yield self._lost(head.run_id, last, "bytes that it refers to aren't in the store")
        if last < head.head_seq:
            yield self._lost(head.run_id, last + 1, f"it is missing, with all up to {head.head_seq}")

    def _lost(self, run_id: str, seq: int, what: str) -> Check:
        return Check("recovery", False, f"run {shown(run_id)} event {seq}: {what}", show_events(run_id, seq))

    def tail(self) -> Iterator[Check]:
        """How much a power cut could still take."""
        last, relaxed = self.store.last_position(), 0
        for record in self.store.read_all(max(0, last - read_page_events_max)):
            relaxed = 0 if e.is_durable(record.event) else relaxed + 1
        what = f"the last {relaxed} events are relaxed commits: a power cut before the next durable one takes them"
        yield Check("tail", None, what) if relaxed else Check("tail", True, "the last event was a durable commit")

    def _heads(self, status: str) -> Iterator[Head]:
        return all_heads(self.store, status=(status,))

    def _command(self, name: str) -> str:
        return f"runjournal {name} --db {shlex.quote(self.url)}"

    def _run_command(self, name: str, run_ids: list[str]) -> str:
        return command(name, run_ids[0]) if run_ids else ""


def _list(names: list[Any]) -> str:
    """The first few names, in brackets."""
    if not names:
        return ""
    more = f" and {len(names) - runs_named_max} more" if len(names) > runs_named_max else ""
    return f" ({', '.join(map(str, names[:runs_named_max]))}{more})"


def _openers(path: str) -> list[int]:
    """The processes that have a file open, as far as this one may see."""
    real, found = os.path.realpath(path), list[int]()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                if any(_link(fd) == real for fd in (process / "fd").iterdir()):
                    found.append(int(process.name))
    return sorted(found)


def _link(fd: Path) -> str:
    try:
        return os.readlink(fd)  # noqa: PTH115 - the text itself: what it names may be gone
    except OSError:
        return ""


def _maps_system_sqlite(pid: int) -> bool:
    try:
        return "libsqlite3" in Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return False
