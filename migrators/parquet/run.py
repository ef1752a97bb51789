"""Imports Parquet files of units into a library, in the frame of every run that writes one."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import msgspec

from migrators.parquet import files
from migrators.parquet.catalog_rows import items_of, items_of_materials, record_of
from migrators.parquet.files import UnitsFile
from migrators.parquet.plan import Plan
from migrators.parquet.rebuild import Rebuilt, verify
from migrators.parquet.report import carried_outcome, planned_outcome, skipped_of
from migrators.pipeline import preflight, published, report
from migrators.pipeline.carry import CARRY_SHARE, REPORT_ROWS, Indexing
from migrators.pipeline.options import Options
from migrators.pipeline.published import BaseEntry, read_entry, still_there
from migrators.pipeline.report import Outcome
from migrators.pipeline.session import Migration, Session, session
from migrators.pipeline.survey import kept_completed
from regraft import sqlite
from regraft.errors import Declined, SourceUnreadable
from regraft.formats.cherry_v2 import catalog
from regraft.formats.cherry_v2.item_data import data_damage
from regraft.formats.parquet.metadata import AboutBase
from regraft.language import joined, tr
from regraft.ledger import durable
from regraft.ledger.ledger import Entry
from regraft.locate import INDEX_FILE
from regraft.records import replace
from regraft.report.document import Run
from regraft.report.migration import MigrationReport
from regraft.report.progress import Progress, stage
from regraft.text import shown

COMMAND = "import"
#: Changes when the same file makes another library: an earlier run's bases are then imported anew.
WRITER = 1


class ImportJob(msgspec.Struct, frozen=True):
    """One base of the run: unchanged, with what the ledger has of it, or planned."""

    position: int
    base_id: str
    fingerprint: str
    unchanged: BaseEntry | None = None
    plan: Plan | None = None


def import_files(
    paths: tuple[Path, ...],
    target: Path,
    options: Options,
    progress: Progress,
    show_plan: Callable[[MigrationReport], bool] = lambda _: True,
) -> Migration:
    """Import files that ``regraft export`` wrote, of different bases, into ``target`` and return the report.

    Args:
        paths: the files.
        target: the library's folder: new, empty, or written by an earlier run.
        options: what the user asks for: time, bases, a dry run.
        progress: told of rows and bytes.
        show_plan: called with the planned report before anything of a base is written; False stops here.

    Raises:
        RegraftError: refused (exit status 2), stopped midway (3) or interrupted (130).
    """
    preflight.check_target(target, paths, paths[0])
    run = Run(
        command=COMMAND,
        dry_run=options.dry_run,
        source_kind="parquet",
        source=paths[0],
        target_kind="library",
        target=target,
    )
    bases = files.chosen(files.read_files(paths), options.bases)
    with session(target, run) as at:
        plan = plan_import(bases, at, options, progress)
        outcomes = plan.outcomes()
        planned = import_report(run, outcomes)
        if at.stands(plan.jobs):
            return at.without_writing(planned)
        planned = at.with_room(planned, plan.bytes)
        if options.dry_run:
            return at.without_writing(planned)
        if not show_plan(planned):
            raise Declined(path=target)
        at.begin(joined(map(shown, paths)), plan.jobs)
        with stage(progress, "Carrying", plan.rows), _still_readable():
            for job, base_plan in _marked(plan, progress):
                progress.at(base_plan.about.name)
                outcomes[job.base_id] = carry(at, job, base_plan, progress)
        return at.finish(import_report(run, outcomes))


class ImportPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What an import is going to do: every base as it stands, or with its plan."""

    jobs: tuple[ImportJob, ...]

    @property
    def planned(self) -> list[Plan]:
        """Return the plans of the bases that are to be carried."""
        return [job.plan for job in self.jobs if job.plan is not None]

    @property
    def bytes(self) -> int:
        """Estimate the bytes that carrying them takes on the target's disk."""
        planned = self.planned
        around = preflight.library_bytes(len(planned), sum(len(plan.materials) for plan in planned))
        return around + sum(plan.bytes for plan in planned)

    @property
    def rows(self) -> int:
        """Return how many rows are to be carried."""
        return sum(plan.held.rows for plan in self.planned)

    def outcomes(self) -> dict[str, Outcome]:
        """Return what is to be reported of every base, by its id."""
        found = {}
        for job in self.jobs:
            if job.unchanged is not None:
                found[job.base_id] = report.unchanged(job.unchanged)
            elif job.plan is not None:
                found[job.base_id] = planned_outcome(job.plan)
        return found


