"""The report of a migration, as ``docs/commands.md`` promises it: every base, every row, every warning, all ids."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from migrators.pipeline.drafts import LibraryDraft
from migrators.pipeline.plan import BasePlan
from migrators.pipeline.survey import BaseEntry, BaseJob
from migrators.pipeline.workers import Done
from regraft.formats.cherry_v2.index import Tallies
from regraft.locate import INDEX_FILE, KNOWLEDGE_FOLDER
from regraft.report import notices
from regraft.report.document import Run
from regraft.report.notices import Notice
from regraft.text import argument, path_text


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One base's part of the report."""

    base: dict[str, Any]
    items: dict[str, str]
    children: dict[str, str]
    notices: tuple[Notice, ...]

    @property
    def done(self) -> bool:
        """Tell whether the base stands in the target."""
        return self.base["outcome"] in ("written", "unchanged", "failed")


def planned(works: Iterable[BaseJob]) -> dict[str, Outcome]:
    """Return what a run would report of the bases that it would carry: sizes are known only once written."""
    return {
        work.draft.legacy_id: _outcome(work.plan, work.plan.notices, None, None)
        for work in works
        if work.plan is not None
    }


def carried(done: Done) -> Outcome:
    """Return the report of a base that was carried."""
    message = (*done.plan.notices, *done.carried.notices)
    return _outcome(done.plan, message, done.carried.tallies, done.carried.index_bytes)


def unchanged(entry: BaseEntry) -> Outcome:
    """Return the report of a base that an earlier run has written: it stands as it is, or fails again."""
    outcome = "failed" if entry.report["status"] == "failed" else "unchanged"
    rows = entry.report["rows"]
    if "v1_deduplicated" in rows:
        # Earlier versions had nothing of the kind, and did not say so.
        rows = {"without_vector": 0, "restored_duplicate": 0, **rows}
    return Outcome(
        base={**entry.report, "outcome": outcome, "rows": rows},
        items=entry.items,
        children=entry.children,
        notices=tuple(entry.notices),
    )


def _outcome(
    plan: BasePlan, found_notices: tuple[Notice, ...], tallies: Tallies | None, index_bytes: int | None
) -> Outcome:
    draft = plan.draft
    base: dict[str, Any] = {
        "legacy_id": draft.legacy_id,
        "id": draft.id,
        "name": draft.name,
        "status": "failed" if plan.error else "completed",
        "error": plan.error,
        "dimensions": plan.dimensions,
        "outcome": "failed" if plan.error else "written",
        "items": dict(sorted(Counter(item.status for item in plan.items).items())),
        "directories": {
            "expanded": plan.directories.expanded,
            "children": plan.directories.children,
            "tombstones": plan.directories.tombstones,
        },
        "rows": {
            "read": plan.rows.read,
            "carried": plan.rows.carried,
            "without_vector": plan.rows.without_vector,
            "skipped": dict(sorted(plan.rows.skipped.items())),
            "v1_deduplicated": plan.rows.v1_deduplicated,
            "restored_duplicate": plan.rows.restored_duplicate,
        },
        "index": None
        if not plan.has_index
        else {
            "path": f"{KNOWLEDGE_FOLDER}/{draft.id}/{INDEX_FILE}",
            "materials": len(plan.materials),
            "units": plan.units,
            "embeddings": tallies.embeddings if tallies else None,
            "bytes": index_bytes,
        },
    }
    items = {item.legacy_id: item.id for item in plan.items if item.legacy_id is not None}
    return Outcome(base=base, items=items, children=plan.children, notices=found_notices)


