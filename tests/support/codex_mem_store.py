"""Databases of codex-mem as its own services leave them, with and without vectors, and damage to plant in them.

The schema is written from what is known of the layout (``docs/formats/codex_mem.md``), in words of our own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import harness
from fault_server import vector_of

from regraft.disk import sqlite
from regraft.formats.codex_mem import database, sidecar

#: Of the vectors that :func:`embed` writes: those that the fault server makes.
MODEL, DIMENSIONS = "embed-small", 8
#: When everything was written that does not say otherwise.
TIME = "2026-03-20T08:00:00.5Z"
EMBEDDED = "2026-04-01T12:00:00Z"
#: Real databases.
SAMPLES = harness.SAMPLES / "codex_mem"
needs_samples = harness.needs_samples

_TIMES = ("created_at TEXT NOT NULL", "updated_at TEXT NOT NULL")
_CONTROL = ("searchable INTEGER NOT NULL DEFAULT 1", "exclusion_reason TEXT NOT NULL DEFAULT ''")


def _of(*tables: str) -> Iterator[str]:
    """Yield columns that name rows of other tables."""
    yield from (f"{one}_id TEXT NOT NULL REFERENCES {one}s (id) ON DELETE RESTRICT" for one in tables)


def _lists(*names: str) -> Iterator[str]:
    yield from (f"{name}_json TEXT NOT NULL DEFAULT '[]'" for name in names)


def _texts(*names: str) -> Iterator[str]:
    yield from (f"{name} TEXT NOT NULL" for name in names)


def _one_of(column: str, *values: str) -> str:
    return f"{column} TEXT NOT NULL CHECK ({column} IN ({', '.join(map(repr, values))}))"


TYPES = ("decision", "bugfix", "discovery", "constraint", "preference", "todo")
_KEY = "id TEXT PRIMARY KEY"
_SCOPE = ("session", "system", "project", "workspace")
_TABLES: dict[str, tuple[str, ...]] = {
    "schema_migrations": ("version INTEGER PRIMARY KEY", *_texts("name", "applied_at")),
    "systems": (_KEY, "slug TEXT NOT NULL UNIQUE", "name TEXT NOT NULL", *_TIMES),
    "projects": (
        *(_KEY, *_of("system"), *_texts("slug", "name"), "canonical_key TEXT NOT NULL UNIQUE"),
        *("remote_normalized TEXT", *_TIMES, "UNIQUE (system_id, slug)"),
    ),
    "workspaces": (
        *(_KEY, *_of("project"), "root_path TEXT NOT NULL", "workspace_key TEXT NOT NULL UNIQUE"),
        *("branch_name TEXT", *_TIMES, "UNIQUE (project_id, root_path)"),
    ),
    "sessions": (
        *(_KEY, *_of("system", "project", "workspace"), "task TEXT", "branch_name TEXT"),
        *(_one_of("status", "active", "paused", "ended", "recovered"), "started_at TEXT NOT NULL", "ended_at TEXT"),
        *_TIMES,
    ),
    "memory_items": (
        *(_KEY, *_of(*_SCOPE), _one_of("type", *TYPES), *_texts("title", "content")),
        *("importance INTEGER NOT NULL CHECK (importance BETWEEN 1 AND 5)",),
        *_lists("tags", "file_paths", "related_project_ids"),
        *(_one_of("status", "active", "resolved", "superseded"), "source TEXT NOT NULL", *_TIMES, *_CONTROL),
    ),
    "handoffs": (
        *(_KEY, *_of(*_SCOPE), _one_of("kind", "final", "checkpoint", "recovery"), *_texts("task", "summary")),
        *_lists("completed", "next_steps", "open_questions", "risks", "files_touched", "related_note_ids"),
        *(_one_of("status", "open", "completed", "abandoned"), *_TIMES, *_CONTROL),
    ),
    "imports": (
        *(_KEY, *_of(*_SCOPE), "source TEXT NOT NULL", "external_id TEXT NOT NULL DEFAULT ''"),
        *("payload_hash TEXT NOT NULL DEFAULT ''", "durable_memory_id TEXT NOT NULL DEFAULT ''"),
        *("suppressed INTEGER NOT NULL DEFAULT 0", "suppression_reason TEXT NOT NULL DEFAULT ''"),
        "imported_at TEXT NOT NULL",
    ),
}
_INDEX = "CREATE INDEX notes_of_a_project ON memory_items (project_id, status, importance DESC, created_at DESC)"
_FULL_TEXT = """CREATE VIRTUAL TABLE memory_items_fts
   USING fts5 (title, content, content = 'memory_items', content_rowid = 'rowid')"""
_ENTRY = "INSERT INTO memory_items_fts (rowid, title, content)"
_OUT = """INSERT INTO memory_items_fts (memory_items_fts, rowid, title, content)
   VALUES ('delete', old.rowid, old.title, old.content);"""
TRIGGERS = {
    "memory_items_ai": f"""AFTER INSERT ON memory_items WHEN new.searchable = 1
   BEGIN {_ENTRY} VALUES (new.rowid, new.title, new.content); END""",
    "memory_items_ad": f"AFTER DELETE ON memory_items BEGIN {_OUT} END",
    "memory_items_au": f"""AFTER UPDATE ON memory_items BEGIN {_OUT}
   {_ENTRY} SELECT new.rowid, new.title, new.content WHERE new.searchable = 1; END""",
}
_APPLIED = (
    (1, "001_foundation.sql"),
    (2, "002_memory_and_handoffs.sql"),
    (3, "003_memory_search_fts.sql"),
    (4, "004_searchability_controls.sql"),
    (5, "005_imports.sql"),
)
STATUSES = ("active", "active", "resolved", "superseded")


def note_id(project: int, number: int) -> str:
    """Return the id of a note of :func:`write`."""
    return f"note_p{project}_{number:02}"


def project_id(project: int) -> str:
    return f"proj_{project}"


def text_of(project: int, number: int) -> tuple[str, str]:
    """Return title and content of a note of :func:`write`: of different lengths, so that ranks differ."""
    content = f"Body {number}:\n\n  keep   WAL mode on; retry the import queue {'again ' * number}(project {project})"
    return f"Note {number} of project {project}", f"{content} 会话记忆"


def write(folder: Path, *, projects: int = 2, notes: int = 6, excluded: int = 0, wal: bool = True) -> Path:
    """Write a database as the application leaves it when it ends, before it ever had vectors.

    Args:
        folder: where; it is made.
        projects: how many there are, each with a workspace, a session and a handoff.
        notes: how many searchable notes each has.
        excluded: how many others each has, for a reason, ``note_id(project, notes)`` and on.
        wal: whether it keeps a log, as the application has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / database.FILE
    with closing(apsw.Connection(str(path))) as db:
        # What a power cut does to it is not the matter.
        db.execute("PRAGMA synchronous = OFF")
        if wal:
            db.execute("PRAGMA journal_mode = WAL")
        with db:
            for table, columns in _TABLES.items():
                db.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
            db.execute(_INDEX)
            db.execute(_FULL_TEXT)
            for name, body in TRIGGERS.items():
                db.execute(f"CREATE TRIGGER {name} {body}")
            db.executemany("INSERT INTO schema_migrations VALUES (?, ?, ?)", [(*one, TIME) for one in _APPLIED])
            db.execute("INSERT INTO systems VALUES ('sys_1', 'acme', 'Acme', ?, ?)", (TIME, TIME))
            for project in range(projects):
                _write_project(db, project)
                for number in range(notes + excluded):
                    add_note(db, project, number, searchable=number < notes)
    return path


