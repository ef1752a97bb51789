"""Carrying one planned base into a staging folder: index, uploads and snapshots, checked against what was read.

It touches nothing but the staging folder, so that a failure at any moment leaves only what is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import apsw
import msgspec

from migrators.pipeline import source_files
from migrators.pipeline.plan import BasePlan, ItemPlan, MaterialPlan
from migrators.pipeline.source import Upload
from migrators.pipeline.source_files import copy_upload, find_upload, missing_upload_notice
from regraft import identity
from regraft.disk import durable, file_paths, sqlite
from regraft.disk.file_paths import FreeNames
from regraft.disk.trees import SourceReadFailed, Tree
from regraft.errors import BooksDoNotBalance
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

#: An index with so much in it is flushed to the disk in two parts.
_LARGE_INDEX_BYTES = 64 << 20
#: Rows between two reports of progress.
ROWS_PER_REPORT = 256


class BaseSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a base comes from."""

    #: The source, and the name of its folder of uploaded files, None where it has none.
    tree: Tree
    uploads: str | None
    #: How its vector file is read.
    table: VectorTable
    #: The vector file on disk, None for a failed base.
    vectors: Path | None
    #: The folder of the base in the target, where an earlier run may have written it.
    earlier: Path


#: Who is told how far a base is: rows (parts of rows too) and bytes since the last call.
ReportProgress = Callable[[float, int], None]
Row = TypeVar("Row")


class WrittenBase(msgspec.Struct, frozen=True, kw_only=True):
    """What was written for one base."""

    record: BaseRecord
    #: By position in the plan's items: the paths that only carrying gave them.
    paths: dict[int, str]
    #: None for a base without an index.
    tallies: index.Tallies | None
    index_bytes: int
    #: SHA-256 of the index, and of the names and bytes under ``raw/``; "" where there is none.
    index_hash: str
    raw_hash: str
    #: Whether the staging folder holds anything to publish.
    has_files: bool
    notices: tuple[Notice, ...]
    #: Names of uploads in the source that are there and could not be read.
    unread: frozenset[str] = frozenset()


#: Carrying is the smaller part of the work on a row, the full-text index the larger one.
COPY_SHARE = 0.3
#: Roughly how many of SQLite's instructions a rebuild of the full-text index takes for one row.
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
    crew: ProcessPool | None = None,
) -> WrittenBase:
    """Write one base into ``staging``, which does not exist yet.

    Args:
        plan: what becomes of the base.
        origin: where it comes from.
        staging: the folder that becomes ``KnowledgeBase/<base id>``.
        now_ms: the run's time in ms.
        watch: told of every step.
        verify: whether FTS5 looks through the whole full-text index, too.
        crew: processes that may help.

    Raises:
        SourceFailed: the vector file cannot be read after all.
        apsw.Error, OSError: the staging folder cannot be written.
        BooksDoNotBalance, VerificationFailed: what was written is not what was read.
    """
    if not plan.rows.balanced:
        raise BooksDoNotBalance(
            base=plan.draft.legacy_id,
            read=plan.rows.read,
            carried=plan.rows.carried,
            skipped=sum(plan.rows.skipped.values()),
        )
    carrier = _BaseWriter(plan, origin, staging, now_ms, watch, crew)
    written = None
    if plan.has_index and origin.vectors is not None:
        written = carrier.write_index(origin.vectors)
        if verify:
            index.verify_full_text(staging / INDEX_FILE, plan.draft.id)
    else:
        carrier.copy_uploads()
    has_files = file_paths.exists(staging)
    index_hash, raw_hash = _checked(carrier, written, staging, crew)
    size = file_paths.stat(staging / INDEX_FILE).st_size if written else 0
    return WrittenBase(
        record=carrier.record(),
        paths=carrier.paths(),
        tallies=written.tallies if written else None,
        index_bytes=size,
        index_hash=index_hash,
        raw_hash=raw_hash,
        has_files=has_files,
        notices=tuple(carrier.found_notices),
        unread=frozenset(carrier.unread),
    )


