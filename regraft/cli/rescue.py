"""``regraft rescue``: bringing back what the application's own upgrade left behind."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click

from regraft import clock
from regraft.cli.changing import ChangeRequest, change, change_options
from regraft.cli.options import PATH, model_options, model_word, time_of
from regraft.cli.output import reports_errors
from regraft.language import tr
from repair.cherry_v2 import rescue as rescuing


@click.command()
@change_options
@click.option(
    "--v1", type=PATH, metavar="SOURCE", help=tr("Where v1's state is, if not in the profile: any v1 source.")
)
@model_options
@click.option("--now", callback=time_of, metavar="TIME", help=tr("The run's time, ISO 8601 with Z. [default: now]"))
@reports_errors
def rescue(
    path: Path,
    v1: Path | None,
    map_model: tuple[str, ...],
    recreate_model: tuple[str, ...],
    now: int | None,
    **options: Any,
) -> None:
    """Bring back what the upgrade left behind in the v2 profile at PATH, from v1's files that are still there.

    Failed bases, folders that were not migrated, and bases whose index is gone or empty get their texts and vectors;
    bases and items keep their ids.

    \b
    Example:
      regraft rescue ~/.config/CherryStudio --dry-run
    """
    overrides = model_word(map_model, recreate_model)
    now_ms = clock.now_ms() if now is None else now
    with ExitStack() as keep:
        wanted = rescuing.RescueOptions(now_ms=now_ms, keep=keep, v1=v1, model_overrides=overrides)
        change("rescue", path, partial(rescuing.plan, options=wanted), ChangeRequest(**options))
