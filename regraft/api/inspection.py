"""``inspect``: what a path is and what is in it. Loads less than any other command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from checks import inspect as checks_inspect
from checks import systems
from checks.cherry_v2.installed import InstallationsReport, find_in_user_folders, find_installations
from regraft.api.arguments import merge_options, progress_or_silent, time_or_now
from regraft.options import InspectOptions
from regraft.report.document import Run
from regraft.report.progress import Progress
from regraft.stores.locate import open_store


def inspect(
    path: str | Path, options: InspectOptions | None = None, *, progress: Progress | None = None, **fields: Any
) -> checks_inspect.InspectReport:
    """Recognize a path and count what is in it; with ``items``, list every item. Nothing is written.

    Raises:
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(InspectOptions, options, fields)
    run = Run(command="inspect")
    with open_store(Path(path), options.kind) as source:
        run.source_kind, run.source = source.kind.value, source.path if source.notices else Path(path)
        wanted = checks_inspect.InspectOptions(
            items=options.items, now_ms=time_or_now(options.now_ms), progress=progress_or_silent(progress)
        )
        return systems.make_inspect_report(source, run, wanted)


def inspect_computer(*, user_folders: bool = False) -> InstallationsReport:
    """Find the application's data and backups in the usual folders of this computer.

    With ``user_folders``, also backups, libraries and packs among downloads, documents, and on the desktop.
    """
    run = Run(command="inspect")
    places, found = find_installations()
    if user_folders:
        more, found_there = find_in_user_folders()
        known = {one.path for one in found}
        places, found = [*places, *more], [*found, *(one for one in found_there if one.path not in known)]
    run.end()
    return InstallationsReport(head=run.head(), searched=[str(place) for place in places], found=found)
