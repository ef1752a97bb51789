"""Chunks of a KB: whether each belongs to a document, can be found, and has the id that it must have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from checks.rsclaw import findings as kb
from checks.rsclaw.seen import NAMED, Seen
from regraft import links
from regraft.formats.redb import RedbFile
from regraft.formats.rsclaw import rows
from regraft.formats.rsclaw.carrying import inside
from regraft.formats.rsclaw.identities import chunk_id
from regraft.formats.rsclaw.rows import ACTIVE
from regraft.formats.rsclaw.vectors import Flaw
from regraft.language import tr

#: A chunk with its document, for a person.
_CHUNK = f"{NAMED.format(id='c.doc_id')} || ', ' || c.id"
#: Chunks that a search may find.
SEARCHED = f"chunk c JOIN current ON current.id = c.doc_id JOIN doc d ON d.id = c.doc_id AND c.status = '{ACTIVE}'"
_MESSAGES = {
    Flaw.EMPTY: tr("{n} without a vector: {named}"),
    Flaw.NOT_NUMBERS: tr("{n} with a vector that is not made of numbers: {named}"),
    Flaw.NOT_FINITE: tr("{n} with a vector that is not finite: {named}"),
    Flaw.OVERFLOW: tr("{n} with a vector whose norm is too large for single precision: {named}"),
    Flaw.ZERO: tr("{n} with a vector of zeros: {named}"),
}


def check(seen: Seen) -> None:
    """Look at the chunks; what their documents' files are was looked at before."""
    _check_documents(seen)
    _check_index(seen)
    _check_vectors(seen)
    _check_ranges(seen)
    _check_mentions(seen)


def _check_documents(seen: Seen) -> None:
    if seen.mirror.is_whole(rows.DOCS):
        lost = (
            """SELECT c.doc_id || ', ' || c.id FROM chunk c WHERE c.doc_id NOT IN (SELECT id FROM doc) ORDER BY c.id"""
        )
        seen.say(
            kb.CHUNK_ORPHAN, tr("{n} of a document that is not there: {named}"), noun="chunk", samples=seen.texts(lost)
        )
    other = f"""SELECT {_CHUNK} FROM chunk c JOIN doc d ON d.id = c.doc_id
                 WHERE c.doc_version <> d.version OR c.lsid <> d.lsid ORDER BY d.id, c.seq, c.id"""
    message = tr("{n} of another version or source than the document: {named}")
    seen.say(kb.CHUNK_ORPHAN, message, noun="chunk", samples=seen.texts(other))


def _check_index(seen: Seen) -> None:
    """Hold what lists chunks by their sources against the chunks."""
    if not seen.mirror.is_whole(rows.CHUNKS, rows.CHUNKS_BY_SOURCE):
        return
    lost = """SELECT s.chunk_id FROM by_source s LEFT JOIN chunk c ON c.id = s.chunk_id AND c.lsid = s.lsid
               WHERE c.id IS NULL ORDER BY 1"""
    seen.say(
        kb.CHUNK_INDEX,
        tr("{n} listed under a source that has no such chunk: {named}"),
        noun="id",
        samples=seen.texts(lost),
    )
    unlisted = f"""SELECT {_CHUNK} FROM chunk c LEFT JOIN doc d ON d.id = c.doc_id
                    WHERE NOT EXISTS (SELECT 1 FROM by_source s WHERE s.lsid = c.lsid AND s.chunk_id = c.id)
                    ORDER BY c.doc_id, c.seq, c.id"""
    message = tr("{n} not listed under the source: {named}")
    seen.say(kb.CHUNK_INDEX, message, noun="chunk", samples=seen.texts(unlisted))


# --- vectors ---------------------------------------------------------------------------------------------------------


def usual_dimensions(seen: Seen) -> int | None:
    """Return how many numbers the vectors of most chunks have that are searched; None where there are none."""
    query = f"SELECT c.dimensions FROM {SEARCHED} WHERE c.flaw IS NULL GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 1"
    for (dimensions,) in seen.db.execute(query):
        return int(str(dimensions))
    return None


def _check_vectors(seen: Seen) -> None:
    usual = usual_dimensions(seen)
    order = "ORDER BY d.id, c.seq, c.id"
    other = (
        f"SELECT {_CHUNK} || ': ' || c.dimensions FROM {SEARCHED} WHERE c.flaw IS NULL AND c.dimensions <> ? {order}"
    )
    message = tr("{{n}} with a vector of another length than {dimensions}, as most have: {{named}}", dimensions=usual)
    seen.say(kb.DIMENSIONS, message, noun="chunk", samples=seen.texts(other, usual))
    for flaw, message in _MESSAGES.items():
        flawed = f"SELECT {_CHUNK} FROM {SEARCHED} WHERE c.flaw = ? {order}"
        seen.say(kb.DIMENSIONS, message, noun="chunk", samples=seen.texts(flawed, flaw))
    most = f"SELECT c.embedder FROM {SEARCHED} GROUP BY 1 ORDER BY count(*) DESC, 1"
    first, *others = [*seen.texts(most), ""]
    if len(others) > 1:
        message = tr("{{n}} embedded by another embedder than {first}, as most are: {{named}}", first=first)
        strange = f"SELECT {_CHUNK} || ': ' || c.embedder FROM {SEARCHED} WHERE c.embedder <> ? {order}"
        seen.say(kb.EMBEDDERS, message, noun="chunk", samples=seen.texts(strange, first))