def _checked(
    carrier: _BaseWriter, written: _WrittenIndex | None, staging: Path, crew: ProcessPool | None
) -> tuple[str, str]:
    """Read back what was written, flush it, and return the hashes of the index and of what is in ``raw/``."""
    with source_files.hash_in_background(staging, crew) as hashes, ThreadPoolExecutor(1) as beside:
        # Whoever waits for the disk leaves another thread its time.
        flushed = beside.submit(durable.sync_tree, staging) if file_paths.exists(staging) else None
        if written is not None:
            carrier.read_back(written)
        if flushed is not None:
            flushed.result()
        return hashes()


class _WrittenIndex(msgspec.Struct, frozen=True):
    """An index that was written, with the digests of what was put into it."""

    tallies: index.Tallies
    digests: list[index.PartDigest]


class _BaseWriter:
    """Works one base off; used once."""

    def __init__(
        self,
        plan: BasePlan,
        origin: BaseSource,
        staging: Path,
        now_ms: int,
        watch: ReportProgress,
        crew: ProcessPool | None,
    ) -> None:
        self._plan = plan
        self._crew = crew
        self._origin = origin
        self._staging = staging
        self._raw = staging / RAW_FOLDER
        self._now = now_ms
        self._watch = watch
        self._names = FreeNames(plan.taken_names, reserve_processed=plan.draft.file_processor_id is not None)
        #: Snapshots and their paths by position of their item.
        self._snapshots: dict[int, tuple[okf.Snapshot, str]] = {}
        self._copies = source_files.UploadCopies(self._uploads(), origin.tree, origin.uploads, self._raw, crew)
        self.found_notices: list[Notice] = []
        self.unread: set[str] = set()

    # --- uploads ---------------------------------------------------------------------------------------------------

    def copy_uploads(self, go_on: Callable[[], None] = lambda: None) -> None:
        """Copy every uploaded file to its name under ``raw/``; one that is missing is a notice.

        ``go_on`` is called before each.
        """
        for number, is_tried in self._copies.left():
            go_on()
            item = self._plan.items[number]
            if is_tried:
                durable.remove(self._raw / item.data["relativePath"], missing_ok=True)
            self._copy_upload(item)

    def _copy_upload(self, item: ItemPlan) -> None:
        assert item.upload is not None
        path, origin = item.data["relativePath"], self._origin
        earlier = origin.earlier / RAW_FOLDER / path
        try:
            problem = copy_upload(origin.tree, origin.uploads, item.upload, earlier, self._raw / path)
        except OSError as error:
            self._demand_too_long(error, path, item)
            return
        if problem:
            self.unread.add(find_upload(origin.tree, origin.uploads, item.upload) or "")
        if problem and not file_paths.exists(self._raw / path):
            self.found_notices.append(missing_upload_notice(path, problem, self._plan.draft.legacy_id, item.legacy_id))

    def _demand_too_long(self, error: OSError, path: str, item: ItemPlan) -> None:
        """Note that the system takes no file of such a path; raise what else it failed with."""
        target = self._raw / path
        if not file_paths.is_too_long_write_error(error, target):
            raise error
        message = tr(
            "{path}: the system takes no path of {count} characters; the item stays searchable, but cannot be "
            "reindexed without its file",
            path=path,
            count=len(str(target)),
        )
        self.found_notices.append(
            Notice(code=notices.PATH_TOO_LONG, message=message, base=self._plan.draft.legacy_id, item=item.legacy_id)
        )

    def _uploads(self) -> Iterator[tuple[int, Upload, str]]:
        for number, item in enumerate(self._plan.items):
            if item.upload is not None:
                yield number, item.upload, item.data["relativePath"]

    # --- index -----------------------------------------------------------------------------------------------------

    def write_index(self, vectors: Path) -> _WrittenIndex:
        """Write the index; snapshots are written as their texts come by, uploads are copied while others work."""
        path = self._staging / INDEX_FILE
        durable.make_folders(path.parent, flush=False)
        with _source(vectors, self._staging.parent) as db, _size_limit(), ThreadPoolExecutor(1) as beside:
            flushed: list[Future[None]] = []
            is_large = self._plan.units * self._plan.vector_bytes + self._plan.body_bytes >= _LARGE_INDEX_BYTES

            def meanwhile(go_on: Callable[[], None]) -> None:
                # The disk writes what is there while words are indexed. What it cannot write it says but once.
                if is_large:
                    flushed.append(beside.submit(durable.sync_file, path))
                self.copy_uploads(go_on)
                if self._crew is not None and self._crew.is_started:
                    # Soon others are waited for: what the end takes a while to load is loaded now.
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
                meanwhile=meanwhile,
                is_flushed=False,
                text_bytes=self._plan.body_bytes,
                progress=IndexingProgress(self._plan.units, self._watch),
                crew=self._crew,
            )
            for future in flushed:
                future.result()
        self._demand_balance(tallies)
        return _WrittenIndex(tallies, digests)

    def read_back(self, written: _WrittenIndex) -> None:
        """Verify the index."""
        path, base_id = self._staging / INDEX_FILE, self._plan.draft.id
        index.verify(path, base_id, written.tallies, written.digests, self._plan.vector_bytes, self._crew)
        self._note_differing(written.tallies)

    def _demand_balance(self, tallies: index.Tallies) -> None:
        rows = self._plan.rows
        if tallies.units != self._plan.units:
            skipped = sum(rows.skipped.values())
            raise BooksDoNotBalance(
                base=self._plan.draft.legacy_id, read=rows.read, carried=tallies.units, skipped=skipped
            )

    def _note_differing(self, tallies: index.Tallies) -> None:
        if tallies.differing_vectors:
            count = tallies.differing_vectors
            message = tr(
                "{texts} came again with another vector; the first one is kept", texts=format_count(count, "text")
            )
            self.found_notices.append(
                Notice(code=notices.DIFFERING_VECTOR, message=message, base=self._plan.draft.legacy_id, count=count)
            )

    def _material(self, db: apsw.Connection, number: int) -> index.Material:
        self._copies.deal()
        material = self._plan.materials[number]
        item = self._plan.items[material.item]
        is_large = material.body_bytes > LARGE_BYTES
        rows = self._rows(db, material, is_large)
        return index.Material(material_id=item.id, name=self._namer(material.item, item), rows=rows, is_large=is_large)

    def _stored_rows(
        self, db: apsw.Connection, material: MaterialPlan, is_large: bool
    ) -> Iterator[tuple[str | LargeText, bytes | None]]:
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
        """Yield the bodies of a material with their vectors, and report how many there were."""
        pending = size = 0
        for body, vector in _blamed_on_source(self._stored_rows(db, material, is_large)):
            yield _source_text(body), vector
            pending += 1
            size += (len(body) if isinstance(body, str) else LARGE_BYTES) + len(vector or b"")
            if pending == ROWS_PER_REPORT:
                self._watch(pending * COPY_SHARE, size)
                pending = size = 0
        self._watch(pending * COPY_SHARE, size)

    # --- snapshots -------------------------------------------------------------------------------------------------

    def _namer(self, position: int, item: ItemPlan) -> Callable[[str], str]:
        """Return what names a material once its content is known: files have their path, snapshots find one."""
        if "relativePath" in item.data:
            path = item.data["relativePath"]
            return lambda _: path

        def name(content: str) -> str:
            snapshot = self._snapshot(item, content)
            path = self._names.take(f"{snapshot.stem}.md")
            self._snapshots[position] = snapshot, path
            return path

        return name

    def _snapshot(self, item: ItemPlan, content: str) -> okf.Snapshot:
        if item.type == "url":
            return okf.url_snapshot(item.data["url"], content)
        return okf.note_snapshot(item.data["source"])

    def _write_snapshot(self, number: int, material: index.Material) -> None:
        position = self._plan.materials[number].item
        if position not in self._snapshots:
            return
        snapshot, path = self._snapshots[position]
        block = snapshot.block(identity.iso_time(self._now))
        durable.make_folders(self._raw, flush=False)
        try:
            file = durable.open_text(self._raw / path, "x")
        except OSError as error:
            self._demand_too_long(error, path, self._plan.items[position])
            return
        with file:
            file.write(block)
            for piece in material.pieces():
                file.write(piece)

    # --- catalog ---------------------------------------------------------------------------------------------------

    def record(self) -> BaseRecord:
        """Return what the catalog holds of the base but for its items."""
        plan, draft = self._plan, self._plan.draft
        choices = [choice for choice in (draft.embedding, draft.rerank) if choice.model and choice.provider]
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
                created_at=self._time(draft.created_at),
                updated_at=self._time(draft.updated_at),
            ),
            models=tuple(choice.model for choice in choices if choice.model),
            providers=tuple(choice.provider for choice in choices if choice.provider),
            now_ms=self._now,
        )

    def paths(self) -> dict[int, str]:
        """Return the paths of the snapshots by position of their item."""
        return {position: path for position, (_, path) in self._snapshots.items()}

    def _time(self, value: int | None) -> int:
        return self._now if value is None else value


