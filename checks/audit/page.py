"""Render the result of ``check`` as one HTML page with charts and tables that is safe to share.

The page contains the names of findings and reasons, and numbers. It contains no text, vector, message, sample or path,
and no name of a base, item, file, folder or model.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from checks.audit.findings import FINDINGS
from regraft.formats.cherry_v2.layout import is_uuid
from regraft.kinds import KIND_NAMES, Kind
from regraft.language import format_count, join_list, tr
from regraft.report import migration, notices
from regraft.report.html import BarPart, format_percent, render_page
from regraft.report.labels import format_severity_count, label_of, severity_heading
from regraft.text import format_bytes

Document = dict[str, Any]
#: Values of the HTML template, by name.
Values = dict[str, object]

#: Number of bars of 0.1 in a histogram of norms. Most vectors have the norm 1; the last bar holds norms from 10 on.
_USUAL_STEPS = 20
_ALL_STEPS = 101

_LEVELS = {
    "quick": tr("structure, counts and coverage (--quick)"),
    "default": tr("structure, counts, coverage, texts, ids and vectors"),
    "deep": tr("everything, with SQLite's own check and all snapshots (--deep)"),
    "part": tr("structure; of a part of the rows, texts, ids and vectors (--part)"),
}
_NOT_LOOKED_AT = tr("not looked at")


def render_check_page(document: Document, only: Sequence[str] = ()) -> str:
    """Return the JSON output of ``check`` (``docs/commands.md``, "check") as one HTML page that needs no network.

    Args:
        document: the JSON output, decoded.
        only: the only names of findings that the document contains (``--only``); empty: all.
    """
    kind = KIND_NAMES[Kind(document["source"]["kind"])]
    return render_page("check.html", "check", title=tr("Audit of {kind}", kind=kind), **_Page(document, only).values())


class BaseLabel(NamedTuple):
    """Anonymous name of a base: its position, and the first characters of an id that is a random UUID."""

    place: int
    start: str

    def __str__(self) -> str:
        return tr("base {place} {start}", place=self.place, start=self.start).rstrip()


class _Page:
    """Computes the values of the page's template from the JSON output of ``check``."""

    def __init__(self, document: Document, only: Sequence[str]) -> None:
        self._document = document
        self._only = only
        self._bases: list[Document] = document["statistics"].get("bases", [])
        self._findings: list[Document] = document["findings"]
        #: Whether the document describes a planned migration, which has no numbers of indexes.
        self._is_planned = "level" not in document
        self._severities: dict[notices.Severity, int] = document["summary"]["by_severity"]

    def values(self) -> Values:
        """Return the values that the page's template uses, by name."""
        checked = dict(self._document["checked"])
        size = format_bytes(checked.pop("bytes"))
        numbers = {label_of(name.replace("_", " ")): f"{count:,}" for name, count in checked.items()}
        findings = self._group_findings()
        has_indexes = bool(self._bases) and not self._is_planned
        return {
            "lead": self._verdict(),
            "run": self._document["run"],
            "facts": list(self._facts()),
            "numbers": {**numbers, label_of("size"): size},
            "severities": [
                BarPart(severity, severity_heading(severity), number) for severity, number in self._severities.items()
            ],
            "findings": findings,
            "most": max((finding["cases"] for finding in findings), default=0),
            "nothing_found": tr("{only} was found.", only=tr("Nothing of that name") if self._only else tr("Nothing")),
            "coverage": self._coverage() if has_indexes else None,
            "rows": self._migrated_rows() if self._bases else None,
            "norms": self._norms() if has_indexes else None,
            # Stores of other systems have no statistics of bases.
            "table": self._table() if "bases" in self._document["statistics"] else None,
        }

    def _verdict(self) -> str:
        """Return one sentence with the number of findings of each severity."""
        message = join_list(
            format_severity_count(number, severity) for severity, number in self._severities.items() if number
        )
        return f"{message or tr('Nothing found')}."

    def _facts(self) -> Iterator[str]:
        """Yield the facts below the title: when the check ran, its level, and its limits."""
        run = self._document["run"]
        begin, end = (datetime.fromisoformat(run[key]) for key in ("started_at", "finished_at"))
        yield f"{begin:%Y-%m-%d %H:%M:%S} UTC, {(end - begin).total_seconds():.1f} s"
        if self._is_planned:
            yield tr("what a migration would find; nothing was migrated")
        else:
            yield tr("checked: {levels}", levels=_LEVELS[self._document["level"]])
        if self._is_incomplete:
            yield tr(
                "time limit reached: {checks} {not_looked_at}",
                checks=format_count(len(self._document["not_checked"]), "check"),
                not_looked_at=_NOT_LOOKED_AT,
            )
        if self._only:
            yield tr("only findings of the name {only}", only=join_list(self._only))

    @property
    def _is_incomplete(self) -> bool:
        """Whether the time limit ended the check early."""
        return bool(self._document.get("not_checked"))

    @property
    def _why_not_counted(self) -> str:
        """Return why a number is missing: the time limit was reached, or no index could be read."""
        return _NOT_LOOKED_AT if self._is_incomplete else tr("not counted")

    def _labeled_bases(self) -> Iterator[tuple[BaseLabel, Document]]:
        """Yield each base of the document, with the label that replaces its name on the page."""
        for place, base in enumerate(self._bases, 1):
            start = base["id"][:8].lower() if is_uuid(base["id"]) else ""
            yield BaseLabel(place, start), base

    def _group_findings(self) -> list[Document]:
        """Group the findings by name, the most severe first and then the most frequent."""
        groups: dict[tuple[notices.Severity, str], list[Document]] = defaultdict(list)
        for finding in self._findings:
            groups[finding["severity"], finding["name"]].append(finding)
        shown: list[Document] = []
        for (severity, name), group in groups.items():
            cases = sum(int(finding["count"]) for finding in group)
            bases = len({finding["base"] for finding in group if finding["base"] is not None})
            in_bases = tr("{cases:,} in {bases}", cases=cases, bases=format_count(bases, "base"))
            shown.append(
                {
                    "severity": severity,
                    "name": name,
                    "cases": cases,
                    "where": in_bases if bases else f"{cases:,}",
                    "meaning": FINDINGS[name].meaning,
                    "remedy": FINDINGS[name].remedy,
                }
            )
        gravest = list(self._severities)
        return sorted(shown, key=lambda one: (gravest.index(one["severity"]), -one["cases"]))

    def _table(self) -> Values:
        """Return columns and rows of the table of bases; the last row has the findings that are about no base."""
        named: dict[str | None, Counter[str]] = defaultdict(Counter)
        for finding in self._findings:
            named[finding["base"]][finding["name"]] += finding["count"]
        columns = _PLANNED if self._is_planned else _COUNTED
        rows: list[Values] = []
        for label, base in self._labeled_bases():
            values = [read(base) for read in columns.values()]
            rows.append({"label": label, "cells": values, "findings": named.pop(base["id"], Counter())})
        rest = sum(named.values(), Counter())
        if rows and rest:
            rows.append({"label": None, "cells": [() for _ in columns], "findings": rest})
        return {
            "columns": [("wide", label_of("base")), *(("n", name) for name in columns), ("wide", label_of("findings"))],
            "rows": rows,
        }

    def _coverage(self) -> list[Values]:
        """Return the values of the bars that show how many bodies of each base have a vector."""
        bars: list[Values] = []
        for label, base in self._labeled_bases():
            bodies, covered = base["bodies"], base["covered"]
            if bodies and covered is not None:
                about = tr("{label}, {bodies:,} bodies. ", label=label, bodies=bodies)
                share = _format_share(covered, bodies)
                bars.append({"label": label, "share": share, "about": about, "bodies": bodies, "covered": covered})
            else:
                reason = tr("no bodies") if bodies == 0 else self._why_not_counted
                bars.append({"label": label, "share": "", "reason": reason})
        return bars

    def _migrated_rows(self) -> Values:
        """Return the values of the section on rows of v1 data: how many were migrated or skipped, for each base."""
        if self._is_planned:
            verb, why = tr("would go"), tr("no vector file can be read")
        else:
            verb, why = tr("went"), tr("there is no report of a migration here")
        title = tr("Where the rows {is_planned}", is_planned=verb)
        if not any(base["rows"] for base in self._bases):
            return {"title": title, "unknown": tr("Not known: {why}.", why=why)}
        bases, left = [], Counter[str]()
        for label, base in self._labeled_bases():
            parts = _row_bar(base["rows"])
            message = (
                tr("{read:,} read", read=base["rows"]["read"])
                if parts
                else tr("none counted")
                if base["rows"]
                else tr("not known")
            )
            bases.append({"label": label, "parts": parts, "about": f"{label}. ", "message": message})
            left.update({part.name: part.number for part in parts if part.number and part.name in notices.EVERY_CODE})
        return {"title": title, "unknown": "", "bases": bases, "reasons": migration.count_codes(left)}

    def _norms(self) -> Values:
        """Return the values of the section with histograms of the vectors' norms, or why norms are not known."""
        if any(base["norms"] for base in self._bases):
            return {"unknown": "", "bases": [self._histogram(label, base) for label, base in self._labeled_bases()]}
        if any(base["norms"] is not None for base in self._bases):
            reason = tr("Every vector has the norm 0")
        else:
            level = tr(": --quick reads no vector") if self._document["level"] == "quick" else ""
            reason = tr("Not checked{level}", level=level)
        return {"unknown": f"{reason}."}

    def _histogram(self, label: BaseLabel, base: Document) -> Values:
        """Build the chart of the norms of a base's vectors, in steps of 0.1, or a message if no norms are known."""
        counts = {round(10 * float(norm)): count for norm, count in (base["norms"] or {}).items()}
        if not counts:
            message = self._why_not_counted if base["norms"] is None else tr("no vector with a nonzero norm")
            return {"label": label, "columns": [], "message": message}
        numbers = join_list(f"{_format_norm(step)}: {count:,}" for step, count in counts.items())
        steps, ends = (_USUAL_STEPS, "012") if max(counts) < _USUAL_STEPS else (_ALL_STEPS, ("0", "5", "10+"))
        columns = list(histogram_columns(counts, steps))
        shown = {"label": label, "columns": columns, "ends": ends, "steps": numbers}
        return {**shown, "about": f"{label}. {numbers}", "message": _describe_norms(counts)}


