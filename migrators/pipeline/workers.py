"""Carrying several bases at once, each in a process of its own, with the same result as one after the other."""

from __future__ import annotations

import logging
import time
import traceback
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import apsw
import msgspec

from migrators.pipeline.base_writer import BaseSource, ReportProgress, WrittenBase, write_base
from migrators.pipeline.losses import SalvageRequest, SalvageResult, salvage_file
from migrators.pipeline.plan import BasePlan, plan_base
from migrators.pipeline.publication import base_folder
from migrators.pipeline.source import Options, Pipeline, Salvager
from migrators.pipeline.survey import BaseJob
from regraft.disk import durable, links, sqlite, writable
from regraft.disk.trees import SourceReadFailed, Tree, open_tree
from regraft.errors import BooksDoNotBalance
from regraft.formats import fts5
from regraft.formats.large_text import LARGE_BYTES
from regraft.formats.vector_survey import StoreProblem
from regraft.formats.vector_table import VectorTable
from regraft.identity import replace
from regraft.language import tr
from regraft.processes import pool
from regraft.processes.pool import JobFailed, ProcessPool, usable_cores
from regraft.report.progress import Progress
from regraft.stores.locate import Located

logger = logging.getLogger(__name__)

#: More processes than this gain nothing: the disk is shared.
MAX_JOBS = 4
#: A base with so much of all texts takes less time in this process, which others help, than alone in one of its own.
MOST_OF_ALL = 0.7
#: Below this many bytes to carry, starting a process costs more than it saves.
SMALL_BYTES = 8 << 20
_POLL_SECONDS = 1.0
#: How often a process tells how far it is.
_TELL_SECONDS = 0.05


class WriteJob(msgspec.Struct, frozen=True):
    """All that a process needs to carry one base."""

    work: BaseJob
    plan: BasePlan
    table: VectorTable
    salvager: Salvager | None
    is_salvage_wanted: bool
    tree_path: Path
    uploads: str | None
    staging: Path
    earlier: Path
    now_ms: int
    follow_links: bool = False
    #: Whether FTS5 looks through the whole full-text index.
    verify: bool = False


class FinishedBase(msgspec.Struct, frozen=True):
    """A carried base; ``plan`` is another one than the job's where its vector file turned out unreadable."""

    work: BaseJob
    plan: BasePlan
    carried: WrittenBase


def make_jobs(
    source: Located, pipeline: Pipeline, planned: list[BaseJob], target: Path, staging: Path, options: Options
) -> list[WriteJob]:
    """Return a job for every base that is to be carried."""
    return [
        WriteJob(
            work=work,
            plan=work.plan,
            table=work.table or pipeline.table,
            salvager=pipeline.salvager,
            is_salvage_wanted=options.salvage,
            tree_path=source.tree.path,
            uploads=source.places.uploads,
            staging=staging / work.draft.id,
            earlier=base_folder(target, work.draft.id),
            now_ms=options.now_ms,
            follow_links=links.are_links_followed(),
            verify=options.verify,
        )
        for work in planned
        if work.plan is not None
    ]


def choose_process_count(jobs: list[WriteJob], wanted: int | None) -> int:
    """Return how many processes to use: what the user wants, else as many as pay."""
    if not pool.can_start_processes():
        return 1
    # SQLite holds a large text twice: several at a time would take the memory of all of them.
    if sum(any(one.body_bytes > LARGE_BYTES for one in job.plan.materials) for job in jobs) > 1:
        return 1
    if wanted is not None:
        return max(1, min(wanted, len(jobs)))
    texts = [job.plan.body_bytes for job in jobs]
    if texts and max(texts) >= MOST_OF_ALL * sum(texts) and fts5.pays(max(texts)):
        return 1
    sizes = [job.plan.body_bytes + job.plan.rows.carried * job.plan.vector_bytes for job in jobs]
    large = sum(size > SMALL_BYTES for size in sizes)
    return max(1, min(usable_cores(), MAX_JOBS, large))


def write_bases(
    jobs: list[WriteJob], tree: Tree, count: int, progress: Progress, crew: ProcessPool | None = None
) -> Generator[FinishedBase, None, None]:
    """Carry every job and yield each as it is finished. ``crew`` are processes that may help this one.

    Raises:
        apsw.Error, OSError: the target cannot be written.
        VerificationFailed: see :func:`carry_base`.
    """
    if count == 1:
        for job in jobs:
            progress.at(job.work.draft.name)
            yield _carry(job, tree, progress.step, crew)
    else:
        yield from _in_processes(jobs, count, progress)


def _carry(job: WriteJob, tree: Tree, watch: ReportProgress, crew: ProcessPool | None = None) -> FinishedBase:
    plan = job.plan
    origin = BaseSource(tree=tree, uploads=job.uploads, table=job.table, vectors=job.work.vectors, earlier=job.earlier)
    try:
        with _steady(job.work):
            carried = write_base(plan, origin, job.staging, job.now_ms, watch, verify=job.verify, crew=crew)
    except (SourceReadFailed, BooksDoNotBalance) as failed:
        logger.info("base %s: %s", job.work.draft.id, failed)
        if crew is not None:
            # Nobody writes there any more.
            with suppress(JobFailed):
                crew.settle()
        with ExitStack() as keep:
            plan, carried = _carry_what_is_left(job, origin, watch, failed, keep)
    return FinishedBase(job.work, plan, carried)


