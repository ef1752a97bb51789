"""The second half of the plan: a drafted base and what its vector file holds → what becomes of every item and row.

Pure, like the draft. What a dry run prints is this very plan. Rules: ``docs/rules.md``, "Folders", "Rows" and
"Duplicates".
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from migrators.pipeline.accounting import (
    EXAMPLES,
    REASONS_THAT_KEEP_TEXT,
    FolderFile,
    LoaderOwners,
    MigratedRows,
    MigrationPolicy,
    RowDecisions,
    expand_folders,
)
from migrators.pipeline.losses import (
    DuplicateRules,
    MissingChunks,
    RestoredDuplicate,
    SalvageLosses,
    count_missing_chunks,
    duplicate_notice,
    files_without_rows,
    files_without_rows_notices,
    find_losses,
    join_names,
    loss_notices,
    missing_chunk_notices,
    name_in_folder,
)
from migrators.pipeline.packed import Packed
from migrators.pipeline.source import BaseDraft, FoundOnDisk, Hints, ItemDraft, Upload
from regraft.disk.file_paths import ChildPaths, FolderPrefixes, FreeNames, fold_name
from regraft.formats.vector_survey import LoaderRows, SalvageTally, StoreProblem, VectorSurvey
from regraft.language import format_count, join_list, tr
from regraft.report import notices
from regraft.report.notices import Notice

# What a plan says: what becomes of a base, its items and its rows. Made by :mod:`.plan`, worked off by the rest.


class ItemPlan(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One row of ``knowledge_item``, but for what only carrying knows (snapshot paths)."""

    id: str
    legacy_id: str | None
    group_id: str | None
    type: str
    data: dict[str, str]
    status: str
    error: str | None
    created_at: int | None
    updated_at: int | None
    upload: Upload | None = None


class MaterialPlan(msgspec.Struct, frozen=True):
    """The rows that become one material.

    Attributes:
        item: an index into the plan's items.
        runs: ranges of rowids; rows in them that are not migrated have no vector of the base's length.
        rows: how many rows are migrated.
        body_bytes: the length of their texts in bytes.
        digest: over the rows that the survey found, which migrating has to read again.
        is_finite: no vector in the ranges has a NaN or an infinity, so that none has to be looked at again.
    """

    item: int
    runs: tuple[tuple[int, int], ...]
    rows: int
    body_bytes: int
    digest: int
    is_finite: bool = False


class Rows(msgspec.Struct, frozen=True):
    """The books of a base: every row is carried or skipped for a reason."""

    read: int = 0
    carried: int = 0
    skipped: dict[str, int] = msgspec.field(default_factory=dict)
    #: Those of the carried ones whose text came along alone.
    without_vector: int = 0
    #: Chunks that v1 itself never stored; they are in no row.
    v1_deduplicated: int = 0
    #: Units given to files that have no row of their own, after another file with the same bytes; outside the books.
    restored_duplicate: int = 0

    @property
    def balanced(self) -> bool:
        """Tell whether the books balance."""
        return self.read == self.carried + sum(self.skipped.values())


class FolderCounts(msgspec.Struct, frozen=True):
    """What became of a base's folders: expanded ones, their children, and those that stayed one failed item."""

    expanded: int = 0
    children: int = 0
    tombstones: int = 0


