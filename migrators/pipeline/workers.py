"""Write several bases at once, each in a process of its own. The result is the same as in one process."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

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
from regraft.processes.pool import JobFailed, ProcessKilled, ProcessPool, usable_cores
from regraft.report.progress import Progress
from regraft.stores.locate import Located

logger = logging.getLogger(__name__)

#: Maximum number of processes. More gain nothing because they share the disk.
MAX_JOBS = 4
#: A base with this share of all texts is faster in this process, with the help of the pool, than in a process of its
#: own.
MOST_OF_ALL = 0.7
#: Below this size, starting a process costs more than it saves.
SMALL_BYTES = 8 << 20
#: Seconds between progress messages of a process.
_PROGRESS_SECONDS = 0.05


class WriteJob(msgspec.Struct, frozen=True):
    """All that a process needs to write one base."""

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
    #: Let FTS5 check the whole full-text index.
    verify: bool = False


class FinishedBase(msgspec.Struct, frozen=True):
    """A base that was written. ``plan`` differs from the job's plan if its vector file turned out to be unreadable."""

    work: BaseJob
    plan: BasePlan
    written: WrittenBase


def make_jobs(
    source: Located, pipeline: Pipeline, planned: list[BaseJob], target: Path, staging: Path, options: Options
) -> list[WriteJob]:
    """Make a job for every base that has a plan."""
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
    """Return the number of processes to write bases: the user's choice (``wanted``), else chosen by their size."""
    if not pool.can_start_processes():
        return 1
    # SQLite holds a large text twice in memory, so such bases are not written at the same time.
    if sum(any(one.body_bytes > LARGE_BYTES for one in job.plan.materials) for job in jobs) > 1:
        return 1
    if wanted is not None:
        return max(1, min(wanted, len(jobs)))
    texts = [job.plan.body_bytes for job in jobs]
    if texts and max(texts) >= MOST_OF_ALL * sum(texts) and fts5.is_worthwhile(max(texts)):
        return 1
    sizes = [job.plan.body_bytes + job.plan.rows.carried * job.plan.vector_bytes for job in jobs]
    large = sum(size > SMALL_BYTES for size in sizes)
    return max(1, min(usable_cores(), MAX_JOBS, large))


def write_bases(
    jobs: list[WriteJob], tree: Tree, count: int, progress: Progress, processes: ProcessPool | None = None
) -> Generator[FinishedBase, None, None]:
    """Write all bases in ``count`` processes and yield each as it is finished.

    ``processes`` is a process pool that may help if this process writes alone.

    Raises:
        apsw.Error, OSError: the target cannot be written.
        VerificationFailed: see :func:`migrators.pipeline.base_writer.write_base`.
    """
    if count == 1:
        for job in jobs:
            progress.at(job.work.draft.name)
            yield _write_base(job, tree, progress.step, processes)
    else:
        yield from _in_processes(jobs, count, progress)


def _write_base(job: WriteJob, tree: Tree, watch: ReportProgress, processes: ProcessPool | None = None) -> FinishedBase:
    """Write a base; if its vector file cannot be read completely, write its readable rows.

    ``watch`` is called with the progress. ``processes`` is a pool that may help.
    """
    plan = job.plan
    origin = BaseSource(tree=tree, uploads=job.uploads, table=job.table, vectors=job.work.vectors, earlier=job.earlier)
    try:
        with _report_changed_file(job.work):
            written = write_base(plan, origin, job.staging, job.now_ms, watch, verify=job.verify, pool=processes)
    except (SourceReadFailed, BooksDoNotBalance) as failed:
        logger.info("base %s: %s", job.work.draft.id, failed)
        if processes is not None:
            # Wait until no process of the pool writes to the staging folder.
            with suppress(JobFailed):
                processes.drain()
        with ExitStack() as keep:
            plan, written = _write_readable_rows(job, origin, watch, failed, keep)
    return FinishedBase(job.work, plan, written)


