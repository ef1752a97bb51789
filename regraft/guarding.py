"""What a SQLite file's own definitions may do: nothing (``docs/formats/README.md``, "Other people's files").

Every connection that :mod:`regraft.sqlite` opens is guarded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from regraft import long_paths

#: The one kind of virtual table that files of these layouts have; one of another kind cannot be read, nor called.
_MODULES = ("fts5",)
#: What a file's own definitions may do: their views are not read, their triggers do not run, functions that they call
#: have no effects, and neither the schema nor the tables of a full-text index are written but through SQL of their own.
_SETTINGS = (
    (apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0),
    (apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0),
    (apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0),
    (apsw.SQLITE_DBCONFIG_DEFENSIVE, 1),
)
#: No text or BLOB is longer than SQLite allows, nor much longer than all of its file: what a definition makes up of
#: nothing would be.
_LONGEST = 1_000_000_000
_LEAST_LENGTH = 64 << 20
#: A text can grow from one encoding to another, and some columns are read as hexadecimal or JSON.
_GROWTH = 4
#: How much a file system may have packed a file.
_PACKED = 16


def guard(connection: apsw.Connection) -> None:
    """Let nothing run that a file says about itself (``docs/formats/README.md``, "Other people's files").

    Triggers and views in the temporary schema, which is our own, are as before.
    """
    for option, value in _SETTINGS:
        connection.config(option, value)
    drop_modules(connection)


def drop_modules(connection: apsw.Connection) -> None:
    """Let a connection read and write no kind of virtual table but that of the layouts."""
    connection.drop_modules(_MODULES)


def limit_length(connection: apsw.Connection, files: Iterable[Path]) -> None:
    """Let no value be longer than what the database's files on the disk can hold."""
    with suppress(OSError):  # opening them says why
        size = sum(map(_stored_bytes, files))
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, min(_LONGEST, max(_LEAST_LENGTH, _GROWTH * size)))


def _stored_bytes(path: Path) -> int:
    """Return the size of a file; of one that is mostly a hole about what it takes on the disk."""
    status = long_paths.stat(path)
    blocks = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else min(status.st_size, _PACKED * 512 * blocks)


def unguard(connection: apsw.Connection) -> None:
    """Let a file's own views and triggers run again: in one that was made here, and in no other."""
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 1)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)


@contextmanager
def below_the_surface(connection: apsw.Connection) -> Iterator[None]:
    """Let the tables that make up a full-text index, and the schema, be written as tables."""
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    try:
        yield
    finally:
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
