"""Run a migration: read, plan, write, verify, publish. :mod:`.session` locks the target and records the run."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from operator import attrgetter
from pathlib import Path

import msgspec

from migrators.pipeline import preflight, publication, report
from migrators.pipeline.base_writer import base_record, catalog_rows, planned_rows
from migrators.pipeline.publication import BaseEntry, TargetLibrary, read_items
from migrators.pipeline.report import BaseOutcome
from migrators.pipeline.session import Migration, Session, session, work_folder
from migrators.pipeline.source import BaseDraft, LibraryDraft, Options, Pipeline
from migrators.pipeline.source_files import ContentHashJobs, base_fingerprint, vector_file_in_tree
from migrators.pipeline.survey import BaseJob, BasePlanner, select_bases, vector_file_bytes
from migrators.pipeline.workers import FinishedBase, choose_process_count, make_jobs, write_bases
from regraft.disk import durable
from regraft.errors import Declined
from regraft.formats.cherry_v2 import index
from regraft.formats.cherry_v2.catalog import BaseRecord, ItemRow, write_catalog
from regraft.formats.cherry_v2.layout import REPORT_FILE
from regraft.identity import replace
from regraft.ledger import ledger as ledgers
from regraft.ledger.ledger import Ledger, LedgerEntry
from regraft.processes import pool, startup
from regraft.processes.pool import JobFailed, ProcessPool
from regraft.report import migration
from regraft.report.document import Run, encoded
from regraft.report.migration import BaseSurvey, MigrationReport, Preflight, SourcePlan
from regraft.report.progress import Progress, stage
from regraft.stores.locate import CATALOG_FILE, INDEX_FILE, KNOWLEDGE_FOLDER, RAW_FOLDER, Located, link_notices
from regraft.text import path_text

logger = logging.getLogger(__name__)

COMMAND = "migrate"


def migrate(
    pipeline: Pipeline,
    source: Located,
    target: Path,
    options: Options,
    progress: Progress,
    show_plan: Callable[[MigrationReport], bool] = lambda _: True,
    examine: Callable[[LibraryPlan, Session, MigrationReport], None] = lambda *_: None,
) -> Migration:
    """Migrate a source to ``target`` and return the report.

    Args:
        pipeline: the source's layout.
        source: a source of that layout.
        target: folder of the library: new, empty, or written by an earlier run.
        options: the user's options.
        progress: called with rows and bytes.
        show_plan: called with the planned report before anything is written; stops the run by returning False.
        examine: called with the plan before ``show_plan``, and in a dry run; it may refuse the run by raising an error.

    Raises:
        RegraftError: refused (exit status 2), stopped midway (3) or interrupted (130).
    """
    preflight.check_target(target, preflight.source_roots(source), source.path)
    run = Run(
        command=COMMAND,
        dry_run=options.dry_run,
        source_kind=source.kind.value,
        source=source.path,
        target_kind="library",
        target=target,
    )
    library = read_library(pipeline, source, options)
    bases = select_bases(library, options)
    with session(target, run, bytes_before_plan=_estimate_extracted_bytes(source, bases)) as at:
        with pool.open_pool() as helpers, ExitStack() as files:
            hash_jobs = _prestart_pool(helpers, source, bases, at)
            planner = BasePlanner(pipeline, source, target, options, files, at.work)
            plan = plan_library(planner, bases, at, progress)
            outcomes = plan.outcomes()
            planned = report.build_migration_report(run, library, outcomes.values())
            if at.is_up_to_date(plan.jobs):
                return at.without_writing(planned)
            planned = at.with_room(planned, plan.bytes)
            examine(plan, at, planned)
            if options.dry_run:
                return at.without_writing(planned)
            if not show_plan(planned):
                raise Declined(path=target)
            at.begin(path_text(source.path), plan.jobs, options.recorded)
            with contextlib.closing(
                write_planned_bases(plan, pipeline, source, options, at, progress, helpers, hash_jobs)
            ) as written_bases:
                for done in written_bases:
                    if len(plan.jobs) == 1:
                        helpers.end()
                    outcomes[done.work.draft.legacy_id] = publish_base(at, done)
        return at.finish(report.build_migration_report(run, library, outcomes.values()))


def read_library(pipeline: Pipeline, source: Located, options: Options) -> LibraryDraft:
    """Read a source's state as drafts, with notices about how the source was found.

    Raises:
        ApplicationRunning: the profile is in use and the options do not allow that.
    """
    running = preflight.check_running(source.profile, options)
    library = pipeline.read(source, options)
    return replace(library, notices=(*source.notices, *running, *link_notices(source.tree), *library.notices))


class LibraryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a migration will do: each base is unchanged or has a plan.

    ``bytes`` is the space that the planned bases need on the target's disk.
    """

    jobs: tuple[BaseJob, ...]
    bytes: int

    def outcomes(self) -> dict[str, BaseOutcome]:
        """Map each source base id to its outcome, for the report."""
        found = {}
        for job in self.jobs:
            if job.unchanged is not None:
                found[job.draft.legacy_id] = report.unchanged_outcome(job.unchanged)
            elif job.plan is not None:
                outcome = report.planned_outcome(job.plan)
                found[job.draft.legacy_id] = report.rewritten_outcome(outcome) if job.is_damaged else outcome
        return found


