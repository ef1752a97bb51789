"""The rows of a v2 index for a Parquet file (``docs/formats/parquet.md``)."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from regraft.disk import sqlite
from regraft.disk.untrusted_sqlite import find_rowid_column
from regraft.formats import json_text, table_integrity
from regraft.formats.cherry_v2.index.bulk import BODY_SEPARATOR
from regraft.formats.cherry_v2.index.full_text import ROWS_CACHE_KIB
from regraft.formats.cherry_v2.index.schema import (
    choose_vector_length,
    count_bodies_of_other_length,
    count_vector_lengths,
)
from regraft.formats.large_text import LARGE_BYTES, LargeText
from regraft.formats.parquet.unit_file import BaseMetadata, EmptyMaterial, UnitRow
from regraft.formats.rsclaw import chunks as rsclaw_chunks
from regraft.formats.rsclaw.chunks import Chunks
from regraft.formats.rsclaw.selection import parsed
from regraft.formats.vector_survey import StoreProblem
from regraft.formats.vector_table import make_text_decoder
from regraft.language import tr
from regraft.stores.systems import Located
from regraft.text import decode_utf8, replace_surrogates

_TABLES = ("content", "material", "search_unit", "search_text", "embedding")
_TEXT = "CASE typeof({0}) WHEN 'text' THEN CAST({0} AS BLOB) END"
_IS_LARGE = f"(typeof(t.text) = 'text' AND octet_length(t.text) > {LARGE_BYTES})"
_SMALL = f"CASE WHEN NOT {_IS_LARGE} THEN {_TEXT.format('t.text')} END"
_INTEGER = "CASE typeof({0}) WHEN 'integer' THEN {0} END"


@dataclass
class BaseSummary:
    """What a first pass over a base's file tells: what is in no row, and what is needed while rows are streamed."""

    #: Of most vectors; None where it has none.
    vector_bytes: int | None = None
    bodies: int = 0
    #: What no row can hold, by the name that ``check`` has for it.
    left_out: dict[str, int] = field(default_factory=dict)
    #: Bodies that are no row, by reason.
    skipped: dict[str, int] = field(default_factory=dict)
    bare: list[EmptyMaterial] = field(default_factory=list)
    #: Materials whose content is not their bodies joined by a blank line.
    own_content: set[str] = field(default_factory=set)
    #: What stopped the pass, None where it went to its end.
    damage: str | None = None


def read_base_id(path: Path) -> str | None:
    """Return the id of the base that an index says it is of, None where it says none.

    Raises:
        apsw.Error, OSError: it is no index, or damaged.
    """
    with sqlite.open_readonly(path) as db:
        rows: list[Any] = db.execute("SELECT base_id FROM meta").fetchall()
    return rows[0][0] if rows and isinstance(rows[0][0], str) else None


def summarize_index(path: Path, dimensions: int | None = None) -> BaseSummary:
    """Read a base's index once, all but its vectors.

    Args:
        path: the index file.
        dimensions: those of the catalog; without them the vectors have the length that most of them have.

    Raises:
        StoreProblem: its rows cannot be told by their numbers.
        apsw.Error, OSError: it is no index, or so damaged that no row can be counted.
    """
    found = BaseSummary()
    with sqlite.open_readonly(path) as db:
        odd = find_rowid_column(db, _TABLES)
        if odd is not None:
            raise StoreProblem(tr("its column {odd} stands in the place of the numbers of rows", odd=odd))
        found.bodies = db.execute("SELECT count(*) FROM search_text NOT INDEXED").get
        counts = {
            "body.orphan": "search_text WHERE target_id NOT IN (SELECT unit_id FROM search_unit)",
            "unit.no-body": "search_unit WHERE unit_id NOT IN (SELECT target_id FROM search_text)",
            "embedding.orphan": "embedding WHERE embedding_text_hash NOT IN"
            " (SELECT embedding_text_hash FROM search_text)",
            "content.orphan": "content WHERE content_hash NOT IN (SELECT content_hash FROM search_unit)"
            " AND content_hash NOT IN (SELECT ifnull(current_content_hash, '') FROM material)",
        }
        try:
            lengths = count_vector_lengths(db)
            if lengths:
                # Vectors that all have one length are exported with it, whatever the catalog says.
                found.vector_bytes = choose_vector_length(lengths, None if len(lengths) == 1 else dimensions)
                if others := count_bodies_of_other_length(db, found.vector_bytes):
                    found.left_out["embedding.length"] = others
            for name, what in counts.items():
                if count := db.execute(f"SELECT count(*) FROM {what}").get:
                    found.left_out[name] = count
            _look_at_contents(db, found)
            # Rows are found through indexes: one that lacks an entry would lose a text's unit or vector in silence.
            # Contents follow from the texts.
            found.damage = table_integrity.find_inconsistency(db, (name for name in _TABLES if name != "content"))
        except apsw.Error as error:
            # The rows may be whole all the same, or some of them.
            found.damage = str(error)
    return found


