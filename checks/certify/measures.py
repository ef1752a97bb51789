"""What is proven about the texts and vectors of one base, and of two, from the tables that :mod:`.base` fills."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import apsw
import msgspec
import numpy as np

from checks.audit.collector import FindingCollector
from checks.certify import findings as names
from checks.certify.base import (
    HEAD_CHARACTERS,
    NO_VECTOR,
    USABLE,
    CertifiedBase,
    head_digest,
    read_blocks,
    read_text,
    read_vectors,
    unit_vectors,
)
from regraft.disk import sqlite
from regraft.language import format_count, tr

#: Two vectors of one text by one model have at least this cosine.
MIN_COSINE = 0.99
#: Norms of a base are alike if nine of ten are this close to the median; then another one is an outlier from 1 % on.
_ALIKE, _ALIKE_SHARE, _NEAR = 1e-3, 0.9, math.log(1.01)
#: Otherwise a norm is an outlier at 12 times the median distance from the median, in logarithms, and at least 4 times
#: as large or small.
_SPREADS, _LEAST_RATIO = 12, math.log(4)
_MIN_VECTORS = 20
#: Characters of a text that a sample shows.
_SAMPLE_CHARACTERS = 60
#: Bars of the histogram of norms, which spans the smallest to the largest one.
NORM_BARS = 20


class BaseCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of a base: distinct texts, texts with a usable vector, and vectors that belong to a text."""

    texts: int
    findable: int
    vectors: int


class Measured(msgspec.Struct, kw_only=True):
    """A base whose texts and vectors are measured: the tables, and what is read again."""

    base: CertifiedBase
    db: apsw.Connection
    scratch: apsw.Connection
    prefix: str
    #: Bytes of most vectors; None without any.
    length: int | None = None

    def __post_init__(self) -> None:
        """Determine the length of the vectors."""
        stated = self.base.dimensions
        query = f"""SELECT length FROM {self.used} WHERE flaw <> {NO_VECTOR}
                     GROUP BY length ORDER BY length = ? DESC, count(*) DESC, min(at) LIMIT 1"""
        found = self.scratch.execute(query, (0 if stated is None else 4 * stated,)).get
        self.length = None if found is None else int(str(found))

    @property
    def used(self) -> str:
        """Name of the table of vectors that belong to a text, once each, with a row of their text as ``body``."""
        return f"{self.prefix}used"

    @property
    def findable(self) -> str:
        """SQL: one row for each text with a usable vector, ``text`` and ``at``, the row of the vector."""
        p = self.prefix
        return f"""(SELECT b.text AS text, min(v.rowid) AS at, min(b.rowid) AS body FROM {p}body b
                      JOIN {p}vector v ON v.rowid = b.vector
                     WHERE v.flaw = {USABLE} AND v.length = {self.length or 0} AND NOT b.is_extra GROUP BY b.text)"""

    def number(self, query: str, *values: object) -> int:
        """Return the number that a query computes."""
        return int(str(self.scratch.execute(query, values).get or 0))

    def counts(self) -> BaseCounts:
        """Count texts and vectors."""
        return BaseCounts(
            texts=self.number(f"SELECT count(DISTINCT text) FROM {self.prefix}body"),
            findable=self.number(f"SELECT count(*) FROM {self.prefix}found"),
            vectors=self.number(f"SELECT count(*) FROM {self.used} WHERE flaw <> {NO_VECTOR}"),
        )

    def sample_of(self, body: object) -> str:
        """Return the beginning of a text, to name it."""
        return read_text(self.db, self.base, int(str(body)), _SAMPLE_CHARACTERS)

    def materialize(self) -> None:
        """Write the texts with a usable vector to a table, which many queries use."""
        p = self.prefix
        self.scratch.execute(f"CREATE TABLE {p}found AS SELECT text, at, body FROM {self.findable} ORDER BY at")
        self.scratch.execute(f"CREATE INDEX {p}found_text ON {p}found (text)")
        self.scratch.execute(f"CREATE INDEX {p}found_at ON {p}found (at)")

    def left_out(self) -> Any:
        """Return the rows of usable vectors that repeat a text, or belong to none, sorted."""
        p = self.prefix
        rows = self.scratch.execute(
            f"SELECT rowid FROM {p}vector WHERE rowid NOT IN (SELECT at FROM {p}found) AND flaw = {USABLE} ORDER BY 1"
        )
        return np.fromiter((int(str(rowid)) for (rowid,) in rows), dtype=np.int64)

    def blocks(self, rows: int) -> Iterator[tuple[Any, Any]]:
        """Yield the vectors of all texts in blocks: row ids, and unit vectors."""
        if self.length is not None:
            yield from read_blocks(self.db, self.base, self.length, self.left_out(), rows)

    def units(self, rowids: Sequence[int]) -> Any:
        """Return the unit vectors of rows."""
        return unit_vectors(read_vectors(self.db, self.base, rowids))[0]


