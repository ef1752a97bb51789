"""What renders the templates of pages: whatever a value holds is shown and escaped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from regraft.language import tr
from regraft.report.html import BarPart, format_percent
from regraft.report.labels import label_of, severity_label
from regraft.text import printable


class Segment(NamedTuple):
    """A part of a bar that is drawn: where it begins, and how wide it is."""

    kind: str
    name: str
    number: int
    x: str
    width: str


def _shown(value: object) -> object:
    """Return a value as :func:`regraft.text.printable` does; what a template made is shown already."""
    return value if isinstance(value, Markup) else printable(value)


def _prose(sentence: str) -> Markup:
    """Return a sentence of a registry; what stands between backticks is code."""
    return Markup(re.sub("`(.+?)`", r"<code>\1</code>", str(escape(printable(sentence)))))


def _segments(parts: Sequence[BarPart], whole: int | None) -> Iterator[Segment]:
    """Yield the parts of a bar that are drawn; without a whole they are parts of their sum."""
    total = sum(count for _, _, count in parts) if whole is None else whole
    before = 0
    for kind, name, count in parts:
        if count:
            yield Segment(kind, name, count, format_percent(before, total), format_percent(count, total))
        before += count


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("regraft.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters.update(number="{:,}".format, prose=_prose)
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


ENVIRONMENT = _environment()
