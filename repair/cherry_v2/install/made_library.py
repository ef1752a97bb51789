"""The library that ``regraft migrate --profile`` leaves beside a profile: how both are tied, and how undo removes it.

The run is recorded in both ledgers. The library's names the profile and the source, the profile's names the library.
``undo`` of the profile removes the library only if both ledgers agree, no other run wrote to it or installed from it,
every file in it is as it was written, and the source that it was migrated from still has everything. A copied or forged
ledger alone has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath

import apsw
import msgspec

from migrators.pipeline import preflight
from migrators.pipeline.publication import BaseState, TargetLibrary, base_state, check_base_entries, check_ledger
from regraft.disk import durable, file_paths, links, sqlite, untrusted_sqlite, writable
from regraft.errors import RegraftError
from regraft.formats.cherry_v2.index.opening import READ_ERRORS
from regraft.formats.cherry_v2.layout import REPORT_FILE, REPORT_PAGE
from regraft.language import format_count, tr
from regraft.ledger import ledger as ledgers
from regraft.ledger.ledger import FOLDER, Ledger, LedgerEntry, RunRecord
from regraft.ledger.values import RecordedAction
from regraft.processes import interrupts
from regraft.stores.locate import CATALOG_FILE, INDEX_FILE, KNOWLEDGE_FOLDER, RAW_FOLDER
from regraft.text import path_text, printable
from repair.changes.plan import Action
from repair.changes.run import OutsideUndo
from repair.changes.store import Store
from repair.changes.undo import undoable_changes

#: Recorded in the ledger of the library.
FOR_PROFILE, FROM_SOURCE = "for-profile", "from-source"
#: Recorded in the ledger of the profile: the library that the run wrote, or that an earlier command had written.
WRITE_LIBRARY, READ_LIBRARY = "write-library", "read-library"
#: Actions of undo.
REMOVE_LIBRARY, KEEP_LIBRARY = "remove-library", "keep-library"
_LAYOUT = {CATALOG_FILE, KNOWLEDGE_FOLDER, REPORT_FILE, REPORT_PAGE, FOLDER}
_READ_ERRORS = (RegraftError, OSError, apsw.Error, msgspec.MsgspecError, ValueError)


def _absolute(path: Path) -> str:
    """Return the real path, as the ledger records paths."""
    return path_text(links.real_path(path.absolute()))


def _recorded_action(action: str, subject: str, message: str, size: int = 0) -> RecordedAction:
    """Make an action as the ledger records it: its name, the path that it is about, a message, and a size in bytes."""
    return RecordedAction(action=action, base=None, subject=subject, count=1, bytes=size, finding=None, message=message)


def library_actions(source: Path, profile: Path) -> tuple[RecordedAction, ...]:
    """Make the actions by which a library's ledger records that it was migrated from ``source`` into ``profile``."""
    size = file_paths.stat(source).st_size if file_paths.is_file(source) else 0
    return (
        _recorded_action(FOR_PROFILE, _absolute(profile), tr("install it into {path}", path=printable(profile))),
        _recorded_action(FROM_SOURCE, _absolute(source), tr("read {path}", path=printable(source)), size),
    )


def profile_action(library: Path, profile: Path, bases: int, *, wrote: bool) -> Action:
    """Make the action by which the ledger of a profile records the library that bases are installed from.

    Args:
        library: the library.
        profile: the profile.
        bases: number of the installed bases.
        wrote: whether the run writes to the library.
    """
    runs = ledgers.read_runs(library)
    is_own = not runs or _are_made_for(runs, _absolute(profile))
    message = tr("use the library {path}, which already existed", path=printable(library))
    if is_own and wrote:
        message = tr("write {bases} to the library {path}", bases=format_count(bases, "base"), path=printable(library))
    # The undo removes a library that earlier runs wrote for the same profile, too.
    action = WRITE_LIBRARY if is_own else READ_LIBRARY
    return Action(action=action, subject=_absolute(library), count=bases, message=message)


def is_made_for(library: Path, profile: Path) -> bool:
    """Whether all runs that wrote to a library were migrations into this profile; False if its ledger is unreadable."""
    return _are_made_for(_readable_runs(library), _absolute(profile))


def is_made_from(library: Path, source: Path) -> bool:
    """Whether all runs that wrote to a library migrated this source; False if its ledger is unreadable."""
    runs = _readable_runs(library)
    names = {path_text(source), path_text(source.absolute())}
    return bool(runs) and all(run.command == "migrate" and run.source in names for run in runs)


def _readable_runs(library: Path) -> Sequence[RunRecord]:
    """Read the runs from the ledger of a library; none if it cannot be read."""
    try:
        return ledgers.read_runs(library)
    except RegraftError:
        return ()


