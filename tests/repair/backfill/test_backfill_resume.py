"""``regraft backfill`` that is killed, interrupted, and shared: nothing is paid for twice, and all can be undone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from fault_server import FaultServer, Reply, Request, changed, hanging, right, slow, vector_of
from faults import INTERRUPTED, REFUSED, STOPPED, Tripwire, forked, output_of, posix, said, started_command, wait_until
from harness import run
from lacking import KB, LACKING, TEXTS, all_vectors, backfill, configured, many, taken_away, vectors
from planted_v2 import index
from stand_ins import KILLED, FullDisk, die, on_disk
from toys import QuickDisk, contents, quick_disk, watched

from regraft import embedders as server_module
from regraft import identity
from regraft.disk import sqlite, untrusted_sqlite
from regraft.errors import BackfillInterrupted, Interrupted
from regraft.ledger import ledger
from repair.changes.changesets import IncrementalChange
from repair.cherry_v2 import index_vectors as backfill_scope
from repair.embedding import queue as embedding_queue
from repair.embedding.filling import report_stops
from repair.embedding.queue import TextQueue

pytest.importorskip("openai", reason="the client of embedding servers is not installed")

READY = [text for text in TEXTS if text not in LACKING]


def queue(store: Path) -> Path:
    return store / ".regraft" / "backfill.sqlite"


def claimed(store: Path) -> int:
    """Return how many texts a queue holds for somebody."""
    if not queue(store).exists():
        return 0
    with sqlite.open_readonly(queue(store)) as db:
        return int(str(db.execute("SELECT count(*) FROM job WHERE state = 'claimed'").get))


def undone(store: Path) -> Path:
    """Take all runs back that can be, the last one first."""
    while any(entry["undo"]["state"] in ("possible", "unsettled") for entry in history(store)):
        done = run("undo", store, "--json")
        if done.document.get("error", {}).get("code") == "RunUnknown":
            break  # what was unsettled turned out to be nothing
        assert done.status == 0, done
    return store


def history(store: Path) -> list[dict[str, object]]:
    return run("history", store, "--json").document["runs"]


def started(store: Path, config: Path, before: str = "") -> subprocess.Popen[str]:
    """Run the command; nothing is sent but what lacks a vector."""
    return started_command("backfill", str(store), "--config", str(config), "--json", "--no-probe", before=before)


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = output_of(process)
    assert process.returncode == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


# --- two at the same time ---------------------------------------------------------------------------------------------


def test_two_models_of_one_name_do_not_fill_a_base_without_vectors_together(
    store: Path, tmp_path: Path, server: FaultServer
) -> None:
    """Neither can be compared with vectors of the base: the second run looks before the first one has written any."""
    taken_away(store, TEXTS)
    first, second = (configured(tmp_path / f"{name}.yaml", server, encoding=name) for name in ("base64", "float"))
    others: list[tuple[int, str]] = []

    def behave(request: Request) -> Reply:
        if request.body["encoding_format"] == "float":
            return changed(lambda found: [vector[4:] + vector[:4] for vector in found])(request)
        if not others and set(request.texts) <= set(TEXTS):
            other = started_command("backfill", str(store), "--config", str(second), "--json", "--base", KB)
            out, _ = output_of(other)
            others.append((other.returncode, json.loads(out)["error"]["code"]))
        return right(request)

    server.behave = behave
    assert backfill(store, first, "--base", KB).status == 0
    assert others == [(REFUSED, "EmbedderDiffers")]
    assert vectors(store) == all_vectors()


# --- looking while others write --------------------------------------------------------------------------------------


def test_an_index_can_be_looked_at_while_another_run_writes_to_it(store: Path) -> None:
    """Who looks keeps nobody from writing, and sees what was written: half of the old and half of the new is damage."""
    with (
        backfill_scope.open_index_scope(index(store), KB, dimensions=len(vector_of("")) // 4) as scope,
        sqlite.open_writable(index(store)) as db,
    ):
        keys = scope.lacking()
        seen = {next(keys)}
        assert scope.survey().lacking == len(LACKING)
        others = [(identity.text_hash(str(number)), bytes(4096), 1) for number in range(300)]
        made = [(identity.text_hash(text), vector_of(text), 1) for text in LACKING]
        db.set_busy_timeout(0)
        with sqlite.transaction(db):
            db.executemany("INSERT INTO embedding VALUES (?, ?, ?)", [*others, *made])
        assert seen.union(keys) == {key for key, _, _ in made}
        assert scope.survey().lacking == 0


@pytest.mark.thorough
def test_texts_without_units_wait_where_another_run_is_at_work(
    store: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only a run by itself can do is said to be left, and never to be done; all else is."""
    monkeypatch.setattr("repair.embedding.run.WAIT_SECONDS", 0)
    with sqlite.open_writable(index(store)) as db:
        db.execute("DELETE FROM search_unit WHERE material_id = (SELECT material_id FROM search_unit LIMIT 1)")
    planned = backfill(store, config, "--dry-run").document
    (store / ".regraft").mkdir()
    with ledger.open_shared(store):
        done = backfill(store, config)
    assert {action["action"] for action in planned["actions"]} == {"cut-texts", "embed"}
    assert {action["action"] for action in done.document["actions"]} == {"embed"}
    assert [one["finding"] for one in done.document["left"]] == ["material.no-units"]
    assert "another regraft process is using this target" in done.document["left"][0]["reason"]
    again = backfill(store, config).document
    assert {action["action"] for action in again["actions"]} >= {"cut-texts"}


