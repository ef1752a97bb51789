"""Reads redb files of versions 2 and 3: the tables, their rows, and what of them is damaged.

The rules are in ``docs/formats/redb.md``. Nothing is written, no page is taken for right whose checksum is wrong, and
no more is held than one page of each level of a tree.
"""

from __future__ import annotations

import errno
import operator
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar

import msgspec

from regraft.disk import links, writable
from regraft.formats.redb import pages
from regraft.formats.redb.errors import (
    Malformed,
    PageDamage,
    RedbDamaged,
    RedbError,
    RedbInUse,
    RedbSlotsDamaged,
    RedbTableUnknown,
    RedbTooNew,
    RedbTooOld,
    Report,
)
from regraft.formats.redb.pages import (
    BRANCH,
    HEADER_BYTES,
    LEAF,
    MOST_PAGES,
    NEWEST_VERSION,
    OLDEST_VERSION,
    ROOT_BYTES,
    Branch,
    Claim,
    Claims,
    Definition,
    Header,
    Leaf,
    Pages,
    Place,
    Root,
    Shape,
    Slot,
    StoredFile,
    Table,
    checksum,
    codec,
    read_branch,
    read_definition,
    read_header,
    read_leaf,
    split_number,
)
from regraft.identity import replace
from regraft.language import tr
from regraft.text import printable

# Walks through the trees of a redb file, past what is damaged (``docs/formats/redb.md``, "Damage").


#: No tree is deeper: with two children for each branch it would have more leaves than a file has pages.
DEEPEST = 64
Rank = Callable[[bytes], Any] | None
#: The ranks that a leaf's keys are held against: of the last key before, and those that they lie between.
_Limits = tuple[Any, Any, Any]


class _Step(msgspec.Struct, frozen=True, kw_only=True):
    """A page that a walk is to come to."""

    number: int
    checksum: bytes
    depth: int
    #: The ranks of keys that its own lie between, the upper one included; None where none is known.
    above: Any = None
    up_to: Any = None
    #: Whether the page that names it is as it was written.
    is_trusted: bool = True


class Walk:
    """One walk through the trees of a table.

    Args:
        pages: the pages of the file.
        claim: what keeps it from coming to a page twice.
        table: the name of the table; None for the list of tables.
        report: is called with each damage.
    """

    def __init__(self, pages: Pages, claim: Claim, table: str | None, report: Report) -> None:
        self._pages = pages
        self._claim = claim
        self._table = table
        self._report = report

    def leaves(self, root: Root, shape: Shape, rank: Rank) -> Iterator[tuple[Place, Leaf]]:
        """Return the leaves of a tree whose bytes are those that were written, in the order of their keys.

        Args:
            root: where the tree begins.
            shape: how wide its keys and values are.
            rank: gives what the order of its keys follows.
        """
        steps = [_Step(number=root.page, checksum=root.checksum, depth=0)]
        last: Any = None
        while steps:
            step = steps.pop()
            found = self._visit(step, shape)
            if found is None:
                continue
            place, node, is_whole = found
            if isinstance(node, Branch):
                steps += _children(node, step, rank, is_whole)
                continue
            if rank is not None:
                ranks = self._ranks(place, node.keys(), rank, (last, step.above, step.up_to))
                if ranks is None:
                    continue
                last = ranks[-1]
            yield place, node

    def damage(self, place: Place, reason: str) -> None:
        """Report damage of a page."""
        self._report(
            PageDamage(table=self._table, page=place.words, offset=place.offset, length=place.length, reason=reason)
        )

    def keys(self, place: Place, data: bytes, shape: Shape, rank: Rank) -> list[bytes]:
        """Return the keys of a leaf that lies within a page; none where it is damaged."""
        try:
            keys = read_leaf(data, shape).keys()
        except Malformed as error:
            self.damage(place, str(error))
            return []
        if rank is not None and self._ranks(place, keys, rank, (None, None, None)) is None:
            return []
        return keys

    def _visit(self, step: _Step, shape: Shape) -> tuple[Place, Leaf | Branch, bool] | None:
        """Read a page; return it and whether its checksum is right, or None where it is of no use."""
        try:
            place = self._pages.place(step.number)
        except Malformed as error:
            self._report(self._nowhere(step.number, str(error)))
            return None
        try:
            _check_depth(step)
            self._claim.take(place)
            node = _node(self._pages.read(place), shape)
        except Malformed as error:
            self.damage(place, str(error))
            return None
        is_whole = node.end is not None and checksum(memoryview(node.page)[: node.end]) == step.checksum
        if not is_whole:
            self.damage(place, _why(node, step))
            if isinstance(node, Leaf) or not step.is_trusted:
                return None
        return place, node, is_whole

    def _ranks(self, place: Place, keys: list[bytes], rank: Callable[[bytes], Any], limits: _Limits) -> Any:
        """Return the ranks of keys; None, and damage, where they are not in order or not of their type."""
        last, above, up_to = limits
        try:
            ranks = [rank(key) for key in keys]
        except ValueError as error:
            self.damage(place, tr("a key is not of its type: {error}", error=error))
            return None
        is_within = (above is None or ranks[0] > above) and (up_to is None or ranks[-1] <= up_to)
        is_ordered = all(map(operator.lt, ranks, ranks[1:])) and (last is None or ranks[0] > last)
        if not is_within or not is_ordered:
            self.damage(place, tr("its keys are not in order"))
            return None
        return ranks

    def _nowhere(self, number: int, reason: str) -> PageDamage:
        """Return the damage of a page that is not in the file."""
        region, index, order = split_number(number)
        words = tr("region {region}, page {index}, order {order}", region=region, index=index, order=order)
        return PageDamage(table=self._table, page=words, offset=self._pages.offset(number), length=0, reason=reason)


