"""The differences between an authority and what is derived from it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regraft.stores.derived import Difference, OutOfOrder, compare_sorted

ids = st.text(st.sampled_from("ab\0ÿ一🎉\ue000"), max_size=4)
stores = st.dictionaries(ids, st.integers(0, 3) | st.none(), max_size=12)


@given(authority=stores, derived=stores)
def test_they_are_those_of_two_dictionaries(authority: dict[str, int | None], derived: dict[str, int | None]) -> None:
    found = list(compare_sorted(sorted(authority.items()), sorted(derived.items())))
    kinds = {kind: {one.id for one in found if one.kind == kind} for kind in ("missing", "stale", "orphaned")}
    assert kinds == {
        "missing": authority.keys() - derived.keys(),
        "stale": {key for key in authority.keys() & derived.keys() if authority[key] != derived[key]},
        "orphaned": derived.keys() - authority.keys(),
    }
    assert [one.id for one in found] == sorted(one.id for one in found)
    assert all((one.wanted, one.found) == (authority.get(one.id), derived.get(one.id)) for one in found)


@given(authority=stores, derived=stores)
def test_carrying_them_out_makes_the_derived_one_follow(
    authority: dict[str, int | None], derived: dict[str, int | None]
) -> None:
    for one in compare_sorted(sorted(authority.items()), sorted(derived.items())):
        if one.kind == "orphaned":
            del derived[one.id]
        else:
            derived[one.id] = one.wanted
    assert derived == authority
    assert list(compare_sorted(sorted(authority.items()), sorted(derived.items()))) == []


@given(authority=stores, derived=stores)
def test_sqlite_sorts_text_as_bytes_in_the_order_that_is_needed(
    authority: dict[str, int | None], derived: dict[str, int | None]
) -> None:
    def stored(rows: dict[str, int | None]) -> list[tuple[bytes, int | None]]:
        with closing(sqlite3.connect(":memory:")) as db:
            db.execute("CREATE TABLE rows (id TEXT, value)")
            db.executemany("INSERT INTO rows VALUES (?, ?)", rows.items())
            return db.execute("SELECT CAST(id AS BLOB), value FROM rows ORDER BY 1").fetchall()

    found = {(one.kind, one.id.decode()) for one in compare_sorted(stored(authority), stored(derived))}
    expected = {(one.kind, one.id) for one in compare_sorted(sorted(authority.items()), sorted(derived.items()))}
    assert found == expected


def test_a_large_store_is_read_as_a_stream() -> None:
    read = 0

    def rows(step: int) -> Iterator[tuple[int, int]]:
        nonlocal read
        for number in range(0, 1_000_000, step):
            read += 1
            yield number, 0

    found = compare_sorted(rows(1), rows(2))
    assert next(found) == Difference(kind="missing", id=1, wanted=0, found=None)
    assert read < 10


@pytest.mark.parametrize("rows", [[("b", 0), ("a", 0)], [("a", 0), ("a", 0)], [("a", 0), ("b", 0), ("b", 1)]])
def test_what_is_not_sorted_or_there_twice_is_refused(rows: list[tuple[str, int]]) -> None:
    with pytest.raises(OutOfOrder, match="does not come after"):
        list(compare_sorted(rows, []))
    with pytest.raises(OutOfOrder, match="does not come after"):
        list(compare_sorted([], rows))
