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
        """Return the store that a folder is, contains, or belongs to, or None."""
        return database.find_database(path)

    def has_tables(self, tables: Collection[str]) -> bool:
        """Whether a SQLite file with these tables is a store."""
        return set(tables) >= database.MARKS

    def has_name(self, path: Path) -> bool:
        """Whether an unreadable file is a store, judged by its name."""
        return path.name == database.FILE

    def describe(self, path: Path) -> str | None:
        """Describe a SQLite file that belongs to a store without being one; None for other files."""
        notes = database.database_of_sidecar(path)
        if notes is None or not notes.is_file():
            return None
        return tr("the vectors of {notes}; use that path instead", notes=printable(notes))

    def locate(self, path: Path) -> Located:
        """Return the store at a path."""
        # The sidecar and any replacement belong next to the real file.
        real = links.real_path(path) if path.is_symlink() else path
        return Located(kind=self.kind, path=real, tree=FolderTree(real.parent))

    def databases(self, found: Located) -> Iterator[str]:
        """Yield the paths of a store's SQLite files, relative to its root."""
        yield found.path.name
        yield database.sidecar_path(found.path).name

    def text_vectors(self, found: Located) -> Iterator[StoredVectors]:
        """Yield the vectors of the sidecar that belong to the current text of a note; see :class:`System`."""
        path = database.sidecar_path(found.path)
        try:
            with (
                sqlite.open_readonly(found.path, beside_writers=True) as db,
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
            raise SourceUnreadable(path=found.path, reason=error) from error

    def guard_rows(self, db: apsw.Connection) -> AbstractContextManager[None]:
        """Reject changes to protected rows within the context. Other files are not affected."""
        return database.guard_excluded_notes(db)

    def part_names(self, found: Located) -> dict[str, str]:
        """Map the id of each part to its name; empty if they cannot be read."""
        with contextlib.suppress(apsw.Error, OSError, UnicodeDecodeError), sqlite.open_readonly(found.path) as db:
            return {key: project.name for key, project in database.read_projects(db).items()}
        return {}

    def changeable_paths(self, found: Located) -> frozenset[str] | None:
        """Return the paths that may change, if other stores can be in the same folder; None: all of them."""
        return frozenset(self.databases(found))


def _read_vectors(db: apsw.Connection, side: apsw.Connection, meta: sidecar.SidecarMeta) -> Iterator[TextVector]:
    """Yield the vector of each note that has one of its current text."""
    vectors = sidecar.SidecarVectors(side, meta)
    for note in database.NoteReader(db, vectors).iterate():
        if note.has_vector:
            yield note.hash, vectors.bytes_of(note.id)


SYSTEM = CodexMem()
