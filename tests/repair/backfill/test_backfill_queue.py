"""The queue of backfill: a text is in one worker's hands at a time, and none is lost, whatever workers do."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repair.embedding.queue import ALONE_ATTEMPTS, LEASE_MS, Failure, TextClaim, TextQueue, open_queue

KEYS = [f"{number:02}" for number in range(12)]


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[TextQueue]:
    with open_queue(tmp_path / "queue.sqlite") as one:
        yield one


def claimed(queue: TextQueue, count: int = 99, now: int = 0) -> TextClaim:
    found = queue.claim("base", count, now)
    assert found is not None
    return found


class Workers:
    """Two workers with a queue each on one file, and what each has in hand by the rules."""

    def __init__(self, stack: ExitStack, path: Path) -> None:
        self.queues = [stack.enter_context(open_queue(path)) for _ in range(2)]
        self.queues[0].fill("base", KEYS)
        self.now = 0
        self.claims: list[list[TextClaim]] = [[], []]
        #: Who holds a text: by which claim, and until when.
        self.held: dict[str, tuple[str, int]] = {}
        self.over: set[str] = set()

    def claim(self, worker: int, count: int) -> None:
        found = self.queues[worker].claim("base", count, self.now)
        # Whoever claims takes what others held too long: that they are done with it is not believed any more.
        mine = {claim.token for claim in self.claims[worker]}
        self.held = {key: held for key, held in self.held.items() if held[1] >= self.now or held[0] in mine}
        for key in () if found is None else found.keys:
            assert key not in self.held, "it is in somebody's hands"
            assert key not in self.over
            self.held[key] = (found.token, self.now + LEASE_MS)
        if found is None:
            # Nothing waits that nobody has.
            assert set(KEYS) - self.over == set(self.held)
        else:
            assert 0 < len(found.keys) <= count
            self.claims[worker].append(found)

    def _let_go(self, claim: TextClaim, keys: tuple[str, ...], *, is_over: bool) -> None:
        for key in keys:
            if self.held.get(key, ("", 0))[0] == claim.token:
                del self.held[key]
                if is_over:
                    self.over.add(key)

    def settle(self, worker: int, how: str) -> None:
        """Say of the first half of the latest claim what became of it; the worker may have lost it meanwhile."""
        if not self.claims[worker]:
            return
        queue, claim = self.queues[worker], self.claims[worker][-1]
        keys = claim.keys[: (len(claim.keys) + 1) // 2]
        if how == "done":
            queue.done(claim, keys)
        elif how == "fail":
            for key in keys:
                queue.fail(claim, key, "http_400", "no")
        elif how == "defer":
            queue.defer(claim, keys, "zero_vector", ALONE_ATTEMPTS)
        else:
            queue.release(claim, keys)
        self._let_go(claim, keys, is_over=how in ("done", "fail"))

    def give_back(self, worker: int) -> None:
        self.queues[worker].release_all()
        for claim in self.claims[worker]:
            self._let_go(claim, claim.keys, is_over=False)

    def renew(self, worker: int) -> None:
        self.queues[worker].renew(self.now)
        tokens = {claim.token for claim in self.claims[worker]}
        mine = {key: token for key, (token, _) in self.held.items() if token in tokens}
        self.held |= {key: (token, self.now + LEASE_MS) for key, token in mine.items()}

    def wait(self, _: int, share: int) -> None:
        self.now += LEASE_MS * share // 4


_WORKER = st.integers(0, 1)
_STEPS = st.one_of(
    st.tuples(st.just("claim"), _WORKER, st.integers(1, 5)),
    st.tuples(st.just("settle"), _WORKER, st.sampled_from(["done", "fail", "defer", "release"])),
    st.tuples(st.just("give_back"), _WORKER),
    st.tuples(st.just("renew"), _WORKER),
    st.tuples(st.just("wait"), _WORKER, st.integers(1, 6)),
)


@given(steps=st.lists(_STEPS, max_size=40))
def test_a_text_is_in_one_workers_hands_at_a_time_and_none_is_lost(steps: list[tuple[str, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        workers = Workers(stack, Path(folder) / "queue.sqlite")
        for name, *values in steps:
            getattr(workers, name)(*values)
        # Whatever became of the workers, all that is not over comes to somebody in the end.
        workers.now += 2 * LEASE_MS
        found: list[str] = []
        with open_queue(Path(folder) / "queue.sqlite") as last:
            while (claim := last.claim("base", 3, workers.now)) is not None:
                found += claim.keys
        assert sorted(found) == sorted(set(KEYS) - workers.over)


def test_what_was_claimed_least_goes_first_and_what_failed_last(queue: TextQueue) -> None:
    queue.fill("base", KEYS)
    first = claimed(queue, 2)
    queue.fail(first, "00", "http_400", "no")
    queue.defer(first, ["01"], "timeout")
    queue.retry_failed()
    queue.fill("other", ["x"])
    assert [claimed(queue, 99).keys for _ in range(3)] == [tuple(KEYS[2:]), ("01",), ("00",)]
    assert queue.claim("base", 99, 0) is None
    assert queue.failed_before("base") == 0
    queue.reclaim_all()
    assert queue.failed_before("base") == 1


def test_what_lacks_no_vector_is_dropped_but_what_somebody_is_at(queue: TextQueue) -> None:
    queue.fill("base", KEYS)
    claim = claimed(queue, 1)
    queue.fill("base", KEYS[5:])
    assert queue.waiting("base") == len(KEYS[5:]) + 1
    queue.done(claim, claim.keys)
    assert claimed(queue).keys == tuple(KEYS[5:])


def test_failures_are_counted_by_their_codes_with_samples(queue: TextQueue) -> None:
    queue.fill("base", KEYS)
    claim = claimed(queue)
    for key in KEYS[:5]:
        queue.fail(claim, key, "http_413", "too long")
    queue.fail(claim, KEYS[5], "blank_text", "white space")
    assert queue.failures("base") == [
        Failure(code="http_413", reason="too long", count=5, samples=("00", "01", "02")),
        Failure(code="blank_text", reason="white space", count=1, samples=("05",)),
    ]
    assert queue.failures("other") == []


def test_a_queue_says_nothing_where_all_waits_as_for_the_first_time(queue: TextQueue) -> None:
    queue.fill("base", KEYS)
    claim = claimed(queue)
    assert not queue.is_disposable()
    queue.release_all()
    assert queue.is_disposable()
    # A claim that is no longer one does nothing.
    queue.done(claim, claim.keys)
    queue.fail(claim, KEYS[0], "http_400", "no")
    assert queue.waiting("base") == len(KEYS)
