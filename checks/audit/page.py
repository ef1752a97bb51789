"""The page of an audit: what its document counts, as charts and tables that can be given to anybody.

It names findings, reasons and numbers. What a user wrote or named is not in it: no text, no vector, no base, item,
file, folder or model by its name, no message, no sample, no path.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from checks.audit.findings import FINDINGS
from regraft.formats.cherry_v2.layout import is_uuid
from regraft.kinds import NAMES, Kind
from regraft.report import html as report_html
from regraft.report import notices, render
from regraft.report.progress import human_bytes
from regraft.text import counted

Document = dict[str, Any]

#: Steps of 0.1 that a chart of norms has: most vectors have the norm 1; those of 10 and more stand in the last one.
_USUAL_STEPS = 20
_ALL_STEPS = 101

_LEVELS = {
    "quick": "structure, counts and coverage (--quick)",
    "default": "structure, counts, coverage, texts, ids and vectors",
    "deep": "everything, with SQLite's own check and all snapshots (--deep)",
}
_NOT_LOOKED_AT = "not looked at"
_NO_CHART = '<span class="none"></span>'
_FOOT = "No text, vector, message, path or name of a base, item, file or model is in this page."


def as_page(document: Document, only: Sequence[str] = ()) -> str:
    """Return the document of an audit (``docs/commands.md``, "check") as one offline HTML page.

    Args:
        document: what ``--json`` prints.
        only: the names to which its findings were narrowed; empty: all.
    """
    page = _Page(document, only)
    kind = NAMES[Kind(document["source"]["kind"])]
    lead = page.verdict()
    return report_html.document("check", f"Audit of {kind}", lead, page.parts(), page.foot())


class _Page:
    """The parts of a page, each as HTML."""

    def __init__(self, document: Document, only: Sequence[str]) -> None:
        self._document = document
        self._only = only
        self._bases: list[Document] = document["statistics"].get("bases", [])
        self._findings: list[Document] = document["findings"]
        #: Of what a migration can carry nobody has looked into an index.
        self._is_planned = "level" not in document

    def parts(self) -> Iterator[str]:
        """Yield the parts in their order."""
        checked = dict(self._document["checked"])
        size = human_bytes(checked.pop("bytes"))
        numbers = {name.replace("_", " "): f"{count:,}" for name, count in checked.items()}
        yield f'<p class="soft">{" · ".join(map(report_html.text, self._facts()))}</p>'
        yield report_html.tiles({**numbers, "size": size})
        yield report_html.section("Findings", *self._found())
        if self._bases and not self._is_planned:
            yield report_html.section("Coverage", *self._coverage())
        if self._bases:
            yield report_html.section(f"Where the rows {'would go' if self._is_planned else 'went'}", *self._rows())
        if self._bases and not self._is_planned:
            yield report_html.section("Norms of the vectors", *self._norms())
        # A store of another system has no numbers of bases.
        if "bases" in self._document["statistics"]:
            yield report_html.section("Bases", self._numbers())

    def verdict(self) -> str:
        """Return the sum of it in one sentence."""
        numbers = self._document["summary"]["by_severity"]
        message = ", ".join(counted(number, severity) for severity, number in numbers.items() if number)
        return f"{message or 'Nothing found'}."

    def foot(self) -> str:
        """Return what stands at the end."""
        run = self._document["run"]
        return f"{_FOOT}<br>Run {report_html.text(run['id'])},"

    def _facts(self) -> Iterator[str]:
        run = self._document["run"]
        begin, end = (datetime.fromisoformat(run[key]) for key in ("started_at", "finished_at"))
        yield f"{begin:%Y-%m-%d %H:%M:%S} UTC, {(end - begin).total_seconds():.1f} s"
        if self._is_planned:
            yield "what a migration would meet; nothing was carried"
        else:
            yield f"looked at: {_LEVELS[self._document['level']]}"
        if self._is_cut:
            yield f"time was over: {counted(len(self._document['not_checked']), 'check')} {_NOT_LOOKED_AT}"
        if self._only:
            yield f"only findings of the name {', '.join(self._only)}"

    @property
    def _is_cut(self) -> bool:
        return bool(self._document.get("not_checked"))

    @property
    def _not_counted(self) -> str:
        """Return why a number is missing: time was over, or there is no index that could be read."""
        return _NOT_LOOKED_AT if self._is_cut else "not counted"

    # --- bases -----------------------------------------------------------------------------------------------------

    def _labelled(self) -> Iterator[tuple[str, Document]]:
        """Yield every base with what it is called: its place, and the start of an id that the application made."""
        for place, base in enumerate(self._bases, 1):
            start = f" {base['id'][:8].lower()}" if is_uuid(base["id"]) else ""
            yield f"base {place}{start}", base

    # --- findings --------------------------------------------------------------------------------------------------

    def _found(self) -> Iterator[str]:
        if not self._findings:
            yield f"<p>{'Nothing of that name' if self._only else 'Nothing'} was found.</p>"
            return
        numbers = self._document["summary"]["by_severity"]
        parts = [(severity, f"{severity}s", number) for severity, number in numbers.items()]
        yield report_html.bar(parts, about="Findings by severity. ")
        yield report_html.legend(parts)
        groups: dict[tuple[notices.Severity, str], list[Document]] = defaultdict(list)
        for finding in self._findings:
            groups[finding["severity"], finding["name"]].append(finding)
        most = max(_cases(group) for group in groups.values())
        gravest = list(numbers)
        for (severity, name), group in sorted(
            groups.items(), key=lambda one: (gravest.index(one[0][0]), -_cases(one[1]))
        ):
            yield _finding(severity, name, group, most)

    def _numbers(self) -> str:
        """Return the table of all bases; what was found of none of them comes last."""
        if not self._bases:
            return "<p>There are no bases.</p>"
        named: dict[str | None, Counter[str]] = defaultdict(Counter)
        for finding in self._findings:
            named[finding["base"]][finding["name"]] += finding["count"]
        columns = _PLANNED if self._is_planned else _COUNTED
        lines = []
        for label, base in self._labelled():
            cells = [read(base) for read in columns.values()]
            lines.append([_label(label), *cells, _listed(named.pop(base["id"], Counter()))])
        rest = sum(named.values(), Counter())
        if rest:
            lines.append(["all, or none of these", *("" for _ in columns), _listed(rest)])
        return report_html.table(("base*", *columns, "findings*"), lines)

    # --- charts ----------------------------------------------------------------------------------------------------

    def _coverage(self) -> Iterator[str]:
        yield '<p class="soft">The share of bodies, which are what is searched, that have their vector.</p>'
        lines = []
        for label, base in self._labelled():
            bodies, covered = base["bodies"], base["covered"]
            if bodies and covered is not None:
                chart = report_html.bar(
                    [("covered", "with a vector", covered)], bodies, about=f"{label}, {bodies:,} bodies. "
                )
                message = f"<small>{covered:,} of {bodies:,}</small>{_share(covered, bodies)}"
            else:
                chart, message = _NO_CHART, "no bodies" if bodies == 0 else self._not_counted
            lines.append(_row(label, chart, message))
        yield f'<div class="rows">{"".join(lines)}</div>'

    def _rows(self) -> Iterator[str]:
        if not any(base["rows"] for base in self._bases):
            why = "no vector file can be read" if self._is_planned else "there is no report of a migration here"
            yield f"<p>Not known: {why}.</p>"
            return
        yield (
            '<p class="soft">Rows read = rows carried + rows left for a reason. What v1 itself had left out '
            "(<code>v1_deduplicated</code>), and what is given to files that equal another one "
            "(<code>restored_duplicate</code>), comes on top.</p>"
        )
        lines, reasons = [], Counter[str]()
        for label, base in self._labelled():
            line, left = _row_of_rows(label, base["rows"])
            lines.append(line)
            reasons.update(left)
        yield f'<div class="rows">{"".join(lines)}</div>'
        if reasons:
            yield report_html.reasons(reasons)

    def _norms(self) -> Iterator[str]:
        if not any(base["norms"] for base in self._bases):
            yield f"<p>{self._why_no_norm()}.</p>"
            return
        yield '<p class="soft">How long vectors are, in steps of 0.1. Most models make vectors of norm 1.</p>'
        charts, lines = [], []
        for label, base in self._labelled():
            counts = {round(10 * float(norm)): count for norm, count in (base["norms"] or {}).items()}
            if counts:
                numbers = ", ".join(f"{_step(step)}: {count:,}" for step, count in counts.items())
                lines.append((_label(label), numbers))
                charts.append(_histogram(label, counts, numbers))
            else:
                message = self._not_counted if base["norms"] is None else "no vector with a norm"
                charts.append(f"<figure>{_label(label)}<figcaption>{message}</figcaption></figure>")
        yield f'<div class="many">{"".join(charts)}</div>'
        numbers = report_html.table(("base*", "vectors by norm*"), lines)
        yield f"<details><summary>The same in numbers</summary>{numbers}</details>"

    def _why_no_norm(self) -> str:
        if any(base["norms"] is not None for base in self._bases):
            return "There is no vector with a norm"
        return f"Not looked at{': --quick reads no vector' if self._document['level'] == 'quick' else ''}"


# --- pieces --------------------------------------------------------------------------------------------------------


def _row_of_rows(label: str, rows: Document | None) -> tuple[str, dict[str, int]]:
    """Return the line of a base's rows, and how many of them were left, by the reason."""
    parts = render.parts_of(rows) if rows else []
    if rows is None or not any(count for _, _, count in parts):
        return _row(label, _NO_CHART, "none counted" if rows else "not known"), {}
    left = {name: count for _, name, count in parts if count and name in notices.EVERY_CODE}
    chart, legend = report_html.bar(parts, about=f"{label}. "), report_html.legend(parts)
    return _row(label, chart, f"{rows['read']:,} read", legend), left


