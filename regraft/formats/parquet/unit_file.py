"""The columns of a Parquet file of units, written and read in row groups (``docs/formats/parquet.md``).

pyarrow is an optional part of regraft: it is imported when a file is written or read, never before.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from regraft.disk import durable, writable
from regraft.errors import SourceUnreadable, SourceUnrecognised, TargetNotWritable, WrongUsage, import_optional
from regraft.formats.large_text import LARGE_BYTES
from regraft.language import tr
from regraft.text import printable, replace_surrogates

# What a Parquet file of units says of itself (``docs/formats/parquet.md``, "Metadata").


#: The key of the file's metadata that holds :class:`About` as JSON.
METADATA_KEY = b"regraft"
#: The key under which other tools find the model, the dimensions and the metric of every base.
VDF_KEY = b"vdf"
SCHEMA_VERSION = 1
#: The column of vectors.
VECTOR_COLUMN = "vector"


class EmptyMaterial(msgspec.Struct):
    """A material without units: it has no row."""

    id: str
    path: str
    content: str | None


class BaseMetadata(msgspec.Struct):
    """What a file says of one base; rows are those of the catalog, by column."""

    id: str
    name: str
    model: str | None
    dimensions: int | None
    #: Whether it has an index, be it an empty one.
    index: bool
    settings: dict[str, Any] | None = None
    items: list[dict[str, Any]] | None = None
    bare_materials: list[EmptyMaterial] = []


class FileMetadata(msgspec.Struct):
    """The metadata of a file. ``layout`` is ``v2``, or ``v1`` for a legacy table."""

    schema: int
    layout: str
    dimensions: int | None
    bases: list[BaseMetadata]
    models: list[dict[str, Any]] = []
    providers: list[dict[str, Any]] = []


def encode_metadata(about: FileMetadata) -> dict[bytes, bytes]:
    """Return a file's metadata as Parquet has it."""
    return {
        METADATA_KEY: msgspec.json.encode(_whole(msgspec.to_builtins(about))),
        VDF_KEY: msgspec.json.encode(_whole(_vdf(about))),
    }


def _vdf(about: FileMetadata) -> dict[str, Any]:
    """Return what other tools ask of vectors, in the words of vdf-io (``docs/formats/parquet.md``, "Metadata")."""
    indexes = {}
    for base in about.bases:
        described = {
            "namespace": "",
            "index_name": base.name,
            "dimensions": base.dimensions,
            "model_name": base.model,
            "vector_columns": [VECTOR_COLUMN],
            "metric": "Cosine",
        }
        indexes[base.id] = [described]
    return {"id_column": "unit_id", "indexes": indexes}


