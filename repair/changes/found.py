"""What an audit found, sorted as planners look at it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from checks.audit.findings import Finding
from regraft.report import notices

#: What an audit found, by base.
Findings = Mapping[str | None, list[Finding]]
#: Findings that are gone afterwards, with the base that they are of.
Mends = set[tuple[str, str | None]]


def by_name(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """Return findings by their names, in the order in which these come."""
    found: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        found[finding.name].append(finding)
    return dict(found)


def by_base(findings: Iterable[Finding]) -> dict[str | None, list[Finding]]:
    """Return findings by the bases that they are of, in the order in which these come."""
    found: dict[str | None, list[Finding]] = defaultdict(list)
    for finding in findings:
        found[finding.base].append(finding)
    return dict(found)


def besides(found: Mapping[str, list[Finding]], mended: Collection[str]) -> list[Finding]:
    """Return the findings of other names than those that are ``mended``, from warnings on."""
    others = (one for name, every in found.items() if name not in mended for one in every)
    return [one for one in others if notices.at_least(one.severity, "warning")]


#: Rows disappeared at once where at least this many are gone, and at least one in so many of all.
_FEWEST_GONE = 3
_ONE_IN = 10


def many_disappeared(gone: int, there: int) -> bool:
    """Whether so many rows are gone, beside those that are there, that their table may be damaged or an older copy."""
    return gone >= _FEWEST_GONE and gone * _ONE_IN >= gone + there
