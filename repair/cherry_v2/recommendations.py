"""Whether the commands that an audit offers would do something about what they are offered for (``docs/findings.md``).

What a plan leaves as it is gets no command: the finding says why instead.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import apsw

from checks.audit.collector import CommandLine, Level
from checks.audit.findings import SAMPLES, Audit, Finding
from checks.cherry_v2 import findings as v2
from regraft.errors import RegraftError
from regraft.identity import replace
from regraft.kinds import V2_STORES, Kind
from regraft.language import format_count, join_list, tr
from regraft.ledger.ledger import suggested_source
from regraft.report import notices
from regraft.stores.locate import Located as locate_Located
from regraft.stores.systems import Located
from regraft.text import path_argument
from repair.changes.plan import Plan, Unresolved
from repair.changes.store import Store
from repair.cherry_v2 import gc, indexing, rescue, upgrade
from repair.cherry_v2.from_source import LACKING
from repair.cherry_v2.rules import planner
from repair.options import GcOptions, RepairOptions

#: Options that make of ``repair`` another command.
_MODES = ("--salvage", "--adopt")
#: Findings of which only some instances are resolved: a command is offered where a plan has them.
_ONLY_IF_PLANNED = frozenset({v2.BASE_FAILED})
#: Finding and base.
FindingKey = tuple[str, str | None]


@dataclass(frozen=True)
class _AuditedStore(Store):
    """A store of which an audit was just made."""

    known: tuple[Finding, ...] = ()

    def findings(self, level: Level = Level.DEFAULT) -> list[Finding]:  # noqa: ARG002 - as deep as the audit was
        """Return what that audit found."""
        return [one for one in self.known if self.wants(one.base)]


def remove_idle_commands(audit: Audit, found: Located, bases: Collection[str], now_ms: int) -> Audit:
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
        verb, name = _offered_command(finding)
        offered[verb].add(name)
    plans = {verb: _plan_of_command(verb, store, frozenset(names), now_ms) for verb, names in offered.items()}
    plans["backfill"] = _indexing_plan(store, now_ms)
    return replace(audit, findings=tuple(_with_proven_command(finding, plans) for finding in audit.findings))


def _offered_command(finding: Finding) -> tuple[str, str]:
    """Return the command that a finding offers, "" where it offers none, and the finding that this resolves."""
    if finding.repair is None:
        return "", ""
    words = shlex.split(finding.repair)
    if "--model" in words:
        # Which model it is, only the command is told.
        return "", ""
    name = words[words.index("--only") + 1] if "--only" in words else finding.name
    return next((mode for mode in _MODES if mode in words), words[1]), name


def _plan_of_command(verb: str, store: Store, names: frozenset[str], now_ms: int) -> Plan:
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


def _with_proven_command(finding: Finding, plans: Mapping[str, Plan]) -> Finding:
    verb, name = _offered_command(finding)
    if not verb:
        return finding
    keys = set(_plan_keys(name, finding.base))
    plan = plans[verb]
    is_mended = keys & plan.resolves or any((one.finding, one.base) in keys for one in plan.actions)
    left = [one for one in plan.left if (one.finding, one.base) in keys]
    reasons = [one.reason for one in left]
    if is_mended:
        # Named, it would remove the rest, too.
        is_partial = verb == "gc" and bool(reasons)
        return replace(finding, repair=_without_only(finding.repair)) if is_partial else finding
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


def _without_only(line: str | None) -> str:
    """Return a command line without the name of the finding that it is for."""
    words = shlex.split(line or "")
    at = words.index("--only") if "--only" in words else len(words)
    return shlex.join(words[:at] + words[at + 2 :])


def _plan_keys(name: str, base: str | None) -> Iterator[FindingKey]:
    """Yield how a plan may name what is mended: folders of no base are of the whole store."""
    yield name, base
    yield name, None


# Which command brings back what a base lacks: from another copy first, then by embedding, then by salvage.
#
# Rules: ``docs/repair-from.md``, "What is recommended".


#: Commands whose source has all texts and vectors of the library that they wrote.
_MAKERS = ("migrate", "import")


def recommend_copies(audit: Audit, found: Located, path: Path) -> Audit:
    """Return an audit whose findings recommend another copy of the data before anything that costs or loses.

    Args:
        audit: of v2 data, with command lines.
        found: what was audited.
        path: the store, as the user named it.
    """
    if found.kind not in V2_STORES or found.stores.catalog is None or not any(map(_may_be_in_copy, audit.findings)):
        return audit
    source = suggested_source(found.tree.path, _MAKERS)
    # A source gives texts and vectors to completed bases alone.
    others = {one.base for one in audit.findings if one.name in (v2.BASE_FAILED, v2.INDEX_ORPHAN)}
    meant = (one.base not in others and _may_be_in_copy(one) for one in audit.findings)
    findings = (
        _with_copy_command(one, path, source, is_whole=found.stores.is_whole) if is_meant else one
        for one, is_meant in zip(audit.findings, meant, strict=True)
    )
    return replace(audit, findings=tuple(findings))


def _may_be_in_copy(finding: Finding) -> bool:
    """Whether another copy may have what a finding is about, and no other command has to come first."""
    is_grave = notices.at_least(finding.severity, "warning") and not finding.is_beyond_repair
    words = [] if finding.repair is None else shlex.split(finding.repair)
    is_first = not words or words[1] == "backfill" or "--salvage" in words
    if finding.name == v2.NO_UNITS:
        # The text is there: cutting it loses nothing.
        return False
    has_lost_tables = finding.name == v2.SCHEMA_MISSING and not words
    return (finding.name in LACKING or has_lost_tables) and finding.base is not None and is_grave and is_first


def _with_copy_command(finding: Finding, path: Path, source: str | None, *, is_whole: bool) -> Finding:
    base = ("--base", str(finding.base)) if is_whole else ()
    line = shlex.join(["regraft", "repair", path_argument(path), "--from", source or "SOURCE", *base])
    if source is None:
        message = tr("{what}; where another copy of the data has it: {command}", what=finding.message, command=line)
        return replace(finding, message=message)
    message = finding.message
    if finding.repair is not None:
        message = tr("{what}; without that copy: {command}", what=message, command=finding.repair)
    return replace(finding, message=message, repair=line)


# Hints of an audit that hang on what v1's files still have: only what a plan would bring back is promised.
#
# ``regraft check`` says of a folder or base that the upgrade left behind whether ``regraft rescue`` brings it back, and
# of v1's vector files whether ``regraft gc`` would remove them (``docs/findings.md``, "v2 data"). Nothing is written.


#: What v1's vector files can bring back.
_RESCUED = frozenset({v2.BASE_FAILED, v2.BASE_NO_INDEX, v2.ITEM_NO_MATERIAL, v2.ITEM_TOMBSTONE})
_CLEANED_UP = tr(
    "regraft rescue needs them; the application's own clean-up of old data deletes these "
    "files, of failed bases, too: rescue first"
)


def add_rescue_hints(
    audit: Audit, found: locate_Located, level: Level, bases: Collection[str], command_line: CommandLine
) -> Audit:
    """Return an audit of v2 data that says what v1's files can still bring back, and whether they can go.

    Args:
        audit: with the commands that mend other findings.
        found: what was audited.
        level: how deep. Whether every vector of v1 is in an index is only looked at by a deep one.
        bases: ids of the bases that were chosen; empty: all.
        command_line: makes a command line.
    """
    names = {finding.name for finding in audit.findings}
    if v2.PENDING in names or audit.not_checked:
        return audit
    store = Store(path=found.path, root=found.tree.path, found=found, chosen=frozenset(bases))
    rescued = _rescue_plan(store) if names & _RESCUED else Plan()
    helped = _helped(rescued)
    findings = tuple(one for finding in audit.findings for one in _with_rescue(finding, rescued, helped, command_line))
    if v2.LEFTOVER in names:
        is_needed = bool(rescued.changes or helped)
        findings = _with_leftovers(findings, store, level, command_line, is_needed=is_needed)
    return replace(audit, findings=findings, opening=_opening(rescued, helped, command_line))


def _opening(plan: Plan, helped: Mapping[tuple[str, str | None], str | None], command_line: CommandLine) -> str:
    """Return how much a rescue brings back, for a person to read first; nothing where that is nothing."""
    of_bases = {base: command for (name, base), command in helped.items() if name in (v2.BASE_FAILED, v2.BASE_NO_INDEX)}
    folders = sum(action.action == "complete-folder" for action in plan.actions)
    counts = [format_count(len(of_bases), "base")] if of_bases else []
    if folders:
        counts.append(format_count(folders, "folder"))
    if not counts:
        return ""
    own = set(of_bases.values())
    # Where all that comes back needs the same word of the user's, the command has it.
    given = own.pop() if len(own) == 1 and not folders else None
    return tr(
        "{counts} can be brought back: {command}",
        counts=join_list(counts, tr(" and ")),
        command=given or command_line(("rescue",), ()),
    )


def _with_leftovers(
    findings: tuple[Finding, ...], store: Store, level: Level, command_line: CommandLine, *, is_needed: bool
) -> tuple[Finding, ...]:
    """Return findings that say what may become of v1's vector files, which a rescue may need."""
    collects = not is_needed and level >= Level.DEEP and _would_collect(store)
    repair = command_line(("gc",), ("--v1-leftovers",)) if collects else None

    def told(one: Finding) -> Finding:
        parts = [one.message, *([_CLEANED_UP] if is_needed else [])]
        return replace(one, repair=repair, message=join_list(parts, between=tr("; ")))

    return tuple(told(one) if one.name == v2.LEFTOVER else one for one in findings)


