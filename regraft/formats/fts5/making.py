"""Sorts the trigrams of texts into runs, and makes pages of what all runs have of a range (``docs/formats/fts5.md``)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regraft import sqlite
from regraft.formats.fts5.jobs import CHARACTER_BITS, SAMPLE_STEP, RangeJob, Run, SortJob, write_page
from regraft.formats.fts5.records import SpliceRefused
from regraft.formats.fts5.segment import PLACE_BITS, Alphabet, Occurrences, pages_of
from regraft.formats.fts5.texts import read_texts
from regraft.formats.fts5.trigrams import CHARACTERS, Folding, Numbers, Trigrams, trigrams_of
from regraft.ledger import durable

#: Numbers of rows are below this.
_ROWS_END = 1 << 62 - PLACE_BITS
_KEY_BITS = 63


# --- sorting -----------------------------------------------------------------------------------------------------------


def sort(job: SortJob) -> list[tuple[Run, list[int]]]:
    """Write the runs of texts and return each with samples of its trigrams, at equal distances.

    There is one, or several where one number has no room for their keys.

    Raises:
        SpliceRefused, UnicodeError: that cannot be done with these texts, or with this SQLite.
        apsw.Error, OSError: files cannot be read or written.
    """
    texts = list(read_texts(job.texts))
    for (before, _), (rowid, _) in pairwise([(0, ""), *texts]):
        if not before < rowid < _ROWS_END:
            raise SpliceRefused("the numbers of the rows do not rise, or are too high")
    with sqlite.scratch() as db:
        runs = list(_runs(texts, Folding(db, job.arguments), job.into))
    durable.remove(job.texts)
    return runs


def _runs(texts: list[tuple[int, str]], folding: Folding, into: Path) -> Iterator[tuple[Run, list[int]]]:
    found = trigrams_of([text for _, text in texts], folding)
    if found is not None:
        yield _write(found, [rowid for rowid, _ in texts], into)
        return
    # Fewer texts take fewer bits.
    if len(texts) == 1:
        raise SpliceRefused("a text is too long, of too many different characters")
    middle = len(texts) // 2
    yield from _runs(texts[:middle], folding, into.with_name(f"{into.name}a"))
    yield from _runs(texts[middle:], folding, into.with_name(f"{into.name}b"))


def _write(found: Trigrams, rowids: list[int], into: Path) -> tuple[Run, list[int]]:
    numbers = found.keys[SAMPLE_STEP // 2 :: SAMPLE_STEP] >> (found.text_bits + found.place_bits)
    alphabet = np.array(found.alphabet, dtype=np.int64)
    samples = np.zeros(len(numbers), dtype=np.int64)
    for digit in _digits(numbers, found.digit_bits):
        samples = samples << CHARACTER_BITS | alphabet[digit]
    run = Run(
        keys=into.with_name(f"{into.name}.keys"),
        rows=into.with_name(f"{into.name}.rows"),
        counts=into.with_name(f"{into.name}.counts"),
        alphabet=into.with_name(f"{into.name}.alphabet"),
        digit_bits=found.digit_bits,
        text_bits=found.text_bits,
        place_bits=found.place_bits,
        row_count=len(rowids),
        tokens=int(found.counts.sum()),
    )
    rows = np.array(rowids, dtype=np.int64)
    _put(run.keys, found.keys)
    _put(run.rows, rows)
    _put(run.counts, np.stack((rows, found.counts), axis=1))
    _put(run.alphabet, alphabet)
    return run, samples.tolist()


def _put(path: Path, numbers: Numbers) -> None:
    with durable.open_binary(path, "xb") as file:
        file.write(numbers.astype("<i8", copy=False).tobytes())


def _get(path: Path) -> Numbers:
    return np.fromfile(path, "<i8").astype(np.int64, copy=False)


def _digits(numbers: Numbers, bits: int) -> Iterator[Numbers]:
    """Yield the digits of numbers, the first ones first."""
    for digit in reversed(range(CHARACTERS)):
        yield numbers >> digit * bits & (1 << bits) - 1


# --- pages -------------------------------------------------------------------------------------------------------------


def make_pages(job: RangeJob) -> int:
    """Write the pages over a range of trigrams and return their number.

    Raises:
        SpliceRefused: the runs are not what they should be.
        OSError: files cannot be read or written.
    """
    letters = Alphabet(_get(job.alphabet))
    parts = (_Slice(run, letters, job) for run in job.runs)
    # What one trigram has in one run after the other is sorted as it stands; there may be very much of it.
    is_one = job.high == job.low + 1
    some = (part.read() for part in parts) if is_one else iter([_merged([part.read() for part in parts])])
    count = 0
    with durable.open_binary(job.into, "xb") as file:
        for page in pages_of(letters, some, job.page_bytes):
            write_page(file, page)
            count += 1
    return count


class _Slice:
    """What a run has of a range of trigrams."""

    def __init__(self, run: Run, letters: Alphabet, job: RangeJob) -> None:
        self._run = run
        self._letters = letters
        self._alphabet = _get(run.alphabet)
        # An empty file cannot be mapped.
        is_empty = run.tokens == 0
        self._keys: NDArray[Any] = np.empty(0, "<i8") if is_empty else np.memmap(run.keys, "<i8", "r")
        if len(self._keys) != run.tokens:
            raise SpliceRefused("a run is not whole")
        self._edges = [int(self._keys.searchsorted(self._first_key(edge))) for edge in (job.low, job.high)]

    def _first_key(self, trigram: int) -> int:
        """Return the least key of the trigrams from this one on."""
        run, number = self._run, 0
        for place in reversed(range(CHARACTERS)):
            character = trigram >> place * CHARACTER_BITS & (1 << CHARACTER_BITS) - 1
            digit = int(self._alphabet.searchsorted(character))
            number += digit << place * run.digit_bits
            if digit == len(self._alphabet) or int(self._alphabet[digit]) != character:
                break
        return min(number << run.text_bits + run.place_bits, (1 << _KEY_BITS) - 1)

    def read(self) -> Occurrences:
        """Return what it has, as numbers of the characters of all runs."""
        run = self._run
        keys = np.array(self._keys[slice(*self._edges)], dtype=np.int64)
        texts = keys >> run.place_bits & (1 << run.text_bits) - 1
        located = _get(run.rows)[texts] << PLACE_BITS
        located |= keys & (1 << run.place_bits) - 1
        rank = np.searchsorted(self._letters.characters, self._alphabet)
        numbers = np.zeros(len(keys), dtype=np.int64)
        for digit in _digits(keys >> run.text_bits + run.place_bits, run.digit_bits):
            numbers <<= self._letters.bits
            numbers |= rank[digit]
        return Occurrences(numbers, located)


def _merged(parts: list[Occurrences]) -> Occurrences:
    """Return what several runs have, sorted by trigram, and for each trigram in the order of the runs."""
    numbers = np.concatenate([part.numbers for part in parts])
    located = np.concatenate([part.located for part in parts])
    if not len(numbers):
        return Occurrences(numbers, located)
    least = int(numbers.min())
    place_bits = len(numbers).bit_length()
    if (int(numbers.max()) - least).bit_length() + place_bits > _KEY_BITS:
        order = np.argsort(numbers, kind="stable")
        return Occurrences(numbers[order], located[order])
    # One number with both is sorted faster.
    numbers -= least
    numbers <<= place_bits
    numbers |= np.arange(len(numbers))
    numbers.sort()
    located = located[numbers & (1 << place_bits) - 1]
    numbers >>= place_bits
    numbers += least
    return Occurrences(numbers, located)
