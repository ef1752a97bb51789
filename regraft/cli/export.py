"""``regraft export``: units and vectors as a Parquet file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from regraft.cli import completion
from regraft.cli.options import PATH, output_options, visible_option
from regraft.cli.output import echo_json, note, reports_errors, say, say_bytes, written_list
from regraft.errors import WrongUsage
from regraft.formats.parquet.export import ExportedBase, ExportReport, Parts
from regraft.formats.parquet.export import export as write_parquet
from regraft.kinds import Kind
from regraft.language import tr
from regraft.ledger import durable
from regraft.locate import Located, located
from regraft.report import progress
from regraft.report.document import Run, encoded
from regraft.report.progress import Progress
from regraft.text import LONGEST_NAME, counted, one_line, shown_lines

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
    shell_complete=completion.bases,
    help=tr("Only this base; may be repeated."),
)
@visible_option
@click.option("--v1", "from_v1", is_flag=True, help=tr("Of v1 data: its old table, in the same columns."))
@output_options
@reports_errors
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
    watch = progress.for_person(quiet=quiet or as_json)
    run = Run(command="export", target_kind="parquet", target=target)
    with located(path, Kind(kind) if kind else None) as found:
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
            note(line)
    else:
        say(shown_lines(lines) if quiet else shown_lines(lines) + written_list([target]))
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
) -> Parts:
    """Write the file to standard output once it is whole."""
    with durable.temporary_folder() as folder:
        whole = folder / "units.parquet"
        parts = write_parquet(source, whole, bases, watch, from_v1=from_v1, visible_to=visible_to)
        say_bytes(whole)
    return parts


def _line(base: ExportedBase, *, verbose: bool) -> str:
    message = f"{counted(base.rows.carried, 'unit')}, {counted(base.vectors, 'vector')}"
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
