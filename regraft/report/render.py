"""Renders a run's document: JSON for programs, text for a terminal, one offline page for a browser.

All three show the same document, so they cannot disagree.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args

from regraft.columns import columns, padded, padded_left
from regraft.labels import label_of, severity_label
from regraft.language import joined, tr
from regraft.report import html as report_html
from regraft.report import notices
from regraft.report.html import Part
from regraft.report.progress import human_bytes
from regraft.text import LONGEST_NAME, counted, in_json, lenient_text, one_line, shown, shown_lines

#: The template of a migration's page.
PAGE = "migration.html"
#: Warnings of one code shown in text before the rest is counted.
SHOWN_PER_CODE = 3

Document = dict[str, Any]


def as_json(document: Document, *, ascii_only: bool = False) -> str:
    """Return the document as JSON text, readable, one line end at the end.

    What a file says may be of any type: bytes are shown as text, and a number that JSON does not have is null.
    """
    try:
        text = json.dumps(document, ensure_ascii=ascii_only, indent=2, default=_as_text, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(document), ensure_ascii=ascii_only, indent=2, default=_as_text)
    return in_json(text) + "\n"


def _as_text(value: object) -> str:
    return lenient_text(value) if isinstance(value, bytes) else str(value)


def _finite(value: Any) -> Any:
    """Return a value with null for numbers that JSON has not, as JavaScript writes them."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_line(planned: Document) -> str:
    """Return a plan in one line: what will be carried, and the room for it."""
    totals = planned["totals"]
    needed, free = (human_bytes(planned["preflight"][key]) for key in ("bytes_needed", "bytes_free"))
    bases = counted(totals["bases"]["all"], "base")
    bare = _bare(totals["rows"])
    more = tr(" and {bare:,} without a vector", bare=bare) if bare else ""
    return tr(
        "Plan: {bases}, {carried}{more}; about {needed} will be written, {free} are free.\n",
        bases=bases,
        carried=_carried(totals["rows"]),
        more=more,
        needed=needed,
        free=free,
    )


def as_text(document: Document, *, verbose: bool = False) -> str:
    """Return the document of a migration or an import as text for a person."""
    planned = document["run"]["dry_run"] or document["run"]["finished_at"] is None
    lines = [*_bases(document, planned=planned)]
    if document["bases"] or document["skipped"]:
        lines += ["", *_totals(document, planned=planned)]
    return shown_lines([*lines, *_warnings(document, verbose)])


def _base_row(base: Document) -> tuple[str, ...]:
    numbers = (sum(base["items"].values()), base["rows"]["read"], base["rows"]["carried"])
    outcome = label_of(base["outcome"])
    if base["error"]:
        outcome += f" ({base['error']})"
    dimensions = "-" if base["dimensions"] is None else str(base["dimensions"])
    return (_cut(base["name"], 36), dimensions, *(f"{number:,}" for number in numbers), outcome)


def _bases(document: Document, *, planned: bool) -> Iterator[str]:
    names = [label_of(name) for name in ("base", "dimensions", "items", "rows", "carried")]
    head = (*names, tr("will be") if planned else label_of("outcome"))
    rows = [head, *map(_base_row, document["bases"])]
    if len(rows) == 1:
        yield tr("No bases.")
        return
    widths = [max(columns(row[column]) for row in rows) for column in range(len(rows[0]))]
    for first, *middle, last in rows:
        cells = [padded(first, widths[0])]
        cells += [padded_left(cell, width) for cell, width in zip(middle, widths[1:-1], strict=True)]
        yield "  ".join([*cells, last]).rstrip()


def _totals(document: Document, *, planned: bool) -> Iterator[str]:
    totals = document["totals"]
    rows = totals["rows"]
    verb = tr("will be carried") if planned else label_of("carried")
    unread = _unread(document)
    of = tr(" of {bases}", bases=counted(len(document["bases"]) - len(unread), "base")) if unread else ""
    yield tr(
        "{carried}{of} {verb} with their vectors{of_those}, none embedded again.",
        carried=_carried(rows),
        of=of,
        verb=verb,
        of_those=_of_those(document),
    )
    if unread:
        named = joined(one_line(name, LONGEST_NAME) for name in unread[:SHOWN_PER_CODE])
        more = tr(" and {unread:,} more", unread=len(unread) - SHOWN_PER_CODE) if len(unread) > SHOWN_PER_CODE else ""
        yield tr(
            "Not carried, and nobody knows how many: all rows of {named}{more}. The vector file cannot be read.",
            named=named,
            more=more,
        )
    yield from _reasons(document)
    if "preflight" in document:
        needed, free = (human_bytes(document["preflight"][key]) for key in ("bytes_needed", "bytes_free"))
        yield tr("About {needed} will be written, {free} are free.", needed=needed, free=free)
    elif totals["bytes"]:
        counts = (counted(totals["materials"], "material"), counted(totals["embeddings"], "vector"))
        yield tr("{counts}, {bytes} of indexes.", counts=joined(counts), bytes=human_bytes(totals["bytes"]))