def plan_library(
    planner: BasePlanner, bases: list[tuple[int, BaseDraft]], at: Session, progress: Progress
) -> LibraryPlan:
    """Plan all bases, given with their positions in the source. Refuse to overwrite what this command did not write.

    Raises:
        TargetNotOurs, TargetBaseForeign, TargetBaseChanged, TargetHasItem, LinkInStore
        RegraftError: a base cannot be planned.
    """
    jobs = tuple(planner.plan_bases(bases, at.entries, progress))
    plans = [job.plan for job in jobs if job.plan is not None]
    changed = {plan.draft.id for plan in plans}
    preflight.check_conflicts(at.path, at.run.command, (draft.id for _, draft in bases), at.entries, changed)
    if planner.pipeline.shares_ids:
        preflight.check_same_source(at.path, plans, at.entries)
    items = {plan.draft.id: (plan.draft.name, map(attrgetter("id"), plan.items)) for plan in plans}
    preflight.check_items(at.path, items, at.entries)
    uploads = sum(job.upload_bytes for job in jobs if job.plan is not None)
    indexes = sum(map(preflight.estimate_base_bytes, plans))
    rest = preflight.estimate_library_bytes(len(plans), sum(len(plan.items) for plan in plans))
    return LibraryPlan(jobs=jobs, bytes=indexes + rest + uploads)


def write_planned_bases(
    plan: LibraryPlan,
    pipeline: Pipeline,
    source: Located,
    options: Options,
    at: Session,
    progress: Progress,
    helpers: ProcessPool | None = None,
    hash_jobs: ContentHashJobs | None = None,
) -> Generator[FinishedBase, None, None]:
    """Write all planned bases to the staging folder, and yield each once it is verified.

    Close the generator if publishing fails, so that no process keeps writing. ``helpers`` is a process pool that may
    help; ``hash_jobs`` are its jobs that hash the files of the one base.
    """
    planned = list(_with_fingerprints(plan, source, progress, hash_jobs))
    jobs = make_jobs(source, pipeline, planned, at.path, at.staging, options)
    count = choose_process_count(jobs, options.jobs)
    logger.info("%s bases are migrated by %s processes", len(jobs), count)
    with (
        stage(progress, "Carrying", sum(job.plan.units for job in jobs)),
        contextlib.closing(write_bases(jobs, source.tree, count, progress, helpers)) as finished,
    ):
        for done in finished:
            unread = done.written.unread | done.work.unread
            if unread:
                # Some files could not be read: with this fingerprint, the base is migrated again once they can be.
                mark = base_fingerprint(source, done.work.draft, unread)
                yield replace(done, work=replace(done.work, fingerprint=mark))
            else:
                yield done


