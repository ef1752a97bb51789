"""The whole journey: read → plan → carry → verify → publish, safe to stop and to repeat at any moment."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw

from migrators.stages import preflight, report
from migrators.stages.crew import Done, carry_all, jobs_for, processes
from migrators.stages.drafts import BaseDraft, LibraryDraft
from migrators.stages.journey import Journey
from migrators.stages.options import Options
from migrators.stages.publish import Target, base_entries, pack
from migrators.stages.report import Outcome
from migrators.stages.work import (
    BaseEntry,
    BaseWork,
    Looker,
    chosen,
    kept_completed,
    vector_name,
)
from regraft import durable, ledger, render
from regraft.envelope import Run
from regraft.errors import (
    Declined,
    Interrupted,
    RegraftError,
    StoppedMidway,
    TargetLocked,
    TargetNotWritable,
)
from regraft.ledger import Entry, Ledger
from regraft.locate import Located
from regraft.progress import Progress, stage
from regraft.text import shown


@dataclass
class _State:
    """What a run has got so far, for the report and for a clean stop."""

    journey: Journey
    options: Options
    library: LibraryDraft
    run: Run
    works: list[BaseWork] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    #: Whether anything of a base has been written.
    began: bool = False


@dataclass(frozen=True)
class Migration:
    """What a run comes to: the report's document, and whether anything was written."""

    document: dict[str, Any]
    wrote: bool


def migrate(
    journey: Journey,
    source: Located,
    target: Path,
    options: Options,
    progress: Progress,
    show_plan: Callable[[dict[str, Any]], bool] = lambda _: True,
) -> Migration:
    """Migrate a source into ``target`` and return its report.

    Args:
        journey: how sources of this layout are read.
        source: a recognised source of that layout.
        target: the library's folder: new, empty, or written by an earlier run.
        options: what the user asks for.
        progress: told of rows and bytes.
        show_plan: called with the planned document before anything of a base is written; False stops here.

    Raises:
        RegraftError: refused (exit status 2), stopped midway (3) or interrupted (130).
    """
    preflight.check_target(source, target)
    library = read_library(journey, source, options)
    bases = chosen(library, options)
    run = Run("migrate", options.dry_run, source.kind.value, source.path, "library", target)
    state = _State(journey, options, library, run)
    if options.dry_run:
        return Migration(_dry_run(source, target, bases, state, progress), wrote=False)
    _check_unseen_space(source, target, bases)
    with _opened(target, state) as (place, book), _clean_stop(place, book, state):
        with ledger.readable(target):
            base_entries(book.entries())
            place.recover(book)
        entries = book.entries()
        with ExitStack() as keep:
            _look(source, target, bases, entries, state, keep, place.work, progress)
            if _nothing_to_do(place, entries, state):
                state.run.end()
                return Migration(report.document(state.run, library, state.outcomes), wrote=False)
            preflight.check_catalog(place, entries)
            if not show_plan(_planned(source, target, state)):
                raise Declined(path=target)
            state.began = True
            book.begin_run("migrate", shown(source.path), state.run.id)
            _carry(source, place, book, state, progress)
        return Migration(_finish(place, book, state), wrote=True)


def read_library(journey: Journey, source: Located, options: Options) -> LibraryDraft:
    """Read a source's state as drafts, with what is worth saying of how the source was found.

    Raises:
        ApplicationRunning: it is a profile in use, and the options do not allow that.
    """
    running = preflight.check_running(source.profile, options)
    library = journey.read(source, options)
    return replace(library, notices=(*source.notices, *running, *library.notices))


def _dry_run(
    source: Located, target: Path, bases: list[tuple[int, BaseDraft]], state: _State, progress: Progress
) -> dict[str, Any]:
    entries = ledger.read_entries(target)
    with ledger.readable(target):
        base_entries(entries)
    with _work_folder(source, bases) as work, ExitStack() as keep:
        _look(source, target, bases, entries, state, keep, work, progress)
        state.run.end()
        return _planned(source, target, state)


@contextmanager
def _work_folder(source: Located, bases: list[tuple[int, BaseDraft]]) -> Iterator[Path]:
    """Make a folder for a look that writes nothing else, with room for what an archive's vector files take."""
    with tempfile.TemporaryDirectory(prefix="regraft-") as folder:
        work = Path(folder)
        if source.is_archive:
            names = [vector_name(source, draft) for _, draft in bases]
            largest = preflight.unseen_bytes(source, names) / preflight.UNSEEN_FACTOR
            preflight.check_work_space(work, int(largest))
        yield work


