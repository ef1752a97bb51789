"""A cluster whose nodes are lost and join while a fleet runs: nothing waits forever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from extras import needs, optional
from fault_server import FaultServer
from lacking import configured
from patience import EVENT_SECONDS

from regraft import __version__
from regraft.fleet import results
from regraft.fleet.manifest import Library
from regraft.fleet.results import FleetOrder, ResultRow

if sys.platform != "linux":
    pytest.skip("clusters of several nodes on one machine need Linux", allow_module_level=True)

import fleet_nodes
from fleet_nodes import Driver, nodes_of

pq = optional("pyarrow.parquet")
pytestmark = needs("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Start a cluster without cores."""
    with fleet_nodes.cluster() as made:
        yield made


def rows_of(path: Path) -> list[ResultRow]:
    """Return the rows of the libraries, in the order of the manifest."""
    order, found = results.read_results(path)
    return [found[number][0] for number in range(len(order.libraries))]


def order_of(folder: Path, *sizes: int) -> FleetOrder:
    libraries = tuple(
        Library(source=str(folder / f"library {number}"), bytes=size) for number, size in enumerate(sizes)
    )
    return FleetOrder(command="check", options=(), libraries=libraries)


@pytest.mark.thorough
def test_what_no_node_has_room_for_fails_by_name(cluster: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    with Driver(order_of(tmp_path, 1, 1), out, cluster.address, max_wait=0.1) as driver:
        assert driver.ended()
    rows = rows_of(out)
    assert [(row.outcome, row.code, row.attempts) for row in rows] == [("stopped", "NoNodeFits", 1)] * 2
    assert "needs 1 CPU and 167.8 MB, and no node of the cluster has a CPU" in str(rows[0].message)
    assert nodes_of(tmp_path / "library 0") == []


def test_a_library_whose_node_is_lost_is_done_by_a_smaller_one(cluster: Any, tmp_path: Path) -> None:
    small, large = cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=2)
    out, source = tmp_path / "out.parquet", tmp_path / "library 0"
    with Driver(order_of(tmp_path, 4 << 30), out, cluster.address) as driver:
        # It asks for more cores than the smaller node has.
        assert driver.wait_for(lambda: nodes_of(source), "the first start") == [large.node_id]
        cluster.remove_node(large, allow_graceful=False)
        driver.wait_for(lambda: len(nodes_of(source)) == 2, "the second start")
        (tmp_path / "go").touch()
        assert driver.ended()
    cluster.remove_node(small)
    [row] = rows_of(out)
    assert (row.outcome, row.attempts) == ("done", 2)
    assert nodes_of(source) == [large.node_id, small.node_id]
    # Whichever comes first: Ray's answer for the task, or what it says of its nodes.
    log = driver.log.read_text("utf-8")
    assert f"({large.node_id[:8]}) was lost; its libraries are tried again" in log or "(NodeDiedError: " in log
    # Ray would tell of it here, in the middle of a document.
    assert driver.output.read_bytes() == b""


@pytest.mark.thorough
def test_a_node_that_joins_takes_libraries_that_wait(cluster: Any, tmp_path: Path) -> None:
    first = cluster.add_node(num_cpus=1)
    out = tmp_path / "out.parquet"
    sources = [tmp_path / f"library {number}" for number in range(3)]
    with Driver(order_of(tmp_path, 1, 1, 1), out, cluster.address) as driver:
        driver.wait_for(lambda: any(map(nodes_of, sources)), "the first start")
        new = cluster.add_node(num_cpus=1)
        driver.wait_for(lambda: any(new.node_id in nodes_of(one) for one in sources), "a start on the new node")
        (tmp_path / "go").touch()
        assert driver.ended()
    for node in (first, new):
        cluster.remove_node(node)
    assert [(row.outcome, row.attempts) for row in rows_of(out)] == [("done", 1)] * 3


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("raise ModuleNotFoundError('no regraft here')", "ModuleNotFoundError: no regraft here"),
        ("__version__ = '0.0.1'", f"ImportError: regraft 0.0.1 is installed; the driver has {__version__}"),
    ],
    ids=["without regraft", "another version"],
)
def test_a_node_that_cannot_run_libraries_is_left_out_and_named(
    cluster: Any, tmp_path: Path, module: str, reason: str
) -> None:
    good = cluster.add_node(num_cpus=1)
    (tmp_path / "modules" / "regraft").mkdir(parents=True)
    (tmp_path / "modules" / "regraft" / "__init__.py").write_text(module, "utf-8")
    bad = cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": str(tmp_path / "modules")})
    out = tmp_path / "out.parquet"
    with Driver(order_of(tmp_path, *range(8)), out, cluster.address) as driver:
        # The good node is busy with its first library until the other one was tried.
        driver.wait_for(lambda: "is left out" in driver.log.read_text("utf-8"), "the line that names the node")
        (tmp_path / "go").touch()
        assert driver.ended()
    assert [row.outcome for row in rows_of(out)] == ["done"] * 8
    assert {node for number in range(8) for node in nodes_of(tmp_path / f"library {number}")} == {good.node_id}
    said = driver.log.read_text("utf-8")
    assert f"({bad.node_id[:8]}) is left out: the last 3 libraries failed there ({reason})" in said
    for node in (good, bad):
        cluster.remove_node(node)


