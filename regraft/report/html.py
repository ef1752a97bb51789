"""What regraft's pages share: one offline document for a browser, a telephone, paper and the dark.

A page refers to nothing outside of itself and needs no script. A chart is an inline SVG that says its numbers in words,
and the numbers stand beside it too. What a caller passes as ``html`` has gone through :func:`text` before.
"""

from __future__ import annotations

import html as html_module
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from regraft import __version__, areas, clock, links
from regraft.errors import ReportNotWritable
from regraft.ledger import durable
from regraft.report import notices
from regraft.text import shown

#: How a page of a command begins; its version follows.
_START = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="generator" content="regraft {} '
)
#: Bytes of a file that tell whose page it is.
_START_BYTES = 200
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

#: A part of a bar: the class that gives its colour, what it is, and how much.
Part = tuple[str, str, int]


@cache
def _style() -> str:
    return (files(__package__) / "style.css").read_text("utf-8")


# --- words ---------------------------------------------------------------------------------------------------------


def text(value: object) -> str:
    """Return a value as HTML that shows it as :func:`regraft.text.shown` does."""
    return html_module.escape(shown(value))


def prose(sentence: str) -> str:
    """Return a sentence of a registry as HTML; what stands between backticks is code."""
    return re.sub("`(.+?)`", r"<code>\1</code>", text(sentence))


def badge(severity: notices.Severity) -> str:
    """Return the mark of a severity."""
    return f'<span class="badge {severity}">{severity}</span>'


# --- charts --------------------------------------------------------------------------------------------------------


def bar(parts: Sequence[Part], whole: int | None = None, *, about: str = "") -> str:
    """Return parts of a whole (without ``whole``: of their sum) side by side; ``about`` begins what is said of it."""
    total = sum(count for _, _, count in parts) if whole is None else whole
    label = ", ".join(f"{name}: {count:,}" for _, name, count in parts) or "nothing"
    return (
        f'<svg class="bar" role="img" aria-label="{text(about + label)}">'
        f'<rect class="track" width="100%" height="100%"></rect>{"".join(_segments(parts, total))}</svg>'
    )


def _segments(parts: Sequence[Part], total: int) -> Iterator[str]:
    before = 0
    for kind, name, count in parts:
        if count:
            x, width = (f"{100 * number / total:.3f}%" for number in (before, count))
            message = f"<title>{text(name)}: {count:,}</title>"
            yield f'<rect class="{kind}" x="{x}" width="{width}" height="100%">{message}</rect>'
        before += count


def columns(counts: dict[int, int], steps: int, label: str) -> str:
    """Return a histogram: how many there are in each of ``steps`` steps; one in thousands can be seen, too."""
    highest = max(counts.values(), default=1)
    drawn = []
    for step, count in counts.items():
        height = max(100 * count / highest, 3)
        x, width = (f"{100 * number / steps:.3f}%" for number in (step, 1))
        box = f'x="{x}" y="{100 - height:.3f}%" width="{width}" height="{height:.3f}%"'
        drawn.append(f'<rect class="column" {box}></rect>')
    return f'<svg class="columns" role="img" aria-label="{text(label)}">{"".join(drawn)}</svg>'


def legend(parts: Sequence[Part]) -> str:
    """Return the parts of a bar in words, but for those that are nothing."""
    entries = [
        f'<li><svg class="swatch" aria-hidden="true"><rect class="{kind}" width="100%" height="100%"></rect></svg>'
        f"{text(name)}: {count:,}</li>"
        for kind, name, count in parts
        if count
    ]
    return f'<ul class="legend">{"".join(entries)}</ul>' if entries else ""