def plan_only(journey: Journey, source: Located, options: Options, progress: Progress) -> dict[str, Any]:
    """Return what a dry run into a new folder would report, for a look at the source alone (``regraft check``).

    There is no target, so ``preflight`` measures the disk that holds the source and nothing is refused for want of
    room. ``looked_at`` says of each base, by its v1 id, what was looked at: how many ``items`` and ``uploads`` it
    names, its ``vector_file`` (a name in the source), what ``kind`` of thing that is there ("file", "folder" or None),
    its ``bytes``, and whether its rows could be read (``is_read``).

    Raises:
        RegraftError: as for :func:`migrate`, but for what is about a target.
    """
    library = read_library(journey, source, options)
    bases = chosen(library, options)
    state = _State(journey, options, library, Run("check", False, source.kind.value, source.path))
    with _work_folder(source, bases) as work, ExitStack() as keep:
        # Nothing of an earlier run can stand in a folder that was made just now.
        _look(source, work / "library", bases, {}, state, keep, work, progress)
        needed = _needed(source, state)
        free = shutil.disk_usage(source.path).free
        looked_at = {one.draft.legacy_id: _looked_at(source, one) for one in state.works}
        state.run.end()
    return {**_report(state, needed, free), "looked_at": looked_at}


def _looked_at(source: Located, work: BaseWork) -> dict[str, Any]:
    draft, name = work.draft, vector_name(source, work.draft)
    kind = source.tree.kind(name) if name else None
    size = 0
    if kind == "file":
        with contextlib.suppress(OSError):
            size = source.tree.size(name)
    return {
        "items": len(draft.items) + len(draft.skipped_items),
        "uploads": sum(item.upload is not None for item in draft.items),
        "vector_file": name or draft.vector_file,
        "kind": kind,
        "bytes": size,
        "is_read": work.vectors is not None,
    }


def _in_order(works: list[BaseWork]) -> bool:
    """Tell whether bases that stand unchanged stand in v1's present order."""
    positions = [work.unchanged.position for work in works if work.unchanged is not None]
    return all(first < second for first, second in pairwise(positions))


def _planned(source: Located, target: Path, state: _State) -> dict[str, Any]:
    """Return the report as it will be, with the pre-flight's figures; refuse where there is no room."""
    needed = _needed(source, state)
    return _report(state, needed, preflight.check_space(target, needed))


def _needed(source: Located, state: _State) -> int:
    """Estimate the bytes that carrying the planned bases takes on the target's disk."""
    plans = [work.plan for work in state.works if work.plan is not None]
    uploads = [item.upload for plan in plans for item in plan.items if item.upload is not None]
    return sum(map(preflight.planned_bytes, plans)) + preflight.upload_bytes(source, uploads)


def _report(state: _State, needed: int, free: int) -> dict[str, Any]:
    outcomes = {**report.planned(state.works), **state.outcomes}
    document = report.document(state.run, state.library, outcomes)
    return {**document, "preflight": {"bytes_needed": needed, "bytes_free": free}}


def _check_unseen_space(source: Located, target: Path, bases: list[tuple[int, BaseDraft]]) -> None:
    """Check an archive's room before anything is extracted from it; a folder is looked into first."""
    if source.is_archive:
        names = [vector_name(source, draft) for _, draft in bases]
        preflight.check_space(target, preflight.unseen_bytes(source, names))


@contextmanager
def _opened(target: Path, state: _State) -> Iterator[tuple[Target, Ledger]]:
    """Make the target's folders where they are missing and open its ledger, which is its lock.

    Folders made here go again when the run is refused, or stopped before it has carried anything.
    """
    place = Target(target)
    made = _first_missing(place.own)
    try:
        with ExitStack() as stack:
            try:
                place.own.mkdir(parents=True, exist_ok=True)
                book = stack.enter_context(ledger.opened(target))
            except RegraftError:
                raise
            except (OSError, apsw.Error) as error:
                raise TargetNotWritable(path=target, reason=getattr(error, "strerror", None) or error) from error
            yield place, book
    except BaseException as error:
        # Never while another run holds the lock: what it has made is not ours.
        if made is not None and not state.began and not isinstance(error, TargetLocked):
            with contextlib.suppress(OSError):
                durable.remove_tree(made)
        raise


