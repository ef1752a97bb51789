"""The rows of an index file that break a rule: exactly these are found, with their numbers, and nothing else.

Rows are damaged and looked up with plain SQLite.
"""

from __future__ import annotations

import errno
import hashlib
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import apsw
import pytest
from harness import NOW_MS
from index_rows import BASE, put, vectors, without_index
from patience import NEVER_SECONDS
from planted_v2 import leave_journal, run_sql

from checks.audit.collector import FindingCollector, Level
from checks.cherry_v2 import detect, index_file
from checks.cherry_v2.index_file import ExpectedIndex, IndexFacts, audit_index, rule_out_findings
from checks.cherry_v2.schema import SchemaShape, compare_schema
from regraft.disk import sqlite
from regraft.formats import large_text
from regraft.formats.cherry_v2.index import IndexStore

#: Units by row number, from 1 on. The two of the same text share a vector: there are seven.
BODIES = {
    "a": ("first body", "second body", "third body"),
    "b": ("🎉 fête", "第二段 text"),
    "c": ("echo", "echo", "end"),
}
#: The table that the rows of a finding are in, and the column that names them.
ROWS = {
    "body": ("search_text", "search_text_id"),
    "unit": ("search_unit", "unit_id"),
    "content": ("content", "content_hash"),
    "material": ("material", "material_id"),
    "embedding": ("embedding", "embedding_text_hash"),
    "fts": ("search_text", "search_text_id"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "index.sqlite"
    with IndexStore(path, BASE, create=True) as store:
        for material, bodies in BODIES.items():
            put(store, material, *bodies)
    return path


@pytest.fixture
def index(whole: Path, tmp_path: Path) -> Path:
    return shutil.copy(whole, tmp_path / "index.sqlite")


#: Findings about texts, ids and offsets, which the quick pass over all rows rules out.
IN_TEXTS = {"body.id", "body.hash", "unit.id", "content.hash", "unit.offsets", "unit.missing"}


def ruled_out(path: Path, separator: str | None = "") -> frozenset[str]:
    with sqlite.open_readonly(path) as db:
        shape = compare_schema(db, FindingCollector())
        return rule_out_findings(db, shape, separator, lambda: None)


class Found(NamedTuple):
    """A finding; of its rows only some may be named, and ``samples`` None are the keys of the first rows."""

    name: str
    message: str
    rows: tuple[int, ...] | None = None
    samples: tuple[str, ...] | None = None
    is_beyond_repair: bool = False


def audited(path: Path, level: Level = Level.DEEP, **expected: Any) -> tuple[IndexFacts, list[Found]]:
    """Audit a file; samples that are the keys of the first rows are None."""
    stated = {"base": "b", "folder": BASE, "has_model": True, "separator": "", "dimensions": 4}
    findings = FindingCollector(level)
    facts = audit_index(path, ExpectedIndex(**stated | expected), findings)
    found = []
    for one in findings.to_findings():
        assert one.base == "b"
        rows = None if one.rows is None else tuple(one.rows)
        is_keyed = rows is not None and one.samples == keys_of(path, one.name, rows[:3])
        found.append(Found(one.name, one.message, rows, None if is_keyed else one.samples, one.is_beyond_repair))
    return facts, found


def keys_of(path: Path, finding: str, rows: tuple[int, ...]) -> tuple[str, ...]:
    table, column = ROWS[finding.partition(".")[0]]
    with closing(sqlite3.connect(path)) as db:
        keys = dict(db.execute(f"SELECT rowid, CAST({column} AS BLOB) FROM {table}"))
    return tuple(keys.get(row, b"").decode("utf-8", "replace") for row in rows)


def set_unit(change: str, row: int) -> str:
    return f"UPDATE search_unit SET {change} WHERE rowid = {row}"


def set_body(change: str, row: int) -> str:
    return f"UPDATE search_text SET {change} WHERE rowid = {row}"


def set_vector(value: str, rows: str) -> str:
    return f"UPDATE embedding SET vector_blob = {value} WHERE rowid {rows}"


def delete(table: str, rows: str) -> str:
    return f"DELETE FROM {table} WHERE {rows}"


def missing(*parts: str, count: int = 1) -> Found:
    noun = "part" if count == 1 else "parts"
    return Found("schema.missing", f"missing or different: {count} {noun} of the layout", None, parts)


NOT_ITS_HASH = "1 body whose hash does not match its text"
WRONG_UNIT_ID = "1 unit with a wrong id (not the hash of its fields)"
MISPLACED = "1 unit whose body is not at its offsets in the text"
NOT_ONCE = f"{MISPLACED}, and not exactly once elsewhere in it"
GAP = "1 material whose units are not numbered 0, 1, 2, …"
UNCOVERED = "1 material with text that is in no chunk, so that searches do not find it"
NO_WORDS = Found("fts.desync", "the full-text index does not hold the words of the stored texts", None, ())
UNNAMED_VECTOR = "1 vector not referenced by any indexed text"
OTHER_LENGTH = "1 vector without the 4 dimensions of the catalog"
NOT_A_NUMBER = "1 vector with NaN or infinity: every vector query of the base fails in the released application"
TOO_LONG = "1 vector with a norm too large for single precision, which no vector search can rank"
FORGET_WORDS = """INSERT INTO search_text_fts (search_text_fts, rowid, text)
    SELECT 'delete', fts_rowid, text FROM search_text WHERE rowid = 1"""
LOSE_WORDS = "DELETE FROM search_text_fts_data WHERE id > 10"
OWN_CHECK = Found(
    "file.corrupt",
    "SQLite's integrity check reports 1 complaint",
    None,
    ('fts5: corruption found reading blob 137438953473 from table "search_text_fts"',),
)
NOWHERE = hashlib.sha256(b"nowhere").hexdigest()
FIRST_VECTOR = "(SELECT vector_blob FROM embedding WHERE rowid = 1)"

CASES: dict[str, tuple[list[str], list[Found]]] = {
    # --- bodies and units
    "another body id": (
        [set_body("search_text_id = 'x'", 2)],
        [Found("body.id", "1 body with a wrong id (not the hash of its fields)", (2,))],
    ),
    "another body": ([set_body("text = 'first body'", 2)], [Found("body.hash", NOT_ITS_HASH, (2,))]),
    "another hash of a wide body": (
        [set_body("embedding_text_hash = 'x'", 5)],
        [
            Found("body.hash", NOT_ITS_HASH, (5,)),
            Found("embedding.missing", "1 body without a vector", (5,), (), False),
            Found("embedding.orphan", UNNAMED_VECTOR, (5,)),
        ],
    ),
    "a body of bytes": (
        ["DROP TRIGGER search_text_au", set_body("text = CAST(text AS BLOB)", 4)],
        [missing("search_text_au"), Found("body.hash", NOT_ITS_HASH, (4,))],
    ),
    "a body that is nowhere": (
        [set_body(f"text = 'nowhere', embedding_text_hash = '{NOWHERE}'", 1)],
        [
            Found("unit.offsets", NOT_ONCE, (1,), None, True),
            Found("embedding.missing", "1 body without a vector", (1,), (), False),
            Found("embedding.orphan", UNNAMED_VECTOR, (1,)),
        ],
    ),
    "a unit without a body": (
        [delete("search_text", "rowid = 3")],
        [Found("unit.no-body", "1 unit without a body", (3,)), Found("embedding.orphan", UNNAMED_VECTOR, (3,))],
    ),
    "bodies without units": (
        [delete("search_unit", "material_id = 'b'")],
        [
            Found("material.no-units", "1 material with a text but without units", (2,)),
            Found("body.orphan", "2 bodies whose unit is missing", (4, 5)),
        ],
    ),
    **{
        f"offsets: {change} of unit {row}": (
            [set_unit(change, row)],
            [Found("unit.offsets", MISPLACED, (row,)), Found("unit.id", WRONG_UNIT_ID, (row,))],
        )
        for change, row in [
            ("char_end = char_end - 1", 2),
            ("char_end = char_end - 1", 5),
            ("char_start = 0, char_end = 5", 1),
            ("char_start = -1", 1),
            ("char_start = 20, char_end = 3", 1),
            ("char_end = 100", 5),
            ("char_end = 18", 5),
            ("char_end = 'x'", 5),
            ("char_start = 'x'", 4),
        ]
    },
    "offsets of a body that is there twice": (
        [set_unit("char_start = char_start + 1", 6)],
        [Found("unit.offsets", NOT_ONCE, (6,), None, True), Found("unit.id", WRONG_UNIT_ID, (6,))],
    ),
    "another number": (
        [set_unit("unit_index = 7", 3)],
        [Found("unit.id", WRONG_UNIT_ID, (3,)), Found("unit.gap", GAP, (1,), ("a",))],
    ),
    "no number 0": (
        [set_unit("unit_index = 2", 4)],
        [Found("unit.id", WRONG_UNIT_ID, (4,)), Found("unit.gap", GAP, (4,), ("b",))],
    ),
    **{
        f"a lost part at {where}": (
            [delete(table, f"rowid = {row}") for table in ("search_unit", "search_text")]
            + [delete("embedding", f"rowid = {vector}")],
            [*gap, Found("unit.missing", UNCOVERED, None, (material,))],
        )
        for where, row, vector, material, gap in [
            ("the start", 1, 1, "a", [Found("unit.gap", GAP, (2,), ("a",))]),
            ("the middle", 2, 2, "a", [Found("unit.gap", GAP, (1,), ("a",))]),
            ("the end", 3, 3, "a", []),
            ("the start of wide text", 4, 4, "b", [Found("unit.gap", GAP, (5,), ("b",))]),
            ("the end of wide text", 5, 5, "b", []),
        ]
    },
    "two lost parts of one material": (
        [delete(table, "rowid IN (1, 3)") for table in ("search_unit", "search_text", "embedding")],
        [Found("unit.gap", GAP, (2,), ("a",)), Found("unit.missing", UNCOVERED, None, ("a",))],
    ),
    # --- contents and materials
    "another text": (
        ["UPDATE content SET text = text || 'x' WHERE rowid = 1"],
        [Found("content.hash", "1 text with a wrong hash", (1,))],
    ),
    "a text that is not UTF-8": (
        ["UPDATE content SET text = CAST(x'ff' AS TEXT) WHERE rowid = 2"],
        [Found("content.hash", "1 text with a wrong hash", (2,))],
    ),
    "a text of bytes": (
        ["UPDATE content SET text = CAST(text AS BLOB) WHERE rowid = 2"],
        [Found("content.hash", "1 text with a wrong hash", (2,))],
    ),
    "an unused text": (
        [f"INSERT INTO content VALUES ('{NOWHERE}', 'nowhere', 0)"],
        [Found("content.orphan", "1 text not referenced by any material or unit", (4,))],
    ),
    "no text": (
        ["UPDATE material SET current_content_hash = NULL WHERE rowid = 1"],
        [Found("material.no-content", "1 material with units but without a text", (1,))],
    ),
    "a text that is gone": (
        ["UPDATE material SET current_content_hash = 'gone' WHERE rowid = 1"],
        [
            Found("material.no-content", "1 material with units but without a text", (1,)),
            Found(
                "unit.content", "3 units referring to a different text than the material, or to no material", (1, 2, 3)
            ),
        ],
    ),
    "a text that is gone, and no units": (
        ["INSERT INTO material VALUES ('d', 'd.md', 'gone', 0, 0)"],
        [Found("file.corrupt", "1 row with a foreign key to a missing row", None, ("material 4",))],
    ),
    "neither text nor units": (["INSERT INTO material VALUES ('d', 'd.md', NULL, 0, 0)"], []),
    "units of no material": (
        [delete("material", "rowid = 1"), delete("content", "rowid = 1")],
        [
            Found(
                "unit.content", "3 units referring to a different text than the material, or to no material", (1, 2, 3)
            )
        ],
    ),
    "paths that meet": (
        ["UPDATE material SET relative_path = 'A.MD' WHERE rowid = 2"],
        [
            Found(
                "material.path-clash",
                "1 material with a path that differs from another one only in letter case or Unicode normalization",
                (2,),
                ("A.MD",),
            )
        ],
    ),
    **{
        f"the path {path}": (
            [f"UPDATE material SET relative_path = {path} WHERE rowid = 2"],
            [Found("material.path-unsafe", f"a path that is not valid: {problem}", (2,), (sample,))],
        )
        for path, problem, sample in [
            ("'../x'", "it has ..", "../x"),
            ("''", "empty", ""),
            ("CAST(x'ff' AS TEXT)", "not UTF-8", "\ufffd"),
        ]
    },
    # --- vectors
    "a vector of no body": (
        ["INSERT INTO embedding VALUES ('h', x'0000803f000000000000000000000000', 0)"],
        [Found("embedding.orphan", UNNAMED_VECTOR, (8,))],
    ),
    "no vector": ([delete("embedding", "rowid = 2")], [Found("embedding.missing", "1 body without a vector", (2,))]),
    "zeros": ([set_vector("zeroblob(16)", "= 2")], [Found("embedding.zero", "1 vector of all zeros", (2,))]),
    "NaN": (
        [set_vector("CAST(x'0000c07f' || substr(vector_blob, 5) AS BLOB)", "= 2")],
        [Found("embedding.non-finite", NOT_A_NUMBER, (2,))],
    ),
    "infinity": (
        [set_vector("CAST(substr(vector_blob, 1, 12) || x'000080ff' AS BLOB)", "= 7")],
        [Found("embedding.non-finite", NOT_A_NUMBER, (7,))],
    ),
    "a norm beyond single precision": (
        [set_vector("x'ffff7f7fffff7f7f0000000000000000'", "= 3")],
        [Found("embedding.non-finite", TOO_LONG, (3,))],
    ),
    "one vector for two": ([set_vector(FIRST_VECTOR, "< 3")], []),
    "one vector for three": (
        [set_vector(FIRST_VECTOR, "< 4")],
        [Found("embedding.duplicate", "3 texts with a vector shared by at least two others", (1, 2, 3))],
    ),
    "one vector for three, and three of zeros": (
        [set_vector(FIRST_VECTOR, "< 4"), set_vector("zeroblob(16)", "> 4")],
        [
            Found("embedding.zero", "3 vectors of all zeros", (5, 6, 7)),
            Found("embedding.duplicate", "3 texts with a vector shared by at least two others", (1, 2, 3)),
        ],
    ),
    "a short vector": (
        [set_vector("substr(vector_blob, 5)", "= 7")],
        [Found("embedding.length", OTHER_LENGTH, (7,))],
    ),
    "vectors of odd lengths": (
        [set_vector(value, f"= {row}") for row, value in enumerate(("x''", "zeroblob(6)", "zeroblob(15)"), 1)],
        [Found("embedding.length", "3 vectors without the 4 dimensions of the catalog", (1, 2, 3))],
    ),
    "a vector in words": (
        [set_vector("'sixteen letters!'", "= 4")],
        [Found("embedding.length", OTHER_LENGTH, (4,))],
    ),
    # Text of a bad encoding, as ``||`` makes it of bytes: SQLite's own check has no complaint.
    "a vector in words that are not UTF-8": (
        [set_vector("vector_blob || x'ff'", "= 4")],
        [Found("embedding.length", OTHER_LENGTH, (4,))],
    ),
    # --- the full-text index
    "another number in the full-text index": (
        [set_body("fts_rowid = 99", 1)],
        [
            Found("body.rowid", "1 body whose row number is missing from the full-text index", (1,)),
            NO_WORDS,
        ],
    ),
    "no number in the full-text index": (
        [set_body("fts_rowid = NULL", 1)],
        [
            Found("body.rowid", "1 body without a row number in the full-text index", (1,)),
            Found("fts.desync", "1 entry in the full-text index without a body", None, ("1",)),
        ],
    ),
    "one number twice": (
        ["DROP INDEX search_text_fts_rowid_uniq", set_body("fts_rowid = 2", 1)],
        [
            missing("search_text_fts_rowid_uniq"),
            Found("body.rowid", "1 number used twice", None, ("2",)),
            Found("fts.desync", "1 entry in the full-text index without a body", None, ("1",)),
        ],
    ),
    "a body without an entry": (
        [FORGET_WORDS],
        [Found("fts.desync", "1 body not in the full-text index", (1,))],
    ),
    "other words": ([FORGET_WORDS, "INSERT INTO search_text_fts (rowid, text) VALUES (1, 'other words')"], [NO_WORDS]),
    "words that cannot be read": ([LOSE_WORDS], [OWN_CHECK, NO_WORDS]),
    "words that cannot be read, and a body without an entry": (
        [LOSE_WORDS, "DELETE FROM search_text_fts_docsize WHERE id = 1"],
        [OWN_CHECK, Found("fts.desync", "1 body not in the full-text index", (1,))],
    ),
    # --- the layout and the identity
    "what a stranger defined": (
        [
            "CREATE TRIGGER mine AFTER DELETE ON content BEGIN SELECT 1; END",
            "CREATE VIEW other AS SELECT 1",
            "CREATE INDEX third ON content (created_at)",
        ],
        [
            Found("schema.foreign-trigger", "1 trigger not part of the application's layout", None, ("mine",)),
            Found("schema.foreign-view", "1 view not part of the application's layout", None, ("other",)),
            Found("schema.foreign-index", "1 index not part of the application's layout", None, ("third",), True),
        ],
    ),
    "no bodies": (
        ["DROP TABLE search_text"],
        [missing("search_text", "search_text_target_kind_idx", "search_text_embedding_hash_idx", count=8)],
    ),
    "no full-text index": (["DROP TABLE search_text_fts"], [missing("search_text_fts")]),
    "no vectors": (["DROP TABLE embedding"], [missing("embedding")]),
    "no contents": (["DROP TABLE content"], [missing("content")]),
    "no materials": (["DROP TABLE material"], [missing("material", "material_content_idx", count=2)]),
    "no units": (
        ["DROP TABLE search_unit"],
        [missing("search_unit", "search_unit_material_index_idx", "search_unit_content_idx", count=4)],
    ),
    "no identity table": (["DROP TABLE meta"], [missing("meta")]),
    "no identity": (
        [delete("meta", "TRUE")],
        [Found("meta.missing", "the index has no identity row", None, ())],
    ),
    "another base": (
        ["UPDATE meta SET base_id = 'other'"],
        [Found("meta.base-id", "the index belongs to base other", None, ("other",))],
    ),
    **{
        f"version {version}": (
            [f"UPDATE meta SET schema_version = {version}"],
            [
                Found(
                    "schema.version",
                    f"the index says that it is of version {shown}, not 2: the application would empty it",
                    None,
                    (),
                    is_newer,
                )
            ],
        )
        for version, shown, is_newer in [("1", "1", False), ("3", "3", True), ("'two'", "two", False)]
    },
}


def test_an_index_that_keeps_every_rule(index: Path) -> None:
    facts, found = audited(index)
    assert found == []
    assert facts.is_readable
    counts = {"materials": 3, "units": 8, "bodies": 8, "embeddings": 7, "duplicates": 1, "covered": 8}
    assert (facts.counts, dict(facts.lengths)) == (counts, {16: 7})
    contents = ["\n\n".join(bodies) for bodies in BODIES.values()]
    assert [(one.id, one.path, one.content_hash, one.is_empty) for one in facts.materials or ()] == [
        (key, f"{key}.md", hashlib.sha256(text.encode()).hexdigest(), False)
        for key, text in zip(BODIES, contents, strict=True)
    ]


@pytest.mark.parametrize("name", CASES)
def test_the_rows_that_break_a_rule(name: str, index: Path) -> None:
    statements, expected = CASES[name]
    run_sql(index, *statements)
    before = index.read_bytes()
    facts, found = audited(index)
    keyed = [
        one._replace(samples=keys_of(index, "body", one.rows)) if one.name == "embedding.missing" and one.rows else one
        for one in expected
    ]
    assert found == keyed
    assert facts.is_readable
    assert index.read_bytes() == before
    assert [one.name for one in index.parent.iterdir()] == [index.name]


def long_vectors(below: int) -> str:
    return set_vector("CAST(vector_blob || x'0000803f' AS BLOB)", f"< {below}")


def of_length(count: int, text: str, *rows: int) -> Found:
    return Found("embedding.length", f"{count} vectors without the {text}", rows)


@pytest.mark.parametrize(
    ("below", "dimensions", "covered", "lengths", "found"),
    [
        (1, None, 8, {16: 7}, []),
        (3, 4, 6, {16: 5, 20: 2}, [of_length(2, "4 dimensions of the catalog", 1, 2)]),
        (3, None, 6, {16: 5, 20: 2}, [of_length(2, "4 dimensions that most have", 1, 2)]),
        (5, None, 4, {16: 3, 20: 4}, [of_length(3, "5 dimensions that most have", 5, 6, 7)]),
        (
            5,
            4,
            4,
            {16: 3, 20: 4},
            [
                of_length(4, "4 dimensions of the catalog", 1, 2, 3, 4),
                Found(
                    "base.dimensions",
                    "the catalog says 4 dimensions, and 4 of 7 vectors have others: find out which are right; if the "
                    "catalog is right, regraft repair --only embedding.length removes the others",
                    None,
                    (),
                    True,
                ),
            ],
        ),
        (
            8,
            4,
            0,
            {20: 7},
            [
                of_length(7, "4 dimensions of the catalog", *range(1, 8)),
                Found("base.dimensions", "the catalog says 4 dimensions, the vectors have 5", None, ()),
            ],
        ),
        (8, None, 8, {20: 7}, []),
    ],
)
def test_vectors_of_several_lengths(
    below: int, dimensions: int | None, covered: int, lengths: dict[int, int], found: list[Found], index: Path
) -> None:
    run_sql(index, long_vectors(below))
    facts, is_found = audited(index, dimensions=dimensions)
    assert is_found == found
    assert (facts.counts["covered"], facts.counts["duplicates"], dict(facts.lengths)) == (covered, 1, lengths)
    assert audited(index, Level.QUICK, dimensions=dimensions)[0].counts == facts.counts


def test_lengths_of_vectors_that_are_none_are_not_counted(index: Path) -> None:
    values = ("x''", "zeroblob(6)", "'sixteen letters!'", "vector_blob || x'ff'")
    run_sql(index, *(set_vector(value, f"= {row}") for row, value in enumerate(values, 1)))
    facts, _ = audited(index)
    assert (facts.counts["embeddings"], facts.counts["covered"], dict(facts.lengths)) == (7, 4, {16: 3})
    assert sum((facts.norms or {}).values()) == 3


@pytest.mark.parametrize(
    ("statements", "expected", "counts"),
    [
        ([], {"has_model": None}, {"embeddings": 7, "duplicates": 1, "covered": 8}),
        ([delete("embedding", "TRUE")], {"has_model": None}, {"embeddings": 0}),
        ([delete("embedding", "TRUE")], {"has_model": False}, {"embeddings": 0}),
        ([delete("embedding", "rowid = 6")], {"has_model": None}, {"embeddings": 6, "duplicates": 0, "covered": 6}),
        ([], {"has_model": False}, {"embeddings": 7}),
    ],
)
def test_vectors_of_a_base_with_and_without_a_model(
    statements: list[str], expected: dict[str, Any], counts: dict[str, int], index: Path
) -> None:
    run_sql(index, *statements)
    facts, found = audited(index, dimensions=None, **expected)
    without = Found(
        "embedding.unexpected",
        "7 vectors in a base without a model: regraft repair --only embedding.unexpected --model ID gives it its "
        "model again, regraft gc --only embedding.unexpected removes them",
        None,
        (),
    )
    both = Found("embedding.missing", "2 bodies without a vector", (6, 7), keys_of(index, "body", (6, 7)))
    is_lacking = counts["embeddings"] == 6
    assert found == ([both] if is_lacking else [without] if expected["has_model"] is False and not statements else [])
    assert facts.counts == {"materials": 3, "units": 8, "bodies": 8} | counts


def test_the_numbers_of_one_text(tmp_path: Path) -> None:
    with IndexStore(tmp_path / "index.sqlite", BASE, create=True) as store:
        put(store, "a", "one")
    facts, found = audited(tmp_path / "index.sqlite", has_model=None)
    numbers = {"materials": 1, "units": 1, "bodies": 1, "embeddings": 1, "duplicates": 0, "covered": 1}
    assert (found, facts.counts) == ([], numbers)


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        (None, []),
        (BASE, []),
        ("f", [Found("meta.base-id", f"the index belongs to base {BASE}", None, (BASE,))]),
    ],
)
def test_the_folder_that_an_index_is_in(folder: str | None, found: list[Found], index: Path) -> None:
    assert audited(index, folder=folder)[1] == found


