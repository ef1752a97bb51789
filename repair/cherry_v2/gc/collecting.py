"""The plan of ``regraft gc``: what nothing reaches, where that can be told.

Rules: ``docs/commands.md``, "gc".
"""

from __future__ import annotations

from checks.audit.collector import Level
from regraft.errors import SourceUnreadable
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, StoredCatalog, read_catalog
from repair.changes import expiry
from repair.changes.plan import FileChange, Plan
from repair.changes.store import Store
from repair.cherry_v2.gc import files, leftovers, rows, space
from repair.cherry_v2.gc.choice import is_damage, left_damaged
from repair.options import GcOptions


def plan(store: Store, options: GcOptions) -> Plan:
    """Return what is going to be removed; nothing is written.

    Raises:
        SourceUnreadable: the catalog cannot be read, so that nobody can tell what its items name.
        LedgerUnreadable
    """
    catalog = _catalog(store)
    made = Plan()
    # What is in a folder that goes, goes with it.
    gone = set() if catalog is None else files.plan_folders(store, catalog, options, made)
    findings = [one for one in store.findings(Level.QUICK) if one.base not in gone]
    made.left += [left_damaged(one) for one in findings if is_damage(one)]
    damaged = {one.base for one in findings if is_damage(one)}
    bases = {base: one.name for base, one in store.stores.items() if store.wants(base) and base not in gone}
    sound = {base: name for base, name in bases.items() if base not in damaged}
    for base, name in sound.items():
        file = rows.IndexFile(store=store, base=base, name=name, found=[one for one in findings if one.base == base])
        file.plan(options, made)
        if options.vacuum:
            space.plan(file, made)
    if catalog is not None:
        files.plan_raw(store, catalog, options, damaged, made)
    leftovers.plan(store, catalog, options, sound, made)
    # What may be refused comes first: a file that somebody has open.
    made.changes.sort(key=lambda change: isinstance(change, FileChange))
    expiry.plan(store, options, made)
    return made


def _catalog(store: Store) -> StoredCatalog | None:
    if store.catalog is None:
        return None
    try:
        return read_catalog(store.root / store.catalog)
    except CatalogProblem as problem:
        raise SourceUnreadable(path=store.root / store.catalog, reason=problem) from problem
