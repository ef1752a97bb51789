"""The names of redb's types, and how values of each are read (``docs/formats/redb.md``, "Types")."""

from __future__ import annotations

import re

import msgspec

from regraft.formats.redb import values
from regraft.formats.redb.damage import Malformed
from regraft.formats.redb.header import OLDEST_VERSION
from regraft.formats.redb.values import BUILT_IN, COMPOSITE, RAW, TUPLE, USER_DEFINED, Codec
from regraft.language import tr

#: Types in types in types; nobody needs more.
_DEEPEST = 16
_PLAIN = re.compile(r"\(\)|&str|String|&\[u8\]|[a-z]+[0-9]*", re.ASCII)
_COUNT = re.compile(r";([0-9]{1,10})\]", re.ASCII)


class TypeName(msgspec.Struct, frozen=True, kw_only=True):
    """A type as the definition of a table names it."""

    #: Who made it and how it is encoded: one of the constants of :mod:`regraft.formats.redb.values`.
    kind: int
    name: str

    @classmethod
    def read(cls, data: bytes) -> TypeName:
        """Read a type's name.

        Raises:
            Malformed: it is none.
        """
        try:
            return cls(kind=data[0], name=data[1:].decode("utf-8"))
        except (IndexError, UnicodeDecodeError) as error:
            raise Malformed(tr("the name of a type cannot be read")) from error


def codec(name: TypeName, version: int, width: int | None) -> Codec:
    """Return how values of a type are read; bytes as they are where nobody here knows the type.

    Args:
        name: the type.
        version: of the file's format, which tells how tuples within other types are encoded.
        width: how many bytes the table gives to each value.
    """
    if name.kind not in (BUILT_IN, TUPLE, COMPOSITE) or name.kind == USER_DEFINED:
        return RAW
    try:
        found = _Parser(name, version).whole()
    except _Unknown:
        return RAW
    return found if found.width == width else RAW


class _Unknown(Exception):
    """A type that nobody here knows."""


class _Parser:
    """Reads the name of a type from left to right."""

    def __init__(self, name: TypeName, version: int) -> None:
        self._name = name
        self._version = version
        self._at = 0

    def whole(self) -> Codec:
        """Return the codec of the whole name."""
        found = self._type(0)
        if self._at != len(self._name.name):
            raise _Unknown
        return found

    def _type(self, depth: int) -> Codec:
        if depth > _DEEPEST:
            raise _Unknown
        if self._take("Option<"):
            return values.option(self._last(depth, ">"))
        if self._take("Vec<"):
            return _known(values.vector(self._last(depth, ">")))
        if self._take("["):
            inner = self._type(depth + 1)
            return _known(values.sequence(inner, int(self._match(_COUNT)[1])))
        plain = _PLAIN.match(self._name.name, self._at)
        if plain is not None:
            self._at = plain.end()
            return _known(values.plain(plain[0]))
        if self._take("("):
            return self._tuple(depth)
        raise _Unknown

    def _tuple(self, depth: int) -> Codec:
        inner = [self._type(depth + 1)]
        while self._take(","):
            if len(inner) == 1 and self._take(")"):
                return values.tuple_of(inner, has_wide_lengths=False)
            inner.append(self._type(depth + 1))
        if not self._take(")") or len(inner) == 1:
            raise _Unknown
        is_open = any(one.width is None for one in inner)
        return values.tuple_of(inner, has_wide_lengths=is_open and self._has_wide_lengths())

    def _has_wide_lengths(self) -> bool:
        """Tell how the lengths of tuples are encoded.

        Since redb 3 the kind of a tuple says so. A tuple within another type says it by that type's kind only since
        redb 4.2; before, both encodings have the same name, and the file's version alone tells what cannot be.
        """
        if self._name.kind in (TUPLE, COMPOSITE):
            return False
        if self._name.name.startswith("(") or self._version == OLDEST_VERSION:
            return True
        raise _Unknown

    def _last(self, depth: int, end: str) -> Codec:
        inner = self._type(depth + 1)
        if not self._take(end):
            raise _Unknown
        return inner

    def _take(self, text: str) -> bool:
        is_there = self._name.name.startswith(text, self._at)
        if is_there:
            self._at += len(text)
        return is_there

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self._name.name, self._at)
        if found is None:
            raise _Unknown
        self._at = found.end()
        return found


def _known(found: Codec | None) -> Codec:
    if found is None:
        raise _Unknown
    return found
