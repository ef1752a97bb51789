"""The exit status of the command that made a report."""

from __future__ import annotations

from typing import Literal

from regraft.report.document import Report
from regraft.report.migration import MigrationReport
from regraft.report.notices import EVERY_CODE, Severity, is_at_least

FailOn = Literal["error", "warning", "note", "never"]


def exit_status(report: Report, fail_on: FailOn = "warning") -> int:
    """Return 1 if a report has a finding, a notice or an unresolved finding of severity ``fail_on`` or above, else 0.

    Failed bases, failed texts and checks that did not finish give 1 as well, unless ``fail_on`` is "never".
    """
    if fail_on == "never":
        return 0
    return int(_is_incomplete(report) or any(is_at_least(severity, fail_on) for severity in _severities(report)))


def _is_incomplete(report: Report) -> bool:
    bases = getattr(report, "bases", ())
    scopes = getattr(report, "scopes", ())
    if isinstance(report, MigrationReport):
        return any(base.status == "failed" for base in report.bases)
    if report.head.regraft.command == "export":
        return any(base.problem or base.rows.skipped for base in bases)
    return any(scope.failures for scope in scopes) or bool(getattr(report, "not_checked", None))


def _severities(report: Report) -> list[Severity]:
    if isinstance(report, MigrationReport):
        return [EVERY_CODE[warning.code].severity for warning in report.warnings]
    return [one.severity for name in ("findings", "left") for one in getattr(report, name, ())]
