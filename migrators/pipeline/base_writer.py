"""Write one planned base to a staging folder: index, uploads and snapshots, verified against the rows that were read.

Only the staging folder is written to, so a failure leaves nothing in the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

import apsw
import msgspec

from migrators.pipeline import source_files
from migrators.pipeline.plan import BasePlan, ItemPlan, MaterialPlan
from migrators.pipeline.source_files import copy_upload, find_upload, missing_upload_notice
from regraft import identity
from regraft.disk import durable, file_paths, sqlite
from regraft.disk.file_paths import FreeNames
from regraft.disk.trees import SourceReadFailed, Tree
from regraft.errors import BooksDoNotBalance, VerificationFailed
from regraft.formats import okf
from regraft.formats.cherry_v2 import index
from regraft.formats.cherry_v2.catalog import BaseRecord, BaseRow, ItemRow
from regraft.formats.large_text import LARGE_BYTES, LargeText
from regraft.formats.vector_table import VectorTable
from regraft.language import format_count, tr
from regraft.processes.pool import ProcessPool
from regraft.report import html, migration, notices
from regraft.report.notices import Notice
from regraft.stores.locate import INDEX_FILE, RAW_FOLDER
from regraft.text import replace_surrogates

#: An index of this size is flushed to disk while words are indexed, and again at the end.
_LARGE_INDEX_BYTES = 64 << 20
#: Rows between two reports of progress.
ROWS_PER_REPORT = 256


class BaseSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a base is read from."""

    #: The source, and the name of its folder for uploads (None if it has none).
    tree: Tree
    uploads: str | None
    #: The table in the vector file.
    table: VectorTable
    #: The vector file on disk; None for a failed base.
    vectors: Path | None
    #: The folder of the base in the target, if an earlier run wrote it.
    earlier: Path


#: Called with the number of rows (also fractions) and bytes since the last call.
ReportProgress = Callable[[float, int], None]
Row = TypeVar("Row")


class WrittenBase(msgspec.Struct, frozen=True, kw_only=True):
    """What was written for one base."""

    record: BaseRecord
    #: Paths of snapshots, by position of their item in the plan.
    paths: dict[int, str]
    #: None for a base without an index.
    tallies: index.Tallies | None
    index_bytes: int
    #: SHA-256 of the index, and of the names and bytes in ``raw/``; empty without such files.
    index_hash: str
    raw_hash: str
    #: Whether the staging folder holds anything to publish.
    has_files: bool
    notices: tuple[Notice, ...]
    #: Names of uploads that exist in the source and could not be read.
    unread: frozenset[str] = frozenset()


#: Share of the progress that copying a row counts for; building the full-text index is the larger part.
COPY_SHARE = 0.3
#: Approximate number of SQLite instructions to index the words of one row.
_STEPS_PER_ROW = 80
_STEPS_PER_REPORT = 20_000


def write_base(
    plan: BasePlan,
    origin: BaseSource,
    staging: Path,
    now_ms: int,
    watch: ReportProgress,
    *,
    verify: bool = False,
    pool: ProcessPool | None = None,
) -> WrittenBase:
    """Write one base to ``staging``, which must not exist.

    Args:
        plan: the plan of the base.
        origin: the source of its rows and uploads.
        staging: the folder that becomes ``KnowledgeBase/<base id>``.
        now_ms: time of the run in ms.
        watch: called with the progress.
        verify: let FTS5 check the whole full-text index.
        pool: process pool that may help, or None.

    Raises:
        SourceReadFailed: the vector file cannot be read after all.
        apsw.Error, OSError: the staging folder cannot be written.
        BooksDoNotBalance, VerificationFailed: what was written is not what was read.
    """
    if not plan.rows.is_balanced:
        raise BooksDoNotBalance(
            base=plan.draft.legacy_id,
            read=plan.rows.read,
            carried=plan.rows.carried,
            skipped=sum(plan.rows.skipped.values()),
        )
    writer = _BaseWriter(plan, origin, staging, now_ms, watch, pool)
    written = None
    if plan.has_index and origin.vectors is not None:
        written = writer.write_index(origin.vectors)
        if verify:
            index.verify_full_text(staging / INDEX_FILE, plan.draft.id)
    else:
        writer.copy_uploads()
    has_files = file_paths.exists(staging)
    index_hash, raw_hash = _verify_and_flush(writer, written, staging, pool)
    size = file_paths.stat(staging / INDEX_FILE).st_size if written else 0
    return WrittenBase(
        record=base_record(plan, now_ms),
        paths=writer.paths(),
        tallies=written.tallies if written else None,
        index_bytes=size,
        index_hash=index_hash,
        raw_hash=raw_hash,
        has_files=has_files,
        notices=tuple(writer.found_notices),
        unread=frozenset(writer.unread),
    )


