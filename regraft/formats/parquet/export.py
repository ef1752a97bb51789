"""Export the units of a library, profile, base, index, v1 source or rsclaw knowledge base to a Parquet file."""

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

#: Source kinds whose bases have an index of the current layout.
V2_KINDS = (Kind.LIBRARY, Kind.PACK, Kind.V2_PROFILE, Kind.V2_BACKUP, Kind.BASE, Kind.INDEX)
V1_KINDS = (*V1_SOURCES, Kind.V1_VECTORS)
_READ_ERRORS = (apsw.Error, StoreProblem, SourceUnreadable, OSError, UnicodeDecodeError)


class ExportedRows(Struct, frozen=True, kw_only=True):
    """Texts of a base: read, written to the file, and skipped by reason code."""

    read: int
    carried: int
    skipped: dict[str, int]


class ExportedBase(Struct, frozen=True, kw_only=True):
    """A base in the report of an export. ``left_out`` counts rows that are not units, by finding."""

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
    """The report of ``regraft export`` (``docs/commands.md``)."""

    bases: list[ExportedBase]


class BaseExport(msgspec.Struct):
    """One base during an export, and its results."""

    about: BaseMetadata
    #: Index or vector file on disk; None if the base has none.
    file: Path | None = None
    summary: BaseSummary | None = None
    rows: int = 0
    vectors: int = 0
    problem: str | None = None
    #: State of the file before it was read.
    mark: sqlite.FileState = ()
    #: Streams the rows, after the file was summarized.
    rows_of: Callable[[Path, BaseMetadata, BaseSummary], Iterator[UnitRow]] = row_sources.read_index_rows

    @property
    def has_moved(self) -> bool:
        """Whether the file was changed since it was summarized."""
        return self.file is not None and sqlite.read_file_state(self.file) != self.mark

    @property
    def vector_bytes(self) -> int | None:
        """Length of the vectors; None without vectors."""
        return None if self.summary is None else self.summary.vector_bytes

    def report(self) -> ExportedBase:
        """Return the base's part of the report."""
        summary = self.summary or BaseSummary()
        return ExportedBase(
            id=self.about.id,
            name=self.about.name,
            model=self.about.model,
            dimensions=self.about.dimensions,
            rows=ExportedRows(read=summary.bodies, carried=self.rows, skipped=self._skipped(summary)),
            vectors=self.vectors,
            without_vector=self.rows - self.vectors,
            left_out={name: count for name, count in summary.left_out.items() if name != "body.orphan"},
            problem=self.problem,
        )

    def _skipped(self, summary: BaseSummary) -> dict[str, int]:
        orphans = {name: count for name, count in summary.left_out.items() if name == "body.orphan"}
        skipped = {**summary.skipped, **orphans}
        unread = summary.bodies - self.rows - sum(skipped.values())
        return {**skipped, "unreadable": unread} if unread else skipped


