"""Recognize the kind of store that any path given by a user is, and open it; extract archives of v2 data."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import struct
import zipfile
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path, PurePosixPath

import apsw

from regraft.disk import durable, file_paths, links, scratch, sqlite, zip_salvage
from regraft.disk.trees import FolderTree, Tree, ZipTree, join_path, open_tree, require_free_space
from regraft.disk.untrusted_sqlite import COMPANION_SUFFIXES
from regraft.errors import (
    ArchiveEncrypted,
    ArchiveUnsafe,
    BackupInFolder,
    BackupTooNew,
    ParquetFileGiven,
    ProfileAmbiguous,
    RegraftError,
    SourceNotFound,
    SourceUnreadable,
    SourceUnrecognised,
    StoresInFolder,
)
from regraft.formats import cherry_preview, json_text
from regraft.formats.cherry_v1 import profile as cherry_v1_profile
from regraft.formats.cherry_v1 import state as cherry_v1_state
from regraft.formats.cherry_v1.layout import (
    BROWSER_PROFILE,
    EXPORT_FOLDER,
    LOCAL_STORAGE,
    SLICES_FOLDER,
    StatePaths,
    locate_export_state,
    locate_file_state,
    locate_profile_state,
    locate_vector_folders,
)
from regraft.formats.cherry_v1.state import BackupMetadata, find_inner_folder, read_backup_metadata
from regraft.formats.cherry_v2 import layout, pack
from regraft.formats.cherry_v2 import layout as cherry_v2_layout
from regraft.formats.cherry_v2.layout import REPORT_FILE
from regraft.identity import replace
from regraft.kinds import KIND_NAMES, SYSTEMS, V1_SOURCES, V2_LAYOUTS, Kind
from regraft.language import format_count, join_list, tr
from regraft.ledger import ledger
from regraft.ledger.ledger import find_unfinished_run
from regraft.report import notices
from regraft.report.notices import ARCHIVE_SALVAGED, Notice
from regraft.stores import systems
from regraft.stores.systems import Located as Located  # noqa: PLC0414 - callers find it here, too
from regraft.stores.systems import kind_by_tables
from regraft.text import join_command, path_argument, printable, quote_word


def link_notices(tree: Tree) -> Iterator[Notice]:
    """Yield a notice for each link of a source that led outside of the source and was not followed.

    Only links that have been read so far are known.
    """
    for name, target in tree.not_followed.items() if isinstance(tree, FolderTree) else ():
        message = tr(
            "{name} is a link to {target}, outside of the source, and was not followed; use {option} to follow it",
            name=printable(name),
            target=printable(target),
            option=links.FOLLOW_OPTION,
        )
        yield Notice(code=notices.LINK_NOT_FOLLOWED, message=message)


logger = logging.getLogger(__name__)

CATALOG_FILE = cherry_v2_layout.CATALOG_FILE
PROFILE_DATABASE = cherry_v2_layout.PROFILE_DATABASE
KNOWLEDGE_FOLDER = cherry_v2_layout.KNOWLEDGE_FOLDER
INDEX_FILE = cherry_v2_layout.INDEX_FILE
RAW_FOLDER = cherry_v2_layout.RAW_FOLDER
DATA_FOLDER = cherry_v2_layout.DATA_FOLDER

#: Zip files of a folder that are opened to find a backup.
_MOST_ZIPS = 20
#: Folders in a folder that are looked at when it is no store itself.
_MOST_FOLDERS = 100
#: How many of them an error names.
_NAMED_STORES = 4
#: Members of a damaged archive named in a message.
_NAMED_MEMBERS = 5
_REDUX_FILES = (
    "redux.json",
    "redux_state.json",
    "redux_export/redux_state.json",
    "redux_export/redux.json",
    "redux/redux.json",
)
#: Where a profile may be in the folder that the user names: there, in a portable layout, or below a browser's root.
_PROFILES = ("", "data", "Data", BROWSER_PROFILE)
#: Extension of a backup format drafted for later releases, and two files that every such backup contains.
CHERRYBACKUP = ".cherrybackup"
_CHERRYBACKUP_FILES = ("manifest.json", "backup.sqlite")
#: Missing from a slim backup; other backups have those that the profile had.
_NOT_SLIM = ("IndexedDB", "Local Storage", f"{DATA_FOLDER}/{KNOWLEDGE_FOLDER}", f"{DATA_FOLDER}/Files")


@contextmanager
def open_store(path: Path, kind: Kind | None = None, *, salvage: bool = False) -> Iterator[Located]:
    """Recognize the store at a path, and keep its archive open within the context.

    Args:
        path: a file or folder.
        kind: its kind, as the user named it; None to recognize it.
        salvage: read a damaged zip archive by the local headers of its members (:mod:`regraft.disk.zip_salvage`), and
            members whose names there and in the archive's directory differ.

    Raises:
        SourceNotFound, SourceUnrecognised, SourceUnreadable: it is missing, not a known kind, or damaged.
        GenerationUnknown: it is of a later generation of its system than regraft knows.
        ArchiveUnsafe, ArchiveEncrypted: it is an archive that must not be read.
        BrokenJson: it is a damaged JSON file.
    """
    moved, message = _follow_settings(path) if kind is None else (path, ())
    try:
        found = _recognize_system(moved, kind) or _recognize_path(moved, kind, salvage=salvage)
    except _ArchiveDamaged as error:
        if not salvage:
            reason = tr(
                "damaged or incomplete zip archive: {reason}; to recover its intact members, run regraft "
                "migrate {path} --to LIBRARY --salvage; if it contains v2 data, extract them with another program and "
                "use that folder",
                reason=str(error),
                path=quote_word(path_argument(path)),
            )
            raise SourceUnreadable(path=path, reason=reason) from error
        with _open_salvaged(moved, kind, error) as found:
            yield _add_v2_stores(found, kind)
        return
    except SourceUnrecognised as error:
        with _extracted_system(moved, kind) as extracted:
            if extracted is not None:
                yield extracted
                return
        if not message:
            raise
        found_there = tr(
            "the application's settings name the data folder {moved}, which is not a profile", moved=printable(moved)
        )
        raise SourceUnrecognised(path=path, found=found_there) from error
    renamed = _renamed_notices(found.tree) if salvage else ()
    found = replace(found, notices=(*message, *renamed))
    logger.info("%s is read as %s%s", path, found.kind.value, "" if kind is None else tr(", as asked for"))
    try:
        yield _add_v2_stores(found, kind)
    finally:
        if isinstance(found.tree, ZipTree):
            found.tree.close()


@contextmanager
def _extracted_system(path: Path, kind: Kind | None) -> Iterator[Located | None]:
    """Extract the store of another system from a zip archive to a temporary folder; yield None if it has no such store.

    Raises:
        WorkFolderTooSmall: the temporary folder has no room for it.
        SourceUnreadable: a member is damaged, or has a name that this system does not allow.
        ArchiveUnsafe: two members would be the same file on this system.
    """
    if not path.is_file() or not zip_salvage.looks_like_zip(path):
        yield None
        return
    with closing(ZipTree(path)) as tree, scratch.temporary_folder() as work:
        for system in systems.systems_for(kind):
            found = system.archive_members(tree)
            if found is None:
                continue
            root, names = found
            require_free_space(work, sum(map(tree.size, names)))
            for name in names:
                _extract(tree, name, work / name, hashed=False)
            yield replace(system.locate(work / root), path=path, is_extracted=True)
            return
        yield None


class _ArchiveDamaged(Exception):
    """A zip archive has an unreadable directory, but may have intact members; the message says why."""


@contextmanager
def _open_salvaged(path: Path, kind: Kind | None, damage: _ArchiveDamaged) -> Iterator[Located]:
    """Recognize a damaged archive by its intact members, which are copied to a temporary archive.

    ``damage`` says what is wrong with the archive.

    Raises:
        SourceUnreadable: no member is intact.
        WorkFolderTooSmall: the temporary folder has no room for the members.
        SourceUnrecognised, ArchiveUnsafe: as :func:`open_store`.
    """
    with scratch.temporary_folder() as folder:
        require_free_space(folder, path.stat().st_size)
        copy = folder / "salvaged.zip"
        try:
            saved = zip_salvage.salvage_zip(path, copy)
        except zipfile.BadZipFile as error:
            refusal, damage.__cause__ = damage.__cause__, None  # no error is the cause of its own cause
            if isinstance(refusal, ArchiveUnsafe | ArchiveEncrypted):
                raise refusal from None
            reason = tr("{damage}; {error}", damage=damage, error=error)
            raise SourceUnreadable(path=path, reason=reason) from error
        with closing(ZipTree(copy)) as tree:
            found = _recognize_tree(path, tree, kind)
            yield replace(found, notices=(_salvage_notice(saved, str(damage)),))


def _salvage_notice(saved: zip_salvage.ZipSalvage, reason: str) -> Notice:
    """Make the notice about a damaged archive whose members were found by their own headers.

    ``saved`` counts the members; ``reason`` says what is wrong with the archive.
    """
    message = tr(
        "the zip archive is damaged ({reason}); {members} recovered by their own headers",
        reason=reason,
        members=format_count(saved.whole, "member"),
    )
    damaged = tuple(saved.missing)
    if saved.partial is not None:
        name, size = saved.partial
        damaged = (name, *damaged)
        message = tr(
            "{message}; recovered in part: {name} (the first {count:,} bytes; they have no checksum, so any of its "
            "rows may be altered)",
            message=message,
            name=printable(name),
            count=size,
        )
    if saved.lost:
        more = saved.lost - min(len(saved.missing), _NAMED_MEMBERS)
        names = [f"{printable(name)} ({why})" for name, why in islice(saved.missing.items(), _NAMED_MEMBERS)]
        names += [tr("{more} more", more=more)] if more else []
        message = tr("{message}; damaged and left out: {names}", message=message, names=join_list(names))
    count = saved.lost + (saved.partial is not None)
    return Notice(code=ARCHIVE_SALVAGED, message=message, count=max(count, 1), samples=damaged[:10])


def _renamed_notices(tree: Tree) -> Iterator[Notice]:
    """Yield a notice if members of an archive have another name in its directory than in their own headers."""
    count, names = tree.renamed_members(_NAMED_MEMBERS) if isinstance(tree, ZipTree) else (0, [])
    if not count:
        return
    shown = [f"{printable(first)} / {printable(second)}" for first, second in names]
    shown += [tr("{more} more", more=count - len(names))] if count > len(names) else []
    message = tr(
        "the zip archive is damaged (its directory and the headers of members state different names); members read by "
        "both names: {names}",
        names=join_list(shown),
    )
    yield Notice(code=ARCHIVE_SALVAGED, message=message, count=count, samples=tuple(first for first, _ in names))


def _add_v2_stores(source: Located, kind: Kind | None) -> Located:
    """Add the index files of v2 data to a recognized path; other kinds are returned unchanged.

    A library that has only indexes of preview builds becomes a preview library, unless the user named its ``kind``.
    """
    if source.kind not in V2_LAYOUTS:
        return source
    tree, inside = source.tree, ""
    if isinstance(tree, ZipTree):
        inside = find_inner_folder(tree)
    else:
        tree, inside = cherry_v2_layout.open_surrounding_tree(source.path)
    stores = cherry_v2_layout.find_stores(tree, inside)
    named = source.named_catalog
    if named is not None and stores.catalog != named:
        stores = cherry_v2_layout.replace_catalog(stores, named, _read_base_ids(tree.path / named))
        return replace(source, path=tree.path / named, tree=tree, places=StatePaths(vectors=""), stores=stores)
    only_preview = stores.has_preview and not stores.current and source.kind in (Kind.LIBRARY, Kind.BASE)
    recognized = Kind.PREVIEW_LIBRARY if only_preview and kind is not Kind.LIBRARY else source.kind
    return replace(source, kind=recognized, tree=tree, places=StatePaths(vectors=""), stores=stores)


def _read_base_ids(catalog: Path) -> set[str]:
    """Return the ids of the bases in a catalog file; empty if it cannot be read."""
    try:
        with sqlite.open_readonly(catalog) as db:
            return {str(base) for (base,) in db.execute("SELECT id FROM knowledge_base")}
    except (apsw.Error, OSError, UnicodeDecodeError):
        return set()


def _follow_settings(path: Path) -> tuple[Path, tuple[Notice, ...]]:
    """Return the data folder to read for a path, with a notice if it is another one.

    The application's settings in a folder may name another data folder than that folder.

    Raises:
        SourceUnrecognised: the path is the settings file, and the folder in it does not exist.
        ProfileAmbiguous: the settings name several folders.
    """
    folders = cherry_v1_profile.find_configured_folders(path)
    if not folders:
        if cherry_v1_profile.is_settings(path):
            raise SourceUnrecognised(
                path=path, found=tr("the data folder named in the application's settings does not exist")
            )
        # A browser keeps the profile inside of its root, with the data beside the profile.
        if path.name == BROWSER_PROFILE and (path / LOCAL_STORAGE).is_dir() and not (path / "Data").is_dir():
            return (path.parent if (path.parent / "Data").is_dir() else path), ()
        return path, ()
    if len(folders) > 1:
        raise ProfileAmbiguous(path=path, folders=join_list(printable(folder) for folder in folders))
    named = printable(folders[0])
    message = tr(
        "the application's settings name the data folder {named}, which is read instead (--kind "
        "v1-profile reads the given one)",
        named=named,
    )
    return folders[0], (Notice(code=notices.PROFILE_MOVED, message=message),)


def _recognize_path(path: Path, kind: Kind | None, *, salvage: bool) -> Located:
    """Recognize the store at a path, of Cherry Studio or in a single file.

    ``kind`` is the kind that the user named, if any; ``salvage`` is that of :func:`open_store`.
    """
    try:
        if not path.exists():
            raise SourceNotFound(path=path)
        if path.suffix.lower() == CHERRYBACKUP:
            raise BackupTooNew(path=path)
        if path.is_dir():
            next(path.iterdir(), None)
            named, path = (
                path,
                cherry_v2_layout.find_profile(path.absolute()) if path.name in ("", DATA_FOLDER) else path,
            )
            return _recognize_tree(path, FolderTree(path, named), kind)
        if not path.is_file():
            raise SourceUnreadable(path=path, reason=tr("a pipe, a socket or a device, not a file"))
        with path.open("rb") as file:
            start = file.read(64)
    except OSError as error:
        if isinstance(error, RegraftError):
            raise
        raise SourceUnreadable(path=path, reason=error.strerror or error) from error
    return _recognize_file(path, start, kind, salvage=salvage)


def _recognize_file(path: Path, start: bytes, kind: Kind | None, *, salvage: bool) -> Located:
    """Recognize a file by its first bytes, ``start``; ``kind`` is the kind that the user named, if any.

    ``salvage`` is that of :func:`open_store`.
    """
    if start.startswith(b"SQLite format 3\0"):
        return _recognize_database(path, kind)
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")):
        tree = _open_archive(path, salvage=salvage)
        if all(tree.kind(name) == "file" for name in _CHERRYBACKUP_FILES):
            tree.close()
            raise BackupTooNew(path=path)
        try:
            return _recognize_tree(path, tree, kind)
        except BaseException:
            tree.close()
            raise
    if start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        return _recognize_json_file(path, kind)
    if kind is Kind.INDEX or (kind is None and cherry_v2_layout.is_index_path(path)):
        return _locate_single_file(Kind.INDEX, path)
    if zip_salvage.looks_like_zip(path):
        raise _ArchiveDamaged(tr("its first member is preceded by other bytes"))
    if start.startswith(b"PAR1"):
        raise ParquetFileGiven(path=path, file=quote_word(path_argument(path)))
    described = tr("a text file") if b"\0" not in start else tr("a file of another kind")
    raise SourceUnrecognised(path=path, found=described if start else tr("an empty file"))


def _open_archive(path: Path, *, salvage: bool) -> FolderTree | ZipTree:
    """Open a zip archive; ``salvage`` is that of :func:`open_store`.

    Raises:
        _ArchiveDamaged: its directory is damaged; with ``salvage`` also if it is not safe or says encrypted.
        SourceUnreadable, ArchiveUnsafe, ArchiveEncrypted: it cannot be read, and has no members to salvage.
    """
    try:
        return open_tree(path, salvage=salvage)
    except (ArchiveUnsafe, ArchiveEncrypted) as error:
        # The copy that a salvage makes is checked in the same way.
        if salvage and zip_salvage.looks_like_zip(path):
            raise _ArchiveDamaged(str(error.facts.get("reason") or tr("it is encrypted"))) from error
        raise
    except SourceUnreadable as error:
        is_damaged = isinstance(error.__cause__, zipfile.BadZipFile | struct.error | UnicodeDecodeError)
        if is_damaged and zip_salvage.looks_like_zip(path):
            raise _ArchiveDamaged(tr("its directory is missing or damaged")) from error
        raise


def _recognize_system(path: Path, kind: Kind | None) -> Located | None:
    """Recognize a store of another system at a path, of this kind (None: of any); None if it is not one."""
    try:
        for system in systems.systems_for(kind):
            store = system.store_at(path)
            if store is not None:
                return system.locate(store)
    except RegraftError:
        raise
    except OSError:
        # The checks that follow report why it cannot be accessed.
        return None
    return None


# --- folders and archives ------------------------------------------------------------------------------------------


def _recognize_tree(path: Path, tree: FolderTree | ZipTree, kind: Kind | None) -> Located:
    """Recognize a store in a folder or an archive, whose files ``tree`` reads.

    ``kind`` is the kind that the user named, if any.
    """
    folder = find_inner_folder(tree)
    found = _match_2_0_export_in_profile(path, kind) or _recognize_folder(
        path, tree, "" if isinstance(tree, FolderTree) else folder
    )
    if found is None and folder:
        # An archive may have been unpacked into the folder; its v1 source may be at any depth.
        found = _recognize_folder(path, tree, folder)
        found = found if found is not None and found.kind in V1_SOURCES else None
    if kind is not None and (found is None or found.kind is not kind):
        found = _recognize_as_kind(path, tree, folder, kind)
    if found is not None:
        if kind is None and found.kind is Kind.LIBRARY:
            has_catalog = tree.kind(join_path(folder, CATALOG_FILE)) == "file"
            if not has_catalog and not tree.children(join_path(folder, KNOWLEDGE_FOLDER)):
                _refuse_unfinished(path, tree)
        return found
    if tree.is_denied(cherry_v2_layout.INDEX_FILE):
        raise SourceUnreadable(path=path / cherry_v2_layout.INDEX_FILE, reason=os.strerror(errno.EACCES))
    _refuse_unfinished(path, tree)
    if kind is None and isinstance(tree, FolderTree):
        # The inner folder may be a store itself, which the folder above it names.
        inner = path / folder
        for place in (*(outer for outer in reversed(inner.parents) if outer.is_relative_to(path)), inner):
            _offer_contents(place)
    raise SourceUnrecognised(path=path, found=_describe_tree(path, tree, folder))


def _offer_contents(folder: Path) -> None:
    """Raise an error that says what to give instead, if a folder contains a v1 backup, or folders that are stores.

    Raises:
        BackupInFolder, StoresInFolder
    """
    backup = _find_backup(folder)
    if backup is not None:
        profile = find_v2_profile()
        target = ["--to", "library"] if profile is None else ["--profile", path_argument(profile)]
        command = join_command(["regraft", "migrate", path_argument(backup), *target])
        raise BackupInFolder(path=folder, name=backup.name, command=command)
    if ledger.FOLDER in folder.parts or _profile_above(folder) is not None:
        # What is below regraft's own folder is under construction, or to undo a run.
        return
    stores = [printable(store) for store in islice(_find_stores(folder), _NAMED_STORES + 1)]
    if stores:
        names = [*stores[:_NAMED_STORES], "…"] if len(stores) > _NAMED_STORES else stores
        raise StoresInFolder(path=folder, names=join_list(names))


def _find_stores(folder: Path) -> Iterator[Path]:
    """Yield the direct subfolders of a folder that are stores."""
    with contextlib.suppress(OSError):
        folders = sorted(
            inner for inner in folder.iterdir() if inner.is_dir() and not links.leads_outside(folder, inner)
        )
        for inner in folders[:_MOST_FOLDERS]:
            with contextlib.suppress(RegraftError):
                if _recognize_system(inner, None) or _recognize_folder(inner, FolderTree(inner), ""):
                    yield inner


def _find_backup(folder: Path) -> Path | None:
    """Return the first v1 backup directly in a folder, or None."""
    with contextlib.suppress(OSError):
        zips = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".zip" and path.is_file())
        for path in zips[:_MOST_ZIPS]:
            with contextlib.suppress(RegraftError), open_store(path) as found:
                if found.kind in (Kind.V1_BACKUP, Kind.V1_BACKUP_6):
                    return path
    return None


def find_v2_profile() -> Path | None:
    """Return the application's v2 profile in the usual places of this computer, or None."""
    with contextlib.suppress(OSError, RuntimeError):
        for place in cherry_v1_profile.list_data_folders():
            if (place / PROFILE_DATABASE).is_file():
                return place
    return None


