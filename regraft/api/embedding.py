"""The commands that embed texts, as functions, and their choice of an embedder (``docs/embedders.md``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from regraft.api.arguments import (
    agree,
    list_sources,
    merge_options,
    parse_base_name,
    parse_model_id,
    progress_or_silent,
    time_or_now,
)
from regraft.api.changes import reconcile_without_embedder
from regraft.disk import file_paths
from regraft.embedders import config
from regraft.embedders.settings import EmbedderSettings, ServerSettings
from regraft.errors import EmbedderUnnamed, ModelDiffers, SidecarUnfit, SourceNotFound, WrongUsage
from regraft.kinds import V2_STORES, Kind
from regraft.language import format_count, join_list, tr
from regraft.options import (
    BackfillOptions,
    RebuildOptions,
    ReconcileOptions,
    RestoreOptions,
    SyncOptions,
)
from regraft.report.progress import Progress
from repair import systems
from repair.angel_memory import reconcile as angel_memory
from repair.changes.run import ChangeReport, run_command
from repair.changes.store import open_for_change
from repair.cherry_v2 import sync as syncing
from repair.cherry_v2.item_paths import MovedRoot
from repair.cherry_v2.restore import RestoreRequest, make_suggestion, restore_with_vectors, suggest_model
from repair.cherry_v2.sync.base import SyncRequest
from repair.cherry_v2.sync.sources import SourceReader, parse_extractors
from repair.embedding import scope
from repair.embedding.budget import Limits
from repair.embedding.report import BackfillReport, EmbeddingReport, ScopeReport
from repair.embedding.run import EmbedderSource
from repair.embedding.run import backfill as run_backfill
from repair.embedding.scope import Filler, NewModel
from repair.embedding.survey import add_suggestion, is_unconfigured, unnamed_embedder


def choose_priced_embedder(
    path: Path | None, name: str | None, limits: Limits, models: frozenset[str]
) -> EmbedderSettings:
    """Choose an embedder as :func:`choose_embedder` does; if ``limits`` limit the costs, it must have a price.

    Raises:
        WrongUsage: costs are limited, but the configuration has no price.
    """
    settings = choose_embedder(path, name, models)
    if limits.cost is not None and settings.price_per_million_tokens is None:
        problem = tr("--max-cost needs the price of embedder {name}", name=settings.name)
        raise WrongUsage(problem=problem, hint=tr("write price_per_million_tokens into the configuration"))
    return settings


def choose_embedder(path: Path | None, name: str | None, models: frozenset[str]) -> EmbedderSettings:
    """Choose an embedder of the configuration.

    Args:
        path: the configuration file; None: ``regraft.yaml``.
        name: the embedder's name; None: the only embedder, or the only one that has one of the models.
        models: ids of suitable models.

    Raises:
        EmbedderUnknown: no embedder has this name.
        EmbedderUnnamed: no name is given, and not exactly one embedder fits.
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
        problem = tr("it has no embedders") if found.there else tr("the file does not exist")
        known = tr("after adding it there (regraft explain embedders)")
    else:
        problem = tr("{embedders} of {every} fit", embedders=format_count(len(fitting), "embedder"), every=len(every))
        known = tr("one of {sorted}", sorted=join_list(sorted(one.name for one in fitting or every)))
    raise EmbedderUnnamed(path=found.path, problem=problem, known=known, count=len(every))


