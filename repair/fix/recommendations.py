"""Recommend commands for the findings of an audit of v2 data, and drop those that would do nothing.

A command is recommended only if its plan would resolve the finding. Otherwise the finding says why not. What can be
copied from another store is recommended before embedding, and embedding before salvage. For data that the upgrade from
v1 left behind, the finding says what ``regraft rescue`` would bring back (``docs/findings.md``;
``docs/repair-from.md``, "What is recommended").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import apsw

from checks.audit.collector import CommandLine, Level
from checks.audit.findings import SAMPLES, Audit, Finding
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.audit import recorded_losses, texts_without_vector
from regraft.errors import RegraftError
from regraft.identity import replace
from regraft.kinds import V2_STORES, Kind
from regraft.language import format_count, join_list, tr
from regraft.ledger.ledger import read_runs, suggested_source
from regraft.report import notices
from regraft.stores.systems import Located
from regraft.text import join_command, path_argument, split_command
from repair.changes.options import GcOptions, RepairOptions
from repair.changes.plan import FindingKey, Plan, Unresolved
from repair.changes.store import Store
from repair.cherry_v2 import gc, indexing, rescue, upgrade
from repair.cherry_v2.from_source import LACKING, has_lost_rows
from repair.cherry_v2.rules import planner

#: Options of ``repair`` that are planned separately.
_MODES = ("--salvage", "--adopt")
#: Findings that commands resolve only in some cases. A command is kept only if a plan resolves the finding.
_ONLY_IF_PLANNED = frozenset({v2.BASE_FAILED})


@dataclass(frozen=True)
class _AuditedStore(Store):
    """A store with the findings of an audit that was just made."""

    known: tuple[Finding, ...] = ()

    def findings(self, level: Level = Level.DEFAULT) -> list[Finding]:  # noqa: ARG002 - as deep as the audit was
        """Findings of the audit; the level is ignored."""
        return [one for one in self.known if self.wants(one.base)]


def remove_idle_commands(audit: Audit, source: Located, bases: Collection[str], now_ms: int) -> Audit:
    """Remove the recommended commands that would not resolve their findings.

    Args:
        audit: the audit of v2 data, whose findings have command lines.
        source: the audited store.
        bases: ids of the chosen bases; empty: all.
        now_ms: the time of a run, in ms.
    """
    store = _AuditedStore(
        path=source.path,
        root=source.tree.path,
        found=source,
        chosen=frozenset(bases),
        now_ms=now_ms,
        known=audit.findings,
    )
    offered: dict[str, set[str]] = defaultdict(set)
    for finding in audit.findings:
        verb, name = _offered_command(finding)
        offered[verb].add(name)
    plans = {verb: _plan_of_command(verb, store, frozenset(names), now_ms) for verb, names in offered.items()}
    plans["backfill"] = _plan_of_backfill(store, now_ms)
    return replace(audit, findings=tuple(_with_proven_command(finding, plans) for finding in audit.findings))


def _offered_command(finding: Finding) -> tuple[str, str]:
    """Return the command that a finding recommends, and the name of the finding that the command resolves.

    The command is a verb, or for ``repair`` an option such as "--salvage"; both are "" without a recommendation.
    """
    if finding.repair is None:
        return "", ""
    words = split_command(finding.repair)
    if "--model" in words:
        # The model is known only to the user.
        return "", ""
    name = words[words.index("--only") + 1] if "--only" in words else finding.name
    return next((mode for mode in _MODES if mode in words), words[1]), name


def _plan_of_command(verb: str, store: Store, names: frozenset[str], now_ms: int) -> Plan:
    """Plan a command, as :func:`_offered_command` names it, for the named findings; empty if it cannot be planned."""
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
                # Without --only: what is removed only by name must not be recommended.
                return gc.plan(store, GcOptions(now_ms=now_ms, expires=False))
            case "upgrade":
                return upgrade.plan(store, upgrade.UpgradeOptions(now_ms))
    except (RegraftError, OSError, apsw.Error, UnicodeDecodeError):
        pass
    return Plan()


def _plan_of_backfill(store: Store, now_ms: int) -> Plan:
    """Plan the missing indexes that ``backfill`` would build; empty if that cannot be planned."""
    bases = {str(one.base) for one in store.findings() if one.name == v2.BASE_NO_INDEX and one.repair is not None}
    if not bases:
        return Plan()
    try:
        return indexing.plan(store, now_ms, bases)
    except (RegraftError, OSError, apsw.Error, UnicodeDecodeError):
        # If the extra that reads documents is missing, the command reports it.
        return Plan()


def _with_proven_command(finding: Finding, plans: Mapping[str, Plan]) -> Finding:
    """Return the finding without its recommended command, or with another one, if the plan shows that it does not help.

    ``plans`` has the plan of each command, as :func:`_offered_command` names it.
    """
    verb, name = _offered_command(finding)
    # A plan lists folders without a base under the whole store.
    keys = {(name, finding.base), (name, None)}
    plan = plans[verb]
    left = [one for one in plan.left if (one.finding, one.base) in keys]
    if plan.touches(keys):
        # With --only, gc would also remove what it keeps by default.
        is_partial = verb == "gc" and bool(left)
        return replace(finding, repair=_without_only(finding.repair)) if is_partial else finding
    if not left:
        if verb == "gc":
            # gc removes it only by name.
            message = tr("{what}; gc deletes it only with --only {name}", what=finding.message, name=name)
            return replace(finding, repair=None, message=message)
        return replace(finding, repair=None) if name in _ONLY_IF_PLANNED else finding
    return replace(
        finding, repair=left[0].repair if verb == "gc" else None, message=_add_reason(finding.message, left[0].reason)
    )


def _add_reason(message: str, reason: str) -> str:
    """Combine a finding's message with the reason why no command helps, unless one already contains the other."""
    if reason.startswith(message):
        return reason
    return message if message in reason else tr("{what}: {why}", what=message, why=reason)


