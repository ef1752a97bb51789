"""Every command that ``check`` offers does something about what it is offered for, in every kind of store.

Where none would, the finding says why. Of profiles, ``test_rescue.py`` has the same.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import angel_store
import codex_mem_store
import pytest
from extras import needs
from fault_server import FaultServer, answer
from harness import command_words, run_as_given
from lacking import configured
from planted_codex_mem import PLANTINGS, copied, templates
from planted_rsclaw import PLANTINGS as PLANTINGS_OF_RSCLAW
from planted_rsclaw import planted
from planted_v2 import library, plant

from regraft.testing import DAMAGES

__all__ = ["templates"]

#: What v2 findings need an embedder of.
MODEL = "acme::embed-3"
#: One line may bring up what another mends.
MOST_LINES = 12


pytest.importorskip("openai", reason="the client of embedding servers is not installed")


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    with FaultServer() as started:
        yield started


def findings(store: Path) -> list[dict[str, Any]]:
    """Return what the deepest look finds."""
    return list(run_as_given("check", store, "--deep", "--json").document["findings"])


def counts(found: list[dict[str, Any]]) -> Counter[tuple[str, str | None]]:
    """Return how many things there are of each name in each base."""
    numbers: Counter[tuple[str, str | None]] = Counter()
    for one in found:
        numbers[one["name"], one["base"]] += one["count"]
    return numbers


def run_all_lines(store: Path, *more: str) -> list[dict[str, Any]]:
    """Run each line that is offered, and assert that less is found of what it was offered for; return what is left."""
    tried: set[str] = set()
    found = findings(store)
    for _ in range(MOST_LINES):
        new = next((one for one in found if one["repair"] is not None and one["repair"] not in tried), None)
        if new is None:
            assert not [one["repair"] for one in found if one["repair"] is not None]
            return found
        tried.add(new["repair"])
        words = command_words(new["repair"])[1:]
        options = more if words[0] == "backfill" else ()
        done = run_as_given(*words, *options, "--yes", "--json")
        key = new["name"], new["base"]
        before, found = found, findings(store)
        assert counts(found)[key] < counts(before)[key], (new["repair"], done.stdout, done.stderr)
    raise AssertionError(f"more is offered after {MOST_LINES} runs: {tried}")


#: One damage of each finding is tried by make test: the line follows from the finding, not from how it came about.
FIRST = {case.finding: name for name, case in reversed(DAMAGES.items())}.values()


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "name", [name if name in FIRST else pytest.param(name, marks=pytest.mark.slow) for name in DAMAGES]
)
def test_of_a_library(name, tmp_path, server, monkeypatch):
    store = library(tmp_path)
    plant(name, store)
    configured(tmp_path / "regraft.yaml", server, model_ids=[MODEL], dimensions=4)
    monkeypatch.chdir(tmp_path)
    run_all_lines(store, "--no-probe")


def test_what_a_plan_leaves_says_why(tmp_path):
    store = library(tmp_path)
    plant("a unit of another text", store)
    [one] = [one for one in findings(store) if one["name"] == "unit.id"]
    assert one["repair"] is None
    assert one["message"].endswith(
        ": its id is kept, because its material, content or body is unknown and the id may show which it was"
    )


def test_a_folder_that_cannot_be_listed_is_left_without_a_command(tmp_path):
    store = library(tmp_path)
    plant("a folder of no base", store)
    orphans = [one for one in findings(store) if one["name"] == "index.orphan"]
    reason = "its index has errors that no command repairs (meta.base-id (1))"
    assert [(one["repair"], one["message"].endswith(reason)) for one in orphans] == [(None, True)]


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANTINGS)
def test_of_codex_mem(name, templates, tmp_path, server, monkeypatch):
    path = copied(templates, "whole", tmp_path)
    PLANTINGS[name].damage(path)
    configured(tmp_path / "regraft.yaml", server, model=codex_mem_store.MODEL, dimensions=8)
    monkeypatch.chdir(tmp_path)
    run_all_lines(path, "--no-probe")


@pytest.mark.thorough
@needs("chroma")
def test_of_angel_memory(tmp_path, monkeypatch):
    store = angel_store.damaged(tmp_path / "data", real=True)
    with FaultServer() as server:
        server.behave = lambda request: answer(request, list(map(packed, request.texts)))
        configured(tmp_path / "regraft.yaml", server)
        monkeypatch.chdir(tmp_path)
        assert run_all_lines(store.root) == []


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANTINGS_OF_RSCLAW)
def test_of_rsclaw(name, tmp_path):
    """The files of the test are old by the clock of today, too."""
    root = planted(tmp_path / "kb", name).root
    offered = {one["name"] for one in findings(root) if one["repair"] is not None}
    left = run_all_lines(root)
    assert not offered & {one["name"] for one in left if one["severity"] != "note"}


def packed(text: str) -> bytes:
    return struct.pack(f"<{angel_store.DIMENSION}f", *angel_store.embed(text))
