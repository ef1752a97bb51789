"""``search``, ``recall`` and ``compare``: queries that write nothing (``docs/search.md``)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from regraft import embedders
from regraft.api.arguments import merge_options, parse_model_overrides, progress_or_silent, time_or_now
from regraft.embedders import ServerFailing, TextsRejected, config
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import ModelDiffers, NotRecalled, QueryNotEmbedded, RegraftError, WrongUsage
from regraft.formats.cherry_v2.index.search import vector_blob
from regraft.formats.rsclaw import documents
from regraft.kinds import KIND_NAMES, Kind
from regraft.language import tr
from regraft.options import CompareOptions, RecallOptions, SearchOptions
from regraft.ranking import angel_memory, cherry_v2, codex_mem, reports, rsclaw, several_bases
from regraft.ranking.cherry_v2 import Embed, Mode, NoVector
from regraft.ranking.reports import ChunksReport, NotesReport, RecordsReport, SearchReport
from regraft.report.document import Head, Run
from regraft.report.progress import Progress
from regraft.stores.locate import Located, open_store

if TYPE_CHECKING:
    from migrators.compare import CompareReport, Query


def embed_query(settings: EmbedderSettings, query: str) -> tuple[float, ...]:
    """Embed the text of a query with the embedder of these settings.

    Raises:
        QueryNotEmbedded: the embedder failed.
        WrongUsage, EmbedderKeyMissing, ModelUnreadable: the embedder cannot be used.
    """
    with embedders.open_embedder(settings) as embedder:
        try:
            vector = embedder.embed([query], query=True).vectors[0]
        except (TextsRejected, ServerFailing) as error:
            raise QueryNotEmbedded(embedder=settings.name, reason=error.reason) from error
    return tuple(array("f", vector))


def query_embedder(query: str, name: str, config_path: Path | None) -> Embed:
    """Make a function that embeds the query with the embedder ``name``, for a search in vectors of a given model.

    ``config_path`` is the configuration file; None: the default one. The function raises NoVector if the embedder has
    another model, or fails.

    Raises:
        EmbedderUnknown, ConfigInvalid, SourceNotFound, SourceUnreadable: the embedder cannot be used at all.
    """
    settings = config.load_config(config_path).embedder(name)

    def embed(model_id: str) -> tuple[float, ...]:
        """Embed the query for vectors of this model."""
        if not settings.serves(model_id):
            raise NoVector(
                tr(
                    "embedder {name} has model {model}, but the vectors are of {model_id}",
                    name=name,
                    model=settings.model,
                    model_id=model_id,
                )
            )
        try:
            return embed_query(settings, query)
        except QueryNotEmbedded as error:
            raise NoVector(
                tr("embedder {name} did not embed the query ({reason})", name=name, reason=error.facts["reason"])
            ) from error
        except RegraftError as error:
            raise NoVector(tr("embedder {name} cannot be used: {error}", name=name, error=error)) from error

    return embed


def shared_query_embedder(query: str, name: str, config_path: Path | None) -> Callable[[str | None], tuple[float, ...]]:
    """Make a function that embeds the query with the embedder ``name`` once, for all bases of its model.

    The function takes the id of a base's model. ``config_path`` is the configuration file; None: the default one.
    """
    made: list[tuple[float, ...]] = []

    def embed(model_id: str | None) -> tuple[float, ...]:
        """Return the query's vector for a base with this model; None: the model is unknown.

        Raises:
            ModelDiffers: the embedder has another model.
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


#: The result of a search in any kind of store.
SearchResult = (
    cherry_v2.UnitAnswer
    | several_bases.CombinedAnswer
    | codex_mem.NoteAnswer
    | rsclaw.ChunkAnswer
    | angel_memory.RecordAnswer
)
_CALLERS = "--as"


class _Search(msgspec.Struct, frozen=True, kw_only=True):
    """A query and its options."""

    query: str
    options: SearchOptions

    @property
    def mode(self) -> Mode | None:
        """The search mode that the options name, or None."""
        return None if self.options.mode is None else Mode(self.options.mode)

    @property
    def embed(self) -> Embed | None:
        """A function that embeds the query for one model; None if the user named no embedder."""
        name = self.options.embedder
        return None if name is None else query_embedder(self.query, name, self.options.config)

    @property
    def unit_request(self) -> cherry_v2.UnitRequest:
        """The request for a search in bases; the query is embedded once for all bases of a model."""
        options = self.options
        embed = None
        if options.embedder is not None:
            embed = shared_query_embedder(self.query, options.embedder, options.config)
        return cherry_v2.UnitRequest(
            query=self.query,
            mode=self.mode,
            count=options.count,
            alpha=options.alpha,
            vector=options.vector,
            embed=embed,
            raw=options.raw,
        )


