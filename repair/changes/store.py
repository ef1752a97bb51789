"""The store that a command is about to change: where it lies, what it holds, and that it may be changed now."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from checks import systems as audits
from checks.audit.collector import CheckOptions, Level
from checks.audit.findings import Audit, Finding
from regraft import identity
from regraft.disk import writable
from regraft.errors import ApplicationOpen, NotChanged, ProfilePending, RegraftError, SourceUnreadable, StoreBusy
from regraft.formats.cherry_v1 import profile
from regraft.formats.cherry_v2 import layout
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, base_id_text, read_catalog
from regraft.kinds import KIND_NAMES, PREVIEW_SOURCES, SYSTEMS, V2_STORES, Kind
from regraft.language import join_list, tr
from regraft.ledger import ledger
from regraft.ledger.ledger import RunRecord
from regraft.stores import systems, write_checks
from regraft.stores.locate import Located, open_store
from regraft.stores.systems import System
from regraft.stores.write_checks import find_pending_change
from regraft.text import path_text
from repair.changes import files

#: Kinds that are changed in place.
KINDS = V2_STORES
#: Commands that take what preview builds wrote, too.
_FOR_PREVIEWS = {"fix", "upgrade", "history", "undo"}
#: Commands that write nothing.
_ONLY_READ = {"history"}
#: Commands that nothing else takes.
_ONLY_SYSTEMS = {"rebuild", "clear-failed"}


@dataclass(frozen=True, kw_only=True)
class Store:
    """A library, a profile, a base's folder or an index file, as it is on disk now."""

    #: What the user named.
    path: Path
    #: The folder that all paths of a plan are below: the library or profile, else the base's own folder.
    root: Path
    found: Located
    #: Ids of the bases that the user chose; empty: all.
    chosen: frozenset[str] = frozenset()
    #: What ages are relative to.
    now_ms: int = field(default_factory=identity.now_ms)

    @property
    def own(self) -> Path:
        """Return the folder of regraft's own beside the data."""
        return self.root / ledger.FOLDER

    @property
    def is_profile(self) -> bool:
        """Tell whether it is (part of) the application's own data folder."""
        return self.catalog is not None and Path(self.catalog).name == layout.PROFILE_DATABASE

    @property
    def catalog(self) -> str | None:
        """Return the name of the catalog below the root, None where there is none."""
        return self.found.stores.catalog

    @property
    def bases(self) -> str:
        """Return the name of the folder of all bases below the root."""
        return self.found.stores.bases

    @property
    def stores(self) -> dict[str, layout.StoreFile]:
        """Return the index files by the base's id."""
        every = (*self.found.stores.current, *self.found.stores.preview)
        return {str(store.base_id or store.name): store for store in every}

    @property
    def system(self) -> System | None:
        """Return the system that it is of, None where it is the application's."""
        return systems.system_of(self.found.kind) if self.found.kind in SYSTEMS else None

    @cached_property
    def names(self) -> dict[str, str]:
        """Return what a person calls each base, by its id; empty where no catalog can be read."""
        if self.system is not None:
            return self.system.part_names(self.found)
        with contextlib.suppress(CatalogProblem):
            rows = [] if self.catalog is None else read_catalog(self.root / self.catalog, data=False).bases
            return {base_id_text(row): str(row.get("name")) for row in rows}
        return {}

    def wants(self, base: str | None) -> bool:
        """Tell whether a base is among those that the user chose."""
        return not self.chosen or base in self.chosen

    def runs(self, every: Sequence[RunRecord]) -> list[RunRecord]:
        """Return the runs that were about it: several databases may lie in one folder, with one ledger."""
        names = None if self.system is None else self.system.changes_only(self.found)
        if names is None:
            return list(every)
        places = {path_text(path) for path in (self.path, self.found.path, self.root)}

        def is_mine(run: RunRecord) -> bool:
            return any(change.path in names for change in run.changes) or (not run.changes and run.source in places)

        return list(filter(is_mine, every))

    def audit(self, level: Level = Level.DEFAULT, bases: frozenset[str] | None = None) -> Audit:
        """Check it without writing: all that was chosen, or just ``bases``."""
        wanted = self.chosen if bases is None else bases
        return audits.audit(self.found, CheckOptions(level=level, bases=tuple(sorted(wanted)), now_ms=self.now_ms))

    def findings(self, level: Level = Level.DEFAULT) -> list[Finding]:
        """Return what ``check`` finds in what was chosen."""
        return [one for one in self.audit(level).findings if self.wants(one.base)]


CATALOG_COPY = tr("a copy of a catalog, not the catalog of its folder")
COPY_ADVICE = tr(
    "copy it into a folder of its own as cherrystudio.sqlite (of a profile, with its KnowledgeBase) or catalog.sqlite "
    "(of a library), and give that folder"
)
_ADVICE = {"install": tr("give a v2 profile with --profile"), "rescue": tr("give a v2 profile, and v1 data with --v1")}


