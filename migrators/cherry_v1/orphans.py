"""Bases of vector files that no state names, made of their rows alone (``migrate --adopt-orphans``).

Each becomes the base that v1's state would have had, so that all the rest of a migration is the same. Rules:
``docs/rules.md``, "Vector files that no state names".
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import apsw
import msgspec

from migrators.cherry_v1.draft import FILE_NUMBER_FIELDS, FILE_TEXT_FIELDS
from migrators.cherry_v1.file_matching import JSON_LOADER, SNIPPET_UNITS, TEXT_LOADER, WantedLoaders
from migrators.pipeline.source import BaseDraft
from regraft.disk import sqlite
from regraft.disk.file_paths import fold_name, path_segments, split_extension, vector_file_name
from regraft.disk.trees import Tree, join_path
from regraft.errors import SourceUnreadable
from regraft.formats import json_text
from regraft.formats.cherry_v1 import layout
from regraft.formats.cherry_v1.layout import StatePaths
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
from regraft.formats.vector_table import check_file
from regraft.identity import replace
from regraft.language import format_count, join_list, tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.text import is_blank, trim, utf16_cut, utf16_len

# Which paths of files were one folder that v1 was given (``docs/rules.md``, "Vector files that no state names").
#
# v1 copies a file that is added alone to its own ``Data/Files``: a path elsewhere was read in a folder. Nothing but the
# strings is asked, so that every machine tells the same.


#: No system takes a longer path, in UTF-16 units.
MAX_PATH_UNITS = 32_767
#: Folders whose folders are people's homes, or roots of disks.
_TOPS = frozenset({("home",), ("users",), ("mnt",), ("media",), ("volumes",)})
#: What a person's own folders are called by their system: as a rule a folder in one was added, not all of them.
_USUAL = frozenset(
    ("documents", "desktop", "downloads", "dropbox", "icloud drive", "my documents", "onedrive", "文档", "桌面", "下载")
)
_DRIVE = re.compile(r"[A-Za-z]:")
_PART = re.compile(r"[^/\\]+")


class FoundFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder and the loaders of its files, in the order that they were given in."""

    path: str
    loaders: tuple[str, ...]


class _FilePath(msgspec.Struct, frozen=True, kw_only=True):
    loader: str
    path: str
    #: The folders above it, by fold.
    folders: tuple[str, ...]
    #: What every path of its disk begins with.
    root: str


def can_be_in_folder(path: str) -> bool:
    """Tell whether a path says in which folder a file lies: it is absolute, of a usual length, and climbs nowhere."""
    is_absolute = path.startswith(("/", "\\\\")) or (_DRIVE.match(path) is not None and path[2:3] in ("/", "\\"))
    return is_absolute and len(path) <= MAX_PATH_UNITS and "\0" not in path and ".." not in path_segments(path)


def find_folders(paths: Mapping[str, str]) -> list[FoundFolder]:
    """Return the folders that files lie in, by their paths by loader; a file that is alone is left out.

    A folder is the longest path that files of a disk have in common, of at least two files. It is no root of a disk and
    no person's home: what lies below these is looked at folder by folder.
    """
    order = {loader: place for place, loader in enumerate(paths)}
    groups: dict[str, list[_FilePath]] = defaultdict(list)
    for loader, path in paths.items():
        if not can_be_in_folder(path):
            continue
        one = _file(loader, path)
        groups[one.root].append(one)
    found = [folder for group in groups.values() for folder in _split(group, order)]
    return sorted(found, key=lambda folder: order[folder.loaders[0]])


def _file(loader: str, path: str) -> _FilePath:
    parts = [fold_name(part) for part in path_segments(path)]
    is_share = path.startswith("\\\\")
    root = "/".join(parts[:2]) if is_share else parts[0] if _DRIVE.match(path) else "/"
    return _FilePath(loader=loader, path=path, folders=tuple(parts[:-1]), root=root)


def _split(files: list[_FilePath], order: Mapping[str, int]) -> Iterator[FoundFolder]:
    waiting = [files]
    while waiting:
        group = waiting.pop()
        if len(group) < 2:
            continue
        common = _common([one.folders for one in group])
        if _may_be_one(group, common):
            loaders = sorted((one.loader for one in group), key=order.__getitem__)
            first = min(group, key=lambda one: order[one.loader])
            yield FoundFolder(path=_begin_of(first.path, len(common)), loaders=tuple(loaders))
            continue
        below: dict[str, list[_FilePath]] = defaultdict(list)
        for one in group:
            if len(one.folders) > len(common):
                below[one.folders[len(common)]].append(one)
        waiting += below.values()


