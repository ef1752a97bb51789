"""Run the tasks of a fleet on a cluster of Ray, which places them (``docs/fleet.md``, "On a cluster").

The nodes of a cluster come and go: nodes are lost, and an autoscaler adds some when tasks wait. So a few more tasks
than the cluster has cores for are submitted, each with the resources it needs, and never more than the largest node has
now.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, chdir, suppress
from typing import Any

import msgspec

from regraft import __version__, errors, language
from regraft.errors import STOPPED, NoNodeFits, StoppedBySystem, WrongUsage
from regraft.fleet.engine import Task, TaskError, TaskResult, Work
from regraft.language import tr
from regraft.processes import interpreters, interrupts
from regraft.text import format_bytes, one_line

logger = logging.getLogger(__name__)

#: An address with a port, and seconds to wait for an answer there.
_ADDRESS, _CONNECT_SECONDS = re.compile(r"(?:ray://)?\[?(?P<host>.+?)]?:(?P<port>\d+)"), 10.0
#: What a client of HTTP/2 sends first, with an empty frame of settings (RFC 9113, 3.4). A server answers with its own.
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
#: Seconds in which the head of the cluster has to answer once; less than the 60 after which Ray ends this process.
_HEAD_SECONDS = 45.0
#: Characters of an error that are kept.
_LONGEST = 300
#: Seconds in which a result, of some megabytes at most, has to arrive; otherwise it counts as lost with its node.
_FETCH_SECONDS = 120.0
#: Seconds between two looks at the nodes.
_LOOK_SECONDS = 2.0
#: Tasks are submitted for this many times the cores of the cluster, so that an autoscaler sees what waits.
_AHEAD = 2
#: Seconds in which no task starts or ends, and nothing that Ray says is free gets one of those that wait, after which
#: they are submitted again; doubled each time.
_STALL_SECONDS = 10.0
#: Seconds without a running task after which the user is told what the tasks wait for.
_NOTICE_SECONDS = 30.0
#: A node is left out after this number of libraries failed there and none succeeded in between.
_MOST_FAILURES = 3


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is alive, with what it has in total."""

    id: str
    address: str
    cores: float
    memory: int  # in bytes

    @property
    def name(self) -> str:
        """The node, for people."""
        return f"{self.address} ({self.id[:8]})"


class Submission(msgspec.Struct, kw_only=True):
    """A task that was given to Ray, with what it asks for. It waits until ``started_on`` is known."""

    task: Task
    cores: float
    memory: int  # in bytes
    node: str | None  # the one on which it has to run
    is_repeated: bool  # it was submitted before, and may have started then
    started_on: str | None = None  # the id of its node
    place: dict[str, Any] = {}  # the host, the process, and the file with its output there

    def fits(self, node: Node) -> bool:
        """Whether the task may start on a node when that is idle."""
        return self.cores <= node.cores and self.memory <= node.memory and self.node in (None, node.id)

    def is_free(self, free: dict[str, float]) -> bool:
        """Whether Ray reports enough free resources for the task: ``free`` maps their names to amounts.

        Ray also counts those of a node that does not answer.
        """
        return self.cores <= free.get("CPU", 0.0) and self.memory <= free.get("memory", 0.0)


def _make_remote_function() -> Callable[..., Any]:
    """Return the generator function that a worker process of the cluster runs for each task.

    It is defined here so that Ray sends its code: a node without regraft, or with another version, is to say so.
    """

    def run(version: str, pickled: bytes) -> Iterator[Any]:
        """Run a pickled job. Yield first where it runs (node, and host, process and log file), then its result.

        ImportError: this node has another version of regraft than ``version``.
        """
        import os  # noqa: PLC0415 - the code is sent without this module
        import socket  # noqa: PLC0415

        import ray  # noqa: PLC0415

        log = None
        with suppress(Exception):
            log = ray._private.worker.global_worker.get_err_file_path()
        yield ray.get_runtime_context().get_node_id(), {"host": socket.gethostname(), "pid": os.getpid(), "log": log}
        import regraft  # noqa: PLC0415

        if regraft.__version__ != version:
            raise ImportError(f"regraft {regraft.__version__} is installed; the driver has {version}")
        work, job = ray.cloudpickle.loads(pickled)
        yield work(job)

    return run