def _write_readable_rows(
    job: WriteJob,
    origin: BaseSource,
    watch: ReportProgress,
    failed: SourceReadFailed | BooksDoNotBalance,
    keep: ExitStack,
) -> tuple[BasePlan, WrittenBase]:
    """Plan a base again whose vector file ``failed`` while it was read, and write what is readable.

    The base becomes a failed one, unless the user asked for salvage and rows are left. Return its new plan and what was
    written. ``keep`` holds temporary files.
    """
    message = tr("cannot be read: {failed}", failed=failed)
    if isinstance(failed, BooksDoNotBalance):
        message = tr("is not migrated: {failed}", failed=failed)
    problem = StoreProblem(message, is_damage=True)
    left = _salvage(job, problem, keep)
    plan = plan_base(job.work.draft, left.found, carry_text=job.plan.carry_text)
    durable.remove_tree(job.staging)
    try:
        source = replace(origin, table=left.table or job.table, vectors=left.vectors)
        return plan, write_base(plan, source, job.staging, job.now_ms, watch)
    except (SourceReadFailed, BooksDoNotBalance) as again:
        logger.info("base %s, from its remaining rows: %s", job.work.draft.id, again)
    durable.remove_tree(job.staging)
    plan = plan_base(job.work.draft, problem, carry_text=job.plan.carry_text)
    return plan, write_base(plan, replace(origin, vectors=None), job.staging, job.now_ms, watch)


def _salvage(job: WriteJob, problem: StoreProblem, keep: ExitStack) -> SalvageResult:
    """Salvage a vector file whose damage showed only while it was read. A file that changed is not salvaged.

    ``keep`` removes the temporary file with the rows when it closes.
    """
    work = job.work
    if work.has_changed or work.origin is None or work.table is not None:
        return SalvageResult(found=problem)
    wish = SalvageRequest(
        is_wanted=job.is_salvage_wanted, work=None, texts=work.plan is not None and work.plan.carry_text
    )
    return salvage_file(job.salvager, work.origin, work.draft, problem, wish, keep)


@contextmanager
def _report_changed_file(work: BaseJob) -> Iterator[None]:
    """If the vector file was changed during the block, raise that instead of errors about its content.

    Errors of writing the target are not replaced.

    Raises:
        SourceReadFailed: another program wrote to the file.
    """
    try:
        yield
    except (OSError, apsw.Error):
        raise
    except Exception as error:
        if work.has_changed:
            raise SourceReadFailed(sqlite.CHANGED_DURING_READ) from error
        raise
    if work.has_changed:
        raise SourceReadFailed(sqlite.CHANGED_DURING_READ)


# --- processes -----------------------------------------------------------------------------------------------------


class _ProgressSender:
    """Sends the progress of a base to the parent process, not more often than a person can see."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._rows, self._size, self._last = 0.0, 0, 0.0

    def step(self, rows: float, size: int) -> None:
        """Add rows and bytes to the progress; send it if the last message is long enough ago."""
        self._rows += rows
        self._size += size
        if time.monotonic() - self._last >= _PROGRESS_SECONDS:
            self.send()

    def send(self) -> None:
        """Send what was counted since the last time."""
        pool.report_progress((self._label, self._rows, self._size))
        self._rows, self._size, self._last = 0.0, 0, time.monotonic()


def _in_process(job: WriteJob) -> FinishedBase:
    """Write a base in a child process, which may write to the staging folder only."""
    sender = _ProgressSender(job.work.draft.name)
    with links.follow_links(job.follow_links), closing(open_tree(job.tree_path, salvage=job.is_salvage_wanted)) as tree:
        # This process may change only this folder.
        with writable.allow_writes(job.staging.parent):
            done = _write_base(job, tree, sender.step)
        sender.send()
        return done


def _in_processes(jobs: list[WriteJob], count: int, progress: Progress) -> Generator[FinishedBase, None, None]:
    """Write bases in ``count`` child processes, the largest first; yield each when it is finished."""
    # The largest first, so that no process ends up alone with it.
    waiting = deque(sorted(jobs, key=lambda job: -job.plan.rows.carried))

    def show(value: tuple[str, float, int]) -> None:
        """Show the progress that a child process sent: name of the base, rows, bytes."""
        label, rows, size = value
        progress.at(label)
        progress.step(rows, size)

    try:
        with ProcessPool(count, on_progress=show) as processes:
            running = {processes.put(_in_process, waiting.popleft()) for _ in range(count)}
            while running:
                for outcome in processes.wait():
                    running.remove(outcome.job)
                    if outcome.error is not None:
                        raise outcome.error
                    yield outcome.result
                    if waiting:
                        running.add(processes.put(_in_process, waiting.popleft()))
    except ProcessKilled as error:
        raise OSError(tr("a worker process was killed (out of memory?)")) from error
    except JobFailed as error:
        raise error.__cause__ or error from None
