"""codex-mem's database: notes, their scope, and what migration 006 adds (``docs/formats/codex_mem.md``)."""

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
from regraft.formats.codex_mem.sidecar import Held, Vectors
from regraft.formats.vector_table import make_text_decoder

#: What the database is called in its own folder.
FILE = "codex-mem.db"
NOTES = "memory_items"
FULL_TEXT = "memory_items_fts"
MIGRATIONS = "schema_migrations"
#: Where SQLite keeps the full-text index.
FULL_TEXT_TABLES = tuple(f"{FULL_TEXT}_{name}" for name in ("data", "idx", "docsize"))
#: Tables that tell a database of codex-mem.
MARKS = frozenset({NOTES, FULL_TEXT, MIGRATIONS, "projects", "workspaces", "sessions"})
#: The migration of the upstream draft that adds the columns.
MIGRATION = (6, "006_note_embedding_metadata.sql")
#: Its columns, each with its type; all may be NULL.
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
#: Which rule makes the text that is embedded of a note; another one makes another version.
CONTENT_VERSION = 1
#: Beside a database of this name, its vectors.
_SIDECAR = ".embeddings.sqlite"
_GUARD = "regraft_excluded_notes"
_STATUS, _ELIGIBLE = "embedding_status", "embedding_eligible"