def _with_fingerprints(
    plan: LibraryPlan, source: Located, progress: Progress, hash_jobs: ContentHashJobs | None
) -> Iterator[BaseJob]:
    """Yield the planned bases, each with the fingerprint of its source, before anything is written.

    Files of new bases that the pool has not hashed (``hash_jobs``) are read here, after the free space was checked.
    """
    for job in plan.jobs:
        if job.plan is not None and not job.fingerprint:
            progress.at(job.draft.name)
            marks = None if hash_jobs is None else hash_jobs.file_hashes()
            yield replace(job, fingerprint=base_fingerprint(source, job.draft, marks=marks))
        elif job.plan is not None:
            yield job


def publish_base(at: Session, done: FinishedBase) -> BaseOutcome:
    """Move a verified base into place, and return its outcome for the report.

    If the existing base turns out to be better than the new one, the new one is removed instead.
    """
    base_id = done.work.draft.id
    staged = at.staging / base_id
    kept = done.work.entry_to_keep(done.plan)
    if kept is None and done.work.has_lost_rows(done.plan):
        kept = done.work.entry_to_keep(done.plan, publication.count_lost_vectors(at.path, staged, base_id))
    if kept is not None:
        # What showed only while writing: the existing base is better, or has vectors that the source lost.
        durable.remove_tree(staged)
        logger.info("base %s: the source is damaged; the base in the target is kept", base_id)
        return report.unchanged_outcome(kept)
    outcome = report.migrated_outcome(done)
    if done.work.is_damaged:
        outcome = report.rewritten_outcome(outcome)
    entry = BaseEntry(
        position=done.work.position,
        record=done.written.record,
        report=outcome.base,
        items=outcome.items,
        children=outcome.children,
        notices=list(outcome.notices),
        has_files=done.written.has_files,
        index_mark=publication.index_mark(staged),
        index_hash=done.written.index_hash,
        raw_mark=publication.raw_mark(staged),
        raw_hash=done.written.raw_hash,
        found=done.plan.found,
        carry_text=done.plan.carry_text,
    )
    at.publish(entry, done.work.fingerprint, catalog_rows(done.plan, done.written))
    return outcome


def _prestart_pool(
    helpers: ProcessPool, source: Located, bases: list[tuple[int, BaseDraft]], at: Session
) -> ContentHashJobs | None:
    """Start the process pool early if the target is new and the run has one large base.

    Let it hash the files of the base.

    Return these jobs, or None if the pool is not started.
    """
    if len(bases) != 1 or at.ledger is None or at.entries or not pool.can_use_pool():
        return None
    [(_, draft)] = bases
    if vector_file_bytes(source, draft) < startup.LARGE_FILE_BYTES:
        return None
    try:
        helpers.start()
        hash_jobs = ContentHashJobs(helpers, source, draft)
    except JobFailed as problem:
        logger.info("no background processes can be started: %s", problem)
        return None
    return hash_jobs


def _estimate_extracted_bytes(source: Located, bases: list[tuple[int, BaseDraft]]) -> int:
    """Estimate the bytes for extracting the vector files of an archive; 0 for a folder."""
    if not source.is_archive:
        return 0
    return preflight.estimate_unread_bytes(source, [vector_file_in_tree(source, draft) for _, draft in bases])


# --- planning without a target -------------------------------------------------------------------------------------


def plan_only(pipeline: Pipeline, source: Located, options: Options, progress: Progress) -> SourcePlan:
    """Plan a migration without a target (``regraft check`` of a v1 source).

    Raises:
        RegraftError: as for :func:`migrate`, except for problems of a target.
    """
    run = Run(command="check", source_kind=source.kind.value, source=source.path)
    library = read_library(pipeline, source, options)
    bases = select_bases(library, options)
    with work_folder(_estimate_extracted_bytes(source, bases)) as work, ExitStack() as files:
        # The target is a folder that was just created, so nothing is in it.
        target = work / "library"
        nowhere = Session(path=target, run=run, entries={}, work=work, target=TargetLibrary(target, run.id))
        planner = BasePlanner(pipeline, source, target, options, files, work)
        plan = plan_library(planner, bases, nowhere, progress)
        room = Preflight(bytes_needed=plan.bytes, bytes_free=shutil.disk_usage(source.path).free)
        looked_at = {job.draft.legacy_id: _survey_summary(source, job) for job in plan.jobs}
        run.end()
    planned = report.build_migration_report(run, library, plan.outcomes().values())
    return SourcePlan(report=planned, room=room, looked_at=looked_at)


