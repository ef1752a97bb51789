"""Planning: pure, the same every time, and by the rules for owners, folders and rows."""

from __future__ import annotations

import copy
import hashlib
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness import REPO
from msgspec.structs import asdict
from v1 import CREATED, LLM, MODEL, UPDATED, base, file, folder, note, page

from migrators.cherry_v1.draft import draft_library
from migrators.pipeline import plan as plan_module
from migrators.pipeline.accounting import LoaderOwners, expand_folders
from migrators.pipeline.losses import folder_read_times
from migrators.pipeline.plan import BasePlan, FolderCounts, MaterialPlan, plan_base
from migrators.pipeline.source import BaseDraft, Duplicate, Hints, LibraryDraft, SkippedItem
from regraft.disk.file_paths import FreeNames
from regraft.formats import vector_survey
from regraft.formats.cherry_v1.state import V1State
from regraft.formats.cherry_v2.models import ModelOverrides
from regraft.formats.vector_survey import (
    MISSING,
    UNSUPPORTED,
    LoaderRows,
    RowTally,
    SalvageTally,
    StoreProblem,
    VectorSurvey,
)
from regraft.identity import replace
from regraft.report.notices import Notice

#: A row: its loader, the kind of its vector, its source.
SurveyRow = tuple[str | None, int, str | None]


def state(*bases: Any, **parts: Any) -> V1State:
    usual: dict[str, Any] = {
        "bases": list(bases),
        "providers": LLM["providers"],
        "files": {},
        "notes": {},
        "pending_delete": frozenset(),
        "notices": (),
    }
    return V1State(**{**usual, **parts})


def drafted(*items: Any, **fields: Any) -> BaseDraft:
    [draft] = draft_library(state(base("kb", *items, **fields)), ModelOverrides()).bases
    return draft


def survey(*rows: SurveyRow, body_bytes: int = 10) -> VectorSurvey:
    """Return the survey of a file with these rows, numbered 1, 2, …, as reading it would."""
    found = VectorSurvey(rows=len(rows), body_bytes=body_bytes * len(rows))
    before: object = object()
    for rowid, (loader, kind, source) in enumerate(rows, start=1):
        entry = found.loaders.setdefault(loader, LoaderRows())
        if loader != before:
            entry.runs.extend((rowid, rowid))
        before = loader
        entry.runs[-1] = rowid
        entry.highest_number += 1
        entry.rows += 1
        if source is not None and source.strip():
            entry.source = source
        tally = entry.kinds.setdefault(kind, RowTally(first_rowid=rowid))
        tally.count += 1
        tally.body_bytes += body_bytes
        if len(tally.samples) < vector_survey.MAX_SAMPLES:
            tally.samples.append(f"{loader}_{rowid}")
        if kind > 0:
            found.lengths[kind] = found.lengths.get(kind, 0) + 1
    return found


def rows(*loaders: str | None, kind: int = 16) -> list[SurveyRow]:
    return [(loader, kind, f"/docs/{loader}") for loader in loaders]


def planned(survey_rows: list[SurveyRow], *items: Any, **fields: Any) -> BasePlan:
    return plan_base(drafted(*items, **fields), survey(*survey_rows))


def by_name(plan: BasePlan) -> dict[str, str]:
    """Return what a test calls each item, by its new id."""
    names = {item.id: item.legacy_id for item in plan.items if item.legacy_id}
    children = {item.id: f"{names[item.group_id]}/{item.data['source']}" for item in plan.items if item.group_id}
    return {**names, **children}


def materials(plan: BasePlan) -> list[tuple[str, tuple[tuple[int, int], ...]]]:
    names = by_name(plan)
    return [(names[plan.items[material.item].id], material.runs) for material in plan.materials]


# --- purity --------------------------------------------------------------------------------------------------------


def rich_state() -> V1State:
    """A state that meets most rules."""
    items = [
        file("f", "F", "F2", name="CON.pdf"),
        file("partial", "P", content="known"),
        page("u", "U", created_at="no time"),
        note("n", "N", "shared", remark="kept"),
        note("n2", "shared"),
        folder("d", "D1", "D2", "D1", "F", "gone", ""),
        folder("d2", "D2", uniqueId=""),
        folder("d3", "gone"),
        None,
        {"id": "m", "type": "memory"},
        page("blank", address=" "),
        note("n"),
    ]
    files = {
        "known": {
            key: "x" if key not in ("size", "count") else 1
            for key in ("id", "name", "origin_name", "path", "ext", "type", "created_at", "size", "count")
        }
    }
    fields = {"chunkSize": "x", "rerankModel": {"id": "r", "provider": "gone"}, "description": "about"}
    return state(
        base("kb", *items, **fields),
        base("kb"),
        base("pending"),
        None,
        base("failed", *items, model=None),
        files=files,
        notes={"n": {"content": "stored"}},
        pending_delete=frozenset({"pending"}),
    )


def rich_survey() -> VectorSurvey:
    loaders = ["N", "U", "F", "N", "D1", "D2", "F2", "shared", None, "left over", "F", "P"]
    odd = [("F", MISSING, "s"), ("U", UNSUPPORTED, "s"), ("left over", MISSING, "s"), ("D2", 20, "/docs/last")]
    return survey(*rows(*loaders), *odd)


def whole_plan() -> tuple[LibraryDraft, list[BasePlan]]:
    draft = draft_library(rich_state(), ModelOverrides(mapped={"never::used": "a::b"}))
    return draft, [plan_base(one, rich_survey()) for one in draft.bases]


def test_the_same_input_gives_an_equal_plan() -> None:
    assert whole_plan() == whole_plan()


def test_planning_changes_nothing_that_it_is_given() -> None:
    given = rich_state()
    before = copy.deepcopy(given)
    library = draft_library(given, ModelOverrides())
    assert given == before
    found, untouched, draft_before = rich_survey(), rich_survey(), copy.deepcopy(library.bases[0])
    first = plan_base(library.bases[0], found)
    assert found == untouched
    assert library.bases[0] == draft_before
    assert plan_base(library.bases[0], found) == first


