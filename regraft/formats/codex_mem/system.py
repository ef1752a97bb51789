"""Store definition of codex-mem: a database of notes, and a sidecar file with their vectors."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import apsw

from regraft.disk import links, sqlite
from regraft.disk.trees import FolderTree
from regraft.errors import ProjectUnknown
from regraft.formats.codex_mem import database
from regraft.kinds import Kind
from regraft.language import tr
from regraft.stores.systems import Located, System
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
        """See :class:`System`."""
        return database.find_database(path)

    def has_tables(self, tables: Collection[str]) -> bool:
        """See :class:`System`."""
        return set(tables) >= database.MARKS

    def has_name(self, path: Path) -> bool:
        """See :class:`System`."""
        return path.name == database.FILE

    def describe(self, path: Path) -> str | None:
        """See :class:`System`."""
        notes = database.database_of_sidecar(path)
        if notes is None or not notes.is_file():
            return None
        return tr("the vectors of {notes}; use that path instead", notes=printable(notes))

    def located(self, path: Path) -> Located:
        """See :class:`System`."""
        # The sidecar and any replacement belong next to the real file.
        real = links.real_path(path) if path.is_symlink() else path
        return Located(kind=self.kind, path=real, tree=FolderTree(real.parent))

    def databases(self, found: Located) -> Iterator[str]:
        """See :class:`System`."""
        yield found.path.name
        yield database.sidecar_path(found.path).name

    def guarded(self, db: apsw.Connection) -> AbstractContextManager[None]:
        """See :class:`System`."""
        return database.guard_excluded_notes(db)

    def part_names(self, found: Located) -> dict[str, str]:
        """See :class:`System`."""
        with contextlib.suppress(apsw.Error, OSError, UnicodeDecodeError), sqlite.open_readonly(found.path) as db:
            return {key: project.name for key, project in database.read_projects(db).items()}
        return {}

    def changes_only(self, found: Located) -> frozenset[str] | None:
        """See :class:`System`."""
        return frozenset(self.databases(found))


SYSTEM = CodexMem()
