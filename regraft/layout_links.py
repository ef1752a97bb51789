"""Links where a store's own folders and files belong: a store that has one is not changed, and told so at once.

Every write looks again (:mod:`regraft.areas`); here a command is refused before it has looked at anything else, so that
nothing is planned, paid for or half done. Links of the user's, say below ``raw/``, are no part of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from regraft import areas, sqlite, systems
from regraft.formats.cherry_v2 import layout
from regraft.formats.cherry_v2.library_report import REPORT_FILE, REPORT_PAGE
from regraft.kinds import SYSTEMS
from regraft.ledger import ledger
from regraft.locate import Located


def demand_none(found: Located) -> None:
    """Refuse a store with a link in the place of a folder or file of its layout, or of regraft's own.

    Raises:
        LinkInStore
        OSError: a folder cannot be read.
    """
    root = found.tree.path
    demand_plain(root, _names(found))
    demand_own_plain(root)


def demand_none_in_library(root: Path) -> None:
    """Do the same for a library that is written: it may be empty, or not there yet.

    Raises:
        LinkInStore
        OSError: a folder cannot be read.
    """
    demand_plain(root, _of_library(root, layout.KNOWLEDGE_FOLDER, layout.CATALOG_FILE))
    demand_own_plain(root)


def demand_own_plain(root: Path) -> None:
    """Do the same for ``.regraft`` alone, as deep as it is regraft's own: what is kept there may be a link.

    Raises:
        LinkInStore
        OSError: a folder cannot be read.
    """
    demand_plain(root, [ledger.FOLDER])
    for folder in _folders(root / ledger.FOLDER):
        for inner in _folders(folder):
            areas.refuse_link(inner)


def demand_plain(root: Path, names: Iterable[str]) -> None:
    """Refuse a link anywhere on the way from a root to what these names, ``/`` between parts, stand for.

    Raises:
        LinkInStore
    """
    seen: set[PurePosixPath] = set()
    for name in names:
        path = PurePosixPath(name)
        for part in (*reversed(path.parents), path):
            if part.parts and part not in seen:
                seen.add(part)
                areas.refuse_link(root / part)


def _folders(folder: Path) -> Iterator[Path]:
    """Yield what lies in a folder, if it is one; no link is among it.

    Raises:
        LinkInStore: one is.
    """
    for inner in sorted(folder.iterdir()) if folder.is_dir() else ():
        areas.refuse_link(inner)
        yield inner


def _names(found: Located) -> Iterator[str]:
    if found.kind in SYSTEMS:
        system = systems.system_of(found.kind)
        yield from _databases(*system.databases(found))
        yield from system.files(found)
        return
    stores = found.stores
    # What lies behind a link is not seen, and nothing seems to be there.
    yield layout.KNOWLEDGE_FOLDER
    yield f"{layout.DATA_FOLDER}/{layout.KNOWLEDGE_FOLDER}"
    yield from _databases(layout.CATALOG_FILE, layout.PROFILE_DATABASE, layout.LIVE_DATABASE)
    for store in (*stores.current, *stores.preview):
        yield from _databases(store.name)
        yield store.raw
    yield from _of_library(found.tree.path, stores.bases, stores.catalog)


def _of_library(root: Path, bases: str, catalog: str | None) -> Iterator[str]:
    yield from (REPORT_FILE, REPORT_PAGE, bases)
    if catalog is not None:
        yield from _databases(catalog)
    # A folder whose index lies behind a link, or nowhere, is that of a base, too.
    for folder in _entries(root / bases):
        base = PurePosixPath(bases, folder.name)
        yield from (str(base / layout.RAW_FOLDER), *_databases(str(base / layout.INDEX_FILE)))


def _entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _databases(*names: str) -> Iterator[str]:
    for name in names:
        yield from (f"{name}{suffix}" for suffix in ("", *sqlite.TRACES))