class BasePlan(msgspec.Struct, frozen=True):
    """What becomes of one base. ``error`` is None for a completed one."""

    draft: BaseDraft
    error: str | None
    dimensions: int | None
    items: Sequence[ItemPlan]
    materials: tuple[MaterialPlan, ...]
    rows: Rows
    directories: FolderCounts
    #: By loader id: the id of the child that owns its rows.
    children: dict[str, str]
    notices: tuple[Notice, ...]
    #: Keys of the names in ``raw/`` that are taken before any snapshot has one.
    taken_names: frozenset[str] = frozenset()
    #: What other files told of it.
    found: FoundOnDisk = msgspec.field(default_factory=FoundOnDisk)
    #: Whether texts come along whose vector cannot.
    carry_text: bool = False
    #: What is left of its vector file, where that is damaged.
    salvage: SalvageTally | None = None
    #: Of a salvaged base: how many of its items have all of their rows, and how many lost some.
    whole_items: int = 0
    damaged_items: int = 0

    @property
    def has_index(self) -> bool:
        """Tell whether the base gets an index: a failed one only where there are texts to carry."""
        return self.error is None or bool(self.materials)

    @property
    def vector_bytes(self) -> int:
        """Return the length of a vector in bytes; a failed base gets none."""
        return 4 * (self.dimensions or 0) if self.error is None else 0

    @property
    def units(self) -> int:
        """Return how many units the index will have: rows carried, and those given to duplicates."""
        return self.rows.carried + self.rows.restored_duplicate

    @property
    def body_bytes(self) -> int:
        """Return the bytes of all bodies to be written."""
        return sum(material.body_bytes for material in self.materials)


# Items as they are planned: from a draft, or a file of a folder, and what a person calls them.


def plan_item(draft: ItemDraft, path: str | None, *, failed: bool) -> ItemPlan:
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


def plan_folder_file(container: ItemDraft, child: FolderFile, path: str, *, failed: bool) -> ItemPlan:
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


def item_names(items: Packed[ItemPlan], wanted: Container[str]) -> Iterator[tuple[str, str, str | None]]:
    """Yield for some items their id, what a person calls them, and the id of v1 that they go by."""
    folders = {item.id: item for item in items if item.type == "directory"}
    for item in items:
        if item.id in wanted:
            folder = folders.get(item.group_id or "")
            name = name_in_folder(folder.data["source"], item.data["source"]) if folder else _called(item)
            yield item.id, name, folder.legacy_id if folder else item.legacy_id


def _called(item: ItemPlan) -> str:
    """Return what a person calls an item that is in no folder."""
    return item.data["relativePath"] if item.type == "file" else item.data.get("url", item.data["source"])


# The paths below ``raw/`` of one base: prefixes of its folders, paths of their files, names of its uploads.
#
# Rules: ``docs/rules.md``, "Folders" and "Names". They are handed out together, for an upload yields to every prefix.


class TakenPaths(msgspec.Struct, frozen=True):
    """Paths of a base that are there already: they stay, and what is new goes beside them."""

    #: Prefixes that folders have, by the folder's id.
    prefixes: Mapping[str, str] = msgspec.field(default_factory=dict)
    #: Names in the root of ``raw/``.
    names: frozenset[str] = frozenset()
    #: Paths of files that folders have, with their prefix, by the folder's id.
    children: Mapping[str, Iterable[str]] = msgspec.field(default_factory=dict)


class RawLayout(msgspec.Struct, frozen=True):
    """Who has which path below ``raw/``."""

    #: By the ids of folders that are expanded.
    prefixes: dict[str, str]
    #: By the ids of their files.
    children: dict[str, str]
    #: How many files of a folder lie elsewhere, as far as their sources tell, by the folder's id.
    outside: dict[str, int]
    #: Names of uploads, by the ids of their items.
    files: dict[str, str]
    #: How many uploads have another name than they asked for.
    renamed: int
    #: Keys of all names in the root of ``raw/``, for the snapshots that come later.
    names: frozenset[str]


def assign_raw_paths(
    draft: BaseDraft, expanded: Mapping[str, tuple[FolderFile, ...]], taken: TakenPaths | None = None
) -> RawLayout:
    """Give the folders, their files and the uploads of a base their paths, in the order of the items."""
    taken = taken or TakenPaths()
    folders = [item for item in draft.folders if item.id in expanded]
    prefixes = _prefixes(folders, taken)
    children: dict[str, str] = {}
    outside: dict[str, int] = {}
    for folder in folders:
        paths = ChildPaths(folder.data["source"], prefixes[folder.id], taken.children.get(folder.id, ()))
        children.update({child.id: paths.take(child.source) for child in expanded[folder.id]})
        outside[folder.id] = paths.outside
    roots = {*prefixes.values(), *taken.prefixes.values(), *taken.names}
    names = FreeNames(
        {*draft.taken_names, *map(fold_name, roots)}, reserve_processed=draft.file_processor_id is not None
    )
    wanted = {item.id: item.file_name for item in draft.items if item.file_name}
    files = {item_id: names.take(name) for item_id, name in wanted.items()}
    return RawLayout(
        prefixes=prefixes,
        children=children,
        outside=outside,
        files=files,
        renamed=sum(name != files[item_id] for item_id, name in wanted.items()),
        names=names.taken(),
    )


