"""What commands that embed texts take: an embedder of the configuration (``docs/embedders.md``)."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from regraft import config, embedders
from regraft.cli.options import PATH
from regraft.embedders import ServerFailing, TextsRejected
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import EmbedderUnnamed, QueryNotEmbedded, WrongUsage
from regraft.language import tr
from regraft.text import counted
from repair.backfill.budget import Limits

F = TypeVar("F", bound=Callable[..., Any])


config_option = click.option(
    "--config",
    "config_path",
    type=PATH,
    metavar="FILE",
    help=tr("Where embedders are written.  [default: regraft.yaml]"),
)


def embedder_options(command: F) -> F:
    """Add which embedder is meant, and where it is written."""
    chosen = click.option(
        "--embedder",
        "embedder_name",
        metavar="NAME",
        help=tr("The embedder, by its name in the configuration; may be left out where only one fits."),
    )
    return config_option(chosen(command))


def limit_options(command: F) -> F:
    """Add how much is sent at most, and whether the model is compared first."""
    for option in (
        click.option(
            "--no-probe", is_flag=True, help=tr("Do not ask first whether it is the model of the vectors there are.")
        ),
        click.option(
            "--max-cost",
            "cost",
            type=click.FloatRange(min=0, min_open=True),
            metavar="N",
            help=tr("Spend N at most, by the configured price."),
        ),
        click.option(
            "--max-requests", "requests", type=click.IntRange(min=1), metavar="N", help=tr("Send N requests at most.")
        ),
        click.option("--limit", "texts", type=click.IntRange(min=1), metavar="N", help=tr("Embed N texts at most.")),
    ):
        command = option(command)
    return command


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
        known = tr("one of {sorted}", sorted=", ".join(sorted(one.name for one in fitting or every)))
    raise EmbedderUnnamed(path=found.path, problem=problem, known=known)


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
