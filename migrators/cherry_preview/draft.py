"""Drafts of the bases of preview builds and of their items: as a catalog lists them, or made from the rows of a store.

The result depends only on the source. Rules: ``docs/formats/preview.md``, "What becomes of it"; for models
``docs/rules.md``, "Models"; for items ``docs/formats/catalog.md``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from migrators.pipeline.packed import Packed
from migrators.pipeline.publication import CATALOG_SUBJECT, REPORT_SUBJECT
from migrators.pipeline.source import (
    FAILED_TEXT,
    INTERRUPTED_TEXT,
    BaseDraft,
    DraftedItems,
    ItemContent,
    ItemDraft,
    LibraryDraft,
    SkippedBase,
    SkippedItem,
    Upload,
    cut_note,
)
from regraft import identity
from regraft.disk.file_paths import RESERVED_NAME, FreeNames, fold_name, is_folder_name, sanitize_material_name
from regraft.disk.trees import Tree, join_path
from regraft.errors import SourceUnreadable
from regraft.formats import cherry_preview, json_text
from regraft.formats.cherry_preview import PREVIEW_VECTORS, IndexLayout, IndexSummary, StoreContents, StoredItem
from regraft.formats.cherry_v2.catalog import MAX_NOTE_UNITS
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, Row, StoredCatalog, read_catalog
from regraft.formats.cherry_v2.index import BODY_SEPARATOR
from regraft.formats.cherry_v2.layout import INDEX_FILE, RAW_FOLDER, StoreFile
from regraft.formats.cherry_v2.models import (
    SEPARATOR,
    ModelChoice,
    ModelOverrides,
    ModelResolver,
    is_model_id,
    tidy_model_id,
)
from regraft.formats.cherry_v2.settings import read_base_settings, read_time, read_whole_number
from regraft.formats.vector_survey import StoreProblem, VectorSurvey
from regraft.identity import replace
from regraft.language import format_count, join_list, tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.stores.locate import Located
from regraft.text import is_blank, join_command, replace_surrogates, trim, without_nul

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
    """The folder ``raw/`` of a base in the source."""

    tree: Tree
    folder: str

    def has_file(self, path: str) -> bool:
        """Whether the file at this path below the folder exists."""
        return self.tree.kind(join_path(self.folder, path)) == "file"

    def upload(self, path: str) -> Upload:
        """Describe the file at this path below the folder as an upload. The file need not exist."""
        below, _, name = path.rpartition("/")
        return Upload(name, join_path(self.folder, below) if below else self.folder)


class RawPaths:
    """Assigns paths below ``raw/``, each only once."""

    def __init__(self, names: FreeNames) -> None:
        self._names = names
        self._folders: set[str] = set()
        self._below: set[str] = set()

    def take(self, path: str) -> str:
        """Return ``path`` if it is still free, else a free name without folders."""
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
    """Reads from the rows of a base what they contain of an item."""

    def source(self, item_id: str) -> str | None:
        """Return the path or address of an item's original as its rows state it, or None."""

    def text(self, item_id: str) -> str:
        """Return the text of the rows of an item; empty without rows."""


class BaseContext(msgspec.Struct, frozen=True, kw_only=True):
    """What is needed to convert the items of one base."""

    base_id: str
    raw: RawFiles
    paths: RawPaths
    rows: ItemRows


def last_segment(source: str) -> str:
    """Return the last segment of a file path of any system, or of a web address."""
    return re.split(r"[/\\]", source.rstrip("/\\"))[-1]


