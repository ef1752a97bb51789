"""Texts that are claimed: what a kill leaves in every state, and that a claim which ran out changes nothing any more.

``docs/reliability.md``, "Crash semantics". Clocks are given: nothing here waits for one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from deaths import Patched, dies, killed
from fault_server import FaultServer, poisoned, right
from faults import forked, posix
from lacking import KB, KEYS, LACKING, TEXTS, all_vectors, backfill, queue_rows, vectors

from regraft import embedders as server_module
from regraft.ledger import ledger
from repair.changes.changesets import IncrementalChange
from repair.cherry_v2.index_vectors import IndexScope
from repair.embedding import queue as queues
from repair.embedding.queue import ALONE_ATTEMPTS, LEASE_MS, TextClaim, TextQueue

pytest.importorskip("openai", reason="the client of embedding servers is not installed")


def states(store: Path) -> Counter[str]:
    """Return how many texts the queue of a store has in each state."""
    path = store / ".regraft" / "backfill.sqlite"
    return Counter(str(row[2]) for row in queue_rows(path)) if path.exists() else Counter()


# --- the queue -------------------------------------------------------------------------------------------------------


def late(queue: TextQueue, claim: TextClaim) -> dict[str, Callable[[], object]]:
    """Return all that a worker may say of a claim."""
    return {
        "done": lambda: queue.done(claim, claim.keys),
        "defer": lambda: queue.defer(claim, claim.keys, "zero_vector", ALONE_ATTEMPTS),
        "release": lambda: queue.release(claim, claim.keys),
        "fail": lambda: queue.fail(claim, claim.keys[0], "http_400", "no"),
        "renew": lambda: queue.renew(LEASE_MS + 2),
        "give back": queue.release_all,
    }


@pytest.mark.thorough
@posix
@pytest.mark.parametrize("answer", ["done", "defer", "release", "fail", "renew", "give back"])
@pytest.mark.parametrize("is_done", [False, True], ids=["another one has it", "another one is done with it"])
def test_a_late_answer_for_an_expired_claim_changes_nothing(answer: str, is_done: bool, file: Path) -> None:
    with queues.open_queue(file) as queue:
        claim = queue.claim(KB, 3, 0)
        assert claim is not None

        def another_process() -> None:
            with queues.open_queue(file) as other:
                assert other.claim(KB, 3, LEASE_MS) != claim  # it still holds
                taken = other.claim(KB, len(KEYS), LEASE_MS + 1)
                while taken is not None and not set(claim.keys) <= set(taken.keys):
                    taken = other.claim(KB, len(KEYS), LEASE_MS + 1)
                assert taken is not None
                assert taken.token != claim.token
                if is_done:
                    other.done(taken, taken.keys)

        assert forked(another_process) == 0
        before = queue_rows(file)
        assert {row[1] for row in before}.isdisjoint(claim.keys) == is_done
        assert late(queue, claim)[answer]() in (None, False, frozenset())
        assert queue_rows(file) == before


def test_a_second_answer_is_no_answer(file: Path) -> None:
    with queues.open_queue(file) as queue:
        claim = queue.claim(KB, 3, 0)
        assert claim is not None
        assert queue.fail(claim, claim.keys[0], "http_400", "no")
        queue.done(claim, claim.keys[1:2])
        queue.defer(claim, claim.keys[2:], "zero_vector", ALONE_ATTEMPTS)
        before = queue_rows(file)
        for answer in late(queue, claim).values():
            answer()
        assert queue_rows(file) == before


@posix
def test_several_processes_never_hold_one_text(file: Path, tmp_path: Path) -> None:
    """They claim at once, and each tells what it got."""
    keys = [f"{number:04}" for number in range(400)]
    with queues.open_queue(file) as queue:
        queue.fill(KB, keys)

    def claims(name: int) -> None:
        with queues.open_queue(file) as own:
            while (claim := own.claim(KB, 7, 0)) is not None:
                with (tmp_path / f"{name}.claims").open("a") as told:
                    told.writelines(f"{claim.token} {key}\n" for key in claim.keys)

    _at_once([lambda name=name: claims(name) for name in range(3)])
    told = [path.read_text("utf-8").splitlines() for path in tmp_path.glob("*.claims")]
    claimed = [line.split() for lines in told for line in lines]
    assert sorted(key for _, key in claimed) == keys
    tokens = [{line.split()[0] for line in lines} for lines in told]
    assert sum(map(len, tokens)) == len(set[str]().union(*tokens))


def _at_once(works: Sequence[Callable[[], None]]) -> None:
    """Do several things at once, each in a process of its own."""
    begin, go = os.pipe()
    children = []
    for work in works:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(go)
                os.read(begin, 1)
                work()
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    os.close(begin)
    os.close(go)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)


# --- kills -----------------------------------------------------------------------------------------------------------

BAD = LACKING[4]


def _has_keys(_: TextQueue, __: TextClaim, keys: Sequence[str]) -> bool:
    return len(keys) > 0


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A moment of a run: which states the texts are in then, and how many have a vector.

    ``again``: how many texts the next run asks for that were answered already.
    """

    dies: Patched
    states: dict[str, int]
    written: int = 0
    again: int = 0
    bad: bool = False


ALL = len(LACKING)
MOMENTS = {
    "they wait": Moment(dies=dies(TextQueue, "claim"), states={"ready": ALL}),
    "they are claimed": Moment(
        dies=dies(server_module.ServerEmbedder, "_request_vectors"), states={"claimed": 3, "ready": ALL - 3}
    ),
    "they are answered": Moment(
        dies=dies(IndexScope, "write", lambda _, found, *__: len(found) > 0),
        states={"claimed": 3, "ready": ALL - 3},
        again=3,
    ),
    "their vectors are written": Moment(
        dies=dies(IncrementalChange, "note_commit"), states={"claimed": 3, "ready": ALL - 3}, written=3
    ),
    "all is done but for that to be said": Moment(
        dies=dies(TextQueue, "done", _has_keys), states={"claimed": 3, "ready": ALL - 3}, written=3
    ),
    "they are done": Moment(dies=dies(TextQueue, "done", _has_keys, after=True), states={"ready": ALL - 3}, written=3),
    "one failed": Moment(dies=dies(TextQueue, "release_all"), states={"failed": 1}, written=ALL - 1, bad=True),
}


@pytest.mark.thorough
@posix
@pytest.mark.parametrize("name", MOMENTS)
def test_texts_of_a_killed_run_are_done_by_the_next_and_paid_for_once(
    name: str, store: Path, server: FaultServer, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = MOMENTS[name]
    # One batch after the other: what is sent ahead is paid for, too.
    monkeypatch.setattr("repair.embedding.sender._AHEAD", 1)
    if moment.bad:
        server.behave = poisoned(BAD)
    killed(moment.dies, lambda: backfill(store, config, "--no-probe", "--fail-on", "never"))
    assert states(store) == moment.states
    assert len(vectors(store)) == len(TEXTS) - len(LACKING) + moment.written
    server.behave = right
    assert backfill(store, config, "--no-probe").status == 0
    assert vectors(store) == all_vectors()
    assert states(store) == {}
    paid = Counter(server.paid)
    assert paid.keys() == set(LACKING)
    assert paid.total() == len(LACKING) + moment.again
    # The killed run has ended by now, and what it wrote can be taken back with the rest.
    assert {run.status for run in ledger.read_runs(store)} <= {"stopped", "finished"}
