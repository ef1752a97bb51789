"""The frame of every run that writes bases into a target: locked, recorded, and safe to stop and to repeat.

A run states what it does in the block of :func:`session`: plan, ask, :meth:`Session.begin`, publish base by base,
:meth:`Session.finish`. Whatever ends the block, finished bases stay whole and nothing half is left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import apsw
import msgspec
from msgspec import structs

from migrators.pipeline import preflight
from migrators.pipeline.publication import BaseEntry, TargetLibrary, check_ledger
from regraft.disk import durable, writable
from regraft.disk.trees import require_free_space
from regraft.errors import (
    Interrupted,
    RegraftError,
    StoppedMidway,
    TargetLocked,
    TargetNotWritable,
)
from regraft.formats.cherry_v2.catalog import ItemRow
from regraft.language import document_in_english, tr
from regraft.ledger import ledger as ledgers
from regraft.ledger.ledger import Ledger, LedgerEntry
from regraft.report import migration
from regraft.report.document import Run, encoded
from regraft.report.migration import MigrationReport, Preflight
from regraft.stores import write_checks


class PlannedBase(Protocol):
    """One base of a run."""

    @property
    def base_id(self) -> str:
        """Return the base's id in the target."""

    @property
    def position(self) -> int:
        """Return its place in the source's order."""

    @property
    def unchanged(self) -> BaseEntry | None:
        """Return what the ledger has of it where it is left as it stands, else None."""


class Migration(msgspec.Struct, frozen=True):
    """What a run comes to: its report, and whether anything was written."""

    report: MigrationReport
    wrote: bool


class Session(msgspec.Struct, kw_only=True):
    """A target while a run is at it: what earlier runs published there, and where this one builds.

    ``ledger`` is None in a dry run, which writes nothing but below ``work``.
    """

    path: Path
    run: Run
    #: What earlier runs published, by the id of the base.
    entries: dict[str, LedgerEntry]
    #: Where vector files of an archive are extracted.
    work: Path
    target: TargetLibrary
    ledger: Ledger | None = None
    #: Whether anything of a base has been written.
    began: bool = False
    #: The bases of the run, once it began, and how many of them it has put into place.
    jobs: Sequence[PlannedBase] = ()
    published: int = 0

    @property
    def staging(self) -> Path:
        """Return the folder in which bases are built."""
        return self.target.staging

    def stands(self, jobs: Sequence[PlannedBase]) -> bool:
        """Tell whether all of it stands in the target already, as an earlier run has written it."""
        if self.ledger is None or any(job.unchanged is None for job in jobs):
            return False
        return (
            _in_order(jobs)
            and self.target.catalog_is_current(self.entries)
            and self.target.report_is_current(self.entries)
        )

    def with_room(self, planned: MigrationReport, needed: int) -> MigrationReport:
        """Return a plan with the room that it takes in bytes, and that there is.

        Raises:
            NotEnoughSpace: it does not suffice.
            TargetCatalogChanged: somebody else changed the catalog that the run would write anew.
        """
        if self.ledger is not None:
            preflight.check_catalog(self.target, self.ledger)
        free = preflight.check_space(self.path, needed)
        return structs.replace(planned, preflight=Preflight(bytes_needed=needed, bytes_free=free))

    def begin(self, origin: str, jobs: Sequence[PlannedBase]) -> None:
        """Record the run, and put bases that stand in the source's present order; ``origin`` is for a person."""
        self.began, self.jobs = True, jobs
        self._ledger.begin_run(self.run.command, origin, self.run.id)
        for job in jobs:
            if job.unchanged is not None and job.unchanged.position != job.position:
                self.target.move_in_order(self._ledger, job.base_id, job.position)
        self.target.make_staging()

    def publish(self, entry: BaseEntry, fingerprint: str, items: Iterable[ItemRow]) -> None:
        """Move a base that was built and verified into its place, in one step, and record it."""
        self.target.publish_base(self._ledger, entry, fingerprint, items)
        self.published += 1

    def finish(self, report: MigrationReport) -> Migration:
        """Write catalog and report, and end the run."""
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
        """End a run that writes nothing."""
        self.run.end()
        return Migration(structs.replace(report, head=self.run.head()), wrote=False)

    @property
    def _ledger(self) -> Ledger:
        if self.ledger is None:
            raise ValueError(tr("a dry run has no ledger"))
        return self.ledger


