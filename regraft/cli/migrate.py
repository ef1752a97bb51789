"""``regraft migrate``: another layout becomes a library."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

import migrators
from migrators.parquet import import_files
from regraft import identity
from regraft.cli.options import (
    PATH,
    adopt_option,
    fail_on_option,
    output_options,
    parse_models,
    parse_time,
    plan_options,
    salvage_option,
    verbose_option,
    visible_option,
)
from regraft.cli.output import ask, echo, echo_error, echo_json, format_written, report_errors
from regraft.errors import OutputLost
from regraft.formats.cherry_v2.layout import REPORT_FILE, REPORT_PAGE
from regraft.kinds import Kind
from regraft.language import format_count, join_list, tr
from regraft.ledger import ledger
from regraft.processes import interrupts
from regraft.report import html as report_html
from regraft.report import migration as report_migration
from regraft.report import notices, progress
from regraft.report.document import encoded
from regraft.stores.locate import CATALOG_FILE, KNOWLEDGE_FOLDER, Located, open_store
from regraft.text import LONGEST_NAME, one_line, path_argument, printable, printable_lines

# What commands that write a library show: the plan, a question before it is carried out, and the result.


#: Bases that are named at the end, before the rest is counted.
_SHOWN = 5


class PlanPrompt(msgspec.Struct):
    """Shows a plan and asks, in a terminal, before something is left behind; a call tells whether to go on."""

    yes: bool
    silent: bool
    #: The warnings that a person has read in the plan.
    warnings: list[dict[str, Any]] = msgspec.field(default_factory=list)

    def __call__(self, planned: migrators.MigrationReport) -> bool:
        """Show a plan, and ask if something would be left behind; return whether to go on."""
        if self.silent:
            return True
        asks = not self.yes and sys.stdin.isatty() and migrators.exit_status(planned, "error") != 0
        document = encoded(planned)
        if not asks:
            echo(report_migration.plan_line(document) + "\n")
            return True
        echo(f"{tr('Plan:')}\n{report_migration.format_migration(document)}")
        self.warnings = document["warnings"]
        return ask(tr("Some of it cannot be carried. Go on?"))


def print_run(
    migration: migrators.Migration,
    target: Path,
    page: Path | None,
    asked: PlanPrompt,
    *,
    as_json: bool,
    quiet: bool,
    verbose: int,
) -> None:
    """Print what a run came to.

    Args:
        migration: the run.
        target: the library.
        page: the second place of its report page.
        asked: what was shown before: warnings that were read there are not said again.
        as_json: print the document alone.
        quiet: leave out what was written.
        verbose: name every note, too.
    """
    document = encoded(migration.report)
    if as_json:
        echo_json(document)
    else:
        known = [] if verbose else asked.warnings
        news = {**document, "warnings": [one for one in document["warnings"] if one not in known]}
        text = report_migration.format_migration(news, verbose=verbose > 0) + "\n"
        echo(text + _closing(document, _written(target, page, wrote=migration.wrote), quiet=quiet))
    interrupts.ignore_stops()


def _written(target: Path, page: Path | None, *, wrote: bool) -> list[Path]:
    """Return the paths that a run has written, as far as they are there."""
    names = (CATALOG_FILE, KNOWLEDGE_FOLDER, REPORT_FILE, REPORT_PAGE, ledger.FOLDER) if wrote else ()
    return [*(target / name for name in names if (target / name).exists()), *([page] if page else [])]


def _closing(document: dict[str, Any], written: list[Path], *, quiet: bool) -> str:
    if written:
        return ("" if quiet else format_written(written) + "\n") + printable_lines(_done(document))
    if document["run"]["dry_run"]:
        return tr("Dry run: nothing was written.\n")
    return printable_lines(_unwritten(document))


def _done(document: dict[str, Any]) -> list[str]:
    """Say how many bases are done, which are not and why, and what to do next."""
    meant = [base for base in document["bases"] if base["outcome"] != "unchanged"]
    failed = [base for base in meant if base["error"]]
    lines = [
        tr("Done: {bases:,} of {bases2}.", bases=len(meant) - len(failed), bases2=format_count(len(meant), "base"))
    ]
    unchanged = len(document["bases"]) - len(meant)
    if unchanged:
        lines.append(tr("Unchanged since the last run: {bases}.", bases=format_count(unchanged, "base")))
    for base in failed[:_SHOWN]:
        name = one_line(base["name"], LONGEST_NAME)
        lines.append(
            tr("Not done: {name}; why, and what to do: regraft explain {error}", name=name, error=base["error"])
        )
    if len(failed) > _SHOWN:
        lines.append(
            tr("Not done: {more_bases}, listed above", more_bases=format_count(len(failed) - _SHOWN, "more base"))
        )
    target = path_argument(document["target"]["path"])
    lines.append(tr("Next: {value}", value=shlex.join(["regraft", "check", target])))
    lines.append(
        tr(
            "Then, to use it in the application: {value} --profile PROFILE",
            value=shlex.join(["regraft", "install", target]),
        )
    )
    return lines


def _unwritten(document: dict[str, Any]) -> list[str]:
    """Say that nothing was written, and what was changed by others since."""
    changed = [one["base"] for one in document["warnings"] if one["code"] == notices.CHANGED_SINCE]
    if not changed:
        return [tr("Nothing has changed since the last run: nothing was written.")]
    names = {base.get("legacy_id", base["id"]): base["name"] for base in document["bases"]}
    named = join_list(one_line(names.get(base, base), LONGEST_NAME) for base in changed)
    target = document["target"]["path"]
    return [
        tr(
            "Changed in {target} since they were migrated, and left as they are: {named}",
            target=printable(target),
            named=named,
        ),
        tr("The source is the same as at the last run: nothing was written."),
        tr("Next: {value}", value=shlex.join(["regraft", "check", path_argument(target)])),
    ]


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
@click.option("--now", callback=parse_time, metavar="TIME", help=tr("The run's time, ISO 8601 with Z. [default: now]"))
@click.option("--report", "page", type=PATH, metavar="FILE.html", help=tr("Write the report page here too."))
@click.option("-y", "--yes", is_flag=True, help=tr("Do not ask before a run that leaves something behind."))
@output_options
@report_errors
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
    report_html.check_page_path("migrate", page, source, target)
    options = migrators.Options(
        now_ms=identity.now_ms() if now is None else now,
        model_overrides=parse_models(map_model, recreate_model),
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
    with open_store(source, Kind(kind) if kind else None, salvage=salvage) as found:
        _say_found(found, quiet=is_silent)
        bar, asked = progress.terminal_progress(quiet=is_silent), PlanPrompt(yes=yes, silent=is_silent)
        migration = migrators.migrate(found, target, options, bar, asked)
    lost = None if page is None else _page_problem(page, migration.report)
    print_run(migration, target, page if lost is None else None, asked, as_json=as_json, quiet=quiet, verbose=verbose)
    if lost is not None:
        raise lost
    sys.exit(migrators.exit_status(migration.report, fail_on))


def _page_problem(page: Path, report: migrators.MigrationReport) -> OutputLost | None:
    """Write the report page; return what is wrong where it cannot be written, for the migration is done by then."""
    try:
        report_html.write_page(page, report_migration.migration_page(encoded(report)))
    except OSError as error:
        return OutputLost(output=page, reason=error.strerror or error)
    return None


def _say_found(found: Located, *, quiet: bool) -> None:
    """Say at once where another folder is read than the one that was given."""
    for notice in () if quiet else found.notices:
        echo_error(tr("regraft: {message_}", message_=notice.message))


# ``regraft import``: a library from Parquet files of units.


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
@click.option("--now", callback=parse_time, metavar="TIME", help=tr("The run's time, ISO 8601 with Z. [default: now]"))
@click.option("-y", "--yes", is_flag=True, help=tr("Do not ask before a run that leaves something behind."))
@verbose_option
@click.option("-q", "--quiet", is_flag=True, help=tr("No plan, no progress; only the result."))
@click.option("--json", "as_json", is_flag=True, help=tr("Print one JSON document instead of text."))
@report_errors
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
    moment = identity.now_ms() if now is None else now
    options = migrators.Options(now_ms=moment, bases=bases, dry_run=dry_run)
    silent = as_json or quiet
    asked = PlanPrompt(yes=yes, silent=silent)
    migration = import_files(paths, target, options, progress.terminal_progress(quiet=silent), asked)
    print_run(migration, target, None, asked, as_json=as_json, quiet=quiet, verbose=verbose)
    if not silent:
        echo(_WITHOUT_FILES)
    sys.exit(migrators.exit_status(migration.report, fail_on))
