"""Which command brings back what a base lacks: from another copy first, then by embedding, then by salvage.

Rules: ``docs/repair-from.md``, "What is recommended".
"""

from __future__ import annotations

import shlex
from pathlib import Path

from checks.audit.findings import Audit, Finding
from regraft.kinds import V2_STORES
from regraft.language import tr
from regraft.ledger.sources import suggested_source
from regraft.located import Located
from regraft.records import replace
from regraft.report import notices
from regraft.text import argument
from repair.cherry_v2.from_source.base import LACKING

#: Commands whose source has all texts and vectors of the library that they wrote.
_MAKERS = ("migrate", "import")


def with_copies(audit: Audit, found: Located, path: Path) -> Audit:
    """Return an audit whose findings recommend another copy of the data before anything that costs or loses.

    Args:
        audit: of v2 data, with command lines.
        found: what was audited.
        path: the store, as the user named it.
    """
    if found.kind not in V2_STORES or found.stores.catalog is None or not any(map(_is_meant, audit.findings)):
        return audit
    source = suggested_source(found.tree.path, _MAKERS)
    is_whole = found.stores.is_whole
    return replace(audit, findings=tuple(_with_copy(one, path, source, is_whole) for one in audit.findings))


def _is_meant(finding: Finding) -> bool:
    is_grave = notices.at_least(finding.severity, "warning")
    return finding.name in LACKING and finding.base is not None and is_grave and not finding.is_beyond_repair


def _with_copy(finding: Finding, path: Path, source: str | None, is_whole: bool) -> Finding:
    if not _is_meant(finding):
        return finding
    base = ("--base", str(finding.base)) if is_whole else ()
    line = shlex.join(["regraft", "repair", argument(path), "--from", source or "SOURCE", *base])
    if source is None:
        message = tr("{what}; where another copy of the data has it: {command}", what=finding.message, command=line)
        return replace(finding, message=message)
    message = finding.message
    if finding.repair is not None:
        message = tr("{what}; without that copy: {command}", what=message, command=finding.repair)
    return replace(finding, message=message, repair=line)
