"""``--reuse``: vectors that another store has are taken byte for byte, and those of another model never are."""

from __future__ import annotations

import array
import os
import re
import shutil
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import codex_mem_store
import pytest
import yaml
from chroma_store import extract
from codex_mem_vectors import fill, held, right
from extras import needs
from fault_server import FaultServer, vector_of
from faults import forked, untouched
from harness import NOW, run
from lacking import (
    KB,
    KB_TEXTS,
    LACKING,
    MODEL,
    TEXTS,
    all_vectors,
    backfill,
    configured,
    library,
    many,
    scope_of,
    taken_away,
    vectors,
    write_vectors,
)
from planted_v2 import index, run_sql
from rsclaw_store import RsclawStore
from stand_ins import KILLED, die
from whole_rsclaw import healthy

from regraft import identity
from repair.embedding import vector_sources

pytest.importorskip("openai", reason="the client of embedding servers is not installed")

REFUSED = 2
READY = [text for text in TEXTS if text not in LACKING]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test a cache of its own."""
    monkeypatch.setattr(vector_sources, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a v1 folder and the library that it makes; no test changes them."""
    place = tmp_path_factory.mktemp("built")
    library(place)
    return place


@pytest.fixture
def whole(built: Path) -> Path:
    return built / "library"


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    return taken_away(shutil.copytree(whole, tmp_path / "store" / "library"))


def scaled(vector: bytes, factor: float) -> bytes:
    return array.array("f", (number * factor for number in array.array("f", vector))).tobytes()


def other_model(text: str) -> bytes:
    return vector_of(f"{text} as another model sees it")


def with_vectors(store: Path, vector_for: Callable[[str], bytes], texts: list[str] | None = None) -> Path:
    """Replace the vectors of a library's first base; the index keeps only those of ``texts``."""
    with closing(sqlite3.connect(index(store))) as db, db:
        pairs = db.execute("SELECT DISTINCT text, embedding_text_hash FROM search_text").fetchall()
        for text, key in pairs:
            db.execute("UPDATE embedding SET vector_blob = ? WHERE embedding_text_hash = ?", (vector_for(text), key))
            if texts is not None and text not in texts:
                db.execute("DELETE FROM embedding WHERE embedding_text_hash = ?", (key,))
    return store


def taken(store: Path, config: Path, source: Path, *options: object) -> dict[str, Any]:
    """Fill a store from a source, which stays as it is, and return what is said of the first base."""
    with untouched(source):
        done = backfill(store, config, "--reuse", source, *options)
    assert done.status == 0, done
    return scope_of(done)


# --- each kind of source ---------------------------------------------------------------------------------------------


def test_nothing_is_sent_where_a_library_has_every_vector(
    store: Path, whole: Path, server: FaultServer, config: Path
) -> None:
    scope = taken(store, config, whole)
    assert server.texts == []
    assert vectors(store) == all_vectors()
    assert (scope["reused"], scope["newly_ready"], scope["requests"]) == (len(LACKING), len(LACKING), 0)
    assert scope["reused_from"] == [
        {
            "source": str(whole),
            "base": "Base kb",
            "model_id": MODEL,
            "planned": len(LACKING),
            "reused": len(LACKING),
            "compared": len(READY),
            "reason": None,
        }
    ]
    assert run("check", store, "--deep", "--json").document["findings"] == []


def packed(place: Path, whole: Path) -> Path:
    assert run("pack", whole, place / "bases.zip", "--now", NOW, "-q").status == 0
    return place / "bases.zip"


