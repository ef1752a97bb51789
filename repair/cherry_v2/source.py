"""A store that bases are taken out of, to pack or to install them: a library, a pack, a backup, another profile.

It is only read. Links are not followed: a stranger's archive or folder could lead anywhere.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import apsw
import msgspec

from checks.audit.collector import Level
from checks.audit.findings import Finding
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.findings import BACKUP_SLIM
from regraft.disk import file_paths, links, sqlite
from regraft.disk.file_paths import is_folder_name
from regraft.disk.links import leads_outside
from regraft.disk.trees import ZipTree, join_path
from regraft.errors import NotChanged, PackDamaged, ProfileInUse, RegraftError, SourceUnreadable
from regraft.formats.cherry_v1 import profile
from regraft.formats.cherry_v1.state import find_inner_folder
from regraft.formats.cherry_v2 import pack
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, Row, StoredCatalog, base_id_text, read_catalog
from regraft.formats.cherry_v2.layout import read_reported_ids
from regraft.identity import find_base_id, resolve_base
from regraft.kinds import BASE_SOURCES, KIND_NAMES, V1_SOURCES, Kind
from regraft.language import tr
from regraft.ledger.values import check_path
from regraft.stores.locate import INDEX_FILE, RAW_FOLDER, Located, is_unchanged_pack, open_store, unpack_archive
from repair.changes.files import find_table_damage
from repair.changes.store import CATALOG_COPY, COPY_ADVICE, Store

#: What keeps a base from being carried anywhere: the application would empty or refuse it, or it is not whole.
_GRAVE = frozenset(
    {
        *(v2.UNREADABLE, v2.CORRUPT, v2.SCHEMA_MISSING, v2.SCHEMA_VERSION, v2.SCHEMA_PREVIEW, v2.META_MISSING),
        *(v2.META_BASE, v2.PATH_UNSAFE, v2.ITEM_DATA, v2.BASE_STATUS, v2.BASE_NO_INDEX),
        # What a stranger's definitions do, nobody carries into a profile.
        *(v2.FOREIGN_TRIGGER, v2.FOREIGN_VIEW, v2.FOREIGN_COLUMN, v2.FOREIGN_TEXT_INDEX),
    }
)


class BaseFiles(msgspec.Struct, frozen=True):
    """The files of a base below its folder, index first, with their sizes; and links, which are not followed."""

    files: tuple[Path, ...] = ()
    links: tuple[str, ...] = ()


@dataclass(frozen=True)
class BaseSource:
    """A store whose bases are carried elsewhere."""

    #: Its root is a temporary folder where the source is an archive.
    store: Store
    catalog: StoredCatalog
    #: Ids of the bases that are meant, in the catalog's order.
    chosen: tuple[str, ...] = ()
    #: Of a pack, zipped or unpacked, that nobody has changed since.
    manifest: pack.Manifest | None = None
    #: The archive that it was unpacked from, and the folder in that where it begins.
    archive: ZipTree | None = None
    archive_folder: str = ""
    #: Links among the members of an archive, by base.
    archived_links: tuple[str, ...] = ()
    #: Ids of bases by those that they had in v1, as the source itself knows them.
    legacy_ids: tuple[tuple[str, str], ...] = ()

    @property
    def rows(self) -> Path:
        """Return where its catalog is."""
        return self.store.root / str(self.store.catalog)

    @property
    def is_slim(self) -> bool:
        """Tell whether it has rows alone."""
        return self.store.found.is_slim

    @cached_property
    def bases(self) -> dict[str, Row]:
        """Return the rows of its bases by their ids, in their order."""
        return {base_id_text(row): row for row in self.catalog.bases}

    @cached_property
    def models(self) -> dict[Any, Row]:
        """Return the rows of its models by their ids."""
        return {row.get("id"): row for row in self.catalog.models or ()}

    @cached_property
    def providers(self) -> dict[Any, Row]:
        """Return the rows of its providers by their ids."""
        return {row.get("provider_id"): row for row in self.catalog.providers or ()}

    @cached_property
    def packed(self) -> dict[str, pack.PackedFile]:
        """Return what the manifest says of each file, by its name in the pack."""
        return {} if self.manifest is None else {file.path: file for file in self.manifest.files}

    def name_of(self, base: str) -> str:
        """Return what a person calls a base."""
        return str(self.bases[base].get("name") or base)

    def folder(self, base: str) -> Path:
        """Return where the folder of a base is, if it has one."""
        return self.store.root / self.store.bases / base

    def inside(self, path: Path) -> str:
        """Return the name of a file in the source."""
        return path.relative_to(self.store.root).as_posix()

    def crc32(self, path: Path) -> int:
        """Return the CRC-32 that the archive gives of an extracted file."""
        if self.archive is None:
            raise ValueError(tr("not an archive"))
        return self.archive.crc32(join_path(self.archive_folder, self.inside(path)))

    def base_of(self, name: str) -> str | None:
        """Return the id of the base that an id is of: its own, or that which it had in v1."""
        return find_base_id(name, dict.fromkeys(self.bases, ""), dict(self.legacy_ids))

    def legacy_id(self, base: str) -> str | None:
        """Return the id that a base had in v1, as far as the source knows."""
        return next((old for old, new in self.legacy_ids if new == base), None)

    def files(self, base: str) -> BaseFiles:
        """Return the files of a base: its index, and all below ``raw/``.

        Raises:
            SourceUnreadable: a folder of it cannot be looked into.
        """
        try:
            return self._files(base)
        except RegraftError:
            raise
        except OSError as error:
            path = self.folder(base) if error.filename is None else Path(os.fsdecode(error.filename))
            raise SourceUnreadable(path=path, reason=error.strerror or error) from error

    def _files(self, base: str) -> BaseFiles:
        folder, links = self.folder(base), [*self._links_of(base)]
        if leads_outside(self.store.root, folder):
            return BaseFiles((), (*links, INDEX_FILE))
        index = folder / INDEX_FILE
        files = []
        if _is_inside(index, self.store.root):
            files.append(index)
        elif file_paths.is_link(index) or file_paths.is_file(index):
            links.append(INDEX_FILE)
        for path in _walked(folder / RAW_FOLDER):
            if stat.S_ISREG(file_paths.lstat(path).st_mode):
                files.append(path)
            else:
                links.append(path.relative_to(folder).as_posix())
        return BaseFiles(tuple(files), tuple(links))

    def _links_of(self, base: str) -> Iterator[str]:
        start = f"{self.store.bases}/{base}/"
        yield from (name[len(start) :] for name in self.archived_links if name.startswith(start))

    # --- what is wrong with it -----------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """Return what a look at the chosen bases finds: whether each can be opened and read, not what texts say."""
        found = self.store.audit(Level.SHAPE, frozenset(self.chosen)).findings
        if self.manifest is not None:
            return list(found)  # each file is held against its checksum, and was looked into when it was packed
        return [*found, *(one for base in self.chosen if (one := self._damage(base)) is not None)]

    def _damage(self, base: str) -> Finding | None:
        """Return what SQLite's own check says of the index of a base."""
        store = self.store.stores.get(base)
        if store is None:
            return None
        try:
            with sqlite.open_readonly(self.store.root / store.name) as db:
                damage = find_table_damage(db)
        except (apsw.Error, OSError, UnicodeDecodeError) as error:
            damage = str(error)
        return (
            None
            if damage is None
            else Finding(
                name=v2.CORRUPT,
                severity="error",
                message=tr("SQLite's own check says: {damage}", damage=damage),
                base=base,
            )
        )

    def problem(self, base: str, findings: list[Finding]) -> Finding | None:
        """Return what keeps a base where it is, of what was found; None where nothing does."""
        if not isinstance(self.bases[base].get("id"), str) or not is_folder_name(base):
            return Finding(
                name=v2.BASE_STATUS, severity="error", message=tr("its id cannot be the name of a folder"), base=base
            )
        if self.is_slim and base not in self.store.stores:
            message = tr(
                "a slim backup has its rows, and neither its index nor its files: take a full one, or the profile"
            )
            return Finding(name=BACKUP_SLIM, severity="warning", message=message, base=base)
        if INDEX_FILE in self.files(base).links:
            return Finding(
                name=v2.BASE_NO_INDEX,
                severity="error",
                message=tr("its index is a link, or behind one: it is not followed"),
                base=base,
            )
        return next((one for one in findings if one.base == base and one.name in _GRAVE), None)

    def demand_whole(self) -> None:
        """Hold what the manifest lists of the catalog and of the chosen bases against the files.

        Raises:
            PackDamaged: it names the first that is not what was packed.
        """
        if self.manifest is None:
            return
        for name, packed in self.packed.items():
            base = self._base_of_file(name)
            problem = self._damage_of(name, packed) if base is None or base in self.chosen else None
            if problem is not None:
                raise PackDamaged(path=self.store.path, file=name, reason=problem)
        for base in filter(is_folder_name, self.chosen):
            for name in map(self.inside, self.files(base).files):
                if name not in self.packed:
                    raise PackDamaged(path=self.store.path, file=name, reason=tr("no part of the pack"))

    def _damage_of(self, name: str, packed: pack.PackedFile) -> str | None:
        """Return how a file differs from what was packed; None where it does not."""
        found = self.store.found
        try:
            path, digest = self._path_of(name), found.digests.get(name)
            return found.damaged.get(name) or pack.find_file_problem(path, packed, digest)
        except (OSError, ValueError) as error:
            return str(error)

    def _path_of(self, name: str) -> Path:
        return self.store.root.joinpath(*check_path(name).split("/"))

    def _base_of_file(self, name: str) -> str | None:
        start = f"{self.store.bases}/"
        return name[len(start) :].partition("/")[0] if name.startswith(start) else None


