"""Bundles of options that several commands take."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from regraft import links
from regraft.api.given import models_of
from regraft.cli import completion, decisions
from regraft.errors import ModelOptionInvalid
from regraft.formats.cherry_v2.models import ModelOverrides
from regraft.formats.salvage_tally import OPTION
from regraft.kinds import Kind
from regraft.language import tr

F = TypeVar("F", bound=Callable[..., Any])


class NamedPath(click.Path):
    """A path; a relative one is refused where the working directory is gone, since it leads nowhere."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """Return it as a path."""
        path = super().convert(value, parameter, context)
        try:
            Path(os.fsdecode(path)).absolute()
        except OSError:
            self.fail(
                tr("{value!r} leads nowhere, the working directory is gone; give an absolute path", value=value),
                parameter,
            )
        return path


PATH = NamedPath(path_type=Path)


def time_of(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    """Return a time given as ISO 8601 with a time zone, in ms."""
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is not None:
            return round(moment.astimezone(UTC).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(tr("{value!r} is not a time like 2026-01-31T12:00:00Z", value=value)) from error
    raise click.BadParameter(tr("{value!r} has no time zone; write it with a Z at its end", value=value))


#: Of the commands that go by how old something is.
now_option = click.option(
    "--now",
    "now",
    callback=time_of,
    metavar="TIME",
    help=tr("What ages are relative to, ISO 8601 with Z. [default: now]"),
)
#: Of the commands that are about findings.
only_option = click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    shell_complete=completion.findings,
    help=tr("Only findings of this name; may be repeated."),
)


def _follow_links(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    context.with_resource(links.followed(value))


def _show_decisions(context: click.Context, _parameter: click.Parameter, value: int) -> int:
    if value > 1:
        context.with_resource(decisions.shown())
    return value


verbose_option = click.option(
    "-v",
    "--verbose",
    count=True,
    callback=_show_decisions,
    help=tr("Show every note; -vv shows what was decided and where an error came from."),
)


def output_options(command: F) -> F:
    """Add what every command takes: how much it says, in which form, and what a path is."""
    for option in (
        click.option(
            links.OPTION,
            is_flag=True,
            expose_value=False,
            callback=_follow_links,
            help=tr("Follow links that lead out of what is read; only for data of your own."),
        ),
        click.option("--json", "as_json", is_flag=True, help=tr("Print one JSON document instead of text.")),
        click.option("-q", "--quiet", is_flag=True, help=tr("No plan, no progress; only the result.")),
        verbose_option,
        click.option(
            "--kind",
            type=click.Choice([kind.value for kind in Kind]),
            metavar="KIND",
            help=tr("What PATH is, if regraft takes it for something else: v1-backup, v1-export, library…"),
        ),
    ):
        command = option(command)
    return command


fail_on_option = click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "note", "never"]),
    default="warning",
    show_default=True,
    help=tr("From which severity on the exit status is 1."),
)


salvage_option = click.option(
    OPTION,
    "salvage",
    is_flag=True,
    help=tr(
        "Carry the rows of damaged vector files that prove themselves, and the whole members of a damaged zip archive; "
        "name the others."
    ),
)


visible_option = click.option(
    "--visible-to",
    multiple=True,
    metavar="WHO",
    help=tr("rsclaw: also documents for user:ID, agent:ID or channel:ID; may be repeated.  [default: everybody's]"),
)


adopt_option = click.option(
    "--adopt-orphans",
    is_flag=True,
    help=tr("v1: make a base of each vector file that no base names; --map-model FILE=MODEL says its model."),
)


def model_options(command: F) -> F:
    """Add the user's word on models (:func:`model_word`)."""
    for option in (
        click.option(
            "--recreate-model",
            multiple=True,
            metavar="ID",
            help=tr("Carry bases of model ID, which v1 no longer lists: the model is made again."),
        ),
        click.option(
            "--map-model",
            multiple=True,
            metavar="OLD=NEW",
            help=tr(
                "Treat vectors of model OLD (or of the v1 base or vector file OLD) as those of model NEW; ids are "
                "provider::model."
            ),
        ),
    ):
        command = option(command)
    return command


def plan_options(command: F) -> F:
    """Add what decides how a source is planned, and which of what is said about it counts."""
    for option in (
        fail_on_option,
        model_options,
        click.option(
            "--base",
            "bases",
            multiple=True,
            metavar="ID",
            shell_complete=completion.bases,
            help=tr("Only this base (v1 or v2 id); may be repeated."),
        ),
    ):
        command = option(command)
    return command


def mapped(pairs: tuple[str, ...]) -> dict[str, str]:
    """Return what ``--map-model`` says: new ids by old ones.

    Raises:
        ModelOptionInvalid: it is not of the form OLD=NEW.
    """
    words = {}
    for text in pairs:
        old, separator, new = text.partition("=")
        if not separator:
            reason = tr("write OLD=NEW, NEW as provider::model")
            raise ModelOptionInvalid(option="--map-model", value=text, reason=reason)
        words[old] = new
    return words


def model_word(pairs: tuple[str, ...], recreated: tuple[str, ...]) -> ModelOverrides:
    """Return what the user says of models.

    Raises:
        ModelOptionInvalid: an option is not of its form.
    """
    return models_of(mapped(pairs), recreated)
