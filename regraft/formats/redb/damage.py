"""What is said of a redb file that is damaged (``docs/formats/redb.md``, "Damage")."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


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