def _prefixes(folders: Iterable[ItemDraft], taken: TakenPaths) -> dict[str, str]:
    free = FolderPrefixes({*taken.names, *taken.prefixes.values()})
    return {
        folder.id: taken.prefixes[folder.id] if folder.id in taken.prefixes else free.take(folder.data["source"])
        for folder in folders
    }


logger = logging.getLogger(__name__)

__all__ = ["BasePlan", "ItemPlan", "MaterialPlan", "Rows", "TakenPaths", "plan_base"]

#: SQLite's limit for one row is 1,000,000,000 bytes; a content text may take all of it but for its hash and time.
MAX_CONTENT_BYTES = 1_000_000_000 - 1_000
#: The error of an item whose text is larger.
TOO_LARGE_TEXT = "The text of this item is over SQLite's limit of 1 GB."


def plan_base(
    draft: BaseDraft,
    found: VectorSurvey | StoreProblem,
    hints: Hints | None = None,
    *,
    carry_text: bool = False,
    taken: TakenPaths | None = None,
) -> BasePlan:
    """Plan one base.

    Args:
        draft: what the state tells of it.
        found: its vector file's survey, or why there is none.
        hints: what other files tell.
        carry_text: whether texts come along whose vector cannot.
        taken: paths below ``raw/`` that are there already.
    """
    if isinstance(found, StoreProblem):
        survey, problem, vector_bytes, unreadable = VectorSurvey(), found, None, True
    else:
        survey, problem, unreadable = found, StoreProblem(tr("holds no usable vector")), False
        vector_bytes = _vector_bytes(draft, found)
    terms = MigrationPolicy(
        error=_error(draft, vector_bytes),
        vector_bytes=vector_bytes or 0,
        carry_text=carry_text and not unreadable,
        max_content=MAX_CONTENT_BYTES,
    )
    logger.info(
        "base %s: %s items, %s rows in its vector file, %s bytes to a vector, error: %s",
        *(draft.id, len(draft.items), survey.rows, vector_bytes, terms.error),
    )
    planner = _Planner(draft, survey, terms, problem, taken)
    return planner.plan(hints or Hints(), unreadable=unreadable)


def _vector_bytes(draft: BaseDraft, survey: VectorSurvey) -> int | None:
    """Return the length of a base's vectors in bytes, None where there is no usable one."""
    if not survey.rows and draft.dimensions_if_empty is not None:
        return 4 * draft.dimensions_if_empty
    return survey.vector_bytes


def _error(draft: BaseDraft, vector_bytes: int | None) -> str | None:
    """Return why a base fails, None for one that is completed."""
    if draft.embedding.id is None:
        return notices.MISSING_MODEL
    return notices.MISSING_STORE if vector_bytes is None else None