def convert_data(item_type: str, stored: Any, item_id: str, context: BaseContext) -> ItemContent:
    """Convert the data of a catalog item to v2's form.

    ``stored`` is the JSON in the catalog. Missing fields are taken from other keys, else from the item's rows. Values
    that are not text are dropped. Both are reported.
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
    fields: dict[str, Any], known: dict[str, str], item_id: str, context: BaseContext
) -> Iterator[Notice]:
    """Report which fields were missing and derived, or are unknown.

    ``fields`` are the fields of the item in the catalog, ``known`` those after the conversion.
    """
    derived = [key for key in known if not _is_given(fields, key)]
    unknown = [key for key in derived if is_blank(known[key])]
    if unknown:
        text = tr("its {unknown} is unknown", unknown=join_list(unknown, tr(" and ")))
        yield _make_notice(notices.DATA_INCOMPLETE, text, item_id, context)
    elif derived:
        text = tr("its {derived} was missing and derived from other data", derived=join_list(derived, tr(" and ")))
        yield _make_notice(notices.DATA_MENDED, text, item_id, context)


def _is_given(fields: dict[str, Any], key: str) -> bool:
    """Whether the fields of an item have a usable value for a key: not blank, and for ``relativePath`` a safe path."""
    value = fields.get(key)
    if key == "content":
        return isinstance(value, str)
    return isinstance(value, str) and not is_blank(value) and (key != "relativePath" or _is_safe(value))


def _make_notice(code: str, message: str, item_id: str, context: BaseContext) -> Notice:
    """Make a notice about an item of the base."""
    return Notice(code=code, message=message, base=context.base_id, item=item_id)


def _decode_object(stored: Any) -> dict[str, Any]:
    """Decode a JSON object in the catalog, also one encoded twice; empty if it is not one."""
    if isinstance(stored, bytes):
        stored = stored.decode("utf-8", "replace")
    try:
        given = json_text.loads(stored) if isinstance(stored, str) else None
        # JSON encoded twice.
        given = json_text.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}


def _first_text(fields: dict[str, Any], keys: tuple[str, ...]) -> str | None:
    """Return the first text that is not blank under one of the keys, in the object or a nested one; else None."""
    return next(_find_texts(fields, keys), None)


def _find_texts(fields: dict[str, Any], keys: tuple[str, ...]) -> Iterator[str]:
    """Yield the texts under the keys that are not blank, in the object itself and then in the objects inside it."""
    for key in keys:
        if not is_blank(fields.get(key)):
            yield str(fields[key])
    for value in fields.values():
        if isinstance(value, dict):
            yield from _find_texts(value, keys)


# --- types ---------------------------------------------------------------------------------------------------------


def _file_content(fields: dict[str, Any], item_id: str, context: BaseContext) -> ItemContent:
    """Convert the fields of a file item: its source, its path below ``raw/``, and its upload."""
    named = _first_text(fields, _NAMES)
    source = _first_text(fields, _SOURCES) or context.rows.source(item_id) or named or item_id
    path = fields.get("relativePath")
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


def _url_content(fields: dict[str, Any], item_id: str, context: BaseContext) -> ItemContent:
    """Convert the fields of a web page: its address and source, and the path of its snapshot if that exists."""
    address = _first_text(fields, _ADDRESSES) or context.rows.source(item_id) or ""
    source = fields["source"] if not is_blank(fields.get("source")) else address
    return _with_snapshot({"source": source, "url": address}, fields, context)


def _note_content(fields: dict[str, Any], item_id: str, context: BaseContext) -> ItemContent:
    """Convert the fields of a note: its text and source. A text that is too long is cut, with a notice."""
    text = _first_text(fields, _TEXTS[:2]) or context.rows.text(item_id) or _first_text(fields, _TEXTS) or ""
    text, notices_of_cut = cut_note(text, context.base_id, item_id)
    source = _first_text(fields, ("source", "sourceUrl", "url", "title")) or context.rows.source(item_id) or text
    content = _with_snapshot({"source": source, "content": text}, fields, context)
    content.notices += notices_of_cut
    return content


def _with_snapshot(data: dict[str, str], fields: dict[str, Any], context: BaseContext) -> ItemContent:
    """Add to converted ``data`` the path of the item's snapshot (a text file in ``raw/``) if the file exists.

    ``fields`` are the fields in the catalog. Without the file, a snapshot is written from the text later.
    """
    path = fields.get("relativePath")
    if not isinstance(path, str) or not _is_safe(path) or not context.raw.has_file(path):
        return ItemContent(data)
    free = context.paths.take(path)
    return ItemContent({**data, "relativePath": free}, context.raw.upload(path), renamed=free != path)


def _directory_content(fields: dict[str, Any], item_id: str, context: BaseContext) -> ItemContent:
    """Convert the fields of a folder item; it only has a source."""
    return ItemContent({"source": _first_text(fields, _FOLDERS) or context.rows.source(item_id) or ""})


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
    """An item that cannot be migrated. The message of this exception is the reason code."""


def draft_listed_items(rows: Iterable[Row], context: BaseContext, migrated: set[str]) -> DraftedItems:
    """Draft the items of a base from its catalog rows, in their order but each folder before its content.

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
        if item.type == "directory" and _stored_status(row) in _FOLLOWING:
            active.add(item.id)
    ordered = _order_by_folder(drafted.items, context.base_id, drafted.notices)
    following = active & {item.group_id for item in ordered}
    drafted.items = Packed(
        ItemDraft,
        (replace(item, status="completed", error=None) if item.id in following else item for item in ordered),
    )
    return drafted


