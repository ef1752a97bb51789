"""What is switched off to show that a campaign would notice: each of these must make it find bad cases."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import apsw

import migrators.pipeline.base_writer
import regraft.embedders
import regraft.formats.vector_table
import repair.changes.store
import repair.changes.undo
from regraft import text
from regraft.disk import sqlite, writable

#: Never found in any text.
_NOTHING = re.compile("(?!)")


def of(name: str | None) -> AbstractContextManager[object]:
    """Return what switches the guard of this name off while it is entered; nothing for None."""
    return nullcontext() if name is None else _SWITCHES[name]()


@contextmanager
def _text() -> Iterator[None]:
    """Show text of the user's as it is."""
    with mock.patch.object(text, "_hidden_characters", lambda _: _NOTHING):
        yield


@contextmanager
def _source() -> Iterator[None]:
    """Write to what is only to be read."""
    right = sqlite._traceless_source

    @contextmanager
    def unwritten(path: Path, work: Path | None) -> Iterator[tuple[str, int]]:
        with suppress(apsw.Error), closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as db:
            db.execute("PRAGMA user_version = 7")
        with right(path, work) as opened:
            yield opened

    with mock.patch.object(sqlite, "_traceless_source", unwritten):
        yield


@contextmanager
def _books() -> Iterator[None]:
    """Drop one row of every vector file on the way, and do not count what arrives."""
    table = regraft.formats.vector_table.VectorTable
    right: Callable[..., Iterator[Any]] = table.rows

    def rows(self: Any, *arguments: Any, **more: Any) -> Iterator[Any]:
        found = right(self, *arguments, **more)
        next(found, None)
        yield from found

    with (
        mock.patch.object(table, "rows", rows),
        mock.patch.object(migrators.pipeline.base_writer._BaseWriter, "_require_planned_rows", lambda *_: None),
    ):
        yield


@contextmanager
def _links() -> Iterator[None]:
    """Follow links in a store for writing, and let a path of it lead anywhere."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(writable, "SUPPORTS_DIR_FD", False))
        stack.enter_context(mock.patch.object(writable, "refuse_link", lambda *_: None))
        stack.enter_context(mock.patch.object(writable, "require_writable", lambda path: path.absolute()))
        stack.enter_context(mock.patch.object(repair.changes.store, "_demand_no_links", lambda _: None))
        stack.enter_context(mock.patch.object(apsw, "SQLITE_OPEN_NOFOLLOW", 0))
        yield


@contextmanager
def _undo() -> Iterator[None]:
    """Say that changes were taken back, and take none back."""
    with ExitStack() as stack:
        for name in ("_undo_rows", "_undo_file"):
            stack.enter_context(mock.patch.object(repair.changes.undo, name, lambda *_: None))
        yield


@contextmanager
def _vectors() -> Iterator[None]:
    """Change one bit of every vector that an embedder gives."""
    right = regraft.embedders._decode_vector

    def changed(found: Any) -> bytes | None:
        vector = right(found)
        return None if vector is None else vector[:-4] + bytes([vector[-4] ^ 1]) + vector[-3:]

    with mock.patch.object(regraft.embedders, "_decode_vector", changed):
        yield


_SWITCHES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "text": _text,
    "source": _source,
    "books": _books,
    "links": _links,
    "undo": _undo,
    "vectors": _vectors,
}
