"""The quick passes of ``regraft check`` over an index file find nothing wrong only where the rules of each row hold."""

from __future__ import annotations

import math
import shutil
import sqlite3
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest
from planted_v2 import index, library, plant, run_sql

from checks.audit.collector import FindingCollector
from checks.cherry_v2 import detect
from checks.cherry_v2.index_file import rule_out_findings
from checks.cherry_v2.schema import SchemaShape, compare_schema
from regraft.disk import sqlite
from regraft.testing import DAMAGES

SEPARATOR = "\n\n"
PLACES = {"content.hash", "unit.offsets", "unit.missing"}
EVERY = {"body.id", "body.hash", "unit.id", *PLACES}
LAST = "(SELECT max(rowid) FROM search_unit)"


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("healthy"))


@pytest.fixture
def store(healthy: Path, tmp_path: Path) -> Path:
    return shutil.copytree(healthy, tmp_path / "library")


@contextmanager
def opened(store: Path) -> Iterator[tuple[apsw.Connection, SchemaShape]]:
    with sqlite.open_readonly(index(store), vectors=True) as db:
        yield db, compare_schema(db, FindingCollector())


def ruled_out(store: Path) -> frozenset[str]:
    with opened(store) as (db, shape):
        return rule_out_findings(db, shape, SEPARATOR, lambda: None)


def texts(store: Path, given: frozenset[str]) -> list[detect.DetectedRow]:
    with opened(store) as (db, shape):
        return list(detect.detect_texts(db, shape, SEPARATOR, lambda: None, given))


# --- texts, ids and offsets ------------------------------------------------------------------------------------------


def test_a_whole_index_has_none_of_the_findings(store: Path) -> None:
    assert ruled_out(store) == EVERY
    assert texts(store, frozenset()) == []


@pytest.mark.parametrize(
    ("statement", "possible"),
    [
        ("UPDATE search_text SET embedding_text_hash = 'x' WHERE rowid = 2", {"body.hash"}),
        ("UPDATE search_text SET text = text || 'x' WHERE rowid = 2", {"body.hash", *PLACES}),
        ("UPDATE search_text SET search_text_id = 'x' WHERE rowid = 2", {"body.id"}),
        ("UPDATE search_unit SET unit_index = 99 WHERE rowid = 2", {"unit.id"}),
        ("UPDATE search_unit SET char_end = char_end - 1 WHERE rowid = 2", {"unit.id", *PLACES}),
        ("UPDATE search_unit SET char_start = -1 WHERE rowid = 2", {"unit.id", *PLACES}),
        ("UPDATE search_unit SET char_end = 'x' WHERE rowid = 2", {"unit.id", *PLACES}),
        ("UPDATE content SET text = text || 'x' WHERE rowid = 1", PLACES),
        ("UPDATE content SET text = CAST(x'ff' AS TEXT) WHERE rowid = 1", PLACES),
    ],
)
def test_a_wrong_row_keeps_its_findings_possible(statement: str, possible: set[str], store: Path) -> None:
    run_sql(index(store), statement)
    assert ruled_out(store) == EVERY - possible
    found = {row.finding for row in texts(store, frozenset())}
    assert found
    assert found <= possible


def test_a_part_of_the_text_in_no_unit_is_seen(store: Path) -> None:
    run_sql(
        index(store),
        f"DELETE FROM search_text WHERE rowid = {LAST}",
        f"DELETE FROM search_unit WHERE rowid = {LAST}",
    )
    assert ruled_out(store) == EVERY - PLACES
    assert [row.finding for row in texts(store, frozenset())] == ["unit.missing"]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE search_text SET rowid = rowid + 1000 WHERE rowid = 2",
        "DELETE FROM search_text WHERE rowid = 2",
        "DELETE FROM search_unit WHERE rowid = 2",
        "UPDATE search_unit SET content_hash = 'x' WHERE rowid = 2",
        "UPDATE search_unit SET material_id = CAST(x'ff' AS TEXT) WHERE rowid = 2",
        "UPDATE search_text SET text = CAST(text AS BLOB) WHERE rowid = 2",
        "UPDATE search_text SET target_id = 'x' WHERE rowid = 2",
        "UPDATE content SET content_hash = NULL WHERE rowid = 1",
    ],
)
def test_rows_that_the_pass_does_not_reach_rule_out_nothing(statement: str, store: Path) -> None:
    run_sql(index(store), statement)
    assert ruled_out(store) == frozenset()


