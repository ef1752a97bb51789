"""How IndexedDB codes its keys and names (``docs/formats/chromium.md``, "IndexedDB")."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import msgspec

from regraft.formats.chromium.damage import Bytes, Malformed
from regraft.language import tr

#: The third number of a prefix: what a key stands for in its object store.
META, ROWS, BLOBS = 0, 1, 3
_NULL, _STRING, _DATE, _NUMBER, _ARRAY, _MIN, _BINARY = range(7)
#: Numbers come before dates, and so on; the types are not numbered in that order.
_RANKS = {_NUMBER: 1, _DATE: 2, _STRING: 3, _BINARY: 4, _ARRAY: 5}
_NO_KEY = (6,)
_MAX_KEY_DEPTH = 100


class Prefix(NamedTuple):
    """What every key begins with; 0 where a key belongs to no object store, or to no database."""

    database: int
    store: int
    kind: int


def split_key(key: bytes) -> tuple[Prefix, bytes]:
    """Return a key's prefix and the rest of it.

    Raises:
        Malformed: it is too short.
    """
    data = Bytes(key)
    sizes = data.byte()
    prefix = Prefix(
        _little(data.take((sizes >> 5) + 1)),
        _little(data.take((sizes >> 2 & 7) + 1)),
        _little(data.take((sizes & 3) + 1)),
    )
    return prefix, data.take(data.left)


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")


def database_id(value: bytes) -> int:
    """Return the id that a database's name leads to."""
    return _little(value)


class Places(msgspec.Struct, frozen=True):
    """The keys of some prefixes whose rest begins with ``start``."""

    prefixes: tuple[Prefix, ...]
    start: bytes = b""

    def may_hold(self, low: bytes | None, high: bytes | None) -> bool:
        """See :meth:`Wanted.may_hold`: keys are ordered by the numbers in their prefixes, never by their bytes."""
        lowest, highest = _prefix(low), _prefix(high)
        return any(
            (lowest is None or lowest <= prefix) and (highest is None or prefix <= highest) for prefix in self.prefixes
        )

    def holds(self, key: bytes) -> bool:
        """See :meth:`Wanted.holds`."""
        try:
            prefix, rest = split_key(key)
        except Malformed:
            return False
        return prefix in self.prefixes and rest.startswith(self.start)


def _prefix(key: bytes | None) -> Prefix | None:
    try:
        return None if key is None else split_key(key)[0]
    except Malformed:
        return None


def sized_text(data: Bytes) -> str:
    """Read a text with the number of its UTF-16 units before it.

    Raises:
        Malformed: it is cut off.
    """
    return text(data.take(2 * data.number()))


def text(coded: bytes) -> str:
    """Return a text of big-endian UTF-16; lone surrogates stay.

    Raises:
        Malformed: it has half a unit at its end.
    """
    if len(coded) % 2:
        raise Malformed(tr("a text has half a character at its end"))
    return coded.decode("utf-16-be", "surrogatepass")


def row_order(coded: bytes) -> tuple[Any, ...]:
    """Return what sorts the coded key of a row as IndexedDB does; a key that cannot be read comes last."""
    try:
        return _rank(Bytes(coded), 0)
    except Malformed:
        return (*_NO_KEY, coded)


def _rank(data: Bytes, depth: int) -> tuple[Any, ...]:
    kind = data.byte()
    if kind not in _RANKS or depth > _MAX_KEY_DEPTH:
        raise Malformed(tr("a key of an unknown type"))
    if kind == _ARRAY:
        count = data.number()
        if count > data.left:
            raise Malformed(tr("a key is cut off"))
        return _RANKS[kind], tuple(_rank(data, depth + 1) for _ in range(count))
    if kind == _STRING:
        return _RANKS[kind], data.take(2 * data.number())
    if kind == _BINARY:
        return _RANKS[kind], data.sized()
    return _RANKS[kind], struct.unpack("<d", data.take(8))[0]


class ExternalObject(NamedTuple):
    """A file or blob that a row refers to: its number (None for a handle) and its size in bytes."""

    number: int | None
    size: int


def external_objects(value: bytes) -> list[ExternalObject]:
    """Return what a row's entry of external objects lists.

    Raises:
        Malformed: it is cut off, or of an unknown type.
    """
    data = Bytes(value)
    found = []
    while data.left:
        kind = data.byte()
        if kind in (0, 1):
            number, _, size = data.number(), sized_text(data), data.number()
            if kind == 1:
                sized_text(data)
                data.number()
            found.append(ExternalObject(number, size))
        elif kind == 2:
            data.sized()
            found.append(ExternalObject(None, 0))
        else:
            raise Malformed(tr("an external object of an unknown type"))
    return found
