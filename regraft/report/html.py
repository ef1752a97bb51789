"""What regraft's pages share: one offline document for a browser, a telephone, paper and the dark.

A page is a template of ``regraft/report/templates`` with values: whatever these hold is shown as
:func:`regraft.text.printable` does, and escaped. It refers to nothing outside of itself and needs no script. A chart is an
inline SVG that says its numbers in words, and the numbers stand beside it too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from regraft import __version__, identity
from regraft.disk import durable, links, writable
from regraft.errors import ReportNotWritable
from regraft.language import available_languages, current_language, tr
from regraft.report.labels import label_of
from regraft.text import printable

#: How a page of a command begins; its version follows.
_START = (
    '<!doctype html>\n<html lang="{}">\n<head>\n<meta charset="utf-8">\n<meta name="generator" content="regraft {} '
)
#: Bytes of a file that tell whose page it is.
_START_BYTES = 200


class BarPart(NamedTuple):
    """A part of a bar: the class that gives its colour, what it is, and how much."""

    kind: str
    name: str
    number: int


def render_page(template: str, command: str, **values: object) -> str:
    """Return a page of a command.

    Args:
        template: the name of a file in ``regraft/report/templates``.
        command: the command's name.
        values: what the template shows.
    """
    return str(
        load_template(template).render(command=command, version=__version__, language=current_language(), **values)
    )


def load_template(template: str) -> Any:
    """Return a template of Jinja; one that was loaded before is at hand."""
    # Jinja takes a while to load, and few runs make a page.
    return import_module("regraft.report.environment").ENVIRONMENT.get_template(template)


def format_percent(part: float, whole: float) -> str:
    """Return a length in a chart."""
    return f"{100 * part / whole:.3f}%"


def is_report_page(command: str, start: str) -> bool:
    """Tell whether a file that starts so is a page of this command."""
    return any(start.startswith(_START.format(language, command)) for language in available_languages())


def check_page_path(command: str, path: Path | None, *read: Path) -> None:
    """See that a page can be put at ``path``: over nothing but an earlier one, and not into what the run is about.

    Without a path there is no page.

    Raises:
        ReportNotWritable: it cannot.
    """
    if path is None:
        return
    try:
        reason = _problem(command, path, read)
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise ReportNotWritable(path=path, reason=reason)


def _other_thing(command: str, path: Path) -> str:
    """Say what stands where a page is to be written; nothing where that is an earlier page, or nothing."""
    if path.is_symlink():
        return tr("it is a link")
    if not path.exists():
        return ""
    if not path.is_file():
        return tr("it is a {is_dir}", is_dir=label_of("folder" if path.is_dir() else "device"))
    with path.open("rb") as file:
        start = file.read(_START_BYTES).decode("utf-8", "replace")
    return (
        ""
        if is_report_page(command, start)
        else tr("it is there already and no report page of regraft {command}", command=command)
    )


def _problem(command: str, path: Path, read: Iterable[Path]) -> str:
    folder = path.absolute().parent
    if not folder.is_dir():
        return tr("its folder does not exist")
    within = next(
        (place for place in read if _lies_in(links.real_path(folder) / path.name, links.real_path(place))), None
    )
    if within is not None:
        return tr("it lies in {within}, which this run is about", within=printable(within))
    found = _other_thing(command, path)
    if found:
        return found
    return "" if os.access(folder, os.W_OK) else tr("no permission to write to its folder")


def _lies_in(path: Path, place: Path) -> bool:
    """Tell whether ``path`` is ``place`` or below it, also where letter case makes no difference."""
    above = (path, *path.parents)
    return place in above or (place.exists() and any(one.exists() and one.samefile(place) for one in above))


def write_page(path: Path, page: str) -> None:
    """Put a page at ``path`` in one step.

    Raises:
        OSError: it cannot be written; what was at ``path`` is still there.
    """
    temporary = path.with_name(f".{identity.new_run_id()}.part")
    with writable.allow_writes(path.parent, entries_only=True):
        try:
            durable.write_text_atomically(path, page, temporary)
        finally:
            durable.remove_tree(temporary)
