"""``certify``: what can be proven about the retrieval of bases (``docs/certify.md``). Sources are only read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import apsw
import msgspec

import migrators
from checks.angel_memory.detect import find_providers
from checks.certify.base import CertifiedBase, WordIndex
from checks.certify.index_search import WORD_CHARACTERS
from checks.certify.known_texts import EmbeddingStopped, KnownTexts, choose_texts, limit_texts
from checks.certify.run import Certification, CertifyReport, CertifyRequest, report_findings, summarize
from checks.chroma.audit import measure_recall
from migrators.compare import BaseNames, StoreBases, match_bases, open_table, plan_old_bases, read_bases
from regraft import embedders
from regraft.api.arguments import merge_options, progress_or_silent, time_or_now
from regraft.api.embedding import choose_priced_embedder
from regraft.disk import scratch, sqlite
from regraft.embedders import Embedder, Halted, ServerFailing, TextsRejected
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import AnswerUnfit, Declined, SourceUnreadable
from regraft.formats.angel_memory.database import COLLECTION, AngelProblem, iterate_vector_texts, open_records
from regraft.formats.cherry_v2.catalog_reader import CatalogLookup, Row
from regraft.formats.cherry_v2.index.schema import catalog_dimensions
from regraft.formats.cherry_v2.layout import StoreFile
from regraft.formats.chroma import core, database
from regraft.formats.chroma import rows as chroma_rows
from regraft.formats.chroma.database import ChromaProblem
from regraft.formats.codex_mem import database as codex_mem
from regraft.formats.codex_mem import sidecar
from regraft.formats.codex_mem.sidecar import SidecarMeta
from regraft.identity import replace, resolve_base
from regraft.kinds import V1_ORPHANS, Kind
from regraft.language import tr
from regraft.options import CertifyOptions
from regraft.ranking import cherry_v2
from regraft.report.document import Run
from regraft.report.progress import Progress
from regraft.stores.locate import Located, open_store
from regraft.stores.systems import SidecarProblem
from repair.embedding.budget import BudgetedEmbedder, LimitReached, Limits
from repair.embedding.report import Estimate, cost_of
from repair.embedding.sender import pack_batches

#: Gets what will be sent to which embedder; False stops the run before anything is sent.
ConfirmSending = Callable[["CertifyPlan"], bool]


class CertifyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Estimate of what a check with an embedder is going to send."""

    embedder: str
    model: str
    bases: int
    estimate: Estimate


class _Bases(msgspec.Struct, frozen=True, kw_only=True):
    """The bases of a source by id, with their v1 ids as far as they are known."""

    bases: dict[str, CertifiedBase]
    legacy: dict[str, str]
    #: Failed bases, which have no index, each with the reason.
    failed: tuple[str, ...] = ()

    @property
    def names(self) -> BaseNames:
        """The names and v1 ids by which a base of one store is matched with one of the other."""
        return BaseNames({key: base.name for key, base in self.bases.items()}, self.legacy)


