"""``regraft backfill`` where the server, or a text, is bad: nothing wrong is written, and nothing good is lost."""

from __future__ import annotations

import base64
import math
import os
import struct
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fault_server import (
    Behaviour,
    FaultServer,
    Reply,
    Request,
    answer,
    closing,
    echo,
    failing,
    half,
    non_finite,
    poisoned,
    rate_limited,
    right,
    server_error,
    vector_of,
    vectors_for,
    wrong_count,
    wrong_length,
    wrong_order,
    zero,
)
from faults import said, untouched
from harness import run
from lacking import COMPARED, LACKING, TEXTS, all_vectors, backfill, configured, scope_of, taken_away, vectors
from planted_v2 import index, run_sql
from toys import contents

from regraft import embedders as server_module
from regraft import identity
from regraft.embedders import AnswerVerdict
from regraft.errors import AnswerUnfit
from repair.embedding import sender
from repair.embedding.sender import CONTROL_TEXT

pytest.importorskip("openai", reason="the client of embedding servers is not installed")

#: A text in the middle of a batch.
BAD = LACKING[4]
GOOD = [text for text in LACKING if text != BAD]
READY = [text for text in TEXTS if text not in LACKING]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no wait last."""
    monkeypatch.setattr(server_module, "FIRST_WAIT_S", 0.0)


def queue(store: Path) -> Path:
    return store / ".regraft" / "backfill.sqlite"


def filled(store: Path) -> set[str]:
    """Return which of the texts that lacked a vector have the right one, and see that no other was written."""
    found = vectors(store)
    assert found == all_vectors(found)
    return set(found) - set(READY)


def sent_alone(server: FaultServer, since: int = 0) -> list[str]:
    return [request.texts[0] for request in server.requests[since:] if len(request.texts) == 1]


# --- a bad text ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_text_that_the_server_refuses_fails_alone_and_is_tried_again(
    store: Path, server: FaultServer, config: Path
) -> None:
    server.behave = poisoned(BAD, code="content_filter")
    done = backfill(store, config)
    assert (done.status, filled(store)) == (1, set(GOOD))
    scope = scope_of(done)
    assert (scope["newly_ready"], scope["failed"], scope["processed_pending"]) == (len(GOOD), 1, len(LACKING))
    assert scope["failures"] == [
        {
            "code": "http_400",
            "reason": "400: a text cannot be embedded",
            "count": 1,
            "samples": [identity.text_hash(BAD)],
        }
    ]
    # Split until it stood alone: no good text was paid for twice.
    assert Counter(server.paid) == Counter([*COMPARED, *GOOD])
    again = backfill(store, config, "--fail-on", "never")
    assert (again.status, scope_of(again)["retried_failed"], sent_alone(server)[-1]) == (0, 1, BAD)
    server.behave = right
    since = len(server.requests)
    last = backfill(store, config, "--no-probe")
    assert (last.status, scope_of(last)["failures"], vectors(store)) == (0, [], all_vectors())
    assert sent_alone(server, since) == [BAD]
    assert not queue(store).exists()


def test_what_failed_is_said_to_a_person(store: Path, server: FaultServer, config: Path) -> None:
    server.behave = poisoned(BAD)
    done = run("backfill", store, "--config", config, "-v")
    assert (
        f"  failed: 1 text: 400: a text cannot be embedded [http_400]\n    {identity.text_hash(BAD)}\n" in done.stdout
    )
    assert done.status == 1


@pytest.mark.thorough
def test_what_failed_goes_last_and_alone(store: Path, server: FaultServer, config: Path) -> None:
    server.behave = poisoned(BAD)
    backfill(store, config)
    taken_away(store)
    server.behave = right
    since = len(server.requests)
    backfill(store, config, "--no-probe")
    assert [request.texts for request in server.requests[since:]] == [GOOD[:3], GOOD[3:6], GOOD[6:], [BAD]]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("damage", "code"),
    [
        ("text = '{blank}', embedding_text_hash = '{of_blank}'", "blank_text"),
        ("text = 'somebody wrote here'", "not_its_hash"),
        ("text = CAST(x'61EDA080' AS TEXT)", "not_its_hash"),
    ],
)
def test_texts_that_are_none_of_the_base_are_never_sent(
    damage: str, code: str, store: Path, server: FaultServer, config: Path
) -> None:
    blank = " \n\t\u3000"
    key = identity.text_hash(BAD)
    change = damage.format(blank=blank, of_blank=identity.text_hash(blank))
    run_sql(index(store), f"UPDATE search_text SET {change} WHERE embedding_text_hash = '{key}'")
    done = backfill(store, config)
    assert (done.status, filled(store)) == (1, set(GOOD))
    [failure] = scope_of(done)["failures"]
    assert (failure["code"], failure["count"]) == (code, 1)
    assert Counter(server.texts) == Counter([*COMPARED, *GOOD])
    # A run in which nothing else is left sends nothing but the probe.
    assert scope_of(backfill(store, config))["requests"] == 0


def test_a_text_that_the_server_breaks_at_fails_alone(store: Path, server: FaultServer, config: Path) -> None:
    server.behave = poisoned(BAD, 500)
    done = backfill(store, config)
    assert (done.status, filled(store)) == (1, set(GOOD))
    assert [failure["code"] for failure in scope_of(done)["failures"]] == ["http_500"]
    # Something else is sent alone to see that it is the text, and not the server.
    assert CONTROL_TEXT in sent_alone(server)
    assert Counter(server.paid)[CONTROL_TEXT] == sent_alone(server).count(CONTROL_TEXT)


@pytest.mark.thorough
def test_a_text_whose_own_vector_is_bad_fails_alone(store: Path, server: FaultServer, config: Path) -> None:
    def bad_for_one(request: Request) -> Reply:
        nan = struct.pack("<f", math.nan)
        found = [
            vector[:-4] + nan if text == BAD else vector
            for text, vector in zip(request.texts, vectors_for(request), strict=True)
        ]
        return answer(request, found)

    server.behave = bad_for_one
    first = said(backfill(store, config), "AnswerUnfit", 1)
    assert "vector 2 has a NaN" in first
    assert filled(store) <= set(LACKING) - set(LACKING[3:6])
    second = backfill(store, config, "--no-probe")
    assert (second.status, filled(store)) == (1, set(GOOD))
    assert [failure["code"] for failure in scope_of(second)["failures"]] == ["non_finite"]
    assert sent_alone(server) == LACKING[3:6]


# --- a bad answer ----------------------------------------------------------------------------------------------------

UNFIT = {
    "wrong_count": (wrong_count, "it has 2 vectors for 3 texts"),
    "wrong_order": (wrong_order, "has the index"),
    "wrong_dimensions": (wrong_length, "has 7 dimensions instead of 8"),
    "non_finite": (non_finite, "has a NaN"),
    "zero_vector": (zero, "has only zeros"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("fault", UNFIT)
def test_an_answer_that_does_not_fit_is_refused_as_a_whole(
    fault: str, store: Path, server: FaultServer, config: Path
) -> None:
    behaviour, reason = UNFIT[fault]
    server.behave = [right, right, right, behaviour]
    assert reason in said(backfill(store, config), "AnswerUnfit", 1)
    # What was under way meanwhile is written: it is paid for.
    written = filled(store)
    assert written in (set(LACKING[:3]), set(LACKING) - set(LACKING[3:6]))
    [entry] = run("history", store, "--json").document["runs"]
    assert (entry["status"], [action["count"] for action in entry["actions"]]) == ("stopped", [len(written)])
    # The others go first, and each of these alone.
    since = len(server.requests)
    done = backfill(store, config, "--no-probe")
    assert (done.status, vectors(store)) == (0, all_vectors())
    others = [LACKING[6:]] if len(written) == 3 else []
    assert [request.texts for request in server.requests[since:]] == [*others, *([text] for text in LACKING[3:6])]
    assert [run("undo", store, "-q").status for _ in range(2)] == [0, 0]
    assert filled(store) == set()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "behaviours",
    [
        [rate_limited(0)],
        [rate_limited("0.01"), rate_limited(), rate_limited(0)],
        [server_error(), server_error(), server_error()],
        [half],
        [closing],
    ],
    ids=["429", "429 thrice", "500 thrice", "half a body", "closed"],
)
def test_what_passes_is_waited_for(
    behaviours: list[Behaviour], store: Path, tmp_path: Path, server: FaultServer
) -> None:
    config = configured(tmp_path / "patient.yaml", server, retries=3)
    server.behave = [right, right, right, *behaviours]
    done = backfill(store, config)
    assert (done.status, vectors(store)) == (0, all_vectors())
    repeated = [request.texts for request in server.requests[3 : 4 + len(behaviours)]]
    assert repeated == [LACKING[3:6]] * (1 + len(behaviours))
    assert scope_of(done)["requests"] == 3 + len(behaviours)


def test_an_answer_that_comes_too_late_is_asked_for_again(
    store: Path, tmp_path: Path, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = server_module.ServerEmbedder._send

    def sent(embedder: server_module.ServerEmbedder, written: list[str]) -> bytes | AnswerVerdict:
        found = real(embedder, written)
        is_late = len(server.requests) == 4
        return AnswerVerdict(kind="passing", code="timeout", reason="no answer within 1 s") if is_late else found

    monkeypatch.setattr(server_module.ServerEmbedder, "_send", sent)
    done = backfill(store, configured(tmp_path / "patient.yaml", server, retries=3))
    assert (done.status, vectors(store)) == (0, all_vectors())
    assert [request.texts for request in server.requests[3:5]] == [LACKING[3:6]] * 2
    assert scope_of(done)["requests"] == 4


# --- a server that is not there --------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("options", [(), ("--no-probe",)])
def test_a_server_that_is_down(options: tuple[str, ...], store: Path, tmp_path: Path) -> None:
    with FaultServer() as gone:
        config = configured(tmp_path / "gone.yaml", gone)
    before = contents(store)
    message = said(backfill(store, config, *options), "BackfillStopped", 3)
    assert "embedder mine does not answer" in message
    assert "Vectors written so far are kept (0)" in message
    assert contents(store) == before
    assert (store / ".regraft").exists() == bool(options)
    assert run("history", store, "--json").document["runs"] == []
    with FaultServer() as server:
        assert backfill(store, configured(config, server)).status == 0
    assert vectors(store) == all_vectors()


@pytest.mark.thorough
def test_a_server_that_does_not_let_us_in(store: Path, server: FaultServer, config: Path) -> None:
    server.behave = failing(401, "no such key", code="invalid_api_key")
    before = contents(store)
    for options in ((), ("--no-probe",)):
        assert "no such key" in said(backfill(store, config, *options), "EmbedderRefused", 2)
        assert contents(store) == before
        assert not (store / ".regraft").exists()


@pytest.mark.thorough
def test_a_server_that_goes_away(store: Path, server: FaultServer, config: Path) -> None:
    def two(request: Request) -> Reply:
        return (right if len(server.requests) <= 4 else closing)(request)

    server.behave = two
    assert "Vectors written so far are kept (6)" in said(backfill(store, config), "BackfillStopped", 3)
    assert filled(store) == set(LACKING[:6])
    server.behave = right
    since = len(server.requests)
    done = backfill(store, config, "--no-probe")
    assert (done.status, vectors(store)) == (0, all_vectors())
    assert [request.texts for request in server.requests[since:]] == [LACKING[6:]]
    assert not queue(store).exists()


def test_a_server_that_refuses_from_some_time_on(store: Path, server: FaultServer, config: Path) -> None:
    def unpaid(request: Request) -> Reply:
        answers = right if len(server.requests) <= 3 else failing(429, "no money", code="insufficient_quota")
        return answers(request)

    server.behave = unpaid
    message = said(backfill(store, config), "BackfillStopped", 3)
    assert "no money" in message
    assert "Vectors written so far are kept (3)" in message
    assert filled(store) == set(LACKING[:3])


@pytest.mark.thorough
def test_a_text_that_the_server_dies_of_does_not_keep_the_others(
    store: Path, server: FaultServer, config: Path
) -> None:
    """The server is down after it, until it is started again for the next run."""
    dead = False

    def dies(request: Request) -> Reply:
        nonlocal dead
        dead = dead or BAD in request.texts
        return (closing if dead else right)(request)

    server.behave = dies
    for _ in range(4):
        dead = False
        said(backfill(store, config), "BackfillStopped", 3)
    assert filled(store) == set(GOOD)


# --- a key -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("status", [400, 401, 429, 500])
@pytest.mark.parametrize("from_the_third_on", [False, True])
def test_a_key_is_in_nothing_that_is_written_or_said(
    status: int,
    from_the_third_on: bool,
    store: Path,
    tmp_path: Path,
    server: FaultServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = "sk-proj-Zx81kQm2Lv93Tn47"
    monkeypatch.setenv("MY_KEY", key)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    config = configured(tmp_path / "keyed.yaml", server, api_key_env="MY_KEY")
    telling = echo(status)
    server.behave = [right, right, right, *[telling] * 20] if from_the_third_on else telling
    done = [
        backfill(store, config, "-vv"),
        run("backfill", store, "--config", config, "-vv"),
        run("history", store, "-vv"),
    ]
    assert server.requests[0].headers["authorization"] == f"Bearer {key}"
    assert done[0].status in (1, 2, 3)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    shown = [text.encode() for one in done for text in (one.stdout, one.stderr)]
    for secret in (key, key[8:], key.upper(), base64.b64encode(f"Bearer {key}".encode()).decode()):
        assert not any(secret.encode() in one for one in (*written, *shown))
    assert os.environ["MY_KEY"] == key


@pytest.mark.thorough
def test_a_key_that_is_not_set_is_asked_for_before_anything_is_sent(
    store: Path, tmp_path: Path, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    config = configured(tmp_path / "keyed.yaml", server, api_key_env="MY_KEY")
    with untouched(store):
        assert "MY_KEY" in said(backfill(store, config), "EmbedderKeyMissing", 2)
        assert backfill(store, config, "--dry-run").status == 0
    assert server.requests == []


@pytest.mark.thorough
def test_a_server_that_refuses_everything_is_not_asked_about_every_text(
    store: Path, server: FaultServer, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "MAX_REJECTED", 3)
    server.behave = [right, right, *[failing(400, "no such dimensions")] * 500]
    message = said(backfill(store, config, "--json"), "EveryTextRejected", 2)
    assert "it rejects every text (400: no such dimensions)" in message
    assert filled(store) == set()
    assert CONTROL_TEXT in sent_alone(server)
    server.behave = right
    assert backfill(store, config).status == 0
    assert filled(store) == set(LACKING)


def test_an_answer_of_another_length_does_not_cost_those_that_arrive_with_it() -> None:
    """The length is not known before the first ones."""
    batches = [sender.TextBatch(keys=(name,), texts=(name,)) for name in "abc"]
    vectors = [vector_of(name, 9 if name == "a" else 8) for name in "abc"]

    class Workers:
        count = 3

        def submit(self, batch: sender.TextBatch) -> None:
            """Answers are there already."""

        def results(self, seconds: float) -> list[sender.BatchResult]:
            return [sender.BatchResult(batch, [vector]) for batch, vector in zip(batches, vectors, strict=True)]

        def withdraw(self) -> list[sender.TextBatch]:
            return []

    class Outbox:
        splits_unfit = False
        lengths = None

        def __init__(self) -> None:
            self.waiting = batches
            self.written: list[sender.BatchResult] = []
            self.stopped: list[tuple[sender.TextBatch, BaseException]] = []

        def renew(self) -> None:
            """Claims last."""

        def claim(self, count: int) -> list[sender.TextBatch] | None:
            found, self.waiting = self.waiting, []
            return found or None

        def is_waiting(self) -> bool:
            return False

        def write(self, results: list[sender.BatchResult]) -> None:
            self.written += results

        def stop(self, batch: sender.TextBatch, problem: BaseException) -> None:
            self.stopped.append((batch, problem))

    outbox, embedder = Outbox(), SimpleNamespace(settings=SimpleNamespace(name="mine"), halt=lambda: None)
    sender.Sender(cast(Any, embedder), cast(Any, Workers())).send(cast(Any, outbox))
    assert [result.batch for result in outbox.written] == batches[1:]
    [(batch, problem)] = outbox.stopped
    assert (batch, type(problem)) == (batches[0], AnswerUnfit)
