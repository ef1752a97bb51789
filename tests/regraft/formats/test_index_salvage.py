"""What is left of a damaged index comes along where it proves itself, and nothing else does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from harness import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from index_damage import BASE, DAMAGES, DIMENSIONS, KEYS, NOW_MS, PAGE, IndexFile, Rows, damaged, rows_of, write

from regraft import identity
from regraft.disk import writable
from regraft.formats.cherry_v2.salvage import Expected, Refused, Tally, salvage_index
from regraft.formats.index import IndexStore

NAMES = {
    "content": "contents",
    "material": "materials",
    "search_unit": "units",
    "search_text": "bodies",
    "embedding": "embeddings",
}
#: Where a material names its text, which is NULL where that is lost.
CONTENT = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("salvage")
    with writable.allow_writes(place):
        yield place


@pytest.fixture(scope="module")
def whole(folder: Path) -> IndexFile:
    write(folder / "whole.sqlite")
    return IndexFile.made(folder / "whole.sqlite")


def expected(file: IndexFile, *, catalog: bool = True) -> Expected:
    paths = {key: str(row[1], "utf-8") for key, row in file.rows["material"].items()}
    return Expected(
        base_id=BASE, paths=paths if catalog else None, dimensions=DIMENSIONS if catalog else None, now_ms=NOW_MS
    )


def written(folder: Path, raw: bytes, around: Expected) -> tuple[Rows, Tally]:
    """Salvage a file, and return the rows of the new one, which SQLite's own checks find in order."""
    path, new = folder / "damaged.sqlite", folder / "new.sqlite"
    path.write_bytes(raw)
    new.unlink(missing_ok=True)
    with salvage_index(path, around) as found:
        found.write(new, NOW_MS)
    assert path.read_bytes() == raw
    with closing(apsw.Connection(str(new))) as db:
        assert db.execute("PRAGMA integrity_check").get == "ok"
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        assert db.execute("SELECT schema_version, base_id FROM meta").fetchall() == [(2, BASE)]
    with IndexStore(new, BASE, read_only=True):
        pass
    return rows_of(new), found.tally


def assert_nothing_else(new: Rows, old: Rows) -> None:
    """Assert that every row is one of the whole file's, field by field; only a text that is lost is named no more."""
    for table in KEYS:
        for key, row in new[table].items():
            was = list(old[table][key])
            if table == "material" and row[CONTENT] is None:
                assert str(was[CONTENT], "ascii") not in new["content"]
                was[CONTENT] = None
            assert list(row) == was, (table, key)


def assert_accounted(new: Rows, tally: Tally) -> None:
    for table, kind in NAMES.items():
        assert tally.rows[kind].in_new_file == len(new[table]), table
        assert all(tally.rows[kind].refused.values())


def demanded(file: IndexFile, raw: bytes, new: Rows) -> Iterator[tuple[str, str]]:
    """Yield the rows that have to come along: every byte of them is there, and of what they are a part of."""
    intact = file.intact(raw)
    yield from (("content", key) for key in intact["content"])
    yield from (("material", key) for key in intact["material"])
    for table, content in (("search_unit", 2), ("search_text", None)):
        for key in intact[table]:
            row = file.rows[table][key]
            unit = row if content is not None else file.rows["search_unit"][str(row[2], "ascii")]
            if str(unit[2], "ascii") in new["content"]:
                yield table, key
    texts = {str(file.rows["search_text"][key][5], "ascii") for key in intact["search_text"]}
    yield from (("embedding", key) for key in intact["embedding"] if key in texts)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", DAMAGES)
def test_rows_that_prove_themselves_come_along(name, whole, folder):
    raw = damaged(whole, name)
    new, tally = written(folder, raw, expected(whole))
    assert_nothing_else(new, whole.rows)
    assert_accounted(new, tally)
    wanted = list(demanded(whole, raw, new))
    missing = [(table, key) for table, key in wanted if key not in new[table]]
    assert len(missing) <= len(wanted) // 100, missing


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in DAMAGES if "fts" in name or "index" in name or "_idx" in name])
def test_damage_beside_the_rows_costs_none(name, whole, folder):
    new, tally = written(folder, damaged(whole, name), expected(whole))
    assert new == whole.rows
    assert tally.lacking == 0
    assert tally.partial == frozenset()


@pytest.mark.thorough
@pytest.mark.parametrize("table", ["content", "material", "search_unit", "search_text"])
def test_what_follows_from_other_rows_is_derived_as_it_was(table, whole, folder):
    new, tally = written(folder, damaged(whole, f"half of the leaf pages of {table} are noise"), expected(whole))
    assert tally.rows[NAMES[table]].derived > 0
    assert new == whole.rows


