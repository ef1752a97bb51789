"""Embedding for a fleet from a cluster of Ray: the same as from one machine."""

from __future__ import annotations

import shutil
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import fleet_work
import pytest
from deadly_sender import DeadlyKeeper
from extras import needs, optional
from fault_server import FaultServer, Reply, Request, right
from harness import Outcome, run_as_given
from lacking import COMPARED, LACKING, TEXTS, all_vectors, configured, library, many, taken_away, vectors

pq = optional("pyarrow.parquet")
ray = optional("ray")
pytestmark = needs("ray")

NAMES = ("anna", "boris")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library that lacks many vectors; no test changes it."""
    store = taken_away(library(tmp_path_factory.mktemp("whole")))
    many(store, 40)
    return store


@pytest.fixture
def stores(whole: Path, tmp_path: Path) -> Path:
    """Return a folder of two libraries that lack the same vectors."""
    for name in NAMES:
        shutil.copytree(whole, tmp_path / "stores" / name)
    return tmp_path / "stores"


MANY = {f"a text among many, number {number}" for number in range(40)}
WANTED = {*LACKING, *MANY}


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what needs no cluster start no processes."""
    fleet_work.put_in_place(monkeypatch)


def backfill(stores: Path, config: Path, address: str, *options: object) -> Outcome:
    """Run the command for a program, with two workers and results beside the libraries."""
    out = stores.parent / "out.parquet"
    return run_as_given(
        "fleet", "backfill", stores, "--results", out, "--config", config, "--json", "-y",
        "--engine", "ray", "--address", address, "--workers", 2, *options,
    )  # fmt: skip


def outcomes(stores: Path) -> dict[str, Any]:
    rows = pq.read_table(stores.parent / "out.parquet").to_pylist()
    return {Path(row["source"]).name: row["outcome"] for row in rows if row["base"] is None}


@pytest.mark.slow
def test_the_embedder_is_compared_from_the_cluster(joined: str, stores: Path, tmp_path: Path) -> None:
    with FaultServer() as server:
        done = backfill(stores, configured(tmp_path / "regraft.yaml", server, batch={"texts": 20}), joined)
        assert done.status == 0, done
        assert outcomes(stores) == dict.fromkeys(NAMES, "done")
        assert done.document["sent"]["probe"]["requests"] > 0
        # Each text once, and those that the embedder is compared by.
        sent = Counter(server.texts)
        assert {text for text in sent if text not in WANTED} >= set(COMPARED)
        assert {sent[text] for text in WANTED} == {1}
    for name in NAMES:
        assert vectors(stores / name) == all_vectors({*TEXTS, *MANY})


@pytest.mark.slow
def test_a_limit_holds_for_several_workers_and_the_next_run_goes_on(joined: str, stores: Path, tmp_path: Path) -> None:
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server, parallel=2, batch={"texts": 2})
        done = backfill(stores, config, joined, "--max-requests", 9, "--no-probe")
        assert done.status == 1, done
        assert outcomes(stores) == dict.fromkeys(NAMES, "limit-reached")
        sent = done.document["sent"]
        assert sent["requests"] == 9
        assert len(server.requests) == 9
        assert sent["stopped"] == "--max-requests 9 is reached"
        while done.document["libraries"] != {"all": 2, "done": 2}:
            done = run_as_given("fleet", "resume", tmp_path / "out.parquet", "-y", "--json", "--workers", 1)
            assert done.status in (0, 1)
        assert Counter(server.texts).most_common(1)[0][1] == 1
    for name in NAMES:
        assert vectors(stores / name) == all_vectors({*vectors(stores / name)})
        assert vectors(stores / name).keys() >= WANTED


@pytest.mark.thorough
def test_a_worker_that_is_killed_leaves_no_text_without_an_answer(
    joined: str, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = DeadlyKeeper.dying_at(tmp_path / "died")
    monkeypatch.setattr("repair.embedding.fleet_jobs.RemoteKeeper", keeper)
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server, parallel=1, batch={"texts": 2})
        done = backfill(stores, config, joined, "--no-probe")
        assert (done.status, outcomes(stores)) == (0, dict.fromkeys(NAMES, "done")), done
        assert (tmp_path / "died").exists()
        # What was under way went twice: one request.
        counts = Counter(server.texts)
        assert counts.keys() == WANTED
        assert sum(counts.values()) - len(counts) <= 2
        # It is counted as spent.
        assert done.document["sent"]["requests"] == len(server.requests)
        assert done.document["sent"]["answered"] == len(WANTED)
    for name in NAMES:
        assert vectors(stores / name).keys() >= WANTED


@pytest.mark.slow
def test_ctrl_c_keeps_what_the_workers_had_under_way(joined: str, stores: Path, tmp_path: Path) -> None:
    with FaultServer() as server:

        def stopping(request: Request) -> Reply:
            if len(server.requests) == 6:
                signal.raise_signal(signal.SIGINT)
            return right(request)

        server.behave = stopping
        config = configured(tmp_path / "regraft.yaml", server, parallel=1, batch={"texts": 2})
        done = backfill(stores, config, joined, "--no-probe")
        assert (done.status, done.document["error"]["code"]) == (130, "FleetInterrupted")
        server.behave = right
        done = run_as_given("fleet", "resume", tmp_path / "out.parquet", "-y", "--json", "--workers", 1)
        assert done.document["libraries"] == {"all": 2, "done": 2}
        assert Counter(server.texts) == Counter(WANTED)


def test_without_ray_a_fleet_says_what_to_install(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    config = configured(tmp_path / "regraft.yaml", "http://127.0.0.1:9/v1")
    done = backfill(stores, config, "auto")
    assert (done.status, 'pip install "regraft[ray]"' in done.stderr) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["regraft.yaml", "stores"]
