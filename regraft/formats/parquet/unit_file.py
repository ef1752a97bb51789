"""Parquet files of units: columns and metadata, writing and reading in row groups (``docs/formats/parquet.md``).

pyarrow is an optional dependency and is imported only when a file is written or read.

Large texts are kept in memory once, as UTF-8: ``bytes`` when writing, a ``memoryview`` of Arrow's memory when reading.
A Python string would take up to four times as much.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from regraft.disk import durable, writable
from regraft.errors import SourceUnreadable, SourceUnrecognised, TargetNotWritable, WrongUsage, import_optional
from regraft.formats.large_text import LARGE_BYTES
from regraft.language import tr
from regraft.text import printable, replace_surrogates

#: Key of the file metadata that contains :class:`FileMetadata` as JSON.
METADATA_KEY = b"regraft"
#: Key under which vdf-io expects the model, dimensions and metric of every base.
VDF_KEY = b"vdf"
SCHEMA_VERSION = 1
#: Name of the column of vectors.
VECTOR_COLUMN = "vector"


class EmptyMaterial(msgspec.Struct):
    """A material without units, which therefore has no row."""

    id: str
    path: str
    content: str | None


class BaseMetadata(msgspec.Struct):
    """Metadata of one base. ``settings`` and ``items`` are rows of the catalog by column."""

    id: str
    name: str
    model: str | None
    dimensions: int | None
    #: The base has an index, possibly an empty one.
    index: bool
    settings: dict[str, Any] | None = None
    items: list[dict[str, Any]] | None = None
    bare_materials: list[EmptyMaterial] = []


class FileMetadata(msgspec.Struct):
    """Metadata of a file. ``layout`` is ``v2``, ``v1`` for v1's table, ``rsclaw`` or ``chroma``."""

    schema: int
    layout: str
    dimensions: int | None
    bases: list[BaseMetadata]
    models: list[dict[str, Any]] = []
    providers: list[dict[str, Any]] = []


def encode_metadata(metadata: FileMetadata) -> dict[bytes, bytes]:
    """Encode the metadata of a file as keys and values for Parquet."""
    indexes = {}
    for base in metadata.bases:
        described = {
            "namespace": "",
            "index_name": base.name,
            "dimensions": base.dimensions,
            "model_name": base.model,
            "vector_columns": [VECTOR_COLUMN],
            "metric": "Cosine",
        }
        indexes[base.id] = [described]
    return {
        METADATA_KEY: msgspec.json.encode(_encodable(msgspec.to_builtins(metadata))),
        VDF_KEY: msgspec.json.encode(_encodable({"id_column": "unit_id", "indexes": indexes})),
    }