@pytest.mark.parametrize(("separator", "is_found"), [(None, False), ("second body", False), ("", True), ("x", True)])
def test_a_part_that_separates_units_is_not_missing(separator: str | None, is_found: bool, index: Path) -> None:
    run_sql(index, delete("search_unit", "rowid = 2"))
    found = {one.name for one in audited(index, separator=separator)[1]}
    assert found == {"unit.gap", "body.orphan"} | ({"unit.missing"} if is_found else set())


@pytest.mark.parametrize(
    ("text", "spans", "is_found"),
    [
        ("xone", [(1, 4)], True),
        ("onex", [(0, 3)], True),
        ("onextwo", [(0, 3), (4, 7)], True),
        ("\n one \ntwo\t", [(2, 5), (7, 10)], False),
        ("🎉xé", [(0, 2), (3, 4)], True),
        ("🎉\u3000é", [(0, 2), (3, 4)], False),
        # Units may overlap, and one may be within another.
        ("one two", [(0, 7), (1, 3)], False),
        ("one two", [(0, 5), (2, 7)], False),
    ],
)
def test_every_character_between_units_counts(
    text: str, spans: list[tuple[int, int]], is_found: bool, index: Path
) -> None:
    wide = text.encode("utf-16-le")
    bodies = [wide[2 * start : 2 * end].decode("utf-16-le") for start, end in spans]
    with IndexStore(index, BASE) as store:
        store.rebuild_material("d", "d.md", text, spans, vectors(*bodies), NOW_MS)
    assert audited(index)[1] == ([Found("unit.missing", UNCOVERED, None, ("d",))] if is_found else [])
    # The quick pass leaves nothing to look for where nothing is wrong, whatever else it may not know.
    assert ruled_out(index) == (IN_TEXTS - detect.PLACES if is_found else IN_TEXTS)
    assert ruled_out(index, "x") == ruled_out(index, None) == IN_TEXTS


