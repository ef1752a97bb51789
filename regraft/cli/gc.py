"""``regraft gc``: removing what nothing reaches."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from checks.audit.findings import chosen_names
from regraft import clock
from regraft.cli.changing import ChangeRequest, change, change_options
from regraft.cli.options import only_option
from regraft.cli.output import reports_errors
from regraft.language import tr
from repair import systems
from repair.options import GRACE_DAYS, GcOptions


@click.command()
@change_options
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=GRACE_DAYS,
    show_default=True,
    metavar="DAYS",
    help=tr("How long trash, and what takes a run back, are kept."),
)
@click.option("--vacuum", is_flag=True, help=tr("Give free space in index files back, where that pays."))
@click.option("--v1-leftovers", is_flag=True, help=tr("Also vector files of v1 whose every vector is in v2."))
@only_option
@reports_errors
def gc(path: Path, grace: float, vacuum: bool, v1_leftovers: bool, only: tuple[str, ...], **options: Any) -> None:
    """Remove what nothing reaches from the store at PATH: vectors, texts and files.

    Files go to a dated trash below .regraft, where they are kept for some days; regraft undo brings them back.

    \b
    Example:
      regraft gc library --vacuum
    """
    names = chosen_names(only, systems.COLLECTED, "gc")
    wanted = GcOptions(now_ms=clock.now_ms(), grace=grace, vacuum=vacuum, v1_leftovers=v1_leftovers, only=names)
    change("gc", path, partial(systems.plan_gc, options=wanted), ChangeRequest(**options))
