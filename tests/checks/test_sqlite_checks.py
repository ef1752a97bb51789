"""Checks of any SQLite file: foreign objects, what definitions would do, words of a full-text index, and opening."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from foreign import ENDLESS

from checks.audit import sqlite_checks
from checks.audit.collector import FindingCollector
from checks.audit.sqlite_checks import (
    ForeignObject,
    TriggerTrial,
    add_foreign_objects,
    deny_other_files,
    find_called_functions,
    find_foreign_on_tables,
    find_foreign_views,
    find_full_text_indexes,
    find_open_problem,
    has_extra_effects,
    words_agree,
)

TRIAL = TriggerTrial(
    statements=(
        "CREATE TABLE texts (id TEXT, text TEXT, number INTEGER)",
        "CREATE TABLE words (text)",
        "CREATE TABLE more (x)",
    ),
    firing={
        "texts": ("INSERT INTO texts (id) VALUES ('t')", "UPDATE texts SET text = 't'", "DELETE FROM texts"),
        "more": ("DELETE FROM more",),
    },
    written=frozenset({("texts", "words")}),
    updated=frozenset({("texts", "texts", "number")}),
)


@pytest.fixture(autouse=True)
def _untried() -> None:
    """Let each test try its definitions, whatever others tried."""
    sqlite_checks._try_trigger.cache_clear()
    sqlite_checks._trace_called_functions.cache_clear()


@pytest.fixture
def db() -> Iterator[apsw.Connection]:
    with closing(apsw.Connection(":memory:")) as made:
        yield made


# --- what definitions would do ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "INSERT INTO words (text) VALUES (new.text)",
        "INSERT INTO Words SELECT ifnull(new.text, coalesce(new.id, 1)) FROM TEXTS",
        "INSERT INTO words SELECT max(number) FROM texts",
        "INSERT INTO words SELECT text FROM words",
        "UPDATE texts SET number = 1 WHERE id = new.id",
        "SELECT 1",
    ],
)
@pytest.mark.parametrize("when", ["AFTER INSERT", "BEFORE UPDATE"])
def test_what_triggers_of_the_layout_do_is_no_extra_effect(body: str, when: str) -> None:
    sql = f"CREATE TRIGGER Own {when} ON Texts BEGIN {body}; END"
    assert not has_extra_effects("own", "Texts", sql, TRIAL)


@pytest.mark.parametrize(
    "body",
    [
        "DELETE FROM words",
        "DELETE FROM texts",
        "INSERT INTO texts (id) VALUES (1)",
        "INSERT INTO more VALUES (1)",
        "INSERT INTO words SELECT x FROM more",
        "INSERT INTO words VALUES (hex(old.text))",
        "UPDATE texts SET text = 'x'",
        "UPDATE words SET text = 'x'",
        "UPDATE more SET x = 'x'",
        "SELECT Raise(IGNORE)",
        "INSERT INTO none VALUES (1)",
        f"INSERT INTO words {ENDLESS} n FROM c",
    ],
)
def test_what_else_a_trigger_does_is_an_extra_effect(body: str) -> None:
    assert has_extra_effects("own", "Texts", f"CREATE TRIGGER own AFTER UPDATE ON Texts BEGIN {body}; END", TRIAL)


def test_only_the_trigger_itself_counts() -> None:
    """What else the statements do that fire it is not of its doing."""
    own = "CREATE TRIGGER own AFTER DELETE ON more BEGIN SELECT 1; END"
    trial = TriggerTrial(
        statements=(*TRIAL.statements, "CREATE TRIGGER other AFTER DELETE ON more BEGIN DELETE FROM texts; END"),
        firing={"more": ("DELETE FROM more",)},
        written=frozenset(),
    )
    assert not has_extra_effects("own", "more", own, trial)
    assert has_extra_effects("other", "more", own, trial)


@pytest.mark.parametrize(
    "sql", ["CREATE TRIGGER own", f"CREATE TRIGGER own AFTER DELETE ON texts BEGIN{' ' * (1 << 20)}SELECT 1; END"]
)
def test_a_trigger_that_cannot_be_compiled_is_not_one_of_the_layout(sql: str) -> None:
    assert has_extra_effects("own", "texts", sql, TRIAL)


def test_long_definitions_are_judged_as_short_ones_are() -> None:
    space = " " * 5000
    for body, expected in (("SELECT 1", False), ("DELETE FROM words", True)):
        sql = f"CREATE TRIGGER own AFTER DELETE ON texts BEGIN {space}{body}; END"
        for _ in range(2):
            assert has_extra_effects("own", "texts", sql, TRIAL) is expected
    assert find_called_functions(f"CREATE TABLE t (a CHECK (hex(a) <> 'x'){space})") == {"hex"}
    assert len(space) > sqlite_checks._REMEMBERED


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("CREATE TABLE t (a TEXT, b AS (1) STORED)", set()),
        ("CREATE TABLE t (a CHECK (HEX(a) <> upper(a)))", {"hex", "upper"}),
        ("CREATE TABLE t (a CHECK (a LIKE 'x'), b CHECK (length(trim(b)) > 0))", {"like", "length", "trim"}),
        ("CREATE TABLE t (a CHECK (none(a)))", set()),
        ("not a statement", set()),
        ("CREATE TABLE t (a)\0", set()),
    ],
)
def test_functions_that_the_rules_of_a_table_call(statement: str, expected: set[str]) -> None:
    assert find_called_functions(statement) == expected


def test_no_definition_opens_another_file(tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    assert find_called_functions(f"ATTACH '{other}' AS other") == set()
    assert has_extra_effects("own", "texts", f"ATTACH '{other}' AS other", TRIAL)
    with closing(apsw.Connection(":memory:")) as db:
        db.authorizer = deny_other_files
        db.execute("CREATE TABLE t (a)")
        for statement in (f"ATTACH '{other}' AS other", "DETACH main"):
            with pytest.raises((apsw.AuthError, apsw.SQLError), match=r"not authorized|prohibited"):
                db.execute(statement)
    assert list(tmp_path.iterdir()) == []


# --- foreign objects -------------------------------------------------------------------------------------------------


def test_views_are_foreign_and_one_in_place_of_a_table_stays(db: apsw.Connection) -> None:
    for name in ("Texts", 'a "b"'):
        db.execute(f"CREATE VIEW {apsw.format_sql_value(name).replace(chr(39), '`')} AS SELECT 1")
    found = [(one.finding, one.name, one.message, one.noun, one.removal) for one in find_foreign_views(db, ["texts"])]
    assert found == [
        ("schema.foreign-view", "Texts", "{n} instead of a table", "view", ()),
        ("schema.foreign-view", 'a "b"', "{n} not part of the application's layout", "view", ('DROP VIEW "a ""b"""',)),
    ]


