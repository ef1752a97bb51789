"""Renders a run's document: JSON for programs, text for a terminal, one offline page for a browser.

All three show the same document, so they cannot disagree.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from typing import Any

from wcwidth import wcswidth

from regraft import notices
from regraft.progress import human_bytes
from regraft.text import counted

#: Warnings of one code shown in text before the rest is counted.
SHOWN_PER_CODE = 3

Document = dict[str, Any]


def as_json(document: Document, *, ascii_only: bool = False) -> str:
    """Return the document as JSON text, readable, one line end at the end."""
    return json.dumps(document, ensure_ascii=ascii_only, indent=2) + "\n"


def as_line(planned: Document) -> str:
    """Return a plan in one line: what will be carried, and the room for it."""
    totals = planned["totals"]
    needed, free = (human_bytes(planned["preflight"][key]) for key in ("bytes_needed", "bytes_free"))
    bases = counted(totals["bases"]["all"], "base")
    return f"Plan: {bases}, {_carried(totals['rows'])}; about {needed} will be written, {free} are free.\n"


def as_text(document: Document, *, verbose: bool = False) -> str:
    """Return the document of a migration or an import as text for a person."""
    planned = document["run"]["dry_run"] or document["run"]["finished_at"] is None
    lines = [*_bases(document, planned=planned)]
    if document["bases"] or document["skipped"]:
        lines += ["", *_totals(document, planned=planned)]
    return "\n".join([*lines, *_warnings(document, verbose)]) + "\n"


def _bases(document: Document, *, planned: bool) -> Iterator[str]:
    rows = [("base", "dimensions", "items", "rows", "carried", "will be" if planned else "outcome")]
    for base in document["bases"]:
        numbers = (sum(base["items"].values()), base["rows"]["read"], base["rows"]["carried"])
        outcome = f"{base['outcome']} ({base['error']})" if base["error"] else base["outcome"]
        dimensions = "-" if base["dimensions"] is None else str(base["dimensions"])
        items, read, carried = (f"{number:,}" for number in numbers)
        rows.append((_cut(base["name"], 36), dimensions, items, read, carried, outcome))
    if len(rows) == 1:
        yield "No bases."
        return
    widths = [max(_width(row[column]) for row in rows) for column in range(len(rows[0]))]
    for first, *middle, last in rows:
        cells = [_pad(first, widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(middle, widths[1:-1], strict=True)]
        yield "  ".join([*cells, last]).rstrip()


def _totals(document: Document, *, planned: bool) -> Iterator[str]:
    totals = document["totals"]
    rows = totals["rows"]
    verb = "will be carried" if planned else "carried"
    yield f"{_carried(rows)} {verb} with their vectors{_of_those(document)}, none embedded again."
    unread = _unread(document)
    if unread:
        yield f"Not counted: the rows of {counted(unread, 'base')} whose vector file cannot be read."
    yield from _reasons(document)
    if "preflight" in document:
        needed, free = (human_bytes(document["preflight"][key]) for key in ("bytes_needed", "bytes_free"))
        yield f"About {needed} will be written, {free} are free."
    elif totals["bytes"]:
        counts = (counted(totals["materials"], "material"), counted(totals["embeddings"], "vector"))
        yield f"{', '.join(counts)}, {human_bytes(totals['bytes'])} of indexes."


def _reasons(document: Document) -> Iterator[str]:
    rows = document["totals"]["rows"]
    for reason, count in rows["skipped"].items():
        yield f"  not carried: {count:,} {reason} - {notices.EVERY_CODE[reason].meaning}"
    if rows["v1_deduplicated"]:
        left_out = counted(rows["v1_deduplicated"], "chunk")
        yield f"  v1 itself had left out {left_out} of a text it had already: nothing is lost."
    if rows["restored_duplicate"]:
        yield f"  {_restored(rows)}"
    for reason, count in document["skipped"].items():
        yield f"  skipped: {count:,} {reason} - {notices.EVERY_CODE[reason].meaning}"


def _restored(rows: Document) -> str:
    given = counted(rows["restored_duplicate"], "chunk")
    return f"{given} more for files of which v1 had kept nothing, since another one has the same bytes."


def _of_those(document: Document) -> str:
    """Return how many vectors the rows have, where not every row must have one."""
    counts = [base["vectors"] for base in document["bases"] if "vectors" in base]
    return f" ({sum(counts):,})" if counts else ""


def _unread(document: Document) -> int:
    """Return how many bases there are whose rows nobody could count; those of a Parquet file are always counted."""
    if _is_import(document):
        return 0
    return sum(base["status"] == "failed" and not base["rows"]["read"] for base in document["bases"])


def _is_import(document: Document) -> bool:
    return bool(document["regraft"]["command"] == "import")


def _carried(rows: Document) -> str:
    return f"{rows['carried']:,} of {counted(rows['read'], 'row')}"


def _warnings(document: Document, verbose: bool) -> Iterator[str]:
    names = {base.get("legacy_id", base["id"]): base["name"] for base in document["bases"]}
    more: dict[str, int] = {}
    lines = []
    for warning in document["warnings"]:
        code = warning["code"]
        severity = notices.EVERY_CODE[code].severity
        if not verbose and severity == "note":
            continue
        more[code] = more.get(code, 0) + 1
        if verbose or more[code] <= SHOWN_PER_CODE:
            where = names.get(warning["base"], warning["base"])
            lines.append(f"{severity}: {f'{where}: ' if where else ''}{warning['message']} [{code}]")
    if not verbose:
        left = {code: count - SHOWN_PER_CODE for code, count in more.items() if count > SHOWN_PER_CODE}
        lines += [f"… and {count:,} more of {code} (-v shows all)" for code, count in left.items()]
    if lines:
        yield ""
        yield from lines


def _cut(text: str, width: int) -> str:
    text = " ".join(text.split())
    while _width(text) > width:
        text = text[:-2] + "…"
    return text


def _width(text: str) -> int:
    """Return the columns that ``text`` takes in a terminal."""
    return max(wcswidth(text), 0) or len(text)


def _pad(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


# --- page ----------------------------------------------------------------------------------------------------------

_PAGE_TITLES = ("regraft: report of a migration", "regraft: report of an import")
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1d2733; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #d5dce4; text-align: left; vertical-align: top; }
td.n, th.n { text-align: right; } .bar { display: flex; height: 1.2rem; border-radius: .3rem; overflow: hidden; }
.bar span { min-width: 2px; } .carried { background: #2f7d4f; } .skipped { background: #c77d1e; }
.failed, .error { color: #a4262c; } .warning { color: #8a5200; } .note { color: #51606f; }
code { font-size: .9em; } footer { margin-top: 2rem; color: #51606f; font-size: .85rem; }
@media print { body { margin: 0; max-width: none; } }
"""


