"""The index file: its schema by effect, its full text, its vectors, and what verification sees."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
import sqlite_vec
from harness import GOLDEN, NOW_MS, golden
from v1 import PLAIN, Library, Row, base, carried, dicts, file, floats, folder, note, opened, page, sha, vector_of

from regraft.errors import VerificationFailed
from regraft.formats.cherry_v2 import index
from regraft.formats.cherry_v2.index import bulk

PROFILE = GOLDEN / "profile_208_upgraded"
DATABASE = PROFILE / "Data" / "cherrystudio.sqlite"

COLUMNS = {
    "meta": [
        ("id", "INTEGER", 0, 1),
        ("schema_version", "INTEGER", 1, 0),
        ("base_id", "TEXT", 1, 0),
        ("created_at", "INTEGER", 1, 0),
        ("updated_at", "INTEGER", 1, 0),
    ],
    "content": [("content_hash", "TEXT", 0, 1), ("text", "TEXT", 1, 0), ("created_at", "INTEGER", 1, 0)],
    "material": [
        ("material_id", "TEXT", 0, 1),
        ("relative_path", "TEXT", 1, 0),
        ("current_content_hash", "TEXT", 0, 0),
        ("created_at", "INTEGER", 1, 0),
        ("updated_at", "INTEGER", 1, 0),
    ],
    "search_unit": [
        ("unit_id", "TEXT", 0, 1),
        ("material_id", "TEXT", 1, 0),
        ("content_hash", "TEXT", 1, 0),
        ("unit_type", "TEXT", 1, 0),
        ("unit_index", "INTEGER", 1, 0),
        ("title", "TEXT", 0, 0),
        ("char_start", "INTEGER", 1, 0),
        ("char_end", "INTEGER", 1, 0),
        ("locator_json", "TEXT", 0, 0),
        ("created_at", "INTEGER", 1, 0),
    ],
    "search_text": [
        ("search_text_id", "TEXT", 0, 1),
        ("target_type", "TEXT", 1, 0),
        ("target_id", "TEXT", 1, 0),
        ("kind", "TEXT", 1, 0),
        ("text", "TEXT", 1, 0),
        ("embedding_text_hash", "TEXT", 1, 0),
        ("fts_rowid", "INTEGER", 0, 0),
        ("created_at", "INTEGER", 1, 0),
    ],
    "embedding": [
        ("embedding_text_hash", "TEXT", 0, 1),
        ("vector_blob", "BLOB", 1, 0),
        ("created_at", "INTEGER", 1, 0),
    ],
}
INDEXES = {
    "material_content_idx": ("material", ["current_content_hash"], 0),
    "search_unit_material_index_idx": ("search_unit", ["material_id", "unit_type", "unit_index"], 1),
    "search_unit_content_idx": ("search_unit", ["content_hash"], 0),
    "search_unit_material_idx": ("search_unit", ["material_id"], 0),
    "search_text_target_kind_idx": ("search_text", ["target_type", "target_id", "kind"], 1),
    "search_text_embedding_hash_idx": ("search_text", ["embedding_text_hash"], 0),
    "search_text_kind_idx": ("search_text", ["kind"], 0),
    "search_text_fts_rowid_uniq": ("search_text", ["fts_rowid"], 1),
}
FOREIGN_KEYS = {
    "material": {("content", "current_content_hash", "content_hash", "NO ACTION", "NO ACTION")},
    "search_unit": {
        ("material", "material_id", "material_id", "NO ACTION", "CASCADE"),
        ("content", "content_hash", "content_hash", "NO ACTION", "CASCADE"),
    },
}
TRIGGERS = {"search_text_ai", "search_text_ad", "search_text_au"}

TEXTS = [
    "The lighthouse keeper wrote every evening about the weather.",
    "雾钟每隔二十秒敲响一次，整个港口都能听见。",
    "A fog bell 🔔 rings every twenty seconds.",
    "Planting potatoes begins when the soil is warm.",
    "The ferry leaves at noon, weather permitting.",
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    items = [note("n", "N"), page("p", "P"), file("f", "F", name="a.pdf"), folder("d", "D")]
    loaders = ["N", "P", "N", "F", "D"]
    rows = [Row(loader, text) for loader, text in zip(loaders, TEXTS, strict=True)]
    rows += [Row("F", TEXTS[0]), Row("D", "Equal texts share one vector."), Row("P", "Equal texts share one vector.")]
    return carried(tmp_path_factory.mktemp("index"), base("kb", *items), stores={"kb": rows}, ddl=PLAIN)


@contextmanager
def writable(path: Path) -> Iterator[apsw.Connection]:
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA foreign_keys = ON")
        yield db


@pytest.fixture
def copy(library: Library, tmp_path: Path) -> Iterator[apsw.Connection]:
    """Open a copy of the index that a test may write to."""
    path = tmp_path / "copy.sqlite"
    shutil.copyfile(library.index_path("kb"), path)
    with writable(path) as db:
        yield db


@pytest.fixture
def ours(library: Library) -> Iterator[apsw.Connection]:
    with opened(library.index_path("kb")) as db:
        yield db


# --- schema --------------------------------------------------------------------------------------------------------


def columns(db: apsw.Connection, table: str) -> list[tuple[Any, ...]]:
    """Return name, type, NOT NULL and place in the key of every column."""
    return [(name, kind.upper(), nn, key) for _, name, kind, nn, _, key in db.execute(f"PRAGMA table_info('{table}')")]


def foreign_keys(db: apsw.Connection, table: str) -> set[tuple[Any, ...]]:
    rows = db.execute(f"PRAGMA foreign_key_list('{table}')")
    return {(other, own, theirs, update, delete) for _, _, other, own, theirs, update, delete, _ in rows}


def indexes(db: apsw.Connection, table: str) -> dict[str, tuple[str, list[str], int]]:
    """Return the named indexes of a table."""
    found = {}
    for _, name, unique, origin, _ in db.execute(f"PRAGMA index_list('{table}')").fetchall():
        if origin == "c":
            found[name] = (table, [row[2] for row in db.execute(f"PRAGMA index_info('{name}')")], unique)
    return found


def names(db: apsw.Connection, kind: str) -> set[str]:
    rows = db.execute("SELECT name FROM sqlite_master WHERE type = ? AND name NOT LIKE 'sqlite_%'", (kind,))
    return {row[0] for row in rows}


def test_tables_columns_keys_indexes_and_triggers(ours: apsw.Connection) -> None:
    shadows = {f"search_text_fts_{part}" for part in ("data", "idx", "docsize", "config")}
    assert names(ours, "table") == {*COLUMNS, "search_text_fts", *shadows}
    assert {table: columns(ours, table) for table in COLUMNS} == COLUMNS
    assert {table: foreign_keys(ours, table) for table in COLUMNS} == {
        table: FOREIGN_KEYS.get(table, set()) for table in COLUMNS
    }
    assert {name: found for table in COLUMNS for name, found in indexes(ours, table).items()} == INDEXES
    assert names(ours, "index") == set(INDEXES)
    assert names(ours, "trigger") == TRIGGERS
    assert names(ours, "view") == set()


def test_the_full_text_table(ours: apsw.Connection) -> None:
    sql = ours.execute("SELECT sql FROM sqlite_master WHERE name = 'search_text_fts'").get
    plain = "".join(sql.split()).lower()
    for part in ("usingfts5(text,", "content='search_text'", "content_rowid='fts_rowid'", "tokenize='trigram'"):
        assert part in plain


def test_the_file_is_as_any_other(library: Library, ours: apsw.Connection) -> None:
    assert ours.execute("PRAGMA page_size").get == 4096
    assert ours.execute("PRAGMA encoding").get == "UTF-8"
    assert ours.execute("SELECT k, v FROM search_text_fts_config").fetchall() == [("version", 4)]
    path = library.index_path("kb")
    # Bytes 18 and 19 of the header: 1 is a rollback journal, 2 a write-ahead log.
    assert path.read_bytes()[18:20] == b"\x01\x01"
    assert [beside.name for beside in path.parent.iterdir()] == ["index.sqlite"]
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        assert db.execute("PRAGMA journal_mode").get == "delete"


INTEGRITY = [
    ("PRAGMA integrity_check", [("ok",)]),
    ("PRAGMA foreign_key_check", []),
    ("INSERT INTO search_text_fts (search_text_fts) VALUES ('integrity-check')", []),
    ("INSERT INTO search_text_fts (search_text_fts, rank) VALUES ('integrity-check', 1)", []),
]


@pytest.mark.parametrize(("sql", "wanted"), INTEGRITY)
def test_integrity(copy: apsw.Connection, sql: str, wanted: list[Any]) -> None:
    assert copy.execute(sql).fetchall() == wanted


def test_the_integrity_check_of_the_full_text_sees_a_difference(copy: apsw.Connection) -> None:
    copy.execute("DROP TRIGGER search_text_au")
    copy.execute("UPDATE search_text SET text = 'something else' WHERE fts_rowid = 1")
    with pytest.raises(apsw.CorruptError):
        copy.execute(INTEGRITY[3][0])


#: Statements that the layout refuses. {m}, {c}, {u}, {t}: a material, a content, a unit and a body that are there.
UNIT = "INSERT INTO search_unit VALUES ({})".format
TEXT = "INSERT INTO search_text VALUES ({})".format
MATERIAL = "INSERT INTO material VALUES ({})".format
REFUSED = [
    "INSERT INTO meta VALUES (2, 2, 'x', 1, 1)",
    "INSERT INTO meta VALUES (1, 2, 'x', 1, 1)",
    *(f"UPDATE meta SET {name} = NULL" for name, _, needed, _ in COLUMNS["meta"] if needed),
    "UPDATE meta SET id = 3",
    "INSERT INTO content VALUES ('{c}', 'x', 1)",
    *(f"UPDATE content SET {name} = NULL" for name in ("text", "created_at")),
    "DELETE FROM content WHERE content_hash = '{c}'",
    MATERIAL("'new', '', NULL, 1, 1"),
    MATERIAL("'new', '/etc/passwd', NULL, 1, 1"),
    MATERIAL("'new', '/', NULL, 1, 1"),
    MATERIAL("'new', '.cherry', NULL, 1, 1"),
    MATERIAL("'new', '.cherry/index.sqlite', NULL, 1, 1"),
    MATERIAL("'new', '.CHERRY/x', NULL, 1, 1"),
    MATERIAL("'new', NULL, NULL, 1, 1"),
    MATERIAL("'new', 'x', NULL, NULL, 1"),
    MATERIAL("'new', 'x', NULL, 1, NULL"),
    MATERIAL("'new', 'x', 'no such content', 1, 1"),
    MATERIAL("'{m}', 'x', NULL, 1, 1"),
    "INSERT INTO material SELECT 'new', relative_path, NULL, 1, 1 FROM material",
    UNIT("'new', '{m}', '{c}', 'page', 99, NULL, 0, 1, NULL, 1"),
    UNIT("'new', '{m}', '{c}', 'chunk', -1, NULL, 0, 1, NULL, 1"),
    UNIT("'new', '{m}', '{c}', 'chunk', 99, NULL, -1, 1, NULL, 1"),
    UNIT("'new', '{m}', '{c}', 'chunk', 99, NULL, 5, 4, NULL, 1"),
    UNIT("'new', 'no such', '{c}', 'chunk', 99, NULL, 0, 1, NULL, 1"),
    UNIT("'new', '{m}', 'no such', 'chunk', 99, NULL, 0, 1, NULL, 1"),
    UNIT("'new', '{m}', '{c}', 'chunk', 0, NULL, 0, 1, NULL, 1"),
    UNIT("'{u}', '{m}', '{c}', 'chunk', 99, NULL, 0, 1, NULL, 1"),
    *(f"UPDATE search_unit SET {name} = NULL" for name, _, needed, _ in COLUMNS["search_unit"] if needed),
    TEXT("'new', 'material', 'new', 'body', 'x', 'h', NULL, 1"),
    TEXT("'new', 'search_unit', 'new', 'title', 'x', 'h', NULL, 1"),
    TEXT("'new', 'search_unit', '{u}', 'body', 'x', 'h', NULL, 1"),
    TEXT("'{t}', 'search_unit', 'new', 'body', 'x', 'h', NULL, 1"),
    TEXT("'new', 'search_unit', 'new', 'body', 'x', 'h', 1, 1"),
    "UPDATE search_text SET fts_rowid = 1 WHERE fts_rowid = 2",
    *(f"UPDATE search_text SET {name} = NULL" for name, _, needed, _ in COLUMNS["search_text"] if needed),
    "INSERT INTO embedding SELECT * FROM embedding",
    *(f"UPDATE embedding SET {name} = NULL" for name in ("vector_blob", "created_at")),
]
ALLOWED = [
    MATERIAL("'new', 'folder/name', NULL, 1, 1"),
    MATERIAL("'new', '.cherryx', '{c}', 1, 1"),
    UNIT("'new', '{m}', '{c}', 'chunk', 99, NULL, 0, 0, NULL, 1"),
    UNIT("'new', '{m}', '{c}', 'chunk', 99, 'title', 5, 99999, '{{}}', 1"),
    TEXT("'new', 'search_unit', 'no such unit', 'body', '', 'no such hash', NULL, 1"),
    "INSERT INTO embedding VALUES ('nobody', x'00', 1)",
    "DELETE FROM embedding",
    "UPDATE material SET current_content_hash = NULL",
    "UPDATE search_text SET fts_rowid = NULL",
]


def filled(db: apsw.Connection, sql: str) -> str:
    material, content, unit, body = db.execute(
        "SELECT u.material_id, u.content_hash, u.unit_id, t.search_text_id FROM search_unit u"
        " JOIN search_text t ON t.target_id = u.unit_id LIMIT 1"
    ).fetchall()[0]
    return sql.format(m=material, c=content, u=unit, t=body)


@pytest.mark.thorough
@pytest.mark.parametrize("sql", REFUSED)
def test_what_the_layout_refuses(copy: apsw.Connection, sql: str) -> None:
    with pytest.raises(apsw.ConstraintError):
        copy.execute(filled(copy, sql))


@pytest.mark.parametrize("sql", ALLOWED)
def test_what_the_layout_allows(copy: apsw.Connection, sql: str) -> None:
    copy.execute(filled(copy, sql))
    assert copy.changes() > 0


def test_units_go_with_their_material_and_bodies_stay(copy: apsw.Connection) -> None:
    before = copy.execute("SELECT count(*) FROM search_text").get
    material = copy.execute("SELECT material_id FROM material LIMIT 1").get
    copy.execute("DELETE FROM material WHERE material_id = ?", (material,))
    assert copy.execute("SELECT count(*) FROM search_unit WHERE material_id = ?", (material,)).get == 0
    assert copy.execute("SELECT count(*) FROM search_unit").get < before
    assert copy.execute("SELECT count(*) FROM search_text").get == before
    assert copy.execute("PRAGMA foreign_key_check").fetchall() == []


def test_units_go_with_their_content(copy: apsw.Connection) -> None:
    content = copy.execute("SELECT content_hash FROM content LIMIT 1").get
    copy.execute("UPDATE material SET current_content_hash = NULL WHERE current_content_hash = ?", (content,))
    copy.execute("DELETE FROM content WHERE content_hash = ?", (content,))
    assert copy.execute("SELECT count(*) FROM search_unit WHERE content_hash = ?", (content,)).get == 0
    assert copy.execute("SELECT count(*) FROM search_unit").get > 0


# --- triggers ------------------------------------------------------------------------------------------------------


def found_by(db: apsw.Connection, words: str) -> list[int]:
    """Return the numbers under which the full-text index finds a phrase."""
    quoted = f'"{words}"'
    rows = db.execute("SELECT rowid FROM search_text_fts WHERE search_text_fts MATCH ? ORDER BY rowid", (quoted,))
    return [row[0] for row in rows]


def insert_body(db: apsw.Connection, name: str, text: str, number: int | None = None) -> int:
    db.execute(
        "INSERT INTO search_text VALUES (?, 'search_unit', ?, 'body', ?, 'hash', ?, 1)", (name, name, text, number)
    )
    return db.execute("SELECT fts_rowid FROM search_text WHERE search_text_id = ?", (name,)).get


@pytest.mark.parametrize("given", [None, 1000, 0, -5])
def test_an_inserted_body_gets_the_next_number_whatever_was_given(copy: apsw.Connection, given: int | None) -> None:
    highest = copy.execute("SELECT max(fts_rowid) FROM search_text").get
    number = insert_body(copy, "new", "an unmistakable sentence", given)
    # A given number counts for the maximum before it is replaced.
    assert number == max(highest, given or 0) + 1
    assert found_by(copy, "unmistakable sent") == [number]
    second = insert_body(copy, "second", "another sentence")
    assert second == number + 1
    copy.execute(INTEGRITY[3][0])


def test_an_updated_body_is_found_by_its_new_text_only(copy: apsw.Connection) -> None:
    [number] = found_by(copy, "potatoes")
    copy.execute("UPDATE search_text SET text = 'About parsnips.' WHERE fts_rowid = ?", (number,))
    assert found_by(copy, "potatoes") == []
    assert found_by(copy, "parsnips") == [number]
    copy.execute(INTEGRITY[3][0])


def test_a_deleted_body_is_found_no_more(copy: apsw.Connection) -> None:
    [number] = found_by(copy, "potatoes")
    copy.execute("DELETE FROM search_text WHERE fts_rowid = ?", (number,))
    assert found_by(copy, "potatoes") == []
    copy.execute(INTEGRITY[3][0])


def test_the_first_body_of_an_empty_table_is_number_1(copy: apsw.Connection) -> None:
    copy.execute("DELETE FROM search_text")
    assert insert_body(copy, "new", "the first of all") == 1
    assert found_by(copy, "first of") == [1]


# --- search --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["weather", "雾钟每", "🔔 rings", "twenty seconds", "texts share"])
def test_a_hit_joined_on_either_number_is_the_same_row(ours: apsw.Connection, words: str) -> None:
    hits = []
    for key in ("rowid", "fts_rowid"):
        rows = ours.execute(
            f"SELECT t.text, bm25(search_text_fts) FROM search_text_fts f JOIN search_text t ON t.{key} = f.rowid"
            " WHERE search_text_fts MATCH ? ORDER BY bm25(search_text_fts), f.rowid",
            (f'"{words}"',),
        )
        hits.append(rows.fetchall())
    assert hits[0] == hits[1]
    assert sorted(text for text, _ in hits[0]) == sorted(
        body for (body,) in ours.execute("SELECT text FROM search_text") if words.lower() in body.lower()
    )


def test_the_cosine_of_sqlite_vec_finds_the_planted_neighbour(tmp_path: Path) -> None:
    dimensions = 64
    rows = [Row("L", f"text {number}", vector_of(number, dimensions)) for number in range(300)]
    rows.append(Row("L", "nowhere", b"\0" * (4 * dimensions)))
    library = carried(tmp_path, base("kb", note("n", "L")), stores={"kb": rows})
    wanted = struct.unpack(f"<{dimensions}f", vector_of(217, dimensions))
    nearby = floats(*(number * (1.001 if at % 2 else 0.999) for at, number in enumerate(wanted)))
    with opened(library.index_path("kb")) as db:
        db.enable_load_extension(True)
        db.load_extension(sqlite_vec.loadable_path())
        hits = db.execute(
            "SELECT t.text, vec_distance_cosine(e.vector_blob, ?) AS distance FROM search_text t"
            " JOIN embedding e USING (embedding_text_hash) ORDER BY distance IS NULL, distance",
            (nearby,),
        ).fetchall()
    assert hits[0][0] == "text 217"
    assert hits[0][1] < 0.001 < hits[1][1]
    assert hits[-1] == ("nowhere", None)


CHINESE = "雾钟每隔二十秒敲响一次整个港口都能听见灯塔管理员记录天气渡轮中午离开天气允许的话图书馆收藏旧地图和种子目录"
ENGLISH = "The fog bell rings every twenty seconds and the lighthouse keeper writes about the weather in the evening."


def hash_sizes(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list that fills with every statement that sets the size of a full-text hash."""
    seen: list[object] = []

    def trace(_cursor: object, sql: str, bindings: object) -> bool:
        if "'hashsize'" in f"{sql} {bindings}" and sql.startswith("INSERT"):
            seen.append((sql, bindings))
        return True

    def hook(connection: apsw.Connection) -> None:
        connection.exec_trace = trace

    monkeypatch.setattr(apsw, "connection_hooks", [hook])
    return seen


