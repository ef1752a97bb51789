"""Audit a folder of Chroma without writing (``docs/findings.md``, "Chroma")."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

import apsw
import msgspec
import numpy as np

from checks.audit import sqlite_checks
from checks.audit.collector import CheckOptions, CommandLine, FindingCollector, Level, Step, add_commands
from checks.audit.findings import Audit
from checks.chroma import findings as chroma
from regraft.disk import durable, file_paths, scratch, sqlite, untrusted_sqlite
from regraft.errors import LinkInStore
from regraft.formats.chroma import core, database, layouts
from regraft.formats.chroma.collection import CollectionState, Origin, open_collection
from regraft.formats.chroma.core import ChromaFailed
from regraft.formats.chroma.database import ChromaCollection, is_segment_name, list_segment_folders
from regraft.formats.vector_checks import LARGEST_NORM
from regraft.language import format_count, tr
from regraft.stores.locate import Located

#: Tables that Chroma writes.
TABLES = (
    "collections",
    "collection_metadata",
    "segments",
    "segment_metadata",
    "embeddings",
    "embedding_metadata",
    "embeddings_queue",
    "max_seq_id",
)
#: SQL: values that Chroma does not read, in a column (``{0}``).
_NO_TEXT, _NO_TEXT_OR_NULL = "typeof({0}) <> 'text'", "typeof({0}) NOT IN ('text', 'null')"
_NO_INTEGER_OR_NULL, _NO_REAL_OR_NULL = "typeof({0}) NOT IN ('integer', 'null')", "typeof({0}) NOT IN ('real', 'null')"
#: Earlier versions write NaN and Infinity, which only JSON5 has (2).
_NO_JSON = "json_valid({0}, 1 | 2) = 0"
_NO_TIME = "unixepoch({0}) IS NULL"
_OF_SETTING = {
    "key": _NO_TEXT,
    "str_value": _NO_TEXT_OR_NULL,
    "int_value": _NO_INTEGER_OR_NULL,
    "float_value": _NO_REAL_OR_NULL,
}
#: SQL: values that Chroma does not read, by table and column; it fails at the first row with one.
_UNREAD = {
    "collections": {
        "id": _NO_TEXT,
        "name": _NO_TEXT,
        "dimension": _NO_INTEGER_OR_NULL,
        "config_json_str": _NO_JSON,
    },
    "collection_metadata": _OF_SETTING,
    "segments": {"id": _NO_TEXT, "type": _NO_TEXT, "scope": _NO_TEXT, "collection": _NO_TEXT},
    "segment_metadata": _OF_SETTING,
    "embeddings": {"segment_id": _NO_TEXT, "embedding_id": _NO_TEXT},
    "embedding_metadata": {
        "key": _NO_TEXT,
        "string_value": _NO_TEXT_OR_NULL,
        "int_value": _NO_INTEGER_OR_NULL,
        "float_value": _NO_REAL_OR_NULL,
        "bool_value": _NO_INTEGER_OR_NULL,
    },
    "embeddings_queue": {
        "topic": _NO_TEXT,
        "id": _NO_TEXT,
        "encoding": _NO_TEXT_OR_NULL,
        "metadata": f"{_NO_TEXT_OR_NULL} OR {_NO_JSON}",
        # Versions from 1.0 on skip the operation.
        "created_at": _NO_TIME,
    },
}
#: A norm is an outlier if it differs from the median by more than this factor.
_OUTLIER = 10
#: With fewer vectors, no norm is typical.
_MIN_VECTORS = 20
#: How many times the sync threshold may wait in the queue.
_MAX_WAITING = 2


class _StoreAudit(msgspec.Struct):
    """State of the audit of one folder."""

    root: Path
    findings: FindingCollector
    db: apsw.Connection
    checked: dict[str, int]


def audit(store: Located, options: CheckOptions, command_line: CommandLine | None = None) -> Audit:
    """Audit a folder of Chroma without writing. The data never makes this raise.

    Args:
        store: a store of the kind ``chroma``.
        options: level, time limit, and ids of the collections to check.
        command_line: makes the command lines that fix findings; None: findings get no command.
    """
    findings = FindingCollector(options.level, options.max_duration, names=options.names)
    checked = dict.fromkeys(("collections", "entries", "vectors", "bytes"), 0)
    names: dict[str, str] = {}
    path = store.tree.path / database.FILE
    try:
        checked["bytes"] = path.stat().st_size
        with database.open_chroma(path) as db, findings.limit_statements(db, checked["bytes"]):
            collections = database.list_collections(db)
            names = {one.id: one.name for one in collections}
            state = _StoreAudit(root=store.tree.path, findings=findings, db=db, checked=checked)
            wanted = [one for one in collections if not options.bases or one.id in options.bases]
            steps = list(_choose_steps(state, collections, wanted))
            findings.run_parts(
                steps,
                options.progress,
                chroma.UNREADABLE,
                lambda name, error: tr("{name} cannot be checked: {error}", name=name, error=error),
            )
    except (apsw.Error, OSError, ValueError) as error:
        findings.add(chroma.UNREADABLE, tr("{name} cannot be used: {error}", name=database.FILE, error=error))
    closing = findings.closing(tr("texts and vectors"), tr("all pages of the database and the recall of its index"))
    return add_commands(findings.to_audit(checked=checked, names=names, closing=closing), command_line)


def _choose_steps(
    state: _StoreAudit, collections: list[ChromaCollection], wanted: list[ChromaCollection]
) -> Iterator[Step]:
    """Yield the checks that the level of the audit includes: name, id of the collection or None, and function.

    ``wanted`` are the collections to check, ``collections`` all of the folder.
    """
    yield "segments", None, partial(_check_segments, state, collections, wanted)
    yield "queue", None, partial(_check_queue, state, collections)
    yield "application", None, partial(_check_application, state, collections, wanted)
    if state.findings.level >= Level.DEFAULT:
        yield "full text", None, partial(_check_full_text, state)
        yield "sequence numbers", None, partial(_check_sequence_numbers, state)
        yield "types", None, partial(_check_types, state)
    if state.findings.level is Level.DEEP:
        yield database.FILE, None, partial(_check_integrity, state)
    for one in wanted:
        state.checked["collections"] += 1
        yield one.name, one.id, partial(_check_collection, state, one)
    if state.findings.level is Level.DEEP and state.findings.may_report(chroma.RECALL):
        yield "recall", None, partial(_check_recall, state, wanted)


# --- the folder and its database -------------------------------------------------------------------------------------


def orphan_folders(db: apsw.Connection, root: Path) -> list[str]:
    """Return the names of folders with files of a vector segment that the database does not list."""
    rows = {str(name) for (name,) in db.execute("SELECT CAST(id AS TEXT) FROM segments")}
    return [name for name in list_segment_folders(root) if name not in rows and has_only_segment_files(root / name)]


def has_only_segment_files(folder: Path) -> bool:
    """Whether a folder has only files of a vector segment of Chroma, so that nothing else is lost with it.

    Some of the segment's files may be missing. False for a link.
    """
    if file_paths.is_link(folder):
        return False
    names = {path.name for path in folder.iterdir()}
    return names <= {"header.bin", "data_level0.bin", "length.bin", "link_lists.bin", "index_metadata.pickle"}


def _check_segments(state: _StoreAudit, collections: list[ChromaCollection], wanted: list[ChromaCollection]) -> None:
    """Report foreign schema objects, segments without a collection, and collections without a segment.

    ``wanted`` are the collections to check, ``collections`` all of the folder.
    """
    foreign = sqlite_checks.find_foreign_on_tables(state.db, TABLES)
    sqlite_checks.add_foreign_objects(foreign, state.findings, None)
    known = {one.id for one in collections}
    for name in orphan_folders(state.db, state.root):
        message = tr("{n} of segments that no row refers to")
        state.findings.add(chroma.SEGMENT_ORPHAN, message, noun="folder", sample=name)
    for key, collection in state.db.execute("SELECT CAST(id AS TEXT), CAST(collection AS TEXT) FROM segments"):
        if str(collection) not in known:
            message = tr("{n} of segments without a collection")
            state.findings.add(chroma.SEGMENT_ORPHAN, message, noun="row", sample=key, is_beyond_repair=True)
    for one in wanted:
        for scope, key in (("VECTOR", one.vectors), ("METADATA", one.metadata)):
            if key is None:
                message = tr("it has no {scope} segment of its own", scope=scope)
                state.findings.add(chroma.COLLECTION_INCOMPLETE, message, base=one.id)
        if not is_segment_name(one.vectors or "0"):
            message = tr("the id of its VECTOR segment is not the name of a folder")
            state.findings.add(chroma.COLLECTION_INCOMPLETE, message, base=one.id, sample=one.vectors)


def _check_queue(state: _StoreAudit, collections: list[ChromaCollection]) -> None:
    """Report operations in Chroma's queue that are of no collection, or not valid."""
    known = {one.id for one in collections}
    query = f"SELECT {database.TOPIC_COLLECTION}, count(*) FROM embeddings_queue GROUP BY 1"
    for collection, count in state.db.execute(query):
        if str(collection) not in known:
            message = tr("{n} in the queue of a collection that does not exist")
            state.findings.add(chroma.QUEUE_ORPHAN, message, noun="operation", sample=collection, count=int(str(count)))
    invalid = f"SELECT count(*) FROM embeddings_queue WHERE {database.INVALID_OPERATION}"
    number = int(str(state.db.execute(invalid).get))
    if number:
        message = tr("{n} in the queue with a number or code that Chroma never writes")
        state.findings.add(chroma.UNREADABLE, message, noun="operation", sample=database.FILE, count=number)


