"""Checks before anything is written: the target folder, conflicts with existing bases, and free space."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from migrators.pipeline.plan import BasePlan
from migrators.pipeline.publication import (
    REPLACED,
    STAGING,
    WORK,
    BaseState,
    TargetLibrary,
    base_folder,
    base_state,
    check_base_entries,
    read_entry,
)
from migrators.pipeline.source import Options
from regraft.disk import file_paths, links, untrusted_sqlite, writable
from regraft.disk.trees import FolderTree
from regraft.errors import (
    ApplicationRunning,
    NotEnoughSpace,
    TargetBaseChanged,
    TargetBaseForeign,
    TargetBaseOfAnother,
    TargetCatalogChanged,
    TargetHasItem,
    TargetNotOurs,
    TargetNotWritable,
    TargetOverlapsSource,
)
from regraft.formats.cherry_v1 import profile as cherry_v1_profile
from regraft.formats.cherry_v2.layout import CATALOG_FILE, KNOWLEDGE_FOLDER, REPORT_FILE, REPORT_PAGE
from regraft.kinds import SYSTEMS, Kind
from regraft.language import join_list, tr
from regraft.ledger import ledger
from regraft.ledger.ledger import LedgerEntry
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.stores.locate import Located
from regraft.text import format_bytes

#: Files that file managers create in otherwise empty folders.
IGNORED = {".DS_Store", "Thumbs.db", "desktop.ini"}
#: Bytes of tables and indexes for one row, without its text and vector.
ROW_BYTES = 1_300
#: Bytes of an empty index.
EMPTY_INDEX_BYTES = 130_000
#: Bytes on disk for one byte of text: content, body and trigram index. Documents take about 5, text without repetitions
#: 7 in English and up to 10.5 in Chinese.
TEXT_FACTOR = 10.8
#: Bytes of catalog, ledger and report: in total, for each base, and for each item.
LIBRARY_BYTES, BASE_BYTES, ITEM_BYTES = 130_000, 15_000, 2_500
#: Size of a page of an index, and the part of it that holds no rows.
_PAGE, _PAGE_HEAD = 4096, 12
#: Bytes of key, time and lengths in a vector's row.
_VECTOR_ROW = 96
#: Estimated space for an unread vector file: its copy and the new index, as a multiple of its size.
UNREAD_FACTOR = 4.0


def check_target(target: Path, roots: Iterable[Path], source: Path) -> None:
    """Refuse a target that is not a library and not empty, is not a writable folder, or overlaps the source.

    ``roots`` are the files and folders that the source consists of, ``source`` is its display name.

    Raises:
        TargetOverlapsSource, TargetNotOurs, TargetNotWritable
    """
    real_target = _real_path(target)
    for root in roots:
        if links.is_at_or_below(real_target, root) or links.is_at_or_below(root, real_target):
            raise TargetOverlapsSource(path=target, source=source)
    _check_is_library_or_empty(target)
    _check_layout(target)
    _check_is_outside_libraries(target, real_target)
    parent = existing_parent(target)
    if not parent.is_dir():
        raise TargetNotWritable(path=target, reason=tr("{parent} is a file", parent=parent))
    if not os.access(parent, os.W_OK | os.X_OK):
        raise TargetNotWritable(path=target, reason=tr("no permission to write to {parent}", parent=parent))


def _check_is_library_or_empty(target: Path) -> None:
    """Refuse a target that exists and is neither a regraft library nor an empty folder.

    Raises:
        TargetNotOurs, TargetNotWritable
    """
    if target.is_symlink() and not target.exists():
        raise TargetNotWritable(path=target, reason=tr("it is a broken link"))
    if target.exists() and not target.is_dir():
        raise TargetNotOurs(path=target, found=tr("it is a file"))
    names = _list_names(target)
    if names and names != [ledger.FOLDER] and not ledger.ledger_path(target).is_file():
        raise TargetNotOurs(path=target, found=tr("it contains {names}", names=join_list(names[:3])))


def _check_is_outside_libraries(target: Path, real_target: Path) -> None:
    """Refuse a new target inside a library, whose commands would take it for files of the user.

    Raises:
        TargetNotWritable
    """
    if ledger.ledger_path(target).is_file():
        return
    for parent in real_target.parents:
        if ledger.ledger_path(parent).is_file() and (parent / CATALOG_FILE).is_file():
            raise TargetNotWritable(path=target, reason=tr("it is inside the library {parent}", parent=parent))


def _list_names(target: Path) -> list[str]:
    """List the names in the target folder in sorted order, without system files. Empty if it does not exist."""
    if not target.is_dir():
        return []
    try:
        return sorted({entry.name for entry in target.iterdir()} - IGNORED)
    except OSError as error:
        raise TargetNotWritable(path=target, reason=error.strerror or error) from error


def _check_layout(target: Path) -> None:
    """Refuse a library in which a file of the layout is not a file, or a folder not a folder.

    Raises:
        TargetNotWritable
    """
    for name in (CATALOG_FILE, REPORT_FILE, REPORT_PAGE):
        if (target / name).exists() and not (target / name).is_file():
            raise TargetNotWritable(path=target / name, reason=tr("it is not a file"))
    own = (f"{ledger.FOLDER}/{name}" for name in (STAGING, REPLACED, WORK))
    for name in (KNOWLEDGE_FOLDER, ledger.FOLDER, *own):
        if (target / name).exists() and not (target / name).is_dir():
            raise TargetNotWritable(path=target / name, reason=tr("it is not a folder"))


def check_running(profile: Path | None, options: Options) -> tuple[Notice, ...]:
    """Refuse to read a profile that an application is using, or warn about it if the user allows it.

    Sources other than live profiles have None as ``profile``.

    Raises:
        ApplicationRunning
    """
    sign = None if profile is None else cherry_v1_profile.detect_running_app(profile)
    if sign is None:
        return ()
    if not options.while_running:
        raise ApplicationRunning(path=profile, sign=sign)
    return (
        Notice(
            code=notices.APPLICATION_RUNNING, message=tr("read while the application was running ({sign})", sign=sign)
        ),
    )


def _real_path(target: Path) -> Path:
    """Return the target's real path; refuse a path that the system does not allow."""
    try:
        real = links.real_path(target)
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # RuntimeError: links form a loop; ValueError: the path contains NUL
        reason = error.strerror if isinstance(error, OSError) else None
        raise TargetNotWritable(path=target, reason=reason or error) from error
    if max(len(os.fsencode(part)) for part in real.parts) > file_paths.MAX_NAME_BYTES:
        raise TargetNotWritable(path=target, reason=os.strerror(errno.ENAMETOOLONG))
    for name in real.relative_to(existing_parent(real)).parts:
        if not file_paths.is_storable(name):
            raise TargetNotWritable(path=target, reason=tr("Windows does not allow the name {name}", name=name))
    return real