def _encodable(value: Any) -> Any:
    """Return a JSON value whose texts can be encoded as UTF-8. The name of a folder may be invalid."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {replace_surrogates(key): _encodable(part) for key, part in value.items()}
    return [_encodable(part) for part in value] if isinstance(value, list) else value


def text_length(value: Any) -> int:
    """Return the length of a text; 0 without text."""
    return 0 if value is None else len(value)


def is_large_text(value: Any) -> bool:
    """Whether a text is so large that it gets its own row group."""
    return isinstance(value, bytes) and len(value) > LARGE_BYTES


def make_column(pa: Any, values: Sequence[Any], kind: Any) -> Any:
    """Make an Arrow array of values of an Arrow type. A single large text is not copied."""
    if len(values) != 1 or not is_large_text(values[0]):
        return pa.array(values, kind)
    ends = pa.py_buffer(b"".join(place.to_bytes(4, "little") for place in (0, len(values[0]))))
    return pa.Array.from_buffers(kind, 1, [None, ends, pa.py_buffer(values[0])])


def list_values(pa: Any, column: Any) -> list[Any]:
    """Return the values of an Arrow column, with large texts as views of their UTF-8.

    Raises:
        pyarrow.ArrowException: a column of large texts is not valid UTF-8.
    """
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if not is_text or column.nbytes <= LARGE_BYTES:
        found: list[Any] = column.to_pylist()
        return found
    column.validate(full=True)
    buffers = (cell.as_buffer() if cell.is_valid else None for cell in column)
    return [
        cell.as_py() if raw is None or raw.size <= LARGE_BYTES else memoryview(raw)
        for cell, raw in zip(column, buffers, strict=True)
    ]


SUFFIX = ".parquet"
#: A row group is written when its vectors and texts reach this size or this number of rows.
GROUP_BYTES = 16 << 20
GROUP_ROWS = 8192
#: Rows read at once. From a row group larger than LARGE_GROUP_BYTES only one, since each may have a large text.
BATCH_ROWS = 1024
LARGE_GROUP_BYTES = 4 * GROUP_BYTES
#: Maximum size of the rows read at once if columns are dictionary-encoded.
LARGE_DICTIONARY_BYTES = 64 << 20
_FOOTER_BYTES = (1 << 31) - 1
#: Maximum number of rows per byte of a file. Every unit has its own id, so a valid file has less than one.
ROWS_PER_BYTE = 8
#: All columns except the vector, with the names of their Arrow types.
COLUMNS = {
    "base": "string",
    "base_name": "string",
    "item": "string",
    "path": "string",
    "source": "string",
    "unit_index": "int64",
    "char_start": "int64",
    "char_end": "int64",
    "text": "string",
    "content_hash": "string",
    "body_hash": "string",
    "unit_id": "string",
    "title": "string",
    "locator_json": "string",
    "content": "string",
}
#: A column that files of earlier regraft versions lack.
BASE_NAME = "base_name"
#: Columns with few distinct values. Never the vector: a dictionary would merge all NaNs into one.
_REPEATED = ["base", BASE_NAME, "item", "path", "source", "content_hash"]


class UnitRow(msgspec.Struct, frozen=True):
    """One row of a file of units. Offsets are UTF-16 units; ``vector`` is little-endian float32.

    A large ``text`` or ``content`` is UTF-8 bytes instead of a string.
    """

    base: Any
    base_name: Any
    item: Any
    path: Any = None
    source: Any = None
    unit_index: Any = None
    char_start: Any = None
    char_end: Any = None
    text: Any = None
    content_hash: Any = None
    body_hash: Any = None
    unit_id: Any = None
    title: Any = None
    locator_json: Any = None
    content: Any = None
    vector: bytes | None = None


class BaseTotals(msgspec.Struct):
    """Totals of the rows of one base in a file."""

    rows: int = 0
    vectors: int = 0
    vector_bytes: int = 0
    #: Texts and contents.
    text_bytes: int = 0
    items: set[str] = msgspec.field(default_factory=set)
    #: Row groups that contain the rows.
    groups: list[int] = msgspec.field(default_factory=list)


def import_arrow() -> tuple[Any, Any]:
    """Import ``pyarrow`` and ``pyarrow.parquet``.

    Raises:
        WrongUsage: pyarrow is not installed.
    """
    return import_optional("pyarrow", tr("Parquet files"), "parquet"), import_optional(
        "pyarrow.parquet", tr("Parquet files"), "parquet"
    )


def make_schema(pa: Any, metadata: FileMetadata) -> Any:
    """Return the Arrow schema of a file of units with these metadata."""
    size = metadata.dimensions
    vector = pa.list_(pa.float32()) if size is None else pa.list_(pa.float32(), size)
    fields = [pa.field(name, getattr(pa, kind)()) for name, kind in COLUMNS.items()]
    return pa.schema([*fields, pa.field(VECTOR_COLUMN, vector)], metadata=encode_metadata(metadata))


class UnitsWriter:
    """Writes rows to an open file in row groups."""

    def __init__(self, pa: Any, writer: Any, schema: Any, dimensions: int | None) -> None:
        self._pa = pa
        self._writer = writer
        self._schema = schema
        self._dimensions = dimensions
        self._rows: list[UnitRow] = []
        self._bytes = 0

    def add(self, row: UnitRow) -> None:
        """Write one row. If it has a vector, this has the file's dimensions."""
        if is_large_text(row.text) or is_large_text(row.content):
            # In its own row group the text need not be copied.
            self.flush()
        self._rows.append(row)
        self._bytes += text_length(row.text) + text_length(row.content) + 4 * (self._dimensions or 0)
        if self._bytes >= GROUP_BYTES or len(self._rows) >= GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows as one row group."""
        if not self._rows:
            return
        pa, rows = self._pa, self._rows
        columns = list(zip(*(tuple(getattr(row, name) for name in COLUMNS) for row in rows), strict=True))
        kinds = (getattr(pa, kind)() for kind in COLUMNS.values())
        arrays = [make_column(pa, column, kind) for column, kind in zip(columns, kinds, strict=True)]
        batch = pa.RecordBatch.from_arrays([*arrays, self._make_vector_column(rows)], schema=self._schema)
        # Release the texts, which may be large: Arrow has its own copy.
        del columns, rows[:]
        self._writer.write_table(pa.Table.from_batches([batch]))
        if self._bytes > LARGE_BYTES:
            del batch, arrays
            pa.default_memory_pool().release_unused()
        self._rows, self._bytes = [], 0

    def _make_vector_column(self, rows: list[UnitRow]) -> Any:
        """Make the Arrow column of the rows' vectors, with their exact bytes."""
        pa, size = self._pa, self._dimensions
        if size is None:
            return pa.nulls(len(rows), pa.list_(pa.float32()))
        # Copy the bytes: as Python numbers, all NaNs would become the same one.
        empty = bytes(4 * size)
        numbers = pa.py_buffer(b"".join(row.vector or empty for row in rows))
        values = pa.Array.from_buffers(pa.float32(), len(rows) * size, [None, numbers])
        there = pa.array([row.vector is not None for row in rows], pa.bool_()).buffers()[1]
        return pa.Array.from_buffers(pa.list_(pa.float32(), size), len(rows), [there], children=[values])


