"""``regraft migrate``: another layout becomes a library."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec
from msgspec import structs

import migrators
from regraft import api
from regraft.api import profile as api_profile
from regraft.api import transfer
from regraft.api.changes import Installation, InstallReport
from regraft.api.outcome import exit_status
from regraft.api.profile import ProfileMigration, ProfileMigrationReport
from regraft.cli.changes import (
    action_lines,
    change_left_lines,
    confirm_plan,
    format_installation,
    join_parts,
    unresolved_lines,
)
from regraft.cli.options import FAIL_ON, PATH, Output, output_options, struct_options
from regraft.cli.output import ask, echo, echo_error, echo_json, format_written, report_errors, set_command_name
from regraft.errors import WrongUsage
from regraft.formats.cherry_v2.layout import REPORT_FILE, REPORT_PAGE
from regraft.language import format_count, join_list, tr
from regraft.ledger import ledger
from regraft.options import ImportOptions, ProfileMigrationOptions
from regraft.processes import interrupts, startup
from regraft.report import html as report_html
from regraft.report import migration as report_migration
from regraft.report import notices
from regraft.report.document import encoded
from regraft.stores.locate import CATALOG_FILE, KNOWLEDGE_FOLDER, Located
from regraft.stores.write_checks import places_read
from regraft.text import LONGEST_NAME, join_command, one_line, path_argument, printable, printable_lines

# What commands that write a library show: the plan, a question before it is carried out, and the result.


_ASKS = tr("Do not ask for confirmation if not everything can be migrated.")
#: Bases that are named at the end, before the rest is counted.
_SHOWN = 5


class PlanPrompt(msgspec.Struct):
    """Shows a migration's plan; on a terminal, asks whether to continue if something cannot be migrated."""

    output: Output
    #: The warnings of the plan that was shown.
    warnings: list[dict[str, Any]] = msgspec.field(default_factory=list)

    @property
    def is_silent(self) -> bool:
        """Whether the plan is not shown, because the output is for a program or the user wants none."""
        return self.output.quiet or self.output.as_json

    def __call__(self, planned: migrators.MigrationReport) -> bool:
        """Show a plan, and ask if not everything can be migrated; return whether to continue."""
        if self.is_silent:
            return True
        asks = not self.output.yes and startup.is_terminal(sys.stdin) and exit_status(planned, "error") != 0
        document = encoded(planned)
        if not asks:
            echo(report_migration.plan_line(document) + "\n")
            return True
        echo(f"{tr('Plan:')}\n{report_migration.format_migration(document)}")
        self.warnings = document["warnings"]
        return ask(tr("Not everything can be migrated. Continue?"))

    def without_shown_warnings(self, document: dict[str, Any]) -> dict[str, Any]:
        """Copy a report's document without the warnings that the plan has shown; with ``-v``, all are kept."""
        known = [] if self.output.verbose else self.warnings
        return {**document, "warnings": [one for one in document["warnings"] if one not in known]}


def print_run(migration: migrators.Migration, target: Path, page: Path | None, prompt: PlanPrompt) -> None:
    """Print the result of a migration or an import to the library ``target``; warnings already shown are not repeated.

    ``page`` is a second copy of the report page, if one was written.
    """
    output = prompt.output
    document = encoded(migration.report)
    if output.as_json:
        echo_json(document)
    else:
        news = prompt.without_shown_warnings(document)
        text = report_migration.format_migration(news, verbose=output.verbose > 0) + "\n"
        echo(text + _format_closing(document, _written_paths(target, page, wrote=migration.wrote), quiet=output.quiet))
    interrupts.ignore_stops()


def _written_paths(target: Path, page: Path | None, *, wrote: bool) -> list[Path]:
    """List the existing paths that a run has written: those of the library if ``wrote``, and the page."""
    names = (CATALOG_FILE, KNOWLEDGE_FOLDER, REPORT_FILE, REPORT_PAGE, ledger.FOLDER) if wrote else ()
    return [*(target / name for name in names if (target / name).exists()), *([page] if page else [])]


def _format_closing(document: dict[str, Any], written: list[Path], *, quiet: bool) -> str:
    """Format the last lines: the ``written`` paths and what to do next, or why nothing was written."""
    if written:
        return ("" if quiet else format_written(written) + "\n") + printable_lines(_done_lines(document))
    if document["run"]["dry_run"]:
        return tr("Dry run: nothing was written.\n")
    return printable_lines(_unchanged_lines(document))


def _unchanged_lines(document: dict[str, Any]) -> list[str]:
    """Say why a run wrote nothing, and what to do next about bases that were changed in the target."""
    nothing = tr("Nothing to do: the source has not changed since the last run.")
    if any(one["code"] == notices.KEPT_COMPLETED for one in document["warnings"]):
        # The source has changed, for the worse.
        nothing = tr("Nothing to do: {unchanged}.", unchanged=tr("nothing was written"))
    changed = [one["base"] for one in document["warnings"] if one["code"] == notices.CHANGED_SINCE]
    if not changed:
        return [nothing]
    names = {base.get("legacy_id", base["id"]): base["name"] for base in document["bases"]}
    named = join_list(one_line(names.get(base, base), LONGEST_NAME) for base in changed)
    target = document["target"]["path"]
    return [
        tr(
            "Not overwritten, because they were changed in {target} since they were migrated: {named}",
            target=printable(target),
            named=named,
        ),
        nothing,
        tr("Next: {value}", value=join_command(["regraft", "check", path_argument(target)])),
    ]


