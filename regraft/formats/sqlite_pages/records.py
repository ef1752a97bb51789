"""Records, as SQLite keeps rows and the keys of indexes (``docs/formats/sqlite-pages.md``, "Records")."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from functools import cached_property
from typing import NamedTuple, TypeAlias

_MOST_VARINT = 9
#: Bytes of a serial type of a text or BLOB of up to 16 GB.
_MOST_SERIAL = 5
_INTEGER_BYTES = (0, 1, 2, 3, 4, 6, 8)
_REAL, _ZERO, _ONE = 7, 8, 9
_FIRST_BLOB, _FIRST_TEXT = 12, 13
_DOUBLE = struct.Struct(">d")
#: Larger rows are refused unless a shape says otherwise, in bytes.
_USUAL_MOST_BYTES = 64 << 20


class Text(bytes):
    """The bytes of a text as UTF-8; plain ``bytes`` are a BLOB. They may be no valid UTF-8: the file says only text."""


Value: TypeAlias = int | float | Text | bytes | None


class Class(Flag):
    """A storage class of SQLite."""

    NULL = auto()
    INTEGER = auto()
    REAL = auto()
    TEXT = auto()
    BLOB = auto()


class Malformed(Exception):
    """Bytes are not what SQLite writes."""


class Field(NamedTuple):
    """A column of a record: its serial type, and where its bytes lie in the record."""

    serial: int
    start: int
    length: int


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the rows of one table, or the keys of one index, look like.

    Attributes:
        name: the table's or index's name in the schema of the file.
        columns: for each column the storage classes that it can have. Of an index these are its keys, without the
            number of the row at their end.
        accepts: tells from the values whether a row is one of this table; asked where no tree says whose a page is.
        alias: the column that is the number of the row (INTEGER PRIMARY KEY), and is stored as NULL.
        is_index: whether it is an index on a table that has row numbers.
        root: the page where its tree usually begins, tried where the schema cannot be read.
        may_lack: how many of the last columns can be missing, as those are that ALTER TABLE added.
        most_bytes: larger rows are refused.
    """

    name: str
    columns: tuple[Class, ...]
    accepts: Callable[[Sequence[Value]], bool]
    alias: int | None = None
    is_index: bool = False
    root: int | None = None
    may_lack: int = 0
    most_bytes: int = field(default=_USUAL_MOST_BYTES)

    @cached_property
    def stored(self) -> tuple[Class, ...]:
        """Return the classes of what a record holds."""
        if self.is_index:
            return (*self.columns, Class.INTEGER)
        return tuple(Class.NULL if at == self.alias else classes for at, classes in enumerate(self.columns))

    def fits(self, fields: Sequence[Field]) -> bool:
        """Tell whether a record has the columns of this shape."""
        missing = len(self.stored) - len(fields)
        if not 0 <= missing <= self.may_lack:
            return False
        return all(_bit_of(one.serial) & bits for one, bits in zip(fields, self._bits, strict=False))

    @cached_property
    def _bits(self) -> tuple[int, ...]:
        # Flags take longer than all the rest.
        return tuple(classes.value for classes in self.stored)

    @cached_property
    def pattern(self) -> re.Pattern[bytes]:
        """Return what finds headers of such records, at every place where one may begin."""
        parts = [_serials(classes) for classes in self.stored]
        lacking = b"".join(b"(?:" + part for part in parts[len(parts) - self.may_lack :])
        whole = b"".join(parts[: len(parts) - self.may_lack]) + lacking + b")?" * self.may_lack
        least, most = 1 + len(parts) - self.may_lack, min(127, 1 + _MOST_SERIAL * len(parts))
        return re.compile(b"(?=[\\x%02x-\\x%02x]%s)" % (least, most, whole), re.DOTALL)


#: Serial types of more than one byte end with a byte below 0x80, whose lowest bit tells text from BLOB.
_LONG = rb"[\x81-\xff][\x80-\xff]{0,3}"
_ODD, _EVEN = (b"[" + b"".join(b"\\x%02x" % byte for byte in range(first, 0x80, 2)) + b"]" for first in (1, 0))
_ONE_BYTE = {
    Class.NULL: b"\\x00",
    Class.INTEGER: b"[\\x01-\\x06\\x08\\x09]",
    Class.REAL: b"\\x07",
    Class.TEXT: b"(?![\\x01-\\x0b])" + _ODD,
    Class.BLOB: b"(?![\\x00-\\x0b])" + _EVEN,
}


