"""Turn texts into vectors: one protocol, implemented by servers and local models (``docs/embedders.md``)."""

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
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from threading import Event, Lock, local
from typing import Any
from urllib.parse import urlsplit

import msgspec

from regraft.disk import links
from regraft.embedders.protocol import (
    Embedded,
    Embedder,
    Halted,
    Sending,
    ServerFailing,
    TextsRejected,
    Unanswered,
    allow_all,
    check,
    counter,
    estimate,
    refuse_vectors,
    unusable_answer,
)
from regraft.embedders.settings import EmbedderSettings, LocalSettings, ServerSettings, tidy_message
from regraft.errors import (
    AnswerUnfit,
    EmbedderKeyMissing,
    EmbedderRefused,
    ModelUnreadable,
    WrongUsage,
    import_optional,
)
from regraft.formats import json_text
from regraft.language import tr
from regraft.text import replace_surrogates

# --- servers with OpenAI's API ---------------------------------------------------------------------------------------
#
# The official client sends the requests. It would add keys, an organization and other headers from the environment; so
# it gets no key at all, and a hook of its transport removes all headers that a request does not need. The hook adds the
# key.

# Limiting the size of answers to what the requested vectors can take. A server, or another program in its place, may
# send data without end, or compressed data that unpacks to a thousand times its size. The client reads whole answers,
# so they are truncated before it sees them.


#: Bytes read of an error.
ERROR_BYTES = 64 << 10
#: Bytes of one number of a vector as text, with white space.
_NUMBER_BYTES = 64
#: Further bytes of an answer and of each vector.
_MORE_BYTES = 1 << 10
#: Assumed dimensions before the first answer.
_UNKNOWN_DIMENSIONS = 8192
_PACKED = ("gzip", "x-gzip", "deflate")


class AnswerTooLong(Exception):
    """An answer is too long, or has an encoding that was not requested; the message says which."""


def max_answer_bytes(texts: int, dimensions: int | None) -> int:
    """Return the maximum size in bytes of a server's answer with vectors.

    Args:
        texts: number of texts sent.
        dimensions: of each vector; None: not known yet.
    """
    return ERROR_BYTES + texts * (_MORE_BYTES + _NUMBER_BYTES * (dimensions or _UNKNOWN_DIMENSIONS))


def limit_response(response: Any, most: int) -> None:
    """Limit the body of an httpx response, before it is read, to ``most`` unpacked bytes; of an error, keep the start.

    Some releases of the client bring a library of their own in place of httpx.
    """
    is_error = not response.is_success
    packed = response.headers.get("content-encoding", "identity").strip().lower()
    library = sys.modules[type(response).__module__.partition(".")[0]]
    stream = response.stream

    class Bounded(library.SyncByteStream):  # type: ignore[misc, name-defined]
        """The body of the response."""

        def __iter__(self) -> Iterator[bytes]:
            """Yield the unpacked body up to the limit."""
            return _start_of_error(stream, packed) if is_error else _limited_body(stream, packed, most)

        def close(self) -> None:
            """Close the original stream."""
            stream.close()

    response.stream = Bounded()
    # The body is passed on unpacked.
    if "content-encoding" in response.headers:
        del response.headers["content-encoding"]


def _limited_body(stream: Any, packed: str, most: int) -> Iterator[bytes]:
    """Yield the unpacked parts of a response's body; raise AnswerTooLong if they exceed ``most`` bytes.

    ``packed`` is the content encoding of ``stream``, the body as received.
    """
    size = 0
    for chunk in _unpack_body(stream, packed, most):
        size += len(chunk)
        if size > most:
            raise AnswerTooLong(
                tr("the answer is longer than {most:,} bytes, more than its vectors can need", most=most)
            )
        yield chunk


def _start_of_error(stream: Any, packed: str) -> Iterator[bytes]:
    """Yield the first :data:`ERROR_BYTES` of an error response, unpacked; fewer if it cannot be unpacked.

    ``packed`` is the content encoding of ``stream``, the body as received.
    """
    left = ERROR_BYTES
    # An error that cannot be unpacked still has its status.
    with suppress(AnswerTooLong):
        for chunk in _unpack_body(stream, packed, left):
            yield chunk[:left]
            left -= len(chunk)
            if left <= 0:
                return


