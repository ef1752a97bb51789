"""What v1 never stored because it had the same text already: told by file, and given back where a whole file was lost.

A file that equals another one byte for byte has no row of its own in v1; it gets the rows of that other file. Rules:
``docs/rules.md``, "Rows" and "Duplicates".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from migrators.pipeline.drafts import BaseDraft, ItemDraft
from migrators.pipeline.ownership import Owners
from migrators.pipeline.source import Duplicate
from regraft.formats.vector_survey import LoaderRows, Survey
from regraft.language import joined, tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.text import counted, utf16_cut, utf16_len

#: Files named in one message; the rest is counted.
NAMED = 5
#: The longest name in a message, in UTF-16 units: an address or a snippet can be long.
NAME_UNITS = 100


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """A file without rows that can have those of its twin: the item ``owner``, whose ``rows`` are carried.

    ``item`` is the file's own item, or the folder that it is told of.
    """

    twin: Duplicate
    item: ItemDraft
    owner: str
    rows: int
    #: Whether v1 kept only a part of the twin.
    partial: bool


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """An item of which v1 did not store some chunks: at least ``chunks``, with ``rows`` that it has stored."""

    name: str
    legacy_id: str | None
    chunks: int
    rows: int


def holes(rows: LoaderRows) -> int:
    """Return how many chunks of a loader v1 never stored, as far as its numbering tells."""
    return max(0, rows.highest_number + 1 - rows.rows) if rows.highest_number >= 0 else 0


def read_times(draft: BaseDraft) -> dict[str, int]:
    """Return when v1 read each file of a base's completed folders (ms), by loader id.

    That is the time of its folder, of several the earliest. A file of a folder without a time has none.
    """
    times: dict[str, int] = {}
    unknown: set[str] = set()
    for item in draft.folders:
        if item.status == "completed":
            time = item.created_at if item.updated_at is None else item.updated_at
            for entry in item.entries:
                if time is None:
                    unknown.add(entry)
                else:
                    times[entry] = min(time, times.get(entry, time))
    return {entry: time for entry, time in times.items() if entry not in unknown}


class DuplicateRules:
    """Tells of twins who gets the rows and who has them. What does not fit any more counts for nothing."""

    def __init__(self, draft: BaseDraft, owners: Owners) -> None:
        folders = [item for item in draft.folders if item.status == "completed"]
        self._owners = owners
        self._times = read_times(draft)
        self._files = {item.id: item for item in draft.items if item.type == "file"}
        self._alone = {loader for item in draft.items if item.type != "directory" for loader in item.loader_ids}
        self._listed = {entry: item for item in folders for entry in item.entries}

    def taker(self, twin: Duplicate) -> ItemDraft | None:
        """Return the completed standalone file that gets the rows, or the folder whose file does.

        A standalone file has to own the loader, so that of several with one loader it is the last, as with rows, and
        it has to be the one whose upload was compared. A file of a folder must not be a standalone item's too.
        """
        loader = twin.loader_id
        if twin.item:
            item = self._files.get(twin.item)
            owns = item is not None and loader in item.loader_ids and self._owners.owner(loader) == item.id
            return item if owns and item is not None and item.status == "completed" else None
        fits = twin.path and loader not in self._alone and self._as_read(loader, twin.read_at)
        return self._listed.get(loader) if fits else None

    def giver(self, twin: Duplicate) -> str | None:
        """Return the id of the file that has the rows, if that is the one whose bytes were compared."""
        owner = self._owners.owner(twin.like)
        if twin.like_item:
            return owner if owner == twin.like_item and owner in self._files else None
        child = self._owners.children.get(twin.like)
        is_child = child is not None and child.id == owner
        return owner if is_child and self._as_read(twin.like, twin.like_read_at) else None

    def _as_read(self, loader: str, read_at: int | None) -> bool:
        """Tell whether v1 read a file of a folder when a twin says, and not again later."""
        return self._times.get(loader) == read_at


def without_rows(draft: BaseDraft, survey: Survey, owners: Owners, told: Collection[str]) -> list[ItemDraft]:
    """Return the completed files of which v1 has no row at all, but for those that are told of already.

    ``told`` are the ids of duplicates; a file whose loader went to a later item is told of too.
    """
    found = []
    for item in draft.items:
        if item.type == "file" and item.status == "completed" and item.id not in told:
            own = all(owners.owner(loader) == item.id for loader in item.loader_ids)
            if own and not any(loader in survey.loaders for loader in item.loader_ids):
                found.append(item)
    return found


def said_of(one: Restored, base: str, *, restored: bool) -> Notice:
    """Say that a file is a duplicate, and that it was given the chunks of its twin, or is not by the user's word."""
    twin, item = one.twin, one.item.legacy_id
    part = tr(", as far as v1 kept it") if one.partial else ""
    why = tr("since {short} has the same bytes", short=_short(twin.like_name))
    if twin.changed:
        why = tr(
            "and {short} has the same bytes today, though one of them was changed since v1 read it",
            short=_short(twin.like_name),
        )
    lost = tr("{short}: v1 kept nothing of it, {why}", short=_short(twin.name), why=why)
    if restored:
        message = tr("{lost}; it gets the same {chunks}{part}", lost=lost, chunks=counted(one.rows, "chunk"), part=part)
        return Notice(code=notices.RESTORED_DUPLICATE, message=message, base=base, item=item, count=one.rows)
    message = tr(
        "{lost}; without --no-restore-duplicates it would get the same {chunks}{part}",
        lost=lost,
        chunks=counted(one.rows, "chunk"),
        part=part,
    )
    return Notice(code=notices.LOST_DUPLICATE, message=message, base=base, item=item, count=one.rows)