def _are_made_for(runs: Sequence[RunRecord], profile: str) -> bool:
    """Whether there are runs of a library, and all were migrations into the profile at this path."""
    return bool(runs) and all(profile in _subjects(run.actions, FOR_PROFILE) for run in runs)


def _subjects(actions: Iterable[RecordedAction], name: str) -> list[str]:
    """Return the subjects of the actions with this name: paths, as the ledger records them."""
    return [one.subject for one in actions if one.action == name and one.subject is not None]


def find_partial_run(profile: Path) -> str | None:
    """Return the id of the latest run in a profile if it is a stopped installation from a library, else None."""
    runs = [run for run in ledgers.read_runs(profile) if undoable_changes(run)]
    last = runs[-1] if runs else None
    if last is None or last.command != "install" or last.status == "finished":
        return None
    names = {action.action for action in last.actions}
    return last.run_id if names & {WRITE_LIBRARY, READ_LIBRARY} else None


# --- undo ------------------------------------------------------------------------------------------------------------


#: Whether a source (the first path) still has everything that a library (the second) was made from.
SourceCheck = Callable[[Path, Path], bool]


def outside_undo(store: Store, run: RunRecord, runs: Sequence[RunRecord], *, has_all: SourceCheck) -> OutsideUndo:
    """Plan what undoing ``run``, one of the ``runs`` in a profile, does with the library that it wrote.

    The library is removed, or kept with a reason; nothing if the run wrote none. ``has_all`` checks its sources.
    """
    subjects = _subjects(run.actions, WRITE_LIBRARY)
    if not subjects:
        brought = _find_brought_bases(store, run)
        return OutsideUndo(removed_vectors=list(brought), lost_origin=_find_lost_origin(store.root, brought.values()))
    library = Path(subjects[0])
    aside = _aside(library, run.run_id)
    place = library if file_paths.exists(library) or not file_paths.exists(aside) else aside
    if not file_paths.exists(place):
        # What the library was migrated from may still exist.
        return OutsideUndo(removed_vectors=list(_find_brought_bases(store, run)))
    others = (one for one in runs if one.run_id != run.run_id and undoable_changes(one))
    is_used = any(
        subjects[0] in _subjects(one.actions, name) for one in others for name in (WRITE_LIBRARY, READ_LIBRARY)
    )
    used = tr("another run has installed bases from it, too")
    reason = used if is_used else _reason_to_keep(place, store.root, has_all)
    if reason is not None:
        message = tr("keep the library {path}: {reason}", path=printable(library), reason=reason)
        return OutsideUndo(actions=[Action(action=KEEP_LIBRARY, subject=subjects[0], message=message)])
    message = tr("remove the library {path}", path=printable(library))
    size = sum(file_paths.lstat(path).st_size for path in file_paths.iterate_below(place))
    action = Action(action=REMOVE_LIBRARY, subject=subjects[0], bytes=size, message=message)
    return OutsideUndo(actions=[action], during=partial(_removing, library, aside))


#: Actions that bring the vectors of a base into a store.
_BRINGING = ("copy-base", "write-index")


def _find_brought_bases(store: Store, run: RunRecord) -> dict[str, str | None]:
    """Map the bases whose vectors a run brought into a store, sorted by id, to the path that they came from, if known.

    Bases without a vector are left out. An index that cannot be read counts as one with vectors.
    """
    origins = {str(one.base): one.origin or None for one in run.actions if one.action in _BRINGING and one.base}
    return {base: origins[base] for base in sorted(origins) if base in store.stores and _has_vectors(store, base)}


def _has_vectors(store: Store, base: str) -> bool:
    """Whether the index of a base has a vector, or cannot be read."""
    try:
        with sqlite.open_readonly(store.root / store.stores[base].name) as db:
            return db.execute("SELECT 1 FROM embedding LIMIT 1").get is not None
    except READ_ERRORS:
        return True


def _find_lost_origin(root: Path, origins: Iterable[str | None]) -> str | None:
    """Return the first recorded path from which vectors were copied and at which nothing is any more, or None.

    Paths without a root are below ``root``, the store.
    """
    # A ledger may come from an untrusted source: paths of other computers and of devices are not looked for.
    known = (path for path in origins if path is not None and ledgers.is_suggestible(path))
    return next((path for path in known if not file_paths.lexists(root / path)), None)


def remove_leftovers(profile: Path) -> None:
    """Remove libraries that a killed undo of a profile's run had moved aside, but not yet removed."""
    for run in ledgers.read_runs(profile):
        if any(change.state != "undone" for change in run.changes if change.state != "dropped"):
            continue
        for subject in _subjects(run.actions, WRITE_LIBRARY):
            aside = _aside(Path(subject), run.run_id)
            with suppress(*_READ_ERRORS):
                if file_paths.is_folder(aside) and is_made_for(aside, profile):
                    _remove(aside)


