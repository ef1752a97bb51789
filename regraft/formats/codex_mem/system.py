"""Store definition of codex-mem: a database of notes, and a sidecar file with their vectors."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import apsw

from regraft.disk import links, sqlite
from regraft.disk.trees import FolderTree
from regraft.errors import ProjectUnknown, SourceUnreadable
from regraft.formats.codex_mem import database, sidecar
from regraft.kinds import Kind
from regraft.language import tr
from regraft.stores.systems import Located, SidecarProblem, StoredVectors, System, TextVector
from regraft.text import printable


class CodexMem(System):
    """codex-mem. A store is a database, divided into projects."""

    kind = Kind.CODEX_MEM
    part = "project"
    part_unknown = ProjectUnknown
    commands = frozenset({"fix", "repair", "reconcile", "backfill", "rebuild", "clear-failed", "history", "undo"})
    full_text_tables = frozenset(database.FULL_TEXT_TABLES)
    migrate_advice = tr("it is not a Cherry Studio knowledge base; regraft backfill embeds its notes")

    def store_at(self, path: Path) -> Path | None:
        """Return the database in a folder, or None."""
        return database.find_database(path)

    def has_tables(self, tables: Collection[str]) -> bool:
        """Whether a SQLite file with these tables is a database of codex-mem."""
        return set(tables) >= database.MARKS

    def has_name(self, path: Path) -> bool:
        """Whether a file that cannot be read has the name of a store's database."""
        return path.name == database.FILE

    def describe(self, path: Path) -> str | None:
        """Describe a SQLite file that belongs to a store without being one; None for other files."""
        notes = database.database_of_sidecar(path)
        if notes is None or not notes.is_file():
            return None
        return tr("the vectors of {notes}; use that path instead", notes=printable(notes))

    def locate(self, path: Path) -> Located:
        """Describe the store at a path that :meth:`store_at` returned."""
        # The sidecar and any replacement belong next to the real file.
        real = links.real_path(path) if path.is_symlink() else path
        return Located(kind=self.kind, path=real, tree=FolderTree(real.parent))

    def databases(self, source: Located) -> Iterator[str]:
        """Yield the paths of a store's SQLite files, relative to its root."""
        yield source.path.name
        yield database.sidecar_path(source.path).name

    def text_vectors(self, source: Located) -> Iterator[StoredVectors]:
        """Yield the vectors of the sidecar that belong to the current text of a note, by the hash of the text.

        Raises:
            SourceUnreadable: the database or the sidecar cannot be read.
        """
        path = database.sidecar_path(source.path)
        try:
            with (
                sqlite.open_readonly(source.path, beside_writers=True) as db,
                sidecar.open_sidecar(path) as (side, meta),
            ):
                if meta.dimensions is not None:
                    rows = _read_vectors(db, side, meta)
                    yield StoredVectors(name=path.name, model_id=meta.model_id, dimensions=meta.dimensions, rows=rows)
        except FileNotFoundError:
            return
        except SidecarProblem as problem:
            raise SourceUnreadable(path=path, reason=problem) from problem
        except (apsw.Error, OSError, UnicodeDecodeError) as error:
            raise SourceUnreadable(path=source.path, reason=error) from error

    def guard_rows(self, db: apsw.Connection) -> AbstractContextManager[None]:
        """Context in which changes to notes that the user excluded are rejected."""
        return database.guard_excluded_notes(db)

    def part_names(self, source: Located) -> dict[str, str]:
        """Map the id of each project of a store to its name; empty if the database cannot be read."""
        with contextlib.suppress(apsw.Error, OSError, UnicodeDecodeError), sqlite.open_readonly(source.path) as db:
            return {key: project.name for key, project in database.read_projects(db).items()}
        return {}

    def changeable_paths(self, source: Located) -> frozenset[str] | None:
        """Return the paths of the store's own SQLite files, relative to its root: only these may change."""
        return frozenset(self.databases(source))


def _read_vectors(db: apsw.Connection, side: apsw.Connection, meta: sidecar.SidecarMeta) -> Iterator[TextVector]:
    """Yield (text hash, vector) of each note whose vector is of its current text.

    ``side`` and ``meta`` are the open sidecar and its identity row.
    """
    vectors = sidecar.SidecarVectors(side, meta)
    for note in database.NoteReader(db, vectors).iterate():
        if note.has_vector:
            yield note.hash, vectors.bytes_of(note.id)


SYSTEM = CodexMem()