def _refuse_unfinished(path: Path, tree: Tree) -> None:
    """Raise if a run was killed in this folder before any of its results became visible.

    Raises:
        MigrationUnfinished
    """
    unfinished = find_unfinished_run(path) if isinstance(tree, FolderTree) else None
    if unfinished is not None:
        raise unfinished


def _describe_tree(path: Path, tree: FolderTree | ZipTree, folder: str) -> str:
    """Describe a folder or an archive of no known kind, for an error; ``folder`` is the one in it that was examined."""
    if isinstance(tree, FolderTree):
        above = _profile_above(path)
        if above is not None:
            return tr("it is part of the profile {above}; give that instead", above=printable(above))
        if (path / "IndexedDB").is_dir() or (path / "Data" / KNOWLEDGE_FOLDER).is_dir():
            return tr("a profile or backup without `Local Storage`, where the application keeps its state")
        if tree.not_followed:
            return str(next(link_notices(tree)).message)
    inside = join_list(tree.children(folder)[:4])
    return tr(
        "{isinstance} that contains {inside}",
        isinstance=tr("an archive") if isinstance(tree, ZipTree) else tr("a folder"),
        inside=inside or tr("nothing"),
    )


def _profile_above(path: Path) -> Path | None:
    """Return the profile that contains a path, or None."""
    return next((place for place in path.absolute().parents if (place / LOCAL_STORAGE).is_dir()), None)


