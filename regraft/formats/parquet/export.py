"""From a library, profile, base or index, from v1's vector files, or from a KB, to a Parquet file of units."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec import Struct

from regraft.disk import links, sqlite
from regraft.disk.file_paths import vector_file_name
from regraft.disk.trees import join_path
from regraft.errors import SourceNotMigratable, SourceUnreadable, TargetNotWritable, WrongUsage
from regraft.formats.cherry_v1 import layout as cherry_v1_layout
from regraft.formats.cherry_v1.layout import find_vector_file
from regraft.formats.cherry_v1.state import read_state
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, Row, StoredCatalog, read_catalog
from regraft.formats.cherry_v2.index.schema import catalog_dimensions
from regraft.formats.cherry_v2.layout import StoreFile
from regraft.formats.parquet import row_sources, unit_file
from regraft.formats.parquet.row_sources import BaseSummary
from regraft.formats.parquet.unit_file import BaseMetadata, FileMetadata, UnitRow
from regraft.formats.vector_survey import StoreProblem
from regraft.identity import resolve_base
from regraft.kinds import KIND_NAMES, V1_SOURCES, Kind
from regraft.language import format_count, join_list, tr
from regraft.report.document import Report
from regraft.report.progress import Progress, stage
from regraft.stores.locate import Located
from regraft.text import printable, replace_surrogates

#: Kinds whose bases have an index of the current layout.
V2_KINDS = (Kind.LIBRARY, Kind.PACK, Kind.V2_PROFILE, Kind.V2_BACKUP, Kind.BASE, Kind.INDEX)
V1_KINDS = (*V1_SOURCES, Kind.V1_VECTORS)
_DAMAGE = (apsw.Error, StoreProblem, SourceUnreadable, OSError, UnicodeDecodeError)


class ExportedRows(Struct, frozen=True, kw_only=True):
    """How many texts a base has, how many of them are rows of the file, and why the others are not."""

    read: int
    carried: int
    skipped: dict[str, int]


class ExportedBase(Struct, frozen=True, kw_only=True):
    """A base in the document of an export; ``left_out`` counts what is no unit, by its finding."""

    id: str
    name: str
    model: str | None
    dimensions: int | None
    rows: ExportedRows
    vectors: int
    without_vector: int
    left_out: dict[str, int]
    problem: str | None


class ExportReport(Report, kw_only=True):
    """What ``regraft export`` tells (``docs/commands.md``)."""

    bases: list[ExportedBase]


class BaseExport(msgspec.Struct):
    """One base on its way into a file, and what became of it."""

    about: BaseMetadata
    #: Its index or vector file on disk; None where it has none.
    file: Path | None = None
    look: BaseSummary | None = None
    rows: int = 0
    vectors: int = 0
    problem: str | None = None
    #: What told the state of the file before anything of it was read.
    mark: sqlite.FileState = ()
    #: Streams its rows, once it was looked at.
    rows_of: Callable[[Path, BaseMetadata, BaseSummary], Iterator[UnitRow]] = row_sources.read_index_rows

    @property
    def has_moved(self) -> bool:
        """Tell whether the file was written to since it was looked at."""
        return self.file is not None and sqlite.read_file_state(self.file) != self.mark

    @property
    def vector_bytes(self) -> int | None:
        """Return the length of its vectors, None where it has none."""
        return None if self.look is None else self.look.vector_bytes

    def report(self) -> ExportedBase:
        """Return the base's part of the command's document."""
        look = self.look or BaseSummary()
        return ExportedBase(
            id=self.about.id,
            name=self.about.name,
            model=self.about.model,
            dimensions=self.about.dimensions,
            rows=ExportedRows(read=look.bodies, carried=self.rows, skipped=self._skipped(look)),
            vectors=self.vectors,
            without_vector=self.rows - self.vectors,
            left_out={name: count for name, count in look.left_out.items() if name != "body.orphan"},
            problem=self.problem,
        )

    def _skipped(self, look: BaseSummary) -> dict[str, int]:
        orphans = {name: count for name, count in look.left_out.items() if name == "body.orphan"}
        skipped = {**look.skipped, **orphans}
        unread = look.bodies - self.rows - sum(skipped.values())
        return {**skipped, "unreadable": unread} if unread else skipped


class SourceExport(msgspec.Struct):
    """All bases of a source that go into one file."""

    layout: str
    bases: list[BaseExport]
    catalog: StoredCatalog = msgspec.field(default_factory=StoredCatalog)

    def about(self) -> FileMetadata:
        """Return the file's metadata.

        Raises:
            WrongUsage: its bases have vectors of different lengths.
        """
        dimensions = self._dimensions()
        models = self._models()
        keys = {row.get("provider_id") for row in models}
        return FileMetadata(
            schema=unit_file.SCHEMA_VERSION,
            layout=self.layout,
            dimensions=dimensions,
            bases=[part.about for part in self.bases],
            models=models,
            providers=[row for row in self.catalog.providers or () if row.get("provider_id") in keys],
        )

    def _dimensions(self) -> int | None:
        sized = [(part.about.id, part.vector_bytes) for part in self.bases if part.vector_bytes]
        if len({size for _, size in sized}) > 1:
            listed = join_list(tr("{base_id} has {size}", base_id=base_id, size=size // 4) for base_id, size in sized)
            problem = tr(
                "one file holds vectors of one length, but the bases differ in dimensions: {listed}", listed=listed
            )
            raise WrongUsage(
                problem=problem, hint=tr("choose bases of one length with --base, and write a file for each")
            )
        return sized[0][1] // 4 if sized else None

    def _models(self) -> list[Row]:
        """Return those of the catalog's models that a base names."""
        named = {part.about.model for part in self.bases}
        named |= {(part.about.settings or {}).get("rerank_model_id") for part in self.bases}
        return [row for row in self.catalog.models or () if row.get("id") in named]


