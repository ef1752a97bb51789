"""Plan ``regraft repair --adopt``: insert missing catalog rows for materials and base folders.

An index names the item of each material. If the item's row is missing, it is derived from the material's path and the
header of its file. A failed base is completed if every text of its index has a vector (``docs/findings.md``,
"Adopting").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import apsw
import msgspec

from checks.audit.findings import Finding
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import is_tombstone
from checks.cherry_v2.raw_files import find_path_problem
from regraft.disk import file_paths
from regraft.disk.file_paths import ROOT_PREFIX, fold_name, path_segments, safe_segment
from regraft.errors import NotChanged, WrongUsage
from regraft.formats.cherry_preview import IndexLayout
from regraft.formats.cherry_v2.catalog_generation import BASES, ITEMS
from regraft.formats.cherry_v2.catalog_reader import Row, StoredCatalog, base_id_text, parse_item_data
from regraft.formats.cherry_v2.layout import is_uuid
from regraft.language import format_count, join_list, tr
from regraft.text import join_command, path_argument, path_text
from repair.changes.options import RepairOptions
from repair.changes.plan import Action, FindingsByBase, Plan, Unresolved, group_by_base
from repair.changes.store import Store
from repair.cherry_v2.base_models import ModelUnusable, insert_model
from repair.cherry_v2.catalog_changes import (
    MODEL_TABLES,
    CatalogStatements,
    demand_catalog,
    is_selected,
    make_catalog_change,
    read_store_catalog,
)
from repair.cherry_v2.evidence import open_evidence
from repair.cherry_v2.item_paths import named_paths
from repair.cherry_v2.orphan_folders import (
    FolderUnusable,
    FoundMaterial,
    ListedFolder,
    OrphanFolder,
    count_by_type,
    demand_one_length,
    demand_readable_index,
    demand_sound_index,
    find_unnamed_folders,
    make_base_row,
    make_item_rows,
    make_material_rows,
    read_folder,
)

# --- materials and failed bases --------------------------------------------------------------------------------------

#: Findings that must no longer exist once a base is completed.
_COMPLETED_RESOLVES = (v2.BASE_FAILED, v2.BASE_STATUS, v2.BASE_DIMENSIONS, v2.VECTOR_MISSING, v2.VECTOR_LENGTH)


def plan_materials(
    store: Store, options: RepairOptions, *, failed_only: bool = False, without: frozenset[str] = frozenset()
) -> Plan:
    """Plan to insert item rows for indexed materials whose item has no row, and to mark failed bases as completed.

    Args:
        store: a store with a catalog.
        options: the time of the run, and the model of bases whose model is unknown.
        failed_only: whether to skip bases that did not fail.
        without: ids of bases to skip.

    Raises:
        SourceUnreadable: the catalog cannot be read.
        ProfileUnknown: the catalog is of a generation that this release does not know.
    """
    catalog = read_store_catalog(store)
    if catalog.items is None:
        return Plan()
    planner = _MaterialPlanner(store, options, catalog)
    findings = group_by_base(store.findings())
    for row in catalog.bases:
        found = findings.get(base_id_text(row), [])
        one = _Base.of(row, found)
        is_chosen = store.wants(one.key) and one.key in store.stores and one.key not in without
        if is_chosen and (one.has_failed or (one.has_orphans and not failed_only)):
            planner.add(one, found)
    return planner.make_plan()


class _Base(msgspec.Struct, frozen=True, kw_only=True):
    """A base of the catalog: its id and row, whether it failed, and whether its index has materials without an item."""

    key: str
    row: Row
    has_failed: bool
    has_orphans: bool

    @classmethod
    def of(cls, row: Row, findings: list[Finding]) -> _Base:
        """Make the summary of a base from its catalog row and the audit's findings about it."""
        return cls(
            key=base_id_text(row),
            row=row,
            has_failed=row.get("status") == "failed" and isinstance(row.get("id"), str),
            has_orphans=any(one.name == v2.MATERIAL_ORPHAN for one in findings),
        )

    @property
    def findings(self) -> list[str]:
        """Names of the findings that adding items or completing the base resolves."""
        wanted = ((v2.MATERIAL_ORPHAN, self.has_orphans), (v2.BASE_FAILED, self.has_failed))
        return [name for name, is_there in wanted if is_there]


