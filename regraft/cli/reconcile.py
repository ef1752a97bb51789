"""``regraft reconcile``: making the index follow the catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from regraft.cli.changing import Asked, change, change_options
from regraft.cli.output import reports_errors
from repair.systems import follow


@click.command()
@change_options
@reports_errors
def reconcile(path: Path, **options: Any) -> None:
    """Make the index of each base in the store at PATH follow the catalog.

    Materials without an item go, with all that only they need; a path that differs becomes that of the item. What the
    index lacks is listed.
    """
    change("reconcile", path, follow, Asked(**options))
