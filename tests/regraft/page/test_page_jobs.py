"""Jobs go on without their page, stop as by Ctrl-C, and are finished by the next click after they were killed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import page_client
import page_tasks
import planted_v2
import profiles
import pytest
from harness import REPO, run
from page_client import Client, said
from starlette.requests import Request

from regraft.page import jobs, journeys
from regraft.page.jobs import IdleTimer, Stage

SAMPLE = REPO / "sample_v1" / "cherry-studio.202503141200.zip"
CHOICES = {
    "model:openai::text-embedding-3-small": "map:acme::other",
    "provider:silicon::BAAI/bge-m3": "silicon",
    "model:silicon::BAAI/bge-m3": "provider",
}


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    with page_client.client(tmp_path) as made:
        yield made


def planned_upgrade(reader: Client, folder: Path) -> Any:
    profile = profiles.profile(folder / "profile")
    return reader.start("upgrade", path=SAMPLE, profile=profile, library=str(folder / "library"), **CHOICES)


def vectors(library: Path) -> dict[str, list[Any]]:
    found = {}
    for path in sorted(library.glob("KnowledgeBase/*/.cherry/index.sqlite")):
        found[path.parts[-3]] = profiles.rows(path, "SELECT embedding_text_hash, vector_blob FROM embedding ORDER BY 1")
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    library = tmp_path_factory.mktemp("expected") / "library"
    run("migrate", SAMPLE, "--to", library)
    return vectors(library)


def bases_of(profile: Path) -> set[tuple[str, str]]:
    rows = profiles.rows(profile / "cherrystudio.sqlite", "SELECT name, embedding_model_id FROM knowledge_base")
    return {(name, model) for name, model in rows if name != "My own"}


# --- killed and stopped -----------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("moment", [pytest.param("Carrying step 2", marks=pytest.mark.slow), "Changing step 3"])
def test_a_killed_upgrade_is_reported_and_the_next_click_finishes_it(reader, tmp_path, monkeypatch, expected, moment):
    planned = planned_upgrade(reader, tmp_path)
    monkeypatch.setenv(page_tasks.MOMENT, moment)
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "run_task", page_tasks.killed)
        job = reader.confirm(planned)
    assert job.state == "killed"
    text = reader.page(job)
    assert "It was killed" in text and "No file is half-written" in text
    done = reader.start(f"job/{job.id}/again")
    while done.state == "changed":
        # What is there already is left out of the plan now: the page shows the new one.
        done = reader.confirm(done)
    assert done.state == "done", done.outcome
    assert vectors(tmp_path / "library") == expected
    assert vectors(tmp_path / "profile" / "Data") == expected
    assert {name for name, _ in bases_of(tmp_path / "profile")} == {
        "Harbour museum",
        "社区菜园 🌱",
        "Boat workshop",
        "Old clippings",
    }
    undo = reader.start("undo", path=tmp_path / "profile", run=done.outcome.report.install.undo)
    assert reader.confirm(undo).state == "done"
    assert bases_of(tmp_path / "profile") == set() and vectors(tmp_path / "profile" / "Data") == {}


@pytest.mark.parametrize("moment", ["Carrying start 1", pytest.param("Changing step 2", marks=pytest.mark.slow)])
def test_stop_is_ctrl_c(reader, tmp_path, monkeypatch, expected, moment):
    planned = planned_upgrade(reader, tmp_path)
    monkeypatch.setenv(page_tasks.MOMENT, moment)
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "run_task", page_tasks.stopped)
        job = reader.confirm(planned)
    assert (job.state, job.outcome.code) == ("stopped", "Interrupted")
    assert bases_of(tmp_path / "profile") == set() and vectors(tmp_path / "profile" / "Data") == {}
    assert "It was stopped" in reader.page(job)
    done = reader.start(f"job/{job.id}/again")
    while done.state == "changed":
        done = reader.confirm(done)
    assert done.state == "done" and vectors(tmp_path / "profile" / "Data") == expected


@pytest.mark.thorough
def test_a_killed_repair_is_finished(reader, tmp_path, monkeypatch):
    library = planted_v2.library(tmp_path)
    planted_v2.plant("a vector of nobody", library)
    planned = reader.start("fix", path=library)
    monkeypatch.setenv(page_tasks.MOMENT, "Changing start 1")
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "run_task", page_tasks.killed)
        job = reader.confirm(planned)
    assert job.state == "killed"
    assert reader.start(f"job/{job.id}/again").state == "done"
    assert run("check", library).status == 0


# --- running ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that holds every job while it is there."""
    file = tmp_path / "hold"
    file.touch()
    monkeypatch.setenv(page_tasks.HOLD, str(file))
    monkeypatch.setattr(jobs, "run_task", page_tasks.held)
    return file


@pytest.mark.thorough
def test_a_job_goes_on_without_its_page_and_is_found_again(reader, tmp_path, hold):
    library = planted_v2.library(tmp_path)
    job = reader.job_of(reader.post("check", path=library))
    text = reader.get(f"job/{job.id}").text
    assert f'data-job="{job.id}"' in text and '<noscript><meta http-equiv="refresh" content="2"></noscript>' in text
    home = reader.get("").text
    assert "A job is running" in home and f"job/{job.id}" in home
    hold.unlink()
    job.join(page_client.NEVER_SECONDS)
    assert "What the check found" in reader.page(job) or "Nothing found" in reader.page(job)