def _reasons(document: Document) -> Iterator[str]:
    rows = document["totals"]["rows"]
    for reason, count in rows["skipped"].items():
        yield tr(
            "  not carried: {count:,} {reason} - {meaning}",
            count=count,
            reason=reason,
            meaning=notices.EVERY_CODE[reason].meaning,
        )
    if rows["v1_deduplicated"]:
        left_out = counted(rows["v1_deduplicated"], "chunk")
        yield tr("  v1 itself had left out {left_out} of a text it had already: nothing is lost.", left_out=left_out)
    if rows["restored_duplicate"]:
        yield f"  {_restored(rows)}"
    for reason, count in document["skipped"].items():
        yield tr(
            "  skipped: {count:,} {reason} - {meaning}",
            count=count,
            reason=reason,
            meaning=notices.EVERY_CODE[reason].meaning,
        )


def _restored(rows: Document) -> str:
    given = counted(rows["restored_duplicate"], "chunk")
    return tr("{given} more for files of which v1 had kept nothing, since another one has the same bytes.", given=given)


def _of_those(document: Document) -> str:
    """Return how many vectors the rows have, where not every row must have one, or how many more have none."""
    bare = _bare(document["totals"]["rows"])
    if bare:
        return tr(", {bare:,} more without one", bare=bare)
    counts = [base["vectors"] for base in document["bases"] if "vectors" in base]
    return f" ({sum(counts):,})" if counts else ""


def _unread(document: Document) -> list[str]:
    """Return the names of bases whose rows nobody could count; those of a Parquet file are always counted."""
    if _is_import(document):
        return []
    failed = (base for base in document["bases"] if base["status"] == "failed" and not base["rows"]["read"])
    return [base["name"] for base in failed]


def _is_import(document: Document) -> bool:
    return bool(document["regraft"]["command"] == "import")


def _carried(rows: Document) -> str:
    return tr("{carried:,} of {rows}", carried=rows["carried"] - _bare(rows), rows=counted(rows["read"], "row"))


def _bare(rows: Document) -> int:
    """Return how many rows were carried without a vector; a report of an earlier version does not say."""
    return min(int(rows.get("without_vector", 0)), int(rows["carried"]))


def _warnings(document: Document, verbose: bool) -> Iterator[str]:
    names = {base.get("legacy_id", base["id"]): base["name"] for base in document["bases"]}
    more: dict[str, int] = {}
    lines = []
    for warning in document["warnings"]:
        code = warning["code"]
        severity = notices.EVERY_CODE[code].severity
        if not verbose and severity == "note":
            continue
        more[code] = more.get(code, 0) + 1
        if verbose or more[code] <= SHOWN_PER_CODE:
            where = names.get(warning["base"], warning["base"])
            about = tr("{heading}: ", heading=one_line(where, LONGEST_NAME)) if where else ""
            what = tr("{what}: {why}", what=severity_label(severity), why=f"{about}{warning['message']}")
            lines.append(f"{what} [{code}]")
    if not verbose:
        lines += left_out(more, SHOWN_PER_CODE)
    if lines:
        yield ""
        yield from lines


def left_out(seen: Mapping[str, int], shown: int) -> Iterator[str]:
    """Say how many entries of each name are not among those that are shown."""
    for name, count in seen.items():
        if count > shown:
            yield tr("… and {count:,} more of {name} (-v shows all)", count=count - shown, name=name)


def _cut(text: str, width: int) -> str:
    text = one_line(text, 4 * width)
    while columns(text) > width:
        text = text[:-2] + "…"
    return text


# --- page ----------------------------------------------------------------------------------------------------------


