"""One shard: texts in a file of their own, and the index over them, made in a process of its own."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import BinaryIO

import apsw

from regraft.ledger import durable

#: The table of the index in a shard's file.
TABLE = "shard"
#: Before each text: its row, and its length in bytes.
_HEAD = struct.Struct("<qQ")
_NICE = 10


@dataclass(frozen=True, kw_only=True)
class ShardJob:
    """What a process is to make: the index over the texts in a file, as a SQLite file.

    ``arguments`` are the columns and the tokenizer, as FTS5 takes them; ``settings`` are its own, by name.
    """

    texts: Path
    into: Path
    arguments: str
    settings: Mapping[str, int]


class TextFile:
    """A new file of texts that is being written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self.bytes = 0
        self._file: BinaryIO = durable.open_binary(path, "xb")

    def add(self, rowid: int, text: str) -> None:
        """Write a text behind the others."""
        raw = text.encode()
        self._file.write(_HEAD.pack(rowid, len(raw)))
        self._file.write(raw)
        self.rows += 1
        self.bytes += len(raw)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every row and text of a file."""
    with path.open("rb") as file:
        while head := file.read(_HEAD.size):
            rowid, length = _HEAD.unpack(head)
            yield rowid, file.read(length).decode()


def serve(parent: Connection) -> None:
    """Make one shard after the other, and tell the number of its rows, or what it failed with."""
    from regraft.formats.fts5.making import make  # noqa: PLC0415 - NumPy is loaded where it is used

    if hasattr(os, "nice"):
        # Who deals out the texts goes first: the others wait for them, and in the end for what it makes of the shards.
        os.nice(_NICE)
    while True:
        job: ShardJob = parent.recv()
        try:
            parent.send(make(job))
        except (apsw.Error, OSError) as error:
            parent.send(str(error))
