"""``regraft embedders``: what is configured, for which bases, whether it answers, and what to write."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from angel_store import build
from fault_server import FaultServer, Request, answer, server_error
from faults import said, untouched
from harness import run
from lacking import KB, MODEL, configured, library

import regraft

pytest.importorskip("openai", reason="the client of embedding servers is not installed")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def store(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(whole, tmp_path / "library")


def test_without_a_file_it_says_what_to_write(store: Path, tmp_path: Path) -> None:
    with untouched(tmp_path):
        text = run("embedders", store).stdout
        example = run("embedders").stdout
        document = run("embedders", store, "--json").document
        written = run("embedders", store, "--snippet").stdout
    assert text.startswith("regraft.yaml does not exist.\n")
    assert f"no embedder has {MODEL}, 8 dimensions: Base kb, Base other\n" in text
    assert text.endswith(f"Next: regraft embedders {store} --write\n")
    assert yaml.safe_load(written)["embedders"]["acme"]["model_ids"] == [MODEL]
    assert (document["there"], document["written"], document["embedders"], document["tested"]) == (False, False, [], [])
    assert document["models"] == [
        {"model_id": MODEL, "dimensions": 8, "bases": ["Base kb", "Base other"], "embedders": []}
    ]
    assert document["snippet"] == written
    assert "    model: bge-m3\n" in example


def test_it_writes_a_file_once(store: Path, tmp_path: Path) -> None:
    with untouched(store):
        done = run("embedders", store, "--write")
    assert (done.status, done.stdout.splitlines()[0]) == (
        0,
        "Wrote regraft.yaml. Check it; keys belong in environment variables.",
    )
    with untouched(tmp_path):
        assert "regraft.yaml exists" in said(run("embedders", store, "--write", "--json"), "WrongUsage", 2)
        document = run("embedders", store, "--json").document
    assert [(one["name"], one["bases"]) for one in document["embedders"]] == [("acme", ["Base kb", "Base other"])]
    other = tmp_path / "deeper" / "own.yaml"
    other.parent.mkdir()
    assert run("embedders", "--write", "--config", other).status == 0
    assert yaml.safe_load(other.read_text("utf-8"))["embedders"].keys() == {"ollama"}


def test_what_cannot_be_written_is_said(store: Path, tmp_path: Path) -> None:
    refused = run("embedders", "--write", "--config", tmp_path / "nowhere" / "own.yaml", "--json")
    assert refused.document["error"]["exit_status"] == refused.status != 0
    place = tmp_path / "link.yaml"
    place.symlink_to(tmp_path / "elsewhere.yaml")
    assert run("embedders", "--write", "--config", place).status != 0
    assert not (tmp_path / "elsewhere.yaml").exists()


def test_the_table(store: Path, server: FaultServer, tmp_path: Path) -> None:
    configured(tmp_path / "regraft.yaml", server)
    with untouched(tmp_path):
        lines = run("embedders", store, "--base", KB).stdout.splitlines()
    assert lines[:2] == [
        "embedder  provider  model        dimensions  bases",
        "mine      openai    embed-small  -           Base kb",
    ]
    assert lines[-1] == f"Next: regraft backfill {store} --dry-run"
    assert server.requests == []
    assert regraft.list_embedders(store, bases=[KB]).embedders[0].bases == ["Base kb"]


def test_a_model_that_no_embedder_is_of(store: Path, server: FaultServer, tmp_path: Path) -> None:
    configured(tmp_path / "regraft.yaml", server, model="another")
    text = run("embedders", store).stdout
    assert f"\nno embedder has {MODEL}, 8 dimensions: Base kb, Base other\n" in text
    assert text.endswith(f"Next: regraft embedders {store} --snippet\n")
    written = yaml.safe_load(run("embedders", store, "--snippet").stdout)
    assert written["embedders"]["acme"]["model"] == "embed-small"


@pytest.mark.parametrize("words", [("--test",), ("--test", "mine")])
def test_two_texts_are_sent(store: Path, server: FaultServer, tmp_path: Path, words: tuple[str, ...]) -> None:
    configured(tmp_path / "regraft.yaml", server)
    with untouched(tmp_path):
        done = run("embedders", *words)
        [tested] = run("embedders", *words, "--json").document["tested"]
    assert done.status == 0
    assert "mine: 2 vectors of 8 dimensions in " in done.stdout
    assert [len(request.texts) for request in server.requests] == [2, 2]
    assert (tested["dimensions"], tested["code"], tested["problem"]) == (8, None, None)
    assert tested["seconds"] >= 0


def test_whether_vectors_are_of_unit_length(store: Path, server: FaultServer, tmp_path: Path) -> None:
    import struct

    configured(tmp_path / "regraft.yaml", server)
    for length, said_so in ((1.0, ", of unit length\n"), (2.0, ", not of unit length\n")):
        vector = struct.pack("4f", length, 0, 0, 0)
        server.behave = lambda request, vector=vector: answer(request, [vector for _ in request.texts])
        assert said_so in run("embedders", "--test").stdout


def test_one_that_fails_is_said_at_once(store: Path, server: FaultServer, tmp_path: Path) -> None:
    configured(tmp_path / "regraft.yaml", server, retries=100)

    def fail(request: Request) -> object:
        return server_error(request)

    server.behave = fail
    done = run("embedders", "--test")
    assert done.status == 1
    assert "mine: failed: " in done.stdout
    assert len(server.requests) == 1
    said(run("embedders", "--test", "other", "--json"), "EmbedderUnknown", 2)


def test_what_needs_no_vectors(store: Path, tmp_path: Path) -> None:
    angel = build(tmp_path / "angel")
    with untouched(tmp_path):
        assert run("embedders", angel.root, "--json").document["models"] == []
        said(run("embedders", tmp_path / "nothing", "--json"), "SourceNotFound", 2)
        said(run("embedders", store, "--base", "nobody", "--json"), "BaseUnknown", 2)
        v1 = tmp_path.parent / "nothing-of-ours"
        v1.mkdir(exist_ok=True)
        said(run("embedders", v1, "--json"), "SourceUnrecognised", 2)
