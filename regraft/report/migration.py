"""The parts of the report of a migration or an import, as ``docs/commands.md`` promises them.

A base's part is kept in the ledger too (``docs/formats/library.md``). Fields that only one of the two commands has, or
that earlier versions did not have, may be ``UNSET``.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType

from regraft.language import format_count, join_list, tr
from regraft.ledger.values import Count
from regraft.report import html as report_html
from regraft.report import notices
from regraft.report.document import Report
from regraft.report.html import BarPart
from regraft.report.labels import label_of, severity_label
from regraft.text import (
    LONGEST_NAME,
    escape_json,
    format_bytes,
    lenient_text,
    one_line,
    pad_left,
    pad_right,
    printable,
    printable_lines,
    text_width,
)


class RowsReport(Struct, frozen=True, kw_only=True):
    """Where the rows of a base went; ``skipped`` counts by reason."""

    read: Count
    carried: Count
    without_vector: Count | UnsetType = UNSET
    skipped: dict[str, Count]
    v1_deduplicated: Count | UnsetType = UNSET
    restored_duplicate: Count | UnsetType = UNSET


class IndexReport(Struct, frozen=True, kw_only=True):
    """The index of a base; None is what is known only once it is written. In the ledger ``path`` is relative."""

    path: str
    materials: Count
    units: Count
    embeddings: Count | None
    bytes: Count | None


class DirectoriesReport(Struct, frozen=True, kw_only=True):
    """What became of the folders of a base."""

    expanded: Count
    children: Count
    tombstones: Count


class SalvageReport(Struct, frozen=True, kw_only=True):
    """What is left of a damaged vector file: rows that prove themselves, of about how many, and why others do not.

    ``carried`` tells whether they were wanted. ``weaker`` counts rows that the tree of their table does not reach, by
    how they were found; ``deleted`` those that were left of what had been deleted. ``items`` counts items with all of
    their rows and such that lost some.
    """

    carried: bool
    rows: Count
    about: Count
    refused: dict[str, Count]
    weaker: dict[str, Count]
    deleted: Count
    pages: Count
    pages_read: Count
    page_bytes: Count
    items: dict[str, Count]


class BaseReport(Struct, frozen=True, kw_only=True):
    """What became of a base; ``items`` counts them by status, ``outcome`` is what the run did."""

    legacy_id: str | UnsetType = UNSET
    id: str
    name: str
    status: Literal["completed", "failed"]
    error: str | None
    dimensions: Count | None
    outcome: str
    items: dict[str, Count]
    skipped_items: dict[str, Count] | UnsetType = UNSET
    directories: DirectoriesReport | UnsetType = UNSET
    rows: RowsReport
    vectors: Count | UnsetType = UNSET
    differing_vectors: Count | UnsetType = UNSET
    remade: Count | UnsetType = UNSET
    salvage: SalvageReport | UnsetType = UNSET
    index: IndexReport | None

    @property
    def source_id(self) -> str:
        """Return the id that the source has for it."""
        return self.legacy_id or self.id

    @property
    def is_done(self) -> bool:
        """Tell whether it stands in the target."""
        return self.outcome in ("written", "rewritten", "unchanged", "failed")

    def lacks(self, command: Literal["migrate", "import"]) -> bool:
        """Tell whether something is missing that the command which wrote it always says."""
        if command == "migrate":
            return UNSET in (self.legacy_id, self.directories)
        return UNSET in (self.skipped_items, self.vectors, self.differing_vectors, self.remade)


class WarningReport(Struct, frozen=True, kw_only=True):
    """One thing that a run says; ``base`` and ``item`` are ids of the source."""

    code: str
    base: str | None
    item: str | None
    message: str
    count: int
    samples: tuple[str, ...]
    model: str | None


class NewIds(Struct, frozen=True, kw_only=True):
    """What bases, items and files of folders are called in v2, by their v1 ids; ``children`` by their base."""

    bases: dict[str, str]
    items: dict[str, str]
    children: dict[str, dict[str, str]]


class Totals(Struct, frozen=True, kw_only=True):
    """The sums over all bases; None is what a plan cannot know."""

    bases: dict[str, int]
    items: dict[str, int]
    rows: RowsReport
    materials: int | None
    units: int | None
    embeddings: int | None
    bytes: int | None


class Preflight(Struct, frozen=True, kw_only=True):
    """The room that a run takes, and that there is, in bytes."""

    bytes_needed: int
    bytes_free: int


class MigrationReport(Report, kw_only=True):
    """What a migration or an import tells; ``ids`` only of a migration, ``preflight`` only of a plan."""

    bases: list[BaseReport]
    skipped: dict[str, int]
    warnings: list[WarningReport]
    ids: NewIds | UnsetType = UNSET
    totals: Totals
    preflight: Preflight | UnsetType = UNSET


class BaseSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at of a base: how many items and uploads it names, and its vector file.

    ``vector_file`` is its name in the source, ``kind`` what is there (None: nothing), ``bytes`` its size, and
    ``is_read`` tells whether its rows could be read, and
    ``salvageable`` how many rows of a damaged one prove themselves.
    """

    items: int
    uploads: int
    vector_file: str
    kind: Literal["file", "folder"] | None
    bytes: int
    is_read: bool
    salvageable: int = 0


class SourcePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a migration into a new folder would report, and what was looked at of each base, by its v1 id.

    The report's room is that on the disk of the source, and nothing is refused for want of it.
    """

    report: MigrationReport
    room: Preflight
    looked_at: dict[str, BaseSurvey]


# Renders a run's document: JSON for programs, text for a terminal, one offline page for a browser.
#
# All three show the same document, so they cannot disagree.


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
        text = json.dumps(document, ensure_ascii=ascii_only, indent=2, default=_encode_unknown, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(document), ensure_ascii=ascii_only, indent=2, default=_encode_unknown)
    return escape_json(text) + "\n"


def _encode_unknown(value: object) -> str:
    return lenient_text(value) if isinstance(value, bytes) else str(value)


def _finite(value: Any) -> Any:
    """Return a value with null for numbers that JSON has not, as JavaScript writes them."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plan_line(planned: Document) -> str:
    """Return a plan in one line: what will be carried, and the room for it."""
    totals = planned["totals"]
    needed, free = (format_bytes(planned["preflight"][key]) for key in ("bytes_needed", "bytes_free"))
    bases = format_count(totals["bases"]["all"], "base")
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


def format_migration(document: Document, *, verbose: bool = False) -> str:
    """Return the document of a migration or an import as text for a person."""
    planned = document["run"]["dry_run"] or document["run"]["finished_at"] is None
    lines = [*_bases(document, planned=planned)]
    if document["bases"] or document["skipped"]:
        lines += ["", *_totals(document, planned=planned)]
    return printable_lines([*lines, *_warnings(document, verbose)])


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
    widths = [max(text_width(row[column]) for row in rows) for column in range(len(rows[0]))]
    for first, *middle, last in rows:
        cells = [pad_right(first, widths[0])]
        cells += [pad_left(cell, width) for cell, width in zip(middle, widths[1:-1], strict=True)]
        yield "  ".join([*cells, last]).rstrip()


def _totals(document: Document, *, planned: bool) -> Iterator[str]:
    totals = document["totals"]
    rows = totals["rows"]
    verb = tr("will be carried") if planned else label_of("carried")
    unread = _unread(document)
    of = tr(" of {bases}", bases=format_count(len(document["bases"]) - len(unread), "base")) if unread else ""
    yield tr(
        "{carried}{of} {verb} with their vectors{of_those}, none embedded again.",
        carried=_carried(rows),
        of=of,
        verb=verb,
        of_those=_of_those(document),
    )
    if unread:
        named = join_list(one_line(name, LONGEST_NAME) for name in unread[:SHOWN_PER_CODE])
        more = tr(" and {unread:,} more", unread=len(unread) - SHOWN_PER_CODE) if len(unread) > SHOWN_PER_CODE else ""
        yield tr(
            "Not carried, and nobody knows how many: all rows of {named}{more}. The vector file cannot be read.",
            named=named,
            more=more,
        )
    yield from _reasons(document)
    if "preflight" in document:
        needed, free = (format_bytes(document["preflight"][key]) for key in ("bytes_needed", "bytes_free"))
        yield tr("About {needed} will be written, {free} are free.", needed=needed, free=free)
    elif totals["bytes"]:
        counts = (format_count(totals["materials"], "material"), format_count(totals["embeddings"], "vector"))
        yield tr("{counts}, {bytes} of indexes.", counts=join_list(counts), bytes=format_bytes(totals["bytes"]))


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
        left_out = format_count(rows["v1_deduplicated"], "chunk")
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
    given = format_count(rows["restored_duplicate"], "chunk")
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
    return tr("{carried:,} of {rows}", carried=rows["carried"] - _bare(rows), rows=format_count(rows["read"], "row"))


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
        lines += omitted_lines(more, SHOWN_PER_CODE)
    if lines:
        yield ""
        yield from lines


