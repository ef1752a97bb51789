"""Plan what comes back from another copy of the data; nothing is written (``docs/repair-from.md``)."""

from __future__ import annotations

from pathlib import Path

from checks.audit.collector import Level
from checks.audit.findings import Finding
from regraft.errors import NotChanged, RegraftError, WrongUsage
from regraft.formats.cherry_v2.catalog_reader import Row, base_key
from regraft.formats.cherry_v2.index.opening import UNREADABLE
from regraft.kinds import NAMES
from regraft.language import tr
from regraft.locate import located
from repair.changes.found import Findings, by_base
from repair.changes.plan import Plan, Unresolved
from repair.changes.store import Store
from repair.cherry_v2.catalogs import catalog_of
from repair.cherry_v2.from_source import opening
from repair.cherry_v2.from_source.base import LACKING, BaseRepair, is_rebuilt
from repair.cherry_v2.from_source.donor_bases import DonorBases
from repair.options import RepairOptions


def plan(store: Store, options: RepairOptions) -> Plan:
    """Return what is taken from the source that the options name; nothing is written.

    Raises:
        WrongUsage: other options of ``repair`` are given, too, or the source is the store itself.
        NotChanged: the store has no catalog, which names models.
        RepairSourceDiffers: the source has vectors that a base lacks, and may not give them.
        RegraftError: the source or the catalog cannot be read.
    """
    source = options.source
    if source is None:
        raise ValueError(tr("no source is given"))
    _demand_alone(options)
    if store.catalog is None:
        what, advice = tr("{names} without a catalog", names=NAMES[store.found.kind]), _WHOLE
        raise NotChanged(path=store.path, what=what, command="repair --from", advice=advice)
    catalog = catalog_of(store)
    found = by_base(one for one in store.findings(Level.DEFAULT) if one.base is not None)
    rows = [row for row in catalog.bases if _is_meant(store, base_key(row), found)]
    if not rows:
        _demand_recognized(source)
        return Plan()
    planner = _Planner(store, options, source)
    for row in rows:
        items = (catalog.items or {}).get(base_key(row), [])
        planner.take(row, items, found[base_key(row)])
    return planner.made


_WHOLE = tr("give the library or profile that it is of")


def _demand_alone(options: RepairOptions) -> None:
    """Refuse options that say what is to be repaired in another way.

    Raises:
        WrongUsage
    """
    others = {
        "--only": bool(options.only),
        "--model": options.model is not None,
        "--adopt": options.adopt,
        "--salvage": options.salvage,
    }
    for name, is_given in others.items():
        if is_given:
            raise WrongUsage(
                problem=tr("--from and {name} do not go together", name=name),
                hint=tr("run --from first, then {name}", name=name),
            )


def _is_meant(store: Store, base: str, found: Findings) -> bool:
    is_there = store.found.stores.is_whole or base in store.stores
    findings = found.get(base, [])
    is_meant = is_there and store.wants(base)
    return is_meant and (any(one.name in LACKING for one in findings) or is_rebuilt(store, base, findings))


def _demand_recognized(source: Path) -> None:
    """Refuse a source that is nothing that texts can be taken from, although nothing lacks.

    Raises:
        RegraftError
    """
    if not opening.is_parquet(source):
        with located(source, None):
            pass


class _Planner:
    def __init__(self, store: Store, options: RepairOptions, path: Path) -> None:
        self._store = store
        self._options = options
        self._path = path
        source = opening.open_source(path, store, options.keep, options.now_ms)
        self._bases = DonorBases(source, options.keep)
        self.made = Plan()

    def take(self, row: Row, items: list[Row], findings: list[Finding]) -> None:
        """Plan one base."""
        lacking = [one for one in findings if one.name in LACKING]
        if row.get("status") != "completed":
            self._leave(lacking, tr("the base failed: a source gives texts and vectors to completed bases"))
            return
        base = BaseRepair(
            store=self._store,
            options=self._options,
            source=self._path,
            bases=self._bases,
            row=row,
            items=items,
            findings=findings,
        )
        try:
            self.made.add(base.plan())
        except RegraftError:
            raise
        except UNREADABLE as error:
            self._leave(lacking, tr("its index cannot be read as a whole: {error}", error=error))

    def _leave(self, lacking: list[Finding], reason: str) -> None:
        self.made.left += [Unresolved.of(one, reason, repair=one.repair) for one in lacking]
