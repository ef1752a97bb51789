"""A run that writes bases to a target: locked, recorded in the ledger, and safe to stop and to repeat.

A run does its work in the block of :func:`session`: plan, :meth:`Session.begin`, publish base by base,
:meth:`Session.finish`. However the block ends, published bases are complete and no partial files remain.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import apsw
import msgspec
from msgspec import structs

from migrators.pipeline import preflight
from migrators.pipeline.publication import BaseEntry, TargetLibrary, check_ledger
from regraft.disk import durable, scratch, writable
from regraft.disk.trees import require_free_space
from regraft.errors import RegraftError, StoppedMidway, TargetNotWritable
from regraft.formats.cherry_v2.catalog import ItemRow
from regraft.language import document_in_english, tr
from regraft.ledger import ledger as ledgers
from regraft.ledger.ledger import Ledger, LedgerEntry
from regraft.ledger.run_frame import lock_store, record_end
from regraft.ledger.values import RecordedAction
from regraft.report import migration
from regraft.report.document import Run, encoded
from regraft.report.migration import MigrationReport, Preflight
from regraft.stores import write_checks


class PlannedBase(Protocol):
    """A base of a run, as far as the session needs to know it."""

    @property
    def base_id(self) -> str:
        """Id of the base in the target."""

    @property
    def position(self) -> int:
        """Position in the source's order."""

    @property
    def unchanged(self) -> BaseEntry | None:
        """The ledger entry if the base is left unchanged, else None."""


class Migration(msgspec.Struct, frozen=True):
    """The result of a run: its report, and whether anything was written."""

    report: MigrationReport
    wrote: bool


class Session(msgspec.Struct, kw_only=True):
    """An open target during a run.

    A dry run has no ``ledger`` and writes only to ``work``.
    """

    path: Path
    run: Run
    #: Ledger entries of earlier runs, by base id.
    entries: dict[str, LedgerEntry]
    #: Folder for vector files extracted from an archive.
    work: Path
    target: TargetLibrary
    ledger: Ledger | None = None
    #: Whether the run has begun to write.
    began: bool = False
    #: The bases of the run once it began, and how many of them are published.
    jobs: Sequence[PlannedBase] = ()
    published: int = 0

    @property
    def staging(self) -> Path:
        """Folder in which bases are built."""
        return self.target.staging

    def is_up_to_date(self, jobs: Sequence[PlannedBase]) -> bool:
        """Whether the target already has all bases of the run in order, so that there is nothing to write."""
        if self.ledger is None or any(job.unchanged is None for job in jobs):
            return False
        # The unchanged bases have to be in the source's present order.
        positions = [job.unchanged.position for job in jobs if job.unchanged is not None]
        return (
            all(first < second for first, second in pairwise(positions))
            and self.target.catalog_is_current(self.entries)
            and self.target.report_is_current(self.entries)
        )

    def with_room(self, planned: MigrationReport, needed: int) -> MigrationReport:
        """Check the free space of the target, and add ``needed`` and free bytes to the report of a plan.

        Raises:
            NotEnoughSpace: the free space is not enough.
            TargetCatalogChanged: another program changed the catalog that the run would replace.
        """
        if self.ledger is not None:
            preflight.check_catalog(self.target, self.ledger)
        free = preflight.check_space(self.path, needed)
        return structs.replace(planned, preflight=Preflight(bytes_needed=needed, bytes_free=free))

    def begin(self, origin: str, jobs: Sequence[PlannedBase], actions: Sequence[RecordedAction] = ()) -> None:
        """Record the run and its ``actions``, and update the positions of unchanged bases.

        ``origin`` is the source's display name.
        """
        self.began, self.jobs = True, jobs
        self._ledger.begin_run(self.run.command, origin, self.run.id, actions)
        for job in jobs:
            if job.unchanged is not None and job.unchanged.position != job.position:
                self.target.update_position(self._ledger, job.base_id, job.position)
        self.target.make_staging()

    def publish(self, entry: BaseEntry, fingerprint: str, items: Iterable[ItemRow]) -> None:
        """Move a verified base into place in one step, and record it with the fingerprint of its source."""
        self.target.publish_base(self._ledger, entry, fingerprint, items)
        self.published += 1

    def finish(self, report: MigrationReport) -> Migration:
        """Write the catalog and this report, and end the run."""
        if not self.target.catalog_is_current(self._ledger.entries()):
            self.target.publish_catalog(self._ledger)
        self.run.end()
        report = structs.replace(report, head=self.run.head())
        document = encoded(report)
        text = migration.as_json(document_in_english(document))
        self.target.publish_report(self._ledger, text, migration.migration_page(document))
        self.target.clean()
        self._ledger.end_run("finished")
        return Migration(report, wrote=True)

    def without_writing(self, report: MigrationReport) -> Migration:
        """End a run that has nothing to write, with this report."""
        self.run.end()
        return Migration(structs.replace(report, head=self.run.head()), wrote=False)

    @property
    def _ledger(self) -> Ledger:
        """The open ledger. Raise ValueError in a dry run."""
        if self.ledger is None:
            raise ValueError(tr("a dry run has no ledger"))
        return self.ledger