def _recognize_folder(path: Path, tree: Tree, folder: str) -> Located | None:
    """Recognize the store in ``folder``, a folder of the tree; return None, or the first kind that matches."""
    metadata = join_path(folder, "metadata.json")
    backup = read_backup_metadata(tree, metadata) if tree.kind(metadata) == "file" else BackupMetadata()
    return (
        _match_v2_profile(path, tree, folder, backup)
        or _match_v1_backup(path, tree, folder, backup)
        or _match_library(path, tree, folder)
        or _match_v1_profile(path, tree, folder, Kind.V1_PROFILE)
        or _match_redux_export(path, tree, folder)
        or _match_base(path, tree, folder)
        or _match_2_0_export(path, tree, folder)
        or _match_knowledge_folder(path, tree, folder)
        or _match_vector_folder(path, tree, folder)
    )


def _match_v2_profile(path: Path, tree: Tree, folder: str, backup: BackupMetadata) -> Located | None:
    """Recognize a v2 profile or a v2 backup; None for other folders. ``backup`` is the metadata of a backup, if any."""
    places = [join_path(folder, name) for name in (PROFILE_DATABASE, f"Data/{PROFILE_DATABASE}")]
    if not any(tree.kind(place) == "file" for place in places) and backup.version != 7:
        return None
    kind = Kind.V2_PROFILE if backup.version is None else Kind.V2_BACKUP
    stated = backup.resources.get("indexedDB")
    # If the metadata do not say so, a backup of the database alone is a slim one.
    has_more = stated is not None or any(tree.kind(join_path(folder, name)) == "folder" for name in _NOT_SLIM)
    is_slim = kind is Kind.V2_BACKUP and (stated is False or not has_more)
    return Located(kind=kind, path=path, tree=tree, version=backup.version, is_slim=is_slim)


