"""``regraft reconcile`` of AngelMemory: its collections follow its records, and chromadb can read what it makes."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import angel_store
import pytest
from angel_store import OTHER_PROVIDER, PROVIDER, AngelStore, collection, embed, needs_samples, sample
from extras import needs
from fault_server import FaultServer, Reply, Request, answer, failing, poisoned
from faults import forked, said, untouched
from harness import Outcome, run
from lacking import configured
from stand_ins import KILLED, die
from toys import contents, library, quick_disk

from checks.audit.findings import Finding
from regraft.disk import durable
from regraft.formats.angel_memory import database
from regraft.formats.chroma import core
from regraft.formats.chroma.core import ChromaFailed
from repair.angel_memory import reconcile as reconciling
from repair.changes import execution
from repair.changes import run as changing

pytest.importorskip("openai", reason="the client of embedding servers is not installed")
pytestmark = needs("chroma")

#: What gives chromadb a process of its own.
APART = core.run_in_child
#: What a plain collection of another program's is called here.
MEMORIES = "memory_index"


def as_the_store(request: Request) -> Reply:
    """Answer as the model that the store's vectors are of."""
    return answer(request, [packed(text) for text in request.texts])


def packed(text: str) -> bytes:
    return struct.pack(f"<{angel_store.DIMENSION}f", *embed(text))


@pytest.fixture
def apart() -> None:
    """Let chromadb have a process of its own, as it always has but in tests: that takes a second each time."""


