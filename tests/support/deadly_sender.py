"""A process of a cluster that is killed while a request of it is under way."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from repair.embedding.answers import TextKind
from repair.embedding.budget import Permit, SpendingAccount
from repair.embedding.fleet_jobs import RemoteKeeper


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


class DeadlyKeeper(RemoteKeeper):
    """Is asked until the process is killed: the first one that gets so far."""

    mark = Path()

    def account(self, kind: TextKind) -> SpendingAccount:
        """Return an account that kills the process."""
        return Deadly(super().account(kind), self.mark)

    @classmethod
    def dying_at(cls, mark: Path) -> type[DeadlyKeeper]:
        """Return keepers of which the first one that gets so far leaves a mark, and kills its process."""
        return type("DeadlyKeeper", (cls,), {"mark": mark})
