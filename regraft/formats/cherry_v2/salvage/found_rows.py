"""Load all rows and keys of a damaged index file into a temporary database, where they are compared.

Every row is stored with what it proves on its own: whether its hash or id matches its content
(``docs/formats/index.md``, "Salvage"). Texts are stored as bytes because they may be invalid UTF-8.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import apsw

from regraft import identity
from regraft.formats.sqlite_pages import (
    Coverage,
    FoundRow,
    Origin,
    OverflowFlaw,
    Reading,
    RowShape,
    StorageClass,
    TextBytes,
    Value,
)
from regraft.formats.vector_checks import measure_vector
from regraft.text import decode_utf8

#: SQLite's limit for a row in bytes: a content is the whole text of a file.
_MAX_ROW_BYTES = 1_000_000_000
_HASH = re.compile(rb"[0-9a-f]{64}")
_OPTIONAL_TEXT, _OPTIONAL_INTEGER = StorageClass.TEXT | StorageClass.NULL, StorageClass.INTEGER | StorageClass.NULL

#: Indexes, named by what their keys identify.
CONTENT_KEY, UNIT_KEY = "sqlite_autoindex_content_1", "sqlite_autoindex_search_unit_1"
BODY_KEY, VECTOR_KEY = "sqlite_autoindex_search_text_1", "sqlite_autoindex_embedding_1"
MATERIAL_KEY, MATERIAL_PATH = "sqlite_autoindex_material_1", "sqlite_autoindex_material_2"
MATERIAL_CONTENT, UNIT_PLACE = "material_content_idx", "search_unit_material_index_idx"
BODY_TARGET, BODY_NUMBER = "search_text_target_kind_idx", "search_text_fts_rowid_uniq"


def is_hash(value: object) -> bool:
    """Whether a value has the form of a SHA-256 in hex."""
    return isinstance(value, bytes) and _HASH.fullmatch(value) is not None


def _begins_with_hash(values: Sequence[Value]) -> bool:
    """Whether the first column of a row has the form of a hash."""
    return is_hash(values[0])


def _index_shape(name: str, *columns: StorageClass) -> RowShape:
    """Describe the rows of an index of the file, so that they are found.

    Keys of several indexes look alike, so they are used only if a tree shows which index they belong to.
    """
    return RowShape(name=name, columns=columns, accepts=lambda _: False, is_index=True)


#: ``root`` is the root page in files that regraft writes, for files whose schema is lost.
TABLES = (
    RowShape(
        name="meta",
        root=2,
        columns=(
            StorageClass.INTEGER,
            StorageClass.INTEGER,
            StorageClass.TEXT,
            StorageClass.INTEGER,
            StorageClass.INTEGER,
        ),
        accepts=lambda values: values[0] == 1,
        alias=0,
    ),
    RowShape(
        name="content",
        root=3,
        columns=(StorageClass.TEXT, StorageClass.TEXT, StorageClass.INTEGER),
        accepts=_begins_with_hash,
        most_bytes=_MAX_ROW_BYTES,
    ),
    RowShape(
        name="material",
        root=5,
        columns=(StorageClass.TEXT, StorageClass.TEXT, _OPTIONAL_TEXT, StorageClass.INTEGER, StorageClass.INTEGER),
        accepts=lambda values: values[2] is None or is_hash(values[2]),
    ),
    RowShape(
        name="search_unit",
        root=8,
        columns=(
            *(
                StorageClass.TEXT,
                StorageClass.TEXT,
                StorageClass.TEXT,
                StorageClass.TEXT,
                StorageClass.INTEGER,
                _OPTIONAL_TEXT,
                StorageClass.INTEGER,
            ),
            *(StorageClass.INTEGER, _OPTIONAL_TEXT, StorageClass.INTEGER),
        ),
        accepts=_begins_with_hash,
    ),
    # The last two columns are the full-text number and the time. Files upgraded from version 1 have the number after
    # the time, or not at all.
    RowShape(
        name="search_text",
        root=10,
        columns=(*[StorageClass.TEXT] * 6, _OPTIONAL_INTEGER, _OPTIONAL_INTEGER),
        accepts=_begins_with_hash,
        optional_columns=1,
        most_bytes=_MAX_ROW_BYTES,
    ),
    RowShape(
        name="embedding",
        root=12,
        columns=(StorageClass.TEXT, StorageClass.BLOB, StorageClass.INTEGER),
        accepts=_begins_with_hash,
    ),
)
INDEXES = (
    *(
        _index_shape(name, StorageClass.TEXT)
        for name in (CONTENT_KEY, UNIT_KEY, BODY_KEY, VECTOR_KEY, MATERIAL_KEY, MATERIAL_PATH)
    ),
    _index_shape(MATERIAL_CONTENT, _OPTIONAL_TEXT),
    _index_shape(UNIT_PLACE, StorageClass.TEXT, StorageClass.TEXT, StorageClass.INTEGER),
    _index_shape(BODY_TARGET, StorageClass.TEXT, StorageClass.TEXT, StorageClass.TEXT),
    _index_shape(BODY_NUMBER, _OPTIONAL_INTEGER),
)
#: The index that lists the key of every row of a table.
KEY_OF = {
    "content": CONTENT_KEY,
    "material": MATERIAL_KEY,
    "search_unit": UNIT_KEY,
    "search_text": BODY_KEY,
    "embedding": VECTOR_KEY,
}


#: Rank of each origin, 0 for the most reliable. Rows of the last two may have been deleted.
STRENGTH = {Origin.TREE: 0, Origin.SHAPE: 1, Origin.FREE: 2, Origin.TORN: 2}
WEAK = 2
#: Fates of a row: it is kept, was derived from others, is a copy of a kept row, or had been deleted.
KEPT, MADE, COPY, DELETED = "kept", "made", "copy", "deleted"
#: SQL condition: a row will be in the new index.
IS_KEPT = f"fate IN ('{KEPT}', '{MADE}')"
#: Reasons for not keeping a row.
DAMAGED, CONTRADICTED, UNNAMED, UNLIKE, LOST = "damaged", "contradicted", "unnamed", "unlike", "lost"
REASONS = (DAMAGED, CONTRADICTED, UNNAMED, UNLIKE, LOST)
#: Times are in ms: no index is older than 2001, and no body number is this high.
_FIRST_TIME = 10**12

#: ``fate`` is one of the above; NULL while a row is consistent and undecided.
_SCHEMA = """
CREATE TABLE meta (seq INTEGER PRIMARY KEY, strength, version, base, created, updated);
CREATE TABLE content (seq INTEGER PRIMARY KEY, strength, rid, fate, key, text, created);
CREATE TABLE material (seq INTEGER PRIMARY KEY, strength, rid, fate, key, path, content, created, updated);
CREATE TABLE search_unit (seq INTEGER PRIMARY KEY, strength, rid, fate, key, material, content, unit_index, title,
  start, stop, locator, created);
