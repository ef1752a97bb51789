"""Registry of findings, the results of an audit, and their text output.

A finding is one kind of problem with a stable name, for example ``unit.offsets``. Names are part of the output
contract. Each system registers its findings in ``checks/SYSTEM/findings.py``; ``docs/findings.md`` is generated from
the registry.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from itertools import groupby
from operator import attrgetter
from typing import Any

import apsw
import msgspec
from msgspec import UNSET, Struct, UnsetType

from checks.audit.rolling import PartReport
from regraft.disk import sqlite
from regraft.identity import replace
from regraft.language import format_count, join_list, tr
from regraft.report.document import Head, Report
from regraft.report.labels import first_of_each, format_severity_count, omitted_lines, severity_heading
from regraft.report.notices import Severity
from regraft.text import LONGEST_NAME, one_line, printable_lines

#: Maximum number of findings of one name in text output; the rest is counted.
SHOWN_PER_NAME = 3
#: Characters of a message shown in text output. Some messages quote the user's data.
LONGEST_MESSAGE = 300
#: Maximum number of samples of a finding.
SAMPLES = 3

#: Nouns for the entries of ``checked`` that the last line of the text output counts.
_NOUNS = {
    "bases": "base",
    "projects": "project",
    "items": "item",
    "rows": "row",
    "units": "unit",
    "notes": "note",
    "records": "record",
    "documents": "document",
    "chunks": "chunk",
    "vectors": "vector",
}
#: In the order of the text output.
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


class FindingDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A registered kind of finding, with its highest severity, its meaning, and how to fix it."""

    name: str
    severity: Severity
    meaning: str
    remedy: str
    #: Words of the command that fixes it, without the path; empty if none does, or not for every instance.
    command: tuple[str, ...] = ()


#: Commands that are given ``--only`` with the name of the finding.
_BY_NAME = (("repair",), ("gc",))
#: The registry, by name. :func:`checks.systems.load_findings` fills in the findings of every system.
FINDINGS: dict[str, FindingDefinition] = {}


def register(severity: Severity, name: str, meaning: str, remedy: str, command: str = "") -> str:
    """Register a kind of finding and return its name.

    Args:
        severity: the highest severity of its instances.
        name: the stable name of the finding.
        meaning: what is wrong, for the user.
        remedy: how to fix it, for the user.
        command: the regraft command that fixes it, with options, such as "gc --v1-leftovers"; empty if none does.
            Commands that take ``--only`` get it with the name.
    """
    words = tuple(command.split())
    if words in _BY_NAME:
        words = (*words, "--only", name)
    FINDINGS[name] = FindingDefinition(name=name, severity=severity, meaning=meaning, remedy=remedy, command=words)
    return name


