"""Read catalogs of any build by the names of their columns (``docs/formats/catalog.md``).

A profile's tables have more columns than a library's, and earlier builds had fewer. Only named columns are read, so API
keys are never read into memory. :func:`read_catalog` reads everything, :class:`CatalogLookup` only the requested items.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft.disk import sqlite, untrusted_sqlite
from regraft.formats import json_text
from regraft.formats.cherry_v2.catalog import MAX_NOTE_UNITS
from regraft.language import join_list, tr
from regraft.text import is_blank, lenient_text, replace_surrogates, trim, utf16_len

#: Values by column name, for the columns that exist. Values may be of any type.
Row = dict[str, Any]

#: The columns of ``knowledge_base``. Builds before the first release had ``search_mode`` and ``hybrid_alpha``.
BASE_COLUMNS = (
    *("id", "name", "group_id", "dimensions", "embedding_model_id", "status", "error", "rerank_model_id"),
    *("file_processor_id", "chunk_size", "chunk_overlap", "chunk_strategy", "chunk_separator", "threshold"),
    *("document_count", "search_mode", "hybrid_alpha", "created_at", "updated_at"),
)
_COLUMNS = {
    "knowledge_base": BASE_COLUMNS,
    "knowledge_item": (
        *("id", "base_id", "group_id", "type", "data", "status", "error", "created_at", "updated_at", "deleted_at"),
    ),
    "user_provider": ("provider_id", "name", "is_enabled"),
    "user_model": (
        *("id", "provider_id", "model_id", "preset_model_id", "name", "group", "capabilities", "supports_streaming"),
    ),
}


class CatalogProblem(Exception):
    """A catalog that cannot be read. The message gives the reason."""

    @property
    def reason(self) -> str:
        """The reason for a sentence that already says that the catalog cannot be read."""
        return str(self if self.__cause__ is None else self.__cause__)


class StoredCatalog(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a catalog in their order. None means that the table does not exist."""

    bases: list[Row] = msgspec.field(default_factory=list)
    #: By base id.
    items: dict[Any, list[Row]] | None = None
    providers: list[Row] | None = None
    models: list[Row] | None = None

    @property
    def rows_by_base(self) -> dict[str, Row]:
        """The rows of bases by :func:`base_id_text`, in order."""
        return {base_id_text(row): row for row in self.bases}

    @property
    def model_ids(self) -> set[Any]:
        """Ids of the models; empty without their table."""
        return {row.get("id") for row in self.models or ()}

    @property
    def provider_ids(self) -> set[Any]:
        """Ids of the providers; empty without their table."""
        return {row.get("provider_id") for row in self.providers or ()}

    def items_of(self, base: str) -> list[Row]:
        """Return the items of the base with this id; empty if it has none, or without their table."""
        return (self.items or {}).get(base, [])


def base_id_text(row: Row) -> str:
    """Return the id in a base's row as text, as findings name it."""
    return str(row.get("id"))


def read_catalog(path: Path, *, data: bool = True) -> StoredCatalog:
    """Read all bases, items, models and providers of a catalog. Invalid UTF-8 is decoded leniently.

    Args:
        path: a SQLite file. No file is created beside it.
        data: also read the ``data`` column of items.

    Raises:
        CatalogProblem: the file is missing, not SQLite, damaged, or has no table of bases.
    """
    with _convert_read_errors(), sqlite.open_readonly(path) as db:
        bases, items, providers, models = (_rows(db, table, data=data) for table in _COLUMNS)
    if bases is None:
        raise CatalogProblem(tr("has no table `knowledge_base`"))
    by_base: dict[Any, list[Row]] = {}
    for item in items or ():
        by_base.setdefault(item.get("base_id"), []).append(item)
    return StoredCatalog(bases=bases, items=None if items is None else by_base, providers=providers, models=models)


def _rows(db: apsw.Connection, table: str, *, data: bool) -> list[Row] | None:
    """Read the known columns of a table, all rows in order; None if there is no such table.

    ``data``: also read the column ``data``.
    """
    there = {str(row[1]).lower() for row in db.execute(f"PRAGMA table_info('{table}')")}
    if not there:
        return None
    columns = [name for name in _COLUMNS[table] if name in there and (data or name != "data")]
    if not columns:
        return []
    source = f"{table} NOT INDEXED ORDER BY rowid"
    try:
        rows = db.execute(f"SELECT {', '.join(map(untrusted_sqlite.quote_name, columns))} FROM {source}").fetchall()
    except UnicodeDecodeError:
        rows = list(untrusted_sqlite.read_lenient_rows(db, columns, source))
    return [dict(zip(columns, row, strict=True)) for row in rows]


