"""The vectors of a codex-mem database's notes: one SQLite file beside it (``docs/formats/codex_mem.md``, "Sidecar").

The layout is regraft's own. Nothing in it cannot be made again from the notes.
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

#: The layout's version: a file of another one is not read.
VERSION = 1
#: In the file's header, so that other programs can tell what it is.
APPLICATION_ID = 0x72674358
TABLE = "embedding"
#: How many rows are read at once: a query that is still open would keep others from writing.
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
    """A sidecar that is damaged, or that may not be read."""


class SidecarOfOtherVersion(SidecarProblem):
    """A sidecar of another layout; ``version`` is what it states, None where that is no number."""

    def __init__(self, version: object) -> None:
        super().__init__(
            tr(
                "its layout has version {version}, and this regraft reads version {version2}",
                version=version,
                version2=VERSION,
            )
        )
        self.version = version if isinstance(version, int) else None


class Meta(msgspec.Struct, frozen=True):
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
    with sqlite.open_writable(path, create=True) as db, sqlite.transaction(db):
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
        raise SidecarProblem(tr("it is not a file of vectors that regraft wrote"))
    try:
        version: Any = db.execute("SELECT version FROM meta").get
    except apsw.SQLError as error:
        raise SidecarProblem(tr("it has no identity row ({error})", error=error)) from error
    if version != VERSION:
        raise SidecarOfOtherVersion(version)
    _demand_schema(db)
    try:
        row: Any = db.execute(
            "SELECT version, model_id, dimensions, state, created_at, backfilled_at, rebuilt_at FROM meta"
        ).fetchone()
        db.execute(
            f"SELECT note_id, content_hash, content_version, vector, embedded_at FROM {TABLE} LIMIT 0"
        ).fetchall()
    except apsw.SQLError as error:
        raise SidecarProblem(tr("a part of its layout is missing ({error})", error=error)) from error
    meta = Meta(*row)
    _demand_own_values(meta)
    return meta


def _demand_own_values(meta: Meta) -> None:
    """Refuse an identity row with values that regraft does not write."""
    is_length = meta.dimensions is None or (isinstance(meta.dimensions, int) and meta.dimensions > 0)
    if not is_length or not isinstance(meta.model_id, str):
        raise SidecarProblem(tr("its identity row names no model, or no number of dimensions"))
    times = (meta.backfilled_at, meta.rebuilt_at)
    is_dated = isinstance(meta.created_at, str) and all(time is None or isinstance(time, str) for time in times)
    if meta.state not in ("ready", "rebuilding") or not is_dated:
        raise SidecarProblem(tr("its identity row says what regraft does not write"))


def _demand_schema(db: apsw.Connection) -> None:
    """Refuse a file with anything besides the tables that regraft makes: a view or a trigger would run."""
    wanted = {" ".join(statement.split()) for statement in _TABLES}
    for kind, name, sql in db.execute("SELECT type, name, sql FROM sqlite_schema"):
        if sql is not None and " ".join(str(sql).split()) not in wanted:
            raise SidecarProblem(tr("it has a {kind} {name!r} that regraft does not make", kind=kind, name=name))


@contextmanager
def reading(path: Path) -> Iterator[tuple[apsw.Connection, Meta]]:
    """Open a sidecar for reading without a trace, with sqlite-vec.

    Raises:
        SidecarUnreadable: it cannot be read.
        SidecarProblem: it is another file, or of another version.
        FileNotFoundError: there is none.
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


def is_sound(db: apsw.Connection) -> bool:
    """Tell whether every page of an open sidecar can be read."""
    try:
        return bool(db.execute("PRAGMA quick_check(1)").get == "ok")
    except (apsw.Error, UnicodeDecodeError):
        return False


# --- rows ----------------------------------------------------------------------------------------------------------


