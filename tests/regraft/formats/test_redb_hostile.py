"""redb files of somebody who means harm, and files damaged at random: reading ends, and tells no untruth."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from redb_damage import ROWS, TEXT, finished, made, read, reasons
from redb_writer import Redb, RedbTable, branch_bytes, definition, digest, root, write_redb

from regraft.formats.redb import PageDamage, RedbError, read_redb


@pytest.fixture
def file() -> Redb:
    return Redb(page_size=512)


# --- files of somebody who means harm ------------------------------------------------------------------------------


def test_a_chain_of_branches_ends_at_a_depth(tmp_path, file):
    node = file.leaf(ROWS[:1], TEXT)
    for at in range(200):
        node = file.branch([node, file.leaf([(f"l{at:03}".encode(), b"")], TEXT)], [f"k{at:03}".encode()], None)
    rows, damages = read(made(tmp_path, file, root(node, 1)))
    assert "the tree is deeper than redb allows" in reasons(damages)
    assert len(rows) < 70


def test_branches_that_name_one_another_end(tmp_path, file):
    """Their checksums cannot be right, but who believes them."""
    numbers = [(0, bytes(16)), (1, bytes(16))]
    pages = [branch_bytes([numbers[1]] * 16, [b"k"] * 15, None), branch_bytes([numbers[0]] * 16, [b"k"] * 15, None)]
    for page in pages:
        file.place(page)
    rows, damages = read(made(tmp_path, file, root((0, digest(pages[0])), 1)))
    assert rows == []
    assert len(damages) == 32


def test_counts_that_no_file_has_cost_nothing(tmp_path, file):
    leaf = file.leaf([(b"k", b"")], TEXT)
    path = made(tmp_path, file, root(leaf, 2**64 - 1), length=2**64 - 1)
    with read_redb(path) as opened:
        assert opened.tables["t"].length == 2**64 - 1
        assert list(opened.rows("t")) == [("k", b"")]


@pytest.mark.parametrize("widths", [(0xFFFFFFFF, None), (None, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0, 0)])
def test_widths_that_no_row_has_cost_nothing(tmp_path, file, widths):
    page = struct.pack("<BxH", 1, 0xFFFF).ljust(512, b"\0")
    table = RedbTable("x::Key", "x::Value", {}, key_width=widths[0], value_width=widths[1])
    tree = root((file.place(page), digest(page[:4])), 1)
    rows, damages = read(finished(tmp_path, file, file.tree([(b"t", definition(table, tree, 1))], TEXT)))
    assert (len(rows), len(damages)) == ((0xFFFF, 0) if widths == (0, 0) else (0, 1))


def test_a_file_that_is_almost_all_hole_takes_no_memory(tmp_path, file):
    path = made(tmp_path, file, root(file.leaf(ROWS[:2], TEXT), 2))
    with path.open("r+b") as opened:
        opened.truncate(512 << 24)
    assert read(path) == (ROWS[:2], [])
    with path.open("r+b") as opened:
        opened.truncate((512 << 24) + 1)
    with pytest.raises(RedbError, match="too many pages"):
        read_redb(path)


def test_many_tables_that_share_one_tree_read_it_once(tmp_path, file):
    tree = root(file.branch([file.leaf(ROWS[:6], TEXT), file.leaf(ROWS[6:], TEXT)], [b"k05"], None), 12)
    entry = definition(RedbTable("&str", "&[u8]", {}), tree, 12)
    tables = file.tree(((f"{at:04}".encode(), entry) for at in range(2000)), TEXT)
    damages: list[PageDamage] = []
    with read_redb(finished(tmp_path, file, tables), on_damage=damages.append) as opened:
        assert sum(len(list(opened.rows(name))) for name in opened.tables) == 12
    assert reasons(damages) == ["the page belongs to another table"] * 1999


# --- any damage at all ---------------------------------------------------------------------------------------------


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return a file with something wrong: bits, bytes, a page of another place, or its end missing."""
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 5, 30])):
        kind = chance.randrange(6)
        at = chance.randrange(320) if kind == 0 else chance.randrange(len(changed))
        if kind <= 2:
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 3:
            changed[at : at + 8] = chance.randbytes(len(changed[at : at + 8]))
        elif kind == 4:
            source, target = (chance.randrange(1, len(changed) // 512) * 512 for _ in range(2))
            changed[target : target + 512] = changed[source : source + 512]
        elif chance.random() < 0.2:
            del changed[chance.randrange(1, len(changed)) :]
            break
    return bytes(changed)


def dose(doses: int) -> list[object]:
    """Return the numbers of doses, those after the first as slow ones."""
    return [0, *(pytest.param(one, marks=pytest.mark.slow) for one in range(1, doses))]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", dose(8))
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_file_gives_rows_that_were_written_or_says_what_is_wrong(tmp_path, version, clean, seed):
    chance = random.Random(f"{version} {clean} {seed}")
    texts = {f"{at:03}".encode(): chance.randbytes(at) for at in range(0, 150, 2)}
    many = {f"m{at}".encode(): [f"{one:02}".encode() for one in range(at * 9)] for at in range(1, 8)}
    tables = {
        "texts": RedbTable("&str", "&[u8]", texts),
        "numbers": RedbTable("u32", "u64", {struct.pack("<I", at): struct.pack("<Q", at * at) for at in range(120)}),
        "many": RedbTable("&str", "&str", many, multimap=True),
    }
    path = write_redb(
        tmp_path / "x.redb",
        tables,
        older={**tables, "texts": RedbTable("&str", "&[u8]", dict(list(texts.items())[:20]))},
        version=version,
        clean=clean,
        two_phase=clean,
        page_size=512,
    )
    data = path.read_bytes()
    written: dict[str, set[tuple[bytes, bytes]]] = {}
    with read_redb(path) as file:
        written = {name: set(file.raw_rows(name)) for name in file.tables}
    for _ in range(65):
        path.write_bytes(mutated(data, chance))
        lost = hold(path, written)
        assert lost is None or not lost, path.read_bytes()


def hold(path: Path, written: dict[str, set[tuple[bytes, bytes]]]) -> list[str] | None:
    """Read a damaged file; return tables whose rows are lost without a word, or None where it was refused."""
    damages: list[PageDamage] = []
    lost = []
    try:
        with read_redb(path, on_damage=damages.append) as file:
            for name in file.tables:
                rows = list(file.raw_rows(name))
                assert len(rows) == len(set(rows))
                assert set(rows) <= written[name]
                if len(rows) < len(written[name]):
                    lost.append(name)
            file.verify()
            is_newest = file.transaction_id == 7
    except RedbError:
        return None
    return lost if is_newest and not damages else []
