"""The second half of the plan: a drafted base and what its vector file holds → what becomes of every item and row.

Pure, like the draft. What a dry run prints is this very plan. Rules: ``docs/rules.md``, "Directories" and "Rows".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from migrators.stages.drafts import BaseDraft, ItemDraft, Upload
from migrators.stages.journey import Hints
from migrators.stages.owners import Child, Owners, expand
from regraft import notices
from regraft.formats import vector_table
from regraft.formats.index import BODY_SEPARATOR
from regraft.formats.vector_table import LoaderRows, Survey, Tally
from regraft.notices import Notice
from regraft.text import counted

#: SQLite's limit for one row is 1,000,000,000 bytes; a content text may take all of it but for its hash and time.
MAX_CONTENT_BYTES = 1_000_000_000 - 1_000
#: The error of an item whose text is larger.
TOO_LARGE_TEXT = "The text of this item is over SQLite's limit of 1 GB."
#: Examples named for each reason why rows are not carried.
EXAMPLES = 3


@dataclass(frozen=True)
class ItemPlan:
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


@dataclass(frozen=True)
class MaterialPlan:
    """The rows that become one material: ``item`` is an index into the plan's items, ``runs`` are rowid ranges."""

    item: int
    runs: tuple[tuple[int, int], ...]
    rows: int
    body_bytes: int


@dataclass(frozen=True)
class Rows:
    """The books of a base: every row is carried or skipped for a reason."""

    read: int = 0
    carried: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    #: Chunks that v1 itself never stored; they are in no row.
    v1_deduplicated: int = 0

    @property
    def balanced(self) -> bool:
        """Tell whether the books balance."""
        return self.read == self.carried + sum(self.skipped.values())


@dataclass(frozen=True)
class Directories:
    """What became of a base's folders: expanded ones, their children, and those that stayed one failed item."""

    expanded: int = 0
    children: int = 0
    tombstones: int = 0


@dataclass(frozen=True)
class BasePlan:
    """What becomes of one base. ``error`` is None for a completed one."""

    draft: BaseDraft
    error: str | None
    dimensions: int | None
    items: tuple[ItemPlan, ...]
    materials: tuple[MaterialPlan, ...]
    rows: Rows
    directories: Directories
    #: By loader id: the id of the child that owns its rows.
    children: dict[str, str]
    notices: tuple[Notice, ...]

    @property
    def vector_bytes(self) -> int:
        """Return the length of a vector in bytes."""
        return 4 * (self.dimensions or 0)

    @property
    def body_bytes(self) -> int:
        """Return the bytes of all bodies to be carried."""
        return sum(material.body_bytes for material in self.materials)


def plan_base(draft: BaseDraft, found: Survey | str, hints: Hints | None = None) -> BasePlan:
    """Plan one base.

    ``found`` is its vector file's survey, or why there is none (for a person); ``hints`` is what other files tell.
    """
    survey = found if isinstance(found, Survey) else None
    vector_bytes = survey.vector_bytes if survey else None
    error = None
    if draft.embedding.id is None:
        error = notices.MISSING_MODEL
    elif vector_bytes is None:
        error = notices.MISSING_STORE
    problem = found if isinstance(found, str) else "holds no usable vector"
    planner = _Planner(draft, error, survey or Survey(), vector_bytes or 0, problem)
    return planner.plan(hints or Hints(), unreadable=survey is None)


