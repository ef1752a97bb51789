"""``regraft repair``: mending what can be derived from other data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from regraft import api
from regraft.cli.changing import ChangeRequest, carry_out, change_options
from regraft.cli.options import only_option
from regraft.cli.output import reports_errors
from regraft.language import tr


@click.command()
@change_options
@only_option
@click.option(
    "--model",
    metavar="ID",
    help=tr("Of bases with vectors and without a model: the model of these vectors, provider::model."),
)
@click.option(
    "--adopt",
    is_flag=True,
    help=tr("With --only index.orphan or material.orphan: list bases or items again that have no row in the catalog."),
)
@click.option(
    "--salvage",
    is_flag=True,
    help=tr("Write damaged index files anew from what is left in them and proves itself."),
)
@click.option(
    "--from",
    "source",
    metavar="SOURCE",
    type=click.Path(path_type=Path),
    help=tr("Take missing texts, vectors and indexes from another copy: v1 data, a library, a pack, a v2 profile."),
)
@reports_errors
def repair(path: Path, **options: Any) -> None:
    """Mend what regraft check finds in the store at PATH, where other data prove what is right.

    Nothing is guessed: what cannot be derived stays as it is and is said. Vectors that could still be right are kept;
    those that never can be are deleted, to be embedded anew. regraft undo takes a run back.

    \b
    Example:
      regraft repair library --dry-run
    """
    given = {name: options.pop(name) for name in ("only", "model", "adopt", "salvage", "source")}
    carry_out(api.repair, path, ChangeRequest(**options), **given)
