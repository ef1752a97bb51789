"""A cluster of Ray whose nodes come and go, and what its workers do in tests: they wait for files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from harness import REPO
from patience import NEVER_SECONDS

from regraft.cli.fleet import parse_library_options as parse
from regraft.fleet.engine import TaskResult
from regraft.fleet.jobs import LibraryJob
from regraft.fleet.ray_pool import RayPool
from regraft.fleet.results import FleetOrder, KnownRows, journal_path, read_results
from regraft.fleet.run import Fleet
from regraft.report.document import Run


def environment() -> dict[str, str]:
    """Return the environment of processes that find what this one finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(REPO)])}


@contextmanager
def cluster() -> Iterator[Any]:
    """Start a cluster whose only node has no cores."""
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    # Nodes that join later get it, too.
    os.environ.update(environment())
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        yield made
    finally:
        made.shutdown()
        os.environ.clear()
        os.environ.update(before)


def wait_for(condition: Callable[[], Any]) -> Any:
    """Wait until a condition holds; return what it says."""
    end = time.monotonic() + NEVER_SECONDS
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
    return found


def work(job: LibraryJob) -> TaskResult:
    """Write down the node in a file beside the source, and end once the file ``go`` is there."""
    import ray

    source = Path(job.source)
    node = ray.get_runtime_context().get_node_id()
    with (source.parent / f"{source.name}.nodes").open("a") as file:
        file.write(f"{node}\n")
    wait_for((source.parent / "go").exists)
    return TaskResult(status=0, seconds=0.1)


def nodes_of(source: Path) -> list[str]:
    """Return the nodes on which a source was worked on."""
    path = source.parent / f"{source.name}.nodes"
    return path.read_text().splitlines() if path.exists() else []


def started(
    order: FleetOrder, results: Path, address: str, max_wait: float = float(NEVER_SECONDS)
) -> subprocess.Popen[bytes]:
    """Start the driver of a fleet in a process of its own."""
    call = f"fleet_nodes.drive({msgspec.json.encode(order).decode()!r}, {str(results)!r}, {address!r}, {max_wait})"
    with results.with_name("driver.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", f"import fleet_nodes; {call}"], env=environment(), stderr=log
        )


def drive(order: str, results: str, address: str, max_wait: float) -> None:
    """Run a fleet on a cluster, or go on with it."""
    path = Path(results)
    known = read_results(path)[1] if journal_path(path).exists() else KnownRows()
    Fleet(
        order=msgspec.json.decode(order, type=FleetOrder),
        path=path,
        known=known,
        pool=partial(RayPool, WORK, address, None, max_wait),
        parse=parse,
        pause_seconds=0.01,
    ).run(Run(command="fleet check"))


WORK = work
