"""What the Parquet files of an import contain, and the plan of each base: its catalog rows, items and size."""

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

# --- files ---------------------------------------------------------------------------------------------------------


class UnitsFile(msgspec.Struct):
    """A Parquet file of units. :meth:`survey` reads its rows."""

    path: Path
    about: FileMetadata
    #: Size and modification time (ns) when the file was opened.
    looked_at: tuple[int, int]
    #: Totals of its rows by base id; None before the survey.
    held: dict[Any, BaseTotals] | None = None

    def content_mark(self) -> list[int]:
        """Return size and CRC-32 of the file, which identify its content.

        Raises:
            SourceUnreadable: the file cannot be read, or has changed since it was opened.
        """
        try:
            with self.path.open("rb") as file:
                found = [self.looked_at[0], stream_crc32(file)]
            stamp = _file_stamp(self.path)
        except OSError as error:
            raise SourceUnreadable(path=self.path, reason=error.strerror or error) from error
        if stamp != self.looked_at:
            raise SourceUnreadable(path=self.path, reason=tr("it changed while it was read"))
        return found

    def survey(self, watch: Callable[[float], None]) -> None:
        """Read all rows once. ``watch`` is called with the share of the file read since its last call.

        Raises:
            SourceUnreadable: the file is damaged.
        """
        self.held = unit_file.survey_file(self.path, watch)

    def totals_of(self, base: BaseMetadata) -> BaseTotals:
        """Return the totals of a base's rows; empty for a base without an index."""
        return (self.held or {}).get(base.id, BaseTotals()) if base.index else BaseTotals()

    def strays(self) -> int:
        """Count the rows of bases that the file does not describe."""
        described = {base.id for base in self.about.bases if base.index}
        return sum(held.rows for base, held in (self.held or {}).items() if base not in described)

    def rows(self, base: BaseMetadata) -> Iterator[UnitRow]:
        """Yield the rows of one base, from the row groups that hold them.

        Raises:
            SourceUnreadable: the file is damaged, or has changed since the survey.
        """
        try:
            for row in unit_file.read_rows(self.path, self.totals_of(base).groups):
                if row.base == base.id:
                    yield row
        except SourceUnreadable:
            # A read error in a file that is being written is reported as a change, not as damage.
            if _file_stamp(self.path) == self.looked_at:
                raise
        if _file_stamp(self.path) != self.looked_at:
            raise SourceUnreadable(path=self.path, reason=tr("it changed while it was read"))


def open_files(paths: tuple[Path, ...]) -> list[UnitsFile]:
    """Open the files of an import. Each base must be in one file only.

    Raises:
        SourceUnreadable, SourceUnrecognised, SourceNotMigratable: a file is damaged, of another kind, or a table of v1.
        WrongUsage: two files hold the same base, or pyarrow is missing.
    """
    owners: dict[str, Path] = {}
    files = []
    for path in paths:
        if not path.is_file():
            raise SourceUnreadable(path=path, reason=tr("no such file"))
        stamp, about = _file_stamp(path), unit_file.read_metadata(path)
        if about.layout != "v2":
            advice = tr("migrate the source that it was exported from, with regraft migrate")
            is_v1 = about.layout == "v1"
            what = tr("the old table of a v1 base") if is_v1 else tr("the chunks of an rsclaw knowledge base")
            raise SourceNotMigratable(path=path, what=what, advice=advice)
        for base in about.bases:
            if fold_name(base.id) in owners:
                problem = tr(
                    "base {id} is in {owners} and in {path}", id=base.id, owners=owners[fold_name(base.id)], path=path
                )
                raise WrongUsage(problem=problem, hint=tr("give each base in one file only"))
            if not is_folder_name(base.id) or fold_name(base.id) in (CATALOG_SUBJECT, REPORT_SUBJECT):
                raise SourceUnreadable(
                    path=path, reason=tr("the id of its base {id!r} is not a valid folder name", id=base.id)
                )
            owners[fold_name(base.id)] = path
        files.append(UnitsFile(path, about, stamp))
    return files


def select_bases(files: list[UnitsFile], wanted: tuple[str, ...]) -> list[tuple[int, UnitsFile, BaseMetadata]]:
    """Return the bases to import, each with its position and file. Empty ``wanted`` means all.

    Raises:
        BaseUnknown: an id of ``wanted`` is not in the files.
    """
    every = [(file, base) for file in files for base in file.about.bases]
    known = [base.id for _, base in every]
    for one in wanted:
        if one not in known:
            raise BaseUnknown(base=one, known=join_list(known) or tr("no bases"))
    return [(at, file, base) for at, (file, base) in enumerate(every) if not wanted or base.id in wanted]


def _file_stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


# --- catalog rows --------------------------------------------------------------------------------------------------
#
# From the metadata of the file or, if it has none, from the index.


#: Error of a base whose file does not name the model of its vectors.
MODEL_UNKNOWN = "missing_embedding_model"


