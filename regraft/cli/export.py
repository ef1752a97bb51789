"""``regraft export``: units and vectors as a Parquet file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

from regraft import api
from regraft.api import transfer
from regraft.api.outcome import exit_status
from regraft.cli.changes import unresolved_lines
from regraft.cli.options import PATH, Output, output_options, struct_options
from regraft.cli.output import echo, echo_error, echo_file, echo_json, format_written, report_errors
from regraft.disk import scratch
from regraft.errors import WrongUsage
from regraft.formats.parquet.export import ExportedBase, ExportReport, WrittenCollection
from regraft.language import format_count, join_list, tr
from regraft.options import ExportOptions, PackOptions
from regraft.processes import startup
from regraft.report.document import encoded
from regraft.text import LONGEST_NAME, format_bytes, one_line, path_argument, printable, printable_lines, quote_word
from repair.cherry_v2 import pack as packing

#: The target that stands for standard output.
STDOUT = Path("-")


@click.command()
@click.argument("path", type=PATH)
@click.argument("file", type=PATH, required=False, metavar="FILE.parquet")
@click.option("--to", "folder", type=PATH, metavar="DIR", help=tr("Folder of Chroma, with --format chroma."))
@report_errors
@struct_options(ExportOptions)
@output_options()
def export(path: Path, file: Path | None, folder: Path | None, options: ExportOptions, output: Output) -> None:
    """Write the units of PATH, with texts and vectors, to FILE.parquet, or to a collection of Chroma.

    PATH is a library, a v2 profile or backup, one base's folder, an index.sqlite, a knowledge base of rsclaw or a
    folder of Chroma; with --v1 a v1 source or one vector file. It is only read. - instead of FILE.parquet is standard
    output. The file needs pyarrow: pip install "regraft[parquet]".

    With --format chroma, one base becomes a new collection in the folder of Chroma DIR, which is created if it does not
    exist. The vectors are read back and compared bit for bit, and regraft undo DIR removes the collection. This needs
    pip install "regraft[chroma]".

    \b
    Example:
      regraft export library units.parquet --base Handbook
      regraft export library --base Handbook --format chroma --to chroma --collection handbook
    """
    target = _choose_target(file, folder, options)
    if options.format == "chroma":
        print_collection(api.export(path, target, options, progress=output.progress()), target, output)
    if target == STDOUT:
        # The file must not be mixed up with text.
        if output.as_json:
            hint = tr("name a file, or leave out --json")
            raise WrongUsage(problem=tr("--json and the file would both be written to standard output"), hint=hint)
        if startup.is_terminal(sys.stdout):
            hint = tr("send it to a file or another program, or name a file")
            raise WrongUsage(problem=tr("standard output is a terminal, and a Parquet file is not text"), hint=hint)
        with scratch.temporary_folder() as temporary:
            written = temporary / "units.parquet"
            report = transfer.export_units(path, target, options, file=written, progress=output.progress())
            echo_file(written)
    else:
        report = api.export(path, target, options, progress=output.progress())
    lines = [_format_base(base, verbose=output.verbose > 0) for base in report.bases]
    if output.as_json:
        echo_json(encoded(report))
    elif target == STDOUT:
        for line in lines:
            echo_error(line)
    else:
        echo(printable_lines(lines) if output.quiet else printable_lines(lines) + format_written([target]))
    sys.exit(exit_status(report))


def _choose_target(file: Path | None, folder: Path | None, options: ExportOptions) -> Path:
    """Return the path to write to: ``file`` for Parquet, ``folder`` for a collection of Chroma.

    Raises:
        WrongUsage: the one that the format needs is missing, or the other is given.
    """
    is_collection = options.format == "chroma"
    target, other = (folder, file) if is_collection else (file, folder)
    if target is not None and other is None:
        return target
    if is_collection:
        problem, hint = (
            tr("--format chroma writes to a folder"),
            tr("name the folder with --to DIR, and leave out FILE"),
        )
    else:
        problem, hint = (
            tr("a Parquet file is written to the file that follows PATH"),
            tr("give FILE.parquet after PATH, and leave out --to"),
        )
    raise WrongUsage(problem=problem, hint=hint)


def print_collection(report: ExportReport, target: Path, output: Output) -> NoReturn:
    """Print the report of an export to the collection of Chroma in the folder ``target``, and exit."""
    assert isinstance(report.collection, WrittenCollection)
    written, is_planned = report.collection, report.head.run.dry_run
    if output.as_json:
        echo_json(encoded(report))
    else:
        lines = [_format_base(base, verbose=output.verbose > 0) for base in report.bases]
        facts = {"name": written.name, "entries": format_count(written.entries, "entry"), "path": printable(target)}
        if is_planned:
            message = tr(
                "Would write the collection {name} with {entries} to {path} (distance {distance}).",
                distance=written.distance,
                **facts,
            )
        else:
            message = tr(
                "Wrote the collection {name} with {entries} to {path} (distance {distance}).",
                distance=written.distance,
                **facts,
            )
        lines.append(message)
        if is_planned:
            lines.append(tr("Dry run: nothing was written."))
        elif not output.quiet:
            lines.append(tr("To undo this: regraft undo {path}", path=quote_word(path_argument(target))))
        echo(printable_lines(lines))
    sys.exit(exit_status(report))


def _format_base(base: ExportedBase, *, verbose: bool) -> str:
    """Format what was exported of a base, and what was left out; ``verbose``: also units that belong in no file."""
    message = join_list((format_count(base.rows.carried, "unit"), format_count(base.vectors, "vector")))
    if base.dimensions:
        message += tr(" of {dimensions} dimensions", dimensions=base.dimensions)
    for reason, count in base.rows.skipped.items():
        message += tr(", left out: {count:,} {reason}", count=count, reason=reason)
    if verbose:
        for reason, count in base.left_out.items():
            message += tr(", not in a file of units: {count:,} {reason}", count=count, reason=reason)
    if base.problem:
        message += f" ({base.problem})"
    return tr("{name}: {problem}", name=one_line(base.name, LONGEST_NAME), problem=message)


# ``regraft pack``: chosen bases as one file, for another machine.


@click.command()
@click.argument("source", type=PATH)
@click.argument("target", type=PATH, metavar="FILE.zip")
@report_errors
@struct_options(PackOptions)
@output_options(yes=tr("Accepted, but not needed: pack changes no existing file."))
def pack(source: Path, target: Path, options: PackOptions, output: Output) -> None:
    """Write bases of SOURCE to FILE.zip: vectors, files, rows and checksums, for another machine.

    SOURCE is a library, a v2 profile, a v2 backup or another pack. It is only read. Without --base all bases are
    packed; a base is named by its name or id, or a unique beginning of either. Unpacked, FILE.zip is a library;
    regraft install puts it into another profile.

    \b
    Example:
      regraft pack ~/.config/CherryStudio handbook.zip --base Handbook
    """
    report = api.pack(source, target, options, progress=output.progress())
    if output.as_json:
        echo_json(encoded(report))
    else:
        lines = []
        for base in report.bases:
            held = (format_count(base.items, "item"), format_count(base.files, "file"), format_bytes(base.bytes))
            lines.append(f"{one_line(base.name)}  ({base.id}): {join_list(held)}")
        lines += unresolved_lines(report.bases, report.left, verbose=output.verbose > 0)
        lines += ["", *_closing_lines(report, target)]
        echo(printable_lines(lines))
    sys.exit(exit_status(report))


def _closing_lines(report: packing.PackReport, target: Path) -> list[str]:
    """Format the last lines of ``pack``: what is in the file ``target``, and the command for the other machine."""
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
        return [tr("Nothing to do: {target} already has these bases ({size}).", target=printable(target), size=size)]
    word = quote_word(path_argument(target.name))
    next_step = tr("On the other machine: regraft install {path} --profile PROFILE", path=word)
    return [tr("Packed {size}.", size=size), *format_written([target]).splitlines(), next_step]
