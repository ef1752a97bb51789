"""The two kinds of pages that a tree has: leaves and branches (``docs/formats/redb.md``, "Trees")."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import msgspec

from regraft.formats.redb.damage import Malformed
from regraft.formats.redb.header import CHECKSUM_BYTES
from regraft.language import tr

LEAF, BRANCH = 1, 2
_LEAF_HEADER, _BRANCH_HEADER = 4, 8
_NUMBER_BYTES = 8


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """How many bytes each key and each value of a tree has; None where they differ."""

    key_width: int | None
    value_width: int | None


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of a leaf: where each key and each value ends."""

    page: bytes
    keys_at: int
    key_ends: Sequence[int]
    value_ends: Sequence[int]

    @property
    def end(self) -> int:
        """Where its last value ends; its checksum is that of the bytes before."""
        return self.value_ends[-1]

    def keys(self) -> list[bytes]:
        """Return the keys in order."""
        return list(_pieces(self.page, self.keys_at, self.key_ends))

    def values(self) -> Iterator[bytes]:
        """Return the values in the order of their keys."""
        return _pieces(self.page, self.key_ends[-1], self.value_ends)


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A branch: its children, and the keys between them."""

    page: bytes
    count: int
    #: Where the keys begin, and where each ends; none where those places cannot be.
    keys_at: int
    key_ends: Sequence[int]

    @property
    def end(self) -> int | None:
        """Where its last key ends; its checksum is that of the bytes before."""
        return self.key_ends[-1] if self.key_ends else None

    def children(self) -> list[tuple[int, bytes]]:
        """Return the page number and the checksum of each child."""
        children = self.count + 1
        numbers = struct.unpack_from(f"<{children}Q", self.page, _BRANCH_HEADER + children * CHECKSUM_BYTES)
        places = range(_BRANCH_HEADER, _BRANCH_HEADER + children * CHECKSUM_BYTES, CHECKSUM_BYTES)
        return [(number, self.page[at : at + CHECKSUM_BYTES]) for number, at in zip(numbers, places, strict=True)]

    def separators(self) -> list[bytes]:
        """Return the keys: each is that of the last entry below the child before it, or lies behind that."""
        return list(_pieces(self.page, self.keys_at, self.key_ends))


def read_leaf(page: bytes, shape: Shape) -> Leaf:
    """Read a leaf.

    Raises:
        Malformed: its entries do not fit into it.
    """
    count = _count(page, LEAF, _LEAF_HEADER)
    keys_at = _LEAF_HEADER + 4 * count * ((shape.key_width is None) + (shape.value_width is None))
    key_ends = _ends(page, _LEAF_HEADER, count, (keys_at, shape.key_width))
    values_from = _LEAF_HEADER + (4 * count if shape.key_width is None else 0)
    value_ends = _ends(page, values_from, count, (key_ends[-1], shape.value_width))
    return Leaf(page=page, keys_at=keys_at, key_ends=key_ends, value_ends=value_ends)


def read_branch(page: bytes, key_width: int | None) -> Branch:
    """Read a branch.

    Raises:
        Malformed: its children do not fit into it.
    """
    count = _count(page, BRANCH, _BRANCH_HEADER)
    ends_at = _BRANCH_HEADER + (count + 1) * (CHECKSUM_BYTES + _NUMBER_BYTES)
    keys_at = ends_at + (4 * count if key_width is None else 0)
    if keys_at > len(page):
        raise Malformed(tr("it has more children than fit into it"))
    try:
        key_ends = _ends(page, ends_at, count, (keys_at, key_width))
    except Malformed:
        key_ends = ()
    return Branch(page=page, count=count, keys_at=keys_at, key_ends=key_ends)


def _count(page: bytes, kind: int, header: int) -> int:
    if len(page) < header or page[0] != kind:
        raise Malformed(tr("it is of another kind than it should be"))
    count = page[2] | page[3] << 8
    if not count:
        raise Malformed(tr("it has no entry"))
    return count


def _ends(page: bytes, at: int, count: int, begin_and_width: tuple[int, int | None]) -> Sequence[int]:
    """Return where each of the pieces of a page ends, which begin at a place and have a width or stored ends.

    Raises:
        Malformed: one ends before it begins, or after the page.
    """
    begin, width = begin_and_width
    ends: Sequence[int]
    if width is not None:
        ends = range(begin + width, begin + width * count + 1, width) if width else (begin,) * count
    elif at + 4 * count <= len(page):
        ends = struct.unpack_from(f"<{count}I", page, at)
        last = begin
        for end in ends:
            if end < last:
                raise Malformed(tr("an entry ends before it begins"))
            last = end
    else:
        raise Malformed(tr("it has more entries than fit into it"))
    if ends[-1] > len(page):
        raise Malformed(tr("an entry reaches past its page"))
    return ends


def _pieces(page: bytes, begin: int, ends: Sequence[int]) -> Iterator[bytes]:
    for end in ends:
        yield page[begin:end]
        begin = end
