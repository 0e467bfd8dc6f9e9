"""Every store keeps the contract; the SQLite store also keeps its file safe."""

import gc
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from runjournal import Journal
from runjournal.log import events as e
from runjournal.log import sqlite as sqlite_module
from runjournal.log import sqlite_place
from runjournal.log.clock import FakeClock, SystemClock
from runjournal.log.errors import (
    CorruptLog,
    InvalidArgument,
    NewerSchema,
    NotAStore,
    OutcomeUnknown,
    StoreBusy,
    StoreError,
    StoreFull,
    StorePoisoned,
    StoreReadOnly,
    StoreUnavailable,
    UnsafePlace,
    WrongExpectation,
)
from runjournal.log.head import Head
from runjournal.log.limits import wal_autocheckpoint_pages, wal_size_limit_bytes
from runjournal.log.memory import MemoryStore
from runjournal.log.opening import open_store
from runjournal.log.sqlite import SQLiteStore
from runjournal.log.sqlite_errors import translate
from runjournal.log.sqlite_place import APPLICATION_ID, check_engine, connect, file_system
from runjournal.log.sqlite_reads import changed_page, heads_page, index_page
from runjournal.log.sqlite_schema import MIGRATIONS, migrate
from runjournal.log.store import Checkpoint, Effect, Store, Write
from runjournal.testing import StoreContract
from runjournal.testing.store_making import append, everything, note, prepare, queued, snapshot
from runjournal.writing.rebuild import rebuild

PROGRAMS = Path(__file__).parent / "programs"
SCHEMA_1 = Path(__file__).parent / "data" / "store-schema-1.db"

PROVED_BY_THE_CONTRACT = {
    "R2": ["an_append_is_read_back_as_it_was", "reads_go_over_pages"],
    "R47": [
        "a_gap_is_refused",
        "a_moved_head_refuses",
        "a_run_is_born_once",
        "racing_writers_leave_no_gap_and_no_duplicate",
    ],
    "R88": ["blobs_are_kept_once"],
    "R91": ["reads_go_on_beside_a_writer"],
}
for requirement, names in PROVED_BY_THE_CONTRACT.items():
    for name in names:
        pytest.mark.requirement(requirement)(getattr(StoreContract, f"test_{name}"))


@pytest.mark.requirement("R85")
class TestMemoryStore(StoreContract):
    """The contract, in memory."""

    def open(self) -> Store:
        return MemoryStore(clock=FakeClock())

    def reopen(self, store: Store) -> Store:
        return store  # closing would be its end


@pytest.mark.requirement("R85")
class TestSQLiteStore(StoreContract):
    """The contract, in a file."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "runs.db"

    def open(self) -> Store:
        return SQLiteStore(self.path, clock=FakeClock())

    def reopen(self, store: Store) -> Store:
        store.close()
        return SQLiteStore(self.path, clock=FakeClock(), create=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(path, clock=SystemClock(), busy_wait_s=5.0) as opened:
        yield opened


def run(program: str, *args: object, returncode: int = 0) -> str:
    """Run a child program to its end; gives what it printed."""
    command = [sys.executable, str(PROGRAMS / program), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert returncode == done.returncode, done.stderr
    return done.stdout


def files_of(path: Path) -> dict[str, bytes]:
    """The bytes of a file and of all that lies beside it."""
    return {each.name: each.read_bytes() for each in sorted(path.parent.iterdir()) if each.is_file()}


def schema_of(connection: apsw.Connection) -> list[Any]:
    return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY 1, 2").fetchall()


# --- the contract itself ------------------------------------------------------------------------------------------


def test_contract_needs_no_framework():
    """The contract runs by itself, also where Python drops asserts, and finds a store that breaks it."""
    program = """
from runjournal.log.clock import FakeClock
from runjournal.log.memory import MemoryStore
from runjournal.testing import StoreContract

class Deaf(MemoryStore):
    def heartbeat(self, run_id, epoch, lease_until, at):
        super().heartbeat(run_id, epoch, lease_until, at)
        return True

class Contract(StoreContract):
    def open(self): return self.kind(clock=FakeClock())
    def reopen(self, store): return store

Contract.kind = MemoryStore
print(Contract().run() > 30)
Contract.kind = Deaf
try:
    Contract().run()
except AssertionError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ["True", "another epoch's heartbeat: expected False, got True"] == done.stdout.splitlines()


def test_memory_store_knows_neither_sql_nor_backup(tmp_path):
    """A store in memory refuses what only a file has."""
    with MemoryStore(clock=FakeClock()) as memory:
        with pytest.raises(InvalidArgument, match="sql"):
            memory.sql("SELECT 1")
        with pytest.raises(InvalidArgument, match="backup"):
            memory.backup(str(tmp_path / "copy.db"))


@pytest.mark.parametrize("form", ["{}", "sqlite:{}", "sqlite://{}"])
def test_open_store_by_url(path, form):
    """A path, with or without the scheme, is a SQLite store; its own url opens it again."""
    with open_store(form.format(path), clock=FakeClock()) as opened:
        append(opened, "run-1", [queued()])
        url = opened.url
    with open_store(url, clock=FakeClock(), create=False) as again:
        assert 1 == again.last_position()


# --- what the file itself refuses ---------------------------------------------------------------------------------

