"""Decide for every source row whether it is migrated, and record the reason for each row that is not.

A row is migrated when an indexable item owns its loader id and its vector has the base's length and finite values. With
``--carry-text``, the text of an owned row is migrated without its vector. Rules: ``docs/rules.md``, "Rows" and "Texts
without a vector".
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

#: Example rows kept for each reason.
EXAMPLES = 3
#: Reasons why a row has no usable vector. Its text is usable and can be migrated alone.
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


# --- owners of loader ids ------------------------------------------------------------------------------------------


class FolderFile(msgspec.Struct):
    """A file of an expanded folder, which becomes an item of its own.

    ``taken_by`` is the id of another item that owns the rows of the same loader id; empty if this file owns them.
    """

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
    """List the files of every completed folder of a base, by the folder's item id. Folders without files are left out.

    An entry of a folder is a loader id, v1's id of one reading of a file. It becomes a file if the survey has at least
    one of its rows with a source, whether or not the row's vector is usable. Repeated entries become one file.

    Args:
        draft: the base.
        survey: the rows of its vector file.
        paths: real paths by loader id, for text files, whose rows only have a snippet.
        restored: paths by loader id of entries without rows that get the rows of an identical file. They do not change
            the ids of the other files.
    """
    expanded = {}
    for item in draft.folders:
        if item.is_to_expand:
            files = tuple(_folder_files(item, survey, paths or {}, restored or {}))
            if files:
                expanded[item.id] = files
    return expanded


def _folder_files(
    item: ItemDraft, survey: VectorSurvey, paths: Mapping[str, str], restored: Mapping[str, str]
) -> Iterator[FolderFile]:
    """Yield the files of a folder item. The rows of its loader ids are in the survey.

    ``paths`` has real paths by loader id, for files whose rows only have a snippet. ``restored`` has the paths of files
    without rows that get those of an identical file.
    """
    position = 0
    seen: set[str] = set()
    for loader_id in item.entries:
        rows, is_first = survey.loaders.get(loader_id), loader_id not in seen
        seen.add(loader_id)
        if rows is not None and rows.source is not None:
            if is_first:
                file_id = identity.child_id(item.id, loader_id, position, item.created_at)
                yield FolderFile(file_id, loader_id, paths.get(loader_id, rows.source))
            # A repeated entry takes a position too: ids depend on it and must match those of earlier versions.
            position += 1
        elif is_first and rows is None and loader_id in restored:
            file_id = identity.child_id(item.id, loader_id, 0, item.created_at)
            yield FolderFile(file_id, loader_id, restored[loader_id])


class LoaderOwners:
    """The item that owns the rows of each loader id.

    Standalone items go before files of expanded folders, and these before folders that stay one item. Of several
    standalone items, or several files of folders, the last one listed owns the rows.
    """

    def __init__(self, draft: BaseDraft, expanded: dict[str, tuple[FolderFile, ...]]) -> None:
        self.notices: list[Notice] = []
        #: Ids of folders that stay one item.
        self.containers = {item.id for item in draft.folders if item.id not in expanded}
        #: The folder file that owns the rows, by loader id.
        self.children: dict[str, FolderFile] = {}
        self._base = draft.legacy_id
        self._owners: dict[str, str] = {}
        #: The reason why an item is skipped, by each of its loader ids.
        self._skipped = {loader: item.reason for item in draft.skipped_items for loader in item.loader_ids}
        standalone = self._assign_to_standalone_items(draft)
        self._assign_to_folder_files(draft, expanded, standalone)
        for item in draft.folders:
            if item.id in self.containers:
                for loader_id in item.loader_ids:
                    if loader_id not in standalone and loader_id not in self.children:
                        self._owners[loader_id] = item.id

    def item_of(self, loader_id: str | None) -> str | None:
        """Return the id of the item that owns the rows of a loader id, or None."""
        return None if loader_id is None else self._owners.get(loader_id)

    def skipped_reason(self, loader_id: str | None) -> str | None:
        """Return why the item with this loader id is skipped, or None if no skipped item has it."""
        return None if loader_id is None else self._skipped.get(loader_id)

    def _assign_to_standalone_items(self, draft: BaseDraft) -> dict[str, str]:
        """Assign loader ids to items that are not folders; the last item that names a loader id gets it.

        Return them.
        """
        owners: dict[str, str] = {}
        overruled_ids: dict[str, None] = {}
        for item in draft.items:
            if item.type == "directory":
                continue
            for loader_id in item.loader_ids:
                before = owners.get(loader_id)
                if before is not None and before != item.id:
                    overruled_ids[before] = None
                owners[loader_id] = item.id
        self._owners.update(owners)
        overruled = {item.id: item for item in draft.items if item.id in overruled_ids} if overruled_ids else {}
        for item in map(overruled.__getitem__, overruled_ids):
            self._note(notices.LOADER_SHARED, tr("a later item has the same loader id and gets its rows"), item, 1)
        return owners

    def _assign_to_folder_files(
        self, draft: BaseDraft, expanded: dict[str, tuple[FolderFile, ...]], standalone: dict[str, str]
    ) -> None:
        """Assign loader ids to files in folders, unless a standalone item has them.

        ``expanded`` has the files of each folder by its item id, ``standalone`` the item by loader id.
        """
        for files in expanded.values():
            for file in files:
                if file.loader_id in standalone:
                    file.taken_by = standalone[file.loader_id]
                    continue
                before = self.children.get(file.loader_id)
                if before is not None:
                    before.taken_by = file.id
                self.children[file.loader_id] = file
        self._owners.update({loader_id: file.id for loader_id, file in self.children.items()})
        for folder in draft.folders:
            self._note_conflicts(folder, expanded.get(folder.id, ()), standalone)

    def _note_conflicts(self, folder: ItemDraft, files: Sequence[FolderFile], standalone: dict[str, str]) -> None:
        """Add notices for the files of a folder whose rows another item gets.

        ``standalone`` has such items by loader id.
        """
        conflicts = sum(file.loader_id in standalone for file in files)
        shared = sum(bool(file.taken_by) for file in files) - conflicts
        if conflicts:
            message = tr(
                "{files} of the folder also added as single items; the rows stay with those items",
                files=format_count(conflicts, "file"),
            )
            self._note(notices.CHILD_CONFLICT, message, folder, conflicts)
        if shared:
            message = tr(
                "{files} of the folder listed again later; the rows go to the later entry",
                files=format_count(shared, "file"),
            )
            self._note(notices.CHILD_SHARED, message, folder, shared)

    def _note(self, code: str, message: str, item: ItemDraft, count: int) -> None:
        self.notices.append(Notice(code=code, message=message, base=self._base, item=item.legacy_id, count=count))


# --- decisions -----------------------------------------------------------------------------------------------------


class RowsByReason(msgspec.Struct):
    """Row counts by reason, with up to :data:`EXAMPLES` row ids for each reason."""

    rows: Counter[str] = msgspec.field(default_factory=Counter)
    examples: dict[str, list[str]] = msgspec.field(default_factory=dict)

    def add(self, reason: str, group: RowTally) -> None:
        """Count a group of rows under a reason."""
        if group.count:
            self.rows[reason] += group.count
            examples = self.examples.setdefault(reason, [])
            examples.extend(group.samples[: EXAMPLES - len(examples)])


class MigratedRows(msgspec.Struct):
    """The rows of one loader id that are migrated, with and without their vectors."""

    loader: LoaderRows
    with_vectors: RowTally | None = None
    #: Groups of rows whose text is migrated alone, each with the reason.
    text_only: list[tuple[str, RowTally]] = msgspec.field(default_factory=list)

    @property
    def groups(self) -> list[RowTally]:
        """All migrated groups of rows."""
        return [*([self.with_vectors] if self.with_vectors else ()), *(group for _, group in self.text_only)]

    @property
    def rows(self) -> int:
        """Number of migrated rows."""
        return sum(group.count for group in self.groups)

    @property
    def digest(self) -> int:
        """Sum of the row digests. Text-only rows are digested without their vector, as they are read when written."""
        with_vectors = self.with_vectors.digest if self.with_vectors else 0
        return with_vectors + sum(group.text_digest for _, group in self.text_only)

    @property
    def first_rowid(self) -> int:
        """The lowest rowid that is migrated."""
        return min(group.first_rowid for group in self.groups)

    @property
    def body_bytes(self) -> int:
        """Size of all migrated texts in bytes."""
        return sum(group.body_bytes for group in self.groups)


class MigrationPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and options that apply to all rows of one base."""

    base_error: str | None  # reason code if the base itself fails; no vectors are migrated then
    vector_bytes: int  # expected vector length
    keep_text_only_rows: bool  # --carry-text
    max_content_bytes: int  # SQLite's row limit for the content of one item


