"""Embedding what has no vector yet, and all notes anew, as functions (``docs/api.md``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from regraft.api.embedding import limited_embedder
from regraft.api.given import kind_of, model_id, path_of, watch_of
from regraft.errors import WrongUsage
from regraft.kinds import Kind
from regraft.language import tr
from regraft.report.progress import Progress
from repair import systems
from repair.backfill.budget import Limits
from repair.backfill.report import BackfillReport
from repair.backfill.request import BackfillOptions, NewModel
from repair.backfill.run import backfill as run_backfill


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
    new = None if model is None or dimensions is None else NewModel(model_id("--model", model), dimensions)
    options = BackfillOptions(
        path=path_of(path),
        kind=kind_of(kind),
        bases=tuple(bases),
        dry_run=dry_run,
        limits=Limits(limit, max_requests, max_cost),
        probes=probe,
        command="backfill",
        new=new,
        dimensions=dimensions,
        all_projects=all_projects,
        config=None if config is None else path_of(config),
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
        path=path_of(path),
        kind=kind_of(kind),
        bases=(),
        dry_run=dry_run,
        limits=Limits(limit, max_requests, max_cost),
        probes=probe,
        command="rebuild",
        config=None if config is None else path_of(config),
    )
    return _filled(options, embedder, progress, confirm)


def _filled(
    options: BackfillOptions,
    embedder: str | None,
    progress: Progress | None,
    confirm: Callable[[BackfillReport], bool] | None,
) -> BackfillReport:
    return run_backfill(
        partial(limited_embedder, options.config, embedder, options.limits),
        options,
        fillers=systems.FILLERS,
        progress=watch_of(progress),
        show_plan=confirm or (lambda _: True),
    )
