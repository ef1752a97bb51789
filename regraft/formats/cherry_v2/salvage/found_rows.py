"""All that is left of a damaged index file, in a temporary database where it is held against each other.

Every row is entered with what it says for itself: whether its hash, or its id, is that of what it holds
(``docs/formats/index.md``, "Salvage"). Texts are kept as bytes: they may be no valid UTF-8.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import apsw

from regraft import identity
from regraft.formats.sqlite_pages import Class, Coverage, Flaw, FoundRow, Origin, Reading, Shape, Text, Value
from regraft.formats.vector_checks import measure_vector
from regraft.text import decode_utf8

# What the rows of a v2 index look like, and the keys of its indexes, wherever in a file they are found.


#: SQLite's limit of a row, in bytes: a content is all of a file's text.
_MOST_BYTES = 1_000_000_000
_HASH = re.compile(rb"[0-9a-f]{64}")
_OPTIONAL_TEXT, _OPTIONAL_INTEGER = Class.TEXT | Class.NULL, Class.INTEGER | Class.NULL

#: Indexes by what their keys tell of a row; the keys that SQLite makes for a table's are those of its first index.
CONTENT_KEY, UNIT_KEY = "sqlite_autoindex_content_1", "sqlite_autoindex_search_unit_1"
BODY_KEY, VECTOR_KEY = "sqlite_autoindex_search_text_1", "sqlite_autoindex_embedding_1"
MATERIAL_KEY, MATERIAL_PATH = "sqlite_autoindex_material_1", "sqlite_autoindex_material_2"
MATERIAL_CONTENT, UNIT_PLACE = "material_content_idx", "search_unit_material_index_idx"
BODY_TARGET, BODY_NUMBER = "search_text_target_kind_idx", "search_text_fts_rowid_uniq"


def is_hash(value: object) -> bool:
    """Tell whether a value has the form of a hash."""
    return isinstance(value, bytes) and _HASH.fullmatch(value) is not None


def _begins_with_hash(values: Sequence[Value]) -> bool:
    return is_hash(values[0])


def _never(_: Sequence[Value]) -> bool:
    """Keys of several indexes look alike: they count only where a tree tells whose they are."""
    return False


def _index(name: str, *columns: Class) -> Shape:
    return Shape(name=name, columns=columns, accepts=_never, is_index=True)


#: The roots are those of files that regraft makes, where no schema tells them.
TABLES = (
    Shape(
        name="meta",
        root=2,
        columns=(Class.INTEGER, Class.INTEGER, Class.TEXT, Class.INTEGER, Class.INTEGER),
        accepts=lambda values: values[0] == 1,
        alias=0,
    ),
    Shape(
        name="content",
        root=3,
        columns=(Class.TEXT, Class.TEXT, Class.INTEGER),
        accepts=_begins_with_hash,
        most_bytes=_MOST_BYTES,
    ),
    Shape(
        name="material",
        root=5,
        columns=(Class.TEXT, Class.TEXT, _OPTIONAL_TEXT, Class.INTEGER, Class.INTEGER),
        accepts=lambda values: values[2] is None or is_hash(values[2]),
    ),
    Shape(
        name="search_unit",
        root=8,
        columns=(
            *(Class.TEXT, Class.TEXT, Class.TEXT, Class.TEXT, Class.INTEGER, _OPTIONAL_TEXT, Class.INTEGER),
            *(Class.INTEGER, _OPTIONAL_TEXT, Class.INTEGER),
        ),
        accepts=_begins_with_hash,
    ),
    # The last two: the number in the full-text index and the time; in a file that was of version 1 the number comes
    # behind the time, or is not there.
    Shape(
        name="search_text",
        root=10,
        columns=(*[Class.TEXT] * 6, _OPTIONAL_INTEGER, _OPTIONAL_INTEGER),
        accepts=_begins_with_hash,
        may_lack=1,
        most_bytes=_MOST_BYTES,
    ),
    Shape(name="embedding", root=12, columns=(Class.TEXT, Class.BLOB, Class.INTEGER), accepts=_begins_with_hash),
)
INDEXES = (
    *(_index(name, Class.TEXT) for name in (CONTENT_KEY, UNIT_KEY, BODY_KEY, VECTOR_KEY, MATERIAL_KEY, MATERIAL_PATH)),
    _index(MATERIAL_CONTENT, _OPTIONAL_TEXT),
    _index(UNIT_PLACE, Class.TEXT, Class.TEXT, Class.INTEGER),
    _index(BODY_TARGET, Class.TEXT, Class.TEXT, Class.TEXT),
    _index(BODY_NUMBER, _OPTIONAL_INTEGER),
)
#: The index whose keys are those of a table's rows, each once.
KEY_OF = {
    "content": CONTENT_KEY,
    "material": MATERIAL_KEY,
    "search_unit": UNIT_KEY,
    "search_text": BODY_KEY,
    "embedding": VECTOR_KEY,
}


#: How strong an origin is, the strongest first; on the last two there may be rows that were deleted.
STRENGTH = {Origin.TREE: 0, Origin.SHAPE: 1, Origin.FREE: 2, Origin.TORN: 2}
WEAK = 2
#: What becomes of a row: it comes along, it is derived from others, a copy of it comes along, or it was deleted.
KEPT, MADE, COPY, DELETED = "kept", "made", "copy", "deleted"
#: Why a row stays behind.
DAMAGED, CONTRADICTED, UNNAMED, UNLIKE, LOST = "damaged", "contradicted", "unnamed", "unlike", "lost"
REASONS = (DAMAGED, CONTRADICTED, UNNAMED, UNLIKE, LOST)
#: Times are in ms: none of an index is before 2001, and no number of a body is that high.
_FIRST_TIME = 10**12

#: ``fate`` is one of the above, NULL while a row proves itself and nothing is decided.
_SCHEMA = """
CREATE TABLE meta (seq INTEGER PRIMARY KEY, strength, version, base, created, updated);
CREATE TABLE content (seq INTEGER PRIMARY KEY, strength, rid, fate, key, text, created);
CREATE TABLE material (seq INTEGER PRIMARY KEY, strength, rid, fate, key, path, content, created, updated);
CREATE TABLE search_unit (seq INTEGER PRIMARY KEY, strength, rid, fate, key, material, content, place, title, start,
  stop, locator, created);