def _check_application(state: _StoreAudit, collections: list[ChromaCollection], wanted: list[ChromaCollection]) -> None:
    """Report collections that Open WebUI does not refer to, and its bases without one, if its database is there.

    ``wanted`` are the collections to check, ``collections`` all of the folder.
    """
    layout = layouts.read_layout(state.root, collections)
    if layout.problem is not None:
        message = tr("{name} cannot be used: {error}", name=layouts.OPEN_WEBUI_DATABASE, error=layout.problem)
        state.findings.add(chroma.UNREADABLE, message, sample=layouts.OPEN_WEBUI_DATABASE)
    for one in wanted:
        if one.id in layout.unreferenced:
            message = tr("Open WebUI has no row for it")
            state.findings.add(chroma.COLLECTION_ORPHAN, message, base=one.id, sample=one.name)
    for title in layout.without_collection:
        message = tr("{n} of Open WebUI without a collection")
        state.findings.add(chroma.COLLECTION_MISSING, message, noun="knowledge base", sample=title)


def _check_full_text(state: _StoreAudit) -> None:
    """Report a damaged full-text index."""
    problem = database.find_full_text_damage(state.db)
    if problem is not None:
        message = tr("the full-text index of {name} is damaged: {problem}", name=database.FILE, problem=problem)
        state.findings.add(chroma.FULL_TEXT, message, sample=database.FILE)


