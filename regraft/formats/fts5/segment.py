"""Builds the leaf pages of a segment from doclists, with NumPy (``docs/formats/fts5.md``, "Segments")."""

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
from regraft.formats.fts5.jobs import (
    CHARACTER_BITS,
    CODE_POINTS,
    IndexBuildRefused,
    Page,
    RangeJob,
    SortedRun,
    SortJob,
    read_runs,
    read_texts,
    write_pages,
)
from regraft.formats.fts5.runs import (
    CHARACTERS,
    ROWS_END,
    Bytes,
    CaseFolding,
    Doclists,
    Numbers,
    Varints,
    differs_from_previous,
    mark_step,
    read_run,
    sort_trigrams,
    write_run,
)
from regraft.formats.sqlite_pages.records import encode_varint

#: First byte of each term: it belongs to the main index, not to a prefix index.
_MAIN = ord("0")
#: Code points of the first Unicode plane.
_PLANE = 0x10000
#: Bits of a trigram that are set only if one of its characters lies beyond the first plane.
_LATER_PLANES = sum(((1 << CHARACTER_BITS) - _PLANE) << digit * CHARACTER_BITS for digit in range(CHARACTERS))
_MOST_CHARACTER_BYTES = 4
_MOST_TERM_BYTES = 1 + _MOST_CHARACTER_BYTES * CHARACTERS
#: Page header: offset of the first row that continues a term, and of the page's term index.
_HEAD = struct.Struct(">HH")
#: Extra bytes that the first term, the first row and the varint of the first term may need on a page.
_PAGE_SLACK = _MOST_TERM_BYTES + 10 + 3
#: Maximum size of a term's entry in the page's term index.
_LISTED_BYTES = 2
#: Maximum size of a rowid, the size of its position list, and the first position.
_MOST_ROW_BYTES = 15
#: Approximate bytes of doclists processed at a time.
_PART_BYTES = 1 << 17
#: From this average length on, doclists are copied one by one.
_LONG_BYTES = 64


class _Before(NamedTuple):
    """What precedes a range of doclists: the last term, its encoded bytes, and its last rowid."""

    term: int
    name: bytes
    row: int


_NOTHING = _Before(-1, b"", 0)


def build_pages(parts: Iterable[Doclists], page_bytes: int) -> Iterator[Page]:
    """Yield the pages of a segment, or of a part of a segment that begins with a new term.

    Args:
        parts: the doclists of the segment, in order.
        page_bytes: FTS5's ``pgsz``.
    """
    before = _NOTHING
    for part_doclists in parts:
        ends = np.cumsum(part_doclists.ends - part_doclists.starts)
        first = 0
        while first < len(ends):
            until = (int(ends[first - 1]) if first else 0) + _PART_BYTES
            last = max(int(ends.searchsorted(until)), first + 1)
            part = _Part(part_doclists, slice(first, last), before, page_bytes)
            yield from part.pages()
            before, first = part.end, last


class _Cut(NamedTuple):
    """Where a page begins: stream offset, doclist, and the first later row of the continued term (offset and rowid).

    ``row_at`` is -1 if no such row follows.
    """

    at: int
    doclist: int
    row_at: int
    row: int


