"""Export the units of a library, profile, base, index, v1 source, rsclaw or Chroma to a Parquet file."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import apsw
import msgspec
from msgspec import Struct

from regraft import identity
from regraft.disk import sqlite
from regraft.disk.file_paths import vector_file_name
from regraft.disk.trees import join_path
from regraft.disk.untrusted_sqlite import find_rowid_column
from regraft.errors import SourceNotMigratable, SourceUnreadable, WrongUsage
from regraft.formats import json_text, table_integrity
from regraft.formats.cherry_v1 import layout as cherry_v1_layout
from regraft.formats.cherry_v1.layout import find_vector_file
from regraft.formats.cherry_v1.state import read_state
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, Row, StoredCatalog, read_catalog
from regraft.formats.cherry_v2.index.bulk import BODY_SEPARATOR
from regraft.formats.cherry_v2.index.full_text import ROWS_CACHE_KIB
from regraft.formats.cherry_v2.index.schema import (
    catalog_dimensions,
    choose_vector_length,
    count_bodies_of_other_length,
    count_vector_lengths,
)
from regraft.formats.cherry_v2.layout import StoreFile
from regraft.formats.chroma import database, layouts
from regraft.formats.chroma import rows as chroma_rows
from regraft.formats.chroma.database import ChromaCollection, ChromaProblem
from regraft.formats.chroma.rows import RowTable
from regraft.formats.large_text import LARGE_BYTES, LargeText
from regraft.formats.parquet import unit_file
from regraft.formats.parquet.unit_file import BaseMetadata, EmptyMaterial, FileMetadata, UnitRow
from regraft.formats.rsclaw import chunks as rsclaw_chunks
from regraft.formats.rsclaw.chunks import ChunkTable
from regraft.formats.rsclaw.documents import parse_scope
from regraft.formats.vector_survey import StoreProblem
from regraft.formats.vector_table import make_text_decoder
from regraft.identity import resolve_base
from regraft.kinds import KIND_NAMES, V1_SOURCES, Kind
from regraft.language import format_count, join_list, tr
from regraft.report.document import Report
from regraft.report.progress import Progress, stage
from regraft.stores.systems import Located
from regraft.stores.write_checks import places_read
from regraft.text import decode_utf8, printable, replace_surrogates, utf16_len

# --- rows of a v2 index, a v1 vector file, or rsclaw's chunks (``docs/formats/parquet.md``) --------------------------

_TABLES = ("content", "material", "search_unit", "search_text", "embedding")
_TEXT = "CASE typeof({0}) WHEN 'text' THEN CAST({0} AS BLOB) END"
_IS_LARGE = f"(typeof(t.text) = 'text' AND octet_length(t.text) > {LARGE_BYTES})"
_SMALL = f"CASE WHEN NOT {_IS_LARGE} THEN {_TEXT.format('t.text')} END"
_INTEGER = "CASE typeof({0}) WHEN 'integer' THEN {0} END"


@dataclass
class BaseSummary:
    """Result of a first pass over a base's file: rows that cannot be exported, and facts needed while streaming."""

    #: Most common vector length; None without vectors.
    vector_bytes: int | None = None
    bodies: int = 0
    #: Number of rows that no exported row can represent, by the finding that ``check`` reports.
    left_out: dict[str, int] = field(default_factory=dict)
    #: Number of bodies without an exported row, by reason code.
    skipped: dict[str, int] = field(default_factory=dict)
    #: Materials without units.
    bare: list[EmptyMaterial] = field(default_factory=list)
    #: Ids of materials whose content is not their bodies joined by a blank line.
    own_content: set[str] = field(default_factory=set)
    #: Damage that ended the pass, or None.
    damage: str | None = None


def read_base_id(path: Path) -> str | None:
    """Read the base id from an index; None if the index does not have one.

    Raises:
        apsw.Error, OSError: the file is not an index or is damaged.
    """
    with sqlite.open_readonly(path) as db:
        rows: list[Any] = db.execute("SELECT base_id FROM meta").fetchall()
    return rows[0][0] if rows and isinstance(rows[0][0], str) else None


