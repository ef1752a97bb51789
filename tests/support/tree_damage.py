"""Damage to single fields of the b-tree of a v1 vector file, and a reader of all leaf pages that tells what is there.

Nothing here uses SQLite or regraft to read a file: what a migration gives is compared with the bytes themselves.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import apsw
from page_damage import Made
from sqlite_bytes import local_bytes, registered, varint

TABLE_LEAF, TABLE_INNER, INDEX_LEAF, INDEX_INNER = 0x0D, 0x05, 0x0A, 0x02


class Unreadable(Exception):
    """Bytes are no cell, or no record."""


# --- an independent reader --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LeafRow:
    """A row as it lies on a leaf page: its page, number, text and vector."""

    page: int
    number: int
    text: bytes
    vector: bytes


def page_of(made: Made, raw: bytes, number: int) -> bytes:
    return bytes(raw[(number - 1) * made.page_size : number * made.page_size])


def pointers(data: bytes) -> list[int]:
    """Return where the cells of a b-tree page begin, as far as its header tells."""
    start = 8 if data[0] in (TABLE_LEAF, INDEX_LEAF) else 12
    count = min(int.from_bytes(data[3:5], "big"), (len(data) - start) // 2)
    return list(struct.unpack_from(f">{count}H", data, start))


def leaf_rows(made: Made, raw: bytes) -> list[LeafRow]:
    """Return every row on every page that says it is a leaf of a table, whether or not a tree leads there."""
    found = []
    for number in range(2, len(raw) // made.page_size + 1):
        data = page_of(made, raw, number)
        if data[0] != TABLE_LEAF:
            continue
        for at in dict.fromkeys(pointers(data)):
            try:
                rowid, record = cell(made, raw, data, at)
                values = columns(record)
            except (Unreadable, IndexError):
                continue
            if len(values) == 6 and values[1] is not None and values[4] is not None:
                found.append(LeafRow(number, rowid, values[1], values[4]))
    return found


def cell(made: Made, raw: bytes, data: bytes, at: int) -> tuple[int, bytes]:
    """Return the number and the record of the row whose cell begins at a place of a page."""
    usable = made.page_size - made.layout.reserved
    payload, at = varint(data, at)
    rowid, at = varint(data, at)
    if payload > len(raw):
        raise Unreadable
    local = local_bytes(payload, usable)
    record = data[at : at + local]
    if len(record) < local:
        raise Unreadable
    following, seen = int.from_bytes(data[at + local : at + local + 4], "big"), set[int]()
    while len(record) < payload:
        part = page_of(made, raw, following) if following else b""
        if following in seen or len(part) < made.page_size:
            raise Unreadable
        seen.add(following)
        record += part[4 : 4 + min(usable - 4, payload - len(record))]
        following = int.from_bytes(part[:4], "big")
    return rowid, record


def columns(record: bytes) -> list[bytes | None]:
    """Return the bytes of the columns of a record; None for NULL."""
    header, at = varint(record, 0)
    serials = []
    while at < header:
        serial, at = varint(record, at)
        serials.append(serial)
    values: list[bytes | None] = []
    at = header
    for serial in serials:
        length = (serial - 12) // 2 if serial >= 12 else (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0)[serial]
        if at + length > len(record):
            raise Unreadable
        values.append(None if serial == 0 else record[at : at + length])
        at += length
    return values


def one_cell_less(path: Path, name: str) -> None:
    """Let the first leaf of a table or index of any SQLite file say that it has one cell less."""
    with closing(apsw.Connection(str(path))) as db:
        size, number = (
            int(str(db.execute(query, values).get))
            for query, values in (
                ("PRAGMA page_size", ()),
                ("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)),
            )
        )
    raw = bytearray(path.read_bytes())
    while raw[(number - 1) * size] not in (TABLE_LEAF, INDEX_LEAF):
        start = (number - 1) * size
        cell_at = start + int.from_bytes(raw[start + 12 : start + 14], "big")
        number = int.from_bytes(raw[cell_at : cell_at + 4], "big")
    start = (number - 1) * size
    count = int.from_bytes(raw[start + 3 : start + 5], "big")
    raw[start + 3 : start + 5] = (count - 1).to_bytes(2, "big")
    path.write_bytes(raw)


# --- mutations --------------------------------------------------------------------------------------------------------

Mutation = Callable[[Made, bytearray, random.Random], None]
MUTATIONS: dict[str, Mutation] = {}
mutation = partial(registered, MUTATIONS)


def some_page(made: Made, rng: random.Random, *kinds: str) -> int | None:
    pages = [number for number, kind in made.kinds().items() if kind in kinds]
    return rng.choice(pages) if pages else None


def on_page(*kinds: str) -> Callable[[Callable[[Made, bytearray, random.Random, int, bytes], None]], Mutation]:
    """Return what makes a mutation of one page of a kind: it is given where the page begins, and its bytes."""

    def decorated(change: Callable[[Made, bytearray, random.Random, int, bytes], None]) -> Mutation:
        def mutated(made: Made, raw: bytearray, rng: random.Random) -> None:
            number = some_page(made, rng, *kinds)
            if number is not None:
                change(made, raw, rng, (number - 1) * made.page_size, page_of(made, bytes(raw), number))

        return mutated

    return decorated


def put_number(raw: bytearray, at: int, end: int, value: int) -> None:
    """Write a number of variable length in as many bytes as the one that stands there."""
    for place in range(end - 1, at - 1, -1):
        raw[place] = value & 0x7F | (0x80 if place < end - 1 else 0)
        value >>= 7


@mutation("duplicate cell")
@on_page("leaf", "leaf", "leaf", "inner", "id leaf", "text leaf")
def _(made: Made, raw: bytearray, rng: random.Random, base: int, data: bytes) -> None:
    places = pointers(data)
    start = base + (8 if data[0] in (TABLE_LEAF, INDEX_LEAF) else 12)
    one, two = rng.randrange(len(places)), rng.randrange(len(places))
    raw[start + 2 * one : start + 2 * one + 2] = places[two].to_bytes(2, "big")


@mutation("swapped cells")
@on_page("leaf", "inner")
def _(made: Made, raw: bytearray, rng: random.Random, base: int, data: bytes) -> None:
    places = pointers(data)
    start = base + (8 if data[0] in (TABLE_LEAF, INDEX_LEAF) else 12)
    rng.shuffle(places)
    struct.pack_into(f">{len(places)}H", raw, start, *places)


def in_cell(change: Callable[[Made, bytearray, random.Random, int], None]) -> Mutation:
    """Return what makes a mutation of one cell of the table: it is given where the cell begins."""

    def mutated(made: Made, raw: bytearray, rng: random.Random) -> None:
        number = rng.choice(sorted(made.places))
        change(made, raw, rng, made.places[number][0][0])

    return mutated


def fields(raw: bytes, start: int) -> dict[str, tuple[int, int]]:
    """Return where the numbers of a cell stand: payload, row id, length of the header, and each serial type."""
    found = {}
    at = start
    for name in ("payload", "row id", "header"):
        _, end = varint(raw, at)
        found[name] = at, end
        at = end
    for column in range(6):
        _, end = varint(raw, at)
        found[f"serial {column}"] = at, end
        at = end
    return found


@mutation("equal row id")
def _(made: Made, raw: bytearray, rng: random.Random) -> None:
    numbers = sorted(made.places)
    at = rng.randrange(1, len(numbers))
    one, two = (numbers[at], numbers[at - 1]) if rng.random() < 0.5 else (numbers[at - 1], numbers[at])
    begin, end = fields(raw, made.places[one][0][0])["row id"]
    put_number(raw, begin, end, two)


@mutation("random row id")
@in_cell
def _(made: Made, raw: bytearray, rng: random.Random, start: int) -> None:
    begin, end = fields(raw, start)["row id"]
    put_number(raw, begin, end, rng.randrange(1 << 7 * (end - begin)))


@mutation("payload length")
@in_cell
def _(made: Made, raw: bytearray, rng: random.Random, start: int) -> None:
    begin, end = fields(raw, start)["payload"]
    value, _ = varint(raw, begin)
    changed = rng.choice([value - 1, value + 1, value ^ 1 << rng.randrange(7), rng.randrange(1 << 7 * (end - begin))])
    put_number(raw, begin, end, max(0, changed))


@mutation("header length")
@in_cell
def _(made: Made, raw: bytearray, rng: random.Random, start: int) -> None:
    begin, end = fields(raw, start)["header"]
    value, _ = varint(raw, begin)
    put_number(raw, begin, end, rng.choice([value - 1, value + 1, rng.randrange(128)]))


@mutation("serial type")
@in_cell
def _(made: Made, raw: bytearray, rng: random.Random, start: int) -> None:
    begin, end = fields(raw, start)[f"serial {rng.randrange(6)}"]
    value, _ = varint(raw, begin)
    changes = [value - 2, value + 2, value ^ 1, value - 1, 0, 12, 13, rng.randrange(1 << 7 * (end - begin))]
    put_number(raw, begin, end, max(0, rng.choice(changes)))


@mutation("child pointer")
@on_page("inner")
def _(made: Made, raw: bytearray, rng: random.Random, base: int, data: bytes) -> None:
    at = base + rng.choice(pointers(data))
    raw[at : at + 4] = rng.randrange(made.pages + 2).to_bytes(4, "big")


@mutation("right-most pointer")
@on_page("inner")
def _(made: Made, raw: bytearray, rng: random.Random, base: int, data: bytes) -> None:
    raw[base + 8 : base + 12] = rng.randrange(made.pages + 2).to_bytes(4, "big")


@mutation("child pointer to a leaf")
@on_page("inner")
def _(made: Made, raw: bytearray, rng: random.Random, base: int, data: bytes) -> None:
    places = [*pointers(data), 8]
    at = base + rng.choice(places)
    raw[at : at + 4] = rng.choice(made.of_kind("leaf")).to_bytes(4, "big")


@mutation("divider key")
@on_page("inner")
def _(made: Made, raw: bytearray, rng: random.Random, base: int, data: bytes) -> None:
    at = base + rng.choice(pointers(data)) + 4
    value, end = varint(raw, at)
    last = max(made.rows)
    put_number(raw, at, end, rng.choice([value - 1, value + 1, value - 3, rng.randrange(last + 5), 0, 127]))


@mutation("swapped children")
@on_page("inner")
def _(made: Made, raw: bytearray, rng: random.Random, base: int, data: bytes) -> None:
    places = [*pointers(data), 8]
    one, two = (base + at for at in rng.sample(places, 2))
    raw[one : one + 4], raw[two : two + 4] = raw[two : two + 4], raw[one : one + 4]


@mutation("cell count")
@on_page("leaf", "leaf", "inner", "id leaf")
def _(made: Made, raw: bytearray, rng: random.Random, base: int, data: bytes) -> None:
    value = int.from_bytes(data[3:5], "big")
    changed = rng.choice([value - 1, value - 1, value + 1, value // 2, 0, rng.randrange(64)])
    raw[base + 3 : base + 5] = max(0, changed).to_bytes(2, "big")


@mutation("copied leaf page")
def _(made: Made, raw: bytearray, rng: random.Random) -> None:
    one, two = rng.sample(made.of_kind("leaf"), 2)
    raw[(two - 1) * made.page_size : two * made.page_size] = made.page(one)


@mutation("page type")
@on_page("leaf", "inner", "id leaf", "text leaf", "overflow")
def _(made: Made, raw: bytearray, rng: random.Random, base: int, data: bytes) -> None:
    raw[base] = rng.choice([TABLE_LEAF, TABLE_INNER, INDEX_LEAF, INDEX_INNER, rng.randrange(256)])


@mutation("overflow pointer")
def _(made: Made, raw: bytearray, rng: random.Random) -> None:
    """Change the first pointer of a chain, or one within it."""
    long = [places for places in made.places.values() if len(places) > 1]
    if not long:
        return
    places = rng.choice(long)
    at = sum(places[0]) - 4 if rng.random() < 0.5 else rng.choice(places[1:])[0]
    other = rng.choice(made.of_kind("overflow"))
    raw[at : at + 4] = rng.choice([other, rng.randrange(made.pages + 2), 0]).to_bytes(4, "big")


@mutation("swapped overflow chains")
def _(made: Made, raw: bytearray, rng: random.Random) -> None:
    long = [places for places in made.places.values() if len(places) > 1]
    if len(long) > 1:
        one, two = (sum(places[0]) - 4 for places in rng.sample(long, 2))
        raw[one : one + 4], raw[two : two + 4] = raw[two : two + 4], raw[one : one + 4]


@mutation("page header")
@on_page("leaf", "inner")
def _(made: Made, raw: bytearray, rng: random.Random, base: int, data: bytes) -> None:
    raw[base + rng.randrange(1, 8)] = rng.randrange(256)


@mutation("cell pointer")
@on_page("leaf", "inner")
def _(made: Made, raw: bytearray, rng: random.Random, base: int, data: bytes) -> None:
    start = base + (8 if data[0] in (TABLE_LEAF, INDEX_LEAF) else 12)
    at = start + 2 * rng.randrange(len(pointers(data)))
    raw[at : at + 2] = rng.randrange(made.page_size).to_bytes(2, "big")


@mutation("root in the schema")
def _(made: Made, raw: bytearray, rng: random.Random) -> None:
    at = made.raw.index(b"tablevectorsvectors") + len(b"tablevectorsvectors")
    raw[at] = rng.randrange(1, min(127, made.pages + 1))


@mutation("single byte of a tree")
@on_page("leaf", "inner", "id leaf", "text leaf", "index inner", "overflow", "schema")
def _(made: Made, raw: bytearray, rng: random.Random, base: int, data: bytes) -> None:
    raw[base + rng.randrange(made.page_size)] ^= 1 << rng.randrange(8)


def mutated(made: Made, rng: random.Random) -> tuple[str, bytes]:
    """Return a file with one field changed, sometimes several, and the names of what was changed."""
    raw = bytearray(made.raw)
    count = rng.choices([1, 2, 3], [8, 1, 1])[0]
    names = [rng.choice(list(MUTATIONS)) for _ in range(count)]
    for name in names:
        try:
            MUTATIONS[name](made, raw, rng)
        except (IndexError, struct.error):
            # The one before left nothing there to change.
            continue
    return " + ".join(names), bytes(raw)


# --- judgement --------------------------------------------------------------------------------------------------------

Pair = tuple[str, bytes]


def original_pairs(made: Made) -> set[Pair]:
    return {(row[1], row[4]) for row in made.rows.values()}


def pairs_there(made: Made, raw: bytes) -> Counter[Pair]:
    """Return the texts and vectors on the leaf pages of a file, each as often as there are rows with other numbers."""
    rows = {(row.number, row.text, row.vector) for row in leaf_rows(made, raw)}
    return Counter((text.decode("utf-8", "replace"), vector) for _, text, vector in rows)


def problems(
    made: Made, raw: bytes, result: Counter[Pair], report: dict[str, object], *, salvaged: bool, flips: int = 0
) -> Iterator[str]:
    """Yield what is wrong with a migrated base.

    Args:
        made: the file as it was.
        raw: the file as it was migrated.
        result: the texts and vectors in the new index, by a reader of its own.
        report: the base's part of the report.
        salvaged: whether the rows of damaged files were asked for.
        flips: how many bits within texts or vectors may have changed, which nothing in a file may tell.
    """
    rows: dict[str, object] = report["rows"]  # type: ignore[assignment]
    skipped = sum(rows["skipped"].values())  # type: ignore[attr-defined]
    there, original = pairs_there(made, raw), original_pairs(made)
    intact = {(made.rows[number][1], made.rows[number][4]) for number in made.intact(raw)}
    lost = [pair for pair in original if (pair in there or pair in intact) and pair not in result]
    salvage: dict[str, int] | None = report.get("salvage")  # type: ignore[assignment]
    if rows["read"] != rows["carried"] + skipped:  # type: ignore[operator]
        yield f"{rows['read']} read, {rows['carried']} carried, {skipped} skipped"
    if report["error"] is None and rows["carried"] != result.total():
        yield f"{rows['carried']} carried, {result.total()} in the index"
    doubled = [pair for pair, count in result.items() if count > max(1, there[pair])]
    if doubled:
        yield f"{len(doubled)} doubled"
    if report["status"] == "failed":
        if report["error"] != "missing_vector_store" or result:
            yield f"failed with {report['error']}, {result.total()} rows"
        return
    strange = [pair for pair in result if pair not in original and (salvaged or pair not in there)]
    if len(strange) > flips:
        yield f"{len(strange)} texts or vectors that the file never had"
    named = skipped + (salvage["about"] - salvage["rows"] if salvage else 0)
    if len(lost) > named + flips:
        yield f"{len(lost)} rows lost, {named} named"
