"""Write a base as a new collection of a Chroma folder: ``regraft export --format chroma`` (``docs/chroma.md``).

chromadb's own core builds the collection in a copy of the database below ``.regraft``. Then chromadb reads every entry
of the copy, and each must be the same: vector bit for bit, document, metadata and id. At the end the segment's folder
and the database take their places, and ``regraft undo`` takes the run back.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import numpy as np

from regraft.disk import durable, file_paths, sqlite, writable
from regraft.errors import (
    ChangesStopped,
    CollectionOfOtherVersion,
    Interrupted,
    RegraftError,
    SourceUnreadable,
    TargetNotWritable,
    UndoRefused,
    WrongUsage,
)
from regraft.formats import json_text
from regraft.formats.chroma import core, database, label_map
from regraft.formats.chroma.database import ChromaProblem
from regraft.formats.chroma.segment import open_segment
from regraft.formats.parquet.export import BaseExport, WrittenCollection, stream_rows
from regraft.formats.parquet.unit_file import UnitRow
from regraft.kinds import Kind
from regraft.language import format_count, tr
from regraft.ledger import ledger as ledgers
from regraft.ledger.ledger import FOLDER
from regraft.ledger.values import WORK
from regraft.report import notices
from regraft.report.progress import Progress, SilentProgress, stage
from regraft.stores import systems
from regraft.text import printable
from repair.changes.files import copy_database
from repair.changes.plan import Action, FileChange, Plan
from repair.changes.run import run_command, undo_run
from repair.changes.session import recover_if_interrupted
from repair.changes.store import Store, open_for_change
from repair.chroma.rebuild import restore_bytes

_ACTION = "write-collection"
#: Names of collections that chromadb accepts.
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{1,510}[a-zA-Z0-9]")
#: How far the length of a vector may be from 1 if Chroma is to compare it by cosine without changing it.
_UNIT_TOLERANCE = 1e-5
#: chromadb's own settings, which the collection gets when it is complete.
_SYNC_THRESHOLD, _BATCH_SIZE = 1000, 100
#: Columns of a unit that become metadata of the entry.
_FIELDS = ("source", "path", "item", "title", "unit_index", "char_start", "char_end")
_MAX_INTEGER = 1 << 63
_STAGED = "CREATE TABLE entry (place INTEGER PRIMARY KEY, id TEXT UNIQUE, document TEXT, metadata TEXT, vector BLOB)"
_PAGE = "SELECT place, id, document, metadata, vector FROM entry WHERE place > ? ORDER BY place LIMIT ?"
#: The vector of an id, as :func:`repair.chroma.rebuild.restore_bytes` takes it: stored as it is, with length 1.
_AS_GIVEN = "SELECT vector, vector, X'0000803F' FROM entry WHERE id = ?"


def write_collection(
    target: Path,
    part: BaseExport,
    name: str,
    distance: str | None,
    command: str,
    progress: Progress,
    *,
    dry_run: bool = False,
) -> WrittenCollection:
    """Write the rows of a base that have a vector to a new collection; the counts of ``part`` are updated.

    Args:
        target: a folder of Chroma, an empty folder, or a new one.
        part: the base, whose source is open.
        name: name of the collection, which must not exist.
        distance: "l2", "cosine" or "ip". None: cosine if all vectors have length 1, else l2.
        command: the command that the ledger of the folder records.
        progress: receives the rows that are read, and those that are written and compared.
        dry_run: read and check everything, and write nothing.

    Raises:
        WrongUsage: the target, the name or the distance cannot be used, or chromadb is not installed.
        CollectionOfOtherVersion, CollectionRefused: chromadb failed, or an entry that it reads back differs.
        RegraftError: as for every command that changes a store.
    """
    if not _NAME.fullmatch(name):
        problem = tr("{name!r} cannot be the name of a collection", name=name)
        raise WrongUsage(problem=problem, hint=tr("use 3 to 512 letters, digits, dots, hyphens and underscores"))
    if not part.vector_bytes:
        problem = tr("{name} has no vectors", name=part.metadata.name)
        raise WrongUsage(problem=problem, hint=tr("embed its texts first, with regraft backfill"))
    job = _Job(part, name, distance, core.demand_chromadb(), progress)
    if dry_run:
        job.check_target(target)
        job.count_rows()
        return WrittenCollection(name=name, distance=job.distance, entries=part.rows, undo=None)
    with _open_target(target, job.version, command):
        try:
            report = run_command(command, target, job.plan, kind=Kind.CHROMA, progress=SilentProgress())
        except (ChangesStopped, Interrupted) as stopped:
            if stopped.facts.get("finished"):
                with suppress(RegraftError):
                    _undo_unfinished(target, command)
            raise
    return WrittenCollection(name=name, distance=job.distance, entries=part.rows, undo=report.undo)


@contextmanager
def _open_target(target: Path, version: str, command: str) -> Iterator[None]:
    """Context that prepares the folder ``target`` for a new collection.

    A new or empty folder gets an empty database of Chroma, which is removed again if the block fails. In a folder of
    Chroma, what a killed run has left is undone first.

    Args:
        target: the folder.
        version: the installed version of chromadb.
        command: the command that the ledger records.

    Raises:
        WrongUsage: the path is something else.
        CollectionRefused: chromadb cannot write there.
    """
    if _is_chroma_folder(target):
        _undo_unfinished(target, command)
        yield
        return
    is_there = file_paths.exists(target)
    first = target.absolute()
    while not is_there and not file_paths.exists(first.parent):
        first = first.parent
    work = target / FOLDER / WORK
    with writable.allow_writes(target):
        try:
            with core.reporting_refusals(target, version):
                _make_work_folder(target, work)
                core.run_in_child(_make_empty, work / "new")
                durable.replace(work / "new" / database.FILE, target / database.FILE)
                durable.remove_tree(work)
            yield
        except BaseException:
            with suppress(OSError):
                if is_there:
                    durable.remove_tree(target / FOLDER)
                    durable.remove(target / database.FILE, missing_ok=True)
                else:
                    durable.remove_made_folders(target, first)
            raise


def _undo_unfinished(target: Path, command: str) -> None:
    """Undo runs that were stopped when their segment was in the folder, but not the database that refers to it."""
    with open_for_change(target, Kind.CHROMA, command) as store:
        recover_if_interrupted(store)
        runs = store.runs(ledgers.read_runs(store.root))
    for run in runs:
        paths = {change.path for change in run.changes if change.state == "done"}
        if paths and database.FILE not in paths and any(one.action == _ACTION for one in run.actions):
            # A segment that was changed since stays.
            with suppress(UndoRefused):
                undo_run(target, run.run_id, kind=Kind.CHROMA, progress=SilentProgress())


def _is_chroma_folder(target: Path) -> bool:
    """Whether the target is a folder of Chroma already.

    Raises:
        WrongUsage: it is neither that, nor new or empty.
    """
    if systems.system_of(Kind.CHROMA).store_at(target) is not None:
        return True
    if file_paths.exists(target) and (not file_paths.is_folder(target) or set(file_paths.names_in(target)) - {FOLDER}):
        problem = tr("{path} is neither empty nor a folder of Chroma", path=target)
        raise WrongUsage(problem=problem, hint=tr("give a new folder, or one that contains {file}", file=database.FILE))
    return False


def _make_work_folder(target: Path, work: Path) -> None:
    """Create the folder ``work``; an error names the target."""
    try:
        durable.make_folders(work)
    except OSError as error:
        raise TargetNotWritable(path=target, reason=error.strerror or error) from error


class _Job:
    """Builds one collection. Single use.

    Args:
        part: the base whose rows are written.
        name: the name of the collection.
        distance: the distance that the user chose, or None.
        version: the installed version of chromadb.
        progress: receives the rows that are read, and those that are written and compared.
    """

    def __init__(self, part: BaseExport, name: str, distance: str | None, version: str, progress: Progress) -> None:
        self.part, self.name, self.version = part, name, version
        #: The distance that the user chose; "" as long as none is chosen.
        self.distance = distance or ""
        self._progress = progress
        #: Number of vectors whose length is not 1.
        self._odd = 0
        #: Id of the vector segment, which is chosen here, because a plan names the paths that change.
        self._segment = str(uuid.uuid4())
        self._root = Path()
        self._place = Path()

    def plan(self, store: Store) -> Plan:
        """Plan the two changes: the folder of the segment, and the database that refers to it.

        Raises:
            WrongUsage: the collection exists.
            SourceUnreadable: the database cannot be read.
        """
        self._root = store.root
        path = store.root / database.FILE
        self._check_names(store.root)
        summary = self.part.summary
        rows = 0 if summary is None else summary.bodies
        message = tr("write {entries} to the collection {name}", entries=format_count(rows, "entry"), name=self.name)
        action = Action(action=_ACTION, message=message, subject=self.name, count=rows)
        size = path.stat().st_size + 4 * rows * (self.part.vector_bytes or 0)
        plan = Plan()
        plan.changes = [
            FileChange(path=self._segment, actions=(action,), make=self._build, bytes=size),
            FileChange(
                path=database.FILE,
                actions=(),
                make=lambda new: durable.replace(self._place / "built" / database.FILE, new),
            ),
        ]
        return plan

    def _check_names(self, root: Path) -> bool:
        """Refuse the name of a collection that exists. Returns whether a version from 1.0 on has opened the folder."""
        path = root / database.FILE
        try:
            with database.open_chroma(path) as db:
                names, is_older = database.list_collection_names(db), database.stores_numbers_as_bytes(db)
        except ChromaProblem as error:
            raise SourceUnreadable(path=path, reason=error) from error
        if self.name in names:
            problem = tr("{path} has a collection {name} already", path=root, name=self.name)
            raise WrongUsage(problem=problem, hint=tr("give another name with --collection"))
        return not is_older

    def check_target(self, target: Path) -> None:
        """Refuse a target that a run would refuse, as far as that can be known without writing.

        Raises:
            WrongUsage, SourceUnreadable: as for :func:`write_collection`.
            CollectionOfOtherVersion: only versions before 1.0 have opened the folder.
        """
        if _is_chroma_folder(target) and not self._check_names(target):
            reason = tr("only versions before 1.0 have opened it")
            raise CollectionOfOtherVersion(path=target, version=self.version, reason=reason)

    def count_rows(self) -> None:
        """Read all rows, count those that Chroma accepts, and choose the distance."""
        for _ in self._usable_rows():
            pass
        self._choose_distance()

    def _build(self, new: Path) -> None:
        """Build and verify the collection in the work folder of the run, and move its segment's folder to ``new``."""
        # Below the run's work folder, which is removed at the end.
        self._place = place = new.with_name("collection.build")
        built, staged = place / "built", place / "staged.sqlite"
        durable.make_folders(built, flush=False)
        count = self._stage(staged)
        copy_database(self._root / database.FILE, built / database.FILE)
        with core.reporting_refusals(self._root, self.version):
            with stage(self._progress, "Writing", count, "texts"):
                core.run_in_child(
                    _add_entries, built, staged, self.name, self.distance, self.part.metadata.model, count
                )
                self._finish_segment(built, staged)
                self._progress.step(count, 0)
            with stage(self._progress, "Comparing", count, "texts"):
                core.run_in_child(_compare_entries, built, staged, self.name, count)
                self._progress.step(count, 0)
        durable.replace(built / self._segment, new)

    def _stage(self, staged: Path) -> int:
        """Write the entries to the temporary file ``staged`` for the child process, and return their number.

        Raises:
            WrongUsage: the base has no entries, or not all vectors have length 1 and the distance is cosine.
        """
        with sqlite.open_writable(staged, create=True) as db:
            db.execute("PRAGMA journal_mode = OFF").fetchall()
            db.execute(_STAGED)
            with sqlite.transaction(db):
                for row in self._usable_rows():
                    _insert(db, self.part.rows, *make_entry(row, self.part.rows), row.vector)
        self._choose_distance()
        return self.part.rows

    def _usable_rows(self) -> Iterator[UnitRow]:
        """Yield the rows of the base whose vector Chroma accepts, and count accepted and skipped rows."""
        part = self.part
        total = 0 if part.summary is None else part.summary.bodies
        with stage(self._progress, "Reading", total, "texts"):
            self._progress.at(part.metadata.name)
            for row in stream_rows(part):
                self._progress.step(1, len(row.vector or b""))
                numbers = np.frombuffer(row.vector or b"", dtype="<f4").astype(np.float64)
                norm = float(np.linalg.norm(numbers))
                if row.vector is None or not math.isfinite(norm):
                    reason = notices.MISSING_PAYLOAD if row.vector is None else notices.NON_FINITE
                    assert part.summary is not None
                    part.summary.skipped[reason] = part.summary.skipped.get(reason, 0) + 1
                    continue
                self._odd += abs(norm - 1) > _UNIT_TOLERANCE
                part.rows += 1
                part.vectors += 1
                yield row

    def _choose_distance(self) -> None:
        """Choose the distance, if the user did not.

        Raises:
            WrongUsage: there are no vectors, or Chroma would change one.
        """
        part, odd = self.part, self._odd
        if not part.rows:
            problem = tr("{name} has no vector that Chroma accepts", name=part.metadata.name)
            raise WrongUsage(problem=problem, hint=tr("embed its texts first, with regraft backfill"))
        self.distance = self.distance or ("l2" if odd else "cosine")
        if odd and self.distance == "cosine":
            problem = tr(
                "Chroma would change {vectors} of {name}, because the distance cosine needs length 1",
                vectors=format_count(odd, "vector"),
                name=part.metadata.name,
            )
            raise WrongUsage(problem=problem, hint=tr("use --distance l2 or --distance ip"))

    def _finish_segment(self, built: Path, staged: Path) -> None:
        """Give the new segment its planned id, and with cosine distance each element the unchanged bytes of its vector.

        ``built`` is the copy of Chroma's folder, ``staged`` the file with the entries.
        """
        with sqlite.open_writable(built / database.FILE) as db:
            of = database.find_collection(db, self.name)
            old = "" if of is None or of.vectors is None else of.vectors
            with sqlite.transaction(db):
                db.execute("UPDATE segments SET id = ? WHERE id = ?", (self._segment, old))
                for table in ("segment_metadata", "max_seq_id"):
                    db.execute(f"UPDATE {table} SET segment_id = ? WHERE segment_id = ?", (self._segment, old))
        folder = built / self._segment
        durable.replace(built / old, folder)
        if self.distance == "cosine":
            # Chroma would normalize each vector once more, and return other last bits.
            _, labels = label_map.read_labels(folder / label_map.FILE)
            ids = {label: key for key, label in labels}
            with sqlite.open_readonly(staged) as db:
                restore_bytes(folder, open_segment(folder, None), ids, db, _AS_GIVEN, is_cosine=True)


