"""Which command brings back what a base lacks: from another copy first, then by embedding, then by salvage.

Rules: ``docs/repair-from.md``, "What is recommended".
"""

from __future__ import annotations

import shlex
from pathlib import Path

from checks.audit.findings import Audit, Finding
from checks.cherry_v2 import findings as v2
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
    # A source gives texts and vectors to completed bases alone.
    others = {one.base for one in audit.findings if one.name in (v2.BASE_FAILED, v2.INDEX_ORPHAN)}
    meant = (one.base not in others and _is_meant(one) for one in audit.findings)
    findings = (
        _with_copy(one, path, source, is_whole=found.stores.is_whole) if is_meant else one
        for one, is_meant in zip(audit.findings, meant, strict=True)
    )
    return replace(audit, findings=tuple(findings))


def _is_meant(finding: Finding) -> bool:
    """Whether another copy may have what a finding is about, and no other command has to come first."""
    is_grave = notices.at_least(finding.severity, "warning") and not finding.is_beyond_repair
    words = [] if finding.repair is None else shlex.split(finding.repair)
    is_first = not words or words[1] == "backfill" or "--salvage" in words
    if finding.name == v2.NO_UNITS:
        # The text is there: cutting it loses nothing.
        return False
    has_lost_tables = finding.name == v2.SCHEMA_MISSING and not words
    return (finding.name in LACKING or has_lost_tables) and finding.base is not None and is_grave and is_first


def _with_copy(finding: Finding, path: Path, source: str | None, *, is_whole: bool) -> Finding:
    base = ("--base", str(finding.base)) if is_whole else ()
    line = shlex.join(["regraft", "repair", argument(path), "--from", source or "SOURCE", *base])
    if source is None:
        message = tr("{what}; where another copy of the data has it: {command}", what=finding.message, command=line)
        return replace(finding, message=message)
    message = finding.message
    if finding.repair is not None:
        message = tr("{what}; without that copy: {command}", what=message, command=finding.repair)
    return replace(finding, message=message, repair=line)