@pytest.mark.thorough
def test_units_are_found_by_their_bodies_where_no_index_knows_them(whole, folder):
    raw = bytearray(whole.raw)
    for number, (name, _) in whole.kinds.items():
        if name in ("search_unit", "sqlite_autoindex_search_unit_1"):
            raw[(number - 1) * PAGE : number * PAGE] = bytes(PAGE)
    new, tally = written(folder, bytes(raw), expected(whole))
    assert tally.rows["units"].derived == len(whole.rows["search_unit"])
    assert new == whole.rows


@pytest.mark.thorough
def test_a_whole_file_comes_out_as_it_is(whole, folder):
    new, tally = written(folder, whole.raw, expected(whole))
    assert new == whole.rows
    assert all(not one.derived and not one.refused for one in tally.rows.values())
    assert tally.salvaged == tally.about


@pytest.mark.thorough
def test_lost_vectors_are_counted_and_the_texts_stay(whole, folder):
    new, tally = written(folder, damaged(whole, "one leaf page of embedding is zeros"), expected(whole))
    lost = len(whole.rows["embedding"]) - len(new["embedding"])
    assert lost > 0
    assert tally.rows["embeddings"].refused == {"lost": lost}
    assert tally.lacking == lost
    assert tally.about - tally.salvaged == lost
    assert new["search_text"] == whole.rows["search_text"]


@pytest.mark.thorough
def test_mixed_up_vectors_do_not_come_along(whole, folder):
    new, tally = written(folder, damaged(whole, "overflow pages of two vectors are swapped"), expected(whole))
    assert tally.rows["embeddings"].refused == {"unlike": 2}
    assert_nothing_else(new, whole.rows)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["it is cut off at 97 %", "the header is zeros", "the page of the schema is zeros"])
@pytest.mark.parametrize("catalog", [True, False])
def test_what_was_deleted_does_not_come_back(name, catalog, whole, folder):
    new, _ = written(folder, damaged(whole, name), expected(whole, catalog=catalog))
    assert new["material"].keys() == whole.rows["material"].keys()
    assert new["content"].keys() <= whole.rows["content"].keys()
    assert new["search_unit"].keys() <= whole.rows["search_unit"].keys()


def test_a_path_that_nobody_knows_is_the_id(whole, folder):
    raw = damaged(whole, "all but the leaves of texts and units is zeros")
    new, tally = written(folder, raw, expected(whole, catalog=False))
    assert {key: str(row[1], "utf-8") for key, row in new["material"].items()} == {key: key for key in new["material"]}
    assert sorted(tally.unnamed) == sorted(new["material"])
    assert len(new["search_unit"]) > 50


@pytest.mark.thorough
def test_an_item_that_is_gone_brings_no_rows_along(whole, folder):
    paths = dict(expected(whole).paths or {})
    del paths["item-0000"]
    raw = damaged(whole, "one leaf page of material is zeros")
    new, tally = written(folder, raw, Expected(base_id=BASE, paths=paths, now_ms=NOW_MS))
    assert "item-0000" not in new["material"]
    assert "unnamed" in tally.rows["units"].refused


def test_a_text_that_cannot_be_joined_costs_its_units_and_keeps_the_vectors(whole, folder):
    """The text of a material and one of its bodies are gone: what is left of it is no text."""
    material = whole.rows["material"]["item-0007"]
    units = [key for key, row in whole.rows["search_unit"].items() if row[2] == material[CONTENT]]
    bodies = {str(row[2], "ascii"): key for key, row in whole.rows["search_text"].items()}
    raw = bytearray(whole.raw)
    lost = bodies[units[0]]
    for at, length in (*whole.places["content"][str(material[CONTENT], "ascii")], *whole.places["search_text"][lost]):
        raw[at : at + length] = bytes(length)
    new, tally = written(folder, bytes(raw), expected(whole))
    assert_nothing_else(new, whole.rows)
    assert new["material"]["item-0007"][CONTENT] is None
    assert not set(units) & new["search_unit"].keys()
    assert tally.units.get("item-0007") is None
    texts = [whole.rows["search_text"][bodies[unit]] for unit in units[1:]]
    assert {str(row[5], "ascii") for row in texts} <= new["embedding"].keys()


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "is not a SQLite file in any part"),
        (b"SQLite format 3\0" + bytes(4080), "is not a SQLite file in any part"),
        (random.Random(1).randbytes(8 * PAGE), "is not a SQLite file in any part"),
    ],
)
def test_a_file_of_which_nothing_is_left_is_refused(raw, said, folder):
    path = folder / "damaged.sqlite"
    path.write_bytes(raw)
    with pytest.raises(Refused, match=said), salvage_index(path, Expected(base_id=BASE)):
        pass


