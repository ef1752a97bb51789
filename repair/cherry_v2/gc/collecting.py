"""The plan of ``regraft gc``: what nothing reaches, where that can be told.

Rules: ``docs/commands.md``, "gc".
"""

from __future__ import annotations

from collections.abc import Container

from checks.audit.collector import Level
from checks.cherry_v2 import findings as v2
from repair.changes import expiry
from repair.changes.found import by_base
from repair.changes.plan import FileChange, Plan
from repair.changes.store import Store
from repair.cherry_v2.catalogs import catalog_of
from repair.cherry_v2.gc import files, leftovers, rows, space
from repair.cherry_v2.gc.choice import is_damage, left_damaged
from repair.cherry_v2.protection import Protection
from repair.options import GcOptions


def plan(store: Store, options: GcOptions) -> Plan:
    """Return what is going to be removed; nothing is written.

    Raises:
        SourceUnreadable: the catalog cannot be read, so that nobody can tell what its items name.
        LedgerUnreadable
    """
    catalog = None if store.catalog is None else catalog_of(store)
    protection = Protection(store, catalog, options.spared)
    made, gone = files.plan_folders(store, catalog, options)
    # What is in a folder that goes, goes with it.
    findings = [one for one in store.findings(Level.QUICK) if one.base not in gone]
    damage = list(filter(is_damage, findings))
    damaged = {one.base for one in damage}
    made.left += map(left_damaged, damage)
    sound = _chosen_indexes(store, damaged | gone)
    of_bases = by_base(findings)
    for base, name in sound.items():
        file = rows.IndexFile(
            store=store, base=base, name=name, found=of_bases.get(base, []), protected=protection.reason(base)
        )
        made.add(_plan_index(file, options))
    made.add(files.plan_raw(store, catalog, options, damaged, protection))
    proving = {base: name for base, name in sound.items() if (v2.VECTOR_UNEXPECTED, base) not in made.resolves}
    made.add(leftovers.plan(store, catalog, options, proving))
    # What may be refused comes first: a file that somebody has open.
    made.changes.sort(key=lambda change: isinstance(change, FileChange))
    return expiry.beside(made, store, options)


def _chosen_indexes(store: Store, without: Container[str | None]) -> dict[str, str]:
    """Return the index files of the chosen bases, below the store's root, but for some."""
    return {base: one.name for base, one in store.stores.items() if store.wants(base) and base not in without}


def _plan_index(file: rows.IndexFile, options: GcOptions) -> Plan:
    made = file.plan(options)
    if options.vacuum:
        made.add(space.plan(file, made))
    return made