def _verify_and_flush(
    writer: _BaseWriter, written: _WrittenIndex | None, staging: Path, pool: ProcessPool | None
) -> tuple[str, str]:
    """Verify the index, if there is one, and flush the staging folder to disk.

    Return two hashes: index and ``raw/``.
    """
    with source_files.hash_in_background(staging, pool) as hashes, ThreadPoolExecutor(1) as beside:
        # Flushing releases the interpreter lock, so verification runs at the same time.
        flushed = beside.submit(durable.sync_tree, staging) if file_paths.exists(staging) else None
        if written is not None:
            writer.verify_index(written)
        if flushed is not None:
            flushed.result()
        return hashes()


class _WrittenIndex(msgspec.Struct, frozen=True):
    """A new index, and the digests of the rows that were written to it."""

    tallies: index.Tallies
    digests: list[index.PartDigest]


class _BaseWriter:
    """Writes one base. Single use."""

    def __init__(
        self,
        plan: BasePlan,
        origin: BaseSource,
        staging: Path,
        now_ms: int,
        watch: ReportProgress,
        pool: ProcessPool | None,
    ) -> None:
        self._plan = plan
        self._pool = pool
        self._origin = origin
        self._staging = staging
        self._raw = staging / RAW_FOLDER
        self._now = now_ms
        self._watch = watch
        # The plan has reserved the names of what file processors write.
        self._names = FreeNames(plan.taken_names)
        #: Snapshot and path by position of the item.
        self._snapshots: dict[int, tuple[okf.Snapshot, str]] = {}
        uploads = (
            (number, item.upload, item.data["relativePath"])
            for number, item in enumerate(plan.items)
            if item.upload is not None
        )
        self._copies = source_files.UploadCopies(uploads, origin.tree, origin.uploads, self._raw, pool)
        self.found_notices: list[Notice] = []
        self.unread: set[str] = set()

    # --- uploads ---------------------------------------------------------------------------------------------------

    def copy_uploads(self, go_on: Callable[[], None] = lambda: None) -> None:
        """Copy the uploads that the process pool has not copied; a missing one is reported by a notice.

        ``go_on`` is called before each file, so that the caller can do other work in between.
        """
        for number, is_retry in self._copies.remaining():
            go_on()
            item = self._plan.items[number]
            if is_retry:
                durable.remove(self._raw / item.data["relativePath"], missing_ok=True)
            self._copy_upload(item)

    def _copy_upload(self, item: ItemPlan) -> None:
        """Copy the uploaded file of an item to ``raw/``; a notice if it is missing or cannot be read."""
        assert item.upload is not None
        path, origin = item.data["relativePath"], self._origin
        earlier = origin.earlier / RAW_FOLDER / path
        try:
            problem = copy_upload(origin.tree, origin.uploads, item.upload, earlier, self._raw / path)
        except OSError as error:
            self._note_path_too_long(error, path, item)
            return
        if problem:
            self.unread.add(find_upload(origin.tree, origin.uploads, item.upload) or "")
        if problem and not file_paths.exists(self._raw / path):
            self.found_notices.append(missing_upload_notice(path, problem, self._plan.draft.legacy_id, item.legacy_id))

    def _note_path_too_long(self, error: OSError, path: str, item: ItemPlan) -> None:
        """Add a notice if the system does not allow a path of this length; raise any other error."""
        target = self._raw / path
        if not file_paths.is_too_long_write_error(error, target):
            raise error
        message = tr(
            "{path}: the system allows no path of {count} characters; the item can be searched but "
            "not reindexed without its file",
            path=path,
            count=len(str(target)),
        )
        self.found_notices.append(
            Notice(code=notices.PATH_TOO_LONG, message=message, base=self._plan.draft.legacy_id, item=item.legacy_id)
        )

    # --- index -----------------------------------------------------------------------------------------------------

    def write_index(self, vectors: Path) -> _WrittenIndex:
        """Write the index and the snapshots from the vector file, and copy the uploads while the pool sorts words."""
        path = self._staging / INDEX_FILE
        durable.make_folders(path.parent, flush=False)
        with (
            _open_source(vectors, self._staging.parent) as db,
            _oversize_is_source_error(),
            ThreadPoolExecutor(1) as beside,
        ):
            flushed: list[Future[None]] = []
            is_large = self._plan.units * self._plan.vector_bytes + self._plan.body_bytes >= _LARGE_INDEX_BYTES

            def while_sorting(go_on: Callable[[], None]) -> None:
                """Copy uploads and flush files while the pool sorts words.

                ``go_on`` lets the pool continue and is called often.
                """
                # Flush what is written so far. An error is raised once, when the result is asked for below.
                if is_large:
                    flushed.append(beside.submit(durable.sync_file, path))
                self.copy_uploads(go_on)
                if self._pool is not None and self._pool.is_started:
                    # The page template is needed at the end and takes a while to load: do it while the pool sorts.
                    html.load_template(migration.PAGE)
                    go_on()
                if is_large and file_paths.is_folder(self._raw):
                    flushed.append(beside.submit(durable.sync_tree, self._raw))

            tallies, digests = index.build_index(
                path,
                self._plan.draft.id,
                self._now,
                (self._material(db, number) for number in range(len(self._plan.materials))),
                self._write_snapshot,
                meanwhile=while_sorting,
                is_flushed=False,
                text_bytes=self._plan.body_bytes,
                progress=IndexingProgress(self._plan.units, self._watch),
                processes=self._pool,
            )
            for future in flushed:
                future.result()
            self._write_locators(path, db)
        self._require_planned_rows(tallies)
        return _WrittenIndex(tallies, digests)

    def _write_locators(self, path: Path, db: apsw.Connection) -> None:
        """Copy the locator of each chunk (JSON that some layouts have) from the source to its unit, and compare both.

        ``path`` is the new index, ``db`` the open vector file.

        Raises:
            VerificationFailed: a locator reads back differently.
        """
        if self._origin.table.locator is None:
            return
        with sqlite.open_writable(path) as target:
            target.pragma("synchronous", "OFF")
            with sqlite.transaction(target):
                update = "UPDATE search_unit SET locator_json = ? WHERE rowid = ?"
                target.executemany(update, ((locator, unit) for unit, locator in enumerate(self._locators(db), 1)))
            found = target.execute("SELECT locator_json FROM search_unit ORDER BY rowid")
            if any(stored != locator for (stored,), locator in zip_longest(found, self._locators(db), fillvalue=("",))):
                reason = tr("the metadata of a unit reads back differently")
                raise VerificationFailed(base=self._plan.draft.id, reason=reason)

    def _locators(self, db: apsw.Connection) -> Iterator[str | None]:
        """Read the locator of each migrated row from the open vector file, in the order in which units were written."""
        texts, length = bool(self._plan.rows.without_vector), self._plan.vector_bytes
        for material in self._plan.materials:
            yield from _as_source_errors(self._origin.table.locators(db, material.runs, length or None, texts=texts))

    def _require_planned_rows(self, tallies: index.Tallies) -> None:
        """Refuse an index with another number of rows than planned; the test campaign disables this check."""
        rows = self._plan.rows
        if tallies.units != self._plan.units:
            skipped = sum(rows.skipped.values())
            raise BooksDoNotBalance(
                base=self._plan.draft.legacy_id, read=rows.read, carried=tallies.units, skipped=skipped
            )

    def verify_index(self, written: _WrittenIndex) -> None:
        """Read the index back and compare it with what was written."""
        path, base_id = self._staging / INDEX_FILE, self._plan.draft.id
        index.verify(path, base_id, written.tallies, written.digests, self._plan.vector_bytes, self._pool)
        if written.tallies.differing_vectors:
            count = written.tallies.differing_vectors
            message = tr(
                "{texts} with two different vectors; the first one was kept", texts=format_count(count, "text")
            )
            self.found_notices.append(
                Notice(code=notices.DIFFERING_VECTOR, message=message, base=self._plan.draft.legacy_id, count=count)
            )

    def _material(self, db: apsw.Connection, number: int) -> index.Material:
        """Prepare the plan's material ``number`` for the index writer.

        The writer reads its rows from ``db`` as it goes.
        """
        self._copies.assign()
        material = self._plan.materials[number]
        item = self._plan.items[material.item]
        is_large = material.body_bytes > LARGE_BYTES
        rows = self._rows(db, material, is_large)
        return index.Material(
            material_id=item.id, name=self._path_chooser(material.item, item), rows=rows, is_large=is_large
        )

    def _read_rows(
        self, db: apsw.Connection, material: MaterialPlan, is_large: bool
    ) -> Iterator[tuple[str | LargeText, bytes | None]]:
        """Yield the text and vector of each row of a material from the open vector file.

        The digest of the rows is compared with the plan's. ``is_large`` reads texts in pieces.
        """
        table, length = self._origin.table, self._plan.vector_bytes
        texts = bool(self._plan.rows.without_vector)
        if is_large:
            return table.large_rows(db, material.runs, length or None, material.digest, texts=texts)
        if texts:
            return table.rows_and_texts(db, material.runs, length or None, material.digest)
        return table.rows(db, material.runs, length, material.digest, any_number=material.is_finite)

    def _rows(
        self, db: apsw.Connection, material: MaterialPlan, is_large: bool
    ) -> Iterator[tuple[str | LargeText, bytes | None]]:
        """Yield the text and vector of each row of a material, and report the progress. ``db`` is the open vector file.

        ``is_large`` reads texts in pieces.
        """
        pending = size = 0
        for body, vector in _as_source_errors(self._read_rows(db, material, is_large)):
            if isinstance(body, LargeText):
                body = _SourceText(  # noqa: PLW2901 - the same text
                    db=body.db, table=body.table, column=body.column, rowid=body.rowid, codec=body.codec
                )
            yield body, vector
            pending += 1
            size += (len(body) if isinstance(body, str) else LARGE_BYTES) + len(vector or b"")
            if pending == ROWS_PER_REPORT:
                self._watch(pending * COPY_SHARE, size)
                pending = size = 0
        self._watch(pending * COPY_SHARE, size)

    # --- snapshots -------------------------------------------------------------------------------------------------

    def _path_chooser(self, position: int, item: ItemPlan) -> Callable[[str], str]:
        """Return a function that names the file in ``raw/`` of the item at a position, given the text of the item.

        An item with a file has its path already. A snapshot of a note or page is named after its text.
        """
        if "relativePath" in item.data:
            path = item.data["relativePath"]
            return lambda _: path

        def name(content: str) -> str:
            """Choose a free path for the item's snapshot, and remember it."""
            snapshot = okf.item_snapshot(item.type, item.data, content)
            path = self._names.take(f"{snapshot.stem}.md")
            self._snapshots[position] = snapshot, path
            return path

        return name

    def _write_snapshot(self, number: int, material: index.Material) -> None:
        """Write the text of the plan's material ``number``, with a header, to its item's snapshot file, if there is
        one.
        """
        position = self._plan.materials[number].item
        if position not in self._snapshots:
            return
        snapshot, path = self._snapshots[position]
        block = snapshot.block(identity.iso_time(self._now))
        durable.make_folders(self._raw, flush=False)
        try:
            file = durable.open_text(self._raw / path, "x")
        except OSError as error:
            self._note_path_too_long(error, path, self._plan.items[position])
            return
        with file:
            file.write(block)
            for piece in material.pieces():
                file.write(piece)

    # --- catalog ---------------------------------------------------------------------------------------------------

    def paths(self) -> dict[int, str]:
        """Return the paths of the snapshots by position of their item."""
        return {position: path for position, (_, path) in self._snapshots.items()}


