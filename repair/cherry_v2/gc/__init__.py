"""Plan ``regraft gc`` for v2 data (``docs/commands.md``, "gc").

It removes rows, files and folders that nothing needs, and expired trash.
"""

from __future__ import annotations

from checks.audit.collector import Level
from checks.cherry_v2 import findings as v2
from repair.changes import undo
from repair.changes.options import GcOptions
from repair.changes.plan import FileChange, Plan, group_by_base
from repair.changes.store import Store
from repair.cherry_v2.catalog_changes import read_store_catalog
from repair.cherry_v2.gc import files, rows
from repair.cherry_v2.gc.rows import NAMES, is_damage, leave_damaged
from repair.cherry_v2.protection import Protection


def plan(store: Store, options: GcOptions) -> Plan:
    """Plan all removals that the options select: rows of indexes, raw files, folders, v1's vector files, expired trash.

    Raises:
        SourceUnreadable: the catalog cannot be read, so it is unknown which files its items name.
        LedgerUnreadable
    """
    catalog = None if store.catalog is None else read_store_catalog(store)
    protection = Protection(store, catalog, options.spared)
    made, gone = files.plan_folders(store, catalog, options)
    # Findings in a folder that is removed need no change of their own.
    findings = [one for one in store.findings(Level.QUICK) if one.base not in gone]
    damage = list(filter(is_damage, findings))
    damaged = {one.base for one in damage}
    made.left += map(leave_damaged, damage)
    sound = _selected_indexes(store, damaged | gone)
    of_bases = group_by_base(findings)
    for base, name in sound.items():
        file = rows.IndexGarbage(
            store=store, base=base, name=name, found=of_bases.get(base, []), protected=protection.reason(base)
        )
        of_rows = file.plan(options)
        made.add(of_rows)
        if options.vacuum:
            made.add(rows.plan_space(file, of_rows))
    made.add(files.plan_raw(store, catalog, options, damaged, protection))
    proving = {base: name for base, name in sound.items() if (v2.VECTOR_UNEXPECTED, base) not in made.resolves}
    made.add(files.plan_leftovers(store, catalog, options, proving))
    # Changes of files come last: one that is open elsewhere refuses the run before anything is moved.
    made.changes.sort(key=lambda change: isinstance(change, FileChange))
    find_needed = files.make_trash_test(store, catalog, proving)
    return undo.add_expired_runs(made, store, options, find_needed)


def _selected_indexes(store: Store, without: set[str | None]) -> dict[str, str]:
    """Map the ids of selected bases, except those in ``without``, to their index files, relative to the root."""
    return {base: one.name for base, one in store.stores.items() if store.wants(base) and base not in without}


__all__ = ["NAMES", "plan"]