def backfill(
    path: str | Path,
    options: BackfillOptions | None = None,
    *,
    progress: Progress | None = None,
    confirm: Callable[[BackfillReport], bool] | None = None,
    **fields: Any,
) -> BackfillReport:
    """Embed the texts of a store that have no vector, or one that no search can use.

    Raises:
        Declined: ``confirm`` returned False.
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(BackfillOptions, options, fields)
    return backfill_from(path, options, None, progress=progress, confirm=confirm)


def backfill_from(
    path: str | Path,
    options: BackfillOptions,
    source: EmbedderSource | None,
    *,
    progress: Progress | None = None,
    confirm: Callable[[BackfillReport], bool] | None = None,
) -> BackfillReport:
    """Do what :func:`backfill` does, with the vectors of ``source``; None: with an embedder of the configuration."""
    if options.all_projects and options.bases:
        raise WrongUsage(problem=tr("--all-projects and --base exclude each other"), hint=tr("use one of them"))
    new = None
    if options.model is not None:
        model = parse_model_id("--model", options.model)
        if options.dimensions is None:
            raise WrongUsage(problem=tr("--model needs the number of dimensions"), hint=tr("also give --dimensions"))
        new = NewModel(model, options.dimensions)
    more: dict[str, Any] = {
        "new": new,
        "dimensions": options.dimensions,
        "all_projects": options.all_projects,
        "reuse": list_sources(options),
    }
    return _fill("backfill", path, options, source, progress, confirm, **more)


def rebuild(
    path: str | Path,
    options: RebuildOptions | None = None,
    *,
    progress: Progress | None = None,
    confirm: Callable[[BackfillReport], bool] | None = None,
    **fields: Any,
) -> BackfillReport:
    """Embed all notes of a codex-mem database again, with any model.

    Raises:
        Declined: ``confirm`` returned False.
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(RebuildOptions, options, fields)
    if options.bases:
        raise WrongUsage(problem=tr("--base: rebuild embeds the notes of every project"), hint=tr("leave it out"))
    return _fill("rebuild", path, options, None, progress, confirm)


def _fill(
    command: str,
    path: str | Path,
    options: RebuildOptions,
    source: EmbedderSource | None,
    progress: Progress | None,
    confirm: Callable[[BackfillReport], bool] | None,
    fillers: Mapping[Kind, Filler] | None = None,
    **more: Any,
) -> BackfillReport:
    """Embed the texts of a store for a command.

    Args:
        command: the name of the command, for the report.
        path: the store.
        options: the user's options.
        source: where vectors come from; None: the configured embedder.
        progress: receives the progress.
        confirm: gets the plan; False stops the run.
        fillers: how each kind of store is filled; None: as ``backfill`` does.
        more: further fields of the options of a backfill.
    """
    limits = Limits(options.limit, options.max_requests, options.max_cost)
    wanted = scope.BackfillOptions(
        path=Path(path),
        kind=options.kind,
        bases=options.bases,
        dry_run=options.dry_run,
        recovers=source is not None and source.recovers,
        limits=limits,
        probes=options.probe,
        command=command,
        config=options.config,
        **more,
    )
    if source is None:
        source = EmbedderSource(choose=partial(choose_priced_embedder, options.config, options.embedder, limits))
    return run_backfill(
        source.choose,
        wanted,
        fillers=systems.fillers() if fillers is None else fillers,
        progress=progress_or_silent(progress),
        show_plan=confirm or agree,
        open_embedder=source.open_embedder,
        on_survey=source.on_survey,
        choose_sample=source.choose_sample,
    )


