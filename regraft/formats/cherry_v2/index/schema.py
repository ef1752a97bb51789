"""The index layout, version 2: tables, rules for their rows, units, and vector lengths (``docs/formats/index.md``).

The SQL statements are grouped in the order in which a new file is filled fastest: tables, rows, indexes, full text,
triggers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import apsw
import msgspec

from regraft import identity
from regraft.disk.file_paths import RESERVED_NAME
from regraft.errors import MaterialRefused, UnitRefused
from regraft.language import tr
from regraft.text import decode_utf16, utf16_len

#: ``meta.schema_version``. The application drops all tables of a file that has another version.
SCHEMA_VERSION = 2

#: The tables in the order of their foreign keys. The seventh, ``search_text_fts``, is :data:`FULL_TEXT`.
TABLES = (
    """CREATE TABLE meta (
         id INTEGER PRIMARY KEY CHECK (id = 1),
         schema_version INTEGER NOT NULL,
         base_id TEXT NOT NULL,
         created_at INTEGER NOT NULL,
         updated_at INTEGER NOT NULL)""",
    """CREATE TABLE content (
         content_hash TEXT PRIMARY KEY,
         text TEXT NOT NULL,
         created_at INTEGER NOT NULL)""",
    """CREATE TABLE material (
         material_id TEXT PRIMARY KEY,
         relative_path TEXT NOT NULL UNIQUE
           CHECK (relative_path <> '' AND relative_path NOT LIKE '/%')
           CHECK (relative_path <> '.cherry' AND relative_path NOT LIKE '.cherry/%'),
         current_content_hash TEXT REFERENCES content (content_hash),
         created_at INTEGER NOT NULL,
         updated_at INTEGER NOT NULL)""",
    """CREATE TABLE search_unit (
         unit_id TEXT PRIMARY KEY,
         material_id TEXT NOT NULL REFERENCES material (material_id) ON DELETE CASCADE,
         content_hash TEXT NOT NULL REFERENCES content (content_hash) ON DELETE CASCADE,
         unit_type TEXT NOT NULL CHECK (unit_type IN ('chunk')),
         unit_index INTEGER NOT NULL CHECK (unit_index >= 0),
         title TEXT,
         char_start INTEGER NOT NULL CHECK (char_start >= 0),
         char_end INTEGER NOT NULL CHECK (char_end >= char_start),
         locator_json TEXT,
         created_at INTEGER NOT NULL)""",
    """CREATE TABLE search_text (
         search_text_id TEXT PRIMARY KEY,
         target_type TEXT NOT NULL CHECK (target_type IN ('search_unit')),
         target_id TEXT NOT NULL,
         kind TEXT NOT NULL CHECK (kind IN ('body')),
         text TEXT NOT NULL,
         embedding_text_hash TEXT NOT NULL,
         fts_rowid INTEGER,
         created_at INTEGER NOT NULL)""",
    """CREATE TABLE embedding (
         embedding_text_hash TEXT PRIMARY KEY,
         vector_blob BLOB NOT NULL,
         created_at INTEGER NOT NULL)""",
)

#: The index through which FTS5 reads rows.
ROWID_INDEX = "CREATE UNIQUE INDEX search_text_fts_rowid_uniq ON search_text (fts_rowid)"

#: All indexes, :data:`ROWID_INDEX` first.
INDEXES = (
    ROWID_INDEX,
    "CREATE INDEX material_content_idx ON material (current_content_hash)",
    "CREATE UNIQUE INDEX search_unit_material_index_idx ON search_unit (material_id, unit_type, unit_index)",
    "CREATE INDEX search_unit_content_idx ON search_unit (content_hash)",
    "CREATE INDEX search_unit_material_idx ON search_unit (material_id)",
    "CREATE UNIQUE INDEX search_text_target_kind_idx ON search_text (target_type, target_id, kind)",
    "CREATE INDEX search_text_embedding_hash_idx ON search_text (embedding_text_hash)",
    "CREATE INDEX search_text_kind_idx ON search_text (kind)",
)

#: Column of the full-text index and its tokenizer.
FULL_TEXT_ARGUMENTS = "text, tokenize = 'trigram'"

FULL_TEXT = """CREATE VIRTUAL TABLE search_text_fts
    USING fts5 (text, content = 'search_text', content_rowid = 'fts_rowid', tokenize = 'trigram')"""

TRIGGERS = (
    """CREATE TRIGGER search_text_ai AFTER INSERT ON search_text
       BEGIN
         UPDATE search_text
            SET fts_rowid = 1 + ifnull((SELECT max(fts_rowid) FROM search_text), 0)
          WHERE search_text_id = new.search_text_id;
         INSERT INTO search_text_fts (rowid, text)
           SELECT fts_rowid, new.text FROM search_text WHERE search_text_id = new.search_text_id;
       END""",
    """CREATE TRIGGER search_text_ad AFTER DELETE ON search_text
       BEGIN
         INSERT INTO search_text_fts (search_text_fts, rowid, text) VALUES ('delete', old.fts_rowid, old.text);
       END""",
    """CREATE TRIGGER search_text_au AFTER UPDATE OF text ON search_text
       BEGIN
         INSERT INTO search_text_fts (search_text_fts, rowid, text) VALUES ('delete', old.fts_rowid, old.text);
         INSERT INTO search_text_fts (rowid, text) VALUES (new.fts_rowid, new.text);
       END""",
)


def add_full_text_triggers(db: apsw.Connection) -> None:
    """Create temporary triggers that update the full-text index as long as the connection is open.

    The file's own triggers never run (:mod:`regraft.disk.untrusted_sqlite`). These are the layout's triggers, in the
    temporary schema.

    Raises:
        apsw.Error: the file has no table of bodies.
    """
    for statement in TRIGGERS:
        temporary = statement.replace("CREATE TRIGGER", "CREATE TEMP TRIGGER", 1)
        db.execute(temporary.replace("ON search_text\n", "ON main.search_text\n", 1))


@contextmanager
def full_text_triggers(db: apsw.Connection) -> Iterator[None]:
    """Context in which the temporary triggers of :func:`add_full_text_triggers` exist."""
    add_full_text_triggers(db)
    try:
        yield
    finally:
        for statement in TRIGGERS:
            db.execute(f"DROP TRIGGER IF EXISTS temp.{statement.split()[2]}")


# Rules for the rows of each table, and defaults for columns that older layouts lack (``docs/formats/index.md``, "Tables
# of version 2").


#: SQL parameter for the time of the file.
TIME_PARAMETER = ":time"


class TableRules(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of a table and the constraints on its rows.

    Attributes:
        columns: names of the columns.
        fill: SQL expression for each column that an older layout lacks.
        nullable: columns that may be NULL.
        unique: groups of columns that are unique together.
        checks: SQL conditions that every row must meet.
        needed_by: tables whose rows are meaningless without this table.
    """

    columns: tuple[str, ...]
    fill: dict[str, str]
    nullable: tuple[str, ...]
    unique: tuple[tuple[str, ...], ...]
    checks: tuple[str, ...] = ()
    needed_by: tuple[str, ...] = ()