class RowDecisions:
    """Outcome for every row that the survey found: each row is counted exactly once."""

    def __init__(self, survey: VectorSurvey, owners: LoaderOwners, policy: MigrationPolicy) -> None:
        self._owners = owners
        self._policy = policy
        self.migrated_by_item: dict[str, list[MigratedRows]] = {}
        self.skipped = RowsByReason()
        #: Rows migrated without their vector.
        self.text_only = RowsByReason()
        #: Number of migrated vectors without a direction.
        self.degenerate = 0
        #: Number of rows by id of each item whose content exceeds the row limit.
        self.too_large: dict[str, int] = {}
        for loader_id, rows in survey.loaders.items():
            self._decide_loader(loader_id, rows)
        self._skip_items_over_row_limit()
        for migrated in (one for several in self.migrated_by_item.values() for one in several):
            self.degenerate += migrated.with_vectors.degenerate if migrated.with_vectors else 0
            for reason, group in migrated.text_only:
                self.text_only.add(reason, group)

    def _decide_loader(self, loader_id: str | None, rows: LoaderRows) -> None:
        """Decide which rows of one loader id (v1's id of one reading of a file) are migrated.

        Add them to their item.
        """
        item_id = self._owners.item_of(loader_id)
        ownership_problem = self._ownership_problem(loader_id, item_id)
        migrated = MigratedRows(rows)

        # Rows that the survey could not use, whatever their vector.
        for reason, group in rows.refused.items():
            may_keep_text = ownership_problem is None and reason in REASONS_THAT_KEEP_TEXT
            self._skip_or_keep_text(group, reason, migrated, may_keep_text=may_keep_text)

        # Usable rows, grouped by the length of their vector.
        for vector_kind, group in rows.kinds.items():
            problem = self._policy.base_error or ownership_problem or self._vector_problem(vector_kind)
            if problem is None:
                migrated.with_vectors = group
            else:
                self._skip_or_keep_text(group, problem, migrated, may_keep_text=ownership_problem is None)

        if migrated.groups and item_id is not None:
            self.migrated_by_item.setdefault(item_id, []).append(migrated)

    def _skip_or_keep_text(self, group: RowTally, reason: str, migrated: MigratedRows, *, may_keep_text: bool) -> None:
        """Skip rows without a usable vector, or add their text to ``migrated``.

        Rows without text are always skipped.
        """
        if not self._policy.keep_text_only_rows or not may_keep_text:
            self.skipped.add(reason, group)
            return
        self.skipped.add(reason, group.without_text)
        if group.with_text.count:
            migrated.text_only.append((reason, group.with_text))

    def _ownership_problem(self, loader_id: str | None, item_id: str | None) -> str | None:
        """Return why no item can hold the rows of a loader id, as a reason code, or None.

        ``item_id`` is the item that owns them.
        """
        if item_id is None:
            return self._owners.skipped_reason(loader_id) or notices.UNMAPPED_LOADER
        return notices.NON_INDEXABLE if item_id in self._owners.containers else None

    def _vector_problem(self, vector_kind: int) -> str | None:
        """Return the reason code if vectors of a kind are not migrated, or None.

        ``vector_kind`` is their length in bytes, negative if a value is not finite, or a constant of the survey.
        """
        if vector_kind == vector_survey.MISSING:
            return notices.MISSING_PAYLOAD
        if vector_kind == vector_survey.UNSUPPORTED:
            return notices.UNSUPPORTED_ENCODING
        if abs(vector_kind) != self._policy.vector_bytes:
            return notices.DIMENSION_MISMATCH
        return notices.NON_FINITE if vector_kind < 0 else None

    def _skip_items_over_row_limit(self) -> None:
        """Skip items whose joined text exceeds SQLite's limit for one row."""
        for item_id, several in list(self.migrated_by_item.items()):
            rows = sum(migrated.rows for migrated in several)
            content_bytes = sum(migrated.body_bytes for migrated in several) + len(BODY_SEPARATOR) * (rows - 1)
            if content_bytes <= self._policy.max_content_bytes:
                continue
            del self.migrated_by_item[item_id]
            self.too_large[item_id] = rows
            for group in (group for migrated in several for group in migrated.groups):
                self.skipped.add(notices.CONTENT_TOO_LARGE, group)