# Look up single rows: a catalog may have very many items that contain whole notes. Invalid UTF-8 is decoded by
# :func:`regraft.text.lenient_text`.


_BASE_COLUMNS = (
    *("id", "name", "status", "error", "embedding_model_id", "dimensions", "rerank_model_id", "threshold"),
    "document_count",
)
_ITEM_COLUMNS = ("id", "base_id", "type", "status", "data")


class CatalogLookup:
    """Reads rows of an open catalog. Every method raises :class:`CatalogProblem` if the catalog is damaged."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._base_columns = self._existing_columns("knowledge_base", _BASE_COLUMNS)
        self._item_columns = self._existing_columns("knowledge_item", _ITEM_COLUMNS)
        if "id" not in self._base_columns:
            raise CatalogProblem(tr("has no table `knowledge_base`"))

    def bases(self) -> list[Row]:
        """Read all bases, ordered by row id."""
        return self._rows("knowledge_base", self._base_columns, "ORDER BY rowid", ())

    def items(self, ids: Iterable[str]) -> dict[str, Row] | None:
        """Read the items with these ids, by id; unknown ids are omitted. None if there is no table of items."""
        if "id" not in self._item_columns:
            return None
        wanted = json.dumps(sorted(set(ids)))
        condition = "WHERE id IN (SELECT value FROM json_each(?))"
        return {str(row["id"]): row for row in self._rows("knowledge_item", self._item_columns, condition, (wanted,))}

    def _existing_columns(self, table: str, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of the given columns that a table has."""
        with _convert_read_errors():
            there = {str(row[1]).lower() for row in self._db.execute(f"PRAGMA table_info('{table}')")}
        return tuple(name for name in columns if name in there)

    def _rows(self, table: str, columns: tuple[str, ...], clauses: str, values: tuple[str, ...]) -> list[Row]:
        """Read columns of a table; ``clauses`` is the SQL after its name, ``values`` are the parameters."""
        read = ", ".join(
            f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) ELSE {name} END" for name in columns
        )
        with _convert_read_errors():
            rows = self._db.execute(f"SELECT {read} FROM {table} {clauses}", values).fetchall()
        plain = ((lenient_text(value) if isinstance(value, bytes) else value for value in row) for row in rows)
        return [dict(zip(columns, row, strict=True)) for row in plain]


@contextmanager
def open_catalog(path: Path) -> Iterator[CatalogLookup]:
    """Open a catalog for lookups. No file is created beside it.

    Raises:
        CatalogProblem: the file is missing, not SQLite, damaged, or has no table of bases.
    """
    with ExitStack() as stack:
        with _convert_read_errors():
            db = stack.enter_context(sqlite.open_readonly(path))
        yield CatalogLookup(db)


@contextmanager
def _convert_read_errors() -> Iterator[None]:
    """Context that converts errors of reading the catalog into CatalogProblem."""
    try:
        yield
    except (apsw.Error, OSError, UnicodeDecodeError) as error:
        if sqlite.is_write_failure(error):
            raise
        raise CatalogProblem(tr("cannot be read: {error}", error=error)) from error


# The ``data`` column of items (``docs/formats/catalog.md``, "`data`").


#: For each item type: required text fields and optional text fields of ``data``.
DATA_FIELDS = {
    "file": (("source", "relativePath"), ("indexedRelativePath",)),
    "url": (("source", "url"), ("relativePath",)),
    "note": (("source", "content"), ("relativePath",)),
    "directory": (("source",), ("relativePath",)),
}
#: Fields of ``data`` that name files below ``raw/``.
PATH_FIELDS = ("relativePath", "indexedRelativePath")


def parse_item_data(item: Row) -> dict[str, Any]:
    """Parse the JSON in the ``data`` column of an item's row; empty if it is not an object."""
    return json_text.load_object(item.get("data"))


