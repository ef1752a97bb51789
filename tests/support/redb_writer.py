"""Writes small redb files of format 2 or 3, from the facts of the format: pages, trees, slots, regions.

``write_redb`` makes a whole file. ``Redb`` makes one piece by piece, for files that no redb would write.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

MAGIC = b"redb\x1a\x0a\xa9\x0d\x0a"
GOD_BYTE, SLOTS = 9, (64, 192)
PRIMARY, RECOVERY, TWO_PHASE = 1, 2, 4
INTERNAL, USER_DEFINED, INTERNAL2, INTERNAL3 = 1, 2, 3, 4
WIDTHS = {
    **{f"{sign}{8 * width}": width for sign in "ui" for width in (1, 2, 4, 8, 16)},
    "()": 0,
    "bool": 1,
    "char": 3,
    "f32": 4,
    "f64": 8,
}
#: A page number with its order, and the checksum of the page.
Node = tuple[int, bytes]


def digest(data: bytes) -> bytes:
    return xxhash.xxh3_128_intdigest(data).to_bytes(16, "little")


def number_of(region: int, index: int, order: int) -> int:
    return order << 59 | region << 20 | index


def ranked(type_name: str) -> Callable[[bytes], object]:
    """Return what redb orders keys of a type by: the number, or the bytes."""
    if type_name[0] in "ui" and type_name in WIDTHS:
        return lambda key: int.from_bytes(key, "little", signed=type_name[0] == "i")
    return lambda key: key


@dataclass(frozen=True)
class RedbTable:
    """A table: its rows as they are stored. The value of a multimap's key is a list of values."""

    key_type: str
    value_type: str
    rows: Mapping[bytes, bytes | list[bytes]]
    multimap: bool = False
    #: Where a type is not one of ``WIDTHS``.
    key_width: int | None = None
    value_width: int | None = None
    key_kind: int = INTERNAL
    value_kind: int = INTERNAL
    #: What keys are ordered by, where the type does not say it.
    order: Callable[[bytes], object] | None = None

    def widths(self) -> tuple[int | None, int | None]:
        return (
            WIDTHS.get(self.key_type, self.key_width),
            WIDTHS.get(self.value_type, self.value_width),
        )