def _without_only(line: str | None) -> str:
    """Remove the ``--only`` option from a command line."""
    words = split_command(line or "")
    at = words.index("--only") if "--only" in words else len(words)
    return join_command(words[:at] + words[at + 2 :])


# --- another copy of the data ----------------------------------------------------------------------------------------

#: Commands that read all texts and vectors of a library from their source.
_SOURCE_COMMANDS = ("migrate", "import")


def recommend_copies(audit: Audit, store: Located, path: Path) -> Audit:
    """Recommend copying from another store before commands that cost money or lose data.

    Args:
        audit: of v2 data, with command lines.
        store: the audited store.
        path: the store, as the user named it.
    """
    if store.kind not in V2_STORES or store.stores.catalog is None:
        return audit
    if any(one.name == v2.UNREADABLE and one.base is None for one in audit.findings):
        return _with_catalog_advice(audit, store, path)
    _, lost_rows = recorded_losses(store.tree.path, store)
    without_vector = texts_without_vector(store.tree.path, store)
    if not any(_may_be_in_copy(one, lost_rows) for one in audit.findings):
        return audit
    source, synced = suggested_source(store.tree.path, _SOURCE_COMMANDS), _synced_texts(store.tree.path)
    # Texts and vectors are copied into completed bases only.
    others = {one.base for one in audit.findings if one.name in (v2.BASE_FAILED, v2.INDEX_ORPHAN)}

    def with_copy(finding: Finding) -> Finding:
        """Return the finding with the recommendation of a copy, if a copy may have what it lacks."""
        if finding.base in others or not _may_be_in_copy(finding, lost_rows, synced):
            return finding
        # The rows of these items could not be salvaged from the source itself.
        lacks_rows = finding.name in (v2.ITEM_NO_MATERIAL, v2.ITEM_NOT_INDEXED, v2.UNIT_MISSING)
        is_lost = lacks_rows and lost_rows.keys() >= set(finding.samples)
        # The source did not have these vectors.
        is_lost |= finding.name == v2.VECTOR_MISSING and finding.count <= without_vector.get(str(finding.base), 0)
        # Whether the source has the text of an item without a file is not certain.
        is_named = not is_lost and not finding.is_beyond_repair
        return _with_copy_command(finding, path, source if is_named else None, is_whole=store.stores.is_whole)

    return replace(audit, findings=tuple(map(with_copy, audit.findings)))


