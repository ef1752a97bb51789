"""``regraft upgrade``: older index layouts and library catalogs become the current ones, in place."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from regraft import clock
from regraft.cli.changing import ChangeRequest, change, change_options
from regraft.cli.options import model_options, model_word
from regraft.cli.output import reports_errors
from repair.cherry_v2 import upgrade as upgrading


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
    wanted = upgrading.UpgradeOptions(clock.now_ms(), model_word(map_model, recreate_model))
    change("upgrade", path, partial(upgrading.plan, options=wanted), ChangeRequest(**options))
