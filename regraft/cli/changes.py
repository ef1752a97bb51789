"""What every command that changes a store takes, says and ends with (``docs/commands.md``)."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import msgspec
from msgspec import UNSET

from regraft.cli import options as cli_options
from regraft.cli.options import PATH, output_options
from regraft.cli.output import ask, echo, echo_json
from regraft.errors import ConsentMissing
from regraft.kinds import Kind
from regraft.language import format_count, join_list, tr
from regraft.ledger.ledger import FOLDER
from regraft.processes import interrupts
from regraft.report import notices, progress
from regraft.report.document import encoded
from regraft.report.migration import omitted_lines
from regraft.text import LONGEST_NAME, format_bytes, one_line, path_argument, printable, printable_lines
from repair.changes.plan import Action, SalvagedFile, Unresolved
from repair.changes.run import BaseName, ChangeReport
from repair.embedding.report import BackfillReport, EmbeddingReport

# What was left of damaged index files, as lines for a person.


#: What is said of the reasons for which rows stay behind (:mod:`regraft.formats.cherry_v2.salvage.found_rows`).
_REASONS = {
    "damaged": tr("what they hold does not prove itself"),
    "contradicted": tr("they are read in two ways"),
    "unnamed": tr("nothing that comes along names them"),
    "unlike": tr("vectors of another length or norm than the others"),
    "lost": tr("of them only a key is left"),
}
_NOUNS = {"materials": "material", "contents": "text", "units": "unit", "bodies": "body", "embeddings": "vector"}


def salvaged_lines(files: Iterable[SalvagedFile]) -> Iterator[str]:
    """Yield what was read of each file, what stays behind and why, and how much of its items is whole."""
    for file in files:
        pages = file.pages
        yield tr(
            "{path}: {read:,} of {pages} are known for what they are",
            path=printable(file.path),
            read=pages.read,
            pages=format_count(pages.pages, "page"),
        )
        derived = {kind: table.derived for kind, table in file.rows.items() if table.derived}
        if derived:
            yield tr("  derived from what is proven: {rows}", rows=_counted(derived))
        refused: Counter[str] = Counter()
        for table in file.rows.values():
            refused.update(table.refused)
        for reason, count in refused.items():
            yield tr("  {rows} stay behind: {reason}", rows=format_count(count, "row"), reason=_REASONS[reason])
        items = file.items
        if items.whole or items.partial or items.lost:
            yield tr(
                "  items: {whole:,} whole, {partial:,} in part, {lost:,} lost",
                whole=items.whole,
                partial=len(items.partial),
                lost=len(items.lost),
            )


def _counted(numbers: dict[str, int]) -> str:
    return join_list(format_count(number, _NOUNS[kind]) for kind, number in numbers.items())


F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", Action, Unresolved)
#: Actions and reasons of one name shown before the rest is counted.
_SHOWN = 5


def change_options(command: F) -> F:
    """Add what every command that changes a store takes, PATH first."""
    for option in (
        output_options,
        click.option("-y", "--yes", is_flag=True, help=tr("Do not ask; needed where nobody is there to answer.")),
        click.option(
            "--fail-on",
            type=click.Choice(["error", "warning", "note", "never"]),
            default="warning",
            show_default=True,
            help=tr("From which severity of what is left on the exit status is 1."),
        ),
        click.option(
            "--base",
            "bases",
            multiple=True,
            metavar="ID",
            shell_complete=cli_options.complete_bases,
            help=tr("Only this base; may be repeated."),
        ),
        click.option("--dry-run", is_flag=True, help=tr("Show the plan and touch nothing.")),
        click.argument("path", type=PATH),
    ):
        command = option(command)
    return command


class ChangeRequest(msgspec.Struct, frozen=True):
    """What the options of :func:`change_options` say."""

    dry_run: bool
    bases: tuple[str, ...]
    fail_on: str
    yes: bool
    as_json: bool
    quiet: bool
    verbose: int
    kind: str | None
    #: The lines of the plan that a person was shown and agreed to.
    shown: list[str] = msgspec.field(default_factory=list)

    def progress(self) -> progress.Progress:
        """Return what shows a person how far a run is."""
        return progress.terminal_progress(quiet=self.as_json or self.quiet)

    def of_kind(self) -> Kind | None:
        """Return what the path is, where the user says so."""
        return Kind(self.kind) if self.kind else None

    def confirmed(self, lines: Iterable[str]) -> bool:
        """Show the lines of a plan, and ask whether to go on (:func:`confirmed`)."""
        lines = list(lines)
        agrees = confirm_plan(lines, yes=self.yes, as_json=self.as_json)
        if not self.yes:
            self.shown.extend(lines)
        return agrees

    def agreed(self, planned: ChangeReport) -> bool:
        """Show a plan, and what it leaves as it is, and ask whether to go on (:func:`confirmed`)."""
        actions = action_lines(planned.bases, planned.actions, verbose=False)
        return self.confirmed(join_parts(actions, unresolved_lines(planned.bases, planned.left, verbose=False)))


def run_change(function: Callable[..., ChangeReport], path: Path, asked: ChangeRequest, **options: Any) -> NoReturn:
    """Call a function of :mod:`regraft.api`, say what was done, and end the process with its exit status."""
    report = function(
        path,
        kind=asked.kind,
        bases=asked.bases,
        dry_run=asked.dry_run,
        progress=asked.progress(),
        # A plan that is not shown need not be worked out.
        confirm=None if asked.yes else asked.agreed,
        **options,
    )
    print_and_exit(report, asked, format_change(report, verbose=asked.verbose > 0, shown=asked.shown))


def print_and_exit(report: ChangeReport | BackfillReport, asked: ChangeRequest, text: str) -> NoReturn:
    """Say what was done, to a person by ``text``, and end the process."""
    if asked.as_json:
        echo_json(encoded(report))
    else:
        echo(text)
    interrupts.ignore_stops()
    sys.exit(exit_status(report, asked.fail_on))


def confirm_plan(lines: Iterable[str], *, yes: bool, as_json: bool) -> bool:
    """Show the lines of a plan, and ask a person whether to go on; ``yes``: the person has said so.

    Raises:
        ConsentMissing: nobody is there to answer, or a document is all that may be printed.
    """
    if yes:
        return True
    if as_json or not sys.stdin.isatty():
        raise ConsentMissing(command=click.get_current_context().info_name)
    echo(printable_lines([tr("Plan:"), *lines]))
    return ask(tr("Go on?"))


def format_change(report: ChangeReport, *, verbose: bool, shown: Sequence[str] = ()) -> str:
    """Return what a run did, or would do, as text for a person.

    Args:
        report: what the run came to.
        verbose: name every action.
        shown: the lines of the plan, if a person has just seen them: they are not said again.
    """
    lines = action_lines(report.bases, report.actions, verbose=verbose)
    known = action_lines(report.bases, report.actions, verbose=False)
    if shown and known == list(shown[: len(known)]):
        lines = []
    lines = join_parts(lines, list(salvaged_lines(report.salvaged or ())))
    lines = join_parts(lines, unresolved_lines(report.bases, report.left, verbose=verbose))
    if report.undone is UNSET:
        lines += closing_lines(report, is_done=bool(report.actions))
    elif report.head.run.dry_run:
        lines += ["", tr("Dry run: nothing was written.")]
    return printable_lines(lines)


def closing_lines(
    report: ChangeReport | BackfillReport, *, is_done: bool, unchanged: str = tr("nothing was written")
) -> list[str]:
    """Return what stands at the end of a run: what is done and what is not, and what to do next.

    Args:
        report: what the run came to.
        is_done: whether it did anything, or a dry run would.
        unchanged: what is said where it did nothing.
    """
    path = report.head.source.path if report.head.source else ""
    left = [one for one in report.left if notices.at_least(one.severity, "warning")]
    if not is_done:
        return _nothing_done(report.head.regraft.command, left, unchanged)
    if report.head.run.dry_run:
        return ["", tr("Dry run: nothing was written."), *_not_done(report, left)]
    lines = [
        "",
        tr(
            "Done{share_done}; {path} and its {folder} were written.",
            share_done=_share_done(report, left),
            path=path,
            folder=FOLDER,
        ),
        *_not_done(report, left),
    ]
    lines += _next(left) or [tr("Next: {command}", command=_command("check", path))]
    if report.undo is not None:
        lines.append(tr("Take it back: {command}", command=_command("undo", path)))
    return lines


def _nothing_done(command: str, left: Sequence[Unresolved], unchanged: str) -> list[str]:
    if not left:
        return [tr("Nothing has to be done: {unchanged}.", unchanged=unchanged)]
    findings = format_count(sum(one.count for one in left), "finding")
    lines = [
        "",
        tr(
            "regraft {command} can do nothing about the {findings} above: {unchanged}.",
            command=command,
            findings=findings,
            unchanged=unchanged,
        ),
    ]
    names = " ".join(dict.fromkeys(one.finding for one in left))
    return [*lines, *(_next(left) or [tr("Next: regraft explain {names}", names=names)])]


def _next(left: Sequence[Unresolved]) -> list[str]:
    """Return the commands that may help with what is left."""
    return [tr("Next: {line}", line=line) for line in dict.fromkeys(one.repair for one in left if one.repair)]


def _share_done(report: ChangeReport | BackfillReport, left: Sequence[Unresolved]) -> str:
    """Return how many of the bases that the run was meant to change it did change; "" for one base or none.

    A run is meant to change the bases that it has actions for, and those whose findings it leaves for a reason.
    A base that it changed counts as done, also if a finding of it is left: the line below names it.
    """
    changed = {action.base for action in report.actions if action.base is not None}
    meant = changed | {one.base for one in left if one.base is not None}
    if len(meant) < 2:
        return ""
    return tr(": {done:,} of {bases}", done=len(changed), bases=format_count(len(meant), "base"))


def _not_done(report: ChangeReport | BackfillReport, left: Sequence[Unresolved]) -> list[str]:
    """Return the names of what is not done; the reasons stand above."""
    names = {base.id: base.name for base in report.bases}
    bases = dict.fromkeys(one.base for one in left if one.base is not None)
    if not bases:
        return []
    named = [one_line(names.get(base, base), LONGEST_NAME) for base in bases]
    more = len(named) - _SHOWN
    if more > 0:
        named = [*named[:_SHOWN], tr("{more:,} more", more=more)]
    return [tr("Not all of it is done, for the reasons above: {named}", named=join_list(named))]


def _command(name: str, path: str) -> str:
    return shlex.join(["regraft", name, path_argument(path)])


def join_parts(first: list[str], then: list[str]) -> list[str]:
    """Return two parts of a text with an empty line between them, where there are both."""
    if first and then:
        return [*first, "", *then]
    return first + then


def action_lines(bases: Iterable[BaseName], actions: Iterable[Action], *, verbose: bool) -> list[str]:
    """Return what a run does, as lines for a person."""

    def lines(action: Action) -> list[str]:
        line = one_line(action.message)
        if action.bytes:
            line += f" ({format_bytes(action.bytes)})"
        return [f"{line} [{action.action}]"]

    return list(_by_base(bases, actions, attrgetter("action"), lines, verbose))


def unresolved_lines(bases: Iterable[BaseName], left: Iterable[Unresolved], *, verbose: bool) -> list[str]:
    """Return what a run leaves as it is, and why, as lines for a person."""

    def lines(one: Unresolved) -> list[str]:
        found = [f"{one_line(one.reason)} [{one.finding}]"]
        if one.repair:
            found.append(tr("  try: {repair}", repair=one.repair))
        return found

    grave = [one for one in left if verbose or notices.at_least(one.severity, "warning")]
    if not grave:
        return []
    return [tr("Left as it is:"), *_by_base(bases, grave, attrgetter("finding"), lines, verbose)]


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
            yield f"{one_line(names.get(base, base), LONGEST_NAME)}  ({printable(base, LONGEST_NAME)})"
            indent = "  "
        for entry in group:
            yield from (f"{indent}{line}" for line in lines(entry))
    if not verbose:
        yield from omitted_lines(Counter(map(kind, ordered)), _SHOWN)


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
