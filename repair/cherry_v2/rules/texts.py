"""Mending what texts say of each other: contents by the bodies of their units, bodies and places by the contents.

A hash is proof: what has it is what was there. Rules: ``docs/findings.md`` and ``docs/formats/index.md``, "Identities".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, starmap
from operator import attrgetter
from typing import Any, NamedTuple

import apsw

from checks.cherry_v2 import findings as v2
from checks.cherry_v2 import texts
from regraft.language import tr
from repair.cherry_v2.rules.workbench import DERIVED, Job, digest, text_of

#: SQLite's longest text, in bytes.
_LONGEST = 1 << 31
_PARAGRAPH = b"\n\n"
_WIDE_PARAGRAPH = "\n\n".encode("utf-16-le")

# --- contents --------------------------------------------------------------------------------------------------------

#: The bodies of a text's units, in the order of each material. ``is_proven``: neither place nor text was changed.
_PIECES = """SELECT CAST(u.material AS BLOB) AS material, u.char_start, u.char_end, CAST(t.text AS BLOB) AS text,
       u.follows AND t.embedding_text_hash IS sha256_hex(CAST(t.text AS BLOB)) AS is_proven
  FROM temp.m_unit u CROSS JOIN temp.m_body b ON b.unit = u.rid CROSS JOIN main.search_text t ON t.rowid = b.rid
 WHERE u.content = (SELECT key FROM temp.m_content WHERE rid = ?) ORDER BY u.material, u.idx"""


class _Piece(NamedTuple):
    material: bytes
    start: Any
    end: Any
    text: bytes | None
    is_proven: int


def mend_contents(job: Job) -> None:
    """Give contents that are not what their hash says their text back, or else their true hash."""
    db = job.db
    if v2.CONTENT_HASH in job.found:
        for rid, key, kind, raw in db.execute(texts.CONTENTS):
            if not texts.is_right(key, kind, raw):
                own = digest(raw) if text_of(raw) is not None else None
                db.execute(
                    "INSERT INTO temp.m_content (rid, key, own_key) SELECT rowid, content_hash, ? FROM main.content"
                    " WHERE rowid = ?",
                    (own, rid),
                )
        db.execute("CREATE INDEX temp.m_content_own ON m_content (own_key)")
    if job.wants(v2.CONTENT_HASH):
        for rid in _numbers(db, "m_content", "TRUE"):
            _mend_content(job, rid)
        _rekey(job)
    db.execute(
        "INSERT INTO temp.m_known (rid, key, is_whole) SELECT c.rowid, c.content_hash, m.rid IS NULL OR"
        " m.state = 'restored' FROM main.content c LEFT JOIN temp.m_content m ON m.rid = c.rowid"
        " WHERE m.rid IS NULL OR m.state <> 'rekeyed'"
    )
    db.execute("CREATE UNIQUE INDEX temp.m_known_key ON m_known (key)")
    db.execute(
        "INSERT OR IGNORE INTO temp.m_known (rid, key, is_whole)"
        " SELECT rid, new_key, TRUE FROM temp.m_content WHERE state = 'rekeyed' ORDER BY rid"
    )


def _numbers(db: apsw.Connection, table: str, where: str) -> Iterator[int]:
    """Return row numbers one by one, so that the rows may be changed meanwhile."""
    last = -(1 << 63)
    while True:
        query = f"SELECT rid FROM temp.{table} WHERE rid > ? AND ({where}) ORDER BY rid LIMIT 1"
        found = db.execute(query, (last,)).get
        if found is None:
            return
        last = int(found)
        yield last


def _mend_content(job: Job, rid: int) -> None:
    row: Any = job.db.execute(
        "SELECT CAST(content_hash AS BLOB), CAST(text AS BLOB) FROM main.content WHERE rowid = ?", (rid,)
    ).get
    key, raw = row
    wide = _Wide(raw)
    wanted = text_of(key)
    for candidate in _candidates(job.db, rid, raw, wide):
        if digest(candidate) == wanted:
            job.db.execute(
                "UPDATE temp.m_content SET state = 'restored', text = ? WHERE rid = ?", (candidate.decode(), rid)
            )
            job.done["restore-contents"] += 1
            return
    if text_of(raw) is not None:
        # Bodies that cut a pair of surrogates in what was moved do not make it a better text.
        text = wide.text() or bytes(raw or b"")
        job.db.execute(
            "UPDATE temp.m_content SET state = 'rekeyed', new_key = ?, text = ? WHERE rid = ?",
            (digest(text), text.decode(), rid),
        )


def _candidates(db: apsw.Connection, rid: int, raw: bytes | None, wide: _Wide) -> Iterator[bytes]:
    """Return what a content may have been, each as UTF-8."""
    if text_of(raw) is not None:
        yield raw or b""
    anywhere = _Wide(raw)
    rows = starmap(_Piece, db.execute(_PIECES, (rid,)))
    for _, group in groupby(rows, key=attrgetter("material")):
        pieces = list(group)
        if all(text_of(piece.text) is not None for piece in pieces):
            yield _PARAGRAPH.join(piece.text or b"" for piece in pieces)
        # What comes of any places is held against the hash; what is kept without one needs places that are proven.
        anywhere.lay(pieces)
        yield from anywhere.texts()
        wide.lay([piece for piece in pieces if piece.is_proven])
    yield from _moved_text(db, rid)


def _moved_text(db: apsw.Connection, rid: int) -> Iterator[bytes]:
    """Yield the text that is what the hash of a row says, and stands in another one: two may have changed places."""
    other = db.execute(
        "SELECT CAST(c.text AS BLOB) FROM temp.m_content m JOIN main.content c ON c.rowid = m.rid"
        " WHERE m.own_key = (SELECT key FROM temp.m_content WHERE rid = ?) LIMIT 1",
        (rid,),
    ).get
    if isinstance(other, bytes):
        yield other


class _Wide:
    """A damaged text in UTF-16, over which the bodies of units are laid at their places."""

    def __init__(self, raw: bytes | None) -> None:
        self._wide = bytearray((text_of(raw) or "").encode("utf-16-le"))
        self._end = 0

    def lay(self, pieces: Iterable[_Piece]) -> None:
        """Lay bodies over the text; a paragraph's end comes between one beyond it and what is there."""
        for piece in pieces:
            body = text_of(piece.text)
            wide = b"" if body is None else body.encode("utf-16-le")
            is_place = texts.is_span(piece.start, piece.end, _LONGEST)
            if body is None or not is_place or len(wide) != 2 * (piece.end - piece.start):
                continue
            if 2 * piece.start == len(self._wide) + len(_WIDE_PARAGRAPH):
                self._wide += _WIDE_PARAGRAPH
            if 2 * piece.start <= len(self._wide):
                self._wide[2 * piece.start : 2 * piece.end] = wide
                self._end = max(self._end, 2 * piece.end)

    def texts(self) -> Iterator[bytes]:
        """Return the text as it is now, and as it ends with the last body, in UTF-8."""
        for wide in (self._wide, self._wide[: self._end]):
            text = _narrow(bytes(wide))
            if text is not None:
                yield text.encode()

    def text(self) -> bytes | None:
        """Return the text as it is now, in UTF-8; None where it is none."""
        return next(self.texts(), None)