def test_each_material_of_a_text_has_all_of_it_in_its_units(index: Path) -> None:
    with IndexStore(index, BASE) as store:
        for material, end in (("d", 3), ("e", 4)):
            body = vectors("onex"[:end])
            store.rebuild_material(material, f"{material}.md", "onex", [(0, end)], body, NOW_MS)
    assert audited(index)[1] == [Found("unit.missing", UNCOVERED, None, ("d",))]


def test_a_body_is_looked_for_beside_its_offsets() -> None:
    for text, body, is_once in [
        (b"a", b"a", True),
        (b"ab", b"b", True),
        (b"aa", b"a", False),
        (b"aba", b"a", False),
        (b"aaa", b"aa", False),
        (b"ab", b"c", False),
    ]:
        assert detect.contains_once(text, body) is is_once


@pytest.mark.parametrize(
    ("text", "kind", "hashed", "matches"),
    [
        (b"text", "text", b"text", True),
        (b"text", "text", b"other", False),
        (b"text", "blob", b"text", False),
        # Half of a surrogate pair counts as itself, or as JavaScript replaces it; other bytes are no text.
        (b"half \xed\xa0\xbd", "text", b"half \xed\xa0\xbd", True),
        (b"half \xed\xa0\xbd", "text", b"half \xef\xbf\xbd", True),
        (b"half \xed\xa0\xbd", "text", b"half ?", False),
        (b"\xff", "text", b"\xff", False),
        (b"\xff", "text", b"\xef\xbf\xbd", False),
        (b"\xc3", "text", b"\xc3", False),
    ],
)
def test_a_text_has_its_hash_if_it_is_utf_8(text: bytes, kind: str, hashed: bytes, matches: bool) -> None:
    """The same is said of a text that is read in pieces, of which each may end within a character."""
    key = hashlib.sha256(hashed).hexdigest().encode()
    assert detect.matches_hash(key, kind, text) is matches
    assert detect.matches_hash(None, kind, text) is False
    if kind == "text":
        with closing(apsw.Connection(":memory:")) as db:
            db.execute("CREATE TABLE content (text TEXT)")
            db.execute("INSERT INTO content VALUES (CAST(? AS TEXT))", (text,))
            is_right = detect.is_large_text_utf8(db, 1) and detect.large_text_has_hash(db, "content", 1, key)
            assert is_right is matches
            assert detect.large_text_has_hash(db, "content", 1, None) is False