def as_page(document: Document) -> str:
    """Return a run's document as one offline HTML page: statistics and reasons, never texts or vectors.

    Messages may quote the user's texts, so they stay in ``report.json``: of them only their codes are counted.
    """
    totals, rows = document["totals"], document["totals"]["rows"]
    unread = _unread(document)
    return report_html.rendered(
        PAGE,
        document["regraft"]["command"],
        title=tr("Report of an import") if _is_import(document) else tr("Report of a migration"),
        lead=tr(
            "{carried} carried with their vectors{of_those}, none embedded again.",
            carried=_carried(rows),
            of_those=_of_those(document),
        ),
        run=document["run"],
        numbers={
            label_of("bases"): f"{totals['bases']['all']:,}",
            label_of("items"): f"{totals['items']['all']:,}",
            label_of("rows"): f"{rows['read']:,}",
            label_of("carried"): f"{rows['carried']:,}",
            label_of("indexes"): human_bytes(totals["bytes"] or 0),
        },
        parts=parts_of(rows),
        restored=_restored(rows) if rows["restored_duplicate"] else "",
        bases=[_page_base(base) for base in document["bases"]],
        left=counted_codes({**rows["skipped"], **document["skipped"]}),
        unread=counted(len(unread), "base") if unread else "",
        codes=_gravest_first(counted_codes(Counter(warning["code"] for warning in document["warnings"]))),
        steps=list(_steps(document)),
    )


def _gravest_first(codes: list[CountedCode]) -> list[CountedCode]:
    gravest = get_args(notices.Severity)
    return sorted(codes, key=lambda code: gravest.index(code.severity))


class Step(NamedTuple):
    """A command to go on with, and what it does; a path, which says who somebody is, stands as a word."""

    does: str
    command: str


def _steps(document: Document) -> Iterator[Step]:
    """Yield what to do after a run."""
    for code in dict.fromkeys(base["error"] for base in document["bases"] if base["error"]):
        yield Step(tr("See why bases failed, and what helps"), f"regraft explain {code}")
    if document["run"]["dry_run"]:
        yield Step(tr("Carry it out"), f"regraft {document['regraft']['command']} SOURCE --to LIBRARY")
        return
    yield Step(tr("Audit what was written"), "regraft check LIBRARY")
    yield Step(tr("Use it in the application"), "regraft install LIBRARY --profile PROFILE")


def _page_base(base: Document) -> dict[str, object]:
    outcome = label_of(base["outcome"])
    if base["error"]:
        outcome = tr("{what}: {why}", what=outcome, why=base["error"])
    numbers = (
        f"{base['dimensions'] or '-'}",
        f"{sum(base['items'].values()):,}",
        f"{base['rows']['read']:,}",
        f"{base['rows']['carried']:,}",
        human_bytes((base["index"] or {}).get("bytes") or 0),
    )
    return {
        "name": shown(base["name"], LONGEST_NAME),
        "outcome": outcome,
        "is_failed": bool(base["error"]),
        "numbers": numbers,
    }


class CountedCode(NamedTuple):
    """A code with how often it was said, and what the registry says of it."""

    name: str
    number: int
    severity: notices.Severity
    meaning: str


def counted_codes(counts: Mapping[str, int]) -> list[CountedCode]:
    """Return codes as a page shows them."""
    codes = ((notices.EVERY_CODE[name], count) for name, count in counts.items())
    return [CountedCode(code.name, count, code.severity, code.meaning) for code, count in codes]


def parts_of(rows: Document) -> list[Part]:
    """Return where v1's rows went as parts of a bar: carried first, then every reason why not.

    What was given to duplicates, and what v1 had left out, come on top of the rows that were read. A reason that
    nobody has registered is counted, and not named: a file on disk may say anything.
    """
    reasons: dict[str, int] = {}
    for reason, count in rows["skipped"].items():
        name = reason if reason in notices.EVERY_CODE else tr("another reason")
        reasons[name] = reasons.get(name, 0) + count
    shades = ("skipped", "other")
    skipped = (Part(shades[place % 2], name, count) for place, (name, count) in enumerate(reasons.items()))
    return [
        Part("carried", label_of("carried"), rows["carried"] - _bare(rows)),
        Part("bare", notices.WITHOUT_VECTOR, _bare(rows)),
        Part("restored", "restored_duplicate", rows["restored_duplicate"]),
        Part("left", "v1_deduplicated", rows["v1_deduplicated"]),
        *skipped,
    ]
