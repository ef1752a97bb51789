"""Plan what can be restored of one base: its v1 draft, planned again with the ids and paths of the profile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import get_indexed_path, is_tombstone
from migrators.pipeline.plan import BasePlan, ItemPlan, MaterialPlan, assign_raw_paths, plan_base
from migrators.pipeline.source import BaseDraft, ItemDraft
from regraft.disk import file_paths, sqlite, untrusted_sqlite
from regraft.disk.file_paths import FreeNames
from regraft.disk.trees import SourceReadFailed
from regraft.errors import SourceUnreadable
from regraft.formats.cherry_v2.catalog import ModelRow
from regraft.formats.cherry_v2.catalog_reader import Row, StoredCatalog
from regraft.formats.cherry_v2.index.opening import READ_ERRORS, check_identity
from regraft.formats.cherry_v2.index.schema import choose_vector_length, count_vector_lengths
from regraft.formats.cherry_v2.models import ModelOverrides
from regraft.formats.vector_survey import StoreProblem, VectorSurvey
from regraft.identity import replace
from regraft.language import tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.stores.locate import RAW_FOLDER
from regraft.text import is_blank, join_command
from repair.changes.plan import Unresolved
from repair.changes.store import Store
from repair.cherry_v2.item_paths import find_taken_paths, free_snapshot_names, is_safe_path
from repair.cherry_v2.rescue.matching import match_folder_files, match_items
from repair.cherry_v2.rescue.v1_files import MigratedFile, NewSnapshot, V1Data, read_texts


class IndexContents(msgspec.Struct, frozen=True):
    """What an index file already has: paths of materials by id, and the length of vectors in bytes."""

    #: Whether the index has rows that a new file would lose.
    has_rows: bool = False
    materials: dict[str, str] = msgspec.field(default_factory=dict)
    vector_bytes: int | None = None

    def lacks(self, item: Row) -> bool:
        """Whether a completed item has no text in the index."""
        is_to_have = item.get("type") in ("file", "url", "note") and item.get("status") == "completed"
        return is_to_have and item.get("id") not in self.materials


_TABLES = ("material", "search_unit", "search_text", "embedding")


def read_index_contents(path: Path, base_id: str, dimensions: int | None) -> IndexContents | None:
    """Read what the index of a base has; None without a file.

    Args:
        path: the index file.
        base_id: the id of the base.
        dimensions: from the catalog; without them, the most frequent length counts.

    Raises:
        RegraftError: the index is damaged, of another version or base, or only its log exists.
    """
    if not untrusted_sqlite.is_database(path) and untrusted_sqlite.find_companions(path):
        # SQLite would apply the log to a new file at this path.
        raise SourceUnreadable(
            path=path, reason=tr("the database file is missing or damaged, but its log or journal exists")
        )
    if not path.exists():
        return None
    try:
        with sqlite.open_readonly(path) as db:
            if db.execute("SELECT 1 FROM sqlite_schema").get is None:
                return IndexContents()
            check_identity(db, path, base_id)
            has_rows = any(db.execute(f"SELECT 1 FROM {table} LIMIT 1").get is not None for table in _TABLES)
            rows = untrusted_sqlite.read_lenient_rows(db, ("material_id", "relative_path"), "material")
            materials = {str(material): str(path) for material, path in rows}
            lengths = count_vector_lengths(db)
            return IndexContents(has_rows, materials, choose_vector_length(lengths, dimensions) if lengths else None)
    except READ_ERRORS as error:
        raise SourceUnreadable(path=path, reason=error) from error


class StrandedBase(msgspec.Struct, frozen=True, kw_only=True):
    """A base of the profile in which something may be missing: its rows and the content of its index."""

    key: str
    row: Row
    items: list[Row]
    #: Name of the index below the store's root.
    index: str
    held: IndexContents | None
    #: The most severe finding that a rescue may resolve.
    finding: str

    @property
    def is_failed(self) -> bool:
        """Whether the base failed."""
        return self.row.get("status") == "failed"

    @property
    def is_bare(self) -> bool:
        """Whether the index is missing or empty."""
        return self.held is None or not self.held.has_rows

    @property
    def has_only_texts(self) -> bool:
        """Whether the base failed and has texts without vectors."""
        return self.is_failed and self.held is not None and bool(self.held.materials) and self.held.vector_bytes is None

    @property
    def materials(self) -> dict[str, str]:
        """Paths of the materials in the index, by id."""
        return {} if self.held is None else self.held.materials

    def wants_text(self, item: str, row: Row | None) -> bool:
        """Whether the index lacks the text of an item that should have one; ``row``: the item's row, if any."""
        is_wanted = row is None or self.is_failed or self.is_bare or row.get("status") == "completed"
        return item not in self.materials and (is_wanted or _was_not_migrated(row))

    def left(self, why: str, repair: str | None = None) -> Unresolved:
        """Leave the base as it is; ``repair`` is a command line that may help."""
        grave = self.finding in (v2.BASE_FAILED, v2.BASE_NO_INDEX)
        return Unresolved(
            finding=self.finding, reason=why, base=self.key, severity="warning" if grave else "note", repair=repair
        )