@pytest.fixture(autouse=True)
def _near(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def near(function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            raise ChromaFailed(str(error)) from error

    if "apart" not in request.fixturenames:
        monkeypatch.setattr(core, "run_in_child", near)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as one:
        one.behave = as_the_store
        yield one


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a healthy data folder and a damaged one, as chromadb writes them."""
    place = tmp_path_factory.mktemp("wholes")
    angel_store.build(place / "healthy", real=True)
    angel_store.damaged(place / "damaged", real=True)
    return {name: place / name for name in ("healthy", "damaged")}


@pytest.fixture
def healthy(wholes: dict[str, Path], tmp_path: Path) -> AngelStore:
    return AngelStore(shutil.copytree(wholes["healthy"], tmp_path / "data"), real=True)


@pytest.fixture
def damaged(wholes: dict[str, Path], tmp_path: Path) -> AngelStore:
    return AngelStore(shutil.copytree(wholes["damaged"], tmp_path / "data"), real=True)


def reconcile(store: AngelStore, *options: object) -> Outcome:
    return run("reconcile", store.root, "--json", *options)


def actions(done: Outcome) -> dict[str, int]:
    return {one["action"]: one["count"] for one in done.document["actions"]}


def names(store: AngelStore) -> set[str]:
    """Return what check finds of vectors and providers."""
    found = {one["name"] for one in run("check", store.root, "--json", "--deep").document["findings"]}
    return {name for name in found if name.startswith(("angel.vector", "angel.doc", "angel.meta", "angel.prov"))} | {
        name for name in found if name in ("angel.dimension", "angel.state", "angel.unreadable")
    }


def entries(store: AngelStore, provider: str = PROVIDER) -> dict[str, tuple[str, dict[str, Any], bytes]]:
    """Return what chromadb has, from a copy of it."""
    copy = store.root.parent / "seen"
    shutil.copytree(store.chroma(provider).parent, copy)
    try:
        with collection(copy) as found:
            got = found.get(include=["documents", "metadatas", "embeddings"])
        vectors = [struct.pack(f"<{len(one)}f", *one) for one in got["embeddings"]]
        rows = zip(got["documents"], got["metadatas"], vectors, strict=True)
        return dict(zip(got["ids"], rows, strict=True))
    finally:
        shutil.rmtree(copy)


def expected(store: AngelStore) -> dict[str, tuple[str, dict[str, Any], bytes]]:
    return {key: (text, {"source_id": key}, packed(text)) for key, text in store.texts().items()}


def state(store: AngelStore) -> dict[str, Any]:
    return json.loads(store.state_file.read_text("utf-8"))


def add_collection(store: AngelStore, provider: str = PROVIDER) -> None:
    """Let the system keep its memories' vectors beside those of notes."""
    import chromadb
    from chromadb.config import Settings

    folder = str(store.chroma(provider).parent)
    client = chromadb.PersistentClient(path=folder, settings=Settings(anonymized_telemetry=False))
    found = client.get_or_create_collection(MEMORIES, embedding_function=None)
    found.add(ids=["m1"], documents=["a memory"], embeddings=[[1.0, 2.0]], metadatas=[{"memory_id": "m1"}])
    client.close()


def memory_of(store: AngelStore, provider: str = PROVIDER) -> list[Any]:
    with closing(sqlite3.connect(f"file:{store.chroma(provider)}?mode=ro", uri=True)) as db:
        return db.execute(
            "SELECT e.embedding_id, m.key, m.string_value FROM collections c JOIN segments s ON s.collection = c.id"
            " JOIN embeddings e ON e.segment_id = s.id JOIN embedding_metadata m ON m.id = e.id WHERE c.name = ?"
            " ORDER BY 1, 2",
            (MEMORIES,),
        ).fetchall()


# --- the difference --------------------------------------------------------------------------------------------------


def test_what_the_system_does_and_what_it_forgets(apart, damaged, server, config):
    before = entries(damaged)
    texts = damaged.texts()
    keys = list(texts)
    kept = {key: row[2] for key, row in before.items() if key in texts and key != keys[3]}
    done = reconcile(damaged, "--config", config)
    assert done.status == 0, done
    assert actions(done) == {"add-vectors": 3, "replace-vectors": 1, "update-metadata": 1, "delete-vectors": 2}
    assert entries(damaged) == expected(damaged)
    assert {key: row[2] for key, row in entries(damaged).items() if key in kept} == kept
    lacking = {texts[key] for key in keys[:4]} - {texts[key] for key in kept}
    assert sorted(text for text in server.texts if text in lacking) == sorted(lacking)
    scope = done.document["scopes"][0]
    assert (scope["newly_ready"], scope["failed"]) == (len(lacking), 0)
    assert names(damaged) == set()
    sent = len(server.texts)
    with untouched(damaged.root):
        again = reconcile(damaged)
    assert (again.status, again.document["actions"], again.document["undo"]) == (0, [], None)
    assert len(server.texts) == sent


def test_the_system_can_go_on_with_it(damaged, config):
    assert reconcile(damaged, "--config", config).status == 0
    texts = damaged.texts()
    with collection(damaged.chroma().parent) as found:
        for key, text in texts.items():
            nearest = found.query(query_embeddings=[embed(text)], n_results=1)["ids"][0][0]
            assert texts[nearest] == text, key
        found.add(ids=["note_new"], documents=["new"], embeddings=[embed("new")], metadatas=[{"source_id": "note_new"}])
        assert found.query(query_embeddings=[embed("new")], n_results=1)["ids"] == [["note_new"]]
        assert found.count() == len(texts) + 1


def test_undo_brings_the_old_collection_back(damaged, config):
    before = entries(damaged), damaged.state_file.read_bytes()
    assert reconcile(damaged, "--config", config).status == 0
    # That it was read meanwhile changes nothing.
    with collection(damaged.chroma().parent) as found:
        assert found.count() == len(damaged.texts())
    assert run("undo", damaged.root, "-y").status == 0
    assert (entries(damaged), damaged.state_file.read_bytes()) == before
    assert reconcile(damaged, "--config", config).status == 0


def test_undo_is_refused_once_the_system_went_on(healthy):
    healthy.put_vector("note_before", "before")
    assert reconcile(healthy).status == 0
    healthy.put_vector("note_after", "after")
    said(run("undo", healthy.root, "--json"), "UndoRefused", 2)
    assert "note_after" in entries(healthy)


def test_without_an_embedder_where_none_is_needed(healthy):
    """Orphans, wrong metadata, and a note whose id changed, but not its text."""
    add_collection(healthy)
    memory = memory_of(healthy)
    texts = healthy.texts()
    moved, mislabelled = list(texts)[:2]
    healthy.drop_vectors(moved)
    healthy.put_vector("note_before", texts[moved])
    with collection(healthy.chroma().parent) as found:
        found.update(ids=[mislabelled], metadatas=[{"source_id": "note_x", "more": 1}])
    before = entries(healthy)
    done = reconcile(healthy)
    assert done.status == 0, done
    assert actions(done) == {"add-vectors": 1, "update-metadata": 1, "delete-vectors": 1}
    after = entries(healthy)
    assert after == expected(healthy)
    assert after[moved][2] == before["note_before"][2]
    assert memory_of(healthy) == memory
    assert done.document["embedder"] is None


def test_vectors_that_cannot_be_used(healthy, server, config):
    """Zeros in the queue are replaced."""
    key, text = next(iter(healthy.texts().items()))
    healthy.put_vector(key, text, vector=[0.0] * angel_store.DIMENSION)
    assert names(healthy) == {"angel.vector-unusable"}
    assert reconcile(healthy, "--config", config).status == 0
    assert entries(healthy) == expected(healthy)
    assert server.texts.count(text) == 1


def test_vectors_of_another_length(healthy, config):
    """Chromadb cannot read a collection with such a one; those that are right are kept all the same."""
    key = next(iter(healthy.texts()))
    statement = "UPDATE embeddings_queue SET vector = zeroblob(12) WHERE id = ?"
    healthy.execute(statement, key, path=healthy.chroma())
    assert names(healthy) == {"angel.dimension"}
    done = reconcile(healthy, "--config", config)
    assert done.status == 0, done
    assert done.document["scopes"][0]["newly_ready"] == 1
    assert entries(healthy) == expected(healthy)
    assert names(healthy) == set()


def test_vectors_that_are_lost(healthy, config):
    """They were in files that are gone."""
    key = next(iter(healthy.texts()))
    healthy.execute("UPDATE embeddings_queue SET vector = NULL WHERE id = ?", key, path=healthy.chroma())
    shutil.rmtree(segment_of(healthy))
    assert names(healthy) == {"angel.vector-unusable"}
    done = reconcile(healthy, "--config", config)
    assert done.status == 0, done
    assert entries(healthy) == expected(healthy)
    assert names(healthy) == set()


# --- the provider ----------------------------------------------------------------------------------------------------


def test_another_provider_gets_all_vectors_anew(healthy, server, config):
    healthy.fill(OTHER_PROVIDER, {})
    add_collection(healthy, OTHER_PROVIDER)
    memory, old, fields = memory_of(healthy, OTHER_PROVIDER), entries(healthy), state(healthy)
    done = reconcile(healthy, "--config", config)
    assert done.status == 0, done
    texts = healthy.texts()
    assert actions(done) == {"rebuild-collection": len(texts), "write-state": 1}
    assert entries(healthy, OTHER_PROVIDER) == expected(healthy)
    assert memory_of(healthy, OTHER_PROVIDER) == memory
    assert entries(healthy) == old
    after = state(healthy)
    assert after.pop("notes_vector_sync_last_provider") == OTHER_PROVIDER
    assert after.pop("last_updated_at") > fields.pop("last_updated_at")
    assert after == {key: value for key, value in fields.items() if key in after}
    assert set(texts.values()) <= set(server.texts)
    assert len([text for text in server.texts if text in texts.values()]) == len(set(texts.values()))
    assert names(healthy) == {"angel.provider-leftover"}
    with untouched(healthy.root):
        assert reconcile(healthy).document["actions"] == []


def test_vectors_of_a_stopped_run_and_of_another_model_are_not_mixed(healthy, server, tmp_path):
    """The provider in use has no vector yet that an embedder could be compared with."""
    healthy.fill(OTHER_PROVIDER, {})
    first, second = (configured(tmp_path / f"{name}.yaml", server, encoding=name) for name in ("base64", "float"))
    # Two for the comparison of the embedder with itself.
    server.behave = [as_the_store] * 3 + [failing(401)] * 9
    assert reconcile(healthy, "--config", first).status != 0
    server.behave = lambda request: answer(request, [packed(f"other {text}") for text in request.texts])
    said(reconcile(healthy, "--config", second), "EmbedderDiffers", 2)
    server.behave = as_the_store
    assert reconcile(healthy, "--config", second).status == 0
    assert entries(healthy, OTHER_PROVIDER) == expected(healthy)


def test_a_provider_that_only_the_user_knows(healthy, config):
    done = reconcile(healthy, "--config", config, "--provider", "nova/embed:2")
    assert done.status == 0, done
    assert entries(healthy, "nova_embed_2") == expected(healthy)
    assert state(healthy)["notes_vector_sync_last_provider"] == "nova_embed_2"


def test_a_state_file_that_is_lost(healthy):
    healthy.state_file.unlink()
    done = reconcile(healthy)
    assert (done.status, actions(done)) == (0, {"write-state": 1})
    assert state(healthy)["notes_vector_sync_last_provider"] == PROVIDER
    assert names(healthy) == set()


# --- refused ---------------------------------------------------------------------------------------------------------


def test_an_embedder_of_another_model_writes_nothing(damaged, server, config):
    server.behave = lambda request: answer(request, [packed(f"other {text}") for text in request.texts])
    with untouched(damaged.root):
        said(reconcile(damaged, "--config", config), "EmbedderDiffers", 2)
    done = reconcile(damaged, "--config", config, "--no-probe")
    assert done.status == 0
    assert names(damaged) == set()


def test_without_an_embedder_what_goes_without_is_done(damaged, config):
    planned = reconcile(damaged, "--dry-run")
    done = reconcile(damaged)
    for one in (planned, done):
        assert one.status == 1
        # One of the three has the text of another note, and gets its vector.
        assert actions(one) == {"add-vectors": 1, "update-metadata": 1, "delete-vectors": 2}
        left = [(left["finding"], left["count"]) for left in one.document["left"]]
        assert left == [("angel.document-stale", 1), ("angel.vector-missing", 2)]
        assert one.document["scopes"] == []
    assert names(damaged) == {"angel.document-stale", "angel.vector-missing"}
    assert actions(reconcile(damaged, "--config", config)) == {"add-vectors": 2, "replace-vectors": 1}
    assert entries(damaged) == expected(damaged)


def test_nothing_is_made_anew_without_an_embedder(healthy):
    healthy.fill(OTHER_PROVIDER, {})
    with untouched(healthy.root):
        said(reconcile(healthy), "EmbedderUnnamed", 2)
        planned = reconcile(healthy, "--dry-run")
    assert actions(planned) == {"rebuild-collection": len(healthy.texts()), "write-state": 1}


def test_without_chromadb_the_plan_is_shown(damaged, config, server, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "chromadb"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "chromadb", None)
    with untouched(damaged.root):
        planned = reconcile(damaged, "--config", config, "--dry-run")
        assert planned.status == 0
        assert (
            planned.document["scopes"][0]["planned"]["texts"]
            == planned.document["scopes"][0]["eligible"] - (planned.document["scopes"][0]["skipped_ready"])
        )
        said_so = 'chromadb, which is not installed (install it: pip install "regraft[chroma]")'
        assert said_so in planned.document["missing"]
        text = run("reconcile", damaged.root, "--config", config, "--dry-run").stdout
        assert f"Before a run: {planned.document['missing']}" in text
        assert 'pip install "regraft[chroma]"' in said(reconcile(damaged, "--config", config), "WrongUsage", 2)
    assert server.texts == []


def test_a_system_that_is_running(damaged, config):
    with damaged.opened(damaged.chroma()) as db:
        db.execute("BEGIN IMMEDIATE")
        with untouched(damaged.root):
            said(reconcile(damaged, "--config", config), "StoreBusy", 2)
    with damaged.opened(damaged.file_index) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("SELECT * FROM file_index_global").fetchall()
        said(reconcile(damaged, "--config", config), "ApplicationOpen", 2)
    assert not (damaged.root / ".regraft").exists()


@pytest.mark.thorough
def test_a_collection_of_an_older_chromadb_is_never_changed(apart, damaged, config, server):
    damaged.execute(
        "DELETE FROM migrations WHERE dir = 'metadb' AND version = (SELECT max(version) FROM migrations"
        " WHERE dir = 'metadb')",
        path=damaged.chroma(),
    )
    with untouched(damaged.root):
        said(reconcile(damaged, "--config", config), "CollectionOfOtherVersion", 2)
    assert server.texts == []


def test_a_new_folder_is_of_the_applications_chromadb(healthy, config):
    forget = "DELETE FROM migrations WHERE dir = 'metadb' AND version > 5"
    healthy.execute(forget, path=healthy.chroma())
    before = contents(healthy.root)
    said(reconcile(healthy, "--config", config, "--provider", "new"), "CollectionOfOtherVersion", 2)
    assert not healthy.chroma("new").exists()
    assert {key: value for key, value in contents(healthy.root).items() if key in before} == before


def test_what_chromadb_cannot_write_stays_as_it_is(healthy):
    healthy.put_vector("note_before", "before")
    healthy.execute("DROP TABLE embedding_fulltext_search", path=healthy.chroma())
    before = contents(healthy.root)
    said(reconcile(healthy), "CollectionRefused", 2)
    assert contents(healthy.root) == before


def test_options_that_say_nothing_elsewhere(tmp_path):
    said(run("reconcile", library(tmp_path), "--provider", "x", "--json"), "WrongUsage", 2)


# --- pickles ---------------------------------------------------------------------------------------------------------


class Evil:
    """What, unpickled, makes a file."""

    def __init__(self, trap: Path) -> None:
        self.trap = trap

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.trap),)


