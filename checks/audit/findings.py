"""Findings: what an audit can say about a store, one name for each thing, and how they are shown.

Names are part of the output contract and never change. ``docs/findings.md`` is generated from this registry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import groupby
from typing import Any, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from regraft.identity import replace
from regraft.language import format_count, join_list, tr
from regraft.report import notices
from regraft.report.document import Head, Report
from regraft.report.labels import format_severity_count, severity_heading
from regraft.report.notices import Severity
from regraft.text import LONGEST_NAME, one_line, printable_lines

#: Findings of one name shown in text before the rest is counted.
SHOWN_PER_NAME = 3
#: Characters of a message shown in text: some quote what a user wrote.
LONGEST_MESSAGE = 300
#: Names of rows, files and the like that a finding gives as examples.
SAMPLES = 3

#: What a person hears of what was looked at.
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
#: From the gravest down, as findings are listed.
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


class FindingDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A registered finding: the gravest that it can be, what it means, and what mends it, in the user's words."""

    name: str
    severity: Severity
    meaning: str
    remedy: str
    #: The words of the command that mends it, the path apart; empty where none does, or only some instances' do.
    command: tuple[str, ...] = ()


#: Commands that take ``--only`` with the name of a finding.
_BY_NAME = (("repair",), ("gc",))
#: Those of what is loaded; those of every system are :func:`checks.systems.load_findings`.
FINDINGS: dict[str, FindingDefinition] = {}


def register(severity: Severity, name: str, meaning: str, remedy: str, command: str = "") -> str:
    """Register a finding and return its name.

    ``command`` is that of regraft which mends it, with its options: "repair", "gc --v1-leftovers". Commands that mend
    several findings are told the one that is meant.
    """
    words = tuple(command.split())
    if words in _BY_NAME:
        words = (*words, "--only", name)
    FINDINGS[name] = FindingDefinition(name=name, severity=severity, meaning=meaning, remedy=remedy, command=words)
    return name


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that an audit found.

    ``base`` is its id in the store. ``subject`` is what it is about: an item's id, a file, or None for all of it.
    ``count`` counts what the finding is about (rows, files…), of which ``samples`` names a few. ``repair`` is the
    command line that mends it, None where none does.
    """

    name: str
    severity: Severity
    message: str
    base: str | None = None
    subject: str | None = None
    count: int = 1
    samples: tuple[str, ...] = ()
    repair: str | None = None
    #: Whether no command mends this very instance, although one mends others of the name.
    is_beyond_repair: bool = False
    #: What a person calls the items that samples are, or are of, by those samples.
    names: Mapping[str, str] = msgspec.field(default_factory=dict)

    def report(self) -> FindingReport:
        """Return it as the document of an audit has it."""
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
    """Numbers of a base, or of what stands in its place, that a page can be drawn from: no text, no vector, no path.

    Of v1 data only ``rows`` are told: where they would go. ``lengths`` counts vectors by their dimensions, ``norms`` by
    steps of 0.1; None is what was not counted.
    """

    id: str
    name: str
    units: int | UnsetType | None = UNSET
    bodies: int | UnsetType | None = UNSET
    covered: int | UnsetType | None = UNSET
    embeddings: int | UnsetType | None = UNSET
    lengths: dict[str, int] | UnsetType = UNSET
    norms: dict[str, int] | UnsetType | None = UNSET
    rows: Any = None


class Statistics(Struct, frozen=True, kw_only=True):
    """Numbers of a store; ``semantic`` has the signals of a search by meaning, where the system has such."""

    bases: list[BaseStatistics] | UnsetType = UNSET
    semantic: Struct | UnsetType | None = UNSET


class FindingReport(Struct, frozen=True, kw_only=True):
    """A finding in the document of an audit (``docs/commands.md``, "check"); ``names`` by samples, where there are."""

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
    """How many findings there are of each severity and of each name."""

    by_severity: dict[Severity, int]
    by_name: dict[str, int]


class CheckReport(Report, kw_only=True):
    """What ``regraft check`` tells (``docs/commands.md``); the last two fields only of what is no source."""

    findings: list[FindingReport]
    summary: Summary
    checked: dict[str, int]
    statistics: Statistics
    level: str | UnsetType = UNSET
    not_checked: tuple[str, ...] | UnsetType = UNSET


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit came to.

    ``checked`` says how much was looked at, ``names`` holds what a person calls a base, by its id, in the store's
    order. ``closing`` is the last sentence for a person, which says how to go on; ``opening`` is the first, where
    there is something to do that matters more than all that follows.
    """

    findings: tuple[Finding, ...]
    checked: dict[str, int]
    names: dict[str, str]
    closing: str
    #: Numbers of every base that a page can be drawn from.
    statistics: Statistics = msgspec.field(default_factory=Statistics)
    #: The checks that time did not suffice for, or of what cannot be read.
    not_checked: tuple[str, ...] = ()
    #: How deep it was looked at; empty for a source, of which a migration is planned.
    level: str = ""
    opening: str = ""

    def only(self, names: Collection[str]) -> Audit:
        """Return the part of it that was asked for; without names, all of it."""
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
        """Return the findings by severity, then by base; what is about no base comes first."""
        bases = {base: place for place, base in enumerate(self.names)}
        last = len(bases)

        def place(finding: Finding) -> tuple[int, int]:
            of_base = -1 if finding.base is None else bases.get(finding.base, last)
            return _SEVERITIES.index(finding.severity), of_base

        return sorted(self.findings, key=place)

    def report(self, head: Head) -> CheckReport:
        """Return what every audit tells, as ``docs/commands.md``, "check" has it."""
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
        )

    def exit_status(self, fail_on: str) -> int:
        """Return 0 where there is nothing to complain about, else 1 (``fail_on``: error, warning, note or never).

        Of what there was no time for, nobody knows that there is nothing to complain about.
        """
        if fail_on == "never":
            return 0
        if self.not_checked:
            return 1
        line = cast(Severity, fail_on)
        return int(any(notices.at_least(finding.severity, line) for finding in self.findings))