def _takes(command: str, kind: Kind) -> bool:
    """Tell whether a command changes stores of a kind."""
    if kind in PREVIEW_SOURCES:
        return command in _FOR_PREVIEWS
    if kind in SYSTEMS:
        return command in systems.system_of(kind).commands
    return kind in KINDS and command not in _ONLY_SYSTEMS


def _advice(command: str, found: Located) -> str:
    if found.kind is Kind.V2_BACKUP:
        return tr("restore it in the application, or let regraft install take its bases into a profile")
    if found.is_archive:
        return tr("unpack it first")
    if found.kind in SYSTEMS:
        return tr("what changes it is {sorted}", sorted=join_list(sorted(systems.system_of(found.kind).commands)))
    if command in _ONLY_SYSTEMS:
        names = (KIND_NAMES[system.kind] for system in systems.all_systems() if command in system.commands)
        return tr("it is for {names}", names=join_list(names, tr(" and ")))
    return _ADVICE.get(command, tr("regraft migrate makes a library of it"))


@contextmanager
def open_for_change(
    path: Path, kind: Kind | None, command: str, bases: tuple[str, ...] = (), now_ms: int | None = None
) -> Iterator[Store]:
    """Recognise what is to be changed, which may be changed as long as this lasts.

    Args:
        path: what the user named.
        kind: what it is, where the user says so.
        command: what is going to change it.
        bases: those that are meant; empty: all.
        now_ms: what ages are relative to; None: the present time.

    Raises:
        NotChanged: it is nothing that is changed in place.
        ProfilePending: the application is going to throw away what is written.
        LinkInStore: a link stands where a folder or file of its layout belongs.
        BaseUnknown: it has no such base.
        RegraftError: it cannot be recognised.
    """
    with open_store(path, kind) as found:
        if not _takes(command, found.kind) or found.is_archive:
            raise NotChanged(path=path, what=KIND_NAMES[found.kind], command=command, advice=_advice(command, found))
        if found.stores.is_copy:
            raise NotChanged(path=path, what=CATALOG_COPY, command=command, advice=COPY_ADVICE)
        chosen = frozenset(audits.resolve_base_ids(found, bases))
        now_ms = identity.now_ms() if now_ms is None else now_ms
        store = Store(path=path, root=found.tree.path, found=found, chosen=chosen, now_ms=now_ms)
        if command in _ONLY_READ:
            yield store
            return
        _demand_settled(store.root)
        with writable.allow_writes(store.root):
            _demand_no_links(found)
            yield store


def _demand_no_links(found: Located) -> None:
    """Refuse links in a store's layout, and a folder of it into which nobody may look for them.

    Raises:
        LinkInStore, SourceUnreadable
    """
    try:
        write_checks.refuse_store_links(found)
    except OSError as error:
        if isinstance(error, RegraftError):
            raise
        raise SourceUnreadable(path=error.filename or found.path, reason=error.strerror or error) from error


def _demand_settled(root: Path) -> None:
    """Refuse a profile whose data the application is going to replace or delete, for a dry run, too.

    Raises:
        ProfilePending
    """
    reason = find_pending_change(root)
    if reason is not None:
        raise ProfilePending(path=root, pending=reason)


def reopen_for_check(store: Store, command: str) -> AbstractContextManager[Store]:
    """Recognise a store that was changed: what a preview build wrote is of another kind now, a file may be a folder."""
    path = store.path if store.path.exists() else store.root
    kind = None if store.found.kind in PREVIEW_SOURCES else store.found.kind
    return open_for_change(path, kind, command, now_ms=store.now_ms)


def exclusive_access(store: Store) -> AbstractContextManager[None]:
    """Keep the system that a store is of from opening it, as long as this lasts, where that can be.

    Raises:
        RegraftError: it has it open.
    """
    return nullcontext() if store.system is None else store.system.alone(store.found)


def demand_not_running(store: Store) -> None:
    """Refuse to change a store whose application is running.

    Raises:
        ApplicationOpen, StoreNotWritable
        RegraftError: its system has it open.
    """
    with exclusive_access(store):
        pass
    sign = profile.detect_running_app(store.root) if store.is_profile else None
    if store.system is not None and store.system.open_file is not None:
        # The system keeps it open, with a log, as long as it runs; nothing else that it has open can be told.
        try:
            files.flush_log(store.root / store.system.open_file)
        except StoreBusy:
            sign = tr("it has {open_file} open", open_file=store.system.open_file)
    if sign is not None:
        raise ApplicationOpen(path=store.root, sign=sign)
