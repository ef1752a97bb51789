"""Reads redb, the key-value store of Rust programs: file formats 2 and 3 (``docs/formats/redb.md``).

Files are never written. A page is used only if its checksum matches. Memory use is limited to one page for each level
of a tree.
"""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from regraft.disk import links
from regraft.formats.redb import pages
from regraft.formats.redb.errors import (
    DamageCallback,
    MalformedPage,
    NotRedb,
    PageDamage,
    RedbChanged,
    RedbDamaged,
    RedbError,
    RedbInUse,
    RedbSlotsDamaged,
    RedbTableUnknown,
    RedbTooNew,
    RedbTooOld,
    RedbTooShort,
)
from regraft.formats.redb.pages import (
    BRANCH,
    HEADER_BYTES,
    LEAF,
    MAX_PAGES,
    NEWEST_VERSION,
    OLDEST_VERSION,
    ROOT_BYTES,
    Branch,
    Definition,
    EntryWidths,
    Header,
    Leaf,
    PageClaim,
    PageLocation,
    PageOwners,
    Pages,
    Root,
    Slot,
    StoredFile,
    Table,
    checksum,
    find_codec,
    read_branch,
    read_definition,
    read_header,
    read_leaf,
    split_number,
)
from regraft.identity import replace
from regraft.language import tr
from regraft.text import printable

# Tree walks that skip damaged pages (``docs/formats/redb.md``, "Damage").


#: No valid tree is deeper: with two children per branch it would have more leaves than a file has pages.
MAX_DEPTH = 64
#: Returns the sort key of a stored key; None if the order of the keys is unknown.
KeyRank = Callable[[bytes], Any] | None


class _KeyLimits(NamedTuple):
    """Bounds of the keys of a leaf, as ranks; None if unknown."""

    #: Rank of the last key of the leaf before.
    previous: Any = None
    #: Bounds that the branches above the leaf state: excluded, and included.
    above: Any = None
    up_to: Any = None


class _VisitedPage(NamedTuple):
    """A page of a tree that was read; ``is_whole``: its checksum matches."""

    location: PageLocation
    node: Leaf | Branch
    is_whole: bool


class _Step(msgspec.Struct, frozen=True, kw_only=True):
    """A page to visit: its page number, the checksum that its parent page states, and its depth in the tree."""

    number: int
    checksum: bytes
    depth: int
    #: Bounds of the ranks of its keys, ``up_to`` included; None if unknown.
    above: Any = None
    up_to: Any = None
    #: Whether the parent page is intact.
    is_trusted: bool = True