def _is_inside(path: Path, root: Path) -> bool:
    """Tell whether a file is there and lies below a root, also after resolving links."""
    return (
        file_paths.is_file(path)
        and not file_paths.is_link(path)
        and links.real_path(root) in links.real_path(path).parents
    )


def _walked(folder: Path) -> Iterator[Path]:
    """Yield what is below a folder and is no folder, sorted; links to folders are among it and not followed.

    Raises:
        SourceUnreadable: a folder cannot be looked into.
    """

    def refuse(error: OSError) -> None:
        raise SourceUnreadable(path=error.filename, reason=error.strerror or error) from error

    if file_paths.is_link(folder):
        yield folder
        return
    if not file_paths.is_folder(folder):
        return
    found = []
    for place, folders, files in file_paths.walk(folder, refuse):
        found += [Path(place, name) for name in files]
        found += [path for name in folders if file_paths.is_link(path := Path(place, name))]
    yield from sorted(found)


# --- opening ---------------------------------------------------------------------------------------------------------


@contextmanager
def open_base_source(path: Path, kind: Kind | None, named: Sequence[str], command: str) -> Iterator[BaseSource]:
    """Recognise a source of bases and keep it open; of an archive only the chosen bases are unpacked.

    Args:
        path: what the user named.
        kind: what it is, where the user says so.
        named: names or ids (v1 or v2, or unique beginnings of one) of the bases that are meant; empty: all.
        command: the name of the command that asks.

    Raises:
        NotChanged: it is nothing that has bases with a catalog.
        ProfileInUse: it is a profile whose application is running.
        SourceUnreadable, PackUnreadable: its catalog or manifest cannot be read.
        BaseUnknown, BaseAmbiguous: it has no such base, or several.
        RegraftError: it cannot be recognised, or not be unpacked.
    """
    with open_store(path, kind) as found:
        catalog = found.stores.catalog
        if found.kind not in BASE_SOURCES or catalog is None:
            raise NotChanged(path=path, what=KIND_NAMES[found.kind], command=command, advice=_advice(found))
        if found.stores.is_copy:
            raise NotChanged(path=path, what=CATALOG_COPY, command=command, advice=COPY_ADVICE)
        _demand_quiet(found)
        rows = _read_rows(found, catalog)
        inside = find_inner_folder(found.tree) if isinstance(found.tree, ZipTree) else ""
        manifest = pack.read_manifest(found.tree, inside)
        legacy = (manifest.legacy_ids if manifest is not None else {}) | read_reported_ids(found.tree, inside)
        chosen = _chosen(named, {base_id_text(row): row for row in rows.bases}, legacy)
        with unpack_archive(found, chosen) as unpacked:
            store = Store(path=path, root=unpacked.tree.path, found=unpacked, chosen=frozenset(chosen))
            pristine = manifest if found.is_archive or is_unchanged_pack(store.root) else None
            yield BaseSource(
                store=store,
                catalog=rows,
                chosen=tuple(chosen),
                manifest=pristine,
                archive=found.tree if isinstance(found.tree, ZipTree) else None,
                archive_folder=inside,
                archived_links=_links(found),
                legacy_ids=tuple(legacy.items()),
            )


