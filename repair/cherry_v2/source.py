"""A store from which bases are copied, to pack or install them: a library, a pack, a backup or another profile.

It is only read. Links are not followed: an untrusted archive or folder could point anywhere.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Sequence
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
from checks.cherry_v2.audit import recorded_losses
from checks.cherry_v2.findings import BACKUP_SLIM
from regraft.disk import file_paths, links, sqlite
from regraft.disk.file_paths import is_folder_name
from regraft.disk.links import leads_outside
from regraft.disk.trees import ZipTree, join_path
from regraft.errors import NotChanged, PackDamaged, ProfileInUse, RegraftError, SourceUnreadable
from regraft.formats.cherry_v1 import profile
from regraft.formats.cherry_v1.state import find_inner_folder
from regraft.formats.cherry_v2 import pack
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, Row, StoredCatalog, read_catalog
from regraft.formats.cherry_v2.layout import read_reported_ids
from regraft.identity import find_base_id, resolve_base
from regraft.kinds import BASE_SOURCES, KIND_NAMES, V1_SOURCES, Kind
from regraft.language import tr
from regraft.ledger.values import check_path
from regraft.stores.locate import INDEX_FILE, RAW_FOLDER, Located, is_unchanged_pack, open_store, unpack_archive
from regraft.text import join_command, path_argument
from repair.changes.files import find_table_damage
from repair.changes.plan import Unresolved
from repair.changes.store import CATALOG_COPY, COPY_ADVICE, Store

#: Findings that prevent copying a base: the application would clear or refuse it, or it is incomplete.
_BLOCKING = frozenset(
    {
        *(v2.UNREADABLE, v2.CORRUPT, v2.SCHEMA_MISSING, v2.SCHEMA_VERSION, v2.SCHEMA_PREVIEW, v2.META_MISSING),
        *(v2.META_BASE, v2.PATH_UNSAFE, v2.ITEM_DATA, v2.BASE_STATUS, v2.BASE_NO_INDEX),
        # Schema objects from an untrusted source must not get into a profile.
        *(v2.FOREIGN_TRIGGER, v2.FOREIGN_VIEW, v2.FOREIGN_COLUMN, v2.FOREIGN_TEXT_INDEX),
    }
)
#: Findings about items that lost rows in a salvage.
_LOST = frozenset({v2.UNIT_MISSING, v2.ITEM_NO_MATERIAL, v2.ITEM_NOT_INDEXED})


class BaseFiles(msgspec.Struct, frozen=True):
    """The files of a base, index first, and the paths of links in its folder, which are not followed."""

    files: tuple[Path, ...] = ()
    links: tuple[str, ...] = ()


@dataclass(frozen=True)
class BaseSource:
    """A store whose bases are copied into a pack or a profile; only read."""

    #: The store; for an archive, a temporary folder with the extracted files.
    store: Store
    catalog: StoredCatalog
    #: Ids of the chosen bases, in the order of the catalog.
    chosen: tuple[str, ...] = ()
    #: Manifest of a pack, zipped or extracted, that was not changed since.
    manifest: pack.Manifest | None = None
    #: The archive that was extracted, and the folder in it that contains the store.
    archive: ZipTree | None = None
    archive_folder: str = ""
    #: Paths of links in the archive.
    archived_links: tuple[str, ...] = ()
    #: Pairs of v1 id and present id of bases, as recorded in the source.
    legacy_ids: tuple[tuple[str, str], ...] = ()
    #: Why the migration that made this source could not read the vectors of bases, by present id.
    unread: tuple[tuple[str, str], ...] = ()
    #: Whether v1 data were migrated to make this source.
    is_migrated: bool = False

    @property
    def catalog_path(self) -> Path:
        """Path of the catalog."""
        return self.store.root / str(self.store.catalog)

    @property
    def is_slim(self) -> bool:
        """Whether the source is a slim backup, which has catalog rows but no files."""
        return self.store.found.is_slim

    @cached_property
    def bases(self) -> dict[str, Row]:
        """Catalog rows of all bases by id, in order."""
        return self.catalog.rows_by_base

    @cached_property
    def models(self) -> dict[Any, Row]:
        """Catalog rows of the models by id."""
        return {row.get("id"): row for row in self.catalog.models or ()}

    @cached_property
    def providers(self) -> dict[Any, Row]:
        """Catalog rows of the providers by id."""
        return {row.get("provider_id"): row for row in self.catalog.providers or ()}

    @cached_property
    def packed(self) -> dict[str, pack.PackedFile]:
        """Entries of the pack's manifest by file name; empty for other sources."""
        return {} if self.manifest is None else {file.path: file for file in self.manifest.files}

    def name_of(self, base: str) -> str:
        """Return the display name of the base with this id."""
        return str(self.bases[base].get("name") or base)

    def folder(self, base: str) -> Path:
        """Return the path where the folder of the base with this id is, if it has one."""
        return self.store.root / self.store.bases / base

    def inside(self, path: Path) -> str:
        """Return the path of a file relative to the source."""
        return path.relative_to(self.store.root).as_posix()

    def crc32(self, path: Path) -> int:
        """Return the CRC-32 of an extracted file from the directory of the archive."""
        if self.archive is None:
            raise ValueError(tr("not an archive"))
        return self.archive.crc32(join_path(self.archive_folder, self.inside(path)))

    def base_of(self, name: str) -> str | None:
        """Return the id of the base that has the id ``name`` now, or had it in v1, or None."""
        return find_base_id(name, dict.fromkeys(self.bases, ""), dict(self.legacy_ids))

    def legacy_id(self, base: str) -> str | None:
        """Return the id that a base had in v1; None if unknown."""
        return next((old for old, new in self.legacy_ids if new == base), None)

    def files(self, base: str) -> BaseFiles:
        """List the files of the base with this id: its index, and everything below ``raw/``.

        Raises:
            SourceUnreadable: a folder cannot be read.
        """
        try:
            return self._files(base)
        except RegraftError:
            raise
        except OSError as error:
            path = self.folder(base) if error.filename is None else Path(os.fsdecode(error.filename))
            raise SourceUnreadable(path=path, reason=error.strerror or error) from error

    def _files(self, base: str) -> BaseFiles:
        """List the files of the base with this id, and the links in its folder; raises OSError if unreadable."""
        folder, start = self.folder(base), f"{self.store.bases}/{base}/"
        links = [name.removeprefix(start) for name in self.archived_links if name.startswith(start)]
        if leads_outside(self.store.root, folder):
            return BaseFiles((), (*links, INDEX_FILE))
        index = folder / INDEX_FILE
        files = []
        if _is_inside(index, self.store.root):
            files.append(index)
        elif file_paths.is_link(index) or file_paths.is_file(index):
            links.append(INDEX_FILE)
        for path in _walk_files(folder / RAW_FOLDER):
            if stat.S_ISREG(file_paths.lstat(path).st_mode):
                files.append(path)
            else:
                links.append(path.relative_to(folder).as_posix())
        return BaseFiles(tuple(files), tuple(links))

    # --- problems ------------------------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """Audit whether the chosen bases can be opened and read; return their findings only. Texts are not checked."""
        found = self.store.audit(Level.SHAPE, frozenset(self.chosen)).findings
        if self.manifest is not None:
            return list(found)  # the files are verified by checksum, and were checked when they were packed
        return [*found, *(one for base in self.chosen if (one := self._index_damage(base)) is not None)]

    @cached_property
    def recorded_losses(self) -> tuple[dict[str, int], dict[str, int]]:
        """What the source records of rows that v1 or a salvage had lost (:func:`recorded_losses`)."""
        return recorded_losses(self.store.root, self.store.found)

    @property
    def lost_items(self) -> Collection[str]:
        """Ids of the items of which the source records that a salvage lost rows, or may have."""
        return self.recorded_losses[1].keys()

    def files_without_rows(self, base: str) -> int | msgspec.UnsetType:
        """Return how many files of the base with this id had no rows in v1, as the source records; unset if none."""
        return self.recorded_losses[0].get(base) or msgspec.UNSET

    def losses(self, *, is_recorded: bool) -> list[Unresolved]:
        """Report the rows that the source records as lost in a salvage.

        ``is_recorded``: the copy of the bases records the losses too. Otherwise each report says that only the source
        does.
        """
        if not self.lost_items:
            return []
        found = self.store.audit(Level.DEFAULT, frozenset(self.chosen), _LOST).findings
        own = self.store.path.name
        return [
            Unresolved.of(
                one,
                one.message if is_recorded else tr("{what}; only {store} records this", what=one.message, store=own),
            )
            for one in found
            if one.name in _LOST and not set(self.lost_items).isdisjoint(one.samples)
        ]

    def _index_damage(self, base: str) -> Finding | None:
        """Return the damage that SQLite's quick_check finds in the index of a base, or None."""
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
                message=tr("SQLite's integrity check failed: {damage}", damage=damage),
                base=base,
            )
        )

    def problem(self, base: str, findings: list[Finding]) -> Finding | None:
        """Return the finding that prevents copying a base, or None; ``findings`` are those of :meth:`findings`."""
        if not isinstance(self.bases[base].get("id"), str) or not is_folder_name(base):
            return Finding(
                name=v2.BASE_STATUS, severity="error", message=tr("its id is not a valid folder name"), base=base
            )
        if self.is_slim and base not in self.store.stores:
            message = tr("a slim backup has neither its index nor its files; use a full backup or the profile")
            return Finding(name=BACKUP_SLIM, severity="warning", message=message, base=base)
        if INDEX_FILE in self.files(base).links:
            return Finding(
                name=v2.BASE_NO_INDEX,
                severity="error",
                message=tr("its index is a symbolic link, or in a folder that is one"),
                base=base,
            )
        return next((one for one in findings if one.base == base and one.name in _BLOCKING), None)

    def demand_whole(self) -> None:
        """Compare the catalog and the files of the chosen bases with the manifest of the pack, if there is one.

        Raises:
            PackDamaged: names the first file that differs from the manifest.
        """
        if self.manifest is None:
            return
        for name, packed in self.packed.items():
            start = f"{self.store.bases}/"
            base = name.removeprefix(start).partition("/")[0] if name.startswith(start) else None
            problem = self._file_damage(name, packed) if base is None or base in self.chosen else None
            if problem is not None:
                raise PackDamaged(path=self.store.path, file=name, reason=problem)
        for base in filter(is_folder_name, self.chosen):
            for name in map(self.inside, self.files(base).files):
                if name not in self.packed:
                    raise PackDamaged(
                        path=self.store.path, file=name, reason=tr("it is not listed in the manifest of the pack")
                    )

    def _file_damage(self, name: str, packed: pack.PackedFile) -> str | None:
        """Return how the file ``name`` differs from its entry in the manifest, or None."""
        found = self.store.found
        try:
            path, digest = self.store.root.joinpath(*check_path(name).split("/")), found.digests.get(name)
            return found.damaged.get(name) or pack.find_file_problem(path, packed, digest)
        except (OSError, ValueError) as error:
            return str(error)