# --- tables --------------------------------------------------------------------------------------------------------


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells of HTML.

    A head that ends with ``#`` is over numbers, one that ends with ``*`` over words. Where the window is narrow, every
    row becomes a list, in which a cell of words goes without its head.
    """
    names = [head.rstrip("#*") for head in heads]
    classes = [' class="n"' if head.endswith("#") else ' class="wide"' if head.endswith("*") else "" for head in heads]
    head = "".join(f"<th{kind}>{text(name)}</th>" for kind, name in zip(classes, names, strict=True))
    lines = []
    for row in rows:
        cells = zip(classes, names, row, strict=True)
        data = (f'<td{kind} data-label="{text(name)}">{cell}</td>' for kind, name, cell in cells)
        lines.append(f"<tr>{''.join(data)}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def reasons(counts: dict[str, int]) -> str:
    """Return a table of reasons by their codes, with what each means."""
    rows = [
        (f"<code>{text(code)}</code>", f"{counts[code]:,}", prose(notices.EVERY_CODE[code].meaning)) for code in counts
    ]
    return table(("reason", "count#", "means*"), rows)


def tiles(numbers: dict[str, str]) -> str:
    """Return a few numbers that stand out, by what they count."""
    shown_ones = (f"<div><dt>{text(name)}</dt><dd>{text(number)}</dd></div>" for name, number in numbers.items())
    return f'<dl class="tiles">{"".join(shown_ones)}</dl>'


def section(title: str, *html: str) -> str:
    """Return a part of a page."""
    return "\n".join(["<section>", f"<h2>{text(title)}</h2>", *filter(None, html), "</section>"])


# --- the document --------------------------------------------------------------------------------------------------


def document(command: str, title: str, lead: str, body: Iterable[str], foot: str) -> str:
    """Return a whole page of a command; ``lead`` is the first sentence, ``body`` and ``foot`` are HTML."""
    return (
        f'{_START.format(command)}{__version__}">\n<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>\n{_style()}</style>\n</head>\n<body>\n"
        f'<header>\n<p class="brand">regraft</p>\n<h1>{text(title)}</h1>\n<p class="lead">{text(lead)}</p>\n</header>\n'
        + "\n".join(filter(None, body))
        + f"\n<footer>{foot} regraft {text(__version__)}.</footer>\n</body>\n</html>\n"
    )


def is_page(command: str, start: str) -> bool:
    """Tell whether a file that starts so is a page of this command."""
    return start.startswith(_START.format(command))


def check_place(command: str, path: Path, *read: Path) -> None:
    """See that a page can be put at ``path``: over nothing but an earlier one, and not into what the run is about.

    Raises:
        ReportNotWritable: it cannot.
    """
    try:
        reason = _problem(command, path, read)
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise ReportNotWritable(path=path, reason=reason)


def _other_thing(command: str, path: Path) -> str:
    """Say what stands where a page is to be written; nothing where that is an earlier page, or nothing."""
    if path.is_symlink():
        return "it is a link"
    if not path.exists():
        return ""
    if not path.is_file():
        return f"it is a {'folder' if path.is_dir() else 'device'}"
    with path.open("rb") as file:
        start = file.read(_START_BYTES).decode("utf-8", "replace")
    return "" if is_page(command, start) else f"it is there already and no report page of regraft {command}"


def _problem(command: str, path: Path, read: Iterable[Path]) -> str:
    folder = path.absolute().parent
    if not folder.is_dir():
        return "its folder does not exist"
    within = next(
        (place for place in read if _lies_in(links.real_path(folder) / path.name, links.real_path(place))), None
    )
    if within is not None:
        return f"it lies in {shown(within)}, which this run is about"
    found = _other_thing(command, path)
    if found:
        return found
    return "" if os.access(folder, os.W_OK) else "no permission to write to its folder"


def _lies_in(path: Path, place: Path) -> bool:
    """Tell whether ``path`` is ``place`` or below it, also where letter case makes no difference."""
    above = (path, *path.parents)
    return place in above or (place.exists() and any(one.exists() and one.samefile(place) for one in above))


def write(path: Path, page: str) -> None:
    """Put a page at ``path`` in one step.

    Raises:
        OSError: it cannot be written; what was at ``path`` is still there.
    """
    temporary = path.with_name(f".{clock.new_run_id()}.part")
    with areas.opened(path.parent, entries_only=True):
        try:
            durable.write_text(path, page, temporary)
        finally:
            durable.remove_tree(temporary)
