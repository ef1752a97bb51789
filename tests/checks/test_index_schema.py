"""The schema of an index file compared with the layout: what is missing in it, and what it has beside the layout."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import apsw
import older
import pytest
from foreign import COLUMNS, ENDLESS

from checks.audit import collector
from checks.audit.collector import FindingCollector, OutOfTime
from checks.cherry_v2 import schema as compared
from checks.cherry_v2.schema import compare_schema, find_foreign_in_catalog, find_foreign_in_index
from regraft.disk import sqlite
from regraft.formats.cherry_v2.index import schema

LAYOUT = (*schema.TABLES, *schema.INDEXES, schema.FULL_TEXT, *schema.TRIGGERS)
META = "INSERT INTO meta VALUES (1, 2, 'b', 0, 0)"
ALL_TABLES = {*COLUMNS, "search_text_fts"}
#: In place of rules of the layout, from a word of them to where they end.
CHANGES = {
    "unit type": (r" CHECK \(unit_type IN \('chunk'\)\)", ""),
    "body kind": (r" CHECK \(kind IN \('body'\)\)", ""),
    "target type": (r" CHECK \(target_type IN \('search_unit'\)\)", ""),
    "index": (r" CHECK \(unit_index >= 0\)", ""),
    "start": (r" CHECK \(char_start >= 0\)", ""),
    "end": (r" CHECK \(char_end >= char_start\)", ""),
    "one row of meta": (r" CHECK \(id = 1\)", ""),
    "empty path": (r"relative_path <> '' AND ", ""),
    "absolute path": (r" AND relative_path NOT LIKE '/%'", ""),
    "reserved folder": (r"relative_path <> '\.cherry' AND ", ""),
    "in the reserved folder": (r" AND relative_path NOT LIKE '\.cherry/%'", ""),
}


def made(*changes: tuple[str, str]) -> apsw.Connection:
    """Make an empty index of the layout, with patterns in its statements replaced; without what becomes empty."""
    statements = [*LAYOUT[:1], META, *LAYOUT[1:]]
    for old, new in changes:
        replaced = [re.sub(old, lambda _, new=new: new, one, flags=re.DOTALL) for one in statements]
        assert replaced != statements, old
        statements = replaced
    db = apsw.Connection(":memory:")
    for statement in filter(None, statements):
        db.execute(statement)
    return db


def missing(db: apsw.Connection, findings: FindingCollector | None = None) -> tuple[list[str], set[str], bool]:
    """Return what is missing, the tables that can be read, and whether bodies have numbers of their own."""
    with closing(db):
        shape = compare_schema(db, findings or FindingCollector())
    return shape.missing, shape.tables, shape.has_rowid


@pytest.fixture(autouse=True)
def _untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test try its schema, whatever others tried."""
    monkeypatch.setattr(compared, "_RIGHT", set())


# --- what is missing -------------------------------------------------------------------------------------------------


def test_nothing_is_missing_in_the_layout() -> None:
    assert missing(made()) == ([], ALL_TABLES, True)


def version_1(*statements: str) -> apsw.Connection:
    db = made()
    for statement in (*older.TO_VERSION_1, *statements):
        db.execute(statement)
    return db


def test_bodies_of_version_1_have_no_numbers_of_their_own() -> None:
    assert missing(version_1()) == ([], ALL_TABLES, False)


def test_other_columns_and_indexes_of_version_1_are_compared() -> None:
    db = version_1("ALTER TABLE embedding RENAME COLUMN created_at TO made", "DROP INDEX search_unit_material_idx")
    assert missing(db) == (["embedding.created_at", "search_unit_material_idx"], ALL_TABLES - {"embedding"}, False)


