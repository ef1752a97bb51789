"""Listing materials again as items, and completing failed bases from their indexes (``docs/findings.md``, "Adopting").

An index names the item that each material was made of. Where the catalog has lost the item's row, it follows from the
material's path and the header of its file. A failed base is completed once every text of its index has a vector.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import apsw
import msgspec

from checks.audit.findings import Finding
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import is_tombstone
from checks.cherry_v2.raw_files import find_path_problem
from regraft.disk.file_paths import ROOT_PREFIX, fold_name, path_segments, safe_segment
from regraft.formats.cherry_preview import IndexLayout
from regraft.formats.cherry_v2.catalog_generation import ITEMS, PROVIDERS
from regraft.formats.cherry_v2.catalog_reader import Row, StoredCatalog, base_id_text, parse_item_data
from regraft.language import format_count, tr
from regraft.text import path_argument
from repair.changes.plan import Action, Plan, Unresolved, group_by_base
from repair.changes.store import Store
from repair.cherry_v2.base_models import ModelUnusable, insert_model
from repair.cherry_v2.catalog_changes import CATALOG_TABLES, CatalogStatements, make_catalog_change, read_store_catalog
from repair.cherry_v2.orphan_folders import (
    FolderUnusable,
    FoundMaterial,
    ListedFolder,
    OrphanFolder,
    count_by_type,
    demand_one_length,
    demand_readable_index,
    demand_sound_index,
    make_material_rows,
    read_folder,
)
from repair.cherry_v2.rules.evidence import open_evidence
from repair.options import RepairOptions

#: Findings that must be gone once a base is completed.
_COMPLETE = (v2.BASE_FAILED, v2.BASE_STATUS, v2.BASE_DIMENSIONS, v2.VECTOR_MISSING, v2.VECTOR_LENGTH)


def plan(
    store: Store, options: RepairOptions, *, failed_only: bool = False, without: frozenset[str] = frozenset()
) -> Plan:
    """Return what lists materials without an item again, and completes failed bases; nothing is written.

    Args:
        store: it has a catalog.
        options: the run's time, and the model of bases whose model the catalog has lost.
        failed_only: leave bases alone that did not fail.
        without: ids of bases that are left alone, too.

    Raises:
        SourceUnreadable: the catalog cannot be read.
        ProfileUnknown: it is of another generation than this regraft knows.
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
    return planner.finished()