class Flaw(StrEnum):
    """Why no search can use a vector."""

    LENGTH = "length"
    NON_FINITE = "non-finite"
    ZERO = "zero"


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What a sidecar has for a note; ``flaw`` None: its vector is good."""

    note_id: str
    content_hash: str
    content_version: int
    embedded_at: str
    flaw: Flaw | None


#: The norm is NULL for a vector with a NaN, and infinite for one whose squares exceed single precision.
_HELD = f"""SELECT note_id, content_hash, content_version, embedded_at,
       CASE WHEN typeof(vector) = 'blob' AND length(vector) = :size AND :size > 0
            THEN vec_distance_l2(vector, zeroblob(:size)) END AS norm,
       typeof(vector) = 'blob' AND length(vector) = :size AND :size > 0 AS fits
  FROM {TABLE}"""


class Vectors:
    """The vectors of an open sidecar: always as they are now.

    Args:
        db: the sidecar, open for reading or writing, with sqlite-vec.
        meta: what it says of itself.
    """

    def __init__(self, db: apsw.Connection, meta: Meta) -> None:
        self.db = db
        self.meta = meta
        #: The length of a vector in bytes; one of length 0 is none.
        self.size = 4 * (meta.dimensions or 0)

    def of(self, note_id: str) -> Held | None:
        """Return what there is for a note.

        Raises:
            SidecarUnreadable: the file is damaged.
        """
        rows = self._rows(f"{_HELD} WHERE note_id = :note", note=note_id)
        return self._held(rows[0]) if rows else None

    def every(self) -> Iterator[Held]:
        """Return every row, by its note's id in the order of SQLite's texts (that of their bytes).

        Raises:
            SidecarUnreadable: the file is damaged.
        """
        after: Any = ""
        while rows := self._rows(f"{_HELD} WHERE note_id > :after ORDER BY note_id LIMIT {_AT_ONCE}", after=after):
            yield from map(self._held, rows)
            after = rows[-1][0]

    def distances(self, note_ids: Sequence[str], vector: bytes) -> dict[str, float]:
        """Return how far notes' vectors are from another one, by cosine; those that have no distance are left out.

        Raises:
            SidecarUnreadable: the file is damaged.
        """
        query = f"""SELECT note_id, vec_distance_cosine(vector, :vector) FROM {TABLE}
             WHERE note_id IN (SELECT value FROM json_each(:notes))
               AND typeof(vector) = 'blob' AND length(vector) = length(:vector)"""
        rows = self._rows(query, notes=msgspec.json.encode(note_ids).decode(), vector=vector)
        return {note_id: distance for note_id, distance in rows if distance is not None}

    def count(self) -> int:
        """Return how many there are.

        Raises:
            SidecarUnreadable: the file is damaged.
        """
        return int(self._rows(f"SELECT count(*) FROM {TABLE}")[0][0])

    def fitting(self, content_version: int) -> tuple[int, int]:
        """Return how many have the sidecar's dimensions, and how many are of a content version.

        Raises:
            SidecarUnreadable: the file is damaged.
        """
        query = f"""SELECT total(typeof(vector) = 'blob' AND length(vector) = :size AND :size > 0),
                           total(content_version = :version) FROM {TABLE}"""
        [(of_size, of_version)] = self._rows(query, version=content_version)
        return int(of_size), int(of_version)

    def _rows(self, query: str, **values: Any) -> list[Any]:
        try:
            return self.db.execute(query, {"size": self.size, **values}).fetchall()
        except apsw.InterruptError:
            raise  # whoever asked for it knows why
        except (apsw.Error, UnicodeDecodeError) as error:
            raise SidecarUnreadable(tr("it cannot be read ({error})", error=error)) from error

    def _held(self, row: Any) -> Held:
        note_id, content_hash, version, embedded_at, norm, fits = row
        return Held(
            note_id=note_id,
            content_hash=content_hash,
            content_version=version,
            embedded_at=embedded_at,
            flaw=_flaw(norm) if fits else Flaw.LENGTH,
        )


def _flaw(norm: float | None) -> Flaw | None:
    """Judge a vector by its norm in single precision, in which the system's search computes."""
    if norm is None or not math.isfinite(norm):
        return Flaw.NON_FINITE
    return None if norm > 0 else Flaw.ZERO
