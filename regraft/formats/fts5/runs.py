"""A run: what the texts of one job have of each trigram, as FTS5 writes it, in a file (``docs/formats/fts5.md``).

What a trigram has there is a doclist: for each row its distance from the one before, the bytes of its places, and
these. The first row's distance is 0, since it is not known yet which row another run has before.
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
from regraft.formats.fts5.records import CHARACTER_BITS, CODE_POINTS, DOCLIST_BYTES, SAMPLE_BYTES, Run, SpliceRefused

# Varints of many numbers at once: 7 bits in each byte, the highest first, the top bit set in all but the last.


Numbers = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class Varints(NamedTuple):
    """Numbers, how many bytes each takes, and where in a stream each ends."""

    numbers: NDArray[Any]
    lengths: Bytes
    ends: Numbers


def lengths_of(numbers: NDArray[Any]) -> Bytes:
    """Return how many bytes each number below 2^56 takes."""
    lengths = np.ones(len(numbers), dtype=np.uint8)
    most, limit = int(numbers.max(initial=0)), 1 << 7
    while limit <= most:
        lengths += numbers >= limit
        limit <<= 7
    return lengths


def put_all(stream: Bytes, *groups: Varints) -> None:
    """Write numbers that together are all of a stream.

    The last byte of each number is written after all others. So each can write a second one: where it has none, that is
    the last byte of the number before it (before the first one, of the stream's last number).
    """
    for group in groups:
        _put_others(stream, group, 2)
    for numbers, lengths, ends in groups:
        if lengths.max(initial=1) > 1:
            stream[ends - 2] = (numbers >> 7).astype(np.uint8) | 0x80
    for numbers, _, ends in groups:
        stream[ends - 1] = numbers.astype(np.uint8) & 0x7F


def put_some(stream: Bytes, group: Varints) -> None:
    """Write numbers among what else is in a stream."""
    _put_others(stream, group, 1)
    stream[group.ends - 1] = group.numbers.astype(np.uint8) & 0x7F


def _put_others(stream: Bytes, group: Varints, least: int) -> None:
    """Write the bytes of numbers behind which so many more follow, or more than that."""
    numbers, lengths, ends = group
    for back in range(least, int(lengths.max(initial=1))):
        those = np.flatnonzero(lengths > back)
        stream[ends[those] - (1 + back)] = (numbers[those] >> 7 * back).astype(np.uint8) | 0x80


# The trigrams of texts as FTS5's tokenizer makes them, sorted with NumPy (``docs/formats/fts5.md``, "Trigrams").


CHARACTERS = 3
#: A trigram and its place among the characters of all texts stand in one number of so many bits.
KEY_BITS = 63
#: So many characters are worked on at a time, so that what is made meanwhile stays in the processor's cache.
_SLICE = 1 << 16
_NO_KEY = (1 << KEY_BITS) - 1


class Folding:
    """What the tokenizer makes of each character, as FTS5 itself says it.

    Args:
        arguments: a column ``text`` and the tokenizer, as FTS5 takes them.
    """

    def __init__(self, arguments: str) -> None:
        self._arguments = arguments
        self._folded = np.zeros(CODE_POINTS, dtype=np.int32)
        # NUL is not asked for: the tokenizer leaves it out.
        self._is_known = np.zeros(CODE_POINTS, dtype=np.bool_)
        self._is_known[0] = True

    def fold(self, characters: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return what becomes of each of some different characters, which ascend; 0 for one that is left out.

        Raises:
            SpliceRefused: the tokenizer makes no trigrams, or does something else than to fold each character.
        """
        unknown: list[int] = characters[~self._is_known[characters]].tolist()
        if unknown:
            with sqlite.open_scratch() as db:
                self._ask(db, unknown)
        return self._folded[characters]

    def _ask(self, db: apsw.Connection, characters: list[int]) -> None:
        """Let FTS5 index a text with each character three times: every third trigram shows what one becomes."""
        db.execute(f"CREATE VIRTUAL TABLE folding USING fts5 ({self._arguments}, content = '')")
        db.execute("CREATE VIRTUAL TABLE folded USING fts5vocab (folding, instance)")
        db.execute("INSERT INTO folding (rowid, text) VALUES (1, 'abcd')")
        if db.execute("SELECT term, offset FROM folded ORDER BY offset").fetchall() != [("abc", 0), ("bcd", 1)]:
            raise SpliceRefused("the tokenizer does not make trigrams")
        db.execute("INSERT INTO folding (folding) VALUES ('delete-all')")
        text = "".join(chr(character) * CHARACTERS for character in characters)
        db.execute("INSERT INTO folding (rowid, text) VALUES (1, ?)", (text,))
        if db.execute("SELECT count(*) FROM folded").get != len(text) - (CHARACTERS - 1):
            raise SpliceRefused("the tokenizer leaves characters out")
        every_third = f"SELECT offset / {CHARACTERS}, term FROM folded WHERE offset % {CHARACTERS} = 0"
        folded: list[Any] = db.execute(every_third).fetchall()
        for place, term in folded:
            if len(term) != CHARACTERS or len(set(term)) > 1:
                raise SpliceRefused(f"the tokenizer makes {term!r} of the character {characters[place]}")
            self._folded[characters[place]] = ord(term[0])
        self._is_known[characters] = True


class Trigrams(msgspec.Struct, frozen=True, kw_only=True):
    """The trigrams of some texts, sorted by their characters, then by text and place.

    A trigram is a number of three digits, ``digit_bits`` each: places in ``alphabet``, which ascends. A key is a
    trigram, then in ``text_bits`` the place of its text among the texts, then in ``place_bits`` its place in the text.
    """

    alphabet: list[int]
    digit_bits: int
    text_bits: int
    place_bits: int
    keys: Numbers
    #: For each text how many trigrams it has.
    counts: Numbers


class _Bits(NamedTuple):
    """How many bits of a key each digit of its trigram takes, the place of its text, and its place there."""

    digit: int
    text: int
    place: int


def trigrams_of(texts: Sequence[str], folding: Folding) -> Trigrams | None:
    """Return the sorted trigrams of texts; None where they, and the different characters in them, are too many.

    Raises:
        SpliceRefused: see :meth:`Folding.fold`.
        UnicodeEncodeError: a text has a surrogate.
    """
    characters = np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4").astype(np.int64)
    alphabet, digits = _digits(characters, folding)
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
        keys=_sorted_keys(digits, lengths, bits),
        counts=np.maximum(lengths - (CHARACTERS - 1), 0),
    )


