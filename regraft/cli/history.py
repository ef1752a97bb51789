"""``regraft history`` and ``regraft undo``: what was done to a store, and taking it back."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from regraft import api, kept_text
from regraft.cli.changing import action_lines, as_text, confirmed
from regraft.cli.options import PATH, output_options
from regraft.cli.output import echo_json, reports_errors, say
from regraft.language import language, tr
from regraft.report import progress
from regraft.report.document import encoded
from regraft.report.progress import human_bytes
from regraft.text import counted, one_line, shown, shown_lines
from repair.changes.report import ChangeReport
from repair.changes.undo import PastRun

#: Actions of a run that are shown before the rest is counted.
_SHOWN = 5


@click.command()
@click.argument("path", type=PATH)
@output_options
@reports_errors
def history(path: Path, as_json: bool, quiet: bool, verbose: int, kind: str | None) -> None:
    """List what regraft did to the store at PATH, and what can be taken back. Nothing is written.

    \b
    Example:
      regraft history library
    """
    report = api.history(path, kind=kind)
    if as_json:
        echo_json(encoded(report))
        return
    lines: list[str] = []
    for one in report.runs:
        lines += _run_lines(one)
        if not quiet:
            lines += _action_lines(one, verbose=verbose > 0)
    say(shown_lines(lines) or tr("No runs.\n"))


def _run_lines(run: PastRun) -> list[str]:
    back = {
        "possible": tr("regraft undo takes it back ({bytes} are kept for that)", bytes=human_bytes(run.undo.bytes)),
        "undone": tr("taken back"),
        "unsettled": tr("was stopped in the middle; the next command settles what became of it"),
        "expired": tr("can no longer be taken back"),
        "none": tr("nothing to take back"),
    }[run.undo.state]
    return [f"{run.started_at}  {run.command}  {run.status}  {run.id}", f"  {back}"]


def _action_lines(run: PastRun, *, verbose: bool) -> list[str]:
    shown_actions = run.actions if verbose else run.actions[:_SHOWN]
    lines = [f"  - {one_line(kept_text.translated(action.message, language()))}" for action in shown_actions]
    more = len(run.actions) - len(shown_actions)
    if more:
        lines.append(tr("  … and {more_actions} (-v shows all)", more_actions=counted(more, "more action")))
    return lines


@click.command()
@click.argument("path", type=PATH)
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--dry-run", is_flag=True, help=tr("Show what would be taken back and touch nothing."))
@click.option("-y", "--yes", is_flag=True, help=tr("Do not ask; needed where nobody is there to answer."))
@output_options
@reports_errors
def undo(
    path: Path,
    run_id: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    quiet: bool,
    verbose: int,
    kind: str | None,
) -> None:
    """Take back what a run did to the store at PATH: RUN, or the latest that can be.

    It is refused where anything that the run changed was changed since.

    \b
    Example:
      regraft undo library --dry-run
    """
    shown_plan: list[str] = []

    def agreed(planned: ChangeReport) -> bool:
        lines = action_lines(planned.bases, planned.actions, verbose=False)
        agrees = confirmed(lines, yes=yes, as_json=as_json)
        shown_plan.extend([] if yes else lines)
        return agrees

    report = api.undo(
        path,
        run_id,
        kind=kind,
        dry_run=dry_run,
        progress=progress.for_person(quiet=quiet or as_json),
        confirm=agreed,
    )
    if as_json:
        echo_json(encoded(report))
        sys.exit(0)
    text = as_text(report, verbose=verbose > 0, shown=shown_plan)
    if not dry_run:
        text += tr("Taken back: run {undone}; {path} was written.\n", undone=report.undone, path=shown(path))
    say(text)
    sys.exit(0)