def _cases(group: Sequence[Document]) -> int:
    return sum(int(finding["count"]) for finding in group)


def _finding(severity: notices.Severity, name: str, group: Sequence[Document], most: int) -> str:
    definition, cases = FINDINGS[name], _cases(group)
    bases = len({finding["base"] for finding in group if finding["base"] is not None})
    where = f"{cases:,} in {counted(bases, 'base')}" if bases else f"{cases:,}"
    chart = report_html.bar([(severity, name, cases)], most)
    return (
        f'<article class="finding"><div class="row">'
        f"<h3>{report_html.badge(severity)}<code>{report_html.text(name)}</code></h3>"
        f'{chart}<span class="number">{where}</span></div><p>{report_html.prose(definition.meaning)}</p>'
        f'<p class="soft">What mends it: {report_html.prose(definition.remedy)}</p></article>'
    )


def _label(label: str) -> str:
    """Return what a base is called as HTML."""
    word, place, *start = label.split(" ")
    return f'<span class="label">{word} {place}{f" <code>{start[0]}</code>" if start else ""}</span>'


def _row(label: str, chart: str, message: str, below: str = "") -> str:
    name = _label(label)
    return f'<div class="row">{name}{chart}<span class="number">{message}</span>{below}</div>'


def _histogram(label: str, counts: dict[int, int], numbers: str) -> str:
    steps, ends = (_USUAL_STEPS, "012") if max(counts) < _USUAL_STEPS else (_ALL_STEPS, ("0", "5", "10+"))
    chart = report_html.columns(counts, steps, f"{label}. {numbers}")
    axis = "".join(f"<span>{end}</span>" for end in ends)
    message = f'<div class="axis" aria-hidden="true">{axis}</div><figcaption>{_spread(counts)}</figcaption>'
    return f"<figure>{_label(label)}{chart}{message}</figure>"


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _dimensions(base: Document) -> str:
    lengths: dict[str, int] = base["lengths"]
    if len(lengths) == 1:
        return next(iter(lengths))
    return "<br>".join(f"{dimensions}: {count:,}" for dimensions, count in lengths.items()) or "-"