#: All tables except ``meta`` and the full-text index, in the order of their foreign keys.
TABLE_RULES = {
    "content": TableRules(
        columns=("content_hash", "text", "created_at"),
        fill={"created_at": TIME_PARAMETER},
        nullable=("content_hash",),
        unique=(("content_hash",),),
        needed_by=("material", "search_unit"),
    ),
    "material": TableRules(
        columns=("material_id", "relative_path", "current_content_hash", "created_at", "updated_at"),
        fill={"current_content_hash": "only_hash", "created_at": TIME_PARAMETER, "updated_at": TIME_PARAMETER},
        nullable=("material_id", "current_content_hash"),
        unique=(("material_id",), ("relative_path",)),
        checks=(
            "relative_path <> '' AND relative_path NOT LIKE '/%'",
            "relative_path <> '.cherry' AND relative_path NOT LIKE '.cherry/%'",
        ),
        needed_by=("search_unit",),
    ),
    "search_unit": TableRules(
        columns=(
            *("unit_id", "material_id", "content_hash", "unit_type", "unit_index", "title", "char_start", "char_end"),
            *("locator_json", "created_at"),
        ),
        fill={"unit_type": "'chunk'", "title": "NULL", "locator_json": "NULL", "created_at": TIME_PARAMETER},
        nullable=("unit_id", "title", "locator_json"),
        unique=(("unit_id",), ("material_id", "unit_type", "unit_index")),
        checks=("unit_type IN ('chunk')", "unit_index >= 0", "char_start >= 0", "char_end >= char_start"),
        needed_by=("search_text",),
    ),
    "search_text": TableRules(
        columns=("search_text_id", "target_type", "target_id", "kind", "text", "embedding_text_hash", "created_at"),
        fill={"target_type": "'search_unit'", "kind": "'body'", "created_at": TIME_PARAMETER},
        nullable=("search_text_id",),
        unique=(("search_text_id",), ("target_type", "target_id", "kind")),
        checks=("target_type IN ('search_unit')", "kind IN ('body')"),
        needed_by=("search_unit", "embedding"),
    ),
    "embedding": TableRules(
        columns=("embedding_text_hash", "vector_blob", "created_at"),
        fill={"created_at": TIME_PARAMETER},
        nullable=("embedding_text_hash",),
        unique=(("embedding_text_hash",),),
        needed_by=("search_text",),
    ),
}


