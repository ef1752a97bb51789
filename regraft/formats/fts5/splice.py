"""Copies the pages of shards into an index, and holds the result against the texts (``docs/formats/fts5.md``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from regraft import guarding, sqlite
from regraft.formats.fts5.records import (
    AVERAGES,
    SEGMENT_SHIFT,
    STRUCTURE,
    IndexSegment,
    SpliceRefused,
    Structure,
    demand_format,
    read_averages,
    record_of,
    varints,
)
from regraft.formats.fts5.shard import TABLE

#: What is looked for again: terms from so many places among the rows, each in so many rows around.
SAMPLES, SAMPLE_ROWS = 8, 500
#: A trigram that LIKE reads as it stands and no other case of which there is.
_TERM_CHARACTERS = 3
_WILD = "%_"


@dataclass(frozen=True, kw_only=True)
class Index:
    """A full-text index of one column whose texts are in another table: the names of both and of two columns."""

    table: str
    texts: str
    number: str
    text: str


@dataclass
class Spliced:
    """What has been copied so far."""

    cookie: bytes
    segments: list[IndexSegment] = field(default_factory=list)
    rows: int = 0
    tokens: int = 0


def begin(db: apsw.Connection, index: Index) -> Spliced:
    """Empty an index and return nothing spliced.

    Raises:
        SpliceRefused: it is of another format.
        apsw.Error: it cannot be written.
    """
    demand_format(db, index.table)
    db.execute(f"INSERT INTO {index.table} ({index.table}) VALUES ('delete-all')")
    structure = Structure.read(record_of(db, index.table, STRUCTURE))
    if structure.segments:
        raise SpliceRefused("the index is not empty")
    return Spliced(structure.cookie)


def add(db: apsw.Connection, index: Index, done: Spliced, shard: Path, rows: int) -> None:
    """Copy a shard of so many rows, which follow on those copied so far.

    Raises:
        SpliceRefused: the shard is of another format, or does not have these rows.
        apsw.Error: it cannot be read, or the index not written.
    """
    with sqlite.reading(shard) as source, guarding.below_the_surface(db):
        demand_format(source, TABLE)
        structure = Structure.read(record_of(source, TABLE, STRUCTURE))
        counted, tokens = read_averages(record_of(source, TABLE, AVERAGES))
        if counted != rows:
            raise SpliceRefused(f"a shard has {counted} rows instead of {rows}")
        if len(structure.segments) > 1:
            raise SpliceRefused("a shard has several segments")
        for segment in structure.segments:
            _copy_segment(source, db, index.table, segment, len(done.segments) + 1)
            done.segments.append(IndexSegment(len(done.segments) + 1, segment.first, segment.last))
        db.executemany(
            f"INSERT INTO {index.table}_docsize (id, sz) VALUES (?, ?)",
            source.execute(f"SELECT id, sz FROM {TABLE}_docsize ORDER BY id"),
        )
    done.rows += rows
    done.tokens += tokens


def _copy_segment(source: apsw.Connection, db: apsw.Connection, table: str, segment: IndexSegment, number: int) -> None:
    shift = (number - segment.number) << SEGMENT_SHIFT
    low, high = segment.number << SEGMENT_SHIFT, (segment.number + 1) << SEGMENT_SHIFT
    outside = f"SELECT count(*) FROM {TABLE}_data WHERE id NOT IN (?, ?) AND (id < ? OR id >= ?)"
    if source.execute(outside, (AVERAGES, STRUCTURE, low, high)).get:
        raise SpliceRefused("a shard has pages of no segment")
    db.executemany(
        f"INSERT INTO {table}_data (id, block) VALUES (?, ?)",
        source.execute(f"SELECT id + ?, block FROM {TABLE}_data WHERE id >= ? ORDER BY id", (shift, low)),
    )
    db.executemany(
        f"INSERT INTO {table}_idx (segid, term, pgno) VALUES (?, ?, ?)",
        source.execute(f"SELECT ?, term, pgno FROM {TABLE}_idx ORDER BY term", (number,)),
    )


def finish(db: apsw.Connection, index: Index, done: Spliced) -> None:
    """List what was copied as the index's segments, and see that it answers as the texts do.

    Each shard is a level of its own, the oldest the deepest: whoever writes next finds no level with much to merge.

    Raises:
        SpliceRefused: it does not.
        apsw.Error: it cannot be read or written.
    """
    levels = ((), *((segment,) for segment in reversed(done.segments)))
    pages = sum(segment.last - segment.first + 1 for segment in done.segments)
    structure = Structure(done.cookie, levels if done.segments else (), pages)
    with guarding.below_the_surface(db):
        replace = f"REPLACE INTO {index.table}_data (id, block) VALUES (?, ?)"
        db.execute(replace, (STRUCTURE, structure.record()))
        db.execute(replace, (AVERAGES, varints([done.rows, done.tokens])))
    # FTS5 keeps the list of segments that it read before; what it kept it forgets where it is taken back to a point.
    db.execute("SAVEPOINT spliced; ROLLBACK TO spliced; RELEASE spliced")
    _demand_answers(db, index, done)


def _demand_answers(db: apsw.Connection, index: Index, done: Spliced) -> None:
    named = f"FROM {index.texts} WHERE {index.number} IS NOT NULL"
    for what in (f"{index.table}_docsize", f"(SELECT {index.number} {named})"):
        if db.execute(f"SELECT count(*) FROM {what}").get != done.rows:
            raise SpliceRefused("the index has not as many rows as there are texts")
    strays = f"SELECT EXISTS (SELECT 1 FROM {index.table}_docsize WHERE id NOT IN (SELECT {index.number} {named}))"
    if db.execute(strays).get:
        raise SpliceRefused("the index has rows that are no text's")
    edges: Any = db.execute(f"SELECT min({index.number}), max({index.number}) {named}").get
    for sample in range(SAMPLES) if done.rows else ():
        low, high = edges
        _demand_sample(db, index, low + (high - low) * sample // SAMPLES)


def _demand_sample(db: apsw.Connection, index: Index, first: int) -> None:
    """See that a term of a row is found in the same rows as LIKE finds it in, among those that follow."""
    around = f"{index.number} BETWEEN ? AND ? + {SAMPLE_ROWS}"
    texts = db.execute(f"SELECT {index.text} FROM {index.texts} WHERE {around} ORDER BY {index.number}", (first, first))
    term = next(filter(None, (_term(str(text)) for (text,) in texts)), None)
    if term is None:
        return
    scanned = db.execute(
        f"SELECT {index.number} FROM {index.texts} WHERE {around} AND {index.text} LIKE ? ORDER BY {index.number}",
        (first, first, f"%{term}%"),
    ).fetchall()
    quoted = term.replace('"', '""')
    found = db.execute(
        f"SELECT rowid FROM {index.table} WHERE {index.table} MATCH ? AND rowid BETWEEN ? AND ? + {SAMPLE_ROWS}"
        " ORDER BY rowid",
        (f'"{quoted}"', first, first),
    ).fetchall()
    if found != scanned:
        raise SpliceRefused(f"a term is found in {len(found)} rows instead of {len(scanned)}")


def _term(text: str) -> str | None:
    """Return three characters of a text that LIKE and the index read alike, from its middle on; None where none are."""
    middle = len(text) // 2
    for start in (*range(middle, len(text) - 2), *range(min(middle, len(text) - 2))):
        term = text[start : start + _TERM_CHARACTERS]
        is_plain = term.isalnum() and not set(term) & set(_WILD)
        if is_plain and (term.isascii() or term.lower() == term.upper() == term.casefold()):
            return term
    return None
