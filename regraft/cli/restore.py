"""``regraft restore``: a new base with a new model out of an old one's texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from regraft import api
from regraft.cli.backfill import scope_lines, sent_lines, suggestion_lines
from regraft.cli.changing import ChangeRequest, as_text, change_options, end_with
from regraft.cli.embedding import embedder_options
from regraft.cli.options import time_of
from regraft.cli.output import reports_errors
from regraft.errors import WrongUsage
from regraft.language import tr
from regraft.text import shown_lines


@click.command()
@change_options
@embedder_options
@click.option(
    "--model", metavar="ID", help=tr("Its id in the catalog, provider::model.  [default: of the configuration]")
)
@click.option(
    "--dimensions", type=click.IntRange(1, 65536), metavar="N", help=tr("Of its vectors.  [default: as they come]")
)
@click.option("--name", metavar="NAME", help=tr("What the new base is called.  [default: as the old one]"))
@click.option("--now", callback=time_of, metavar="TIME", help=tr("The run's time, ISO 8601 with Z.  [default: now]"))
@reports_errors
def restore(path: Path, embedder_name: str | None, config_path: Path | None, **options: Any) -> None:
    """Make a new base with another model of the texts of the base at PATH; the old one stays as it is.

    PATH is a base's folder, or a library or profile with --base. All texts are embedded anew; what was embedded is
    kept, whatever stops the run, and the next one goes on.

    \b
    Example:
      regraft restore library --base Handbook --model openai::text-embedding-3-small
    """
    names = ("model", "dimensions", "name", "now")
    model, dimensions, name, now = (options.pop(key) for key in names)
    asked = ChangeRequest(**options)
    if len(asked.bases) > 1:
        raise WrongUsage(problem=tr("one base is restored at a time"), hint=tr("give --base once"))
    report = api.restore(
        path,
        kind=asked.kind,
        base=next(iter(asked.bases), None),
        embedder=embedder_name,
        config=config_path,
        model=model,
        dimensions=dimensions,
        name=name,
        dry_run=asked.dry_run,
        now_ms=now,
        progress=asked.progress(),
        confirm=lambda scope: asked.confirmed(scope_lines(scope)),
    )
    verbose = asked.verbose > 0
    text = shown_lines(sent_lines(report, verbose=verbose)) + as_text(report, verbose=verbose)
    end_with(report, asked, text + shown_lines(suggestion_lines(report.suggestion)))
