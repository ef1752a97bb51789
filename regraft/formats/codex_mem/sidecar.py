"""The sidecar of a codex-mem database: an SQLite file with the vectors of its notes (``docs/formats/codex_mem.md``).

The layout is regraft's own. All content can be rebuilt from the notes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft.disk import sqlite
from regraft.language import tr
from regraft.stores.systems import SidecarProblem

#: Version of the layout; other versions are refused.
VERSION = 1
#: Identifies the file for other programs.
APPLICATION_ID = 0x72674358
TABLE = "embedding"
#: Rows read per query. A query that stays open would block writers.
_AT_ONCE = 500

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


class SidecarUnreadable(SidecarProblem):
    """The sidecar is damaged, or permission is denied."""


class SidecarOfOtherVersion(SidecarProblem):
    """The sidecar has another layout version; ``version`` is None if the stored one is not an integer."""

    def __init__(self, version: object) -> None:
        super().__init__(
            tr(
                "its layout has version {version}; this regraft supports version {version2}",
                version=version,
                version2=VERSION,
            )
        )
        self.version = version if isinstance(version, int) else None


class SidecarMeta(msgspec.Struct, frozen=True):
    """The identity row of a sidecar. ``dimensions`` is None before the first vector is written. Times are RFC 3339."""

    version: int
    model_id: str
    dimensions: int | None
    state: str
    created_at: str
    backfilled_at: str | None
    rebuilt_at: str | None

    @property
    def is_rebuilding(self) -> bool:
        """Whether a rebuild of the vectors was started and not completed."""
        return self.state == "rebuilding"


def create_sidecar(path: Path, model_id: str, dimensions: int | None, now: str, *, rebuilding: bool = False) -> None:
    """Create an empty sidecar, a file for the vectors of a database's notes.

    Args:
        path: path that does not exist yet.
        model_id: model of all vectors.
        dimensions: dimensions of each vector; None if unknown before the first one.
        now: current time, RFC 3339.
        rebuilding: whether a rebuild fills it.
    """
    with sqlite.open_writable(path, create=True) as db, sqlite.transaction(db):
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for statement in _TABLES:
            db.execute(statement)
        db.execute(
            "INSERT INTO meta VALUES (1, ?, ?, ?, ?, ?, NULL, NULL)",
            (VERSION, model_id, dimensions, "rebuilding" if rebuilding else "ready", now),
        )


def read_meta(db: apsw.Connection) -> SidecarMeta:
    """Read and verify the identity row of an open sidecar.

    Raises:
        SidecarProblem: the file is not a sidecar, or has another version.
    """
    if db.execute("PRAGMA application_id").get != APPLICATION_ID:
        raise SidecarProblem(tr("it is not a vector file written by regraft"))
    try:
        version: Any = db.execute("SELECT version FROM meta").get
    except apsw.SQLError as error:
        raise SidecarProblem(tr("it has no identity row ({error})", error=error)) from error
    if version != VERSION:
        raise SidecarOfOtherVersion(version)
    _check_schema(db)
    try:
        row: Any = db.execute(
            "SELECT version, model_id, dimensions, state, created_at, backfilled_at, rebuilt_at FROM meta"
        ).fetchone()
        db.execute(
            f"SELECT note_id, content_hash, content_version, vector, embedded_at FROM {TABLE} LIMIT 0"
        ).fetchall()
    except apsw.SQLError as error:
        raise SidecarProblem(tr("its layout is incomplete ({error})", error=error)) from error
    meta = SidecarMeta(*row)
    _check_meta_values(meta)
    return meta


def _check_meta_values(meta: SidecarMeta) -> None:
    """Raise SidecarProblem if the identity row has values that regraft never writes."""
    is_length = meta.dimensions is None or (isinstance(meta.dimensions, int) and meta.dimensions > 0)
    if not is_length or not isinstance(meta.model_id, str):
        raise SidecarProblem(tr("its identity row has no valid model or dimensions"))
    times = (meta.backfilled_at, meta.rebuilt_at)
    is_dated = isinstance(meta.created_at, str) and all(time is None or isinstance(time, str) for time in times)
    if meta.state not in ("ready", "rebuilding") or not is_dated:
        raise SidecarProblem(tr("its identity row has values that regraft never writes"))


def _check_schema(db: apsw.Connection) -> None:
    """Refuse a sidecar with a table, view or trigger that regraft does not create: some of them would run."""
    wanted = {" ".join(statement.split()) for statement in _TABLES}
    for kind, name, sql in db.execute("SELECT type, name, sql FROM sqlite_schema"):
        if sql is not None and " ".join(str(sql).split()) not in wanted:
            raise SidecarProblem(tr("it has a {kind} {name!r} that regraft does not create", kind=kind, name=name))


@contextmanager
def open_sidecar(path: Path) -> Iterator[tuple[apsw.Connection, SidecarMeta]]:
    """Open a sidecar for reading, with sqlite-vec, leaving no files behind; yield it with its identity row.

    Raises:
        SidecarUnreadable: the file cannot be read.
        SidecarProblem: the file is not a sidecar, or has another version.
        FileNotFoundError: the file does not exist.
    """
    if not path.is_file():
        raise FileNotFoundError(path)
    with ExitStack() as stack:
        try:
            db = stack.enter_context(sqlite.open_readonly(path, vectors=True, beside_writers=True))
            meta = read_meta(db)
        except (apsw.Error, OSError, UnicodeDecodeError) as error:
            raise SidecarUnreadable(tr("it cannot be read ({error})", error=error)) from error
        yield db, meta


def is_readable(db: apsw.Connection) -> bool:
    """Whether every page of an open sidecar can be read."""
    try:
        return bool(db.execute("PRAGMA quick_check(1)").get == "ok")
    except (apsw.Error, UnicodeDecodeError):
        return False


# --- rows ----------------------------------------------------------------------------------------------------------


class StoredVectorFlaw(StrEnum):
    """Why a vector cannot be used for search."""

    LENGTH = "length"
    NON_FINITE = "non-finite"
    ZERO = "zero"


class StoredVector(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of a note's vector; ``flaw`` is None for a valid vector."""

    note_id: str
    content_hash: str
    content_version: int
    embedded_at: str
    flaw: StoredVectorFlaw | None