def _is_inside(path: Path, root: Path) -> bool:
    """Whether a path is a regular file below ``root``, also after links are resolved."""
    return (
        file_paths.is_file(path)
        and not file_paths.is_link(path)
        and links.real_path(root) in links.real_path(path).parents
    )


def _walk_files(folder: Path) -> Iterator[Path]:
    """Yield the files below a directory in sorted order. Symbolic links to directories are yielded, not followed.

    Raises:
        SourceUnreadable: a directory cannot be read.
    """

    def refuse(error: OSError) -> None:
        """Raise the error of an unreadable directory as SourceUnreadable."""
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
    """Recognize a source of bases and keep it open. Of an archive, only the chosen bases are extracted.

    Args:
        path: the path that the user named.
        kind: the kind of the source, if the user names it.
        named: names or ids (v1 or v2, or unique prefixes) of the chosen bases; empty: all.
        command: name of the command, for messages.

    Raises:
        NotChanged: it has no bases with a catalog.
        ProfileInUse: it is a profile whose application is running.
        SourceUnreadable, PackUnreadable: its catalog or manifest cannot be read.
        BaseUnknown, BaseAmbiguous: it has no such base, or several.
        RegraftError: it cannot be recognized, or not be extracted.
    """
    with open_store(path, kind) as found:
        catalog = found.stores.catalog
        if found.kind not in BASE_SOURCES or catalog is None:
            raise NotChanged(path=path, what=KIND_NAMES[found.kind], command=command, advice=_choose_advice(found))
        if found.stores.is_copy:
            raise NotChanged(path=path, what=CATALOG_COPY, command=command, advice=COPY_ADVICE)
        sign = profile.detect_running_app(found.profile) if found.profile is not None else None
        if sign is not None:
            raise ProfileInUse(path=found.path, sign=sign)
        rows = _read_rows(found, catalog)
        archive = found.tree if isinstance(found.tree, ZipTree) else None
        inside = "" if archive is None else find_inner_folder(archive)
        # Links in an archive cannot be copied.
        names = () if archive is None else (name for name in archive.files(found.stores.bases) if archive.is_link(name))
        manifest = pack.read_manifest(found.tree, inside)
        legacy = (manifest.legacy_ids if manifest is not None else {}) | read_reported_ids(found.tree, inside)
        chosen = _choose_bases(named, rows.rows_by_base, legacy)
        with unpack_archive(found, chosen) as unpacked:
            store = Store(path=path, root=unpacked.tree.path, found=unpacked, chosen=frozenset(chosen))
            pristine = manifest if found.is_archive or is_unchanged_pack(store.root) else None
            yield BaseSource(
                store=store,
                catalog=rows,
                chosen=tuple(chosen),
                manifest=pristine,
                archive=archive,
                archive_folder=inside,
                archived_links=tuple(str(PurePosixPath(name).relative_to(inside or ".")) for name in names),
                legacy_ids=tuple(legacy.items()),
            )


