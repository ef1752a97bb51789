"""Hashes and derived ids. The pinned values can never change: ids of migrated libraries hang on them."""

from __future__ import annotations

import hashlib
import uuid

import pytest
from harness import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.identity import base_id, body_id, child_id, item_id, text_hash, unit_id

QUICK = settings(max_examples=examples(150), deadline=None)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
TIMES = st.one_of(st.none(), st.integers(-(1 << 63), (1 << 63) - 1))

CONTAINER = "0195945a-0c28-7d40-8646-f6fdaab8fa11"
LOADER = "LocalPathLoader_0cc175b9c0f1b6a831c399e269772661"


def milliseconds_of(identifier: str) -> int:
    return uuid.UUID(identifier).int >> 80


# --- pinned for ever -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("legacy_id", "expected"),
    [
        ("Qm7vXk2LpT9s", "665c3325-8bb6-4b35-89e9-12c5c1e2c13d"),
        ("kb:测试/\U0001f389?*", "ac55e25e-dcd9-4027-852f-31e7d5625628"),
        ("", "ca3587ae-d0a0-4b3e-81eb-ae9b04ca9672"),
        ("../up", "bf54990d-49d0-494f-b32a-7179bf86ead8"),
    ],
)
def test_base_ids_are_pinned(legacy_id: str, expected: str) -> None:
    assert base_id(legacy_id) == expected


@pytest.mark.parametrize(
    ("legacy_base", "legacy_item", "created_at", "expected"),
    [
        ("Qm7vXk2LpT9s", "e8feb2c3-fa21-4c25-a8bd-3c66ce40cf21", 1741944657000, "019593fe-1468-7530-9a7b-b3b4df8785b1"),
        ("kb:测试", "项目\U0001f600", 0, "00000000-0000-7fa2-9c3e-bb7e70439865"),
        ("kb:测试", "项目\U0001f600", None, "00000000-0000-7da6-9e05-96fab9b0f64e"),
        ("a", "b", -1, "00000000-0000-71dd-aee2-59ba5c627b7d"),
    ],
)
def test_item_ids_are_pinned(legacy_base: str, legacy_item: str, created_at: int | None, expected: str) -> None:
    assert item_id(legacy_base, legacy_item, created_at) == expected


@pytest.mark.parametrize(
    ("container", "loader", "place", "created_at", "expected"),
    [
        (CONTAINER, LOADER, 0, 1741944657000, "019593fe-1468-797a-ac46-c6885b6c6b4a"),
        (CONTAINER, LOADER, 1, 1741944657000, "019593fe-1468-7d95-8e36-c48efc485020"),
        (CONTAINER, "TextLoader_测试", 12, None, "00000000-0000-7a9d-bb56-efc217a8f6f6"),
    ],
)
def test_child_ids_are_pinned(container: str, loader: str, place: int, created_at: int | None, expected: str) -> None:
    assert child_id(container, loader, place, created_at) == expected


# --- shape ---------------------------------------------------------------------------------------------------------


@QUICK
@given(TEXTS)
def test_base_ids_are_uuids_of_version_4(legacy_id: str) -> None:
    identifier = uuid.UUID(base_id(legacy_id))
    assert (identifier.version, identifier.variant) == (4, uuid.RFC_4122)
    assert str(identifier) == base_id(legacy_id)


@QUICK
@given(TEXTS, TEXTS, TIMES)
def test_item_ids_are_uuids_of_version_7_with_the_clamped_time(base: str, item: str, created_at: int | None) -> None:
    made = item_id(base, item, created_at)
    assert (uuid.UUID(made).version, uuid.UUID(made).variant) == (7, uuid.RFC_4122)
    assert milliseconds_of(made) == min(max(created_at or 0, 0), (1 << 48) - 1)
    assert made == item_id(base, item, created_at)


@QUICK
@given(TEXTS, TEXTS, st.integers(0, 10_000), TIMES)
def test_child_ids_are_uuids_of_version_7_with_the_clamped_time(
    container: str, loader: str, place: int, created_at: int | None
) -> None:
    made = child_id(container, loader, place, created_at)
    assert (uuid.UUID(made).version, uuid.UUID(made).variant) == (7, uuid.RFC_4122)
    assert milliseconds_of(made) == min(max(created_at or 0, 0), (1 << 48) - 1)
    assert made == child_id(container, loader, place, created_at)


@pytest.mark.parametrize(
    ("created_at", "time"),
    [
        (None, 0),
        (0, 0),
        (-1, 0),
        (-(1 << 63), 0),
        (1, 1),
        (1741944657000, 1741944657000),
        ((1 << 48) - 1, (1 << 48) - 1),
        (1 << 48, (1 << 48) - 1),
        ((1 << 63) - 1, (1 << 48) - 1),
    ],
)
def test_times_are_clamped_to_48_bits(created_at: int | None, time: int) -> None:
    assert milliseconds_of(item_id("base", "item", created_at)) == time
    assert milliseconds_of(child_id(CONTAINER, "loader", 0, created_at)) == time


def test_items_sort_by_the_time_of_their_creation() -> None:
    made = [item_id("base", f"item {n}", 1741944657000 + n) for n in range(50)]
    assert made == sorted(made)


# --- what an id follows from ---------------------------------------------------------------------------------------


def test_every_part_makes_another_id() -> None:
    ids = [
        base_id("a"),
        base_id("b"),
        item_id("a", "b", 1),
        item_id("a", "c", 1),
        item_id("b", "b", 1),
        item_id("a", "b", 2),
        item_id("a", "b", 0),
        item_id("a", "b", None),
        item_id("a", "b", -1),
        item_id("a", "b", -2),
        child_id("a", "b", 0, 1),
        child_id("a", "b", 1, 1),
        child_id("a", "c", 0, 1),
        child_id("b", "b", 0, 1),
    ]
    assert len(set(ids)) == len(ids)


def test_parts_are_not_merely_joined() -> None:
    assert item_id("ab", "c", 1) != item_id("a", "bc", 1)
    assert item_id("a", "b 1", None) != item_id("a", "b", 1)
    assert child_id("a", "b1", 2, 5) != child_id("a", "b", 12, 5)
    assert item_id("", "ab", 1) != item_id("ab", "", 1)


# --- hashes of the index layout ------------------------------------------------------------------------------------


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def test_hash_of_text_is_sha256_of_its_utf8() -> None:
    assert text_hash("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert text_hash("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@QUICK
@given(TEXTS)
def test_text_hash(text: str) -> None:
    assert text_hash(text) == sha256(text)


@QUICK
@given(st.integers(0, 1000), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_unit_and_body_ids_hash_their_fields_joined_by_blanks(index: int, start: int, end: int) -> None:
    content = text_hash("content")
    unit = unit_id(CONTAINER, content, index, start, end)
    assert unit == sha256(f"{CONTAINER} {content} chunk {index} {start} {end}")
    assert body_id(unit) == sha256(f"search_unit {unit} body")