def _unpack_body(stream: Any, packed: str, most: int) -> Iterator[bytes]:
    """Yield the parts of a body, unpacked, none much longer than ``most`` bytes.

    ``packed`` is the content encoding of ``stream``, the body as received.

    Raises:
        AnswerTooLong: it has another encoding than gzip or deflate.
    """
    if packed in ("", "identity"):
        yield from stream
        return
    if packed not in _PACKED:
        raise AnswerTooLong(tr("the answer has the encoding {packed}, which was not requested", packed=packed[:20]))
    # Both formats, detected by their headers.
    unpacking = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        for chunk in stream:
            yield unpacking.decompress(chunk, most + 1)
            if unpacking.unconsumed_tail:
                # More than allowed: one more byte lets the caller notice.
                yield unpacking.decompress(unpacking.unconsumed_tail, 1)
    except zlib.error:
        raise AnswerTooLong(tr("the answer is damaged: it cannot be unpacked")) from None


# Parsing answers with vectors


class BrokenAnswer(Exception):
    """The body is not an answer, or only a part of one."""


class _Item(msgspec.Struct):
    """The vector of one text in a well-formed answer."""

    embedding: bytes | list[float]
    index: int | None = None


class _Answer(msgspec.Struct):
    """A well-formed answer of a server."""

    data: list[_Item]
    usage: Any = None


class _LooseItem(msgspec.Struct):
    """The vector of one text, with values of any type."""

    embedding: Any = None
    index: Any = None


class _LooseAnswer(msgspec.Struct):
    """An answer with values of any type, checked one by one."""

    data: list[_LooseItem]
    usage: Any = None


#: A higher count is not plausible.
_MOST_TOKENS = 2**53 - 1
_DECODER = msgspec.json.Decoder(_Answer)


def parse_vectors(body: bytes, count: int, dimensions: int | None, *, embedder: str) -> tuple[list[bytes], int | None]:
    """Parse and check the vectors of an answer; return them and the server's token count.

    Args:
        body: JSON, with vectors as base64 of little-endian float32 or as lists of numbers.
        count: number of texts sent.
        dimensions: of each vector; None: any, but equal.
        embedder: its name, for errors.

    Raises:
        BrokenAnswer
        AnswerUnfit
    """
    answer: _Answer | _LooseAnswer
    try:
        answer = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        answer = _parse_leniently(body)
    tokens = _count_of(answer.usage)
    try:
        return _check_items([*answer.data], count, dimensions, embedder), tokens
    except AnswerUnfit as unfit:
        unfit.tokens = tokens
        raise


def _count_of(usage: Any) -> int | None:
    """Return the tokens that a server counted, from the field ``usage`` of its answer; None if it sent no count."""
    counts = (usage.get(name) for name in ("total_tokens", "prompt_tokens")) if isinstance(usage, dict) else ()
    return next((tokens for tokens in counts if type(tokens) is int and 0 <= tokens <= _MOST_TOKENS), None)


def _check_items(items: Sequence[Any], count: int, dimensions: int | None, embedder: str) -> list[bytes]:
    """Check the items of an answer and return their vectors; see :func:`parse_vectors`."""
    if len(items) != count:
        check([b""] * len(items), count, dimensions, embedder=embedder)
    for place, item in enumerate(items):
        if item.index != place:
            marked = tr("has the index {index}", index=item.index) if type(item.index) is int else tr("has no index")
            reason = tr("vector {place} (counted from 0) {marked}", place=place, marked=marked)
            raise unusable_answer("wrong_order", reason, embedder=embedder)
    vectors = [_decode_vector(item.embedding) for item in items]
    refuse_vectors("not_numbers", [place for place, vector in enumerate(vectors) if vector is None], embedder)
    found = [vector for vector in vectors if vector is not None]
    check(found, count, dimensions, embedder=embedder)
    return found


