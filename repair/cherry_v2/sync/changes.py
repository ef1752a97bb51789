"""Make the changes of one base from its comparison: the index, the files below ``raw/``, and the catalog.

They are made in this order. A file's copy is written after its text, and an item after its copy, so that a run that was
killed anywhere is continued by the next one (``docs/sync.md``, "Interrupting and undoing").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import apsw
import msgspec

from regraft import identity
from regraft.disk import durable, file_paths, links
from regraft.errors import PlanOutdated
from regraft.formats.cherry_v2.catalog_generation import ITEMS
from regraft.formats.cherry_v2.catalog_reader import PATH_FIELDS, Row, dump_item_data, parse_item_data
from regraft.formats.cherry_v2.index import schema, store
from regraft.language import format_count, tr
from repair.changes.files import size_on_disk
from repair.changes.plan import Action, Change, FileChange, RowsChange
from repair.cherry_v2.catalog_changes import CatalogStatements
from repair.cherry_v2.item_texts import NoText, find_raw_file
from repair.cherry_v2.sync.base import BaseComparison, SourceFile, SyncedItem
from repair.cherry_v2.sync.sources import SourceReader

_TABLES = ("content", "material", "search_unit", "search_text", "embedding")


class RawFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to write below ``raw/``: a copy of an original file, or the text of one that is indexed instead of it."""

    path: str
    file: SourceFile
    text_hash: str | None = None