def test_an_index_with_the_journal_of_a_killed_writer_is_read_as_it_was(store: Path) -> None:
    def work() -> None:
        with sqlite.open_writable(index(store)) as db:
            db.execute("PRAGMA cache_size = 1")
            db.execute("BEGIN IMMEDIATE")
            db.execute("UPDATE embedding SET vector_blob = zeroblob(100000)")
            die()

    assert forked(work) == KILLED
    assert untrusted_sqlite.find_companions(index(store)) != []
    with backfill_scope.open_index_scope(index(store), KB) as scope:
        assert scope.survey().ready == len(READY)
    assert untrusted_sqlite.find_companions(index(store)) != []


# --- kills and interruptions -----------------------------------------------------------------------------------------


def wire(patch: pytest.MonkeyPatch, at: int, spring: Callable[[], object]) -> Tripwire:
    """Return a wire across all that a run does to the store, the queue and the server."""
    tripwire = (
        watched(patch, at, spring)
        .watch(IncrementalChange, "note_commit")
        .watch(server_module.ServerEmbedder, "_request_vectors")
    )
    return tripwire.watch(TextQueue, "fill", "claim", "done", "renew", "release_all", "reclaim_all", "is_disposable")


def at_step(disk: QuickDisk, at: int, spring: Callable[[], object], store: Path, config: Path) -> int:
    """Run the command in another process where something happens at one step; returns its exit status."""

    def work() -> None:
        with pytest.MonkeyPatch.context() as patch:
            disk.step = wire(patch, at, spring).step
            os._exit(backfill(store, config, "--no-probe").status)

    return forked(work)


def steps_of(disk: QuickDisk, store: Path, config: Path) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        tripwire = wire(patch, -1, die)
        disk.step = tripwire.step
        try:
            assert backfill(store, config, "--no-probe").status == 0
        finally:
            disk.step = lambda name: None
    return tripwire.steps


def moments(steps: list[str]) -> list[int]:
    """Return at which steps to stop a run: the first ones of each kind once texts wait, and some of all others."""
    begin, seen, own = steps.index("fill"), Counter[str](), []
    for at, name in enumerate(steps[begin:], begin + 1):
        seen[name] += 1
        if not name.startswith("x") and seen[name] < 3:
            own.append(at)
    return sorted({*own, *range(6, len(steps), 14)})


@pytest.mark.slow
@posix
@pytest.mark.parametrize(
    ("spring", "every"), [(die, 1), (lambda: signal.raise_signal(signal.SIGINT), 2)], ids=["kill", "Ctrl-C"]
)
def test_a_run_that_is_stopped_at_any_step_is_gone_on_with_and_can_be_undone(
    spring: Callable[[], object], every: int, store: Path, tmp_path: Path, server: FaultServer, config: Path
) -> None:
    with quick_disk() as disk:
        before = contents(store)
        steps = steps_of(disk, shutil.copytree(store, tmp_path / "steps"), config)
        for number, at in enumerate(moments(steps)[::every]):
            root, where = tmp_path / "stopped", (at, steps[at - 1])
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(store, root)
            server.paid.clear()
            status = at_step(disk, at, spring, root, config)
            assert status in (0, KILLED, INTERRUPTED), where
            written, paid = set(vectors(root)) - set(READY), Counter(server.paid)
            if status != KILLED:
                # What was answered is written, and nobody holds anything.
                assert written == set(paid), where
                assert claimed(root) == 0, where
            if number % 2:
                assert contents(undone(root)) == before, where
                written = set()
            assert backfill(root, config, "--no-probe").status == 0, where
            assert vectors(root) == all_vectors(), where
            # What was answered and not yet written is paid for again; nothing else is.
            assert Counter(server.paid) - Counter(LACKING) == Counter(set(paid) - written), where
            if not number % 2:
                assert contents(undone(root)) == before, where
            assert not queue(root).exists() or written == set(LACKING), where