INSERT = "INSERT {} INTO events ({}run, seq, type, hash, body) VALUES ({}1, {}, 'x.forged', zeroblob(32), x'00')"


@pytest.mark.requirement("R144", "R2")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET body = x'00' WHERE seq = 1",
        "UPDATE events SET position = position + 10",
        "UPDATE OR IGNORE events SET type = 'x.forged'",
        "DELETE FROM events",
        "DELETE FROM events WHERE seq = 2",
        INSERT.format("OR REPLACE", "", "", 2),
        INSERT.format("OR IGNORE", "position, ", "1, ", 3),
        INSERT.format("OR REPLACE", "position, ", "1, ", 3),
        INSERT.format("", "position, ", "0, ", 3),
        INSERT.format("", "position, ", "-1, ", 3),
        INSERT.format("", "", "", 3),
        INSERT.format("", "", "", 4),
        INSERT.format("", "", "", 0),
        INSERT.format("OR REPLACE", "", "", 1).replace("(1,", "(9,"),
        "UPDATE effects SET tool = 'other'",
        "DELETE FROM effects",
    ],
)
def test_database_refuses_to_change_the_past(path, statement):
    """Whoever opens the file with another tool can neither change, remove, replace nor forge events and effects."""
    with SQLiteStore(path, clock=FakeClock()) as opened:
        append(opened, "run-1", [queued(), note("x")], rows={"effects": [Effect("s", "k", "t", "h", "run-1", 2)]})
        before = snapshot(opened)
    with closing(apsw.Connection(str(path))) as stranger, pytest.raises(apsw.ConstraintError):
        stranger.execute(statement)
    with SQLiteStore(path, clock=FakeClock()) as opened:
        assert before == snapshot(opened)


def test_database_keeps_the_first_effect(path):
    """INSERT OR REPLACE over an effect changes nothing."""
    first = Effect("s", "k", "t", "h", "run-1", 1)
    with SQLiteStore(path, clock=FakeClock()) as opened:
        append(opened, "run-1", [queued()], rows={"effects": [first]})
        with closing(apsw.Connection(str(path))) as stranger:
            stranger.execute("INSERT OR REPLACE INTO effects VALUES ('s', 'k', 'other', 'h', 'run-1', 1)")
        assert first == opened.effect("s", "k")


def test_event_that_the_head_does_not_know_is_corruption(store, path):
    """A head that somebody has set back can't make two events of one seq."""
    append(store, "run-1", [queued(), note("x")])
    with closing(apsw.Connection(str(path))) as stranger:
        stranger.execute("UPDATE runs SET head_seq = 1")
    with pytest.raises(CorruptLog, match="run-1 seq 2"):
        append(store, "run-1", [note("forged")])
    assert 2 == store.last_position()


# --- schema -------------------------------------------------------------------------------------------------------


def test_schema_is_the_sum_of_the_migrations(store, path):
    """A new store has what the scripts make one after the other, and says so in its header."""
    by_hand = apsw.Connection(":memory:")
    for script in MIGRATIONS:
        by_hand.execute(script)
    with closing(apsw.Connection(str(path))) as connection:
        assert schema_of(by_hand) == schema_of(connection)
        assert [(APPLICATION_ID,)] == connection.execute("PRAGMA application_id").fetchall()
        assert [(len(MIGRATIONS),)] == connection.execute("PRAGMA user_version").fetchall()


def test_tables_are_strict(path, store):
    """Each table refuses values of a wrong type."""
    with closing(apsw.Connection(str(path))) as connection:
        query = "SELECT name, strict FROM pragma_table_list WHERE schema = 'main' AND type = 'table'"
        tables = connection.execute(query).fetchall()
    assert [] == [name for name, strict in tables if not strict and not str(name).startswith("sqlite_")]


def test_columns_of_runs_are_those_of_a_head(store):
    """The table `runs` has the fields of Head, in their order."""
    (text,) = store.sql("SELECT sql FROM sqlite_schema WHERE name = 'runs'")[0]
    columns = [line.split()[0] for line in str(text).splitlines() if line.startswith("    ")]
    assert ["run", *Head._fields] == columns


@pytest.mark.requirement("R87")
def test_frozen_store_of_schema_1_is_migrated(path):
    """A store that schema 1 wrote opens, keeps its events byte for byte, and is then like a new one."""
    shutil.copy(SCHEMA_1, path)
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as old:
        query = "SELECT run_id, seq, position, type, body, hash FROM events JOIN run_keys USING (run)"
        rows = old.execute(f"{query} ORDER BY run_id, seq").fetchall()
    with SQLiteStore(path, clock=FakeClock()) as opened:
        heads = opened.heads()
        assert ["run-2", "run-1"] == [head.run_id for head in heads]
        assert ["queued", "running"] == [head.status for head in heads]
        assert rows == [(run_id, *row) for run_id in ("run-1", "run-2") for row in opened.read_raw(run_id)]
        assert heads[1].head_hash == list(opened.read("run-1"))[-1].hash
        assert 6 == append(opened, "run-1", [note("new")])[0].position
        new = apsw.Connection(":memory:")
        for script in MIGRATIONS:
            new.execute(script)
        with closing(apsw.Connection(str(path))) as connection:
            assert schema_of(new) == schema_of(connection)


