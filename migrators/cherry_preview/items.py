"""Items of preview builds: as a catalog lists them, or made from the rows of a store.

Rules: ``docs/formats/preview.md``, "With a catalog" and "Without a catalog"; ``docs/formats/catalog.md``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec
from msgspec.structs import replace

from migrators.pipeline.packed import Packed
from migrators.pipeline.source import (
    FAILED_TEXT,
    INTERRUPTED_TEXT,
    DraftedItems,
    ItemContent,
    ItemDraft,
    SkippedItem,
    Upload,
    cut_note,
)
from regraft.disk.file_paths import RESERVED_NAME, FreeNames, fold_name, sanitize_material_name
from regraft.disk.trees import Tree, join_path
from regraft.errors import SourceUnreadable
from regraft.formats import cherry_preview, json_text
from regraft.formats.cherry_preview import PREVIEW_VECTORS, StoreContents, StoredItem
from regraft.formats.cherry_v2.catalog import MAX_NOTE_UNITS
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.cherry_v2.index import BODY_SEPARATOR
from regraft.formats.cherry_v2.settings import read_time
from regraft.formats.vector_survey import StoreProblem, VectorSurvey
from regraft.language import join_list, tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.text import is_blank, trim, without_nul

# --- data of an item -----------------------------------------------------------------------------------------------


#: Keys under which builds stored the parts of an item's data, the usual one first.
_SOURCES = ("source", "path", "filePath", "sourceUrl", "url")
_NAMES = ("relativePath", "originName", "origin_name", "name", "fileName", "filename")
_ADDRESSES = ("url", "source", "sourceUrl", "path")
_TEXTS = ("content", "text", "source")
_FOLDERS = ("source", "path", "directoryPath", "name")
#: A key of v2 that a library never has: its file is not migrated.
_INDEXED_PATH = "indexedRelativePath"


class RawFiles(msgspec.Struct, frozen=True):
    """The folder of a base's raw files in the source's tree."""

    tree: Tree
    folder: str

    def has_file(self, path: str) -> bool:
        """Whether the file exists."""
        return self.tree.kind(join_path(self.folder, path)) == "file"

    def upload(self, path: str) -> Upload:
        """Return a file of the folder as an upload. The file need not exist."""
        below, _, name = path.rpartition("/")
        return Upload(name, join_path(self.folder, below) if below else self.folder)


class RawPaths:
    """Assigns paths below ``raw/``, each only once."""

    def __init__(self, names: FreeNames) -> None:
        self._names = names
        self._folders: set[str] = set()
        self._below: set[str] = set()

    def take(self, path: str) -> str:
        """Return ``path``, or a free name without folders if the path is taken."""
        folder, _, name = path.rpartition("/")
        if not folder:
            return self._names.take(name)
        top, key = folder.split("/")[0], fold_name(path)
        if top not in self._folders and self._names.take(top) == top:
            self._folders.add(top)
        if top not in self._folders or key in self._below:
            return self._names.take(sanitize_material_name(name))
        self._below.add(key)
        return path


class ItemRows(Protocol):
    """What the rows of an item contain."""

    def source(self, item_id: str) -> str | None:
        """Return the source in an item's rows."""

    def text(self, item_id: str) -> str:
        """Return the text of an item's rows."""


class BaseContext(msgspec.Struct, frozen=True, kw_only=True):
    """What is needed to convert the items of one base."""

    base_id: str
    raw: RawFiles
    paths: RawPaths
    rows: ItemRows


def last_segment(source: str) -> str:
    """Return the last segment of a path of any system, or of an address."""
    return re.split(r"[/\\]", source.rstrip("/\\"))[-1]


def convert_data(item_type: str, stored: Any, item_id: str, context: BaseContext) -> ItemContent:
    """Convert an item's data to v2's form.

    Missing fields are taken from other keys, else from the item's rows. Values that are not text are dropped. Both are
    reported.
    """
    given = _decode_object(stored)
    content = _READERS[item_type](given, item_id, context)
    known = {**content.data}
    for key, value in given.items():
        if key in known or key == "relativePath" or value is None:
            continue
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if isinstance(value, str) and key != _INDEXED_PATH:
            content.data[key] = text
        else:
            content.notices.append(_make_notice(notices.DROPPED_FIELD, f"{key}: {text}", item_id, context))
    content.notices += _derived_field_notices(given, known, item_id, context)
    return content


