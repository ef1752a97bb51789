"""A migration: read → plan → carry → verify → publish, in the frame of :mod:`.session`."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from migrators.pipeline import preflight, report, session
from migrators.pipeline.carry import item_rows
from migrators.pipeline.drafts import BaseDraft, LibraryDraft
from migrators.pipeline.options import Options
from migrators.pipeline.publish import Target
from migrators.pipeline.report import Outcome
from migrators.pipeline.session import LibraryRun, Migration
from migrators.pipeline.source import Pipeline
from migrators.pipeline.survey import BaseEntry, BaseJob, BasePlanner, chosen, fingerprint, vector_name
from migrators.pipeline.workers import Done, carry_all, jobs_for, processes
from regraft.ledger import durable
from regraft.ledger.ledger import Entry, Ledger
from regraft.locate import Located
from regraft.report.document import Run
from regraft.report.progress import Progress, stage
from regraft.room import demand_room
from regraft.text import path_text
from regraft.tree import notices_of

logger = logging.getLogger(__name__)

COMMAND = "migrate"


@dataclass(kw_only=True)
class _MigrationRun(LibraryRun[BaseJob]):
    """One migration."""

    pipeline: Pipeline
    source: Located
    options: Options
    library: LibraryDraft
    bases: list[tuple[int, BaseDraft]]
    progress: Progress

    def look(self, target: Path, entries: dict[str, Entry], keep: ExitStack, work: Path) -> None:
        """See :class:`LibraryRun`."""
        planner = BasePlanner(self.pipeline, self.source, target, self.options, keep, work)
        for one in planner.works(self.bases, entries, self.progress):
            self.works.append(one)
            if one.unchanged is not None:
                self.outcomes[one.draft.legacy_id] = report.unchanged(one.unchanged)
        changed = {one.draft.id for one in self.works if one.plan is not None}
        preflight.check_conflicts(target, self.run.command, (draft.id for _, draft in self.bases), entries, changed)
        plans = [one.plan for one in self.works if one.plan is not None]
        items = {plan.draft.id: (plan.draft.name, map(attrgetter("id"), plan.items)) for plan in plans}
        preflight.check_items(target, items, entries)

    def needed(self) -> int:
        """See :class:`LibraryRun`."""
        plans = [work.plan for work in self.works if work.plan is not None]
        uploads = [item.upload for plan in plans for item in plan.items if item.upload is not None]
        return sum(map(preflight.planned_bytes, plans)) + preflight.upload_bytes(self.source, uploads)

    def carry(self, place: Target, ledger: Ledger) -> None:
        """See :class:`LibraryRun`."""
        table, now_ms = self.pipeline.table, self.options.now_ms
        self._mark_new()
        jobs = jobs_for(self.source, table, self.works, place.path, place.staging, now_ms)
        count = processes(jobs, self.options.jobs)
        rows = sum(job.plan.units for job in jobs)
        logger.info("%s bases are carried by %s processes", len(jobs), count)
        # Closed at once when publishing fails, so that no process goes on writing meanwhile.
        with (
            stage(self.progress, "Carrying", rows),
            contextlib.closing(carry_all(jobs, self.source.tree, count, self.progress)) as finished,
        ):
            for done in finished:
                self.outcomes[done.work.draft.legacy_id] = _publish(place, ledger, self._marked(done))

    def _marked(self, done: Done) -> Done:
        """Let a base whose uploads could not all be read be carried anew once they can be."""
        unread = done.carried.unread
        if not unread:
            return done
        mark = fingerprint(self.source, done.work.draft, unread)
        return replace(done, work=replace(done.work, fingerprint=mark))

    def _mark_new(self) -> None:
        """Read the files of bases that no run has carried yet: now there is room for what becomes of them."""
        for place, work in enumerate(self.works):
            if work.plan is not None and not work.fingerprint:
                self.progress.at(work.draft.name)
                self.works[place] = replace(work, fingerprint=fingerprint(self.source, work.draft))

    def document(self, *, planned: bool = False) -> dict[str, Any]:
        """See :class:`LibraryRun`."""
        outcomes = {**report.planned(self.works), **self.outcomes} if planned else self.outcomes
        return report.document(self.run, self.library, outcomes)


def migrate(
    pipeline: Pipeline,
    source: Located,
    target: Path,
    options: Options,
    progress: Progress,
    show_plan: Callable[[dict[str, Any]], bool] = lambda _: True,
) -> Migration:
    """Migrate a source into ``target`` and return its report.

    Args:
        pipeline: how sources of this layout are read.
        source: a recognised source of that layout.
        target: the library's folder: new, empty, or written by an earlier run.
        options: what the user asks for.
        progress: told of rows and bytes.
        show_plan: called with the planned document before anything of a base is written; False stops here.

    Raises:
        RegraftError: refused (exit status 2), stopped midway (3) or interrupted (130).
    """
    preflight.check_target(target, preflight.roots(source), source.path)
    run = Run(
        command=COMMAND,
        dry_run=options.dry_run,
        source_kind=source.kind.value,
        source=source.path,
        target_kind="library",
        target=target,
    )
    migration_run = _migration_run(pipeline, source, options, progress, run)
    if options.dry_run:
        with _work_folder(source, migration_run.bases) as work:
            return session.dry_run(target, migration_run, work)
    _check_unseen_space(source, target, migration_run.bases)
    return session.write(target, migration_run, show_plan)


def _migration_run(
    pipeline: Pipeline, source: Located, options: Options, progress: Progress, run: Run
) -> _MigrationRun:
    library = read_library(pipeline, source, options)
    return _MigrationRun(
        run=run,
        origin=path_text(source.path),
        pipeline=pipeline,
        source=source,
        options=options,
        library=library,
        bases=chosen(library, options),
        progress=progress,
    )


def read_library(pipeline: Pipeline, source: Located, options: Options) -> LibraryDraft:
    """Read a source's state as drafts, with what is worth saying of how the source was found.

    Raises:
        ApplicationRunning: it is a profile in use, and the options do not allow that.
    """
    running = preflight.check_running(source.profile, options)
    library = pipeline.read(source, options)
    return replace(library, notices=(*source.notices, *running, *notices_of(source.tree), *library.notices))


@contextmanager
def _work_folder(source: Located, bases: list[tuple[int, BaseDraft]]) -> Iterator[Path]:
    """Make a folder for a look that writes nothing else, with room for what an archive's vector files take."""
    with durable.temporary_folder() as work:
        if source.is_archive:
            names = [vector_name(source, draft) for _, draft in bases]
            largest = preflight.unseen_bytes(source, names) / preflight.UNSEEN_FACTOR
            demand_room(work, int(largest))
        yield work


