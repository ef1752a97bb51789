"""Check a store before it is changed: links in its own layout, and a pending restore or reset of its profile. Also
list the places that a command reads (:func:`places_read`), where it must not write its output.

A store with a link in place of one of its own files or folders is refused at once, before anything is planned or paid
for; every write checks again (:mod:`regraft.disk.writable`). Links of the user, below ``raw/`` for example, are not
affected.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from regraft.disk import links, untrusted_sqlite, writable
from regraft.formats import json_text
from regraft.formats.cherry_v2 import layout
from regraft.formats.cherry_v2.layout import REPORT_FILE, REPORT_PAGE
from regraft.kinds import SYSTEMS
from regraft.language import tr
from regraft.ledger import ledger
from regraft.stores import systems
from regraft.stores.locate import Located


def places_read(path: Path, found: Located | None = None) -> list[Path]:
    """List the files and folders that a command reads when the user names ``path``.

    These are the path itself, the base of an index file, the folder of a catalog, and the data folder that the settings
    of an application name. A folder that contains a base is not among them.

    Args:
        path: as the user named it.
        found: what it was recognized as; None: unknown, then by its name alone.
    """
    places = [path]
    if layout.is_index_path(path):
        places.append(path.absolute().parents[1])
    elif path.name == layout.CATALOG_FILE:
        places.append(path.absolute().parent)
    if found is not None:
        places.append(found.path)
        if not links.real_path(path).is_relative_to(links.real_path(found.tree.path)):
            places.append(found.tree.path)
    return places


def refuse_store_links(source: Located) -> None:
    """Raise if a link is in place of a file or folder of a store's layout, or of regraft's own.

    Raises:
        LinkInStore
        OSError: a folder cannot be read.
    """
    root = source.tree.path
    refuse_links_on_way(root, _layout_paths(source))
    refuse_own_links(root)


def refuse_library_links(root: Path) -> None:
    """Raise if a file or folder of a library that will be written is a link; the library may be empty or missing.

    Raises:
        LinkInStore
        OSError: a folder cannot be read.
    """
    refuse_links_on_way(root, _library_paths(root, layout.KNOWLEDGE_FOLDER, layout.CATALOG_FILE))
    refuse_own_links(root)


def refuse_own_links(root: Path) -> None:
    """Raise if ``.regraft`` or one of regraft's own folders in it is a link; backups kept there may be links.

    Raises:
        LinkInStore
        OSError: a folder cannot be read.
    """
    refuse_links_on_way(root, [ledger.FOLDER])
    for folder in _entries_without_links(root / ledger.FOLDER):
        for inner in _entries_without_links(folder):
            writable.refuse_link(inner)


def refuse_links_on_way(root: Path, names: Iterable[str]) -> None:
    """Raise if one of the paths ``names``, relative to ``root``, or a folder in such a path, is a link.

    Raises:
        LinkInStore
    """
    seen: set[str] = set()
    for name in names:
        path = ""
        for part in PurePosixPath(name).parts:
            path = f"{path}/{part}" if path else part
            if path not in seen:
                seen.add(path)
                writable.refuse_link(root / path)


def _entries_without_links(folder: Path) -> Iterator[Path]:
    """Yield the entries of a folder; nothing if it is not a folder.

    Raises:
        LinkInStore: an entry is a link.
    """
    for inner in sorted(folder.iterdir()) if folder.is_dir() else ():
        writable.refuse_link(inner)
        yield inner


def _layout_paths(source: Located) -> Iterator[str]:
    """Yield the relative paths of a store's files and folders that must not be links."""
    if source.kind in SYSTEMS:
        system = systems.system_of(source.kind)
        yield from _database_paths(*system.databases(source))
        yield from system.files(source)
        return
    stores = source.stores
    # A link hides what is behind it from the search for stores, so the usual paths are always checked.
    yield layout.KNOWLEDGE_FOLDER
    yield f"{layout.DATA_FOLDER}/{layout.KNOWLEDGE_FOLDER}"
    yield from _database_paths(layout.CATALOG_FILE, layout.PROFILE_DATABASE, layout.LIVE_DATABASE)
    for store in (*stores.current, *stores.preview):
        yield from _database_paths(store.name)
        yield store.raw
    yield from _library_paths(source.tree.path, stores.bases, stores.catalog)


