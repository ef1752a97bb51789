"""Imports Parquet files of units into a library, in the frame of every run that writes one."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import apsw
import msgspec

from migrators.parquet import files
from migrators.parquet.catalog_rows import items_of, items_of_materials, record_of
from migrators.parquet.files import UnitsFile
from migrators.parquet.plan import Plan
from migrators.parquet.rebuild import Rebuilt, verify
from migrators.parquet.report import carried_outcome, planned_outcome, skipped_of
from migrators.pipeline import preflight, report, session
from migrators.pipeline.carry import CARRY_SHARE, REPORT_ROWS, indexing
from migrators.pipeline.options import Options
from migrators.pipeline.publish import Target
from migrators.pipeline.session import LibraryRun, Migration
from migrators.pipeline.survey import BaseEntry, kept_completed, read_entry, still_there
from regraft import sqlite
from regraft.errors import SourceUnreadable
from regraft.formats.cherry_v2 import catalog
from regraft.formats.cherry_v2.item_data import data_damage
from regraft.formats.parquet.columns import AboutBase
from regraft.ledger import durable
from regraft.ledger.ledger import Entry, Ledger
from regraft.locate import INDEX_FILE
from regraft.report.document import Run
from regraft.report.progress import Progress, stage
from regraft.text import shown

COMMAND = "import"
#: Changes when the same file makes another library: an earlier run's bases are then imported anew.
WRITER = 1


@dataclass(frozen=True)
class ImportWork:
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
    show_plan: Callable[[dict[str, Any]], bool] = lambda _: True,
) -> Migration:
    """Import files that ``regraft export`` wrote, of different bases, into ``target`` and return the report.

    Args:
        paths: the files.
        target: the library's folder: new, empty, or written by an earlier run.
        options: what the user asks for: time, bases, a dry run.
        progress: told of rows and bytes.
        show_plan: called with the planned document before anything of a base is written; False stops here.

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
    origin = ", ".join(map(shown, paths))
    importing = _Importing(run=run, origin=origin, bases=bases, options=options, progress=progress)
    if not options.dry_run:
        return session.write(target, importing, show_plan)
    with durable.temporary_folder() as work:
        return session.dry_run(target, importing, work)


