"""The ledger: intents, what became of them, what stands in the target, and who may write."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest
from faults import posix, untouched
from stand_ins import FullDisk, on_disk

from regraft.disk import sqlite, untrusted_sqlite
from regraft.errors import LedgerUnreadable, TargetLocked
from regraft.ledger import ledger
from regraft.ledger.ledger import Ledger, LedgerEntry
from regraft.ledger.values import RecordedAction, RowsDetail

ONE, TWO = LedgerEntry("0a" * 20, b"one"), LedgerEntry("0b" * 20, b'{"two": 2}')
RUN, LATER = "20260615T120000Z-0a1b2c", "20260615T120001Z-0a1b2c"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A target whose folders are there and whose ledger is not."""
    (tmp_path / "library" / ledger.FOLDER).mkdir(parents=True)
    return tmp_path / "library"


def rows(target: Path, query: str) -> list[tuple[object, ...]]:
    with sqlite.open_readonly(ledger.ledger_path(target)) as db:
        return db.execute(query).fetchall()


def ran(target: Path, work: Callable[[Ledger], object] = lambda _: None, run_id: str = RUN) -> None:
    """Do something in a run of its own."""
    with ledger.open_exclusive(target) as book:
        book.begin_run("migrate", "/v1", run_id)
        work(book)


# --- runs and steps ------------------------------------------------------------------------------------------------


def test_a_new_ledger_is_empty(target: Path) -> None:
    with ledger.open_exclusive(target) as book:
        assert book.open_steps() == []
        assert book.entries() == {}
    assert rows(target, "SELECT version FROM ledger") == [(ledger.VERSION,)]
    assert rows(target, "SELECT * FROM run") == []


@pytest.mark.parametrize("status", ["finished", "stopped", "interrupted"])
def test_a_run_is_running_until_it_ended(status: str, target: Path) -> None:
    ran(target)
    assert rows(target, "SELECT run_id, command, source, status, finished_at FROM run") == [
        (RUN, "migrate", "/v1", "running", None)
    ]
    ran(target, lambda book: book.end_run(status), LATER)
    assert rows(target, "SELECT status, finished_at >= started_at FROM run ORDER BY run_id") == [
        ("running", None),
        (status, 1),
    ]


def test_an_unknown_end_is_refused(target: Path) -> None:
    with ledger.open_exclusive(target) as book:
        book.begin_run("migrate", "/v1", RUN)
        with pytest.raises(apsw.ConstraintError):
            book.end_run("gave up")


def test_an_intent_stays_open_until_it_is_done_or_dropped(target: Path) -> None:
    ran(target, lambda book: [book.intend(name, "publish", ONE) for name in ("a", "b", "c")])
    with ledger.open_exclusive(target) as book:
        first, second, third = book.open_steps()
        assert [(step.subject, step.action, step.entry) for step in (first, second, third)] == [
            (name, "publish", ONE) for name in ("a", "b", "c")
        ]
        book.done(second)
        assert book.open_steps() == [first, third]
        assert book.entries() == {"b": ONE}
        book.drop(first)
        assert book.open_steps() == [third]
        assert book.entries() == {"b": ONE}
    assert rows(target, "SELECT subject, state FROM step ORDER BY 1") == [
        ("a", "dropped"),
        ("b", "done"),
        ("c", "intended"),
    ]


def test_the_step_that_is_returned_is_the_one_that_is_stored(target: Path) -> None:
    with ledger.open_exclusive(target) as book:
        book.begin_run("migrate", "/v1", RUN)
        steps = [book.intend(name, "publish", entry) for name, entry in (("a", ONE), ("b", TWO))]
        assert book.open_steps() == steps


def test_the_last_entry_of_a_subject_stands(target: Path) -> None:
    def work(book: Ledger) -> None:
        for entry in (ONE, TWO):
            book.done(book.intend("a", "publish", entry))
        book.done(book.intend("b", "publish", ONE))

    ran(target, work)
    assert ledger.read_entries(target) == {"a": TWO, "b": ONE}


def test_an_intent_alone_changes_no_entry(target: Path) -> None:
    def work(book: Ledger) -> None:
        book.done(book.intend("a", "publish", ONE))
        book.intend("a", "publish", TWO)

    ran(target, work)
    assert ledger.read_entries(target) == {"a": ONE}


def test_details_are_kept_once(target: Path) -> None:
    """A settled step needs its detail no more: only the entry keeps it."""

    def work(book: Ledger) -> None:
        book.done(book.intend("a", "publish", LedgerEntry("00", b"x" * 1000)))
        book.drop(book.intend("b", "publish", LedgerEntry("00", b"y" * 1000)))

    ran(target, work)
    assert rows(target, "SELECT detail FROM step") == [(b"",), (b"",)]
    assert ledger.read_entries(target)["a"].detail == b"x" * 1000


