"""``regraft restore``: from the texts of a base to a new base (``docs/restore.md``)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
from msgspec import structs

from regraft.disk import durable, writable
from regraft.errors import ConsentMissing, Declined
from regraft.formats.cherry_v2.layout import CATALOG_FILE, KNOWLEDGE_FOLDER, PROFILE_DATABASE, open_surrounding_tree
from regraft.kinds import Kind
from regraft.report.progress import Progress
from repair.changes import execution, files
from repair.changes.plan import Plan
from repair.changes.run import ChangeReport, run_command
from repair.changes.session import open_session, recover_if_interrupted
from repair.changes.store import Store, demand_not_running, open_for_change
from repair.cherry_v2.catalog_changes import read_store_catalog
from repair.cherry_v2.restore.build import BuiltBase, build_base, demand_text, paid_dimensions
from repair.cherry_v2.restore.publish import build_folder, discard_build, new_rows, publish_plan
from repair.cherry_v2.restore.source import RestoredBase, read_source

#: Fills vectors into the index that it is given, and returns once another run would send nothing more. It raises to
#: leave the base to another run, which goes on. In a dry run the index lies elsewhere, and is only looked at.
Fill = Callable[[Path], None]
_COMMAND = "restore"


class RestoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be restored: the base (its v2 or v1 id; None: the only one), as what, and the run's time in ms."""

    base: str | None
    wanted: RestoredBase
    now_ms: int
    kind: Kind | None = None


def restore(
    path: Path,
    options: RestoreOptions,
    fill: Fill,
    *,
    dry_run: bool = False,
    progress: Progress,
    show_plan: Callable[[ChangeReport], bool] = lambda _: True,
) -> ChangeReport:
    """Make a new base of an old one's texts, with the vectors that ``fill`` gives them; returns what was done.

    Until these are there, nothing but regraft's own folder is written.

    Raises:
        RegraftError: refused (exit status 2), stopped midway (3) or interrupted (130).
    """
    root, base = containing_store(path, options.base)
    kind = options.kind if root == path else None
    with open_for_change(root, kind, _COMMAND) as store:
        if dry_run:
            with durable.temporary_folder() as work:
                source = read_source(store, base)
                build_folder(source, options.wanted)
                restored = build_base(source, options.wanted, work, options.now_ms, progress)
                fill(restored.index(work))
                planner = partial(_plan, base=base, options=options, restored=restored, staged=work)
                return run_command(_COMMAND, root, planner, kind=kind, dry_run=True, progress=progress)
        restored, staged, is_new = _built(store, base, options, progress)
    try:
        fill(restored.index(staged))
    except (Declined, ConsentMissing):
        # What an earlier run has paid for stays for a later one.
        if is_new:
            with writable.allow_writes(store.root):
                discard_build(staged)
        raise
    planner = partial(_plan, base=base, options=options, restored=restored, staged=staged)
    done = run_command(_COMMAND, root, planner, kind=kind, progress=progress, show_plan=show_plan)
    with writable.allow_writes(store.root):
        discard_build(staged)
    return done


def demand_restorable(path: Path, options: RestoreOptions) -> int | None:
    """Refuse what cannot be restored, before anything is paid for; ``options.wanted.dimensions`` may be any number.

    Returns:
        How many dimensions the vectors have that an earlier run has paid for; None where there are none.

    Raises:
        NotRestored: that was done already, the base has no text, or the catalog cannot have its model.
        RegraftError: as for :func:`restore`.
    """
    root, base = containing_store(path, options.base)
    with open_for_change(root, options.kind if root == path else None, _COMMAND) as store:
        source = read_source(store, base)
        for row in read_store_catalog(store, data=False).bases:
            if isinstance(row.get("dimensions"), int):
                build_folder(source, structs.replace(options.wanted, dimensions=row["dimensions"]))
        known = paid_dimensions(source, options.wanted.model_id, store.own / execution.RESTORING)
        if known is None:
            new_rows(source, options.wanted, (), options.now_ms)
            demand_text(source, options.wanted)
        return known


def containing_store(path: Path, base: str | None) -> tuple[Path, str | None]:
    """Return the library or profile of a base's folder or index file, and the base's id; anything else as it is."""
    place = path.absolute()
    if any((place / name).is_file() for name in (CATALOG_FILE, PROFILE_DATABASE)):
        return path, base
    folder = next((one for one in (place, *place.parents) if one.parent.name == KNOWLEDGE_FOLDER), None)
    return (path, base) if folder is None else (open_surrounding_tree(folder)[0].path, base or folder.name)


def _plan(store: Store, base: str | None, options: RestoreOptions, restored: BuiltBase, staged: Path) -> Plan:
    return publish_plan(read_source(store, base), options.wanted, restored, staged, options.now_ms)


def _built(store: Store, base: str | None, options: RestoreOptions, progress: Progress) -> tuple[BuiltBase, Path, bool]:
    """Build the base; return it, where it lies, and whether no earlier run had begun it."""
    demand_not_running(store)
    recover_if_interrupted(store)
    source = read_source(store, base)
    base_id = options.wanted.base_id(source.key)
    if base_id in source.bases:
        # A run that was killed once the base was in its place has left what it had built.
        discard_build(store.own / execution.RESTORING / base_id)
    staged = build_folder(source, options.wanted)
    is_new = not staged.exists()
    # What the catalog refuses is refused before anything is paid for.
    new_rows(source, options.wanted, (), options.now_ms)
    with open_session(store):
        try:
            return build_base(source, options.wanted, staged, options.now_ms, progress), staged, is_new
        finally:
            files.remove_empty_folders(staged, store.own)
