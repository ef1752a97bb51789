"""The rows of a table, and the list of tables (``docs/formats/redb.md``, "Tables")."""

from __future__ import annotations

from collections.abc import Iterator

from regraft.formats.redb.damage import Malformed, PageDamage, Report
from regraft.formats.redb.header import OLDEST_VERSION, ROOT_BYTES, Root, Slot
from regraft.formats.redb.nodes import Shape
from regraft.formats.redb.pages import Claim, Claims, Pages, Place
from regraft.formats.redb.tables import Definition, read_definition
from regraft.formats.redb.types import codec
from regraft.formats.redb.walk import Walk
from regraft.language import tr

#: What the value of a multimap begins with: all values of the key are in it, or in a tree of their own.
_INLINE, _TREE = 1, 3
_LIST_SHAPE = Shape(key_width=None, value_width=None)
#: Of version 2's tree of freed pages.
_FREED_SHAPE = Shape(key_width=16, value_width=None)

Row = tuple[Place, bytes, bytes]


class Rows:
    """The rows of a table, read once."""

    def __init__(
        self, *, name: str, definition: Definition, version: int, pages: Pages, claim: Claim, report: Report
    ) -> None:
        shape = definition.shape
        self._definition = definition
        self._key = codec(definition.key, version, shape.key_width)
        self._value = codec(definition.value, version, shape.value_width)
        self._walk = Walk(pages, claim, name, report)

    def raw(self) -> Iterator[tuple[bytes, bytes]]:
        """Return the rows as they are stored."""
        for _, key, value in self._stored():
            yield key, value

    def typed(self) -> Iterator[tuple[object, object]]:
        """Return the rows by their types; one that is not of its type is damage."""
        read_key, read_value = self._key.decode, self._value.decode
        for place, key, value in self._stored():
            try:
                row = read_key(key), read_value(value)
            except ValueError as error:
                self._walk.damage(place, tr("a row is not of its type: {error}", error=error))
                continue
            yield row

    def _stored(self) -> Iterator[Row]:
        root = self._definition.root
        if root is None:
            return
        shape = self._definition.shape
        if self._definition.is_multimap:
            shape = Shape(key_width=shape.key_width, value_width=None)
        for place, leaf in self._walk.leaves(root, shape, self._key.rank):
            for key, value in zip(leaf.keys(), leaf.values(), strict=True):
                if self._definition.is_multimap:
                    for one in self._collection(place, value):
                        yield place, key, one
                else:
                    yield place, key, value

    def _collection(self, place: Place, data: bytes) -> Iterator[bytes]:
        """Return the values of one key of a multimap: they are the keys of a tree without values."""
        shape = Shape(key_width=self._definition.shape.value_width, value_width=0)
        kind = data[:1]
        if kind == bytes([_INLINE]):
            yield from self._walk.keys(place, data[1:], shape, self._value.rank)
        elif kind == bytes([_TREE]) and len(data) == 1 + ROOT_BYTES:
            for _, leaf in self._walk.leaves(Root.read(data, 1), shape, self._value.rank):
                yield from leaf.keys()
        else:
            self._walk.damage(place, tr("the values of a key are in an unknown form"))


def definitions(pages: Pages, claim: Claim, root: Root | None, report: Report) -> dict[str, Definition]:
    """Return the definitions of the tables that a list of tables names, in order of name."""
    found: dict[str, Definition] = {}
    if root is None:
        return found
    walk = Walk(pages, claim, None, report)
    for place, leaf in walk.leaves(root, _LIST_SHAPE, lambda key: key):
        for key, value in zip(leaf.keys(), leaf.values(), strict=True):
            try:
                found[key.decode("utf-8")] = read_definition(value)
            except Malformed as error:
                walk.damage(place, str(error))
            except UnicodeDecodeError:
                walk.damage(place, tr("the name of a table cannot be read"))
    return found


class _Wrong(Exception):
    """A page is not right."""


def is_right(pages: Pages, slot: Slot) -> bool:
    """Tell whether every page that a slot leads to is right: of the tables, and of redb's own trees."""
    claims = Claims(pages)

    def refuse(_: PageDamage) -> None:
        raise _Wrong

    try:
        for root in (slot.tables, slot.system):
            for name, definition in definitions(pages, claims.walk(1), root, refuse).items():
                rows = Rows(
                    name=name,
                    definition=definition,
                    version=slot.version,
                    pages=pages,
                    claim=claims.walk(1),
                    report=refuse,
                )
                for _ in rows.raw():
                    pass
        if slot.freed is not None and slot.version == OLDEST_VERSION:
            walk = Walk(pages, claims.walk(1), None, refuse)
            for _ in walk.leaves(slot.freed, _FREED_SHAPE, None):
                pass
    except _Wrong:
        return False
    return True
