"""``regraft install``: bases of a library, a pack, a backup or another profile come into a profile."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from regraft import clock
from regraft.api.given import base_name
from regraft.cli.changing import ChangeRequest, as_text, change_options, end_with
from regraft.cli.options import PATH, model_options, model_word, time_of
from regraft.cli.output import reports_errors
from regraft.language import tr
from regraft.report.document import End
from regraft.text import counted, one_line, path_text, shown_lines
from repair.changes.report import ChangeReport
from repair.changes.run import run_command
from repair.cherry_v2 import install as installing
from repair.cherry_v2.source import BaseSource, opened


@click.command()
@change_options
@click.option(
    "--profile", type=PATH, required=True, metavar="PROFILE", help=tr("The application's profile folder (v2).")
)
@model_options
@click.option(
    "--recreate-provider",
    "providers",
    multiple=True,
    metavar="ID",
    help=tr("Make this provider where the profile lacks it: disabled, without keys."),
)
@click.option("--as-new", is_flag=True, help=tr("Let a base that is there already come as a new one beside it."))
@click.option("--name", metavar="NAME", help=tr("Another name for the one base that is installed."))
@click.option(
    "--external-as-files",
    is_flag=True,
    help=tr("Let documents that a newer application syncs from a service come as files."),
)
@click.option("--now", callback=time_of, metavar="TIME", help=tr("The run's time, ISO 8601 with Z. [default: now]"))
@reports_errors
def install(
    path: Path,
    profile: Path,
    map_model: tuple[str, ...],
    recreate_model: tuple[str, ...],
    providers: tuple[str, ...],
    now: int | None,
    **options: Any,
) -> None:
    """Put bases of PATH into a v2 profile.

    PATH is a library, a pack, a v2 backup or another v2 profile; it is only read. The application must not be running.
    Its database is backed up first, nothing that is there is overwritten, and regraft undo PROFILE takes all of it
    back. --base takes names, v1 or v2 ids, or a unique beginning of either.

    \b
    Example:
      regraft install library --profile ~/.config/CherryStudio
    """
    as_new, name, external_as_files = (options.pop(key) for key in ("as_new", "name", "external_as_files"))
    asked = ChangeRequest(**options)
    options_ = installing.InstallOptions(
        now_ms=clock.now_ms() if now is None else now,
        models=model_word(map_model, recreate_model),
        providers=frozenset(providers),
        as_new=as_new,
        name=base_name(name),
        external_as_files=external_as_files,
        dry_run=asked.dry_run,
    )
    with opened(path, asked.of_kind(), asked.bases, "install") as source:
        report = run_command(
            "install",
            profile,
            partial(installing.plan, source=source, options=options_),
            dry_run=asked.dry_run,
            progress=asked.progress(),
            show_plan=asked.agreed,
        )
        text = _as_text(report, source, asked)
        # What is changed is the profile: it is the run's store, and the target of what the user asked for.
        came_from = End(kind=source.store.found.kind.value, path=path_text(path))
        head = structs.replace(report.head, source=came_from, target=report.head.source)
        end_with(structs.replace(report, head=head), asked, text)


def _as_text(report: ChangeReport, source: BaseSource, asked: ChangeRequest) -> str:
    text = as_text(report, verbose=asked.verbose > 0, shown=asked.shown)
    if report.undo is None:
        return text
    came = {one.base for one in report.actions if one.action in ("insert-base", "copy-base")}
    stayed = {one.base: one.reason for one in report.left if one.base is not None and one.base not in came}
    there = len(source.chosen) - len(stayed)
    lines = [
        tr(
            "Start the application: {there:,} of {bases} will be there.",
            there=there,
            bases=counted(len(source.chosen), "base"),
        )
    ]
    lines += [
        tr("Not done: {name_of}, because {why}", name_of=one_line(source.name_of(base)), why=one_line(why))
        for base, why in stayed.items()
    ]
    return text + shown_lines(lines)
