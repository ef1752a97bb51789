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
    hash_beginning,
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
    """A base whose texts and vectors are measured: its open file, and the tables of a temporary database about them."""

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
        """Name of the table of the vectors that belong to a text, once each.

        Its column ``body`` is the row number of a text.
        """
        return f"{self.prefix}used"

    @property
    def findable(self) -> str:
        """SQL subquery with one row for each text that has a usable vector.

        Its columns are ``text``, the digest of the text, ``at``, the row number of the vector, and ``body``, that of
        the text.
        """
        p = self.prefix
        return f"""(SELECT b.text AS text, min(v.rowid) AS at, min(b.rowid) AS body FROM {p}body b
                      JOIN {p}vector v ON v.rowid = b.vector
                     WHERE v.flaw = {USABLE} AND v.length = {self.length or 0} AND NOT b.is_extra GROUP BY b.text)"""

    def number(self, query: str, *values: object) -> int:
        """Return the integer that a query of the temporary database computes, 0 for NULL.

        ``values`` are its parameters.
        """
        return int(str(self.scratch.execute(query, values).get or 0))

    def counts(self) -> BaseCounts:
        """Count the texts, the texts with a usable vector, and the vectors."""
        return BaseCounts(
            texts=self.number(f"SELECT count(DISTINCT text) FROM {self.prefix}body"),
            findable=self.number(f"SELECT count(*) FROM {self.prefix}found"),
            vectors=self.number(f"SELECT count(*) FROM {self.used} WHERE flaw <> {NO_VECTOR}"),
        )

    def sample_of(self, rowid: object) -> str:
        """Return the beginning of the text with this row number, as a sample for a finding."""
        return read_text(self.db, self.base, int(str(rowid)), _SAMPLE_CHARACTERS)

    def materialize(self) -> None:
        """Write the result of :attr:`findable` to the table ``found``, which many queries use."""
        p = self.prefix
        self.scratch.execute(f"CREATE TABLE {p}found AS SELECT text, at, body FROM {self.findable} ORDER BY at")
        self.scratch.execute(f"CREATE INDEX {p}found_text ON {p}found (text)")
        self.scratch.execute(f"CREATE INDEX {p}found_at ON {p}found (at)")

    def excluded_rows(self) -> Any:
        """Return the sorted row numbers of usable vectors that no search needs.

        They repeat a text, or belong to none.
        """
        p = self.prefix
        rows = self.scratch.execute(
            f"SELECT rowid FROM {p}vector WHERE rowid NOT IN (SELECT at FROM {p}found) AND flaw = {USABLE} ORDER BY 1"
        )
        return np.fromiter((int(str(rowid)) for (rowid,) in rows), dtype=np.int64)

    def blocks(self, most_rows: int) -> Iterator[tuple[Any, Any]]:
        """Yield the vectors of all texts in blocks of at most ``most_rows``.

        A block has row numbers and a matrix of unit vectors.
        """
        if self.length is not None:
            yield from read_blocks(self.db, self.base, self.length, self.excluded_rows(), most_rows)

    def units(self, rowids: Sequence[int]) -> Any:
        """Return the unit vectors with these row numbers, as the rows of a matrix."""
        return unit_vectors(read_vectors(self.db, self.base, rowids))[0]


class Adder:
    """Adds findings about a measured base, with the beginnings of its texts as samples.

    ``base`` is the id of the base that the findings are about, if that is another one.
    """

    def __init__(self, findings: FindingCollector, measured: Measured, base: str | None = None) -> None:
        self._findings = findings
        self._measured = measured
        self._base = measured.base.id if base is None else base

    def rows(self, name: str, message: str, noun: str, query: str, *values: object, severity: Any = None) -> int:
        """Add a finding for the texts that a query selects, if there are any, and return their number.

        Args:
            name: the name of the finding.
            message: its message; ``{n}`` in it becomes the number with ``noun``.
            noun: what is counted, in the singular.
            query: selects row numbers of texts, from the tables of the measured base.
            values: parameters of the query.
            severity: the severity, if not the registered one.
        """
        measured = self._measured
        count = measured.number(f"SELECT count(*) FROM ({query})", *values)
        if count:
            first = measured.scratch.execute(f"{query} LIMIT 3", values).fetchall()
            samples = [measured.sample_of(body) for (body,) in first]
            for at, sample in enumerate(samples):
                more = count - len(samples) + 1 if not at else 1
                self._findings.add(
                    name, message, base=self._base, noun=noun, sample=sample, count=more, severity=severity
                )
        return count

    def finding(self, name: str, message: str, count: int = 1, sample: object = None, severity: Any = None) -> None:
        """Add a finding whose message states its number already; ``count`` is that number."""
        self._findings.add(name, message, base=self._base, count=count, sample=sample, severity=severity)