def base_record(plan: BasePlan, now_ms: int) -> BaseRecord:
    """Return the catalog rows of a base, without its items."""
    draft = plan.draft
    choices = [
        (choice.model, choice.provider)
        for choice in (draft.embedding, draft.rerank)
        if choice.model and choice.provider
    ]
    return BaseRecord(
        base=BaseRow(
            id=draft.id,
            name=draft.name,
            dimensions=plan.dimensions,
            embedding_model_id=draft.embedding.id,
            status="failed" if plan.error else "completed",
            error=plan.error,
            rerank_model_id=draft.rerank.id,
            file_processor_id=draft.file_processor_id,
            chunk_size=draft.settings.chunk_size,
            chunk_overlap=draft.settings.chunk_overlap,
            threshold=draft.settings.threshold,
            document_count=draft.settings.document_count,
            chunk_strategy=draft.settings.chunk_strategy,
            chunk_separator=draft.settings.chunk_separator,
            created_at=now_ms if draft.created_at is None else draft.created_at,
            updated_at=now_ms if draft.updated_at is None else draft.updated_at,
        ),
        models=tuple(model for model, _ in choices),
        providers=tuple(provider for _, provider in choices),
        now_ms=now_ms,
    )


def catalog_rows(plan: BasePlan, written: WrittenBase) -> Iterator[ItemRow]:
    """Yield the catalog rows of a written base's items."""
    return planned_rows(plan, written.paths, written.record.now_ms)


