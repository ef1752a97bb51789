"""The items of a v1 base as a person knows them, for a first look (``docs/formats/v1.md``, "State")."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET

from checks.looks import ItemLook
from regraft.formats.cherry_v1.state import V1State
from regraft.formats.cherry_v2.item_names import item_name


def item_list(state: V1State, items: Iterable[Any]) -> list[ItemLook]:
    """Return what a state says of the items of a base; what is no object is passed over."""
    return [_item(state, raw) for raw in items if isinstance(raw, dict)]


def _item(state: V1State, raw: dict[str, Any]) -> ItemLook:
    kind = raw.get("type")
    return ItemLook(
        id=raw.get("id"),
        name=item_name("url" if kind == "sitemap" else kind, _named_by(state, raw)) or str(raw.get("id")),
        type=kind,
        status=raw.get("processingStatus"),
        error=raw.get("processingError") or UNSET,
    )


def _named_by(state: V1State, raw: dict[str, Any]) -> dict[str, Any]:
    """Return what names an item, in the fields that a catalog of v2 has for it."""
    content = raw.get("content")
    match raw.get("type"):
        case "url" | "sitemap":
            return {"url": content}
        case "note":
            note = _row(state.notes, raw.get("id"))
            return {"source": note.get("sourceUrl") or raw.get("sourceUrl"), "content": note.get("content") or content}
        case "file":
            inline = content if isinstance(content, dict) else {"id": content}
            file = {**_row(state.files, inline.get("id")), **inline}
            return {"source": file.get("origin_name") or file.get("name")}
        case _:
            return {"source": content}


def _row(table: Any, key: Any) -> dict[str, Any]:
    """Return a row of a table of the state; nothing where it is not there."""
    row = table.get(key) if isinstance(key, str) else None
    return row or {}