def _parse_leniently(body: bytes) -> _LooseAnswer:
    """Parse an answer that may have NaN, infinities, or values of the wrong type; BrokenAnswer: it has no vectors."""
    try:
        found = json_text.loads(body)
    except (ValueError, RecursionError):
        raise BrokenAnswer(tr("the answer is truncated, or not JSON")) from None
    try:
        return msgspec.convert(found, _LooseAnswer)
    except (msgspec.ValidationError, UnicodeEncodeError):
        # UnicodeEncodeError: names with an unpaired surrogate.
        raise BrokenAnswer(
            tr("the answer has no vectors: {decode}", decode=body[:1000].decode("utf-8", "replace"))
        ) from None


def _decode_vector(embedding: Any) -> bytes | None:
    """Return the value of an answer's field ``embedding`` as raw float32; None if it is neither base64 nor numbers."""
    if isinstance(embedding, bytes):
        return embedding
    try:
        if isinstance(embedding, str):
            return binascii.a2b_base64(embedding, strict_mode=True)
        # JSON's true and false would count as 1 and 0.
        is_numbers = isinstance(embedding, list) and bool not in set(map(type, embedding))
        return array("f", embedding).tobytes() if is_numbers else None
    except (TypeError, ValueError, OverflowError):
        return None


# Classifying errors


_PASSING = {408, 409, 425, 429}
_TEXTS = {400, 413, 422}
#: The account has no credit: waiting does not help.
_UNPAID = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "quota_exceeded"}
#: Parameters that come from the configuration, not from the texts.
_CONFIGURED = {"model", "dimensions", "encoding_format"}
_NO_MODEL = re.compile(
    r"\bmodels?\b.{0,120}\b(not (found|exist|available|supported)|unknown|does not exist|isn't (available|loaded))"
    r"|\b(unknown|invalid|no such) model\b|no models? (are )?loaded|matryoshka",
    re.IGNORECASE,
)
#: Servers report this with any status.
_TOO_LONG = re.compile(
    r"context (length|size|window)|maximum (input |sequence |context )?length|too (long|large|many tokens)"
    r"|(input|tokens?|length)\b.{0,40}\bexceeds?\b",
    re.IGNORECASE,
)


class AnswerVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The meaning of an answer without vectors.

    ``kind`` is ``texts`` (these are rejected, others may not be), ``configuration`` (every request will be rejected) or
    ``passing`` (try again, after ``wait`` seconds if the server gave a time). ``reason`` is one line without a key.
    """

    kind: str
    code: str
    reason: str
    wait: float | None = None


def judge_answer(status: int, headers: Mapping[str, str], body: bytes, key: str | None) -> AnswerVerdict:
    """Classify a server's answer with an error status.

    Args:
        status: the HTTP status.
        headers: the headers of the answer, a mapping that ignores letter case.
        body: the body of the answer, or the start of it.
        key: the API key, which is removed from the reason.
    """
    error: Any = {}
    with suppress(ValueError, RecursionError):
        error = json_text.loads(body)
    # OpenAI puts the error under "error", other servers at the top level.
    error = error if isinstance(error, dict) else {}
    error = error["error"] if isinstance(error.get("error"), dict) else error
    message = next((error[name] for name in ("message", "detail", "error", "msg") if error.get(name)), None)
    if not isinstance(message, str):
        message = json.dumps(message) if message else body[:2000].decode("utf-8", "replace")
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


def _is_configured(status: int, error: Mapping[str, Any], *, is_passing: bool) -> bool:
    """Whether an error is caused by the configuration, not by the texts, and waiting does not help.

    ``error`` is the parsed JSON of the answer; ``is_passing`` says that the ``status`` alone suggests to wait.
    """
    words = {str(error.get(name)).lower() for name in ("code", "type") if isinstance(error.get(name), str)}
    if is_passing:
        return bool(words & _UNPAID)
    if status not in _TEXTS or error.get("param") in _CONFIGURED:
        return True
    return bool(words & {"model_not_found", "invalid_api_key"})


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds after which the server accepts another request, or None if it sent no time."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        header = headers.get(name, "")
        try:
            seconds = float(header) / unit
        except ValueError:
            seconds = math.nan
        if math.isfinite(seconds):
            return max(seconds, 0.0)
    try:
        return max(parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time(), 0.0)
    except (TypeError, ValueError, OverflowError):
        return None


logger = logging.getLogger(__name__)

#: First wait between attempts, in seconds; each is about twice the previous one, up to the longest.
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 60.0
#: A server that wants a longer pause is given up.
PATIENCE_S = 300.0
#: Seconds to establish a connection.
_CONNECT_S = 10.0
#: Only these headers are sent. The client uses the last one to remember that the raw answer is wanted.
_HEADERS = {
    "host", "accept", "accept-encoding", "connection", "content-type", "content-length", "transfer-encoding",
    "user-agent", "x-stainless-raw-response",
}  # fmt: skip
_RAW = {"X-Stainless-Raw-Response": "true"}


class _Passing(Exception):
    """An attempt failed that may succeed later."""

    def __init__(self, verdict: AnswerVerdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


def read_api_key(settings: ServerSettings) -> str | None:
    """Return the API key from the environment; None if the configuration names no variable.

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
        raise EmbedderKeyMissing(
            embedder=settings.name, variable=variable, reason=tr("contains something that cannot be a key")
        )
    return key