# Units of a content, and the ids, paths and texts that may be stored.


_DRIVE = re.compile("[A-Za-z]:/")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Unit(NamedTuple):
    """A stored unit with its body. Offsets count UTF-16 units of the content; ``text`` is that slice of it."""

    unit_id: str
    unit_index: int
    content_hash: str
    char_start: int
    char_end: int
    text: str
    embedding_text_hash: str


def make_unit(
    material_id: str, content_hash: str, unit_index: int, span: tuple[int, int], text: str, text_hash: str
) -> Unit:
    """Make the unit of a material with its id.

    Args:
        material_id: id of the material.
        content_hash: hash of the material's content.
        unit_index: number of the unit in the material, from 0.
        span: start and end in UTF-16 units of the content.
        text: the body.
        text_hash: hash of the body.
    """
    start, end = span
    return Unit(
        unit_id=identity.unit_id(material_id, content_hash, unit_index, start, end),
        unit_index=unit_index,
        content_hash=content_hash,
        char_start=start,
        char_end=end,
        text=text,
        embedding_text_hash=text_hash,
    )


def cut_units(material_id: str, content: str, units: Iterable[tuple[int, int]]) -> list[Unit]:
    """Cut the content of a material into units, and return them with their ids, numbered from 0.

    Args:
        material_id: id of the material.
        content: the whole text.
        units: start and end of each unit in UTF-16 units of the content.

    Raises:
        UnitRefused: a unit is not a slice of the content: it is beyond the end, ends before it starts, or splits a
            surrogate pair. Offsets are never clamped (``docs/formats/index.md``, "Offsets").
    """
    content_hash = identity.text_hash(content)
    length = utf16_len(content)
    # Encoded once instead of once per unit.
    wide = None if content.isascii() else content.encode("utf-16-le")
    found = []
    for index, (start, end) in enumerate(units):
        if not 0 <= start <= end <= length:
            reason = tr("ends before it starts") if end < start else tr("is beyond the end of the text")
            raise UnitRefused(material=material_id, unit=index, start=start, end=end, reason=reason, length=length)
        body = content[start:end] if wide is None else decode_utf16(wide[2 * start : 2 * end])
        if body is None:
            reason = tr("starts or ends inside a surrogate pair")
            raise UnitRefused(material=material_id, unit=index, start=start, end=end, reason=reason, length=length)
        found.append(make_unit(material_id, content_hash, index, (start, end), body, identity.text_hash(body)))
    return found


def check_storable(material_id: str, relative_path: str, content: str) -> None:
    """Refuse a material whose id, path below ``raw/`` or text the layout does not allow.

    Raises:
        MaterialRefused: the id is empty, the path is not valid (``docs/formats/index.md``, "What always holds"), or one
            of the three contains an unpaired surrogate, which UTF-8 cannot encode.
    """
    reason = None
    if not material_id:
        reason = tr("it has no id")
    elif any(_SURROGATE.search(text) for text in (material_id, relative_path, content)):
        reason = tr("its id, path or text has an unpaired surrogate, which cannot be stored")
    elif not is_safe_path(relative_path):
        reason = tr('"{relative_path}" is not a path below raw/', relative_path=relative_path)
    if reason is not None:
        raise MaterialRefused(material=material_id, reason=reason)


def is_safe_path(path: str) -> bool:
    """Whether ``path`` may be a ``relative_path``: normalized, relative, with ``/`` as separator and without ``..``.

    ``.cherry`` is reserved in any mix of upper and lower case, since file systems may ignore case.
    """
    parts = path.split("/")
    if "\\" in path or "\0" in path or _DRIVE.match(path):
        return False
    return {"", ".", ".."}.isdisjoint(parts) and parts[0].lower() != RESERVED_NAME


