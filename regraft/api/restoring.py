"""A new base with another model, of the same texts, as a function (``docs/api.md``)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from regraft.api.embedding import chosen_embedder
from regraft.api.given import base_name, kind_of, model_id, moment, path_of, watch_of
from regraft.embedders.settings import EmbedderSettings, ServerSettings
from regraft.errors import EmbedderUnnamed, ModelDiffers, WrongUsage
from regraft.kinds import Kind
from regraft.language import tr
from regraft.report.progress import Progress
from repair.backfill.report import EmbeddingReport, ScopeReport
from repair.backfill.unnamed import is_nowhere, stand_in, with_advice
from repair.cherry_v2.restore.filling import RestoreRequest, restored, stood_in, suggestion_of


def restore(
    path: str | Path,
    *,
    kind: Kind | str | None = None,
    base: str | None = None,
    embedder: str | None = None,
    config: str | Path | None = None,
    model: str | None = None,
    dimensions: int | None = None,
    name: str | None = None,
    dry_run: bool = False,
    now_ms: int | None = None,
    progress: Progress | None = None,
    confirm: Callable[[ScopeReport], bool] | None = None,
) -> EmbeddingReport:
    """Make a new base with another model of the texts of a base; options as of ``regraft restore``.

    Raises:
        Declined: ``confirm`` said no.
        RegraftError: as ``docs/errors.md`` has them.
    """
    name = base_name(name)
    place, of_kind, at_ms = path_of(path), kind_of(kind), moment(now_ms)
    config_path = None if config is None else path_of(config)

    def request(settings: EmbedderSettings, new_model: str, length: int | None) -> RestoreRequest:
        return RestoreRequest(
            path=place,
            settings=settings,
            model_id=new_model,
            dimensions=length,
            name=name,
            base=base,
            now_ms=at_ms,
            kind=of_kind,
            config=config_path,
        )

    try:
        settings = chosen_embedder(config_path, embedder, frozenset() if model is None else frozenset({model}))
    except EmbedderUnnamed as error:
        if not is_nowhere(error):
            raise
        need = stood_in(place, base, of_kind, model, dimensions)
        wanted = request(stand_in([str(need.model_id)]), str(need.model_id), need.dimensions)
        if not dry_run:
            raise with_advice(error, suggestion_of(wanted)) from error
    else:
        if dimensions is None and isinstance(settings, ServerSettings):
            dimensions = settings.dimensions
        wanted = request(settings, _model_of(settings, model), dimensions)
    return restored(wanted, dry_run=dry_run, progress=watch_of(progress), show_plan=confirm or (lambda _: True))


def _model_of(settings: EmbedderSettings, model: str | None) -> str:
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
