"""What is said of Chromium storage that cannot be read, and how bytes are read with care.

Chromium's storage is written by a program that may have been killed, on a disk that may have failed: every reader of
this package takes its bytes from :class:`Bytes`, which never reads past an end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from regraft.language import tr

T = TypeVar("T")


class StorageDamaged(Exception):
    """Chromium storage that cannot be read; the text says what and where, for a person."""


class StorageChanged(StorageDamaged):
    """A file vanished or changed while it was read: a running application is writing."""


class Malformed(Exception):
    """Bytes that are not what their format says. Stays within this package: it becomes one of the others, or a count.

    The text says what is wrong, not in which file.
    """


@dataclass(frozen=True)
class Found(Generic[T]):
    """What was read, and how many damaged places were passed over on the way."""

    value: T
    #: Places in logs, a MANIFEST, older tables and values of others that could not be read. What stood in a log or
    #: was deleted since may have been newer than what was found.
    passed_over: int


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of 7 bits to the byte, lowest first; return it and where it ends.

    Raises:
        Malformed: it does not end, or needs more than 64 bits.
    """
    value = shift = 0
    while shift < 70:
        if at >= len(data):
            raise Malformed(tr("a number is cut off"))
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, at
        shift += 7
    raise Malformed(tr("a number of more than 64 bits"))


class Bytes:
    """Bytes with a place in them from which the next thing is read."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    @property
    def left(self) -> int:
        """How many bytes are left."""
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes.

        Raises:
            Malformed: there are fewer.
        """
        start, end = self.at, self.at + count
        if end > len(self.data):
            raise Malformed(tr("{count:,} bytes are announced and {left:,} are there", count=count, left=self.left))
        self.at = end
        return self.data[start:end]

    def skip(self, count: int) -> None:
        """Pass over the next ``count`` bytes.

        Raises:
            Malformed: there are fewer.
        """
        if count > self.left:
            raise Malformed(tr("{count:,} bytes are announced and {left:,} are there", count=count, left=self.left))
        self.at += count

    def byte(self) -> int:
        """Return the next byte.

        Raises:
            Malformed: there is none.
        """
        if self.at >= len(self.data):
            raise Malformed(tr("a byte is missing"))
        self.at += 1
        return self.data[self.at - 1]

    def number(self) -> int:
        """Return the next number (:func:`varint`).

        Raises:
            Malformed: there is none.
        """
        value, self.at = varint(self.data, self.at)
        return value

    def sized(self) -> bytes:
        """Return the next bytes, which have their count before them.

        Raises:
            Malformed: there are fewer.
        """
        return self.take(self.number())