class _Base(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    row: Row
    has_failed: bool
    has_orphans: bool

    @classmethod
    def of(cls, row: Row, findings: list[Finding]) -> _Base:
        """Return a base by its row and what was found in it."""
        return cls(
            key=base_id_text(row),
            row=row,
            has_failed=row.get("status") == "failed" and isinstance(row.get("id"), str),
            has_orphans=any(one.name == v2.MATERIAL_ORPHAN for one in findings),
        )

    @property
    def findings(self) -> list[str]:
        """Return the findings that are to be resolved."""
        wanted = ((v2.MATERIAL_ORPHAN, self.has_orphans), (v2.BASE_FAILED, self.has_failed))
        return [name for name, is_there in wanted if is_there]


def _demand_current(layout: IndexLayout) -> None:
    """Refuse an index that has to be upgraded first.

    Raises:
        Unfit
    """
    if layout is not IndexLayout.CURRENT:
        raise FolderUnusable(tr("its index is of an older layout; regraft upgrade brings it to the current one first"))


class _Folders(msgspec.Struct):
    """Folders that the catalog lists for one base: usable as they are, and left behind by the upgrade."""

    containers: dict[str, ListedFolder] = msgspec.field(default_factory=dict)
    #: By the prefix that each gets; None where several would get it.
    tombstones: dict[str, Row | None] = msgspec.field(default_factory=dict)


class _MaterialPlanner:
    def __init__(self, store: Store, options: RepairOptions, catalog: StoredCatalog) -> None:
        self._store, self._options, self._catalog = store, options, catalog
        self._statements = CatalogStatements(store.root / str(store.catalog))
        self._models = {row.get("id") for row in catalog.models or ()}
        #: The base and the status of every item that has a row.
        self._listed = {
            item.get("id"): (base, item.get("status"))
            for base, items in (catalog.items or {}).items()
            for item in items
        }
        self._actions: list[Action] = []
        self._plan = Plan()

    def finished(self) -> Plan:
        """Return the plan of all bases that were added: one change of the catalog.

        Raises:
            ProfileUnknown: a table has a column that is not known, or its rules refuse a row.
        """
        if self._actions:
            catalog = str(self._store.catalog)
            self._plan.changes.append(
                make_catalog_change(self._statements, catalog, self._actions, (*CATALOG_TABLES, PROVIDERS))
            )
        return self._plan

    def add(self, base: _Base, findings: list[Finding]) -> None:
        """Plan one base; where its index tells too little, say why it stays as it is."""
        try:
            one = self._store.stores[base.key]
            _demand_current(one.look.layout)
            demand_readable_index(findings)
            folder = read_folder(base.key, self._store.root / one.name, self._store.root / one.raw)
            with open_evidence(self._store, base.key, findings) as evidence:
                orphans = list(self._orphans(base, folder))
                folders = self._folders(base.key)
                named = self._named(base.key)
                rows = list(make_material_rows(folder, evidence, orphans, folders.containers, named)) if orphans else []
        except (FolderUnusable, apsw.Error, OSError, UnicodeDecodeError, ValueError, TypeError) as problem:
            for name in base.findings:
                self._leave(name, base.key, tr("nothing is listed again: {problem}", problem=problem))
            return
        if rows:
            self._list(base, rows, folders)
            self._promise_folders(base.key)
            self._promise_files(base.key, rows, findings, self._store.root / one.raw)
        if base.has_failed:
            try:
                self._complete(base, folder, findings)
            except (FolderUnusable, ModelUnusable) as problem:
                reason = tr("it is not completed from its index: {problem}", problem=problem)
                self._leave(v2.BASE_FAILED, base.key, reason, repair=self._with_model(base, folder))

    def _leave(
        self, finding: str, base: str, reason: str, *, subject: str | None = None, repair: str | None = None
    ) -> None:
        left = Unresolved.registered(finding, reason, base=base, subject=subject)
        self._plan.left.append(msgspec.structs.replace(left, repair=repair))

    # --- materials ---------------------------------------------------------------------------------------------------

    def _orphans(self, base: _Base, folder: OrphanFolder) -> Iterator[FoundMaterial]:
        """Yield the materials that get an item; say of the others why not."""
        named = {fold_name(path) for path in self._named(base.key)}
        for material in folder.materials:
            owner, status = self._listed.get(material.item, (None, None))
            reason = None
            if status == "deleting" and owner == base.key:
                reason = tr("its item is being deleted: the application finishes that")
            elif owner is not None and owner != base.key:
                reason = tr("its item is of another base ({elsewhere})", elsewhere=owner)
            elif owner is None and find_path_problem(material.path.encode("utf-8", "surrogatepass")) is not None:
                reason = tr("its path is none below raw/; regraft repair gives it one")
            elif owner is None and fold_name(material.path) in named:
                reason = tr('another item has its path, "{path}"', path=material.path)
            elif owner is None:
                yield material
            if reason is not None:
                self._leave(v2.MATERIAL_ORPHAN, base.key, reason, subject=material.item)

    def _items(self, base: str) -> list[Row]:
        return (self._catalog.items or {}).get(base, [])

    def _named(self, base: str) -> set[str]:
        paths = (
            parse_item_data(item).get(key)
            for item in self._items(base)
            for key in ("relativePath", "indexedRelativePath")
        )
        return {path for path in paths if isinstance(path, str) and path}

    def _folders(self, base: str) -> _Folders:
        found = _Folders()
        folders = (item for item in self._items(base) if item.get("type") == "directory")
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

    def _list(self, base: _Base, rows: list[Row], folders: _Folders) -> None:
        before = self._statements.bytes
        groups = Counter(row["group_id"] for row in rows)
        by_id = {item.get("id"): item for item in self._items(base.key)}
        prefixes = {container.item: prefix for prefix, container in folders.containers.items()}
        for group, count in groups.items():
            container = by_id.get(group)
            if container is not None and is_tombstone(container):
                self._expand(base.key, container, prefixes[group], count)
        for row in rows:
            self._statements.insert(ITEMS, row)
        message = tr("list {items} again, as its index and files tell", items=count_by_type(rows))
        size = self._statements.bytes - before
        self._actions.append(
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

    def _promise_folders(self, base: str) -> None:
        """Promise that no folder is left behind, where all of them are expanded."""
        expanded = {one.subject for one in self._actions if one.action == "complete-folder" and one.base == base}
        if expanded and all(str(item.get("id")) in expanded for item in self._items(base) if is_tombstone(item)):
            self._plan.resolves.add((v2.ITEM_TOMBSTONE, base))

    def _promise_files(self, base: str, rows: list[Row], findings: list[Finding], raw: Path) -> None:
        """Promise that no file is missing, where those that are lie in folders: these have no file by design."""
        virtual = [parse_item_data(row)["relativePath"] for row in rows if row["group_id"] is not None]
        missing = sum(one.count for one in findings if one.name == v2.RAW_MISSING)
        if missing and missing == sum(not (raw / path).is_file() for path in virtual):
            self._plan.resolves.add((v2.RAW_MISSING, base))

    def _expand(self, base: str, container: Row, prefix: str, count: int) -> None:
        """Complete a folder that the upgrade left behind, with the files that lie in it."""
        data = parse_item_data(container)
        if "relativePath" not in data:
            self._statements.set_path(base, container, prefix)
        self._statements.complete_item(base, container)
        message = tr(
            "expand the folder {source} into {files}", source=data["source"], files=format_count(count, "file")
        )
        subject = str(container["id"])
        self._actions.append(
            Action(action="complete-folder", message=message, base=base, subject=subject, finding=v2.ITEM_TOMBSTONE)
        )

    # --- the base ----------------------------------------------------------------------------------------------------

    def _complete(self, base: _Base, folder: OrphanFolder, findings: list[Finding]) -> None:
        """Complete a failed base.

        Raises:
            Unfit, ModelUnfit: its index is not complete, or no model is known for its vectors.
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
                raise FolderUnusable(tr("the catalog does not say which model made its vectors"))
            self._actions += insert_model(
                self._statements,
                model,
                base.key,
                models=self._models,
                providers={row.get("provider_id") for row in self._catalog.providers or ()},
                is_profile=self._store.is_profile,
                now_ms=self._options.now_ms,
            )
            self._models.add(model)
        elif model not in self._models:
            raise FolderUnusable(tr("its model {model} does not exist", model=model))
        self._statements.complete_base(base.row, folder.dimensions, model)
        message = tr(
            "complete the base from its index, with vectors of {dimensions} dimensions; nothing is embedded",
            dimensions=folder.dimensions,
        )
        self._actions.append(Action(action="complete-base", message=message, base=base.key, finding=v2.BASE_FAILED))
        self._plan.resolves |= {(name, base.key) for name in _COMPLETE}

    def _with_model(self, base: _Base, folder: OrphanFolder) -> str | None:
        """Return the command that completes a base once a person names its model; None where that is not the reason."""
        is_lost = base.row.get("embedding_model_id") is None and self._options.model is None
        if not is_lost or folder.dimensions is None or folder.bare:
            return None
        words = ["--only", v2.BASE_FAILED, "--base", base.key, "--model"]
        return f"{shlex.join(['regraft', 'repair', path_argument(self._store.path), *words])} PROVIDER::MODEL"