def test_whatever_speeds_a_build_up_leaves_the_configuration_as_stock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chinese and English text are built with hashes of different sizes; the files are as any other."""
    monkeypatch.setattr(bulk, "CJK_MIN_TEXT_BYTES", 1000, raising=False)
    resized = []
    for name, text, words in (("zh", CHINESE, "灯塔管理员"), ("en", ENGLISH, "lighthouse keep")):
        texts = [text[at % 20 :] + text[: at % 30] + str(at) for at in range(100)]
        seen = hash_sizes(monkeypatch)
        (tmp_path / name).mkdir()
        store = {"kb": [Row("L", text) for text in texts]}
        library = carried(tmp_path / name, base("kb", note("n", "L")), stores=store)
        resized.append(bool(seen))
        path = library.index_path("kb")
        with opened(path) as db:
            assert db.execute("SELECT k, v FROM search_text_fts_config").fetchall() == [("version", 4)]
            assert len(found_by(db, words)) == sum(words in text for text in texts) > 50
        with writable(path) as db:
            db.execute(INTEGRITY[3][0])
            number = insert_body(db, "new", "an unmistakable sentence")
            assert found_by(db, "unmistakable sent") == [number]
    assert sorted(resized) == [False, True]


@pytest.mark.thorough
@pytest.mark.parametrize("count", [255, 256, 257, 700])
def test_rows_are_whole_over_the_borders_of_batches(tmp_path: Path, count: int) -> None:
    """Equal texts meet within a batch and across batches; offsets go on."""
    rows = [Row("L", f"text {number % 300} 🎉", vector_of(number)) for number in range(count)]
    library = carried(tmp_path, base("kb", note("n", "L")), stores={"kb": rows}, ddl=PLAIN)
    units = library.units("kb")
    assert [unit.body for unit in units] == [row.body for row in rows]
    assert [unit.vector for unit in units] == [vector_of(number % 300) for number in range(count)]
    assert library.codes()["differing_vector"] == (count > 300)


# --- the application's own -----------------------------------------------------------------------------------------


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[apsw.Connection]:
    """Open a copy of an index that the application has written."""
    [path] = (PROFILE / "Data" / "KnowledgeBase").glob("*/.cherry/index.sqlite")
    target = tmp_path / "theirs.sqlite"
    shutil.copyfile(path, target)
    with writable(target) as db:
        yield db


@golden
def test_columns_keys_and_indexes_are_the_applications(ours: apsw.Connection, theirs: apsw.Connection) -> None:
    for kind in ("table", "index", "trigger", "view"):
        assert names(ours, kind) == names(theirs, kind)
    for look in (columns, foreign_keys, indexes):
        for table in COLUMNS:
            assert look(ours, table) == look(theirs, table)
    for pragma in ("page_size", "encoding", "auto_vacuum", "user_version", "application_id"):
        assert ours.execute(f"PRAGMA {pragma}").get == theirs.execute(f"PRAGMA {pragma}").get
    config = "SELECT k, v FROM search_text_fts_config"
    assert ours.execute(config).fetchall() == theirs.execute(config).fetchall()


def refused(db: apsw.Connection, statements: list[str]) -> list[str]:
    """Return those of the statements that a database refuses; none of them stays done."""
    found = []
    for sql in statements:
        db.execute("SAVEPOINT one")
        try:
            db.execute(filled(db, sql))
        except apsw.ConstraintError:
            found.append(sql)
        db.execute("ROLLBACK TO one")
        db.execute("RELEASE one")
    return found


@golden
def test_the_application_refuses_and_allows_the_same(theirs: apsw.Connection, copy: apsw.Connection) -> None:
    assert refused(theirs, [*REFUSED, *ALLOWED]) == REFUSED
    assert refused(copy, [*REFUSED, *ALLOWED]) == REFUSED


@golden
def test_triggers_have_the_same_effects(copy: apsw.Connection, theirs: apsw.Connection) -> None:
    effects = []
    for db in (copy, theirs):
        db.execute("DELETE FROM search_text")
        seen: list[Any] = [
            insert_body(db, name, f"{name} text", number) for name, number in (("one", None), ("two", 7))
        ]
        seen.append(insert_body(db, "three", "three text", 3))
        db.execute("UPDATE search_text SET text = 'changed' WHERE search_text_id = 'two'")
        db.execute("DELETE FROM search_text WHERE search_text_id = 'three'")
        seen.append(insert_body(db, "four", "four text"))
        seen += [found_by(db, words) for words in ("one text", "two text", "three text", "four text", "changed")]
        effects.append(seen)
    assert effects[0] == effects[1]


BORROWED = ("user_provider", "user_model", "knowledge_base", "knowledge_item")


def described(db: apsw.Connection, table: str) -> list[tuple[Any, ...]]:
    rows = db.execute(f"PRAGMA table_info('{table}')")
    return [(name, kind.upper(), nn, default, key) for _, name, kind, nn, default, key in rows]


@golden
def test_the_catalogs_columns_are_the_applications(library: Library) -> None:
    with opened(library.path / "catalog.sqlite") as ours, opened(DATABASE) as theirs:
        for table in ("knowledge_base", "knowledge_item"):
            assert described(ours, table) == described(theirs, table)
            # Groups are a table of the application's that a library does not have.
            assert foreign_keys(ours, table) == {key for key in foreign_keys(theirs, table) if key[0] != "group"}
            assert indexes(ours, table) == indexes(theirs, table)
        for table in ("user_provider", "user_model"):
            own = {name for name, *_ in described(ours, table)}
            known = described(theirs, table)
            assert own <= {name for name, *_ in known}
            assert {name for name, _, nn, default, _ in known if nn and default is None} <= own


@golden
def test_every_row_of_a_catalog_goes_into_the_applications_tables(tmp_path: Path) -> None:
    items = [
        file("f", "F"),
        page("p", processingStatus="failed"),
        note("n", "N", created_at=-5),
        folder("d", "D", "gone"),
    ]
    odd = base("odd", *({**item, "id": f"{item['id']}2"} for item in items), model=None, threshold="0.5", chunkSize=1)
    library = carried(
        tmp_path,
        base("kb", *items, rerankModel={"id": "embed-3", "provider": "acme"}),
        odd,
        base("no store"),
        stores={"kb": [Row(loader, loader) for loader in "FND"]},
    )
    target = tmp_path / "profile.sqlite"
    shutil.copyfile(DATABASE, target)
    with writable(target) as db:
        for table in reversed(BORROWED):
            db.execute(f"DELETE FROM {table}")
        for table in BORROWED:
            for row in library.catalog(table):
                quoted = ", ".join(f'"{name}"' for name in row)
                places = ", ".join("?" * len(row))
                db.execute(f"INSERT INTO {table} ({quoted}) VALUES ({places})", tuple(row.values()))
            assert db.execute(f"SELECT count(*) FROM {table}").get == len(library.catalog(table))
        assert [row for table in BORROWED for row in db.execute(f"PRAGMA foreign_key_check('{table}')")] == []


# --- verification --------------------------------------------------------------------------------------------------

BASE_ID = "11111111-2222-4333-8444-555555555555"


Built = tuple[Path, index.Tallies, list[index.PartDigest]]


@pytest.fixture
def built(tmp_path: Path) -> Built:
    """Build a small index and return its path and what was put into it."""
    bodies = {"one": ["first 🎉 text", "second text"], "two": ["第三 text", "first 🎉 text"]}
    materials = [
        index.Material(name, lambda _, name=name: f"{name}.md", [(text, vector_of(text)) for text in texts])
        for name, texts in bodies.items()
    ]
    path = tmp_path / "index.sqlite"
    tallies, digests = index.build_index(path, BASE_ID, NOW_MS, materials, lambda *_: None)
    return path, tallies, digests


def test_a_fresh_index_is_what_was_put_into_it(built: Built) -> None:
    path, tallies, digests = built
    assert (tallies.materials, tallies.units, tallies.embeddings, tallies.differing_vectors) == (2, 4, 3, 0)
    index.verify(path, BASE_ID, tallies, digests, 16)


def _with_new_text(db: apsw.Connection) -> None:
    """Change a body together with its hash and its vector's key."""
    db.execute(
        "UPDATE embedding SET embedding_text_hash = ? WHERE embedding_text_hash = ?", (sha("x"), sha("第三 text"))
    )
    db.execute("UPDATE search_text SET text = 'x', embedding_text_hash = ? WHERE text = '第三 text'", (sha("x"),))