def test_the_parts_of_an_entry_are_those_of_its_last_step(target: Path) -> None:
    """Those of the entry before go with it, those of an intent that was abandoned at once."""

    def work(book: Ledger) -> None:
        book.done(book.intend("a", "publish", ONE, [b"1", b"2"]))
        book.done(book.intend("b", "publish", ONE, [b"other"]))
        later = book.intend("a", "publish", TWO, [b"4", b"", b"3"])
        assert [*book.parts("a")] == [b"1", b"2"]
        assert [*book.parts_of(later)] == [b"4", b"", b"3"]
        book.done(later)
        dropped = book.intend("a", "publish", ONE, [b"5"])
        book.drop(dropped)
        assert [*book.parts_of(dropped)] == []
        book.amend("a", b"amended")
        assert [*book.parts("a")] == [b"4", b"", b"3"]
        assert [*book.parts("b")] == [b"other"]

    ran(target, work)
    assert ledger.read_entries(target) == {"a": LedgerEntry(TWO.fingerprint, b"amended"), "b": ONE}
    assert rows(target, "SELECT number, body FROM part ORDER BY step_id, number") == [
        (0, b"other"),
        *((0, b"4"), (1, b""), (2, b"3")),
    ]


def test_a_run_that_never_began_does_not_end_and_all_that_run_can_be_stopped(target: Path) -> None:
    ran(target)
    ran(target, lambda book: book.end_run("finished"), LATER)
    with ledger.open_exclusive(target) as book:
        book.end_run("interrupted")
        book.stop_runs()
    assert rows(target, "SELECT run_id, status, finished_at IS NULL FROM run ORDER BY run_id") == [
        (RUN, "stopped", 1),
        (LATER, "finished", 0),
    ]


def test_the_actions_of_a_run_are_recorded_in_order_and_in_place_of_others(target: Path) -> None:
    actions = [
        RecordedAction(action=name, base=None, subject=name, count=number, bytes=-1, finding=None, message=f"do {name}")
        for number, name in enumerate(("one", "two", "three"))
    ]
    with ledger.open_exclusive(target) as book:
        book.begin_run("repair", "/library", RUN, actions[:2])
        book.begin_run("repair", "/library", LATER)
        book.changes.record_actions(LATER, actions)
        book.changes.record_actions(RUN, actions[2:])
        assert book._db.execute("PRAGMA busy_timeout").get == 0
    first, second = ledger.read_runs(target)
    assert (first.actions, second.actions) == ((actions[2], actions[1]), tuple(actions))


def test_changes_are_read_in_order_and_by_what_became_of_them(target: Path) -> None:
    """A backup has the size that was recorded last."""
    detail = RowsDetail(dangling=0, actions=(0, 0))

    def work(book: Ledger) -> None:
        log = book.changes
        one, two, three = (
            log.intend(RUN, "rows", f"{name}.sqlite", f"undo/{RUN}/00000{name}", detail) for name in "123"
        )
        assert [(found.state, found.bytes) for found in log.changes_of(RUN)] == [("intended", 0)] * 3
        log.set_state(two, "done", 7)
        log.set_state(three, "undoing", 8)
        log.set_state(three, "undoing")
        assert [found.change_id for found in log.open_changes()] == [one, three]
        log.set_state(one, "dropped")

    ran(target, work)
    with ledger.open_exclusive(target) as book:
        found = book.changes.every()
        assert [(one.path, one.kept, one.state, one.bytes) for one in found] == [
            ("1.sqlite", f"undo/{RUN}/000001", "dropped", 0),
            ("2.sqlite", f"undo/{RUN}/000002", "done", 7),
            ("3.sqlite", f"undo/{RUN}/000003", "undoing", 8),
        ]
        assert book.changes.changes_of(RUN) == found
        assert book.changes.changes_of(LATER) == []
        assert [one.path for one in book.changes.open_changes()] == ["3.sqlite"]
        assert found[0].detail == detail


def test_entries_hold_any_bytes_and_any_text(target: Path) -> None:
    detail = bytes(range(256)) * 40
    entry = LedgerEntry("", detail)
    ran(target, lambda book: book.done(book.intend("社区'; DROP TABLE entry; --", "publish", entry)))
    assert ledger.read_entries(target) == {"社区'; DROP TABLE entry; --": entry}