def _with_catalog_advice(audit: Audit, store: Located, path: Path) -> Audit:
    """Return the audit of a store whose catalog cannot be read, saying what brings the catalog back.

    A migration writes the catalog of its library again. Of the application's database, only a backup has the rows.
    ``path`` is the store, as the user named it.
    """
    is_library = store.kind is Kind.LIBRARY
    source = (suggested_source(store.tree.path, _SOURCE_COMMANDS[:1]) if is_library else None) or "SOURCE"
    command = join_command(["regraft", "migrate", source, "--to", path_argument(path)])

    def with_advice(finding: Finding) -> Finding:
        """Return the finding with the advice if it is about the catalog."""
        if finding.name != v2.UNREADABLE or finding.base is not None:
            return finding
        what = finding.message
        message = tr("{what}; restore the file from a backup", what=what)
        if is_library:
            message = tr(
                "{what}; to write it again, with the options of the migration: {command}", what=what, command=command
            )
        return replace(finding, message=message)

    return replace(audit, findings=tuple(map(with_advice, audit.findings)))


def _synced_texts(root: Path) -> set[FindingKey]:
    """Return the findings about texts that ``sync`` added to the library ``root`` after its migration.

    The source of the migration does not have these texts.
    """
    try:
        runs = read_runs(root)
    except (RegraftError, OSError):
        return set()
    synced: set[FindingKey] = set()
    for run in runs:
        if run.command in _SOURCE_COMMANDS:
            synced.clear()
        elif run.command == "sync":
            synced.update((v2.VECTOR_MISSING, action.base) for action in run.actions)
    return synced


def _may_be_in_copy(finding: Finding, lost_rows: Collection[str], synced: Collection[FindingKey] = ()) -> bool:
    """Whether another copy of the data may have what a finding lacks, and no other command has to run first.

    Args:
        finding: the finding.
        lost_rows: ids of items that lost rows in a salvage.
        synced: findings about texts that no copy can have.
    """
    if (finding.name, finding.base) in synced:
        return False
    has_lost = has_lost_rows(finding, lost_rows)
    # Of an item without a file, a copy may have the text.
    is_hopeless = finding.is_beyond_repair and finding.name != v2.ITEM_NO_MATERIAL and not has_lost
    is_grave = notices.is_at_least(finding.severity, "warning") and not is_hopeless
    words = [] if finding.repair is None else split_command(finding.repair)
    is_first = not words or words[1] == "backfill" or "--salvage" in words
    if finding.name == v2.NO_UNITS:
        # The text is in the index and only has to be split again.
        return False
    has_lost_tables = finding.name == v2.SCHEMA_MISSING and not words
    is_lacking = finding.name in LACKING or has_lost_tables or has_lost
    return is_lacking and finding.base is not None and is_grave and is_first


def _with_copy_command(finding: Finding, path: Path, source: str | None, *, is_whole: bool) -> Finding:
    """Return the finding with the recommendation of ``repair --from`` a copy of the data.

    Args:
        finding: what the data lacks.
        path: the store, as the user named it.
        source: the path of the copy; None: unknown, so the message only mentions the command.
        is_whole: whether the store has several bases, so that the command names one.
    """
    base = ("--base", str(finding.base)) if is_whole else ()
    line = join_command(["regraft", "repair", path_argument(path), "--from", source or "SOURCE", *base])
    if source is None:
        message = tr("{what}; if you have another copy of the data: {command}", what=finding.message, command=line)
        return replace(finding, message=message)
    message = finding.message
    if finding.repair is not None:
        message = tr("{what}; if that copy no longer exists: {command}", what=message, command=finding.repair)
    return replace(finding, message=message, repair=line)


# --- files of v1 -----------------------------------------------------------------------------------------------------

#: Findings that v1's vector files may resolve.
_RESCUABLE = frozenset({v2.BASE_FAILED, v2.BASE_NO_INDEX, v2.ITEM_NO_MATERIAL, v2.ITEM_TOMBSTONE})
_CLEANED_UP = tr(
    "regraft rescue needs them, so run it before the application's clean-up of old data, which deletes these files "
    "even for failed bases"
)


