"""A segment of an index over trigrams, as FTS5 keeps it, made with NumPy (``docs/formats/fts5.md``, "Segments")."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from regraft.disk import durable
from regraft.formats.fts5 import runs
from regraft.formats.fts5.records import (
    CHARACTER_BITS,
    CODE_POINTS,
    Page,
    RangeJob,
    Run,
    SortJob,
    SpliceRefused,
    read_runs,
    read_texts,
    write_pages,
)
from regraft.formats.fts5.runs import (
    CHARACTERS,
    ROWS_END,
    Bytes,
    Doclists,
    Folding,
    Numbers,
    Varints,
    changes,
    mark_step,
    read_run,
    trigrams_of,
    write_run,
)
from regraft.formats.sqlite_pages.records import put_varint

#: Before each term: it is one of the index itself, not of an index of prefixes.
_MAIN = ord("0")
#: So many characters are in the first plane.
_PLANE = 0x10000
#: What is set in a trigram only where one of its characters lies behind the first plane.
_LATER_PLANES = sum(((1 << CHARACTER_BITS) - _PLANE) << digit * CHARACTER_BITS for digit in range(CHARACTERS))
_MOST_CHARACTER_BYTES = 4
_MOST_TERM_BYTES = 1 + _MOST_CHARACTER_BYTES * CHARACTERS
#: Places of the first row that a page goes on with, and of what lists its terms.
_HEAD = struct.Struct(">HH")
#: What the first term and the first row of a page may take more than behind others, and the varint of the first term.
_PAGE_SLACK = _MOST_TERM_BYTES + 10 + 3
#: What each term may take of the list of a page's terms.
_LISTED_BYTES = 2
#: What a row may take with the length of its places, and with the first of these.
_MOST_ROW_BYTES = 15
#: About so many bytes are made into pages at a time.
_PART_BYTES = 1 << 17
#: From so many bytes in a doclist on, they are copied one by one.
_LONG_BYTES = 64


class _Before(NamedTuple):
    """What stands before some doclists: a term, its bytes, and its last row; at first, none."""

    term: int
    name: bytes
    row: int


_NOTHING = _Before(-1, b"", 0)


def pages_of(parts: Iterable[Doclists], page_bytes: int) -> Iterator[Page]:
    """Yield the pages of a segment, or of a part of one that begins with a term.

    Args:
        parts: what stands in the segment, in its order.
        page_bytes: FTS5's ``pgsz``.
    """
    before = _NOTHING
    for some in parts:
        ends = np.cumsum(some.ends - some.starts)
        first = 0
        while first < len(ends):
            until = (int(ends[first - 1]) if first else 0) + _PART_BYTES
            last = max(int(ends.searchsorted(until)), first + 1)
            part = _Part(some, slice(first, last), before, page_bytes)
            yield from part.pages()
            before, first = part.end, last


class _Cut(NamedTuple):
    """Where a page begins, in which doclist, and the first row from there on that is of the term before: where, which.

    ``row_at`` is -1 where no such row follows.
    """

    at: int
    doclist: int
    row_at: int
    row: int


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
    """Some doclists of a segment, as FTS5 writes them one after the other.

    Args:
        all_of_them: doclists.
        those: which of them.
        before: what stands before those.
        page_bytes: FTS5's ``pgsz``.
    """

    def __init__(self, all_of_them: Doclists, those: slice, before: _Before, page_bytes: int) -> None:
        self._all = all_of_them
        self._page_bytes, self._mark_step = page_bytes, mark_step(page_bytes)
        terms = all_of_them.terms[those]
        self._starts, self._ends = all_of_them.starts[those], all_of_them.ends[those]
        self._is_term = changes(terms)
        # What goes on with the term before has no term of its own.
        self._is_term[0] = terms[0] != before.term
        self._terms = np.flatnonzero(self._is_term)
        self._firsts, lasts = all_of_them.firsts[those], all_of_them.lasts[those]
        self._names, self._name_bytes = _names(terms[self._terms])
        self._shared = _shared(self._names, before.name)
        name = self._name(len(self._terms) - 1) if len(self._terms) else before.name
        self.end = _Before(int(terms[-1]), name, int(lasts[-1]))
        rows_before = np.concatenate(([before.row], lasts[:-1]))
        self._write(np.where(self._is_term, self._firsts, self._firsts - rows_before))
        self._list()

    def _name(self, term: int) -> bytes:
        return self._names[term, : self._name_bytes[term]].tobytes()

    def _write(self, rows: Numbers) -> None:
        """Write every doclist behind the other, and keep where each begins."""
        row_bytes = runs.lengths_of(rows)
        head_bytes = row_bytes.astype(np.int64)
        self._head_bytes = 2 + self._name_bytes - self._shared
        head_bytes[self._terms] += self._head_bytes
        self._offsets = np.concatenate(([0], np.cumsum(head_bytes + self._ends - self._starts)))
        self._term_offsets = self._offsets[self._terms]
        #: Behind its head, a doclist is so far from its place in the data.
        self._shifts = self._offsets[:-1] + head_bytes - self._starts
        if self._offsets[-1] >= _LONG_BYTES * len(rows):
            head_ends = np.cumsum(head_bytes)
            heads = np.empty(int(head_ends[-1]), dtype=np.uint8)
            self._put_heads(heads, Varints(rows, row_bytes, head_ends), head_ends - head_bytes)
            self._bytes = self._joined(heads.tobytes(), head_ends.tolist())
            return
        places = np.arange(int(self._offsets[-1]))
        places -= np.repeat(self._shifts, np.diff(self._offsets))
        # What is taken here before each doclist is nothing that belongs there.
        stream = np.frombuffer(self._all.data, dtype=np.uint8).take(places, mode="clip")
        self._put_heads(stream, Varints(rows, row_bytes, self._offsets[:-1] + head_bytes), self._offsets[:-1])
        self._bytes = stream.tobytes()

    def _joined(self, heads: bytes, head_ends: list[int]) -> bytes:
        """Return all doclists, each behind its head."""
        data, begin = self._all.data, 0
        parts: list[bytes] = []
        for end, start, stop in zip(head_ends, self._starts.tolist(), self._ends.tolist(), strict=True):
            parts += heads[begin:end], data[start:stop]
            begin = end
        return b"".join(parts)

    def _put_heads(self, stream: Bytes, rows: Varints, starts: Numbers) -> None:
        runs.put_some(stream, rows)
        self._put_terms(stream, starts[self._terms])

    def _put_terms(self, stream: Bytes, starts: Numbers) -> None:
        stream[starts] = self._shared
        stream[starts + 1] = self._name_bytes - self._shared
        for place in range(int(self._head_bytes.max(initial=2)) - 2):
            those = np.flatnonzero(self._head_bytes - 2 > place)
            stream[starts[those] + (2 + place)] = self._names[those, self._shared[those] + place]

    def _list(self) -> None:
        """Write how far each term is behind the one before it, as pages list them."""
        distances = np.diff(self._term_offsets)
        sizes = runs.lengths_of(distances)
        ends = np.cumsum(sizes, dtype=np.int64)
        listed = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
        runs.put_all(listed, Varints(distances, sizes, ends))
        self._listed, self._listed_at = listed.tobytes(), np.concatenate(([0], ends))

    # --- where pages begin -------------------------------------------------------------------------------------------

    def _cuts(self) -> Iterator[_Cut]:
        """Yield where each page begins, and the end."""
        listed = _LISTED_BYTES * np.cumsum(self._is_term)
        costs = self._offsets + np.concatenate(([0], listed))
        room, end = self._page_bytes - _HEAD.size - _PAGE_SLACK, int(self._offsets[-1])
        cut = self._before_doclist(0)
        while cut.at < end:
            yield cut
            limit = cut.at + room
            if cut.at > self._offsets[cut.doclist]:
                limit += int(listed[cut.doclist])
            else:
                limit += int(costs[cut.doclist]) - cut.at
            doclist = int(costs.searchsorted(limit, side="right")) - 1
            if doclist == len(self._starts):
                break
            found = self._inside(doclist, limit - int(listed[doclist]), cut.at)
            if found is None and doclist > cut.doclist:
                found = self._before_doclist(doclist)
            cut = found or self._behind(cut)
        yield _Cut(end, len(self._starts), -1, 0)

    def _before_doclist(self, doclist: int) -> _Cut:
        at = int(self._offsets[doclist])
        if doclist == len(self._starts) or self._is_term[doclist]:
            return _Cut(at, doclist, -1, 0)
        return _Cut(at, doclist, at, int(self._firsts[doclist]))

    def _inside(self, doclist: int, limit: int, above: int) -> _Cut | None:
        """Return where a page may begin in a doclist behind its first row, up to a limit; None where it cannot."""
        shift, start, marks = int(self._shifts[doclist]), int(self._starts[doclist]), self._all.marks
        mark = int(marks.searchsorted(limit - shift, side="right"))
        row_at = int(marks[mark - 1]) if mark else -1
        if limit - shift >= max(row_at, start) + self._mark_step + _MOST_ROW_BYTES:
            # Here are places of a row that began before.
            return self._among_places(doclist, limit, mark)
        if row_at <= start or row_at + shift <= above:
            return None
        return _Cut(row_at + shift, doclist, row_at + shift, int(self._all.mark_rows[mark - 1]))

    def _among_places(self, doclist: int, limit: int, mark: int) -> _Cut:
        at = limit
        while self._bytes[at - 1] >= 0x80:
            at -= 1
        if mark < len(self._all.marks) and self._all.marks[mark] < self._ends[doclist]:
            row_at = int(self._all.marks[mark] + self._shifts[doclist])
            return _Cut(at, doclist, row_at, int(self._all.mark_rows[mark]))
        return self._before_doclist(doclist + 1)._replace(at=at, doclist=doclist)

    def _behind(self, cut: _Cut) -> _Cut:
        """Return where a page may begin soonest after another: there is no room for as much as has to be in one."""
        doclist = cut.doclist
        limit = max(cut.at, int(self._starts[doclist] + self._shifts[doclist])) + self._mark_step + _MOST_ROW_BYTES
        while limit < self._offsets[doclist + 1]:
            found = self._inside(doclist, limit, cut.at)
            if found is not None:
                return found
            limit += self._mark_step
        return self._before_doclist(doclist + 1)

    # --- pages -------------------------------------------------------------------------------------------------------

    def pages(self) -> Iterator[Page]:
        """Yield all pages."""
        cuts = list(self._cuts())
        first_terms = self._first_terms(np.searchsorted(self._term_offsets, [cut.at for cut in cuts]))
        for (cut, following), term in zip(pairwise(cuts), first_terms, strict=True):
            yield self._page(cut, following.at, term)

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

    def _page(self, cut: _Cut, end: int, term: _FirstTerm) -> Page:
        """Return the page of a slice of the stream, with the terms and the rows that begin in it."""
        stream, at, parts = self._bytes, cut.at, []
        size, row_at, row = _HEAD.size, 0, 0
        if 0 <= cut.row_at < end:
            # It is not told by its distance from one on another page.
            row_at, row = size + cut.row_at - at, cut.row
            parts = [stream[at : cut.row_at], put_varint(row)]
            at = _varint_end(stream, cut.row_at)
            size = row_at + len(parts[1])
        if not term.begun:
            parts.append(stream[at:end])
            data = b"".join(parts)
            return Page(_HEAD.pack(row_at, _HEAD.size + len(data)) + data, None, row)
        listed = put_varint(size + term.at - at)
        if term.begun > 1:
            listed += put_varint(term.second) + self._listed[term.low : term.high]
        parts += stream[at : term.at], bytes((len(term.name),)), term.name, stream[term.at + term.head : end]
        data = b"".join(parts)
        # All terms begin alike: where nothing is shared, nobody knows the one before.
        separator = term.name[: term.shared + 1] if term.shared else term.name
        return Page(_HEAD.pack(row_at, _HEAD.size + len(data)) + data + listed, separator, row)


def _varint_end(stream: bytes, at: int) -> int:
    while stream[at] >= 0x80:
        at += 1
    return at + 1


def _names(terms: Numbers) -> tuple[Bytes, Numbers]:
    """Return terms of trigrams in UTF-8, a row each with zeros behind it, and their lengths."""
    is_later = bool(np.any(terms & _LATER_PLANES))
    letters, sizes = _letters(CODE_POINTS if is_later else _PLANE)
    names = np.zeros((len(terms), _MOST_TERM_BYTES), dtype=np.uint8)
    names[:, 0] = _MAIN
    ends = np.arange(len(terms)) * _MOST_TERM_BYTES + 1
    flat = names.reshape(-1)
    for digit in reversed(range(CHARACTERS)):
        characters = terms >> digit * CHARACTER_BITS & (1 << CHARACTER_BITS) - 1
        size = sizes[characters]
        for byte in range(int(size.max(initial=0))):
            # What is too much of a short letter is zero, and the next letter goes over it.
            flat[ends + byte] = letters[characters, byte]
        ends += size
    return names, ends - np.arange(len(terms)) * _MOST_TERM_BYTES


@cache
def _letters(count: int) -> tuple[Bytes, Bytes]:
    """Return so many characters in UTF-8, a row each with zeros behind it, and how many bytes each takes."""
    characters = np.arange(count, dtype=np.int32)
    sizes = np.ones(count, dtype=np.uint8)
    letters = np.zeros((count, _MOST_CHARACTER_BYTES), dtype=np.uint8)
    letters[:, 0] = characters
    # From this character on, so many bytes begin with these bits.
    for size, (first, bits) in enumerate(((0x80, 0xC0), (0x800, 0xE0), (0x10000, 0xF0)), 2):
        sizes[first:] = size
        letters[first:, 0] = bits | characters[first:] >> 6 * (size - 1)
        for byte in range(1, size):
            letters[first:, byte] = 0x80 | characters[first:] >> 6 * (size - 1 - byte) & 0x3F
    return letters, sizes


def _shared(names: Bytes, before: bytes) -> Numbers:
    """Return how many bytes each term begins with as the one before it, the first one as ``before``."""
    first = np.frombuffer(before.ljust(_MOST_TERM_BYTES, b"\0"), dtype=np.uint8)
    others = np.concatenate((first[np.newaxis], names))[:-1]
    shared: Numbers = np.argmin(names == others, axis=1)
    return shared


# Sorts the trigrams of texts into runs, and makes pages of a range of all runs (``docs/formats/fts5.md``).


def sort(job: SortJob) -> list[tuple[Run, list[int]]]:
    """Write the runs of texts and return each with samples of its trigrams, at equal distances.

    There is one, or several where one number has no room for their keys.

    Raises:
        SpliceRefused, UnicodeError: that cannot be done with these texts, or with this SQLite.
        apsw.Error, OSError: files cannot be read or written.
    """
    texts = list(read_texts(job.texts))
    for (before, _), (rowid, _) in pairwise([(0, ""), *texts]):
        if not before < rowid < ROWS_END:
            raise SpliceRefused("the numbers of the rows do not rise, or are too high")
    runs = list(_runs(texts, job.into, job))
    durable.remove(job.texts)
    return runs


def _runs(texts: list[tuple[int, str]], into: Path, job: SortJob) -> Iterator[tuple[Run, list[int]]]:
    found = trigrams_of([text for _, text in texts], _folding(job.arguments))
    if found is not None:
        rows = np.fromiter((rowid for rowid, _ in texts), dtype=np.int64, count=len(texts))
        yield write_run(found, rows, into, job.page_bytes)
        return
    # Fewer texts take fewer bits.
    if len(texts) == 1:
        raise SpliceRefused("a text is too long, of too many different characters")
    middle = len(texts) // 2
    for letter, some in (("a", texts[:middle]), ("b", texts[middle:])):
        yield from _runs(some, into.with_name(f"{into.name}{letter}"), job)


@cache
def _folding(arguments: str) -> Folding:
    """Return what this process has learned of a tokenizer."""
    return Folding(arguments)


def make_pages(job: RangeJob) -> int:
    """Write the pages over a range of trigrams and return their number.

    Raises:
        SpliceRefused: the runs are not what they should be.
        OSError: files cannot be read or written.
    """
    parts = (read_run(run, job.low, job.high, job.page_bytes) for run in read_runs(job.runs))
    # What one trigram has in one run after the other is sorted as it stands; there may be very much of it.
    some = parts if job.high == job.low + 1 else iter([Doclists.of_all(list(parts))])
    with durable.open_binary(job.into, "xb") as file:
        return write_pages(file, pages_of(some, job.page_bytes))