def _carry_what_is_left(
    job: WriteJob,
    origin: BaseSource,
    watch: ReportProgress,
    failed: SourceReadFailed | BooksDoNotBalance,
    keep: ExitStack,
) -> tuple[BasePlan, WrittenBase]:
    """Plan a base again whose rows were not read as they were surveyed, and carry that; the other bases go on.

    The base fails by name, unless rows of damaged files are wanted and some are left.
    """
    said = tr("cannot be read: {failed}", failed=failed)
    if isinstance(failed, BooksDoNotBalance):
        said = tr("is not migrated: {failed}", failed=failed)
    problem = StoreProblem(said, is_damage=True)
    left = _left_of(job, problem, keep)
    plan = plan_base(job.work.draft, left.found, carry_text=job.plan.carry_text)
    durable.remove_tree(job.staging)
    try:
        source = replace(origin, table=left.table or job.table, vectors=left.vectors)
        return plan, write_base(plan, source, job.staging, job.now_ms, watch)
    except (SourceReadFailed, BooksDoNotBalance) as again:
        logger.info("base %s, with what is left of it: %s", job.work.draft.id, again)
    durable.remove_tree(job.staging)
    plan = plan_base(job.work.draft, problem, carry_text=job.plan.carry_text)
    return plan, write_base(plan, replace(origin, vectors=None), job.staging, job.now_ms, watch)


def _left_of(job: WriteJob, problem: StoreProblem, keep: ExitStack) -> SalvageResult:
    """Return what is left of a vector file whose damage only carrying found; one that changed is not looked into."""
    work = job.work
    if work.has_moved or work.origin is None or work.table is not None:
        return SalvageResult(found=problem)
    wish = SalvageRequest(
        is_wanted=job.is_salvage_wanted, work=None, texts=work.plan is not None and work.plan.carry_text
    )
    return salvage_file(job.salvager, work.origin, work.draft, problem, wish, keep)


@contextmanager
def _steady(work: BaseJob) -> Iterator[None]:
    """Say of a vector file that it was written to meanwhile, before anybody judges what was read of it.

    What stops the writing of the target stays what it is.

    Raises:
        SourceFailed: it was.
    """
    try:
        yield
    except (OSError, apsw.Error):
        raise
    except Exception as error:
        if work.has_moved:
            raise SourceReadFailed(sqlite.CHANGED_DURING_READ) from error
        raise
    if work.has_moved:
        raise SourceReadFailed(sqlite.CHANGED_DURING_READ)


# --- processes -----------------------------------------------------------------------------------------------------


class _Teller:
    """Tells the parent how far a base is, not more often than a person can see."""

    def __init__(self, parent: Connection) -> None:
        self._parent = parent
        self._rows, self._size, self._last = 0.0, 0, 0.0

    def step(self, label: str, rows: float, size: int) -> None:
        """Count rows and bytes, and tell what was counted where the last time is long ago."""
        self._rows += rows
        self._size += size
        if time.monotonic() - self._last >= _TELL_SECONDS:
            self.tell(label)

    def tell(self, label: str) -> None:
        """Tell what was counted since the last time."""
        self._parent.send((_STEP, label, self._rows, self._size))
        self._rows, self._size, self._last = 0.0, 0, time.monotonic()


#: What a worker tells: how far it is, a base that is carried, and what it failed with.
_STEP, _DONE, _FAILED = "step", "done", "failed"


def _serve(parent: Connection) -> None:
    """Work off one job after the other, in a process of its own."""
    teller = _Teller(parent)
    while True:
        work, job = parent.recv()
        try:
            parent.send((_DONE, work(job, teller)))
        except Exception as error:
            error.add_note(traceback.format_exc())
            parent.send((_FAILED, error))


def _in_process(job: WriteJob, teller: _Teller) -> FinishedBase:
    with links.follow_links(job.follow_links), closing(open_tree(job.tree_path)) as tree:
        # What this process may change is the one folder.
        with writable.allow_writes(job.staging.parent):
            done = _carry(job, tree, partial(teller.step, job.work.draft.name))
        teller.tell(job.work.draft.name)
        return done


def _in_processes(jobs: list[WriteJob], count: int, progress: Progress) -> Generator[FinishedBase, None, None]:
    # The largest first, so that no process ends up alone with it.
    waiting = deque(sorted(jobs, key=lambda job: -job.plan.rows.carried))
    with pool.start_workers(count, _serve) as started:
        busy: list[Any] = [worker.pipe for worker in started]
        for pipe in busy:
            _send(pipe, waiting.popleft())
        while busy:
            # The pause lets signals through where waiting itself does not.
            for pipe in pool.wait_for_pipes(busy, _POLL_SECONDS):
                done = _received(pipe, progress)
                if done is None:
                    continue
                yield done
                if waiting:
                    _send(pipe, waiting.popleft())
                else:
                    busy.remove(pipe)


def _send(pipe: Any, job: WriteJob) -> None:
    with _alive():
        pipe.send((_in_process, job))


def _received(pipe: Any, progress: Progress) -> FinishedBase | None:
    """Return what a process has carried, None where it only says how far it is; raise what it failed with."""
    with _alive():
        kind, *told = pipe.recv()
    if kind == _FAILED:
        raise told[0]
    if kind == _DONE:
        done: FinishedBase = told[0]
        return done
    label, rows, size = told
    progress.at(label)
    progress.step(rows, size)
    return None


@contextmanager
def _alive() -> Iterator[None]:
    """Say of a pipe that ends, also in the midst of what is told, that its process did."""
    try:
        yield
    except (EOFError, OSError) as error:
        raise OSError(tr("a worker process was killed (out of memory?)")) from error