class _Asked(local):
    """The number of texts in the request of the current thread."""

    texts = 1


class ServerEmbedder:
    """Sends batches to a server; a batch is one request, repeated while that may help."""

    def __init__(self, settings: ServerSettings) -> None:
        """Create the client; no request is sent yet.

        Raises:
            EmbedderKeyMissing: the environment variable with the key is missing.
            WrongUsage: the client is not installed, or the URL is not valid.
            ModelUnreadable: the configured tokenizer cannot be read.
        """
        self.settings = settings
        self._key = read_api_key(settings)
        self._openai = import_optional("openai", tr("Embedding servers"), "openai")
        self._tenacity = import_optional("tenacity", tr("Embedding servers"), "openai")
        self._counted = counter(settings)
        self._halted = Event()
        #: failures logged since the last answer: several threads meet the same failure at once
        self._announced: set[tuple[int, str]] = set()
        #: the number of texts in this thread's request, and the dimensions in the first answer
        self._asked = _Asked()
        self._dimensions: int | None = None
        try:
            self._client = self._create_client()
        except Exception as error:
            # Only the URL can make the client fail; the exception class depends on its release.
            problem = tr("Embedder {name}: its base_url is not a valid URL ({error})", name=settings.name, error=error)
            raise WrongUsage(problem=problem, hint=tr("correct it in the configuration")) from error

    def _create_client(self) -> Any:
        """Return OpenAI's client for the server, without a key, which does not follow redirects."""
        openai, settings = self._openai, self.settings
        host = urlsplit(settings.base_url).hostname or ""
        is_local = host == "localhost"
        with suppress(ValueError):
            is_local = is_local or ipaddress.ip_address(host).is_loopback

        def limit(response: Any) -> None:
            """Limit the body of a response to what its vectors can need."""
            limit_response(response, max_answer_bytes(self._asked.texts, settings.dimensions or self._dimensions))

        transport = openai.DefaultHttpxClient(
            follow_redirects=False,
            # Servers on this machine are not reached through a proxy.
            trust_env=not is_local,
            # Without a proxy and with http, nothing is encrypted, and loading certificates takes longer than many a
            # run.
            verify=not (is_local and settings.base_url.lower().startswith("http:")),
            event_hooks={"request": [self._filter_headers], "response": [limit]},
        )
        return openai.OpenAI(
            api_key="unused",
            base_url=settings.base_url,
            max_retries=0,
            timeout=openai.Timeout(settings.timeout, connect=min(settings.timeout, _CONNECT_S)),
            http_client=transport,
        )

    def _filter_headers(self, request: Any) -> None:
        """Remove all headers that a request of httpx does not need, and add the API key."""
        for name in [name for name in request.headers if name.lower() not in _HEADERS]:
            del request.headers[name]
        # The size of an unpacked answer is known too late.
        request.headers["Accept-Encoding"] = "identity"
        if self._key is not None:
            request.headers["Authorization"] = f"Bearer {self._key}"

    def embed(self, texts: Sequence[str], *, query: bool = False, sending: Sending = allow_all) -> Embedded:
        """Return the vectors of a batch; see :class:`~regraft.embedders.protocol.Embedder`."""
        prefix = self.settings.query_prefix if query else self.settings.prefix
        prefixed = [replace_surrogates(prefix + text) for text in texts]
        requests = 0

        def attempt() -> tuple[list[bytes], int | None]:
            """Send one request; return its vectors and the server's token count."""
            nonlocal requests
            if self._halted.is_set():
                raise Halted
            sending(texts)
            requests += 1
            return self._request_vectors(prefixed)

        tenacity = self._tenacity
        repeated = tenacity.Retrying(
            retry=tenacity.retry_if_exception(
                lambda error: isinstance(error, _Passing) and (error.verdict.wait or 0) <= PATIENCE_S
            ),
            stop=tenacity.stop_after_attempt(self.settings.retries + 1),
            wait=self._wait,
            sleep=self._halted.wait,
            before_sleep=self._log_failure,
            reraise=True,
        )
        try:
            vectors, tokens = repeated(attempt)
        except _Passing as error:
            failure = error.verdict
        else:
            self._announced.clear()
            return Embedded(vectors, tokens, requests)
        raise ServerFailing(failure.code, failure.reason, requests)

    def _log_failure(self, state: Any) -> None:
        """Log, once for all threads, which attempt failed, why, and when the next one starts.

        ``state`` is the state of the call in tenacity, the library that repeats it.
        """
        reason = state.outcome.exception().verdict.reason
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
        """Return the seconds until the next attempt: the server's time, or about twice the previous wait.

        ``state`` is as for :meth:`_log_failure`.
        """
        wanted: float | None = state.outcome.exception().verdict.wait
        if wanted is not None:
            return wanted * random.uniform(1, 1.1)  # not all threads at once
        doubled: float = FIRST_WAIT_S * 2 ** (state.attempt_number - 1)
        return min(doubled, LONGEST_WAIT_S) * random.uniform(0.75, 1.25)

    def _request_vectors(self, prefixed: list[str]) -> tuple[list[bytes], int | None]:
        """Send one request with texts that have their prefix; return the vectors and the server's token count.

        Raises:
            TextsRejected, EmbedderRefused, AnswerUnfit: the request cannot succeed.
            _Passing: it may succeed later.
        """
        settings = self.settings
        answer = self._send(prefixed)
        if isinstance(answer, AnswerVerdict):
            # Raised outside of the handler of the client's exception, which holds the key.
            if answer.kind == "texts":
                raise TextsRejected(answer.code, answer.reason)
            if answer.kind == "configuration":
                server = urlsplit(settings.base_url).netloc
                advice = tr("check base_url, model and key of its configuration, and your account there")
                raise EmbedderRefused(embedder=settings.name, server=server, reason=answer.reason, advice=advice)
            raise _Passing(answer)
        try:
            vectors, tokens = parse_vectors(answer, len(prefixed), settings.dimensions, embedder=settings.name)
        except BrokenAnswer as error:
            reason = tidy_message(str(error), self._key)
        else:
            self._dimensions = self._dimensions or len(vectors[0]) // 4
            return vectors, tokens
        raise _Passing(AnswerVerdict(kind="passing", code="broken_answer", reason=reason))

    def _send(self, prefixed: list[str]) -> bytes | AnswerVerdict:
        """Send one request with texts that have their prefix; return the body of its answer.

        Any outcome without vectors is returned as its meaning.
        """
        openai, settings = self._openai, self.settings
        self._asked.texts = len(prefixed)
        more = {} if settings.dimensions is None else {"dimensions": settings.dimensions}
        try:
            # The client's method for embeddings examines every text, which takes longer than everything else.
            body = {"input": prefixed, "model": settings.model, "encoding_format": settings.encoding, **more}
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
                # Some releases of the client report any error as one of the connection.
                return AnswerVerdict(
                    kind="passing", code="broken_answer", reason=tidy_message(str(error.__cause__), self._key)
                )
            reason = tidy_message(str(error.__cause__ or error) or type(error.__cause__).__name__, self._key)
            return AnswerVerdict(kind="passing", code="connection", reason=reason)

    def tokens(self, text: str) -> int:
        """Return the number of tokens of a text with its prefix."""
        return self._counted(self.settings.prefix + text)

    def halt(self) -> None:
        """Cancel all waits between attempts."""
        self._halted.set()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