def _first_missing(path: Path) -> Path | None:
    """Return the topmost folder of ``path`` that does not exist yet."""
    missing = None
    path = path.absolute()
    while not path.exists() and path != path.parent:
        missing, path = path, path.parent
    return missing


@contextmanager
def _clean_stop(place: Target, book: Ledger, state: _State) -> Iterator[None]:
    """Leave finished bases whole and nothing half, whatever stops the run."""

    def leave(status: str) -> None:
        with contextlib.suppress(OSError, apsw.Error):
            place.throw_away()
        # Where the ledger cannot be written either, the next run settles what was begun.
        with contextlib.suppress(OSError, apsw.Error):
            place.recover(book)
        with contextlib.suppress(OSError, apsw.Error):
            book.end_run(status)

    def finished() -> int:
        """Count the bases of this run that stand in the target, by the ledger."""
        with contextlib.suppress(OSError, apsw.Error):
            entries = book.entries()
            return sum(
                one.unchanged is not None or entries.get(one.draft.id, Entry("", b"")).fingerprint == one.fingerprint
                for one in state.works
            )
        return sum(outcome.done for outcome in state.outcomes.values())

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
        for folder in (place.staging, place.replaced, place.work):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _look(
    source: Located,
    target: Path,
    bases: list[tuple[int, BaseDraft]],
    entries: dict[str, Entry],
    state: _State,
    keep: ExitStack,
    work: Path,
    progress: Progress,
) -> None:
    looker = Looker(state.journey, source, target, state.options, keep, work)
    for one in looker.works(bases, entries, progress):
        state.works.append(one)
        if one.unchanged is not None:
            state.outcomes[one.draft.legacy_id] = report.unchanged(one.unchanged)
    changed = {one.draft.id for one in state.works if one.plan is not None}
    preflight.check_conflicts(target, (draft.id for _, draft in bases), entries, changed)
    preflight.check_items(target, (one.plan for one in state.works if one.plan is not None), entries)


def _nothing_to_do(place: Target, entries: dict[str, Entry], state: _State) -> bool:
    return (
        all(work.unchanged is not None for work in state.works)
        and _in_order(state.works)
        and place.catalog_is_current(entries)
        and place.report_is_current(entries)
    )


def _carry(source: Located, place: Target, book: Ledger, state: _State, progress: Progress) -> None:
    for work in state.works:
        if work.unchanged is not None and work.unchanged.position != work.position:
            place.move_in_order(book, work.draft.id, work.position)
    place.staging.mkdir(exist_ok=True)
    jobs = jobs_for(source, state.journey.table, state.works, place.path, place.staging, state.options.now_ms)
    count = processes(jobs, state.options.jobs)
    rows = sum(job.plan.units for job in jobs)
    # Closed at once when publishing fails, so that no process goes on writing meanwhile.
    with (
        stage(progress, "Carrying", rows),
        contextlib.closing(carry_all(jobs, source.tree, count, progress)) as finished,
    ):
        for done in finished:
            state.outcomes[done.work.draft.legacy_id] = _publish(place, book, done)


def _publish(place: Target, book: Ledger, done: Done) -> Outcome:
    if done.plan.error is not None and done.work.stands is not None and done.work.stands_completed:
        # Damage of the source that only carrying found: what stands is better.
        durable.remove_tree(place.staging / done.work.draft.id)
        return report.unchanged(kept_completed(done.work.stands, done.plan))
    outcome = report.carried(done)
    base_id = done.work.draft.id
    entry = BaseEntry(
        position=done.work.position,
        record=done.carried.record,
        report=outcome.base,
        items=outcome.items,
        children=outcome.children,
        notices=list(outcome.notices),
        has_files=done.carried.has_files,
        index_mark=preflight.index_mark(place.staging / base_id),
        raw_mark=preflight.raw_mark(place.staging / base_id),
        found=done.plan.found,
    )
    packed = pack(entry, done.work.fingerprint)
    place.publish_base(book, base_id, packed, done.carried.items, has_files=done.carried.has_files)
    return outcome


def _finish(place: Target, book: Ledger, state: _State) -> dict[str, Any]:
    if not place.catalog_is_current(book.entries()):
        place.publish_catalog(book)
    state.run.end()
    document = report.document(state.run, state.library, state.outcomes)
    place.publish_report(book, render.as_json(document), render.as_page(document))
    place.clean()
    book.end_run("finished")
    return document
