"""The audit of a source before it is migrated: what a plan without a target says, as findings.

Every code that a plan can say (``docs/codes.md``) names the finding that it is. What a plan does not
say, the room on the disk and the vector file of a base without a model, is added here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from checks.audit.findings import Audit, BaseStatistics, Finding, Statistics
from checks.cherry_v1 import findings as v1
from regraft.language import tr
from regraft.report import notices
from regraft.report.migration import BaseReport, BaseSurvey, SourcePlan, WarningReport
from regraft.report.notices import CODES
from regraft.text import format_bytes

#: Codes about a base that speak of its vector file.
_ABOUT_THE_FILE = {notices.MISSING_STORE, notices.DEGENERATE, notices.DIFFERING_VECTOR, notices.DEDUPLICATED}
#: Codes about rows whose text ``--carry-text`` carries. Of a base without a model its vectors are worth more.
_HAS_TEXT = {
    notices.MISSING_STORE,
    notices.MISSING_PAYLOAD,
    notices.UNSUPPORTED_ENCODING,
    notices.DIMENSION_MISMATCH,
    notices.NON_FINITE,
}

# --- the audit -----------------------------------------------------------------------------------------------------


def audit_plan(plan: SourcePlan, command: Sequence[str]) -> Audit:
    """Turn a plan into findings.

    A base's sum of chunks that v1 left out is none: every item of them says its own.

    Args:
        plan: what ``migrators.plan_only`` gives of the source.
        command: the words of the command that migrates it, with the options that the plan was made with.
    """
    bases = plan.report.bases
    told = [warning for warning in plan.report.warnings if warning.code != notices.DEDUPLICATED]
    found = [_finding(warning, plan.looked_at.get(warning.base or ""), command) for warning in told]
    found += [*_unseen_stores(plan), *_no_room(plan)]
    return Audit(
        findings=tuple(found),
        checked=_checked(plan),
        names={base.source_id: base.name for base in bases},
        closing=_closing(found, plan, command),
        statistics=Statistics(bases=[_statistics(base, plan.looked_at[base.source_id]) for base in bases]),
    )


def _checked(plan: SourcePlan) -> dict[str, int]:
    """Return how much of what the plan looked at."""
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
    """Return where the rows of a base would go; None where nobody could read them."""
    is_known = store.is_read or base.status == "completed"
    return BaseStatistics(id=base.source_id, name=base.name, rows=base.rows if is_known else None)


def _finding(warning: WarningReport, store: BaseSurvey | None, command: Sequence[str]) -> Finding:
    """Return what a warning of the plan is; ``store`` is what was looked at of its base, if it is about one."""
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
    """Return what is wrong with a vector file of which no vector can be carried."""
    is_empty = store.kind is None or (store.kind == "file" and store.bytes == 0)
    return v1.NO_VECTORS if is_empty or store.is_read else v1.UNREADABLE


def _repair(warning: WarningReport, store: BaseSurvey | None, command: Sequence[str]) -> str | None:
    """Return the command that carries what would else stay behind.

    That is a vector file that no base names, rows of a damaged one, a base whose model is gone, or texts whose vector
    cannot be carried.
    """
    if warning.code in (notices.LOST_STATE, notices.UNNAMED_VECTORS):
        return shlex.join([*command, "--adopt-orphans"])
    if store is not None and warning.code == notices.MISSING_STORE and store.salvageable:
        return shlex.join([*command, "--salvage"])
    if store is None or not store.is_read:
        return None
    if warning.model is not None:
        return shlex.join([*command, "--recreate-model", warning.model])
    # Samples are of rows: there are some.
    if warning.code in _HAS_TEXT and warning.samples:
        return shlex.join([*command, "--carry-text"])
    return None


def _unseen_stores(plan: SourcePlan) -> Iterator[Finding]:
    """Find the vector files that a plan says nothing of, as the base has no model that would need them."""
    for base in plan.report.bases:
        store = plan.looked_at[base.source_id]
        if base.error == notices.MISSING_MODEL and not store.is_read:
            name = _store_problem(store)
            why = tr("cannot be read") if name == v1.UNREADABLE else tr("is missing or empty")
            said = tr(
                "its vector file {vector_file} {why}; knowing its model will not help",
                vector_file=store.vector_file,
                why=why,
            )
            yield Finding(name=name, severity="error", message=said, base=base.source_id, subject=store.vector_file)


def _no_room(plan: SourcePlan) -> Iterator[Finding]:
    needed, free, source = plan.room.bytes_needed, plan.room.bytes_free, plan.report.head.source
    if needed > free and source is not None:
        said = tr(
            "the library takes about {needed} and {free} are free beside the source; choose a "
            "folder on another disk for --to",
            needed=format_bytes(needed),
            free=format_bytes(free),
        )
        yield Finding(name=v1.DISK_SPACE, severity="error", message=said, subject=source.path)


def _closing(found: Sequence[Finding], plan: SourcePlan, command: Sequence[str]) -> str:
    typed = shlex.join(command)
    if not plan.looked_at:
        return tr("There is nothing to migrate.")
    if any(finding.name == v1.RUNNING for finding in found):
        return tr("Quit the application, then: {typed}", typed=typed)
    if not any(finding.severity == "error" for finding in found):
        return tr("Ready: {typed}", typed=typed)
    return tr("Mend the errors first, or carry what can be carried: {typed}", typed=typed)
