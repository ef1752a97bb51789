"""What asks a store a question and writes nothing, as functions (``docs/api.md``)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

import migrators
from migrators import compare as migrators_compare
from migrators.compare import CompareReport, ComparisonOptions, Query, summarize
from regraft import embedders
from regraft.api.arguments import as_path, parse_kind, parse_model_overrides, progress_or_silent, time_or_now
from regraft.embedders import ServerFailing, TextsRejected, config
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import ModelDiffers, NotRecalled, QueryNotEmbedded, RegraftError, WrongUsage
from regraft.formats.cherry_v2.index.search import vector_blob
from regraft.formats.rsclaw import selection
from regraft.kinds import KIND_NAMES, Kind
from regraft.language import tr
from regraft.ranking import angel_memory, cherry_v2, codex_mem, fusion, reports, rsclaw
from regraft.ranking.cherry_v2 import Mode
from regraft.ranking.fusion import Embed, NoVector
from regraft.ranking.reports import ChunksReport, NotesReport, RecordsReport, SearchReport
from regraft.report.document import Head, Run
from regraft.report.progress import Progress
from regraft.stores.locate import Located, open_store


def embed_query(settings: EmbedderSettings, query: str) -> tuple[float, ...]:
    """Return the vector that an embedder makes of a query.

    Raises:
        QueryNotEmbedded: it gives none.
        WrongUsage, EmbedderKeyMissing, ModelUnreadable: it cannot be used.
    """
    with embedders.open_embedder(settings) as embedder:
        try:
            vector = embedder.embed([query], query=True).vectors[0]
        except (TextsRejected, ServerFailing) as error:
            raise QueryNotEmbedded(embedder=settings.name, reason=error.reason) from error
    return tuple(array("f", vector))


def query_embedder(query: str, name: str, config_path: Path | None) -> Embed:
    """Return what has an embedder of the configuration make a query's vector, if it is of the model that is asked for.

    Raises:
        EmbedderUnknown, ConfigInvalid, SourceNotFound, SourceUnreadable: the embedder cannot be used at all.
    """
    settings = config.load_config(config_path).embedder(name)

    def embed(model_id: str) -> tuple[float, ...]:
        if not settings.serves(model_id):
            raise NoVector(
                tr(
                    "embedder {name} is model {model}, the vectors are of {model_id}",
                    name=name,
                    model=settings.model,
                    model_id=model_id,
                )
            )
        try:
            return embed_query(settings, query)
        except QueryNotEmbedded as error:
            raise NoVector(
                tr("embedder {name} gave no vector for the query ({reason})", name=name, reason=error.facts["reason"])
            ) from error
        except RegraftError as error:
            raise NoVector(tr("embedder {name} cannot be used: {error}", name=name, error=error)) from error

    return embed


def shared_query_embedder(query: str, name: str, config_path: Path | None) -> Callable[[str | None], tuple[float, ...]]:
    """Return what has an embedder make a query's vector, once for all bases of its model."""
    made: list[tuple[float, ...]] = []

    def embed(model_id: str | None) -> tuple[float, ...]:
        """Return the query's vector, of the base's model.

        Raises:
            ModelDiffers: the embedder is another one.
            QueryNotEmbedded: it gives no vector.
        """
        settings = config.load_config(config_path).embedder(name)
        if model_id is not None and not settings.serves(model_id):
            reason = tr("the base's model is {model_id}", model_id=model_id)
            raise ModelDiffers(embedder=name, model=settings.model, reason=reason)
        if not made:
            made.append(embed_query(settings, query))
        return made[0]

    return embed


# A search in whatever a path is, as a command or a program asks for it (``docs/search.md``).
#
# Every kind of store has its own way to be searched; what a way has no use for is refused.


#: What was found, whatever was searched.
SearchResult = cherry_v2.UnitAnswer | fusion.Answers | codex_mem.NoteAnswer | rsclaw.ChunkAnswer | angel_memory.Answer
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
        return None if self.embedder is None else query_embedder(self.query, self.embedder, self.config)