class RescuedBase(msgspec.Struct, kw_only=True):
    """What is restored of a base."""

    base: StrandedBase
    #: The materials to migrate: those that the index lacks, with the profile's ids and paths.
    v1: MigratedFile
    draft: BaseDraft
    #: The profile's rows, by item id.
    rows: dict[str, Row]
    snapshots: list[NewSnapshot] = msgspec.field(default_factory=list)
    #: Notices of the plan.
    notices: tuple[Notice, ...] = ()

    @property
    def plan(self) -> BasePlan:
        """Plan of the migrated rows."""
        return self.v1.plan

    @property
    def texts(self) -> set[str]:
        """Ids of the items that have a text in the index afterwards."""
        return {self.plan.items[material.item].id for material in self.plan.materials} | self.base.materials.keys()

    @property
    def completed(self) -> list[ItemPlan]:
        """Items that the upgrade could not migrate and that are complete now."""
        there = self.texts
        return [
            item
            for item in self.plan.items
            if _was_not_migrated(self.rows.get(item.id))
            and item.status == "completed"
            and (item.type == "directory" or item.id in there)
        ]

    @property
    def new(self) -> list[ItemPlan]:
        """Restored files of folders; in an existing base, only of folders with a text."""
        folders = {item.id: item for item in self.plan.items if item.type == "directory"}
        every = self.base.is_failed or self.base.is_bare
        return [
            item
            for item in self.plan.items
            if item.id not in self.rows
            and item.group_id in folders
            and (every or folders[item.group_id].status == "completed")
        ]


def _was_not_migrated(row: Row | None) -> bool:
    """Whether the upgrade could not migrate an item."""
    return row is not None and row.get("status") == "failed" and row.get("error") == notices.NOT_MIGRATED


class _NotRescuable(Exception):
    """A base cannot be rescued: the reason, and a command line that may help."""

    def __init__(self, why: str, repair: str | None = None) -> None:
        super().__init__(why)
        self.why, self.repair = why, repair