def _whole(value: Any) -> Any:
    """Return data whose text can be stored: a folder's name need not be UTF-8."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {replace_surrogates(key): _whole(part) for key, part in value.items()}
    return [_whole(part) for part in value] if isinstance(value, list) else value


# Cells of large texts in Arrow's memory: one copy of each, written and read without a text of Python beside it.
#
# Such a text is UTF-8: ``bytes`` on the way into a file, a ``memoryview`` of Arrow's own bytes on the way out. A text of
# Python takes up to four times as much.


def text_length(value: Any) -> int:
    """Return how much a text is, by its length; 0 of None."""
    return 0 if value is None else len(value)


def is_large_text(value: Any) -> bool:
    """Tell whether a text is one that is written alone."""
    return isinstance(value, bytes) and len(value) > LARGE_BYTES


def make_column(pa: Any, values: Sequence[Any], kind: Any) -> Any:
    """Return a column; that of one large text alone shares its bytes."""
    if len(values) != 1 or not is_large_text(values[0]):
        return pa.array(values, kind)
    ends = pa.py_buffer(b"".join(place.to_bytes(4, "little") for place in (0, len(values[0]))))
    return pa.Array.from_buffers(kind, 1, [None, ends, pa.py_buffer(values[0])])


def list_values(pa: Any, column: Any) -> list[Any]:
    """Return the values of a column of a batch: large texts as views of their UTF-8, valid while the views live.

    Raises:
        pyarrow.ArrowException: a column of large texts is not UTF-8.
    """
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if not is_text or column.nbytes <= LARGE_BYTES:
        found: list[Any] = column.to_pylist()
        return found
    column.validate(full=True)
    return [_value(cell) for cell in column]


def _value(cell: Any) -> Any:
    raw = cell.as_buffer() if cell.is_valid else None
    return cell.as_py() if raw is None or raw.size <= LARGE_BYTES else memoryview(raw)


SUFFIX = ".parquet"
#: A row group is written when its vectors and texts take so many bytes, or it has so many rows.
GROUP_BYTES = 16 << 20
GROUP_ROWS = 8192
#: So many rows are read at once; of a row group of so many bytes one, since each may have a large text.
BATCH_ROWS = 1024
LARGE_GROUP_BYTES = 4 * GROUP_BYTES
#: So many bytes at the most the rows that are read at once may come to, where dictionaries are read.
LARGE_DICTIONARY_BYTES = 64 << 20
_FOOTER_BYTES = (1 << 31) - 1
#: Rows in a byte of a file: every unit has an id of its own, so that a real file has less than one.
ROWS_PER_BYTE = 8
#: Columns besides the vector, with the name of their Arrow type.
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
#: Files of an earlier regraft do not have it.
BASE_NAME = "base_name"
#: Columns of few distinct values. Never the vector: a dictionary would make one of all NaNs.
_REPEATED = ["base", BASE_NAME, "item", "path", "source", "content_hash"]


class UnitRow(msgspec.Struct, frozen=True):
    """One row; offsets are UTF-16 units, ``vector`` is little-endian float32 or None.

    A large ``text`` or ``content`` is UTF-8 (:mod:`regraft.formats.parquet.unit_file`).
    """

    base: Any
    base_name: Any
    item: Any
    path: Any
    source: Any
    unit_index: Any
    char_start: Any
    char_end: Any
    text: Any
    content_hash: Any
    body_hash: Any
    unit_id: Any
    title: Any
    locator_json: Any
    content: Any
    vector: bytes | None


class BaseTotals(msgspec.Struct):
    """What the rows of a file hold of one base."""

    rows: int = 0
    vectors: int = 0
    vector_bytes: int = 0
    #: Of texts and contents.
    text_bytes: int = 0
    items: set[str] = msgspec.field(default_factory=set)
    #: The row groups in which they are.
    groups: list[int] = msgspec.field(default_factory=list)


def import_arrow() -> tuple[Any, Any]:
    """Return ``pyarrow`` and ``pyarrow.parquet``.

    Raises:
        WrongUsage: pyarrow is not installed.
    """
    return import_optional("pyarrow", tr("Parquet files"), "parquet"), import_optional(
        "pyarrow.parquet", tr("Parquet files"), "parquet"
    )


def _schema(pa: Any, about: FileMetadata) -> Any:
    size = about.dimensions
    vector = pa.list_(pa.float32()) if size is None else pa.list_(pa.float32(), size)
    fields = [pa.field(name, getattr(pa, kind)()) for name, kind in COLUMNS.items()]
    return pa.schema([*fields, pa.field(VECTOR_COLUMN, vector)], metadata=encode_metadata(about))


class UnitsWriter:
    """Writes rows to an open file, a row group at a time."""

    def __init__(self, pa: Any, writer: Any, schema: Any, dimensions: int | None) -> None:
        self._pa = pa
        self._writer = writer
        self._schema = schema
        self._dimensions = dimensions
        self._rows: list[UnitRow] = []
        self._bytes = 0

    def add(self, row: UnitRow) -> None:
        """Write one row; its vector is None or of the file's dimensions."""
        if is_large_text(row.text) or is_large_text(row.content):
            # Alone in its row group, its bytes need not be copied.
            self.flush()
        self._rows.append(row)
        self._bytes += text_length(row.text) + text_length(row.content) + 4 * (self._dimensions or 0)
        if self._bytes >= GROUP_BYTES or len(self._rows) >= GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the rows that wait as one row group."""
        if not self._rows:
            return
        pa, rows = self._pa, self._rows
        columns = list(zip(*(tuple(getattr(row, name) for name in COLUMNS) for row in rows), strict=True))
        kinds = (getattr(pa, kind)() for kind in COLUMNS.values())
        arrays = [make_column(pa, column, kind) for column, kind in zip(columns, kinds, strict=True)]
        batch = pa.RecordBatch.from_arrays([*arrays, self._vectors(rows)], schema=self._schema)
        # A text may be large: there are copies enough of it.
        del columns, rows[:]
        self._writer.write_table(pa.Table.from_batches([batch]))
        if self._bytes > LARGE_BYTES:
            del batch, arrays
            pa.default_memory_pool().release_unused()
        self._rows, self._bytes = [], 0

    def _vectors(self, rows: list[UnitRow]) -> Any:
        pa, size = self._pa, self._dimensions
        if size is None:
            return pa.nulls(len(rows), pa.list_(pa.float32()))
        # The bytes go in as they are: numbers of Python would make one NaN of all.
        empty = bytes(4 * size)
        numbers = pa.py_buffer(b"".join(row.vector or empty for row in rows))
        values = pa.Array.from_buffers(pa.float32(), len(rows) * size, [None, numbers])
        there = pa.array([row.vector is not None for row in rows], pa.bool_()).buffers()[1]
        return pa.Array.from_buffers(pa.list_(pa.float32(), size), len(rows), [there], children=[values])


def check_target(path: Path) -> None:
    """Refuse to write over anything but a file of units that regraft wrote.

    Raises:
        WrongUsage: its name is not that of a Parquet file.
        TargetNotWritable
    """
    if path.suffix.lower() != SUFFIX:
        problem = tr("{path} is not called like a Parquet file", path=printable(path))
        raise WrongUsage(
            problem=problem, hint=tr("give a name that ends in {suffix}, or - for standard output", suffix=SUFFIX)
        )
    reason = ""
    if path.is_dir() or not path.absolute().parent.is_dir():
        reason = tr("it is a folder") if path.is_dir() else tr("its folder does not exist")
    elif path.exists():
        try:
            read_metadata(path)
        except (SourceUnreadable, SourceUnrecognised):
            reason = tr("it is there already and regraft did not write it")
    if reason:
        raise TargetNotWritable(path=path, reason=reason)


@contextmanager
def write_units(path: Path, about: FileMetadata) -> Iterator[UnitsWriter]:
    """Write a file of units to ``path``: all of it or nothing.

    Raises:
        OSError: it cannot be written.
    """
    pa, pq = import_arrow()
    part = path.with_name(f".{path.name}.part")
    schema = _schema(pa, about)
    settings = {"compression": "zstd", "use_dictionary": _REPEATED, "write_page_checksum": True}
    counted = ["base", "item", "unit_index"]
    with writable.allow_writes(path.parent, entries_only=True):
        try:
            with (
                durable.open_binary(part, "wb") as raw,
                pq.ParquetWriter(raw, schema, write_statistics=counted, **settings) as file,
            ):
                writer = UnitsWriter(pa, file, schema, about.dimensions)
                yield writer
                writer.flush()
            durable.sync_file(part)
            durable.replace(part, path)
        except BaseException:
            durable.remove_tree(part)
            raise


@contextmanager
def _blamed(path: Path) -> Iterator[None]:
    """Report what pyarrow finds wrong with a file."""
    pa, _ = import_arrow()
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, SourceUnreadable | SourceUnrecognised):
            raise
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise SourceUnreadable(path=path, reason=reason) from error


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    _, pq = import_arrow()
    with _blamed(path):
        file = pq.ParquetFile(
            path,
            page_checksum_verification=True,
            pre_buffer=False,
            thrift_string_size_limit=_FOOTER_BYTES,
            thrift_container_size_limit=_FOOTER_BYTES,
        )
    with file:
        _demand_rows_fit(path, file.metadata.num_rows)
        yield file


def _demand_rows_fit(path: Path, rows: int) -> None:
    """Refuse a file with more rows than so few bytes hold: reading takes as long as its rows, not as its bytes."""
    size = path.stat().st_size
    if rows > ROWS_PER_BYTE * size:
        raise SourceUnreadable(
            path=path,
            reason=tr("it has {rows:,} rows in {size:,} bytes, and no file of units has", rows=rows, size=size),
        )


def read_metadata(path: Path) -> FileMetadata:
    """Return the metadata of a file of units.

    Raises:
        SourceUnreadable: it is no Parquet file, or damaged.
        SourceUnrecognised: it is one that regraft did not write, or of a later regraft.
    """
    with _opened(path) as file, _blamed(path):
        stated = (file.schema_arrow.metadata or {}).get(METADATA_KEY)
        if stated is None:
            raise SourceUnrecognised(path=path, found=tr("a Parquet file that regraft did not write"))
        try:
            about = msgspec.json.decode(stated, type=FileMetadata)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise SourceUnrecognised(
                path=path, found=tr("a Parquet file whose `regraft` key is broken: {error}", error=error)
            ) from error
        missing = {*COLUMNS, VECTOR_COLUMN} - {BASE_NAME, *file.schema_arrow.names}
        if about.schema != SCHEMA_VERSION or missing:
            message = (
                tr("without the column {missing}", missing=min(missing))
                if missing
                else tr("of schema {schema}", schema=about.schema)
            )
            raise SourceUnrecognised(path=path, found=tr("a Parquet file of units {message_}", message_=message))
        _check_kinds(path, file.schema_arrow, about)
    return about


def _columns_of(schema: Any) -> list[str]:
    """Return the names of the columns that a file has, the vector's apart."""
    return [name for name in COLUMNS if name in schema.names]


