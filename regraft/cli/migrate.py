"""``regraft migrate``: another layout becomes a library."""

from __future__ import annotations

import sys
from pathlib import Path

import click

import migrators
from regraft import clock
from regraft.cli.library import PlanView, tell
from regraft.cli.options import (
    PATH,
    adopt_option,
    model_word,
    output_options,
    plan_options,
    salvage_option,
    time_of,
    visible_option,
)
from regraft.cli.output import note, reports_errors
from regraft.errors import OutputLost
from regraft.kinds import Kind
from regraft.language import tr
from regraft.locate import Located, located
from regraft.report import html as report_html
from regraft.report import progress, render
from regraft.report.document import encoded


@click.command()
@click.argument("source", type=PATH)
@click.option("--to", "target", type=PATH, required=True, metavar="OUT", help=tr("The library's folder: new or empty."))
@click.option("--dry-run", is_flag=True, help=tr("Show the plan and the report; touch nothing."))
@plan_options
@visible_option
@click.option(
    "--jobs", type=click.IntRange(1, 64), metavar="N", help=tr("Bases carried at once. [default: cores, up to 4]")
)
@click.option("--while-running", is_flag=True, help=tr("Read a profile although its application is running."))
@click.option(
    "--no-restore-duplicates",
    is_flag=True,
    help=tr("Leave files empty that v1 left empty because another one has the same bytes."),
)
@click.option(
    "--carry-text",
    is_flag=True,
    help=tr("Carry texts whose vector cannot be carried, without one, also of failed bases."),
)
@adopt_option
@salvage_option
@click.option("--verify", is_flag=True, help=tr("Read back every byte that an earlier run wrote, and compare."))
@click.option("--now", callback=time_of, metavar="TIME", help=tr("The run's time, ISO 8601 with Z. [default: now]"))
@click.option("--report", "page", type=PATH, metavar="FILE.html", help=tr("Write the report page here too."))
@click.option("-y", "--yes", is_flag=True, help=tr("Do not ask before a run that leaves something behind."))
@output_options
@reports_errors
def migrate(  # noqa: PLR0913, PLR0917 - one parameter for every option
    source: Path,
    target: Path,
    dry_run: bool,
    bases: tuple[str, ...],
    map_model: tuple[str, ...],
    recreate_model: tuple[str, ...],
    visible_to: tuple[str, ...],
    jobs: int | None,
    while_running: bool,
    no_restore_duplicates: bool,
    carry_text: bool,
    adopt_orphans: bool,
    salvage: bool,
    verify: bool,
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
    vector files, what a preview build wrote, or a knowledge base of rsclaw. It is only read. A second run goes on where
    the first one stopped, and leaves alone what is done.

    \b
    Example:
      regraft migrate cherry-studio.202503141200.zip --to library
    """
    report_html.check_place("migrate", page, source, target)
    options = migrators.Options(
        now_ms=clock.now_ms() if now is None else now,
        model_overrides=model_word(map_model, recreate_model),
        bases=bases,
        jobs=jobs,
        dry_run=dry_run,
        while_running=while_running,
        restore_duplicates=not no_restore_duplicates,
        carry_text=carry_text,
        adopt_orphans=adopt_orphans,
        salvage=salvage,
        visible_to=visible_to,
        verify=verify,
    )

    is_silent = quiet or as_json
    with located(source, Kind(kind) if kind else None, salvage=salvage) as found:
        _say_found(found, quiet=is_silent)
        bar, asked = progress.for_person(quiet=is_silent), PlanView(yes=yes, silent=is_silent)
        migration = migrators.migrate(found, target, options, bar, asked)
    lost = None if page is None else _page_problem(page, migration.report)
    tell(migration, target, page if lost is None else None, asked, as_json=as_json, quiet=quiet, verbose=verbose)
    if lost is not None:
        raise lost
    sys.exit(migrators.exit_status(migration.report, fail_on))


def _page_problem(page: Path, report: migrators.MigrationReport) -> OutputLost | None:
    """Write the report page; return what is wrong where it cannot be written, for the migration is done by then."""
    try:
        report_html.write(page, render.as_page(encoded(report)))
    except OSError as error:
        return OutputLost(output=page, reason=error.strerror or error)
    return None


def _say_found(found: Located, *, quiet: bool) -> None:
    """Say at once where another folder is read than the one that was given."""
    for notice in () if quiet else found.notices:
        note(tr("regraft: {message_}", message_=notice.message))
