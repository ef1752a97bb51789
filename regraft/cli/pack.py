"""``regraft pack``: chosen bases as one file, for another machine."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from regraft import api
from regraft.cli import completion
from regraft.cli.changing import left_lines
from regraft.cli.options import PATH, output_options, time_of
from regraft.cli.output import echo_json, reports_errors, say, written_list
from regraft.language import tr
from regraft.report import notices, progress
from regraft.report.document import encoded
from regraft.report.progress import human_bytes
from regraft.text import counted, one_line, shown, shown_lines
from repair.cherry_v2 import pack as packing


@click.command()
@click.argument("source", type=PATH)
@click.argument("target", type=PATH, metavar="FILE.zip")
@click.option(
    "--base",
    "bases",
    multiple=True,
    metavar="NAME",
    shell_complete=completion.bases,
    help=tr("Only this base; may be repeated."),
)
@click.option("--dry-run", is_flag=True, help=tr("Show what would be packed, and write nothing."))
@click.option("-y", "--yes", is_flag=True, help=tr("Accepted, and never needed: nothing that is there is changed."))
@click.option("--now", callback=time_of, metavar="TIME", help=tr("The run's time, ISO 8601 with Z. [default: now]"))
@output_options
@reports_errors
def pack(  # noqa: PLR0913, PLR0917 - one parameter for every option
    source: Path,
    target: Path,
    bases: tuple[str, ...],
    dry_run: bool,
    yes: bool,  # noqa: ARG001 - part of what every command that writes takes
    now: int | None,
    as_json: bool,
    quiet: bool,
    verbose: int,
    kind: str | None,
) -> None:
    """Write bases of SOURCE to FILE.zip: vectors, files, rows and checksums, for another machine.

    SOURCE is a library, a v2 profile, a v2 backup or another pack. It is only read. Without --base all bases are
    packed; a base is named by its name or id, or a unique beginning of either. Unpacked, FILE.zip is a library;
    regraft install puts it into another profile.

    \b
    Example:
      regraft pack ~/.config/CherryStudio handbook.zip --base Handbook
    """
    report = api.pack(
        source,
        target,
        kind=kind,
        bases=bases,
        dry_run=dry_run,
        now_ms=now,
        progress=progress.for_person(quiet=quiet or as_json),
    )
    if as_json:
        echo_json(encoded(report))
    else:
        say(_as_text(report, target, verbose=verbose > 0))
    sys.exit(int(any(notices.at_least(one.severity, "warning") for one in report.left)))


def _as_text(report: packing.PackReport, target: Path, *, verbose: bool) -> str:
    lines = [_base_line(base) for base in report.bases]
    lines += left_lines(report.bases, report.left, verbose=verbose)
    lines += ["", *_closing(report, target)]
    return shown_lines(lines)


def _base_line(base: packing.PackedBaseReport) -> str:
    held = f"{counted(base.items, 'item')}, {counted(base.files, 'file')}, {human_bytes(base.bytes)}"
    return f"{one_line(base.name)}  ({base.id}): {held}"


def _closing(report: packing.PackReport, target: Path) -> list[str]:
    packed = {base.id for base in report.bases}
    left = {one.base for one in report.left} - packed
    size = tr(
        "{packed:,} of {bases}, {bytes}",
        packed=len(packed),
        bases=counted(len(packed) + len(left), "base"),
        bytes=human_bytes(report.bytes),
    )
    if report.outcome == "planned":
        return [tr("Would pack {size}.", size=size), tr("Dry run: nothing was written.")]
    if report.outcome == "unchanged":
        return [
            tr("{target} is this very pack already ({size}): nothing was written.", target=shown(target), size=size)
        ]
    next_step = tr("On the other machine: regraft install {path} --profile PROFILE", path=shown(Path(target.name)))
    return [tr("Packed {size}.", size=size), *written_list([target]).splitlines(), next_step]