def test_vectors_that_no_search_can_use(index: Path) -> None:
    run_sql(
        index,
        set_vector("zeroblob(16)", "= 2"),
        set_vector("CAST(x'0000c07f' || substr(vector_blob, 5) AS BLOB)", "= 3"),
        set_vector("x'ffff7f7fffff7f7f0000000000000000'", "= 4"),
        set_vector("substr(vector_blob, 5)", "= 5"),
        set_vector("'sixteen letters!'", "= 6"),
    )
    with sqlite.open_readonly(index, vectors=True) as db:
        unusable = list(detect.find_unusable_vectors(db, 16))
    bad, short = "embedding.non-finite", "embedding.length"
    assert unusable == [(2, "embedding.zero"), (3, bad), (4, bad), (5, short), (6, short)]


def test_offsets_into_a_text() -> None:
    for start, end, is_valid in [
        (0, 0, True),
        (0, 5, True),
        (5, 5, True),
        (-1, 3, False),
        (3, 2, False),
        (0, 6, False),
        ("0", 3, False),
        (0, None, False),
        (0.0, 3, False),
    ]:
        assert detect.is_valid_span(start, end, 5) is is_valid


def test_materials_without_text_and_units_are_empty(index: Path) -> None:
    run_sql(
        index,
        "INSERT INTO material VALUES ('d', 'd.md', NULL, 0, 0)",
        "INSERT INTO material VALUES ('e', 'e.md', 'gone', 0, 0)",
        delete("search_unit", "material_id = 'b'"),
        "UPDATE material SET current_content_hash = NULL WHERE material_id = 'c'",
    )
    materials = audited(index)[0].materials or []
    assert {one.id: one.is_empty for one in materials} == {"a": False, "b": False, "c": False, "d": True, "e": True}
    assert {one.id: one.content_hash for one in materials if one.id in "cde"} == {"c": None, "d": None, "e": "gone"}
    run_sql(index, "DROP TABLE content")
    assert not any(one.is_empty for one in audited(index)[0].materials or ())


