"""Bases made from vector files that no state names (``migrate --adopt-orphans``).

Items are reconstructed from the loader ids, sources and texts of the rows, in the form of v1's state, so that the rest
of the migration does not differ. Rules: ``docs/rules.md``, "Vector files that no state names".
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import apsw
import msgspec

from migrators.cherry_v1.draft import FILE_NUMBER_FIELDS, FILE_TEXT_FIELDS
from migrators.cherry_v1.file_matching import JSON_LOADER, SNIPPET_UNITS, TEXT_LOADER, WantedLoaders
from migrators.pipeline.losses import check_for_damage
from migrators.pipeline.source import BaseDraft, Salvager
from regraft.disk import sqlite
from regraft.disk.file_paths import fold_name, path_segments, split_extension, vector_file_name
from regraft.disk.trees import Tree, ZipTree, join_path
from regraft.errors import SourceUnreadable
from regraft.formats import json_text
from regraft.formats.cherry_v1 import layout, salvage
from regraft.formats.cherry_v1.state import (
    LazyItems,
    V1State,
    is_v1_vector_file,
    list_expected_names,
    list_vector_files,
)
from regraft.formats.cherry_v2.catalog import MAX_NOTE_UNITS
from regraft.formats.cherry_v2.models import SEPARATOR, ModelOverrides, unique_model_id
from regraft.formats.vector_survey import StoreProblem
from regraft.formats.vector_table import check_file, convert_read_error
from regraft.identity import replace
from regraft.language import format_count, join_list, tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.stores.locate import Located
from regraft.text import is_blank, join_command, trim, utf16_cut, utf16_len

# --- folders -------------------------------------------------------------------------------------------------------
#
# v1 copies a file that is added alone to its own ``Data/Files``. So a path elsewhere was read from a folder. Only the
# strings are used, never the disk, so that the result is the same on every machine.


#: Maximum path length on any system, in UTF-16 units.
MAX_PATH_UNITS = 32_767
#: Folders whose subfolders are home directories, or roots of disks.
_PARENTS_OF_HOMES = frozenset({("home",), ("users",), ("mnt",), ("media",), ("volumes",)})
#: Standard folders in a home directory. Users add a folder inside them, rarely the folder itself.
_STANDARD_FOLDERS = frozenset(
    ("documents", "desktop", "downloads", "dropbox", "icloud drive", "my documents", "onedrive", "文档", "桌面", "下载")
)
_DRIVE = re.compile(r"[A-Za-z]:")
_PART = re.compile(r"[^/\\]+")


class FoundFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder and the loader ids of its files, in the given order."""

    path: str
    loaders: tuple[str, ...]


class _FilePath(msgspec.Struct, frozen=True, kw_only=True):
    """A path that v1 read a file from, with its loader id."""

    loader_id: str
    path: str
    #: Its ancestors, as folded names.
    folders: tuple[str, ...]
    #: The drive, network share or "/" that the path begins with.
    root: str


def can_be_in_folder(path: str) -> bool:
    """Whether the folder of a file can be told from its path: it is absolute, not too long, and without ``..``."""
    is_absolute = path.startswith(("/", "\\\\")) or (_DRIVE.match(path) is not None and path[2:3] in ("/", "\\"))
    return is_absolute and len(path) <= MAX_PATH_UNITS and "\0" not in path and ".." not in path_segments(path)


def find_folders(paths: Mapping[str, str]) -> list[FoundFolder]:
    """Find the folders that v1's user added, given the paths of files by loader id. Single files have no folder.

    A folder is the longest common path of at least two files of a disk. If that is the root of a disk or a home
    directory, its subfolders are used instead.
    """
    order = {loader_id: position for position, loader_id in enumerate(paths)}
    groups: dict[str, list[_FilePath]] = defaultdict(list)
    for loader_id, path in paths.items():
        if can_be_in_folder(path):
            parts = [fold_name(part) for part in path_segments(path)]
            is_share = path.startswith("\\\\")
            root = "/".join(parts[:2]) if is_share else parts[0] if _DRIVE.match(path) else "/"
            file = _FilePath(loader_id=loader_id, path=path, folders=tuple(parts[:-1]), root=root)
            groups[root].append(file)
    found = [folder for files in groups.values() for folder in _split_into_folders(files, order)]
    return sorted(found, key=lambda folder: order[folder.loaders[0]])


