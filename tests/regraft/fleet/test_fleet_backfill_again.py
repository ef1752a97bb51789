"""A fleet's backfill that something kept from filling its libraries, and the run that goes on with it."""

from __future__ import annotations

import errno
import json
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import apsw
import fleet_work
import pytest
from extras import needs
from fault_server import FaultServer, Reply, Request, answer, right, vector_of
from harness import run_as_given, snapshot
from lacking import COMPARED, LACKING, TEXTS, all_vectors, configured, many, migrated, taken_away, vectors
from planted_v2 import index
from three_libraries import NAMES, WANTED, backfill, is_filled, names_beside, resume, rows_in

from regraft import identity
from regraft.errors import StoppedBySystem
from regraft.fleet.engine import Task, TaskResult
from repair.embedding.filling import Filling
from repair.embedding.sender import BatchResult

pytestmark = needs("parquet")


def of_another_length(stores: Path, tmp_path: Path, name: str) -> None:
    """Put a library in the place of one whose vectors are twice as long."""
    shutil.rmtree(stores / name)
    made = taken_away(migrated(tmp_path / "made", lambda text: vector_of(text, 16)))
    shutil.copytree(made, stores / name)
    shutil.rmtree(tmp_path / "made")


# --- the model -------------------------------------------------------------------------------------------------------


def test_a_library_of_longer_vectors_is_refused_and_not_ended_well(stores: Path, tmp_path: Path) -> None:
    of_another_length(stores, tmp_path, "anna")
    before = snapshot(stores / "anna")
    with FaultServer() as server:
        done = backfill(stores, configured(tmp_path / "regraft.yaml", server))
        assert (done.status, done.document["libraries"]) == (2, {"all": 3, "done": 2, "refused": 1})
        row = rows_in(stores)["anna"]
        assert (row["code"], row["exit_status"]) == ("AnswerUnfit", 2)
        assert snapshot(stores / "anna") == before
        # It is looked at again.
        assert resume(stores).document["sent"]["libraries"] == 1


def other_model(request: Request) -> Reply:
    """Answer as a model of the same name and length that is another one."""
    return answer(request, [vector_of(f"other model {text}", request.dimensions) for text in request.texts])


@pytest.mark.thorough
def test_a_model_that_was_changed_meanwhile_gives_nothing_to_the_run_that_goes_on(stores: Path, tmp_path: Path) -> None:
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server)
        assert backfill(stores, config, "--limit", 2).status == 1
        before = snapshot(stores)
        server.behave = other_model
        done = resume(stores)
        assert (done.status, done.document["libraries"]) == (2, {"all": 3, "refused": 3})
        assert {row["code"] for row in rows_in(stores).values()} == {"EmbedderDiffers"}
        assert snapshot(stores) == before
        server.behave = right
        # It had the limit of two texts again.
        assert resume(stores).status == 1
    assert set(server.texts) & WANTED
    for name in NAMES:
        assert all(vector == vector_of(text) for text, vector in vectors(stores / name).items())


def test_a_run_that_goes_on_compares_one_text_while_the_model_is_the_same(stores: Path, tmp_path: Path) -> None:
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server)
        first = backfill(stores, config, "--limit", 2).document["sent"]["probe"]
        assert (first["texts"], first["remembered"]) == (6, False)
        before = Counter(server.texts)
        again = resume(stores).document["sent"]["probe"]
        assert (again["texts"], again["requests"], again["remembered"]) == (6, 1, True)
        compared = Counter(server.texts) - before
        assert sum(count for text, count in compared.items() if text not in WANTED) == 1


def test_a_run_that_goes_on_with_a_higher_limit_pays_for_one_text_again(stores: Path, tmp_path: Path) -> None:
    texts = many(stores / "anna", 40)
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server, price_per_million_tokens=2.0)
        done = backfill(stores, config, "--max-cost", 0.0015)
        assert (done.status, done.document["libraries"]) == (1, {"all": 3, "limit-reached": 3})
        paid = done.document["sent"]
        assert 0 < paid["cost"] + paid["probe"]["cost"] <= 0.0015
        # What anna is compared by now was embedded by the first run.
        assert len(set(vectors(stores / "anna")) & set(texts)) > 8
        done = backfill(stores, Path(), "--max-cost", 1, command="resume")
        assert (done.status, done.document["libraries"]) == (0, {"all": 3, "done": 3})
        again = Counter(server.texts) - Counter(set(server.texts))
        assert (sum(again.values()), done.document["sent"]["probe"]["requests"]) == (1, 1)
    assert set(vectors(stores / "anna")) >= set(texts)
    assert all(is_filled(stores / name) for name in NAMES[1:])