def segment_of(store: AngelStore) -> Path:
    return next(path for path in store.chroma().parent.iterdir() if path.is_dir())


def test_a_pickle_that_runs_code_runs_nothing(damaged, config, server, tmp_path):
    import pickle

    trap = tmp_path / "trap"
    (segment_of(damaged) / "index_metadata.pickle").write_bytes(pickle.dumps(Evil(trap)))
    keys = list(damaged.texts())
    kept = {damaged.texts()[key] for key in keys[4:]}
    done = reconcile(damaged, "--config", config)
    assert done.status == 0, done
    assert actions(done) == {"rebuild-collection": len(keys)}
    assert entries(damaged) == expected(damaged)
    assert not trap.exists()
    # The others were still in the queue, where plain SQLite can read them.
    lacking = set(damaged.texts().values()) - kept
    assert done.document["scopes"][0]["newly_ready"] == len(lacking)
    assert set(server.paid[-len(lacking) :]) == lacking
    assert names(damaged) == set()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data folder with so many vectors that most are in files of the collection's own."""
    notes = {"many.md": "".join(f"# heading {number}\n" for number in range(1050))}
    with quick_disk():
        return angel_store.build(tmp_path_factory.mktemp("large") / "data", notes, real=True).root


@pytest.mark.thorough
def test_vectors_in_files_of_the_collection(large, tmp_path):
    store = AngelStore(shutil.copytree(large, tmp_path / "data"), real=True)
    assert (segment_of(store) / "index_metadata.pickle").is_file()
    keys = list(store.texts())
    store.drop_vectors(keys[0])
    store.put_vector("note_before", store.texts()[keys[0]])
    done = reconcile(store)
    assert (done.status, actions(done)) == (0, {"add-vectors": 1, "delete-vectors": 1})
    assert entries(store) == expected(store)