@pytest.mark.parametrize(
    ("level", "names"),
    [
        (Level.SHAPE, {"meta.base-id", "material.path-unsafe"}),
        (Level.QUICK, {"unit.gap", "embedding.missing", "fts.desync"}),
        (Level.DEFAULT, {"content.hash", "unit.id", "embedding.zero"}),
        (Level.DEEP, {"file.corrupt"}),
    ],
)
def test_each_level_finds_what_the_ones_before_it_find(level: Level, names: set[str], index: Path) -> None:
    run_sql(
        index,
        "UPDATE meta SET base_id = 'other'",
        "UPDATE material SET relative_path = '../x' WHERE rowid = 2",
        set_unit("unit_index = 7", 3),
        delete("embedding", "rowid = 1"),
        FORGET_WORDS,
        "UPDATE content SET text = text || 'x' WHERE rowid = 1",
        set_vector("zeroblob(16)", "= 2"),
        "INSERT INTO material VALUES ('d', 'd.md', 'gone', 0, 0)",
    )
    found = {one.name for one in audited(index, level)[1]}
    below = {one.name for one in audited(index, Level(level - 1))[1]} if level > Level.SHAPE else set()
    assert found - below == names
    assert below <= found


def test_what_an_index_of_the_table_lacks_is_found(index: Path) -> None:
    with without_index(index, "material_content_idx"):
        run_sql(index, "INSERT INTO material VALUES ('d', 'd.md', NULL, 0, 0)")
    said = ("wrong # of entries in index material_content_idx", "row 4 missing from index material_content_idx")
    [found] = audited(index)[1]
    assert found[:3] == ("file.corrupt", "SQLite's integrity check reports 2 complaints", None)
    assert sorted(found.samples or ()) == sorted(said)
    assert audited(index, Level.DEFAULT)[1] == []


