"""What becomes of the items of a base that is restored: their ids, folders, paths and statuses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from checks.cherry_v2.catalog_rows import group_problem
from regraft import identity
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.cherry_v2.item_data import DATA, data_problem
from regraft.language import english, tr
from regraft.text import is_blank
from repair.cherry_v2.rules.items import INTERRUPTED


class ItemCopy(msgspec.Struct, frozen=True):
    """An item as it comes into the new base: the ids that it had and gets, and what of its row is another now."""

    old: str
    id: str
    group: str | None
    status: str
    error: str | None
    #: The path of what is indexed of it; None where that stays as it is.
    path: str | None = None


class Leaf(msgspec.Struct):
    """A file, url or note while it is looked at: what it is called anew, and why it has no text (None: it has)."""

    row: Row
    id: str
    missing: str | None = None
    path: str | None = None


def new_id(base: str, row: Row) -> str:
    """Return the id that an item gets in the new base ``base``."""
    created = row.get("created_at")
    return identity.restored_item_id(base, str(row.get("id")), created if isinstance(created, int) else None)


def problem_of(row: Row) -> str | None:
    """Return what keeps an item from being copied; None where nothing does. Its row has what it holds."""
    if not isinstance(row.get("id"), str):
        return tr("its id is not text")
    if row.get("type") not in DATA:
        return tr("its type is {get}", get=row.get("type"))
    return data_problem(row)


def is_going(row: Row) -> bool:
    """Tell whether an item is being deleted."""
    return row.get("status") == "deleting" or row.get("deleted_at") is not None


def copies(base: str, rows: Iterable[Row], leaves: Mapping[str, Leaf]) -> list[ItemCopy]:
    """Return the items of the new base ``base``: of all rows that are copied, in their order.

    Args:
        base: its id.
        rows: the rows of files, urls, notes and folders.
        leaves: what is known of all that are no folders, by the ids that they had.
    """
    by_id = {row["id"]: row for row in rows}
    groups = {key: _folder(row, by_id) for key, row in by_id.items()}
    inside, filled = set(groups.values()), _filled(groups, leaves)
    made = []
    for key, row in by_id.items():
        group, leaf = groups[key], leaves.get(key)
        status, error = _folder_status(row, key in inside, key in filled) if leaf is None else _leaf_status(leaf)
        path = None if leaf is None else leaf.path
        above = None if group is None else new_id(base, by_id[group])
        made.append(ItemCopy(old=key, id=new_id(base, row), group=above, status=status, error=error, path=path))
    return made


def _filled(groups: Mapping[Any, Any], leaves: Mapping[str, Leaf]) -> set[Any]:
    """Return the ids of the folders that have a text in them, at any depth."""
    filled: set[Any] = set()
    for key, leaf in leaves.items():
        above = groups[key] if leaf.missing is None else None
        while above is not None and above not in filled:
            filled.add(above)
            above = groups[above]
    return filled


def _folder(row: Row, by_id: Mapping[Any, Row]) -> Any:
    """Return the id of the folder that an item is in; None where it is in none that there is."""
    group = row.get("group_id")
    return None if group is None or group_problem(row, by_id) is not None else group


def _leaf_status(leaf: Leaf) -> tuple[str, str | None]:
    if leaf.missing is None:
        return "completed", None
    status, error = leaf.row.get("status"), leaf.row.get("error")
    if status == "idle":
        return "idle", None
    return "failed", str(error) if status == "failed" and not is_blank(
        error
    ) else f"Not restored: {english(leaf.missing)}."


def _folder_status(row: Row, has_items: bool, has_text: bool) -> tuple[str, str | None]:
    status, error = row.get("status"), row.get("error")
    if status == "failed" and not has_text:
        return "failed", str(error) if not is_blank(error) else INTERRUPTED
    if has_items or status == "completed":
        return "completed", None
    return ("idle", None) if status == "idle" else ("failed", INTERRUPTED)