def _moved_unit(db: apsw.Connection, start: int, end: int) -> None:
    """Move a unit and give it the id that follows."""
    [(old, material, content, number)] = db.execute(
        "SELECT unit_id, material_id, content_hash, unit_index FROM search_unit"
        " WHERE material_id = 'one' AND unit_index = 1"
    ).fetchall()
    new = sha(f"{material} {content} chunk {number} {start} {end}")
    db.execute(
        "UPDATE search_unit SET unit_id = ?, char_start = ?, char_end = ? WHERE unit_id = ?", (new, start, end, old)
    )
    db.execute("UPDATE search_text SET target_id = ? WHERE target_id = ?", (new, old))


def _swapped_vectors(db: apsw.Connection) -> None:
    rows = db.execute("SELECT embedding_text_hash, vector_blob FROM embedding LIMIT 2").fetchall()
    for (key, _), (_, blob) in zip(rows, reversed(rows), strict=True):
        db.execute("UPDATE embedding SET vector_blob = ? WHERE embedding_text_hash = ?", (blob, key))


def _swapped_numbers(db: apsw.Connection) -> None:
    for number, new in ((1, 99), (2, 1), (99, 2)):
        db.execute("UPDATE search_text SET fts_rowid = ? WHERE fts_rowid = ?", (new, number))


