"""codex-mem's database: notes, their scope, and what migration 006 adds (``docs/formats/codex_mem.md``)."""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft import sqlite

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
    if not os.path.isdir(folder) or not sqlite.is_database(place):  # noqa: PTH112 - this one raises for no path
        return None
    try:
        with sqlite.reading(place) as db:
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


def content_hash(title: str, kind: str, content: str) -> str:
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
        others = [sqlite.quoted(name) for name in columns if name not in (_STATUS, _ELIGIBLE)]
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
