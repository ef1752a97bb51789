"""``regraft install``: a migrated library comes into a profile."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from regraft import clock
from regraft.cli.changing import Asked, change, change_options
from regraft.cli.options import PATH, model_options, model_word, time_of
from regraft.cli.output import reports_errors
from repair import install as installing

_CLOSING = "Start the application: the bases are there.\n"


@click.command()
@change_options
@click.option("--profile", type=PATH, required=True, metavar="PROFILE", help="The application's profile folder (v2).")
@model_options
@click.option("--now", callback=time_of, metavar="TIME", help="The run's time, ISO 8601 with Z. [default: now]")
@reports_errors
def install(
    path: Path,
    profile: Path,
    map_model: tuple[str, ...],
    recreate_model: tuple[str, ...],
    now: int | None,
    **options: Any,
) -> None:
    """Put the library at PATH, as regraft migrate wrote it, into a v2 profile.

    The application must not be running. Its database is backed up first, nothing that is there is overwritten, and
    regraft undo PROFILE takes all of it back. --base takes v1 or v2 ids of the library.
    """
    asked = Asked(**options)
    kind = asked.of_kind()
    word = model_word(map_model, recreate_model)
    wish = installing.Wish(path, clock.now_ms() if now is None else now, kind, asked.bases, word)
    # Bases and kind are the library's; what is changed is the profile.
    of_profile = replace(asked, bases=(), kind=None)
    change("install", profile, partial(installing.plan, wish=wish), of_profile, closing=_CLOSING)
