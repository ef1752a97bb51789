"""Reads the rows of a damaged SQLite file from its pages, without SQLite (``docs/formats/sqlite-pages.md``).

What is wanted is said as a :class:`Shape` for each table or index; :class:`Reading` gives every row that is left::

    with PageFile(path) as file:
        reading = Reading(file, shapes)
        for row in reading.rows():
            ...

- :class:`PageFile` gives the file's pages, by its header or, where that is gone, by what most pages look like. Pages in
  the log beside it count instead of its own, and those in the journal of an unfinished transaction. Nothing is written.
- :class:`FoundRow` has the number of the row, its values (a :class:`Text` is the bytes of a text in UTF-8, ``bytes``
  a BLOB), its page and its :class:`Origin`. Rows come strongest origin first: in their tree's order, then page by page.
- One row may come several times, as copies of it are left on other pages; a weaker origin is never a better proof.
- ``rows(flawed=True)`` also gives rows with a :class:`Flaw` in their overflow chain. Unless it is ``BROKEN`` all their
  values are there, but may be another row's: only what the values say themselves can prove such a row.
- ``reading.coverage[name]`` tells which numbers of rows the intact part of a tree covers: a row from elsewhere with
  such a number was deleted. ``run`` of rows of an index tells the same of its keys.
- ``reading.counts`` tells how much was read as what, and how many places gave no row, by :class:`Refusal`.

Memory does not grow with rows: some 20 bytes for each page, and the row at hand. Every page is read a bounded number
of times, whatever the file says.
"""

from __future__ import annotations

from regraft.formats.sqlite_pages.pages import PageFile
from regraft.formats.sqlite_pages.reading import Reading, found_rows
from regraft.formats.sqlite_pages.records import Class, Shape, Text, Value
from regraft.formats.sqlite_pages.trees import Counts, Coverage, Flaw, FoundRow, Origin, Refusal

__all__ = [
    "Class",
    "Counts",
    "Coverage",
    "Flaw",
    "FoundRow",
    "Origin",
    "PageFile",
    "Reading",
    "Refusal",
    "Shape",
    "Text",
    "Value",
    "found_rows",
]
