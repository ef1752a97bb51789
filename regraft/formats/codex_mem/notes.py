"""The judgement of codex-mem's notes: which have their vector, and which lack it (``docs/formats/codex_mem.md``).

It is worked out note by note from the database and the sidecar as they are now, on two connections, so that it holds
inside a transaction too. Nothing is held in memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any

import apsw
import msgspec
from msgspec.structs import fields

from regraft.formats.codex_mem import database
from regraft.formats.codex_mem.database import COLUMNS, CONTENT_VERSION, NOTES
from regraft.formats.codex_mem.sidecar import Held, Vectors
from regraft.formats.vector_table import decoder

#: How many notes are read at once: a query that is still open would keep others from writing.
_AT_ONCE = 500
#: What every rowid is beyond.
_LEAST = -(2**63)


class Status(StrEnum):
    """What a note is, whatever its row says of it."""

    #: It is not searchable.
    EXCLUDED = "excluded"
    #: It is searchable, and the application has decided against embedding it.
    NOT_APPLICABLE = "not_applicable"
    READY = "ready"
    PENDING = "pending"
    STALE = "stale"
    FAILED = "failed"


#: Those that a note that may be embedded can have.
ELIGIBLE = (Status.READY, Status.PENDING, Status.STALE, Status.FAILED)


class Metadata(msgspec.Struct, frozen=True):
    """The columns of migration 006 of a note as they stand, whatever is in them; None where a column is missing."""

    embedding_eligible: Any = None
    embedding_status: Any = None
    embedding_model_id: Any = None
    embedding_content_hash: Any = None
    embedding_content_version: Any = None
    embedded_at: Any = None
    embedding_error_code: Any = None
    embedding_error_at: Any = None


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A note with what was judged of it."""

    rowid: int
    id: str
    project: str
    title: str
    type: str
    content: str
    #: :func:`regraft.formats.codex_mem.database.content_hash` of its present text.
    hash: str
    status: Status
    metadata: Metadata
    #: What the sidecar has for it.
    held: Held | None
    #: Whether its vector is good and only its metadata do not say so: a run was killed between the two.
    is_adoptable: bool

    @property
    def text(self) -> str:
        """Return what is embedded of it."""
        return database.source_text(self.title, self.type, self.content)

    @property
    def is_eligible(self) -> bool:
        """Tell whether it may be embedded."""
        return self.status in ELIGIBLE

    @property
    def has_vector(self) -> bool:
        """Tell whether the sidecar has a good vector of its present text."""
        return self.held is not None and fits(self.held, self.hash)

    @property
    def is_astray(self) -> bool:
        """Tell whether its vector is an orphan of the sidecar: it is adoptable, or the note is to have none."""
        return self.is_adoptable or (self.held is not None and not self.is_eligible)


class Counts(msgspec.Struct):
    """How many notes there are of each status.

    Beside that, ``held`` is how many of them the sidecar has a vector of, whatever it is; ``astray`` how many of these
    should have none, or are not said to have it.
    """

    excluded: int = 0
    not_applicable: int = 0
    ready: int = 0
    pending: int = 0
    stale: int = 0
    failed: int = 0
    held: int = 0
    astray: int = 0

    @property
    def eligible(self) -> int:
        """Return how many may be embedded."""
        return self.ready + self.pending + self.stale + self.failed

    def add(self, note: Note) -> None:
        """Count a note."""
        setattr(self, note.status.value, getattr(self, note.status.value) + 1)
        self.held += note.held is not None
        self.astray += note.is_astray


def total(counts: Iterable[Counts]) -> Counts:
    """Return the sum of counts."""
    summed = Counts()
    for one in counts:
        for field in fields(Counts):
            setattr(summed, field.name, getattr(summed, field.name) + getattr(one, field.name))
    return summed


def fits(held: Held, content_hash: str) -> bool:
    """Tell whether what a sidecar has is a good vector of a text, by its hash."""
    return not _is_of_other_text(held, content_hash) and held.flaw is None


def _is_of_other_text(held: Held, content_hash: str) -> bool:
    return held.content_hash != content_hash or held.content_version != CONTENT_VERSION


