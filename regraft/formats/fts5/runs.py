"""Sorted runs: the doclists of one batch of texts, encoded as FTS5 writes them, in a temporary file.

A doclist (``docs/formats/fts5.md``) holds, for each row: the distance to the previous rowid, the size of the position
list, and the positions. The distance of the first row is written as 0, because the last row of the previous run is not
known yet.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import apsw
import msgspec
import numpy as np
from numpy.typing import NDArray

from regraft.disk import durable, sqlite
from regraft.formats.fts5.jobs import (
    CHARACTER_BITS,
    CODE_POINTS,
    DOCLIST_BYTES,
    SAMPLE_BYTES,
    IndexBuildRefused,
    SortedRun,
)

# Encoding of many varints at once: 7 bits per byte, highest first; the top bit is set in all bytes but the last.


Numbers = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class Varints(NamedTuple):
    """Numbers, the encoded length of each, and the offset in a stream where each ends."""

    numbers: NDArray[Any]
    lengths: Bytes
    ends: Numbers


def varint_lengths(numbers: NDArray[Any]) -> Bytes:
    """Return the encoded length in bytes of each number below 2^56."""
    lengths = np.ones(len(numbers), dtype=np.uint8)
    most, limit = int(numbers.max(initial=0)), 1 << 7
    while limit <= most:
        lengths += numbers >= limit
        limit <<= 7
    return lengths


def write_all_varints(stream: Bytes, *groups: Varints) -> None:
    """Encode groups of numbers as varints that together fill a stream completely.

    Final bytes are written last. So every number may write two bytes unconditionally: for a one-byte number, the extra
    byte falls on the last byte of the preceding number (for the first number, of the last one), which is written later.
    """
    for group in groups:
        _write_leading_bytes(stream, group, 2)
    for numbers, lengths, ends in groups:
        if lengths.max(initial=1) > 1:
            stream[ends - 2] = (numbers >> 7).astype(np.uint8) | 0x80
    for numbers, _, ends in groups:
        stream[ends - 1] = numbers.astype(np.uint8) & 0x7F


def write_varints(stream: Bytes, group: Varints) -> None:
    """Encode a group of numbers as varints at their offsets in a stream that also holds other bytes."""
    _write_leading_bytes(stream, group, 1)
    stream[group.ends - 1] = group.numbers.astype(np.uint8) & 0x7F


def _write_leading_bytes(stream: Bytes, group: Varints, least: int) -> None:
    """Write those bytes of the numbers that at least ``least`` more bytes of the same number follow."""
    numbers, lengths, ends = group
    for back in range(least, int(lengths.max(initial=1))):
        longer = np.flatnonzero(lengths > back)
        stream[ends[longer] - (1 + back)] = (numbers[longer] >> 7 * back).astype(np.uint8) | 0x80


# Trigrams of texts as FTS5's tokenizer produces them (``docs/formats/fts5.md``, "Trigrams").


CHARACTERS = 3
#: Bits of a sort key: a trigram and its position among the characters of all texts.
KEY_BITS = 63
#: Characters processed at a time; the working set fits into the processor's cache.
_SLICE = 1 << 16
_NO_KEY = (1 << KEY_BITS) - 1


class CaseFolding:
    """Case folding of characters, as FTS5's own tokenizer does it.

    Args:
        arguments: column ``text`` and tokenizer arguments of the FTS5 table.
    """

    def __init__(self, arguments: str) -> None:
        self._arguments = arguments
        self._folded = np.zeros(CODE_POINTS, dtype=np.int32)
        # NUL needs no query: the tokenizer skips it.
        self._is_known = np.zeros(CODE_POINTS, dtype=np.bool_)
        self._is_known[0] = True

    def fold(self, characters: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the folded code point of each character; 0 for one that the tokenizer skips.

        ``characters`` are code points, distinct and ascending.

        Raises:
            IndexBuildRefused: the tokenizer makes no trigrams, or does something else than to fold each character.
        """
        unknown: list[int] = characters[~self._is_known[characters]].tolist()
        if unknown:
            with sqlite.open_scratch() as db:
                self._query_fts5(db, unknown)
        return self._folded[characters]

    def _query_fts5(self, db: apsw.Connection, characters: list[int]) -> None:
        """Learn the folded form of characters from FTS5: index a text that repeats each of them three times."""
        db.execute(f"CREATE VIRTUAL TABLE folding USING fts5 ({self._arguments}, content = '')")
        db.execute("CREATE VIRTUAL TABLE folded USING fts5vocab (folding, instance)")
        db.execute("INSERT INTO folding (rowid, text) VALUES (1, 'abcd')")
        if db.execute("SELECT term, offset FROM folded ORDER BY offset").fetchall() != [("abc", 0), ("bcd", 1)]:
            raise IndexBuildRefused("the tokenizer does not make trigrams")
        db.execute("INSERT INTO folding (folding) VALUES ('delete-all')")
        text = "".join(chr(character) * CHARACTERS for character in characters)
        db.execute("INSERT INTO folding (rowid, text) VALUES (1, ?)", (text,))
        if db.execute("SELECT count(*) FROM folded").get != len(text) - (CHARACTERS - 1):
            raise IndexBuildRefused("the tokenizer leaves characters out")
        every_third = f"SELECT offset / {CHARACTERS}, term FROM folded WHERE offset % {CHARACTERS} = 0"
        folded: list[Any] = db.execute(every_third).fetchall()
        for index, term in folded:
            if len(term) != CHARACTERS or len(set(term)) > 1:
                raise IndexBuildRefused(f"the tokenizer makes {term!r} of the character {characters[index]}")
            self._folded[characters[index]] = ord(term[0])
        self._is_known[characters] = True


