"""An embedder behind a server that speaks as OpenAI's does (``docs/embedders.md``).

The official client makes the requests. It would add to them what it finds in the environment: keys, an organisation,
any header. So it gets no key at all, and a hook of its transport lets pass only the headers that a request needs.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import random
from collections.abc import Sequence
from threading import Event, local
from typing import Any
from urllib.parse import urlsplit

from regraft.embedders.answers import BrokenAnswer, vectors_of
from regraft.embedders.counting import counter
from regraft.embedders.limits import TooMuch, answer_bytes, bound
from regraft.embedders.protocol import Embedded, Halted, Sending, ServerFailing, TextsRejected, nothing
from regraft.embedders.settings import ServerSettings
from regraft.embedders.verdicts import Verdict, tidy, verdict
from regraft.errors import EmbedderKeyMissing, EmbedderRefused, WrongUsage
from regraft.extras import needed
from regraft.language import tr
from regraft.text import whole

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

    def __init__(self, found: Verdict) -> None:
        super().__init__(found.reason)
        self.found = found


def key_of(settings: ServerSettings) -> str | None:
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
        self._key = key_of(settings)
        self._openai = needed("openai", tr("Embedding servers"), "openai")
        self._tenacity = needed("tenacity", tr("Embedding servers"), "openai")
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
        bound(response, answer_bytes(self._asked.texts, dimensions))

    def embed(self, texts: Sequence[str], *, query: bool = False, sending: Sending = nothing) -> Embedded:
        """Return the vectors of a batch (:class:`~regraft.embedders.protocol.Embedder`)."""
        prefix = self.settings.query_prefix if query else self.settings.prefix
        written = [whole(prefix + text) for text in texts]
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
        if isinstance(found, Verdict):
            raise self._meant(found)
        try:
            vectors, tokens = vectors_of(found, len(written), settings.dimensions, embedder=settings.name)
        except BrokenAnswer as error:
            reason = tidy(str(error), self._key)
        else:
            self._dimensions = self._dimensions or len(vectors[0]) // 4
            return vectors, tokens
        raise _Passing(Verdict(kind="passing", code="broken_answer", reason=reason))

    def _sent(self, written: list[str]) -> bytes | Verdict:
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
            return verdict(response.status_code, response.headers, response.content, self._key)
        except openai.APITimeoutError:
            return Verdict(
                kind="passing", code="timeout", reason=tr("no answer within {timeout:g} s", timeout=settings.timeout)
            )
        except TooMuch as error:
            return Verdict(kind="passing", code="broken_answer", reason=tidy(str(error), self._key))
        except openai.APIConnectionError as error:
            if isinstance(error.__cause__, TooMuch):
                # Some releases of the client take any error for one of the connection.
                return Verdict(kind="passing", code="broken_answer", reason=tidy(str(error.__cause__), self._key))
            reason = tidy(str(error.__cause__ or error) or type(error.__cause__).__name__, self._key)
            return Verdict(kind="passing", code="connection", reason=reason)

    def _meant(self, found: Verdict) -> Exception:
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


def _bearable(found: Verdict) -> bool:
    return found.wait is None or found.wait <= PATIENCE_S


def _is_here(url: str) -> bool:
    """Tell whether a server is on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
