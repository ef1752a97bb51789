"""Which bases of an earlier run are kept, which are migrated again, and what a run says of them."""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faults import fails
from harness import NOW_MS
from msgspec import UNSET, structs
from planned_bases import Shown, entry_of, planned
from v1 import file, folder, note

from migrators.pipeline import publication, report, survey, workers
from migrators.pipeline import run as runs
from migrators.pipeline.losses import SalvageResult
from migrators.pipeline.publication import BaseEntry, TargetLibrary, pack_entry
from migrators.pipeline.run import LibraryPlan
from migrators.pipeline.session import Session
from migrators.pipeline.source import FoundOnDisk, Hints, LibraryDraft, Options, SkippedBase
from migrators.pipeline.survey import BaseJob
from regraft.disk.trees import FolderTree
from regraft.errors import SourceUnreadable
from regraft.formats.vector_survey import LoaderRows, RowTally, SalvageTally, StoreProblem, VectorSurvey
from regraft.identity import replace
from regraft.ledger import ledger as ledgers
from regraft.report.document import Run
from regraft.report.migration import SalvageReport
from regraft.report.notices import Notice

PLAN = planned()
ENTRY = entry_of(PLAN)
LOST = replace(PLAN, error="missing_vector_store", materials=())


def failed(entry: BaseEntry, error: str = "missing_vector_store") -> BaseEntry:
    record = replace(entry.record, base=replace(entry.record.base, status="failed", error=error))
    return structs.replace(entry, record=record, report=replace(entry.report, status="failed", error=error))


def with_texts(entry: BaseEntry, rows: int = 2) -> BaseEntry:
    return replace(entry, report=replace(entry.report, rows=replace(entry.report.rows, without_vector=rows)))


def job(existing: BaseEntry | None, **more: Any) -> BaseJob:
    return BaseJob(0, PLAN.draft, "mark", existing=existing, **more)


# --- kept or replaced ------------------------------------------------------------------------------------------------


def test_a_base_that_would_fail_now_does_not_replace_a_better_one() -> None:
    kept = job(ENTRY).entry_to_keep(LOST)
    assert kept is not None
    [notice] = kept.notices
    said = "it would fail now (missing_vector_store); the completed base from an earlier run is kept"
    assert (notice.code, notice.base, notice.message) == ("completed_base_kept", "kb", said)
    assert replace(kept, notices=[]) == ENTRY
    assert job(None).entry_to_keep(LOST) is None
    assert job(ENTRY).entry_to_keep(PLAN) is None
    # A failed base may follow one that failed, unless that has texts and the new one would have none.
    assert job(failed(ENTRY)).entry_to_keep(LOST) is None
    texts = job(with_texts(failed(ENTRY))).entry_to_keep(LOST)
    assert texts is not None
    assert texts.notices[0].message.endswith("; the base with texts from an earlier run is kept")
    assert job(with_texts(failed(ENTRY))).entry_to_keep(replace(LOST, materials=PLAN.materials)) is None


@pytest.mark.parametrize(
    ("carried", "is_damaged", "keeps"), [(2, False, True), (3, False, False), (1, False, True), (2, True, False)]
)
def test_a_damaged_source_replaces_a_base_only_if_it_gives_more(carried: int, is_damaged: bool, keeps: bool) -> None:
    tally = SalvageTally(rows=carried, about=5)
    plan = replace(PLAN, salvage=tally, rows=replace(PLAN.rows, read=carried, carried=carried))
    kept = job(ENTRY, is_damaged=is_damaged).entry_to_keep(plan)
    assert (kept is not None) == keeps
    if kept is not None:
        error = f"{carried} of about 5 rows can be salvaged"
        said = f"its vector file is damaged now ({error}); the base from an earlier run is kept"
        assert [(one.code, one.base, one.message) for one in kept.notices] == [("completed_base_kept", "kb", said)]
    assert job(failed(ENTRY)).entry_to_keep(plan) is None


def test_an_unchanged_source_that_fails_again_keeps_what_is_there() -> None:
    again = job(failed(ENTRY), plan=LOST)
    assert survey._keep_better_base(again, same=True).unchanged == failed(ENTRY)
    assert survey._keep_better_base(again, same=True).plan is None
    assert survey._keep_better_base(again, same=False) is again
    better = job(failed(ENTRY), plan=PLAN)
    assert survey._keep_better_base(better, same=True) is better
    kept = survey._keep_better_base(job(ENTRY, plan=LOST), same=False)
    assert (kept.plan, kept.unchanged is not None) == (None, True)
    for neither in (job(None, plan=LOST), job(ENTRY)):
        assert survey._keep_better_base(neither, same=True) is neither


SALVAGED = SalvageReport(
    carried=False,
    rows=3,
    about=5,
    refused={},
    weaker={},
    deleted=0,
    pages=1,
    pages_read=1,
    page_bytes=512,
    items={},
)