def test_an_upgrade_of_version_1_that_has_the_new_index_is_compared_as_version_2() -> None:
    db = version_1(
        "ALTER TABLE search_text ADD COLUMN fts_rowid INTEGER",
        "CREATE UNIQUE INDEX search_text_fts_rowid_uniq ON search_text (fts_rowid)",
    )
    # The numbers in its full-text index are those of rows.
    assert missing(db) == (["search_text_ai"], ALL_TABLES, True)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ((r"(CREATE TABLE|INSERT INTO) meta.*", ""), ["meta"]),
        ((r"CREATE TABLE embedding.*", ""), ["embedding"]),
        ((r"\bschema_version INTEGER", "version INTEGER"), ["meta.schema_version"]),
        ((r"locator_json TEXT", "locator_json BLOB"), ["search_unit.locator_json"]),
        ((r"title TEXT", "title TEXT NOT NULL"), ["search_unit.title"]),
        ((r"vector_blob BLOB NOT NULL", "vector_blob BLOB"), ["embedding.vector_blob"]),
        ((r"(?<=BLOB NOT NULL,\n         )created_at", "rowid TEXT, created_at"), ["embedding.rowid"]),
        ((r"(?<=BLOB NOT NULL,\n         )created_at", "_ROWID_ TEXT, created_at"), ["embedding._ROWID_"]),
        (
            (r"(?<=BLOB NOT NULL,\n         )created_at INTEGER NOT NULL", "created_at INTEGER NOT NULL AS (1)"),
            ["embedding.created_at"],
        ),
        (
            (
                r"(?<=BLOB NOT NULL,\n         )created_at INTEGER NOT NULL\)",
                "created_at INTEGER NOT NULL) WITHOUT ROWID",
            ),
            ["embedding (numbers of rows)"],
        ),
    ],
)
def test_a_table_or_column_that_is_missing_or_different(change: tuple[str, str], expected: list[str]) -> None:
    found, tables, has_rowid = missing(made(change))
    assert found[: len(expected)] == expected
    assert (tables, has_rowid) == (ALL_TABLES - {expected[0].partition(".")[0].partition(" ")[0]}, True)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # The key may refuse NULL, and may be named without the column that it is.
        ((r"material_id TEXT PRIMARY KEY", "material_id TEXT PRIMARY KEY NOT NULL"), []),
        ((r"content \(content_hash\)", "content"), []),
        ((r"unit_type TEXT", "unit_type text"), []),
        ((r"content \(content_hash\) ON DELETE CASCADE", "content (text)"), ["search_unit.content_hash → content"]),
        (
            (r"content \(content_hash\) ON DELETE CASCADE", "content (text) ON DELETE CASCADE"),
            ["search_unit.content_hash → content"],
        ),
        (
            (r"material \(material_id\) ON DELETE CASCADE", "material (material_id)"),
            ["search_unit.material_id → material"],
        ),
        ((r" REFERENCES content \(content_hash\),", ","), ["material.current_content_hash → content"]),
        ((r"relative_path TEXT NOT NULL UNIQUE", "relative_path TEXT NOT NULL"), ["material.relative_path (unique)"]),
    ],
)
def test_a_key_that_is_missing_or_different(change: tuple[str, str], expected: list[str]) -> None:
    db = made(change)
    # An index that is not unique is no key.
    db.execute("""CREATE INDEX "it's" ON material (relative_path)""")
    assert missing(db) == (expected, ALL_TABLES, True)


@pytest.mark.parametrize("name", [re.search(r"INDEX (\w+)", one)[1] for one in schema.INDEXES])
def test_an_index_that_is_missing(name: str) -> None:
    assert missing(made((rf"CREATE \w* ?INDEX {name} .*", ""))) == ([name], ALL_TABLES, True)


@pytest.mark.parametrize("name", ["search_text_fts_rowid_uniq", "search_unit_content_idx"])
@pytest.mark.parametrize("change", ["unique", "columns", "in part"])
def test_an_index_that_is_different(name: str, change: str) -> None:
    (statement,) = (one for one in schema.INDEXES if name in one)
    other = {
        "unique": statement.replace("UNIQUE ", "")
        if "UNIQUE" in statement
        else statement.replace("CREATE", "CREATE UNIQUE"),
        "columns": statement.replace(")", ", created_at)"),
        "in part": f"{statement} WHERE created_at > 9",
    }[change]
    assert missing(made((re.escape(statement), other))) == ([name], ALL_TABLES, True)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("unit type", "search_unit.unit_type"),
        ("body kind", "search_text.kind"),
        ("target type", "search_text.target_type"),
        ("index", "search_unit.unit_index"),
        ("start", "search_unit.char_start"),
        ("end", "search_unit.char_end"),
        ("one row of meta", "meta.id"),
        ("empty path", "material.relative_path"),
        ("absolute path", "material.relative_path"),
        ("reserved folder", "material.relative_path"),
        ("in the reserved folder", "material.relative_path"),
    ],
)
def test_a_rule_of_rows_that_is_missing(change: str, expected: str) -> None:
    assert missing(made(CHANGES[change])) == ([expected], ALL_TABLES, True)