# --- a part of the rows ----------------------------------------------------------------------------------------------


class PartOfRows:
    """The rows of a base that a part reads: all, or those of some numbers. It records what it is told."""

    def __init__(self, chosen: Collection[int] = range(100), changed: Collection[int] = ()) -> None:
        self.chosen, self.changed = chosen, changed
        self.made: set[str | None] = set()
        self.keys: dict[str, dict[int, bytes]] = {}
        self.vectors: list[tuple[int, bytes, bytes]] = []

    def set_creation_time(self, made: str | None) -> None:
        self.made.add(made)

    @contextmanager
    def choose(self, table: str, keys: Iterator[tuple[int, bytes]]) -> Iterator[list[int]]:
        self.keys[table] = dict(keys)
        yield sorted(row for row in self.keys[table] if row in self.chosen)

    def find_changed(self, vectors: Iterator[tuple[int, bytes, bytes]]) -> Iterator[int]:
        self.vectors += vectors
        return iter(self.changed)


def audited_part(path: Path, part: PartOfRows, **expected: Any) -> dict[str, tuple[str, list[int]]]:
    """Return the message and the rows of each finding in a part."""
    findings = FindingCollector(Level.SHAPE)
    audit_index(path, ExpectedIndex(base="b", **expected), findings, part)
    return {one.name: (one.message, list(one.rows or ())) for one in findings.to_findings()}


def test_a_part_reads_its_rows_and_no_others(index: Path) -> None:
    run_sql(
        index,
        "DROP TRIGGER search_text_au",
        set_body("text = 'another body'", 2),
        set_body("search_text_id = 'x'", 3),
        set_unit("unit_id = 'y'", 7),
        "UPDATE content SET text = text || 'x' WHERE rowid = 1",
        set_vector("zeroblob(16)", "= 4"),
        set_vector("substr(vector_blob, 1, 6)", "IN (1, 2, 3, 7)"),
    )
    every = {
        "body.hash": (NOT_ITS_HASH, [2]),
        "body.id": ("1 body with a wrong id (not the hash of its fields)", [3]),
        "unit.id": (WRONG_UNIT_ID, [7]),
        "content.hash": ("1 text with a wrong hash", [1]),
        "embedding.zero": ("1 vector of all zeros", [4]),
        "embedding.length": ("4 vectors without the 4 dimensions that most have", [1, 2, 3, 7]),
    }
    shape = "schema.missing"
    part = PartOfRows()
    assert {name: one for name, one in audited_part(index, part).items() if name != shape} == every
    with closing(sqlite3.connect(index)) as db:
        for table, column in [
            table for name, table in ROWS.items() if name in ("body", "unit", "content", "embedding")
        ]:
            keys = db.execute(f"SELECT rowid, CAST({column} AS BLOB) FROM {table} ORDER BY rowid").fetchall()
            assert sorted(part.keys[table].items()) == keys
        vectors = db.execute("SELECT rowid, vector_blob, CAST(created_at AS BLOB) FROM embedding ORDER BY rowid")
        assert sorted(part.vectors) == [
            (row, hashlib.blake2b(vector, digest_size=16, person=b"blob").digest(), time)
            for row, vector, time in vectors
        ]
        assert part.made == {str(made) for (made,) in db.execute("SELECT created_at FROM meta")}
    for rows in ([2], [3, 4], [5, 6, 7], []):
        found = audited_part(index, PartOfRows(rows), dimensions=4)
        names = {name for name, (_, of_all) in every.items() if set(of_all) & set(rows)}
        assert found.keys() - {shape} == names
        assert all(set(found[name][1]) == set(rows) & set(every[name][1]) for name in names)
    # What the catalog states is said to be of the catalog, and the state says which vectors have changed.
    found = audited_part(index, PartOfRows(changed=[5]), dimensions=4)
    assert found["embedding.length"][0] == "4 vectors without the 4 dimensions of the catalog"
    assert found["vector.changed"] == (
        "1 vector that changed since an earlier run of check --part, though the text did not",
        [5],
    )