class RowNumbers:
    """Row numbers of an SQLite table, in the order of detection. Large numbers of them move to a temporary file."""

    #: Maximum number of row numbers in memory, 8 bytes each.
    _IN_MEMORY = 100_000

    def __init__(self) -> None:
        self._recent = array("q")
        #: A temporary database, open for as long as this object exists.
        self._earlier: apsw.Connection | None = None
        self._opened = ExitStack()

    def append(self, rowid: int) -> None:
        """Add a row number."""
        self._recent.append(rowid)
        if len(self._recent) >= self._IN_MEMORY:
            if self._earlier is None:
                self._earlier = self._opened.enter_context(sqlite.open_scratch())
                self._earlier.execute("CREATE TABLE row_number (rowid INTEGER PRIMARY KEY, number INTEGER)")
            with self._earlier:
                self._earlier.executemany(
                    "INSERT INTO row_number (number) VALUES (?)", ((one,) for one in self._recent)
                )
            self._recent = array("q")

    def __iter__(self) -> Iterator[int]:
        if self._earlier is not None:
            for (number,) in self._earlier.execute("SELECT number FROM row_number ORDER BY rowid"):
                yield int(str(number))
        yield from self._recent


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One problem that an audit found, in one base or in the whole store.

    ``base`` is the id of the base. ``subject`` is the one item or file that has the problem, or None. ``count`` is the
    number of rows or files that have it, and ``samples`` names a few of them. ``repair`` is the command line that fixes
    it, or None.
    """

    name: str
    severity: Severity
    message: str
    base: str | None = None
    subject: str | None = None
    count: int = 1
    samples: tuple[str, ...] = ()
    repair: str | None = None
    #: Whether no command fixes this instance, although the registry names a command for the finding.
    is_beyond_repair: bool = False
    #: Names of the items that the samples are or belong to, by sample.
    names: Mapping[str, str] = msgspec.field(default_factory=dict)
    #: The affected rows of the table that the finding is about, for planners; None: not recorded. Not part of reports.
    rows: RowNumbers | None = None

    def report(self) -> FindingReport:
        """Convert the finding to the structure of the JSON output."""
        return FindingReport(
            name=self.name,
            severity=self.severity,
            message=self.message,
            base=self.base,
            subject=self.subject,
            count=self.count,
            samples=self.samples,
            repair=self.repair,
            names=self.names or UNSET,
        )


class BaseStatistics(Struct, frozen=True, kw_only=True):
    """Numbers of a base for the HTML page. They contain no text, vector or path.

    For v1 data, only ``rows`` is set: where its rows would go. ``lengths`` counts vectors by dimensions, ``norms`` by
    steps of 0.1, and ``ages`` items by the month in which they were added. ``duplicates`` counts bodies that have the
    text of another body and share its vector. None means not counted.
    """

    id: str
    name: str
    units: int | UnsetType | None = UNSET
    bodies: int | UnsetType | None = UNSET
    covered: int | UnsetType | None = UNSET
    duplicates: int | UnsetType | None = UNSET
    embeddings: int | UnsetType | None = UNSET
    lengths: dict[str, int] | UnsetType = UNSET
    norms: dict[str, int] | UnsetType | None = UNSET
    ages: dict[str, int] | UnsetType | None = UNSET
    rows: Any = None


class Statistics(Struct, frozen=True, kw_only=True):
    """Numbers of a store for the HTML page; ``semantic`` is the state of search by meaning, where a system has it."""

    bases: list[BaseStatistics] | UnsetType = UNSET
    semantic: Struct | UnsetType | None = UNSET


class FindingReport(Struct, frozen=True, kw_only=True):
    """A finding in the JSON output of ``check`` (``docs/commands.md``, "check")."""

    name: str
    severity: Severity
    message: str
    base: str | None
    subject: str | None
    count: int
    samples: tuple[str, ...]
    repair: str | None
    names: Mapping[str, str] | UnsetType = UNSET


class Summary(Struct, frozen=True, kw_only=True):
    """Number of findings by severity and by name."""

    by_severity: dict[Severity, int]
    by_name: dict[str, int]


class CheckReport(Report, kw_only=True):
    """JSON output of ``regraft check`` (``docs/commands.md``). A migration source has no level."""

    findings: list[FindingReport]
    summary: Summary
    checked: dict[str, int]
    statistics: Statistics
    level: str | UnsetType = UNSET
    not_checked: tuple[str, ...] | UnsetType = UNSET
    part: PartReport | UnsetType = UNSET


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an audit.

    ``checked`` counts what was checked, and ``names`` maps base ids to names in the order of the store. ``opening`` is
    an optional first sentence for an urgent action, ``closing`` is the last sentence of the text output.
    """

    findings: tuple[Finding, ...]
    checked: dict[str, int]
    names: dict[str, str]
    closing: str
    #: Numbers for the HTML page.
    statistics: Statistics = msgspec.field(default_factory=Statistics)
    #: Checks that were not made: out of time, or the data cannot be read.
    not_checked: tuple[str, ...] = ()
    #: The level's name; empty for a migration source, which is audited by planning its migration.
    level: str = ""
    opening: str = ""
    #: Of a rolling check: what it read, and how far it is.
    part: PartReport | None = None

    def only(self, names: Collection[str]) -> Audit:
        """Return the audit with only the findings of the given names, or unchanged if there are no names."""
        if not names:
            return self
        kept = tuple(finding for finding in self.findings if finding.name in names)
        return replace(
            self,
            findings=kept,
            opening="",
            closing=tr("Looked for {fromkeys} only.", fromkeys=join_list(dict.fromkeys(names))),
        )

    def in_order(self) -> list[Finding]:
        """Sort the findings by severity, then by base. Findings of no base come first."""
        bases = {base: position for position, base in enumerate(self.names)}
        last = len(bases)

        def sort_key(finding: Finding) -> tuple[int, int]:
            """Return the positions of the finding's severity and base, by which findings are sorted."""
            of_base = -1 if finding.base is None else bases.get(finding.base, last)
            return _SEVERITIES.index(finding.severity), of_base

        return sorted(self.findings, key=sort_key)

    def report(self, head: Head) -> CheckReport:
        """Return the JSON output of ``check``; ``head`` has the fields that every report begins with."""
        ordered = self.in_order()
        severities = Counter(finding.severity for finding in ordered)
        names = Counter(finding.name for finding in ordered)
        return CheckReport(
            head=head,
            findings=[finding.report() for finding in ordered],
            summary=Summary(
                by_severity={severity: severities[severity] for severity in _SEVERITIES},
                by_name=dict(sorted(names.items())),
            ),
            checked=self.checked,
            statistics=self.statistics,
            level=self.level or UNSET,
            not_checked=self.not_checked if self.level else UNSET,
            part=self.part or UNSET,
        )