@pytest.mark.parametrize("name", ["search_text_ai", "search_text_ad", "search_text_au"])
def test_a_trigger_that_is_missing(name: str) -> None:
    assert missing(made((rf"CREATE TRIGGER {name} .*", ""))) == ([name], ALL_TABLES, True)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ((r"(?<=AFTER INSERT ON search_text\n       BEGIN).*END", " SELECT 1; END"), "search_text_ai"),
        ((r"1 \+ ifnull\(\(SELECT max\(fts_rowid\) FROM search_text\), 0\)", "NULL"), "search_text_ai"),
        ((r"SELECT fts_rowid, new\.text FROM", "SELECT 1 + fts_rowid, new.text FROM"), "search_text_ai"),
        ((r"(?<=AFTER DELETE ON search_text\n       BEGIN).*END", " SELECT 1; END"), "search_text_ad"),
        ((r"(?<=AFTER DELETE ON search_text\n       BEGIN).*END", " SELECT RAISE(FAIL, 'no'); END"), "search_text_ad"),
        ((r"(?<=UPDATE OF text ON search_text\n       BEGIN).*END", " SELECT 1; END"), "search_text_au"),
        ((r"\('delete', old\.fts_rowid, old\.text\);\n +INSERT", "('delete', 99, 'xyz'); INSERT"), "search_text_au"),
        # The rest of them keep the numbers of bodies, but a rebuild would lose them.
        ((r"content_rowid = 'fts_rowid'", "content_rowid = 'rowid'"), "search_text_fts"),
    ],
)
def test_a_trigger_that_keeps_the_full_text_wrong(change: tuple[str, str], expected: str) -> None:
    assert missing(made(change)) == ([expected], ALL_TABLES, True)


def test_a_full_text_that_is_an_ordinary_table() -> None:
    found = missing(made((r"CREATE VIRTUAL TABLE.*", "CREATE TABLE search_text_fts (text, rank)")))
    assert found == (["search_text_fts"], set(COLUMNS), True)


def test_a_definition_that_rolls_the_trial_back() -> None:
    """The rest is tried nevertheless."""
    change = (
        r"search_text_ai AFTER INSERT ON search_text\b.*",
        "search_text_ai BEFORE INSERT ON meta BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
    )
    assert missing(made(change, CHANGES["start"])) == (["search_unit.char_start", "search_text_ai"], ALL_TABLES, True)


def test_a_definition_that_cannot_be_run() -> None:
    """It is named alone: without it, the others mean nothing."""
    db = made()
    db.execute("PRAGMA writable_schema = ON")
    db.execute("UPDATE sqlite_schema SET sql = 'CREATE TRIGGER search_text_ad AFTER' WHERE name = 'search_text_ad'")
    assert missing(db)[0] == ["search_text_ad"]


ENDLESS_TRIGGERS = {
    "a rule": (
        r"search_text_ai AFTER INSERT ON search_text\b.*",
        f"search_text_ai BEFORE INSERT ON meta BEGIN INSERT INTO content {ENDLESS} n, n, n FROM c; END",
        ["meta.id"],
    ),
    "a trigger": (
        r"(?<=AFTER INSERT ON search_text\n       BEGIN).*END",
        f" INSERT INTO content {ENDLESS} n, n, n FROM c; END",
        ["search_text_ai"],
    ),
}


