"""``regraft search``: what the application would find."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from regraft import config
from regraft.cli import search_notes
from regraft.cli.embedding import config_option, query_vector
from regraft.cli.options import PATH, output_options
from regraft.cli.output import echo_json, note, reports_errors, say
from regraft.errors import ModelDiffers, SourceUnreadable, WrongUsage
from regraft.formats.cherry_v2.index.search import Hit, vector_blob
from regraft.kinds import NAMES, Kind
from regraft.locate import located
from regraft.ranking import cherry_v2, codex_mem
from regraft.ranking.cherry_v2 import Answer, Mode, Request
from regraft.report.document import Run
from regraft.text import counted, one_line, shown, shown_lines

#: How much of a body is shown, in code points; ``-v`` shows all of it.
_EXCERPT = 160


@click.command()
@click.argument("path", type=PATH)
@click.argument("query")
@click.option("--base", metavar="NAME", help="The base (its name, v1 or v2 id); needed where there are several.")
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in Mode]),
    help="By words, by meaning, or both.  [default: both where the base has a model, else by words]",
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
    help="Weight of meaning in hybrid mode.  [default: 0.5]",
)
@click.option(
    "--vector", metavar="FILE|-", help="The query's vector: a file (or stdin) with one JSON array of numbers."
)
@click.option(
    "--embedder",
    "embedder_name",
    metavar="NAME",
    help="Let this embedder of the configuration make the query's vector; only the query is sent.",
)
@config_option
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
    embedder_name: str | None,
    config_path: Path | None,
    raw: bool,
    as_json: bool,
    quiet: bool,
    verbose: int,
    kind: str | None,
) -> None:
    """Search a base for QUERY as the application does. Nothing is written.

    PATH is a v2 library, profile or backup, one base folder, an index.sqlite, or a database of codex-mem.
    """
    run = Run(command="search")
    numbers = _given_vector(vector, embedder_name)
    wanted = Mode(mode) if mode else None
    with located(path, Kind(kind) if kind else None) as source:
        run.source_kind, run.source = source.kind.value, source.path if source.notices else path
        title = f"{shown(path)} is {NAMES[source.kind]}."
        notes: tuple[str, ...]
        if source.kind is Kind.CODEX_MEM:
            search_notes.refuse({"--alpha": alpha is not None, "--raw": raw, "--mode vector": wanted is Mode.VECTOR})
            embed_for = None if embedder_name is None else search_notes.embed_for(query, embedder_name, config_path)
            question = codex_mem.Request(
                query=query, project=base, mode=wanted, count=count, vector=numbers, embed=embed_for
            )
            of_notes = codex_mem.search(source.path, question)
            notes, document = of_notes.notes, search_notes.as_document(of_notes)
            text = search_notes.as_text(of_notes, title, None if verbose else _EXCERPT)
        else:
            embed = None if embedder_name is None else partial(_embedded, query, embedder_name, config_path)
            answer = cherry_v2.search(
                source,
                base,
                Request(query=query, mode=wanted, count=count, alpha=alpha, vector=numbers, embed=embed, raw=raw),
            )
            notes, document = answer.notes, _document(answer)
            text = _as_text(answer, title, whole=verbose > 0)
    run.end()
    if not quiet:
        _note_all(notes)
    if as_json:
        echo_json({**run.document(), **document})
    else:
        say(text)


def _note_all(notes: Iterable[str]) -> None:
    for one in notes:
        note(f"note: {one}")


def _given_vector(name: str | None, embedder: str | None) -> tuple[float, ...] | None:
    if name is not None and embedder is not None:
        raise WrongUsage(problem="--vector and --embedder exclude each other", hint="give one of them")
    return None if name is None else _read_vector(name)


def _embedded(query: str, name: str, config_path: Path | None, model_id: str | None) -> tuple[float, ...]:
    """Return a query's vector, of the base's model.

    Raises:
        ModelDiffers: the embedder is another one.
        QueryNotEmbedded: it gives no vector.
    """
    settings = config.load(config_path).embedder(name)
    if model_id is not None and not settings.serves(model_id):
        reason = f"the base's model is {model_id}"
        raise ModelDiffers(embedder=name, model=settings.model, reason=reason)
    return query_vector(settings, query)


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
        "base_name": answer.base_name,
        "mode": answer.mode.value,
        "count": answer.count,
        "alpha": answer.alpha,
        "score_kind": answer.score_kind,
        "dropped": answer.dropped,
        "notes": list(answer.notes),
        "hits": [
            {
                "base": answer.base_id,
                "base_name": answer.base_name,
                "item_name": answer.item_names.get(hit.material_id),
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
    dropped = f", {answer.dropped} dropped by the catalog" if answer.dropped else ""
    found = f"{counted(len(answer.hits), 'hit')} by {answer.mode}{weight}{dropped}."
    base = answer.base_id if answer.base_name is None else f"{one_line(answer.base_name)} ({answer.base_id})"
    lines = [title, f"Base {base}: {found}"]
    for rank, hit in enumerate(answer.hits, 1):
        body = one_line(hit.text, None if whole else _EXCERPT + 1)
        excerpt = body if whole or len(body) <= _EXCERPT else f"{body[:_EXCERPT]}…"
        lines += ["", f"{rank:>3}  {hit.score:.6g}  {_where(answer, hit)}, unit {hit.unit_index}", f"     {excerpt}"]
    return shown_lines(lines)


def _where(answer: Answer, hit: Hit) -> str:
    """Return the name of a hit's item, and its path where that says more."""
    path = one_line(hit.relative_path or hit.material_id)
    name = one_line(answer.item_names.get(hit.material_id) or path)
    return name if name == path else f"{name} ({path})"
