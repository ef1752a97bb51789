"""Migrations into a library whose base has vectors that the source has lost since: none of them goes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from chroma_store import cut_elements, extract, purge_queue
from extras import optional
from faults import Source, item, vector
from harness import NOW, run
from rsclaw_store import RsclawStore


def migrate(source: Path, target: Path, *options: object) -> dict[str, Any]:
    done = run("migrate", source, "--to", target, "--now", NOW, "--json", "--yes", *options)
    assert done.status in (0, 1), done
    return done.document


def vectors_of(library: Path) -> dict[str, bytes]:
    found = {}
    for index in sorted(library.glob("KnowledgeBase/*/.cherry/index.sqlite")):
        with closing(sqlite3.connect(index)) as db:
            found |= dict(db.execute("SELECT embedding_text_hash, vector_blob FROM embedding"))
    return found


def assert_kept(source: Path, target: Path, before: dict[str, bytes], *options: object, base: int = 0) -> None:
    """Migrate again, twice: every vector that was there is there, and the base is said to be kept."""
    for _ in range(2):
        document = migrate(source, target, *options)
        assert vectors_of(target).items() >= before.items()
        assert document["bases"][base]["outcome"] == "unchanged"
        assert "completed_base_kept" in [one["code"] for one in document["warnings"]]


def text(number: int) -> str:
    return f"text {number} of the harbour " + "lamp " * 60


def write(path: Path, numbers: range, **changed: Any) -> None:
    """Write a vector file; ``changed`` has other vectors by the rows' numbers (``n3``)."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "CREATE TABLE vectors (id TEXT PRIMARY KEY, pageContent TEXT UNIQUE, uniqueLoaderId TEXT, source TEXT,"
            " vector BLOB, metadata TEXT)"
        )
        for number in numbers:
            values = changed.get(f"n{number}", vector(number))
            row = (f"L_page_{number}", text(number), "L_page", "/notes/page.md", values)
            db.execute("INSERT INTO vectors VALUES (?, ?, ?, ?, ?, '{}')", row)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    made = Source(tmp_path / "v1")
    made.base("kb", [item("page", "url", "https://example.org/a")])
    write(made.vectors("kb"), range(20))
    made.write()
    return made


pa, pq = optional("pyarrow"), optional("pyarrow.parquet")
NAN = b"\0\0\xc0\x7f" + vector(3)[4:]


@pytest.mark.parametrize("option", [(), ("--carry-text",)])
@pytest.mark.parametrize("lost", [None, NAN, b"", vector(3)[:8], "text"], ids=["null", "nan", "empty", "cut", "text"])
def test_a_row_that_lost_its_vector_in_v1(lost: Any, option: tuple[str, ...], source: Source, tmp_path: Path) -> None:
    migrate(source.folder, tmp_path / "library")
    before = vectors_of(tmp_path / "library")
    write(source.vectors("kb"), range(20), n3=lost)
    assert_kept(source.folder, tmp_path / "library", before, *option)


def test_a_source_that_lost_a_vector_is_not_called_unchanged(source: Source, tmp_path: Path) -> None:
    migrate(source.folder, tmp_path / "library")
    write(source.vectors("kb"), range(20), n3=None)
    said = run("migrate", source.folder, "--to", tmp_path / "library", "--now", NOW, "--yes").stdout
    assert said.endswith("Nothing to do: nothing was written.\n")
    assert "the source has not changed" not in said


def test_a_row_that_lost_its_vector_beside_new_rows(source: Source, tmp_path: Path) -> None:
    """More rows than before, but not all that were there."""
    migrate(source.folder, tmp_path / "library")
    before = vectors_of(tmp_path / "library")
    write(source.vectors("kb"), range(25), n3=None)
    assert_kept(source.folder, tmp_path / "library", before)


def test_new_rows_without_a_vector_keep_no_base_from_being_written(source: Source, tmp_path: Path) -> None:
    migrate(source.folder, tmp_path / "library")
    before = vectors_of(tmp_path / "library")
    write(source.vectors("kb"), range(25), n22=None)
    document = migrate(source.folder, tmp_path / "library")
    assert document["bases"][0]["outcome"] == "written"
    assert document["bases"][0]["rows"]["skipped"] == {"missing_vector_payload": 1}
    after = vectors_of(tmp_path / "library")
    assert len(after) == 24
    assert after.items() >= before.items()


