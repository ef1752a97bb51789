"""Whether the commands that an audit offers would do something about what they are offered for (``docs/findings.md``).

What a plan leaves as it is gets no command: the finding says why instead.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import apsw

from checks.audit.collector import Level
from checks.audit.findings import Audit, Finding
from checks.cherry_v2 import findings as v2
from regraft.errors import RegraftError
from regraft.language import tr
from regraft.located import Located
from regraft.records import replace
from repair.changes.plan import Plan
from repair.changes.store import Store
from repair.cherry_v2 import gc, indexing, upgrade
from repair.cherry_v2.rules import planner
from repair.options import GcOptions, RepairOptions

#: Options that make of ``repair`` another command.
_MODES = ("--salvage", "--adopt")
#: Findings of which only some instances are resolved: a command is offered where a plan has them.
_ONLY_IF_PLANNED = frozenset({v2.BASE_FAILED})
#: Finding and base.
Key = tuple[str, str | None]


@dataclass(frozen=True)
class _AuditedStore(Store):
    """A store of which an audit was just made."""

    known: tuple[Finding, ...] = ()

    def findings(self, level: Level = Level.DEFAULT) -> list[Finding]:  # noqa: ARG002 - as deep as the audit was
        """Return what that audit found."""
        return [one for one in self.known if self.wants(one.base)]


def with_working_lines(audit: Audit, found: Located, bases: Collection[str], now_ms: int) -> Audit:
    """Return an audit of v2 data without the commands that would leave what they are offered for.

    Args:
        audit: with command lines.
        found: what was audited.
        bases: ids of the bases that were chosen; empty: all.
        now_ms: the time of a run, in ms.
    """
    store = _AuditedStore(
        path=found.path,
        root=found.tree.path,
        found=found,
        chosen=frozenset(bases),
        now_ms=now_ms,
        known=audit.findings,
    )
    offered: dict[str, set[str]] = defaultdict(set)
    for finding in audit.findings:
        verb, name = _offered(finding)
        offered[verb].add(name)
    plans = {verb: _plan(verb, store, frozenset(names), now_ms) for verb, names in offered.items()}
    plans["backfill"] = _indexing_plan(store, now_ms)
    return replace(audit, findings=tuple(_proven(finding, plans) for finding in audit.findings))


def _offered(finding: Finding) -> tuple[str, str]:
    """Return the command that a finding offers, "" where it offers none, and the finding that this resolves."""
    if finding.repair is None:
        return "", ""
    words = shlex.split(finding.repair)
    if "--model" in words:
        # Which model it is, only the command is told.
        return "", ""
    name = words[words.index("--only") + 1] if "--only" in words else finding.name
    return next((mode for mode in _MODES if mode in words), words[1]), name


def _plan(verb: str, store: Store, names: frozenset[str], now_ms: int) -> Plan:
    """Return what a command would do about findings; nothing where that cannot be told."""
    try:
        match verb:
            case "--salvage":
                return planner.plan(store, RepairOptions(now_ms=now_ms, only=names, salvage=True))
            case "--adopt":
                made = Plan()
                for name in sorted(names):
                    made.add(planner.plan(store, RepairOptions(now_ms=now_ms, only=frozenset({name}), adopt=True)))
                return made
            case "repair":
                return planner.plan(store, RepairOptions(now_ms=now_ms, only=names))
            case "gc":
                # What only goes where it is named is not to be offered.
                return gc.plan(store, GcOptions(now_ms=now_ms, expires=False))
            case "upgrade":
                return upgrade.plan(store, upgrade.UpgradeOptions(now_ms))
    except (RegraftError, OSError, apsw.Error, UnicodeDecodeError):
        pass
    return Plan()


def _indexing_plan(store: Store, now_ms: int) -> Plan:
    """Return how ``backfill`` builds missing indexes; nothing where that cannot be told."""
    bases = {str(one.base) for one in store.findings() if one.name == v2.BASE_NO_INDEX and one.repair is not None}
    if not bases:
        return Plan()
    try:
        return indexing.plan(store, now_ms, bases)
    except (RegraftError, OSError, apsw.Error, UnicodeDecodeError):
        # Where what reads texts is not installed, the command says so.
        return Plan()


def _proven(finding: Finding, plans: Mapping[str, Plan]) -> Finding:
    verb, name = _offered(finding)
    if not verb:
        return finding
    keys = set(_keys(name, finding.base))
    plan = plans[verb]
    is_mended = keys & plan.resolves or any((one.finding, one.base) in keys for one in plan.actions)
    left = [one for one in plan.left if (one.finding, one.base) in keys]
    reasons = [one.reason for one in left]
    if is_mended:
        # Named, it would remove the rest, too.
        is_partial = verb == "gc" and bool(reasons)
        return replace(finding, repair=_unnamed(finding.repair)) if is_partial else finding
    if not reasons and verb == "gc":
        # It goes only where it is named.
        return replace(
            finding,
            repair=None,
            message=tr("{what}; gc deletes it only with --only {name}", what=finding.message, name=name),
        )
    if not reasons:
        return replace(finding, repair=None) if name in _ONLY_IF_PLANNED else finding
    repair = left[0].repair if verb == "gc" else None
    return replace(finding, repair=repair, message=tr("{what}: {why}", what=finding.message, why=reasons[0]))


def _unnamed(line: str | None) -> str:
    """Return a command line without the name of the finding that it is for."""
    words = shlex.split(line or "")
    at = words.index("--only") if "--only" in words else len(words)
    return shlex.join(words[:at] + words[at + 2 :])


def _keys(name: str, base: str | None) -> Iterator[Key]:
    """Yield how a plan may name what is mended: folders of no base are of the whole store."""
    yield name, base
    yield name, None
