"""The steps of a migration: what is planned, hashed, written, kept and published, and when processes start early."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faults import Source, fails, item, write_vectors
from harness import NOW_MS
from planned_bases import Shown, entry_of, packed, planned
from v1 import file

from migrators.cherry_v1 import PIPELINE
from migrators.pipeline import run as runs
from migrators.pipeline.publication import TargetLibrary
from migrators.pipeline.run import LibraryPlan
from migrators.pipeline.session import Migration, Session
from migrators.pipeline.source import Duplicate, FoundOnDisk, Hints, ItemContent, Options, Pipeline
from migrators.pipeline.source_files import FileHashes, base_fingerprint
from migrators.pipeline.survey import BaseJob
from migrators.pipeline.workers import FinishedBase
from regraft.disk import writable
from regraft.disk.trees import FolderTree
from regraft.formats.vector_survey import SalvageTally
from regraft.identity import replace
from regraft.processes.pool import JobFailed
from regraft.report.document import Run
from regraft.stores import locate

PLAN, OTHER = planned("kb", file("f", "L", name="a.txt")), planned("other", name="Other base")
KEPT = planned("kept", name="Kept base")


def session(folder: Path, **more: Any) -> Session:
    library = folder / "library"
    run = Run(command="migrate", target=library)
    return Session(path=library, run=run, work=folder, target=TargetLibrary(library, run.id), **{"entries": {}, **more})


@pytest.fixture
def source(tmp_path: Path) -> Any:
    folder = tmp_path / "source"
    (folder / "Vectors").mkdir(parents=True)
    (folder / "Files").mkdir()
    (folder / "Vectors" / "kb").write_bytes(bytes(100))
    (folder / "Files" / "up-f.txt").write_bytes(bytes(7))
    places = SimpleNamespace(vectors="Vectors", uploads="Files")
    return SimpleNamespace(tree=FolderTree(folder), places=places, is_archive=False)


# --- what a source and a user say ------------------------------------------------------------------------------------


def test_what_is_not_asked_for_is_not_done() -> None:
    options = Options(now_ms=NOW_MS)
    asked = (options.dry_run, options.while_running, options.carry_text, options.salvage, options.verify)
    assert (*asked, options.adopt_orphans, options.restore_duplicates) == (*[False] * 6, True)
    assert Hints().restore_twins
    assert not Duplicate("a", "b", "a.md", "b.md").changed
    pipeline = Pipeline(table=PIPELINE.table, read=PIPELINE.read, hints=PIPELINE.hints)
    assert not (pipeline.has_visibility or pipeline.has_orphans or pipeline.shares_ids)
    assert not (ItemContent({}).renamed or PLAN.draft.items[0].is_listed)


def test_what_an_earlier_run_found_is_known_unless_this_one_found_it(tmp_path: Path) -> None:
    one, two = (Duplicate("L", "M", name, "m.md", item="f") for name in ("now.md", "earlier.md"))
    other = replace(two, item="another")
    found = FoundOnDisk(paths={"L": "/earlier", "M": "/gone"}, twins=(two, other))
    hints = Hints(paths={"L": "/now"}, twins=(one,)).with_earlier(found)
    assert (hints.paths, hints.twins) == ({"L": "/now", "M": "/gone"}, (one, other))


# --- planning ------------------------------------------------------------------------------------------------------


class Planner:
    """Stands for the planner of bases."""

    def __init__(self, *jobs: BaseJob, shares_ids: bool = False) -> None:
        self._jobs = jobs
        self.pipeline = SimpleNamespace(shares_ids=shares_ids)

    def plan_bases(self, bases: Any, entries: Any, progress: Any) -> Iterator[BaseJob]:
        self.asked = (bases, entries, progress)
        yield from self._jobs


def plan_of(at: Session, *jobs: BaseJob, **more: Any) -> LibraryPlan:
    planner: Any = Planner(*jobs, **more)
    bases = [(one.position, one.draft) for one in jobs]
    progress = Shown()
    made = runs.plan_library(planner, bases, at, progress)
    assert planner.asked == (bases, at.entries, progress)
    assert made.jobs == jobs
    return made


def test_a_plan_needs_the_room_of_the_bases_that_it_writes(tmp_path: Path) -> None:
    at = session(tmp_path)
    estimate, around = runs.preflight.estimate_base_bytes, runs.preflight.estimate_library_bytes
    one, two = BaseJob(0, PLAN.draft, "", plan=PLAN, upload_bytes=500), BaseJob(1, OTHER.draft, "", plan=OTHER)
    unchanged = BaseJob(2, KEPT.draft, "", unchanged=entry_of(KEPT), upload_bytes=9000)
    both = estimate(PLAN) + estimate(OTHER) + around(2, len(PLAN.items) + len(OTHER.items)) + 500
    assert plan_of(at, one, two, unchanged).bytes == both
    assert plan_of(at, unchanged).bytes == around(0, 0)


def test_a_plan_never_replaces_a_base_of_another_source_or_an_item_of_another_base(tmp_path: Path) -> None:
    job = BaseJob(0, PLAN.draft, "", plan=PLAN)
    stranger = planned("kb", file("another", "L"))
    at = session(tmp_path, entries=packed(stranger))
    assert plan_of(at, job).jobs == (job,)
    with fails("TargetBaseOfAnother", match="My base"):
        plan_of(at, job, shares_ids=True)
    assert plan_of(session(tmp_path, entries=packed(PLAN)), job, shares_ids=True).jobs == (job,)
    # Two bases with one item: only one of them can be in a catalog.
    twin = replace(OTHER, items=PLAN.items)
    with fails("TargetHasItem"):
        plan_of(session(tmp_path, entries=packed(twin)), job)
    # Something is in the place of a base that no run recorded.
    (tmp_path / "library" / "KnowledgeBase" / PLAN.draft.id).mkdir(parents=True)
    with fails("TargetNotOurs", match="no record of it"):
        plan_of(session(tmp_path), job)


# --- writing -------------------------------------------------------------------------------------------------------


def finished(job: BaseJob, **more: Any) -> FinishedBase:
    usual = {"unread": frozenset(), "notices": (), "index_bytes": 0, "tallies": None, "paths": {}}
    written: Any = SimpleNamespace(
        **{
            **usual,
            "record": runs.base_record(job.plan or KEPT, NOW_MS),
            "has_files": True,
            "index_hash": "a" * 64,
            "raw_hash": "b" * 64,
            **more,
        }
    )
    return FinishedBase(job, job.plan or KEPT, written)


def write(
    plan: LibraryPlan, source: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, marking: Any = None, **more: Any
) -> tuple[list[FinishedBase], Shown, list[Any]]:
    seen: list[Any] = []

    def write_bases(jobs: Any, tree: Any, count: int, progress: Any, helpers: Any) -> Iterator[FinishedBase]:
        seen.append((jobs, tree, count, helpers))
        yield from (finished(one.work, **more) for one in jobs)

    monkeypatch.setattr(runs, "write_bases", write_bases)
    at, progress, pipeline = session(folder), Shown(), SimpleNamespace(table="usual", salvager=None)
    options = Options(now_ms=NOW_MS, jobs=1)
    done = list(runs.write_planned_bases(plan, pipeline, source, options, at, progress, "helpers", marking))  # type: ignore[arg-type]
    return done, progress, seen


def test_planned_bases_are_hashed_before_any_is_written(
    source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = (
        BaseJob(0, PLAN.draft, "", plan=PLAN),
        BaseJob(1, KEPT.draft, "", unchanged=entry_of(KEPT)),
        BaseJob(2, OTHER.draft, "known", plan=OTHER),
    )
    done, progress, [(written, tree, count, helpers)] = write(
        LibraryPlan(jobs=jobs, bytes=0), source, tmp_path, monkeypatch
    )
    mark = base_fingerprint(source, PLAN.draft)
    assert [(one.work.draft.legacy_id, one.work.fingerprint) for one in written] == [("kb", mark), ("other", "known")]
    assert (tree, count, helpers) == (source.tree, 1, "helpers")
    assert written[0].staging.parent.parent == session(tmp_path).staging.parent
    assert [one.work for one in done] == [one.work for one in written]
    # Only the base that has to be read for that is named.
    assert progress.told == ["My base"]


def test_a_base_that_is_hashed_in_the_background_is_not_read_again(
    source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = FileHashes([[1, 2], None, None], [[3, 4]])
    marking = SimpleNamespace(file_hashes=lambda: marks)
    plan = LibraryPlan(jobs=(BaseJob(0, PLAN.draft, "", plan=PLAN),), bytes=0)
    [done], _, _ = write(plan, source, tmp_path, monkeypatch, marking)
    assert done.work.fingerprint == base_fingerprint(source, PLAN.draft, marks=marks)


def test_a_base_with_an_upload_that_could_not_be_read_is_migrated_again(
    source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = LibraryPlan(jobs=(BaseJob(0, PLAN.draft, "", plan=PLAN),), bytes=0)
    unread = frozenset({"Files/up-f.txt"})
    [done], _, _ = write(plan, source, tmp_path, monkeypatch, unread=unread)
    assert done.work.fingerprint == base_fingerprint(source, PLAN.draft, unread)
    assert done.work.fingerprint != base_fingerprint(source, PLAN.draft)


# --- publishing ----------------------------------------------------------------------------------------------------


class Publishing:
    """Stands for a session to which bases are published."""

    def __init__(self, staging: Path) -> None:
        self.staging = staging
        self.published: list[Any] = []

    def publish(self, entry: Any, fingerprint: str, items: Any) -> None:
        self.published.append((entry, fingerprint, list(items)))


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Any]:
    folder = tmp_path / "staging" / PLAN.draft.id / "raw"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("x")
    with writable.allow_writes(tmp_path):
        yield Publishing(tmp_path / "staging")


@pytest.mark.parametrize(("is_damaged", "outcome"), [(False, "written"), (True, "rewritten")])
def test_a_base_is_published_with_all_that_later_runs_need(is_damaged: bool, outcome: str, at: Any) -> None:
    plan = replace(PLAN, carry_text=True, found=replace(PLAN.found, paths={"L": "/docs/a.txt"}))
    done = finished(BaseJob(3, plan.draft, "mark", plan=plan, is_damaged=is_damaged))
    made = runs.publish_base(at, done)
    [(entry, fingerprint, items)] = at.published
    assert made.base.outcome == outcome
    assert (entry.position, entry.record, entry.report, entry.items) == (3, done.written.record, made.base, made.items)
    assert (entry.has_files, entry.index_hash, entry.raw_hash) == (True, "a" * 64, "b" * 64)
    staged = at.staging / PLAN.draft.id
    assert (entry.index_mark, entry.raw_mark) == (None, runs.publication.raw_mark(staged))
    assert entry.raw_mark
    assert (entry.found, entry.carry_text, fingerprint) == (plan.found, True, "mark")
    assert items == list(runs.catalog_rows(plan, done.written))
    assert staged.exists()


def test_a_base_that_turned_out_to_be_damaged_does_not_replace_a_better_one(at: Any) -> None:
    plan = replace(PLAN, salvage=SalvageTally(rows=1, about=2))
    done = finished(BaseJob(0, plan.draft, "mark", plan=plan, existing=entry_of(PLAN)))
    made = runs.publish_base(at, done)
    assert (made.base.outcome, [one.code for one in made.notices]) == ("unchanged", ["completed_base_kept"])
    assert at.published == []
    assert list(at.staging.iterdir()) == []


# --- processes that start early ------------------------------------------------------------------------------------


class Helpers:
    """Stands for a pool of processes."""

    def __init__(self, *, fails: bool = False) -> None:
        self._fails = fails
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")
        if self._fails:
            raise JobFailed("no room")

    def put(self, function: Any, *_: Any) -> int:
        self.calls.append(function.__name__)
        return len(self.calls)


@pytest.mark.parametrize(
    ("bases", "size", "ledger", "entries", "can_start", "starts"),
    [
        (1, 100, "ledger", {}, True, True),
        (1, 101, "ledger", {}, True, False),
        (2, 100, "ledger", {}, True, False),
        (0, 100, "ledger", {}, True, False),
        (1, 100, None, {}, True, False),
        (1, 100, "ledger", {"x": 1}, True, False),
        (1, 100, "ledger", {}, False, False),
    ],
)
def test_processes_start_early_for_one_large_base_and_a_new_target(
    bases: int,
    size: int,
    ledger: Any,
    entries: Any,
    can_start: bool,
    starts: bool,
    source: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runs.pool, "can_use_pool", lambda: can_start)
    monkeypatch.setattr(runs.startup, "LARGE_FILE_BYTES", size)
    helpers: Any = Helpers()
    opened: Any = SimpleNamespace(ledger=ledger, entries=entries)
    drafts = [(0, PLAN.draft), (1, OTHER.draft)][:bases]
    marking = runs._prestart_pool(helpers, source, drafts, opened)
    assert (marking is not None) == starts
    assert helpers.calls == (["start", "content_marks", "content_marks"] if starts else [])


def test_processes_that_cannot_be_started_are_done_without(
    source: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(runs.pool, "can_use_pool", lambda: True)
    monkeypatch.setattr(runs.startup, "LARGE_FILE_BYTES", 1)
    opened: Any = SimpleNamespace(ledger="ledger", entries={})
    assert runs._prestart_pool(Helpers(fails=True), source, [(0, PLAN.draft)], opened) is None  # type: ignore[arg-type]
    assert "no background processes can be started: no room" in caplog.text


def test_only_the_files_of_an_archive_are_extracted(source: Any) -> None:
    drafts = [(0, PLAN.draft), (1, OTHER.draft)]
    assert runs._estimate_extracted_bytes(source, drafts) == 0
    source.is_archive = True
    assert runs._estimate_extracted_bytes(source, drafts) == int(100 * runs.preflight.UNREAD_FACTOR)


# --- a whole run ---------------------------------------------------------------------------------------------------


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record when processes end, and what is examined and shown."""
    told: list[Any] = []
    monkeypatch.setattr(runs.pool.ProcessPool, "end", lambda _: told.append("processes end"))
    return told


