"""codex-mem: a database of notes, with their vectors in a sidecar beside it (``docs/formats/codex_mem.md``)."""

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
    """Stores are databases; each is divided into projects."""

    kind = Kind.CODEX_MEM
    part = "project"
    part_unknown = ProjectUnknown
    commands = frozenset({"fix", "repair", "reconcile", "backfill", "rebuild", "clear-failed", "history", "undo"})
    full_text_tables = frozenset(database.FULL_TEXT_TABLES)
    migrate_advice = tr("it is not a knowledge base of the application; regraft backfill gives its notes vectors")

    def store_at(self, path: Path) -> Path | None:
        """See :class:`System`."""
        return database.database_in(path)

    def has_tables(self, tables: Collection[str]) -> bool:
        """See :class:`System`."""
        return set(tables) >= database.MARKS

    def has_name(self, path: Path) -> bool:
        """See :class:`System`."""
        return path.name == database.FILE

    def describe(self, path: Path) -> str | None:
        """See :class:`System`."""
        notes = database.database_of(path)
        if notes is None or not notes.is_file():
            return None
        return tr("the vectors of {notes}: give that", notes=printable(notes))

    def located(self, path: Path) -> Located:
        """See :class:`System`."""
        # What lies beside it, or takes its place, does so where the file itself is.
        real = links.real_path(path) if path.is_symlink() else path
        return Located(kind=self.kind, path=real, tree=FolderTree(real.parent))

    def databases(self, found: Located) -> Iterator[str]:
        """See :class:`System`."""
        yield found.path.name
        yield database.sidecar_of(found.path).name

    def guarded(self, db: apsw.Connection) -> AbstractContextManager[None]:
        """See :class:`System`."""
        return database.excluded_guarded(db)

    def part_names(self, found: Located) -> dict[str, str]:
        """See :class:`System`."""
        with contextlib.suppress(apsw.Error, OSError, UnicodeDecodeError), sqlite.open_readonly(found.path) as db:
            return {key: project.name for key, project in database.projects(db).items()}
        return {}

    def changes_only(self, found: Located) -> frozenset[str] | None:
        """See :class:`System`."""
        return frozenset(self.databases(found))


SYSTEM = CodexMem()
