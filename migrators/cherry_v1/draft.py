"""Drafts of v1's bases and items, made from the state before a vector file is opened.

The result depends only on the state and the user's options for models. Rules: ``docs/rules.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from migrators.pipeline.source import (
    ERROR_CODES,
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
from regraft.disk.file_paths import TRAILING_CHARACTERS, FreeNames, sanitize_name, vector_file_name
from regraft.formats.cherry_v1.state import LazyItems, V1State
from regraft.formats.cherry_v2.models import ModelOverrides, ModelResolver
from regraft.formats.cherry_v2.settings import read_time, read_v1_settings, read_whole_number
from regraft.identity import replace
from regraft.language import format_count, join_list, tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.text import is_blank, trim, without_nul

# --- items ---------------------------------------------------------------------------------------------------------


#: Fields that the metadata of a file must have, as text and as numbers.
FILE_TEXT_FIELDS = ("id", "name", "origin_name", "path", "ext", "type", "created_at")
FILE_NUMBER_FIELDS = ("size", "count")


class DraftContext(msgspec.Struct):
    """Data that all bases share: Dexie's tables by id, and the ids of the items drafted so far."""

    files: Mapping[str, dict[str, Any]]
    notes: Mapping[str, dict[str, Any]]
    migrated: set[str]
    #: Whether an upload exists and is not text.
    is_binary: Callable[[Upload], bool] = lambda _: False


class _Unusable(Exception):
    """An item that cannot be migrated. The message of this exception is the reason code."""


def draft_items(raws: Iterable[Any], legacy_base: str, context: DraftContext, names: FreeNames) -> DraftedItems:
    """Draft the items of one base in v1's order, from their entries in the state. Files take names in this order.

    ``context`` has the data of all bases, ``names`` the free file names of this base.
    """
    drafted = DraftedItems()
    for raw in raws:
        try:
            drafted.items.append(_draft_item(raw, legacy_base, context, names, drafted))
        except _Unusable as unusable:
            reason = str(unusable)
            legacy_id = raw.get("id") if isinstance(raw, dict) and isinstance(raw.get("id"), str) else None
            # These rows belong to this item alone, so they are skipped for its reason.
            loaders = _loader_ids(raw) if reason == notices.UNSUPPORTED_TYPE else ()
            drafted.skipped.append(SkippedItem(legacy_id, reason, loaders))
            drafted.notices.append(
                Notice(code=reason, message=notices.CODES[reason].meaning, base=legacy_base, item=legacy_id)
            )
    return drafted


def _draft_item(
    raw: Any, legacy_base: str, context: DraftContext, names: FreeNames, drafted: DraftedItems
) -> ItemDraft:
    """Draft an item from ``raw``, its entry in the state. Its notices are added to ``drafted``.

    Raises:
        _Unusable: it is not migrated, for the reason in the message.
    """
    if not isinstance(raw, dict) or not _is_text(raw.get("id")) or not _is_text(raw.get("type")):
        raise _Unusable(notices.NO_ID_OR_TYPE)
    legacy_id: str = raw["id"]
    read = _TYPES.get(raw["type"])
    if read is None:
        raise _Unusable(notices.UNSUPPORTED_TYPE)
    if legacy_id in context.migrated:
        raise _Unusable(notices.DUPLICATE_ITEM)
    item_type, reader = read
    content = reader(raw, context, names)
    context.migrated.add(legacy_id)
    drafted.notices += [replace(notice, base=legacy_base, item=legacy_id) for notice in content.notices]
    if not is_blank(raw.get("remark")):
        drafted.notices.append(
            Notice(
                code=notices.DROPPED_FIELD,
                message=tr("remark: {remark}", remark=raw["remark"]),
                base=legacy_base,
                item=legacy_id,
            )
        )
    created_at = read_time(raw.get("created_at"))
    status, error = _convert_status(raw)
    return ItemDraft(
        legacy_id=legacy_id,
        id=identity.item_id(legacy_base, legacy_id, created_at),
        type=item_type,
        data=content.data,
        status=status,
        error=error,
        created_at=created_at,
        updated_at=read_time(raw.get("updated_at")),
        loader_ids=_loader_ids(raw),
        upload=content.upload,
        file_name=content.file_name,
        entries=_texts(raw.get("uniqueIds")) if item_type == "directory" else (),
    )