def said_of_missing(base: str, missing: Sequence[Missing]) -> Iterator[Notice]:
    """Say which chunks v1 never stored: in one notice for the base, and in one for each item."""
    if not missing:
        return
    total = sum(one.chunks for one in missing)
    largest = sorted(missing, key=lambda one: -one.chunks)
    names = listed_names([f"{_short(one.name)} ({one.chunks:,})" for one in largest])
    message = tr(
        "{chunks} never stored by v1, which had the text already: {names}", chunks=counted(total, "chunk"), names=names
    )
    yield Notice(code=notices.DEDUPLICATED, message=message, base=base, count=total)
    for one in missing:
        chunks = tr("{chunks:,} of its {chunks2}", chunks=one.chunks, chunks2=counted(one.chunks + one.rows, "chunk"))
        message = tr(
            "{short}: at least {chunks} never stored by v1, which had the text already",
            short=_short(one.name),
            chunks=chunks,
        )
        yield Notice(code=notices.DEDUPLICATED_ITEM, message=message, base=base, item=one.legacy_id, count=one.chunks)


def said_without_rows(base: str, files: Sequence[ItemDraft]) -> Iterator[Notice]:
    """Say in one notice which completed files have no text."""
    if files:
        names = listed_names([_short(item.data["relativePath"]) for item in files])
        message = tr(
            "{completed_files} without any text, as there are no rows: {names}",
            completed_files=counted(len(files), "completed file"),
            names=names,
        )
        yield Notice(code=notices.FILE_WITHOUT_ROWS, message=message, base=base, count=len(files))


def listed_names(names: Sequence[str]) -> str:
    """Return a few names as text, the rest counted."""
    more = len(names) - NAMED
    return joined(names[:NAMED]) + (tr(" and {more:,} more", more=more) if more > 0 else "")


def name_in(folder: str, source: str) -> str:
    """Return what a person calls a file of a folder: its path in the folder, else its ``source``."""
    rest = source.removeprefix(folder)
    return rest.lstrip("/\\") if rest != source and rest[:1] in ("/", "\\") else source


def _short(name: str) -> str:
    line = " ".join(name.split())
    return line if utf16_len(line) <= NAME_UNITS else utf16_cut(line, NAME_UNITS - 1) + "…"