#: The norm is NULL for a vector with NaN, and infinite if its square exceeds single precision.
_HELD = f"""SELECT note_id, content_hash, content_version, embedded_at,
       CASE WHEN typeof(vector) = 'blob' AND length(vector) = :size AND :size > 0
            THEN vec_distance_l2(vector, zeroblob(:size)) END AS norm,
       typeof(vector) = 'blob' AND length(vector) = :size AND :size > 0 AS fits
  FROM {TABLE}"""


class SidecarVectors:
    """The vectors of an open sidecar; every call reads the current content.

    Args:
        db: the sidecar, open for reading or writing, with sqlite-vec.
        meta: its identity row.
    """

    def __init__(self, db: apsw.Connection, meta: SidecarMeta) -> None:
        self.db = db
        self.meta = meta
        #: Size of a vector in bytes; 0 if the dimensions are not known yet.
        self.size = 4 * (meta.dimensions or 0)

    def read_vector(self, note_id: str) -> StoredVector | None:
        """Return the record of a note's vector, without the vector itself; None if the note has none.

        Raises:
            SidecarUnreadable: the file is damaged.
        """
        rows = self._query_rows(f"{_HELD} WHERE note_id = :note", note=note_id)
        return self._to_stored_vector(rows[0]) if rows else None

    def bytes_of(self, note_id: str) -> bytes:
        """Return the stored bytes of a note's vector; empty if it has none.

        Raises:
            SidecarUnreadable: the file is damaged.
        """
        rows = self._query_rows(f"SELECT CAST(vector AS BLOB) FROM {TABLE} WHERE note_id = :note", note=note_id)
        return bytes(rows[0][0]) if rows else b""

    def iterate(self) -> Iterator[StoredVector]:
        """Yield the records of all vectors, without the vectors themselves, in byte order of the note ids.

        Raises:
            SidecarUnreadable: the file is damaged.
        """
        after: Any = ""
        while rows := self._query_rows(
            f"{_HELD} WHERE note_id > :after ORDER BY note_id LIMIT {_AT_ONCE}", after=after
        ):
            yield from map(self._to_stored_vector, rows)
            after = rows[-1][0]

    def distances(self, note_ids: Sequence[str], vector: bytes) -> dict[str, float]:
        """Return the cosine distance of notes' vectors to another vector; notes without a valid distance are omitted.

        Raises:
            SidecarUnreadable: the file is damaged.
        """
        query = f"""SELECT note_id, vec_distance_cosine(vector, :vector) FROM {TABLE}
             WHERE note_id IN (SELECT value FROM json_each(:notes))
               AND typeof(vector) = 'blob' AND length(vector) = length(:vector)"""
        rows = self._query_rows(query, notes=msgspec.json.encode(note_ids).decode(), vector=vector)
        return {note_id: distance for note_id, distance in rows if distance is not None}

    def count(self) -> int:
        """Return the number of vectors.

        Raises:
            SidecarUnreadable: the file is damaged.
        """
        return int(self._query_rows(f"SELECT count(*) FROM {TABLE}")[0][0])

    def count_fitting(self, content_version: int) -> tuple[int, int]:
        """Count the vectors that have the sidecar's dimensions, and those that have this content version.

        Raises:
            SidecarUnreadable: the file is damaged.
        """
        query = f"""SELECT total(typeof(vector) = 'blob' AND length(vector) = :size AND :size > 0),
                           total(content_version = :version) FROM {TABLE}"""
        [(of_size, of_version)] = self._query_rows(query, version=content_version)
        return int(of_size), int(of_version)

    def _query_rows(self, query: str, **values: Any) -> list[Any]:
        """Return the rows of a query, whose parameters are ``size`` (of a vector) and these values.

        Raises SidecarUnreadable if the file is damaged.
        """
        try:
            return self.db.execute(query, {"size": self.size, **values}).fetchall()
        except apsw.InterruptError:
            raise  # the caller's own interrupt
        except (apsw.Error, UnicodeDecodeError) as error:
            raise SidecarUnreadable(tr("it cannot be read ({error})", error=error)) from error

    def _to_stored_vector(self, row: Any) -> StoredVector:
        """Convert a row of :data:`_HELD`, and determine the flaw of its vector."""
        note_id, content_hash, version, embedded_at, norm, fits = row
        flaw = None
        if not fits:
            flaw = StoredVectorFlaw.LENGTH
        elif norm is None or not math.isfinite(norm):
            flaw = StoredVectorFlaw.NON_FINITE
        elif norm <= 0:
            flaw = StoredVectorFlaw.ZERO
        return StoredVector(
            note_id=note_id,
            content_hash=content_hash,
            content_version=version,
            embedded_at=embedded_at,
            flaw=flaw,
        )