def _choose_advice(source: Located) -> str:
    """Return the advice for the message that a source has no bases to copy."""
    if source.kind in V1_SOURCES:
        migrate = join_command(["regraft", "migrate", path_argument(source.path), "--to", "LIBRARY"])
        return tr("it takes a library, which {command} writes", command=migrate)
    return tr("use a library, a pack, a backup of version 7 or a v2 profile, including its catalog")


def _read_rows(source: Located, catalog: str) -> StoredCatalog:
    """Read the catalog at the path ``catalog`` in the source."""
    try:
        with source.tree.local(catalog, None) as local:
            return read_catalog(local, data=False)
    except CatalogProblem as problem:
        raise SourceUnreadable(path=f"{source.path}: {catalog}", reason=problem.reason) from problem


# --- choosing bases --------------------------------------------------------------------------------------------------


def _choose_bases(named: Sequence[str], bases: dict[str, Row], legacy: dict[str, str]) -> list[str]:
    """Return the ids of the bases that the user ``named``; all if nothing was named.

    Args:
        named: names or ids, or unique prefixes of them.
        bases: the base rows by id.
        legacy: the present ids by the ids in v1.

    Raises:
        BaseUnknown, BaseAmbiguous
    """
    names = {base: str(row.get("name")) for base, row in bases.items()}
    wanted = {resolve_base(name, names, legacy) for name in named}
    return [base for base in bases if not named or base in wanted]
