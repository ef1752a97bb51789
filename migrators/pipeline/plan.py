"""The second half of the plan: a drafted base and what its vector file holds → what becomes of every item and row.

Pure, like the draft. What a dry run prints is this very plan. Rules: ``docs/rules.md``, "Folders", "Rows" and
"Duplicates".
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from migrators.pipeline.accounting import EXAMPLES, WITHOUT_VECTOR, CarriedRows, CarryPolicy, RowAccounting
from migrators.pipeline.drafts import BaseDraft, ItemDraft
from migrators.pipeline.duplicates import (
    DuplicateRules,
    Missing,
    Restored,
    holes,
    listed_names,
    name_in,
    said_of,
    said_of_missing,
    said_without_rows,
    without_rows,
)
from migrators.pipeline.folders import TakenPaths, lay_out
from migrators.pipeline.losses import Losses, losses, said_of_losses
from migrators.pipeline.ownership import Child, Owners, expand
from migrators.pipeline.packed import Packed
from migrators.pipeline.plan_model import BasePlan, Directories, ItemPlan, MaterialPlan, Rows
from migrators.pipeline.planned_items import child_plan, item_plan, names_of
from migrators.pipeline.source import Found, Hints
from regraft.formats.vector_survey import LoaderRows, StoreProblem, Survey
from regraft.language import joined, tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.text import counted

logger = logging.getLogger(__name__)

__all__ = ["BasePlan", "ItemPlan", "MaterialPlan", "Rows", "TakenPaths", "plan_base"]

#: SQLite's limit for one row is 1,000,000,000 bytes; a content text may take all of it but for its hash and time.
MAX_CONTENT_BYTES = 1_000_000_000 - 1_000
#: The error of an item whose text is larger.
TOO_LARGE_TEXT = "The text of this item is over SQLite's limit of 1 GB."


def plan_base(
    draft: BaseDraft,
    found: Survey | StoreProblem,
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
        survey, problem, vector_bytes, unreadable = Survey(), found, None, True
    else:
        survey, problem, unreadable = found, StoreProblem(tr("holds no usable vector")), False
        vector_bytes = _vector_bytes(draft, found)
    terms = CarryPolicy(
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


def _vector_bytes(draft: BaseDraft, survey: Survey) -> int | None:
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
        self, draft: BaseDraft, survey: Survey, terms: CarryPolicy, problem: StoreProblem, taken: TakenPaths | None
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
        self._restored: dict[str, Restored] = {}

    def plan(self, hints: Hints, *, unreadable: bool) -> BasePlan:
        draft = self._draft
        self._unreadable, self._hints = unreadable, hints
        sources = hints.paths
        expanded = expand(draft, self._survey, sources) if self._carries else {}
        owners = Owners(draft, expanded)
        self._books = RowAccounting(self._survey, owners, self._terms)
        carried = self._books.carried
        found = self._restorable(owners, carried)
        if found and hints.restore_twins:
            # Rows keep the owners that they have: the children that are new have none.
            self._restored = found
            paths = {loader: one.twin.path for loader, one in found.items() if one.twin.path}
            expanded = expand(draft, self._survey, sources, paths)
            owners = Owners(draft, expanded)
        self._layout = lay_out(draft, expanded, self._taken)
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

    def _directories(self, owners: Owners, expanded: dict[str, tuple[Child, ...]]) -> Directories:
        tombstones = [item for item in self._draft.folders if item.is_to_expand and item.id in owners.containers]
        return Directories(len(expanded), sum(map(len, expanded.values())), len(tombstones))

    def _rows(self, own: list[MaterialPlan], copies: list[MaterialPlan], missing: list[Missing]) -> Rows:
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

    def _materials(self, carried: dict[str, list[CarriedRows]], index: dict[str, int]) -> list[MaterialPlan]:
        """Return a material for every item with rows to carry, in the order of their first such rows."""
        ordered = sorted(carried.items(), key=lambda entry: min(share.first_rowid for share in entry[1]))
        return [self._material(index[owner], shares) for owner, shares in ordered]

    def _material(self, item: int, shares: list[CarriedRows]) -> MaterialPlan:
        return MaterialPlan(
            item=item,
            runs=tuple(sorted(run for share in shares for run in _runs(share.loader))),
            rows=sum(share.rows for share in shares),
            body_bytes=sum(share.body_bytes for share in shares),
            digest=sum(share.digest for share in shares),
            is_finite=not any(-self._terms.vector_bytes in share.loader.kinds for share in shares),
        )

    # --- duplicates ------------------------------------------------------------------------------------------------

    def _restorable(self, owners: Owners, carried: dict[str, list[CarriedRows]]) -> dict[str, Restored]:
        """Return the files without rows whose twin is a file with rows to carry, by loader id."""
        found: dict[str, Restored] = {}
        if not self._hints.twins:
            return found
        judge = DuplicateRules(self._draft, owners)
        for twin in self._hints.twins:
            item, owner = judge.taker(twin), judge.giver(twin)
            if item is None or owner is None or twin.loader_id in self._survey.loaders:
                continue
            if owner in carried and item.id not in carried:
                rows, is_partial = _part_of(carried[owner])
                one = Restored(twin=twin, item=item, owner=owner, rows=rows, partial=is_partial)
                found.setdefault(twin.loader_id, one)
        return found

    def _found(self, restorable: dict[str, Restored]) -> Found:
        """Return what a later run needs of the hints, should it find less."""
        entries = {entry for item in self._draft.folders for entry in item.entries}
        paths = {loader: path for loader, path in self._hints.paths.items() if loader in entries}
        return Found(paths, tuple(one.twin for one in restorable.values()))

    def _restored_items(self, owners: Owners) -> dict[str, Restored]:
        """Return what is restored by the id of the item that gets it."""
        claimed = ((owners.owner(loader), one) for loader, one in self._restored.items())
        return {owner: one for owner, one in claimed if owner is not None}

    def _copies(
        self, owners: Owners, carried: dict[str, list[CarriedRows]], index: dict[str, int]
    ) -> list[MaterialPlan]:
        """Return a material for every restored file, in item order: the rows of its twin once more."""
        restored = self._restored_items(owners)
        return [
            self._material(index[owner], carried[restored[owner].owner])
            for owner in sorted(restored, key=index.__getitem__)
        ]

    def _missing(self, owners: Owners, items: Packed[ItemPlan]) -> list[Missing]:
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
                chunks[owner] += holes(found)
                rows[owner] += found.rows
        return [
            Missing(name=name, legacy_id=legacy_id, chunks=chunks[item], rows=rows[item])
            for item, name, legacy_id in names_of(items, +chunks)
        ]

    # --- items -----------------------------------------------------------------------------------------------------

    def _items(self, expanded: dict[str, tuple[Child, ...]], filled: set[str]) -> Packed[ItemPlan]:
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
            items.append(item_plan(draft, self._layout.prefixes[draft.id], failed=len(lost) == len(children)))
            items.extend(child_plan(draft, one, paths[one.id], failed=one.id not in filled) for one in children)
            self._say_lost(draft, children, lost)
            self._say_outside(draft)
        return items

    def _single(self, draft: ItemDraft) -> ItemPlan:
        path = self._layout.files.get(draft.id)
        if draft.id in self._books.too_large:
            self._say_too_large(draft, self._books.too_large[draft.id])
            return replace(item_plan(draft, path, failed=True), error=TOO_LARGE_TEXT)
        return item_plan(draft, path, failed=draft.is_to_expand)

    # --- notices ---------------------------------------------------------------------------------------------------

    def _note(self, code: str, message: str, item: str | None = None, count: int = 1) -> None:
        self._said.append(Notice(code=code, message=message, base=self._draft.legacy_id, item=item, count=count))

    def _say_too_large(self, draft: ItemDraft, rows: int) -> None:
        said = tr("{rows} not carried: the whole text is over SQLite's limit of 1 GB", rows=counted(rows, "row"))
        self._note(notices.CONTENT_TOO_LARGE, said, draft.legacy_id, rows)

    def _say_lost(self, draft: ItemDraft, children: tuple[Child, ...], lost: list[Child]) -> None:
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
                files=counted(count, "file"),
                source=draft.data["source"],
            )
            self._note(notices.CHILD_OUTSIDE, said, draft.legacy_id, count)

    def _say_without_rows(self, draft: ItemDraft, children: tuple[Child, ...]) -> None:
        made = {child.loader_id for child in children}
        entries = dict.fromkeys(draft.entries)
        without = [entry for entry in entries if entry not in self._survey.loaders and entry not in made]
        if without:
            folder, paths = draft.data["source"], self._hints.paths
            known = [name_in(folder, paths[entry]) for entry in without if entry in paths]
            names = f" ({listed_names(known)})" if known else ""
            said = tr(
                "{without} of {entries} files of the folder {folder} have no rows in v1{names}",
                without=len(without),
                entries=len(entries),
                folder=folder,
                names=names,
            )
            self._note(notices.ENTRIES_WITHOUT_ROWS, said, draft.legacy_id, len(without))

    def _say_duplicates(self, owners: Owners, found: dict[str, Restored]) -> None:
        base = self._draft.legacy_id
        self._said.extend(said_of(one, base, restored=loader in self._restored) for loader, one in found.items())
        if self._carries:
            told = {one.item.id for one in found.values()}
            self._said.extend(said_without_rows(base, without_rows(self._draft, self._survey, owners, told)))

    def _say(self, owners: Owners, rows: Rows, missing: list[Missing]) -> None:
        self._say_failed()
        self._say_renamed()
        self._said.extend(owners.notices)
        for item in self._draft.folders:
            if item.is_to_expand and item.id in owners.containers:
                self._say_tombstone(item)
        for reason, count in rows.skipped.items():
            if reason not in (self._error, notices.CONTENT_TOO_LARGE):
                has_no_text = self._terms.carry_text and reason in WITHOUT_VECTOR
                self._say_not_carried(reason, count, tr("without a text, too") if has_no_text else "")
        self._say_bare()
        if self._books.degenerate:
            count = self._books.degenerate
            said = tr(
                "{vectors} without a direction (zeros, or a norm beyond single precision); carried as they are",
                vectors=counted(count, "vector"),
            )
            self._note(notices.DEGENERATE, said, count=count)
        self._said.extend(said_of_missing(self._draft.legacy_id, missing))

    def _say_losses(self, owners: Owners, items: Packed[ItemPlan]) -> Losses:
        """Say of a salvaged base what of it could be read, and which items lost rows."""
        tally, found = self._survey.salvage, losses(self._survey, owners)
        if tally is not None and self._error is None:
            names = partial(names_of, items, {*found.lost, *found.open})
            said = said_of_losses(self._draft.legacy_id, self._draft.vector_file, tally, found, names)
            self._said.extend(said)
        return found

    def _say_renamed(self) -> None:
        count = self._layout.renamed
        if count:
            said = tr("{files} got another name because theirs was taken", files=counted(count, "file"))
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
            tr("{rows} not carried{examples}", rows=counted(count, "row"), examples=_examples(samples)) if count else ""
        )
        message = joined(filter(None, (why, lost)), between=tr("; "))
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
            reasons = joined(f"{count:,} {reason}" for reason, count in bare.rows.items())
            samples = tuple(sample for some in bare.examples.values() for sample in some)[:EXAMPLES]
            count = bare.rows.total()
            said = tr(
                "{rows} carried without a vector: {reasons}{examples}",
                rows=counted(count, "row"),
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


def _part_of(shares: list[CarriedRows]) -> tuple[int, bool]:
    """Return how many rows of a file are carried, and whether v1 had more of it."""
    loaders = [share.loader for share in shares]
    rows = sum(share.rows for share in shares)
    return rows, any(map(holes, loaders)) or rows < sum(one.rows for one in loaders)


def _runs(rows: LoaderRows) -> Iterator[tuple[int, int]]:
    return zip(rows.runs[::2], rows.runs[1::2], strict=True)


def _examples(samples: tuple[str, ...]) -> str:
    return tr(" (for example {samples})", samples=joined(samples)) if samples else ""