def summarize_index(path: Path, dimensions: int | None = None) -> BaseSummary:
    """Count the bodies, materials and rows that an export leaves out, and choose the vector length. Reads no vectors.

    Args:
        path: the index file.
        dimensions: dimensions in the catalog; without them the most common vector length is used.

    Raises:
        StoreProblem: a column hides the row ids.
        apsw.Error, OSError: the file is not an index, or its rows cannot be counted because of damage.
    """
    found = BaseSummary()
    with sqlite.open_readonly(path) as db:
        odd = find_rowid_column(db, _TABLES)
        if odd is not None:
            raise StoreProblem(tr("its column {odd} hides the row ids", odd=odd))
        found.bodies = db.execute("SELECT count(*) FROM search_text NOT INDEXED").get
        counts = {
            "body.orphan": "search_text WHERE target_id NOT IN (SELECT unit_id FROM search_unit)",
            "unit.no-body": "search_unit WHERE unit_id NOT IN (SELECT target_id FROM search_text)",
            "embedding.orphan": "embedding WHERE embedding_text_hash NOT IN"
            " (SELECT embedding_text_hash FROM search_text)",
            "content.orphan": "content WHERE content_hash NOT IN (SELECT content_hash FROM search_unit)"
            " AND content_hash NOT IN (SELECT ifnull(current_content_hash, '') FROM material)",
        }
        try:
            lengths = count_vector_lengths(db)
            if lengths:
                # If all vectors have one length, that length is exported, whatever the catalog says.
                found.vector_bytes = choose_vector_length(lengths, None if len(lengths) == 1 else dimensions)
                if others := count_bodies_of_other_length(db, found.vector_bytes):
                    found.left_out["embedding.length"] = others
            for name, what in counts.items():
                if count := db.execute(f"SELECT count(*) FROM {what}").get:
                    found.left_out[name] = count
            _summarize_materials(db, found)
            # Rows are read through indexes: a missing index entry would silently lose a unit or vector. Contents are
            # not checked because they follow from the texts.
            found.damage = table_integrity.find_inconsistency(db, (name for name in _TABLES if name != "content"))
        except apsw.Error as error:
            # The rows, or some of them, may still be intact.
            found.damage = str(error)
    return found


def _summarize_materials(db: apsw.Connection, summary: BaseSummary) -> None:
    """Add to a summary the materials without units, and those whose content is not their joined texts."""
    materials = db.execute(
        f"SELECT {_text_sql('material_id')}, {_text_sql('relative_path')}, current_content_hash"
        " FROM material ORDER BY rowid"
    )
    for raw_id, raw_path, content_hash in materials:
        material = decode_utf8(raw_id or b"")
        bodies: list[Any] = db.execute(
            # CROSS JOIN forces the units first; otherwise every material would scan all bodies of the index.
            "SELECT t.rowid, u.content_hash FROM search_unit u CROSS JOIN search_text t"
            " ON t.target_type = 'search_unit' AND t.target_id = u.unit_id"
            " WHERE u.material_id = ? ORDER BY u.unit_index",
            (material,),
        ).fetchall()
        if not bodies:
            content = _read_content(db, content_hash)
            summary.bare.append(EmptyMaterial(material, decode_utf8(raw_path or b""), content))
            continue
        # Hash the bodies joined by a blank line, holding one of them in memory at a time and no large one.
        joined = hashlib.sha256()
        for number, (rowid, _) in enumerate(bodies):
            if number:
                joined.update(BODY_SEPARATOR.encode())
            query = f"SELECT {_SMALL}, {_IS_LARGE} FROM search_text t WHERE t.rowid = ?"
            [(small, is_large)] = db.execute(query, (rowid,))
            large = LargeText(db=db, table="search_text", column="text", rowid=rowid)
            for piece in large.pieces() if is_large else (decode_utf8(small or b"").encode(),):
                joined.update(piece)
        if joined.hexdigest() != bodies[0][1]:
            summary.own_content.add(material)


def _text_sql(column: str) -> str:
    """Return an SQL expression that gives the bytes of a column if it is text, else NULL."""
    return _TEXT.format(column)