def _row_bar(rows: Document | None) -> list[BarPart]:
    """Return the parts of the bar for a base's rows of v1 data, migrated and skipped; empty if no rows were counted."""
    parts = migration.row_bar_parts(rows) if rows else []
    return parts if any(part.number for part in parts) else []


def histogram_columns(counts: dict[int, int], steps: int) -> Iterator[dict[str, str]]:
    """Yield position and size of each bar of a histogram. Bars with very small counts get a visible height.

    Args:
        counts: the count of each bar, by its number from the left.
        steps: the number of bars for which the chart has room.
    """
    highest = max(counts.values(), default=1)
    width = format_percent(1, steps)
    for step, count in counts.items():
        height = max(100 * count / highest, 3)
        x, y = format_percent(step, steps), f"{100 - height:.3f}%"
        yield {"x": x, "y": y, "width": width, "height": f"{height:.3f}%"}


def _count_cell(number: int | None) -> tuple[str, ...]:
    """Format a number as the only line of a table cell; None, an unknown number, is a dash."""
    return ("-",) if number is None else (f"{number:,}",)


def _dimensions_cell(base: Document) -> tuple[str, ...]:
    """Format the dimensions of a base's vectors as the lines of a table cell, with counts if there are several."""
    lengths: dict[str, int] = base["lengths"]
    if len(lengths) == 1:
        return tuple(lengths)
    return tuple(f"{dimensions}: {count:,}" for dimensions, count in lengths.items()) or ("-",)