def _digits(characters: Numbers, folding: Folding) -> tuple[list[int], Numbers]:
    """Return what the characters become, ascending, behind a 0, and for each character its place there."""
    is_there = np.zeros(CODE_POINTS, dtype=np.bool_)
    is_there[characters] = True
    different = np.flatnonzero(is_there)
    folded = folding.fold(different)
    alphabet = sorted({0, *folded.tolist()})
    digit = np.zeros(CODE_POINTS, dtype=np.int64)
    digit[different] = np.searchsorted(alphabet, folded)
    return alphabet, digit[characters]


def _sorted_keys(digits: Numbers, lengths: Numbers, bits: _Bits) -> Numbers:
    """Return the keys of characters that are digits already, of texts of these lengths."""
    keys = np.empty(max(len(digits) - CHARACTERS + 1, 0), dtype=np.int64)
    ends = np.cumsum(lengths)
    # For each text what makes a character's place among all a key's last bits.
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
    # Three characters of two texts are no trigram: they go behind all that are.
    count = len(keys)
    for back in range(1, CHARACTERS):
        across = ends[(ends >= back) & (ends < count + back)] - back
        keys[across] = _NO_KEY
    keys.sort()
    return keys[: int(keys.searchsorted(_NO_KEY))]


Kind = TypeVar("Kind", bound=np.generic)