def zipped(place: Path, folder: Path) -> Path:
    with zipfile.ZipFile(place / "backup.zip", "w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))
    return place / "backup.zip"


@pytest.mark.parametrize("kind", ["v1 folder", "v1 archive", "v1 file", "pack", "base folder", "index file"])
def test_each_kind_of_source_has_the_vectors(
    kind: str, store: Path, built: Path, server: FaultServer, config: Path, tmp_path: Path
) -> None:
    whole = built / "library"
    sources: dict[str, Callable[[], Path]] = {
        "v1 folder": lambda: built / "v1",
        "v1 archive": lambda: zipped(tmp_path, built / "v1"),
        "v1 file": lambda: next(path for path in (built / "v1").rglob("kb") if path.is_file()),
        "pack": lambda: packed(tmp_path, whole),
        "base folder": lambda: whole / "KnowledgeBase" / KB,
        "index file": lambda: index(whole),
    }
    scope = taken(store, config, sources[kind]())
    assert server.texts == []
    assert vectors(store) == all_vectors()
    assert scope["reused"] == len(LACKING)


@needs("parquet")
def test_an_export_has_the_vectors(store: Path, whole: Path, server: FaultServer, config: Path, tmp_path: Path) -> None:
    assert run("export", whole, tmp_path / "units.parquet", "-q").status == 0
    taken(store, config, tmp_path / "units.parquet")
    assert (server.texts, vectors(store)) == ([], all_vectors())


def emptied(store: Path, keep: int) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Keep some vectors of the only index of a store; returns all of them, and those that are left."""
    (path,) = store.rglob("index.sqlite")
    query = "SELECT embedding_text_hash, vector_blob FROM embedding ORDER BY 1"
    with closing(sqlite3.connect(path)) as db, db:
        every = dict(db.execute(query))
        for key in sorted(every)[keep:]:
            db.execute("DELETE FROM embedding WHERE embedding_text_hash = ?", (key,))
        return every, dict(db.execute(query))


def stored(store: Path) -> dict[str, bytes]:
    (path,) = store.rglob("index.sqlite")
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        return dict(db.execute("SELECT embedding_text_hash, vector_blob FROM embedding ORDER BY 1"))


def model_of(store: Path) -> str:
    with closing(sqlite3.connect(store / "catalog.sqlite")) as db:
        return str(db.execute("SELECT embedding_model_id FROM knowledge_base").fetchone()[0])


def filled_again(source: Path, target: Path, tmp_path: Path, server: FaultServer) -> None:
    """Take most vectors of a migrated library away, and let the source that it was made from give them back."""
    every, left = emptied(target, 2)
    assert len(left) < len(every)
    config = configured(tmp_path / "own.yaml", server, model_ids=[model_of(target)])
    done = run("backfill", target, "--config", config, "--reuse", source, "--json")
    assert done.status == 0, done
    assert server.texts == []
    assert stored(target) == every


@pytest.mark.thorough
def test_a_folder_of_chroma_has_the_vectors_although_it_names_no_model(tmp_path: Path, server: FaultServer) -> None:
    source = extract("1.5", tmp_path / "source")
    chosen = ("--base", source.collection_id("angles"), "--map-model", "angles=acme::embed-3")
    done = run("migrate", source.root, "--to", tmp_path / "library", *chosen, "--yes", "-q")
    assert done.status in (0, 1), done
    filled_again(source.root, tmp_path / "library", tmp_path, server)


@pytest.mark.thorough
def test_a_knowledge_base_of_rsclaw_has_the_vectors(tmp_path: Path, server: FaultServer) -> None:
    source: RsclawStore = healthy(tmp_path / "kb")
    root = source.write()
    done = run("migrate", root, "--to", tmp_path / "library", "--now", NOW, "--yes", "-q")
    assert done.status in (0, 1), done
    filled_again(root, tmp_path / "library", tmp_path, server)


@pytest.mark.thorough
def test_the_sidecar_of_codex_mem_has_the_vectors(tmp_path: Path, server: FaultServer, config: Path) -> None:
    store = codex_mem_store.write(tmp_path / "data")
    assert fill(store, config, "--all-projects").status == 0
    other = shutil.copytree(tmp_path / "data", tmp_path / "copy") / store.name
    assert run("undo", store, "--yes").status == 0
    some = codex_mem_store.note_id(0, 0)
    assert fill(store, config, "--all-projects", "--limit", 1).status in (0, 1)
    assert some in right(store)
    before = list(server.texts)
    done = fill(store, config, "--all-projects", "--reuse", other)
    assert done.status == 0, done
    assert server.texts == before
    assert held(store) == right(store) == held(other)


def test_a_source_without_texts_or_vectors_is_refused(store: Path, config: Path, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("no store")
    with untouched(store):
        done = backfill(store, config, "--reuse", tmp_path / "note.txt")
        assert (done.status, done.document["error"]["code"]) == (REFUSED, "SourceUnrecognised")
        done = backfill(store, config, "--reuse", tmp_path / "missing")
        assert (done.status, done.document["error"]["code"]) == (REFUSED, "SourceNotFound")
        done = backfill(store, config, "--reuse", store)
        assert (done.status, done.document["error"]["code"]) == (REFUSED, "WrongUsage")


# --- proof of the model ----------------------------------------------------------------------------------------------


def refused(store: Path, config: Path, source: Path, server: FaultServer) -> str:
    """Return the message of a refusal that sends and writes nothing, in a dry run, too."""
    with untouched(store, source):
        planned = backfill(store, config, "--reuse", source, "--dry-run")
        done = backfill(store, config, "--reuse", source)
    assert (done.status, done.document["error"]["code"]) == (REFUSED, "ReuseDiffers")
    assert (planned.status, planned.document["error"]) == (REFUSED, done.document["error"])
    assert server.texts == []
    return str(done.document["error"]["message"])


def test_a_model_name_that_lies_is_refused(
    store: Path, whole: Path, server: FaultServer, config: Path, tmp_path: Path
) -> None:
    source = with_vectors(shutil.copytree(whole, tmp_path / "liar"), other_model)
    message = refused(store, config, source, server)
    assert message.startswith(f"{source}: the vectors of Base kb cannot be used for Base kb: the lowest cosine")
    assert "nothing was written" in message


def test_one_vector_of_another_model_among_those_compared_is_enough(
    store: Path, whole: Path, server: FaultServer, config: Path, tmp_path: Path
) -> None:
    source = shutil.copytree(whole, tmp_path / "mixed")
    with_vectors(source, lambda text: other_model(text) if text == READY[0] else vector_of(text))
    refused(store, config, source, server)


@pytest.mark.thorough
def test_vectors_that_are_not_normalized_are_refused_where_the_others_are(
    store: Path, whole: Path, server: FaultServer, config: Path, tmp_path: Path
) -> None:
    source = with_vectors(shutil.copytree(whole, tmp_path / "long"), lambda text: scaled(vector_of(text), 3))
    message = refused(store, config, source, server)
    assert "its vectors have norm 3, those of Base kb have norm 1: one of them is normalized" in message
    # Without a text in common, the length alone tells.
    apart = with_vectors(shutil.copytree(whole, tmp_path / "apart"), lambda text: scaled(vector_of(text), 3), LACKING)
    assert "its vectors are not normalized" in refused(store, config, apart, server)


def test_rounded_vectors_are_those_of_the_model(
    store: Path, whole: Path, server: FaultServer, config: Path, tmp_path: Path
) -> None:
    def rounded(text: str) -> bytes:
        import numpy as np

        return np.frombuffer(vector_of(text), "<f4").astype(np.float16).astype("<f4").tobytes()

    source = with_vectors(shutil.copytree(whole, tmp_path / "rounded"), rounded)
    taken(store, config, source)
    assert server.texts == []
    assert vectors(store) == {text: rounded(text) if text in LACKING else vector_of(text) for text in TEXTS}


def test_another_model_or_length_gives_nothing(
    store: Path, whole: Path, server: FaultServer, config: Path, tmp_path: Path
) -> None:
    renamed = shutil.copytree(whole, tmp_path / "renamed")
    run_sql(renamed / "catalog.sqlite", "UPDATE knowledge_base SET embedding_model_id = 'acme::another'")
    scope = taken(store, config, renamed)
    assert scope["reused"] == 0
    assert set(LACKING) <= set(server.texts)


def wide(store: Path) -> list[str]:
    """Give a library many texts without vectors, and return them."""
    return many(store, 40)


def without_common_texts(whole: Path, place: Path, vector_for: Callable[[str], bytes]) -> tuple[Path, Path, list[str]]:
    """Return a library with 40 texts more, a copy that has vectors of these alone, and the texts."""
    store = shutil.copytree(whole, place / "target")
    texts = wide(store)
    source = shutil.copytree(store, place / "source")
    with closing(sqlite3.connect(index(source))) as db, db:
        db.execute("DELETE FROM embedding")
        rows = [(identity.text_hash(text), vector_for(text), 1) for text in texts]
        db.executemany("INSERT INTO embedding VALUES (?, ?, ?)", rows)
    return store, source, texts


@pytest.mark.thorough
def test_without_a_text_in_common_eight_are_embedded_first(
    whole: Path, server: FaultServer, config: Path, tmp_path: Path
) -> None:
    store, source, texts = without_common_texts(whole, tmp_path, lambda text: scaled(vector_of(text), 1.0001))
    planned = backfill(store, config, "--reuse", source, "--dry-run")
    assert server.texts == []
    estimate = scope_of(planned)["planned"]
    scope = taken(store, config, source)
    probed = [text for text in server.texts if text in texts]
    # The configured batch has room for three texts; the shortest that fit into one request are compared.
    assert len(probed) == len(set(probed)) == estimate["texts"] == estimate["compared"] == 8
    assert (estimate["reused"], scope["reused"], scope["reused_from"][0]["compared"]) == (40, 40, 8)
    found = vectors(store)
    assert {text: found[text] for text in texts} == {text: scaled(vector_of(text), 1.0001) for text in texts}


def test_an_embedder_that_contradicts_the_source_takes_nothing(
    whole: Path, server: FaultServer, config: Path, tmp_path: Path
) -> None:
    store, source, texts = without_common_texts(whole, tmp_path, other_model)
    with untouched(source):
        done = backfill(store, config, "--reuse", source)
    assert (done.status, done.document["error"]["code"]) == (REFUSED, "ReuseDiffers")
    assert "the vectors that the embedder returns" in done.document["error"]["message"]
    # Eight texts were sent.
    assert "nothing was written. Leave" in done.document["error"]["message"]
    assert sum(text in texts for text in server.texts) == 8
    assert set(vectors(store)) == set(TEXTS)


def test_few_texts_are_sent_rather_than_compared(
    store: Path, whole: Path, server: FaultServer, config: Path, tmp_path: Path
) -> None:
    source = with_vectors(shutil.copytree(whole, tmp_path / "few"), vector_of, LACKING[:3])
    scope = taken(store, config, source)
    assert scope["reused"] == 0
    assert (
        scope["reused_from"][0]["reason"] == "it could fill no more texts than would have to be embedded to verify it"
    )
    assert set(LACKING) <= set(server.texts)


# --- several sources, the configuration -------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_first_source_that_has_a_text_gives_it_and_the_rest_is_sent(
    store: Path, whole: Path, server: FaultServer, config: Path, tmp_path: Path
) -> None:
    some = LACKING[:4]
    first = with_vectors(shutil.copytree(whole, tmp_path / "first"), vector_of, [*some, *READY])
    second = with_vectors(shutil.copytree(whole, tmp_path / "second"), vector_of, [*LACKING[2:6], *READY])
    done = backfill(store, config, "--reuse", first, "--reuse", second)
    assert done.status == 0
    scope = scope_of(done)
    assert [(one["source"], one["reused"]) for one in scope["reused_from"]] == [(str(first), 4), (str(second), 2)]
    assert sorted(set(server.texts) - set(READY)) == sorted(LACKING[6:])
    assert vectors(store) == all_vectors()
    text = run("backfill", taken_away(store), "--config", config, "--reuse", first, "--dry-run").stdout
    assert f"4 vectors reused from {first} (Base kb)" in text


def test_the_configuration_lists_sources_and_one_that_is_missing_is_left_out(
    store: Path, whole: Path, server: FaultServer, config: Path
) -> None:
    settings = yaml.safe_load(config.read_text("utf-8"))
    config.write_text(yaml.safe_dump({**settings, "reuse": ["elsewhere.zip", str(store), str(whole)]}), "utf-8")
    sent = backfill(store, config, "--no-reuse", "--dry-run")
    assert scope_of(sent)["planned"]["texts"] == len(LACKING)
    # Without it, more texts may be sent than the user expects.
    told = run("backfill", store, "--config", config, "--dry-run")
    missing = f"{config.parent / 'elsewhere.zip'}: no such file or folder; check the spelling."
    assert f"a source of vectors in the configuration is left out: {missing}" in told.stderr.splitlines()
    assert "left out" not in run("backfill", store, "--config", config, "--no-reuse", "--dry-run").stderr
    done = backfill(store, config)
    assert done.status == 0, done
    assert (server.texts, vectors(store)) == ([], all_vectors())


@pytest.mark.parametrize("written", ["reuse: backup.zip", "reuse: [3]", "reuse: ['']", "reuse: {a: b}"])
def test_a_list_of_sources_of_another_form_is_refused(written: str, store: Path, config: Path) -> None:
    config.write_text(f"{written}\n{config.read_text('utf-8')}", "utf-8")
    with untouched(store):
        done = backfill(store, config)
    assert (done.status, done.document["error"]["code"]) == (REFUSED, "ConfigInvalid")
    assert "`reuse` must be a list of paths" in done.document["error"]["message"]


def test_no_embedder_is_needed_where_nothing_is_sent(store: Path, whole: Path, tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    missing.write_text("embedders: {}\n")
    done = backfill(store, missing, "--reuse", whole)
    assert done.status == 0, done
    assert vectors(store) == all_vectors()


@pytest.fixture
def unconfigured(tmp_path: Path) -> Path:
    """Return a configuration without an embedder."""
    config = tmp_path / "none.yaml"
    config.write_text("embedders: {}\n")
    return config


@pytest.mark.thorough
def test_without_an_embedder_the_rest_is_named_and_left(
    store: Path, whole: Path, tmp_path: Path, unconfigured: Path, server: FaultServer
) -> None:
    half = with_vectors(shutil.copytree(whole, tmp_path / "half"), vector_of, [*LACKING[:4], *READY])
    before = vectors(store)
    with untouched(store, half):
        planned = backfill(store, unconfigured, "--reuse", half, "--dry-run")
    with untouched(half):
        done = backfill(store, unconfigured, "--reuse", half)
    left = len(LACKING) - 4
    for result in (planned, done):
        assert result.status == 1, result
        [reason] = [one for one in result.document["left"] if one["finding"] == "embedding.missing"]
        assert (reason["base"], reason["count"]) == (KB, left)
        assert "# of Base kb, 8 dimensions\n" in result.document["suggestion"]["snippet"]
        assert reason["reason"] == (
            f"{left} texts left without a vector: no source has one that is proven, and no embedder is configured"
        )
    assert planned.document["scopes"][0]["planned"]["reused"] == 4
    scope = scope_of(done)
    assert (scope["reused"], scope["newly_ready"], scope["requests"], scope["planned"]["texts"]) == (4, 4, 0, 0)
    assert server.texts == []
    assert vectors(store) == {text: vector_of(text) for text in [*READY, *LACKING[:4]]}
    # A second run has nothing to take, and writes nothing.
    with untouched(store):
        again = backfill(store, unconfigured, "--reuse", half)
    assert (again.status, again.document["undo"]) == (1, None)
    assert run("undo", store, "-q", "--yes").status == 0
    assert vectors(store) == before


@pytest.mark.thorough
def test_without_an_embedder_nothing_is_taken_that_cannot_be_compared(
    whole: Path, unconfigured: Path, tmp_path: Path
) -> None:
    store, source, _ = without_common_texts(whole, tmp_path, vector_of)
    with untouched(store, source):
        done = backfill(store, unconfigured, "--reuse", source)
    assert done.status == 1, done
    [nothing] = scope_of(done)["reused_from"]
    assert nothing["reason"] == "no text has a vector in both, and nothing can be compared without an embedder"
    text = run("backfill", store, "--config", unconfigured, "--reuse", source, "--yes").stdout
    assert "no vectors from" in text and "nothing can be compared without an embedder" in text
    assert "nothing was sent, and nothing was written" in text
    assert "embedders:" in text, "the configuration to write is missing"


def test_without_an_embedder_a_model_name_that_lies_is_refused(
    store: Path, whole: Path, unconfigured: Path, tmp_path: Path
) -> None:
    liar = with_vectors(shutil.copytree(whole, tmp_path / "liar"), other_model)
    with untouched(store, liar):
        done = backfill(store, unconfigured, "--reuse", liar)
    assert (done.status, done.document["error"]["code"]) == (REFUSED, "ReuseDiffers")


def test_an_unnamed_source_that_the_canary_contradicts_is_skipped_and_the_rest_goes_on(
    whole: Path, server: FaultServer, config: Path, tmp_path: Path
) -> None:
    store, source, texts = without_common_texts(whole, tmp_path, other_model)
    # An index beside no catalog does not name its model.
    alone = tmp_path / "alone" / "index.sqlite"
    alone.parent.mkdir()
    shutil.copy(index(source), alone)
    some = texts[:12]
    good = shutil.copytree(store, tmp_path / "good")
    with closing(sqlite3.connect(index(good))) as db, db:
        rows = [(identity.text_hash(text), vector_of(text), 1) for text in some]
        db.executemany("INSERT INTO embedding VALUES (?, ?, ?)", rows)
    before = vectors(store)
    with untouched(alone.parent, good):
        done = backfill(store, config, "--reuse", alone, "--reuse", good)
    assert done.status == 1, done
    scope = scope_of(done)
    by_source = {one["source"]: one for one in scope["reused_from"]}
    assert "embedder returns" in by_source[str(alone)]["reason"]
    assert by_source[str(alone)]["reused"] == by_source[str(alone)]["planned"] == 0
    now = vectors(store)
    assert now.items() >= before.items()
    assert all(now[text] == vector_of(text) for text in now)
    taken_now = len(now) - len(before)
    left = sum(one["count"] for one in done.document["left"])
    assert taken_now + left == scope["planned"]["texts"] - scope["planned"]["compared"] + scope["planned"]["reused"]
    # Only what the plan said was sent, and the comparison.
    assert len(server.texts) <= scope["planned"]["texts"] + len(before)
    [reason] = {one["reason"] for one in done.document["left"] if "another model" in one["reason"]}
    assert "run the command again without this source" in reason


# --- resuming, undoing ------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_killed_run_goes_on_and_all_of_it_can_be_undone(
    whole: Path, server: FaultServer, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = taken_away(shutil.copytree(whole, tmp_path / "target"))
    before = vectors(store)
    source = with_vectors(shutil.copytree(whole, tmp_path / "source"), vector_of, [*LACKING[:6], *READY])

    def work() -> None:
        monkeypatch.setattr("repair.embedding.reuse._CHUNK", 2)
        written = []

        def write(self: Any, keys: Any, now_ms: int, original: Any = IndexScope.write) -> Any:
            written.append(keys)
            return die() if len(written) == 3 else original(self, keys, now_ms)

        monkeypatch.setattr(IndexScope, "write", write)
        backfill(store, config, "--reuse", source)

    from repair.cherry_v2.index_vectors import IndexScope

    assert forked(work) == KILLED
    half = vectors(store)
    assert before.keys() < half.keys() < all_vectors().keys()
    scope = taken(store, config, source)
    assert 0 < scope["reused"] < 6
    assert sorted(set(server.texts) - set(READY)) == sorted(LACKING[6:])
    assert vectors(store) == all_vectors()
    assert run("undo", store, "--json").status == 0
    assert run("undo", store, "--json").status == 0
    assert vectors(store) == before


# --- restore ---------------------------------------------------------------------------------------------------------


def test_a_restored_base_takes_vectors_of_its_new_model(
    whole: Path, server: FaultServer, config: Path, tmp_path: Path
) -> None:
    """The old base has another model; a copy of it has the vectors of the new one."""
    store = shutil.copytree(whole, tmp_path / "old")
    run_sql(store / "catalog.sqlite", f"UPDATE knowledge_base SET embedding_model_id = NULL WHERE id = '{KB}'")
    with untouched(whole):
        done = run(
            "restore", store, "--base", KB, "--model", MODEL, "--dimensions", 8, "--config", config,
            "--name", "New", "--reuse", whole, "--json",
        )  # fmt: skip
    assert done.status in (0, 1), done
    (scope,) = done.document["scopes"]
    assert scope["reused"] == len(TEXTS)
    # Nothing has a vector in both: eight texts are compared with the embedder.
    assert len([text for text in server.texts if text in TEXTS]) == 8
    assert vectors(store, scope["scope"]) == all_vectors()


# --- the cache -------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_index_of_a_source_is_kept_until_its_content_changes(
    store: Path, whole: Path, server: FaultServer, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    original = vector_sources._write_index

    def counted(path: Path, *arguments: Any) -> None:
        made.append(path)
        original(path, *arguments)

    monkeypatch.setattr(vector_sources, "_write_index", counted)
    source = with_vectors(shutil.copytree(whole, tmp_path / "source"), vector_of, [*LACKING[:4], *READY])
    path = index(source)
    words = ("--reuse", source, "--dry-run")
    assert scope_of(backfill(store, config, *words))["planned"]["reused"] == 4
    assert scope_of(backfill(store, config, *words))["planned"]["reused"] == 4
    assert made == [source]
    # Another vector: the size of the file and its time stay the same.
    status = path.stat()
    with closing(sqlite3.connect(path)) as db, db:
        old, new = identity.text_hash(LACKING[0]), identity.text_hash(LACKING[8])
        values = (new, vector_of(LACKING[8]), old)
        db.execute(
            "UPDATE embedding SET embedding_text_hash = ?, vector_blob = ? WHERE embedding_text_hash = ?", values
        )
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    taken(store, config, source)
    assert made == [source, source]
    assert sorted(set(server.texts) - set(READY)) == sorted({*LACKING[4:]} - {LACKING[8]} | {LACKING[0]})
    assert vectors(store) == all_vectors()


@pytest.mark.thorough
def test_a_damaged_cache_and_one_that_cannot_be_written_cost_time_only(
    store: Path, whole: Path, server: FaultServer, config: Path, cache: Path
) -> None:
    backfill(store, config, "--reuse", whole, "--dry-run")
    (kept,) = (cache / "reuse").iterdir()
    kept.write_bytes(b"SQLite format 3\0" + bytes(4000))
    assert scope_of(backfill(store, config, "--reuse", whole, "--dry-run"))["planned"]["reused"] == len(LACKING)
    shutil.rmtree(cache)
    cache.write_text("a file where the folder should be")
    taken(store, config, whole)
    assert (server.texts, vectors(store)) == ([], all_vectors())


def test_a_damaged_base_of_a_source_is_passed_over(
    store: Path, built: Path, server: FaultServer, config: Path, tmp_path: Path
) -> None:
    source = shutil.copytree(built / "v1", tmp_path / "v1")
    (damaged,) = (path for path in source.rglob("other") if path.is_file())
    damaged.write_bytes(b"no vectors here")
    taken(store, config, source)
    assert (server.texts, vectors(store)) == ([], all_vectors())


@pytest.mark.parametrize(
    ("length", "reason"),
    [
        (None, "its vector file cannot be read: file is not a database"),
        (4096, r"its vector file is truncated: the last [\d,]+ bytes are missing"),
    ],
)
def test_a_damaged_base_is_named_before_its_texts_are_paid_for(
    length: int | None, reason: str, store: Path, built: Path, config: Path, tmp_path: Path
) -> None:
    source = shutil.copytree(built / "v1", tmp_path / "v1")
    for path in (source / "KnowledgeBase").iterdir():
        path.write_bytes(b"no vectors here" if length is None else path.read_bytes()[:length])
    scope = scope_of(backfill(store, config, "--reuse", source, "--dry-run"))
    (unused,) = scope["reused_from"]
    assert (unused["base"], unused["planned"]) == ("Base kb", 0)
    assert re.fullmatch(reason, unused["reason"])
    assert scope["planned"]["texts"] > 0


def test_a_damaged_index_in_an_archive_is_named(store: Path, whole: Path, config: Path, tmp_path: Path) -> None:
    source = packed(tmp_path, whole)
    name = f"KnowledgeBase/{KB}/.cherry/index.sqlite"
    with zipfile.ZipFile(source) as archive:
        place = archive.getinfo(name).header_offset + 30 + len(name) + 5000
    raw = bytearray(source.read_bytes())
    raw[place] ^= 0xFF
    source.write_bytes(raw)
    scope = scope_of(backfill(store, config, "--reuse", source, "--dry-run"))
    (unused,) = scope["reused_from"]
    assert (unused["base"], unused["planned"]) == ("Base kb", 0)
    assert unused["reason"].startswith(f"it cannot be read: {name} is damaged: Bad CRC-32")


def test_a_text_that_does_not_match_its_hash_gives_no_vector(
    store: Path, whole: Path, server: FaultServer, config: Path, tmp_path: Path
) -> None:
    """A source may say that a vector is of a text that it is not of."""
    source = shutil.copytree(whole, tmp_path / "source")
    key = identity.text_hash(LACKING[0])
    run_sql(index(source), f"UPDATE search_text SET text = 'another text' WHERE embedding_text_hash = '{key}'")
    scope = taken(store, config, source)
    assert scope["reused"] == len(LACKING) - 1
    assert LACKING[0] in server.texts
    assert vectors(store) == all_vectors()


def test_a_source_whose_table_is_a_view_is_not_run(
    store: Path, whole: Path, server: FaultServer, config: Path, tmp_path: Path
) -> None:
    """A view of an untrusted file could run forever: the base is passed over."""
    source = shutil.copytree(whole, tmp_path / "source")
    endless = "WITH RECURSIVE one(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM one) SELECT n AS embedding_text_hash"
    run_sql(
        index(source),
        "ALTER TABLE embedding RENAME TO other",
        f"CREATE VIEW embedding AS {endless}, x'00' AS vector_blob FROM one",
    )
    scope = taken(store, config, source)
    reasons = [one["reason"] for one in scope["reused_from"]]
    assert (scope["reused"], reasons) == (0, ["it cannot be read: its tables are not those of an index"])
    assert vectors(store) == all_vectors()


def test_a_v1_file_with_vectors_of_two_lengths_gives_those_of_the_usual_one(
    store: Path, whole: Path, server: FaultServer, config: Path, tmp_path: Path
) -> None:
    path = tmp_path / "vectors"
    odd = LACKING[0]
    write_vectors(path, KB_TEXTS, lambda text: vector_of(text, 16) if text == odd else vector_of(text))
    scope = taken(store, config, path)
    assert scope["reused"] == len(LACKING) - 1
    assert odd in server.texts