def _read_content(db: apsw.Connection, content_hash: Any) -> str | None:
    """Return the text of a content by its hash, decoded leniently; None if it is missing or NULL."""
    rows: list[Any] = db.execute(
        f"SELECT {_text_sql('text')} FROM content WHERE content_hash = ?", (content_hash,)
    ).fetchall()
    return None if not rows or rows[0][0] is None else decode_utf8(rows[0][0])


def _read_any_content(db: apsw.Connection, content_hash: Any) -> str | bytes | None:
    """Return the text of a content by its hash (a large one as UTF-8 bytes); None if it is missing or NULL."""
    is_large = f"typeof(text) = 'text' AND octet_length(text) > {LARGE_BYTES}"
    query = f"SELECT rowid FROM content WHERE content_hash = ? AND {is_large}"
    found: list[Any] = db.execute(query, (content_hash,)).fetchall()
    for (rowid,) in found:
        return LargeText(db=db, table="content", column="text", rowid=rowid).utf8()
    return _read_content(db, content_hash)


def read_item_sources(items: list[dict[str, Any]] | None) -> dict[str, str]:
    """Read the ``source`` in the data of catalog items. Return it by item id."""
    found = {}
    for item in items or ():
        try:
            source = json_text.loads(item["data"])["source"]
        except (ValueError, TypeError, KeyError):
            continue
        if isinstance(source, str) and isinstance(item.get("id"), str):
            found[item["id"]] = replace_surrogates(source)
    return found


def _units_query(db: apsw.Connection) -> str:
    """Return the SQL query that reads all units of an index with material, content and vector."""
    texts = ("u.material_id", "m.relative_path", "u.content_hash", "t.embedding_text_hash", "u.unit_id")
    columns = ", ".join(_text_sql(name) for name in (*texts, "u.title", "u.locator_json"))
    numbers = ", ".join(_INTEGER.format(f"u.{name}") for name in ("unit_index", "char_start", "char_end"))
    known = {str(row[1]) for row in db.execute("PRAGMA table_info('search_text')")}
    order = "t.fts_rowid, t.rowid" if "fts_rowid" in known else "t.rowid"
    return f"""SELECT {columns}, {numbers}, e.vector_blob, {_SMALL}, CASE WHEN {_IS_LARGE} THEN t.rowid END
                 FROM search_text t
           CROSS JOIN search_unit u ON u.unit_id = t.target_id
                 LEFT JOIN material m ON m.material_id = u.material_id
                 LEFT JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash
                ORDER BY {order}"""


def read_index_rows(path: Path, base: BaseMetadata, summary: BaseSummary) -> Iterator[UnitRow]:
    """Stream the units of an index ordered by ``fts_rowid`` (in version 1: by row id).

    ``summary`` is the result of the first pass. A vector that is not a BLOB of the most common length becomes None.

    Raises:
        apsw.Error: damage was found while reading.
    """
    own = set(summary.own_content)
    sources = read_item_sources(base.items)
    base_name = replace_surrogates(base.name)
    with sqlite.open_readonly(path) as db:
        # Units and vectors are looked up by hash, so access is random.
        db.execute(f"PRAGMA cache_size = -{ROWS_CACHE_KIB}")
        for row in db.execute(_units_query(db)):
            item, place, content_hash, body_hash, unit, title, locator = (
                None if raw is None else decode_utf8(raw) for raw in row[:7]
            )
            index, start, end, vector, small, large = row[7:]
            content: str | bytes | None = None
            text: str | bytes | None = None if small is None else decode_utf8(small)
            if large is not None:
                # UTF-8 takes less memory than a Python string.
                text = LargeText(db=db, table="search_text", column="text", rowid=large).utf8()
            if item in own:
                own.discard(item)
                content = _read_any_content(db, content_hash)
            usable = isinstance(vector, bytes) and len(vector) == summary.vector_bytes
            yield UnitRow(
                base=base.id,
                base_name=base_name,
                item=item,
                path=place,
                source=sources.get(item or ""),
                unit_index=index,
                char_start=start,
                char_end=end,
                text=text,
                content_hash=content_hash,
                body_hash=body_hash,
                unit_id=unit,
                title=title,
                locator_json=locator,
                content=content,
                vector=vector if usable else None,
            )
            text = small = content = None


