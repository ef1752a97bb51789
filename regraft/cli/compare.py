"""``regraft compare``: the same query vectors against the vector table of v1 and the new index."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import click
import msgspec

from migrators.compare import OUTCOMES, BaseComparison, Difference, Query, RankedText
from regraft import api
from regraft.cli.options import FAIL_ON, PATH, Output, output_options, struct_options
from regraft.cli.output import echo, echo_json, report_errors
from regraft.errors import SourceUnreadable, WrongUsage
from regraft.formats.cherry_v2.index.search import vector_blob
from regraft.language import format_count, join_list, tr
from regraft.options import CompareOptions
from regraft.ranking import cherry_v2
from regraft.report.document import encoded
from regraft.report.labels import format_labeled_count, label_of
from regraft.text import one_line, pad_right, printable, printable_lines

#: What the two sides are called, by whether the first is v1 data.
SIDES = {True: ("v1", "v2"), False: (tr("the first"), tr("the second"))}
#: Outcomes that count as errors.
_ERRORS = {"different", "missing", "damaged"}


class _QueryLine(msgspec.Struct):
    vector: tuple[float, ...]
    id: str | int | None = None


def read_queries(path: Path) -> tuple[Query, ...]:
    """Read queries from a file: JSON lines, or one JSON array, of objects with a ``vector`` and perhaps an ``id``.

    Raises:
        SourceUnreadable: there is no such file.
        WrongUsage: it holds something else, or nothing.
    """
    try:
        raw = path.read_bytes().strip()
    except OSError as error:
        raise SourceUnreadable(path=path, reason=error.strerror or error) from error
    try:
        decoder = msgspec.json.Decoder(list[_QueryLine])
        lines = decoder.decode(raw) if raw.startswith(b"[") else msgspec.json.Decoder(_QueryLine).decode_lines(raw)
        for line in lines:
            vector_blob(line.vector)
    except (msgspec.MsgspecError, UnicodeDecodeError, OverflowError) as error:
        hint = tr('each line must be {"id": "a name", "vector": [numbers]}')
        raise WrongUsage(
            problem=tr("--queries {path}: not queries: {error}", path=printable(path), error=error), hint=hint
        ) from error
    if not lines:
        raise WrongUsage(
            problem=tr("--queries {path}: it has no query", path=printable(path)),
            hint=tr("leave it out to use a sample"),
        )
    named = (
        (tr("query {place}", place=place) if line.id is None else str(line.id), line)
        for place, line in enumerate(lines, 1)
    )
    return tuple(Query(name, line.vector) for name, line in named)


@click.command()
@click.argument("v1", type=PATH)
@click.argument("v2", type=PATH)
@click.option(
    "--queries",
    type=PATH,
    metavar="FILE",
    help=tr('JSON lines (or one JSON array) of {"id": "a name", "vector": [numbers]}.'),
)
@report_errors
@struct_options(CompareOptions)
@output_options(fail_on=FAIL_ON)
def compare(v1: Path, v2: Path, queries: Path | None, options: CompareOptions, output: Output) -> None:
    """Search the vectors of V1 and the index of V2 with the same queries, and show where the results differ.
    Nothing is written.

    V1 is any source of regraft migrate, one v1 vector file, or anything that V2 can be. V2 is a v2 library, profile or
    backup, one base folder, or an index.sqlite. --kind applies to V1.

    \b
    Example:
      regraft compare cherry-studio.202503141200.zip library
    """
    given = None if queries is None else read_queries(queries)
    report = api.compare(v1, v2, options, queries=given, progress=output.progress())
    if output.as_json:
        echo_json(encoded(report))
    else:
        is_v1 = report.head.source is None or report.head.source.kind not in cherry_v2.SEARCHABLE_KINDS
        echo(_as_text(report.bases, options.count, SIDES[is_v1], every=output.verbose > 0, quiet=output.quiet))
    outcomes = {base.outcome for base in report.bases}
    worst = {"never": set(), "error": _ERRORS}.get(output.fail_on, set(OUTCOMES) - {"equal"})
    sys.exit(int(bool(outcomes & worst)))


def _as_text(
    compared_bases: list[BaseComparison], count: int, sides: tuple[str, str], *, every: bool, quiet: bool
) -> str:
    """Format the comparison of all bases as text.

    Args:
        compared_bases: the result for each base.
        count: the number of results per query.
        sides: what the two stores are called.
        every: list every difference instead of the first one of a base.
        quiet: omit equal bases.
    """
    lines = []
    for base in compared_bases:
        if not quiet or base.outcome != "equal":
            lines.append(_format_base(base, count))
        differences = base.differences if every else base.differences[:1]
        lines += [_difference(parted, sides) for parted in differences]
    outcomes = Counter(base.outcome for base in compared_bases)
    counts = [format_labeled_count(outcomes[name], name) for name in OUTCOMES if outcomes[name]]
    total = tr(
        "{bases}: {outcomes}.",
        bases=format_count(len(compared_bases), "base"),
        outcomes=join_list(counts) or tr("nothing to compare"),
    )
    return printable_lines([*lines, total])


def _format_base(base: BaseComparison, count: int) -> str:
    """Format the result for one base; ``count`` is the number of results per query."""
    asked = why = ""
    if base.queries:
        recalled = () if base.recall is None else (f"recall@{count} {base.recall:.4f}",)
        asked = tr(" ({listed})", listed=join_list((format_count(base.queries, "query"), *recalled)))
    if base.problem:
        why = tr(": {problem}", problem=base.problem)
    return f"{pad_right(label_of(base.outcome), 12)} {one_line(base.name)}{asked}{why}"


def _difference(parted: Difference, sides: tuple[str, str]) -> str:
    """Format the first rank at which the results of a query differ; ``sides`` are the names of the two stores."""
    first, second = sides
    old, new = _format_side(parted.v1), _format_side(parted.v2)
    return tr(
        "             {query}, rank {rank}: {first} has {old}, {second} has {new}",
        query=one_line(parted.query),
        rank=parted.rank,
        first=first,
        old=old,
        second=second,
        new=new,
    )


def _format_side(side: RankedText | None) -> str:
    """Format the text that one store has at a rank; None: it has no more results."""
    if side is None:
        return label_of("nothing")
    return tr("{text_hash} at {score:.6f}", text_hash=side.text_hash[:12], score=side.score)
