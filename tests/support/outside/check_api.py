"""Calls each function of ``import regraft`` once, as another program does: on the sample, in a folder of its own."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import regraft
from regraft import api
from regraft.errors import RegraftError
from regraft.options import CheckOptions

BACKUP = Path(os.environ["SAMPLE"])
BASE = "Boat workshop"
DIMENSIONS = 8
CHANGING = ("gc", "reconcile", "upgrade", "fix", "repair")


class Embeds(BaseHTTPRequestHandler):
    """Answers as a server of embeddings does."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        data = [
            {"object": "embedding", "index": place, "embedding": [byte / 255 for byte in _digest(text)]}
            for place, text in enumerate(asked["input"])
        ]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        body = json.dumps({"object": "list", "data": data, "model": "m", "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:DIMENSIONS]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Embeds)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    embedder = {
        "provider": "openai",
        "base_url": f"http://127.0.0.1:{server.server_port}/v1",
        "model": "embed-small",
        "model_ids": ["acme::embed-small"],
        "encoding": "float",
    }
    path = tmp_path_factory.mktemp("config") / "regraft.yaml"
    path.write_text(json.dumps({"embedders": {"mine": embedder}}), "utf-8")
    yield path
    server.shutdown()
    server.server_close()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    regraft.migrate(BACKUP, tmp_path / "library")
    return tmp_path / "library"


def index_of(library: Path, name: str = BASE) -> Path:
    with sqlite3.connect(library / "catalog.sqlite") as db:
        ((base,),) = db.execute("SELECT id FROM knowledge_base WHERE name = ?", (name,))
    return library / "KnowledgeBase" / base / ".cherry" / "index.sqlite"


def vectors(index: Path) -> dict[str, bytes]:
    with sqlite3.connect(index) as db:
        return dict(db.execute("SELECT embedding_text_hash, vector_blob FROM embedding"))


def test_migrate_and_encoded(tmp_path: Path) -> None:
    report = regraft.migrate(BACKUP, tmp_path / "library")
    rows = report.totals.rows
    assert rows.read == rows.carried + sum(rows.skipped.values()) == 76
    assert json.loads(json.dumps(regraft.encoded(report)))["totals"]["rows"]["carried"] == rows.carried
    assert len(vectors(index_of(tmp_path / "library"))) > 0


def test_what_reads(library: Path) -> None:
    before = {path: path.read_bytes() for path in library.rglob("*") if path.is_file()}
    assert BASE in {base.name for base in regraft.inspect(library).bases}
    assert {one.severity for one in regraft.check(library, CheckOptions(level="deep")).findings} <= {"note", "warning"}
    with sqlite3.connect(f"{index_of(library).as_uri()}?immutable=1", uri=True) as db:
        text = db.execute("SELECT text FROM search_text ORDER BY rowid").fetchone()[0]
    word = next(word for word in text.split() if word.isalpha() and len(word) > 4)
    hits = regraft.search(library, word, base=BASE, mode="bm25", count=3).hits
    assert hits
    assert all(word.lower() in hit.text.lower() for hit in hits)
    assert regraft.encoded(regraft.compare(BACKUP, library))
    assert regraft.history(library).runs is not None
    assert regraft.encoded(regraft.list_embedders(library))
    assert {path: path.read_bytes() for path in library.rglob("*") if path.is_file()} == before


def test_export_and_import(library: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    regraft.export(library, tmp_path / "units.parquet", bases=[BASE])
    regraft.import_([tmp_path / "units.parquet"], tmp_path / "again")
    assert vectors(index_of(tmp_path / "again")) == vectors(index_of(library))


def test_certify(library: Path) -> None:
    report = regraft.certify(BACKUP, library)
    # The backup's vector file of this base is truncated.
    assert {one.base_name for one in report.findings if one.severity == "error"} == {"Old clippings"}
    assert regraft.encoded(report)["findings"]


def test_import_as_a_collection(library: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    chromadb = pytest.importorskip("chromadb")
    regraft.export(library, tmp_path / "units.parquet", bases=[BASE])
    regraft.import_collection([tmp_path / "units.parquet"], tmp_path / "chroma", collection="boats")
    found = chromadb.PersistentClient(tmp_path / "chroma").get_collection("boats").get(include=["embeddings"])
    stored = {struct.pack(f"<{len(one)}f", *one) for one in found["embeddings"].tolist()}
    assert stored == set(vectors(index_of(library)).values())


def test_pack(library: Path, tmp_path: Path) -> None:
    regraft.pack(library, tmp_path / "boats.zip", bases=[BASE])
    assert [base.name for base in regraft.inspect(tmp_path / "boats.zip").bases] == [BASE]


def test_repair_and_undo(library: Path) -> None:
    index = index_of(library)
    with sqlite3.connect(index) as db:
        db.execute("UPDATE search_unit SET unit_id = 'wrong' WHERE rowid = (SELECT min(rowid) FROM search_unit)")
        db.execute(
            "UPDATE search_text SET target_id = 'wrong' WHERE target_id NOT IN (SELECT unit_id FROM search_unit)"
        )
    db.close()
    with sqlite3.connect(index) as db:
        damaged = db.execute("SELECT * FROM search_unit ORDER BY 1").fetchall()
    done = regraft.repair(library)
    assert done.actions
    assert not [one for one in regraft.check(library).findings if one.severity == "error"]
    regraft.undo(library)
    with sqlite3.connect(index) as db:
        assert db.execute("SELECT * FROM search_unit ORDER BY 1").fetchall() == damaged


@pytest.mark.parametrize("name", CHANGING)
def test_nothing_to_do_changes_nothing(library: Path, name: str) -> None:
    before = vectors(index_of(library))
    report = getattr(regraft, name)(library)
    assert report.undo is None or report.actions
    assert vectors(index_of(library)) == before


def test_commands_that_need_a_profile_say_so(library: Path) -> None:
    before = sorted(library.rglob("*"))
    for call in (
        lambda: regraft.rescue(library),
        lambda: regraft.install(library, library),
        lambda: regraft.migrate_into_profile(BACKUP, library, library.with_name("new")),
    ):
        with pytest.raises(RegraftError) as caught:
            call()
        assert caught.value.exit_status == 2, caught.value
    assert sorted(library.rglob("*")) == before
    assert not library.with_name("new").exists()


def test_backfill_and_restore(library: Path, config: Path) -> None:
    made = regraft.restore(
        library, base=BASE, config=config, embedder="mine", model="acme::embed-small", dimensions=DIMENSIONS, name="New"
    )
    assert made.actions
    index = index_of(library, "New")
    with sqlite3.connect(index) as db:
        for text, vector in db.execute(
            "SELECT text, vector_blob FROM search_text JOIN embedding USING (embedding_text_hash)"
        ):
            assert vector == struct.pack(f"<{DIMENSIONS}f", *(byte / 255 for byte in _digest(text)))
        before = vectors(index)
        db.execute("DELETE FROM embedding WHERE rowid = (SELECT min(rowid) FROM embedding)")
    db.close()
    regraft.backfill(library, bases=["New"], config=config, embedder="mine")
    assert vectors(index) == before


def test_a_base_follows_a_folder(library: Path, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "buoy.md").write_text("the buoy was painted red")
    before = vectors(index_of(library))
    done = regraft.sync(library, bases=[BASE], sources=[folder], embed=False)
    assert [action.action for action in done.actions].count("add-text") == 1
    with sqlite3.connect(index_of(library)) as db:
        found = db.execute("SELECT text FROM search_text WHERE text LIKE '%buoy%'").fetchall()
    db.close()
    assert found == [("the buoy was painted red",)]
    assert vectors(index_of(library)) == before


def test_notes_of_codex_mem(config: Path) -> None:
    database = Path(os.environ["CODEX_MEM"])
    assert regraft.clear_failed(database).actions == []
    done = regraft.rebuild(database, config=config, embedder="mine")
    assert sum(scope.newly_ready for scope in done.scopes) > 0


def test_lines_of_angel_memory() -> None:
    assert regraft.recall(Path(os.environ["ANGEL_MEMORY"]), 0, first=2).content == "two\nthree"


def test_every_function_is_called_here() -> None:
    source = Path(__file__).read_text("utf-8")
    assert {name for name in api.__all__ if f"regraft.{name}(" not in source} <= set(CHANGING)
