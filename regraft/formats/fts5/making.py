"""Sorts the trigrams of texts into runs, and makes pages of a range of all runs (``docs/formats/fts5.md``)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from regraft.formats.fts5.jobs import RangeJob, Run, SortJob, read_runs, write_pages
from regraft.formats.fts5.records import SpliceRefused
from regraft.formats.fts5.runs import ROWS_END, Doclists, read_run, write_run
from regraft.formats.fts5.segment import pages_of
from regraft.formats.fts5.texts import read_texts
from regraft.formats.fts5.trigrams import Folding, trigrams_of
from regraft.ledger import durable


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