def _match_v1_backup(path: Path, tree: Tree, folder: str, backup: BackupMetadata) -> Located | None:
    """Recognize a v1 backup; None for other folders. ``backup`` is the metadata of a backup, if any."""
    data = join_path(folder, "data.json")
    if tree.kind(data) == "file":
        return Located(kind=Kind.V1_BACKUP, path=path, tree=tree, places=locate_file_state(tree, folder, backup=data))
    if backup.version != 6:
        return None
    return Located(kind=Kind.V1_BACKUP_6, path=path, tree=tree, places=locate_profile_state(tree, folder), version=6)


def _match_library(path: Path, tree: Tree, folder: str) -> Located | None:
    """Recognize a library or a pack; None for other folders."""
    parts = (join_path(folder, ledger.FOLDER), join_path(folder, KNOWLEDGE_FOLDER))
    if tree.kind(join_path(folder, CATALOG_FILE)) == "file" or all(tree.kind(part) == "folder" for part in parts):
        # An unpacked pack is a library.
        is_pack = isinstance(tree, ZipTree) and tree.kind(join_path(folder, pack.MANIFEST)) == "file"
        return Located(kind=Kind.PACK if is_pack else Kind.LIBRARY, path=path, tree=tree)
    return None


def _match_v1_profile(path: Path, tree: Tree, folder: str, kind: Kind) -> Located | None:
    """Recognize a v1 profile, or a folder with one in a usual place, as a store of ``kind``; None for other folders."""
    for place in _PROFILES:
        profile = join_path(folder, place) if place else folder
        if tree.kind(join_path(profile, LOCAL_STORAGE)) == "folder":
            return Located(kind=kind, path=path, tree=tree, places=locate_profile_state(tree, profile))
    return None


