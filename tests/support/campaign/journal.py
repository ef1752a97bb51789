"""What a run asked of the disk, in order, and what of it a power cut may leave.

The model: a flushed file has what was written to it before; of what was written since, any part may have arrived, in
pieces of 512 bytes. A name (made, moved, removed) has arrived when the folder that it is in was flushed; before that
it may have or not. Two models of names are tried: as on a journaling file system, where they arrive in the order in
which they were changed, and one where they arrive in any order, but for changes of one name. A rename is one step, and
has arrived when the folder that it leads to was flushed.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from campaign.disk import Operation

SECTOR = 512


@dataclass(eq=False)
class File:
    """A file: its bytes before the run, and what was done to it, each with its place in the journal."""

    before: bytes = b""
    #: (place, offset, bytes written), or (place, new size, None).
    changes: list[tuple[int, int, bytes | None]] = field(default_factory=list)
    flushes: list[int] = field(default_factory=list)
    #: (place, time of the last change in ns): before the run, and at each flush.
    times: list[tuple[int, int]] = field(default_factory=list)
    #: The bytes as they are when all has arrived, up to some change.
    _known: dict[int, bytes] = field(default_factory=dict)

    def at(self, place: int) -> tuple[int, int, int]:
        """Return how many changes a cut at ``place`` finds arrived for sure, and how many asked for; and flushes."""
        flushes = bisect_left(self.flushes, place)
        asked = bisect_left(self.changes, place, key=lambda change: change[0])
        sure = 0 if not flushes else bisect_left(self.changes, self.flushes[flushes - 1], key=lambda change: change[0])
        return sure, asked, flushes

    def time_at(self, place: int) -> int | None:
        """Return the time of change (ns) that arrived for sure when the power is cut at ``place``."""
        return next((time for at, time in reversed(self.times) if at < place), None)

    def content(self, count: int) -> bytes:
        """Return the bytes after so many changes."""
        if count not in self._known:
            start = max((known for known in self._known if known < count), default=0)
            data = bytearray(self._known[start] if start else self.before)
            for _, offset, written in self.changes[start:count]:
                _apply(data, offset, written)
            self._known[count] = bytes(data)
        return self._known[count]

    def torn(self, sure: int, asked: int, chance: Random) -> bytes:
        """Return the bytes of a file of whose last changes only parts have arrived."""
        data = bytearray(self.content(sure))
        way = chance.randrange(4)
        for _, offset, written in self.changes[sure:asked]:
            if written is None or way == 0:
                if chance.random() < 0.5:
                    _apply(data, offset, written)
            elif way == 1:
                _apply_parts(data, offset, written, chance)
            elif chance.random() < (0.9 if way == 2 else 0.1):  # almost all of it, or almost nothing
                _apply_parts(data, offset, written, chance) if chance.random() < 0.2 else _apply(data, offset, written)
        return bytes(data)


def _apply(data: bytearray, offset: int, written: bytes | None) -> None:
    if written is None:
        del data[offset:]
        data.extend(bytes(offset - len(data)))
        return
    if len(data) < offset:
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(written)] = written


def _apply_parts(data: bytearray, offset: int, written: bytes, chance: Random) -> None:
    begin = 0
    while begin < len(written):
        # A sector ends where the disk's does.
        end = min(len(written), begin + SECTOR - (offset + begin) % SECTOR)
        if chance.getrandbits(1):
            _apply(data, offset + begin, written[begin:end])
        begin = end


@dataclass(eq=False)
class Folder:
    """A folder: what was in it before the run, and when it was flushed."""

    before: dict[str, File | Folder] = field(default_factory=dict)
    flushes: list[int] = field(default_factory=list)
    entries: dict[str, File | Folder] = field(default_factory=dict)


@dataclass(frozen=True)
class Naming:
    """A change of names: ``node`` leaves ``old`` and enters ``new``, each a folder and a name in it."""

    place: int
    node: File | Folder
    old: tuple[Folder, str] | None
    new: tuple[Folder, str] | None

    def names(self) -> Iterator[tuple[Folder, str]]:
        """Return the names that are changed."""
        yield from (name for name in (self.old, self.new) if name is not None)

    def is_sure(self, place: int) -> bool:
        """Tell whether it has arrived for sure when the power is cut at ``place``."""
        folder = (self.new or self.old or (Folder(), ""))[0]
        flush = bisect_left(folder.flushes, self.place)
        return flush < len(folder.flushes) and folder.flushes[flush] < place


Image = dict[str, "File | Folder"]


class Journal:
    """Watches a run, and holds what it asked of the disk."""

    def __init__(self, root: Path, *, drop_flushes: bool = False) -> None:
        self._root = str(root)
        self._drop = drop_flushes
        self.length = 0
        self.namings: list[Naming] = []
        self.top = _read(root)

    # --- watching --------------------------------------------------------------------------------------------------

    def before(self, operation: Operation) -> None:
        """Nothing has happened yet."""

    def after(self, operation: Operation) -> None:
        """Note an operation."""
        act = getattr(self, f"_{operation.kind.replace('-', '_')}", None)
        if act is not None:
            self.length += 1
            act(operation)

    def _find(self, path: str) -> tuple[Folder, str] | None:
        """Return the folder that a path is in, and its name there; None: outside of what is watched."""
        if not path.startswith(f"{self._root}/"):
            return None
        *above, name = path[len(self._root) + 1 :].split("/")
        folder = self.top
        for part in above:
            found = folder.entries.get(part)
            if not isinstance(found, Folder):
                return None
            folder = found
        return folder, name

    def _node(self, path: str) -> File | Folder | None:
        found = self._find(path)
        return self.top if path == self._root else None if found is None else found[0].entries.get(found[1])

    def _file(self, path: str) -> File | None:
        found = self._node(path)
        return found if isinstance(found, File) else None

    def _name(self, node: File | Folder, old: tuple[Folder, str] | None, new: tuple[Folder, str] | None) -> None:
        if old is not None:
            old[0].entries.pop(old[1], None)
        if new is not None:
            new[0].entries[new[1]] = node
        if old is not None or new is not None:
            self.namings.append(Naming(self.length, node, old, new))

    def _make(self, operation: Operation) -> None:
        self._name(File(), None, self._find(operation.path))

    def _mkdir(self, operation: Operation) -> None:
        self._name(Folder(), None, self._find(operation.path))

    def _link(self, operation: Operation) -> None:
        node = self._node(operation.path) or _foreign(operation.other)
        self._name(node, None, self._find(operation.other))

    def _rename(self, operation: Operation) -> None:
        node = self._node(operation.path)
        if node is None:
            node = _foreign(operation.other)
        else:
            self._note_unseen(node, operation.other)
        self._name(node, self._find(operation.path), self._find(operation.other))

    def _unlink(self, operation: Operation) -> None:
        node = self._node(operation.path)
        if node is not None:
            self._name(node, self._find(operation.path), None)

    _rmdir = _unlink

    def _write(self, operation: Operation) -> None:
        file = self._file(operation.path)
        if file is None:
            return
        if operation.data is None:
            self._note_unseen(file, operation.path)
        else:
            file.changes.append((self.length, operation.offset, operation.data))

    def _truncate(self, operation: Operation) -> None:
        file = self._file(operation.path)
        if file is not None:
            file.changes.append((self.length, operation.offset, None))

    def _sync(self, operation: Operation) -> None:
        if self._node(operation.path) is None:
            # Made by a library that writes by itself.
            self._name(File(), None, self._find(operation.path))
        file = self._file(operation.path)
        if file is None:
            return
        if not operation.in_sqlite:
            # Where SQLite has a file open, reading it by another descriptor would end its locks.
            self._note_unseen(file, operation.path)
        if not self._drop:
            self.length += 1
            file.flushes.append(self.length)
            file.times.append((self.length, Path(operation.path).stat().st_mtime_ns))

    def _sync_folder(self, operation: Operation) -> None:
        node = self._node(operation.path)
        if isinstance(node, Folder) and not self._drop:
            node.flushes.append(self.length)

    def _note_unseen(self, node: File | Folder, path: str) -> None:
        """Note what was written past us: the file itself tells."""
        if not isinstance(node, File) or node.flushes[-1:] == [self.length]:
            return
        content = Path(path).read_bytes()
        if node.content(len(node.changes)) != content:
            node._known.clear()
            node.changes += [(self.length, 0, None), (self.length, 0, content)]

    # --- cutting ---------------------------------------------------------------------------------------------------

    def names_at(self, place: int, chance: Random | None) -> Image:
        """Return what a cut at ``place`` leaves of names: path → file or folder; without chance, all have arrived."""
        asked = [naming for naming in self.namings if naming.place < place]
        arrived = asked if chance is None else _arrived(asked, place, chance)
        tree: dict[Folder, dict[str, File | Folder]] = {}

        def entries(folder: Folder) -> dict[str, File | Folder]:
            return tree.setdefault(folder, dict(folder.before))

        for naming in arrived:
            if naming.old is not None and entries(naming.old[0]).get(naming.old[1]) is naming.node:
                del entries(naming.old[0])[naming.old[1]]
            if naming.new is not None:
                entries(naming.new[0])[naming.new[1]] = naming.node
        return dict(_walk(self.top, "", entries))


def _arrived(asked: list[Naming], place: int, chance: Random) -> list[Naming]:
    sure = [naming.is_sure(place) for naming in asked]
    open_ = [number for number, is_sure in enumerate(sure) if not is_sure]
    if not open_:
        return asked
    if chance.getrandbits(1):
        # In their order: what is sure took all before it along.
        least = max((number for number, is_sure in enumerate(sure) if is_sure), default=-1) + 1
        return asked[: chance.randint(least, len(asked))]
    taken = list(sure)
    for number in open_:
        taken[number] = chance.random() < 0.5
    return list(_closed(asked, taken))


def _closed(asked: list[Naming], taken: list[bool]) -> Iterator[Naming]:
    """Return what was taken, and what was done before to the same names."""
    needed: set[tuple[Folder, str]] = set()
    for number in range(len(asked) - 1, -1, -1):
        names = list(asked[number].names())
        if taken[number] or any(name in needed for name in names):
            taken[number] = True
            needed.update(names)
    return (naming for naming, is_taken in zip(asked, taken, strict=True) if is_taken)


def _walk(folder: Folder, above: str, entries: object) -> Iterator[tuple[str, File | Folder]]:
    for name, node in sorted(entries(folder).items()):  # type: ignore[operator]
        yield above + name, node
        if isinstance(node, Folder):
            yield from _walk(node, f"{above}{name}/", entries)


def _read(path: Path) -> Folder:
    """Return a folder as it is on the disk."""
    folder = Folder()
    for entry in os.scandir(path):
        at = Path(entry.path)
        folder.before[entry.name] = _read(at) if entry.is_dir() else _file(at)
    folder.entries = dict(folder.before)
    return folder


def _file(path: Path) -> File:
    return File(path.read_bytes(), times=[(0, path.stat().st_mtime_ns)])


def _foreign(path: str) -> File | Folder:
    """Return a file or folder that comes from outside of what is watched, as it is: nothing of it has arrived."""
    at = Path(path)
    if at.is_dir():
        return _read(at)
    return File(b"", [(0, 0, at.read_bytes())], times=[(0, at.stat().st_mtime_ns)])