@pytest.mark.thorough
def test_two_tabs_that_press_one_button_start_one_job(reader, tmp_path, hold):
    library = planted_v2.library(tmp_path)
    first, second = (reader.job_of(reader.post("fix", path=library)) for _ in range(2))
    assert first is second
    # Another task on the same store leads to the running one.
    assert reader.job_of(reader.post("rescue", path=library)) is first
    assert len(reader.desk.jobs._jobs) == 1
    # A look does not wait for it.
    other = reader.job_of(reader.post("check", path=library))
    assert other is not first
    hold.unlink()


@pytest.mark.thorough
def test_a_server_with_a_job_does_not_quit(reader, tmp_path, hold):
    job = reader.job_of(reader.post("check", path=planted_v2.library(tmp_path)))
    answer = reader.post("quit")
    assert answer.status_code == 409 and "A job is running. Stop it first, or wait for its end." in said(answer)
    assert not reader.desk.is_ended and job.is_running
    hold.unlink()


@pytest.mark.thorough
def test_a_plan_is_confirmed_once_and_a_result_never(reader, tmp_path):
    library = planted_v2.library(tmp_path)
    planted_v2.plant("a vector of nobody", library)
    done = reader.confirm(reader.start("fix", path=library))
    again = reader.post(f"job/{done.id}/confirm")
    assert again.headers["location"].endswith(f"job/{done.id}")
    check = reader.start("check", path=library)
    assert reader.post(f"job/{check.id}/confirm").headers["location"].endswith(f"job/{check.id}")
    for page in ("job/0", "job/0/events", "job/0/report.json"):
        assert reader.get(page).status_code == 404
    for page in ("job/0/confirm", "job/0/stop", "job/0/again"):
        assert reader.post(page).status_code == 404


@pytest.mark.thorough
def test_progress_is_streamed_to_the_end(reader, tmp_path, hold):
    job = reader.job_of(reader.post("check", path=planted_v2.library(tmp_path)))
    answers = []
    reading = threading.Thread(target=lambda: answers.append(reader.get(f"job/{job.id}/events")))
    reading.start()
    hold.unlink()
    reading.join(page_client.NEVER_SECONDS)
    (answer,) = answers
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.endswith("event: end\ndata: {}\n\n")
    assert reader.desk.streams == 0


@pytest.mark.thorough
def test_a_slow_reader_gets_only_the_latest_state(reader, tmp_path, hold, monkeypatch):
    """Progress that nobody has read yet is not kept: between two events of a reader, a job may report anything."""
    monkeypatch.setattr(journeys, "_EVENT_SECONDS", 0)
    job = reader.job_of(reader.post("check", path=planted_v2.library(tmp_path)))
    scope = {"type": "http", "app": reader.http.app, "path_params": {"job": job.id}}

    async def read_slowly() -> list[str]:
        answer = await journeys._events(Request(scope))
        events = answer.body_iterator
        read = [await anext(events)]
        for number in range(10_000):
            job.stage = Stage(name="Checking", done=number, total=10_000)
        read.append(await anext(events))
        job.outcome = jobs.Outcome(state="done")
        return [*read, *[event async for event in events]]

    outcome, job.outcome = job.outcome, None
    first, latest, end = asyncio.run(read_slowly())
    job.outcome = outcome
    assert "9,999 of 10,000" in latest and "9,999" not in first
    assert end == "event: end\ndata: {}\n\n" and reader.desk.streams == 0
    hold.unlink()


@pytest.mark.thorough
def test_streams_are_limited(reader, tmp_path, hold):
    job = reader.job_of(reader.post("check", path=planted_v2.library(tmp_path)))
    reader.desk.streams = 20
    assert reader.get(f"job/{job.id}/events").status_code == 503
    hold.unlink()


@pytest.mark.thorough
def test_reports_of_old_jobs_are_forgotten(reader, monkeypatch):
    monkeypatch.setattr(jobs, "_MOST_KEPT", 1)
    first = reader.start("check", path=SAMPLE, level="default")
    second = reader.start("check", path=SAMPLE)
    reader.start("check", path=SAMPLE)
    assert reader.desk.jobs.find(first.id) is None and reader.desk.jobs.find(second.id) is not None


def test_an_idle_server_ends_but_not_with_a_job():
    now = [0.0]
    timer = IdleTimer(1_800, lambda: now[0])
    now[0] = 1_799
    assert not timer.is_over([])
    timer.note_use()
    now[0] = 3_000
    assert not timer.is_over([])
    working: Any = [object()]
    now[0] = 9_000
    assert not timer.is_over(working)
    now[0] = 9_001
    assert not timer.is_over([])
    now[0] = 10_800
    assert timer.is_over([])


def test_every_request_counts_as_use(tmp_path):
    now = [0.0]
    with page_client.client(tmp_path, clock=lambda: now[0]) as reader:
        now[0] = 59
        reader.get("page.css")
        now[0] = 100
        assert not reader.desk.timer.is_over([])
        # A request that is refused is no use of the page.
        reader.http.get("/wrong/")
        now[0] = 119
        assert reader.desk.timer.is_over([])
