"""Plan what can be restored of one base: its v1 draft, planned again with the ids and paths of the profile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

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
from repair.cherry_v2.indexing import has_own_text
from repair.cherry_v2.item_paths import find_taken_paths, free_snapshot_names, is_safe_path
from repair.cherry_v2.rescue.matching import match_folder_files, match_items
from repair.cherry_v2.rescue.v1_files import MigratedFile, NewSnapshot, V1Data, read_texts


class IndexContents(msgspec.Struct, frozen=True):
    """What an index has already: the paths of materials by id, and the length of vectors in bytes."""

    #: Whether the index has rows that a new file would lose.
    has_rows: bool = False
    materials: dict[str, str] = msgspec.field(default_factory=dict)
    vector_bytes: int | None = None

    def lacks(self, item: Row) -> bool:
        """Whether an item is completed and should have a text, but has none in the index."""
        is_lacking = item.get("id") not in self.materials
        return is_lacking and has_own_text(item) and item.get("status") == "completed"


_TABLES = ("material", "search_unit", "search_text", "embedding")


def read_index_contents(path: Path, base_id: str, dimensions: int | None) -> IndexContents | None:
    """Read what the index of a base has already; None without a file.

    Args:
        path: the index file.
        base_id: the id of the base.
        dimensions: from the catalog; None: the most frequent length of vectors counts.

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
    """A base of the profile in which v1 data may be missing: its id and rows, and the contents of its index."""

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
        """Whether the base has failed."""
        return self.row.get("status") == "failed"

    @property
    def is_bare(self) -> bool:
        """Whether the index is missing or has no rows."""
        return self.held is None or not self.held.has_rows

    @property
    def has_only_texts(self) -> bool:
        """Whether the base has failed, and its index has texts but no vectors."""
        return self.is_failed and self.held is not None and bool(self.held.materials) and self.held.vector_bytes is None

    @property
    def materials(self) -> dict[str, str]:
        """Paths of the materials in the index, by id."""
        return {} if self.held is None else self.held.materials

    def wants_text(self, item: str, row: Row | None) -> bool:
        """Whether the index lacks the text of the item with this id, and should have it; ``row`` is its row, if any."""
        is_wanted = row is None or self.is_failed or self.is_bare or row.get("status") == "completed"
        return item not in self.materials and (is_wanted or _was_not_migrated(row))

    def report(self, why: str, repair: str | None = None) -> Unresolved:
        """Report that the base stays as it is, and why; ``repair`` is a command line that may help."""
        grave = self.finding in (v2.BASE_FAILED, v2.BASE_NO_INDEX)
        return Unresolved(
            finding=self.finding, reason=why, base=self.key, severity="warning" if grave else "note", repair=repair
        )


class RescuedBase(msgspec.Struct, kw_only=True):
    """What is restored of a base from v1's files."""

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
        """The plan of the rows that are migrated."""
        return self.v1.plan

    @property
    def texts(self) -> set[str]:
        """Ids of the items that have a text in the index after the rescue."""
        return {self.plan.items[material.item].id for material in self.plan.materials} | self.base.materials.keys()

    @property
    def completed(self) -> list[ItemPlan]:
        """Items that the application's upgrade could not migrate and that the rescue completes."""
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
        """Files of folder items that get a row; in an existing base, only of folders with a text."""
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
    """Whether this is the row of an item that the application's upgrade could not migrate."""
    return row is not None and row.get("status") == "failed" and row.get("error") == notices.NOT_MIGRATED


class _NotRescuable(Exception):
    """A base cannot be rescued: the reason, and a command line that may help."""

    def __init__(self, why: str, repair: str | None = None) -> None:
        super().__init__(why)
        self.why, self.repair = why, repair