def _row_count_cell(name: str) -> Callable[[Document], tuple[str, ...]]:
    """Return a function that formats the row count ``name`` of a base in the document as a table cell."""
    return lambda base: _count_cell(base["rows"][name] if base["rows"] else None)


#: Columns of the table of bases, for an index and for a planned migration.
_COUNTED: dict[str, Callable[[Document], tuple[str, ...]]] = {
    label_of("units"): lambda base: _count_cell(base["units"]),
    label_of("bodies"): lambda base: _count_cell(base["bodies"]),
    tr("with a vector"): lambda base: _count_cell(base["covered"]),
    label_of("vectors"): lambda base: _count_cell(base["embeddings"]),
    label_of("dimensions"): _dimensions_cell,
}
_PLANNED: dict[str, Callable[[Document], tuple[str, ...]]] = {
    label_of("rows"): _row_count_cell("read"),
    tr("would be migrated"): _row_count_cell("carried"),
    tr("not migrated"): lambda base: _count_cell(sum(base["rows"]["skipped"].values()) if base["rows"] else None),
    tr("duplicates, never stored by v1"): _row_count_cell("v1_deduplicated"),
}


def _format_share(part: int, whole: int) -> str:
    """Format ``part`` as percentage of ``whole``, rounded down, so that 100 % means all."""
    return "100\u00a0%" if part == whole else f"{math.floor(1000 * part / whole) / 10:.1f}\u00a0%"


def _format_norm(bar: int) -> str:
    """Format the lowest norm of the histogram's bar with this number."""
    return tr("10 and more") if bar == _ALL_STEPS - 1 else f"{bar / 10:.1f}"


def _describe_norms(counts: dict[int, int]) -> str:
    """Describe a histogram of norms in words: number of vectors, range, and the most frequent norm.

    ``counts`` is the number of vectors in each bar, by the bar's number.
    """
    total, most = sum(counts.values()), max(counts, key=counts.__getitem__)
    if len(counts) == 1:
        return tr("{vectors}, all at {step}", vectors=format_count(total, "vector"), step=_format_norm(most))
    ends = tr("{step} to {step2}", step=_format_norm(min(counts)), step2=_format_norm(max(counts)))
    return tr(
        "{vectors}, {ends}, most at {step} ({counts:,})",
        vectors=format_count(total, "vector"),
        ends=ends,
        step=_format_norm(most),
        counts=counts[most],
    )