def _draft_item(row: Row, context: BaseContext, migrated: set[str], drafted: DraftedItems) -> ItemDraft:
    """Draft an item from its catalog row. Its notices are added to ``drafted``, its id to ``migrated``.

    Raises:
        _Unusable: it is not migrated, for the reason in the message.
    """
    item_id, item_type = row.get("id"), row.get("type")
    if not isinstance(item_id, str) or is_blank(item_id) or is_blank(item_type):
        raise _Unusable(notices.NO_ID_OR_TYPE)
    if _stored_status(row) in _DELETING or row.get("deleted_at") is not None:
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
    status, error = _convert_status(row)
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


def _stored_status(row: Row) -> str:
    """Return the status in an item's catalog row in lower case; a blank one counts as completed."""
    status = row.get("status")
    return "completed" if is_blank(status) else trim(str(status)).lower()


def _convert_status(row: Row) -> tuple[str, str | None]:
    """Return the new status of the item of a catalog row, and its error if it failed."""
    status = _stored_status(row)
    if status in _DONE | _IDLE:
        return ("completed" if status in _DONE else "idle"), None
    error: Any = row.get("error")
    text = trim(without_nul(error)) if isinstance(error, str) else ""
    return "failed", text or (FAILED_TEXT if status in _FAILED else INTERRUPTED_TEXT)


def _order_by_folder(items: Iterable[ItemDraft], base_id: str, found_notices: list[Notice]) -> list[ItemDraft]:
    """Order items so that a folder comes before its content.

    References to missing folders are dropped and reported in ``found_notices``.
    """
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
    """Return an item and the folders around it, from the inside out, up to one that is ordered or part of a cycle.

    ``folders`` has all folders by id, ``ordered`` the ids of items that have their place already.
    """
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
    """Reads the items in a store (the index file of a preview build) on first use. An unreadable store has no items."""

    def __init__(self, tree: Tree, name: str, *, texts: bool = False) -> None:
        """Open nothing yet. ``name`` is the path of the store in the tree. ``texts`` includes rows with text alone."""
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
        """The items that own the store's rows, with what their rows contain."""
        try:
            return cherry_preview.read_contents(self._path)
        except StoreProblem as problem:
            self.problem = str(problem)
            return StoreContents()

    @cached_property
    def _survey(self) -> VectorSurvey:
        """The rows of the store by item."""
        return PREVIEW_VECTORS.survey(self._path)

    @property
    def declared_dimensions(self) -> int | None:
        """The dimensions in the declaration of the table; None if unknown."""
        try:
            return cherry_preview.declared_dimensions(self._path)
        except StoreProblem:
            return None

    def source(self, item_id: str) -> str | None:
        """Return the path or address of an item's original as its rows state it, or None."""
        return self.contents.items.get(item_id, StoredItem()).source

    def text(self, item_id: str) -> str:
        """Return the text of the rows of an item. Of a long one, at least one UTF-16 unit more than a note can hold."""
        try:
            return cherry_preview.join_loader_bodies(
                self._path, self._survey, item_id, BODY_SEPARATOR, MAX_NOTE_UNITS, texts=self._find_texts
            )
        except StoreProblem as problem:
            self.problem = str(problem)
            return ""