CREATE TABLE search_text (seq INTEGER PRIMARY KEY, strength, rid, fate, key, target, text, hash, number, created);
CREATE TABLE embedding (seq INTEGER PRIMARY KEY, strength, rid, fate, key, vector, created, norm, repeats);
CREATE TABLE index_key (name, rid, key, place);
"""
_INDEXES = """
CREATE INDEX content_key ON content (key, strength);
CREATE INDEX material_key ON material (key, strength);
CREATE INDEX material_content ON material (content);
CREATE INDEX unit_key ON search_unit (key, strength);
CREATE INDEX unit_material ON search_unit (material, place);
CREATE INDEX unit_content ON search_unit (content, material, place, strength);
CREATE INDEX body_target ON search_text (target, strength);
CREATE INDEX body_hash ON search_text (hash);
CREATE INDEX vector_key ON embedding (key, strength);
CREATE INDEX index_key_key ON index_key (name, key);
CREATE INDEX index_key_row ON index_key (name, rid);
"""

Row = tuple[Any, ...]


def fetch_rows(db: apsw.Connection, query: str, values: Sequence[Any] = ()) -> list[Row]:
    """Return the rows of a query."""
    found: list[Any] = db.execute(query, values).fetchall()
    return found


def fetch_value(db: apsw.Connection, query: str, values: Sequence[Any] = ()) -> Any:
    """Return the first column of the first row of a query, None where there is none."""
    return db.execute(query, values).get


def load_rows(db: apsw.Connection, reading: Reading) -> None:
    """Enter every row that is found.

    Raises:
        OSError: the damaged file cannot be read.
        apsw.Error: there is no room.
    """
    db.execute(_SCHEMA)
    tables = {
        name: (_inserted(db, name), entry, _Deleted(reading.coverage[name]))
        for name, entry in {"meta": _meta, **_ENTRIES}.items()
    }
    keys = _inserted(db, "index_key")
    for row in reading.rows(flawed=True):
        if row.table in tables:
            insert, entry, deleted = tables[row.table]
            values = entry(row)
            if row.table != "meta":
                fate, *rest = values
                values = (row.rowid, deleted.fate(row) or fate, *rest)
            insert((None, STRENGTH[row.origin], *values))
        elif row.origin is Origin.TREE and row.flaw is None:
            place = row.values[2] if row.table == UNIT_PLACE else None
            key = row.values[1] if row.table == BODY_TARGET else row.values[0]
            keys((row.table, row.rowid, _plain(key), place))
    db.execute(_INDEXES)


def _inserted(db: apsw.Connection, table: str) -> Callable[[Row], object]:
    columns = len(db.execute(f"PRAGMA table_info({table})").fetchall())
    statement = f"INSERT INTO {table} VALUES ({', '.join('?' * columns)})"
    return lambda values: db.execute(statement, values)


class _Deleted:
    """Tells which rows from elsewhere the intact part of a table's tree would have, if they were not deleted."""

    def __init__(self, coverage: Coverage) -> None:
        self._coverage = coverage

    def fate(self, row: FoundRow) -> str | None:
        if row.origin is Origin.TREE:
            return None
        # The intervals of a file that is damaged in places are few.
        covered = any(low < row.rowid <= high for low, high in self._coverage.intervals)
        return DELETED if covered or self._coverage.is_whole else None


