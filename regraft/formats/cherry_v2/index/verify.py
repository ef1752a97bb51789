"""Read a new index back and compare it with what was written to it."""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import apsw
import msgspec

from regraft import identity
from regraft.disk import sqlite
from regraft.errors import VerificationFailed
from regraft.formats.cherry_v2.index import schema
from regraft.formats.cherry_v2.index.bulk import BodiesDigest, PartDigest, Tallies
from regraft.formats.cherry_v2.index.full_text import ROWS_CACHE_KIB, full_text_matches
from regraft.formats.large_text import LARGE_BYTES, LargeContent, WholeContent, read_pieces
from regraft.language import tr
from regraft.processes.pool import JobFailed, ProcessPool

logger = logging.getLogger(__name__)

_COUNTED = ("material", "search_unit", "search_text", "embedding", "search_text_fts_docsize")


#: Every body with its unit and its vector. ``same_embedding`` is the join condition for the vector.
_BODIES = f"""SELECT u.material_id, u.content_hash, u.unit_index, u.char_start, u.char_end, u.unit_id,
                     CASE WHEN octet_length(t.text) <= {LARGE_BYTES} THEN t.text END,
                     t.embedding_text_hash, e.vector_blob, t.rowid, t.fts_rowid
                FROM search_text t
                LEFT JOIN search_unit u ON u.rowid = t.rowid AND +u.unit_id = t.target_id
                LEFT JOIN embedding e ON {{same_embedding}} = t.embedding_text_hash
               WHERE t.rowid BETWEEN ? AND ?
               ORDER BY t.rowid"""
_SAME_ROW, _SAME_HASH = "e.rowid = t.rowid AND +e.embedding_text_hash", "e.embedding_text_hash"


def verify(
    path: Path,
    base_id: str,
    tallies: Tallies,
    digests: list[PartDigest],
    vector_bytes: int | None,
    processes: ProcessPool | None = None,
) -> None:
    """Check row counts, ids, offsets, hashes, vector lengths, and the digests over texts and vectors.

    Every body needs a vector except those that were added without one (``tallies.bare``); these may share the vector of
    an equal text.

    Args:
        path: the index file.
        base_id: id of its base.
        tallies: totals of what was written.
        digests: digests of what was written.
        vector_bytes: length of each vector in bytes.
        processes: process pool that reads parts of the file in parallel, if it has been started.

    Raises:
        VerificationFailed: the file differs from what was written.
        apsw.Error, OSError: the file cannot be read.
    """
    ranges: deque[_BodyRange] = deque()
    first, in_order = 1, tallies.embeddings == tallies.units
    for last, digest in digests:
        bare = tuple(tallies.bare[bisect_left(tallies.bare, first) : bisect_right(tallies.bare, last)])
        ranges.append(
            _BodyRange(first=first, last=last, digest=digest, bare=bare, vector_bytes=vector_bytes, in_order=in_order)
        )
        first = last + 1
    with sqlite.open_readonly(path) as db:
        # Units and vectors are looked up by hash, so access is random.
        db.execute(f"PRAGMA cache_size = -{ROWS_CACHE_KIB}")
        try:
            _check_counts(db, base_id, tallies)
            _check_ranges(db, path, ranges, processes)
        except _Difference as found:
            raise VerificationFailed(base=base_id, reason=str(found)) from None


class _Difference(Exception):
    """The file differs from what was written. The message says how."""


def _check_counts(db: apsw.Connection, base_id: str, tallies: Tallies) -> None:
    """Raise _Difference unless the index has the right identity and numbers of rows, and no dangling references."""
    if db.execute("SELECT schema_version, base_id FROM meta").fetchall() != [(schema.SCHEMA_VERSION, base_id)]:
        raise _Difference(tr("its identity row is wrong"))
    written = (tallies.materials, tallies.units, tallies.units, tallies.embeddings, tallies.units)
    for table, expected in zip(_COUNTED, written, strict=True):
        count = db.execute(f"SELECT count(*) FROM {table}").get
        if count != expected:
            text = tr("{table} has {count:,} rows instead of {expected:,}", table=table, count=count, expected=expected)
            raise _Difference(text)
    if db.execute("PRAGMA foreign_key_check").fetchall():
        raise _Difference(tr("a foreign key refers to a missing row"))
    bare = db.execute("SELECT count(*) FROM material WHERE current_content_hash IS NULL").get
    if bare:
        raise _Difference(tr("{bare} materials have no content", bare=bare))


def verify_full_text(path: Path, base_id: str) -> None:
    """Let FTS5 compare the full-text index of a new file with the bodies.

    Raises:
        VerificationFailed: the full-text index does not match the stored texts.
        apsw.Error, OSError: the file cannot be read.
    """
    with sqlite.open_writable(path) as db:
        if not full_text_matches(db):
            raise VerificationFailed(base=base_id, reason=tr("the full-text index does not match the stored texts"))


class _BodyRange(msgspec.Struct, frozen=True, kw_only=True):
    """A range of body numbers to verify, and the digest of what was written for it.

    Attributes:
        bare: numbers of the bodies that were added without a vector.
        vector_bytes: length of each vector in bytes.
        in_order: the embeddings are stored in the order of the bodies.
    """

    first: int
    last: int
    digest: str
    bare: tuple[int, ...]
    vector_bytes: int | None
    in_order: bool