def count_sequence_numbers(db: apsw.Connection) -> tuple[int, int]:
    """Return how many sequence numbers are stored as bytes, and how many as integers."""
    query = """SELECT total(typeof(seq_id) = 'blob' AND length(seq_id) = 8 AND seq_id < x'80'),
                      total(typeof(seq_id) = 'integer' AND seq_id >= 0) FROM
               (SELECT seq_id FROM embeddings UNION ALL SELECT seq_id FROM max_seq_id)"""
    row: Any = db.execute(query).fetchone()
    return int(row[0]), int(row[1])


def _check_sequence_numbers(state: _StoreAudit) -> None:
    """Report a database that stores some sequence numbers as bytes and others as integers."""
    as_bytes, as_integers = count_sequence_numbers(state.db)
    if as_bytes and as_integers:
        message = tr(
            "{bytes_:,} sequence numbers are stored as bytes, and {integers:,} as integers",
            bytes_=as_bytes,
            integers=as_integers,
        )
        state.findings.add(chroma.SEQ_ID_MIXED, message, sample=database.FILE)


def _check_types(state: _StoreAudit) -> None:
    """Report rows with values of a type that Chroma does not read, so that it cannot open the collection."""
    for table, unread in _UNREAD.items():
        existing = database.column_names(state.db, table)
        others = [condition.format(column) for column, condition in unread.items() if column in existing]
        found = state.db.execute(f"SELECT count(*) FROM {table} WHERE {' OR '.join(others)}").get if others else 0
        if found:
            message = tr("{{n}} of the table {table} with a value that Chroma does not read", table=table)
            state.findings.add(chroma.UNREADABLE, message, noun="row", sample=database.FILE, count=int(str(found)))


