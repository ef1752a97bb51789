"""The report of a migration or an import: its structs, and its document as text and as a page.

The part of each base is also kept in the ledger (``docs/formats/library.md``). Fields that only one of the two commands
has, or that earlier versions lacked, may be ``UNSET``.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any, Literal, NamedTuple, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType

from regraft.language import format_count, join_list, tr
from regraft.ledger.values import Count
from regraft.report import html as report_html
from regraft.report import notices
from regraft.report.document import Report
from regraft.report.html import BarPart
from regraft.report.labels import first_of_each, label_of, omitted_lines, severity_label
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
    """How many rows of a base were read and migrated; ``skipped`` counts the others by reason code."""

    read: Count
    carried: Count
    without_vector: Count | UnsetType = UNSET
    skipped: dict[str, Count]
    v1_deduplicated: Count | UnsetType = UNSET
    restored_duplicate: Count | UnsetType = UNSET


class IndexReport(Struct, frozen=True, kw_only=True):
    """The index of a base; None: not known before it is written. In the ledger ``path`` is relative."""

    path: str
    materials: Count
    units: Count
    embeddings: Count | None
    bytes: Count | None


class DirectoriesReport(Struct, frozen=True, kw_only=True):
    """How many folders of a base became folders (``expanded``), with how many files in them."""

    expanded: Count
    children: Count
    tombstones: Count


class SalvageReport(Struct, frozen=True, kw_only=True):
    """Rows found in a damaged vector file: how many are verified, of about how many, and why others are refused.

    ``carried``: whether ``--salvage`` was given, so that they are migrated. ``weaker`` counts rows outside the B-tree
    of their table, by how they were found; ``deleted`` counts remains of deleted rows. ``items`` counts complete items,
    and items that lost rows.
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
    """The result for one base; ``items`` counts its items by status, ``outcome`` is what the run did with it."""

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
        """The id of the base in the source."""
        return self.legacy_id or self.id

    @property
    def is_done(self) -> bool:
        """Whether the base is in the target."""
        return self.outcome in ("written", "rewritten", "unchanged", "failed")

    def lacks(self, command: Literal["migrate", "import"]) -> bool:
        """Whether a field is missing that reports of this command always have."""
        if command == "migrate":
            return UNSET in (self.legacy_id, self.directories)
        return UNSET in (self.skipped_items, self.vectors, self.differing_vectors, self.remade)


class WarningReport(Struct, frozen=True, kw_only=True):
    """A notice of a run; ``base`` and ``item`` are ids of the source."""

    code: str
    base: str | None
    item: str | None
    message: str
    count: int
    samples: tuple[str, ...]
    model: str | None


class NewIds(Struct, frozen=True, kw_only=True):
    """The v2 ids of bases, items and files of folders, by their v1 ids; ``children`` are grouped by base."""

    bases: dict[str, str]
    items: dict[str, str]
    children: dict[str, dict[str, str]]


class Totals(Struct, frozen=True, kw_only=True):
    """The sums over all bases; None: not known before the run."""

    bases: dict[str, int]
    items: dict[str, int]
    rows: RowsReport
    materials: int | None
    units: int | None
    embeddings: int | None
    bytes: int | None


class Preflight(Struct, frozen=True, kw_only=True):
    """Disk space that a run needs, and that is free, in bytes."""

    bytes_needed: int
    bytes_free: int


class MigrationReport(Report, kw_only=True):
    """The report of a migration or an import; ``ids`` is set by migrations, ``preflight`` by plans."""

    bases: list[BaseReport]
    skipped: dict[str, int]
    warnings: list[WarningReport]
    ids: NewIds | UnsetType = UNSET
    totals: Totals
    preflight: Preflight | UnsetType = UNSET


class BaseSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """What the survey of the source found for one base: its numbers of items and uploads, and its vector file.

    ``vector_file`` is the file's name in the source, ``kind`` what is there (None: nothing), ``bytes`` its size,
    ``is_read`` whether its rows could be read, ``salvageable`` the number of verified rows of a damaged file.
    """

    items: int
    uploads: int
    vector_file: str
    kind: Literal["file", "folder"] | None
    bytes: int
    is_read: bool
    salvageable: int = 0


class SourcePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The report that a migration into a new folder would give, and the survey of each base, by its v1 id.

    ``room`` is the space on the disk of the source; a lack of it is not an error.
    """

    report: MigrationReport
    room: Preflight
    looked_at: dict[str, BaseSurvey]


# --- text -----------------------------------------------------------------------------------------------------------


#: The template of a migration's page.
PAGE = "migration.html"
#: Warnings of one code shown in text before the rest is counted.
SHOWN_PER_CODE = 3
#: Columns of a base's name in the table; the rest is cut off.
_NAME_COLUMNS = 36

Document = dict[str, Any]


def as_json(document: Document, *, ascii_only: bool = False) -> str:
    """Format a document as indented JSON with a final line end.

    Values from files may have any type: bytes become text, and numbers that JSON lacks (NaN) become null.
    """
    try:
        text = json.dumps(document, ensure_ascii=ascii_only, indent=2, default=_encode_unknown, allow_nan=False)
    except ValueError:
        text = json.dumps(_replace_non_finite(document), ensure_ascii=ascii_only, indent=2, default=_encode_unknown)
    return escape_json(text) + "\n"


def _encode_unknown(value: object) -> str:
    """Convert a value that JSON cannot represent to text."""
    return lenient_text(value) if isinstance(value, bytes) else str(value)


def _replace_non_finite(value: Any) -> Any:
    """Replace NaN and infinities in a document by None, as JavaScript does."""
    if isinstance(value, dict):
        return {key: _replace_non_finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plan_line(planned: Document) -> str:
    """Format the document of a plan in one line: how much will be migrated, and the disk space for it."""
    totals = planned["totals"]
    needed, free = (format_bytes(planned["preflight"][key]) for key in ("bytes_needed", "bytes_free"))
    bases = format_count(totals["bases"]["all"], "base")
    bare = _count_without_vector(totals["rows"])
    more = tr(" and {bare:,} without a vector", bare=bare) if bare else ""
    return tr(
        "Plan: {bases}, {carried}{more}; needs about {needed}, {free} are free.\n",
        bases=bases,
        carried=_format_migrated(totals["rows"]),
        more=more,
        needed=needed,
        free=free,
    )


def format_migration(document: Document, *, verbose: bool = False) -> str:
    """Format the document of a migration or an import as text; ``verbose``: list all warnings."""
    planned = document["run"]["dry_run"] or document["run"]["finished_at"] is None
    lines = [*_base_lines(document, planned=planned)]
    if document["bases"] or document["skipped"]:
        lines += ["", *_total_lines(document, planned=planned)]
    return printable_lines([*lines, *_warning_lines(document, verbose)])


def _base_row(base: Document) -> tuple[str, ...]:
    """Format the cells of a base in the table of the text."""
    numbers = (sum(base["items"].values()), base["rows"]["read"], base["rows"]["carried"])
    outcome = label_of(base["outcome"])
    if base["error"]:
        outcome += tr(" ({listed})", listed=base["error"])
    dimensions = "-" if base["dimensions"] is None else str(base["dimensions"])
    name = one_line(base["name"], 4 * _NAME_COLUMNS)
    while text_width(name) > _NAME_COLUMNS:
        name = name[:-2] + "…"
    return (name, dimensions, *(f"{number:,}" for number in numbers), outcome)


def _base_lines(document: Document, *, planned: bool) -> Iterator[str]:
    """Yield the lines of the table of bases, with aligned columns; ``planned``: the document is of a plan."""
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


def _total_lines(document: Document, *, planned: bool) -> Iterator[str]:
    """Yield the lines on all bases together: outcome, unreadable bases, skipped rows, and disk space."""
    totals = document["totals"]
    unread = _unread(document)
    of = tr(" of {bases}", bases=format_count(len(document["bases"]) - len(unread), "base")) if unread else ""
    yield _format_lead(document, of, planned=planned)
    if unread:
        named = join_list(one_line(name, LONGEST_NAME) for name in unread[:SHOWN_PER_CODE])
        more = tr(" and {unread:,} more", unread=len(unread) - SHOWN_PER_CODE) if len(unread) > SHOWN_PER_CODE else ""
        yield tr(
            "{named}{more}: no rows migrated. The vector file cannot be read, so the number of rows is unknown.",
            named=named,
            more=more,
        )
    yield from _reason_lines(document)
    if "preflight" in document:
        needed, free = (format_bytes(document["preflight"][key]) for key in ("bytes_needed", "bytes_free"))
        yield tr("Needs about {needed}; {free} are free.", needed=needed, free=free)
    elif totals["bytes"]:
        counts = (format_count(totals["materials"], "material"), format_count(totals["embeddings"], "vector"))
        yield tr("{counts}, {bytes} of indexes.", counts=join_list(counts), bytes=format_bytes(totals["bytes"]))


def _format_lead(document: Document, of: str = "", *, planned: bool) -> str:
    """Format how many rows of all bases are migrated; ``of`` names the bases whose rows could be counted."""
    bare = _count_without_vector(document["totals"]["rows"])
    counts = [base["vectors"] for base in document["bases"] if "vectors" in base]
    vectors = f" ({sum(counts):,})" if counts else ""
    of_those = tr(", {bare:,} more without one", bare=bare) if bare else vectors
    facts = {"carried": _format_migrated(document["totals"]["rows"]), "of": of, "of_those": of_those}
    if planned:
        return tr("{carried}{of} will be migrated with their vectors{of_those}; nothing is embedded again.", **facts)
    return tr("{carried}{of} migrated with their vectors{of_those}; nothing was embedded again.", **facts)


def _reason_lines(document: Document) -> Iterator[str]:
    """Yield a line for each reason for which rows or bases were not migrated."""
    rows = document["totals"]["rows"]
    for reason, count in rows["skipped"].items():
        yield tr(
            "  not migrated: {count:,} {reason} - {meaning}",
            count=count,
            reason=reason,
            meaning=notices.EVERY_CODE[reason].meaning,
        )
    if rows["v1_deduplicated"]:
        left_out = format_count(rows["v1_deduplicated"], "chunk")
        yield tr("  {left_out} were duplicates that v1 never stored. Nothing is lost.", left_out=left_out)
    if rows["restored_duplicate"]:
        yield f"  {_format_restored(rows)}"
    for reason, count in document["skipped"].items():
        yield tr(
            "  skipped: {count:,} {reason} - {meaning}",
            count=count,
            reason=reason,
            meaning=notices.EVERY_CODE[reason].meaning,
        )


def _format_restored(rows: Document) -> str:
    """Format how many chunks were restored for duplicates; ``rows`` is the count of rows of all bases."""
    given = format_count(rows["restored_duplicate"], "chunk")
    return tr("{given} more, for files for which v1 stored none because another file has the same bytes.", given=given)


def _unread(document: Document) -> list[str]:
    """List the names of bases whose rows could not be counted; an import counts all of them."""
    if _is_import(document):
        return []
    failed = (base for base in document["bases"] if base["status"] == "failed" and not base["rows"]["read"])
    return [base["name"] for base in failed]


def _is_import(document: Document) -> bool:
    """Whether the document is of an import."""
    return bool(document["regraft"]["command"] == "import")


def _format_migrated(rows: Document) -> str:
    """Format how many rows were migrated with a vector, of all rows read."""
    return tr(
        "{carried:,} of {rows}",
        carried=rows["carried"] - _count_without_vector(rows),
        rows=format_count(rows["read"], "row"),
    )


def _count_without_vector(rows: Document) -> int:
    """Count rows that were migrated without a vector; reports of earlier versions lack this number."""
    return min(int(rows.get("without_vector", 0)), int(rows["carried"]))


def _warning_lines(document: Document, verbose: bool) -> Iterator[str]:
    """Yield the warnings of a document: all with ``verbose``, else a few of each code, and no notes."""
    names = {base.get("legacy_id", base["id"]): base["name"] for base in document["bases"]}
    code_of = itemgetter("code")
    grave = [one for one in document["warnings"] if verbose or notices.EVERY_CODE[one["code"]].severity != "note"]
    if grave:
        yield ""
    for warning in grave if verbose else first_of_each(grave, code_of, SHOWN_PER_CODE):
        where = names.get(warning["base"], warning["base"])
        about = tr("{heading}: ", heading=one_line(where, LONGEST_NAME)) if where else ""
        severity = severity_label(notices.EVERY_CODE[warning["code"]].severity)
        what = tr("{what}: {why}", what=severity, why=f"{about}{warning['message']}")
        yield f"{what} [{warning['code']}]"
    if not verbose:
        yield from omitted_lines(map(code_of, grave), SHOWN_PER_CODE)


# --- page ----------------------------------------------------------------------------------------------------------


def migration_page(document: Document) -> str:
    """Render a run's document as an offline HTML page with statistics and reasons, but no texts or vectors.

    Messages may quote the user's texts, so the page only counts their codes; ``report.json`` has the messages.
    """
    totals, rows = document["totals"], document["totals"]["rows"]
    unread = _unread(document)
    codes = count_codes(Counter(warning["code"] for warning in document["warnings"]))
    gravest = get_args(notices.Severity)
    return report_html.render_page(
        PAGE,
        document["regraft"]["command"],
        title=tr("Report of an import") if _is_import(document) else tr("Report of a migration"),
        lead=_format_lead(document, planned=document["run"]["dry_run"]),
        run=document["run"],
        numbers={
            label_of("bases"): f"{totals['bases']['all']:,}",
            label_of("items"): f"{totals['items']['all']:,}",
            label_of("rows"): f"{rows['read']:,}",
            label_of("carried"): f"{rows['carried']:,}",
            label_of("indexes"): format_bytes(totals["bytes"] or 0),
        },
        parts=row_bar_parts(rows),
        restored=_format_restored(rows) if rows["restored_duplicate"] else "",
        bases=[_base_page_row(base) for base in document["bases"]],
        left=count_codes({**rows["skipped"], **document["skipped"]}),
        unread=format_count(len(unread), "base") if unread else "",
        codes=sorted(codes, key=lambda code: gravest.index(code.severity)),
        steps=list(_steps(document)),
    )


class NextStep(NamedTuple):
    """A command to run next, and what it does. Paths are placeholders, since a path may identify a person."""

    does: str
    command: str


def _steps(document: Document) -> Iterator[NextStep]:
    """Yield the commands to run after a migration or an import, for the page."""
    for code in dict.fromkeys(base["error"] for base in document["bases"] if base["error"]):
        yield NextStep(tr("See why bases failed, and how to fix that"), f"regraft explain {code}")
    if document["run"]["dry_run"]:
        yield NextStep(tr("Run what was planned"), f"regraft {document['regraft']['command']} SOURCE --to LIBRARY")
        return
    yield NextStep(tr("Audit what was written"), "regraft check LIBRARY")
    yield NextStep(tr("Use it in the application"), "regraft install LIBRARY --profile PROFILE")


def _base_page_row(base: Document) -> dict[str, object]:
    """Format the values of a base in the table of the page."""
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
    """A code with its number of notices, and its entry of the registry."""

    name: str
    number: int
    severity: notices.Severity
    meaning: str


def count_codes(counts: Mapping[str, int]) -> list[CountedCode]:
    """Look up codes in the registry of notices; each comes with its count."""
    codes = ((notices.EVERY_CODE[name], count) for name, count in counts.items())
    return [CountedCode(code.name, count, code.severity, code.meaning) for code, count in codes]


def row_bar_parts(rows: Document) -> list[BarPart]:
    """Divide v1's rows into the parts of a bar, in this order; parts may be 0.

    Rows migrated with their vector, rows migrated without it, restored duplicates, chunks that v1 never stored, then
    the skipped rows of each reason code. Restored duplicates and chunks that v1 never stored are no rows of the source,
    so the sum may exceed the rows that were read. Unregistered codes are counted as "another reason", since a file on
    disk may contain anything. ``rows`` is a row count of the document.
    """
    reasons: dict[str, int] = {}
    for reason, count in rows["skipped"].items():
        name = reason if reason in notices.EVERY_CODE else tr("another reason")
        reasons[name] = reasons.get(name, 0) + count
    shades = ("skipped", "other")
    skipped = (BarPart(shades[place % 2], name, count) for place, (name, count) in enumerate(reasons.items()))
    return [
        BarPart("carried", label_of("carried"), rows["carried"] - _count_without_vector(rows)),
        BarPart("bare", notices.WITHOUT_VECTOR, _count_without_vector(rows)),
        BarPart("restored", "restored_duplicate", rows["restored_duplicate"]),
        BarPart("left", "v1_deduplicated", rows["v1_deduplicated"]),
        *skipped,
    ]