def make_base_record(file: Path, about: FileMetadata, base: BaseMetadata, now_ms: int) -> BaseRecord:
    """Make a base's catalog rows, without its items.

    Raises:
        SourceUnreadable: the metadata are not valid rows of a catalog.
    """
    try:
        row = msgspec.convert(_base_row(base, now_ms), BaseRow)
        named = {row.embedding_model_id: EMBEDDING}
        named.setdefault(row.rerank_model_id, RERANK)
        metadata = {one["id"]: one for one in about.models}
        every = ((one, capabilities) for one, capabilities in named.items() if one is not None)
        models = [_complete_model(one, metadata.get(one), capabilities) for one, capabilities in every]
        known = {one["provider_id"]: msgspec.convert(one, ProviderRow, strict=False) for one in about.providers}
        keys = dict.fromkeys(model.provider_id for model in models)
        providers = [known.get(key) or ProviderRow(key, key, is_enabled=False) for key in keys]
    except (msgspec.MsgspecError, KeyError) as error:
        raise SourceUnreadable(
            path=file, reason=tr("the metadata of base {id} are invalid: {error}", id=base.id, error=error)
        ) from error
    return BaseRecord(base=row, models=tuple(models), providers=tuple(providers), now_ms=now_ms)


class _ModelMetadata(msgspec.Struct):
    """A model in the metadata. Fields that inherit the application's defaults are null."""

    id: str
    provider_id: str
    model_id: str
    name: str | None = None
    group: str | None = None
    capabilities: str | list[str] | None = None
    supports_streaming: bool | None = None


def _complete_model(model_id: str, metadata: Any, capabilities: tuple[str, ...]) -> ModelRow:
    """Complete a model from the metadata, or make one from its id."""
    if metadata is None:
        provider, _, name = model_id.partition("::")
        metadata = {"id": model_id, "provider_id": provider, "model_id": name or provider}
    return read_model(msgspec.structs.asdict(msgspec.convert(metadata, _ModelMetadata, strict=False)), capabilities)


def _base_row(base: BaseMetadata, now_ms: int) -> dict[str, Any]:
    usual: dict[str, Any] = {one.name: getattr(Settings(), one.name) for one in fields(Settings)}
    if base.settings is not None:
        names = [one.name for one in fields(BaseRow)]
        known = {name: base.settings[name] for name in names if name in base.settings}
        defaults = dict.fromkeys(("rerank_model_id", "file_processor_id", "error"))
        times = dict.fromkeys(("created_at", "updated_at"), now_ms)
        return {**usual, **defaults, **times, **known}
    values: dict[str, Any] = {"dimensions": base.dimensions, "embedding_model_id": base.model}
    values |= {"status": "completed", "error": None}
    if base.dimensions is None:
        values |= {"embedding_model_id": None}
    elif base.model is None:
        values |= {"status": "failed", "error": MODEL_UNKNOWN}
    values |= {"created_at": now_ms, "updated_at": now_ms, "rerank_model_id": None, "file_processor_id": None}
    return {"id": base.id, "name": base.name.strip() or base.id, **values, **usual}


def catalog_items(base: BaseMetadata, skipped: Counter[str]) -> Iterator[ItemRow]:
    """Yield the items of the file, each container before its content. Count invalid items as skipped."""
    waiting = []
    for stored in base.items or ():
        if stored.get("deleted_at") is not None:
            skipped[notices.ITEM_DELETED] += 1
            continue
        item = _convert_item(stored)
        if item is None or item.base_id != base.id:
            skipped[notices.NOT_AN_ITEM] += 1
        else:
            waiting.append(item)
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
            # Their container is missing, so the catalog would refuse them.
            skipped[notices.NOT_AN_ITEM] += len(later)
            return
        waiting = later


def _convert_item(row: dict[str, Any]) -> ItemRow | None:
    """Convert a row of ``knowledge_item``. None if it is invalid or would not survive the ledger's JSON unchanged."""
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
    """Yield a file item for every material of an index, for files without items."""
    with sqlite.open_readonly(index) as db:
        for material, path in db.execute("SELECT material_id, relative_path FROM material ORDER BY rowid"):
            yield item_from_material(base_id, material, path, now_ms)


def item_from_material(base_id: str, material: str, path: str, now_ms: int) -> ItemRow:
    """Make the file item of a material."""
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


#: Bytes on disk for one byte of an item: in the catalog, in its replacement while that is written, and in the ledger.
ITEM_FACTOR = 3


class BaseImportPlan(msgspec.Struct, frozen=True):
    """The plan of one base. Items made from its materials are not listed: ``items`` = None."""

    about: BaseMetadata
    file: UnitsFile
    held: BaseTotals
    record: BaseRecord
    items: tuple[ItemRow, ...] | None
    skipped_items: Counter[str]
    #: Number of rows without a base, reported with the first base of the file.
    strays: int

    def expected_items(self) -> Iterable[ItemRow]:
        """Return the items of the base. Items made from materials only have their ids."""
        if self.items is not None:
            return self.items
        base, now_ms = self.about, self.record.now_ms
        return [item_from_material(base.id, one, one, now_ms) for one in self.materials] if base.index else []

    @property
    def materials(self) -> set[str]:
        """Ids of its materials, including those whose rows may all be refused."""
        return self.held.items | {one.id for one in self.about.bare_materials}

    @property
    def bytes(self) -> int:
        """Estimated size on disk."""
        items = ITEM_FACTOR * len(msgspec.json.encode(self.items or ()))
        if not self.about.index:
            return items
        bare = sum(len(one.content or "") for one in self.about.bare_materials)
        return items + preflight.estimate_index_bytes(
            self.held.rows, self.held.rows, self.held.vector_bytes, self.held.text_bytes + bare
        )