def _rescue_plan(store: Store) -> Plan:
    """Return what a rescue would do; nothing where none can be planned."""
    if store.found.kind is not Kind.V2_PROFILE:
        return Plan()
    with ExitStack() as keep:
        try:
            return rescue.plan(store, rescue.RescueOptions(0, keep))
        except (RegraftError, OSError, apsw.Error, UnicodeDecodeError):
            return Plan()


def _would_collect(store: Store) -> bool:
    """Tell whether ``gc`` would remove every vector file that v1 left."""
    try:
        planned = gc.plan(store, GcOptions(now_ms=0, v1_leftovers=True))
    except (RegraftError, OSError, apsw.Error, UnicodeDecodeError):
        return False
    return (v2.LEFTOVER, None) in planned.resolves


def _helped(plan: Plan) -> dict[tuple[str, str | None], str | None]:
    """Return the findings that a rescue mends, with the command line where it needs a word of the user's."""
    helped: dict[tuple[str, str | None], str | None] = dict.fromkeys(plan.resolves)
    for left in plan.left:
        if left.finding in _RESCUED and left.repair is not None:
            helped[left.finding, left.base] = left.repair
    for action in plan.actions:
        if action.action == "complete-folder":
            helped.setdefault((v2.ITEM_TOMBSTONE, action.base), None)
    return {key: command for key, command in helped.items() if key[0] in _RESCUED}