def draft_stored_items(store_items: StoreItems, context: BaseContext, migrated: set[str]) -> DraftedItems:
    """Draft an item for every item id that owns rows in a store, in the order of their first rows.

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
    """Draft an item from its rows in a store (``stored``), for a base without items in a catalog.

    Notices are added to ``drafted``.
    """
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


# --- models --------------------------------------------------------------------------------------------------------


class BaseModels:
    """Resolves the models that bases name. ``notices`` concern the whole source."""

    def __init__(self, catalog: StoredCatalog | None, model_overrides: ModelOverrides) -> None:
        providers = None if catalog is None else _list_providers(catalog)
        self.notices: list[Notice] = []
        if catalog is not None and providers is None:
            message = tr("the catalog has no tables of models; every model that a base names is assumed to exist")
            self.notices.append(Notice(code=notices.MODELS_UNKNOWN, message=message))
        known = catalog or StoredCatalog()
        self._rows = {row.get("id"): row for row in known.models or ()}
        self._overrides = model_overrides
        models = [self._to_raw_model(row.get("embedding_model_id")) for row in known.bases]
        self._models = ModelResolver(providers, model_overrides, models)
        named = set(map(_full_model_id, models))
        only = next(iter(model_overrides.recreated)) if len(model_overrides.recreated) == 1 else None
        #: The only model of --recreate-model, used for bases that no catalog lists.
        self._model_of_unlisted = only
        #: The same for listed bases without a model, unless another base of the catalog names this model.
        self._model_of_unnamed = None if only in named else only

    def embedding(self, model_id: Any, base_id: str, *, is_listed: bool) -> ModelChoice:
        """Resolve the embedding model that a base names, or the one that the user gives for bases without one.

        ``is_listed`` tells whether the catalog has the base.
        """
        raw = self._to_raw_model(model_id)
        spare = self._model_of_unnamed if is_listed else self._model_of_unlisted
        if raw is None and spare is not None and base_id not in self._overrides.mapped:
            raw = {"id": spare}
        choice = self._models.embedding(raw, base_id)
        if raw is None and choice.id is None:
            problem = tr(
                "the base names no embedding model; migrate its vectors with {option}, or those of all such bases with "
                "--recreate-model PROVIDER::MODEL",
                option=join_command(["--map-model", f"{base_id}=PROVIDER::MODEL"]),
            )
            return replace(choice, problem=problem)
        return choice

    def rerank(self, model_id: Any, base_id: str) -> ModelChoice:
        """Resolve the rerank model that a base names."""
        return self._models.rerank(self._to_raw_model(model_id), base_id)

    def unused_overrides(self) -> Iterator[Notice]:
        """Yield a notice for each of the user's options for models that no base needed."""
        return self._models.unused_overrides()

    def _to_raw_model(self, model_id: Any) -> dict[str, Any] | None:
        """Return the model with this id in the form in which v1 stores models, or None if the id is blank."""
        return None if is_blank(model_id) else _row_to_raw_model(self._rows.get(model_id, {"id": model_id}))


def _list_providers(catalog: StoredCatalog) -> list[dict[str, Any]] | None:
    """Return the catalog's providers with their models in v1's form, or None if it has no table of either."""
    if catalog.providers is None and catalog.models is None:
        return None
    found: dict[str, dict[str, Any]] = {}
    for row in catalog.providers or ():
        provider = str(row.get("provider_id"))
        found[provider] = {"id": provider, "name": row.get("name"), "enabled": row.get("is_enabled") != 0, "models": []}
    for row in catalog.models or ():
        raw = _row_to_raw_model(row)
        provider = str(row.get("provider_id") or str(raw["id"]).partition(SEPARATOR)[0])
        entry = found.setdefault(provider, {"id": provider, "name": None, "enabled": True, "models": []})
        entry["models"].append(raw)
    return list(found.values())


