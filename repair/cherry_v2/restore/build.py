"""Build the new base in a staging folder: an index with all texts and no vectors, and missing snapshots.

One text is in memory at a time. What an earlier run has built, and the vectors that it has paid for, are kept.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.audit.collector import FindingCollector
from checks.audit.findings import FINDINGS
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import get_indexed_path
from checks.cherry_v2.index_file import ExpectedIndex, audit_index
from checks.cherry_v2.raw_files import find_path_problem
from regraft import identity
from regraft.disk import durable, file_paths, links, scratch, sqlite, untrusted_sqlite
from regraft.disk.file_paths import FreeNames
from regraft.errors import LedgerUnreadable, NotRestored, VerificationFailed
from regraft.formats import okf
from regraft.formats.cherry_v2.catalog_reader import Row, list_paths, parse_item_data
from regraft.formats.cherry_v2.index.bulk import IndexBuilder
from regraft.formats.cherry_v2.settings import read_base_settings
from regraft.language import document_in_english, tr
from regraft.ledger.values import Count
from regraft.report.progress import Progress, stage
from regraft.stores.locate import INDEX_FILE, RAW_FOLDER
from regraft.text import is_blank, replace_surrogates
from repair.cherry_v2.donor_indexes import OldIndex
from repair.cherry_v2.item_texts import BLANK, NoText, Span, cut_text, find_raw_file, read_item_text
from repair.cherry_v2.old_base import (
    ItemCopy,
    RestoredBase,
    RestoredItem,
    RestoreSource,
    copy_items,
    is_being_deleted,
    item_problem,
    new_item_id,
    open_old_index,
)

#: The record of a complete build, in the same folder.
_RECORD = "restored.json"
#: Its maximum size in bytes; an item takes a few hundred.
_LARGEST_RECORD = 1 << 30
_BASE, _NEW = "base", "new"


class NotCarried(msgspec.Struct, frozen=True):
    """A part of the old base that is not restored, or not as it was: the closest finding, the reason, and the item."""

    finding: str
    reason: str
    item: str | None = None
    severity: str = "warning"


class BuiltBase(msgspec.Struct, frozen=True):
    """The record of a base that was built: its id and that of the old base, its items, and the files to copy."""

    base: str
    source: str
    #: The state of the old base (:meth:`repair.cherry_v2.old_base.RestoreSource.mark`).
    mark: str
    items: tuple[ItemCopy, ...]
    #: Files below ``raw/`` of the old base that are copied.
    files: tuple[str, ...]
    #: The number of items with a text, of their units, and of distinct unit texts.
    texts: Count
    units: Count
    bodies: Count
    left: tuple[NotCarried, ...]
    #: The guessed encodings, by file.
    guessed: dict[str, str]
    #: The model of its vectors; "" in records of an earlier release.
    model_id: str = ""

    def folder(self, staged: Path) -> Path:
        """Return the folder of the base in the staging folder ``staged``."""
        return staged / self.mark / _BASE

    def index(self, staged: Path) -> Path:
        """Return the index file of the base in the staging folder ``staged``."""
        return self.folder(staged) / INDEX_FILE


def build_base(source: RestoreSource, base: RestoredBase, staged: Path, now_ms: int, progress: Progress) -> BuiltBase:
    """Build the new base in the folder ``staged``, or return the record of the base that an earlier run built there.

    Args:
        source: the old base.
        base: the new base.
        staged: the staging folder, on the disk of the store; may not exist yet. Its content is kept for the next run.
        now_ms: the run's time in ms.
        progress: notified of every item.

    Raises:
        NotRestored: no item has a text.
        WrongUsage: a library that reads or splits texts is not installed.
        VerificationFailed: the index is not what was written.
        OSError, apsw.Error: the folder cannot be written.
    """
    mark = source.mark()
    built = staged / mark
    if built.is_dir():
        return _read_record(built / _RECORD, mark, source.key, base.base_id(source.key))
    new = staged / _NEW
    durable.remove_tree(new)
    durable.make_folders((new / _BASE / INDEX_FILE).parent, flush=False)
    try:
        builder = _Builder(source, base, new / _BASE, now_ms)
        with stage(progress, tr("Collecting texts"), len(source.items), "items"):
            restored = builder.run(mark, progress)
        _keep_vectors(new / _BASE / INDEX_FILE, staged, base)
        count_missing_vectors(new / _BASE / INDEX_FILE, restored.base)
        durable.put_bytes(new / _RECORD, msgspec.json.encode(document_in_english(msgspec.to_builtins(restored))))
        durable.sync_tree(new)
        durable.replace(new, built)
    finally:
        durable.remove_tree(new)
    return restored


def _read_record(record: Path, mark: str, source: str, base: str) -> BuiltBase:
    """Read the record of a base that an earlier run built, and check that it is about this build.

    Args:
        record: the file.
        mark: the state of the old base.
        source: the id of the old base.
        base: the id of the new base.

    Raises:
        LedgerUnreadable: the record is damaged, or not one that regraft wrote.
    """
    try:
        found = _decode_record(record)
        problem = _record_problem(found, mark, source, base)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LedgerUnreadable(path=record, reason=reason) from error
    if problem is not None:
        raise LedgerUnreadable(path=record, reason=problem)
    return found


def _decode_record(record: Path) -> BuiltBase:
    """Decode the record file of a built base; raises OSError if it is too large or not a regular file."""
    if record.is_symlink() or not record.is_file() or record.stat().st_size > _LARGEST_RECORD:
        raise OSError(errno.EINVAL, tr("it is not a regular file, or is too large"))
    return msgspec.json.decode(links.read_bytes(record), type=BuiltBase)


def _record_problem(record: BuiltBase, mark: str, source: str, base: str) -> str | None:
    """Return why the record of a build is not valid or about another one, or None.

    ``mark`` is the state of the old base, ``source`` its id, ``base`` the id of the new one.
    """
    if (record.mark, record.source, record.base) != (mark, source, base):
        return tr("it belongs to another base")
    paths = (*record.files, *record.guessed, *(item.path for item in record.items if item.path is not None))
    outside = [path for path in paths if find_path_problem(path) is not None]
    if outside:
        return tr("it names {outside!r}, which is not a path below raw/", outside=outside[0])
    if any(one.finding not in FINDINGS for one in record.left):
        return tr("it names an unknown finding")
    return None


def _keep_vectors(index: Path, staged: Path, base: RestoredBase) -> None:
    """Copy vectors that earlier runs paid for, but never published, into the new index file.

    They were made for earlier states of the old base, or for bases of another name with the same model. Unreadable
    files are skipped.
    """
    for earlier in _built_indexes(staged.parent):
        if earlier == index or not (staged in earlier.parents or _model_of(earlier) == base.model_id):
            continue
        with (
            suppress(*sqlite.CONTENT_ERRORS),
            sqlite.open_writable(index) as db,
            sqlite.attach_readonly(db, earlier, "earlier"),
            sqlite.transaction(db),
        ):
            db.execute(
                "INSERT INTO main.embedding (embedding_text_hash, vector_blob, created_at)"
                " SELECT embedding_text_hash, vector_blob, created_at FROM earlier.embedding e"
                " WHERE typeof(vector_blob) = 'blob' AND length(vector_blob) = ? AND typeof(created_at) = 'integer'"
                " AND EXISTS (SELECT 1 FROM main.search_text t WHERE t.embedding_text_hash = e.embedding_text_hash)"
                " ON CONFLICT DO NOTHING",
                (4 * base.dimensions,),
            )


def _built_indexes(restoring: Path) -> list[Path]:
    """Return the index files of all bases below ``restoring``, the staging folder of restores, without linked ones."""
    real = links.real_path(restoring)
    found = sorted(restoring.glob(f"*/*/{_BASE}/{INDEX_FILE}"))
    return [path for path in found if links.real_path(path) == real / path.relative_to(restoring)]


def _model_of(index: Path) -> str | None:
    """Return the model of a built index file from the record beside its base; None if that is unreadable."""
    record = index.parents[2] / _RECORD
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OSError):
        return _decode_record(record).model_id or None
    return None


def paid_dimensions(source: RestoreSource, model_id: str, restoring: Path) -> int | None:
    """Return the dimensions of vectors that an earlier run paid for to restore a base, or None.

    Args:
        source: the old base.
        model_id: the model that it gets.
        restoring: the staging folder of all restores.
    """
    for index in _built_indexes(restoring):
        if _model_of(index) != model_id or _decode_record(index.parents[2] / _RECORD).source != source.key:
            continue
        with suppress(*sqlite.CONTENT_ERRORS), sqlite.open_readonly(index) as db:
            size: Any = db.execute("SELECT length(vector_blob) FROM embedding LIMIT 1").get
            if isinstance(size, int) and size > 0 and size % 4 == 0:
                return size // 4
    return None


def demand_text(source: RestoreSource, base: RestoredBase) -> None:
    """Check that at least one item of a base has a text, without building anything.

    Raises:
        NotRestored: no item has a text.
    """
    with scratch.temporary_folder() as work:
        _Builder(source, base, work, 0).demand_text()


def count_missing_vectors(index: Path, base: str, dimensions: int | None = None) -> int:
    """Audit the index file of the new base with the id ``base``, and count the unit texts without a vector.

    ``dimensions`` are those that vectors must have, if known.

    Raises:
        VerificationFailed: anything else is wrong with it.
    """
    findings = FindingCollector()
    audit_index(index, ExpectedIndex(base=base, folder=base, has_model=True, dimensions=dimensions), findings)
    for finding in findings.to_findings():
        if finding.severity == "error" and finding.name != v2.VECTOR_MISSING:
            raise VerificationFailed(base=base, reason=finding.message)
    return findings.count(v2.VECTOR_MISSING, base)


class _Builder:
    """Builds one new base in a folder. Single use."""

    def __init__(self, source: RestoreSource, base: RestoredBase, folder: Path, now_ms: int) -> None:
        """Prepare the build of the wanted base in ``folder``."""
        self._source = source
        self._base = base.base_id(source.key)
        self._model_id = base.model_id
        self._raw = folder / RAW_FOLDER
        self._index = folder / INDEX_FILE
        self._now = now_ms
        self._settings, _ = read_base_settings(source.row)
        self._names = FreeNames(reserve_processed=not is_blank(source.row.get("file_processor_id")))
        self._paths: set[str] = set()
        self._files: dict[str, None] = {}
        self._left: list[NotCarried] = []
        self._guessed: dict[str, str] = {}

    def run(self, mark: str, progress: Progress) -> BuiltBase:
        """Build the index from the catalog's items and the old index, and return the record of the build.

        ``mark`` is the state of the old base, which the record contains.
        """
        rows: list[Row] = []
        leaf_items: dict[str, RestoredItem] = {}
        with ExitStack() as stack:
            catalog = stack.enter_context(sqlite.open_readonly(self._source.catalog_path))
            old = stack.enter_context(open_old_index(self._source))
            db = stack.enter_context(sqlite.open_writable(self._index, create=True))
            self._reserve_names(catalog)
            index = IndexBuilder(db, self._base, self._now)
            for row, data in self._rows(catalog):
                progress.step(1, 0)
                rows.append(row)
                if row["type"] != "directory":
                    leaf_items[row["id"]] = self._add_item({**row, "data": data}, old, index)
            index.finish()
            bodies: Any = db.execute("SELECT count(DISTINCT embedding_text_hash) FROM search_text").get
            if old.problem is not None:
                message = tr(
                    "its index can be read only in part ({problem}); the missing texts were taken from raw/",
                    problem=old.problem,
                )
                self._left.insert(0, NotCarried(v2.UNREADABLE, message))
        texts = sum(leaf_item.missing is None for leaf_item in leaf_items.values())
        if rows and not texts:
            raise self._without_texts(next((str(leaf_item.missing) for leaf_item in leaf_items.values()), None))
        return BuiltBase(
            base=self._base,
            source=self._source.key,
            mark=mark,
            items=tuple(copy_items(self._base, rows, leaf_items)),
            files=tuple(self._files),
            texts=texts,
            units=index.tallies.units,
            bodies=int(bodies),
            left=tuple(self._left),
            guessed=self._guessed,
            model_id=self._model_id,
        )

    def demand_text(self) -> None:
        """Check that at least one item has a text, without building anything.

        Raises:
            NotRestored: no item has one.
        """
        first, is_empty = None, True
        with sqlite.open_readonly(self._source.catalog_path) as catalog, open_old_index(self._source) as old:
            for row, data in self._rows(catalog):
                is_empty = False
                if row["type"] == "directory":
                    continue
                try:
                    self._text({**row, "data": data}, old)
                except NoText as reason:
                    first = first or str(reason)
                else:
                    return
        if not is_empty:
            raise self._without_texts(first)

    def _without_texts(self, example: str | None) -> NotRestored:
        """Make the error that no item of the base has a text; ``example`` says why one of them has none."""
        first = tr("its folders are empty") if example is None else example
        reason = tr("none of its items has a readable text; for example, {first}", first=first)
        return NotRestored(path=self._source.store.path, base=self._source.key, reason=reason)

    def _reserve_names(self, catalog: apsw.Connection) -> None:
        """Reserve the paths that items of the old base name, so that no new snapshot gets one of them."""
        for (data,) in untrusted_sqlite.read_lenient_rows(
            catalog, ("data",), "knowledge_item WHERE base_id = ?", (self._source.key,)
        ):
            for path in list_paths(parse_item_data({"data": data})):
                self._names.take(replace_surrogates(path))

    def _rows(self, catalog: apsw.Connection) -> Iterator[tuple[Row, Any]]:
        """Yield the item rows that are copied, each with its column ``data``; others are recorded as left out."""
        deleting = 0
        for row in self._source.items:
            if is_being_deleted(row):
                deleting += 1
                continue
            ((data,),) = untrusted_sqlite.read_lenient_rows(
                catalog, ("data",), "knowledge_item WHERE id = ?", (row.get("id"),)
            )
            problem = item_problem({**row, "data": data})
            if problem is None:
                yield row, data
            else:
                self._left.append(
                    NotCarried(
                        v2.ITEM_DATA, tr("an item was not copied: {problem}", problem=problem), str(row.get("id"))
                    )
                )
        if deleting:
            self._left.append(
                NotCarried(v2.MATERIAL_ORPHAN, tr("items that are being deleted were not copied"), severity="note")
            )

    # --- one item ----------------------------------------------------------------------------------------------------

    def _add_item(self, item: Row, old: OldIndex, index: IndexBuilder) -> RestoredItem:
        """Add the text of an item to the new index, and record the raw files to copy and a missing text.

        ``old`` is the index of the old base.
        """
        leaf_item = RestoredItem(
            {key: value for key, value in item.items() if key != "data"}, new_item_id(self._base, item)
        )
        data = parse_item_data(item)
        for raw_path in (data.get("relativePath"), data.get("indexedRelativePath")):
            file = find_raw_file(raw_path, self._source.raw)
            if file is not None and not file_paths.is_link(file):
                self._files[str(raw_path)] = None
        try:
            text, spans = self._text(item, old)
        except NoText as reason:
            leaf_item.missing = str(reason)
            if item.get("status") != "idle":
                self._left.append(NotCarried(v2.ITEM_NO_MATERIAL, leaf_item.missing, leaf_item.id))
            path = get_indexed_path(item)
            if path is not None and (path == item["id"] or find_path_problem(path) is not None):
                leaf_item.path = leaf_item.id
            return leaf_item
        path = self._path(item, leaf_item.id, text)
        leaf_item.path = None if path == get_indexed_path(item) else path
        index.add_units(leaf_item.id, path, text, spans)
        return leaf_item

    def _text(self, item: Row, old: OldIndex) -> tuple[str, list[Span]]:
        """Return the text of an item and its unit spans: from the old index, else from its raw file or its row.

        Raises:
            NoText: the item has none.
        """
        known = old.text(item["id"])
        text, spans = ("", None) if known is None else (known.text, known.spans)
        if known is None or not known.matches_hash:
            try:
                found = read_item_text(item, self._source.raw)
                text, spans = found.text, None
                if found.guessed is not None:
                    self._guessed[str(get_indexed_path(item))] = found.guessed
            except NoText:
                if known is None:
                    raise
        spans = cut_text(text, self._settings) if spans is None else spans
        if not spans:
            raise NoText(BLANK)
        return text, spans

    def _path(self, item: Row, key: str, text: str) -> str:
        """Return the path for the text of an item with the new id ``key``; a missing snapshot is written there."""
        own = get_indexed_path(item)
        if own is not None and (own == item["id"] or find_path_problem(own) is not None or own in self._paths):
            own = None
        if item["type"] == "file":
            path = key if own is None else own
        elif own is not None and find_raw_file(own, self._source.raw) is not None:
            path = own
        else:
            path = self._snapshot(item, text, own)
        self._paths.add(path)
        return path

    def _snapshot(self, item: Row, text: str, path: str | None) -> str:
        """Write the text of a URL or note to a snapshot file and return its path; ``path`` None: choose a free name."""
        snapshot = okf.item_snapshot(item["type"], parse_item_data(item), text)
        path = self._names.take(f"{snapshot.stem}.md") if path is None else path
        file = self._raw / path
        durable.make_folders(file.parent, flush=False)
        durable.put_text(file, snapshot.block(identity.iso_time(self._now)) + text)
        return path