@pytest.mark.parametrize("name", ENDLESS_TRIGGERS)
def test_a_definition_that_never_ends(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, expected = ENDLESS_TRIGGERS[name]
    monkeypatch.setattr(collector, "_LEAST_INSTRUCTIONS", 400_000)
    assert missing(made((old, new)))[0][: len(expected)] == expected
    with pytest.raises(OutOfTime):
        missing(made((old, new)), FindingCollector(max_duration=0))


@pytest.mark.parametrize("at", ["CREATE TABLE content", "INSERT INTO search_unit", "INSERT INTO search_text_fts"])
def test_a_full_disk_says_nothing_about_the_schema(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = sqlite.open_writable

    @contextmanager
    def open_full(*words: Any, **more: Any) -> Iterator[apsw.Connection]:
        with opened(*words, **more) as db:
            db.exec_trace = fail
            yield db

    def fail(_: apsw.Cursor, sql: str, __: object) -> bool:
        if sql.startswith(at):
            raise apsw.FullError("database or disk is full")
        return True

    monkeypatch.setattr(sqlite, "open_writable", open_full)
    with pytest.raises(apsw.FullError):
        missing(made())


def test_a_schema_that_is_right_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bool] = []
    real = compared._try_statements

    def count(statements: Any, shape: Any, findings: Any) -> Iterator[str]:
        tried.append(shape.has_rowid)
        return real(statements, shape, findings)

    monkeypatch.setattr(compared, "_try_statements", count)
    monkeypatch.setattr(compared, "_MOST_RIGHT", 1)
    for _ in range(2):
        assert missing(made(CHANGES["start"]))[0] == ["search_unit.char_start"]
    for _ in range(2):
        assert missing(made())[0] == []
    # Another one is not remembered, but takes the place of none.
    for _ in range(2):
        assert missing(version_1())[0] == []
    assert missing(made())[0] == []
    assert tried == [True, True, True, False, False]


# --- what is there beside it -----------------------------------------------------------------------------------------


def foreign(*statements: str, changes: tuple[tuple[str, str], ...] = ()) -> list[tuple[Any, ...]]:
    """Return finding, name, noun, message and remedy of each object beside the layout."""
    with closing(made(*changes)) as db:
        for statement in statements:
            db.execute(statement)
        return [
            (one.finding.removeprefix("schema.foreign-"), one.name, one.noun, one.message, one.removal)
            for one in find_foreign_in_index(db)
        ]


def test_nothing_is_foreign_in_the_layout() -> None:
    assert foreign() == []


DELETE = next(one for one in schema.TRIGGERS if "search_text_ad" in one)
MORE = "{n} not part of the application's layout"


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (
            'CREATE TRIGGER "a ""b""" AFTER DELETE ON embedding BEGIN SELECT 1; END',
            ("trigger", 'a "b"', "trigger", MORE, ('DROP TRIGGER "a ""b"""',)),
        ),
        ("CREATE VIEW more AS SELECT 1", ("view", "more", "view", MORE, ('DROP VIEW "more"',))),
        ("CREATE INDEX more ON embedding (created_at)", ("index", "more", "index", MORE, ())),
        ("CREATE INDEX more ON Material (created_at)", ("index", "more", "index", MORE, ())),
        ("ALTER TABLE meta ADD COLUMN more TEXT", ("column", "meta.more", "column", MORE, ())),
        (
            "ALTER TABLE meta ADD COLUMN more AS (1)",
            ("column", "meta.more", "column", "{n} computed from other columns", ()),
        ),
        (
            "CREATE TABLE child (a TEXT REFERENCES embedding ON DELETE CASCADE)",
            ("column", "child (a) → embedding", "key", "{n} cascading changes of the layout's tables", ()),
        ),
    ],
)
def test_an_object_beside_the_layout(statement: str, expected: tuple[Any, ...]) -> None:
    assert foreign(statement) == [expected]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE more (a TEXT, b AS (1))",
        "CREATE VIRTUAL TABLE more USING fts5 (text)",
        "CREATE TABLE child (a TEXT REFERENCES embedding)",
        "CREATE INDEX more ON search_text_fts_data (block)",
    ],
)
def test_tables_of_another_program_are_its_own(statement: str) -> None:
    found = foreign(statement)
    assert [one[0] for one in found if one[0] != "text-index"] == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            ((r"(?<=AFTER DELETE ON search_text\n       BEGIN)", " DELETE FROM embedding;"),),
            (
                "trigger",
                "search_text_ad",
                "trigger",
                "{n} of the layout with a different definition",
                ('DROP TRIGGER "search_text_ad"', DELETE),
            ),
        ),
        (
            (
                (
                    r"search_text_ad AFTER DELETE ON search_text\b.*",
                    "search_text_ad AFTER DELETE ON meta BEGIN SELECT 1; END",
                ),
            ),
            ("trigger", "search_text_ad", "trigger", MORE, ('DROP TRIGGER "search_text_ad"',)),
        ),
        (
            ((r"(?<=BLOB NOT NULL,\n         )created_at", "x TEXT UNIQUE ON CONFLICT REPLACE, created_at"),),
            ("column", "embedding.x", "column", MORE, ()),
        ),
        (
            ((r"vector_blob BLOB NOT NULL", "vector_blob BLOB NOT NULL ON CONFLICT REPLACE"),),
            ("column", "embedding", "table", "{n} with a conflict clause", ()),
        ),
        (
            ((r"vector_blob BLOB NOT NULL", "vector_blob BLOB NOT NULL CHECK (hex(vector_blob) <> 'a')"),),
            ("column", "embedding", "table", "{n} with a constraint that calls hex", ()),
        ),
        (
            ((r"title TEXT", "title TEXT REFERENCES embedding ON DELETE CASCADE"),),
            ("column", "search_unit (title) → embedding", "key", "{n} cascading changes", ()),
        ),
        (
            ((r"CREATE TABLE embedding.*", "CREATE VIRTUAL TABLE embedding USING fts5 (embedding_text_hash, more)"),),
            ("column", "embedding", "table", "{n} replaced by a virtual table", ()),
        ),
        (
            ((r"CREATE VIRTUAL TABLE.*", "CREATE VIRTUAL TABLE search_text_fts USING dbstat"),),
            ("column", "search_text_fts", "table", "{n} replaced by a virtual table of another kind", ()),
        ),
        (
            (
                (r"CREATE TABLE embedding.*", ""),
                (r"CREATE INDEX search_text_embedding.*", "CREATE VIEW Embedding AS SELECT 1"),
            ),
            ("view", "Embedding", "view", "{n} instead of a table", ()),
        ),
    ],
)
def test_an_object_in_place_of_one_of_the_layout(
    changes: tuple[tuple[str, str], ...], expected: tuple[Any, ...]
) -> None:
    assert foreign(changes=changes)[0] == expected


