"""Read the vectors of any source that regraft recognizes, text by text, and remember which texts a source has.

A source is a store, a backup, a pack or an export. It is read base by base, and only read (``docs/reuse.md``). Each
vector comes with the hash of its text, computed from the text that the source itself has, and with its bytes as they
are stored.

The index of a source is a SQLite file in the user's cache folder: its bases, and the hashes of their texts; no texts
and no vectors. It is made again if the source has changed. An index that is out of date does no harm: vectors are
always read from the source itself, with the text that they belong to.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import msgspec

from migrators.pipeline.source import BaseDraft, Options, Pipeline
from migrators.pipeline.source_files import vector_file_in_tree
from migrators.registry import pipeline_of, read_parquet_vectors
from regraft import identity
from regraft.disk import durable, file_paths, links, scratch, sqlite, untrusted_sqlite, writable
from regraft.errors import ProfileInUse, RegraftError, SourceNotFound, SourceUnreadable
from regraft.formats.cherry_v1 import profile
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, Row, read_catalog
from regraft.formats.cherry_v2.index.opening import READ_ERRORS
from regraft.formats.cherry_v2.index.schema import IS_USABLE_SQL, choose_vector_length, count_vector_lengths
from regraft.formats.cherry_v2.layout import INDEX_FILE, StoreFile
from regraft.formats.vector_survey import StoreProblem
from regraft.kinds import V2_LAYOUTS
from regraft.language import tr
from regraft.report.progress import Progress
from regraft.stores import systems
from regraft.stores.locate import open_store, unpack_archive
from regraft.stores.systems import Located, StoredVectors, TextVector
from regraft.text import decode_utf8

logger = logging.getLogger(__name__)

#: Raised when the same source would give another index.
_VERSION = 2
_TABLES = (
    "CREATE TABLE source (version INTEGER NOT NULL, mark TEXT NOT NULL)",
    """CREATE TABLE base (number INTEGER PRIMARY KEY, name TEXT NOT NULL, model TEXT, dimensions INTEGER NOT NULL,
         vectors INTEGER NOT NULL, units INTEGER NOT NULL, problem TEXT)""",
    "CREATE TABLE entry (hash BLOB, base INTEGER, PRIMARY KEY (hash, base)) WITHOUT ROWID",
)
#: Conditions that no row of ours meets.
_INVALID = {
    "source": "typeof(version) <> 'integer' OR typeof(mark) <> 'text'",
    "base": "typeof(name) <> 'text' OR typeof(model) NOT IN ('text', 'null') OR typeof(dimensions) <> 'integer'"
    " OR typeof(vectors) <> 'integer' OR typeof(units) <> 'integer' OR typeof(problem) NOT IN ('text', 'null')",
}
#: A vector whose norm differs from 1 by less is of unit length: float16 and normalization in float32 explain it.
UNIT_TOLERANCE = 2e-3
#: Bytes of a file that are hashed: all of a small one, of a large one this many blocks from its start to its end.
_BLOCK, _BLOCKS = 1 << 12, 64
#: Folders with these words at the end of their name have none of a source's data, but many files: those of a browser.
_CACHES = ("Cache", "CacheStorage", ".regraft")
#: A folder with more files is not marked file by file.
_MOST_FILES = 100_000
_PARQUET = b"PAR1"
#: The usable vectors of an index, each with a text that has its hash.
_VECTORS = f"""SELECT e.embedding_text_hash, CAST(t.text AS BLOB), e.vector_blob FROM embedding e
   CROSS JOIN search_text t ON t.embedding_text_hash = e.embedding_text_hash AND +t.kind = 'body'
   WHERE typeof(t.text) = 'text' AND {IS_USABLE_SQL}"""


class SourceBase(msgspec.Struct, kw_only=True):
    """The vectors of one base of a source; its rows must be read before the next base is requested.

    ``model_id`` is None if the source does not name the model. ``problem`` says why the rows cannot be read, or not
    all of them; it is set at the latest when ``rows`` ends.
    """

    name: str
    model_id: str | None
    dimensions: int
    rows: Iterator[TextVector]
    problem: str | None = None

    def __post_init__(self) -> None:
        """Wrap the rows so that they end at the first damage, which becomes the base's problem."""
        self.rows = self._until_damage(self.rows)

    def _until_damage(self, rows: Iterator[TextVector]) -> Iterator[TextVector]:
        """Yield rows up to the first damage, and record the damage as the problem of the base."""
        try:
            yield from rows
        except RegraftError:
            raise
        except (*READ_ERRORS, StoreProblem) as error:
            if sqlite.is_write_failure(error):
                raise
            self.problem = _describe(error)


