"""Reads redb files of versions 2 and 3: the tables, their rows, and what of them is damaged.

The rules are in ``docs/formats/redb.md``. Nothing is written, no page is taken for right whose checksum is wrong, and
no more is held than one page of each level of a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self, TypeVar

from regraft.formats.redb import slots
from regraft.formats.redb.damage import PageDamage
from regraft.formats.redb.errors import (
    RedbDamaged,
    RedbError,
    RedbSlotsDamaged,
    RedbTableUnknown,
    RedbTooNew,
    RedbTooOld,
)
from regraft.formats.redb.header import (
    HEADER_BYTES,
    NEWEST_VERSION,
    OLDEST_VERSION,
    Header,
    Slot,
    read_header,
)
from regraft.formats.redb.pages import MOST_PAGES, Claims, Pages, StoredFile
from regraft.formats.redb.rows import Rows, definitions, is_right
from regraft.formats.redb.tables import Table
from regraft.language import tr
from regraft.records import replace
from regraft.text import shown

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
        choice = slots.choose(header, self._file.size, self._report)
        if not choice.slots:
            self._refuse_version(max(versions) if len(versions) == 1 else OLDEST_VERSION)
            raise RedbSlotsDamaged(path=self._file.path)
        self._refuse_version(choice.slots[0].version)
        slot = slots.settle(choice, lambda slot: is_right(self._pages, slot), self._report)
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
            known = ", ".join(map(shown, self._definitions)) or tr("none")
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
