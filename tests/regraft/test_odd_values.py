"""A value of any type in any column of a library: every command that reads says something, and none fails."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from harness import examples, run
from hypothesis import example, given, settings
from hypothesis import strategies as st
from planted_v2 import KB, index, library, run_sql

VALUES = (
    *("x'00ff'", "x''", "x'7b7d'", "CAST(x'ff41' AS TEXT)", "CAST(x'eda080' AS TEXT)", "'a' || char(0) || 'b'"),
    *("9223372036854775807", "-1", "0", "1.5", "9e999", "-9e999", "NULL", "''", "char(27) || '[31m'"),
    *(
        """'{"a":'""",
        "'[1]'",
        "'true'",
        """'{"source": 1, "content": [], "relativePath": {}}'""",
        "printf('%.*c', 3000, '[')",
    ),
)
TABLES = {
    "knowledge_base": "id name group_id dimensions embedding_model_id status error chunk_size created_at updated_at",
    "knowledge_item": "id base_id group_id type data status error created_at updated_at",
    "user_model": "id provider_id model_id name capabilities",
    "user_provider": "provider_id name",
    "meta": "id schema_version base_id created_at",
    "content": "content_hash text created_at",
    "material": "material_id relative_path current_content_hash created_at",
    "search_unit": "unit_id material_id content_hash unit_type unit_index char_start char_end locator_json",
    "search_text": "search_text_id target_type target_id kind text embedding_text_hash fts_rowid",
    "embedding": "embedding_text_hash vector_blob created_at",
}
COLUMNS = [(table, column) for table, columns in TABLES.items() for column in columns.split()]
READING = (
    ("inspect", "{}", "--json"),
    ("inspect", "{}"),
    ("check", "{}", "--json", "--deep"),
    ("check", "{}", "-v"),
    ("search", "{}", "lamp", "--mode", "bm25", "--base", KB, "--json"),
    ("export", "{}", "{}.parquet"),
    ("history", "{}", "--json"),
    ("pack", "{}", "{}.zip", "--json"),
    ("gc", "{}", "--dry-run", "--json"),
    ("repair", "{}", "--dry-run"),
)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library whose tables take any value."""
    store = library(tmp_path_factory.mktemp("values"))
    for path in (index(store), store / "catalog.sqlite"):
        run_sql(
            path,
            "PRAGMA writable_schema = ON",
            "UPDATE sqlite_schema SET sql ="
            " replace(replace(sql, 'TEXT NOT NULL', 'TEXT'), 'INTEGER NOT NULL', 'INTEGER') WHERE type = 'table'",
        )
    return store


@contextlib.contextmanager
def copied(healthy: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(shutil.copytree(healthy, Path(folder, "library")))


@pytest.mark.thorough
@given(st.sampled_from(COLUMNS), st.sampled_from(VALUES), st.booleans())
@example(("knowledge_base", "name"), "x'00ff'", False)
@example(("knowledge_base", "name"), "9e999", True)
@example(("meta", "schema_version"), "x'00ff'", True)
@settings(max_examples=examples(20))
def test_no_value_makes_a_command_fail(healthy: Path, place: tuple[str, str], value: str, everywhere: bool) -> None:
    table, column = place
    with copied(healthy) as store:
        path = store / "catalog.sqlite" if table.startswith(("knowledge", "user")) else index(store)
        which = "" if everywhere else f" WHERE rowid = (SELECT min(rowid) FROM {table})"
        run_sql(path, f"UPDATE OR IGNORE {table} SET {column} = {value}{which}")
        for words in READING:
            done = run(*(word.format(store) for word in words))
            assert done.status <= 2, (words, done.stderr)
            assert "bug in regraft" not in done.stderr
            if "--json" in words:
                json.loads(done.stdout, parse_constant=pytest.fail)


def test_the_columns_are_those_that_are_there(healthy: Path) -> None:
    for path in (index(healthy), healthy / "catalog.sqlite"):
        with closing(apsw.Connection(str(path))) as db:
            for table, columns in TABLES.items():
                there = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
                assert not there or there.issuperset(columns.split())
