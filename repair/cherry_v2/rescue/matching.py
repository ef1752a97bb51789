"""Match rows of a profile with the bases and items of v1.

The upgrade assigned new ids, but kept names, times, settings and order. A row that matches several drafts is left
unmatched (``docs/rules.md``, "Rescue").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from msgspec import structs

from migrators.pipeline.accounting import FolderFile, expand_folders
from migrators.pipeline.source import BaseDraft, ItemDraft
from regraft import identity
from regraft.formats.cherry_v2.catalog_reader import Row, parse_item_data
from regraft.formats.vector_survey import VectorSurvey
from regraft.identity import replace
from regraft.text import replace_surrogates

D = TypeVar("D")
T = TypeVar("T")
Items = dict[Any, list[Row]]


@dataclass(frozen=True)
class _Rule(Generic[D]):
    """Two functions that return the key by which a row and a v1 draft are compared. None excludes the row or draft."""

    of_row: Callable[[Row], Hashable]
    of_draft: Callable[[D], Hashable]
    #: Whether several rows and drafts with the same key are matched in order.
    in_order: bool = False


@dataclass(frozen=True)
class MatchResult(Generic[D]):
    """Rows paired with their v1 drafts, in v1's order, and rows that match several drafts."""

    pairs: list[tuple[Row, D]]
    unsure: list[Row]


def _match(rows: Sequence[Row], drafts: Sequence[D], rules: Iterable[_Rule[D]]) -> MatchResult[D]:
    """Pair rows with v1 drafts of equal key, by several rules in turn. Rows with several candidates stay unsure."""
    of: dict[int, int] = {}
    unsure: set[int] = set()
    for rule in rules:
        taken = set(of.values())
        left = _group_positions(rows, rule.of_row, without=taken)
        right = _group_positions(drafts, rule.of_draft, without=of)
        for key in left.keys() & right.keys():
            if len(left[key]) == len(right[key]) and (rule.in_order or len(left[key]) == 1):
                of.update(zip(right[key], left[key], strict=True))
            else:
                unsure.update(left[key])
    pairs = [(rows[of[at]], draft) for at, draft in enumerate(drafts) if at in of]
    return MatchResult(pairs, [rows[at] for at in sorted(unsure - set(of.values()))])


def _group_positions(
    things: Iterable[T], key_of: Callable[[T], Hashable], *, without: Container[int] = ()
) -> dict[Hashable, list[int]]:
    """Group the positions of things by the key of the thing.

    Things with a key of None, and the positions in ``without``, are excluded.
    """
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for at, thing in enumerate(things):
        key = None if at in without else key_of(thing)
        if key is not None:
            groups[key].append(at)
    return groups


# --- bases -----------------------------------------------------------------------------------------------------------


def match_bases(rows: Sequence[Row], drafts: Sequence[BaseDraft], items: Items) -> MatchResult[BaseDraft]:
    """Match the profile's base rows with the bases of v1: by id, else by properties.

    If no draft has all properties of a row, those with its name and time count, then those with its time. ``items`` are
    item rows by base id.
    """

    def content(row: Row) -> tuple[Hashable, ...]:
        """Return the key by which the items of a base outside of folders are compared."""
        return tuple(_row_key(item) for item in items.get(row.get("id"), ()) if item.get("group_id") is None)

    return _match(
        rows,
        drafts,
        [
            _Rule(lambda row: row.get("id"), lambda draft: draft.id),
            _Rule(
                lambda row: (*_row_name(row), *_row_settings(row), content(row)),
                lambda draft: (*_draft_name(draft), *_draft_settings(draft), tuple(map(_draft_key, draft.items))),
                in_order=True,
            ),
            _Rule(
                lambda row: (*_row_name(row), *_row_settings(row)),
                lambda draft: (*_draft_name(draft), *_draft_settings(draft)),
            ),
            _Rule(_row_name, _draft_name),
            _Rule(
                lambda row: (row.get("created_at"), content(row)) if content(row) else None,
                lambda draft: (draft.created_at, tuple(map(_draft_key, draft.items))) if draft.items else None,
            ),
            # A renamed base with deleted items.
            _Rule(lambda row: row.get("created_at"), lambda draft: draft.created_at),
            # A base without a time in v1; its row has the time of the upgrade.
            _Rule(
                lambda row: (row.get("name"), *_row_settings(row), content(row)) if content(row) else None,
                lambda draft: (
                    (replace_surrogates(draft.name), *_draft_settings(draft), tuple(map(_draft_key, draft.items)))
                    if draft.created_at is None and draft.items
                    else None
                ),
            ),
        ],
    )


