"""Tasks of a fleet on a cluster of Ray: the same as on one machine, in the processes of the cluster."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regraft import extras, interpreters, language
from regraft.errors import WrongUsage
from regraft.fleet.engine import Ended, Task, Waiting, Work
from regraft.language import tr


@contextmanager
def _outside_the_working_directory() -> Iterator[None]:
    """Work in the folder of this Python meanwhile, which holds no modules.

    Ray puts the directory in which a cluster is joined first on the import path of all workers.
    """
    try:
        before = Path.cwd()
    except OSError:
        # It is gone, and nothing can be imported from it.
        before = Path(sys.prefix)
    os.chdir(sys.prefix)
    try:
        yield
    finally:
        os.chdir(before)


class RayPool:
    """Tasks of Ray, which ask for the cores and the memory that they need. What Ray would try again by itself is tried
    again here, and counted.

    Args:
        work: runs a command line.
        address: of a cluster, as ``ray.init`` takes it; None: one of this machine is started, and ended by ``close``.
        count: how many tasks are done at a time; None: as many as the cluster has cores.

    Raises:
        WrongUsage: Ray is not installed, or there is no cluster at the address.
    """

    def __init__(self, work: Work, address: str | None, count: int | None) -> None:
        self._ray = extras.needed("ray", tr("fleets on a cluster"), "ray")
        self.at_work: dict[Any, tuple[Waiting, float]] = {}
        # Results are for programs.
        environment = {"env_vars": {language.VARIABLE: language.ENGLISH, **interpreters.variables()}}
        settings: dict[str, Any] = {} if address else {"num_cpus": count, "include_dashboard": False}
        try:
            with _outside_the_working_directory():
                self._ray.init(
                    address=address,
                    runtime_env=environment,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    **settings,
                )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise WrongUsage(
                problem=tr("there is no cluster at {address} ({error})", address=address or "local", error=error),
                hint=tr("start one with ray start, or leave --address out"),
            ) from error
        resources = self._ray.cluster_resources()
        self.count = count or max(1, int(resources.get("CPU", 1)))
        self.memory = int(resources.get("memory", 1 << 40))
        # What no machine has would be waited for without an end.
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        self._machines = {(int(one.get("CPU", 0)), int(one.get("memory", 0))) for one in machines}
        self._remote = self._ray.remote(max_retries=0)(work)

    def give(self, task: Task, one: Waiting) -> None:
        """See :meth:`regraft.fleet.engine.Pool.give`."""
        fitting = ((min(task.cores, cores), min(task.memory, memory)) for cores, memory in self._machines)
        cores, memory = max(fitting, default=(1, 0))
        reference = self._remote.options(num_cpus=cores, memory=memory).remote(task.job)
        self.at_work[reference] = one, time.monotonic()

    def answers(self, seconds: float) -> Iterator[tuple[Waiting, Ended]]:
        """See :meth:`regraft.fleet.engine.Pool.answers`."""
        references = list(self.at_work)
        ready, _ = self._ray.wait(references, timeout=seconds)
        if ready:
            # All that have ended by now: they are written down together.
            ready, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        for reference in ready:
            one, begun = self.at_work.pop(reference)
            try:
                ended: Ended = self._ray.get(reference)
            except self._ray.exceptions.RayError:
                # Its process, or its machine, is gone.
                ended = Ended(status=None, document={}, seconds=time.monotonic() - begun)
            yield one, ended

    def close(self) -> None:
        """See :meth:`regraft.fleet.engine.Pool.close`."""
        for reference in self.at_work:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()