def _check_ranges(db: apsw.Connection, path: Path, ranges: deque[_BodyRange], processes: ProcessPool | None) -> None:
    """Check all ranges: this process starts with the first one, the process pool (if any) with the last one."""
    submitted: list[tuple[int, _BodyRange]] = []
    while ranges:
        try:
            if processes is not None:
                processes.go_on()
            while processes is not None and ranges and processes.has_room():
                submitted.append((processes.put(_is_range_correct, path, ranges[-1]), ranges.pop()))
        except JobFailed as problem:
            logger.info("the index is verified by one process: %s", problem)
            processes = None
        if ranges:
            _check_range(db, ranges.popleft())
    for job, bodies in submitted:
        if not _collect_result(processes, job):
            _check_range(db, bodies)


def _collect_result(processes: ProcessPool | None, job: int) -> bool:
    """Return whether another process found its range to be correct; False too if the process failed."""
    try:
        return processes is not None and processes.take(job)
    except JobFailed as problem:
        logger.info("a part of the index is verified again by this process: %s", problem)
        return False


def _is_range_correct(path: Path, bodies: _BodyRange) -> bool:
    """Whether a range of bodies has the digest of what was written; runs in another process.

    If it is wrong, the main process checks the range again to report the difference.
    """
    with sqlite.open_readonly(path) as db:
        try:
            _check_range(db, bodies)
        except _Difference:
            return False
    return True


def _check_range(db: apsw.Connection, bodies: _BodyRange) -> None:
    """Compare each body of a range with its content at the unit's offsets, and all of them with their digest.

    A new file stores units in the order of the bodies, and vectors too unless bodies share one (``in_order``). They are
    then read in that order instead of being looked up by hash, which would be random access.

    Raises:
        _Difference: the file differs from what was written.
    """
    digest = BodiesDigest()
    content = _ContentCursor(db)
    without_vector = iter(bodies.bare)
    next_bare = next(without_vector, None)
    same_embedding = _SAME_ROW if bodies.in_order else _SAME_HASH
    rows = db.execute(_BODIES.format(same_embedding=same_embedding), (bodies.first, bodies.last))
    for material, content_hash, index, start, end, unit, text, body_hash, vector, rowid, number in rows:
        is_bare = number == next_bare
        if is_bare:
            next_bare = next(without_vector, None)
        elif vector is None:
            raise _Difference(tr("a body has no vector"))
        if unit is None or rowid != number:
            raise _Difference(tr("a body has no unit, or its row id differs from its full-text number"))
        if vector is not None and (not isinstance(vector, bytes) or len(vector) != bodies.vector_bytes):
            raise _Difference(tr("a vector has the wrong length"))
        if unit != identity.unit_id(material, content_hash, index, start, end):
            raise _Difference(tr("a unit's id is wrong"))
        raw, pieces = _hash_and_pieces(db, rowid, text)
        if not content.holds(content_hash, pieces, start, end):
            raise _Difference(tr("a body is not at the offsets of its unit"))
        if raw.hexdigest() != body_hash:
            raise _Difference(tr("a body does not match its hash"))
        digest.add(raw.digest(), None if is_bare else vector)
    if digest.hexdigest() != bodies.digest:
        raise _Difference(tr("texts or vectors differ"))


def _hash_and_pieces(db: apsw.Connection, rowid: int, text: str | None) -> tuple[hashlib._Hash, Iterable[bytes]]:
    """Return the hash object of the body with a row id, and the body's UTF-8 bytes in pieces.

    The hash is complete when all pieces are consumed. ``text`` is the body, or None for a large one.
    """
    hasher = hashlib.sha256()
    pieces = read_pieces(db, "search_text", "text", rowid) if text is None else (text.encode(),)

    def hashed() -> Iterator[bytes]:
        """Yield the pieces, and add each to the hash."""
        for piece in pieces:
            hasher.update(piece)
            yield piece

    return hasher, hashed()


class _ContentCursor:
    """Compares bodies with the contents that they are slices of.

    Each content is read once from start to end, in the order in which it was written.
    """

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._hash = ""
        self._text: LargeContent | WholeContent | None = None
        self._end = -1

    def holds(self, content_hash: str, body: Iterable[bytes], start: int, end: int) -> bool:
        """Whether a body is the slice of a content from ``start`` to ``end`` (UTF-16 units); reads all its pieces."""
        if content_hash != self._hash or start < self._end:
            self._load(content_hash)
        text = self._text
        fits = text is not None and text.starts_at(start)
        for piece in body:
            fits = text is not None and fits and text.matches_next(piece)
        self._end = end
        return text is not None and fits and text.ends_at(end)

    def _load(self, content_hash: str) -> None:
        """Open the content with a hash, and close the one before."""
        if self._text is not None:
            self._text.close()
        self._text, self._hash = None, content_hash
        query = "SELECT rowid, octet_length(text) FROM content WHERE content_hash = ?"
        for rowid, size in self._db.execute(query, (content_hash,)):
            kind = LargeContent if size > LARGE_BYTES else WholeContent
            self._text = kind(self._db, rowid, content_hash)