def _check_integrity(state: _StoreAudit) -> None:
    """Run SQLite's integrity check over each table. A damaged full-text index is left out: it has its own finding."""
    has_damaged_text = database.find_full_text_damage(state.db) is not None
    tables = state.db.execute("SELECT CAST(name AS TEXT) FROM sqlite_schema WHERE type = 'table'").fetchall()
    for (table,) in tables:
        if has_damaged_text and str(table).startswith(database.FULL_TEXT_TABLE):
            continue
        quoted = untrusted_sqlite.quote_name(str(table))
        for (message,) in state.db.execute(f"PRAGMA integrity_check({quoted})"):
            if message != "ok":
                text = tr("{name} is damaged: {{n}}", name=database.FILE)
                state.findings.add(chroma.UNREADABLE, text, noun="complaint", sample=message)


# --- collections -----------------------------------------------------------------------------------------------------


def _check_collection(state: _StoreAudit, row: ChromaCollection) -> None:
    """Check one collection, given by its row of the database: dimensions, files, ids and vectors."""
    with open_collection(state.db, row, state.root) as collection:
        state.checked["entries"] += collection.count("entry")
        if row.distance is None:
            message = tr("its distance is none that Chroma has")
            state.findings.add(chroma.COLLECTION_INCOMPLETE, message, base=row.id)
        if row.dimension is not None and collection.dimension != row.dimension:
            message = tr(
                "its row says {stated} dimensions, and its vectors have {found}",
                stated=row.dimension,
                found=collection.dimension,
            )
            state.findings.add(chroma.DIMENSION_WRONG, message, base=row.id)
        _check_files(state, collection)
        _check_ids(state, collection)
        if state.findings.level >= Level.DEFAULT:
            _check_vectors(state, collection)


def _check_files(state: _StoreAudit, collection: CollectionState) -> None:
    """Report damage of the files of a collection's vector segment."""
    add, base = state.findings.add, collection.of.id
    if collection.segment_problem is not None:
        message = tr("its vector segment cannot be used: {problem}", problem=collection.segment_problem)
        add(chroma.SEGMENT_MISSING, message, base=base, sample=collection.of.vectors)
    segment = collection.segment
    if segment is None:
        return
    state.checked["bytes"] += sum(path.lstat().st_size for path in segment.folder.iterdir())
    for problem in segment.problems:
        add(chroma.HEADER, problem, base=base, sample=segment.folder.name)
    if collection.label_problem is not None:
        is_hostile = collection.has_foreign_labels
        name = chroma.LABELS_HOSTILE if is_hostile else chroma.LABELS_MISSING
        message = tr("its label map cannot be used: {problem}", problem=collection.label_problem)
        add(name, message, base=base, sample=segment.folder.name)
    without_length = collection.count_without_length()
    if without_length:
        message = tr("{name} lacks {{n}}", name="length.bin")
        add(chroma.NORMS, message, base=base, noun="norm", count=without_length)
    damage = None if segment.is_derived else segment.find_upper_damage()
    if damage is not None:
        add(chroma.GRAPH, tr("{name}: {damage}", name="link_lists.bin", damage=damage), base=base)
    if collection.bad_links and not segment.is_derived:
        message = tr("{n} with links to elements that do not exist")
        add(chroma.GRAPH, message, base=base, noun="element", count=collection.bad_links)


