"""Whose rows a loader's are: standalone items before children of folders before folders that stayed one item."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from migrators.pipeline.drafts import BaseDraft, ItemDraft
from regraft import identity
from regraft.formats.vector_survey import Survey
from regraft.language import tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.text import counted


class Child(msgspec.Struct):
    """One file of an expanded folder. ``taken_by`` is the id of the item that its loader's rows went to instead."""

    id: str
    loader_id: str
    source: str
    taken_by: str = ""


def expand(
    draft: BaseDraft,
    survey: Survey,
    paths: Mapping[str, str] | None = None,
    restored: Mapping[str, str] | None = None,
) -> dict[str, tuple[Child, ...]]:
    """Return the children of every completed folder that has any, by the folder's id.

    A child stands for an entry with at least one row with a source, whatever that row's vector, and for an entry that
    comes again only once. ``paths`` are real paths by loader id, where v1 has only a snippet of the text. ``restored``
    are the paths of entries without a row that get the rows of another file; what they are does not hang on other
    children, nor other children on them.
    """
    expanded = {}
    for item in draft.folders:
        if item.is_to_expand:
            children = tuple(_children(item, survey, paths or {}, restored or {}))
            if children:
                expanded[item.id] = children
    return expanded


def _children(
    item: ItemDraft, survey: Survey, paths: Mapping[str, str], restored: Mapping[str, str]
) -> Iterator[Child]:
    place = 0
    seen: set[str] = set()
    for loader in item.entries:
        rows, is_first = survey.loaders.get(loader), loader not in seen
        seen.add(loader)
        if rows is not None and rows.source is not None:
            if is_first:
                child_id = identity.child_id(item.id, loader, place, item.created_at)
                yield Child(child_id, loader, paths.get(loader, rows.source))
            # An entry that comes again counts, so that the ids of those behind it are what they always were.
            place += 1
        elif is_first and rows is None and loader in restored:
            child_id = identity.child_id(item.id, loader, 0, item.created_at)
            yield Child(child_id, loader, restored[loader])


class Owners:
    """The owner of every loader id of a base, by the owner's item id."""

    def __init__(self, draft: BaseDraft, expanded: dict[str, tuple[Child, ...]]) -> None:
        self.notices: list[Notice] = []
        #: Folders that stayed one item.
        self.containers = {item.id for item in draft.folders if item.id not in expanded}
        #: By loader id: the child that owns its rows.
        self.children: dict[str, Child] = {}
        self._base = draft.legacy_id
        self._owners: dict[str, str] = {}
        #: By loader id: why the item is skipped that the rows are of.
        self._skipped = {loader: item.reason for item in draft.skipped_items for loader in item.loader_ids}
        standalone = self._standalone(draft)
        self._of_children(draft, expanded, standalone)
        for item in draft.folders:
            if item.id in self.containers:
                for loader in item.loader_ids:
                    if loader not in standalone and loader not in self.children:
                        self._owners[loader] = item.id

    def owner(self, loader_id: str | None) -> str | None:
        """Return the id of the item that owns a loader's rows."""
        return None if loader_id is None else self._owners.get(loader_id)

    def skipped_reason(self, loader_id: str | None) -> str | None:
        """Return why the item of a loader's rows is skipped; None if no skipped item has the loader."""
        return None if loader_id is None else self._skipped.get(loader_id)

    def _standalone(self, draft: BaseDraft) -> dict[str, str]:
        owners: dict[str, str] = {}
        losers: dict[str, None] = {}
        for item in draft.items:
            if item.type == "directory":
                continue
            for loader in item.loader_ids:
                before = owners.get(loader)
                if before is not None and before != item.id:
                    losers[before] = None
                owners[loader] = item.id
        self._owners.update(owners)
        overruled = {item.id: item for item in draft.items if item.id in losers} if losers else {}
        for item in map(overruled.__getitem__, losers):
            self._note(notices.LOADER_SHARED, tr("a later item has the same loader and gets its rows"), item, 1)
        return owners

    def _of_children(
        self, draft: BaseDraft, expanded: dict[str, tuple[Child, ...]], standalone: dict[str, str]
    ) -> None:
        for children in expanded.values():
            for child in children:
                if child.loader_id in standalone:
                    child.taken_by = standalone[child.loader_id]
                    continue
                before = self.children.get(child.loader_id)
                if before is not None:
                    before.taken_by = child.id
                self.children[child.loader_id] = child
        self._owners.update({loader: child.id for loader, child in self.children.items()})
        for item in draft.folders:
            self._note_conflicts(item, expanded.get(item.id, ()), standalone)

    def _note_conflicts(self, folder: ItemDraft, children: Sequence[Child], standalone: dict[str, str]) -> None:
        conflicts = sum(child.loader_id in standalone for child in children)
        shared = sum(bool(child.taken_by) for child in children) - conflicts
        if conflicts:
            said = tr(
                "{files} of the folder also added alone; the rows stay with those items",
                files=counted(conflicts, "file"),
            )
            self._note(notices.CHILD_CONFLICT, said, folder, conflicts)
        if shared:
            said = tr("{files} of the folder listed again later; the rows go there", files=counted(shared, "file"))
            self._note(notices.CHILD_SHARED, said, folder, shared)

    def _note(self, code: str, message: str, item: ItemDraft, count: int) -> None:
        self.notices.append(Notice(code=code, message=message, base=self._base, item=item.legacy_id, count=count))
