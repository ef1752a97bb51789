"""Mending the status of items and the folders that they are in, from what is indexed and from one another.

Rules: ``docs/formats/catalog.md``, "What follows from what". An item that somebody was working on is ``failed`` with
``indexing_interrupted``, as the application has it after a crash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import ACTIVE, group_problem, is_foreign, status_problem
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.cherry_v2.item_data import DATA
from regraft.language import tr
from regraft.text import is_blank

INTERRUPTED = "indexing_interrupted"
#: The error of an item that failed and does not say why.
NO_REASON = "No reason was recorded for this failure."
#: Statuses that stay, and the error that goes with each.
_FINAL: dict[Any, tuple[str, str | None]] = {"deleting": ("deleting", None), "failed": ("failed", NO_REASON)}
#: Statuses of a folder that follow from what is inside.
_FOLLOWING = ("processing", "completed")

#: Tells whether an item is indexed; None where nobody knows.
IsIndexed = Callable[[str], bool | None]


class Items(msgspec.Struct):
    """The items of one base while they are mended; rows are changed in place."""

    rows: list[Row]
    #: By the number of a row in ``rows``: the finding for which its status changes.
    statuses: dict[int, str] = msgspec.field(default_factory=dict)
    #: By the number of a row: what was wrong with its folder, for a person.
    moves: dict[int, str] = msgspec.field(default_factory=dict)
    #: What stays: finding, reason, and the item's id.
    left: list[tuple[str, str, str]] = msgspec.field(default_factory=list)

    def leave(self, finding: str, reason: str, row: Row) -> None:
        """Say of a row why it stays as it is."""
        self.left.append((finding, reason, str(row.get("id"))))


def mend_statuses(items: Items, is_running: bool, is_indexed: IsIndexed) -> None:
    """Give every item a status that goes with its error and its type."""
    children = _children(items.rows)
    for number, row in enumerate(items.rows):
        if status_problem(row, is_running) is None:
            continue
        inside = [child.get("status") for child in children.get(row.get("id"), ())]
        found = _settled(row, any(status != "deleting" for status in inside), is_indexed)
        if found is None:
            reason = (
                tr("its type is {get}", get=row.get("type"))
                if row.get("type") not in DATA
                else tr("its index cannot be read")
            )
            items.leave(v2.ITEM_STATUS, tr("{reason}, so that nobody knows how it is doing", reason=reason), row)
            continue
        row["status"], row["error"] = found
        items.statuses[number] = v2.ITEM_STATUS


def _settled(row: Row, has_children: bool, is_indexed: IsIndexed) -> tuple[str, str | None] | None:
    """Return status and error of an item; None where nobody knows them."""
    status, kind = row.get("status"), row.get("type")
    error = None if is_blank(row.get("error")) else str(row.get("error"))
    if kind not in DATA:
        return None
    if status in _FINAL:
        return _FINAL[status]
    if error is None and (status in ("idle", "completed") or (status, kind) == ("processing", "directory")):
        return str(status), None
    is_done = _is_done(row, has_children, is_indexed)
    if is_done:
        # The status of a folder follows from what is inside, once that is known.
        return "completed", None
    return None if is_done is None else ("failed", error or INTERRUPTED)


def _is_done(row: Row, has_children: bool, is_indexed: IsIndexed) -> bool | None:
    """Tell whether an item came to its end; None where nobody knows."""
    status = row.get("status")
    if row.get("type") == "directory":
        return has_children and status != "preparing"
    return False if status in ACTIVE else is_indexed(str(row.get("id")))


def mend_folders(items: Items) -> None:
    """Move to the top what is in no folder that there is; of folders inside themselves, the oldest."""
    by_id = {row.get("id"): row for row in items.rows}
    inside_itself: list[Row] = []
    for number, row in enumerate(items.rows):
        problem = None if row.get("group_id") is None else group_problem(row, by_id)
        if problem is None:
            continue
        above = by_id.get(row.get("group_id"))
        if above is not None and above.get("type") not in DATA:
            items.leave(v2.ITEM_CONTAINER, tr("the item that it is in is of type {get}", get=above.get("type")), row)
        elif above is not None and above.get("type") == "directory":
            inside_itself.append(row)
        else:
            row["group_id"] = None
            items.moves[number] = problem
    _open_circles(items, inside_itself, by_id)


def _open_circles(items: Items, inside_itself: list[Row], by_id: dict[Any, Row]) -> None:
    """Move the oldest of folders that are inside one another to the top."""
    places = {row.get("id"): number for number, row in enumerate(items.rows)}
    for row in inside_itself:
        circle = _circle(row, by_id)
        if any(one.get("type") not in DATA for one in circle):
            items.leave(v2.ITEM_CONTAINER, tr("one of the items that it is in is of an unknown type"), row)
        elif circle:
            # Ids of items begin with the time at which they were made, and a folder is made before what is inside.
            oldest = min(circle, key=lambda one: str(one.get("id")))
            oldest["group_id"] = None
            items.moves[places[oldest.get("id")]] = tr("inside itself")


def _circle(row: Row, by_id: dict[Any, Row]) -> list[Row]:
    """Return the folders that lie inside one another on the way up from an item; nothing where the way ends."""
    way: list[Row] = []
    seen: dict[Any, int] = {}
    above: Row | None = row
    while above is not None:
        key = above.get("id")
        if key in seen:
            return way[seen[key] :]
        seen[key] = len(way)
        way.append(above)
        above = by_id.get(above.get("group_id")) if above.get("group_id") is not None else None
    return []


def follow_children(items: Items, changed: Iterable[int] | None) -> None:
    """Give folders the status that follows from what is inside.

    Args:
        items: the items.
        changed: numbers of rows whose folders, and who themselves, may be out of step; None: every folder is looked at.
    """
    children = _children(items.rows)
    places = {row.get("id"): number for number, row in enumerate(items.rows)}
    waiting = list(range(len(items.rows)) if changed is None else _with_folders(items.rows, changed, places))
    while waiting:
        number = waiting.pop()
        row = items.rows[number]
        if row.get("type") != "directory" or row.get("status") not in _FOLLOWING:
            continue
        own = children.get(row.get("id"), ())
        if any(map(is_foreign, own)):
            continue  # How a newer application counts such a child nobody here knows.
        inside = {child.get("status") for child in own}
        wanted = "processing" if ACTIVE.intersection(inside) else "completed"
        if row.get("status") != wanted:
            row["status"] = wanted
            items.statuses.setdefault(number, v2.ITEM_CONTAINER)
            waiting += _with_folders(items.rows, [number], places)


def _with_folders(rows: list[Row], numbers: Iterable[int], places: dict[Any, int]) -> Iterator[int]:
    for number in numbers:
        yield number
        folder = places.get(rows[number].get("group_id"))
        if folder is not None:
            yield folder


def _children(rows: list[Row]) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        if row.get("group_id") is not None:
            found[row["group_id"]].append(row)
    return found
