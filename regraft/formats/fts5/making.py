"""Sorts the trigrams of texts into runs, and makes pages of a range of all runs (``docs/formats/fts5.md``)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import apsw
import numpy as np

from regraft.formats.fts5.jobs import CHARACTER_BITS, SAMPLE_STEP, RangeJob, Run, SortJob, write_page
from regraft.formats.fts5.records import SpliceRefused
from regraft.formats.fts5.segment import PLACE_BITS, Alphabet, Occurrences, pages_of
from regraft.formats.fts5.texts import read_texts
from regraft.formats.fts5.trigrams import CHARACTERS, KEY_BITS, Folding, Numbers, Trigrams, trigrams_of
from regraft.ledger import durable

#: Numbers of rows are below this.
_ROWS_END = 1 << 62 - PLACE_BITS
_NUMBER_BYTES = 8


# --- sorting ---------------------------------------------------------------------------------------------------------


class Sorter:
    """Writes runs; what it has learned of a tokenizer it keeps.

    Args:
        db: an empty database.
    """

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._folding: Folding | None = None

    def sort(self, job: SortJob) -> list[tuple[Run, list[int]]]:
        """Write the runs of texts and return each with samples of its trigrams, at equal distances.

        There is one, or several where one number has no room for their keys.

        Raises:
            SpliceRefused, UnicodeError: that cannot be done with these texts, or with this SQLite.
            apsw.Error, OSError: files cannot be read or written.
        """
        if self._folding is None:
            self._folding = Folding(self._db, job.arguments)
        texts = list(read_texts(job.texts))
        for (before, _), (rowid, _) in pairwise([(0, ""), *texts]):
            if not before < rowid < _ROWS_END:
                raise SpliceRefused("the numbers of the rows do not rise, or are too high")
        runs = list(self._runs(texts, self._folding, job.into))
        durable.remove(job.texts)
        return runs

    def _runs(self, texts: list[tuple[int, str]], folding: Folding, into: Path) -> Iterator[tuple[Run, list[int]]]:
        found = trigrams_of([text for _, text in texts], folding)
        if found is not None:
            yield _write(found, [rowid for rowid, _ in texts], into)
            return
        # Fewer texts take fewer bits.
        if len(texts) == 1:
            raise SpliceRefused("a text is too long, of too many different characters")
        middle = len(texts) // 2
        yield from self._runs(texts[:middle], folding, into.with_name(f"{into.name}a"))
        yield from self._runs(texts[middle:], folding, into.with_name(f"{into.name}b"))


def _write(found: Trigrams, rowids: list[int], into: Path) -> tuple[Run, list[int]]:
    numbers = found.keys[SAMPLE_STEP // 2 :: SAMPLE_STEP] >> (found.text_bits + found.place_bits)
    alphabet = np.array(found.alphabet, dtype=np.int64)
    samples = np.zeros(len(numbers), dtype=np.int64)
    for digit in _digits(numbers, found.digit_bits):
        samples = samples << CHARACTER_BITS | alphabet[digit]
    with durable.open_binary(into, "xb") as file:
        for array in (alphabet, np.array(rowids, dtype=np.int64), found.counts, found.keys):
            file.write(array.astype("<i8", copy=False).data)
    run = Run(
        path=into,
        characters=len(alphabet),
        rows=len(rowids),
        tokens=len(found.keys),
        digit_bits=found.digit_bits,
        text_bits=found.text_bits,
        place_bits=found.place_bits,
    )
    return run, samples.tolist()


def _digits(numbers: Numbers, bits: int) -> Iterator[Numbers]:
    """Yield the digits of numbers, the first ones first."""
    for digit in reversed(range(CHARACTERS)):
        yield numbers >> digit * bits & (1 << bits) - 1


# --- pages -----------------------------------------------------------------------------------------------------------


def make_pages(job: RangeJob) -> int:
    """Write the pages over a range of trigrams and return their number.

    Raises:
        SpliceRefused: the runs are not what they should be.
        OSError: files cannot be read or written.
    """
    letters = Alphabet(np.fromfile(job.alphabet, "<i8").astype(np.int64, copy=False))
    parts = (_slice(run, letters, job) for run in job.runs)
    # What one trigram has in one run after the other is sorted as it stands; there may be very much of it.
    some = parts if job.high == job.low + 1 else iter([_merged(list(parts))])
    count = 0
    with durable.open_binary(job.into, "xb") as file:
        for page in pages_of(letters, some, job.page_bytes):
            write_page(file, page)
            count += 1
    return count


def _slice(run: Run, letters: Alphabet, job: RangeJob) -> Occurrences:
    """Return what a run has of a range of trigrams, as numbers of the characters of all runs."""
    with run.path.open("rb") as file:
        if os.fstat(file.fileno()).st_size != (run.keys_at + run.tokens) * _NUMBER_BYTES:
            raise SpliceRefused("a run is not whole")
        mapped = np.memmap(file, "<i8", "r")
        characters = np.array(mapped[: run.characters], dtype=np.int64)
        keys = mapped[run.keys_at :]
        first, last = (int(keys.searchsorted(_first_key(run, characters, edge))) for edge in (job.low, job.high))
        rows = np.array(mapped[run.characters : run.counts_at], dtype=np.int64)
        # To read takes less time than to touch what is mapped.
        file.seek((run.keys_at + first) * _NUMBER_BYTES)
        read = np.fromfile(file, "<i8", last - first)
    found = read.astype(np.int64, copy=False)
    located = rows[found >> run.place_bits & (1 << run.text_bits) - 1]
    located <<= PLACE_BITS
    located |= found & (1 << run.place_bits) - 1
    rank = np.searchsorted(letters.characters, characters)
    numbers = np.zeros(len(found), dtype=np.int64)
    for digit in _digits(found >> run.text_bits + run.place_bits, run.digit_bits):
        numbers <<= letters.bits
        numbers |= rank[digit]
    return Occurrences(numbers, located)


def _first_key(run: Run, characters: Numbers, trigram: int) -> int:
    """Return the least key of the trigrams from this one on."""
    number = 0
    for place in reversed(range(CHARACTERS)):
        character = trigram >> place * CHARACTER_BITS & (1 << CHARACTER_BITS) - 1
        digit = int(characters.searchsorted(character))
        number += digit << place * run.digit_bits
        if digit == len(characters) or characters[digit] != character:
            break
    return min(number << run.text_bits + run.place_bits, (1 << KEY_BITS) - 1)


def _merged(parts: list[Occurrences]) -> Occurrences:
    """Return what several runs have, sorted by trigram, and for each trigram in the order of the runs."""
    numbers = np.concatenate([part.numbers for part in parts])
    located = np.concatenate([part.located for part in parts])
    if not len(numbers):
        return Occurrences(numbers, located)
    least = int(numbers.min())
    place_bits = len(numbers).bit_length()
    if (int(numbers.max()) - least).bit_length() + place_bits > KEY_BITS:
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
