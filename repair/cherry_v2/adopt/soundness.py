"""Whether an index is sound enough for rows of the catalog to be derived from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from checks.audit.findings import Finding
from checks.cherry_v2 import findings as v2
from regraft.language import joined, tr
from repair.cherry_v2.adopt.folder import Unfit
from repair.cherry_v2.rules.evidence import DAMAGE

#: Findings that the missing rows themselves cause.
_BY_ROWS = {v2.VECTOR_MISSING, v2.ITEM_NO_BASE}
#: Findings of the catalog's own rows, which say nothing of the index.
_OF_CATALOG = ("base.", "item.", "catalog.", "model.")


def demand_readable(findings: Iterable[Finding]) -> None:
    """Refuse an index that tells nothing, or tells of another base.

    Raises:
        Unfit
    """
    _demand_none(findings, lambda one: one.name in DAMAGE | {v2.META_MISSING})


def demand_sound(findings: Iterable[Finding]) -> None:
    """Refuse an index in which something is wrong that a search of the base would meet.

    Raises:
        Unfit
    """
    _demand_none(
        findings,
        lambda one: one.severity == "error" and one.name not in _BY_ROWS and not one.name.startswith(_OF_CATALOG),
    )


def _demand_none(findings: Iterable[Finding], is_wrong: Callable[[Finding], bool]) -> None:
    wrong = Counter[str]()
    for finding in filter(is_wrong, findings):
        wrong[finding.name] += finding.count
    if wrong:
        listed = joined(f"{name} ({count:,})" for name, count in wrong.items())
        raise Unfit(tr("its index has to be mended first, with regraft repair: {listed}", listed=listed))