def _match_redux_export(path: Path, tree: Tree, folder: str) -> Located | None:
    """Recognize a folder with an exported state of v1 in a JSON file; None for other folders."""
    for name in _REDUX_FILES:
        file = join_path(folder, name)
        if tree.kind(file) == "file":
            return Located(
                kind=Kind.V1_EXPORT, path=path, tree=tree, places=locate_file_state(tree, folder, redux=file)
            )
    return None


def _match_base(path: Path, tree: Tree, folder: str) -> Located | None:
    """Recognize the folder of one base; None for other folders."""
    return Located(kind=Kind.BASE, path=path, tree=tree) if tree.kind(join_path(folder, INDEX_FILE)) == "file" else None


def _match_2_0_export(path: Path, tree: Tree, folder: str) -> Located | None:
    """Recognize an export of releases 2.0.x: its folder, the folder of its slices, or a folder around it; else None.

    Slices are the JSON files into which these releases divide the state.
    """
    above = folder.rpartition("/")
    inside = [above[0]] if above[2] == SLICES_FOLDER else []
    for name in (*inside, folder, join_path(folder, EXPORT_FOLDER)):
        places = locate_export_state(tree, name)
        if places is not None:
            return Located(kind=Kind.V1_EXPORT, path=path, tree=tree, places=places)
    return None