@dataclass
class Redb:
    """A file in the making."""

    version: int = 3
    page_size: int = 4096
    #: How many pages a region has, and how many stand before them.
    region_pages: int = 1 << 20
    region_header_pages: int = 0
    #: Values of a multimap beyond so many bytes go into a tree of their own.
    inline_bytes: int = 256
    #: Entries of a leaf, and children of a branch, at most.
    most: int = 1 << 16
    #: The bytes of each page, by its number.
    pages: dict[int, bytes] = field(default_factory=dict)
    _region: int = 0
    _next: int = 0

    # --- pages --------------------------------------------------------------------------------------------------

    def place(self, data: bytes) -> int:
        """Put bytes into a page that is large enough, and return its number."""
        order = max(0, (-(-len(data) // self.page_size) - 1).bit_length())
        count = 1 << order
        at = -(-self._next // count) * count
        if at + count > self.region_pages:
            self._region, at = self._region + 1, 0
        assert count <= self.region_pages, "no region has such a page"
        self._next = at + count
        number = number_of(self._region, at >> order, order)
        self.pages[number] = data
        return number

    def offset(self, number: int) -> int:
        """Return where a page begins in the file."""
        order, region, index = number >> 59, number >> 20 & 0xFFFFF, number & 0xFFFFF
        region_bytes = (self.region_header_pages + self.region_pages) * self.page_size
        within = self.region_header_pages * self.page_size + index * (self.page_size << order)
        return self.page_size + region * region_bytes + within

    def leaf(self, rows: Sequence[tuple[bytes, bytes]], widths: tuple[int | None, int | None]) -> Node:
        data = leaf_bytes(rows, widths)
        return self.place(data), digest(data)

    def branch(self, children: Sequence[Node], keys: Sequence[bytes], key_width: int | None) -> Node:
        data = branch_bytes(children, keys, key_width)
        return self.place(data), digest(data)

    # --- trees --------------------------------------------------------------------------------------------------

    def tree(self, rows: Iterable[tuple[bytes, bytes]], widths: tuple[int | None, int | None]) -> bytes | None:
        """Write a tree, and return what is stored of its root."""
        level: list[tuple[Node, bytes]] = []
        pending: list[tuple[bytes, bytes]] = []
        count = size = 0
        per_row = 4 * widths.count(None)
        for key, value in rows:
            count += 1
            added = len(key) + len(value) + per_row
            if pending and (4 + size + added > self.page_size or len(pending) == self.most):
                level.append((self.leaf(pending, widths), pending[-1][0]))
                pending, size = [], 0
            pending.append((key, value))
            size += added
        if not count:
            return None
        level.append((self.leaf(pending, widths), pending[-1][0]))
        while len(level) > 1:
            level = self._branches(level, widths[0])
        return root(level[0][0], count)

    def _branches(self, level: list[tuple[Node, bytes]], key_width: int | None) -> list[tuple[Node, bytes]]:
        above = []
        at = 0
        while at < len(level):
            end, size = at + 1, 32
            while end < len(level) and end - at < self.most:
                size += 24 + len(level[end - 1][1]) + (4 if key_width is None else 0)
                if size > self.page_size and end - at >= 2:
                    break
                end += 1
            if len(level) - end == 1:  # a branch has two children at least
                end += -1 if end - at > 2 else 1
            group = level[at:end]
            node = self.branch([one for one, _ in group], [key for _, key in group[:-1]], key_width)
            above.append((node, group[-1][1]))
            at = end
        return above

    def table(self, table: RedbTable) -> bytes:
        """Write a table, and return its definition."""
        order = table.order or ranked(table.key_type)
        rows = sorted(table.rows.items(), key=lambda row: order(row[0]))
        key_width, value_width = table.widths()
        if not table.multimap:
            return definition(table, self.tree(rows, (key_width, value_width)), len(rows))  # type: ignore[arg-type]
        collections = [(key, self.collection(table, values)) for key, values in rows]  # type: ignore[arg-type]
        return definition(table, self.tree(collections, (key_width, None)), sum(len(values) for _, values in rows))

    def collection(self, table: RedbTable, values: list[bytes]) -> bytes:
        """Return the values of one key of a multimap, or where they are."""
        widths = (table.widths()[1], 0)
        rows = [(value, b"") for value in sorted(values, key=ranked(table.value_type))]
        inline = leaf_bytes(rows, widths)
        if len(inline) <= self.inline_bytes:
            return b"\x01" + inline
        return b"\x03" + (self.tree(rows, widths) or b"")

    def tables(self, tables: Mapping[str, RedbTable]) -> bytes | None:
        """Write tables and their list, and return what is stored of its root."""
        rows = sorted((name.encode(), self.table(table)) for name, table in tables.items())
        return self.tree(rows, (None, None))

    # --- the file -----------------------------------------------------------------------------------------------

    def slot(
        self,
        transaction_id: int,
        tables: bytes | None,
        system: bytes | None = None,
        freed: bytes | None = None,
    ) -> bytes:
        roots = (tables, system, freed)
        flags = bytes(one is not None for one in roots)
        body = bytes([self.version]) + flags + bytes(4) + b"".join(one or bytes(32) for one in roots)
        return sealed(body + struct.pack("<Q", transaction_id))

    def finish(self, path: Path, slots: Sequence[bytes], flags: int = 0, length: int | None = None) -> Path:
        """Write the file."""
        region = (self.region_header_pages + self.region_pages) * self.page_size
        trailing = (self.region_header_pages + self._next) * self.page_size if self._next else 0
        data = bytearray(self.page_size + self._region * region + trailing)
        data[: len(MAGIC)] = MAGIC
        data[GOD_BYTE] = flags
        layout = (self.page_size, self.region_header_pages, self.region_pages, self._region, self._next)
        struct.pack_into("<5I", data, 12, *layout)
        for at, slot in zip(SLOTS, slots, strict=True):
            data[at : at + len(slot)] = slot
        for number, page in self.pages.items():
            at = self.offset(number)
            data[at : at + len(page)] = page
        path.write_bytes(data if length is None else data[:length].ljust(length, b"\0"))
        return path


def root(node: Node, length: int) -> bytes:
    """Return what is stored of a tree's root."""
    return struct.pack("<Q16sQ", *node, length)


def sealed(body: bytes) -> bytes:
    """Return a slot with its checksum."""
    body = body.ljust(112, b"\0")[:112]
    return body + digest(body)


def leaf_bytes(rows: Sequence[tuple[bytes, bytes]], widths: tuple[int | None, int | None]) -> bytes:
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    for pieces, width in ((keys, widths[0]), (values, widths[1])):
        assert width is None or all(len(piece) == width for piece in pieces), "a row has another width"
    at = 4 + 4 * len(rows) * widths.count(None)
    ends = b""
    for pieces, width in ((keys, widths[0]), (values, widths[1])):
        stored = []
        for piece in pieces:
            at += len(piece)
            stored.append(at)
        if width is None:
            ends += struct.pack(f"<{len(stored)}I", *stored)
    return struct.pack("<BxH", 1, len(rows)) + ends + b"".join(keys) + b"".join(values)


def branch_bytes(children: Sequence[Node], keys: Sequence[bytes], key_width: int | None) -> bytes:
    assert len(children) == len(keys) + 1
    data = struct.pack("<BxH4x", 2, len(keys)) + b"".join(checksum for _, checksum in children)
    data += struct.pack(f"<{len(children)}Q", *(number for number, _ in children))
    if key_width is None:
        at = len(data) + 4 * len(keys)
        for key in keys:
            at += len(key)
            data += struct.pack("<I", at)
    return data + b"".join(keys)


def definition(table: RedbTable, tree: bytes | None, length: int) -> bytes:
    """Return what the list of tables has for a table."""

    def width(one: int | None) -> bytes:
        return struct.pack("<BI", one is not None, one or 0)

    key_width, value_width = table.widths()
    key_name = bytes([table.key_kind]) + table.key_type.encode()
    value_name = bytes([table.value_kind]) + table.value_type.encode()
    return b"".join(
        [
            struct.pack("<BQB", 4 if table.multimap else 3, length, tree is not None),
            tree or bytes(32),
            width(key_width),
            width(value_width),
            struct.pack("<3I", 1, 1, len(key_name)),
            key_name + value_name,
        ]
    )


SYSTEM = {"next_savepoint_id": RedbTable("()", "redb::SavepointId", {b"": bytes(8)}, value_width=8)}
FREED = ((struct.pack("<QQ", 5, 0), b"\x01\x00" + bytes(8)),)


def write_redb(
    path: Path,
    tables: Mapping[str, RedbTable],
    *,
    version: int = 3,
    page_size: int = 4096,
    clean: bool = True,
    two_phase: bool = True,
    older: Mapping[str, RedbTable] | None = None,
    primary: int = 0,
    transaction_id: int = 7,
    region_pages: int = 1 << 20,
    region_header_pages: int = 0,
    inline_bytes: int = 256,
    most: int = 1 << 16,
    has_system: bool = True,
) -> Path:
    """Write a file with these tables, and in its other slot the commit before.

    Args:
        path: the file.
        tables: by their names.
        version: of the format.
        page_size: a power of two from 512.
        clean: whether the file was closed.
        two_phase: whether the flag for that is set.
        older: the tables of the other slot; an empty database unless given.
        primary: which slot has the tables.
        transaction_id: of the tables; the other slot has the one before.
        region_pages: a power of two.
        region_header_pages: pages before those of each region.
        inline_bytes: see ``Redb``.
        most: see ``Redb``.
        has_system: whether redb's own tables, and in version 2 the tree of freed pages, are there.
    """
    file = Redb(
        version=version,
        page_size=page_size,
        region_pages=region_pages,
        region_header_pages=region_header_pages,
        inline_bytes=inline_bytes,
        most=most,
    )
    other = file.slot(transaction_id - 1, file.tables(older or {}))
    system = file.tables(SYSTEM) if has_system else None
    freed = file.tree(FREED, (16, None)) if has_system and version == 2 else None
    slots = [file.slot(transaction_id, file.tables(tables), system, freed), other]
    flags = primary | (0 if clean else RECOVERY) | (TWO_PHASE if two_phase else 0)
    return file.finish(path, slots if primary == 0 else slots[::-1], flags)
