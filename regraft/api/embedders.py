"""Which embedders a configuration has, for which bases they are, and whether they answer (``docs/embedders.md``)."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from checks import systems as audits
from regraft import embedders
from regraft.api.arguments import merge_options
from regraft.disk import durable, writable
from regraft.embedders import ServerFailing, TextsRejected, config
from regraft.embedders import settings as embedders_settings
from regraft.embedders.settings import (
    PROVIDERS,
    EmbedderSettings,
    LocalSettings,
    ModelNeed,
    ServerSettings,
    make_snippet,
)
from regraft.errors import NotChanged, RegraftError, WrongUsage
from regraft.kinds import KIND_NAMES, Kind
from regraft.language import tr
from regraft.options import EmbeddersOptions
from regraft.report.document import Report, Run
from regraft.stores.locate import open_store
from regraft.text import path_text, printable
from repair import systems
from repair.changes.store import Store
from repair.embedding import scope
from repair.embedding.survey import needed_models

#: What is sent to see whether an embedder answers.
_TEXTS = ("the quick brown fox", "敏捷的棕色狐狸")
#: So far a vector's length may be from 1 to be called that.
_NEARLY = 1e-3


class ListedEmbedder(msgspec.Struct, frozen=True, kw_only=True):
    """An embedder of the configuration, and the bases of the store that have its model.

    ``place`` is the URL of its server, or the path of its model; ``dimensions`` None: the model's own number.
    """

    name: str
    provider: str
    model: str
    model_ids: list[str]
    place: str
    dimensions: int | None
    bases: list[str]


class NeededModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that bases of the store have, and the names of the embedders that have it."""

    model_id: str | None
    dimensions: int | None
    bases: list[str]
    embedders: list[str]


class TestedEmbedder(msgspec.Struct, frozen=True, kw_only=True):
    """The result of embedding two short texts; ``problem`` None: the embedder returned vectors."""

    name: str
    dimensions: int | None
    seconds: float
    unit_length: bool | None
    tokens: int | None
    code: str | None
    problem: str | None


class EmbeddersReport(Report, kw_only=True):
    """The embedders of a configuration; ``snippet`` is a suggested configuration for models that no embedder has.

    ``there``: whether the configuration file exists; ``written``: whether this run has created it.
    """

    config: str
    there: bool
    written: bool
    embedders: list[ListedEmbedder]
    models: list[NeededModel]
    tested: list[TestedEmbedder]
    snippet: str


