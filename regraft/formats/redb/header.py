"""The header of a redb file: its layout and its two commit slots (``docs/formats/redb.md``, "Header")."""

from __future__ import annotations

import struct

import msgspec
import xxhash

MAGIC = b"redb\x1a\x0a\xa9\x0d\x0a"
HEADER_BYTES = 320
SLOT_BYTES = 128
SLOTS_AT = (64, 192)
CHECKSUM_BYTES = 16
#: The versions of the file format that are read.
OLDEST_VERSION, NEWEST_VERSION = 2, 3

_GOD_BYTE = 9
_PRIMARY, _RECOVERY, _TWO_PHASE = 1, 2, 4
_LAYOUT = struct.Struct("<5I")
_LAYOUT_AT = 12
_ROOT = struct.Struct("<Q16sQ")
ROOT_BYTES = _ROOT.size
#: Where a slot has its flags and roots: of the tables, of redb's own tables, and of the pages freed (version 2).
_ROOTS = ((1, 8), (2, 40), (3, 72))
_TRANSACTION_AT = 104
_CHECKED_BYTES = SLOT_BYTES - CHECKSUM_BYTES
_SMALLEST_PAGE = 512
_MOST_PAGES = 1 << 20


def checksum(data: bytes | memoryview) -> bytes:
    """Return the checksum of bytes as redb stores it: XXH3 of 128 bits, lowest byte first."""
    return xxhash.xxh3_128_digest(data)[::-1]


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """Where a tree begins."""

    page: int
    checksum: bytes
    #: How many entries the tree has.
    length: int

    @classmethod
    def read(cls, data: bytes, at: int) -> Root:
        """Read a root at a place of bytes that are long enough."""
        page, stored, length = _ROOT.unpack_from(data, at)
        return cls(page=page, checksum=stored, length=length)


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """A commit slot: one state of the database."""

    #: Which of the two it is.
    index: int
    version: int
    tables: Root | None
    system: Root | None
    #: Version 2 alone has a tree of its own for the pages that were freed.
    freed: Root | None
    transaction_id: int
    #: Whether its checksum is that of its bytes.
    is_whole: bool

    @property
    def offset(self) -> int:
        """Where in the file it is."""
        return SLOTS_AT[self.index]


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How a file is divided into pages and regions."""

    page_size: int
    region_header_pages: int
    region_pages: int
    full_regions: int
    trailing_pages: int

    @property
    def is_possible(self) -> bool:
        """Tell whether redb makes files with such pages and regions."""
        size = self.page_size
        return size >= _SMALLEST_PAGE and not size & (size - 1) and 0 < self.region_pages <= _MOST_PAGES

    @property
    def region_bytes(self) -> int:
        """How many bytes a whole region has, with its header."""
        return (self.region_header_pages + self.region_pages) * self.page_size

    @property
    def file_bytes(self) -> int:
        """How long the file should be."""
        trailing = self.region_header_pages + self.trailing_pages if self.trailing_pages else 0
        return self.page_size + self.full_regions * self.region_bytes + trailing * self.page_size


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The header of a file."""

    layout: Layout
    #: The slot that the file says to read.
    primary: Slot
    secondary: Slot
    #: Whether the file was left open.
    needs_recovery: bool
    #: Whether the primary slot was safe on the disk before the file named it.
    is_two_phase: bool


def read_header(data: bytes) -> Header:
    """Read the first 320 bytes of a redb file."""
    flags = data[_GOD_BYTE]
    page_size, region_header_pages, region_pages, full_regions, trailing_pages = _LAYOUT.unpack_from(data, _LAYOUT_AT)
    primary = flags & _PRIMARY
    return Header(
        layout=Layout(
            page_size=page_size,
            region_header_pages=region_header_pages,
            region_pages=region_pages,
            full_regions=full_regions,
            trailing_pages=trailing_pages,
        ),
        primary=_slot(data, primary),
        secondary=_slot(data, 1 - primary),
        needs_recovery=bool(flags & _RECOVERY),
        is_two_phase=bool(flags & _TWO_PHASE),
    )


def _slot(header: bytes, index: int) -> Slot:
    data = header[SLOTS_AT[index] : SLOTS_AT[index] + SLOT_BYTES]
    tables, system, freed = (Root.read(data, at) if data[flag] else None for flag, at in _ROOTS)
    (transaction_id,) = struct.unpack_from("<Q", data, _TRANSACTION_AT)
    return Slot(
        index=index,
        version=data[0],
        tables=tables,
        system=system,
        freed=freed if data[0] == OLDEST_VERSION else None,
        transaction_id=transaction_id,
        is_whole=checksum(data[:_CHECKED_BYTES]) == data[_CHECKED_BYTES:],
    )
