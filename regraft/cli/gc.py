"""``regraft gc``: removing what nothing reaches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from regraft import api
from regraft.cli.changing import ChangeRequest, carry_out, change_options
from regraft.cli.options import now_option, only_option
from regraft.cli.output import reports_errors
from regraft.language import tr
from repair.options import GRACE_DAYS


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
@now_option
@only_option
@reports_errors
def gc(
    path: Path,
    grace: float,
    vacuum: bool,
    v1_leftovers: bool,
    now: int | None,
    only: tuple[str, ...],
    **options: Any,
) -> None:
    """Remove what nothing reaches from the store at PATH: vectors, texts and files.

    Files go to a dated trash below .regraft, where they are kept for some days; regraft undo brings them back.

    \b
    Example:
      regraft gc library --vacuum
    """
    more: dict[str, Any] = {"only": only, "grace": grace, "vacuum": vacuum, "v1_leftovers": v1_leftovers}
    more["now_ms"] = now
    carry_out(api.gc, path, ChangeRequest(**options), **more)
