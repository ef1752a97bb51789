"""``regraft search``: what the application would find."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from regraft import retrieval
from regraft.cli.options import PATH, output_options
from regraft.cli.output import echo_json, reports_errors, say
from regraft.envelope import Run
from regraft.errors import SourceUnreadable, WrongUsage
from regraft.formats.index.search import vector_blob
from regraft.locate import NAMES, Kind, located
from regraft.retrieval import Answer, Mode, Request
from regraft.text import counted, one_line, shown

#: How much of a body is shown, in code points; ``-v`` shows all of it.
_EXCERPT = 160


@click.command()
@click.argument("path", type=PATH)
@click.argument("query")
@click.option("--base", metavar="ID", help="The base (v1 or v2 id); needed where there are several.")
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in Mode]),
    help="By words, by meaning, or both.  [default: the base's own]",
)
@click.option(
    "-k",
    "count",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="How many hits.  [default: the base's own, else 10]",
)
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1),
    metavar="A",
    help="Weight of meaning in hybrid mode.  [default: the base's own, else 0.5]",
)
@click.option(
    "--vector", metavar="FILE|-", help="The query's vector: a file (or stdin) with one JSON array of numbers."
)
@click.option("--raw", is_flag=True, help="Ask the index alone: no settings or rules of the catalog.")
@output_options
@reports_errors
def search(  # noqa: PLR0913, PLR0917 - one parameter for every option
    path: Path,
    query: str,
    base: str | None,
    mode: str | None,
    count: int | None,
    alpha: float | None,
    vector: str | None,
    raw: bool,
    as_json: bool,
    quiet: bool,
    verbose: int,
    kind: str | None,
) -> None:
    """Search a base for QUERY as the application does. Nothing is written.

    PATH is a v2 library, profile or backup, one base folder, or an index.sqlite.
    """
    run = Run("search")
    numbers = None if vector is None else _read_vector(vector)
    request = Request(query, Mode(mode) if mode else None, count, alpha, numbers, raw)
    with located(path, Kind(kind) if kind else None) as source:
        run.source_kind, run.source = source.kind.value, source.path if source.notices else path
        answer = retrieval.search(source, base, request)
    run.end()
    if not quiet:
        for note in answer.notes:
            click.echo(f"note: {note}", err=True)
    if as_json:
        echo_json({**run.document(), **_document(answer)})
    else:
        say(_as_text(answer, f"{shown(path)} is {NAMES[source.kind]}.", whole=verbose > 0))


def _read_vector(name: str) -> tuple[float, ...]:
    """Return a query's vector.

    Raises:
        SourceUnreadable: there is no such file.
        WrongUsage: it does not hold a vector.
    """
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise SourceUnreadable(path=Path(name), reason=error.strerror or error) from error
    where = "stdin" if name == "-" else name
    return checked_vector(raw, f"--vector {where}")


def checked_vector(raw: bytes, where: str) -> tuple[float, ...]:
    """Return the vector that JSON text holds.

    Raises:
        WrongUsage: it is no array of numbers that fit into float32.
    """
    try:
        numbers = msgspec.json.decode(raw, type=tuple[float, ...])
        vector_blob(numbers)
    except (msgspec.MsgspecError, UnicodeDecodeError, OverflowError) as error:
        raise WrongUsage(problem=f"{where}: not a vector: {error}", hint="it is one JSON array of numbers") from error
    if not numbers or not all(map(math.isfinite, numbers)):
        raise WrongUsage(problem=f"{where}: not a vector", hint="it is one JSON array of numbers")
    return numbers


def _document(answer: Answer) -> dict[str, Any]:
    return {
        "base": answer.base_id,
        "mode": answer.mode.value,
        "count": answer.count,
        "alpha": answer.alpha,
        "threshold": answer.threshold,
        "score_kind": answer.score_kind,
        "dropped": answer.dropped,
        "notes": list(answer.notes),
        "hits": [
            {
                "rank": rank,
                "score": hit.score,
                "unit_id": hit.unit_id,
                "material_id": hit.material_id,
                "relative_path": hit.relative_path,
                "unit_index": hit.unit_index,
                "text": hit.text,
            }
            for rank, hit in enumerate(answer.hits, 1)
        ],
    }


def _as_text(answer: Answer, title: str, *, whole: bool) -> str:
    weight = "" if answer.alpha is None else f", alpha {answer.alpha:g}"
    least = "" if answer.threshold is None else f", threshold {answer.threshold:g}"
    dropped = f", {answer.dropped} dropped by the catalog" if answer.dropped else ""
    found = f"{counted(len(answer.hits), 'hit')} by {answer.mode}{weight}{least}{dropped}."
    lines = [title, f"Base {answer.base_id}: {found}"]
    for rank, hit in enumerate(answer.hits, 1):
        body = one_line(hit.text)
        excerpt = body if whole or len(body) <= _EXCERPT else f"{body[:_EXCERPT]}…"
        place = one_line(hit.relative_path or hit.material_id)
        lines += ["", f"{rank:>3}  {hit.score:.6g}  {place}, unit {hit.unit_index}", f"     {excerpt}"]
    return "\n".join(lines) + "\n"