def _join_cluster(address: str | None, cores: int | None) -> Any:
    """Join the cluster at ``address``, or start one with ``cores`` on this machine; return the module ``ray``.

    WrongUsage: Ray is not installed, or there is no cluster.
    """
    # Ray prints messages about lost nodes and killed processes to standard output, which may be a JSON document.
    os.environ["RAY_DEDUP_LOGS_SKIP_REGEX"] = "."
    ray = errors.import_optional("ray", tr("fleets on a cluster"), "ray")
    # Results are for programs, so they are English.
    environment = {"env_vars": {language.VARIABLE: language.ENGLISH, **interpreters.interpreter_environment()}}
    settings: dict[str, Any] = {} if address else {"num_cpus": cores, "include_dashboard": False}
    try:
        with ExitStack() as stack:
            if address and (place := _ADDRESS.fullmatch(address)):
                # Ray itself waits for minutes if nobody answers.
                demand_answer((place["host"], int(place["port"])), _CONNECT_SECONDS)
            # Ray puts the directory in which a process joins a cluster on the import path of all workers. Python's own
            # folder has no modules.
            try:
                stack.enter_context(chdir(sys.prefix))
            except OSError:
                # The directory was deleted, so the context could not return to it.
                os.chdir(sys.prefix)
            # Without an address Ray would join a cluster that runs on this machine, whose size is not ours.
            settings |= {"address": address or "local", "runtime_env": environment}
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **settings)
    # A bare Exception is raised where the processes of Ray do not start within 30 seconds.
    except Exception as error:
        reason = one_line(str(error).strip(), _LONGEST)
        raise WrongUsage(
            problem=tr("no Ray cluster at {address} ({error})", address=address or "local", error=reason),
            hint=tr("start one with ray start, or omit --address")
            if address
            else tr("run the command again (Ray starts slowly the first time), or use --engine local"),
        ) from error
    return ray


def demand_answer(address: tuple[str, int], seconds: float) -> None:
    """Raise OSError if no server of Ray answers at an address (host, port) within so many seconds.

    All servers of Ray speak HTTP/2. One that is stopped accepts connections, and does not answer.
    """
    with socket.create_connection(address, seconds) as connection:
        connection.sendall(_HTTP2_PREFACE)
        # A server that demands encryption ends the connection, which is an answer, too.
        with suppress(ConnectionError):
            connection.recv(1)


