"""Plan a base: from its draft and the survey of its vector file to the outcome of every item and row.

Planning reads no files and no clock. A dry run prints the same plan. Rules: ``docs/rules.md``, "Folders", "Rows" and
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
    files_without_rows_notices,
    find_losses,
    items_without_rows,
    join_names,
    loss_notices,
    missing_chunk_notices,
    name_in_folder,
)
from migrators.pipeline.packed import Packed
from migrators.pipeline.source import BaseDraft, FoundOnDisk, Hints, ItemDraft, Upload
from regraft.disk.file_paths import ChildPaths, FolderPrefixes, FreeNames, fold_name
from regraft.formats.vector_survey import SalvageTally, StoreProblem, VectorSurvey
from regraft.language import format_count, join_list, tr
from regraft.report import notices
from regraft.report.notices import Notice

logger = logging.getLogger(__name__)

#: SQLite limits a row to 1,000,000,000 bytes; the row of a content also holds a hash and a time.
MAX_CONTENT_BYTES = 1_000_000_000 - 1_000
#: The error of an item whose text is larger. Readers of the catalog know this text.
TOO_LARGE_TEXT = "The text of this item is over SQLite's limit of 1 GB."


# --- the plan of a base --------------------------------------------------------------------------------------------


class ItemPlan(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A future row of ``knowledge_item``. Only the paths of snapshots are missing, which depend on their content."""

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
        item: position of its item in the plan's items.
        runs: ranges of rowids. Rows in a range that are not migrated have no vector of the base's length.
        rows: number of migrated rows.
        body_bytes: size of their texts in bytes.
        digest: sum of the row digests of the survey. Writing the rows must give the same digest.
        is_finite: no vector in the ranges holds a NaN or an infinity, so that vectors are not checked again.
    """

    item: int
    runs: tuple[tuple[int, int], ...]
    rows: int
    body_bytes: int
    digest: int
    is_finite: bool


class PlannedRows(msgspec.Struct, frozen=True):
    """Row counts of a base. Each row that was read is either migrated or skipped for a reason."""

    read: int = 0
    carried: int = 0
    skipped: dict[str, int] = msgspec.field(default_factory=dict)
    #: Migrated rows whose vector is not migrated.
    without_vector: int = 0
    #: Chunks that v1 never stored. They are in no row.
    v1_deduplicated: int = 0
    #: Units that files without rows get from an identical file. Not part of ``read`` and ``carried``.
    restored_duplicate: int = 0

    @property
    def is_balanced(self) -> bool:
        """Whether the row counts add up."""
        return self.read == self.carried + sum(self.skipped.values())


class FolderCounts(msgspec.Struct, frozen=True):
    """Number of expanded folders, of the files in them, and of folders that stay one failed item."""

    expanded: int = 0
    children: int = 0
    tombstones: int = 0


class BasePlan(msgspec.Struct, frozen=True):
    """The planned outcome of one base. A base without ``error`` will be completed."""

    draft: BaseDraft
    error: str | None
    dimensions: int | None
    items: Sequence[ItemPlan]
    materials: tuple[MaterialPlan, ...]
    rows: PlannedRows
    directories: FolderCounts
    #: Id of the folder file that owns the rows, by loader id.
    children: dict[str, str]
    notices: tuple[Notice, ...]
    #: Folded names that are taken in ``raw/`` before snapshots get theirs.
    taken_names: frozenset[str]
    #: Findings on disk that a later run may need.
    found: FoundOnDisk
    #: Whether texts are migrated without their vector (``--carry-text``).
    carry_text: bool
    #: What can be salvaged if the vector file is damaged.
    salvage: SalvageTally | None
    #: Number of items of a salvaged base that kept all their rows, and that lost some.
    whole_items: int
    damaged_items: int

    @property
    def has_index(self) -> bool:
        """Whether the base gets an index. A failed base has one only if texts are migrated without vectors."""
        return self.error is None or bool(self.materials)

    @property
    def vector_bytes(self) -> int:
        """Length of a vector in bytes; 0 for a failed base."""
        return 4 * (self.dimensions or 0) if self.error is None else 0

    @property
    def units(self) -> int:
        """Number of units in the new index: migrated rows and rows given to duplicates."""
        return self.rows.carried + self.rows.restored_duplicate

    @property
    def body_bytes(self) -> int:
        """Size of all bodies in bytes."""
        return sum(material.body_bytes for material in self.materials)


# --- items ---------------------------------------------------------------------------------------------------------


def plan_item(draft: ItemDraft, path: str | None, *, failed: bool) -> ItemPlan:
    """Plan the catalog item of a draft. ``path`` is the path of its file below ``raw/``, or None.

    ``failed`` marks it failed.
    """
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
    """Plan the catalog item of ``child``, a file of the folder ``container``, stored at ``path`` below ``raw/``."""
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
    """Yield the id, the display name and the v1 id of each item whose id is wanted.

    A file in a folder has no v1 id of its own; the one of its folder is used.
    """
    folders = {item.id: item for item in items if item.type == "directory"}
    for item in items:
        if item.id in wanted:
            folder = folders.get(item.group_id or "")
            if folder:
                name = name_in_folder(folder.data["source"], item.data["source"])
            else:
                name = item.data["relativePath"] if item.type == "file" else item.data.get("url", item.data["source"])
            yield item.id, name, folder.legacy_id if folder else item.legacy_id


# --- paths below raw/ ----------------------------------------------------------------------------------------------


class TakenPaths(msgspec.Struct, frozen=True):
    """Paths below ``raw/`` that a base already uses. They do not change; new paths avoid them."""

    #: Path prefix of each folder, by item id.
    prefixes: Mapping[str, str] = msgspec.field(default_factory=dict)
    #: Names in the root of ``raw/``.
    names: frozenset[str] = frozenset()
    #: Paths of the files in each folder, prefix included, by the folder's item id.
    children: Mapping[str, Iterable[str]] = msgspec.field(default_factory=dict)


class RawLayout(msgspec.Struct, frozen=True):
    """Paths below ``raw/`` that a plan assigns."""

    #: Path prefix of each expanded folder, by item id.
    prefixes: dict[str, str]
    #: Path of each file in these folders, by item id.
    children: dict[str, str]
    #: Number of files whose recorded path is not inside their folder, by the folder's item id.
    outside: dict[str, int]
    #: File name of each upload, by item id.
    files: dict[str, str]
    #: Number of uploads whose name was taken, so that they got another one.
    renamed: int
    #: Folded names in the root of ``raw/``, for the snapshots that are named later.
    names: frozenset[str]


def assign_raw_paths(
    draft: BaseDraft, expanded: Mapping[str, tuple[FolderFile, ...]], taken: TakenPaths | None = None
) -> RawLayout:
    """Assign paths below ``raw/`` to the folders in ``expanded``, their files and all uploads, in item order.

    All of them are assigned together because the name of an upload must differ from every folder prefix. ``taken``
    paths stay as they are. Rules: ``docs/rules.md``, "Folders" and "Names".
    """
    taken = taken or TakenPaths()
    folders = [item for item in draft.folders if item.id in expanded]
    free = FolderPrefixes({*taken.names, *taken.prefixes.values()})
    prefixes = {
        folder.id: taken.prefixes[folder.id] if folder.id in taken.prefixes else free.take(folder.data["source"])
        for folder in folders
    }
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


# --- planning ------------------------------------------------------------------------------------------------------


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
        draft: the base as the source's state describes it.
        found: the survey of its vector file, or the reason why the file cannot be used.
        hints: facts from other files of the source.
        carry_text: migrate the text of rows without a usable vector.
        taken: paths below ``raw/`` that are in use.
    """
    if isinstance(found, StoreProblem):
        survey, problem, vector_bytes, unreadable = VectorSurvey(), found, None, True
    else:
        survey, problem, unreadable = found, StoreProblem(tr("holds no usable vector")), False
        vector_bytes = found.vector_bytes
        if not found.rows and draft.dimensions_if_empty is not None:
            vector_bytes = 4 * draft.dimensions_if_empty
    base_error = None
    if draft.embedding.id is None:
        base_error = notices.MISSING_MODEL
    elif vector_bytes is None:
        base_error = notices.MISSING_STORE
    policy = MigrationPolicy(
        base_error=base_error,
        vector_bytes=vector_bytes or 0,
        keep_text_only_rows=carry_text and not unreadable,
        max_content_bytes=MAX_CONTENT_BYTES,
    )
    logger.info(
        "base %s: %s items, %s rows in its vector file, %s bytes to a vector, error: %s",
        *(draft.id, len(draft.items), survey.rows, vector_bytes, policy.base_error),
    )
    planner = _Planner(draft, survey, policy, problem, taken)
    return planner.plan(hints or Hints(), unreadable=unreadable)