def catalog_rows(plan: BasePlan, carried: WrittenBase) -> Iterator[ItemRow]:
    """Yield the catalog's rows of a base's items."""
    now_ms = carried.record.now_ms
    for position, item in enumerate(plan.items):
        path = carried.paths.get(position)
        yield ItemRow(
            id=item.id,
            base_id=plan.draft.id,
            group_id=item.group_id,
            type=item.type,
            data=_whole(item.data if path is None else {**item.data, "relativePath": path}),
            status=item.status,
            error=item.error,
            created_at=now_ms if item.created_at is None else item.created_at,
            updated_at=now_ms if item.updated_at is None else item.updated_at,
        )


def _whole(data: dict[str, str]) -> dict[str, str]:
    """Return texts that can be stored; the same dict where all can, since there may be one for each of a million."""
    stored = {key: replace_surrogates(value) for key, value in data.items()}
    return data if stored == data else stored


class _SourceText(LargeText):
    """A large text of the source, with its errors told apart from those of the target."""

    def pieces(self) -> Iterator[bytes]:
        """See :meth:`LargeText.pieces`."""
        try:
            yield from super().pieces()
        except apsw.Error as error:
            raise SourceReadFailed(str(error)) from error


def _blamed_on_source(rows: Iterator[Row]) -> Iterator[Row]:
    """Yield rows; an error of reading them is the source's, and none of the target's."""
    try:
        yield from rows
    except apsw.Error as error:
        raise SourceReadFailed(str(error)) from error


