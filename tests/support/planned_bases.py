"""A small base of v1's as a run plans it, and the entry that a ledger has of it once it is migrated."""

from __future__ import annotations

from typing import Any

from harness import NOW_MS
from v1 import LLM, base, note

from migrators.cherry_v1.draft import draft_library
from migrators.pipeline import report
from migrators.pipeline.base_writer import base_record
from migrators.pipeline.plan import BasePlan, plan_base
from migrators.pipeline.publication import BaseEntry, pack_entry
from regraft.formats.cherry_v1.state import V1State
from regraft.formats.cherry_v2.models import ModelOverrides
from regraft.formats.vector_survey import LoaderRows, RowTally, VectorSurvey
from regraft.ledger.ledger import LedgerEntry
from regraft.report.progress import SilentProgress


def planned(legacy_id: str = "kb", *items: Any, name: str = "My base") -> BasePlan:
    rows = LoaderRows(rows=2, highest_number=1, kinds={16: RowTally(count=2, first_rowid=1, body_bytes=1000)})
    rows.runs.extend((1, 2))
    found = VectorSurvey(rows=2, body_bytes=1000, lengths={16: 2}, loaders={"L": rows})
    raw = base(legacy_id, *(items or (note("n", "L"),)), name=name)
    state = V1State((raw,), LLM["providers"], {}, {}, frozenset(), ())
    [draft] = draft_library(state, ModelOverrides()).bases
    return plan_base(draft, found)


def entry_of(plan: BasePlan, **more: Any) -> BaseEntry:
    """Return the entry of a base in the ledger, as publishing it makes it."""
    outcome = report.planned_outcome(plan)
    return BaseEntry(
        position=0,
        record=base_record(plan, NOW_MS),
        report=outcome.base,
        items=outcome.items,
        children=outcome.children,
        notices=[],
        has_files=False,
        index_mark=None,
        **{"raw_mark": "", **more},
    )


def packed(plan: BasePlan, **more: Any) -> dict[str, LedgerEntry]:
    return {plan.draft.id: pack_entry(entry_of(plan, **more), "mark")}


class Shown(SilentProgress):
    """Progress that records what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def at(self, label: str) -> None:
        self.told.append(label)

    def step(self, rows: float, size: int) -> None:
        self.told.append((rows, size))