# v1 vector files ("The legacy table").


_V1_ROWS_QUERY = """SELECT {texts}, vector FROM vectors NOT INDEXED ORDER BY rowid"""


def read_v1_rows(path: Path, base: BaseMetadata, summary: BaseSummary) -> Iterator[UnitRow]:
    """Stream the rows of a v1 vector file in order.

    ``summary`` is the result of the first pass. A vector that does not have the most common length becomes None.

    Raises:
        apsw.Error: the file is damaged.
    """
    numbers: Counter[str | None] = Counter()
    base_name = replace_surrogates(base.name)
    with sqlite.open_readonly(path) as db:
        text_of = make_text_decoder(db)
        there = {str(row[1]) for row in db.execute("PRAGMA table_info('vectors')")}
        columns = (name if name in there else "NULL" for name in ("id", "uniqueLoaderId", "source", "pageContent"))
        texts = ", ".join(f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) END" for name in columns)
        for *raws, vector in db.execute(_V1_ROWS_QUERY.format(texts=texts)):
            row_id, loader, source, text = map(text_of, raws)
            usable = isinstance(vector, bytes) and len(vector) == summary.vector_bytes
            yield UnitRow(
                base=base.id,
                base_name=base_name,
                item=loader,
                source=source,
                unit_index=numbers[loader],
                text=text,
                body_hash=None if text is None else hashlib.sha256(text.encode()).hexdigest(),
                unit_id=row_id,
                vector=vector if usable else None,
            )
            numbers[loader] += 1


# --- rows of rsclaw's chunks -----------------------------------------------------------------------------------------

_CHUNKS_QUERY = (
    """SELECT id, doc_id, seq, title, path, source, body, vector FROM chunks WHERE reason IS NULL ORDER BY rowid"""
)
_REASONS = "SELECT reason, count(*) FROM chunks WHERE reason IS NOT NULL GROUP BY 1 ORDER BY 1"


def describe_base(chunks: ChunkTable) -> BaseMetadata:
    """Return the metadata of the one base that stands for an rsclaw knowledge base."""
    choice = chunks.choice
    model = None if choice.embedder is None else f"{rsclaw_chunks.PROVIDER}::{choice.embedder}"
    return BaseMetadata(
        id=rsclaw_chunks.BASE_ID, name=rsclaw_chunks.NAME, model=model, dimensions=choice.dimensions, index=True
    )


def summarize_chunks(chunks: ChunkTable) -> BaseSummary:
    """Count the chunks of an rsclaw knowledge base, and those that are not exported by reason code."""
    with sqlite.open_readonly(chunks.path) as db:
        bodies: Any = db.execute("SELECT count(*) FROM chunks").get
        skipped: list[Any] = db.execute(_REASONS).fetchall()
    dimensions = chunks.choice.dimensions
    return BaseSummary(
        vector_bytes=None if dimensions is None else 4 * dimensions, bodies=bodies, skipped=dict(skipped)
    )


def read_chunk_rows(path: Path, base: BaseMetadata, summary: BaseSummary) -> Iterator[UnitRow]:
    """Stream the exported chunks of an rsclaw knowledge base in the order in which a migration writes them.

    ``summary`` is the result of the first pass.

    Raises:
        apsw.Error: the table cannot be read.
    """
    with sqlite.open_readonly(path) as db:
        for row in db.execute(_CHUNKS_QUERY):
            yield _make_row(row, base, summary.vector_bytes)


def _make_row(row: tuple[apsw.SQLiteValue, ...], base: BaseMetadata, vector_bytes: int | None) -> UnitRow:
    """Make the exported row of a chunk. A vector of another length than ``vector_bytes`` is left out."""
    key, doc, seq, title, path, source, body, vector = row
    text = str(body)
    return UnitRow(
        base=base.id,
        base_name=base.name,
        item=str(doc),
        path=None if path is None else str(path),
        source=None if source is None else str(source),
        unit_index=int(str(seq)),
        text=text,
        body_hash=hashlib.sha256(text.encode()).hexdigest(),
        unit_id=str(key),
        title=None if title is None else str(title),
        vector=vector if isinstance(vector, bytes) and len(vector) == vector_bytes else None,
    )


