"""Run the tasks of a fleet on a cluster of Ray, which places them (``docs/fleet.md``, "On a cluster").

The nodes of a cluster come and go: nodes are lost, and an autoscaler adds some when tasks wait. So a few more tasks
than the cluster has cores for are submitted, each with the resources it needs, and never more than the largest node has
now.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from regraft import errors, language
from regraft.errors import STOPPED, NoNodeFits, WrongUsage
from regraft.fleet.engine import PendingTask, Task, TaskError, TaskResult, Work
from regraft.language import tr
from regraft.processes import interpreters
from regraft.text import format_bytes, one_line

logger = logging.getLogger(__name__)

#: Seconds between two looks at the nodes.
_LOOK_SECONDS = 2.0
#: Tasks are submitted for this many times the cores of the cluster, so that an autoscaler sees what waits.
_AHEAD = 2
#: Seconds without a running task after which the user is told what the tasks wait for.
_NOTICE_SECONDS = 30.0


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is alive: its id, its address, and the resources that it has in total."""

    id: str
    address: str
    cores: float
    memory: int


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The cores, and the bytes of memory, that a task asks for."""

    cores: float
    memory: int

    def fits(self, node: Node) -> bool:
        """Whether a node has as much when it is idle."""
        return self.cores <= node.cores and self.memory <= node.memory

    def within(self, nodes: list[Node]) -> Request:
        """Reduce the request to what the largest node has; without nodes, it stays as it is."""
        possible = [(min(self.cores, node.cores), min(self.memory, node.memory)) for node in nodes]
        cores, memory = max(possible, default=(self.cores, self.memory))
        return Request(cores=cores, memory=memory)


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """Where a task runs: the node, its host name, and the process."""

    node: str
    host: str
    pid: int


class _Submission(msgspec.Struct, kw_only=True):
    """A task that was given to Ray: it waits until ``started`` is known."""

    key: int
    one: PendingTask
    task: Task
    request: Request
    submitted_at: float
    started: Started | None = None


class StartBoard:
    """Collects where tasks have started; in a process of its own, beside the driver."""

    def __init__(self) -> None:
        self._started: dict[int, Started] = {}

    def note(self, key: int, started: Started) -> None:
        """Note that a task has started."""
        self._started[key] = started

    def take(self) -> dict[int, Started]:
        """Return the tasks that have started since the last call."""
        taken, self._started = self._started, {}
        return taken


def run_remotely(work: Work, job: Any, board: Any, key: int) -> TaskResult:
    """Run a task in a worker of the cluster, and tell the board where."""
    import ray  # noqa: PLC0415 - in a worker of Ray

    node = ray.get_runtime_context().get_node_id()
    board.note.remote(key, Started(node=node, host=socket.gethostname(), pid=os.getpid()))
    return work(job)


@contextmanager
def _outside_working_directory() -> Iterator[None]:
    """Change to Python's own folder, which has no modules.

    Ray puts the directory in which a process joins a cluster on the import path of all workers.
    """
    try:
        before = Path.cwd()
    except OSError:
        # It was deleted, so nothing can be imported from it.
        before = Path(sys.prefix)
    os.chdir(sys.prefix)
    try:
        yield
    finally:
        os.chdir(before)


class RayCluster:
    """The cluster that this process has joined.

    Args:
        address: the address of a cluster, as ``ray.init`` takes it; None: start one on this machine, which ``close``
            ends.
        cores: cores of a cluster that is started; None: all.

    Raises:
        WrongUsage: Ray is not installed, or there is no cluster at the address.
    """

    def __init__(self, address: str | None, cores: int | None) -> None:
        self.ray = errors.import_optional("ray", tr("fleets on a cluster"), "ray")
        # Results are for programs, so they are English.
        environment = {"env_vars": {language.VARIABLE: language.ENGLISH, **interpreters.interpreter_environment()}}
        settings: dict[str, Any] = {} if address else {"num_cpus": cores, "include_dashboard": False}
        try:
            with _outside_working_directory():
                self.ray.init(
                    address=address,
                    runtime_env=environment,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    **settings,
                )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise WrongUsage(
                problem=tr("no Ray cluster at {address} ({error})", address=address or "local", error=error),
                hint=tr("start one with ray start, or omit --address"),
            ) from error
        self._looked_at = 0.0
        self._nodes: list[Node] = []

    def nodes(self) -> list[Node]:
        """Return the nodes that are alive and have cores, as of the last seconds."""
        now = time.monotonic()
        if not self._looked_at or now - self._looked_at >= _LOOK_SECONDS:
            alive = [(one, one["Resources"]) for one in self.ray.nodes() if one["Alive"]]
            self._nodes = [
                Node(
                    id=one["NodeID"],
                    address=one["NodeManagerAddress"],
                    cores=float(has["CPU"]),
                    memory=int(has.get("memory", 1 << 40)),
                )
                for one, has in alive
                if has.get("CPU")
            ]
            self._looked_at = now
        return self._nodes

    def start_beside_driver(self, kind: type[Any], *arguments: Any, **settings: Any) -> Any:
        """Start an actor that needs no core, on the node of this process: its files are this process's files."""
        strategies = errors.import_optional("ray.util.scheduling_strategies", tr("fleets on a cluster"), "ray")
        node = self.ray.get_runtime_context().get_node_id()
        here = strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        return self.ray.remote(num_cpus=0, scheduling_strategy=here, **settings)(kind).remote(*arguments)

    def close(self) -> None:
        """Leave the cluster."""
        self.ray.shutdown()


