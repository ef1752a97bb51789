"""Large texts in Parquet files: written and read piece by piece, the same comes of them as of texts held whole."""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path
from typing import Any

import apsw
import pytest
from extras import needs, optional
from harness import NOW_MS
from hypothesis import given, settings
from hypothesis import strategies as st
from large_texts import everywhere
from parquet_bases import BASE, built, indexes_of, tables_of, there_and_back

from migrators.parquet.index_builder import ImportedIndex, verify_index
from regraft import identity
from regraft.disk import sqlite
from regraft.formats.parquet import unit_file
from regraft.formats.parquet.unit_file import FileMetadata, UnitRow
from regraft.text import utf16_len

pa, pq = optional("pyarrow"), optional("pyarrow.parquet")
pytestmark = needs("parquet")

TEXTS = st.text(st.sampled_from("a\n\0é文🎉"), max_size=12)


def pieces(patch: pytest.MonkeyPatch, size: int) -> None:
    """Let texts of an import be large from a few bytes on, and pieces be small."""
    everywhere(patch, size)
    large = importlib.import_module("migrators.parquet.index_builder")
    for module in (large, unit_file):
        patch.setattr(module, "LARGE_BYTES", 4)
    patch.setattr(large, "PIECE_BYTES", size)
    patch.setattr(large, "_STEP_BYTES", 3 + size)
    patch.setattr(unit_file, "LARGE_GROUP_BYTES", 4)


@st.composite
def materials(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return rows of two materials: slices of a content, or what is called so."""
    rows = []
    for name in ("one", "two"):
        bodies = draw(st.lists(TEXTS, min_size=1, max_size=4))
        content = draw(st.sampled_from(["\n\n".join(bodies), "x".join(bodies), "".join(bodies)]) | TEXTS)
        start = 0
        for number, body in enumerate(bodies):
            at = draw(st.sampled_from([start, content.find(body), start + 1]) | st.integers(0, 20))
            place = max(at, 0)
            rows.append(
                {
                    "item": name,
                    "unit_index": number,
                    "text": body,
                    "char_start": place,
                    "char_end": place + draw(st.sampled_from([utf16_len(body)] * 4 + [1])),
                    "content_hash": identity.text_hash(draw(st.sampled_from([content] * 5 + [body]))),
                    "content": content if number == draw(st.integers(0, 4)) else None,
                }
            )
            start += utf16_len(body) + 2
    return draw(st.permutations(rows))


def _row(said: dict[str, Any], number: int) -> UnitRow:
    empty = dict.fromkeys((*unit_file.COLUMNS, unit_file.VECTOR_COLUMN))
    key = identity.text_hash(said["text"])
    vector = key[:8].encode() if number % 2 else None
    return UnitRow(**{**empty, "base": BASE, "path": said["item"], "body_hash": key, "vector": vector, **said})


def _viewed(row: UnitRow) -> UnitRow:
    """Return a row as a file gives it where every text is large."""
    values = {name: getattr(row, name) for name in (*unit_file.COLUMNS, unit_file.VECTOR_COLUMN)}
    for name in ("text", "content"):
        if values[name] is not None:
            values[name] = memoryview(values[name].encode())
    return UnitRow(**values)


def _index(path: Path, rows: list[UnitRow]) -> tuple[dict[str, Any], int]:
    with sqlite.open_writable(path, create=True) as db:
        made = ImportedIndex(BASE, NOW_MS, db)
        for row in rows:
            made.add(row)
        made.finish([])
    verify_index(path, BASE, made)
    return tables_of(path), made.remade


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(said=materials(), size=st.sampled_from([1, 3, 64]))
def test_large_rows_make_the_same_index(tmp_path_factory: pytest.TempPathFactory, said: Any, size: int) -> None:
    folder = tmp_path_factory.mktemp("rows")
    rows = [_row(one, number) for number, one in enumerate(said)]
    whole = _index(folder / "whole.sqlite", rows)
    with pytest.MonkeyPatch.context() as patch:
        pieces(patch, size)
        assert _index(folder / "pieces.sqlite", [_viewed(row) for row in rows]) == whole


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(texts=st.dictionaries(st.sampled_from(["one", "two"]), st.lists(TEXTS, min_size=1, max_size=4), min_size=1))
def test_large_texts_come_back(tmp_path_factory: pytest.TempPathFactory, texts: dict[str, list[str]]) -> None:
    folder = tmp_path_factory.mktemp("texts")
    source = built(folder / "source", texts)
    with pytest.MonkeyPatch.context() as patch:
        pieces(patch, 3)
        back, _, imported = there_and_back(folder, source)
    assert indexes_of(back) == {BASE: tables_of(source)}
    assert imported["bases"][0]["remade"] == 0


def test_a_large_content_of_its_own_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = built(tmp_path / "source", {"one": ["wide 🎉 words"]})
    content = "before wide 🎉 words, and after"
    key, start = identity.text_hash(content), 7
    unit = identity.unit_id("one", key, 0, start, start + utf16_len("wide 🎉 words"))
    with apsw.Connection(str(source)) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("UPDATE content SET content_hash = ?, text = ?", (key, content))
        db.execute("UPDATE material SET current_content_hash = ?", (key,))
        places = (unit, key, start, start + utf16_len("wide 🎉 words"))
        db.execute("UPDATE search_unit SET unit_id = ?, content_hash = ?, char_start = ?, char_end = ?", places)
        db.execute("UPDATE search_text SET search_text_id = ?, target_id = ?", (identity.body_id(unit), unit))
    db.close()
    pieces(monkeypatch, 2)
    back, _, imported = there_and_back(tmp_path, source)
    assert indexes_of(back) == {BASE: tables_of(source)}
    assert imported["bases"][0]["remade"] == 0


def test_a_large_row_stands_in_a_row_group_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = [_row({"item": "one", "unit_index": number, "text": "ab"}, number) for number in range(3)]
    rows = [*small, _row({"item": "two", "unit_index": 0, "text": "much longer"}, 0), *small]
    everywhere(monkeypatch, 8)
    monkeypatch.setattr(importlib.import_module("regraft.formats.parquet.unit_file"), "LARGE_BYTES", 4)
    path = tmp_path / "rows.parquet"
    with unit_file.write_units(path, FileMetadata(1, "v2", 2, [])) as target:
        for row in rows:
            values = {name: getattr(row, name) for name in (*unit_file.COLUMNS, unit_file.VECTOR_COLUMN)}
            is_long = len(row.text) > 4
            target.add(UnitRow(**{**values, "text": row.text.encode() if is_long else row.text}))
            if is_long:
                # A true one fills its row group.
                target.flush()
    file = pq.ParquetFile(path)
    assert [file.metadata.row_group(one).num_rows for one in range(file.num_row_groups)] == [3, 1, 3]
    assert file.read().column("text").to_pylist() == [row.text for row in rows]
    found = [row.text for row in unit_file.read_rows(path)]
    assert [one if isinstance(one, str) else bytes(one).decode() for one in found] == [row.text for row in rows]


def test_views_of_large_texts_outlive_their_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [_row({"item": "one", "unit_index": number, "text": f"text {number} " * 5}, number) for number in range(5)]
    with unit_file.write_units(tmp_path / "rows.parquet", FileMetadata(1, "v2", 2, [])) as target:
        for row in rows:
            target.add(row)
    pieces(monkeypatch, 8)
    found = list(unit_file.read_rows(tmp_path / "rows.parquet"))
    assert [hashlib.sha256(row.text).hexdigest() for row in found] == [row.body_hash for row in rows]
    assert [row.vector for row in found] == [row.vector for row in rows]
