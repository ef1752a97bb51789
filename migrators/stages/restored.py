"""What v1 never stored because it had the same text already: told by file, and given back where a whole file was lost.

A file that equals another one byte for byte has no row of its own in v1; it gets the rows of that other file. Rules:
``docs/rules.md``, "Rows" and "Duplicates".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from migrators.stages.drafts import BaseDraft, ItemDraft
from migrators.stages.journey import Twin
from regraft import notices
from regraft.formats.vector_table import LoaderRows
from regraft.notices import Notice
from regraft.text import counted, utf16_cut, utf16_len

#: Files named in one message; the rest is counted.
NAMED = 5
#: The longest name in a message, in UTF-16 units: an address or a snippet can be long.
NAME_UNITS = 100


@dataclass(frozen=True)
class Restored:
    """A file without rows that can have those of its twin: the item ``owner``, whose ``rows`` are carried."""

    twin: Twin
    owner: str
    rows: int
    #: Whether v1 kept only a part of the twin.
    partial: bool


@dataclass(frozen=True)
class Missing:
    """An item of which v1 did not store some chunks: at least ``chunks``, with ``rows`` that it has stored."""

    name: str
    legacy_id: str | None
    chunks: int
    rows: int


def holes(rows: LoaderRows) -> int:
    """Return how many chunks of a loader v1 never stored, as far as its numbering tells."""
    return max(0, rows.highest_number + 1 - rows.rows) if rows.highest_number >= 0 else 0


def claims(draft: BaseDraft, twins: Iterable[Twin]) -> dict[str, ItemDraft | None]:
    """Return who gets the rows of each twin, by loader id: a completed standalone file, or None for folders' files.

    Of several standalone items with one loader id it is the last, as with rows. A loader that an item of another kind
    or state has too, or that no completed folder lists, is left out.
    """
    alone = {loader: item for item in draft.items if item.type != "directory" for loader in item.loader_ids}
    listed = {
        loader
        for item in draft.items
        if item.type == "directory" and item.status == "completed"
        for loader in item.entries
    }
    found: dict[str, ItemDraft | None] = {}
    for twin in twins:
        item = alone.get(twin.loader_id)
        if item is None and twin.loader_id in listed and twin.path:
            found[twin.loader_id] = None
        elif item is not None and item.type == "file" and item.status == "completed":
            found[twin.loader_id] = item
    return found


def said_of(one: Restored, base: str, item: str | None, *, restored: bool) -> Notice:
    """Say that a file is a duplicate, and that it was given the chunks of its twin, or is not by the user's word."""
    twin = one.twin
    part = ", as far as v1 kept it" if one.partial else ""
    lost = f"{_short(twin.name)}: v1 kept nothing of it, since {_short(twin.like_name)} has the same bytes"
    if restored:
        said = f"{lost}; it gets the same {counted(one.rows, 'chunk')}{part}"
        return Notice(notices.RESTORED_DUPLICATE, said, base, item, one.rows)
    said = f"{lost}; without --no-restore-duplicates it would get the same {counted(one.rows, 'chunk')}{part}"
    return Notice(notices.LOST_DUPLICATE, said, base, item, one.rows)


def said_of_missing(base: str, missing: Sequence[Missing]) -> Iterator[Notice]:
    """Say which chunks v1 never stored: in one notice for the base, and in one for each item."""
    if not missing:
        return
    total = sum(one.chunks for one in missing)
    largest = sorted(missing, key=lambda one: -one.chunks)
    names = listed_names([f"{_short(one.name)} ({one.chunks:,})" for one in largest])
    said = f"{counted(total, 'chunk')} never stored by v1, which had the text already: {names}"
    yield Notice(notices.DEDUPLICATED, said, base, count=total)
    for one in missing:
        chunks = f"{one.chunks:,} of its {counted(one.chunks + one.rows, 'chunk')}"
        said = f"{_short(one.name)}: at least {chunks} never stored by v1, which had the text already"
        yield Notice(notices.DEDUPLICATED_ITEM, said, base, one.legacy_id, one.chunks)


def listed_names(names: Sequence[str]) -> str:
    """Return a few names as text, the rest counted."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more:,} more" if more > 0 else "")


def name_in(folder: str, source: str) -> str:
    """Return what a person calls a file of a folder: its path in the folder, else its ``source``."""
    rest = source.removeprefix(folder)
    return rest.lstrip("/\\") if rest != source and rest[:1] in ("/", "\\") else source


def _short(name: str) -> str:
    line = " ".join(name.split())
    return line if utf16_len(line) <= NAME_UNITS else utf16_cut(line, NAME_UNITS - 1) + "…"