# --- ranges and ids --------------------------------------------------------------------------------------------------


def _check_ranges(seen: Seen) -> None:
    """Find ranges that no text has; whether one lies in a text is asked where that is the document's own."""
    query = f"""SELECT {_CHUNK} || ': ' || c.first || '-' || c.last
                  FROM chunk c JOIN doc d ON d.id = c.doc_id LEFT JOIN body b ON b.doc_id = c.doc_id
                 WHERE c.first < 0 OR c.last < c.first OR c.last > coalesce(b.size, c.last)
                 ORDER BY d.id, c.seq, c.id"""
    message = tr("{n} whose range does not lie in the text: {named}")
    seen.say(kb.CHUNK_RANGE, message, noun="chunk", samples=seen.texts(query))


class _Indexed(msgspec.Struct, frozen=True):
    """What the id of a chunk follows from, and tells whether its text stands in the body as it is."""

    id: str
    doc_id: str
    logical_source_id: str
    seq: rows.Count
    byte_offset: tuple[rows.Whole, rows.Whole]
    indexed_text: str
    heading_path: list[str] = []


_decode = msgspec.json.Decoder(_Indexed).decode


def check_ids(seen: Seen, file: RedbFile) -> None:
    """Hold the ids of chunks against what they follow from, where the body of the file has the chunk's text as it is.

    Raises:
        RedbError: the database cannot be read any more.
    """
    if rows.CHUNKS in file.tables:
        seen.db.execute("CREATE TEMP TABLE wrong_id (chunk_id TEXT)")
        seen.db.executemany("INSERT INTO wrong_id VALUES (?)", _wrong_ids(seen, file))
        query = f"""SELECT {_CHUNK} FROM wrong_id w JOIN chunk c ON c.id = w.chunk_id
                      JOIN doc d ON d.id = c.doc_id ORDER BY d.id, c.seq, c.id"""
        message = tr("{n} with an id that does not follow from the text: {named}")
        seen.say(kb.CHUNK_ID, message, noun="chunk", samples=seen.texts(query))


def _wrong_ids(seen: Seen, file: RedbFile) -> Iterator[tuple[str]]:
    for _, value in file.raw_rows(rows.CHUNKS):
        seen.ledger.check_time()
        with suppress(msgspec.MsgspecError, OSError):
            chunk = _decode(value)
            text = _text_in_body(seen, chunk)
            if text and chunk.seq < 1 << 32 and chunk_id(chunk.logical_source_id, chunk.seq, text) != chunk.id:
                yield (chunk.id,)


def _text_in_body(seen: Seen, chunk: _Indexed) -> str | None:
    """Return the text of a chunk where it stands in the body as it was embedded, None where that is not certain."""
    headings = " > ".join(chunk.heading_path)
    if headings and not chunk.indexed_text.startswith(f"{headings}\n\n"):
        return None
    text = chunk.indexed_text[len(headings) + 2 :] if headings else chunk.indexed_text
    (first, last), wanted = chunk.byte_offset, text.encode()
    if first < 0 or last - first != len(wanted):
        return None
    query = "SELECT d.md_path, b.start FROM body b JOIN doc d ON d.id = b.doc_id WHERE d.id = ? AND b.size >= ?"
    for path, start in seen.db.execute(query, (chunk.doc_id, last)):
        place = inside(seen.root, str(path))
        if place is not None and _piece(place, int(str(start)) + first, len(wanted)) == wanted:
            return text
    return None


def _piece(path: Path, start: int, length: int) -> bytes:
    with links.reading(path) as file:
        file.seek(start)
        return file.read(length)


# --- mentions --------------------------------------------------------------------------------------------------------


def _check_mentions(seen: Seen) -> None:
    if not seen.mirror.is_whole(rows.CHUNKS, rows.ENTITIES):
        return
    query = """SELECT m.entity_id || ', ' || m.chunk_id FROM mention m
                WHERE m.chunk_id NOT IN (SELECT id FROM chunk) OR m.entity_id NOT IN (SELECT id FROM entity)
                ORDER BY 1"""
    message = tr("{n} of a chunk or an entity that is not there: {named}")
    seen.say(kb.ENTITY, message, noun="mention", samples=seen.texts(query))
