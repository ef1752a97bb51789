"""Plan ``regraft rescue``: restore bases and folders that the upgrade left behind from the v1 files that still exist.

Each file is written in one step, and all rows of the profile's database change in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from checks.cherry_v2 import findings as v2
from checks.cherry_v2.audit import recorded_losses
from checks.cherry_v2.catalog_rows import get_indexed_path, is_tombstone
from migrators.pipeline import preflight
from regraft.disk import file_paths
from regraft.disk.trees import is_plain_name
from regraft.errors import RegraftError, SourceNotMigratable
from regraft.formats.cherry_v2.catalog_reader import Row, StoredCatalog, base_id_text, parse_item_data
from regraft.formats.cherry_v2.index.schema import catalog_dimensions
from regraft.formats.cherry_v2.models import ModelOverrides
from regraft.language import format_count, tr
from regraft.report import notices
from regraft.stores.locate import RAW_FOLDER
from regraft.text import path_argument
from repair.changes.plan import Action, FileChange, Plan, Unresolved
from repair.changes.store import Store
from repair.cherry_v2.catalog_changes import (
    CATALOG_TABLES,
    CatalogStatements,
    demand_known_version,
    demand_profile,
    make_catalog_change,
    read_store_catalog,
)
from repair.cherry_v2.from_source import has_lost_rows
from repair.cherry_v2.item_paths import is_safe_path
from repair.cherry_v2.rescue import v1_files
from repair.cherry_v2.rescue.base import IndexContents, RescuedBase, RescuePlanner, StrandedBase, read_index_contents
from repair.cherry_v2.rescue.matching import match_bases
from repair.cherry_v2.rescue.v1_files import V1Data, read_v1

#: Findings that a new index must not have. Problems of single vectors come from v1.
_NEW_INDEX_RESOLVES = frozenset(
    {
        *(v2.UNREADABLE, v2.CORRUPT, v2.SCHEMA_MISSING, v2.SCHEMA_VERSION, v2.META_MISSING, v2.META_BASE),
        *(v2.CONTENT_HASH, v2.CONTENT_ORPHAN, v2.NO_CONTENT, v2.PATH_UNSAFE, v2.MATERIAL_PATH),
        *(v2.UNIT_OFFSETS, v2.UNIT_ID, v2.UNIT_GAP, v2.UNIT_CONTENT, v2.NO_BODY, v2.BODY_ID, v2.BODY_HASH),
        *(v2.BODY_ORPHAN, v2.BODY_ROWID, v2.FTS_DESYNC, v2.VECTOR_MISSING, v2.VECTOR_ORPHAN, v2.VECTOR_LENGTH),
        v2.BASE_DIMENSIONS,
    }
)


class RescuePlanBuilder:
    """Makes one plan from what is restored of all bases. :attr:`statements` are the changes of the catalog."""

    def __init__(self, store: Store, v1: V1Data, catalog: StoredCatalog, now_ms: int) -> None:
        self._store = store
        self._read_v1 = v1
        self._models = catalog.model_ids
        self._now = now_ms
        self.plan = Plan()
        self.statements = CatalogStatements.of(store)

    def add_base(self, rescued: RescuedBase) -> None:
        """Add the changes of one base to the plan, and report what is not restored of it."""
        index = list(self._index_changes(rescued))
        if index or rescued.new or rescued.completed or rescued.base.is_failed:
            self.plan.changes += [*index, *self._upload_changes(rescued), *self._snapshot_changes(rescued)]
            self._change_base_row(rescued)
            self._change_item_rows(rescued)
            self._record_resolved(rescued)
            worth = [notice for notice in rescued.notices if notices.is_at_least(notice.severity, "warning")]
            self.plan.left += [
                Unresolved(
                    finding=notices.CODES[notice.code].finding,
                    reason=notice.message,
                    base=rescued.base.key,
                    count=notice.count,
                    severity=notice.severity,
                )
                for notice in worth
                if notice.code != notices.NOT_MIGRATED
            ]
        self._report_left(rescued)

    # --- files --------------------------------------------------------------------------------------------------------

    def _index_changes(self, rescued: RescuedBase) -> Iterator[FileChange]:
        """Yield the change of the base's index: its migrated texts and vectors are added, or a new index is made.

        Nothing if the index exists and no text is migrated. A missing index is made even without texts.
        """
        base, plan = rescued.base, rescued.plan
        if base.held is not None and not plan.materials:
            return
        path = self._store.root / base.index
        size = preflight.estimate_base_bytes(plan)
        message = tr(
            "migrate {chunks} of {texts} into its index",
            chunks=format_count(plan.units, "chunk"),
            texts=format_count(len(plan.materials), "text"),
        )
        action = Action(
            action="write-index",
            message=message,
            base=base.key,
            subject=base.index,
            count=plan.units,
            bytes=size,
            finding=base.finding,
            origin=rescued.v1.origin(self._store.root) or msgspec.UNSET,
        )
        if base.is_bare:
            make = partial(v1_files.write_index, v1=rescued.v1, now_ms=self._now)
        else:
            make = partial(v1_files.write_extended_index, v1=rescued.v1, current=path, now_ms=self._now)
            size = 2 * size + path.stat().st_size
        yield FileChange(path=base.index, actions=(action,), make=make, bytes=size)

    def _upload_changes(self, rescued: RescuedBase) -> Iterator[FileChange]:
        """Yield the changes that copy missing uploaded files of a base from v1's files."""
        key = rescued.base.key
        uploads = {item.legacy_id: item.upload for item in rescued.draft.items}
        taken = set()
        for item in rescued.plan.items:
            upload = uploads.get(item.legacy_id or "")
            path = parse_item_data(rescued.rows.get(item.id, {})).get("relativePath")
            found = self._read_v1.upload(upload) if upload is not None and is_safe_path(path) else None
            name = f"{self._store.bases}/{key}/{RAW_FOLDER}/{path}"
            if found is None or upload is None or name in taken or file_paths.exists(self._store.root / name):
                continue
            taken.add(name)
            tree, folder, size = found
            action = Action(
                action="restore-upload",
                message=tr("copy {path} from v1's files", path=path),
                base=key,
                subject=name,
                bytes=size,
                finding=v2.RAW_MISSING,
            )
            make = partial(v1_files.restore_upload, tree=tree, uploads=folder, upload=upload)
            yield FileChange(path=name, actions=(action,), make=make, bytes=size)

    def _snapshot_changes(self, rescued: RescuedBase) -> Iterator[FileChange]:
        """Yield the changes that write missing snapshots of a base."""
        key = rescued.base.key
        for one in rescued.snapshots:
            if not one.is_there:
                name = f"{self._store.bases}/{key}/{RAW_FOLDER}/{one.path}"
                action = Action(
                    action="write-snapshot",
                    message=tr("write the snapshot {path}", path=one.path),
                    base=key,
                    subject=name,
                    bytes=one.bytes,
                )
                make = partial(v1_files.write_snapshot, v1=rescued.v1, snapshot=one, now_ms=self._now)
                yield FileChange(path=name, actions=(action,), make=make, bytes=one.bytes)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _change_base_row(self, rescued: RescuedBase) -> None:
        """Add statements that mark the base as completed, with its model and dimensions, unless it is completed.

        The model is inserted if the profile lacks it, because the user asked for that.
        """
        base, plan, model = rescued.base, rescued.plan, rescued.draft.embedding.model
        if model is None or (not base.is_failed and base.row.get("dimensions") == plan.dimensions):
            return
        if model.id not in self._models and self._store.catalog is not None:
            self._models.add(model.id)
            self.statements.insert_model(model, self._now)
            message = tr("add model {id} (--recreate-model)", id=model.id)
            self.statements.actions.append(Action(action="add-model", message=message, base=base.key, subject=model.id))
        self.statements.complete_base(base.row, plan.dimensions, model.id)
        message = tr("mark the base as completed, with {dimensions} dimensions", dimensions=plan.dimensions)
        self.statements.actions.append(
            Action(action="complete-base", message=message, base=base.key, finding=base.finding)
        )

    def _change_item_rows(self, rescued: RescuedBase) -> None:
        """Add statements for the base's items: paths of snapshots, completed items, and new files of folders."""
        key, items, new = rescued.base.key, rescued.plan.items, rescued.new
        for one in rescued.snapshots:
            row = rescued.rows[items[one.material.item].id]
            if parse_item_data(row).get("relativePath") != one.path:
                self.statements.set_path(key, row, one.path)
        for item in rescued.completed:
            row, source = rescued.rows[item.id], item.data["source"]
            if item.type == "directory":
                files = sum(one.group_id == item.id for one in new)
                prefix = parse_item_data(row).get("relativePath") or item.data["relativePath"]
                self.statements.complete_folder(key, row, prefix, source=source, files=files)
            else:
                self.statements.complete_item(key, row)
                self.statements.actions.append(
                    Action(
                        action="complete-item",
                        message=tr("mark the file {source} as completed", source=source),
                        base=key,
                        subject=item.id,
                    )
                )
        for item in new:
            self.statements.insert_item(key, item, rescued.rows[str(item.group_id)])
        if new:
            message = tr("add {files} of its folders to the catalog", files=format_count(len(new), "file"))
            self.statements.actions.append(Action(action="insert-items", message=message, base=key, count=len(new)))

    # --- findings -----------------------------------------------------------------------------------------------------

    def _record_resolved(self, rescued: RescuedBase) -> None:
        """Record which findings about the base the plan resolves."""
        base = rescued.base
        names = {base.finding} & {v2.BASE_FAILED, v2.BASE_NO_INDEX}
        if rescued.completed and not _unmigrated_folders(rescued):
            names.add(v2.ITEM_TOMBSTONE)
        if base.finding == v2.ITEM_NO_MATERIAL and not _items_without_text(rescued):
            names.add(v2.ITEM_NO_MATERIAL)
        if base.is_bare and (rescued.plan.materials or base.held is None):
            names |= _NEW_INDEX_RESOLVES
        self.plan.resolves |= {(name, base.key) for name in names}

    def _report_left(self, rescued: RescuedBase) -> None:
        """Report folders of the base that are not restored, and items of which v1 has no text."""
        key = rescued.base.key
        ids = {item.legacy_id: item.id for item in rescued.plan.items if item.legacy_id is not None}
        reasons = {
            ids.get(str(notice.item)): notice.message
            for notice in rescued.notices
            if notice.code == notices.NOT_MIGRATED
        }
        for folder in _unmigrated_folders(rescued):
            why = reasons.get(folder, tr("v1 has no rows for its files"))
            self.plan.left.append(Unresolved(finding=v2.ITEM_TOMBSTONE, reason=why, base=key, subject=folder))
        without = _items_without_text(rescued)
        if without:
            message = tr(
                "v1 has no rows for {completed_items}", completed_items=format_count(len(without), "completed item")
            )
            self.plan.left.append(
                Unresolved(
                    finding=v2.ITEM_NO_MATERIAL,
                    reason=message,
                    base=key,
                    subject=without[0],
                    count=len(without),
                    severity="note",
                )
            )