class RayPool:
    """Runs tasks on a cluster. Ray's own retries are off.

    Without the ``address`` of a cluster, one is started on this machine, which ``close`` ends. Tasks may use ``count``
    cores at a time; None: all that there are. They fail after ``max_wait`` seconds in which none runs and none can be
    started. WrongUsage: Ray is not installed, or there is no cluster at the address.

    If the head of the cluster stops answering, ``answers`` raises StoppedBySystem. Ray itself could wait for it forever
    when this process ends, so a program should then end with :func:`os._exit`.
    """

    #: Ray itself lets tasks wait for memory.
    memory = 1 << 60

    def __init__(self, work: Work, address: str | None, count: int | None, max_wait: float = 600.0) -> None:
        self._ray = _join_cluster(address, count)
        self._work, self._limit, self._max_wait = work, count, max_wait
        self._remote = self._make_remote()
        #: The submitted tasks, by the generators of what they yield.
        self.running: dict[Any, Submission] = {}
        #: By node, the libraries that failed there since the last one that did not; and the nodes not used any more.
        self._failed: dict[str, set[int]] = {}
        self._left_out: set[str] = set()
        #: The nodes that are alive and have cores, by id.
        self._alive: dict[str, Node] = {}
        # When a task was last started or ended, and the value of that when the user was told that none is running.
        self._active_at, self._noticed = time.monotonic(), 0.0
        # The longest wait is over, and nothing has started since then: what waits fails at once.
        self._has_given_up = False
        # Seconds after which what waits is submitted again.
        self._patience = 0.0
        #: Host and port of the head of the cluster, which knows all nodes, and when it last answered.
        host, _, port = self._ray.get_runtime_context().gcs_address.rpartition(":")
        self._head, self._head_answered_at = (host.strip("[]"), int(port)), time.monotonic()
        self._look_at_nodes()

    def _make_remote(self) -> Any:
        """Return the function that submits a task to Ray."""
        return self._ray.remote(max_retries=0, num_returns="streaming")(_make_remote_function())

    def _is_head_answering(self) -> bool:
        """Whether the head of the cluster answers now: without it, calls of Ray may wait forever.

        StoppedBySystem: it has not answered for :data:`_HEAD_SECONDS`.
        """
        self._looked_at = time.monotonic()
        try:
            demand_answer(self._head, _LOOK_SECONDS)
        except OSError as error:
            seconds = time.monotonic() - self._head_answered_at
            if seconds < _HEAD_SECONDS:
                return False
            host, port = self._head
            raise StoppedBySystem(
                reason=tr(
                    "the head of the Ray cluster ({address}) has not answered for {seconds} s ({error})",
                    address=f"{host}:{port}",
                    seconds=round(seconds),
                    error=error.strerror or error,
                )
            ) from error
        self._head_answered_at = time.monotonic()
        return True

    def _look_at_nodes(self) -> list[Node]:
        """Find the nodes that are alive and have cores; return those that were lost since the last call."""
        self._looked_at, before = time.monotonic(), self._alive
        nodes = (
            Node(
                id=one["NodeID"],
                address=one["NodeManagerAddress"],
                cores=float(one["Resources"]["CPU"]),
                memory=int(one["Resources"].get("memory", 1 << 40)),
            )
            for one in self._ray.nodes()
            if one["Alive"] and one["Resources"].get("CPU")
        )
        self._alive = {node.id: node for node in nodes}
        if self._alive.keys() != before.keys():
            # What waits may start now, or is submitted again.
            self._note_activity()
        return [node for node in before.values() if node.id not in self._alive]

    @property
    def _nodes(self) -> list[Node]:
        """The nodes that are alive, have cores, and are not left out because of failures."""
        return [node for node in self._alive.values() if node.id not in self._left_out]

    @property
    def cores(self) -> int:
        """The number of cores that the fleet may use now."""
        return self._limit or max(1, int(sum(node.cores for node in self._nodes)))

    @property
    def slots(self) -> int:
        """The number of cores for which tasks are submitted: more than :attr:`cores`, so that some tasks wait.

        No more than :attr:`cores` while a task waits for several cores.
        """
        is_large_waiting = any(one.started_on is None and one.cores > 1 for one in self.running.values())
        return self._limit or self.cores * (1 if is_large_waiting else _AHEAD)

    def start_beside_driver(self, kind: type[Any], *arguments: Any) -> Any:
        """Start an actor of Ray of the class ``kind``, which needs no core, on the node of this process.

        It uses the same files as this process. Returns the handle of the actor.
        """
        here = _on_node(self._ray.get_runtime_context().get_node_id())
        return self._ray.remote(num_cpus=0, **here)(kind).remote(*arguments)

    def start_task(self, task: Task) -> None:
        """Submit a task to Ray, with at most the resources of the largest node."""
        if not self.running and not self._has_given_up:
            self._note_activity()
        self._submit(task)

    def _submit(self, task: Task, *, is_repeated: bool = False) -> None:
        """Submit a task to Ray, if possible for a node that is not left out, and where it has not failed lately.

        A failure counts until another task succeeds there. ``is_repeated``: it was submitted before, and may have
        started then.
        """
        nodes = [node for node in self._nodes if task.number not in self._failed.get(node.id, ())] or self._nodes
        possible = [(min(task.cores, node.cores), min(task.memory, node.memory)) for node in nodes]
        cores, memory = max(possible, default=(task.cores, task.memory))
        one = Submission(task=task, cores=cores, memory=memory, node=None, is_repeated=is_repeated)
        if len(nodes) < len(self._alive) and (fitting := [node for node in nodes if one.fits(node)]):
            # The node with the fewest of our tasks for its cores: Ray itself would use any. If it is lost, Ray does so.
            taken = Counter(other.node for other in self.running.values())
            one.node = min(fitting, key=lambda node: taken[node.id] / node.cores).id
        # Ray does not ask the same node first each time.
        where: dict[str, Any] = {"scheduling_strategy": "SPREAD"} if is_repeated else {}
        if one.node is not None:
            where = _on_node(one.node, soft=True)
        remote = self._remote.options(num_cpus=cores, memory=memory, name=task.name or None, **where)
        pickled = self._ray.cloudpickle.dumps((self._work, task.job))
        self.running[remote.remote(__version__, pickled)] = one

    def _note_activity(self) -> None:
        """Note that a task or the cluster has made progress now: the time until waiting tasks fail begins again."""
        self._active_at, self._has_given_up = time.monotonic(), False
        self._patience = min(_STALL_SECONDS, self._max_wait / 2)

    def answers(self, seconds: float) -> Iterator[tuple[int, TaskResult]]:
        """Yield the numbers and results of tasks that have ended; wait up to ``seconds`` for the first one.

        StoppedBySystem: the head of the cluster does not answer any more.
        """
        streams = list(self.running)
        ready, _ = self._ray.wait(streams, timeout=0 if self._has_given_up else seconds)
        if ready:
            # All that have ended by now, so that they are stored together.
            ready, _ = self._ray.wait(streams, num_returns=len(streams), timeout=0)
        for stream in ready:
            # An earlier one in this loop may have caused this task to be submitted again, for another node.
            one = self.running.get(stream)
            if one is not None and (ended := self._read(stream, one)) is not None:
                yield one.task.number, ended
        is_due = self._has_given_up or time.monotonic() - self._looked_at >= _LOOK_SECONDS
        if is_due and self._is_head_answering():
            for node in self._look_at_nodes():
                yield from self._end_lost(node)
            yield from self._check_waiting()

    def _read(self, stream: Any, one: Submission) -> TaskResult | None:
        """Receive the next value of a task's ``stream``, the generator that Ray runs.

        Return the result of the task if it has ended, and None if it has started. Notes whether its node works.
        """
        self._note_activity()
        try:
            found: Any = self._ray.get(next(stream), timeout=_FETCH_SECONDS)
        except self._ray.exceptions.RayError as error:
            # It failed before the command, its process was killed, or its node is lost.
            found = TaskResult(status=None, error=ray_error(error))
            # If its process was killed before it said where it is, Ray may name the node.
            one.started_on = one.started_on or next((node for node in self._alive if node in str(error)), None)
        if isinstance(found, tuple):
            one.started_on, one.place = found
            return None
        del self.running[stream]
        if found.status is None:
            self._note_failure(one, found.error)
        else:
            self._failed.pop(str(one.started_on), None)
        ended: TaskResult = msgspec.structs.replace(found, is_after_kill=one.is_repeated, **one.place)
        return ended

    def _note_failure(self, one: Submission, error: TaskError) -> None:
        """Count a task that failed with ``error`` on its node; leave the node out after several failures in a row.

        The last node is never left out.
        """
        node = next((node for node in self._nodes if node.id == one.started_on), None)
        if node is None or len(self._nodes) < 2:
            return
        failed = self._failed.setdefault(node.id, set())
        failed.add(one.task.number)
        if len(failed) < _MOST_FAILURES:
            return
        self._left_out.add(node.id)
        # What waits could still start there.
        self._submit_again([stream for stream, other in self.running.items() if other.started_on is None])
        logger.warning(
            "%s",
            tr(
                "node {address} is left out: the last {count} libraries failed there ({code}: {message})",
                address=node.name,
                count=len(failed),
                code=error.code,
                message=error.message,
            ),
        )

    def _end_lost(self, node: Node) -> Iterator[tuple[int, TaskResult]]:
        """End the tasks that ran on a node that was lost; yield their numbers and results.

        Tasks that have not started are submitted again, since they may wait for this node.

        If the node stopped answering, Ray itself waits for an answer for minutes, also to start tasks on it.
        """
        logger.warning("%s", tr("node {address} was lost; its libraries are tried again", address=node.name))
        found = TaskError(code="NodeDiedError", message=f"node {node.name} was lost")
        for stream, one in list(self.running.items()):
            if one.started_on == node.id:
                yield self._cancel(stream).number, TaskResult(status=None, error=found, **one.place)
        # Ray asks for one place for several tasks of a function, and still asks the lost node.
        self._remote = self._make_remote()
        self._submit_again([stream for stream, one in self.running.items() if one.started_on is None])

    def _check_waiting(self) -> Iterator[tuple[int, TaskResult]]:
        """Submit waiting tasks again that no node has room for, or that are not started although there is room.

        If no task runs, log why. After the longest wait, end all tasks and yield their numbers and results.
        """
        waiting = {stream: one for stream, one in self.running.items() if one.started_on is None}
        seconds = time.monotonic() - self._active_at
        if self._nodes:
            again = [stream for stream, one in waiting.items() if not any(map(one.fits, self._nodes))]
            is_stalled = waiting and seconds >= self._patience
            if is_stalled and next(iter(waiting.values())).is_free(self._ray.available_resources()):
                # Ray asks a node that does not answer, but is not known to be lost; others may be idle.
                self._patience *= 2
                self._remote = self._make_remote()
                again = list(waiting)
            self._submit_again(again)
        is_idle = waiting and len(waiting) == len(self.running)
        if not is_idle or seconds < min(_NOTICE_SECONDS, self._max_wait):
            return
        reason = self._wait_reason(next(iter(waiting.values())))
        if self._noticed != self._active_at:
            self._noticed = self._active_at
            logger.warning("%s", tr("no library is running; {reason}", reason=reason))
        if seconds >= self._max_wait:
            self._has_given_up = True
            error = NoNodeFits(reason=reason, seconds=round(seconds))
            failed = TaskResult(status=STOPPED, seconds=seconds, error=TaskError(code=error.code, message=str(error)))
            for stream in list(self.running):
                yield self._cancel(stream).number, failed

    def _submit_again(self, streams: Iterable[Any]) -> None:
        """Submit waiting tasks, given by their streams, once more for the present nodes; one may have just started."""
        for stream in streams:
            self._submit(self._cancel(stream), is_repeated=True)

    def _cancel(self, stream: Any) -> Task:
        """Cancel a submitted task, given by its stream, and return it."""
        with suppress(self._ray.exceptions.RayError):
            self._ray.cancel(stream, force=True)
        return self.running.pop(stream).task

    def _wait_reason(self, one: Submission) -> str:
        """Describe the resources that a submitted task waits for, and the free ones."""
        needs = tr("{cores:g} CPU and {memory}", cores=one.cores, memory=format_bytes(one.memory))
        if not self._nodes:
            return tr("the next one needs {needs}, and no node of the cluster has a CPU", needs=needs)
        free: dict[str, float] = self._ray.available_resources()
        if one.is_free(free):
            return tr("the next one needs {needs}, which Ray says is free: a node may not answer", needs=needs)
        # A worker that has a core, and cannot connect to this process, never tells that it has started.
        return tr(
            "the next one needs {needs}; free are {cores:g} of {all_cores:g} CPU and {memory}: another program uses "
            "the rest, or the nodes cannot connect to this machine",
            needs=needs,
            cores=free.get("CPU", 0.0),
            all_cores=sum(node.cores for node in self._nodes),
            memory=format_bytes(int(free.get("memory", 0))),
        )

    def close(self) -> None:
        """Cancel all tasks, and leave the cluster."""
        for stream in list(self.running):
            self._cancel(stream)
        try:
            demand_answer(self._head, _LOOK_SECONDS)
        except OSError:
            # Ray would wait for the head, here and at the end of this process.
            atexit.unregister(self._ray.shutdown)
            interrupts.is_shutdown_skipped = True
        else:
            self._ray.shutdown()


def _on_node(node: str, *, soft: bool = False) -> dict[str, Any]:
    """Return the options of Ray for a task or an actor that runs on the node with this id.

    Without that node, it runs elsewhere if ``soft``, and otherwise not at all.
    """
    strategies = errors.import_optional("ray.util.scheduling_strategies", tr("fleets on a cluster"), "ray")
    return {"scheduling_strategy": strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=soft)}


def ray_error(error: Exception) -> TaskError:
    """Return code and message of an error of Ray, or of the exception that a task has raised."""
    cause = getattr(error, "cause", None) or error
    text, _, more = str(cause).strip().partition("\n")
    if hasattr(cause, "object_ref_hex"):
        # Of a lost object, the first line names only the object and a setting of Ray; the reason follows.
        text = f"{text.partition('. ')[0]}. {more.strip()}"
    return TaskError(code=type(cause).__name__, message=one_line(text, _LONGEST))