def sync(
    path: str | Path,
    options: SyncOptions | None = None,
    *,
    progress: Progress | None = None,
    confirm: Callable[[Any], bool] | None = None,
    **fields: Any,
) -> ChangeReport | BackfillReport:
    """Update bases from their original files: those changed, renamed, added and, with ``delete``, removed.

    New texts are embedded if the configuration has an embedder for the model of a base, unless ``embed`` is False.
    ``confirm`` gets what is returned, as a plan.

    Raises:
        Declined: ``confirm`` returned False.
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(SyncOptions, options, fields)
    sources = tuple(_existing_path(source, "--source") for source in options.sources)
    roots = [MovedRoot.of(old, new) for old, new in options.moved.items()]
    moved = tuple(MovedRoot.of(one.old, str(_existing_path(Path(one.new), "--moved"))) for one in roots)
    extractors = parse_extractors(options.extractor)
    with ExitStack() as keep:
        wanted = SyncRequest(
            now_ms=time_or_now(options.now_ms),
            reader=SourceReader(extractors, keep),
            sources=sources,
            moved=moved,
            delete=options.delete,
            progress=progress_or_silent(progress),
        )
        if options.embed:
            filler = syncing.SyncFiller(wanted)
            try:
                more: dict[str, Any] = {"fillers": dict.fromkeys(V2_STORES, filler), "reuse": list_sources(options)}
                return _fill("sync", path, options, None, progress, confirm, **more)
            except (EmbedderUnnamed, ModelDiffers, syncing.NothingToEmbed):
                # As far as that goes without an embedder.
                if options.embedder is not None:
                    raise
        return run_command(
            "sync",
            Path(path),
            partial(syncing.plan, options=wanted),
            kind=options.kind,
            bases=options.bases,
            dry_run=options.dry_run,
            progress=progress_or_silent(progress),
            show_plan=confirm or agree,
        )


def _existing_path(path: Path, option: str) -> Path:
    """Make a path absolute, with ``~`` expanded; ``option`` is the command line option that the error names.

    Raises:
        SourceNotFound: it does not exist.
        WrongUsage: it is not a valid path.
    """
    try:
        str(path).encode()
        found = Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 - links are not resolved
        is_there = file_paths.exists(found)
    except (ValueError, RuntimeError) as error:
        problem = tr("{option}: the path is not valid ({error})", option=option, error=error)
        raise WrongUsage(problem=problem, hint=tr("give another path")) from error
    if not is_there:
        raise SourceNotFound(path=path)
    return found


def restore(
    path: str | Path,
    options: RestoreOptions | None = None,
    *,
    progress: Progress | None = None,
    confirm: Callable[[ScopeReport], bool] | None = None,
    **fields: Any,
) -> EmbeddingReport:
    """Make a new base from the texts of a base, embedded with another model.

    Raises:
        Declined: ``confirm`` returned False.
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(RestoreOptions, options, fields)
    name, now_ms = parse_base_name(options.name), time_or_now(options.now_ms)
    model, dimensions = options.model, options.dimensions
    reuse = list_sources(options)

    def make_request(settings: EmbedderSettings, model_id: str, dimensions: int | None) -> RestoreRequest:
        """Make the request for the new base; the rest comes from the arguments of the command.

        ``dimensions`` None: those of the embedder's vectors.
        """
        return RestoreRequest(
            path=Path(path),
            settings=settings,
            model_id=model_id,
            dimensions=dimensions,
            name=name,
            base=options.base,
            now_ms=now_ms,
            kind=options.kind,
            config=options.config,
            reuse=reuse,
        )

    try:
        models = frozenset() if model is None else frozenset({model})
        settings = choose_embedder(options.config, options.embedder, models)
    except EmbedderUnnamed as error:
        if not is_unconfigured(error):
            raise
        need = suggest_model(Path(path), options.base, options.kind, model, dimensions)
        wanted = make_request(unnamed_embedder([str(need.model_id)]), str(need.model_id), need.dimensions)
        if not options.dry_run:
            raise add_suggestion(error, make_suggestion(wanted)) from error
    else:
        if dimensions is None and isinstance(settings, ServerSettings):
            dimensions = settings.dimensions
        wanted = make_request(settings, _new_model_id(settings, model), dimensions)
    return restore_with_vectors(
        wanted, dry_run=options.dry_run, progress=progress_or_silent(progress), show_plan=confirm or agree
    )