def _check_depth(step: _Step) -> None:
    if step.depth > DEEPEST:
        raise Malformed(tr("the tree is deeper than any that redb makes"))


def _node(page: bytes, shape: Shape) -> Leaf | Branch:
    if page[0] == LEAF:
        return read_leaf(page, shape)
    if page[0] == BRANCH:
        return read_branch(page, shape.key_width)
    raise Malformed(tr("it is neither a leaf nor a branch"))


def _why(node: Leaf | Branch, step: _Step) -> str:
    """Return what is wrong with a page that is not as it was written."""
    if node.end is None:
        return tr("an entry lies outside of its page")
    if step.is_trusted:
        return tr("its checksum is wrong")
    return tr("it is not the page that a damaged one names")


def _children(branch: Branch, step: _Step, rank: Rank, is_whole: bool) -> list[_Step]:
    """Return the steps to the children of a branch, the first one last."""
    children = branch.children()
    bounds = _bounds(branch, rank) if is_whole else None
    if bounds is None:  # nothing is known but where the branch itself lies
        limits = [(step.above, step.up_to)] * len(children)
    else:
        limits = list(zip([step.above, *bounds], [*bounds, step.up_to], strict=True))
    return [
        _Step(number=number, checksum=stored, depth=step.depth + 1, above=above, up_to=up_to, is_trusted=is_whole)
        for (number, stored), (above, up_to) in zip(reversed(children), reversed(limits), strict=True)
    ]


def _bounds(branch: Branch, rank: Rank) -> list[Any] | None:
    """Return the ranks of the keys of a branch; None where they are not known."""
    if rank is None:
        return None
    try:
        return [rank(key) for key in branch.separators()]
    except ValueError:
        return None


# The rows of a table, and the list of tables (``docs/formats/redb.md``, "Tables").


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


T = TypeVar("T")

#: Who has the pages of the list of tables; the tables follow.
_LIST = 1


def read_redb(
    path: Path, *, on_damage: Callable[[PageDamage], None] | None = None, state: bytes | None = None
) -> RedbFile:
    """Open a redb file for reading; close it, or use it in a ``with`` statement.

    Args:
        path: the file.
        state: the :attr:`RedbFile.state` of an earlier reading: the file has to be in it still.
        on_damage: is called with each damaged place, and reading goes on past it; without it the first one ends the
            reading. A place is reported as often as it is read.

    Raises:
        RedbError: it cannot be read; each reason has a class of its own.
    """
    file = StoredFile(Path(path))
    try:
        file.demand(state)
        return RedbFile(file, on_damage)
    except BaseException:
        file.close()
        raise


