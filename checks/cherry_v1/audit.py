"""Audit a v1 source: turn the plan of its migration into findings.

Each code of a plan (``docs/codes.md``) names its finding. Two problems that a plan does not report are added: too
little disk space, and an unreadable vector file of a base without a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from checks.audit.findings import Audit, BaseStatistics, Finding, Statistics
from checks.cherry_v1 import findings as v1
from regraft.language import tr
from regraft.report import notices
from regraft.report.migration import BaseReport, BaseSurvey, SourcePlan, WarningReport
from regraft.report.notices import CODES
from regraft.text import format_bytes, join_command

#: Codes about a base whose subject is its vector file.
_ABOUT_THE_FILE = {notices.MISSING_STORE, notices.DEGENERATE, notices.DIFFERING_VECTOR, notices.DEDUPLICATED}
#: Codes about rows whose text ``--carry-text`` migrates. For a base without a model, its vectors are worth more.
_HAS_TEXT = {
    notices.MISSING_STORE,
    notices.MISSING_PAYLOAD,
    notices.UNSUPPORTED_ENCODING,
    notices.DIMENSION_MISMATCH,
    notices.NON_FINITE,
}


def audit_plan(plan: SourcePlan, command: Sequence[str]) -> Audit:
    """Turn the plan of a migration into findings.

    The count of duplicate chunks of a base is left out, because each of its items has its own.

    Args:
        plan: the result of ``migrators.plan_only`` for the source.
        command: the words of the command that migrates it, with the options of the plan.
    """
    bases = plan.report.bases
    reported = [warning for warning in plan.report.warnings if warning.code != notices.DEDUPLICATED]
    found = [_finding(warning, plan.looked_at.get(warning.base or ""), command) for warning in reported]
    found += [*_unread_vector_files(plan), *_no_room(plan)]
    return Audit(
        findings=tuple(found),
        checked=_counts(plan),
        names={base.source_id: base.name for base in bases},
        closing=_format_closing(found, plan, command),
        statistics=Statistics(bases=[_statistics(base, plan.looked_at[base.source_id]) for base in bases]),
    )


def _counts(plan: SourcePlan) -> dict[str, int]:
    """Count what the plan looked at."""
    looked_at = plan.looked_at.values()
    skipped = sum(count for reason, count in plan.report.skipped.items() if CODES[reason].subject == "base")
    read = [one for one in looked_at if one.is_read]
    return {
        "bases": len(looked_at) + skipped,
        "items": sum(one.items for one in looked_at),
        "rows": plan.report.totals.rows.read,
        "uploads": sum(one.uploads for one in looked_at),
        "vector_files": len(read),
        "bytes": sum(one.bytes for one in read),
    }


def _statistics(base: BaseReport, store: BaseSurvey) -> BaseStatistics:
    """Return where the rows of a base would go; None if they cannot be read."""
    is_known = store.is_read or base.status == "completed"
    return BaseStatistics(id=base.source_id, name=base.name, rows=base.rows if is_known else None)


def _finding(warning: WarningReport, store: BaseSurvey | None, command: Sequence[str]) -> Finding:
    """Convert a warning of the plan to a finding; ``store`` is the vector file of its base, if it is about one."""
    code = CODES[warning.code]
    name = code.finding
    subject = warning.item
    if store is not None:
        if code.name == notices.MISSING_STORE:
            name = _store_problem(store)
        if subject is None and (code.subject == "row" or code.name in _ABOUT_THE_FILE):
            subject = store.vector_file
    return Finding(
        name=name,
        severity=code.severity,
        message=warning.message,
        base=warning.base,
        subject=subject,
        count=warning.count,
        samples=warning.samples,
        repair=_repair(warning, store, command),
    )


def _store_problem(store: BaseSurvey) -> str:
    """Return the finding for a vector file without usable vectors."""
    is_empty = store.kind is None or (store.kind == "file" and store.bytes == 0)
    return v1.NO_VECTORS if is_empty or store.is_read else v1.UNREADABLE


def _repair(warning: WarningReport, store: BaseSurvey | None, command: Sequence[str]) -> str | None:
    """Return the command that migrates what would be left behind, or None.

    That is: a vector file that no base names, rows of a damaged file, a base whose model is gone, or texts without a
    usable vector.
    """
    if warning.code in (notices.LOST_STATE, notices.UNNAMED_VECTORS):
        return join_command([*command, "--adopt-orphans"])
    if store is not None and warning.code == notices.MISSING_STORE and store.salvageable:
        return join_command([*command, "--salvage"])
    if store is None or not store.is_read:
        return None
    if warning.model is not None:
        return join_command([*command, "--recreate-model", warning.model])
    # Samples name rows, so there are rows with a text.
    if warning.code in _HAS_TEXT and warning.samples:
        return join_command([*command, "--carry-text"])
    return None


def _unread_vector_files(plan: SourcePlan) -> Iterator[Finding]:
    """Yield findings for vector files that cannot be read and whose base has no model: the plan skips them."""
    for base in plan.report.bases:
        store = plan.looked_at[base.source_id]
        if base.error == notices.MISSING_MODEL and not store.is_read:
            name = _store_problem(store)
            why = tr("cannot be read") if name == v1.UNREADABLE else tr("is missing or empty")
            message = tr(
                "its vector file {vector_file} {why}; knowing its model will not help",
                vector_file=store.vector_file,
                why=why,
            )
            yield Finding(name=name, severity="error", message=message, base=base.source_id, subject=store.vector_file)


def _no_room(plan: SourcePlan) -> Iterator[Finding]:
    """Yield a finding if the disk has no room for the migrated library."""
    needed, free, source = plan.room.bytes_needed, plan.room.bytes_free, plan.report.head.source
    if needed > free and source is not None:
        message = tr(
            "the library takes about {needed} and {free} are free beside the source; choose a "
            "folder on another disk for --to",
            needed=format_bytes(needed),
            free=format_bytes(free),
        )
        yield Finding(name=v1.DISK_SPACE, severity="error", message=message, subject=source.path)


def _format_closing(found: Sequence[Finding], plan: SourcePlan, command: Sequence[str]) -> str:
    """Format the last line of the report: whether to migrate now, and the command for it."""
    typed = join_command(command)
    if not plan.looked_at:
        return tr("There is nothing to migrate.")
    if any(finding.name == v1.RUNNING for finding in found):
        return tr("Quit the application, then: {typed}", typed=typed)
    if not any(finding.severity == "error" for finding in found):
        return tr("Ready: {typed}", typed=typed)
    return tr("Fix the errors first, or migrate what can be migrated: {typed}", typed=typed)
