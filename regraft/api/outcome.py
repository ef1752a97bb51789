"""How a command ended: the exit status that its report gives, and the error that an exception is reported as."""

from __future__ import annotations

import os

from regraft.errors import REFUSED, STOPPED, FaultOfRegraft, Interrupted, RegraftError, StoppedBySystem
from regraft.language import tr
from regraft.options import FailOn
from regraft.processes import interrupts
from regraft.report.document import Report
from regraft.report.migration import MigrationReport
from regraft.report.notices import EVERY_CODE, Severity, is_at_least
from regraft.text import printable


def exit_status(report: Report, fail_on: FailOn = "warning") -> int:
    """Return 1 if a report has a finding, a notice or an unresolved finding of severity ``fail_on`` or above, else 0.

    Failed bases, failed texts and checks that did not finish give 1 as well, unless ``fail_on`` is "never".
    """
    if fail_on == "never":
        return 0
    return int(_is_incomplete(report) or any(is_at_least(severity, fail_on) for severity in _severities(report)))


def _is_incomplete(report: Report) -> bool:
    """Whether a base, text or check was left out, so that the exit status is 1."""
    bases = getattr(report, "bases", ())
    scopes = getattr(report, "scopes", ())
    if isinstance(report, MigrationReport):
        return any(base.status == "failed" for base in report.bases)
    # An import to a library has the report of a migration.
    if report.head.regraft.command in ("export", "import"):
        return any(base.problem or base.rows.skipped for base in bases)
    return any(scope.failures for scope in scopes) or bool(getattr(report, "not_checked", None))


def _severities(report: Report) -> list[Severity]:
    """Return the severities of all findings, notices and unresolved findings of a report."""
    if isinstance(report, MigrationReport):
        installed = getattr(report, "install", None)
        left = [] if installed is None else [one.severity for one in installed.left]
        return [*(EVERY_CODE[warning.code].severity for warning in report.warnings), *left]
    return [one.severity for name in ("findings", "left") for one in getattr(report, name, ())]


def as_regraft_error(error: BaseException) -> RegraftError:
    """Convert any exception to a RegraftError to report; an error that Ctrl-C caused becomes Interrupted."""
    if isinstance(error, RegraftError) and error.exit_status not in (REFUSED, STOPPED):
        return error
    if interrupts.is_caused_by_stop(error):
        return Interrupted(finished=getattr(error, "facts", {}).get("finished", 0))
    if isinstance(error, RegraftError):
        return error
    from regraft.disk import sqlite  # noqa: PLC0415 - needed for an error only

    if isinstance(error, (OSError, *sqlite.SYSTEM_ERRORS)):
        reason = getattr(error, "strerror", None) or error
        name = getattr(error, "filename", None) if reason is not error else None
        if isinstance(name, str | bytes):
            reason = tr("{path}: {reason}", path=printable(os.fsdecode(name)), reason=reason)
        return StoppedBySystem(reason=reason)
    return FaultOfRegraft(kind=type(error).__name__, reason=error)