@pytest.mark.requirement("R87")
def test_backup_before_migration(path):
    """Before a store is migrated it is copied, once, mode 0600, and no earlier copy is overwritten."""
    copy = path.with_name("runs.db.backup-schema-1")
    copy.write_text("mine")
    for expected in ({"runs.db.backup-schema-1-2"}, {"runs.db.backup-schema-1-3"}, set()):
        if expected:
            path.unlink(missing_ok=True)
            shutil.copy(SCHEMA_1, path)
        before = set(files_of(path))
        SQLiteStore(path, clock=FakeClock()).close()
        assert expected == set(files_of(path)) - before
    assert "mine" == copy.read_text()
    second = path.with_name("runs.db.backup-schema-1-2")
    assert 0o600 == stat.S_IMODE(second.stat().st_mode)
    with closing(apsw.Connection(str(second))) as connection:
        assert [(1,)] == connection.execute("PRAGMA user_version").fetchall()
        assert [(5,)] == connection.execute("SELECT count(*) FROM events").fetchall()


@pytest.mark.requirement("R87")
def test_crash_in_a_migration(path):
    """A process that dies inside a migration leaves the schema before it, and the next one migrates."""
    shutil.copy(SCHEMA_1, path)
    run("crash_migration.py", path, returncode=9)
    with closing(apsw.Connection(str(path))) as connection:
        assert [(1,)] == connection.execute("PRAGMA user_version").fetchall()
        assert [] == connection.execute("SELECT name FROM sqlite_schema WHERE name = 'half'").fetchall()
    with SQLiteStore(path, clock=FakeClock()) as opened:
        assert (2, 5) == (opened.info()["schema"], opened.last_position())


@pytest.mark.requirement("R87")
def test_failing_migration(path):
    """A script that fails leaves nothing behind."""
    shutil.copy(SCHEMA_1, path)
    with closing(connect(str(path), 1.0)) as connection:
        with pytest.raises(apsw.SQLError):
            migrate(connection, str(path), (MIGRATIONS[0], "CREATE TABLE half (a); SELECT nonsense"))
        assert not connection.in_transaction
        assert [(1,)] == connection.execute("PRAGMA user_version").fetchall()
        assert [] == connection.execute("SELECT name FROM sqlite_schema WHERE name = 'half'").fetchall()


@pytest.mark.parametrize("in_the_wal", [False, True])
def test_newer_schema_is_refused(path, in_the_wal):
    """A store that a newer version has migrated is refused, with both numbers, and not a byte of it changes."""
    SQLiteStore(path, clock=FakeClock()).close()
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA user_version = 99")
    if in_the_wal:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.close()
    before = {name: data for name, data in files_of(path).items() if not name.endswith("-shm")}
    assert in_the_wal == ("runs.db-wal" in before)
    with pytest.raises(NewerSchema) as caught:
        SQLiteStore(path, clock=FakeClock())
    assert (99, len(MIGRATIONS)) == (caught.value.found, caught.value.known)
    assert before == {name: data for name, data in files_of(path).items() if not name.endswith("-shm")}


# --- places -------------------------------------------------------------------------------------------------------


def a_text(path: Path) -> None:
    path.write_text("not a database, but long enough to be taken for one: " * 10)


def a_short_file(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0")


def a_damaged_header(path: Path) -> None:
    SQLiteStore(path, clock=FakeClock()).close()
    with path.open("r+b") as file:
        file.write(b"sqlite")


def a_damaged_schema(path: Path) -> None:
    SQLiteStore(path, clock=FakeClock()).close()
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 500)