def test_a_damaged_file_with_more_rows_than_before(source: Source, tmp_path: Path) -> None:
    """Some of the rows that were migrated are in the damaged page, and more new ones can be salvaged."""
    migrate(source.folder, tmp_path / "library")
    before = vectors_of(tmp_path / "library")
    path = source.vectors("kb")
    write(path, range(200))
    raw = bytearray(path.read_bytes())
    # Pages of the table's rows begin with 13; what was the first of them may still have old bytes of the row.
    pages = range(0, len(raw), 4096)
    page = next(at for at in pages if raw[at] == 13 and vector(3) in raw[at : at + 4096])
    raw[page : page + 4096] = bytes(4096)
    path.write_bytes(raw)
    assert_kept(source.folder, tmp_path / "library", before, "--salvage")


def test_a_damaged_page_of_rsclaw(tmp_path: Path) -> None:
    store = RsclawStore(tmp_path / "kb")
    for number in range(40):
        store.doc(f"Doc {number}", [f"Paragraph {number} {part} " + "word " * 60 for part in range(3)])
    store.write()
    migrate(store.root, tmp_path / "library")
    before = vectors_of(tmp_path / "library")
    assert len(before) == 120
    raw = bytearray((store.root / "kb.redb").read_bytes())
    raw[raw.index(b"Paragraph 20 1 ")] ^= 1
    (store.root / "kb.redb").write_bytes(raw)
    assert_kept(store.root, tmp_path / "library", before)


def test_a_cut_segment_of_chroma(tmp_path: Path) -> None:
    store = extract("1.5", tmp_path / "source")
    models = ("--map-model", "plain=acme::embed-3", "--base", "plain")
    migrate(store.root, tmp_path / "library", *models)
    before = vectors_of(tmp_path / "library")
    assert len(before) > 80
    purge_queue(store)
    cut_elements(store)
    assert_kept(store.root, tmp_path / "library", before, *models)


def test_the_vector_that_a_row_lost_is_copied_from_the_kept_base(source: Source, tmp_path: Path) -> None:
    """What the documentation advises to get the new rows, too."""
    migrate(source.folder, tmp_path / "library")
    before = vectors_of(tmp_path / "library")
    write(source.vectors("kb"), range(25), n3=None)
    migrate(source.folder, tmp_path / "new", "--carry-text")
    assert len(vectors_of(tmp_path / "new")) == 24
    assert run("repair", tmp_path / "new", "--from", tmp_path / "library").status == 0
    after = vectors_of(tmp_path / "new")
    assert len(after) == 25
    assert after.items() >= before.items()


@pytest.mark.skipif(pq is None, reason="pyarrow is not installed")
@pytest.mark.parametrize(("column", "value"), [("vector", None), ("text", "another text"), ("body_hash", None)])
def test_a_file_of_units_that_lost_a_vector(column: str, value: str | None, source: Source, tmp_path: Path) -> None:
    migrate(source.folder, tmp_path / "library")
    run("export", tmp_path / "library", tmp_path / "whole.parquet")
    table = pq.read_table(tmp_path / "whole.parquet")
    rows = table.to_pylist()
    rows[3][column] = value
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), tmp_path / "less.parquet")

    def imported(name: str) -> dict[str, Any]:
        return run("import", tmp_path / name, "--to", tmp_path / "back", "--now", NOW, "--json").document

    imported("whole.parquet")
    before = vectors_of(tmp_path / "back")
    assert len(before) == 20
    for _ in range(2):
        document = imported("less.parquet")
        assert vectors_of(tmp_path / "back") == before
        assert document["bases"][0]["outcome"] == "unchanged"
        assert "completed_base_kept" in [one["code"] for one in document["warnings"]]
    assert imported("whole.parquet")["bases"][0]["outcome"] == "unchanged"
