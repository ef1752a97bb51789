"""Without a configuration: a dry run says what it would send and what to write, a run asks for it; estimates hold."""

from __future__ import annotations

import shutil
from pathlib import Path

import codex_mem_store
import pytest
import yaml
from fault_server import FaultServer
from faults import said, untouched
from harness import run
from lacking import (
    KB,
    LACKING,
    MODEL,
    OTHER,
    OTHER_TEXTS,
    TEXTS,
    all_vectors,
    backfill,
    configured,
    library,
    scope_of,
    taken_away,
)
from lacking import vectors as vectors_of
from planted_v2 import index, run_sql

import regraft
from regraft import identity
from regraft.embedders import config as configuration
from regraft.embedders.settings import ModelNeed, make_snippet, suggest_config

SNIPPET = {
    "acme": {
        "provider": "openai",
        "base_url": "http://127.0.0.1:11434/v1",
        "model": "embed-small",
        "model_ids": [MODEL],
    }
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def store(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return taken_away(shutil.copytree(whole, tmp_path / "library"))


# --- what is said ----------------------------------------------------------------------------------------------------


def test_a_dry_run_without_a_configuration_says_what_it_takes(store: Path) -> None:
    with untouched(store):
        done = run("backfill", store, "--base", KB, "--dry-run", "--json")
        text = run("backfill", store, "--base", KB, "--dry-run").stdout
    document = done.document
    assert (done.status, document["embedder"]) == (0, None)
    planned = scope_of(done)["planned"]
    assert (planned["texts"], planned["requests"], planned["cost"]) == (len(LACKING), 1, None)
    suggestion = document["suggestion"]
    assert yaml.safe_load(suggestion["snippet"]) == {"embedders": SNIPPET}
    assert "# of Base kb, 8 dimensions" in suggestion["snippet"]
    assert suggestion["next"] == [f"regraft backfill {store} --base {KB}"]
    assert "1 request, cost unknown\n" in text
    assert "Add this to regraft.yaml, and put the key into the environment:\n" in text
    assert text.endswith(f"Next: {suggestion['next'][0]}\n")
    assert regraft.backfill(store, bases=[KB], dry_run=True).suggestion is not None


def test_a_run_without_a_configuration_ends_with_the_same_advice(store: Path) -> None:
    with untouched(store):
        planned = run("backfill", store, "--dry-run", "--json").document["suggestion"]
        refused = run("backfill", store, "--json")
        assert "the file does not exist" in said(refused, "EmbedderUnnamed", 2)
        assert refused.document["error"]["suggestion"]["next"] == planned["next"]
        text = run("backfill", store)
    assert (text.status, text.stdout) == (2, "")
    for line in (
        "regraft: regraft.yaml: the file does not exist",
        "    model: embed-small\n",
        "Next: regraft backfill",
    ):
        assert line in text.stderr


def test_what_is_suggested_is_a_configuration_that_does(store: Path, server: FaultServer, tmp_path: Path) -> None:
    written = run("backfill", store, "--dry-run", "--json").document["suggestion"]["snippet"]
    (tmp_path / "regraft.yaml").write_text(written.replace("http://127.0.0.1:11434/v1", server.url), "utf-8")
    assert run("backfill", store).status == 0
    assert vectors_of(store) == all_vectors()


def test_nothing_is_suggested_where_nothing_lacks_a_vector(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(whole.parent)
    done = run("backfill", whole, "--dry-run", "--json")
    assert (done.status, done.document["suggestion"], done.document["actions"]) == (0, None, [])


def test_a_name_that_nothing_has_is_still_refused(store: Path) -> None:
    with untouched(store):
        said(run("backfill", store, "--dry-run", "--embedder", "mine", "--json"), "EmbedderUnknown", 2)


@pytest.mark.thorough
def test_restore_without_a_configuration(store: Path) -> None:
    with untouched(store):
        done = run("restore", store, "--base", KB, "--dry-run", "--json")
        refused = run("restore", store, "--base", KB, "--json")
        text = run("restore", store, "--base", KB, "--dry-run", "--model", "openai::text-embedding-3-small").stdout
    assert (done.status, done.document["embedder"]) == (0, None)
    assert done.document["scopes"][0]["planned"]["texts"] == len(TEXTS)
    suggestion = done.document["suggestion"]
    assert yaml.safe_load(suggestion["snippet"]) == {"embedders": SNIPPET}
    assert suggestion["next"] == [f"regraft restore {store} --model {MODEL} --base {KB} --dimensions 8"]
    said(refused, "EmbedderUnnamed", 2)
    assert refused.document["error"]["suggestion"] == suggestion
    assert "    api_key_env: OPENAI_API_KEY\n" in text
    assert "cost unknown" in text


def test_rebuild_without_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notes = codex_mem_store.write(tmp_path / "data")
    with untouched(tmp_path):
        done = run("rebuild", notes, "--dry-run", "--json")
        refused = run("rebuild", notes, "--json")
    assert done.status == 0
    assert sum(scope["planned"]["texts"] for scope in done.document["scopes"]) == 12
    assert yaml.safe_load(done.document["suggestion"]["snippet"])["embedders"]
    said(refused, "EmbedderUnnamed", 2)


# --- snippets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        "silicon::BAAI/bge-m3",
        "ollama::bge-m3:latest",
        "openai::text-embedding-3-small",
        "302ai::x",
        "yes::no",
        "嵌入::模型 一",
        'odd::a"b\\c: d # e',
        "embed-small",
        "::",
        "a::b::c",
    ],
)
def test_every_snippet_is_read_again_and_serves_its_model(model: str, tmp_path: Path) -> None:
    place = tmp_path / "regraft.yaml"
    place.write_text(make_snippet([ModelNeed(model_id=model, dimensions=512, label="A base # of: mine")]), "utf-8")
    [settings] = configuration.load_config(place).embedders.values()
    assert settings.serves(model)


def test_several_models_get_an_embedder_each_and_a_command_each() -> None:
    needs = [ModelNeed(model_id=f"acme::{name}", label=name) for name in "aab"] + [
        ModelNeed(model_id="openai::text-embedding-3-large", dimensions=256)
    ]
    made = suggest_config(needs, None, "regraft backfill library")
    found = yaml.safe_load(made.snippet)["embedders"]
    assert list(found) == ["acme", "acme-2", "openai"]
    assert found["openai"]["dimensions"] == 256
    assert made.next == [f"regraft backfill library --embedder {name}" for name in found]


# --- estimates -------------------------------------------------------------------------------------------------------


def without_units(store: Path, text: str) -> None:
    """Take the units of the material that a text is in, with their bodies and vectors."""
    run_sql(
        index(store),
        "CREATE TEMP TABLE gone AS SELECT unit_id, embedding_text_hash FROM search_text JOIN search_unit ON"
        " unit_id = target_id WHERE material_id = (SELECT material_id FROM search_unit JOIN search_text ON"
        f" target_id = unit_id WHERE text = '{text}')",
        "DELETE FROM embedding WHERE embedding_text_hash IN (SELECT embedding_text_hash FROM gone)",
        "DELETE FROM search_text WHERE target_id IN (SELECT unit_id FROM gone)",
        "DELETE FROM search_unit WHERE unit_id IN (SELECT unit_id FROM gone)",
    )


@pytest.mark.thorough
def test_texts_that_are_cut_first_are_part_of_the_estimate(store: Path, server: FaultServer, tmp_path: Path) -> None:
    pytest.importorskip("semantic_text_splitter")
    config = configured(tmp_path / "mine.yaml", server)
    without_units(store, "boat 0 lies at the quay")
    with untouched(store):
        planned = backfill(store, config, "--dry-run").document["scopes"]
        unnamed = run("backfill", store, "--dry-run", "--json").document["scopes"]
    assert [one["planned"]["tokens"] for one in unnamed] == [one["planned"]["tokens"] for one in planned]
    done = backfill(store, config).document["scopes"]
    for before, after in zip(planned, done, strict=True):
        assert before["planned"]["texts"] == after["newly_ready"]
        assert before["planned"]["requests"] == after["requests"]
        assert before["eligible"] == after["eligible"]
    assert sum(one["newly_ready"] for one in done) > 0
    assert any("boat 0 lies at the quay" in text and "boat 3" in text for text in server.texts)


@pytest.mark.thorough
def test_a_text_of_two_bases_is_counted_once(store: Path, server: FaultServer, tmp_path: Path) -> None:
    config = configured(tmp_path / "mine.yaml", server)
    ready = next(one for one in TEXTS if one not in LACKING)
    for old, new in zip(OTHER_TEXTS["page"], (LACKING[0], ready), strict=True):
        values = f"text = '{new}', embedding_text_hash = '{identity.text_hash(new)}'"
        run_sql(index(store, OTHER), f"UPDATE search_text SET {values} WHERE text = '{old}'")
    run_sql(index(store, OTHER), "DELETE FROM embedding")
    planned = {scope["scope"]: scope["planned"] for scope in backfill(store, config, "--dry-run").document["scopes"]}
    assert (planned[OTHER]["texts"], planned[OTHER]["shared"]) == (0, 2)
    text = run("backfill", store, "--config", config, "--dry-run").stdout
    assert "  2 texts more get the vector of an identical text\n" in text
    done = backfill(store, config)
    sent = [text for text in server.texts if text in LACKING]
    assert sum(one["texts"] for one in planned.values()) == len(sent) == len(LACKING)
    assert scope_of(done, OTHER)["shared"] == 2