# Required vector length of a base: from the catalog's dimensions, else that of most vectors. All commands use this
# rule.


#: SQL condition for a row of ``embedding``: the vector has ``:length`` bytes.
HAS_LENGTH_SQL = "(typeof(vector_blob) = 'blob' AND octet_length(vector_blob) = :length)"
#: SQL expression, 0 or 1, for a row ``e`` of ``embedding``: a search can use the vector. As in ``check``, it must have
#: ``:length`` bytes and a norm that is neither zero nor infinite in single precision. The norm of a vector with a NaN
#: is NULL. The connection needs :func:`regraft.disk.sqlite.load_vector_extension`.
IS_USABLE_SQL = """CASE WHEN typeof(e.vector_blob) = 'blob' AND length(e.vector_blob) = :length
  THEN ifnull(vec_distance_l2(e.vector_blob, zeroblob(:length)) BETWEEN 1e-46 AND 3.5e38, 0) ELSE 0 END"""
_BODIES_OF_OTHER_LENGTH = f"""SELECT count(*) FROM search_text t
  JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash WHERE NOT {HAS_LENGTH_SQL}"""
_HAS_ONE_OF_LENGTH = f"SELECT EXISTS (SELECT 1 FROM embedding WHERE {HAS_LENGTH_SQL})"
_LENGTHS = """SELECT octet_length(vector_blob), count(*) FROM embedding
  WHERE typeof(vector_blob) = 'blob' AND octet_length(vector_blob) > 0 AND octet_length(vector_blob) % 4 = 0
  GROUP BY 1 ORDER BY min(rowid)"""


def count_vector_lengths(db: apsw.Connection) -> Counter[int]:
    """Count the vectors of an index by length in bytes, in the order of their first rows.

    Values that cannot be vectors are ignored.

    Raises:
        apsw.Error: the file is damaged.
    """
    return Counter({int(str(length)): int(str(count)) for length, count in db.execute(_LENGTHS)})


def catalog_dimensions(row: Mapping[str, object] | None) -> int | None:
    """Return the dimensions in the catalog row of a completed base that has a model, else None.

    For a failed base or one without a model, the column may still contain the dimensions of an earlier state.
    """
    if row is None or row.get("status") != "completed" or row.get("embedding_model_id") is None:
        return None
    return stated_dimensions(row)


def stated_dimensions(row: Mapping[str, object]) -> int | None:
    """Return the dimensions in a base's catalog row, whatever its state; None if they are not a positive number."""
    dimensions = row.get("dimensions")
    return dimensions if isinstance(dimensions, int) and dimensions > 0 else None


def choose_vector_length(lengths: Counter[int], dimensions: int | None) -> int:
    """Return the length in bytes that the vectors of a base must have.

    Args:
        lengths: number of vectors by length.
        dimensions: dimensions in the catalog; without them the most common length is required.
    """
    if dimensions is not None:
        return 4 * dimensions
    return lengths.most_common(1)[0][0] if lengths else 4


def lengths_contradict(lengths: Counter[int], dimensions: int | None) -> bool:
    """Whether most vectors have another length than the catalog's dimensions require.

    ``lengths`` are the numbers of vectors by length in bytes.
    """
    return dimensions is not None and 2 * lengths[4 * dimensions] < lengths.total()


def dimensions_of(db: apsw.Connection, stated: int | None = None) -> int | None:
    """Return the dimensions that the vectors of an index must have; None if it has no vectors.

    Args:
        db: the index.
        stated: dimensions in the catalog. They are ignored if no vector has them; then the most common length is used.

    Raises:
        apsw.Error: the file is damaged.
    """
    if stated is not None and db.execute(_HAS_ONE_OF_LENGTH, {"length": 4 * stated}).get:
        return stated
    lengths = count_vector_lengths(db)
    return choose_vector_length(lengths, None) // 4 if lengths else None


def count_bodies_of_other_length(db: apsw.Connection, length: int) -> int:
    """Count the bodies whose vector does not have ``length`` bytes: vector search never finds them.

    Raises:
        apsw.Error: the file is damaged.
    """
    return int(str(db.execute(_BODIES_OF_OTHER_LENGTH, {"length": length}).get))