def _unmigrated_folders(rescued: RescuedBase) -> list[str]:
    """Return the ids of the folder items that neither the application's upgrade nor the rescue migrates."""
    done = {item.id for item in rescued.completed}
    return [str(row.get("id")) for row in rescued.base.items if is_tombstone(row) and row.get("id") not in done]


def _items_without_text(rescued: RescuedBase) -> list[str]:
    """Return the ids of completed items that should have a text after the rescue, and have none."""
    there = rescued.texts
    return [
        str(row.get("id"))
        for row in rescued.base.items
        if row.get("status") == "completed"
        and row.get("id") not in there
        and (row.get("type") == "file" or (row.get("type") in ("url", "note") and get_indexed_path(row) is not None))
    ]


class RescueOptions(msgspec.Struct, frozen=True):
    """Options of a rescue. ``v1`` is the path of v1's state (None: it is in the profile).

    Opened and extracted files stay until ``keep`` closes.
    """

    now_ms: int
    keep: ExitStack
    v1: Path | None = None
    model_overrides: ModelOverrides = msgspec.field(default_factory=ModelOverrides)
    #: Whether to salvage verifiable rows of damaged vector files.
    salvage: bool = False


def plan(store: Store, options: RescueOptions) -> Plan:
    """Plan what is restored in a profile from v1's files.

    Raises:
        NotChanged: the store is not a profile.
        SourceUnreadable: its database cannot be read.
        SourceNotMigratable: something is missing, but nothing of v1 was found.
        ProfileUnknown: the profile is of a generation that this release does not know.
    """
    advice = tr("use the application's profile folder; for failed bases of a library run regraft migrate again")
    demand_profile(store, command="rescue", advice=advice)
    catalog = read_store_catalog(store)
    stranded, left = _find_stranded(store, catalog)
    made = Plan(left=[*left, *_report_partial_items(store, options.v1)])
    v1 = _read_v1(store, options, stranded) if stranded else None
    if v1 is None:
        return made
    made.left += _unused_options(v1, options.model_overrides)
    matched = match_bases(catalog.bases, v1.library.bases, catalog.items or {})
    drafts = {base_id_text(row): draft for row, draft in matched.pairs}
    unsure = {base_id_text(row) for row in matched.unsure}
    planner = RescuePlanner(store, v1, catalog, options.model_overrides, options.now_ms)
    maker = RescuePlanBuilder(store, v1, catalog, options.now_ms)
    for base in stranded:
        rescued = planner.plan_base_rescue(base, drafts[base.key]) if base.key in drafts else None
        if rescued is not None:
            maker.add_base(rescued)
        elif base.key not in drafts and base.finding != v2.ITEM_NO_MATERIAL:
            is_unsure = base.key in unsure
            why = tr("several v1 bases match this one") if is_unsure else tr("no v1 base matches this one")
            made.left.append(base.report(why))
    made.add(maker.plan)
    made.left += planner.left
    if made.changes or maker.statements.made:
        demand_known_version(store)
    if maker.statements.made:
        made.changes.append(make_catalog_change(maker.statements, CATALOG_TABLES))
    return made