def migrate(export: Source, target: Path, told: list[Any], *, agrees: bool = True, **options: Any) -> Migration:
    def show(planned_one: Any) -> bool:
        told.append(("shown", planned_one.totals.bases["all"]))
        return agrees

    def examine(plan: Any, at: Any, planned_one: Any) -> None:
        told.append(("examined", len(plan.jobs), at.path, planned_one.preflight.bytes_needed == plan.bytes))

    asked = Options(now_ms=NOW_MS, jobs=1, **options)
    with locate.open_store(export.folder) as found:
        return runs.migrate(PIPELINE, found, target, asked, Shown(), show, examine)


def test_a_run_shows_its_plan_before_it_writes_and_has_nothing_to_do_the_next_time(
    tmp_path: Path, steps: list[Any]
) -> None:
    export, target = Source(tmp_path / "source"), tmp_path / "library"
    for name in ("alpha", "beta"):
        export.base(name, [item(f"memo-{name}", "note", "remember the lamp")])
        write_vectors(export.vectors(name), {f"memo-{name}": 2})
    export.write()
    seen = [("examined", 2, target, True), ("shown", 2)]
    planned_one = migrate(export, target, steps, dry_run=True)
    assert (planned_one.wrote, target.exists(), steps) == (False, False, [seen[0], "processes end"])
    steps.clear()
    with fails("Declined"):
        migrate(export, target, steps, agrees=False)
    assert (target.exists(), steps) == (False, [*seen, "processes end"])
    steps.clear()
    done = migrate(export, target, steps)
    assert (done.wrote, [base.outcome for base in done.report.bases]) == (True, ["written", "written"])
    # Of several bases the last needs the processes as much as the first.
    assert steps == [*seen, "processes end"]
    steps.clear()
    again = migrate(export, target, steps)
    assert (again.wrote, [base.outcome for base in again.report.bases]) == (False, ["unchanged", "unchanged"])
    assert steps == ["processes end"]
    steps.clear()
    # The memory of the processes is free once the one base is written, for its catalog and report.
    alone = migrate(export, tmp_path / "alone", steps, bases=("alpha",))
    assert (alone.wrote, steps) == (
        True,
        [("examined", 1, tmp_path / "alone", True), ("shown", 1), *["processes end"] * 2],
    )


def test_a_source_is_planned_without_a_target(tmp_path: Path) -> None:
    export = Source(tmp_path / "source")
    export.base("alpha", [item("memo", "note", "remember the lamp")])
    write_vectors(export.vectors("alpha"), {"memo": 2})
    export.write()
    with locate.open_store(export.folder) as found:
        made = runs.plan_only(PIPELINE, found, Options(now_ms=NOW_MS), Shown())
    assert made.report.head.run.finished_at is not None
    assert made.room.bytes_needed > 0
    assert made.room.bytes_free > 0
    assert {name: (one.items, one.kind, one.is_read) for name, one in made.looked_at.items()} == {
        "alpha": (1, "file", True)
    }