def format_audit(audit: Audit, title: str, *, verbose: bool = False) -> str:
    """Return the text output of ``check``; ``title`` is its first line, ``verbose`` shows all findings with samples."""
    lines = [title, *audit.opening.splitlines()]
    for severity, found in groupby(audit.in_order(), key=lambda finding: finding.severity):
        lines += [
            "",
            tr("{heading}:", heading=severity_heading(severity)),
            *_format_group(list(found), audit.names, verbose),
        ]
    # The last line: what was checked, and the number of findings of each severity.
    numbers = Counter(finding.severity for finding in audit.findings)
    message = join_list(
        format_severity_count(numbers[severity], severity) for severity in _SEVERITIES if numbers[severity]
    )
    shown = [(what, noun) for what, noun in _NOUNS.items() if what in audit.checked]
    seen = join_list(format_count(audit.checked[what], noun) for what, noun in shown)
    summary = tr("{seen}: {found}. {closing}", seen=seen, found=message or tr("nothing found"), closing=audit.closing)
    return printable_lines([*lines, "", summary, *([audit.part.describe()] if audit.part else [])])


def _format_group(findings: list[Finding], names: dict[str, str], verbose: bool) -> Iterator[str]:
    """Yield the output lines of findings of one severity, by base.

    Args:
        findings: the findings.
        names: names of the bases, by id.
        verbose: whether to show all findings; otherwise only the first ones of each name.
    """
    name_of = attrgetter("name")
    shown = findings if verbose else first_of_each(findings, name_of, SHOWN_PER_NAME)
    for base, of_base in groupby(shown, key=attrgetter("base")):
        if base is not None:
            yield _format_base(base, names)
        for finding in of_base:
            yield from _format_finding(finding, verbose)
    if not verbose:
        yield from (f"  {line}" for line in omitted_lines(map(name_of, findings), SHOWN_PER_NAME))


def _format_base(base_id: str, names: dict[str, str]) -> str:
    """Format the name and the id of a base; ``names`` maps ids to names."""
    return f"  {one_line(names.get(base_id, base_id), LONGEST_NAME)}  ({one_line(base_id, LONGEST_NAME)})"


def _format_finding(finding: Finding, verbose: bool) -> Iterator[str]:
    """Yield the output lines of a finding: message, command that fixes it, and with ``verbose`` its samples."""
    indent = "  " if finding.base is None else "    "
    message = one_line(finding.message)
    if len(message) > LONGEST_MESSAGE and not verbose:
        message = f"{message[:LONGEST_MESSAGE]}…"
    yield f"{indent}{message} [{finding.name}]"
    if verbose and finding.samples:
        samples = []
        for sample in finding.samples:
            shown, name = one_line(sample, LONGEST_NAME), finding.names.get(sample)
            samples.append(shown if name is None else f"{one_line(name, LONGEST_NAME)} ({shown})")
        yield tr("{indent}  for example: {samples}", indent=indent, samples=join_list(samples))
    if finding.repair is not None:
        yield tr("{indent}  fix: {repair}", indent=indent, repair=finding.repair)