def test_a_done_step_and_its_entry_are_recorded_together(target: Path) -> None:
    """Where the disk is full in between, the step stays open and the entry is the old one."""
    ran(target, lambda book: book.done(book.intend("a", "publish", ONE)))
    tried = 0
    for writes in range(1, 60):
        with on_disk(FullDisk(10**6)) as disk, ledger.open_exclusive(target) as book:
            book.begin_run("migrate", "/v1", f"20260615T120000Z-{writes:06x}")
            step = book.intend("a", "publish", TWO)
            disk.room = disk.writes + writes - 1
            try:
                book.done(step)
            except apsw.Error:
                tried += 1
            else:
                break
            finally:
                disk.room = 10**6
        assert ledger.read_entries(target) == {"a": ONE}, writes
        with ledger.open_exclusive(target) as book:
            (left,) = book.open_steps()
            assert left == step
            book.drop(left)
    assert tried > 2
    assert ledger.read_entries(target) == {"a": TWO}


def test_the_reason_of_a_failed_record_is_the_disk(target: Path) -> None:
    with on_disk(FullDisk(10**6)) as disk, ledger.open_exclusive(target) as book:
        book.begin_run("migrate", "/v1", RUN)
        step = book.intend("a", "publish", ONE)
        disk.room = disk.writes + 1
        with pytest.raises(apsw.FullError):
            book.done(step)
        disk.room = 10**6


# --- reading without a trace ---------------------------------------------------------------------------------------


def test_no_ledger_is_no_entries(tmp_path: Path) -> None:
    with untouched(tmp_path):
        assert ledger.read_entries(tmp_path) == {}
        assert ledger.read_entries(tmp_path / "gone") == {}


def test_reading_leaves_no_trace(target: Path) -> None:
    ran(target, lambda book: book.done(book.intend("a", "publish", ONE)))
    with untouched(target):
        assert ledger.read_entries(target) == {"a": ONE}


def test_opening_changes_no_byte(target: Path) -> None:
    ran(target, lambda book: book.done(book.intend("a", "publish", ONE)))
    with untouched(target), ledger.open_exclusive(target) as book:
        assert book.entries() == {"a": ONE}
        assert book.open_steps() == []


# --- one writer ----------------------------------------------------------------------------------------------------


def test_a_second_writer_is_kept_out(target: Path) -> None:
    with ledger.open_exclusive(target), pytest.raises(TargetLocked) as caught, ledger.open_exclusive(target):
        pass
    assert str(caught.value) == f"{target}: another regraft process is using this target; wait until it has finished."
    assert caught.value.exit_status == 2
    with ledger.open_exclusive(target):
        pass


def test_runs_that_share_a_ledger_keep_out_one_that_does_not(target: Path) -> None:
    with ledger.open_exclusive(target):
        pass
    with ledger.open_shared(target) as book, ledger.open_shared(target) as other:
        book.begin_run("migrate", "/v1", RUN)
        other.begin_run("migrate", "/v1", LATER)
        for one in (book, other):
            one.done(one.intend("a" if one is book else "b", "publish", ONE))
        assert book.entries() == other.entries() == {"a": ONE, "b": ONE}
        with pytest.raises(TargetLocked), ledger.open_exclusive(target):
            pass
        # It waits for the records of the others.
        assert book._db.execute("PRAGMA busy_timeout").get == 60_000
        assert book._db.execute("PRAGMA synchronous").get == 3
    with ledger.open_exclusive(target) as book:
        assert book.entries() == {"a": ONE, "b": ONE}
        assert book._db.execute("PRAGMA synchronous").get == 3
    assert [path.name for path in (target / ledger.FOLDER).iterdir()] == [ledger.FILE]


def test_a_ledger_that_one_run_has_is_not_shared(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 0)
    with ledger.open_exclusive(target):
        with pytest.raises(TargetLocked) as caught, ledger.open_shared(target):
            pass
        assert caught.value.facts == {"path": target}