class _Planner:
    """Works one base out, step by step; used once."""

    def __init__(
        self,
        draft: BaseDraft,
        survey: VectorSurvey,
        terms: MigrationPolicy,
        problem: StoreProblem,
        taken: TakenPaths | None,
    ) -> None:
        self._draft = draft
        self._taken = taken
        self._error = terms.error
        self._survey = survey
        self._terms = terms
        #: Whether rows are carried at all: those of a failed base only for their texts.
        self._carries = terms.error is None or terms.carry_text
        self._problem = problem
        self._said: list[Notice] = []
        self._unreadable = False
        self._hints = Hints()
        #: Files that get the rows of their twin, by loader id.
        self._restored: dict[str, RestoredDuplicate] = {}

    def plan(self, hints: Hints, *, unreadable: bool) -> BasePlan:
        draft = self._draft
        self._unreadable, self._hints = unreadable, hints
        sources = hints.paths
        expanded = expand_folders(draft, self._survey, sources) if self._carries else {}
        owners = LoaderOwners(draft, expanded)
        self._books = RowDecisions(self._survey, owners, self._terms)
        carried = self._books.carried
        found = self._restorable(owners, carried)
        if found and hints.restore_twins:
            # Rows keep the owners that they have: the children that are new have none.
            self._restored = found
            paths = {loader: one.twin.path for loader, one in found.items() if one.twin.path}
            expanded = expand_folders(draft, self._survey, sources, paths)
            owners = LoaderOwners(draft, expanded)
        self._layout = assign_raw_paths(draft, expanded, self._taken)
        filled = {*carried, *self._restored_items(owners)}
        items = self._items(expanded, filled)
        index = {item.id: position for position, item in enumerate(items) if item.id in filled}
        own, copies = self._materials(carried, index), self._copies(owners, carried, index)
        missing = self._missing(owners, items)
        rows = self._rows(own, copies, missing)
        self._say(owners, rows, missing)
        lost = self._say_losses(owners, items)
        self._say_duplicates(owners, found)
        return BasePlan(
            draft=draft,
            error=self._error,
            dimensions=self._dimensions(),
            items=items,
            materials=(*own, *copies),
            rows=rows,
            directories=self._directories(owners, expanded),
            children={loader: child.id for loader, child in owners.children.items()},
            notices=(*draft.notices, *hints.notices, *self._said),
            taken_names=self._layout.names,
            found=self._found(found),
            carry_text=self._terms.carry_text,
            salvage=self._survey.salvage or self._problem.salvage,
            whole_items=lost.whole,
            damaged_items=lost.damaged,
        )

    def _directories(self, owners: LoaderOwners, expanded: dict[str, tuple[FolderFile, ...]]) -> FolderCounts:
        tombstones = [item for item in self._draft.folders if item.is_to_expand and item.id in owners.containers]
        return FolderCounts(len(expanded), sum(map(len, expanded.values())), len(tombstones))

    def _rows(self, own: list[MaterialPlan], copies: list[MaterialPlan], missing: list[MissingChunks]) -> Rows:
        return Rows(
            read=self._survey.rows,
            carried=sum(material.rows for material in own),
            skipped=dict(self._books.skipped.rows),
            without_vector=self._books.bare.rows.total(),
            v1_deduplicated=sum(one.chunks for one in missing),
            restored_duplicate=sum(material.rows for material in copies),
        )

    def _dimensions(self) -> int | None:
        if self._error is None:
            return self._terms.vector_bytes // 4
        if self._error == notices.MISSING_MODEL:
            return self._draft.stated_dimensions
        # Of a file that lacks a column but has that of the vectors, their length is known.
        return None if self._problem.vector_bytes is None else self._problem.vector_bytes // 4

    # --- rows ------------------------------------------------------------------------------------------------------

    def _materials(self, carried: dict[str, list[MigratedRows]], index: dict[str, int]) -> list[MaterialPlan]:
        """Return a material for every item with rows to carry, in the order of their first such rows."""
        ordered = sorted(carried.items(), key=lambda entry: min(share.first_rowid for share in entry[1]))
        return [self._material(index[owner], shares) for owner, shares in ordered]

    def _material(self, item: int, shares: list[MigratedRows]) -> MaterialPlan:
        return MaterialPlan(
            item=item,
            runs=tuple(sorted(run for share in shares for run in _runs(share.loader))),
            rows=sum(share.rows for share in shares),
            body_bytes=sum(share.body_bytes for share in shares),
            digest=sum(share.digest for share in shares),
            is_finite=not any(-self._terms.vector_bytes in share.loader.kinds for share in shares),
        )

    # --- duplicates ------------------------------------------------------------------------------------------------

    def _restorable(self, owners: LoaderOwners, carried: dict[str, list[MigratedRows]]) -> dict[str, RestoredDuplicate]:
        """Return the files without rows whose twin is a file with rows to carry, by loader id."""
        found: dict[str, RestoredDuplicate] = {}
        if not self._hints.twins:
            return found
        judge = DuplicateRules(self._draft, owners)
        for twin in self._hints.twins:
            item, owner = judge.taker(twin), judge.giver(twin)
            if item is None or owner is None or twin.loader_id in self._survey.loaders:
                continue
            if owner in carried and item.id not in carried:
                rows, is_partial = _part_of(carried[owner])
                one = RestoredDuplicate(twin=twin, item=item, owner=owner, rows=rows, partial=is_partial)
                found.setdefault(twin.loader_id, one)
        return found

    def _found(self, restorable: dict[str, RestoredDuplicate]) -> FoundOnDisk:
        """Return what a later run needs of the hints, should it find less."""
        entries = {entry for item in self._draft.folders for entry in item.entries}
        paths = {loader: path for loader, path in self._hints.paths.items() if loader in entries}
        return FoundOnDisk(paths, tuple(one.twin for one in restorable.values()))

    def _restored_items(self, owners: LoaderOwners) -> dict[str, RestoredDuplicate]:
        """Return what is restored by the id of the item that gets it."""
        claimed = ((owners.owner(loader), one) for loader, one in self._restored.items())
        return {owner: one for owner, one in claimed if owner is not None}

    def _copies(
        self, owners: LoaderOwners, carried: dict[str, list[MigratedRows]], index: dict[str, int]
    ) -> list[MaterialPlan]:
        """Return a material for every restored file, in item order: the rows of its twin once more."""
        restored = self._restored_items(owners)
        return [
            self._material(index[owner], carried[restored[owner].owner])
            for owner in sorted(restored, key=index.__getitem__)
        ]

    def _missing(self, owners: LoaderOwners, items: Packed[ItemPlan]) -> list[MissingChunks]:
        """Return the items of which v1 did not store some chunks, in item order."""
        chunks: Counter[str] = Counter()
        rows: Counter[str] = Counter()
        tally = self._survey.salvage
        if tally is not None and not tally.is_exact:
            # What is missing may be lost.
            return []
        for loader, found in self._survey.loaders.items():
            owner = owners.owner(loader)
            if owner is not None:
                chunks[owner] += count_missing_chunks(found)
                rows[owner] += found.rows
        return [
            MissingChunks(name=name, legacy_id=legacy_id, chunks=chunks[item], rows=rows[item])
            for item, name, legacy_id in item_names(items, +chunks)
        ]

    # --- items -----------------------------------------------------------------------------------------------------

    def _items(self, expanded: dict[str, tuple[FolderFile, ...]], filled: set[str]) -> Packed[ItemPlan]:
        """Return the items in v1's order, children right after their container.

        ``filled`` are the ids of items with a material.
        """
        items = Packed(ItemPlan)
        for draft in self._draft.items:
            children = expanded.get(draft.id)
            if children is None:
                items.append(self._single(draft))
                continue
            lost = [child for child in children if child.id not in filled]
            paths = self._layout.children
            items.append(plan_item(draft, self._layout.prefixes[draft.id], failed=len(lost) == len(children)))
            items.extend(plan_folder_file(draft, one, paths[one.id], failed=one.id not in filled) for one in children)
            self._say_lost(draft, children, lost)
            self._say_outside(draft)
        return items

    def _single(self, draft: ItemDraft) -> ItemPlan:
        path = self._layout.files.get(draft.id)
        if draft.id in self._books.too_large:
            self._say_too_large(draft, self._books.too_large[draft.id])
            return replace(plan_item(draft, path, failed=True), error=TOO_LARGE_TEXT)
        return plan_item(draft, path, failed=draft.is_to_expand)

    # --- notices ---------------------------------------------------------------------------------------------------

    def _note(self, code: str, message: str, item: str | None = None, count: int = 1) -> None:
        self._said.append(Notice(code=code, message=message, base=self._draft.legacy_id, item=item, count=count))

    def _say_too_large(self, draft: ItemDraft, rows: int) -> None:
        said = tr("{rows} not carried: the whole text is over SQLite's limit of 1 GB", rows=format_count(rows, "row"))
        self._note(notices.CONTENT_TOO_LARGE, said, draft.legacy_id, rows)

    def _say_lost(self, draft: ItemDraft, children: tuple[FolderFile, ...], lost: list[FolderFile]) -> None:
        too_large = sum(self._books.too_large.get(child.id, 0) for child in children)
        if too_large:
            self._say_too_large(draft, too_large)
        self._say_without_rows(draft, children)
        if len(lost) == len(children) and all(child.taken_by for child in lost):
            self._note(
                notices.NOT_MIGRATED,
                tr(
                    "the folder {source} is marked failed: all of its files belong to other items, where "
                    "their rows are",
                    source=draft.data["source"],
                ),
                draft.legacy_id,
            )
        unexplained = [child for child in lost if not child.taken_by]
        if unexplained:
            self._note(
                notices.CHILD_NOT_MIGRATED,
                tr(
                    "without a row that could be carried: {unexplained} of {children} files of the folder {source}",
                    unexplained=len(unexplained),
                    children=len(children),
                    source=draft.data["source"],
                ),
                draft.legacy_id,
                len(unexplained),
            )

    def _say_outside(self, draft: ItemDraft) -> None:
        count = self._layout.outside[draft.id]
        if count:
            said = tr(
                "{files} of the folder {source} named by the last part of what v1 recorded of them, "
                "which is not a path in the folder",
                files=format_count(count, "file"),
                source=draft.data["source"],
            )
            self._note(notices.CHILD_OUTSIDE, said, draft.legacy_id, count)

    def _say_without_rows(self, draft: ItemDraft, children: tuple[FolderFile, ...]) -> None:
        made = {child.loader_id for child in children}
        entries = dict.fromkeys(draft.entries)
        without = [entry for entry in entries if entry not in self._survey.loaders and entry not in made]
        if without:
            folder, paths = draft.data["source"], self._hints.paths
            known = [name_in_folder(folder, paths[entry]) for entry in without if entry in paths]
            names = f" ({join_names(known)})" if known else ""
            said = tr(
                "{without} of {entries} files of the folder {folder} have no rows in v1{names}",
                without=len(without),
                entries=len(entries),
                folder=folder,
                names=names,
            )
            self._note(notices.ENTRIES_WITHOUT_ROWS, said, draft.legacy_id, len(without))

    def _say_duplicates(self, owners: LoaderOwners, found: dict[str, RestoredDuplicate]) -> None:
        base = self._draft.legacy_id
        self._said.extend(
            duplicate_notice(one, base, restored=loader in self._restored) for loader, one in found.items()
        )
        if self._carries:
            told = {one.item.id for one in found.values()}
            self._said.extend(
                files_without_rows_notices(base, files_without_rows(self._draft, self._survey, owners, told))
            )

    def _say(self, owners: LoaderOwners, rows: Rows, missing: list[MissingChunks]) -> None:
        self._say_failed()
        self._say_renamed()
        self._said.extend(owners.notices)
        for item in self._draft.folders:
            if item.is_to_expand and item.id in owners.containers:
                self._say_tombstone(item)
        for reason, count in rows.skipped.items():
            if reason not in (self._error, notices.CONTENT_TOO_LARGE):
                has_no_text = self._terms.carry_text and reason in REASONS_THAT_KEEP_TEXT
                self._say_not_carried(reason, count, tr("without a text, too") if has_no_text else "")
        self._say_bare()
        if self._books.degenerate:
            count = self._books.degenerate
            said = tr(
                "{vectors} without a direction (zeros, or a norm beyond single precision); carried as they are",
                vectors=format_count(count, "vector"),
            )
            self._note(notices.DEGENERATE, said, count=count)
        self._said.extend(missing_chunk_notices(self._draft.legacy_id, missing))

    def _say_losses(self, owners: LoaderOwners, items: Packed[ItemPlan]) -> SalvageLosses:
        """Say of a salvaged base what of it could be read, and which items lost rows."""
        tally, found = self._survey.salvage, find_losses(self._survey, owners)
        if tally is not None and self._error is None:
            names = partial(item_names, items, {*found.lost, *found.open})
            said = loss_notices(self._draft.legacy_id, self._draft.vector_file, tally, found, names)
            self._said.extend(said)
        return found

    def _say_renamed(self) -> None:
        count = self._layout.renamed
        if count:
            said = tr("{files} got another name because theirs was taken", files=format_count(count, "file"))
            self._note(notices.RENAMED, said, count=count)

    def _say_failed(self) -> None:
        if self._error is None:
            return
        why, gone = self._draft.embedding.problem, self._draft.embedding.gone
        if self._error == notices.MISSING_STORE:
            why, gone = (
                tr(
                    "its vector file {vector_file} {problem}",
                    vector_file=self._draft.vector_file,
                    problem=self._problem,
                ),
                None,
            )
        self._say_not_carried(self._error, self._books.skipped.rows[self._error], why, gone)

    def _say_not_carried(self, reason: str, count: int, why: str = "", gone: str | None = None) -> None:
        samples = tuple(self._books.skipped.examples.get(reason, ()))
        lost = (
            tr("{rows} not carried{examples}", rows=format_count(count, "row"), examples=_examples(samples))
            if count
            else ""
        )
        message = join_list(filter(None, (why, lost)), between=tr("; "))
        self._said.append(
            Notice(
                code=reason,
                message=message,
                base=self._draft.legacy_id,
                item=None,
                count=max(count, 1),
                samples=samples,
                model=gone,
            )
        )

    def _say_bare(self) -> None:
        bare = self._books.bare
        if bare.rows:
            reasons = join_list(f"{count:,} {reason}" for reason, count in bare.rows.items())
            samples = tuple(sample for some in bare.examples.values() for sample in some)[:EXAMPLES]
            count = bare.rows.total()
            said = tr(
                "{rows} carried without a vector: {reasons}{examples}",
                rows=format_count(count, "row"),
                reasons=reasons,
                examples=_examples(samples),
            )
            legacy_id = self._draft.legacy_id
            self._said.append(
                Notice(code=notices.WITHOUT_VECTOR, message=said, base=legacy_id, count=count, samples=samples)
            )

    def _say_tombstone(self, item: ItemDraft) -> None:
        later = ""
        if self._error == notices.MISSING_STORE and self._unreadable:
            later = tr("; a later run can still recover it, once the vector file can be read")
        none = (
            tr("none of its {set} files has rows", set=len(set(item.entries)))
            if item.entries
            else tr("v1 lists no files of it")
        )
        why = none if self._carries else tr("its base failed")
        said = tr(
            "the folder {source} stays one failed item: {why}{later}", source=item.data["source"], why=why, later=later
        )
        self._note(notices.NOT_MIGRATED, said, item.legacy_id)


def _part_of(shares: list[MigratedRows]) -> tuple[int, bool]:
    """Return how many rows of a file are carried, and whether v1 had more of it."""
    loaders = [share.loader for share in shares]
    rows = sum(share.rows for share in shares)
    return rows, any(map(count_missing_chunks, loaders)) or rows < sum(one.rows for one in loaders)


def _runs(rows: LoaderRows) -> Iterator[tuple[int, int]]:
    return zip(rows.runs[::2], rows.runs[1::2], strict=True)


def _examples(samples: tuple[str, ...]) -> str:
    return tr(" (for example {samples})", samples=join_list(samples)) if samples else ""