# --- findings of any SQLite file: can it be read, and does it have the schema of its layout --------------------------


PERSON = tr("Needs your decision. The message shows the options.")

UNREADABLE = register(
    "error",
    "file.unreadable",
    tr(
        "A catalog or an index is not a SQLite file, is truncated, contains none of the known tables, "
        "or cannot be opened for lack of permission."
    ),
    tr(
        "Correct the permissions, or restore the file from a backup. For a v2 index: `regraft repair "
        "--from SOURCE`, if another copy of the data has its texts and vectors; otherwise `regraft "
        "repair --salvage`, which recovers its readable rows."
    ),
)
CORRUPT = register(
    "error",
    "file.corrupt",
    tr(
        "SQLite reports the file as damaged, or fails while reading it. Anything that could not be read "
        "was not checked."
    ),
    tr(
        "Restore the file from a backup. For a v2 index: `regraft repair --from SOURCE`, if another "
        "copy of the data has its texts and vectors; otherwise `regraft repair --salvage`, which "
        "recovers its readable rows, or index the base again in the application."
    ),
)
HOT_JOURNAL = register(
    "warning",
    "file.hot-journal",
    tr("The file has the journal of an unfinished transaction. It was checked as if the transaction were rolled back."),
    tr("`regraft repair`, or starting the application once. Both roll the transaction back."),
    "repair",
)
SCHEMA_MISSING = register(
    "error",
    "schema.missing",
    tr("A table, column, key, constraint, index or trigger of the layout is missing, or has a different definition."),
    tr("`regraft upgrade` rebuilds the layout and keeps all rows."),
    "upgrade",
)
SCHEMA_VERSION = register(
    "error",
    "schema.version",
    tr(
        "The schema version stored in the file does not match the layout. The application would empty "
        "this file when it opens the base."
    ),
    tr(
        "`regraft upgrade`, unless the version is newer than regraft supports. Do not open the base in "
        "the application before that."
    ),
    "upgrade",
)
SCHEMA_PREVIEW = register(
    "error",
    "schema.preview",
    tr("The file has the single table of a preview build. The application does not see its vectors."),
    tr("`regraft upgrade` converts the rows to the current layout, with every vector."),
    "upgrade",
)
FOREIGN_TRIGGER = register(
    "error",
    "schema.foreign-trigger",
    tr(
        "The file has a trigger that is not part of the layout, or a layout trigger with a different "
        "definition. Any program that changes a row runs it; regraft never does. In the application's "
        "catalog, only triggers on knowledge tables count."
    ),
    tr("`regraft repair` drops it, and recreates triggers of the layout."),
    "repair",
)
FOREIGN_VIEW = register(
    "error",
    "schema.foreign-view",
    tr(
        "The file has a view, which is not part of the layout. If it replaces a table, it is not read, "
        "and the data that belongs there cannot be checked."
    ),
    tr("`regraft repair` drops it. If it replaces a table, restore the file from a backup."),
    "repair",
)
FOREIGN_COLUMN = register(
    "error",
    "schema.foreign-column",
    tr(
        "A table of the layout has an extra column, a generated column, a cascading foreign key, a "
        "conflict clause that replaces rows, or a constraint that calls a function; or it is a virtual "
        "table. Commands that would change its rows refuse to run."
    ),
    PERSON,
)
FOREIGN_INDEX = register(
    "note",
    "schema.foreign-index",
    tr("The file has an index that is not part of the layout, as newer releases may add. It is kept."),
    tr("Nothing needs to be fixed."),
)
FOREIGN_TEXT_INDEX = register(
    "error",
    "schema.foreign-text-index",
    tr(
        "The file has an index on one of the internal tables of the full-text index. Changing a text "
        "then makes SQLite recurse endlessly, so commands that would change texts refuse to run."
    ),
    tr("`regraft repair` drops it."),
    "repair",
)
