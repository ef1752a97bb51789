"""Damage that is done to a library on disk: by statements, by bytes, by what happens to files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import apsw

from regraft import guarding, sqlite
from regraft.formats.cherry_v2.layout import (
    CATALOG_FILE,
    INDEX_FILE,
    KNOWLEDGE_FOLDER,
    LIVE_DATABASE,
    PROFILE_DATABASE,
    RAW_FOLDER,
)
from regraft.pending import RESTORE_JOURNAL

#: The base that some damage brings in, of which the library knew nothing.
STRAY_BASE = "aaaaaaaa-0000-4000-8000-000000000001"
#: When a file was last changed that is no longer young (s).
_OLD = 1_600_000_000

Choice = TypeVar("Choice")


@dataclass(frozen=True)
class Target:
    """Where damage is done: a base of a library, and which of several rows or files is hit."""

    library: Path
    base_id: str
    choice: int = 0

    @property
    def index(self) -> Path:
        """Return the base's index file."""
        return self.folder(self.base_id) / INDEX_FILE

    @property
    def raw(self) -> Path:
        """Return the folder of the base's raw files."""
        return self.folder(self.base_id) / RAW_FOLDER

    @property
    def catalog(self) -> Path:
        """Return the library's catalog."""
        return self.library / CATALOG_FILE

    def folder(self, base_id: str) -> Path:
        """Return the folder of any base."""
        return self.library / KNOWLEDGE_FOLDER / base_id

    def chosen(self, options: Sequence[Choice]) -> Choice:
        """Return the one that is hit.

        Raises:
            ValueError: there is none.
        """
        if not options:
            raise ValueError(f"base {self.base_id} has nothing for this damage to hit")
        return options[self.choice % len(options)]


#: Does the damage, and returns what it is about where that is sure: an id, a hash, a path below ``raw/``.
Plant = Callable[[Target], str | None]


@contextmanager
def unchecked(path: Path, *, create: bool = False) -> Iterator[apsw.Connection]:
    """Open a file for writing without foreign keys and checks, as a program that knows neither would."""
    with sqlite.writing(path, create=create) as db:
        guarding.unguard(db)
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        yield db


def in_index(*statements: str, rows: str = "") -> Plant:
    """Return what runs statements in the base's index.

    Args:
        statements: ``:base`` in them is the base's id, ``:row`` the number of the row that is hit.
        rows: a query for the rows that can be hit, each with what a finding calls it, or NULL.
    """
    return lambda target: _run(target, target.index, statements, rows)


def in_catalog(*statements: str, rows: str = "") -> Plant:
    """Return what runs statements in the catalog; otherwise as :func:`in_index`."""
    return lambda target: _run(target, target.catalog, statements, rows)


def _run(target: Target, path: Path, statements: Sequence[str], rows: str) -> str | None:
    values: dict[str, apsw.SQLiteValue] = {"base": target.base_id}
    subject = None
    with unchecked(path) as db, sqlite.transaction(db):
        if rows:
            values["row"], subject = target.chosen(db.execute(rows, values).fetchall())
        for statement in statements:
            db.execute(statement, values)
    return None if subject is None else str(subject)


def in_schema(old: str, new: str) -> Plant:
    """Return what changes the wording of the index's schema, and with it what it does."""

    def plant(target: Target) -> None:
        with unchecked(target.index) as db:
            db.execute("PRAGMA writable_schema = ON")
            db.execute(
                "UPDATE sqlite_schema SET sql = replace(sql, ?1, ?2) WHERE instr(sql, ?1) AND type = 'table'",
                (old, new),
            )
            db.execute("PRAGMA writable_schema = RESET")

    return plant


def in_vector(change: Callable[[bytes], bytes]) -> Plant:
    """Return what changes the bytes of one vector."""

    def plant(target: Target) -> str:
        with unchecked(target.index) as db:
            found = db.execute("SELECT rowid, embedding_text_hash, vector_blob FROM embedding").fetchall()
            row, key, vector = target.chosen(found)
            assert isinstance(vector, bytes)
            db.execute("UPDATE embedding SET vector_blob = ? WHERE rowid = ?", (change(vector), row))
        return str(key)

    return plant


def in_bytes(change: Callable[[bytes], bytes]) -> Plant:
    """Return what changes the bytes of the base's index file."""

    def plant(target: Target) -> None:
        target.index.write_bytes(change(target.index.read_bytes()))

    return plant


