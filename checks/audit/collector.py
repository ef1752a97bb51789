"""Collect what an audit finds, within its depth and time limit, and add the commands that fix it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum

import apsw
import msgspec

from checks.audit.findings import CORRUPT, FINDINGS, SAMPLES, UNREADABLE, Audit, Finding, RowNumbers, Statistics
from checks.audit.rolling import RollingPart
from regraft import identity
from regraft.disk import sqlite
from regraft.identity import replace
from regraft.language import format_count, insert_at_mark, join_list, tr
from regraft.report.notices import Severity
from regraft.report.progress import Progress, SilentProgress, stage
from regraft.text import decode_utf8

#: Interval of SQLite's progress handler, in instructions of its virtual machine.
_INSTRUCTIONS = 20_000
#: A damaged file can lead SQLite in circles. This is the number of instructions that a connection may
#: execute, with an addition for each byte.
_LEAST_INSTRUCTIONS = 40_000_000
_INSTRUCTIONS_PER_BYTE = 8
#: Maximum number of checks that a message names as not made.
_MOST_NAMED = 3
_LONGEST_SAMPLE = 200


class Level(IntEnum):
    """The depth of an audit. Each level includes the ones before it."""

    #: Whether each base can be opened: for copies of whole files, which are verified by their bytes.
    SHAPE = -1
    #: Structure and counts.
    QUICK = 0
    #: Also all texts, ids and vectors.
    DEFAULT = 1
    #: Also SQLite's own check and every raw file.
    DEEP = 2


class OutOfTime(Exception):
    """The time limit of the audit has passed."""


#: Returns a command line for the audited path, from the words before the path and the words after it.
CommandLine = Callable[[Sequence[str], Sequence[str]], str]


class CheckOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an audit, for stores of every system."""

    level: Level = Level.DEFAULT
    #: Time limit in seconds; None: no limit.
    max_duration: float | None = None
    #: Ids of the bases to check; empty: all.
    bases: tuple[str, ...] = ()
    #: Names of the only findings that the caller needs; empty: all. Expensive checks that cannot report one are
    #: skipped.
    names: frozenset[str] = frozenset()
    #: The time to which ages are relative, in ms.
    now_ms: int = msgspec.field(default_factory=identity.now_ms)
    progress: Progress = msgspec.field(default_factory=SilentProgress)
    #: The part of all rows to read, of a rolling check; None: as the level says.
    part: RollingPart | None = None


#: One check of a part of a store: its name, the id of its base, and its function.
Step = tuple[str, str | None, Callable[[], None]]


class _Tally(msgspec.Struct):
    """Instances of one finding with one message in one base."""

    noun: str
    severity: Severity | None  # None: that of the registry
    is_beyond_repair: bool
    count: int = 0
    samples: list[str] = msgspec.field(default_factory=list)
    rows: RowNumbers | None = None