class RescuePlanner:
    """Plans the rescue of bases one by one. Reports about bases that stay as they are collect in :attr:`left`."""

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
        """Plan what is restored of a base from its v1 draft; None, with a report, if nothing can be."""
        try:
            return self._plan_rescue(base, draft)
        except _NotRescuable as error:
            self.left.append(base.report(error.why, error.repair))
        except StoreProblem as problem:
            is_salvageable = (
                problem.salvage is not None and problem.salvage.rows > 0 and self._would_restore(base, draft)
            )
            command = self._command("--salvage", *self._store.base_option(base.key)) if is_salvageable else None
            self.left.append(base.report(str(problem), command))
        return None

    def _would_restore(self, base: StrandedBase, draft: BaseDraft) -> bool:
        """Whether salvaging the damaged v1 vector file of a base would restore anything."""
        # The rows of a completed base may have been salvaged already.
        if base.finding in (v2.BASE_FAILED, v2.BASE_NO_INDEX):
            return True
        salvaging = replace(self._v1, salvage=True)
        planner = RescuePlanner(self._store, salvaging, self._catalog, self._model_overrides, self._now)
        rescued = planner.plan_base_rescue(base, draft)
        return rescued is not None and bool(rescued.plan.materials or rescued.completed)

    def _command(self, *options: str) -> str:
        """Return the command line of another rescue with these options, and those for models that the user gave."""
        recreated = (("--recreate-model", model) for model in sorted(self._model_overrides.recreated))
        mapped = (("--map-model", f"{old}={new}") for old, new in self._model_overrides.mapped.items())
        return self._store.command_line("rescue", *chain.from_iterable((*recreated, *mapped)), *options)

    def _plan_rescue(self, base: StrandedBase, draft: BaseDraft) -> RescuedBase:
        """Plan to migrate the rows of a base's v1 vector file whose texts its index lacks, by its v1 draft.

        Texts whose path cannot be used are reported in :attr:`left`.

        Raises:
            _NotRescuable: the base's model or texts do not permit it.
            StoreProblem: the vector file cannot be used.
        """
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
        without_snapshot = tuple(_indexed_without_snapshot(base, planned)) if base.is_failed else ()
        names = _snapshot_names(base, planned)
        try:
            file_to_read = whole.limited_to((*missing, *without_snapshot))
            v1, snapshots = read_texts(file_to_read, names, self._raw(base), base.materials)
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
        """Plan the migration of a base beside its present content.

        Materials that an earlier, stopped rescue added count as those of the plan's own items.

        Args:
            base: the base.
            own: its v1 draft with the profile's ids.
            found: the survey of its v1 vector file.
        """
        hints, listed = self._v1.hints(own, found, self._now), {row.get("id") for row in base.items}

        def plan(materials: Iterable[str]) -> BasePlan:
            """Plan the base; paths of its items, and these paths of materials, are taken."""
            return plan_base(own, found, hints, taken=find_taken_paths(base.items, materials, self._raw(base)))

        known = [path for key, path in base.materials.items() if key in listed]
        planned = plan(known)
        coming = {item.id for item in planned.items} | listed
        others = [path for key, path in base.materials.items() if key not in coming]
        return plan([*known, *others]) if others else planned

    def _raw(self, base: StrandedBase) -> Path:
        """Return a base's folder of raw files."""
        return self._store.root / self._store.bases / base.key / RAW_FOLDER

    # --- its model --------------------------------------------------------------------------------------------------

    def _check_model(self, base: StrandedBase, draft: BaseDraft) -> None:
        """Raise _NotRescuable unless the base has the model with which v1's vectors were made, or can get it."""
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
        if wanted.id not in self._catalog.model_ids:
            self._demand_model_option(wanted)

    def _demand_model_option(self, wanted: ModelRow) -> None:
        """Raise _NotRescuable, because the profile lacks the wanted model, unless an option says to create it."""
        mapped = join_command(["--map-model", f"{wanted.id}=PROVIDER::MODEL"])
        if wanted.provider_id not in self._catalog.provider_ids:
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
        """Match the items of a v1 draft with the profile's rows, and give them the rows' ids and paths.

        Returns:
            The draft with these ids; the matched rows by id; and a function that gives a planned file of a folder the
            id and path of its row.
        """
        matched = match_items(base.items, draft.items, assign_raw_paths(draft, {}).files)
        pairs = [(row, item) for row, item in matched.pairs if _has_usable_path(row)]
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
            """Give a planned file of a folder the id and the path of the row that it matches."""
            row = children.get(item.id)
            if row is not None:
                data = {**item.data, "relativePath": get_indexed_path(row) or row["id"]}
                item = structs.replace(item, id=row["id"], data=data)
            # Uploads are copied separately.
            return structs.replace(item, upload=None)

        return own, {**rows, **{row["id"]: row for row in children.values()}}, named

    def _item(self, base: StrandedBase, item: ItemDraft, row: Row) -> ItemDraft:
        """Return a v1 item with the id and path of its row.

        A missing snapshot gets no path, so that it is written again.
        """
        data = {key: value for key, value in item.data.items() if key != "relativePath"}
        path = get_indexed_path(row)
        if path is not None and (
            item.type == "file" or (is_safe_path(path) and file_paths.is_file(self._raw(base) / path))
        ):
            data["relativePath"] = path
        return structs.replace(item, id=row["id"], data=data, file_name=None)

    # --- what is missing ----------------------------------------------------------------------------------------------

    def _missing_materials(self, base: StrandedBase, planned: BasePlan, rows: dict[str, Row]) -> Iterator[MaterialPlan]:
        """Yield the planned materials that the index lacks, of items that should have a text.

        ``rows`` are the profile's rows by item id. Materials whose path cannot be used are reported.
        """
        taken = set(base.materials.values())
        for material in planned.materials:
            item = planned.items[material.item]
            path = item.data.get("relativePath")
            if not base.wants_text(item.id, rows.get(item.id)):
                continue
            why = None
            if path is not None and path in taken:
                why = tr("another text in its index has the same path")
            elif path is not None and not is_safe_path(path):
                why = tr("it is outside the base's folder")
            if why is None:
                taken.add(path or item.id)
                yield material
            else:
                reason = tr("its path {path} cannot be used: {why}", path=path, why=why)
                self.left.append(Unresolved(finding=v2.ITEM_NO_MATERIAL, reason=reason, base=base.key, subject=item.id))


def _snapshot_names(base: StrandedBase, planned: BasePlan) -> FreeNames:
    """Make the generator of free names for new snapshots of a base."""
    prefixes = [
        item.data["relativePath"] for item in planned.items if item.type == "directory" and "relativePath" in item.data
    ]
    # Snapshots that a stopped run left on disk are used again.
    known = find_taken_paths(base.items, base.materials.values())
    return free_snapshot_names(known, prefixes, reserve_processed=not is_blank(base.row.get("file_processor_id")))


def _indexed_without_snapshot(base: StrandedBase, planned: BasePlan) -> Iterator[MaterialPlan]:
    """Yield the planned materials that an earlier, stopped rescue added to the index without writing a snapshot."""
    for material in planned.materials:
        item = planned.items[material.item]
        if item.id in base.materials and "relativePath" not in item.data:
            yield material


def _has_usable_path(row: Row) -> bool:
    """Whether the item with this row has a safe path, or none where that is allowed."""
    path = get_indexed_path(row)
    return row.get("type") != "file" if path is None else is_safe_path(path)