CREATE TABLE search_text (seq INTEGER PRIMARY KEY, strength, rid, fate, key, target, text, hash, number, created);
CREATE TABLE embedding (seq INTEGER PRIMARY KEY, strength, rid, fate, key, vector, created, norm, repeats);
CREATE TABLE index_key (name, rid, key, unit_index);
"""
_INDEXES = """
CREATE INDEX content_key ON content (key, strength);
CREATE INDEX material_key ON material (key, strength);
CREATE INDEX material_content ON material (content);
CREATE INDEX unit_key ON search_unit (key, strength);
CREATE INDEX unit_material ON search_unit (material, unit_index);
CREATE INDEX unit_content ON search_unit (content, material, unit_index, strength);
CREATE INDEX body_target ON search_text (target, strength);
CREATE INDEX body_hash ON search_text (hash);
CREATE INDEX vector_key ON embedding (key, strength);
CREATE INDEX index_key_key ON index_key (name, key);
CREATE INDEX index_key_row ON index_key (name, rid);
"""

Row = tuple[Any, ...]


def fetch_rows(db: apsw.Connection, query: str, values: Sequence[Any] = ()) -> list[Row]:
    """Return all rows of a query."""
    found: list[Any] = db.execute(query, values).fetchall()
    return found


def fetch_value(db: apsw.Connection, query: str, values: Sequence[Any] = ()) -> Any:
    """Return the first column of the first row of a query, or None."""
    return db.execute(query, values).get


def set_fate(db: apsw.Connection, table: str, seq: int, fate: str) -> None:
    """Record the fate of a found row, such as :data:`KEPT`; ``seq`` is its number in the temporary table."""
    db.execute(f"UPDATE {table} SET fate = ? WHERE seq = ?", (fate, seq))


class HasStrength(Protocol):
    """A found row of an object. Other rows of the same object may have other values."""

    @property
    def strength(self) -> int:
        """Rank of the row's reliability, 0 for the most reliable."""