def source_roots(source: Located) -> list[Path]:
    """Return the files and folders that a source consists of. Some sources use folders beside them."""
    if not isinstance(source.tree, FolderTree) or (source.path.is_dir() and source.tree.path == source.path):
        return [source.path]
    if source.kind in (Kind.PREVIEW, Kind.V1_VECTORS):
        return [source.path]
    if source.kind in SYSTEMS:
        return [source.tree.path]
    beside = {source.places.vectors, source.places.uploads} - {None}
    return [source.path, *(source.tree.path / str(name) for name in beside)]


def existing_parent(path: Path) -> Path:
    """Return ``path`` or its nearest ancestor that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def check_conflicts(
    target: Path, command: str, base_ids: Iterable[str], entries: dict[str, LedgerEntry], changed: set[str]
) -> None:
    """Refuse to overwrite bases in the target that ``command`` did not write, or that were changed since.

    ``entries`` are the ledger entries by base id. ``changed`` are the ids of bases that will be written again.

    Raises:
        TargetNotOurs, TargetBaseForeign, TargetBaseChanged
        LinkInStore: a link is in the place of a base, even if it is broken.
    """
    for base_id in base_ids:
        folder = base_folder(target, base_id)
        writable.refuse_link(folder)
        known = read_entry(entries[base_id]) if base_id in entries else None
        if known is not None and known.command != command:
            raise TargetBaseForeign(path=folder, base=known.record.base.name, writer=known.command, command=command)
        if not folder.exists():
            continue
        if known is None:
            raise TargetNotOurs(path=folder, found=tr("the ledger has no record of it"))
        if base_id in changed and base_state(target, base_id, known) is BaseState.CHANGED:
            raise TargetBaseChanged(path=folder, base=known.record.base.name)


def check_same_source(target: Path, plans: Iterable[BasePlan], entries: dict[str, LedgerEntry]) -> None:
    """Refuse to overwrite a base that another source wrote, recognized by having no item in common.

    ``entries`` are the target's ledger entries by base id.

    Raises:
        TargetBaseOfAnother
    """
    for plan in plans:
        known = read_entry(entries[plan.draft.id]) if plan.draft.id in entries else None
        ours = {item.legacy_id for item in plan.draft.items}
        if known is not None and known.items and ours and ours.isdisjoint(known.items):
            raise TargetBaseOfAnother(path=target, base=known.record.base.name)


def check_items(
    target: Path, planned: Mapping[str, tuple[str, Iterable[str]]], entries: dict[str, LedgerEntry]
) -> None:
    """Refuse an item id that another base of the target has, because a catalog holds each id once.

    ``planned`` maps each base id to the name and the item ids of the base. ``entries`` are ledger entries by base id.

    Raises:
        TargetHasItem
    """
    others = {base_id: entry for base_id, entry in check_base_entries(entries).items() if base_id not in planned}
    owners = {item: entry for entry in others.values() for item in entry.items.values()}
    for name, items in planned.values() if owners else ():
        for item in items:
            if item in owners:
                base = owners[item].record.base.name
                raise TargetHasItem(path=target, base=base, item=item, other=name)


def check_catalog(library: TargetLibrary, ledger_record: ledger.Ledger) -> None:
    """Refuse to replace a catalog that another program changed since regraft wrote it.

    Raises:
        TargetCatalogChanged
    """
    if untrusted_sqlite.is_database(library.catalog) and not library.is_catalog_unchanged(ledger_record):
        raise TargetCatalogChanged(path=library.catalog)


def estimate_unread_bytes(source: Located, vector_names: Iterable[str]) -> int:
    """Estimate the disk space that a run needs for its vector files before they are surveyed."""
    sizes = sum(source.tree.size(name) for name in vector_names if name and source.tree.kind(name) == "file")
    return int(sizes * UNREAD_FACTOR)


def estimate_base_bytes(plan: BasePlan) -> int:
    """Estimate the size of one base's index and snapshots in bytes."""
    if not plan.has_index:
        return 0
    vectors = plan.units - plan.rows.without_vector
    return estimate_index_bytes(plan.units, vectors, vectors * plan.vector_bytes, plan.body_bytes)