@pytest.mark.thorough
@posix
def test_a_batch_that_another_run_wrote_after_a_kill_can_be_undone(
    store: Path, server: FaultServer, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed with what takes a batch back on disk, but before its commit, while another one goes on."""
    before = contents(store)

    def killed() -> None:
        # One batch after the other: answers that are there together are written together. This comes first: it loads
        # the module, which copies how long a claim holds.
        monkeypatch.setattr("repair.embedding.sender._AHEAD", 1)
        monkeypatch.setattr("repair.embedding.queue.LEASE_MS", -1)
        real, sizes = os.fsync, list[int]()

        def flushed(descriptor: int) -> None:
            real(descriptor)
            # Folders are flushed besides.
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                sizes.append(os.fstat(descriptor).st_size)
            if len(sizes) == 2:
                die()

        monkeypatch.setattr(os, "fsync", flushed)
        backfill(store, config)

    assert forked(killed) == KILLED
    assert len(vectors(store)) == len(READY) + 3
    with ledger.open_shared(store):
        # Nobody is alone, so that nothing of the killed run is settled.
        done = backfill(store, config)
        assert (done.status, vectors(store)) == (0, all_vectors())
    assert [entry["undo"]["state"] for entry in history(store)] == ["possible", "unsettled"]
    assert [run("undo", store, "-q").status for _ in range(2)] == [0, 0]
    assert contents(store) == before


@pytest.mark.thorough
@posix
def test_ctrl_c_ends_a_run_soon_with_one_line(store: Path, tmp_path: Path, server: FaultServer) -> None:
    config = configured(tmp_path / "slow.yaml", server, parallel=2)
    # One batch, one that is answered after the signal, and one that never is.
    server.behave = [right, slow(0.5), hanging, hanging, hanging]
    with started(store, config, "with_little_patience") as process:
        assert wait_until(lambda: len(server.requests) >= 3, process)
        process.send_signal(signal.SIGINT)
        out, err = output_of(process)
    assert process.returncode == INTERRUPTED
    assert (err.count("\n"), json.loads(out)["error"]["code"]) == (1, "BackfillInterrupted")
    count = len(vectors(store)) - len(READY)
    assert count in (3, 6)
    assert f"Interrupted. Vectors written so far are kept ({count})" in err
    assert claimed(store) == 0
    [entry] = history(store)
    assert (entry["status"], entry["undo"]["state"]) == ("interrupted", "possible")  # type: ignore[index]
    server.behave = right
    assert backfill(store, config).status == 0
    assert vectors(store) == all_vectors()


@pytest.mark.parametrize("torn", [None, OSError("no such file"), apsw.BusyError("locked"), Interrupted(finished=0)])
def test_a_stop_is_one_whatever_it_tears(torn: Exception | None) -> None:
    with pytest.raises(BackfillInterrupted, match=r"kept \(3\)"), report_stops(Path("store"), "mine", lambda: 3):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            if torn is not None:
                raise torn  # noqa: B904 - as what a stop tears, it is not raised from it
            raise


# --- several at once -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@posix
def test_two_processes_share_the_work_and_nobody_else_comes_between(
    store: Path, tmp_path: Path, server: FaultServer, config: Path
) -> None:
    texts = many(store)
    before = contents(store)
    both = threading.Event()

    def until_both_have_some(request: Request) -> Reply:
        if len(server.requests) > 4:
            both.wait()
        return right(request)

    server.behave = until_both_have_some
    with (
        started(store, config, "with_patience") as first,
        started(store, config, "with_patience") as second,
    ):
        assert wait_until(lambda: workers(store) == 2 and len(server.paid) > 9, first)
        for command in ("gc", "repair"):
            said(run(command, store, "--json"), "TargetLocked", 2)
        said(run("undo", store, "--json"), "TargetLocked", 2)
        both.set()
        documents = [ended(first), ended(second)]
    scopes = [one["scopes"][0] for one in documents]
    assert sum(scope["newly_ready"] for scope in scopes) == len(texts) + len(LACKING)
    assert all(scope["newly_ready"] > 0 for scope in scopes)
    assert [scope["ready"] for scope in scopes] == [len(texts) + len(TEXTS)] * 2
    assert vectors(store) == all_vectors([*TEXTS, *texts])
    assert Counter(server.texts) == Counter([*LACKING, *texts])
    assert not queue(store).exists()
    assert [run("undo", store, "-q").status for _ in range(2)] == [0, 0]
    assert contents(store) == before


def workers(store: Path) -> int:
    """Return how many processes have texts of the queue."""
    # It may just be on its way.
    with suppress(apsw.CantOpenError, apsw.SQLError), sqlite.open_readonly(queue(store)) as db:
        return int(str(db.execute("SELECT count(DISTINCT worker) FROM job").get))
    return 0


@pytest.mark.slow
@posix
def test_the_survivor_of_two_takes_over_what_the_other_one_had(
    store: Path, tmp_path: Path, server: FaultServer
) -> None:
    config = configured(tmp_path / "patient.yaml", server)
    texts = many(store)
    hangs = threading.Event()

    def never(request: Request) -> Reply:
        hangs.set()
        return hanging(request)

    server.behave = [right, right, never]
    # Only what the first one has can be taken over soon: the second one may be slow, and keeps what it has.
    with started(store, config, "with_short_leases") as first:
        assert wait_until(hangs.is_set, first)
        with started(store, config, "with_patience") as second:
            wait_until(lambda: len(server.requests) > 6, second)
            first.kill()
            document = ended(second)
    assert vectors(store) == all_vectors([*TEXTS, *texts])
    # Only what the dead one was waiting for was sent again.
    twice = {text: count for text, count in Counter(server.texts).items() if count > 1}
    assert twice == dict.fromkeys(server.requests[2].texts, 2)
    assert document["scopes"][0]["failed"] == 0
    # The killed one is settled once nobody is at work any more.
    assert backfill(store, config).document["undo"] is None
    assert [run("undo", store, "-q").status for _ in range(2)] == [0, 0]
    assert set(vectors(store)) == set(READY)


@pytest.mark.thorough
def test_who_has_the_store_to_itself_is_waited_for_only_so_long(
    store: Path, server: FaultServer, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding_queue, "WAIT_SECONDS", 0.1)
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 1)
    (store / ".regraft").mkdir()
    with ledger.open_exclusive(store):
        said(backfill(store, config), "TargetLocked", 2)
    assert set(vectors(store)) == set(READY)
    assert not set(LACKING).intersection(server.texts)
    assert backfill(store, config).status == 0


@pytest.mark.thorough
def test_a_queue_that_cannot_be_read_is_made_anew(store: Path, server: FaultServer, config: Path) -> None:
    backfill(store, config, "--limit", 3)
    queue(store).write_bytes(b"no database at all, but a long text that stands in its place")
    assert backfill(store, config).status == 0
    assert vectors(store) == all_vectors()


@pytest.mark.thorough
def test_a_disk_that_is_full_at_any_moment_loses_nothing(
    whole: Path, tmp_path: Path, server: FaultServer, config: Path
) -> None:
    # A whole run writes 109 to 194 times: how often its threads meet is left to the system.
    before, statuses = contents(whole), set[int]()
    for room in range(20, 160, 20):
        store = shutil.copytree(whole, tmp_path / f"full-{room}")
        with on_disk(FullDisk(room)):
            done = backfill(store, config, "--no-probe")
        statuses.add(done.status)
        if done.status:
            assert "database or disk is full" in done.document["error"]["message"], room
        written = set(vectors(store)) - set(READY)
        server.paid.clear()
        assert backfill(store, config, "--no-probe").status == 0, room
        assert set(server.paid) == set(LACKING) - written, room
        assert vectors(store) == all_vectors(), room
        assert contents(undone(store)) == before, room
    assert {REFUSED, STOPPED} <= statuses <= {0, REFUSED, STOPPED}
