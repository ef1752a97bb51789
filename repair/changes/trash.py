"""The trash: where files and folders go that a run takes away, below the run's own folder."""

from __future__ import annotations

from pathlib import Path

from repair.changes.files import size_of
from repair.changes.plan import Action, FileChange
from repair.changes.store import Store


def trashed(
    store: Store,
    path: Path,
    action: str,
    finding: str,
    message: str,
    base: str | None = None,
    *,
    as_is: bool = False,
    is_cache: bool = False,
) -> FileChange:
    """Return what takes a file or folder away, to the trash; ``as_is``: whatever it holds.

    ``is_cache``: its system makes it anew, as :class:`FileChange` has it.
    """
    name = path.relative_to(store.root).as_posix()
    return FileChange(
        path=name,
        actions=(
            Action(action=action, message=message, base=base, subject=name, bytes=size_of(path), finding=finding),
        ),
        make=None,
        trash=True,
        as_is=as_is,
        is_cache=is_cache,
    )