class _Folders(msgspec.Struct):
    """The folder items of a base: usable ones by path prefix, and those that the upgrade did not migrate."""

    containers: dict[str, ListedFolder] = msgspec.field(default_factory=dict)
    #: By the prefix that each would get; None if several would get the same.
    tombstones: dict[str, Row | None] = msgspec.field(default_factory=dict)


class _MaterialPlanner:
    """Plans the missing items of one store, base by base: call :meth:`add` for each base, then :meth:`make_plan`."""

    def __init__(self, store: Store, options: RepairOptions, catalog: StoredCatalog) -> None:
        """Prepare the planning for a store and its ``catalog``, which was read."""
        self._store, self._options, self._catalog = store, options, catalog
        self._statements = CatalogStatements.of(store)
        self._models = catalog.model_ids
        #: Base and status of every item with a row.
        self._items_by_id = {
            item.get("id"): (base, item.get("status"))
            for base, items in (catalog.items or {}).items()
            for item in items
        }
        self._plan = Plan()

    def make_plan(self) -> Plan:
        """Return the plan of all bases that were added, with one change of the catalog.

        Raises:
            ProfileUnknown: a table has an unknown column, or a constraint refuses a row.
        """
        if self._statements.actions:
            self._plan.changes.append(make_catalog_change(self._statements, MODEL_TABLES))
        return self._plan

    def add(self, base: _Base, findings: list[Finding]) -> None:
        """Plan the missing items of a base, and its completion if it failed.

        If its index is not usable, only the reason is reported. ``findings`` are all findings of the audit in the base.
        """
        try:
            one = self._store.stores[base.key]
            demand_readable_index(one.look.layout, findings)
            folder = read_folder(base.key, self._store.root / one.name, self._store.root / one.raw)
            with open_evidence(self._store, base.key, findings) as evidence:
                orphans = list(self._find_orphans(base, folder))
                folders = self._find_folders(base.key)
                named = named_paths(self._catalog.items_of(base.key))
                rows = list(make_material_rows(folder, evidence, orphans, folders.containers, named)) if orphans else []
        except (FolderUnusable, apsw.Error, OSError, UnicodeDecodeError, ValueError, TypeError) as problem:
            for name in base.findings:
                self._leave(name, base.key, tr("its items were not added to the catalog: {problem}", problem=problem))
            return
        if rows:
            self._insert_items(base, rows, folders)
            self._resolve_folders(base.key)
            self._resolve_files(base.key, rows, findings, self._store.root / one.raw)
        if base.has_failed:
            try:
                self._complete_base(base, folder, findings)
            except (FolderUnusable, ModelUnusable) as problem:
                reason = tr("it cannot be completed from its index: {problem}", problem=problem)
                self._leave(v2.BASE_FAILED, base.key, reason, repair=self._command_with_model(base, folder))

    def _leave(
        self, finding: str, base: str, reason: str, *, subject: str | None = None, repair: str | None = None
    ) -> None:
        """Report an unresolved finding of a base, and why.

        ``subject`` is the item that it is about, ``repair`` a command line that may help; each may be None.
        """
        left = Unresolved.registered(finding, reason, base=base, subject=subject)
        self._plan.left.append(msgspec.structs.replace(left, repair=repair))

    # --- materials ---------------------------------------------------------------------------------------------------

    def _find_orphans(self, base: _Base, folder: OrphanFolder) -> Iterator[FoundMaterial]:
        """Yield the materials of a base's index that get a new item; report those that cannot get one."""
        named = set(map(fold_name, named_paths(self._catalog.items_of(base.key))))
        for material in folder.materials:
            owner, status = self._items_by_id.get(material.item, (None, None))
            reason = None
            if status == "deleting" and owner == base.key:
                reason = tr("the application is deleting its item")
            elif owner is not None and owner != base.key:
                reason = tr("its item belongs to base {elsewhere}", elsewhere=owner)
            elif owner is None and find_path_problem(material.path) is not None:
                reason = tr("its path is not below raw/; run regraft repair to assign one")
            elif owner is None and fold_name(material.path) in named:
                reason = tr('another item has the same path, "{path}"', path=material.path)
            elif owner is None:
                yield material
            if reason is not None:
                self._leave(v2.MATERIAL_ORPHAN, base.key, reason, subject=material.item)

    def _find_folders(self, base: str) -> _Folders:
        """Read the folder items of a base from the catalog."""
        found = _Folders()
        folders = (item for item in self._catalog.items_of(base) if item.get("type") == "directory")
        for item in folders:
            if item.get("status") == "deleting":
                continue
            data = parse_item_data(item)
            prefix, source = data.get("relativePath"), data.get("source")
            container = ListedFolder(str(item["id"]), source if isinstance(source, str) else None)
            if isinstance(prefix, str) and prefix:
                found.containers[prefix] = container
            elif isinstance(source, str) and is_tombstone(item):
                prefix = safe_segment((path_segments(source) or [ROOT_PREFIX])[-1])
                found.tombstones[prefix] = None if prefix in found.tombstones else item
        for prefix, row in found.tombstones.items():
            if row is not None and prefix not in found.containers:
                found.containers[prefix] = ListedFolder(str(row["id"]), parse_item_data(row)["source"])
        return found

    def _insert_items(self, base: _Base, rows: list[Row], folders: _Folders) -> None:
        """Plan to insert new item rows, and to complete the folder items of the base that contain them.

        Only folders that the application's upgrade did not migrate are completed: they get the status "completed",
        and a path if they have none. ``folders`` gives their prefixes, which are paths below ``raw/``.
        """
        before = self._statements.bytes
        groups = Counter(row["group_id"] for row in rows)
        by_id = {item.get("id"): item for item in self._catalog.items_of(base.key)}
        prefixes = {container.item: prefix for prefix, container in folders.containers.items()}
        for group, count in groups.items():
            container = by_id.get(group)
            if container is not None and is_tombstone(container):
                source = parse_item_data(container)["source"]
                self._statements.complete_folder(base.key, container, prefixes[group], source=source, files=count)
        for row in rows:
            self._statements.insert(ITEMS, row)
        message = tr("add {items} to the catalog again, from its index and files", items=count_by_type(rows))
        size = self._statements.bytes - before
        self._statements.actions.append(
            Action(
                action="insert-items",
                message=message,
                base=base.key,
                count=len(rows),
                bytes=size,
                finding=v2.MATERIAL_ORPHAN,
            )
        )
        if not any((one.finding, one.base) == (v2.MATERIAL_ORPHAN, base.key) for one in self._plan.left):
            self._plan.resolves.add((v2.MATERIAL_ORPHAN, base.key))

    def _resolve_folders(self, base: str) -> None:
        """Mark the finding of folders that were not migrated as resolved, if the plan completes all of them."""
        expanded = {
            one.subject for one in self._statements.actions if one.action == "complete-folder" and one.base == base
        }
        if expanded and all(
            str(item.get("id")) in expanded for item in self._catalog.items_of(base) if is_tombstone(item)
        ):
            self._plan.resolves.add((v2.ITEM_TOMBSTONE, base))

    def _resolve_files(self, base: str, rows: list[Row], findings: list[Finding], raw: Path) -> None:
        """Mark the finding of missing files in ``raw`` as resolved if all of them belong to new items in folders.

        Files of folders are not kept there by design. ``rows`` are the new items, ``findings`` the audit's.
        """
        virtual = [parse_item_data(row)["relativePath"] for row in rows if row["group_id"] is not None]
        missing = sum(one.count for one in findings if one.name == v2.RAW_MISSING)
        if missing and missing == sum(not file_paths.is_file(raw / path) for path in virtual):
            self._plan.resolves.add((v2.RAW_MISSING, base))

    # --- the base ----------------------------------------------------------------------------------------------------

    def _complete_base(self, base: _Base, folder: OrphanFolder, findings: list[Finding]) -> None:
        """Plan to mark a failed base as completed, because its index has a vector for every text.

        Raises:
            FolderUnusable, ModelUnusable: the index is incomplete, or the model of its vectors is unknown.
        """
        if not folder.materials:
            raise FolderUnusable(tr("its index is empty"))
        demand_sound_index(findings)
        demand_one_length(folder)
        if folder.dimensions is None:
            raise FolderUnusable(tr("its index has no vectors"))
        if folder.bare:
            bodies = format_count(sum(folder.bare.values()), "body")
            raise FolderUnusable(tr("{bodies} without a vector", bodies=bodies))
        model = base.row.get("embedding_model_id")
        if model is None:
            model = self._options.model
            if model is None:
                raise FolderUnusable(tr("the catalog does not name the model of its vectors"))
            insert_model(self._statements, self._store, self._catalog, model, base.key, self._options.now_ms)
        elif model not in self._models | self._statements.new_models:
            raise FolderUnusable(tr("its model {model} does not exist", model=model))
        self._statements.complete_base(base.row, folder.dimensions, model)
        message = tr(
            "mark the base as completed from its index, with {dimensions} dimensions (nothing is embedded)",
            dimensions=folder.dimensions,
        )
        self._statements.actions.append(
            Action(action="complete-base", message=message, base=base.key, finding=v2.BASE_FAILED)
        )
        self._plan.resolves |= {(name, base.key) for name in _COMPLETED_RESOLVES}

    def _command_with_model(self, base: _Base, folder: OrphanFolder) -> str | None:
        """Return the command line that names the base's model, if nothing else prevents its completion; else None."""
        is_lost = base.row.get("embedding_model_id") is None and self._options.model is None
        if not is_lost or folder.dimensions is None or folder.bare:
            return None
        words = ["--only", v2.BASE_FAILED, "--base", base.key, "--model"]
        return f"{join_command(['regraft', 'repair', path_argument(self._store.path), *words])} PROVIDER::MODEL"