def _with_rescue(
    finding: Finding, plan: Plan, helped: dict[tuple[str, str | None], str | None], command_line: CommandLine
) -> Iterator[Finding]:
    """Yield a finding as it is with what a rescue would do about it: what comes back, and what does not."""
    key = finding.name, finding.base
    if finding.name not in _RESCUED:
        yield finding
        return
    if key not in helped:
        yield _without_rescue(finding, plan)
        return
    back = _folders_back(finding, plan)
    came = replace(
        finding,
        severity=finding.severity if finding.name == v2.ITEM_NO_MATERIAL else "error",
        message=tr("{message_}; v1's vector file still has its rows", message_=finding.message),
        repair=helped[key] or command_line(("rescue",), ("--base", str(finding.base))),
    )
    if back is None or len(back) == finding.count:
        yield came
        return
    yield _of_some(came, back, len(back))
    others = [one for one in finding.samples if one not in back]
    yield _without_rescue(_of_some(finding, others, finding.count - len(back)), plan)


def _of_some(finding: Finding, folders: list[str], count: int) -> Finding:
    """Return a finding about several folders as one about some of them."""
    message = finding.message.replace(format_count(finding.count, "folder"), format_count(count, "folder"), 1)
    subject = folders[0] if count == len(folders) == 1 else None
    return replace(finding, message=message, subject=subject, count=count, samples=tuple(folders[:SAMPLES]))


def _folders_back(finding: Finding, plan: Plan) -> list[str] | None:
    """Return the ids of the folders of a base that come back; None where that is not what a finding is about."""
    if finding.name != v2.ITEM_TOMBSTONE:
        return None
    back = [one.subject for one in plan.actions if one.action == "complete-folder" and one.base == finding.base]
    return [one for one in back if one is not None] or None


def _without_rescue(finding: Finding, plan: Plan) -> Finding:
    """Return a finding that a rescue does not mend, with the reason; what v1 itself never had is no loss."""
    reasons = [one for one in plan.left if (one.finding, one.base) == (finding.name, finding.base)]
    if finding.name == v2.ITEM_NO_MATERIAL:
        return _never_there(finding, plan, reasons)
    if not reasons:
        return finding
    return replace(finding, message=tr("{what}: {why}", what=finding.message, why=reasons[0].reason))


def _never_there(finding: Finding, plan: Plan, reasons: list[Unresolved]) -> Finding:
    """Return a finding of items without a text: a note where v1 had none of it either."""
    if any(one.count == finding.count and one.severity == "note" for one in reasons):
        return replace(
            finding, severity="note", message=tr("{message_}: v1 has no rows of it either", message_=finding.message)
        )
    if any(one.action == "write-index" and one.base == finding.base for one in plan.actions):
        return replace(
            finding, message=tr("{message_}; regraft rescue brings some of it back", message_=finding.message)
        )
    return finding