def _serials(classes: Class) -> bytes:
    choices = [pattern for one, pattern in _ONE_BYTE.items() if one & classes]
    choices += [_LONG + last for one, last in ((Class.TEXT, _ODD), (Class.BLOB, _EVEN)) if one & classes]
    return b"(?:" + b"|".join(choices) + b")"


_NULL_BIT, _INTEGER_BIT, _REAL_BIT, _TEXT_BIT, _BLOB_BIT = (one.value for one in Class)


def _bit_of(serial: int) -> int:
    """Return the storage class of a serial type, as its bit."""
    if serial >= _FIRST_BLOB:
        return _TEXT_BIT if serial & 1 else _BLOB_BIT
    if serial == 0:
        return _NULL_BIT
    return _REAL_BIT if serial == _REAL else _INTEGER_BIT


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, without a sign, and where it ends.

    Raises:
        Malformed: the bytes end before it does, or it is written longer than SQLite writes it.
    """
    try:
        byte = data[at]
        if byte < 0x80:
            return byte, at + 1
        if byte == 0x80:
            raise Malformed
        value = byte & 0x7F
        for after in range(at + 1, at + _MOST_VARINT - 1):
            byte = data[after]
            value = value << 7 | byte & 0x7F
            if byte < 0x80:
                return value, after + 1
        return _longest(value << 8 | data[at + _MOST_VARINT - 1]), at + _MOST_VARINT
    except IndexError:
        raise Malformed from None


def _longest(value: int) -> int:
    if value < 1 << 56:
        raise Malformed
    return value


def put_varint(value: int) -> bytes:
    """Return a number below 2^56 as SQLite writes it."""
    out = [value & 0x7F]
    while value := value >> 7:
        out.append(value & 0x7F | 0x80)
    return bytes(reversed(out))


def signed(value: int) -> int:
    """Return the 64 bits of a number with their sign."""
    return value - (1 << 64) if value >= 1 << 63 else value


def fields_of(record: bytes) -> tuple[list[Field], int]:
    """Return the columns of a record, of which ``record`` has at least the header, and how long all of it is.

    Raises:
        Malformed: the header is none.
    """
    header, at = varint(record, 0)
    if not at < header <= len(record):
        raise Malformed
    found, start = [], header
    while at < header:
        serial, at = varint(record, at)
        length = (serial - _FIRST_BLOB) >> 1 if serial >= _FIRST_BLOB else _short_bytes(serial)
        found.append(Field(serial, start, length))
        start += length
    if at != header:
        raise Malformed
    return found, start


def _short_bytes(serial: int) -> int:
    if serial < len(_INTEGER_BYTES):
        return _INTEGER_BYTES[serial]
    if serial in (10, 11):
        raise Malformed
    return 8 if serial == _REAL else 0


def value_of(one: Field, record: bytes, encoding: str) -> Value:
    """Return the value of a column; ``record`` has all of its bytes. A text is recoded from ``encoding`` to UTF-8."""
    serial = one.serial
    raw = record[one.start : one.start + one.length]
    if serial >= _FIRST_BLOB:
        if not serial & 1:
            return raw
        return Text(raw if encoding == "utf-8" else recoded(raw, encoding))
    if serial in (_ZERO, _ONE):
        return serial - _ZERO
    if serial == 0:
        return None
    if serial == _REAL:
        number: float = _DOUBLE.unpack(raw)[0]
        return number
    return int.from_bytes(raw, "big", signed=True)


def recoded(raw: bytes, encoding: str) -> bytes:
    """Return a text's bytes as UTF-8; half a character stays one, as three bytes that UTF-8 does not have."""
    return raw.decode(encoding, "surrogatepass" if len(raw) % 2 == 0 else "replace").encode("utf-8", "surrogatepass")