def _split_into_folders(files: list[_FilePath], order: Mapping[str, int]) -> Iterator[FoundFolder]:
    """Group files into the folders that the user probably added, from the common beginnings of their paths.

    ``order`` has the position of each loader id; the files of a folder are listed in it.
    """
    waiting = [files]
    while waiting:
        group = waiting.pop()
        if len(group) < 2:
            continue
        # The common prefix of the first and the last path in sorted order is that of all paths.
        first, last = min(file.folders for file in group), max(file.folders for file in group)
        depth = next(
            (at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other),
            min(len(first), len(last)),
        )
        if _may_be_added_folder(group, first[:depth]):
            in_order = sorted(group, key=lambda file: order[file.loader_id])
            loader_ids = tuple(file.loader_id for file in in_order)
            # The path of the folder, in the spelling of its first file.
            path = in_order[0].path
            parts = (part for part in _PART.finditer(path) if part.group() != ".")
            end = next(part.end() for number, part in enumerate(parts, 1) if number == depth)
            yield FoundFolder(path=path[:end], loaders=loader_ids)
            continue
        subfolders: dict[str, list[_FilePath]] = defaultdict(list)
        for file in group:
            if len(file.folders) > depth:
                subfolders[file.folders[depth]].append(file)
        waiting += subfolders.values()


def _may_be_added_folder(files: list[_FilePath], folder: tuple[str, ...]) -> bool:
    """Whether a user may have added this folder to v1. ``files`` are all files in it.

    Excluded are roots of disks, home directories, and standard folders that have only subfolders.
    """
    root = files[0].root
    on_disk = folder if root == "/" else folder[root.count("/") + 1 :]
    # Subfolders of /home and /mnt are home directories or roots of disks.
    is_top = len(on_disk) <= 2 if on_disk[:1] in _PARENTS_OF_HOMES else not on_disk
    if is_top:
        return False
    return on_disk[-1] not in _STANDARD_FOLDERS or any(len(file.folders) == len(folder) for file in files)


# --- rows ----------------------------------------------------------------------------------------------------------
#
# Loader ids: ``docs/formats/v1.md``, "Loader ids".


NOTE_LOADER, WEB_LOADER, SITEMAP_LOADER, DIRECTORY_LOADER = (
    "NoteLoader_",
    "WebLoader_",
    "SitemapLoader_",
    "DirectoryLoader_",
)
#: Number of characters kept of a page's first chunk: longer than any address or title.
_START_CHARACTERS = 4_000
#: Maximum overlap of two consecutive chunks that is looked for. v1's settings allow no larger effective overlap.
_MAX_OVERLAP = 4_000
#: SQL for a row's own text: all of a note's chunk, and the beginning of a page's.
_OWN_TEXT = f"""CASE WHEN uniqueLoaderId LIKE '{NOTE_LOADER}%' THEN pageContent
                 WHEN uniqueLoaderId LIKE '{WEB_LOADER}%' THEN substr(pageContent, 1, {_START_CHARACTERS}) END"""
#: Texts of a row: loader id, source, row id, metadata of a sitemap, and its own text for notes and pages.
_COLUMNS = (
    layout.VECTOR_TABLE.loader,
    layout.VECTOR_TABLE.source,
    layout.VECTOR_TABLE.row_id,
    (("metadata", f"CASE WHEN uniqueLoaderId LIKE '{SITEMAP_LOADER}%' THEN metadata END"),),
    (("pageContent", _OWN_TEXT),),
)


class NotAVectorFile(Exception):
    """A file that no base is made from: not a vector file of v1, or without rows. The message is the reason."""


