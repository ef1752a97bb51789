"""What brings a base back: its files, each in one step, and the rows of the profile's database."""

from __future__ import annotations

from collections.abc import Iterator

from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import is_tombstone, path_of
from migrators.pipeline import preflight
from migrators.pipeline.plan_model import ItemPlan
from regraft.formats.cherry_v2.catalog_reader import StoredCatalog
from regraft.formats.cherry_v2.item_data import data_of
from regraft.language import tr
from regraft.locate import RAW_FOLDER
from regraft.report import notices
from regraft.text import counted
from repair.changes.plan import Action, FileChange, Plan, Unresolved
from repair.changes.store import Store
from repair.cherry_v2.rescue import carrying
from repair.cherry_v2.rescue.base import Rescued
from repair.cherry_v2.rescue.catalog import Statements
from repair.cherry_v2.rescue.source import V1Left
from repair.cherry_v2.taken_paths import is_safe

#: What a fresh index must not have, whatever v1's rows are; odd vectors are v1's own.
_FRESH = frozenset(
    {
        *(v2.UNREADABLE, v2.CORRUPT, v2.SCHEMA_MISSING, v2.SCHEMA_VERSION, v2.META_MISSING, v2.META_BASE),
        *(v2.CONTENT_HASH, v2.CONTENT_ORPHAN, v2.NO_CONTENT, v2.PATH_UNSAFE, v2.MATERIAL_PATH),
        *(v2.UNIT_OFFSETS, v2.UNIT_ID, v2.UNIT_GAP, v2.UNIT_CONTENT, v2.NO_BODY, v2.BODY_ID, v2.BODY_HASH),
        *(v2.BODY_ORPHAN, v2.BODY_ROWID, v2.FTS_DESYNC, v2.VECTOR_MISSING, v2.VECTOR_ORPHAN, v2.VECTOR_LENGTH),
        v2.BASE_DIMENSIONS,
    }
)


