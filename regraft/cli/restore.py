"""``regraft restore``: a new base with a new model out of an old one's texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from regraft.cli.changing import Asked, change_options, end
from regraft.cli.options import time_of
from regraft.errors import WrongUsage
from regraft.locate import Kind
from regraft.text import trim
from repair import restore as restoring

F = TypeVar("F", bound=Callable[..., Any])


def restore_options(command: F) -> F:
    """Add what ``regraft restore`` takes besides the embedder."""
    for option in (
        click.option("--now", callback=time_of, metavar="TIME", help="The run's time, ISO 8601 with Z. [default: now]"),
        click.option(
            "--name", callback=_name, metavar="NAME", help="What the new base is called. [default: as the old one]"
        ),
        change_options,
    ):
        command = option(command)
    return command


def _name(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not trim(value):
        raise click.BadParameter("a base's name cannot be blank")
    return None if value is None else trim(value)


def restored(path: Path, wanted: restoring.Wanted, fill: restoring.Fill, now_ms: int, asked: Asked) -> NoReturn:
    """Restore the base that was asked for, say what was done, and end the process with its exit status.

    Raises:
        WrongUsage: several bases were named.
    """
    if len(asked.bases) > 1:
        raise WrongUsage(problem="one base is restored at a time", hint="give --base once")
    wish = restoring.Wish(next(iter(asked.bases), None), wanted, now_ms, Kind(asked.kind) if asked.kind else None)
    document = restoring.restore(
        path, wish, fill, dry_run=asked.dry_run, progress=asked.progress(), show_plan=asked.agreed
    )
    end(document, asked)