def certify(
    a: str | Path,
    b: str | Path | None = None,
    options: CertifyOptions | None = None,
    *,
    progress: Progress | None = None,
    confirm: ConfirmSending | None = None,
    **fields: Any,
) -> CertifyReport:
    """Prove that the texts of ``a`` are found by their vectors and words, and that ``b`` finds the same.

    Nothing is written. Texts are only sent if an embedder is given: at most 32 of each base, and the ends of these.

    Raises:
        Declined: ``confirm`` returned False.
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(CertifyOptions, options, fields)
    run = Run(command="certify")
    sample = None if options.all_ else options.sample
    request = CertifyRequest(sample=sample, progress=progress_or_silent(progress))
    with ExitStack() as stack:
        first = stack.enter_context(open_store(Path(a), options.kind))
        run.source_kind, run.source = first.kind.value, Path(a)
        second = None if b is None else stack.enter_context(open_store(Path(b)))
        if second is not None:
            run.target_kind, run.target = second.kind.value, Path(b or "")
        ours = stack.enter_context(_read_source(first, options.bases, has_other=b is not None))
        theirs = _Bases(bases={}, legacy={})
        if second is not None:
            theirs = stack.enter_context(_read_source(second, (), has_other=True))
        others = match_bases(ours.names, theirs.names)
        pairs = [(base, theirs.bases.get(others.get(key, ""))) for key, base in ours.bases.items()]
        if options.embedder is not None or options.config is not None:
            request = _with_embedder(request, Path(a), options, ours.bases.values(), stack, confirm)
        found = Certification(request).run(pairs, has_second=second is not None)
    run.end()
    findings = report_findings(found, {"a": ours.names.names, "b": theirs.names.names})
    return CertifyReport(
        head=run.head(),
        sample=sample,
        bases=found.bases,
        findings=findings,
        suspicions=found.suspicions,
        summary=summarize(findings),
        not_checked=[*ours.failed, *found.not_checked],
    )


# --- the bases of a source -------------------------------------------------------------------------------------------


@contextmanager
def _read_source(source: Located, wanted: tuple[str, ...], *, has_other: bool) -> Iterator[_Bases]:
    """List the bases of a source of any kind; their files are open as long as the context is.

    Args:
        source: the source.
        wanted: names or ids of the bases; empty: all.
        has_other: whether it is compared with another source: then rows of deleted items do not count.

    Raises:
        RegraftError: the source cannot be read.
    """
    with ExitStack() as stack:
        if source.kind in cherry_v2.SEARCHABLE_KINDS and not (source.stores.has_preview and not source.stores.current):
            yield _current_bases(source, wanted, stack)
        elif source.kind is Kind.CODEX_MEM:
            yield _select_bases(_note_bases(source, stack), wanted)
        elif source.kind is Kind.ANGEL_MEMORY:
            yield _select_bases(_record_bases(source, stack), wanted)
        else:
            yield _old_bases(source, wanted, stack, has_other=has_other)


def _old_bases(source: Located, wanted: tuple[str, ...], stack: ExitStack, *, has_other: bool) -> _Bases:
    """Describe the bases of a source that can be migrated; ``stack`` keeps their files open.

    The other arguments are those of :func:`_read_source`.
    """
    options = migrators.Options(
        now_ms=time_or_now(None), bases=wanted, while_running=True, adopt_orphans=source.kind in V1_ORPHANS
    )
    old = stack.enter_context(plan_old_bases(source, options))
    recall, words = _chroma_recall(source), _chroma_words(source)
    bases = {
        one.id: CertifiedBase(
            id=one.id,
            name=one.name,
            model=one.model,
            dimensions=one.vector_bytes // 4 or None,
            open=None if one.file is None else partial(open_table, one.file),
            table=one.table,
            problem=one.problem,
            runs=tuple(sorted(one.runs)) if has_other and one.runs else None,
            recall=None if recall is None else partial(recall, one.legacy_id),
            words=words.get(one.legacy_id),
        )
        for one in old
    }
    return _Bases(bases=bases, legacy={one.id: one.legacy_id for one in old})


def _select_bases(bases: dict[str, CertifiedBase], wanted: Sequence[str]) -> _Bases:
    """Select bases (by id) whose ids or names are in ``wanted``; all if it is empty."""
    names = {key: base.name for key, base in bases.items()}
    chosen = {resolve_base(one, names) for one in wanted}
    return _Bases(bases={key: base for key, base in bases.items() if not wanted or key in chosen}, legacy={})


def _current_bases(source: Located, wanted: tuple[str, ...], stack: ExitStack) -> _Bases:
    """Describe the bases of v2 data; ``wanted`` are names or ids (empty: all), ``stack`` keeps the catalog open."""
    catalog = stack.enter_context(cherry_v2.open_source_catalog(source))
    found = read_bases(source)
    by_legacy = {old: new for new, old in found.legacy.items()}
    chosen = {resolve_base(one, found.names, by_legacy) for one in wanted} or found.names.keys()
    rows = {} if catalog is None else {str(row.get("id")): row for row in catalog.bases()}
    stores = {key: store for key, store in found.stores.items() if key in chosen}
    failed = _explain_failed(found, stores, rows)
    bases = {
        key: _describe_current_base(source, catalog, store, rows.get(key, {}), (key, found.names[key]))
        for key, store in stores.items()
        if key not in failed
    }
    return _Bases(bases=bases, legacy=found.legacy, failed=tuple(failed.values()))


def _explain_failed(
    found: StoreBases, stores: Mapping[str, StoreFile | None], rows: Mapping[str, Row]
) -> dict[str, str]:
    """Say for each failed base, by id, why it is left out: it has no index, so nothing can be proven.

    Args:
        found: all bases of the store.
        stores: the index files of the chosen bases by id; None without one.
        rows: rows of the catalog by base id.
    """
    return {
        key: tr(
            "{base}: it failed ({error}) and has no index", base=found.names[key], error=rows.get(key, {}).get("error")
        )
        for key, store in stores.items()
        if store is None and key in found.failed
    }


def _describe_current_base(
    source: Located, catalog: CatalogLookup | None, store: StoreFile | None, row: Row, id_and_name: tuple[str, str]
) -> CertifiedBase:
    """Describe a base of v2 data for the check: how to open its index, and which items it has.

    ``store`` is its index file (None: no index), ``row`` its row in the catalog (empty without a catalog).
    """

    def items_of(ids: Sequence[str]) -> dict[str, str] | None:
        """Map item ids to the ids of their bases; None without a catalog."""
        items = None if catalog is None else catalog.items(ids)
        return None if items is None else {key: str(item.get("base_id")) for key, item in items.items()}

    key, name = id_and_name
    if store is None:
        return CertifiedBase(id=key, name=name, problem=tr("it has no index"))
    model = row.get("embedding_model_id")
    return CertifiedBase(
        id=key,
        name=name,
        model=model if isinstance(model, str) else None,
        dimensions=catalog_dimensions(row),
        open=partial(cherry_v2.open_index, source, store),
        # An index file alone is searched without a catalog.
        items=items_of if row and store.base_id is not None else None,
    )


# Chroma: what its index finds is measured once for all collections, in one copy of the folder.


def _chroma_recall(source: Located) -> Callable[[str], float | str | None] | None:
    """Return a function that measures the recall of a collection of Chroma, given its id.

    It returns the share of true neighbors that the index finds, or the problem as text. None for other sources, or
    without chromadb.
    """
    if source.kind is not Kind.CHROMA or not core.is_installed():
        return None
    root = source.tree.path

    @cache
    def measured() -> dict[str, float | str]:
        """Measure each collection's recall, by collection id; a text says why it cannot be measured."""
        with database.open_chroma(root / database.FILE) as db:
            every = database.list_collections(db)
            found = measure_recall(db, root, every)
            return {one.id: recall.share if recall.problem is None else recall.problem for one, recall in found}

    return lambda key: measured().get(key)