class TreeWalk:
    """One walk through the trees of a table.

    Args:
        pages: the pages of the file.
        claim: records visited pages, so that no page is visited twice.
        table: the name of the table; None for the list of tables.
        report: called with each damage.
    """

    def __init__(self, pages: Pages, claim: PageClaim, table: str | None, report: DamageCallback) -> None:
        self._pages = pages
        self._claim = claim
        self._table = table
        self._report = report

    def leaves(self, root: Root, shape: EntryWidths, rank: KeyRank) -> Iterator[tuple[PageLocation, Leaf]]:
        """Yield the intact leaves of a tree in key order.

        Args:
            root: root of the tree.
            shape: widths of the tree's keys and values.
            rank: returns the sort key of a stored key; None if the order of the keys is unknown.
        """
        steps = [_Step(number=root.page, checksum=root.checksum, depth=0)]
        last: Any = None
        while steps:
            step = steps.pop()
            visited = self._visit(step, shape)
            if visited is None:
                continue
            location, node, is_whole = visited
            if isinstance(node, Branch):
                steps += _child_steps(node, step, rank, is_whole)
                continue
            if rank is not None:
                ranks = self._ranks(location, node.keys(), rank, _KeyLimits(last, step.above, step.up_to))
                if ranks is None:
                    continue
                last = ranks[-1]
            yield location, node

    def damage(self, location: PageLocation, reason: str) -> None:
        """Report that a page is damaged; ``reason`` is for messages."""
        self._report(
            PageDamage(
                table=self._table,
                page=location.description,
                offset=location.offset,
                length=location.length,
                reason=reason,
            )
        )

    def keys(self, location: PageLocation, data: bytes, shape: EntryWidths, rank: KeyRank) -> list[bytes]:
        """Return the keys of a leaf that is stored inside of a page; empty, after a report, if it is damaged.

        Args:
            location: the page, for the report.
            data: the bytes of the leaf.
            shape: widths of the leaf's keys and values.
            rank: returns the sort key of a stored key; None if the order of the keys is unknown.
        """
        try:
            keys = read_leaf(data, shape).keys()
        except MalformedPage as error:
            self.damage(location, str(error))
            return []
        if rank is not None and self._ranks(location, keys, rank, _KeyLimits()) is None:
            return []
        return keys

    def _visit(self, step: _Step, shape: EntryWidths) -> _VisitedPage | None:
        """Read the page of a step. Damage is reported; None if the page is unusable.

        A branch whose checksum is wrong is used if its parent page is intact. ``shape``: widths of keys and values.
        """
        try:
            location = self._pages.locate(step.number)
        except MalformedPage as error:
            region, index, order = split_number(step.number)
            words = tr("region {region}, page {index}, order {order}", region=region, index=index, order=order)
            self._report(
                PageDamage(
                    table=self._table, page=words, offset=self._pages.offset(step.number), length=0, reason=str(error)
                )
            )
            return None
        try:
            node = self._read_node(step, location, shape)
        except MalformedPage as error:
            self.damage(location, str(error))
            return None
        is_whole = node.end is not None and checksum(memoryview(node.page)[: node.end]) == step.checksum
        if not is_whole:
            self.damage(location, _describe_mismatch(node, step))
            if isinstance(node, Leaf) or not step.is_trusted:
                return None
        return _VisitedPage(location, node, is_whole)

    def _read_node(self, step: _Step, location: PageLocation, shape: EntryWidths) -> Leaf | Branch:
        """Claim and read the page of a step; raises MalformedPage if it is no node of a tree or too deep."""
        if step.depth > MAX_DEPTH:
            raise MalformedPage(tr("the tree is deeper than redb allows"))
        self._claim.take(location)
        page = self._pages.read(location)
        if page[0] == LEAF:
            return read_leaf(page, shape)
        if page[0] == BRANCH:
            return read_branch(page, shape.key_width)
        raise MalformedPage(tr("it is neither a leaf nor a branch"))

    def _ranks(
        self, location: PageLocation, keys: list[bytes], rank: Callable[[bytes], Any], limits: _KeyLimits
    ) -> Any:
        """Return the sort keys (ranks) of a page's keys.

        Report damage and return None if a key is out of order, outside of the limits or of another type.
        """
        previous, above, up_to = limits
        try:
            ranks = [rank(key) for key in keys]
        except ValueError as error:
            self.damage(location, tr("a key does not match its type: {error}", error=error))
            return None
        is_within = (above is None or ranks[0] > above) and (up_to is None or ranks[-1] <= up_to)
        is_ordered = all(map(operator.lt, ranks, ranks[1:])) and (previous is None or ranks[0] > previous)
        if not is_within or not is_ordered:
            self.damage(location, tr("its keys are not in order"))
            return None
        return ranks


def _describe_mismatch(node: Leaf | Branch, step: _Step) -> str:
    """Describe why the checksum of a page is wrong, for messages."""
    if node.end is None:
        return tr("an entry lies outside of its page")
    if step.is_trusted:
        return tr("its checksum is wrong")
    return tr("it is not the page that a damaged parent page refers to")


