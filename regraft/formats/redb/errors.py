"""Errors of the redb reader, and the description of damage that it reports (``docs/formats/redb.md``, "Damage")."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from regraft.errors import RegraftError


class RedbError(RegraftError):
    message = "{path}: this redb file cannot be read ({reason}); check that it exists and is readable."


class NotRedb(RedbError, ValueError):
    message = "{path}: not a redb file (wrong magic number); give the path of the database itself."


class RedbTooShort(RedbError, ValueError):
    message = "{path}: the file ends after {size} bytes, within the redb header; use another copy of it."


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
    message = "{path}: another program has this redb file open; quit that program first, or use a copy of the file."


class RedbChanged(RedbError, BlockingIOError):
    message = "{path}: this redb file changed while it was read; quit the program that writes to it, then try again."


class RedbSlotsDamaged(RedbError, ValueError):
    message = "{path}: both commit slots are damaged, so the tables cannot be located; use another copy of the file."


class RedbDamaged(RedbError, ValueError):
    """Damage at a known offset. ``table`` is the table that the page belongs to, or None."""

    message = "{path}: damaged at byte {offset} ({page}): {reason}; use another copy of the file."


class RedbTableUnknown(RedbError, LookupError):
    message = "{path}: no table {table}; existing tables: {known}."


class PageDamage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a redb file that cannot be read."""

    #: The table that the page belongs to; None for the header and the list of tables.
    table: str | None
    #: Description of the page or slot, for messages.
    page: str
    #: Offset of the first byte in the file, and number of bytes.
    offset: int
    length: int
    #: The problem, for messages.
    reason: str


#: Called with each damage; may raise to end the reading.
DamageCallback = Callable[[PageDamage], None]


class MalformedPage(Exception):
    """Bytes violate the file format; the message gives the reason. Not raised outside of this package."""