# --- local models ----------------------------------------------------------------------------------------------------
#
# Texts are embedded in this process with model2vec or sentence-transformers. Nothing is downloaded.


class LocalEmbedder:
    """Computes vectors one batch at a time; the libraries use all cores for one batch."""

    def __init__(self, settings: LocalSettings) -> None:
        """Load the model.

        Raises:
            WrongUsage: the library is not installed.
            ModelUnreadable: there is no such model.
        """
        self.settings = settings
        self._halted = Event()
        self._one = Lock()
        library = settings.library or model_library(settings.path)
        if not settings.path.is_dir():
            raise ModelUnreadable(path=settings.path, library=library, reason=tr("there is no such folder"))
        # The libraries read this on import, and then request nothing that a model's folder lacks.
        os.environ["HF_HUB_OFFLINE"] = "1"
        module = import_optional(library.replace("-", "_"), tr("Models of this kind"), library)
        try:
            if library == "model2vec":
                self._model = module.StaticModel.from_pretrained(settings.path)
            else:
                # Its progress bars would be shown even without a terminal.
                logs = import_optional("transformers.utils.logging", tr("Models of this kind"), library)
                logs.disable_progress_bar()
                self._model = module.SentenceTransformer(str(settings.path), local_files_only=True)
            self._counted = counter(settings)
        except ModelUnreadable:
            raise
        except Exception as error:  # these libraries raise anything
            raise ModelUnreadable(path=settings.path, library=library, reason=tidy_message(str(error), None)) from error
        self._more = {"use_multiprocessing": False} if library == "model2vec" else {"convert_to_numpy": True}

    def embed(self, texts: Sequence[str], *, query: bool = False, sending: Sending = allow_all) -> Embedded:
        """Return the vectors of a batch; see :class:`~regraft.embedders.protocol.Embedder`."""
        prefix = self.settings.query_prefix if query else self.settings.prefix
        with self._one:
            if self._halted.is_set():
                raise Halted
            sending(texts)
            try:
                made = self._model.encode(
                    [replace_surrogates(prefix + text) for text in texts], show_progress_bar=False, **self._more
                )
                vectors = [row.tobytes() for row in made.astype("<f4")]
            except Exception as error:  # these libraries raise anything
                raise TextsRejected("local_error", tidy_message(f"{type(error).__name__}: {error}", None)) from error
        check(vectors, len(texts), None, embedder=self.settings.name)
        return Embedded(vectors, None, 1)

    def tokens(self, text: str) -> int:
        """Return the number of tokens of a text with its prefix."""
        return self._counted(self.settings.prefix + text)

    def halt(self) -> None:
        """Make further calls of :meth:`embed` raise Halted."""
        self._halted.set()

    def close(self) -> None:
        """Release the model."""
        self._model = None