def _look_at_contents(db: apsw.Connection, found: BaseSummary) -> None:
    materials = db.execute(
        f"SELECT {_text('material_id')}, {_text('relative_path')}, current_content_hash FROM material ORDER BY rowid"
    )
    for raw_id, raw_path, content_hash in materials:
        material = decode_utf8(raw_id or b"")
        bodies: list[Any] = db.execute(
            # CROSS: units first, or every body of the index would be gone through for every material.
            "SELECT t.rowid, u.content_hash FROM search_unit u CROSS JOIN search_text t"
            " ON t.target_type = 'search_unit' AND t.target_id = u.unit_id"
            " WHERE u.material_id = ? ORDER BY u.unit_index",
            (material,),
        ).fetchall()
        if not bodies:
            content = _content(db, content_hash)
            found.bare.append(EmptyMaterial(material, decode_utf8(raw_path or b""), content))
            continue
        if _joined_hash(db, [rowid for rowid, _ in bodies]) != bodies[0][1]:
            found.own_content.add(material)


def _joined_hash(db: apsw.Connection, rowids: list[int]) -> str:
    """Return the hash of bodies joined by a blank line, one of them in memory at a time, and no large one whole."""
    joined = hashlib.sha256()
    for number, rowid in enumerate(rowids):
        if number:
            joined.update(BODY_SEPARATOR.encode())
        [(small, is_large)] = db.execute(f"SELECT {_SMALL}, {_IS_LARGE} FROM search_text t WHERE t.rowid = ?", (rowid,))
        pieces = (
            LargeText(db=db, table="search_text", column="text", rowid=rowid).pieces() if is_large else (_utf8(small),)
        )
        for piece in pieces:
            joined.update(piece)
    return joined.hexdigest()


def _utf8(raw: Any) -> bytes:
    return decode_utf8(raw or b"").encode()


def _text(column: str) -> str:
    return _TEXT.format(column)


def _content(db: apsw.Connection, content_hash: Any) -> str | None:
    rows: list[Any] = db.execute(
        f"SELECT {_text('text')} FROM content WHERE content_hash = ?", (content_hash,)
    ).fetchall()
    return None if not rows or rows[0][0] is None else decode_utf8(rows[0][0])


def _large_content(db: apsw.Connection, content_hash: Any) -> str | bytes | None:
    """Return a content, a large one as UTF-8."""
    is_large = f"typeof(text) = 'text' AND octet_length(text) > {LARGE_BYTES}"
    query = f"SELECT rowid FROM content WHERE content_hash = ? AND {is_large}"
    found: list[Any] = db.execute(query, (content_hash,)).fetchall()
    for (rowid,) in found:
        return LargeText(db=db, table="content", column="text", rowid=rowid).utf8()
    return _content(db, content_hash)


