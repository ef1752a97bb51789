"""Reads a freshly written index back and compares it with what was put into it."""

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

_COUNTS = {
    "materials": "SELECT count(*) FROM material",
    "units": "SELECT count(*) FROM search_unit",
    "bodies": "SELECT count(*) FROM search_text",
    "embeddings": "SELECT count(*) FROM embedding",
    "full-text rows": "SELECT count(*) FROM search_text_fts_docsize",
}


#: Every body with its unit and its vector; ``same_embedding`` says how the vector is found.
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
    crew: ProcessPool | None = None,
) -> None:
    """Check counts, coverage, offsets, ids, blob lengths and the digests over texts and vectors.

    Every body has a vector but those that came without one (``tallies.bare``), which may share an equal text's.

    Args:
        path: the file.
        base_id: the base's.
        tallies: of what was put in.
        digests: of what was put in.
        vector_bytes: how long each vector is, in bytes.
        crew: processes that help where they have been started.

    Raises:
        VerificationFailed: the file is not what was put into it.
        apsw.Error, OSError: it cannot be read.
    """
    with sqlite.open_readonly(path) as db:
        # Units and vectors are looked up by hash, in no order.
        db.execute(f"PRAGMA cache_size = -{ROWS_CACHE_KIB}")
        try:
            _demand_counts(db, base_id, tallies)
            _demand_parts(db, path, deque(_parts(tallies, digests, vector_bytes)), crew)
        except _Differs as found:
            raise VerificationFailed(base=base_id, reason=str(found)) from None


class _Differs(Exception):
    """A file is not what was put into it; the text says in what."""


def _demand_counts(db: apsw.Connection, base_id: str, tallies: Tallies) -> None:
    if db.execute("SELECT schema_version, base_id FROM meta").fetchall() != [(schema.SCHEMA_VERSION, base_id)]:
        raise _Differs(tr("its identity row is wrong"))
    counts = {name: db.execute(sql).get for name, sql in _COUNTS.items()}
    bodies = tallies.units
    expected = dict(zip(_COUNTS, (tallies.materials, bodies, bodies, tallies.embeddings, bodies), strict=True))
    if counts != expected:
        raise _Differs(tr("it holds {counts} instead of {expected}", counts=counts, expected=expected))
    if db.execute("PRAGMA foreign_key_check").fetchall():
        raise _Differs(tr("a foreign key dangles"))
    bare = db.execute("SELECT count(*) FROM material WHERE current_content_hash IS NULL").get
    if bare:
        raise _Differs(tr("{bare} materials have no content", bare=bare))


def verify_full_text(path: Path, base_id: str) -> None:
    """Let FTS5 hold the whole full-text index of a fresh file against the bodies.

    Raises:
        VerificationFailed: it does not hold their words.
        apsw.Error, OSError: it cannot be read.
    """
    with sqlite.open_writable(path) as db:
        if not full_text_matches(db):
            raise VerificationFailed(base=base_id, reason=tr("the full-text index does not match the bodies"))


class _Bodies(msgspec.Struct, frozen=True, kw_only=True):
    """Bodies from one number to another, the digest over what was put in, and the numbers of those without a vector.

    ``vector_bytes`` is how long each vector is. ``in_order``: the vectors stand in the order of the bodies.
    """

    first: int
    last: int
    digest: str
    bare: tuple[int, ...]
    vector_bytes: int | None
    in_order: bool


def _parts(tallies: Tallies, digests: list[PartDigest], vector_bytes: int | None) -> Iterator[_Bodies]:
    first, in_order = 1, tallies.embeddings == tallies.units
    for last, digest in digests:
        bare = tuple(tallies.bare[bisect_left(tallies.bare, first) : bisect_right(tallies.bare, last)])
        yield _Bodies(first=first, last=last, digest=digest, bare=bare, vector_bytes=vector_bytes, in_order=in_order)
        first = last + 1


def _demand_parts(db: apsw.Connection, path: Path, parts: deque[_Bodies], crew: ProcessPool | None) -> None:
    """Read all parts back: the first ones here, the last ones by others meanwhile."""
    given: list[tuple[int, _Bodies]] = []
    while parts:
        try:
            if crew is not None:
                crew.go_on()
            while crew is not None and parts and crew.has_room():
                given.append((crew.put(_is_sound, path, parts[-1]), parts.pop()))
        except JobFailed as problem:
            logger.info("the index is read back by one process: %s", problem)
            crew = None
        if parts:
            _demand_part(db, parts.popleft())
    for job, part in given:
        if not _answer(crew, job):
            _demand_part(db, part)


