"""Kinds of damage to the pages of a v1 vector file, by what somebody would call them."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from functools import partial

from page_damage import Made, root_of
from sqlite_bytes import registered

Damage = Callable[[Made, bytearray, random.Random], None]
DAMAGES: dict[str, Damage] = {}


damage = partial(registered, DAMAGES)


def at(made: Made, page: int) -> int:
    return (page - 1) * made.page_size


def fill(raw: bytearray, start: int, length: int, rng: random.Random | None = None) -> None:
    end = min(len(raw), start + length)
    raw[start:end] = bytes(end - start) if rng is None else rng.randbytes(end - start)


def some(made: Made, kind: str, rng: random.Random, share: int = 4) -> list[int]:
    pages = made.of_kind(kind)
    return sorted(rng.sample(pages, -(-len(pages) // share)))


def put(made: Made, raw: bytearray, page: int, data: bytes) -> None:
    raw[at(made, page) : at(made, page) + len(data)] = data


def each(kind: str, change: Callable[[Made, bytearray, random.Random, int], None], share: int = 4) -> Damage:
    def made(made: Made, raw: bytearray, rng: random.Random) -> None:
        for page in some(made, kind, rng, share):
            change(made, raw, rng, page)

    return made


def zeroed(start: int = 0, length: int | None = None) -> Callable[[Made, bytearray, random.Random, int], None]:
    return lambda made, raw, rng, page: fill(raw, at(made, page) + start, length or made.page_size)


def garbled(start: int = 0, length: int | None = None) -> Callable[[Made, bytearray, random.Random, int], None]:
    return lambda made, raw, rng, page: fill(raw, at(made, page) + start, length or made.page_size, rng)


def cut(share: float) -> Damage:
    def made(made: Made, raw: bytearray, rng: random.Random) -> None:
        del raw[int(len(raw) * share) :]

    return made


# --- the file ---------------------------------------------------------------------------------------------------------

for _share in (0.02, 0.1, 0.33, 0.5, 0.77, 0.999):
    DAMAGES[f"cut off after {_share:.1%}"] = cut(_share)
DAMAGES["magic broken"] = lambda made, raw, rng: fill(raw, 0, 16, rng)
DAMAGES["page size lost"] = lambda made, raw, rng: fill(raw, 16, 2)
DAMAGES["page size says another"] = lambda made, raw, rng: raw.__setitem__(
    slice(16, 18), (1024 if made.page_size != 1024 else 4096).to_bytes(2, "big")
)
DAMAGES["file header zeroed"] = lambda made, raw, rng: fill(raw, 0, 100)
DAMAGES["file header garbage"] = lambda made, raw, rng: fill(raw, 0, 100, rng)
DAMAGES["first page zeroed"] = lambda made, raw, rng: fill(raw, 0, made.page_size)
DAMAGES["first page garbage"] = lambda made, raw, rng: fill(raw, 0, made.page_size, rng)
DAMAGES["schema zeroed"] = lambda made, raw, rng: fill(raw, 100, made.page_size - 100)
DAMAGES["page count too small"] = lambda made, raw, rng: raw.__setitem__(
    slice(28, 32), (made.pages // 2).to_bytes(4, "big")
)
DAMAGES["bytes after the end"] = lambda made, raw, rng: (
    raw.extend(rng.randbytes(made.page_size * 3 + 100)),
    raw.__setitem__(24, raw[24] ^ 1),
)

# --- trees ------------------------------------------------------------------------------------------------------------


def on_root(change: Callable[[Made, bytearray, random.Random, int], None], table: int = 0) -> Damage:
    return lambda made, raw, rng: change(made, raw, rng, root_of(made, table))


DAMAGES["root zeroed"] = on_root(zeroed())
DAMAGES["root garbage"] = on_root(garbled())
DAMAGES["root of another kind"] = on_root(lambda made, raw, rng, page: raw.__setitem__(at(made, page), 0x0A))
DAMAGES["root header zeroed"] = on_root(zeroed(0, 12))
DAMAGES["root pointers garbage"] = on_root(garbled(12, 20))
DAMAGES["root of both indexes zeroed"] = lambda made, raw, rng: (
    on_root(zeroed(), 1)(made, raw, rng),
    on_root(zeroed(), 2)(made, raw, rng),
)
DAMAGES["inner pages garbage"] = each("inner", garbled(), 1)
DAMAGES["inner pages half zeroed"] = each(
    "inner", lambda made, raw, rng, page: fill(raw, at(made, page) + made.page_size // 2, made.page_size // 2), 1
)


@damage("children in a circle")
def _(made: Made, raw: bytearray, rng: random.Random) -> None:
    for page in made.of_kind("inner"):
        data = made.page(page)
        count = int.from_bytes(data[3:5], "big")
        for place in struct.unpack_from(f">{count}H", data, 12)[::3]:
            put(made, raw, page, raw[at(made, page) : at(made, page) + place] + page.to_bytes(4, "big"))
        raw[at(made, page) + 8 : at(made, page) + 12] = root_of(made).to_bytes(4, "big")


@damage("children outside")
def _(made: Made, raw: bytearray, rng: random.Random) -> None:
    for page in made.of_kind("inner"):
        raw[at(made, page) + 8 : at(made, page) + 12] = b"\x7f\xff\xff\xff"


# --- leaves -----------------------------------------------------------------------------------------------------------

DAMAGES["leaves zeroed"] = each("leaf", zeroed())
DAMAGES["leaves garbage"] = each("leaf", garbled())
DAMAGES["leaf headers zeroed"] = each("leaf", zeroed(0, 8), 2)
DAMAGES["leaf headers garbage"] = each("leaf", garbled(0, 8), 2)
DAMAGES["leaves of another kind"] = each(
    "leaf", lambda made, raw, rng, page: raw.__setitem__(at(made, page), rng.choice([2, 5, 10, 0, 99])), 2
)
DAMAGES["leaf pointers zeroed"] = each(
    "leaf",
    lambda made, raw, rng, page: fill(raw, at(made, page) + 8, 2 * int.from_bytes(made.page(page)[3:5], "big")),
    2,
)
DAMAGES["leaf headers and pointers garbage"] = each(
    "leaf",
    lambda made, raw, rng, page: fill(raw, at(made, page), 8 + 2 * int.from_bytes(made.page(page)[3:5], "big"), rng),
    2,
)
DAMAGES["one leaf pointer garbage"] = each("leaf", garbled(8, 2), 2)
DAMAGES["leaf counts too large"] = each(
    "leaf", lambda made, raw, rng, page: raw.__setitem__(slice(at(made, page) + 3, at(made, page) + 5), b"\x0f\xff"), 2
)
DAMAGES["leaf counts too small"] = each(
    "leaf", lambda made, raw, rng, page: raw.__setitem__(slice(at(made, page) + 3, at(made, page) + 5), b"\0\0"), 3
)
for _size in (512, 1024):
    DAMAGES[f"first {_size} bytes of leaves zeroed"] = each("leaf", zeroed(0, _size), 3)
    DAMAGES[f"last {_size} bytes of leaves zeroed"] = each(
        "leaf",
        lambda made, raw, rng, page, size=_size: fill(raw, at(made, page) + max(0, made.page_size - size), size),
        3,
    )

# --- cells ------------------------------------------------------------------------------------------------------------


def in_cells(change: Callable[[bytearray, int, int, random.Random], None], share: int = 5) -> Damage:
    """Change some cells: the change is given where a cell begins, and how long it is."""

    def made(made: Made, raw: bytearray, rng: random.Random) -> None:
        for number in sorted(rng.sample(sorted(made.places), -(-len(made.places) // share))):
            start, length = made.places[number][0]
            change(raw, start, length, rng)

    return made


DAMAGES["payload sizes flipped"] = in_cells(lambda raw, start, length, rng: raw.__setitem__(start, raw[start] ^ 0x11))
DAMAGES["row numbers flipped"] = in_cells(
    lambda raw, start, length, rng: raw.__setitem__(start + 2, raw[start + 2] ^ 0x21)
)
DAMAGES["record headers flipped"] = in_cells(
    lambda raw, start, length, rng: raw.__setitem__(start + 5, raw[start + 5] ^ 2)
)
DAMAGES["overlong sizes"] = in_cells(
    lambda raw, start, length, rng: fill(raw, start, 9) or raw.__setitem__(slice(start, start + 9), b"\xff" * 9)
)
DAMAGES["cells zeroed"] = in_cells(lambda raw, start, length, rng: fill(raw, start, length))
DAMAGES["cells garbage"] = in_cells(fill)
DAMAGES["ids changed"] = in_cells(lambda raw, start, length, rng: raw.__setitem__(start + 30, raw[start + 30] ^ 1))
DAMAGES["first pages of chains out of the file"] = in_cells(
    lambda raw, start, length, rng: raw.__setitem__(slice(start + length - 4, start + length), b"\xff\xff\xff\xff")
)

# --- overflow chains --------------------------------------------------------------------------------------------------

DAMAGES["overflow pages zeroed"] = each("overflow", zeroed())
DAMAGES["overflow pages garbage"] = each("overflow", garbled())
DAMAGES["chains cut"] = each("overflow", zeroed(0, 4))
DAMAGES["contents of overflow pages zeroed"] = each(
    "overflow", lambda made, raw, rng, page: fill(raw, at(made, page) + 4, made.page_size - 4)
)
DAMAGES["parts of overflow pages zeroed"] = each(
    "overflow", lambda made, raw, rng, page: fill(raw, at(made, page) + 512, 512), 2
)
DAMAGES["parts of overflow pages garbage"] = each(
    "overflow",
    lambda made, raw, rng, page: fill(raw, at(made, page) + rng.randrange(4, made.page_size - 200), 100, rng),
    2,
)


def link(target: Callable[[Made, random.Random, int], int]) -> Damage:
    def change(made: Made, raw: bytearray, rng: random.Random, page: int) -> None:
        raw[at(made, page) : at(made, page) + 4] = target(made, rng, page).to_bytes(4, "big")

    return each("overflow", change)


DAMAGES["chains in a circle"] = link(lambda made, rng, page: page)
DAMAGES["chains into other chains"] = link(lambda made, rng, page: rng.choice(made.of_kind("overflow")))
DAMAGES["chains into leaves"] = link(lambda made, rng, page: rng.choice(made.of_kind("leaf")))
DAMAGES["chains go on"] = link(lambda made, rng, page: made.pages)


@damage("first pages of chains swapped")
def _(made: Made, raw: bytearray, rng: random.Random) -> None:
    long = [places for places in made.places.values() if len(places) > 1]
    for one, two in zip(long[::7], long[1::7], strict=False):
        ends = [slice(places[0][0] + places[0][1] - 4, sum(places[0])) for places in (one, two)]
        raw[ends[0]], raw[ends[1]] = raw[ends[1]], raw[ends[0]]


# --- pages in the place of others -------------------------------------------------------------------------------------


def swap(kind: str, other: str | None = None) -> Damage:
    def made(made: Made, raw: bytearray, rng: random.Random) -> None:
        pages = made.of_kind(kind)
        rng.shuffle(pages)
        others = pages[1::6] if other is None else made.of_kind(other)
        for one, two in zip(pages[::6], others, strict=False):
            put(made, raw, one, made.page(two))
            put(made, raw, two, made.page(one))

    return made


def copy(kind: str, source: str) -> Damage:
    def made(made: Made, raw: bytearray, rng: random.Random) -> None:
        for page in some(made, kind, rng, 6):
            put(made, raw, page, made.page(rng.choice(made.of_kind(source))))

    return made


DAMAGES["leaves swapped"] = swap("leaf")
DAMAGES["overflow pages swapped"] = swap("overflow")
DAMAGES["leaves and overflow pages swapped"] = swap("leaf", "overflow")
DAMAGES["keys' leaves swapped"] = swap("id leaf")
DAMAGES["leaves over leaves"] = copy("leaf", "leaf")
DAMAGES["overflow pages over overflow pages"] = copy("overflow", "overflow")
DAMAGES["overflow pages over leaves"] = copy("leaf", "overflow")
DAMAGES["leaves over overflow pages"] = copy("overflow", "leaf")
DAMAGES["leaves over keys' leaves"] = copy("id leaf", "leaf")
DAMAGES["keys' leaves over leaves"] = copy("leaf", "id leaf")
DAMAGES["texts' leaves over keys' leaves"] = copy("id leaf", "text leaf")

# --- indexes ----------------------------------------------------------------------------------------------------------

DAMAGES["ids' leaves zeroed"] = each("id leaf", zeroed(), 2)
DAMAGES["texts' leaves garbage"] = each("text leaf", garbled(), 2)
DAMAGES["all leaves of ids zeroed, and some of the table"] = lambda made, raw, rng: (
    each("id leaf", zeroed(), 1)(made, raw, rng),
    each("leaf", zeroed())(made, raw, rng),
)
DAMAGES["inner pages of all trees zeroed"] = lambda made, raw, rng: (
    each("inner", zeroed(), 1)(made, raw, rng),
    each("index inner", zeroed(), 1)(made, raw, rng),
)

# --- free pages -------------------------------------------------------------------------------------------------------


@damage("free list into the table")
def _(made: Made, raw: bytearray, rng: random.Random) -> None:
    raw[32:40] = made.of_kind("leaf")[0].to_bytes(4, "big") + (3).to_bytes(4, "big")
    fill(raw, at(made, root_of(made)), made.page_size)


@damage("free list in a circle")
def _(made: Made, raw: bytearray, rng: random.Random) -> None:
    page = (made.of_kind("other") or made.of_kind("overflow") or made.of_kind("leaf"))[-1]
    raw[32:40] = page.to_bytes(4, "big") + (9).to_bytes(4, "big")
    put(made, raw, page, page.to_bytes(4, "big") + (0).to_bytes(4, "big"))


@damage("free list lost, and the root")
def _(made: Made, raw: bytearray, rng: random.Random) -> None:
    raw[32:40] = bytes(8)
    fill(raw, at(made, root_of(made)), made.page_size)


# --- disks ------------------------------------------------------------------------------------------------------------


def every(size: int, share: int, content: Callable[[random.Random, int], bytes]) -> Damage:
    def made(made: Made, raw: bytearray, rng: random.Random) -> None:
        for start in range(0, len(raw), size):
            if rng.randrange(share) == 0:
                raw[start : start + size] = content(rng, size)[: len(raw) - start]

    return made


DAMAGES["sectors zeroed"] = every(512, 25, lambda rng, size: bytes(size))
DAMAGES["sectors garbage"] = every(512, 25, lambda rng, size: rng.randbytes(size))
DAMAGES["sectors filled as ddrescue does"] = every(512, 25, lambda rng, size: (b"BAD SECTOR " * size)[:size])
DAMAGES["sectors of ones"] = every(512, 25, lambda rng, size: b"\xff" * size)
DAMAGES["blocks zeroed"] = every(4096, 8, lambda rng, size: bytes(size))
DAMAGES["the middle zeroed"] = lambda made, raw, rng: fill(raw, len(raw) // 3, len(raw) // 3)
DAMAGES["the first half zeroed"] = lambda made, raw, rng: fill(raw, 0, len(raw) // 2)


@damage("single bytes")
def _(made: Made, raw: bytearray, rng: random.Random) -> None:
    for _count in range(len(raw) // 20_000 + 3):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)


def foreign(kind: str, share: int = 6) -> Damage:
    """Put pages of another base in the places of this one's, number by number."""

    def change(made: Made, raw: bytearray, rng: random.Random, page: int) -> None:
        data = made.stranger[at(made, page) : at(made, page) + made.page_size]
        if len(data) == made.page_size:
            put(made, raw, page, data)

    return each(kind, change, share)