def _check_kinds(path: Path, schema: Any, about: FileMetadata) -> None:
    """Refuse columns that hold no single values, and vectors of another length than the file says of itself."""
    pa, _ = import_arrow()
    for name in _columns_of(schema):
        if pa.types.is_nested(schema.field(name).type):
            raise SourceUnreadable(
                path=path, reason=tr("its column {name} is not a column of single values", name=name)
            )
    kind = schema.field(VECTOR_COLUMN).type
    if pa.types.is_nested(kind) and pa.types.is_nested(getattr(kind, "value_type", None) or pa.struct([])):
        raise SourceUnreadable(path=path, reason=tr("its vectors are not lists of numbers"))
    size = getattr(kind, "list_size", None)
    if size is not None and size != about.dimensions:
        raise SourceUnreadable(
            path=path,
            reason=tr(
                "its vectors have {size:,} numbers and not {dimensions}, as it says of itself",
                size=size,
                dimensions=about.dimensions,
            ),
        )


def survey_file(path: Path, watch: Callable[[float], None]) -> dict[Any, BaseTotals]:
    """Read a file of units once and return what it holds of every base, by the id that its rows have for it.

    All of it is read, so that damage shows before anything is written. ``watch`` is told which share of the rows was
    read since it was told last.

    Raises:
        SourceUnreadable: it is damaged.
    """
    found: dict[Any, BaseTotals] = {}
    with _opened(path) as file:
        for group in range(file.num_row_groups):
            for batch in _batches(path, file, [group]):
                with _blamed(path):
                    _look_at(path, batch, found, group)
                watch(len(batch) / file.metadata.num_rows)
                # It may be large: it is not kept while the next one is read.
                del batch
    return found