def no_catalog(target: Target) -> None:
    """Put something else in the place of the catalog."""
    target.catalog.write_bytes(b"x")


def stale_copy(target: Target) -> str:
    """Let the catalog be a profile's, with the database of a beta beside it."""
    (target.library / LIVE_DATABASE).parent.mkdir()
    (target.library / PROFILE_DATABASE).write_bytes(target.catalog.read_bytes())
    target.catalog.rename(target.library / LIVE_DATABASE)
    return PROFILE_DATABASE


def staged_restore(target: Target) -> None:
    """Leave the record of a restore that waits for the application's next start."""
    journal = target.library / RESTORE_JOURNAL
    journal.parent.mkdir()
    journal.write_text('{"version": 1, "state": "staged"}', encoding="utf-8")


def no_index(target: Target) -> None:
    """Remove the base's index file."""
    target.index.unlink()


def hot_journal(target: Target) -> None:
    """Leave the index and its journal as a power cut leaves them, in the midst of a transaction."""
    path = target.index
    journal = path.with_name(f"{path.name}-journal")
    with sqlite.writing(path) as db:
        db.execute("PRAGMA cache_size = 1")
        db.execute("BEGIN")
        db.execute("UPDATE meta SET updated_at = updated_at + 1")
        db.execute("PRAGMA cache_spill = 1")
        db.execute("CREATE TABLE filler (x)")
        for _ in range(100):
            db.execute("INSERT INTO filler VALUES (zeroblob(3000))")
        db.execute("DELETE FROM filler")
        cut_off = {place: place.read_bytes() for place in (path, journal)}
        db.execute("ROLLBACK")
    for place, content in cut_off.items():
        place.write_bytes(content)


def preview_store(target: Target) -> str:
    """Add a base that is a store of a preview build."""
    path = target.folder(STRAY_BASE) / INDEX_FILE
    path.parent.mkdir(parents=True)
    with unchecked(path, create=True) as db:
        db.execute(
            "CREATE TABLE libsql_vectorstores_embedding (id TEXT PRIMARY KEY, external_id TEXT, collection TEXT,"
            " document TEXT, metadata TEXT, embeddings F32_BLOB(4))"
        )
        db.execute("INSERT INTO libsql_vectorstores_embedding VALUES ('r', 'i', 'c', 'text', '{}', zeroblob(16))")
    return path.relative_to(target.library).as_posix()


def stray_folder(target: Target) -> str:
    """Rename the base's folder, so that it is nobody's."""
    target.folder(target.base_id).rename(target.folder(STRAY_BASE))
    return STRAY_BASE


def vector_file(target: Target) -> str:
    """Leave a vector file of v1 beside the bases."""
    name = "kb"
    with unchecked(target.folder(name), create=True) as db:
        db.execute("CREATE TABLE vectors (id)")
    return name


def lost_file(target: Target) -> str:
    """Remove the raw file of a material; a path below a folder may be a virtual one, which has no file by design."""
    with sqlite.reading(target.index) as db:
        paths = [str(path) for (path,) in db.execute("SELECT relative_path FROM material ORDER BY rowid")]
    path = target.chosen([path for path in paths if "/" not in path and (target.raw / path).is_file()])
    (target.raw / path).unlink()
    return path


def changed_snapshot(target: Target) -> str:
    """Add to the snapshot of a url or note."""
    with sqlite.reading(target.catalog) as db:
        items = db.execute(
            "SELECT id FROM knowledge_item WHERE base_id = ? AND type IN ('url', 'note')", (target.base_id,)
        )
        known = {str(item) for (item,) in items}
    with sqlite.reading(target.index) as db:
        paths = [
            str(path)
            for item, path in db.execute("SELECT material_id, relative_path FROM material ORDER BY rowid")
            if item in known and "/" not in str(path)
        ]
    path = target.chosen(paths)
    snapshot = target.raw / path
    snapshot.write_bytes(snapshot.read_bytes() + b"more")
    return path


def stray_file(target: Target) -> str:
    """Leave an old file in ``raw/`` that is nobody's."""
    path = target.raw / "stray.bin"
    path.write_bytes(b"stray")
    os.utime(path, (_OLD, _OLD))
    return path.name
