"""Where the texts of a fleet are sent from: this process, or a cluster (:mod:`repair.embedding.fleet_sending`)."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import msgspec

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
from regraft.language import tr
from repair.embedding import fleet_texts, probing
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
from repair.embedding.budget import LimitReached, MeteredEmbedder, Permit, SpendingAccount
from repair.embedding.fleet_texts import DistinctTexts, WantedText, decode_text
from repair.embedding.sender import Sender, VectorLengths, library_exit_status, stop_reason

# Whether a fleet's embedder is the model of each base, before anything but a few texts is sent.


class LibraryRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a library is not filled: its backfill would say so."""

    code: str
    message: str
    exit_status: int


def compared_texts(work: Path, libraries: Iterable[int]) -> Iterator[WantedText]:
    """Yield the texts that bases are compared by."""
    for library in libraries:
        for sample in fleet_texts.read_samples(work, library):
            yield from (WantedText.of(text, 0) for text, _ in sample.known)


def has_base_without_vectors(work: Path, libraries: Iterable[int]) -> bool:
    """Tell whether a base has no vector yet, so that the embedder is compared with itself."""
    return any(not sample.raw for library in libraries for sample in fleet_texts.read_samples(work, library))


def check_steadiness(embedder: Embedder, keeper: AnswerKeeper) -> LibraryRefusal | None:
    """Return what is wrong with an embedder that gives one text several vectors; None: it gives one.

    What it sends is counted, and its answers are kept. Where it cannot be asked, the keeper lets nothing more leave.
    """
    came: dict[str, bytes] = {}
    settings, meter = embedder.settings, MeteredEmbedder(embedder, keeper.leave("probes"))

    def embed(texts: Sequence[str]) -> list[bytes]:
        vectors = probing.embed_in_batches(embedder, meter.embedded)(texts)
        came.update(zip(texts, vectors, strict=True))
        return list(vectors)

    try:
        probing.compare_vectors(settings.name, settings.name, [], None, embed)
    except (EmbedderUnsteady, ProbeRefused, AnswerUnfit) as error:
        return _verdict(error)
    except (RegraftError, ServerFailing, LimitReached) as error:
        keeper.stop(stop_reason(error, settings))
        return None
    keeper.keep({identity.text_hash(text): TextAnswer(vector=vector) for text, vector in came.items()}, "probes")
    return None


def check_library(
    work: Path, library: int, embedder: Embedder, unsteady: LibraryRefusal | None, stop: StopReason | None
) -> LibraryRefusal | None:
    """Return why a library is not filled by an embedder that answers what is known; None: it is.

    Args:
        work: the fleet's work folder.
        library: the library's number.
        embedder: has the answers to all texts that bases are compared by.
        unsteady: what is said of a base without vectors, if anything.
        stop: why there is not an answer to all of them, if that is so.
    """
    for sample in fleet_texts.read_samples(work, library):
        if not sample.raw and unsteady is not None:
            return unsteady
        try:
            probing.compare_with_base(embedder, sample.base, sample.known, sample.dimensions)
        except Unanswered as unanswered:
            reason = str(unanswered) if stop is None else stop.reason
            code = BackfillStopped.__name__ if stop is None or stop.code is None else stop.code
            status = STOPPED if stop is None or stop.code is None else stop.exit_status
            return LibraryRefusal(code=code, message=reason, exit_status=status)
        except RegraftError as error:
            return _verdict(error)
    return None


def _verdict(error: RegraftError) -> LibraryRefusal:
    return LibraryRefusal(code=error.code, message=str(error), exit_status=library_exit_status(error))


#: Is told how many texts more have an answer.
OnAnswered = Callable[[int], None]


class FleetKeeper(AnswerKeeper, Protocol):
    """What the process that leads a fleet knows of the keeper."""

    def stopped(self) -> StopReason | None:
        """Return why nothing more is sent; None: it is."""

    def spent(self, kind: TextKind) -> SpentTotals:
        """Return what was sent of a kind."""

    def answers_of(self, keys: Sequence[str], kind: TextKind = "texts") -> dict[str, TextAnswer]:
        """Return the answers that there are to texts of a kind, by their keys."""

    def compare_anew(self) -> None:
        """Forget what earlier runs compared."""