class _Planner:
    """Plans one base. Single use."""

    def __init__(
        self,
        draft: BaseDraft,
        survey: VectorSurvey,
        policy: MigrationPolicy,
        problem: StoreProblem,
        taken: TakenPaths | None,
    ) -> None:
        self._draft = draft
        self._taken = taken
        self._base_error = policy.base_error
        self._survey = survey
        self._policy = policy
        #: False if the base fails and its texts are not migrated either.
        self._migrates_rows = policy.base_error is None or policy.keep_text_only_rows
        self._problem = problem
        self._notices: list[Notice] = []
        self._unreadable = False
        self._hints = Hints()
        #: Files that get the rows of an identical file, by loader id.
        self._restored: dict[str, RestoredDuplicate] = {}

    def plan(self, hints: Hints, *, unreadable: bool) -> BasePlan:
        """Plan the migration of a base; ``unreadable``: its vector file cannot be read."""
        draft = self._draft
        self._unreadable, self._hints = unreadable, hints
        sources = hints.paths
        expanded = expand_folders(draft, self._survey, sources) if self._migrates_rows else {}
        owners = LoaderOwners(draft, expanded)
        self._decisions = RowDecisions(self._survey, owners, self._policy)
        migrated = self._decisions.migrated_by_item
        found = self._find_restorable(owners, migrated)
        if found and hints.restore_twins:
            # The owners of rows do not change: the files that are added have no rows of their own.
            self._restored = found
            paths = {loader_id: one.twin.path for loader_id, one in found.items() if one.twin.path}
            expanded = expand_folders(draft, self._survey, sources, paths)
            owners = LoaderOwners(draft, expanded)
        self._layout = assign_raw_paths(draft, expanded, self._taken)
        ids_with_rows = {*migrated, *self._restored_items(owners)}
        items = self._plan_items(expanded, ids_with_rows)
        index = {item.id: position for position, item in enumerate(items) if item.id in ids_with_rows}
        own = self._plan_materials(migrated, index)
        copies = self._plan_duplicates(owners, migrated, index)
        missing = self._find_missing_chunks(owners, items)
        rows = self._count_rows(own, copies, missing)
        self._note_problems(owners, rows, missing)
        restorable = {one.item.id for one in found.values()}
        without_rows = items_without_rows(draft, self._survey, owners, restorable)
        # An item without a loader id never had rows.
        absent = frozenset(item.id for item in without_rows if self._survey.is_partial and item.loader_ids)
        lost = self._note_losses(owners, items, absent)
        self._note_duplicates(found, [item for item in without_rows if item.id not in absent])
        failed_folders = [item for item in draft.folders if item.is_to_expand and item.id in owners.containers]
        return BasePlan(
            draft=draft,
            error=self._base_error,
            dimensions=self._dimensions(),
            items=items,
            materials=(*own, *copies),
            rows=rows,
            directories=FolderCounts(len(expanded), sum(map(len, expanded.values())), len(failed_folders)),
            children={loader_id: child.id for loader_id, child in owners.children.items()},
            notices=(*draft.notices, *hints.notices, *self._notices),
            taken_names=self._layout.names,
            found=self._found_on_disk(found),
            carry_text=self._policy.keep_text_only_rows,
            salvage=self._survey.salvage or self._problem.salvage,
            whole_items=lost.whole,
            damaged_items=lost.damaged,
        )

    def _count_rows(
        self, own: list[MaterialPlan], copies: list[MaterialPlan], missing: list[MissingChunks]
    ) -> PlannedRows:
        """Count migrated, skipped and missing rows.

        ``own`` has the migrated rows, ``copies`` those given to duplicates.
        """
        return PlannedRows(
            read=self._survey.rows,
            carried=sum(material.rows for material in own),
            skipped=dict(self._decisions.skipped.rows),
            without_vector=self._decisions.text_only.rows.total(),
            v1_deduplicated=sum(one.chunks for one in missing),
            restored_duplicate=sum(material.rows for material in copies),
        )

    def _dimensions(self) -> int | None:
        """Return the vector dimensions of the base, also if it fails; None if they are not known."""
        if self._base_error is None:
            return self._policy.vector_bytes // 4
        if self._base_error == notices.MISSING_MODEL:
            return self._draft.stated_dimensions
        # If only another column is missing, the length of the vectors is known.
        return None if self._problem.vector_bytes is None else self._problem.vector_bytes // 4

    # --- rows ------------------------------------------------------------------------------------------------------

    def _found_on_disk(self, restorable: dict[str, RestoredDuplicate]) -> FoundOnDisk:
        """Return the paths and pairs that a later run uses if it no longer finds the files on disk."""
        entries = {entry for folder in self._draft.folders for entry in folder.entries}
        paths = {loader_id: path for loader_id, path in self._hints.paths.items() if loader_id in entries}
        return FoundOnDisk(paths, tuple(one.twin for one in restorable.values()))

    def _plan_material(self, item: int, parts: list[MigratedRows]) -> MaterialPlan:
        """Plan the material of the item at a position from its migrated rows; each part has those of one loader id."""
        return MaterialPlan(
            item=item,
            runs=tuple(
                sorted(run for part in parts for run in zip(part.loader.runs[::2], part.loader.runs[1::2], strict=True))
            ),
            rows=sum(part.rows for part in parts),
            body_bytes=sum(part.body_bytes for part in parts),
            digest=sum(part.digest for part in parts),
            is_finite=not any(-self._policy.vector_bytes in part.loader.kinds for part in parts),
        )

    # --- duplicates ------------------------------------------------------------------------------------------------

    def _find_restorable(
        self, owners: LoaderOwners, migrated: dict[str, list[MigratedRows]]
    ) -> dict[str, RestoredDuplicate]:
        """Find files without rows that are identical to a file with migrated rows, by loader id.

        ``migrated`` has rows by item.
        """
        found: dict[str, RestoredDuplicate] = {}
        if not self._hints.twins:
            return found
        rules = DuplicateRules(self._draft, owners)
        for twin in self._hints.twins:
            item, owner = rules.receiving_item(twin), rules.donor_id(twin)
            if item is None or owner is None or twin.loader_id in self._survey.loaders:
                continue
            if owner in migrated and item.id not in migrated:
                rows, is_partial = _count_migrated(migrated[owner])
                one = RestoredDuplicate(twin=twin, item=item, owner=owner, rows=rows, partial=is_partial)
                found.setdefault(twin.loader_id, one)
        return found

    def _plan_materials(self, migrated: dict[str, list[MigratedRows]], index: dict[str, int]) -> list[MaterialPlan]:
        """Plan the materials of items with rows of their own, by the id of the item, in the order of first rows.

        ``index`` maps the ids of items to their positions.
        """
        ordered = sorted(migrated.items(), key=lambda entry: min(part.first_rowid for part in entry[1]))
        return [self._plan_material(index[owner], parts) for owner, parts in ordered]

    def _plan_duplicates(
        self, owners: LoaderOwners, migrated: dict[str, list[MigratedRows]], index: dict[str, int]
    ) -> list[MaterialPlan]:
        """Plan the materials of items that get the rows of an identical file, in the order of the items."""
        restored = sorted(self._restored_items(owners).items(), key=lambda entry: index[entry[0]])
        return [self._plan_material(index[item_id], migrated[one.owner]) for item_id, one in restored]

    def _restored_items(self, owners: LoaderOwners) -> dict[str, RestoredDuplicate]:
        """Map the id of each file that gets restored rows to the pair of files that they come from."""
        claimed = ((owners.item_of(loader_id), one) for loader_id, one in self._restored.items())
        return {owner: one for owner, one in claimed if owner is not None}

    def _find_missing_chunks(self, owners: LoaderOwners, items: Packed[ItemPlan]) -> list[MissingChunks]:
        """List the items whose chunks v1 stored in part, in item order.

        Empty if rows may be missing because of damage.
        """
        chunks: Counter[str] = Counter()
        rows: Counter[str] = Counter()
        tally = self._survey.salvage
        if tally is not None and not tally.is_exact:
            # Missing row numbers may be rows lost to the damage, not duplicates.
            return []
        for loader_id, found in self._survey.loaders.items():
            owner = owners.item_of(loader_id)
            if owner is not None:
                chunks[owner] += count_missing_chunks(found)
                rows[owner] += found.rows
        return [
            MissingChunks(name=name, legacy_id=legacy_id, chunks=chunks[item], rows=rows[item])
            for item, name, legacy_id in item_names(items, +chunks)
        ]

    # --- items -----------------------------------------------------------------------------------------------------

    def _plan_items(self, expanded: dict[str, tuple[FolderFile, ...]], ids_with_rows: set[str]) -> Packed[ItemPlan]:
        """Plan all items in v1's order, with the files of a folder right after it.

        ``expanded`` has the files of folders by item id. ``ids_with_rows`` are the items that get a material.
        """
        items = Packed(ItemPlan)
        for draft in self._draft.items:
            children = expanded.get(draft.id)
            if children is None:
                path = self._layout.files.get(draft.id)
                if draft.id in self._decisions.too_large:
                    self._note_too_large(draft, self._decisions.too_large[draft.id])
                    items.append(replace(plan_item(draft, path, failed=True), error=TOO_LARGE_TEXT))
                else:
                    items.append(plan_item(draft, path, failed=draft.is_to_expand))
                continue
            lost = [child for child in children if child.id not in ids_with_rows]
            paths = self._layout.children
            items.append(plan_item(draft, self._layout.prefixes[draft.id], failed=len(lost) == len(children)))
            items.extend(
                plan_folder_file(draft, one, paths[one.id], failed=one.id not in ids_with_rows) for one in children
            )
            self._note_folder_losses(draft, children, lost)
            self._note_outside(draft)
        return items

    # --- notices ---------------------------------------------------------------------------------------------------

    def _note(self, code: str, message: str, item: str | None = None, count: int = 1) -> None:
        """Add a notice about the base, or about the item with this v1 id."""
        self._notices.append(Notice(code=code, message=message, base=self._draft.legacy_id, item=item, count=count))

    def _note_too_large(self, draft: ItemDraft, rows: int) -> None:
        """Add the notice that the text of an item exceeds SQLite's limit, so that its ``rows`` are not migrated."""
        message = tr(
            "{rows} not migrated: the text of the item exceeds SQLite's limit of 1 GB", rows=format_count(rows, "row")
        )
        self._note(notices.CONTENT_TOO_LARGE, message, draft.legacy_id, rows)

    def _note_folder_losses(self, draft: ItemDraft, children: tuple[FolderFile, ...], lost: list[FolderFile]) -> None:
        """Add notices on what is not migrated of a folder.

        These are files whose text is too large, entries that became no file, and files without a migrated row.
        ``children`` are all files of the folder, ``lost`` those without a migrated row.
        """
        too_large = sum(self._decisions.too_large.get(child.id, 0) for child in children)
        if too_large:
            self._note_too_large(draft, too_large)
        self._note_entries_without_rows(draft, children)
        if len(lost) == len(children) and all(child.taken_by for child in lost):
            self._note(
                notices.NOT_MIGRATED,
                tr(
                    "folder {source} is marked as failed: the rows of all its files belong to other items",
                    source=draft.data["source"],
                ),
                draft.legacy_id,
            )
        unexplained = [child for child in lost if not child.taken_by]
        if unexplained:
            self._note(
                notices.CHILD_NOT_MIGRATED,
                tr(
                    "{unexplained} of {children} files of the folder {source} have no row that can be migrated",
                    unexplained=len(unexplained),
                    children=len(children),
                    source=draft.data["source"],
                ),
                draft.legacy_id,
                len(unexplained),
            )

    def _note_outside(self, draft: ItemDraft) -> None:
        """Add a notice if the recorded paths of files of a folder are outside of it."""
        count = self._layout.outside[draft.id]
        if count:
            message = tr(
                (
                    "{files} of the folder {source} stored under their file name alone: the path that v1 "
                    "recorded is not inside the folder"
                ),
                files=format_count(count, "file"),
                source=draft.data["source"],
            )
            self._note(notices.CHILD_OUTSIDE, message, draft.legacy_id, count)

    def _note_entries_without_rows(self, draft: ItemDraft, children: tuple[FolderFile, ...]) -> None:
        """Add a notice on the entries of a folder that have no rows in the vector file and became no file.

        ``children`` are the entries that became files.
        """
        made = {child.loader_id for child in children}
        entries = dict.fromkeys(draft.entries)
        without = [entry for entry in entries if entry not in self._survey.loaders and entry not in made]
        if without:
            folder, paths = draft.data["source"], self._hints.paths
            known = [name_in_folder(folder, paths[entry]) for entry in without if entry in paths]
            names = f" ({join_names(known)})" if known else ""
            facts = {"without": len(without), "entries": len(entries), "folder": folder, "names": names}
            message = (
                tr(
                    "none of the rows of {without} of {entries} files of the folder {folder} were salvaged{names}",
                    **facts,
                )
                if self._survey.is_partial
                else tr("{without} of {entries} files of the folder {folder} have no rows in v1{names}", **facts)
            )
            self._note(notices.ENTRIES_WITHOUT_ROWS, message, draft.legacy_id, len(without))

    def _note_duplicates(self, duplicates: dict[str, RestoredDuplicate], without_rows: list[ItemDraft]) -> None:
        """Add notices on files without rows: those that equal another file, and the others."""
        base = self._draft.legacy_id
        self._notices.extend(
            duplicate_notice(one, base, restored=loader_id in self._restored) for loader_id, one in duplicates.items()
        )
        if self._migrates_rows:
            files = [item for item in without_rows if item.type == "file"]
            self._notices.extend(files_without_rows_notices(base, files))

    def _note_problems(self, owners: LoaderOwners, rows: PlannedRows, missing: list[MissingChunks]) -> None:
        """Add the notices of the whole base.

        ``rows`` are its planned row counts, ``missing`` the chunks that v1 never stored.
        """
        self._note_base_error()
        if renamed := self._layout.renamed:
            message = tr("{files} renamed because the name was taken", files=format_count(renamed, "file"))
            self._note(notices.RENAMED, message, count=renamed)
        self._notices.extend(owners.notices)
        for item in self._draft.folders:
            if item.is_to_expand and item.id in owners.containers:
                self._note_failed_folder(item)
        for reason, count in rows.skipped.items():
            if reason not in (self._base_error, notices.CONTENT_TOO_LARGE):
                has_no_text = self._policy.keep_text_only_rows and reason in REASONS_THAT_KEEP_TEXT
                self._note_skipped(reason, count, tr("without text as well") if has_no_text else "")
        self._note_text_only()
        if self._decisions.degenerate:
            count = self._decisions.degenerate
            message = tr(
                "{vectors} without a direction (all zeros, or a norm beyond single precision), migrated unchanged",
                vectors=format_count(count, "vector"),
            )
            self._note(notices.DEGENERATE, message, count=count)
        self._notices.extend(missing_chunk_notices(self._draft.legacy_id, missing))

    def _note_losses(self, owners: LoaderOwners, items: Packed[ItemPlan], absent: frozenset[str]) -> SalvageLosses:
        """Add notices about what a salvaged base lost, and return the losses."""
        tally, found = self._survey.salvage, find_losses(self._survey, owners, absent)
        if tally is not None and self._migrates_rows:
            names = partial(item_names, items, {*found.lost, *found.open, *found.absent})
            self._notices.extend(loss_notices(self._draft.legacy_id, self._draft.vector_file, tally, found, names))
        return found

    def _note_base_error(self) -> None:
        """Add a notice on the reason for which the base is marked failed, if it is."""
        if self._base_error is None:
            return
        why, missing_model = self._draft.embedding.problem, self._draft.embedding.gone
        if self._base_error == notices.MISSING_STORE:
            why, missing_model = (
                tr(
                    "its vector file {vector_file} {problem}",
                    vector_file=self._draft.vector_file,
                    problem=self._problem,
                ),
                None,
            )
        self._note_skipped(self._base_error, self._decisions.skipped.rows[self._base_error], why, missing_model)

    def _note_skipped(self, reason: str, count: int, why: str = "", missing_model: str | None = None) -> None:
        """Add a notice on ``count`` skipped rows; ``reason`` is the code, ``why`` precedes the count in the message.

        ``missing_model`` is the model that the user may replace, if that is the reason.
        """
        samples = tuple(self._decisions.skipped.examples.get(reason, ()))
        lost = (
            tr("{rows} not migrated{examples}", rows=format_count(count, "row"), examples=_examples(samples))
            if count
            else ""
        )
        message = join_list(filter(None, (why, lost)), between=tr("; "))
        self._notices.append(
            Notice(
                code=reason,
                message=message,
                base=self._draft.legacy_id,
                count=max(count, 1),
                samples=samples,
                model=missing_model,
            )
        )

    def _note_text_only(self) -> None:
        """Add a notice for rows that are migrated without a vector."""
        text_only = self._decisions.text_only
        if text_only.rows:
            reasons = join_list(f"{count:,} {reason}" for reason, count in text_only.rows.items())
            samples = tuple(sample for some in text_only.examples.values() for sample in some)[:EXAMPLES]
            count = text_only.rows.total()
            message = tr(
                "{rows} migrated without a vector: {reasons}{examples}",
                rows=format_count(count, "row"),
                reasons=reasons,
                examples=_examples(samples),
            )
            legacy_id = self._draft.legacy_id
            self._notices.append(
                Notice(code=notices.WITHOUT_VECTOR, message=message, base=legacy_id, count=count, samples=samples)
            )

    def _note_failed_folder(self, item: ItemDraft) -> None:
        """Add a notice that a folder stays one failed item, without its files."""
        later = ""
        if self._base_error == notices.MISSING_STORE and self._unreadable:
            later = tr("; a later run can recover it once the vector file can be read")
        none = (
            tr("none of its {set} files has rows", set=len(set(item.entries)))
            if item.entries
            else tr("v1 lists no files in it")
        )
        why = none if self._migrates_rows else tr("its base failed")
        message = tr(
            "folder {source} stays one failed item: {why}{later}", source=item.data["source"], why=why, later=later
        )
        self._note(notices.NOT_MIGRATED, message, item.legacy_id)


def _count_migrated(parts: list[MigratedRows]) -> tuple[int, bool]:
    """Return how many rows of a file are migrated, and whether v1 had more of the file."""
    loaders = [part.loader for part in parts]
    rows = sum(part.rows for part in parts)
    return rows, any(map(count_missing_chunks, loaders)) or rows < sum(one.rows for one in loaders)


def _examples(samples: tuple[str, ...]) -> str:
    """Format example row ids for the end of a message; empty without examples."""
    return tr(" (for example {samples})", samples=join_list(samples)) if samples else ""
