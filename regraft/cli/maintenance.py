"""The commands that change a store without embedding, and ``history`` and ``undo``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from regraft import api, language
from regraft.api import changes as api_changes
from regraft.cli.changes import (
    action_lines,
    change_options,
    confirm_change,
    confirm_lines,
    format_change,
    format_installation,
    join_parts,
    print_and_exit,
    run_change,
)
from regraft.cli.options import ASKS, PATH, Output, output_options, report_retries, struct_options
from regraft.cli.output import echo, echo_error, echo_json, report_errors
from regraft.language import current_language, format_count, tr
from regraft.options import (
    ChangeOptions,
    FixOptions,
    GcOptions,
    InstallOptions,
    Options,
    RepairOptions,
    RescueOptions,
    UndoOptions,
    UpgradeOptions,
)
from regraft.report.document import encoded
from regraft.report.labels import label_of
from regraft.text import format_bytes, one_line, printable, printable_lines
from repair.changes.run import ChangeReport, describe_removed_vectors


@click.command()
@click.argument("path", type=PATH)
@report_errors
@struct_options(FixOptions)
@change_options
def fix(path: Path, options: FixOptions, output: Output) -> None:
    """Make the fixes that regraft check recommends for the store at PATH: upgrade, rescue, repair, reconcile and gc, in
    this order.

    The command asks once, and one regraft undo reverts all changes. Nothing is embedded and nothing is guessed. A text
    or vector that could be listed or attached again is kept, unless another copy is proven or --only names its finding.
    Unresolved findings are listed at the end, with the next command.

    \b
    Example:
      regraft fix library --dry-run
    """
    run_change(api.fix, path, options, output)


@click.command()
@click.argument("path", type=PATH)
@report_errors
@struct_options(GcOptions)
@change_options
def gc(path: Path, options: GcOptions, output: Output) -> None:
    """Remove vectors, texts and files that nothing refers to from the store at PATH.

    Files go to a dated trash below .regraft, where they are kept for some days; regraft undo brings them back.

    \b
    Example:
      regraft gc library --vacuum
    """
    run_change(api.gc, path, options, output)


@click.command()
@click.argument("path", type=PATH)
@report_errors
@struct_options(RepairOptions)
@change_options
def repair(path: Path, options: RepairOptions, output: Output) -> None:
    """Repair what regraft check finds in the store at PATH, if other data prove the right value.

    Nothing is guessed: what cannot be derived is reported and not changed. Vectors that may be right are kept; those
    that cannot be are deleted, to be embedded again. regraft undo undoes a run.

    \b
    Example:
      regraft repair library --dry-run
    """
    run_change(api.repair, path, options, output)


@click.command()
@click.argument("path", type=PATH)
@report_errors
@struct_options(UpgradeOptions)
@change_options
def upgrade(path: Path, options: UpgradeOptions, output: Output) -> None:
    """Convert older index files and catalogs in the store at PATH to the current layout, with all vectors.

    Older files are index files of version 1, half-applied upgrades, the tables of preview builds, and the catalog of a
    library that an earlier regraft wrote. The old files are kept, so that regraft undo restores them byte for byte.

    \b
    Example:
      regraft upgrade library
    """
    run_change(api.upgrade, path, options, output)


@click.command()
@click.argument("path", type=PATH)
@report_errors
@struct_options(RescueOptions)
@change_options
def rescue(path: Path, options: RescueOptions, output: Output) -> None:
    """Recover bases that the application's upgrade did not migrate to the v2 profile at PATH, from v1's remaining
    files.

    Failed bases, folders that were not migrated, and bases whose index is gone or empty get their texts and vectors;
    bases and items keep their ids.

    \b
    Example:
      regraft rescue ~/.config/CherryStudio --dry-run
    """
    run_change(api.rescue, path, options, output)


@click.command(name="clear-failed")
@click.argument("path", type=PATH)
@report_errors
@struct_options(ChangeOptions)
@change_options
def clear_failed(path: Path, options: ChangeOptions, output: Output) -> None:
    """Mark notes that the embedder refused as pending again, in the codex-mem database at PATH.

    regraft backfill tries them again. The notes stay as they are: only the status of their vectors changes.

    \b
    Example:
      regraft clear-failed ~/.codex-mem/codex-mem.db
    """
    run_change(api.clear_failed, path, options, output)


@click.command()
@click.argument("path", type=PATH)
@click.option(
    "--profile", type=PATH, required=True, metavar="PROFILE", help=tr("The application's profile folder (v2).")
)
@report_errors
@struct_options(InstallOptions)
@change_options
@report_retries
def install(path: Path, profile: Path, options: InstallOptions, output: Output) -> None:
    """Put bases of PATH into a v2 profile.

    PATH is a library, a pack, a v2 backup or another v2 profile; it is only read. The application must not be running.
    Its database is backed up first, existing data is not overwritten, and regraft undo PROFILE reverts the
    installation. --base takes names, v1 or v2 ids, or a unique beginning of either.

    \b
    Example:
      regraft install library --profile ~/.config/CherryStudio
    """
    installed = api_changes.install_bases(
        path, profile, options, progress=output.progress(), confirm=confirm_change(output)
    )
    print_and_exit(installed.report, output, format_installation(installed, output))


#: Actions of a run that are shown before the rest is counted.
_SHOWN = 5


@click.command()
@click.argument("path", type=PATH)
@report_errors
@struct_options(Options)
@output_options()
def history(path: Path, options: Options, output: Output) -> None:
    """List the runs of regraft on the store at PATH, and which can be undone. Nothing is written.

    \b
    Example:
      regraft history library
    """
    report = api.history(path, options)
    if output.as_json:
        echo_json(encoded(report))
        return
    lines: list[str] = []
    for one in report.runs:
        undo_state = {
            "possible": tr("can be undone with regraft undo (keeps {bytes})", bytes=format_bytes(one.undo.bytes)),
            "undone": tr("undone"),
            "unsettled": tr("was stopped; the next command that changes the store completes or reverts it"),
            "expired": tr("can no longer be undone"),
            "none": tr("nothing to undo"),
        }[one.undo.state]
        lines += [f"{one.started_at}  {one.command}  {label_of(one.status)}  {one.id}", f"  {undo_state}"]
        if output.quiet:
            continue
        shown = one.actions if output.verbose > 0 else one.actions[:_SHOWN]
        lines += [f"  - {one_line(language.translate_text(action.message, current_language()))}" for action in shown]
        more = len(one.actions) - len(shown)
        if more:
            lines.append(tr("  … and {more_actions} (-v shows all)", more_actions=format_count(more, "more action")))
    echo(printable_lines(lines) or tr("No runs.\n"))


@click.command()
@click.argument("path", type=PATH)
@click.argument("run_id", metavar="[RUN]", required=False)
@report_errors
@struct_options(UndoOptions)
@output_options(yes=ASKS)
def undo(path: Path, run_id: str | None, options: UndoOptions, output: Output) -> None:
    """Undo the run RUN on the store at PATH, or the latest run that can be undone.

    Undo is refused if any file or row that the run changed has been changed again since.

    \b
    Example:
      regraft undo library --dry-run
    """

    def confirm(planned: ChangeReport) -> bool:
        """Show what would be undone, and ask; with ``--yes``, only warn of the vectors that are removed."""
        lines, warning = action_lines(planned.bases, planned.actions, verbose=False), _removal_lines(planned, path)
        for line in warning if output.yes else ():
            echo_error(line)
        return confirm_lines(output, join_parts(lines, warning))

    report = api.undo(path, run_id, options, progress=output.progress(), confirm=confirm)
    if output.as_json:
        echo_json(encoded(report))
        sys.exit(0)
    text = format_change(report, verbose=output.verbose > 0, shown=output.shown)
    if options.dry_run:
        text += printable_lines(_removal_lines(report, path))
    else:
        text += tr("Undone: run {undone}; changed {path}.\n", undone=report.undone, path=printable(path))
    echo(text)
    sys.exit(0)


def _removal_lines(planned: ChangeReport, path: Path) -> list[str]:
    """Return the line that warns of the vectors that an undo in the store at ``path`` removes, if there are any."""
    warning = describe_removed_vectors(planned, path)
    return [] if warning is None else [warning]