class SendingBackend(Protocol):
    """Where texts are sent from."""

    def keeper(self, terms: SendingTerms) -> AbstractContextManager[FleetKeeper]:
        """Open the keeper of a fleet, and make ready to send.

        Raises:
            WrongUsage, EmbedderKeyMissing, ModelUnreadable: the embedder cannot be opened here.
            apsw.Error, OSError: they cannot be written.
        """

    def send(
        self,
        texts: DistinctTexts,
        terms: SendingTerms,
        keeper: FleetKeeper,
        kind: TextKind,
        dimensions: VectorLengths,
        step: OnAnswered,
    ) -> None:
        """Send all texts that have no answer, until they have one, or nothing more may leave.

        Args:
            texts: what is sent.
            terms: say to whom, and where what is sent may lie meanwhile.
            keeper: keeps the answers.
            kind: whether the texts are wanted, or compared.
            dimensions: what a vector may have; None: nobody knows.
            step: told of answers.

        Raises:
            KeyboardInterrupt: what was under way is kept, where it came within a while.
        """

    def steadiness(self, terms: SendingTerms, keeper: FleetKeeper) -> LibraryRefusal | None:
        """See :func:`repair.embedding.fleet_sending.check_steadiness`."""


class LocalSending:
    """Sends from this process, by as many threads as the configuration says."""

    def __init__(self) -> None:
        self._embedder: Embedder | None = None

    @contextmanager
    def keeper(self, terms: SendingTerms) -> Iterator[Keeper]:
        """See :meth:`Sending.keeper`."""
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
        dimensions: VectorLengths,
        step: OnAnswered,
    ) -> None:
        """See :meth:`Sending.send`."""
        assert self._embedder is not None
        sender = Sender(self._embedder, keeper, kind, dimensions)
        try:
            sender.send(texts.keyed(), step)
        finally:
            sender.close()

    def steadiness(self, terms: SendingTerms, keeper: FleetKeeper) -> LibraryRefusal | None:  # noqa: ARG002
        """See :meth:`Sending.steadiness`."""
        assert self._embedder is not None
        return check_steadiness(self._embedder, keeper)


# Sending the texts of a fleet from a cluster of Ray: Ray Data gives them to processes that hold the embedder open.
#
# The keeper is a process of its own, which all of them ask. What a process that is killed had under way stays counted as
# spent, and Ray Data gives its texts to another one, which asks first which of them have an answer.


#: How many requests' texts a process is given at once, for each of its threads.
_AHEAD = 4
#: How long to wait for what was sent when the run is interrupted, in seconds.
_LAST_WAIT, _PAUSE = 5.0, 0.1


def _ray(module: str = "ray") -> Any:
    return errors.import_optional(module, tr("fleets on a cluster"), "ray")