def is_parquet(path: Path) -> bool:
    """Whether a file starts with the signature of Parquet."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_PARQUET)) == _PARQUET


def read_source(path: Path) -> Iterator[SourceBase]:
    """Yield the bases of the source at ``path`` with their vectors.

    Raises:
        SourceNotMigratable: it is recognized, but has no vectors that regraft can tell the texts of.
        ProfileInUse: it is a profile whose application is running.
        RegraftError: it cannot be recognized or read.
    """
    if is_parquet(path):
        yield from map(_source_base, read_parquet_vectors(path))
        return
    with open_store(path) as found:
        sign = profile.detect_running_app(found.profile) if found.profile is not None else None
        if sign is not None:
            raise ProfileInUse(path=path, sign=sign)
        read = systems.system_of(found.kind).text_vectors if found.kind.system else None
        vectors = None if read is None else read(found)
        if vectors is not None:
            yield from map(_source_base, vectors)
            return
        if found.kind in V2_LAYOUTS:
            yield from _index_bases(found)
            if not found.stores.has_preview:
                return
        yield from _pipeline_bases(found, pipeline_of(found, adopt_orphans=True))


def _source_base(stored: StoredVectors) -> SourceBase:
    """Convert stored vectors of another system to a base of a source."""
    return SourceBase(name=stored.name, model_id=stored.model_id, dimensions=stored.dimensions, rows=stored.rows)


# --- the current layout ----------------------------------------------------------------------------------------------


def _index_bases(source: Located) -> Iterator[SourceBase]:
    """Yield the bases of a store or an archive with indexes of the current layout."""
    with unpack_archive(source, raw=False) as unpacked:
        rows = _catalog_rows(unpacked)
        for store in unpacked.stores.current:
            row = rows.get(store.base_id or "", {})
            with ExitStack() as stack:
                try:
                    base = _open_index(unpacked.tree.path / store.name, store, row, stack)
                except READ_ERRORS as error:
                    base = _unreadable(str(row.get("name") or store.base_id or store.name), error)
                yield base
        # Members of an archive that could not be extracted.
        for name, reason in unpacked.damaged.items():
            if name.endswith(f"/{INDEX_FILE}"):
                key = name.removesuffix(f"/{INDEX_FILE}").rpartition("/")[2]
                yield _unreadable(str(rows.get(key, {}).get("name") or key), ValueError(reason))


def _catalog_rows(source: Located) -> dict[str, Row]:
    """Return the rows of bases in the catalog, by base id; empty without a readable catalog."""
    catalog = source.stores.catalog
    if catalog is None:
        return {}
    try:
        return read_catalog(source.tree.path / catalog, data=False).rows_by_base
    except CatalogProblem:
        return {}


def _open_index(path: Path, store: StoreFile, row: Row, stack: ExitStack) -> SourceBase:
    """Open an index file as a base of a source.

    Args:
        path: the file.
        store: the file as the layout names it, with the base's id.
        row: the base's row in the catalog; empty if it has none.
        stack: closes the file.
    """
    db = stack.enter_context(sqlite.open_readonly(path, vectors=True, beside_writers=True))
    tables = untrusted_sqlite.table_statements(db)
    if any(name not in tables or untrusted_sqlite.is_virtual(tables[name]) for name in ("embedding", "search_text")):
        # A view of an untrusted file could run forever.
        raise ValueError(tr("its tables are not those of an index"))
    stated, model = row.get("dimensions"), row.get("embedding_model_id")
    size = choose_vector_length(
        count_vector_lengths(db), stated if isinstance(stated, int) and 0 < stated <= 1 << 20 else None
    )
    return SourceBase(
        name=str(row.get("name") or store.base_id or path.name),
        model_id=model if isinstance(model, str) else None,
        dimensions=size // 4,
        rows=_index_rows(db, size),
    )


def _index_rows(db: apsw.Connection, size: int) -> Iterator[TextVector]:
    """Yield each text hash of an index once, with its vector of ``size`` bytes.

    Texts that do not match their hash are left out.
    """
    last = None
    for key, raw, vector in db.execute(_VECTORS, {"length": size}):
        text: Any = raw
        # Several units may have one text.
        if key != last and identity.text_hash(decode_utf8(text)) == key:
            last = key
            yield str(key), bytes(vector)


def _unreadable(name: str, error: Exception) -> SourceBase:
    """Make a base without rows for an index or a vector file that cannot be read; ``error`` says why."""
    return SourceBase(name=name, model_id=None, dimensions=0, rows=iter(()), problem=_describe(error))


def _describe(error: Exception) -> str:
    """Say in a sentence why rows cannot be read: a :class:`StoreProblem` has the predicate of one as its message."""
    if isinstance(error, StoreProblem):
        return tr("its vector file {problem}", problem=error)
    return tr("it cannot be read: {problem}", problem=error)


# --- v1, previews, rsclaw, Chroma: the tables that a migration reads --------------------------------------------------


def _pipeline_bases(source: Located, pipeline: Pipeline) -> Iterator[SourceBase]:
    """Yield the bases of a source that could be migrated (``pipeline`` reads its kind), without migrating it."""
    options = Options(now_ms=0, adopt_orphans=True)
    for draft in pipeline.read(source, options).bases:
        with ExitStack() as stack:
            try:
                yield _open_table(source, pipeline, draft, options, stack)
            except StoreProblem as problem:
                yield _unreadable(draft.name, problem)


def _open_table(
    source: Located, pipeline: Pipeline, draft: BaseDraft, options: Options, stack: ExitStack
) -> SourceBase:
    """Open the table with the texts and vectors of a base.

    Args:
        source: the source.
        pipeline: reads sources of this kind.
        draft: the base as a migration would plan it.
        options: those of the migration.
        stack: closes the table.

    Raises:
        StoreProblem: it cannot be read.
    """
    name = vector_file_in_tree(source, draft)
    if not name:
        raise StoreProblem(tr("does not exist (the source holds no vector files)"))
    try:
        origin = stack.enter_context(source.tree.local(name, None))
    except RegraftError as error:
        raise StoreProblem(tr("cannot be read: {reason}", reason=error.facts.get("reason", error))) from error
    table = stack.enter_context(pipeline.opened(origin, None, options, draft))
    size, rows = stack.enter_context(pipeline.table.every_row(table))
    hashed = ((identity.text_hash(text), vector) for text, vector in rows)
    return SourceBase(name=draft.name, model_id=draft.embedding.id, dimensions=size // 4, rows=hashed)


# --- the index of a source -------------------------------------------------------------------------------------------


class IndexedBase(msgspec.Struct, frozen=True, kw_only=True):
    """A base of a source, by its position in :func:`~repair.embedding.vector_sources.read_source`.

    ``units`` of its ``vectors`` have unit length.
    """

    number: int
    name: str
    model_id: str | None
    dimensions: int
    vectors: int
    units: int
    problem: str | None

    @property
    def is_normalized(self) -> bool | None:
        """Whether its vectors have unit length; None: some have, some have not, or there are none."""
        if not self.vectors or 0 < self.units < self.vectors:
            return None
        return self.units == self.vectors


class SourceIndex(msgspec.Struct, frozen=True, kw_only=True):
    """The index of a source: an SQLite file, and the bases in it. ``is_cached``: it was made by an earlier run."""

    source: Path
    file: Path
    bases: tuple[IndexedBase, ...]
    is_cached: bool


def is_unit_length(norm: float) -> bool:
    """Whether a vector with this norm counts as normalized."""
    return abs(norm - 1.0) <= UNIT_TOLERANCE


def usable_rows(base: SourceBase) -> Iterator[tuple[bytes, bytes, float]]:
    """Yield the rows of a base whose vector a search can use: text hash, vector and norm."""
    size = 4 * base.dimensions
    for key, vector in base.rows:
        if len(vector) == size and size:
            norm = vector_norm(vector)
            if 0 < norm < float("inf"):
                yield bytes.fromhex(key), vector, norm


def vector_norm(vector: bytes) -> float:
    """Return the norm of a float32 vector; NaN or infinity if one of its numbers is not finite."""
    # It takes a tenth of a second and 20 MB to load, and most commands that import this module compute no norm.
    import numpy as np  # noqa: PLC0415

    numbers = np.frombuffer(vector, "<f4").astype(np.float64)
    return float(np.sqrt(numbers @ numbers))


# --- the cache -------------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Return the folder of the user's caches for this program, as the system's conventions name it."""
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "regraft" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "regraft"
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "regraft"


