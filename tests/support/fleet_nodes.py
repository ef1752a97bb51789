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
from patience import EVENT_SECONDS, start_ray

from regraft.cli.fleet import parse_library_options as parse
from regraft.errors import StoppedBySystem
from regraft.fleet import ray_pool
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
    """Start a cluster whose only node has no cores; nodes that are added have the time that a loaded machine needs."""
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    # Nodes that join later get it, too.
    os.environ.update(environment())
    made = start_ray(lambda: Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}))
    add = made.add_node
    made.add_node = lambda **options: start_ray(lambda: add(**options))
    try:
        yield made
    finally:
        made.shutdown()
        os.environ.clear()
        os.environ.update(before)


def wait_for(condition: Callable[[], Any], what: str, is_over: Callable[[], str | None] = lambda: None) -> Any:
    """Wait until a condition holds; return what it says.

    ``is_over`` says why it will never hold, once that is certain.
    """
    end = time.monotonic() + EVENT_SECONDS
    while not (found := condition()):
        over = is_over()
        # It may have come between the two looks.
        assert over is None or condition(), f"{what} will not come: {over}"
        assert time.monotonic() < end, f"{what} has not come after {EVENT_SECONDS} seconds"
        time.sleep(0.05)
    return found


def work(job: LibraryJob) -> TaskResult:
    """Write down the node in a file beside the source, and end once the file ``go`` is there."""
    import ray

    source = Path(job.source)
    node = ray.get_runtime_context().get_node_id()
    with (source.parent / f"{source.name}.nodes").open("a") as file:
        file.write(f"{node}\n")
    wait_for((source.parent / "go").exists, f"the file go for {source.name}")
    return TaskResult(status=0, seconds=0.1)


def nodes_of(source: Path) -> list[str]:
    """Return the nodes on which a source was worked on."""
    path = source.parent / f"{source.name}.nodes"
    return path.read_text("utf-8").splitlines() if path.exists() else []


class Driver:
    """The driver of a fleet, in a process of its own, which ends with the context."""

    def __init__(
        self,
        order: FleetOrder,
        results: Path,
        address: str,
        max_wait: float = float(EVENT_SECONDS),
        head_seconds: float = float(EVENT_SECONDS),
    ) -> None:
        arguments = (msgspec.json.encode(order).decode(), str(results), address, max_wait, head_seconds)
        call = f"fleet_nodes.drive{arguments!r}"
        self.log, self.output = results.with_name("driver.log"), results.with_name("driver.out")
        line = [sys.executable, "-P", "-c", f"import fleet_nodes; {call}"]
        with self.log.open("wb") as log, self.output.open("wb") as output:
            self._process = subprocess.Popen(line, env=environment(), stdout=output, stderr=log)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        self._process.kill()
        self._process.wait()

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until a condition holds; fail as soon as the driver has ended."""

        def is_over() -> str | None:
            status = self._process.poll()
            return None if status is None else f"the driver ended with {status}: {self.log.read_text('utf-8')}"

        return wait_for(condition, what, is_over)

    def ended(self, status: int = 0) -> bool:
        """Wait for its end; return whether it ended with this exit status."""
        try:
            return self._process.wait(EVENT_SECONDS) == status
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver has not ended: {self.log.read_text('utf-8')}") from None


def drive(order: str, results: str, address: str, max_wait: float, head_seconds: float) -> None:
    """Run a fleet on a cluster, or go on with it; end as the command does if the head of the cluster is lost."""
    path = Path(results)
    known = read_results(path)[1] if journal_path(path).exists() else KnownRows()
    ray_pool._HEAD_SECONDS = head_seconds
    fleet = Fleet(
        order=msgspec.json.decode(order, type=FleetOrder),
        path=path,
        known=known,
        pool=partial(RayPool, WORK, address, None, max_wait),
        parse=parse,
        pause_seconds=0.01,
    )
    try:
        fleet.run(Run(command="fleet check"))
    except StoppedBySystem as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(error.exit_status)


WORK = work