class BaseChanges(msgspec.Struct, kw_only=True):
    """The changes of one base that follow from its comparison.

    ``index`` and ``raw`` are paths relative to the store's root.
    """

    compared: BaseComparison
    index: str
    raw: str
    #: Items that are removed.
    gone: list[Row]

    @property
    def _base(self) -> str:
        """Id of the base."""
        return self.compared.base

    def changes(self) -> Iterator[Change]:
        """Yield the change of the index, then those of raw files."""
        index = self._index_change()
        if index is not None:
            yield index
        copies = self._raw_files()
        yield from self._file_changes(copies)
        yield from self._removals({one.path for one in copies})

    # --- the index ---------------------------------------------------------------------------------------------------

    def _index_change(self) -> RowsChange | None:
        """Make the change of the index's rows; None if nothing changes."""
        compared = self.compared
        texts = [one for one in (*compared.changed, *compared.new) if one.text is not None]
        moves = dict(self._material_moves())
        gone = [str(item["id"]) for item in self.gone if str(item["id"]) in compared.index.materials]
        actions = tuple(self._index_actions(texts, moves, gone))
        if not actions:
            return None
        path, reader, now_ms = compared.root / self.index, compared.options.reader, compared.options.now_ms

        def apply(db: apsw.Connection) -> None:
            """Write new texts and paths to the open index, and delete materials."""
            with schema.full_text_triggers(db):
                # A path may become free for another material: the moved ones leave theirs first.
                _set_paths(db, path, {key: f"{key}/{identity.new_run_id()}" for key in moves})
                store.replace_all_materials(db, gone, (_new_material(one, reader, now_ms) for one in texts))
                _set_paths(db, path, moves)

        size = sum(one.text.bytes for one in texts if one.text is not None)
        return RowsChange(path=self.index, actions=actions, apply=apply, tables=_TABLES, bytes=size)

    def _material_moves(self) -> Iterator[tuple[str, str]]:
        """Yield the ids of materials that only get another path, each with the new path."""
        for one in (*self.compared.renamed, *self.compared.new):
            material = self.compared.index.materials.get(one.id)
            if one.text is None and material is not None and material.path != one.indexed_path:
                yield one.id, one.indexed_path

    def _index_actions(self, texts: list[SyncedItem], moves: dict[str, str], gone: list[str]) -> Iterator[Action]:
        """Yield the actions for the report: new or changed texts, moved materials, and materials that are removed."""
        for one in texts:
            yield from self._text_actions(one)
        if moves:
            message = tr("give {materials} the paths of renamed files", materials=format_count(len(moves), "material"))
            yield self._make_action("update-paths", message, count=len(moves))
        if gone:
            message = tr("remove {texts} of missing files from the index", texts=format_count(len(gone), "text"))
            yield self._make_action("delete-texts", message, count=len(gone))

    def _text_actions(self, item: SyncedItem) -> Iterator[Action]:
        """Yield the actions for the report about the new or changed text of an item."""
        text = item.text
        if text is None:
            return
        units, lacking = format_count(len(text.spans), "unit"), len(text.lacking)
        if item.row is None:
            message = tr(
                "index {path}: {units}, {lacking:,} without a vector", path=item.source, units=units, lacking=lacking
            )
        else:
            message = tr(
                "index {path} again: {units}, {lacking:,} without a vector",
                path=item.source,
                units=units,
                lacking=lacking,
            )
        name = "add-text" if item.row is None else "update-text"
        yield self._make_action(
            name,
            message,
            subject=item.indexed_path,
            count=len(text.spans),
            size=item.file.size,
        )
        if text.recut:
            message = tr(
                "{units} of {path} are still in the file, but were cut by another program: the text is cut at other "
                "places now, and units that differ are embedded again",
                units=format_count(text.recut, "former unit"),
                path=item.source,
            )
            yield self._make_action("recut-text", message, subject=item.indexed_path, count=text.recut)
        if text.guessed is not None:
            message = tr("read {path} as {encoding}, guessed from its letters", path=item.source, encoding=text.guessed)
            yield self._make_action("guess-encoding", message, subject=item.indexed_path)

    def _make_action(
        self, action: str, message: str, *, subject: str | None = None, count: int = 1, size: int = 0
    ) -> Action:
        """Make an action about the base, for the report.

        ``subject`` is the item or path that it is about; None: several.
        """
        return Action(action=action, message=message, base=self._base, subject=subject, count=count, bytes=size)

    # --- files -------------------------------------------------------------------------------------------------------

    def _raw_files(self) -> list[RawFile]:
        """List the files to write below ``raw/``, without those that a killed run has written."""
        found = []
        for one in (*self.compared.changed, *self.compared.renamed, *self.compared.new):
            if one.is_copied and not self._is_copied(one):
                found.append(RawFile(path=one.path, file=one.file))
            if one.text is not None and one.processed is not None:
                found.append(RawFile(path=one.processed, file=one.file, text_hash=one.text.content_hash))
        return found

    def _is_copied(self, item: SyncedItem) -> bool:
        """Whether a killed run has copied the item's file already."""
        is_there = file_paths.lexists(self.compared.raw / item.path)
        copy = find_raw_file(item.path, self.compared.raw) if is_there else None
        if copy is None or file_paths.stat(copy).st_size != item.file.size:
            return False
        return links.hash_file(copy) == item.file.digest

    def _file_changes(self, copies: list[RawFile]) -> Iterator[FileChange]:
        """Yield the changes that write these files; a folder that does not exist yet is written in one step."""
        folders: dict[str, list[RawFile]] = {}
        for one in copies:
            top, separator, _ = one.path.partition("/")
            if separator and not file_paths.is_folder(self.compared.raw / top):
                folders.setdefault(top, []).append(one)
            else:
                yield self._file_change(one.path, [one], partial(_write_file, one, self.compared.options.reader))
        for top, inside in folders.items():
            yield self._file_change(top, inside, partial(_write_folder, top, inside, self.compared.options.reader))

    def _file_change(self, path: str, inside: list[RawFile], make: Callable[[Path], None]) -> FileChange:
        """Make the change that writes the files ``inside`` a path below ``raw/``; ``make`` writes them."""
        size = sum(one.file.size for one in inside)
        name = f"{self.raw}/{path}"
        message = (
            tr("copy {files} to {path}", files=format_count(len(inside), "file"), path=name)
            if len(inside) > 1
            else tr("copy {source} to {path}", source=str(inside[0].file.path), path=name)
        )
        action = self._make_action("copy-files", message, subject=name, count=len(inside), size=size)
        return FileChange(path=name, actions=(action,), make=make, bytes=size)

    def _removals(self, written: set[str]) -> Iterator[FileChange]:
        """Yield the changes that move copies of removed items, and the old copies of renamed files, to the trash.

        ``written`` are the paths that the run writes.
        """
        named = {*written, *(path for path, is_left in self._item_paths() if not is_left)}
        leaving = dict.fromkeys(path for path, is_left in self._item_paths() if is_left)
        for path in leaving:
            if path not in named and find_raw_file(path, self.compared.raw) is not None:
                name = f"{self.raw}/{path}"
                size = size_on_disk(self.compared.root / name)
                action = self._make_action(
                    "remove-copy", tr("move {path} to the trash", path=name), subject=name, size=size
                )
                yield FileChange(path=name, actions=(action,), make=None, trash=True)

    def _item_paths(self) -> Iterator[tuple[str, bool]]:
        """Yield the paths below ``raw/`` that items name, and whether the item no longer needs the path."""
        renamed = {one.id for one in self.compared.renamed if one.is_copied}
        gone = {str(item["id"]) for item in self.gone}
        for item in self.compared.items:
            key, data = str(item.get("id")), parse_item_data(item)
            for field in PATH_FIELDS:
                if isinstance(data.get(field), str):
                    yield data[field], key in gone or (key in renamed and field == "relativePath")

    # --- the catalog -------------------------------------------------------------------------------------------------

    def update(self, statements: CatalogStatements) -> Iterator[Action]:
        """Add statements that change the rows of the catalog, and yield the actions for the report."""
        yield from self._insert_items(statements)
        yield from self._update_items(statements)
        gone = {str(item["id"]) for item in self.gone}
        updated = gone | {one.id for one in (*self.compared.renamed, *self.compared.changed)}
        yield from self._move_sources(statements, updated)
        for item in self.gone:
            statements.delete_item(self._base, item)
        if self.gone:
            message = tr("remove {items} whose file no longer exists", items=format_count(len(self.gone), "item"))
            yield self._make_action("delete-items", message, count=len(self.gone))

    def _insert_items(self, statements: CatalogStatements) -> Iterator[Action]:
        """Add statements that insert new folders and files, and yield the actions for the report."""
        compared = self.compared
        for folder in compared.folders:
            self._insert(statements, folder.id, None, "directory", folder.source, folder.path)
            yield self._make_action(
                "add-folder", tr("follow the folder {path}", path=folder.source), subject=folder.path
            )
        for one in compared.new:
            self._insert(statements, one.id, one.container, "file", one.source, one.path)
        if compared.new:
            message = tr("add {items}", items=format_count(len(compared.new), "item"))
            yield self._make_action("add-items", message, count=len(compared.new))

    def _update_items(self, statements: CatalogStatements) -> Iterator[Action]:
        """Add statements that update renamed and changed items, and yield the actions for the report."""
        compared, now_ms = self.compared, self.compared.options.now_ms
        for one in compared.renamed:
            if one.row is not None:
                old = str(parse_item_data(one.row).get("source"))
                data = {"source": one.source, "relativePath": one.path}
                statements.update_item(self._base, one.row, data, now_ms, container=one.container)
                message = tr("rename {old} to {new}", old=old, new=one.source)
                yield self._make_action("rename-item", message, subject=one.path)
        for one in compared.changed:
            if one.row is not None:
                data = {"source": one.source} if one.id in compared.sources else {}
                statements.update_item(self._base, one.row, data, now_ms, container=one.container)
        if compared.changed:
            message = tr("update the time of {items}", items=format_count(len(compared.changed), "item"))
            yield self._make_action("update-items", message, count=len(compared.changed))

    def _insert(
        self, statements: CatalogStatements, key: str, container: str | None, kind: str, source: str, path: str
    ) -> None:
        """Add a statement that inserts a new item.

        Args:
            statements: the statements of the run.
            key: the item's id.
            container: the id of its folder item, if any.
            kind: its type.
            source: the path of the original.
            path: its path below ``raw/``.
        """
        now_ms = self.compared.options.now_ms
        row = {
            "id": key,
            "base_id": self._base,
            "group_id": container,
            "type": kind,
            "data": dump_item_data({"source": source, "relativePath": path}),
            "status": "completed",
            "error": None,
            "created_at": now_ms,
            "updated_at": now_ms,
        }
        statements.bases.add(self._base)
        statements.insert(ITEMS, row)

    def _move_sources(self, statements: CatalogStatements, updated: set[str]) -> Iterator[Action]:
        """Add statements that correct the paths of moved originals, except of items whose ids are in ``updated``."""
        moved = [
            item
            for item in self.compared.items
            if str(item.get("id")) in self.compared.sources and str(item.get("id")) not in updated
        ]
        for item in moved:
            data = {"source": self.compared.sources[str(item.get("id"))]}
            statements.update_item(self._base, item, data, None, container=item.get("group_id"))
        if moved:
            first = moved[0]
            message = tr(
                "correct the sources of {items}: {old} is {new} now",
                items=format_count(len(moved), "item"),
                old=str(parse_item_data(first).get("source")),
                new=self.compared.sources[str(first.get("id"))],
            )
            yield self._make_action("move-sources", message, count=len(moved))