def _report_partial_items(store: Store, v1: Path | None) -> Iterator[Unresolved]:
    """Report items that lost a part of their rows in a salvage: a rescue adds whole texts only.

    ``v1`` is the source that the user named.
    """
    _, lost = recorded_losses(store.root, store.found)
    for finding in store.findings() if lost else ():
        if has_lost_rows(finding, lost):
            source = "SOURCE" if v1 is None else path_argument(v1)
            line = store.command_line("repair", "--from", source, *store.base_option(finding.base))
            reason = tr("{what}; an undamaged copy of the data completes it", what=finding.message)
            yield Unresolved.of(finding, reason, repair=line)


def _read_v1(store: Store, options: RescueOptions, stranded: list[StrandedBase]) -> V1Data | None:
    """Read the remaining v1 data; None if it is missing, and the findings do not show that an upgrade failed."""
    try:
        return read_v1(store, options.v1, options.model_overrides, options.keep, salvage=options.salvage)
    except SourceNotMigratable:
        if options.v1 is None and all(base.finding == v2.ITEM_NO_MATERIAL for base in stranded):
            return None
        raise


# --- choosing bases --------------------------------------------------------------------------------------------------


def _find_stranded(store: Store, catalog: StoredCatalog) -> tuple[list[StrandedBase], list[Unresolved]]:
    """Return the selected bases in which v1 data may be missing, and reports about those whose index cannot be read."""
    found: list[StrandedBase] = []
    left: list[Unresolved] = []
    for row in catalog.bases:
        key = base_id_text(row)
        if not store.wants(key) or not isinstance(row.get("id"), str) or not is_plain_name(key):
            continue
        items = catalog.items_of(key)
        one = store.stores.get(key)
        name = f"{store.bases}/{key}/.cherry/index.sqlite" if one is None else one.name
        try:
            held = read_index_contents(store.root / name, key, catalog_dimensions(row))
        except RegraftError as error:
            if _rescuable_finding(row, items, IndexContents()) is not None:
                left.append(
                    Unresolved(
                        finding=v2.UNREADABLE, reason=tr("its index was not changed: {error}", error=error), base=key
                    )
                )
            continue
        finding = _rescuable_finding(row, items, held)
        if finding is not None:
            found.append(StrandedBase(key=key, row=row, items=items, index=name, held=held, finding=finding))
    return found, left


def _rescuable_finding(row: Row, items: list[Row], held: IndexContents | None) -> str | None:
    """Return the most severe finding of a base that a rescue may resolve, or None.

    ``held`` is what its index has; None: it is missing.
    """
    if row.get("status") == "failed":
        return v2.BASE_FAILED if row.get("error") in (notices.MISSING_MODEL, notices.MISSING_STORE) else None
    if row.get("status") != "completed" or row.get("embedding_model_id") is None:
        return None  # a base without a model has no vectors
    if held is None:
        return v2.BASE_NO_INDEX
    if any(map(held.lacks, items)):
        return v2.ITEM_NO_MATERIAL
    return v2.ITEM_TOMBSTONE if any(map(is_tombstone, items)) else None


def _unused_options(v1: V1Data, model_overrides: ModelOverrides) -> list[Unresolved]:
    """Report model options that match no base. Options for a model that is both mapped and recreated count as used."""
    unused = [notice.message for notice in v1.library.notices if notice.code == notices.OPTION_UNUSED]
    return [
        Unresolved(finding=v2.BASE_MODEL, reason=one)
        for one in unused
        if not any(one.endswith(f" {new}") for new in model_overrides.mapped.values())
    ]
