"""``regraft import``: a library from Parquet files of units."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click

import migrators
from migrators.parquet import import_files
from regraft import clock
from regraft.cli.library import PlanView, tell
from regraft.cli.options import PATH, fail_on_option, time_of, verbose_option
from regraft.cli.output import reports_errors, say
from regraft.language import tr
from regraft.report import progress

_WITHOUT_FILES = tr(
    "The original files are not in a Parquet file. To have them, copy raw/ of each base from where it was exported.\n"
)


def _called_import(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command the name that Python does not allow it: errors are told under it."""
    command.__name__ = "import"
    return command


@click.command(name="import")
@click.argument("paths", type=PATH, nargs=-1, required=True, metavar="FILE.parquet...")
@click.option("--to", "target", type=PATH, required=True, metavar="OUT", help=tr("The library's folder: new or empty."))
@click.option("--dry-run", is_flag=True, help=tr("Show the plan and the report; touch nothing."))
@click.option("--base", "bases", multiple=True, metavar="ID", help=tr("Only this base; may be repeated."))
@fail_on_option
@click.option("--now", callback=time_of, metavar="TIME", help=tr("The run's time, ISO 8601 with Z. [default: now]"))
@click.option("-y", "--yes", is_flag=True, help=tr("Do not ask before a run that leaves something behind."))
@verbose_option
@click.option("-q", "--quiet", is_flag=True, help=tr("No plan, no progress; only the result."))
@click.option("--json", "as_json", is_flag=True, help=tr("Print one JSON document instead of text."))
@reports_errors
@_called_import
def import_(  # noqa: PLR0913, PLR0917 - one parameter for every option
    paths: tuple[Path, ...],
    target: Path,
    dry_run: bool,
    bases: tuple[str, ...],
    fail_on: str,
    now: int | None,
    yes: bool,
    as_json: bool,
    quiet: bool,
    verbose: int,
) -> None:
    """Write the library that FILE.parquet holds to OUT.

    Files are those of regraft export, of a library or a part of one. Vectors come back byte for byte; ids, hashes and
    offsets are proven. The original files in raw/ are not part of them. A second run goes on where the first one
    stopped, and leaves alone what is done.

    \b
    Example:
      regraft import units.parquet --to library
    """
    moment = clock.now_ms() if now is None else now
    options = migrators.Options(now_ms=moment, bases=bases, dry_run=dry_run)
    silent = as_json or quiet
    asked = PlanView(yes=yes, silent=silent)
    migration = import_files(paths, target, options, progress.for_person(quiet=silent), asked)
    tell(migration, target, None, asked, as_json=as_json, quiet=quiet, verbose=verbose)
    if not silent:
        say(_WITHOUT_FILES)
    sys.exit(migrators.exit_status(migration.report, fail_on))