def plan_import(
    bases: list[tuple[int, UnitsFile, AboutBase]], at: Session, options: Options, progress: Progress
) -> ImportPlan:
    """Look at every base of the files; refuse what the target has from elsewhere, and rows that no catalog takes.

    Raises:
        TargetNotOurs, TargetBaseForeign, TargetBaseChanged, TargetHasItem, LinkInStore, SourceUnreadable
    """
    marks = _fingerprints(bases, at.entries)
    stands = {base.id: _unchanged(at.path, base.id, at.entries, marks[base.id]) for _, _, base in bases}
    _survey([file for _, file, base in bases if stands[base.id] is None], progress)
    jobs = []
    for position, file, base in bases:
        job = ImportJob(position, base.id, marks[base.id], unchanged=stands[base.id])
        if job.unchanged is None:
            job = _not_poorer(at, replace(job, plan=_plan(file, base, options)))
        jobs.append(job)
    plan = ImportPlan(jobs=tuple(jobs))
    changed = {one.about.id for one in plan.planned}
    preflight.check_conflicts(at.path, COMMAND, (base.id for _, _, base in bases), at.entries, changed)
    items = {one.about.id: (one.about.name, [item.id for item in one.expected_items()]) for one in plan.planned}
    preflight.check_items(at.path, items, at.entries)
    _prove(plan.planned)
    return plan


def import_report(run: Run, outcomes: dict[str, Outcome]) -> MigrationReport:
    """Return the whole report of an import."""
    ordered = list(outcomes.values())
    return report.report_of(run, ordered, skipped_of(ordered), ())


def _fingerprints(bases: list[tuple[int, UnitsFile, AboutBase]], entries: dict[str, Entry]) -> dict[str, str]:
    """Return a hash of all that a base is made from (its file counts by size and CRC-32), "" for a new base."""
    # Of a base that no run has written yet there is nothing to compare with: its file is read for that once there is
    # room for what becomes of it.
    found = {}
    marks: dict[Path, list[int]] = {}
    for _, file, base in bases:
        if base.id in entries and file.path not in marks:
            marks[file.path] = file.content_mark()
        found[base.id] = fingerprint(base.id, marks[file.path]) if base.id in entries else ""
    return found


def _marked(plan: ImportPlan, progress: Progress) -> list[tuple[ImportJob, Plan]]:
    """Return the bases that are to be carried, with their fingerprints: now there is room for what becomes of them."""
    marks: dict[Path, list[int]] = {}
    found = []
    for job in plan.jobs:
        if job.plan is None:
            continue
        file, mark = job.plan.file, job.fingerprint
        if not mark and file.path not in marks:
            progress.at(file.path.name)
            marks[file.path] = file.content_mark()
        if not mark:
            mark = fingerprint(job.base_id, marks[file.path])
        found.append((replace(job, fingerprint=mark), job.plan))
    return found


def _survey(wanted: list[UnitsFile], progress: Progress) -> None:
    unread = {file.path: file for file in wanted}.values()
    with stage(progress, "Reading", sum(file.looked_at[0] for file in unread), "bytes"):
        for file in unread:
            size = file.looked_at[0]
            progress.at(file.path.name)
            file.survey(lambda share, size=size: progress.step(share * size, 0))  # type: ignore[misc]


def _plan(file: UnitsFile, base: AboutBase, options: Options) -> Plan:
    skipped: Counter[str] = Counter()
    return Plan(
        about=base,
        file=file,
        held=file.of_base(base),
        record=record_of(file.path, file.about, base, options.now_ms),
        items=None if base.items is None else tuple(items_of(base, skipped)),
        skipped_items=skipped,
        strays=file.strays() if base is file.about.bases[0] else 0,
    )


def carry(at: Session, job: ImportJob, plan: Plan, progress: Progress) -> Outcome:
    """Build a base anew, verify it, put it in its place, and return what is to be reported of it."""
    base, staged = plan.about, at.staging / job.base_id
    built, size = None, 0
    if base.index:
        built = _build(staged / INDEX_FILE, plan, progress)
        size = (staged / INDEX_FILE).stat().st_size
        durable.sync_tree(staged)
    found = items_of_materials(base.id, staged / INDEX_FILE, plan.record.now_ms) if built else ()
    items = tuple(found) if plan.items is None else plan.items
    outcome = carried_outcome(plan, items, built, size)
    entry = BaseEntry(
        position=job.position,
        record=plan.record,
        report=outcome.base,
        items={item.id: item.id for item in items},
        children={},
        notices=list(outcome.notices),
        has_files=base.index,
        index_mark=published.index_mark(staged),
        index_hash=published.index_hash(staged),
        raw_mark="",
        command=COMMAND,
    )
    at.publish(entry, job.fingerprint, items)
    return outcome


