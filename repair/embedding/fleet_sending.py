"""Send the texts of a fleet, from this process or from a cluster of Ray, and store the answers with its keeper.

In a cluster, the keeper is a process of its own that all senders ask. If a sender is killed, the tokens of its requests
in flight stay reserved, and Ray Data gives its texts to another process, which asks the keeper which of them have no
answer yet.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout, suppress
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Event
from typing import Any, Protocol

from regraft import embedders, errors, identity
from regraft.embedders import Embedder, ServerFailing, Unanswered
from regraft.embedders.settings import EmbedderSettings, ServerSettings
from regraft.errors import (
    STOPPED,
    AnswerUnfit,
    BackfillStopped,
    EmbedderUnsteady,
    ProbeRefused,
    RegraftError,
    StoppedBySystem,
)
from regraft.language import to_english, tr
from repair.embedding import probing
from repair.embedding.answers import (
    AnswerKeeper,
    Keeper,
    KindAccount,
    SendingTerms,
    SpentTotals,
    StopReason,
    TextAnswer,
    TextKind,
)
from repair.embedding.budget import LimitReached, MeteredEmbedder, SpendingAccount
from repair.embedding.fleet_texts import DistinctTexts, decode_text
from repair.embedding.sender import BatchResult, Sender, TextBatch, VectorLengths, WorkerPool, pack_batches

#: A key and its text.
KeyedText = tuple[str, str]
#: Called with the number of texts that got an answer.
OnAnswered = Callable[[int], None]

#: Texts for which the keeper is asked at a time whether they have an answer.
_CHUNK = 256
#: Requests' worth of texts that a process of a cluster gets at a time, for each of its threads.
_AHEAD = 4
#: Seconds to wait for senders of a cluster when the run is interrupted, and between two looks at their progress.
_LAST_WAIT, _PAUSE = 5.0, 0.1


# --- one sender ------------------------------------------------------------------------------------------------------


class FleetOutbox:
    """Texts of a fleet that have no answer yet (:class:`~repair.embedding.sender.Outbox`).

    Args:
        texts: the texts with their keys.
        embedder: counts tokens.
        keeper: asked before a text is sent; stores the answers.
        kind: texts that lack a vector, or probes.
        lengths: the lengths that a vector may have.
        step: called with the number of texts that got an answer.
    """

    splits_unfit = True

    def __init__(
        self,
        texts: Iterable[KeyedText],
        embedder: Embedder,
        keeper: AnswerKeeper,
        *,
        kind: TextKind,
        lengths: VectorLengths,
        step: OnAnswered,
    ) -> None:
        self._embedder = embedder
        self._keeper = keeper
        self._kind: TextKind = kind
        self._step = step
        self._batches = self._pack(iter(texts))
        self.lengths = lengths

    def _pack(self, texts: Iterator[KeyedText]) -> Iterator[TextBatch]:
        while chunk := dict(islice(texts, _CHUNK)):
            wanted = self._keeper.claim(list(chunk), self._kind)
            sized = ((key, self._embedder.tokens(chunk[key])) for key in wanted)
            for batch in pack_batches(sized, self._embedder.settings.batch):
                keys = tuple(key for key, _ in batch)
                yield TextBatch(keys=keys, texts=tuple(chunk[key] for key in keys))

    def renew(self) -> None:
        """Do nothing: claims of a fleet do not expire."""

    def claim(self, count: int) -> Sequence[TextBatch] | None:
        """Claim up to ``count`` batches of texts without an answer; None if no text is left."""
        return list(islice(self._batches, count)) or None

    def is_waiting(self) -> bool:
        """Whether texts are left that another process has claimed: never, its texts are given to another sender."""
        return False

    def write(self, results: Sequence[BatchResult]) -> None:
        """Have the keeper store the vectors."""
        found: dict[str, TextAnswer] = {}
        for result in results:
            vectors = zip(result.batch.keys, result.vectors, strict=True)
            found.update((key, TextAnswer(vector=vector)) for key, vector in vectors)
        self._keep(found)

    def fail(self, batch: TextBatch, code: str, reason: str) -> None:
        """Have the keeper store that a text cannot be embedded."""
        [key] = batch.keys
        self._keep({key: TextAnswer(code=code, reason=str(to_english(reason)))})

    def _keep(self, found: dict[str, TextAnswer]) -> None:
        self._keeper.keep(found, self._kind)
        self._step(len(found))

    def skip(self, batch: TextBatch, problem: Unanswered) -> None:  # noqa: ARG002
        """Raise: only an embedder with known answers has none."""
        raise problem

    def stop(self, batch: TextBatch, problem: BaseException) -> None:  # noqa: ARG002
        """Have the keeper permit no more requests, of any sender."""
        self._keeper.stop(stop_reason(problem, self._embedder.settings))


class FleetSender:
    """Sends texts of a fleet, as many requests at a time as the configuration says.

    Args:
        embedder: computes the vectors.
        keeper: permits the requests and stores the answers.
        kind: texts that lack a vector, or probes.
        lengths: the lengths that a vector may have.
    """

    def __init__(self, embedder: Embedder, keeper: AnswerKeeper, kind: TextKind, lengths: VectorLengths = None) -> None:
        self._embedder = embedder
        self._keeper = keeper
        self._kind: TextKind = kind
        self._lengths = lengths
        self._ending = ExitStack()
        halted = Event()
        meter = MeteredEmbedder(embedder, keeper.account(kind), halted.wait)
        pool = WorkerPool(embedder.settings.name, meter, embedder.settings.parallel)
        self._sender = Sender(embedder, self._ending.enter_context(pool), halted.set, ahead=1)

    def send(self, texts: Iterable[KeyedText], step: OnAnswered = lambda _: None) -> None:
        """Send the texts that have no answer, until all have one or the keeper permits no more requests.

        Args:
            texts: the texts with their keys.
            step: called with the number of texts that got an answer.

        Raises:
            KeyboardInterrupt: requests in flight were waited for five seconds, and their answers stored.
            apsw.Error, OSError: an answer cannot be stored.
        """
        outbox = FleetOutbox(texts, self._embedder, self._keeper, kind=self._kind, lengths=self._lengths, step=step)
        self._sender.send(outbox)

    def close(self) -> None:
        """End the threads."""
        self._ending.close()


def stop_reason(problem: BaseException, settings: EmbedderSettings) -> StopReason:
    """Return why nothing more is sent after an error.

    Raises:
        BaseException: the error is not one of the embedder.
    """
    if isinstance(problem, LimitReached):
        return StopReason(reason=str(problem))
    if isinstance(problem, ServerFailing):
        reason = tr("embedder {embedder} does not answer: {reason}", embedder=settings.name, reason=problem.reason)
        return StopReason(reason=reason, code=BackfillStopped.__name__, exit_status=STOPPED)
    if isinstance(problem, RegraftError):
        return StopReason.of(problem)
    raise problem


def check_steadiness(embedder: Embedder, keeper: AnswerKeeper) -> StopReason | None:
    """Check that an embedder gives one vector for one text; returns the error for bases without vectors, or None.

    The requests are counted and the answers stored as probes. If the embedder does not answer, the keeper stops all
    senders.
    """
    answers: dict[str, bytes] = {}
    settings, meter = embedder.settings, MeteredEmbedder(embedder, keeper.account("probes"))

    def embed(texts: Sequence[str]) -> list[bytes]:
        vectors = probing.embed_in_batches(embedder, meter.embed)(texts)
        answers.update(zip(texts, vectors, strict=True))
        return list(vectors)

    try:
        probing.compare_vectors(settings.name, settings.name, [], None, embed)
    except (EmbedderUnsteady, ProbeRefused, AnswerUnfit) as error:
        return StopReason.of(error)
    except (RegraftError, ServerFailing, LimitReached) as error:
        keeper.stop(stop_reason(error, settings))
        return None
    keeper.keep({identity.text_hash(text): TextAnswer(vector=vector) for text, vector in answers.items()}, "probes")
    return None


# --- backends --------------------------------------------------------------------------------------------------------


class FleetKeeper(AnswerKeeper, Protocol):
    """What the process that runs a fleet uses of the keeper."""

    def stopped(self) -> StopReason | None:
        """Return why no more requests are permitted, or None if they are."""

    def spent(self, kind: TextKind) -> SpentTotals:
        """Return the requests and tokens of a kind."""

    def find(self, keys: Sequence[str], kind: TextKind = "texts") -> dict[str, TextAnswer]:
        """Return the known answers to texts of a kind, by key."""

    def forget_compared(self) -> None:
        """Delete the answers to texts that earlier runs compared."""


class SendingBackend(Protocol):
    """The processes that send."""

    def keeper(self, terms: SendingTerms) -> AbstractContextManager[FleetKeeper]:
        """Open the keeper of a fleet.

        Raises:
            WrongUsage, EmbedderKeyMissing, ModelUnreadable: the embedder cannot be opened.
            apsw.Error, OSError: the answers cannot be written.
        """

    def send(
        self,
        texts: DistinctTexts,
        terms: SendingTerms,
        keeper: FleetKeeper,
        kind: TextKind,
        lengths: VectorLengths,
        step: OnAnswered,
    ) -> None:
        """Send all texts that have no answer, until all have one or the keeper permits no more requests.

        Args:
            texts: the texts.
            terms: the embedder, and a work folder for files that other processes read.
            keeper: permits the requests and stores the answers.
            kind: texts that lack a vector, or probes.
            lengths: the lengths that a vector may have.
            step: called with the number of texts that got an answer.

        Raises:
            KeyboardInterrupt: requests in flight were waited for five seconds, and their answers stored.
        """

    def check_steadiness(self, terms: SendingTerms, keeper: FleetKeeper) -> StopReason | None:
        """Check that the embedder gives one vector for one text; see :func:`check_steadiness`."""


class LocalSending:
    """Sends from this process, with as many threads as the configuration says."""

    def __init__(self) -> None:
        self._embedder: Embedder | None = None

    @contextmanager
    def keeper(self, terms: SendingTerms) -> Iterator[Keeper]:
        """Open the embedder and the keeper."""
        with embedders.open_embedder(terms.settings) as self._embedder:
            keeper = Keeper(terms)
            try:
                yield keeper
            finally:
                keeper.close()

    def send(
        self,
        texts: DistinctTexts,
        terms: SendingTerms,  # noqa: ARG002
        keeper: FleetKeeper,
        kind: TextKind,
        lengths: VectorLengths,
        step: OnAnswered,
    ) -> None:
        """Send all texts that have no answer."""
        assert self._embedder is not None
        sender = FleetSender(self._embedder, keeper, kind, lengths)
        try:
            sender.send(texts.keyed(), step)
        finally:
            sender.close()

    def check_steadiness(self, terms: SendingTerms, keeper: FleetKeeper) -> StopReason | None:  # noqa: ARG002
        """Check that the embedder gives one vector for one text."""
        assert self._embedder is not None
        return check_steadiness(self._embedder, keeper)


# --- a cluster -------------------------------------------------------------------------------------------------------


def _ray(module: str = "ray") -> Any:
    return errors.import_optional(module, tr("fleets on a cluster"), "ray")


class RemoteKeeper:
    """Proxy of a :class:`~repair.embedding.answers.Keeper` in a process of its own: it has the same methods."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the method of this name, which calls that of the keeper."""
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args: _ray().get(getattr(self._actor, name).remote(*args))

    def account(self, kind: TextKind) -> SpendingAccount:
        """Return where the requests of a kind are reserved."""
        return KindAccount(self, kind)