def _library_paths(root: Path, bases: str, catalog: str | None) -> Iterator[str]:
    """Yield the relative paths of a library's files and folders that must not be links.

    ``bases`` is the folder of all bases, ``catalog`` the catalog file (None: the library has none).
    """
    yield from (REPORT_FILE, REPORT_PAGE, bases)
    if catalog is not None:
        yield from _database_paths(catalog)
    # A folder whose index is missing or behind a link also belongs to a base.
    existing = (root / bases).iterdir() if (root / bases).is_dir() else ()
    for folder in sorted(path for path in existing if path.is_dir()):
        base = PurePosixPath(bases, folder.name)
        yield from (str(base / layout.RAW_FOLDER), *_database_paths(str(base / layout.INDEX_FILE)))


def _database_paths(*names: str) -> Iterator[str]:
    """Yield the paths of SQLite files with those of the files that SQLite keeps beside them."""
    for name in names:
        yield from (f"{name}{suffix}" for suffix in ("", *untrusted_sqlite.COMPANION_SUFFIXES))


# Pending changes: whether the application will replace or delete a profile's data at its next start, and discard what
# is written until then (``docs/formats/catalog.md``, "Pending restores and resets").


#: The journal of a restore, in the profile.
RESTORE_JOURNAL = "Data/restore-journal.json"
#: The record of a reset that is pending until the next start, in the profile.
RESET_RECORD = "data-reset.pending.json"
#: States of each version of the journal in which the restore is pending, with their meaning.
_STAGED = {
    1: {
        "staged": tr("the application will restore a backup at its next start"),
        "promoting": tr("a restore is being put into place"),
    },
    2: {
        "prepared": tr("the application has prepared the restore of a backup"),
        "armed": tr("the application will restore a backup at its next start"),
        "promoting": tr("a restore is being put into place"),
        "reverting": tr("a restore is being rolled back"),
        "rollback-armed": tr("the application will undo a restore at its next start"),
    },
}
#: States in which the restore has ended.
_SETTLED = {1: {"completed", "failed", "expired"}, 2: {"completed", "rolled-back", "failed", "expired"}}
#: Both files hold only a few paths and times.
_LARGEST = 16 << 20


def find_pending_change(profile: Path) -> str | None:
    """Describe the pending replacement or deletion of a profile's data, or return None. Never raises.

    An unreadable record counts as pending.
    """
    return _describe_pending_restore(profile) or _describe_pending_reset(profile)


def _describe_pending_restore(profile: Path) -> str | None:
    """Describe a restore that the application will do at its next start, or return None."""
    problem, journal = _read_record(profile / RESTORE_JOURNAL)
    if problem is None and journal is None:
        return None
    version, state = (None, None) if journal is None else (journal.get("version"), journal.get("state"))
    if type(version) is int and isinstance(state, str):
        if state in _SETTLED.get(version, ()):
            return None
        if state in _STAGED.get(version, ()):
            return f"{_STAGED[version][state]} ({RESTORE_JOURNAL})"
    return tr(
        "a restore may be pending: {restore_journal} {problem}",
        restore_journal=RESTORE_JOURNAL,
        problem=problem or tr("has none of the known states"),
    )


def _describe_pending_reset(profile: Path) -> str | None:
    """Describe a reset that the application will do at its next start, or return None."""
    problem, record = _read_record(profile / RESET_RECORD)
    if problem is None and record is None:
        return None
    status = None if record is None else record.get("status")
    if isinstance(status, str) and status != "pending":
        return None
    deleted = tr(
        "the application will delete all data here at its next start; copy everything that you want to keep first"
    )
    if status == "pending":
        return tr("a reset is pending ({reset_record}); {deleted}", reset_record=RESET_RECORD, deleted=deleted)
    return tr(
        "a reset may be pending: {reset_record} {problem}; if so, {deleted}",
        reset_record=RESET_RECORD,
        problem=problem or tr("has no status"),
        deleted=deleted,
    )


def _read_record(path: Path) -> tuple[str | None, dict[str, Any] | None]:
    """Return what is wrong with a JSON record, and its content: one is None, or both if the file does not exist."""
    try:
        if not os.path.lexists(path):
            return None, None
        if not path.is_file():
            return tr("is not a file"), None
        with path.open("rb") as file:
            # The application reads UTF-8 without a byte order mark; from bytes, Python would also accept other
            # encodings.
            found: Any = json_text.loads(file.read(_LARGEST).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else tr("not JSON")
        return tr("cannot be read ({reason})", reason=reason), None
    return (None, found) if isinstance(found, dict) else (tr("is not a JSON object"), None)