class RescuePlanner:
    """Plans the rescue of bases one by one. Reports about bases that are left as they are collect in ``left``."""

    def __init__(
        self, store: Store, v1: V1Data, catalog: StoredCatalog, model_overrides: ModelOverrides, now_ms: int
    ) -> None:
        self._store = store
        self._v1 = v1
        self._catalog = catalog
        self._model_overrides = model_overrides
        self._now = now_ms
        self.left: list[Unresolved] = []

    def plan_base_rescue(self, base: StrandedBase, draft: BaseDraft) -> RescuedBase | None:
        """Plan the rescue of a base; None if nothing can be restored."""
        try:
            return self._plan_rescue(base, draft)
        except _NotRescuable as error:
            self.left.append(base.left(error.why, error.repair))
        except StoreProblem as problem:
            is_salvageable = problem.salvage is not None and problem.salvage.rows > 0 and self._gains(base, draft)
            command = self._command("--salvage", *self._store.base_option(base.key)) if is_salvageable else None
            self.left.append(base.left(str(problem), command))
        return None

    def _gains(self, base: StrandedBase, draft: BaseDraft) -> bool:
        """Whether a base gets anything from a salvage of its vector file."""
        # The rows of a completed base may have been salvaged already.
        if base.finding in (v2.BASE_FAILED, v2.BASE_NO_INDEX):
            return True
        salvaging = replace(self._v1, salvage=True)
        planner = RescuePlanner(self._store, salvaging, self._catalog, self._model_overrides, self._now)
        rescued = planner.plan_base_rescue(base, draft)
        return rescued is not None and bool(rescued.plan.materials or rescued.completed)

    def _command(self, *options: str) -> str:
        """Command line of another rescue, with the decisions about models that the user already made."""
        recreated = (("--recreate-model", model) for model in sorted(self._model_overrides.recreated))
        mapped = (("--map-model", f"{old}={new}") for old, new in self._model_overrides.mapped.items())
        return self._store.command_line("rescue", *chain.from_iterable((*recreated, *mapped)), *options)

    def _plan_rescue(self, base: StrandedBase, draft: BaseDraft) -> RescuedBase:
        """Plan to migrate the rows that v1's file has of a base; raises _NotRescuable if that is impossible."""
        self._check_model(base, draft)
        if base.has_only_texts:
            raise _NotRescuable(
                tr(
                    "its index has the texts without vectors; migrate the v1 data again with --map-model, or "
                    "restore the base with a new model"
                )
            )
        file = self._v1.survey(draft)
        found = file.survey
        own, rows, name = self._with_profile_ids(base, draft, found)
        planned = self._plan_base(base, own, found)
        if planned.error is not None:
            raise _NotRescuable(next(notice.message for notice in planned.notices if notice.code == planned.error))
        if base.held is not None and base.held.vector_bytes not in (None, planned.vector_bytes):
            raise _NotRescuable(tr("the vectors in its index differ in length from those in v1's file"))
        planned = replace(planned, items=tuple(map(name, planned.items)))
        whole = MigratedFile(tree=file.tree, path=file.path, table=file.table, plan=planned, mark=file.mark)
        missing = tuple(self._missing_materials(base, planned, rows))
        bare = tuple(_without_snapshot(base, planned))
        names = _snapshot_names(base, planned)
        try:
            v1, snapshots = read_texts(whole.limited_to((*missing, *bare)), names, self._raw(base), base.materials)
        except SourceReadFailed as failed:
            raise _NotRescuable(
                tr(
                    "its vector file {vector_file} cannot be read: {failed}",
                    vector_file=draft.vector_file,
                    failed=failed,
                )
            ) from failed
        return RescuedBase(
            base=base, v1=v1.limited_to(missing), draft=draft, rows=rows, snapshots=snapshots, notices=planned.notices
        )

    def _plan_base(self, base: StrandedBase, own: BaseDraft, found: VectorSurvey) -> BasePlan:
        """Plan a base beside its present content. Material that a stopped run added belongs to the plan's own items."""
        hints, listed = self._v1.hints(own, found, self._now), {row.get("id") for row in base.items}

        def plan(materials: Iterable[str]) -> BasePlan:
            """Plan the base; paths of other items and materials are taken."""
            return plan_base(own, found, hints, taken=find_taken_paths(base.items, materials, self._raw(base)))

        known = [path for key, path in base.materials.items() if key in listed]
        planned = plan(known)
        coming = {item.id for item in planned.items} | listed
        others = [path for key, path in base.materials.items() if key not in coming]
        return plan([*known, *others]) if others else planned

    def _raw(self, base: StrandedBase) -> Path:
        """Return the folder of the base's raw files."""
        return self._store.root / self._store.bases / base.key / RAW_FOLDER

    # --- its model --------------------------------------------------------------------------------------------------

    def _check_model(self, base: StrandedBase, draft: BaseDraft) -> None:
        """Refuse a base whose model does not match v1's vectors."""
        model, wanted = base.row.get("embedding_model_id"), draft.embedding.model
        if wanted is None:
            raise _NotRescuable(draft.embedding.problem)
        if model is not None and model != wanted.id:
            same = join_command(["--map-model", f"{wanted.id}={model}"])
            raise _NotRescuable(
                tr(
                    (
                        "its model is {model}, but v1's vectors were made with {id}; if both are the same model, "
                        "use {same}"
                    ),
                    model=model,
                    id=wanted.id,
                    same=same,
                )
            )
        if wanted.id not in {row.get("id") for row in self._catalog.models or ()}:
            self._demand_model_option(wanted)

    def _demand_model_option(self, wanted: ModelRow) -> None:
        """Refuse a model that the profile lacks, unless an option says to create it."""
        mapped = join_command(["--map-model", f"{wanted.id}=PROVIDER::MODEL"])
        if wanted.provider_id not in {row.get("provider_id") for row in self._catalog.providers or ()}:
            gone = tr(
                "its model {id} and the provider {provider_id} are not in the profile",
                id=wanted.id,
                provider_id=wanted.provider_id,
            )
            raise _NotRescuable(
                tr("{gone}; add the provider in the application first, or use {mapped}", gone=gone, mapped=mapped)
            )
        if wanted.id not in self._model_overrides.recreated:
            again = join_command(["--recreate-model", wanted.id])
            salvage = ("--salvage",) if self._v1.salvage else ()
            command = self._command(*salvage, "--recreate-model", wanted.id)
            message = tr(
                "its model {id} is not in the profile; add it in the application, or use {again} or {mapped}",
                id=wanted.id,
                again=again,
                mapped=mapped,
            )
            raise _NotRescuable(message, command)

    # --- its draft with the profile's ids -----------------------------------------------------------------------------

    def _with_profile_ids(
        self, base: StrandedBase, draft: BaseDraft, survey: VectorSurvey
    ) -> tuple[BaseDraft, dict[str, Row], Callable[[ItemPlan], ItemPlan]]:
        """Give a draft the profile's ids.

        Returns:
            The draft, the rows by these ids, and a function that names files of folders.
        """
        matched = match_items(base.items, draft.items, assign_raw_paths(draft, {}).files)
        pairs = [(row, item) for row, item in matched.pairs if _has_safe_path(row)]
        rows = {row["id"]: row for row, _ in pairs}
        items = tuple(self._item(base, item, row) for row, item in pairs)
        own = replace(draft, id=base.key, items=items)
        own, children, unsure = match_folder_files(
            own, survey, base.items, lambda folder: is_tombstone(rows[folder]), base.materials
        )
        for row in [*matched.unsure, *unsure]:
            finding = v2.ITEM_TOMBSTONE if is_tombstone(row) else v2.ITEM_NO_MATERIAL
            self.left.append(
                Unresolved(
                    finding=finding,
                    reason=tr("several v1 items match this one"),
                    base=base.key,
                    subject=str(row.get("id")),
                )
            )

        def named(item: ItemPlan) -> ItemPlan:
            """Give a planned item the id and the path of the row that it belongs to."""
            row = children.get(item.id)
            if row is not None:
                data = {**item.data, "relativePath": get_indexed_path(row) or row["id"]}
                item = structs.replace(item, id=row["id"], data=data)
            # Uploads are copied separately.
            return structs.replace(item, upload=None)

        return own, {**rows, **{row["id"]: row for row in children.values()}}, named

    def _item(self, base: StrandedBase, item: ItemDraft, row: Row) -> ItemDraft:
        """An item with the id and path of its row. A missing snapshot gets no path and is written again."""
        data = {key: value for key, value in item.data.items() if key != "relativePath"}
        path = get_indexed_path(row)
        if path is not None and (
            item.type == "file" or (is_safe_path(path) and file_paths.is_file(self._raw(base) / path))
        ):
            data["relativePath"] = path
        return structs.replace(item, id=row["id"], data=data, file_name=None)

    # --- what is missing ----------------------------------------------------------------------------------------------

    def _missing_materials(self, base: StrandedBase, planned: BasePlan, rows: dict[str, Row]) -> Iterator[MaterialPlan]:
        """Yield the materials that the index lacks, of items that should have one."""
        taken = set(base.materials.values())
        for material in planned.materials:
            item = planned.items[material.item]
            path = item.data.get("relativePath")
            if not base.wants_text(item.id, rows.get(item.id)):
                continue
            why = None if path is None else _path_problem(path, taken)
            if why is None:
                taken.add(path or item.id)
                yield material
            else:
                reason = tr("its path {path} cannot be used: {why}", path=path, why=why)
                self.left.append(Unresolved(finding=v2.ITEM_NO_MATERIAL, reason=reason, base=base.key, subject=item.id))