def _child_steps(branch: Branch, step: _Step, rank: KeyRank, is_whole: bool) -> list[_Step]:
    """Return a step for each child of a branch, last child first.

    Args:
        branch: the branch.
        step: the step that led to the branch.
        rank: returns the sort key of a stored key; None if the order of the keys is unknown.
        is_whole: whether the branch is intact, so that its keys bound those of the children.
    """
    children = branch.children()
    # Unless the keys of the branch are known, its own bounds apply to all children.
    limits = [(step.above, step.up_to)] * len(children)
    if is_whole and rank is not None:
        with contextlib.suppress(ValueError):
            bounds = [rank(key) for key in branch.separators()]
            limits = list(zip([step.above, *bounds], [*bounds, step.up_to], strict=True))
    return [
        _Step(number=number, checksum=stored, depth=step.depth + 1, above=above, up_to=up_to, is_trusted=is_whole)
        for (number, stored), (above, up_to) in zip(reversed(children), reversed(limits), strict=True)
    ]


# Rows of a table, and the list of tables (``docs/formats/redb.md``, "Tables").


#: First byte of a multimap's value: the values are stored inline, or in a tree of their own.
_INLINE, _TREE = 1, 3
_LIST_SHAPE = EntryWidths(key_width=None, value_width=None)
#: For version 2's tree of freed pages.
_FREED_SHAPE = EntryWidths(key_width=16, value_width=None)

Row = tuple[PageLocation, bytes, bytes]


