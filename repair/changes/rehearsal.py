"""Run the steps of a command on a temporary copy of a store, to report exactly what a real run does.

A step plans with the result of the steps before it: records that ``repair`` deletes leave tags that ``gc`` removes.
Only making the first step tells what the second one plans, so that a dry run makes all of them on a copy.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from msgspec import structs

from regraft import steady
from regraft.errors import NotEnoughSpace, PlanOutdated, RegraftError
from regraft.kinds import SYSTEMS
from regraft.language import tr
from regraft.ledger import durable
from regraft.ledger.ledger import FOLDER
from regraft.report.progress import Progress, human_bytes, stage
from regraft.text import argument
from repair.changes.plan import Action, Unresolved
from repair.changes.report import ChangeReport
from repair.changes.session import looking
from repair.changes.store import Store

E = TypeVar("E", Action, Unresolved)
#: Folders of a profile in which the browser keeps what it can make again; no command reads them.
_CACHES = frozenset(
    {"Cache", "Code Cache", "GPUCache", "DawnCache", "DawnGraphiteCache", "DawnWebGPUCache", "ShaderCache"}
    | {"blob_storage", "Crashpad", "logs", "Service Worker", "component_crx_cache", "Partitions"}
)
#: Room for what the steps write, in times of the copy.
_ROOM = 2


def rehearse(store: Store, run: Callable[[Path], ChangeReport], progress: Progress) -> ChangeReport:
    """Return the report of a run over a temporary copy of a store; nothing in the store is written.

    Args:
        store: what is copied.
        run: makes the changes to the copy, which has the place in it that the user named in the store.
        progress: told of the files that are copied.

    Raises:
        NotEnoughSpace: the temporary folder is too small for a copy.
        PlanOutdated: the store was written to while it was copied.
        SourceUnreadable: a file of it cannot be read.
        RegraftError: the run is refused, as it would be for the store.
    """
    with looking(store):
        files = list(_files(store))
        sizes = [path.lstat().st_size for path in files]
    temporary = durable.temporary_place()
    free = shutil.disk_usage(temporary).free
    if free < _ROOM * sum(sizes):
        raise NotEnoughSpace(path=temporary, needed=human_bytes(_ROOM * sum(sizes)), free=human_bytes(free))
    with durable.temporary_folder() as folder:
        copy = folder / (store.root.absolute().name or "store")
        with stage(progress, tr("Copying"), len(files), "files"):
            for path, size in zip(files, sizes, strict=True):
                with looking(store):
                    _copy(path, copy / path.relative_to(store.root), store.root)
                progress.step(1, size)
        with looking(store):
            _copy_times(store.root, copy, files)
        named, root = store.path.absolute(), store.root.absolute()
        copied = copy / (named.relative_to(root) if named.is_relative_to(root) else Path())
        try:
            report = run(copied)
        except RegraftError as error:
            raise type(error)(**{name: _moved(fact, copy, store.root) for name, fact in error.facts.items()}) from error
        return structs.replace(
            report,
            actions=[_named_as_in(one, copied, copy, store) for one in report.actions],
            left=[_named_as_in(one, copied, copy, store) for one in report.left],
        )


def _files(store: Store) -> Iterator[Path]:
    """Yield the files, links and empty folders that commands may read of a store."""
    names = _names(store)
    for entry in sorted(store.root.iterdir()):
        is_named = names is None or any(entry.name == name or entry.name.startswith(f"{name}-") for name in names)
        if not is_named or (names is None and store.is_profile and entry.name in _CACHES):
            continue
        yield from _below(entry)


def _below(path: Path) -> Iterator[Path]:
    """Yield a file, or what a folder of any depth has in it: files, links and empty folders."""
    waiting = [path]
    while waiting:
        place = waiting.pop()
        if place.is_symlink() or place.is_file():
            yield place
        elif place.is_dir():
            inside = sorted(place.iterdir(), reverse=True)
            waiting += inside
            if not inside:
                yield place


def _names(store: Store) -> set[str] | None:
    """Return the names directly below the root that belong to a store; None: all of them do.

    A database of a system, and an index file by itself, may lie in a folder of other things.
    """
    found, system = store.found, store.system
    if system is not None and found.path != store.root:
        paths = {*system.databases(found), *system.files(found)}
    elif found.kind in SYSTEMS or found.stores.is_whole:
        return None
    else:
        paths = {part for one in store.stores.values() for part in (one.name, one.raw)}
        paths |= {found.stores.catalog} if found.stores.catalog is not None else set()
    return {FOLDER, *(Path(path).parts[0] for path in paths)}


def _copy(path: Path, target: Path, root: Path) -> None:
    durable.make_folders(target.parent, flush=False)
    if path.is_symlink():
        goal = os.path.realpath(path.parent / os.readlink(path))  # noqa: PTH115 - a junction's goal as it is stored
        inside = Path(goal).is_relative_to(root.resolve())
        durable.make_link(target, os.readlink(path) if inside else goal)  # noqa: PTH115
        return
    if path.is_dir():
        durable.make_folders(target, flush=False)
        return
    before = steady.mark_of(path)
    durable.copy_file(path, target)
    durable.copy_times(path, target)
    if steady.mark_of(path) != before:
        raise PlanOutdated(path=path, reason=tr("it was written to meanwhile"))


def _copy_times(root: Path, copy: Path, files: list[Path]) -> None:
    """Give the folders of files the times that they have in the store: ages are compared with them."""
    folders = {folder for path in files for folder in (path, *path.parents) if folder.is_relative_to(root)}
    for folder in sorted(folders, key=lambda one: len(one.parts), reverse=True):
        if folder.is_dir() and not folder.is_symlink():
            durable.copy_times(folder, copy / folder.relative_to(root))


def _named_as_in(one: E, copied: Path, copy: Path, store: Store) -> E:
    """Return an entry of a report with the paths of the store in place of those of its copy.

    Args:
        one: the entry.
        copied: what stands in the copy for the path that the user gave.
        copy: the folder that stands for the root of the store.
        store: what was copied.
    """
    fields = structs.asdict(one)
    moved = {
        name: _moved(_with_given_path(value, copied, store.path), copy, store.root) for name, value in fields.items()
    }
    return structs.replace(one, **moved)


def _with_given_path(value: object, copied: Path, given: Path) -> object:
    """Return a text whose command lines have the path that the user gave, quoted for a shell."""
    if not isinstance(value, str):
        return value
    word = shlex.quote(argument(given))
    return re.sub(rf"{re.escape(shlex.quote(argument(copied)))}(?=\s|$)", lambda _: word, value)


def _moved(value: object, copy: Path, root: Path) -> object:
    if isinstance(value, Path):
        return root / value.relative_to(copy) if value.is_relative_to(copy) else value
    if isinstance(value, str):
        return value.replace(str(copy), str(root)).replace(os.path.realpath(copy), str(root))
    return value