#: Source kinds whose bases have an index of the current layout.
V2_KINDS = (Kind.LIBRARY, Kind.PACK, Kind.V2_PROFILE, Kind.V2_BACKUP, Kind.BASE, Kind.INDEX)
V1_KINDS = (*V1_SOURCES, Kind.V1_VECTORS)
#: Source kinds whose rows are first written to a temporary table.
_WITHOUT_INDEX = (Kind.RSCLAW, Kind.CHROMA)
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


class WrittenCollection(Struct, frozen=True, kw_only=True):
    """The collection of Chroma that an export wrote. ``undo`` is the id of the run in the ledger of its folder."""

    name: str
    distance: str
    entries: int
    undo: str | None


class ExportReport(Report, kw_only=True):
    """The report of ``regraft export`` (``docs/commands.md``)."""

    bases: list[ExportedBase]
    collection: WrittenCollection | msgspec.UnsetType = msgspec.UNSET


class BaseExport(msgspec.Struct):
    """One base during an export, and its results."""

    metadata: BaseMetadata
    #: Index or vector file on disk; None if the base has none.
    file: Path | None = None
    summary: BaseSummary | None = None
    rows: int = 0
    vectors: int = 0
    problem: str | None = None
    #: State of the file before it was read.
    mark: sqlite.FileState = ()
    #: Streams the rows, after the file was summarized.
    rows_of: Callable[[Path, BaseMetadata, BaseSummary], Iterator[UnitRow]] = read_index_rows

    @property
    def has_changed(self) -> bool:
        """Whether the file was changed since it was summarized."""
        return self.file is not None and sqlite.read_file_state(self.file) != self.mark

    @property
    def vector_bytes(self) -> int | None:
        """Length of the vectors; None without vectors."""
        return None if self.summary is None else self.summary.vector_bytes

    def report(self) -> ExportedBase:
        """Describe the exported base for the report."""
        summary = self.summary or BaseSummary()
        # Rows that are not exported, by reason.
        orphans = {name: count for name, count in summary.left_out.items() if name == "body.orphan"}
        skipped = {**summary.skipped, **orphans}
        unread = summary.bodies - self.rows - sum(skipped.values())
        return ExportedBase(
            id=self.metadata.id,
            name=self.metadata.name,
            model=self.metadata.model,
            dimensions=self.metadata.dimensions,
            rows=ExportedRows(
                read=summary.bodies, carried=self.rows, skipped={**skipped, "unreadable": unread} if unread else skipped
            ),
            vectors=self.vectors,
            without_vector=self.rows - self.vectors,
            left_out={name: count for name, count in summary.left_out.items() if name != "body.orphan"},
            problem=self.problem,
        )