def _row_name(row: Row) -> tuple[Hashable, ...]:
    """Return the key of a base row: name and time of creation."""
    return row.get("name"), row.get("created_at")


def _draft_name(draft: BaseDraft) -> tuple[Hashable, ...]:
    """Return the key of a v1 base that corresponds to :func:`_row_name`."""
    return replace_surrogates(draft.name), draft.created_at


def _row_settings(row: Row) -> tuple[Hashable, ...]:
    """Return the key of a base row: its settings."""
    return tuple(row.get(key) for key in ("chunk_size", "chunk_overlap", "threshold", "document_count"))


def _draft_settings(draft: BaseDraft) -> tuple[Hashable, ...]:
    """Return the key of a v1 base that corresponds to :func:`_row_settings`."""
    settings = draft.settings
    return settings.chunk_size, settings.chunk_overlap, settings.threshold, settings.document_count


# --- items -----------------------------------------------------------------------------------------------------------

#: The property that differs between two items with the same source and time.
_DETAIL = {"file": "relativePath", "url": "url", "note": "content"}


def match_items(rows: Sequence[Row], drafts: Sequence[ItemDraft], names: Mapping[str, str]) -> MatchResult[ItemDraft]:
    """Match item rows of a base with its items in v1. For files of folders see :func:`match_folder_files`.

    ``names`` are the names in ``raw/`` that a migration gives the files, by the id of the v1 item.
    """

    def detail(draft: ItemDraft) -> Hashable:
        """Return the key of a v1 item that corresponds to :func:`_row_detail`."""
        return _text(names.get(draft.id, draft.data.get(_DETAIL.get(draft.type, ""))))

    return _match(
        [row for row in rows if row.get("group_id") is None and _is_usable(row)],
        drafts,
        [
            _Rule(lambda row: row.get("id"), lambda draft: draft.id),
            _Rule(
                lambda row: (_row_key(row), _row_detail(row, parse_item_data(row))),
                lambda draft: (_draft_key(draft), detail(draft)),
                in_order=True,
            ),
            _Rule(_row_key, _draft_key),
            _Rule(
                lambda row: (*_row_key(row)[:2], _row_detail(row, parse_item_data(row))),
                lambda draft: (*_draft_key(draft)[:2], detail(draft)) if draft.created_at is None else None,
            ),
        ],
    )


def _is_usable(row: Row) -> bool:
    """Whether an item row has an id, and is not being deleted."""
    return isinstance(row.get("id"), str) and row.get("status") != "deleting"


def _row_key(row: Row) -> tuple[Hashable, ...]:
    """Return the key of an item row: type, source and time of creation."""
    return row.get("type"), _row_source(row), row.get("created_at")


def _row_source(row: Row) -> str | None:
    """Return the source that an item row names; None if it is not text."""
    return _text(parse_item_data(row).get("source"))


def _draft_key(draft: ItemDraft) -> tuple[Hashable, ...]:
    """Return the key of a v1 item that corresponds to :func:`_row_key`."""
    return draft.type, replace_surrogates(draft.data["source"]), draft.created_at


def _row_detail(row: Row, data: dict[str, Any]) -> Hashable:
    """Return the field of an item's ``data`` that differs between items with the same source and time."""
    return _text(data.get(_DETAIL.get(str(row.get("type")), "")))


def _text(value: Any) -> str | None:
    """Return a text with U+FFFD for unpaired surrogates; None if the value is no text."""
    return replace_surrogates(value) if isinstance(value, str) else None


# --- files of folders ------------------------------------------------------------------------------------------------


