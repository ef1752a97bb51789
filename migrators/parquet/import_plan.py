"""What an import plans for one base."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import fields

from migrators.pipeline import preflight
from migrators.pipeline.publication import CATALOG_SUBJECT, REPORT_SUBJECT
from regraft.disk import sqlite
from regraft.disk.file_paths import fold_name, is_folder_name
from regraft.disk.trees import stream_crc32
from regraft.errors import BaseUnknown, SourceNotMigratable, SourceUnreadable, WrongUsage
from regraft.formats import json_text
from regraft.formats.cherry_v2.catalog import EMBEDDING, RERANK, BaseRecord, BaseRow, ItemRow, ModelRow, ProviderRow
from regraft.formats.cherry_v2.catalog_generation import read_model
from regraft.formats.cherry_v2.catalog_reader import find_data_damage
from regraft.formats.cherry_v2.settings import Settings
from regraft.formats.parquet import unit_file
from regraft.formats.parquet.unit_file import BaseMetadata, BaseTotals, FileMetadata, UnitRow
from regraft.language import join_list, tr
from regraft.report import notices
from regraft.text import replace_surrogates

# The Parquet files of an import: what each says of its bases, and what its rows hold of them.


class UnitsFile(msgspec.Struct):
    """One file of units; :meth:`survey` reads it."""

    path: Path
    about: FileMetadata
    #: Size and time of change (ns) when it was looked at first.
    looked_at: tuple[int, int]
    #: By the id that its rows have for a base; None before it was read.
    held: dict[Any, BaseTotals] | None = None

    def content_mark(self) -> list[int]:
        """Return what tells whether another file is the same: its size and CRC-32.

        Raises:
            SourceUnreadable: it cannot be read, or has changed since it was looked at first.
        """
        try:
            with self.path.open("rb") as file:
                found = [self.looked_at[0], stream_crc32(file)]
            mark = _mark(self.path)
        except OSError as error:
            raise SourceUnreadable(path=self.path, reason=error.strerror or error) from error
        if mark != self.looked_at:
            raise SourceUnreadable(path=self.path, reason=tr("it changed meanwhile"))
        return found

    def survey(self, watch: Callable[[float], None]) -> None:
        """Read it once; ``watch`` is told which share of it was read since it was told last.

        Raises:
            SourceUnreadable: it is damaged.
        """
        self.held = unit_file.survey_file(self.path, watch)

    def of_base(self, base: BaseMetadata) -> BaseTotals:
        """Return what its rows hold of a base; nothing of one that has no index."""
        return (self.held or {}).get(base.id, BaseTotals()) if base.index else BaseTotals()

    def strays(self) -> int:
        """Count its rows that are of no base that it describes."""
        described = {base.id for base in self.about.bases if base.index}
        return sum(held.rows for base, held in (self.held or {}).items() if base not in described)

    def rows(self, base: BaseMetadata) -> Iterator[UnitRow]:
        """Stream the rows of one base, out of the row groups in which they are.

        Raises:
            SourceUnreadable: it is damaged, or has changed since it was surveyed.
        """
        try:
            for row in unit_file.read_rows(self.path, self.of_base(base).groups):
                if row.base == base.id:
                    yield row
        except SourceUnreadable:
            # What cannot be read of a file that is being written is no damage.
            if _mark(self.path) == self.looked_at:
                raise
        if _mark(self.path) != self.looked_at:
            raise SourceUnreadable(path=self.path, reason=tr("it changed meanwhile"))


def open_files(paths: tuple[Path, ...]) -> list[UnitsFile]:
    """Return what files of different bases say of themselves.

    Raises:
        SourceUnreadable, SourceUnrecognised, SourceNotMigratable: one is damaged, foreign, or v1's table.
        WrongUsage: two hold the same base, or pyarrow is missing.
    """
    owners: dict[str, Path] = {}
    files = []
    for path in paths:
        if not path.is_file():
            raise SourceUnreadable(path=path, reason=tr("there is no such file"))
        mark, about = _mark(path), unit_file.read_metadata(path)
        if about.layout != "v2":
            advice = tr("regraft migrate carries the source that it was exported from")
            is_v1 = about.layout == "v1"
            what = tr("the old table of a v1 base") if is_v1 else tr("the chunks of a knowledge base of rsclaw")
            raise SourceNotMigratable(path=path, what=what, advice=advice)
        for base in about.bases:
            if fold_name(base.id) in owners:
                problem = tr(
                    "base {id} is in {owners} and in {path}", id=base.id, owners=owners[fold_name(base.id)], path=path
                )
                raise WrongUsage(problem=problem, hint=tr("give each base once"))
            if not _is_folder_name(base.id):
                raise SourceUnreadable(
                    path=path, reason=tr("its base {id!r} cannot be the name of a folder", id=base.id)
                )
            owners[fold_name(base.id)] = path
        files.append(UnitsFile(path, about, mark))
    return files


def select_bases(files: list[UnitsFile], wanted: tuple[str, ...]) -> list[tuple[int, UnitsFile, BaseMetadata]]:
    """Return the bases that a run is about, each with its position and its file; empty ``wanted`` means all.

    Raises:
        BaseUnknown: an id of ``wanted`` is none of them.
    """
    every = [(file, base) for file in files for base in file.about.bases]
    known = [base.id for _, base in every]
    for one in wanted:
        if one not in known:
            raise BaseUnknown(base=one, known=join_list(known) or tr("no bases"))
    return [(at, file, base) for at, (file, base) in enumerate(every) if not wanted or base.id in wanted]


def _mark(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _is_folder_name(base_id: str) -> bool:
    """Tell whether a folder can be called so, and the ledger has no other use for the name."""
    return is_folder_name(base_id) and fold_name(base_id) not in (CATALOG_SUBJECT, REPORT_SUBJECT)


# The catalog's rows of a base, from what a Parquet file says of it or, where it says nothing, from its index.


#: The error of a base whose vectors are of a model that the file does not name.
MODEL_UNKNOWN = "missing_embedding_model"


def make_base_record(file: Path, about: FileMetadata, base: BaseMetadata, now_ms: int) -> BaseRecord:
    """Return a base's rows but for its items.

    Raises:
        SourceUnreadable: they are no rows of a catalog.
    """
    try:
        row = msgspec.convert(_base_row(base, now_ms), BaseRow)
        named = {row.embedding_model_id: EMBEDDING}
        named.setdefault(row.rerank_model_id, RERANK)
        listed = {one["id"]: one for one in about.models}
        every = ((one, capabilities) for one, capabilities in named.items() if one is not None)
        models = [_model(one, listed.get(one), capabilities) for one, capabilities in every]
        known = {one["provider_id"]: msgspec.convert(one, ProviderRow, strict=False) for one in about.providers}
        keys = dict.fromkeys(model.provider_id for model in models)
        providers = [known.get(key) or ProviderRow(key, key, is_enabled=False) for key in keys]
    except (msgspec.MsgspecError, KeyError) as error:
        raise SourceUnreadable(
            path=file, reason=tr("what it says of base {id} is not a row: {error}", id=base.id, error=error)
        ) from error
    return BaseRecord(base=row, models=tuple(models), providers=tuple(providers), now_ms=now_ms)


class _Listed(msgspec.Struct):
    """A model as a file has it; what it inherits from the application is null."""

    id: str
    provider_id: str
    model_id: str
    name: str | None = None
    group: str | None = None
    capabilities: str | list[str] | None = None
    supports_streaming: bool | None = None


def _model(model_id: str, listed: Any, capabilities: tuple[str, ...]) -> ModelRow:
    """Return a model in full: as the file has it, or by its id."""
    if listed is None:
        provider, _, name = model_id.partition("::")
        listed = {"id": model_id, "provider_id": provider, "model_id": name or provider}
    return read_model(msgspec.structs.asdict(msgspec.convert(listed, _Listed, strict=False)), capabilities)


def _stored_values(settings: dict[str, Any], now_ms: int) -> dict[str, Any]:
    """Return what a row that the file has says, with what it may lack."""
    names = [one.name for one in fields(BaseRow)]
    known = {name: settings[name] for name in names if name in settings}
    nullable = {"rerank_model_id", "file_processor_id", "error", "created_at", "updated_at"}
    missing: dict[str, Any] = {name: now_ms if name.endswith("_at") else None for name in nullable - set(known)}
    return {**missing, **known}


def _base_row(base: BaseMetadata, now_ms: int) -> dict[str, Any]:
    usual: dict[str, Any] = {one.name: getattr(Settings(), one.name) for one in fields(Settings)}
    if base.settings is not None:
        return {**usual, **_stored_values(base.settings, now_ms)}
    values: dict[str, Any] = {"dimensions": base.dimensions, "embedding_model_id": base.model}
    values |= {"status": "completed", "error": None}
    if base.dimensions is None:
        values |= {"embedding_model_id": None}
    elif base.model is None:
        values |= {"status": "failed", "error": MODEL_UNKNOWN}
    values |= {"created_at": now_ms, "updated_at": now_ms, "rerank_model_id": None, "file_processor_id": None}
    return {"id": base.id, "name": base.name.strip() or base.id, **values, **usual}


def catalog_items(base: BaseMetadata, skipped: Counter[str]) -> Iterator[ItemRow]:
    """Yield the items that the file has, a container before what it holds; count those that no catalog has room for."""
    waiting = list(_rows(base, skipped))
    placed: set[str | None] = {None}
    while waiting:
        later = []
        for row in waiting:
            if row.group_id in placed:
                yield row
                placed.add(row.id)
            else:
                later.append(row)
        if len(later) == len(waiting):
            # Their container is not there: the catalog would refuse them.
            skipped[notices.NOT_AN_ITEM] += len(later)
            return
        waiting = later


def _rows(base: BaseMetadata, skipped: Counter[str]) -> Iterator[ItemRow]:
    for row in base.items or ():
        item = None if row.get("deleted_at") is not None else _item(row)
        if item is not None and item.base_id == base.id:
            yield item
        else:
            skipped[notices.NOT_AN_ITEM if row.get("deleted_at") is None else notices.ITEM_DELETED] += 1


def _item(row: dict[str, Any]) -> ItemRow | None:
    """Return a row of ``knowledge_item``, None where it is none or would not stay the same in the ledger, as JSON."""
    try:
        data = {
            key: replace_surrogates(one) if isinstance(one, str) else one
            for key, one in json_text.loads(row["data"]).items()
        }
        item = msgspec.convert({**row, "data": data}, ItemRow)
        return (
            item
            if find_data_damage(row) is None and msgspec.json.decode(msgspec.json.encode(item), type=ItemRow) == item
            else None
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, msgspec.MsgspecError):
        return None


def items_from_materials(base_id: str, index: Path, now_ms: int) -> Iterator[ItemRow]:
    """Yield a file for every material of an index: nothing else says what it was."""
    with sqlite.open_readonly(index) as db:
        for material, path in db.execute("SELECT material_id, relative_path FROM material ORDER BY rowid"):
            yield item_from_material(base_id, material, path, now_ms)


def item_from_material(base_id: str, material: str, path: str, now_ms: int) -> ItemRow:
    """Return the item that stands for a material."""
    data = {"source": path, "relativePath": path}
    return ItemRow(
        id=material,
        base_id=base_id,
        group_id=None,
        type="file",
        data=data,
        status="completed",
        error=None,
        created_at=now_ms,
        updated_at=now_ms,
    )


#: Bytes on disk for one byte of an item: in the catalog, in its successor while that is written, and in the ledger.
ITEM_FACTOR = 3


class BaseImportPlan(msgspec.Struct, frozen=True):
    """What becomes of one base; ``items`` is None where they follow from its materials."""

    about: BaseMetadata
    file: UnitsFile
    held: BaseTotals
    record: BaseRecord
    items: tuple[ItemRow, ...] | None
    skipped_items: Counter[str]
    #: Rows of no base, said with the first base of their file.
    strays: int

    def expected_items(self) -> Iterable[ItemRow]:
        """Return its items; those that follow from materials are known by their ids alone."""
        if self.items is not None:
            return self.items
        base, now_ms = self.about, self.record.now_ms
        return [item_from_material(base.id, one, one, now_ms) for one in self.materials] if base.index else []

    @property
    def materials(self) -> set[str]:
        """Return the ids of its materials, also of those none of whose rows will be fit."""
        return self.held.items | {one.id for one in self.about.bare_materials}

    @property
    def bytes(self) -> int:
        """Estimate the bytes that it takes on disk."""
        items = ITEM_FACTOR * len(msgspec.json.encode(self.items or ()))
        if not self.about.index:
            return items
        bare = sum(len(one.content or "") for one in self.about.bare_materials)
        return items + preflight.estimate_index_bytes(
            self.held.rows, self.held.rows, self.held.vector_bytes, self.held.text_bytes + bare
        )