def _answer(crew: ProcessPool | None, job: int) -> bool:
    """Return what a process found; False where nobody knows."""
    try:
        return crew is not None and crew.take(job)
    except JobFailed as problem:
        logger.info("a part of the index is read back again: %s", problem)
        return False


def _is_sound(path: Path, part: _Bodies) -> bool:
    """Tell whether a part of the bodies is as it was put in. What it has instead is for others to find and to say."""
    with sqlite.open_readonly(path) as db:
        try:
            _demand_part(db, part)
        except _Differs:
            return False
    return True


def _demand_part(db: apsw.Connection, part: _Bodies) -> None:
    """Hold every body of a part against its place in its content, and all of them against their digest.

    A fresh file has units in the order of the bodies, and vectors too where no two bodies share one (``in_order``):
    they are then read in that order instead of being looked up by their hashes, in none.
    """
    digest = BodiesDigest()
    content = _Content(db)
    without_vector = iter(part.bare)
    next_bare = next(without_vector, None)
    same_embedding = _SAME_ROW if part.in_order else _SAME_HASH
    rows = db.execute(_BODIES.format(same_embedding=same_embedding), (part.first, part.last))
    for material, content_hash, index, start, end, unit, text, body_hash, vector, rowid, number in rows:
        is_bare = number == next_bare
        if is_bare:
            next_bare = next(without_vector, None)
        elif vector is None:
            raise _Differs(tr("a body has no vector"))
        if unit is None or rowid != number:
            raise _Differs(tr("a body has no unit, or its row number is out of step"))
        if vector is not None and (not isinstance(vector, bytes) or len(vector) != part.vector_bytes):
            raise _Differs(tr("a vector has another length"))
        if unit != identity.unit_id(material, content_hash, index, start, end):
            raise _Differs(tr("a unit's id is wrong"))
        raw, pieces = _body(db, rowid, text)
        if not content.holds(content_hash, pieces, start, end):
            raise _Differs(tr("a body is not where its unit says"))
        if raw.hexdigest() != body_hash:
            raise _Differs(tr("a body does not match its hash"))
        digest.add(raw.digest(), None if is_bare else vector)
    if digest.hexdigest() != part.digest:
        raise _Differs(tr("texts or vectors differ"))


def _body(db: apsw.Connection, rowid: int, text: str | None) -> tuple[hashlib._Hash, Iterable[bytes]]:
    """Return the hash of a body's bytes, and these; a large body (None) is read, and hashed, as they are taken."""
    if text is not None:
        encoded = text.encode()
        return hashlib.sha256(encoded), (encoded,)
    hasher = hashlib.sha256()
    return hasher, _hashed(read_pieces(db, "search_text", "text", rowid), hasher)


def _hashed(pieces: Iterable[bytes], hasher: hashlib._Hash) -> Iterator[bytes]:
    for piece in pieces:
        hasher.update(piece)
        yield piece


class _Content:
    """The content texts that bodies come from, each walked from start to end, as it was written."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._hash = ""
        self._text: LargeContent | WholeContent | None = None
        self._end = -1

    def holds(self, content_hash: str, body: Iterable[bytes], start: int, end: int) -> bool:
        """Tell whether ``body`` is the content's slice from ``start`` to ``end`` (UTF-16 units); takes all of it."""
        if content_hash != self._hash or start < self._end:
            self._load(content_hash)
        text = self._text
        fits = text is not None and text.begins_at(start)
        for piece in body:
            fits = text is not None and fits and text.goes_on(piece)
        self._end = end
        return text is not None and fits and text.has_come_to(end)

    def _load(self, content_hash: str) -> None:
        if self._text is not None:
            self._text.close()
        self._text, self._hash = None, content_hash
        query = "SELECT rowid, octet_length(text) FROM content WHERE content_hash = ?"
        for rowid, size in self._db.execute(query, (content_hash,)):
            kind = LargeContent if size > LARGE_BYTES else WholeContent
            self._text = kind(self._db, rowid, content_hash)
