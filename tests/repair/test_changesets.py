"""Changes of rows with a record that takes them back: what is recorded, when it is reverted, and what is refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import apsw
import pytest
from faults import fails

from regraft.disk import durable, sqlite, writable
from regraft.ledger import ledger
from regraft.ledger.ledger import Ledger
from regraft.ledger.values import RecordedChange
from repair.changes import changesets
from repair.changes.changesets import IncrementalChange

RUN = "20261121T120000Z-abcdef"
SCHEMA = """
CREATE TABLE folder (id TEXT PRIMARY KEY, name TEXT CHECK (name <> 'forbidden'));
CREATE TABLE note (id INTEGER PRIMARY KEY, folder TEXT REFERENCES folder (id), text TEXT);
INSERT INTO folder VALUES ('a', 'first'), ('b', 'second');
INSERT INTO note VALUES (1, 'a', 'one'), (2, 'a', 'two'), (3, 'gone', 'three');
"""


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with closing(sqlite3.connect(tmp_path / "notes.sqlite")) as db:
        db.executescript(SCHEMA)
    with writable.allow_writes(tmp_path):
        yield tmp_path / "notes.sqlite"


def rows(path: Path, table: str = "note") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()


def other_program(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)


def changed(path: Path, *statements: str, tables: tuple[str, ...] = ("note",)) -> Path:
    """Change rows and return the changeset."""
    changeset = path.parent / "kept" / "000001"
    with changesets.write_transaction(path) as db, changesets.record_changeset(db, path, tables, changeset):
        for statement in statements:
            db.execute(statement)
    return changeset


def recorded(changeset: Path) -> list[tuple[str, str]]:
    with changeset.open("rb") as file:
        return sorted((change.name, change.op) for change in apsw.Changeset.iter(file.read))


# --- one transaction -------------------------------------------------------------------------------------------------


def test_a_transaction_is_kept_unless_it_fails_or_is_a_trial(path: Path) -> None:
    with changesets.write_transaction(path) as db:
        assert db.pragma("synchronous") == 3
        db.execute("UPDATE note SET text = 'new' WHERE id = 1")
    assert rows(path)[0] == (1, "a", "new")
    with changesets.write_transaction(path, keep=False) as db:
        db.execute("UPDATE note SET text = 'tried'")
        assert db.in_transaction
    with pytest.raises(ValueError, match="stop"), changesets.write_transaction(path) as db:
        db.execute("UPDATE note SET text = 'stopped'")
        raise ValueError("stop")
    with changesets.write_transaction(path, keep=False) as db:
        db.execute("ROLLBACK")
    assert rows(path)[0] == (1, "a", "new")


@pytest.mark.parametrize("keep", [True, False])
def test_a_file_in_use_or_that_is_missing_is_named(keep: bool, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 0)
    with closing(apsw.Connection(str(path))) as db:
        db.execute("BEGIN IMMEDIATE")
        with fails("StoreBusy", match=r"notes\.sqlite"), changesets.write_transaction(path, keep=keep):
            raise AssertionError("it was entered")
    missing = path.with_name("missing.sqlite")
    with fails("StoreNotWritable", match=r"missing\.sqlite"), changesets.write_transaction(missing, keep=keep):
        raise AssertionError("it was entered")
    assert not missing.exists()


def test_a_file_that_is_opened_read_only_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite opens a file that it may not write to for reading."""
    monkeypatch.setattr(sqlite, "open_writable", lambda _: nullcontext(SimpleNamespace(readonly=lambda _: True)))
    with fails("StoreNotWritable", match="it is read-only"), changesets.write_transaction(path):
        raise AssertionError("it was entered")