def _insert(
    db: apsw.Connection, place: int, key: str, document: str | None, metadata: dict[str, Any], vector: bytes | None
) -> None:
    """Write an entry to the staging file. An id that is taken gets a number appended, because ids of Chroma are unique.

    Args:
        db: the staging file.
        place: the position of the entry in the order of rows.
        key: the id.
        document: the text.
        metadata: the fields.
        vector: float32 numbers, little-endian.
    """
    text = json.dumps(metadata, ensure_ascii=False) if metadata else None
    unique, number = key, 1
    while db.execute("SELECT 1 FROM entry WHERE id = ?", (unique,)).get is not None:
        number += 1
        unique = f"{key}#{number}"
    db.execute("INSERT INTO entry VALUES (?, ?, ?, ?, ?)", (place, unique, document, text, vector))


# --- entries ---------------------------------------------------------------------------------------------------------


def make_entry(row: UnitRow, place: int) -> tuple[str, str | None, dict[str, Any]]:
    """Return id, document and metadata of the entry for a unit; ``place`` is its position in the order of rows.

    A unit that was an entry of Chroma before gets its own id and metadata back; of any other unit, its source, its item
    and its offsets become metadata.
    """
    text = row.text if isinstance(row.text, str | None) else bytes(row.text).decode("utf-8", "replace")
    locator = json_text.load_object(row.locator_json)
    key = locator.get("chroma_id")
    if isinstance(key, str) and key:
        metadata = locator.get("metadata")
        known = metadata if isinstance(metadata, dict) else {}
        document = None if locator.get("has_document") is False else text
        return (
            key,
            document,
            {name: _to_metadata_value(one) for name, one in known.items() if _is_accepted_field(name, one)},
        )
    values = {name: getattr(row, name) for name in _FIELDS} | {"locator": row.locator_json}
    values = {name: _to_metadata_value(one) for name, one in values.items() if _is_accepted_field(name, one)}
    unit = row.unit_id if isinstance(row.unit_id, str) and row.unit_id else f"{row.item or row.base}:{place}"
    return unit, text, values