def planned_rows(plan: BasePlan, paths: Mapping[int, str], now_ms: int) -> Iterator[ItemRow]:
    """Yield the catalog rows of a planned base's items.

    ``paths`` has the path of each snapshot by its item's position.
    """
    for position, item in enumerate(plan.items):
        path = paths.get(position)
        data = item.data if path is None else {**item.data, "relativePath": path}
        repaired = {key: replace_surrogates(value) for key, value in data.items()}
        yield ItemRow(
            id=item.id,
            base_id=plan.draft.id,
            group_id=item.group_id,
            type=item.type,
            # Equal data are not replaced by their copy, to save memory with a million items.
            data=data if repaired == data else repaired,
            status=item.status,
            error=item.error,
            created_at=now_ms if item.created_at is None else item.created_at,
            updated_at=now_ms if item.updated_at is None else item.updated_at,
        )


class _SourceText(LargeText):
    """A large text of the source. Read errors are raised as errors of the source."""

    def pieces(self) -> Iterator[bytes]:
        try:
            yield from super().pieces()
        except apsw.Error as error:
            raise SourceReadFailed(str(error)) from error


def _as_source_errors(rows: Iterator[Row]) -> Iterator[Row]:
    """Yield rows. Read errors are raised as errors of the source, not of the target."""
    try:
        yield from rows
    except apsw.Error as error:
        raise SourceReadFailed(str(error)) from error