def _is_text(value: Any) -> bool:
    """Whether a value is a string that is not empty."""
    return isinstance(value, str) and bool(value)


def _texts(values: Any) -> tuple[str, ...]:
    """Return the strings in a list of the state that are not blank; nothing if the value is not a list."""
    return tuple(value for value in values if not is_blank(value)) if isinstance(values, list) else ()


def _loader_ids(raw: dict[str, Any]) -> tuple[str, ...]:
    """Return the loader ids of an item in the state: ``uniqueIds`` if this list has entries, else ``uniqueId``.

    Blank entries count as entries, but are left out.
    """
    several = raw.get("uniqueIds")
    return _texts(several if isinstance(several, list) and several else [raw.get("uniqueId")])


def _convert_status(raw: dict[str, Any]) -> tuple[str, str | None]:
    """Return the new status of an item in the state, and its error if it failed."""
    status = raw.get("processingStatus")
    if status in ("failed", "processing", "pending"):
        error = raw.get("processingError")
        text = trim(without_nul(error)) if isinstance(error, str) else ""
        text = text or (FAILED_TEXT if status == "failed" else INTERRUPTED_TEXT)
        return "failed", f"v1: {text}" if text in ERROR_CODES else text
    return ("idle" if is_blank(raw.get("uniqueId")) else "completed"), None


# --- types ---------------------------------------------------------------------------------------------------------


def _file_metadata(content: Any, context: DraftContext) -> dict[str, Any]:
    """Merge the metadata of a file: the item's content has precedence over Dexie's table of files."""
    inline = content if isinstance(content, dict) else {"id": content}
    file_id = inline.get("id")
    stored = context.files.get(file_id, {}) if isinstance(file_id, str) else {}
    return {**stored, **{key: value for key, value in inline.items() if value is not None}}


def _file_content(raw: dict[str, Any], context: DraftContext, names: FreeNames) -> ItemContent:
    """Convert a file item: its source, its new path below ``raw/``, and its uploaded file.

    Raises:
        _Unusable: metadata are missing.
    """
    metadata = _file_metadata(raw.get("content"), context)
    has_texts = all(isinstance(metadata.get(key), str) for key in FILE_TEXT_FIELDS)
    numbers = [metadata.get(key) for key in FILE_NUMBER_FIELDS]
    if not has_texts or not all(type(one) in (int, float) for one in numbers):
        raise _Unusable(notices.INVALID_FILE)
    source = next((metadata[key] for key in ("path", "name", "origin_name") if not is_blank(metadata[key])), raw["id"])
    # The fallbacks apply to an empty name only: a name of invalid characters becomes "untitled".
    wanted = sanitize_name(metadata["origin_name"]) or sanitize_name(metadata["name"]) or sanitize_name(raw["id"])
    # The name in a base without folders. The plan changes it if a folder prefix takes it.
    name = names.take(wanted)
    return ItemContent(
        {"source": source, "relativePath": name}, _upload(metadata["id"], metadata["ext"]), file_name=wanted
    )


def _upload(file_id: str, extension: str) -> Upload:
    """Return the names under which a file may be uploaded: its id with the cleaned extension, else with v1's own."""
    plain = extension.removeprefix(".").rstrip(TRAILING_CHARACTERS)
    return Upload(f"{file_id}.{plain}" if plain else file_id, other_name=f"{file_id}{extension}")


#: Kinds of files that are not text, and extensions of subtitles, which are.
_MEDIA = frozenset({"video", "audio", "image"})
_SUBTITLES = frozenset({".srt", ".vtt", ".ass", ".ssa", ".sbv", ".sub", ".lrc", ".txt"})


def _video_content(raw: dict[str, Any], context: DraftContext, names: FreeNames) -> ItemContent:
    """Convert a video to a file item with its subtitles, because v1 embedded their text and never the video.

    Raises:
        _Unusable: no file of the item is text.
    """
    content = raw.get("content")
    files = [_file_metadata(entry, context) for entry in content] if isinstance(content, list) else []
    subtitles = next((metadata for metadata in files if _reads_as_text(metadata, context)), None)
    if subtitles is None:
        raise _Unusable(notices.UNSUPPORTED_TYPE)
    named = (subtitles[key] for key in ("path", "name", "origin_name") if not is_blank(subtitles.get(key)))
    source = next(named, raw["id"])
    wanted = sanitize_name(next(subtitles[key] for key in ("origin_name", "name") if _is_text(subtitles.get(key))))
    message = tr("the video is not migrated; its subtitles {name} are migrated as a file", name=wanted)
    return ItemContent(
        {"source": source, "relativePath": names.take(wanted)},
        _upload(subtitles["id"], subtitles["ext"]),
        file_name=wanted,
        notices=[Notice(code=notices.UNSUPPORTED_TYPE, message=message)],
    )


