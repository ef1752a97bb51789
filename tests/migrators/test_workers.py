"""How bases are divided among processes, what a process does, and what becomes of a base that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest
from faults import fails
from harness import NOW_MS
from planned_bases import Shown, planned

from migrators.pipeline import workers
from migrators.pipeline.losses import SalvageResult
from migrators.pipeline.source import Options
from migrators.pipeline.survey import BaseJob
from migrators.pipeline.workers import FinishedBase, WriteJob
from regraft.disk import links, sqlite, writable
from regraft.disk.trees import FolderTree, SourceReadFailed
from regraft.errors import BooksDoNotBalance, VerificationFailed
from regraft.formats.vector_survey import LoaderRows, RowTally, VectorSurvey
from regraft.identity import replace
from regraft.processes.pool import JobFailed, JobOutcome, ProcessKilled
from regraft.report.progress import SilentProgress

PLAN = planned()
ROWS = LoaderRows(rows=2, highest_number=1, kinds={16: RowTally(count=2, first_rowid=1, body_bytes=1000)})
ROWS.runs.extend((1, 2))
SURVEY = VectorSurvey(rows=2, body_bytes=1000, lengths={16: 2}, loaders={"L": ROWS})
UNREADABLE = SourceReadFailed("page 7 is damaged")


def job(folder: Path, plan: Any = PLAN, **more: Any) -> WriteJob:
    usual = {
        "work": BaseJob(0, plan.draft, "mark", plan=plan, vectors=folder / "vectors"),
        "plan": plan,
        "table": "usual table",
        "salvager": None,
        "is_salvage_wanted": False,
        "tree_path": folder,
        "uploads": "Files",
        "staging": folder / "staging" / plan.draft.id,
        "earlier": folder / "earlier",
        "now_ms": NOW_MS,
    }
    return WriteJob(**{**usual, **more})


def sized(body_bytes: int, rows: int = 2, vector_bytes: int = 16) -> Any:
    plan = replace(PLAN, materials=tuple(replace(one, body_bytes=body_bytes) for one in PLAN.materials))
    return SimpleNamespace(
        plan=SimpleNamespace(
            materials=plan.materials,
            body_bytes=body_bytes,
            rows=SimpleNamespace(carried=rows),
            vector_bytes=vector_bytes,
        )
    )


# --- how many processes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "wanted", "cores", "count"),
    [
        ((), None, 8, 1),
        ((8 << 20,) * 2, None, 8, 1),
        (((8 << 20) + 1,) * 2, None, 8, 2),
        (((8 << 20) + 1,) * 3, None, 8, 3),
        (((8 << 20) + 1,) * 9, None, 8, 4),
        (((8 << 20) + 1,) * 9, None, 3, 3),
        ((1, 1, 1), 2, 1, 2),
        ((1, 1), 7, 1, 2),
        ((1, 1), 0, 8, 1),
        ((), 3, 8, 1),
    ],
)
def test_the_number_of_processes_follows_from_the_sizes_or_is_the_one_asked_for(
    sizes: tuple[int, ...], wanted: int | None, cores: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers.pool, "can_start_processes", lambda: True)
    monkeypatch.setattr(workers, "usable_cores", lambda: cores)
    monkeypatch.setattr(workers.fts5, "is_worthwhile", lambda _: False)
    assert workers.choose_process_count([sized(size, rows=0) for size in sizes], wanted) == count
    # Vectors count as texts do.
    assert workers.choose_process_count([sized(0, size, 1) for size in sizes], wanted) == count
    monkeypatch.setattr(workers.pool, "can_start_processes", lambda: False)
    assert workers.choose_process_count([sized(size) for size in sizes], wanted) == 1


@pytest.mark.parametrize(("most", "is_worthwhile", "count"), [(70, True, 1), (70, False, 2), (69, True, 2)])
def test_a_base_with_most_texts_is_written_with_the_help_of_the_pool(
    most: int, is_worthwhile: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def worthwhile(size: int) -> bool:
        asked.append(size)
        return is_worthwhile

    monkeypatch.setattr(workers.pool, "can_start_processes", lambda: True)
    monkeypatch.setattr(workers, "usable_cores", lambda: 8)
    monkeypatch.setattr(workers, "SMALL_BYTES", 10)
    monkeypatch.setattr(workers.fts5, "is_worthwhile", worthwhile)
    assert workers.choose_process_count([sized(100 - most, 0), sized(most, 0)], None) == count
    assert asked == ([most] if most >= 70 else [])


def test_jobs_have_what_the_run_was_asked_for(tmp_path: Path) -> None:
    tree: Any = SimpleNamespace(path=tmp_path / "source")
    source: Any = SimpleNamespace(tree=tree, places=SimpleNamespace(uploads="Files"))
    pipeline: Any = SimpleNamespace(table="usual", salvager="salvager")
    salvaged = planned("salvaged")
    planned_jobs = [
        BaseJob(0, PLAN.draft, "", plan=PLAN),
        BaseJob(1, planned("kept").draft, ""),
        BaseJob(2, salvaged.draft, "", plan=salvaged, table="of the salvage"),  # type: ignore[arg-type]
    ]
    options = Options(now_ms=NOW_MS, salvage=True, verify=True)
    with links.follow_links(True):
        one, two = workers.make_jobs(source, pipeline, planned_jobs, tmp_path / "to", tmp_path / "staged", options)
    assert (one.work, one.plan, one.table, one.salvager) == (planned_jobs[0], PLAN, "usual", "salvager")
    assert (one.is_salvage_wanted, one.verify, one.follow_links, one.now_ms) == (True, True, True, NOW_MS)
    assert (one.tree_path, one.uploads) == (tmp_path / "source", "Files")
    assert one.staging == tmp_path / "staged" / PLAN.draft.id
    assert one.earlier == tmp_path / "to" / "KnowledgeBase" / PLAN.draft.id
    assert (two.work, two.table) == (planned_jobs[2], "of the salvage")
    [plain] = workers.make_jobs(source, pipeline, planned_jobs[:1], tmp_path, tmp_path, Options(now_ms=1))
    assert (plain.is_salvage_wanted, plain.verify, plain.follow_links) == (False, False, False)


# --- one base --------------------------------------------------------------------------------------------------------


class Writing:
    """Stands for the writing of a base: ends each time as it is told."""

    def __init__(self, *ends: Any) -> None:
        self._ends = list(ends)
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, plan: Any, origin: Any, staging: Path, now_ms: int, watch: Any, **more: Any) -> Any:
        assert not staging.exists()
        staging.mkdir(parents=True)
        (staging / "half").write_text("x")
        self.calls.append((plan, origin, staging, now_ms, watch, more))
        end = self._ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end


def write(
    one: WriteJob, *ends: Any, monkeypatch: pytest.MonkeyPatch, processes: Any = None
) -> tuple[FinishedBase, Writing]:
    writing = Writing(*ends)
    monkeypatch.setattr(workers, "write_base", writing)
    tree = FolderTree(one.tree_path)
    [done] = workers.write_bases([one], tree, 1, SilentProgress(), processes)
    assert done.work is one.work
    return done, writing


def test_a_base_is_written_by_this_process_with_the_help_of_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, tree, helpers = Writing("one", "two"), FolderTree(tmp_path), SimpleNamespace()
    monkeypatch.setattr(workers, "write_base", writing)
    progress, other = Shown(), planned("other", name="Other base")
    jobs = [job(tmp_path, verify=True), job(tmp_path, other)]
    done = list(workers.write_bases(jobs, tree, 1, progress, helpers))  # type: ignore[arg-type]
    assert done == [FinishedBase(jobs[0].work, PLAN, "one"), FinishedBase(jobs[1].work, other, "two")]
    assert progress.told == ["My base", "Other base"]
    plan, origin, staging, now_ms, watch, more = writing.calls[0]
    assert (plan, staging, now_ms, watch) == (PLAN, jobs[0].staging, NOW_MS, progress.step)
    assert (origin.tree, origin.uploads, origin.table) == (tree, "Files", "usual table")
    assert (origin.vectors, origin.earlier) == (tmp_path / "vectors", tmp_path / "earlier")
    assert more == {"verify": True, "pool": helpers}
    assert writing.calls[1][5] == {"verify": False, "pool": helpers}


@pytest.mark.parametrize(
    ("failed", "said"),
    [
        (UNREADABLE, "cannot be read: page 7 is damaged"),
        (
            BooksDoNotBalance(base="kb", read=3, carried=1, skipped=1),
            "is not migrated: kb: 3 rows were read, but 1 migrated and 1 skipped rows do not add up to that",
        ),
    ],
)
def test_a_base_that_cannot_be_read_as_it_was_surveyed_fails_alone(
    failed: Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drained: list[str] = []
    helpers: Any = SimpleNamespace(drain=lambda: drained.append("drained"))
    done, writing = write(job(tmp_path), failed, "written", monkeypatch=monkeypatch, processes=helpers)
    assert drained == ["drained"]
    assert (done.written, done.plan.error) == ("written", "missing_vector_store")
    assert any(said in notice.message for notice in done.plan.notices)
    assert done.plan.has_index is False
    _, origin, staging, now_ms, _, more = writing.calls[1]
    assert (origin.vectors, origin.table, staging, now_ms) == (None, "usual table", job(tmp_path).staging, NOW_MS)
    assert more == {}


def killed() -> None:
    raise ProcessKilled(9)


def test_a_pool_that_was_killed_does_not_keep_a_base_from_failing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, _ = write(
        job(tmp_path), UNREADABLE, "written", monkeypatch=monkeypatch, processes=SimpleNamespace(drain=killed)
    )
    assert done.plan.error == "missing_vector_store"


@pytest.mark.parametrize("error", [OSError(28, "No space left"), VerificationFailed(base="kb", reason="x")])
def test_what_stops_the_writing_stops_the_run(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(type(error)) as raised:
        write(job(tmp_path), error, monkeypatch=monkeypatch)
    assert raised.value is error


@pytest.mark.parametrize(("again", "table"), [(None, "of the salvage"), (UNREADABLE, None)])
def test_what_is_left_of_a_base_is_written_once_more(
    again: Exception | None, table: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SalvageResult(found=SURVEY, vectors=tmp_path / "salvaged", table=table)  # type: ignore[arg-type]
    seen: list[Any] = []

    def salvage(*given: Any) -> SalvageResult:
        seen.append(given)
        return found

    monkeypatch.setattr(workers, "_salvage", salvage)
    text = job(tmp_path, plan=replace(PLAN, carry_text=True))
    ends = ["written"] if again is None else [again, "failed"]
    done, writing = write(text, UNREADABLE, *ends, monkeypatch=monkeypatch)
    assert (seen[0][0], str(seen[0][1])) == (text, "cannot be read: page 7 is damaged")
    assert seen[0][1].is_damage
    _, origin, *_ = writing.calls[1]
    assert (origin.vectors, origin.table) == (tmp_path / "salvaged", table or "usual table")
    assert (writing.calls[1][0].error, writing.calls[1][0].carry_text) == (None, True)
    if again is None:
        assert (done.written, done.plan) == ("written", writing.calls[1][0])
    else:
        assert (done.written, done.plan.error) == ("failed", "missing_vector_store")
        assert writing.calls[2][1].vectors is None


@pytest.mark.parametrize(
    ("error", "is_changed", "raised"),
    [
        (None, False, None),
        (None, True, "changed"),
        (ValueError("odd"), False, "odd"),
        (ValueError("odd"), True, "changed"),
        (OSError(28, "full"), True, "full"),
        (apsw.FullError("full"), True, "full"),
    ],
)
def test_a_file_that_changed_meanwhile_explains_errors_of_its_content(
    error: Exception | None, is_changed: bool, raised: str | None
) -> None:
    work: Any = SimpleNamespace(has_changed=is_changed)

    def run() -> None:
        with workers._report_changed_file(work):
            if error is not None:
                raise error

    if raised is None:
        run()
    elif raised == "changed":
        with pytest.raises(SourceReadFailed, match=sqlite.CHANGED_DURING_READ) as changed:
            run()
        assert changed.value.__cause__ is error
    else:
        with pytest.raises(type(error) if error else SourceReadFailed, match=raised) as same:
            run()
        assert same.value is error


# --- in a process of its own -----------------------------------------------------------------------------------------


def test_progress_is_sent_now_and_then_and_nothing_is_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    now = 100
    monkeypatch.setattr(workers, "_PROGRESS_SECONDS", 5)
    monkeypatch.setattr(workers.time, "monotonic", lambda: now)
    monkeypatch.setattr(workers.pool, "report_progress", sent.append)
    sender = workers._ProgressSender("My base")
    sender.step(1.5, 10)
    assert sent == [("My base", 1.5, 10)]
    sender.step(1, 1)
    now += 4
    sender.step(1, 2)
    assert len(sent) == 1
    now += 2
    sender.step(1, 3)
    assert sent[1:] == [("My base", 3, 6)]
    now += 5
    sender.step(2, 4)
    sender.step(5, 5)
    sender.send()
    assert sent[2:] == [("My base", 2, 4), ("My base", 5, 5)]


def test_a_process_may_write_to_the_staging_folder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def write_base(plan: Any, origin: Any, staging: Path, now_ms: int, watch: Callable[..., None], **more: Any) -> str:
        seen.append([root.real for root in writable.open_roots()])
        seen.append((links.are_links_followed(), origin.tree.path, more))
        watch(2, 32)
        watch(1, 16)
        return "written"

    sent: list[Any] = []
    monkeypatch.setattr(workers, "write_base", write_base)
    monkeypatch.setattr(workers.pool, "report_progress", sent.append)
    monkeypatch.setattr(workers, "_PROGRESS_SECONDS", 1e9)
    (tmp_path / "staging").mkdir()
    one = job(tmp_path, follow_links=True)
    assert workers._in_process(one) == FinishedBase(one.work, PLAN, "written")  # type: ignore[arg-type]
    assert seen == [
        [*(root.real for root in writable.open_roots()), Path(tmp_path / "staging").resolve()],
        (True, tmp_path, {"verify": False, "pool": None}),
    ]
    # What was counted since the last time is sent at the end.
    assert sent[-1] == ("My base", 3, 48)


class Processes:
    """Stands for a pool of processes that end their jobs in turn."""

    ends: dict[str, Any]

    def __init__(self, size: int, *, on_progress: Callable[[Any], None]) -> None:
        self.size, self.show = size, on_progress
        self.put_jobs: list[Any] = []
        self.running: list[int] = []
        self.most = 0
        MADE.append(self)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.put_jobs.append("ended")

    def put(self, function: Any, one: WriteJob) -> int:
        assert function is workers._in_process
        self.put_jobs.append(one.work.draft.legacy_id)
        self.running.append(len(self.put_jobs))
        self.most = max(self.most, len(self.running))
        return len(self.put_jobs)

    def wait(self) -> list[JobOutcome]:
        number = self.running.pop(0)
        name = self.put_jobs[number - 1]
        self.show((name, 1.5, 7))
        end = self.ends.get(name, f"{name} written")
        if isinstance(end, JobFailed):
            raise end
        return [JobOutcome(number, error=end) if isinstance(end, Exception) else JobOutcome(number, end)]


MADE: list[Processes] = []


@contextmanager
def in_processes(monkeypatch: pytest.MonkeyPatch, folder: Path, **ends: Any) -> Iterator[tuple[Any, Shown]]:
    MADE.clear()
    monkeypatch.setattr(workers, "ProcessPool", Processes)
    monkeypatch.setattr(Processes, "ends", ends, raising=False)
    plans = [
        replace(planned(name), rows=replace(PLAN.rows, read=carried, carried=carried))
        for name, carried in (("small", 1), ("large", 9), ("middle", 5))
    ]
    progress = Shown()
    with ExitStack():
        tree = FolderTree(folder)
        yield workers.write_bases([job(folder, plan) for plan in plans], tree, 2, progress), progress


def test_the_largest_base_is_written_first_and_no_more_at_once_than_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_processes(monkeypatch, tmp_path) as (finished, progress):
        assert list(finished) == ["large written", "middle written", "small written"]
    [pool] = MADE
    assert (pool.size, pool.most) == (2, 2)
    assert pool.put_jobs == ["large", "middle", "small", "ended"]
    assert progress.told == ["large", (1.5, 7), "middle", (1.5, 7), "small", (1.5, 7)]


def test_a_base_that_fails_in_a_process_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = VerificationFailed(base="middle", reason="other rows")
    with in_processes(monkeypatch, tmp_path, middle=wrong) as (finished, _):
        assert next(finished) == "large written"
        with fails("VerificationFailed", 3, match="other rows"):
            next(finished)
    assert MADE[0].put_jobs[-1] == "ended"


def test_a_process_that_was_killed_or_cannot_be_started_is_an_error_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        in_processes(monkeypatch, tmp_path, large=ProcessKilled(9)) as (finished, _),
        pytest.raises(OSError, match=r"^a worker process was killed \(out of memory\?\)$"),
    ):
        next(finished)
    full, without = JobFailed("no room"), JobFailed("for no known reason")
    full.__cause__ = OSError(11, "Resource temporarily unavailable")
    for error, raised in ((full, full.__cause__), (without, without)):
        with in_processes(monkeypatch, tmp_path, large=error) as (finished, _):
            with pytest.raises(type(raised)) as said:
                next(finished)
            assert said.value is raised
