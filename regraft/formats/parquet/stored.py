"""The rows of a v2 index for a Parquet file (``docs/formats/parquet.md``)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from regraft import sqlite
from regraft.formats import json_text, table_pages
from regraft.formats.cherry_v2.index.bulk import BODY_SEPARATOR
from regraft.formats.cherry_v2.index.full_text import ROWS_CACHE_KIB
from regraft.formats.cherry_v2.index.vector_lengths import count_bodies_of_other_length, expected_length, lengths_of
from regraft.formats.large_text import LARGE_BYTES, LargeText
from regraft.formats.parquet.columns import UnitRow
from regraft.formats.parquet.metadata import AboutBase, BareMaterial
from regraft.formats.vector_survey import StoreProblem
from regraft.language import tr
from regraft.text import decode_utf8, whole
from regraft.untouched import column_for_numbers

_TABLES = ("content", "material", "search_unit", "search_text", "embedding")
_TEXT = "CASE typeof({0}) WHEN 'text' THEN CAST({0} AS BLOB) END"
_IS_LARGE = f"(typeof(t.text) = 'text' AND octet_length(t.text) > {LARGE_BYTES})"
_SMALL = f"CASE WHEN NOT {_IS_LARGE} THEN {_TEXT.format('t.text')} END"
_INTEGER = "CASE typeof({0}) WHEN 'integer' THEN {0} END"


@dataclass
class BaseLook:
    """What a first pass over a base's file tells: what is in no row, and what is needed while rows are streamed."""

    #: Of most vectors; None where it has none.
    vector_bytes: int | None = None
    bodies: int = 0
    #: What no row can hold, by the name that ``check`` has for it.
    left_out: dict[str, int] = field(default_factory=dict)
    #: Bodies that are no row, by reason.
    skipped: dict[str, int] = field(default_factory=dict)
    bare: list[BareMaterial] = field(default_factory=list)
    #: Materials whose content is not their bodies joined by a blank line.
    own_content: set[str] = field(default_factory=set)
    #: What stopped the pass, None where it went to its end.
    damage: str | None = None


def own_id(path: Path) -> str | None:
    """Return the id of the base that an index says it is of, None where it says none.

    Raises:
        apsw.Error, OSError: it is no index, or damaged.
    """
    with sqlite.reading(path) as db:
        rows: list[Any] = db.execute("SELECT base_id FROM meta").fetchall()
    return rows[0][0] if rows and isinstance(rows[0][0], str) else None


def look(path: Path, dimensions: int | None = None) -> BaseLook:
    """Read a base's index once, all but its vectors.

    Args:
        path: the index file.
        dimensions: those of the catalog; without them the vectors have the length that most of them have.

    Raises:
        StoreProblem: its rows cannot be told by their numbers.
        apsw.Error, OSError: it is no index, or so damaged that no row can be counted.
    """
    found = BaseLook()
    with sqlite.reading(path) as db:
        odd = column_for_numbers(db, _TABLES)
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
            lengths = lengths_of(db)
            if lengths:
                # Vectors that all have one length are exported with it, whatever the catalog says.
                found.vector_bytes = expected_length(lengths, None if len(lengths) == 1 else dimensions)
                if others := count_bodies_of_other_length(db, found.vector_bytes):
                    found.left_out["embedding.length"] = others
            for name, what in counts.items():
                if count := db.execute(f"SELECT count(*) FROM {what}").get:
                    found.left_out[name] = count
            _look_at_contents(db, found)
            # Rows are found through indexes: one that lacks an entry would lose a text's unit or vector in silence.
            # Contents follow from the texts.
            found.damage = table_pages.disagreement(db, (name for name in _TABLES if name != "content"))
        except apsw.Error as error:
            # The rows may be whole all the same, or some of them.
            found.damage = str(error)
    return found


def _look_at_contents(db: apsw.Connection, found: BaseLook) -> None:
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
            found.bare.append(BareMaterial(material, decode_utf8(raw_path or b""), content))
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


def sources_of(items: list[dict[str, Any]] | None) -> dict[str, str]:
    """Return what items of the catalog say of where they are from, by their ids."""
    found = {}
    for item in items or ():
        try:
            source = json_text.loads(item["data"])["source"]
        except (ValueError, TypeError, KeyError):
            continue
        if isinstance(source, str) and isinstance(item.get("id"), str):
            found[item["id"]] = whole(source)
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


def rows(path: Path, base: AboutBase, found: BaseLook) -> Iterator[UnitRow]:
    """Stream the units of an index in the order of ``fts_rowid`` (in the layout's version 1: of their rows).

    A vector of another length than most, or that is no blob, is None.

    Raises:
        apsw.Error: damage, found while reading.
    """
    own = set(found.own_content)
    sources = sources_of(base.items)
    base_name = whole(base.name)
    with sqlite.reading(path) as db:
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