def _row_to_raw_model(row: Row) -> dict[str, Any]:
    """Convert a model's catalog row to the form in which v1 stores models."""
    whole = str(row.get("id"))
    model = whole if is_model_id(whole) else row.get("model_id") or whole
    return {"id": model, "provider": row.get("provider_id"), "name": row.get("name"), "group": row.get("group")}


def _full_model_id(raw: dict[str, Any] | None) -> str | None:
    """Return the id of a model in v1's form as ``provider::model``; None without a model."""
    if raw is None:
        return None
    model = str(raw["id"])
    return tidy_model_id(model if SEPARATOR in model else f"{raw['provider']}{SEPARATOR}{model}")


def draft_library(source: Located, model_overrides: ModelOverrides, *, texts: bool = False) -> LibraryDraft:
    """Draft all bases of a source that are not in the v2 layout.

    Args:
        source: a source with stores of preview builds.
        model_overrides: the user's options for models.
        texts: whether rows are migrated for their text alone.
    """
    catalog, catalog_notices = _read_catalog(source)
    drafter = _Drafter(source, catalog, model_overrides, texts=texts)
    drafter.draft()
    models = drafter.models
    return LibraryDraft(
        tuple(drafter.drafts),
        tuple(drafter.skipped),
        (*catalog_notices, *models.notices, *drafter.found_notices, *models.unused_overrides()),
    )


def _read_catalog(source: Located) -> tuple[StoredCatalog | None, list[Notice]]:
    """Read the catalog of a source (None if it has none, or cannot be read), with a notice about problems."""
    name = source.stores.catalog
    if name is None:
        return None, []
    try:
        with source.tree.local(name, None) as path:
            catalog = read_catalog(path)
    except (CatalogProblem, SourceUnreadable) as error:
        reason = (
            str(error)
            if isinstance(error, CatalogProblem)
            else tr("cannot be read: {reason}", reason=error.facts["reason"])
        )
        return None, [
            _catalog_notice(tr("{name} {reason}; bases and items are taken from the rows", name=name, reason=reason))
        ]
    if catalog.items is None:
        return catalog, [
            _catalog_notice(tr("{name} has no table `knowledge_item`; items are taken from the rows", name=name))
        ]
    return catalog, []


def _catalog_notice(message: str) -> Notice:
    """Make the notice that a part of the catalog could not be read."""
    return Notice(code=notices.CATALOG_UNREADABLE, message=message)