@contextmanager
def open_index(path: Path, progress: Progress) -> Iterator[SourceIndex]:
    """Find the index of a source in the cache, or make it. Without a writable cache it is a temporary file.

    Args:
        path: the source.
        progress: notified of the base that is read.

    Raises:
        SourceNotFound: the source does not exist.
        RegraftError: it cannot be read.
    """
    mark = content_mark(path)
    name = f"{hashlib.sha256(os.fsencode(links.real_path(path))).hexdigest()[:32]}.sqlite"
    found = _find_kept(path, name, mark)
    if found is not None:
        yield found
        return
    with scratch.temporary_folder() as folder:
        made = folder / name
        _write_index(path, made, mark, progress)
        kept = _keep(made, name)
        found = _read_index(path, kept, mark)
        assert found is not None
        yield msgspec.structs.replace(found, is_cached=False)


def _find_kept(path: Path, name: str, mark: str) -> SourceIndex | None:
    """Return the source's index in the cache if it is up to date, else None.

    Args:
        path: the source.
        name: the name of the index in the cache.
        mark: identifies the present state of the source.
    """
    # RuntimeError: the system does not say where the user's home is.
    with suppress(OSError, RegraftError, apsw.Error, RuntimeError):
        return _read_index(path, cache_folder() / "reuse" / name, mark)
    return None


