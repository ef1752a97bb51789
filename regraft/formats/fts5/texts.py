"""Texts on their way to another process, in a file with the number of each one's row."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from regraft.ledger import durable

#: Before each text: its row, and its length in bytes.
_HEAD = struct.Struct("<qQ")


class TextFile:
    """A new file of texts that is being written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self.characters = 0
        self._file: BinaryIO = durable.open_binary(path, "xb")

    def add(self, rowid: int, text: str) -> None:
        """Write a text behind the others."""
        raw = text.encode()
        self._file.write(_HEAD.pack(rowid, len(raw)) + raw)
        self.rows += 1
        self.characters += len(text)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every row and text of a file."""
    with path.open("rb") as file:
        while head := file.read(_HEAD.size):
            rowid, length = _HEAD.unpack(head)
            yield rowid, file.read(length).decode()
