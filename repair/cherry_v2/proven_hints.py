"""Hints of an audit that hang on what v1's files still have: only what a plan would bring back is promised.

``regraft check`` says of a folder or base that the upgrade left behind whether ``regraft rescue`` brings it back, and
of v1's vector files whether ``regraft gc`` would remove them (``docs/findings.md``, "v2 data"). Nothing is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack

import apsw

from checks.audit.collector import Level
from checks.audit.findings import SAMPLES, Audit, Finding
from checks.audit.options import CommandLine
from checks.cherry_v2 import findings as v2
from regraft.errors import RegraftError
from regraft.kinds import Kind
from regraft.language import joined, tr
from regraft.locate import Located
from regraft.records import replace
from regraft.text import counted
from repair.changes.plan import Plan, Unresolved
from repair.changes.store import Store
from repair.cherry_v2 import gc, rescue
from repair.options import GcOptions

#: What v1's vector files can bring back.
_RESCUED = frozenset({v2.BASE_FAILED, v2.BASE_NO_INDEX, v2.ITEM_NO_MATERIAL, v2.ITEM_TOMBSTONE})
_CLEANED_UP = tr(
    "regraft rescue needs them; the application's own clean-up of old data deletes these "
    "files, of failed bases, too: rescue first"
)


def with_hints(audit: Audit, found: Located, level: Level, bases: Collection[str], command_line: CommandLine) -> Audit:
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
    counts = [counted(len(of_bases), "base")] if of_bases else []
    if folders:
        counts.append(counted(folders, "folder"))
    if not counts:
        return ""
    own = set(of_bases.values())
    # Where all that comes back needs the same word of the user's, the command has it.
    given = own.pop() if len(own) == 1 and not folders else None
    return tr(
        "{counts} can be brought back: {command}",
        counts=joined(counts, tr(" and ")),
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
        return replace(one, repair=repair, message=joined(parts, between=tr("; ")))

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
    message = finding.message.replace(counted(finding.count, "folder"), counted(count, "folder"), 1)
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
