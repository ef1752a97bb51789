"""The books of a base: which of its rows are carried, which without a vector, and why the others are not.

Rules: ``docs/rules.md``, "Rows" and "Texts without a vector".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from migrators.pipeline.source import BaseDraft, ItemDraft
from regraft import identity
from regraft.formats import vector_survey
from regraft.formats.cherry_v2.index import BODY_SEPARATOR
from regraft.formats.vector_survey import LoaderRows, RowTally, VectorSurvey
from regraft.language import format_count, tr
from regraft.report import notices
from regraft.report.notices import Notice

# Whose rows a loader's are: standalone items before children of folders before folders that stayed one item.


class FolderFile(msgspec.Struct):
    """One file of an expanded folder. ``taken_by`` is the id of the item that its loader's rows went to instead."""

    id: str
    loader_id: str
    source: str
    taken_by: str = ""


def expand_folders(
    draft: BaseDraft,
    survey: VectorSurvey,
    paths: Mapping[str, str] | None = None,
    restored: Mapping[str, str] | None = None,
) -> dict[str, tuple[FolderFile, ...]]:
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
    item: ItemDraft, survey: VectorSurvey, paths: Mapping[str, str], restored: Mapping[str, str]
) -> Iterator[FolderFile]:
    place = 0
    seen: set[str] = set()
    for loader in item.entries:
        rows, is_first = survey.loaders.get(loader), loader not in seen
        seen.add(loader)
        if rows is not None and rows.source is not None:
            if is_first:
                child_id = identity.child_id(item.id, loader, place, item.created_at)
                yield FolderFile(child_id, loader, paths.get(loader, rows.source))
            # An entry that comes again counts, so that the ids of those behind it are what they always were.
            place += 1
        elif is_first and rows is None and loader in restored:
            child_id = identity.child_id(item.id, loader, 0, item.created_at)
            yield FolderFile(child_id, loader, restored[loader])


class LoaderOwners:
    """The owner of every loader id of a base, by the owner's item id."""

    def __init__(self, draft: BaseDraft, expanded: dict[str, tuple[FolderFile, ...]]) -> None:
        self.notices: list[Notice] = []
        #: Folders that stayed one item.
        self.containers = {item.id for item in draft.folders if item.id not in expanded}
        #: By loader id: the child that owns its rows.
        self.children: dict[str, FolderFile] = {}
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
        self, draft: BaseDraft, expanded: dict[str, tuple[FolderFile, ...]], standalone: dict[str, str]
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

    def _note_conflicts(self, folder: ItemDraft, children: Sequence[FolderFile], standalone: dict[str, str]) -> None:
        conflicts = sum(child.loader_id in standalone for child in children)
        shared = sum(bool(child.taken_by) for child in children) - conflicts
        if conflicts:
            said = tr(
                "{files} of the folder also added alone; the rows stay with those items",
                files=format_count(conflicts, "file"),
            )
            self._note(notices.CHILD_CONFLICT, said, folder, conflicts)
        if shared:
            said = tr("{files} of the folder listed again later; the rows go there", files=format_count(shared, "file"))
            self._note(notices.CHILD_SHARED, said, folder, shared)

    def _note(self, code: str, message: str, item: ItemDraft, count: int) -> None:
        self.notices.append(Notice(code=code, message=message, base=self._base, item=item.legacy_id, count=count))


#: Examples named for each reason why rows are not carried.
EXAMPLES = 3
#: Why a row has no vector that could be carried; its text can come along by itself.
REASONS_THAT_KEEP_TEXT = frozenset(
    {
        notices.MISSING_MODEL,
        notices.MISSING_STORE,
        notices.MISSING_PAYLOAD,
        notices.UNSUPPORTED_ENCODING,
        notices.DIMENSION_MISMATCH,
        notices.OTHER_EMBEDDER,
        notices.NON_FINITE,
    }
)


class RowsByReason(msgspec.Struct):
    """Rows by reason, with a few of them as examples."""

    rows: Counter[str] = msgspec.field(default_factory=Counter)
    examples: dict[str, list[str]] = msgspec.field(default_factory=dict)

    def add(self, reason: str, tally: RowTally) -> None:
        """Count the rows of a tally."""
        if tally.count:
            self.rows[reason] += tally.count
            examples = self.examples.setdefault(reason, [])
            examples.extend(tally.samples[: EXAMPLES - len(examples)])


