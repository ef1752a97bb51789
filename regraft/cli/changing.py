"""What every command that changes a store takes, says and ends with (``docs/commands.md``)."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from regraft.cli.options import PATH, output_options
from regraft.cli.output import confirmed as ask
from regraft.cli.output import echo_json, say
from regraft.kinds import Kind
from regraft.ledger import interrupts
from regraft.ledger.ledger import FOLDER
from regraft.report import notices, progress
from regraft.report.progress import human_bytes
from regraft.report.render import left_out
from regraft.text import LONGEST_NAME, argument, one_line, shown, shown_lines
from repair.changes.run import Planner, run_command

F = TypeVar("F", bound=Callable[..., Any])
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

    def agreed(self, planned: dict[str, Any]) -> bool:
        """Show a plan, and ask whether to go on where a person is there to answer."""
        return self.confirmed(action_lines(planned, verbose=False))


def change(command: str, path: Path, planner: Planner, asked: ChangeRequest, *, closing: str = "") -> NoReturn:
    """Run a planner's plan, say what was done (and then ``closing``), and end the process with its exit status."""
    document = run_command(
        command,
        path,
        planner,
        kind=asked.of_kind(),
        bases=asked.bases,
        dry_run=asked.dry_run,
        progress=asked.progress(),
        show_plan=asked.agreed,
    )
    end(document, asked, closing)


def end(document: dict[str, Any], asked: ChangeRequest, closing: str = "") -> NoReturn:
    """Say what was done, and then ``closing`` where it can be taken back, and end the process."""
    text = as_text(document, verbose=asked.verbose > 0) + (closing if document["undo"] is not None else "")
    end_with(document, asked, text)


def end_with(document: dict[str, Any], asked: ChangeRequest, text: str) -> NoReturn:
    """Say what was done, to a person by ``text``, and end the process."""
    if asked.as_json:
        echo_json(document)
    else:
        say(text)
    interrupts.over()
    sys.exit(exit_status(document, asked.fail_on))


def agreed(planned: dict[str, Any], *, yes: bool, silent: bool) -> bool:
    """Show a plan, and ask whether to go on where a person is there to answer."""
    return confirmed(action_lines(planned, verbose=False), yes=yes, silent=silent)


def confirmed(lines: Iterable[str], *, yes: bool, silent: bool) -> bool:
    """Show the lines of a plan, and ask whether to go on where a person is there to answer."""
    if silent or yes or not sys.stdin.isatty():
        return True
    say(shown_lines(["Plan:", *lines]))
    return ask("Go on?")


def as_text(document: dict[str, Any], *, verbose: bool) -> str:
    """Return what a run did, or would do, as text for a person."""
    lines = [*action_lines(document, verbose=verbose), *left_lines(document, verbose=verbose)]
    if not document["actions"]:
        lines.append("Nothing has to be done: nothing was written.")
    elif document["run"]["dry_run"]:
        lines += ["", "Dry run: nothing was written."]
    elif "undone" not in document:
        lines += closing_lines(document)
    return shown_lines(lines)


def closing_lines(document: dict[str, Any]) -> list[str]:
    """Return what stands at the end of a run that wrote something: where, and what takes it back."""
    path = document["source"]["path"]
    lines = ["", f"Done; {path} and its {FOLDER} were written."]
    if document["undo"] is not None:
        lines.append(f"Take it back: {shlex.join(['regraft', 'undo', argument(path)])}")
    return lines


def action_lines(document: dict[str, Any], *, verbose: bool) -> list[str]:
    """Return what a run does, as lines for a person."""

    def lines(action: dict[str, Any]) -> list[str]:
        size = f" ({human_bytes(action['bytes'])})" if action["bytes"] else ""
        return [f"{one_line(action['message'])}{size} [{action['action']}]"]

    return list(_by_base(document, document["actions"], "action", lines, verbose))


def left_lines(document: dict[str, Any], *, verbose: bool) -> list[str]:
    """Return what a run leaves as it is, and why, as lines for a person."""

    def lines(left: dict[str, Any]) -> list[str]:
        hint = [f"  try: {left['repair']}"] if left["repair"] else []
        return [f"{one_line(left['reason'])} [{left['finding']}]", *hint]

    left = [one for one in document["left"] if verbose or notices.at_least(one["severity"], "warning")]
    return ["", "Left as it is:", *_by_base(document, left, "finding", lines, verbose)] if left else []


def _by_base(
    document: dict[str, Any],
    entries: list[dict[str, Any]],
    key: str,
    lines: Callable[[dict[str, Any]], list[str]],
    verbose: bool,
) -> Iterator[str]:
    """Return entries as lines below the name of their base; of one kind only some, unless all are wanted."""
    names = {base["id"]: base["name"] for base in document["bases"]}
    ordered = sorted(entries, key=lambda entry: str(entry["base"] or ""))
    for base, group in groupby(ordered if verbose else _first_ones(ordered, key), key=itemgetter("base")):
        if base is not None:
            yield f"{one_line(names.get(base, base), LONGEST_NAME)}  ({shown(base, LONGEST_NAME)})"
        indent = "  " * (base is not None)
        yield from (f"{indent}{line}" for entry in group for line in lines(entry))
    if not verbose:
        yield from left_out(Counter(entry[key] for entry in ordered), _SHOWN)


def _first_ones(entries: Iterable[dict[str, Any]], key: str) -> Iterator[dict[str, Any]]:
    """Yield the first few entries of each kind."""
    seen: Counter[str] = Counter()
    for entry in entries:
        seen[entry[key]] += 1
        if seen[entry[key]] <= _SHOWN:
            yield entry


def exit_status(document: dict[str, Any], fail_on: str) -> int:
    """Return 1 where something is left that is worth reading, or a text could not be embedded, else 0."""
    if fail_on == "never":
        return 0
    if any(scope["failures"] for scope in document.get("scopes", ())):
        return 1
    line: Any = fail_on
    return int(any(notices.at_least(one["severity"], line) for one in document["left"]))
