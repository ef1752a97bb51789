"""``regraft restore``: a new base with a new model out of an old one's texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from regraft import clock
from regraft.api.embedding import chosen_embedder
from regraft.api.given import model_id
from regraft.cli.backfill import scope_lines, sent_lines, suggestion_lines
from regraft.cli.changing import ChangeRequest, as_text, change_options, end_with
from regraft.cli.embedding import embedder_options
from regraft.cli.options import time_of
from regraft.cli.output import reports_errors
from regraft.embedders.settings import EmbedderSettings, ServerSettings
from regraft.errors import EmbedderUnnamed, ModelDiffers, WrongUsage
from regraft.language import tr
from regraft.text import shown_lines, trim
from repair.backfill.unnamed import is_nowhere, stand_in, with_advice
from repair.cherry_v2.restore.filling import RestoreRequest, restored, stood_in, suggestion_of


def _name(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not trim(value):
        raise click.BadParameter(tr("a base's name cannot be blank"))
    return None if value is None else trim(value)


@click.command()
@change_options
@embedder_options
@click.option(
    "--model", metavar="ID", help=tr("Its id in the catalog, provider::model.  [default: of the configuration]")
)
@click.option(
    "--dimensions", type=click.IntRange(1, 65536), metavar="N", help=tr("Of its vectors.  [default: as they come]")
)
@click.option(
    "--name", callback=_name, metavar="NAME", help=tr("What the new base is called.  [default: as the old one]")
)
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
    models = frozenset() if model is None else frozenset({model})
    base, kind, now_ms = next(iter(asked.bases), None), asked.of_kind(), now or clock.now_ms()

    def request(settings: EmbedderSettings, model_id: str, dimensions: int | None) -> RestoreRequest:
        return RestoreRequest(
            path=path,
            settings=settings,
            model_id=model_id,
            dimensions=dimensions,
            name=name,
            base=base,
            now_ms=now_ms,
            kind=kind,
            config=config_path,
        )

    try:
        settings = chosen_embedder(config_path, embedder_name, models)
    except EmbedderUnnamed as error:
        if not is_nowhere(error):
            raise
        need = stood_in(path, base, kind, model, dimensions)
        wanted = request(stand_in([str(need.model_id)]), str(need.model_id), need.dimensions)
        if not asked.dry_run:
            raise with_advice(error, suggestion_of(wanted)) from error
    else:
        if dimensions is None and isinstance(settings, ServerSettings):
            dimensions = settings.dimensions
        wanted = request(settings, _model_id(settings, model), dimensions)
    report = restored(
        wanted,
        dry_run=asked.dry_run,
        progress=asked.progress(),
        show_plan=lambda scope: asked.confirmed(scope_lines(scope)),
    )
    verbose = asked.verbose > 0
    text = shown_lines(sent_lines(report, verbose=verbose)) + as_text(report, verbose=verbose)
    end_with(report, asked, text + shown_lines(suggestion_lines(report.suggestion)))


def _model_id(settings: EmbedderSettings, model: str | None) -> str:
    """Return the id of the new model in the catalog."""
    if model is None:
        if len(settings.model_ids) == 1:
            return settings.model_ids[0]
        problem = tr("nobody says under which id the catalog has the model of embedder {name}", name=settings.name)
        raise WrongUsage(
            problem=problem, hint=tr("give --model provider::model, or one model_ids in the configuration")
        )
    tidy = model_id("--model", model)
    if not settings.serves(tidy):
        raise ModelDiffers(embedder=settings.name, model=settings.model, reason=tr("--model says {tidy}", tidy=tidy))
    return tidy
