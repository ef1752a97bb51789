"""The catalog of the store that a command is about."""

from __future__ import annotations

from regraft.errors import NotChanged, SourceUnreadable
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, StoredCatalog, read_catalog
from regraft.kinds import NAMES, Kind
from repair.changes.store import Store


def demand_profile(store: Store, *, command: str, advice: str) -> str:
    """Return the name of a profile's database, below its root.

    Raises:
        NotChanged: the store is no profile.
    """
    if store.found.kind is not Kind.V2_PROFILE or store.catalog is None or not store.is_profile:
        raise NotChanged(path=store.path, what=NAMES[store.found.kind], command=command, advice=advice)
    return store.catalog


def catalog_of(store: Store, *, data: bool = True) -> StoredCatalog:
    """Return what the catalog of a store says; it has one. ``data``: with what its items hold.

    Raises:
        SourceUnreadable: nobody can tell what it says.
    """
    path = store.root / str(store.catalog)
    try:
        return read_catalog(path, data=data)
    except CatalogProblem as problem:
        raise SourceUnreadable(path=path, reason=problem) from problem