def add_rescue_hints(
    audit: Audit, source: Located, level: Level, bases: Collection[str], command_line: CommandLine
) -> Audit:
    """Add to an audit of v2 data what v1's files can still bring back, and whether these files can be deleted.

    Args:
        audit: with the commands for other findings.
        source: the audited store.
        level: of the audit. Only a deep audit checks whether every vector of v1 is in an index.
        bases: ids of the chosen bases; empty: all.
        command_line: formats a command line.
    """
    names = {finding.name for finding in audit.findings}
    if v2.PENDING in names or audit.not_checked:
        return audit
    store = Store(path=source.path, root=source.tree.path, found=source, chosen=frozenset(bases))
    rescued = _rescue_plan(store) if names & _RESCUABLE else Plan()
    resolved = _resolved_by_rescue(rescued)
    findings = tuple(
        one for finding in audit.findings for one in _with_rescue(finding, rescued, resolved, command_line)
    )
    if v2.LEFTOVER in names:
        is_needed = bool(rescued.changes or resolved)
        findings = _with_leftovers(findings, store, level, command_line, is_needed=is_needed)
    return replace(audit, findings=findings, opening=_summarize_rescue(rescued, resolved, command_line))


def _summarize_rescue(plan: Plan, resolved: Mapping[FindingKey, str | None], command_line: CommandLine) -> str:
    """Summarize what a rescue brings back, one line for each command that is needed; "" if it brings back nothing.

    ``plan`` is that of the rescue, ``resolved`` the findings that it resolves with their command line.
    """
    commands = [line for (name, _), line in resolved.items() if name in (v2.BASE_FAILED, v2.BASE_NO_INDEX)]
    salvaging = [line for line in commands if "--salvage" in split_command(line or "")]
    others = [line for line in commands if line not in salvaging]
    folders = sum(action.action == "complete-folder" for action in plan.actions)
    lines = (
        _format_rescue_line(others, folders, command_line(("rescue",), ())),
        _format_rescue_line(salvaging, 0, command_line(("rescue",), ("--salvage",))),
    )
    return "\n".join(filter(None, lines))


def _format_rescue_line(commands: Sequence[str | None], folders: int, of_all: str) -> str:
    """Format a line of the summary: how many bases and folders can be restored, and by which command.

    Args:
        commands: the command line of each base; None: the rescue needs no option for it.
        folders: the number of folders.
        of_all: the command that restores all of them.
    """
    counts = [format_count(len(commands), "base")] if commands else []
    if folders:
        counts.append(format_count(folders, "folder"))
    if not counts:
        return ""
    # If all bases need the same option, recommend the command with it.
    given = commands[0] if len(set(commands)) == 1 and not folders else None
    return tr("{counts} can be restored: {command}", counts=join_list(counts, tr(" and ")), command=given or of_all)


def _with_leftovers(
    findings: tuple[Finding, ...], store: Store, level: Level, command_line: CommandLine, *, is_needed: bool
) -> tuple[Finding, ...]:
    """Add to the findings about v1's vector files whether a rescue needs the files, or gc may delete them.

    ``is_needed``: whether a rescue can still restore something. Only a deep audit (``level``) recommends gc.
    """
    collects = not is_needed and level >= Level.DEEP and _would_gc_remove_all(store)
    repair = command_line(("gc",), ("--v1-leftovers",)) if collects else None

    def with_hint(finding: Finding) -> Finding:
        """Return a finding about v1's vector files with the hint and the command."""
        parts = [finding.message, *([_CLEANED_UP] if is_needed else [])]
        return replace(finding, repair=repair, message=join_list(parts, between=tr("; ")))

    return tuple(with_hint(one) if one.name == v2.LEFTOVER else one for one in findings)


def _rescue_plan(store: Store) -> Plan:
    """Plan a rescue; empty if it cannot be planned."""
    if store.found.kind is not Kind.V2_PROFILE:
        return Plan()
    with ExitStack() as keep:
        try:
            return rescue.plan(store, rescue.RescueOptions(0, keep))
        except (RegraftError, OSError, apsw.Error, UnicodeDecodeError):
            return Plan()


def _would_gc_remove_all(store: Store) -> bool:
    """Whether ``gc`` would remove all vector files that v1 left behind."""
    try:
        planned = gc.plan(store, GcOptions(now_ms=0, v1_leftovers=True))
    except (RegraftError, OSError, apsw.Error, UnicodeDecodeError):
        return False
    return (v2.LEFTOVER, None) in planned.resolves


