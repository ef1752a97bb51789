"""An item's ``data`` in the shape that v2 wants, derived where a build wrote another (``docs/formats/catalog.md``)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from migrators.pipeline.drafts import Content, Upload, cut_note
from regraft.formats import json_text
from regraft.language import joined, tr
from regraft.names import RESERVED_NAME, FreeNames, fold, material_name
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.text import is_blank
from regraft.tree import Tree, join

#: Where builds have kept the parts of an item's data, the usual key first.
_SOURCES = ("source", "path", "filePath", "sourceUrl", "url")
_NAMES = ("relativePath", "originName", "origin_name", "name", "fileName", "filename")
_ADDRESSES = ("url", "source", "sourceUrl", "path")
_TEXTS = ("content", "text", "source")
_FOLDERS = ("source", "path", "directoryPath", "name")
#: Keys of v2 that a library never holds: their file is not carried.
_INDEXED_PATH = "indexedRelativePath"


class RawFiles(msgspec.Struct, frozen=True):
    """The folder of a base's raw files, as a name in the source's tree."""

    tree: Tree
    folder: str

    def has(self, path: str) -> bool:
        """Tell whether a file is there."""
        return self.tree.kind(join(self.folder, path)) == "file"

    def upload(self, path: str) -> Upload:
        """Return a file of the folder, there or not, as one to copy."""
        below, _, name = path.rpartition("/")
        return Upload(name, join(self.folder, below) if below else self.folder)


class RawPaths:
    """Paths below ``raw/``, each given out once; those without a folder are :class:`FreeNames`'."""

    def __init__(self, names: FreeNames) -> None:
        self._names = names
        self._folders: set[str] = set()
        self._below: set[str] = set()

    def take(self, path: str) -> str:
        """Return ``path``, or where another item has it, a free name without folders."""
        folder, _, name = path.rpartition("/")
        if not folder:
            return self._names.take(name)
        top, key = folder.split("/")[0], fold(path)
        if top not in self._folders and self._names.take(top) == top:
            self._folders.add(top)
        if top not in self._folders or key in self._below:
            return self._names.take(material_name(name))
        self._below.add(key)
        return path


class Rows(Protocol):
    """What an item's rows tell of it."""

    def source(self, item_id: str) -> str | None:
        """Return the source that they name."""

    def text(self, item_id: str) -> str:
        """Return the text that they make."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where an item's data is read: what its base has."""

    base_id: str
    raw: RawFiles
    paths: RawPaths
    rows: Rows


def base_name(source: str) -> str:
    """Return the last part of a path of any system, or of an address."""
    return re.split(r"[/\\]", source.rstrip("/\\"))[-1]


def read_data(item_type: str, stored: Any, item_id: str, place: Place) -> Content:
    """Return an item's data as v2 wants it.

    What is missing is derived from what is there under other names, else from the item's rows; what is not text has no
    place. Both are said.
    """
    given = _object(stored)
    content = _READERS[item_type](given, item_id, place)
    known = {**content.data}
    for key, value in given.items():
        if key in known or key == "relativePath" or value is None:
            continue
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if isinstance(value, str) and key != _INDEXED_PATH:
            content.data[key] = text
        else:
            content.notices.append(_said(notices.DROPPED_FIELD, f"{key}: {text}", item_id, place))
    content.notices += _notices_of_derived(given, known, item_id, place)
    return content


def _notices_of_derived(given: dict[str, Any], known: dict[str, str], item_id: str, place: Place) -> Iterator[Notice]:
    """Say what of an item's data nobody had given, or nobody knows."""
    derived = [key for key in known if not _is_given(given, key)]
    unknown = [key for key in derived if is_blank(known[key])]
    if unknown:
        text = tr("nothing says its {unknown}", unknown=joined(unknown, tr(" and ")))
        yield _said(notices.DATA_INCOMPLETE, text, item_id, place)
    elif derived:
        text = tr("its {derived} follows from what else is known of it", derived=joined(derived, tr(" and ")))
        yield _said(notices.DATA_MENDED, text, item_id, place)