def _survey_summary(source: Located, job: BaseJob) -> BaseSurvey:
    """Summarize what a source has of a base: number of items and uploads, and its vector file."""
    draft, name = job.draft, vector_file_in_tree(source, job.draft)
    kind = source.tree.kind(name) if name else None
    size = 0
    if kind == "file":
        with contextlib.suppress(OSError):
            size = source.tree.size(name)
    return BaseSurvey(
        items=len(draft.items) + len(draft.skipped_items),
        uploads=sum(item.upload is not None for item in draft.items),
        vector_file=name or draft.vector_file,
        kind=kind,
        bytes=size,
        is_read=job.vectors is not None,
        salvageable=0 if job.plan is None or job.plan.salvage is None else job.plan.salvage.rows,
    )


# --- the outline of a planned library ------------------------------------------------------------------------------

# With it, a later step can be planned as if the library existed, before any vector is written. The path of an item's
# snapshot is not known yet; all other catalog rows are those that the migration writes. The one upload of each base is
# the one with the longest path, which a file system may refuse.


def write_outline(folder: Path, jobs: tuple[BaseJob, ...], at: Session, planned: MigrationReport, now_ms: int) -> None:
    """Write the outline of the library that a run is going to write: catalog, report, and indexes without rows.

    Args:
        folder: an empty folder.
        jobs: the bases of the run.
        at: the target; the rows of unchanged bases are read from its ledger.
        planned: the report of the plan.
        now_ms: the time of the run.

    Raises:
        LedgerUnreadable: the ledger of the target cannot be read.
        OSError, apsw.Error: the folder cannot be written.
    """

    def write(ledger: Ledger) -> dict[str, LedgerEntry]:
        """Write the catalog; bases without changes have their rows in the ledger."""
        write_catalog(folder / CATALOG_FILE, (_catalog_rows(job, ledger, now_ms) for job in jobs))
        return {}

    if at.ledger is not None:
        write(at.ledger)
    elif any(job.unchanged is not None for job in jobs):
        ledgers.read_entries(at.path, write)
    else:
        write_catalog(folder / CATALOG_FILE, (_planned_base(job, now_ms) for job in jobs))
    for job in jobs:
        base = folder / KNOWLEDGE_FOLDER / job.base_id
        if job.has_index:
            path = base / INDEX_FILE
            durable.make_folders(path.parent, flush=False)
            index.build_index(path, job.base_id, now_ms, (), lambda *_: None, is_flushed=False)
        upload = _longest_upload(job)
        if upload is not None:
            durable.make_folders((base / RAW_FOLDER / upload).parent, flush=False)
            durable.put_bytes(base / RAW_FOLDER / upload, b"")
    text = migration.as_json(encoded(planned))
    durable.write_text_atomically(folder / REPORT_FILE, text, folder / f"{REPORT_FILE}.new")


def _catalog_rows(job: BaseJob, ledger: Ledger, now_ms: int) -> tuple[BaseRecord, Iterator[ItemRow]]:
    """Return the catalog rows of a base and of its items.

    They are the planned ones, or those in the ledger if the base is unchanged.
    """
    if job.unchanged is None:
        return _planned_base(job, now_ms)
    return job.unchanged.record, read_items(ledger.parts(job.base_id), job.base_id)


def _planned_base(job: BaseJob, now_ms: int) -> tuple[BaseRecord, Iterator[ItemRow]]:
    """Return the planned catalog rows of a base and of its items."""
    assert job.plan is not None
    return base_record(job.plan, now_ms), planned_rows(job.plan, {}, now_ms)


def _longest_upload(job: BaseJob) -> str | None:
    """Return the longest path of a base's uploads below ``raw/``; None if it is unchanged or has no uploads."""
    uploads = () if job.plan is None else (item.data for item in job.plan.items if item.upload is not None)
    paths = (str(data["relativePath"]) for data in uploads)
    return max(paths, key=len, default=None)
