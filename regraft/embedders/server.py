"""An embedder behind a server that speaks as OpenAI's does (``docs/embedders.md``).

The official client makes the requests. It would add to them what it finds in the environment: keys, an organisation,
any header. So it gets no key at all, and a hook of its transport lets pass only the headers that a request needs.
"""

from __future__ import annotations

import binascii
import ipaddress
import json
import logging
import math
import os
import random
import re
import sys
import time
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from threading import Event, local
from typing import Any
from urllib.parse import urlsplit

import msgspec

from regraft.embedders.protocol import (
    Embedded,
    Halted,
    Sending,
    ServerFailing,
    TextsRejected,
    allow_all,
    check,
    counter,
    refuse_vectors,
    unusable_answer,
)
from regraft.embedders.settings import ServerSettings, tidy_message
from regraft.errors import EmbedderKeyMissing, EmbedderRefused, WrongUsage, import_optional
from regraft.formats import json_text
from regraft.language import tr
from regraft.text import replace_surrogates

# How much of a server's answer is read: no more than the vectors that were asked for can take.
#
# A server, or whoever answers in its place, may send without an end, or a packed answer that unpacks to a thousand times
# its size. The client reads answers whole; here they are cut off on their way to it.


#: What an error may take: more of it is not read, and not needed.
ERROR_BYTES = 64 << 10
#: What one number of a vector may take as text, with blanks around it.
_NUMBER_BYTES = 64
#: What an answer and each of its vectors may take besides.
_MORE_BYTES = 1 << 10
#: The vectors of a server that has not answered yet may be so long, in numbers.
_UNKNOWN_DIMENSIONS = 8192
_PACKED = ("gzip", "x-gzip", "deflate")


class AnswerTooLong(Exception):
    """An answer is longer than it can be, or packed in a way that was not asked for; the text says which."""


def max_answer_bytes(texts: int, dimensions: int | None) -> int:
    """Return the most bytes that an answer with the vectors of ``texts`` texts can have.

    Args:
        texts: how many were sent.
        dimensions: of each vector; None: not known yet.
    """
    return ERROR_BYTES + texts * (_MORE_BYTES + _NUMBER_BYTES * (dimensions or _UNKNOWN_DIMENSIONS))


def limit_response(response: Any, most: int) -> None:
    """Let at most ``most`` bytes of a response be read, unpacked, and of an error its beginning.

    The response is one of httpx, or of the library that took its place, before its body is read.
    """
    is_error = not response.is_success
    packed = response.headers.get("content-encoding", "identity").strip().lower()
    library = sys.modules[type(response).__module__.partition(".")[0]]
    stream = response.stream

    class Bounded(library.SyncByteStream):  # type: ignore[misc, name-defined]
        """The body of the response."""

        def __iter__(self) -> Iterator[bytes]:
            return _beginning(stream, packed, ERROR_BYTES) if is_error else _whole(stream, packed, most)

        def close(self) -> None:
            stream.close()

    response.stream = Bounded()
    # It comes unpacked.
    if "content-encoding" in response.headers:
        del response.headers["content-encoding"]


def _whole(stream: Any, packed: str, most: int) -> Iterator[bytes]:
    size = 0
    for chunk in _unpacked(stream, packed, most):
        size += len(chunk)
        if size > most:
            raise AnswerTooLong(
                tr("the answer is longer than {most:,} bytes, which its vectors cannot take", most=most)
            )
        yield chunk


def _beginning(stream: Any, packed: str, most: int) -> Iterator[bytes]:
    left = most
    # What cannot be unpacked has its status all the same.
    with suppress(AnswerTooLong):
        for chunk in _unpacked(stream, packed, most):
            yield chunk[:left]
            left -= len(chunk)
            if left <= 0:
                return


def _unpacked(stream: Any, packed: str, most: int) -> Iterator[bytes]:
    """Yield the parts of a body, unpacked, none much longer than ``most``.

    Raises:
        TooMuch: it is packed in another way than gzip and deflate.
    """
    if packed in ("", "identity"):
        yield from stream
        return
    if packed not in _PACKED:
        raise AnswerTooLong(tr("the answer is packed ({packed}), which was not asked for", packed=packed[:20]))
    # Both forms, told by their beginnings.
    unpacking = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        for chunk in stream:
            yield unpacking.decompress(chunk, most + 1)
            if unpacking.unconsumed_tail:
                # There is more of it than may be.
                yield unpacking.decompress(unpacking.unconsumed_tail, 1)
    except zlib.error:
        raise AnswerTooLong(tr("the answer is damaged: it cannot be unpacked")) from None