def export(
    source: Located,
    target: Path,
    bases: tuple[str, ...],
    progress: Progress,
    *,
    from_v1: bool = False,
    visible_to: tuple[str, ...] = (),
) -> SourceExport:
    """Write the units of a source to ``target``, all of the file or nothing; the source is only read.

    Args:
        source: a recognised path.
        target: a file; only an earlier one of regraft's is written over.
        bases: ids of the only bases to write; empty for all.
        progress: told of rows.
        from_v1: write v1's own table instead of an index.
        visible_to: of documents that are for some people only: whose are written, besides everybody's.

    Raises:
        SourceNotMigratable: the kind of source has no such table.
        BaseUnknown: a base of ``bases`` is not there.
        WrongUsage: pyarrow is missing, or bases differ in dimensions.
        TargetNotWritable: something else is there.
        OSError: the file cannot be written.
    """
    unit_file.import_arrow()
    _check_kind(source, from_v1=from_v1)
    if visible_to and source.kind is not Kind.RSCLAW:
        problem = tr("--visible-to is for documents of {kind}", kind=KIND_NAMES[Kind.RSCLAW])
        raise WrongUsage(problem=problem, hint=tr("leave it out"))
    unit_file.check_target(target)
    root = source.tree.path if source.kind is Kind.RSCLAW else source.path
    if root.is_dir() and links.is_at_or_below(target, root):
        raise TargetNotWritable(path=target, reason=tr("it lies in the source"))
    with ExitStack() as keep:
        parts = _parts(source, bases, keep, from_v1=from_v1, visible_to=visible_to)
        about = parts.about()
        total = sum(part.look.bodies for part in parts.bases if part.look)
        with stage(progress, "Writing", total, "texts"), unit_file.write_units(target, about) as file:
            for part in parts.bases:
                progress.at(part.about.name)
                for row in _rows(part):
                    file.add(row)
                    part.rows += 1
                    part.vectors += row.vector is not None
                    progress.step(1, len(row.text or "") + len(row.vector or b""))
                    # It may be large: it is not kept while the next one is read.
                    del row
    return parts


