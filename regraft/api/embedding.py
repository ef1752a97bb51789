"""Embedders of the configuration, as commands and programs choose them (``docs/embedders.md``)."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path

from regraft import config, embedders
from regraft.embedders import ServerFailing, TextsRejected
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import EmbedderUnnamed, ModelDiffers, QueryNotEmbedded, RegraftError, WrongUsage
from regraft.language import joined, tr
from regraft.ranking.query_vectors import Embed, NoVector
from regraft.text import counted
from repair.backfill.budget import Limits


def limited_embedder(path: Path | None, name: str | None, limits: Limits, models: frozenset[str]) -> EmbedderSettings:
    """Return the settings of the embedder that is meant, which has a price where one is needed; see
    :func:`chosen_embedder`.

    Raises:
        WrongUsage: costs are limited, and nobody knows the price.
    """
    settings = chosen_embedder(path, name, models)
    if limits.cost is not None and settings.price_per_million_tokens is None:
        problem = tr("--max-cost without a price of embedder {name}", name=settings.name)
        raise WrongUsage(problem=problem, hint=tr("write price_per_million_tokens into the configuration"))
    return settings


def chosen_embedder(path: Path | None, name: str | None, models: frozenset[str]) -> EmbedderSettings:
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
    found = config.load(path)
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
            "{embedders} of {every} could be meant", embedders=counted(len(fitting), "embedder"), every=len(every)
        )
        known = tr("one of {sorted}", sorted=joined(sorted(one.name for one in fitting or every)))
    raise EmbedderUnnamed(path=found.path, problem=problem, known=known, count=len(every))


def query_vector(settings: EmbedderSettings, query: str) -> tuple[float, ...]:
    """Return the vector that an embedder makes of a query.

    Raises:
        QueryNotEmbedded: it gives none.
        WrongUsage, EmbedderKeyMissing, ModelUnreadable: it cannot be used.
    """
    with embedders.opened(settings) as embedder:
        try:
            vector = embedder.embed([query], query=True).vectors[0]
        except (TextsRejected, ServerFailing) as error:
            raise QueryNotEmbedded(embedder=settings.name, reason=error.reason) from error
    return tuple(array("f", vector))


def embed_for(query: str, name: str, config_path: Path | None) -> Embed:
    """Return what has an embedder of the configuration make a query's vector, if it is of the model that is asked for.

    Raises:
        EmbedderUnknown, ConfigInvalid, SourceNotFound, SourceUnreadable: the embedder cannot be used at all.
    """
    settings = config.load(config_path).embedder(name)

    def embed(model_id: str) -> tuple[float, ...]:
        if not settings.serves(model_id):
            raise NoVector(
                tr(
                    "embedder {name} is model {model}, the vectors are of {model_id}",
                    name=name,
                    model=settings.model,
                    model_id=model_id,
                )
            )
        try:
            return query_vector(settings, query)
        except QueryNotEmbedded as error:
            raise NoVector(
                tr("embedder {name} gave no vector for the query ({reason})", name=name, reason=error.facts["reason"])
            ) from error
        except RegraftError as error:
            raise NoVector(tr("embedder {name} cannot be used: {error}", name=name, error=error)) from error

    return embed


def embedding(query: str, name: str, config_path: Path | None) -> Callable[[str | None], tuple[float, ...]]:
    """Return what has an embedder make a query's vector, once for all bases of its model."""
    made: list[tuple[float, ...]] = []

    def embed(model_id: str | None) -> tuple[float, ...]:
        """Return the query's vector, of the base's model.

        Raises:
            ModelDiffers: the embedder is another one.
            QueryNotEmbedded: it gives no vector.
        """
        settings = config.load(config_path).embedder(name)
        if model_id is not None and not settings.serves(model_id):
            reason = tr("the base's model is {model_id}", model_id=model_id)
            raise ModelDiffers(embedder=name, model=settings.model, reason=reason)
        if not made:
            made.append(query_vector(settings, query))
        return made[0]

    return embed