class SourceExport(msgspec.Struct):
    """All bases of a source that are written to one file."""

    layout: str
    bases: list[BaseExport]
    catalog: StoredCatalog = msgspec.field(default_factory=StoredCatalog)

    def about(self) -> FileMetadata:
        """Return the metadata of the file.

        Raises:
            WrongUsage: the bases have vectors of different lengths.
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
                "all vectors in a file must have one length, but the bases differ in dimensions: {listed}",
                listed=listed,
            )
            raise WrongUsage(
                problem=problem, hint=tr("use --base to export bases of one length, and write one file per length")
            )
        return sized[0][1] // 4 if sized else None

    def _models(self) -> list[Row]:
        """Return the models in the catalog that a base refers to."""
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
    """Write the units of a source to ``target``, completely or not at all. The source is only read.

    Args:
        source: a recognized path.
        target: a file. Only a file that an earlier export wrote is overwritten.
        bases: ids of the bases to write; empty for all.
        progress: receives the number of rows.
        from_v1: write v1's own table instead of an index.
        visible_to: people whose restricted documents are written in addition to public ones.

    Raises:
        SourceNotMigratable: this kind of source has no such table.
        BaseUnknown: a base in ``bases`` does not exist.
        WrongUsage: pyarrow is missing, or bases differ in dimensions.
        TargetNotWritable: another file exists at ``target``.
        OSError: the file cannot be written.
    """
    unit_file.import_arrow()
    _check_kind(source, from_v1=from_v1, visible_to=visible_to)
    unit_file.check_target(target)
    root = source.tree.path if source.kind is Kind.RSCLAW else source.path
    if root.is_dir() and links.is_at_or_below(target, root):
        raise TargetNotWritable(path=target, reason=tr("it is inside the source"))
    with ExitStack() as stack:
        if source.kind is Kind.RSCLAW:
            parts = _rsclaw_export(source, bases, visible_to, stack)
        else:
            parts = _v1_export(source, bases, stack) if from_v1 else _v2_export(source, bases, stack)
        about = parts.about()
        total = sum(part.summary.bodies for part in parts.bases if part.summary)
        with stage(progress, "Writing", total, "texts"), unit_file.write_units(target, about) as file:
            for part in parts.bases:
                progress.at(part.about.name)
                for row in _stream_rows(part):
                    file.add(row)
                    part.rows += 1
                    part.vectors += row.vector is not None
                    progress.step(1, len(row.text or "") + len(row.vector or b""))
                    # Release it before the next one is read: it may be large.
                    del row
    return parts


def _check_kind(source: Located, *, from_v1: bool, visible_to: tuple[str, ...]) -> None:
    """Refuse a source that the options do not fit.

    Raises:
        SourceNotMigratable, WrongUsage
    """
    if source.kind not in (V1_KINDS if from_v1 else (*V2_KINDS, Kind.RSCLAW)):
        advice = tr("export takes a library, profile, base or index, or v1 data with --v1")
        if source.kind in V1_KINDS:
            advice = tr("use --v1 to export its v1 table, or migrate it first")
        elif source.kind in V2_KINDS:
            advice = tr("leave out --v1, or use --kind v1-profile to read it as a v1 profile")
        raise SourceNotMigratable(path=source.path, what=KIND_NAMES[source.kind], advice=advice)
    if visible_to and source.kind is not Kind.RSCLAW:
        problem = tr("--visible-to is for documents of {kind}", kind=KIND_NAMES[Kind.RSCLAW])
        raise WrongUsage(problem=problem, hint=tr("leave it out"))


def _stream_rows(part: BaseExport) -> Iterator[UnitRow]:
    """Stream the rows of a base. Damage ends the stream and is recorded as the base's problem."""
    if part.file is None or part.summary is None:
        return
    try:
        yield from part.rows_of(part.file, part.about, part.summary)
    except Exception as error:
        if not part.has_moved and not isinstance(error, apsw.Error | UnicodeDecodeError):
            raise
        part.problem = tr("cannot be read to its end: {error}", error=error)
    if part.has_moved:
        part.problem = sqlite.CHANGED_DURING_READ


def _select_bases(parts: list[BaseExport], bases: tuple[str, ...]) -> list[BaseExport]:
    names = {part.about.id: str(part.about.name) for part in parts}
    wanted = {resolve_base(name, names) for name in bases}
    return [part for part in parts if not bases or part.about.id in wanted]


# --- v2 ------------------------------------------------------------------------------------------------------------


def _v2_export(source: Located, bases: tuple[str, ...], stack: ExitStack) -> SourceExport:
    stores = source.stores
    catalog = StoredCatalog()
    if stores.catalog is not None:
        try:
            catalog = read_catalog(stack.enter_context(source.tree.local(stores.catalog, None)))
        except CatalogProblem as problem:
            raise SourceUnreadable(path=f"{printable(source.path)}: {stores.catalog}", reason=problem) from problem
    files = {_base_id(source, store): store.name for store in (*stores.current, *stores.preview)}
    settings = {str(row.get("id")): row for row in catalog.bases}
    ids = [*settings, *(one for one in files if one not in settings)] if stores.is_whole else list(files)
    parts = [BaseExport(_describe_v2_base(base_id, settings.get(base_id), catalog)) for base_id in ids]
    chosen = _select_bases(parts, bases)
    for part in chosen:
        if part.about.id in files:
            _summarize_base(part, source, files[part.about.id], stack)
        elif source.is_slim:
            part.problem = tr("a slim backup has neither its texts nor its vectors")
    return SourceExport("v2", chosen, catalog)


def _describe_v2_base(base_id: str, row: dict[str, Any] | None, catalog: StoredCatalog) -> BaseMetadata:
    """Describe a base by its row of the catalog, or by its id alone."""
    about = BaseMetadata(id=base_id, name=base_id, model=None, dimensions=None, index=False)
    if row is not None:
        about.name, model = str(row.get("name") or base_id), row.get("embedding_model_id")
        about.model = model if isinstance(model, str) else None
        about.settings = row
        about.items = None if catalog.items is None else catalog.items.get(base_id, [])
    return about