def _build(path: Path, plan: Plan, progress: Progress) -> Rebuilt:
    durable.make_folders(path.parent, flush=False)
    base_id, rows = plan.about.id, plan.held.rows
    with sqlite.writing(path, create=True) as db:
        built = Rebuilt(base_id, plan.record.now_ms, db)
        size = (plan.held.vector_bytes + plan.held.text_bytes) // max(rows, 1)
        for row in plan.file.rows(plan.about):
            built.add(row)
            if built.read % REPORT_ROWS == 0:
                progress.step(REPORT_ROWS * CARRY_SHARE, REPORT_ROWS * size)
        if built.read != rows:
            reason = tr(
                "two readings of base {base} gave {rows:,} and {read:,} rows", rows=rows, read=built.read, base=base_id
            )
            raise SourceUnreadable(path=plan.file.path, reason=reason)
        Indexing(rows, progress.step).watch(db)
        built.finish(plan.about.bare_materials)
    verify(path, base_id, built)
    return built


@contextmanager
def _still_readable() -> Iterator[None]:
    """Stop, and do not refuse, where a file cannot be read that could be a moment ago: what is finished stays."""
    try:
        yield
    except SourceUnreadable as error:
        raise OSError(f"{error.facts['path']}: {error.facts['reason']}") from error


def fingerprint(base_id: str, content_mark: list[int]) -> str:
    """Return a hash of all that a base is made from."""
    return hashlib.blake2b(msgspec.json.encode([WRITER, base_id, content_mark]), digest_size=20).hexdigest()


def _unchanged(target: Path, base_id: str, entries: dict[str, Entry], mark: str) -> BaseEntry | None:
    entry = entries.get(base_id)
    if entry is None or entry.fingerprint != mark:
        return None
    known = read_entry(entry)
    stands = published.standing(target, base_id, known)
    return known if stands in (published.Standing.WHOLE, published.Standing.CHANGED) else None


def _not_poorer(at: Session, job: ImportJob) -> ImportJob:
    """Keep a completed base that stands in the target where the file would only give a failed one."""
    if job.plan is None or job.plan.record.base.error is None or job.base_id not in at.entries:
        return job
    stands = read_entry(at.entries[job.base_id])
    if stands.record.base.error is not None or not still_there(at.path, job.base_id, stands):
        return job
    kept = kept_completed(stands, job.plan.record.base.error, job.base_id)
    return ImportJob(job.position, job.base_id, job.fingerprint, unchanged=kept)


def _problem(plan: Plan) -> str | None:
    """Return what is damaged of what a file says of a base; None where nothing is."""
    if plan.record.base.id != plan.about.id:
        return tr("its base {id} has the settings of another", id=shown(plan.about.id))
    if not plan.about.index and plan.record.base.status == "completed":
        return tr("its base {id} is completed, and has no index", id=shown(plan.about.id))
    for row in plan.about.items or ():
        problem = None if row.get("deleted_at") is not None else data_damage(row)
        # Without its item a text would be an orphan.
        if problem is not None and row.get("id") in plan.materials:
            return tr("its item {get} has texts, and {problem}", get=shown(row.get("id")), problem=problem)
    return None


def _prove(plans: list[Plan]) -> None:
    """Refuse bases and items that no catalog takes, or that make no sense there, before anything of them is written.

    Raises:
        SourceUnreadable
    """
    for plan in plans:
        problem = _problem(plan)
        if problem is not None:
            raise SourceUnreadable(path=plan.file.path, reason=problem)
    try:
        catalog.prove((plan.record, plan.expected_items()) for plan in plans)
    except (apsw.ConstraintError, TypeError, OverflowError) as error:
        names = joined(shown(name) for name in dict.fromkeys(plan.file.path for plan in plans))
        raise SourceUnreadable(
            path=names, reason=tr("its bases and items cannot stand in a catalog: {error}", error=error)
        ) from error
