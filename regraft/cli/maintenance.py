"""``regraft fix``: what ``regraft check`` offers, in the right order, as one run."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from regraft import api, identity, language
from regraft.api.arguments import parse_base_name
from regraft.cli.changes import (
    ChangeRequest,
    action_lines,
    change_options,
    confirm_plan,
    format_change,
    print_and_exit,
    run_change,
)
from regraft.cli.options import (
    PATH,
    model_options,
    now_option,
    only_option,
    output_options,
    parse_model_map,
    parse_models,
    parse_time,
    salvage_option,
)
from regraft.cli.output import echo, echo_json, report_errors
from regraft.language import current_language, format_count, tr
from regraft.report import progress
from regraft.report.document import Endpoint, encoded
from regraft.text import format_bytes, one_line, path_text, printable, printable_lines
from repair.changes.run import ChangeReport, run_command
from repair.changes.undo import PastRun
from repair.cherry_v2 import install as installing
from repair.cherry_v2.source import BaseSource, open_base_source
from repair.options import GRACE_DAYS


@click.command()
@change_options
@now_option
@only_option
@report_errors
def fix(path: Path, now: int | None, only: tuple[str, ...], **options: Any) -> None:
    """Do what regraft check offers for the store at PATH: upgrade, rescue, repair, reconcile and gc, in this order.

    One question is asked, and regraft undo takes all of it back. Nothing is embedded and nothing guessed. A text or
    vector that could be listed or attached again is kept, unless another copy is proven or --only names its finding.
    What is left is named at the end, with what to do about it.

    \b
    Example:
      regraft fix library --dry-run
    """
    run_change(api.fix, path, ChangeRequest(**options), only=only, now_ms=now)


# ``regraft gc``: removing what nothing reaches.


@click.command()
@change_options
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=GRACE_DAYS,
    show_default=True,
    metavar="DAYS",
    help=tr("How long trash, and what takes a run back, are kept."),
)
@click.option("--vacuum", is_flag=True, help=tr("Give free space in index files back, where that pays."))
@click.option("--v1-leftovers", is_flag=True, help=tr("Also vector files of v1 whose every vector is in v2."))
@now_option
@only_option
@report_errors
def gc(
    path: Path,
    grace: float,
    vacuum: bool,
    v1_leftovers: bool,
    now: int | None,
    only: tuple[str, ...],
    **options: Any,
) -> None:
    """Remove what nothing reaches from the store at PATH: vectors, texts and files.

    Files go to a dated trash below .regraft, where they are kept for some days; regraft undo brings them back.

    \b
    Example:
      regraft gc library --vacuum
    """
    more: dict[str, Any] = {"only": only, "grace": grace, "vacuum": vacuum, "v1_leftovers": v1_leftovers}
    more["now_ms"] = now
    run_change(api.gc, path, ChangeRequest(**options), **more)


# ``regraft repair``: mending what can be derived from other data.


@click.command()
@change_options
@only_option
@click.option(
    "--model",
    metavar="ID",
    help=tr("Of bases with vectors and without a model: the model of these vectors, provider::model."),
)
@click.option(
    "--adopt",
    is_flag=True,
    help=tr("With --only index.orphan or material.orphan: list bases or items again that have no row in the catalog."),
)
@click.option(
    "--salvage",
    is_flag=True,
    help=tr("Write damaged index files anew from what is left in them and proves itself."),
)
@click.option(
    "--from",
    "source",
    metavar="SOURCE",
    type=click.Path(path_type=Path),
    help=tr("Take missing texts, vectors and indexes from another copy: v1 data, a library, a pack, a v2 profile."),
)
@report_errors
def repair(path: Path, **options: Any) -> None:
    """Mend what regraft check finds in the store at PATH, where other data prove what is right.

    Nothing is guessed: what cannot be derived stays as it is and is said. Vectors that could still be right are kept;
    those that never can be are deleted, to be embedded anew. regraft undo takes a run back.

    \b
    Example:
      regraft repair library --dry-run
    """
    given = {name: options.pop(name) for name in ("only", "model", "adopt", "salvage", "source")}
    run_change(api.repair, path, ChangeRequest(**options), **given)


# ``regraft upgrade``: older index layouts and library catalogs become the current ones, in place.


@click.command()
@change_options
@model_options
@report_errors
def upgrade(path: Path, map_model: tuple[str, ...], recreate_model: tuple[str, ...], **options: Any) -> None:
    """Bring older index files and catalogs in the store at PATH to the current layout, every vector kept.

    These are files of version 1, half-applied upgrades, the tables of preview builds, and the catalog of a library
    that an earlier regraft wrote. The old files are kept, so that regraft undo brings them back byte for byte.

    \b
    Example:
      regraft upgrade library
    """
    words: dict[str, Any] = {"map_model": parse_model_map(map_model), "recreate_model": recreate_model}
    run_change(api.upgrade, path, ChangeRequest(**options), **words)


# ``regraft rescue``: bringing back what the application's own upgrade left behind.


@click.command()
@change_options
@click.option(
    "--v1", type=PATH, metavar="SOURCE", help=tr("Where v1's state is, if not in the profile: any v1 source.")
)
@model_options
@salvage_option
@click.option("--now", callback=parse_time, metavar="TIME", help=tr("The run's time, ISO 8601 with Z. [default: now]"))
@report_errors
def rescue(
    path: Path,
    v1: Path | None,
    map_model: tuple[str, ...],
    recreate_model: tuple[str, ...],
    salvage: bool,
    now: int | None,
    **options: Any,
) -> None:
    """Bring back what the upgrade left behind in the v2 profile at PATH, from v1's files that are still there.

    Failed bases, folders that were not migrated, and bases whose index is gone or empty get their texts and vectors;
    bases and items keep their ids.

    \b
    Example:
      regraft rescue ~/.config/CherryStudio --dry-run
    """
    words: dict[str, Any] = {
        "map_model": parse_model_map(map_model),
        "recreate_model": recreate_model,
        "salvage": salvage,
    }
    run_change(api.rescue, path, ChangeRequest(**options), v1=v1, now_ms=now, **words)


# ``regraft clear-failed``: having notes that an embedder refused tried again.


@click.command(name="clear-failed")
@change_options
@report_errors
def clear_failed(path: Path, **options: Any) -> None:
    """Mark the notes as pending that the embedder of the codex-mem database at PATH refused.

    regraft backfill tries them again. Notes stay as they are: only what is said of their vectors changes.

    \b
    Example:
      regraft clear-failed ~/.codex-mem/codex-mem.db
    """
    run_change(api.clear_failed, path, ChangeRequest(**options))


# ``regraft install``: bases of a library, a pack, a backup or another profile come into a profile.


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
@click.option("--now", callback=parse_time, metavar="TIME", help=tr("The run's time, ISO 8601 with Z. [default: now]"))
@report_errors
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
        now_ms=identity.now_ms() if now is None else now,
        models=parse_models(map_model, recreate_model),
        providers=frozenset(providers),
        as_new=as_new,
        name=parse_base_name(name),
        external_as_files=external_as_files,
        dry_run=asked.dry_run,
    )
    with open_base_source(path, asked.of_kind(), asked.bases, "install") as source:
        report = run_command(
            "install",
            profile,
            partial(installing.plan, source=source, options=options_),
            dry_run=asked.dry_run,
            progress=asked.progress(),
            show_plan=asked.agreed,
        )
        text = _format_install(report, source, asked)
        # What is changed is the profile: it is the run's store, and the target of what the user asked for.
        came_from = Endpoint(kind=source.store.found.kind.value, path=path_text(path))
        head = structs.replace(report.head, source=came_from, target=report.head.source)
        print_and_exit(structs.replace(report, head=head), asked, text)


def _format_install(report: ChangeReport, source: BaseSource, asked: ChangeRequest) -> str:
    text = format_change(report, verbose=asked.verbose > 0, shown=asked.shown)
    if report.undo is None:
        return text
    came = {one.base for one in report.actions if one.action in ("insert-base", "copy-base")}
    stayed = {one.base: one.reason for one in report.left if one.base is not None and one.base not in came}
    there = len(source.chosen) - len(stayed)
    lines = [
        tr(
            "Start the application: {there:,} of {bases} will be there.",
            there=there,
            bases=format_count(len(source.chosen), "base"),
        )
    ]
    lines += [
        tr("Not done: {name_of}, because {why}", name_of=one_line(source.name_of(base)), why=one_line(why))
        for base, why in stayed.items()
    ]
    return text + printable_lines(lines)


# ``regraft history`` and ``regraft undo``: what was done to a store, and taking it back.


#: Actions of a run that are shown before the rest is counted.
_SHOWN = 5


@click.command()
@click.argument("path", type=PATH)
@output_options
@report_errors
def history(path: Path, as_json: bool, quiet: bool, verbose: int, kind: str | None) -> None:
    """List what regraft did to the store at PATH, and what can be taken back. Nothing is written.

    \b
    Example:
      regraft history library
    """
    report = api.history(path, kind=kind)
    if as_json:
        echo_json(encoded(report))
        return
    lines: list[str] = []
    for one in report.runs:
        lines += _run_lines(one)
        if not quiet:
            lines += _action_lines(one, verbose=verbose > 0)
    echo(printable_lines(lines) or tr("No runs.\n"))


def _run_lines(run: PastRun) -> list[str]:
    back = {
        "possible": tr("regraft undo takes it back ({bytes} are kept for that)", bytes=format_bytes(run.undo.bytes)),
        "undone": tr("taken back"),
        "unsettled": tr("was stopped in the middle; the next command settles what became of it"),
        "expired": tr("can no longer be taken back"),
        "none": tr("nothing to take back"),
    }[run.undo.state]
    return [f"{run.started_at}  {run.command}  {run.status}  {run.id}", f"  {back}"]


def _action_lines(run: PastRun, *, verbose: bool) -> list[str]:
    shown_actions = run.actions if verbose else run.actions[:_SHOWN]
    lines = [f"  - {one_line(language.translate_text(action.message, current_language()))}" for action in shown_actions]
    more = len(run.actions) - len(shown_actions)
    if more:
        lines.append(tr("  … and {more_actions} (-v shows all)", more_actions=format_count(more, "more action")))
    return lines


@click.command()
@click.argument("path", type=PATH)
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--dry-run", is_flag=True, help=tr("Show what would be taken back and touch nothing."))
@click.option("-y", "--yes", is_flag=True, help=tr("Do not ask; needed where nobody is there to answer."))
@output_options
@report_errors
def undo(
    path: Path,
    run_id: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    quiet: bool,
    verbose: int,
    kind: str | None,
) -> None:
    """Take back what a run did to the store at PATH: RUN, or the latest that can be.

    It is refused where anything that the run changed was changed since.

    \b
    Example:
      regraft undo library --dry-run
    """
    shown_plan: list[str] = []

    def agreed(planned: ChangeReport) -> bool:
        lines = action_lines(planned.bases, planned.actions, verbose=False)
        agrees = confirm_plan(lines, yes=yes, as_json=as_json)
        shown_plan.extend([] if yes else lines)
        return agrees

    report = api.undo(
        path,
        run_id,
        kind=kind,
        dry_run=dry_run,
        progress=progress.terminal_progress(quiet=quiet or as_json),
        confirm=agreed,
    )
    if as_json:
        echo_json(encoded(report))
        sys.exit(0)
    text = format_change(report, verbose=verbose > 0, shown=shown_plan)
    if not dry_run:
        text += tr("Taken back: run {undone}; {path} was written.\n", undone=report.undone, path=printable(path))
    echo(text)
    sys.exit(0)