def _common(paths: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Return what all of the paths begin with: what the first and the last in order do."""
    first, last = min(paths), max(paths)
    at = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None)
    return first[: min(len(first), len(last)) if at is None else at]


def _may_be_one(group: list[_FilePath], common: tuple[str, ...]) -> bool:
    """Tell whether somebody may have added a folder: no root, no home; a usual folder only where files are in it."""
    root = group[0].root
    on_disk = common if root == "/" else common[root.count("/") + 1 :]
    # Below /home and /mnt the first folder is a person's, or a disk's own root.
    is_top = len(on_disk) <= 2 if on_disk[:1] in _TOPS else not on_disk
    if is_top:
        return False
    return on_disk[-1] not in _USUAL or any(len(one.folders) == len(common) for one in group)


def _begin_of(path: str, depth: int) -> str:
    """Return a path up to its so-manyth segment, as it is written."""
    parts = (part for part in _PART.finditer(path) if part.group() != ".")
    end = next(part.end() for at, part in enumerate(parts, 1) if at == depth)
    return path[:end]


# What the rows of a vector file tell of the items that they were made of (``docs/formats/v1.md``, "Loader ids").


NOTE_LOADER, WEB_LOADER, SITEMAP_LOADER, DIRECTORY_LOADER = (
    "NoteLoader_",
    "WebLoader_",
    "SitemapLoader_",
    "DirectoryLoader_",
)
#: Units of the first chunk of a page that are kept: an address is no longer, and a name far shorter.
_BEGIN_UNITS = 4_000
#: Of two chunks that follow each other at most so much is the same: v1's settings allow no more overlap that is used.
_MOST_OVERLAP = 4_000
#: Of a row's own text: a note's, which is all that is left of it, and the begin of a page's.
_BODY = f"""CASE WHEN uniqueLoaderId LIKE '{NOTE_LOADER}%' THEN pageContent
                 WHEN uniqueLoaderId LIKE '{WEB_LOADER}%' THEN substr(pageContent, 1, {_BEGIN_UNITS}) END"""
#: Texts of a row: its loader, its source, its id, what it says of a sitemap, and its own text where that tells.
_WANTED = (
    layout.VECTOR_TABLE.loader,
    layout.VECTOR_TABLE.source,
    layout.VECTOR_TABLE.row_id,
    (("metadata", f"CASE WHEN uniqueLoaderId LIKE '{SITEMAP_LOADER}%' THEN metadata END"),),
    (("pageContent", _BODY),),
)


class NotAVectorFile(Exception):
    """A file that no base is made of: it is none of v1's, or has no row. The text says why, for a person."""


class LoaderSummary(msgspec.Struct):
    """What the rows of one loader tell."""

    loader: str
    rows: int = 0
    #: The first source that is text and not blank, empty where there is none.
    source: str = ""
    #: Of a sitemap: its own address.
    original: str = ""
    #: Of a page: the begin of its first chunk.
    begin: str = ""
    #: Of a note: its chunks, each with its number.
    chunks: list[tuple[int, str]] = msgspec.field(default_factory=list)
    _units: int = 0

    def see(self, source: str | None, row_id: str | None, metadata: str | None, body: str | None) -> None:
        """Take one row into account."""
        self.rows += 1
        if not self.source and not is_blank(source):
            self.source = str(source)
        if metadata is not None and not self.original:
            self.original = _original_source(metadata)
        if body is None:
            return
        if not self.loader.startswith(NOTE_LOADER):
            self.begin = self.begin or body
        elif self._units <= MAX_NOTE_UNITS:
            # A note is cut there anyway.
            self._units += len(body)
            number = layout.parse_chunk_number((row_id or "").encode(), self.loader.encode())
            self.chunks.append((number, body))

    def text(self) -> str:
        """Return a note's text as its chunks have it, in their order; what two have in common counts once."""
        parts: list[str] = []
        last = ""
        for _, chunk in sorted(self.chunks, key=lambda one: one[0]):
            shared = _overlap(last, chunk)
            parts.append(chunk[shared:] if shared or not parts else f" {chunk}")
            last = chunk
        return "".join(parts)


def _overlap(before: str, after: str) -> int:
    """Return how many characters at the end of one chunk are whole words that the next one begins with."""
    for size in range(min(len(before), len(after) - 1, _MOST_OVERLAP), 0, -1):
        begins = len(before) == size or before[-size - 1] == " "
        if begins and after[size] == " " and before.endswith(after[:size]):
            return size
    return 0


def _original_source(metadata: str) -> str:
    try:
        found: Any = json_text.decode(bytearray(metadata.encode()), object)
    except json_text.JsonProblem:
        return ""
    original = found.get("originalSource") if isinstance(found, dict) else None
    return original if isinstance(original, str) and not is_blank(original) else ""


class VectorFileSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a vector file tells: its loaders in the order of their first rows, and the dimensions of its vectors."""

    loaders: list[LoaderSummary] = msgspec.field(default_factory=list)
    rows: int = 0
    #: Of most usable vectors; None where there is none.
    dimensions: int | None = None
    #: Why it tells nothing, for a person.
    problem: str = ""


def summarize_vector_file(path: Path, *, work: Path | None = None) -> VectorFileSummary:
    """Read what the rows of a vector file tell. Vectors are not read.

    Raises:
        NotVectors: it is another SQLite file, without v1's table, or one without a row.
        StoreProblem: it is damaged.
    """
    check_file(path)
    facts: dict[str, LoaderSummary] = {}
    rows = 0
    try:
        with sqlite.open_readonly(path, work=work) as db:
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'vectors' COLLATE NOCASE").fetchone() is None:
                raise NotAVectorFile(tr("it has no table `vectors`"))
            for loader, source, row_id, metadata, body in layout.VECTOR_TABLE.texts(db, _WANTED):
                rows += 1
                if loader is not None and not is_blank(loader):
                    one = facts.get(loader) or facts.setdefault(loader, LoaderSummary(loader))
                    one.see(source, row_id, metadata, body)
            length = layout.VECTOR_TABLE.most_common_length(db)
    except (apsw.Error, UnicodeDecodeError, OSError) as error:
        raise StoreProblem(tr("cannot be read: {error}", error=error)) from error
    if not rows:
        raise NotAVectorFile(tr("it has no row"))
    return VectorFileSummary(
        loaders=list(facts.values()), rows=rows, dimensions=None if length is None else length // 4
    )


# Items of a base that no state describes, as v1's state would have had them, from loaders and sources alone.
#
# Rules: ``docs/rules.md``, "Vector files that no state names".


_PATH_KINDS = ("LocalPathLoader_", "OdtLoader_", "OdsLoader_", "OdpLoader_", "ImageLoader_")
_NO_SOURCE = "note"
#: What stands between the two parts of a snippet.
_GAP = "..."
#: What a name does not end with.
_ENDINGS = " ,;:.-"
#: Units of a text that a file is called by.
_NAME_UNITS = 40
#: Digits of a loader's hash that a file without a text to call it by is called by.
_DIGEST_DIGITS = 8
#: Uploads are read no further than this to find out which of them a text was.
MAX_UPLOADS = 20_000
MAX_UPLOAD_BYTES = 16 << 20
MAX_BYTES = 1 << 30
MAX_WORK = 4 << 30


@dataclass(frozen=True, kw_only=True)
class SourceFiles:
    """What lies beside the vector files: uploads, and Dexie's tables of files and notes by id."""

    tree: Tree
    uploads: str | None
    files: Mapping[str, dict[str, Any]]
    notes: Mapping[str, dict[str, Any]]

    @cached_property
    def upload_names(self) -> dict[str, str]:
        """Return the names of the uploads by the files' ids."""
        names = [] if self.uploads is None else self.tree.children(self.uploads)
        return {split_extension(name)[0]: name for name in names}

    @cached_property
    def notes_by_loader(self) -> dict[str, dict[str, Any]]:
        """Return Dexie's notes by the loader id that v1 gave to each."""
        found = {}
        for key in self.notes:
            note = self.notes[key]
            text, address = note.get("content"), note.get("sourceUrl")
            if isinstance(text, str) and not is_blank(text):
                found[f"{NOTE_LOADER}{_md5(text + (address if isinstance(address, str) else ''))}"] = note
        return found

    def texts_of(self, snippets: Mapping[str, str]) -> dict[str, str]:
        """Return the names of those uploads that loaders of texts hash, by loader; each has its rows' snippet."""
        wanted, found = WantedLoaders(snippets), dict[str, str]()
        bytes_left = MAX_BYTES
        for name in sorted(self.upload_names.values())[:MAX_UPLOADS]:
            suffix = split_extension(name)[1].lower()
            if not wanted or bytes_left <= 0 or wanted.spent > MAX_WORK:
                break
            raw = self._upload(name) if wanted.can_be(suffix) else b""
            bytes_left -= len(raw)
            if raw:
                found.update(dict.fromkeys(wanted.of_file(raw, suffix), name))
        return found

    def _upload(self, name: str) -> bytes:
        place = join_path(self.uploads or "", name)
        try:
            if self.tree.kind(place) != "file" or self.tree.size(place) > MAX_UPLOAD_BYTES:
                return b""
            with self.tree.open(place) as file:
                return file.read(MAX_UPLOAD_BYTES)
        except SourceUnreadable:
            return b""


class ReconstructedItems(msgspec.Struct, kw_only=True):
    """The items of a base as v1's state would have them, and how surely they are told."""

    raws: list[dict[str, Any]] = msgspec.field(default_factory=list)
    #: The folders among them.
    folders: list[FoundFolder] = msgspec.field(default_factory=list)
    #: Items by type.
    types: Counter[str] = msgspec.field(default_factory=Counter)
    #: Files whose name nobody knows, and notes whose whole text nobody knows.
    unnamed: int = 0
    partial: int = 0


def reconstruct_items(base: str, loaders: list[LoaderSummary], beside: SourceFiles) -> ReconstructedItems:
    """Return the items that the rows of a vector file were made of, in the order of their first rows.

    Args:
        base: the id of the base, which the ids of its items begin with.
        loaders: what its rows tell.
        beside: what else there is.
    """
    return _Items(base, loaders, beside).found


class _Items:
    def __init__(self, base: str, loaders: list[LoaderSummary], beside: SourceFiles) -> None:
        self._base, self._beside = base, beside
        self.found = ReconstructedItems()
        paths = {one.loader: path for one in loaders if (path := _path_of(one)) is not None}
        self._paths = paths
        self._of_uploads = {loader: upload for loader, path in paths.items() if (upload := self._upload_at(path))}
        outside = {loader: path for loader, path in paths.items() if loader not in self._of_uploads}
        self.found.folders = find_folders(outside)
        self._texts = beside.texts_of({one.loader: one.source for one in loaders if _is_text_file(one)})
        in_folders = {loader: folder for folder in self.found.folders for loader in folder.loaders}
        for one in loaders:
            folder = in_folders.get(one.loader)
            if folder is None:
                self._add(one)
            elif folder.loaders[0] == one.loader:
                self._put("directory", folder.path, loaders=folder.loaders, content=folder.path)

    def _add(self, one: LoaderSummary) -> None:
        kinds = {
            NOTE_LOADER: self._note,
            SITEMAP_LOADER: self._sitemap,
            WEB_LOADER: self._web,
            DIRECTORY_LOADER: self._directory,
        }
        for begin, add in kinds.items():
            if one.loader.startswith(begin):
                add(one)
                return
        if _is_address(one.source) and not one.loader.startswith((TEXT_LOADER, JSON_LOADER)):
            self._put("url", one.loader, loaders=(one.loader,), content=one.source)
        else:
            self._file(one)

    def _put(self, kind: str, key: str, *, loaders: tuple[str, ...], content: object, **more: object) -> None:
        self.found.types[kind] += 1
        raw = {
            "id": f"{self._base}/{key}",
            "type": kind,
            "content": content,
            # What v1 called a folder's own loader is in no row.
            "uniqueId": f"{DIRECTORY_LOADER}{_md5(key)}" if kind == "directory" else loaders[0],
            "uniqueIds": list(loaders),
            "processingStatus": "completed",
        }
        self.found.raws.append({**raw, **more})

    # --- kinds -----------------------------------------------------------------------------------------------------

    def _note(self, one: LoaderSummary) -> None:
        address = "" if one.source == _NO_SOURCE else one.source
        stored = self._beside.notes_by_loader.get(one.loader)
        text = one.text() if stored is None else str(stored["content"])
        self.found.partial += stored is None and f"{NOTE_LOADER}{_md5(text + address)}" != one.loader
        self._put("note", one.loader, loaders=(one.loader,), content=text, sourceUrl=address)

    def _sitemap(self, one: LoaderSummary) -> None:
        address = one.original or one.source
        self._put("sitemap", one.loader, loaders=(one.loader,), content=address or one.loader)

    def _web(self, one: LoaderSummary) -> None:
        # A page's source is its address; what v1 took for content, its only chunk is.
        proven = (text for text in (one.source, one.begin) if text and f"{WEB_LOADER}{_md5(text)}" == one.loader)
        address = next(proven, one.source if _is_address(one.source) else None)
        if address is None:
            self._file(one)
        else:
            self._put("url", one.loader, loaders=(one.loader,), content=address)

    def _directory(self, one: LoaderSummary) -> None:
        """Leave out rows of a folder itself: v1 wrote none, and no item has ever owned one."""

    def _file(self, one: LoaderSummary) -> None:
        upload = self._of_uploads.get(one.loader) or self._texts.get(one.loader)
        path = self._paths.get(one.loader)
        if upload is not None:
            content = self._of_upload(upload, path or "")
        else:
            self.found.unnamed += path is None
            name = _name_file(one) if path is None else (path_segments(path) or [one.loader])[-1]
            content = _metadata(one.loader, split_extension(name)[1], name, path or "")
        self._put("file", one.loader, loaders=(one.loader,), content=content)

    # --- uploads ---------------------------------------------------------------------------------------------------

    def _upload_at(self, path: str) -> str | None:
        """Return the name of the upload that v1 read at a path; None for a path elsewhere."""
        parts = path_segments(path)
        for at in (-3, -4):
            # A file processor puts what it makes into a folder that is called by the file's id.
            if len(parts) >= -at and [part.lower() for part in parts[at : at + 2]] == ["data", "files"]:
                return parts[-1] if at == -3 else self._beside.upload_names.get(parts[-2], parts[-2])
        return None

    def _of_upload(self, name: str, path: str) -> dict[str, Any]:
        """Return what is known of an uploaded file: what Dexie has of it, else its own name."""
        file_id, extension = split_extension(name)
        stored = self._beside.files.get(file_id, {})
        known = _metadata(file_id, extension, name, path)
        self.found.unnamed += is_blank(stored.get("origin_name"))
        fit = {key: value for key, value in stored.items() if key in FILE_TEXT_FIELDS and isinstance(value, str)}
        numbers = {
            key: value for key, value in stored.items() if key in FILE_NUMBER_FIELDS and type(value) in (int, float)
        }
        return {**known, **fit, **numbers, "id": file_id}


def _path_of(one: LoaderSummary) -> str | None:
    """Return the path of a file that v1 read at one; None for one of which it kept none."""
    is_known = one.loader.startswith(
        (TEXT_LOADER, JSON_LOADER, WEB_LOADER, NOTE_LOADER, SITEMAP_LOADER, DIRECTORY_LOADER)
    )
    if is_known or not one.source:
        return None
    # The id of a book is its path alone; a kind that nobody knows may have been named after a path.
    return one.source if one.loader.startswith(_PATH_KINDS) or can_be_in_folder(one.source) else None


def _is_text_file(one: LoaderSummary) -> bool:
    is_page = one.loader.startswith(WEB_LOADER) and not _is_address(one.source)
    return bool(one.source) and (is_page or one.loader.startswith((TEXT_LOADER, JSON_LOADER)))


def _is_address(text: str) -> bool:
    return text.startswith(("http://", "https://")) and not any(map(str.isspace, trim(text)))


def _metadata(file_id: str, extension: str, name: str, path: str) -> dict[str, Any]:
    """Return a file's metadata as v1 has them, with what nobody knows left empty."""
    texts = {"id": file_id, "name": f"{file_id}{extension}", "origin_name": name, "path": path, "ext": extension}
    return {**texts, "type": "other", "created_at": "", "size": 0, "count": 1}


def _name_file(one: LoaderSummary) -> str:
    """Return what a file without a known name is called: the begin of its text, else its kind and loader."""
    kind = "html" if one.loader.startswith(WEB_LOADER) else "json" if one.loader.startswith(JSON_LOADER) else "txt"
    if kind == "json" or not one.source:
        digest = one.loader.rpartition("_")[2][:_DIGEST_DIGITS]
        return f"file-{digest}" if one.loader.startswith(_PATH_KINDS) else f"{kind}-{digest}.{kind}"
    text = one.begin if kind == "html" else _front(one.source)
    lines = (trim(line.lstrip("#")) for line in text.splitlines())
    line = next(filter(None, lines), kind)
    return f"{trim(utf16_cut(line, _NAME_UNITS)).rstrip(_ENDINGS) or kind}.{kind}"


def _front(snippet: str) -> str:
    """Return the begin of a text of which v1 kept a snippet, without the word that was cut off."""
    front, gap, _ = snippet.partition(_GAP)
    if not gap or abs(utf16_len(front) - SNIPPET_UNITS) > 1:
        return snippet
    words = front.rpartition(" ")[0]
    return words if trim(words) else front


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


logger = logging.getLogger(__name__)

#: What a person calls the items of each type.
_NOUNS = {"directory": "folder", "file": "file", "url": "url", "sitemap": "sitemap", "note": "note"}
#: Gives a file on disk in a form that SQLite reads.
OpenVectorFile = Callable[[Path], AbstractContextManager[Path]]


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """A vector file that no state names: its name, what is known of it, and the model that it may be of.

    ``problem`` says why nothing can be read of it, for a person; nothing where it can.
    """

    file: str
    dimensions: int | None
    problem: str = ""
    #: The one model that the state's bases of the same dimensions have; None where there are none, or several.
    likely_model: str | None = None


class Adoption(msgspec.Struct, frozen=True, kw_only=True):
    """A state with a base for each vector file that it does not name, and what these are by the ids of the bases."""

    state: V1State
    orphans: dict[str, Orphan]

    def overrides(self, given: ModelOverrides) -> ModelOverrides:
        """Return the user's word on models, with the name of a vector file where they mean one."""
        return replace(given, mapped={self._base(old): new for old, new in given.mapped.items()})

    def _base(self, old: str) -> str:
        # A path of the file, or the id of a base that has another one for its file's name.
        names = [] if SEPARATOR in old else [vector_file_name(old), *path_segments(old)[-1:]]
        return next((name for name in names if name in self.orphans), old)

    def completed(self, draft: BaseDraft) -> BaseDraft:
        """Return the draft of a base with what only the vector file tells of it."""
        orphan = self.orphans.get(draft.legacy_id)
        if orphan is None:
            return draft
        embedding = draft.embedding
        if embedding.id is None:
            embedding = replace(embedding, problem=_missing_model(orphan))
        return replace(draft, vector_file=orphan.file, embedding=embedding)


def _missing_model(orphan: Orphan) -> str:
    """Say that nobody knows which model made the vectors of a file, and how to tell it."""
    if orphan.problem:
        return tr("its vector file {vector_file} {problem}", vector_file=orphan.file, problem=orphan.problem)
    option = f"--adopt-orphans --map-model '{orphan.file}={orphan.likely_model or 'PROVIDER::MODEL'}'"
    if orphan.likely_model is not None:
        return tr(
            "nothing says which model made its vectors of {dimensions} dimensions; if it was {model}, as of the other "
            "bases, they are carried with {option}",
            dimensions=orphan.dimensions,
            model=orphan.likely_model,
            option=option,
        )
    return tr(
        "nothing says which model made its vectors of {dimensions} dimensions; they are carried with {option}",
        dimensions=orphan.dimensions,
        option=option,
    )


def adopt_orphans(tree: Tree, places: StatePaths, state: V1State, opened: OpenVectorFile) -> Adoption:
    """Return a state with a base for each vector file that none of its own bases names.

    Files of bases that v1 was going to delete get none, and it is said; neither do files without v1's table of vectors,
    or with no row in it.
    """
    beside = SourceFiles(tree=tree, uploads=places.uploads, files=state.files, notes=state.notes)
    files = list_vector_files(tree, places) - list_expected_names(state.bases)
    to_delete = {vector_file_name(one): one for one in state.pending_delete}
    bases: list[dict[str, Any]] = []
    orphans: dict[str, Orphan] = {}
    said: list[Notice] = []
    for name in sorted(files):
        if name in to_delete:
            # A base that is skipped for its reason: it is named, and does not come back.
            bases.append({"id": to_delete[name], "name": name})
            continue
        try:
            facts = _facts(tree, join_path(places.vectors or "", name), opened)
        except NotAVectorFile as problem:
            said.append(_not_adopted(name, problem))
            continue
        found = reconstruct_items(name, facts.loaders, beside)
        logger.info("vector file %s: %s items told from %s rows", name, len(found.raws), facts.rows)
        bases.append(_state_base(name, facts, found))
        orphans[name] = Orphan(
            file=name,
            dimensions=facts.dimensions,
            problem=facts.problem,
            likely_model=_likely_model(state, facts),
        )
        said.append(_adopted(name, facts, found))
    others = (notice for notice in state.notices if notice.code not in (notices.LOST_STATE, notices.UNNAMED_VECTORS))
    adopted = replace(state, bases=[*state.bases, *bases], notices=(*others, *said))
    return Adoption(state=adopted, orphans=orphans)


def _facts(tree: Tree, name: str, opened: OpenVectorFile) -> VectorFileSummary:
    """Return what a file tells; one of v1's that is damaged tells why it does not.

    Raises:
        NotVectors: no base is made of it.
    """
    try:
        with tree.local(name, None) as origin, opened(origin) as path:
            return summarize_vector_file(path)
    except (StoreProblem, SourceUnreadable) as error:
        problem = str(error) if isinstance(error, StoreProblem) else tr("cannot be read")
        if not is_v1_vector_file(tree, name):
            raise NotAVectorFile(tr("it {problem}", problem=problem)) from error
        return VectorFileSummary(problem=problem)


def _state_base(name: str, facts: VectorFileSummary, found: ReconstructedItems) -> dict[str, Any]:
    """Return a base as v1's state has one."""
    items = LazyItems([msgspec.Raw(msgspec.json.encode(raw)) for raw in found.raws])
    called = _folder_name(found.folders) or name
    return {"id": name, "name": called, "dimensions": facts.dimensions, "items": items}


def _folder_name(folders: list[FoundFolder]) -> str:
    """Return the name of the only folder of a base, nothing where there is none, or several."""
    return path_segments(folders[0].path)[-1] if len(folders) == 1 else ""


def _likely_model(state: V1State, facts: VectorFileSummary) -> str | None:
    """Return the model that all bases of the state have, where they have these dimensions, too."""
    bases = [base for base in state.bases if isinstance(base, dict) and isinstance(base.get("model"), dict)]
    models = {unique_model_id(base["model"].get("provider"), base["model"].get("id")) for base in bases}
    same = facts.dimensions is not None and all(base.get("dimensions") == facts.dimensions for base in bases)
    return next(iter(models)) if len(models) == 1 and same else None


def _not_adopted(name: str, reason: NotAVectorFile) -> Notice:
    message = tr("no base is made of the file {name}: {reason}", name=name, reason=reason)
    return Notice(code=notices.NOT_ADOPTED, message=message)


def _adopted(name: str, facts: VectorFileSummary, found: ReconstructedItems) -> Notice:
    """Say what was told from the rows of a file, and how surely."""
    if facts.problem:
        message = tr("no base of the state names this vector file, and nothing can be read of it")
        return Notice(code=notices.ADOPTED, message=message, base=name)
    kinds = join_list(format_count(found.types[kind], noun) for kind, noun in _NOUNS.items() if found.types[kind])
    message = tr(
        "no base of the state names this vector file; told from {rows}: {kinds}",
        rows=format_count(facts.rows, "row"),
        kinds=kinds or tr("no item"),
    )
    if found.unnamed:
        message += tr("; the names of {files} are not known", files=format_count(found.unnamed, "file"))
    if found.partial:
        message += tr("; of {notes} only what was indexed is known", notes=format_count(found.partial, "note"))
    return Notice(code=notices.ADOPTED, message=message, base=name, count=max(len(found.raws), 1))