# --- writing ---------------------------------------------------------------------------------------------------------


def _new_material(item: SyncedItem, reader: SourceReader, now_ms: int) -> store.NewMaterial:
    """Read the text of an item's file again, and cut it as planned.

    Raises:
        PlanOutdated: the file was changed since.
    """
    assert item.text is not None
    text = _read_unchanged(item.file, item.text.content_hash, reader)
    return store.NewMaterial(
        material_id=item.id,
        relative_path=item.indexed_path,
        content_hash=item.text.content_hash,
        content=text,
        units=schema.cut_units(item.id, text, item.text.spans),
        embeddings={},
        now_ms=now_ms,
        has_model=False,
    )


def read_bodies(items: list[SyncedItem], reader: SourceReader) -> Iterator[tuple[str, str]]:
    """Yield hash and text of each unit that will be written for these items."""
    for one in items:
        if one.text is not None:
            text = _read_unchanged(one.file, one.text.content_hash, reader)
            for unit in schema.cut_units(one.id, text, one.text.spans):
                yield unit.embedding_text_hash, unit.text


def _read_unchanged(file: SourceFile, content_hash: str, reader: SourceReader) -> str:
    """Read the text of an original file; raises PlanOutdated if it does not have the planned hash."""
    try:
        text = reader.read(file.path).text
    except NoText as problem:
        raise PlanOutdated(path=file.path, reason=str(problem)) from problem
    if identity.text_hash(text) != content_hash:
        raise PlanOutdated(path=file.path, reason=tr("it was changed in the meantime"))
    return text


