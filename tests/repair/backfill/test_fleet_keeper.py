"""The one object of a fleet that lets requests leave and keeps their answers."""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import apsw
import pytest
from fault_server import FaultServer, poisoned, vector_of
from fleet_work import plain

from regraft import identity
from regraft.embedders import Embedded, Halted, Sending, Unanswered
from regraft.embedders.protocol import allow_all
from regraft.embedders.settings import Batch, EmbedderSettings, ServerSettings
from regraft.errors import WrongUsage
from regraft.fleet import jobs
from repair.embedding import answers
from repair.embedding.answers import Keeper, SendingTerms, SpentTotals, StopReason, TextAnswer
from repair.embedding.budget import LimitReached, Limits, MeteredEmbedder, Pacer, Permit, Rates
from repair.embedding.fleet_jobs import (
    BaseSample,
    EmbeddingJob,
    FleetSender,
    library_file,
    read_samples,
    read_texts,
    write_texts,
)

SETTINGS = ServerSettings(name="mine", model="m", base_url="http://127.0.0.1:9/v1", price_per_million_tokens=1e6)
ALL, AT_ONCE = Limits(), Rates()
TEXTS = [(identity.text_hash(text), text) for text in (f"text {number:02}" for number in range(60))]


@contextmanager
def opened(folder: Path, limits: Limits = ALL, rates: Rates = AT_ONCE) -> Iterator[Keeper]:
    keeper = Keeper(SendingTerms(folder=folder, settings=SETTINGS, limits=limits, rates=rates))
    try:
        yield keeper
    finally:
        keeper.close()


def test_what_was_answered_is_claimed_by_nobody(tmp_path: Path) -> None:
    with opened(tmp_path) as keeper:
        assert keeper.claim(["a", "b", "b", "c"], "texts") == ["a", "b", "c"]
        keeper.keep({"a": TextAnswer(vector=b"1234"), "b": TextAnswer(code="http_400", reason="no")}, "texts")
        keeper.keep({"a": TextAnswer(vector=b"5678")}, "texts")
    with opened(tmp_path) as keeper:
        assert keeper.claim(["a", "b", "c"], "texts") == ["c"]
        # The first answer is the one that was paid for.
        assert keeper.find(["a"]) == {"a": TextAnswer(vector=b"1234")}
        assert keeper.spent("texts").failed == 1
    answers.end_run(tmp_path)
    with opened(tmp_path) as keeper:
        assert keeper.claim(["a", "b", "c"], "texts") == ["b", "c"]
        assert keeper.spent("texts") == SpentTotals()


def test_what_was_compared_is_forgotten_on_demand_and_counts_for_a_text_that_is_wanted(tmp_path: Path) -> None:
    with opened(tmp_path) as keeper:
        keeper.keep({"a": TextAnswer(vector=b"1234"), "b": TextAnswer(vector=b"1234")}, "probes")
        assert keeper.claim(["a", "c"], "probes") == ["c"]
        assert keeper.claim(["a", "c"], "texts") == ["c"]
        assert keeper.find(["a", "b"]) == {"a": TextAnswer(vector=b"1234")}
    with opened(tmp_path) as keeper:
        keeper.forget_compared(["a"])
        assert keeper.claim(["a", "b"], "probes") == ["a"]
        keeper.forget_compared()
        assert keeper.claim(["a", "b"], "probes") == ["a", "b"]
        assert keeper.claim(["a", "b"], "texts") == ["b"]


def test_a_limit_of_texts_is_not_used_up_by_who_claims_again(tmp_path: Path) -> None:
    with opened(tmp_path, Limits(texts=3)) as keeper:
        assert keeper.claim(["a", "b"], "texts") == ["a", "b"]
        # Who had them is gone.
        assert keeper.claim(["a", "b"], "texts") == ["a", "b"]
        assert keeper.stopped() is None
        assert keeper.claim(["c", "d"], "texts") == ["c"]
        assert keeper.stopped() == StopReason(reason="--limit 3 is reached")
        # What is claimed may leave, and what is compared is none of it.
        assert keeper.reserve("texts", 1) == Permit()
        assert keeper.claim(["x"], "probes") == ["x"]


def test_a_run_that_is_killed_has_spent_what_was_under_way(tmp_path: Path) -> None:
    limits = Limits(cost=100.0)
    with opened(tmp_path, limits) as keeper:
        assert keeper.reserve("texts", 60) == Permit()
        assert keeper.reserve("probes", 1_000).refused == "--max-cost 100 could be exceeded"
        assert keeper.reserve("texts", 20) == Permit()
        keeper.settle("texts", 20, 25)
    with opened(tmp_path, limits) as keeper:
        assert keeper.spent("texts") == SpentTotals(requests=2, tokens=85)
        assert keeper.reserve("texts", 16).refused == "--max-cost 100 could be exceeded"
        # Both kinds share the limit of the cost.
        assert keeper.reserve("probes", 5) == Permit()
        assert keeper.reserve("texts", 11).refused == "--max-cost 100 could be exceeded"
        assert keeper.reserve("texts", 10) == Permit()