def _narrow(wide: bytes) -> str | None:
    try:
        return wide.decode("utf-16-le")
    except UnicodeDecodeError:
        return None


def _rekey(job: Job) -> None:
    """Have units and materials follow the contents that got another hash."""
    db = job.db
    # No hash goes to one content while another one has still to give it up.
    db.execute(
        "UPDATE temp.m_content SET state = 'left' WHERE state = 'rekeyed' AND new_key IN"
        " (SELECT CAST(key AS TEXT) FROM temp.m_content WHERE state <> 'restored')"
    )
    job.done["rekey-contents"] += job.count("SELECT count(*) FROM temp.m_content WHERE state = 'rekeyed'")
    left = job.count("SELECT count(*) FROM temp.m_content WHERE state = 'left'")
    job.leave(v2.CONTENT_HASH, tr("what is stored is not text, and the bodies of the units do not give it back"), left)
    follow = "FROM temp.m_content c WHERE c.state = 'rekeyed' AND c.key = "
    db.execute(f"UPDATE temp.m_unit SET content = c.new_key, touched = TRUE {follow} m_unit.content")
    db.execute(f"UPDATE temp.m_material SET new_content = c.new_key {follow} m_material.content")


# --- bodies and places -----------------------------------------------------------------------------------------------

#: CROSS JOIN keeps the order: the units of the content first.
_SLICES = """SELECT u.rid, u.char_start, u.char_end, b.rid, b.bad, CAST(t.text AS BLOB), typeof(t.text),
       CAST(b.hash AS BLOB)
  FROM temp.m_unit u CROSS JOIN temp.m_body b ON b.unit = u.rid CROSS JOIN main.search_text t ON t.rowid = b.rid
 WHERE u.content = (SELECT key FROM temp.m_known WHERE rid = ?)"""


