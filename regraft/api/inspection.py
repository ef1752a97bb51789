"""A first look at what a path is, as a function (``docs/api.md``)."""

from __future__ import annotations

from pathlib import Path

from checks import inspect as checks_inspect
from checks.looks import InspectOptions
from regraft.api.arguments import as_path, parse_kind, progress_or_silent, time_or_now
from regraft.kinds import Kind
from regraft.report.document import Run
from regraft.report.progress import Progress
from regraft.stores.locate import open_store


def inspect(
    path: str | Path,
    *,
    kind: Kind | str | None = None,
    items: bool = False,
    now_ms: int | None = None,
    progress: Progress | None = None,
) -> checks_inspect.InspectReport:
    """Return what a path is and what is in it, with every item if ``items``; as ``regraft inspect PATH`` does.

    Raises:
        RegraftError: as ``docs/errors.md`` has them.
    """
    place = as_path(path)
    run = Run(command="inspect")
    with open_store(place, parse_kind(kind)) as source:
        run.source_kind, run.source = source.kind.value, source.path if source.notices else place
        asked = InspectOptions(items=items, now_ms=time_or_now(now_ms), progress=progress_or_silent(progress))
        return checks_inspect.make_inspect_report(source, run, asked)