class Notes:
    """The notes of an open database, each with its judgement.

    Args:
        db: the database, with all, some or none of the columns of migration 006.
        vectors: the sidecar; None where there is none that can be used.
    """

    def __init__(self, db: apsw.Connection, vectors: Vectors | None = None) -> None:
        self._db = db
        self._vectors = vectors
        self._decoded = decoder(db)
        there = database.columns_there(db)
        columns = ", ".join(f"n.{name}" if name in there else "NULL" for name in COLUMNS)
        self._select = f"""SELECT n.rowid, n.id, n.project_id, CAST(n.title AS BLOB), CAST(n.type AS BLOB),
              CAST(n.content AS BLOB), n.searchable = 1, {database.eligible(db, "n")}, {columns}
         FROM {NOTES} n WHERE typeof(n.id) = 'text'"""

    def judged(self, project: str | None = None, after: int = _LEAST) -> Iterator[Note]:
        """Return every note, or every one of a project, in the order of their rowids.

        Args:
            project: its id.
            after: only notes beyond this rowid.
        """
        # The sign keeps SQLite from an index of projects, by which each page of rows would be sorted anew.
        of_project = "" if project is None else "AND +n.project_id = :project"
        query = f"{self._select} AND n.rowid > :after {of_project} ORDER BY n.rowid LIMIT {_AT_ONCE}"
        values = {"after": after, **({} if project is None else {"project": project})}
        while rows := self._db.execute(query, values).fetchall():
            yield from map(self._judged, rows)
            values["after"] = rows[-1][0]

    def of(self, ids: Sequence[str]) -> dict[str, Note]:
        """Return those of the notes that there are, by their ids."""
        query = f"{self._select} AND n.id IN (SELECT value FROM json_each(?))"
        notes = map(self._judged, self._db.execute(query, (msgspec.json.encode(ids).decode(),)).fetchall())
        return {note.id: note for note in notes}

    def counts(self, each: Callable[[], None] | None = None) -> dict[str, Counts]:
        """Return how many notes there are of each status, by the ids of their projects.

        Args:
            each: called once for every note.
        """
        found: dict[str, Counts] = defaultdict(Counts)
        for note in self.judged():
            found[note.project].add(note)
            if each is not None:
                each()
        return dict(found)

    def _judged(self, row: Any) -> Note:
        rowid, note_id, project, title, kind, content, searchable, eligible, *columns = row
        title, kind, content = (self._decoded(raw) or "" for raw in (title, kind, content))
        content_hash = database.content_hash(title, kind, content)
        metadata = Metadata(*columns)
        held = None if self._vectors is None else self._vectors.of(note_id)
        if eligible:
            status = self._status(metadata, held, content_hash)
        else:
            status = Status.NOT_APPLICABLE if searchable else Status.EXCLUDED
        is_adoptable = (
            eligible and status is not Status.READY and held is not None and self._is_ours(held, metadata, content_hash)
        )
        return Note(
            rowid=rowid,
            id=note_id,
            project=str(project),
            title=title,
            type=kind,
            content=content,
            hash=content_hash,
            status=status,
            metadata=metadata,
            held=held,
            is_adoptable=bool(is_adoptable),
        )

    def _is_ours(self, held: Held, metadata: Metadata, content_hash: str) -> bool:
        """Tell whether a vector is a good one of a note, and not older than what is said of another model."""
        model = None if self._vectors is None else self._vectors.meta.model_id
        is_younger = str(held.embedded_at) > str(metadata.embedded_at or "")
        return fits(held, content_hash) and (metadata.embedding_model_id in (None, model) or is_younger)

    def _status(self, metadata: Metadata, held: Held | None, content_hash: str) -> Status:
        """Judge a note that may be embedded."""
        stated = metadata.embedding_status
        # A note that failed has no vector, and the model that failed does not matter.
        if stated == Status.FAILED and metadata.embedding_content_hash in (None, content_hash):
            return Status.FAILED
        if stated == Status.STALE or (held is not None and _is_of_other_text(held, content_hash)):
            return Status.STALE
        if stated != Status.READY:
            return Status.PENDING
        if not self._agrees(metadata, content_hash):
            return Status.STALE
        return Status.READY if held is not None and held.flaw is None else Status.PENDING

    def _agrees(self, metadata: Metadata, content_hash: str) -> bool:
        """Tell whether a note's metadata are about its present text, and about the sidecar's model if there is one."""
        model = metadata.embedding_model_id if self._vectors is None else self._vectors.meta.model_id
        # A column of another type keeps a number as text.
        version = str(metadata.embedding_content_version)
        stated = (metadata.embedding_content_hash, version, metadata.embedding_model_id)
        return stated == (content_hash, str(CONTENT_VERSION), model)
