"""Writes the entries of a collection as a table for migration and export (``docs/chroma.md``, "Migrating").

A row has the document and the vector as Chroma returns it. A vector that is missing, or not proven to belong to its
entry, is NULL.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft.disk import scratch, sqlite
from regraft.errors import NotEnoughSpace
from regraft.formats.chroma import database
from regraft.formats.chroma.collection import PROVEN, CollectionState, open_collection
from regraft.formats.chroma.database import ChromaCollection, ChromaEntry, ChromaProblem
from regraft.formats.vector_table import VectorTable
from regraft.language import tr
from regraft.text import format_bytes

#: Metadata keys that name where a document comes from, in order of preference.
_SOURCES = ("source", "name", "source_file", "file_name", "filename", "path", "url", "title")
#: Layout of the table that :func:`write_row_table` writes. Each entry is a loader of one row.
TABLE = VectorTable(
    name="entries",
    loader=(("id", "id"),),
    source=(("source", "source"),),
    row_id=(("id", "id"),),
    body="document",
    vector="vector",
    needed=("id", "document", "vector"),
    locator="locator",
)
_COLUMNS = "id TEXT, source TEXT, document TEXT, locator TEXT, vector BLOB, is_unproven INTEGER"
_BATCH = 500


class RowTable(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of a collection in a temporary file."""

    path: Path
    of: ChromaCollection
    dimension: int | None
    rows: int
    #: Entries whose vector is there, but not proven to be theirs.
    unproven: int
    #: Vectors whose ids have no entry.
    orphans: int


@contextmanager
def write_row_table(root: Path, key: str, work: Path | None) -> Iterator[RowTable]:
    """Write the entries of a collection to a temporary file, which is deleted at the end.

    Args:
        root: the folder of the database.
        key: id of the collection.
        work: folder of the temporary file (default: the system's).

    Raises:
        ChromaProblem: the database, or the row of the collection, is damaged or missing.
        NotEnoughSpace: not enough free disk space.
        apsw.Error, OSError: a file cannot be read or written.
    """
    with scratch.temporary_folder(work) as folder, database.open_chroma(root / database.FILE) as db:
        of = next((one for one in database.list_collections(db) if one.id == key), None)
        if of is None:
            raise ChromaProblem(tr("it has no collection {id}", id=key))
        with open_collection(db, of, root) as state:
            needed = (root / database.FILE).stat().st_size + state.count("vector") * 4 * (state.dimension or 0)
            free = shutil.disk_usage(folder).free
            if free < needed:
                raise NotEnoughSpace(path=folder, needed=format_bytes(needed), free=format_bytes(free))
            path = folder / "entries.sqlite"
            with sqlite.open_writable(path, create=True) as table:
                # The file is temporary, so it needs no durability.
                table.execute("PRAGMA journal_mode = OFF").fetchall()
                table.execute("PRAGMA synchronous = OFF")
                table.execute(f"CREATE TABLE entries ({_COLUMNS})")
                with sqlite.transaction(table):
                    rows, unproven = _write(db, state, table)
            yield RowTable(
                path=path,
                of=of,
                dimension=state.dimension,
                rows=rows,
                unproven=unproven,
                orphans=state.count_orphans(),
            )


def _write(db: apsw.Connection, state: CollectionState, table: apsw.Connection) -> tuple[int, int]:
    """Write the entries of a collection to ``table``; return the number of rows, and of unproven vectors.

    A vector that is not proven to belong to its entry is left out.
    """
    rows = unproven = 0
    waiting: list[tuple[Any, ...]] = []
    for entry in database.iterate_entries(db, state.of):
        found = state.vector_of(entry.id)
        is_unproven = found is not None and found[0] not in PROVEN
        vector = None if found is None or is_unproven else found[1] or None
        source = source_of(entry.metadata, entry.id)
        waiting.append((entry.id, source, entry.document, make_locator(entry), vector, is_unproven))
        rows += 1
        unproven += is_unproven
        if len(waiting) == _BATCH:
            _insert(table, waiting)
    _insert(table, waiting)
    return rows, unproven


def make_locator(entry: ChromaEntry) -> str:
    """Return the locator of the unit that an entry becomes: the entry's fields as JSON.

    See ``docs/formats/parquet.md``, "Entries of Chroma".
    """
    locator: dict[str, Any] = {"chroma_id": entry.id, "metadata": entry.metadata or None}
    if entry.document is None:
        # A unit always has a text.
        locator["has_document"] = False
    return json.dumps(locator, ensure_ascii=False)


def _insert(table: apsw.Connection, waiting: list[tuple[Any, ...]]) -> None:
    """Insert the waiting rows and empty the list."""
    table.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", waiting)
    waiting.clear()


def source_of(metadata: dict[str, Any], entry_id: str) -> str:
    """Return where a document comes from according to its entry's metadata, else the entry's id."""
    values = (metadata.get(name) for name in _SOURCES)
    return next((value for value in values if isinstance(value, str) and value.strip()), entry_id)
