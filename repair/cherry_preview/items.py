"""The paths that materials of a preview build get, and what the catalog's items hold then.

Rules: ``docs/formats/preview.md``, "In place".
"""

from __future__ import annotations

import filecmp
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import apsw
import msgspec

from checks.cherry_v2.catalog_rows import path_of
from checks.cherry_v2.index_file import path_problem
from migrators.pipeline.drafts import BaseDraft
from migrators.pipeline.plan_model import BasePlan, ItemPlan, MaterialPlan
from regraft import clock, links, sqlite
from regraft.formats.cherry_preview import libsql
from regraft.formats.cherry_preview.libsql import PREVIEW
from regraft.formats.cherry_v2 import okf
from regraft.formats.cherry_v2.catalog_reader import Row, StoredCatalog
from regraft.formats.cherry_v2.index import BODY_SEPARATOR
from regraft.formats.cherry_v2.item_data import data_of
from regraft.formats.cherry_v2.layout import Store as Place
from regraft.language import tr
from regraft.ledger import durable
from regraft.names import FreeNames, material_name
from regraft.text import decode_utf8, whole
from repair.changes.plan import Action
from repair.changes.store import Store

Write = Callable[[Path], None]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where preview stores are: the store that is changed, its catalog, and what a migration would make of them."""

    store: Store
    catalog: StoredCatalog | None
    drafts: dict[str, BaseDraft]
    now_ms: int


class Upgrade(msgspec.Struct):
    """What becomes of one base."""

    base: str
    place: Place
    plan: BasePlan
    #: The path of each material below ``raw/``, in their order.
    paths: list[str] = msgspec.field(default_factory=list)
    #: Files that are to be written below ``raw/``, with what writes each, its action and its size.
    files: list[tuple[str, Write, Action, int]] = msgspec.field(default_factory=list)
    #: The catalog's rows that change: SQL, values, and what is changed.
    updates: list[tuple[str, tuple[Any, ...], str]] = msgspec.field(default_factory=list)
    kept: int = 0


class Namer:
    """Gives each material of a base its path, and the catalog's items what follows from that."""

    def __init__(self, source: Source, upgrade: Upgrade, row: Row | None, db: apsw.Connection) -> None:
        draft = upgrade.plan.draft
        items = None if source.catalog is None else source.catalog.items
        self._upgrade = upgrade
        self._db = db
        self._path = source.store.root / upgrade.place.name
        self._raw = source.store.root / upgrade.place.raw
        self._timestamp = clock.iso_time(source.now_ms)
        rows = items.get(upgrade.base, []) if items is not None and row is not None else []
        self._rows = {str(item.get("id")): item for item in rows}
        self._names = FreeNames(draft.taken_names, reserve_processed=draft.file_processor_id is not None)
        self._used: set[str] = set()

    def name(self) -> None:
        """Name them all, in their order."""
        for material in self._upgrade.plan.materials:
            item = self._upgrade.plan.items[material.item]
            row = self._rows.get(item.id)
            path = self._told(item) if row is None else self._listed(item, row, material)
            self._used.add(path.casefold())
            self._upgrade.paths.append(path)
            if row is not None:
                self._plan_item(item, row, path)

    def _told(self, item: ItemPlan) -> str:
        """Return a path for an item that no catalog lists: its file's where that is there, else its own id."""
        path = item.data.get("relativePath", "")
        if path and self._is_free(path) and (self._raw / path).is_file():
            return path
        return self._virtual(item)

    def _virtual(self, item: ItemPlan) -> str:
        return item.id if self._is_free(item.id) else self._names.take(material_name(item.id))

    def _listed(self, item: ItemPlan, row: Row, material: MaterialPlan) -> str:
        """Return the path that an item has in the catalog, or finds now; a file that is missing there is written."""
        stored = path_of(row)
        if stored is not None and self._is_free(stored):
            if item.type == "file" or (self._raw / stored).is_file():
                return stored
            self._write_snapshot(stored, item, material)
            return stored
        if item.type == "file":
            return self._moved(item)
        content = self._content(material)
        snapshot = _snapshot(item, content)
        while True:
            path = self._names.take(f"{snapshot.stem}.md")
            if _holds(self._raw / path, content):
                return path  # of a run that was stopped
            if not (self._raw / path).exists() and self._is_free(path):
                self._write_snapshot(path, item, material)
                return path

    def _is_free(self, path: str) -> bool:
        return path_problem(path.encode("utf-8", "replace")) is None and path.casefold() not in self._used

    def _moved(self, item: ItemPlan) -> str:
        """Return the path of a file whose own is none, or is another item's: a copy of that file, else its id."""
        path, upload = item.data["relativePath"], item.upload
        if not self._is_free(path) or upload is None:
            return self._virtual(item)
        there = PurePosixPath(upload.folder or "", upload.name)
        source, target = self._raw.joinpath(*there.relative_to(self._upgrade.place.raw).parts), self._raw / path
        if source == target or not source.is_file():
            return path
        if target.exists():
            return path if filecmp.cmp(source, target, shallow=False) else self._virtual(item)
        message = tr("copy {name} to {path}: another item has that file, too", name=source.name, path=path)
        action = Action(
            action="copy-file", message=message, base=self._upgrade.base, subject=path, bytes=source.stat().st_size
        )
        self._upgrade.files.append((path, partial(durable.copy_file, source), action, action.bytes))
        return path

    def _content(self, material: MaterialPlan) -> str:
        rows = PREVIEW.rows(self._db, material.runs, self._upgrade.plan.vector_bytes)
        return BODY_SEPARATOR.join(body for body, _ in rows)

    def _write_snapshot(self, path: str, item: ItemPlan, material: MaterialPlan) -> None:
        message = tr("write {path}, the text of a {type}", path=path, type=item.type)
        action = Action(
            action="write-snapshot", message=message, base=self._upgrade.base, subject=path, bytes=material.body_bytes
        )
        origin, size, stamp = self._path, self._upgrade.plan.vector_bytes, self._timestamp

        def write(new: Path) -> None:
            with libsql.readable(origin) as copy, sqlite.reading(copy) as db:
                content = BODY_SEPARATOR.join(body for body, _ in PREVIEW.rows(db, material.runs, size))
            text = _snapshot(item, content).block(stamp) + content
            durable.put_text(new, text)

        self._upgrade.files.append((path, write, action, material.body_bytes))

    def _plan_item(self, item: ItemPlan, row: Row, path: str) -> None:
        stored = data_of(row)
        wanted = {**stored, **{key: whole(value) for key, value in item.data.items()}}
        if path_of({"data": json.dumps(stored)}) != path:
            wanted.pop("indexedRelativePath", None)
            wanted["relativePath"] = path
        elif "relativePath" in stored:
            wanted["relativePath"] = stored["relativePath"]
        if wanted != stored:
            new = json.dumps(wanted, ensure_ascii=False, separators=(",", ":"))
            sql = "UPDATE knowledge_item SET data = ? WHERE id = ? AND base_id = ? AND data IS ?"
            self._upgrade.updates.append((sql, (new, item.id, self._upgrade.base, row.get("data")), "item"))


def _snapshot(item: ItemPlan, content: str) -> okf.Snapshot:
    return okf.url_snapshot(item.data["url"], content) if item.type == "url" else okf.note_snapshot(item.data["source"])


def _holds(path: Path, content: str) -> bool:
    """Tell whether a file is the snapshot of a text."""
    try:
        return path.is_file() and okf.strip_block(decode_utf8(links.content(path))) == content
    except OSError:
        return False
