"""Send the texts of a fleet, from this process or from a cluster of Ray, and store the answers with its keeper.

In a cluster, the keeper is a process of its own that all senders ask. If a sender is killed, the tokens of its requests
in flight stay reserved, and its part of the texts is sent by another process, which asks the keeper which of them have
no answer yet.
"""

from __future__ import annotations

import io
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from itertools import chain, islice
from pathlib import Path
from threading import Event
from typing import Any

import msgspec

from regraft import embedders, errors
from regraft.embedders import ServerFailing, Unanswered
from regraft.embedders.settings import EmbedderSettings, ServerSettings
from regraft.errors import STOPPED, BackfillStopped, RegraftError, StoppedBySystem
from regraft.fleet.engine import Schedule, Task, TaskResult
from regraft.fleet.ray_pool import RayPool
from regraft.language import to_english, tr
from repair.embedding.answers import Keeper, KindAccount, SendingTerms, StopReason, TextAnswer, TextKind
from repair.embedding.budget import LimitReached, MeteredEmbedder, SpendingAccount
from repair.embedding.fleet_texts import TextFile, read_texts
from repair.embedding.sender import BatchResult, Outbox, Sender, TextBatch, VectorLengths, WorkerPool, pack_batches

#: A key and its text.
KeyedText = tuple[str, str]
#: Called with the number of texts that got an answer.
OnAnswered = Callable[[int], None]

#: Texts for which the keeper is asked at a time whether they have an answer.
_CHUNK = 256
#: Requests' worth of texts that a process of a cluster gets at a time, for each of its threads, and the most texts.
_AHEAD, _PART_TEXTS = 4, 1000
#: How often a part is sent again after its process was killed.
_ATTEMPTS = 5
#: Seconds to wait for senders of a cluster when the run is interrupted, and between two looks at their progress.
_LAST_WAIT, _PAUSE = 5.0, 0.1


# --- the keeper ------------------------------------------------------------------------------------------------------


class RemoteKeeper:
    """Proxy of a :class:`~repair.embedding.answers.Keeper` in a process of its own: it has the same methods."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the method of this name, which calls that of the keeper."""
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            with _translated_errors():
                return _ray().get(getattr(self._actor, name).remote(*args))

        return call

    def account(self, kind: TextKind) -> SpendingAccount:
        """Return where the requests of a kind are reserved."""
        return KindAccount(self, kind)


#: The keeper, in this process or in another one.
AnyKeeper = Keeper | RemoteKeeper


# --- one sender ------------------------------------------------------------------------------------------------------


class FleetOutbox(Outbox):
    """Texts of a fleet that have no answer yet; see :class:`FleetSender`."""

    splits_unfit = True

    def __init__(
        self, texts: Iterable[KeyedText], sender: FleetSender, kind: TextKind, lengths: VectorLengths, step: OnAnswered
    ) -> None:
        self._embedder, self._keeper, self._kind = sender.embedder, sender.keeper, kind
        self._lengths, self._step = lengths, step
        self._batches = self._pack(iter(texts))

    @property
    def lengths(self) -> VectorLengths:
        """The lengths that a vector may have."""
        return self._lengths

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

    def write(self, results: Sequence[BatchResult]) -> None:
        """Have the keeper store the vectors."""
        vectors = chain.from_iterable(zip(one.batch.keys, one.vectors, strict=True) for one in results)
        self._keep({key: TextAnswer(vector=vector) for key, vector in vectors})

    def fail(self, batch: TextBatch, code: str, reason: str) -> None:
        """Have the keeper store that a text cannot be embedded."""
        self._keep({key: TextAnswer(code=code, reason=str(to_english(reason))) for key in batch.keys})

    def _keep(self, found: dict[str, TextAnswer]) -> None:
        self._keeper.keep(found, self._kind)
        self._step(len(found))

    def stop(self, batch: TextBatch, problem: BaseException) -> None:  # noqa: ARG002
        """Have the keeper permit no more requests, of any sender."""
        self._keeper.stop(stop_reason(problem, self._embedder.settings))


class FleetSender:
    """Sends texts of a fleet from this process, as many requests at a time as the configuration says.

    Args:
        settings: those of the embedder, which is opened once.
        keeper: permits the requests and stores the answers.
        owns_keeper: whether ``close`` closes the keeper, too.

    Raises:
        WrongUsage, EmbedderKeyMissing, ModelUnreadable: the embedder cannot be opened.
    """

    def __init__(self, settings: EmbedderSettings, keeper: AnyKeeper, *, owns_keeper: bool = False) -> None:
        self.keeper = keeper
        with ExitStack() as ending:
            if owns_keeper:
                ending.callback(keeper.close)
            self.embedder = ending.enter_context(embedders.open_embedder(settings))
            self._ending = ending.pop_all()

    def send(
        self,
        texts: Iterable[KeyedText],
        kind: TextKind,
        lengths: VectorLengths = None,
        step: OnAnswered = lambda _: None,
    ) -> None:
        """Send the texts that have no answer, until all have one or the keeper permits no more requests.

        ``step`` is called with the number of texts that got an answer, ``lengths`` are those that a vector may have.

        Raises:
            KeyboardInterrupt: requests in flight were waited for five seconds, and their answers stored.
            apsw.Error, OSError: an answer cannot be stored.
        """
        halted, settings = Event(), self.embedder.settings
        meter = MeteredEmbedder(self.embedder, self.keeper.account(kind), halted.wait)
        with WorkerPool(settings.name, meter, settings.parallel) as workers:
            sender = Sender(self.embedder, workers, halted.set, ahead=1)
            sender.send(FleetOutbox(texts, self, kind, lengths, step))

    def close(self) -> None:
        """Close the embedder."""
        self._ending.close()