def another_tools_file(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("CREATE TABLE runs (a)")


def another_tools_file_with_wal(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("PRAGMA application_id = 1")
        connection.execute("CREATE TABLE runs (a)")
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


def a_directory(path: Path) -> None:
    path.mkdir()


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    "make",
    [
        a_text,
        a_short_file,
        a_damaged_header,
        a_damaged_schema,
        another_tools_file,
        another_tools_file_with_wal,
        a_directory,
        a_pipe,
    ],
)
def test_what_is_no_store_is_refused(path, make):
    """Whatever else lies at the path is refused by name, and nothing there changes."""
    make(path)
    before = files_of(path)
    with pytest.raises(NotAStore, match=r"runs\.db"):
        SQLiteStore(path, clock=FakeClock())
    after = {name: data for name, data in files_of(path).items() if name in before or make is not a_damaged_schema}
    assert before == after


@pytest.mark.parametrize("name", ["", ":memory:", "a\0b"])
def test_path_that_is_none(name):
    """A name that SQLite would understand in its own way is refused."""
    with pytest.raises(InvalidArgument):
        SQLiteStore(name, clock=FakeClock())


def test_create_false(path):
    """Without leave to create, neither a missing file nor an empty one becomes a store."""
    with pytest.raises(StoreUnavailable):
        SQLiteStore(path, clock=FakeClock(), create=False)
    assert {} == files_of(path)
    path.touch()
    with pytest.raises(NotAStore):
        SQLiteStore(path, clock=FakeClock(), create=False)
    assert {"runs.db": b""} == files_of(path)


def test_missing_folder(tmp_path):
    """A folder that isn't there is named, and isn't made."""
    with pytest.raises(StoreUnavailable, match=r"no/runs\.db"):
        SQLiteStore(tmp_path / "no" / "runs.db", clock=FakeClock())
    assert [] == list(tmp_path.iterdir())


def test_empty_file_becomes_a_store(path):
    """A file that a creator left empty when it died is made a store by the next one."""
    path.touch()
    with SQLiteStore(path, clock=FakeClock()) as opened:
        append(opened, "run-1", [queued()])


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_only_the_owner_may_read(path, umask):
    """The file and what SQLite puts beside it have mode 0600, whatever the umask; so has a backup."""
    before = os.umask(umask)
    try:
        with SQLiteStore(path, clock=FakeClock()) as opened:
            append(opened, "run-1", [queued()])
            opened.backup(str(path.with_name("copy.db")))
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert dict.fromkeys(["runs.db", "runs.db-wal", "runs.db-shm", "copy.db"], 0o600) == modes


@pytest.mark.requirement("R89")
def test_place_without_wal_is_refused(path):
    """Where SQLite can't have a write-ahead log the store doesn't open in a lesser mode."""
    apsw.set_default_vfs("unix-none")  # locks nothing, shares no memory: no WAL
    try:
        with pytest.raises(UnsafePlace, match="expected journal mode wal, got delete"):
            SQLiteStore(path, clock=FakeClock())
    finally:
        apsw.set_default_vfs("unix")


MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 0:40 / /data rw - nfs4 host:/x rw
31 30 0:41 / /data/local rw master:2 - xfs /dev/vdb rw
32 27 0:42 / /my\\040share rw - cifs //host/x rw
33 27 0:43 / /over rw - ext4 /dev/vdc rw
34 33 0:44 / /over rw - fuse.sshfs me@host:/ rw
garbage
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/home/x.db", "ext4"),
        ("/data/x.db", "nfs4"),
        ("/data", "nfs4"),
        ("/database/x.db", "ext4"),
        ("/data/local/x.db", "xfs"),
        ("/my share/x.db", "cifs"),
        ("/over/x.db", "fuse.sshfs"),
    ],
)
def test_file_system_of_a_path(path, expected):
    """The mount that a path lies under, the deepest and the last one, says which file system it is."""
    assert expected == file_system(path, MOUNTS)


def test_file_system_that_nobody_knows():
    """Where the kernel says nothing, nothing is known."""
    assert "" == file_system("/x.db", "")


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "virtiofs"])
def test_network_file_system_is_refused(path, kind, monkeypatch):
    """A file system that machines share is refused, and nothing is made there, unless it is allowed by name."""
    monkeypatch.setattr(sqlite_module, "mountinfo", lambda: f"27 1 254:0 / / rw - {kind} /dev/vda rw\n")
    with pytest.raises(UnsafePlace, match=kind):
        SQLiteStore(path, clock=FakeClock())
    assert {} == files_of(path)
    SQLiteStore(path, clock=FakeClock(), allow_unsafe=True).close()


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "fuse.mergerfs"])
def test_local_file_system_is_accepted(path, kind, monkeypatch):
    """A file system of one machine is fine."""
    monkeypatch.setattr(sqlite_module, "mountinfo", lambda: f"27 1 254:0 / / rw - {kind} /dev/vda rw\n")
    SQLiteStore(path, clock=FakeClock()).close()


def test_engine_that_is_too_old_is_refused(path, monkeypatch):
    """An engine with the fault in WAL checkpoints is refused before it touches anything."""
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(UnsafePlace, match=r"3\.51\.2"):
        SQLiteStore(path, clock=FakeClock())
    assert {} == files_of(path)


@pytest.mark.parametrize("version", ["3.51.3", "3.52.0", "3.100.1", "4.0"])
def test_engine_that_is_new_enough(version):
    """Versions are compared as numbers."""
    check_engine(version)


def test_settings_are_read_back(path, monkeypatch):
    """A setting that doesn't take is found when the store is opened."""
    monkeypatch.setitem(sqlite_place._SETTINGS, "page_count", 5)
    with pytest.raises(UnsafePlace, match="page_count"):
        SQLiteStore(path, clock=FakeClock())


def test_settings(store):
    """Each connection has the settings that the promises rest on."""
    store.head("run-1")
    expected = {
        "journal_mode": "wal",
        "synchronous": 3,
        "trusted_schema": 0,
        "cell_size_check": 1,
        "mmap_size": 0,
        "journal_size_limit": wal_size_limit_bytes,
        "wal_autocheckpoint": 0,
    }
    for connection in store.connections:
        assert expected == {name: connection.execute(f"PRAGMA {name}").fetchall()[0][0] for name in expected}
    assert 2 == len(store.connections)


# --- many at once -------------------------------------------------------------------------------------------------


def test_sixteen_processes_open_a_fresh_file(path):
    """Processes that open a file at the same moment, which none of them finds there, all get the one store."""
    command = [sys.executable, PROGRAMS / "append_to_store.py", path]
    children = [
        subprocess.Popen([*command, f"run-{number}", "close"], stderr=subprocess.PIPE, text=True)
        for number in range(16)
    ]
    failures = [error for child in children if (error := child.communicate(timeout=60)[1]) or child.returncode]
    assert [] == failures
    with SQLiteStore(path, clock=FakeClock(), create=False) as opened:
        assert {f"run-{number}" for number in range(16)} == {head.run_id for head in opened.heads()}
        assert list(range(1, 17)) == [each.position for each in opened.read_all()]
    assert {"runs.db"} == set(files_of(path))


