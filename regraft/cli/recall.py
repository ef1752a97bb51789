"""``regraft recall``: lines of a note."""

from __future__ import annotations

import re
from pathlib import Path

import click

from regraft import api
from regraft.cli.options import PATH, output_options
from regraft.cli.output import echo_json, note, reports_errors, say
from regraft.language import joined, tr
from regraft.ranking.angel_memory import Span
from regraft.ranking.recall_report import RecallReport
from regraft.report.document import encoded
from regraft.text import counted, one_line, shown_lines

_LINES = re.compile(r"(?=.*\d)(\d*):(\d*)", re.ASCII)

#: SQLite has no higher numbers.
_HIGHEST = 2**63 - 1


def _refuse_shown(_context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    """Say what is meant by the id that AngelMemory shows for 0."""
    if value:
        raise click.UsageError(tr("AngelMemory shows the short id 0 as -1; give 0"))


def _span(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Span:
    """Return the lines that an option names."""
    if value is None:
        return Span()
    found = _LINES.fullmatch(value)
    if found is None:
        raise click.BadParameter(tr("{value!r} is not a range like 3:12, 3: or :12", value=value))
    try:
        return Span(*(int(end) if end else None for end in found.groups()))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.argument("path", type=PATH)
@click.argument("short_id", type=click.IntRange(min=0, max=_HIGHEST))
@click.option("-1", "is_shown", is_flag=True, is_eager=True, expose_value=False, hidden=True, callback=_refuse_shown)
@click.option(
    "--lines", "span", callback=_span, metavar="A:B", help=tr("Only lines A to B, from 1 on; either may be left out.")
)
@click.option(
    "--token-budget",
    type=click.IntRange(min=1),
    metavar="N",
    help=tr("At most about N tokens: lines from the end are left out."),
)
@output_options
@reports_errors
def recall(
    path: Path,
    short_id: int,
    span: Span,
    token_budget: int | None,
    as_json: bool,
    quiet: bool,
    verbose: int,
    kind: str | None,
) -> None:
    """Read the note with SHORT_ID from its file, as it is now. Nothing is written.

    PATH is a data folder of AngelMemory.

    \b
    Example:
      regraft recall data/plugin_data/AngelMemory 8
    """
    found = api.recall(path, short_id, kind=kind, first=span.first, last=span.last, token_budget=token_budget)
    if as_json:
        echo_json(encoded(found))
        return
    if not quiet:
        say(_head(found, verbose=verbose > 0))
    text = found.content.replace("\r\n", "\n")
    say(f"{text}\n", as_it_is=True)
    if found.truncated and not quiet:
        note(tr("note: {left}", left=_left(found, token_budget)))


def _left(found: RecallReport, token_budget: int | None) -> str:
    """Return what the budget left out, and how to read it."""
    if found.line_cut:
        return tr(
            "line {line} is longer than the budget of {token_budget} tokens, so its end is left out; give a larger"
            " --token-budget",
            line=found.actual_start_line,
            token_budget=token_budget,
        )
    return tr(
        "the budget of {token_budget} tokens ends here; go on with --lines {end}:",
        token_budget=token_budget,
        end=found.actual_end_line + 1,
    )


def _head(found: RecallReport, *, verbose: bool) -> str:
    """Return what stands above the lines for a person."""
    place = joined(filter(None, (found.path, " > ".join(found.headings))))
    title = tr("Note {short_id}: {place}", short_id=found.note_short_id, place=place)
    tokens = counted(found.tokens, "token")
    lines = [
        one_line(title),
        tr(
            "lines {start} to {end} of {total_lines}, about {tokens}",
            start=found.actual_start_line,
            end=found.actual_end_line,
            total_lines=found.total_lines,
            tokens=tokens,
        ),
    ]
    if verbose:
        lines += [tr("tags {names}", names=one_line(joined(found.tags))), found.source_id]
    return shown_lines([*lines, ""])
