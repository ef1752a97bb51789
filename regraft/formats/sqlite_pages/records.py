"""Decodes SQLite records: rows, and keys of indexes (``docs/formats/sqlite-pages.md``, "Records")."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from functools import cached_property
from typing import NamedTuple, TypeAlias

_MOST_VARINT = 9
#: Maximum bytes of the serial type of a text or BLOB of up to 16 GB.
_MOST_SERIAL = 5
#: Length in bytes of a value by serial type, below those of texts and BLOBs. SQLite reserves 10 and 11.
_FIXED_LENGTHS = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
_REAL, _ZERO, _ONE = 7, 8, 9
_FIRST_BLOB, _FIRST_TEXT = 12, 13
_DOUBLE = struct.Struct(">d")
#: Default limit of a row's size in bytes.
_USUAL_MOST_BYTES = 64 << 20


class TextBytes(bytes):
    """The bytes of a text in UTF-8; plain ``bytes`` are a BLOB. The file may contain invalid UTF-8."""


Value: TypeAlias = int | float | TextBytes | bytes | None


class StorageClass(Flag):
    """A storage class of SQLite."""

    NULL = auto()
    INTEGER = auto()
    REAL = auto()
    TEXT = auto()
    BLOB = auto()


#: Flag of the storage class by serial type: NULL, integers of several sizes, REAL, and the shortest BLOB and text.
_CLASS_BITS = tuple(
    {
        0: StorageClass.NULL,
        _REAL: StorageClass.REAL,
        _FIRST_BLOB: StorageClass.BLOB,
        _FIRST_TEXT: StorageClass.TEXT,
    }.get(serial, StorageClass.INTEGER).value
    for serial in range(_FIRST_TEXT + 1)
)


class MalformedRecord(Exception):
    """The bytes are not valid SQLite data."""


class RecordField(NamedTuple):
    """A column of a record: serial type, and offset and length of its bytes."""

    serial: int
    start: int
    length: int


@dataclass(frozen=True, kw_only=True)
class RowShape:
    """The columns of a table, or of the keys of an index.

    Attributes:
        name: name of the table or index in the schema.
        columns: for each column the storage classes that it can have. Of an index these are its keys, without the
            number of the row at their end.
        accepts: whether values are a row of this table; used for pages that no B-tree assigns to a table.
        alias: the INTEGER PRIMARY KEY column, which is stored as NULL and has the rowid as its value.
        is_index: whether it is an index on a rowid table.
        root: usual root page, tried if the schema cannot be read.
        optional_columns: number of last columns that may be missing, as after ALTER TABLE ADD COLUMN.
        most_bytes: limit of a row's size in bytes.
    """

    name: str
    columns: tuple[StorageClass, ...]
    accepts: Callable[[Sequence[Value]], bool]
    alias: int | None = None
    is_index: bool = False
    root: int | None = None
    optional_columns: int = 0
    most_bytes: int = field(default=_USUAL_MOST_BYTES)

    @cached_property
    def stored(self) -> tuple[StorageClass, ...]:
        """The storage classes that each field of a stored record can have."""
        if self.is_index:
            return (*self.columns, StorageClass.INTEGER)
        return tuple(StorageClass.NULL if at == self.alias else classes for at, classes in enumerate(self.columns))

    def fits(self, fields: Sequence[RecordField]) -> bool:
        """Whether a record with these fields has the columns of this shape."""
        missing = len(self.stored) - len(fields)
        if not 0 <= missing <= self.optional_columns:
            return False
        # Texts and BLOBs of any length are represented by the shortest ones.
        serials = (one.serial if one.serial < _FIRST_BLOB else _FIRST_BLOB + (one.serial & 1) for one in fields)
        return all(_CLASS_BITS[serial] & bits for serial, bits in zip(serials, self._bits, strict=False))

    @cached_property
    def _bits(self) -> tuple[int, ...]:
        """The storage classes of each stored field as an integer of flags."""
        # Integers compare much faster than ``Flag`` members.
        return tuple(classes.value for classes in self.stored)

    @cached_property
    def pattern(self) -> re.Pattern[bytes]:
        """A pattern that matches the record header of such a row, at every offset where one may begin."""
        parts = [_serial_pattern(classes) for classes in self.stored]
        lacking = b"".join(b"(?:" + part for part in parts[len(parts) - self.optional_columns :])
        whole = b"".join(parts[: len(parts) - self.optional_columns]) + lacking + b")?" * self.optional_columns
        least, most = 1 + len(parts) - self.optional_columns, min(127, 1 + _MOST_SERIAL * len(parts))
        return re.compile(b"(?=[\\x%02x-\\x%02x]%s)" % (least, most, whole), re.DOTALL)


#: A serial type of several bytes ends with a byte below 0x80; its lowest bit tells text from BLOB.
_LONG = rb"[\x81-\xff][\x80-\xff]{0,3}"
_ODD, _EVEN = (b"[" + b"".join(b"\\x%02x" % byte for byte in range(first, 0x80, 2)) + b"]" for first in (1, 0))
_ONE_BYTE = {
    StorageClass.NULL: b"\\x00",
    StorageClass.INTEGER: b"[\\x01-\\x06\\x08\\x09]",
    StorageClass.REAL: b"\\x07",
    StorageClass.TEXT: b"(?![\\x01-\\x0b])" + _ODD,
    StorageClass.BLOB: b"(?![\\x00-\\x0b])" + _EVEN,
}


def _serial_pattern(classes: StorageClass) -> bytes:
    """Return a pattern that matches the serial type (SQLite's code of type and length) of values of these classes."""
    choices = [pattern for one, pattern in _ONE_BYTE.items() if one & classes]
    choices += [_LONG + last for one, last in ((StorageClass.TEXT, _ODD), (StorageClass.BLOB, _EVEN)) if one & classes]
    return b"(?:" + b"|".join(choices) + b")"


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read an unsigned varint (integer of variable length). Return it and the offset after it.

    Raises:
        MalformedRecord: the number is truncated, or longer than SQLite writes it.
    """
    try:
        byte = data[at]
        if byte < 0x80:
            return byte, at + 1
        if byte == 0x80:
            raise MalformedRecord
        value = byte & 0x7F
        for after in range(at + 1, at + _MOST_VARINT - 1):
            byte = data[after]
            value = value << 7 | byte & 0x7F
            if byte < 0x80:
                return value, after + 1
        value = value << 8 | data[at + _MOST_VARINT - 1]
        if value < 1 << 56:
            raise MalformedRecord
        return value, at + _MOST_VARINT
    except IndexError:
        raise MalformedRecord from None


def encode_varint(value: int) -> bytes:
    """Encode a number below 2^56 as a varint."""
    out = [value & 0x7F]
    while value := value >> 7:
        out.append(value & 0x7F | 0x80)
    return bytes(reversed(out))


def to_signed(value: int) -> int:
    """Interpret an unsigned 64-bit number as a signed one."""
    return value - (1 << 64) if value >= 1 << 63 else value


def parse_fields(record: bytes) -> tuple[list[RecordField], int]:
    """Parse the header of a record; return its fields and the total size of the record.

    Raises:
        MalformedRecord: the header is invalid.
    """
    header, at = read_varint(record, 0)
    if not at < header <= len(record):
        raise MalformedRecord
    found, start = [], header
    while at < header:
        serial, at = read_varint(record, at)
        if serial >= _FIRST_BLOB:
            length = (serial - _FIRST_BLOB) >> 1
        elif serial < len(_FIXED_LENGTHS):
            length = _FIXED_LENGTHS[serial]
        else:
            raise MalformedRecord
        found.append(RecordField(serial, start, length))
        start += length
    if at != header:
        raise MalformedRecord
    return found, start


def decode_value(stored: RecordField, record: bytes, encoding: str) -> Value:
    """Decode the value of a field of a record. Texts are converted from ``encoding`` to UTF-8."""
    serial = stored.serial
    raw = record[stored.start : stored.start + stored.length]
    if serial >= _FIRST_BLOB:
        if not serial & 1:
            return raw
        return TextBytes(raw if encoding == "utf-8" else recode_text(raw, encoding))
    if serial in (_ZERO, _ONE):
        return serial - _ZERO
    if serial == 0:
        return None
    if serial == _REAL:
        number: float = _DOUBLE.unpack(raw)[0]
        return number
    return int.from_bytes(raw, "big", signed=True)


def recode_text(raw: bytes, encoding: str) -> bytes:
    """Convert the bytes of a text from ``encoding`` to UTF-8; lone surrogates are kept as three-byte sequences."""
    return raw.decode(encoding, "surrogatepass" if len(raw) % 2 == 0 else "replace").encode("utf-8", "surrogatepass")
