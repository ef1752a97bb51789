"""``regraft gc``: removing what nothing reaches."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from checks.audit.findings import chosen_names
from regraft import clock
from regraft.cli.changing import Asked, change, change_options
from regraft.cli.options import only_option
from regraft.cli.output import reports_errors
from repair import systems
from repair.cherry_v2 import gc as collecting


@click.command()
@change_options
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=collecting.GRACE_DAYS,
    show_default=True,
    metavar="DAYS",
    help="How long trash, and what takes a run back, are kept.",
)
@click.option("--vacuum", is_flag=True, help="Give free space in index files back, where that pays.")
@click.option("--v1-leftovers", is_flag=True, help="Also vector files of v1 whose every vector is in v2.")
@only_option
@reports_errors
def gc(path: Path, grace: float, vacuum: bool, v1_leftovers: bool, only: tuple[str, ...], **options: Any) -> None:
    """Remove what nothing reaches from the store at PATH: vectors, texts and files.

    Files go to a dated trash below .regraft, where they are kept for some days; regraft undo brings them back.
    """
    names = chosen_names(only, systems.COLLECTED, "gc")
    wish = collecting.Wish(clock.now_ms(), grace, vacuum, v1_leftovers, names)
    change("gc", path, partial(systems.collect, wish=wish), Asked(**options))
