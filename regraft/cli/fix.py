"""``regraft fix``: what ``regraft check`` offers, in the right order, as one run."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click

from regraft import clock
from regraft.cli.changing import ChangeRequest, as_text, change_options, end_with
from regraft.cli.check import command_line
from regraft.cli.output import reports_errors
from repair import fix as fixing
from repair.changes.steps import Steps, run_steps


@click.command()
@change_options
@reports_errors
def fix(path: Path, **options: Any) -> None:
    """Do what regraft check offers for the store at PATH: upgrade, rescue, repair, reconcile and gc, in this order.

    One question is asked, and regraft undo takes all of it back. Nothing is embedded and nothing guessed: what is left
    is named at the end, with what to do about it.

    \b
    Example:
      regraft fix library --dry-run
    """
    asked = ChangeRequest(**options)
    with ExitStack() as keep:
        report = run_steps(
            "fix",
            path,
            Steps(
                planners=fixing.planners(clock.now_ms(), keep),
                remains=partial(fixing.remaining, command_line=partial(command_line, path, asked.kind)),
            ),
            kind=asked.of_kind(),
            bases=asked.bases,
            dry_run=asked.dry_run,
            progress=asked.progress(),
            show_plan=asked.agreed,
        )
        end_with(report, asked, as_text(report, verbose=asked.verbose > 0))