def document(run: Run, library: LibraryDraft, outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Return the whole report, bases in v1's order."""
    drafts = [base for base in library.bases if base.legacy_id in outcomes]
    ordered = [outcomes[base.legacy_id] for base in drafts]
    skipped = Counter(base.reason for base in library.skipped)
    for base in drafts:
        skipped.update(item.reason for item in base.skipped_items)
    return {**books(run, ordered, skipped, library.notices), "ids": _ids(ordered), "totals": totals(ordered)}


def _ids(outcomes: list[Outcome]) -> dict[str, Any]:
    """Return what bases, items and files of folders are called in v2, by their v1 ids."""
    items: dict[str, str] = {}
    for outcome in outcomes:
        items.update(outcome.items)
    return {
        "bases": {str(outcome.base["legacy_id"]): outcome.base["id"] for outcome in outcomes},
        "items": items,
        "children": {str(outcome.base["id"]): outcome.children for outcome in outcomes if outcome.children},
    }


def books(run: Run, ordered: list[Outcome], skipped: Counter[str], found_notices: Iterable[Notice]) -> dict[str, Any]:
    """Return what a report of any command begins with: every base, what has none, and all that is said."""
    target = (run.target or Path()).absolute()
    every = [*found_notices, *(notice for outcome in ordered for notice in outcome.notices)]
    known = {outcome.base.get("legacy_id"): outcome.base for outcome in ordered}
    return {
        **run.document(),
        "bases": [_placed(outcome.base, target) for outcome in ordered],
        "skipped": dict(sorted(skipped.items())),
        "warnings": [_warning(notice, _remedy(notice, known.get(notice.base), target)) for notice in _once(every)],
    }


def _placed(base: dict[str, Any], target: Path) -> dict[str, Any]:
    """Return a base's report with the path of its index as it is now: a library can be moved."""
    index = base["index"]
    return {**base, "index": index and {**index, "path": path_text(target / index["path"])}}


def _once(found_notices: list[Notice]) -> Iterator[Notice]:
    """Yield every notice once; those that say the same of the same are counted together."""
    counts: dict[Notice, int] = {}
    for notice in found_notices:
        key = replace(notice, count=0)
        counts[key] = counts.get(key, 0) + notice.count
    for notice, count in counts.items():
        yield replace(notice, count=count)


def _remedy(notice: Notice, base: dict[str, Any] | None, target: Path) -> str:
    """Return which command gives texts the vectors that they came without, to be put at the end of a message."""
    if notice.code != notices.WITHOUT_VECTOR or base is None:
        return ""
    verb = "restore" if base["status"] == "failed" else "backfill"
    command = shlex.join(["regraft", verb, argument(target), "--base", base["id"]])
    if verb == "restore":
        return f"; {command} --embedder NAME makes a new base of them"
    return f"; {command} completes them"


def _warning(notice: Notice, remedy: str) -> dict[str, object]:
    return {
        "code": notice.code,
        "base": notice.base,
        "item": notice.item,
        "message": f"{notice.message}{remedy}",
        "count": notice.count,
        "samples": list(notice.samples),
        "model": notice.model,
    }


#: The numbers of rows and of an index that add up.
_OF_ROWS = ("read", "carried", "without_vector", "v1_deduplicated", "restored_duplicate")
_OF_INDEX = ("materials", "units", "embeddings", "bytes")


def totals(outcomes: list[Outcome]) -> dict[str, Any]:
    """Return the sums over all bases; what a plan cannot know is None."""
    bases = Counter(str(outcome.base["outcome"]) for outcome in outcomes)
    items: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    #: What a plan cannot know.
    unknown: set[str] = set()
    for base in (outcome.base for outcome in outcomes):
        items.update(base["items"])
        skipped.update(base["rows"]["skipped"])
        for key in _OF_ROWS:
            numbers[key] += base["rows"].get(key, 0)
        if base["index"] is None:
            continue
        for key in _OF_INDEX:
            if base["index"][key] is None:
                unknown.add(key)
            else:
                numbers[key] += base["index"][key]
    known = {key: None if key in unknown else numbers[key] for key in _OF_INDEX}
    return {
        "bases": {"all": len(outcomes), **dict(sorted(bases.items()))},
        "items": {"all": sum(items.values()), **dict(sorted(items.items()))},
        "rows": {
            "read": numbers["read"],
            "carried": numbers["carried"],
            "without_vector": numbers["without_vector"],
            "skipped": dict(sorted(skipped.items())),
            "v1_deduplicated": numbers["v1_deduplicated"],
            "restored_duplicate": numbers["restored_duplicate"],
        },
        **known,
    }


def exit_status(document: dict[str, Any], fail_on: str) -> int:
    """Return 0 where there is nothing to complain about, else 1 (``fail_on``: error, warning, note or never)."""
    if fail_on == "never":
        return 0
    line = cast(notices.Severity, fail_on)
    warnings = document["warnings"]
    is_reached = any(notices.at_least(notices.EVERY_CODE[one["code"]].severity, line) for one in warnings)
    failed = any(base["status"] == "failed" for base in document["bases"])
    return 1 if is_reached or failed else 0
