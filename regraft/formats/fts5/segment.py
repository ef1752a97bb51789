"""A segment of an index over trigrams, as FTS5 keeps it, made with NumPy (``docs/formats/fts5.md``, "Segments")."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regraft.formats.fts5.jobs import Page
from regraft.formats.fts5.trigrams import CHARACTERS, Numbers
from regraft.formats.sqlite_pages.records import put_varint

Bytes = NDArray[np.uint8]

#: Bits of a place in a text.
PLACE_BITS = 24
#: Before each term: it is one of the index itself, not of an index of prefixes.
_MAIN = ord("0")
_MOST_TERM_BYTES = 1 + 4 * CHARACTERS
#: Places of the first row that a page goes on with, and of what lists its terms.
_HEAD = struct.Struct(">HH")
#: What the first term and the first row of a page may take more than behind others, and the varint of the first term.
_PAGE_SLACK = _MOST_TERM_BYTES + 10 + 3
#: So many occurrences are made into pages at a time.
_SLICE = 1 << 16


class Alphabet:
    """The characters of trigrams, ascending: what stands in a trigram's number is their places."""

    def __init__(self, characters: Numbers) -> None:
        self.characters = characters
        self.bits = len(characters).bit_length()
        encoded = [chr(character).encode() for character in characters.tolist()]
        #: Each in UTF-8 with zeros behind it, and how many bytes it takes.
        self.letters: Bytes = np.zeros((len(encoded), max(map(len, encoded), default=1)), dtype=np.uint8)
        for row, letter in zip(self.letters, encoded, strict=True):
            row[: len(letter)] = np.frombuffer(letter, dtype=np.uint8)
        self.letter_bytes: Numbers = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))


@dataclass(frozen=True, slots=True)
class Occurrences:
    """Trigrams by their numbers, ascending; for each its row and, in the last ``PLACE_BITS``, its place there."""

    numbers: Numbers
    located: Numbers

    def edge(self, near: int) -> int:
        """Return where, from ``near`` on, another row or another trigram begins."""
        step = 1 << 10
        while near < len(self.numbers):
            some = slice(near - 1, near + step)
            is_edge = _changes(self.located[some] >> PLACE_BITS) | _changes(self.numbers[some])
            changes = np.flatnonzero(is_edge[1:])
            if len(changes):
                return near + int(changes[0])
            near += step
        return len(self.numbers)

    def part(self, first: int, last: int) -> Occurrences:
        """Return those from one place to another."""
        return Occurrences(self.numbers[first:last], self.located[first:last])


def pages_of(letters: Alphabet, parts: Iterable[Occurrences], page_bytes: int) -> Iterator[Page]:
    """Yield the pages of a segment, or of a part of one that begins with a term.

    Args:
        letters: the characters.
        parts: what stands in the segment, in its order; no row's occurrences of a trigram are in two of them.
        page_bytes: FTS5's ``pgsz``.
    """
    term, name = -1, b""
    for some in parts:
        first = 0
        while first < len(some.numbers):
            last = some.edge(first + _SLICE)
            part = _Part(letters, some.part(first, last), name, continues=int(some.numbers[first]) == term)
            yield from part.pages(page_bytes)
            term, name, first = int(some.numbers[last - 1]), part.last_term, last


class _FirstTerm(NamedTuple):
    """The first of so many terms that begin in a page: where it stands in the stream, with how many bytes before it.

    ``shared`` is how many bytes it has as the term before, ``second`` how far behind it the second one is, and from
    ``low`` to ``high`` stand the distances of the others.
    """

    begun: int
    at: int
    head: int
    name: bytes
    shared: int
    second: int
    low: int
    high: int


_NO_TERM = _FirstTerm(0, 0, 0, b"", 0, 0, 0, 0)


