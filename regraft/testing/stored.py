"""What an index file contains, and which rules of ``docs/formats/index.md`` it breaks. Uses its own SQL only."""

from __future__ import annotations

import hashlib
import posixpath
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from regraft.disk import sqlite

#: Version of the layout that is checked.
_VERSION = 2
#: Columns of each table with their types; ``!`` means NOT NULL.
_COLUMNS = {
    "meta": "id INTEGER; schema_version INTEGER!; base_id TEXT!; created_at INTEGER!; updated_at INTEGER!",
    "content": "content_hash TEXT; text TEXT!; created_at INTEGER!",
    "material": "material_id TEXT; relative_path TEXT!; current_content_hash TEXT; created_at INTEGER!;"
    " updated_at INTEGER!",
    "search_unit": "unit_id TEXT; material_id TEXT!; content_hash TEXT!; unit_type TEXT!; unit_index INTEGER!;"
    " title TEXT; char_start INTEGER!; char_end INTEGER!; locator_json TEXT; created_at INTEGER!",
    "search_text": "search_text_id TEXT; target_type TEXT!; target_id TEXT!; kind TEXT!; text TEXT!;"
    " embedding_text_hash TEXT!; fts_rowid INTEGER; created_at INTEGER!",
    "embedding": "embedding_text_hash TEXT; vector_blob BLOB!; created_at INTEGER!",
}
#: Foreign keys of each table: column, referenced table, action on deletion.
_FOREIGN_KEYS = {
    "material": {("current_content_hash", "content", "NO ACTION")},
    "search_unit": {("material_id", "material", "CASCADE"), ("content_hash", "content", "CASCADE")},
}
#: Indexes by name: table, columns, whether unique.
_INDEXES = {
    "material_content_idx": ("material", ("current_content_hash",), False),
    "search_unit_material_index_idx": ("search_unit", ("material_id", "unit_type", "unit_index"), True),
    "search_unit_content_idx": ("search_unit", ("content_hash",), False),
    "search_unit_material_idx": ("search_unit", ("material_id",), False),
    "search_text_target_kind_idx": ("search_text", ("target_type", "target_id", "kind"), True),
    "search_text_embedding_hash_idx": ("search_text", ("embedding_text_hash",), False),
    "search_text_kind_idx": ("search_text", ("kind",), False),
    "search_text_fts_rowid_uniq": ("search_text", ("fts_rowid",), True),
}
_TRIGGERS = ("search_text_ai", "search_text_ad", "search_text_au")
#: Valid rows in which one column is changed, parents before children.
_VALID_ROWS: dict[str, dict[str, Any]] = {
    "meta": {"id": 1, "schema_version": 2, "base_id": "probe", "created_at": 0, "updated_at": 0},
    "content": {"content_hash": "probe", "text": "probe", "created_at": 0},
    "material": {
        "material_id": "probe",
        "relative_path": "probe/probe.md",
        "current_content_hash": "probe",
        "created_at": 0,
        "updated_at": 0,
    },
    "search_unit": {
        "unit_id": "probe",
        "material_id": "probe",
        "content_hash": "probe",
        "unit_type": "chunk",
        "unit_index": 0,
        "char_start": 1,
        "char_end": 1,
        "created_at": 0,
    },
    "search_text": {
        "search_text_id": "probe",
        "target_type": "search_unit",
        "target_id": "probe",
        "kind": "body",
        "text": "probe",
        "embedding_text_hash": "probe",
        "created_at": 0,
    },
}
#: Values that a CHECK of the layout refuses: table, column, value.
_REFUSED_VALUES: tuple[tuple[str, str, Any], ...] = (
    ("meta", "id", 2),
    *(("material", "relative_path", path) for path in ("", "/probe.md", ".cherry", ".cherry/index.sqlite")),
    ("search_unit", "unit_type", "probe"),
    ("search_unit", "unit_index", -1),
    ("search_unit", "char_start", -1),
    ("search_unit", "char_end", 0),
    ("search_text", "target_type", "probe"),
    ("search_text", "kind", "probe"),
)
#: Texts that no store contains by chance, with trigrams to search for.
_PROBE, _OTHER_PROBE = "qxzkwv probe", "vwkzxq probe"
_COMPARE_WORDS = "INSERT INTO search_text_fts (search_text_fts, rank) VALUES ('integrity-check', 1)"
_FOUND = "SELECT count(*) FROM search_text_fts WHERE search_text_fts MATCH ? AND rowid = ?"


