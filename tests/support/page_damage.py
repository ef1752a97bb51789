"""v1 vector files with rows that are known, damage to their pages, and a reader of its own that tells what is whole."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import apsw
from sqlite_bytes import WORDS, local_bytes, varint

from regraft.identity import replace

SCHEMA = """CREATE TABLE vectors (
            id              TEXT PRIMARY KEY,
            pageContent     TEXT UNIQUE,
            uniqueLoaderId  TEXT NOT NULL,
            source          TEXT NOT NULL,
            vector          F32_BLOB({dimensions}),
            metadata        TEXT
        )"""
Row = tuple[str, str, str, str, bytes, str | None]


@dataclass(frozen=True)
class Layout:
    """How a vector file is made."""

    rows: int = 150
    page_size: int = 4096
    dimensions: int = 64
    words: int = 40
    encoding: str = "UTF-8"
    reserved: int = 0
    metadata: str = "whole"
    is_unit: bool = True
    deleted: tuple[int, ...] = ()
    auto_vacuum: bool = False
    seed: int = 1
    huge: tuple[int, ...] = ()


@dataclass(frozen=True)
class Made:
    """A file's bytes, its rows by number, and for each row where its bytes are (offset, length)."""

    layout: Layout
    raw: bytes
    rows: dict[int, Row]
    places: dict[int, list[tuple[int, int]]]
    #: Rows that were deleted, by number.
    gone: dict[int, Row] = field(default_factory=dict)
    #: The bytes of another base of the same layout.
    stranger: bytes = b""

    @property
    def page_size(self) -> int:
        return self.layout.page_size

    @property
    def pages(self) -> int:
        return len(self.raw) // self.page_size

    def page(self, number: int) -> bytes:
        return self.raw[(number - 1) * self.page_size : number * self.page_size]

    def intact(self, damaged: bytes) -> set[int]:
        """Return the numbers of the rows whose every byte is where it was."""
        return {
            number
            for number, places in self.places.items()
            if all(damaged[at : at + length] == self.raw[at : at + length] for at, length in places)
        }

    def kinds(self) -> dict[int, str]:
        """Return what each page is: of a table or an index, leaf, inner or overflow page, or free."""
        return dict(_kinds(self))

    def of_kind(self, kind: str) -> list[int]:
        return [number for number, one in self.kinds().items() if one == kind]


def make(path: Path, layout: Layout) -> Made:
    """Return a vector file as v1's writer makes it, and the bytes of another one; nothing stays at ``path``."""
    made = _make(path, layout)
    return replace(made, stranger=_make(path, replace(layout, seed=layout.seed + 1)).raw)


def _make(path: Path, layout: Layout) -> Made:
    rng = random.Random(layout.seed)
    path.unlink(missing_ok=True)
    db = apsw.Connection(str(path))
    db.execute(f"PRAGMA page_size = {layout.page_size}; PRAGMA encoding = '{layout.encoding}'").fetchall()
    if layout.auto_vacuum:
        db.execute("PRAGMA auto_vacuum = FULL").fetchall()
    if layout.reserved:
        db.reserve_bytes(reserve=layout.reserved)
    db.execute(SCHEMA.format(dimensions=layout.dimensions))
    rows: dict[int, Row] = {}
    with db:
        for number in range(1, layout.rows + 1):
            rows[number] = _row(layout, number, rng)
            db.execute(
                "INSERT INTO vectors (id, pageContent, uniqueLoaderId, source, vector, metadata)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                rows[number],
            )
    loaders = {rows[number][2] for number in layout.deleted}
    gone = {number: row for number, row in rows.items() if row[2] in loaders}
    for loader in sorted(loaders):
        db.execute("DELETE FROM vectors WHERE uniqueLoaderId = ?", (loader,))
    db.close()
    raw = path.read_bytes()
    path.unlink()
    kept = {number: row for number, row in rows.items() if number not in gone}
    made = Made(layout, raw, kept, {}, gone)
    made.places.update(_places(made))
    assert made.places.keys() == kept.keys()
    return made