def _derived_field_notices(
    given: dict[str, Any], known: dict[str, str], item_id: str, context: BaseContext
) -> Iterator[Notice]:
    """Report which fields were missing and derived, or are unknown."""
    derived = [key for key in known if not _is_given(given, key)]
    unknown = [key for key in derived if is_blank(known[key])]
    if unknown:
        text = tr("its {unknown} is unknown", unknown=join_list(unknown, tr(" and ")))
        yield _make_notice(notices.DATA_INCOMPLETE, text, item_id, context)
    elif derived:
        text = tr("its {derived} was missing and derived from other data", derived=join_list(derived, tr(" and ")))
        yield _make_notice(notices.DATA_MENDED, text, item_id, context)


def _is_given(given: dict[str, Any], key: str) -> bool:
    value = given.get(key)
    if key == "content":
        return isinstance(value, str)
    return isinstance(value, str) and not is_blank(value) and (key != "relativePath" or _is_safe(value))


def _make_notice(code: str, message: str, item_id: str, context: BaseContext) -> Notice:
    return Notice(code=code, message=message, base=context.base_id, item=item_id)


def _decode_object(stored: Any) -> dict[str, Any]:
    if isinstance(stored, bytes):
        stored = stored.decode("utf-8", "replace")
    try:
        given = json_text.loads(stored) if isinstance(stored, str) else None
        # JSON encoded twice.
        given = json_text.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}


def _first_text(given: dict[str, Any], keys: tuple[str, ...]) -> str | None:
    """Return the first text that is not blank under one of the keys, in the object or a nested one."""
    return next(_find_texts(given, keys), None)


def _find_texts(given: dict[str, Any], keys: tuple[str, ...]) -> Iterator[str]:
    for key in keys:
        if not is_blank(given.get(key)):
            yield str(given[key])
    for value in given.values():
        if isinstance(value, dict):
            yield from _find_texts(value, keys)


# --- types ---------------------------------------------------------------------------------------------------------


def _file_content(given: dict[str, Any], item_id: str, context: BaseContext) -> ItemContent:
    named = _first_text(given, _NAMES)
    source = _first_text(given, _SOURCES) or context.rows.source(item_id) or named or item_id
    path = given.get("relativePath")
    if path == item_id and not context.raw.has_file(item_id):
        # The file of a migrated folder has no file of its own in raw/.
        return ItemContent({"source": source, "relativePath": item_id})
    wanted = path if isinstance(path, str) and _is_safe(path) else sanitize_material_name(last_segment(named or source))
    wanted = wanted or sanitize_material_name(item_id)
    free = context.paths.take(wanted)
    data = {"source": source, "relativePath": free}
    return ItemContent(data, context.raw.upload(wanted), renamed=free != wanted)


def _is_safe(path: str) -> bool:
    """Whether a path stays below ``raw/`` on every system (``docs/formats/index.md``, "What always holds")."""
    parts = path.split("/")
    legal = not set(path) & {"\\", "\0"} and not re.match(r"[A-Za-z]:", path)
    return legal and all(part not in ("", ".", "..") for part in parts) and fold_name(parts[0]) != RESERVED_NAME


def _url_content(given: dict[str, Any], item_id: str, context: BaseContext) -> ItemContent:
    address = _first_text(given, _ADDRESSES) or context.rows.source(item_id) or ""
    source = given["source"] if not is_blank(given.get("source")) else address
    return _with_snapshot({"source": source, "url": address}, given, context)


def _note_content(given: dict[str, Any], item_id: str, context: BaseContext) -> ItemContent:
    text = _first_text(given, _TEXTS[:2]) or context.rows.text(item_id) or _first_text(given, _TEXTS) or ""
    text, notices_of_cut = cut_note(text, context.base_id, item_id)
    source = _first_text(given, ("source", "sourceUrl", "url", "title")) or context.rows.source(item_id) or text
    content = _with_snapshot({"source": source, "content": text}, given, context)
    content.notices += notices_of_cut
    return content


def _with_snapshot(data: dict[str, str], given: dict[str, Any], context: BaseContext) -> ItemContent:
    """Add the path of the snapshot if the file exists. Else a snapshot is written from the text."""
    path = given.get("relativePath")
    if not isinstance(path, str) or not _is_safe(path) or not context.raw.has_file(path):
        return ItemContent(data)
    free = context.paths.take(path)
    return ItemContent({**data, "relativePath": free}, context.raw.upload(path), renamed=free != path)


def _directory_content(given: dict[str, Any], item_id: str, context: BaseContext) -> ItemContent:
    return ItemContent({"source": _first_text(given, _FOLDERS) or context.rows.source(item_id) or ""})


_READERS: dict[str, Callable[[dict[str, Any], str, BaseContext], ItemContent]] = {
    "file": _file_content,
    "url": _url_content,
    "note": _note_content,
    "directory": _directory_content,
}


