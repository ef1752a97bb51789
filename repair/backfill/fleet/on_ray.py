"""Sending the texts of a fleet from a cluster of Ray: Ray Data gives them to processes that hold the embedder open.

The keeper is a process of its own, which all of them ask. What a process that is killed had under way stays counted as
spent, and Ray Data gives its texts to another one, which asks first which of them have an answer.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from queue import Empty, SimpleQueue
from typing import Any

from regraft import embedders, extras
from regraft.embedders.settings import EmbedderSettings, ServerSettings
from regraft.errors import RegraftError, StoppedBySystem
from regraft.language import tr
from repair.backfill.budget import Leave, Permit
from repair.backfill.fleet import proving
from repair.backfill.fleet.answers import Answer
from repair.backfill.fleet.keeper import Keeper, Keeping, Kind, KindOfLeave, Spent, Stop, Terms
from repair.backfill.fleet.proving import Verdict
from repair.backfill.fleet.sender import Lengths, Sender, stop_of
from repair.backfill.fleet.sending import Led, Step
from repair.backfill.fleet.wanted import Texts, text_of

#: How many requests' texts a process is given at once, for each of its threads.
_AHEAD = 4
#: How long to wait for what was sent when the run is interrupted, in seconds.
_LAST_WAIT, _PAUSE = 5.0, 0.1


def _ray(module: str = "ray") -> Any:
    return extras.needed(module, tr("fleets on a cluster"), "ray")


class RemoteKeeper:
    """Asks the keeper of a fleet in its process; see :class:`~repair.backfill.fleet.keeper.Keeper`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def _asked(self, name: str, *args: Any) -> Any:
        return _ray().get(getattr(self._actor, name).remote(*args))

    def claim(self, keys: Sequence[str], kind: Kind) -> list[str]:
        """See :class:`~repair.backfill.fleet.keeper.Keeping`."""
        found: list[str] = self._asked("claim", list(keys), kind)
        return found

    def keep(self, found: Mapping[str, Answer], kind: Kind) -> None:
        """See :class:`~repair.backfill.fleet.keeper.Keeping`."""
        self._asked("keep", dict(found), kind)

    def answers_of(self, keys: Sequence[str], kind: Kind = "texts") -> dict[str, Answer]:
        """See :class:`~repair.backfill.fleet.keeper.Keeper`."""
        found: dict[str, Answer] = self._asked("answers_of", list(keys), kind)
        return found

    def compare_anew(self) -> None:
        """See :class:`~repair.backfill.fleet.keeper.Keeper`."""
        self._asked("compare_anew")

    def stop(self, stop: Stop) -> None:
        """See :class:`~repair.backfill.fleet.keeper.Keeping`."""
        self._asked("stop", stop)

    def leave(self, kind: Kind) -> Leave:
        """See :class:`~repair.backfill.fleet.keeper.Keeping`."""
        return KindOfLeave(self, kind)

    def reserve(self, kind: Kind, tokens: int) -> Permit:
        """See :class:`~repair.backfill.fleet.keeper.Keeper`."""
        permit: Permit = self._asked("reserve", kind, tokens)
        return permit

    def settle(self, kind: Kind, reserved: int, tokens: int) -> None:
        """See :class:`~repair.backfill.fleet.keeper.Keeper`."""
        self._asked("settle", kind, reserved, tokens)

    def give_back(self, kind: Kind, tokens: int) -> None:
        """See :class:`~repair.backfill.fleet.keeper.Keeper`."""
        self._asked("give_back", kind, tokens)

    def stopped(self) -> Stop | None:
        """See :class:`~repair.backfill.fleet.keeper.Keeper`."""
        stop: Stop | None = self._asked("stopped")
        return stop

    def spent(self, kind: Kind) -> Spent:
        """See :class:`~repair.backfill.fleet.keeper.Keeper`."""
        spent: Spent = self._asked("spent", kind)
        return spent

    def close(self) -> None:
        """See :class:`~repair.backfill.fleet.keeper.Keeper`."""
        self._asked("close")


class RaySender:
    """Sends what Ray Data gives it, in a process of the cluster; see :class:`~repair.backfill.fleet.sender.Sender`.

    Where the embedder cannot be opened, nothing more is sent at all.
    """

    def __init__(self, terms: Terms, keeper: Keeping, kind: Kind, dimensions: Lengths) -> None:
        self._sender: Sender | None = None
        self._ending = ExitStack()
        try:
            embedder = self._ending.enter_context(embedders.opened(terms.settings))
        except RegraftError as error:
            keeper.stop(stop_of(error, terms.settings))
        else:
            self._sender = Sender(embedder, keeper, kind, dimensions)
            self._ending.callback(self._sender.close)

    def __call__(self, part: Any) -> Any:
        """Send the texts of a part, and return how many have an answer now."""
        pyarrow = _ray("pyarrow")
        keyed = zip(part["key"].to_pylist(), map(text_of, part["text"].to_pylist()), strict=True)
        answered: list[int] = []
        if self._sender is not None:
            self._sender.send(keyed, answered.append)
        return pyarrow.table({"answered": [sum(answered)]})

    def close(self) -> None:
        """Let the embedder go."""
        self._ending.close()


def _steadiness(terms: Terms, keeper: Keeping) -> Verdict | None:
    """See :func:`repair.backfill.fleet.proving.steadiness`; where the embedder cannot be opened, nothing is sent."""
    try:
        with embedders.opened(terms.settings) as embedder:
            return proving.steadiness(embedder, keeper)
    except RegraftError as error:
        keeper.stop(stop_of(error, terms.settings))
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
    def keeper(self, terms: Terms) -> Iterator[RemoteKeeper]:
        """See :meth:`repair.backfill.fleet.sending.Sending.keeper`."""
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

    def send(self, texts: Texts, terms: Terms, keeper: Led, kind: Kind, dimensions: Lengths, step: Step) -> None:
        """See :meth:`repair.backfill.fleet.sending.Sending.send`."""
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
                keeper.stop(Stop(reason=tr("interrupted")))
                # What has not come by then ends with the cluster, or with its part of it.
                wait([sending], _LAST_WAIT)
                raise
            finally:
                thread.shutdown(wait=False)
            sending.result()

    def _send(self, parts: list[str], given: dict[str, Any], settings: EmbedderSettings, size: int, step: Step) -> None:
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

    def steadiness(self, terms: Terms, keeper: Led) -> Verdict | None:
        """See :meth:`repair.backfill.fleet.sending.Sending.steadiness`."""
        ray = _ray()
        with _said():
            verdict: Verdict | None = ray.get(ray.remote(_steadiness).remote(terms, keeper))
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
