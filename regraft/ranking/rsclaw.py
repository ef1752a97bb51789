"""Search in rsclaw's knowledge bases: regraft's own ranking of the chunks that the caller may see.

Visibility is decided before anything is searched: the temporary index contains only visible chunks, so that no score,
count, note or error depends on a hidden one (``docs/search.md``, "Knowledge bases of rsclaw").
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft.disk import sqlite
from regraft.errors import QueryWithoutWord, WrongUsage
from regraft.formats import vector_checks
from regraft.formats.cherry_v2.index.search import (
    DEFAULT_ALPHA,
    FUSION_DEPTH,
    Hit,
    compile_query,
    fused,
    tokens,
    vector_blob,
    vector_hits,
)
from regraft.formats.redb import PageDamage, read_redb
from regraft.formats.rsclaw import database, documents
from regraft.formats.rsclaw.database import ACTIVE, Chunk
from regraft.formats.rsclaw.documents import Scope
from regraft.formats.rsclaw.vectors import NotNumbers, float32_bytes
from regraft.language import format_count, tr
from regraft.ranking.cherry_v2 import DEFAULT_COUNT, Embed, Mode, NoVector
from regraft.ranking.term_index import search_words

# Temporary index, with the tables that :mod:`regraft.formats.cherry_v2.index.search` queries.


#: A document is a material, each chunk a unit with one body. Chunks are numbered in id order. The number also replaces
#: the text hash, since chunks with equal text may have different vectors.
_TABLES = """
CREATE TABLE material (material_id TEXT PRIMARY KEY, relative_path TEXT, title TEXT) WITHOUT ROWID;
CREATE TABLE search_unit (unit_id TEXT PRIMARY KEY, material_id TEXT, unit_index INTEGER) WITHOUT ROWID;
CREATE TABLE search_text (fts_rowid INTEGER PRIMARY KEY, target_id TEXT, kind TEXT, text TEXT,
                          embedding_text_hash INTEGER UNIQUE);
