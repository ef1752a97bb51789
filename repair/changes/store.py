"""The store that a command is about to change: its location and content, and whether it may be changed now."""

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
from regraft.text import join_command, path_argument, path_text
from repair.changes import files

#: Kinds of stores that are changed in place.
KINDS = V2_STORES
#: Commands that also accept data of preview builds.
_FOR_PREVIEWS = {"fix", "upgrade", "history", "undo"}
#: Commands that only read.
_ONLY_READ = {"history"}
#: Commands for stores of other systems only.
_ONLY_SYSTEMS = {"rebuild", "clear-failed"}


@dataclass(frozen=True, kw_only=True)
class Store:
    """A library, a profile, the folder of a base, or an index file, as it is on disk now."""

    #: The path that the user gave.
    path: Path
    #: Root of all paths in a plan: the library or profile, else the base's folder.
    root: Path
    found: Located
    #: Ids of the chosen bases; empty: all.
    chosen: frozenset[str] = frozenset()
    #: The time that ages are relative to, in ms.
    now_ms: int = field(default_factory=identity.now_ms)

    @property
    def own_folder(self) -> Path:
        """The ``.regraft`` folder beside the data."""
        return self.root / ledger.FOLDER

    @property
    def is_profile(self) -> bool:
        """Whether the store is (part of) the application's data folder."""
        return self.catalog is not None and Path(self.catalog).name == layout.PROFILE_DATABASE

    @property
    def catalog(self) -> str | None:
        """Name of the catalog below the root, or None."""
        return self.found.stores.catalog

    @property
    def bases(self) -> str:
        """Name of the folder of all bases below the root."""
        return self.found.stores.bases

    def command_line(self, command: str, *options: str) -> str:
        """Return the command line that runs a command on this store."""
        return join_command(["regraft", command, path_argument(self.path), *options])

    def base_option(self, base: str | None) -> tuple[str, ...]:
        """Return the option that chooses a base; empty if the store is one base."""
        return ("--base", str(base)) if self.found.stores.is_whole else ()

    @property
    def stores(self) -> dict[str, layout.StoreFile]:
        """Index files by base id."""
        every = (*self.found.stores.current, *self.found.stores.preview)
        return {str(store.base_id or store.name): store for store in every}

    @property
    def system(self) -> System | None:
        """The system of the store; None for the application's own data."""
        return systems.system_of(self.found.kind) if self.found.kind in SYSTEMS else None

    @cached_property
    def names(self) -> dict[str, str]:
        """Display names of the bases by id; empty if no catalog can be read."""
        if self.system is not None:
            return self.system.part_names(self.found)
        with contextlib.suppress(CatalogProblem):
            rows = [] if self.catalog is None else read_catalog(self.root / self.catalog, data=False).bases
            return {base_id_text(row): str(row.get("name")) for row in rows}
        return {}

    def wants(self, base: str | None) -> bool:
        """Whether the user chose a base (its id), or no base in particular."""
        return not self.chosen or base in self.chosen

    def runs(self, every: Sequence[RunRecord]) -> list[RunRecord]:
        """Select the runs that changed this store from all runs in the ledger, which databases of one folder share."""
        names = None if self.system is None else self.system.changeable_paths(self.found)
        if names is None:
            return list(every)
        places = {path_text(path) for path in (self.path, self.found.path, self.root)}

        def concerns_store(run: RunRecord) -> bool:
            """Whether a run changed a file of this system, or changed nothing and had this store as source."""
            return any(change.path in names for change in run.changes) or (not run.changes and run.source in places)

        return list(filter(concerns_store, every))

    def audit(
        self, level: Level = Level.DEFAULT, bases: frozenset[str] | None = None, names: frozenset[str] = frozenset()
    ) -> Audit:
        """Check the store without writing.

        Args:
            level: how deep to look.
            bases: ids of the bases to check; None: those that the user chose.
            names: the findings that the caller needs; empty: all. Expensive checks that cannot report one are skipped.
        """
        wanted = tuple(sorted(self.chosen if bases is None else bases))
        options = CheckOptions(level=level, bases=wanted, now_ms=self.now_ms, names=names)
        return audits.audit(self.found, options)

    def findings(self, level: Level = Level.DEFAULT) -> list[Finding]:
        """Audit the store at a level, and return the findings of the chosen bases."""
        return [one for one in self.audit(level).findings if self.wants(one.base)]


CATALOG_COPY = tr("a copy of a catalog in a folder that is not its own")
COPY_ADVICE = tr(
    "copy it to a new folder as cherrystudio.sqlite (from a profile, together with its KnowledgeBase folder) or "
    "catalog.sqlite (from a library), and use that folder"
)
_ADVICE = {"install": tr("name a v2 profile with --profile"), "rescue": tr("name a v2 profile, and v1 data with --v1")}