@pytest.mark.thorough
def test_files_of_a_collection_that_cannot_be_read(large, tmp_path, server):
    config = configured(tmp_path / "regraft.yaml", server, batch={"texts": 200})
    store = AngelStore(shutil.copytree(large, tmp_path / "data"), real=True)
    (segment_of(store) / "index_metadata.pickle").write_bytes(b"no pickle")
    orphan(store)
    done = reconcile(store, "--config", config)
    assert done.status == 0, done
    assert actions(done) == {"rebuild-collection": len(store.texts())}
    assert entries(store) == expected(store)
    assert names(store) == set()


def orphan(store: AngelStore) -> None:
    """Take a note away: its vector is one of nothing."""
    key = next(iter(store.texts()))
    store.execute("DELETE FROM note_index_records WHERE source_id = ?", key)


# --- what goes wrong meanwhile ---------------------------------------------------------------------------------------


def test_a_text_that_cannot_be_embedded_is_left(damaged, server, config):
    texts = damaged.texts()
    bad = texts[next(iter(texts))]
    server.behave = poisoned(bad, otherwise=as_the_store)
    done = reconcile(damaged, "--config", config)
    assert done.status == 1
    assert [one["finding"] for one in done.document["left"]] == ["angel.vector-missing"]
    assert done.document["scopes"][0]["failed"] == 1
    assert names(damaged) == {"angel.vector-missing"}
    server.behave = as_the_store
    done = reconcile(damaged, "--config", config)
    assert (done.status, actions(done)) == (0, {"add-vectors": 1})
    assert entries(damaged) == expected(damaged)