def check_target(path: Path, places: Iterable[Path]) -> None:
    """Refuse to write to ``path`` unless it is new, or a file that regraft wrote, and outside of ``places``.

    Raises:
        WrongUsage: the name does not end in ``.parquet``.
        TargetNotWritable
    """
    if path.suffix.lower() != SUFFIX:
        problem = tr("{path} does not end in .parquet", path=printable(path))
        raise WrongUsage(
            problem=problem, hint=tr("use a name that ends in {suffix}, or - for standard output", suffix=SUFFIX)
        )
    writable.demand_output(path, places)
    reason = ""
    if path.is_dir():
        reason = tr("it is a folder")
    elif path.exists():
        try:
            read_metadata(path)
        except (SourceUnreadable, SourceUnrecognised):
            reason = tr("it already exists and was not written by regraft")
    if reason:
        raise TargetNotWritable(path=path, reason=reason)


@contextmanager
def write_units(path: Path, metadata: FileMetadata) -> Iterator[UnitsWriter]:
    """Write a file of units to ``path``, completely or not at all: it gets its name when the block ends without error.

    Raises:
        OSError: the file cannot be written.
    """
    pa, pq = import_arrow()
    part = path.with_name(f".{path.name}.part")
    schema = make_schema(pa, metadata)
    settings = {"compression": "zstd", "use_dictionary": _REPEATED, "write_page_checksum": True}
    counted = ["base", "item", "unit_index"]
    with writable.allow_writes(path.parent, entries_only=True):
        try:
            with (
                durable.open_binary(part, "wb") as raw,
                pq.ParquetWriter(raw, schema, write_statistics=counted, **settings) as file,
            ):
                writer = UnitsWriter(pa, file, schema, metadata.dimensions)
                yield writer
                writer.flush()
            durable.sync_file(part)
            durable.replace(part, path)
        except BaseException:
            durable.remove_tree(part)
            raise


def _describe_damage(message: str) -> str:
    """Describe why pyarrow cannot read a file, by its message."""
    if "magic bytes not found" in message or "smaller than the minimum" in message:
        return tr("it is no Parquet file, or its end is missing")
    if "CRC checksum" in message:
        return tr("its checksum or size does not match")
    return tr("it is damaged: {found}", found=message)


@contextmanager
def _arrow_errors(path: Path) -> Iterator[None]:
    """Convert pyarrow's errors in the block into SourceUnreadable."""
    pa, _ = import_arrow()
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, SourceUnreadable | SourceUnrecognised):
            raise
        reason = getattr(error, "strerror", None) or _describe_damage(" ".join(str(error).split()))
        raise SourceUnreadable(path=path, reason=reason) from error


@contextmanager
def _open_file(path: Path) -> Iterator[Any]:
    """Open a Parquet file with limits for untrusted ones.

    Raises:
        SourceUnreadable: the file is damaged, or states an impossible number of rows.
    """
    _, pq = import_arrow()
    with _arrow_errors(path):
        file = pq.ParquetFile(
            path,
            page_checksum_verification=True,
            pre_buffer=False,
            thrift_string_size_limit=_FOOTER_BYTES,
            thrift_container_size_limit=_FOOTER_BYTES,
        )
    with file:
        # Reading takes time in proportion to the number of rows, which a small file could exaggerate.
        rows, size = file.metadata.num_rows, path.stat().st_size
        if rows > ROWS_PER_BYTE * size:
            reason = tr(
                "it has {rows:,} rows in {size:,} bytes, more than a file of units can contain", rows=rows, size=size
            )
            raise SourceUnreadable(path=path, reason=reason)
        yield file


