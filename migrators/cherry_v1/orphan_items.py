"""Items of a base that no state describes, as v1's state would have had them, from loaders and sources alone.

Rules: ``docs/rules.md``, "Vector files that no state names".
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from migrators.cherry_v1.file_texts import FRONT_UNITS, JSON, TEXT, WantedText
from migrators.cherry_v1.items import FILE_NUMBERS, FILE_TEXTS
from migrators.cherry_v1.orphan_folders import FoundFolder, can_be_in_folder, folders_of
from migrators.cherry_v1.orphan_rows import DIRECTORY, NOTE, SITEMAP, WEB, LoaderFacts
from regraft.errors import SourceUnreadable
from regraft.folder_paths import segments
from regraft.names import split_extension
from regraft.text import is_blank, trim, utf16_cut, utf16_len
from regraft.tree import Tree, join

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
class Beside:
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
                found[f"{NOTE}{_md5(text + (address if isinstance(address, str) else ''))}"] = note
        return found

    def texts_of(self, snippets: Mapping[str, str]) -> dict[str, str]:
        """Return the names of those uploads that loaders of texts hash, by loader; each has its rows' snippet."""
        wanted, found = WantedText(snippets), dict[str, str]()
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
        place = join(self.uploads or "", name)
        try:
            if self.tree.kind(place) != "file" or self.tree.size(place) > MAX_UPLOAD_BYTES:
                return b""
            with self.tree.open(place) as file:
                return file.read(MAX_UPLOAD_BYTES)
        except SourceUnreadable:
            return b""


class FoundItems(msgspec.Struct, kw_only=True):
    """The items of a base as v1's state would have them, and how surely they are told."""

    raws: list[dict[str, Any]] = msgspec.field(default_factory=list)
    #: The folders among them.
    folders: list[FoundFolder] = msgspec.field(default_factory=list)
    #: Items by type.
    types: Counter[str] = msgspec.field(default_factory=Counter)
    #: Files whose name nobody knows, and notes whose whole text nobody knows.
    unnamed: int = 0
    partial: int = 0


def items_of(base: str, loaders: list[LoaderFacts], beside: Beside) -> FoundItems:
    """Return the items that the rows of a vector file were made of, in the order of their first rows.

    Args:
        base: the id of the base, which the ids of its items begin with.
        loaders: what its rows tell.
        beside: what else there is.
    """
    return _Items(base, loaders, beside).found