def search_source(source: Located, asked: SearchRequest) -> SearchResult:
    """Search what a path is.

    Raises:
        WrongUsage: an option says nothing about it.
        RegraftError: as ``docs/errors.md`` has them.
    """
    return _WAYS.get(source.kind, _in_bases)(source, asked)


def build_search_report(head: Head, found: SearchResult) -> SearchReport | NotesReport | ChunksReport | RecordsReport:
    """Return the command's result."""
    match found:
        case codex_mem.NoteAnswer():
            return reports.note_search_report(head, found)
        case rsclaw.ChunkAnswer():
            return reports.chunk_search_report(head, found)
        case angel_memory.Answer():
            return reports.record_search_report(head, found)
        case _:
            return reports.search_report(head, found)


def is_damaged(found: SearchResult) -> bool:
    """Tell whether something could not be searched because it is damaged, which the exit status says."""
    return isinstance(found, fusion.Answers | rsclaw.ChunkAnswer) and found.is_damaged


def _refuse(kind: Kind, hint: str, options: dict[str, bool]) -> None:
    """Refuse options that say nothing about a kind of store.

    Raises:
        WrongUsage
    """
    for name, given in options.items():
        if given:
            raise WrongUsage(problem=tr("{name} is not for {names}", name=name, names=KIND_NAMES[kind]), hint=hint)


def _refuse_callers(source: Located, asked: SearchRequest) -> None:
    hint = tr("leave it out; only documents of rsclaw say who may see them")
    _refuse(source.kind, hint, {_CALLERS: bool(asked.callers)})


def _refuse_simple(source: Located, asked: SearchRequest) -> None:
    hint = tr("leave it out; only notes of AngelMemory are searched by their tags")
    _refuse(source.kind, hint, {f"--mode {Mode.SIMPLE.value}": asked.mode is Mode.SIMPLE})


def _in_bases(source: Located, asked: SearchRequest) -> SearchResult:
    _refuse_callers(source, asked)
    _refuse_simple(source, asked)
    embed = None
    if asked.embedder is not None:
        embed = shared_query_embedder(asked.query, asked.embedder, asked.config)
    request = cherry_v2.Request(
        query=asked.query,
        mode=asked.mode,
        count=asked.count,
        alpha=asked.alpha,
        vector=asked.vector,
        embed=embed,
        raw=asked.raw,
    )
    return fusion.search(source, asked.base, request)


def _in_notes(source: Located, asked: SearchRequest) -> SearchResult:
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


def _in_chunks(source: Located, asked: SearchRequest) -> SearchResult:
    given = {"--base": asked.base is not None, "--alpha": asked.alpha is not None, "--raw": asked.raw}
    _refuse(source.kind, tr("leave it out"), given)
    _refuse_simple(source, asked)
    request = rsclaw.Request(
        query=asked.query,
        scope=selection.parsed(asked.callers, _CALLERS),
        mode=asked.mode,
        count=asked.count,
        vector=asked.vector,
        embed=asked.embed,
    )
    return rsclaw.search(source.path, request)


def _in_records(source: Located, asked: SearchRequest) -> SearchResult:
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
        request = angel_memory.Request(query=asked.query, mode=mode, count=asked.count)
        return angel_memory.search(source.tree.path, request)
    if not has_vector:
        problem = tr("--mode vector needs the vector of the query")
        raise WrongUsage(problem=problem, hint=tr("give --embedder NAME or --vector FILE, or --mode simple"))

    def nearest(count: int) -> angel_memory.Nearest:
        # Loads what works with collections, which no other search needs.
        from repair.angel_memory import nearest as nearest_notes  # noqa: PLC0415

        numbers = asked.vector
        if numbers is None:
            numbers = shared_query_embedder(asked.query, str(asked.embedder), asked.config)(None)
        return nearest_notes.find_nearest(source.tree.path, vector_blob(numbers), count)

    request = angel_memory.Request(query=asked.query, mode=mode, count=asked.count, nearest=nearest)
    return angel_memory.search(source.tree.path, request)


