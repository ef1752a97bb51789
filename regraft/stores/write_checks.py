"""Links where a store's own folders and files belong: a store that has one is not changed, and told so at once.

Every write looks again (:mod:`regraft.disk.writable`); here a command is refused before it has looked at anything else, so that
nothing is planned, paid for or half done. Links of the user's, say below ``raw/``, are no part of this.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from regraft.disk import untrusted_sqlite, writable
from regraft.formats import json_text
from regraft.formats.cherry_v2 import layout
from regraft.formats.cherry_v2.layout import REPORT_FILE, REPORT_PAGE
from regraft.kinds import SYSTEMS
from regraft.language import tr
from regraft.ledger import ledger
from regraft.stores import systems
from regraft.stores.locate import Located


def refuse_store_links(found: Located) -> None:
    """Refuse a store with a link in the place of a folder or file of its layout, or of regraft's own.

    Raises:
        LinkInStore
        OSError: a folder cannot be read.
    """
    root = found.tree.path
    refuse_links_on_way(root, _names(found))
    refuse_own_links(root)


def refuse_library_links(root: Path) -> None:
    """Do the same for a library that is written: it may be empty, or not there yet.

    Raises:
        LinkInStore
        OSError: a folder cannot be read.
    """
    refuse_links_on_way(root, _of_library(root, layout.KNOWLEDGE_FOLDER, layout.CATALOG_FILE))
    refuse_own_links(root)


def refuse_own_links(root: Path) -> None:
    """Do the same for ``.regraft`` alone, as deep as it is regraft's own: what is kept there may be a link.

    Raises:
        LinkInStore
        OSError: a folder cannot be read.
    """
    refuse_links_on_way(root, [ledger.FOLDER])
    for folder in _folders(root / ledger.FOLDER):
        for inner in _folders(folder):
            writable.refuse_link(inner)


def refuse_links_on_way(root: Path, names: Iterable[str]) -> None:
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
                writable.refuse_link(root / part)


def _folders(folder: Path) -> Iterator[Path]:
    """Yield what lies in a folder, if it is one; no link is among it.

    Raises:
        LinkInStore: one is.
    """
    for inner in sorted(folder.iterdir()) if folder.is_dir() else ():
        writable.refuse_link(inner)
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
        yield from (f"{name}{suffix}" for suffix in ("", *untrusted_sqlite.COMPANION_SUFFIXES))


# Whether the application is going to replace or delete a profile's data at its next start.
#
# What is written until then is thrown away (``docs/formats/catalog.md``, "Pending restores and resets").


#: What a restore records of itself, in the profile.
RESTORE_JOURNAL = "Data/restore-journal.json"
#: What a reset that waits for the next start records of itself, in the profile.
RESET_RECORD = "data-reset.pending.json"
#: The states of each version of that journal in which a restore is to come, and what they mean.
_STAGED = {
    1: {"staged": tr("a restore is staged"), "promoting": tr("a restore is being put into place")},
    2: {
        "prepared": tr("a restore is prepared"),
        "armed": tr("a restore is staged"),
        "promoting": tr("a restore is being put into place"),
        "reverting": tr("a restore is being taken back"),
        "rollback-armed": tr("taking a restore back is staged"),
    },
}
#: The states in which it is over.
_SETTLED = {1: {"completed", "failed", "expired"}, 2: {"completed", "rolled-back", "failed", "expired"}}
#: Neither holds more than a few paths and times.
_LARGEST = 16 << 20


def find_pending_change(profile: Path) -> str | None:
    """Return what of a profile's data is going to be replaced or deleted, for a person; None where nothing is.

    A record that cannot be read counts as pending. Nothing is raised.
    """
    return _restore(profile) or _reset(profile)


def _restore(profile: Path) -> str | None:
    problem, journal = _read(profile / RESTORE_JOURNAL)
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
        problem=problem or tr("says of none of the known states"),
    )


def _reset(profile: Path) -> str | None:
    problem, record = _read(profile / RESET_RECORD)
    if problem is None and record is None:
        return None
    status = None if record is None else record.get("status")
    if isinstance(status, str) and status != "pending":
        return None
    deleted = tr("at its next start the application deletes all data here: copy what you want to keep first")
    if status == "pending":
        return tr("a reset is pending ({reset_record}); {deleted}", reset_record=RESET_RECORD, deleted=deleted)
    return tr(
        "a reset may be pending: {reset_record} {problem}; if so, {deleted}",
        reset_record=RESET_RECORD,
        problem=problem or tr("has no status"),
        deleted=deleted,
    )


def _read(path: Path) -> tuple[str | None, dict[str, Any] | None]:
    """Return what is wrong with a record and what it holds; both None where there is none."""
    try:
        if not os.path.lexists(path):
            return None, None
        if not path.is_file():
            return tr("is not a file"), None
        with path.open("rb") as file:
            # The application reads UTF-8 and takes no byte order mark; from bytes Python would take both and more.
            found: Any = json_text.loads(file.read(_LARGEST).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else tr("not JSON")
        return tr("cannot be read ({reason})", reason=reason), None
    return (None, found) if isinstance(found, dict) else (tr("is not a JSON object"), None)
