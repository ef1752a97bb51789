"""A search in a KB of rsclaw: a ranking of regraft's own, over what the caller may see and nothing else.

Rules: ``docs/search.md``, "Knowledge bases of rsclaw".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft.disk import sqlite
from regraft.errors import QueryWithoutWord, WrongUsage
from regraft.formats import vector_checks
from regraft.formats.cherry_v2.index import schema
from regraft.formats.cherry_v2.index.full_text import MERGE_AT_SEGMENTS
from regraft.formats.cherry_v2.index.search import (
    DEFAULT_ALPHA,
    FUSION_DEPTH,
    Hit,
    bm25_hits,
    compile_query,
    fused,
    tokens,
    vector_blob,
    vector_hits,
)
from regraft.formats.redb import PageDamage, read_redb
from regraft.formats.rsclaw import database, selection
from regraft.formats.rsclaw.database import ACTIVE, Chunk
from regraft.formats.rsclaw.selection import Scope
from regraft.formats.rsclaw.vectors import NotNumbers, float32_bytes
from regraft.language import format_count, tr
from regraft.ranking.cherry_v2 import DEFAULT_COUNT, Mode
from regraft.ranking.fusion import Embed, NoVector

# The chunks of a KB that a caller may search, and no others, as an index that is forgotten at the end.
#
# Whom a chunk is hidden from is decided before anything is searched, counted or compared: the index holds no row of it,
# so that no score, count, note or error can depend on it. The tables are those that the lanes of
# :mod:`regraft.formats.cherry_v2.index.search` ask.
#
# Rules: ``docs/search.md``, "Knowledge bases of rsclaw".


#: A document is a material, and each chunk a unit with one body. Chunks are numbered in the order of their ids; the
#: number stands for the hash of the text, too, since two chunks of equal text may have different vectors.
_TABLES = """
CREATE TABLE material (material_id TEXT PRIMARY KEY, relative_path TEXT, title TEXT) WITHOUT ROWID;
CREATE TABLE search_unit (unit_id TEXT PRIMARY KEY, material_id TEXT, unit_index INTEGER) WITHOUT ROWID;
CREATE TABLE search_text (fts_rowid INTEGER PRIMARY KEY, target_id TEXT, kind TEXT, text TEXT,
                          embedding_text_hash INTEGER UNIQUE);