def _path_problem(path: Any, taken: set[str]) -> str | None:
    """Why a text cannot have a path; None if it can."""
    if path in taken:
        return tr("another text in its index has the same path")
    return None if is_safe_path(path) else tr("it is outside the base's folder")


def _snapshot_names(base: StrandedBase, planned: BasePlan) -> FreeNames:
    """Return the paths that new snapshots must not have."""
    prefixes = [
        item.data["relativePath"] for item in planned.items if item.type == "directory" and "relativePath" in item.data
    ]
    # Snapshots that a stopped run left on disk are used again.
    known = find_taken_paths(base.items, base.materials.values())
    return free_snapshot_names(known, prefixes, reserve_processed=not is_blank(base.row.get("file_processor_id")))


def _without_snapshot(base: StrandedBase, planned: BasePlan) -> Iterator[MaterialPlan]:
    """Yield the materials that a stopped run added to the index before it wrote their snapshots."""
    for material in planned.materials:
        item = planned.items[material.item]
        if base.is_failed and item.id in base.materials and "relativePath" not in item.data:
            yield material


def _has_safe_path(row: Row) -> bool:
    """Whether an item's path is safe, or missing where it may be."""
    path = get_indexed_path(row)
    return row.get("type") != "file" if path is None else is_safe_path(path)
