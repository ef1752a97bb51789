"""What a ledger may say: each value of each table that regraft would not write has the ledger refused as a whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import msgspec
import pytest
from faults import untouched
from harness import run
from toys import change, library

from regraft.disk import sqlite
from regraft.disk.file_paths import is_folder_name
from regraft.errors import REFUSED, LedgerUnreadable
from regraft.ledger import ledger, values
from regraft.ledger.values import MAX_TIME, InvalidValue, check_path

BASE, RUN = "2f0b8e9c-7d3a-4c52-9e61-0a1b2c3d4e5f", "20260615T120000Z-0a1b2c"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with rows in every table of its ledger."""
    store = library(tmp_path_factory.mktemp("made"))
    change(store)
    with ledger.open_exclusive(store) as book:
        book.begin_run("migrate", "/v1", RUN)
        book.done(book.intend(BASE, "publish", ledger.LedgerEntry("0a" * 20, b"{}"), [b"{}", b"{}"]))
        book.intend("catalog", "publish", ledger.LedgerEntry("0b" * 20, b"[1,2]"))
        book.end_run("finished")
    return store


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of it."""
    yield Path(shutil.copytree(made, tmp_path / "library"))


def refused(store: Path, *, shared: bool = True) -> str:
    """Return why the ledger is refused, whoever opens it (``shared``: also together); no byte of the store changes."""
    reasons = set()
    with untouched(store):
        for read in (ledger.read_entries, ledger.read_runs):
            with pytest.raises(LedgerUnreadable) as caught:
                read(store)
            reasons.add(str(caught.value.facts["reason"]))
        for opened in (ledger.open_exclusive, *([ledger.open_shared] if shared else [])):
            with pytest.raises(LedgerUnreadable) as caught, opened(store):
                pass
            reasons.add(str(caught.value.facts["reason"]))
    assert len(reasons) == 1, reasons
    return reasons.pop()


def test_what_regraft_writes_is_read(store: Path) -> None:
    for opened in (ledger.open_exclusive, ledger.open_shared):
        with opened(store) as book:
            assert [one.run_id for one in book.changes.runs()][-1] == RUN
    assert list(ledger.read_entries(store)) == [BASE]


# --- values ----------------------------------------------------------------------------------------------------------

#: What no column that holds a text of a known form may hold.
ANYWHERE = (
    "NULL",
    "x'00ff'",
    "7",
    "CAST(x'ff' AS TEXT)",
    "'../../victim'",
    "'/etc'",
    "'a/../b'",
    "''",
    "'a' || char(0) || 'b'",
)
#: A number becomes a text there.
NAMES = tuple(value for value in ANYWHERE if value != "7")
NUMBERS = ("NULL", "x'00'", "'seven'", "-1", "0.5", "9e99")
BLOBS = ("NULL", "'text'", "7", "x'ff'")
#: Values that columns may not hold, besides.
LIES: dict[str, tuple[str, ...]] = {
    "ledger.version": (*NUMBERS, "0", "3", "9223372036854775807"),
    "run.run_id": (*ANYWHERE, "'run-1'", "'20260615T120000Z-0A1B2C'", "'20260615T120000Z-0a1b2c/x'", "'con'"),
    "run.command": (*ANYWHERE[:-2], "'Migrate'", "'rm -rf'"),
    "run.source": ("NULL", "x'00'"),
    "run.status": ("NULL", "'done'", "x'00'", "7"),
    "run.started_at": (*NUMBERS, str(MAX_TIME + 1), "9223372036854775807"),
    "run.finished_at": (*NUMBERS[1:], str(MAX_TIME + 1)),
    "step.run_id": (*ANYWHERE, "'20990101T000000Z-000000'"),
    "step.subject": (*NAMES, "'..'", "'CON'", "'a/b'", "'a\\b'", "'C:x'", "'.cherry'", f"'{'x' * 256}'", "'a.'"),
    "step.action": (*ANYWHERE, "'remove'"),
    "step.state": (*ANYWHERE, "'undone'"),
    "step.fingerprint": (*NAMES[:-2], "'0A'", "'xyz'", f"'{'0' * 129}'"),
    "step.detail": BLOBS[:3],
    "entry.subject": (*NAMES, "'..'", "'lpt1.txt'", "'another'"),
    "entry.step_id": (*NUMBERS, "99"),
    "entry.fingerprint": (*NAMES[:-2], "'xyz'"),
    "entry.detail": BLOBS[:3],
    "part.number": (*NUMBERS, "7"),
    "part.body": BLOBS[:3],
    "change.run_id": (*ANYWHERE, "'20990101T000000Z-000000'", f"'{RUN}'"),
    "change.means": (*ANYWHERE, "'link'"),
    "change.path": (
        *ANYWHERE,
        "'a//b'",
        "'a/'",
        "'./a'",
        "'.regraft/ledger.sqlite'",
        "'.Regraft/x'",
        f"'{'x/' * 2050}x'",
    ),
    "change.state": (*ANYWHERE, "'gone'"),
    "change.kept": (
        *ANYWHERE[1:],
        "'work/x'",
        "'undo/000001'",
        "'undo/20990101T000000Z-000000/000001'",
        "'ledger.sqlite'",
    ),
    "change.bytes": NUMBERS,
    "change.detail": (*BLOBS, "x'7b7d'", "CAST('[]' AS BLOB)"),
    "action.run_id": (*ANYWHERE, "'20990101T000000Z-000000'"),
    "action.number": (*NUMBERS, "99"),
    "action.detail": (*BLOBS, "x'7b7d'", "CAST('[]' AS BLOB)"),
}


def lie(store: Path, *statements: str) -> None:
    """Write to a ledger what its own rules do not let through."""
    with apsw.Connection(str(ledger.ledger_path(store))) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute("PRAGMA foreign_keys = OFF")
        for statement in statements:
            db.execute(statement)
    db.close()


def set_value(store: Path, table: str, column: str, value: str) -> bool:
    """Set one cell, also to NULL where that is not allowed; tell whether the cell has it then."""
    lie(
        store,
        "PRAGMA writable_schema = ON",
        f"UPDATE sqlite_schema SET sql = replace(sql, ' NOT NULL', '') WHERE name = '{table}'",
    )
    try:
        lie(store, f"UPDATE {table} SET {column} = {value} WHERE rowid = (SELECT max(rowid) FROM {table})")
    except apsw.ConstraintError:
        return False
    finally:
        original = dict(SCHEMA)
        with apsw.Connection(str(ledger.ledger_path(store))) as db:
            db.execute("PRAGMA writable_schema = ON")
            db.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (original[table], table))
        db.close()
    return True


SCHEMA: list[tuple[str, str]] = []


@pytest.mark.one_in(3)
@pytest.mark.parametrize("column", LIES)
def test_no_column_says_what_regraft_does_not_write(column: str, made: Path, store: Path) -> None:
    table, name = column.split(".")
    with sqlite.open_readonly(ledger.ledger_path(made)) as db:
        SCHEMA[:] = db.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    for value in LIES[column]:
        shutil.copy(ledger.ledger_path(made), ledger.ledger_path(store))
        if set_value(store, table, name, value):
            refused(store)


# --- rows, tables and pages ------------------------------------------------------------------------------------------

CONTRADICTIONS = {
    "a second version": "INSERT INTO ledger VALUES (2)",
    "no version": "DELETE FROM ledger",
    "a run that is gone": f"DELETE FROM run WHERE run_id = '{RUN}'",
    "a step that is gone": "DELETE FROM step",
    "a part of no step": "INSERT INTO part VALUES (77, 0, x'7b7d')",
    "a part that is missing": "DELETE FROM part WHERE number = 0",
    "parts from 1 on": "UPDATE part SET number = number + 1 WHERE number = 1",
    "an entry of another": "UPDATE entry SET step_id = (SELECT step_id FROM step WHERE subject = 'catalog')",
    "an entry of an intent": "UPDATE step SET state = 'intended'",
    "actions that are gone": "DELETE FROM action",
    "the first action gone": "DELETE FROM action WHERE number = 0",
    "one file for two": "UPDATE change SET kept = (SELECT kept FROM change c WHERE c.run_id = change.run_id"
    " AND kept LIKE 'undo%' LIMIT 1) WHERE kept LIKE 'undo%'",
    "rows without a backup": "UPDATE change SET kept = NULL WHERE means = 'rows'",
    "rows in the trash": "UPDATE change SET kept = 'trash/2026-06-15-RUN/catalog.sqlite', path = 'catalog.sqlite'"
    " WHERE change_id = (SELECT min(change_id) FROM change WHERE means = 'rows')",
    "a file without a date": "UPDATE change SET kept = 'trash/today-RUN/KnowledgeBase', path = 'KnowledgeBase'"
    " WHERE change_id = (SELECT min(change_id) FROM change WHERE means = 'file')",
}
SCHEMAS = {
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM change; END",
    "a view": "CREATE VIEW v AS SELECT * FROM run",
    "an index": "CREATE INDEX i ON run (command)",
    "an index of SQLite's own on another table": "CREATE TABLE t (x UNIQUE)",
    "an index of a table that has another": "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET"
    " tbl_name = 'step' WHERE name = 'sqlite_autoindex_run_1'",
    "a table": "CREATE TABLE t (x)",
    "a virtual table": "CREATE VIRTUAL TABLE t USING fts5 (x)",
    "statistics": "ANALYZE",
    "a column": "ALTER TABLE change ADD COLUMN more",
    "a generated column": "ALTER TABLE run ADD COLUMN more AS (abs(-9223372036854775807 - 1))",
    "another name": "ALTER TABLE change RENAME COLUMN kept TO held",
    "no table": "DROP TABLE entry",
    "hardly a table": "DROP TABLE action; DROP TABLE change; DROP TABLE entry; DROP TABLE part; DROP TABLE step",
    "a view of a table": "ALTER TABLE run RENAME TO runs; CREATE VIEW run AS SELECT * FROM runs",
    "a table without rowids": "ALTER TABLE entry RENAME TO old; CREATE TABLE entry (subject TEXT PRIMARY KEY, step_id"
    " INTEGER NOT NULL REFERENCES step (step_id), fingerprint TEXT NOT NULL, detail BLOB NOT NULL) WITHOUT ROWID;"
    " DROP TABLE old",
    "an older version": "UPDATE ledger SET version = 1",
}


#: Why each of them is refused.
REASONS = {
    "a second version": "its version None is not supported",
    "no version": "its version None is not supported",
    "a run that is gone": "a row of step refers to a missing run",
    "a step that is gone": "a row of part refers to a missing step",
    "a part of no step": "a row of part refers to a missing step",
    "a part that is missing": "it has parts of a step that are not numbered from 0",
    "parts from 1 on": "it has parts of a step that are not numbered from 0",
    "an entry of another": "it has an entry that belongs to another step",
    "an entry of an intent": "it has an entry that belongs to another step",
    "actions that are gone": "it has a change for an action that its run does not have",
    "the first action gone": "it has actions of a run that are not numbered from 0",
    "one file for two": "it has two changes with one backup",
    "rows without a backup": "it has None in place of the backup of rows",
    "rows in the trash": "it has 'trash/2026-06-15-RUN/catalog.sqlite' in place of the backup of a change",
    "a file without a date": "it has 'trash/today-RUN/KnowledgeBase' in place of the backup of a change",
    "a trigger": "it has the trigger 't', which no ledger has",
    "a view": "it has the view 'v', which no ledger has",
    "an index": "it has the index 'i', which no ledger has",
    "an index of SQLite's own on another table": "it also has the table 't'",
    "an index of a table that has another": "it has the index 'sqlite_autoindex_run_1', which no ledger has",
    "a table": "it also has the table 't'",
    "a virtual table": "it also has the table 't'",
    "statistics": "it also has the table 'sqlite_stat1'",
    "a column": "its table 'change' is not the one that a ledger has",
    "a generated column": "its table 'run' is not the one that a ledger has",
    "another name": "its table 'change' is not the one that a ledger has",
    "no table": "it lacks the table 'entry'",
    "hardly a table": "it lacks the table 'action'",
    "a view of a table": "it has the view 'run', which no ledger has",
    "a table without rowids": "its table 'entry' is not the one that a ledger has",
    "an older version": "it also has the table 'action'",
}


@pytest.mark.parametrize("how", CONTRADICTIONS)
def test_no_rows_contradict_each_other(how: str, store: Path) -> None:
    run_id = next(one.run_id for one in ledger.read_runs(store) if one.changes)
    lie(store, CONTRADICTIONS[how].replace("-RUN", f"-{run_id}"))
    assert refused(store) == REASONS[how].replace("-RUN", f"-{run_id}")


@pytest.mark.parametrize("how", SCHEMAS)
def test_a_ledger_has_the_tables_that_regraft_makes_and_no_more(how: str, store: Path) -> None:
    lie(store, *SCHEMAS[how].split("; ") if "BEGIN" not in SCHEMAS[how] else [SCHEMAS[how]])
    assert refused(store) == REASONS[how]


DETAILS = {
    "rows": (
        '{"dangling":-1,"actions":[0,1]}',
        '{"dangling":true,"actions":[0,1]}',
        '{"dangling":0,"actions":[0]}',
        '{"dangling":0,"actions":[0,99]}',
        '{"dangling":0,"actions":[9223372036854775807,9223372036854775807]}',
        '{"dangling":0,"actions":[-5,5]}',
        '{"dangling":0,"actions":[0,1],"grows":"yes"}',
        '{"dangling":1e300,"actions":[0,1]}',
        f'{{"dangling":{"9" * 5000},"actions":[0,1]}}',
        "[" * 5000 + "]" * 5000,
        "null",
    ),
    "file": (
        '{"new":1,"mark":null,"staged":"work/RUN/000001","made":null,"actions":[0,1]}',
        '{"new":true,"mark":"../x","staged":"work/RUN/000001","made":null,"actions":[0,1]}',
        '{"new":true,"mark":7,"staged":"work/RUN/000001","made":null,"actions":[0,1]}',
        '{"new":true,"mark":null,"staged":"work/RUN/../../../x","made":null,"actions":[0,1]}',
        '{"new":true,"mark":null,"staged":"work/20260615T120000Z-0a1b2c/000001","made":null,"actions":[0,1]}',
        '{"new":true,"mark":null,"staged":"../victim","made":null,"actions":[0,1]}',
        '{"new":true,"mark":null,"staged":"undo/RUN/000001","made":null,"actions":[0,1]}',
        '{"new":true,"mark":null,"staged":"work/RUN/000001","made":"..","actions":[0,1]}',
        '{"new":true,"mark":null,"staged":"work/RUN/000001","made":"","actions":[0,1]}',
        '{"new":true,"mark":null,"staged":"work/RUN/000001","made":"elsewhere","actions":[0,1]}',
        '{"new":true,"mark":null,"staged":"work/RUN/000001","made":"Knowledge","actions":[0,1]}',
        '{"new":true,"mark":"link \\ud800","staged":"work/RUN/000001","made":null,"actions":[0,1]}',
        '{"new":true,"staged":"work/RUN/000001","made":null,"actions":[0,1]}',
        '{"new":true,"mark":null,"staged":"work/RUN/000001","made":null,"actions":[0,1],"cache":true}',
        '{"new":false,"mark":null,"staged":"work/RUN/000001","made":null,"actions":[0,1],"cache":"yes"}',
    ),
}


@pytest.mark.parametrize(("means", "detail"), [(means, one) for means, every in DETAILS.items() for one in every])
def test_no_detail_says_what_regraft_does_not_write(means: str, detail: str, store: Path) -> None:
    run_id = next(one.run_id for one in ledger.read_runs(store) if one.changes)
    raw = detail.replace("RUN", run_id).encode().hex()
    lie(store, f"UPDATE change SET detail = x'{raw}' WHERE means = '{means}'")
    refused(store)


def test_no_damaged_page_is_read(made: Path, store: Path) -> None:
    """Whatever page is damaged, and however: the ledger is refused, or says the same as before."""
    path = ledger.ledger_path(store)
    raw = path.read_bytes()
    size, before = int.from_bytes(raw[16:18], "big"), ledger.read_runs(made)
    for number in range(len(raw) // size):
        for begin, length in ((0, 8), (8, 100), (size // 2, 64), (size - 40, 40), (0, size)):
            at = number * size + begin
            path.write_bytes(raw[:at] + b"\xa5" * length + raw[at + length :])
            try:
                with ledger.open_exclusive(store) as book:
                    assert book.changes.runs() == before
            except (LedgerUnreadable, apsw.CantOpenError):
                continue


@pytest.mark.parametrize("how", ["folder", "link", "pipe"])
def test_the_ledger_is_an_ordinary_file(how: str, made: Path, store: Path) -> None:
    path = ledger.ledger_path(store)
    path.unlink()
    elsewhere = ledger.ledger_path(made)
    {
        "folder": path.mkdir,
        "link": lambda: path.symlink_to(elsewhere),
        "pipe": lambda: os.mkfifo(path),
    }[how]()
    for read in (ledger.read_entries, ledger.read_runs, lambda one: ledger.open_exclusive(one).__enter__()):
        with pytest.raises(LedgerUnreadable, match="not a regular file"):
            read(store)
    assert ledger.read_runs(made)


def test_a_refused_ledger_keeps_its_log(store: Path) -> None:
    """A ledger that runs shared has its last records in a log: both stay as they are."""
    path = ledger.ledger_path(store)
    db = apsw.Connection(str(path))
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA foreign_keys = OFF")
    db.execute("UPDATE run SET run_id = '../../victim' WHERE rowid = 1")
    kept = {file.name: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
    db.close()
    for file in path.parent.glob("ledger.sqlite*"):
        file.unlink()
    for name, raw in kept.items():
        if not name.endswith("-shm"):
            path.with_name(name).write_bytes(raw)
    assert path.with_name(f"{path.name}-wal").stat().st_size > 0
    # Who shares it has had it alone before.
    refused(store, shared=False)


# --- every command ---------------------------------------------------------------------------------------------------

COMMANDS: dict[str, Callable[[Path], tuple[object, ...]]] = {
    "history": lambda store: ("history", store, "--json"),
    "undo": lambda store: ("undo", store, "--json", "--yes"),
    "undo, dry": lambda store: ("undo", store, "--json", "--dry-run"),
    **{
        name: lambda store, name=name: (name, store, "--json", "--yes")  # type: ignore[misc]
        for name in ("repair", "gc", "reconcile", "upgrade")
    },
    "migrate": lambda store: ("migrate", store.parent / "v1", "--to", store, "--json", "--yes"),
    "migrate, dry": lambda store: ("migrate", store.parent / "v1", "--to", store, "--json", "--dry-run"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("lied", ["UPDATE step SET subject = '../../victim'", SCHEMAS["a trigger"]])
def test_every_command_refuses_such_a_ledger(lied: str, command: str, made: Path, store: Path) -> None:
    shutil.copytree(made.parent / "v1", store.parent / "v1")
    lie(store, lied)
    with untouched(store.parent):
        done = run(*COMMANDS[command](store))
    error = done.document["error"]
    assert (done.status, error["code"]) == (REFUSED, "LedgerUnreadable"), done
    assert "move .regraft away" in error["message"]


# --- what is read ----------------------------------------------------------------------------------------------------


def test_a_damaged_file_whose_rows_are_valid_is_refused(store: Path) -> None:
    """Its header counts free pages that it does not have."""
    path = ledger.ledger_path(store)
    raw = bytearray(path.read_bytes())
    raw[36:40] = (int.from_bytes(raw[36:40], "big") + 5).to_bytes(4, "big")
    path.write_bytes(raw)
    assert refused(store).startswith("it is damaged: ")


@pytest.mark.parametrize("value", ["..", "a/b", "", ".cherry", 7, None, b"a"])
def test_a_subject_that_names_no_folder_is_refused(value: object) -> None:
    with pytest.raises(InvalidValue, match="in place of the id of a base"):
        values.check_subject(value)
    assert values.check_subject("catalog") == "catalog"


def test_what_a_detail_does_not_say_is_false() -> None:
    raw = b'{"dangling":0,"actions":[0,1]}'
    assert msgspec.json.decode(raw, type=values.RowsDetail).grows is False
    file = values.FileDetail(new=False, mark=None, staged="work/x/000001", made=None, actions=(0, 1))
    assert file.cache is False
    assert b"cache" not in msgspec.json.encode(file)


def test_a_path_is_judged_as_on_this_system() -> None:
    if os.name == "nt":
        with pytest.raises(InvalidValue):
            check_path("C:x")
    else:
        assert check_path("C:x") == "C:x"


def test_a_row_that_became_invalid_since_it_was_opened_is_not_used(store: Path) -> None:
    with ledger.open_exclusive(store) as book:
        book._db.execute("UPDATE change SET path = '../victim'")
        for read in (book.changes.every, book.changes.runs):
            with pytest.raises(LedgerUnreadable, match="victim' in place of a path below the store") as caught:
                read()
            assert caught.value.facts["path"] == ledger.ledger_path(store)


def test_a_change_is_one_of_rows_or_of_a_file(store: Path) -> None:
    changes = [one for run in ledger.read_runs(store) for one in run.changes]
    assert {one.means for one in changes} == {"rows", "file"}
    for one in changes:
        if one.means == "rows":
            assert one.rows is one.detail
            with pytest.raises(TypeError, match="a change of rows"):
                assert one.file
        else:
            assert one.file is one.detail
            with pytest.raises(TypeError, match="a change of a file"):
                assert one.rows


@pytest.mark.parametrize(
    ("value", "shown"),
    [("x" * 78, repr("x" * 78)), ("x" * 79, "'" + "x" * 78 + "…"), (7, "7"), (None, "None")],
)
def test_a_value_that_is_not_valid_is_shown_in_part(value: object, shown: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        values.check_run_id(value)
    assert str(caught.value) == f"it has {shown} in place of the id of a run"


@pytest.mark.parametrize(
    ("number", "most", "is_valid"),
    [(0, 5, True), (5, 5, True), (6, 5, False), (-1, 5, False), (True, 5, True), (1.0, 5, False), ("1", 5, False)],
)
def test_the_bounds_of_a_number(number: object, most: int, is_valid: bool) -> None:
    if is_valid:
        assert values._check_int("a time", number, 0, most) == number
    else:
        with pytest.raises(InvalidValue, match="in place of a time"):
            values._check_int("a time", number, 0, most)


def test_the_last_time_and_the_largest_numbers_are_read(store: Path) -> None:
    lie(
        store,
        f"UPDATE run SET started_at = 0, finished_at = {MAX_TIME} WHERE run_id = '{RUN}'",
        "UPDATE change SET bytes = 9223372036854775807",
    )
    (run,) = [one for one in ledger.read_runs(store) if one.run_id == RUN]
    assert (run.started_at, run.finished_at) == (0, MAX_TIME)
    assert {one.bytes for other in ledger.read_runs(store) for one in other.changes} == {9223372036854775807}


# --- names and paths -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["a", "a/b.txt", "KnowledgeBase/x/raw/…", ".regraft2/x", "a/.regraft/b", "a\\b", "C:x"]
)
def test_a_path_below_the_store(name: str) -> None:
    assert check_path(name, windows=False) == name


@pytest.mark.parametrize(
    ("name", "is_one"), [("x" * 4096, True), ("x" * 4097, False), ("é" * 2048, True), ("é" * 2048 + "x", False)]
)
def test_the_longest_path_is_counted_in_bytes(name: str, is_one: bool) -> None:
    if is_one:
        assert check_path(name) == name
    else:
        with pytest.raises(InvalidValue, match="a path below the store"):
            check_path(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/", "/a", "a//b", "a/.", "a/../b", "a\0b", ".regraft", ".REGRAFT/x"])
def test_no_path_below_the_store(name: str) -> None:
    for windows in (True, False):
        with pytest.raises(InvalidValue, match="a path below the store"):
            check_path(name, windows=windows)


@pytest.mark.parametrize("name", ["a\\b", "C:x", "a/C:x", "a\\..\\b", "\\\\host\\share"])
def test_a_path_on_windows_has_no_backslash_and_no_drive(name: str) -> None:
    with pytest.raises(InvalidValue):
        check_path(name, windows=True)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("2f0b8e9c-7d3a-4c52-9e61-0a1b2c3d4e5f", True),
        ("2F0B8E9C-7D3A-4C52-9E61-0A1B2C3D4E5F", True),
        ("notes", True),
        ("社区", True),
        ("․․", True),
        ("x" * 255, True),
        *((name, False) for name in ("", ".", "..", "a/b", "a\\b", "C:x", "a\0b", "x" * 256, "CON", "con.txt", "COM¹")),
        *((name, False) for name in (".cherry", ".CHERRY", "a.", "a ", "a\nb", "\ud800", "é" * 128)),
    ],
)
def test_the_id_of_a_base_is_the_name_of_a_folder(name: str, is_one: bool) -> None:
    assert is_folder_name(name) is is_one
