"""Items as they are planned: from a draft, or a file of a folder, and what a person calls them."""

from __future__ import annotations

from collections.abc import Container, Iterator

from migrators.pipeline.drafts import ItemDraft
from migrators.pipeline.duplicates import name_in
from migrators.pipeline.ownership import Child
from migrators.pipeline.packed import Packed
from migrators.pipeline.plan_model import ItemPlan
from regraft.report import notices


def item_plan(draft: ItemDraft, path: str | None, *, failed: bool) -> ItemPlan:
    """Return what becomes of a drafted item with a path below ``raw/``, or without one."""
    return ItemPlan(
        id=draft.id,
        legacy_id=draft.legacy_id,
        group_id=draft.group_id,
        type=draft.type,
        data=draft.data if path is None else {**draft.data, "relativePath": path},
        status="failed" if failed else draft.status,
        error=notices.NOT_MIGRATED if failed else draft.error,
        created_at=draft.created_at,
        updated_at=draft.updated_at,
        upload=draft.upload,
    )


def child_plan(container: ItemDraft, child: Child, path: str, *, failed: bool) -> ItemPlan:
    """Return the item that a file of a folder becomes."""
    return ItemPlan(
        id=child.id,
        legacy_id=None,
        group_id=container.id,
        type="file",
        data={"source": child.source, "relativePath": path},
        status="failed" if failed else "completed",
        error=notices.NOT_MIGRATED if failed else None,
        created_at=container.created_at,
        updated_at=container.updated_at,
    )


def names_of(items: Packed[ItemPlan], wanted: Container[str]) -> Iterator[tuple[str, str, str | None]]:
    """Yield for some items their id, what a person calls them, and the id of v1 that they go by."""
    folders = {item.id: item for item in items if item.type == "directory"}
    for item in items:
        if item.id in wanted:
            folder = folders.get(item.group_id or "")
            name = name_in(folder.data["source"], item.data["source"]) if folder else _called(item)
            yield item.id, name, folder.legacy_id if folder else item.legacy_id


def _called(item: ItemPlan) -> str:
    """Return what a person calls an item that is in no folder."""
    return item.data["relativePath"] if item.type == "file" else item.data.get("url", item.data["source"])
