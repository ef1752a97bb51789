"""Taking triggers and views out of a catalog that its layout does not have."""

from __future__ import annotations

from checks.cherry_v2 import foreign_schema
from repair.changes.foreign_definitions import NAMES, beyond_repair, change
from repair.changes.found import Findings, Mends
from repair.changes.plan import RowsChange, Unresolved
from repair.changes.store import Store


def changes(store: Store, findings: Findings, only: frozenset[str]) -> tuple[list[RowsChange], list[Unresolved], Mends]:
    """Return what takes foreign triggers and views out of the catalog, what stays, and what is gone afterwards.

    Args:
        store: the store; nothing is written.
        findings: what the audit found, by base; what is about the catalog's schema is about no base.
        only: names of the findings that are to be mended.
    """
    found = [one for one in findings.get(None, ()) if one.name in NAMES and one.name in only]
    wanted, left = beyond_repair(found)
    if store.catalog is None or not wanted:
        return [], left, set()
    made = change(store.root, store.catalog, wanted, None, foreign_schema.of_catalog)
    return [] if made is None else [made], left, {(name, None) for name in wanted}
