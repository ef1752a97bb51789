"""Report pages: one offline HTML file each, for a browser, a telephone, paper and dark mode.

A page is a Jinja template of ``regraft/report/templates``. Every value is escaped for HTML and by
:func:`regraft.text.printable`. A page loads nothing and needs no script. A chart is an inline SVG with a text
alternative, and its numbers are on the page as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from regraft import __version__, identity
from regraft.disk import durable, writable
from regraft.errors import OutputLost, ReportNotWritable
from regraft.language import available_languages, current_language, tr
from regraft.report.labels import label_of, severity_label
from regraft.text import printable

#: The first bytes of a page: language, and name of the command. The version follows.
_START = (
    '<!doctype html>\n<html lang="{}">\n<head>\n<meta charset="utf-8">\n<meta name="generator" content="regraft {} '
)
#: Bytes read of a file to tell whether it is a page.
_START_BYTES = 200


class BarPart(NamedTuple):
    """One part of a stacked bar: its CSS class, its name, and its number."""

    kind: str
    name: str
    number: int


class Segment(NamedTuple):
    """A part of a bar as it is drawn; ``x`` and ``width`` are percentages with their sign."""

    kind: str
    name: str
    number: int
    x: str
    width: str


def render_page(template: str, command: str, **values: object) -> str:
    """Fill a template of ``regraft/report/templates`` with values, for the page of a command."""
    return str(
        load_template(template).render(command=command, version=__version__, language=current_language(), **values)
    )


def load_template(template: str) -> Any:
    """Load a Jinja template by its file name."""
    return _environment().get_template(template)


def make_environment(package: str) -> Any:
    """Make a Jinja environment for the ``templates`` of a package: every value is escaped and made printable."""
    # Jinja takes a while to load, and few runs write a page.
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415
    from markupsafe import Markup  # noqa: PLC0415

    def show(value: object) -> object:
        """Make a value safe to print, unless it is HTML already."""
        return value if isinstance(value, Markup) else printable(value)

    return Environment(
        loader=PackageLoader(package, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=show,
    )


@cache
def _environment() -> Any:
    """Make the Jinja environment of report pages, with their filters and functions."""
    from markupsafe import Markup, escape  # noqa: PLC0415 - with Jinja, see above

    def render_prose(sentence: str) -> Markup:
        """Escape a text for HTML, and turn its parts between backticks into code."""
        return Markup(re.sub("`(.+?)`", r"<code>\1</code>", str(escape(printable(sentence)))))

    environment = make_environment("regraft.report")
    environment.filters.update(number="{:,}".format, prose=render_prose)
    style = (files("regraft.report") / "style.css").read_text("utf-8")
    environment.globals.update(
        tr=tr,
        label_of=label_of,
        severity_label=severity_label,
        segments=_segments,
        style=Markup(style),
        colon=tr("{heading}: ", heading=""),
    )
    return environment


def _segments(parts: Sequence[BarPart], whole: int | None) -> Iterator[Segment]:
    """Yield the non-empty parts of a stacked bar as they are drawn.

    ``whole`` is the number that fills the bar; None: the sum of all parts.
    """
    total = sum(count for _, _, count in parts) if whole is None else whole
    before = 0
    for kind, name, count in parts:
        if count:
            yield Segment(kind, name, count, format_percent(before, total), format_percent(count, total))
        before += count


def format_percent(part: float, whole: float) -> str:
    """Format ``part / whole`` as a length of SVG, such as "12.500%"."""
    return f"{100 * part / whole:.3f}%"


def is_report_page(command: str, start: str) -> bool:
    """Whether a file that starts with ``start`` is a page that the command wrote, in any language."""
    return any(start.startswith(_START.format(language, command)) for language in available_languages())


def check_page_path(command: str, path: Path | None, *read: Path) -> None:
    """Check that the page of a command may be written to ``path`` (None: no page).

    It may only replace an earlier page of the command, and may not be inside a path in ``read``.

    Raises:
        ReportNotWritable
    """
    if path is None:
        return
    try:
        reason = writable.find_output_problem(path, read) or _describe_obstacle(command, path)
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise ReportNotWritable(path=path, reason=reason)


def _describe_obstacle(command: str, path: Path) -> str:
    """Describe what keeps a page from being written to a path; empty if nothing, or only an earlier page, is there."""
    if path.is_symlink():
        return tr("it is a link")
    if not path.exists():
        return ""
    if not path.is_file():
        return tr("it is a {is_dir}", is_dir=label_of("folder" if path.is_dir() else "device"))
    with path.open("rb") as file:
        start = file.read(_START_BYTES).decode("utf-8", "replace")
    if is_report_page(command, start):
        return ""
    return tr("it exists and is not a report page of regraft {command}", command=command)


def write_page(path: Path, page: str) -> None:
    """Write a page to a file atomically.

    Raises:
        OSError: it cannot be written; an earlier file at ``path`` is unchanged.
    """
    temporary = path.with_name(f".{identity.new_run_id()}.part")
    with writable.allow_writes(path.parent, entries_only=True):
        try:
            durable.write_text_atomically(path, page, temporary)
        finally:
            durable.remove_tree(temporary)


def write_last_page(page: Path | None, render: Callable[[], str]) -> OutputLost | None:
    """Write the page of a command whose work is done; return the error, because the result is printed anyway.

    Args:
        page: the file; None: no page.
        render: makes the text of the page.
    """
    if page is None:
        return None
    return writable.write_last_output(page, lambda: write_page(page, render()))
