"""Recovers rows from the pages of a damaged SQLite file, without SQLite (``docs/formats/sqlite-pages.md``).

A :class:`RowShape` describes each wanted table or index; :class:`Reading` yields all rows that are left::

    with PageFile(path) as file:
        reading = Reading(file, shapes)
        for row in reading.rows():
            ...

- :class:`PageFile` gives access to pages. The page size comes from the header or, if that is damaged, from the pages.
  Pages in the write-ahead log or in the journal of an unfinished transaction replace those of the file. Files are
  never written.
- :class:`FoundRow` has the rowid, the values (:class:`TextBytes` for a text in UTF-8, ``bytes`` for a BLOB), the page
  and the :class:`Origin`. Rows with the strongest origin come first: in tree order, then page by page.
- A row may be found several times, as copies on other pages. A weaker origin is never better evidence.
- ``rows(flawed=True)`` also yields rows with an :class:`OverflowFlaw`. Unless it is ``BROKEN`` all values are present,
  but may be another row's: only the values themselves can show whether they belong together.
- ``reading.coverage[name]`` tells which rowids the intact part of a tree covers: a row from elsewhere with such a rowid
  was deleted. For indexes, ``FoundRow.run`` tells the same about keys.
- ``reading.counts`` tells how the pages were used, and how many candidates were refused, by :class:`Refusal`.

Memory use does not grow with rows: about 20 bytes per page, and the current row. Each page is read a bounded number of
times, whatever the file contains.
"""

from __future__ import annotations

from regraft.formats.sqlite_pages.pages import PageFile
from regraft.formats.sqlite_pages.reading import Reading, recover_rows
from regraft.formats.sqlite_pages.records import RowShape, StorageClass, TextBytes, Value
from regraft.formats.sqlite_pages.trees import Coverage, FoundRow, Origin, OverflowFlaw, ReadingCounts, Refusal

__all__ = [
    "Coverage",
    "FoundRow",
    "Origin",
    "OverflowFlaw",
    "PageFile",
    "Reading",
    "ReadingCounts",
    "Refusal",
    "RowShape",
    "StorageClass",
    "TextBytes",
    "Value",
    "recover_rows",
]