class RayPool:
    """Runs tasks on a cluster. Ray's own retries are off.

    Args:
        work: the work function.
        address: the address of a cluster; see :class:`RayCluster`.
        count: tasks at a time; None: as many as the cluster has cores for.
        max_wait: seconds after which tasks fail if no task runs and none can be started.
        cluster: a cluster that was joined already, and that ``close`` does not leave.

    Raises:
        WrongUsage: Ray is not installed, or there is no cluster at the address.
    """

    #: Ray itself lets tasks wait for memory.
    memory = 1 << 60

    def __init__(
        self,
        work: Work,
        address: str | None,
        count: int | None,
        max_wait: float = 600.0,
        *,
        cluster: RayCluster | None = None,
    ) -> None:
        self._given = cluster
        self.cluster = RayCluster(address, count) if cluster is None else cluster
        self._ray = self.cluster.ray
        self._work, self._limit, self._max_wait = work, count, max_wait
        self._remote = self._ray.remote(max_retries=0)(run_remotely)
        self._board = self.cluster.start_beside_driver(StartBoard, max_restarts=-1)
        self._keys = itertools.count()
        self._submissions: dict[Any, _Submission] = {}
        # When a task was last started or ended, and when the nodes were last looked at.
        self._active_at = self._looked_at = time.monotonic()
        self._is_noticed = False

    @property
    def count(self) -> int:
        """The cores that the fleet may use now."""
        return self._limit or max(1, int(sum(node.cores for node in self.cluster.nodes())))

    @property
    def slots(self) -> int:
        """The cores for which tasks are submitted."""
        return self._limit or self.count * _AHEAD

    @property
    def running(self) -> dict[Any, tuple[PendingTask, float]]:
        """The submitted tasks, with the time of their submission."""
        return {handle: (one.one, one.submitted_at) for handle, one in self._submissions.items()}

    def start_task(self, task: Task, one: PendingTask) -> None:
        """Submit a task, with at most the resources of the largest node."""
        if not self._submissions:
            self._active_at = time.monotonic()
        self._submit(task, one)

    def _submit(self, task: Task, one: PendingTask) -> None:
        request = Request(cores=task.cores, memory=task.memory).within(self.cluster.nodes())
        remote = self._remote.options(num_cpus=request.cores, memory=request.memory, name=task.name or None)
        key = next(self._keys)
        handle = remote.remote(self._work, task.job, self._board, key)
        self._submissions[handle] = _Submission(
            key=key, one=one, task=task, request=request, submitted_at=time.monotonic()
        )

    def answers(self, seconds: float) -> Iterator[tuple[PendingTask, TaskResult]]:
        """Yield the results of tasks that have ended; wait up to ``seconds`` for the first one."""
        handles = list(self._submissions)
        ready, _ = self._ray.wait(handles, timeout=seconds)
        if ready:
            # All that have ended by now, so that they are stored together.
            ready, _ = self._ray.wait(handles, num_returns=len(handles), timeout=0)
        for handle in ready:
            submission = self._submissions.pop(handle)
            self._note_activity()
            try:
                ended: TaskResult = self._ray.get(handle)
            except self._ray.exceptions.RayError as error:
                # Its process was killed, its node is lost, or the task cannot be run there.
                ended = TaskResult(
                    status=None, seconds=time.monotonic() - submission.submitted_at, error=ray_error(error)
                )
            yield submission.one, ended
        yield from self._check_waiting()

    def _note_activity(self) -> None:
        self._active_at, self._is_noticed = time.monotonic(), False

    # --- tasks that wait ---------------------------------------------------------------------------------------------

    def _check_waiting(self) -> Iterator[tuple[PendingTask, TaskResult]]:
        """Submit tasks again that no node has room for any more, and end all that wait if nothing runs for too long."""
        if all(one.started for one in self._submissions.values()):
            return
        now = time.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        self._take_starts()
        waiting = {handle: one for handle, one in self._submissions.items() if one.started is None}
        nodes = self.cluster.nodes()
        for handle, one in waiting.items():
            if nodes and not any(one.request.fits(node) for node in nodes):
                self._cancel(handle)
                self._submit(one.task, one.one)
        seconds = now - self._active_at
        if not waiting or len(waiting) < len(self._submissions) or seconds < min(_NOTICE_SECONDS, self._max_wait):
            return
        reason = self._wait_reason(next(iter(waiting.values())).request, nodes)
        if not self._is_noticed:
            self._is_noticed = True
            logger.warning("%s", tr("no library is running; {reason}", reason=reason))
        if seconds >= self._max_wait:
            error = NoNodeFits(reason=reason, seconds=round(seconds))
            failed = TaskResult(status=STOPPED, seconds=seconds, error=TaskError(code=error.code, message=str(error)))
            for handle in list(self._submissions):
                yield self._cancel(handle), failed

    def _take_starts(self) -> None:
        """Read which tasks have started."""
        with suppress(self._ray.exceptions.RayError):
            started: dict[int, Started] = self._ray.get(self._board.take.remote())
            for one in self._submissions.values():
                if one.key in started:
                    one.started = started[one.key]
                    self._note_activity()

    def _cancel(self, handle: Any) -> PendingTask:
        with suppress(self._ray.exceptions.RayError):
            self._ray.cancel(handle, force=True)
        return self._submissions.pop(handle).one

    def _wait_reason(self, request: Request, nodes: list[Node]) -> str:
        """Describe what a task waits for."""
        needs = tr("{cores:g} CPU and {memory}", cores=request.cores, memory=format_bytes(request.memory))
        if not nodes:
            return tr("the next one needs {needs}, and no node of the cluster has a CPU", needs=needs)
        free: dict[str, float] = self._ray.available_resources()
        return tr(
            "the next one needs {needs}; free are {cores:g} of {all_cores:g} CPU and {memory}",
            needs=needs,
            cores=free.get("CPU", 0.0),
            all_cores=sum(node.cores for node in nodes),
            memory=format_bytes(int(free.get("memory", 0))),
        )

    def close(self) -> None:
        """Cancel all tasks, and leave the cluster if this pool has joined it."""
        for handle in list(self._submissions):
            self._cancel(handle)
        if self._given is None:
            self.cluster.close()
        else:
            self._ray.kill(self._board)


def ray_error(error: Any) -> TaskError:
    """Take code and message from an error of Ray: those of the exception that a task raised, if it is known."""
    cause = getattr(error, "cause", None)
    found = cause if isinstance(cause, BaseException) else error
    text = str(found).strip()
    # The last line of a traceback says what happened.
    line = text.rpartition("\n")[2] if "Traceback" in text or "ray::" in text else text.partition("\n")[0]
    return TaskError(code=type(found).__name__, message=one_line(line, 300))