class TableRows:
    """Reads the rows of a table. Single use.

    Args:
        name: name of the table.
        definition: definition of the table.
        version: version of the file format.
        pages: the pages of the file.
        claim: records visited pages.
        report: called with each damage.
    """

    def __init__(
        self, *, name: str, definition: Definition, version: int, pages: Pages, claim: PageClaim, report: DamageCallback
    ) -> None:
        shape = definition.shape
        self._definition = definition
        self._key = find_codec(definition.key, version, shape.key_width)
        self._value = find_codec(definition.value, version, shape.value_width)
        self._walk = TreeWalk(pages, claim, name, report)

    def raw(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values as stored bytes."""
        for _, key, value in self._read_rows():
            yield key, value

    def typed(self) -> Iterator[tuple[object, object]]:
        """Yield keys and values as Python values. A row that does not match its type is reported as damage."""
        read_key, read_value = self._key.decode, self._value.decode
        for location, key, value in self._read_rows():
            try:
                row = read_key(key), read_value(value)
            except ValueError as error:
                self._walk.damage(location, tr("a row does not match its types: {error}", error=error))
                continue
            yield row

    def _read_rows(self) -> Iterator[Row]:
        """Yield (page, key, value) of each row in key order; a multimap has a row for each value of a key."""
        root = self._definition.root
        if root is None:
            return
        shape = self._definition.shape
        if self._definition.is_multimap:
            shape = EntryWidths(key_width=shape.key_width, value_width=None)
        for location, leaf in self._walk.leaves(root, shape, self._key.rank):
            for key, value in zip(leaf.keys(), leaf.values(), strict=True):
                if self._definition.is_multimap:
                    for one in self._multimap_values(location, value):
                        yield location, key, one
                else:
                    yield location, key, value

    def _multimap_values(self, location: PageLocation, data: bytes) -> Iterator[bytes]:
        """Yield the values of one key of a multimap: the keys of a tree that has no values.

        Args:
            location: the page with the key, for reports.
            data: what is stored as the value of the key: a leaf, or the root of a tree.
        """
        shape = EntryWidths(key_width=self._definition.shape.value_width, value_width=0)
        kind = data[:1]
        if kind == bytes([_INLINE]):
            yield from self._walk.keys(location, data[1:], shape, self._value.rank)
        elif kind == bytes([_TREE]) and len(data) == 1 + ROOT_BYTES:
            for _, leaf in self._walk.leaves(Root.read(data, 1), shape, self._value.rank):
                yield from leaf.keys()
        else:
            self._walk.damage(location, tr("the values of a key have an unknown format"))


def read_definitions(
    pages: Pages, claim: PageClaim, root: Root | None, report: DamageCallback
) -> dict[str, Definition]:
    """Read the list of tables under ``root``; return the definition of each table by name, in ascending order.

    Args:
        pages: the pages of the file.
        claim: records visited pages.
        root: root of the list; None if there are no tables.
        report: called with each damage.
    """
    found: dict[str, Definition] = {}
    if root is None:
        return found
    walk = TreeWalk(pages, claim, None, report)
    for location, leaf in walk.leaves(root, _LIST_SHAPE, lambda key: key):
        for key, value in zip(leaf.keys(), leaf.values(), strict=True):
            try:
                found[key.decode("utf-8")] = read_definition(value)
            except MalformedPage as error:
                walk.damage(location, str(error))
            except UnicodeDecodeError:
                walk.damage(location, tr("the name of a table cannot be read"))
    return found


class _PageNotIntact(Exception):
    """A page is damaged."""


def is_slot_intact(pages: Pages, slot: Slot) -> bool:
    """Whether every page that a commit slot leads to is intact: the pages of its tables and its freed pages."""
    claims = PageOwners(pages)

    def refuse(_: PageDamage) -> None:
        """Stop the walk at the first damage."""
        raise _PageNotIntact

    try:
        for root in (slot.tables, slot.system):
            for name, definition in read_definitions(pages, claims.walk(1), root, refuse).items():
                rows = TableRows(
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
            walk = TreeWalk(pages, claims.walk(1), None, refuse)
            for _ in walk.leaves(slot.freed, _FREED_SHAPE, None):
                pass
    except _PageNotIntact:
        return False
    return True


T = TypeVar("T")

#: Owner number of the list of tables; the tables follow.
_LIST_OWNER = 1


def read_redb(
    path: Path, *, on_damage: Callable[[PageDamage], None] | None = None, state: bytes | None = None
) -> RedbFile:
    """Open a redb file for reading. Close it, or use it in a ``with`` statement.

    Args:
        path: the file.
        state: :attr:`RedbFile.state` of an earlier reading; a file in another state is refused.
        on_damage: called with each damage, after which reading continues; by default the first damage ends the
            reading. Damage is reported each time the page is read.

    Raises:
        RedbError: the file cannot be read; each reason has its own class.
    """
    file = StoredFile(Path(path))
    try:
        file.check_state(state)
        return RedbFile(file, on_damage)
    except BaseException:
        file.close()
        raise


class RedbFile:
    """A redb file open for reading, as returned by :func:`read_redb`."""

    def __init__(self, file: StoredFile, on_damage: Callable[[PageDamage], None] | None) -> None:
        self._file = file
        self._on_damage = on_damage
        header = read_header(file.header)
        self._check_layout(header)
        self._pages = Pages(file, header.layout)
        if self._pages.units > MAX_PAGES:
            raise RedbError(path=file.path, reason=tr("the file has too many pages"))
        slot = self._select_slot(header)
        self._claims = PageOwners(self._pages)
        self._definitions = read_definitions(self._pages, self._claims.walk(_LIST_OWNER), slot.tables, self._report)
        self._owners = {name: _LIST_OWNER + 1 + location for location, name in enumerate(self._definitions)}
        self.format_version: int = slot.version
        self.page_size: int = header.layout.page_size
        self.transaction_id: int = slot.transaction_id
        #: False if the file was not closed cleanly.
        self.clean: bool = not header.needs_recovery
        #: Identifies this state of the file.
        self.state: bytes = file.state
        #: The tables in ascending order of name.
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
        """Yield keys and values of a table as Python values, in key order.

        Values of unknown types are bytes. A multimap yields a key once for each of its values.

        Raises:
            RedbError: the table does not exist, the file changed, or it is damaged and there is no damage callback.
        """
        return self._check_unchanged_after(self._open_rows(name).typed())

    def raw_rows(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values of a table as stored bytes, in key order.

        Raises:
            RedbError: the table does not exist, the file changed, or it is damaged and there is no damage callback.
        """
        return self._check_unchanged_after(self._open_rows(name).raw())

    def verify(self) -> None:
        """Read every row of every table, reporting damage.

        Raises:
            RedbError: the file changed, or it is damaged and there is no damage callback.
        """
        for name in self._definitions:
            for _ in self.rows(name):
                pass

    def _check_layout(self, header: Header) -> None:
        """Refuse a file with an invalid layout; report a file that is truncated."""
        layout, size = header.layout, self._file.size
        location = PageDamage(table=None, page=tr("header"), offset=0, length=HEADER_BYTES, reason="")
        if not layout.is_possible or layout.page_size > size:
            raise self._damage_error(replace(location, reason=tr("the page or region size is not valid")))
        if layout.file_bytes > size:
            reason = tr("the file ends after {size:,} of {expected:,} bytes", size=size, expected=layout.file_bytes)
            self._report(replace(location, reason=reason))

    def _select_slot(self, header: Header) -> Slot:
        """Select the commit slot to read, preferring the newest one; raises RedbError if none can be read."""
        versions = {header.primary.version, header.secondary.version}
        choice = pages.choose_slots(header, self._file.size, self._report)
        if not choice.slots:
            self._check_version(max(versions) if len(versions) == 1 else OLDEST_VERSION)
            raise RedbSlotsDamaged(path=self._file.path)
        self._check_version(choice.slots[0].version)
        slot = pages.select_slot(choice, lambda slot: is_slot_intact(self._pages, slot), self._report)
        self._check_version(slot.version)
        return slot

    def _check_version(self, version: int) -> None:
        """Refuse a version of the file format that is not supported."""
        if version < OLDEST_VERSION:
            raise RedbTooOld(path=self._file.path, version=version)
        if version > NEWEST_VERSION:
            raise RedbTooNew(path=self._file.path, version=version)

    def _open_rows(self, name: str) -> TableRows:
        """Open the rows of the table with a name; raises RedbTableUnknown if it does not exist."""
        definition = self._definitions.get(name)
        if definition is None:
            known = ", ".join(map(printable, self._definitions)) or tr("none")
            raise RedbTableUnknown(path=self._file.path, table=name, known=known)
        return TableRows(
            name=name,
            definition=definition,
            version=self.format_version,
            pages=self._pages,
            claim=self._claims.walk(self._owners[name]),
            report=self._report,
        )

    def _check_unchanged_after(self, rows: Iterator[T]) -> Iterator[T]:
        """Yield rows, then raise if the file was changed while they were read."""
        yield from rows
        self._file.check_unchanged()

    def _report(self, damage: PageDamage) -> None:
        """Pass damage to the callback, or raise it without a callback. Raises RedbChanged if the file was changed."""
        self._file.check_unchanged()
        if self._on_damage is not None:
            self._on_damage(damage)
            return
        raise self._damage_error(damage)

    def _damage_error(self, damage: PageDamage) -> RedbDamaged:
        """Make the error for a damage."""
        return RedbDamaged(
            path=self._file.path,
            table=damage.table,
            page=damage.page,
            offset=damage.offset,
            length=damage.length,
            reason=damage.reason,
        )


# Lock against writers (``docs/formats/redb.md``, "Reading one with Python").


@contextmanager
def block_writers(path: Path) -> Iterator[None]:
    """Prevent other programs from opening a redb file for writing; they may still read it.

    redb locks files exclusively, and a shared lock prevents that. On Windows, and on file systems without locks, this
    only detects a program that has the file open at the start.

    Raises:
        RedbInUse: another program has the file open.
        RedbError: the file cannot be opened.
    """
    try:
        descriptor = links.open_descriptor(path)
    except OSError as error:
        raise RedbError(path=path, reason=error.strerror or error) from error
    try:
        pages.lock_against_writers(descriptor, path)
        yield
    finally:
        os.close(descriptor)


__all__ = [
    "NotRedb",
    "PageDamage",
    "RedbChanged",
    "RedbDamaged",
    "RedbError",
    "RedbFile",
    "RedbInUse",
    "RedbSlotsDamaged",
    "RedbTableUnknown",
    "RedbTooNew",
    "RedbTooOld",
    "RedbTooShort",
    "Table",
    "read_redb",
]