class _FirstTerm(NamedTuple):
    """The first of ``begun`` terms that begin on a page: stream offset, size of its header, and its bytes.

    ``shared`` is the length of the prefix shared with the previous term, ``second`` the distance to the second term;
    the distances of the others are at ``low`` to ``high`` of the encoded term index.
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
    """A range of doclists, encoded as FTS5 writes them one after the other.

    Args:
        doclists: all doclists.
        selected: the range of them to encode.
        before: the term before the range.
        page_bytes: FTS5's ``pgsz``.
    """

    def __init__(self, doclists: Doclists, selected: slice, before: _Before, page_bytes: int) -> None:
        self._all = doclists
        self._page_bytes, self._mark_step = page_bytes, mark_step(page_bytes)
        terms = doclists.terms[selected]
        self._starts, self._ends = doclists.starts[selected], doclists.ends[selected]
        self._is_term = differs_from_previous(terms)
        # A doclist that continues the previous term has no term header.
        self._is_term[0] = terms[0] != before.term
        self._terms = np.flatnonzero(self._is_term)
        self._firsts, lasts = doclists.firsts[selected], doclists.lasts[selected]
        self._term_bytes, self._name_bytes = _encode_terms(terms[self._terms])
        self._shared_prefix_lengths = _shared_prefix_lengths(self._term_bytes, before.name)
        name = self._name(len(self._terms) - 1) if len(self._terms) else before.name
        self.end = _Before(int(terms[-1]), name, int(lasts[-1]))
        rows_before = np.concatenate(([before.row], lasts[:-1]))
        self._encode(np.where(self._is_term, self._firsts, self._firsts - rows_before))
        # Encode the distance between consecutive terms, for the pages' term indexes.
        distances = np.diff(self._term_offsets)
        sizes = runs.varint_lengths(distances)
        ends = np.cumsum(sizes, dtype=np.int64)
        listed = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
        runs.write_all_varints(listed, Varints(distances, sizes, ends))
        self._listed, self._listed_at = listed.tobytes(), np.concatenate(([0], ends))

    def _name(self, term: int) -> bytes:
        """Return the encoded bytes of the term with an index in this range."""
        return self._term_bytes[term, : self._name_bytes[term]].tobytes()

    def _encode(self, rows: Numbers) -> None:
        """Encode all doclists and record where each begins; ``rows`` is the number to write for each first row."""
        row_bytes = runs.varint_lengths(rows)
        head_bytes = row_bytes.astype(np.int64)
        self._head_bytes = 2 + self._name_bytes - self._shared_prefix_lengths
        head_bytes[self._terms] += self._head_bytes
        self._offsets = np.concatenate(([0], np.cumsum(head_bytes + self._ends - self._starts)))
        self._term_offsets = self._offsets[self._terms]
        #: Difference between the stream offset of each doclist's content and its offset in the data.
        self._shifts = self._offsets[:-1] + head_bytes - self._starts
        if self._offsets[-1] >= _LONG_BYTES * len(rows):
            head_ends = np.cumsum(head_bytes)
            heads = np.empty(int(head_ends[-1]), dtype=np.uint8)
            self._put_heads(heads, Varints(rows, row_bytes, head_ends), head_ends - head_bytes)
            self._bytes = self._join_doclists(heads.tobytes(), head_ends.tolist())
            return
        positions = np.arange(int(self._offsets[-1]))
        positions -= np.repeat(self._shifts, np.diff(self._offsets))
        # The bytes taken for the headers are placeholders and are overwritten below.
        stream = np.frombuffer(self._all.data, dtype=np.uint8).take(positions, mode="clip")
        self._put_heads(stream, Varints(rows, row_bytes, self._offsets[:-1] + head_bytes), self._offsets[:-1])
        self._bytes = stream.tobytes()

    def _join_doclists(self, heads: bytes, head_ends: list[int]) -> bytes:
        """Return the doclists one after the other, each after its header.

        ``heads`` are all headers, and ``head_ends`` the offset where each ends.
        """
        data, begin = self._all.data, 0
        parts: list[bytes] = []
        for end, start, stop in zip(head_ends, self._starts.tolist(), self._ends.tolist(), strict=True):
            parts += heads[begin:end], data[start:stop]
            begin = end
        return b"".join(parts)

    def _put_heads(self, stream: Bytes, rows: Varints, starts: Numbers) -> None:
        """Write the header of each doclist into a stream: its term, if that is a new one, and its first rowid.

        ``starts`` is the offset of each header.
        """
        runs.write_varints(stream, rows)
        # A term: the length that it shares with the one before it, the length of the rest, and the rest.
        term_starts = starts[self._terms]
        stream[term_starts] = self._shared_prefix_lengths
        stream[term_starts + 1] = self._name_bytes - self._shared_prefix_lengths
        for place in range(int(self._head_bytes.max(initial=2)) - 2):
            selected = np.flatnonzero(self._head_bytes - 2 > place)
            stream[term_starts[selected] + (2 + place)] = self._term_bytes[
                selected, self._shared_prefix_lengths[selected] + place
            ]

    # --- page boundaries ---------------------------------------------------------------------------------------------

    def _find_cuts(self) -> Iterator[_Cut]:
        """Yield the place where each page begins, and the end."""
        listed = _LISTED_BYTES * np.cumsum(self._is_term)
        costs = self._offsets + np.concatenate(([0], listed))
        room, end = self._page_bytes - _HEAD.size - _PAGE_SLACK, int(self._offsets[-1])
        cut = self._cut_before_doclist(0)
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
            found = self._cut_inside(doclist, limit - int(listed[doclist]), cut.at)
            if found is None and doclist > cut.doclist:
                found = self._cut_before_doclist(doclist)
            cut = found or self._cut_after(cut)
        yield _Cut(end, len(self._starts), -1, 0)

    def _cut_before_doclist(self, doclist: int) -> _Cut:
        """Return the cut that lets a page begin directly before the doclist with an index."""
        at = int(self._offsets[doclist])
        if doclist == len(self._starts) or self._is_term[doclist]:
            return _Cut(at, doclist, -1, 0)
        return _Cut(at, doclist, at, int(self._firsts[doclist]))

    def _cut_inside(self, doclist: int, limit: int, above: int) -> _Cut | None:
        """Return the last possible cut inside of a doclist, or None.

        The cut is behind the doclist's first row and the offset ``above``, and at most at the offset ``limit``.
        """
        shift, start, marks = int(self._shifts[doclist]), int(self._starts[doclist]), self._all.marks
        mark = int(marks.searchsorted(limit - shift, side="right"))
        row_at = int(marks[mark - 1]) if mark else -1
        if limit - shift >= max(row_at, start) + self._mark_step + _MOST_ROW_BYTES:
            # Up to the limit there are only positions of a row that began earlier.
            return self._cut_between_positions(doclist, limit, mark)
        if row_at <= start or row_at + shift <= above:
            return None
        return _Cut(row_at + shift, doclist, row_at + shift, int(self._all.mark_rows[mark - 1]))

    def _cut_between_positions(self, doclist: int, limit: int, mark: int) -> _Cut:
        """Return the last cut up to the offset ``limit`` that splits no varint; ``mark``: index of the next mark."""
        at = limit
        while self._bytes[at - 1] >= 0x80:
            at -= 1
        if mark < len(self._all.marks) and self._all.marks[mark] < self._ends[doclist]:
            row_at = int(self._all.marks[mark] + self._shifts[doclist])
            return _Cut(at, doclist, row_at, int(self._all.mark_rows[mark]))
        return self._cut_before_doclist(doclist + 1)._replace(at=at, doclist=doclist)

    def _cut_after(self, cut: _Cut) -> _Cut:
        """Return the first possible cut after another one, for content that exceeds one page."""
        doclist = cut.doclist
        limit = max(cut.at, int(self._starts[doclist] + self._shifts[doclist])) + self._mark_step + _MOST_ROW_BYTES
        while limit < self._offsets[doclist + 1]:
            found = self._cut_inside(doclist, limit, cut.at)
            if found is not None:
                return found
            limit += self._mark_step
        return self._cut_before_doclist(doclist + 1)

    # --- pages -------------------------------------------------------------------------------------------------------

    def pages(self) -> Iterator[Page]:
        """Yield the pages that the doclists of this range fill."""
        cuts = list(self._find_cuts())
        first_terms = self._find_first_terms(np.searchsorted(self._term_offsets, [cut.at for cut in cuts]))
        for (cut, following), term in zip(pairwise(cuts), first_terms, strict=True):
            yield self._build_page(cut, following.at, term)

    def _find_first_terms(self, terms: Numbers) -> list[_FirstTerm]:
        """Return the first term that begins on each page.

        ``terms`` is the index of the first term at or after each cut.
        """
        if not len(self._terms):
            return [_NO_TERM] * (len(terms) - 1)
        # Indexes beyond the last term are clipped; the looked-up values are not used.
        known = np.minimum(terms[:-1], len(self._terms) - 1)
        following = np.minimum(known + 1, len(self._terms) - 1)
        offsets, shared = self._term_offsets, self._shared_prefix_lengths
        columns = (
            np.diff(terms),
            offsets[known],
            self._head_bytes[known],
            self._name_bytes[known],
            shared[known],
            # The first term of a page is written in full, so its size differs from that in the stream.
            offsets[following] - offsets[known] + shared[known] - 1,
            self._listed_at[following],
            self._listed_at[np.maximum(terms[1:] - 1, 0)],
        )
        names = self._term_bytes[known].tobytes()
        starts = range(0, len(names), _MOST_TERM_BYTES)
        rows = zip(starts, *(column.tolist() for column in columns), strict=True)
        return [
            _FirstTerm(count, at, head, names[start : start + length], shared, second, low, high)
            for start, count, at, head, length, shared, second, low, high in rows
        ]

    def _build_page(self, cut: _Cut, end: int, term: _FirstTerm) -> Page:
        """Build the page from a cut to the stream offset ``end``, with its header and its term index."""
        stream, at, parts = self._bytes, cut.at, []
        size, row_at, row = _HEAD.size, 0, 0
        if 0 <= cut.row_at < end:
            # The first row on a page is written as an absolute rowid.
            row_at, row = size + cut.row_at - at, cut.row
            parts = [stream[at : cut.row_at], encode_varint(row)]
            # Skip the encoded distance, which the absolute rowid replaces.
            at = cut.row_at
            while stream[at] >= 0x80:
                at += 1
            at += 1
            size = row_at + len(parts[1])
        if not term.begun:
            parts.append(stream[at:end])
            data = b"".join(parts)
            return Page(_HEAD.pack(row_at, _HEAD.size + len(data)) + data, None, row)
        listed = encode_varint(size + term.at - at)
        if term.begun > 1:
            listed += encode_varint(term.second) + self._listed[term.low : term.high]
        parts += stream[at : term.at], bytes((len(term.name),)), term.name, stream[term.at + term.head : end]
        data = b"".join(parts)
        # All terms share their first byte; a shared length of 0 means that the previous term is not known.
        separator = term.name[: term.shared + 1] if term.shared else term.name
        return Page(_HEAD.pack(row_at, _HEAD.size + len(data)) + data + listed, separator, row)


def _encode_terms(terms: Numbers) -> tuple[Bytes, Numbers]:
    """Encode trigrams in UTF-8; return the terms, one zero-padded row each, and their lengths."""
    is_later = bool(np.any(terms & _LATER_PLANES))
    letters, sizes = _encode_code_points(CODE_POINTS if is_later else _PLANE)
    names = np.zeros((len(terms), _MOST_TERM_BYTES), dtype=np.uint8)
    names[:, 0] = _MAIN
    ends = np.arange(len(terms)) * _MOST_TERM_BYTES + 1
    flat = names.reshape(-1)
    for digit in reversed(range(CHARACTERS)):
        characters = terms >> digit * CHARACTER_BITS & (1 << CHARACTER_BITS) - 1
        size = sizes[characters]
        for byte in range(int(size.max(initial=0))):
            # Padding bytes of a short character are zero and are overwritten by the next character.
            flat[ends + byte] = letters[characters, byte]
        ends += size
    return names, ends - np.arange(len(terms)) * _MOST_TERM_BYTES


@cache
def _encode_code_points(count: int) -> tuple[Bytes, Bytes]:
    """Encode the first ``count`` code points in UTF-8; return them, one zero-padded row each, and their lengths."""
    characters = np.arange(count, dtype=np.int32)
    sizes = np.ones(count, dtype=np.uint8)
    letters = np.zeros((count, _MOST_CHARACTER_BYTES), dtype=np.uint8)
    letters[:, 0] = characters
    # First code point of each encoded size, and the bits of its first byte.
    for size, (first, bits) in enumerate(((0x80, 0xC0), (0x800, 0xE0), (0x10000, 0xF0)), 2):
        sizes[first:] = size
        letters[first:, 0] = bits | characters[first:] >> 6 * (size - 1)
        for byte in range(1, size):
            letters[first:, byte] = 0x80 | characters[first:] >> 6 * (size - 1 - byte) & 0x3F
    return letters, sizes


def _shared_prefix_lengths(names: Bytes, before: bytes) -> Numbers:
    """Return the length of the prefix that each term shares with the one before; ``before`` precedes the first."""
    first = np.frombuffer(before.ljust(_MOST_TERM_BYTES, b"\0"), dtype=np.uint8)
    others = np.concatenate((first[np.newaxis], names))[:-1]
    shared: Numbers = np.argmin(names == others, axis=1)
    return shared


# Jobs of the worker processes.


def sort_texts(job: SortJob) -> list[tuple[SortedRun, list[int]]]:
    """Sort the trigrams of a batch of texts and write them to files; return the runs.

    Usually one run; several if the keys of all texts do not fit into one integer. Each run comes with samples of its
    trigrams at equal distances.

    Raises:
        IndexBuildRefused, UnicodeError: these texts, or this version of SQLite, are not supported.
        apsw.Error, OSError: files cannot be read or written.
    """
    texts = list(read_texts(job.texts))
    for (before, _), (rowid, _) in pairwise([(0, ""), *texts]):
        if not before < rowid < ROWS_END:
            raise IndexBuildRefused("the numbers of the rows do not rise, or are too high")
    runs = list(_write_runs(texts, job.into, job))
    durable.remove(job.texts)
    return runs


def _write_runs(texts: list[tuple[int, str]], into: Path, job: SortJob) -> Iterator[tuple[SortedRun, list[int]]]:
    """Write the sorted trigrams of texts as runs, yielded with samples; texts too large for one run are halved.

    Args:
        texts: rowid and text of each text.
        into: the new file; a letter is added to its name for each half.
        job: the job that the texts are part of.
    """
    found = sort_trigrams([text for _, text in texts], _case_folding(job.arguments))
    if found is not None:
        rows = np.fromiter((rowid for rowid, _ in texts), dtype=np.int64, count=len(texts))
        yield write_run(found, rows, into, job.page_bytes)
        return
    # Fewer texts need fewer bits per key.
    if len(texts) == 1:
        raise IndexBuildRefused("a text is too long, of too many different characters")
    middle = len(texts) // 2
    for letter, half in (("a", texts[:middle]), ("b", texts[middle:])):
        yield from _write_runs(half, into.with_name(f"{into.name}{letter}"), job)


#: The case folding of a tokenizer by its arguments, for the lifetime of the process.
_case_folding = cache(CaseFolding)


def build_range_pages(job: RangeJob) -> int:
    """Write the index pages for a range of trigrams to a file and return their number.

    Raises:
        IndexBuildRefused: the runs are incomplete or inconsistent.
        OSError: files cannot be read or written.
    """
    parts = (read_run(run, job.low, job.high, job.page_bytes) for run in read_runs(job.runs))
    # A single trigram needs no sorting: its doclists are already in order, and may be too large to sort.
    part_doclists = parts if job.high == job.low + 1 else iter([Doclists.merge_runs(list(parts))])
    with durable.open_binary(job.into, "xb") as file:
        return write_pages(file, build_pages(part_doclists, job.page_bytes))