def _match_2_0_export_in_profile(path: Path, kind: Kind | None) -> Located | None:
    """Recognize an export of releases 2.0.x, or only the folder of its slices, at its path inside a profile.

    None for other paths, and if the user named another ``kind``.
    """
    if kind not in (None, Kind.V1_EXPORT) or not path.is_dir():
        return None
    real = path.absolute()
    export = real.parent if real.name == SLICES_FOLDER else real
    root = export.parent if export.name == EXPORT_FOLDER else export
    if root == real:
        return None
    return _match_2_0_export(path, FolderTree(root, path), "" if root == export else export.name)


def _match_knowledge_folder(path: Path, tree: Tree, folder: str) -> Located | None:
    """Recognize a knowledge state beside vector files, or a ``KnowledgeBase`` folder of v2 bases; else None."""
    bases = (
        join_path(folder, KNOWLEDGE_FOLDER) if tree.kind(join_path(folder, KNOWLEDGE_FOLDER)) == "folder" else folder
    )
    if any(tree.kind(f"{join_path(bases, name)}/{INDEX_FILE}") == "file" for name in tree.children(bases)):
        return Located(kind=Kind.LIBRARY, path=path, tree=tree)
    found = _match_state_file(path, tree, folder, beside_vectors=bases != folder)
    if found is not None:
        return found
    stores = cherry_v2_layout.find_stores(tree, folder)
    holds_index = stores.current and not stores.is_whole
    kind = Kind.BASE if holds_index else Kind.PREVIEW_LIBRARY if stores.has_preview else None
    return None if kind is None else Located(kind=kind, path=path, tree=tree)


def _match_vector_folder(path: Path, tree: Tree, folder: str) -> Located | None:
    """Recognize vector files of v1 without a state beside them; None for other folders, and inside a profile."""
    if isinstance(tree, FolderTree) and _profile_above(path) is not None:
        return None
    for places in locate_vector_folders(tree, folder):
        if cherry_v1_state.has_vector_files(tree, places.vectors or ""):
            return Located(kind=Kind.V1_VECTOR_FOLDER, path=path, tree=tree, places=places)
    return None


def _match_state_file(path: Path, tree: Tree, folder: str, *, beside_vectors: bool) -> Located | None:
    """Recognize a folder with the state of v1 in a JSON file; None for other folders.

    ``beside_vectors``: the folder has a subfolder with vector files, so JSON files of any name are read.
    """
    for name in tree.children(folder):
        if not name.endswith(".json") or name == cherry_v1_state.PENDING_DELETE_FILE:
            continue
        # Read any file beside ``KnowledgeBase``, other files only if their name fits.
        if not beside_vectors and "knowledge" not in name.lower() and "redux" not in name.lower():
            continue
        file = join_path(folder, name)
        state = _json_state_kind(tree, file)
        if state in ("knowledge", "redux"):
            places = locate_file_state(tree, folder, **{state: file})
            return Located(kind=_JSON_KINDS[state], path=path, tree=tree, places=places)
    return None


