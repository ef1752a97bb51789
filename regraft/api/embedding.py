"""Embedders of the configuration, as commands and programs choose them (``docs/embedders.md``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from regraft.api.arguments import as_path, parse_base_name, parse_kind, parse_model_id, progress_or_silent, time_or_now
from regraft.embedders import config
from regraft.embedders.settings import EmbedderSettings, ServerSettings
from regraft.errors import EmbedderUnnamed, ModelDiffers, WrongUsage
from regraft.kinds import Kind
from regraft.language import format_count, join_list, tr
from regraft.report.progress import Progress
from repair import systems
from repair.cherry_v2.restore.filling import RestoreRequest, make_suggestion, restore_with_vectors, suggest_model
from repair.embedding.budget import Limits
from repair.embedding.report import BackfillReport, EmbeddingReport, ScopeReport
from repair.embedding.run import backfill as run_backfill
from repair.embedding.scope import BackfillOptions, NewModel
from repair.embedding.survey import add_suggestion, is_unconfigured, unnamed_embedder


def choose_priced_embedder(
    path: Path | None, name: str | None, limits: Limits, models: frozenset[str]
) -> EmbedderSettings:
    """Return the settings of the embedder that is meant, which has a price where one is needed; see
    :func:`chosen_embedder`.

    Raises:
        WrongUsage: costs are limited, and nobody knows the price.
    """
    settings = choose_embedder(path, name, models)
    if limits.cost is not None and settings.price_per_million_tokens is None:
        problem = tr("--max-cost without a price of embedder {name}", name=settings.name)
        raise WrongUsage(problem=problem, hint=tr("write price_per_million_tokens into the configuration"))
    return settings


def choose_embedder(path: Path | None, name: str | None, models: frozenset[str]) -> EmbedderSettings:
    """Return the settings of the embedder that is meant.

    Args:
        path: the configuration file; None: ``regraft.yaml``.
        name: what the user calls it; None: the only one that there is, or the only one that is one of the models.
        models: ids of the models that would do.

    Raises:
        EmbedderUnknown: there is none of this name.
        EmbedderUnnamed: none is named, and it is not clear which one is meant.
        ConfigInvalid, SourceNotFound, SourceUnreadable: the file cannot be used.
    """
    found = config.load_config(path)
    if name is not None:
        return found.embedder(name)
    every = list(found.embedders.values())
    fitting = [one for one in every if any(map(one.serves, models))]
    possible = every if len(every) == 1 else fitting
    if len(possible) == 1:
        return possible[0]
    if not every:
        problem = tr("it names no embedder") if found.there else tr("there is no such file, which names embedders")
        known = tr("which has to be written there first (regraft explain embedders)")
    else:
        problem = tr(
            "{embedders} of {every} could be meant", embedders=format_count(len(fitting), "embedder"), every=len(every)
        )
        known = tr("one of {sorted}", sorted=join_list(sorted(one.name for one in fitting or every)))
    raise EmbedderUnnamed(path=found.path, problem=problem, known=known, count=len(every))


# Embedding what has no vector yet, and all notes anew, as functions (``docs/api.md``).


def backfill(
    path: str | Path,
    *,
    kind: Kind | str | None = None,
    bases: Sequence[str] = (),
    embedder: str | None = None,
    config: str | Path | None = None,
    model: str | None = None,
    dimensions: int | None = None,
    all_projects: bool = False,
    limit: int | None = None,
    max_requests: int | None = None,
    max_cost: float | None = None,
    probe: bool = True,
    dry_run: bool = False,
    progress: Progress | None = None,
    confirm: Callable[[BackfillReport], bool] | None = None,
) -> BackfillReport:
    """Embed what has no vector yet, and nothing else; options as of ``regraft backfill``.

    Raises:
        Declined: ``confirm`` said no.
        RegraftError: as ``docs/errors.md`` has them.
    """
    if (model is None) != (dimensions is None):
        raise WrongUsage(problem=tr("--model says nothing of its dimensions"), hint=tr("give --dimensions too"))
    new = None if model is None or dimensions is None else NewModel(parse_model_id("--model", model), dimensions)
    options = BackfillOptions(
        path=as_path(path),
        kind=parse_kind(kind),
        bases=tuple(bases),
        dry_run=dry_run,
        limits=Limits(limit, max_requests, max_cost),
        probes=probe,
        command="backfill",
        new=new,
        dimensions=dimensions,
        all_projects=all_projects,
        config=None if config is None else as_path(config),
    )
    return _filled(options, embedder, progress, confirm)


def rebuild(
    path: str | Path,
    *,
    kind: Kind | str | None = None,
    embedder: str | None = None,
    config: str | Path | None = None,
    limit: int | None = None,
    max_requests: int | None = None,
    max_cost: float | None = None,
    probe: bool = True,
    dry_run: bool = False,
    progress: Progress | None = None,
    confirm: Callable[[BackfillReport], bool] | None = None,
) -> BackfillReport:
    """Make the vectors of all notes of codex-mem anew, with any model; options as of ``regraft rebuild``.

    Raises:
        Declined: ``confirm`` said no.
        RegraftError: as ``docs/errors.md`` has them.
    """
    options = BackfillOptions(
        path=as_path(path),
        kind=parse_kind(kind),
        bases=(),
        dry_run=dry_run,
        limits=Limits(limit, max_requests, max_cost),
        probes=probe,
        command="rebuild",
        config=None if config is None else as_path(config),
    )
    return _filled(options, embedder, progress, confirm)


def _filled(
    options: BackfillOptions,
    embedder: str | None,
    progress: Progress | None,
    confirm: Callable[[BackfillReport], bool] | None,
) -> BackfillReport:
    return run_backfill(
        partial(choose_priced_embedder, options.config, embedder, options.limits),
        options,
        fillers=systems.fillers(),
        progress=progress_or_silent(progress),
        show_plan=confirm or (lambda _: True),
    )


# A new base with another model, of the same texts, as a function (``docs/api.md``).


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
    name = parse_base_name(name)
    place, of_kind, at_ms = as_path(path), parse_kind(kind), time_or_now(now_ms)
    config_path = None if config is None else as_path(config)

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
        settings = choose_embedder(config_path, embedder, frozenset() if model is None else frozenset({model}))
    except EmbedderUnnamed as error:
        if not is_unconfigured(error):
            raise
        need = suggest_model(place, base, of_kind, model, dimensions)
        wanted = request(unnamed_embedder([str(need.model_id)]), str(need.model_id), need.dimensions)
        if not dry_run:
            raise add_suggestion(error, make_suggestion(wanted)) from error
    else:
        if dimensions is None and isinstance(settings, ServerSettings):
            dimensions = settings.dimensions
        wanted = request(settings, _model_of(settings, model), dimensions)
    return restore_with_vectors(
        wanted, dry_run=dry_run, progress=progress_or_silent(progress), show_plan=confirm or (lambda _: True)
    )


def _model_of(settings: EmbedderSettings, model: str | None) -> str:
    """Return the id of the new model in the catalog."""
    if model is None:
        if len(settings.model_ids) == 1:
            return settings.model_ids[0]
        problem = tr("nobody says under which id the catalog has the model of embedder {name}", name=settings.name)
        raise WrongUsage(
            problem=problem, hint=tr("give --model provider::model, or one model_ids in the configuration")
        )
    tidy = parse_model_id("--model", model)
    if not settings.serves(tidy):
        raise ModelDiffers(embedder=settings.name, model=settings.model, reason=tr("--model says {tidy}", tidy=tidy))
    return tidy