def test_threads_open_a_fresh_file(path):
    """Threads of one process that open a file at the same moment don't take each other's locks away."""
    failures: list[BaseException] = []

    def open_and_append(number: int) -> None:
        try:
            with SQLiteStore(path, clock=SystemClock()) as opened:
                append(opened, f"run-{number}", [queued()])
        except BaseException as error:  # noqa: BLE001 - it is what the test looks at
            failures.append(error)

    threads = [threading.Thread(target=open_and_append, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == failures
    with SQLiteStore(path, clock=FakeClock(), create=False) as opened:
        assert 8 == opened.last_position()


@pytest.mark.requirement("R89")
def test_killed_process_loses_nothing(path):
    """What a process had appended, relaxed even, is there after it was killed."""
    run("append_to_store.py", path, "run-1", "kill", returncode=-signal.SIGKILL)
    assert {"runs.db", "runs.db-wal", "runs.db-shm"} == set(files_of(path))
    with SQLiteStore(path, clock=FakeClock(), create=False) as opened:
        assert [("run-1", 1)] == [(each.run_id, each.seq) for each in opened.read_all()]
        append(opened, "run-1", [note("next")])


@pytest.mark.requirement("R91")
def test_reader_of_another_store_beside_a_writer(path, store):
    """A reader with a store of its own neither waits for an open transaction nor fails, and sees what is committed."""
    records = append(store, "run-1", [queued(), note("x")])
    with SQLiteStore(path, clock=FakeClock(), busy_wait_s=0.0) as reader:

        def beside(tx: Any) -> None:
            tx.write(prepare(tx, "run-1", [note("y")])[0])
            assert records == list(reader.read("run-1"))
            assert records == list(reader.read_all())
            assert 1 == len(reader.heads())

        store.transact(beside, durable=True)
        assert 3 == len(list(reader.read("run-1")))


def test_iterator_keeps_no_snapshot(store):
    """A reader that pauses between two events doesn't keep the WAL from being emptied."""
    append(store, "run-1", [queued(), note("x")])
    reading = store.read("run-1")
    next(reading)
    next(store.read_all())
    next(store.index_rows("lines"), None)
    busy, _, _ = store._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
    assert 0 == busy
    assert 0 == store.info()["wal_bytes"]


def test_wal_is_used_again(store):
    """Many appends don't let the WAL grow beyond what is allowed between two checkpoints."""
    for number in range(2 * wal_autocheckpoint_pages // 4):
        append(store, f"run-{number}", [queued()])
    assert store.info()["wal_bytes"] < 1.2 * wal_autocheckpoint_pages * 4096
    store.close()
    assert {"runs.db"} == set(files_of(Path(store._path)))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Somebody else holds the write lock."""
    with closing(apsw.Connection(str(path))) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


WRITES: dict[str, Callable[[SQLiteStore], object]] = {
    "transact": lambda store: append(store, "run-1", [note("x")]),
    "save_checkpoint": lambda store: store.save_checkpoint(Checkpoint("run-1", 1, "fold", b"")),
    "drop_checkpoints": lambda store: store.drop_checkpoints(),
    "heartbeat": lambda store: store.heartbeat("run-1", 1, 1.0, 1.0),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_busy(path, write):
    """A write lock held too long is StoreBusy; nothing was written, and the next try goes through."""
    with SQLiteStore(path, clock=FakeClock(), busy_wait_s=0.05) as opened:
        append(opened, "run-1", [queued()])
        before = snapshot(opened)
        with locked(path), pytest.raises(StoreBusy):
            write(opened)
        assert before == snapshot(opened)
        write(opened)


def test_busy_with_a_thread(path):
    """A thread that holds the lock of its own store too long makes the others busy, not hang."""
    with SQLiteStore(path, clock=FakeClock(), busy_wait_s=0.05) as opened:
        inside, leave = threading.Event(), threading.Event()

        def hold(_: Any) -> None:
            inside.set()
            leave.wait(10)

        thread = threading.Thread(target=opened.transact, args=(hold,), kwargs={"durable": True})
        thread.start()
        inside.wait(10)
        with pytest.raises(StoreBusy):
            append(opened, "run-1", [queued()])
        with pytest.raises(StoreBusy):
            opened.close()
        leave.set()
        thread.join()
        append(opened, "run-1", [queued()])


# --- forks --------------------------------------------------------------------------------------------------------


def test_use_after_fork(path):
    """A forked child can't use its parent's store, closes nothing of it, and may open one of its own."""
    found = json.loads(run("fork_with_store.py", path))
    expected = {"child": ["used_after_fork"] * 7, "status": 0, "seqs": [1, 2, 3], "check": ["wal", 3]}
    assert expected == found


# --- failing disks ------------------------------------------------------------------------------------------------


class FaultyFile(apsw.VFSFile):
    """A file whose failures the test decides."""

    def __init__(self, vfs: "FaultyVFS", name: Any, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self._vfs = vfs
        self._is_wal = bool(flags[0] & apsw.SQLITE_OPEN_WAL)

    def xSync(self, flags: int) -> None:  # noqa: N802 - the VFS's word
        if (self._is_wal and self._vfs.wal_sync_fails) or (not self._is_wal and self._vfs.main_sync_fails):
            raise apsw.IOError("fsync failed")
        super().xSync(flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802 - the VFS's word
        if self._is_wal and self._vfs.wal_write_error is not None:
            raise self._vfs.wal_write_error
        super().xWrite(data, offset)


class FaultyVFS(apsw.VFS):
    """A disk that fails when it is told to; the default one while the test lasts."""

    def __init__(self) -> None:
        super().__init__("faulty", "unix")
        self.wal_sync_fails = self.main_sync_fails = self.read_only = False
        self.wal_write_error: Exception | None = None

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - the VFS's word
        if self.read_only and flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            flags[0] = flags[0] & ~(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE) | apsw.SQLITE_OPEN_READONLY
        return FaultyFile(self, name, flags)


@pytest.fixture
def disk() -> Iterator[FaultyVFS]:
    vfs = FaultyVFS()
    apsw.set_default_vfs("faulty")
    yield vfs
    apsw.set_default_vfs("unix")
    gc.collect()
    vfs.unregister()


@pytest.mark.parametrize("durable", [True, False])
def test_io_error_at_commit(path, disk, durable):
    """A commit that fails on the disk is told as unknown; then no store of that file acknowledges anything more."""
    with SQLiteStore(path, clock=FakeClock()) as opened:
        records = append(opened, "run-1", [queued()])
        if durable:
            disk.wal_sync_fails = True
        else:
            disk.wal_write_error = apsw.IOError("write failed")
        with pytest.raises(OutcomeUnknown):
            append(opened, "run-1", [note("lost?")], durable=durable)
        disk.wal_sync_fails, disk.wal_write_error = False, None
        for write in WRITES.values():
            with pytest.raises(StorePoisoned):
                write(opened)
        assert opened.info()["poisoned"]
        assert records == list(opened.read("run-1", upto=1))
        with SQLiteStore(path, clock=FakeClock()) as second, pytest.raises(StorePoisoned):
            append(second, "run-1", [note("y")])
    assert records == list(SQLiteStore(path, clock=FakeClock()).read("run-1", upto=1))


def test_io_error_at_a_checkpoint(path, disk):
    """An fsync that fails while the WAL is moved into the file doesn't touch that commit, but is the last one."""
    with SQLiteStore(path, clock=FakeClock()) as opened:
        append(opened, "run-1", [queued()])
        disk.main_sync_fails = True
        blob = {"blobs": [("d", b"x" * 4096 * wal_autocheckpoint_pages)]}
        append(opened, "run-1", [note("big")], rows=blob, durable=True)
        with pytest.raises(StorePoisoned):
            append(opened, "run-1", [note("next")])
        disk.main_sync_fails = False
        assert [1, 2] == [each.seq for each in opened.read("run-1")]


def test_io_error_while_closing(path, disk):
    """If what the WAL holds can't be moved into the file while closing, nobody tries again, and the WAL stays."""
    with SQLiteStore(path, clock=FakeClock()) as opened:
        records = append(opened, "run-1", [queued()])
        disk.main_sync_fails = True
    disk.main_sync_fails = False
    assert 0 < Path(f"{path}-wal").stat().st_size
    with SQLiteStore(path, clock=FakeClock()) as opened:
        assert records == list(opened.read("run-1"))


def test_half_made(path):
    """What the power leaves of a store that was being made is made anew: its journal says that it was empty."""
    Path(path).write_bytes(bytes(8192))
    header = bytes.fromhex("d9d505f920a163d7 00000000 12345678 00000000 00000200 00001000")
    Path(f"{path}-journal").write_bytes(header.ljust(512, b"\0"))
    with SQLiteStore(path, clock=FakeClock()) as opened:
        assert 1 == append(opened, "run-1", [queued()])[0].position


def test_half_of_something_else(path):
    """A file that had pages before isn't taken for a store that was being made."""
    Path(path).write_bytes(bytes(8192))
    header = bytes.fromhex("d9d505f920a163d7 00000000 12345678 00000002 00000200 00001000")
    Path(f"{path}-journal").write_bytes(header.ljust(512, b"\0"))
    with pytest.raises(NotAStore):
        SQLiteStore(path, clock=FakeClock())
    assert bytes(8192) == Path(path).read_bytes()


@pytest.mark.parametrize("committing", [True, False])
def test_a_read_lock_that_cannot_be_had(committing):
    """Among processes that are stopped and killed SQLite may give up ("locking protocol"): nothing was written."""
    assert isinstance(translate(apsw.ProtocolError("locking protocol"), "x.db", committing=committing), StoreBusy)


@pytest.mark.parametrize("durable", [True, False])
def test_full_disk(path, disk, durable):
    """A full disk is told as such, nothing is written, and it goes on when there is room again."""
    with SQLiteStore(path, clock=FakeClock()) as opened:
        append(opened, "run-1", [queued()])
        before = snapshot(opened)
        disk.wal_write_error = apsw.FullError("no space")
        with pytest.raises(StoreFull):
            append(opened, "run-1", [note("x")], rows=everything("run-1", 2), durable=durable)
        assert before == snapshot(opened)
        disk.wal_write_error = None
        append(opened, "run-1", [note("y")], durable=durable)
        assert [1, 2] == [each.seq for each in opened.read("run-1")]


def test_full_disk_inside_a_transaction(store):
    """After a full disk has undone a transaction, a decision that goes on regardless can't write outside of it."""
    append(store, "run-1", [queued()])
    pages = store._writer.execute("PRAGMA page_count").fetchall()[0][0]
    store._writer.execute(f"PRAGMA max_page_count = {pages}").fetchall()

    def regardless(tx: Any) -> str:
        with pytest.raises(StoreFull):
            tx.write(prepare(tx, "run-1", [note("x")], rows={"blobs": [("d", b"x" * 1_000_000)]})[0])
        assert not store._writer.in_transaction
        with pytest.raises(StoreFull):
            tx.head("run-1")
        return "done"

    with pytest.raises(StoreFull):
        store.transact(regardless, durable=True)
    assert [1] == [each.seq for each in store.read("run-1")]


def test_read_only_file(path, disk):
    """A file that can't be written is refused when it is opened."""
    SQLiteStore(path, clock=FakeClock()).close()
    disk.read_only = True
    with pytest.raises(StoreReadOnly):
        SQLiteStore(path, clock=FakeClock())


def test_damaged_page(path):
    """A page that isn't one any more is told as damage of the log, not as a driver's error."""
    with SQLiteStore(path, clock=FakeClock()) as opened:
        append(opened, "run-1", [queued(), *(note("x" * 1000) for _ in range(50))])
    data = bytearray(path.read_bytes())
    place = data.rindex(b"x" * 1000) // 4096 * 4096
    data[place : place + 100] = b"\xff" * 100
    path.write_bytes(data)
    with SQLiteStore(path, clock=FakeClock()) as opened:
        with pytest.raises(CorruptLog):
            list(opened.read_all())
        with pytest.raises(CorruptLog, match="run-1"):
            list(opened.read("run-1"))


# --- transactions -------------------------------------------------------------------------------------------------


def test_synchronous_follows_the_append(store):
    """A durable append waits for the disk, a relaxed one doesn't; the switch is made before the transaction."""
    seen = [
        store.transact(lambda _: store._writer.execute("PRAGMA synchronous").fetchall()[0][0], durable=durable)
        for durable in (True, False, False, True)
    ]
    assert [2, 1, 1, 2] == seen


def test_error_that_the_decision_swallows(store, path):
    """A write that failed half-way can't be committed by a decision that ignores the error."""
    append(store, "run-1", [queued(), note("x")])
    with closing(apsw.Connection(str(path))) as stranger:
        stranger.execute("UPDATE runs SET head_seq = 1")

    def ignore(tx: Any) -> None:
        with pytest.raises(CorruptLog):
            tx.write(prepare(tx, "run-1", [note("forged")])[0])

    with pytest.raises(CorruptLog):
        store.transact(ignore, durable=True)
    assert [(1,)] == store.sql("SELECT head_seq FROM runs")


def test_interrupt_inside_a_transaction(store):
    """An interrupt undoes the transaction and leaves the store usable."""

    def interrupted(tx: Any) -> None:
        tx.write(prepare(tx, "run-1", [queued()])[0])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.transact(interrupted, durable=True)
    assert None is store.head("run-1")
    append(store, "run-1", [queued()])


def test_close_inside_a_transaction(store):
    """A store can't be closed by its own transaction."""
    with pytest.raises(StoreError):
        store.transact(lambda _: store.close(), durable=True)
    append(store, "run-1", [queued()])


def test_wrong_expectation_leaves_the_transaction_usable(store):
    """A refused write of one run doesn't spoil the others of its transaction."""
    append(store, "run-1", [queued()])

    def decide(tx: Any) -> None:
        late = Write(Head("run-1", "queued"), Head("run-1", "queued", head_seq=1), [(1, "x.a", b"{}", bytes(32))])
        with pytest.raises(WrongExpectation, match="run-1"):
            tx.write(late)
        tx.write(prepare(tx, "run-2", [queued()])[0])

    store.transact(decide, durable=True)
    assert 1 == len(list(store.read("run-2")))


# --- asking, copying, telling -------------------------------------------------------------------------------------


def test_sql_reads(store):
    """A query gives its rows, with parameters; the index tables are open to it."""
    append(store, "run-1", [queued(), note("x")])
    assert [("run-1", 2)] == store.sql("SELECT run_id, head_seq FROM runs WHERE run_id = ?", ["run-1"])
    assert [(3,)] == store.sql(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n LIMIT 3) SELECT max(i) FROM n"
    )


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM blobs",
        "INSERT INTO meta VALUES ('a', 'b')",
        "UPDATE runs SET status = 'completed' RETURNING run_id",
        "CREATE TABLE x (a)",
        "DROP TABLE events",
        "PRAGMA query_only = OFF",
        "ATTACH '/tmp/x.db' AS x",
        "VACUUM INTO '/tmp/x.db'",
        "BEGIN IMMEDIATE",
        "SELECT 1; DELETE FROM blobs",
        "SELECT load_extension('x')",
        "nonsense",
        "SELECT ?",
    ],
)
def test_sql_only_reads(store, query):
    """Anything but one SELECT is refused, and changes nothing."""
    append(store, "run-1", [queued()], rows=everything("run-1", 1))
    before = snapshot(store)
    with pytest.raises(InvalidArgument, match="sql: expected"):
        store.sql(query)
    assert before == snapshot(store)