def _recognize_as_kind(path: Path, tree: Tree, folder: str, kind: Kind) -> Located:
    """Recognize a folder of the tree as the kind that the user named.

    Raises:
        SourceUnrecognised: it contains no such store.
    """
    found = None
    if kind is Kind.V1_EXPORT:
        found = _match_redux_export(path, tree, folder) or _match_2_0_export(path, tree, folder)
    elif kind in (Kind.V1_PROFILE, Kind.V1_BACKUP_6):
        found = _match_v1_profile(path, tree, folder, kind)
    elif kind is Kind.V1_BACKUP and "data.json" in tree.children(folder):
        places = locate_file_state(tree, folder, backup=join_path(folder, "data.json"))
        found = Located(kind=kind, path=path, tree=tree, places=places)
    elif kind is Kind.V1_VECTOR_FOLDER:
        places = next(locate_vector_folders(tree, folder), StatePaths())
        found = Located(kind=kind, path=path, tree=tree, places=places)
    elif (kind is Kind.PREVIEW_LIBRARY and cherry_v2_layout.find_stores(tree, folder).has_preview) or (
        kind is Kind.LIBRARY and KNOWLEDGE_FOLDER in tree.children(folder)
    ):
        found = Located(kind=kind, path=path, tree=tree)
    if found is None:
        raise SourceUnrecognised(path=path, found=tr("it does not contain {names}", names=KIND_NAMES[kind]))
    return found


# --- single files --------------------------------------------------------------------------------------------------


#: Kinds of JSON files by the result of _json_state_kind; the same names are keywords of ``file_places``.
_JSON_KINDS = {"knowledge": Kind.V1_KNOWLEDGE, "redux": Kind.V1_EXPORT, "backup": Kind.V1_BACKUP}


def _json_state_kind(tree: Tree, name: str) -> str | None:
    """Return which state of v1 a JSON file has: "knowledge" (a slice), "redux" (all of it) or "backup"; else None."""
    with contextlib.suppress(json_text.JsonProblem, SourceUnreadable):
        found = json_text.read_fields(
            cherry_v1_state.read_file(tree, name), ("regraft", "bases", "knowledge", "localStorage")
        )
        kinds = {"bases": "knowledge", "knowledge": "redux", "localStorage": "backup"}
        # A report of regraft lists bases, too.
        return kinds[next(iter(found))] if found and "regraft" not in found else None
    return None


def _recognize_json_file(path: Path, kind: Kind | None) -> Located:
    """Recognize a JSON file with a state of v1; ``kind`` is the kind that the user named, if any."""
    tree = FolderTree(path.parent, path)
    state = _json_state_kind(tree, path.name)
    if state is None:
        with cherry_v1_state.raise_broken_json(path, path.name):
            json_text.read_fields(cherry_v1_state.read_file(tree, path.name), ())
        raise SourceUnrecognised(path=path, found=tr("a JSON file without a knowledge state"))
    recognized = _JSON_KINDS[state]
    _demand_kind(path, recognized, kind)
    return Located(kind=recognized, path=path, tree=tree, places=locate_file_state(tree, "", **{state: path.name}))


def _recognize_database(path: Path, kind: Kind | None) -> Located:
    """Recognize a SQLite file by its tables; ``kind`` is the kind that the user named, if any."""
    try:
        with sqlite.open_readonly(path) as db:
            tables = {str(row[0]) for row in db.execute("SELECT name FROM sqlite_master")}
    except (apsw.Error, UnicodeDecodeError) as error:
        forced = _recognize_unreadable(path, kind)
        if forced is not None:
            return forced
        if cherry_preview.summarize_file(path).layout not in (
            cherry_preview.IndexLayout.PREVIEW,
            cherry_preview.IndexLayout.CURRENT,
        ):
            raise SourceUnreadable(path=path, reason=error) from error
        tables = {cherry_preview.PREVIEW_TABLE, "search_unit"}
    recognized = kind_by_tables(path, tables)
    _demand_kind(path, recognized, kind)
    if recognized in SYSTEMS:
        return systems.system_of(recognized).locate(path)
    if recognized in (Kind.V2_PROFILE, Kind.LIBRARY):
        real = links.real_path(path) if path.is_symlink() else path
        folder = real.parent
        if recognized is Kind.V2_PROFILE:
            real = real.absolute()
            folder = cherry_v2_layout.find_profile(real.parent)
        named = real.relative_to(folder).as_posix()
        return Located(kind=recognized, path=folder, tree=FolderTree(folder, path), named_catalog=named)
    return _locate_single_file(recognized, path)


def _demand_kind(path: Path, recognized: Kind, wanted: Kind | None) -> None:
    """Raise SourceUnrecognised if a path has another kind than the one the user named."""
    if wanted not in (None, recognized):
        raise SourceUnrecognised(
            path=path, found=tr("{names}, not {names2}", names=KIND_NAMES[recognized], names2=KIND_NAMES[wanted])
        )


def _locate_single_file(kind: Kind, path: Path) -> Located:
    """Describe a store of this kind that is one file."""
    places = StatePaths(vectors="", vector_file=path.name) if kind is Kind.V1_VECTORS else StatePaths()
    return Located(kind=kind, path=path, tree=FolderTree(path.parent, path), places=places)


