"""Processes that die at one call of a function: a kill in a recorded state, wherever that is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from faults import forked
from stand_ins import KILLED, die

Patched = Callable[[pytest.MonkeyPatch], None]


def dies(owner: object, name: str, when: Callable[..., bool] = lambda *_: True, *, after: bool = False) -> Patched:
    """Return what lets a process die before, or after, a call that is meant."""

    def prepare(patch: pytest.MonkeyPatch) -> None:
        real = getattr(owner, name)

        def watched(*arguments: Any, **named: Any) -> Any:
            is_meant = when(*arguments)
            if is_meant and not after:
                die()
            result = real(*arguments, **named)
            if is_meant:
                die()
            return result

        patch.setattr(owner, name, watched)

    return prepare


def killed(prepare: Patched, work: Callable[[], object]) -> None:
    """Do some work in a process that dies where it is prepared to."""

    def prepared() -> None:
        with pytest.MonkeyPatch.context() as patch:
            prepare(patch)
            work()

    assert forked(prepared) == KILLED
