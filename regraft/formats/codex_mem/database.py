"""The database of codex-mem: notes, projects, and the embedding status of each note (``docs/formats/codex_mem.md``)."""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec.structs import fields

from regraft.disk import sqlite, untrusted_sqlite
from regraft.formats.codex_mem.sidecar import SidecarVectors, StoredVector
from regraft.formats.vector_table import make_text_decoder

#: Usual file name of the database.
FILE = "codex-mem.db"
NOTES = "memory_items"
FULL_TEXT = "memory_items_fts"
MIGRATIONS = "schema_migrations"
#: Shadow tables of the full-text index.
FULL_TEXT_TABLES = tuple(f"{FULL_TEXT}_{name}" for name in ("data", "idx", "docsize"))
#: Tables that identify a codex-mem database.
MARKS = frozenset({NOTES, FULL_TEXT, MIGRATIONS, "projects", "workspaces", "sessions"})
#: The migration, from an upstream draft, that adds the columns below.
MIGRATION = (6, "006_note_embedding_metadata.sql")
#: Columns of the migration with their types; all may be NULL.
COLUMNS = {
    "embedding_eligible": "INTEGER",
    "embedding_status": "TEXT",
    "embedding_model_id": "TEXT",
    "embedding_content_hash": "TEXT",
    "embedding_content_version": "INTEGER",
    "embedded_at": "TEXT",
    "embedding_error_code": "TEXT",
    "embedding_error_at": "TEXT",
}
STATUSES = ("not_applicable", "pending", "ready", "stale", "failed")
#: Version of the rule that builds the embedded text of a note.
CONTENT_VERSION = 1
#: Suffix of the sidecar file.
_SIDECAR = ".embeddings.sqlite"
_GUARD = "regraft_excluded_notes"
_STATUS, _ELIGIBLE = "embedding_status", "embedding_eligible"


def find_database(folder: Path) -> Path | None:
    """Return the database of codex-mem in a directory, or None.

    A file with the usual name that is too damaged to list its tables is accepted.
    """
    file = folder / FILE
    if not os.path.isdir(folder) or not untrusted_sqlite.is_database(file):  # noqa: PTH112 - this one raises for no path
        return None
    try:
        with sqlite.open_readonly(file) as db:
            tables = sqlite.table_names(db)
    except (apsw.Error, UnicodeDecodeError):
        return file
    return file if tables >= MARKS else None


def sidecar_path(database: Path) -> Path:
    """Return the path of a database's sidecar, the file with the vectors."""
    return database.with_name(f"{database.name}{_SIDECAR}")


def database_of_sidecar(sidecar: Path) -> Path | None:
    """Return the database that a sidecar file belongs to, by file name; None for other names."""
    return sidecar.with_name(sidecar.name.removesuffix(_SIDECAR)) if sidecar.name.endswith(_SIDECAR) else None


def note_source_text(title: str, kind: str, content: str) -> str:
    """Return the text that is embedded for a note: title, type and content, with normalized white space."""
    return "\n".join(" ".join(unicodedata.normalize("NFC", part).split()) for part in (title, kind, content))


def note_content_hash(title: str, kind: str, content: str) -> str:
    """Return the SHA-256 of a note's :func:`note_source_text` in hex. A different hash makes a vector stale."""
    return hashlib.sha256(note_source_text(title, kind, content).encode("utf-8", "surrogatepass")).hexdigest()


class Project(msgspec.Struct, frozen=True):
    """A project, the unit that a search is limited to; ``slug`` is unique within its system."""

    id: str
    name: str
    slug: str


def read_projects(db: apsw.Connection) -> dict[str, Project]:
    """Return all projects by id, in insertion order.

    Raises:
        apsw.Error, UnicodeDecodeError: the database is damaged.
    """
    rows = db.execute("SELECT id, name, slug FROM projects WHERE typeof(id) = 'text' ORDER BY rowid")
    return {project.id: project for project in (Project(str(one), str(name), str(slug)) for one, name, slug in rows)}


def find_project_id(known: Mapping[str, Project], word: str) -> str | None:
    """Return the id of the project that a word of the user means, or None: its id, or a unique name or slug.

    ``known`` are the projects by id.
    """
    if word in known:
        return word
    found = [one.id for one in known.values() if word in (one.name, one.slug)]
    return found[0] if len(found) == 1 else None


