"""Rows found by what they look like, on pages whose header is gone (``docs/formats/sqlite-pages.md``, "By shape")."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import islice

from regraft.formats.sqlite_pages.pages import start_of_row
from regraft.formats.sqlite_pages.records import Malformed, Shape, fields_of

#: Where the pointers of a leaf begin.
_POINTERS = 8
#: So many headers at least are tried on a page, and on a larger one a try for so many bytes.
_LEAST_TRIES, _BYTES_A_TRY = 256, 16


def rows_on(data: bytes, shapes: Sequence[Shape]) -> list[tuple[int, Shape, bool]]:
    """Return where rows of some tables begin on a page, each with its table and whether it counts.

    The size before a record, the row's number and the header that adds up to that size prove a row. Where what is left
    of the page's pointers leads to some of them, the others do not count: they are what was deleted or moved.
    """
    found: list[tuple[int, Shape]] = []
    for shape in shapes:
        found.extend((start, shape) for start in _starts(data, shape))
    found.sort(key=lambda one: one[0])
    if not found:
        return []
    first = found[0][0]
    pointers = set(struct.unpack_from(f">{max(0, first - _POINTERS) // 2}H", data, _POINTERS))
    has_pointers = any(start in pointers for start, _ in found)
    return [(start, shape, not has_pointers or start in pointers) for start, shape in found]


def _starts(data: bytes, shape: Shape) -> Iterator[int]:
    # Where nearly every byte seems to begin a header, nothing was a row.
    for match in islice(shape.pattern.finditer(data), max(_LEAST_TRIES, len(data) // _BYTES_A_TRY)):
        at = match.start()
        try:
            fields, payload = fields_of(data[at : at + data[at]])
        except Malformed:
            continue
        if payload > shape.most_bytes or not shape.fits(fields):
            continue
        start = start_of_row(data, at, payload)
        if start is not None:
            yield start