@contextmanager
def without_index(store: Path, name: str) -> Iterator[None]:
    """Change rows while SQLite does not know of an index, so that the index keeps its old entries."""
    with closing(sqlite3.connect(index(store))) as db:
        row = db.execute("SELECT type, name, tbl_name, rootpage, sql FROM sqlite_schema WHERE name = ?", (name,))
        saved = row.fetchone()
        db.execute("PRAGMA writable_schema = ON")
        db.execute("DELETE FROM sqlite_schema WHERE name = ?", (name,))
        db.commit()
    if saved[4] is None:
        hide_unique(store, saved[2])
    yield
    with closing(sqlite3.connect(index(store))) as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute("INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)", saved)
        db.execute("UPDATE sqlite_schema SET sql = replace(sql, 'TEXT NO_KEY', 'TEXT PRIMARY KEY')")
        db.commit()


def hide_unique(store: Path, table: str) -> None:
    """Take the primary key, whose index is hidden, out of a table's definition."""
    with closing(sqlite3.connect(index(store))) as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, 'TEXT PRIMARY KEY', 'TEXT NO_KEY') WHERE name = ?",
            (table,),
        )
        db.commit()


def test_a_content_that_its_index_lacks_rules_out_nothing(store: Path) -> None:
    with without_index(store, "sqlite_autoindex_content_1"):
        run_sql(index(store), "INSERT INTO content VALUES ('x', 'another', 1)")
    assert ruled_out(store) == frozenset()
    assert "content.hash" in {row.finding for row in texts(store, frozenset())}


@pytest.mark.parametrize("name", sorted(name for name, damage in DAMAGES.items() if damage.finding in EVERY))
def test_skipped_queries_would_have_found_nothing(name: str, store: Path) -> None:
    plant(name, store)
    every = texts(store, frozenset())
    assert DAMAGES[name].finding in {row.finding for row in every}
    assert texts(store, ruled_out(store)) == every


# --- vectors ---------------------------------------------------------------------------------------------------------


def uniform(store: Path, dimensions: int | None) -> detect.UniformVectors | None:
    with opened(store) as (db, _):
        return detect.read_uniform_vectors(db, dimensions)


def test_vectors_of_a_whole_index_are_counted_by_norm(store: Path) -> None:
    with closing(sqlite3.connect(index(store))) as db:
        vectors = [blob for (blob,) in db.execute("SELECT vector_blob FROM embedding")]
    length = len(vectors[0])
    bars = Counter[str]()
    for blob in vectors:
        norm = math.sqrt(sum(number * number for number in struct.unpack(f"<{length // 4}f", blob)))
        bars[f"{min(int(norm * 10), 100) / 10:.1f}"] += 1
    for dimensions in (None, length // 4):
        found = uniform(store, dimensions)
        assert found is not None
        assert (found.length, found.count) == (length, len(vectors))
        assert sum(found.norms.values()) == len(vectors)
        with opened(store) as (db, _):
            detector = detect.VectorDetector(db, length, is_stated=dimensions is not None)
            assert list(detector.detect()) == []
            assert found.norms == detector.norms()
    assert uniform(store, length // 4 + 1) is None


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE embedding SET vector_blob = zeroblob(length(vector_blob)) WHERE rowid = 3",
        "UPDATE embedding SET vector_blob = x'0000c07f' || substr(vector_blob, 5) WHERE rowid = 3",
        "UPDATE embedding SET vector_blob = x'0000807f' || substr(vector_blob, 5) WHERE rowid = 3",
        "UPDATE embedding SET vector_blob = substr(vector_blob, 5) WHERE rowid = 3",
        "UPDATE embedding SET vector_blob = x'' WHERE rowid = 3",
        "UPDATE embedding SET vector_blob = 'text' WHERE rowid = 1",
        "UPDATE embedding SET vector_blob = (SELECT vector_blob FROM embedding WHERE rowid = 1) WHERE rowid < 4",
        "DELETE FROM embedding",
    ],
)
def test_vectors_that_may_have_a_finding_are_not_uniform(statement: str, store: Path) -> None:
    run_sql(index(store), statement)
    assert uniform(store, None) is None