class RaySender:
    """Sends parts of the texts in a process of a cluster. If the embedder cannot be opened there, all senders stop."""

    def __init__(self, terms: SendingTerms, keeper: AnswerKeeper, kind: TextKind, lengths: VectorLengths) -> None:
        self._sender: FleetSender | None = None
        self._ending = ExitStack()
        try:
            embedder = self._ending.enter_context(embedders.open_embedder(terms.settings))
        except RegraftError as error:
            keeper.stop(stop_reason(error, terms.settings))
        else:
            self._sender = FleetSender(embedder, keeper, kind, lengths)
            self._ending.callback(self._sender.close)

    def __call__(self, part: Any) -> Any:
        """Send the texts of one Arrow table; returns a table with the number of texts that got an answer."""
        pyarrow = _ray("pyarrow")
        keyed = zip(part["key"].to_pylist(), map(decode_text, part["text"].to_pylist()), strict=True)
        answered: list[int] = []
        if self._sender is not None:
            self._sender.send(keyed, answered.append)
        return pyarrow.table({"answered": [sum(answered)]})

    def close(self) -> None:
        """End the threads and close the embedder."""
        self._ending.close()


def _check_steadiness_remotely(terms: SendingTerms, keeper: AnswerKeeper) -> StopReason | None:
    try:
        with embedders.open_embedder(terms.settings) as embedder:
            return check_steadiness(embedder, keeper)
    except RegraftError as error:
        keeper.stop(stop_reason(error, terms.settings))
        return None