class LoaderSummary(msgspec.Struct):
    """What the rows of one loader id contain."""

    loader_id: str
    rows: int = 0
    #: The first source that is text and not blank, or empty.
    source: str = ""
    #: For a sitemap: its address.
    address: str = ""
    #: For a page: the beginning of its first chunk.
    start: str = ""
    #: For a note: its chunks with their numbers.
    chunks: list[tuple[int, str]] = msgspec.field(default_factory=list)
    _units: int = 0

    def add_row(self, source: str | None, row_id: str | None, metadata: str | None, body: str | None) -> None:
        """Add what one row of the loader tells about it.

        ``metadata`` is given for sitemaps and has their address, ``body`` is given for notes and pages, and ``row_id``
        has the number of the chunk. All may be None.
        """
        self.rows += 1
        if not self.source and not is_blank(source):
            self.source = str(source)
        if metadata is not None and not self.address:
            self.address = _original_source(metadata)
        if body is None:
            return
        if not self.loader_id.startswith(NOTE_LOADER):
            self.start = self.start or body
        elif self._units <= MAX_NOTE_UNITS:
            # Notes are cut at this length anyway.
            self._units += len(body)
            number = layout.parse_chunk_number((row_id or "").encode(), self.loader_id.encode())
            self.chunks.append((number, body))

    def text(self) -> str:
        """Join the chunks of a note in their order, without the overlap of consecutive chunks."""
        parts: list[str] = []
        last = ""
        for _, chunk in sorted(self.chunks, key=lambda chunk: chunk[0]):
            shared = _overlap(last, chunk)
            parts.append(chunk[shared:] if shared or not parts else f" {chunk}")
            last = chunk
        return "".join(parts)


def _overlap(before: str, after: str) -> int:
    """Return how many characters at the end of one chunk are also the beginning of the next; 0 if none.

    Only overlaps of whole words count, up to :data:`_MAX_OVERLAP` characters, and never all of the next chunk.
    """
    for size in range(min(len(before), len(after) - 1, _MAX_OVERLAP), 0, -1):
        begins = len(before) == size or before[-size - 1] == " "
        if begins and after[size] == " " and before.endswith(after[:size]):
            return size
    return 0


def _original_source(metadata: str) -> str:
    """Return the address in the JSON metadata of a row of a sitemap; empty if it is missing."""
    try:
        found: Any = json_text.decode(bytearray(metadata.encode()), object)
    except json_text.JsonProblem:
        return ""
    address = found.get("originalSource") if isinstance(found, dict) else None
    return address if isinstance(address, str) and not is_blank(address) else ""


class VectorFileSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Loader ids of a vector file in the order of their first rows, and the dimensions of its vectors."""

    loaders: list[LoaderSummary] = msgspec.field(default_factory=list)
    rows: int = 0
    #: Dimensions of most usable vectors; None without usable vectors.
    dimensions: int | None = None
    #: Why the file cannot be read, for a person; empty if it can.
    problem: str = ""
    #: Whether these are the rows that a salvage found.
    is_salvaged: bool = False


def summarize_vector_file(path: Path) -> VectorFileSummary:
    """Read loader ids, sources and texts from a vector file. Vectors are not read.

    Raises:
        NotAVectorFile: another SQLite file without v1's table, or a file without rows.
        StoreProblem: the file is damaged.
    """
    check_file(path)
    summary: dict[str, LoaderSummary] = {}
    rows = 0
    try:
        with sqlite.open_readonly(path) as db:
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'vectors' COLLATE NOCASE").fetchone() is None:
                raise NotAVectorFile(tr("it has no table `vectors`"))
            for loader_id, source, row_id, metadata, body in layout.VECTOR_TABLE.texts(db, _COLUMNS):
                rows += 1
                if loader_id is not None and not is_blank(loader_id):
                    loader = summary.get(loader_id) or summary.setdefault(loader_id, LoaderSummary(loader_id))
                    loader.add_row(source, row_id, metadata, body)
            length = layout.VECTOR_TABLE.most_common_length(db)
    except (apsw.Error, UnicodeDecodeError, OSError) as error:
        raise convert_read_error(error) from error
    if not rows:
        raise NotAVectorFile(tr("it has no rows"))
    return VectorFileSummary(
        loaders=list(summary.values()), rows=rows, dimensions=None if length is None else length // 4
    )


def _summarize_salvaged_rows(path: Path, salvager: Salvager) -> VectorFileSummary:
    """Read a vector file, or what can be salvaged of a damaged one, as the migration itself will.

    Raises:
        NotAVectorFile: as by :func:`summarize_vector_file`. StoreProblem: nothing can be salvaged.
        WorkFolderTooSmall, apsw.Error, OSError: there is not enough room for a temporary copy.
    """
    try:
        layout.VECTOR_TABLE.survey(path)
        check_for_damage(salvager, path, None, is_wanted=True)
        return summarize_vector_file(path)
    except StoreProblem as error:
        if not (error.is_damage or error.may_be_damage):
            raise
        problem = error
    return _summarize_damaged_file(path, problem)


def _summarize_damaged_file(path: Path, problem: StoreProblem) -> VectorFileSummary:
    """Read what can be salvaged of a damaged vector file; raises the ``problem`` if there are no such rows."""
    with salvage.salvage_file(path) as left:
        if left.path is None or not left.tally.rows:
            raise problem
        summary = summarize_vector_file(left.path)
    # Rows that were refused have no source, and the loader id of a broken one may be any text.
    is_id = salvage.LOADER_ID.fullmatch
    loaders = [one for one in summary.loaders if one.source or is_id(one.loader_id.encode())]
    return replace(summary, loaders=loaders, is_salvaged=True)


# --- items ---------------------------------------------------------------------------------------------------------


_PATH_KINDS = ("LocalPathLoader_", "OdtLoader_", "OdsLoader_", "OdpLoader_", "ImageLoader_")
_NO_SOURCE = "note"
#: Text between the two parts of a snippet.
_GAP = "..."
#: Characters removed from the end of a name.
_ENDINGS = " ,;:.-"
#: Maximum length of a name made from a text, in UTF-16 units.
_NAME_UNITS = 40
#: Number of hash digits in the name of a file without text.
_DIGEST_DIGITS = 8
#: Limits for reading uploads to find the one that a text was read from.
MAX_UPLOADS = 20_000
MAX_UPLOAD_BYTES = 16 << 20
MAX_BYTES = 1 << 30
MAX_WORK = 4 << 30


@dataclass(frozen=True, kw_only=True)
class SourceFiles:
    """Files and tables beside the vector files: uploads, and Dexie's tables of files and notes by id."""

    tree: Tree
    uploads: str | None
    files: Mapping[str, dict[str, Any]]
    notes: Mapping[str, dict[str, Any]]

    @cached_property
    def upload_names(self) -> dict[str, str]:
        """Names of the uploads by file id."""
        names = [] if self.uploads is None else self.tree.children(self.uploads)
        return {split_extension(name)[0]: name for name in names}

    @cached_property
    def notes_by_loader(self) -> dict[str, dict[str, Any]]:
        """The notes in Dexie's table, by the loader id that v1 gave them."""
        found = {}
        for key in self.notes:
            note = self.notes[key]
            text, address = note.get("content"), note.get("sourceUrl")
            if isinstance(text, str) and not is_blank(text):
                found[f"{NOTE_LOADER}{_md5(text + (address if isinstance(address, str) else ''))}"] = note
        return found

    def match_uploads(self, snippets: Mapping[str, str]) -> dict[str, str]:
        """Find the uploads whose text has one of these loader ids. Return file names by loader id.

        ``snippets`` are the first words of each text, by loader id.
        """
        wanted, found = WantedLoaders(snippets), dict[str, str]()
        bytes_left = MAX_BYTES
        for name in sorted(self.upload_names.values())[:MAX_UPLOADS]:
            suffix = split_extension(name)[1].lower()
            if not wanted or bytes_left <= 0 or wanted.cost > MAX_WORK:
                break
            raw = self._upload(name) if wanted.may_match(suffix) else b""
            bytes_left -= len(raw)
            if raw:
                found.update(dict.fromkeys(wanted.match(raw, suffix), name))
        return found

    def _upload(self, name: str) -> bytes:
        """Return the bytes of an upload; empty if it is missing, unreadable or too large."""
        path = join_path(self.uploads or "", name)
        try:
            if self.tree.kind(path) != "file" or self.tree.size(path) > MAX_UPLOAD_BYTES:
                return b""
            with self.tree.open(path) as file:
                return file.read(MAX_UPLOAD_BYTES)
        except SourceUnreadable:
            return b""


class ReconstructedItems(msgspec.Struct, kw_only=True):
    """The items of a base in the form of v1's state, and how much of them is uncertain."""

    raws: list[dict[str, Any]] = msgspec.field(default_factory=list)
    #: The items that are folders.
    folders: list[FoundFolder] = msgspec.field(default_factory=list)
    #: Number of items by type.
    types: Counter[str] = msgspec.field(default_factory=Counter)
    #: Number of files with unknown name, and of notes with incomplete text.
    unnamed: int = 0
    partial: int = 0


def _has_uploaded_text(loader: LoaderSummary) -> bool:
    """Whether the rows of a loader id come from a file whose text may be among the uploads."""
    is_text = loader.loader_id.startswith((TEXT_LOADER, JSON_LOADER))
    is_page = loader.loader_id.startswith(WEB_LOADER)
    return bool(loader.source) and (is_text or (is_page and not _is_address(loader.source)))