class Trigrams(msgspec.Struct, frozen=True, kw_only=True):
    """The trigrams of some texts, sorted by characters, then by text and position.

    A trigram is an integer of three digits of ``digit_bits`` each: indexes into ``alphabet``, which ascends. A key
    consists of a trigram, the index of its text (``text_bits``) and its position in the text (``place_bits``).
    """

    alphabet: list[int]
    digit_bits: int
    text_bits: int
    place_bits: int
    keys: Numbers
    #: Number of trigrams of each text.
    counts: Numbers


class _Bits(NamedTuple):
    """Bits of a key for each digit, for the text index, and for the position."""

    digit: int
    text: int
    place: int


def sort_trigrams(texts: Sequence[str], folding: CaseFolding) -> Trigrams | None:
    """Return the sorted trigrams of texts, or None if the texts and their alphabet are too large for one key.

    Raises:
        IndexBuildRefused: see :meth:`CaseFolding.fold`.
        UnicodeEncodeError: a text has a surrogate.
    """
    characters = np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4").astype(np.int64)
    alphabet, digits = _to_digits(characters, folding)
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    if not digits.all():
        lengths = np.bincount(np.repeat(np.arange(len(texts)), lengths)[digits != 0], minlength=len(texts))
        digits = digits[digits != 0]
    bits = _Bits(len(alphabet).bit_length(), len(texts).bit_length(), int(lengths.max(initial=0)).bit_length())
    if CHARACTERS * bits.digit + bits.text + bits.place > KEY_BITS:
        return None
    return Trigrams(
        alphabet=alphabet,
        digit_bits=bits.digit,
        text_bits=bits.text,
        place_bits=bits.place,
        keys=_sort_keys(digits, lengths, bits),
        counts=np.maximum(lengths - (CHARACTERS - 1), 0),
    )


