"""``regraft check --part``: each cycle reads every row, changed vectors are found, the state is never trusted."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
from doc_text import section, text_of
from faults import REFUSED, forked, said, untouched
from harness import REPO, examples, run, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_v2 import KB, OTHER, index, library

import regraft
from checks.audit.rolling import PartReport, RollingPart, open_part
from regraft.disk import durable, sqlite
from regraft.errors import CheckStateLocked, CheckStateUnusable, RegraftError

CHANGED = "vector.changed"
TABLES = ("content", "search_unit", "search_text", "embedding")
#: What every version of the state has of a vector that it recorded.
ENTRY = "data IS NOT NULL"


def own_state(store: Path) -> Path:
    return store / ".regraft" / "check.sqlite"


def query(path: Path, sql: str, *values: object) -> list[Any]:
    """Run a statement with Python's own SQLite, without foreign keys."""
    with closing(sqlite3.connect(path)) as db, db:
        return db.execute(sql, values).fetchall()


def count_rows(*paths: Path) -> int:
    return sum(query(path, f"SELECT count(*) FROM {table}")[0][0] for path in paths for table in TABLES)


def part(path: Path, size: str = "100%", **options: Any) -> tuple[PartReport, dict[str, tuple[str, ...]]]:
    """Run one part; returns how far the cycle is, and the samples by the name of the finding."""
    report = regraft.check(path, part=size, **options)
    assert report.level == "part"
    assert isinstance(report.part, PartReport)
    return report.part, {one.name: one.samples for one in report.findings}


def cycle(path: Path, size: str = "1/3", **options: Any) -> list[tuple[str, tuple[str, ...]]]:
    """Run parts until the cycle is complete; returns what they found."""
    found: list[tuple[str, tuple[str, ...]]] = []
    while True:
        done, findings = part(path, size, **options)
        found += findings.items()
        if done.is_complete:
            return found


def flip(path: Path, key: str, byte: int = 3) -> None:
    """Flip one bit of a vector where it lies in the row, as a disk would."""
    [(vector,)] = query(path, "SELECT vector_blob FROM embedding WHERE embedding_text_hash = ?", key)
    damaged = bytearray(vector)
    damaged[byte % len(damaged)] ^= 1
    query(path, "UPDATE embedding SET vector_blob = ? WHERE embedding_text_hash = ?", bytes(damaged), key)


def vector_keys(path: Path) -> list[str]:
    return [key for (key,) in query(path, "SELECT embedding_text_hash FROM embedding ORDER BY 1")]


# --- what is read --------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("size", "runs"), [("5%", 20), ("1/20", 20), ("7 %", 15), ("33.3%", 4), ("100%", 1), ("2/3", 2)]
)
def test_a_cycle_has_as_many_runs_as_there_are_parts(store: Path, size: str, runs: int) -> None:
    every = count_rows(index(store), index(store, OTHER))
    covered = 0
    for number in range(1, runs + 1):
        done, findings = part(store, size)
        assert not findings
        assert (done.cycle, done.number, done.parts, done.rows) == (1, number, runs, every)
        assert done.is_complete == (number == runs)
        assert done.read == done.covered - covered
        covered = done.covered
    assert covered == every
    assert part(store, size)[0].cycle == 2