def reported(entry: BaseEntry, **more: Any) -> BaseEntry:
    return replace(entry, report=replace(entry.report, **more))


@pytest.mark.parametrize(
    ("entry", "options", "changed"),
    [
        (ENTRY, {}, False),
        (reported(failed(ENTRY), salvage=SALVAGED), {"salvage": True}, True),
        (reported(failed(ENTRY), salvage=SALVAGED), {}, False),
        (reported(failed(ENTRY), salvage=replace(SALVAGED, rows=0)), {"salvage": True}, False),
        (failed(ENTRY), {"salvage": True}, False),
        (reported(failed(ENTRY, "missing_embedding_model"), salvage=SALVAGED), {"salvage": True}, False),
        (reported(ENTRY, rows=replace(ENTRY.report.rows, skipped={"dimension_mismatch": 1})), {}, False),
        (
            reported(ENTRY, rows=replace(ENTRY.report.rows, skipped={"dimension_mismatch": 1})),
            {"carry_text": True},
            True,
        ),
        (
            replace(
                reported(ENTRY, rows=replace(ENTRY.report.rows, skipped={"dimension_mismatch": 1})), carry_text=True
            ),
            {"carry_text": True},
            False,
        ),
        (
            reported(ENTRY, rows=replace(ENTRY.report.rows, skipped={"unmapped_loader": 1})),
            {"carry_text": True},
            False,
        ),
        (replace(ENTRY, notices=[Notice(code="lost_duplicate", message="x")]), {}, True),
        (replace(ENTRY, notices=[Notice(code="lost_duplicate", message="x")]), {"restore_duplicates": False}, False),
        (
            reported(ENTRY, rows=replace(ENTRY.report.rows, restored_duplicate=1)),
            {"restore_duplicates": False},
            True,
        ),
        (reported(ENTRY, rows=replace(ENTRY.report.rows, restored_duplicate=1)), {}, False),
        (ENTRY, {"restore_duplicates": False}, False),
    ],
)
def test_options_that_ask_for_more_migrate_a_base_again(entry: BaseEntry, options: Any, changed: bool) -> None:
    assert survey._options_changed(entry, Options(now_ms=NOW_MS, **options)) == changed