def test_every_version_up_to_this_one_is_judged_and_no_later_one() -> None:
    more = "ALTER TABLE content ADD COLUMN more TEXT"
    assert len(foreign(more)) == len(foreign(more, "DROP TABLE meta")) == 1
    assert len(foreign(more, "UPDATE meta SET schema_version = 'x'")) == 1
    assert foreign(more, "UPDATE meta SET schema_version = 3") == []


def test_foreign_objects_of_a_catalog() -> None:
    with closing(apsw.Connection(":memory:")) as db:
        for statement in (
            "CREATE TABLE knowledge_base (id)",
            "CREATE TABLE message (id)",
            "CREATE VIRTUAL TABLE Knowledge_Item USING fts5 (id)",
            "CREATE VIRTUAL TABLE message_fts USING fts5 (id)",
            "CREATE VIEW user_model AS SELECT 1",
            "CREATE VIEW other AS SELECT 1",
            "CREATE TRIGGER own AFTER INSERT ON Knowledge_Base BEGIN SELECT 1; END",
            "CREATE TRIGGER another AFTER INSERT ON message BEGIN SELECT 1; END",
        ):
            db.execute(statement)
        found = [(one.finding, one.name, one.removal) for one in find_foreign_in_catalog(db)]
    assert found == [
        ("schema.foreign-trigger", "own", ('DROP TRIGGER "own"',)),
        ("schema.foreign-view", "user_model", ()),
        ("schema.foreign-column", "Knowledge_Item", ()),
    ]