class SourceExport(msgspec.Struct):
    """All bases of a source that are written to one file."""

    layout: str
    bases: list[BaseExport]
    catalog: StoredCatalog = msgspec.field(default_factory=StoredCatalog)

    def metadata(self) -> FileMetadata:
        """Return the metadata of the Parquet file.

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
            bases=[part.metadata for part in self.bases],
            models=models,
            providers=[row for row in self.catalog.providers or () if row.get("provider_id") in keys],
        )

    def _models(self) -> list[Row]:
        """Return the rows of the models in the catalog that an exported base refers to."""
        named = {part.metadata.model for part in self.bases}
        named |= {(part.metadata.settings or {}).get("rerank_model_id") for part in self.bases}
        return [row for row in self.catalog.models or () if row.get("id") in named]

    def _dimensions(self) -> int | None:
        """Return the dimensions of all exported bases, None without vectors.

        Raises:
            WrongUsage: they differ.
        """
        sized = [(part.metadata.id, part.vector_bytes) for part in self.bases if part.vector_bytes]
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
    check_kind(source, from_v1=from_v1, visible_to=visible_to)
    unit_file.check_target(target, places_read(source.path, source))
    with open_units(source, bases, from_v1=from_v1, visible_to=visible_to) as parts:
        metadata = parts.metadata()
        total = sum(part.summary.bodies for part in parts.bases if part.summary)
        with stage(progress, "Writing", total, "texts"), unit_file.write_units(target, metadata) as file:
            for part in parts.bases:
                progress.at(part.metadata.name)
                for row in stream_rows(part):
                    file.add(row)
                    part.rows += 1
                    part.vectors += row.vector is not None
                    progress.step(1, len(row.text or "") + len(row.vector or b""))
                    # Release it before the next one is read: it may be large.
                    del row
    return parts


@contextmanager
def open_units(
    source: Located, bases: tuple[str, ...], *, from_v1: bool = False, visible_to: tuple[str, ...] = ()
) -> Iterator[SourceExport]:
    """Find the bases of a source that :func:`check_kind` accepted; :func:`stream_rows` reads their rows in the block.

    Raises:
        BaseUnknown: a base in ``bases`` does not exist.
        SourceUnreadable: the source cannot be read.
    """
    with ExitStack() as stack:
        if source.kind is Kind.RSCLAW:
            yield _prepare_rsclaw(source, bases, visible_to, stack)
        elif source.kind is Kind.CHROMA:
            yield _prepare_chroma(source, bases, stack)
        else:
            yield _prepare_v1(source, bases, stack) if from_v1 else _prepare_v2(source, bases, stack)


def check_kind(source: Located, *, from_v1: bool, visible_to: tuple[str, ...]) -> None:
    """Refuse a source that cannot be exported with these options.

    Raises:
        SourceNotMigratable, WrongUsage
    """
    if source.kind not in (V1_KINDS if from_v1 else (*V2_KINDS, *_WITHOUT_INDEX)):
        advice = tr("export takes a library, profile, base or index, or v1 data with --v1")
        if source.kind in V1_KINDS:
            advice = tr("use --v1 to export its v1 table, or migrate it first")
        elif source.kind in V2_KINDS:
            advice = tr("leave out --v1, or use --kind v1-profile to read it as a v1 profile")
        raise SourceNotMigratable(path=source.path, what=KIND_NAMES[source.kind], advice=advice)
    if visible_to and source.kind is not Kind.RSCLAW:
        problem = tr("--visible-to is for documents of {kind}", kind=KIND_NAMES[Kind.RSCLAW])
        raise WrongUsage(problem=problem, hint=tr("leave it out"))


def stream_rows(part: BaseExport) -> Iterator[UnitRow]:
    """Stream the rows of a base. Damage ends the stream and is recorded as the base's problem."""
    if part.file is None or part.summary is None:
        return
    try:
        yield from part.rows_of(part.file, part.metadata, part.summary)
    except Exception as error:
        if not part.has_changed and not isinstance(error, apsw.Error | UnicodeDecodeError):
            raise
        part.problem = tr("cannot be read to its end: {error}", error=error)
    if part.has_changed:
        part.problem = sqlite.CHANGED_DURING_READ


def _select_bases(
    parts: list[BaseExport], bases: tuple[str, ...], words: Mapping[str, str] = MappingProxyType({})
) -> list[BaseExport]:
    """Return the bases that the user asked for (all without ``bases``). ``words`` maps further names to base ids."""
    names = {part.metadata.id: str(part.metadata.name) for part in parts}
    wanted = {resolve_base(name, names, words) for name in bases}
    return [part for part in parts if not bases or part.metadata.id in wanted]


# --- v2 ------------------------------------------------------------------------------------------------------------


def _prepare_v2(source: Located, bases: tuple[str, ...], stack: ExitStack) -> SourceExport:
    """Prepare the export of v2 data. Files that are opened stay open until ``stack`` closes."""
    stores = source.stores
    catalog = StoredCatalog()
    if stores.catalog is not None:
        try:
            catalog = read_catalog(stack.enter_context(source.tree.local(stores.catalog, None)))
        except CatalogProblem as problem:
            raise SourceUnreadable(
                path=f"{printable(source.path)}: {stores.catalog}", reason=problem.reason
            ) from problem
    files = {_find_base_id(source, store): store.name for store in (*stores.current, *stores.preview)}
    settings = {str(row.get("id")): row for row in catalog.bases}
    ids = [*settings, *(one for one in files if one not in settings)] if stores.is_whole else list(files)
    parts = [BaseExport(_describe_v2_base(base_id, settings.get(base_id), catalog)) for base_id in ids]
    chosen = _select_bases(parts, bases)
    for part in chosen:
        if part.metadata.id in files:
            _summarize_base(part, source, files[part.metadata.id], stack)
        elif source.is_slim:
            part.problem = tr("a slim backup has neither its texts nor its vectors")
    return SourceExport("v2", chosen, catalog)


