"""``regraft rebuild``: making derived vectors anew, all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from regraft.cli.backfill import fill
from regraft.cli.changing import change_options
from regraft.cli.embedding import embedder_options, limit_options
from regraft.cli.output import reports_errors
from regraft.errors import WrongUsage
from regraft.language import tr


@click.command()
@change_options
@embedder_options
@limit_options
@reports_errors
def rebuild(path: Path, **options: Any) -> None:
    """Make the vectors of all notes of the codex-mem database at PATH anew, with any model.

    The notes stay as they are, and so does every search by words. What was embedded stays, whatever stops the run; the
    next one goes on. The old vectors are kept until regraft undo, or regraft gc.

    \b
    Example:
      regraft rebuild ~/.codex-mem/codex-mem.db --dry-run
    """
    if options["bases"]:
        raise WrongUsage(
            problem=tr("--base: all vectors are made anew, those of every project"), hint=tr("leave it out")
        )
    fill("rebuild", path, options)