# --- one base --------------------------------------------------------------------------------------------------------


def prove_vectors(measured: Measured, adder: Adder) -> None:
    """Report vectors that cannot be used, have another length, or have a norm far from that of the others."""
    usable = f"SELECT body FROM {measured.used} WHERE flaw NOT IN ({USABLE}, {NO_VECTOR})"
    adder.rows(names.VECTOR_UNUSABLE, tr("{n} of zeros, with a NaN or infinity, or too large"), "vector", usable)
    length = measured.length or 0
    others = f"SELECT body FROM {measured.used} WHERE flaw = {USABLE} AND length <> ?"
    message = tr("{n} of another length than {dimensions} dimensions", n="{n}", dimensions=length // 4)
    adder.rows(names.VECTOR_LENGTH, message, "vector", others, length)
    limits = norm_limits(measured)
    if limits is not None:
        message = tr("{n} whose norm is far from that of the others")
        outside = f"SELECT body FROM {measured.used} WHERE flaw = {USABLE} AND length = ? AND norm NOT BETWEEN ? AND ?"
        adder.rows(names.NORM_OUTLIER, message, "vector", outside, length, *limits)


def norm_limits(measured: Measured) -> tuple[float, float] | None:
    """Return the smallest and the largest norm that is not an outlier; None if the base has too few vectors to tell."""
    usable = f"FROM {measured.used} WHERE flaw = {USABLE} AND length = {measured.length or 0}"
    count = measured.number(f"SELECT count(*) {usable}")
    if count < _MIN_VECTORS:
        return None

    def median_of(expression: str, *values: float) -> float:
        """Return the median of a SQL expression over the usable vectors; ``values`` are its parameters."""
        query = f"SELECT {expression} {usable} ORDER BY 1 LIMIT 1 OFFSET {count // 2}"
        return float(str(measured.scratch.execute(query, values).get))

    middle = median_of("norm")
    alike = measured.number(f"SELECT count(*) {usable} AND abs(norm - ?1) <= {_ALIKE} * ?1", middle)
    far = _NEAR
    if alike < _ALIKE_SHARE * count:
        far = max(_LEAST_RATIO, _SPREADS * median_of("abs(ln(norm) - ln(?))", middle))
    return middle * math.exp(-far), middle * math.exp(far)


def prove_texts(measured: Measured, adder: Adder) -> None:
    """Report texts without a vector, with a vector under a wrong hash, or with the vector of a different text."""
    p = measured.prefix
    if measured.length is not None:
        message = tr("{n} without a vector")
        lacking = f"""SELECT min(b.rowid) FROM {p}body b LEFT JOIN {p}vector v ON v.rowid = b.vector
                       WHERE NOT b.is_blank GROUP BY b.text HAVING total(v.flaw IS NOT NULL AND v.flaw <> {NO_VECTOR})
                             = 0"""
        adder.rows(names.TEXT_WITHOUT_VECTOR, message, "text", lacking)
    foreign = f"SELECT rowid FROM {p}body WHERE is_foreign AND vector IS NOT NULL"
    adder.rows(names.HASH_FOREIGN, tr("{n} with the vector of another text, by its hash"), "text", foreign)
    # The texts that share a vector with another text, with the digests of their beginnings.
    scratch = measured.scratch
    scratch.execute(f"CREATE TABLE {p}head (body INTEGER, text BLOB, digest BLOB, head BLOB)")
    rows = f"FROM {p}body b JOIN {p}vector v ON v.rowid = b.vector WHERE v.flaw = {USABLE}"
    groups = f"SELECT v.digest {rows} GROUP BY v.digest HAVING count(DISTINCT b.text) > 1"
    with sqlite.transaction(scratch):
        scratch.execute(
            f"INSERT INTO {p}head SELECT min(b.rowid), b.text, v.digest, NULL {rows} AND v.digest IN ({groups})"
            " GROUP BY b.text, v.digest"
        )
        for at, body in scratch.execute(f"SELECT rowid, body FROM {p}head").fetchall():
            head = hash_beginning(read_text(measured.db, measured.base, int(str(body)), HEAD_CHARACTERS))
            scratch.execute(f"UPDATE {p}head SET head = ? WHERE rowid = ?", (head, at))
    shared = f"""SELECT min(body) FROM {p}head WHERE digest IN
                  (SELECT digest FROM {p}head GROUP BY digest HAVING count(DISTINCT head) > 1) GROUP BY text"""
    adder.rows(names.VECTOR_SHARED, tr("{n} that share a vector with a different text"), "text", shared)


def norm_statistics(measured: Measured) -> tuple[list[float], list[int]]:
    """Return the smallest, median and largest norm of the usable vectors, and a histogram of the norms between them.

    Both lists are empty if there are no such vectors. The second has a count for each of the equal steps.
    """
    usable = f"FROM {measured.used} WHERE flaw = {USABLE}"
    found: Any = measured.scratch.execute(f"SELECT min(norm), max(norm), count(*) {usable}").fetchone()
    least, most, count = found
    if not count:
        return [], []
    middle: Any = measured.scratch.execute(f"SELECT norm {usable} ORDER BY norm LIMIT 1 OFFSET {count // 2}").get
    bars = [0] * NORM_BARS
    width = (most - least) / NORM_BARS or 1.0
    query = f"SELECT min(CAST((norm - ?) / ? AS INTEGER), {NORM_BARS - 1}), count(*) {usable} GROUP BY 1"
    for bar, number in measured.scratch.execute(query, (least, width)):
        bars[int(str(bar))] = int(str(number))
    return [least, middle, most], bars


# --- two bases -------------------------------------------------------------------------------------------------------


def prove_sets(first: Measured, second: Measured, first_adder: Adder, second_adder: Adder) -> None:
    """Report texts and vectors that only one of two bases has, or that differ between them.

    Args:
        first: a base of A.
        second: its counterpart in B.
        first_adder: adds findings about what B lacks.
        second_adder: adds findings about what B has in addition, or differently.
    """
    a, b = first.prefix, second.prefix

    def only(one: str, other: str) -> str:
        """Return SQL for the texts that only the first base has; the arguments are prefixes of the bases' tables."""
        return (
            f"SELECT min(rowid) FROM {one}body WHERE NOT is_blank AND NOT is_extra"
            f" AND text NOT IN (SELECT text FROM {other}body) GROUP BY text"
        )

    first_adder.rows(names.TEXT_MISSING, tr("{n} of A that B lacks"), "text", only(a, b))
    second_adder.rows(names.TEXT_ADDED, tr("{n} of B that A lacks"), "text", only(b, a))

    def lost(one: str, other: str) -> str:
        """Return SQL for the texts of both bases that have a usable vector only in the first one."""
        return f"""SELECT body FROM {one}found WHERE text IN (SELECT text FROM {other}body)
                      AND text NOT IN (SELECT text FROM {other}found)"""

    first_adder.rows(names.VECTOR_MISSING, tr("{n} without the usable vector in B that A has"), "text", lost(a, b))
    second_adder.rows(names.VECTOR_ADDED, tr("{n} with a usable vector in B and none in A"), "text", lost(b, a))
    if first.length != second.length:
        if first.length is not None and second.length is not None:
            message = tr(
                "its vectors have {first} dimensions in A and {second} in B",
                first=first.length // 4,
                second=second.length // 4,
            )
            second_adder.finding(names.VECTOR_DIFFERS, message, severity="note" if _may_differ(first, second) else None)
        return
    _compare_vectors(first, second, second_adder)


def _may_differ(first: Measured, second: Measured) -> bool:
    """Whether both bases name a model, and not the same one, so that their vectors may differ."""
    models = first.base.model, second.base.model
    return None not in models and models[0] != models[1]


#: Pairs of vectors that are compared at once.
_PAIRS = 1_000


def _compare_vectors(first: Measured, second: Measured, adder: Adder) -> None:
    """Report the texts of both bases whose vectors differ: by their bytes, and if these differ, by their cosine."""
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
        adder.finding(
            names.VECTOR_DIFFERS, message, count, second.sample_of(body), severity="note" if is_note else None
        )
