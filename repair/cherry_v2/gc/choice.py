"""Which garbage is removed, and how what is not removed is said."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from checks.audit.findings import FINDINGS, Finding
from checks.cherry_v2 import findings as v2
from regraft.language import joined, tr
from regraft.text import argument
from repair.changes.plan import Unresolved
from repair.changes.store import Store
from repair.options import GcOptions

#: Findings whose rows or files are removed. Those of BY_NAME could be listed or attached again: they go only where the
#: user names them.
NAMES = (
    *(v2.BODY_ORPHAN, v2.VECTOR_ORPHAN, v2.CONTENT_ORPHAN, v2.RAW_ORPHAN, v2.INDEX_ORPHAN),
    *(v2.VECTOR_UNEXPECTED, v2.LEFTOVER),
)
BY_NAME = {v2.VECTOR_UNEXPECTED, v2.LEFTOVER}
#: Of these, what has another copy goes without being named.
UNLESS_COPIED = {v2.RAW_ORPHAN, v2.INDEX_ORPHAN}


#: What a stranger's schema has that says nothing of rows: it never runs.
_BESIDE_ROWS = {v2.FOREIGN_TRIGGER, v2.FOREIGN_VIEW, v2.FOREIGN_INDEX}


def is_wanted(options: GcOptions, finding: str) -> bool:
    """Tell whether what a finding is about is to be removed."""
    if finding == v2.LEFTOVER and options.v1_leftovers:
        return True
    return finding in options.only if finding in BY_NAME else options.wants(finding)


def is_damage(finding: Finding) -> bool:
    """Tell whether a finding says that a file is damaged, so that nobody can tell what is reached in it."""
    return finding.name.startswith(("file.", "schema.")) and finding.name not in _BESIDE_ROWS


def left_damaged(finding: Finding) -> Unresolved:
    """Return what is left of a base that is damaged: all of it."""
    reason = tr(
        "what is reached cannot be told, so that nothing of this base is removed: {message_}", message_=finding.message
    )
    return Unresolved(
        finding=finding.name, reason=reason, base=finding.base, severity=finding.severity, repair=finding.repair
    )


def left_for_repair(store: Store, finding: Finding, lacking: Sequence[str]) -> Unresolved:
    """Return what is left because it may be what other findings lack."""
    command = None
    if any(FINDINGS[name].command[:1] == ("repair",) for name in lacking):
        command = shlex.join(["regraft", "repair", argument(store.path), "--base", str(finding.base)])
    reason = tr(
        "{message_}, and it may be what {lacking} lacks: mend that first",
        message_=finding.message,
        lacking=joined(lacking),
    )
    return Unresolved(finding=finding.name, reason=reason, base=finding.base, count=finding.count, repair=command)