def find_current_project(db: apsw.Connection, folder: Path) -> str | None:
    """Return the id of the project of the workspace that contains a directory, else of the latest session, or None."""
    directories = {str(directory) for directory in (folder, *folder.parents)}
    query = "SELECT root_path, project_id FROM workspaces ORDER BY length(root_path) DESC, id"
    workspaces = db.execute(query).fetchall()
    inside = next((str(project) for root, project in workspaces if str(root).rstrip("/") in directories), None)
    latest = "SELECT project_id FROM sessions ORDER BY started_at DESC, id DESC"
    found: Any = db.execute(latest).fetchone() if inside is None else (inside,)
    return None if found is None else str(found[0])


def list_migrated_columns(db: apsw.Connection) -> list[str]:
    """Return the columns of migration 006 that exist, with the migration's spelling."""
    return list(_read_migrated_columns(db))


def find_conflicting_column(db: apsw.Connection) -> str | None:
    """Return an existing NOT NULL column with the name of a column of migration 006, or None.

    Such a column is unrelated. Declared types are ignored, because SQLite does not enforce them.
    """
    return next((name for name, is_never_empty in _read_migrated_columns(db).items() if is_never_empty), None)


def _read_migrated_columns(db: apsw.Connection) -> dict[str, bool]:
    """Return the existing columns of migration 006 (in any letter case), and whether each is NOT NULL."""
    rows = db.execute(f"PRAGMA table_info({NOTES})")
    existing = {str(name).lower(): bool(not_null) for _, name, _, not_null, *_ in rows}
    return {name: existing[name] for name in COLUMNS if name in existing}


def recorded_migration_name(db: apsw.Connection) -> object:
    """Return the name that the database has recorded for migration number 6, or None."""
    return db.execute(f"SELECT name FROM {MIGRATIONS} WHERE version = ?", (MIGRATION[0],)).get


def is_migrated(db: apsw.Connection) -> bool:
    """Whether all columns of migration 006 exist."""
    return len(list_migrated_columns(db)) == len(COLUMNS)


def eligible_sql(db: apsw.Connection, notes: str = NOTES) -> str:
    """Return an SQL condition on a note: it may be embedded.

    The note is searchable, and the application has not excluded it from embedding by ``embedding_eligible`` 0 or, if
    that is NULL, by the status ``not_applicable``.

    Args:
        db: the database, with or without the columns.
        notes: alias of the notes table in the query.
    """
    existing = list_migrated_columns(db)
    eligible_column, status_column = (
        f"{notes}.{name}" if name in existing else "NULL" for name in ("embedding_eligible", "embedding_status")
    )
    decided = (
        f"CASE WHEN {eligible_column} IS NULL THEN {status_column} IS NOT 'not_applicable'"
        f" ELSE {eligible_column} <> 0 END"
    )
    return f"({notes}.searchable = 1 AND {decided})"


@contextmanager
def guard_excluded_notes(db: apsw.Connection) -> Iterator[None]:
    """Abort every UPDATE of an excluded note, except one that withdraws or restores its embedding status.

    Applies to all statements on this connection; a database without notes is not affected. Withdrawing sets
    ``embedding_status`` to ``not_applicable`` and ``embedding_eligible`` from NULL to 1, so that the note can be
    embedded once it is searchable again. Restoring is the reverse. No other column may change.
    """
    columns = [str(row[1]) for row in db.execute(f"PRAGMA main.table_info({NOTES})")]
    if "searchable" not in columns:
        yield
        return
    withdraws = "0"
    if {_STATUS, _ELIGIBLE} <= set(columns):
        others = [untrusted_sqlite.quote_name(name) for name in columns if name not in (_STATUS, _ELIGIBLE)]
        withdraws = " AND ".join(
            [
                f"'not_applicable' IN (ifnull(old.{_STATUS}, ''), ifnull(new.{_STATUS}, ''))",
                f"ifnull(old.{_ELIGIBLE}, 1) IS ifnull(new.{_ELIGIBLE}, 1)",
                *(f"old.{name} IS new.{name}" for name in others),
            ]
        )
    # Temporary triggers run even if the file's own triggers are disabled.
    db.execute(
        f"CREATE TEMP TRIGGER {_GUARD} BEFORE UPDATE ON main.{NOTES}"
        f" WHEN old.searchable IS NOT 1 AND NOT ({withdraws})"
        " BEGIN SELECT RAISE(ABORT, 'of an excluded note, only the status of its vector changes'); END"
    )
    try:
        yield
    finally:
        db.execute(f"DROP TRIGGER IF EXISTS temp.{_GUARD}")


# Embedding status of the notes (``docs/formats/codex_mem.md``).
# The status is computed for each note from the current content of database and sidecar, on the caller's connections, so
# that it is valid inside a transaction. Nothing is cached.