CREATE TABLE embedding (embedding_text_hash INTEGER PRIMARY KEY, embedder TEXT, vector_blob BLOB);
"""
_BATCH = 200
#: Stands for every character that is in no term: a term is of letters, numbers and ``_``.
_FILLER = 1


class _Kept(dict[int, int]):
    """What becomes of each character: those of the terms stay, in any case that full text may take for the same.

    An index of Chinese texts takes a fifth of the time so: nearly all of its trigrams are of no use to one query.
    """

    def __init__(self, terms: Iterable[str]) -> None:
        # Full text takes a text for ended where NUL is.
        super().__init__({0: 0})
        self._wanted = {other for term in terms for one in term for other in cases_of(one)}

    def __missing__(self, point: int) -> int:
        kept = _FILLER if self._wanted.isdisjoint(cases_of(chr(point))) else point
        return self.setdefault(point, kept)


def cases_of(one: str) -> frozenset[str]:
    """Return the characters that a character may be in another case, itself among them."""
    return frozenset("".join((one, one.lower(), one.upper(), one.title(), one.casefold())))


class KbIndex(msgspec.Struct, kw_only=True):
    """An index of what a caller may search."""

    db: apsw.Connection
    #: Whether pages of the KB are damaged: what lies in them is not here.
    is_damaged: bool = False

    @property
    def chunks(self) -> int:
        """Return how many chunks there are."""
        return int(str(self.db.execute("SELECT count(*) FROM search_unit").get))

    @property
    def vectors(self) -> int:
        """Return how many chunks have a vector that takes part."""
        return int(str(self.db.execute("SELECT count(*) FROM embedding").get))

    def title_of(self, doc: str) -> str:
        """Return the title of a document."""
        return str(self.db.execute("SELECT title FROM material WHERE material_id = ?", (doc,)).get)

    def fill_full_text(self, terms: Iterable[str]) -> None:
        """Index the words of all chunks, so that these terms can be asked for, and no others; only once.

        What is in no term is indexed as :data:`_FILLER`: lengths, and so scores, are those of the whole texts.
        """
        kept = _Kept(terms)
        self.db.execute(schema.FULL_TEXT)
        with sqlite.transaction(self.db):
            # One query is asked of it: merging segments meanwhile would not pay.
            for name, value in (("automerge", 0), ("crisismerge", MERGE_AT_SEGMENTS)):
                self.db.execute("INSERT INTO search_text_fts (search_text_fts, rank) VALUES (?, ?)", (name, value))
            texts = self.db.execute("SELECT fts_rowid, text FROM search_text ORDER BY fts_rowid")
            self.db.executemany(
                "INSERT INTO search_text_fts (rowid, text) VALUES (?, ?)",
                ((number, str(text).translate(kept)) for number, text in texts),
            )

    def main_embedder(self, dimensions: int | None = None) -> str | None:
        """Return the embedder of most vectors, or of most of those that have so many numbers; None where none has."""
        found = self.db.execute(
            """SELECT embedder FROM embedding WHERE ?1 IS NULL OR octet_length(vector_blob) = 4 * ?1
                GROUP BY embedder ORDER BY count(*) DESC, embedder LIMIT 1""",
            (dimensions,),
        ).get
        return None if found is None else str(found)

    def dimensions_of(self, embedder: str) -> int:
        """Return how many numbers most vectors of an embedder have."""
        found = self.db.execute(
            """SELECT octet_length(vector_blob) / 4 AS numbers FROM embedding WHERE embedder = ?
                GROUP BY numbers ORDER BY count(*) DESC, numbers LIMIT 1""",
            (embedder,),
        ).get
        return int(str(found))

    def keep_vectors(self, embedder: str, dimensions: int) -> int:
        """Let no vector take part but those of an embedder that have so many numbers; return how many do not."""
        others = "embedder <> ? OR octet_length(vector_blob) <> 4 * ?"
        self.db.execute(f"DELETE FROM embedding WHERE {others}", (embedder, dimensions))
        return self.db.changes()

    def drop_flawed_vectors(self) -> None:
        """Let no vector take part that is all zeros, or holds a NaN or an infinity."""
        self.db.execute(f"DELETE FROM embedding WHERE {vector_checks.flaw_sql('vector_blob')}")


@contextmanager
def built(path: Path, scope: Scope, *, vectors: bool) -> Iterator[KbIndex]:
    """Make the index of what a caller may search.

    Args:
        path: the database of the KB.
        scope: who asks.
        vectors: whether the chunks' vectors are needed, too.

    Raises:
        RedbError: it is in use, of another format, or damaged as a whole.
        OSError: there is no room for the index.
    """
    with sqlite.open_scratch() as db:
        db.execute(_TABLES)
        vector_checks.register_functions(db)
        index = KbIndex(db=db)
        state = _fill_documents(index, path, scope)
        _fill_chunks(index, path, state, vectors=vectors)
        yield index


def _fill_documents(index: KbIndex, path: Path, scope: Scope) -> bytes:
    """Fill in the documents that are searched, and return the state of the file that these are of."""
    with database.mirrored(path, (database.DOCS, database.LATEST)) as mirror:
        selection.judge(mirror, scope)
        searched = mirror.db.execute(
            "SELECT d.id, d.md_path, d.title FROM doc d JOIN verdict v ON v.doc_id = d.id WHERE v.reason IS NULL"
        )
        with sqlite.transaction(index.db):
            index.db.executemany("INSERT INTO material VALUES (?, ?, ?)", searched)
        index.is_damaged = mirror.damaged_pages > 0
        return mirror.state


def _fill_chunks(index: KbIndex, path: Path, state: bytes, *, vectors: bool) -> None:
    def see(_: PageDamage) -> None:
        index.is_damaged = True

    with read_redb(path, on_damage=see, state=state) as file, sqlite.transaction(index.db):
        if database.CHUNKS not in file.tables:
            return
        found = enumerate(_searched(index.db, file.raw_rows(database.CHUNKS)), 1)
        while batch := list(islice(found, _BATCH)):
            _insert(index.db, batch, vectors=vectors)


def _searched(db: apsw.Connection, stored: Iterator[tuple[bytes, bytes]]) -> Iterator[Chunk]:
    """Yield the chunks of documents in the index, in the order of their ids; one that is not of its form is none."""
    for key, value in stored:
        try:
            chunk = database.decode_chunk(value)
        except msgspec.MsgspecError:
            continue
        is_searched = chunk.status == ACTIVE and key == chunk.id.encode()
        if is_searched and db.execute("SELECT 1 FROM material WHERE material_id = ?", (chunk.doc_id,)).get:
            yield chunk


def _insert(db: apsw.Connection, chunks: list[tuple[int, Chunk]], *, vectors: bool) -> None:
    units = [(chunk.id, chunk.doc_id, chunk.seq) for _, chunk in chunks]
    db.executemany("INSERT INTO search_unit VALUES (?, ?, ?)", units)
    texts = [(number, chunk.id, chunk.indexed_text) for number, chunk in chunks]
    db.executemany("INSERT INTO search_text VALUES (?1, ?2, 'body', ?3, ?1)", texts)
    if vectors:
        db.executemany("INSERT INTO embedding VALUES (?, ?, ?)", _vectors(chunks))


def _vectors(chunks: list[tuple[int, Chunk]]) -> Iterator[tuple[Any, ...]]:
    for number, chunk in chunks:
        try:
            blob = float32_bytes(chunk.vector)
        except NotNumbers:
            continue
        if blob:
            yield number, chunk.embedder_id, blob


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, and by whom; ``mode`` None: hybrid where there is a vector of the query, or what makes one."""

    query: str
    scope: Scope
    mode: Mode | None = None
    count: int | None = None
    vector: tuple[float, ...] | None = None
    embed: Embed | None = None

    @property
    def wants_meaning(self) -> bool:
        """Tell whether the KB is to be searched by meaning, too, or only so."""
        if self.mode is None:
            return self.vector is not None or self.embed is not None
        return self.mode is not Mode.BM25


class ChunkAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, best first, how, and what is worth saying. A hit's unit is a chunk, its material a document."""

    scope: Scope
    mode: Mode
    count: int
    hits: tuple[Hit, ...]
    #: The titles of the documents of the hits, by their ids.
    titles: dict[str, str]
    notes: tuple[str, ...]
    #: Whether all that a score tells is how long the text is: so it is by short words alone.
    is_by_length: bool
    #: Whether pages of the KB are damaged.
    is_damaged: bool

    @property
    def score_kind(self) -> str:
        """Return what a score is: how near by meaning, or only a place in the order."""
        return "relevance" if self.mode is Mode.VECTOR else "ranking"


def search(path: Path, request: Request) -> ChunkAnswer:
    """Search a KB for a caller.

    Args:
        path: the database of the KB.
        request: what is asked.

    Raises:
        QueryWithoutWord, QueryTooLong: the query has no word, or too many or too long ones.
        WrongUsage: meaning alone is asked for, and cannot be searched.
        RedbError: the database is in use, of another format, or damaged as a whole.
        OSError: there is no room for a temporary index.
    """
    if not tokens(request.query):
        raise QueryWithoutWord
    with built(path, request.scope, vectors=request.wants_meaning) as index:
        return _Search(index=index, request=request).answer()