def test_an_empty_index_proves_nothing(folder):
    path = folder / "empty.sqlite"
    path.unlink(missing_ok=True)
    IndexStore(path, BASE, create=True).close()
    with (
        pytest.raises(Refused, match="none of its remaining rows can be verified"),
        salvage_index(path, Expected(base_id=BASE)),
    ):
        pass


def test_a_later_version_is_refused(whole, folder):
    path = folder / "later.sqlite"
    path.write_bytes(whole.raw)
    with closing(apsw.Connection(str(path))) as db:
        db.execute("UPDATE meta SET schema_version = 3")
    with (
        pytest.raises(Refused, match="version 3, which this regraft does not support"),
        salvage_index(path, expected(whole)),
    ):
        pass


@pytest.mark.thorough
def test_a_file_of_version_1_becomes_one_of_version_2(whole, folder):
    path = folder / "older.sqlite"
    path.write_bytes(whole.raw)
    with closing(apsw.Connection(str(path))) as db:
        for statement in (
            "DROP TABLE search_text_fts",
            "DROP INDEX search_text_fts_rowid_uniq",
            *(f"DROP TRIGGER search_text_{name}" for name in ("ai", "ad", "au")),
            "ALTER TABLE search_text DROP COLUMN fts_rowid",
            "UPDATE meta SET schema_version = 1",
        ):
            db.execute(statement)
    raw = bytearray(path.read_bytes())
    raw[:100] = bytes(100)
    new, _ = written(folder, bytes(raw), expected(whole))
    assert new["embedding"] == whole.rows["embedding"]
    assert new["search_unit"] == whole.rows["search_unit"]
    assert {key: row[:6] for key, row in new["search_text"].items()} == {
        key: row[:6] for key, row in whole.rows["search_text"].items()
    }


@pytest.mark.thorough
def test_of_two_readings_of_one_vector_the_one_in_the_tree_counts(whole, folder):
    """A free page has rows of the same keys and other vectors, as they are left where texts went and came back."""
    page = next(number for number in whole.of("embedding") if number not in whole.roots.values())
    raw = bytearray(whole.raw)
    free = next(number for number in whole.of("", "free") if whole.page(number)[0] != 0)
    copy = bytearray(whole.page(page))
    copy[-400:] = bytes(one ^ 1 for one in copy[-400:])
    raw[(free - 1) * PAGE : free * PAGE] = copy
    new, _ = written(folder, bytes(raw), expected(whole))
    assert new == whole.rows


@st.composite
def damages(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    kinds = st.sampled_from(["flip", "zero", "noise", "page", "swap", "copy", "cut"])
    return draw(st.lists(st.tuples(kinds, st.integers(0, 1 << 30), st.integers(0, 1 << 30)), min_size=1, max_size=6))


def _applied(raw: bytearray, steps: list[tuple[str, int, int]]) -> bytes:
    for kind, first, second in steps:
        if len(raw) < 2 * PAGE:
            break
        at, pages = first % len(raw), len(raw) // PAGE
        one, other = (first % pages) * PAGE, (second % pages) * PAGE
        match kind:
            case "flip":
                raw[at] ^= 1 << second % 8
            case "zero":
                raw[at : at + second % 9000] = bytes(len(raw[at : at + second % 9000]))
            case "noise":
                raw[at : at + second % 9000] = random.Random(second).randbytes(len(raw[at : at + second % 9000]))
            case "page":
                raw[one : one + PAGE] = bytes(PAGE)
            case "swap":
                raw[one : one + PAGE], raw[other : other + PAGE] = raw[other : other + PAGE], raw[one : one + PAGE]
            case "copy":
                raw[one : one + PAGE] = raw[other : other + PAGE]
            case "cut":
                del raw[max(PAGE, at) :]
    return bytes(raw)


@pytest.mark.thorough
@given(damages())
@settings(max_examples=examples(120))
def test_any_damage_is_survived_and_nothing_is_invented(whole, folder, steps):
    raw = _applied(bytearray(whole.raw), steps)
    try:
        new, tally = written(folder, raw, expected(whole))
    except Refused:
        return
    assert_accounted(new, tally)
    for table in ("content", "search_unit", "search_text", "material"):
        assert new[table].keys() <= whole.rows[table].keys(), table
    for key, row in new["content"].items():
        assert identity.text_hash(str(row[1], "utf-8")) == key
    for key, row in new["search_text"].items():
        # The texts themselves; a flipped bit of a time or of a number is nothing that a row can tell.
        assert row[4] == whole.rows["search_text"][key][4]
    assert new["embedding"].keys() <= whole.rows["embedding"].keys()
    if not any(kind == "flip" for kind, *_ in steps):
        for key, row in new["embedding"].items():
            assert row[1] == whole.rows["embedding"][key][1]
