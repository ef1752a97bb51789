"""Embedders behind a server: right answers, every wrong one, patience, and a key that nobody hears of."""

from __future__ import annotations

import gzip
import json
import logging
import math
import socket
import struct
import sys
import threading
import traceback
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from extras import needs
from fault_server import (
    FaultServer,
    Reply,
    Request,
    changed,
    closing,
    echo,
    failing,
    half,
    hanging,
    last,
    non_finite,
    numbered,
    poisoned,
    rate_limited,
    right,
    saying,
    server_error,
    vector_of,
    wrong_count,
    wrong_length,
    wrong_order,
    zero,
)
from hypothesis import given
from hypothesis import strategies as st
from patience import NEVER_SECONDS
from real_server import DIMENSIONS

from regraft import embedders
from regraft import embedders as server_module
from regraft.embedders import Embedder, Halted, ServerFailing, ServerSettings, TextsRejected, open_embedder, protocol
from regraft.embedders.settings import redact
from regraft.errors import AnswerUnfit, RegraftError
from regraft.text import printable

pytest.importorskip("openai", reason="the client of embedding servers is not installed")
pytest.importorskip("tenacity", reason="what repeats requests is not installed")

KEY = "sk-proj-Zx81kQm2Lv93Tn47"
TEXTS = ["one", "two", "three", "四"]
VECTORS = [vector_of(text) for text in TEXTS]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no wait last."""
    monkeypatch.setattr(server_module, "FIRST_WAIT_S", 0.0)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as one:
        yield one


@pytest.fixture
def keyed(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Embedder]:
    """Open an embedder that has a key."""
    monkeypatch.setenv("MY_KEY", KEY)
    with open_embedder(settings(server, api_key_env="MY_KEY")) as embedder:
        yield embedder


def settings(server: FaultServer, **more: Any) -> ServerSettings:
    return ServerSettings(**{"name": "mine", "model": "m", "base_url": server.url, "timeout": NEVER_SECONDS, **more})


def embed(server: FaultServer, *texts: str, query: bool = False, **more: Any) -> embedders.Embedded:
    with open_embedder(settings(server, **more)) as embedder:
        return embedder.embed(texts or TEXTS, query=query)


def secret(error: BaseException) -> str:
    """Return all that a person could ever see of an error, and see that no part of the key is in it."""
    shown = "".join(traceback.format_exception(error))
    assert KEY[8:] not in shown
    assert KEY.upper()[8:] not in shown
    assert KEY not in "".join(map(str, (error, error.args, vars(error))))
    return shown


# --- right answers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["base64", "float"])
@pytest.mark.parametrize("ignore_base64", [False, True])
def test_vectors_come_in_the_order_of_the_texts(encoding: str, ignore_base64: bool) -> None:
    with FaultServer(ignore_base64=ignore_base64) as server:
        made = embed(server, encoding=encoding)
    assert made == embedders.Embedded(VECTORS, sum(map(len, TEXTS)), 1)
    assert [request.body for request in server.requests] == [
        {"input": TEXTS, "model": "m", "encoding_format": encoding}
    ]
    assert server.requests[0].path == "/v1/embeddings"


def test_dimensions_are_sent_and_expected(server: FaultServer) -> None:
    assert list(map(len, embed(server, dimensions=3).vectors)) == [12] * 4
    assert server.requests[0].body["dimensions"] == 3
    server.behave = wrong_length
    with pytest.raises(AnswerUnfit, match="vector 4 has 2 dimensions instead of 3"):
        embed(server, dimensions=3)


def test_prefixes(server: FaultServer) -> None:
    more = {"prefix": "passage: ", "query_prefix": "query: "}
    sent: list[list[str]] = []
    with open_embedder(settings(server, **more)) as embedder:
        embedder.embed(["a"], sending=lambda texts: sent.append(list(texts)))
        embedder.embed(["a"], query=True)
    assert server.texts == ["passage: a", "query: a"]
    assert sent == [["a"]]


def test_halves_of_characters_are_sent_as_no_character(server: FaultServer) -> None:
    embed(server, "cut \ud83d")
    assert server.texts == ["cut \ufffd"]


def test_a_server_that_counts_no_tokens(server: FaultServer) -> None:
    for usage in (b"", b', "usage": null', b', "usage": {"total_tokens": "many"}', b', "usage": [1]'):
        server.behave = saying(200, b'{"data": [{"index": 0, "embedding": [1, 2.5]}]%s}' % usage)
        made = embed(server, "a")
        assert (made.vectors, made.tokens) == ([struct.pack("<2f", 1, 2.5)], None)


def test_several_threads_share_an_embedder(server: FaultServer) -> None:
    found: dict[int, list[bytes]] = {}
    with open_embedder(settings(server)) as embedder:

        def ask(number: int) -> None:
            found[number] = embedder.embed([f"{number}-{part}" for part in range(3)]).vectors

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {number: [vector_of(f"{number}-{part}") for part in range(3)] for number in range(8)}


def test_the_log_of_the_fault_server(server: FaultServer) -> None:
    server.behave = [server_error(), half, right]
    embed(server, "a", "b")
    assert server.texts == ["a", "b"] * 3
    assert server.paid == ["a", "b"]


# --- a real server ---------------------------------------------------------------------------------------------------


def test_a_real_server(real_url: str) -> None:
    texts = [
        "The river gauge is read every morning.",
        "Bread needs flour, water, salt and time.",
        "每天早上读取河流水位。",
        "x",
    ]
    with open_embedder(ServerSettings(name="real", model="e5", base_url=real_url)) as embedder:
        together = embedder.embed(texts)
        alone = [embedder.embed([text]).vectors[0] for text in texts]
        numbers = struct.unpack(f"<{DIMENSIONS}f", together.vectors[0])
    assert [len(vector) for vector in together.vectors] == [4 * DIMENSIONS] * 4
    assert math.hypot(*numbers) == pytest.approx(1, abs=1e-4)
    assert together.tokens is not None
    assert together.tokens > 4
    for one, other in zip(together.vectors, alone, strict=True):
        assert cosine(one, other) > 0.9999
    # The same sentence in two languages is nearer than another.
    first, bread, chinese, _ = together.vectors
    assert cosine(first, chinese) > cosine(first, bread)
    with open_embedder(ServerSettings(name="real", model="e5", base_url=real_url, encoding="float")) as embedder:
        assert cosine(embedder.embed(texts).vectors[0], first) > 0.9999


def cosine(one: bytes, other: bytes) -> float:
    first, second = (struct.unpack(f"<{len(raw) // 4}f", raw) for raw in (one, other))
    return sum(map(float.__mul__, first, second)) / (math.hypot(*first) * math.hypot(*second))


# --- wrong answers ---------------------------------------------------------------------------------------------------

UNFIT = {
    "too few": (wrong_count, "wrong_count", None, "it has 3 vectors for 4 texts"),
    "too many": (changed(lambda vectors: [*vectors, vectors[0]]), "wrong_count", None, "5 vectors for 4 texts"),
    "none": (saying(200, b'{"data": []}'), "wrong_count", None, "0 vectors for 4 texts"),
    "another order": (wrong_order, "wrong_order", None, "vector 0 (counted from 0) has the index 3"),
    "a number twice": (numbered([0, 1, 1, 2]), "wrong_order", None, "vector 2 (counted from 0) has the index 1"),
    "a number missing": (numbered([0, 1, 2, 4]), "wrong_order", None, "vector 3 (counted from 0) has the index 4"),
    "no numbers": (numbered([None] * 4), "wrong_order", None, "vector 0 (counted from 0) has no index"),
    "texts for numbers": (numbered(["0", KEY, 2, 3]), "wrong_order", None, "has no index"),
    "a short one": (wrong_length, "wrong_dimensions", 3, "vector 4 has 7 dimensions instead of 8"),
    "two short ones": (
        changed(lambda vectors: [vectors[0], vectors[1][4:], vectors[2], vectors[3][4:]]),
        "wrong_dimensions", None, "vector 2 has 7 dimensions instead of 8",
    ),
    "half a number": (last(lambda vector: vector[:-2]), "wrong_dimensions", 3, "vector 4 has 7.5 dimensions"),
    "half numbers": (changed(lambda vectors: [v[:-2] for v in vectors]), "wrong_dimensions", None, "7.5 dimensions"),
    "empty ones": (changed(lambda vectors: [[] for _ in vectors]), "wrong_dimensions", None, "has 0 dimensions"),
    "NaN": (non_finite, "non_finite", 3, "vector 4 has a NaN or an infinity"),
    "NaN as a word": (last(lambda _: [math.nan] * 8), "non_finite", 3, "vector 4 has a NaN or an infinity"),
    "infinity": (last(lambda _: [math.inf] * 8), "non_finite", 3, "vector 4 has a NaN or an infinity"),
    "more than single precision": (last(lambda _: [1e300] * 8), "non_finite", 3, "vector 4 has a NaN or an infinity"),
    "two of NaN": (changed(lambda vectors: [*vectors[:2], [math.nan] * 8, [math.nan] * 8]), "non_finite", None, ""),
    "zeros": (zero, "zero_vector", 3, "vector 4 has only zeros"),
    "next to zero": (last(lambda _: [1e-40] * 8), "zero_vector", 3, "vector 4 has only zeros"),
    "all zeros": (changed(lambda vectors: [bytes(32)] * 4), "zero_vector", None, "vector 1 has only zeros"),
    "null": (last(lambda _: None), "not_numbers", 3, "vector 4 is not a list of numbers"),
    "true and false": (last(lambda _: [True, False] * 4), "not_numbers", 3, "vector 4 is not a list of numbers"),
    "nulls": (last(lambda _: [None] * 8), "not_numbers", 3, "vector 4 is not a list of numbers"),
    "words": (last(lambda _: [KEY] * 8), "not_numbers", 3, "vector 4 is not a list of numbers"),
    "an object": (last(lambda _: {"1": 2}), "not_numbers", 3, "vector 4 is not a list of numbers"),
    "no base64": (last(lambda _: "A=A"), "not_numbers", 3, "vector 4 is not a list of numbers"),
    "lists in lists": (
        changed(lambda vectors: [[[1.0]]] * 4), "not_numbers", None, "vector 1 is not a list of numbers"
    ),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "encoding"),
    # Only bytes can be cut within a number.
    [
        (name, encoding)
        for name in UNFIT
        for encoding in ("base64", "float")
        if encoding == "base64" or "half" not in name
    ],
)
def test_a_wrong_answer_is_refused_whole_and_not_asked_for_again(name: str, encoding: str, server: FaultServer) -> None:
    server.behave, fault, position, reason = UNFIT[name]
    with pytest.raises(RegraftError) as error:
        embed(server, encoding=encoding)
    assert error.value.code == "AnswerUnfit"
    assert isinstance(error.value, AnswerUnfit)
    assert (error.value.fault, error.value.position, error.value.exit_status) == (fault, position, 1)
    assert reason in str(error.value)
    assert "Embedder mine: its answer is not usable: " in secret(error.value)
    assert len(server.requests) == 1


@given(st.lists(st.lists(st.floats(width=32), min_size=3, max_size=3), max_size=5))
def test_what_passes_has_a_direction(rows: list[list[float]]) -> None:
    vectors = [struct.pack("<3f", *row) for row in rows]
    good = all(1e-18 < math.hypot(*row) < 1.8e19 for row in rows)
    try:
        protocol.check(vectors, len(rows), 3, embedder="mine")
    except AnswerUnfit:
        assert not good
    else:
        assert all(1e-20 < math.hypot(*row) < 1.85e19 for row in rows)


# --- texts that are refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 413, 422])
def test_refused_texts(status: int, server: FaultServer) -> None:
    server.behave = poisoned("two", status)
    with pytest.raises(TextsRejected) as error:
        embed(server)
    assert (error.value.code, error.value.reason) == (f"http_{status}", f"{status}: a text cannot be embedded")
    assert len(server.requests) == 1
    assert embed(server, "one").vectors == [vector_of("one")]


TOO_LONG = [
    "This model's maximum context length is 8192 tokens, however you requested 9000 tokens",
    "the input length exceeds the context length",
    "input is too large to process. increase the physical batch size",
    "`inputs` must have less than 512 tokens. Given: 600. Input tokens exceed the limit, too long",
]


@pytest.mark.parametrize("message", TOO_LONG)
@pytest.mark.parametrize("status", [400, 413, 500])
def test_texts_that_are_too_long_have_one_code_for_all_servers(message: str, status: int, server: FaultServer) -> None:
    server.behave = failing(status, message)
    with pytest.raises(TextsRejected) as error:
        embed(server)
    assert error.value.code == "context_length_exceeded"
    assert len(server.requests) == 1


# --- a configuration that is refused ---------------------------------------------------------------------------------

REFUSALS = {
    "a wrong key": failing(401, "Invalid key"),
    "no right": failing(403, "not for you"),
    "nothing left to pay with": failing(429, "You exceeded your current quota", code="insufficient_quota"),
    "to be paid": failing(402, "pay first"),
    "no such address": saying(404, b"404 page not found\n"),
    "no such model": failing(404, 'model "m" not found, try pulling it first', type="api_error"),
    "no such model, as 400": saying(400, b'{"code":20012,"message":"Model does not exist. Please check it."}'),
    "no such model, by its code": failing(400, "no", code="model_not_found"),
    "shorter vectors that it cannot make": failing(400, "This model does not support it", param="dimensions"),
    "elsewhere": saying(307, b"", Location="http://127.0.0.1:9/v1/embeddings"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_configuration_that_no_text_helps(name: str, server: FaultServer) -> None:
    server.behave = REFUSALS[name]
    with pytest.raises(RegraftError) as error:
        embed(server)
    assert (error.value.code, error.value.exit_status) == ("EmbedderRefused", 2)
    assert f"Embedder mine: 127.0.0.1:{server.url.split(':')[2][:-3]} rejects all requests (" in str(error.value)
    assert "check base_url, model and key" in str(error.value)
    assert len(server.requests) == 1


# --- what passes -----------------------------------------------------------------------------------------------------

PASSING = {
    "a limit": (rate_limited(), "rate_limited", "429: slow down"),
    "a limit with a wait": (rate_limited(0), "rate_limited", "429: slow down"),
    "an error of the server": (server_error(), "http_500", "500: something broke"),
    "a server that is overloaded": (saying(503, b"<html>busy</html>"), "http_503", "503: <html>busy</html>"),
    "nothing said": (saying(502, b""), "http_502", "502"),
    "a conflict": (failing(409, {"a": 1}), "http_409", '409: {"a": 1}'),
    "a request that took too long": (failing(408), "http_408", "408: no"),
    "half a body": (half, "connection", ""),
    "a closed connection": (closing, "connection", ""),
    "half a text of JSON": (saying(200, b'{"data": [{"index"'), "broken_answer", "truncated, or not JSON"),
    "not JSON": (saying(200, b"<html>hello</html>"), "broken_answer", "truncated, or not JSON"),
    "nothing": (saying(200, b""), "broken_answer", "truncated, or not JSON"),
    "an error as if it were none": (saying(200, b'{"error": "busy"}'), "broken_answer", 'vectors: {"error": "busy"}'),
    "a list": (saying(200, b"[]"), "broken_answer", "the answer has no vectors: []"),
    "lists without end": (saying(200, b"[" * 60_000), "broken_answer", "truncated, or not JSON"),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", PASSING)
def test_what_may_pass_is_asked_again(name: str, server: FaultServer) -> None:
    bad, code, reason = PASSING[name]
    server.behave = [bad, bad]
    sent: list[Any] = []
    with open_embedder(settings(server, retries=2)) as embedder:
        made = embedder.embed(TEXTS, sending=sent.append)
        assert (made.vectors, made.requests, len(sent)) == (VECTORS, 3, 3)
        server.behave = [bad] * 3
        with pytest.raises(ServerFailing) as error:
            embedder.embed(TEXTS)
    assert (error.value.code, error.value.attempts, len(server.requests)) == (code, 3, 6)
    assert reason in error.value.reason


def test_a_server_that_is_too_slow(server: FaultServer) -> None:
    server.behave = hanging
    with pytest.raises(ServerFailing) as error:
        embed(server, timeout=0.05, retries=1)
    assert (error.value.code, error.value.reason, error.value.attempts) == ("timeout", "no answer within 0.05 s", 2)


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        nobody = ServerSettings(name="a", model="m", base_url=f"http://127.0.0.1:{one.getsockname()[1]}/v1", retries=1)
        with open_embedder(nobody) as embedder, pytest.raises(ServerFailing) as error:
            embedder.embed(["a"])
    assert (error.value.code, error.value.attempts) == ("connection", 2)
    # Windows says it in its own language, with this number.
    assert "refused" in error.value.reason or "[WinError 10061]" in error.value.reason


@pytest.mark.parametrize(
    ("url", "verifies"),
    [
        ("http://127.0.0.1:1/v1", False),
        ("HTTP://LocalHost:1/v1", False),
        ("https://127.0.0.1:1/v1", True),
        ("https://example.com/v1", True),
        # A proxy of the environment may be reached by TLS.
        ("http://example.com/v1", True),
    ],
)
def test_certificates_are_read_wherever_one_can_be_shown(
    url: str, verifies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import openai

    asked: list[object] = []
    real = openai.DefaultHttpxClient
    monkeypatch.setattr(openai, "DefaultHttpxClient", lambda **all: asked.append(all["verify"]) or real(**all))
    with open_embedder(ServerSettings(name="a", model="m", base_url=url)):
        assert asked == [verifies]


def test_no_retries(server: FaultServer) -> None:
    server.behave = server_error()
    with pytest.raises(ServerFailing) as error:
        embed(server, retries=0)
    assert error.value.attempts == len(server.requests) == 1


def test_who_is_told_may_forbid(server: FaultServer) -> None:
    server.behave = server_error()
    said = ["go"]

    def once(_: object) -> None:
        said.pop()

    with open_embedder(settings(server)) as embedder, pytest.raises(IndexError):
        embedder.embed(TEXTS, sending=once)
    assert len(server.requests) == 1


# --- patience --------------------------------------------------------------------------------------------------------


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Note every wait instead of waiting."""
    found: list[float] = []

    class Halt(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            found.append(timeout or 0.0)
            return False

    monkeypatch.setattr(server_module, "Event", Halt)
    return found


def test_waits_grow_up_to_a_limit(server: FaultServer, waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "FIRST_WAIT_S", 0.5)
    server.behave = [server_error()] * 10
    embed(server, retries=10)
    assert len(waits) == 10
    for number, wait in enumerate(waits):
        usual = min(0.5 * 2**number, 60)
        assert 0.75 * usual <= wait <= 1.25 * usual


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": "300"}, 300),
        ({"Retry-After": "9", "retry-after-ms": "1500"}, 1.5),
        ({"Retry-After": "-5"}, 0),
        ({"Retry-After": "soon"}, 0),
        ({"Retry-After": "nan"}, 0),
        ({"retry-after-ms": "soon", "Retry-After": "2"}, 2),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_the_server_says_how_long(
    headers: dict[str, str], seconds: float, status: int, server: FaultServer, waits: list[float]
) -> None:
    server.behave = [failing(status, headers=headers)]
    assert embed(server).vectors == VECTORS
    assert len(waits) == 1
    assert seconds <= waits[0] <= seconds * 1.1


@pytest.mark.parametrize(("ahead", "least", "most"), [(100, 100, 110), (-86_400, 0, 0)])
def test_the_server_says_until_when(
    ahead: int, least: float, most: float, server: FaultServer, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    monkeypatch.setattr(server_module.time, "time", now.timestamp)
    server.behave = [rate_limited(format_datetime(now + timedelta(seconds=ahead), usegmt=True))]
    assert embed(server).vectors == VECTORS
    assert len(waits) == 1
    assert least <= waits[0] <= most


@pytest.mark.parametrize("wait", ["301", "1e9", "Fri, 01 Jan 2100 00:00:00 GMT"])
def test_a_wait_that_is_too_long_is_not_begun(wait: str, server: FaultServer, waits: list[float]) -> None:
    server.behave = rate_limited(wait)
    with pytest.raises(ServerFailing) as error:
        embed(server)
    assert (error.value.code, error.value.attempts, waits) == ("rate_limited", 1, [])


def test_halting_ends_the_wait(server: FaultServer) -> None:
    server.behave = rate_limited(200)
    failed: list[BaseException] = []
    asked = threading.Event()
    with open_embedder(settings(server)) as embedder:

        def ask() -> None:
            try:
                embedder.embed(TEXTS, sending=lambda _: asked.set())
            except Halted as error:
                failed.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        assert asked.wait(NEVER_SECONDS)
        embedder.halt()
        thread.join(NEVER_SECONDS)
        assert not thread.is_alive()
        with pytest.raises(Halted):
            embedder.embed(TEXTS)
    assert len(failed) == 1
    assert len(server.requests) == 1


# --- the key ---------------------------------------------------------------------------------------------------------

#: What the client would take from the environment.
AMBIENT = {
    "OPENAI_API_KEY": "sk-ambient-1234567890abcdef",
    "OPENAI_ADMIN_KEY": "sk-admin-1234567890abcdef",
    "OPENAI_ORG_ID": "org-of-mine",
    "OPENAI_PROJECT_ID": "project-of-mine",
    "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
    "OPENAI_CUSTOM_HEADERS": "X-Mine: header-of-mine\nAuthorization: Bearer sk-custom-1234567890",
    "OPENAI_WEBHOOK_SECRET": "webhook-of-mine",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "ALL_PROXY": "http://127.0.0.1:9",
}


def test_nothing_of_the_environment_reaches_the_server(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in AMBIENT.items():
        monkeypatch.setenv(name, value)
    assert embed(server).vectors == VECTORS
    sent = server.requests[0].headers
    assert set(sent) <= server_module._HEADERS
    assert "mine" not in str(sent)


def test_the_configured_key_is_sent_and_no_other(
    server: FaultServer, keyed: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in AMBIENT.items():
        monkeypatch.setenv(name, value)
    keyed.embed(TEXTS)
    with open_embedder(settings(server, api_key_env="OPENAI_API_KEY")) as other:
        other.embed(TEXTS)
    sent = [request.headers["authorization"] for request in server.requests]
    assert sent == [f"Bearer {KEY}", f"Bearer {AMBIENT['OPENAI_API_KEY']}"]


@pytest.mark.parametrize("status", [400, 401, 404, 408, 413, 422, 429, 500])
def test_a_key_that_the_server_says_back_is_in_no_message(status: int, server: FaultServer, keyed: Embedder) -> None:
    server.behave = echo(status)
    with pytest.raises(Exception) as error:
        keyed.embed(TEXTS)
    shown = secret(error.value)
    assert "(key)" in shown
    assert KEY[:9] not in shown
    assert len(getattr(error.value, "reason", "")) <= 200


@pytest.mark.thorough
@pytest.mark.parametrize(
    "body",
    [b'{"error": "%s"}', b'{"message": ["%s"]}', b'{"data": "%s"}', b"%s", b'{"error": {"code": "%s", "type": "%s"}}'],
)
@pytest.mark.parametrize("status", [200, 400, 401, 500])
def test_a_key_anywhere_in_an_answer_is_in_no_message(
    body: bytes, status: int, server: FaultServer, keyed: Embedder
) -> None:
    server.behave = saying(status, body.replace(b"%s", KEY.encode()))
    with pytest.raises(Exception) as error:
        keyed.embed(TEXTS)
    secret(error.value)


#: Ways to write a key that keep its characters, but not the key.
SPELLINGS: dict[str, Callable[[str], str]] = {
    "blanks": " ".join,
    "line breaks": "\r\n".join,
    "blanks in capitals": lambda key: " ".join(key.upper()),
    "hyphens": "-".join,
    "groups of four": lambda key: " ".join(key[start : start + 4] for start in range(0, len(key), 4)),
    "characters without a width": "\u200b".join,
    "quoted, as a list": lambda key: ", ".join(f"'{one}'" for one in key),
    "half of it": lambda key: " ".join(key[: len(key) // 2]),
    "percent": "%20".join,
    "HTML": "&nbsp;".join,
}


@pytest.mark.thorough
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("escaped", [False, True], ids=["text", "JSON"])
@pytest.mark.parametrize("status", [200, 401, 500])
def test_a_key_that_is_spelled_out_is_in_no_message(
    spelling: str, escaped: bool, status: int, server: FaultServer, keyed: Embedder
) -> None:
    said = f"wrong key: {SPELLINGS[spelling](KEY)} (see the manual)"
    server.behave = saying(status, json.dumps({"error": said}).encode() if escaped else said.encode())
    with pytest.raises(Exception) as error:
        keyed.embed(TEXTS)
    shown = secret(error.value)
    # Of what is neither JSON nor an error, nothing is shown.
    assert ("(key)" in shown) == (escaped or status != 200)
    letters = "".join(filter(str.isalnum, shown)).lower()
    key = "".join(filter(str.isalnum, KEY)).lower()
    assert not any(key[start : start + 8] in letters for start in range(len(key) - 7))


def test_other_words_than_a_key_stay() -> None:
    said = "the model embed-small takes 512 tokens at most; see https://example.org/a?b=%20c\nand &amp; so on, Straße İ"
    assert redact(said, KEY) == said


def test_a_key_is_not_in_a_message_of_a_broken_connection(server: FaultServer, keyed: Embedder) -> None:
    for bad in (half, closing):
        server.behave = bad
        with pytest.raises(ServerFailing) as error:
            keyed.embed(TEXTS)
        secret(error.value)


def test_a_key_is_in_no_log(keyed: Embedder, server: FaultServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    keyed.embed(TEXTS)
    server.behave = echo(401)
    with pytest.raises(RegraftError):
        keyed.embed(TEXTS)
    assert caplog.text
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("value", "reason"),
    [(None, "is not set"), ("  ", "is not set"), ("a b", "contains something"), ("clé", "contains something")],
)
def test_a_key_that_is_not_there(
    value: str | None, reason: str, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(RegraftError) as error:
        embed(server, api_key_env="MY_KEY")
    assert (error.value.code, error.value.exit_status) == ("EmbedderKeyMissing", 2)
    assert f"environment variable MY_KEY, which {reason}" in str(error.value)
    assert server.requests == []


def test_line_ends_around_a_key_are_not_part_of_it(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", f" {KEY}\r\n")
    embed(server, api_key_env="MY_KEY")
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


# --- tokens, and what is not installed -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("a", 1),
        ("four", 1),
        ("a sentence of forty characters, all told", 10),
        ("中文分词", 4),
        ("中文 ab", 3),
        ("мир", 2),
        ("🎉", 2),
    ],
)
def test_tokens_are_estimated(text: str, tokens: int) -> None:
    assert protocol.estimate(text) == tokens


def test_tokens_of_a_text_are_those_with_its_prefix(server: FaultServer) -> None:
    with open_embedder(settings(server, prefix="passage:")) as embedder:
        assert embedder.tokens("four") == 3


@needs("models")
def test_tokens_are_counted_where_a_tokenizer_is_known(server: FaultServer, tmp_path: Path) -> None:
    import tokenizers

    model = tokenizers.models.WordLevel({"[UNK]": 0, "one": 1, "two": 2}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(2)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with open_embedder(settings(server, tokenizer=tmp_path / "tokenizer.json", prefix="two ")) as embedder:
        assert embedder.tokens("one one two three") == 5


@needs("models")
@pytest.mark.parametrize("content", [None, b"", b'{"version": "1.0"}'])
def test_a_tokenizer_that_is_none(content: bytes | None, server: FaultServer, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(RegraftError) as error:
        embed(server, tokenizer=tmp_path / "tokenizer.json")
    assert error.value.code == "ModelUnreadable"
    assert str(error.value).startswith(f"{tmp_path / 'tokenizer.json'}: not a model that tokenizers can load (")


@pytest.mark.parametrize("module", ["openai", "tenacity"])
def test_what_is_not_installed_is_named(module: str, server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RegraftError) as error:
        embed(server)
    assert error.value.code == "WrongUsage"
    assert f'need {module}, which is not installed (install it: pip install "regraft[openai]")' in str(error.value)


@given(st.binary(max_size=60), st.integers(300, 599))
def test_any_answer_has_a_verdict(body: bytes, status: int) -> None:
    found = server_module.judge_answer(status, {}, body, KEY)
    assert found.kind in ("texts", "configuration", "passing")
    assert found.reason == printable(found.reason)
    assert len(found.reason) <= 200


# --- how much is read ------------------------------------------------------------------------------------------------

#: Far more than any answer here, and than what may be read of it.
MUCH = 1 << 28


@cache
def packed(size: int, *, form: int) -> bytes:
    """Return so many blanks, packed."""
    packing = zlib.compressobj(9, wbits=form)
    return b"".join(packing.compress(b" " * (1 << 20)) for _ in range(size >> 20)) + packing.flush()


ENDLESS = {
    "gzip": ("gzip", lambda: packed(MUCH, form=31)),
    "deflate": ("deflate", lambda: packed(MUCH, form=15)),
    "as it is": ("identity", lambda: b" " * (64 << 20)),
    "another way": ("br", lambda: b"x" * 1000),
    "gzip that is none": ("gzip", lambda: b"x" * 1000),
}


@pytest.mark.thorough
@pytest.mark.parametrize("way", ENDLESS)
@pytest.mark.parametrize("status", [200, 400, 500])
def test_an_answer_without_an_end_is_not_read_to_it(way: str, status: int, server: FaultServer) -> None:
    coding, make_body = ENDLESS[way]
    body = make_body()
    with open_embedder(settings(server, retries=0)) as embedder:
        server.behave = right
        embedder.embed(TEXTS)
        server.behave = saying(status, body, Content_Encoding=coding)
        tracemalloc.start()
        try:
            with pytest.raises((ServerFailing, TextsRejected)) as error:
                embedder.embed(TEXTS)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert most < 16 << 20
    reason = str(getattr(error.value, "reason", error.value))
    assert len(reason.splitlines()) == 1
    if status == 200:
        assert error.value.code == "broken_answer"


def test_an_answer_is_wanted_as_it_is_and_may_be_packed_all_the_same(server: FaultServer) -> None:
    def packing(request: Request) -> Reply:
        reply = right(request)
        return Reply(body=gzip.compress(reply.body), headers={"Content-Encoding": "gzip"})

    with open_embedder(settings(server)) as embedder:
        plain = embedder.embed(TEXTS).vectors
        server.behave = packing
        assert embedder.embed(TEXTS).vectors == plain
    assert {request.headers["accept-encoding"] for request in server.requests} == {"identity"}


def test_an_answer_with_much_room_between_its_numbers_is_read(server: FaultServer) -> None:
    def wide(request: Request) -> Reply:
        reply = right(request)
        return Reply(body=json.dumps(json.loads(reply.body), indent=24).encode())

    server.behave = wide
    with open_embedder(settings(server, encoding="float")) as embedder:
        assert embedder.embed(TEXTS).vectors == [vector_of(text) for text in TEXTS]


def test_what_an_answer_may_take_grows_with_what_was_asked_for() -> None:
    assert server_module.max_answer_bytes(1, 1024) > 1024 * 30
    assert server_module.max_answer_bytes(64, 1024) < 64 * 1024 * 100
    assert server_module.max_answer_bytes(1, None) > server_module.max_answer_bytes(1, 1024)


def test_the_beginning_of_a_long_error_is_enough(server: FaultServer) -> None:
    server.behave = saying(400, b'{"error": {"message": "context length exceeded"}}' + b" " * (1 << 20))
    with open_embedder(settings(server, retries=0)) as embedder, pytest.raises(TextsRejected) as error:
        embedder.embed(TEXTS)
    assert error.value.code == "context_length_exceeded"