def search_path(path: str | Path, query: str, options: SearchOptions) -> tuple[Head, SearchResult]:
    """Search the store at a path; return the head of the command's report, and the results.

    Raises:
        WrongUsage: an option has no meaning for such a store.
        RegraftError: any error of ``docs/errors.md``.
    """
    run = Run(command="search")
    with open_store(Path(path), options.kind) as source:
        run.source_kind, run.source = source.kind.value, source.path if source.notices else Path(path)
        found = _SEARCHES.get(source.kind, _search_bases)(source, _Search(query=query, options=options))
        run.end()
    return run.head(), found


def build_search_report(head: Head, result: SearchResult) -> SearchReport | NotesReport | ChunksReport | RecordsReport:
    """Make the report of a search, whose type depends on the kind of store."""
    match result:
        case codex_mem.NoteAnswer():
            return reports.note_search_report(head, result)
        case rsclaw.ChunkAnswer():
            return reports.chunk_search_report(head, result)
        case angel_memory.RecordAnswer():
            return reports.record_search_report(head, result)
        case _:
            return reports.search_report(head, result)


def is_damaged(result: SearchResult) -> bool:
    """Whether damage kept part of the store from being searched; the exit status is 1 then."""
    return isinstance(result, several_bases.CombinedAnswer | rsclaw.ChunkAnswer) and result.is_damaged


def _refuse_options(kind: Kind, hint: str, given: dict[str, bool]) -> None:
    """Refuse options that do not apply to a kind of store; ``given`` tells by option name which are used.

    Raises:
        WrongUsage
    """
    for name, is_given in given.items():
        if is_given:
            raise WrongUsage(problem=tr("{name} is not for {names}", name=name, names=KIND_NAMES[kind]), hint=hint)


def _refuse_as_option(source: Located, search: _Search) -> None:
    """Refuse ``--as``, for stores without restricted visibility."""
    hint = tr("leave it out; only rsclaw has documents with restricted visibility")
    _refuse_options(source.kind, hint, {_CALLERS: bool(search.options.as_)})


def _refuse_simple_mode(source: Located, search: _Search) -> None:
    """Raise WrongUsage for ``--mode simple``. Called for stores without tags."""
    hint = tr("leave it out; only notes of AngelMemory can be searched by tags")
    _refuse_options(source.kind, hint, {f"--mode {Mode.SIMPLE.value}": search.mode is Mode.SIMPLE})


def _refuse_base_options(source: Located, search: _Search) -> None:
    """Refuse the options of a search in bases, for stores without bases."""
    given = {
        "--base": search.options.base is not None,
        "--alpha": search.options.alpha is not None,
        "--raw": search.options.raw,
    }
    _refuse_options(source.kind, tr("leave it out"), given)


def _search_bases(source: Located, search: _Search) -> SearchResult:
    """Search one base or all bases of Cherry Studio; raises WrongUsage for options that do not apply."""
    _refuse_as_option(source, search)
    _refuse_simple_mode(source, search)
    return several_bases.search(source, search.options.base, search.unit_request)


def _search_notes(source: Located, search: _Search) -> SearchResult:
    """Search the notes of codex-mem; raises WrongUsage for options that do not apply."""
    _refuse_as_option(source, search)
    _refuse_simple_mode(source, search)
    hint = tr("leave it out; --mode hybrid searches by words and by meaning")
    meaning = f"--mode {Mode.VECTOR.value}"
    given = {
        "--alpha": search.options.alpha is not None,
        "--raw": search.options.raw,
        meaning: search.mode is Mode.VECTOR,
    }
    _refuse_options(source.kind, hint, given)
    request = codex_mem.NoteRequest(
        query=search.query,
        project=search.options.base,
        mode=search.mode,
        count=search.options.count,
        vector=search.options.vector,
        embed=search.embed,
    )
    return codex_mem.search(source.path, request)


def _search_chunks(source: Located, search: _Search) -> SearchResult:
    """Search the chunks of rsclaw; raises WrongUsage for options that do not apply."""
    _refuse_base_options(source, search)
    _refuse_simple_mode(source, search)
    request = rsclaw.ChunkRequest(
        query=search.query,
        scope=documents.parse_scope(search.options.as_, _CALLERS),
        mode=search.mode,
        count=search.options.count,
        vector=search.options.vector,
        embed=search.embed,
    )
    return rsclaw.search(source.path, request)