def _send_one_part(sender_class: type[RaySender], arguments: dict[str, Any], part: str) -> int:
    """Send the texts of one Parquet file; returns how many got an answer."""
    sender = sender_class(**arguments)
    try:
        return sum(sender(_ray("pyarrow.parquet").read_table(part))["answered"].to_pylist())
    finally:
        sender.close()


class RaySending:
    """Sends from the cluster that this process has joined.

    Args:
        count: the number of sending processes; None: one for each core.
        sender: the class whose objects send in these processes.
    """

    def __init__(self, count: int | None, sender: type[RaySender] = RaySender) -> None:
        self._count = count
        self._sender = sender

    @contextmanager
    def keeper(self, terms: SendingTerms) -> Iterator[RemoteKeeper]:
        """Start the keeper in a process of its own."""
        ray = _ray()
        actor = ray.remote(num_cpus=0)(Keeper).remote(terms)
        keeper = RemoteKeeper(actor)
        try:
            # Ray prints messages about killed processes to standard output.
            with _translated_errors(), redirect_stdout(io.StringIO()):
                keeper.stopped()
                yield keeper
        finally:
            with suppress(ray.exceptions.RayError):
                keeper.close()
            ray.kill(actor)

    def send(
        self,
        texts: DistinctTexts,
        terms: SendingTerms,
        keeper: FleetKeeper,
        kind: TextKind,
        lengths: VectorLengths,
        step: OnAnswered,
    ) -> None:
        """Send all texts that have no answer."""
        settings = terms.settings
        size = _AHEAD * settings.batch.texts * settings.parallel
        parts = [str(path) for path in texts.parts(terms.folder, size)]
        if not parts:
            return
        arguments = {"terms": terms, "keeper": keeper, "kind": kind, "lengths": lengths}
        thread = ThreadPoolExecutor(1)
        with warnings.catch_warnings(), _translated_errors():
            warnings.simplefilter("ignore")
            counts: SimpleQueue[int] = SimpleQueue()
            # In a thread, so that Ctrl-C reaches this one. In Ray's own calls it would kill all senders at once.
            sending = thread.submit(self._send_parts, parts, arguments, settings, size, counts.put)
            try:
                while not (sending.done() and counts.empty()):
                    with suppress(Empty):
                        step(counts.get(timeout=_PAUSE))
            except KeyboardInterrupt:
                keeper.stop(StopReason(reason=tr("interrupted")))
                # Later answers are lost: the senders end with the cluster, or with our job in it.
                wait([sending], _LAST_WAIT)
                raise
            finally:
                thread.shutdown(wait=False)
            sending.result()

    def _send_parts(
        self, parts: list[str], arguments: dict[str, Any], settings: EmbedderSettings, size: int, step: OnAnswered
    ) -> None:
        cores = max(1, int(_ray().cluster_resources().get("CPU", 1)))
        count = min(len(parts), cores if self._count is None else self._count)
        # Leave one core to the process that reads the texts. A sender that waits for a server needs half a core.
        wanted = 0.5 if isinstance(settings, ServerSettings) else 1.0
        share = min(wanted, max(0.0, (cores - 1) / count))
        if len(parts) == 1:
            # A plain task starts faster than Ray Data.
            ray = _ray()
            step(ray.get(ray.remote(num_cpus=share)(_send_one_part).remote(self._sender, arguments, parts[0])))
            return
        # Import Ray Data without its warnings, log messages and progress bars.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = _ray("ray.data")
            data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        # One block for each part, although several parts are read together.
        texts = data.read_parquet(parts).repartition(target_num_rows_per_block=size)
        answered = texts.map_batches(
            self._sender,
            fn_constructor_kwargs=arguments,
            batch_size=size,
            batch_format="pyarrow",
            compute=data.ActorPoolStrategy(size=count),
            num_cpus=share,
        )
        for part in answered.iter_batches(batch_size=None, batch_format="pyarrow"):
            step(sum(part["answered"].to_pylist()))

    def check_steadiness(self, terms: SendingTerms, keeper: FleetKeeper) -> StopReason | None:
        """Check that the embedder gives one vector for one text, in a process of the cluster."""
        ray = _ray()
        with _translated_errors():
            refusal: StopReason | None = ray.get(ray.remote(_check_steadiness_remotely).remote(terms, keeper))
        return refusal


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Turn errors of Ray into StoppedBySystem."""
    try:
        yield
    except _ray().exceptions.RayError as error:
        raise StoppedBySystem(reason=str(error).strip().rpartition("\n")[2]) from error