def _set_paths(db: apsw.Connection, index: Path, paths: dict[str, str]) -> None:
    """Set the paths of materials, by id, in the open index; raises PlanOutdated if a material is gone."""
    for key, path in paths.items():
        before: Any = db.total_changes()
        db.execute("UPDATE material SET relative_path = ? WHERE material_id = ?", (path, key))
        if db.total_changes() == before:
            raise PlanOutdated(path=index, reason=tr("the paths of the materials changed in the meantime"))


def _write_file(raw_file: RawFile, reader: SourceReader, new: Path) -> None:
    """Write a copy of an original file, or its text, to the path ``new``.

    Raises:
        PlanOutdated: the source was changed since it was read.
    """
    if raw_file.text_hash is not None:
        durable.put_text(new, _read_unchanged(raw_file.file, raw_file.text_hash, reader))
        return
    try:
        durable.copy_file(raw_file.file.path, new)
    except FileNotFoundError as error:
        raise PlanOutdated(path=raw_file.file.path, reason=tr("it no longer exists")) from error
    if links.hash_file(new) != raw_file.file.digest:
        raise PlanOutdated(path=raw_file.file.path, reason=tr("it was changed in the meantime"))


def _write_folder(top: str, inside: list[RawFile], reader: SourceReader, new: Path) -> None:
    """Write copies of the files of a folder, ``top`` below ``raw/``, to the staging folder ``new``.

    Paths below ``new`` are relative to ``top``; the caller moves ``new`` to its final place.

    Raises:
        PlanOutdated: a source was changed since it was read.
    """
    for one in inside:
        path = new / PurePosixPath(one.path).relative_to(top)
        durable.make_folders(path.parent, flush=False)
        _write_file(one, reader, path)