def _describe_v2_base(base_id: str, row: dict[str, Any] | None, catalog: StoredCatalog) -> BaseMetadata:
    """Describe a base for the file's metadata, by its row of the catalog or by its id alone."""
    metadata = BaseMetadata(id=base_id, name=base_id, model=None, dimensions=None, index=False)
    if row is not None:
        metadata.name, model = str(row.get("name") or base_id), row.get("embedding_model_id")
        metadata.model = model if isinstance(model, str) else None
        metadata.settings = row
        metadata.items = None if catalog.items is None else catalog.items.get(base_id, [])
    return metadata


def _find_base_id(source: Located, store: StoreFile) -> str:
    """Return the base id from the path of its index file; of a file anywhere else, from the index itself."""
    if store.base_id is not None:
        # The name of a folder may be invalid UTF-8, which a Parquet file cannot contain.
        return store.base_id if replace_surrogates(store.base_id) == store.base_id else printable(store.base_id)
    try:
        with source.tree.local(store.name, None) as file:
            return read_base_id(file) or source.path.stem
    except _READ_ERRORS:
        return source.path.stem


def _summarize_base(part: BaseExport, source: Located, name: str, stack: ExitStack) -> None:
    """Open and summarize the index of a base, at this path in the source. If it cannot be read, set ``part.problem``.

    The file stays open until ``stack`` closes.
    """
    try:
        part.file = stack.enter_context(source.tree.local(name, None))
        part.mark = sqlite.read_file_state(part.file)
        part.summary = summarize_index(part.file, catalog_dimensions(part.metadata.settings))
    except _READ_ERRORS as error:
        part.problem = tr("its index cannot be read: {error}", error=error)
        return
    if part.summary.damage is not None:
        part.problem = tr("its index is damaged: {damage}", damage=part.summary.damage)
    part.metadata.index = True
    part.metadata.bare_materials = part.summary.bare
    part.metadata.dimensions = part.summary.vector_bytes // 4 if part.summary.vector_bytes else None


# --- v1 ------------------------------------------------------------------------------------------------------------


def _prepare_v1(source: Located, bases: tuple[str, ...], stack: ExitStack) -> SourceExport:
    """Prepare the export of v1 data. Files that are opened stay open until ``stack`` closes."""
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
    """Describe a base of v1 for the file's metadata. ``raw`` is its entry in the state."""
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
    """Open and summarize the vector file of a base, at this path in the source.

    If it cannot be read, set ``part.problem``.

    The file stays open until ``stack`` closes.
    """
    if source.tree.kind(name) != "file":
        part.problem = tr("its vector file does not exist")
        return
    try:
        part.file = stack.enter_context(source.tree.local(name, None))
        part.mark = sqlite.read_file_state(part.file)
        part.rows_of = read_v1_rows
        survey = cherry_v1_layout.VECTOR_TABLE.survey(part.file)
    except StoreProblem as problem:
        part.problem = tr("its vector file {problem}", problem=problem)
        return
    except _READ_ERRORS as error:
        part.problem = tr("its vector file cannot be read: {error}", error=error)
        return
    part.summary = BaseSummary(vector_bytes=survey.vector_bytes, bodies=survey.rows)
    part.metadata.dimensions = (survey.vector_bytes or 0) // 4 or None


# --- rsclaw --------------------------------------------------------------------------------------------------------


