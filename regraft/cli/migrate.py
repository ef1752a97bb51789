"""``regraft migrate``: another layout becomes a library."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

import migrators
from regraft import clock, ledger, pages, progress, render
from regraft.cli.options import PATH, model_word, output_options, plan_options, time_of
from regraft.cli.output import echo_json, reports_errors, say, written_list
from regraft.locate import CATALOG_FILE, KNOWLEDGE_FOLDER, Kind, Located, located


@click.command()
@click.argument("source", type=PATH)
@click.option("--to", "target", type=PATH, required=True, metavar="OUT", help="The library's folder: new or empty.")
@click.option("--dry-run", is_flag=True, help="Show the plan and the report; touch nothing.")
@plan_options
@click.option(
    "--jobs", type=click.IntRange(1, 64), metavar="N", help="Bases carried at once. [default: cores, up to 4]"
)
@click.option("--while-running", is_flag=True, help="Read a profile although its application is running.")
@click.option(
    "--no-restore-duplicates",
    is_flag=True,
    help="Leave files empty that v1 left empty because another one has the same bytes.",
)
@click.option("--now", callback=time_of, metavar="TIME", help="The run's time, ISO 8601 with Z. [default: now]")
@click.option("--report", "page", type=PATH, metavar="FILE.html", help="Write the report page here too.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before a run that leaves something behind.")
@output_options
@reports_errors
def migrate(  # noqa: PLR0913, PLR0917 - one parameter for every option
    source: Path,
    target: Path,
    dry_run: bool,
    bases: tuple[str, ...],
    map_model: tuple[str, ...],
    recreate_model: tuple[str, ...],
    jobs: int | None,
    while_running: bool,
    no_restore_duplicates: bool,
    now: int | None,
    page: Path | None,
    fail_on: str,
    yes: bool,
    as_json: bool,
    quiet: bool,
    verbose: int,
    kind: str | None,
) -> None:
    """Migrate the knowledge base in SOURCE to a v2 library in OUT.

    SOURCE is a v1 backup (zip or folder), a v1 profile folder, an export folder, a knowledge JSON file beside its
    vector files, or what a preview build wrote. It is only read. A second run goes on where the first one stopped, and
    leaves alone what is done.
    """
    if page is not None:
        pages.check_place("migrate", page, source, target)
    options = migrators.Options(
        now_ms=clock.now_ms() if now is None else now,
        word=model_word(map_model, recreate_model),
        bases=bases,
        jobs=jobs,
        dry_run=dry_run,
        while_running=while_running,
        restore_duplicates=not no_restore_duplicates,
    )

    def show_plan(planned: dict[str, Any]) -> bool:
        if as_json or quiet:
            return True
        asks = not yes and sys.stdin.isatty() and migrators.exit_status(planned, "error") != 0
        say(f"Plan:\n{render.as_text(planned)}" if asks else render.as_line(planned) + "\n")
        try:
            return not asks or click.confirm("Some of it cannot be carried. Go on?", default=True)
        except click.Abort as error:
            raise KeyboardInterrupt from error

    with located(source, Kind(kind) if kind else None) as found:
        _say_found(found, quiet=quiet or as_json)
        bar = progress.for_person(quiet=quiet or as_json)
        migration = migrators.migrate(found, target, options, bar, show_plan)
    document = migration.document
    if page is not None:
        pages.write(page, render.as_page(document))
    if as_json:
        echo_json(document)
    else:
        say(_summary(document, _written(target, page, wrote=migration.wrote), verbose))
    sys.exit(migrators.exit_status(document, fail_on))


def _say_found(found: Located, *, quiet: bool) -> None:
    """Say at once where another folder is read than the one that was given."""
    for notice in () if quiet else found.notices:
        click.echo(f"regraft: {notice.message}", err=True)


def _written(target: Path, page: Path | None, *, wrote: bool) -> list[Path]:
    """Return the paths that a run has written, as far as they are there."""
    names = (CATALOG_FILE, KNOWLEDGE_FOLDER, "report.json", "report.html", ledger.FOLDER) if wrote else ()
    return [*(target / name for name in names if (target / name).exists()), *([page] if page else [])]


def _summary(document: dict[str, Any], written: list[Path], verbose: int) -> str:
    text = render.as_text(document, verbose=verbose > 0) + "\n"
    if written:
        return text + written_list(written)
    if document["run"]["dry_run"]:
        return text + "Dry run: nothing was written.\n"
    return text + "Nothing has changed since the last run: nothing was written.\n"
