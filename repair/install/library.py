"""The library that is installed: its bases, what of it can be carried on, and the v1 ids that they had."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from checks import v2_findings as v2
from checks.catalog_rows import base_key
from checks.findings import Finding
from regraft import identity
from regraft.errors import BaseUnknown, NotChanged, SourceUnreadable
from regraft.formats.catalog_reader import CatalogProblem, Row, StoredCatalog, read_catalog
from regraft.locate import CATALOG_FILE, NAMES, V1_SOURCES, Kind, located
from regraft.tree import is_plain_name
from repair.store import Store

#: What keeps a base from being installed: the application would empty or refuse it, or it is not whole.
_GRAVE = frozenset(
    {
        *(v2.UNREADABLE, v2.CORRUPT, v2.SCHEMA_MISSING, v2.SCHEMA_VERSION, v2.SCHEMA_PREVIEW, v2.META_MISSING),
        *(v2.META_BASE, v2.PATH_UNSAFE, v2.ITEM_DATA, v2.BASE_STATUS, v2.BASE_NO_INDEX),
    }
)


@dataclass(frozen=True)
class Library:
    """A library on disk; nothing of it is ever written."""

    store: Store
    catalog: StoredCatalog

    @property
    def rows(self) -> Path:
        """Return where its catalog is."""
        return self.store.root / str(self.store.catalog)

    @cached_property
    def bases(self) -> dict[str, Row]:
        """Return the rows of its bases by their ids, in their order."""
        return {base_key(row): row for row in self.catalog.bases}

    @cached_property
    def models(self) -> dict[Any, Row]:
        """Return the rows of its models by their ids."""
        return {row.get("id"): row for row in self.catalog.models or ()}

    def folder(self, base: str) -> Path:
        """Return where the folder of a base is, if it has one."""
        return self.store.root / self.store.bases / base

    def chosen(self, named: tuple[str, ...]) -> list[str]:
        """Return the ids of the bases that are meant by v1 or v2 ids; without any, of all.

        Raises:
            BaseUnknown: one is of no base.
        """
        found = set()
        for name in named:
            base = self.base_of(name)
            if base is None:
                raise BaseUnknown(base=name, known=", ".join(self.bases) or "none")
            found.add(base)
        return [base for base in self.bases if not named or base in found]

    def base_of(self, name: str) -> str | None:
        """Return the id of the base that an id is of: its own, or that which it had in v1."""
        candidates = (name, self._legacy.get(name), identity.base_id(name.encode("utf-8", "replace").decode()))
        return next((one for one in candidates if one in self.bases), None)

    @cached_property
    def _legacy(self) -> dict[str, str]:
        """Return the ids of bases by their v1 ids, as the report of the last migration gives them."""
        try:
            said: Any = json.loads((self.store.root / "report.json").read_bytes())
            return {old: new for old, new in said["ids"]["bases"].items() if isinstance(new, str)}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return {}

    def problem(self, base: str, findings: list[Finding]) -> Finding | None:
        """Return what keeps a base from being installed, of what an audit found; None where nothing does."""
        if not isinstance(self.bases[base].get("id"), str) or not is_plain_name(base):
            return Finding(v2.BASE_STATUS, "error", "its id is no name of a folder", base)
        return next((one for one in findings if one.base == base and one.name in _GRAVE), None)

    def files(self, base: str) -> Iterator[Path]:
        """Yield the files of a base: its index, and all below ``raw/``; links are not followed."""
        index = self.folder(base) / ".cherry" / "index.sqlite"
        if index.is_file():
            yield index
        for path in sorted((self.folder(base) / "raw").rglob("*")):
            if path.is_file() or path.is_symlink():
                yield path


def open_library(path: Path, kind: Kind | None, named: tuple[str, ...]) -> tuple[Library, list[str]]:
    """Recognise the library that is to be installed, and return it with the ids of the bases that are meant.

    Raises:
        NotChanged: it is no library.
        SourceUnreadable: its catalog cannot be read.
        BaseUnknown: it has no such base.
        RegraftError: it cannot be recognised.
    """
    with located(path, kind) as found:
        catalog = found.stores.catalog
        if found.kind is not Kind.LIBRARY or found.is_archive or catalog is None or Path(catalog).name != CATALOG_FILE:
            advice = "give the folder that regraft migrate wrote, with its catalog.sqlite"
            if found.kind in V1_SOURCES:
                advice = "regraft migrate makes a library of it"
            raise NotChanged(path=path, what=NAMES[found.kind], command="install", advice=advice)
        try:
            rows = read_catalog(found.tree.path / catalog, data=False)
        except CatalogProblem as problem:
            raise SourceUnreadable(path=found.tree.path / catalog, reason=problem) from problem
        library = Library(Store(path, found.tree.path, found), rows)
        chosen = library.chosen(named)
        store = Store(path, found.tree.path, found, frozenset(chosen))
        return Library(store, rows), chosen