class MigratedRows(msgspec.Struct):
    """The rows of one loader that are carried: ``whole`` with their vector, ``bare`` without one, and why."""

    loader: LoaderRows
    whole: RowTally | None = None
    bare: list[tuple[str, RowTally]] = msgspec.field(default_factory=list)

    @property
    def tallies(self) -> list[RowTally]:
        """Return all that is carried."""
        return [*([self.whole] if self.whole else ()), *(tally for _, tally in self.bare)]

    @property
    def rows(self) -> int:
        """Return how many rows are carried."""
        return sum(tally.count for tally in self.tallies)

    @property
    def digest(self) -> int:
        """Digest of the rows as carrying reads them: those without a vector count with their texts alone."""
        whole = self.whole.digest if self.whole else 0
        return whole + sum(tally.text_digest for _, tally in self.bare)

    @property
    def first_rowid(self) -> int:
        """Return the first row that is carried."""
        return min(tally.first_rowid for tally in self.tallies)

    @property
    def body_bytes(self) -> int:
        """Return the bytes of the bodies that are carried."""
        return sum(tally.body_bytes for tally in self.tallies)


class MigrationPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What of a base is carried."""

    #: Why it fails, so that no vector is carried.
    error: str | None
    #: The length of its vectors.
    vector_bytes: int
    #: Whether texts come along whose vector cannot.
    carry_text: bool
    #: The largest text of an item, in bytes.
    max_content: int


class RowDecisions:
    """Every row of a survey, booked once."""

    def __init__(self, survey: VectorSurvey, owners: LoaderOwners, terms: MigrationPolicy) -> None:
        self._owners = owners
        self._terms = terms
        #: What is carried, by the id of the item.
        self.carried: dict[str, list[MigratedRows]] = {}
        self.skipped = RowsByReason()
        #: Carried without a vector, by reason.
        self.bare = RowsByReason()
        self.degenerate = 0
        #: Items whose text cannot be stored, with their rows.
        self.too_large: dict[str, int] = {}
        for loader, rows in survey.loaders.items():
            self._book(loader, rows)
        self._drop_too_large()
        for share in (share for shares in self.carried.values() for share in shares):
            self.degenerate += share.whole.degenerate if share.whole else 0
            for reason, tally in share.bare:
                self.bare.add(reason, tally)

    def _book(self, loader: str | None, rows: LoaderRows) -> None:
        owner, share = self._owners.owner(loader), MigratedRows(rows)
        unowned = self._unowned(loader, owner)
        for reason, tally in rows.refused.items():
            self._book_unusable(reason, tally, share, has_owner=unowned is None and reason in REASONS_THAT_KEEP_TEXT)
        for kind, tally in rows.kinds.items():
            unusable = self._terms.error or unowned or self._unusable(kind)
            if unusable is None:
                share.whole = tally
            else:
                self._book_unusable(unusable, tally, share, has_owner=unowned is None)
        if share.tallies and owner is not None:
            self.carried.setdefault(owner, []).append(share)

    def _book_unusable(self, reason: str, tally: RowTally, share: MigratedRows, *, has_owner: bool) -> None:
        """Book rows whose vector is not carried: where texts are, those of an item come along without one."""
        if not self._terms.carry_text or not has_owner:
            self.skipped.add(reason, tally)
            return
        # Without a text there is nothing that a vector could be made of.
        self.skipped.add(reason, tally.without_text)
        if tally.with_text.count:
            share.bare.append((reason, tally.with_text))

    def _unowned(self, loader: str | None, owner: str | None) -> str | None:
        if owner is None:
            return self._owners.skipped_reason(loader) or notices.UNMAPPED_LOADER
        return notices.NON_INDEXABLE if owner in self._owners.containers else None

    def _unusable(self, kind: int) -> str | None:
        if kind == vector_survey.MISSING:
            return notices.MISSING_PAYLOAD
        if kind == vector_survey.UNSUPPORTED:
            return notices.UNSUPPORTED_ENCODING
        if abs(kind) != self._terms.vector_bytes:
            return notices.DIMENSION_MISMATCH
        return notices.NON_FINITE if kind < 0 else None

    def _drop_too_large(self) -> None:
        limit = self._terms.max_content
        for owner in [owner for owner, shares in self.carried.items() if self._content_bytes(shares) > limit]:
            shares = self.carried.pop(owner)
            self.too_large[owner] = sum(share.rows for share in shares)
            for tally in (tally for share in shares for tally in share.tallies):
                self.skipped.add(notices.CONTENT_TOO_LARGE, tally)

    @staticmethod
    def _content_bytes(shares: list[MigratedRows]) -> int:
        separators = len(BODY_SEPARATOR) * (sum(share.rows for share in shares) - 1)
        return sum(share.body_bytes for share in shares) + separators
