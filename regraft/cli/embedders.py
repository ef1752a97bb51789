"""``regraft embedders``: which embedders are configured, for which bases, and whether they answer."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from regraft import api
from regraft.api.embedders import EmbeddersReport, TestedEmbedder
from regraft.cli import completion
from regraft.cli.embedding import config_option
from regraft.cli.options import PATH, output_options
from regraft.cli.output import echo_json, reports_errors, say
from regraft.columns import columns, padded
from regraft.errors import WORTH_READING
from regraft.language import joined, tr
from regraft.report.document import encoded
from regraft.text import LONGEST_NAME, argument, counted, one_line, shown_lines

#: Every embedder.
_ALL = "*"


@click.command()
@click.argument("path", type=PATH, required=False)
@config_option
@click.option(
    "--base",
    "bases",
    multiple=True,
    metavar="ID",
    shell_complete=completion.bases,
    help=tr("Only this base; may be repeated."),
)
@click.option("--snippet", is_flag=True, help=tr("Print what to write into the configuration for the bases of PATH."))
@click.option("--write", is_flag=True, help=tr("Write that as the configuration, which must not be there."))
@click.option(
    "--test",
    is_flag=False,
    flag_value=_ALL,
    default=None,
    metavar="[NAME]",
    help=tr("Send two short texts to the embedder NAME, or to every one, and say what comes."),
)
@output_options
@reports_errors
def embedders(path: Path | None, snippet: bool, test: str | None, as_json: bool, quiet: bool, **options: Any) -> None:
    """List the embedders of regraft.yaml, and the bases of the store at PATH that each is for.

    Nothing is sent but by --test, and nothing is written but by --write. Without a configuration, what to write into it
    is printed.

    \b
    Example:
      regraft embedders library --snippet
    """
    report = api.list_embedders(
        path,
        kind=options["kind"],
        bases=options["bases"],
        config=options["config_path"],
        test=test == _ALL or test or False,
        write=options["write"],
    )
    if as_json:
        echo_json(encoded(report))
    elif snippet:
        say(report.snippet, as_it_is=True)
    else:
        say(as_text(report, path, quiet=quiet))
    if any(one.problem is not None for one in report.tested):
        sys.exit(WORTH_READING)


def as_text(report: EmbeddersReport, path: Path | None, *, quiet: bool) -> str:
    """Return the embedders as text for a person."""
    lines = []
    if report.written:
        lines.append(
            tr("{config} was written. Look it through; a key goes into the environment.", config=report.config)
        )
    if not report.there:
        lines.append(tr("There is no {config}.", config=report.config))
    elif not report.embedders:
        lines.append(tr("{config} names no embedder.", config=report.config))
    lines += _table(report) + _without(report)
    lines += [_test_line(one) for one in report.tested]
    if not report.embedders:
        lines += ["", *report.snippet.splitlines()] if lines else report.snippet.splitlines()
    if not quiet:
        lines += ["", tr("Next: {command}", command=_next(report, path))]
    return shown_lines(lines)


def _table(report: EmbeddersReport) -> list[str]:
    """Return the embedders as a table: its columns as wide as they have to be."""
    if not report.embedders:
        return []
    rows = [(tr("embedder"), tr("provider"), tr("model"), tr("dimensions"), tr("bases"))]
    for one in report.embedders:
        dimensions = "-" if one.dimensions is None else str(one.dimensions)
        rows.append((one.name, one.provider, one_line(one.model), dimensions, _names(one.bases)))
    widths = [max(columns(row[place]) for row in rows) for place in range(4)]
    return ["  ".join([*map(padded, row, widths), row[-1]]).rstrip() for row in rows]


def _names(bases: Sequence[str]) -> str:
    named = [one_line(base, LONGEST_NAME) for base in bases[:3]]
    more = len(bases) - len(named)
    return joined([*named, *([tr("{more:,} more", more=more)] if more else [])]) if named else "-"


def _without(report: EmbeddersReport) -> list[str]:
    """Return the models that no embedder is of."""
    lines = []
    for model in report.models:
        about = "" if model.dimensions is None else tr(", {dimensions} dimensions", dimensions=model.dimensions)
        if not model.embedders:
            said = tr("no embedder is of {model}", model=model.model_id or tr("a model that nothing names"))
            lines.append(one_line(f"{said}{about}: {_names(model.bases)}"))
    return ["", *lines] if lines and report.embedders else lines


def _test_line(one: TestedEmbedder) -> str:
    if one.problem is not None:
        return tr("{name}: failed: {problem} [{code}]", name=one.name, problem=one_line(one.problem), code=one.code)
    unit = tr("of unit length") if one.unit_length else tr("not of unit length")
    return tr(
        "{name}: {vectors} of {dimensions} dimensions in {seconds:.2f} s, {unit}",
        name=one.name,
        vectors=counted(2, "vector"),
        dimensions=one.dimensions,
        seconds=one.seconds,
        unit=unit,
    )


def _next(report: EmbeddersReport, path: Path | None) -> str:
    place = [] if path is None else [argument(path)]
    if not report.there:
        return shlex.join(["regraft", "embedders", *place, "--write"])
    if report.written or path is None:
        return shlex.join(["regraft", "embedders", *place, "--test"])
    if report.models and not any(one.embedders for one in report.models):
        return shlex.join(["regraft", "embedders", *place, "--snippet"])
    return shlex.join(["regraft", "backfill", *place, "--dry-run"])