def _search_records(source: Located, search: _Search) -> SearchResult:
    """Search the records of angel-memory, by tags or by vector; raises WrongUsage for options that do not apply."""
    _refuse_as_option(source, search)
    _refuse_base_options(source, search)
    modes = {f"--mode {mode.value}": search.mode is mode for mode in (Mode.BM25, Mode.HYBRID)}
    _refuse_options(source.kind, tr("give --mode simple, which searches tags, or --mode vector"), modes)
    has_vector = search.options.vector is not None or search.options.embedder is not None
    mode = search.mode or (Mode.VECTOR if has_vector else Mode.SIMPLE)
    if mode is Mode.SIMPLE:
        unused = {"--vector": search.options.vector is not None, "--embedder": search.options.embedder is not None}
        for name, is_given in unused.items():
            if is_given:
                problem = tr("--mode simple searches tags and uses no vector; {name} gives one", name=name)
                raise WrongUsage(problem=problem, hint=tr("use one of them"))
        request = angel_memory.RecordRequest(query=search.query, mode=mode, count=search.options.count)
        return angel_memory.search(source.tree.path, request)
    if not has_vector:
        problem = tr("--mode vector needs the vector of the query")
        raise WrongUsage(problem=problem, hint=tr("give --embedder NAME or --vector FILE, or --mode simple"))

    def nearest(count: int) -> angel_memory.NearestRecords:
        """Find the ``count`` records nearest to the query's vector."""
        # Loads what works with collections, which no other search needs.
        from repair.angel_memory.collection import find_nearest  # noqa: PLC0415

        numbers = search.options.vector
        if numbers is None:
            numbers = shared_query_embedder(search.query, str(search.options.embedder), search.options.config)(None)
        return find_nearest(source.tree.path, vector_blob(numbers), count)

    request = angel_memory.RecordRequest(query=search.query, mode=mode, count=search.options.count, nearest=nearest)
    return angel_memory.search(source.tree.path, request)


def _search_collections(source: Located, search: _Search) -> SearchResult:
    """Search collections of Chroma; raises WrongUsage for options that do not apply."""
    _refuse_as_option(source, search)
    _refuse_simple_mode(source, search)
    _refuse_options(source.kind, tr("leave it out"), {"--raw": search.options.raw})
    # Only this search needs NumPy.
    from regraft.ranking import chroma  # noqa: PLC0415

    return chroma.search(source.tree.path, search.options.base, search.unit_request)


#: How stores without bases are searched.
_SEARCHES: dict[Kind, Callable[[Located, _Search], SearchResult]] = {
    Kind.CODEX_MEM: _search_notes,
    Kind.RSCLAW: _search_chunks,
    Kind.ANGEL_MEMORY: _search_records,
    Kind.CHROMA: _search_collections,
}


def search(
    path: str | Path, query: str, options: SearchOptions | None = None, **fields: Any
) -> SearchReport | NotesReport | ChunksReport | RecordsReport:
    """Search one base, all bases, or another system's store, as its application does. Nothing is written.

    Raises:
        RegraftError: any error of ``docs/errors.md``.
    """
    return build_search_report(*search_path(path, query, merge_options(SearchOptions, options, fields)))


def recall(
    path: str | Path, short_id: int, options: RecallOptions | None = None, **fields: Any
) -> reports.RecallReport:
    """Read lines of a note of AngelMemory from its file, as it is now.

    Raises:
        ValueError: ``first`` and ``last`` are no range of lines.
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(RecallOptions, options, fields)
    span = angel_memory.LineRange(options.first, options.last)
    run = Run(command="recall")
    with open_store(Path(path), options.kind) as source:
        if source.kind is not Kind.ANGEL_MEMORY:
            raise NotRecalled(path=Path(path), what=KIND_NAMES[source.kind])
        run.source_kind, run.source = source.kind.value, Path(path)
        found = angel_memory.recall(source.tree.path, short_id, span, options.token_budget)
    run.end()
    return reports.recall_report(run.head(), found)


def compare(
    v1: str | Path,
    v2: str | Path,
    options: CompareOptions | None = None,
    *,
    queries: Iterable[Query] | None = None,
    progress: Progress | None = None,
    **fields: Any,
) -> CompareReport:
    """Query the vectors of ``v1`` and the index of ``v2`` alike, and report where the results differ.

    Without ``queries``, each base is asked for the neighbors of a sample of its own vectors.

    Raises:
        RegraftError: any error of ``docs/errors.md``.
    """
    # No other query needs the migrators.
    import migrators  # noqa: PLC0415
    from migrators import compare as comparing  # noqa: PLC0415

    options = merge_options(CompareOptions, options, fields)
    run = Run(command="compare")
    asked = comparing.ComparisonOptions(options.count, options.sample, None if queries is None else tuple(queries))
    wanted = migrators.Options(
        now_ms=time_or_now(None),
        model_overrides=parse_model_overrides(options.map_model, options.recreate_model),
        bases=options.bases,
        while_running=True,
    )
    with open_store(Path(v1), options.kind) as old, open_store(Path(v2)) as new:
        run.source_kind, run.source = old.kind.value, Path(v1)
        run.target_kind, run.target = new.kind.value, Path(v2)
        compared = comparing.compare(old, new, wanted, asked, progress_or_silent(progress))
    run.end()
    return comparing.CompareReport(
        head=run.head(), k=options.count, bases=compared, summary=comparing.summarize(compared)
    )
