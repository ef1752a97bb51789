"""Which base and which item of v1 a row of the profile is.

The application gave its own ids at the upgrade, but kept names, times, settings and order. What fits more than one is
nobody's (``docs/rules.md``, "Rescue").
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
    """What a row and what of v1 are to have in common; a key of None takes no part."""

    of_row: Callable[[Row], Hashable]
    of_draft: Callable[[D], Hashable]
    #: Whether several of one key on both sides are one another's in their order.
    in_order: bool = False


@dataclass(frozen=True)
class MatchResult(Generic[D]):
    """Rows with what they are in v1, in v1's order, and rows that may be any of several."""

    pairs: list[tuple[Row, D]]
    unsure: list[Row]


def _matched(rows: Sequence[Row], drafts: Sequence[D], rules: Iterable[_Rule[D]]) -> MatchResult[D]:
    of: dict[int, int] = {}
    unsure: set[int] = set()
    for rule in rules:
        taken = set(of.values())
        left = _grouped(rows, rule.of_row, without=taken)
        right = _grouped(drafts, rule.of_draft, without=of)
        for key in left.keys() & right.keys():
            if _is_sure(len(left[key]), len(right[key]), in_order=rule.in_order):
                of.update(zip(right[key], left[key], strict=True))
            else:
                unsure.update(left[key])
    pairs = [(rows[of[at]], draft) for at, draft in enumerate(drafts) if at in of]
    return MatchResult(pairs, [rows[at] for at in sorted(unsure - set(of.values()))])


def _is_sure(rows: int, drafts: int, *, in_order: bool) -> bool:
    """Tell whether so many rows and drafts of one key leave no choice."""
    return rows == drafts and (in_order or rows == 1)


def _grouped(
    things: Iterable[T], key_of: Callable[[T], Hashable], *, without: Container[int] = ()
) -> dict[Hashable, list[int]]:
    """Return the places of things by their keys; a key of None takes no part, nor do the places ``without``."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for at, thing in enumerate(things):
        key = None if at in without else key_of(thing)
        if key is not None:
            groups[key].append(at)
    return groups


# --- bases -----------------------------------------------------------------------------------------------------------


def match_bases(rows: Sequence[Row], drafts: Sequence[BaseDraft], items: Items) -> MatchResult[BaseDraft]:
    """Tell which base of v1 each row is: by its id, by all that it has, by name and time, or, renamed, by its time."""

    def content(row: Row) -> tuple[Hashable, ...]:
        return tuple(_seen_item(item) for item in items.get(row.get("id"), ()) if item.get("group_id") is None)

    return _matched(
        rows,
        drafts,
        [
            _Rule(lambda row: row.get("id"), lambda draft: draft.id),
            _Rule(
                lambda row: (*_named(row), *_set(row), content(row)),
                lambda draft: (*_draft_named(draft), *_draft_set(draft), tuple(map(_drafted_item, draft.items))),
                in_order=True,
            ),
            _Rule(lambda row: (*_named(row), *_set(row)), lambda draft: (*_draft_named(draft), *_draft_set(draft))),
            _Rule(_named, _draft_named),
            _Rule(
                lambda row: (row.get("created_at"), content(row)) if content(row) else None,
                lambda draft: (draft.created_at, tuple(map(_drafted_item, draft.items))) if draft.items else None,
            ),
            # Renamed, and something of it was deleted.
            _Rule(lambda row: row.get("created_at"), lambda draft: draft.created_at),
            # Of a base without a time v1 knows only the rest; its row has that of the upgrade.
            _Rule(
                lambda row: (row.get("name"), *_set(row), content(row)) if content(row) else None,
                lambda draft: (
                    (replace_surrogates(draft.name), *_draft_set(draft), tuple(map(_drafted_item, draft.items)))
                    if draft.created_at is None and draft.items
                    else None
                ),
            ),
        ],
    )


def _named(row: Row) -> tuple[Hashable, ...]:
    return row.get("name"), row.get("created_at")


def _draft_named(draft: BaseDraft) -> tuple[Hashable, ...]:
    return replace_surrogates(draft.name), draft.created_at


def _set(row: Row) -> tuple[Hashable, ...]:
    return tuple(row.get(key) for key in ("chunk_size", "chunk_overlap", "threshold", "document_count"))


def _draft_set(draft: BaseDraft) -> tuple[Hashable, ...]:
    settings = draft.settings
    return settings.chunk_size, settings.chunk_overlap, settings.threshold, settings.document_count


# --- items -----------------------------------------------------------------------------------------------------------

#: What tells two items of one source and time apart.
_DETAIL = {"file": "relativePath", "url": "url", "note": "content"}


def match_items(rows: Sequence[Row], drafts: Sequence[ItemDraft], names: Mapping[str, str]) -> MatchResult[ItemDraft]:
    """Tell which item of v1 each row of a base is; files of folders are told by :func:`fit_children`.

    ``names`` are the names in ``raw/`` that a migration gives the files, by the drafts' ids.
    """

    def detail(draft: ItemDraft) -> Hashable:
        return _text(names.get(draft.id, draft.data.get(_DETAIL.get(draft.type, ""))))

    return _matched(
        [row for row in rows if row.get("group_id") is None and _is_usable(row)],
        drafts,
        [
            _Rule(lambda row: row.get("id"), lambda draft: draft.id),
            _Rule(
                lambda row: (_seen_item(row), _detail(row, parse_item_data(row))),
                lambda draft: (_drafted_item(draft), detail(draft)),
                in_order=True,
            ),
            _Rule(_seen_item, _drafted_item),
            _Rule(
                lambda row: (*_seen_item(row)[:2], _detail(row, parse_item_data(row))),
                lambda draft: (*_drafted_item(draft)[:2], detail(draft)) if draft.created_at is None else None,
            ),
        ],
    )


def _is_usable(row: Row) -> bool:
    return isinstance(row.get("id"), str) and row.get("status") != "deleting"


def _seen_item(row: Row) -> tuple[Hashable, ...]:
    return row.get("type"), _source(row), row.get("created_at")


def _source(row: Row) -> str | None:
    return _text(parse_item_data(row).get("source"))


def _drafted_item(draft: ItemDraft) -> tuple[Hashable, ...]:
    return draft.type, replace_surrogates(draft.data["source"]), draft.created_at


def _detail(row: Row, data: dict[str, Any]) -> Hashable:
    return _text(data.get(_DETAIL.get(str(row.get("type")), "")))


def _text(value: Any) -> str | None:
    return replace_surrogates(value) if isinstance(value, str) else None


# --- files of folders ------------------------------------------------------------------------------------------------


def match_folder_files(
    draft: BaseDraft,
    survey: VectorSurvey,
    rows: Sequence[Row],
    is_open: Callable[[str], bool],
    texts: Collection[str],
) -> tuple[BaseDraft, dict[str, Row], list[Row]]:
    """Fit the folders of a base to the files that the profile lists of them.

    Of a folder that lists some, or that is not ``is_open`` (by its id), files that are not listed were taken out by
    somebody: they do not come back. An entry that comes again was a row of its own once: its one child is the row that
    has a text (``texts`` are the ids of those), else the last one.

    Returns:
        The base without them; the rows of listed files by the ids that planning derives for these; and the rows that
        may be any of several.
    """
    expanded, listed = expand_folders(draft, survey), _listed(rows)
    items: list[ItemDraft] = []
    known: dict[str, Row] = {}
    unsure: list[Row] = []
    for item in draft.items:
        own = listed.get(item.id, [])
        if not item.is_to_expand or (not own and is_open(item.id)):
            items.append(item)
            continue
        children = expanded.get(item.id, ())
        matched = _matched(_one_each(item, survey, own, texts), children, [_SAME_ID, _SAME_SOURCE])
        kept = {id(child): row for row, child in matched.pairs}
        twins = _twins(item, survey, own)
        fitted = structs.replace(item, entries=tuple(_entries(item, children, kept, twins)))
        items.append(fitted)
        again = expand_folders(replace(draft, items=(fitted,)), survey).get(item.id, ())
        known.update(zip((child.id for child in again), kept.values(), strict=True))
        known.update((row["id"], row) for row in twins.values())
        unsure += [row for row in matched.unsure if row["id"] not in known]
    return replace(draft, items=tuple(items)), known, unsure


def _listed(rows: Sequence[Row]) -> dict[Any, list[Row]]:
    """Return the rows of files of folders, by the folders' ids."""
    listed: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        if row.get("group_id") is not None and _is_usable(row):
            listed[row["group_id"]].append(row)
    return listed