@contextmanager
def session(target: Path, run: Run, *, unseen: int = 0) -> Iterator[Session]:
    """Open a target for a run: new, empty, or written by an earlier run. A dry run writes only to a temporary folder.

    Args:
        target: the library's folder.
        run: the run, which is a dry one or not.
        unseen: bytes that it takes before its plan is known; 0: none.

    Raises:
        RegraftError: refused (exit status 2), stopped midway (3) or interrupted (130).
    """
    place = TargetLibrary(target, run.id)
    if run.dry_run:
        with work_folder(unseen) as work:
            entries = ledgers.read_entries(target, check_ledger)
            yield Session(path=target, run=run, entries=entries, work=work, target=place)
        return
    if unseen:
        preflight.check_space(target, unseen)
    at = Session(path=target, run=run, entries={}, work=place.work, target=place)
    with _opened(at) as ledger, _clean_stop(at, ledger):
        place.recover(ledger)
        at.ledger, at.entries = ledger, ledger.entries()
        yield at


@contextmanager
def work_folder(unseen: int) -> Iterator[Path]:
    """Make a folder for a look that writes nothing else, with room for the largest part of ``unseen`` bytes.

    Raises:
        NotEnoughSpace
    """
    with durable.temporary_folder() as work:
        if unseen:
            require_free_space(work, int(unseen / preflight.UNREAD_FACTOR))
        yield work


@contextmanager
def _opened(at: Session) -> Iterator[Ledger]:
    """Make the target's folders where they are missing and open its ledger, which is its lock.

    Folders made here go again when the run is refused, or stopped before it has carried anything.
    """
    made = _first_missing(at.target.own)
    with writable.allow_writes(at.path):
        write_checks.refuse_library_links(at.path)
        try:
            with ExitStack() as stack:
                ledger = _ledger_of(at.target, stack)
                # A ledger that says what regraft does not write is refused before what it says is settled.
                with ledgers.report_unreadable(at.path):
                    check_ledger(ledger)
                yield ledger
        except BaseException as error:
            # Never while another run holds the lock: what it has made is not ours.
            if made is not None and not at.began and not isinstance(error, TargetLocked):
                with contextlib.suppress(OSError, RegraftError):
                    durable.remove_made_folders(at.target.own, made)
            raise


def _ledger_of(place: TargetLibrary, stack: ExitStack) -> Ledger:
    """Make the target's folders where they are missing, and open its ledger."""
    try:
        durable.make_folders(place.own)
        return stack.enter_context(ledgers.open_exclusive(place.path))
    except RegraftError:
        raise
    except (OSError, apsw.Error) as error:
        raise TargetNotWritable(path=place.path, reason=getattr(error, "strerror", None) or error) from error


def _first_missing(path: Path) -> Path | None:
    """Return the topmost folder of ``path`` that does not exist yet."""
    missing = None
    path = path.absolute()
    while not path.exists() and path != path.parent:
        missing, path = path, path.parent
    return missing


@contextmanager
def _clean_stop(at: Session, ledger: Ledger) -> Iterator[None]:
    """Leave finished bases whole and nothing half, whatever stops the run."""
    try:
        yield
    except KeyboardInterrupt as error:
        _leave_whole(at, ledger, "interrupted")
        raise Interrupted(finished=_finished(at, ledger)) from error
    except RegraftError:
        _leave_whole(at, ledger, "stopped")
        raise
    except (OSError, apsw.Error) as error:
        _leave_whole(at, ledger, "stopped")
        reason = getattr(error, "strerror", None) or str(error)
        finished = _finished(at, ledger)
        raise StoppedMidway(path=at.path, doing=tr("writing the library"), reason=reason, finished=finished) from error
    finally:
        place = at.target
        for folder in (place.staging, place.staging.parent, place.replaced, place.work, place.work.parent):
            with contextlib.suppress(OSError, RegraftError):
                durable.remove_folder(folder)


def _leave_whole(at: Session, ledger: Ledger, status: str) -> None:
    with contextlib.suppress(OSError, apsw.Error, RegraftError):
        at.target.throw_away()
    # Where the ledger cannot be written either, the next run settles what was begun.
    with contextlib.suppress(OSError, apsw.Error, RegraftError):
        at.target.recover(ledger)
    with contextlib.suppress(OSError, apsw.Error, RegraftError):
        ledger.end_run(status)


def _finished(at: Session, ledger: Ledger) -> int:
    """Count the bases of a run that stand in the target: what it put there by the ledger, and what it left alone."""
    kept = {job.base_id for job in at.jobs if job.unchanged is not None}
    with contextlib.suppress(OSError, apsw.Error):
        now = ledger.entries()
        made = {job.base_id for job in at.jobs if now.get(job.base_id) != at.entries.get(job.base_id)}
        return len(kept | made)
    return len(kept) + at.published


def _in_order(jobs: Sequence[PlannedBase]) -> bool:
    """Tell whether bases that stand unchanged stand in the source's present order."""
    positions = [job.unchanged.position for job in jobs if job.unchanged is not None]
    return all(first < second for first, second in pairwise(positions))