# The body of an answer with vectors, of any server that speaks as OpenAI's does.


class BrokenAnswer(Exception):
    """What came is not an answer, or only a part of one."""


class _Item(msgspec.Struct):
    embedding: bytes | list[float]
    index: int | None = None


class _Answer(msgspec.Struct):
    data: list[_Item]
    usage: Any = None


class _LooseItem(msgspec.Struct):
    embedding: Any = None
    index: Any = None


class _LooseAnswer(msgspec.Struct):
    data: list[_LooseItem]
    usage: Any = None


#: A count of more is none: nothing could add it up.
_MOST_TOKENS = 2**53 - 1
_DECODER = msgspec.json.Decoder(_Answer)


def parse_vectors(body: bytes, count: int, dimensions: int | None, *, embedder: str) -> tuple[list[bytes], int | None]:
    """Return the vectors of an answer, checked, and the tokens that the server counted.

    Args:
        body: JSON, with vectors as base64 of little-endian float32 or as lists of numbers.
        count: how many texts were sent.
        dimensions: of each vector; None: all have the same.
        embedder: its name, for errors.

    Raises:
        BrokenAnswer
        AnswerUnfit
    """
    answer: _Answer | _LooseAnswer
    try:
        answer = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        answer = _loose(body)
    if len(answer.data) != count:
        check([b""] * len(answer.data), count, dimensions, embedder=embedder)
    _demand_order([item.index for item in answer.data], embedder)
    vectors = [_vector(item.embedding) for item in answer.data]
    refuse_vectors("not_numbers", [place for place, vector in enumerate(vectors) if vector is None], embedder)
    found = [vector for vector in vectors if vector is not None]
    check(found, count, dimensions, embedder=embedder)
    return found, _tokens(answer.usage)


def _loose(body: bytes) -> _LooseAnswer:
    """Return an answer that is not as it should be: with NaN, infinities and things of any type."""
    try:
        found = json_text.loads(body)
    except (ValueError, RecursionError):
        raise BrokenAnswer(tr("the answer is cut off, or not JSON")) from None
    try:
        return msgspec.convert(found, _LooseAnswer)
    except (msgspec.ValidationError, UnicodeEncodeError):
        # The latter of names with half a surrogate pair.
        raise BrokenAnswer(
            tr("the answer has no vectors: {decode}", decode=body[:1000].decode("utf-8", "replace"))
        ) from None


def _vector(found: Any) -> bytes | None:
    """Return a vector as raw float32; None where it is none."""
    if isinstance(found, bytes):
        return found
    try:
        if isinstance(found, str):
            return binascii.a2b_base64(found, strict_mode=True)
        return array("f", found).tobytes() if isinstance(found, list) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _tokens(usage: Any) -> int | None:
    """Return the tokens that an answer says it took."""
    counts = [usage.get(name) for name in ("total_tokens", "prompt_tokens")] if isinstance(usage, dict) else []
    return next((count for count in counts if type(count) is int and 0 <= count <= _MOST_TOKENS), None)


def _demand_order(order: list[Any], embedder: str) -> None:
    for place, index in enumerate(order):
        if index != place:
            marked = tr("is marked {index}", index=index) if type(index) is int else tr("has no number")
            raise unusable_answer(
                "wrong_order",
                tr("vector {place}, counted from 0, {marked}", place=place, marked=marked),
                embedder=embedder,
            )


# What a server means by an answer without vectors: other texts, another configuration, or later again.


