"""A search in whatever a path is, as a command or a program asks for it (``docs/search.md``).

Every kind of store has its own way to be searched; what a way has no use for is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from regraft.api.embedding import embed_for, embedding
from regraft.errors import WrongUsage
from regraft.formats.cherry_v2.index.search import vector_blob
from regraft.formats.rsclaw import scope
from regraft.kinds import NAMES, Kind
from regraft.language import tr
from regraft.locate import Located
from regraft.ranking import (
    angel_search,
    cherry_v2,
    chunks_report,
    codex_mem,
    notes_report,
    records_report,
    rsclaw,
    search_report,
    several_bases,
)
from regraft.ranking.cherry_v2 import Mode
from regraft.ranking.chunks_report import ChunksReport
from regraft.ranking.notes_report import NotesReport
from regraft.ranking.query_vectors import Embed
from regraft.ranking.records_report import RecordsReport
from regraft.ranking.search_report import SearchReport
from regraft.report.document import Head

#: What was found, whatever was searched.
Found = cherry_v2.Answer | several_bases.Answers | codex_mem.Answer | rsclaw.Answer | angel_search.Answer
_CALLERS = "--as"


class SearchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked; options as of ``regraft search``, ``callers`` being those of ``--as``."""

    query: str
    base: str | None = None
    mode: Mode | None = None
    count: int | None = None
    alpha: float | None = None
    vector: tuple[float, ...] | None = None
    embedder: str | None = None
    config: Path | None = None
    raw: bool = False
    callers: tuple[str, ...] = ()

    @property
    def embed(self) -> Embed | None:
        """Return what makes the query's vector for one model; None where no embedder is named."""
        return None if self.embedder is None else embed_for(self.query, self.embedder, self.config)


def search(source: Located, asked: SearchRequest) -> Found:
    """Search what a path is.

    Raises:
        WrongUsage: an option says nothing about it.
        RegraftError: as ``docs/errors.md`` has them.
    """
    return _WAYS.get(source.kind, _in_bases)(source, asked)


def report(head: Head, found: Found) -> SearchReport | NotesReport | ChunksReport | RecordsReport:
    """Return the command's result."""
    match found:
        case codex_mem.Answer():
            return notes_report.report(head, found)
        case rsclaw.Answer():
            return chunks_report.report(head, found)
        case angel_search.Answer():
            return records_report.report(head, found)
        case _:
            return search_report.report(head, found)


def is_damaged(found: Found) -> bool:
    """Tell whether something could not be searched because it is damaged, which the exit status says."""
    return isinstance(found, several_bases.Answers | rsclaw.Answer) and found.is_damaged


def _refuse(kind: Kind, hint: str, options: dict[str, bool]) -> None:
    """Refuse options that say nothing about a kind of store.

    Raises:
        WrongUsage
    """
    for name, given in options.items():
        if given:
            raise WrongUsage(problem=tr("{name} is not for {names}", name=name, names=NAMES[kind]), hint=hint)


def _refuse_callers(source: Located, asked: SearchRequest) -> None:
    hint = tr("leave it out; only documents of rsclaw say who may see them")
    _refuse(source.kind, hint, {_CALLERS: bool(asked.callers)})


def _refuse_simple(source: Located, asked: SearchRequest) -> None:
    hint = tr("leave it out; only notes of AngelMemory are searched by their tags")
    _refuse(source.kind, hint, {f"--mode {Mode.SIMPLE.value}": asked.mode is Mode.SIMPLE})


def _in_bases(source: Located, asked: SearchRequest) -> Found:
    _refuse_callers(source, asked)
    _refuse_simple(source, asked)
    embed = None
    if asked.embedder is not None:
        embed = embedding(asked.query, asked.embedder, asked.config)
    request = cherry_v2.Request(
        query=asked.query,
        mode=asked.mode,
        count=asked.count,
        alpha=asked.alpha,
        vector=asked.vector,
        embed=embed,
        raw=asked.raw,
    )
    return several_bases.search(source, asked.base, request)


def _in_notes(source: Located, asked: SearchRequest) -> Found:
    _refuse_callers(source, asked)
    _refuse_simple(source, asked)
    hint = tr("leave it out; --mode hybrid searches by words and by meaning")
    meaning = f"--mode {Mode.VECTOR.value}"
    given = {"--alpha": asked.alpha is not None, "--raw": asked.raw, meaning: asked.mode is Mode.VECTOR}
    _refuse(source.kind, hint, given)
    request = codex_mem.Request(
        query=asked.query,
        project=asked.base,
        mode=asked.mode,
        count=asked.count,
        vector=asked.vector,
        embed=asked.embed,
    )
    return codex_mem.search(source.path, request)


def _in_chunks(source: Located, asked: SearchRequest) -> Found:
    given = {"--base": asked.base is not None, "--alpha": asked.alpha is not None, "--raw": asked.raw}
    _refuse(source.kind, tr("leave it out"), given)
    _refuse_simple(source, asked)
    request = rsclaw.Request(
        query=asked.query,
        scope=scope.parsed(asked.callers, _CALLERS),
        mode=asked.mode,
        count=asked.count,
        vector=asked.vector,
        embed=asked.embed,
    )
    return rsclaw.search(source.path, request)


def _in_records(source: Located, asked: SearchRequest) -> Found:
    _refuse_callers(source, asked)
    given = {"--base": asked.base is not None, "--alpha": asked.alpha is not None, "--raw": asked.raw}
    _refuse(source.kind, tr("leave it out"), given)
    modes = {f"--mode {mode.value}": asked.mode is mode for mode in (Mode.BM25, Mode.HYBRID)}
    _refuse(source.kind, tr("give --mode simple, which searches tags, or --mode vector"), modes)
    has_vector = asked.vector is not None or asked.embedder is not None
    mode = asked.mode or (Mode.VECTOR if has_vector else Mode.SIMPLE)
    if mode is Mode.SIMPLE:
        unused = {"--vector": asked.vector is not None, "--embedder": asked.embedder is not None}
        for name, is_given in unused.items():
            if is_given:
                problem = tr("--mode simple searches tags, and {name} gives a vector", name=name)
                raise WrongUsage(problem=problem, hint=tr("leave one of them out"))
        request = angel_search.Request(query=asked.query, mode=mode, count=asked.count)
        return angel_search.search(source.tree.path, request)
    if not has_vector:
        problem = tr("--mode vector needs the vector of the query")
        raise WrongUsage(problem=problem, hint=tr("give --embedder NAME or --vector FILE, or --mode simple"))

    def nearest(count: int) -> angel_search.Nearest:
        # Loads what works with collections, which no other search needs.
        from repair.angel_memory import nearest as nearest_notes  # noqa: PLC0415

        numbers = asked.vector
        if numbers is None:
            numbers = embedding(asked.query, str(asked.embedder), asked.config)(None)
        return nearest_notes.nearest(source.tree.path, vector_blob(numbers), count)

    request = angel_search.Request(query=asked.query, mode=mode, count=asked.count, nearest=nearest)
    return angel_search.search(source.tree.path, request)


#: How kinds are searched that have no bases.
_WAYS: dict[Kind, Callable[[Located, SearchRequest], Found]] = {
    Kind.CODEX_MEM: _in_notes,
    Kind.RSCLAW: _in_chunks,
    Kind.ANGEL_MEMORY: _in_records,
}
