"""Reads the files of a vector segment: header, elements with their vectors, norms, and upper layers.

``docs/formats/chroma.md``, "Segment files". Every count and size in a file is compared with the sizes of the files, and
no memory is reserved for what a file merely claims.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from regraft.disk import file_paths, links
from regraft.formats.chroma.database import (
    DEFAULT_LINKS,
    ELEMENTS_FILE,
    HEADER_FILE,
    MAX_DIMENSION,
    MAX_LINKS,
    NORMS_FILE,
    UPPER_FILE,
)
from regraft.language import format_count, tr

#: Version, offset, capacity, elements, bytes of an element, offsets of its label and vector, highest level, entry
#: point, links of an upper level, of the lowest level, M, the level factor, ef_construction.
_HEADER = struct.Struct("<iQQQQQQiIQQQdQ")
_VERSION = 1
#: hnswlib's delete mark in the link count of an element, and the bits of the count.
_DELETED, _COUNT = 1 << 16, 0xFFFF
#: The size of an element in a header, which a header that was cut may still have.
_ELEMENT_BYTES, _ELEMENT_BYTES_AT = struct.Struct("<Q"), 28
#: A capacity is believed up to this multiple of the elements that a file has room for, and up to this number. Chroma
#: writes a file of as many elements, unless it was cut.
_MOST_ROOM, _LEAST_ROOM = 4, 1 << 16
#: The level factor is 1 / ln(M), for M from 2 on.
_MAX_FACTOR = 2
#: Bytes that are read at once: few enough to stay in the processor's cache while they are used.
_BLOCK_BYTES = 1 << 18
_WORD = struct.Struct("<I")


class SegmentProblem(ValueError):
    """The files of a segment cannot be used; the message gives the reason."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a segment's header that are used."""

    count: int
    #: Elements that Chroma makes room for in memory when it opens the segment.
    capacity: int
    element_bytes: int
    #: Links of an element: of the upper levels, and of the lowest level.
    links: int
    lowest_links: int
    highest_level: int

    @property
    def dimension(self) -> int:
        """Number of dimensions that the size of an element leaves for its vector."""
        return (self.element_bytes - 12 - 4 * self.lowest_links) // 4


class ElementBlock(msgspec.Struct, frozen=True, kw_only=True):
    """Elements in consecutive positions of a segment. Nothing is computed before it is asked for."""

    #: Position of the first one.
    start: int
    header: Header
    #: NumPy array of elements, with the fields ``count``, ``links``, ``vector`` and ``label``.
    elements: Any

    @property
    def vectors(self) -> Any:
        """The vectors: one row of little-endian float32 per element."""
        return self.elements["vector"]

    @property
    def labels(self) -> Any:
        """The label of each element."""
        return self.elements["label"]

    @property
    def is_deleted(self) -> Any:
        """Whether each element is marked as deleted."""
        return (self.elements["count"] & _DELETED) != 0

    @property
    def has_valid_links(self) -> Any:
        """Whether the links of each element point to elements that exist."""
        counts = self.elements["count"] & _COUNT
        is_used = np.arange(self.header.lowest_links) < counts[:, None]
        beyond = (is_used & (self.elements["links"] >= self.header.count)).any(axis=1)
        return ~beyond & (counts <= self.header.lowest_links)


class SegmentFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a segment that can be read."""

    folder: Path
    header: Header
    #: Elements whose bytes are in the file, at most the header's count.
    count: int
    #: Elements that the file has room for. Unused space follows the last element, with whatever was in memory there.
    room: int
    #: Norms whose bytes are in the file.
    norms: int
    #: What contradicts the header, as messages.
    problems: tuple[str, ...] = ()
    #: Whether the layout was derived from the collection and the sizes of the files, because no header is usable. It
    #: may be wrong: only the labels can confirm it.
    is_derived: bool = False

    def with_count(self, count: int) -> SegmentFiles:
        """Return the same files with another number of elements than the header has."""
        problem = tr("{name}: it counts {found}, and the label map has more", name=HEADER_FILE, found=self.header.count)
        header = structs.replace(self.header, count=count)
        return structs.replace(self, header=header, count=count, problems=(*self.problems, problem))

    @property
    def _layout(self) -> Any:
        """NumPy type of an element: number of links, links, vector and label."""
        header = self.header
        return np.dtype(
            [
                ("count", "<u4"),
                ("links", "<u4", (header.lowest_links,)),
                ("vector", "<f4", (header.dimension,)),
                ("label", "<u8"),
            ]
        )

    def blocks(self) -> Iterator[ElementBlock]:
        """Yield all elements in blocks, in the order of their positions. A block is valid until the next one.

        Raises:
            OSError: the file cannot be read.
        """
        layout, size = self._layout, self.header.element_bytes
        buffer = bytearray(min(self.most_in_block, self.count) * size)
        with links.open_for_reading(self.folder / ELEMENTS_FILE, buffering=0) as file:
            start = 0
            while start < self.count:
                read = file.readinto(memoryview(buffer)[: (self.count - start) * size])
                found = read // size
                if not found:
                    return
                elements = np.frombuffer(buffer, dtype=layout, count=found)
                yield ElementBlock(start=start, header=self.header, elements=elements)
                start += found
                if found * size < read:
                    file.seek(start * size)

    def find_linked_count(self) -> int:
        """Return the number of elements up to the last one that is counted in the header, or that a link leads to.

        Links tell elements from unused space, which may have elements of another collection.

        Raises:
            OSError: the file cannot be read.
        """
        linked, lowest = self.count, self.header.lowest_links
        for block in structs.replace(self, count=self.room).blocks():
            counts, targets = block.elements["count"] & _COUNT, block.elements["links"]
            is_link = (np.arange(lowest) < counts[:, None]) & (targets < self.room) & (counts <= lowest)[:, None]
            furthest = np.where(is_link, targets.astype("<i8"), -1).max(axis=1)
            for offset, last in enumerate(furthest.tolist()):
                if block.start + offset >= linked:
                    return linked
                linked = max(linked, last + 1)
        return linked

    @property
    def most_in_block(self) -> int:
        """The largest number of elements in a block."""
        return max(1, _BLOCK_BYTES // self.header.element_bytes)

    def read_norms(self) -> Any:
        """Return an array with the norm of each element (float32); 1 where the file has none."""
        norms = np.ones(self.count, dtype="<f4")
        if self.norms:
            with links.open_for_reading(self.folder / NORMS_FILE) as file:
                raw = file.read(4 * min(self.count, self.norms))
            norms[: len(raw) // 4] = np.frombuffer(raw, dtype="<f4", count=len(raw) // 4)
        return norms

    def find_upper_damage(self) -> str | None:
        """Describe damage in the file of the graph's upper layers, or return None.

        Raises:
            OSError: the file cannot be read.
        """
        header, path = self.header, self.folder / UPPER_FILE
        if not file_paths.is_file(path):
            return _describe_no_file(path) if header.count else None
        highest = 0
        with links.open_for_reading(path) as file:
            try:
                for _ in range(header.count):
                    highest = max(highest, _read_upper_levels(file, header))
            except SegmentProblem as problem:
                return str(problem)
            if file.read(1):
                return tr("bytes follow its last element")
        return tr("its highest level differs from the header's") if highest != max(0, header.highest_level) else None


def _read_upper_levels(file: BufferedReader, header: Header) -> int:
    """Read the upper-level links of the next element in the file, and return its number of upper levels.

    Raises:
        SegmentProblem: the links are invalid.
    """
    raw = file.read(_WORD.size)
    if len(raw) < _WORD.size:
        raise SegmentProblem(tr("it ends too early"))
    (size,) = _WORD.unpack(raw)
    if not size:
        return 0
    levels, rest = divmod(size, 4 + 4 * header.links)
    if rest or levels > header.highest_level:
        raise SegmentProblem(tr("an element has links of an impossible size"))
    raw = file.read(size)
    if len(raw) < size:
        raise SegmentProblem(tr("it ends too early"))
    words = np.frombuffer(raw, dtype="<u4").reshape(levels, -1)
    counts = words[:, 0] & _COUNT
    is_used = np.arange(header.links) < counts[:, None]
    if (counts > header.links).any() or (is_used & (words[:, 1:] >= header.count)).any():
        raise SegmentProblem(tr("an element has links to elements that do not exist"))
    return int(levels)


def open_segment(folder: Path, dimension: int | None, links_if_unknown: int = DEFAULT_LINKS) -> SegmentFiles:
    """Read the header of a segment and the sizes of its files.

    Args:
        folder: the segment's folder; a link, or a file that is one, is not followed.
        dimension: that of the collection; None: unknown.
        links_if_unknown: links of an element on the upper levels, used if the header does not tell.

    Raises:
        SegmentProblem: there are no elements that can be read.
        OSError: a file cannot be read.
    """
    for path in (folder, *map(folder.joinpath, (HEADER_FILE, ELEMENTS_FILE, NORMS_FILE, UPPER_FILE))):
        if file_paths.is_link(path):
            raise SegmentProblem(tr("{name} is a link, and is not followed", name=path.name))
    if not file_paths.is_file(folder / ELEMENTS_FILE):
        missing = _describe_no_file(folder / ELEMENTS_FILE)
        raise SegmentProblem(tr("{name}: {problem}", name=ELEMENTS_FILE, problem=missing))
    size = file_paths.stat(folder / ELEMENTS_FILE).st_size
    norms = file_paths.stat(folder / NORMS_FILE).st_size // 4 if file_paths.is_file(folder / NORMS_FILE) else 0
    header, problem = _read_header(folder / HEADER_FILE)
    if header is not None and header.dimension != (dimension or header.dimension):
        problem = tr(
            "its elements have {found} dimensions, and the collection {dimension}",
            found=header.dimension,
            dimension=dimension,
        )
        header = None
    # Chroma writes whole elements. The settings are believed only if they explain the size of the file, and the header
    # does not.
    if (
        header is not None
        and size % header.element_bytes
        and not size % _element_size(links_if_unknown, header.dimension)
    ):
        problem = tr("its sizes contradict the size of {name}", name=ELEMENTS_FILE)
        header = None
    if header is None:
        count_of_links = _read_cut_header(folder / HEADER_FILE, dimension) or links_if_unknown
        return _derive_segment(folder, size, norms, dimension, count_of_links, str(problem))
    room = size // header.element_bytes
    count = min(header.count, room)
    problems = [] if problem is None else [tr("{name}: {problem}", name=HEADER_FILE, problem=problem)]
    if not header.count <= header.capacity <= max(_MOST_ROOM * room, _LEAST_ROOM):
        # Nothing is read by it here. Chroma would take memory for all of it.
        problems.append(tr("{name}: its capacity contradicts the number of its elements", name=HEADER_FILE))
    if count < header.count:
        missing = format_count(header.count - count, "element")
        problems.append(tr("{name} is truncated and lacks {missing} at its end", name=ELEMENTS_FILE, missing=missing))
    return SegmentFiles(folder=folder, header=header, count=count, room=room, norms=norms, problems=tuple(problems))


def _describe_no_file(path: Path) -> str:
    """Describe what is at a path instead of a file: a folder, something else, or nothing."""
    if file_paths.is_folder(path):
        return tr("it is a folder")
    return tr("it is not a file") if os.path.lexists(file_paths.extended_path(path)) else tr("it does not exist")


def _derive_segment(
    folder: Path, size: int, norms: int, dimension: int | None, count_of_links: int, problem: str
) -> SegmentFiles:
    """Describe a segment without a usable header by the dimension of its collection and its number of links.

    Args:
        folder: the segment's folder.
        size: bytes of the file of elements.
        norms: number of stored norms.
        dimension: dimension of the collection, or None.
        count_of_links: links of an element on the upper levels.
        problem: what is wrong with the header.

    Raises:
        SegmentProblem: the dimension is unknown.
    """
    message = tr("{name}: {problem}", name=HEADER_FILE, problem=problem)
    if dimension is None or not 0 < dimension <= MAX_DIMENSION:
        raise SegmentProblem(message)
    element_bytes = _element_size(count_of_links, dimension)
    count = size // element_bytes
    header = Header(
        count=count,
        capacity=count,
        element_bytes=element_bytes,
        links=count_of_links,
        lowest_links=2 * count_of_links,
        highest_level=0,
    )
    return SegmentFiles(
        folder=folder, header=header, count=count, room=count, norms=norms, problems=(message,), is_derived=True
    )


def _element_size(count_of_links: int, dimension: int) -> int:
    """Return the bytes of an element with this number of links (on upper levels) and dimensions."""
    return 12 + 8 * count_of_links + 4 * dimension


def _read_cut_header(path: Path, dimension: int | None) -> int | None:
    """Return the links of an element, computed from a header that is too short and from the dimension, or None."""
    if not file_paths.is_file(path):
        return None
    with links.open_for_reading(path) as file:
        raw = file.read(_HEADER.size)
    if not _ELEMENT_BYTES_AT + _ELEMENT_BYTES.size <= len(raw) < _HEADER.size:
        return None
    (size,) = _ELEMENT_BYTES.unpack_from(raw, _ELEMENT_BYTES_AT)
    count, rest = divmod(size - 12 - 4 * (dimension or 0), 8)
    return count if not rest and 0 < count <= MAX_LINKS else None


def _read_header(path: Path) -> tuple[Header | None, str | None]:
    """Read a header. Return it (None if it is unusable), and what is wrong with it (None if nothing is)."""
    if not file_paths.is_file(path):
        return None, _describe_no_file(path)
    with links.open_for_reading(path) as file:
        raw = file.read(_HEADER.size + 1)
    if len(raw) != _HEADER.size:
        return None, tr("it has {found} instead of {size} bytes", found=len(raw), size=_HEADER.size)
    fields = _HEADER.unpack(raw)
    version, offset, capacity, count, element_bytes, label_at, vector_at, level, entry, upper, lowest, m, factor, _ = (
        fields
    )
    if version != _VERSION:
        return None, tr("its version {version} is unknown", version=version)
    is_sound = (
        0 < upper <= MAX_LINKS
        and lowest == 2 * upper
        and m == upper
        and vector_at == 4 + 4 * lowest
        and label_at == element_bytes - 8
        and 0 < label_at - vector_at <= 4 * MAX_DIMENSION
        and not (label_at - vector_at) % 4
        and -1 <= level < 1 << 10
        and count < 1 << 40
        and (not count or entry < count)
    )
    if not is_sound:
        return None, tr("its sizes contradict each other")
    header = Header(
        count=count,
        capacity=capacity,
        element_bytes=element_bytes,
        links=upper,
        lowest_links=lowest,
        highest_level=level,
    )
    if offset or not (0 < factor < _MAX_FACTOR or m == 1):
        # Nothing is read by them here. Chroma crashes.
        return header, tr("its offset or its level factor is none that Chroma writes")
    return header, None