_PASSING = {408, 409, 425, 429}
_TEXTS = {400, 413, 422}
#: Nothing left to pay with: waiting does not help.
_UNPAID = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "quota_exceeded"}
#: The request is wrong in what the configuration says, not in its texts.
_CONFIGURED = {"model", "dimensions", "encoding_format"}
_NO_MODEL = re.compile(
    r"\bmodels?\b.{0,120}\b(not (found|exist|available|supported)|unknown|does not exist|isn't (available|loaded))"
    r"|\b(unknown|invalid|no such) model\b|no models? (are )?loaded|matryoshka",
    re.IGNORECASE,
)
#: Servers say this with any status.
_TOO_LONG = re.compile(
    r"context (length|size|window)|maximum (input |sequence |context )?length|too (long|large|many tokens)"
    r"|(input|tokens?|length)\b.{0,40}\bexceeds?\b",
    re.IGNORECASE,
)


class AnswerVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer without vectors means.

    ``kind`` is ``texts`` (these are refused, others may not be), ``configuration`` (every request will be refused) or
    ``passing`` (again, after ``wait`` seconds where the server said so). ``reason`` is one line without a key.
    """

    kind: str
    code: str
    reason: str
    wait: float | None = None


def judge_answer(status: int, headers: Mapping[str, str], body: bytes, key: str | None) -> AnswerVerdict:
    """Judge an answer whose status is not of success; the names of ``headers`` are found in any case."""
    error = _error(body)
    message = _message(error, body)
    code = f"http_{status}"
    reason = tidy_message(f"{status}: {message}" if message.strip() else str(status), key)
    is_passing = status in _PASSING or status >= 500
    if _is_configured(status, error, is_passing=is_passing):
        return AnswerVerdict(kind="configuration", code=code, reason=reason)
    if (status >= 500 or not is_passing) and _TOO_LONG.search(message):
        return AnswerVerdict(kind="texts", code="context_length_exceeded", reason=reason)
    if is_passing:
        code = "rate_limited" if status == 429 else code
        return AnswerVerdict(kind="passing", code=code, reason=reason, wait=retry_after(headers))
    return AnswerVerdict(kind="configuration" if _NO_MODEL.search(message) else "texts", code=code, reason=reason)


def _message(error: Mapping[str, Any], body: bytes) -> str:
    """Return what a server says of an error; without any such thing, how its answer begins."""
    said = next((error[name] for name in ("message", "detail", "error", "msg") if error.get(name)), None)
    if isinstance(said, str):
        return said
    return json.dumps(said) if said else body[:2000].decode("utf-8", "replace")


def _is_configured(status: int, error: Mapping[str, Any], *, is_passing: bool) -> bool:
    """Tell whether what is wrong is how the server is asked, not the texts, and will not pass by itself."""
    words = {str(error.get(name)).lower() for name in ("code", "type") if isinstance(error.get(name), str)}
    if is_passing:
        return bool(words & _UNPAID)
    if status not in _TEXTS or error.get("param") in _CONFIGURED:
        return True
    return bool(words & {"model_not_found", "invalid_api_key"})


def _error(body: bytes) -> dict[str, Any]:
    """Return what an answer says of an error: OpenAI puts that under ``error``, others beside or instead of it."""
    try:
        found = json_text.loads(body)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return found["error"] if isinstance(found.get("error"), dict) else found


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server wants to be left alone; None where it does not say."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        said = headers.get(name, "")
        try:
            seconds = float(said) / unit
        except ValueError:
            seconds = math.nan
        if math.isfinite(seconds):
            return max(seconds, 0.0)
    try:
        return max(parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time(), 0.0)
    except (TypeError, ValueError, OverflowError):
        return None


logger = logging.getLogger(__name__)

#: The first wait between attempts, in seconds; each is about twice the one before, up to the longest.
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 60.0
#: Who wants to be left alone for longer is given up.
PATIENCE_S = 300.0
#: A server that does not even answer the door within so many seconds is not there.
_CONNECT_S = 10.0
#: Nothing else is sent, whatever the client adds. By the last one it tells afterwards that the answer is wanted raw.
_HEADERS = {
    "host", "accept", "accept-encoding", "connection", "content-type", "content-length", "transfer-encoding",
    "user-agent", "x-stainless-raw-response",
}  # fmt: skip
_RAW = {"X-Stainless-Raw-Response": "true"}


class _Passing(Exception):
    """An attempt failed that may succeed later."""

    def __init__(self, found: AnswerVerdict) -> None:
        super().__init__(found.reason)
        self.found = found


def read_api_key(settings: ServerSettings) -> str | None:
    """Return the API key from the environment; None where the configuration names none.

    Raises:
        EmbedderKeyMissing
    """
    variable = settings.api_key_env
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise EmbedderKeyMissing(embedder=settings.name, variable=variable, reason=tr("is not set"))
    if not key.isascii() or not key.isprintable() or " " in key:
        raise EmbedderKeyMissing(embedder=settings.name, variable=variable, reason=tr("holds what no key can be"))
    return key


class _Asked(local):
    """What the request of a thread asks for."""

    texts = 1


class ServerEmbedder:
    """Sends batches to a server; a batch is one request, repeated while that may help."""

    def __init__(self, settings: ServerSettings) -> None:
        """Make ready; nothing is sent yet.

        Raises:
            EmbedderKeyMissing: the environment has no key.
            WrongUsage: the client is not installed, or the address is none.
            ModelUnreadable: the configured tokenizer cannot be read.
        """
        self.settings = settings
        self._key = read_api_key(settings)
        self._openai = import_optional("openai", tr("Embedding servers"), "openai")
        self._tenacity = import_optional("tenacity", tr("Embedding servers"), "openai")
        self._counted = counter(settings)
        self._halted = Event()
        #: What was logged of failing requests since the last answer: several threads meet the same failure at once.
        self._announced: set[tuple[int, str]] = set()
        #: How many texts a request of this thread has, and how long the vectors of the first answer were.
        self._asked = _Asked()
        self._dimensions: int | None = None
        try:
            self._client = self._made_client()
        except Exception as error:
            # The address is all that a client can be wrong about; which class says so depends on its release.
            problem = tr("Embedder {name}: its base_url is no address ({error})", name=settings.name, error=error)
            raise WrongUsage(problem=problem, hint=tr("mend it in the configuration")) from error

    def _made_client(self) -> Any:
        """Return the official client, which knows no key and follows no redirection."""
        openai, settings = self._openai, self.settings
        is_here = _is_here(settings.base_url)
        transport = openai.DefaultHttpxClient(
            follow_redirects=False,
            # Proxies of the environment are not for this machine's own servers.
            trust_env=not is_here,
            # Without a proxy nothing is ever encrypted then, and reading all certificates takes longer than many a run.
            verify=not (is_here and settings.base_url.lower().startswith("http:")),
            event_hooks={"request": [self._strip], "response": [self._bound]},
        )
        return openai.OpenAI(
            api_key="unused",
            base_url=settings.base_url,
            max_retries=0,
            timeout=openai.Timeout(settings.timeout, connect=min(settings.timeout, _CONNECT_S)),
            http_client=transport,
        )

    def _strip(self, request: Any) -> None:
        """Take everything from a request but what it needs, and give it the key."""
        for name in [name for name in request.headers if name.lower() not in _HEADERS]:
            del request.headers[name]
        # How much an unpacked answer takes is seen when it is too late.
        request.headers["Accept-Encoding"] = "identity"
        if self._key is not None:
            request.headers["Authorization"] = f"Bearer {self._key}"

    def _bound(self, response: Any) -> None:
        """Let no more of an answer be read than its vectors can take."""
        dimensions = self.settings.dimensions or self._dimensions
        limit_response(response, max_answer_bytes(self._asked.texts, dimensions))

    def embed(self, texts: Sequence[str], *, query: bool = False, sending: Sending = allow_all) -> Embedded:
        """Return the vectors of a batch (:class:`~regraft.embedders.protocol.Embedder`)."""
        prefix = self.settings.query_prefix if query else self.settings.prefix
        written = [replace_surrogates(prefix + text) for text in texts]
        requests = 0

        def attempt() -> tuple[list[bytes], int | None]:
            nonlocal requests
            if self._halted.is_set():
                raise Halted
            sending(texts)
            requests += 1
            return self._ask(written)

        tenacity = self._tenacity
        repeated = tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, _Passing) and _bearable(error.found)),
            stop=tenacity.stop_after_attempt(self.settings.retries + 1),
            wait=self._wait,
            sleep=self._halted.wait,
            before_sleep=self._announce,
            reraise=True,
        )
        try:
            vectors, tokens = repeated(attempt)
        except _Passing as error:
            failure = error.found
        else:
            self._announced.clear()
            return Embedded(vectors, tokens, requests)
        raise ServerFailing(failure.code, failure.reason, requests)

    def _announce(self, state: Any) -> None:
        """Log once for all threads which attempt failed, why, and when the next one starts."""
        reason = state.outcome.exception().found.reason
        if (state.attempt_number, reason) in self._announced:
            return
        self._announced.add((state.attempt_number, reason))
        logger.warning(
            tr(
                "{embedder}: attempt {number} of {most} failed ({reason}); next attempt in {seconds:.0f} s",
                embedder=self.settings.name,
                number=state.attempt_number,
                most=self.settings.retries + 1,
                reason=reason,
                seconds=max(1.0, state.next_action.sleep),
            )
        )

    def _wait(self, state: Any) -> float:
        """Return the seconds until the next attempt: those that the server wants, or twice as long as the last time."""
        wanted: float | None = state.outcome.exception().found.wait
        if wanted is not None:
            return wanted * random.uniform(1, 1.1)  # not all threads at once
        doubled: float = FIRST_WAIT_S * 2 ** (state.attempt_number - 1)
        return min(doubled, LONGEST_WAIT_S) * random.uniform(0.75, 1.25)

    def _ask(self, written: list[str]) -> tuple[list[bytes], int | None]:
        """Send one request and return its vectors and the tokens that the server counted."""
        settings = self.settings
        found = self._sent(written)
        if isinstance(found, AnswerVerdict):
            raise self._meant(found)
        try:
            vectors, tokens = parse_vectors(found, len(written), settings.dimensions, embedder=settings.name)
        except BrokenAnswer as error:
            reason = tidy_message(str(error), self._key)
        else:
            self._dimensions = self._dimensions or len(vectors[0]) // 4
            return vectors, tokens
        raise _Passing(AnswerVerdict(kind="passing", code="broken_answer", reason=reason))

    def _sent(self, written: list[str]) -> bytes | AnswerVerdict:
        """Return the body of an answer with vectors, or what any other outcome means."""
        openai, settings = self._openai, self.settings
        self._asked.texts = len(written)
        more = {} if settings.dimensions is None else {"dimensions": settings.dimensions}
        try:
            # The client's own method for embeddings looks at every text in turn, which takes longer than all else.
            body = {"input": written, "model": settings.model, "encoding_format": settings.encoding, **more}
            answer = self._client.post("/embeddings", cast_to=object, body=body, options={"headers": _RAW})
            return bytes(answer.http_response.content)
        except openai.APIStatusError as error:
            response = error.response
            return judge_answer(response.status_code, response.headers, response.content, self._key)
        except openai.APITimeoutError:
            return AnswerVerdict(
                kind="passing", code="timeout", reason=tr("no answer within {timeout:g} s", timeout=settings.timeout)
            )
        except AnswerTooLong as error:
            return AnswerVerdict(kind="passing", code="broken_answer", reason=tidy_message(str(error), self._key))
        except openai.APIConnectionError as error:
            if isinstance(error.__cause__, AnswerTooLong):
                # Some releases of the client take any error for one of the connection.
                return AnswerVerdict(
                    kind="passing", code="broken_answer", reason=tidy_message(str(error.__cause__), self._key)
                )
            reason = tidy_message(str(error.__cause__ or error) or type(error.__cause__).__name__, self._key)
            return AnswerVerdict(kind="passing", code="connection", reason=reason)

    def _meant(self, found: AnswerVerdict) -> Exception:
        """Return the error that a verdict is. It is made where no exception of the client, with its key, is around."""
        if found.kind == "texts":
            return TextsRejected(found.code, found.reason)
        if found.kind == "configuration":
            server = urlsplit(self.settings.base_url).netloc
            advice = tr("check base_url, model and key of its configuration, and your account there")
            return EmbedderRefused(embedder=self.settings.name, server=server, reason=found.reason, advice=advice)
        return _Passing(found)

    def tokens(self, text: str) -> int:
        """Return how many tokens a text has with its prefix."""
        return self._counted(self.settings.prefix + text)

    def halt(self) -> None:
        """End all waits between attempts."""
        self._halted.set()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _bearable(found: AnswerVerdict) -> bool:
    return found.wait is None or found.wait <= PATIENCE_S


def _is_here(url: str) -> bool:
    """Tell whether a server is on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