class _Drafter:
    """Drafts the bases of one source. Single use."""

    def __init__(
        self, source: Located, catalog: StoredCatalog | None, model_overrides: ModelOverrides, *, texts: bool
    ) -> None:
        self._source = source
        self._texts = texts
        self._catalog = catalog
        self._migrated: set[str] = set()
        self._seen: set[str] = set()
        self.models = BaseModels(catalog, model_overrides)
        self.drafts: list[BaseDraft] = []
        self.skipped: list[SkippedBase] = []
        self.found_notices: list[Notice] = []

    def draft(self) -> None:
        """Draft listed bases in the catalog's order, then the others in the order of the stores' names."""
        stores = {self._id_of(store): store for store in self._source.stores.preview}
        current = {str(store.base_id): store for store in self._source.stores.current}
        existing = stores.keys() | current.keys()
        rows = [] if self._catalog is None else self._catalog.bases
        for row in rows:
            if self._source.stores.is_whole or row.get("id") in existing:
                self._draft_row(row, stores, current)
        self._draft_unlisted(stores, current)

    def _draft_unlisted(self, stores: dict[str, StoreFile], current: dict[str, StoreFile]) -> None:
        """Draft or skip the bases that the catalog does not list.

        ``stores`` are index files of preview builds, ``current`` those in the released layout, both by base id.
        """
        for base_id, store in current.items():
            if base_id not in self._seen:
                self._skip_current(base_id, store)
        for base_id, store in stores.items():
            if base_id not in self._seen:
                self._seen.add(base_id)
                self.drafts.append(self._draft_base({"id": base_id}, base_id, store, is_listed=False))

    def _id_of(self, store: StoreFile) -> str:
        """Return the id of a store's base: from its folder, else from its rows, else made from the name of the file."""
        if store.base_id is not None:
            # A folder name that is not UTF-8 cannot be an id in a catalog.
            is_text = replace_surrogates(store.base_id) == store.base_id
            return store.base_id if is_text else identity.base_id(store.base_id)
        with StoreItems(self._source.tree, store.name, texts=self._texts) as store_items:
            return store_items.contents.collection or identity.base_id(PurePosixPath(store.name).stem)

    def _draft_row(self, row: Row, stores: dict[str, StoreFile], current: dict[str, StoreFile]) -> None:
        """Draft or skip the base of a catalog row.

        ``stores`` are index files of preview builds, ``current`` those in the released layout, both by base id.
        """
        base_id = row.get("id")
        if not isinstance(base_id, str) or is_blank(base_id):
            self._skip(None, notices.INVALID_BASE, notices.CODES[notices.INVALID_BASE].meaning)
        elif base_id in self._seen:
            self._skip(base_id, notices.DUPLICATE_BASE, notices.CODES[notices.DUPLICATE_BASE].meaning)
        elif base_id in current:
            self._skip_current(base_id, current[base_id])
        elif current and base_id not in stores and row.get("status") == "failed":
            # A base that v2's own upgrade could not migrate has no store; it does not belong to a preview build.
            self._skip_current(base_id, None)
        else:
            self._seen.add(base_id)
            folder = join_path(self._source.stores.bases, _folder_name(base_id))
            missing = StoreFile(
                base_id=base_id,
                name=join_path(folder, INDEX_FILE),
                raw=join_path(folder, RAW_FOLDER),
                look=IndexSummary(IndexLayout.OTHER),
            )
            self.drafts.append(self._draft_base(row, base_id, stores.get(base_id, missing), is_listed=True))

    def _skip_current(self, base_id: str, store: StoreFile | None) -> None:
        """Skip a base whose index is in the released layout already. ``store`` is the file, None without one."""
        self._seen.add(base_id)
        leaves_rows = store is not None and store.look.leaves_rows
        rest = tr("; its file also holds unused rows of a preview build") if leaves_rows else ""
        message = tr("{base_id} is in the v2 layout already and is not changed{rest}", base_id=base_id, rest=rest)
        self._skip(base_id, notices.CURRENT_LAYOUT, message)

    def _skip(self, base_id: str | None, reason: str, message: str) -> None:
        """Skip a base: record it with its number of items, and add a notice with the message."""
        items = 0 if self._catalog is None else len((self._catalog.items or {}).get(base_id, ()))
        self.skipped.append(SkippedBase(base_id, reason, items))
        self.found_notices.append(Notice(code=reason, message=message, base=base_id))

    # --- one base --------------------------------------------------------------------------------------------------

    def _draft_base(self, row: Row, base_id: str, store: StoreFile, *, is_listed: bool) -> BaseDraft:
        """Draft a base with its items from its catalog row. Of a base that is not listed, the row has the id alone."""
        found_notices: list[Notice] = []
        settings, invalid = read_base_settings(row)
        if invalid:
            text = tr("invalid settings: {invalid}", invalid=join_list(invalid))
            found_notices.append(Notice(code=notices.INVALID_CONFIG, message=text, base=base_id, count=len(invalid)))
        processor = row.get("file_processor_id")
        processor = None if is_blank(processor) else str(processor)
        names = FreeNames(reserve_processed=processor is not None)
        with StoreItems(self._source.tree, store.name, texts=self._texts) as store_items:
            drafted = self._draft_items(base_id, store, store_items, names)
            dimensions = read_whole_number(row.get("dimensions"), minimum=1)
            if dimensions is None and not (is_listed and store.look.has_rows):
                dimensions = store_items.declared_dimensions
            embedding = self._choose_embedding(row, base_id, store_items, is_listed=is_listed)
        if drafted.renamed:
            text = tr("{files} renamed because the name was taken", files=format_count(drafted.renamed, "file"))
            found_notices.append(Notice(code=notices.RENAMED, message=text, base=base_id, count=drafted.renamed))
        rerank = self.models.rerank(row.get("rerank_model_id"), base_id)
        return BaseDraft(
            legacy_id=base_id,
            id=_folder_name(base_id),
            name=_choose_name(row, base_id, found_notices) if is_listed else base_id,
            embedding=embedding,
            rerank=rerank,
            stated_dimensions=dimensions,
            file_processor_id=processor,
            settings=settings,
            created_at=read_time(row.get("created_at")),
            updated_at=read_time(row.get("updated_at")),
            items=drafted.items,
            skipped_items=tuple(drafted.skipped),
            taken_names=names.taken(),
            vector_file=store.name,
            notices=(
                *found_notices,
                *_dropped_field_notices(row, base_id),
                *embedding.notices,
                *rerank.notices,
                *drafted.notices,
            ),
            dimensions_if_empty=dimensions,
        )

    def _draft_items(self, base_id: str, store: StoreFile, store_items: StoreItems, names: FreeNames) -> DraftedItems:
        """Draft the items of a base: those that the catalog lists, or else those that its rows name.

        ``names`` are the free file names in ``raw/``.
        """
        context = BaseContext(
            base_id=base_id, raw=RawFiles(self._source.tree, store.raw), paths=RawPaths(names), rows=store_items
        )
        listed = None if self._catalog is None else self._catalog.items
        bases = () if self._catalog is None else self._catalog.bases
        if listed is None or (base_id not in listed and not any(row.get("id") == base_id for row in bases)):
            return draft_stored_items(store_items, context, self._migrated)
        return draft_listed_items(listed.get(base_id, ()), context, self._migrated)

    def _choose_embedding(self, row: Row, base_id: str, store_items: StoreItems, *, is_listed: bool) -> ModelChoice:
        """Choose the embedding model of a base; if its index cannot be read either, the problem names both."""
        choice = self.models.embedding(row.get("embedding_model_id"), base_id, is_listed=is_listed)
        if choice.id is None and store_items.problem:
            # Naming a model would not help.
            return replace(
                choice,
                problem=tr(
                    "{problem}; and its index file {problem2}", problem=choice.problem, problem2=store_items.problem
                ),
            )
        return choice