@pytest.mark.parametrize("left", [b"", b"no database", None], ids=["empty", "other", "beginning"])
def test_what_is_left_of_a_staging_file_that_was_never_made(damaged, config, left):
    """The disk was full, say."""
    place = damaged.root / ".regraft" / "reconciling" / f"{PROVIDER}.sqlite"
    place.parent.mkdir(parents=True)
    if left is None:
        damaged.execute("CREATE TABLE origin (provider TEXT, model TEXT)", path=place)
    else:
        place.write_bytes(left)
    assert reconcile(damaged, "--config", config, "--dry-run").status == 0
    assert reconcile(damaged, "--config", config).status == 0
    assert names(damaged) == set()
    assert not place.exists()


@pytest.mark.thorough
def test_killed_before_the_collection_is_built_nothing_is_paid_twice(damaged, server, config):
    before = entries(damaged)

    def killed() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(core, "run_in_child", APART)
            patch.setattr(reconciling, "run_command", lambda *args, **more: die())
            reconcile(damaged, "--config", config)

    assert forked(killed) == KILLED
    assert entries(damaged) == before
    sent = list(server.paid)
    done = reconcile(damaged, "--config", config)
    assert done.status == 0, done
    assert entries(damaged) == expected(damaged)
    assert server.paid == sent
    assert not (damaged.root / ".regraft" / "reconciling").exists()


