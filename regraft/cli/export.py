"""``regraft export``: units and vectors as a Parquet file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from regraft import api
from regraft.cli import options
from regraft.cli.changes import unresolved_lines
from regraft.cli.options import PATH, output_options, parse_time, visible_option
from regraft.cli.output import echo, echo_error, echo_file, echo_json, format_written, report_errors
from regraft.disk import durable
from regraft.errors import WrongUsage
from regraft.formats.parquet.export import ExportedBase, ExportReport, SourceExport
from regraft.formats.parquet.export import export as write_parquet
from regraft.kinds import Kind
from regraft.language import format_count, tr
from regraft.report import notices, progress
from regraft.report.document import Run, encoded
from regraft.report.progress import Progress
from regraft.stores.locate import Located, open_store
from regraft.text import LONGEST_NAME, format_bytes, one_line, printable, printable_lines
from repair.cherry_v2 import pack as packing

#: The target that stands for standard output.
STDOUT = Path("-")


@click.command()
@click.argument("path", type=PATH)
@click.argument("target", type=PATH, metavar="FILE.parquet")
@click.option(
    "--base",
    "bases",
    multiple=True,
    metavar="ID",
    shell_complete=options.complete_bases,
    help=tr("Only this base; may be repeated."),
)
@visible_option
@click.option("--v1", "from_v1", is_flag=True, help=tr("Of v1 data: its old table, in the same columns."))
@output_options
@report_errors
def export(  # noqa: PLR0913, PLR0917 - one parameter for every option
    path: Path,
    target: Path,
    bases: tuple[str, ...],
    visible_to: tuple[str, ...],
    from_v1: bool,
    as_json: bool,
    quiet: bool,
    verbose: int,
    kind: str | None,
) -> None:
    """Write the units of PATH, with texts and vectors, to FILE.parquet.

    PATH is a library, a v2 profile or backup, one base's folder, an index.sqlite or a knowledge base of rsclaw; with
    --v1 a v1 source or one vector file. It is only read. - instead of FILE.parquet is standard output. The file needs
    pyarrow: pip install "regraft[parquet]".

    \b
    Example:
      regraft export library units.parquet --base Handbook
    """
    if target == STDOUT:
        _check_stdout(as_json=as_json)
    watch = progress.terminal_progress(quiet=quiet or as_json)
    run = Run(command="export", target_kind="parquet", target=target)
    with open_store(path, Kind(kind) if kind else None) as found:
        run.source_kind, run.source = found.kind.value, found.path if found.notices else path
        if target == STDOUT:
            parts = _to_stdout(found, bases, watch, from_v1=from_v1, visible_to=visible_to)
        else:
            parts = write_parquet(found, target, bases, watch, from_v1=from_v1, visible_to=visible_to)
    run.end()
    report = ExportReport(head=run.head(), bases=[part.report() for part in parts.bases])
    lines = [_line(base, verbose=verbose > 0) for base in report.bases]
    if as_json:
        echo_json(encoded(report))
    elif target == STDOUT:
        for line in lines:
            echo_error(line)
    else:
        echo(printable_lines(lines) if quiet else printable_lines(lines) + format_written([target]))
    sys.exit(int(any(base.problem or base.rows.skipped for base in report.bases)))


def _check_stdout(*, as_json: bool) -> None:
    """Refuse to write a file to where it would be mixed up with text.

    Raises:
        WrongUsage
    """
    if as_json:
        hint = tr("name a file, or leave out --json")
        raise WrongUsage(problem=tr("--json and the file would both go to standard output"), hint=hint)
    if sys.stdout.isatty():
        hint = tr("send it to a file or another program, or name a file")
        raise WrongUsage(problem=tr("a Parquet file is not text, and standard output is a terminal"), hint=hint)


def _to_stdout(
    source: Located, bases: tuple[str, ...], watch: Progress, *, from_v1: bool, visible_to: tuple[str, ...]
) -> SourceExport:
    """Write the file to standard output once it is whole."""
    with durable.temporary_folder() as folder:
        whole = folder / "units.parquet"
        parts = write_parquet(source, whole, bases, watch, from_v1=from_v1, visible_to=visible_to)
        echo_file(whole)
    return parts


def _line(base: ExportedBase, *, verbose: bool) -> str:
    message = f"{format_count(base.rows.carried, 'unit')}, {format_count(base.vectors, 'vector')}"
    if base.dimensions:
        message += tr(" of {dimensions} dimensions", dimensions=base.dimensions)
    for reason, count in base.rows.skipped.items():
        message += tr(", left out: {count:,} {reason}", count=count, reason=reason)
    if verbose:
        for reason, count in base.left_out.items():
            message += tr(", not in a file of units: {count:,} {reason}", count=count, reason=reason)
    if base.problem:
        message += f" ({base.problem})"
    return f"{one_line(base.name, LONGEST_NAME)}: {message}"


# ``regraft pack``: chosen bases as one file, for another machine.


@click.command()
@click.argument("source", type=PATH)
@click.argument("target", type=PATH, metavar="FILE.zip")
@click.option(
    "--base",
    "bases",
    multiple=True,
    metavar="NAME",
    shell_complete=options.complete_bases,
    help=tr("Only this base; may be repeated."),
)
@click.option("--dry-run", is_flag=True, help=tr("Show what would be packed, and write nothing."))
@click.option("-y", "--yes", is_flag=True, help=tr("Accepted, and never needed: nothing that is there is changed."))
@click.option("--now", callback=parse_time, metavar="TIME", help=tr("The run's time, ISO 8601 with Z. [default: now]"))
@output_options
@report_errors
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
        progress=progress.terminal_progress(quiet=quiet or as_json),
    )
    if as_json:
        echo_json(encoded(report))
    else:
        echo(_format_pack(report, target, verbose=verbose > 0))
    sys.exit(int(any(notices.at_least(one.severity, "warning") for one in report.left)))


def _format_pack(report: packing.PackReport, target: Path, *, verbose: bool) -> str:
    lines = [_base_line(base) for base in report.bases]
    lines += unresolved_lines(report.bases, report.left, verbose=verbose)
    lines += ["", *_closing(report, target)]
    return printable_lines(lines)


def _base_line(base: packing.PackedBaseReport) -> str:
    held = f"{format_count(base.items, 'item')}, {format_count(base.files, 'file')}, {format_bytes(base.bytes)}"
    return f"{one_line(base.name)}  ({base.id}): {held}"


def _closing(report: packing.PackReport, target: Path) -> list[str]:
    packed = {base.id for base in report.bases}
    left = {one.base for one in report.left} - packed
    size = tr(
        "{packed:,} of {bases}, {bytes}",
        packed=len(packed),
        bases=format_count(len(packed) + len(left), "base"),
        bytes=format_bytes(report.bytes),
    )
    if report.outcome == "planned":
        return [tr("Would pack {size}.", size=size), tr("Dry run: nothing was written.")]
    if report.outcome == "unchanged":
        return [
            tr("{target} is this very pack already ({size}): nothing was written.", target=printable(target), size=size)
        ]
    next_step = tr("On the other machine: regraft install {path} --profile PROFILE", path=printable(Path(target.name)))
    return [tr("Packed {size}.", size=size), *format_written([target]).splitlines(), next_step]