def format_audit(audit: Audit, title: str, *, verbose: bool = False) -> str:
    """Return an audit as text for a person; ``title`` says what was looked at."""
    lines = [title, *([audit.opening] if audit.opening else [])]
    for severity, found in groupby(audit.in_order(), key=lambda finding: finding.severity):
        lines += ["", tr("{heading}:", heading=severity_heading(severity)), *_group(list(found), audit.names, verbose)]
    return printable_lines([*lines, "", _sum(audit)])


def _group(found: list[Finding], names: dict[str, str], verbose: bool) -> Iterator[str]:
    shown: Counter[str] = Counter()
    for base, of_base in groupby(found, key=lambda finding: finding.base):
        heading = [] if base is None else [_heading(base, names)]
        for finding in of_base:
            shown[finding.name] += 1
            if verbose or shown[finding.name] <= SHOWN_PER_NAME:
                yield from heading
                heading = []
                yield from _lines(finding, verbose)
    if not verbose:
        more = {name: count - SHOWN_PER_NAME for name, count in shown.items() if count > SHOWN_PER_NAME}
        yield from (
            tr("  … and {count:,} more of {name} (-v shows all)", count=count, name=name)
            for name, count in more.items()
        )


def _heading(base: str, names: dict[str, str]) -> str:
    return f"  {one_line(names.get(base, base), LONGEST_NAME)}  ({one_line(base, LONGEST_NAME)})"


def _lines(finding: Finding, verbose: bool) -> Iterator[str]:
    indent = "  " if finding.base is None else "    "
    message = one_line(finding.message)
    if len(message) > LONGEST_MESSAGE and not verbose:
        message = f"{message[:LONGEST_MESSAGE]}…"
    yield f"{indent}{message} [{finding.name}]"
    if verbose and finding.samples:
        samples = [_sample(finding, one) for one in finding.samples]
        yield tr("{indent}  for example: {samples}", indent=indent, samples=join_list(samples))
    if finding.repair is not None:
        yield tr("{indent}  mend it: {repair}", indent=indent, repair=finding.repair)


def _sample(finding: Finding, sample: str) -> str:
    """Return what names an instance of a finding, for a person: with the item's name, where it has one."""
    shown = one_line(sample, LONGEST_NAME)
    if sample not in finding.names:
        return shown
    return f"{one_line(finding.names[sample], LONGEST_NAME)} ({shown})"