def _is_given(given: dict[str, Any], key: str) -> bool:
    value = given.get(key)
    if key == "content":
        return isinstance(value, str)
    return isinstance(value, str) and not is_blank(value) and (key != "relativePath" or _is_safe(value))


def _said(code: str, message: str, item_id: str, place: Place) -> Notice:
    return Notice(code=code, message=message, base=place.base_id, item=item_id)


def _object(stored: Any) -> dict[str, Any]:
    if isinstance(stored, bytes):
        stored = stored.decode("utf-8", "replace")
    try:
        given = json_text.loads(stored) if isinstance(stored, str) else None
        # Written twice over by some layer between.
        given = json_text.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}


def _first(given: dict[str, Any], keys: tuple[str, ...]) -> str | None:
    """Return the first text that is not blank under one of these keys, in the object or in those inside it."""
    return next(_texts(given, keys), None)


def _texts(given: dict[str, Any], keys: tuple[str, ...]) -> Iterator[str]:
    for key in keys:
        if not is_blank(given.get(key)):
            yield str(given[key])
    for value in given.values():
        if isinstance(value, dict):
            yield from _texts(value, keys)


# --- types ---------------------------------------------------------------------------------------------------------


def _file(given: dict[str, Any], item_id: str, place: Place) -> Content:
    named = _first(given, _NAMES)
    source = _first(given, _SOURCES) or place.rows.source(item_id) or named or item_id
    path = given.get("relativePath")
    if path == item_id and not place.raw.has(item_id):
        # A migrated folder's file: it never had one of its own.
        return Content({"source": source, "relativePath": item_id})
    wanted = path if isinstance(path, str) and _is_safe(path) else material_name(base_name(named or source))
    wanted = wanted or material_name(item_id)
    free = place.paths.take(wanted)
    data = {"source": source, "relativePath": free}
    return Content(data, place.raw.upload(wanted), renamed=free != wanted)


def _is_safe(path: str) -> bool:
    """Tell whether a path stays below ``raw/`` on every system (``docs/formats/index.md``, "What always holds")."""
    parts = path.split("/")
    legal = not set(path) & {"\\", "\0"} and not re.match(r"[A-Za-z]:", path)
    return legal and all(part not in ("", ".", "..") for part in parts) and fold(parts[0]) != RESERVED_NAME


def _url(given: dict[str, Any], item_id: str, place: Place) -> Content:
    address = _first(given, _ADDRESSES) or place.rows.source(item_id) or ""
    source = given["source"] if not is_blank(given.get("source")) else address
    return _with_snapshot({"source": source, "url": address}, given, place)


def _note(given: dict[str, Any], item_id: str, place: Place) -> Content:
    text = _first(given, _TEXTS[:2]) or place.rows.text(item_id) or _first(given, _TEXTS) or ""
    text, said = cut_note(text, place.base_id, item_id)
    source = _first(given, ("source", "sourceUrl", "url", "title")) or place.rows.source(item_id) or text
    content = _with_snapshot({"source": source, "content": text}, given, place)
    content.notices += said
    return content


def _with_snapshot(data: dict[str, str], given: dict[str, Any], place: Place) -> Content:
    """Add the snapshot's path where that file is there; else one is written from the text."""
    path = given.get("relativePath")
    if not isinstance(path, str) or not _is_safe(path) or not place.raw.has(path):
        return Content(data)
    free = place.paths.take(path)
    return Content({**data, "relativePath": free}, place.raw.upload(path), renamed=free != path)


def _directory(given: dict[str, Any], item_id: str, place: Place) -> Content:
    return Content({"source": _first(given, _FOLDERS) or place.rows.source(item_id) or ""})


_READERS: dict[str, Callable[[dict[str, Any], str, Place], Content]] = {
    "file": _file,
    "url": _url,
    "note": _note,
    "directory": _directory,
}
