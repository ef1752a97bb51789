"""``regraft recall``: lines of a note."""

from __future__ import annotations

import re
from pathlib import Path

import click

from regraft.cli.options import PATH, output_options
from regraft.cli.output import echo_json, note, reports_errors, say
from regraft.kinds import NAMES, Kind
from regraft.language import joined, tr
from regraft.locate import located
from regraft.ranking import angel_memory as recalling
from regraft.ranking.angel_memory import Recalled, Span
from regraft.report.document import Report, Run, encoded
from regraft.system_errors import NotRecalled
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
    run = Run(command="recall")
    with located(path, Kind(kind) if kind else None) as source:
        if source.kind is not Kind.ANGEL_MEMORY:
            raise NotRecalled(path=path, what=NAMES[source.kind])
        run.source_kind, run.source = source.kind.value, path
        found = recalling.recall(source.tree.path, short_id, span, token_budget)
    run.end()
    if as_json:
        echo_json(encoded(_report(run, found)))
    else:
        if not quiet:
            say(_head(found, verbose=verbose > 0))
        text = found.content.replace("\r\n", "\n")
        say(f"{text}\n", as_it_is=True)
        if found.is_cut and not quiet:
            left = tr(
                "the budget of {token_budget} tokens ends here; go on with --lines {end}:",
                token_budget=token_budget,
                end=found.end + 1,
            )
            note(tr("note: {left}", left=left))


class RecallReport(Report, kw_only=True):
    """What ``regraft recall`` tells (``docs/commands.md``); lines count from 1."""

    note_short_id: int | None
    source_id: str
    path: str
    headings: list[str]
    tags: list[str]
    total_lines: int
    actual_start_line: int
    actual_end_line: int
    tokens: int
    truncated: bool
    content: str


def _report(run: Run, found: Recalled) -> RecallReport:
    return RecallReport(
        head=run.head(),
        note_short_id=found.record.short_id,
        source_id=found.record.source_id,
        path=found.record.path,
        headings=list(filter(None, found.record.headings)),
        tags=list(found.record.names),
        total_lines=found.total_lines,
        actual_start_line=found.start,
        actual_end_line=found.end,
        tokens=found.tokens,
        truncated=found.is_cut,
        content=found.content,
    )


def _head(found: Recalled, *, verbose: bool) -> str:
    """Return what stands above the lines for a person."""
    record = found.record
    place = joined(filter(None, (record.path, " > ".join(filter(None, record.headings)))))
    title = tr("Note {short_id}: {place}", short_id=record.short_id, place=place)
    tokens = counted(found.tokens, "token")
    lines = [
        one_line(title),
        tr(
            "lines {start} to {end} of {total_lines}, about {tokens}",
            start=found.start,
            end=found.end,
            total_lines=found.total_lines,
            tokens=tokens,
        ),
    ]
    if verbose:
        lines += [tr("tags {names}", names=one_line(joined(record.names))), record.source_id]
    return shown_lines([*lines, ""])