def test_the_text_says_how_far_the_cycle_is(store: Path) -> None:
    first = run("check", store, "--part", "50%")
    assert first.status == 0
    sentence = r"^Part 1 of 2: (\d+) rows read, (\d+) % of (\d+) rows, first cycle\.$"
    [line] = re.findall(sentence, first.stdout, re.MULTILINE)
    read, percent, rows = map(int, line)
    assert (rows, percent) == (count_rows(index(store), index(store, OTHER)), 100 * read // rows)
    assert (
        f"Part 2 of 2: {rows - read} rows read, 100 % of {rows} rows, first cycle."
        in run("check", store, "--part", "1/2").stdout
    )
    assert "cycle 2." in run("check", store, "--part", "1/2").stdout


@pytest.mark.thorough
def test_one_flipped_bit_is_found_at_every_position(store: Path) -> None:
    path, state = index(store), store / "state"
    cycle(path, "1/2", state=state)
    for number, key in enumerate(vector_keys(path)):
        shutil.copy(path, store / "kept")
        flip(path, key, byte=7 * number)
        assert cycle(path, "1/3", state=state) == [(CHANGED, (key,))]
        # Until it is repaired, each cycle finds it.
        assert cycle(path, "100%", state=state) == [(CHANGED, (key,))]
        shutil.copy(store / "kept", path)
        assert cycle(path, "100%", state=state) == []


OPERATIONS = st.sampled_from(["add", "delete", "move", "flip", ""])


@settings(max_examples=examples(12), deadline=None)
@given(
    steps=st.lists(st.tuples(OPERATIONS, st.sampled_from(["3%", "11%", "1/4", "40%"]), st.integers(0, 99)), max_size=8)
)
def test_rows_that_come_go_and_move_are_read_in_the_cycle(
    steps: list[tuple[str, str, int]], healthy: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("rows")
    path, state = place / "index.sqlite", place / "state"
    shutil.copy(index(healthy), path)
    options = {"kind": "index", "state": state}
    cycle(path, "100%", **options)
    zeros, flipped, seen = set[str](), set[str](), set[str]()
    is_complete = False
    for operation, size, number in [*steps, *([("", "30%", 0)] * 4)]:
        present = vector_keys(path)
        plain = [key for key in present if key not in zeros | flipped]
        if operation == "add" and len(zeros) < 3:
            # A row that every reading of it reports.
            key = hashlib.sha256(b"%d" % (number + 1000 * len(present))).hexdigest()
            query(path, "INSERT INTO embedding SELECT ?, zeroblob(length(vector_blob)), 5 FROM embedding LIMIT 1", key)
            zeros.add(key)
        elif operation == "delete" and len(plain) > 1:
            query(path, "DELETE FROM embedding WHERE embedding_text_hash = ?", plain[number % len(plain)])
        elif operation == "flip" and plain and len(flipped) < 3:
            flipped.add(plain[number % len(plain)])
            flip(path, plain[number % len(plain)])
        elif operation == "move":
            query(path, "UPDATE embedding SET rowid = rowid + ?", 1000 + number)
        done, findings = part(path, size, **options)
        seen.update(key for samples in findings.values() for key in samples)
        # What was added is read by this cycle, wherever its position is.
        if done.is_complete:
            assert zeros <= seen
            is_complete = True
            break
    if not is_complete:
        seen.update(key for _, samples in cycle(path, "30%", **options) for key in samples)
    seen.update(key for _, samples in cycle(path, "30%", **options) for key in samples)
    assert zeros | flipped == seen


def test_a_row_added_below_the_position_is_read_by_the_next_run(store: Path) -> None:
    path = index(store)
    assert part(store, "99%")[0].number == 1
    before = count_rows(path)
    query(path, "INSERT INTO embedding SELECT 'h' || rowid, zeroblob(length(vector_blob)), 5 FROM embedding LIMIT 3")
    done, findings = part(store, "1/1000")
    assert count_rows(path) == before + 3
    assert len(findings["embedding.zero"]) == 3
    assert not done.is_complete


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("finding", "statement"),
    [
        ("body.hash", "UPDATE search_text SET text = text || 'x' WHERE rowid = (SELECT max(rowid) FROM search_text)"),
        ("body.id", "UPDATE search_text SET search_text_id = 'x' WHERE rowid = (SELECT max(rowid) FROM search_text)"),
        ("unit.id", "UPDATE search_unit SET unit_id = 'x' WHERE rowid = (SELECT max(rowid) FROM search_unit)"),
        ("content.hash", "UPDATE content SET text = text || 'x' WHERE rowid = (SELECT min(rowid) FROM content)"),
        ("embedding.zero", "UPDATE embedding SET vector_blob = zeroblob(length(vector_blob)), created_at = 0"),
        (
            "embedding.length",
            "UPDATE embedding SET vector_blob = x'00' WHERE rowid = (SELECT min(rowid) FROM embedding)",
        ),
    ],
)
def test_rows_are_checked_as_the_whole_check_does(store: Path, finding: str, statement: str) -> None:
    with closing(sqlite3.connect(index(store))) as db, db:
        for (trigger,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {trigger}")
        db.execute(statement)
    whole = {one.name: (one.count, one.message) for one in regraft.check(store).findings}
    parts: dict[str, int] = {}
    while True:
        report = regraft.check(store, part="1/4")
        for one in report.findings:
            parts[one.name] = parts.get(one.name, 0) + one.count
        if report.part.is_complete:  # type: ignore[union-attr]
            break
    assert parts[finding] == whole[finding][0]


def test_a_base_that_cannot_be_read_keeps_what_was_recorded(store: Path) -> None:
    path = index(store)
    cycle(store)
    kept = path.read_bytes()
    path.write_bytes(b"not a database at all" * 100)
    assert "file.unreadable" in dict(cycle(store))
    path.write_bytes(kept)
    key = vector_keys(path)[0]
    flip(path, key)
    assert (CHANGED, (key,)) in cycle(store)


def test_rows_of_a_file_that_changes_meanwhile_are_read_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = index(store)
    cycle(path, "100%")
    for key in vector_keys(path):
        flip(path, key)
    states = iter(range(1000))
    with monkeypatch.context() as patched:
        patched.setattr(sqlite, "read_file_state", lambda _: next(states))
        done, findings = part(path, "60%")
    assert set(findings) == {"file.unreadable"}
    assert (done.read, done.covered) == (0, 0)
    done, findings = part(path, "40%")
    assert (done.read, done.is_complete, set(findings)) == (count_rows(path), True, {CHANGED})


# --- what is not a changed vector ----------------------------------------------------------------------------------


def test_a_text_that_changed_with_its_hash_is_another_row(store: Path) -> None:
    path = index(store)
    cycle(store)
    key, text = vector_keys(path)[0], "Another text."
    other = hashlib.sha256(text.encode()).hexdigest()
    query(
        path,
        "UPDATE embedding SET embedding_text_hash = ?, vector_blob = randomblob(length(vector_blob))"
        " WHERE embedding_text_hash = ?",
        other,
        key,
    )
    assert CHANGED not in dict(cycle(store))


def test_a_vector_written_with_a_new_time_was_written_again(store: Path) -> None:
    path = index(store)
    cycle(store)
    query(path, "UPDATE embedding SET created_at = created_at + 1")
    assert part(store)[0].rewritten == 0
    key = vector_keys(path)[0]
    flip(path, key)
    query(path, "UPDATE embedding SET created_at = created_at + 1 WHERE embedding_text_hash = ?", key)
    done, findings = part(store)
    assert (findings, done.rewritten) == ({}, 1)
    # From now on the new vector is the one that must not change.
    flip(path, key, byte=9)
    assert part(store)[1] == {CHANGED: (key,)}


@pytest.mark.parametrize("made_anew", ["model", "index"])
def test_another_model_and_a_new_index_begin_anew(store: Path, made_anew: str) -> None:
    path = index(store)
    cycle(store)
    query(path, "UPDATE embedding SET vector_blob = zeroblob(length(vector_blob) - 1) || x'3f'")
    if made_anew == "model":
        query(store / "catalog.sqlite", "UPDATE knowledge_base SET embedding_model_id = 'other::model'")
    else:
        query(path, "UPDATE meta SET created_at = created_at + 1")
    done, findings = part(store)
    assert CHANGED not in findings
    assert done.recorded == len(vector_keys(path)) + (
        len(vector_keys(index(store, OTHER))) if made_anew == "model" else 0
    )


def test_runs_of_regraft_that_write_vectors_raise_no_alarm(store: Path, healthy: Path) -> None:
    path = index(store)
    key = vector_keys(path)[0]
    query(path, "UPDATE embedding SET vector_blob = zeroblob(length(vector_blob)) WHERE embedding_text_hash = ?", key)
    cycle(store)
    assert run("repair", store, "--from", healthy).status == 0
    assert dict(cycle(store)) == {}
    assert run("undo", store).status == 0
    assert set(dict(cycle(store))) == {"embedding.zero"}


def test_the_remedy_brings_the_vector_back(store: Path, healthy: Path) -> None:
    path = index(store)
    cycle(store)
    key = vector_keys(path)[0]
    flip(path, key)
    assert part(store)[1] == {CHANGED: (key,)}
    query(path, "DELETE FROM embedding WHERE embedding_text_hash = ?", key)
    assert run("repair", store, "--from", healthy).status == 0
    vector = "SELECT vector_blob FROM embedding WHERE embedding_text_hash = ?"
    assert query(path, vector, key) == query(index(healthy), vector, key)
    assert part(store)[1] == {}


# --- the state -----------------------------------------------------------------------------------------------------


def test_a_check_without_a_part_writes_nothing(store: Path) -> None:
    before = snapshot(store)
    assert run("check", store).status == 0
    assert snapshot(store) == before
    part(store, "10%")
    assert set(snapshot(store)) - set(before) == {".regraft/check.sqlite"}
    assert {name for name, value in snapshot(store).items() if value != before.get(name)} - {".regraft"} == {
        ".regraft/check.sqlite"
    }


def test_a_base_of_a_library_has_a_state_of_its_own(store: Path) -> None:
    folder = index(store).parent.parent
    assert part(store, "30%")[0].number == 1
    assert part(folder, "30%")[0].rows == count_rows(index(store))
    assert part(index(store), "30%")[0].number == 2
    assert part(store, "30%")[0].number == 2
    # Other commands do not mind it.
    assert run("gc", store).status == 0
    assert run("history", store).status == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the process that dies is a copy of this one")
@pytest.mark.parametrize("runs_before", [0, 1])
def test_a_killed_run_leaves_the_state_as_it_was(
    store: Path, runs_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(runs_before):
        part(store, "1/4")

    def die(self: RollingPart, _: object) -> PartReport:
        # With half of the transaction on disk.
        self.db.cache_flush()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    with monkeypatch.context() as patched:
        patched.setattr(RollingPart, "finish", die)
        assert forked(lambda: part(store, "1/4")) == 128 + signal.SIGKILL
    done, _ = part(store, "1/4")
    assert (done.cycle, done.number, done.parts) == (1, runs_before + 1, 4)
    for _ in range(3 - runs_before):
        done, _ = part(store, "1/4")
    assert (done.is_complete, done.covered) == (True, count_rows(index(store), index(store, OTHER)))


def test_an_interrupted_run_records_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(store)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RollingPart, "finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            part(store, "1/4")
    assert {name: one[2] for name, one in snapshot(store).items()} == {name: one[2] for name, one in before.items()}


def test_an_interrupted_run_keeps_what_another_one_wrote(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(store / ".regraft")
    ledger = store / ".regraft" / "ledger.sqlite"

    def interrupt(*_: object) -> None:
        ledger.write_bytes(b"undo data")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RollingPart, "finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            part(store, "1/4")
    assert ledger.read_bytes() == b"undo data"
    assert not own_state(store).exists()
    ledger.unlink()
    monkeypatch.setattr(RollingPart, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    (store / ".regraft").rmdir()
    with pytest.raises(KeyboardInterrupt):
        part(store, "1/4")
    assert not (store / ".regraft").exists()


def test_of_two_runs_one_is_refused(store: Path) -> None:
    part(store, "1/4")
    state = own_state(store)
    # Locks of another process: those of one process do not exclude each other.
    holding = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
    holding += "db.execute('BEGIN EXCLUSIVE'); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", holding, str(state)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "held\n"
        with untouched(store):
            message = said(run("check", store, "--part", "1/4", "--json"), "CheckStateLocked", REFUSED)
        assert str(state) in message
        other.stdin.close()
    # Two runs of one process, as a program with threads has them.
    with open_part(store, state, None, Fraction(1, 4), 0), pytest.raises(CheckStateLocked):
        part(store, "1/4")
    assert part(store, "1/4")[0].number == 2


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such locks, and no fork")
def test_a_run_that_is_refused_leaves_the_other_one_its_lock(store: Path) -> None:
    """A process that closes a file loses every lock that it has on it, also those of another open file."""
    part(store, "1/4")
    state = own_state(store)

    def find_locked() -> None:
        locked = pytest.raises(sqlite3.OperationalError, match="locked")
        with closing(sqlite3.connect(state, isolation_level=None, timeout=0)) as db, locked:
            db.execute("BEGIN IMMEDIATE")

    with open_part(store, state, None, Fraction(1, 4), 0):
        assert forked(find_locked) == 0
        with pytest.raises(CheckStateLocked, match=re.escape(str(state))):
            part(store, "1/4")
        assert forked(find_locked) == 0


def header(sql: str) -> Callable[[Path], object]:
    return lambda state: query(state, sql)


def a_damaged_page(state: Path) -> None:
    content = bytearray(state.read_bytes())
    content[4096 : 4096 + 200] = b"\xff" * 200
    state.write_bytes(content)


def in_wal_mode(state: Path) -> None:
    query(state, "PRAGMA journal_mode = WAL")


FORGED: dict[str, Callable[[Path], object]] = {
    "a position of another run": header("UPDATE rolling SET position = 1 << 61"),
    "a position beyond the end": header("UPDATE rolling SET position = 1 << 63"),
    "a cycle of a billion": header("UPDATE rolling SET cycle = 1000000001"),
    "a time beyond all": header("UPDATE rolling SET completed_at = 9223372036854775807"),
    "a path of another store": header("UPDATE rolling SET store = '/elsewhere'"),
    "two records": header("INSERT INTO rolling SELECT * FROM rolling"),
    "no record": header("DELETE FROM rolling"),
    "a newer version": header("UPDATE rolling SET version = 2"),
    "an entry of no base": header("UPDATE entry SET base = 77"),
    "an entry of a later cycle": header("UPDATE entry SET cycle = 9"),
    "an entry of another size": header("UPDATE entry SET data = x'00' WHERE data IS NOT NULL"),
    "an entry that is text": header("UPDATE entry SET data = 'twenty-four characters..' WHERE data IS NOT NULL"),
    "a digest with a flipped bit": header(f"UPDATE entry SET data = zeroblob(16) || substr(data, 17) WHERE {ENTRY}"),
    "another table": header("CREATE TABLE more (x)"),
    "a trigger": header("CREATE TRIGGER t AFTER DELETE ON rolling BEGIN DELETE FROM entry; END"),
    "a damaged page": a_damaged_page,
    "a log": in_wal_mode,
    "text": lambda state: state.write_text("my notes\n" * 100, "utf-8"),
    "another database": lambda state: (state.unlink(), query(state, "CREATE TABLE mine (x)")),
    "the ledger": lambda state: shutil.copy(state.parent / "ledger.sqlite", state),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_state_that_is_not_ours_is_refused(store: Path, forge: Callable[[Path], object]) -> None:
    cycle(store, "1/2")
    state = own_state(store)
    forge(state)
    before = {name: one[2] for name, one in snapshot(store).items()}
    done = run("check", store, "--part", "100%", "--json")
    message = said(done, "CheckStateUnusable", REFUSED)
    assert str(state) in message
    assert message.count("\n") == 0
    assert {name: one[2] for name, one in snapshot(store).items()} == before


@pytest.mark.parametrize("what", ["folder", "link"])
def test_a_state_that_is_no_file_is_refused(store: Path, tmp_path: Path, what: str) -> None:
    state = tmp_path / "state"
    if what == "folder":
        state.mkdir()
    else:
        try:
            state.symlink_to(tmp_path / "elsewhere")
        except OSError:
            pytest.skip("links cannot be made here")
    with untouched(store):
        said(run("check", store, "--part", "5%", "--state", state, "--json"), "CheckStateUnusable", REFUSED)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_a_state_that_sqlite_would_read_with_a_database_is_refused(store: Path, suffix: str) -> None:
    state = store / f"catalog.sqlite{suffix}"
    with untouched(store):
        refused = said(run("check", store, "--part", "5%", "--state", state, "--json"), "CheckStateUnusable", REFUSED)
    assert "SQLite would read it as a part of catalog.sqlite" in refused


@pytest.mark.parametrize("first", ["--state", "--report"])
@pytest.mark.parametrize("second", ["--metrics", "--state"])
def test_options_that_name_the_same_file_are_refused(store: Path, tmp_path: Path, first: str, second: str) -> None:
    given, other = tmp_path / "out.html", tmp_path / "." / "nested" / ".." / "out.html"
    (tmp_path / "nested").mkdir()
    arguments = [first, given] + ([second, other] if first != second else ["--report", other])
    with untouched(store):
        refused = said(run("check", store, "--part", "5%", *arguments, "--json"), "WrongUsage", REFUSED)
    assert "name the same file (use another file)" in refused
    assert not given.exists()


def test_a_part_is_written_as_a_page(store: Path, tmp_path: Path) -> None:
    page = tmp_path / "audit.html"
    done = run("check", store, "--part", "50%", "--report", page, "--fail-on", "never")
    assert (done.status, done.stderr) == (0, "")
    assert "structure; of a part of the rows, texts, ids and vectors (--part)" in page.read_text("utf-8")


def test_a_state_of_another_store_is_refused(store: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    part(store, "1/4", state=state)
    copy = shutil.copytree(store, tmp_path / "copy")
    before = state.read_bytes()
    message = said(run("check", copy, "--part", "1/4", "--state", state, "--json"), "CheckStateUnusable", REFUSED)
    assert str(store) in message
    assert str(copy) in message
    with pytest.raises(CheckStateUnusable):
        part(index(store), "1/4", state=state)
    assert state.read_bytes() == before
    # A store that was moved takes its state along, beside it or in it.
    store.rename(tmp_path / "moved")
    assert part(tmp_path / "moved", "1/4", state=state)[0].number == 2
    other = library(tmp_path / "other")
    query(other / "catalog.sqlite", "DELETE FROM knowledge_base")
    for folder in (other / "KnowledgeBase").iterdir():
        folder.rename(folder.with_name(folder.name[::-1]))
    shutil.copy(state, own_state(other))
    message = said(run("check", other, "--part", "1/4", "--json"), "CheckStateUnusable", REFUSED)
    assert "other bases" in message


def test_where_nothing_can_be_written(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with untouched(store):
        state = tmp_path / "nowhere" / "state"
        message = said(
            run("check", store, "--part", "5%", "--state", state, "--json"), "CheckStateNotWritable", REFUSED
        )
        assert "its folder does not exist" in message

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with untouched(store), monkeypatch.context() as patched:
        patched.setattr(durable, "make_folders", refuse)
        message = said(run("check", store, "--part", "5%", "--json"), "CheckStateNotWritable", REFUSED)
        assert str(own_state(store)) in message
        assert "--state FILE" in message
        # It can be in another place.
        assert part(store, "5%", state=tmp_path / "state")[0].number == 1


# --- options and output --------------------------------------------------------------------------------------------


def first_column(heading: str) -> set[str]:
    """Return the names that the tables below a heading of the page describe."""
    table = section(text_of(REPO / "docs" / "rolling-check.md"), heading)
    return set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))


@pytest.mark.parametrize(
    "size", ["5", "0%", "101%", "-1%", "1/0", "a%", "1e9%", "2/1", "", "0.5/3", "NaN%", "1/9999999"]
)
def test_what_is_no_part_is_refused(store: Path, size: str) -> None:
    with untouched(store):
        assert "is not a part of all rows" in said(
            run("check", store, f"--part={size}", "--json"), "WrongUsage", REFUSED
        )


@pytest.mark.parametrize("more", [["--quick"], ["--deep"], ["--max-duration", "5"], ["--base", KB]])
def test_options_that_a_part_excludes(store: Path, more: list[str]) -> None:
    with untouched(store):
        message = said(run("check", store, "--part", "5%", *more, "--json"), "WrongUsage", REFUSED)
    assert more[0] in message


def test_a_state_without_a_part_and_other_data_are_refused(store: Path, tmp_path: Path) -> None:
    with untouched(store):
        assert "--part" in said(run("check", store, "--state", tmp_path / "s", "--json"), "WrongUsage", REFUSED)
    source = tmp_path / "v1"
    shutil.copytree(store.parent / "library", source)
    assert run("pack", store, tmp_path / "pack.zip").status == 0
    message = said(run("check", tmp_path / "pack.zip", "--part", "5%", "--json"), "WrongUsage", REFUSED)
    assert "--part is for v2" in message
    with pytest.raises(RegraftError, match="fleet"):
        from regraft.cli.fleet import parse_library_options

        parse_library_options("check", ("--part", "5%"))


def test_the_document_is_as_documented(store: Path) -> None:
    document = run("check", store, "--part", "5%", "--json").document
    described = first_column("JSON")
    assert set(document["part"]) == described == set(PartReport.__struct_fields__)
    assert document["level"] == "part"
    assert document["checked"]["rows"] == document["part"]["read"]
    assert "part" not in run("check", store, "--json").document
    assert msgspec.convert(document["part"], PartReport)


def test_metrics(store: Path, tmp_path: Path) -> None:
    path, file = index(store), tmp_path / "check.prom"
    cycle(store, "1/2")
    flip(path, vector_keys(path)[0])
    assert run("check", store, "--part", "100%", "--metrics", file).status == 1
    text = file.read_text("utf-8")
    values = dict(re.findall(r"^regraft_check_(\w+)\{[^}]*\} (\S+)$", text, re.MULTILINE))
    rows = count_rows(path, index(store, OTHER))
    assert {
        name: float(values[name]) for name in ("cycle", "part", "parts", "rows", "rows_covered", "coverage_ratio")
    } == {
        "cycle": 2,
        "part": 1,
        "parts": 1,
        "rows": rows,
        "rows_covered": rows,
        "coverage_ratio": 1,
    }
    [labels] = re.findall(r"^regraft_check_findings\{(.*)\} 1\.0$", text, re.MULTILINE)
    assert 'finding="vector.changed"' in labels
    assert 'severity="error"' in labels
    assert float(values["cycle_complete_timestamp_seconds"]) <= float(values["timestamp_seconds"])
    documented = first_column("Metrics")
    assert set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE)) == documented
    # A check of everything writes them, too.
    assert run("check", store, "--metrics", file).status == 0
    assert "regraft_check_part" not in file.read_text("utf-8")
    assert "regraft_check_checked" in file.read_text("utf-8")
    other = tmp_path / "mine.txt"
    other.write_text("mine")
    with untouched(store):
        message = said(run("check", store, "--part", "5%", "--metrics", other, "--json"), "WrongUsage", REFUSED)
    assert str(other) in message
    assert other.read_text("utf-8") == "mine"