#: How kinds are searched that have no bases.
_WAYS: dict[Kind, Callable[[Located, SearchRequest], SearchResult]] = {
    Kind.CODEX_MEM: _in_notes,
    Kind.RSCLAW: _in_chunks,
    Kind.ANGEL_MEMORY: _in_records,
}


def search(
    path: str | Path,
    query: str,
    *,
    kind: Kind | str | None = None,
    base: str | None = None,
    mode: Mode | str | None = None,
    count: int | None = None,
    alpha: float | None = None,
    vector: Sequence[float] | None = None,
    embedder: str | None = None,
    config: str | Path | None = None,
    raw: bool = False,
    as_: Sequence[str] = (),
) -> SearchReport | NotesReport | ChunksReport | RecordsReport:
    """Return what the application would find in one base or in all, or what a search of another system's store finds.

    Options as of ``regraft search``.

    Raises:
        RegraftError: as ``docs/errors.md`` has them.
    """
    place = as_path(path)
    run = Run(command="search")
    request = SearchRequest(
        query=query,
        base=base,
        mode=None if mode is None else Mode(mode),
        count=count,
        alpha=alpha,
        vector=None if vector is None else tuple(vector),
        embedder=embedder,
        config=None if config is None else as_path(config),
        raw=raw,
        callers=tuple(as_),
    )
    with open_store(place, parse_kind(kind)) as source:
        run.source_kind, run.source = source.kind.value, source.path if source.notices else place
        found = search_source(source, request)
    run.end()
    return build_search_report(run.head(), found)


def recall(
    path: str | Path,
    short_id: int,
    *,
    kind: Kind | str | None = None,
    first: int | None = None,
    last: int | None = None,
    token_budget: int | None = None,
) -> reports.RecallReport:
    """Return lines of a note of AngelMemory, from its file as it is now; as ``regraft recall``.

    Args:
        path: a data folder of AngelMemory.
        short_id: the note's.
        kind: what the path is, where that is not recognised rightly.
        first: the first line, from 1 on; None: from the beginning.
        last: the last line; None: to the end.
        token_budget: about how many tokens the lines may have.

    Raises:
        ValueError: there are no such lines.
        RegraftError: as ``docs/errors.md`` has them.
    """
    place, span = as_path(path), angel_memory.Span(first, last)
    run = Run(command="recall")
    with open_store(place, parse_kind(kind)) as source:
        if source.kind is not Kind.ANGEL_MEMORY:
            raise NotRecalled(path=place, what=KIND_NAMES[source.kind])
        run.source_kind, run.source = source.kind.value, place
        found = angel_memory.recall(source.tree.path, short_id, span, token_budget)
    run.end()
    return reports.recall_report(run.head(), found)


def compare(
    v1: str | Path,
    v2: str | Path,
    *,
    kind: Kind | str | None = None,
    bases: Sequence[str] = (),
    queries: Iterable[Query] | None = None,
    sample: int = 20,
    count: int = 10,
    map_model: Mapping[str, str] | None = None,
    recreate_model: Iterable[str] = (),
    progress: Progress | None = None,
) -> CompareReport:
    """Ask the vectors of ``v1`` and the index of ``v2`` the same, and return where they part; as ``regraft compare``.

    Raises:
        RegraftError: as ``docs/errors.md`` has them.
    """
    run = Run(command="compare")
    asked = ComparisonOptions(count, sample, None if queries is None else tuple(queries))
    options = migrators.Options(
        now_ms=time_or_now(None),
        model_overrides=parse_model_overrides(map_model or {}, recreate_model),
        bases=tuple(bases),
        while_running=True,
    )
    first, second = as_path(v1), as_path(v2)
    with open_store(first, parse_kind(kind)) as old, open_store(second) as new:
        run.source_kind, run.source = old.kind.value, first
        run.target_kind, run.target = new.kind.value, second
        told = migrators_compare.compare(old, new, options, asked, progress_or_silent(progress))
    run.end()
    return CompareReport(head=run.head(), k=count, bases=told, summary=summarize(told))