@pytest.mark.thorough
def test_a_library_is_not_tried_again_where_it_failed(cluster: Any, tmp_path: Path) -> None:
    good = cluster.add_node(num_cpus=1)
    (tmp_path / "modules" / "regraft").mkdir(parents=True)
    (tmp_path / "modules" / "regraft" / "__init__.py").write_text("__version__ = '0.0.1'", "utf-8")
    bad = cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": str(tmp_path / "modules")})
    out = tmp_path / "out.jsonl"
    with Driver(order_of(tmp_path, 1, 1), out, cluster.address) as driver:
        # One library keeps the good node busy. The other one waits for it, although the node where it failed is idle.
        driver.wait_for(lambda: "is tried again" in driver.log.read_text("utf-8"), "the line that names the library")
        (tmp_path / "go").touch()
        assert driver.ended()
    rows = rows_of(out)
    assert [row.outcome for row in rows] == ["done"] * 2
    assert max(row.attempts or 0 for row in rows) == 2
    assert [nodes_of(tmp_path / f"library {number}") for number in range(2)] == [[good.node_id]] * 2
    for node in (good, bad):
        cluster.remove_node(node)


@pytest.mark.thorough
def test_a_node_without_memory_ends_libraries_by_name(cluster: Any, tmp_path: Path) -> None:
    # The least memory that is used is too much for it.
    full = {"RAY_memory_usage_threshold": "0.0001", "RAY_memory_monitor_refresh_ms": "50"}
    node = cluster.add_node(num_cpus=1, env_vars=full)
    out = tmp_path / "out.jsonl"
    with Driver(order_of(tmp_path, 1), out, cluster.address) as driver:
        assert driver.ended()
    [row] = rows_of(out)
    assert (row.outcome, row.exit_status, row.code, row.attempts) == ("killed", None, "OutOfMemoryError", 3)
    assert row.message
    cluster.remove_node(node)


@pytest.mark.thorough
def test_a_driver_that_is_killed_is_gone_on_with(cluster: Any, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=1)
    out, sources = tmp_path / "out.jsonl", [tmp_path / f"library {number}" for number in range(3)]
    order = order_of(tmp_path, 1, 1, 1)
    with Driver(order, out, cluster.address) as driver:
        driver.wait_for(lambda: any(map(nodes_of, sources)), "the first start")
        driver.kill()
    (tmp_path / "go").touch()
    with Driver(order, out, cluster.address) as driver:
        assert driver.ended()
    assert [row.outcome for row in rows_of(out)] == ["done"] * 3
    # The one that was in progress was tried once more, the others once.
    assert sum(len(nodes_of(source)) for source in sources) == 4
    assert not results.journal_path(out).exists()
    cluster.remove_node(node)


@pytest.mark.thorough
def test_two_fleets_on_one_cluster_both_end(cluster: Any, tmp_path: Path) -> None:
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    with (
        Driver(order_of(folders[0], *range(4)), folders[0] / "out.jsonl", cluster.address) as one,
        Driver(order_of(folders[1], *range(4)), folders[1] / "out.jsonl", cluster.address) as other,
    ):
        for folder in folders:
            (folder / "go").touch()
        assert one.ended()
        assert other.ended()
    for folder in folders:
        assert [(row.outcome, row.attempts) for row in rows_of(folder / "out.jsonl")] == [("done", 1)] * 4
        assert [len(nodes_of(folder / f"library {number}")) for number in range(4)] == [1] * 4
    for node in nodes:
        cluster.remove_node(node)


@pytest.mark.thorough
def test_two_senders_on_two_nodes_of_one_core_do_not_wait_for_each_other(
    cluster: Any, stores: Path, tmp_path: Path
) -> None:
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    out = tmp_path / "out.parquet"
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server, parallel=1, batch={"texts": 1})
        line = [
            "fleet", "backfill", stores, "--results", out, "--config", config, "--engine", "ray",
            "--address", cluster.address, "--workers", 2, "--yes", "--json", "--no-probe",
        ]  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-P", "-m", "regraft", *map(str, line)],
            env=fleet_nodes.environment(),
            capture_output=True,
            check=False,
            timeout=EVENT_SECONDS,
        )
        assert done.returncode == 0, done
        assert len(server.texts) == len(set(server.texts)) > 8
    rows = [row for row in pq.read_table(out).to_pylist() if row["base"] is None]
    assert {row["outcome"] for row in rows} == {"done"}
    for node in nodes:
        cluster.remove_node(node)


@pytest.mark.thorough
def test_a_fleet_does_not_wait_forever_for_a_head_that_has_stopped(tmp_path: Path) -> None:
    with fleet_nodes.cluster() as own:
        own.add_node(num_cpus=1)
        [head] = own.head_node.all_processes["gcs_server"]
        address, out = own.address, tmp_path / "out.jsonl"
        sources = [tmp_path / f"library {number}" for number in range(2)]
        with Driver(order_of(tmp_path, 1, 1), out, address, head_seconds=1.0) as driver:
            driver.wait_for(lambda: any(map(nodes_of, sources)), "the first start")
            os.kill(head.process.pid, signal.SIGSTOP)
            try:
                assert driver.ended(3)
            finally:
                os.kill(head.process.pid, signal.SIGCONT)
        said = driver.log.read_text("utf-8")
    assert f"the head of the Ray cluster ({address}) has not answered for " in said
    assert f"(timed out); continue with: regraft fleet resume {out}" in said