def estimate_index_bytes(units: int, vectors: int, vector_bytes: int, body_bytes: int) -> int:
    """Estimate the size of an index in bytes.

    ``units`` and ``vectors`` are numbers, ``vector_bytes`` and ``body_bytes`` the total sizes of all vectors and texts.
    """
    taken = vectors * _bytes_on_pages(vector_bytes // max(vectors, 1))
    return EMPTY_INDEX_BYTES + int(units * ROW_BYTES + taken + body_bytes * TEXT_FACTOR)


def estimate_library_bytes(bases: int, items: int) -> int:
    """Estimate the size of a library without its indexes and files in bytes, from its number of bases and items."""
    return LIBRARY_BYTES + bases * BASE_BYTES + items * ITEM_BYTES


def _bytes_on_pages(length: int) -> float:
    """Return the disk space of a vector of ``length`` bytes in an SQLite table.

    A vector longer than a page continues on overflow pages. Space on a page that is too small for another vector is
    unused. See https://www.sqlite.org/fileformat2.html, "B-tree Pages".
    """
    payload = length + _VECTOR_ROW
    most, least, rest = _PAGE - 35, (_PAGE - _PAGE_HEAD) * 32 // 255 - 23, _PAGE - 4
    if payload > most:
        local = least + (payload - least) % rest
        local = local if local <= most else least
    else:
        local = payload
    others = -(-(payload - local) // rest)
    return _PAGE / max(1, (_PAGE - _PAGE_HEAD) // local) + others * _PAGE


def check_space(target: Path, needed: int) -> int:
    """Refuse a target whose disk has less than ``needed`` bytes free. Return the free bytes.

    Raises:
        NotEnoughSpace
    """
    free = shutil.disk_usage(existing_parent(target)).free
    if needed > free:
        raise NotEnoughSpace(path=target, needed=format_bytes(needed), free=format_bytes(free))
    return free