class RemoteKeeper:
    """Asks the keeper of a fleet in its process; see :class:`~repair.embedding.answers.Keeper`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def _asked(self, name: str, *args: Any) -> Any:
        return _ray().get(getattr(self._actor, name).remote(*args))

    def claim(self, keys: Sequence[str], kind: TextKind) -> list[str]:
        """See :class:`~repair.embedding.answers.AnswerKeeper`."""
        found: list[str] = self._asked("claim", list(keys), kind)
        return found

    def keep(self, found: Mapping[str, TextAnswer], kind: TextKind) -> None:
        """See :class:`~repair.embedding.answers.AnswerKeeper`."""
        self._asked("keep", dict(found), kind)

    def answers_of(self, keys: Sequence[str], kind: TextKind = "texts") -> dict[str, TextAnswer]:
        """See :class:`~repair.embedding.answers.Keeper`."""
        found: dict[str, TextAnswer] = self._asked("answers_of", list(keys), kind)
        return found

    def compare_anew(self) -> None:
        """See :class:`~repair.embedding.answers.Keeper`."""
        self._asked("compare_anew")

    def stop(self, stop: StopReason) -> None:
        """See :class:`~repair.embedding.answers.AnswerKeeper`."""
        self._asked("stop", stop)

    def leave(self, kind: TextKind) -> SpendingAccount:
        """See :class:`~repair.embedding.answers.AnswerKeeper`."""
        return KindAccount(self, kind)

    def reserve(self, kind: TextKind, tokens: int) -> Permit:
        """See :class:`~repair.embedding.answers.Keeper`."""
        permit: Permit = self._asked("reserve", kind, tokens)
        return permit

    def settle(self, kind: TextKind, reserved: int, tokens: int) -> None:
        """See :class:`~repair.embedding.answers.Keeper`."""
        self._asked("settle", kind, reserved, tokens)

    def give_back(self, kind: TextKind, tokens: int) -> None:
        """See :class:`~repair.embedding.answers.Keeper`."""
        self._asked("give_back", kind, tokens)

    def stopped(self) -> StopReason | None:
        """See :class:`~repair.embedding.answers.Keeper`."""
        stop: StopReason | None = self._asked("stopped")
        return stop

    def spent(self, kind: TextKind) -> SpentTotals:
        """See :class:`~repair.embedding.answers.Keeper`."""
        spent: SpentTotals = self._asked("spent", kind)
        return spent

    def close(self) -> None:
        """See :class:`~repair.embedding.answers.Keeper`."""
        self._asked("close")


class RaySender:
    """Sends what Ray Data gives it, in a process of the cluster; see :class:`~repair.embedding.sender.Sender`.

    Where the embedder cannot be opened, nothing more is sent at all.
    """

    def __init__(self, terms: SendingTerms, keeper: AnswerKeeper, kind: TextKind, dimensions: VectorLengths) -> None:
        self._sender: Sender | None = None
        self._ending = ExitStack()
        try:
            embedder = self._ending.enter_context(embedders.open_embedder(terms.settings))
        except RegraftError as error:
            keeper.stop(stop_reason(error, terms.settings))
        else:
            self._sender = Sender(embedder, keeper, kind, dimensions)
            self._ending.callback(self._sender.close)

    def __call__(self, part: Any) -> Any:
        """Send the texts of a part, and return how many have an answer now."""
        pyarrow = _ray("pyarrow")
        keyed = zip(part["key"].to_pylist(), map(decode_text, part["text"].to_pylist()), strict=True)
        answered: list[int] = []
        if self._sender is not None:
            self._sender.send(keyed, answered.append)
        return pyarrow.table({"answered": [sum(answered)]})

    def close(self) -> None:
        """Let the embedder go."""
        self._ending.close()


def _steadiness(terms: SendingTerms, keeper: AnswerKeeper) -> LibraryRefusal | None:
    """See :func:`repair.embedding.fleet_sending.check_steadiness`; where the embedder cannot be opened, nothing is sent."""
    try:
        with embedders.open_embedder(terms.settings) as embedder:
            return check_steadiness(embedder, keeper)
    except RegraftError as error:
        keeper.stop(stop_reason(error, terms.settings))
        return None


def _sent_at_once(sender: type[RaySender], given: dict[str, Any], part: str) -> int:
    """Send the texts of one part, and return how many have an answer."""
    made = sender(**given)
    try:
        return sum(made(_ray("pyarrow.parquet").read_table(part))["answered"].to_pylist())
    finally:
        made.close()


class RaySending:
    """Sends from a cluster that this process has joined.

    Args:
        count: how many processes send; None: one for each core.
        sender: what they hold.
    """

    def __init__(self, count: int | None, sender: type[RaySender] = RaySender) -> None:
        self._count = count
        self._sender = sender

    @contextmanager
    def keeper(self, terms: SendingTerms) -> Iterator[RemoteKeeper]:
        """See :meth:`repair.embedding.fleet_sending.SendingBackend.keeper`."""
        ray = _ray()
        actor = ray.remote(num_cpus=0)(Keeper).remote(terms)
        keeper = RemoteKeeper(actor)
        try:
            # Ray writes on it what it thinks of processes that die.
            with _said(), redirect_stdout(io.StringIO()):
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
        dimensions: VectorLengths,
        step: OnAnswered,
    ) -> None:
        """See :meth:`repair.embedding.fleet_sending.SendingBackend.send`."""
        settings = terms.settings
        size = _AHEAD * settings.batch.texts * settings.parallel
        parts = [str(path) for path in texts.parts(terms.folder, size)]
        if not parts:
            return
        given = {"terms": terms, "keeper": keeper, "kind": kind, "dimensions": dimensions}
        thread = ThreadPoolExecutor(1)
        with warnings.catch_warnings(), _said():
            warnings.simplefilter("ignore")
            counts: SimpleQueue[int] = SimpleQueue()
            # Ctrl-C reaches this thread alone: there it would end all who send, with what they have under way.
            sending = thread.submit(self._send, parts, given, settings, size, counts.put)
            try:
                while not (sending.done() and counts.empty()):
                    with suppress(Empty):
                        step(counts.get(timeout=_PAUSE))
            except KeyboardInterrupt:
                keeper.stop(StopReason(reason=tr("interrupted")))
                # What has not come by then ends with the cluster, or with its part of it.
                wait([sending], _LAST_WAIT)
                raise
            finally:
                thread.shutdown(wait=False)
            sending.result()

    def _send(
        self, parts: list[str], given: dict[str, Any], settings: EmbedderSettings, size: int, step: OnAnswered
    ) -> None:
        """Send the texts of all parts."""
        count = min(len(parts), self._cores() if self._count is None else self._count)
        share = self._share(count, settings)
        if len(parts) == 1:
            # A process that is there already is soon done with it.
            ray = _ray()
            step(ray.get(ray.remote(num_cpus=share)(_sent_at_once).remote(self._sender, given, parts[0])))
            return
        data = _quiet_data()
        # What is read together is given out part by part.
        texts = data.read_parquet(parts).repartition(target_num_rows_per_block=size)
        done = texts.map_batches(
            self._sender,
            fn_constructor_kwargs=given,
            batch_size=size,
            batch_format="pyarrow",
            compute=data.ActorPoolStrategy(size=count),
            num_cpus=share,
        )
        for part in done.iter_batches(batch_size=None, batch_format="pyarrow"):
            step(sum(part["answered"].to_pylist()))

    def steadiness(self, terms: SendingTerms, keeper: FleetKeeper) -> LibraryRefusal | None:
        """See :meth:`repair.embedding.fleet_sending.SendingBackend.steadiness`."""
        ray = _ray()
        with _said():
            verdict: LibraryRefusal | None = ray.get(ray.remote(_steadiness).remote(terms, keeper))
        return verdict

    def _cores(self) -> int:
        return max(1, int(_ray().cluster_resources().get("CPU", 1)))

    def _share(self, count: int, settings: EmbedderSettings) -> float:
        """Return how much of a core each of the processes is given: one core is left for what reads the texts."""
        most = 0.5 if isinstance(settings, ServerSettings) else 1.0
        return min(most, max(0.0, (self._cores() - 1) / count))


def _quiet_data() -> Any:
    """Return Ray Data, which says nothing and draws no bars."""
    with warnings.catch_warnings():
        # Of its own settings.
        warnings.simplefilter("ignore")
        data = _ray("ray.data")
        data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    return data


@contextmanager
def _said() -> Iterator[None]:
    """Say of what a cluster stopped by that the system did.

    Raises:
        StoppedBySystem
    """
    try:
        yield
    except _ray().exceptions.RayError as error:
        raise StoppedBySystem(reason=str(error).strip().rpartition("\n")[2]) from error
