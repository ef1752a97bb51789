"""What is said of an imported base: its part of the report, as a migration would give it, and the notices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from migrators.parquet.catalog_rows import MODEL_UNKNOWN
from migrators.parquet.plan import Plan
from migrators.parquet.rebuild import Rebuilt
from migrators.pipeline.report import Outcome, index_path
from regraft.formats.cherry_v2.catalog import ItemRow
from regraft.language import tr
from regraft.report import notices
from regraft.report.migration import BaseReport, IndexReport, RowsReport
from regraft.report.notices import Notice
from regraft.text import counted, shown


def planned_outcome(plan: Plan) -> Outcome:
    """Return what a run would report of a base, were every row fit: what is not shows when it is carried."""
    held = plan.held
    rows = RowsReport(read=held.rows, carried=held.rows, skipped={})
    index = None
    if plan.about.index:
        path = index_path(plan.about.id)
        index = IndexReport(path=path, materials=len(plan.materials), units=held.rows, embeddings=None, bytes=None)
    return _outcome(plan, plan.expected_items(), rows, index)


def carried_outcome(plan: Plan, items: Iterable[ItemRow], built: Rebuilt | None, size: int) -> Outcome:
    """Return the report of a base that was imported; ``size`` is its index's, in bytes."""
    if built is None:
        return _outcome(plan, items, RowsReport(read=0, carried=0, skipped={}), None)
    rows = RowsReport(read=built.read, carried=built.carried, skipped=dict(sorted(built.skipped.items())))
    index = IndexReport(
        path=index_path(plan.about.id),
        materials=built.materials,
        units=built.carried,
        embeddings=built.vectors,
        bytes=size,
    )
    return _outcome(plan, items, rows, index, differing=built.differing, remade=built.remade)


def _outcome(
    plan: Plan,
    items: Iterable[ItemRow],
    rows: RowsReport,
    index: IndexReport | None,
    *,
    differing: int = 0,
    remade: int = 0,
) -> Outcome:
    base = plan.record.base
    statuses = Counter(item.status for item in items)
    told = BaseReport(
        id=base.id,
        name=base.name,
        status="failed" if base.status == "failed" else "completed",
        error=base.error,
        dimensions=base.dimensions,
        outcome="failed" if base.status == "failed" else "written",
        items=dict(sorted(statuses.items())),
        skipped_items=dict(sorted(plan.skipped_items.items())),
        rows=rows,
        vectors=plan.held.vectors,
        differing_vectors=differing,
        remade=remade,
        index=index,
    )
    return Outcome(base=told, items={}, children={}, notices=tuple(_notices(plan, told)))


def _notices(plan: Plan, told: BaseReport) -> Iterator[Notice]:
    base = plan.record.base

    def notice(code: str, message: str, count: int = 1) -> Notice:
        return Notice(code=code, message=message, base=base.id, count=count)

    if base.error == MODEL_UNKNOWN and plan.about.settings is None:
        yield notice(notices.MODEL_NOT_NAMED, tr("the file does not say of which model its vectors are"))
    for reason, count in told.rows.skipped.items():
        yield notice(reason, tr("{rows} not carried", rows=counted(count, "row")), count)
    for reason, count in plan.skipped_items.items():
        yield notice(reason, tr("{items} not carried", items=counted(count, "item")), count)
    if told.remade:
        yield notice(
            notices.REMADE,
            tr("{materials} made anew from its units", materials=counted(told.remade, "material")),
            told.remade,
        )
    if told.differing_vectors:
        count = told.differing_vectors
        said = tr("{texts} came again with another vector; the first one is kept", texts=counted(count, "text"))
        yield notice(notices.DIFFERING_VECTOR, said, count)
    if plan.strays:
        said = tr("{rows} of {name} not carried", rows=counted(plan.strays, "row"), name=shown(plan.file.path.name))
        yield Notice(code=notices.NO_BASE, message=said, count=plan.strays)


def skipped_of(outcomes: list[Outcome]) -> Counter[str]:
    """Return how many items, and rows of no base, are not imported, by reason."""
    skipped: Counter[str] = Counter()
    for outcome in outcomes:
        skipped.update(outcome.base.skipped_items or {})
        skipped.update({one.code: one.count for one in outcome.notices if one.code == notices.NO_BASE})
    return skipped