def _check_ids(state: _StoreAudit, collection: CollectionState) -> None:
    """Report ids that have a vector and no entry, or an entry and no vector, and a queue that is too long."""
    findings, base = state.findings, collection.of.id
    for name, message, ids in (
        (chroma.VECTOR_MISSING, tr("{n} without a vector"), collection.missing_ids()),
        (chroma.VECTOR_ORPHAN, tr("{n} with a vector, and without text or metadata"), collection.orphan_ids()),
        (
            chroma.LABELS_INCONSISTENT,
            tr("{n} with a contradictory entry in the label map"),
            collection.contradicting_ids(),
        ),
        (
            chroma.QUEUE_UNAPPLIED,
            tr("{n} whose vector is in the queue only, although the segment should have it"),
            collection.ids_of(Origin.RECOVERED),
        ),
    ):
        for key in ids:
            findings.add(name, message, base=base, noun="id", sample=key)
    waiting = collection.count_waiting()
    if waiting > _MAX_WAITING * collection.of.sync_threshold:
        message = tr(
            "{waiting} wait in the queue; Chroma writes the segment after {threshold:,}",
            waiting=format_count(waiting, "operation"),
            threshold=collection.of.sync_threshold,
        )
        findings.add(chroma.QUEUE_BEHIND, message, base=base)


# --- vectors ---------------------------------------------------------------------------------------------------------


def _check_vectors(state: _StoreAudit, collection: CollectionState) -> None:
    """Read every vector of a collection; report wrong lengths, unusable numbers, odd norms, and shared vectors."""
    dimension = collection.dimension
    if dimension is None:
        return
    with sqlite.open_scratch() as scratch:
        scratch.execute("CREATE TABLE vector (digest BLOB, id TEXT, norm REAL)")
        with sqlite.transaction(scratch):
            for ids, vectors in _vector_blocks(state, collection, dimension):
                state.findings.check_time()
                _check_block(state, collection, ids, vectors, scratch)
                state.checked["vectors"] += len(ids)
        _check_norms(state, collection, scratch)
        _check_shared(state, collection, scratch)


def _vector_blocks(state: _StoreAudit, collection: CollectionState, dimension: int) -> Iterator[tuple[list[str], Any]]:
    """Yield the vectors of a collection that have ``dimension`` numbers: ids, and a matrix. Report the others."""
    for block in collection.segment_blocks():
        yield block.read_ids(), block.vectors
    for key, _, raw in collection.queued_vectors():
        if len(raw) == 4 * dimension:
            yield [key], np.frombuffer(raw, dtype="<f4").reshape(1, -1)
        else:
            message = tr(
                "{{n}} of another length than the {dimension} dimensions of the collection", dimension=dimension
            )
            state.findings.add(chroma.DIMENSION, message, base=collection.of.id, noun="vector", sample=key)


def _check_block(
    state: _StoreAudit, collection: CollectionState, ids: list[str], vectors: Any, scratch: apsw.Connection
) -> None:
    """Report the unusable vectors of a block, and record digest, id and norm of the others in the table ``vector``.

    ``vectors`` is a matrix with a row for each of ``ids``; ``scratch`` has the table.
    """
    with np.errstate(all="ignore"):
        norms = np.sqrt((vectors.astype(np.float64) ** 2).sum(axis=1))
        is_usable = np.isfinite(norms) & (norms > 0) & (norms < LARGEST_NORM)
    for at in np.flatnonzero(~is_usable):
        message = tr("{n} of zeros, with NaN or infinity, or too large")
        state.findings.add(chroma.VECTOR_UNUSABLE, message, base=collection.of.id, noun="vector", sample=ids[int(at)])
    scratch.executemany(
        "INSERT INTO vector VALUES (?, ?, ?)",
        (
            (blake2b(vectors[at].tobytes(), digest_size=16).digest(), ids[at], float(norms[at]))
            for at in np.flatnonzero(is_usable).tolist()
        ),
    )