class _Whole:
    """A content, cut at UTF-16 units and searched as UTF-8."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._width = 1 if raw.isascii() else 2
        self._wide = raw if self._width == 1 else raw.decode().encode("utf-16-le")

    def cut(self, start: Any, end: Any) -> str | None:
        """Return the slice between two places; None where that is no slice of the text."""
        if not texts.is_span(start, end, len(self._wide) // self._width):
            return None
        part = self._wide[start * self._width : end * self._width]
        return part.decode() if self._width == 1 else _narrow(part)

    def place(self, body: bytes) -> tuple[int, int] | None:
        """Return where a body is, if it is there exactly once."""
        if not texts.holds_once(self._raw, body):
            return None
        first = self._raw.find(body)
        if self._width == 1:
            return first, first + len(body)
        start = len(self._raw[:first].decode().encode("utf-16-le")) // 2
        return start, start + len(body.decode().encode("utf-16-le")) // 2


def mend_places(job: Job) -> None:
    """Hold every body against its place: give it its text back, or its unit the place where the text holds it."""
    db = job.db
    if v2.BODY_HASH in job.found:
        db.execute(
            "UPDATE temp.m_body SET bad = TRUE WHERE rid IN (SELECT rowid FROM main.search_text WHERE"
            " typeof(text) <> 'text' OR embedding_text_hash IS NOT sha256_hex(CAST(text AS BLOB)))"
        )
    # Of a unit that had no body the audit could not tell whether its place is right.
    if job.done["link-bodies"] or not job.found.isdisjoint((v2.BODY_HASH, v2.UNIT_OFFSETS, v2.CONTENT_HASH)):
        for rid in _numbers(db, "m_known", "is_whole"):
            _mend_slices(job, rid, _Whole(_text_of_content(db, rid)))
    if job.wants(v2.BODY_HASH):
        _rehash(job)


def _text_of_content(db: apsw.Connection, rid: int) -> bytes:
    raw: Any = db.execute(
        "SELECT CAST(ifnull(m.text, c.text) AS BLOB) FROM main.content c LEFT JOIN temp.m_content m ON m.rid = c.rowid"
        " WHERE c.rowid = ?",
        (rid,),
    ).get
    return bytes(raw or b"")


def _mend_slices(job: Job, content: int, whole: _Whole) -> None:
    placed: list[tuple[int, int, int]] = []
    restored: list[tuple[str, int]] = []
    wants_bodies = job.wants(v2.BODY_HASH)
    for unit, start, end, body, is_bad, raw, kind, body_hash in job.db.execute(_SLICES, (content,)):
        text = text_of(raw) if kind == "text" else None
        found = whole.cut(start, end)
        if found is None or found != text:
            if found is not None and digest(found.encode()).encode() == body_hash:
                # A place that still holds what was embedded is right, and the body is wrong.
                restored += [(found, body)] if is_bad and wants_bodies else []
            else:
                placed += _new_place(job, unit, None if text is None else whole.place(raw))
    job.db.executemany("UPDATE temp.m_body SET text = ?, bad = FALSE WHERE rid = ?", restored)
    job.db.executemany("UPDATE temp.m_unit SET char_start = ?, char_end = ?, touched = TRUE WHERE rid = ?", placed)
    job.done["restore-bodies"] += len(restored)
    job.done["place-units"] += len(placed)


def _new_place(job: Job, unit: int, place: tuple[int, int] | None) -> list[tuple[int, int, int]]:
    """Return a unit with the place where the text holds its body, if that is to be mended; say where none does."""
    if place is None:
        job.leave(v2.UNIT_OFFSETS, tr("the text does not hold the body, or holds it more than once"))
        return []
    return [(*place, unit)] if v2.UNIT_OFFSETS in job.wanted else []


def _rehash(job: Job) -> None:
    """Give bodies that are not what was embedded the hash of what they are."""
    job.change(
        "rehash-bodies",
        "UPDATE temp.m_body SET bad = FALSE, new_hash = (SELECT sha256_hex(CAST(t.text AS BLOB)) FROM main.search_text"
        " t WHERE t.rowid = m_body.rid) WHERE bad AND rid IN (SELECT t.rowid FROM main.search_text t"
        " JOIN temp.m_body b ON b.rid = t.rowid WHERE b.bad AND typeof(t.text) = 'text' AND"
        " is_text(CAST(t.text AS BLOB)))",
    )
    left = job.count("SELECT count(*) FROM temp.m_body WHERE bad")
    job.leave(v2.BODY_HASH, tr("what is stored is not text, and the text of its unit does not give it back"), left)


# --- bodies that are not there ---------------------------------------------------------------------------------------

_BODILESS = "NOT EXISTS (SELECT 1 FROM temp.m_body b WHERE b.unit = u.rid)"
#: A unit's place is sure where its id follows from it, with the content and number that it had or the number it has.
_IS_SURE = f"(follows OR {DERIVED.replace('content', 'was_content', 1)} IS id)"


def write_bodies(job: Job) -> None:
    """Write the bodies of units that have none, from the slices of their contents."""
    db = job.db
    if not job.wants(v2.NO_BODY):
        return
    missing = job.count(f"SELECT count(*) FROM temp.m_unit u WHERE {_BODILESS}")
    db.execute("DROP TABLE IF EXISTS temp.m_lacking")
    db.execute(
        "CREATE TEMP TABLE m_lacking AS SELECT DISTINCT k.rid FROM temp.m_unit u"
        f" JOIN temp.m_known k ON k.key = u.content WHERE k.is_whole AND {_BODILESS}"
    )
    for rid in _numbers(db, "m_lacking", "TRUE"):
        whole = _Whole(_text_of_content(db, rid))
        units = db.execute(
            f"SELECT rid, char_start, char_end FROM temp.m_unit u WHERE {_BODILESS} AND {_IS_SURE}"
            " AND content = (SELECT key FROM temp.m_known WHERE rid = ?)",
            (rid,),
        ).fetchall()
        bodies = [(unit, whole.cut(start, end)) for unit, start, end in units]
        new = [(unit, text, digest(text.encode())) for unit, text in bodies if text is not None]
        db.executemany(
            "INSERT INTO temp.m_body (unit, type, kind, is_new, text, new_hash)"
            " VALUES (?, 'search_unit', 'body', TRUE, ?, ?)",
            new,
        )
        job.done["write-bodies"] += len(new)
        missing -= len(new)
    job.leave(v2.NO_BODY, tr("its id does not prove which part of the text it is, or the text is not there"), missing)