def _new_model_id(settings: EmbedderSettings, model: str | None) -> str:
    """Return the id under which the catalog lists the new model: ``model``, or the only id in the embedder's settings.

    Raises:
        WrongUsage: the settings have not exactly one id.
        ModelDiffers: the embedder has another model.
    """
    if model is None:
        if len(settings.model_ids) == 1:
            return settings.model_ids[0]
        problem = tr("the id of the model of embedder {name} in the catalog is unknown", name=settings.name)
        raise WrongUsage(
            problem=problem,
            hint=tr("give --model provider::model, or exactly one id under model_ids in the configuration"),
        )
    tidy = parse_model_id("--model", model)
    if not settings.serves(tidy):
        raise ModelDiffers(embedder=settings.name, model=settings.model, reason=tr("--model says {tidy}", tidy=tidy))
    return tidy


def reconcile(
    path: str | Path,
    options: ReconcileOptions | None = None,
    *,
    progress: Progress | None = None,
    confirm: Callable[[Any], bool] | None = None,
    **fields: Any,
) -> ChangeReport | BackfillReport | EmbeddingReport:
    """Update the indexes of bases to match their catalog, codex-mem's vectors its notes, and rsclaw's caches its data.

    Notes of codex-mem and AngelMemory that lack a vector are embedded only with ``embed``; without it nothing is sent.
    An orphan that could be listed or attached again is deleted only if ``only`` names its finding. ``confirm`` gets
    what is returned, as a plan.

    Raises:
        Declined: ``confirm`` returned False.
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(ReconcileOptions, options, fields)
    if options.embed:
        with open_for_change(Path(path), options.kind, "reconcile", options.bases) as store:
            kind = store.found.kind
        _refuse_unused(kind, options)
        if kind is Kind.ANGEL_MEMORY:
            wanted = angel_memory.AngelReconcileOptions(
                path=Path(path),
                kind=options.kind,
                dry_run=options.dry_run,
                provider=options.provider,
                probes=options.probe,
            )
            return angel_memory.reconcile(
                partial(choose_embedder, options.config, options.embedder),
                wanted,
                progress=progress_or_silent(progress),
                show_plan=confirm or agree,
            )
        if kind is Kind.CODEX_MEM and not options.only:
            try:
                return _fill("reconcile", path, options, None, progress, confirm)
            except (EmbedderUnnamed, ModelDiffers, SidecarUnfit):
                # As far as that goes without an embedder.
                if options.embedder is not None:
                    raise
    return reconcile_without_embedder(path, options, progress, confirm)


def _refuse_unused(kind: Kind, options: ReconcileOptions) -> None:
    """Refuse options of ``reconcile`` that have no meaning for a kind of store.

    Raises:
        WrongUsage
    """
    limits = {"--limit": options.limit, "--max-requests": options.max_requests, "--max-cost": options.max_cost}
    embedder = {"--embedder": options.embedder, "--config": options.config, "--no-probe": not options.probe}
    leave_out = tr("leave it out")

    def refuse(given: Mapping[str, object], problem: str, hint: str) -> None:
        """Raise WrongUsage if one of the options in ``given`` has a value."""
        for option, value in given.items():
            if value not in (None, False, ()):
                raise WrongUsage(problem=f"{option}: {problem}", hint=hint)

    if kind in (Kind.ANGEL_MEMORY, Kind.CODEX_MEM):
        refuse({"--now": options.now_ms}, tr("no change depends on ages in such a store"), leave_out)
    if kind is Kind.ANGEL_MEMORY:
        whole = tr("a collection is always rebuilt as a whole")
        refuse({"--only": options.only}, whole, leave_out)
        refuse(limits, whole, tr("see the estimate of regraft reconcile --dry-run"))
        return
    refuse({"--provider": options.provider}, tr("only AngelMemory has providers"), leave_out)
    if kind is Kind.CODEX_MEM and not options.only:
        return
    problem = tr("indexes are updated without an embedder")
    hint = tr("regraft backfill embeds texts that have no vector")
    if kind is Kind.RSCLAW:
        problem, hint = tr("nothing is embedded: outdated indexes go to the trash, and rsclaw rebuilds them"), leave_out
    refuse({**limits, **embedder}, problem, hint)