class Adder:
    """Adds findings with texts of a measured base as samples; ``base``: the id they are about, if not its own."""

    def __init__(self, findings: FindingCollector, of: Measured, base: str | None = None) -> None:
        self._findings = findings
        self._of = of
        self._base = of.base.id if base is None else base

    def rows(self, name: str, message: str, noun: str, query: str, *values: object, severity: Any = None) -> int:
        """Add a finding for the rows of a query, whose only column is a row of ``body``; return their number.

        ``{n}`` of the message becomes the number and the noun.
        """
        of = self._of
        count = of.number(f"SELECT count(*) FROM ({query})", *values)
        if count:
            first = of.scratch.execute(f"{query} LIMIT 3", values).fetchall()
            samples = [of.sample_of(body) for (body,) in first]
            for at, sample in enumerate(samples):
                more = count - len(samples) + 1 if not at else 1
                self._findings.add(
                    name, message, base=self._base, noun=noun, sample=sample, count=more, severity=severity
                )
        return count

    def finding(self, name: str, message: str, count: int = 1, sample: object = None, severity: Any = None) -> None:
        """Add a finding with a number of its own in the message."""
        self._findings.add(name, message, base=self._base, count=count, sample=sample, severity=severity)


# --- one base --------------------------------------------------------------------------------------------------------


