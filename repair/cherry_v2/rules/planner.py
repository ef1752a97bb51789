"""Plan ``regraft repair`` for v2 data: what the audit found and what can be derived from other data, file by file.

Nothing is guessed, and no vector that could be right is deleted. Rules: ``docs/findings.md``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain

import apsw
from msgspec import structs

from checks.audit.collector import Level
from checks.audit.findings import FINDINGS, Finding, RowNumbers
from checks.cherry_v2 import findings as v2
from checks.cherry_v2 import schema
from regraft.formats.cherry_preview import IndexLayout
from regraft.formats.cherry_v2 import layout
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, Row, StoredCatalog, base_id_text, read_catalog
from regraft.formats.cherry_v2.index.schema import catalog_dimensions
from regraft.language import format_count, tr
from regraft.report import notices
from repair.changes import schema_objects
from repair.changes.options import RepairOptions
from repair.changes.plan import FindingsByBase, Plan, RowsChange, Unresolved, group_by_base
from repair.changes.schema_objects import merge_changes
from repair.changes.store import Store
from repair.cherry_v2 import adopt, base_models, from_source, item_paths, salvage
from repair.cherry_v2.item_paths import NewPaths, find_new_paths, read_material_paths
from repair.cherry_v2.protection import Protection
from repair.cherry_v2.rules import catalog as rules_catalog
from repair.cherry_v2.rules import index
from repair.cherry_v2.rules.catalog import PathRepairs
from repair.cherry_v2.rules.index import IndexRepair
from repair.cherry_v2.salvage import DamagedIndex

_OF_INDEX: tuple[str, ...] = (*schema_objects.NAMES, v2.BODY_ORPHAN, *index.NAMES)
#: Findings that are repaired.
NAMES: tuple[str, ...] = (*_OF_INDEX, *rules_catalog.NAMES)
#: Findings that are repaired only if the user names them.
BY_NAME: tuple[str, ...] = (v2.ITEM_PATH_IS_ID, v2.BASE_FAILED, v2.VECTOR_UNEXPECTED, *adopt.NAMES)


def plan(store: Store, options: RepairOptions) -> Plan:
    """Plan all repairs that the options select.

    Raises:
        WrongUsage: the options contradict each other, or a finding needs another option, such as ``--adopt``.
    """
    if options.moved:
        return item_paths.plan_moved(store, options)
    if options.source is not None:
        return from_source.plan(store, options)
    adopt.demand_adopt_options(options)
    base_models.demand_model(options)
    if options.adopt:
        return adopt.plan(store, options)
    if v2.VECTOR_UNEXPECTED in options.only:
        return base_models.plan_attach(store, options)
    if v2.BASE_FAILED not in options.only or store.catalog is None:
        return _plan_repairs(store, options)
    made = adopt.plan_materials(store, options, failed_only=True)
    others = options.only - {v2.BASE_FAILED}
    if others:
        made.add(_plan_repairs(store, structs.replace(options, only=others)))
        rows = [one for one in made.changes if isinstance(one, RowsChange)]
        files = [one for one in made.changes if not isinstance(one, RowsChange)]
        made.changes = [*map(merge_changes, _by_path(rows)), *files]
    return made


def _plan_repairs(store: Store, options: RepairOptions) -> Plan:
    """Audit the store and plan the repairs of its indexes and catalog."""
    # Damage that only SQLite's own check finds counts, too.
    level = Level.DEEP if options.salvage else Level.DEFAULT
    return _Planner(store, options, group_by_base(store.findings(level))).plan()


class _Planner:
    """Plans the repairs of one store from the audit's ``findings`` by base."""

    def __init__(self, store: Store, options: RepairOptions, findings: FindingsByBase) -> None:
        self._store = store
        self._options = options
        self._wanted = options.wanted(NAMES)
        self._findings = findings
        self._protection: Protection | None = None
        self._plan = Plan()
        #: Bases for whose index it has been reported what cannot be repaired.
        self._reported_bases: set[str | None] = set()
        #: Bases whose damaged index file has been reported.
        self._reported_damaged: set[str] = set()
        #: The paths of materials, for bases whose files get new paths.
        self._materials: dict[str, dict[str, str]] = {}

    def plan(self) -> Plan:
        """Plan the repairs of indexes, catalog and files in the order in which they are made."""
        made = self._plan
        self._plan_damaged()
        moved: dict[str, PathRepairs] = {}
        indexes = list(self._plan_indexes(moved))
        readable = self._readable_paths() if v2.ITEM_PATH_IS_ID in self._options.only else []
        made.changes += chain.from_iterable(one.made for one in moved.values())
        made.changes += self._plan_catalog(moved, readable)
        made.changes += chain.from_iterable(one.removed for one in moved.values())
        indexes += filter(None, map(self._plan_material_paths, readable))
        made.changes += map(merge_changes, _by_path(indexes))
        made.changes += chain.from_iterable(one.removed_last for one in moved.values())
        self._leave_others(moved)
        return made

    @cached_property
    def _catalog(self) -> StoredCatalog | None:
        """The catalog's rows; None if there is no catalog, or if it cannot be read."""
        if self._store.catalog is not None:
            with suppress(CatalogProblem):
                return read_catalog(self._store.root / self._store.catalog)
        return None

    def _count_findings(self, base: str) -> dict[str, int]:
        """Return the counts of the audit's findings about a base, by name."""
        counts: Counter[str] = Counter()
        for finding in self._findings[base]:
            counts[finding.name] += finding.count
        return counts

    # --- indexes ---------------------------------------------------------------------------------------------------

    def _plan_damaged(self) -> None:
        """Plan to salvage damaged index files if the user asked for that; otherwise report what could be salvaged."""
        if not self._options.salvage and not self._options.wanted(salvage.DAMAGED) & set(salvage.DAMAGED):
            return
        for base in self._store.stores:
            if not (self._store.wants(base) and salvage.is_damaged(self._findings.get(base, []))):
                continue
            damaged = self._damaged_index(base)
            self._reported_damaged.add(base)
            if self._options.salvage:
                self._plan.level = Level.DEEP
                self._plan.add(salvage.plan(damaged))
            else:
                self._plan.left += salvage.suggest_salvage(damaged)

    def _damaged_index(self, base: str) -> DamagedIndex:
        """Describe the damaged index of a base with what the catalog has of it."""
        row = self._row(base)
        return DamagedIndex(
            store=self._store,
            base=base,
            findings=self._findings[base],
            row=row,
            items=self._items(base) if row is not None else None,
            now_ms=self._options.now_ms,
        )

    def _plan_indexes(self, moved: dict[str, PathRepairs]) -> Iterator[RowsChange]:
        """Yield the changes that repair readable indexes; ``moved`` gets new paths of materials and files, by base."""
        for base, one in self._store.stores.items():
            is_whole = base not in self._reported_damaged or not self._options.salvage
            if (
                self._store.wants(base)
                and one.look.layout is IndexLayout.CURRENT
                and base in self._findings
                and is_whole
            ):
                try:
                    yield from self._of_index(base, one, moved)
                except (apsw.Error, OSError, UnicodeDecodeError) as error:
                    self._leave_all(base, tr("the index cannot be read as a whole: {error}", error=error), None)

    def _of_index(self, base: str, file: layout.StoreFile, moved: dict[str, PathRepairs]) -> Iterator[RowsChange]:
        """Yield the changes that repair the index file of a base; what blocks other repairs is repaired first.

        ``moved`` gets the new paths of its materials and files.
        """
        found = self._count_findings(base)
        wanted = self._wanted.intersection(found, _OF_INDEX)
        if not wanted:
            return
        if not index.BLOCKING.isdisjoint(found):
            upgrades = {v2.UNREADABLE, v2.CORRUPT}.isdisjoint(found)
            reason = tr("the layout of the file is incomplete") if upgrades else tr("the file is damaged")
            self._leave_all(base, tr("{reason}: fix that first", reason=reason), "upgrade" if upgrades else None)
            return
        dropped = schema_objects.plan_drops(self._store.root, file.name, wanted, base, schema.find_foreign_in_index)
        if dropped is not None:
            self._plan.resolves |= {(name, base) for name in wanted.intersection(schema_objects.NAMES)}
            yield dropped
        units, others = self._lost_units(base, file, found)
        if units is not None:
            yield units
            self._leave_for_units(base, wanted, others)
            return
        wanted = wanted.intersection(index.NAMES)
        kept = self._protected_findings(base, found, wanted)
        if wanted - kept:
            yield from self._plan_index_repair(base, file, found, wanted - kept, moved, self._wanted - kept)

    def _lost_units(self, base: str, file: layout.StoreFile, found: dict[str, int]) -> tuple[RowsChange | None, int]:
        """Plan to write missing units of a base again, before other repairs can remove their proof.

        If a unit lacks its body or has a wrong id, a body without a unit may be its body. That is repaired first.

        Args:
            base: the base's id.
            file: its index file.
            found: the counts of its findings.

        Returns:
            The change, or None, and the number of bodies that have no unit and from which none can be derived.
        """
        if v2.BODY_ORPHAN not in found or not self._wanted & {v2.BODY_ORPHAN, v2.UNIT_GAP}:
            return None, 0
        if v2.BODY_ORPHAN not in self._options.only and not {v2.NO_BODY, v2.UNIT_ID}.isdisjoint(found):
            return None, 0
        return index.plan_lost_units(self._store.root, file.name, base)

    def _leave_for_units(self, base: str, wanted: frozenset[str], others: int) -> None:
        """Report that the ``wanted`` repairs of a base wait until its missing units are written again.

        ``others`` is the number of bodies that have no unit and from which none can be derived.
        """
        self._reported_bases.add(base)
        if others:
            reason = tr("{bodies} whose unit cannot be proven", bodies=format_count(others, "body"))
            self._plan.left.append(Unresolved.registered(v2.BODY_ORPHAN, reason, base=base, count=others))
        else:
            self._plan.resolves.add((v2.BODY_ORPHAN, base))
        repair = self._store.command_line("repair", "--base", base)
        reason = tr("units are written again first; run regraft repair again for the rest")
        stays = (one for one in self._findings[base] if one.name in wanted and one.name in index.NAMES)
        self._plan.left += [Unresolved.of(one, reason, repair=repair) for one in stays]

    def _protected_findings(self, base: str, found: dict[str, int], wanted: frozenset[str]) -> frozenset[str]:
        """Return the ``wanted`` findings that stay because their repair deletes vectors of a protected base.

        They are reported; ``found`` counts the findings of the base.
        """
        deleting = wanted.intersection(index.FLAWS)
        if not deleting:
            return deleting
        if self._protection is None:
            self._protection = Protection(self._store, self._catalog, self._options.spared)
        reason = self._protection.reason(base)
        if reason is None:
            return frozenset()
        self._plan.left += [
            Unresolved.registered(name, reason, base=base, count=found[name]) for name in sorted(deleting)
        ]
        return deleting

    def _plan_index_repair(
        self,
        base: str,
        file: layout.StoreFile,
        found: dict[str, int],
        wanted: frozenset[str],
        moved: dict[str, PathRepairs],
        allowed: frozenset[str],
    ) -> Iterator[RowsChange]:
        """Yield the change that repairs the rows of an index, and report what cannot be repaired.

        Args:
            base: the base's id.
            file: its index file.
            found: the counts of its findings.
            wanted: those of them to repair.
            moved: gets the new paths of materials and files of the base.
            allowed: all findings that may be repaired, if they exist or the repair causes them.
        """
        renames = self._plan_path_repairs(base, file) if v2.PATH_UNSAFE in wanted else PathRepairs()
        target = self._make_repair(base, file, found, renames, allowed)
        change, left = index.plan_index(self._store.root, target)
        # With the command lines that the audit recommends.
        lines = {one.name: one.repair for one in reversed(self._findings[base])}
        self._plan.left += [*renames.left, *(structs.replace(one, repair=lines.get(one.finding)) for one in left)]
        if change is not None:
            self._reported_bases.add(base)
            moved[base] = renames
            of_these = {one.finding for one in (*renames.left, *left)}
            self._plan.resolves |= {(name, base) for name in wanted - of_these}
            yield change

    def _plan_path_repairs(self, base: str, file: layout.StoreFile) -> PathRepairs:
        """Choose valid paths for materials of a base's index, which its items and files follow."""
        store, catalog = self._store, self._catalog
        if store.catalog is not None and (catalog is None or catalog.items is None):
            reason = tr("the catalog, whose item has the same path, cannot be read")
            return PathRepairs(left=[Unresolved.registered(v2.PATH_UNSAFE, reason, base=base)])
        return rules_catalog.plan_paths(store.root, base, file.name, file.raw, self._items(base))

    def _make_repair(
        self, base: str, file: layout.StoreFile, found: dict[str, int], renames: PathRepairs, wanted: frozenset[str]
    ) -> IndexRepair:
        """Describe the repair of an index file.

        Args:
            base: the base's id.
            file: the index file.
            found: the counts of its findings.
            renames: new paths of materials.
            wanted: the findings to repair.
        """
        row = self._row(base)
        is_known = row is not None and row.get("status") == "completed"
        return IndexRepair(
            base=base,
            path=file.name,
            folder=base if file.base_id is not None and file.name.endswith(layout.INDEX_FILE) else None,
            has_model=row.get("embedding_model_id") is not None if row is not None and is_known else None,
            dimensions=catalog_dimensions(row),
            found=found,
            wanted=wanted,
            now_ms=self._options.now_ms,
            is_partial=bool(self._options.only),
            renamed=tuple(renames.materials),
            rows=_recorded_rows(self._findings[base]),
        )

    def _row(self, base: str) -> Row | None:
        """Return the catalog row of the base with this id, or None."""
        rows = [] if self._catalog is None else self._catalog.bases
        return next((row for row in rows if base_id_text(row) == base), None)

    def _items(self, base: str) -> list[Row] | None:
        """Return the catalog's items of the base with this id; None if they are unknown."""
        return None if self._catalog is None or self._catalog.items is None else self._catalog.items.get(base, [])

    def _leave_all(self, base: str, reason: str, command: str | None) -> None:
        """Report that all findings of an index stay, with the reason and the regraft command that may help."""
        repair = None if command is None else self._store.command_line(command)
        names = self._wanted.intersection(_OF_INDEX)
        stays = (finding for finding in self._findings[base] if finding.name in names)
        self._plan.left += [Unresolved.of(finding, reason, repair=repair) for finding in stays]

    # --- paths of files of folders --------------------------------------------------------------------------------

    def _readable_paths(self) -> list[NewPaths]:
        """Choose readable paths, base by base, for files whose path is their item's id."""
        made = []
        for base, found in self._findings.items():
            # A killed run can leave materials with other paths than their items.
            finding = next((one for one in found if one.name in (v2.ITEM_PATH_IS_ID, v2.MATERIAL_PATH)), None)
            if base is None or finding is None:
                continue
            paths = NewPaths(base)
            try:
                paths = self._paths_of(base)
            except (apsw.Error, OSError, UnicodeDecodeError) as error:
                paths.leave(tr("its index cannot be read: {error}", error=error), None, finding.count)
            self._plan.left += paths.left
            self._plan.resolves |= set() if paths.left else {(v2.ITEM_PATH_IS_ID, base)}
            made.append(paths)
        return made

    def _paths_of(self, base: str) -> NewPaths:
        """Choose readable paths for the files of one base, or report why that is not possible."""
        one = self._store.stores.get(base)
        paths = NewPaths(base)
        if not index.BLOCKING.isdisjoint(self._count_findings(base)) or (
            one and one.look.layout is not IndexLayout.CURRENT
        ):
            paths.leave(tr("its index is damaged or has another layout: fix that first"), None)
            return paths
        self._materials[base] = {} if one is None else read_material_paths(self._store.root / one.name)
        raw = self._store.root / self._store.bases / base / layout.RAW_FOLDER
        return find_new_paths(base, self._items(base) or [], self._materials[base], raw)

    def _plan_material_paths(self, paths: NewPaths) -> RowsChange | None:
        """Plan to give the materials in a base's index the new paths; None if there is no index or nothing changes."""
        one = self._store.stores.get(paths.base)
        if one is None or paths.base not in self._materials:
            return None
        return item_paths.plan_index_change(self._store.root, one.name, paths, self._materials[paths.base])

    # --- the catalog and what is not mended -----------------------------------------------------------------------

    def _plan_catalog(self, moved: Mapping[str, PathRepairs], readable: list[NewPaths]) -> list[RowsChange]:
        """Plan the changes of the catalog: its repairs, then new paths of items.

        ``moved`` are new paths of materials by base, ``readable`` the readable paths of files.
        """
        changes: list[RowsChange] = []
        for mender in (rules_catalog.plan_definitions, partial(rules_catalog.plan_catalog, model=self._options.model)):
            more, left, resolves = mender(self._store, self._findings, self._wanted)
            changes += more
            self._plan.left += left
            self._plan.resolves |= resolves
        if self._store.catalog is not None:
            paths = {base: one.items for base, one in moved.items()}
            last = rules_catalog.plan_item_paths(self._store.root, self._store.catalog, paths)
            changes += [] if last is None else [last]
            last = item_paths.plan_catalog_change(self._store.root, self._store.catalog, readable)
            changes += [] if last is None else [last]
        return [merge_changes(changes)] if changes else []

    def _leave_others(self, moved: Mapping[str, PathRepairs]) -> None:
        """Report the findings that ``repair`` does not resolve; ``moved`` are new paths of materials, by base."""
        if self._options.only:
            return
        for base, found in self._findings.items():
            repairs = None if base is None else moved.get(base)
            rows = frozenset(row for row, _ in repairs.materials) if repairs is not None else frozenset()
            # Bodies without a unit are for gc where nothing proves the unit.
            others = (
                one
                for one in found
                if (one.name not in NAMES or one.name == v2.BODY_ORPHAN)
                and notices.is_at_least(one.severity, "warning")
            )
            self._plan.left += [
                # The message for these vectors names both choices.
                Unresolved.of(one, one.message, repair=self._command_for(one))
                if one.name == v2.VECTOR_UNEXPECTED
                else Unresolved.with_remedy(one, repair=one.repair)
                for one in others
                if not self._is_reported(one, rows)
            ]

    def _command_for(self, finding: Finding) -> str | None:
        """Return the command line for a finding about vectors of a base without a model; None if no command helps.

        If the user named a model, the command gives the base this model. Otherwise it is the one of the finding.
        """
        model = self._options.model
        if model is None:
            return finding.repair
        words = FINDINGS[v2.VECTOR_UNEXPECTED].command
        return self._store.command_line(*words, model, *self._store.base_option(finding.base))

    def _is_reported(self, finding: Finding, moved: Collection[int]) -> bool:
        """Whether a finding is resolved or reported with other repairs of its base.

        ``moved``: row numbers of the materials that get new paths.
        """
        if finding.base in self._reported_damaged and (finding.name in salvage.DAMAGED or self._options.salvage):
            return True
        if finding.name in index.CONSEQUENCES:
            return finding.base in self._reported_bases
        # The base gets the vectors' model, so they are expected.
        if finding.name == v2.VECTOR_UNEXPECTED and self._options.model is not None:
            return (v2.BASE_STATUS, finding.base) in self._plan.resolves
        # With its new path, a material agrees with its item and file.
        is_of_paths = finding.name in (v2.MATERIAL_PATH, v2.RAW_MISSING)
        return is_of_paths and finding.rows is not None and all(row in moved for row in finding.rows)


def _recorded_rows(findings: Iterable[Finding]) -> dict[str, list[RowNumbers]]:
    """Return the affected rows by finding; findings without a complete record are left out."""
    by_name: dict[str, list[RowNumbers | None]] = defaultdict(list)
    for finding in findings:
        by_name[finding.name].append(finding.rows)
    return {name: [one for one in rows if one] for name, rows in by_name.items() if None not in rows}


def _by_path(changes: list[RowsChange]) -> list[list[RowsChange]]:
    """Group changes by the file that they change, in the order of the files."""
    grouped: dict[str, list[RowsChange]] = defaultdict(list)
    for change in changes:
        grouped[change.path].append(change)
    return list(grouped.values())
