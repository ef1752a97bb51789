"""``regraft rescue``: bringing back what the application's own upgrade left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from regraft import api
from regraft.cli.changing import ChangeRequest, carry_out, change_options
from regraft.cli.options import PATH, mapped, model_options, salvage_option, time_of
from regraft.cli.output import reports_errors
from regraft.language import tr


@click.command()
@change_options
@click.option(
    "--v1", type=PATH, metavar="SOURCE", help=tr("Where v1's state is, if not in the profile: any v1 source.")
)
@model_options
@salvage_option
@click.option("--now", callback=time_of, metavar="TIME", help=tr("The run's time, ISO 8601 with Z. [default: now]"))
@reports_errors
def rescue(
    path: Path,
    v1: Path | None,
    map_model: tuple[str, ...],
    recreate_model: tuple[str, ...],
    salvage: bool,
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
    words: dict[str, Any] = {"map_model": mapped(map_model), "recreate_model": recreate_model, "salvage": salvage}
    carry_out(api.rescue, path, ChangeRequest(**options), v1=v1, now_ms=now, **words)