def _chroma_words(source: Located) -> dict[str, WordIndex]:
    """Describe how to check the full-text index of each collection, by id; empty for sources other than Chroma.

    One table is the index of all collections.
    """
    if source.kind is not Kind.CHROMA:
        return {}
    path = source.tree.path / database.FILE
    entries = "SELECT id FROM embeddings WHERE segment_id = :segment"
    chosen = f"m.key = '{database.DOCUMENT}' AND m.string_value IS NOT NULL AND m.id IN ({entries})"
    head = f"substr(m.string_value, 1, {WORD_CHARACTERS})"
    try:
        with database.open_chroma(path) as db:
            every = database.list_collections(db)
    except (ChromaProblem, OSError):
        return {}  # reading its rows reports it
    return {
        one.id: WordIndex(
            open=partial(database.open_chroma, path),
            table=database.FULL_TEXT_TABLE,
            rows=f"SELECT m.id, {head} FROM embedding_metadata m WHERE {chosen}",
            differing=f"SELECT count(*) {database.DIFFERING_DOCUMENTS} AND {chosen}",
            values={"segment": one.metadata},
            is_trigram=True,
        )
        for one in every
        if one.metadata is not None
    }


# codex-mem and AngelMemory: their texts and vectors are written to a temporary table first.


def _note_bases(source: Located, stack: ExitStack) -> dict[str, CertifiedBase]:
    """Copy the notes of each codex-mem project with their vectors to a table, and describe it as a base, by project id.

    ``stack`` keeps the files open.
    """
    folder = stack.enter_context(scratch.temporary_folder())
    side: apsw.Connection | None = None
    meta: SidecarMeta | None = None
    try:
        db = stack.enter_context(sqlite.open_readonly(source.path, beside_writers=True))
        projects = codex_mem.read_projects(db)
        side, meta = stack.enter_context(sidecar.open_sidecar(codex_mem.sidecar_path(source.path)))
    except FileNotFoundError:
        pass  # there is none before the first vector
    except (SidecarProblem, apsw.Error, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=source.path, reason=error) from error
    bases = {}
    for at, project in enumerate(projects.values()):
        path = folder / f"{at}.sqlite"
        with sqlite.open_writable(path, create=True) as table:
            table.execute("PRAGMA journal_mode = OFF").fetchall()
            table.execute("PRAGMA synchronous = OFF")
            table.execute("CREATE TABLE entries (id TEXT, document TEXT, vector BLOB)")
            with sqlite.transaction(table):
                table.executemany("INSERT INTO entries VALUES (?, ?, ?)", _notes(db, side, project.id))
        bases[project.id] = CertifiedBase(
            id=project.id,
            name=project.name,
            model=None if meta is None else meta.model_id,
            dimensions=None if meta is None else meta.dimensions,
            open=partial(open_table, path),
            table=chroma_rows.TABLE,
            words=WordIndex(
                open=partial(sqlite.open_readonly, source.path, beside_writers=True),
                table=codex_mem.FULL_TEXT,
                rows=_NOTE_WORDS,
                values={"project": project.id},
            ),
        )
    return bases


