"""Many records in little memory."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import msgspec
import pytest
from harness import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from migrators.pipeline import packed as packed_records
from migrators.pipeline.packed import Packed


class Record(msgspec.Struct, frozen=True, array_like=True):
    name: str
    data: dict[str, str]
    number: int | None = None


@dataclass(frozen=True)
class Plain:
    name: str


#: Half a surrogate pair is text that UTF-8 cannot write: a name on a disk, say.
TEXTS = st.text(st.characters(), max_size=8) | st.just("half \ud800")
RECORDS = st.lists(st.builds(Record, TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=3), st.none() | st.integers(0, 9)))


@settings(max_examples=examples(100))
@given(RECORDS)
def test_it_is_the_list_that_went_in(records: list[Record]) -> None:
    packed = Packed(Record, records)
    assert list(packed) == records
    assert packed == records
    assert packed == Packed(Record, records)
    assert [packed[at] for at in range(-len(records), len(records))] == records * 2
    assert list(packed[1:]) == records[1:]
    assert len(packed) == len(records)
    assert list(pickle.loads(pickle.dumps(packed))) == records


@pytest.mark.parametrize("held", [0, 6_000, 1 << 20])
def test_large_records_are_the_same_wherever_they_lie(monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    monkeypatch.setattr(packed_records, "_HELD_BYTES", held)
    records = [Record("x" * (5_000 * (number % 3 == 0)), {"number": str(number)}, number) for number in range(700)]
    packed = Packed(Record, records[:600])
    for record in records[600:]:
        packed.append(record)

    assert list(packed) == records
    assert [packed[at] for at in (0, 1, 3, 300, 599, 600, 699, -1)] == [
        records[at] for at in (0, 1, 3, 300, 599, 600, 699, -1)
    ]
    again = pickle.loads(pickle.dumps(packed))
    assert list(again) == records
    again.append(records[0])
    assert (len(again), again[-1]) == (701, records[0])


def test_large_records_leave_the_memory_once_they_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Plain("x" * 4096)
    size = len(msgspec.msgpack.encode(record))
    monkeypatch.setattr(packed_records, "_LARGE_BYTES", size)
    monkeypatch.setattr(packed_records, "_HELD_BYTES", 2 * size)
    packed = Packed(Plain, [Plain("x" * 4095), record, record])
    large = packed._large
    assert [at in large for at in range(-1, 4)] == [False, False, True, True, False]
    assert (len(large._held), large._db) == (2, None)
    packed.append(record)
    assert (large._held, large._db is not None) == ({}, True)
    packed.append(record)
    assert list(packed) == [Plain("x" * 4095), *[record] * 4]
    assert len(pickle.dumps(packed)) > 4 * size


def test_it_can_be_appended_to() -> None:
    packed = Packed(Plain, [Plain("a")])
    packed.append(Plain("b"))
    assert [*packed, packed[-1]] == [Plain("a"), Plain("b"), Plain("b")]


def test_it_is_not_what_it_is_not() -> None:
    packed = Packed(Plain, [Plain("a")])
    assert packed != [Plain("b")]
    assert packed != [Plain("a"), Plain("a")]
    assert packed != 5
    with pytest.raises(IndexError):
        packed[1]
    with pytest.raises(TypeError):
        hash(packed)


def test_it_is_small() -> None:
    """A million items of 122 bytes each take about that: no object is kept."""
    packed = Packed(Plain, (Plain(f"{number:0100}") for number in range(1_000)))
    assert len(pickle.dumps(packed)) < 1_000 * 130
    assert packed == [Plain(f"{number:0100}") for number in range(1_000)]
