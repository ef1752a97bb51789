"""Dispatch ``inspect`` and ``check`` to the system of a store, and look up findings by name.

A system's modules are imported when a store of it is opened, to keep start-up fast. A new system is one line in
``_ADAPTERS`` and one in ``_FINDINGS``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib import import_module
from typing import cast

import msgspec

from checks.audit.collector import CheckOptions, CommandLine
from checks.audit.findings import FINDINGS, Audit, FindingDefinition
from checks.inspect import InspectOptions, InspectReport, StoreSummary
from regraft.errors import WrongUsage
from regraft.identity import resolve_base
from regraft.kinds import KIND_NAMES, PREVIEW_SOURCES, SYSTEMS, V2_STORES, Kind
from regraft.language import join_list, tr
from regraft.report.document import Run
from regraft.stores import systems
from regraft.stores.systems import Located
from regraft.text import one_line


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """Functions that read the stores of one system: ``CHECKS`` in ``checks/SYSTEM/inspect.py``."""

    #: Summarizes a store. Raises for its data only if none of its state can be read.
    inspect: Callable[[Located, InspectOptions], StoreSummary]
    #: Whether ``--items`` is supported.
    has_items: bool = False
    #: Audits a store and never raises for its data. None: a migration source, audited by planning its migration.
    audit: Callable[[Located, CheckOptions, CommandLine | None], Audit] | None = None
    #: Ids that ``--base`` accepts.
    part_ids: Callable[[Located], Sequence[str]] = lambda _: ()
    #: Other words that ``--base`` accepts, such as names, with their ids.
    ids_by_name: Callable[[Located], Mapping[str, str]] = lambda _: {}


#: The module whose ``CHECKS`` is used for each kind of store.
_ADAPTERS = {
    **dict.fromkeys(Kind, "checks.cherry_v1.inspect"),
    **dict.fromkeys(PREVIEW_SOURCES, "checks.cherry_preview"),
    **dict.fromkeys((*V2_STORES, Kind.V2_BACKUP, Kind.PACK), "checks.cherry_v2.inspect"),
    **{kind: f"checks.{kind.system}.inspect" for kind in SYSTEMS},
}
#: The modules that register findings, in the order of ``docs/findings.md``.
_FINDINGS = (
    "checks.audit.findings",
    *(f"checks.{name}.findings" for name in sorted(["cherry_v2", *(kind.system for kind in SYSTEMS)])),
    "checks.cherry_v1.findings",
    "checks.certify.findings",
)


def checks_for(kind: Kind) -> Checks:
    """Import and return the functions that read stores of a kind."""
    return cast(Checks, import_module(_ADAPTERS[kind]).CHECKS)


def load_findings() -> Mapping[str, FindingDefinition]:
    """Import the findings of every system, and return the registry."""
    for module in _FINDINGS:
        import_module(module)
    return FINDINGS


def require_finding_names(names: Iterable[str]) -> None:
    """Raise WrongUsage if one of ``names`` is not a registered finding; the hint has the most similar names."""
    known = load_findings()
    for name in names:
        if name not in known:
            near = join_list(difflib.get_close_matches(name, known, n=3, cutoff=0))
            raise WrongUsage(
                problem=tr("--only {name}: no finding has this name", name=name),
                hint=tr("the nearest are {near}", near=near),
            )


def select_finding_names(names: Iterable[str], accepted: Collection[str], command: str) -> frozenset[str]:
    """Return ``names`` as a set, if ``command`` accepts all of them.

    Args:
        names: names of findings, from ``--only``.
        accepted: names of the findings that the command accepts.
        command: the name of the command, for the message.

    Raises:
        WrongUsage: a name is not registered, or not accepted.
    """
    chosen = frozenset(names)
    require_finding_names(sorted(chosen))
    for name in sorted(chosen.difference(accepted)):
        hint = tr("{command} takes {taken}", command=command, taken=join_list(accepted))
        raise WrongUsage(problem=tr("--only {name}: {remedy}", name=name, remedy=FINDINGS[name].remedy), hint=hint)
    return chosen


def inspect_store(source: Located, options: InspectOptions) -> StoreSummary:
    """Summarize a store of any system for ``inspect``.

    Raises:
        WrongUsage: items are requested and the system does not support that.
        BrokenJson, SourceUnreadable: the state of the store cannot be read.
    """
    checks = checks_for(source.kind)
    if options.items and source.kind in SYSTEMS and not checks.has_items:
        raise WrongUsage(
            problem=tr(
                "--items is for knowledge bases of the application, and this is {kind}", kind=KIND_NAMES[source.kind]
            ),
            hint=tr("leave it out"),
        )
    return checks.inspect(source, options)


def make_inspect_report(source: Located, run: Run, options: InspectOptions) -> InspectReport:
    """Summarize a store as the report of ``regraft inspect``, and record the end of ``run`` in it.

    Raises:
        WrongUsage: items are requested and the system does not support that.
        BrokenJson, SourceUnreadable: the state of the store cannot be read.
    """
    found = inspect_store(source, options)
    run.end()
    return InspectReport(head=run.head(), kind=source.kind.value, bases=found.bases, health=found.health)


def is_audited(kind: Kind) -> bool:
    """Whether stores of a kind are audited themselves; migration sources are audited by planning their migration."""
    return checks_for(kind).audit is not None


def audit(source: Located, options: CheckOptions, command_line: CommandLine | None = None) -> Audit:
    """Audit a store whose kind :func:`is_audited`. An archive must be unpacked first.

    ``command_line`` makes the command lines that fix findings; None: findings get no command.
    """
    run = checks_for(source.kind).audit
    if run is None:
        raise ValueError(tr("the audit of {kind} is a plan of its migration", kind=source.kind))
    return run(source, options, command_line)


def resolve_base_ids(source: Located, words: Sequence[str]) -> tuple[str, ...]:
    """Return the ids of the bases that the user named, by id, name or the beginning of an id, in the same order.

    Raises:
        BaseUnknown, BaseAmbiguous: one of ``words`` matches no base, or several.
    """
    if not words:
        return ()
    if source.kind not in SYSTEMS:
        from checks.cherry_v2.audit import read_base_names  # noqa: PLC0415 - as the adapters, when its data is met

        names_there = read_base_names(source)
        return tuple(resolve_base(word, names_there) for word in words)
    checks = checks_for(source.kind)
    known = checks.part_ids(source)
    ids = {**checks.ids_by_name(source), **{one: one for one in known}}
    for word in words:
        if word not in ids:
            unknown = systems.system_of(source.kind).part_unknown
            named = {key: name for name, key in ids.items() if name != key}
            listed = join_list(f"{one_line(named[one])} ({one})" if one in named else one for one in known)
            raise unknown(base=word, known=listed or "none")
    return tuple(ids[word] for word in words)