def _is_accepted(command: str, kind: Kind) -> bool:
    """Whether a command changes stores of a kind."""
    if kind in PREVIEW_SOURCES:
        return command in _FOR_PREVIEWS
    if kind in SYSTEMS:
        return command in systems.system_of(kind).commands
    return kind in KINDS and command not in _ONLY_SYSTEMS


def _choose_advice(command: str, source: Located) -> str:
    """Return advice for the user about a store (``source``) that the command cannot change."""
    if source.kind is Kind.V2_BACKUP:
        return tr("restore it in the application, or copy its bases into a profile with regraft install")
    is_wrong_kind = command in _ADVICE and source.kind is not Kind.V2_PROFILE
    if source.is_archive and not is_wrong_kind and _is_accepted(command, source.kind):
        return tr("extract it first")
    if source.kind in SYSTEMS:
        return tr(
            "commands that change it: {sorted}", sorted=join_list(sorted(systems.system_of(source.kind).commands))
        )
    if command in _ONLY_SYSTEMS:
        names = (KIND_NAMES[system.kind] for system in systems.all_systems() if command in system.commands)
        return tr("the command is only for {names}", names=join_list(names, tr(" and ")))
    return _ADVICE.get(command, tr("migrate it to a library with regraft migrate"))


@contextmanager
def open_for_change(
    path: Path, kind: Kind | None, command: str, bases: tuple[str, ...] = (), now_ms: int | None = None
) -> Iterator[Store]:
    """Recognize a store and allow changes below its root as long as the context lasts.

    Args:
        path: the path that the user gave.
        kind: the kind of the store, if the user names it.
        command: the command that is going to change it.
        bases: the chosen bases; empty: all.
        now_ms: the time that ages are relative to; None: now.

    Raises:
        NotChanged: the path is not a store that can be changed in place.
        ProfilePending: the application is going to replace or delete the data.
        LinkInStore: a folder or file of the layout is a link.
        BaseUnknown: the store has no such base.
        RegraftError: the store cannot be recognized.
    """
    with open_store(path, kind) as found:
        if not _is_accepted(command, found.kind) or found.is_archive:
            raise NotChanged(
                path=path, what=KIND_NAMES[found.kind], command=command, advice=_choose_advice(command, found)
            )
        if found.stores.is_copy:
            raise NotChanged(path=path, what=CATALOG_COPY, command=command, advice=COPY_ADVICE)
        chosen = frozenset(audits.resolve_base_ids(found, bases))
        now_ms = identity.now_ms() if now_ms is None else now_ms
        store = Store(path=path, root=found.tree.path, found=found, chosen=chosen, now_ms=now_ms)
        if command in _ONLY_READ:
            yield store
            return
        # The application may be going to replace or delete this data. Dry runs are refused as well.
        reason = find_pending_change(store.root)
        if reason is not None:
            raise ProfilePending(path=store.root, pending=reason)
        with writable.allow_writes(store.root):
            _demand_no_links(found)
            yield store


def _demand_no_links(source: Located) -> None:
    """Refuse links in the layout of a store, and folders that cannot be read.

    Raises:
        LinkInStore, SourceUnreadable
    """
    try:
        write_checks.refuse_store_links(source)
    except OSError as error:
        if isinstance(error, RegraftError):
            raise
        raise SourceUnreadable(path=error.filename or source.path, reason=error.strerror or error) from error


def reopen_for_check(store: Store, command: str) -> AbstractContextManager[Store]:
    """Open a store again after a command changed it: its kind may be another, and a file may have become a folder."""
    path = store.path if store.path.exists() else store.root
    kind = None if store.found.kind in PREVIEW_SOURCES else store.found.kind
    return open_for_change(path, kind, command, now_ms=store.now_ms)


def exclusive_access(store: Store) -> AbstractContextManager[None]:
    """Prevent the store's system from opening it as long as the context lasts, if the system allows that.

    Raises:
        RegraftError: the system has the store open.
    """
    return nullcontext() if store.system is None else store.system.exclusive_access(store.found)


def demand_not_running(store: Store) -> None:
    """Refuse to change a store while its application is running.

    Raises:
        ApplicationOpen, StoreNotWritable
        RegraftError: its system has the store open.
    """
    with exclusive_access(store):
        pass
    sign = profile.detect_running_app(store.root) if store.is_profile else None
    if store.system is not None and store.system.open_file is not None:
        # The system keeps this file open while it runs. Other open files cannot be detected.
        try:
            files.flush_log(store.root / store.system.open_file)
        except StoreBusy:
            sign = tr("it has {open_file} open", open_file=store.system.open_file)
    if sign is not None:
        raise ApplicationOpen(path=store.root, sign=sign)