@pytest.mark.parametrize(
    ("schema", "can"),
    [
        ("CREATE TABLE t (id TEXT PRIMARY KEY, x); INSERT INTO t VALUES ('a', 1)", True),
        ("CREATE TABLE t (a, b, x, PRIMARY KEY (a, b)); INSERT INTO t VALUES (1, 2, NULL)", True),
        ("CREATE TABLE t (a, b, x, PRIMARY KEY (a, b)); INSERT INTO t VALUES (1, 2, 3), (1, NULL, 3)", False),
        ("CREATE TABLE t (id TEXT PRIMARY KEY, x); INSERT INTO t VALUES (NULL, 1)", False),
        ("CREATE TABLE t (x); INSERT INTO t VALUES (1)", False),
        ("CREATE TABLE t (id TEXT PRIMARY KEY, x REFERENCES missing (id))", False),
        ("CREATE TABLE t (id TEXT PRIMARY KEY, x REFERENCES note (text))", False),
        ("CREATE TABLE u (id TEXT PRIMARY KEY)", False),
    ],
)
def test_what_a_changeset_can_record(schema: str, can: bool, path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(schema)
    with changesets.write_transaction(path, keep=False) as db:
        assert changesets.can_record(db, ["note", "t"]) == can
        assert changesets.can_record(db, ["note"])
        assert changesets.can_record(db, [])


def test_a_changeset_has_the_changes_of_its_tables(path: Path) -> None:
    changeset = changed(
        path,
        "UPDATE note SET text = 'new' WHERE id = 1",
        "DELETE FROM note WHERE id = 2",
        "INSERT INTO folder VALUES ('c', 'third')",
        tables=("note", "folder"),
    )
    assert recorded(changeset) == [("folder", "INSERT"), ("note", "DELETE"), ("note", "UPDATE")]
    with fails("OtherRowsChanged", match="folder"):
        changed(path, "DELETE FROM folder WHERE id = 'b'")
    assert len(rows(path, "folder")) == 3
    with pytest.raises(ValueError, match="stop"), changesets.write_transaction(path) as db:  # noqa: SIM117
        with changesets.record_changeset(db, path, ["note"], path.with_name("stopped")):
            raise ValueError("stop")
    assert not path.with_name("stopped").exists()


def test_a_changeset_is_on_the_disk_before_its_rows_are_committed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Path, int]] = []
    for name in ("sync_file", "sync_folder"):
        monkeypatch.setattr(durable, name, lambda place: seen.append((place, len(rows(path)))))
    changeset = changed(path, "INSERT INTO note VALUES (4, 'a', 'four')")
    assert seen == [(path.parent, 3), (changeset, 3), (changeset.parent, 3)]
    assert len(rows(path)) == 4


def test_the_schema_is_compared_by_its_sql(path: Path) -> None:
    with changesets.write_transaction(path) as db:
        before = changesets.read_schema(db)
        db.execute("UPDATE note SET text = 'new'")
        assert changesets.read_schema(db) == before
        db.execute("ALTER TABLE note ADD COLUMN more")
        assert changesets.read_schema(db) != before


def test_words_are_indexed_again_where_texts_changed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rebuilt: list[object] = []
    monkeypatch.setattr(changesets, "rebuild_full_text", rebuilt.append)
    with changesets.write_transaction(path) as db:
        with changesets.full_text_rebuild(db):
            pass
        db.execute("CREATE TABLE search_text_fts (x)")
        with changesets.full_text_rebuild(db, ("note",)):
            pass
        assert rebuilt == []
        with changesets.full_text_rebuild(db):
            assert rebuilt == []
        assert rebuilt == [db]
        with changesets.full_text_rebuild(db, {"search_text", "note"}):
            pass
        assert rebuilt == [db, db]


# --- reverting -------------------------------------------------------------------------------------------------------

CHANGE = ("UPDATE note SET text = 'new' WHERE id = 1", "DELETE FROM note WHERE id = 2")
BEFORE = [(1, "a", "one"), (2, "a", "two"), (3, "gone", "three")]
AFTER = [(1, "a", "new"), (3, "gone", "three")]