class RedbFile:
    """A redb file that is open for reading; :func:`read_redb` makes one."""

    def __init__(self, file: StoredFile, on_damage: Callable[[PageDamage], None] | None) -> None:
        self._file = file
        self._on_damage = on_damage
        header = read_header(file.header)
        self._check_layout(header)
        self._pages = Pages(file, header.layout)
        if self._pages.units > MOST_PAGES:
            raise RedbError(path=file.path, reason=tr("it has more pages than can be kept track of"))
        slot = self._slot(header)
        self._claims = Claims(self._pages)
        self._definitions = definitions(self._pages, self._claims.walk(_LIST), slot.tables, self._report)
        self._owners = {name: _LIST + 1 + place for place, name in enumerate(self._definitions)}
        self.format_version: int = slot.version
        self.page_size: int = header.layout.page_size
        self.transaction_id: int = slot.transaction_id
        #: False where the file was not closed as it should be.
        self.clean: bool = not header.needs_recovery
        #: What tells this state of the file from any other.
        self.state: bytes = file.state
        #: The tables by name, in order of name.
        self.tables: Mapping[str, Table] = MappingProxyType(
            {name: definition.table(name) for name, definition in self._definitions.items()}
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def rows(self, name: str) -> Iterator[tuple[object, object]]:
        """Return the keys and values of a table in the order of its keys, as their types have them.

        A type that nobody here knows gives bytes. A multimap gives a key as often as it has values.

        Raises:
            RedbError: there is no such table, the file changed, or it is damaged and nobody is told of damage.
        """
        return self._walked(self._rows(name).typed())

    def raw_rows(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        """Return the keys and values of a table in the order of its keys, as the bytes that are stored.

        Raises:
            RedbError: there is no such table, the file changed, or it is damaged and nobody is told of damage.
        """
        return self._walked(self._rows(name).raw())

    def verify(self) -> None:
        """Read every page of every table; what is damaged goes the way of all damage.

        Raises:
            RedbError: the file changed, or it is damaged and nobody is told of damage.
        """
        for name in self._definitions:
            for _ in self.rows(name):
                pass

    def _check_layout(self, header: Header) -> None:
        """Refuse a file without possible pages, and report one that ends too early."""
        layout, size = header.layout, self._file.size
        place = PageDamage(table=None, page=tr("header"), offset=0, length=HEADER_BYTES, reason="")
        if not layout.is_possible or layout.page_size > size:
            raise self._damaged(replace(place, reason=tr("it names pages and regions that no file has")))
        if layout.file_bytes > size:
            reason = tr("the file ends after {size:,} of {expected:,} bytes", size=size, expected=layout.file_bytes)
            self._report(replace(place, reason=reason))

    def _slot(self, header: Header) -> Slot:
        """Return the slot that counts."""
        versions = {header.primary.version, header.secondary.version}
        choice = pages.choose(header, self._file.size, self._report)
        if not choice.slots:
            self._refuse_version(max(versions) if len(versions) == 1 else OLDEST_VERSION)
            raise RedbSlotsDamaged(path=self._file.path)
        self._refuse_version(choice.slots[0].version)
        slot = pages.settle(choice, lambda slot: is_right(self._pages, slot), self._report)
        self._refuse_version(slot.version)
        return slot

    def _refuse_version(self, version: int) -> None:
        if version < OLDEST_VERSION:
            raise RedbTooOld(path=self._file.path, version=version)
        if version > NEWEST_VERSION:
            raise RedbTooNew(path=self._file.path, version=version)

    def _rows(self, name: str) -> Rows:
        definition = self._definitions.get(name)
        if definition is None:
            known = ", ".join(map(printable, self._definitions)) or tr("none")
            raise RedbTableUnknown(path=self._file.path, table=name, known=known)
        return Rows(
            name=name,
            definition=definition,
            version=self.format_version,
            pages=self._pages,
            claim=self._claims.walk(self._owners[name]),
            report=self._report,
        )

    def _walked(self, rows: Iterator[T]) -> Iterator[T]:
        yield from rows
        self._file.check_unchanged()

    def _report(self, damage: PageDamage) -> None:
        self._file.check_unchanged()
        if self._on_damage is not None:
            self._on_damage(damage)
            return
        raise self._damaged(damage)

    def _damaged(self, damage: PageDamage) -> RedbDamaged:
        return RedbDamaged(
            path=self._file.path,
            table=damage.table,
            page=damage.page,
            offset=damage.offset,
            length=damage.length,
            reason=damage.reason,
        )


# Keeping a redb file as it is (``docs/formats/redb.md``, "Reading one with Python").


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Keep every program from opening a redb file for writing, as long as this lasts; others may read it.

    redb locks a file for itself alone; a lock for reading stands in the way of that. On Windows, and where a file
    system has no locks, it is only seen whether somebody has the file open now.

    Raises:
        RedbInUse: a program has it open.
        RedbError: it cannot be opened.
    """
    try:
        descriptor = links.open_descriptor(path)
    except OSError as error:
        raise RedbError(path=path, reason=error.strerror or error) from error
    try:
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        if writable.fcntl is None:
            os.read(descriptor, 1)  # what is locked is refused
        else:
            writable.fcntl.flock(descriptor, writable.fcntl.LOCK_SH | writable.fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise RedbInUse(path=path) from error