def list_embedders(
    path: str | Path | None = None, options: EmbeddersOptions | None = None, **fields: Any
) -> EmbeddersReport:
    """List the embedders of the configuration, and the models that the bases of a store need.

    Without a path, only the configuration is listed.

    Raises:
        EmbedderUnknown: ``test`` names an embedder that is not in the configuration.
        WrongUsage: ``write``, but the file exists.
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(EmbeddersOptions, options, fields)
    run = Run(command="embedders", source=None if path is None else Path(path))
    needs = [] if path is None else _list_needs(Path(path), options.kind, options.bases, run)
    if options.write:
        _write_new_config(options.config, make_snippet(needs))
    found = _load_config(options.config)
    every = list(found.embedders.values())
    lacking = [one for one in needs if not any(_fits(settings, one) for settings in every)]
    tested = []
    if options.test:
        meant = every if options.test is True else [found.embedder(options.test)]
        tested = [_test_embedder(settings) for settings in meant]
    run.end()
    return EmbeddersReport(
        head=run.head(),
        config=path_text(found.path),
        there=found.there,
        written=options.write,
        embedders=[_describe_embedder(settings, needs) for settings in every],
        models=_group_needs(needs, every),
        tested=tested,
        snippet=make_snippet(lacking or needs),
    )


def _load_config(path: Path | None) -> config.Config:
    """Read a configuration file (None: the default one); a file that does not exist has no embedders."""
    if path is not None and not path.exists():
        return config.Config(path)
    return config.load_config(path)


def _list_needs(path: Path, kind: Kind | None, bases: tuple[str, ...], run: Run) -> list[ModelNeed]:
    """List the model and the vector length that each base of a store needs; record the kind of the store in ``run``.

    Raises:
        NotChanged: the store has no bases that an embedder fills.
    """
    with open_store(path, kind) as found:
        run.source_kind = found.kind.value
        if found.kind is Kind.ANGEL_MEMORY:
            return []
        filler = systems.fillers().get(found.kind)
        if filler is None or found.is_archive:
            advice = (
                tr("extract it first") if filler is not None else tr("migrate it to a library with regraft migrate")
            )
            raise NotChanged(path=path, what=KIND_NAMES[found.kind], command="backfill", advice=advice)
        chosen = frozenset(audits.resolve_base_ids(found, bases))
        store = Store(path=path, root=found.tree.path, found=found, chosen=chosen)
        return needed_models(store, filler, scope.BackfillOptions(path=path, kind=kind, bases=bases, all_projects=True))


def _fits(settings: EmbedderSettings, need: ModelNeed) -> bool:
    """Whether an embedder has the model that a base needs."""
    return need.model_id is not None and settings.serves(need.model_id)


def _describe_embedder(settings: EmbedderSettings, needs: Sequence[ModelNeed]) -> ListedEmbedder:
    """Describe an embedder for the report, with the bases that need its model."""
    provider = next(name for name, kind in PROVIDERS.items() if isinstance(settings, kind))
    place, dimensions = "", None
    if isinstance(settings, ServerSettings):
        place, dimensions = settings.base_url, settings.dimensions
    elif isinstance(settings, LocalSettings):
        place = path_text(settings.path)
    return ListedEmbedder(
        name=settings.name,
        provider=provider,
        model=settings.model,
        model_ids=list(settings.model_ids),
        place=place,
        dimensions=dimensions,
        bases=[need.label for need in needs if _fits(settings, need)],
    )


def _group_needs(needs: Sequence[ModelNeed], every: Sequence[EmbedderSettings]) -> list[NeededModel]:
    """List each needed model with its bases, and with those of the embedders ``every`` that have it."""
    grouped: dict[tuple[str | None, int | None], list[ModelNeed]] = {}
    for need in needs:
        grouped.setdefault((need.model_id, need.dimensions), []).append(need)
    return [
        NeededModel(
            model_id=model_id,
            dimensions=dimensions,
            bases=[one.label for one in group],
            embedders=[settings.name for settings in every if _fits(settings, group[0])],
        )
        for (model_id, dimensions), group in grouped.items()
    ]


def _test_embedder(settings: EmbedderSettings) -> TestedEmbedder:
    """Embed two short texts, without retries, and measure the time; an error becomes part of the result."""
    start = time.monotonic()
    code = problem = tokens = None
    vectors: list[bytes] = []
    if isinstance(settings, ServerSettings):
        # The user waits for the result.
        settings = msgspec.structs.replace(settings, retries=0)
    try:
        with embedders.open_embedder(settings) as embedder:
            start = time.monotonic()
            answer = embedder.embed(list(_TEXTS))
            vectors, tokens = answer.vectors, answer.tokens
        embedders.check(vectors, len(_TEXTS), None, embedder=settings.name)
    except (TextsRejected, ServerFailing) as error:
        code, problem = type(error).__name__, error.reason
    except RegraftError as error:
        code, problem = error.code, str(error)
    seconds = time.monotonic() - start
    is_good = problem is None
    return TestedEmbedder(
        name=settings.name,
        dimensions=len(vectors[0]) // 4 if is_good else None,
        seconds=round(seconds, 3),
        unit_length=all(map(_is_unit, vectors)) if is_good else None,
        tokens=tokens,
        code=code,
        problem=problem,
    )


def _is_unit(vector: bytes) -> bool:
    """Whether a vector has length 1, approximately."""
    return abs(math.hypot(*array("f", vector)) - 1) <= _NEARLY


def _write_new_config(config_path: Path | None, text: str) -> None:
    """Write a new configuration file (None: the default one).

    Raises:
        WrongUsage: the file exists.
    """
    path = config_path or embedders_settings.DEFAULT_PATH
    try:
        with (
            writable.allow_writes(path.absolute().parent, entries_only=True),
            durable.open_text(path.absolute(), "x") as file,
        ):
            file.write(text)
    except FileExistsError as error:
        problem = tr("{path} exists and is never overwritten", path=printable(path))
        raise WrongUsage(problem=problem, hint=tr("regraft embedders --snippet shows what to write into it")) from error
    with suppress(OSError):
        durable.sync_file(path.absolute())
