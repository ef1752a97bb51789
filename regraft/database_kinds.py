"""What a SQLite file is, by the tables that it has."""

from __future__ import annotations

from pathlib import Path

from regraft import links, systems
from regraft.errors import SourceUnrecognised
from regraft.formats.cherry_preview import libsql
from regraft.formats.cherry_v2.layout import PROFILE_DATABASE
from regraft.kinds import Kind
from regraft.language import tr


def kind_by_tables(path: Path, tables: set[str]) -> Kind:
    """Return what a SQLite file is, by its tables.

    Raises:
        SourceUnrecognised: none of the known kinds.
    """
    for system in systems.every():
        if system.has_tables(tables):
            return system.kind
    if libsql.TABLE in tables and libsql.look(path).layout is libsql.Layout.PREVIEW:
        return Kind.PREVIEW
    if "search_unit" in tables:
        return Kind.INDEX
    if "vectors" in tables:
        return Kind.V1_VECTORS
    if "knowledge_base" in tables:
        real = links.real_path(path) if path.is_symlink() else path
        return Kind.V2_PROFILE if real.name == PROFILE_DATABASE else Kind.LIBRARY
    raise SourceUnrecognised(path=path, found=_other_database(path))


def _other_database(path: Path) -> str:
    """Say what a SQLite file is that is none of the known kinds."""
    described = (system.describe(path) for system in systems.every())
    return next(filter(None, described), tr("a SQLite file with none of the known tables"))