def _done_lines(document: dict[str, Any], *, next_steps: bool = True) -> list[str]:
    """Say how many bases are done and which failed; with ``next_steps``, also the commands to run next."""
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
            tr(
                "Failed: {name}; for the reason and the fix, run: regraft explain {error}",
                name=name,
                error=base["error"],
            )
        )
    if len(failed) > _SHOWN:
        lines.append(
            tr("Failed: {more_bases}, listed above", more_bases=format_count(len(failed) - _SHOWN, "more base"))
        )
    if not next_steps:
        return lines
    target = path_argument(document["target"]["path"])
    lines.append(tr("Next: {value}", value=join_command(["regraft", "check", target])))
    lines.append(
        tr(
            "To use it in the application: {value} --profile PROFILE",
            value=join_command(["regraft", "install", target]),
        )
    )
    return lines


@click.command()
@click.argument("source", type=PATH)
@click.option(
    "--profile", type=PATH, metavar="PROFILE", help=tr("Also install the library into this v2 profile, as one run.")
)
@click.option(
    "--to",
    "target",
    type=PATH,
    metavar="OUT",
    help=tr("The library's folder: new or empty. [default with --profile: library, or a free name like library-2]"),
)
@click.option("--report", "page", type=PATH, metavar="FILE.html", help=tr("Write the report page here too."))
@report_errors
@struct_options(ProfileMigrationOptions)
@output_options(yes=_ASKS, fail_on=FAIL_ON)
def migrate(
    source: Path,
    profile: Path | None,
    target: Path | None,
    page: Path | None,
    options: ProfileMigrationOptions,
    output: Output,
) -> None:
    """Migrate the knowledge base in SOURCE to a v2 library in OUT, and with --profile into the application's profile.

    SOURCE is a v1 backup (zip or folder), a v1 profile folder, an export folder, a knowledge JSON file beside its
    vector files, what a preview build wrote, a folder of Chroma, or a knowledge base of rsclaw. It is only read. A
    second run continues where the first one stopped, and leaves finished bases unchanged.

    With --profile, the bases are migrated and installed as one plan: the command asks once, nothing is written if the
    profile refuses them, and regraft undo PROFILE reverts both. The application must not be running. In scripts,
    --profile needs --yes.

    \b
    Example:
      regraft migrate cherry-studio.202503141200.zip --profile ~/.config/CherryStudio
      regraft migrate cherry-studio.202503141200.zip --to library
    """
    if profile is not None:
        report_html.check_page_path("migrate", page, *places_read(source), profile, *([target] if target else []))
        run_into_profile(source, profile, target, page, options, ProfilePrompt(output=output))
    if target is None:
        raise WrongUsage(
            problem=tr("neither --to nor --profile is given"), hint=tr("see regraft {name} --help", name="migrate")
        )
    if options.recreate_provider or options.as_new:
        raise WrongUsage(
            problem=tr("--recreate-provider and --as-new need --profile"), hint=tr("name it with --profile")
        )
    report_html.check_page_path("migrate", page, *places_read(source), target)
    prompt = PlanPrompt(output=output)
    migration = transfer.run_migration(
        source,
        target,
        options,
        progress=output.progress(),
        confirm=prompt,
        # Another folder may be read than the one that was given.
        on_open=None if prompt.is_silent else _echo_notices,
    )
    lost = report_html.write_last_page(page, lambda: report_migration.migration_page(encoded(migration.report)))
    print_run(migration, target, page if lost is None else None, prompt)
    if lost is not None:
        raise lost
    sys.exit(exit_status(migration.report, output.fail_on))


def run_into_profile(
    source: Path,
    profile: Path,
    target: Path | None,
    page: Path | None,
    options: ProfileMigrationOptions,
    prompt: ProfilePrompt,
) -> NoReturn:
    """Migrate a source into a profile, print the result, and exit; ``target`` is the library, ``page`` a report."""
    output = prompt.output
    done = api_profile.run_profile_migration(
        source,
        profile,
        target,
        options,
        progress=output.progress(),
        confirm=prompt,
        on_open=None if prompt.is_silent else _echo_notices,
    )
    lost = report_html.write_last_page(page, lambda: report_migration.migration_page(encoded(done.report)))
    if output.as_json:
        echo_json(encoded(done.report))
    else:
        echo(_format_profile_run(done, page if lost is None else None, prompt))
    if lost is not None:
        raise lost
    prompt.finish(done.report)
    interrupts.ignore_stops()
    sys.exit(exit_status(done.report, output.fail_on))