def read_metadata(path: Path) -> FileMetadata:
    """Read the metadata of a file of units.

    Raises:
        SourceUnreadable: the file is not Parquet or is damaged.
        SourceUnrecognised: the file was not written by regraft, or by a later version.
    """
    with _open_file(path) as file, _arrow_errors(path):
        stated = (file.schema_arrow.metadata or {}).get(METADATA_KEY)
        if stated is None:
            raise SourceUnrecognised(path=path, found=tr("a Parquet file that regraft did not write"))
        try:
            metadata = msgspec.json.decode(stated, type=FileMetadata)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise SourceUnrecognised(
                path=path, found=tr("a Parquet file whose `regraft` key is broken: {error}", error=error)
            ) from error
        missing = {*COLUMNS, VECTOR_COLUMN} - {BASE_NAME, *file.schema_arrow.names}
        if metadata.schema != SCHEMA_VERSION or missing:
            message = (
                tr("without the column {missing}", missing=min(missing))
                if missing
                else tr("of schema {schema}", schema=metadata.schema)
            )
            raise SourceUnrecognised(path=path, found=tr("a Parquet file of units {what}", what=message))
        _check_schema(path, file.schema_arrow, metadata)
    return metadata


def _scalar_columns(schema: Any) -> list[str]:
    """Return the names of the columns in an Arrow schema, except the vector."""
    return [name for name in COLUMNS if name in schema.names]


def _check_schema(path: Path, schema: Any, metadata: FileMetadata) -> None:
    """Refuse a file whose Arrow schema has a column twice or nested, or vectors of another length than stated."""
    pa, _ = import_arrow()
    for name in (*_scalar_columns(schema), VECTOR_COLUMN):
        if schema.names.count(name) > 1:
            raise SourceUnreadable(path=path, reason=tr("it has more than one column {name}", name=name))
    for name in _scalar_columns(schema):
        if pa.types.is_nested(schema.field(name).type):
            raise SourceUnreadable(
                path=path, reason=tr("its column {name} is not a column of single values", name=name)
            )
    kind = schema.field(VECTOR_COLUMN).type
    if pa.types.is_nested(kind) and pa.types.is_nested(getattr(kind, "value_type", None) or pa.struct([])):
        raise SourceUnreadable(path=path, reason=tr("its vectors are not lists of numbers"))
    size = getattr(kind, "list_size", None)
    if size is not None and size != metadata.dimensions:
        raise SourceUnreadable(
            path=path,
            reason=tr(
                "its vectors have {size:,} numbers, but its metadata say {dimensions}",
                size=size,
                dimensions=metadata.dimensions,
            ),
        )


def survey_file(path: Path, watch: Callable[[float], None]) -> dict[Any, BaseTotals]:
    """Read a whole file of units and return the totals of each base, by the id in its rows.

    Everything is read, so damage is found before anything is written. ``watch`` is called with the share of rows read
    since its last call.

    Raises:
        SourceUnreadable: the file is damaged.
    """
    found: dict[Any, BaseTotals] = {}
    with _open_file(path) as file:
        for group in range(file.num_row_groups):
            for batch in _read_batches(path, file, [group]):
                with _arrow_errors(path):
                    _count_batch(path, batch, found, group)
                watch(len(batch) / file.metadata.num_rows)
                # Release it before the next one is read: it may be large.
                del batch
    return found


def _count_batch(path: Path, batch: Any, found: dict[Any, BaseTotals], group: int) -> None:
    """Add the counts of a batch of rows to the totals of its bases (``found``).

    ``group`` is the number of its row group.
    """
    pa, _ = import_arrow()
    compute = importlib.import_module("pyarrow.compute")
    batch.validate(full=True)
    _check_vectors(path, batch.column(VECTOR_COLUMN))
    column = _decode_dictionary(pa, batch.column("base"))
    bases = column.unique()
    for base in bases:
        chosen = compute.equal(column, base) if base.is_valid else column.is_null()
        rows = batch if len(bases) == 1 else batch.filter(chosen)
        totals, vectors = found.setdefault(base.as_py(), BaseTotals()), rows.column(VECTOR_COLUMN)
        count = len(vectors) - vectors.null_count
        totals.rows += len(rows)
        totals.vectors += count
        totals.vector_bytes += 4 * count * getattr(vectors.type, "list_size", 0)
        for name in ("text", "content"):
            lengths = compute.binary_length(rows.column(name).cast(pa.large_string()))
            totals.text_bytes += compute.sum(lengths).as_py() or 0
        items = _decode_dictionary(pa, rows.column("item")).unique().to_pylist()
        totals.items.update(item for item in items if isinstance(item, str) and item)
        if totals.groups[-1:] != [group]:
            totals.groups.append(group)