def read_item_sources(items: list[dict[str, Any]] | None) -> dict[str, str]:
    """Return what items of the catalog say of where they are from, by their ids."""
    found = {}
    for item in items or ():
        try:
            source = json_text.loads(item["data"])["source"]
        except (ValueError, TypeError, KeyError):
            continue
        if isinstance(source, str) and isinstance(item.get("id"), str):
            found[item["id"]] = replace_surrogates(source)
    return found


def _units_query(db: apsw.Connection) -> str:
    texts = ("u.material_id", "m.relative_path", "u.content_hash", "t.embedding_text_hash", "u.unit_id")
    columns = ", ".join(_text(name) for name in (*texts, "u.title", "u.locator_json"))
    numbers = ", ".join(_INTEGER.format(f"u.{name}") for name in ("unit_index", "char_start", "char_end"))
    known = {str(row[1]) for row in db.execute("PRAGMA table_info('search_text')")}
    order = "t.fts_rowid, t.rowid" if "fts_rowid" in known else "t.rowid"
    return f"""SELECT {columns}, {numbers}, e.vector_blob, {_SMALL}, CASE WHEN {_IS_LARGE} THEN t.rowid END
                 FROM search_text t
           CROSS JOIN search_unit u ON u.unit_id = t.target_id
                 LEFT JOIN material m ON m.material_id = u.material_id
                 LEFT JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash
                ORDER BY {order}"""


def read_index_rows(path: Path, base: BaseMetadata, found: BaseSummary) -> Iterator[UnitRow]:
    """Stream the units of an index in the order of ``fts_rowid`` (in the layout's version 1: of their rows).

    A vector of another length than most, or that is no blob, is None.

    Raises:
        apsw.Error: damage, found while reading.
    """
    own = set(found.own_content)
    sources = read_item_sources(base.items)
    base_name = replace_surrogates(base.name)
    with sqlite.open_readonly(path) as db:
        # Units and vectors are looked up by hash, in no order.
        db.execute(f"PRAGMA cache_size = -{ROWS_CACHE_KIB}")
        for row in db.execute(_units_query(db)):
            item, place, content_hash, body_hash, unit, title, locator = (
                None if raw is None else decode_utf8(raw) for raw in row[:7]
            )
            index, start, end, vector, small, large = row[7:]
            content: str | bytes | None = None
            text: str | bytes | None = None if small is None else decode_utf8(small)
            if large is not None:
                # UTF-8 takes less than a text of Python.
                text = LargeText(db=db, table="search_text", column="text", rowid=large).utf8()
            if item in own:
                own.discard(item)
                content = _large_content(db, content_hash)
            usable = isinstance(vector, bytes) and len(vector) == found.vector_bytes
            yield UnitRow(
                base=base.id,
                base_name=base_name,
                item=item,
                path=place,
                source=sources.get(item or ""),
                unit_index=index,
                char_start=start,
                char_end=end,
                text=text,
                content_hash=content_hash,
                body_hash=body_hash,
                unit_id=unit,
                title=title,
                locator_json=locator,
                content=content,
                vector=vector if usable else None,
            )
            text = small = content = None


# The rows of a v1 vector file for a Parquet file (``docs/formats/parquet.md``, "The legacy table").


_V1_ROWS_QUERY = """SELECT {texts}, vector FROM vectors NOT INDEXED ORDER BY rowid"""