@pytest.fixture
def source(tmp_path: Path) -> Any:
    """A source with the vector file of the base, of 9 bytes."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "kb").write_bytes(bytes(9))
    places = SimpleNamespace(vectors="", uploads=None)
    return SimpleNamespace(tree=FolderTree(tmp_path / "source"), places=places, is_archive=False, notices=())


MISSING = failed(ENTRY)
WITH_TEXTS = with_texts(ENTRY)


@pytest.mark.parametrize(
    ("entry", "state", "is_same", "is_archive", "options", "told"),
    [
        (ENTRY, "WHOLE", True, False, {}, "unchanged"),
        (ENTRY, "WHOLE", False, False, {}, "planned"),
        (ENTRY, "WHOLE", True, False, {"restore_duplicates": False}, "unchanged"),
        (reported(ENTRY, rows=replace(ENTRY.report.rows, restored_duplicate=1)), "WHOLE", True, False, {}, "unchanged"),
        (
            reported(ENTRY, rows=replace(ENTRY.report.rows, restored_duplicate=1)),
            "WHOLE",
            True,
            False,
            {"restore_duplicates": False},
            "planned",
        ),
        (ENTRY, "CHANGED", True, False, {}, "unchanged, changed"),
        (ENTRY, "CHANGED", False, False, {}, "planned, changed"),
        (ENTRY, "DAMAGED", True, False, {}, "planned, damaged"),
        (ENTRY, "GONE", True, False, {}, "new"),
        (MISSING, "WHOLE", True, False, {}, "planned"),
        (MISSING, "WHOLE", True, True, {}, "unchanged"),
        (failed(ENTRY, "missing_embedding_model"), "WHOLE", True, False, {}, "unchanged"),
        (WITH_TEXTS, "WHOLE", False, False, {}, "planned, texts"),
        (ENTRY, "WHOLE", False, False, {"carry_text": True}, "planned, texts"),
    ],
)
def test_which_bases_of_an_earlier_run_are_planned_again(
    entry: BaseEntry,
    state: str,
    is_same: bool,
    is_archive: bool,
    options: dict[str, Any],
    told: str,
    source: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned_with: list[Any] = []

    def plan(_: Any, position: int, draft: Any, mark: str, known: Any, options: Options) -> BaseJob:
        planned_with.append((position, draft.id, mark, known, options.carry_text))
        return BaseJob(position, draft, mark, plan=PLAN)

    def base_state(target: Path, base_id: str, known: BaseEntry, *, verify: bool) -> Any:
        assert (target, base_id, known, verify) == (tmp_path / "library", PLAN.draft.id, entry, True)
        return survey.BaseState[state]

    monkeypatch.setattr(survey.BasePlanner, "_plan_base", plan)
    monkeypatch.setattr(survey, "base_state", base_state)
    source.is_archive = is_archive
    asked = Options(now_ms=NOW_MS, verify=True, **options)
    planner = survey.BasePlanner(SimpleNamespace(), source, tmp_path / "library", asked, ExitStack(), tmp_path)  # type: ignore[arg-type]
    mark = survey.base_fingerprint(source, PLAN.draft)
    entries = {PLAN.draft.id: pack_entry(entry, mark if is_same else "0" * 40)}
    progress = Shown()
    [one] = planner.plan_bases([(4, PLAN.draft)], entries, progress)
    assert progress.told == ["My base", (9, 0)]
    assert (one.position, one.draft, one.fingerprint) == (4, PLAN.draft, mark)
    is_changed = told.endswith(", changed")
    if told.startswith("unchanged"):
        assert (planned_with, one.plan) == ([], None)
        found = one.unchanged
    else:
        assert [given[:3] for given in planned_with] == [(4, PLAN.draft.id, mark)]
        assert planned_with[0][4] == told.endswith("texts")
        assert (one.plan, one.is_damaged) == (PLAN, told.endswith("damaged"))
        found = planned_with[0][3]
        assert one.existing == (None if told == "new" else found)
    assert replace(found, notices=[]) == entry
    said = [("kb", "changed in the target since it was migrated; left unchanged")] if is_changed else []
    assert [(notice.base, notice.message) for notice in found.notices] == said


def test_a_base_that_no_run_wrote_is_planned_without_reading_its_files(
    source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(_: Any, position: int, draft: Any, *given: Any) -> BaseJob:
        assert given == ("", None, asked)
        return BaseJob(position, draft, "", plan=PLAN)

    monkeypatch.setattr(survey.BasePlanner, "_plan_base", plan)
    monkeypatch.setattr(survey, "base_fingerprint", lambda *_: pytest.fail("it was read"))
    asked = Options(now_ms=NOW_MS)
    planner = survey.BasePlanner(SimpleNamespace(), source, tmp_path, asked, ExitStack(), tmp_path)  # type: ignore[arg-type]
    [one] = planner.plan_bases([(0, PLAN.draft)], {"another": pack_entry(ENTRY, "mark")}, Shown())
    assert (one.plan, one.existing, one.unchanged) == (PLAN, None, None)


class Surveying:
    """A layout whose vector file gives this survey, or this problem; the file may change meanwhile."""

    salvager = "salvager"

    def __init__(self, found: Any, *, writes: Path | None = None) -> None:
        self._found, self._writes = found, writes
        self.table: Any = SimpleNamespace(survey=self._survey)
        self.asked: list[Any] = []

    def _survey(self, vectors: Path, work: Path, *, texts: bool) -> VectorSurvey:
        self.asked.append(("survey", vectors.name, work.name, texts))
        if self._writes is not None:
            self._writes.write_bytes(bytes(10))
        if isinstance(self._found, Exception):
            raise self._found
        return self._found

    def opened(self, path: Path, work: Path, options: Options, draft: Any) -> Any:
        self.asked.append(("opened", path.name, work.name, options.now_ms, draft.id))
        return nullcontext(path)

    def hints(self, source: Any, draft: Any, found: VectorSurvey, options: Options) -> Hints:
        self.asked.append(("hints", draft.id, found.rows, options.carry_text))
        return Hints(paths={"L": "/docs/new"})


def plan_one(layout: Any, source: Any, folder: Path, draft: Any, *, known: Any = None, **options: Any) -> BaseJob:
    asked = Options(now_ms=NOW_MS, **options)
    planner = survey.BasePlanner(layout, source, folder / "library", asked, ExitStack(), folder)
    return planner._plan_base(3, draft, "mark", known, asked)


def found_rows() -> VectorSurvey:
    rows = LoaderRows(rows=2, highest_number=1, kinds={16: RowTally(count=2, first_rowid=1, body_bytes=1000)})
    rows.runs.extend((1, 2))
    return VectorSurvey(rows=2, body_bytes=1000, lengths={16: 2}, loaders={"L": rows})


@pytest.mark.parametrize(
    ("model", "carry_text", "asks"), [(True, False, True), (False, True, True), (False, False, False)]
)
def test_a_base_is_planned_by_its_survey_and_by_what_is_found_beside_it(
    model: bool, carry_text: bool, asks: bool, source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Any] = []
    monkeypatch.setattr(survey, "check_for_damage", lambda *given, **more: checked.append((given, more)))
    layout = Surveying(found_rows())
    draft = planned("kb", folder("d", "L")).draft
    draft = draft if model else replace(draft, embedding=replace(draft.embedding, id=None))
    known = replace(ENTRY, found=FoundOnDisk(paths={"L": "/docs/old", "gone": "/docs/gone"}))
    job = plan_one(layout, source, tmp_path, draft, known=known, carry_text=carry_text, salvage=True)
    vectors = tmp_path / "source" / "kb"
    assert (job.position, job.draft, job.fingerprint, job.table) == (3, draft, "mark", None)
    assert (job.vectors, job.origin, job.has_changed) == (vectors, vectors, False)
    assert checked == [(("salvager", vectors, tmp_path), {"is_wanted": True})]
    hints = [("hints", draft.id, 2, carry_text)] if asks else []
    work = tmp_path.name
    assert layout.asked == [("opened", "kb", work, NOW_MS, draft.id), ("survey", "kb", work, carry_text), *hints]
    assert job.plan is not None
    assert job.plan.found.paths == ({"L": "/docs/new"} if asks else {})
    assert job.plan.error == (None if model else "missing_embedding_model")


def test_a_vector_file_that_is_written_to_meanwhile_is_not_used(
    source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "check_for_damage", lambda *_, **__: None)
    layout = Surveying(found_rows(), writes=tmp_path / "source" / "kb")
    job = plan_one(layout, source, tmp_path, PLAN.draft)
    assert job.plan is not None
    assert (job.plan.error, job.vectors, job.origin) == ("missing_vector_store", None, None)
    assert "cannot be read: it changed while it was read" in str(job.plan.notices)


def test_the_rows_of_a_damaged_file_are_planned_with_if_they_are_salvaged(
    source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = StoreProblem("is damaged", is_damage=True)
    asked: list[Any] = []

    def salvage(salvager: Any, origin: Path, draft: Any, reason: Any, wish: Any, keep: Any) -> SalvageResult:
        asked.append((salvager, origin.name, draft.id, reason, wish.is_wanted, wish.work, wish.texts))
        return SalvageResult(found=found_rows(), vectors=tmp_path / "salvaged", table="its table")  # type: ignore[arg-type]

    monkeypatch.setattr(survey, "salvage_file", salvage)
    job = plan_one(Surveying(problem), source, tmp_path, PLAN.draft, salvage=True, carry_text=True)
    assert asked == [("salvager", "kb", PLAN.draft.id, problem, True, tmp_path, True)]
    assert (job.vectors, job.origin, job.table) == (tmp_path / "salvaged", tmp_path / "source" / "kb", "its table")
    assert job.plan is not None
    assert (job.plan.error, job.plan.rows.carried, job.has_changed) == (None, 2, False)


@pytest.mark.parametrize(("where", "said"), [("", "cannot be read: not allowed"), (None, "holds no vector files")])
def test_a_vector_file_that_cannot_be_read_fails_its_base_alone(
    where: str | None, said: str, source: Any, tmp_path: Path
) -> None:
    def refuse(*_: object) -> Any:
        raise SourceUnreadable(path="kb", reason="not allowed")

    source.places.vectors = where
    source.tree = SimpleNamespace(local=refuse)
    job = plan_one(Surveying(found_rows()), source, tmp_path, PLAN.draft)
    assert job.plan is not None
    assert (job.plan.error, job.vectors, job.origin) == ("missing_vector_store", None, None)
    assert said in str(job.plan.notices)
    opening = Surveying(SourceUnreadable(path="kb", reason="not allowed"))
    source.places.vectors, source.tree = "", FolderTree(tmp_path / "source")
    later = plan_one(opening, source, tmp_path, PLAN.draft)
    assert later.plan is not None
    assert "cannot be read: not allowed" in str(later.plan.notices)


def test_what_a_job_has(tmp_path: Path) -> None:
    indexed = replace(ENTRY, index_mark=(1, 2))
    assert [
        job(None, unchanged=indexed).has_index,
        job(None, unchanged=ENTRY).has_index,
        job(None, plan=PLAN).has_index,
        job(None, plan=LOST).has_index,
        job(None).has_index,
    ] == [True, False, True, False, False]
    path = tmp_path / "vectors"
    path.write_text("x")
    mark = survey.sqlite.read_file_state(path)
    known = job(None, origin=path, origin_mark=mark)
    assert not known.has_changed
    path.write_text("another")
    assert known.has_changed
    assert not job(None).has_changed
    assert job(None).base_id == PLAN.draft.id


def test_bases_are_chosen_by_either_id_in_their_order() -> None:
    drafts = tuple(planned(name, name=f"Base {name}").draft for name in "abc")
    library = LibraryDraft(drafts, (), ())
    options = Options(now_ms=NOW_MS)
    assert survey.select_bases(library, options) == list(enumerate(drafts))
    chosen = survey.select_bases(library, replace(options, bases=(drafts[2].id, "a")))
    assert chosen == [(0, drafts[0]), (2, drafts[2])]
    with fails("BaseUnknown"):
        survey.select_bases(library, replace(options, bases=("nobody",)))


def test_uploads_are_missing_if_neither_the_source_nor_an_earlier_run_has_them(tmp_path: Path) -> None:
    plan = planned("kb", *(file(name, "L", name=f"{name}.txt") for name in "abc"))
    (tmp_path / "Files").mkdir()
    (tmp_path / "Files" / "up-a.txt").write_bytes(bytes(7))
    (tmp_path / "earlier" / "raw").mkdir(parents=True)
    (tmp_path / "earlier" / "raw" / "b.txt").write_text("x")
    found: Any = SimpleNamespace(tree=FolderTree(tmp_path), places=SimpleNamespace(uploads="Files", vectors=None))
    size, missing = survey._check_uploads(found, plan, tmp_path / "earlier")
    why = "the uploaded file up-c.txt is not in the source"
    said = f"c.txt: {why}; the item can be searched but not reindexed without it"
    assert (size, [(one.code, one.base, one.item, one.message) for one in missing]) == (
        7,
        [("missing_upload", "kb", "c", said)],
    )


def test_the_size_of_a_vector_file_that_cannot_be_looked_at_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "kb").write_bytes(bytes(9))
    tree = FolderTree(tmp_path)

    def size(tree: Any, folder: str | None) -> int:
        found: Any = SimpleNamespace(tree=tree, places=SimpleNamespace(vectors=folder))
        return survey.vector_file_bytes(found, PLAN.draft)

    def refuse(_: str) -> int:
        raise PermissionError(13, "Permission denied")

    assert size(tree, "") == 9
    assert size(tree, None) == 0
    assert size(tree, "nowhere") == 0
    assert size(SimpleNamespace(kind=lambda _: "file", size=refuse), "") == 0
    # Only a file has a size that counts.
    assert size(SimpleNamespace(kind=lambda _: "folder", size=lambda _: 4096), "") == 0
    (tmp_path / "kb").unlink()
    (tmp_path / "kb").mkdir()
    assert size(tree, "") == 0


# --- what is there ---------------------------------------------------------------------------------------------------


def test_entries_that_regraft_writes_are_taken_and_others_refused() -> None:
    def check(entry: BaseEntry) -> BaseEntry:
        return publication.check_base_entry(PLAN.draft.id, pack_entry(entry, "mark"))

    fine = replace(
        ENTRY,
        raw_mark="0" * 32,
        raw_hash="1" * 64,
        index_hash="f" * 64,
        notices=[Notice(code="lost_duplicate", message="x", count=0)],
    )
    assert check(fine) == fine
    with fails_with("has the unknown code 'nonsense'"):
        check(replace(ENTRY, notices=[Notice(code="nonsense", message="x")]))
    for name, value in (("index_hash", "f" * 63), ("raw_hash", "F" * 64)):
        with fails_with("has an invalid hash"):
            check(replace(ENTRY, **{name: value}))
    uncounted = replace(fine, notices=[Notice(code="lost_duplicate", message="x", count=-1)])
    for odd in (replace(ENTRY, raw_mark="0" * 31), uncounted):
        with fails_with("has values that regraft never writes"):
            check(odd)
    other = replace(ENTRY.record, base=replace(ENTRY.record.base, id="another"))
    with fails_with("belongs to another base"):
        check(structs.replace(ENTRY, record=other))
    with fails_with("has a different path for the index"):
        check(reported(ENTRY, index=replace(ENTRY.report.index, path="KnowledgeBase/other/.cherry/index.sqlite")))


def fails_with(message: str) -> Any:
    return pytest.raises(ValueError, match=message)


def test_items_of_another_base_are_refused() -> None:
    rows = list(runs.planned_rows(PLAN, {}, NOW_MS))
    parts = [publication.msgspec.json.encode(row) for row in rows]
    assert list(publication.read_items(iter(parts), PLAN.draft.id)) == rows
    with fails_with("the entry of base other has an item of another base"):
        list(publication.read_items(iter(parts), "other"))


# --- what is said ----------------------------------------------------------------------------------------------------


def test_outcomes_of_planned_damaged_and_kept_bases() -> None:
    lost, kept = planned("lost"), planned("kept")
    jobs = (
        BaseJob(0, PLAN.draft, "", plan=PLAN),
        BaseJob(1, lost.draft, "", plan=replace(lost, error="missing_vector_store", materials=()), is_damaged=True),
        BaseJob(2, kept.draft, "", unchanged=entry_of(kept)),
        BaseJob(3, planned("again").draft, "", plan=planned("again"), is_damaged=True),
    )
    found = LibraryPlan(jobs=jobs, bytes=0).outcomes()
    assert {name: one.base.outcome for name, one in found.items()} == {
        "kb": "written",
        "lost": "failed",
        "kept": "unchanged",
        "again": "rewritten",
    }
    assert report.unchanged_outcome(failed(ENTRY)).base.outcome == "failed"


def test_numbers_of_all_bases_are_added_up() -> None:
    one = report.planned_outcome(PLAN)
    two = report.unchanged_outcome(
        reported(ENTRY, index=replace(ENTRY.report.index, embeddings=2, bytes=70, materials=1, units=2))
    )
    failing = report.planned_outcome(replace(LOST, rows=replace(PLAN.rows, carried=0, skipped={"x": 2, "a": 0})))
    totals = report.sum_totals([two, two, failing])
    assert (totals.bases, totals.items) == (
        {"all": 3, "failed": 1, "unchanged": 2},
        {"all": 3, "completed": 3},
    )
    assert (totals.rows.read, totals.rows.carried, totals.rows.skipped) == (6, 4, {"a": 0, "x": 2})
    assert (totals.materials, totals.units, totals.embeddings, totals.bytes) == (2, 4, 4, 140)
    # What a plan cannot know is not known of all.
    totals = report.sum_totals([two, one, two])
    assert (totals.units, totals.embeddings, totals.bytes) == (6, None, None)
    assert report.sum_totals([]).bytes == 0


def test_counts_that_an_earlier_version_left_out_are_zero_only_where_it_counted() -> None:
    of_none = replace(ENTRY.report.rows, without_vector=UNSET, v1_deduplicated=UNSET, restored_duplicate=UNSET)
    of_some = replace(of_none, v1_deduplicated=4)
    older, newer = (report.unchanged_outcome(reported(ENTRY, rows=rows)) for rows in (of_none, of_some))
    assert older.base.rows == of_none
    assert newer.base.rows == replace(of_some, without_vector=0, restored_duplicate=0)
    counted = replace(of_some, without_vector=2, restored_duplicate=3)
    assert report.unchanged_outcome(reported(ENTRY, rows=counted)).base.rows == counted
    totals = report.sum_totals([older, newer]).rows
    assert (totals.without_vector, totals.v1_deduplicated, totals.restored_duplicate) == (0, 4, 0)


def test_a_report_of_a_migration_has_its_bases_in_the_order_of_the_source(tmp_path: Path) -> None:
    first = planned("first", file("a", "L", name="a.txt"), {"id": "m", "type": "memory"})
    second = planned("second", folder("d", "L"), {"id": "x", "type": "memory"}, None)
    outcomes = [replace(report.planned_outcome(second), children={"L": "new"}), report.planned_outcome(first)]
    library = LibraryDraft(
        (first.draft, planned("not asked for").draft, second.draft),
        (SkippedBase("old", "being_deleted", 2), SkippedBase(None, "being_deleted", 0)),
        (Notice(code="renamed_files", message="of the source"),),
    )
    made = report.build_migration_report(Run(command="migrate", target=tmp_path / "library"), library, outcomes)
    assert [base.source_id for base in made.bases] == ["first", "second"]
    reasons = [item.reason for plan in (first, second) for item in plan.draft.skipped_items]
    assert len(reasons) == 3
    assert made.skipped == {"being_deleted": 2, **{reason: reasons.count(reason) for reason in reasons}}
    assert made.warnings[0].message == "of the source"
    assert made.ids is not None
    assert made.ids.bases == {"first": first.draft.id, "second": second.draft.id}
    assert made.ids.items == {item.legacy_id: item.id for plan in (first, second) for item in plan.draft.items}
    # Only the second base has a file in a folder.
    assert made.ids.children == {second.draft.id: {"L": "new"}}


def test_a_base_that_was_migrated_is_reported_with_what_was_written() -> None:
    text = Notice(code="renamed_files", message="while it was written")
    planned_one = replace(PLAN, notices=(Notice(code="lost_duplicate", message="while it was planned"),))
    written: Any = SimpleNamespace(tallies=SimpleNamespace(embeddings=2), index_bytes=4096, notices=(text,))
    done: Any = SimpleNamespace(plan=planned_one, written=written)
    outcome = report.migrated_outcome(done)
    assert outcome.notices == (*planned_one.notices, text)
    assert outcome.base.index is not None
    assert (outcome.base.index.embeddings, outcome.base.index.bytes) == (2, 4096)
    # Before it is written, sizes are not known.
    assert outcome.base.index.path == f"KnowledgeBase/{PLAN.draft.id}/.cherry/index.sqlite"
    only_planned = report.planned_outcome(planned_one).base.index
    assert only_planned == replace(outcome.base.index, embeddings=None, bytes=None)


@pytest.mark.parametrize(("is_carried", "items"), [(True, {"damaged": 2, "whole": 5}), (False, {})])
def test_a_salvage_is_reported_with_what_it_found(is_carried: bool, items: dict[str, int]) -> None:
    tally = SalvageTally(
        problem="is damaged",
        rows=3,
        about=9,
        refused={"row_lost": 1},
        weaker={"scan": 2},
        deleted=4,
        pages=8,
        pages_read=7,
        page_bytes=512,
        is_carried=is_carried,
    )
    made = report.planned_outcome(replace(PLAN, salvage=tally, damaged_items=2, whole_items=5)).base.salvage
    assert made == SalvageReport(
        carried=is_carried,
        rows=3,
        about=9,
        refused={"row_lost": 1},
        weaker={"scan": 2},
        deleted=4,
        pages=8,
        pages_read=7,
        page_bytes=512,
        items=items,
    )
    assert report.planned_outcome(PLAN).base.salvage is UNSET


def test_equal_notices_are_said_once_and_paths_are_absolute(tmp_path: Path) -> None:
    notice = Notice(code="renamed_files", message="renamed", base="kb", count=2)
    text = Notice(code="carried_without_vector", message="2 rows without a vector", base="kb", count=2)
    run = Run(command="migrate", target=tmp_path / "library")
    one = replace(report.planned_outcome(PLAN), notices=(notice, text))
    lost = replace(report.planned_outcome(planned("lost")), notices=(replace(text, base="lost"),))
    lost = replace(lost, base=replace(lost.base, status="failed"))
    made = report.build_report(run, [one, lost], report.Counter({"b": 1, "a": 2}), [notice])
    assert made.skipped == {"a": 2, "b": 1}
    assert [(one.code, one.count) for one in made.warnings] == [
        ("renamed_files", 4),
        ("carried_without_vector", 2),
        ("carried_without_vector", 2),
    ]
    library, kb, other = tmp_path / "library", PLAN.draft.id, lost.base.id
    backfill, restore = f"regraft backfill {library} --base {kb}", f"regraft restore {library} --base {other}"
    assert [one.message for one in made.warnings] == [
        "renamed",
        f"2 rows without a vector; {backfill} adds the missing vectors",
        f"2 rows without a vector; {restore} --embedder NAME creates a new base from them",
    ]
    assert made.bases[0].index is not None
    assert made.bases[0].index.path == str(library / "KnowledgeBase" / kb / ".cherry" / "index.sqlite")


def test_the_outline_of_a_library_is_that_of_the_library_to_come(tmp_path: Path) -> None:
    new = planned("new", *(file(name, "L", name=name) for name in ("b.txt", "longer.txt", "a.txt")), note("n"))
    lost = replace(planned("lost"), error="missing_vector_store", materials=())
    jobs = (BaseJob(0, new.draft, "", plan=new), BaseJob(1, lost.draft, "", plan=lost))
    run = Run(command="migrate", target=tmp_path / "library")
    library = tmp_path / "library"
    at = Session(path=library, run=run, entries={}, work=tmp_path, target=TargetLibrary(library, run.id))
    made = report.build_report(run, [report.planned_outcome(new)], report.Counter(), [])
    (tmp_path / "outline").mkdir()
    runs.write_outline(tmp_path / "outline", jobs, at, made, NOW_MS)
    folder = tmp_path / "outline"
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert files == sorted(
        [
            f"KnowledgeBase/{new.draft.id}/.cherry/index.sqlite",
            f"KnowledgeBase/{new.draft.id}/raw/longer.txt",
            "catalog.sqlite",
            "report.json",
        ]
    )
    with closing(sqlite3.connect(folder / "catalog.sqlite")) as db:
        assert sorted(db.execute("SELECT id, status FROM knowledge_base")) == sorted(
            [(new.draft.id, "completed"), (lost.draft.id, "failed")]
        )
        ids = [item.id for plan in (new, lost) for item in plan.items]
        assert sorted(db.execute("SELECT id FROM knowledge_item")) == sorted((one,) for one in ids)
    with closing(sqlite3.connect(folder / files[0])) as db:
        assert db.execute("SELECT count(*) FROM search_unit").fetchall() == [(0,)]


def test_the_outline_has_unchanged_bases_as_the_ledger_has_them(tmp_path: Path) -> None:
    library, run = tmp_path / "library", Run(command="migrate", target=tmp_path / "library")
    (library / ".regraft").mkdir(parents=True)
    rows = list(runs.planned_rows(PLAN, {0: "from the ledger.md"}, NOW_MS))
    with ledgers.open_exclusive(library) as book:
        book.begin_run("migrate", "x", run.id)
        book.done(
            book.intend(
                PLAN.draft.id, "publish", pack_entry(ENTRY, "0" * 40), map(publication.msgspec.json.encode, rows)
            )
        )
        book.end_run("finished")
    new = planned("new")
    jobs = (BaseJob(0, new.draft, "", plan=new), BaseJob(1, PLAN.draft, "mark", unchanged=ENTRY))
    made = report.build_report(run, [], report.Counter(), [])

    def outline(name: str, book: Any) -> list[tuple[Any, ...]]:
        (tmp_path / name).mkdir()
        at = Session(
            path=library, run=run, entries={}, work=tmp_path, target=TargetLibrary(library, run.id), ledger=book
        )
        runs.write_outline(tmp_path / name, jobs, at, made, NOW_MS)
        with closing(sqlite3.connect(tmp_path / name / "catalog.sqlite")) as db:
            return sorted(db.execute("SELECT base_id, json_extract(data, '$.relativePath') FROM knowledge_item"))

    expected = sorted([(new.draft.id, None), (PLAN.draft.id, "from the ledger.md")])
    assert outline("closed", None) == expected
    with ledgers.open_exclusive(library) as book:
        assert outline("open", book) == expected


def test_what_is_said_of_a_source_that_is_only_looked_at(tmp_path: Path) -> None:
    plan = planned("kb", file("a", "L"), note("n"), note("o"), {"id": "m", "type": "memory"})
    (tmp_path / "kb").write_bytes(bytes(9))
    found: Any = SimpleNamespace(tree=FolderTree(tmp_path), places=SimpleNamespace(vectors="", uploads=None))
    told = runs._survey_summary(found, BaseJob(0, plan.draft, "", plan=plan, vectors=tmp_path / "kb"))
    assert (told.items, told.uploads, told.vector_file, told.kind, told.bytes) == (4, 1, "kb", "file", 9)
    assert (told.is_read, told.salvageable) == (True, 0)
    (tmp_path / "kb").unlink()
    damaged = replace(plan, salvage=SalvageTally(rows=4, about=5))
    told = runs._survey_summary(found, BaseJob(0, plan.draft, "", plan=damaged))
    assert (told.vector_file, told.kind, told.bytes, told.is_read, told.salvageable) == ("kb", None, 0, False, 4)
    nowhere: Any = SimpleNamespace(tree=FolderTree(tmp_path), places=SimpleNamespace(vectors=None, uploads=None))
    told = runs._survey_summary(nowhere, BaseJob(0, plan.draft, ""))
    assert (told.vector_file, told.kind, told.salvageable) == ("kb", None, 0)


# --- processes -------------------------------------------------------------------------------------------------------


def test_large_texts_are_written_one_base_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "LARGE_BYTES", 1000)
    monkeypatch.setattr(workers.pool, "can_start_processes", lambda: True)

    def jobs(*sizes: int) -> Any:
        plans = (
            replace(PLAN, materials=tuple(replace(one, body_bytes=size) for one in PLAN.materials)) for size in sizes
        )
        return [SimpleNamespace(plan=plan) for plan in plans]

    assert workers.choose_process_count(jobs(1000, 1000), 2) == 2
    assert workers.choose_process_count(jobs(1001, 1000), 2) == 2
    assert workers.choose_process_count(jobs(1001, 1001), 2) == 1


def test_a_salvage_after_the_writing_is_of_the_files_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def salvage(salvager: Any, path: Path, draft: Any, problem: Any, wish: Any, keep: Any) -> Any:
        asked.append((salvager, path, draft, wish))
        return "salvaged"

    monkeypatch.setattr(workers, "salvage_file", salvage)
    problem = StoreProblem("is damaged", is_damage=True)

    def salvaged(**work: Any) -> Any:
        usual = {
            "has_changed": False,
            "origin": Path("vectors"),
            "table": None,
            "draft": PLAN.draft,
            "plan": replace(PLAN, carry_text=True),
        }
        given: Any = SimpleNamespace(
            work=SimpleNamespace(**{**usual, **work}), salvager="salvager", is_salvage_wanted=True
        )
        return workers._salvage(given, problem, SimpleNamespace())

    assert salvaged() == "salvaged"
    assert salvaged(plan=PLAN) == "salvaged"
    assert salvaged(plan=None) == "salvaged"
    assert [(one[0], one[1], one[2].id, one[3].is_wanted, one[3].texts) for one in asked] == [
        ("salvager", Path("vectors"), PLAN.draft.id, True, True),
        ("salvager", Path("vectors"), PLAN.draft.id, True, False),
        ("salvager", Path("vectors"), PLAN.draft.id, True, False),
    ]
    for more in ({"has_changed": True}, {"origin": None}, {"table": "of an earlier salvage"}):
        assert salvaged(**more).found is problem
    assert len(asked) == 3
