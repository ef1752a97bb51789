"""A cluster whose nodes are lost and join while a fleet runs: nothing waits forever."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fault_server import FaultServer
from lacking import configured

from regraft.fleet import results
from regraft.fleet.manifest import Library
from regraft.fleet.results import FleetOrder, ResultRow

if sys.platform != "linux":
    pytest.skip("clusters of several nodes on one machine need Linux", allow_module_level=True)
pytest.importorskip("ray", reason="Ray is not installed")

import fleet_nodes
from fleet_nodes import nodes_of, started, wait_for


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


def test_what_no_node_has_room_for_fails_by_name(cluster: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    assert started(order_of(tmp_path, 1, 1), out, cluster.address, max_wait=0.1).wait(fleet_nodes.PATIENCE) == 0
    rows = rows_of(out)
    assert [(row.outcome, row.code, row.attempts) for row in rows] == [("stopped", "NoNodeFits", 1)] * 2
    assert "needs 1 CPU and 167.8 MB, and no node of the cluster has a CPU" in str(rows[0].message)
    assert nodes_of(tmp_path / "library 0") == []


def test_a_lost_node_leaves_its_largest_library_to_smaller_ones_and_a_new_node_is_used(
    cluster: Any, tmp_path: Path
) -> None:
    small, large = cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=2)
    out, order = tmp_path / "out.parquet", order_of(tmp_path, 4 << 30, 1, 1, 1)
    driver = started(order, out, cluster.address)
    try:
        first = tmp_path / "library 0"
        wait_for(lambda: nodes_of(first))
        assert nodes_of(first) == [large.node_id]
        wait_for(lambda: [one for number in (1, 2, 3) for one in nodes_of(tmp_path / f"library {number}")])
        # Its two cores are lost, and no node has as many.
        cluster.remove_node(large, allow_graceful=False)
        new = cluster.add_node(num_cpus=1)
        worked = [tmp_path / f"library {number}" for number in range(4)]
        wait_for(lambda: any(new.node_id in nodes_of(source) for source in worked))
        (tmp_path / "go").touch()
        assert driver.wait(fleet_nodes.PATIENCE) == 0
    finally:
        driver.kill()
    rows = rows_of(out)
    assert [row.outcome for row in rows] == ["done"] * 4
    assert [row.attempts for row in rows] == [2, 1, 1, 1]
    assert nodes_of(first)[1] in (small.node_id, new.node_id)
    for node in (small, new):
        cluster.remove_node(node)


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
            [sys.executable, "-m", "regraft", *map(str, line)],
            env=fleet_nodes.environment(),
            capture_output=True,
            check=False,
            timeout=fleet_nodes.PATIENCE,
        )
        assert done.returncode == 0, done
        assert len(server.texts) == len(set(server.texts)) > 8
    rows = [row for row in pq.read_table(out).to_pylist() if row["base"] is None]
    assert {row["outcome"] for row in rows} == {"done"}
    for node in nodes:
        cluster.remove_node(node)