#: --- listed items --------------------------------------------------------------------------------------------------
#:
#: Item types by their names in catalogs.
_CATALOG_TYPES = {
    "file": "file",
    "url": "url",
    "sitemap": "url",
    "note": "note",
    "directory": "directory",
    "folder": "directory",
}
_DONE = {"completed", "success", "done", "ready"}
_IDLE = {"idle"}
_FAILED = {"failed", "error"}
_DELETING = {"deleting", "deleted"}
#: Statuses of a folder that depend on its files.
_FOLLOWING = {"processing"}


class _Unusable(Exception):
    """An item that cannot be migrated. The text is the reason code."""


def draft_listed_items(rows: Iterable[Row], context: BaseContext, migrated: set[str]) -> DraftedItems:
    """Draft a base's items in the catalog's order, each folder before its content.

    Args:
        rows: rows of the catalog.
        context: the base.
        migrated: ids of the items of all bases so far; the ids of this base are added.
    """
    drafted = DraftedItems()
    active: set[str] = set()
    for row in rows:
        try:
            item = _draft_item(row, context, migrated, drafted)
        except _Unusable as unusable:
            reason, item_id = str(unusable), row.get("id")
            item_id = item_id if isinstance(item_id, str) else None
            drafted.skipped.append(SkippedItem(item_id, reason))
            drafted.notices.append(
                Notice(code=reason, message=notices.CODES[reason].meaning, base=context.base_id, item=item_id)
            )
            continue
        drafted.items.append(item)
        if item.type == "directory" and _status_of(row) in _FOLLOWING:
            active.add(item.id)
    ordered = _order_by_folder(drafted.items, context.base_id, drafted.notices)
    following = active & {item.group_id for item in ordered}
    drafted.items = Packed(
        ItemDraft,
        (replace(item, status="completed", error=None) if item.id in following else item for item in ordered),
    )
    return drafted


def _draft_item(row: Row, context: BaseContext, migrated: set[str], drafted: DraftedItems) -> ItemDraft:
    item_id, item_type = row.get("id"), row.get("type")
    if not isinstance(item_id, str) or is_blank(item_id) or is_blank(item_type):
        raise _Unusable(notices.NO_ID_OR_TYPE)
    if _status_of(row) in _DELETING or row.get("deleted_at") is not None:
        raise _Unusable(notices.ITEM_DELETING)
    known = _CATALOG_TYPES.get(trim(str(item_type)).lower())
    if known is None:
        raise _Unusable(notices.UNSUPPORTED_TYPE)
    if item_id in migrated:
        raise _Unusable(notices.DUPLICATE_ITEM)
    migrated.add(item_id)
    content = convert_data(known, row.get("data"), item_id, context)
    drafted.notices.extend(content.notices)
    drafted.renamed += content.renamed
    status, error = _status(row)
    group = row.get("group_id")
    return ItemDraft(
        legacy_id=item_id,
        id=item_id,
        type=known,
        data=content.data,
        status=status,
        error=error,
        created_at=read_time(row.get("created_at")),
        updated_at=read_time(row.get("updated_at")),
        loader_ids=(item_id,),
        upload=content.upload,
        group_id=group if isinstance(group, str) else None,
        is_listed=True,
    )


def _status_of(row: Row) -> str:
    status = row.get("status")
    return "completed" if is_blank(status) else trim(str(status)).lower()


def _status(row: Row) -> tuple[str, str | None]:
    status = _status_of(row)
    if status in _DONE | _IDLE:
        return ("completed" if status in _DONE else "idle"), None
    error: Any = row.get("error")
    text = trim(without_nul(error)) if isinstance(error, str) else ""
    return "failed", text or (FAILED_TEXT if status in _FAILED else INTERRUPTED_TEXT)


def _order_by_folder(items: Iterable[ItemDraft], base_id: str, found_notices: list[Notice]) -> list[ItemDraft]:
    """Order items so that a folder comes before its content. References to missing folders are dropped and reported."""
    folders = {item.id: item for item in items if item.type == "directory"}
    ordered: dict[str, ItemDraft] = {}
    for item in items:
        for one in reversed(_item_and_ancestors(item, folders, ordered)):
            # A cycle of folders is cut at its first item.
            if one.group_id is not None and one.group_id not in ordered:
                text = tr("group: {group_id}, which is not a folder of this base", group_id=one.group_id)
                found_notices.append(Notice(code=notices.DROPPED_FIELD, message=text, base=base_id, item=one.id))
                one = replace(one, group_id=None)  # noqa: PLW2901 - the same item
            ordered[one.id] = one
    return list(ordered.values())