def _advice(found: Located) -> str:
    if found.kind in V1_SOURCES:
        return tr("regraft migrate makes a library of it")
    return tr("give a library, a pack, a backup of version 7 or a v2 profile, with its catalog")


def _demand_quiet(found: Located) -> None:
    sign = profile.detect_running_app(found.profile) if found.profile is not None else None
    if sign is not None:
        raise ProfileInUse(path=found.path, sign=sign)


def _read_rows(found: Located, catalog: str) -> StoredCatalog:
    try:
        with found.tree.local(catalog, None) as local:
            return read_catalog(local, data=False)
    except CatalogProblem as problem:
        raise SourceUnreadable(path=f"{found.path}: {catalog}", reason=problem) from problem


def _links(found: Located) -> tuple[str, ...]:
    tree = found.tree
    if not isinstance(tree, ZipTree):
        return ()
    inside = find_inner_folder(tree)
    names = (name for name in tree.files(found.stores.bases) if tree.is_link(name))
    return tuple(str(PurePosixPath(name).relative_to(inside or ".")) for name in names)


# --- which bases -----------------------------------------------------------------------------------------------------


def _chosen(named: Sequence[str], bases: dict[str, Row], legacy: dict[str, str]) -> list[str]:
    """Return the ids of the bases that are meant; without any name, of all.

    Raises:
        BaseUnknown, BaseAmbiguous
    """
    names = {base: str(row.get("name")) for base, row in bases.items()}
    wanted = {resolve_base(name, names, legacy) for name in named}
    return [base for base in bases if not named or base in wanted]