def as_page(document: Document) -> str:
    """Return a run's document as one offline HTML page: statistics and reasons, never texts or vectors."""
    totals, run = document["totals"], document["run"]
    rows = totals["rows"]
    carried = f"{_carried(rows)} carried with their vectors{_of_those(document)}, none embedded again."
    title = _PAGE_TITLES[_is_import(document)]
    size = human_bytes(totals["bytes"] or 0)
    if rows["restored_duplicate"]:
        carried += f" {_restored(rows)}"
    counts = f"{counted(totals['bases']['all'], 'base')}, {counted(totals['items']['all'], 'item')}"
    version = document["regraft"]["version"]
    body = [
        f"<h1>{title}</h1>",
        f"<p>{carried} {counts}, {size}.</p>",
        _page_bar(rows),
        "<h2>Bases</h2>",
        _page_bases(document["bases"]),
        "<h2>Not carried</h2>",
        _page_reasons({**rows["skipped"], **document["skipped"]}, _unread(document)),
        "<h2>Said on the way</h2>",
        _page_codes(document["warnings"]),
        f"<footer>run {_text(run['id'])}, {_text(run['started_at'])}, regraft {_text(version)}</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def is_page(text: str) -> bool:
    """Tell whether ``text`` is a page made by :func:`as_page`."""
    return text.startswith("<!doctype html>") and any(f"<title>{title}</title>" in text[:400] for title in _PAGE_TITLES)


def _text(value: object) -> str:
    return html.escape(str(value))


def _page_bar(rows: Document) -> str:
    parts = {"carried": rows["carried"], **rows["skipped"]}
    spans = [
        f'<span class="{"carried" if name == "carried" else "skipped"}" style="flex: {count}" '
        f'title="{_text(name)}: {count:,}"></span>'
        for name, count in parts.items()
        if count
    ]
    label = ", ".join(f"{name} {count}" for name, count in parts.items())
    return f'<div class="bar" role="img" aria-label="{_text(label)}">{"".join(spans)}</div>'


def _page_bases(bases: list[Document]) -> str:
    head = "".join(
        f"<th{' class=n' if numeric else ''}>{name}</th>"
        for name, numeric in (
            ("base", False),
            ("outcome", False),
            ("dimensions", True),
            ("items", True),
            ("rows", True),
            ("carried", True),
            ("bytes", True),
        )
    )
    lines = []
    for base in bases:
        outcome = f"{base['outcome']}{': ' + base['error'] if base['error'] else ''}"
        size = human_bytes((base["index"] or {}).get("bytes") or 0)
        numbers = (
            base["dimensions"] or "-",
            f"{sum(base['items'].values()):,}",
            f"{base['rows']['read']:,}",
            f"{base['rows']['carried']:,}",
            size,
        )
        cells = "".join(f"<td class=n>{_text(number)}</td>" for number in numbers)
        grave = ' class="failed"' if base["error"] else ""
        lines.append(f"<tr><td>{_text(base['name'])}</td><td{grave}>{_text(outcome)}</td>{cells}</tr>")
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(lines)}</table></div>'


def _page_reasons(reasons: dict[str, int], unread: int) -> str:
    if not reasons:
        lost = f"The rows of {counted(unread, 'base')} whose vector file cannot be read."
        return f"<p>{lost if unread else 'Everything was carried.'}</p>"
    lines = [
        f"<tr><td><code>{_text(reason)}</code></td><td class=n>{count:,}</td>"
        f"<td>{_text(notices.EVERY_CODE[reason].meaning)}</td></tr>"
        for reason, count in reasons.items()
    ]
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def _page_codes(warnings: list[Document]) -> str:
    """Return how often each code was said; messages may quote the user's texts, so they stay in ``report.json``."""
    if not warnings:
        return "<p>Nothing.</p>"
    counts: dict[str, int] = {}
    for warning in warnings:
        counts[warning["code"]] = counts.get(warning["code"], 0) + 1
    lines = [
        f'<tr><td class="{notices.EVERY_CODE[code].severity}">{notices.EVERY_CODE[code].severity}</td>'
        f"<td><code>{_text(code)}</code></td><td class=n>{count:,}</td>"
        f"<td>{_text(notices.EVERY_CODE[code].meaning)}</td></tr>"
        for code, count in counts.items()
    ]
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'