def _look_at(path: Path, batch: Any, found: dict[Any, BaseTotals], group: int) -> None:
    pa, _ = import_arrow()
    compute = importlib.import_module("pyarrow.compute")
    batch.validate(full=True)
    _check_vectors(path, batch.column(VECTOR_COLUMN))
    for base, rows in _by_base(pa, compute, batch):
        _count(pa, compute, found.setdefault(base, BaseTotals()), rows, group)


def _by_base(pa: Any, compute: Any, batch: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the rows of every base in a batch with the id that they have for it."""
    column = _plain(pa, batch.column("base"))
    bases = column.unique()
    for base in bases:
        chosen = column.is_null() if not base.is_valid else compute.equal(column, base)
        yield base.as_py(), batch if len(bases) == 1 else batch.filter(chosen)


def _plain(pa: Any, column: Any) -> Any:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _count(pa: Any, compute: Any, held: BaseTotals, rows: Any, group: int) -> None:
    vectors = rows.column(VECTOR_COLUMN)
    held.rows += len(rows)
    held.vectors += len(vectors) - vectors.null_count
    held.vector_bytes += 4 * (len(vectors) - vectors.null_count) * getattr(vectors.type, "list_size", 0)
    for name in ("text", "content"):
        lengths = compute.binary_length(rows.column(name).cast(pa.large_string()))
        held.text_bytes += compute.sum(lengths).as_py() or 0
    held.items.update(
        item for item in _plain(pa, rows.column("item")).unique().to_pylist() if isinstance(item, str) and item
    )
    if held.groups[-1:] != [group]:
        held.groups.append(group)


def read_rows(path: Path, groups: list[int] | None = None) -> Iterator[UnitRow]:
    """Stream the rows of a file of units in their order: all, or those of some row groups.

    Raises:
        SourceUnreadable: it is damaged.
    """
    pa, _ = import_arrow()
    with _opened(path) as file:
        for batch in _batches(path, file, list(range(file.num_row_groups)) if groups is None else groups):
            with _blamed(path):
                columns = [_values(pa, batch, name) for name in COLUMNS]
                rows = deque(zip(*columns, _blobs(path, batch.column(VECTOR_COLUMN)), strict=True))
            # A text may be large: it is not kept while the next one is read.
            del columns, batch
            while rows:
                yield UnitRow(*rows.popleft())


def _values(pa: Any, batch: Any, name: str) -> list[Any]:
    if name == BASE_NAME and name not in batch.schema.names:
        return [None] * len(batch)
    column = batch.column(name)
    values: list[Any] = list_values(pa, column) if name in ("text", "content") else column.to_pylist()
    return values


def _batches(path: Path, file: Any, groups: list[int]) -> Iterator[Any]:
    """Stream the rows of some row groups as Arrow has them."""
    for group in groups:
        yield from _batches_of(path, file, group)


def _batches_of(path: Path, file: Any, group: int) -> Iterator[Any]:
    pa, _ = import_arrow()
    names = [*_columns_of(file.schema_arrow), VECTOR_COLUMN]
    with _blamed(path):
        stated = file.metadata.row_group(group)
        missing = stated.num_rows
        size = _batch_rows(stated, file.schema_arrow.field(VECTOR_COLUMN).type)
        batches = file.iter_batches(batch_size=size, row_groups=[group], columns=names, use_threads=False)
    while True:
        with _blamed(path):
            batch = next(batches, None)
        if batch is None and missing:
            # The head of a page has no checksum: pyarrow takes a damaged one for the end of the pages.
            raise SourceUnreadable(path=path, reason=tr("{missing:,} of its rows are not there", missing=missing))
        if batch is None:
            return
        missing -= len(batch)
        is_large = batch.nbytes > LARGE_BYTES
        yield batch
        # It may be large: it is not kept while the next one is read.
        del batch
        if is_large:
            pa.default_memory_pool().release_unused()


def _batch_rows(group: Any, vector: Any) -> int:
    """Return how many rows of a row group are read at once.

    A dictionary stands for much more than its own bytes: each row may have the longest of its values; and a vector may
    be one number that is said to come again and again.
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
    if vectors.null_count == len(vectors):
        return
    size, values = getattr(vectors.type, "list_size", None), vectors.values
    if size is None or str(values.type) != "float" or values.null_count > vectors.null_count * size:
        raise SourceUnreadable(path=path, reason=tr("its vectors are not lists of float32 of one length"))


def _blobs(path: Path, vectors: Any) -> list[bytes | None]:
    """Return the bytes of every vector, as they are in the file."""
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