def _with_another_hash(db: apsw.Connection) -> None:
    """Change the hash of a body together with its vector's key."""
    for table in ("search_text", "embedding"):
        db.execute(
            f"UPDATE {table} SET embedding_text_hash = ? WHERE embedding_text_hash = ?", (sha("x"), sha("第三 text"))
        )


#: What is done to a file, and a word of the reason that verification must give.
TAMPERED: dict[str, tuple[str | Callable[[apsw.Connection], None], str]] = {
    "another version": ("UPDATE meta SET schema_version = 1", "identity"),
    "another base": ("UPDATE meta SET base_id = 'other'", "identity"),
    "no identity": ("DELETE FROM meta", "identity"),
    "a body": (
        "UPDATE search_text SET text = 'second texT' WHERE text = 'second text'",
        "not at the offsets of its unit",
    ),
    "a body's hash and its key": (_with_another_hash, "hash"),
    "a body's hash": ("UPDATE search_text SET embedding_text_hash = 'x' WHERE rowid = 1", "vector"),
    "a body with its hash and key": (_with_new_text, "not at the offsets of its unit"),
    "a content": ("UPDATE content SET text = upper(text)", "not at the offsets of its unit"),
    "a content's end": ("UPDATE content SET text = text || ' more'", "not at the offsets of its unit"),
    "a vector": ("UPDATE embedding SET vector_blob = zeroblob(16) WHERE rowid = 1", "differ"),
    "a bit of a vector": (
        "UPDATE embedding SET vector_blob = CAST(substr(vector_blob, 1, 15) || x'55' AS BLOB) WHERE rowid = 2",
        "differ",
    ),
    "two vectors swapped": (_swapped_vectors, "differ"),
    "a short vector": ("UPDATE embedding SET vector_blob = x'00000000' WHERE rowid = 1", "length"),
    "a vector as text": ("UPDATE embedding SET vector_blob = '0123456789abcdef' WHERE rowid = 1", "length"),
    "an offset": ("UPDATE search_unit SET char_end = char_end + 1", "id"),
    "an offset and the id": (lambda db: _moved_unit(db, 14, 25), "not at the offsets of its unit"),
    "a length and the id": (lambda db: _moved_unit(db, 15, 25), "not at the offsets of its unit"),
    "beyond the text": (lambda db: _moved_unit(db, 400, 411), "not at the offsets of its unit"),
    "a unit's index": ("UPDATE search_unit SET unit_index = unit_index + 5", "id"),
    "a unit": ("DELETE FROM search_unit WHERE unit_index = 1 AND material_id = 'two'", "search_unit has"),
    "a body that is gone": ("DELETE FROM search_text WHERE rowid = 4", "search_text has"),
    "a body of another unit": ("UPDATE search_text SET target_id = 'nobody' WHERE rowid = 1", "no unit"),
    "a vector that is gone": ("DELETE FROM embedding WHERE rowid = 1", "embedding has"),
    "one vector too many": ("INSERT INTO embedding VALUES ('x', zeroblob(16), 1)", "embedding has"),
    "a material": ("DELETE FROM material WHERE material_id = 'two'", "material has"),
    "one material too many": ("INSERT INTO material VALUES ('x', 'x', NULL, 1, 1)", "material has"),
    "numbers swapped": (_swapped_numbers, "differs from its full-text number"),
    "a number": ("UPDATE search_text SET fts_rowid = 50 WHERE rowid = 4", "differs from its full-text number"),
    "a content that is gone": ("PRAGMA foreign_keys = OFF; DELETE FROM content", "foreign key"),
    "an empty full text": (
        "INSERT INTO search_text_fts (search_text_fts) VALUES ('delete-all')",
        "search_text_fts_docsize has 0 rows",
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", TAMPERED)
def test_verification_sees(built: Built, name: str) -> None:
    path, tallies, digests = built
    change, reason = TAMPERED[name]
    with writable(path) as db:
        if isinstance(change, str):
            db.execute(change)
        else:
            change(db)
        assert db.total_changes() > 0
    with pytest.raises(VerificationFailed) as caught:
        index.verify(path, BASE_ID, tallies, digests, 16)
    assert reason in str(caught.value)
    assert BASE_ID in str(caught.value)
    assert caught.value.exit_status == 3


def test_verification_compares_with_what_was_put_in(built: Built) -> None:
    path, tallies, digests = built
    other = [part._replace(digest="0" * 64) for part in digests]
    for changed in ({"digests": other}, {"vector_bytes": 20}, {"base_id": "another"}):
        given = {"path": path, "base_id": BASE_ID, "tallies": tallies, "digests": digests, "vector_bytes": 16} | changed
        with pytest.raises(VerificationFailed):
            index.verify(**given)


def test_an_empty_index_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    tallies, digests = index.build_index(path, BASE_ID, NOW_MS, [], lambda *_: None)
    index.verify(path, BASE_ID, tallies, digests, 16)
    with writable(path) as db:
        assert insert_body(db, "new", "the first text") == 1
        assert dicts(db, "SELECT count(*) AS n FROM search_text") == [{"n": 1}]
        db.execute(INTEGRITY[3][0])