def plan_only(pipeline: Pipeline, source: Located, options: Options, progress: Progress) -> dict[str, Any]:
    """Return what a dry run into a new folder would report, for a look at the source alone (``regraft check``).

    There is no target, so ``preflight`` measures the disk that holds the source and nothing is refused for want of
    room. ``looked_at`` says of each base, by its v1 id, what was looked at: how many ``items`` and ``uploads`` it
    names, its ``vector_file`` (a name in the source), what ``kind`` of thing that is there ("file", "folder" or None),
    its ``bytes``, and whether its rows could be read (``is_read``).

    Raises:
        RegraftError: as for :func:`migrate`, but for what is about a target.
    """
    run = Run(command="check", dry_run=False, source_kind=source.kind.value, source=source.path)
    migration_run = _migration_run(pipeline, source, options, progress, run)
    with _work_folder(source, migration_run.bases) as work, ExitStack() as keep:
        # Nothing of an earlier run can stand in a folder that was made just now.
        migration_run.look(work / "library", {}, keep, work)
        figures = {"bytes_needed": migration_run.needed(), "bytes_free": shutil.disk_usage(source.path).free}
        looked_at = {one.draft.legacy_id: _looked_at(source, one) for one in migration_run.works}
        run.end()
    return {**migration_run.document(planned=True), "preflight": figures, "looked_at": looked_at}


def _looked_at(source: Located, work: BaseJob) -> dict[str, Any]:
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


def _check_unseen_space(source: Located, target: Path, bases: list[tuple[int, BaseDraft]]) -> None:
    """Check an archive's room before anything is extracted from it; a folder is looked into first."""
    if source.is_archive:
        names = [vector_name(source, draft) for _, draft in bases]
        preflight.check_space(target, preflight.unseen_bytes(source, names))


def _publish(place: Target, ledger: Ledger, done: Done) -> Outcome:
    kept = done.work.kept(done.plan)
    if kept is not None:
        # Damage of the source that only carrying found: what stands is better.
        durable.remove_tree(place.staging / done.work.draft.id)
        logger.info("base %s: damage of the source shows; what stands in the target is kept", done.work.draft.id)
        return report.unchanged(kept)
    outcome = report.carried(done)
    base_id = done.work.draft.id
    staged = place.staging / base_id
    entry = BaseEntry(
        position=done.work.position,
        record=done.carried.record,
        report=outcome.base,
        items=outcome.items,
        children=outcome.children,
        notices=list(outcome.notices),
        has_files=done.carried.has_files,
        index_mark=preflight.index_mark(staged),
        raw_mark=preflight.raw_mark(staged),
        found=done.plan.found,
        carry_text=done.plan.carry_text,
    )
    place.publish_base(ledger, entry, done.work.fingerprint, item_rows(done.plan, done.carried))
    return outcome
