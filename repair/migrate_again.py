"""Bases of a library that another migration writes anew (``docs/upgrade.md``, "Stopping, going on, running again")."""

from __future__ import annotations

import shlex
from pathlib import Path

from checks.audit import file_findings
from checks.audit.findings import Audit, Finding
from checks.cherry_v2 import findings as v2
from regraft.errors import RegraftError
from regraft.kinds import Kind
from regraft.language import tr
from regraft.ledger import ledger
from regraft.located import Located
from regraft.records import replace
from regraft.text import argument

#: Where an index is damaged or gone, a migration writes it anew.
_WRITTEN_ANEW = frozenset({file_findings.UNREADABLE, file_findings.CORRUPT, v2.BASE_NO_INDEX})


def with_migrations(audit: Audit, found: Located, path: Path) -> Audit:
    """Return an audit whose findings give the migration that writes a damaged base anew, where nothing else helps.

    Args:
        audit: with command lines.
        found: what was audited.
        path: the library, as the user named it.
    """
    if found.kind is not Kind.LIBRARY or not any(_is_meant(finding) for finding in audit.findings):
        return audit
    source = _source(found.tree.path)
    if source is None:
        return audit
    line = shlex.join(["regraft", "migrate", argument(source), "--to", argument(path)])
    findings = (_migrated(one, line) if _is_meant(one) else one for one in audit.findings)
    return replace(audit, findings=tuple(findings))


def _migrated(finding: Finding, line: str) -> Finding:
    """Return a finding with the migration; without its source, what is left in the file itself can be salvaged."""
    message = finding.message
    if finding.repair is not None:
        message = tr("{what}; without the source: {command}", what=message, command=finding.repair)
    return replace(finding, repair=line, message=message)


def _is_meant(finding: Finding) -> bool:
    is_left = finding.repair is None or "--salvage" in finding.repair
    return finding.name in _WRITTEN_ANEW and finding.base is not None and is_left


def _source(library: Path) -> str | None:
    """Return what the library was migrated from at last, if that is still there."""
    try:
        runs = ledger.read_runs(library)
    except (RegraftError, OSError):
        return None
    sources = [run.source for run in runs if run.command == "migrate"]
    return sources[-1] if sources and Path(sources[-1]).exists() else None
