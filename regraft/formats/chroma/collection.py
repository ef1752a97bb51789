"""Finds the vector of every entry of a collection, from the files of its segment and from the queue.

Chroma's state is that of the segment, followed by the later operations of the queue. The vectors are read as bytes and
never computed, except for cosine distance: its segments hold unit vectors and their norms, and Chroma returns the
product, rounded to single precision (``docs/formats/chroma.md``, "Vectors").

All ids are in a temporary SQLite database, which moves to a file when it grows large, so memory does not grow with the
collection.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import IntEnum
from functools import partial
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import msgspec
import numpy as np
from msgspec import structs

from regraft.disk import file_paths, links, sqlite
from regraft.errors import RegraftError
from regraft.formats.chroma import database, label_map
from regraft.formats.chroma.database import ELEMENTS_FILE, NORMS_FILE, ChromaCollection, ChromaProblem
from regraft.formats.chroma.label_map import ID_TO_LABEL, LABEL_TO_ID, ForeignInstruction, LabelMap, LabelMapProblem
from regraft.formats.chroma.segment import SegmentFiles, SegmentProblem, open_segment
from regraft.language import tr


class Origin(IntEnum):
    """Where the vector of an id is, and how certain it is that the vector belongs to the id."""

    #: An element of the segment; the label map names its id.
    SEGMENT = 0
    #: An operation of the queue that the segment does not have yet.
    QUEUE = 1
    #: An operation of the queue that the segment should have, and whose vector it does not have.
    RECOVERED = 2
    #: An element whose id, or norm, is only likely: by the order of insertion, or by a label map that contradicts
    #: itself.
    UNPROVEN = 3


#: Origins of vectors that certainly belong to their id.
PROVEN = (Origin.SEGMENT, Origin.QUEUE, Origin.RECOVERED)
_IN_SEGMENT = (Origin.SEGMENT, Origin.UNPROVEN)
_TABLES = (
    "CREATE TABLE entry (id TEXT PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE element (position INTEGER PRIMARY KEY, label INTEGER, is_deleted INTEGER)",
    "CREATE TABLE label (id TEXT, label INTEGER)",
    "CREATE TABLE reverse (label INTEGER, id TEXT)",
    "CREATE TABLE vector (id TEXT PRIMARY KEY, origin INTEGER, place INTEGER) WITHOUT ROWID",
    # Vectors that the segment needs although an operation in the queue replaces them.
    "CREATE TABLE replaced (id TEXT PRIMARY KEY, origin INTEGER, place INTEGER) WITHOUT ROWID",
    # Operations in the queue that add an id that the segment had, so that they have no effect.
    "CREATE TABLE ignored (number INTEGER PRIMARY KEY, id TEXT)",
)
#: File in the folder of a kept segment, with its :class:`KeptPositions` in JSON.
KEPT_FILE = "regraft.json"
#: Elements with known labels that confirm a layout even if other elements are lost.
_CONFIRMING = 16
#: Labels that no element or id can be found by without doubt.
_DOUBLE_LABELS = """SELECT label FROM label GROUP BY label HAVING count(*) > 1
                    UNION SELECT label FROM element GROUP BY label HAVING count(*) > 1"""
#: Ids whose label map contradicts itself, with the first reason that applies.
_CONTRADICTIONS = f"""
    SELECT l.id FROM label l LEFT JOIN element e ON e.label = l.label
     WHERE e.is_deleted OR l.label IN ({_DOUBLE_LABELS})
        OR (SELECT count(*) FROM reverse r WHERE r.label = l.label AND r.id = l.id) <> 1
        OR l.id IN (SELECT id FROM label GROUP BY id HAVING count(*) > 1)"""
_BATCH = 2_000
#: Position of the segment that has no vector of an id.
_NO_VECTOR = 255


class KeptPositions(msgspec.Struct, frozen=True):
    """The two queue positions at the time when a repair kept the old files of a segment."""

    #: The last operation that the segment included.
    applied: int
    #: The last operation on any entry of the collection.
    last: int


class VectorBlock(msgspec.Struct, frozen=True, kw_only=True):
    """Vectors of a segment in the order of its elements."""

    #: Positions of the elements in the segment, ascending.
    places: Any
    #: Values of :class:`Origin`.
    origins: Any
    #: As Chroma returns them, float32: one row for each position.
    vectors: Any
    #: Reads the id of each vector, in their order. Most readers need the ids of few blocks only.
    read_ids: Callable[[], list[str]]


class CollectionState:
    """The ids of one collection and the vector of each; made by :func:`open_collection`. Empty until :meth:`read`.

    Args:
        db: the database.
        collection: the collection.
        root: folder of the database.
        scratch: empty temporary database, in which tables are created.
        kept: folder of old files that a repair kept, and their queue positions. They are read instead of the segment.
    """

    def __init__(
        self,
        *,
        db: apsw.Connection,
        collection: ChromaCollection,
        root: Path,
        scratch: apsw.Connection,
        kept: tuple[Path, KeptPositions] | None = None,
    ) -> None:
        """Create the temporary tables in ``scratch``. Nothing is read: :meth:`read` does that."""
        self.of = collection
        #: The kept files that are read instead of the segment.
        self._kept = kept
        self.segment: SegmentFiles | None = None
        #: Why the segment, or its label map, cannot be read; None if it can, or if there is none yet.
        self.segment_problem: str | None = None
        self.labels: LabelMap | None = None
        self.label_problem: str | None = None
        #: The segment, if no label map and no number says that it has an operation.
        self._unwritten: SegmentFiles | None = None
        #: Whether the label map has instructions that call something.
        self.has_foreign_labels = False
        #: The last operation that the segment includes.
        self.applied = 0
        #: Elements that certainly are some, if the header counts too few; None if its count is used.
        self._linked: int | None = None
        #: Elements whose links point to elements that do not exist.
        self.bad_links = 0
        self._db, self.root, self._scratch = db, root, scratch
        #: The origin of the vector at each position of the segment, one byte for each.
        self._origins: Any = np.empty(0, dtype="u1")
        self._files = ExitStack()
        self._open: dict[str, BufferedReader] = {}
        for statement in _TABLES:
            scratch.execute(statement)

    @property
    def is_cosine(self) -> bool:
        """Whether the distance is cosine, so that the segment holds unit vectors and their norms."""
        return self.of.distance == "cosine"

    @property
    def dimension(self) -> int | None:
        """Number of dimensions of the collection; None without any vector."""
        if self.of.dimension is not None:
            return self.of.dimension
        return None if self.segment is None else self.segment.header.dimension

    @property
    def problem(self) -> str | None:
        """What is wrong with the files of the segment, for messages; None if nothing is."""
        files = () if self.segment is None else self.segment.problems
        return self.segment_problem or self.label_problem or next(iter(files), None)

    @property
    def folder(self) -> Path | None:
        """Folder of the vector segment; None if the collection has no segment with a plain name."""
        if self._kept is not None:
            return self._kept[0]
        name = self.of.vectors
        return None if name is None or not database.is_segment_name(name) else self.root / name

    def close(self) -> None:
        """Close the files of the segment."""
        self._files.close()

    # --- reading everything but vectors -----------------------------------------------------------------------------

    def read(self) -> None:
        """Read ids, elements and labels, and decide where the vector of each id is.

        Raises:
            ChromaProblem, apsw.Error, OSError: the database cannot be read.
        """
        with sqlite.transaction(self._scratch):
            if self.of.metadata is not None:
                ids = ((key,) for key in database.iterate_ids(self._db, self.of))
                self._scratch.executemany("INSERT OR IGNORE INTO entry VALUES (?)", ids)
        stated = database.read_applied(self._db, self.of.vectors) if self._kept is None else self._kept[1].applied
        self._read_segment(stated)
        self.applied = stated if stated is not None else (self.labels and self.labels.max_seq_id) or 0
        if stated is None and self.label_problem is not None:
            self.applied = self._last_operation()
        with sqlite.transaction(self._scratch):
            self._place_labelled()
            self._place_others()
        if self._unwritten is not None and next(self.missing_ids(), None) is not None:
            # The queue lacks operations, so the segment had them.
            self.segment, self.label_problem = self._unwritten, os.strerror(errno.ENOENT)
            self.applied = self._last_operation()
            with sqlite.transaction(self._scratch):
                for table in ("vector", "replaced", "ignored"):
                    self._scratch.execute(f"DELETE FROM {table}")
                self._place_others()
        self._origins = self._read_origins()

    def _last_operation(self) -> int:
        """Return the number of the last operation in the queue, which the segment is taken to include.

        Versions up to 0.4 have the last operation that a segment includes in its label map alone. If that cannot be
        read, the segment is taken to include all of them: a new one then gets every vector of the queue.
        """
        query = f"SELECT max(seq_id) {database.PENDING}"
        return database.read_number(self._db.execute(query, (self.of.id, 0)).get) or 0

    def _read_segment(self, stated: int | None) -> None:
        """Read the segment's files; ``stated``: last operation that they include according to Chroma, or None."""
        folder = self.folder
        if folder is None or not folder.is_dir():
            # Chroma creates the folder with the first operation that it moves there.
            if folder is not None and stated:
                is_there = os.path.lexists(file_paths.extended_path(folder))
                missing = tr("its folder does not exist")
                self.segment_problem = tr("{name} is not a folder", name=folder.name) if is_there else missing
            return
        try:
            segment = open_segment(folder, self.of.dimension, self.of.links)
            self._read_elements(segment)
        except (SegmentProblem, OSError) as error:
            self.segment_problem = str(error)
            return
        if file_paths.exists(folder / label_map.FILE):
            self.segment = segment
            if segment.room:
                self._read_labels(segment, folder / label_map.FILE)
        elif segment.count and stated is None:
            # Nothing was ever written to the segment, or a version up to 0.4 keeps every operation in the queue.
            self._unwritten = segment
        elif segment.count:
            self.segment = segment
            self._read_labels(segment, folder / label_map.FILE)
        elif segment.problems:
            # Chroma reads no other file of a segment that was never written to, if the header is sound.
            self.segment = segment

    def _read_labels(self, segment: SegmentFiles, path: Path) -> None:
        """Read the label map at ``path``, and with it confirm or complete the elements of the segment."""
        try:
            with sqlite.transaction(self._scratch):
                self.labels = label_map.read_label_map(path, self._add_labels)
        except (LabelMapProblem, OSError) as error:
            self.has_foreign_labels = isinstance(error, ForeignInstruction)
            self.labels, self.label_problem = None, getattr(error, "strerror", None) or str(error)
            return
        self._scratch.execute("CREATE INDEX label_label ON label (label)")
        self._scratch.execute("CREATE INDEX reverse_label ON reverse (label)")
        if segment.is_derived and not self._has_confirmed_layout():
            # With another number of links, each vector would consist of parts of two elements.
            self.segment_problem = tr("without a header, the size of its elements is unknown")
            self.segment = None
            for table in ("element", "label", "reverse"):
                self._scratch.execute(f"DELETE FROM {table}")
        else:
            self._read_uncounted(segment)

    def _has_confirmed_layout(self) -> bool:
        """Whether the label map has the labels of the elements, so that the assumed size of an element is right."""
        known = "label IN (SELECT label FROM label)"
        row: Any = self._scratch.execute(
            f"SELECT count(*), max(position), (SELECT count(DISTINCT label) FROM label) FROM element WHERE {known}"
        ).fetchone()
        found, last, wanted = row
        if not found or (found < wanted and found < _CONFIRMING):
            return not wanted
        query = f"SELECT count(*) FROM element WHERE position <= ? AND (is_deleted OR {known})"
        explained: Any = self._scratch.execute(query, (last,)).get
        # Elements that the label map does not know were written after it.
        return bool(10 * (last + 1 - explained) <= found)

    def _read_uncounted(self, segment: SegmentFiles) -> None:
        """Read elements beyond the count of the header, if the label map has their labels and no other element does.

        A header that is older than the other files counts too few. Where no link leads to, there may be an element, or
        unused space: such vectors are unproven.
        """
        lacking = "SELECT label FROM label WHERE label NOT IN (SELECT label FROM element)"
        if segment.count == segment.room or self._scratch.execute(f"{lacking} LIMIT 1").get is None:
            return
        counted, bad_links, self._linked = segment.count, self.bad_links, segment.find_linked_count()
        self._scratch.execute(f"CREATE TABLE lacking AS {lacking}")
        self._insert_elements(structs.replace(segment, count=segment.room))
        of_others = "position >= ? AND label NOT IN (SELECT label FROM lacking)"
        self._scratch.execute(f"DELETE FROM element WHERE {of_others}", (self._linked,))
        last: Any = self._scratch.execute("SELECT max(position) FROM element WHERE position >= ?", (counted,)).get
        self.bad_links = bad_links
        if last is not None:
            self.segment, self.bad_links = segment.with_count(last + 1), 0

    def _insert_elements(self, segment: SegmentFiles) -> None:
        """Record each element of the segment (position, label, deletion mark) and count bad links."""
        self._scratch.execute("DELETE FROM element")
        with sqlite.transaction(self._scratch):
            for block in segment.blocks():
                # Larger numbers than SQLite's are no labels of Chroma's.
                labels = np.minimum(block.labels, np.uint64((1 << 63) - 1)).astype("<i8").tolist()
                positions = range(block.start, block.start + len(labels))
                rows = zip(positions, labels, block.is_deleted.tolist(), strict=True)
                self._scratch.executemany("INSERT INTO element VALUES (?, ?, ?)", rows)
                self.bad_links += int((~block.has_valid_links).sum())

    def _read_elements(self, segment: SegmentFiles) -> None:
        """Record the elements of the segment in the temporary database.

        Without a header, only the first element of each label is kept.
        """
        self._insert_elements(segment)
        with sqlite.transaction(self._scratch):
            if segment.is_derived:
                # Without a header, the number of elements is unknown: unused space follows them.
                first = "SELECT min(position) FROM element GROUP BY label"
                self._scratch.execute(f"DELETE FROM element WHERE position NOT IN ({first})")
        self._scratch.execute("CREATE INDEX element_label ON element (label)")

    def _add_labels(self, role: str, pairs: list[tuple[str | int, str | int]]) -> None:
        """Record pairs of the label map: (id, label) if ``role`` is ``ID_TO_LABEL``, reversed for ``LABEL_TO_ID``."""
        kinds = {ID_TO_LABEL: (str, int), LABEL_TO_ID: (int, str)}.get(role)
        if kinds is None:
            return
        if not all(isinstance(key, kinds[0]) and isinstance(value, kinds[1]) for key, value in pairs):
            raise LabelMapProblem(tr("an entry of {role} is of another type", role=role))
        table = "label" if role == ID_TO_LABEL else "reverse"
        self._scratch.executemany(f"INSERT INTO {table} VALUES (?, ?)", pairs)

    # --- where each vector is ---------------------------------------------------------------------------------------

    def _place_others(self) -> None:
        """Find the vectors that the label map does not give: in the queue, or by order."""
        self._recover_queued()
        if self.labels is None:
            self._place_by_order()
        self._replay_queue()

    def _place_labelled(self) -> None:
        """Find the vectors that the label map gives; contradicting entries are marked as unproven."""
        self._scratch.execute("CREATE TABLE contradiction (id TEXT PRIMARY KEY) WITHOUT ROWID")
        self._scratch.execute(f"INSERT OR IGNORE INTO contradiction {_CONTRADICTIONS}")
        if self._linked is not None:
            doubtful = "SELECT l.id FROM label l JOIN element e ON e.label = l.label WHERE e.position >= ?"
            self._scratch.execute(f"INSERT OR IGNORE INTO contradiction {doubtful}", (self._linked,))
        self._scratch.execute(
            """INSERT OR IGNORE INTO vector
               SELECT l.id, CASE WHEN c.id IS NULL THEN ?1 ELSE ?2 END, e.position
                 FROM label l JOIN element e ON e.label = l.label LEFT JOIN contradiction c ON c.id = l.id
                ORDER BY e.position""",
            (Origin.SEGMENT, Origin.UNPROVEN),
        )
        if self.is_cosine and self.segment is not None:
            # Without its norm, only the direction of a vector is known.
            self._scratch.execute(
                "UPDATE vector SET origin = ? WHERE place >= ?", (Origin.UNPROVEN, self.segment.norms)
            )

    def _operations(self, condition: str) -> Iterator[tuple[int, int, str, bool]]:
        """Yield (number, code, id, has a vector) of queued operations of the collection.

        ``condition`` compares their numbers with the last one that the segment includes: "<=" or ">".
        """
        rows = self._db.execute(
            "SELECT seq_id, operation, CAST(id AS TEXT), vector IS NOT NULL FROM embeddings_queue "
            f"WHERE seq_id {condition} ?1 AND {database.TOPIC_COLLECTION} = ?2 AND NOT {database.INVALID_OPERATION} "
            "ORDER BY seq_id",
            (self.applied, self.of.id),
        )
        for number, code, key, has_vector in rows:
            yield int(str(number)), int(str(code)), str(key), bool(has_vector)

    def _recover_queued(self) -> None:
        """Find ids whose vector the segment should have and lacks, and use the vector of a queued operation."""
        known = "SELECT origin FROM vector WHERE id = ?"
        for number, code, key, has_vector in self._operations("<="):
            origin = self._scratch.execute(known, (key,)).get
            if code == database.DELETE:
                if origin == Origin.RECOVERED:
                    self._scratch.execute("DELETE FROM vector WHERE id = ?", (key,))
            elif (
                has_vector
                and origin in (None, Origin.RECOVERED, Origin.UNPROVEN)
                and self._has_vector(number)
                and self._took_effect(number, code, key, is_known=origin == Origin.RECOVERED)
            ):
                self._record_vector(key, Origin.RECOVERED, number)

    def _has_vector(self, number: int) -> bool:
        """Whether the queued operation with a number has a vector of the collection's dimension."""
        size = len(database.read_queued_vector(self._db, number))
        return size > 0 and size == 4 * (self.dimension or size // 4)

    def _took_effect(self, number: int, code: int, key: str, *, is_known: bool) -> bool:
        """Whether a queued operation took effect in the segment, instead of being ignored by Chroma.

        Args:
            number: number of the operation.
            code: its kind, such as ``ADD``.
            key: the id that it is about.
            is_known: whether an earlier operation in the queue added the id.
        """
        if code == database.UPSERT or is_known:
            return code != database.ADD
        last = self._last_number_of(key)
        if code == database.UPDATE or last is None:
            return (code == database.UPDATE) == (last is not None)
        # Every operation on an entry that had an effect gives it its number.
        return number <= last

    def _replay_queue(self) -> None:
        """Apply the queued operations that the segment does not include yet, by Chroma's rules."""
        known = "SELECT EXISTS (SELECT 1 FROM vector WHERE id = ?1) OR EXISTS (SELECT 1 FROM label WHERE id = ?1)"
        has_labels = self.labels is not None and self.segment is not None
        self._scratch.execute("CREATE INDEX IF NOT EXISTS label_id ON label (id)")
        for number, code, key, has_vector in self._operations(">"):
            is_known = bool(self._scratch.execute(known, (key,)).get)
            if not is_known and not has_labels:
                is_known = self._was_known(number, code, key)
            if code == database.DELETE:
                self._scratch.execute("DELETE FROM vector WHERE id = ?", (key,))
                self._scratch.execute("DELETE FROM label WHERE id = ?", (key,))
            elif has_vector and (code == database.UPSERT or (code == database.ADD) != is_known):
                found = self.place_of(key)
                lacks_vector = found is None or found[0] is Origin.UNPROVEN
                if code == database.UPDATE and lacks_vector and self._has_vector(number):
                    # Chroma only updates what the segment has.
                    found = Origin.RECOVERED, number
                if found is not None and found[0] is not Origin.QUEUE:
                    self._scratch.execute("INSERT OR IGNORE INTO replaced VALUES (?, ?, ?)", (key, *found))
                self._record_vector(key, Origin.QUEUE, number)
            elif has_vector and code == database.ADD:
                self._scratch.execute("INSERT INTO ignored VALUES (?, ?)", (number, key))

    def _was_known(self, number: int, code: int, key: str) -> bool:
        """Infer whether a segment without a label map had an id (``key``) before a queued operation.

        ``number`` and ``code`` are the operation's sequence number and its kind, such as ``ADD``.
        """
        last = self._last_number_of(key)
        if last is None or code == database.UPSERT:
            return False
        if code == database.ADD:
            # An operation that had an effect gives the entry its number.
            return last < number
        query = f"SELECT 1 {database.PENDING} AND id = ?3 AND operation = ?4 LIMIT 1"
        return self._db.execute(query, (self.of.id, self.applied, key, database.ADD)).get is None

    def _last_number_of(self, key: str) -> int | None:
        """Return the number of the last operation on the entry with an id; 0 if invalid, None without an entry."""
        query = "SELECT seq_id FROM embeddings WHERE segment_id = ? AND embedding_id = ?"
        found: Any = self._db.execute(query, (self.of.metadata, key)).get
        return None if found is None else database.read_number(found) or 0

    def _record_vector(self, key: str, origin: Origin, place: int) -> None:
        """Record the origin of an id's vector, and its place: a position in the segment, or a number in the queue."""
        self._scratch.execute("INSERT OR REPLACE INTO vector VALUES (?, ?, ?)", (key, origin, place))

    def _place_by_order(self) -> None:
        """Without a label map: guess the ids of elements from the order in which they were inserted.

        Versions from 1.0 on number new ids in the order of their operations, and earlier ones do not. One update or
        deletion changes the order, so the guess is only made if everything fits, and it remains a guess.
        """
        if self.segment is None or not self._has_plain_order():
            return
        rows = self._db.execute(
            "SELECT CAST(embedding_id AS TEXT) FROM embeddings WHERE segment_id = ? AND seq_id <= ? ORDER BY seq_id",
            (self.of.metadata, self.applied),
        )
        self._scratch.execute("CREATE TABLE guess (id TEXT, label INTEGER PRIMARY KEY)")
        self._scratch.executemany(
            "INSERT INTO guess VALUES (?, ?)", ((key, label) for label, (key,) in enumerate(rows, 1))
        )
        if self._guess_contradicts_queue():
            return
        self._scratch.execute(
            """INSERT OR IGNORE INTO vector
               SELECT g.id, ?, e.position FROM guess g JOIN element e ON e.label = g.label""",
            (Origin.UNPROVEN,),
        )

    def _has_plain_order(self) -> bool:
        """Whether elements and rows are as many, none was deleted, and a version from 1.0 on wrote every row."""
        segment, applied = self.of.metadata, self.applied
        row: Any = self._db.execute(
            "SELECT count(*), count(DISTINCT seq_id), total(typeof(seq_id) <> 'integer') FROM embeddings "
            "WHERE segment_id = ? AND seq_id <= ?",
            (segment, applied),
        ).fetchone()
        rows, different, others = row
        deleted: Any = self._scratch.execute("SELECT count(*), total(is_deleted), max(label) FROM element").fetchone()
        is_same = rows == different == deleted[0] == deleted[2]
        return bool(is_same and not others and not deleted[1])

    def _guess_contradicts_queue(self) -> bool:
        """Whether a guessed element has another vector than the queue has for its id."""
        rows = self._scratch.execute(
            """SELECT v.place, e.position FROM vector v JOIN guess g ON g.id = v.id JOIN element e ON e.label = g.label
                WHERE v.origin = ? ORDER BY v.place LIMIT ?""",
            (Origin.RECOVERED, _BATCH),
        ).fetchall()
        for number, position in rows:
            queued = np.frombuffer(database.read_queued_vector(self._db, int(str(number))), dtype="<f4")
            stored = np.frombuffer(self.stored_vector(int(str(position))), dtype="<f4")
            if self.is_cosine and len(queued):
                queued = queued / max(float(np.linalg.norm(queued.astype(np.float64))), 1e-30)
            if len(queued) != len(stored) or not np.allclose(queued, stored, rtol=0, atol=1e-5):
                return True
        return False

    # --- answers ----------------------------------------------------------------------------------------------------

    def count(self, table: str) -> int:
        """Count the rows of a temporary table: "entry", "vector" or "element"."""
        return int(str(self._scratch.execute(f"SELECT count(*) FROM {table}").get))

    def count_origin(self, origin: Origin) -> int:
        """Count the entries whose vector has this origin."""
        query = "SELECT count(*) FROM vector WHERE origin = ? AND id IN (SELECT id FROM entry)"
        return int(str(self._scratch.execute(query, (origin,)).get))

    def missing_ids(self) -> Iterator[str]:
        """Yield the ids that have text or metadata, and no vector at all."""
        query = "SELECT id FROM entry WHERE id NOT IN (SELECT id FROM vector) ORDER BY id"
        yield from (str(key) for (key,) in self._scratch.execute(query))

    def count_orphans(self) -> int:
        """Count the ids of :meth:`orphan_ids`."""
        query = "SELECT count(*) FROM vector WHERE id NOT IN (SELECT id FROM entry)"
        return int(str(self._scratch.execute(query).get))

    def orphan_ids(self) -> Iterator[str]:
        """Yield the ids that have a vector, and neither text nor metadata."""
        query = "SELECT id FROM vector WHERE id NOT IN (SELECT id FROM entry) ORDER BY id"
        yield from (str(key) for (key,) in self._scratch.execute(query))

    def ids_of(self, origin: Origin) -> Iterator[str]:
        """Yield the ids of entries whose vector has this origin, in ascending order."""
        query = "SELECT id FROM vector WHERE origin = ? AND id IN (SELECT id FROM entry) ORDER BY id"
        yield from (str(key) for (key,) in self._scratch.execute(query, (origin,)))

    def vector_ids(self) -> Iterator[str]:
        """Yield the ids that have a vector."""
        yield from (str(key) for (key,) in self._scratch.execute("SELECT id FROM vector ORDER BY id"))

    def contradicting_ids(self) -> Iterator[str]:
        """Yield the ids whose element is in doubt: the label map contradicts itself or the elements of the segment."""
        query = """SELECT id FROM contradiction UNION
                   SELECT id FROM label WHERE label NOT IN (SELECT label FROM element) ORDER BY 1"""
        yield from (str(key) for (key,) in self._scratch.execute(query))

    def count_without_length(self) -> int:
        """Count the elements whose norm, and so the length of their vector, is lost."""
        if self.segment is None or not self.is_cosine:
            return 0
        # Without a header, unused space follows the elements.
        known = "label IN (SELECT label FROM label)" if self.segment.is_derived and self.labels is not None else "1"
        query = f"SELECT count(*) FROM element WHERE position >= ? AND {known}"
        return int(str(self._scratch.execute(query, (self.segment.norms,)).get))

    def lacks_length(self, key: str) -> bool:
        """Whether the vector of an id is in the segment, and its norm is lost."""
        found = self.place_of(key)
        return found is not None and found[0] in _IN_SEGMENT and self.is_cosine and self.stored_norm(found[1]) is None

    def ignored_operations(self, *, keeps_unproven: bool) -> list[int]:
        """List operations of the queue that have no effect now, but would have one after the segment is rebuilt.

        Their ids are lost by the rebuild: it drops those without a vector and, unless ``keeps_unproven``, those whose
        vector is not proven.
        """
        kept = (Origin.UNPROVEN,) if keeps_unproven else ()
        marks = ", ".join(map(str, map(int, (*PROVEN, *kept))))
        query = f"""SELECT number FROM ignored WHERE id IN (SELECT id FROM entry)
                       AND id NOT IN (SELECT id FROM vector WHERE origin IN ({marks})) ORDER BY number"""
        return [int(str(number)) for (number,) in self._scratch.execute(query)]

    def read_last_operation(self) -> int:
        """Return the number of the last operation on any entry."""
        found = "SELECT max(seq_id) FROM embeddings WHERE segment_id = ? AND typeof(seq_id) = ?"
        highest = [self._db.execute(found, (self.of.metadata, kind)).get for kind in ("integer", "blob")]
        return max(0, self.applied, self._last_operation(), *(database.read_number(one) or 0 for one in highest))

    def is_changed_since(self, kept: KeptPositions, key: str) -> bool:
        """Whether an operation changed the entry with an id after its segment's files were kept."""
        number = self._last_number_of(key)
        return not number or number > kept.last

    def count_waiting(self) -> int:
        """Count the operations of the queue that the segment does not have yet."""
        query = f"SELECT count(*) {database.PENDING}"
        return int(str(self._db.execute(query, (self.of.id, self.applied)).get))

    def is_waiting(self, key: str) -> bool:
        """Whether an operation waits in the queue that may give an id another vector."""
        query = f"SELECT 1 {database.PENDING} AND id = ?3 AND vector IS NOT NULL LIMIT 1"
        return self._db.execute(query, (self.of.id, self.applied, key)).get is not None

    def place_of(self, key: str) -> tuple[Origin, int] | None:
        """Return the origin and the place of an id's vector, or None without one.

        The place is a position in the segment, or the number of an operation in the queue.
        """
        row: Any = self._scratch.execute("SELECT origin, place FROM vector WHERE id = ?", (key,)).fetchone()
        return None if row is None else (Origin(row[0]), int(row[1]))

    def segment_ids(self) -> Iterator[tuple[str, Origin, int]]:
        """Yield (id, origin, place) of every vector that the segment has or should have, in the order of ids.

        The place is a position in the segment or a number in the queue. A vector that a queued operation replaces is
        included: Chroma only updates existing vectors.
        """
        query = """SELECT * FROM vector WHERE origin <> ?1 UNION ALL
                   SELECT * FROM replaced WHERE id IN (SELECT id FROM vector WHERE origin = ?1) ORDER BY id"""
        for key, origin, place in self._scratch.execute(query, (Origin.QUEUE,)):
            yield str(key), Origin(int(str(origin))), int(str(place))

    @property
    def needs_object_labels(self) -> bool:
        """Whether the label map must be a class instance, as a version before 1.0 that wrote it last requires."""
        if self.labels is not None:
            return self.labels.is_object
        query = "SELECT 1 FROM embeddings WHERE segment_id = ? AND typeof(seq_id) = 'blob' LIMIT 1"
        return self._db.execute(query, (self.of.metadata,)).get is not None

    def sequence_number_of(self, key: str) -> int:
        """Return the queue number of the last operation on an id; at least 0.

        For an unknown id, or if that operation is newer than the segment, the number of the last operation that the
        segment includes.
        """
        number = self._last_number_of(key)
        return number if number is not None and 0 < number < self.applied else max(0, self.applied)

    # --- vectors ----------------------------------------------------------------------------------------------------

    def vector_of(self, key: str) -> tuple[Origin, bytes] | None:
        """Return (origin, vector) of an id; None if it has no vector.

        The vector is float32, as Chroma returns it; empty if it cannot be read.
        """
        found = self.place_of(key)
        if found is None:
            return None
        origin, place = found
        return origin, self.vector_at(origin, place)

    def vector_at(self, origin: Origin, place: int) -> bytes:
        """Return the vector at a place of :meth:`place_of`, as Chroma returns it; empty if it cannot be read."""
        if origin not in _IN_SEGMENT:
            return database.read_queued_vector(self._db, place)
        stored, norm = self.stored_vector(place), self.stored_norm(place)
        if norm is None:
            return stored
        return bytes(multiply(np.frombuffer(stored, dtype="<f4"), np.frombuffer(norm, dtype="<f4")).tobytes())

    def stored_norm(self, position: int) -> bytes | None:
        """Read the norm of the element at a position; None if the file has no norm for it."""
        if not self.is_cosine or self.segment is None or position >= self.segment.norms:
            return None
        return self._read_at(NORMS_FILE, 4 * position, 4) or None

    def stored_vector(self, position: int) -> bytes:
        """Read the vector of the element at a position as the segment holds it."""
        if self.segment is None:
            return b""
        header = self.segment.header
        start = position * header.element_bytes + 4 + 4 * header.lowest_links
        return self._read_at(ELEMENTS_FILE, start, 4 * header.dimension)

    def _read_at(self, name: str, start: int, size: int) -> bytes:
        """Read ``size`` bytes at an offset of a file of the segment; empty if it is missing or too short."""
        file = self._open_file(name)
        if file is None:
            return b""
        file.seek(start)
        found = file.read(size)
        return found if len(found) == size else b""

    def _open_file(self, name: str) -> BufferedReader | None:
        """Return a file of the segment by name, opened at most once; None without a segment."""
        file = self._open.get(name)
        if file is None and self.segment is not None:
            file = self._open[name] = self._files.enter_context(links.open_for_reading(self.segment.folder / name))
        return file

    def queued_vectors(self) -> Iterator[tuple[str, Origin, bytes]]:
        """Yield (id, origin, vector) of the entries whose vector is in the queue."""
        query = "SELECT id, origin, place FROM vector WHERE origin IN (?, ?) ORDER BY place"
        for key, origin, place in self._scratch.execute(query, (Origin.QUEUE, Origin.RECOVERED)):
            yield str(key), Origin(int(str(origin))), database.read_queued_vector(self._db, int(str(place)))

    def segment_blocks(self) -> Iterator[VectorBlock]:
        """Yield blocks of the vectors in the segment, in the order of its elements.

        A block is valid until the next one.
        """
        segment = self.segment
        if segment is None:
            return
        norms = segment.read_norms() if self.is_cosine else None
        is_complete = bool((self._origins != _NO_VECTOR).all())
        products = np.empty((segment.most_in_block, segment.header.dimension), dtype="<f4")
        for block in segment.blocks():
            part = slice(block.start, block.start + len(block.elements))
            places, origins, vectors = np.arange(part.start, part.stop), self._origins[part], block.vectors
            if norms is not None:
                vectors = multiply(vectors, norms[part], products[: len(vectors)])
            if not is_complete:
                has_vector = origins != _NO_VECTOR
                if not has_vector.all():
                    places, origins, vectors = places[has_vector], origins[has_vector], vectors[has_vector]
            if len(places):
                read_ids = partial(self._ids_at, places)
                yield VectorBlock(places=places, origins=origins, vectors=vectors, read_ids=read_ids)

    def _read_origins(self) -> Any:
        """Return an array with the origin of the vector at each position of the segment, one byte for each."""
        kept = np.full(0 if self.segment is None else self.segment.count, _NO_VECTOR, dtype="u1")
        rows = self._scratch.execute("SELECT place, origin FROM vector WHERE origin IN (?, ?)", _IN_SEGMENT)
        while batch := list(islice(rows, _BATCH)):
            places = np.array(batch, dtype="<i8")
            kept[places[:, 0]] = places[:, 1]
        return kept

    def _ids_at(self, places: Any) -> list[str]:
        """Return the ids of the vectors at these positions of the segment, which ascend."""
        self._scratch.execute("CREATE INDEX IF NOT EXISTS vector_place ON vector (place, origin, id)")
        query = "SELECT id FROM vector WHERE place BETWEEN ? AND ? AND origin IN (?, ?) ORDER BY place"
        rows = self._scratch.execute(query, (int(places[0]), int(places[-1]), *_IN_SEGMENT))
        return [str(key) for (key,) in rows]


def multiply(vectors: Any, norms: Any, out: Any = None) -> Any:
    """Multiply unit vectors by their norms in single precision, as Chroma does; ``out`` may receive the product."""
    with np.errstate(all="ignore"):
        product = np.multiply(vectors, norms[:, None] if vectors.ndim > 1 else norms, out=out)
    return product.astype("<f4", copy=False)


#: Votes that outweigh the dimension in the row of a collection, and the most that the queue has.
_ENOUGH_VOTES = 2


def measure_dimension(db: apsw.Connection, collection: ChromaCollection, root: Path) -> int | None:
    """Return the number of dimensions of a collection's vectors; None if the collection's row states none.

    It is the number in the row, unless that is damaged: no file confirms it, and at least two of segment, label map and
    queue, or two vectors of the queue, agree on another number.
    """
    if collection.dimension is None:
        return None
    votes: Counter[int] = Counter()
    if collection.vectors is not None and database.is_segment_name(collection.vectors):
        folder = root / collection.vectors
        with suppress(SegmentProblem, OSError):
            segment = open_segment(folder, None, collection.links)
            if segment.header.dimension == collection.dimension:
                return collection.dimension
            votes[segment.header.dimension] += not segment.problems
            found = label_map.read_label_map(folder / label_map.FILE, lambda *_: None).dimension
            votes[found or 0] += found is not None
    query = (
        "SELECT length(vector), count(*) FROM embeddings_queue "
        f"WHERE typeof(vector) = 'blob' AND length(vector) > 3 AND {database.TOPIC_COLLECTION} = ? GROUP BY 1"
    )
    for size, count in db.execute(query, (collection.id,)):
        votes[int(str(size)) // 4] += min(int(str(count)), _ENOUGH_VOTES)
    (best, number), *others = (+votes).most_common() or [(collection.dimension, 0)]
    return best if number >= _ENOUGH_VOTES and not others else collection.dimension


@contextmanager
def open_collection(
    db: apsw.Connection, collection: ChromaCollection, root: Path, kept: tuple[Path, KeptPositions] | None = None
) -> Iterator[CollectionState]:
    """Read the ids and labels of a collection; vectors are read on demand.

    Args:
        db: the database, opened by :func:`regraft.formats.chroma.database.open_chroma`.
        collection: the collection.
        root: the folder of the database.
        kept: files that a repair kept, which are read instead of the segment.

    Raises:
        ChromaProblem: a value in the database is invalid.
        apsw.Error, OSError: the database cannot be read.
    """
    collection = structs.replace(collection, dimension=measure_dimension(db, collection, root))
    database.check_dimension(collection)
    with sqlite.open_scratch() as scratch:
        state = CollectionState(db=db, collection=collection, root=root, scratch=scratch, kept=kept)
        try:
            state.read()
            yield state
        except ValueError as error:
            # Errors about something else may pass through here from the caller.
            if isinstance(error, ChromaProblem | RegraftError):
                raise
            raise ChromaProblem(str(error)) from error
        finally:
            state.close()


@contextmanager
def open_places(db: apsw.Connection, collection: ChromaCollection, root: Path) -> Iterator[CollectionState]:
    """Open a collection to read vectors whose place is known (:meth:`CollectionState.place_of`); no ids are read.

    The arguments are those of :func:`open_collection`.
    """
    with sqlite.open_scratch() as scratch:
        state = CollectionState(db=db, collection=collection, root=root, scratch=scratch)
        try:
            if state.folder is not None and state.folder.is_dir():
                state.segment = open_segment(state.folder, measure_dimension(db, collection, root), collection.links)
            yield state
        finally:
            state.close()


def read_vectors(path: Path, collection: ChromaCollection, db: apsw.Connection) -> Iterator[tuple[str, bytes]]:
    """Yield (id, vector) of all entries of a collection whose vector is proven to be theirs.

    ``path`` is that of the database, which is open as ``db``.
    """
    with open_collection(db, collection, path.parent) as state:
        for block in state.segment_blocks():
            for key, origin, vector in zip(block.read_ids(), block.origins, block.vectors, strict=True):
                if origin in PROVEN:
                    yield key, vector.tobytes()
        for key, _, raw in state.queued_vectors():
            yield key, raw