def test_what_is_compared_is_within_the_cost_and_ends_no_library_as_stopped(stores: Path, tmp_path: Path) -> None:
    before = snapshot(stores)
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server, price_per_million_tokens=2.0)
        done = backfill(stores, config, "--max-cost", 0.00001)
        assert (done.status, done.document["libraries"], server.requests) == (1, {"all": 3, "limit-reached": 3}, [])
        assert {row["message"] for row in rows_in(stores).values()} == {"--max-cost 1e-05 could be exceeded"}
        assert snapshot(stores) == before
        (tmp_path / "out.parquet").rename(tmp_path / "old.parquet")
        shutil.rmtree(tmp_path / "out.parquet.backfill")
        done = backfill(stores, config, "--max-cost", 100)
    assert (done.status, done.document["libraries"]) == (0, {"all": 3, "done": 3})
    probe = done.document["sent"]["probe"]
    assert probe["cost"] == pytest.approx(probe["tokens"] * 2e-6)


def test_why_a_run_stopped_is_shown_in_the_language_of_its_reader(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads and processes that send have no reader; their messages are English."""
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server, price_per_million_tokens=2.0)
        out = tmp_path / "out.jsonl"
        given = (stores, "--results", out, "--config", config, "--workers", 1, "-y", "--max-cost", 0.00001)
        monkeypatch.setenv("REGRAFT_LANG", "zh")
        done = run_as_given("fleet", "backfill", *given)
    page = tmp_path / "page.html"
    status = run_as_given("fleet", "status", out, "--html", page)
    assert done.status == status.status == 1
    for text, count in ((done.stdout, 4), (done.stderr, 3), (status.stdout, 3), (page.read_text("utf-8"), 3)):
        assert text.count("可能超过 --max-cost 1e-05") == count, text
        assert "exceeded" not in text
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert {row["message"] for row in rows if "source" in row} == {"--max-cost 1e-05 could be exceeded"}


def test_a_text_that_was_compared_is_not_sent_again_where_it_is_wanted(stores: Path, tmp_path: Path) -> None:
    """One library lacks what another one is compared by."""
    taken_away(stores / "anna", COMPARED[:1])
    with FaultServer() as server:
        assert backfill(stores, configured(tmp_path / "regraft.yaml", server)).status == 0
        assert server.texts.count(COMPARED[0]) == 1
    assert is_filled(stores / "anna")


def test_where_all_is_answered_nothing_is_compared_anew(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultServer() as server, monkeypatch.context() as patch:
        config = configured(tmp_path / "regraft.yaml", server)
        patch.setattr(Filling, "run", full)
        assert backfill(stores, config, "--attempts", 1).document["libraries"] == {"all": 3, "stopped": 3}
        sent = len(server.requests)
        patch.undo()
        fleet_work.put_in_place(patch)
        assert resume(stores).document["libraries"] == {"all": 3, "done": 3}
        assert len(server.requests) == sent
    assert all(is_filled(stores / name) for name in NAMES)


def full(*_: object) -> NoReturn:
    """Fail as a disk does that is full."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_answer_that_fits_no_base_is_not_kept(stores: Path, tmp_path: Path) -> None:
    """One library has vectors of that length, but is refused."""
    of_another_length(stores, tmp_path, "anna")
    shutil.rmtree(stores / "clara")
    with FaultServer() as server:

        def longer(request: Request) -> Reply:
            if LACKING[-1] in request.texts:
                return answer(request, [vector_of(text, 16) for text in request.texts])
            return right(request)

        server.behave = longer
        done = backfill(stores, configured(tmp_path / "regraft.yaml", server, batch={"texts": 1}))
        assert (done.status, rows_in(stores)["boris"]["code"]) == (2, "AnswerUnfit")
        server.behave = right
        assert resume(stores).document["libraries"] == {"all": 2, "done": 1, "refused": 1}
    assert is_filled(stores / "boris")


# --- libraries -------------------------------------------------------------------------------------------------------


def test_a_fill_that_a_full_disk_stopped_goes_on_where_it_is_tried_again(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base has other texts with vectors by then; it is compared by those that it was compared by before."""
    for name in NAMES[1:]:
        shutil.rmtree(stores / name)
    texts = many(stores / "anna", 60)
    with apsw.Connection(str(index(stores / "anna"))) as db:
        db.executemany(
            "INSERT INTO embedding (embedding_text_hash, vector_blob, created_at) VALUES (?, ?, 1)",
            [(identity.text_hash(text), vector_of(text)) for text in texts[:30]],
        )
    written = Filling.write
    calls: list[object] = []

    def full_once(filling: Filling, answers: list[BatchResult]) -> None:
        written(filling, answers)
        calls.append(answers)
        if len(calls) == 2:
            full()

    monkeypatch.setattr(Filling, "write", full_once)
    with FaultServer() as server:
        done = backfill(stores, configured(tmp_path / "regraft.yaml", server))
    assert (done.status, rows_in(stores)["anna"]["attempts"]) == (0, 2)
    assert vectors(stores / "anna") == all_vectors([*TEXTS, *texts])


def test_the_state_of_a_backfill_is_read_while_it_sends(stores: Path, tmp_path: Path) -> None:
    found = []

    def looking(request: Request) -> Reply:
        if not found:
            found.append(run_as_given("fleet", "status", tmp_path / "out.parquet", "--json").document)
        return right(request)

    with FaultServer() as server:
        server.behave = looking
        assert backfill(stores, configured(tmp_path / "regraft.yaml", server)).status == 0
    [state] = found
    # Its libraries have been surveyed, and none is being filled.
    assert (state["command"], state["state"], state["left"], state["in_progress"]) == ("backfill", "running", 3, [])
    done = run_as_given("fleet", "status", tmp_path / "out.parquet", "--json").document
    assert (done["state"], done["libraries"]) == ("finished", {"all": 3, "done": 3})


@pytest.mark.thorough
def test_only_the_libraries_that_a_limit_stopped_are_filled_by_the_next_run(stores: Path, tmp_path: Path) -> None:
    shutil.rmtree(stores / "anna")
    (stores / "anna").write_text("no library")
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server)
        done = backfill(stores, config, "--max-requests", 1)
        assert (done.status, done.document["libraries"]) == (2, {"all": 3, "limit-reached": 2, "refused": 1})
        refused = rows_in(stores)["anna"]
        for _ in range(20):
            done = backfill(stores, Path(), "--only", "unfinished", command="resume")
            if done.document["libraries"] == {"all": 3, "done": 2, "refused": 1}:
                break
    assert (done.status, rows_in(stores)["anna"]) == (2, refused)
    assert all(is_filled(stores / name) for name in NAMES[1:])


def test_texts_that_a_library_got_meanwhile_are_of_the_next_run(stores: Path, tmp_path: Path) -> None:
    with FaultServer() as server:

        def more(request: Request) -> Reply:
            if len(server.requests) == 1:
                many(stores / "anna", 4)
            return right(request)

        server.behave = more
        done = backfill(stores, configured(tmp_path / "regraft.yaml", server))
        assert (done.status, done.document["libraries"]) == (3, {"all": 3, "done": 2, "stopped": 1})
        row = rows_in(stores)["anna"]
        assert (row["code"], row["exit_status"]) == ("BackfillStopped", 3)
        assert row["message"] == "the library was changed during the run"
        assert resume(stores).document["libraries"] == {"all": 3, "done": 3}
    assert len(vectors(stores / "anna")) == len(TEXTS) + 4


# --- what stays ------------------------------------------------------------------------------------------------------


class Stopped(fleet_work.HerePool):
    """Is stopped by Ctrl-C before a library has ended."""

    def answers(self, seconds: float) -> Iterator[tuple[int, TaskResult]]:
        """Stop."""
        signal.raise_signal(signal.SIGINT)
        yield from super().answers(seconds)


def test_a_dry_run_that_is_stopped_leaves_nothing(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(tmp_path / "regraft.yaml", "http://127.0.0.1:9/v1")
    before = snapshot(tmp_path)
    monkeypatch.setattr("regraft.api.fleet.LocalPool", Stopped)
    done = backfill(stores, config, "--dry-run")
    assert (done.status, done.document["error"]["code"]) == (130, "Interrupted")
    assert snapshot(tmp_path) == before
    # The same moment of a run that writes leaves what can be gone on with.
    done = backfill(stores, config)
    assert (done.status, done.document["error"]["code"]) == (130, "FleetInterrupted")
    assert names_beside(stores) == ["out.parquet.backfill", "out.parquet.journal"]


@pytest.mark.parametrize(("name", "hint"), [("wanted", "remove the folder, or"), ("answers.sqlite", "paid for")])
def test_a_folder_that_cannot_be_gone_on_with_says_what_to_do(
    name: str, hint: str, stores: Path, tmp_path: Path
) -> None:
    config = configured(tmp_path / "regraft.yaml", "http://127.0.0.1:9/v1")
    (tmp_path / "out.parquet.backfill").mkdir()
    (tmp_path / "out.parquet.backfill" / name).touch()
    done = backfill(stores, config)
    assert (done.status, done.document["error"]["code"]) == (2, "WrongUsage")
    assert hint in done.document["error"]["message"]


def test_results_that_cannot_be_written_keep_no_texts(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server)
        assert backfill(stores, config, "--limit", 2).status == 1
        # A run that was killed left texts that it had gathered.
        folder = tmp_path / "out.parquet.backfill"
        for name in ("texts.sqlite", "compared.sqlite"):
            (folder / name).write_text("a text of somebody")
        with monkeypatch.context() as patch:
            patch.setattr("regraft.fleet.results.write_results", full)
            assert resume(stores).status == 3
        assert [path.name for path in folder.iterdir()] == ["answers.sqlite"]
        # It had its limit, and the next one has it anew.
        answered = len(set(server.texts) & WANTED)
        assert resume(stores).document["sent"]["answered"] == 2
        assert len(set(server.texts) & WANTED) > answered


def stopped(*_: object) -> NoReturn:
    """Fail as a cluster does whose keeper was killed."""
    raise StoppedBySystem(reason="the keeper was killed")


def test_what_stops_the_sending_says_how_to_go_on(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server)
        with monkeypatch.context() as patch:
            patch.setattr("repair.embedding.fleet_jobs.FleetSender.send", stopped)
            done = backfill(stores, config)
        assert (done.status, done.document["error"]["code"]) == (3, "StoppedBySystem")
        said = f"the keeper was killed; continue with: regraft fleet resume {tmp_path / 'out.parquet'}."
        assert said in done.document["error"]["message"]
        assert resume(stores).status == 0
    assert all(is_filled(stores / name) for name in NAMES)


@pytest.mark.parametrize("fail", [stopped, full])
def test_what_stops_a_run_before_anything_is_sent_leaves_nothing_to_go_on_with(
    fail: Callable[..., NoReturn], stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(tmp_path / "regraft.yaml", "http://127.0.0.1:9/v1")
    monkeypatch.setattr("repair.embedding.fleet.FleetBackfill._make_plan", fail)
    done = backfill(stores, config)
    assert (done.status, done.document["error"]["code"]) == (3, "StoppedBySystem")
    assert "continue with" not in done.document["error"]["message"]
    assert names_beside(stores) == []


def test_texts_that_a_killed_run_gathered_go_with_the_next_end(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server)
        assert backfill(stores, config, "--limit", 2).status == 1
        folder = tmp_path / "out.parquet.backfill"
        (folder / "compared.sqlite").write_text("a text of somebody")
        monkeypatch.setattr("regraft.cli.fleet.confirm_plan", lambda *_, **__: False)
        assert resume(stores).document["error"]["code"] == "Declined"
        assert [path.name for path in folder.iterdir()] == ["answers.sqlite"]


def test_the_settings_of_the_embedder_are_held_once(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many libraries there are."""
    told = []

    class Noting(fleet_work.HerePool):
        """Takes note of the settings that each task has."""

        def start_task(self, task: Task) -> None:
            """Take note of a task."""
            told.append(task.job.embedder)
            super().start_task(task)

    monkeypatch.setattr("regraft.api.fleet.LocalPool", Noting)
    with FaultServer() as server:
        assert backfill(stores, configured(tmp_path / "regraft.yaml", server)).status == 0
    assert (len(told), len({id(one) for one in told})) == (2 * len(NAMES), 1)


def test_metrics_are_written_while_texts_are_sent(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refreshed: list[object] = []
    so_far: dict[bool, int] = {}

    def refresh(metrics: object) -> None:
        refreshed.append(metrics)

    def looking(request: Request) -> Reply:
        so_far.setdefault(bool(WANTED & set(request.texts)), len(refreshed))
        return right(request)

    monkeypatch.setattr("regraft.fleet.status.Metrics.refresh", refresh, raising=False)
    with FaultServer() as server:
        server.behave = looking
        config = configured(tmp_path / "regraft.yaml", server)
        assert backfill(stores, config, "--metrics", tmp_path / "fleet.prom").status == 0
    # What was compared had come before anything else was sent.
    assert so_far[False] < so_far[True]