#: The notes of a project that a search by words finds.
_NOTE_WORDS = f"""SELECT n.rowid AS id, substr(ifnull(n.title, '') || ' ' || substr(ifnull(n.content, ''), 1,
   {WORD_CHARACTERS}), 1, {WORD_CHARACTERS}) FROM {codex_mem.NOTES} n
   WHERE n.searchable = 1 AND n.project_id = :project"""


def _notes(
    db: apsw.Connection, side: apsw.Connection | None, project: str
) -> Iterator[tuple[str, str, apsw.SQLiteValue]]:
    """Yield id, text and vector of each note of a project, for a search by vectors.

    ``side`` is the sidecar, the database with the vectors, if it exists. The vector is None if the sidecar has only one
    of an older text, or no vector of the note.
    """
    query = f"SELECT vector FROM {sidecar.TABLE} WHERE note_id = ? AND content_hash = ?"
    for note in codex_mem.NoteReader(db).iterate(project):
        if note.is_eligible:
            yield note.id, note.text, None if side is None else side.execute(query, (note.id, note.hash)).get


def _record_bases(source: Located, stack: ExitStack) -> dict[str, CertifiedBase]:
    """Describe the vectors of the provider that AngelMemory uses as one base, by collection id; empty without vectors.

    ``stack`` keeps the files open.
    """
    in_use = find_providers(source.tree.path).in_use
    if in_use is None:
        return {}
    try:
        with database.open_chroma(in_use.database) as db:
            of = database.find_collection(db, COLLECTION)
        if of is None:
            return {}
        table = stack.enter_context(chroma_rows.write_row_table(in_use.chroma, of.id, None))
        with open_records(source.tree.path) as records:
            _add_records(table.path, iterate_vector_texts(records))
    except FileNotFoundError:
        return {}
    except (AngelProblem, ChromaProblem, apsw.Error, OSError, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=in_use.database, reason=error) from error
    opened: Callable[[], AbstractContextManager[apsw.Connection]] = partial(open_table, table.path)
    base = CertifiedBase(id=of.id, name=in_use.name, dimensions=table.dimension, open=opened, table=chroma_rows.TABLE)
    return {of.id: base}


