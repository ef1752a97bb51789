"""``regraft backfill`` with a real server and a real model: the vectors that it made before come back."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults import said, untouched
from harness import run
from lacking import KB, LACKING, OTHER_TEXTS, TEXTS, backfill, configured, migrated, scope_of, vectors

from regraft import embedders
from regraft.embedders import ServerSettings
from repair.embedding.probing import cosine

pytest.importorskip("openai", reason="the client of embedding servers is not installed")


def test_what_a_v1_base_had_lost_comes_back(real_url: str, tmp_path: Path) -> None:
    texts = [*TEXTS, *OTHER_TEXTS["page"]]
    with embedders.open_embedder(ServerSettings(name="real", model="e5", base_url=real_url)) as embedder:
        made = dict(zip(texts, embedder.embed(texts).vectors, strict=True))
    kept = {text: vector for text, vector in made.items() if text not in LACKING}
    store = migrated(tmp_path, kept.get, "--carry-text")
    assert set(vectors(store)) == set(TEXTS) - set(LACKING)
    # Far enough from no prefix on every processor: small models are computed with few bits.
    instruction = "Instruct: Given a question, retrieve passages that answer it. Query: "
    mistaken = configured(tmp_path / "mistaken.yaml", real_url, prefix=instruction)
    with untouched(store):
        assert "If a prefix is missing" in said(backfill(store, mistaken), "EmbedderDiffers", 2)
    done = backfill(store, configured(tmp_path / "right.yaml", real_url, batch={"texts": 4}, parallel=2))
    assert (done.status, scope_of(done)["newly_ready"]) == (0, len(LACKING))
    assert scope_of(done)["probe"]["cosine"] > 0.999
    found = vectors(store)
    assert min(cosine(made[text], found[text]) for text in TEXTS) >= 0.999
    assert run("check", store, "--json", "--deep").document["findings"] == []
    search = ("--base", KB, "--mode", "vector", "--embedder", "mine", "--config", tmp_path / "right.yaml")
    hits = run("search", store, LACKING[0], "--json", *search).document["hits"]
    assert hits[0]["text"] == LACKING[0]