def _resolved_by_rescue(plan: Plan) -> dict[FindingKey, str | None]:
    """Map the findings that a planned rescue resolves to the command line if it needs an option, else None."""
    resolved: dict[FindingKey, str | None] = dict.fromkeys(plan.resolves)
    for left in plan.left:
        if left.finding in _RESCUABLE and left.repair is not None:
            resolved[left.finding, left.base] = left.repair
    for action in plan.actions:
        if action.action == "complete-folder":
            resolved.setdefault((v2.ITEM_TOMBSTONE, action.base), None)
    return {key: command for key, command in resolved.items() if key[0] in _RESCUABLE}


def _with_rescue(
    finding: Finding, plan: Plan, resolved: dict[FindingKey, str | None], command_line: CommandLine
) -> Iterator[Finding]:
    """Yield a finding in up to two parts: what the planned rescue restores, and what remains.

    ``resolved`` are the findings that the rescue resolves, each with its command line if it needs an option.
    """
    key = finding.name, finding.base
    if finding.name not in _RESCUABLE:
        yield finding
        return
    if key not in resolved:
        yield _without_rescue(finding, plan)
        return
    back = _restored_folders(finding, plan)
    line = resolved[key] or command_line(("rescue",), ("--base", str(finding.base)))
    message = tr("{what}; the rows are still in v1's vector file", what=finding.message)
    if "--salvage" in split_command(line):
        # The reason says how much of the file can be read.
        message = _without_rescue(finding, plan).message
    came = replace(
        finding,
        severity=finding.severity if finding.name == v2.ITEM_NO_MATERIAL else "error",
        message=message,
        repair=line,
    )
    if back is None or len(back) == finding.count:
        yield came
        return
    yield _reduce_to(came, back, len(back))
    others = [one for one in finding.samples if one not in back]
    yield _without_rescue(_reduce_to(finding, others, finding.count - len(back)), plan)


def _reduce_to(finding: Finding, folders: list[str], count: int) -> Finding:
    """Reduce a finding about several folders to ``count`` folders; ``folders`` are the ids of some or all of them."""
    message = finding.message.replace(format_count(finding.count, "folder"), format_count(count, "folder"), 1)
    subject = folders[0] if count == len(folders) == 1 else None
    return replace(finding, message=message, subject=subject, count=count, samples=tuple(folders[:SAMPLES]))


def _restored_folders(finding: Finding, plan: Plan) -> list[str] | None:
    """Return ids of the folders that a planned rescue restores for a finding.

    None if it restores none, or if the finding is not about folders.
    """
    if finding.name != v2.ITEM_TOMBSTONE:
        return None
    back = [one.subject for one in plan.actions if one.action == "complete-folder" and one.base == finding.base]
    return [one for one in back if one is not None] or None


def _without_rescue(finding: Finding, plan: Plan) -> Finding:
    """Add to a finding the reason why the planned rescue does not resolve it. Text that v1 never had is not a loss."""
    reasons = [one for one in plan.left if (one.finding, one.base) == (finding.name, finding.base)]
    if finding.name == v2.ITEM_NO_MATERIAL:
        return _explain_missing_text(finding, plan, reasons)
    if not reasons:
        return finding
    return replace(finding, message=tr("{what}: {why}", what=finding.message, why=reasons[0].reason))


def _explain_missing_text(finding: Finding, plan: Plan, reasons: list[Unresolved]) -> Finding:
    """Add to a finding about items without text what a rescue would do about it.

    Its severity is "note" if v1 has no rows for any of the items either: ``reasons`` has a note with the same count.
    Otherwise its message names ``regraft rescue`` if the plan writes the base's index, or the finding is unchanged.

    Args:
        finding: the finding.
        plan: the planned rescue.
        reasons: what the rescue leaves unresolved of this finding.
    """
    if any(one.count == finding.count and one.severity == "note" for one in reasons):
        return replace(
            finding, severity="note", message=tr("{what}; v1 has no rows for it either", what=finding.message)
        )
    if any(one.action == "write-index" and one.base == finding.base for one in plan.actions):
        return replace(finding, message=tr("{what}; regraft rescue can restore part of it", what=finding.message))
    return finding