def _recognize_unreadable(path: Path, kind: Kind | None) -> Located | None:
    """Recognize a SQLite file that cannot be read, by the kind that the user named or by its name; else None."""
    for system in systems.systems_for(kind):
        if kind is system.kind or system.has_name(path):
            return system.locate(path)
    if kind is Kind.INDEX or (kind is None and cherry_v2_layout.is_index_path(path)):
        return _locate_single_file(Kind.INDEX, path)
    return _locate_single_file(kind, path) if kind in (Kind.V1_VECTORS, Kind.PREVIEW) else None


# Extracting archives of v2 data. Names and sizes were checked when the archive was opened
# (:class:`regraft.disk.trees.ZipTree`).


#: Small files beside a catalog that tell where its bases come from.
_BESIDE = (pack.MANIFEST, REPORT_FILE, "metadata.json")


@contextmanager
def unpack_archive(source: Located, bases: Collection[str] = (), *, raw: bool = True) -> Iterator[Located]:
    """Extract an archive of v2 data to a temporary folder; yield a source that is a folder unchanged.

    Args:
        source: v2 data; its ``path`` stays that of the archive.
        bases: ids of the bases whose folders are needed; empty: all.
        raw: extract the files of bases, too, not only their indexes.

    Yields:
        The source in a folder. ``damaged`` lists the members that could not be extracted.

    Raises:
        WorkFolderTooSmall: the temporary folder has no room for it.
        ArchiveUnsafe: two members would be the same file on this system.
        OSError: the temporary folder cannot be written.
    """
    tree = source.tree
    if not isinstance(tree, ZipTree):
        yield source
        return
    inside = find_inner_folder(tree)
    needed = dict.fromkeys(_needed_files(source, tree, inside, frozenset(bases), raw))
    names = [name for name in needed if not tree.is_link(name)]
    with scratch.temporary_folder() as folder:
        require_free_space(folder, sum(tree.size(name) for name in names))
        damaged, digests = {}, {}
        is_pack = tree.kind(join_path(inside, pack.MANIFEST)) == "file"
        for name in names:
            own = PurePosixPath(name).relative_to(inside or ".")
            try:
                digest = _extract(tree, name, folder / own, hashed=is_pack)
                if digest is not None:
                    digests[str(own)] = digest
            except SourceUnreadable as error:
                damaged[str(own)] = str(error.facts["reason"])
        extracted = FolderTree(folder)
        stores = layout.find_stores(extracted, "")
        # If no base has a folder, the layout says where one would be.
        place = str(PurePosixPath(source.stores.bases).relative_to(inside)) if inside else source.stores.bases
        yield replace(source, tree=extracted, stores=replace(stores, bases=place), damaged=damaged, digests=digests)


def _needed_files(source: Located, tree: ZipTree, inside: str, bases: frozenset[str], raw: bool) -> Iterator[str]:
    """Yield the members of an archive to extract: the catalog, files beside it, and those of the bases.

    ``inside`` is the folder of the library in the archive; the other arguments are those of :func:`unpack_archive`.
    """
    stores = source.stores
    names = [] if stores.catalog is None else [f"{stores.catalog}{end}" for end in ("", *COMPANION_SUFFIXES)]
    names += [join_path(inside, beside) for beside in _BESIDE]
    yield from (name for name in names if tree.kind(name) == "file")
    own = {store.name for store in (*stores.current, *stores.preview)}
    start = len(join_path(stores.bases, "x")) - 1
    # A source without a folder of bases can have anything at its root.
    has_bases = own or PurePosixPath(stores.bases).name == layout.KNOWLEDGE_FOLDER
    for name in tree.files(stores.bases) if has_bases else ():
        base, _, rest = name[start:].partition("/")
        if bases and base not in bases and layout.base_id_from_path(name) not in bases:
            continue
        # Between the folders of the bases, only index files are needed, not the vector files of v1.
        if raw or rest.startswith(layout.INDEX_FILE) if rest else name in own:
            yield name


def _extract(tree: ZipTree, name: str, target: Path, *, hashed: bool) -> str | None:
    """Extract a member to a new file; return its SHA-256 if ``hashed``, else None."""
    if not all(map(file_paths.is_storable, PurePosixPath(name).parts)):
        raise SourceUnreadable(path=tree.path, reason=tr("Windows does not allow the name {name}", name=name))
    try:
        durable.make_folders(target.parent, flush=False)
        durable.open_binary(target, "xb").close()
        if hashed:
            return tree.extract_hashed(name, target)
        tree.extract(name, target)
    except SourceUnreadable:
        durable.remove(target, missing_ok=True)
        raise
    except (FileExistsError, NotADirectoryError) as error:
        raise ArchiveUnsafe(
            path=tree.path, reason=tr("{name} and another member would be the same file on this system", name=name)
        ) from error
    return None


def is_unchanged_pack(root: Path) -> bool:
    """Whether regraft has not changed an unpacked pack, so that its checksums still apply."""
    return not (root / ledger.FOLDER).exists()
