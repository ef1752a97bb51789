"""``regraft search --embedder``: the query's vector comes from a server, and nothing else is sent to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_server import FaultServer, failing, numbers_of, vector_of, wrong_length
from faults import said, untouched
from harness import Outcome, run
from lacking import KB, configured, library
from planted_v2 import run_sql

from regraft import embedders as server_module

pytest.importorskip("openai", reason="the client of embedding servers is not installed")

QUERY = "lamp 3 of the harbour is lit at dusk"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    monkeypatch.setattr(server_module, "FIRST_WAIT_S", 0.0)
    with FaultServer() as one:
        yield one


def search(store: Path, *options: object, query: str = QUERY) -> Outcome:
    return run("search", store, query, "--base", KB, "--json", *options)


@pytest.mark.parametrize("mode", ["hybrid", "vector"])
def test_hits_are_those_of_the_same_vector(
    mode: str, store: Path, tmp_path: Path, server: FaultServer, config: Path
) -> None:
    vector = tmp_path / "vector.json"
    vector.write_text(json.dumps(numbers_of(vector_of(QUERY))), "utf-8")
    with untouched(store):
        found = search(store, "--mode", mode, "--embedder", "mine", "--config", config)
    given = search(store, "--mode", mode, "--vector", vector)
    assert (found.status, found.document["mode"], found.document["hits"]) == (0, mode, given.document["hits"])
    assert found.document["hits"][0]["text"] == QUERY
    assert server.texts == [QUERY]


def test_a_query_has_its_own_prefix(store: Path, tmp_path: Path, server: FaultServer) -> None:
    config = configured(tmp_path / "prefixed.yaml", server, prefix="passage: ", query_prefix="query: ")
    assert search(store, "--mode", "vector", "--embedder", "mine", "--config", config).status == 0
    assert server.texts == [f"query: {QUERY}"]


@pytest.mark.parametrize("query", [QUERY, "lamp"])
def test_words_alone_need_no_server(query: str, store: Path, server: FaultServer, config: Path) -> None:
    found = search(store, "--mode", "bm25", "--embedder", "mine", "--config", config, query=query)
    assert (found.status, found.document["mode"], server.requests) == (0, "bm25", [])


def test_a_base_without_a_model_is_searched_by_words_and_nothing_is_sent(
    tmp_path: Path, server: FaultServer, config: Path
) -> None:
    store = library(tmp_path)
    run_sql(store / "catalog.sqlite", f"UPDATE knowledge_base SET embedding_model_id = NULL WHERE id = '{KB}'")
    found = search(store, "--embedder", "mine", "--config", config)
    assert (found.document["mode"], server.requests) == ("bm25", [])


def test_an_embedder_of_another_model_is_refused(store: Path, tmp_path: Path, server: FaultServer) -> None:
    config = configured(tmp_path / "other.yaml", server, model="embed-large")
    message = said(search(store, "--mode", "vector", "--embedder", "mine", "--config", config), "ModelDiffers", 2)
    assert "the base's model is acme::embed-small" in message
    assert server.requests == []


def test_a_server_that_gives_no_vector(store: Path, server: FaultServer, config: Path) -> None:
    for behaviour, reason in ((failing(500), "no"), (failing(400, "too long"), "400: too long")):
        server.behave = behaviour
        message = said(
            search(store, "--mode", "hybrid", "--embedder", "mine", "--config", config), "QueryNotEmbedded", 2
        )
        assert reason in message
        assert "--mode bm25" in message
    server.behave = wrong_length
    said(search(store, "--mode", "hybrid", "--embedder", "mine", "--config", config), "QueryVectorUnfit", 2)


def test_a_vector_and_an_embedder_exclude_each_other(store: Path, server: FaultServer, config: Path) -> None:
    options = ("--vector", "-", "--embedder", "mine", "--config", config)
    assert "exclude each other" in said(search(store, *options), "WrongUsage", 2)
    assert "no embedder x" in said(
        search(store, "--mode", "vector", "--embedder", "x", "--config", config), "EmbedderUnknown", 2
    )
    assert server.requests == []