def _row_count(name: str) -> Callable[[Document], str]:
    return lambda base: f"{base['rows'][name]:,}" if base["rows"] else "-"


def _not_carried(base: Document) -> str:
    return f"{sum(base['rows']['skipped'].values()):,}" if base["rows"] else "-"


#: What the table of bases says, as HTML, of an index, and of a base that is only planned.
_COUNTED: dict[str, Callable[[Document], str]] = {
    "units#": lambda base: _count(base["units"]),
    "bodies#": lambda base: _count(base["bodies"]),
    "with a vector#": lambda base: _count(base["covered"]),
    "vectors#": lambda base: _count(base["embeddings"]),
    "dimensions#": _dimensions,
}
_PLANNED: dict[str, Callable[[Document], str]] = {
    "rows#": _row_count("read"),
    "would be carried#": _row_count("carried"),
    "not carried#": _not_carried,
    "left out by v1#": _row_count("v1_deduplicated"),
}


def _listed(names: Counter[str]) -> str:
    return ", ".join(f"<code>{report_html.text(name)}</code>&nbsp;{count:,}" for name, count in names.items())


def _share(part: int, whole: int) -> str:
    """Return a share in percent; it is 100 only where nothing is missing."""
    return "100\u00a0%" if part == whole else f"{math.floor(1000 * part / whole) / 10:.1f}\u00a0%"


def _step(step: int) -> str:
    return "10 and more" if step == _ALL_STEPS - 1 else f"{step / 10:.1f}"


def _spread(counts: dict[int, int]) -> str:
    total, most = sum(counts.values()), max(counts, key=counts.__getitem__)
    if len(counts) == 1:
        return f"{counted(total, 'vector')}, all at {_step(most)}"
    ends = f"{_step(min(counts))} to {_step(max(counts))}"
    return f"{counted(total, 'vector')}, {ends}, most at {_step(most)} ({counts[most]:,})"
