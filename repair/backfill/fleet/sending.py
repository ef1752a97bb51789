"""Where the texts of a fleet are sent from: this process, or a cluster (:mod:`repair.backfill.fleet.on_ray`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from regraft import embedders
from regraft.embedders import Embedder
from repair.backfill.fleet import proving
from repair.backfill.fleet.answers import Answer
from repair.backfill.fleet.keeper import Keeper, Keeping, Kind, Spent, Stop, Terms
from repair.backfill.fleet.proving import Verdict
from repair.backfill.fleet.sender import Lengths, Sender
from repair.backfill.fleet.wanted import Texts

#: Is told how many texts more have an answer.
Step = Callable[[int], None]


class Led(Keeping, Protocol):
    """What the process that leads a fleet knows of the keeper."""

    def stopped(self) -> Stop | None:
        """Return why nothing more is sent; None: it is."""

    def spent(self, kind: Kind) -> Spent:
        """Return what was sent of a kind."""

    def answers_of(self, keys: Sequence[str], kind: Kind = "texts") -> dict[str, Answer]:
        """Return the answers that there are to texts of a kind, by their keys."""

    def compare_anew(self) -> None:
        """Forget what earlier runs compared."""


class Sending(Protocol):
    """Where texts are sent from."""

    def keeper(self, terms: Terms) -> AbstractContextManager[Led]:
        """Open the keeper of a fleet, and make ready to send.

        Raises:
            WrongUsage, EmbedderKeyMissing, ModelUnreadable: the embedder cannot be opened here.
            apsw.Error, OSError: they cannot be written.
        """

    def send(self, texts: Texts, terms: Terms, keeper: Led, kind: Kind, dimensions: Lengths, step: Step) -> None:
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

    def steadiness(self, terms: Terms, keeper: Led) -> Verdict | None:
        """See :func:`repair.backfill.fleet.proving.steadiness`."""


class HereSending:
    """Sends from this process, by as many threads as the configuration says."""

    def __init__(self) -> None:
        self._embedder: Embedder | None = None

    @contextmanager
    def keeper(self, terms: Terms) -> Iterator[Keeper]:
        """See :meth:`Sending.keeper`."""
        with embedders.opened(terms.settings) as self._embedder:
            keeper = Keeper(terms)
            try:
                yield keeper
            finally:
                keeper.close()

    def send(self, texts: Texts, terms: Terms, keeper: Led, kind: Kind, dimensions: Lengths, step: Step) -> None:  # noqa: ARG002
        """See :meth:`Sending.send`."""
        assert self._embedder is not None
        sender = Sender(self._embedder, keeper, kind, dimensions)
        try:
            sender.send(texts.keyed(), step)
        finally:
            sender.close()

    def steadiness(self, terms: Terms, keeper: Led) -> Verdict | None:  # noqa: ARG002
        """See :meth:`Sending.steadiness`."""
        assert self._embedder is not None
        return proving.steadiness(self._embedder, keeper)