def test_foreign_objects_on_tables_of_another_program(db: apsw.Connection) -> None:
    for statement in (
        "CREATE TABLE Texts (id)",
        "CREATE TABLE other (id)",
        "CREATE VIRTUAL TABLE items USING fts5 (id)",
        "CREATE VIRTUAL TABLE more USING fts5 (id)",
        "CREATE VIEW bases AS SELECT 1",
        "CREATE VIEW some AS SELECT 1",
        "CREATE TRIGGER Known AFTER INSERT ON Texts BEGIN SELECT 1; END",
        "CREATE TRIGGER mine AFTER INSERT ON Texts BEGIN SELECT 1; END",
        "CREATE TRIGGER elsewhere AFTER INSERT ON other BEGIN SELECT 1; END",
    ):
        db.execute(statement)
    found = find_foreign_on_tables(db, ("texts", "Items", "Bases"), ("known",))
    assert [(one.finding, one.name, one.message, one.noun, one.removal) for one in found] == [
        (
            "schema.foreign-trigger",
            "mine",
            "{n} not part of the layout, on a table that would be changed",
            "trigger",
            ('DROP TRIGGER "mine"',),
        ),
        ("schema.foreign-view", "bases", "{n} instead of a table", "view", ()),
        ("schema.foreign-column", "items", "{n} replaced by a virtual table", "table", ()),
    ]


def test_an_index_on_the_tables_of_a_full_text_index(db: apsw.Connection) -> None:
    db.execute("CREATE VIRTUAL TABLE words USING fts5 (text)")
    assert list(find_full_text_indexes(db)) == []
    db.execute("CREATE INDEX more ON words_data (block)")
    [one] = find_full_text_indexes(db)
    assert (one.finding, one.name, one.noun, one.removal) == (
        "schema.foreign-text-index",
        "more",
        "index",
        ('DROP INDEX "more"',),
    )


