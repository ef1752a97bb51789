"""How deep an audit looks, how long it may take, and what it has found so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum

import apsw
import msgspec

from checks.audit.findings import CORRUPT, FINDINGS, SAMPLES, UNREADABLE, Audit, Finding
from regraft import identity
from regraft.disk import sqlite
from regraft.identity import replace
from regraft.language import format_count, insert_at_mark, join_list, tr
from regraft.report.notices import Severity
from regraft.report.progress import Progress, SilentProgress
from regraft.text import decode_utf8

#: SQLite calls back after so many steps of its machine.
_STEPS = 20_000
#: A damaged file can lead SQLite in circles: it may take so many steps, and so many for each byte of the file.
_LEAST_STEPS = 40_000_000
_STEPS_PER_BYTE = 8
#: How many checks are named for which time did not suffice.
_NAMED = 3


class Level(IntEnum):
    """How deep an audit looks.

    Whether a base can be opened (for what copies whole files and proves the copies by their bytes); structure and
    counts; also all texts, ids and vectors; also SQLite's own check and every raw file.
    """

    SHAPE = -1
    QUICK = 0
    DEFAULT = 1
    DEEP = 2


class OutOfTime(Exception):
    """The time that the audit may take is over."""


class _Tally(msgspec.Struct):
    said: str
    noun: str
    count: int = 0
    samples: list[str] = msgspec.field(default_factory=list)
    #: None: that of the definition.
    severity: Severity | None = None
    is_beyond_repair: bool = False


class FindingCollector(msgspec.Struct):
    """What has been found so far: one finding for each name, base and sentence, with a count and some samples."""

    level: Level = Level.DEFAULT
    #: How long the audit may take, in seconds; None: as long as it takes.
    max_duration: float | None = None
    #: Is told of each file that is checked, as one step of a stage.
    progress: Progress = msgspec.field(default_factory=SilentProgress)
    #: What ages are relative to.
    now_ms: int = msgspec.field(default_factory=identity.now_ms)
    #: The checks that time did not suffice for, as a person calls them.
    not_checked: list[str] = msgspec.field(default_factory=list)
    _tallies: dict[tuple[str, str | None, str], _Tally] = msgspec.field(default_factory=dict)
    _begun: float = msgspec.field(default_factory=time.monotonic)

    def add(
        self,
        name: str,
        said: str,
        *,
        base: str | None = None,
        sample: object = None,
        noun: str = "",
        count: int = 1,
        is_beyond_repair: bool = False,
        severity: Severity | None = None,
    ) -> None:
        """Count something.

        Args:
            name: the finding.
            said: the message; with ``noun``, ``{n}`` in it becomes the number with that noun.
            base: the base's id.
            sample: what names the instance.
            noun: what is counted.
            count: how many at once.
            is_beyond_repair: whether no command mends what this sentence says.
            severity: that of what this sentence says, where it is not the gravest that the finding can be.
        """
        new = _Tally(said, noun, severity=severity, is_beyond_repair=is_beyond_repair)
        tally = self._tallies.setdefault((name, base, said), new)
        tally.count += count
        if sample is not None and len(tally.samples) < SAMPLES:
            tally.samples.append(display_text(sample))

    def count(self, name: str, base: str | None) -> int:
        """Return how often something of this name was found in a base."""
        return sum(tally.count for key, tally in self._tallies.items() if key[:2] == (name, base))

    def findings(self) -> tuple[Finding, ...]:
        """Return all that was found, in the order of the registry."""
        places = {name: place for place, name in enumerate(FINDINGS)}
        found = []
        for (name, base, _), tally in self._tallies.items():
            message = (
                insert_at_mark(tally.said, "{n}", format_count(tally.count, tally.noun)) if tally.noun else tally.said
            )
            subject = tally.samples[0] if tally.samples and tally.count == 1 else None
            severity = tally.severity or FINDINGS[name].severity
            samples = tuple(tally.samples)
            found.append(
                Finding(
                    name=name,
                    severity=severity,
                    message=message,
                    base=base,
                    subject=subject,
                    count=tally.count,
                    samples=samples,
                    repair=None,
                    is_beyond_repair=tally.is_beyond_repair,
                )
            )
        return tuple(sorted(found, key=lambda finding: places[finding.name]))

    def closing(self, missed: str, deep: str) -> str:
        """Return the sentence that an audit ends with.

        Args:
            missed: what ``--quick`` does not read.
            deep: what only ``--deep`` reads.
        """
        left = self.missing()
        if left:
            more = "…" if len(left) > _NAMED else ""
            return tr(
                "Time was over: {checks} missing ({left}{more}).",
                checks=format_count(len(left), "check"),
                left=join_list(left[:_NAMED]),
                more=more,
            )
        if self.level is Level.QUICK:
            return tr("Looked at structure and counts; without --quick, {missed} are read too.", missed=missed)
        if self.level is not Level.DEEP:
            return tr("Checked; with --deep, {deep} are checked too.", deep=deep)
        if any(name in (CORRUPT, UNREADABLE) for name, _, _ in self._tallies):
            return tr("All that can be read was checked.")
        return tr("Everything was checked.")

    def missing(self) -> tuple[str, ...]:
        """Return the checks that time did not suffice for, each once."""
        return tuple(dict.fromkeys(self.not_checked))

    def check_time(self) -> None:
        """Go on only while there is time.

        Raises:
            OutOfTime: there is none left.
        """
        if self._is_over():
            raise OutOfTime

    def _is_over(self) -> bool:
        return self.max_duration is not None and time.monotonic() > self._begun + self.max_duration

    def run(self, what: str, steps: Sequence[tuple[str, Callable[[], None]]], base: str | None) -> None:
        """Run the checks of one file one after the other; damage in one does not end the others.

        Args:
            what: the file, for a person.
            steps: each check with its name.
            base: the base's id.
        """
        for name, step in steps:
            self._run_one(f"{what}: {name}", name, step, base)
            self.progress.step(1 / len(steps), 0)

    def _run_one(self, missing: str, name: str, step: Callable[[], None], base: str | None) -> None:
        try:
            self.check_time()
            step()
        except OutOfTime:
            self.not_checked.append(missing)
        except (apsw.Error, ValueError, MemoryError, OverflowError) as error:
            if sqlite.is_write_failure(error):
                raise
            try:
                self.check_time()
            except OutOfTime:
                self.not_checked.append(missing)
            else:
                self.add(
                    CORRUPT, tr("it cannot be read as a whole: {n}"), base=base, noun="check", sample=f"{name}: {error}"
                )

    @contextmanager
    def watched(self, connection: apsw.Connection, size: int) -> Iterator[None]:
        """Let no statement of ``connection`` run beyond the time, or forever over a damaged file of ``size`` bytes."""
        left = (_LEAST_STEPS + _STEPS_PER_BYTE * size) // _STEPS

        def is_over() -> bool:
            nonlocal left
            left -= 1
            return left < 0 or self._is_over()

        connection.set_progress_handler(is_over, _STEPS)
        try:
            yield
        finally:
            connection.set_progress_handler(None)


def display_text(value: object) -> str:
    """Return what names a row, whatever it holds: text of any bytes, numbers, nothing."""
    text = decode_utf8(value) if isinstance(value, bytes) else str(value)
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= 200 else f"{text[:200]}…"


# What a caller asks of an audit, whichever system the store is of.


#: Returns the command line for a path: it is given the words of the command, and those that come after the path.
CommandLine = Callable[[Sequence[str], Sequence[str]], str]


class CheckOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What of a store is to be looked at, how deep, and how long (in seconds; None: as long as it takes)."""

    level: Level = Level.DEFAULT
    max_duration: float | None = None
    #: Ids of the bases; empty: all.
    bases: tuple[str, ...] = ()
    #: What ages are relative to.
    now_ms: int = msgspec.field(default_factory=identity.now_ms)
    #: Shows a person how far it is.
    progress: Progress = msgspec.field(default_factory=SilentProgress)


# The command lines that an audit gives for what it found, where the registry names the command.


def add_commands(
    audited: Audit, command_line: CommandLine, options_of: Callable[[Finding], Sequence[str]] = lambda _: ()
) -> Audit:
    """Return an audit whose findings give the command line that mends them.

    Args:
        audited: what was found.
        command_line: makes the line of a command for the path.
        options_of: gives what a finding's command is told besides what the registry says.
    """

    def mended(finding: Finding) -> Finding:
        words = FINDINGS[finding.name].command
        if not words or finding.is_beyond_repair:
            return finding
        return replace(finding, repair=command_line(words[:1], (*words[1:], *options_of(finding))))

    return replace(audited, findings=tuple(map(mended, audited.findings)))