class _Planner:
    """Works one base out, step by step; used once."""

    def __init__(self, draft: BaseDraft, error: str | None, survey: Survey, vector_bytes: int, problem: str) -> None:
        self._draft = draft
        self._error = error
        self._survey = survey
        self._vector_bytes = vector_bytes
        self._problem = problem
        self._said: list[Notice] = []
        self._skipped: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = {}
        self._degenerate = Tally()
        self._unreadable = False
        #: Items whose text cannot be stored, with their rows.
        self._too_large: dict[str, int] = {}

    def plan(self, hints: Hints, *, unreadable: bool) -> BasePlan:
        draft = self._draft
        self._unreadable = unreadable
        expanded = expand(draft, self._survey, hints.paths) if self._error is None else {}
        owners = Owners(draft, expanded)
        carried = self._sort_rows(owners)
        items, index = self._items(expanded, carried)
        materials = self._materials(carried, index)
        rows = Rows(
            read=self._survey.rows,
            carried=sum(material.rows for material in materials),
            skipped=dict(self._skipped),
            v1_deduplicated=sum(map(_holes, self._owned(owners))),
        )
        tombstones = sum(item.status == "completed" for item in draft.items if item.id in owners.containers)
        self._say(owners, rows)
        return BasePlan(
            draft=draft,
            error=self._error,
            dimensions=self._dimensions(),
            items=tuple(items),
            materials=tuple(materials),
            rows=rows,
            directories=Directories(len(expanded), sum(map(len, expanded.values())), tombstones),
            children={loader: child.id for loader, child in owners.children.items()},
            notices=(*draft.notices, *self._said),
        )

    def _dimensions(self) -> int | None:
        if self._error is None:
            return self._vector_bytes // 4
        return self._draft.stated_dimensions if self._error == notices.MISSING_MODEL else None

    def _owned(self, owners: Owners) -> Iterator[LoaderRows]:
        return (rows for loader, rows in self._survey.loaders.items() if owners.owner(loader) is not None)

    # --- rows ------------------------------------------------------------------------------------------------------

    def _sort_rows(self, owners: Owners) -> dict[str, list[LoaderRows]]:
        """Book every row; return the loaders with rows to carry by the id of their item."""
        carried: dict[str, list[LoaderRows]] = {}
        for loader, rows in self._survey.loaders.items():
            owner = owners.owner(loader)
            reason = self._error or self._unowned(owner, owners)
            for kind, tally in rows.kinds.items():
                why = reason or self._unusable(kind)
                if why is not None:
                    self._skip(why, tally)
                elif owner is not None:
                    carried.setdefault(owner, []).append(rows)
        for owner in [owner for owner, loaders in carried.items() if self._content_bytes(loaders) > MAX_CONTENT_BYTES]:
            self._too_large[owner] = sum(rows.kinds[self._vector_bytes].count for rows in carried[owner])
            for rows in carried.pop(owner):
                self._skip(notices.CONTENT_TOO_LARGE, rows.kinds[self._vector_bytes])
        for rows in (rows for loaders in carried.values() for rows in loaders):
            self._degenerate.count += rows.kinds[self._vector_bytes].degenerate
        return carried

    @staticmethod
    def _unowned(owner: str | None, owners: Owners) -> str | None:
        if owner is None:
            return notices.UNMAPPED_LOADER
        return notices.NON_INDEXABLE if owner in owners.containers else None

    def _unusable(self, kind: int) -> str | None:
        if kind == vector_table.MISSING:
            return notices.MISSING_PAYLOAD
        if kind == vector_table.UNSUPPORTED:
            return notices.UNSUPPORTED_ENCODING
        return None if kind == self._vector_bytes else notices.DIMENSION_MISMATCH

    def _skip(self, reason: str, tally: Tally) -> None:
        self._skipped[reason] += tally.count
        examples = self._examples.setdefault(reason, [])
        examples.extend(tally.samples[: EXAMPLES - len(examples)])

    def _content_bytes(self, loaders: list[LoaderRows]) -> int:
        tallies = [rows.kinds[self._vector_bytes] for rows in loaders]
        separators = len(BODY_SEPARATOR) * (sum(tally.count for tally in tallies) - 1)
        return sum(tally.body_bytes for tally in tallies) + separators

    def _materials(self, carried: dict[str, list[LoaderRows]], index: dict[str, int]) -> list[MaterialPlan]:
        """Return a material for every item with rows to carry, in the order of their first such rows."""
        kind = self._vector_bytes
        ordered = sorted(carried.items(), key=lambda entry: min(rows.kinds[kind].first_rowid for rows in entry[1]))
        return [
            MaterialPlan(
                item=index[owner],
                runs=tuple(sorted(run for rows in loaders for run in _runs(rows))),
                rows=sum(rows.kinds[kind].count for rows in loaders),
                body_bytes=sum(rows.kinds[kind].body_bytes for rows in loaders),
            )
            for owner, loaders in ordered
        ]

    # --- items -----------------------------------------------------------------------------------------------------

    def _items(
        self, expanded: dict[str, tuple[Child, ...]], carried: dict[str, list[LoaderRows]]
    ) -> tuple[list[ItemPlan], dict[str, int]]:
        """Return the items in v1's order, children right after their container, and their positions by id."""
        items: list[ItemPlan] = []
        for draft in self._draft.items:
            children = expanded.get(draft.id)
            if children is None:
                items.append(self._single(draft))
                continue
            lost = [child for child in children if child.id not in carried]
            items.append(_item(draft, failed=len(lost) == len(children)))
            items.extend(_child_item(draft, child, failed=child.id not in carried) for child in children)
            self._say_lost(draft, children, lost)
        return items, {item.id: position for position, item in enumerate(items)}

    def _single(self, draft: ItemDraft) -> ItemPlan:
        if draft.id in self._too_large:
            self._say_too_large(draft, self._too_large[draft.id])
            return replace(_item(draft, failed=True), error=TOO_LARGE_TEXT)
        tombstone = draft.type == "directory" and draft.status == "completed"
        return _item(draft, failed=tombstone)

    # --- notices ---------------------------------------------------------------------------------------------------

    def _note(self, code: str, message: str, item: str | None = None, count: int = 1) -> None:
        self._said.append(Notice(code, message, self._draft.legacy_id, item, count))

    def _say_too_large(self, draft: ItemDraft, rows: int) -> None:
        said = f"{counted(rows, 'row')} not carried: the whole text is over SQLite's limit of 1 GB"
        self._note(notices.CONTENT_TOO_LARGE, said, draft.legacy_id, rows)

    def _say_lost(self, draft: ItemDraft, children: tuple[Child, ...], lost: list[Child]) -> None:
        too_large = sum(self._too_large.get(child.id, 0) for child in children)
        if too_large:
            self._say_too_large(draft, too_large)
        without_rows = sum(entry not in self._survey.loaders for entry in draft.entries)
        if without_rows:
            self._note(
                notices.ENTRIES_WITHOUT_ROWS,
                f"without rows: {without_rows} of {len(draft.entries)} files of the folder {draft.data['source']}",
                draft.legacy_id,
                without_rows,
            )
        if len(lost) == len(children) and all(child.taken_by for child in lost):
            self._note(
                notices.NOT_MIGRATED,
                f"the folder {draft.data['source']} is marked failed: all of its files belong to other items, where "
                f"their rows are",
                draft.legacy_id,
            )
        unexplained = [child for child in lost if not child.taken_by]
        if unexplained:
            self._note(
                notices.CHILD_NOT_MIGRATED,
                f"without a row that could be carried: {len(unexplained)} of {len(children)} files of the folder "
                f"{draft.data['source']}",
                draft.legacy_id,
                len(unexplained),
            )

    def _say(self, owners: Owners, rows: Rows) -> None:
        self._say_failed()
        self._said.extend(owners.notices)
        for item in self._draft.items:
            if item.type == "directory" and item.status == "completed" and item.id in owners.containers:
                self._say_tombstone(item)
        for reason, count in rows.skipped.items():
            if reason not in (self._error, notices.CONTENT_TOO_LARGE):
                self._note(reason, f"{counted(count, 'row')} not carried{self._example_text(reason)}", count=count)
        if self._degenerate.count:
            count = self._degenerate.count
            said = f"{counted(count, 'vector')} zero, NaN or infinite; carried as v1 has them"
            self._note(notices.DEGENERATE, said, count=count)
        if rows.v1_deduplicated:
            count = rows.v1_deduplicated
            self._note(
                notices.DEDUPLICATED,
                f"{counted(count, 'chunk')} never stored by v1, which had the text already",
                count=count,
            )

    def _say_failed(self) -> None:
        if self._error is None:
            return
        why = self._draft.embedding.problem
        if self._error == notices.MISSING_STORE:
            why = f"its vector file {self._draft.vector_file} {self._problem}"
        count = self._skipped[self._error]
        lost = f"; {counted(count, 'row')} not carried{self._example_text(self._error)}" if count else ""
        self._note(self._error, f"{why}{lost}", count=max(count, 1))

    def _say_tombstone(self, item: ItemDraft) -> None:
        later = ""
        if self._error == notices.MISSING_STORE and self._unreadable:
            later = "; a later run can still recover it, once the vector file can be read"
        none = f"none of its {len(item.entries)} files has rows" if item.entries else "v1 lists no files of it"
        why = "its base failed" if self._error else none
        said = f"the folder {item.data['source']} stays one failed item: {why}{later}"
        self._note(notices.NOT_MIGRATED, said, item.legacy_id)

    def _example_text(self, reason: str) -> str:
        examples = self._examples.get(reason)
        return f" (for example {', '.join(examples)})" if examples else ""


def _holes(rows: LoaderRows) -> int:
    return max(0, rows.highest_number + 1 - rows.rows) if rows.highest_number >= 0 else 0


def _runs(rows: LoaderRows) -> Iterator[tuple[int, int]]:
    return zip(rows.runs[::2], rows.runs[1::2], strict=True)


def _item(draft: ItemDraft, *, failed: bool) -> ItemPlan:
    return ItemPlan(
        id=draft.id,
        legacy_id=draft.legacy_id,
        group_id=None,
        type=draft.type,
        data=draft.data,
        status="failed" if failed else draft.status,
        error=notices.NOT_MIGRATED if failed else draft.error,
        created_at=draft.created_at,
        updated_at=draft.updated_at,
        upload=draft.upload,
    )


def _child_item(container: ItemDraft, child: Child, *, failed: bool) -> ItemPlan:
    return ItemPlan(
        id=child.id,
        legacy_id=None,
        group_id=container.id,
        type="file",
        data={"source": child.source, "relativePath": child.id},
        status="failed" if failed else "completed",
        error=notices.NOT_MIGRATED if failed else None,
        created_at=container.created_at,
        updated_at=container.updated_at,
    )