@dataclass(frozen=True)
class StoredState:
    """The content of an index file."""

    #: Path and content by material id.
    materials: dict[str, tuple[str, str | None]]
    #: (start, end, body) of every unit in order, by material id.
    units: dict[str, list[tuple[int, int, str]]]
    contents: set[str]
    embeddings: dict[str, bytes]
    #: Bodies that the full-text index does not find under their row number.
    unfound: list[str]


def stored_state(path: Path) -> StoredState:
    """Read the content of an index file, without leaving a trace."""
    with sqlite.open_readonly(path) as db:
        return _state_of(db)


def _state_of(db: apsw.Connection) -> StoredState:
    """Read the content of an open index file."""
    rows = db.execute(
        "SELECT m.material_id, m.relative_path, c.text FROM material m"
        " LEFT JOIN content c ON c.content_hash = m.current_content_hash"
    )
    materials = {str(material): (str(path), None if text is None else str(text)) for material, path, text in rows}
    units: dict[str, list[tuple[int, int, str]]] = {}
    for material, start, end, body in db.execute(
        "SELECT u.material_id, u.char_start, u.char_end, t.text FROM search_unit u"
        " LEFT JOIN search_text t ON t.target_id = u.unit_id ORDER BY u.material_id, u.unit_index"
    ):
        units.setdefault(material, []).append((start, end, body))
    embeddings = db.execute("SELECT embedding_text_hash, vector_blob FROM embedding")
    return StoredState(
        materials=materials,
        units=units,
        contents={str(row[0]) for row in db.execute("SELECT text FROM content")},
        embeddings={str(key): as_bytes(vector) for key, vector in embeddings},
        unfound=list(_find_unfound(db)),
    )


def as_bytes(value: object) -> bytes:
    """Return the bytes of a stored value: a blob, or else its text."""
    return value if isinstance(value, bytes) else str(value).encode()


def _find_unfound(db: apsw.Connection) -> Iterator[str]:
    """Yield bodies that the full-text index does not find by their beginning."""
    for rowid, text in db.execute("SELECT fts_rowid, text FROM search_text").fetchall():
        body = str(text)
        # The trigram index does not find shorter texts, and NUL ends a query.
        if len(body) >= 3 and "\0" not in body[:3]:
            start = body[:3].replace('"', '""')
            query = "SELECT 1 FROM search_text_fts WHERE search_text_fts MATCH ? AND rowid = ?"
            if db.execute(query, (f'"{start}"', rowid)).get is None:
                yield body


def index_problems(path: Path, base_id: str, *, dimensions: int | None = None) -> list[str]:
    """Compare an index file with ``docs/formats/index.md``, for a base with an embedding model.

    The file is only read, without leaving a trace. Checks that write use a copy in memory.

    Args:
        path: the index file. It may be open elsewhere and have a log.
        base_id: the expected id of its base.
        dimensions: of its vectors; None: any, but equal for all.

    Returns:
        One sentence for each problem; an empty list without problems.
    """
    return inspect_index(path, base_id, dimensions)[0]