class FindingCollector(msgspec.Struct):
    """Collects findings: instances with the same name, base and message become one, with a count and some samples."""

    level: Level = Level.DEFAULT
    #: Time limit in seconds from the creation of this collector; None: no limit.
    max_duration: float | None = None
    #: Advanced by the checks of each file, which are together one step of a stage.
    progress: Progress = msgspec.field(default_factory=SilentProgress)
    #: The time to which ages are relative, in ms.
    now_ms: int = msgspec.field(default_factory=identity.now_ms)
    #: As :attr:`CheckOptions.names`.
    names: frozenset[str] = frozenset()
    #: The checks that were not made, as the user knows them.
    not_checked: list[str] = msgspec.field(default_factory=list)
    _tallies: dict[tuple[str, str | None, str], _Tally] = msgspec.field(default_factory=dict)
    _started: float = msgspec.field(default_factory=time.monotonic)

    def add(  # noqa: PLR0913 - the fields of a finding
        self,
        name: str,
        message: str,
        *,
        base: str | None = None,
        sample: object = None,
        noun: str = "",
        count: int = 1,
        is_beyond_repair: bool = False,
        severity: Severity | None = None,
        row: int | None = None,
    ) -> None:
        """Count instances of a finding.

        Args:
            name: the registered name of the finding.
            message: the sentence for the user; with ``noun``, ``{n}`` in it becomes the count and the noun.
            base: the id of the base that has the finding; None: the finding is about the whole store.
            sample: an id, path or other value that identifies one instance in the output.
            noun: what is counted, in the singular, such as "unit".
            count: the number of instances.
            is_beyond_repair: whether no command fixes instances with this message.
            severity: the severity of instances with this message; None: that of the registry.
            row: the row number of the instance, from which a repair is planned.
        """
        tally = self._tallies.get((name, base, message))
        if tally is None:
            tally = self._tallies[name, base, message] = _Tally(noun, severity, is_beyond_repair)
        tally.count += count
        if sample is not None and len(tally.samples) < SAMPLES:
            tally.samples.append(display_text(sample))
        if row is not None:
            tally.rows = tally.rows or RowNumbers()
            tally.rows.append(row)

    def discard(self, name: str, base: str | None) -> None:
        """Drop the instances of the finding ``name`` that were counted in a base; None: in no base."""
        for key in [key for key in self._tallies if key[:2] == (name, base)]:
            del self._tallies[key]

    def count(self, name: str, base: str | None) -> int:
        """Return the number of instances of the finding ``name`` in a base; None: in no base."""
        return sum(tally.count for key, tally in self._tallies.items() if key[:2] == (name, base))

    def to_findings(self) -> tuple[Finding, ...]:
        """Return one finding for each name, base and message, in the order of the registry."""
        order = {name: position for position, name in enumerate(FINDINGS)}
        found = []
        for (name, base, message), tally in self._tallies.items():
            counted = insert_at_mark(message, "{n}", format_count(tally.count, tally.noun)) if tally.noun else message
            found.append(
                Finding(
                    name=name,
                    severity=tally.severity or FINDINGS[name].severity,
                    message=counted,
                    base=base,
                    subject=tally.samples[0] if tally.samples and tally.count == 1 else None,
                    count=tally.count,
                    samples=tuple(tally.samples),
                    is_beyond_repair=tally.is_beyond_repair,
                    rows=tally.rows,
                )
            )
        return tuple(sorted(found, key=lambda finding: order[finding.name]))

    def to_audit(
        self,
        *,
        checked: dict[str, int],
        names: dict[str, str],
        closing: str,
        statistics: Statistics | None = None,
        not_checked: Sequence[str] = (),
    ) -> Audit:
        """Return the result of the audit, with the findings so far; the arguments are fields of :class:`Audit`.

        ``not_checked`` are names of checks that were not made, in addition to those of this collector.
        """
        return Audit(
            findings=self.to_findings(),
            checked=checked,
            names=names,
            closing=closing,
            statistics=statistics or Statistics(),
            not_checked=(*self.skipped_checks(), *not_checked),
            level=self.level.name.lower(),
        )

    def closing(self, not_read_by_quick: str, only_deep: str) -> str:
        """Return the last sentence of an audit's report, which says what was not checked.

        Args:
            not_read_by_quick: names the data that ``--quick`` does not read.
            only_deep: names the data that only ``--deep`` checks.
        """
        missing = self.skipped_checks()
        if missing:
            return tr(
                "Time limit reached: {checks} missing ({left}{more}).",
                checks=format_count(len(missing), "check"),
                left=join_list(missing[:_MOST_NAMED]),
                more="…" if len(missing) > _MOST_NAMED else "",
            )
        if self.level is Level.QUICK:
            return tr("Checked structure and counts; without --quick, {missed} are read too.", missed=not_read_by_quick)
        if self.level is not Level.DEEP:
            return tr("Checked; with --deep, {deep} are checked too.", deep=only_deep)
        if any(name in (CORRUPT, UNREADABLE) for name, _, _ in self._tallies):
            return tr("All that can be read was checked.")
        return tr("Everything was checked.")

    def skipped_checks(self) -> tuple[str, ...]:
        """Return the names of the checks that were not made, without duplicates."""
        return tuple(dict.fromkeys(self.not_checked))

    def may_report(self, *names: str) -> bool:
        """Whether the caller of the audit needs any of the findings ``names``."""
        return not self.names or not self.names.isdisjoint(names)

    def check_time(self) -> None:
        """Raise OutOfTime if the time limit has passed."""
        if self._is_out_of_time():
            raise OutOfTime

    def _is_out_of_time(self) -> bool:
        """Whether the time limit of the audit has passed."""
        return self.max_duration is not None and time.monotonic() > self._started + self.max_duration

    def run(self, file_name: str, steps: Sequence[tuple[str, Callable[[], None]]], base: str | None) -> None:
        """Run the checks of one file in order. Damage that stops one of them is a finding, and the next one runs.

        Args:
            file_name: the name by which the user knows the file.
            steps: the name and function of each check.
            base: the id of the base that the file belongs to; None: of no base.
        """
        for name, step in steps:
            try:
                self.check_time()
                step()
            except OutOfTime:
                self.not_checked.append(f"{file_name}: {name}")
            except (apsw.Error, ValueError, MemoryError, OverflowError) as error:
                if sqlite.is_write_failure(error):
                    raise
                if self._is_out_of_time():
                    self.not_checked.append(f"{file_name}: {name}")
                else:
                    message = tr("its file is damaged: {n} failed")
                    self.add(CORRUPT, message, base=base, noun="check", sample=f"{name}: {error}")
            self.progress.step(1 / len(steps), 0)

    def run_parts(
        self,
        steps: Sequence[Step],
        progress: Progress,
        finding: str,
        describe: Callable[[str, Exception], str],
    ) -> None:
        """Run the checks of the parts of a store. Damage that stops one of them is a finding, and the next one runs.

        Args:
            steps: the checks.
            progress: shows the name of each check.
            finding: the name of the finding for a check that was stopped.
            describe: makes the finding's message from the name of the stopped check and its error.
        """
        with stage(progress, "Checking", len(steps), "parts"):
            for name, base, step in steps:
                progress.at(name)
                try:
                    self.check_time()
                    step()
                except OutOfTime:
                    self.not_checked.append(name)
                except (apsw.Error, OSError, ValueError, MemoryError, OverflowError) as error:
                    if sqlite.is_write_failure(error):
                        raise
                    if self._is_out_of_time():
                        self.not_checked.append(name)
                    else:
                        self.add(finding, describe(name, error), base=base, sample=name)
                progress.step(1, 0)

    @contextmanager
    def limit_statements(self, connection: apsw.Connection, size: int) -> Iterator[None]:
        """Interrupt statements of ``connection`` when the time limit has passed, or when they run too long.

        ``size`` is the size of the database in bytes, from which the longest plausible statement follows.
        """
        calls_left = (_LEAST_INSTRUCTIONS + _INSTRUCTIONS_PER_BYTE * size) // _INSTRUCTIONS

        def must_stop() -> bool:
            """Whether SQLite has to interrupt the running statement; called at intervals."""
            nonlocal calls_left
            calls_left -= 1
            return calls_left < 0 or self._is_out_of_time()

        connection.set_progress_handler(must_stop, _INSTRUCTIONS)
        try:
            yield
        finally:
            connection.set_progress_handler(None)


def display_text(value: object) -> str:
    """Return a stored value of any type as text for a message; after 200 characters, an ellipsis replaces the rest."""
    text = decode_utf8(value) if isinstance(value, bytes) else str(value)
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _LONGEST_SAMPLE else f"{text[:_LONGEST_SAMPLE]}…"


def add_commands(audited: Audit, command_line: CommandLine | None, base_commands: Collection[str] = ()) -> Audit:
    """Give each finding the command line that fixes it, if the registry names a command.

    Args:
        audited: the audit.
        command_line: makes a command line for the audited path; None: findings get no command.
        base_commands: the commands that take ``--base`` with the id of the finding's base.
    """
    if command_line is None:
        return audited

    def with_command(finding: Finding) -> Finding:
        """Return the finding with its command line, or unchanged if no command fixes it."""
        words = FINDINGS[finding.name].command
        if not words or finding.is_beyond_repair:
            return finding
        options = ("--base", finding.base) if finding.base is not None and words[0] in base_commands else ()
        return replace(finding, repair=command_line(words[:1], (*words[1:], *options)))

    return replace(audited, findings=tuple(map(with_command, audited.findings)))