def omitted_lines(seen: Mapping[str, int], shown: int) -> Iterator[str]:
    """Say how many entries of each name are not among those that are shown."""
    for name, count in seen.items():
        if count > shown:
            yield tr("… and {count:,} more of {name} (-v shows all)", count=count - shown, name=name)


def _cut(text: str, width: int) -> str:
    text = one_line(text, 4 * width)
    while text_width(text) > width:
        text = text[:-2] + "…"
    return text


# --- page ----------------------------------------------------------------------------------------------------------


def migration_page(document: Document) -> str:
    """Return a run's document as one offline HTML page: statistics and reasons, never texts or vectors.

    Messages may quote the user's texts, so they stay in ``report.json``: of them only their codes are counted.
    """
    totals, rows = document["totals"], document["totals"]["rows"]
    unread = _unread(document)
    return report_html.render_page(
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
            label_of("indexes"): format_bytes(totals["bytes"] or 0),
        },
        parts=row_bar_parts(rows),
        restored=_restored(rows) if rows["restored_duplicate"] else "",
        bases=[_page_base(base) for base in document["bases"]],
        left=count_codes({**rows["skipped"], **document["skipped"]}),
        unread=format_count(len(unread), "base") if unread else "",
        codes=_gravest_first(count_codes(Counter(warning["code"] for warning in document["warnings"]))),
        steps=list(_steps(document)),
    )


def _gravest_first(codes: list[CountedCode]) -> list[CountedCode]:
    gravest = get_args(notices.Severity)
    return sorted(codes, key=lambda code: gravest.index(code.severity))


class NextStep(NamedTuple):
    """A command to go on with, and what it does; a path, which says who somebody is, stands as a word."""

    does: str
    command: str


def _steps(document: Document) -> Iterator[NextStep]:
    """Yield what to do after a run."""
    for code in dict.fromkeys(base["error"] for base in document["bases"] if base["error"]):
        yield NextStep(tr("See why bases failed, and what helps"), f"regraft explain {code}")
    if document["run"]["dry_run"]:
        yield NextStep(tr("Carry it out"), f"regraft {document['regraft']['command']} SOURCE --to LIBRARY")
        return
    yield NextStep(tr("Audit what was written"), "regraft check LIBRARY")
    yield NextStep(tr("Use it in the application"), "regraft install LIBRARY --profile PROFILE")


def _page_base(base: Document) -> dict[str, object]:
    outcome = label_of(base["outcome"])
    if base["error"]:
        outcome = tr("{what}: {why}", what=outcome, why=base["error"])
    numbers = (
        f"{base['dimensions'] or '-'}",
        f"{sum(base['items'].values()):,}",
        f"{base['rows']['read']:,}",
        f"{base['rows']['carried']:,}",
        format_bytes((base["index"] or {}).get("bytes") or 0),
    )
    return {
        "name": printable(base["name"], LONGEST_NAME),
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


def count_codes(counts: Mapping[str, int]) -> list[CountedCode]:
    """Return codes as a page shows them."""
    codes = ((notices.EVERY_CODE[name], count) for name, count in counts.items())
    return [CountedCode(code.name, count, code.severity, code.meaning) for code, count in codes]


def row_bar_parts(rows: Document) -> list[BarPart]:
    """Return where v1's rows went as parts of a bar: carried first, then every reason why not.

    What was given to duplicates, and what v1 had left out, come on top of the rows that were read. A reason that
    nobody has registered is counted, and not named: a file on disk may say anything.
    """
    reasons: dict[str, int] = {}
    for reason, count in rows["skipped"].items():
        name = reason if reason in notices.EVERY_CODE else tr("another reason")
        reasons[name] = reasons.get(name, 0) + count
    shades = ("skipped", "other")
    skipped = (BarPart(shades[place % 2], name, count) for place, (name, count) in enumerate(reasons.items()))
    return [
        BarPart("carried", label_of("carried"), rows["carried"] - _bare(rows)),
        BarPart("bare", notices.WITHOUT_VECTOR, _bare(rows)),
        BarPart("restored", "restored_duplicate", rows["restored_duplicate"]),
        BarPart("left", "v1_deduplicated", rows["v1_deduplicated"]),
        *skipped,
    ]