def stop_reason(problem: BaseException, settings: EmbedderSettings) -> StopReason:
    """Return why nothing more is sent after an error. BaseException: the error is not one of the embedder."""
    if isinstance(problem, LimitReached):
        return StopReason(reason=str(problem))
    if isinstance(problem, RegraftError):
        return StopReason.of(problem)
    if not isinstance(problem, ServerFailing | Unanswered):
        raise problem
    reason = str(problem)
    if isinstance(problem, ServerFailing):
        reason = tr("embedder {embedder} does not answer: {reason}", embedder=settings.name, reason=problem.reason)
    return StopReason(reason=reason, code=BackfillStopped.__name__, exit_status=STOPPED)


# --- a cluster -------------------------------------------------------------------------------------------------------


class SendingJob(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the texts in a file, for a process of a cluster, which has one sender for each ``run``."""

    path: Path
    first: int
    count: int
    run: str
    sender: type[FleetSender]
    settings: EmbedderSettings
    keeper: AnyKeeper
    kind: TextKind
    lengths: VectorLengths


#: The sender of this process, by the run that it is for: a local model is loaded once.
_open_senders: dict[str, FleetSender] = {}


def send_part(job: SendingJob) -> TaskResult:
    """Send a part of the texts, in a process of a cluster; if the embedder cannot be opened there, all senders stop."""
    begun = time.monotonic()
    try:
        if job.run not in _open_senders:
            while _open_senders:
                _open_senders.popitem()[1].close()
            _open_senders[job.run] = job.sender(job.settings, job.keeper)
    except RegraftError as error:
        job.keeper.stop(stop_reason(error, job.settings))
    else:
        with read_texts(job.path) as texts:
            part = ((key, text) for key, text, _ in texts.read(job.first, job.count))
            _open_senders[job.run].send(part, job.kind, job.lengths)
    return TaskResult(status=0, seconds=time.monotonic() - begun)


class RaySending:
    """Sends from a cluster: each part of the texts is a task of a :class:`RayPool`, which Ray places as any other.

    Args:
        terms: the embedder, the limits, and a work folder for files that the other processes read.
        pool: the cluster; its work function is to call :func:`send_part`.
        sender: the class whose objects send in these processes.
    """

    def __init__(self, terms: SendingTerms, pool: RayPool, *, sender: type[FleetSender] = FleetSender) -> None:
        self._terms, self._pool = terms, pool
        self._sender, self._run = sender, secrets.token_hex(8)
        # A process that waits for a server needs half a core.
        self._cores = 0.5 if isinstance(terms.settings, ServerSettings) else 1.0
        with ExitStack() as ending:
            # A process of its own on this machine, whose disk has the answers.
            actor = pool.start_beside_driver(Keeper, terms)
            ending.callback(_ray().kill, actor)
            self.keeper: AnyKeeper = RemoteKeeper(actor)
            # Ray prints messages about killed processes to standard output.
            ending.enter_context(redirect_stdout(io.StringIO()))
            self.keeper.stopped()
            self._ending = ending.pop_all()

    def send(self, texts: TextFile, kind: TextKind, lengths: VectorLengths, step: OnAnswered) -> None:
        """Send all texts that have no answer; see :meth:`FleetSender.send`.

        Raises:
            StoppedBySystem: a part could not be sent, or its process was killed in every attempt.
        """
        settings = self._terms.settings
        job = SendingJob(
            path=texts.path,
            first=0,
            count=min(_PART_TEXTS, _AHEAD * settings.batch.texts * settings.parallel),
            run=self._run,
            sender=self._sender,
            settings=settings,
            keeper=self.keeper,
            kind=kind,
            lengths=lengths,
        )
        tasks = [
            Task(number=first, job=msgspec.structs.replace(job, first=first), name=kind, cores=self._cores)
            for first in range(0, texts.count, job.count)
        ]
        if not tasks:
            return
        known = self._count_answers(kind)

        def report_answers() -> None:
            nonlocal known
            before, known = known, self._count_answers(kind)
            step(known - before)

        with _translated_errors():
            try:
                # Again if their process was killed: the keeper knows what was answered.
                for _, ended in Schedule(tasks, self._pool, attempts=_ATTEMPTS, on_poll=report_answers):
                    if ended.error is not None and ended.status in (None, STOPPED):
                        raise StoppedBySystem(reason=f"{ended.error.code}: {ended.error.message}")
            except KeyboardInterrupt:
                self.keeper.stop(StopReason(reason=tr("interrupted")))
                # Later answers are lost: the senders end with the cluster, or with our job in it.
                end = time.monotonic() + _LAST_WAIT
                while self._pool.running and time.monotonic() < end:
                    deque(self._pool.answers(_PAUSE), maxlen=0)
                raise
            report_answers()

    def _count_answers(self, kind: TextKind) -> int:
        spent = self.keeper.spent(kind)
        return int(spent.answered + spent.failed)

    def close(self) -> None:
        """End the keeper."""
        with self._ending, suppress(StoppedBySystem):
            self.keeper.close()


def _ray() -> Any:
    return errors.import_optional("ray", tr("fleets on a cluster"), "ray")


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Turn errors of Ray into StoppedBySystem."""
    try:
        yield
    except _ray().exceptions.RayError as error:
        raise StoppedBySystem(reason=str(error).strip().rpartition("\n")[2]) from error