def test_backup_is_a_store(path, store):
    """A copy made while a writer goes on is a complete store of a moment, with its settings."""
    append(store, "run-1", [queued(), note("x")], rows=everything("run-1", 2))
    store.save_checkpoint(Checkpoint("run-1", 2, "fold", b"x"))
    before = snapshot(store)
    target = path.with_name("copy.db")

    def meanwhile(tx: Any) -> None:
        tx.write(prepare(tx, "run-1", [note("not yet")])[0])
        store.backup(str(target))

    store.transact(meanwhile, durable=True)
    with SQLiteStore(target, clock=FakeClock(), create=False) as copy:
        assert before == snapshot(copy)
        append(copy, "run-1", [note("of the copy")])
    assert {"runs.db", "runs.db-wal", "runs.db-shm", "copy.db"} == set(files_of(path))


def test_backup_overwrites_nothing(path, store):
    """A target that exists is refused and stays as it is; a folder that doesn't leaves nothing behind."""
    target = path.with_name("copy.db")
    target.write_text("mine")
    append(store, "run-1", [queued()])
    with pytest.raises(InvalidArgument, match=r"copy\.db exists"):
        store.backup(str(target))
    with pytest.raises(StoreUnavailable):
        store.backup(str(path.parent / "no" / "copy.db"))
    assert "mine" == target.read_text()
    assert {"runs.db", "runs.db-wal", "runs.db-shm", "copy.db"} == set(files_of(path))


