"""Errors of reading redb files; see :mod:`regraft.errors`. Every one is a :class:`RedbError`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from regraft.errors import RegraftError


class RedbError(RegraftError):
    message = "{path}: this redb file cannot be read ({reason}); check that it is there and that you may read it."


class NotRedb(RedbError, ValueError):
    message = "{path}: not a redb file, it does not begin as one does; give the database itself."


class RedbTooShort(RedbError, ValueError):
    message = "{path}: ends after {size} bytes, within the header of a redb file; take another copy of it."


class RedbTooOld(RedbError, ValueError):
    message = (
        "{path}: written in version {version} of redb's file format, which is not read; let the program that wrote "
        "it bring it to version 2 or 3."
    )


class RedbTooNew(RedbError, ValueError):
    message = (
        "{path}: written in version {version} of redb's file format, and this regraft knows versions 2 and 3; use a "
        "version of regraft that knows it."
    )


class RedbInUse(RedbError, BlockingIOError):
    message = "{path}: another program has this redb file open; quit that first, or give a copy of the file."


class RedbChanged(RedbError, BlockingIOError):
    message = "{path}: this redb file changed while it was read; quit the program that writes to it, then try again."


class RedbSlotsDamaged(RedbError, ValueError):
    message = (
        "{path}: neither of its two commit slots is whole, so that nothing says where its tables are; take another "
        "copy of it."
    )


class RedbDamaged(RedbError, ValueError):
    """Damage at a known offset; ``table`` is the name of the table that the page belongs to, or None."""

    message = "{path}: damaged at byte {offset} ({page}): {reason}; take another copy of it."


class RedbTableUnknown(RedbError, LookupError):
    message = "{path}: no table {table}; there are: {known}."


# What is said of a redb file that is damaged (``docs/formats/redb.md``, "Damage").


class PageDamage(msgspec.Struct, frozen=True, kw_only=True):
    """A place of a redb file that cannot be read as what it should be."""

    #: The table that it belongs to; None for the header and the list of tables.
    table: str | None
    #: Which page or slot it is, for a person.
    page: str
    #: Its first byte in the file, and how many bytes it has.
    offset: int
    length: int
    #: What is wrong, for a person.
    reason: str


#: Takes a damaged place; may raise, which ends the reading.
Report = Callable[[PageDamage], None]


class Malformed(Exception):
    """Bytes that are not what their format says; stays within this package. The text says what is wrong."""
