"""Who audits which kind of store: one function for each, all of one form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from checks import angel_memory, store
from checks.findings import Audit
from checks.mended_by import CommandLine
from checks.store import Wish
from regraft.locate import Kind, Located


@dataclass(frozen=True)
class Auditor:
    """How a kind of store is audited.

    ``audit`` never raises for what is in the data, and gives command lines where it can make them. ``bases`` returns
    the ids by which a user can choose a part of the store: of bases, or of what has their place in another system.
    """

    audit: Callable[[Located, Wish, CommandLine | None], Audit]
    bases: Callable[[Located], Sequence[str]]


_V2 = Auditor(store.audit, store.base_ids)
AUDITORS: dict[Kind, Auditor] = {
    **dict.fromkeys(store.KINDS, _V2),
    Kind.ANGEL_MEMORY: Auditor(angel_memory.audit, angel_memory.bases),
}


def audit(found: Located, wish: Wish, command_line: CommandLine | None = None) -> Audit:
    """Check a store of one of the :data:`AUDITORS`' kinds, in a folder, without writing anything."""
    return AUDITORS[found.kind].audit(found, wish, command_line)


def base_ids(found: Located) -> Sequence[str]:
    """Return the ids by which a user can choose a part of a store."""
    return AUDITORS[found.kind].bases(found)
