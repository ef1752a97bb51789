"""What regraft's pages share: one offline document for a browser, a telephone, paper and the dark.

A page refers to nothing outside of itself and needs no script. A chart is an inline SVG that says its numbers in words,
and the numbers stand beside it too. What a caller passes as ``html`` has gone through :func:`text` before.
"""

from __future__ import annotations

import html as html_module
import os
import re
from collections.abc import Iterable, Iterator, Sequence
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

_STYLE = """
:root { --paper: #fff; --ground: #f4f6f7; --ink: #15212b; --soft: #556371; --line: #dce2e7; --track: #dfe5ea;
  --carried: #1b7f5c; --bare: #2f7fb5; --restored: #7fcbb0; --left: #8794a1; --skipped: #c2650f; --other: #e3a45d;
  --error: #b42318; --warning: #8a5200; --note: #45596c; }
@media screen and (prefers-color-scheme: dark) {
  :root { color-scheme: dark; --paper: #161d24; --ground: #0e1318; --ink: #e5ebf0; --soft: #9dacb9; --line: #2a353f;
    --track: #303c47; --carried: #3fb488; --bare: #6cb2e0; --restored: #a5e3cd; --left: #71808e; --skipped: #e08a3a;
    --other: #8f5a23; --error: #ff8a7a; --warning: #efb45c; --note: #a9bccd; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; background: var(--ground); }
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; color: var(--ink);
  margin: 0 auto; max-width: 64rem; padding: 2.5rem 1.25rem 3rem; overflow-wrap: anywhere;
  font-variant-numeric: tabular-nums; }
p { margin: .35rem 0; }
h1 { font-size: 1.75rem; line-height: 1.2; letter-spacing: -.015em; margin: .15rem 0 .5rem; }
h2 { font-size: 1.15rem; line-height: 1.3; margin: 0 0 .25rem; }
h3 { font-size: 1rem; line-height: 1.4; margin: 0; }
code { font: .875em/1.4 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
.brand { font-weight: 700; font-size: .8rem; letter-spacing: .12em; text-transform: uppercase; color: var(--carried); }
.lead { font-size: 1.1rem; } .soft { color: var(--soft); font-size: .9rem; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: .75rem; margin-top: 1.25rem;
  padding: 1.25rem 1.4rem 1.4rem; }
.tiles { display: flex; flex-wrap: wrap; justify-content: space-between; gap: .6rem 2rem; margin: 1.5rem 0 0;
  background: var(--paper); border: 1px solid var(--line); border-radius: .75rem; padding: .9rem 1.4rem 1rem; }
.tiles dt { color: var(--soft); font-size: .85rem; }
.tiles dd { margin: 0; font-size: 1.35rem; font-weight: 600; line-height: 1.25; white-space: nowrap; }
.error { color: var(--error); } .warning { color: var(--warning); } .note { color: var(--note); }
.badge { display: inline-block; border: 1px solid currentColor; border-radius: 1rem; font-size: .75rem;
  font-weight: 600; line-height: 1.35; padding: 0 .55rem; margin-right: .4rem; vertical-align: .1em; }
h2 + svg.bar { margin: .8rem 0 .3rem; }
svg.bar { display: block; width: 100%; height: .875rem; border-radius: .25rem; shape-rendering: crispEdges; }
svg.bar .track { fill: var(--track); } svg.columns { display: block; width: 100%; height: 4.5rem; }
rect.carried, rect.covered, rect.column { fill: var(--carried); } rect.bare { fill: var(--bare); }
rect.restored { fill: var(--restored); }
rect.left { fill: var(--left); } rect.skipped { fill: var(--skipped); } rect.other { fill: var(--other); }
rect.error { fill: var(--error); } rect.warning { fill: var(--warning); } rect.note { fill: var(--note); }
svg.swatch { display: inline-block; width: .7rem; height: .7rem; border-radius: .15rem; margin-right: .35rem; }
.rows { margin-top: .9rem; display: grid; gap: .7rem; }
.row { display: grid; grid-template-columns: 10.5rem 1fr 15rem; gap: .1rem 1rem; align-items: center; }
.number { text-align: right; font-size: .925rem; white-space: nowrap; }
.number small { color: var(--soft); font-size: .925rem; margin-right: .6rem; } .row .legend { grid-column: 2 / -1; }
.legend { list-style: none; margin: 0; padding: 0; display: flex; flex-wrap: wrap; gap: 0 1.1rem; font-size: .85rem; }
.label { font-weight: 600; white-space: nowrap; } .label code { color: var(--soft); font-weight: 400; }
.finding { padding-top: 1rem; } .finding + .finding { border-top: 1px solid var(--line); margin-top: 1rem; }
.finding .row { grid-template-columns: minmax(16rem, auto) 1fr 11rem; margin-bottom: .3rem; }
.finding svg.bar { height: .5rem; }
.many { display: grid; grid-template-columns: repeat(auto-fill, minmax(13rem, 1fr)); gap: 1.4rem 1.5rem;
  margin-top: .9rem; }
figure { margin: 0; } figcaption { font-size: .85rem; margin-top: .2rem; }
.axis { display: grid; grid-template-columns: 1fr 1fr 1fr; border-top: 1px solid var(--soft); color: var(--soft);
  font-size: .75rem; line-height: 1.5; }
.axis :nth-child(2) { text-align: center; } .axis :last-child { text-align: right; }
table { border-collapse: collapse; width: 100%; margin-top: .7rem; font-size: .925rem; }
th, td { padding: .45rem .7rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { color: var(--soft); font-size: .8rem; font-weight: 600; } tr:last-child td { border-bottom: 0; }
td .label { font-size: .95rem; }
th:first-child, td:first-child { padding-left: 0; } th:last-child, td:last-child { padding-right: 0; }
td.n, th.n { text-align: right; white-space: nowrap; }
summary { cursor: pointer; color: var(--soft); font-size: .9rem; margin-top: .9rem; }
footer { color: var(--soft); font-size: .85rem; margin-top: 1.5rem; }
@media screen and (max-width: 52rem) {
  body { padding: 1.25rem .75rem 2rem; } h1 { font-size: 1.45rem; } section { padding: 1rem; }
  .tiles { display: grid; grid-template-columns: 1fr 1fr; padding: .9rem 1rem; } .tiles dd { font-size: 1.2rem; }
  .row, .finding .row { grid-template-columns: 1fr auto; gap: .2rem 1rem; } .row > svg { grid-row: 2; }
  .row > svg, .row .legend { grid-column: 1 / -1; } .none { display: none; }
  .number { white-space: normal; }
  thead { display: none; } table, tbody, tr { display: block; }
  tr { border-bottom: 1px solid var(--line); padding: .6rem 0; } tr:last-child { border-bottom: 0; }
  td, td.n { display: flex; justify-content: space-between; gap: 1rem; border: 0; padding: .1rem 0; text-align: right;
    white-space: normal; }
  td[data-label]::before { content: attr(data-label); color: var(--soft); flex: none; font-size: .85rem; }
  td.wide { display: block; text-align: left; } td.wide::before { display: none; }
}
@media print {
  @page { margin: 14mm; }
  html { background: none; font-size: 13px; } body { margin: 0; max-width: none; padding: 0; font-size: 1rem; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  section { border: 0; border-top: 1px solid var(--line); border-radius: 0; padding: .9rem 0 0; }
  .row, .finding, .tiles, figure, tr { break-inside: avoid; } h2, h2 + p, h3 { break-after: avoid; }
  th, td { padding: .25rem .45rem; } details { display: none; }
}
"""

#: A part of a bar: the class that gives its colour, what it is, and how much.
Part = tuple[str, str, int]


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
        f"<title>{text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
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