def _row(layout: Layout, number: int, rng: random.Random) -> Row:
    document, place = divmod(number - 1, 7)
    path = f"/home/mei/Documents/chapter {document} of seed {layout.seed}.md"
    loader = "LocalPathLoader_" + hashlib.md5(path.encode()).hexdigest()
    words = 4000 if number in layout.huge else rng.randrange(1, layout.words)
    text = f"{number} " + " ".join(rng.choice(WORDS) for _ in range(words)) + f" {rng.random()}"
    numbers = [rng.gauss(0, 1) for _ in range(layout.dimensions)]
    length = sum(one * one for one in numbers) ** 0.5 if layout.is_unit else 1.0
    vector = struct.pack(f"<{layout.dimensions}f", *(one / length for one in numbers))
    said = {
        "source": path,
        "type": "LocalPathLoader",
        "originalPath": path,
        "uniqueLoaderId": loader,
        "id": f"{loader}_{place}",
    }
    metadata = {"whole": json.dumps(said), "empty": "{}", "none": None}[layout.metadata]
    return f"{loader}_{place}", text, loader, path, vector, metadata


# --- where rows are: a reader of whole files --------------------------------------------------------------------------


def _leaves(made: Made, root: int) -> Iterator[int]:
    data, start = made.page(root), 100 if root == 1 else 0
    if data[start] in (0x0D, 0x0A):
        yield root
        return
    for at in struct.unpack_from(f">{int.from_bytes(data[start + 3 : start + 5])}H", data, start + 12):
        yield from _leaves(made, int.from_bytes(data[at : at + 4]))
    yield from _leaves(made, int.from_bytes(data[start + 8 : start + 12]))


def root_of(made: Made, table: int = 0) -> int:
    """Return the root of the table (0) or of its first or second index."""
    return (3 if made.layout.auto_vacuum else 2) + table


def _places(made: Made) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    usable = made.page_size - made.layout.reserved
    for leaf in _leaves(made, root_of(made)):
        data, base = made.page(leaf), (leaf - 1) * made.page_size
        for at in struct.unpack_from(f">{int.from_bytes(data[3:5])}H", data, 8):
            payload, after = varint(data, at)
            rowid, after = varint(data, after)
            local = local_bytes(payload, usable)
            end = after + local + (4 if local < payload else 0)
            places = [(base + at, end - at)]
            number, left = int.from_bytes(data[end - 4 : end]), payload - local
            while left > 0:
                held = min(left, usable - 4)
                places.append(((number - 1) * made.page_size, 4 + held))
                number, left = int.from_bytes(made.page(number)[:4]), left - held
            yield rowid, places


def _kinds(made: Made) -> Iterator[tuple[int, str]]:
    owned = {at // made.page_size + 1 for places in made.places.values() for at, _ in places[1:]}
    leaves = {at // made.page_size + 1 for places in made.places.values() for at, _ in places[:1]}
    ids, texts = (set(_leaves(made, root_of(made, index))) for index in (1, 2))
    for number in range(1, made.pages + 1):
        first = made.page(number)[0]
        if number == 1:
            yield number, "schema"
        elif number in leaves:
            yield number, "leaf"
        elif number in owned:
            yield number, "overflow"
        elif number in ids | texts:
            yield number, "id leaf" if number in ids else "text leaf"
        elif first in (0x05, 0x02) and _is_linked(made, number):
            yield number, "inner" if first == 0x05 else "index inner"
        else:
            yield number, "other"


def _is_linked(made: Made, number: int) -> bool:
    return number in {root_of(made, index) for index in (0, 1, 2)} or any(
        number.to_bytes(4, "big") in made.page(root_of(made, index)) for index in (0, 1, 2)
    )


Damage = Callable[[Made, bytearray], None]