def _write_project(db: apsw.Connection, project: int) -> None:
    times, of = (TIME, TIME), project_id(project)
    key = f"local:/home/dev/{of}"
    db.execute(
        "INSERT INTO projects VALUES (?, 'sys_1', ?, ?, ?, '', ?, ?)", (of, f"p-{project}", f"P {project}", key, *times)
    )
    place = f"/home/dev/{of}"
    db.execute("INSERT INTO workspaces VALUES (?, ?, ?, ?, '', ?, ?)", (f"ws_{project}", of, place, place, *times))
    session = (f"sess_{project}", "sys_1", of, f"ws_{project}")
    db.execute(
        "INSERT INTO sessions VALUES (?, ?, ?, ?, 'a task', '', 'active', ?, NULL, ?, ?)", (*session, TIME, *times)
    )
    scope = (f"sess_{project}", "sys_1", of, f"ws_{project}")
    db.execute(
        "INSERT INTO handoffs (id, session_id, system_id, project_id, workspace_id, kind, task, summary, status,"
        " created_at, updated_at) VALUES (?, ?, ?, ?, ?, 'checkpoint', 'a task', 'half way there', 'open', ?, ?)",
        (f"handoff_{project}", *scope, *times),
    )


def add_note(
    db: apsw.Connection, project: int, number: int, *, searchable: bool = True, reason: str = "privacy", **more: Any
) -> str:
    """Add a note as the application does, and return its id; ``more`` are columns that differ from the usual ones."""
    title, content = text_of(project, number)
    row = {
        "id": note_id(project, number),
        "session_id": f"sess_{project}",
        "system_id": "sys_1",
        "project_id": project_id(project),
        "workspace_id": f"ws_{project}",
        "type": TYPES[number % len(TYPES)],
        "title": title,
        "content": content,
        "importance": 1 + number % 5,
        "status": STATUSES[number % len(STATUSES)],
        "source": "codex_explicit",
        "created_at": f"2026-03-20T08:{number % 60:02}:00Z",
        "updated_at": TIME,
        "searchable": int(searchable),
        "exclusion_reason": "" if searchable else reason,
        **more,
    }
    places = ", ".join(f":{name}" for name in row)
    db.execute(f"INSERT INTO memory_items ({', '.join(row)}) VALUES ({places})", row)
    return str(row["id"])


