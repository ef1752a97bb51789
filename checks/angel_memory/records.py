"""How AngelMemory's records differ from the files below ``raw/``: what ``check`` finds, and ``repair`` mends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path

import msgspec

from regraft.formats.angel_memory import notes as angel_memory_notes
from regraft.formats.angel_memory.database import IndexedFile, Record
from regraft.formats.angel_memory.notes import Note, NoteFile


class State(StrEnum):
    """What a file is to its records."""

    SAME = "same"
    CHANGED = "changed"
    #: It has no record.
    NEW = "new"
    #: It is not there, or none that the system reads.
    GONE = "gone"
    #: The path leads out of ``raw/``.
    OUTSIDE = "outside"
    UNREADABLE = "unreadable"


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """A path below ``raw/``, with all that is known of it."""

    path: str
    state: State
    #: As it is on disk, and as the index of files has it; None where it is not there.
    file: NoteFile | None
    indexed: IndexedFile | None
    #: As they are, and as the file gives them now.
    records: tuple[Record, ...] = ()
    notes: tuple[Note, ...] = ()
    #: Why it cannot be read.
    problem: str = ""

    @property
    def is_seen(self) -> bool:
        """Tell whether the next scan of the system reads the file again: it goes by the time of change alone."""
        return self.file is not None and (self.indexed is None or self.file.seconds > self.indexed.seconds)


def compare(
    root: Path, records: Iterable[Record], indexed: Iterable[IndexedFile], go_on: Callable[[], None] = lambda: None
) -> Iterator[Compared]:
    """Read every file below ``raw/`` and compare what it gives with the records, in the order of paths.

    Args:
        root: the folder that is called ``raw``.
        records: all records.
        indexed: the index of files.
        go_on: called before each file is read.

    Raises:
        OSError: a folder cannot be read.
    """
    of_path: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        of_path[record.path].append(record)
    known = {one.path: one for one in indexed}
    there = {one.path: one for one in angel_memory_notes.files(root)}
    for path in sorted(of_path.keys() | there.keys()):
        go_on()
        yield _compared(root, path, there.get(path), known.get(path), tuple(of_path.get(path, ())))


def _compared(
    root: Path, path: str, file: NoteFile | None, indexed: IndexedFile | None, records: tuple[Record, ...]
) -> Compared:
    if file is None:
        state = State.OUTSIDE if angel_memory_notes.inside(root, path) is None else State.GONE
        return Compared(path=path, state=state, file=None, indexed=indexed, records=records)
    try:
        notes = tuple(angel_memory_notes.notes_of(root / path, path))
    except OSError as error:
        return Compared(
            path=path,
            state=State.UNREADABLE,
            file=file,
            indexed=indexed,
            records=records,
            problem=error.strerror or str(error),
        )
    state = State.NEW if not records else State.SAME if is_same(records, notes) else State.CHANGED
    return Compared(path=path, state=state, file=file, indexed=indexed, records=records, notes=notes)


def is_same(records: Iterable[Record], notes: Iterable[Note]) -> bool:
    """Tell whether the records of a file are those that it gives."""
    stored = {one.source_id: (one.headings, one.total_lines, frozenset(one.names)) for one in records}
    given = {one.source_id: (one.headings, one.total_lines, frozenset(one.tags)) for one in notes}
    return stored == given