def _prepare_rsclaw(
    source: Located, bases: tuple[str, ...], visible_to: tuple[str, ...], stack: ExitStack
) -> SourceExport:
    """Prepare the export of an rsclaw knowledge base. Temporary files exist until ``stack`` closes."""
    written = stack.enter_context(
        rsclaw_chunks.write_chunk_table(source.path, None, parse_scope(visible_to, "--visible-to"))
    )
    part = BaseExport(
        describe_base(written),
        file=written.path,
        summary=summarize_chunks(written),
        rows_of=read_chunk_rows,
    )
    part.mark = sqlite.read_file_state(written.path)
    if written.damaged_pages:
        part.problem = tr(
            "its database has {pages}; {chunks} could not be recovered",
            pages=format_count(written.damaged_pages, "damaged page"),
            chunks=format_count(written.lost, "chunk"),
        )
    return SourceExport("rsclaw", _select_bases([part], bases))


# --- Chroma --------------------------------------------------------------------------------------------------------


def _prepare_chroma(source: Located, bases: tuple[str, ...], stack: ExitStack) -> SourceExport:
    """Prepare the export of Chroma collections. Temporary files exist until ``stack`` closes."""
    root = source.tree.path
    try:
        with database.open_chroma(root / database.FILE) as db:
            collections = database.list_collections(db)
            layout = layouts.read_layout(root, collections)
            named = [(one, BaseExport(describe_collection(db, one, layout.base_name(one)))) for one in collections]
    except (ChromaProblem, apsw.Error, OSError) as error:
        raise SourceUnreadable(path=root / database.FILE, reason=error) from error
    words = {word: identity.base_id(key) for word, key in layouts.ids_by_word(layout, collections).items()}
    chosen = _select_bases([part for _, part in named], bases, words)
    for one, part in named:
        if part not in chosen:
            continue
        try:
            table = stack.enter_context(chroma_rows.write_row_table(root, one.id, None))
        except (ChromaProblem, *_READ_ERRORS) as error:
            part.problem = tr("its entries cannot be read: {error}", error=error)
            continue
        part.file, part.rows_of = table.path, read_entry_rows
        part.metadata.dimensions = table.dimension
        part.summary = summarize_entries(table)
        part.mark = sqlite.read_file_state(table.path)
        if table.unproven:
            part.problem = tr(
                "{vectors} left out, because nothing proves which text they belong to",
                vectors=format_count(table.unproven, "vector"),
            )
        elif table.orphans:
            part.problem = tr(
                "{vectors} left out, because their ids have neither text nor metadata",
                vectors=format_count(table.orphans, "vector"),
            )
    return SourceExport("chroma", chosen)


# Entries of a collection of Chroma ("Entries of Chroma").


_ENTRIES_QUERY = "SELECT id, source, document, locator, vector FROM entries ORDER BY rowid"


def describe_collection(db: apsw.Connection, collection: ChromaCollection, name: str) -> BaseMetadata:
    """Return the metadata of the base that stands for a collection of Chroma."""
    model = database.read_model(db, collection)
    named = None if model is None else "::".join(model)
    return BaseMetadata(
        id=identity.base_id(collection.id), name=name, model=named, dimensions=collection.dimension, index=True
    )


def summarize_entries(table: RowTable) -> BaseSummary:
    """Count the entries of a collection of Chroma; all of them are exported."""
    vector_bytes = None if table.dimension is None else 4 * table.dimension
    left_out = {"chroma.vector-orphan": table.orphans} if table.orphans else {}
    return BaseSummary(vector_bytes=vector_bytes, bodies=table.rows, left_out=left_out)


def read_entry_rows(path: Path, base: BaseMetadata, summary: BaseSummary) -> Iterator[UnitRow]:
    """Stream the entries of a collection of Chroma in the order of their insertion.

    ``summary`` is the result of the first pass.

    Raises:
        apsw.Error: the table cannot be read.
    """
    with sqlite.open_readonly(path) as db:
        for key, source, document, locator, vector in db.execute(_ENTRIES_QUERY):
            text = "" if document is None else str(document)
            item = identity.item_id(base.id, str(key), None)
            yield UnitRow(
                base=base.id,
                base_name=base.name,
                item=item,
                path=f"{item}.md",
                source=str(source),
                unit_index=0,
                char_start=0,
                char_end=utf16_len(text),
                text=text,
                body_hash=identity.text_hash(text),
                unit_id=str(key),
                locator_json=str(locator),
                vector=vector if isinstance(vector, bytes) and len(vector) == summary.vector_bytes else None,
            )
