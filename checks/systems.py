"""Who audits which kind of store: one function for each, all of one form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from checks.angel_memory import audit as angel_memory_audit
from checks.audit.findings import Audit
from checks.audit.options import CheckOptions, CommandLine
from checks.cherry_v2 import audit as cherry_v2_audit
from checks.codex_mem import audit as codex_mem_audit
from regraft.base_names import meant
from regraft.errors import BaseUnknown
from regraft.kinds import Kind
from regraft.locate import Located
from regraft.system_errors import ProjectUnknown


@dataclass(frozen=True)
class Auditor:
    """How a kind of store is audited.

    ``audit`` never raises for what is in the data, and gives command lines where it can make them. ``bases`` returns
    the ids by which a user can choose a part of the store: of bases, or of what has their place in another system.
    """

    audit: Callable[[Located, CheckOptions, CommandLine | None], Audit]
    bases: Callable[[Located], Sequence[str]]
    #: What else chooses one of them, such as its name.
    names: Callable[[Located], Mapping[str, str]] = lambda _: {}


_V2 = Auditor(cherry_v2_audit.audit, cherry_v2_audit.base_ids)
AUDITORS: dict[Kind, Auditor] = {
    **dict.fromkeys(cherry_v2_audit.AUDITED, _V2),
    Kind.CODEX_MEM: Auditor(codex_mem_audit.audit, codex_mem_audit.base_ids, codex_mem_audit.ids_by_name),
    Kind.ANGEL_MEMORY: Auditor(angel_memory_audit.audit, angel_memory_audit.bases),
}


def audit(found: Located, options: CheckOptions, command_line: CommandLine | None = None) -> Audit:
    """Check a store of one of the :data:`AUDITORS`' kinds, in a folder, without writing anything."""
    return AUDITORS[found.kind].audit(found, options, command_line)


def base_ids(found: Located) -> Sequence[str]:
    """Return the ids by which a user can choose a part of a store."""
    return AUDITORS[found.kind].bases(found)


def chosen_bases(found: Located, words: Sequence[str]) -> tuple[str, ...]:
    """Return the ids of the parts of a store that a user chose, by their ids or by what else tells them.

    Raises:
        BaseUnknown, BaseAmbiguous: there is none of them, or several.
    """
    if not words:
        return ()
    if AUDITORS[found.kind] is _V2:
        names_there = cherry_v2_audit.base_names(found)
        return tuple(meant(word, names_there) for word in words)
    known = base_ids(found)
    ids = {**AUDITORS[found.kind].names(found), **{one: one for one in known}}
    for word in words:
        if word not in ids:
            unknown = ProjectUnknown if found.kind is Kind.CODEX_MEM else BaseUnknown
            raise unknown(base=word, known=", ".join(known) or "none")
    return tuple(ids[word] for word in words)