def _aside(library: Path, run_id: str) -> Path:
    """Return the path to which undo of a run moves a library before it removes it."""
    return library.with_name(f".{library.name}.undo-{run_id.rpartition('-')[2]}")


@contextmanager
def _removing(library: Path, aside: Path) -> Iterator[None]:
    """Context that moves a library to ``aside``, and removes it if the block succeeds; else it is moved back."""
    with writable.allow_writes(library.parent, entries_only=True):
        if not file_paths.exists(aside):
            durable.replace(library, aside)
        try:
            yield
        except BaseException:
            with suppress(OSError, RegraftError), interrupts.defer_stops():
                durable.replace(aside, library)
            raise
    _remove(aside)


def _remove(library: Path) -> None:
    """Remove a library, its ledger last, so that the folder is still recognized if the run is killed meanwhile."""
    with interrupts.defer_stops():
        with writable.allow_writes(library):
            for path in sorted(library.iterdir()):
                if path.name != FOLDER:
                    durable.remove_tree(path)
        with writable.allow_writes(library.parent, entries_only=True):
            durable.remove_tree(library)


def _reason_to_keep(library: Path, profile: Path, has_all: SourceCheck) -> str | None:
    """Return why undo in a profile must not remove a library, or None; ``has_all`` checks its sources."""
    try:
        if _absolute(library) != path_text(library):
            return tr("it is behind a symbolic link")
        runs = ledgers.read_runs(library)
        if not _are_made_for(runs, _absolute(profile)) or any(run.changes for run in runs):
            return tr("another command has written to it since")
        if any(run.status == "running" for run in runs):
            return tr("another regraft process is using it, or was killed")
        return _difference(library, runs) or _lost_source(library, runs, has_all)
    except _READ_ERRORS as error:
        return tr("it cannot be read ({error})", error=str(error).rstrip("."))


def _difference(library: Path, runs: Sequence[RunRecord]) -> str | None:
    """Return how a library differs from what the ledger says its ``runs`` wrote, or None."""
    found: list[str] = []

    def compare(ledger: Ledger) -> dict[str, LedgerEntry]:
        """Add differences from the ledger to ``found``, and return its entries unchanged."""
        entries = check_ledger(ledger)
        bases = check_base_entries(entries)
        other = _find_other_file(library, bases)
        if other is not None:
            found.append(tr("it contains {name}, which regraft did not write", name=printable(other)))
        is_whole = all(base_state(library, base, known) is BaseState.WHOLE for base, known in bases.items())
        if not is_whole or not TargetLibrary(library, runs[-1].run_id).is_catalog_unchanged(ledger):
            found.append(tr("it was changed since"))
        return entries

    ledgers.read_entries(library, compare)
    return next(iter(found), None)


def _lost_source(library: Path, runs: Sequence[RunRecord], has_all: SourceCheck) -> str | None:
    """Return which source of the library's runs is gone or changed, so that the library may be the last copy; or None.

    None means that all sources are there, with all that the library was made from, as ``has_all`` says.
    """
    read = (one for run in runs for one in run.actions if one.action == FROM_SOURCE)
    # Several runs may have read the same source; it is checked once.
    for subject, size in dict.fromkeys((one.subject, one.bytes) for one in read):
        source = Path(str(subject))
        is_there = file_paths.exists(source) and size in (0, file_paths.stat(source).st_size)
        if not is_there or not has_all(source, library):
            return tr("{source}, which it was migrated from, is gone or changed", source=printable(source))
    return None


def _find_other_file(library: Path, bases: Collection[str]) -> str | None:
    """Return the first path in a library that no migration writes, or None; ``bases`` are the ids of its bases."""
    for path in file_paths.iterate_below(library):
        first, *rest = path.relative_to(library).parts
        is_own = first == FOLDER or (first in _LAYOUT and not rest) or path.name in preflight.IGNORED
        if is_own or (first == KNOWLEDGE_FOLDER and rest[0] in bases and _is_file_of_base(PurePosixPath(*rest[1:]))):
            continue
        return "/".join((first, *rest))
    return None


def _is_file_of_base(path: PurePosixPath) -> bool:
    """Whether a path relative to the folder of a base is the index, a log of it, a raw file, or a folder above them."""
    index = PurePosixPath(INDEX_FILE)
    logs = [index.with_name(index.name + suffix) for suffix in untrusted_sqlite.COMPANION_SUFFIXES]
    return path.parts[:1] in ((), (RAW_FOLDER,)) or path in (index, index.parent, *logs)
