"""Planning which folders get rows, and what becomes of each; nothing is written."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import apsw
import msgspec

from checks.cherry_v2 import audit as checked
from checks.cherry_v2 import findings as v2
from regraft.errors import NotChanged, WrongUsage
from regraft.formats.cherry_preview import IndexLayout
from regraft.formats.cherry_v2.catalog_generation import BASES, ITEMS, PROVIDERS
from regraft.formats.cherry_v2.catalog_reader import Row, StoredCatalog, base_id_text
from regraft.formats.cherry_v2.layout import is_uuid
from regraft.kinds import KIND_NAMES as NAMES_OF_KINDS
from regraft.language import format_count, join_list, tr
from regraft.text import path_argument, path_text
from repair.changes.plan import Action, FindingsByBase, Plan, Unresolved, group_by_base
from repair.changes.store import Store
from repair.cherry_v2.adopt import materials
from repair.cherry_v2.base_models import ModelUnusable, insert_model
from repair.cherry_v2.catalog_changes import CATALOG_TABLES, CatalogStatements, make_catalog_change, read_store_catalog
from repair.cherry_v2.orphan_folders import (
    FolderUnusable,
    OrphanFolder,
    count_by_type,
    demand_one_length,
    demand_sound_index,
    make_base_row,
    make_item_rows,
    read_folder,
)
from repair.cherry_v2.rules.evidence import open_evidence
from repair.options import RepairOptions

#: What is listed again, by the finding that ``--only`` names.
NAMES = (v2.INDEX_ORPHAN, v2.MATERIAL_ORPHAN)
#: The command that deletes them where it is told the finding.
_REMOVERS = {v2.INDEX_ORPHAN: "gc", v2.MATERIAL_ORPHAN: "reconcile"}
#: How the command is given.
OPTIONS = ("--only", v2.INDEX_ORPHAN, "--adopt")


def demand_alone(options: RepairOptions) -> None:
    """Refuse ``--adopt`` without exactly one of the findings that it is for, and these findings without it.

    Raises:
        WrongUsage
    """
    lines = [f"--only {name} --adopt" for name in NAMES]
    named = [name for name in NAMES if name in options.only]
    if options.adopt and (len(named) != 1 or len(options.only) != 1):
        raise WrongUsage(
            problem=tr("--adopt lists folders or materials again, and nothing else is repaired with it"),
            hint=tr("give {lines}", lines=join_list(lines, tr(" or "))),
        )
    if not options.adopt and named:
        name, remover = named[0], _REMOVERS[named[0]]
        raise WrongUsage(
            problem=tr("--only {name}: repair lists these again only with --adopt", name=name),
            hint=tr("give --only {name} --adopt; {remover} --only {name} deletes them", name=name, remover=remover),
        )


def plan(store: Store, options: RepairOptions) -> Plan:
    """Return what lists folders of bases, or materials, again that have no row in the catalog; nothing is written.

    Raises:
        NotChanged: there is no catalog that could name them.
        SourceUnreadable: it cannot be read.
        ProfileUnknown: it is of another time than this regraft.
    """
    if store.catalog is None:
        what = tr("{names} without a catalog", names=NAMES_OF_KINDS[store.found.kind])
        advice = tr("give the library or profile that it is of")
        raise NotChanged(path=store.path, what=what, command="repair", advice=advice)
    if v2.MATERIAL_ORPHAN in options.only:
        return materials.plan(store, options)
    return _FolderPlanner(store, options, read_store_catalog(store, data=False), group_by_base(store.findings())).plan()


class _Adopted(msgspec.Struct):
    """The rows of one base, with what is left of it."""

    folder: OrphanFolder
    items: list[Row]
    row: Row
    left: list[Unresolved] = msgspec.field(default_factory=list)


class _FolderPlanner:
    def __init__(self, store: Store, options: RepairOptions, catalog: StoredCatalog, findings: FindingsByBase) -> None:
        self._store, self._options, self._catalog, self._findings = store, options, catalog, findings
        self._models = {row.get("id") for row in catalog.models or ()}
        self._statements = CatalogStatements(store.root / str(store.catalog))
        self._actions: list[Action] = []
        #: The base of every item that there is.
        self._owners = {item.get("id"): base for base, items in (catalog.items or {}).items() for item in items}
        self._plan = Plan()

    def plan(self) -> Plan:
        found = [path for path in self._unnamed() if self._store.wants(path.name)]
        for path in found:
            try:
                self._add(self._adopted(path))
            except (FolderUnusable, ModelUnusable) as problem:
                self._leave(path, str(problem))
            except (apsw.Error, OSError, UnicodeDecodeError, ValueError, TypeError) as error:
                self._leave(path, tr("its index cannot be read: {error}", error=error))
        if self._actions:
            catalog = str(self._store.catalog)
            change = make_catalog_change(self._statements, catalog, self._actions, (*CATALOG_TABLES, PROVIDERS))
            self._plan.changes.append(change)
            if not any(one.finding == v2.INDEX_ORPHAN for one in self._plan.left) and not self._store.chosen:
                self._plan.resolves.add((v2.INDEX_ORPHAN, None))
        return self._plan

    def _unnamed(self) -> Iterator[Path]:
        if self._catalog.items is None:
            what = tr("a catalog without a table of items")
            raise NotChanged(
                path=self._store.path, what=what, command="repair", advice=tr("nobody can tell what it names")
            )
        named = {base_id_text(row) for row in self._catalog.bases}
        bases = self._store.root / self._store.bases
        for finding, path in checked.find_strays(bases, named, self._store.stores):
            if finding == v2.INDEX_ORPHAN and (self._store.found.stores.is_whole or path.name in self._store.stores):
                yield path

    def _leave(self, path: Path, reason: str) -> None:
        message = tr("the folder {name} gets no rows: {reason}", name=path_text(path.name), reason=reason)
        self._plan.left.append(Unresolved(finding=v2.INDEX_ORPHAN, reason=message, subject=path_text(path.name)))

    # --- one folder ------------------------------------------------------------------------------------------------

    def _adopted(self, path: Path) -> _Adopted:
        """Work out the rows of one base.

        Raises:
            Unfit: it gets none.
        """
        one = self._store.stores.get(path.name)
        if one is None:
            raise FolderUnusable(tr("it has no index, so that nothing tells what was in it"))
        if not is_uuid(path.name):
            raise FolderUnusable(tr("its name is no id of a base"))
        if one.look.layout is IndexLayout.PREVIEW:
            raise FolderUnusable(
                tr("its index is that of a preview build; regraft upgrade brings it to the current layout first")
            )
        demand_sound_index(self._findings.get(path.name, ()))
        folder = read_folder(path.name, self._store.root / one.name, self._store.root / one.raw)
        demand_one_length(folder)
        with open_evidence(self._store, path.name, self._findings.get(path.name, ())) as evidence:
            items = [item for item in make_item_rows(folder, evidence) if self._is_new(item)]
        model = self._options.model
        adopted = _Adopted(folder, items, make_base_row(folder, items, model))
        if folder.dimensions is not None and model is None:
            adopted.left.append(self._without_model(folder))
        if folder.dimensions is not None and model is not None and folder.bare:
            adopted.left.append(_without_vectors(folder))
        return adopted

    def _is_new(self, item: Row) -> bool:
        """Tell whether the catalog has no such item yet; one that lost its base is there.

        Raises:
            Unfit: it is an item of another base.
        """
        owner = self._owners.get(item["id"])
        if owner is not None and owner != item["base_id"]:
            raise FolderUnusable(tr("the item {item} is one of base {owner}", item=item["id"], owner=owner))
        return owner is None

    def _without_model(self, folder: OrphanFolder) -> Unresolved:
        line = shlex.join(["regraft", "repair", path_argument(self._store.path), *OPTIONS, "--model"])
        reason = tr(
            "nothing says which model made its vectors of {dimensions} dimensions, so that it is listed as failed; who "
            "knows it gives {line} PROVIDER::MODEL, after regraft undo where the base is listed already",
            dimensions=folder.dimensions,
            line=line,
        )
        return Unresolved(finding=v2.BASE_FAILED, reason=reason, base=folder.base)

    # --- rows ------------------------------------------------------------------------------------------------------

    def _add(self, adopted: _Adopted) -> None:
        folder, statements = adopted.folder, self._statements
        base = folder.base
        model = adopted.row["embedding_model_id"]
        if model is not None:
            providers = {row.get("provider_id") for row in self._catalog.providers or ()}
            self._actions += insert_model(
                statements,
                model,
                base,
                models=self._models,
                providers=providers,
                is_profile=self._store.is_profile,
                now_ms=self._options.now_ms,
            )
            self._models.add(model)
        before = statements.bytes
        statements.insert(BASES, adopted.row)
        for item in adopted.items:
            statements.insert(ITEMS, item)
        self._store.names.setdefault(base, adopted.row["name"])
        self._actions.append(_action(adopted, statements.bytes - before))
        self._plan.left += adopted.left
        self._plan.new_bases[base] = frozenset()


def _action(adopted: _Adopted, size: int) -> Action:
    listed = count_by_type(adopted.items)
    message = tr("list the base with {listed}, as its index and files tell", listed=listed or tr("no item"))
    return Action(
        action="insert-base",
        message=message,
        base=adopted.folder.base,
        subject=None,
        count=1 + len(adopted.items),
        bytes=size,
        finding=v2.INDEX_ORPHAN,
    )


def _without_vectors(folder: OrphanFolder) -> Unresolved:
    count = sum(folder.bare.values())
    reason = tr("{bodys} without a vector; regraft backfill makes them", bodys=format_count(count, "body"))
    return Unresolved(finding=v2.VECTOR_MISSING, reason=reason, base=folder.base, count=count, severity="error")