def test_info(store, path):
    """`info` tells engine, schema, settings, sizes and counts."""
    append(store, "run-1", [queued(), note("x")])
    info = store.info()
    assert {
        "store": "sqlite",
        "path": str(path),
        "schema": 2,
        "schema_known": 2,
        "journal_mode": "wal",
    }.items() <= info.items()
    assert {"runs_count": 1, "events_count": 2, "blobs_count": 0, "checkpoints_count": 0}.items() <= info.items()
    assert info["engine"].startswith("SQLite 3.")
    assert info["file_bytes"] > 0 < info["wal_bytes"]


def test_listings_use_an_index(path, store):
    """Listings walk down an index, and a page begins where the one before it ended: nothing is sorted."""
    behind: dict[str, tuple[tuple[Any, Any, Any, Any], str]] = {
        "all": ((None, None, None, {}), "runs_by_queued ((queued_at,run_id)<(?,?))"),
        "status": (("completed", None, None, {}), "runs_by_status (status=? AND (queued_at,run_id)<(?,?))"),
        "kind": ((None, "k", None, {}), "runs_by_kind (kind=? AND (queued_at,run_id)<(?,?))"),
        "status and kind": (("failed", "k", None, {}), "runs_by_status (status=? AND (queued_at,run_id)<(?,?))"),
        "parent": ((None, None, "p", {}), "runs_by_parent (parent_run_id=? AND (queued_at,run_id)<(?,?))"),
        "parent and kind": ((None, "k", "p", {}), "runs_by_parent (parent_run_id=? AND (queued_at,run_id)<(?,?))"),
    }
    found = {
        name: plan(path, *heads_page(*filters, "", None, ("2026", "r"), 10))[0] for name, (filters, _) in behind.items()
    }
    assert {name: f"SEARCH runs USING INDEX {index}" for name, (_, index) in behind.items()} == found
    tagged = plan(path, *heads_page("failed", "k", None, {"a": "1", "b": "2"}, "", None, ("2026", "r"), 10))
    key = "tag=? AND value=? AND"
    assert f"SEARCH tagged USING PRIMARY KEY ({key} (queued_at,run_id)<(?,?))" == tagged[0]
    assert any(f"PRIMARY KEY ({key} queued_at=? AND run_id=?)" in line for line in tagged)
    assert ["SCAN runs USING INDEX runs_by_queued"] == plan(
        path, *heads_page(None, None, None, {}, "", None, None, 10)
    )[:1]
    newest = "SEARCH lines USING COVERING INDEX lines_by_newest (newest=? AND scope>?)"
    assert [newest] == plan(path, *index_page("lines", "r", ("scope", "r")))
    changed = "SEARCH runs USING INDEX runs_by_change (status=?"
    assert f"{changed} AND (updated_at,run_id)<(?,?))" == plan(path, *changed_page("failed", ("2026", "r")))[0]
    assert [f"{changed})"] * 2 == [plan(path, *changed_page(status, None))[0] for status in ("failed", "running")]


def plan(path, text, params):
    """How SQLite goes about a query, one line a table; a sort would be one more."""
    with closing(apsw.Connection(str(path))) as connection:
        found = [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", params).fetchall()]
    assert not [line for line in found if "TEMP B-TREE" in line or (line.startswith("SCAN") and "INDEX" not in line)]
    return found


def test_tags_are_looked_up(path):
    """What a run is found by are its tags as they are, also after its row was changed and after a rebuild."""
    with Journal.open(path) as journal:
        journal.append("r", [e.RunQueued("k", None, tags={"team": "ops", "a": "1"})], expect=0)
        assert ["r"] == [head.run_id for head in journal.runs(tags={"a": "1", "team": "ops"})]
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute('UPDATE runs SET tags = \'{"team":"web"}\'')
        assert [("team", "web", "r")] == connection.execute("SELECT tag, value, run_id FROM run_tags").fetchall()
        connection.execute("UPDATE runs SET tags = 'none'")
        assert [] == connection.execute("SELECT * FROM run_tags").fetchall()
    with Journal.open(path) as journal:
        rebuild(journal.store)
        assert ["r"] == [head.run_id for head in journal.runs(tags={"a": "1"})]
        assert [] == list(journal.runs(tags={"team": "web"}))