class _Part:
    """Some occurrences of a segment, as FTS5 writes them one after the other.

    An occurrence is the smallest thing that a page holds whole: with the term before it and the row where these change.
    """

    def __init__(self, letters: Alphabet, some: Occurrences, before: bytes, *, continues: bool) -> None:
        rows = some.located >> PLACE_BITS
        self._is_term = _changes(some.numbers)
        is_doc = _changes(rows) | self._is_term
        # What begins with a row of the term before has no term of its own there.
        self._is_term[0] = not continues
        self._docs, self._terms = np.flatnonzero(is_doc), np.flatnonzero(self._is_term)
        self._rows = rows[self._docs]
        self._names, self._name_bytes = _names(letters, some.numbers[self._terms])
        self._shared = _shared(self._names, before)
        self.last_term = self._name(len(self._terms) - 1) if len(self._terms) else before
        self._write(_steps(some.located & (1 << PLACE_BITS) - 1, is_doc))

    def _name(self, term: int) -> bytes:
        return self._names[term, : self._name_bytes[term]].tobytes()

    def _write(self, steps: Numbers) -> None:
        """Write every occurrence behind the other, and keep where each begins."""
        step_bytes = _varint_bytes(steps)
        sizes = _sums(step_bytes, self._docs) * 2
        size_bytes = _varint_bytes(sizes)
        rows = np.diff(self._rows, prepend=0)
        is_first = self._is_term[self._docs]
        rows[is_first] = self._rows[is_first]
        self._row_bytes = _varint_bytes(rows)
        self._head_bytes = 2 + self._name_bytes - self._shared
        length = step_bytes.copy()
        length[self._docs] += self._row_bytes + size_bytes
        length[self._terms] += self._head_bytes
        self._offsets = np.concatenate(([0], np.cumsum(length)))
        self._stream = np.empty(int(self._offsets[-1]), dtype=np.uint8)
        ends = self._offsets[1:]
        _put_varints(self._stream, ends, steps, step_bytes)
        ends = (ends - step_bytes)[self._docs]
        _put_varints(self._stream, ends, sizes, size_bytes)
        ends -= size_bytes
        _put_varints(self._stream, ends, rows, self._row_bytes)
        self._doc_offsets = ends - self._row_bytes
        self._term_offsets = self._offsets[self._terms]
        self._put_heads(self._term_offsets)
        self._bytes = self._stream.tobytes()
        self._list()

    def _list(self) -> None:
        """Write how far each term is behind the one before it, as pages list them."""
        distances = np.diff(self._term_offsets)
        sizes = _varint_bytes(distances)
        ends = np.cumsum(sizes)
        listed = np.empty(int(sizes.sum()), dtype=np.uint8)
        _put_varints(listed, ends, distances, sizes)
        self._listed, self._listed_at = listed.tobytes(), np.concatenate(([0], ends))

    def _put_heads(self, starts: Numbers) -> None:
        self._stream[starts] = self._shared
        self._stream[starts + 1] = self._name_bytes - self._shared
        for place in range(int(self._head_bytes.max(initial=2)) - 2):
            those = np.flatnonzero(self._head_bytes - 2 > place)
            self._stream[starts[those] + (2 + place)] = self._names[those, self._shared[those] + place]

    def _cuts(self, page_bytes: int) -> list[int]:
        """Return with which occurrence each page begins, and the number of all of them."""
        # Each term takes up to two bytes of the page's list of terms.
        costs = self._offsets.copy()
        costs[1:] += 2 * np.cumsum(self._is_term)
        room = page_bytes - _HEAD.size - _PAGE_SLACK
        cuts = [0]
        while cuts[-1] < len(costs) - 1:
            cut = int(costs.searchsorted(costs[cuts[-1]] + room, side="right")) - 1
            cuts.append(max(cut, cuts[-1] + 1))
        return cuts

    def pages(self, page_bytes: int) -> Iterator[Page]:
        """Yield all pages."""
        cuts = self._cuts(page_bytes)
        edges: list[int] = self._offsets[cuts].tolist()
        terms, docs = np.searchsorted(self._terms, cuts), np.searchsorted(self._docs, cuts)
        begun = zip(self._first_terms(terms), self._first_rows(docs), strict=True)
        for (at, end), (term, row) in zip(pairwise(edges), begun, strict=True):
            yield self._page(at, end, term, row)

    def _first_terms(self, terms: Numbers) -> list[_FirstTerm]:
        """Return the first term of each page, from the numbers of the terms with which pages begin."""
        if not len(self._terms):
            return [_NO_TERM] * (len(terms) - 1)
        # Behind the last term there is none: what is looked up there is not used.
        known = np.minimum(terms[:-1], len(self._terms) - 1)
        following = np.minimum(known + 1, len(self._terms) - 1)
        offsets, shared = self._term_offsets, self._shared
        columns = (
            np.diff(terms),
            offsets[known],
            self._head_bytes[known],
            self._name_bytes[known],
            shared[known],
            # Whole, the first term takes another room than in the stream.
            offsets[following] - offsets[known] + shared[known] - 1,
            self._listed_at[following],
            self._listed_at[np.maximum(terms[1:] - 1, 0)],
        )
        names = self._names[known].tobytes()
        places = range(0, len(names), _MOST_TERM_BYTES)
        rows = zip(places, *(column.tolist() for column in columns), strict=True)
        return [
            _FirstTerm(count, at, head, names[place : place + length], shared, second, low, high)
            for place, count, at, head, length, shared, second, low, high in rows
        ]

    def _first_rows(self, docs: Numbers) -> list[tuple[int, int, int]]:
        """Return of the first row of each page where it begins in the stream, itself, and its bytes there."""
        known = np.minimum(docs[:-1], len(self._docs) - 1)
        offsets = np.where(np.diff(docs) > 0, self._doc_offsets[known], len(self._bytes))
        columns = offsets, self._rows[known], self._row_bytes[known]
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def _page(self, at: int, end: int, term: _FirstTerm, first_row: tuple[int, int, int]) -> Page:
        """Return the page of a slice of the stream, with the terms and the rows that begin in it."""
        stream, parts = self._bytes, []
        first_term = term.at if term.begun else end
        size, row_at, row = _HEAD.size, 0, 0
        if first_row[0] < first_term:
            # It is not told by its distance from one on another page.
            row_at, row = size + first_row[0] - at, first_row[1]
            parts = [stream[at : first_row[0]], put_varint(row)]
            at = first_row[0] + first_row[2]
            size = row_at + len(parts[1])
        if not term.begun:
            parts.append(stream[at:end])
            data = b"".join(parts)
            return Page(_HEAD.pack(row_at, _HEAD.size + len(data)) + data, None, row)
        listed = put_varint(size + first_term - at)
        if term.begun > 1:
            listed += put_varint(term.second) + self._listed[term.low : term.high]
        parts += stream[at:first_term], bytes((len(term.name),)), term.name, stream[first_term + term.head : end]
        data = b"".join(parts)
        # All terms begin alike: where nothing is shared, nobody knows the one before.
        separator = term.name[: term.shared + 1] if term.shared else term.name
        return Page(_HEAD.pack(row_at, _HEAD.size + len(data)) + data + listed, separator, row)