class IndexingProgress:
    """Reports the progress of building the indexes, as a share of the number of units."""

    def __init__(self, units: int, watch: ReportProgress) -> None:
        self._left = units * (1 - COPY_SHARE)
        self._report = watch

    def watch(self, db: apsw.Connection) -> None:
        """Report progress while SQLite builds indexes on this connection."""
        db.set_progress_handler(self._step, _STEPS_PER_REPORT)

    def rows(self, count: int) -> None:
        """Report that the words of ``count`` more rows are indexed."""
        step = min(count * (1 - COPY_SHARE), self._left)
        self._left -= step
        self._report(step, 0)

    def _step(self) -> bool:
        """Report a fixed number of SQLite instructions as progress. Return False, which lets the statement continue."""
        self.rows(_STEPS_PER_REPORT // _STEPS_PER_ROW)
        return False


class _open_source:  # noqa: N801 - reads as what it gives
    """Open the vector file. Read errors are raised as errors of the source, not of the target."""

    def __init__(self, path: Path, work: Path) -> None:
        self._context = sqlite.open_readonly(path, work=work)

    def __enter__(self) -> apsw.Connection:
        try:
            return self._context.__enter__()
        except (apsw.Error, OSError) as error:
            if isinstance(error, OSError) and error.errno in durable.NO_ROOM:
                raise
            raise SourceReadFailed(str(error)) from error

    def __exit__(self, *exception: object) -> None:
        self._context.__exit__(*exception)  # type: ignore[arg-type]


@contextmanager
def _oversize_is_source_error() -> Iterator[None]:
    """Raise a text over SQLite's limit as an error of the source: replacing invalid bytes by U+FFFD made it longer."""
    try:
        yield
    except apsw.TooBigError as error:
        raise SourceReadFailed(tr("the text of one item exceeds SQLite's limit of 1 GB")) from error