def _decode_dictionary(pa: Any, column: Any) -> Any:
    """Return an Arrow column without dictionary encoding."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def read_rows(path: Path, groups: list[int] | None = None) -> Iterator[UnitRow]:
    """Stream the rows of a file of units in order. ``groups`` are the numbers of the row groups to read, None for all.

    Raises:
        SourceUnreadable: the file is damaged.
    """
    pa, _ = import_arrow()
    with _open_file(path) as file:
        for batch in _read_batches(path, file, list(range(file.num_row_groups)) if groups is None else groups):
            with _arrow_errors(path):
                columns = [_column_values(pa, batch, name) for name in COLUMNS]
                rows = deque(zip(*columns, _vector_bytes(path, batch.column(VECTOR_COLUMN)), strict=True))
            # Release the texts before the next ones are read: they may be large.
            del columns, batch
            while rows:
                yield UnitRow(*rows.popleft())


def _column_values(pa: Any, batch: Any, name: str) -> list[Any]:
    """Return the values of the column with this name in a batch of rows."""
    if name == BASE_NAME and name not in batch.schema.names:
        return [None] * len(batch)
    column = batch.column(name)
    values: list[Any] = list_values(pa, column) if name in ("text", "content") else column.to_pylist()
    return values


def _read_batches(path: Path, file: Any, groups: list[int]) -> Iterator[Any]:
    """Stream the rows of an open file from the row groups with these numbers, as Arrow batches."""
    pa, _ = import_arrow()
    names = [*_scalar_columns(file.schema_arrow), VECTOR_COLUMN]
    for group in groups:
        with _arrow_errors(path):
            stated = file.metadata.row_group(group)
            missing = stated.num_rows
            size = _choose_batch_rows(stated, file.schema_arrow.field(VECTOR_COLUMN).type)
            batches = file.iter_batches(batch_size=size, row_groups=[group], columns=names, use_threads=False)
        while True:
            with _arrow_errors(path):
                batch = next(batches, None)
            if batch is None and missing:
                # Page headers have no checksum: pyarrow treats a damaged one as the end of the pages.
                raise SourceUnreadable(path=path, reason=tr("{missing:,} of its rows are missing", missing=missing))
            if batch is None:
                break
            missing -= len(batch)
            is_large = batch.nbytes > LARGE_BYTES
            yield batch
            # Release it before the next one is read: it may be large.
            del batch
            if is_large:
                pa.default_memory_pool().release_unused()


def _choose_batch_rows(group: Any, vector: Any) -> int:
    """Determine how many rows of a row group to read at once. ``vector`` is the Arrow type of the vectors.

    Dictionary-encoded columns may expand: each row may have the longest value. A vector may be one number repeated by a
    run-length encoding.
    """
    if group.total_byte_size > LARGE_GROUP_BYTES:
        return 1
    columns = (group.column(place) for place in range(group.num_columns))
    longest: int = sum(
        column.total_uncompressed_size
        for column in columns
        if any("DICTIONARY" in encoding for encoding in column.encodings)
        and column.path_in_schema.partition(".")[0] in COLUMNS
    )
    longest += 4 * max(getattr(vector, "list_size", 0), 0)
    fitting = LARGE_DICTIONARY_BYTES // max(longest, 1)
    return max(min(BATCH_ROWS, fitting), 1)


def _check_vectors(path: Path, vectors: Any) -> None:
    """Refuse an Arrow column of vectors unless they are lists of float32 of one length. Each may be null."""
    if vectors.null_count == len(vectors):
        return
    size, values = getattr(vectors.type, "list_size", None), vectors.values
    if size is None or str(values.type) != "float" or values.null_count > vectors.null_count * size:
        raise SourceUnreadable(path=path, reason=tr("its vectors are not lists of float32 of one length"))


def _vector_bytes(path: Path, vectors: Any) -> list[bytes | None]:
    """Return the bytes of every vector in an Arrow column, as stored in the file; None for a missing one."""
    _check_vectors(path, vectors)
    if vectors.null_count == len(vectors):
        return [None] * len(vectors)
    size, values = vectors.type.list_size, vectors.values
    numbers = memoryview(values.buffers()[1]).cast("B")
    start = vectors.offset * size + values.offset
    places = (4 * (start + number * size) for number in range(len(vectors)))
    there = vectors.is_valid().to_pylist()
    return [
        bytes(numbers[at : at + 4 * size]) if is_there else None for at, is_there in zip(places, there, strict=True)
    ]