class _ItemBuilder:
    """Builds the items of one base from the rows of its loader ids. The result is in ``found``."""

    def __init__(self, base: str, loaders: list[LoaderSummary], source_files: SourceFiles) -> None:
        self._base, self._source_files = base, source_files
        self.found = ReconstructedItems()
        paths = {loader.loader_id: path for loader in loaders if (path := _path_of(loader)) is not None}
        uploads = {loader: self._upload_of_path(path) for loader, path in paths.items()}
        self._paths = paths
        self._of_uploads = {loader: upload for loader, upload in uploads.items() if upload}
        self.found.folders = find_folders({loader: path for loader, path in paths.items() if not uploads[loader]})
        self._texts = source_files.match_uploads(
            {loader.loader_id: loader.source for loader in loaders if _has_uploaded_text(loader)}
        )
        in_folders = {loader: folder for folder in self.found.folders for loader in folder.loaders}
        for loader in loaders:
            folder = in_folders.get(loader.loader_id)
            if folder is None:
                self._add_loader(loader)
            elif folder.loaders[0] == loader.loader_id:
                self._add_item("directory", folder.path, loaders=folder.loaders, content=folder.path)

    def _add_loader(self, loader: LoaderSummary) -> None:
        """Add an item for a loader id; its type follows from the prefix."""
        loader_id = loader.loader_id
        if loader_id.startswith(NOTE_LOADER):
            self._add_note(loader)
        elif loader_id.startswith(SITEMAP_LOADER):
            address = loader.address or loader.source or loader_id
            self._add_item("sitemap", loader_id, loaders=(loader_id,), content=address)
        elif loader_id.startswith(WEB_LOADER):
            self._add_web_page(loader)
        elif loader_id.startswith(DIRECTORY_LOADER):
            pass  # v1 wrote no rows for a folder itself, and no item ever owned one
        elif _is_address(loader.source) and not loader_id.startswith((TEXT_LOADER, JSON_LOADER)):
            self._add_item("url", loader_id, loaders=(loader_id,), content=loader.source)
        else:
            self._add_file(loader)

    def _add_item(self, kind: str, key: str, *, loaders: tuple[str, ...], content: object, **more: object) -> None:
        """Add an item in the form in which v1 stores items.

        ``kind`` is v1's type, ``key`` makes the id, ``loaders`` are its loader ids, and ``more`` are further fields.
        """
        self.found.types[kind] += 1
        raw = {
            "id": f"{self._base}/{key}",
            "type": kind,
            "content": content,
            # v1's own loader id of a folder is in no row, so it is made up.
            "uniqueId": f"{DIRECTORY_LOADER}{_md5(key)}" if kind == "directory" else loaders[0],
            "uniqueIds": list(loaders),
            "processingStatus": "completed",
        }
        self.found.raws.append({**raw, **more})

    # --- kinds -----------------------------------------------------------------------------------------------------

    def _add_note(self, loader: LoaderSummary) -> None:
        """Add a note. Its text is in the notes table, or else joined from its rows."""
        address = "" if loader.source == _NO_SOURCE else loader.source
        stored = self._source_files.notes_by_loader.get(loader.loader_id)
        text = loader.text() if stored is None else str(stored["content"])
        self.found.partial += stored is None and f"{NOTE_LOADER}{_md5(text + address)}" != loader.loader_id
        self._add_item("note", loader.loader_id, loaders=(loader.loader_id,), content=text, sourceUrl=address)

    def _add_web_page(self, loader: LoaderSummary) -> None:
        """Add a web page, or a file if nothing shows that the source of its rows is an address."""
        # The loader id of a page hashes its address, or its text if it has one chunk.
        proven = (
            text for text in (loader.source, loader.start) if text and f"{WEB_LOADER}{_md5(text)}" == loader.loader_id
        )
        address = next(proven, loader.source if _is_address(loader.source) else None)
        if address is None:
            self._add_file(loader)
        else:
            self._add_item("url", loader.loader_id, loaders=(loader.loader_id,), content=address)

    def _add_file(self, loader: LoaderSummary) -> None:
        """Add the file of a loader id, with metadata from its upload or, if none is known, from its source path."""
        upload = self._of_uploads.get(loader.loader_id) or self._texts.get(loader.loader_id)
        path = self._paths.get(loader.loader_id)
        if upload is not None:
            content = self._upload_metadata(upload, path or "")
        else:
            self.found.unnamed += path is None
            name = _name_file(loader) if path is None else (path_segments(path) or [loader.loader_id])[-1]
            content = _metadata(loader.loader_id, split_extension(name)[1], name, path or "")
        self._add_item("file", loader.loader_id, loaders=(loader.loader_id,), content=content)

    # --- uploads ---------------------------------------------------------------------------------------------------

    def _upload_of_path(self, path: str) -> str | None:
        """Return the name of the upload if this path is in v1's folder for uploads, else None."""
        parts = path_segments(path)
        for at in (-3, -4):
            # A file processor writes its result to a folder named after the file's id.
            if len(parts) >= -at and [part.lower() for part in parts[at : at + 2]] == ["data", "files"]:
                return parts[-1] if at == -3 else self._source_files.upload_names.get(parts[-2], parts[-2])
        return None

    def _upload_metadata(self, name: str, path: str) -> dict[str, Any]:
        """Return the metadata of the upload with this name: from Dexie's table of files, else made up from the name."""
        file_id, extension = split_extension(name)
        stored = self._source_files.files.get(file_id, {})
        known = _metadata(file_id, extension, name, path)
        self.found.unnamed += is_blank(stored.get("origin_name"))
        fit = {key: value for key, value in stored.items() if key in FILE_TEXT_FIELDS and isinstance(value, str)}
        numbers = {
            key: value for key, value in stored.items() if key in FILE_NUMBER_FIELDS and type(value) in (int, float)
        }
        return {**known, **fit, **numbers, "id": file_id}