class _Items:
    def __init__(self, base: str, loaders: list[LoaderFacts], beside: Beside) -> None:
        self._base, self._beside = base, beside
        self.found = FoundItems()
        paths = {one.loader: path for one in loaders if (path := _path_of(one)) is not None}
        self._paths = paths
        self._of_uploads = {loader: upload for loader, path in paths.items() if (upload := self._upload_at(path))}
        outside = {loader: path for loader, path in paths.items() if loader not in self._of_uploads}
        self.found.folders = folders_of(outside)
        self._texts = beside.texts_of({one.loader: one.source for one in loaders if _is_text_file(one)})
        in_folders = {loader: folder for folder in self.found.folders for loader in folder.loaders}
        for one in loaders:
            folder = in_folders.get(one.loader)
            if folder is None:
                self._add(one)
            elif folder.loaders[0] == one.loader:
                self._put("directory", folder.path, loaders=folder.loaders, content=folder.path)

    def _add(self, one: LoaderFacts) -> None:
        kinds = {NOTE: self._note, SITEMAP: self._sitemap, WEB: self._web, DIRECTORY: self._directory}
        for begin, add in kinds.items():
            if one.loader.startswith(begin):
                add(one)
                return
        if _is_address(one.source) and not one.loader.startswith((TEXT, JSON)):
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
            "uniqueId": f"{DIRECTORY}{_md5(key)}" if kind == "directory" else loaders[0],
            "uniqueIds": list(loaders),
            "processingStatus": "completed",
        }
        self.found.raws.append({**raw, **more})

    # --- kinds -----------------------------------------------------------------------------------------------------

    def _note(self, one: LoaderFacts) -> None:
        address = "" if one.source == _NO_SOURCE else one.source
        stored = self._beside.notes_by_loader.get(one.loader)
        text = one.text() if stored is None else str(stored["content"])
        self.found.partial += stored is None and f"{NOTE}{_md5(text + address)}" != one.loader
        self._put("note", one.loader, loaders=(one.loader,), content=text, sourceUrl=address)

    def _sitemap(self, one: LoaderFacts) -> None:
        address = one.original or one.source
        self._put("sitemap", one.loader, loaders=(one.loader,), content=address or one.loader)

    def _web(self, one: LoaderFacts) -> None:
        # A page's source is its address; what v1 took for content, its only chunk is.
        proven = (text for text in (one.source, one.begin) if text and f"{WEB}{_md5(text)}" == one.loader)
        address = next(proven, one.source if _is_address(one.source) else None)
        if address is None:
            self._file(one)
        else:
            self._put("url", one.loader, loaders=(one.loader,), content=address)

    def _directory(self, one: LoaderFacts) -> None:
        """Leave out rows of a folder itself: v1 wrote none, and no item has ever owned one."""

    def _file(self, one: LoaderFacts) -> None:
        upload = self._of_uploads.get(one.loader) or self._texts.get(one.loader)
        path = self._paths.get(one.loader)
        if upload is not None:
            content = self._of_upload(upload, path or "")
        else:
            self.found.unnamed += path is None
            name = _called(one) if path is None else (segments(path) or [one.loader])[-1]
            content = _metadata(one.loader, split_extension(name)[1], name, path or "")
        self._put("file", one.loader, loaders=(one.loader,), content=content)

    # --- uploads ---------------------------------------------------------------------------------------------------

    def _upload_at(self, path: str) -> str | None:
        """Return the name of the upload that v1 read at a path; None for a path elsewhere."""
        parts = segments(path)
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
        fit = {key: value for key, value in stored.items() if key in FILE_TEXTS and isinstance(value, str)}
        numbers = {key: value for key, value in stored.items() if key in FILE_NUMBERS and type(value) in (int, float)}
        return {**known, **fit, **numbers, "id": file_id}


def _path_of(one: LoaderFacts) -> str | None:
    """Return the path of a file that v1 read at one; None for one of which it kept none."""
    is_known = one.loader.startswith((TEXT, JSON, WEB, NOTE, SITEMAP, DIRECTORY))
    if is_known or not one.source:
        return None
    # The id of a book is its path alone; a kind that nobody knows may have been named after a path.
    return one.source if one.loader.startswith(_PATH_KINDS) or can_be_in_folder(one.source) else None


def _is_text_file(one: LoaderFacts) -> bool:
    is_page = one.loader.startswith(WEB) and not _is_address(one.source)
    return bool(one.source) and (is_page or one.loader.startswith((TEXT, JSON)))


def _is_address(text: str) -> bool:
    return text.startswith(("http://", "https://")) and not any(map(str.isspace, trim(text)))


def _metadata(file_id: str, extension: str, name: str, path: str) -> dict[str, Any]:
    """Return a file's metadata as v1 has them, with what nobody knows left empty."""
    texts = {"id": file_id, "name": f"{file_id}{extension}", "origin_name": name, "path": path, "ext": extension}
    return {**texts, "type": "other", "created_at": "", "size": 0, "count": 1}


def _called(one: LoaderFacts) -> str:
    """Return what a file without a known name is called: the begin of its text, else its kind and loader."""
    kind = "html" if one.loader.startswith(WEB) else "json" if one.loader.startswith(JSON) else "txt"
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
    if not gap or abs(utf16_len(front) - FRONT_UNITS) > 1:
        return snippet
    words = front.rpartition(" ")[0]
    return words if trim(words) else front


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
