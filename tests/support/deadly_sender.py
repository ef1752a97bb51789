"""A process of a cluster that is killed while a request of it is under way."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from regraft.embedders.settings import EmbedderSettings
from repair.embedding.budget import Permit, SpendingAccount
from repair.embedding.fleet_sending import AnyKeeper, FleetSender


class Deadly:
    """Lets requests leave; once, when the third one was settled, the process is killed before its answer is kept."""

    def __init__(self, account: SpendingAccount, mark: Path) -> None:
        self._account = account
        self._mark = mark
        self._count = 0

    def reserve(self, tokens: int) -> Permit:
        """See :class:`repair.embedding.budget.SpendingAccount`."""
        return self._account.reserve(tokens)

    def settle(self, reserved: int, tokens: int) -> None:
        """See :class:`repair.embedding.budget.SpendingAccount`."""
        self._count += 1
        if self._count == 3:
            try:
                self._mark.touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        self._account.settle(reserved, tokens)

    def cancel(self, tokens: int) -> None:
        """See :class:`repair.embedding.budget.SpendingAccount`."""
        self._account.cancel(tokens)


class DeadlySender(FleetSender):
    """Sends until it is killed: the first of them once."""

    mark = Path()

    def __init__(self, settings: EmbedderSettings, keeper: AnyKeeper) -> None:
        given = keeper.account
        mark = self.mark
        keeper.account = lambda kind: Deadly(given(kind), mark)  # type: ignore[method-assign]
        super().__init__(settings, keeper)

    @classmethod
    def dying_at(cls, mark: Path) -> type[DeadlySender]:
        """Return senders of which the first one that gets so far leaves a mark, and dies."""
        return type("DeadlySender", (cls,), {"mark": mark})