@pytest.mark.thorough
def test_killed_after_its_last_change_the_next_run_leaves_no_work_files(damaged, config):
    work = damaged.root / ".regraft" / "work"

    def killed() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(core, "run_in_child", APART)
            # The run looks for files of earlier ones, too, when it begins.
            patch.setattr(execution, "clear_work_folder", lambda root: work.exists() and die())
            reconcile(damaged, "--config", config)

    assert forked(killed) == KILLED
    assert work.is_dir()
    assert entries(damaged) == expected(damaged)
    done = reconcile(damaged, "--config", config)
    assert (done.status, actions(done)) == (0, {})
    assert not work.exists()
    assert names(damaged) == set()


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 2, 3])
def test_killed_in_the_swap(damaged, server, config, at):
    """Before the old folder goes aside, between both moves, and before the change is recorded as done."""
    before = entries(damaged)
    moves = []

    def killed() -> None:
        real = durable.replace

        def replace(source: Path, target: Path) -> None:
            if "chromadb" in (source.name, target.name) and source.parent.suffix != ".build":
                moves.append(source)
                if len(moves) == at:
                    die()
            real(source, target)
            if at == 3 and len(moves) == 2:
                die()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(core, "run_in_child", APART)
            patch.setattr(durable, "replace", replace)
            reconcile(damaged, "--config", config)

    assert forked(killed) == KILLED
    sent = list(server.paid)
    assert at == 2 or damaged.chroma().is_file()
    done = reconcile(damaged, "--config", config)
    assert done.status == 0, done
    assert entries(damaged) == expected(damaged)
    assert server.paid == sent
    assert names(damaged) == set()
    assert run("undo", damaged.root, "-y").status == 0
    assert entries(damaged) == before