def _path_of(loader: LoaderSummary) -> str | None:
    """Return the path that v1 read a file from, or None if its rows do not contain the path."""
    is_known = loader.loader_id.startswith(
        (TEXT_LOADER, JSON_LOADER, WEB_LOADER, NOTE_LOADER, SITEMAP_LOADER, DIRECTORY_LOADER)
    )
    if is_known or not loader.source:
        return None
    # An e-book's loader id is its path. Ids of unknown loaders may be paths as well.
    return loader.source if loader.loader_id.startswith(_PATH_KINDS) or can_be_in_folder(loader.source) else None


def _is_address(text: str) -> bool:
    """Whether a text is an HTTP address without blanks."""
    return text.startswith(("http://", "https://")) and not any(map(str.isspace, trim(text)))


def _metadata(file_id: str, extension: str, name: str, path: str) -> dict[str, Any]:
    """Return a file's metadata in v1's form. Unknown fields are empty."""
    texts = {"id": file_id, "name": f"{file_id}{extension}", "origin_name": name, "path": path, "ext": extension}
    return {**texts, "type": "other", "created_at": "", "size": 0, "count": 1}


def _name_file(loader: LoaderSummary) -> str:
    """Make up a file name for the rows of a loader id: from the beginning of its text, else from its kind and id."""
    kind = (
        "html"
        if loader.loader_id.startswith(WEB_LOADER)
        else "json"
        if loader.loader_id.startswith(JSON_LOADER)
        else "txt"
    )
    if kind == "json" or not loader.source:
        digest = loader.loader_id.rpartition("_")[2][:_DIGEST_DIGITS]
        return f"file-{digest}" if loader.loader_id.startswith(_PATH_KINDS) else f"{kind}-{digest}.{kind}"
    text = loader.start if kind == "html" else _snippet_start(loader.source)
    lines = (trim(line.lstrip("#")) for line in text.splitlines())
    line = next(filter(None, lines), kind)
    return f"{trim(utf16_cut(line, _NAME_UNITS)).rstrip(_ENDINGS) or kind}.{kind}"


def _snippet_start(snippet: str) -> str:
    """Return the first part of a snippet that v1 stored, without the word that was cut off."""
    front, gap, _ = snippet.partition(_GAP)
    if not gap or abs(utf16_len(front) - SNIPPET_UNITS) > 1:
        return snippet
    words = front.rpartition(" ")[0]
    return words if trim(words) else front


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


logger = logging.getLogger(__name__)