def _plain(value: object) -> Any:
    """Return a text as its bytes, by which it is compared."""
    return bytes(value) if isinstance(value, bytes) else value


def hash_text_bytes(raw: bytes) -> str:
    """Return the hash of a text by its bytes: halves of surrogate pairs in it count as U+FFFD."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return identity.text_hash(decode_utf8(raw))
    return hashlib.sha256(raw).hexdigest()


def matches_hash(raw: object, key: object) -> bool:
    """Tell whether a text has a hash."""
    return isinstance(raw, bytes) and isinstance(key, bytes) and hash_text_bytes(raw).encode() == key


# --- what each table's rows say for themselves -----------------------------------------------------------------------


def _meta(row: FoundRow) -> Row:
    _, version, base, created, updated = row.values
    return version, _plain(base), created, updated


def _content(row: FoundRow) -> Row:
    key, text, created = row.values
    is_proven = matches_hash(text, key)
    return None if is_proven else DAMAGED, _plain(key), _plain(text) if is_proven else None, _time(created, row)


def _material(row: FoundRow) -> Row:
    key, path, content, created, updated = row.values
    is_form = isinstance(key, Text) and bool(key) and _is_utf8(key) and isinstance(path, Text)
    fate = None if is_form and row.flaw is None else DAMAGED
    return fate, _plain(key), _plain(path), _plain(content), _time(created, row), _time(updated, row)


def _unit(row: FoundRow) -> Row:
    key, material, content, kind, place, title, start, stop, locator, created = row.values
    texts = [one for one in (title, locator) if isinstance(one, bytes)]
    is_proven = (
        kind == b"chunk"
        and isinstance(key, bytes)
        and unit_id(material, content, place, start, stop) == key
        # Of a title nothing in the row tells whether it is right but that it is there as a whole.
        and row.flaw in (None, Flaw.FREED)
        and all(map(_is_utf8, texts))
    )
    return (
        *(None if is_proven else DAMAGED, _plain(key), _plain(material), _plain(content), place, _plain(title), start),
        *(stop, _plain(locator), _time(created, row)),
    )


def unit_id(material: object, content: object, place: object, start: object, stop: object) -> bytes | None:
    """Return the id of a unit with these values, None where they cannot be those of one."""
    numbers = (place, start, stop)
    if not isinstance(material, bytes) or not isinstance(content, bytes):
        return None
    if not all(isinstance(one, int) and one >= 0 for one in numbers):
        return None
    whole = (decode_utf8(material), decode_utf8(content), int(str(place)), int(str(start)), int(str(stop)))
    return identity.unit_id(*whole).encode()


def _body(row: FoundRow) -> Row:
    key, kind, target, role, text, own_hash, number, created = row.values
    if isinstance(number, int) and number >= _FIRST_TIME and (created is None or int(str(created)) < _FIRST_TIME):
        # A file that was of version 1 has the number behind the time, or none.
        number, created = created, number
    is_own = (
        kind == b"search_unit"
        and role == b"body"
        and isinstance(target, bytes)
        and identity.body_id(decode_utf8(target)).encode() == key
    )
    is_proven = is_own and matches_hash(text, own_hash)
    fate = None if is_proven else DAMAGED
    # What is told of the row that is damaged serves where its text is cut anew.
    told = (_plain(key), _plain(target) if is_own else None, _plain(text), _plain(own_hash))
    return fate, *told, number if row.flaw is None else None, _time(created, row)


def _vector(row: FoundRow) -> Row:
    key, vector, created = row.values
    measures = measure_vector(vector) if isinstance(vector, bytes) and row.flaw is None else None
    fate = None if measures is not None and is_hash(key) else DAMAGED
    norm, repeats = (None, None) if measures is None else (measures.norm, measures.repeats)
    return fate, _plain(key), _plain(vector), _time(created, row), norm, repeats


def _time(value: object, row: FoundRow) -> int | None:
    """Return a time in ms; None where it is none, or where it may be another row's."""
    return value if isinstance(value, int) and 0 <= value < 1 << 48 and row.flaw is None else None


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


_ENTRIES: dict[str, Callable[[FoundRow], Row]] = {
    "content": _content,
    "material": _material,
    "search_unit": _unit,
    "search_text": _body,
    "embedding": _vector,
}
