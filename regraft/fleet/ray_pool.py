"""Run the tasks of a fleet on a cluster of Ray, which places them (``docs/fleet.md``, "On a cluster").

The nodes of a cluster come and go: nodes are lost, and an autoscaler adds some when tasks wait. So a few more tasks
than the cluster has cores for are submitted, each with the resources it needs, and never more than the largest node has
now.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, chdir, suppress
from typing import Any, NamedTuple

import msgspec

from regraft import __version__, errors, language
from regraft.errors import STOPPED, NoNodeFits, WrongUsage
from regraft.fleet.engine import PendingTask, Task, TaskError, TaskResult, Work
from regraft.language import tr
from regraft.processes import interpreters
from regraft.text import format_bytes, one_line

logger = logging.getLogger(__name__)

#: Characters of an error that are kept.
_LONGEST = 300
#: Seconds between two looks at the nodes.
_LOOK_SECONDS = 2.0
#: Tasks are submitted for this many times the cores of the cluster, so that an autoscaler sees what waits.
_AHEAD = 2
#: Seconds without a running task after which the user is told what the tasks wait for.
_NOTICE_SECONDS = 30.0
#: A node where so many libraries fail, and none succeeds in between, is left out.
_MOST_FAILURES = 3


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


class Started(NamedTuple):
    """Where a task runs: the node, its host name, the process, and the file there with the output of the process."""

    node: str
    host: str
    pid: int
    log: str | None = None


class _Submission(msgspec.Struct, kw_only=True):
    """A task that was given to Ray: it waits until ``started`` is known."""

    key: int
    one: PendingTask
    task: Task
    request: Request
    submitted_at: float
    node: str | None
    started: Started | None = None

    def may_start(self, nodes: list[Node]) -> bool:
        """Whether there is a node on which it may start, or no node at all."""
        return not nodes or any(self.request.fits(node) and self.node in (None, node.id) for node in nodes)


def _make_start_board() -> type[Any]:
    """Return the class of the actor that collects where tasks have started.

    It is defined here so that Ray sends its code, which a node without regraft needs to call it.
    """

    class StartBoard:
        def __init__(self) -> None:
            self._started: dict[int, tuple[Any, ...]] = {}

        def note(self, key: int, started: tuple[Any, ...]) -> None:
            """Record where a task has started."""
            self._started[key] = started

        def take(self) -> dict[int, tuple[Any, ...]]:
            """Return the tasks that have started since the last call."""
            taken, self._started = self._started, {}
            return taken

    return StartBoard


def _make_remote_function() -> Callable[..., Any]:
    """Return the function that a worker of the cluster runs.

    It is defined here so that Ray sends its code: a node without regraft, or with another version, is to say so.
    """

    def run(version: str, pickled: bytes, board: Any, key: int) -> tuple[Any, Any, tuple[str, str] | None]:
        import os  # noqa: PLC0415 - the code is sent without this module
        import socket  # noqa: PLC0415

        import ray  # noqa: PLC0415

        try:
            log = ray._private.worker.global_worker.get_err_file_path()
        except Exception:
            log = None
        here = ray.get_runtime_context().get_node_id(), socket.gethostname(), os.getpid(), log
        board.note.remote(key, here)
        try:
            import regraft  # noqa: PLC0415

            if regraft.__version__ != version:
                return (
                    here,
                    None,
                    ("ImportError", f"regraft {regraft.__version__} is installed; the driver has {version}"),
                )
            work, job = ray.cloudpickle.loads(pickled)
            return here, work(job), None
        except Exception as error:
            return here, None, (type(error).__name__, str(error))

    return run


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
            with ExitStack() as stack:
                # Ray puts the directory in which a process joins a cluster on the import path of all workers. Python's
                # own folder has no modules.
                try:
                    stack.enter_context(chdir(sys.prefix))
                except OSError:
                    # The directory was deleted, so there is none to return to.
                    os.chdir(sys.prefix)
                self.ray.init(
                    # Without an address Ray would join a cluster that runs on this machine, whose size is not ours.
                    address=address or "local",
                    runtime_env=environment,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    **settings,
                )
        except (ConnectionError, ValueError, RuntimeError, self.ray.exceptions.RayError) as error:
            reason = one_line(str(error).strip(), _LONGEST)
            raise WrongUsage(
                problem=tr("no Ray cluster at {address} ({error})", address=address or "local", error=reason),
                hint=tr("start one with ray start, or omit --address"),
            ) from error
        self._looked_at = -math.inf
        self._nodes: list[Node] = []

    def nodes(self) -> list[Node]:
        """Return the nodes that are alive and have cores, as of the last seconds."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            self._nodes = [
                Node(
                    id=one["NodeID"],
                    address=one["NodeManagerAddress"],
                    cores=float(one["Resources"]["CPU"]),
                    memory=int(one["Resources"].get("memory", 1 << 40)),
                )
                for one in self.ray.nodes()
                if one["Alive"] and one["Resources"].get("CPU")
            ]
        return self._nodes

    def start_beside_driver(self, kind: type[Any], *arguments: Any, **settings: Any) -> Any:
        """Start an actor that needs no core, on the node of this process: its files are this process's files."""
        here = self.on_node(self.ray.get_runtime_context().get_node_id())
        return self.ray.remote(num_cpus=0, **here, **settings)(kind).remote(*arguments)

    def on_node(self, node: str) -> dict[str, Any]:
        """Return the options of a task or an actor that runs on this node or not at all."""
        strategies = errors.import_optional("ray.util.scheduling_strategies", tr("fleets on a cluster"), "ray")
        return {"scheduling_strategy": strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=False)}

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
        self._remote = self._ray.remote(max_retries=0)(_make_remote_function())
        self._board = self.cluster.start_beside_driver(_make_start_board(), max_restarts=-1)
        self._keys = itertools.count()
        self._submissions: dict[Any, _Submission] = {}
        # When a task was last started or ended, and when the nodes were last looked at.
        self._active_at = self._looked_at = time.monotonic()
        self._is_noticed = False
        #: By node, the libraries that failed there since the last one that did not; and the nodes not used any more.
        self._failed: dict[str, set[int]] = {}
        self._left_out: set[str] = set()

    @property
    def count(self) -> int:
        """The cores that the fleet may use now."""
        return self._limit or max(1, int(sum(node.cores for node in self._usable_nodes())))

    @property
    def slots(self) -> int:
        """The cores for which tasks are submitted: no more than there are while one waits for several of them."""
        is_large_waiting = any(one.started is None and one.request.cores > 1 for one in self._submissions.values())
        return self._limit or self.count * (1 if is_large_waiting else _AHEAD)

    @property
    def running(self) -> dict[Any, tuple[PendingTask, float]]:
        """The submitted tasks, with the time of their submission."""
        return {handle: (one.one, one.submitted_at) for handle, one in self._submissions.items()}

    def start_task(self, task: Task, one: PendingTask) -> None:
        """Submit a task, with at most the resources of the largest node."""
        now, nodes = time.monotonic(), self._usable_nodes()
        if not self._submissions:
            self._active_at = now
        possible = [(min(task.cores, node.cores), min(task.memory, node.memory)) for node in nodes]
        cores, memory = max(possible, default=(task.cores, task.memory))
        request, chosen = Request(cores=cores, memory=memory), None
        fitting = [node for node in nodes if request.fits(node)]
        if self._left_out and fitting:
            # The node with the fewest of our tasks for its cores: Ray itself would also use those left out.
            taken = Counter(submission.node for submission in self._submissions.values())
            chosen = min(fitting, key=lambda node: taken[node.id] / node.cores).id
        settings = {} if chosen is None else self.cluster.on_node(chosen)
        remote = self._remote.options(num_cpus=cores, memory=memory, name=task.name or None, **settings)
        key = next(self._keys)
        handle = remote.remote(__version__, self._ray.cloudpickle.dumps((self._work, task.job)), self._board, key)
        self._submissions[handle] = _Submission(
            key=key, one=one, task=task, request=request, submitted_at=now, node=chosen
        )

    def answers(self, seconds: float) -> Iterator[tuple[PendingTask, TaskResult]]:
        """Yield the results of tasks that have ended; wait up to ``seconds`` for the first one."""
        handles = list(self._submissions)
        ready, _ = self._ray.wait(handles, timeout=seconds)
        if ready:
            # All that have ended by now, so that they are stored together.
            ready, _ = self._ray.wait(handles, num_returns=len(handles), timeout=0)
        for handle in ready:
            # A task may have been submitted again meanwhile, for another node.
            submission = self._submissions.pop(handle, None)
            if submission is not None:
                self._note_activity()
                yield submission.one, self._read(handle, submission)
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_SECONDS and not all(one.started for one in self._submissions.values()):
            self._looked_at = now
            yield from self._check_waiting(now)

    def _read(self, handle: Any, submission: _Submission) -> TaskResult:
        """Return the result of a task that has ended, and note whether its node works."""
        try:
            started, ended, problem = self._ray.get(handle)
        except self._ray.exceptions.RayError as error:
            # Its process was killed, or its node is lost.
            self._take_starts(submission)
            found = ray_error(error)
        else:
            submission.started = Started(*started)
            if problem is None:
                self._failed.pop(submission.started.node, None)
                return _with_place(ended, submission.started)
            code, message = problem
            found = TaskError(code=code, message=one_line(message, _LONGEST))
        self._note_failure(submission, found)
        killed = TaskResult(status=None, seconds=time.monotonic() - submission.submitted_at, error=found)
        return _with_place(killed, submission.started)

    def _note_failure(self, submission: _Submission, error: TaskError) -> None:
        """Leave out the node of a task, if it was the last of several that failed there, and another node is left."""
        started, nodes = submission.started, self._usable_nodes()
        node = next((one for one in nodes if started is not None and one.id == started.node), None)
        if node is None or len(nodes) < 2:
            return
        failed = self._failed.setdefault(node.id, set())
        failed.add(submission.task.number)
        if len(failed) >= _MOST_FAILURES:
            self._left_out.add(node.id)
            # What waits could still start there.
            self._submit_again([handle for handle, one in self._submissions.items() if one.started is None])
            logger.warning(
                "%s",
                tr(
                    "node {address} is left out: the last {count} libraries failed there ({code}: {message})",
                    address=f"{node.address} ({node.id[:8]})",
                    count=len(failed),
                    code=error.code,
                    message=error.message,
                ),
            )

    def _usable_nodes(self) -> list[Node]:
        """Return the nodes that are alive and not left out."""
        return [node for node in self.cluster.nodes() if node.id not in self._left_out]

    def _note_activity(self) -> None:
        """Note that something happened, so that the wait for it starts again."""
        self._active_at, self._is_noticed = time.monotonic(), False

    # --- tasks that wait ---------------------------------------------------------------------------------------------

    def _check_waiting(self, now: float) -> Iterator[tuple[PendingTask, TaskResult]]:
        """Submit tasks again that no node has room for any more; if no task runs, say what the tasks wait for, and end
        all of them after the longest wait.
        """
        self._take_starts()
        waiting = {handle: one for handle, one in self._submissions.items() if one.started is None}
        nodes = self._usable_nodes()
        self._submit_again([handle for handle, one in waiting.items() if not one.may_start(nodes)])
        seconds = now - self._active_at
        is_idle = waiting and len(waiting) == len(self._submissions)
        if not is_idle or seconds < min(_NOTICE_SECONDS, self._max_wait):
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

    def _take_starts(self, *more: _Submission) -> None:
        """Read which tasks have started, and where ``more``, which have ended, had started."""
        with suppress(self._ray.exceptions.RayError):
            started: dict[int, tuple[Any, ...]] = self._ray.get(self._board.take.remote())
            for one in (*more, *self._submissions.values()):
                if one.key in started:
                    one.started = Started(*started[one.key])
                    self._note_activity()

    def _submit_again(self, handles: Iterable[Any]) -> None:
        """Submit tasks that wait once more, for the nodes that are there now; one may have just started."""
        active_at = self._active_at
        for handle in handles:
            task = self._submissions[handle].task
            self.start_task(task, msgspec.structs.replace(self._cancel(handle), is_after_kill=True))
        self._active_at = active_at

    def _cancel(self, handle: Any) -> PendingTask:
        """Cancel a submitted task."""
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


def _with_place(ended: TaskResult, started: Started | None) -> TaskResult:
    """Add to a result where its task ran, if that is known."""
    if started is None:
        return ended
    return msgspec.structs.replace(ended, host=started.host, pid=started.pid, log=started.log)


def ray_error(error: Exception) -> TaskError:
    """Take code and message from an error of Ray: its first line, or the last one of a traceback."""
    lines = str(error).strip().splitlines()
    has_traceback = type(error).__name__.startswith("RayTaskError")
    return TaskError(code=type(error).__name__, message=one_line(lines[-1 if has_traceback else 0], _LONGEST))