class ProfilePrompt(PlanPrompt):
    """Shows the plan of a migration into a profile and asks whether to continue.

    Raises:
        ConsentMissing: there is no terminal for the question, and ``--yes`` is missing.
    """

    def __call__(self, planned: migrators.MigrationReport) -> bool:
        """Show both parts of the plan and ask, unless the user said ``--yes``; return whether to continue."""
        assert isinstance(planned, ProfileMigrationReport)
        document = encoded(planned)
        if self.output.yes:
            if not self.is_silent and "preflight" in document:
                echo(report_migration.plan_line(document) + "\n")
            return True
        part = planned.install
        actions = action_lines(part.bases, part.actions, verbose=False)
        lines = join_parts(actions, change_left_lines(part.bases, part.actions, part.left, verbose=False))
        migration = report_migration.format_migration(document).splitlines()
        into = tr("In the profile {path}:", path=planned.profile.path)
        shown = [*migration, "", into, *(f"  {line}" for line in lines)]
        agrees = confirm_plan(shown, yes=False, as_json=self.output.as_json, asks=self.asks)
        self.warnings = document["warnings"]
        self.output.shown.extend(lines)
        return agrees

    def asks(self, question: str) -> bool:
        """Ask a question whose default answer is yes; return whether the user agrees."""
        return ask(question)

    def finish(self, report: ProfileMigrationReport) -> None:
        """Do nothing after the result is printed; the guided mode overrides this to offer to start the application."""


def _format_profile_run(done: ProfileMigration, page: Path | None, prompt: ProfilePrompt) -> str:
    """Format the result of a migration into a profile: the migration, then the installation.

    ``page`` is a second copy of the report page, if one was written.
    """
    report, output = done.report, prompt.output
    document = encoded(report)
    news = prompt.without_shown_warnings(document)
    parts = [report_migration.format_migration(news, verbose=output.verbose > 0)]
    assert report.head.target is not None
    target = Path(report.head.target.path)
    written = _written_paths(target, page, wrote=done.wrote_library)
    if written:
        parts.append("" if output.quiet else format_written(written))
        parts.append(printable_lines(_done_lines(document, next_steps=False)))
    parts.append(tr("In the profile {path}:", path=printable(report.profile.path)))
    parts.append(_format_install_part(done, output).lstrip("\n"))
    return "\n".join(text for text in parts if text)


def _format_install_part(done: ProfileMigration, output: Output) -> str:
    """Format what was installed in the profile, or why nothing was."""
    report, part = done.report, done.report.install
    if part.left and not part.actions and not done.wrote_library:
        none = tr("Nothing was written: the bases above cannot be installed in the profile.")
        return printable_lines([*unresolved_lines(part.bases, part.left, verbose=output.verbose > 0), "", none])
    head = structs.replace(report.head, target=report.profile)
    change = InstallReport(head=head, bases=part.bases, actions=part.actions, left=part.left, undo=part.undo)
    return format_installation(Installation(report=change, chosen=done.chosen, failed=done.failed), output)


def _echo_notices(source: Located) -> None:
    """Print the notices about a recognized source, for example that another folder is read instead."""
    for notice in source.notices:
        echo_error(tr("regraft: {what}", what=notice.message))


# ``regraft import``: a library from Parquet files of units.


_WITHOUT_FILES = tr(
    "A Parquet file does not contain the original files. To get them, copy raw/ of each base from the exported store.\n"
)


@click.command(name="import")
@click.argument("paths", type=PATH, nargs=-1, required=True, metavar="FILE.parquet...")
@click.option("--to", "target", type=PATH, required=True, metavar="OUT", help=tr("The library's folder: new or empty."))
@report_errors
@set_command_name("import")
@struct_options(ImportOptions)
@output_options(yes=_ASKS, fail_on=FAIL_ON, follows_links=False)
def import_(paths: tuple[Path, ...], target: Path, options: ImportOptions, output: Output) -> None:
    """Write the library in FILE.parquet to the folder OUT.

    Files are those of regraft export, of a library or a part of one. Vectors are restored byte for byte; ids, hashes
    and offsets are verified. The original files in raw/ are not part of the files. A second run continues where the
    first one stopped, and leaves finished bases unchanged.

    With --format chroma, one base becomes a new collection in the folder of Chroma OUT, as with regraft export.

    \b
    Example:
      regraft import units.parquet --to library
      regraft import units.parquet --format chroma --to chroma --collection handbook
    """
    if options.format == "chroma":
        # It imports readers of other systems, and NumPy, which a migration does not need.
        from regraft.cli.export import print_collection  # noqa: PLC0415

        print_collection(api.import_collection(paths, target, options, progress=output.progress()), target, output)
    prompt = PlanPrompt(output=output)
    migration = transfer.run_import(paths, target, options, progress=output.progress(), confirm=prompt)
    print_run(migration, target, None, prompt)
    if not prompt.is_silent:
        echo(_WITHOUT_FILES)
    sys.exit(exit_status(migration.report, output.fail_on))
