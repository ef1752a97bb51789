"""What every command that changes a store takes, says and ends with (``docs/commands.md``)."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from msgspec import UNSET

from regraft.cli.options import PATH, output_options
from regraft.cli.output import confirmed as ask
from regraft.cli.output import echo_json, say
from regraft.kinds import Kind
from regraft.ledger import interrupts
from regraft.ledger.ledger import FOLDER
from regraft.report import notices, progress
from regraft.report.document import encoded
from regraft.report.progress import human_bytes
from regraft.report.render import left_out
from regraft.text import LONGEST_NAME, argument, one_line, shown, shown_lines
from repair.backfill.report import BackfillReport, EmbeddingReport
from repair.changes.plan import Action, Unresolved
from repair.changes.report import BaseName, ChangeReport
from repair.changes.run import Planner, run_command

F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", Action, Unresolved)
#: Actions and reasons of one name shown before the rest is counted.
_SHOWN = 5


def change_options(command: F) -> F:
    """Add what every command that changes a store takes, PATH first."""
    for option in (
        output_options,
        click.option("-y", "--yes", is_flag=True, help="Do not ask."),
        click.option(
            "--fail-on",
            type=click.Choice(["error", "warning", "note", "never"]),
            default="warning",
            show_default=True,
            help="From which severity of what is left on the exit status is 1.",
        ),
        click.option("--base", "bases", multiple=True, metavar="ID", help="Only this base; may be repeated."),
        click.option("--dry-run", is_flag=True, help="Show the plan and touch nothing."),
        click.argument("path", type=PATH),
    ):
        command = option(command)
    return command


@dataclass(frozen=True)
class ChangeRequest:
    """What the options of :func:`change_options` say."""

    dry_run: bool
    bases: tuple[str, ...]
    fail_on: str
    yes: bool
    as_json: bool
    quiet: bool
    verbose: int
    kind: str | None

    def progress(self) -> progress.Progress:
        """Return what shows a person how far a run is."""
        return progress.for_person(quiet=self.as_json or self.quiet)

    def of_kind(self) -> Kind | None:
        """Return what the path is, where the user says so."""
        return Kind(self.kind) if self.kind else None

    def confirmed(self, lines: Iterable[str]) -> bool:
        """Show the lines of a plan, and ask whether to go on where a person is there to answer."""
        return confirmed(lines, yes=self.yes, silent=self.as_json or self.quiet)

    def agreed(self, planned: ChangeReport) -> bool:
        """Show a plan, and ask whether to go on where a person is there to answer."""
        return self.confirmed(action_lines(planned.bases, planned.actions, verbose=False))


def change(command: str, path: Path, planner: Planner, asked: ChangeRequest) -> NoReturn:
    """Run a planner's plan, say what was done, and end the process with its exit status."""
    report = run_command(
        command,
        path,
        planner,
        kind=asked.of_kind(),
        bases=asked.bases,
        dry_run=asked.dry_run,
        progress=asked.progress(),
        show_plan=asked.agreed,
    )
    end_with(report, asked, as_text(report, verbose=asked.verbose > 0))


def end_with(report: ChangeReport | BackfillReport, asked: ChangeRequest, text: str) -> NoReturn:
    """Say what was done, to a person by ``text``, and end the process."""
    if asked.as_json:
        echo_json(encoded(report))
    else:
        say(text)
    interrupts.over()
    sys.exit(exit_status(report, asked.fail_on))


def confirmed(lines: Iterable[str], *, yes: bool, silent: bool) -> bool:
    """Show the lines of a plan, and ask whether to go on where a person is there to answer."""
    if silent or yes or not sys.stdin.isatty():
        return True
    say(shown_lines(["Plan:", *lines]))
    return ask("Go on?")


def as_text(report: ChangeReport, *, verbose: bool) -> str:
    """Return what a run did, or would do, as text for a person."""
    lines = action_lines(report.bases, report.actions, verbose=verbose)
    lines += left_lines(report.bases, report.left, verbose=verbose)
    if not report.actions:
        lines.append("Nothing has to be done: nothing was written.")
    elif report.head.run.dry_run:
        lines += ["", "Dry run: nothing was written."]
    elif report.undone is UNSET:
        lines += closing_lines(report)
    return shown_lines(lines)


def closing_lines(report: ChangeReport | BackfillReport) -> list[str]:
    """Return what stands at the end of a run that wrote something: where, and what takes it back."""
    path = report.head.source.path if report.head.source else ""
    lines = ["", f"Done; {path} and its {FOLDER} were written."]
    if report.undo is not None:
        lines.append(f"Take it back: {shlex.join(['regraft', 'undo', argument(path)])}")
    return lines


def action_lines(bases: Iterable[BaseName], actions: Iterable[Action], *, verbose: bool) -> list[str]:
    """Return what a run does, as lines for a person."""

    def lines(action: Action) -> list[str]:
        line = one_line(action.message)
        if action.bytes:
            line += f" ({human_bytes(action.bytes)})"
        return [f"{line} [{action.action}]"]

    return list(_by_base(bases, actions, attrgetter("action"), lines, verbose))


def left_lines(bases: Iterable[BaseName], left: Iterable[Unresolved], *, verbose: bool) -> list[str]:
    """Return what a run leaves as it is, and why, as lines for a person."""

    def lines(one: Unresolved) -> list[str]:
        found = [f"{one_line(one.reason)} [{one.finding}]"]
        if one.repair:
            found.append(f"  try: {one.repair}")
        return found

    grave = [one for one in left if verbose or notices.at_least(one.severity, "warning")]
    if not grave:
        return []
    return ["", "Left as it is:", *_by_base(bases, grave, attrgetter("finding"), lines, verbose)]


def _by_base(
    bases: Iterable[BaseName],
    entries: Iterable[E],
    kind: Callable[[E], str],
    lines: Callable[[E], list[str]],
    verbose: bool,
) -> Iterator[str]:
    """Return entries as lines below the name of their base; of one kind only some, unless all are wanted."""
    names = {base.id: base.name for base in bases}
    ordered = sorted(entries, key=lambda entry: entry.base or "")
    shown_ones = ordered if verbose else _first_ones(ordered, kind)
    for base, group in groupby(shown_ones, key=attrgetter("base")):
        indent = ""
        if base is not None:
            yield f"{one_line(names.get(base, base), LONGEST_NAME)}  ({shown(base, LONGEST_NAME)})"
            indent = "  "
        for entry in group:
            yield from (f"{indent}{line}" for line in lines(entry))
    if not verbose:
        yield from left_out(Counter(map(kind, ordered)), _SHOWN)


def _first_ones(entries: Iterable[E], kind: Callable[[E], str]) -> Iterator[E]:
    """Yield the first few entries of each kind."""
    seen: Counter[str] = Counter()
    for entry in entries:
        seen[kind(entry)] += 1
        if seen[kind(entry)] <= _SHOWN:
            yield entry


def exit_status(report: ChangeReport | BackfillReport, fail_on: str) -> int:
    """Return 1 where something is left that is worth reading, or a text could not be embedded, else 0."""
    if fail_on == "never":
        return 0
    if isinstance(report, BackfillReport | EmbeddingReport) and any(scope.failures for scope in report.scopes):
        return 1
    line: Any = fail_on
    return int(any(notices.at_least(one.severity, line) for one in report.left))