R = TypeVar("R", bound=HasStrength)


def choose_reading(
    live: Sequence[R], *, agree: Callable[[Sequence[R]], bool], is_indexed: Callable[[R], bool]
) -> R | None:
    """Return the most reliable of the found rows of one object; None if they contradict each other.

    Args:
        live: the rows that may be right, sorted by reliability.
        agree: whether all given rows have the same values.
        is_indexed: whether an index refers to a row, which decides between rows of equal reliability.
    """
    best = [one for one in live if one.strength == live[0].strength]
    if not agree(best):
        best = list(filter(is_indexed, best))
    return best[0] if best and agree(best) else None


def load_rows(db: apsw.Connection, reading: Reading) -> None:
    """Load every row and index key that a reading of the damaged file finds into new tables of ``db``.

    Raises:
        OSError: the damaged file cannot be read.
        apsw.Error: the disk is full.
    """
    db.execute(_SCHEMA)
    tables = {
        name: (_make_insert(db, name), entry, _DeletedRows(reading.coverage[name])) for name, entry in _ENTRIES.items()
    }
    keys = _make_insert(db, "index_key")
    for row in reading.rows(flawed=True):
        if row.table in tables:
            insert, entry, deleted = tables[row.table]
            values = entry(row)
            if row.table != "meta":
                fate, *rest = values
                values = (row.rowid, deleted.fate(row) or fate, *rest)
            insert((None, STRENGTH[row.origin], *values))
        elif row.origin is Origin.TREE and row.flaw is None:
            unit_index = row.values[2] if row.table == UNIT_PLACE else None
            key = row.values[1] if row.table == BODY_TARGET else row.values[0]
            keys((row.table, row.rowid, _to_bytes(key), unit_index))
    db.execute(_INDEXES)


def _make_insert(db: apsw.Connection, table: str) -> Callable[[Row], object]:
    """Make a function that inserts a row into a table."""
    columns = len(db.execute(f"PRAGMA table_info({table})").fetchall())
    statement = f"INSERT INTO {table} VALUES ({', '.join('?' * columns)})"
    return lambda values: db.execute(statement, values)


class _DeletedRows:
    """Recognizes deleted rows of a table: the intact part of its tree would contain them if they still existed.

    ``coverage`` tells which row ids the intact part of the tree covers.
    """

    def __init__(self, coverage: Coverage) -> None:
        self._coverage = coverage

    def fate(self, row: FoundRow) -> str | None:
        """Return DELETED for a row that was found outside of the tree and must have been deleted; else None."""
        if row.origin is Origin.TREE:
            return None
        # A damaged file has few intervals.
        covered = any(low < row.rowid <= high for low, high in self._coverage.intervals)
        return DELETED if covered or self._coverage.is_whole else None


def _to_bytes(value: object) -> Any:
    """Return a text of a found row as plain bytes, for comparing; any other value unchanged."""
    return bytes(value) if isinstance(value, bytes) else value


