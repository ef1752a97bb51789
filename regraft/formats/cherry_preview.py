"""Read the table in which preview builds of Cherry Studio v2 kept the chunks of a base (``docs/formats/preview.md``).

Every query says ``NOT INDEXED``, because the vector index of early builds is empty to SQLite and it might answer from
it. If SQLite refuses the schema because of that index, a copy without it is read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

import apsw
import msgspec

from regraft.disk import durable, file_paths, links, scratch, sqlite, untrusted_sqlite
from regraft.disk.trees import Tree, ZipTree
from regraft.formats import vector_checks
from regraft.formats.vector_survey import LoaderRows, StoreProblem, VectorSurvey
from regraft.formats.vector_table import SPACES_SQL, ColumnExpressions, VectorTable
from regraft.language import tr

PREVIEW_TABLE = "libsql_vectorstores_embedding"
#: The libSQL function that the vector index of early builds is defined with.
VECTOR_INDEX = "libsql_vector_idx"
#: Bytes of an archive member that are searched for the table's name: the schema is at the beginning of a file.
_SNIFFED_BYTES = 1 << 20


def _metadata_sql(key: str) -> tuple[str, str]:
    """Build SQL for the text under a key of the JSON in ``metadata``: the column and an expression over it.

    The expression is NULL if the column is not a JSON object or the text is blank.
    """
    # SQLite would interpret a BLOB as its own binary JSON.
    text = "CAST(metadata AS TEXT)"
    value = f"({text} ->> '$.{key}')"
    return "metadata", f"CASE WHEN json_valid({text}) AND trim({value}, {SPACES_SQL}) <> '' THEN {value} END"


_OWNER: ColumnExpressions = (
    ("external_id", f"CASE WHEN trim(external_id, {SPACES_SQL}) <> '' THEN external_id END"),
    _metadata_sql("itemId"),
)
_SOURCE: ColumnExpressions = (_metadata_sql("source"),)
_TYPE: ColumnExpressions = (_metadata_sql("itemType"),)
_BODY: ColumnExpressions = (("document", "document"),)
_COLLECTION: ColumnExpressions = (
    ("collection", f"CASE WHEN trim(collection, {SPACES_SQL}) <> '' THEN collection END"),
)

PREVIEW_VECTORS = VectorTable(
    name=PREVIEW_TABLE,
    loader=_OWNER,
    source=_SOURCE,
    row_id=(("id", "id"),),
    body="document",
    vector="embeddings",
    needed=("document", "embeddings"),
)


_COLUMNS = ("id", "external_id", "collection", "document", "metadata", "embeddings")


class IndexLayout(Enum):
    """Layout of a file: the preview table, the seven tables of v2, neither, or unknown because it cannot be read."""

    PREVIEW = "preview"
    CURRENT = "current"
    OTHER = "other"
    UNREADABLE = "unreadable"


class IndexSummary(msgspec.Struct, frozen=True):
    """What the schema and the first rows of a file say about it."""

    layout: IndexLayout
    #: The preview table has a row, or the seven tables have a unit.
    has_rows: bool = False
    #: The vector index of early builds exists. It hides rows from other programs.
    has_trap: bool = False
    #: The preview table has rows although the seven tables have units.
    leaves_rows: bool = False
    #: Why the file cannot be read, for messages.
    problem: str = ""
    #: The operating system caused the problem, so another attempt may succeed.
    by_system: bool = False


def summarize_file(path: Path) -> IndexSummary:
    """Determine the layout of a file from its schema and the first row of each table.

    A file with both layouts counts as a preview store as long as only the preview table has rows: the application
    created the seven empty tables when it opened the file.
    """
    try:
        # Opening a pipe would block until another process writes to it.
        if not file_paths.is_file(path) or not untrusted_sqlite.is_database(path):
            return IndexSummary(IndexLayout.OTHER)
    except PermissionError as error:
        return IndexSummary(IndexLayout.UNREADABLE, problem=error.strerror or str(error))
    try:
        try:
            return _read_summary(path)
        except sqlite.SYSTEM_ERRORS:
            raise
        except (apsw.Error, UnicodeDecodeError):
            # Checked only now because most files can be read directly.
            refused = _has_refused_schema(path)
            with readable_copy(path, refused=refused) as copy:
                return _read_summary(copy, has_trap=refused)
    except (apsw.Error, UnicodeDecodeError, OSError) as error:
        by_system = isinstance(error, (OSError, *sqlite.SYSTEM_ERRORS))
        return IndexSummary(IndexLayout.UNREADABLE, problem=str(error), by_system=by_system)


def _read_summary(path: Path, *, has_trap: bool = False) -> IndexSummary:
    """Determine the layout of a file from its schema; errors of SQLite are raised.

    ``has_trap``: the file is a copy whose vector index was removed, because SQLite refused the schema with it.
    """
    with sqlite.open_readonly(path) as db:
        schema = db.execute("SELECT type, lower(name), sql FROM sqlite_schema").fetchall()
        tables = {name for kind, name, _ in schema if kind == "table"}
        has_trap = has_trap or any(VECTOR_INDEX in str(sql) for kind, _, sql in schema if kind == "index")
        previews = PREVIEW_TABLE in tables and _has_rows(db, PREVIEW_TABLE)
        units = "search_unit" in tables and _has_rows(db, "search_unit")
    if "search_unit" in tables and (units or not previews):
        return IndexSummary(IndexLayout.CURRENT, units, leaves_rows=previews)
    if PREVIEW_TABLE not in tables:
        return IndexSummary(IndexLayout.OTHER)
    return IndexSummary(IndexLayout.PREVIEW, previews, has_trap)


def summarize_member(tree: Tree, name: str) -> IndexSummary:
    """Determine the layout of the file with a name in a tree (a folder or an archive).

    An archive member is extracted only if it seems to contain the preview table.

    Raises:
        SourceUnreadable: the file is missing, cannot be read, or is a damaged member.
    """
    if isinstance(tree, ZipTree):
        with tree.open(name) as file:
            start = file.read(16)
            is_database = start == b"SQLite format 3\0"
            start += file.read(_SNIFFED_BYTES) if is_database else b""
        if not is_database or not any(
            PREVIEW_TABLE.encode(codec) in start for codec in ("utf-8", "utf-16-le", "utf-16-be")
        ):
            return IndexSummary(IndexLayout.CURRENT if b"search_unit" in start else IndexLayout.OTHER, has_rows=True)
    with tree.local(name, None) as path:
        return summarize_file(path)


def _has_rows(db: apsw.Connection, table: str) -> bool:
    """Whether a table has rows; True if it is too damaged to tell."""
    try:
        return db.execute(f"SELECT 1 FROM {table} NOT INDEXED LIMIT 1").get is not None
    except apsw.Error:
        # Damaged, so there are rows; the full read reports the damage.
        return True


# --- files whose schema SQLite refuses -----------------------------------------------------------------------------


@contextmanager
def readable_copy(path: Path, work: Path | None = None, *, refused: bool | None = None) -> Iterator[Path]:
    """Yield the path of a file that SQLite can read: ``path``, or a temporary copy without its vector index.

    A copy is made only if SQLite refuses the schema of the file, which itself is never changed. If no copy can be read
    either, ``path`` is yielded and reading it raises the error.

    Args:
        path: the preview store.
        work: folder for the copy (default: the system's temporary folder).
        refused: whether SQLite refuses the schema, if the caller has just tried.
    """
    if not (_has_refused_schema(path, work) if refused is None else refused):
        yield path
        return
    with scratch.temporary_folder(work) as folder:
        copy = folder / "copy.sqlite"
        real = links.real_path(path)
        durable.copy_file(real, copy)
        for beside in untrusted_sqlite.find_companions(real):
            untrusted_sqlite.copy_companion(beside, copy, beside.name[len(real.name) :])
        helped = any(
            _remove_entries(copy, entries) and not _has_refused_schema(copy, work) for entries in _REMOVED_ENTRIES
        )
        yield copy if helped else path


def _has_refused_schema(path: Path, work: Path | None = None) -> bool:
    """Whether SQLite refuses the schema of a database file."""
    if not untrusted_sqlite.is_database(path):
        return False
    try:
        with sqlite.open_readonly(path, work=work) as db:
            db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except (apsw.Error, UnicodeDecodeError):
        return True
    except OSError:
        return False
    return False


#: Schema entries to delete if SQLite refuses the schema: the vector index first, then everything except the table.
_REMOVED_ENTRIES = (
    f"type = 'index' AND sql LIKE '%{VECTOR_INDEX}%' AND ?1 IS NOT NULL",
    "name <> ?1 COLLATE NOCASE AND NOT (tbl_name = ?1 COLLATE NOCASE AND sql IS NULL)",
)


def _remove_entries(copy: Path, condition: str) -> bool:
    """Delete the schema entries that meet an SQL condition from a copy; return whether that worked.

    ``?1`` in the condition is the name of the preview table.
    """
    try:
        with sqlite.open_writable(copy) as db, untrusted_sqlite.allow_schema_writes(db):
            db.execute("PRAGMA writable_schema = ON")
            # With this setting only the first statement fails on a schema that cannot be read.
            with contextlib.suppress(apsw.SQLError):
                db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            db.execute(f"DELETE FROM sqlite_schema WHERE {condition}", (PREVIEW_TABLE,))
    except (apsw.Error, UnicodeDecodeError):
        return False
    return True


# --- copying rows to a new file ------------------------------------------------------------------------------------


def count_rows(db: apsw.Connection) -> int:
    """Count the rows of the preview table; 0 if the file has no such table.

    Raises:
        apsw.Error: the file is damaged.
    """
    if db.execute("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND lower(name) = ?", (PREVIEW_TABLE,)).get is None:
        return 0
    count: int = db.execute(f"SELECT count(*) FROM {PREVIEW_TABLE} NOT INDEXED").get
    return count


def copy_remaining_rows(path: Path, new: Path, runs: Iterable[tuple[int, int]] = (), vector_bytes: int = 0) -> int:
    """Copy the rows of the preview table that were not migrated to a table in ``new``; return their number.

    Args:
        path: the file with the preview table, in a form that SQLite can read.
        new: another file, without a preview table.
        runs: first and last row id of each migrated range. A row in a range is copied only if its vector does not have
            ``vector_bytes`` bytes or finite numbers (:meth:`VectorTable.rows`).
        vector_bytes: length of the migrated vectors.

    Raises:
        apsw.Error, OSError: one file cannot be read or the other cannot be written.
    """
    with sqlite.open_writable(new) as db:
        vector_checks.register_functions(db)
        flaw = vector_checks.flaw_sql("embeddings")
        db.execute("CREATE TEMP TABLE carried (first INTEGER PRIMARY KEY, last INTEGER NOT NULL)")
        db.executemany("INSERT INTO carried VALUES (?, ?)", runs)
        with sqlite.attach_readonly(db, path, "old"), sqlite.transaction(db):
            there = {
                str(row[1]).lower(): str(row[2]) for row in db.execute(f"PRAGMA old.table_info('{PREVIEW_TABLE}')")
            }
            columns = [name for name in _COLUMNS if name in there]
            length = _parse_dimensions(there)
            # Columns have no type, so values are stored unchanged.
            types = {"embeddings": f" F32_BLOB({length})"} if length else {}
            db.execute(
                f"CREATE TABLE main.{PREVIEW_TABLE} ({', '.join(name + types.get(name, '') for name in columns)})"
            )
            named = ", ".join(["rowid", *columns])
            db.execute(
                f"""INSERT INTO main.{PREVIEW_TABLE} ({named}) SELECT {named} FROM old.{PREVIEW_TABLE} AS r NOT INDEXED
                     WHERE NOT (CASE WHEN typeof(embeddings) = 'blob' AND octet_length(embeddings) = ?
                                     THEN {flaw} < {vector_checks.NON_FINITE} ELSE 0 END AND r.rowid <= ifnull(
                       (SELECT last FROM temp.carried WHERE first <= r.rowid ORDER BY first DESC LIMIT 1),
                       r.rowid - 1))
                     ORDER BY r.rowid""",
                (vector_bytes,),
            )
            return count_rows(db)


# --- metadata of a store -------------------------------------------------------------------------------------------


class StoredItem(msgspec.Struct):
    """Type (in lower case) and source of an item according to its rows; None if no row has it."""

    type: str | None = None
    source: str | None = None


class StoreContents(msgspec.Struct):
    """Items and base id of a preview store, according to its rows."""

    #: By owner id, in the order of first rows.
    items: dict[str, StoredItem] = msgspec.field(default_factory=dict)
    #: Id of the base, from the first row that has one.
    collection: str | None = None


def read_contents(path: Path) -> StoreContents:
    """Read the items and the base id from the rows of a preview store.

    Raises:
        StoreProblem: the file cannot be read.
    """
    found = StoreContents()
    try:
        with sqlite.open_readonly(path) as db:
            for owner, item_type, source, collection in PREVIEW_VECTORS.texts(
                db, (_OWNER, _TYPE, _SOURCE, _COLLECTION)
            ):
                found.collection = found.collection or collection
                if owner is None:
                    continue
                item = found.items.setdefault(owner, StoredItem())
                item.type = item.type or (item_type and item_type.strip().lower())
                item.source = item.source or source
    except (apsw.Error, OSError) as error:
        raise StoreProblem(tr("cannot be read: {error}", error=error)) from error
    return found


def declared_dimensions(path: Path, work: Path | None = None) -> int | None:
    """Return d of the vector column's type ``F32_BLOB(d)``; None without such a type or if it cannot be read."""
    try:
        with sqlite.open_readonly(path, work=work) as db:
            types = {str(row[1]): str(row[2]) for row in db.execute(f"PRAGMA table_info('{PREVIEW_TABLE}')")}
    except (apsw.Error, UnicodeDecodeError, OSError):
        return None
    return _parse_dimensions(types)


def _parse_dimensions(types: dict[str, str]) -> int | None:
    """Return the dimensions in the type of the vector column, or None. ``types``: declared types by column."""
    name, _, rest = types.get("embeddings", "").partition("(")
    digits = rest.partition(")")[0].strip()
    is_vector = name.strip().upper() == "F32_BLOB" and digits.isascii() and digits.isdigit()
    return int(digits) or None if is_vector and len(digits) <= 9 else None


def join_loader_bodies(
    path: Path, survey: VectorSurvey, loader: str, separator: str, limit: int, *, texts: bool = False
) -> str:
    """Join the bodies of a loader's rows in row order; empty if the survey has no such loader.

    Args:
        path: the preview store.
        survey: survey of the file.
        loader: id of the loader: in the preview layout, of an item.
        separator: text between two bodies.
        limit: reading stops after this many code points.
        texts: rows that have only a text are migrated too. Only bodies of rows that are migrated are joined, or all
            bodies if none is.

    Raises:
        StoreProblem: the file cannot be read.
    """
    rows = survey.loaders.get(loader)
    if rows is None:
        return ""
    parts: list[str] = []
    size = 0
    try:
        with sqlite.open_readonly(path) as db:
            for body in _read_bodies(db, loader, rows, survey.vector_bytes, texts=texts):
                parts.append(body)
                size += len(body) + len(separator)
                if size - len(separator) > limit:
                    break
    except (apsw.Error, OSError) as error:
        raise StoreProblem(tr("cannot be read: {error}", error=error)) from error
    return separator.join(parts)


def _read_bodies(
    db: apsw.Connection, loader: str, rows: LoaderRows, vector_bytes: int | None, *, texts: bool
) -> Iterator[str]:
    """Yield the bodies of a loader's migrated rows, or all its bodies if none is migrated.

    ``vector_bytes`` is the vector length of migrated rows. With ``texts``, rows without such a vector are migrated too.
    """
    runs = zip(rows.runs[::2], rows.runs[1::2], strict=True)
    if texts:
        yield from (body for body, _ in PREVIEW_VECTORS.rows_and_texts(db, runs, vector_bytes))
    elif vector_bytes in rows.kinds:
        yield from (body for body, _ in PREVIEW_VECTORS.rows(db, runs, vector_bytes or 0))
    else:
        yield from (body or "" for whose, body in PREVIEW_VECTORS.texts(db, (_OWNER, _BODY)) if whose == loader)
