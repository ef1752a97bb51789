"""How each kind of store is looked at and audited, and what is called by the names of findings.

What knows a system (:class:`checks.adapter.Checks`) is loaded when a store of it is met, so that nobody waits for the
others; the findings of all systems are loaded where one of any of them may be named.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import import_module
from typing import cast

from checks.adapter import Checks
from checks.audit.findings import FINDINGS, Audit, Definition
from checks.audit.options import CheckOptions, CommandLine
from checks.looks import Look, LookOptions
from regraft import systems
from regraft.base_names import meant
from regraft.errors import WrongUsage
from regraft.kinds import NAMES, PREVIEW_SOURCES, SYSTEMS, V2_STORES, Kind
from regraft.language import joined, tr
from regraft.located import Located

#: The module of each kind that has its adapter, as ``CHECKS``.
_ADAPTERS = {
    **dict.fromkeys(Kind, "checks.cherry_v1.adapter"),
    **dict.fromkeys(PREVIEW_SOURCES, "checks.cherry_preview.adapter"),
    **dict.fromkeys((*V2_STORES, Kind.V2_BACKUP, Kind.PACK), "checks.cherry_v2.adapter"),
    Kind.CODEX_MEM: "checks.codex_mem.adapter",
    Kind.ANGEL_MEMORY: "checks.angel_memory.adapter",
    Kind.RSCLAW: "checks.rsclaw.adapter",
}
#: The modules that register findings, in the order in which they are listed.
_FINDINGS = (
    "checks.audit.file_findings",
    "checks.angel_memory.findings",
    "checks.cherry_v2.findings",
    "checks.cherry_v2.packs",
    "checks.codex_mem.findings",
    "checks.rsclaw.findings",
    "checks.cherry_v1.findings",
)


def checks_of(kind: Kind) -> Checks:
    """Return how stores of a kind are looked at and audited."""
    return cast(Checks, import_module(_ADAPTERS[kind]).CHECKS)


def every_finding() -> Mapping[str, Definition]:
    """Return what an audit of any system can say, by name."""
    for module in _FINDINGS:
        import_module(module)
    return FINDINGS


def check_names(names: Iterable[str]) -> None:
    """Refuse names that no finding has.

    Raises:
        WrongUsage: it gives the nearest names.
    """
    known = every_finding()
    for name in names:
        if name not in known:
            near = joined(difflib.get_close_matches(name, known, n=3, cutoff=0))
            raise WrongUsage(
                problem=tr("--only {name}: no finding has this name", name=name),
                hint=tr("the nearest are {near}", near=near),
            )


def chosen_names(names: Iterable[str], taken: Collection[str], command: str) -> frozenset[str]:
    """Return names of findings that a command takes, of those ``taken`` by it.

    Raises:
        WrongUsage: one is none of them, or no finding's.
    """
    chosen = frozenset(names)
    check_names(sorted(chosen))
    for name in sorted(chosen.difference(taken)):
        hint = tr("{command} takes {taken}", command=command, taken=joined(taken))
        raise WrongUsage(problem=tr("--only {name}: {remedy}", name=name, remedy=FINDINGS[name].remedy), hint=hint)
    return chosen


def look(found: Located, asked: LookOptions) -> Look:
    """Look at any store.

    Raises:
        WrongUsage: it is no knowledge base of the application, and has no items.
        BrokenJson, SourceUnreadable: its state cannot be read.
    """
    checks = checks_of(found.kind)
    if asked.items and found.kind in SYSTEMS and not checks.has_items:
        raise WrongUsage(
            problem=tr("--items is for knowledge bases of the application, and this is {kind}", kind=NAMES[found.kind]),
            hint=tr("leave it out"),
        )
    return checks.inspect(found, asked)


def is_audited(kind: Kind) -> bool:
    """Tell whether stores of a kind are audited as they are, and not by a plan of their migration."""
    return checks_of(kind).audit is not None


def audit(found: Located, options: CheckOptions, command_line: CommandLine | None = None) -> Audit:
    """Check a store that :func:`is_audited`, in a folder, without writing anything."""
    run = checks_of(found.kind).audit
    if run is None:
        raise ValueError(tr("{kind} is audited by a plan of its migration", kind=found.kind))
    return run(found, options, command_line)


def chosen_bases(found: Located, words: Sequence[str]) -> tuple[str, ...]:
    """Return the ids of the parts of a store that a user chose, by their ids or by what else tells them.

    Raises:
        BaseUnknown, BaseAmbiguous: there is none of them, or several.
    """
    if not words:
        return ()
    if found.kind not in SYSTEMS:
        from checks.cherry_v2.audit import base_names  # noqa: PLC0415 - as the adapters, when its data is met

        names_there = base_names(found)
        return tuple(meant(word, names_there) for word in words)
    checks = checks_of(found.kind)
    known = checks.part_ids(found)
    ids = {**checks.ids_by_name(found), **{one: one for one in known}}
    for word in words:
        if word not in ids:
            unknown = systems.system_of(found.kind).part_unknown
            raise unknown(base=word, known=joined(known) or "none")
    return tuple(ids[word] for word in words)
