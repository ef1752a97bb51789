"""The frame of every run that writes bases into a target: locked, recorded, and safe to stop and to repeat.

What differs from command to command is a :class:`LibraryRun`; :func:`write` and :func:`dry_run` run it.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import apsw

from migrators.pipeline import preflight
from migrators.pipeline.entries import demand_fit
from migrators.pipeline.publish import Target
from migrators.pipeline.report import Outcome
from migrators.pipeline.survey import BaseEntry
from regraft import areas, layout_links
from regraft.errors import (
    Declined,
    Interrupted,
    RegraftError,
    StoppedMidway,
    TargetLocked,
    TargetNotWritable,
)
from regraft.ledger import durable
from regraft.ledger import ledger as ledgers
from regraft.ledger.ledger import Entry, Ledger
from regraft.report import render
from regraft.report.document import Run


class Work(Protocol):
    """One base of a run."""

    @property
    def base_id(self) -> str:
        """Return the base's id in the target."""

    @property
    def position(self) -> int:
        """Return its place in the source's order."""

    @property
    def fingerprint(self) -> str:
        """Return the hash of all that it is made from."""

    @property
    def unchanged(self) -> BaseEntry | None:
        """Return what the ledger has of it where it is left as it stands, else None."""


W = TypeVar("W", bound=Work)


@dataclass(frozen=True)
class Migration:
    """What a run comes to: the report's document, and whether anything was written."""

    document: dict[str, Any]
    wrote: bool


@dataclass(kw_only=True)
class LibraryRun(ABC, Generic[W]):
    """One run into a target, and what it has got so far, for the report and for a clean stop."""

    run: Run
    #: What the ledger keeps of where the bases come from, for a person.
    origin: str
    works: list[W] = field(default_factory=list)
    #: By the id that the source has for the base.
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    #: Whether anything of a base has been written.
    began: bool = False

    @abstractmethod
    def look(self, target: Path, entries: dict[str, Entry], keep: ExitStack, work: Path) -> None:
        """Find out what is to be done: fill ``works``, and ``outcomes`` for unchanged bases; write only below ``work``.

        Raises:
            RegraftError: refused.
        """

    @abstractmethod
    def needed(self) -> int:
        """Estimate the bytes that carrying the planned bases takes on the target's disk."""

    @abstractmethod
    def carry(self, place: Target, ledger: Ledger) -> None:
        """Carry and publish every planned base, one after the other in the ledger."""

    @abstractmethod
    def document(self, *, planned: bool = False) -> dict[str, Any]:
        """Return the report of what was done, or (``planned``) of what will be."""


def write(target: Path, library_run: LibraryRun[W], show_plan: Callable[[dict[str, Any]], bool]) -> Migration:
    """Run a library run into ``target``: new, empty, or written by an earlier run.

    ``show_plan`` is called with the planned document before anything of a base is written; False stops here.

    Raises:
        RegraftError: refused (exit status 2), stopped midway (3) or interrupted (130).
    """
    run = library_run.run
    with _opened(target, library_run) as (place, ledger), _clean_stop(place, ledger, library_run):
        place.recover(ledger)
        entries = ledger.entries()
        with ExitStack() as keep:
            library_run.look(target, entries, keep, place.work)
            if _nothing_to_do(place, entries, library_run.works):
                run.end()
                return Migration(library_run.document(), wrote=False)
            preflight.check_catalog(place, entries)
            if not show_plan(_planned(target, library_run)):
                raise Declined(path=target)
            library_run.began = True
            ledger.begin_run(run.command, library_run.origin, run.id)
            _move_in_order(place, ledger, library_run.works)
            place.make_staging()
            library_run.carry(place, ledger)
        return Migration(_finish(place, ledger, library_run), wrote=True)


def dry_run(target: Path, library_run: LibraryRun[W], work: Path) -> Migration:
    """Return what :func:`write` would report, and write nothing but below ``work``.

    Raises:
        RegraftError: it would be refused.
    """
    entries = ledgers.read_entries(target, demand_fit)
    with ExitStack() as keep:
        library_run.look(target, entries, keep, work)
        library_run.run.end()
        return Migration(_planned(target, library_run), wrote=False)