@pytest.mark.parametrize(("statement", "made"), [("DELETE FROM meta", {None}), ("DROP TABLE meta", set())])
def test_a_part_of_an_index_that_does_not_say_when_it_was_made(
    statement: str, made: set[str | None], index: Path
) -> None:
    run_sql(index, statement)
    part = PartOfRows()
    audited_part(index, part)
    assert (part.made, part.keys.keys()) == (made, {"content", "search_unit", "search_text", "embedding"})


# --- errors and threads ----------------------------------------------------------------------------------------------

FULL, MALFORMED = apsw.FullError("database or disk is full"), apsw.CorruptError("malformed")
FULL.extendedresult = apsw.SQLITE_FULL


class Failing:
    """A connection, and what opens one, that only raises."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, *_: object, **__: object) -> Any:
        raise self.error

    execute = __call__


@pytest.mark.parametrize(
    ("read", "unknown"),
    [
        (lambda db, shape: rule_out_findings(db, shape, "", lambda: None), frozenset()),
        (lambda db, _: detect.read_uniform_vectors(db, None), None),
    ],
)
def test_a_quick_pass_knows_nothing_of_a_damaged_file_and_ends_on_a_full_disk(
    read: Callable[..., object], unknown: object, index: Path
) -> None:
    with sqlite.open_readonly(index) as db:
        shape = compare_schema(db, FindingCollector())
    assert read(Failing(MALFORMED), shape) == unknown
    with pytest.raises(apsw.FullError):
        read(Failing(FULL), shape)


def test_what_cannot_be_read_is_a_finding_and_a_full_disk_is_none(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (MALFORMED, OSError(errno.EIO, "Input/output error"), bad_text()):
        monkeypatch.setattr(index_file.sqlite, "open_readonly", Failing(error))
        facts, found = audited(index)
        assert found == [Found("file.unreadable", f"index.sqlite cannot be read: {error}", None, ())]
        assert not facts.is_readable
    for error in (FULL, OSError(errno.ENOSPC, "No space left on device")):
        monkeypatch.setattr(index_file.sqlite, "open_readonly", Failing(error))
        with pytest.raises(type(error)):
            audited(index)


def bad_text() -> UnicodeDecodeError:
    return UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


def test_words_are_compared_beside_the_other_checks_unless_the_file_has_a_journal(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    class Watched(detect.WordCheck):
        def start(self) -> None:
            called.append("start")
            super().start()

        def agrees(self) -> bool:
            called.append("agrees")
            return super().agrees()

        def stop(self) -> None:
            called.append("stop")
            super().stop()

    find = index_file._IndexAudit._find_complaints

    def find_complaints(*some: Any, **more: Any) -> Any:
        called.append("complaints")
        return find(*some, **more)

    monkeypatch.setattr(index_file, "WordCheck", Watched)
    monkeypatch.setattr(index_file._IndexAudit, "_find_complaints", find_complaints)
    assert audited(index, Level.QUICK)[1] == []
    assert called == []
    assert audited(index, Level.DEFAULT)[1] == []
    assert called == ["start", "agrees", "start", "stop"]
    called.clear()
    assert audited(index)[1] == []
    assert called == ["start", "complaints", "agrees", "start", "stop"]
    called.clear()
    leave_journal(index)
    message = "the index has the journal of an unfinished transaction"
    assert audited(index)[1] == [Found("file.hot-journal", message, None, ())]
    assert called == ["agrees", "start", "complaints", "stop"]


def test_a_check_that_ends_while_it_is_stopped_is_no_damage(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is closed before its thread ends. A sound file was called unreadable for it."""
    closed, interrupted = Event(), Event()

    class Connection(apsw.Connection):
        def interrupt(self) -> None:
            interrupted.set()
            super().interrupt()

    @contextmanager
    def open_readonly(_: Path) -> Iterator[apsw.Connection]:
        db = Connection(":memory:")
        yield db
        db.close()
        closed.set()
        assert interrupted.wait(NEVER_SECONDS)

    monkeypatch.setattr(detect.sqlite, "open_readonly", open_readonly)
    monkeypatch.setattr(detect, "words_agree", lambda *_: True)
    check = detect.WordCheck(index, 0, SchemaShape(), FindingCollector(Level.DEFAULT, None))
    check.start()
    assert closed.wait(NEVER_SECONDS)
    check.stop()
    assert interrupted.is_set()
    assert check.agrees()


def test_a_check_that_is_interrupted_leaves_no_thread_behind(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = Event(), []

    def read_long(db: apsw.Connection, *_: object) -> bool:
        begun.set()
        try:
            db.execute(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 900000) SELECT max(i) FROM n"
            )
        except apsw.InterruptError:
            ended.append("interrupted")
        else:
            ended.append("at its end")
        return True

    def interrupt(*_: object) -> None:
        assert begun.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(detect, "words_agree", read_long)
    monkeypatch.setattr(detect, "detect_relations", interrupt)
    with pytest.raises(KeyboardInterrupt):
        audited(index)
    assert ended == ["interrupted"]