CREATE TABLE embedding (embedding_text_hash INTEGER PRIMARY KEY, embedder TEXT, vector_blob BLOB);
"""
_BATCH = 200


class KbIndex(msgspec.Struct, kw_only=True):
    """A temporary index of the chunks that a caller may search."""

    db: apsw.Connection
    #: Whether pages of the KB are damaged; their chunks are missing here.
    is_damaged: bool = False

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return int(str(self.db.execute("SELECT count(*) FROM search_unit").get))

    @property
    def vectors(self) -> int:
        """Number of chunks with a vector to compare."""
        return int(str(self.db.execute("SELECT count(*) FROM embedding").get))

    def title_of(self, doc: str) -> str:
        """Return the title of the document with the id ``doc``."""
        return str(self.db.execute("SELECT title FROM material WHERE material_id = ?", (doc,)).get)

    def main_embedder(self, dimensions: int | None = None) -> str | None:
        """Return the id of the embedder of most vectors (with ``dimensions``, if given); None without vectors."""
        found = self.db.execute(
            """SELECT embedder FROM embedding WHERE ?1 IS NULL OR octet_length(vector_blob) = 4 * ?1
                GROUP BY embedder ORDER BY count(*) DESC, embedder LIMIT 1""",
            (dimensions,),
        ).get
        return None if found is None else str(found)

    def dimensions_of(self, embedder: str) -> int:
        """Return the most frequent dimensions of the vectors of an embedder, given by its id."""
        found = self.db.execute(
            """SELECT octet_length(vector_blob) / 4 AS numbers FROM embedding WHERE embedder = ?
                GROUP BY numbers ORDER BY count(*) DESC, numbers LIMIT 1""",
            (embedder,),
        ).get
        return int(str(found))

    def keep_vectors(self, embedder: str, dimensions: int) -> int:
        """Delete all vectors except those of an embedder with given dimensions; return the number of deleted ones."""
        others = "embedder <> ? OR octet_length(vector_blob) <> 4 * ?"
        self.db.execute(f"DELETE FROM embedding WHERE {others}", (embedder, dimensions))
        return self.db.changes()

    def drop_flawed_vectors(self) -> None:
        """Delete vectors that are all zeros or contain NaN or infinity."""
        self.db.execute(f"DELETE FROM embedding WHERE {vector_checks.flaw_sql('vector_blob')}")


@contextmanager
def build_index(path: Path, scope: Scope, *, vectors: bool) -> Iterator[KbIndex]:
    """Context with a temporary index of the chunks that a caller may search.

    Args:
        path: database of the KB.
        scope: the caller: whose documents are visible.
        vectors: whether to load vectors.

    Raises:
        RedbError: the database is in use, of another format, or completely damaged.
        OSError: not enough space for the index.
    """
    with sqlite.open_scratch() as db:
        db.execute(_TABLES)
        vector_checks.register_functions(db)
        index = KbIndex(db=db)
        # The documents to search.
        with database.open_mirror(path, (database.DOCS, database.LATEST)) as mirror:
            documents.select_documents(mirror, scope)
            searched = mirror.db.execute(
                "SELECT d.id, d.md_path, d.title FROM doc d JOIN verdict v ON v.doc_id = d.id WHERE v.reason IS NULL"
            )
            with sqlite.transaction(index.db):
                index.db.executemany("INSERT INTO material VALUES (?, ?, ?)", searched)
            index.is_damaged = mirror.damaged_pages > 0
            state = mirror.state
        _fill_chunks(index, path, state, vectors=vectors)
        yield index


def _fill_chunks(index: KbIndex, path: Path, state: bytes, *, vectors: bool) -> None:
    """Copy the searchable chunks of the KB at ``path`` to the temporary index, with their vectors if ``vectors``.

    Chunks of damaged pages are left out, and the index is marked as damaged.

    Args:
        index: has the visible documents; gets their chunks.
        path: database of the KB.
        state: the state of the file that the documents were read from.
        vectors: whether to load vectors.

    Raises:
        RedbError: the file was changed since the documents were read, or cannot be read.
    """

    def see(_: PageDamage) -> None:
        """Note that pages are damaged."""
        index.is_damaged = True

    with read_redb(path, on_damage=see, state=state) as file, sqlite.transaction(index.db):
        if database.CHUNKS not in file.tables:
            return
        found = enumerate(_searchable_chunks(index.db, file.raw_rows(database.CHUNKS)), 1)
        while batch := list(islice(found, _BATCH)):
            units = [(chunk.id, chunk.doc_id, chunk.seq) for _, chunk in batch]
            index.db.executemany("INSERT INTO search_unit VALUES (?, ?, ?)", units)
            texts = [(number, chunk.id, chunk.indexed_text) for number, chunk in batch]
            index.db.executemany("INSERT INTO search_text VALUES (?1, ?2, 'body', ?3, ?1)", texts)
            if vectors:
                index.db.executemany("INSERT INTO embedding VALUES (?, ?, ?)", _vector_rows(batch))


def _searchable_chunks(db: apsw.Connection, stored: Iterator[tuple[bytes, bytes]]) -> Iterator[Chunk]:
    """Decode the rows ``stored`` of the KB's table of chunks (id, value) and yield the chunks to search.

    These are active, well-formed, and of documents that the temporary index ``db`` has.
    """
    for key, value in stored:
        try:
            chunk = database.decode_chunk(value)
        except msgspec.MsgspecError:
            continue
        is_searched = chunk.status == ACTIVE and key == chunk.id.encode()
        if is_searched and db.execute("SELECT 1 FROM material WHERE material_id = ?", (chunk.doc_id,)).get:
            yield chunk


def _vector_rows(chunks: list[tuple[int, Chunk]]) -> Iterator[tuple[Any, ...]]:
    """Yield (number, embedder's id, vector as float32) of each numbered chunk that has a usable vector."""
    for number, chunk in chunks:
        try:
            blob = float32_bytes(chunk.vector)
        except NotNumbers:
            continue
        if blob:
            yield number, chunk.embedder_id, blob


class ChunkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A search request. ``mode`` None: hybrid if the query has a vector or an embedder, else by words."""

    query: str
    scope: Scope
    mode: Mode | None = None
    count: int | None = None
    vector: tuple[float, ...] | None = None
    embed: Embed | None = None

    @property
    def wants_meaning(self) -> bool:
        """Whether vectors are searched."""
        if self.mode is None:
            return self.vector is not None or self.embed is not None
        return self.mode is not Mode.BM25


class ChunkAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a search, best hit first. A hit's unit is a chunk, its material a document."""

    scope: Scope
    mode: Mode
    count: int
    hits: tuple[Hit, ...]
    #: Titles of the hits' documents by id.
    titles: dict[str, str]
    notes: tuple[str, ...]
    #: Whether scores depend on text length only, as for queries of short words.
    is_by_length: bool
    #: Whether pages of the KB are damaged.
    is_damaged: bool


def search(path: Path, request: ChunkRequest) -> ChunkAnswer:
    """Search a KB on behalf of a caller.

    Args:
        path: database of the KB.
        request: the search request.

    Raises:
        QueryWithoutWord, QueryTooLong: the query has no word, too many words, or too long ones.
        WrongUsage: vector mode was requested, and vectors cannot be searched.
        RedbError: the database is in use, of another format, or completely damaged.
        OSError: not enough space for the temporary index.
    """
    if not tokens(request.query):
        raise QueryWithoutWord
    with build_index(path, request.scope, vectors=request.wants_meaning) as index:
        return _Search(index=index, request=request).answer()


class _Search(msgspec.Struct, kw_only=True):
    """A single search."""

    index: KbIndex
    request: ChunkRequest
    notes: list[str] = msgspec.field(default_factory=list)

    def answer(self) -> ChunkAnswer:
        """Run the search."""
        count = self.request.count or DEFAULT_COUNT
        if self.index.is_damaged:
            self.notes.append(tr("pages of the database are damaged; their content is not searched"))
        if self.request.mode is Mode.BM25 and self.request.vector is not None:
            self.notes.append(tr("the vector is not used: mode bm25 searches by words only"))
        vector = self._prepare_vector()
        mode = Mode.BM25 if vector is None else self.request.mode or Mode.HYBRID
        hits = tuple(self._hits(mode, vector, count))
        return ChunkAnswer(
            scope=self.request.scope,
            mode=mode,
            count=count,
            hits=hits,
            titles={hit.material_id: self.index.title_of(hit.material_id) for hit in hits},
            notes=tuple(self.notes),
            is_by_length=mode is Mode.BM25 and not compile_query(self.request.query).terms,
            is_damaged=self.index.is_damaged,
        )

    # --- lanes -------------------------------------------------------------------------------------------------------

    def _hits(self, mode: Mode, vector: bytes | None, count: int) -> list[Hit]:
        """Return the best ``count`` hits by ``mode``; by words if the query has no ``vector``."""
        if vector is None:
            return search_words(self.index.db, self.request.query, count)
        if mode is Mode.VECTOR:
            return vector_hits(self.index.db, vector, count)
        depth = FUSION_DEPTH * count
        by_words = search_words(self.index.db, self.request.query, depth)
        both = fused(vector_hits(self.index.db, vector, depth), by_words, DEFAULT_ALPHA)
        return sorted(both, key=lambda hit: (-hit.score, hit.unit_id))[:count]

    # --- meaning -----------------------------------------------------------------------------------------------------

    def _prepare_vector(self) -> bytes | None:
        """Return the query's vector as float32, and restrict the index to comparable vectors.

        None: search by words only. Then a note has the reason, unless that was requested.

        Raises:
            WrongUsage: vector mode was requested, and vectors cannot be searched.
        """
        if not self.request.wants_meaning:
            return None
        try:
            return self._vector()
        except NoVector as obstacle:
            if self.request.mode is Mode.VECTOR:
                problem = tr("cannot search by meaning: {obstacle}", obstacle=obstacle)
                raise WrongUsage(problem=problem, hint=tr("use --mode bm25 to search by words")) from obstacle
            self.notes.append(tr("searched by words only: {obstacle}", obstacle=obstacle))
            return None

    def _vector(self) -> bytes:
        """Return the query's vector as float32, and restrict the index to comparable vectors.

        Raises:
            NoVector: the query has no usable vector, or there are no vectors to compare it with.
        """
        main = self.index.main_embedder()
        if main is None:
            raise NoVector(tr("no chunk has a vector"))
        numbers, embedder = self.request.vector, main
        if numbers is not None:
            embedder = self.index.main_embedder(len(numbers)) or main
        elif self.request.embed is not None:
            numbers = self.request.embed(main)
        else:
            raise NoVector(tr("the query has no vector; use --vector or --embedder"))
        return self._restrict_vectors(numbers, embedder)

    def _restrict_vectors(self, numbers: tuple[float, ...], embedder: str) -> bytes:
        """Check the ``numbers`` of the query's vector and return them as float32.

        Restricts the index to vectors of ``embedder`` with the same dimensions. Raises NoVector as :meth:`_vector`.
        """
        blob, dimensions = vector_blob(numbers), self.index.dimensions_of(embedder)
        if not any(blob):
            raise NoVector(tr("the query's vector is all zeros, so it is similar to nothing"))
        if not vector_checks.is_finite(blob):
            raise NoVector(tr("the query's vector contains NaN or infinite values"))
        others = self.index.keep_vectors(embedder, len(numbers))
        if not self.index.vectors:
            raise NoVector(
                tr(
                    "the query's vector has {numbers} dimensions, but those of {embedder} have {dimensions}",
                    numbers=len(numbers),
                    embedder=embedder,
                    dimensions=dimensions,
                )
            )
        self.index.drop_flawed_vectors()
        if not self.index.vectors:
            raise NoVector(tr("no chunk has a comparable vector"))
        self._note_missing_vectors(embedder, others, self.index.chunks - others - self.index.vectors)
        return blob

    def _note_missing_vectors(self, embedder: str, others: int, unusable: int) -> None:
        """Note how many chunks can be found by words only.

        ``others`` have a vector of another embedder than ``embedder``, ``unusable`` have no usable vector.
        """
        if others:
            self.notes.append(
                tr(
                    "{chunks} with another embedder or other dimensions than the query ({embedder}) can be found by "
                    "words only",
                    chunks=format_count(others, "chunk"),
                    embedder=embedder,
                )
            )
        if unusable:
            self.notes.append(
                tr(
                    "{chunks} without a comparable vector can be found by words only",
                    chunks=format_count(unusable, "chunk"),
                )
            )