def _planned(target: Path, library_run: LibraryRun[W]) -> dict[str, Any]:
    """Return the report as it will be, with the pre-flight's figures; refuse where there is no room."""
    needed = library_run.needed()
    figures = {"bytes_needed": needed, "bytes_free": preflight.check_space(target, needed)}
    return {**library_run.document(planned=True), "preflight": figures}


@contextmanager
def _opened(target: Path, library_run: LibraryRun[W]) -> Iterator[tuple[Target, Ledger]]:
    """Make the target's folders where they are missing and open its ledger, which is its lock.

    Folders made here go again when the run is refused, or stopped before it has carried anything.
    """
    place = Target(target, library_run.run.id)
    made = _first_missing(place.own)
    with areas.opened(target):
        layout_links.demand_none_in_library(target)
        try:
            with ExitStack() as stack:
                ledger = _book(place, stack)
                # A ledger that says what regraft does not write is refused before what it says is settled.
                with ledgers.readable(target):
                    demand_fit(ledger)
                yield place, ledger
        except BaseException as error:
            # Never while another run holds the lock: what it has made is not ours.
            if made is not None and not library_run.began and not isinstance(error, TargetLocked):
                with contextlib.suppress(OSError, RegraftError):
                    durable.unmake_folders(place.own, made)
            raise


def _book(place: Target, stack: ExitStack) -> Ledger:
    """Make the target's folders where they are missing, and open its ledger."""
    try:
        durable.make_folders(place.own)
        return stack.enter_context(ledgers.opened(place.path))
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
def _clean_stop(place: Target, ledger: Ledger, library_run: LibraryRun[W]) -> Iterator[None]:
    """Leave finished bases whole and nothing half, whatever stops the run."""

    def leave(status: str) -> None:
        with contextlib.suppress(OSError, apsw.Error, RegraftError):
            place.throw_away()
        # Where the ledger cannot be written either, the next run settles what was begun.
        with contextlib.suppress(OSError, apsw.Error, RegraftError):
            place.recover(ledger)
        with contextlib.suppress(OSError, apsw.Error, RegraftError):
            ledger.end_run(status)

    def finished() -> int:
        """Count the bases of this run that stand in the target, by the ledger."""
        with contextlib.suppress(OSError, apsw.Error):
            entries = ledger.entries()
            return sum(
                one.unchanged is not None
                or (one.base_id in entries and entries[one.base_id].fingerprint == one.fingerprint)
                for one in library_run.works
            )
        return sum(outcome.done for outcome in library_run.outcomes.values())

    try:
        yield
    except KeyboardInterrupt as error:
        leave("interrupted")
        raise Interrupted(finished=finished()) from error
    except RegraftError:
        leave("stopped")
        raise
    except (OSError, apsw.Error) as error:
        leave("stopped")
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        raise StoppedMidway(path=place.path, doing="writing the library", reason=reason, finished=finished()) from error
    finally:
        for folder in (place.staging, place.staging.parent, place.replaced, place.work, place.work.parent):
            with contextlib.suppress(OSError, RegraftError):
                durable.remove_folder(folder)


def _nothing_to_do(place: Target, entries: dict[str, Entry], works: list[W]) -> bool:
    return (
        all(work.unchanged is not None for work in works)
        and _in_order(works)
        and place.catalog_is_current(entries)
        and place.report_is_current(entries)
    )


def _in_order(works: list[W]) -> bool:
    """Tell whether bases that stand unchanged stand in the source's present order."""
    positions = [work.unchanged.position for work in works if work.unchanged is not None]
    return all(first < second for first, second in pairwise(positions))


def _move_in_order(place: Target, ledger: Ledger, works: list[W]) -> None:
    for work in works:
        if work.unchanged is not None and work.unchanged.position != work.position:
            place.move_in_order(ledger, work.base_id, work.position)


def _finish(place: Target, ledger: Ledger, library_run: LibraryRun[W]) -> dict[str, Any]:
    if not place.catalog_is_current(ledger.entries()):
        place.publish_catalog(ledger)
    library_run.run.end()
    document = library_run.document()
    place.publish_report(ledger, render.as_json(document), render.as_page(document))
    place.clean()
    ledger.end_run("finished")
    return document