@contextmanager
def session(target: Path, run: Run, *, bytes_before_plan: int = 0) -> Iterator[Session]:
    """Open a target for a run: new, empty, or written by an earlier run. A dry run writes only to a temporary folder.

    Args:
        target: folder of the library.
        run: the run.
        bytes_before_plan: disk space in bytes that the run needs before its plan is known; 0 if none.

    Raises:
        RegraftError: refused (exit status 2), stopped midway (3) or interrupted (130).
    """
    place = TargetLibrary(target, run.id)
    if run.dry_run:
        with work_folder(bytes_before_plan) as work:
            entries = ledgers.read_entries(target, check_ledger)
            yield Session(path=target, run=run, entries=entries, work=work, target=place)
        return
    if bytes_before_plan:
        preflight.check_space(target, bytes_before_plan)
    at = Session(path=target, run=run, entries={}, work=place.work, target=place)
    with _open_ledger(at) as ledger, _clean_up_on_failure(at, ledger):
        place.recover(ledger)
        at.ledger, at.entries = ledger, ledger.entries()
        yield at


@contextmanager
def work_folder(bytes_before_plan: int) -> Iterator[Path]:
    """Create a temporary folder for planning, and remove it afterwards.

    ``bytes_before_plan`` is the disk space that the run needs before its plan is known. The folder needs the largest
    part of it.

    Raises:
        NotEnoughSpace
    """
    with scratch.temporary_folder() as work:
        if bytes_before_plan:
            require_free_space(work, int(bytes_before_plan / preflight.UNREAD_FACTOR))
        yield work


@contextmanager
def _open_ledger(at: Session) -> Iterator[Ledger]:
    """Create the folders of the target if necessary, and open its ledger, which locks the library.

    If the run is refused or stops before it writes a base, folders that were created here are removed.
    """

    def not_writable(reason: object) -> RegraftError:
        """Make the error for a target whose ledger cannot be written."""
        return TargetNotWritable(path=at.path, reason=reason)

    def is_unused(ledger: Ledger) -> bool:
        """Whether neither this run nor another one has written to the library."""
        return not (at.began or ledger.changes.runs())

    with writable.allow_writes(at.path):
        write_checks.refuse_library_links(at.path)
        with lock_store(at.path, at.target.own, not_writable=not_writable, is_unused=is_unused) as ledger:
            # Validate the ledger before acting on it.
            with ledgers.report_unreadable(at.path):
                check_ledger(ledger)
            yield ledger


@contextmanager
def _clean_up_on_failure(at: Session, ledger: Ledger) -> Iterator[None]:
    """Run the block of a run. If it fails or is stopped, remove partial files and record the end of the run."""
    place = at.target

    def as_stopped(error: Exception, finished: int) -> Exception:
        """Return the error that tells how the run was stopped; errors of regraft tell it already."""
        if isinstance(error, RegraftError) or not isinstance(error, OSError | apsw.Error):
            return error
        reason = getattr(error, "strerror", None) or str(error)
        return StoppedMidway(path=at.path, doing=tr("writing the library"), reason=reason, finished=finished)

    settle = (place.discard_staged, lambda: place.recover(ledger))
    try:
        with record_end(ledger, settle, lambda: _count_finished(at, ledger), as_stopped):
            yield
    finally:
        for folder in (place.staging, place.staging.parent, place.replaced, place.work, place.work.parent):
            with contextlib.suppress(OSError, RegraftError):
                durable.remove_folder(folder)


def _count_finished(at: Session, ledger: Ledger) -> int:
    """Count the bases of the run that are finished: those with a new ledger entry, and those that were unchanged."""
    kept = {job.base_id for job in at.jobs if job.unchanged is not None}
    with contextlib.suppress(OSError, apsw.Error):
        now = ledger.entries()
        made = {job.base_id for job in at.jobs if now.get(job.base_id) != at.entries.get(job.base_id)}
        return len(kept | made)
    return len(kept) + at.published
