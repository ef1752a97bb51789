"""Numbers, times and settings of v1's state, and what becomes of a base as far as its state tells."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from harness import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from migrators.cherry_v1.draft import draft_library
from migrators.pipeline.plan import plan_base
from migrators.pipeline.source import BaseDraft, LibraryDraft, SkippedBase
from regraft.formats.cherry_v1.state import V1State
from regraft.formats.cherry_v2.catalog import BaseRow
from regraft.formats.cherry_v2.models import ModelOverrides
from regraft.formats.cherry_v2.settings import Settings, read_number, read_time, read_v1_settings, read_whole_number
from regraft.formats.vector_survey import VectorSurvey
from regraft.identity import base_id
from regraft.report import notices
from regraft.report.notices import CODES, Notice

QUICK = settings(max_examples=examples(200), deadline=None)

MODEL = {"id": "m", "provider": "acme"}
PROVIDERS = [{"id": "acme", "models": [{"id": "m"}]}]
NO_NUMBERS = [
    None,
    True,
    False,
    "",
    " ",
    "x",
    "1,5",
    "0x10",
    "NaN",
    "Infinity",
    "-Infinity",
    "1_000",
    "1 2",
    [],
    [1],
    {},
]


# --- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (0, 0),
        (5, 5),
        (-1.5, -1.5),
        (2**80, 2**80),
        ("5", 5),
        (" 5\n", 5),
        ("\ufeff5\u00a0", 5),
        ("+5", 5),
        ("-5.25", -5.25),
        (".5", 0.5),
        ("5.", 5),
        ("1e3", 1000),
        ("1E-2", 0.01),
        ("007", 7),
    ],
)
def test_numbers_and_texts_that_are_numbers(value: Any, number: float) -> None:
    assert read_number(value) == number


@pytest.mark.parametrize("value", [*NO_NUMBERS, math.nan, math.inf, -math.inf, "1e999", "9" * 400, ".", "e5", "5\x85"])
def test_what_is_no_finite_number(value: Any) -> None:
    assert read_number(value) is None


@pytest.mark.parametrize(
    ("value", "minimum", "number"),
    [
        (1, 1, 1),
        (0, 1, None),
        (0, 0, 0),
        (-1, 0, None),
        (3.0, 1, 3),
        (3.5, 1, None),
        (1024, 1, 1024),
        (2**53 - 1, 1, 2**53 - 1),
        (2**53, 1, None),
        (1e300, 1, None),
        (math.nan, 0, None),
        (True, 0, None),
        (None, 0, None),
    ],
)
def test_whole_numbers(value: Any, minimum: int, number: int | None) -> None:
    found = read_whole_number(value, minimum=minimum)
    assert found == number
    assert found is None or type(found) is int


def test_texts_are_whole_numbers_only_where_that_is_asked_for() -> None:
    assert read_whole_number("1024", minimum=1) is None
    assert read_whole_number(" 1024 ", minimum=1, text=True) == 1024
    assert read_whole_number("1e3", minimum=1, text=True) == 1000
    assert read_whole_number("10.5", minimum=1, text=True) is None
    assert read_whole_number("0", minimum=1, text=True) is None


# --- times ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "time"),
    [
        (1741944657000, 1741944657000),
        (1741944657000.9, 1741944657000),
        (0, 0),
        (-1, -1),
        (-1.9, -1),
        (0.4, 0),
        (2**48, 2**48),
    ],
)
def test_times_are_cut_to_whole_milliseconds(value: float, time: int) -> None:
    assert read_time(value) == time
    assert type(read_time(value)) is int


@pytest.mark.parametrize("value", [*NO_NUMBERS, "1741944657000", "2025-03-14T09:30:57.000Z", math.nan, math.inf])
def test_what_is_no_time_is_left_to_the_run(value: Any) -> None:
    assert read_time(value) is None


@pytest.mark.parametrize("value", [1e300, -1e300, 10**30, -(10**30), 2**63, -(2**63) - 1])
def test_times_fit_the_catalog(value: float) -> None:
    time = read_time(value)
    assert time == (2**63 - 1 if value > 0 else -(2**63))


@pytest.mark.parametrize("value", [10**400, -(10**400)], ids=["huge", "tiny"])
def test_a_number_beyond_all_measure_is_no_crash(value: int) -> None:
    # JavaScript reads it as infinite: it is no number here either.
    assert read_number(value) is None
    assert read_whole_number(value, minimum=1) is None
    assert read_time(value) is None
    assert read_v1_settings({"chunkSize": value}) == (Settings(), ["chunkSize"])


# --- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "expected", "invalid"),
    [
        ({}, Settings(1024, 200, None, None), []),
        (dict.fromkeys(["chunkSize", "chunkOverlap", "threshold", "documentCount"]), Settings(), []),
        ({"chunkSize": 500, "chunkOverlap": 50, "threshold": 0.4, "documentCount": 6}, Settings(500, 50, 0.4, 6), []),
        (
            {"chunkSize": "500", "chunkOverlap": " 50 ", "threshold": "0.4", "documentCount": "6"},
            Settings(500, 50, 0.4, 6),
            [],
        ),
        # Chunk size: whole and positive.
        ({"chunkSize": 500.0}, Settings(500, 200), []),
        ({"chunkSize": "500.0"}, Settings(500, 200), []),
        ({"chunkSize": 0}, Settings(), ["chunkSize"]),
        ({"chunkSize": -500}, Settings(), ["chunkSize"]),
        ({"chunkSize": 500.5}, Settings(), ["chunkSize"]),
        ({"chunkSize": ""}, Settings(), ["chunkSize"]),
        ({"chunkSize": "large"}, Settings(), ["chunkSize"]),
        ({"chunkSize": True}, Settings(), ["chunkSize"]),
        ({"chunkSize": [500]}, Settings(), ["chunkSize"]),
        # Overlap: at least 0 and less than the size; by default 200, or one less than a small size.
        ({"chunkSize": 200}, Settings(200, 199), []),
        ({"chunkSize": 201}, Settings(201, 200), []),
        ({"chunkSize": 1}, Settings(1, 0), []),
        ({"chunkOverlap": 0}, Settings(1024, 0), []),
        ({"chunkOverlap": "0"}, Settings(1024, 0), []),
        ({"chunkOverlap": 1023}, Settings(1024, 1023), []),
        ({"chunkOverlap": 1024}, Settings(), ["chunkOverlap"]),
        ({"chunkOverlap": -1}, Settings(), ["chunkOverlap"]),
        ({"chunkOverlap": 0.5}, Settings(), ["chunkOverlap"]),
        ({"chunkSize": 100, "chunkOverlap": 100}, Settings(100, 99), ["chunkOverlap"]),
        ({"chunkSize": 100, "chunkOverlap": 99}, Settings(100, 99), []),
        # An invalid size is 1024 for the overlap too.
        ({"chunkSize": "?", "chunkOverlap": 500}, Settings(1024, 500), ["chunkSize"]),
        ({"chunkSize": 0, "chunkOverlap": 2000}, Settings(), ["chunkSize", "chunkOverlap"]),
        # Threshold: 0 to 1.
        ({"threshold": 0}, Settings(threshold=0.0), []),
        ({"threshold": 1}, Settings(threshold=1.0), []),
        ({"threshold": -0.01}, Settings(), ["threshold"]),
        ({"threshold": 1.01}, Settings(), ["threshold"]),
        ({"threshold": "high"}, Settings(), ["threshold"]),
        ({"threshold": False}, Settings(), ["threshold"]),
        ({"threshold": math.nan}, Settings(), ["threshold"]),
        # Document count: whole and positive.
        ({"documentCount": 1}, Settings(document_count=1), []),
        ({"documentCount": 0}, Settings(), ["documentCount"]),
        ({"documentCount": -3}, Settings(), ["documentCount"]),
        ({"documentCount": 2.5}, Settings(), ["documentCount"]),
        ({"documentCount": {}}, Settings(), ["documentCount"]),
    ],
)
def test_settings(raw: dict[str, Any], expected: Settings, invalid: list[str]) -> None:
    assert read_v1_settings(raw) == (expected, invalid)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text("0123456789.eE+- x", max_size=8),
    st.lists(st.integers(), max_size=2),
)


@pytest.mark.thorough
@QUICK
@given(st.dictionaries(st.sampled_from(["chunkSize", "chunkOverlap", "threshold", "documentCount"]), JUNK))
def test_whatever_v1_had_the_settings_are_valid(raw: dict[str, Any]) -> None:
    found, invalid = read_v1_settings(raw)
    assert found.chunk_size >= 1
    assert 0 <= found.chunk_overlap < found.chunk_size
    assert found.threshold is None or 0 <= found.threshold <= 1
    assert found.document_count is None or found.document_count >= 1
    assert all(raw[name] is not None for name in invalid)


# --- bases ---------------------------------------------------------------------------------------------------------


def library(*bases: Any, pending: tuple[str, ...] = (), said: tuple[Notice, ...] = ()) -> LibraryDraft:
    state = V1State(list(bases), PROVIDERS, {}, {}, frozenset(pending), said)
    return draft_library(state, ModelOverrides())


def base(**fields: Any) -> dict[str, Any]:
    return {"id": "b1", "name": "Base", "model": MODEL, "items": [], **fields}


def only(**fields: Any) -> BaseDraft:
    (draft,) = library(base(**fields)).bases
    return draft


def codes(said: tuple[Notice, ...]) -> list[str]:
    return [notice.code for notice in said]


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in base(items=[1, 2]).items() if name not in names}


@pytest.mark.parametrize(
    ("raw", "legacy_id", "items"),
    [
        (None, None, 0),
        (5, None, 0),
        ("b1", None, 0),
        ([], None, 0),
        ({}, None, 0),
        (without("id"), None, 2),
        (base(id=None), None, 0),
        (base(id=""), "", 0),
        (base(id=7), None, 0),
        (without("name"), "b1", 2),
        (base(name=None), "b1", 0),
        (base(name=""), "b1", 0),
        (base(name=7), "b1", 0),
    ],
)
def test_bases_without_an_identity_are_skipped(raw: Any, legacy_id: str | None, items: int) -> None:
    drafted = library(raw, base(id="next"))
    assert drafted.skipped == (SkippedBase(legacy_id, notices.INVALID_BASE, items),)
    assert [draft.legacy_id for draft in drafted.bases] == ["next"]
    assert codes(drafted.notices) == [notices.INVALID_BASE]
    assert ("2 items" in drafted.notices[0].message) == bool(items)


def test_the_later_one_of_two_bases_with_one_id_is_skipped_with_its_items() -> None:
    item = {"id": "i", "type": "url", "content": "https://example.com"}
    drafted = library(base(name="first"), base(id="b2"), base(name="second", items=[item]), base(id="b3", items=[item]))
    assert [draft.name for draft in drafted.bases] == ["first", "Base", "Base"]
    assert drafted.skipped == (SkippedBase("b1", notices.DUPLICATE_BASE, 1),)
    assert codes(drafted.notices) == [notices.DUPLICATE_BASE]
    assert drafted.notices[0].base == "b1"
    # Its item was not migrated, so that it is no duplicate elsewhere.
    assert [entry.legacy_id for entry in drafted.bases[2].items] == ["i"]


def test_a_base_that_was_skipped_does_not_hide_a_later_one() -> None:
    drafted = library(base(name=""), base(name="second"))
    assert [draft.name for draft in drafted.bases] == ["second"]
    assert [skipped.reason for skipped in drafted.skipped] == [notices.INVALID_BASE]


def test_bases_to_be_deleted_do_not_come_back() -> None:
    drafted = library(base(items=[1]), base(id="b2"), pending=("b1", "gone"))
    assert [draft.legacy_id for draft in drafted.bases] == ["b2"]
    assert drafted.skipped == (SkippedBase("b1", notices.PENDING_DELETE, 1),)
    assert CODES[notices.PENDING_DELETE].severity == "note"


@pytest.mark.parametrize(
    ("legacy_id", "name", "shown", "said"),
    [
        ("b1", "  Research notes  ", "Research notes", []),
        ("b1", "\ufeffa\u00a0", "a", []),
        ("b1", " \n\ufeff", "b1", [notices.BLANK_NAME]),
        (" b1 ", "   ", "b1", [notices.BLANK_NAME]),
        ("  ", "   ", base_id("  "), [notices.BLANK_NAME]),
        ("b1", "\x85", "\x85", []),
    ],
)
def test_names_are_trimmed_and_never_blank(legacy_id: str, name: str, shown: str, said: list[str]) -> None:
    draft = only(id=legacy_id, name=name)
    assert draft.name == shown
    assert codes(draft.notices) == said


def test_identity_and_vector_file_follow_from_the_v1_id() -> None:
    draft = only(id="kb:a/b?")
    assert (draft.legacy_id, draft.id, draft.vector_file) == ("kb:a/b?", base_id("kb:a/b?"), "kb_a_b_")


@pytest.mark.parametrize(
    ("stated", "dimensions"),
    [(1024, 1024), (1024.0, 1024), (0, None), (-3, None), (1.5, None), ("1024", None), (None, None), (True, None)],
)
def test_stated_dimensions_are_a_positive_whole_number_or_nothing(stated: Any, dimensions: int | None) -> None:
    assert only(dimensions=stated).stated_dimensions == dimensions


@pytest.mark.parametrize(
    ("provider", "processor"),
    [
        ({"type": "preprocess", "provider": {"id": "mineru", "apiKey": "secret"}}, "mineru"),
        ({"provider": {"id": " "}}, None),
        ({"provider": {"id": 5}}, None),
        ({"provider": {}}, None),
        ({"provider": "mineru"}, None),
        ({}, None),
        ("mineru", None),
        (None, None),
    ],
)
def test_file_processor(provider: Any, processor: str | None) -> None:
    assert only(preprocessProvider=provider).file_processor_id == processor


@pytest.mark.parametrize(("processor", "note"), [({"provider": {"id": "mineru"}}, "paper_1.md"), (None, "paper.md")])
def test_only_a_base_with_a_file_processor_reserves_names(processor: Any, note: str) -> None:
    draft = only(preprocessProvider=processor, items=[upload("1", "paper.pdf"), upload("2", "paper.md")])
    assert [item.data["relativePath"] for item in draft.items] == ["paper.pdf", note]
    assert codes(plan_base(draft, VectorSurvey()).notices) == [
        notices.MISSING_STORE,
        *([notices.RENAMED] if processor else []),
    ]


def upload(name: str, origin_name: str) -> dict[str, Any]:
    texts = dict.fromkeys(("id", "name", "path", "ext", "type", "created_at"), name)
    return {"id": name, "type": "file", "content": {**texts, "origin_name": origin_name, "size": 1, "count": 1}}


def test_renamed_files_are_counted_once_for_the_base() -> None:
    draft = only(items=[upload(str(n), name) for n, name in enumerate(["a.md", "A.md", "b.md", "a.md", "a?.md"])])
    assert [item.data["relativePath"] for item in draft.items] == ["a.md", "A_1.md", "b.md", "a_2.md", "a_.md"]
    [said] = [said for said in plan_base(draft, VectorSurvey()).notices if said.code == notices.RENAMED]
    assert (said.base, said.count, said.severity) == ("b1", 2, "note")


def test_every_base_has_names_of_its_own() -> None:
    drafted = library(base(items=[upload("1", "a.md")]), base(id="b2", items=[upload("2", "a.md")]))
    assert [draft.items[0].data["relativePath"] for draft in drafted.bases] == ["a.md", "a.md"]
    plans = [plan_base(draft, VectorSurvey()) for draft in drafted.bases]
    assert plans[0].taken_names == plans[1].taken_names == {".cherry", "a.md"}


def test_one_warning_names_all_invalid_settings() -> None:
    draft = only(chunkSize="?", chunkOverlap=-1, threshold=None, documentCount=0)
    assert draft.settings == Settings()
    (said,) = draft.notices
    assert (said.code, said.base, said.severity) == (notices.INVALID_CONFIG, "b1", "warning")
    assert "chunkSize, chunkOverlap, documentCount" in said.message
    assert "threshold" not in said.message


@pytest.mark.parametrize(("description", "kept"), [("What it is for", True), (" ", False), (None, False), (5, False)])
def test_a_description_is_kept_in_the_report(description: Any, kept: bool) -> None:
    said = only(description=description).notices
    assert codes(said) == ([notices.DROPPED_FIELD] if kept else [])
    assert not kept or "What it is for" in said[0].message


@pytest.mark.parametrize(
    ("items", "said"), [(None, []), ([], []), ({}, [notices.INVALID_ITEMS]), ("x", [notices.INVALID_ITEMS])]
)
def test_a_list_of_items_that_is_none(items: Any, said: list[str]) -> None:
    draft = only(items=items)
    assert (draft.items, draft.skipped_items, codes(draft.notices)) == ((), (), said)


def test_times_of_a_base() -> None:
    draft = only(created_at=1741944657000.7, updated_at="yesterday")
    assert (draft.created_at, draft.updated_at) == (1741944657000, None)


def test_constant_columns_of_a_base() -> None:
    defaults = {field.name: field.default for field in msgspec.structs.fields(BaseRow)}
    assert "search_mode" not in defaults
    assert defaults["chunk_strategy"] == "structured"
    assert defaults["chunk_separator"] == "\\n\\n"
    assert len(defaults["chunk_separator"]) == 4


def test_bases_stay_in_the_order_of_v1_and_notices_of_the_state_come_first() -> None:
    said = Notice(code=notices.MODELS_UNKNOWN, message="unknown")
    drafted = library(base(id="z"), None, base(id="a"), said=(said,))
    assert [draft.legacy_id for draft in drafted.bases] == ["z", "a"]
    assert codes(drafted.notices) == [notices.MODELS_UNKNOWN, notices.INVALID_BASE]


def test_a_draft_is_the_same_every_time() -> None:
    bases = [base(items=[upload("1", "a.md"), upload("2", "A.md"), None]), None, base(id="b2", chunkSize="x")]
    assert library(*bases) == library(*bases)