def _keep(made: Path, name: str) -> Path:
    """Copy the new index ``made`` to the cache under a name; returns its path there, or ``made`` if that fails."""
    try:
        target = cache_folder() / "reuse" / name
        with writable.allow_writes(target.parent):
            durable.make_folders(target.parent, flush=False)
            # Two processes may write the same index: each has its own temporary name.
            part = target.with_name(f"{name}.{os.getpid()}.part")
            durable.copy_file(made, part)
            durable.replace(part, target)
    except (OSError, RegraftError, RuntimeError) as error:
        logger.info("the index of a source is not kept: %s", error)
        return made
    return target


def _read_index(path: Path, file: Path, mark: str) -> SourceIndex | None:
    """Read the bases from the index ``file`` of the source ``path``.

    None if it does not exist, or if ``mark`` says that the source has changed since.
    """
    if not file_paths.is_file(file):
        return None
    with sqlite.open_readonly(file) as db:
        if not sqlite.has_own_content(db, _TABLES, _INVALID):
            return None
        if db.execute("SELECT version, mark FROM source").fetchall() != [(_VERSION, mark)]:
            return None
        rows: Any = db.execute("SELECT number, name, model, dimensions, vectors, units, problem FROM base ORDER BY 1")
        bases = tuple(
            IndexedBase(
                number=number,
                name=name,
                model_id=model,
                dimensions=dimensions,
                vectors=vectors,
                units=units,
                problem=problem,
            )
            for number, name, model, dimensions, vectors, units, problem in rows
        )
    return SourceIndex(source=path, file=file, bases=bases, is_cached=True)