def _reads_as_text(metadata: dict[str, Any], context: DraftContext) -> bool:
    """Whether the metadata of a file of a video have id, name and extension, and the file holds subtitles."""
    has_name = any(_is_text(metadata.get(key)) and sanitize_name(metadata[key]) for key in ("origin_name", "name"))
    if not has_name or not _is_text(metadata.get("id")) or not isinstance(metadata.get("ext"), str):
        return False
    kind, extension = metadata.get("type"), metadata["ext"].strip().lower()
    is_subtitle = kind == "text" or (kind not in _MEDIA and extension in _SUBTITLES)
    return is_subtitle and not context.is_binary(_upload(metadata["id"], metadata["ext"]))


def _url_content(raw: dict[str, Any], _context: DraftContext, _names: FreeNames) -> ItemContent:
    """Convert a web page; its content is the address."""
    if is_blank(raw.get("content")):
        raise _Unusable(notices.INVALID_URL)
    return ItemContent({"source": raw["content"], "url": raw["content"]})


def _sitemap_content(raw: dict[str, Any], _context: DraftContext, _names: FreeNames) -> ItemContent:
    """Convert a sitemap to a web page with its address."""
    if is_blank(raw.get("content")):
        raise _Unusable(notices.INVALID_SITEMAP)
    address = trim(raw["content"])
    return ItemContent({"source": address, "url": address})


def _note_content(raw: dict[str, Any], context: DraftContext, _names: FreeNames) -> ItemContent:
    """Convert a note; Dexie's table of notes has precedence over the text in the item."""
    stored = context.notes.get(raw["id"], {})
    text = _first_text(stored.get("content"), raw.get("content")) or ""
    address = _first_text(stored.get("sourceUrl"), raw.get("sourceUrl"))
    if address is None and not text:
        raise _Unusable(notices.INVALID_NOTE)
    text, message = cut_note(text)
    return ItemContent({"source": text if address is None else address, "content": text}, notices=message)


def _first_text(*values: Any) -> str | None:
    """Return the first value that is text and not blank, or None."""
    return next((str(value) for value in values if not is_blank(value)), None)


def _directory_content(raw: dict[str, Any], _context: DraftContext, _names: FreeNames) -> ItemContent:
    """Convert a folder; its content is the path."""
    if is_blank(raw.get("content")):
        raise _Unusable(notices.INVALID_DIRECTORY)
    return ItemContent({"source": raw["content"]})


_Reader = Callable[[dict[str, Any], DraftContext, FreeNames], ItemContent]
_TYPES: dict[str, tuple[str, _Reader]] = {
    "file": ("file", _file_content),
    "url": ("url", _url_content),
    "sitemap": ("url", _sitemap_content),
    "note": ("note", _note_content),
    "directory": ("directory", _directory_content),
    "video": ("file", _video_content),
}


def draft_library(
    state: V1State, model_overrides: ModelOverrides, is_binary: Callable[[Upload], bool] = lambda _: False
) -> LibraryDraft:
    """Draft all bases of a v1 state. Bases that cannot be migrated are skipped, with a notice.

    Args:
        state: v1's state.
        model_overrides: the user's options for models.
        is_binary: tells whether an upload exists and is not text.
    """
    named = [raw.get("model") for raw in state.bases if isinstance(raw, dict)]
    models = ModelResolver(state.providers, model_overrides, named)
    context = DraftContext(files=state.files, notes=state.notes, migrated=set(), is_binary=is_binary)
    drafts: list[BaseDraft] = []
    skipped: list[SkippedBase] = []
    seen: set[str] = set()
    for raw in state.bases:
        reason = _reason_to_skip(raw, seen, state.pending_delete)
        if reason is None:
            seen.add(raw["id"])
            drafts.append(_draft_base(raw, models, context))
        else:
            skipped.append(_skip(raw, reason))
    found_notices = [*state.notices]
    for base in skipped:
        message = notices.CODES[base.reason].meaning
        if base.items:
            message = tr("{what} It has {items}.", what=message, items=format_count(base.items, "item"))
        found_notices.append(Notice(code=base.reason, message=message, base=base.legacy_id))
    found_notices += models.unused_overrides()
    return LibraryDraft(tuple(drafts), tuple(skipped), tuple(found_notices))


