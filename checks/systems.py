"""How each kind of store is looked at and audited: one adapter for each system, all of one form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from checks.angel_memory import audit as angel_memory_audit
from checks.angel_memory import inspect as angel_memory_inspect
from checks.audit.findings import Audit
from checks.audit.options import CheckOptions, CommandLine
from checks.cherry_preview import inspect as cherry_preview_inspect
from checks.cherry_v1 import inspect as cherry_v1_inspect
from checks.cherry_v2 import audit as cherry_v2_audit
from checks.cherry_v2 import inspect as cherry_v2_inspect
from checks.codex_mem import audit as codex_mem_audit
from checks.codex_mem import inspect as codex_mem_inspect
from checks.looks import Look, LookOptions
from checks.rsclaw import audit as rsclaw_audit
from checks.rsclaw import inspect as rsclaw_inspect
from regraft import systems
from regraft.base_names import meant
from regraft.errors import WrongUsage
from regraft.kinds import NAMES, PREVIEW_SOURCES, SYSTEMS, Kind
from regraft.language import joined, tr
from regraft.located import Located


@dataclass(frozen=True, kw_only=True)
class Checks:
    """What can be told of the stores of a system without writing."""

    #: Looks at a store, and never raises for what is in the data but where all of its state is unreadable.
    inspect: Callable[[Located, LookOptions], Look]
    #: Audits it, and never raises for what is in the data; with command lines where it can make them. None: a source
    #: that is migrated is audited by a plan of its migration.
    audit: Callable[[Located, CheckOptions, CommandLine | None], Audit] | None = None
    #: Returns the ids by which a user can choose a part of the store.
    part_ids: Callable[[Located], Sequence[str]] = lambda _: ()
    #: Returns the ids of the parts by what else chooses one of them, such as its name.
    ids_by_name: Callable[[Located], Mapping[str, str]] = lambda _: {}


_V1 = Checks(inspect=lambda found, asked: cherry_v1_inspect.look(found, asked.progress, items=asked.items))
_PREVIEW = Checks(inspect=lambda found, asked: cherry_preview_inspect.look(found, items=asked.items))
_V2 = Checks(
    inspect=lambda found, asked: cherry_v2_inspect.look(found, items=asked.items),
    audit=cherry_v2_audit.audit,
    part_ids=cherry_v2_audit.base_ids,
)
CHECKS: dict[Kind, Checks] = {
    **dict.fromkeys(Kind, _V1),
    **dict.fromkeys(PREVIEW_SOURCES, _PREVIEW),
    **dict.fromkeys(cherry_v2_audit.AUDITED, _V2),
    Kind.CODEX_MEM: Checks(
        inspect=lambda found, _: codex_mem_inspect.look(found),
        audit=codex_mem_audit.audit,
        part_ids=codex_mem_audit.base_ids,
        ids_by_name=codex_mem_audit.ids_by_name,
    ),
    Kind.ANGEL_MEMORY: Checks(
        inspect=lambda found, _: angel_memory_inspect.look(found),
        audit=angel_memory_audit.audit,
    ),
    Kind.RSCLAW: Checks(
        inspect=lambda found, asked: rsclaw_inspect.look(found, asked.now_ms),
        audit=rsclaw_audit.audit,
    ),
}
#: Kinds that are audited as they are.
AUDITED = frozenset(kind for kind, checks in CHECKS.items() if checks.audit is not None)


def look(found: Located, asked: LookOptions) -> Look:
    """Look at any store.

    Raises:
        WrongUsage: it is no knowledge base of the application, and has no items.
        BrokenJson, SourceUnreadable: its state cannot be read.
    """
    if asked.items and found.kind in SYSTEMS:
        raise WrongUsage(
            problem=tr("--items is for knowledge bases of the application, and this is {kind}", kind=NAMES[found.kind]),
            hint=tr("leave it out"),
        )
    return CHECKS[found.kind].inspect(found, asked)


def audit(found: Located, options: CheckOptions, command_line: CommandLine | None = None) -> Audit:
    """Check a store of one of the kinds that are :data:`AUDITED`, in a folder, without writing anything."""
    run = CHECKS[found.kind].audit
    if run is None:
        raise ValueError(tr("{kind} is audited by a plan of its migration", kind=found.kind))
    return run(found, options, command_line)


def base_ids(found: Located) -> Sequence[str]:
    """Return the ids by which a user can choose a part of a store."""
    return CHECKS[found.kind].part_ids(found)


def chosen_bases(found: Located, words: Sequence[str]) -> tuple[str, ...]:
    """Return the ids of the parts of a store that a user chose, by their ids or by what else tells them.

    Raises:
        BaseUnknown, BaseAmbiguous: there is none of them, or several.
    """
    if not words:
        return ()
    if found.kind not in SYSTEMS:
        names_there = cherry_v2_audit.base_names(found)
        return tuple(meant(word, names_there) for word in words)
    checks = CHECKS[found.kind]
    known = checks.part_ids(found)
    ids = {**checks.ids_by_name(found), **{one: one for one in known}}
    for word in words:
        if word not in ids:
            unknown = systems.system_of(found.kind).part_unknown
            raise unknown(base=word, known=joined(known) or "none")
    return tuple(ids[word] for word in words)
