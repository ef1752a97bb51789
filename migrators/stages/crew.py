"""Carrying several bases at once, each in a process of its own, with the same result as one after the other."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from queue import Empty

from migrators.stages.carry import Carried, Origin, Watcher, carry_base
from migrators.stages.plan import BasePlan, plan_base
from migrators.stages.uploads import SourceFailed
from migrators.stages.work import BaseWork, base_folder
from regraft import durable, interrupts
from regraft.formats.vector_table import StoreProblem, VectorTable
from regraft.locate import Located
from regraft.progress import Progress
from regraft.tree import Tree, ZipTree, open_tree

#: More processes than this gain nothing: the disk is shared.
MAX_JOBS = 4
#: Below this many bytes to carry, starting a process costs more than it saves.
SMALL_BYTES = 8 << 20
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Job:
    """All that a process needs to carry one base."""

    work: BaseWork
    plan: BasePlan
    table: VectorTable
    tree_path: Path
    uploads: str | None
    staging: Path
    earlier: Path
    now_ms: int


@dataclass(frozen=True)
class Done:
    """A carried base; ``plan`` is another one than the job's where its vector file turned out unreadable."""

    work: BaseWork
    plan: BasePlan
    carried: Carried


class _Stopped(Exception):
    """The run is over: what this process has begun is thrown away."""


def jobs_for(
    source: Located, table: VectorTable, planned: list[BaseWork], target: Path, staging: Path, now_ms: int
) -> list[Job]:
    """Return a job for every base that is to be carried."""
    return [
        Job(
            work=work,
            plan=work.plan,
            table=table,
            tree_path=source.tree.path,
            uploads=source.places.uploads,
            staging=staging / work.draft.id,
            earlier=base_folder(target, work.draft.id),
            now_ms=now_ms,
        )
        for work in planned
        if work.plan is not None
    ]


def processes(jobs: list[Job], wanted: int | None) -> int:
    """Return how many processes to use: what the user wants, else as many as pay."""
    if wanted is not None:
        return max(1, min(wanted, len(jobs)))
    sizes = [job.plan.body_bytes + job.plan.rows.carried * job.plan.vector_bytes for job in jobs]
    large = sum(size > SMALL_BYTES for size in sizes)
    return max(1, min(os.cpu_count() or 1, MAX_JOBS, large))


def carry_all(jobs: list[Job], tree: Tree, count: int, progress: Progress) -> Generator[Done, None, None]:
    """Carry every job and yield each as it is finished.

    Raises:
        apsw.Error, OSError: the target cannot be written.
        BooksDoNotBalance, VerificationFailed: see :func:`carry_base`.
    """
    if count == 1:
        for job in jobs:
            progress.at(job.work.draft.name)
            yield _carry(job, tree, progress.step)
    else:
        yield from _in_processes(jobs, count, progress)


def _carry(job: Job, tree: Tree, watch: Watcher) -> Done:
    plan = job.plan
    origin = Origin(tree, job.uploads, job.table, job.work.vectors, job.earlier)
    try:
        carried = carry_base(plan, origin, job.staging, job.now_ms, watch)
    except SourceFailed as failed:
        # Damage that only shows while whole rows are read: the base is planned anew as one that cannot be read.
        durable.remove_tree(job.staging)
        plan = plan_base(job.work.draft, StoreProblem(f"cannot be read: {failed}"))
        carried = carry_base(plan, origin, job.staging, job.now_ms, watch)
    return Done(job.work, plan, carried)


# --- processes -----------------------------------------------------------------------------------------------------

_steps: Queue[tuple[str, float, int]]
_stop: Event


def _prepare(steps: Queue[tuple[str, float, int]], stop: Event) -> None:
    """Set a process up: Ctrl-C is the parent's to handle."""
    global _steps, _stop
    _steps, _stop = steps, stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # When the run stops nobody listens any more: what is left to say must not keep the process.
    steps.cancel_join_thread()


def _in_process(job: Job) -> Done:
    def watch(rows: float, size: int) -> None:
        if _stop.is_set():
            raise _Stopped
        _steps.put((job.work.draft.name, rows, size))

    tree = open_tree(job.tree_path)
    try:
        return _carry(job, tree, watch)
    finally:
        if isinstance(tree, ZipTree):
            tree.close()


def _in_processes(jobs: list[Job], count: int, progress: Progress) -> Generator[Done, None, None]:
    context = multiprocessing.get_context("spawn")
    # The largest first, so that no process ends up alone with it.
    ordered = sorted(jobs, key=lambda job: -job.plan.rows.carried)
    if os.name != "nt":
        # It would let Ctrl-C through again when it is started later.
        resource_tracker.ensure_running()
    with ExitStack() as ending:
        # Half-made, a semaphore would never be given back, and a process would say something of its own: a Ctrl-C that
        # comes meanwhile is raised at the end of it, when the processes have begun.
        with _undisturbed():
            steps: Queue[tuple[str, float, int]] = context.Queue()
            stop = context.Event()
            pool = ProcessPoolExecutor(count, mp_context=context, initializer=_prepare, initargs=(steps, stop))
            ending.callback(_end, steps, stop, pool)
            waiting: set[Future[Done]] = {pool.submit(_in_process, job) for job in ordered}
        while waiting:
            finished, waiting = wait(waiting, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
            _drain(steps, progress)
            for future in finished:
                try:
                    yield future.result()
                except BrokenProcessPool as error:
                    raise OSError("a worker process was killed (out of memory?)") from error


def _end(steps: Queue[tuple[str, float, int]], stop: Event, pool: ProcessPoolExecutor) -> None:
    stop.set()
    pool.shutdown(wait=True, cancel_futures=True)
    steps.close()
    steps.cancel_join_thread()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep Ctrl-C from this process, and from those that are started meanwhile where the system can; it comes after."""
    # A blocked signal stays blocked in what is started now, from its first moment on; but a library's own threads do
    # not block it, and it would reach this one through them.
    with interrupts.held_back():
        if not hasattr(signal, "pthread_sigmask"):
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _drain(steps: Queue[tuple[str, float, int]], progress: Progress) -> None:
    while True:
        try:
            label, rows, size = steps.get_nowait()
        except Empty:
            return
        progress.at(label)
        progress.step(rows, size)
