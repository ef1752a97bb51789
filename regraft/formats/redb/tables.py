"""What a redb file says of each of its tables (``docs/formats/redb.md``, "Tables")."""

from __future__ import annotations

import struct

import msgspec

from regraft.formats.redb.damage import Malformed
from regraft.formats.redb.header import ROOT_BYTES, Root
from regraft.formats.redb.nodes import Shape
from regraft.formats.redb.types import TypeName
from regraft.language import tr

_PLAIN, _MULTIMAP = 3, 4
_OLD = (1, 2)
_LENGTH = struct.Struct("<BQB")
_WIDTHS = struct.Struct("<BIBIIII")
_ROOT_AT = _LENGTH.size
_WIDTHS_AT = _ROOT_AT + ROOT_BYTES
_NAMES_AT = _WIDTHS_AT + _WIDTHS.size


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a redb file."""

    name: str
    #: The types as redb names them, such as ``&str``.
    key_type: str
    value_type: str
    #: How many rows the file says that it has; each value of a multimap is one.
    length: int
    multimap: bool


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """What the list of tables has for a table."""

    is_multimap: bool
    length: int
    root: Root | None
    #: The widths of its keys and of its values; in a multimap those of the values lie in collections.
    shape: Shape
    key: TypeName
    value: TypeName

    def table(self, name: str) -> Table:
        """Return what a reader is told of it."""
        return Table(
            name=name,
            key_type=self.key.name,
            value_type=self.value.name,
            length=self.length,
            multimap=self.is_multimap,
        )


def read_definition(data: bytes) -> Definition:
    """Read the definition of a table.

    Raises:
        Malformed: it is none, or none that is known.
    """
    if len(data) < _NAMES_AT:
        raise Malformed(tr("the definition of a table is cut off"))
    kind, length, has_root = _LENGTH.unpack_from(data)
    has_key, key_width, has_value, value_width, *alignments, key_bytes = _WIDTHS.unpack_from(data, _WIDTHS_AT)
    if kind not in (_PLAIN, _MULTIMAP):
        raise Malformed(
            tr("a table is in the form of version 1") if kind in _OLD else tr("a table is of an unknown kind")
        )
    if alignments != [1, 1] or _NAMES_AT + key_bytes > len(data):
        raise Malformed(tr("the definition of a table cannot be read"))
    return Definition(
        is_multimap=kind == _MULTIMAP,
        length=length,
        root=Root.read(data, _ROOT_AT) if has_root else None,
        shape=Shape(key_width=key_width if has_key else None, value_width=value_width if has_value else None),
        key=TypeName.read(data[_NAMES_AT : _NAMES_AT + key_bytes]),
        value=TypeName.read(data[_NAMES_AT + key_bytes :]),
    )