def prove_vectors(of: Measured, add: Adder) -> None:
    """Prove that every vector can be used, and that its norm is like the others'."""
    usable = f"SELECT body FROM {of.used} WHERE flaw NOT IN ({USABLE}, {NO_VECTOR})"
    add.rows(names.VECTOR_UNUSABLE, tr("{n} of zeros, with a NaN or infinity, or too large"), "vector", usable)
    length = of.length or 0
    others = f"SELECT body FROM {of.used} WHERE flaw = {USABLE} AND length <> ?"
    message = tr("{n} of another length than {dimensions} dimensions", n="{n}", dimensions=length // 4)
    add.rows(names.VECTOR_LENGTH, message, "vector", others, length)
    limits = norm_limits(of)
    if limits is not None:
        message = tr("{n} whose norm is far from that of the others")
        outside = f"SELECT body FROM {of.used} WHERE flaw = {USABLE} AND length = ? AND norm NOT BETWEEN ? AND ?"
        add.rows(names.NORM_OUTLIER, message, "vector", outside, length, *limits)


def norm_limits(of: Measured) -> tuple[float, float] | None:
    """Return the smallest and the largest norm that is not an outlier; None for few vectors."""
    usable = f"FROM {of.used} WHERE flaw = {USABLE} AND length = {of.length or 0}"
    count = of.number(f"SELECT count(*) {usable}")
    if count < _MIN_VECTORS:
        return None

    def middle_of(what: str, *values: float) -> float:
        """Return the median of an expression over the usable vectors."""
        query = f"SELECT {what} {usable} ORDER BY 1 LIMIT 1 OFFSET {count // 2}"
        return float(str(of.scratch.execute(query, values).get))

    middle = middle_of("norm")
    alike = of.number(f"SELECT count(*) {usable} AND abs(norm - ?1) <= {_ALIKE} * ?1", middle)
    far = _NEAR
    if alike < _ALIKE_SHARE * count:
        far = max(_LEAST_RATIO, _SPREADS * middle_of("abs(ln(norm) - ln(?))", middle))
    return middle * math.exp(-far), middle * math.exp(far)


def prove_texts(of: Measured, add: Adder) -> None:
    """Prove that texts have vectors, of their own and under their own hash."""
    p = of.prefix
    if of.length is not None:
        message = tr("{n} without a vector")
        lacking = f"""SELECT min(b.rowid) FROM {p}body b LEFT JOIN {p}vector v ON v.rowid = b.vector
                       WHERE NOT b.is_blank GROUP BY b.text HAVING total(v.flaw IS NOT NULL AND v.flaw <> {NO_VECTOR})
                             = 0"""
        add.rows(names.TEXT_WITHOUT_VECTOR, message, "text", lacking)
    foreign = f"SELECT rowid FROM {p}body WHERE is_foreign AND vector IS NOT NULL"
    add.rows(names.HASH_FOREIGN, tr("{n} with the vector of another text, by its hash"), "text", foreign)
    # The texts that share a vector with another text, with the digests of their beginnings.
    scratch = of.scratch
    scratch.execute(f"CREATE TABLE {p}head (body INTEGER, text BLOB, digest BLOB, head BLOB)")
    rows = f"FROM {p}body b JOIN {p}vector v ON v.rowid = b.vector WHERE v.flaw = {USABLE}"
    groups = f"SELECT v.digest {rows} GROUP BY v.digest HAVING count(DISTINCT b.text) > 1"
    with sqlite.transaction(scratch):
        scratch.execute(
            f"INSERT INTO {p}head SELECT min(b.rowid), b.text, v.digest, NULL {rows} AND v.digest IN ({groups})"
            " GROUP BY b.text, v.digest"
        )
        for at, body in scratch.execute(f"SELECT rowid, body FROM {p}head").fetchall():
            head = head_digest(read_text(of.db, of.base, int(str(body)), HEAD_CHARACTERS))
            scratch.execute(f"UPDATE {p}head SET head = ? WHERE rowid = ?", (head, at))
    shared = f"""SELECT min(body) FROM {p}head WHERE digest IN
                  (SELECT digest FROM {p}head GROUP BY digest HAVING count(DISTINCT head) > 1) GROUP BY text"""
    add.rows(names.VECTOR_SHARED, tr("{n} that share a vector with a different text"), "text", shared)


def norm_statistics(of: Measured) -> tuple[list[float], list[int]]:
    """Return the smallest, the median and the largest norm, and a histogram of the range; empty without vectors."""
    usable = f"FROM {of.used} WHERE flaw = {USABLE}"
    found: Any = of.scratch.execute(f"SELECT min(norm), max(norm), count(*) {usable}").fetchone()
    least, most, count = found
    if not count:
        return [], []
    middle: Any = of.scratch.execute(f"SELECT norm {usable} ORDER BY norm LIMIT 1 OFFSET {count // 2}").get
    bars = [0] * NORM_BARS
    width = (most - least) / NORM_BARS or 1.0
    query = f"SELECT min(CAST((norm - ?) / ? AS INTEGER), {NORM_BARS - 1}), count(*) {usable} GROUP BY 1"
    for bar, number in of.scratch.execute(query, (least, width)):
        bars[int(str(bar))] = int(str(number))
    return [least, middle, most], bars


# --- two bases -------------------------------------------------------------------------------------------------------


def prove_sets(first: Measured, second: Measured, of_first: Adder, of_second: Adder) -> None:
    """Prove that both bases have the same texts with the same vectors."""
    a, b = first.prefix, second.prefix

    def only(one: str, other: str) -> str:
        """Return SQL for texts that only the first of two bases has."""
        return (
            f"SELECT min(rowid) FROM {one}body WHERE NOT is_blank AND NOT is_extra"
            f" AND text NOT IN (SELECT text FROM {other}body) GROUP BY text"
        )

    of_first.rows(names.TEXT_MISSING, tr("{n} of A that B lacks"), "text", only(a, b))
    of_second.rows(names.TEXT_ADDED, tr("{n} of B that A lacks"), "text", only(b, a))

    def lost(one: str, other: str) -> str:
        """Return SQL for texts that both bases have and only the first one finds."""
        return f"""SELECT body FROM {one}found WHERE text IN (SELECT text FROM {other}body)
                      AND text NOT IN (SELECT text FROM {other}found)"""

    of_first.rows(names.VECTOR_MISSING, tr("{n} without the usable vector in B that A has"), "text", lost(a, b))
    of_second.rows(names.VECTOR_ADDED, tr("{n} with a usable vector in B and none in A"), "text", lost(b, a))
    if first.length != second.length:
        if first.length is not None and second.length is not None:
            message = tr(
                "its vectors have {first} dimensions in A and {second} in B",
                first=first.length // 4,
                second=second.length // 4,
            )
            of_second.finding(names.VECTOR_DIFFERS, message, severity="note" if _may_differ(first, second) else None)
        return
    _compare_vectors(first, second, of_second)


def _may_differ(first: Measured, second: Measured) -> bool:
    """Whether the two bases state different models."""
    models = first.base.model, second.base.model
    return None not in models and models[0] != models[1]


#: Pairs of vectors that are compared at once.
_PAIRS = 1_000


def _compare_vectors(first: Measured, second: Measured, add: Adder) -> None:
    """Compare the vectors of each text that both bases have: by their bytes, and if these differ, by their cosine."""
    a, b = first.prefix, second.prefix
    # A text that has several vectors in one base differs only if none of them is in the other.
    query = f"""SELECT f.at, g.at, g.body FROM {a}found f JOIN {b}found g ON g.text = f.text
                 WHERE NOT EXISTS (SELECT 1 FROM {a}body x JOIN {a}vector v ON v.rowid = x.vector
                                   JOIN {b}body y ON y.text = x.text JOIN {b}vector w ON w.rowid = y.vector
                                   WHERE x.text = f.text AND v.digest = w.digest)
                 ORDER BY g.at"""
    rows = first.scratch.execute(query)
    count = far = 0
    lowest = 1.0
    samples: list[object] = []
    while pairs := list(islice(rows, _PAIRS)):
        left = first.units([int(str(one)) for one, _, _ in pairs])
        right = second.units([int(str(two)) for _, two, _ in pairs])
        cosines = np.einsum("ij,ij->i", left, right)
        count += len(pairs)
        far += int((cosines < MIN_COSINE).sum())
        lowest = min(lowest, float(cosines.min()))
        samples += [pairs[at][2] for at in np.argsort(cosines)[:3].tolist()][: 3 - len(samples)]
    if not count:
        return
    message = tr(
        "another vector in B than in A: {texts}; lowest cosine {lowest:.4f}",
        texts=format_count(count, "text"),
        lowest=lowest,
    )
    is_note = not far or _may_differ(first, second)
    for body in samples[:1]:
        add.finding(names.VECTOR_DIFFERS, message, count, second.sample_of(body), severity="note" if is_note else None)