def _source_text(body: str | LargeText) -> str | LargeText:
    if isinstance(body, str):
        return body
    return _SourceText(db=body.db, table=body.table, column=body.column, rowid=body.rowid, codec=body.codec)


class IndexingProgress:
    """Reports how far the indexes of so many units are, as a share of these units."""

    def __init__(self, units: int, watch: ReportProgress) -> None:
        self._left = units * (1 - COPY_SHARE)
        self._report = watch

    def watch(self, db: apsw.Connection) -> None:
        """Let a connection report while it builds the indexes."""
        db.set_progress_handler(self._step, _STEPS_PER_REPORT)

    def rows(self, count: int) -> None:
        """Report so many rows."""
        step = min(count * (1 - COPY_SHARE), self._left)
        self._left -= step
        self._report(step, 0)

    def _step(self) -> bool:
        self.rows(_STEPS_PER_REPORT // _STEPS_PER_ROW)
        return False


class _source:  # noqa: N801 - reads as what it gives
    """The vector file opened for reading, with its errors told apart from those of the target."""

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
def _size_limit() -> Iterator[None]:
    """Blame a text that grew over SQLite's limit (invalid bytes that became U+FFFD) on the source, not on the disk."""
    try:
        yield
    except apsw.TooBigError as error:
        raise SourceReadFailed(tr("the text of one item is over SQLite's limit of 1 GB")) from error
