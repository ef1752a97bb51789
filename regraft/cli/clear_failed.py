"""``regraft clear-failed``: having notes that an embedder refused tried again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from regraft import api
from regraft.cli.changing import ChangeRequest, carry_out, change_options
from regraft.cli.output import reports_errors


@click.command(name="clear-failed")
@change_options
@reports_errors
def clear_failed(path: Path, **options: Any) -> None:
    """Mark the notes as pending that the embedder of the codex-mem database at PATH refused.

    regraft backfill tries them again. Notes stay as they are: only what is said of their vectors changes.

    \b
    Example:
      regraft clear-failed ~/.codex-mem/codex-mem.db
    """
    carry_out(api.clear_failed, path, ChangeRequest(**options))
