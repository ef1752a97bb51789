"""What commands that embed texts take: an embedder of the configuration (``docs/embedders.md``)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import click

from regraft.cli.options import PATH
from regraft.cli.output import note
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

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        # With -vv everything that is logged is shown already; a program reads errors alone on stderr.
        if kwargs.get("as_json") or kwargs.get("quiet") or kwargs.get("verbose", 0) > 1:
            return command(*args, **kwargs)
        with _shown_retries():
            return command(*args, **kwargs)

    return config_option(chosen(run))  # type: ignore[return-value]


class _RetryLines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm  # noqa: PLC0415 - loaded where a request failed

        # A progress bar is taken off the terminal for the line, and drawn again below it.
        with tqdm.external_write_mode(file=sys.stderr):
            note(record.getMessage())


@contextmanager
def _shown_retries() -> Iterator[None]:
    """Print a line on stderr for each failed attempt to reach an embedding server."""
    logger, lines = logging.getLogger("regraft.embedders.server"), _RetryLines(logging.WARNING)
    logger.addHandler(lines)
    try:
        yield
    finally:
        logger.removeHandler(lines)


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
