"""The ledger: intents, what became of them, what stands in the target, and who may write."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from faults import untouched
from stand_ins import FullDisk, on_disk

from regraft.disk import sqlite
from regraft.errors import LedgerUnreadable, TargetLocked
from regraft.ledger import ledger
from regraft.ledger.ledger import Ledger, LedgerEntry

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
        assert holder.stdout.readline() == b"held\n"
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
    "text": lambda path: path.write_text("no database at all\n" * 50),
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
