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
    """Convert the plan of a migration to findings.

    The number of duplicate chunks of a base is left out, because each of its items has its own finding.

    Args:
        plan: the result of ``migrators.plan_only`` for the source.
        command: the words of the command that migrates the source, with the options of the plan.
    """
    bases = plan.report.bases
    reported = [warning for warning in plan.report.warnings if warning.code != notices.DEDUPLICATED]
    found = [_convert_warning(warning, plan.looked_at.get(warning.base or ""), command) for warning in reported]
    found += _find_unread_vector_files(plan)
    needed, free, source = plan.room.bytes_needed, plan.room.bytes_free, plan.report.head.source
    if needed > free and source is not None:
        message = tr(
            "the library takes about {needed} and {free} are free beside the source; choose a "
            "folder on another disk for --to",
            needed=format_bytes(needed),
            free=format_bytes(free),
        )
        found.append(Finding(name=v1.DISK_SPACE, severity="error", message=message, subject=source.path))
    return Audit(
        findings=tuple(found),
        checked=_count_contents(plan),
        names={base.source_id: base.name for base in bases},
        closing=_format_closing(found, plan, command),
        statistics=Statistics(bases=[_statistics(base, plan.looked_at[base.source_id]) for base in bases]),
    )


def _count_contents(plan: SourcePlan) -> dict[str, int]:
    """Count the bases, items, rows, uploads, files and bytes that the plan of a migration looked at."""
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


def _statistics(base: BaseReport, survey: BaseSurvey) -> BaseStatistics:
    """Return how many rows of a base would be migrated or skipped; no numbers if its vector file cannot be read."""
    is_known = survey.is_read or base.status == "completed"
    return BaseStatistics(id=base.source_id, name=base.name, rows=base.rows if is_known else None)


def _convert_warning(warning: WarningReport, survey: BaseSurvey | None, command: Sequence[str]) -> Finding:
    """Convert a warning of the plan to a finding.

    Args:
        warning: the warning.
        survey: the vector file of the base that the warning is about, or None.
        command: the words of the command that migrates the source.
    """
    code = CODES[warning.code]
    name = code.finding
    subject = warning.item
    if survey is not None:
        if code.name == notices.MISSING_STORE:
            name = _store_problem(survey)
        if subject is None and (code.subject == "row" or code.name in _ABOUT_THE_FILE):
            subject = survey.vector_file
    return Finding(
        name=name,
        severity=code.severity,
        message=warning.message,
        base=warning.base,
        subject=subject,
        count=warning.count,
        samples=warning.samples,
        repair=_choose_command(warning, survey, command),
    )


def _store_problem(survey: BaseSurvey) -> str:
    """Return the name of the finding for a vector file without usable vectors."""
    is_empty = survey.kind is None or (survey.kind == "file" and survey.bytes == 0)
    return v1.NO_VECTORS if is_empty or survey.is_read else v1.UNREADABLE


def _choose_command(warning: WarningReport, survey: BaseSurvey | None, command: Sequence[str]) -> str | None:
    """Return the command line that migrates the data of a warning that a migration would otherwise skip, or None.

    Such data are a vector file that no base names, rows of a damaged file, a base whose model is gone, and texts
    without a usable vector.

    Args:
        warning: the warning.
        survey: the vector file of the base that the warning is about, or None.
        command: the words of the command that migrates the source.
    """
    if warning.code in (notices.LOST_STATE, notices.UNNAMED_VECTORS):
        return join_command([*command, "--adopt-orphans"])
    if survey is not None and warning.code == notices.MISSING_STORE and survey.salvageable:
        return join_command([*command, "--salvage"])
    if survey is None or not survey.is_read:
        return None
    if warning.model is not None:
        return join_command([*command, "--recreate-model", warning.model])
    # Samples name rows, so there are rows with a text.
    if warning.code in _HAS_TEXT and warning.samples:
        return join_command([*command, "--carry-text"])
    return None


def _find_unread_vector_files(plan: SourcePlan) -> Iterator[Finding]:
    """Yield findings for unreadable vector files of bases without a model, which the plan does not report."""
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


def _format_closing(findings: Sequence[Finding], plan: SourcePlan, command: Sequence[str]) -> str:
    """Format the last line of the report: whether to migrate now, and the command line of ``command`` for it."""
    typed = join_command(command)
    if not plan.looked_at:
        return tr("There is nothing to migrate.")
    if any(finding.name == v1.RUNNING for finding in findings):
        return tr("Quit the application, then: {typed}", typed=typed)
    if not any(finding.severity == "error" for finding in findings):
        return tr("Ready: {typed}", typed=typed)
    return tr("Fix the errors first, or migrate what can be migrated: {typed}", typed=typed)
