"""How each kind of store is looked at and audited, and what is called by the names of findings.

What knows a system (:class:`checks.systems.Checks`) is loaded when a store of it is met, so that nobody waits for the
others; the findings of all systems are loaded where one of any of them may be named.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib import import_module
from typing import cast

import msgspec

from checks.audit.collector import CheckOptions, CommandLine
from checks.audit.findings import FINDINGS, Audit, FindingDefinition
from checks.looks import InspectOptions, StoreSummary
from regraft.errors import WrongUsage
from regraft.identity import resolve_base
from regraft.kinds import KIND_NAMES, PREVIEW_SOURCES, SYSTEMS, V2_STORES, Kind
from regraft.language import join_list, tr
from regraft.stores import systems
from regraft.stores.systems import Located

# The form in which each system says how its stores are looked at and audited.


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """What can be told of the stores of a system without writing: ``CHECKS`` in ``checks/SYSTEM/adapter.py``."""

    #: Looks at a store, and never raises for what is in the data but where all of its state is unreadable.
    inspect: Callable[[Located, InspectOptions], StoreSummary]
    #: Whether it has items that ``--items`` lists.
    has_items: bool = False
    #: Audits it, and never raises for what is in the data; with command lines where it can make them. None: a source
    #: that is migrated is audited by a plan of its migration.
    audit: Callable[[Located, CheckOptions, CommandLine | None], Audit] | None = None
    #: Returns the ids by which a user can choose a part of the store.
    part_ids: Callable[[Located], Sequence[str]] = lambda _: ()
    #: Returns the ids of the parts by what else chooses one of them, such as its name.
    ids_by_name: Callable[[Located], Mapping[str, str]] = lambda _: {}


#: The module of each kind that has its adapter, as ``CHECKS``.
_ADAPTERS = {
    **dict.fromkeys(Kind, "checks.cherry_v1.inspect"),
    **dict.fromkeys(PREVIEW_SOURCES, "checks.cherry_preview"),
    **dict.fromkeys((*V2_STORES, Kind.V2_BACKUP, Kind.PACK), "checks.cherry_v2.inspect"),
    **{kind: f"checks.{kind.system}.inspect" for kind in SYSTEMS},
}
#: The modules that register findings, in the order in which they are listed.
_FINDINGS = (
    "checks.audit.findings",
    *(f"checks.{name}.findings" for name in sorted(["cherry_v2", *(kind.system for kind in SYSTEMS)])),
    "checks.cherry_v1.findings",
)


def checks_for(kind: Kind) -> Checks:
    """Return how stores of a kind are looked at and audited."""
    return cast(Checks, import_module(_ADAPTERS[kind]).CHECKS)


def load_findings() -> Mapping[str, FindingDefinition]:
    """Return what an audit of any system can say, by name."""
    for module in _FINDINGS:
        import_module(module)
    return FINDINGS


def require_finding_names(names: Iterable[str]) -> None:
    """Refuse names that no finding has.

    Raises:
        WrongUsage: it gives the nearest names.
    """
    known = load_findings()
    for name in names:
        if name not in known:
            near = join_list(difflib.get_close_matches(name, known, n=3, cutoff=0))
            raise WrongUsage(
                problem=tr("--only {name}: no finding has this name", name=name),
                hint=tr("the nearest are {near}", near=near),
            )


def select_finding_names(names: Iterable[str], taken: Collection[str], command: str) -> frozenset[str]:
    """Return names of findings that a command takes, of those ``taken`` by it.

    Raises:
        WrongUsage: one is none of them, or no finding's.
    """
    chosen = frozenset(names)
    require_finding_names(sorted(chosen))
    for name in sorted(chosen.difference(taken)):
        hint = tr("{command} takes {taken}", command=command, taken=join_list(taken))
        raise WrongUsage(problem=tr("--only {name}: {remedy}", name=name, remedy=FINDINGS[name].remedy), hint=hint)
    return chosen


def inspect_store(found: Located, asked: InspectOptions) -> StoreSummary:
    """Look at any store.

    Raises:
        WrongUsage: it is no knowledge base of the application, and has no items.
        BrokenJson, SourceUnreadable: its state cannot be read.
    """
    checks = checks_for(found.kind)
    if asked.items and found.kind in SYSTEMS and not checks.has_items:
        raise WrongUsage(
            problem=tr(
                "--items is for knowledge bases of the application, and this is {kind}", kind=KIND_NAMES[found.kind]
            ),
            hint=tr("leave it out"),
        )
    return checks.inspect(found, asked)


def is_audited(kind: Kind) -> bool:
    """Tell whether stores of a kind are audited as they are, and not by a plan of their migration."""
    return checks_for(kind).audit is not None


def audit(found: Located, options: CheckOptions, command_line: CommandLine | None = None) -> Audit:
    """Check a store that :func:`is_audited`, in a folder, without writing anything."""
    run = checks_for(found.kind).audit
    if run is None:
        raise ValueError(tr("{kind} is audited by a plan of its migration", kind=found.kind))
    return run(found, options, command_line)


def resolve_base_ids(found: Located, words: Sequence[str]) -> tuple[str, ...]:
    """Return the ids of the parts of a store that a user chose, by their ids or by what else tells them.

    Raises:
        BaseUnknown, BaseAmbiguous: there is none of them, or several.
    """
    if not words:
        return ()
    if found.kind not in SYSTEMS:
        from checks.cherry_v2.audit import read_base_names  # noqa: PLC0415 - as the adapters, when its data is met

        names_there = read_base_names(found)
        return tuple(resolve_base(word, names_there) for word in words)
    checks = checks_for(found.kind)
    known = checks.part_ids(found)
    ids = {**checks.ids_by_name(found), **{one: one for one in known}}
    for word in words:
        if word not in ids:
            unknown = systems.system_of(found.kind).part_unknown
            raise unknown(base=word, known=join_list(known) or "none")
    return tuple(ids[word] for word in words)
