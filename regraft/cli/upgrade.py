"""``regraft upgrade``: older index layouts and library catalogs become the current ones, in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from regraft import api
from regraft.cli.changing import ChangeRequest, carry_out, change_options
from regraft.cli.options import mapped, model_options
from regraft.cli.output import reports_errors


@click.command()
@change_options
@model_options
@reports_errors
def upgrade(path: Path, map_model: tuple[str, ...], recreate_model: tuple[str, ...], **options: Any) -> None:
    """Bring older index files and catalogs in the store at PATH to the current layout, every vector kept.

    These are files of version 1, half-applied upgrades, the tables of preview builds, and the catalog of a library
    that an earlier regraft wrote. The old files are kept, so that regraft undo brings them back byte for byte.

    \b
    Example:
      regraft upgrade library
    """
    words: dict[str, Any] = {"map_model": mapped(map_model), "recreate_model": recreate_model}
    carry_out(api.upgrade, path, ChangeRequest(**options), **words)