def test_a_change_is_reverted_as_a_whole_or_not_at_all(path: Path) -> None:
    changeset = changed(path, *CHANGE)
    with changesets.write_transaction(path) as db:
        assert changesets.revert_changeset(db, changeset, 1) == ()
    assert rows(path) == BEFORE
    changeset = changed(path, *CHANGE)
    other_program(path, "UPDATE note SET text = 'theirs' WHERE id = 1")
    with changesets.write_transaction(path) as db:
        assert changesets.revert_changeset(db, changeset, 1) == ("note",)
    assert rows(path) == [(1, "a", "theirs"), (3, "gone", "three")]


def test_no_more_references_dangle_than_before_the_change(path: Path) -> None:
    changeset = changed(path, "UPDATE note SET folder = 'b' WHERE id = 3")
    for allowed, conflicts in ((0, ("foreign keys",)), (1, ())):
        with changesets.write_transaction(path) as db:
            assert changesets.revert_changeset(db, changeset, allowed) == conflicts
        assert rows(path)[2] == (3, "gone" if allowed else "b", "three")


@pytest.mark.parametrize("keep", [False, True])
def test_several_changes_are_tried_in_order(keep: bool, path: Path) -> None:
    first = changed(path, *CHANGE)
    first = first.rename(first.with_name("first"))
    second = changed(path, "UPDATE note SET text = 'newer' WHERE id = 1")
    with changesets.write_transaction(path) as db:
        assert changesets.find_revert_conflicts(db, [(second, 1), (first, 1)], keep=keep) == ()
    assert rows(path) == (BEFORE if keep else [(1, "a", "newer"), (3, "gone", "three")])
    with changesets.write_transaction(path) as db:
        assert changesets.find_revert_conflicts(db, [(first, 1)], keep=False) == ("note",)
    # A trial is over at its end: nothing stays locked.
    with sqlite.open_writable(path) as db:
        assert changesets.find_revert_conflicts(db, [(first, 1)], keep=False) == ("note",)
        assert not db.in_transaction


def test_whether_a_change_was_committed(path: Path) -> None:
    changeset = changed(path, *CHANGE)

    def told() -> tuple[bool, bool]:
        with changesets.write_transaction(path, keep=False) as db:
            return changesets.is_committed(db, changeset), changesets.has_remaining_changes(db, changeset)

    assert told() == (True, True)
    # Another program made a part of it anew, or took a part back.
    other_program(path, "INSERT INTO note VALUES (2, 'a', 'two')")
    assert told() == (True, True)
    other_program(path, "UPDATE note SET text = 'one' WHERE id = 1")
    assert told() == (False, False)
    assert rows(path) == BEFORE


def test_a_change_proves_that_it_can_be_reverted(path: Path) -> None:
    changeset = path.parent / "kept" / "000001"
    with changesets.write_transaction(path) as db:
        with changesets.record_changeset(db, path, ["note"], changeset):
            db.execute("UPDATE note SET folder = 'b' WHERE id = 3")
        assert changesets.verify_revert(db, changeset) == 1
        db.execute("DELETE FROM note WHERE id = 3")
        assert changesets.verify_revert(db, changeset) is None
        db.execute("INSERT INTO note VALUES (3, 'a', 'three')")
        assert changesets.verify_revert(db, changeset) is None
    assert rows(path) == [*BEFORE[:2], (3, "a", "three")]
    # Nor is a change that was never made.
    with changesets.write_transaction(path) as db:
        with changesets.record_changeset(db, path, ["note"], changeset):
            db.execute("UPDATE note SET text = 'new' WHERE id = 2")
        assert changesets.verify_revert(db, changeset) == 0
        db.execute("UPDATE note SET text = 'two' WHERE id = 2")
        assert changesets.verify_revert(db, changeset) is None