def _check_kind(source: Located, *, from_v1: bool) -> None:
    if source.kind in (V1_KINDS if from_v1 else (*V2_KINDS, Kind.RSCLAW)):
        return
    advice = tr("export takes a library, profile, base or index, or v1 data with --v1")
    if source.kind in V1_KINDS:
        advice = tr("give --v1 to export its old table, or migrate it first")
    elif source.kind in V2_KINDS:
        advice = tr("leave out --v1, or name v1's part of it with --kind v1-profile")
    raise SourceNotMigratable(path=source.path, what=KIND_NAMES[source.kind], advice=advice)


def _parts(
    source: Located, bases: tuple[str, ...], keep: ExitStack, *, from_v1: bool, visible_to: tuple[str, ...]
) -> SourceExport:
    if source.kind is Kind.RSCLAW:
        return _kb_parts(source, bases, visible_to, keep)
    return _v1_parts(source, bases, keep) if from_v1 else _v2_parts(source, bases, keep)


def _rows(part: BaseExport) -> Iterator[UnitRow]:
    """Stream a base's rows; damage ends it, with what was read until then."""
    if part.file is None or part.look is None:
        return
    try:
        yield from part.rows_of(part.file, part.about, part.look)
    except Exception as error:
        if not part.has_moved and not isinstance(error, apsw.Error | UnicodeDecodeError):
            raise
        part.problem = tr("cannot be read to its end: {error}", error=error)
    if part.has_moved:
        part.problem = sqlite.CHANGED_DURING_READ


def _chosen(parts: list[BaseExport], bases: tuple[str, ...]) -> list[BaseExport]:
    names = {part.about.id: str(part.about.name) for part in parts}
    wanted = {resolve_base(name, names) for name in bases}
    return [part for part in parts if not bases or part.about.id in wanted]


# --- v2 ------------------------------------------------------------------------------------------------------------


def _v2_parts(source: Located, bases: tuple[str, ...], keep: ExitStack) -> SourceExport:
    stores = source.stores
    catalog = _catalog_of(source, keep)
    files = {_id_of(source, store): store.name for store in (*stores.current, *stores.preview)}
    settings = {str(row.get("id")): row for row in catalog.bases}
    ids = [*settings, *(one for one in files if one not in settings)] if stores.is_whole else list(files)
    chosen = _chosen([_stored_base(base_id, settings.get(base_id), catalog) for base_id in ids], bases)
    for part in chosen:
        if part.about.id in files:
            _look_into(part, source, files[part.about.id], keep)
        elif source.is_slim:
            part.problem = tr("a slim backup has neither its texts nor its vectors")
    return SourceExport("v2", chosen, catalog)


def _catalog_of(source: Located, keep: ExitStack) -> StoredCatalog:
    name = source.stores.catalog
    if name is None:
        return StoredCatalog()
    try:
        return read_catalog(keep.enter_context(source.tree.local(name, None)))
    except CatalogProblem as problem:
        raise SourceUnreadable(path=f"{printable(source.path)}: {name}", reason=problem) from problem


def _stored_base(base_id: str, row: Row | None, catalog: StoredCatalog) -> BaseExport:
    """Return a base by its row in the catalog, None where it has none."""
    if row is None:
        return BaseExport(BaseMetadata(id=base_id, name=base_id, model=None, dimensions=None, index=False))
    items = None if catalog.items is None else catalog.items.get(base_id, [])
    name, model = str(row.get("name") or base_id), row.get("embedding_model_id")
    model = model if isinstance(model, str) else None
    return BaseExport(
        BaseMetadata(id=base_id, name=name, model=model, dimensions=None, index=False, settings=row, items=items)
    )


def _id_of(source: Located, store: StoreFile) -> str:
    """Return a base's id by its place; that of an index file anywhere else stands in itself."""
    if store.base_id is not None:
        # A folder's name need not be UTF-8, and a Parquet file holds nothing else.
        return store.base_id if replace_surrogates(store.base_id) == store.base_id else printable(store.base_id)
    try:
        with source.tree.local(store.name, None) as file:
            return row_sources.read_base_id(file) or source.path.stem
    except _DAMAGE:
        return source.path.stem