def test_what_cannot_be_dropped_is_beyond_repair() -> None:
    findings = FindingCollector()
    one = ForeignObject(
        finding="schema.foreign-view", name="v", message="{n} more", noun="view", removal=("DROP VIEW v",)
    )
    other = ForeignObject(finding="schema.foreign-view", name="w", message="{n} there", noun="view")
    add_foreign_objects([one, other], findings, "b")
    assert [(one.base, one.message, one.samples, one.is_beyond_repair) for one in findings.to_findings()] == [
        ("b", "1 view more", ("v",), False),
        ("b", "1 view there", ("w",), True),
    ]


# --- full text -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "agree"),
    [
        ("SELECT 1", True),
        ("UPDATE texts SET text = 'fog bell' WHERE id = 1", False),
        ("DELETE FROM texts WHERE id = 2", False),
        ("INSERT INTO words (rowid, text) VALUES (9, 'more')", False),
        ("DELETE FROM words_data WHERE id > 10", False),
    ],
)
def test_whether_a_full_text_index_holds_the_words_of_its_texts(statement: str, *, agree: bool, tmp_path: Path) -> None:
    path = tmp_path / "texts.sqlite"
    with closing(apsw.Connection(str(path))) as made:
        made.execute("CREATE TABLE texts (id INTEGER PRIMARY KEY, text)")
        made.execute("INSERT INTO texts VALUES (1, 'lighthouse'), (2, 'harbor')")
        made.execute("CREATE VIRTUAL TABLE words USING fts5 (text, content = 'texts', content_rowid = 'id')")
        made.execute("INSERT INTO words (words) VALUES ('rebuild')")
        made.execute(statement)
    before = path.read_bytes()
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        db.execute("PRAGMA query_only = 1")
        for _ in range(2):
            assert words_agree(db, "words", "copied", "SELECT id AS number, text FROM main.texts", "text") is agree
            # What it made is gone, and nothing can be made any more.
            assert db.execute("SELECT name FROM temp.sqlite_schema").get is None
            with pytest.raises(apsw.ReadOnlyError):
                db.execute("CREATE TEMP TABLE more (x)")
    assert path.read_bytes() == before


def test_damage_of_the_file_is_not_taken_for_other_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: apsw.Cursor, sql: str, __: object) -> bool:
        if "integrity-check" in sql:
            error = apsw.CorruptError("database disk image is malformed")
            error.extendedresult = apsw.SQLITE_CORRUPT
            raise error
        return True

    with closing(apsw.Connection(str(tmp_path / "x"))) as db:
        db.execute("CREATE TABLE texts (id INTEGER PRIMARY KEY, text)")
        db.execute("CREATE VIRTUAL TABLE words USING fts5 (text, content = 'texts', content_rowid = 'id')")
        db.exec_trace = fail
        with pytest.raises(apsw.CorruptError, match="malformed"):
            words_agree(db, "words", "copied", "SELECT id AS number, text FROM main.texts", "text")


# --- opening ---------------------------------------------------------------------------------------------------------


def test_why_a_file_cannot_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "f.sqlite"
    assert find_open_problem(path) == find_open_problem(tmp_path) == "it is not a file"
    path.write_bytes(b"")
    assert find_open_problem(path) == "it is empty"
    path.write_bytes(b"SQLite format 4\0")
    assert find_open_problem(path) == "it is not a SQLite file"
    path.unlink()
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA page_size = 1024")
        db.execute("CREATE TABLE t (a)")
        db.execute("INSERT INTO t VALUES (zeroblob(4000))")
    whole = path.read_bytes()
    assert find_open_problem(path) is None
    path.write_bytes(whole[:-2])
    assert find_open_problem(path) == "it lacks 2 bytes at its end"
    path.write_bytes(whole[:-1030])
    assert find_open_problem(path) == "it lacks 1,030 bytes at its end"
    # A log may hold the pages.
    path.with_name("f.sqlite-wal").write_bytes(b"\x37\x7f\x06\x82" + bytes(28))
    assert find_open_problem(path) is None