def run_sql(path: Path, sql: str, *values: Any, triggers: bool = True) -> None:
    """Run statements, without foreign keys and checks; without ``triggers`` the full-text index hears nothing of it."""
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, int(triggers))
        db.execute(sql, values)


def rows(path: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """Return what a query of a file gives, without a trace."""
    with sqlite.open_readonly(path) as db:
        return list(db.execute(query, values))


# --- what the application does --------------------------------------------------------------------------------------


def edit(path: Path, note: str, content: str = "Something else altogether was decided.") -> None:
    """Change a searchable note's content, as its triggers want it."""
    run_sql(path, "UPDATE memory_items SET content = ? WHERE id = ?", content, note)


def exclude(path: Path, note: str, reason: str = "privacy") -> None:
    """Take a searchable note out of every search."""
    run_sql(path, "UPDATE memory_items SET searchable = 0, exclusion_reason = ? WHERE id = ?", reason, note)


def delete(path: Path, note: str) -> None:
    run_sql(path, "DELETE FROM memory_items WHERE id = ?", note)


# --- damage to the full-text index ----------------------------------------------------------------------------------


def skew(path: Path, note: str = note_id(0, 6)) -> None:
    """Update an excluded note, by which the full-text index counts one row less than it has."""
    run_sql(path, "UPDATE memory_items SET updated_at = updated_at WHERE id = ? AND searchable = 0", note)
    assert rows(path, "SELECT 1 FROM memory_items WHERE id = ? AND searchable = 0", note), "the note is searchable"


def unindex(path: Path, note: str = note_id(0, 0)) -> None:
    """Take a searchable note out of the full-text index."""
    removal = (
        "INSERT INTO memory_items_fts (memory_items_fts, rowid, title, content) SELECT 'delete', rowid, title, content"
    )
    run_sql(path, f"{removal} FROM memory_items WHERE id = ?", note)


def index_excluded(path: Path) -> None:
    """Build the full-text index anew from every note, as SQLite does it."""
    run_sql(path, "INSERT INTO memory_items_fts (memory_items_fts) VALUES ('rebuild')")


# --- migration 006 and the sidecar ----------------------------------------------------------------------------------


def add_columns(path: Path, names: Iterable[str] = database.COLUMNS) -> None:
    """Add columns of migration 006, without a record of it."""
    for name in names:
        run_sql(path, f"ALTER TABLE memory_items ADD COLUMN {name} {database.COLUMNS[name]}")


def record(path: Path, name: str = database.MIGRATION[1]) -> None:
    """Record migration 006, whether its columns are there or not."""
    run_sql(path, "INSERT INTO schema_migrations VALUES (?, ?, ?)", database.MIGRATION[0], name, TIME)


def migrate(path: Path) -> None:
    """Add migration 006 whole."""
    add_columns(path)
    record(path)


def set_metadata(path: Path, note: str, **columns: Any) -> None:
    """Set columns of a note's metadata (``status`` for ``embedding_status``…), and nothing hears of it."""
    names = {name if name in database.COLUMNS else f"embedding_{name}": value for name, value in columns.items()}
    assert names.keys() <= database.COLUMNS.keys()
    setting = ", ".join(f"{name} = ?" for name in names)
    run_sql(path, f"UPDATE memory_items SET {setting} WHERE id = ?", *names.values(), note, triggers=False)


def searchable(path: Path) -> list[str]:
    """Return the ids of the searchable notes, in the order of their rowids."""
    return [str(note) for (note,) in rows(path, "SELECT id FROM memory_items WHERE searchable = 1 ORDER BY rowid")]


def embed(
    path: Path,
    notes: Iterable[str] | None = None,
    *,
    vector_for: Callable[[str], bytes] = vector_of,
    model: str = MODEL,
    marked: bool = True,
) -> Path:
    """Give notes their vectors, the vector first and the metadata after, and return the sidecar.

    Args:
        path: the database; what it lacks of migration 006 has to be there for ``marked``, else it is added whole.
        notes: their ids; None: all searchable ones.
        vector_for: the vector of a text.
        model: what made them.
        marked: whether the metadata are written, too; a run that is killed between the two leaves them out.
    """
    if not codex_mem_columns(path):
        migrate(path)
    place = database.sidecar_path(path)
    if not place.exists():
        sidecar.create_sidecar(place, model, DIMENSIONS, EMBEDDED)
    for note in searchable(path) if notes is None else notes:
        put_vector(path, note, vector_for=vector_for)
        if marked:
            mark_ready(path, note, model)
    run_sql(place, "UPDATE meta SET backfilled_at = ?", EMBEDDED)
    return place


def codex_mem_columns(path: Path) -> list[str]:
    """Return which columns of migration 006 a database has."""
    with sqlite.open_readonly(path) as db:
        return database.list_migrated_columns(db)


def parts_of(path: Path, note: str) -> tuple[str, str, str]:
    """Return title, type and content of a note."""
    [(title, kind, content)] = rows(path, "SELECT title, type, content FROM memory_items WHERE id = ?", note)
    return str(title), str(kind), str(content)


def put_vector(path: Path, note: str, *, vector_for: Callable[[str], bytes] = vector_of, **more: Any) -> None:
    """Write a note's vector into the sidecar; ``more`` are columns that differ from the usual ones."""
    parts = parts_of(path, note)
    row = {
        "note_id": note,
        "content_hash": database.note_content_hash(*parts),
        "content_version": database.CONTENT_VERSION,
        "vector": vector_for(database.note_source_text(*parts)),
        "embedded_at": EMBEDDED,
        **more,
    }
    places = ", ".join("?" for _ in row)
    query = f"REPLACE INTO {sidecar.TABLE} ({', '.join(row)}) VALUES ({places})"
    run_sql(database.sidecar_path(path), query, *row.values())


def mark_ready(path: Path, note: str, model: str = MODEL) -> None:
    """Write the metadata of a note that has its vector."""
    set_metadata(
        path,
        note,
        eligible=1,
        status="ready",
        model_id=model,
        content_hash=database.note_content_hash(*parts_of(path, note)),
        content_version=database.CONTENT_VERSION,
        embedded_at=EMBEDDED,
        error_code=None,
        error_at=None,
    )


def mark_failed(path: Path, note: str, code: str = "rejected") -> None:
    """Write the metadata of a note that its embedder refused, as it is now: it has no vector."""
    if database.sidecar_path(path).exists():
        run_sql(database.sidecar_path(path), f"DELETE FROM {sidecar.TABLE} WHERE note_id = ?", note)
    set_metadata(
        path,
        note,
        eligible=1,
        status="failed",
        content_hash=database.note_content_hash(*parts_of(path, note)),
        content_version=database.CONTENT_VERSION,
        error_code=code,
        error_at=EMBEDDED,
    )


def set_sidecar(path: Path, **columns: Any) -> None:
    """Set columns of the sidecar's identity row."""
    setting = ", ".join(f"{name} = ?" for name in columns)
    run_sql(database.sidecar_path(path), f"UPDATE meta SET {setting}", *columns.values())