def _write_index(path: Path, file: Path, mark: str, progress: Progress) -> None:
    """Read the source ``path`` and write its index to the new database ``file``; ``mark`` identifies its state."""
    with sqlite.open_writable(file, create=True) as db:
        # The file is temporary; it is published as a whole.
        db.execute("PRAGMA journal_mode = OFF").fetchall()
        db.execute("PRAGMA synchronous = OFF")
        for statement in _TABLES:
            db.execute(statement)
        db.execute("CREATE TEMP TABLE found (hash BLOB)")
        with sqlite.transaction(db):
            for number, base in enumerate(read_source(path)):
                progress.at(base.name)
                _write_base(db, number, base)
            db.execute("INSERT INTO source VALUES (?, ?)", (_VERSION, mark))


def _write_base(db: apsw.Connection, number: int, base: SourceBase) -> None:
    """Write a base of a source and the hashes of its texts to an index; ``number`` is the position of the base."""
    units = 0

    def hashes() -> Iterator[tuple[bytes]]:
        """Yield the text hashes, and count the vectors of unit length."""
        nonlocal units
        for key, _, norm in usable_rows(base):
            units += is_unit_length(norm)
            yield (key,)

    db.execute("DELETE FROM found")
    db.executemany("INSERT INTO found VALUES (?)", hashes())
    vectors: Any = db.execute("SELECT count(*) FROM found").get
    # Sorted first: rows of an index in random order would be written one page each.
    db.execute("INSERT OR IGNORE INTO entry SELECT hash, ? FROM found ORDER BY hash", (number,))
    values = (number, base.name, base.model_id, base.dimensions, vectors, units, base.problem)
    db.execute("INSERT INTO base VALUES (?, ?, ?, ?, ?, ?, ?)", values)


# --- marks -----------------------------------------------------------------------------------------------------------


def content_mark(path: Path) -> str:
    """Return a hash that changes with the content of a file, or with the files of a folder and their names.

    Of each file, its size, its time, and its bytes count: all of a small one, 64 blocks of a large one, with the first
    and the last. A change of SQLite, zip, Parquet and redb files always changes the first or the last block.

    Raises:
        SourceNotFound, SourceUnreadable
    """
    digest = hashlib.sha256(b"%d" % _VERSION)
    # However it is named: as a relative path, or behind a link.
    real = links.real_path(path)
    try:
        if not real.is_dir():
            _add_content(digest, real)
        for file in _companions(real):
            digest.update(os.fsencode(str(file)) + b"\0")
            # A file that cannot be read has no part in it; reading the source will tell.
            with suppress(OSError):
                _add_content(digest, file)
    except FileNotFoundError as error:
        raise SourceNotFound(path=path) from error
    except OSError as error:
        raise SourceUnreadable(path=path, reason=error.strerror or error) from error
    return digest.hexdigest()


def _companions(path: Path) -> Iterator[Path]:
    """Yield the logs and the sidecar of a file, or the files below a folder except regraft's own records."""
    if not path.is_dir():
        starts = (f"{path.name}-", f"{path.name}.")
        with suppress(PermissionError):
            yield from sorted(other for other in path.parent.iterdir() if other.name.startswith(starts))
        return
    files = 0
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.endswith(_CACHES))
        files += len(names)
        if files > _MOST_FILES:
            return
        yield from (Path(folder, name) for name in sorted(names))


def _add_content(digest: Any, file: Path) -> None:
    """Add size, time and parts of the content of a file to a hash that notices changes."""
    status = file_paths.stat(file)
    digest.update(b"%d %d\0" % (status.st_size, status.st_mtime_ns))
    if not stat.S_ISREG(status.st_mode):
        return
    with links.open_for_reading(file) as content:
        step = max(_BLOCK, status.st_size // _BLOCKS)
        for start in range(0, status.st_size, step):
            content.seek(start)
            digest.update(content.read(_BLOCK))
        content.seek(max(0, status.st_size - _BLOCK))
        digest.update(content.read(_BLOCK))