class _Search(msgspec.Struct, kw_only=True):
    """One search, step by step; used once."""

    index: KbIndex
    request: Request
    notes: list[str] = msgspec.field(default_factory=list)

    def answer(self) -> ChunkAnswer:
        count = self.request.count or DEFAULT_COUNT
        self._say_what_is_damaged()
        vector = self._meaning()
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

    def _say_what_is_damaged(self) -> None:
        if self.index.is_damaged:
            self.notes.append(tr("pages of the database are damaged: what lies in them is not searched"))
        if self.request.mode is Mode.BM25 and self.request.vector is not None:
            self.notes.append(tr("the vector is not used: bm25 looks for words only"))

    # --- lanes -------------------------------------------------------------------------------------------------------

    def _hits(self, mode: Mode, vector: bytes | None, count: int) -> list[Hit]:
        if vector is None:
            return self._by_words(count)
        if mode is Mode.VECTOR:
            return vector_hits(self.index.db, vector, count)
        depth = FUSION_DEPTH * count
        both = fused(vector_hits(self.index.db, vector, depth), self._by_words(depth), DEFAULT_ALPHA)
        return sorted(both, key=lambda hit: (-hit.score, hit.unit_id))[:count]

    def _by_words(self, count: int) -> list[Hit]:
        if terms := compile_query(self.request.query).terms:
            self.index.fill_full_text(terms)
        return bm25_hits(self.index.db, self.request.query, count)

    # --- meaning -----------------------------------------------------------------------------------------------------

    def _meaning(self) -> bytes | None:
        """Return the query's vector; None, with a note that says why, where words alone can be searched.

        Raises:
            WrongUsage: meaning alone is asked for.
        """
        if not self.request.wants_meaning:
            return None
        try:
            return self._vector()
        except NoVector as obstacle:
            if self.request.mode is Mode.VECTOR:
                problem = tr("nothing can be searched by meaning: {obstacle}", obstacle=obstacle)
                raise WrongUsage(problem=problem, hint=tr("--mode bm25 searches by words")) from obstacle
            self.notes.append(tr("searched by words alone: {obstacle}", obstacle=obstacle))
            return None

    def _vector(self) -> bytes:
        """Return the query's vector, and let those take part that it can be compared with.

        Raises:
            NoVector: there is none, or nothing to compare it with.
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
            raise NoVector(tr("there is no vector of the query; --vector or --embedder gives one"))
        return self._comparable(numbers, embedder)

    def _comparable(self, numbers: tuple[float, ...], embedder: str) -> bytes:
        """Return a query's vector as it is compared with those of an embedder, and let no others take part."""
        blob, dimensions = vector_blob(numbers), self.index.dimensions_of(embedder)
        if not any(blob):
            raise NoVector(tr("the query's vector is all zeros, which is near to nothing"))
        if not vector_checks.is_finite(blob):
            raise NoVector(tr("the query's vector has numbers that are not finite"))
        others = self.index.keep_vectors(embedder, len(numbers))
        if not self.index.vectors:
            raise NoVector(
                tr(
                    "the query's vector has {numbers} numbers, those of {embedder} have {dimensions}",
                    numbers=len(numbers),
                    embedder=embedder,
                    dimensions=dimensions,
                )
            )
        self.index.drop_flawed_vectors()
        if not self.index.vectors:
            raise NoVector(tr("no chunk has a vector that can be compared"))
        self._say_who_is_missing(embedder, others, self.index.chunks - others - self.index.vectors)
        return blob

    def _say_who_is_missing(self, embedder: str, others: int, unusable: int) -> None:
        if others:
            self.notes.append(
                tr(
                    "{chunks} of another embedder or dimension than the query ({embedder}) can be found by words alone",
                    chunks=format_count(others, "chunk"),
                    embedder=embedder,
                )
            )
        if unusable:
            self.notes.append(
                tr(
                    "{chunks} without a vector that can be compared can be found by words alone",
                    chunks=format_count(unusable, "chunk"),
                )
            )