def test_a_ledger_that_was_shared_and_one_that_is_read_only(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ledger.open_shared(target) as book:
        book.begin_run("migrate", "/v1", RUN)
    assert ledger.ledger_path(target).read_bytes()[18:20] == b"\2\2"
    with ledger.open_exclusive(target) as book:
        assert [path.name for path in (target / ledger.FOLDER).iterdir() if "journal" not in path.name] == [ledger.FILE]
        assert book._db.execute("PRAGMA journal_mode").get == "delete"
        assert [one.run_id for one in book.changes.runs()] == [RUN]

    @contextmanager
    def read_only(path: Path, **_: object) -> Iterator[apsw.Connection]:
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
            yield db

    monkeypatch.setattr(sqlite, "open_writable", read_only)
    for opened in (ledger.open_exclusive, ledger.open_shared):
        with pytest.raises(apsw.ReadOnlyError, match="it is read-only"), opened(target):
            pass


@posix
def test_one_run_has_the_ledger_alone_where_it_cannot_be_shared(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file system has no shared memory for the index of a log, there is no log."""
    uri = untrusted_sqlite.database_uri
    monkeypatch.setattr(
        untrusted_sqlite, "database_uri", lambda path, **options: uri(path, **options, vfs="unix-dotfile")
    )
    with ledger.open_shared(target) as book:
        book.begin_run("migrate", "/v1", RUN)
        with pytest.raises(TargetLocked), ledger.open_exclusive(target):
            pass
        assert book._db.execute("PRAGMA journal_mode").get != "wal"
        assert book._db.execute("PRAGMA locking_mode").get == "exclusive"


HOLD = """
    import sys
    from pathlib import Path
    from regraft.disk import writable
    from regraft.ledger import ledger
    with writable.allow_writes(Path(sys.argv[1])), ledger.open_exclusive(Path(sys.argv[1])) as book:
        book.begin_run("migrate", "/v1", "20260615T120000Z-0a1b2c")
        print("held", flush=True)
        sys.stdin.read()
"""


def test_a_writer_in_another_process_is_kept_out_until_the_first_is_gone(target: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-P", "-c", textwrap.dedent(HOLD), str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().split() == [b"held"]
        with pytest.raises(TargetLocked), ledger.open_exclusive(target):
            pass
        # The system frees the lock of a process that dies.
        holder.kill()
    with ledger.open_exclusive(target) as book:
        assert book.open_steps() == []
    assert rows(target, "SELECT run_id, status FROM run") == [(RUN, "running")]


# --- ledgers that cannot be read -----------------------------------------------------------------------------------


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE cats (name)")


def other_shape(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE ledger (name)")


def without_version(path: Path) -> None:
    own(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM ledger")


def later(path: Path) -> None:
    own(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE ledger SET version = version + 1")


def without_entries(path: Path) -> None:
    own(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TABLE entry")


def own(path: Path) -> None:
    ran(path.parent.parent, lambda book: book.done(book.intend("a", "publish", ONE)))


def damaged(path: Path) -> None:
    own(path)
    raw = bytearray(path.read_bytes())
    size = int.from_bytes(raw[16:18], "big")
    raw[size:] = bytes([0xA5]) * (len(raw) - size)
    path.write_bytes(raw)


UNREADABLE = {
    "text": lambda path: path.write_text("no database at all\n" * 50, "utf-8"),
    "foreign": foreign,
    "other shape": other_shape,
    "without version": without_version,
    "later": later,
    "without entries": without_entries,
    "damaged": damaged,
}


@pytest.mark.parametrize("how", UNREADABLE)
@pytest.mark.parametrize("mode", ["opened", "read_entries"])
def test_a_ledger_that_is_not_ours_to_read(mode: str, how: str, target: Path) -> None:
    UNREADABLE[how](ledger.ledger_path(target))
    with untouched(target), pytest.raises(LedgerUnreadable) as caught:
        if mode == "read_entries":
            ledger.read_entries(target)
        else:
            with ledger.open_exclusive(target) as book:
                book.open_steps()
                book.entries()
    assert str(ledger.ledger_path(target)) in str(caught.value)
    assert "migrate to another folder" in str(caught.value)


@pytest.mark.parametrize(("times", "is_read"), [(4, True), (5, False)])
def test_a_ledger_that_is_being_written_is_read_again(
    times: int, is_read: bool, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can look damaged then. One that stays as it is, is damaged."""
    ran(target, lambda book: book.done(book.intend("a", "publish", ONE)))
    path, check, tries = ledger.ledger_path(target), ledger.check_schema, []

    def written(db: apsw.Connection) -> int:
        tries.append(1)
        # Windows counts time in steps of 100 ns.
        os.utime(path, ns=(1000, 1000 * len(tries) if changes else 1000))
        if len(tries) <= times:
            raise ledger.InvalidValue("it is damaged: half written")
        return check(db)

    monkeypatch.setattr(ledger, "check_schema", written)
    changes = True
    if is_read:
        assert ledger.read_entries(target) == {"a": ONE}
    else:
        with pytest.raises(LedgerUnreadable, match="half written"):
            ledger.read_entries(target)
    assert len(tries) == 5
    changes = False
    tries.clear()
    os.utime(path, ns=(1000, 1000))
    with pytest.raises(LedgerUnreadable, match="half written"):
        ledger.read_entries(target)
    assert len(tries) == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (apsw.IOError("disk I/O error"), "disk I/O error"),
    ],
)
def test_the_reason_of_a_ledger_that_cannot_be_read_is_the_disk(
    error: Exception, reason: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(target)

    def fail(_: Path) -> None:
        raise error

    monkeypatch.setattr(sqlite, "open_readonly", fail)
    with pytest.raises(LedgerUnreadable) as caught:
        ledger.read_runs(target)
    assert str(caught.value.facts["reason"]) == reason


def test_a_file_has_no_ledger(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert ledger.read_entries(tmp_path / "file") == {}
    assert ledger.read_runs(tmp_path / "file") == []


def test_a_ledger_of_version_1_has_runs_without_changes_and_gets_the_tables(target: Path) -> None:
    ran(target, lambda book: book.done(book.intend("a", "publish", ONE)))
    with closing(sqlite3.connect(ledger.ledger_path(target))) as db, db:
        db.execute("DROP TABLE change")
        db.execute("DROP TABLE action")
        db.execute("UPDATE ledger SET version = 1")
    with untouched(target):
        (run,) = ledger.read_runs(target)
        assert (run.run_id, run.actions, run.changes) == (RUN, (), ())
        assert ledger.read_entries(target) == {"a": ONE}
    with ledger.open_exclusive(target) as book:
        assert book.changes.every() == []
        assert [one.run_id for one in book.changes.runs()] == [RUN]
    assert rows(target, "SELECT version FROM ledger") == [(2,)]


# --- suggesting a source ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "may_be"),
    [
        *(
            (path, True)
            for path in ("/home/mei/v1", "v1", "../v1", "C:\\Users\\Mei", "D:/v1", "/dev/shm/v1", "../../home")
        ),
        *((path, True) for path in ("/home/dev/x", "dev/x", "a/../dev", "/home/net", "console", "x" * 4096, "/com10")),
        *(
            (path, False)
            for path in ("", "  ", "a\0b", "x" * 4097, "//nas/share", "\\\\nas\\share", "\\??\\C:\\x", "/??/x")
        ),
        *((path, False) for path in ("https://host/x", "file:///x", "/dev/sda", "/DEV/null", "/proc/1", "/net/nas")),
        *(
            (path, False)
            for path in ("/dev/shm", "../dev/sda", "../../proc", "/home/../dev/sda", "//dev/sda", "/.vol/1")
        ),
        *((path, False) for path in ("con", "a/NUL.txt", "C:\\aux", "com1", "LPT¹", "conin$", "ab:c/con", "\\\\.\\x")),
    ],
)
def test_only_plain_paths_of_this_computer_are_suggested(path: str, may_be: bool) -> None:
    assert ledger.is_suggestible(path) is may_be
    assert (ledger.suggested_argument(path) is not None) is may_be


def test_the_source_of_the_last_run_of_a_command_is_suggested(target: Path) -> None:
    for number, (command, source) in enumerate((("migrate", "/one"), ("migrate", "/two words"), ("import", "/three"))):
        with ledger.open_exclusive(target) as book:
            book.begin_run(command, source, f"20260615T12000{number}Z-0a1b2c")
    assert ledger.suggested_source(target, ["migrate"]) == "/two words"
    assert ledger.suggested_source(target, ["import", "migrate"]) == "/three"
    assert ledger.suggested_source(target, ["repair"]) is None
    ledger.ledger_path(target).write_text("no database at all\n" * 50, "utf-8")
    assert ledger.suggested_source(target, ["migrate"]) is None


def test_a_table_of_another_program_is_no_ledger(target: Path) -> None:
    for made in (foreign, other_shape):
        made(ledger.ledger_path(target))
        with pytest.raises(LedgerUnreadable) as caught:
            ledger.read_entries(target)
        assert str(caught.value.facts["reason"]) == "it belongs to another program"
        ledger.ledger_path(target).unlink()


def test_the_version_that_is_too_new_is_named(target: Path) -> None:
    later(ledger.ledger_path(target))
    with (
        pytest.raises(LedgerUnreadable, match=f"its version {ledger.VERSION + 1} is not supported"),
        ledger.open_exclusive(target),
    ):
        pass


def test_a_ledger_without_its_folder_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(apsw.CantOpenError), ledger.open_exclusive(tmp_path / "gone"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_becomes_a_ledger(target: Path) -> None:
    """What a crash right after the file was made leaves."""
    ledger.ledger_path(target).touch()
    assert ledger.read_entries(target) == {}
    ran(target, lambda book: book.done(book.intend("a", "publish", TWO)))
    assert json.loads(ledger.read_entries(target)["a"].detail) == {"two": 2}
