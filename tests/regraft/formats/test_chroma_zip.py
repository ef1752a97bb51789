"""Zip archives of a folder of Chroma: read from a temporary copy, and never changed."""

from __future__ import annotations

import json
import shutil
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
from chroma_store import ChromaStore, check, extract, overwrite_links
from extras import needs
from harness import run, snapshot

from regraft.disk.trees import ZipTree


@pytest.fixture
def store(tmp_path: Path) -> ChromaStore:
    return extract("1.5", tmp_path / "source")


def pack(folder: Path, archive: Path, inside: str = "") -> Path:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as written:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                written.write(path, f"{inside}{path.relative_to(folder).as_posix()}")
    return archive


@pytest.mark.thorough
@pytest.mark.parametrize("inside", ["", "backup/of monday/"])
def test_an_archive_is_read_like_its_folder(inside: str, store: ChromaStore, tmp_path: Path) -> None:
    overwrite_links(store)
    archive = pack(store.root, tmp_path / "backup.zip", inside)
    before = archive.read_bytes()
    found = run("inspect", archive, "--json").document
    assert found["source"] == {"kind": "chroma", "path": str(archive)}
    expected = run("inspect", store.root, "--json").document
    assert found["bases"] == expected["bases"]
    problems = check(archive)
    assert problems.keys() == check(store.root).keys() == {"graph"}
    # No command repairs an archive.
    assert problems["graph"][0]["repair"] is None
    assert archive.read_bytes() == before


@pytest.mark.thorough
def test_its_collections_are_migrated_bit_for_bit(store: ChromaStore, tmp_path: Path) -> None:
    archive = pack(store.root, tmp_path / "backup.zip")
    options = ("--base", store.collection_id("plain"), "--map-model", "plain=acme::embed-3", "--yes", "--json")
    found = run("migrate", archive, "--to", tmp_path / "library", *options)
    assert found.status == 0, found.stderr
    (path,) = (tmp_path / "library").rglob("index.sqlite")
    with closing(sqlite3.connect(path)) as db:
        query = "SELECT u.locator_json, t.text, e.vector_blob FROM search_unit u JOIN search_text t ON t.target_id"
        rows = db.execute(f"{query} = u.unit_id JOIN embedding e USING (embedding_text_hash)").fetchall()
    got = {}
    for locator, text, vector in rows:
        entry = json.loads(locator)
        got[entry["chroma_id"]] = {"vector": vector.hex(), "document": text, "metadata": entry["metadata"]}
    assert got == store.expected["plain"]


@needs("parquet")
def test_its_entries_are_exported(store: ChromaStore, tmp_path: Path) -> None:
    archive = pack(store.root, tmp_path / "backup.zip")
    for source, name in ((archive, "one"), (store.root, "other")):
        assert run("export", source, tmp_path / f"{name}.parquet").status == 0
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "other.parquet").read_bytes()


def test_the_data_folder_of_open_webui(store: ChromaStore, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(store.root, data / "vector_db")
    key = "0f0f0f0f-0000-4000-8000-000000000001"
    store = ChromaStore(data / "vector_db", store.expected)
    store.execute("UPDATE collections SET name = ? WHERE name = 'plain'", key)
    with closing(sqlite3.connect(data / "webui.db")) as db:
        db.execute("CREATE TABLE knowledge (id TEXT, name TEXT)")
        db.execute("INSERT INTO knowledge VALUES (?, 'Handbook')", (key,))
        db.commit()
    found = run("inspect", pack(data, tmp_path / "data.zip"))
    assert "knowledge base Handbook" in found.stdout
    assert found.stdout.splitlines()[1:] == run("inspect", data).stdout.splitlines()[1:]


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["repair", "gc", "undo"])
def test_an_archive_is_not_changed(command: str, store: ChromaStore, tmp_path: Path) -> None:
    archive = pack(store.root, tmp_path / "backup.zip")
    before = snapshot(tmp_path)
    found = run(command, archive, "--yes")
    assert (found.status, found.stderr) == (
        2,
        f"regraft: {archive}: this is a folder of Chroma, which regraft {command} does not take; extract it first.\n",
    )
    assert snapshot(tmp_path) == before


def test_members_that_lead_elsewhere_are_refused(store: ChromaStore, tmp_path: Path) -> None:
    archive = pack(store.root, tmp_path / "backup.zip")
    with zipfile.ZipFile(archive, "a") as written:
        written.writestr("../outside", "x")
    before = snapshot(tmp_path)
    found = run("check", archive)
    assert found.status == 2
    assert "the archive is not safe to read" in found.stderr
    assert found.stderr.count("\n") == 1
    assert snapshot(tmp_path) == before


def test_a_damaged_member_is_one_line(store: ChromaStore, tmp_path: Path) -> None:
    archive = tmp_path / "backup.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as written:
        written.write(store.database, "chroma.sqlite3")
    raw = bytearray(archive.read_bytes())
    raw[5000] ^= 0xFF
    archive.write_bytes(raw)
    found = run("check", archive)
    assert found.status == 2
    assert "chroma.sqlite3" in found.stderr
    assert found.stderr.count("\n") == 1


def test_folders_of_empty_files_are_not_extracted(store: ChromaStore, tmp_path: Path) -> None:
    """An archive can list very many of them; a folder with one byte is there as before."""
    archive = pack(store.root, tmp_path / "backup.zip")
    empty, orphan = (f"0f0f0f0f-0000-4000-8000-00000000000{number}" for number in (1, 2))
    with zipfile.ZipFile(archive, "a") as written:
        for name in ("header.bin", "data_level0.bin"):
            written.writestr(f"{empty}/{name}", b"")
            written.writestr(f"{orphan}/{name}", b"x" if name == "header.bin" else b"")
    (found,) = check(archive)["segment-orphan"]
    assert (found["count"], found["samples"]) == (1, [orphan])


def test_an_empty_file_in_an_archive_is_read_as_such(tmp_path: Path) -> None:
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as written:
            written.writestr("empty", b"")
            written.writestr("one", b"1")
        with closing(ZipTree(tmp_path / "a.zip")) as tree, tree.open("empty") as empty, tree.open("one") as one:
            assert (empty.read(), one.read()) == (b"", b"1")
