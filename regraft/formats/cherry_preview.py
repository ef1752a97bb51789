"""What the preview of Cherry Studio v2 wrote."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft.disk import durable, file_paths, links, sqlite, untrusted_sqlite
from regraft.disk.trees import Tree, ZipTree
from regraft.formats import vector_checks
from regraft.formats.vector_survey import LoaderRows, StoreProblem, VectorSurvey
from regraft.formats.vector_table import SPACES_SQL, ColumnExpressions, VectorTable
from regraft.language import tr

# The single table in which preview builds kept the chunks of a base (``docs/formats/preview.md``).
#
# Every query on it says ``NOT INDEXED``, so that the empty vector index of early builds cannot answer in its place. Where
# SQLite refuses the schema altogether because of that index, a copy without it is read.


PREVIEW_TABLE = "libsql_vectorstores_embedding"
#: The function of libSQL over which the index of early builds is made.
VECTOR_INDEX = "libsql_vector_idx"
#: Where to look for the table's name in a member of an archive: its schema stands at a file's beginning.
_SNIFFED_BYTES = 1 << 20


def _metadata(key: str) -> tuple[str, str]:
    """Return the SQL for a text of ``metadata``; NULL where that is no JSON object or the text is blank."""
    # As a BLOB it would be taken for SQLite's own binary form of JSON.
    text = "CAST(metadata AS TEXT)"
    value = f"({text} ->> '$.{key}')"
    return "metadata", f"CASE WHEN json_valid({text}) AND trim({value}, {SPACES_SQL}) <> '' THEN {value} END"


_OWNER: ColumnExpressions = (
    ("external_id", f"CASE WHEN trim(external_id, {SPACES_SQL}) <> '' THEN external_id END"),
    _metadata("itemId"),
)
_SOURCE: ColumnExpressions = (_metadata("source"),)
_TYPE: ColumnExpressions = (_metadata("itemType"),)
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
    """What a file holds: the preview table, the seven tables of v2, neither, or nobody can tell."""

    PREVIEW = "preview"
    CURRENT = "current"
    OTHER = "other"
    UNREADABLE = "unreadable"


class IndexSummary(msgspec.Struct, frozen=True):
    """What a file is at a glance."""

    layout: IndexLayout
    #: Whether there is a row in the preview table, or a unit in the seven tables.
    has_rows: bool = False
    #: Whether the vector index of early builds is there, which hides rows from other programs.
    has_trap: bool = False
    #: Whether rows of the preview table stand beside seven tables with units.
    leaves_rows: bool = False
    #: Why nobody can tell, for a person.
    problem: str = ""
    #: Whether that is because of the system: another look may tell.
    by_system: bool = False


def summarize_file(path: Path, work: Path | None = None) -> IndexSummary:
    """Tell what a file on disk is, from its schema and the first row of its tables.

    A file with both the preview table and the seven tables is a preview store as long as only the preview table has
    rows: the application made the seven, empty, when it opened the file.

    Args:
        path: any file.
        work: folder for temporary copies (default: the system's temporary folder).
    """
    try:
        # Opening a pipe would wait for somebody to write into it.
        if not file_paths.is_file(path) or not untrusted_sqlite.is_database(path):
            return IndexSummary(IndexLayout.OTHER)
    except PermissionError as error:
        return IndexSummary(IndexLayout.UNREADABLE, problem=error.strerror or str(error))
    try:
        try:
            return _looked_at(path, work)
        except sqlite.SYSTEM_ERRORS:
            raise
        except (apsw.Error, UnicodeDecodeError):
            # Most files can be read at once; what is refused is only asked for where one cannot.
            refused = _is_refused(path, work)
            with readable_copy(path, work, refused=refused) as copy:
                return _looked_at(copy, work, has_trap=refused)
    except (apsw.Error, UnicodeDecodeError, OSError) as error:
        by_system = isinstance(error, (OSError, *sqlite.SYSTEM_ERRORS))
        return IndexSummary(IndexLayout.UNREADABLE, problem=str(error), by_system=by_system)


def _looked_at(path: Path, work: Path | None, *, has_trap: bool = False) -> IndexSummary:
    with sqlite.open_readonly(path, work=work) as db:
        schema = db.execute("SELECT type, lower(name), sql FROM sqlite_schema").fetchall()
        tables = {name for kind, name, _ in schema if kind == "table"}
        has_trap = has_trap or _has_vector_index(schema)
        previews = PREVIEW_TABLE in tables and _has_rows(db, PREVIEW_TABLE)
        units = "search_unit" in tables and _has_rows(db, "search_unit")
    if "search_unit" in tables and (units or not previews):
        return IndexSummary(IndexLayout.CURRENT, units, leaves_rows=previews)
    if PREVIEW_TABLE not in tables:
        return IndexSummary(IndexLayout.OTHER)
    return IndexSummary(IndexLayout.PREVIEW, previews, has_trap)


def _has_vector_index(schema: list[Any]) -> bool:
    return any(VECTOR_INDEX in str(sql) for kind, _, sql in schema if kind == "index")


def summarize_member(tree: Tree, name: str) -> IndexSummary:
    """Tell what a file of a tree is; one in an archive is only extracted where it seems to hold the preview table.

    Raises:
        SourceUnreadable: it is not there, cannot be read, or is a damaged member.
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
    try:
        return db.execute(f"SELECT 1 FROM {table} NOT INDEXED LIMIT 1").get is not None
    except apsw.Error:
        # Damage: there is something, and whoever reads all of it finds out what.
        return True


# --- a schema that SQLite refuses ----------------------------------------------------------------------------------


@contextmanager
def readable_copy(path: Path, work: Path | None = None, *, refused: bool | None = None) -> Iterator[Path]:
    """Give ``path``, or where SQLite refuses its schema, a temporary copy without the vector index.

    The file itself is never changed. One that no copy helps is given as it is: reading it says what is wrong.

    Args:
        path: the file.
        work: folder for the copy (default: the system's temporary folder).
        refused: whether SQLite refuses the schema, where that was just tried.
    """
    if not (_is_refused(path, work) if refused is None else refused):
        yield path
        return
    with durable.temporary_folder(work) as folder:
        copy = folder / "copy.sqlite"
        real = links.real_path(path)
        durable.copy_file(real, copy)
        for beside in untrusted_sqlite.find_companions(real):
            untrusted_sqlite.copy_companion(beside, copy, beside.name[len(real.name) :])
        helped = any(_set_aside(copy, which) and not _is_refused(copy, work) for which in _ASIDE)
        yield copy if helped else path


def _is_refused(path: Path, work: Path | None) -> bool:
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


#: What is taken out of a schema that SQLite refuses: its vector index; where that is not enough, all but the table.
_ASIDE = (
    f"type = 'index' AND sql LIKE '%{VECTOR_INDEX}%' AND ?1 IS NOT NULL",
    "name <> ?1 COLLATE NOCASE AND NOT (tbl_name = ?1 COLLATE NOCASE AND sql IS NULL)",
)


def _set_aside(copy: Path, which: str) -> bool:
    """Take some entries out of the schema of a copy; tell whether that went through."""
    try:
        with sqlite.open_writable(copy) as db, untrusted_sqlite.allow_schema_writes(db):
            db.execute("PRAGMA writable_schema = ON")
            # With that setting only the first statement fails on a schema that cannot be read.
            with contextlib.suppress(apsw.SQLError):
                db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            db.execute(f"DELETE FROM sqlite_schema WHERE {which}", (PREVIEW_TABLE,))
    except (apsw.Error, UnicodeDecodeError):
        return False
    return True


# --- rows that stay where they are -----------------------------------------------------------------------------------


def count_rows(db: apsw.Connection) -> int:
    """Return how many rows the preview table of an open file has; 0 where it has no such table.

    Raises:
        apsw.Error: it is damaged.
    """
    if db.execute("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND lower(name) = ?", (PREVIEW_TABLE,)).get is None:
        return 0
    count: int = db.execute(f"SELECT count(*) FROM {PREVIEW_TABLE} NOT INDEXED").get
    return count


def copy_remaining_rows(path: Path, new: Path, runs: Iterable[tuple[int, int]] = (), vector_bytes: int = 0) -> int:
    """Copy the rows of the preview table to a table of that name in ``new``, and return how many these are.

    Args:
        path: the file with the table, in a form that SQLite reads.
        new: another file, without such a table.
        runs: ranges of rowids whose rows stay behind, where their vectors have the length that follows and finite
            numbers (:meth:`VectorTable.rows`).
        vector_bytes: that length.

    Raises:
        apsw.Error, OSError: one cannot be read, or the other not be written.
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
            length = _declared(there)
            # Without a type of their own, values stay what they are.
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


# --- what a store says of itself -----------------------------------------------------------------------------------


class StoredItem(msgspec.Struct):
    """An item as its rows tell it: its type in lower case and its source, None where no row says."""

    type: str | None = None
    source: str | None = None


class StoreContents(msgspec.Struct):
    """What a store knows beside its chunks."""

    #: By the owner's id, in the order of first rows.
    items: dict[str, StoredItem] = msgspec.field(default_factory=dict)
    #: The base's id, by the first row that names one.
    collection: str | None = None


def read_contents(path: Path, work: Path | None = None) -> StoreContents:
    """Read whose rows a store has and what they say of their items; ``path`` as for :meth:`VectorTable.survey`.

    Raises:
        StoreProblem: it cannot be read.
    """
    found = StoreContents()
    try:
        with sqlite.open_readonly(path, work=work) as db:
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
    """Return d of ``embeddings F32_BLOB(d)``, None where the table says no such thing or cannot be read."""
    try:
        with sqlite.open_readonly(path, work=work) as db:
            types = {str(row[1]): str(row[2]) for row in db.execute(f"PRAGMA table_info('{PREVIEW_TABLE}')")}
    except (apsw.Error, UnicodeDecodeError, OSError):
        return None
    return _declared(types)


def _declared(types: dict[str, str]) -> int | None:
    name, _, rest = types.get("embeddings", "").partition("(")
    digits = rest.partition(")")[0].strip()
    is_vector = name.strip().upper() == "F32_BLOB" and digits.isascii() and digits.isdigit()
    return int(digits) or None if is_vector and len(digits) <= 9 else None


def join_owner_bodies(
    path: Path, survey: VectorSurvey, owner: str, separator: str, limit: int, *, texts: bool = False
) -> str:
    """Return the bodies of an owner's rows with ``separator`` between them: of those that are carried, else of all.

    With ``texts`` rows are carried for their text alone, too. Reading stops once ``limit`` code points have come
    together.

    Raises:
        StoreProblem: it cannot be read.
    """
    rows = survey.loaders.get(owner)
    if rows is None:
        return ""
    parts: list[str] = []
    size = 0
    try:
        with sqlite.open_readonly(path) as db:
            for body in _bodies(db, owner, rows, survey.vector_bytes, texts=texts):
                parts.append(body)
                size += len(body) + len(separator)
                if size - len(separator) > limit:
                    break
    except (apsw.Error, OSError) as error:
        raise StoreProblem(tr("cannot be read: {error}", error=error)) from error
    return separator.join(parts)


def _bodies(
    db: apsw.Connection, owner: str, rows: LoaderRows, vector_bytes: int | None, *, texts: bool
) -> Iterator[str]:
    runs = zip(rows.runs[::2], rows.runs[1::2], strict=True)
    if texts:
        yield from (body for body, _ in PREVIEW_VECTORS.rows_and_texts(db, runs, vector_bytes))
    elif vector_bytes in rows.kinds:
        yield from (body for body, _ in PREVIEW_VECTORS.rows(db, runs, vector_bytes or 0))
    else:
        yield from (body or "" for whose, body in PREVIEW_VECTORS.texts(db, (_OWNER, _BODY)) if whose == owner)
