"""The report of a migration (``docs/commands.md``): every base, every row, every warning, and all new ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import UNSET, structs

from migrators.pipeline.plan import BasePlan
from migrators.pipeline.publication import BaseEntry
from migrators.pipeline.source import LibraryDraft
from migrators.pipeline.workers import FinishedBase
from regraft import language
from regraft.formats.cherry_v2.index import Tallies
from regraft.formats.vector_survey import SalvageTally
from regraft.identity import replace
from regraft.language import tr
from regraft.report import notices
from regraft.report.document import Run
from regraft.report.migration import (
    BaseReport,
    DirectoriesReport,
    IndexReport,
    MigrationReport,
    NewIds,
    RowsReport,
    SalvageReport,
    Totals,
    WarningReport,
)
from regraft.report.notices import Notice
from regraft.stores.locate import INDEX_FILE, KNOWLEDGE_FOLDER
from regraft.text import join_command, path_argument, path_text


class BaseOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to one base, for the report: its part of the report, new ids, and notices."""

    base: BaseReport
    items: dict[str, str]
    children: dict[str, str]
    notices: tuple[Notice, ...]


def planned_outcome(plan: BasePlan) -> BaseOutcome:
    """Describe a planned base for the report. Sizes are known only once it is written."""
    return _make_outcome(plan, plan.notices, None, None)


def migrated_outcome(done: FinishedBase) -> BaseOutcome:
    """Describe a base that was written for the report."""
    all_notices = (*done.plan.notices, *done.written.notices)
    return _make_outcome(done.plan, all_notices, done.written.tallies, done.written.index_bytes)


def rewritten_outcome(outcome: BaseOutcome) -> BaseOutcome:
    """Mark the outcome of a base as rewritten because its index in the target was damaged.

    A failed base stays failed.
    """
    if outcome.base.error is not None:
        return outcome
    return replace(outcome, base=structs.replace(outcome.base, outcome="rewritten"))


def unchanged_outcome(entry: BaseEntry) -> BaseOutcome:
    """Describe a base that an earlier run wrote and that is unchanged, or that failed then and is still failed."""
    rows = entry.report.rows
    if rows.v1_deduplicated is not UNSET:
        # Earlier versions had no such rows and left out these counts.
        rows = structs.replace(
            rows, without_vector=rows.without_vector or 0, restored_duplicate=rows.restored_duplicate or 0
        )
    outcome = "failed" if entry.report.status == "failed" else "unchanged"
    return BaseOutcome(
        base=structs.replace(entry.report, outcome=outcome, rows=rows),
        items=entry.items,
        children=entry.children,
        notices=tuple(structs.replace(one, message=language.translate_kept_text(one.message)) for one in entry.notices),
    )


def _make_outcome(
    plan: BasePlan, found_notices: tuple[Notice, ...], tallies: Tallies | None, index_bytes: int | None
) -> BaseOutcome:
    """Describe a planned or written base for the report.

    ``tallies`` and ``index_bytes`` are the counts and the size of its index, None if it is not written.
    """
    draft = plan.draft
    statuses = Counter(item.status for item in plan.items)
    base = BaseReport(
        legacy_id=draft.legacy_id,
        id=draft.id,
        name=draft.name,
        status="failed" if plan.error else "completed",
        error=plan.error,
        dimensions=plan.dimensions,
        outcome="failed" if plan.error else "written",
        items=dict(sorted(statuses.items())),
        directories=DirectoriesReport(
            expanded=plan.directories.expanded,
            children=plan.directories.children,
            tombstones=plan.directories.tombstones,
        ),
        rows=RowsReport(
            read=plan.rows.read,
            carried=plan.rows.carried,
            without_vector=plan.rows.without_vector,
            skipped=dict(sorted(plan.rows.skipped.items())),
            v1_deduplicated=plan.rows.v1_deduplicated,
            restored_duplicate=plan.rows.restored_duplicate,
        ),
        salvage=UNSET if plan.salvage is None else _salvage(plan, plan.salvage),
        index=_index(plan, tallies, index_bytes) if plan.has_index else None,
    )
    items = {item.legacy_id: item.id for item in plan.items if item.legacy_id is not None}
    return BaseOutcome(base=base, items=items, children=plan.children, notices=found_notices)


def _salvage(plan: BasePlan, tally: SalvageTally) -> SalvageReport:
    """Convert the counts of a salvaged base to the report's fields."""
    return SalvageReport(
        carried=tally.is_carried,
        rows=tally.rows,
        about=tally.about,
        refused=tally.refused,
        weaker=tally.weaker,
        deleted=tally.deleted,
        pages=tally.pages,
        pages_read=tally.pages_read,
        page_bytes=tally.page_bytes,
        items={"damaged": plan.damaged_items, "whole": plan.whole_items} if tally.is_carried else {},
    )


def _index(plan: BasePlan, tallies: Tallies | None, index_bytes: int | None) -> IndexReport:
    """Describe the new index of a base for the report. A planned index has no counts and no size yet (None)."""
    return IndexReport(
        path=index_path(plan.draft.id),
        materials=len(plan.materials),
        units=plan.units,
        embeddings=tallies.embeddings if tallies else None,
        bytes=index_bytes,
    )