def _sum(audit: Audit) -> str:
    numbers = Counter(finding.severity for finding in audit.findings)
    said = join_list(
        format_severity_count(numbers[severity], severity) for severity in _SEVERITIES if numbers[severity]
    )
    shown = [(what, noun) for what, noun in _NOUNS.items() if what in audit.checked]
    seen = join_list(format_count(audit.checked[what], noun) for what, noun in shown)
    return tr("{seen}: {found}. {closing}", seen=seen, found=said or tr("nothing found"), closing=audit.closing)


# What an audit can say of any SQLite file: whether it can be read, and whether it has the schema of its layout.
#
# ``docs/findings.md`` lists them.


#: What mends several of them, in a person's words.
PERSON = tr("A person has to decide; the message says about what.")

UNREADABLE = register(
    "error",
    "file.unreadable",
    tr("A catalog or an index is not a SQLite file, is cut off, holds none of the known tables, or may not be read."),
    tr(
        "A permission, or a backup of the file; of a v2 index, `regraft repair --from SOURCE`, where another copy of "
        "the data has its texts and vectors; else `regraft repair --salvage`, by what is left in it."
    ),
)
CORRUPT = register(
    "error",
    "file.corrupt",
    tr("SQLite itself finds the file damaged, or stops while reading it. What could not be read was not checked."),
    tr(
        "A backup of the file; of a v2 index, `regraft repair --from SOURCE`, where another copy of the data has its "
        "texts and vectors; else `regraft repair --salvage`, by what is left in it; or indexing the base again in the "
        "application."
    ),
)
HOT_JOURNAL = register(
    "warning",
    "file.hot-journal",
    tr("The journal of an unfinished transaction lies beside the file. It was checked as if that were taken back."),
    tr("`regraft repair`, or starting the application once: both take the transaction back."),
    "repair",
)
SCHEMA_MISSING = register(
    "error",
    "schema.missing",
    tr("A table, column, key, check, index or trigger of the layout is missing, or does something else."),
    tr("`regraft upgrade`, which builds the layout anew around the rows."),
    "upgrade",
)
SCHEMA_VERSION = register(
    "error",
    "schema.version",
    tr("The version in the file is not the layout's. The application would empty this file when it opens the base."),
    tr(
        "`regraft upgrade`, unless the version is newer than regraft knows. Until then, do not "
        "open the base with the application."
    ),
    "upgrade",
)
SCHEMA_PREVIEW = register(
    "error",
    "schema.preview",
    tr("The single table of a preview build is here; the application does not see its vectors."),
    tr("`regraft upgrade`, which makes the layout of the rows, with every vector."),
    "upgrade",
)
FOREIGN_TRIGGER = register(
    "error",
    "schema.foreign-trigger",
    tr(
        "A trigger that the layout does not have, or one of its own that does something else "
        "besides: the next program that changes a row runs it. regraft never does. In the "
        "application's catalog those on tables of knowledge count, and none of its others."
    ),
    tr("`regraft repair`, which drops it; of one of the layout's own it makes that anew."),
    "repair",
)
FOREIGN_VIEW = register(
    "error",
    "schema.foreign-view",
    tr(
        "A view, which the layout does not have. One in the place of a table is never read: "
        "what should be there cannot be checked."
    ),
    tr("`regraft repair`, which drops it; for one in the place of a table, a backup of the file."),
    "repair",
)
FOREIGN_COLUMN = register(
    "error",
    "schema.foreign-column",
    tr(
        "In a table of the layout: a column more, one that follows from others, a key that "
        "carries changes on to other rows, a rule that replaces rows or calls a function; or a "
        "virtual table in its place. Commands that would change such rows refuse."
    ),
    PERSON,
)
FOREIGN_INDEX = register(
    "note",
    "schema.foreign-index",
    tr("An index that the layout does not have, as newer releases may add one. It stays."),
    tr("Nothing has to be mended."),
)
FOREIGN_TEXT_INDEX = register(
    "error",
    "schema.foreign-text-index",
    tr(
        "An index on a table that SQLite keeps the full-text index in: where a text changes, "
        "SQLite calls itself without end. Commands that would change texts refuse."
    ),
    tr("`regraft repair`, which drops it."),
    "repair",
)
