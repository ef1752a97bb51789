"""Items as a catalog lists them (``docs/formats/preview.md``, "With a catalog")."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from migrators.cherry_preview.item_data import Place, read_data
from migrators.pipeline.drafts import FAILED_TEXT, INTERRUPTED_TEXT, DraftedItems, ItemDraft, SkippedItem
from migrators.pipeline.packed import Packed
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.cherry_v2.values import read_time
from regraft.language import tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.text import is_blank, trim, without_nul

#: Types of items by what catalogs call them.
_TYPES = {
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
#: Statuses of a folder that follow from its files'.
_FOLLOWING = {"processing"}


class _Unusable(Exception):
    """An item that is not migrated; the text is the reason's code."""


def draft_items(rows: Iterable[Row], place: Place, migrated: set[str]) -> DraftedItems:
    """Draft a base's items in the catalog's order, a folder before what is in it.

    Args:
        rows: the catalog's rows.
        place: what the base has.
        migrated: ids of items of all bases so far; those of this base are added.
    """
    drafted = DraftedItems()
    active: set[str] = set()
    for row in rows:
        try:
            item = _draft_item(row, place, migrated, drafted)
        except _Unusable as unusable:
            reason, item_id = str(unusable), row.get("id")
            item_id = item_id if isinstance(item_id, str) else None
            drafted.skipped.append(SkippedItem(item_id, reason))
            drafted.notices.append(
                Notice(code=reason, message=notices.CODES[reason].meaning, base=place.base_id, item=item_id)
            )
            continue
        drafted.items.append(item)
        if item.type == "directory" and _status_of(row) in _FOLLOWING:
            active.add(item.id)
    ordered = _grouped(drafted.items, place.base_id, drafted.notices)
    following = active & {item.group_id for item in ordered}
    drafted.items = Packed(
        ItemDraft,
        (replace(item, status="completed", error=None) if item.id in following else item for item in ordered),
    )
    return drafted


def _draft_item(row: Row, place: Place, migrated: set[str], drafted: DraftedItems) -> ItemDraft:
    item_id, item_type = row.get("id"), row.get("type")
    if not isinstance(item_id, str) or is_blank(item_id) or is_blank(item_type):
        raise _Unusable(notices.NO_ID_OR_TYPE)
    if _status_of(row) in _DELETING or row.get("deleted_at") is not None:
        raise _Unusable(notices.ITEM_DELETING)
    known = _TYPES.get(trim(str(item_type)).lower())
    if known is None:
        raise _Unusable(notices.UNSUPPORTED_TYPE)
    if item_id in migrated:
        raise _Unusable(notices.DUPLICATE_ITEM)
    migrated.add(item_id)
    content = read_data(known, row.get("data"), item_id, place)
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


def _grouped(items: Iterable[ItemDraft], base_id: str, found_notices: list[Notice]) -> list[ItemDraft]:
    """Return items with a folder before what is in it, and without those folders that are none."""
    folders = {item.id: item for item in items if item.type == "directory"}
    ordered: dict[str, ItemDraft] = {}
    for item in items:
        for one in reversed(_chain(item, folders, ordered)):
            # A circle of folders is cut where it was entered.
            if one.group_id is not None and one.group_id not in ordered:
                text = tr("group: {group_id}, which is not a folder of this base", group_id=one.group_id)
                found_notices.append(Notice(code=notices.DROPPED_FIELD, message=text, base=base_id, item=one.id))
                one = replace(one, group_id=None)  # noqa: PLW2901 - the same item
            ordered[one.id] = one
    return list(ordered.values())


def _chain(item: ItemDraft, folders: Mapping[str, ItemDraft], ordered: Container[str]) -> list[ItemDraft]:
    """Return an item and the folders that it is in, from inside out, up to one that is placed already or met again."""
    chain: dict[str, ItemDraft] = {}
    current: ItemDraft | None = item
    while current is not None and current.id not in ordered and current.id not in chain:
        chain[current.id] = current
        current = folders.get(current.group_id) if current.group_id is not None else None
    return list(chain.values())