def index_path(base_id: str) -> str:
    """Return the path of a base's index, relative to the library."""
    return f"{KNOWLEDGE_FOLDER}/{base_id}/{INDEX_FILE}"


def build_migration_report(run: Run, library: LibraryDraft, outcomes: Iterable[BaseOutcome]) -> MigrationReport:
    """Build the report of a migration, with the bases in the source's order."""
    by_id = {outcome.base.source_id: outcome for outcome in outcomes}
    drafts = [base for base in library.bases if base.legacy_id in by_id]
    ordered = [by_id[base.legacy_id] for base in drafts]
    skipped = Counter(base.reason for base in library.skipped)
    for base in drafts:
        skipped.update(item.reason for item in base.skipped_items)
    report = build_report(run, ordered, skipped, library.notices)
    return structs.replace(report, ids=_map_new_ids(ordered))


def _map_new_ids(outcomes: list[BaseOutcome]) -> NewIds:
    """Map v1 ids of bases and items to the new ids, and list the ids of files in folders by base."""
    items: dict[str, str] = {}
    for outcome in outcomes:
        items.update(outcome.items)
    return NewIds(
        bases={outcome.base.source_id: outcome.base.id for outcome in outcomes},
        items=items,
        children={outcome.base.id: outcome.children for outcome in outcomes if outcome.children},
    )


def build_report(
    run: Run, ordered: list[BaseOutcome], skipped: Counter[str], found_notices: Iterable[Notice]
) -> MigrationReport:
    """Build the report of any command that writes bases, with warnings and totals.

    ``ordered`` are the bases in the order of the report, ``skipped`` counts skipped items by reason, and
    ``found_notices`` concern the whole source.
    """
    target = (run.target or Path()).absolute()
    # Equal notices are merged, and their counts added up.
    counts: dict[Notice, int] = {}
    for notice in (*found_notices, *(notice for outcome in ordered for notice in outcome.notices)):
        key = replace(notice, count=0)
        counts[key] = counts.get(key, 0) + notice.count
    merged = [replace(notice, count=count) for notice, count in counts.items()]
    known = {outcome.base.source_id: outcome.base for outcome in ordered}
    return MigrationReport(
        head=run.head(),
        bases=[_with_absolute_path(outcome.base, target) for outcome in ordered],
        skipped=dict(sorted(skipped.items())),
        warnings=[_make_warning(notice, known.get(notice.base or ""), target) for notice in merged],
        totals=sum_totals(ordered),
    )


def _with_absolute_path(base: BaseReport, target: Path) -> BaseReport:
    """Make the path of a base's index absolute. The ledger has it relative, because a library can be moved."""
    if base.index is None:
        return base
    return structs.replace(base, index=structs.replace(base.index, path=path_text(target / base.index.path)))


def _make_warning(notice: Notice, base: BaseReport | None, target: Path) -> WarningReport:
    """Convert a notice to a warning; for texts without vectors, name the command that adds them.

    ``base`` is the report of the base that the notice is about, or None.
    """
    message = notice.message
    if notice.code == notices.WITHOUT_VECTOR and base is not None:
        # Name the command that adds the vectors of texts migrated without them.
        verb = "restore" if base.status == "failed" else "backfill"
        command = join_command(["regraft", verb, path_argument(target), "--base", base.id])
        if verb == "restore":
            message += tr("; {command} --embedder NAME creates a new base from them", command=command)
        else:
            message += tr("; {command} adds the missing vectors", command=command)
    return WarningReport(
        code=notice.code,
        base=notice.base,
        item=notice.item,
        message=message,
        count=notice.count,
        samples=notice.samples,
        model=notice.model,
    )


#: Numbers of rows and of an index that are added up.
_OF_ROWS = ("read", "carried", "without_vector", "v1_deduplicated", "restored_duplicate")
_OF_INDEX = ("materials", "units", "embeddings", "bytes")


def sum_totals(outcomes: list[BaseOutcome]) -> Totals:
    """Add up the numbers of all bases. If a plan cannot know the number of some base, the sum of it is missing."""
    bases: Counter[str] = Counter()
    items: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    rows = dict.fromkeys(_OF_ROWS, 0)
    index: dict[str, int | None] = dict.fromkeys(_OF_INDEX, 0)
    for base in (outcome.base for outcome in outcomes):
        bases[base.outcome] += 1
        items.update(base.items)
        skipped.update(base.rows.skipped)
        for key in _OF_ROWS:
            rows[key] += getattr(base.rows, key) or 0
        for key in _OF_INDEX if base.index is not None else ():
            known, more = index[key], getattr(base.index, key)
            index[key] = None if known is None or more is None else known + more
    return Totals(
        bases={"all": len(outcomes), **dict(sorted(bases.items()))},
        items={"all": items.total(), **dict(sorted(items.items()))},
        rows=RowsReport(skipped=dict(sorted(skipped.items())), **rows),
        **index,
    )