@dataclass(kw_only=True)
class _Importing(LibraryRun[ImportWork]):
    """One run of an import."""

    bases: list[tuple[int, UnitsFile, AboutBase]]
    options: Options
    progress: Progress

    def look(self, target: Path, entries: dict[str, Entry], keep: ExitStack, work: Path) -> None:  # noqa: ARG002
        """See :class:`LibraryRun`."""
        marks = self._fingerprints(entries)
        stands = {base.id: _unchanged(target, base.id, entries, marks[base.id]) for _, _, base in self.bases}
        self._survey([file for _, file, base in self.bases if stands[base.id] is None])
        for position, file, base in self.bases:
            one = ImportWork(position, base.id, marks[base.id], unchanged=stands[base.id])
            if one.unchanged is None:
                one = _not_poorer(target, entries, replace(one, plan=self._plan(file, base)))
            self.works.append(one)
            if one.unchanged is not None:
                self.outcomes[base.id] = report.unchanged(one.unchanged)
        self._check(target, entries)

    def _check(self, target: Path, entries: dict[str, Entry]) -> None:
        """Refuse bases and items that the target has from elsewhere, and rows that no catalog takes."""
        plans = self._plans()
        changed = {plan.about.id for plan in plans}
        preflight.check_conflicts(target, COMMAND, (base.id for _, _, base in self.bases), entries, changed)
        items = {plan.about.id: (plan.about.name, [item.id for item in plan.expected_items()]) for plan in plans}
        preflight.check_items(target, items, entries)
        _prove(plans)

    def _fingerprints(self, entries: dict[str, Entry]) -> dict[str, str]:
        """Return a hash of all that a base is made from (its file counts by size and CRC-32), "" for a new base."""
        # Of a base that no run has written yet there is nothing to compare with: its file is read for that once there
        # is room for what becomes of it.
        found = {}
        marks: dict[Path, list[int]] = {}
        for _, file, base in self.bases:
            if base.id in entries and file.path not in marks:
                marks[file.path] = file.content_mark()
            found[base.id] = fingerprint(base.id, marks[file.path]) if base.id in entries else ""
        return found

    def _mark_new(self) -> None:
        """Read the files of bases that no run has written yet: now there is room for what becomes of them."""
        marks: dict[Path, list[int]] = {}
        for place, work in enumerate(self.works):
            if work.plan is not None and not work.fingerprint:
                file = work.plan.file
                if file.path not in marks:
                    self.progress.at(file.path.name)
                    marks[file.path] = file.content_mark()
                self.works[place] = replace(work, fingerprint=fingerprint(work.base_id, marks[file.path]))

    def _survey(self, wanted: list[UnitsFile]) -> None:
        unread = {file.path: file for file in wanted}.values()
        with stage(self.progress, "Reading", sum(file.looked_at[0] for file in unread)):
            for file in unread:
                size = file.looked_at[0]
                self.progress.at(file.path.name)
                file.survey(lambda share, size=size: self.progress.step(share * size, int(share * size)))  # type: ignore[misc]

    def _plan(self, file: UnitsFile, base: AboutBase) -> Plan:
        skipped: Counter[str] = Counter()
        return Plan(
            about=base,
            file=file,
            held=file.of_base(base),
            record=record_of(file.path, file.about, base, self.options.now_ms),
            items=None if base.items is None else tuple(items_of(base, skipped)),
            skipped_items=skipped,
            strays=file.strays() if base is file.about.bases[0] else 0,
        )

    def _plans(self) -> list[Plan]:
        return [work.plan for work in self.works if work.plan is not None]

    def needed(self) -> int:
        """See :class:`LibraryRun`."""
        return sum(plan.bytes for plan in self._plans())

    def carry(self, place: Target, ledger: Ledger) -> None:
        """See :class:`LibraryRun`."""
        with stage(self.progress, "Carrying", sum(plan.held.rows for plan in self._plans())), _still_readable():
            self._mark_new()
            for work in self.works:
                if work.plan is not None:
                    self.progress.at(work.plan.about.name)
                    self._carry(place, ledger, work, work.plan)

    def _carry(self, place: Target, ledger: Ledger, work: ImportWork, plan: Plan) -> None:
        base, staged = plan.about, place.staging / work.base_id
        built, size = None, 0
        if base.index:
            built = self._build(staged / INDEX_FILE, plan)
            size = (staged / INDEX_FILE).stat().st_size
            durable.sync_tree(staged)
        found = items_of_materials(base.id, staged / INDEX_FILE, plan.record.now_ms) if built else ()
        items = tuple(found) if plan.items is None else plan.items
        outcome = carried_outcome(plan, items, built, size)
        entry = BaseEntry(
            position=work.position,
            record=plan.record,
            report=outcome.base,
            items={item.id: item.id for item in items},
            children={},
            notices=list(outcome.notices),
            has_files=base.index,
            index_mark=preflight.index_mark(staged),
            raw_mark="",
            command=COMMAND,
        )
        place.publish_base(ledger, entry, work.fingerprint, items)
        self.outcomes[work.base_id] = outcome

    def _build(self, path: Path, plan: Plan) -> Rebuilt:
        durable.make_folders(path.parent, flush=False)
        base_id, rows = plan.about.id, plan.held.rows
        with sqlite.writing(path, create=True) as db:
            built = Rebuilt(base_id, plan.record.now_ms, db)
            size = (plan.held.vector_bytes + plan.held.text_bytes) // max(rows, 1)
            for row in plan.file.rows(plan.about):
                built.add(row)
                if built.read % REPORT_ROWS == 0:
                    self.progress.step(REPORT_ROWS * CARRY_SHARE, REPORT_ROWS * size)
            indexing(rows, self.progress.step)(db)
            built.finish(plan.about.bare_materials)
        verify(path, base_id, built)
        return built

    def document(self, *, planned: bool = False) -> dict[str, Any]:
        """See :class:`LibraryRun`."""
        expected = {plan.about.id: planned_outcome(plan) for plan in self._plans()} if planned else {}
        outcomes = {**expected, **self.outcomes}
        ordered = [outcomes[work.base_id] for work in self.works if work.base_id in outcomes]
        return {**report.books(self.run, ordered, skipped_of(ordered), ()), "totals": report.totals(ordered)}


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
    return known if still_there(target, base_id, known) else None


def _not_poorer(target: Path, entries: dict[str, Entry], work: ImportWork) -> ImportWork:
    """Keep a completed base that stands in the target where the file would only give a failed one."""
    if work.plan is None or work.plan.record.base.error is None or work.base_id not in entries:
        return work
    stands = read_entry(entries[work.base_id])
    if stands.record.base.error is not None or not still_there(target, work.base_id, stands):
        return work
    kept = kept_completed(stands, work.plan.record.base.error, work.base_id)
    return ImportWork(work.position, work.base_id, work.fingerprint, unchanged=kept)


def _problem(plan: Plan) -> str | None:
    """Return what is damaged of what a file says of a base; None where nothing is."""
    if plan.record.base.id != plan.about.id:
        return f"its base {shown(plan.about.id)} has the settings of another"
    if not plan.about.index and plan.record.base.status == "completed":
        return f"its base {shown(plan.about.id)} is completed, and has no index"
    for row in plan.about.items or ():
        problem = None if row.get("deleted_at") is not None else data_damage(row)
        # Without its item a text would be an orphan.
        if problem is not None and row.get("id") in plan.materials:
            return f"its item {shown(row.get('id'))} has texts, and {problem}"
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
        names = ", ".join(shown(name) for name in dict.fromkeys(plan.file.path for plan in plans))
        raise SourceUnreadable(path=names, reason=f"its bases and items cannot stand in a catalog: {error}") from error
