"""``regraft export``: units and vectors as a Parquet file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from regraft.cli.options import PATH, output_options
from regraft.cli.output import echo_json, reports_errors, say, written_list
from regraft.formats.parquet.export import ExportedBase, ExportReport
from regraft.formats.parquet.export import export as write_parquet
from regraft.kinds import Kind
from regraft.locate import located
from regraft.report import progress
from regraft.report.document import Run, encoded
from regraft.text import LONGEST_NAME, counted, one_line, shown_lines


@click.command()
@click.argument("path", type=PATH)
@click.argument("target", type=PATH, metavar="FILE.parquet")
@click.option("--base", "bases", multiple=True, metavar="ID", help="Only this base; may be repeated.")
@click.option("--v1", "from_v1", is_flag=True, help="Of v1 data: its old table, in the same columns.")
@output_options
@reports_errors
def export(
    path: Path,
    target: Path,
    bases: tuple[str, ...],
    from_v1: bool,
    as_json: bool,
    quiet: bool,
    verbose: int,
    kind: str | None,
) -> None:
    """Write the units of PATH, with texts and vectors, to FILE.parquet.

    PATH is a library, a v2 profile or backup, one base's folder or an index.sqlite; with --v1 a v1 source or one vector
    file. It is only read. The file needs pyarrow: pip install "regraft[parquet]".
    """
    run = Run(command="export", target_kind="parquet", target=target)
    with located(path, Kind(kind) if kind else None) as found:
        run.source_kind, run.source = found.kind.value, found.path if found.notices else path
        parts = write_parquet(found, target, bases, progress.for_person(quiet=quiet or as_json), from_v1=from_v1)
    run.end()
    report = ExportReport(head=run.head(), bases=[part.report() for part in parts.bases])
    if as_json:
        echo_json(encoded(report))
    else:
        say(shown_lines(_line(base, verbose=verbose > 0) for base in report.bases) + written_list([target]))
    sys.exit(int(any(base.problem or base.rows.skipped for base in report.bases)))


def _line(base: ExportedBase, *, verbose: bool) -> str:
    message = f"{counted(base.rows.carried, 'unit')}, {counted(base.vectors, 'vector')}"
    if base.dimensions:
        message += f" of {base.dimensions} dimensions"
    for reason, count in base.rows.skipped.items():
        message += f", left out: {count:,} {reason}"
    if verbose:
        for reason, count in base.left_out.items():
            message += f", not in a file of units: {count:,} {reason}"
    if base.problem:
        message += f" ({base.problem})"
    return f"{one_line(base.name, LONGEST_NAME)}: {message}"