def _add_records(path: Path, texts: Iterable[tuple[str, str]]) -> None:
    """Add AngelMemory's records to a table of its vectors. A vector of another text than the record's is removed.

    Args:
        path: the database of the table.
        texts: source id and text of each record.
    """
    with sqlite.open_writable(path) as table, sqlite.transaction(table):
        table.execute("CREATE TABLE records (id TEXT PRIMARY KEY, document TEXT)")
        table.executemany("INSERT OR IGNORE INTO records VALUES (?, ?)", texts)
        table.execute("""UPDATE entries SET document = r.document, vector = NULL FROM records r
            WHERE r.id = entries.id AND r.document IS NOT entries.document""")
        table.execute("""INSERT INTO entries (id, document) SELECT id, document FROM records
            WHERE id NOT IN (SELECT id FROM entries)""")


# --- with an embedder ------------------------------------------------------------------------------------------------


def _with_embedder(
    request: CertifyRequest,
    path: Path,
    options: CertifyOptions,
    bases: Collection[CertifiedBase],
    stack: ExitStack,
    confirm: ConfirmSending | None,
) -> CertifyRequest:
    """Choose the texts to send, ask ``confirm``, and open the embedder; return the request with these.

    Args:
        request: the request without an embedder.
        path: the path that the error names.
        options: the user's options.
        bases: the bases of the first source.
        stack: closes the embedder.
        confirm: gets the plan; False stops the run.

    Raises:
        Declined: ``confirm`` returned False.
        RegraftError: there is no such embedder, or it cannot be used.
    """
    limits = Limits(options.limit, options.max_requests, options.max_cost)
    models = frozenset(filter(None, (base.model for base in bases)))
    settings = choose_priced_embedder(options.config, options.embedder, limits, models)
    skipped = {
        base.id: tr(
            "embedder {name} has model {model}, but the vectors are of {model_id}",
            name=settings.name,
            model=settings.model,
            model_id=base.model,
        )
        for base in bases
        if base.model is not None and not settings.serves(base.model)
    }
    known = limit_texts({base.id: choose_texts(base) for base in bases if base.id not in skipped}, options.limit)
    planned = _plan_sending(settings, known.values())
    if planned.bases and confirm is not None and not confirm(planned):
        raise Declined(path=path)
    embedder = stack.enter_context(embedders.open_embedder(settings))
    embed = partial(_embed, embedder, BudgetedEmbedder(embedder, limits))
    return replace(request, embed=embed, embedder=settings.name, known=known, skipped=skipped)


def _embed(embedder: Embedder, budgeted: BudgetedEmbedder, texts: Sequence[str], is_query: bool) -> list[bytes]:
    """Embed texts in requests of the embedder's batch size, within the limits of ``budgeted``.

    Raises:
        EmbeddingStopped: a limit was reached, or the server gives no usable answer.
    """
    vectors: list[bytes] = []
    try:
        for batch in pack_batches(((text, embedder.tokens(text)) for text in texts), embedder.settings.batch):
            vectors += budgeted.embed([text for text, _ in batch], query=is_query)
        # Vectors of several lengths say nothing about the model.
        embedders.check(vectors, len(texts), None, embedder=embedder.settings.name)
    except (LimitReached, TextsRejected, ServerFailing, Halted, AnswerUnfit) as error:
        raise EmbeddingStopped(str(getattr(error, "reason", "") or error)) from error
    return vectors


def _plan_sending(settings: EmbedderSettings, known: Iterable[KnownTexts]) -> CertifyPlan:
    """Estimate what is sent to the embedder; ``known`` are the chosen texts of each base."""
    tokens_of = embedders.counter(settings)
    bases = texts = tokens = requests = 0
    for one in known:
        bases += bool(one.rows)
        for part in (one.rows, one.ends):
            sized = [(text, tokens_of(text)) for _, text in part]
            texts += len(sized)
            tokens += sum(size for _, size in sized)
            requests += sum(1 for _ in pack_batches(sized, settings.batch))
    cost = cost_of(tokens, settings)
    estimate = Estimate(texts=texts, tokens=tokens, requests=requests, cost=cost, currency=settings.currency)
    return CertifyPlan(embedder=settings.name, model=settings.model, bases=bases, estimate=estimate)