def _reason_to_skip(raw: Any, seen: set[str], pending: frozenset[str]) -> str | None:
    """Return the reason code for skipping a base, or None.

    ``raw`` is its entry in the state. ``seen`` are the ids of bases already drafted, ``pending`` of those v1 was
    deleting.
    """
    if not isinstance(raw, dict):
        return notices.INVALID_BASE
    legacy_id, name = raw.get("id"), raw.get("name")
    if not isinstance(legacy_id, str) or not legacy_id or not isinstance(name, str) or not name:
        return notices.INVALID_BASE
    if legacy_id in pending:
        return notices.PENDING_DELETE
    return notices.DUPLICATE_BASE if legacy_id in seen else None


def _skip(raw: Any, reason: str) -> SkippedBase:
    """Record a skipped base with its number of items. ``raw`` is its entry in the state."""
    legacy_id = raw.get("id") if isinstance(raw, dict) else None
    items = raw.get("items") if isinstance(raw, dict) else None
    return SkippedBase(
        legacy_id if isinstance(legacy_id, str) else None,
        reason,
        len(items) if isinstance(items, list | LazyItems) else 0,
    )


def _draft_base(raw: dict[str, Any], models: ModelResolver, context: DraftContext) -> BaseDraft:
    """Draft a base with its items; ``raw`` is its entry in the state."""
    legacy_id: str = raw["id"]
    found_notices: list[Notice] = []
    name = trim(without_nul(raw["name"]))
    if not name:
        name = trim(without_nul(legacy_id)) or identity.base_id(legacy_id)
        found_notices.append(
            Notice(code=notices.BLANK_NAME, message=tr("the base has no name; its id is used instead"), base=legacy_id)
        )
    embedding = models.embedding(raw.get("model"), legacy_id)
    rerank = models.rerank(raw.get("rerankModel"), legacy_id)
    settings, invalid = read_v1_settings(raw)
    if invalid:
        found_notices.append(
            Notice(
                code=notices.INVALID_CONFIG,
                message=tr("invalid settings: {invalid}", invalid=join_list(invalid)),
                base=legacy_id,
                count=len(invalid),
            )
        )
    if not is_blank(raw.get("description")):
        found_notices.append(
            Notice(
                code=notices.DROPPED_FIELD,
                message=tr("description: {description}", description=raw["description"]),
                base=legacy_id,
            )
        )
    processor = _file_processor(raw)
    names = FreeNames(reserve_processed=processor is not None)
    raw_items = raw.get("items")
    if raw_items is not None and not isinstance(raw_items, list | LazyItems):
        found_notices.append(
            Notice(
                code=notices.INVALID_ITEMS, message=tr("the list of items is damaged: it is not a list"), base=legacy_id
            )
        )
        raw_items = None
    drafted = draft_items(raw_items or [], legacy_id, context, names)
    return BaseDraft(
        legacy_id=legacy_id,
        id=identity.base_id(legacy_id),
        name=name,
        embedding=embedding,
        rerank=rerank,
        stated_dimensions=read_whole_number(raw.get("dimensions"), minimum=1),
        file_processor_id=processor,
        settings=settings,
        created_at=read_time(raw.get("created_at")),
        updated_at=read_time(raw.get("updated_at")),
        items=drafted.items,
        skipped_items=tuple(drafted.skipped),
        taken_names=frozenset(),
        vector_file=vector_file_name(legacy_id),
        notices=(*found_notices, *embedding.notices, *rerank.notices, *drafted.notices),
    )


def _file_processor(raw: dict[str, Any]) -> str | None:
    """Return the id of the document processor that a base in the state names, or None."""
    provider = raw.get("preprocessProvider")
    provider = provider.get("provider") if isinstance(provider, dict) else None
    processor = provider.get("id") if isinstance(provider, dict) else None
    return None if is_blank(processor) else processor