#: Audit events that tell of files, processes, the network and databases.
_WORLD = {"open", "os", "pathlib", "shutil", "tempfile", "glob", "socket", "subprocess", "sqlite3", "urllib", "mmap"}


class _Watch:
    """Collects what Python does to the world; an audit hook cannot be taken away again, so it can be switched off."""

    on = False
    events: list[str] = []  # noqa: RUF012 - one hook for the whole process

    @classmethod
    def hook(cls, event: str, _arguments: object) -> None:
        if cls.on and event.partition(".")[0] in _WORLD:
            cls.events.append(event)

    @classmethod
    @contextmanager
    def watching(cls) -> Iterator[list[str]]:
        if not getattr(cls, "added", False):
            sys.addaudithook(cls.hook)
            cls.added = True
        cls.events.clear()
        cls.on = True
        try:
            yield cls.events
        finally:
            cls.on = False


def test_planning_touches_neither_files_nor_network() -> None:
    whole_plan()  # what is imported late is imported now
    with _Watch.watching() as events:
        whole_plan()
    assert events == []
    with _Watch.watching() as events:
        Path(__file__).read_bytes()
    assert events, "the watch sees nothing"


def test_planning_knows_no_clock() -> None:
    library = draft_library(state(base("kb", note("n"), created_at="?", updated_at=None)), ModelOverrides())
    [draft] = library.bases
    [item] = draft.items
    assert (draft.created_at, draft.updated_at) == (None, None)
    assert (item.created_at, item.updated_at) == (CREATED, UPDATED)
    timeless = drafted(note("n", created_at=None, updated_at="?"))
    plan = plan_base(timeless, VectorSurvey())
    assert [(item.created_at, item.updated_at) for item in plan.items] == [(None, None)]
    v1 = [REPO / "migrators" / "cherry_v1" / f"{name}.py" for name in ("draft",)]
    pipeline = [REPO / "migrators" / "pipeline" / f"{name}.py" for name in ("source", "plan", "accounting", "losses")]
    catalog = [REPO / "regraft" / "formats" / "cherry_v2" / f"{name}.py" for name in ("models", "settings")]
    for path in (*v1, *pipeline, *catalog):
        source = path.read_text(encoding="utf-8")
        assert not re.search(r"^(import|from) (time|datetime|random|secrets|uuid|os)\b", source, re.MULTILINE)