#: Nouns for the types of items in messages.
_NOUNS = {"directory": "folder", "file": "file", "url": "url", "sitemap": "sitemap", "note": "note"}


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """A vector file that no state names, with its dimensions and the model that it probably belongs to.

    ``problem`` says why it cannot be read, for a person; empty if it can.
    """

    file: str
    dimensions: int | None
    problem: str = ""
    #: The one embedding model of the state's bases of the same dimensions; None without one, or with several.
    likely_model: str | None = None
    #: Whether its rows, or the archive that contains it, can only be salvaged.
    is_salvaged: bool = False


class Adoption(msgspec.Struct, frozen=True, kw_only=True):
    """A state with a base added for each orphaned vector file, and the orphans by base id."""

    state: V1State
    orphans: dict[str, Orphan]

    def overrides(self, options: ModelOverrides) -> ModelOverrides:
        """Return the user's options for models; each old name that means an adopted base becomes that base's id."""
        return replace(options, mapped={self._base(old): new for old, new in options.mapped.items()})

    def _base(self, old: str) -> str:
        """Return the id of the adopted base that ``old`` means, or ``old`` if it means none.

        ``old`` can be the path of the vector file, or the base's id as it was before illegal characters of a file name
        were replaced.
        """
        # Either a path of the file, or a base id that is spelled differently in the file's name.
        names = [] if SEPARATOR in old else [vector_file_name(old), *path_segments(old)[-1:]]
        return next((name for name in names if name in self.orphans), old)

    def complete_draft(self, draft: BaseDraft) -> BaseDraft:
        """Add to the draft of an adopted base what is known only from its vector file.

        Other drafts stay as they are.
        """
        orphan = self.orphans.get(draft.legacy_id)
        if orphan is None:
            return draft
        embedding = draft.embedding
        if embedding.id is None:
            embedding = replace(embedding, problem=_explain_missing_model(orphan))
        return replace(draft, vector_file=orphan.file, embedding=embedding)


def _explain_missing_model(orphan: Orphan) -> str:
    """Say for the user that the model of a file's vectors is unknown, and which option names it."""
    if orphan.problem:
        return tr("its vector file {vector_file} {problem}", vector_file=orphan.file, problem=orphan.problem)
    salvage_option = "--salvage " if orphan.is_salvaged else ""
    mapped = join_command(["--map-model", f"{orphan.file}={orphan.likely_model or 'PROVIDER::MODEL'}"])
    option = f"--adopt-orphans {salvage_option}{mapped}"
    if orphan.likely_model is not None:
        return tr(
            "nothing says which model made its vectors of {dimensions} dimensions; if it was "
            "{model}, as in the other bases, migrate them with {option}",
            dimensions=orphan.dimensions,
            model=orphan.likely_model,
            option=option,
        )
    return tr(
        "nothing says which model made its vectors of {dimensions} dimensions; migrate them with {option}",
        dimensions=orphan.dimensions,
        option=option,
    )


def adopt_orphans(source: Located, state: V1State, salvager: Salvager | None) -> Adoption:
    """Add a base to a state for each vector file in its source that none of its bases names.

    With a ``salvager``, items are also made from the rows of damaged files. Files of bases that v1 was about to delete
    are only reported. Files without v1's vector table, or without rows, get no base.
    """
    tree, places = source.tree, source.places
    needs_salvage = any(notice.code == notices.ARCHIVE_SALVAGED for notice in source.notices)
    source_files = SourceFiles(tree=tree, uploads=places.uploads, files=state.files, notes=state.notes)
    files = list_vector_files(tree, places) - list_expected_names(state.bases)
    to_delete = {vector_file_name(loader): loader for loader in state.pending_delete}
    bases: list[dict[str, Any]] = []
    orphans: dict[str, Orphan] = {}
    found_notices: list[Notice] = []
    for name in sorted(files):
        if name in to_delete:
            # The base stays skipped for its own reason, with the file's name.
            bases.append({"id": to_delete[name], "name": name})
            continue
        try:
            summary = _summarize(tree, join_path(places.vectors or "", name), salvager)
        except NotAVectorFile as problem:
            message = tr("no base was made from {name}: {reason}", name=name, reason=problem)
            found_notices.append(Notice(code=notices.NOT_ADOPTED, message=message))
            continue
        found = _ItemBuilder(name, summary.loaders, source_files).found
        logger.info("vector file %s: %s items reconstructed from %s rows", name, len(found.raws), summary.rows)
        items = LazyItems([msgspec.Raw(msgspec.json.encode(raw)) for raw in found.raws])
        base_name = _folder_name(found.folders) or name
        bases.append({"id": name, "name": base_name, "dimensions": summary.dimensions, "items": items})
        orphans[name] = Orphan(
            file=name,
            dimensions=summary.dimensions,
            problem=summary.problem,
            likely_model=_likely_model(state, summary),
            is_salvaged=summary.is_salvaged or needs_salvage,
        )
        found_notices.append(_adopted_notice(name, summary, found))
    others = (notice for notice in state.notices if notice.code not in (notices.LOST_STATE, notices.UNNAMED_VECTORS))
    adopted = replace(state, bases=[*state.bases, *bases], notices=(*others, *found_notices))
    return Adoption(state=adopted, orphans=orphans)