def _to_digits(characters: Numbers, folding: CaseFolding) -> tuple[list[int], Numbers]:
    """Fold the characters of all texts; return the alphabet of folded characters and each character's index in it.

    The alphabet is ascending and begins with 0.
    """
    is_there = np.zeros(CODE_POINTS, dtype=np.bool_)
    is_there[characters] = True
    different = np.flatnonzero(is_there)
    folded = folding.fold(different)
    alphabet = sorted({0, *folded.tolist()})
    digit = np.zeros(CODE_POINTS, dtype=np.int64)
    digit[different] = np.searchsorted(alphabet, folded)
    return alphabet, digit[characters]


def _sort_keys(digits: Numbers, lengths: Numbers, bits: _Bits) -> Numbers:
    """Return the sorted keys of all trigrams of texts.

    Args:
        digits: index in the alphabet of each character of all texts.
        lengths: number of characters of each text.
        bits: bits of a key.
    """
    keys = np.empty(max(len(digits) - CHARACTERS + 1, 0), dtype=np.int64)
    ends = np.cumsum(lengths)
    # For each text, the number that turns a character's index into the low bits of its key.
    bases = (np.arange(len(lengths)) << bits.place) - (ends - lengths)
    for first in range(0, len(keys), _SLICE):
        part = digits[first : first + _SLICE + CHARACTERS - 1]
        made = keys[first : first + _SLICE]
        np.left_shift(part[:-2], bits.digit, out=made)
        made |= part[1:-1]
        made <<= bits.digit
        made |= part[2:]
        made <<= bits.text + bits.place
        last = first + len(made)
        low, high = np.searchsorted(ends, (first, last - 1), side="right")
        of_text = np.diff(np.minimum(ends[low : high + 1], last), prepend=first)
        made += np.repeat(bases[low : high + 1], of_text)
        made += np.arange(first, last)
    # Three characters across two texts are not a trigram: their keys are moved to the end.
    count = len(keys)
    for back in range(1, CHARACTERS):
        across = ends[(ends >= back) & (ends < count + back)] - back
        keys[across] = _NO_KEY
    keys.sort()
    return keys[: int(keys.searchsorted(_NO_KEY))]


Kind = TypeVar("Kind", bound=np.generic)

#: Upper limit of rowids.
ROWS_END = 1 << 31
#: Distributes rowids over any range: the fraction of the golden ratio as a 32-bit integer.
_SPREAD = 0x9E3779B1
_ROW = np.dtype("<i8")
_TERM = np.dtype("<i8")
#: A doclist: first and last rowid, and its offset in the stream after the distance of the first row.
_DOCLIST = np.dtype([("first", "<i4"), ("last", "<i4"), ("start", "<i4")])
#: The first row that begins at or after each multiple of :func:`mark_step`: offset and rowid.
_MARK = np.dtype([("start", "<i4"), ("row", "<i4")])