@pytest.mark.thorough
def test_the_plan_does_not_hang_on_the_order_of_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process hashes texts differently: its plan is the same to the last example."""
    script = (
        "import os, sys; sys.path[:0] = sys.argv[1].split(os.pathsep)\nimport test_plan; print(test_plan.fingerprint())"
    )
    results = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-P", "-c", script, os.pathsep.join([str(Path(__file__).parent), *sys.path])],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        results.add(done.stdout)
    assert len(results) == 1


def fingerprint() -> str:
    """Return a text that differs for any two plans of different order."""
    plan_module.MAX_CONTENT_BYTES = 40
    large = [note(f"n{at}", f"L{at}") for at in range(8)]
    plans = [
        plan_base(
            drafted(*large),
            survey(*rows(*(f"L{at}" for at in range(8)), *(f"L{at}" for at in range(8))), body_bytes=30),
        )
    ]
    plans += whole_plan()[1]
    return "\n".join(
        f"{plan.notices} {plan.items} {plan.materials} {plan.rows} {plan.children} {plan.directories}" for plan in plans
    )


# --- ids -----------------------------------------------------------------------------------------------------------


def derived(name: str, *parts: str) -> bytes:
    """The recipe of the rules, written down once more."""
    hasher = hashlib.sha256(name.encode())
    for part in parts:
        hasher.update(len(part.encode()).to_bytes(8, "big") + part.encode())
    return hasher.digest()


def as_uuid(raw: bytes, version: int) -> str:
    number = bytearray(raw[:16])
    number[6] = number[6] & 0x0F | version << 4
    number[8] = number[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(number)))


def test_ids_are_pinned_for_ever() -> None:
    plan = planned(rows("A", "D", "E"), note("n", "A"), folder("d", "D", "E"))
    assert plan.draft.id == "23311364-14ae-446c-aac1-07b6b0f11a06"
    assert [item.id for item in plan.items] == [
        "019593fb-4990-79af-959c-c9c13fe8cfd0",
        "019593fb-4990-7175-aa32-8c3789d803a0",
        "019593fb-4990-774d-a150-2823194e5d50",
        "019593fb-4990-7936-b2f0-998da9225f19",
    ]
    assert plan.draft.id == as_uuid(derived("regraft/v1-base", "kb"), 4)
    stamp = CREATED.to_bytes(6, "big")
    single = derived("regraft/v1-item", "kb", "n", str(CREATED))
    assert plan.items[0].id == as_uuid(stamp + single[6:16], 7)
    child = derived("regraft/v1-directory-child", plan.items[1].id, "E", "1")
    assert plan.items[3].id == as_uuid(stamp + child[6:16], 7)


def test_ids_do_not_hang_on_anything_else() -> None:
    plain = planned(rows("A", "D"), note("n", "A"), folder("d", "D"))
    other = plan_base(
        drafted(
            page("new"),
            folder("d", "D", path="/elsewhere", updated_at=1),
            note("n", "B", text="changed", updated_at=5, processingStatus="failed"),
            name="Renamed",
            model={**MODEL, "id": "another"},
        ),
        survey(*rows("D", "X", "Y"), body_bytes=77),
    )
    new = {item.legacy_id or item.data["source"]: item.id for item in other.items}
    for item in plain.items:
        assert new[item.legacy_id or item.data["source"]] == item.id


def test_the_place_of_a_child_counts_children_not_entries() -> None:
    late = planned(rows("D"), folder("d", "gone", "", "D"))
    early = planned(rows("D"), folder("d", "D"))
    assert late.items[1].id == early.items[1].id


# --- folders -------------------------------------------------------------------------------------------------------


def children_of(*entries: Any, found: VectorSurvey, **fields: Any) -> list[tuple[str, str]]:
    draft = drafted(folder("d", *entries, **fields))
    expanded = expand_folders(draft, found)
    assert set(expanded) <= {draft.items[0].id}
    return [(child.loader_id, child.source) for child in expanded.get(draft.items[0].id, ())]


def test_children_stand_in_the_order_of_the_entries() -> None:
    found = survey(*rows("C", "A", "B", "other"))
    assert children_of("B", "C", "B", "gone", "A", found=found) == [
        ("B", "/docs/B"),
        ("C", "/docs/C"),
        ("A", "/docs/A"),
    ]


@pytest.mark.parametrize("kind", [16, 20, MISSING, UNSUPPORTED])
def test_a_row_with_a_source_is_enough_whatever_its_vector(kind: int) -> None:
    assert children_of("D", found=survey(("D", kind, "/docs/D"))) == [("D", "/docs/D")]


@pytest.mark.parametrize("source", [None, "", "  ", "\n"])
def test_rows_without_a_source_make_no_child(source: str | None) -> None:
    assert children_of("D", found=survey(("D", 16, source))) == []


@pytest.mark.parametrize("fields", [{"processingStatus": "failed"}, {"processingStatus": "pending"}, {"uniqueId": ""}])
def test_only_completed_folders_are_expanded(fields: dict[str, Any]) -> None:
    assert children_of("D", found=survey(*rows("D")), **fields) == []


def test_only_folders_are_expanded() -> None:
    assert expand_folders(drafted(note("n", "D"), page("p", "D")), survey(*rows("D"))) == {}


# --- owners --------------------------------------------------------------------------------------------------------


def owner_of(loader: str | None, found: VectorSurvey, *items: Any) -> str | None:
    draft = drafted(*items)
    expanded = expand_folders(draft, found)
    names = {item.id: item.legacy_id for item in draft.items}
    for container, children in expanded.items():
        names |= {child.id: f"{names[container]}#{at}" for at, child in enumerate(children)}
    owner = LoaderOwners(draft, expanded).item_of(loader)
    return None if owner is None else names[owner]


STANDALONE, LATER = note("alone", "L"), page("later", "L")
EXPANDED, TWICE = folder("d", "L"), folder("twice", "L", "L")
CONTAINER, OTHER = folder("c", "L", uniqueId=""), folder("c2", "L", processingStatus="failed")


@pytest.mark.parametrize(
    ("items", "owner"),
    [
        ([], None),
        ([note("n", "M")], None),
        ([STANDALONE], "alone"),
        ([STANDALONE, LATER], "later"),
        ([LATER, STANDALONE], "alone"),
        ([EXPANDED], "d#0"),
        ([TWICE], "twice#0"),
        ([EXPANDED, TWICE], "twice#0"),
        ([TWICE, EXPANDED], "d#0"),
        ([CONTAINER], "c"),
        ([CONTAINER, OTHER], "c2"),
        ([OTHER, CONTAINER], "c"),
        ([STANDALONE, EXPANDED], "alone"),
        ([EXPANDED, STANDALONE], "alone"),
        ([EXPANDED, CONTAINER], "d#0"),
        ([CONTAINER, EXPANDED, OTHER], "d#0"),
        ([CONTAINER, STANDALONE, OTHER], "alone"),
        ([OTHER, TWICE, LATER, CONTAINER, STANDALONE, EXPANDED], "alone"),
        ([note("failed", "L", processingStatus="failed"), EXPANDED], "failed"),
        ([note("idle", "L", uniqueId=""), EXPANDED], "idle"),
    ],
    ids=lambda value: " ".join(item["id"] for item in value) if isinstance(value, list) else str(value),
)
def test_whose_rows_a_loader_has(items: list[Any], owner: str | None) -> None:
    assert owner_of("L", survey(*rows("L")), *items) == owner


def test_rows_without_a_loader_are_nobodys() -> None:
    assert owner_of(None, survey(*rows(None)), note("n", "L")) is None


def test_an_entry_that_makes_no_child_in_an_expanded_folder_is_nobodys() -> None:
    plan = planned([("D", 16, "/docs/D"), ("blank", 16, " ")], folder("d", "D", "blank"))
    assert plan.rows.skipped == {"unmapped_loader": 1}
    assert materials(plan) == [("d//docs/D", ((1, 1),))]


def test_what_is_said_of_shared_loaders() -> None:
    items = [
        note("loser", "L", "M"),
        folder("first", "D", "L", "E"),
        folder("second", "D", "E"),
        note("winner", "L"),
        note("same twice", "N", "N"),
    ]
    plan = planned(rows("L", "M", "D", "E", "N"), *items)
    assert sorted((notice.code, notice.item, notice.count) for notice in plan.notices) == [
        ("directory_child_loader_conflict", "first", 1),
        ("directory_child_loader_shared", "first", 2),
        ("directory_child_outside", "first", 3),
        ("directory_child_outside", "second", 2),
        ("directory_not_migrated", "first", 1),
        ("loader_shared", "loser", 1),
    ]


# --- rows ----------------------------------------------------------------------------------------------------------


def test_materials_are_ordered_by_their_first_carried_rows() -> None:
    found: list[SurveyRow] = [
        ("A", MISSING, "s"),
        ("B", 16, "s"),
        ("A", 20, "s"),
        ("C", 16, "s"),
        ("A", 16, "s"),
        ("B", 16, "s"),
        ("A", 16, "s"),
        ("C", 16, "s"),
        ("C", 16, "s"),
    ]
    plan = planned(found, note("a", "A"), note("b", "B"), note("c", "C"))
    assert materials(plan) == [
        ("b", ((2, 2), (6, 6))),
        ("c", ((4, 4), (8, 9))),
        ("a", ((1, 1), (3, 3), (5, 5), (7, 7))),
    ]
    assert [material.rows for material in plan.materials] == [2, 3, 2]
    assert plan.rows.carried == 7
    assert plan.rows.skipped == {"missing_vector_payload": 1, "dimension_mismatch": 1}


def test_runs_of_several_loaders_of_one_item_are_merged_in_row_order() -> None:
    plan = planned(rows("B", "A", "A", "B", "C", "A"), note("n", "A", "B"), note("c", "C"))
    assert materials(plan) == [("n", ((1, 1), (2, 3), (4, 4), (6, 6))), ("c", ((5, 5),))]


@pytest.mark.parametrize("fields", [{}, {"model": None}])
@pytest.mark.parametrize(
    "found", [StoreProblem("cannot be read"), VectorSurvey(), rich_survey(), survey(*rows("F", kind=MISSING))]
)
def test_books_always_balance(fields: dict[str, Any], found: VectorSurvey | str) -> None:
    [raw] = [one for one in rich_state().bases if isinstance(one, dict) and one["id"] == "failed"]
    [draft] = draft_library(state({**raw, "model": MODEL, **fields}), ModelOverrides()).bases
    plan = plan_base(draft, found)
    assert plan.rows.is_balanced
    assert plan.rows.read == (found.rows if isinstance(found, VectorSurvey) else 0)
    if plan.error is not None:
        assert set(plan.rows.skipped) <= {plan.error}
        assert plan.materials == ()
        assert plan.children == {}


def test_the_model_is_to_blame_before_the_vector_file() -> None:
    assert plan_base(drafted(model=None), StoreProblem("does not exist")).error == "missing_embedding_model"
    assert plan_base(drafted(), StoreProblem("does not exist")).error == "missing_vector_store"
    assert plan_base(drafted(), survey(*rows("L"))).error is None


@pytest.mark.parametrize(
    ("stated", "model", "found", "dimensions"),
    [
        (7, MODEL, survey(*rows("L")), 4),
        (7, None, survey(*rows("L")), 7),
        (None, None, survey(*rows("L")), None),
        (7, MODEL, StoreProblem("does not exist"), None),
        (7, MODEL, StoreProblem("lacks a column", 48), 12),
        (7, None, StoreProblem("does not exist", 48), 7),
    ],
)
def test_dimensions(stated: Any, model: Any, found: VectorSurvey | str, dimensions: int | None) -> None:
    assert plan_base(drafted(dimensions=stated, model=model), found).dimensions == dimensions


def test_an_item_too_large_for_sqlite_is_skipped_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    # Three bodies of 10 bytes and two separators of 2.
    monkeypatch.setattr(plan_module, "MAX_CONTENT_BYTES", 34)
    items = [note("fits", "A"), note("large", "B"), folder("d", "C")]
    plan = planned(rows(*"AAABBBBCCCC"), *items)
    assert materials(plan) == [("fits", ((1, 3),))]
    assert plan.rows.skipped == {"content_too_large": 8}
    assert plan.rows.is_balanced
    assert [item.status for item in plan.items] == ["completed", "failed", "failed", "failed"]
    said = {notice.item: notice.count for notice in plan.notices if notice.code == "content_too_large"}
    assert said == {"large": 4, "d": 4}, "skipped by name"
    monkeypatch.setattr(plan_module, "MAX_CONTENT_BYTES", 33)
    assert planned(rows(*"AAA"), note("large", "A")).rows.skipped == {"content_too_large": 3}


def messages(plan: BasePlan, *codes: str) -> list[tuple[str | None, str, int]]:
    """Return the item, the text and the count of the notices with these codes."""
    return [(one.item, one.message, one.count) for one in plan.notices if one.code in codes]


def usable_texts() -> VectorSurvey:
    """A survey of two items: one has vectors, and rows whose vectors are missing, of another length or embedder."""
    found = survey(*rows("A", "A"), *rows("A", "A", kind=MISSING), *rows("A", kind=20), *rows("B", kind=-16))
    own = found.loaders["A"]
    own.refused = {"row_lost": tally(2, 7), "other_embedder": tally(2, 9)}
    found.rows += 4
    own.rows += 4
    own.kinds[16].digest, own.kinds[16].degenerate = 1000, 2
    missing = own.kinds[MISSING]
    missing.text_digest, missing.blank = 70, RowTally(count=1, body_bytes=4, text_digest=50, samples=["A_4"])
    own.kinds[20].text_digest, own.kinds[20].degenerate = 3, 1
    found.loaders["B"].kinds[-16].text_digest = 8
    return found


def tally(count: int, first: int) -> RowTally:
    samples = [f"A_{number}" for number in range(first, first + count)]
    return RowTally(count=count, first_rowid=first, body_bytes=10 * count, text_digest=100 * count, samples=samples)


def test_texts_are_planned_without_vectors_for_the_reasons_that_leave_them_usable() -> None:
    draft, found = drafted(note("a", "A"), note("b", "B")), usable_texts()
    plan = plan_base(draft, found, carry_text=True)
    assert (plan.rows.read, plan.rows.carried, plan.rows.without_vector) == (10, 7, 5)
    assert plan.rows.skipped == {"row_lost": 2, "missing_vector_payload": 1}
    assert (plan.error, plan.has_index, plan.vector_bytes, plan.carry_text) == (None, True, 16, True)
    # Two vectors, a text with its blank twin left out, one of another length and two of another embedder.
    assert plan.materials == (
        MaterialPlan(item=0, runs=((1, 5),), rows=6, body_bytes=66, digest=1000 + 20 + 3 + 200, is_finite=True),
        MaterialPlan(item=1, runs=((6, 6),), rows=1, body_bytes=10, digest=8, is_finite=False),
    )
    assert [(one.code, one.message, one.count, one.samples) for one in plan.notices] == [
        ("row_lost", "2 rows not migrated (for example A_7, A_8)", 2, ("A_7", "A_8")),
        ("missing_vector_payload", "without text as well; 1 row not migrated (for example A_4)", 1, ("A_4",)),
        (
            "carried_without_vector",
            (
                "5 rows migrated without a vector: 2 other_embedder, 1 missing_vector_payload, 1 dimension_mismatch,"
                " 1 non_finite_vector (for example A_9, A_10, A_3)"
            ),
            5,
            ("A_9", "A_10", "A_3"),
        ),
        (
            "degenerate_vector",
            "2 vectors without a direction (all zeros, or a norm beyond single precision), migrated unchanged",
            2,
            (),
        ),
    ]


def test_only_vectors_are_migrated_unless_texts_are_asked_for() -> None:
    plan = plan_base(drafted(note("a", "A"), note("b", "B")), usable_texts())
    assert (plan.rows.carried, plan.rows.without_vector, plan.carry_text) == (2, 0, False)
    assert plan.rows.skipped == {
        "row_lost": 2,
        "other_embedder": 2,
        "missing_vector_payload": 2,
        "dimension_mismatch": 1,
        "non_finite_vector": 1,
    }
    assert plan.materials == (MaterialPlan(item=0, runs=((1, 5),), rows=2, body_bytes=20, digest=1000, is_finite=True),)


FAILED = [note("a", "A"), folder("d", "D"), folder("e", path="/e")]


def test_a_base_without_usable_vectors_has_an_index_only_of_texts() -> None:
    found = survey(*rows("A", "A", "D", kind=MISSING))
    texts, plan = (plan_base(drafted(*FAILED), found, carry_text=carry) for carry in (True, False))
    assert (texts.error, texts.dimensions, texts.has_index, texts.vector_bytes) == (
        "missing_vector_store",
        None,
        True,
        0,
    )
    assert [(one.item, one.rows, one.is_finite) for one in texts.materials] == [(0, 2, True), (2, 1, True)]
    assert (texts.rows.carried, texts.rows.without_vector, texts.rows.skipped) == (3, 3, {})
    assert texts.directories == FolderCounts(expanded=1, children=1, tombstones=1)
    assert messages(texts, "missing_vector_store", "directory_not_migrated") == [
        (None, "its vector file kb holds no usable vector", 1),
        ("e", "folder /e stays one failed item: v1 lists no files in it", 1),
    ]
    assert (plan.error, plan.has_index, plan.vector_bytes, plan.materials) == ("missing_vector_store", False, 0, ())
    assert plan.rows.skipped == {"missing_vector_store": 3}
    assert plan.directories == FolderCounts(expanded=0, children=0, tombstones=2)
    lost = "its vector file kb holds no usable vector; 3 rows not migrated (for example A_1, A_2, D_3)"
    assert messages(plan, "missing_vector_store", "directory_not_migrated") == [
        (None, lost, 3),
        ("d", "folder /home/alice/docs stays one failed item: its base failed", 1),
        ("e", "folder /e stays one failed item: its base failed", 1),
    ]


def test_what_a_file_that_can_be_read_later_will_bring_is_said() -> None:
    plan = plan_base(drafted(*FAILED), StoreProblem("cannot be read"), carry_text=True)
    assert (plan.has_index, plan.carry_text, plan.rows.read) == (False, False, 0)
    later = "its base failed; a later run can recover it once the vector file can be read"
    assert messages(plan, "missing_vector_store", "directory_not_migrated") == [
        (None, "its vector file kb cannot be read", 1),
        ("d", f"folder /home/alice/docs stays one failed item: {later}", 1),
        ("e", f"folder /e stays one failed item: {later}", 1),
    ]
    # No later run has the model.
    plan = plan_base(drafted(folder("d", "D"), model=None), StoreProblem("cannot be read"))
    assert messages(plan, "directory_not_migrated") == [
        ("d", "folder /home/alice/docs stays one failed item: its base failed", 1)
    ]


def test_an_empty_file_has_the_dimensions_that_its_source_says() -> None:
    empty = replace(drafted(note("a", "A")), dimensions_if_empty=8)
    plan = plan_base(empty, VectorSurvey())
    assert (plan.error, plan.dimensions, plan.vector_bytes, plan.has_index) == (None, 8, 32, True)
    assert plan_base(empty, survey(*rows("A"))).dimensions == 4
    assert plan_base(drafted(note("a", "A")), VectorSurvey()).error == "missing_vector_store"


def test_what_is_said_of_folders_and_their_files() -> None:
    items = [
        note("n", "A"),
        folder("d", "D", "odd", "none", "E", "F", "blank"),
        folder("c"),
        folder("t", "A", path="/t"),
        folder("x", "x1", "x2", "x1", path="/x"),
        file("f1", name="a.md"),
        file("f2", name="a.md"),
    ]
    found = survey(*rows("A", "D"), ("odd", 20, "/home/alice/docs/odd.md"), ("blank", 16, " "))
    paths = {"E": "/home/alice/docs/sub/e.md", "F": "/home/alice/docs2/f.md", "n": "/elsewhere"}
    plan = plan_base(drafted(*items), found, Hints(paths=paths))
    assert plan.found.paths == {"E": paths["E"], "F": paths["F"]}
    assert plan.directories == FolderCounts(expanded=2, children=3, tombstones=2)
    failed = ("failed", "directory_not_migrated")
    assert [(one.data.get("relativePath"), one.status, one.error) for one in plan.items] == [
        (None, "completed", None),
        ("docs", "completed", None),
        ("docs/D", "completed", None),
        ("docs/odd.md", *failed),
        (None, *failed),
        ("t", *failed),
        ("t/A", *failed),
        (None, *failed),
        ("a.md", "idle", None),
        ("a_1.md", "idle", None),
    ]
    outside = "stored under their file name alone: the path that v1 recorded is not inside the folder"
    assert [(one.code, one.item, one.message, one.count) for one in plan.notices if one.code.startswith("dir")] == [
        (
            "directory_entries_without_rows",
            "d",
            "3 of 6 files of the folder /home/alice/docs have no rows in v1 (sub/e.md, /home/alice/docs2/f.md)",
            3,
        ),
        (
            "directory_child_not_migrated",
            "d",
            "1 of 2 files of the folder /home/alice/docs have no row that can be migrated",
            1,
        ),
        ("directory_child_outside", "d", f"1 file of the folder /home/alice/docs {outside}", 1),
        (
            "directory_not_migrated",
            "t",
            "folder /t is marked as failed: the rows of all its files belong to other items",
            1,
        ),
        ("directory_child_outside", "t", f"1 file of the folder /t {outside}", 1),
        (
            "directory_child_loader_conflict",
            "t",
            "1 file of the folder also added as single items; the rows stay with those items",
            1,
        ),
        (
            "directory_not_migrated",
            "c",
            "folder /home/alice/docs stays one failed item: v1 lists no files in it",
            1,
        ),
        ("directory_not_migrated", "x", "folder /x stays one failed item: none of its 2 files has rows", 1),
    ]
    assert messages(plan, "renamed_files") == [(None, "1 file renamed because the name was taken", 1)]
    assert messages(plan, "dimension_mismatch") == [(None, "1 row not migrated (for example odd_3)", 1)]


def test_files_that_get_another_name_are_counted() -> None:
    items = [file(f"f{number}", name="a.md") for number in range(4)]
    assert messages(planned(rows("N"), note("n", "N"), *items), "renamed_files") == [
        (None, "3 files renamed because the name was taken", 3)
    ]


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (1, "1 completed file without rows, and so without any text: 0.md"),
        (5, "5 completed files without rows, and so without any text: 0.md, 1.md, 2.md, 3.md, 4.md"),
        (6, "6 completed files without rows, and so without any text: 0.md, 1.md, 2.md, 3.md, 4.md and 1 more"),
    ],
)
def test_of_many_files_some_are_named(files: int, named: str) -> None:
    items = [file(f"f{number}", f"F{number}", name=f"{number}.md") for number in range(files)]
    assert messages(planned(rows("N"), note("n", "N"), *items), "file_without_rows") == [(None, named, files)]


@pytest.mark.parametrize(("length", "shown"), [(100, f"{'x' * 97}.md"), (101, f"{'x' * 98}.…")])
def test_long_names_are_cut(length: int, shown: str) -> None:
    name = f"{'x' * (length - 3)}.md"
    plan = planned(rows("N"), note("n", "N"), file("f", "F", name=name))
    said = f"1 completed file without rows, and so without any text: {shown}"
    assert messages(plan, "file_without_rows") == [(None, said, 1)]


def test_rows_of_an_item_that_is_not_migrated_are_skipped_for_its_reason() -> None:
    draft = replace(drafted(note("n", "M")), skipped_items=(SkippedItem("gone", "deleted", ("L", "M")),))
    plan = plan_base(draft, survey(*rows("L", "M", "X", None)))
    assert plan.rows.skipped == {"deleted": 1, "unmapped_loader": 2}
    assert materials(plan) == [("n", ((2, 2),))]


# --- losses of a damaged file --------------------------------------------------------------------------------------


def damaged_survey(**known: Any) -> VectorSurvey:
    """A survey of what is left of three items: one is whole, one lost two rows, one may have lost some."""
    found = survey(*rows("W", "W", "L", "G", "G"))
    found.rows += 2
    found.loaders["L"].rows += 2
    found.loaders["L"].refused = {"row_lost": tally(2, 6)}
    found.loaders["G"].highest_number = 4
    usual = {"problem": "is damaged", "rows": 5, "about": 9, "pages": 8, "pages_read": 7, "page_bytes": 512}
    found.salvage = SalvageTally(**{**usual, **known})
    return found


DAMAGED = [note("w", "W", text="whole"), note("l", "L", text="lost"), note("g", "G", text="gaps")]


def damaged_draft() -> BaseDraft:
    return replace(drafted(*DAMAGED), vector_file="kb_")


def test_what_damage_took_is_said_of_the_base_and_of_each_item() -> None:
    plan = plan_base(damaged_draft(), damaged_survey())
    assert (plan.whole_items, plan.damaged_items) == (1, 2)
    whole = "7 of its 8 pages could be read (87 %); 1 item complete as far as row numbers show, 2 damaged"
    assert messages(plan, "salvaged", "rows_lost", "v1_deduplicated", "v1_deduplicated_item") == [
        (None, f"its vector file kb_ is damaged; 5 of about 9 rows were salvaged; {whole}", 4),
        ("l", "lost: 2 rows could not be recovered from the damaged file", 2),
        ("g", "gaps: rows may be lost, because numbers are missing among its rows", 1),
    ]


def test_where_all_rows_are_known_gaps_are_no_losses() -> None:
    found = damaged_survey(is_exact=True, about=5, weaker={"scan": 2, "index": 1})
    found.loaders["gone"] = LoaderRows(rows=1, refused={"row_lost": tally(1, 8)})
    found.rows += 1
    plan = plan_base(drafted(*DAMAGED), found)
    assert (plan.whole_items, plan.damaged_items) == (2, 1)
    said = "its vector file kb is damaged; 5 of about 5 rows were salvaged; 7 of its 8 pages could be read (87 %)"
    assert messages(plan, "salvaged", "rows_lost") == [
        (None, f"{said}; 2 items complete, 1 damaged; 3 rows found outside the b-tree of the table", 1),
        ("l", "lost: 2 rows could not be recovered from the damaged file", 2),
    ]
    assert plan.rows.v1_deduplicated == 3
    assert messages(plan, "v1_deduplicated_item") == [
        ("g", "gaps: at least 3 of its 5 chunks never stored by v1 because the same text was stored already", 3)
    ]


def test_a_damaged_file_of_a_folder_is_named_as_it_is_in_it() -> None:
    found = survey(("D", 16, "/home/alice/docs/sub/d.md"))
    found.loaders["D"].refused = {"row_lost": tally(1, 2)}
    found.rows += 1
    found.salvage = SalvageTally(problem="is damaged", rows=1, about=2, is_exact=True)
    plan = plan_base(drafted(note("n", "N"), folder("d", "D")), found)
    assert messages(plan, "rows_lost") == [("d", "sub/d.md: 1 row could not be recovered from the damaged file", 1)]


def test_a_file_that_lost_no_row_names_no_item() -> None:
    found = survey(*rows("W", "L", "G"))
    found.salvage = SalvageTally(problem="is damaged", rows=3, about=3, pages=1, pages_read=1)
    plan = plan_base(drafted(*DAMAGED), found)
    assert (plan.whole_items, plan.damaged_items) == (3, 0)
    said = "its vector file kb is damaged; 3 of about 3 rows were salvaged; 1 of its 1 page could be read (100 %)"
    assert messages(plan, "salvaged", "rows_lost") == [
        (None, f"{said}; 3 items complete as far as row numbers show, 0 damaged", 1)
    ]


def test_a_base_that_was_not_salvaged_has_no_losses() -> None:
    whole = plan_base(drafted(*DAMAGED), survey(*rows("W", "L", "G")))
    assert (whole.salvage, whole.whole_items, whole.damaged_items) == (None, 0, 0)
    assert messages(whole, "salvaged", "rows_lost") == []
    assert messages(plan_base(drafted(*DAMAGED, model=None), damaged_survey()), "salvaged", "rows_lost") == []
    # What could be salvaged is reported, too.
    tally = damaged_survey().salvage
    failed = plan_base(drafted(*DAMAGED), StoreProblem("is damaged", is_damage=True, salvage=tally))
    assert failed.salvage == tally
    assert messages(failed, "salvaged", "rows_lost") == []


# --- duplicates ----------------------------------------------------------------------------------------------------

DUPLICATES = [
    file("f", "F"),
    file("lost", "LOST"),
    file("idle", "IDLE", uniqueId=""),
    note("n", "N"),
    folder("d", "D", "GONE", "odd"),
    folder("stays", "S", processingStatus="failed"),
]
DUPLICATE_ROWS = [*rows("F", "N", "D"), ("odd", 20, "/docs/odd"), *rows("F")]


def twin(lost: str, like: str, path: str = "", **fields: Any) -> Duplicate:
    """Return a twin as a look at the files makes it: standalone items by their ids, files of folders by their time."""
    alone = {loader: item.id for item in drafted(*DUPLICATES).items for loader in item.loader_ids if not item.entries}
    own, like_item = "" if path else alone.get(lost, ""), alone.get(like, "")
    usual: dict[str, Any] = {
        "item": own,
        "like_item": like_item,
        "read_at": None if own else UPDATED,
        "like_read_at": None if like_item else UPDATED,
    }
    return replace(Duplicate(lost, like, f"{lost}.md", f"{like}.md", path), **{**usual, **fields})


def with_twins(*twins: Duplicate, restore: bool = True) -> BasePlan:
    hints = Hints(twins=twins, restore_twins=restore)
    return plan_base(drafted(*DUPLICATES), survey(*DUPLICATE_ROWS), hints)


@pytest.mark.parametrize(
    ("known", "may_be_lost"),
    [
        ({}, True),
        ({"about": 6}, True),
        ({"about": 6, "pages_read": 8}, False),
        ({"is_exact": True}, False),
    ],
)
def test_completed_items_without_a_salvaged_row_may_have_lost_theirs(known: dict[str, Any], may_be_lost: bool) -> None:
    others = [
        file("gone", "NOWHERE", name="gone.txt"),
        file("none", uniqueId="none", uniqueIds=[""], name="none.txt"),
        file("later", "N", name="later.txt"),
        note("page", "PAGE", text="page"),
    ]
    found = survey(*DUPLICATE_ROWS)
    usual = {"problem": "is damaged", "rows": 6, "about": 9, "pages": 8, "pages_read": 7}
    found.salvage = SalvageTally(**{**usual, **known})
    plan = plan_base(drafted(*DUPLICATES, *others), found, Hints(twins=(twin("LOST", "F"),)))
    codes = ("rows_lost", "file_without_rows", "directory_entries_without_rows")
    without = "without rows, and so without any text"
    if may_be_lost:
        expected = [
            ("d", "none of the rows of 1 of 3 files of the folder /home/alice/docs were salvaged", 1),
            ("gone", "gone.txt: none of its rows were salvaged, if v1 had any", 1),
            ("page", "page: none of its rows were salvaged, if v1 had any", 1),
            (None, f"1 completed file {without}: none.txt", 1),
        ]
    else:
        expected = [
            ("d", "1 of 3 files of the folder /home/alice/docs have no rows in v1", 1),
            (None, f"2 completed files {without}: gone.txt, none.txt", 2),
        ]
    assert messages(plan, *codes) == expected
    assert plan.damaged_items == (2 if may_be_lost else 0)


def test_restored_materials_come_last_and_are_outside_the_books() -> None:
    plain, plan = with_twins(), with_twins(twin("GONE", "F", "/docs/gone"), twin("LOST", "D"))
    assert materials(plan)[:3] == materials(plain)
    assert materials(plan)[3:] == [("lost", ((3, 3),)), ("d//docs/gone", ((1, 1), (5, 5)))]
    assert (plan.rows.carried, plan.rows.skipped) == (plain.rows.carried, plain.rows.skipped)
    assert (plan.rows.restored_duplicate, plan.units, plain.units) == (3, plain.rows.carried + 3, plain.rows.carried)
    assert plan.body_bytes == plain.body_bytes + 30
    # Other children are what they were, in their order.
    assert [item for item in plan.items if item.data["source"] != "/docs/gone"] == list(plain.items)
    assert [child for child in by_name(plan).values() if "/" in child] == ["d//docs/D", "d//docs/gone", "d//docs/odd"]
    [gone] = [item for item in plan.items if item.data["source"] == "/docs/gone"]
    assert gone.group_id is not None
    own = derived("regraft/v1-directory-child", gone.group_id, "GONE", "0")
    assert gone.id == as_uuid(CREATED.to_bytes(6, "big") + own[6:16], 7)


@pytest.mark.parametrize(
    "odd",
    [
        twin("D", "F"),
        twin("LOST", "N"),
        twin("LOST", "odd"),
        twin("LOST", "nobody"),
        twin("LOST", "LOST"),
        twin("IDLE", "F"),
        twin("N", "F"),
        twin("S", "F", "/docs/s"),
        twin("GONE", "F"),
        twin("nobody", "F", "/docs/nobody"),
        twin("LOST", "F", item="another"),
        twin("LOST", "F", like_item="another"),
        twin("LOST", "D", like_item="another"),
        twin("LOST", "F", like_item="", like_read_at=UPDATED),
        twin("LOST", "D", like_read_at=UPDATED + 1),
        twin("LOST", "D", like_read_at=None),
        twin("GONE", "F", "/docs/gone", read_at=UPDATED - 1),
        twin("GONE", "F", "/docs/gone", read_at=None),
        twin("LOST", "F", "/docs/lost"),
    ],
    ids=str,
)
def test_a_twin_that_does_not_fit_changes_nothing(odd: Duplicate) -> None:
    """Such as one with rows of its own, like a note, like nothing that is carried, or of an item that is idle.

    Nor is a twin one whose rows go to another item than was compared, or whose folder v1 read at another time.
    """
    assert with_twins(odd) == with_twins()


def test_a_folder_without_a_time_has_no_twins() -> None:
    items = [file("f", "F"), folder("d", "D", "GONE", created_at=None, updated_at=None)]
    known = survey(*rows("F", "D"))
    twins = (twin("GONE", "F", "/docs/gone", like_item=drafted(*items).items[0].id),)
    assert plan_base(drafted(*items), known, Hints(twins=twins)) == plan_base(drafted(*items), known)
    assert folder_read_times(drafted(*items, folder("e", "GONE", "E"))) == {"E": UPDATED}
    earlier = folder("e", "D", "GONE", created_at=CREATED - 9, updated_at=None)
    assert folder_read_times(drafted(folder("d", "D"), earlier)) == {"D": CREATED - 9, "GONE": CREATED - 9}


def test_completed_files_without_rows_are_named_once() -> None:
    items = [
        file("earlier", "A", name="earlier.csv"),
        file("b", "B", name="b.txt"),
        file("none", uniqueId="none", uniqueIds=[""], name="none.txt"),
        file("failed", "FAILED", processingStatus="failed"),
        file("idle", uniqueId=""),
        file("a", "A", name="a.csv"),
        file("unusable", "U"),
        note("n", "N"),
        *DUPLICATES[:2],
    ]
    found = survey(*rows("F"), ("U", MISSING, None))
    plan = plan_base(drafted(*items), found, Hints(twins=(twin("LOST", "F"),)))
    [said] = [notice for notice in plan.notices if notice.code == "file_without_rows"]
    assert (said.base, said.item, said.count) == ("kb", None, 3)
    assert said.message == "3 completed files without rows, and so without any text: b.txt, none.txt, a.csv"
    failed = plan_base(drafted(*items), StoreProblem("does not exist"))
    assert "file_without_rows" not in {notice.code for notice in failed.notices}


def test_twins_are_only_told_where_that_is_asked_for() -> None:
    plain, plan = with_twins(), with_twins(twin("LOST", "F"), twin("GONE", "F", "/docs/gone"), restore=False)
    assert (plan.items, plan.materials, plan.rows) == (plain.items, plain.materials, plain.rows)
    told = [notice for notice in plan.notices if notice not in plain.notices]
    assert [(notice.code, notice.item, notice.count) for notice in told] == [
        ("lost_duplicate", "lost", 2),
        ("lost_duplicate", "d", 2),
    ]


def test_what_hints_have_to_say_is_said() -> None:
    said = Notice(code="dropped_field", message="found beside it", base="kb")
    plan = plan_base(drafted(note("n", "N")), survey(*rows("N")), Hints(notices=(said,)))
    assert plan.notices == (said,)


@pytest.mark.parametrize("left_out", ["nothing", "a chunk", "a vector"])
def test_a_file_gets_as_much_as_v1_stored_of_its_twin(left_out: str) -> None:
    found = survey(*DUPLICATE_ROWS)
    if left_out == "a chunk":
        found.loaders["F"].highest_number += 1
    elif left_out == "a vector":
        found.loaders["F"].rows += 1
        found.loaders["F"].kinds[MISSING] = tally(1, 6)
        found.rows += 1
    part = "" if left_out == "nothing" else ", as far as v1 stored it"
    for restore, ending in ((True, "gets"), (False, "would get")):
        plan = plan_base(drafted(*DUPLICATES), found, Hints(twins=(twin("LOST", "F"),), restore_twins=restore))
        [(item, message, count)] = messages(plan, "restored_duplicate", "lost_duplicate")
        more = "" if restore else " if --no-restore-duplicates were left out"
        why = "LOST.md: v1 stored no chunks of it, because F.md has the same bytes"
        assert (item, message, count) == ("lost", f"{why}; it {ending} the same 2 chunks{part}{more}", 2)


def test_a_twin_that_may_have_changed_since_is_said() -> None:
    plan = with_twins(twin("GONE", "F", "/docs/gone", changed=True))
    why = "and F.md has the same bytes now, but one of the two was changed after v1 read it"
    assert messages(plan, "restored_duplicate") == [
        ("d", f"GONE.md: v1 stored no chunks of it, {why}; it gets the same 2 chunks", 2)
    ]
    # A later run finds the pair again even if the file is gone by then.
    assert plan.found.twins == (twin("GONE", "F", "/docs/gone", changed=True),)


def test_names_taken_by_files_stay_taken_for_snapshots() -> None:
    draft = drafted(file("f", name="Title.pdf"), preprocessProvider={"provider": {"id": "p"}})
    names = FreeNames(plan_base(draft, survey()).taken_names, reserve_processed=True)
    assert names.take("title.md") == "title_1.md"


def test_a_plan_is_a_value() -> None:
    [plan, _] = whole_plan()[1]
    with pytest.raises(AttributeError):
        plan.error = "changed"  # type: ignore[misc]
    assert asdict(plan)["rows"].read == rich_survey().rows