def _base_id(source: Located, store: StoreFile) -> str:
    """Return the base id from the path of the store; of an index file anywhere else, from the index itself."""
    if store.base_id is not None:
        # The name of a folder may be invalid UTF-8, which a Parquet file cannot contain.
        return store.base_id if replace_surrogates(store.base_id) == store.base_id else printable(store.base_id)
    try:
        with source.tree.local(store.name, None) as file:
            return row_sources.read_base_id(file) or source.path.stem
    except _READ_ERRORS:
        return source.path.stem


def _summarize_base(part: BaseExport, source: Located, name: str, stack: ExitStack) -> None:
    try:
        part.file = stack.enter_context(source.tree.local(name, None))
        part.mark = sqlite.read_file_state(part.file)
        part.summary = row_sources.summarize_index(part.file, catalog_dimensions(part.about.settings))
    except _READ_ERRORS as error:
        part.problem = tr("its index cannot be read: {error}", error=error)
        return
    if part.summary.damage is not None:
        part.problem = tr("its index is damaged: {damage}", damage=part.summary.damage)
    part.about.index = True
    part.about.bare_materials = part.summary.bare
    part.about.dimensions = part.summary.vector_bytes // 4 if part.summary.vector_bytes else None


# --- v1 ------------------------------------------------------------------------------------------------------------


def _v1_export(source: Located, bases: tuple[str, ...], stack: ExitStack) -> SourceExport:
    if source.kind is Kind.V1_VECTORS:
        only = BaseExport(
            BaseMetadata(id=source.path.name, name=source.path.name, model=None, dimensions=None, index=True)
        )
        named = [(only, source.path.name)]
    else:
        folder = source.places.vectors or ""
        named = []
        for raw in read_state(source.tree, source.places).bases:
            if isinstance(raw, dict) and isinstance(raw.get("id"), str):
                file = find_vector_file(source.tree, folder, vector_file_name(raw["id"]))
                named.append((BaseExport(_describe_v1_base(raw)), join_path(folder, file)))
    chosen = _select_bases([part for part, _ in named], bases)
    for part, name in named:
        if part in chosen:
            _survey_v1_base(part, source, name, stack)
    return SourceExport("v1", chosen)


def _describe_v1_base(raw: dict[str, Any]) -> BaseMetadata:
    model = raw.get("model")
    names = [model.get(key) for key in ("provider", "id")] if isinstance(model, dict) else []
    return BaseMetadata(
        id=raw["id"],
        name=str(raw.get("name") or raw["id"]),
        model="::".join(map(str, names)) if names and all(names) else None,
        dimensions=None,
        index=True,
    )


def _survey_v1_base(part: BaseExport, source: Located, name: str, stack: ExitStack) -> None:
    if source.tree.kind(name) != "file":
        part.problem = tr("its vector file does not exist")
        return
    try:
        part.file = stack.enter_context(source.tree.local(name, None))
        part.mark = sqlite.read_file_state(part.file)
        part.rows_of = row_sources.read_v1_rows
        survey = cherry_v1_layout.VECTOR_TABLE.survey(part.file)
    except StoreProblem as problem:
        part.problem = tr("its vector file {problem}", problem=problem)
        return
    except _READ_ERRORS as error:
        part.problem = tr("its vector file cannot be read: {error}", error=error)
        return
    part.summary = BaseSummary(vector_bytes=survey.vector_bytes, bodies=survey.rows)
    part.about.dimensions = (survey.vector_bytes or 0) // 4 or None


# --- rsclaw --------------------------------------------------------------------------------------------------------


def _rsclaw_export(
    source: Located, bases: tuple[str, ...], visible_to: tuple[str, ...], stack: ExitStack
) -> SourceExport:
    written = stack.enter_context(row_sources.open_chunks(source, visible_to))
    part = BaseExport(
        row_sources.describe_base(written),
        file=written.path,
        summary=row_sources.summarize_chunks(written),
        rows_of=row_sources.read_chunk_rows,
    )
    part.mark = sqlite.read_file_state(written.path)
    if written.damaged_pages:
        part.problem = tr(
            "{pages} of its database are damaged; {chunks} could not be recovered",
            pages=format_count(written.damaged_pages, "page"),
            chunks=format_count(written.lost, "chunk"),
        )
    return SourceExport("rsclaw", _select_bases([part], bases))
