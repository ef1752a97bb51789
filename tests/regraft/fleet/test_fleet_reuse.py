"""``regraft fleet backfill --reuse``: no library sends what another store has, and a store that lies is refused."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from extras import needs
from fault_server import FaultServer, vector_of
from harness import snapshot
from lacking import COMPARED, KB, LACKING, OTHER, OTHER_TEXTS, TEXTS, all_vectors, configured, library, many, vectors
from planted_v2 import index
from three_libraries import MORE, NAMES, backfill, is_filled, rows_in

from regraft import identity
from regraft.fleet.engine import LocalPool
from repair.embedding import vector_sources

pytestmark = needs("parquet")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the jobs in this process, with a cache of their own."""
    monkeypatch.setattr("regraft.api.fleet.LocalPool", LocalPool)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a library with all vectors; no test changes it."""
    return library(tmp_path_factory.mktemp("complete"))


def totals(stores: Path) -> dict[str, dict[str, Any]]:
    return {name: json.loads(row["totals"]) for name, row in rows_in(stores).items()}


def test_only_what_no_store_has_is_sent(stores: Path, complete: Path, tmp_path: Path) -> None:
    before = snapshot(complete)
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server)
        dry = backfill(stores, config, "--reuse", complete, "--dry-run")
        assert (dry.status, server.texts) == (0, [])
        done = backfill(stores, config, "--reuse", complete)
    assert done.status == 0, done
    # Only clara has texts that the other store lacks, for which the embedder is compared.
    assert Counter(server.texts) == Counter({*MORE, *COMPARED})
    assert all(is_filled(stores / name) for name in NAMES)
    assert dry.document["sent"]["reused"] == done.document["sent"]["reused"] == 3 * (len(LACKING) + 1)
    assert done.document["sent"]["distinct"] == len(MORE)
    assert {name: one["reused"] for name, one in totals(stores).items()} == dict.fromkeys(NAMES, len(LACKING) + 1)
    assert snapshot(complete) == before


def test_a_source_of_the_configuration_that_cannot_be_read_is_left_out(
    stores: Path, complete: Path, tmp_path: Path
) -> None:
    """It is not required: no library is refused for it."""
    (tmp_path / "damaged.zip").write_bytes(b"PK\x03\x04" + bytes(200))
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server)
        settings = yaml.safe_load(config.read_text("utf-8"))
        listed = ["gone.zip", "damaged.zip", str(complete)]
        config.write_text(yaml.safe_dump({**settings, "reuse": listed}), "utf-8")
        dry = backfill(stores, config, "--dry-run")
    assert (dry.status, dry.document["sent"]["reused"]) == (0, 3 * (len(LACKING) + 1))


def apart(whole: Path, place: Path, vector_for: Any) -> tuple[Path, Path, list[str]]:
    """Return a folder of one library with 40 texts more, a copy with the vectors of these alone, and the texts."""
    store = shutil.copytree(whole, place / "stores" / "one")
    texts = many(store, 40)
    source = shutil.copytree(store, place / "source")
    with closing(sqlite3.connect(index(source))) as db, db:
        db.execute("DELETE FROM embedding")
        rows = [(identity.text_hash(text), vector_for(text), 1) for text in texts]
        db.executemany("INSERT INTO embedding VALUES (?, ?, ?)", rows)
    return store.parent, source, texts


def test_eight_texts_are_embedded_where_no_text_is_in_both(complete: Path, tmp_path: Path) -> None:
    stores, source, texts = apart(complete, tmp_path, vector_of)
    with FaultServer() as server:
        done = backfill(stores, configured(tmp_path / "regraft.yaml", server), "--reuse", source)
    assert done.status == 0, done
    # Some of them may not fit into one request of the configured size.
    sent = [text for text in server.texts if text in texts]
    assert len(sent) == len(set(sent)) == 8
    assert vectors(stores / "one") == all_vectors([*TEXTS, *texts])


def test_a_store_of_another_model_stops_the_library_that_would_take_from_it(complete: Path, tmp_path: Path) -> None:
    stores, source, texts = apart(complete, tmp_path, lambda text: vector_of(f"another {text}"))
    before = snapshot(stores)
    with FaultServer() as server:
        done = backfill(stores, configured(tmp_path / "regraft.yaml", server), "--reuse", source)
    assert done.status == 2, done
    row = rows_in(stores)["one"]
    assert (row["outcome"], row["code"]) == ("refused", "ReuseDiffers")
    assert len([text for text in server.texts if text in texts]) == 8
    assert snapshot(stores) == before
    assert vectors(stores / "one", OTHER) == all_vectors(OTHER_TEXTS["page"])
    assert vectors(stores / "one", KB) == all_vectors(TEXTS)


def test_a_store_that_lies_about_texts_in_both_is_refused_before_anything_is_sent(
    stores: Path, complete: Path, tmp_path: Path
) -> None:
    liar = shutil.copytree(complete, tmp_path / "liar")
    with closing(sqlite3.connect(index(liar))) as db, db:
        db.execute("UPDATE embedding SET vector_blob = ?", (vector_of("something else"),))
    before = {name: vectors(stores / name) for name in NAMES}
    with FaultServer() as server:
        done = backfill(stores, configured(tmp_path / "regraft.yaml", server), "--reuse", liar)
    assert done.status == 2, done
    assert server.texts == []
    assert {row["code"] for row in rows_in(stores).values()} == {"ReuseDiffers"}
    assert {name: vectors(stores / name) for name in NAMES} == before


def test_the_cache_is_where_the_system_has_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_sources.sys, "platform", "linux")
    monkeypatch.setattr(vector_sources.os, "name", "posix")
    assert vector_sources.cache_folder() == tmp_path / "cache" / "regraft"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert vector_sources.cache_folder() == tmp_path / ".cache" / "regraft"
    monkeypatch.setattr(vector_sources.sys, "platform", "darwin")
    assert vector_sources.cache_folder() == tmp_path / "Library" / "Caches" / "regraft"