def _one_each(item: ItemDraft, survey: VectorSurvey, listed: list[Row], texts: Collection[str]) -> list[Row]:
    """Return the rows of files that a folder lists, of those of one entry that came again just one."""
    entries = _entries_by_source(item, survey)
    superseded: set[int] = set()
    for source, places in _grouped(listed, _source).items():
        loaders = entries.get(source, [])
        # Of a source that one loader alone has, every row is its.
        each = loaders[:1] * len(places) if len(set(loaders)) == 1 else loaders
        if len(loaders) > len(set(loaders)) and len(each) == len(places):
            pairs = sorted(zip(each, places, strict=True), key=lambda pair: _weight(listed[pair[1]], texts))
            # Of each entry the last one, which weighs most, stays.
            superseded.update(set(places).difference(dict(pairs).values()))
    return [row for at, row in enumerate(listed) if at not in superseded]


def _entries_by_source(item: ItemDraft, survey: VectorSurvey) -> dict[Hashable, list[str]]:
    entries: dict[Hashable, list[str]] = defaultdict(list)
    for entry in item.entries:
        found = survey.loaders.get(entry)
        if found is not None and found.source is not None:
            entries[replace_surrogates(found.source)].append(entry)
    return entries


def _weight(row: Row, texts: Collection[str]) -> tuple[bool, bool]:
    return row["id"] in texts, row.get("status") == "completed"


def _twins(item: ItemDraft, survey: VectorSurvey, listed: list[Row]) -> dict[str, Row]:
    """Return the rows of files that were given those of their twin: their ids are regraft's own, whoever listed them.

    By their entries; an entry that comes again is not looked for.
    """
    ids = {row["id"]: row for row in listed}
    made = {entry: identity.child_id(item.id, entry, 0, item.created_at) for entry in item.entries}
    return {entry: ids[child] for entry, child in made.items() if entry not in survey.loaders and child in ids}


_SAME_ID: _Rule[FolderFile] = _Rule(lambda row: row.get("id"), lambda child: child.id)
_SAME_SOURCE: _Rule[FolderFile] = _Rule(_source, lambda child: replace_surrogates(child.source), in_order=True)


def _entries(
    item: ItemDraft, children: Sequence[FolderFile], kept: dict[int, Row], twins: dict[str, Row]
) -> Iterable[str]:
    """Return the entries of a folder that stand for files that are listed, in their order."""
    by_loader, told = {child.loader_id: child for child in children}, set(twins)
    for entry in dict.fromkeys(item.entries):
        if entry in by_loader:
            if id(by_loader[entry]) in kept:
                yield entry
        elif entry in told:
            told.discard(entry)
            yield entry
