"""The vectors of a codex-mem database's notes: one SQLite file beside it (``docs/formats/codex_mem.md``, "Sidecar").

The layout is regraft's own. Nothing in it cannot be made again from the notes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from regraft import sqlite

#: The layout's version: a file of another one is not read.
VERSION = 1
#: In the file's header, so that other programs can tell what it is.
APPLICATION_ID = 0x72674358
TABLE = "embedding"

_TABLES = (
    """CREATE TABLE meta (
         id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
         version INTEGER NOT NULL,
         model_id TEXT NOT NULL,
         dimensions INTEGER CHECK (dimensions > 0),
         state TEXT NOT NULL CHECK (state IN ('ready', 'rebuilding')),
         created_at TEXT NOT NULL,
         backfilled_at TEXT,
         rebuilt_at TEXT)""",
    f"""CREATE TABLE {TABLE} (
         note_id TEXT NOT NULL PRIMARY KEY,
         content_hash TEXT NOT NULL,
         content_version INTEGER NOT NULL,
         vector BLOB NOT NULL,
         embedded_at TEXT NOT NULL)""",
    f"CREATE INDEX {TABLE}_hash ON {TABLE} (content_hash)",
)


class SidecarProblem(ValueError):
    """A file that cannot be used as a sidecar; the message is what to say of it."""


@dataclass(frozen=True)
class Meta:
    """What a sidecar says of itself; ``dimensions`` None: nothing was written yet. Times are RFC 3339."""

    version: int
    model_id: str
    dimensions: int | None
    state: str
    created_at: str
    backfilled_at: str | None
    rebuilt_at: str | None

    @property
    def is_rebuilding(self) -> bool:
        """Tell whether a rebuild was begun and is not at its end."""
        return self.state == "rebuilding"


def create(path: Path, model_id: str, dimensions: int | None, now: str, *, rebuilding: bool = False) -> None:
    """Make an empty sidecar.

    Args:
        path: where nothing is yet.
        model_id: of all its vectors.
        dimensions: of each; None where nobody knows before the first one.
        now: the time, RFC 3339.
        rebuilding: whether it takes the place of another one.
    """
    with sqlite.writing(path, create=True) as db, sqlite.transaction(db):
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for statement in _TABLES:
            db.execute(statement)
        db.execute(
            "INSERT INTO meta VALUES (1, ?, ?, ?, ?, ?, NULL, NULL)",
            (VERSION, model_id, dimensions, "rebuilding" if rebuilding else "ready", now),
        )


def read_meta(db: apsw.Connection) -> Meta:
    """Return what an open sidecar says of itself.

    Raises:
        SidecarProblem: it is none, or of another version.
    """
    if db.execute("PRAGMA application_id").get != APPLICATION_ID:
        raise SidecarProblem("it is not a file of vectors that regraft wrote")
    try:
        version: Any = db.execute("SELECT version FROM meta").get
    except apsw.SQLError as error:
        raise SidecarProblem(f"it has no identity row ({error})") from error
    if version != VERSION:
        raise SidecarProblem(f"its layout has version {version}, and this regraft reads version {VERSION}")
    try:
        row: Any = db.execute(
            "SELECT version, model_id, dimensions, state, created_at, backfilled_at, rebuilt_at FROM meta"
        ).fetchone()
        db.execute(
            f"SELECT note_id, content_hash, content_version, vector, embedded_at FROM {TABLE} LIMIT 0"
        ).fetchall()
    except apsw.SQLError as error:
        raise SidecarProblem(f"a part of its layout is missing ({error})") from error
    return Meta(*row)


@contextmanager
def reading(path: Path) -> Iterator[tuple[apsw.Connection, Meta]]:
    """Open a sidecar for reading without a trace, with sqlite-vec.

    Raises:
        SidecarProblem: it cannot be used; the message says why.
        FileNotFoundError: there is none.
    """
    if not path.is_file():
        raise FileNotFoundError(path)
    with ExitStack() as stack:
        try:
            db = stack.enter_context(sqlite.reading(path, vectors=True, beside_writers=True))
            meta = read_meta(db)
        except (apsw.NotADBError, apsw.CorruptError) as error:
            raise SidecarProblem(f"it is damaged ({error})") from error
        yield db, meta