DAMAGES["leaves of another base"] = foreign("leaf")
DAMAGES["overflow pages of another base"] = foreign("overflow")
DAMAGES["ids' leaves of another base"] = foreign("id leaf", 3)
DAMAGES["texts' leaves of another base"] = foreign("text leaf", 3)
DAMAGES["the root of another base"] = lambda made, raw, rng: put(
    made, raw, root_of(made), made.stranger[at(made, root_of(made)) :][: made.page_size]
)

# --- what SQLite reads to its end -------------------------------------------------------------------------------------


def in_rows(change: Callable[[Made, bytearray, int, int], None], share: int = 20) -> Damage:
    """Change some rows that lie wholly on their leaf: the change is given the row's number, and where its record is."""

    def made(made: Made, raw: bytearray, rng: random.Random) -> None:
        short = sorted(number for number, places in made.places.items() if len(places) == 1)
        for number in rng.sample(short, -(-len(short) // share)):
            change(made, raw, number, made.places[number][0][0])

    return made


def in_column(column: int, change: Callable[[bytearray, int, int], None]) -> Damage:
    """Change a column of some rows: the change is given where its bytes begin, and how many there are."""

    def one(made: Made, raw: bytearray, number: int, start: int) -> None:
        value = made.rows[number][column]
        assert value is not None
        content = value if isinstance(value, bytes) else value.encode()
        # Metadata repeat the id and the source: the last of the columns is the last of the row.
        end = sum(made.places[number][0])
        found = made.raw.rfind(content, start, end) if column == 5 else made.raw.find(content, start, end)
        change(raw, found, len(content))

    return in_rows(one)


def exchange(raw: bytearray, one: slice, two: slice) -> None:
    raw[one], raw[two] = raw[two], raw[one]


DAMAGES["letters of texts changed"] = in_column(1, lambda raw, start, length: raw.__setitem__(start, raw[start] ^ 1))
DAMAGES["numbers of vectors zeroed"] = in_column(4, lambda raw, start, length: fill(raw, start + 8, 32))
DAMAGES["numbers of vectors are text"] = in_column(
    4, lambda raw, start, length: raw.__setitem__(slice(start, start + 32), b"words that are written elsewhere"[:32])
)
DAMAGES["metadata of other rows"] = in_column(
    5, lambda raw, start, length: raw.__setitem__(start + length - 3, raw[start + length - 3] ^ 8)
)
DAMAGES["ids and loaders apart"] = in_column(2, lambda raw, start, length: raw.__setitem__(start + 20, ord("f")))


@damage("contents of overflow pages swapped")
def _(made: Made, raw: bytearray, rng: random.Random) -> None:
    long = [places[1] for places in made.places.values() if len(places) > 1]
    for (one, length), (two, other) in zip(long[::2], long[1::2], strict=False):
        held = min(length, other)
        exchange(raw, slice(one + 4, one + held), slice(two + 4, two + held))


def schema(old: bytes, new: bytes) -> Damage:
    """Write over the schema, everywhere but in the names of the indexes, which have the table's in them."""

    def made(made: Made, raw: bytearray, rng: random.Random) -> None:
        page = bytes(raw[: made.page_size]).replace(b"autoindex_vectors", b"autoindex_VECTORS")
        raw[: made.page_size] = page.replace(old, new).replace(b"autoindex_VECTORS", b"autoindex_vectors")

    return made


def schema_root(page: Callable[[Made], int]) -> Damage:
    """Let the schema say another root for the table; it has one byte for it."""

    def made(made: Made, raw: bytearray, rng: random.Random) -> None:
        place = made.raw.index(b"tablevectorsvectors") + len(b"tablevectorsvectors")
        assert raw[place] == root_of(made)
        raw[place] = page(made)

    return made


DAMAGES["root at a leaf"] = schema_root(lambda made: made.of_kind("leaf")[2])
DAMAGES["root at the ids"] = schema_root(lambda made: root_of(made, 1))
DAMAGES["table renamed"] = schema(b"vectors", b"vektors")
DAMAGES["columns renamed"] = schema(b"pageContent", b"pageKontent")
DAMAGES["schema without tables"] = lambda made, raw, rng: fill(raw, 103, 2)
for _encoding in (2, 3):
    DAMAGES[f"encoding said {_encoding}"] = lambda made, raw, rng, encoding=_encoding: raw.__setitem__(59, encoding)
