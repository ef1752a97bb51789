"""A first look at what a path is, as a function (``docs/api.md``)."""

from __future__ import annotations

from pathlib import Path

from checks import inspect as checks_inspect
from checks.looks import LookOptions
from regraft.api.given import kind_of, moment, path_of, watch_of
from regraft.kinds import Kind
from regraft.locate import located
from regraft.report.document import Run
from regraft.report.progress import Progress


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
    place = path_of(path)
    run = Run(command="inspect")
    with located(place, kind_of(kind)) as source:
        run.source_kind, run.source = source.kind.value, source.path if source.notices else place
        asked = LookOptions(items=items, now_ms=moment(now_ms), progress=watch_of(progress))
        return checks_inspect.inspect(source, run, asked)