def model_library(folder: Path) -> str:
    """Return the library that a model's folder is made for: ``model2vec`` or ``sentence-transformers``.

    Both write ``model.safetensors`` and ``tokenizer.json``; the model type in ``config.json`` tells them
    apart: a model of model2vec has no other type.
    """
    try:
        found = json_text.loads(links.read_bytes(folder / "config.json"))
    except (OSError, ValueError):
        return "sentence-transformers"
    kind = found.get("model_type", "model2vec") if isinstance(found, dict) else ""
    return "model2vec" if kind == "model2vec" else "sentence-transformers"


__all__ = [
    "Embedded",
    "Embedder",
    "EmbedderSettings",
    "Halted",
    "LocalSettings",
    "Sending",
    "ServerFailing",
    "ServerSettings",
    "TextsRejected",
    "Unanswered",
    "check",
    "counter",
    "estimate",
    "open_embedder",
]


@contextmanager
def open_embedder(settings: EmbedderSettings) -> Iterator[Embedder]:
    """Open an embedder, and close its connections or model at the end.

    Raises:
        WrongUsage: a library that it needs is not installed.
        EmbedderKeyMissing: the environment variable with its key is missing.
        ModelUnreadable: there is no such model on disk.
    """
    embedder: Embedder
    if isinstance(settings, LocalSettings):
        embedder = LocalEmbedder(settings)
    else:
        assert isinstance(settings, ServerSettings)
        embedder = ServerEmbedder(settings)
    try:
        yield embedder
    finally:
        embedder.halt()
        embedder.close()