# --- base folders -----------------------------------------------------------------------------------------------------


#: Findings that ``--adopt`` resolves.
NAMES = (v2.INDEX_ORPHAN, v2.MATERIAL_ORPHAN)
#: The command that deletes such objects if the finding is named.
_REMOVERS = {v2.INDEX_ORPHAN: "gc", v2.MATERIAL_ORPHAN: "reconcile"}
#: Options that adopt base folders.
OPTIONS = ("--only", v2.INDEX_ORPHAN, "--adopt")


def demand_adopt_options(options: RepairOptions) -> None:
    """Check that ``--adopt`` is given with exactly one of the findings it resolves, and these only with ``--adopt``.

    Raises:
        WrongUsage
    """
    lines = [f"--only {name} --adopt" for name in NAMES]
    named = [name for name in NAMES if name in options.only]
    if options.adopt and (len(named) != 1 or len(options.only) != 1):
        raise WrongUsage(
            problem=tr("--adopt needs exactly one finding"),
            hint=tr("use {lines}", lines=join_list(lines, tr(" or "))),
        )
    if not options.adopt and named:
        name, remover = named[0], _REMOVERS[named[0]]
        raise WrongUsage(
            problem=tr("--only {name} needs --adopt", name=name),
            hint=tr(
                "use --only {name} --adopt, or delete them with {remover} --only {name}", name=name, remover=remover
            ),
        )


