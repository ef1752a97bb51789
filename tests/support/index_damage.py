"""A v2 index whose rows and pages are known, and kinds of damage to its pages, by what somebody would call them."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import apsw
from sqlite_bytes import WORDS, local_bytes, registered, varint

from regraft import identity
from regraft.formats.index import IndexStore

PAGE = 4096
BASE = "7d1f1a30-5a2c-4a55-9d0e-0c6a1de0b9aa"
NOW_MS = 1_795_262_400_000
DIMENSIONS = 1_040
KEYS = {
    "content": "content_hash",
    "material": "material_id",
    "search_unit": "unit_id",
    "search_text": "search_text_id",
    "embedding": "embedding_text_hash",
}
Row = tuple[Any, ...]
Rows = dict[str, dict[str, Row]]


@cache
def vector_of(text: str) -> bytes:
    rng = random.Random(text)
    numbers = [rng.gauss(0, 1) for _ in range(DIMENSIONS)]
    length = sum(one * one for one in numbers) ** 0.5
    return struct.pack(f"<{DIMENSIONS}f", *(one / length for one in numbers))


def rows_of(path: Path) -> Rows:
    """Return all rows of an index, text as bytes, by table and key."""
    found: Rows = {}
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    with closing(apsw.Connection(f"file:{path}?immutable=1", flags=flags)) as db:
        for table, key in KEYS.items():
            names = [str(row[1]) for row in db.execute(f"PRAGMA table_info({table})")]
            exact = "CASE typeof({0}) WHEN 'text' THEN CAST({0} AS BLOB) ELSE {0} END"
            values = ", ".join(exact.format(name) for name in names)
            found[table] = {str(row[0]): row[1:] for row in db.execute(f"SELECT {key}, {values} FROM {table}")}
    return found


def write(path: Path, materials: int = 14) -> None:
    """Write an index as the application does: materials of some units, of which a few were replaced or deleted."""
    rng = random.Random(1)

    def put(store: IndexStore, number: int, seed: int) -> None:
        most = 900 if number == 7 else 90
        bodies = [
            f"{number}.{place}.{seed} " + " ".join(rng.choices(WORDS, k=rng.randrange(5, most)))
            for place in range(rng.randrange(3, 9))
        ]
        cuts, start = [], 0
        for body in bodies:
            end = start + len(body.encode("utf-16-le")) // 2
            cuts.append((start, end))
            start = end + 2
        vectors = {identity.text_hash(body): vector_of(body) for body in bodies}
        path_of = f"notes/第 {number} chapter.md"
        store.rebuild_material(f"item-{number:04}", path_of, "\n\n".join(bodies), cuts, vectors, NOW_MS + number)

    with IndexStore(path, BASE, create=True) as store:
        for number in range(materials):
            put(store, number, 0)
        for number in (2, 5):
            put(store, number, 1)
        store.delete_materials(["item-0003", "item-0009"])


@dataclass(frozen=True)
class IndexFile:
    """An index: its bytes, its rows, and what each of its pages is."""

    raw: bytes
    rows: Rows

    @classmethod
    def made(cls, path: Path) -> IndexFile:
        return cls(path.read_bytes(), rows_of(path))

    def page(self, number: int) -> bytes:
        return self.raw[(number - 1) * PAGE : number * PAGE]

    @property
    def pages(self) -> int:
        return len(self.raw) // PAGE

    @cached_property
    def roots(self) -> dict[str, int]:
        with self._opened() as db:
            rows = db.execute("SELECT name, rootpage FROM sqlite_schema WHERE rootpage").fetchall()
            return {str(name): int(str(root)) for name, root in rows}

    def _opened(self) -> closing[apsw.Connection]:
        db = apsw.Connection(":memory:")
        db.deserialize("main", self.raw)
        return closing(db)

    @cached_property
    def kinds(self) -> dict[int, tuple[str, str]]:
        """Return the name of what a page is of, and "leaf", "inner" or "overflow"; of the others "free"."""
        found: dict[int, tuple[str, str]] = {1: ("sqlite_schema", "leaf")}
        for name, root in {"sqlite_schema": 1, **self.roots}.items():
            for number, kind in self._tree(root):
                found[number] = (name, kind)
        return found | {number: ("", "free") for number in range(1, self.pages + 1) if number not in found}

    def of(self, name: str, kind: str = "leaf") -> list[int]:
        return [number for number, one in self.kinds.items() if one == (name, kind)]

    def intact(self, damaged: bytes) -> dict[str, set[str]]:
        """Return the keys of the rows whose every byte is where it was, by table."""
        return {
            table: {
                key
                for key, places in self.places[table].items()
                if all(damaged[at : at + length] == self.raw[at : at + length] for at, length in places)
            }
            for table in KEYS
        }

    @cached_property
    def places(self) -> dict[str, dict[str, list[tuple[int, int]]]]:
        """Return where the bytes of every row are (offset, length), by table and key."""
        with self._opened() as db:
            found = {}
            for table, key in KEYS.items():
                keys = dict(db.execute(f"SELECT rowid, {key} FROM {table}").fetchall())
                found[table] = {str(keys[rowid]): places for rowid, places in self._cells(table)}
        return found

    def _cells(self, table: str) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        for number in self.of(table):
            data, base = self.page(number), (number - 1) * PAGE
            for at in struct.unpack_from(f">{int.from_bytes(data[3:5])}H", data, 8):
                rowid, end, _ = _cell(data, at)
                yield rowid, [(base + at, end - at), *(((one - 1) * PAGE, PAGE) for one in self._chain(data, at))]

    def _tree(self, number: int) -> Iterator[tuple[int, str]]:
        data, start = self.page(number), 100 if number == 1 else 0
        kind, count = data[start], int.from_bytes(data[start + 3 : start + 5])
        inner = kind in (0x02, 0x05)
        yield number, "inner" if inner else "leaf"
        pointers = struct.unpack_from(f">{count}H", data, start + (12 if inner else 8))
        for at in pointers:
            if inner:
                yield from self._tree(int.from_bytes(data[at : at + 4]))
            if kind == 0x0D:
                yield from ((one, "overflow") for one in self._chain(data, at))
        if inner:
            yield from self._tree(int.from_bytes(data[start + 8 : start + 12]))

    def _chain(self, data: bytes, at: int) -> Iterator[int]:
        number = _cell(data, at)[2]
        while number:
            yield number
            number = int.from_bytes(self.page(number)[:4])


def _cell(data: bytes, at: int) -> tuple[int, int, int]:
    """Return the number of a row, where its cell ends, and the page that it goes on in, 0 where it does not."""
    payload, after = varint(data, at)
    rowid, after = varint(data, after)
    after += local_bytes(payload, PAGE)
    if payload <= PAGE - 35:
        return rowid, after, 0
    return rowid, after + 4, int.from_bytes(data[after : after + 4])


# --- damage ---------------------------------------------------------------------------------------------------------

Damage = Callable[[IndexFile, bytearray, random.Random], None]
DAMAGES: dict[str, Damage] = {}


damage = partial(registered, DAMAGES)


def _zero(raw: bytearray, number: int) -> None:
    raw[(number - 1) * PAGE : number * PAGE] = bytes(PAGE)


def _noise(raw: bytearray, number: int, rng: random.Random) -> None:
    raw[(number - 1) * PAGE : number * PAGE] = rng.randbytes(PAGE)


def _pages(name: str, kind: str) -> None:
    """Register the loss of a page, and of all pages, of one kind, as zeros and as noise."""

    @damage(f"one {kind} page of {name} is zeros")
    def one(file: IndexFile, raw: bytearray, rng: random.Random) -> None:
        _zero(raw, rng.choice(file.of(name, kind)))

    @damage(f"half of the {kind} pages of {name} are noise")
    def half(file: IndexFile, raw: bytearray, rng: random.Random) -> None:
        pages = file.of(name, kind)
        for number in rng.sample(pages, -(-len(pages) // 2)):
            _noise(raw, number, rng)


for _table in KEYS:
    _pages(_table, "leaf")
for _table in ("search_text", "search_unit", "embedding"):
    _pages(_table, "inner")
for _table in ("content", "embedding"):
    _pages(_table, "overflow")
for _index in (
    *(f"sqlite_autoindex_{table}_1" for table in KEYS),
    *("sqlite_autoindex_material_2", "material_content_idx", "search_unit_material_index_idx"),
    *("search_text_target_kind_idx", "search_text_fts_rowid_uniq", "search_text_embedding_hash_idx"),
    *("search_text_fts_data", "search_text_fts_idx", "search_text_fts_docsize", "search_text_fts_config"),
):
    _pages(_index, "leaf")


@damage("the header is zeros")
def _(_file: IndexFile, raw: bytearray, _rng: random.Random) -> None:
    raw[:100] = bytes(100)


@damage("the page of the schema is zeros")
def _(_file: IndexFile, raw: bytearray, _rng: random.Random) -> None:
    _zero(raw, 1)


@damage("the header says another page size")
def _(_file: IndexFile, raw: bytearray, _rng: random.Random) -> None:
    raw[16:18] = (1024).to_bytes(2)


for _percent in (25, 50, 75, 97):

    @damage(f"it is cut off at {_percent} %")
    def _(file: IndexFile, raw: bytearray, _rng: random.Random, percent: int = _percent) -> None:
        del raw[len(file.raw) * percent // 100 :]


@damage("the list of free pages leads to pages in use")
def _(file: IndexFile, raw: bytearray, rng: random.Random) -> None:
    raw[32:36] = rng.choice(file.of("embedding")).to_bytes(4)


@damage("the list of free pages is lost")
def _(_file: IndexFile, raw: bytearray, _rng: random.Random) -> None:
    raw[32:40] = bytes(8)


@damage("two leaves of one table are swapped")
def _(file: IndexFile, raw: bytearray, rng: random.Random) -> None:
    _swap(file, raw, *rng.sample(file.of("search_text"), 2))


@damage("leaves of two tables are swapped")
def _(file: IndexFile, raw: bytearray, rng: random.Random) -> None:
    _swap(file, raw, rng.choice(file.of("search_text")), rng.choice(file.of("search_unit")))


@damage("leaves of two indexes are swapped")
def _(file: IndexFile, raw: bytearray, _rng: random.Random) -> None:
    _swap(file, raw, file.of("sqlite_autoindex_material_1")[0], file.of("sqlite_autoindex_material_2")[0])


@damage("overflow pages of two vectors are swapped")
def _(file: IndexFile, raw: bytearray, rng: random.Random) -> None:
    _swap(file, raw, *rng.sample(file.of("embedding", "overflow"), 2))


@damage("a page was written over another")
def _(file: IndexFile, raw: bytearray, rng: random.Random) -> None:
    first, second = rng.choice(file.of("embedding")), rng.choice(file.of("search_text"))
    raw[(second - 1) * PAGE : second * PAGE] = file.page(first)


@damage("the pointers of a page are noise")
def _(file: IndexFile, raw: bytearray, rng: random.Random) -> None:
    at = (rng.choice(file.of("search_unit")) - 1) * PAGE
    raw[at + 8 : at + 28] = rng.randbytes(20)


@damage("512 bytes in every tenth page are zeros")
def _(file: IndexFile, raw: bytearray, rng: random.Random) -> None:
    for number in range(2, file.pages + 1, 10):
        at = (number - 1) * PAGE + 512 * rng.randrange(8)
        raw[at : at + 512] = bytes(512)


@damage("all but the leaves of texts and units is zeros")
def _(file: IndexFile, raw: bytearray, _rng: random.Random) -> None:
    kept = {*file.of("search_text"), *file.of("search_unit"), *file.of("embedding"), *file.of("embedding", "overflow")}
    for number in range(1, file.pages + 1):
        if number not in kept:
            _zero(raw, number)


def _swap(file: IndexFile, raw: bytearray, first: int, second: int) -> None:
    raw[(first - 1) * PAGE : first * PAGE] = file.page(second)
    raw[(second - 1) * PAGE : second * PAGE] = file.page(first)


def damaged(file: IndexFile, name: str) -> bytes:
    raw = bytearray(file.raw)
    DAMAGES[name](file, raw, random.Random(name))
    assert bytes(raw) != file.raw
    return bytes(raw)