class Maker:
    """Turns what comes back of every base into a plan; ``rows`` are the actions of the one change of rows."""

    def __init__(self, store: Store, v1: V1Left, catalog: StoredCatalog, now_ms: int) -> None:
        self._store = store
        self._v1 = v1
        self._models = {row.get("id") for row in catalog.models or ()}
        self._now = now_ms
        self.plan = Plan()
        self.statements = Statements(store.root / str(store.catalog))
        self.rows: list[Action] = []

    def bring_back(self, rescued: Rescued) -> None:
        """Add the changes of one base, and say what of it stays."""
        index = list(self._index(rescued))
        if index or rescued.new or rescued.completed or rescued.base.is_failed:
            self.plan.changes += [*index, *self._uploads(rescued), *self._snapshots(rescued)]
            self._base_row(rescued)
            self._item_rows(rescued)
            self._promise(rescued)
            worth = [message for message in rescued.notices if notices.at_least(message.severity, "warning")]
            self.plan.left += [
                Unresolved(
                    finding=notices.CODES[message.code].finding,
                    reason=message.message,
                    base=rescued.base.key,
                    count=message.count,
                    severity=message.severity,
                )
                for message in worth
                if message.code != notices.NOT_MIGRATED
            ]
        self._say_left(rescued)

    # --- files --------------------------------------------------------------------------------------------------------

    def _index(self, rescued: Rescued) -> Iterator[FileChange]:
        base, plan = rescued.base, rescued.plan
        if base.held is not None and not plan.materials:
            return
        path = self._store.root / base.index
        size = preflight.planned_bytes(plan)
        message = tr(
            "carry {chunks} of {texts} into its index",
            chunks=counted(plan.units, "chunk"),
            texts=counted(len(plan.materials), "text"),
        )
        action = Action(
            action="write-index",
            message=message,
            base=base.key,
            subject=base.index,
            count=plan.units,
            bytes=size,
            finding=base.finding,
        )
        if base.is_bare:
            yield FileChange(
                path=base.index, actions=(action,), make=carrying.new_index(rescued.v1, self._now), bytes=size
            )
        else:
            make = carrying.grown_index(rescued.v1, path, self._now)
            yield FileChange(path=base.index, actions=(action,), make=make, bytes=2 * size + path.stat().st_size)

    def _uploads(self, rescued: Rescued) -> Iterator[FileChange]:
        """Yield the uploads that are missing and that v1 still has."""
        key = rescued.base.key
        uploads = {item.legacy_id: item.upload for item in rescued.draft.items}
        taken = set()
        for item in rescued.plan.items:
            upload = uploads.get(item.legacy_id or "")
            path = data_of(rescued.rows.get(item.id, {})).get("relativePath")
            found = self._v1.upload(upload) if upload is not None and is_safe(path) else None
            name = f"{self._store.bases}/{key}/{RAW_FOLDER}/{path}"
            if found is None or upload is None or name in taken or (self._store.root / name).exists():
                continue
            taken.add(name)
            tree, folder, size = found
            action = Action(
                action="restore-upload",
                message=tr("copy {path} from v1's files", path=path),
                base=key,
                subject=name,
                count=1,
                bytes=size,
                finding=v2.RAW_MISSING,
            )
            yield FileChange(path=name, actions=(action,), make=carrying.new_upload(tree, folder, upload), bytes=size)

    def _snapshots(self, rescued: Rescued) -> Iterator[FileChange]:
        key = rescued.base.key
        for one in rescued.snapshots:
            if not one.is_there:
                name = f"{self._store.bases}/{key}/{RAW_FOLDER}/{one.path}"
                action = Action(
                    action="write-snapshot",
                    message=tr("write the snapshot {path}", path=one.path),
                    base=key,
                    subject=name,
                    count=1,
                    bytes=one.bytes,
                )
                yield FileChange(
                    path=name,
                    actions=(action,),
                    make=carrying.new_snapshot(rescued.v1, one, self._now),
                    bytes=one.bytes,
                )

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _base_row(self, rescued: Rescued) -> None:
        """Complete the base's row, and insert its model where the user says that it is that one."""
        base, plan, model = rescued.base, rescued.plan, rescued.draft.embedding.model
        if model is None or (not base.is_failed and base.row.get("dimensions") == plan.dimensions):
            return
        if model.id not in self._models and self._store.catalog is not None:
            self._models.add(model.id)
            self.statements.insert_model(model, self._now)
            message = tr("add the model {id}, as --recreate-model says", id=model.id)
            self.rows.append(Action(action="add-model", message=message, base=base.key, subject=model.id))
        self.statements.complete_base(base.row, plan.dimensions, model.id)
        message = tr("complete the base, with vectors of {dimensions} dimensions", dimensions=plan.dimensions)
        self.rows.append(Action(action="complete-base", message=message, base=base.key, finding=base.finding))

    def _item_rows(self, rescued: Rescued) -> None:
        key, items, new = rescued.base.key, rescued.plan.items, rescued.new
        for one in rescued.snapshots:
            row = rescued.rows[items[one.material.item].id]
            if data_of(row).get("relativePath") != one.path:
                self.statements.set_path(key, row, one.path)
        for item in rescued.completed:
            self.statements.complete_item(key, rescued.rows[item.id])
            files = sum(one.group_id == item.id for one in new)
            if item.type == "directory":
                self._set_prefix(rescued, item)
                message = tr(
                    "expand the folder {source} into {files}", source=item.data["source"], files=counted(files, "file")
                )
                self.rows.append(
                    Action(
                        action="complete-folder", message=message, base=key, subject=item.id, finding=v2.ITEM_TOMBSTONE
                    )
                )
            else:
                self.rows.append(
                    Action(
                        action="complete-item",
                        message=tr("complete the file {source}", source=item.data["source"]),
                        base=key,
                        subject=item.id,
                    )
                )
        for item in new:
            self.statements.insert_item(key, item, rescued.rows[str(item.group_id)])
        if new:
            message = tr("list {files} of its folders", files=counted(len(new), "file"))
            self.rows.append(Action(action="insert-items", message=message, base=key, subject=None, count=len(new)))

    def _set_prefix(self, rescued: Rescued, item: ItemPlan) -> None:
        """Give a folder that comes back its prefix; one that it has stays."""
        row = rescued.rows[item.id]
        if "relativePath" not in data_of(row):
            self.statements.set_path(rescued.base.key, row, item.data["relativePath"])

    # --- what is true afterwards --------------------------------------------------------------------------------------

    def _promise(self, rescued: Rescued) -> None:
        """Name the findings that are gone afterwards."""
        base = rescued.base
        names = {base.finding} & {v2.BASE_FAILED, v2.BASE_NO_INDEX}
        if rescued.completed and not _tombstones(rescued):
            names.add(v2.ITEM_TOMBSTONE)
        if base.finding == v2.ITEM_NO_MATERIAL and not _without_text(rescued):
            names.add(v2.ITEM_NO_MATERIAL)
        if base.is_bare and (rescued.plan.materials or base.held is None):
            names |= _FRESH
        self.plan.resolves |= {(name, base.key) for name in names}

    def _say_left(self, rescued: Rescued) -> None:
        """Say which folders stay as they are, and of which items v1 has no text."""
        key = rescued.base.key
        ids = {item.legacy_id: item.id for item in rescued.plan.items if item.legacy_id is not None}
        told = {
            ids.get(str(message.item)): message.message
            for message in rescued.notices
            if message.code == notices.NOT_MIGRATED
        }
        for folder in _tombstones(rescued):
            why = told.get(folder, tr("v1 has no rows of its files"))
            self.plan.left.append(
                Unresolved(finding=v2.ITEM_TOMBSTONE, reason=why, base=key, subject=folder, severity="warning")
            )
        without = _without_text(rescued)
        if without:
            message = tr("v1 has no rows of {completed_items}", completed_items=counted(len(without), "completed item"))
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


def _tombstones(rescued: Rescued) -> list[str]:
    """Return the ids of the folders that stay failed."""
    done = {item.id for item in rescued.completed}
    return [str(row.get("id")) for row in rescued.base.items if is_tombstone(row) and row.get("id") not in done]


def _without_text(rescued: Rescued) -> list[str]:
    """Return the ids of completed items that have no text in the index and need one, as ``check`` sees it."""
    there = rescued.texts
    return [
        str(row.get("id"))
        for row in rescued.base.items
        if row.get("status") == "completed"
        and row.get("id") not in there
        and (row.get("type") == "file" or (row.get("type") in ("url", "note") and path_of(row) is not None))
    ]