def mark_step(page_bytes: int) -> int:
    """Return the distance in bytes between two marks, which locate rows in a run."""
    return max(page_bytes // 64, 1)


# --- writing ---------------------------------------------------------------------------------------------------------


class _Stream(msgspec.Struct, frozen=True, kw_only=True):
    """Encoded doclists (row lists of one trigram each).

    Attributes:
        data: the bytes.
        starts: offset of each row.
        rows: rowid of each row.
        terms: the trigram of each doclist.
        doclists: index of the first row of each doclist.
    """

    data: Bytes
    starts: NDArray[Any]
    rows: NDArray[np.int32]
    terms: Numbers
    doclists: Numbers


def write_run(trigrams: Trigrams, rows: Numbers, into: Path, page_bytes: int) -> tuple[SortedRun, list[int]]:
    """Write the doclists of texts to a new file.

    Args:
        trigrams: the sorted trigrams of the texts.
        rows: rowid of each text.
        into: the new file.
        page_bytes: FTS5's ``pgsz``.

    Returns:
        The run, and samples of its trigrams at equal distances.

    Raises:
        OSError: the file cannot be written.
    """
    made = _encode_doclists(trigrams, rows)
    terms, count = _to_code_points(trigrams, made.terms), len(made.terms)
    doclists = np.empty(count + 1, dtype=_DOCLIST)
    last_rows = np.append(made.doclists[1:], len(made.rows))[: len(made.doclists)] - 1
    doclists["first"][:-1], doclists["last"][:-1] = made.rows[made.doclists], made.rows[last_rows]
    doclists["start"][:-1] = made.starts[made.doclists] + 1
    doclists[-1] = 0, 0, len(made.data) + 1
    # A mark for every few bytes of the stream: offset and rowid of the next row.
    edges = np.arange(0, len(made.data), mark_step(page_bytes))
    nearest = np.searchsorted(made.starts, edges.astype(np.int32))
    marks = np.zeros(len(edges), dtype=_MARK)
    marks["start"] = np.append(made.starts, np.int32(len(made.data)))[nearest]
    marks["row"] = np.append(made.rows, np.int32(0))[nearest]
    with durable.open_binary(into, "xb") as file:
        for array in (rows.astype(_ROW), trigrams.counts.astype(_ROW), terms.astype(_TERM), doclists, marks, made.data):
            file.write(array.data)
    run = SortedRun(path=into, rows=len(rows), terms=count, marks=len(marks), stream_bytes=len(made.data))
    sizes = np.cumsum(np.diff(doclists["start"]) + DOCLIST_BYTES)
    # Runs of one language are alike: samples start at different offsets, so that they show different trigrams.
    begin = int(rows[0]) * _SPREAD % SAMPLE_BYTES if count else 0
    samples = np.searchsorted(sizes, np.arange(begin, int(sizes[-1]) if count else 0, SAMPLE_BYTES))
    return run, terms[samples].tolist()


def _to_code_points(trigrams: Trigrams, numbers: Numbers) -> Numbers:
    """Convert trigrams from indexes in the alphabet of ``trigrams`` to code points."""
    alphabet = np.array(trigrams.alphabet, dtype=np.int64)
    terms = np.zeros(len(numbers), dtype=np.int64)
    for digit in reversed(range(CHARACTERS)):
        indexes = numbers >> digit * trigrams.digit_bits & (1 << trigrams.digit_bits) - 1
        terms = terms << CHARACTER_BITS | alphabet[indexes]
    return terms


def _encode_doclists(trigrams: Trigrams, rows: Numbers) -> _Stream:
    """Encode the doclists of sorted trigrams, slice by slice; ``rows`` is the rowid of each text."""
    data, starts, of_rows, terms, doclists = [], [], [], [], []
    size = count = 0
    before = -1, 0
    for first, last in _slices(trigrams):
        piece = _encode_slice(trigrams, trigrams.keys[first:last], rows, *before)
        data.append(piece.data)
        starts.append((piece.starts + size).astype(np.int32))
        of_rows.append(piece.rows)
        terms.append(piece.terms)
        doclists.append(piece.doclists + count)
        size += len(piece.data)
        count += len(piece.rows)
        before = int(trigrams.keys[last - 1] >> (trigrams.text_bits + trigrams.place_bits)), int(piece.rows[-1])
    return _Stream(
        data=_concatenate(data, np.uint8),
        starts=_concatenate(starts, np.int32),
        rows=_concatenate(of_rows, np.int32),
        terms=_concatenate(terms, np.int64),
        doclists=_concatenate(doclists, np.int64),
    )


def _concatenate(parts: list[NDArray[Kind]], kind: type[Kind]) -> NDArray[Kind]:
    """Join arrays; an empty array of the given type if the list is empty."""
    return np.concatenate(parts) if parts else np.empty(0, dtype=kind)


def _slices(trigrams: Trigrams) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of consecutive ranges of the sorted keys; each begins with a new row."""
    first = 0
    while first < len(trigrams.keys):
        last = _next_row(trigrams, first + _SLICE)
        yield first, last
        first = last


def _next_row(trigrams: Trigrams, near: int) -> int:
    """Return the first index of a key, from ``near`` on, at which another row or another trigram begins."""
    step = 1 << 10
    while near < len(trigrams.keys):
        rows = trigrams.keys[near - 1 : near + step] >> trigrams.place_bits
        changes = np.flatnonzero(rows[1:] != rows[:-1])
        if len(changes):
            return near + int(changes[0])
        near += step
    return len(trigrams.keys)


def _encode_slice(trigrams: Trigrams, keys: Numbers, rows: Numbers, term_before: int, row_before: int) -> _Stream:
    """Encode the doclists of a range of keys that begins with a new row.

    Args:
        trigrams: all sorted trigrams.
        keys: the range of keys.
        rows: rowid of each text.
        term_before: trigram of the key before the range.
        row_before: rowid of the key before the range.
    """
    is_row = np.ones(len(keys), dtype=np.bool_)
    np.greater_equal(keys[1:] ^ keys[:-1], 1 << trigrams.place_bits, out=is_row[1:])
    docs = np.flatnonzero(is_row)
    first_keys = keys[docs]
    # Keys of one row and one trigram differ only in their position.
    steps = np.empty(len(keys), dtype=np.int64)
    np.subtract(keys[1:], keys[:-1], out=steps[1:])
    steps[docs] = first_keys & (1 << trigrams.place_bits) - 1
    steps += 2
    first_keys >>= trigrams.place_bits
    of_docs = rows[first_keys & (1 << trigrams.text_bits) - 1]
    first_keys >>= trigrams.text_bits
    is_term = differs_from_previous(first_keys)
    is_term[0] = first_keys[0] != term_before
    terms = np.flatnonzero(is_term)
    row_steps = _distances(of_docs)
    row_steps[0] -= row_before
    row_steps[terms] = 0
    data, starts = _encode_rows(docs, steps, row_steps)
    return _Stream(data=data, starts=starts, rows=of_docs.astype(np.int32), terms=first_keys[terms], doclists=terms)


def _encode_rows(docs: Numbers, steps: Numbers, row_steps: Numbers) -> tuple[Bytes, Numbers]:
    """Encode rows with their positions; return the bytes and the offset of each row.

    Args:
        docs: index of the first position of each row.
        steps: number to encode for each position.
        row_steps: number to encode for each row.
    """
    step_bytes = varint_lengths(steps)
    until = np.cumsum(step_bytes, dtype=np.int64)
    last_steps = np.empty(len(docs), dtype=np.int64)
    np.subtract(docs[1:], 1, out=last_steps[:-1])
    last_steps[-1] = len(steps) - 1
    sizes = _distances(until[last_steps])
    sizes *= 2
    size_bytes, row_bytes = varint_lengths(sizes), varint_lengths(row_steps)
    heads = np.cumsum(size_bytes + row_bytes, dtype=np.int64)
    ends = until
    last_steps -= docs
    last_steps += 1
    ends += heads.repeat(last_steps)
    size_ends = ends[docs] - step_bytes[docs]
    row_ends = size_ends - size_bytes
    stream = np.empty(int(ends[-1]), dtype=np.uint8)
    write_all_varints(
        stream,
        Varints(steps, step_bytes, ends),
        Varints(sizes, size_bytes, size_ends),
        Varints(row_steps, row_bytes, row_ends),
    )
    return stream, row_ends - row_bytes


def differs_from_previous(numbers: Numbers) -> NDArray[np.bool_]:
    """For each number, whether it differs from the previous one; True for the first."""
    are_others = np.ones(len(numbers), dtype=np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=are_others[1:])
    return are_others


def _distances(numbers: Numbers) -> Numbers:
    """Return the difference of each number to the previous one; the first number is unchanged."""
    distances = np.empty(len(numbers), dtype=np.int64)
    distances[0] = numbers[0]
    np.subtract(numbers[1:], numbers[:-1], out=distances[1:])
    return distances


# --- reading ---------------------------------------------------------------------------------------------------------


class Doclists(msgspec.Struct, frozen=True, kw_only=True):
    """Doclists of one or several runs.

    ``starts`` and ``ends`` are offsets in ``data``, without the distance of the first row. ``marks`` are ascending
    offsets where rows begin, ``mark_rows`` their rowids. Between two marks (or before the first mark of a run's data),
    further rows begin only within the first ``mark_step`` bytes.
    """

    terms: Numbers
    firsts: NDArray[np.int32]
    lasts: NDArray[np.int32]
    starts: Numbers
    ends: Numbers
    data: bytes
    marks: Numbers
    mark_rows: NDArray[np.int32]

    @classmethod
    def merge_runs(cls, parts: list[Doclists]) -> Doclists:
        """Merge the doclists of several runs: sorted by trigram, and for each trigram in the order of the runs."""
        terms = np.concatenate([part.terms for part in parts])
        order = np.argsort(terms, kind="stable")
        data = [part.data for part in parts]
        bases = np.cumsum([0, *map(len, data)]).tolist()
        based = list(zip(parts, bases, strict=False))
        return cls(
            terms=terms[order],
            firsts=np.concatenate([part.firsts for part in parts])[order],
            lasts=np.concatenate([part.lasts for part in parts])[order],
            starts=np.concatenate([part.starts + base for part, base in based])[order],
            ends=np.concatenate([part.ends + base for part, base in based])[order],
            data=b"".join(data),
            marks=np.concatenate([part.marks + base for part, base in based]),
            mark_rows=np.concatenate([part.mark_rows for part in parts]),
        )


def read_run(run: SortedRun, low: int, high: int, page_bytes: int) -> Doclists:
    """Read the doclists of a run for the trigrams from ``low`` (included) to ``high`` (excluded).

    Raises:
        IndexBuildRefused: the run is not what was written.
        OSError: the file cannot be read.
    """
    step = mark_step(page_bytes)
    terms_at = run.rows * 2 * _ROW.itemsize
    doclists_at = terms_at + run.terms * _TERM.itemsize
    marks_at = doclists_at + (run.terms + 1) * _DOCLIST.itemsize
    stream_at = marks_at + run.marks * _MARK.itemsize
    with run.path.open("rb", buffering=0) as file:
        if os.fstat(file.fileno()).st_size != stream_at + run.stream_bytes:
            raise IndexBuildRefused("a run is not whole")
        mapped = np.memmap(file, _TERM, "r", terms_at, run.terms) if run.terms else np.empty(0, dtype=_TERM)
        first, last = (int(mapped.searchsorted(edge)) for edge in (low, high))
        # Reading is faster than accessing the mapped pages.
        file.seek(terms_at + first * _TERM.itemsize)
        terms = np.fromfile(file, _TERM, last - first)
        file.seek(doclists_at + first * _DOCLIST.itemsize)
        doclists = np.fromfile(file, _DOCLIST, last - first + 1)
        offsets = doclists["start"].astype(np.int64) - 1
        begin, end = int(offsets[0]), int(offsets[-1])
        if not 0 <= begin <= end <= run.stream_bytes or np.any(offsets[1:] <= offsets[:-1]):
            raise IndexBuildRefused("a run is not what was written")
        first_mark, last_mark = -(-begin // step), -(-end // step)
        file.seek(marks_at + first_mark * _MARK.itemsize)
        marks = np.fromfile(file, _MARK, last_mark - first_mark)
        file.seek(stream_at + begin)
        data = file.read(end - begin)
        if len(data) < end - begin:
            raise IndexBuildRefused("a run is not whole")
    offsets -= begin
    return Doclists(
        terms=terms.astype(np.int64, copy=False),
        firsts=doclists["first"][:-1],
        lasts=doclists["last"][:-1],
        starts=offsets[:-1] + 1,
        ends=offsets[1:],
        data=data,
        marks=np.minimum(marks["start"].astype(np.int64), end) - begin,
        mark_rows=marks["row"],
    )