def _folder_name(base_id: str) -> str:
    """Return the base id for the library: the old one if it is a valid folder name on every system, else a new one."""
    # The ledger uses these names for other entries.
    is_valid = is_folder_name(base_id) and fold_name(base_id) not in (CATALOG_SUBJECT, REPORT_SUBJECT)
    return base_id if is_valid and base_id == trim(base_id) else identity.base_id(base_id)


def _choose_name(row: Row, base_id: str, found_notices: list[Notice]) -> str:
    """Return the name of the base of a catalog row; its id, with a notice, if the name is blank."""
    name: Any = row.get("name")
    text = trim(without_nul(name)) if isinstance(name, str) else ""
    if not text:
        found_notices.append(
            Notice(code=notices.BLANK_NAME, message=tr("the base has no name; its id is used instead"), base=base_id)
        )
    return text or base_id


def _dropped_field_notices(row: Row, base_id: str) -> list[Notice]:
    """Report the fields of a base's catalog row that a library does not have: the group, and a failed status."""
    found_notices = []
    if not is_blank(row.get("group_id")):
        found_notices.append(
            Notice(code=notices.DROPPED_FIELD, message=tr("group: {group_id}", group_id=row["group_id"]), base=base_id)
        )
    if row.get("status") == "failed":
        text = tr("status: failed ({get}); the new status depends on what can be migrated now", get=row.get("error"))
        found_notices.append(Notice(code=notices.DROPPED_FIELD, message=text, base=base_id))
    return found_notices