@pytest.fixture
def still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass between the requests of a keeper."""
    monkeypatch.setattr(answers, "Pacer", partial(Pacer, now=lambda: 1_000.0))


@pytest.mark.usefixtures("still_clock")
def test_all_that_is_sent_has_one_pace(tmp_path: Path) -> None:
    with opened(tmp_path, rates=Rates(requests=1)) as keeper:
        assert keeper.reserve("probes", 1).seconds == 0
        assert keeper.reserve("texts", 1).seconds == 60
        assert keeper.account("texts").reserve(1).seconds == 120


class Echo:
    """An embedder that asks before it answers, as they all do."""

    def __init__(self) -> None:
        self.settings: EmbedderSettings = SETTINGS

    def embed(self, texts: list[str], *, query: bool = False, sending: Sending = allow_all) -> Embedded:
        """Answer at once."""
        sending(texts)
        return Embedded([b"1234"] * len(texts), None, 1)

    def tokens(self, text: str) -> int:
        """Return a token for each character."""
        return len(text)

    def halt(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.usefixtures("still_clock")
def test_a_request_waits_as_long_as_it_is_told(tmp_path: Path) -> None:
    waited: list[float] = []
    with opened(tmp_path, Limits(requests=3), Rates(requests=1)) as keeper:
        meter = MeteredEmbedder(
            Echo(), keeper.account("texts"), lambda seconds: waited.append(seconds) or len(waited) == 2
        )  # type: ignore[func-returns-value]
        assert meter.embed(["a"]) == meter.embed(["b"]) == [b"1234"]
        assert waited[0] == 60
        with pytest.raises(Halted):
            meter.embed(["c"])
        # It did not leave, and is not counted.
        assert keeper.spent("texts") == SpentTotals(requests=2, tokens=2)
        keeper.stop(StopReason(reason="enough"))
        with pytest.raises(LimitReached, match="enough"):
            meter.embed(["d"])


@pytest.mark.parametrize("limits", [Limits(requests=11), Limits(texts=17), Limits(cost=150.0)])
def test_no_limit_is_exceeded_by_several_who_send(limits: Limits, tmp_path: Path) -> None:
    with FaultServer() as server, opened(tmp_path, limits) as keeper, ExitStack() as ending:
        settings = ServerSettings(
            name="mine", model="m", base_url=server.url, batch=Batch(texts=2), parallel=3, price_per_million_tokens=1e6
        )
        senders = [ending.enter_context(closing(FleetSender(settings, keeper))) for _ in range(3)]
        # What the server counts is learnt before many leave at a time.
        senders[0].send(TEXTS[:2], "texts")
        threads = [
            threading.Thread(target=sender.send, args=(TEXTS[place::3], "texts"))
            for place, sender in enumerate(senders)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        spent, stop = keeper.spent("texts"), keeper.stopped()
        assert stop is not None
        assert stop.code is None
        assert spent.requests == len(server.requests) <= (limits.requests or 99)
        assert spent.answered == len(set(server.texts)) <= (limits.texts or 99)
        assert spent.tokens == sum(map(len, server.texts)) <= (limits.cost or 999)
        assert Counter(server.texts).most_common(1)[0][1] == 1
        found = keeper.find([key for key, _ in TEXTS])
    assert {key: one.vector for key, one in found.items()} == {
        key: vector_of(text) for key, text in TEXTS if text in server.texts
    }


@pytest.mark.parametrize(("lengths", "is_kept"), [({8, 16}, True), ({4, 16}, False), ({4}, False)])
def test_vectors_have_a_length_that_some_base_has(lengths: set[int], is_kept: bool, tmp_path: Path) -> None:
    with FaultServer() as server, opened(tmp_path) as keeper:
        settings = ServerSettings(name="mine", model="m", base_url=server.url)
        with closing(FleetSender(settings, keeper)) as sender:
            sender.send(TEXTS[:2], "texts", frozenset(lengths))
        stop = keeper.stopped()
        assert len(keeper.find([key for key, _ in TEXTS])) == (2 if is_kept else 0)
        assert (None if stop is None else stop.code) == (None if is_kept else "AnswerUnfit")


def test_known_answers_are_given_and_nothing_else(tmp_path: Path) -> None:
    with FaultServer() as server, opened(tmp_path) as keeper:
        server.behave = poisoned("text 01", 413)
        settings = ServerSettings(name="mine", model="m", base_url=server.url, batch=Batch(texts=2))
        with closing(FleetSender(settings, keeper)) as sender:
            sender.send(TEXTS[:4], "texts")
    with answers.open_known_embedder(tmp_path, SETTINGS, "why") as embedder:
        assert embedder.embed(["text 00", "text 03"]) == Embedded([vector_of("text 00"), vector_of("text 03")], 0, 0)
        with pytest.raises(Unanswered, match="why"):
            embedder.embed(["text 00", "text 04"])
        with pytest.raises(Exception, match="a text cannot be embedded") as rejected:
            embedder.embed(["text 01"])
    assert (rejected.value.code, rejected.value.is_certain) == ("http_413", True)  # type: ignore[attr-defined]


def test_who_only_looks_cannot_send(tmp_path: Path) -> None:
    line = jobs.LibraryJob(command="backfill", options=plain("backfill"), source="library", target=None)
    look = EmbeddingJob(embedder=SETTINGS, library=0, line=line, work=str(tmp_path)).embedder_source()
    with pytest.raises(AssertionError, match="mine was opened to collect texts"):
        look.open_embedder(look.choose(None))  # type: ignore[arg-type]


def test_texts_come_back_from_their_file_once_and_in_order_whatever_they_consist_of(tmp_path: Path) -> None:
    texts = [("b", "half a pair \ud83d", 4), ("a", "x\0y\n", 2), ("c", "", 1)]
    known = [("the other half \ude00", b"\0\xff\x80?")]
    sample = BaseSample(scope="1", base="one", dimensions=1, known=known, source="/other", source_base="two")
    path = library_file(tmp_path, 7)
    path.write_bytes(b"what a killed run left")
    assert write_texts(path, [*texts, texts[0]], [sample]) == 4
    with read_texts(path) as file:
        assert (file.count, list(file.read())) == (3, texts)
        assert list(file) == [(key, text) for key, text, _ in texts]
        # Parts of it, as processes of a cluster read them.
        assert [list(file.read(first, 2)) for first in (0, 2, 4)] == [texts[:2], texts[2:], []]
    assert read_samples(tmp_path, 7) == [sample]
    assert list(tmp_path.iterdir()) == [path]


STRANGE = [
    "UPDATE answer SET vector = 'abcd'",
    "UPDATE answer SET vector = x'0102'",
    "UPDATE answer SET vector = NULL",
    "UPDATE answer SET key = x'00'",
    "UPDATE compared SET code = 3",
    "UPDATE spent SET tokens = 'many'",
    "UPDATE spent SET requests = -1",
    "UPDATE about SET embedder = x'00'",
    "DROP TABLE claimed",
    "CREATE TABLE more (x)",
    "CREATE TRIGGER gone AFTER DELETE ON claimed BEGIN DELETE FROM answer; END",
]


@pytest.mark.parametrize("statement", STRANGE)
def test_answers_that_no_run_wrote_are_refused(statement: str, tmp_path: Path) -> None:
    with opened(tmp_path) as keeper:
        keeper.keep({"a": TextAnswer(vector=b"1234")}, "texts")
        keeper.keep({"a": TextAnswer(vector=b"1234")}, "probes")
    answers.demand_same_embedder(tmp_path, SETTINGS)
    with apsw.Connection(str(tmp_path / answers.ANSWERS_FILE)) as db:
        db.execute(statement)
    with pytest.raises(WrongUsage, match=r"is not an answers file of a fleet: .*remove the folder"):
        answers.demand_same_embedder(tmp_path, SETTINGS)


def test_what_is_no_database_is_refused_and_what_is_empty_is_not(tmp_path: Path) -> None:
    (tmp_path / answers.ANSWERS_FILE).write_bytes(b"garbage" * 1000)
    with pytest.raises(WrongUsage, match="remove the folder"):
        answers.demand_same_embedder(tmp_path, SETTINGS)
    # A run was killed before it had written anything.
    (tmp_path / answers.ANSWERS_FILE).write_bytes(b"")
    answers.demand_same_embedder(tmp_path, SETTINGS)


def test_a_keeper_that_cannot_be_made_holds_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Keeper, "_load_spending", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError) as failed, opened(tmp_path):
            pass
    # Who has the error has the keeper, too, which would hold the file alone.
    with opened(tmp_path) as keeper:
        assert keeper.claim(["a"], "texts") == ["a"]
    assert failed.traceback


def test_a_limit_is_used_up_where_requests_wait_for_their_time(tmp_path: Path) -> None:
    with FaultServer() as server, opened(tmp_path, Limits(requests=6), Rates(requests=1200)) as keeper:
        settings = ServerSettings(name="mine", model="m", base_url=server.url, batch=Batch(texts=1), parallel=4)
        with closing(FleetSender(settings, keeper)) as sender:
            sender.send(TEXTS, "texts")
        assert keeper.stopped() == StopReason(reason="--max-requests 6 is reached")
        assert len(server.requests) == keeper.spent("texts").answered == 6


class FullLeave:
    """Lets all leave, and cannot note down what it took."""

    def reserve(self, tokens: int) -> Permit:
        """Let it leave."""
        return Permit()

    def settle(self, reserved: int, tokens: int) -> None:
        """Fail as a disk does that is full."""
        raise OSError(errno.ENOSPC, "No space left on device")

    def cancel(self, tokens: int) -> None:
        """Do nothing."""


def test_vectors_that_were_paid_for_come_before_what_they_took_cannot_be_noted_down() -> None:
    meter = MeteredEmbedder(Echo(), FullLeave())
    assert meter.embed(["a"]) == [b"1234"]
    with pytest.raises(OSError, match="No space left"):
        meter.embed(["b"])