#: Notes read per query. A query that stays open would block writers.
_AT_ONCE = 500
#: Smaller than every rowid.
_LEAST = -(2**63)


class NoteStatus(StrEnum):
    """The actual status of a note, which its stored status may contradict."""

    #: Not searchable.
    EXCLUDED = "excluded"
    #: Searchable, but excluded from embedding by the application.
    NOT_APPLICABLE = "not_applicable"
    READY = "ready"
    PENDING = "pending"
    STALE = "stale"
    FAILED = "failed"


#: Statuses of a note that may be embedded.
ELIGIBLE_STATUSES = (NoteStatus.READY, NoteStatus.PENDING, NoteStatus.STALE, NoteStatus.FAILED)


class EmbeddingMetadata(msgspec.Struct, frozen=True):
    """The columns of migration 006 of a note as stored; None for a missing column."""

    embedding_eligible: Any = None
    embedding_status: Any = None
    embedding_model_id: Any = None
    embedding_content_hash: Any = None
    embedding_content_version: Any = None
    embedded_at: Any = None
    embedding_error_code: Any = None
    embedding_error_at: Any = None


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A note with its computed embedding status."""

    rowid: int
    id: str
    project: str
    title: str
    type: str
    content: str
    #: Hash of its current text (:func:`note_content_hash`).
    hash: str
    status: NoteStatus
    metadata: EmbeddingMetadata
    #: Its vector in the sidecar.
    held: StoredVector | None
    #: Whether the vector is valid but the note's metadata do not mention it: a run was killed between both writes.
    can_adopt_vector: bool

    @property
    def text(self) -> str:
        """The text of the note that is embedded."""
        return note_source_text(self.title, self.type, self.content)

    @property
    def is_eligible(self) -> bool:
        """Whether the note may be embedded."""
        return self.status in ELIGIBLE_STATUSES

    @property
    def has_vector(self) -> bool:
        """Whether the sidecar has a valid vector of the note's current text."""
        return self.held is not None and is_current_vector(self.held, self.hash)

    @property
    def is_orphaned(self) -> bool:
        """Whether the note's vector is orphaned: it can be adopted, or the note should have none."""
        return self.can_adopt_vector or (self.held is not None and not self.is_eligible)


class StatusCounts(msgspec.Struct):
    """Number of notes by status.

    ``held`` counts notes with any vector in the sidecar; ``orphaned`` counts those that should have none, or whose
    metadata do not mention it.
    """

    excluded: int = 0
    not_applicable: int = 0
    ready: int = 0
    pending: int = 0
    stale: int = 0
    failed: int = 0
    held: int = 0
    orphaned: int = 0

    @property
    def eligible(self) -> int:
        """Number of notes that may be embedded."""
        return self.ready + self.pending + self.stale + self.failed

    def add(self, note: Note) -> None:
        """Count a note by its status, and its vector in the sidecar."""
        setattr(self, note.status.value, getattr(self, note.status.value) + 1)
        self.held += note.held is not None
        self.orphaned += note.is_orphaned


def sum_counts(counts: Iterable[StatusCounts]) -> StatusCounts:
    """Add up counts of notes, such as those of several projects."""
    summed = StatusCounts()
    for one in counts:
        for field in fields(StatusCounts):
            setattr(summed, field.name, getattr(summed, field.name) + getattr(one, field.name))
    return summed


def is_current_vector(stored: StoredVector, content_hash: str) -> bool:
    """Whether a stored vector is valid and belongs to the text with this hash."""
    return not _is_of_other_text(stored, content_hash) and stored.flaw is None


def _is_of_other_text(stored: StoredVector, content_hash: str) -> bool:
    """Whether a vector was made from another text, or in another format of it."""
    return stored.content_hash != content_hash or stored.content_version != CONTENT_VERSION