def database_in(folder: Path) -> Path | None:
    """Return the database that lies in a folder by its usual name; None where there is none.

    One that is too damaged to be told by its tables is told by that name.
    """
    place = folder / FILE
    if not os.path.isdir(folder) or not untrusted_sqlite.is_database(place):  # noqa: PTH112 - this one raises for no path
        return None
    try:
        with sqlite.open_readonly(place) as db:
            tables = {str(name) for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    except (apsw.Error, UnicodeDecodeError):
        return place
    return place if tables >= MARKS else None


def sidecar_of(database: Path) -> Path:
    """Return where the vectors of a database's notes lie."""
    return database.with_name(f"{database.name}{_SIDECAR}")


def database_of(sidecar: Path) -> Path | None:
    """Return the database whose vectors a file would hold, by its name; None for any other name."""
    return sidecar.with_name(sidecar.name.removesuffix(_SIDECAR)) if sidecar.name.endswith(_SIDECAR) else None


def source_text(title: str, kind: str, content: str) -> str:
    """Return the text of a note that is embedded: its title, its type and its content, white space folded."""
    return "\n".join(_folded(part) for part in (title, kind, content))


def _folded(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def note_content_hash(title: str, kind: str, content: str) -> str:
    """Return the SHA-256 of a note's :func:`source_text`, in hex: another one makes its vector stale."""
    return hashlib.sha256(source_text(title, kind, content).encode("utf-8", "surrogatepass")).hexdigest()


class Project(msgspec.Struct, frozen=True):
    """A project, which is what a search looks in; ``slug`` tells it within its system."""

    id: str
    name: str
    slug: str


def projects(db: apsw.Connection) -> dict[str, Project]:
    """Return the projects by their ids, in the order in which they were written.

    Raises:
        apsw.Error, UnicodeDecodeError: the database is damaged.
    """
    rows = db.execute("SELECT id, name, slug FROM projects WHERE typeof(id) = 'text' ORDER BY rowid")
    return {project.id: project for project in (Project(str(one), str(name), str(slug)) for one, name, slug in rows)}


def project_id(known: Mapping[str, Project], word: str) -> str | None:
    """Return the id of the one project that has this id, name or slug; None where none or several have it."""
    if word in known:
        return word
    found = [one.id for one in known.values() if word in (one.name, one.slug)]
    return found[0] if len(found) == 1 else None


def project_at_hand(db: apsw.Connection, folder: Path) -> str | None:
    """Return the project that a user at work in a folder means: that of the workspace around it, else of the latest
    session; None where there is neither.
    """
    around = {str(place) for place in (folder, *folder.parents)}
    places = db.execute("SELECT root_path, project_id FROM workspaces ORDER BY length(root_path) DESC, id").fetchall()
    inside = next((str(project) for root, project in places if str(root).rstrip("/") in around), None)
    latest = "SELECT project_id FROM sessions ORDER BY started_at DESC, id DESC"
    found: Any = db.execute(latest).fetchone() if inside is None else (inside,)
    return None if found is None else str(found[0])


def columns_there(db: apsw.Connection) -> list[str]:
    """Return which columns of migration 006 the notes have, as the migration calls them."""
    return list(_columns(db))


def foreign_column(db: apsw.Connection) -> str | None:
    """Return a column that has the name of one of migration 006 and must not be empty: it is another one.

    What type a column is declared with binds nobody in SQLite.
    """
    return next((name for name, is_never_empty in _columns(db).items() if is_never_empty), None)


def _columns(db: apsw.Connection) -> dict[str, bool]:
    """Return which columns of migration 006 there are, whatever the case of their names, and if they must be filled."""
    there = {str(name).lower(): bool(notnull) for _, name, _, notnull, *_ in db.execute(f"PRAGMA table_info({NOTES})")}
    return {name: there[name] for name in COLUMNS if name in there}


def migration_recorded(db: apsw.Connection) -> object:
    """Return what the migration of the number of 006 is called, None where none is recorded."""
    return db.execute(f"SELECT name FROM {MIGRATIONS} WHERE version = ?", (MIGRATION[0],)).get


def is_migrated(db: apsw.Connection) -> bool:
    """Tell whether the notes have every column of migration 006."""
    return len(columns_there(db)) == len(COLUMNS)


def eligible(db: apsw.Connection, notes: str = NOTES) -> str:
    """Return the condition by which a note may be embedded.

    It is searchable, and the application has not decided against it: by ``embedding_eligible`` 0, or by the status
    ``not_applicable`` alone.

    Args:
        db: its database, with or without the columns.
        notes: what the query calls the table of notes.
    """
    there = columns_there(db)
    word, status = (
        f"{notes}.{name}" if name in there else "NULL" for name in ("embedding_eligible", "embedding_status")
    )
    decided = f"CASE WHEN {word} IS NULL THEN {status} IS NOT 'not_applicable' ELSE {word} <> 0 END"
    return f"({notes}.searchable = 1 AND {decided})"


@contextmanager
def excluded_guarded(db: apsw.Connection) -> Iterator[None]:
    """Let no UPDATE of an excluded note pass but one that withdraws its status, or restores it.

    Whichever statement the UPDATE is of; a file without notes is as it was. A status is withdrawn where nothing but
    ``embedding_status`` changes, to ``not_applicable``, and ``embedding_eligible`` from NULL to 1, so that the note may
    be embedded once it is searchable again. It is restored by the reverse.
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
    # Triggers in temp run even where those of the file do not.
    db.execute(
        f"CREATE TEMP TRIGGER {_GUARD} BEFORE UPDATE ON main.{NOTES}"
        f" WHEN old.searchable IS NOT 1 AND NOT ({withdraws})"
        " BEGIN SELECT RAISE(ABORT, 'of an excluded note, only the status of its vector changes'); END"
    )
    try:
        yield
    finally:
        db.execute(f"DROP TRIGGER IF EXISTS temp.{_GUARD}")


# The judgement of codex-mem's notes: which have their vector, and which lack it (``docs/formats/codex_mem.md``).
#
# It is worked out note by note from the database and the sidecar as they are now, on two connections, so that it holds
# inside a transaction too. Nothing is held in memory.


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
    #: :func:`regraft.formats.codex_mem.database.note_content_hash` of its present text.
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
        return source_text(self.title, self.type, self.content)

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
        self._decoded = make_text_decoder(db)
        there = columns_there(db)
        columns = ", ".join(f"n.{name}" if name in there else "NULL" for name in COLUMNS)
        self._select = f"""SELECT n.rowid, n.id, n.project_id, CAST(n.title AS BLOB), CAST(n.type AS BLOB),
              CAST(n.content AS BLOB), n.searchable = 1, {eligible(db, "n")}, {columns}
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
        content_hash = note_content_hash(title, kind, content)
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