def match_folder_files(
    draft: BaseDraft,
    survey: VectorSurvey,
    rows: Sequence[Row],
    is_open: Callable[[str], bool],
    texts: Collection[str],
) -> tuple[BaseDraft, dict[str, Row], list[Row]]:
    """Reduce the folders of a v1 draft to the files that the profile lists.

    If a folder lists files, or is not ``is_open``, the user removed unlisted files, and they are not restored. v1
    stored an entry again each time it was read, and the upgrade made a row each time: the row with a text is used, else
    the last one.

    Args:
        draft: the base in v1, with the profile's ids.
        survey: the survey of its vector file.
        rows: the profile's item rows of the base.
        is_open: whether the folder with this id may get all of its files.
        texts: ids of the items with a text in the index.

    Returns:
        The reduced draft; the rows of listed files, by the ids that planning gives them; and rows that match several
        files.
    """
    expanded, listed = expand_folders(draft, survey), _group_by_folder(rows)
    items: list[ItemDraft] = []
    known: dict[str, Row] = {}
    unsure: list[Row] = []
    for item in draft.items:
        own = listed.get(item.id, [])
        if not item.is_to_expand or (not own and is_open(item.id)):
            items.append(item)
            continue
        children = expanded.get(item.id, ())
        matched = _match(_without_repeats(item, survey, own, texts), children, [_SAME_ID, _SAME_SOURCE])
        kept = {id(child): row for row, child in matched.pairs}
        twins = _repeated_rows(item, survey, own)
        fitted = structs.replace(item, entries=tuple(_listed_entries(item, children, kept, twins)))
        items.append(fitted)
        again = expand_folders(replace(draft, items=(fitted,)), survey).get(item.id, ())
        known.update(zip((child.id for child in again), kept.values(), strict=True))
        known.update((row["id"], row) for row in twins.values())
        unsure += [row for row in matched.unsure if row["id"] not in known]
    return replace(draft, items=tuple(items)), known, unsure


def _group_by_folder(rows: Sequence[Row]) -> dict[Any, list[Row]]:
    """Group the item rows that are in folders, and not being deleted, by the id of their folder."""
    listed: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        if row.get("group_id") is not None and _is_usable(row):
            listed[row["group_id"]].append(row)
    return listed


def _without_repeats(item: ItemDraft, survey: VectorSurvey, listed: list[Row], texts: Collection[str]) -> list[Row]:
    """Return the listed rows of a folder item with one row for each entry that v1 stored repeatedly.

    Args:
        item: the folder in v1.
        survey: the survey of the base's vector file.
        listed: the profile's rows of files in the folder.
        texts: ids of the items with a text, which are preferred.
    """
    entries: dict[Hashable, list[str]] = defaultdict(list)
    for entry in item.entries:
        found = survey.loaders.get(entry)
        if found is not None and found.source is not None:
            entries[replace_surrogates(found.source)].append(entry)
    superseded: set[int] = set()
    for source, places in _group_positions(listed, _row_source).items():
        loaders = entries.get(source, [])
        # If a single loader has the source, all rows belong to it.
        each = loaders[:1] * len(places) if len(set(loaders)) == 1 else loaders
        if len(loaders) > len(set(loaders)) and len(each) == len(places):
            pairs = sorted(
                zip(each, places, strict=True),
                key=lambda pair: (listed[pair[1]]["id"] in texts, listed[pair[1]].get("status") == "completed"),
            )
            # Keep the row with the highest weight of each entry.
            superseded.update(set(places).difference(dict(pairs).values()))
    return [row for at, row in enumerate(listed) if at not in superseded]


def _repeated_rows(item: ItemDraft, survey: VectorSurvey, listed: list[Row]) -> dict[str, Row]:
    """Map repeated entries of the v1 folder ``item`` to the rows that regraft made for them, which their ids show.

    ``listed`` are the profile's rows of files in the folder, ``survey`` is that of the base's vector file.
    """
    ids = {row["id"]: row for row in listed}
    made = {entry: identity.child_id(item.id, entry, 0, item.created_at) for entry in item.entries}
    return {entry: ids[child] for entry, child in made.items() if entry not in survey.loaders and child in ids}


_SAME_ID: _Rule[FolderFile] = _Rule(lambda row: row.get("id"), lambda child: child.id)
_SAME_SOURCE: _Rule[FolderFile] = _Rule(_row_source, lambda child: replace_surrogates(child.source), in_order=True)


def _listed_entries(
    item: ItemDraft, children: Sequence[FolderFile], kept: dict[int, Row], twins: dict[str, Row]
) -> Iterable[str]:
    """Yield the entries of a v1 folder that have a row in the profile, in order.

    Args:
        item: the folder.
        children: its files.
        kept: the rows of files, by the ``id()`` of the file.
        twins: the rows of repeated entries, by entry.
    """
    by_loader, remaining = {child.loader_id: child for child in children}, set(twins)
    for entry in dict.fromkeys(item.entries):
        if entry in by_loader:
            if id(by_loader[entry]) in kept:
                yield entry
        elif entry in remaining:
            remaining.discard(entry)
            yield entry