def test_a_system_guards_its_rows_against_every_revert(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changeset = changed(path, *CHANGE)

    class Guarding:
        counters: ClassVar[dict[str, tuple[str, ...]]] = {}

        @contextmanager
        def guard_rows(self, db: apsw.Connection) -> Iterator[None]:
            guarded.append(rows(path))
            yield

    guarded: list[object] = []
    monkeypatch.setattr(changesets.systems, "all_systems", lambda: [Guarding()])
    with changesets.write_transaction(path) as db:
        changesets.find_revert_conflicts(db, [(changeset, 1)], keep=False)
        assert guarded == [AFTER]
        changesets.revert_changeset(db, changeset, 1)
    assert guarded == [AFTER, AFTER]
    assert rows(path) == BEFORE


def test_words_of_another_program_are_not_reverted_with_texts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(changesets.untrusted_sqlite, "refuse_shadow_indexes", asked.append)
    changeset = changed(path, *CHANGE)
    changeset = changeset.rename(changeset.with_name("notes"))
    other_program(path, "CREATE TABLE search_text (id TEXT PRIMARY KEY)")
    texts = changed(path, "INSERT INTO search_text VALUES ('x')", tables=("search_text",))
    with changesets.write_transaction(path) as db:
        changesets.find_revert_conflicts(db, [(changeset, 1)], keep=False)
        assert asked == []
        changesets.find_revert_conflicts(db, [(changeset, 1), (texts, 0)], keep=False)
        assert asked == [db]


def test_rows_that_were_damaged_before_are_reverted_too(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute("UPDATE folder SET name = 'forbidden' WHERE id = 'a'")
    changeset = changed(path, "UPDATE folder SET name = 'allowed' WHERE id = 'a'", tables=("folder",))
    with changesets.write_transaction(path) as db:
        assert changesets.revert_changeset(db, changeset, 0) == ()
        # Only the revert may break the rule.
        with pytest.raises(apsw.ConstraintError):
            db.execute("UPDATE folder SET name = 'forbidden' WHERE id = 'b'")
    assert rows(path, "folder") == [("a", "forbidden"), ("b", "second")]


def test_a_changeset_that_regraft_does_not_record_is_told(path: Path) -> None:
    changeset = changed(path, *CHANGE)

    def problem(changeset: Path) -> str | None:
        with sqlite.open_readonly(path) as db:
            return changesets.find_changeset_problem(db, changeset)

    assert problem(changeset) is None
    torn = changeset.with_name("torn")
    torn.write_bytes(changeset.read_bytes()[:-3])
    assert str(problem(torn)).startswith("it is damaged: ")
    with closing(sqlite3.connect(path)) as db:
        db.executescript("CREATE TABLE search_text (id TEXT PRIMARY KEY); CREATE TABLE embedding (id TEXT PRIMARY KEY)")
    # In an index, only the tables of the layout are regraft's.
    assert problem(changeset) == "it changes note, which regraft never does"
    own = changed(path, "INSERT INTO embedding VALUES ('x')", tables=("embedding",))
    assert problem(own) is None
    with closing(sqlite3.connect(path)) as db:
        db.executescript("DROP TABLE embedding; DROP TABLE search_text")
    assert problem(own) == "it changes embedding, which regraft never does"
    other_program(path, "CREATE VIEW embedding AS SELECT 1 AS id")
    assert problem(own) == "it changes embedding, which regraft never does"


# --- counters --------------------------------------------------------------------------------------------------------

COUNTED = "memory_center/index/simple_memory.db"
COUNTER = "note_short_id_seq"


def counting(path: Path, number: int | None) -> Path:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"CREATE TABLE {COUNTER} (id INTEGER PRIMARY KEY, next_id INTEGER)")
        db.execute("CREATE TABLE memory (id INTEGER PRIMARY KEY)")
        db.execute(f"INSERT INTO memory VALUES ({number or 0})")
        if number is not None:
            db.execute(f"INSERT INTO {COUNTER} VALUES (1, {number})")
    return path


def test_an_earlier_file_gets_the_counters_of_the_present_one(path: Path) -> None:
    current, former = counting(path.with_name("current"), 9), counting(path.with_name("former"), 4)
    changesets.copy_counters(COUNTED, current, former)
    assert (rows(former, COUNTER), rows(former, "memory")) == ([(1, 9)], [(4,)])
    empty = counting(path.with_name("empty"), None)
    changesets.copy_counters(COUNTED, current, empty)
    assert rows(empty, COUNTER) == [(1, 9)]


@pytest.mark.parametrize("how", ["another name", "the same counters", "no database", "no former", "unreadable"])
def test_where_there_are_no_other_counters_an_earlier_file_stays_as_it_is(how: str, path: Path) -> None:
    current = counting(path.with_name("current"), 4 if how == "the same counters" else 9)
    former = counting(path.with_name("former"), 4)
    if how == "no database":
        current.write_bytes(b"x")
    elif how == "no former":
        former.write_bytes(b"x")
    elif how == "unreadable":
        other_program(current, f"DROP TABLE {COUNTER}")
    before = former.read_bytes()
    changesets.copy_counters("other.db" if how == "another name" else COUNTED, current, former)
    assert former.read_bytes() == before


# --- many transactions -----------------------------------------------------------------------------------------------


@pytest.fixture
def book(path: Path) -> Iterator[Ledger]:
    (path.parent / ".regraft").mkdir()
    with ledger.open_exclusive(path.parent) as opened:
        opened.begin_run("backfill", "x", RUN)
        yield opened


def growing(path: Path, book: Ledger, begun: list[str]) -> IncrementalChange:
    return IncrementalChange(
        path.parent, book, RUN, "notes.sqlite", f"undo/{RUN}/000001", (2, 3), lambda: begun.append("begun")
    )


def insert(change: IncrementalChange, db: apsw.Connection, number: int) -> None:
    with change.transaction(db, ["note"]):
        db.execute("INSERT INTO note VALUES (?, NULL, 'more')", (number,))


def insert_too_much(change: IncrementalChange, db: apsw.Connection) -> None:
    """Insert a long row whose reference leads nowhere, which shows when the transaction is committed."""
    db.execute("PRAGMA foreign_keys = ON")
    with change.transaction(db, ["note"]):
        db.execute("PRAGMA defer_foreign_keys = ON")
        db.execute("INSERT INTO note VALUES (99, 'nowhere', ?)", ("x" * 10_000,))


def only_change(book: Ledger) -> RecordedChange:
    [found] = book.changes.every()
    return found


def test_each_transaction_adds_a_section_to_one_record(path: Path, book: Ledger) -> None:
    begun: list[str] = []
    change = growing(path, book, begun)
    kept = path.parent / ".regraft" / "undo" / RUN / "000001"
    with changesets.open_writer(path) as db:
        assert not change.has_changed
        insert(change, db, 10)
        assert (begun, change.has_changed) == (["begun"], True)
        first = kept.stat().st_size
        recorded_change = only_change(book)
        assert (recorded_change.state, recorded_change.bytes, recorded_change.path) == ("intended", 0, "notes.sqlite")
        assert (recorded_change.rows.grows, recorded_change.detail.actions) == (True, (2, 3))
        assert recorded_change.rows.dangling == 0
        insert(change, db, 11)
        assert (begun, only_change(book).bytes) == (["begun"], first)
        second = kept.stat().st_size
        assert second > first
        # A transaction that fails at its end leaves a section behind, which the next one or the end removes.
        for number in (12, 13):
            with pytest.raises(apsw.ConstraintError):
                insert_too_much(change, db)
            assert kept.stat().st_size > second + 9_000
            if number == 12:
                insert(change, db, number)
                whole = kept.stat().st_size
                assert second < whole < second + 100
                second = whole
        change.end()
    assert kept.stat().st_size == whole
    assert (only_change(book).state, only_change(book).bytes) == ("done", whole)
    assert recorded(kept) == [("note", "INSERT")] * 3
    with changesets.write_transaction(path) as db:
        assert changesets.revert_changeset(db, kept, 0) == ()
    assert rows(path) == BEFORE


def test_a_change_without_a_committed_transaction_leaves_no_record(path: Path, book: Ledger) -> None:
    change = growing(path, book, [])
    change.end()
    assert book.changes.every() == []
    with changesets.open_writer(path) as db:
        with pytest.raises(apsw.ConstraintError):
            insert(change, db, 1)
        change.end()
    assert not change.has_changed
    assert (only_change(book).state, only_change(book).bytes) == ("dropped", 0)
    assert not (path.parent / ".regraft" / "undo" / RUN / "000001").exists()


def test_a_section_is_on_the_disk_before_its_rows_are_committed(
    path: Path, book: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def look(name: str) -> Callable[..., None]:
        return lambda what: seen.append(
            (
                name if what != kept.parent else "its folder",
                len(rows(path)),
                kept.stat().st_size if kept.exists() else None,
            )
        )

    kept = path.parent / ".regraft" / "undo" / RUN / "000001"
    with changesets.open_writer(path) as db:
        assert db.pragma("busy_timeout") == 60_000
        assert db.pragma("synchronous") == 3
        with monkeypatch.context() as patch:
            patch.setattr(durable, "sync_folder", look("folder"))
            patch.setattr(durable, "flush", look("flush"))
            insert(growing(path, book, []), db, 10)
    assert seen == [("folder", 3, None)] * 2 + [("its folder", 3, 0), ("flush", 3, kept.stat().st_size)]
    assert len(rows(path)) == 4


def test_tables_that_cannot_be_reverted_are_refused_before_anything_is_recorded(path: Path, book: Ledger) -> None:
    other_program(path, "CREATE TABLE odd (id TEXT PRIMARY KEY, x REFERENCES missing (id))")
    begun: list[str] = []
    change = growing(path, book, begun)
    with changesets.open_writer(path) as db:
        with pytest.raises(apsw.SQLError, match="missing"), change.transaction(db, ["note", "odd"]):
            raise AssertionError("it was entered")
        change.end()
    assert (begun, book.changes.every(), change.has_changed) == ([], [], False)
    assert not (path.parent / ".regraft" / "undo").exists()


@pytest.mark.parametrize("last", ["none", "committed", "not committed", "torn"])
def test_after_a_kill_the_last_section_is_kept_if_it_was_committed(last: str, path: Path, book: Ledger) -> None:
    change = growing(path, book, [])
    kept = path.parent / ".regraft" / "undo" / RUN / "000001"
    with changesets.open_writer(path) as db:
        insert(change, db, 10)
        first = kept.stat().st_size
        if last != "none":
            insert(change, db, 11)
    book.changes.set_state(only_change(book).change_id, "intended", first)
    if last == "not committed":
        other_program(path, "DELETE FROM note WHERE id = 11")
    elif last == "torn":
        kept.write_bytes(kept.read_bytes()[:-2])
    before = rows(path)
    assert changesets.recover_last_section(path, kept, only_change(book))
    assert recorded(kept) == [("note", "INSERT")] * (2 if last == "committed" else 1)
    assert [one.name for one in kept.parent.iterdir()] == ["000001"]
    assert rows(path) == before


def test_after_a_kill_in_the_first_transaction_nothing_remains(path: Path, book: Ledger) -> None:
    change = growing(path, book, [])
    kept = path.parent / ".regraft" / "undo" / RUN / "000001"
    with changesets.open_writer(path) as db:
        insert(change, db, 10)
    other_program(path, "DELETE FROM note WHERE id = 10")
    assert not changesets.recover_last_section(path, kept, only_change(book))
    assert kept.read_bytes() == b""