def test_the_quick_pass_is_left_out_where_it_cannot_tell(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(index_file, "_HAS_LARGE", "SELECT 1")
        assert ruled_out(index) == frozenset()
    passes: list[object] = []
    monkeypatch.setattr(index_file, "rule_out_findings", lambda *some: passes.append(some) or IN_TEXTS)
    assert audited(index)[1] == []
    assert len(passes) == 1
    # It searches the indexes of the tables, which an earlier step found damaged here, and trusts the whole layout.
    monkeypatch.setattr(detect, "detect_relations", Failing(MALFORMED))
    assert [one.samples for one in audited(index)[1]] == [("relations: malformed",)]
    assert len(passes) == 1
    run_sql(index, "DROP TRIGGER search_text_au")
    assert ruled_out(index) == frozenset()


def test_words_that_cannot_be_compared_are_said(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "words_agree", Failing(MALFORMED))
    message = "its file is damaged: 1 check failed"
    assert audited(index)[1] == [Found("file.corrupt", message, None, ("full text: malformed",))]


@pytest.mark.parametrize(
    ("level", "more", "passes"),
    [
        (Level.QUICK, {}, 0),
        (Level.DEFAULT, {}, 1),
        (Level.DEEP, {}, 1),
        (Level.DEFAULT, {"max_duration": 3600.0}, 0),
        (Level.DEFAULT, {"names": frozenset({"unit.id"})}, 0),
    ],
)
def test_vectors_are_read_in_one_pass_where_all_of_them_are_read(
    level: Level, more: dict[str, Any], passes: int, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of them that a time limit leaves unread must not be counted as read."""
    read, real = [], detect.read_uniform_vectors
    monkeypatch.setattr(detect, "read_uniform_vectors", lambda *some: (read.append(some), real(*some))[1])
    findings = FindingCollector(level, **more)
    facts = audit_index(index, ExpectedIndex(base=None, has_model=True, dimensions=4), findings)
    assert (len(read), findings.to_findings()) == (passes, ())
    assert (facts.norms is None) == (level is Level.QUICK or "names" in more)
    assert (facts.counts["embeddings"], dict(facts.lengths)) == (7, {16: 7})


def test_checks_for_which_there_is_no_time_are_named_with_their_base(index: Path) -> None:
    for base in (None, "b"):
        findings = FindingCollector(max_duration=-1)
        audit_index(index, ExpectedIndex(base=base), findings)
        name = base or "index"
        assert findings.skipped_checks()[:2] == (f"{name}: structure", f"{name}: identity")


def test_time_is_looked_at_before_each_text(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    with sqlite.open_readonly(whole) as db:
        shape = compare_schema(db, FindingCollector())

        def count(read: Callable[..., Any]) -> int:
            looked.clear()
            read(db, shape, "", lambda: looked.append(1))
            return len(looked)

        assert count(rule_out_findings) == 3
        assert count(lambda *some: list(detect.detect_texts(*some))) == 3
        read_in_pieces(monkeypatch, 7)
        # Five bodies and three contents have more than four bytes.
        assert count(lambda *some: list(detect.detect_texts(*some))) == 8


# --- large texts -----------------------------------------------------------------------------------------------------


def every_row(path: Path, separator: str | None = "") -> list[detect.DetectedRow]:
    with sqlite.open_readonly(path) as db:
        shape = compare_schema(db, FindingCollector())
        return sorted(detect.detect_texts(db, shape, separator, lambda: None), key=str)


def read_in_pieces(patch: pytest.MonkeyPatch, size: int) -> None:
    """Read texts of more than four bytes in pieces of a size."""
    small = "((octet_length(text) > 4 AND typeof(text) = 'text') IS NOT TRUE)"
    patch.setattr(detect, "_SUSPECT_BODIES", detect._SUSPECT_BODIES.replace(detect.IS_SMALL, small))
    patch.setattr(detect, "IS_SMALL", small)
    for module in (detect, large_text):
        patch.setattr(module, "PIECE_BYTES", size)


TORN = b"half \xed\xa0\xbd"
#: Damage to texts beyond that of ``CASES``.
ODD_TEXTS = [
    # Offsets between the two halves of a surrogate pair.
    [set_unit("char_start = 1", 4)],
    [set_unit("char_end = 1", 4)],
    # A pair that is stored as two characters, and half of one.
    ["UPDATE content SET text = CAST(x'eda0bdedb880' AS TEXT) || text WHERE rowid = 2"],
    ["UPDATE content SET text = CAST(x'eda0bd' AS TEXT) || text WHERE rowid = 2"],
    [set_body("text = text || CAST(x'eda0bd' AS TEXT)", 5)],
    [set_unit("char_start = char_start - 2, char_end = char_end - 2", 5)],
    [set_unit("char_start = char_start - 2, char_end = char_end - 2", 8)],
    [set_body("embedding_text_hash = 'x'", 5), set_unit("char_end = 16", 5)],
    [set_body("embedding_text_hash = 'x'", 2)],
    [set_body("embedding_text_hash = 'x'", 5)],
    ["UPDATE content SET content_hash = 'x' WHERE rowid = 2"],
    # A hash can be that of the stored bytes, or of what JavaScript makes of them.
    *(
        [f"INSERT INTO content VALUES ('{hashlib.sha256(hashed).hexdigest()}', CAST(x'{TORN.hex()}' AS TEXT), 0)"]
        for hashed in (TORN, b"half \xef\xbf\xbd", b"half ?")
    ),
    ["UPDATE content SET content_hash = NULL WHERE rowid = 2"],
]


def test_texts_in_pieces_have_the_findings_of_whole_ones(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[Path, list[detect.DetectedRow]] = {}
    # The schema of another file is tried out each time, which takes longer than all that is compared here.
    of_texts = [
        statements
        for statements, _ in CASES.values()
        if any(one in str(statements) for one in ("search_", "content")) and "DROP" not in str(statements)
    ]
    for number, statements in enumerate([[], *of_texts, *ODD_TEXTS]):
        path = shutil.copy(whole, tmp_path / f"{number}.sqlite")
        run_sql(path, *statements)
        found[path] = every_row(path)
    assert [len(rows) for rows in list(found.values())[-4:]] == [0, 0, 1, 1]
    assert sum(map(bool, found.values())) > 30
    for size, separator in ((1, ""), (7, None)):
        with monkeypatch.context() as patch:
            read_in_pieces(patch, size)
            for path, rows in found.items():
                expected = [row for row in rows if separator is not None or row.finding != "unit.missing"]
                assert every_row(path, separator) == expected