# --- the system's own data -------------------------------------------------------------------------------------------


def clean(store: AngelStore) -> None:
    found = run("check", store.root, "--json", "--deep")
    assert (found.status, found.document["findings"]) == (0, [])
    before = contents(store.root)
    for command in ("repair", "reconcile", "gc"):
        assert run(command, store.root, "--json").document["actions"] == []
    assert contents(store.root) == before


@needs_samples
def test_sample_healthy(tmp_path):
    clean(sample("healthy", tmp_path))


@needs_samples
def test_sample_damaged(tmp_path, config):
    store = sample("damaged", tmp_path)
    assert run("repair", store.root, "-y", "--fail-on", "never").status == 0
    done = reconcile(store, "--config", config, "--no-probe")
    assert done.status == 0, done
    assert run("gc", store.root, "-y").status == 0
    clean(store)
    assert {key: row[:2] for key, row in entries(store).items()} == {
        key: (text, {"source_id": key}) for key, text in store.texts().items()
    }


@needs_samples
def test_sample_after_the_systems_own_sync(tmp_path, config):
    """It has the right ids then, and leaves a stale document and wrong metadata."""
    store = sample("damaged", tmp_path)
    assert run("repair", store.root, "-y", "--fail-on", "never").status == 0
    texts = store.texts()
    with collection(store.chroma().parent) as found:
        there = set(found.get(include=[])["ids"])
        found.delete(ids=sorted(there - texts.keys()))
        missing = sorted(texts.keys() - there)
        found.upsert(
            ids=missing,
            documents=[texts[key] for key in missing],
            embeddings=[embed(texts[key]) for key in missing],
            metadatas=[{"source_id": key} for key in missing],
        )
    before = entries(store)
    done = reconcile(store, "--config", config, "--no-probe")
    assert (done.status, actions(done)) == (0, {"replace-vectors": 1, "update-metadata": 1})
    after = entries(store)
    stale = {key for key, row in before.items() if row[0] != texts[key]}
    assert {key: row[2] for key, row in after.items() if key not in stale} == {
        key: row[2] for key, row in before.items() if key not in stale
    }
    assert names(store) == set()


@needs_samples
def test_sample_with_another_provider(tmp_path, config):
    store = sample("provider_changed_before_sync", tmp_path)
    old = store.chroma().read_bytes()
    assert reconcile(store, "--config", config).status == 0
    assert entries(store, OTHER_PROVIDER).keys() == store.texts().keys()
    assert store.chroma().read_bytes() == old
    done = run("gc", store.root, "--json", "-y")
    assert (done.status, done.document["actions"]) == (1, [])
    assert [one["finding"] for one in done.document["left"]] == ["angel.provider-leftover"]
    assert store.chroma().read_bytes() == old
    assert run("gc", store.root, "--only", "angel.provider-leftover", "-y").status == 0
    assert not (store.root / f"memory_{PROVIDER}").exists()
    clean(store)
    assert database.last_provider(state(store)) == OTHER_PROVIDER


def test_an_undone_run_keeps_the_vectors_it_paid_for(damaged, server, config, monkeypatch):
    remaining = Finding(name="angel.vector-missing", severity="error", message="x", base=None, subject=None, count=1)
    before = damaged.chroma().read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(changing, "_audit_after", lambda *_: iter([remaining]))
        first = reconcile(damaged, "--config", config)
    assert (first.status, first.document["error"]["code"]) == (3, "NotMended")
    assert damaged.chroma().read_bytes() == before
    texts, sent = set(damaged.texts().values()), len(server.texts)
    done = reconcile(damaged, "--config", config)
    assert done.status == 0, done.stderr
    assert [text for text in server.texts[sent:] if text in texts] == []
    assert {key: row[2] for key, row in entries(damaged).items()} == {
        key: packed(text) for key, text in damaged.texts().items()
    }
    assert names(damaged) == set()