def _changes(numbers: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell of each number whether it is another than the one before."""
    changes = np.ones(len(numbers), dtype=np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=changes[1:])
    return changes


def _steps(places: Numbers, is_doc: NDArray[np.bool_]) -> Numbers:
    """Return each place as FTS5 keeps it: two more than its distance from the one before in the same row."""
    steps: Numbers = places + 2
    steps[1:] -= np.where(is_doc[1:], 0, places[:-1])
    return steps


def _sums(numbers: Numbers, starts: Numbers) -> Numbers:
    """Return the sums of the numbers from each start up to the next."""
    until = np.cumsum(numbers)[np.append(starts[1:], len(numbers)) - 1]
    sums: Numbers = np.diff(until, prepend=0)
    return sums


def _names(alphabet: Alphabet, numbers: Numbers) -> tuple[Bytes, Numbers]:
    """Return the terms of trigrams in UTF-8, a row each with zeros behind it, and their lengths."""
    mask = (1 << alphabet.bits) - 1
    names = np.zeros((len(numbers), _MOST_TERM_BYTES), dtype=np.uint8)
    names[:, 0] = _MAIN
    lengths = np.ones(len(numbers), dtype=np.int64)
    rows = np.arange(len(numbers)) * _MOST_TERM_BYTES
    flat = names.reshape(-1)
    for digit in reversed(range(CHARACTERS)):
        places = numbers >> (digit * alphabet.bits) & mask
        for byte in range(alphabet.letters.shape[1]):
            # What is too much of a short letter is zero, and the next letter goes over it.
            flat[rows + lengths + byte] = alphabet.letters[places, byte]
        lengths += alphabet.letter_bytes[places]
    return names, lengths


def _shared(names: Bytes, before: bytes) -> Numbers:
    """Return how many bytes each term begins with as the one before it, the first one as ``before``."""
    first = np.frombuffer(before.ljust(_MOST_TERM_BYTES, b"\0"), dtype=np.uint8)
    others = np.concatenate((first[np.newaxis], names))[:-1]
    shared: Numbers = np.argmin(names == others, axis=1)
    return shared


def _varint_bytes(numbers: Numbers) -> Numbers:
    """Return how many bytes each number below 2^56 takes."""
    lengths = np.ones(len(numbers), dtype=np.int64)
    most, limit = int(numbers.max(initial=0)), 1 << 7
    while limit <= most:
        lengths += numbers >= limit
        limit <<= 7
    return lengths


def _put_varints(stream: Bytes, ends: Numbers, numbers: Numbers, lengths: Numbers) -> None:
    """Write numbers, each up to its end."""
    stream[ends - 1] = numbers & 0x7F
    for back in range(1, int(lengths.max(initial=1))):
        those = np.flatnonzero(lengths > back)
        stream[ends[those] - (1 + back)] = numbers[those] >> (7 * back) & 0x7F | 0x80