def _summarize(tree: Tree, name: str, salvager: Salvager | None) -> VectorFileSummary:
    """Summarize the vector file at a path in the source. If it is damaged, the result has only the problem.

    With a ``salvager``, a damaged file is summarized by the rows that can be salvaged.

    Raises:
        NotAVectorFile: no base is made from it.
    """
    try:
        return _summarize_readable_rows(tree, name, salvager)
    except (StoreProblem, SourceUnreadable) as error:
        problem = str(error) if isinstance(error, StoreProblem) else tr("cannot be read")
        is_damage = error.is_damage if isinstance(error, StoreProblem) else isinstance(tree, ZipTree)
        if is_damage and salvager is None:
            problem = tr("{problem}; --salvage migrates the rows of it that can be proven", problem=problem)
        if not is_v1_vector_file(tree, name):
            raise NotAVectorFile(tr("it {problem}", problem=problem)) from error
        return VectorFileSummary(problem=problem)


def _summarize_readable_rows(tree: Tree, name: str, salvager: Salvager | None) -> VectorFileSummary:
    """Summarize the vector file at a path in the source by the rows that can be read, or salvaged by a ``salvager``.

    Raises:
        NotAVectorFile: as by :func:`summarize_vector_file`.
        StoreProblem, SourceUnreadable: it is damaged, and there are no such rows.
    """
    try:
        with tree.local(name, None) as path:
            return summarize_vector_file(path) if salvager is None else _summarize_salvaged_rows(path, salvager)
    except SourceUnreadable:
        if salvager is None or not isinstance(tree, ZipTree):
            raise
    with tree.local_damaged(name, None) as path:
        return _summarize_damaged_file(path, StoreProblem(tr("cannot be read"), is_damage=True))


def _folder_name(folders: list[FoundFolder]) -> str:
    """Return the name of the only folder of a base; empty without a folder, or with several."""
    return path_segments(folders[0].path)[-1] if len(folders) == 1 else ""


def _likely_model(state: V1State, summary: VectorFileSummary) -> str | None:
    """Return the one model of all bases of the state if their dimensions are those of the file; else None."""
    bases = [base for base in state.bases if isinstance(base, dict) and isinstance(base.get("model"), dict)]
    models = {unique_model_id(base["model"].get("provider"), base["model"].get("id")) for base in bases}
    same = summary.dimensions is not None and all(base.get("dimensions") == summary.dimensions for base in bases)
    return next(iter(models)) if len(models) == 1 and same else None


def _adopted_notice(name: str, summary: VectorFileSummary, reconstructed: ReconstructedItems) -> Notice:
    """Report what was reconstructed from the rows of the vector file with this name, and what is uncertain."""
    if summary.problem:
        message = tr("no base of the state names this vector file, and it cannot be read")
        return Notice(code=notices.ADOPTED, message=message, base=name)
    kinds = join_list(
        format_count(reconstructed.types[kind], noun) for kind, noun in _NOUNS.items() if reconstructed.types[kind]
    )
    message = tr(
        "no base of the state names this vector file; reconstructed from {rows}: {kinds}",
        rows=format_count(summary.rows, "row"),
        kinds=kinds or tr("no items"),
    )
    if reconstructed.unnamed:
        message += tr("; the names of {files} are unknown", files=format_count(reconstructed.unnamed, "file"))
    if reconstructed.partial:
        message += tr("; of {notes} only the indexed text is known", notes=format_count(reconstructed.partial, "note"))
    return Notice(code=notices.ADOPTED, message=message, base=name, count=max(len(reconstructed.raws), 1))
