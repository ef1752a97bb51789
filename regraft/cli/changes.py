"""What all commands that change a store share: options, the question, the text of a report (``docs/commands.md``)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from msgspec import UNSET, structs

from regraft.api.changes import Installation
from regraft.api.outcome import exit_status
from regraft.cli.options import ASKS, Output, output_options
from regraft.cli.output import ask, echo, echo_json
from regraft.errors import ConsentMissing
from regraft.language import format_count, join_first, join_list, tr
from regraft.ledger.ledger import FOLDER, INSERT_BASE
from regraft.options import ChangeOptions
from regraft.processes import interrupts, startup
from regraft.report import notices
from regraft.report.document import encoded
from regraft.report.labels import first_of_each, label_of, omitted_lines
from regraft.text import LONGEST_NAME, format_bytes, join_command, one_line, path_argument, printable, printable_lines
from repair.changes.plan import Action, SalvagedFile, Unresolved
from repair.changes.run import BaseName, ChangeReport
from repair.embedding.report import BackfillReport

#: Texts for the reasons for which rows are not recovered (:mod:`regraft.formats.cherry_v2.salvage.found_rows`).
_REASONS = {
    "damaged": tr("they cannot be verified"),
    "contradicted": tr("several versions of them were found, which differ"),
    "unnamed": tr("no kept row refers to them"),
    "unlike": tr("vectors of another length or norm than the others"),
    "lost": tr("only their keys are left"),
}
_NOUNS = {"materials": "material", "contents": "text", "units": "unit", "bodies": "body", "embeddings": "vector"}


def salvaged_lines(files: Iterable[SalvagedFile]) -> Iterator[str]:
    """Describe for each damaged index file what was recovered, what was not and why."""
    for file in files:
        pages = file.pages
        yield tr(
            "{path}: {read:,} of {pages} could be identified",
            path=printable(file.path),
            read=pages.read,
            pages=format_count(pages.pages, "page"),
        )
        derived = {kind: table.derived for kind, table in file.rows.items() if table.derived}
        if derived:
            yield tr("  derived from verified rows: {rows}", rows=_format_counts(derived))
        refused: Counter[str] = Counter()
        for table in file.rows.values():
            refused.update(table.refused)
        for reason, count in refused.items():
            yield tr("  {rows} not recovered: {reason}", rows=format_count(count, "row"), reason=_REASONS[reason])
        items = file.items
        if items.whole or items.partial or items.lost:
            yield tr(
                "  items: {whole:,} complete, {partial:,} partial, {lost:,} lost",
                whole=items.whole,
                partial=len(items.partial),
                lost=len(items.lost),
            )


def _format_counts(numbers: dict[str, int]) -> str:
    """List numbers of recovered rows by their kinds."""
    return join_list(format_count(number, _NOUNS[kind]) for kind, number in numbers.items())


F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", Action, Unresolved)
#: Actions and reasons of one name shown before the rest is counted.
_SHOWN = 5


def change_options(command: F) -> F:
    """Add the output options of commands that change a store (:func:`output_options`)."""
    fail_on = tr("Lowest severity of unresolved findings that makes the exit status 1.")
    return output_options(yes=ASKS, fail_on=fail_on)(command)


def confirm_lines(output: Output, lines: Iterable[str]) -> bool:
    """Show the lines of a plan and ask whether to continue.

    The lines are kept in ``output``, so that the final report does not repeat them.
    """
    lines = list(lines)
    agrees = confirm_plan(lines, yes=output.yes, as_json=output.as_json)
    if not output.yes:
        output.shown.extend(lines)
    return agrees


def confirm_change(output: Output) -> Callable[[ChangeReport], bool] | None:
    """Make the function that shows the plan of a change and asks; None with ``--yes``: then no plan is shown."""

    def confirm(planned: ChangeReport) -> bool:
        """Show what would be changed and what would be left unresolved, and ask; return whether the user agrees."""
        actions = action_lines(planned.bases, planned.actions, verbose=False)
        return confirm_lines(
            output, join_parts(actions, change_left_lines(planned.bases, planned.actions, planned.left, verbose=False))
        )

    return None if output.yes else confirm


def run_change(function: Callable[..., ChangeReport], path: Path, options: ChangeOptions, output: Output) -> NoReturn:
    """Call ``function`` of :mod:`regraft.api`, which changes the store at ``path``; print its report, and exit."""
    report = function(path, options, progress=output.progress(), confirm=confirm_change(output))
    print_and_exit(report, output, format_change(report, verbose=output.verbose > 0, shown=output.shown))


def print_and_exit(report: ChangeReport | BackfillReport, output: Output, text: str) -> NoReturn:
    """Print a report, as JSON or as ``text``, and exit with the status that ``--fail-on`` gives it."""
    if output.as_json:
        echo_json(encoded(report))
    else:
        echo(text)
    interrupts.ignore_stops()
    sys.exit(exit_status(report, output.fail_on))


def confirm_plan(lines: Iterable[str], *, yes: bool, as_json: bool, asks: Callable[[str], bool] = ask) -> bool:
    """Show the lines of a plan and ask whether to continue; with ``yes``, neither.

    ``asks`` shows a question and returns whether the user agrees.

    Raises:
        ConsentMissing: stdin is not a terminal, or only a JSON document may be printed.
    """
    if yes:
        return True
    if as_json or not startup.is_terminal(sys.stdin):
        raise ConsentMissing(command=click.get_current_context().info_name)
    echo(printable_lines([tr("Plan:"), *lines]))
    return asks(tr("Continue?"))


def format_change(report: ChangeReport, *, verbose: bool, shown: Sequence[str] = ()) -> str:
    """Format the report of a command that changed a store as text.

    Args:
        report: of a run or a dry run.
        verbose: list every action.
        shown: the lines of the plan that the user has just confirmed; they are not repeated.
    """
    lines = action_lines(report.bases, report.actions, verbose=verbose)
    known = action_lines(report.bases, report.actions, verbose=False)
    if shown and known == list(shown[: len(known)]):
        lines = []
    lines = join_parts(lines, list(salvaged_lines(report.salvaged or ())))
    lines = join_parts(lines, change_left_lines(report.bases, report.actions, report.left, verbose=verbose))
    if report.undone is UNSET:
        lines += closing_lines(report, is_done=bool(report.actions))
    elif report.head.run.dry_run:
        lines += ["", tr("Dry run: nothing was written.")]
    return printable_lines(lines)


def format_installation(installed: Installation, output: Output) -> str:
    """Format the report of an installation as text.

    It says how many of the chosen bases the profile has now, and how many of these can be used.
    """
    report, chosen = installed.report, installed.chosen
    # What changed, and what undo takes, is the profile.
    report = structs.replace(report, head=structs.replace(report.head, source=report.head.target))
    text = format_change(report, verbose=output.verbose > 0, shown=output.shown)
    if report.undo is None:
        return text
    came = {one.base for one in report.actions if one.action in ("insert-base", "copy-base")}
    stayed = {one.base: one.reason for one in report.left if one.base is not None and one.base not in came}
    failed = {base: why for base, why in installed.failed.items() if base not in stayed}
    there, bases = len(chosen) - len(stayed), format_count(len(chosen), "base")
    if failed:
        first = tr(
            "Start the application: it has {there:,} of {bases}; {usable:,} can be used.",
            there=there,
            bases=bases,
            usable=there - len(failed),
        )
    else:
        first = tr("Start the application: it has {there:,} of {bases}.", there=there, bases=bases)
    lines = [first]
    lines += [
        tr("Cannot be used: {name_of}: {why}", name_of=one_line(chosen[base]), why=one_line(why) or label_of("failed"))
        for base, why in failed.items()
    ]
    lines += [
        tr("Not installed: {name_of}: {why}", name_of=one_line(chosen.get(base, base)), why=one_line(why))
        for base, why in stayed.items()
    ]
    return text + printable_lines(lines)


def closing_lines(
    report: ChangeReport | BackfillReport, *, is_done: bool, unchanged: str = tr("nothing was written")
) -> list[str]:
    """Format the last lines of a report: what was done, what was not, and the next commands.

    Args:
        report: of a run or a dry run.
        is_done: whether the run changed anything, or would.
        unchanged: the text if it did not.
    """
    path = report.head.source.path if report.head.source else ""
    left = [one for one in report.left if notices.is_at_least(one.severity, "warning")]
    if not is_done:
        return _unchanged_lines(report.head.regraft.command, left, unchanged)
    if report.head.run.dry_run:
        return ["", tr("Dry run: nothing was written."), *_format_unresolved_bases(report, left)]
    lines = [
        "",
        tr(
            "Done{share_done}. Changed: {path} and its {folder}.",
            share_done=_format_share_done(report, left),
            path=path,
            folder=FOLDER,
        ),
        *_format_unresolved_bases(report, left),
    ]
    lines += _next_lines(left) or [tr("Next: {command}", command=_format_command("check", path))]
    return lines + _undo_lines(report, path)


def _undo_lines(report: ChangeReport | BackfillReport, path: str) -> list[str]:
    """Name the command that undoes what a report is about, in the store at ``path``, if anything can be undone."""
    if report.undo is None:
        return []
    lines = [tr("To undo: {command}", command=_format_command("undo", path))]
    # Texts are written by a run of their own, before their vectors.
    if isinstance(report, BackfillReport) and {one.action == "embed" for one in report.actions} == {True, False}:
        lines.append(tr("That undoes only the new vectors; run it again to undo the other changes."))
    return lines


def _unchanged_lines(command: str, left: Sequence[Unresolved], unchanged: str) -> list[str]:
    """Explain that a command changed nothing, and name the next command.

    Args:
        command: the name of the command.
        left: the findings that it did not resolve.
        unchanged: the text for nothing having been written.
    """
    if not left:
        return [tr("Nothing to do: {unchanged}.", unchanged=unchanged)]
    count = sum(one.count for one in left)
    line = tr(
        "Nothing to do: {command} cannot fix the finding above; {unchanged}.", command=command, unchanged=unchanged
    )
    if count > 1:
        findings = format_count(count, "finding")
        line = tr(
            "Nothing to do: {command} cannot fix any of the {findings} above; {unchanged}.",
            command=command,
            findings=findings,
            unchanged=unchanged,
        )
    lines = ["", line]
    names = " ".join(dict.fromkeys(one.finding for one in left))
    return [*lines, *(_next_lines(left) or [tr("Next: regraft explain {names}", names=names)])]


def _next_lines(left: Sequence[Unresolved]) -> list[str]:
    """List the commands that may resolve the findings in ``left``."""
    return [tr("Next: {line}", line=line) for line in dict.fromkeys(one.repair for one in left if one.repair)]


def _format_share_done(report: ChangeReport | BackfillReport, left: Sequence[Unresolved]) -> str:
    """Format how many of the intended bases are done, and how many only in part; empty if the only one is done.

    ``left`` are the unresolved findings. Intended are the bases with actions, and those with unresolved findings. A
    changed base with an unresolved finding is done in part.
    """
    changed = {action.base for action in report.actions if action.base is not None}
    incomplete = {one.base for one in left if one.base is not None}
    meant, partial = changed | incomplete, len(changed & incomplete)
    if len(meant) < 2:
        return tr(" in part") if partial else ""
    bases = format_count(len(meant), "base")
    if partial:
        return tr(
            ": {done:,} of {bases}, {partial:,} in part", done=len(changed) - partial, bases=bases, partial=partial
        )
    return tr(": {done:,} of {bases}", done=len(changed), bases=bases)


def _format_unresolved_bases(report: ChangeReport | BackfillReport, left: Sequence[Unresolved]) -> list[str]:
    """Name the bases with unresolved findings (``left``) in one line; their reasons are printed above it."""
    names = {base.id: base.name for base in report.bases}
    bases = dict.fromkeys(one.base for one in left if one.base is not None)
    if not bases:
        return []
    named = join_first([one_line(names.get(base, base), LONGEST_NAME) for base in bases], _SHOWN)
    return [tr("Incomplete: {named} (reasons above)", named=named)]


def _format_command(name: str, path: str) -> str:
    """Format the command line that runs the command ``name`` on a path."""
    return join_command(["regraft", name, path_argument(path)])


def join_parts(first: list[str], then: list[str]) -> list[str]:
    """Join two lists of lines, with an empty line between them if neither is empty."""
    if first and then:
        return [*first, "", *then]
    return first + then


def action_lines(bases: Iterable[BaseName], actions: Iterable[Action], *, verbose: bool) -> list[str]:
    """Format the actions of a run, grouped by base; without ``verbose``, only the first few of each kind."""

    def lines(action: Action) -> list[str]:
        """Format one action."""
        line = one_line(action.message)
        if action.bytes:
            line += f" ({format_bytes(action.bytes)})"
        return [f"{line} [{action.action}]"]

    return list(_by_base(bases, actions, attrgetter("action"), lines, verbose))


def unresolved_lines(
    bases: Iterable[BaseName], left: Iterable[Unresolved], *, verbose: bool, heading: str = tr("Not changed:")
) -> list[str]:
    """Format the unresolved findings of a run with their reasons, grouped by base, below a heading.

    Without ``verbose``, notes are omitted, and only the first few findings of each name are listed.
    """

    def lines(one: Unresolved) -> list[str]:
        """Format one finding, and the command that may resolve it."""
        found = [f"{one_line(one.reason)} [{one.finding}]"]
        if one.repair:
            found.append(tr("  try: {repair}", repair=one.repair))
        return found

    grave = [one for one in left if verbose or notices.is_at_least(one.severity, "warning")]
    if not grave:
        return []
    return [heading, *_by_base(bases, grave, attrgetter("finding"), lines, verbose)]


def change_left_lines(
    bases: Iterable[BaseName], actions: Iterable[Action], left: Sequence[Unresolved], *, verbose: bool
) -> list[str]:
    """Format the unresolved findings of a run with these actions as :func:`unresolved_lines` does.

    Those of bases that the run installs are listed apart: these bases are changed.
    """
    inserted = {action.base for action in actions if action.action == INSERT_BASE}
    others = unresolved_lines(bases, (one for one in left if one.base not in inserted), verbose=verbose)
    installed = (one for one in left if one.base in inserted)
    heading = tr("Installed with a difference:")
    return join_parts(others, unresolved_lines(bases, installed, verbose=verbose, heading=heading))


def _by_base(
    bases: Iterable[BaseName],
    entries: Iterable[E],
    kind: Callable[[E], str],
    lines: Callable[[E], list[str]],
    verbose: bool,
) -> Iterator[str]:
    """Yield the lines of actions or findings below the name of their base.

    Args:
        bases: the bases that may be named.
        entries: actions or findings.
        kind: returns the kind of an entry.
        lines: formats an entry.
        verbose: list all entries instead of the first few of each kind.
    """
    names = {base.id: base.name for base in bases}
    ordered = sorted(entries, key=lambda entry: entry.base or "")
    shown_ones = ordered if verbose else first_of_each(ordered, kind, _SHOWN)
    for base, group in groupby(shown_ones, key=attrgetter("base")):
        indent = ""
        if base is not None:
            yield f"{one_line(names.get(base, base), LONGEST_NAME)}  ({printable(base, LONGEST_NAME)})"
            indent = "  "
        for entry in group:
            yield from (f"{indent}{line}" for line in lines(entry))
    if not verbose:
        yield from omitted_lines(map(kind, ordered), _SHOWN)