class NoteReader:
    """Reads the notes of an open database with their embedding status.

    Args:
        db: the database, with all, some or none of the columns of migration 006.
        vectors: the sidecar, or None if there is no usable one.
    """

    def __init__(self, db: apsw.Connection, vectors: SidecarVectors | None = None) -> None:
        self._db = db
        self._vectors = vectors
        self._decoded = make_text_decoder(db)
        there = list_migrated_columns(db)
        columns = ", ".join(f"n.{name}" if name in there else "NULL" for name in COLUMNS)
        self._select = f"""SELECT n.rowid, n.id, n.project_id, CAST(n.title AS BLOB), CAST(n.type AS BLOB),
              CAST(n.content AS BLOB), n.searchable = 1, {eligible_sql(db, "n")}, {columns}
         FROM {NOTES} n WHERE typeof(n.id) = 'text'"""

    def iterate(self, project: str | None = None, after: int = _LEAST) -> Iterator[Note]:
        """Yield every note, or every note of a project, in rowid order.

        Args:
            project: id of the project.
            after: only notes with a larger rowid.
        """
        # The unary plus keeps SQLite from using an index on projects, which would require sorting each page of rows.
        of_project = "" if project is None else "AND +n.project_id = :project"
        query = f"{self._select} AND n.rowid > :after {of_project} ORDER BY n.rowid LIMIT {_AT_ONCE}"
        values = {"after": after, **({} if project is None else {"project": project})}
        while rows := self._db.execute(query, values).fetchall():
            yield from map(self._to_note, rows)
            values["after"] = rows[-1][0]

    def read_notes(self, ids: Sequence[str]) -> dict[str, Note]:
        """Return the existing notes among these ids, by id."""
        query = f"{self._select} AND n.id IN (SELECT value FROM json_each(?))"
        notes = map(self._to_note, self._db.execute(query, (msgspec.json.encode(ids).decode(),)).fetchall())
        return {note.id: note for note in notes}

    def counts(self, each: Callable[[], None] | None = None) -> dict[str, StatusCounts]:
        """Count the notes of each project by status; the key is the project's id.

        Args:
            each: called once per note.
        """
        found: dict[str, StatusCounts] = defaultdict(StatusCounts)
        for note in self.iterate():
            found[note.project].add(note)
            if each is not None:
                each()
        return dict(found)

    def _to_note(self, row: Any) -> Note:
        """Make a note from its row, with its status."""
        rowid, note_id, project, title, kind, content, searchable, eligible, *columns = row
        title, kind, content = (self._decoded(raw) or "" for raw in (title, kind, content))
        content_hash = note_content_hash(title, kind, content)
        metadata = EmbeddingMetadata(*columns)
        held = None if self._vectors is None else self._vectors.read_vector(note_id)
        if eligible:
            status = self._compute_status(metadata, held, content_hash)
        else:
            status = NoteStatus.NOT_APPLICABLE if searchable else NoteStatus.EXCLUDED
        is_adoptable = (
            eligible
            and status is not NoteStatus.READY
            and held is not None
            and self._can_adopt_vector(held, metadata, content_hash)
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
            can_adopt_vector=bool(is_adoptable),
        )

    def _can_adopt_vector(self, stored: StoredVector, metadata: EmbeddingMetadata, content_hash: str) -> bool:
        """Whether a note's metadata can be set from its vector in the sidecar.

        The vector must be of the current text, and the metadata must name no other model or be older than the vector.
        """
        model = None if self._vectors is None else self._vectors.meta.model_id
        is_younger = str(stored.embedded_at) > str(metadata.embedded_at or "")
        return is_current_vector(stored, content_hash) and (metadata.embedding_model_id in (None, model) or is_younger)

    def _compute_status(self, metadata: EmbeddingMetadata, held: StoredVector | None, content_hash: str) -> NoteStatus:
        """Compute the status of a note that may be embedded.

        Args:
            metadata: the note's embedding metadata, as stored.
            held: the note's vector in the sidecar, or None.
            content_hash: hash of the note's current text.
        """
        stated = metadata.embedding_status
        # A failed note has no vector, and it does not matter which model failed.
        if stated == NoteStatus.FAILED and metadata.embedding_content_hash in (None, content_hash):
            return NoteStatus.FAILED
        if stated == NoteStatus.STALE or (held is not None and _is_of_other_text(held, content_hash)):
            return NoteStatus.STALE
        if stated != NoteStatus.READY:
            return NoteStatus.PENDING
        if not self._matches_metadata(metadata, content_hash):
            return NoteStatus.STALE
        return NoteStatus.READY if held is not None and held.flaw is None else NoteStatus.PENDING

    def _matches_metadata(self, metadata: EmbeddingMetadata, content_hash: str) -> bool:
        """Whether a note's metadata describe its current text and, if there is a sidecar, the sidecar's model."""
        model = metadata.embedding_model_id if self._vectors is None else self._vectors.meta.model_id
        # A column with TEXT affinity stores the number as text.
        version = str(metadata.embedding_content_version)
        stated = (metadata.embedding_content_hash, version, metadata.embedding_model_id)
        return stated == (content_hash, str(CONTENT_VERSION), model)