def _is_accepted_field(name: str, value: Any) -> bool:
    """Whether Chroma accepts a metadata field of this name and value."""
    # Chroma reserves its own prefix, and has no null.
    return bool(name) and not name.startswith("chroma:") and value is not None


def _to_metadata_value(value: Any) -> Any:
    """Return the value if Chroma stores it without changing it, else its JSON."""
    if isinstance(value, bool | str):
        return value
    if isinstance(value, int) and -_MAX_INTEGER <= value < _MAX_INTEGER:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, list) and len({type(one) for one in value}) == 1 and value == _to_metadata_values(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def _to_metadata_values(values: list[Any]) -> list[Any]:
    """Convert the elements of a metadata list as single values; nested lists and objects become None."""
    return [None if isinstance(one, list | dict | None) else _to_metadata_value(one) for one in values]


# --- the child process -----------------------------------------------------------------------------------------------


def _make_empty(folder: Path) -> None:
    """Create an empty database of Chroma in a new folder, in the child process."""
    durable.make_folders(folder, flush=False)
    core.open_client(folder)


def _add_entries(folder: Path, staged: Path, name: str, distance: str, model: str | None, count: int) -> None:
    """Create a collection in a copy of Chroma's folder and add the staged entries, in the child process.

    Args:
        folder: the copy.
        staged: the file with the entries.
        name: the name of the collection.
        distance: "l2", "cosine" or "ip".
        model: the model of the vectors, which is recorded; None: unknown.
        count: the number of entries.
    """
    client = core.open_client(folder)
    # Chroma writes a segment when as many operations have come as the threshold says: with the last one.
    settings = {"space": distance, "sync_threshold": count + 1, "batch_size": 2}
    metadata = None if model is None else {database.MODEL_KEY: model}
    collection = client.create_collection(
        name, embedding_function=None, metadata=metadata, configuration={"hnsw": settings}
    )
    last: tuple[list[str], Any] = [], None
    for ids, documents, metadatas, vectors in _pages(staged):
        collection.add(ids=ids, embeddings=vectors, documents=documents, metadatas=metadatas)
        last = ids[-1:], vectors[-1:]
    collection.upsert(ids=last[0], embeddings=last[1])
    collection.modify(configuration={"hnsw": {"sync_threshold": _SYNC_THRESHOLD, "batch_size": _BATCH_SIZE}})


def _pages(staged: Path) -> Iterator[tuple[list[str], list[str | None], list[Any], Any]]:
    """Yield batches of the staged entries in their order: ids, documents, metadata, and an array of vectors."""
    with sqlite.open_readonly(staged) as db:
        last = 0
        while rows := db.execute(_PAGE, (last, core.PAGE_SIZE)).fetchall():
            last = int(str(rows[-1][0]))
            vectors = np.array([np.frombuffer(row[4], dtype="<f4") for row in rows])  # type: ignore[arg-type]
            documents = [None if row[2] is None else str(row[2]) for row in rows]
            metadatas = [None if row[3] is None else json_text.loads(str(row[3])) for row in rows]
            yield [str(row[1]) for row in rows], documents, metadatas, vectors


def _compare_entries(folder: Path, staged: Path, name: str, count: int) -> None:
    """Read the ``count`` entries of the collection ``name`` with Chroma's API; raises if one is not as it was staged.

    ``folder`` is the copy of Chroma's folder, ``staged`` the file with the entries.
    """
    collection = core.open_client(folder).get_collection(name, embedding_function=None)
    if collection.count() != count:
        raise ValueError(tr("the collection has {found:,} of {count:,} entries", found=collection.count(), count=count))
    for ids, documents, metadatas, vectors in _pages(staged):
        got = collection.get(ids=ids, include=["embeddings", "documents", "metadatas"])
        rows = zip(got["documents"], got["metadatas"], got["embeddings"], strict=True)
        found = dict(zip(got["ids"], rows, strict=True))
        for key, document, metadata, vector in zip(ids, documents, metadatas, vectors, strict=True):
            is_same = key in found and (document, _encode_typed(metadata)) == (
                found[key][0],
                _encode_typed(found[key][1]),
            )
            if not is_same or np.asarray(found[key][2], dtype="<f4").tobytes() != vector.tobytes():
                raise ValueError(tr("the entry {id} reads back differently", id=printable(key)))


def _encode_typed(metadata: Any) -> str:
    """Encode metadata for a comparison in which 1, 1.0 and True differ."""
    return json.dumps(dict(metadata) if metadata else None, sort_keys=True)