def _check_norms(state: _StoreAudit, collection: CollectionState, scratch: apsw.Connection) -> None:
    """Report vectors whose recorded norm is far from the median; none in a small collection."""
    count: Any = scratch.execute("SELECT count(*) FROM vector").get
    if count < _MIN_VECTORS:
        return
    middle: Any = scratch.execute("SELECT norm FROM vector ORDER BY norm LIMIT 1 OFFSET ?", (count // 2,)).get
    query = "SELECT id FROM vector WHERE norm > ? OR norm < ? ORDER BY id"
    for (key,) in scratch.execute(query, (middle * _OUTLIER, middle / _OUTLIER)):
        message = tr("{n} whose norm is far from that of the others")
        state.findings.add(chroma.NORM_OUTLIER, message, base=collection.of.id, noun="vector", sample=key)


def _check_shared(state: _StoreAudit, collection: CollectionState, scratch: apsw.Connection) -> None:
    """Report recorded vectors that several entries with different documents share."""
    scratch.execute("CREATE INDEX vector_digest ON vector (digest)")
    groups = scratch.execute("SELECT digest FROM vector GROUP BY digest HAVING count(*) > 1 ORDER BY min(id)")
    for (digest,) in groups.fetchall():
        ids = [str(key) for (key,) in scratch.execute("SELECT id FROM vector WHERE digest = ? ORDER BY id", (digest,))]
        documents = {database.read_document(state.db, collection.of, key) for key in ids} - {None}
        if len(documents) > 1:
            message = tr("{n} with the vector of another text")
            state.findings.add(
                chroma.VECTOR_SHARED, message, base=collection.of.id, noun="id", sample=ids[0], count=len(ids)
            )


# --- the index against every vector ----------------------------------------------------------------------------------


def _check_recall(state: _StoreAudit, collections: list[ChromaCollection]) -> None:
    """Report collections whose vector index misses too many of the nearest vectors; needs chromadb."""
    if not core.is_installed():
        message = tr("the index was not compared with its vectors, because chromadb is not installed")
        state.findings.add(chroma.RECALL, message, severity="note", is_beyond_repair=True)
        return
    for one, found in measure_recall(state.db, state.root, collections):
        state.findings.check_time()
        if found.problem is not None:
            message = tr("chromadb cannot search it: {problem}", problem=found.problem)
            state.findings.add(chroma.RECALL, message, base=one.id, severity="error")
        elif found.share < LEAST_RECALL:
            message = tr("its index finds {share:.1%} of the {count} nearest vectors", share=found.share, count=NEAREST)
            state.findings.add(chroma.RECALL, message, base=one.id)


#: Vectors used as queries, and how many nearest vectors of each are compared.
QUERIES, NEAREST = 20, 10
#: Smallest share that is not reported. Chroma's defaults find nearly all of the nearest vectors.
LEAST_RECALL = 0.8
#: Distances within this share of each other count as equal.
_TOLERANCE = 1e-4


class Recall(msgspec.Struct, frozen=True):
    """Share of the nearest vectors that a search of chromadb finds, or why chromadb cannot search."""

    share: float
    problem: str | None = None


def measure_recall(
    db: apsw.Connection, root: Path, collections: list[ChromaCollection]
) -> Iterator[tuple[ChromaCollection, Recall]]:
    """Search copies of collections with chromadb, and yield the recall of each collection that has vectors.

    Args:
        db: the open database of the folder.
        root: the folder of Chroma.
        collections: the collections to search.

    Raises:
        OSError: the folder cannot be copied.
    """
    with scratch.temporary_folder() as place:
        copy = place / "chroma"
        durable.make_folders(copy, flush=False)
        for path in (root / database.FILE, *untrusted_sqlite.find_companions(root / database.FILE)):
            durable.copy_file(path, copy / path.name)
        for of in collections:
            with open_collection(db, of, root) as state:
                queries = _choose_queries(state)
                if len(queries):
                    yield of, _measure_collection(copy, state, queries)


def _choose_queries(collection: CollectionState) -> Any:
    """Return vectors of a collection to search for, evenly spread over its ids, as the rows of a matrix."""
    dimension = collection.dimension
    found: list[Any] = []
    step = max(1, collection.count("vector") // QUERIES)
    for at, key in enumerate(collection.vector_ids()):
        if at % step == 0 and len(found) < QUERIES:
            vector = collection.vector_of(key)
            if vector is not None and dimension is not None and len(vector[1]) == 4 * dimension:
                numbers = np.frombuffer(vector[1], dtype="<f4")
                if np.isfinite(numbers).all() and numbers.any():
                    found.append(numbers)
    return np.array(found, dtype="<f4")


def _measure_collection(copied_folder: Path, collection: CollectionState, queries: Any) -> Recall:
    """Search a copy of a collection with chromadb, and compare the results with the exact nearest vectors."""
    if collection.problem is not None:
        # Chroma can take any amount of memory for damaged files.
        return Recall(0.0, collection.problem)
    try:
        if collection.folder is not None and collection.folder.is_dir():
            durable.copy_tree(collection.folder, copied_folder / collection.folder.name)
        answers: list[list[str]] = core.run_in_child(
            _search, copied_folder, collection.of.name, queries.tolist(), NEAREST
        )
    except (ChromaFailed, LinkInStore) as failed:
        return Recall(0.0, str(failed))
    nearest = _nearest_distances(collection, queries)
    found = expected = 0
    for query, answer, distances in zip(queries, answers, nearest, strict=True):
        limit = distances[-1] + _TOLERANCE * max(abs(float(distances[-1])), 1e-6)
        expected += len(distances)
        for key in answer:
            vector = collection.vector_of(key)
            if vector is not None and len(vector[1]) == query.nbytes:
                other = np.frombuffer(vector[1], dtype="<f4").reshape(1, -1)
                found += bool(_distances(collection, query.reshape(1, -1), other)[0, 0] <= limit)
    return Recall(min(1.0, found / expected) if expected else 1.0)


def _nearest_distances(collection: CollectionState, queries: Any) -> Any:
    """Return the distances of each query to its nearest vectors, ascending: a row for each row of ``queries``."""
    best = np.empty((len(queries), 0))
    blocks = (block.vectors for block in collection.segment_blocks())
    queued = (np.frombuffer(raw, dtype="<f4").reshape(1, -1) for _, _, raw in collection.queued_vectors())
    for vectors in chain(blocks, (one for one in queued if one.shape[1] == queries.shape[1])):
        distances = np.concatenate([best, np.nan_to_num(_distances(collection, queries, vectors), nan=np.inf)], axis=1)
        best = np.sort(np.partition(distances, min(NEAREST, distances.shape[1]) - 1, axis=1)[:, :NEAREST], axis=1)
    return best


def _distances(collection: CollectionState, queries: Any, vectors: Any) -> Any:
    """Compute the distance of each query to each vector, by the collection's own measure, in double precision."""
    with np.errstate(all="ignore"):
        left, right = queries.astype(np.float64), vectors.astype(np.float64)
        if collection.is_cosine:
            left = left / np.linalg.norm(left, axis=1, keepdims=True)
            right = right / np.linalg.norm(right, axis=1, keepdims=True)
        products = left @ right.T
        if collection.of.distance == "l2":
            return (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :] - 2 * products
        return 1 - products


def _search(folder: Path, name: str, queries: list[list[float]], count: int) -> list[list[str]]:
    """Return the ids of the ``count`` nearest vectors of each query, as chromadb finds them; runs in a child process.

    ``name`` is the name of the collection in ``folder``.
    """
    collection = core.open_client(folder, migrates=True).get_collection(name, embedding_function=None)
    found: list[list[str]] = collection.query(query_embeddings=queries, n_results=count, include=[])["ids"]
    return found
