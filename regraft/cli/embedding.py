"""What commands that embed texts take: an embedder of the configuration (``docs/embedders.md``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from regraft.cli.options import PATH
from regraft.language import tr

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