def plan(store: Store, options: RepairOptions) -> Plan:
    """Plan to insert rows for folders of bases without a row, or for materials without an item, as the options say.

    Raises:
        NotChanged: there is no catalog.
        SourceUnreadable: the catalog cannot be read.
        ProfileUnknown: the catalog is of a generation that this release does not know.
    """
    demand_catalog(store, "repair")
    if v2.MATERIAL_ORPHAN in options.only:
        return plan_materials(store, options)
    catalog, findings = read_store_catalog(store, data=False), group_by_base(store.findings())
    if catalog.items is None:
        raise NotChanged(
            path=store.path,
            what=tr("a catalog without an item table"),
            command="repair",
            advice=tr("without that table its items are unknown; use another copy"),
        )
    return _FolderPlanner(store, options, catalog, findings).plan()


class _Adopted(msgspec.Struct):
    """The folder of a base without a row, the base row and item rows derived from it, and what remains unresolved."""

    folder: OrphanFolder
    items: list[Row]
    row: Row
    left: list[Unresolved] = msgspec.field(default_factory=list)


class _FolderPlanner:
    """Plans rows for the folders of bases that the catalog does not name."""

    def __init__(self, store: Store, options: RepairOptions, catalog: StoredCatalog, findings: FindingsByBase) -> None:
        """Prepare the planning for a store; ``findings`` are the audit's, by base."""
        self._store, self._options, self._catalog, self._findings = store, options, catalog, findings
        self._statements = CatalogStatements.of(store)
        #: The base of every item that there is.
        self._owners = {item.get("id"): base for base, items in (catalog.items or {}).items() for item in items}
        self._plan = Plan()

    def plan(self) -> Plan:
        """Plan to insert the rows of every such folder that the user selected."""
        folders = list(find_unnamed_folders(self._store, self._catalog))
        for path in (one for one in folders if is_selected(self._store, one.name)):
            try:
                self._insert_base(self._derive_rows(path))
            except (FolderUnusable, ModelUnusable) as problem:
                self._leave(path, str(problem))
            except (apsw.Error, OSError, UnicodeDecodeError, ValueError, TypeError) as error:
                self._leave(path, tr("its index cannot be read: {error}", error=error))
        if self._statements.actions:
            self._plan.changes.append(make_catalog_change(self._statements, MODEL_TABLES))
            if not any(one.finding == v2.INDEX_ORPHAN for one in self._plan.left) and not self._store.chosen:
                self._plan.resolves.add((v2.INDEX_ORPHAN, None))
        return self._plan

    def _leave(self, path: Path, reason: str) -> None:
        """Report that the folder at ``path`` is not added to the catalog, and why."""
        message = tr("folder {name} was not added to the catalog: {reason}", name=path_text(path.name), reason=reason)
        self._plan.left.append(Unresolved(finding=v2.INDEX_ORPHAN, reason=message, subject=path_text(path.name)))

    # --- one folder ------------------------------------------------------------------------------------------------

    def _derive_rows(self, path: Path) -> _Adopted:
        """Read the folder of a base at ``path`` and derive the rows of the base and of its items.

        Raises:
            FolderUnusable: the folder has no index, or the index has errors.
        """
        one = self._store.stores.get(path.name)
        if one is None:
            raise FolderUnusable(tr("it has no index, so its content is unknown"))
        if not is_uuid(path.name):
            raise FolderUnusable(tr("its name is not a base id"))
        if one.look.layout is IndexLayout.PREVIEW:
            raise FolderUnusable(tr("its index was written by a preview build; run regraft upgrade first"))
        demand_sound_index(self._findings.get(path.name, ()))
        folder = read_folder(path.name, self._store.root / one.name, self._store.root / one.raw)
        demand_one_length(folder)
        with open_evidence(self._store, path.name, self._findings.get(path.name, ())) as evidence:
            items = [item for item in make_item_rows(folder, evidence) if self._is_new(item)]
        model = self._options.model
        adopted = _Adopted(folder, items, make_base_row(folder, items, model))
        if folder.dimensions is None:
            return adopted
        if model is None:
            line = join_command(["regraft", "repair", path_argument(self._store.path), *OPTIONS, "--model"])
            reason = tr(
                "the model of its {dimensions}-dimensional vectors is unknown, so the base is added as failed; if you "
                "know the model, run {line} PROVIDER::MODEL (after regraft undo if the base was already added)",
                dimensions=folder.dimensions,
                line=line,
            )
            adopted.left.append(Unresolved(finding=v2.BASE_FAILED, reason=reason, base=folder.base))
        elif folder.bare:
            count = sum(folder.bare.values())
            reason = tr(
                "{texts} without a vector; run regraft backfill to embed them", texts=format_count(count, "text")
            )
            adopted.left.append(
                Unresolved(finding=v2.VECTOR_MISSING, reason=reason, base=folder.base, count=count, severity="error")
            )
        return adopted

    def _is_new(self, item: Row) -> bool:
        """Whether the catalog has no item with the id of this one.

        Raises:
            FolderUnusable: the item belongs to another base.
        """
        owner = self._owners.get(item["id"])
        if owner is not None and owner != item["base_id"]:
            raise FolderUnusable(tr("item {item} belongs to base {owner}", item=item["id"], owner=owner))
        return owner is None

    # --- rows ------------------------------------------------------------------------------------------------------

    def _insert_base(self, adopted: _Adopted) -> None:
        """Plan to insert a base row, its item rows, and the base's model if the catalog does not have it."""
        folder, statements = adopted.folder, self._statements
        base = folder.base
        model = adopted.row["embedding_model_id"]
        if model is not None:
            insert_model(statements, self._store, self._catalog, model, base, self._options.now_ms)
        before = statements.bytes
        statements.insert(BASES, adopted.row)
        for item in adopted.items:
            statements.insert(ITEMS, item)
        self._store.names.setdefault(base, adopted.row["name"])
        statements.actions.append(_make_action(adopted, statements.bytes - before))
        self._plan.left += adopted.left
        self._plan.new_bases[base] = frozenset()


def _make_action(adopted: _Adopted, size: int) -> Action:
    """Describe the insertion of a base for the report; ``size`` is the number of bytes of its statements."""
    listed = count_by_type(adopted.items)
    message = tr("add the base to the catalog with {listed}, from its index and files", listed=listed or tr("no item"))
    return Action(
        action="insert-base",
        message=message,
        base=adopted.folder.base,
        count=1 + len(adopted.items),
        bytes=size,
        finding=v2.INDEX_ORPHAN,
    )