def _look_into(part: BaseExport, source: Located, name: str, keep: ExitStack) -> None:
    try:
        part.file = keep.enter_context(source.tree.local(name, None))
        part.mark = sqlite.read_file_state(part.file)
        part.look = row_sources.summarize_index(part.file, catalog_dimensions(part.about.settings))
    except _DAMAGE as error:
        part.problem = tr("its index cannot be read: {error}", error=error)
        return
    if part.look.damage is not None:
        part.problem = tr("its index is damaged: {damage}", damage=part.look.damage)
    part.about.index = True
    part.about.bare_materials = part.look.bare
    part.about.dimensions = part.look.vector_bytes // 4 if part.look.vector_bytes else None


# --- v1 ------------------------------------------------------------------------------------------------------------


def _v1_parts(source: Located, bases: tuple[str, ...], keep: ExitStack) -> SourceExport:
    if source.kind is Kind.V1_VECTORS:
        only = BaseExport(
            BaseMetadata(id=source.path.name, name=source.path.name, model=None, dimensions=None, index=True)
        )
        named = [(only, source.path.name)]
    else:
        folder = source.places.vectors or ""
        named = [(_legacy_base(raw), vector_file_name(raw["id"])) for raw in _legacy_bases(source)]
        named = [(part, join_path(folder, find_vector_file(source.tree, folder, name))) for part, name in named]
    chosen = _chosen([part for part, _ in named], bases)
    for part, name in named:
        if part in chosen:
            _survey(part, source, name, keep)
    return SourceExport("v1", chosen)


def _legacy_bases(source: Located) -> list[dict[str, Any]]:
    bases = read_state(source.tree, source.places).bases
    return [raw for raw in bases if isinstance(raw, dict) and isinstance(raw.get("id"), str)]


def _legacy_base(raw: dict[str, Any]) -> BaseExport:
    model = raw.get("model")
    named = [model.get(key) for key in ("provider", "id")] if isinstance(model, dict) else []
    known = "::".join(map(str, named)) if named and all(named) else None
    return BaseExport(
        BaseMetadata(id=raw["id"], name=str(raw.get("name") or raw["id"]), model=known, dimensions=None, index=True)
    )


def _survey(part: BaseExport, source: Located, name: str, keep: ExitStack) -> None:
    if source.tree.kind(name) != "file":
        part.problem = tr("its vector file does not exist")
        return
    try:
        part.file = keep.enter_context(source.tree.local(name, None))
        part.mark = sqlite.read_file_state(part.file)
        part.rows_of = row_sources.read_v1_rows
        survey = cherry_v1_layout.VECTOR_TABLE.survey(part.file)
    except StoreProblem as problem:
        part.problem = tr("its vector file {problem}", problem=problem)
        return
    except _DAMAGE as error:
        part.problem = tr("its vector file cannot be read: {error}", error=error)
        return
    part.look = BaseSummary(vector_bytes=survey.vector_bytes, bodies=survey.rows)
    part.about.dimensions = (survey.vector_bytes or 0) // 4 or None


# --- rsclaw --------------------------------------------------------------------------------------------------------


def _kb_parts(source: Located, bases: tuple[str, ...], visible_to: tuple[str, ...], keep: ExitStack) -> SourceExport:
    written = keep.enter_context(row_sources.open_chunks(source, visible_to))
    part = BaseExport(
        row_sources.describe_base(written),
        file=written.path,
        look=row_sources.summarize_chunks(written),
        rows_of=row_sources.read_chunk_rows,
    )
    part.mark = sqlite.read_file_state(written.path)
    if written.damaged_pages:
        part.problem = tr(
            "{pages} of its database damaged: {chunks} lost with them",
            pages=format_count(written.damaged_pages, "page"),
            chunks=format_count(written.lost, "chunk"),
        )
    return SourceExport("rsclaw", _chosen([part], bases))
