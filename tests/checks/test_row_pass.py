"""The quick passes of ``regraft check`` over an index file find nothing wrong only where the rules of each row hold."""

from __future__ import annotations

import math
import sqlite3
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest
from index_rows import without_index
from planted_v2 import index, plant, run_sql

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


def test_a_content_that_its_index_lacks_rules_out_nothing(store: Path) -> None:
    with without_index(index(store), "sqlite_autoindex_content_1"):
        run_sql(index(store), "INSERT INTO content VALUES ('x', 'another', 1)")
    assert ruled_out(store) == frozenset()
    assert "content.hash" in {row.finding for row in texts(store, frozenset())}


@pytest.mark.parametrize("name", sorted(name for name, damage in DAMAGES.items() if damage.finding in EVERY))
def test_skipped_queries_would_have_found_nothing(name: str, store: Path) -> None:
    plant(name, store)
    every = texts(store, frozenset())
    assert DAMAGES[name].finding in {row.finding for row in every}
    assert texts(store, ruled_out(store)) == every


# --- rules that an index of the table decides ------------------------------------------------------------------------


def rows_of(rule: detect.RowRule, store: Path) -> list[int | None]:
    """Return the rows that a rule finds with the number of bodies known and, after comparing the two, without it."""
    with opened(store) as (db, _):
        count = int(str(db.execute("SELECT count(*) FROM search_text NOT INDEXED").get))
        found = [row.rowid for row in rule.detect(db, count)]
        assert found == [row.rowid for row in rule.detect(db)]
        return found


BODY = "INSERT INTO search_text VALUES ('new', 'search_unit', 'nowhere', 'body', 'text', 'of no vector', 9999, 1)"


@pytest.mark.parametrize(
    ("rule", "lacking"),
    [
        (detect.ORPHAN_BODY, "search_text_target_kind_idx"),
        (detect.BODY_WITHOUT_VECTOR, "search_text_embedding_hash_idx"),
    ],
)
def test_a_body_is_found_even_if_the_index_that_is_searched_lacks_it(rule, lacking, store: Path) -> None:
    assert rows_of(rule, store) == []
    with without_index(index(store), lacking):
        run_sql(index(store), BODY)
    with closing(sqlite3.connect(index(store))) as db:
        [(new,)] = db.execute("SELECT rowid FROM search_text NOT INDEXED WHERE search_text_id = 'new'").fetchall()
        assert db.execute("SELECT count(*) FROM search_text NOT INDEXED").fetchone() == (new,)
        by_index = f"SELECT count(target_id || embedding_text_hash) FROM search_text INDEXED BY {lacking}"
        assert db.execute(by_index).fetchone() == (new - 1,)
    assert rows_of(rule, store) == [new]


def test_a_body_whose_number_its_index_lacks_is_found_without_an_entry(store: Path) -> None:
    with without_index(index(store), "search_text_fts_rowid_uniq"):
        run_sql(index(store), "DROP TRIGGER search_text_ai", BODY)
    with opened(store) as (db, shape):
        count = int(str(db.execute("SELECT count(*) FROM search_text NOT INDEXED").get))
        found = [(row.finding, row.sample) for row in detect.detect_full_text_numbers(db, shape, count)]
        assert found == [("fts.desync", b"new")]
        assert found == [(row.finding, row.sample) for row in detect.detect_full_text_numbers(db, shape, None)]


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
        "UPDATE embedding SET vector_blob = CAST(x'0000c07f' || substr(vector_blob, 5) AS BLOB) WHERE rowid = 3",
        "UPDATE embedding SET vector_blob = CAST(x'0000807f' || substr(vector_blob, 5) AS BLOB) WHERE rowid = 3",
        "UPDATE embedding SET vector_blob = substr(vector_blob, 5) WHERE rowid = 3",
        "UPDATE embedding SET vector_blob = x'' WHERE rowid = 3",
        "UPDATE embedding SET vector_blob = 'text' WHERE rowid = 1",
        "UPDATE embedding SET vector_blob = vector_blob || x'ff' WHERE rowid = 3",
        "UPDATE embedding SET vector_blob = (SELECT vector_blob FROM embedding WHERE rowid = 1) WHERE rowid < 4",
        "DELETE FROM embedding",
    ],
)
def test_vectors_that_may_have_a_finding_are_not_uniform(statement: str, store: Path) -> None:
    run_sql(index(store), statement)
    assert uniform(store, None) is None


# --- time ------------------------------------------------------------------------------------------------------------


def test_statements_are_interrupted_while_they_are_watched_and_not_afterwards() -> None:
    long = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50000) SELECT count(*) FROM n"
    with closing(apsw.Connection(":memory:")) as db:
        with FindingCollector(max_duration=-1).limit_statements(db, 0), pytest.raises(apsw.InterruptError):
            db.execute(long)
        with FindingCollector(max_duration=3600).limit_statements(db, 0):
            assert db.execute(long).get == 50_000
        with FindingCollector(max_duration=-1).limit_statements(db, 0):
            pass
        assert db.execute(long).get == 50_000