def read_v1_rows(path: Path, base: BaseMetadata, look: BaseSummary) -> Iterator[UnitRow]:
    """Stream the rows of a v1 vector file in their order; a vector of another length than most is None.

    Raises:
        apsw.Error: it is damaged.
    """
    numbers: Counter[str | None] = Counter()
    base_name = replace_surrogates(base.name)
    with sqlite.open_readonly(path) as db:
        text_of = make_text_decoder(db)
        there = {str(row[1]) for row in db.execute("PRAGMA table_info('vectors')")}
        columns = (name if name in there else "NULL" for name in ("id", "uniqueLoaderId", "source", "pageContent"))
        texts = ", ".join(f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) END" for name in columns)
        for *raws, vector in db.execute(_V1_ROWS_QUERY.format(texts=texts)):
            row_id, loader, source, text = map(text_of, raws)
            usable = isinstance(vector, bytes) and len(vector) == look.vector_bytes
            yield UnitRow(
                base=base.id,
                base_name=base_name,
                item=loader,
                path=None,
                source=source,
                unit_index=numbers[loader],
                char_start=None,
                char_end=None,
                text=text,
                content_hash=None,
                body_hash=None if text is None else hashlib.sha256(text.encode()).hexdigest(),
                unit_id=row_id,
                title=None,
                locator_json=None,
                content=None,
                vector=vector if usable else None,
            )
            numbers[loader] += 1


# The chunks of a KB of rsclaw for a Parquet file (``docs/formats/parquet.md``, "Chunks of rsclaw").


_CHUNKS_QUERY = (
    """SELECT id, doc_id, seq, title, path, source, body, vector FROM chunks WHERE reason IS NULL ORDER BY rowid"""
)
_REASONS = "SELECT reason, count(*) FROM chunks WHERE reason IS NOT NULL GROUP BY 1 ORDER BY 1"


def open_chunks(source: Located, visible_to: tuple[str, ...]) -> AbstractContextManager[Chunks]:
    """Lay the chunks of a KB out as a table, as :func:`regraft.formats.rsclaw.chunks.written` does.

    Raises:
        WrongUsage: somebody is named in another form.
        RedbError, NotEnoughSpace, OSError
    """
    return rsclaw_chunks.written(source.path, None, parsed(visible_to, "--visible-to"))


def describe_base(chunks: Chunks) -> BaseMetadata:
    """Return what a file says of the base that a KB becomes."""
    choice = chunks.choice
    model = None if choice.embedder is None else f"{rsclaw_chunks.PROVIDER}::{choice.embedder}"
    return BaseMetadata(
        id=rsclaw_chunks.BASE_ID, name=rsclaw_chunks.NAME, model=model, dimensions=choice.dimensions, index=True
    )


def summarize_chunks(chunks: Chunks) -> BaseSummary:
    """Count the chunks, and those that are not carried by their reason."""
    with sqlite.open_readonly(chunks.path) as db:
        bodies: Any = db.execute("SELECT count(*) FROM chunks").get
        skipped: list[Any] = db.execute(_REASONS).fetchall()
    dimensions = chunks.choice.dimensions
    return BaseSummary(
        vector_bytes=None if dimensions is None else 4 * dimensions, bodies=bodies, skipped=dict(skipped)
    )


def read_chunk_rows(path: Path, base: BaseMetadata, look: BaseSummary) -> Iterator[UnitRow]:
    """Stream the chunks that are carried, in the order in which a migration carries them.

    Raises:
        apsw.Error: the table cannot be read.
    """
    with sqlite.open_readonly(path) as db:
        for row in db.execute(_CHUNKS_QUERY):
            yield _row(row, base, look.vector_bytes)


def _row(row: tuple[apsw.SQLiteValue, ...], base: BaseMetadata, vector_bytes: int | None) -> UnitRow:
    key, doc, seq, title, path, source, body, vector = row
    text = str(body)
    return UnitRow(
        base=base.id,
        base_name=base.name,
        item=str(doc),
        path=None if path is None else str(path),
        source=None if source is None else str(source),
        unit_index=int(str(seq)),
        char_start=None,
        char_end=None,
        text=text,
        content_hash=None,
        body_hash=hashlib.sha256(text.encode()).hexdigest(),
        unit_id=str(key),
        title=None if title is None else str(title),
        locator_json=None,
        content=None,
        vector=vector if isinstance(vector, bytes) and len(vector) == vector_bytes else None,
    )