def inspect_index(path: Path, base_id: str, dimensions: int | None) -> tuple[list[str], StoredState | None]:
    """Return the problems of an index file, as :func:`index_problems` does, and its content.

    There is no content if the file cannot be read or has a wrong schema.
    """
    try:
        with sqlite.open_readonly(path) as file, closing(apsw.Connection(":memory:")) as copy:
            with copy.backup("main", file, "main") as backup:
                backup.step()
            # Results for a schema are cached, because most files have the same schema.
            schema = tuple(copy.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY 1, 2"))
            if schema not in _known_schemas:
                _known_schemas[schema] = list(_schema_problems(copy))
            if _known_schemas[schema]:
                # Rows are not checked because tables may be missing.
                return list(_known_schemas[schema]), None
            state = _state_of(copy)
            return list(_row_problems(copy, base_id, dimensions)), state
    except (apsw.Error, OSError, UnicodeDecodeError) as error:
        return [f"{path.name} cannot be read: {error}"], None


_known_schemas: dict[tuple[Any, ...], list[str]] = {}


# --- the schema -----------------------------------------------------------------------------------------------------


# Each function named ``…_problems`` yields one sentence for each problem that it finds in the open index file ``db``.


def _schema_problems(db: apsw.Connection) -> Iterator[str]:
    """Yield the problems of the whole schema: tables, indexes, triggers, CHECK constraints. Writes test rows."""
    problems = [*_table_problems(db), *_index_problems(db)]
    present = {str(name) for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")}
    problems += [f"the trigger {name} is missing" for name in _TRIGGERS if name not in present]
    if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'search_text_fts' AND type = 'table'").fetchall():
        problems.append("the table search_text_fts is missing")
    yield from problems
    if not problems:
        # The checks below need all tables.
        db.execute("PRAGMA foreign_keys = OFF")
        for tried in (_check_problems, _trigger_problems):
            db.execute("SAVEPOINT tried")
            yield from tried(db)
            db.execute("ROLLBACK TO tried")
            db.execute("RELEASE tried")


def _table_problems(db: apsw.Connection) -> Iterator[str]:
    """Yield tables whose columns, primary key or foreign keys differ from the format."""
    for table, listed in _COLUMNS.items():
        wanted = dict(one.split() for one in listed.split("; "))
        found = {
            str(name): (str(kind).upper(), bool(notnull), int(key))
            for _, name, kind, notnull, _, key in db.execute(f"PRAGMA table_info('{table}')")
        }
        if found.keys() != wanted.keys():
            yield f"the table {table} has the columns {sorted(found)} instead of {sorted(wanted)}"
            continue
        for name, declared in wanted.items():
            kind, is_required, key = found[name]
            if kind != declared.rstrip("!"):
                yield f"{table}.{name} is declared {kind or 'without a type'} instead of {declared.rstrip('!')}"
            if declared.endswith("!") and not is_required:
                yield f"{table}.{name} may be NULL"
            if (key > 0) != (name == next(iter(wanted))):
                yield f"the primary key of {table} is not {next(iter(wanted))} alone"
        keys = {
            (str(column), str(parent), str(action))
            for _, _, parent, column, _, _, action, _ in db.execute(f"PRAGMA foreign_key_list('{table}')")
        }
        if keys != _FOREIGN_KEYS.get(table, set()):
            yield f"the foreign keys of {table} are {sorted(keys)} instead of {sorted(_FOREIGN_KEYS.get(table, ()))}"


def _index_problems(db: apsw.Connection) -> Iterator[str]:
    """Yield SQL indexes that are missing or differ from the format."""
    found: dict[str, tuple[str, tuple[str, ...], bool]] = {}
    for table in _COLUMNS:
        for _, name, is_unique, _, is_partial in db.execute(f"PRAGMA index_list('{table}')").fetchall():
            columns = tuple(str(row[2]) for row in db.execute(f"PRAGMA index_info('{name}')"))
            found[str(name)] = (table, columns, bool(is_unique) and not is_partial)
    for name, wanted in _INDEXES.items():
        if found.get(name) != wanted:
            unique = "unique " if wanted[2] else ""
            yield f"the index {name} is not the {unique}index on {wanted[0]} ({', '.join(wanted[1])})"
    if ("material", ("relative_path",), True) not in found.values():
        yield "material.relative_path is not UNIQUE"


def _insert(db: apsw.Connection, table: str, **changes: Any) -> str | None:
    """Insert a valid row with ``changes`` into a table. Return the error if SQLite refuses it, else None."""
    row = {**_VALID_ROWS[table], **changes}
    try:
        db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", list(row.values()))
    except apsw.ConstraintError as error:
        return str(error)
    return None


def _check_problems(db: apsw.Connection) -> Iterator[str]:
    """Insert test rows, and yield CHECK constraints that are missing or refuse a valid row."""
    db.execute("DELETE FROM meta")
    for table in _VALID_ROWS:
        for where, column, value in _REFUSED_VALUES:
            if where == table and _insert(db, table, **{column: value}) is None:
                yield f"a row of {table} with {column} = {value!r} is taken: its CHECK is missing"
                db.execute(f"DELETE FROM {table} WHERE {column} IS ?", (value,))
        refusal = _insert(db, table)
        if refusal is not None:
            yield f"a valid row of {table} is refused: {refusal}"


def _trigger_problems(db: apsw.Connection) -> Iterator[str]:
    """Insert two rows into ``search_text``, and yield where triggers and full-text index differ from the format."""
    highest: Any = db.execute("SELECT ifnull(max(fts_rowid), 0) FROM search_text").get
    _insert(db, "search_text", text=_PROBE)
    first: Any = db.execute("SELECT fts_rowid FROM search_text WHERE search_text_id = 'probe'").get
    if first != highest + 1:
        yield f"search_text_ai numbers the row after {highest} with {first}"
        return
    _insert(db, "search_text", text=_PROBE, search_text_id="probe 2", target_id="probe 2", fts_rowid=first + 50)
    second: Any = db.execute("SELECT fts_rowid FROM search_text WHERE search_text_id = 'probe 2'").get
    if second != first + 51:
        yield f"search_text_ai keeps the given number {first + 50} as {second} instead of setting {first + 51}"
    for words in ('"xzk"', '"XZKW"'):
        if db.execute(_FOUND, (words, first)).get != 1:
            yield f"search_text_ai: a search for {words} does not find {_PROBE!r} under its number (trigram tokenizer)"
    if db.execute("SELECT text FROM search_text_fts WHERE rowid = ?", (first,)).get != _PROBE:
        yield "search_text_fts does not read its texts from search_text by fts_rowid"
    db.execute("UPDATE search_text SET text = ? WHERE search_text_id = 'probe'", (_OTHER_PROBE,))
    if (db.execute(_FOUND, ('"qxzkwv"', first)).get, db.execute(_FOUND, ('"vwkzxq"', first)).get) != (0, 1):
        yield "search_text_au does not replace the text in the full-text index"
    db.execute("DELETE FROM search_text WHERE search_text_id IN ('probe', 'probe 2')")
    left = db.execute("SELECT count(*) FROM search_text_fts_docsize WHERE id IN (?, ?)", (first, second)).get
    if left:
        yield "search_text_ad leaves deleted texts in the full-text index"


# --- the rows -------------------------------------------------------------------------------------------------------


def _row_problems(db: apsw.Connection, base_id: str, dimensions: int | None) -> Iterator[str]:
    """Yield the problems of all rows; ``base_id`` and ``dimensions`` are those expected (None: any dimensions)."""
    for (message,) in db.execute("PRAGMA integrity_check"):
        if message != "ok":
            yield f"PRAGMA integrity_check says: {message}"
    for table, _, parent, _ in db.execute("PRAGMA foreign_key_check"):
        yield f"a row of {table} refers to a row of {parent} that is not there"
    yield from _meta_problems(db, base_id)
    yield from _type_problems(db)
    yield from _content_problems(db)
    yield from _unit_problems(db)
    yield from _embedding_problems(db, dimensions)
    yield from _fts_problems(db)


def _meta_problems(db: apsw.Connection, base_id: str) -> Iterator[str]:
    """Yield problems of the row of ``meta``; ``base_id`` is the expected one."""
    rows = db.execute("SELECT id, schema_version, base_id FROM meta").fetchall()
    if len(rows) != 1 or rows[0][0] != 1:
        yield f"meta has the rows {rows} instead of one with id 1"
        return
    if rows[0][1] != _VERSION:
        yield f"meta.schema_version is {rows[0][1]!r} instead of {_VERSION}"
    if rows[0][2] != base_id:
        yield f"meta.base_id is {rows[0][2]!r} instead of {base_id!r}"


def _type_problems(db: apsw.Connection) -> Iterator[str]:
    """Yield columns that have a value of another type than declared."""
    for table, listed in _COLUMNS.items():
        for name, kind in (one.split() for one in listed.split("; ")):
            may_be = (kind.rstrip("!").lower(), "" if kind.endswith("!") else "null")
            # A missing full-text number is reported below, with its row.
            query = f"SELECT DISTINCT typeof({name}) FROM {table} WHERE typeof({name}) NOT IN (?, ?)"
            for (found,) in db.execute(query, may_be):
                yield f"{table}.{name} holds a value of the type {found}"


def _content_problems(db: apsw.Connection) -> Iterator[str]:
    """Yield contents with a wrong hash or without a material, and materials with an invalid path."""
    for key, text in db.execute("SELECT content_hash, CAST(text AS BLOB) FROM content").fetchall():
        if key != _hash(text):
            yield f"content_hash {_shorten_key(key)} is not the SHA-256 of its text {_text(text)[:30]!r}"
    orphans = db.execute(
        "SELECT count(*) FROM content WHERE content_hash NOT IN (SELECT content_hash FROM search_unit)"
        " AND content_hash NOT IN (SELECT current_content_hash FROM material WHERE current_content_hash IS NOT NULL)"
    ).get
    if orphans:
        yield f"{orphans} content rows that neither a material nor a unit names"
    for key, path in db.execute("SELECT material_id, CAST(relative_path AS BLOB) FROM material").fetchall():
        name = _text(path)
        parts = name.split("/")
        if posixpath.normpath(name) != name or ".." in parts or parts[0].lower() == ".cherry" or name[:1] in ("", "/"):
            yield f"the relative_path {name!r} of {key} is not a normalized path below raw/"
        elif "\\" in name or "\0" in name:
            yield f"the relative_path {name!r} of {key} has a backslash or a NUL"


def _unit_problems(db: apsw.Connection) -> Iterator[str]:
    """Yield units with a wrong id, number, content, offsets or body, and bodies without a unit."""
    bodies: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    query = "SELECT target_id, search_text_id, CAST(text AS BLOB), embedding_text_hash, fts_rowid FROM search_text"
    for unit, *body in db.execute(query):
        bodies[str(unit)].append(tuple(body))
    texts = {key: _wide(text) for key, text in db.execute("SELECT content_hash, CAST(text AS BLOB) FROM content")}
    contents = dict(db.execute("SELECT material_id, current_content_hash FROM material"))
    indexes: dict[str, list[int]] = defaultdict(list)
    columns = "unit_id, material_id, content_hash, unit_type, unit_index, char_start, char_end"
    rows: list[Any] = db.execute(f"SELECT {columns} FROM search_unit ORDER BY material_id, unit_index").fetchall()
    for unit, *of in rows:
        material, content, _, number, start, end = of
        name_of_unit = f"unit {number} of {material}"
        indexes[str(material)].append(int(number))
        if unit != _hash(" ".join(map(str, of)).encode()):
            yield f"the unit_id {_shorten_key(unit)} of {name_of_unit} does not follow from its row (Identities)"
        if content != contents.get(material):
            yield f"{name_of_unit} is of another content than its material's current_content_hash"
        own_bodies = bodies.pop(str(unit), [])
        if len(own_bodies) != 1:
            yield f"{name_of_unit} has {len(own_bodies)} bodies instead of one"
            continue
        yield from _slice_problems(name_of_unit, own_bodies[0][1], texts.get(content, b""), start, end)
        yield from _body_problems(name_of_unit, unit, *own_bodies[0])
    for material, numbers in indexes.items():
        if numbers != list(range(len(numbers))):
            yield f"unit_index of {material} is {numbers} instead of {list(range(len(numbers)))}"
    for own_bodies in bodies.values():
        yield f"the body {_text(own_bodies[0][1])!r} is of a unit that is not there"


def _slice_problems(name_of_unit: str, body: bytes, wide: bytes, start: int, end: int) -> Iterator[str]:
    """Yield a problem if a unit's body is not the text between its offsets.

    ``wide`` is the whole text as UTF-16; ``start`` and ``end`` are offsets in its units. ``body`` is UTF-8.
    """
    if not 0 <= start <= end <= len(wide) // 2:
        yield f"{name_of_unit} ends beyond its text: {start} to {end} of {len(wide) // 2} UTF-16 units"
    elif wide[2 * start : 2 * end] != _wide(body):
        sliced = wide[2 * start : 2 * end].decode("utf-16-le", "replace")
        yield f"the body of {name_of_unit} is {_text(body)!r}, but {start} to {end} in UTF-16 units are {sliced!r}"


def _body_problems(
    name_of_unit: str, unit: str, body_id: str, body: bytes, key: str, fts_rowid: object
) -> Iterator[str]:
    """Yield problems of the row of a unit's body in ``search_text``.

    ``unit`` is the unit's id; ``body_id``, ``body``, ``key`` (hash of the text) and ``fts_rowid`` are the columns.
    """
    if body_id != _hash(f"search_unit {unit} body".encode()):
        yield f"the search_text_id {_shorten_key(body_id)} of {name_of_unit} does not follow from its row (Identities)"
    if key != _hash(body):
        yield f"the embedding_text_hash of {name_of_unit} is not the SHA-256 of its body {_text(body)!r}"
    if fts_rowid is None:
        yield f"the body of {name_of_unit} has no fts_rowid"


def _embedding_problems(db: apsw.Connection, dimensions: int | None) -> Iterator[str]:
    """Yield bodies without a vector, vectors without a body, and vectors of wrong or different dimensions."""
    hashes = "SELECT embedding_text_hash FROM {}"
    missing = db.execute(f"{hashes.format('search_text')} EXCEPT {hashes.format('embedding')}").fetchall()
    orphans = db.execute(f"{hashes.format('embedding')} EXCEPT {hashes.format('search_text')}").fetchall()
    if missing:
        yield f"{len(missing)} bodies without an embedding, for example of the hash {_shorten_key(missing[0][0])}"
    if orphans:
        yield f"{len(orphans)} embeddings that no body names, for example of the hash {_shorten_key(orphans[0][0])}"
    lengths = {int(str(size)) for (size,) in db.execute("SELECT DISTINCT length(vector_blob) FROM embedding")}
    if dimensions is not None and not lengths <= {4 * dimensions}:
        yield f"vectors of {sorted(lengths)} bytes instead of {4 * dimensions}"
    elif len(lengths) > 1 or any(length % 4 for length in lengths):
        yield f"vectors of {sorted(lengths)} bytes in one base"


def _fts_problems(db: apsw.Connection) -> Iterator[str]:
    """Yield where the full-text index differs from the bodies."""
    rows = {rowid for (rowid,) in db.execute("SELECT fts_rowid FROM search_text")}
    indexed = {rowid for (rowid,) in db.execute("SELECT id FROM search_text_fts_docsize")}
    db.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.words USING fts5vocab(main, search_text_fts, instance)")
    indexed |= {rowid for (rowid,) in db.execute("SELECT DISTINCT doc FROM temp.words")}
    if ghosts := indexed - rows:
        yield f"the full-text index still has {len(ghosts)} rows that no body has, for example number {min(ghosts)}"
    if missing := rows - indexed:
        yield f"the full-text index lacks {len(missing)} bodies, for example number {min(missing, key=str)}"
    if not ghosts and not missing and not _fts_matches(db):
        yield "the full-text index does not hold the words of the bodies (FTS5 integrity-check)"


def _fts_matches(db: apsw.Connection) -> bool:
    """Whether the full-text index has the words of the bodies, according to FTS5 itself. ``db`` is a copy.

    Some versions of SQLite cut certain texts into different trigrams, for example at NUL. The result of either apsw's
    or Python's SQLite library counts as right.
    """
    try:
        db.execute(_COMPARE_WORDS)
    except apsw.CorruptError:
        raw = bytearray(db.serialize("main"))
        # A database in memory cannot use a write-ahead log.
        raw[18:20] = b"\x01\x01"
        with closing(sqlite3.connect(":memory:")) as other:
            other.deserialize(bytes(raw))
            try:
                other.execute(_COMPARE_WORDS)
            except sqlite3.DatabaseError:
                return False
    return True


# --- values ---------------------------------------------------------------------------------------------------------


def _text(stored: Any) -> str:
    """Decode a stored text, with unpaired surrogates."""
    return as_bytes(stored).decode("utf-8", "surrogatepass")


def _wide(stored: Any) -> bytes:
    """Encode a stored text as UTF-16."""
    return _text(stored).encode("utf-16-le", "surrogatepass")


def _hash(stored: Any) -> str:
    """Return the SHA-256 of a stored text in hex. Unpaired surrogates count as U+FFFD."""
    text = _text(stored).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return hashlib.sha256(text.encode()).hexdigest()


def _shorten_key(key: object) -> str:
    """Return the first characters of an id or hash, for a message."""
    return f"{str(key)[:12]}…"


def sentence(problems: Sequence[str], most: int = 5) -> str:
    """Join problems for a message, a line each: the first ``most`` of them, and the number of the others."""
    more = [f"and {len(problems) - most} more"] if len(problems) > most else []
    return "\n".join(f"- {problem}" for problem in [*problems[:most], *more])