#: Numbers of rows are below this.
ROWS_END = 1 << 31
#: Spreads the numbers of rows over any range: the fraction of the golden ratio, as a number of 32 bits.
_SPREAD = 0x9E3779B1
_ROW = np.dtype("<i8")
_TERM = np.dtype("<i8")
#: Of a doclist: its first and its last row, and where it begins in the stream, behind the distance of the first row.
_DOCLIST = np.dtype([("first", "<i4"), ("last", "<i4"), ("start", "<i4")])
#: The first row that begins at or after each multiple of so many bytes: where, and which.
_MARK = np.dtype([("start", "<i4"), ("row", "<i4")])


def mark_step(page_bytes: int) -> int:
    """Return how far apart places are of which it is known which row begins there or next."""
    return max(page_bytes // 64, 1)


# --- writing ---------------------------------------------------------------------------------------------------------


class _Stream(msgspec.Struct, frozen=True, kw_only=True):
    """Doclists one after the other: their bytes, where each row begins in them, and with which row each doclist."""

    data: Bytes
    starts: NDArray[Any]
    rows: NDArray[np.int32]
    terms: Numbers
    doclists: Numbers


def write_run(found: Trigrams, rows: Numbers, into: Path, page_bytes: int) -> tuple[Run, list[int]]:
    """Write the trigrams of texts with these rows, and return samples of them at equal distances.

    Raises:
        OSError: the file cannot be written.
    """
    made = _encoded(found, rows)
    terms, count = _trigrams(found, made.terms), len(made.terms)
    doclists = np.empty(count + 1, dtype=_DOCLIST)
    doclists["first"][:-1], doclists["last"][:-1] = made.rows[made.doclists], made.rows[_ends(made.doclists, made.rows)]
    doclists["start"][:-1] = made.starts[made.doclists] + 1
    doclists[-1] = 0, 0, len(made.data) + 1
    marks = _marks(made, mark_step(page_bytes))
    with durable.open_binary(into, "xb") as file:
        for array in (rows.astype(_ROW), found.counts.astype(_ROW), terms.astype(_TERM), doclists, marks, made.data):
            file.write(array.data)
    run = Run(path=into, rows=len(rows), terms=count, marks=len(marks), stream_bytes=len(made.data))
    sizes = np.cumsum(np.diff(doclists["start"]) + DOCLIST_BYTES)
    # Runs of one language are alike: in each, samples begin elsewhere, so that they are not of the same trigrams.
    begin = int(rows[0]) * _SPREAD % SAMPLE_BYTES if count else 0
    samples = np.searchsorted(sizes, np.arange(begin, int(sizes[-1]) if count else 0, SAMPLE_BYTES))
    return run, terms[samples].tolist()


def _ends(starts: Numbers, rows: NDArray[np.int32]) -> Numbers:
    """Return the last place of each part, from where they begin."""
    return np.append(starts[1:], len(rows))[: len(starts)] - 1


def _trigrams(found: Trigrams, numbers: Numbers) -> Numbers:
    """Return the trigrams of numbers whose digits are places in an alphabet."""
    alphabet = np.array(found.alphabet, dtype=np.int64)
    terms = np.zeros(len(numbers), dtype=np.int64)
    for digit in reversed(range(CHARACTERS)):
        places = numbers >> digit * found.digit_bits & (1 << found.digit_bits) - 1
        terms = terms << CHARACTER_BITS | alphabet[places]
    return terms


def _marks(made: _Stream, step: int) -> NDArray[np.void]:
    edges = np.arange(0, len(made.data), step)
    nearest = np.searchsorted(made.starts, edges.astype(np.int32))
    marks = np.zeros(len(edges), dtype=_MARK)
    marks["start"] = np.append(made.starts, np.int32(len(made.data)))[nearest]
    marks["row"] = np.append(made.rows, np.int32(0))[nearest]
    return marks


def _encoded(found: Trigrams, rows: Numbers) -> _Stream:
    data, starts, of_rows, terms, doclists = [], [], [], [], []
    size = count = 0
    before = -1, 0
    for first, last in _slices(found):
        piece = _encoded_slice(found, found.keys[first:last], rows, *before)
        data.append(piece.data)
        starts.append((piece.starts + size).astype(np.int32))
        of_rows.append(piece.rows)
        terms.append(piece.terms)
        doclists.append(piece.doclists + count)
        size += len(piece.data)
        count += len(piece.rows)
        before = int(found.keys[last - 1] >> (found.text_bits + found.place_bits)), int(piece.rows[-1])
    return _Stream(
        data=_joined(data, np.uint8),
        starts=_joined(starts, np.int32),
        rows=_joined(of_rows, np.int32),
        terms=_joined(terms, np.int64),
        doclists=_joined(doclists, np.int64),
    )


def _joined(parts: list[NDArray[Kind]], kind: type[Kind]) -> NDArray[Kind]:
    return np.concatenate(parts) if parts else np.empty(0, dtype=kind)


def _slices(found: Trigrams) -> Iterator[tuple[int, int]]:
    """Yield parts of the keys that begin with a row."""
    first = 0
    while first < len(found.keys):
        last = _next_row(found, first + _SLICE)
        yield first, last
        first = last


def _next_row(found: Trigrams, near: int) -> int:
    """Return where, from ``near`` on, another row or another trigram begins."""
    some = 1 << 10
    while near < len(found.keys):
        rows = found.keys[near - 1 : near + some] >> found.place_bits
        changes = np.flatnonzero(rows[1:] != rows[:-1])
        if len(changes):
            return near + int(changes[0])
        near += some
    return len(found.keys)


def _encoded_slice(found: Trigrams, keys: Numbers, rows: Numbers, term_before: int, row_before: int) -> _Stream:
    """Return the doclists of keys, which begin with a row."""
    is_row = np.ones(len(keys), dtype=np.bool_)
    np.greater_equal(keys[1:] ^ keys[:-1], 1 << found.place_bits, out=is_row[1:])
    docs = np.flatnonzero(is_row)
    first_keys = keys[docs]
    # In the same row of the same trigram, keys are as far apart as their places.
    steps = np.empty(len(keys), dtype=np.int64)
    np.subtract(keys[1:], keys[:-1], out=steps[1:])
    steps[docs] = first_keys & (1 << found.place_bits) - 1
    steps += 2
    first_keys >>= found.place_bits
    of_docs = rows[first_keys & (1 << found.text_bits) - 1]
    first_keys >>= found.text_bits
    is_term = changes(first_keys)
    is_term[0] = first_keys[0] != term_before
    terms = np.flatnonzero(is_term)
    row_steps = _distances(of_docs)
    row_steps[0] -= row_before
    row_steps[terms] = 0
    data, starts = _written(docs, steps, row_steps)
    return _Stream(data=data, starts=starts, rows=of_docs.astype(np.int32), terms=first_keys[terms], doclists=terms)


def _written(docs: Numbers, steps: Numbers, row_steps: Numbers) -> tuple[Bytes, Numbers]:
    """Return the bytes of rows with their places, and where each row begins in them.

    Args:
        docs: with which place each row begins.
        steps: what is written for each place.
        row_steps: what is written for each row.
    """
    step_bytes = lengths_of(steps)
    until = np.cumsum(step_bytes, dtype=np.int64)
    last_steps = np.empty(len(docs), dtype=np.int64)
    np.subtract(docs[1:], 1, out=last_steps[:-1])
    last_steps[-1] = len(steps) - 1
    sizes = _distances(until[last_steps])
    sizes *= 2
    size_bytes, row_bytes = lengths_of(sizes), lengths_of(row_steps)
    heads = np.cumsum(size_bytes + row_bytes, dtype=np.int64)
    ends = until
    last_steps -= docs
    last_steps += 1
    ends += heads.repeat(last_steps)
    size_ends = ends[docs] - step_bytes[docs]
    row_ends = size_ends - size_bytes
    stream = np.empty(int(ends[-1]), dtype=np.uint8)
    put_all(
        stream,
        Varints(steps, step_bytes, ends),
        Varints(sizes, size_bytes, size_ends),
        Varints(row_steps, row_bytes, row_ends),
    )
    return stream, row_ends - row_bytes


def changes(numbers: Numbers) -> NDArray[np.bool_]:
    """Tell of each number whether it is another than the one before; the first one is."""
    are_others = np.ones(len(numbers), dtype=np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=are_others[1:])
    return are_others


def _distances(numbers: Numbers) -> Numbers:
    """Return how far each number is from the one before it, and the first one from 0."""
    distances = np.empty(len(numbers), dtype=np.int64)
    distances[0] = numbers[0]
    np.subtract(numbers[1:], numbers[:-1], out=distances[1:])
    return distances


# --- reading ---------------------------------------------------------------------------------------------------------


class Doclists(msgspec.Struct, frozen=True, kw_only=True):
    """Some doclists of one run or of several.

    ``starts`` and ``ends`` are their places in ``data``, without the distances of their first rows; ``marks`` are
    places where rows begin, ascending, with these rows. Between two marks, or before the first one in a part of
    ``data`` that comes from one run, more rows may begin only in the first ``mark_step`` bytes.
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
    def of_all(cls, parts: list[Doclists]) -> Doclists:
        """Return the doclists of several runs, sorted by trigram and for each trigram in the order of the runs."""
        terms = np.concatenate([part.terms for part in parts])
        order = np.argsort(terms, kind="stable")
        bases = np.cumsum([0, *(len(part.data) for part in parts)]).tolist()
        based = list(zip(parts, bases, strict=False))
        return cls(
            terms=terms[order],
            firsts=np.concatenate([part.firsts for part in parts])[order],
            lasts=np.concatenate([part.lasts for part in parts])[order],
            starts=np.concatenate([part.starts + base for part, base in based])[order],
            ends=np.concatenate([part.ends + base for part, base in based])[order],
            data=b"".join(part.data for part in parts),
            marks=np.concatenate([part.marks + base for part, base in based]),
            mark_rows=np.concatenate([part.mark_rows for part in parts]),
        )


def read_run(run: Run, low: int, high: int, page_bytes: int) -> Doclists:
    """Return what a run has of the trigrams from ``low`` up to, without, ``high``.

    Raises:
        SpliceRefused: the run is not what was written.
        OSError: it cannot be read.
    """
    step = mark_step(page_bytes)
    terms_at = run.rows * 2 * _ROW.itemsize
    doclists_at = terms_at + run.terms * _TERM.itemsize
    marks_at = doclists_at + (run.terms + 1) * _DOCLIST.itemsize
    stream_at = marks_at + run.marks * _MARK.itemsize
    with run.path.open("rb", buffering=0) as file:
        if os.fstat(file.fileno()).st_size != stream_at + run.stream_bytes:
            raise SpliceRefused("a run is not whole")
        mapped = np.memmap(file, _TERM, "r", terms_at, run.terms) if run.terms else np.empty(0, dtype=_TERM)
        first, last = (int(mapped.searchsorted(edge)) for edge in (low, high))
        # To read takes less time than to touch what is mapped.
        file.seek(terms_at + first * _TERM.itemsize)
        terms = np.fromfile(file, _TERM, last - first)
        file.seek(doclists_at + first * _DOCLIST.itemsize)
        doclists = np.fromfile(file, _DOCLIST, last - first + 1)
        places = doclists["start"].astype(np.int64) - 1
        begin, end = int(places[0]), int(places[-1])
        if not 0 <= begin <= end <= run.stream_bytes or np.any(places[1:] <= places[:-1]):
            raise SpliceRefused("a run is not what was written")
        first_mark, last_mark = -(-begin // step), -(-end // step)
        file.seek(marks_at + first_mark * _MARK.itemsize)
        marks = np.fromfile(file, _MARK, last_mark - first_mark)
        file.seek(stream_at + begin)
        data = file.read(end - begin)
        if len(data) < end - begin:
            raise SpliceRefused("a run is not whole")
    places -= begin
    return Doclists(
        terms=terms.astype(np.int64, copy=False),
        firsts=doclists["first"][:-1],
        lasts=doclists["last"][:-1],
        starts=places[:-1] + 1,
        ends=places[1:],
        data=data,
        marks=np.minimum(marks["start"].astype(np.int64), end) - begin,
        mark_rows=marks["row"],
    )