def hash_text_bytes(raw: bytes) -> str:
    """Compute the hash of a text given as bytes. Encoded halves of surrogate pairs count as U+FFFD."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return identity.text_hash(decode_utf8(raw))
    return hashlib.sha256(raw).hexdigest()


def matches_hash(text: object, text_hash: object) -> bool:
    """Whether a text (as bytes) has this hash (as bytes); False for values of other types."""
    return isinstance(text, bytes) and isinstance(text_hash, bytes) and hash_text_bytes(text).encode() == text_hash


# --- what the rows of each table prove on their own ------------------------------------------------------------------


def _convert_content(row: FoundRow) -> Row:
    """Convert a found row of a content; its fate is DAMAGED unless its hash proves it."""
    key, text, created = row.values
    is_proven = matches_hash(text, key)
    return (
        None if is_proven else DAMAGED,
        _to_bytes(key),
        _to_bytes(text) if is_proven else None,
        _convert_time(created, row),
    )


def _convert_material(row: FoundRow) -> Row:
    """Convert a found row of a material; nothing but its form can be checked."""
    key, path, content, created, updated = row.values
    is_form = isinstance(key, TextBytes) and bool(key) and _is_utf8(key) and isinstance(path, TextBytes)
    fate = None if is_form and row.flaw is None else DAMAGED
    return (
        fate,
        _to_bytes(key),
        _to_bytes(path),
        _to_bytes(content),
        _convert_time(created, row),
        _convert_time(updated, row),
    )


def _convert_unit(row: FoundRow) -> Row:
    """Convert a found row of a unit; its fate is DAMAGED unless its id proves it."""
    key, material, content, kind, unit_index, title, start, stop, locator, created = row.values
    texts = [one for one in (title, locator) if isinstance(one, bytes)]
    is_proven = (
        kind == b"chunk"
        and isinstance(key, bytes)
        and unit_id(material, content, unit_index, start, stop) == key
        # Nothing proves a title except that the row is complete.
        and row.flaw in (None, OverflowFlaw.FREED)
        and all(map(_is_utf8, texts))
    )
    return (
        *(
            None if is_proven else DAMAGED,
            _to_bytes(key),
            _to_bytes(material),
            _to_bytes(content),
            unit_index,
            _to_bytes(title),
            start,
        ),
        *(stop, _to_bytes(locator), _convert_time(created, row)),
    )


def unit_id(material: object, content: object, unit_index: object, start: object, stop: object) -> bytes | None:
    """Compute the id (as bytes) of a unit from columns of a found row; None if these are not valid.

    ``start`` and ``stop`` are UTF-16 units of the content.
    """
    numbers = (unit_index, start, stop)
    if not isinstance(material, bytes) or not isinstance(content, bytes):
        return None
    if not all(isinstance(one, int) and one >= 0 for one in numbers):
        return None
    whole = (decode_utf8(material), decode_utf8(content), int(str(unit_index)), int(str(start)), int(str(stop)))
    return identity.unit_id(*whole).encode()


def _convert_body(row: FoundRow) -> Row:
    """Convert a found row of a body; its fate is DAMAGED unless its id and its hash prove it."""
    key, kind, target, role, text, own_hash, number, created = row.values
    if isinstance(number, int) and number >= _FIRST_TIME and (created is None or int(str(created)) < _FIRST_TIME):
        # A file upgraded from version 1 has the number after the time, or none.
        number, created = created, number
    is_own = (
        kind == b"search_unit"
        and role == b"body"
        and isinstance(target, bytes)
        and identity.body_id(decode_utf8(target)).encode() == key
    )
    is_proven = is_own and matches_hash(text, own_hash)
    fate = None if is_proven else DAMAGED
    # The columns of a damaged row are used when its text is cut again.
    columns = (_to_bytes(key), _to_bytes(target) if is_own else None, _to_bytes(text), _to_bytes(own_hash))
    return fate, *columns, number if row.flaw is None else None, _convert_time(created, row)


def _convert_vector(row: FoundRow) -> Row:
    """Convert a found row of a vector, and measure the vector; its fate is DAMAGED if it cannot be one."""
    key, vector, created = row.values
    measures = measure_vector(vector) if isinstance(vector, bytes) and row.flaw is None else None
    fate = None if measures is not None and is_hash(key) else DAMAGED
    norm, repeats = (None, None) if measures is None else (measures.norm, measures.repeats)
    return fate, _to_bytes(key), _to_bytes(vector), _convert_time(created, row), norm, repeats


def _convert_time(value: object, row: FoundRow) -> int | None:
    """Return a time of a found row in ms; None if it is not a time or may belong to another row."""
    return value if isinstance(value, int) and 0 <= value < 1 << 48 and row.flaw is None else None


def _is_utf8(raw: bytes) -> bool:
    """Whether bytes are UTF-8; halves of surrogate pairs are accepted."""
    try:
        raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


#: Converts a found row of each table: fate, then the columns after it. Rows of ``meta`` have no fate.
_ENTRIES: dict[str, Callable[[FoundRow], Row]] = {
    "meta": lambda row: tuple(map(_to_bytes, row.values[1:])),
    "content": _convert_content,
    "material": _convert_material,
    "search_unit": _convert_unit,
    "search_text": _convert_body,
    "embedding": _convert_vector,
}