def dump_item_data(data: Mapping[str, Any]) -> str:
    """Encode an item's ``data`` as JSON like the application does; unpaired surrogates are escaped."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(data, separators=(",", ":"))
    return text


def list_paths(data: Mapping[str, Any]) -> list[str]:
    """List the paths below ``raw/`` that the parsed ``data`` of an item names: of its file, and of a processed copy."""
    return [data[name] for name in PATH_FIELDS if isinstance(data.get(name), str)]


def relative_path(item: Row) -> str | None:
    """Return the path below ``raw/`` of an item's file; None if its ``data`` has none."""
    path = parse_item_data(item).get("relativePath")
    return path if isinstance(path, str) else None


def list_unknown_fields(item: Row) -> list[str]:
    """List the fields of an item's ``data`` that its type does not define. They are always preserved."""
    needed, more = DATA_FIELDS.get(str(item.get("type")), ((), ()))
    return sorted(parse_item_data(item).keys() - {*needed, *more})


def find_data_problem(item: Row) -> str | None:
    """Describe why the application cannot read an item's ``data``; None if it can."""
    kind = item.get("type")
    if not isinstance(kind, str) or kind not in DATA_FIELDS or "data" not in item:
        return None  # an unknown type is reported elsewhere
    data = parse_item_data(item)
    if not data:
        return tr("its data is not a JSON object")
    needed, more = DATA_FIELDS[kind]
    wrong = [name for name in needed if not isinstance(data.get(name), str)]
    wrong += [name for name in more if not isinstance(data.get(name, ""), str)]
    # Only the content of a note may be empty; a path or URL must not be blank.
    wrong += [name for name in needed if name not in ("content", *wrong) and is_blank(data[name])]
    if wrong:
        return tr("its data lacks a text for {wrong}", wrong=join_list(wrong))
    unknown = sorted(data.keys() - {*needed, *more})
    if unknown:
        return tr(
            "its data has {unknown_fields}, which items of type {kind} do not have",
            unknown_fields=join_list(unknown),
            kind=kind,
        )
    if kind == "note" and utf16_len(data["content"].encode("utf-8", "replace").decode()) > MAX_NOTE_UNITS:
        return tr(
            "its content is longer than {max_note_units:,} characters (UTF-16 units; emoji counted as two)",
            max_note_units=MAX_NOTE_UNITS,
        )
    return None


def find_data_damage(item: Row) -> str | None:
    """Describe why no release of the application can read an item's ``data``; None if one may.

    Unlike in :func:`find_data_problem`, unknown fields are accepted, which later releases may write.
    """
    more = list_unknown_fields(item)
    known = {name: value for name, value in parse_item_data(item).items() if name not in more}
    return find_data_problem({**item, "data": json.dumps(known)} if more else item)


# Names of items as the application displays them (``docs/search.md``, "Names of items").


_SEPARATORS = re.compile(r"[/\\]+")
_LINE_ENDS = re.compile("\r\n|[\n\r\u2028\u2029]")


def item_name(kind: object, data: Mapping[str, Any]) -> str | None:
    """Return the displayed name of an item, or None.

    A URL is named by its address; a note by its file name without ``.md``, else the first line of its source or
    content; all other items by the last part of their path.

    Args:
        kind: the item's type.
        data: the parsed ``data`` column.
    """
    names: tuple[str, ...]
    source, path = data.get("source"), data.get("relativePath")
    match kind:
        case "url":
            names = (_trimmed_text(data.get("url")), _trimmed_text(source))
        case "note":
            names = (_last_part(path).removesuffix(".md"), _first_line(source), _first_line(data.get("content")))
        case _:
            names = (_last_part(path), _last_part(source))
    return next((replace_surrogates(name) for name in names if name), None)


def _trimmed_text(value: object) -> str:
    """Return a text without blanks at its ends; empty if the value is not a text."""
    return trim(value) if isinstance(value, str) else ""


def _last_part(path: object) -> str:
    r"""Return the last part of a path with ``/`` or ``\`` separators, or ""."""
    parts = _SEPARATORS.split(path) if isinstance(path, str) else []
    return next((part for part in reversed(parts) if not is_blank(part)), "")


def _first_line(value: object) -> str:
    """Return the first line of a text that is not blank, or ""."""
    lines = _LINE_ENDS.split(value) if isinstance(value, str) else []
    return next(filter(None, map(trim, lines)), "")