def _item_and_ancestors(item: ItemDraft, folders: Mapping[str, ItemDraft], ordered: Container[str]) -> list[ItemDraft]:
    """Return an item and its ancestors from the inside out, up to one that is ordered already or part of a cycle."""
    chain: dict[str, ItemDraft] = {}
    current: ItemDraft | None = item
    while current is not None and current.id not in ordered and current.id not in chain:
        chain[current.id] = current
        current = folders.get(current.group_id) if current.group_id is not None else None
    return list(chain.values())


# --- items of a store ----------------------------------------------------------------------------------------------


#: Item types by their names in rows. All other items are files.
_ROW_TYPES = {"url": "url", "sitemap": "url", "note": "note"}


class StoreItems:
    """The items in a store, read on first use. A store that cannot be read has no items."""

    def __init__(self, tree: Tree, name: str, *, texts: bool = False) -> None:
        """Open nothing yet. ``texts``: whether rows are migrated for their text alone."""
        self._tree = tree
        self._find_texts = texts
        self._name = name
        self._open = ExitStack()
        #: Why the store cannot be read, for a person; empty if it can.
        self.problem = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @cached_property
    def _path(self) -> Path:
        """Path of the store on disk, extracted from an archive if necessary."""
        try:
            found = self._open.enter_context(self._tree.local(self._name, None))
        except SourceUnreadable as error:
            raise StoreProblem(tr("cannot be read: {reason}", reason=error.facts["reason"])) from error
        return self._open.enter_context(cherry_preview.readable_copy(found))

    @cached_property
    def contents(self) -> StoreContents:
        """The owners of the store's rows, with what their rows contain."""
        try:
            return cherry_preview.read_contents(self._path)
        except StoreProblem as problem:
            self.problem = str(problem)
            return StoreContents()

    @cached_property
    def _survey(self) -> VectorSurvey:
        return PREVIEW_VECTORS.survey(self._path)

    @property
    def declared_dimensions(self) -> int | None:
        """The dimensions in the declaration of the table; None if unknown."""
        try:
            return cherry_preview.declared_dimensions(self._path)
        except StoreProblem:
            return None

    def source(self, item_id: str) -> str | None:
        """Return the source in an item's rows."""
        return self.contents.items.get(item_id, StoredItem()).source

    def text(self, item_id: str) -> str:
        """Return the text of an item's rows. Of a long one, at least one UTF-16 unit more than a note can hold."""
        try:
            return cherry_preview.join_owner_bodies(
                self._path, self._survey, item_id, BODY_SEPARATOR, MAX_NOTE_UNITS, texts=self._find_texts
            )
        except StoreProblem as problem:
            self.problem = str(problem)
            return ""


def draft_stored_items(store_items: StoreItems, context: BaseContext, migrated: set[str]) -> DraftedItems:
    """Draft an item for every owner of rows, in the order of their first rows.

    Args:
        store_items: the store of the base.
        context: the base.
        migrated: ids of the items of all bases so far; the ids of this base are added.
    """
    drafted = DraftedItems()
    for item_id, stored in store_items.contents.items.items():
        if item_id in migrated:
            drafted.skipped.append(SkippedItem(item_id, notices.DUPLICATE_ITEM))
            message = notices.CODES[notices.DUPLICATE_ITEM].meaning
            drafted.notices.append(
                Notice(code=notices.DUPLICATE_ITEM, message=message, base=context.base_id, item=item_id)
            )
            continue
        migrated.add(item_id)
        drafted.items.append(_draft_stored_item(item_id, stored, store_items, context, drafted))
    return drafted


def _draft_stored_item(
    item_id: str, stored: StoredItem, store_items: StoreItems, context: BaseContext, drafted: DraftedItems
) -> ItemDraft:
    item_type = _ROW_TYPES.get(stored.type or "", "file")
    source = stored.source or item_id
    upload: Upload | None = None
    if item_type == "url":
        data = {"source": source, "url": source}
    elif item_type == "note":
        content, cut = cut_note(store_items.text(item_id), context.base_id, item_id)
        drafted.notices.extend(cut)
        data = {"source": stored.source or content, "content": content}
    else:
        wanted = sanitize_material_name(last_segment(source)) or sanitize_material_name(item_id)
        name = context.paths.take(wanted)
        drafted.renamed += name != wanted
        data = {"source": source, "relativePath": name}
        upload = context.raw.upload(name)
    return ItemDraft(
        legacy_id=item_id,
        id=item_id,
        type=item_type,
        data=data,
        status="completed",
        error=None,
        created_at=None,
        updated_at=None,
        loader_ids=(item_id,),
        upload=upload,
    )
