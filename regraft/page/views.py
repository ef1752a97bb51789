"""Pages that only look: Home, a path, a folder, its bases and texts, a search; and how all pages are rendered.

A page is a Jinja template of ``regraft/page/templates``. Every value is escaped for HTML and by
:func:`regraft.text.printable`. Reports are in English; what a page shows is translated for its reader.
"""

from __future__ import annotations

import os
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime
from functools import cache
from importlib.resources import files
from itertools import islice, zip_longest
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints
from urllib.parse import quote, unquote, urlencode, urlsplit

import msgspec
from markupsafe import Markup, escape
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from regraft import __version__, api
from regraft.api import inspection
from regraft.disk import durable, file_paths
from regraft.errors import REFUSED, NotBrowsed, RegraftError, SourceNotFound, WrongUsage
from regraft.identity import iso_time, utc_datetime
from regraft.kinds import (
    KIND_NAMES,
    PREVIEW_SOURCES,
    SYSTEMS,
    V1_SOURCES,
    V2_LAYOUTS,
    V2_STORES,
    Kind,
)
from regraft.language import current_language, format_count, to_english, tr, translate_as, translate_text
from regraft.options import SearchOptions
from regraft.page.jobs import Task
from regraft.page.server import check_token, desk_of, query_text, read_form
from regraft.report.html import format_percent, make_environment
from regraft.report.labels import label_of, mode_label, severity_label
from regraft.stores.locate import open_store
from regraft.text import format_bytes, join_command, one_line, path_argument, printable, replace_surrogates

#: Entries of a folder that are read, and that are shown.
_MOST_READ, _MOST_SHOWN = 20_000, 300
#: Actions, reasons and samples of one name that are shown before the rest is counted.
SHOWN = 12
#: Files below a folder that are measured before its size is called unknown.
_MOST_MEASURED = 5_000
#: Characters of a name shown in a list, and of a text.
_NAME, _TEXT = 120, 6_000
#: Commands that have another name than their function, or options for paths after the first one.
_COMMANDS = {
    "migrate": ("migrate", "--to"),
    "migrate_into_profile": ("migrate", "--profile", "--to"),
    "install": ("install", "--profile"),
}
#: Kinds whose first fact names the kind, which is above it on Home.
_PLAIN_KINDS = (*V1_SOURCES[:2], Kind.V1_EXPORT, Kind.V1_KNOWLEDGE, Kind.V2_BACKUP, Kind.LIBRARY, Kind.PACK)
#: Names of the languages, each in itself.
_LANGUAGES = {"en": "English", "zh": "中文"}
#: Options of the search of the page; the modes that are shown side by side, and the hits of each.
_BY_WORDS: dict[str, Any] = {"mode": "bm25", "count": 20}
_MODES, _BESIDE = ("bm25", "vector", "hybrid"), 10
#: Characters of a query; units of an item on a page, and neighbors of a unit.
_QUERY, _UNITS, _NEIGHBORS = 1_000, 50, 10
#: The names of pages, and of commands in a history.
_PAGES = {
    "rescue": tr("Rescue"),
    "upgrade": tr("Upgrade"),
    "install": tr("Put into a profile"),
    "browse": tr("Browse and search"),
    "backfill": tr("Missing vectors"),
    "pack": tr("Pack"),
    "history": tr("History"),
    # Commands and journeys that have no page of their own.
    "check": tr("Check"),
    "fix": tr("Repair"),
    "repair": tr("Repair"),
    "migrate": tr("Upgrade"),
    "compare": tr("Compare searches"),
    "undo": tr("Undo"),
}
#: What can be done with a store, by the first page that it has.
_SENTENCES = {
    "upgrade": tr("It can be brought into the new application, with all its vectors."),
    "rescue": tr("Its upgrade failed. What was left behind can be brought back."),
    "check": tr("It can be checked, and repaired if something is wrong."),
    "install": tr("Its bases can be put into the application."),
}
#: Kinds that ``migrate`` reads.
MIGRATED = (*V1_SOURCES, *PREVIEW_SOURCES, Kind.RSCLAW)
#: The page that comes before the others, by the command that brings back what an upgrade left behind.
_FIRST_PAGE: dict[str | None, tuple[str, ...]] = {None: (), "rescue": ("rescue",), "migrate": ("upgrade",)}
#: The kinds that have a page, in the order of the pages.
_PAGES_OF: dict[str, tuple[Kind, ...]] = {
    "upgrade": MIGRATED,
    "install": (Kind.LIBRARY, Kind.PACK, Kind.V2_BACKUP),
    "check": (*V2_STORES, *SYSTEMS, *MIGRATED),
    "rescue": (Kind.V2_PROFILE,),
    "browse": (Kind.V2_PROFILE, Kind.LIBRARY),
    "backfill": (Kind.V2_PROFILE, Kind.LIBRARY),
    "pack": (Kind.V2_PROFILE, Kind.LIBRARY),
    "history": (Kind.V2_PROFILE, Kind.LIBRARY, *SYSTEMS),
}


# --- texts -----------------------------------------------------------------------------------------------------------


#: Texts of the report that is being rendered, in the language of its reader, by the English ones.
_translations: ContextVar[dict[str, str]] = ContextVar("translations", default={})  # noqa: B039 - never changed


def shown(text: object) -> str:
    """Translate a text of a report for the reader of the page, and make its control characters visible.

    A text in ``_translations`` is replaced by its translation there. HTML is not escaped: the template must do that.
    """
    known = _translations.get().get(text) if isinstance(text, str) else None
    return translate_text(printable(to_english(text)), current_language()) if known is None else printable(known)


def in_context(context: str, label: str) -> str:
    """Translate a label that has its own meaning in a context (:func:`regraft.language.tr_in`)."""
    plain = str(to_english(label))
    return translate_as(plain, plain, {}, context)


def render_prose(text: object) -> Markup:
    """Translate a text, make it safe for HTML, and turn its parts between backticks into code."""
    parts = str(escape(shown(text))).split("`")
    # An odd number of parts has a pair of backticks around every second one.
    if len(parts) % 2 == 0:
        return Markup("`".join(parts))
    return Markup("".join(f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts)))


def format_time(value: object) -> str:
    """Format an ISO time, or Unix milliseconds, in the time zone of this computer, which is the reader's."""
    if not value:
        return ""
    try:
        moment = utc_datetime(value) if isinstance(value, int) else datetime.fromisoformat(str(value))
    except OverflowError:
        return ""
    # Windows does not know the local time before 1970 and after the year 3000.
    with suppress(OSError, OverflowError):
        moment = moment.astimezone()
    return f"{moment:%Y-%m-%d %H:%M}"


def format_seconds(seconds: float | None) -> str:
    """Format a duration in whole minutes and seconds; empty if it is unknown."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return tr("{minutes} min {seconds} s", minutes=minutes, seconds=rest) if minutes else tr("{rest} s", rest=rest)


def exact(path: object) -> str:
    """Encode a path for an address or a hidden field, so that every byte of its name is kept."""
    return quote(str(path), errors="surrogateescape", safe="")


def command_line(task: Task) -> str:
    """Format the command line that does the same as a task."""
    command, *names = _COMMANDS.get(task.function, (task.function,))
    words = ["regraft", command, *(path_argument(path) for path in task.paths[:1])]
    for path, name in zip_longest(task.paths[1:], names[: len(task.paths) - 1]):
        words += [*([name] if name else []), path_argument(path)]
    return join_command([*words, *_option_words(task.options)])


def _option_words(options: msgspec.Struct | None) -> Iterator[str]:
    """Yield the words of a command line for the options that differ from their defaults."""
    if options is None:
        return
    hints = get_type_hints(type(options), include_extras=True)
    for name, default in zip(options.__struct_fields__, options.__struct_defaults__, strict=True):
        value = getattr(options, name)
        if value in (default, None):
            continue
        extra = (get_args(hints[name])[-1].extra or {}) if get_origin(hints[name]) is Annotated else {}
        option = extra.get("off") or extra.get("option") or f"--{name.replace('_', '-')}"
        for text in _option_values(name, value):
            yield from (option, text) if text else (option,)


def _option_values(name: str, value: Any) -> Iterator[str]:
    """Yield the values of an option as words, one for each time that it is given; empty for a flag.

    ``name`` is the field of the options struct.
    """
    if isinstance(value, bool):
        yield ""
    elif isinstance(value, dict):
        yield from (f"{old}={new}" for old, new in value.items())
    elif name == "now_ms":
        yield iso_time(value)
    else:
        yield from map(str, value if isinstance(value, tuple) else (value,))


# --- rendering -------------------------------------------------------------------------------------------------------


@cache
def _environment() -> Any:
    """Make the Jinja environment of the pages, with their filters and functions."""
    environment = make_environment("regraft.page")
    environment.filters.update(
        t=shown,
        prose=render_prose,
        number="{:,}".format,
        size=format_bytes,
        time=format_time,
        seconds=format_seconds,
        exact=exact,
        typed=lambda text: Markup(escape(replace_surrogates(str(text)))),
        line=lambda text: one_line(str(text), _NAME),
        mark_terms=mark_terms,
        matched=matched_terms,
        last=lambda path: one_line(Path(str(path)).name or str(path), _NAME),
    )
    environment.globals.update(
        tr=tr,
        count=format_count,
        label=lambda name: shown(label_of(name)),
        severity=lambda name: in_context("severity", severity_label(name)),
        kind_name=lambda kind: shown(KIND_NAMES[Kind(kind)]),
        page_name=lambda name: shown(_PAGES.get(name, name)),
        percent=format_percent,
        version=__version__,
        languages=_LANGUAGES,
    )
    return environment


def render(
    request: Request, template: str, status: int = 200, translations: dict[str, str] | None = None, **values: object
) -> Response:
    """Fill a template of ``regraft/page/templates``, and return it as the response.

    ``translations`` are texts for this reader by English ones; ``values`` are those of the template.
    """
    _translations.set(translations or {})
    desk = desk_of(request)
    query = request.scope["query_string"].decode("latin-1")
    text = (
        _environment()
        .get_template(template)
        .render(
            root=desk.entrance.root,
            form_token=desk.entrance.form_token,
            language=current_language(),
            here=request.url.path + (f"?{query}" if query else ""),
            running=desk.jobs.running(),
            **values,
        )
    )
    return HTMLResponse(text, status)


def go(request: Request, page: str, **query: object) -> Response:
    """Redirect the reader to a page of this server; ``query`` are values in its address."""
    return RedirectResponse(address(request, page, **query), 303)


def address(request: Request, page: str, **query: object) -> str:
    """Return the address of a page of this server.

    ``query`` are values in the address; paths among them keep every byte.
    """
    words = urlencode({name: str(value) for name, value in query.items()}, errors="surrogateescape", quote_via=quote)
    return f"{desk_of(request).entrance.root}{page}{'?' if words else ''}{words}"


async def show_refusal(request: Request, error: Exception) -> Response:
    """Answer a request that is refused, or for a page that does not exist."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    texts = {404: tr("This page does not exist."), 405: tr("This address does not accept this kind of request.")}
    detail = error.detail if isinstance(error, HTTPException) else ""
    return render(request, "message.html", status, title=tr("The request failed"), text=texts.get(status, detail))


async def show_error(request: Request, error: Exception) -> Response:
    """Answer a request that an error of regraft ended, with the text of the error."""
    status = 400 if isinstance(error, RegraftError) and error.exit_status == REFUSED else 500
    return render(request, "message.html", status, title=tr("The request failed"), text=str(error))


# --- paths that a reader gives ---------------------------------------------------------------------------------------


def clean_path(text: str) -> str:
    """Return the path that a reader typed or pasted: without quotes around it, or from a ``file:`` address.

    Raises:
        WrongUsage: no path can be like that.
    """
    tidy = text.strip()
    if len(tidy) > 1 and tidy[0] == tidy[-1] and tidy[0] in "\"'":
        tidy = tidy[1:-1]
    if tidy.lower().startswith("file:"):
        host = urlsplit(tidy).netloc
        tidy = unquote(urlsplit(tidy).path, errors="surrogateescape")
        if os.name == "nt":
            # A file of another computer, or /C:/Users/...
            tidy = f"//{host}{tidy}" if host else re.sub("^/(?=[A-Za-z]:)", "", tidy)
    if "\0" in tidy:
        raise WrongUsage(problem=tr("the path has a character that no path can have"), hint=tr("choose another one"))
    with suppress(RuntimeError):
        tidy = str(Path(tidy).expanduser()) if tidy else ""
    return tidy


def asked_path(request: Request) -> str:
    """Return the path in the address of a page: exact in ``at``, or typed in ``path``.

    Raises:
        WrongUsage: the address has no valid path.
    """
    path = query_text(request, "at") or clean_path(query_text(request, "path"))
    if not path:
        raise WrongUsage(problem=tr("no path was given"), hint=tr("choose a file or a folder"))
    if "\0" in path:
        raise WrongUsage(problem=tr("the path has a character that no path can have"), hint=tr("choose another one"))
    return path


def measure(path: Path) -> tuple[int | None, int]:
    """Return the size of a file or folder in bytes, and the time of its last change in ms.

    The size is None if there are too many files to count, or the path cannot be read.
    """
    try:
        status = file_paths.lstat(path)
        if not path.is_dir():
            return status.st_size, round(status.st_mtime * 1000)
        size = seen = 0
        for folder, _, names in file_paths.walk(path):
            for name in names:
                seen += 1
                if seen > _MOST_MEASURED:
                    return None, round(status.st_mtime * 1000)
                with suppress(OSError):
                    size += file_paths.lstat(Path(folder) / name).st_size
        return size, round(status.st_mtime * 1000)
    except (OSError, ValueError):
        return None, 0


# --- Home ------------------------------------------------------------------------------------------------------------


def find_stores() -> list[dict[str, Any]]:
    """List the stores on this computer for Home: path, kind, size, date, and the pages of each."""
    stores = []
    for one in inspection.inspect_computer(user_folders=True).found:
        size, changed = measure(Path(one.path))
        path = Path(one.path)
        facts = one.facts[1:] if one.kind in _PLAIN_KINDS else one.facts
        known = {"path": one.path, "name": path.name, "folder": str(path.parent), "kind": one.kind, "why": one.why}
        steps = journeys_of(one.kind, path, one.remedy)
        may = _SENTENCES.get(steps[0][0], "") if steps else ""
        stores.append({**known, "facts": facts, "size": size, "changed": changed, "steps": steps, "may": may})
    return stores


def journeys_of(kind: str | None, path: Path, remedy: str | None = None) -> list[tuple[str, str]]:
    """List the pages that a store has: the name and the label of each; the first is what most readers want.

    Args:
        kind: its kind; None if it cannot be read.
        path: where it is.
        remedy: the command that brings back what the application's own upgrade left behind, or None.
    """
    if kind is None:
        return []
    found = Kind(kind)
    # What a zip file of another system holds can be read and not changed.
    is_archive = path.suffix.lower() == ".zip" and found in SYSTEMS
    pages = dict.fromkeys(page for page, kinds in _PAGES_OF.items() if found in kinds)
    if is_archive:
        pages.pop("history")
    check = tr("Check and repair") if found in (*V2_STORES, *SYSTEMS) and not is_archive else tr("Check")
    labels = {page: shown(_PAGES[page]) for page in (*_FIRST_PAGE[remedy], *pages)}
    if "check" in labels:
        labels["check"] = check
    return list(labels.items())


async def _show_first_page(request: Request) -> Response:
    """Show Home, or, at the first request, the store that ``regraft ui`` was started with."""
    desk = desk_of(request)
    if desk.start is not None:
        path, desk.start = desk.start, None
        return go(request, "store", at=path)
    return await show_home(request)


async def show_home(request: Request, *, path: str = "", problem: str = "", status: int = 200) -> Response:
    """Show Home; ``problem`` is a message beside the field that holds ``path``."""
    stores = await run_in_threadpool(find_stores)
    return render(
        request,
        "home.html",
        status,
        stores=stores,
        path=path,
        problem=problem,
        ended=desk_of(request).jobs.ended()[:5],
        command="regraft inspect",
    )


async def _show_store(request: Request) -> Response:
    """Show what a store contains, and what can be done with it."""
    try:
        path = asked_path(request)
        report = await run_in_threadpool(api.inspect, path)
    except RegraftError as error:
        typed = query_text(request, "path") or query_text(request, "at")
        return await show_home(request, path=typed, problem=shown(error), status=400)
    size, changed = await run_in_threadpool(measure, Path(path))
    remedy = None
    if report.kind == Kind.V2_PROFILE and any(base.status == "failed" for base in report.bases):
        remedy = "rescue"
    elif report.kind == Kind.V2_PROFILE and not report.bases:
        with open_store(Path(path)) as found:
            remedy = "migrate" if found.has_v1_state else None
    return render(
        request,
        "store.html",
        path=path,
        report=report,
        size=size,
        changed=changed,
        steps=journeys_of(report.kind, Path(path), remedy),
        charts=charts_of(report.bases),
        command=command_line(Task(function="inspect", paths=(path,))),
    )


class Chart(NamedTuple):
    """A bar chart: its title, the unit of its numbers, and the label and number of each bar."""

    title: str
    unit: str
    rows: list[tuple[str, int]]


def charts_of(bases: Iterable[Any]) -> list[Chart]:
    """Make charts of the bases of an ``inspect`` report: sizes, and vectors by model, the largest first."""
    sizes: list[tuple[str, int]] = []
    models: Counter[str] = Counter()
    for base in bases:
        if base.store:
            sizes.append((str(base.name), base.store.bytes))
            number = getattr(base.store, "rows", getattr(base.store, "embeddings", 0))
            models[str(base.model or tr("unknown model"))] += number if isinstance(number, int) else 0
    charts = (
        Chart(tr("Size of the bases"), "bytes", sizes),
        Chart(tr("Vectors by model"), "vectors", list(models.items())),
    )
    return [
        chart._replace(rows=sorted(chart.rows, key=lambda row: -row[1])[:_MOST_SHOWN])
        for chart in charts
        if len(chart.rows) > 1 and any(number for _, number in chart.rows)
    ]


# --- folders ---------------------------------------------------------------------------------------------------------


def list_folder(path: Path, name: str) -> dict[str, Any]:
    """List a folder for the reader to choose from: its folders first, then its files.

    Entries whose names contain ``name`` are listed, up to a number. The keys of the result are those of the template.

    Raises:
        RegraftError: it cannot be listed.
    """
    wanted, seen = name.casefold(), 0
    entries: list[tuple[bool, str, str]] = []
    try:
        with os.scandir(path) as found:
            for entry in islice(found, _MOST_READ):
                seen += 1
                if entry.name.startswith(".") and not wanted.startswith("."):
                    continue
                if wanted in entry.name.casefold():
                    with suppress(OSError):
                        entries.append((not entry.is_dir(), entry.name.casefold(), entry.name))
    except FileNotFoundError as error:
        raise SourceNotFound(path=path) from error
    except (OSError, ValueError) as error:
        problem = tr(
            "{path} cannot be listed: {reason}", path=printable(path), reason=getattr(error, "strerror", error)
        )
        raise WrongUsage(problem=problem, hint=tr("choose another folder")) from error
    entries.sort()
    return {
        "path": str(path),
        "parent": str(path.parent),
        "entries": [
            {"name": name, "path": str(path / name), "is_folder": not is_file}
            for is_file, _, name in entries[:_MOST_SHOWN]
        ],
        "more": len(entries) - _MOST_SHOWN if len(entries) > _MOST_SHOWN else 0,
        "is_cut": seen == _MOST_READ,
    }


def _asked_folder(request: Request) -> Path:
    """Return the folder that a request names, the folder above a file that it names, or the home folder."""
    given = query_text(request, "at") or clean_path(query_text(request, "path"))
    path = Path(given) if given else file_paths.home_folder() or Path.cwd()
    return path.absolute() if path.is_dir() else path.absolute().parent


async def _show_folder(request: Request) -> Response:
    """Show a folder in which the reader chooses a path."""
    name = query_text(request, "name")[:200]
    folder = await run_in_threadpool(list_folder, _asked_folder(request), name)
    return render(request, "folder.html", folder=folder, name=name)


async def _send_folder_json(request: Request) -> Response:
    """Send a folder's entries to the script of a form; names are shown as on pages, and paths are encoded."""
    folder = await run_in_threadpool(list_folder, _asked_folder(request), query_text(request, "name")[:200])
    entries = [
        {"name": one_line(one["name"], _NAME), "at": exact(one["path"]), "isFolder": one["is_folder"]}
        for one in folder["entries"]
    ]
    more = tr("Not all are shown. Type a part of the name.") if folder["more"] or folder["is_cut"] else ""
    return JSONResponse(
        {
            "path": printable(folder["path"]),
            "at": exact(folder["path"]),
            "parent": exact(folder["parent"]),
            "entries": entries,
            "more": more,
        }
    )


async def _receive_dropped(request: Request) -> Response:
    """Copy a dropped file into the run's own folder, because a browser does not tell its path.

    The answer is JSON: ``next`` is the address of the page for the copy. If the file is too large or cannot be stored,
    ``problem`` says why, with status 413, and the copy is removed.
    """
    check_token(request, request.headers.get("x-form-token", ""))
    desk = desk_of(request)
    kept = (one if one.isalnum() or one in " ._-" else "_" for one in query_text(request, "name")[-100:])
    folder = desk.folder / f"dropped-{secrets.token_hex(6)}"
    path = folder / ("".join(kept).strip(" .") or "file")
    problem = ""
    try:
        durable.make_folder(folder)
        if not await _receive_file(request, path, desk.drop_bytes):
            limit = format_bytes(desk.drop_bytes)
            problem = tr("The file is larger than {limit}. Give its path instead.", limit=limit)
    except OSError as error:
        problem = error.strerror or str(error)
    except ClientDisconnect:
        problem = tr("The upload is incomplete.")
    if problem:
        durable.remove_tree(folder)
        return JSONResponse({"problem": problem}, 413)
    return JSONResponse({"next": address(request, "store", at=str(path))})


async def _receive_file(request: Request, path: Path, limit: int) -> bool:
    """Write the body of a request to a new file; return False if it is larger than the limit."""
    size = 0
    with durable.open_binary(path, "xb") as file:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                return False
            file.write(part)
    return True


# --- bases, items, texts ---------------------------------------------------------------------------------------------


def _check_browsed(path: Path) -> None:
    """Check that the texts of a store can be shown.

    Raises:
        NotBrowsed: it is of another system.
        RegraftError: it cannot be read.
    """
    with open_store(path) as found:
        if found.kind not in V2_LAYOUTS:
            raise NotBrowsed(path=path, what=shown(KIND_NAMES[found.kind]))


async def _browse(request: Request) -> Response:
    """Show the bases of a store, the items of a base, the units of an item, or the results of a search by words."""
    path, base, item = asked_path(request), query_text(request, "base"), query_text(request, "item")
    query = query_text(request, "q").strip()[:_QUERY]
    await run_in_threadpool(_check_browsed, Path(path))
    values: dict[str, Any] = {"answers": [], "problem": "", "embedder": "", "config": ""}
    if query:
        try:
            found = await run_in_threadpool(api.search, path, query, base=base or None, **_BY_WORDS)
            values["answers"] = [(_BY_WORDS["mode"], found)]
        except RegraftError as error:
            values["problem"] = shown(error)
    command = _format_search_command(path, query, base, _BY_WORDS) if query else ""
    if item and base:
        first = int(start) if (start := query_text(request, "first")).isdecimal() and len(start) < 10 else 0
        values |= await run_in_threadpool(_read_item, Path(path), base, item, first, query_text(request, "unit"))
    return await _browse_page(request, path, base, item, query, command, **values)


async def _browse_by_meaning(request: Request) -> Response:
    """Search a store by words, by vectors and by both, and show the results side by side.

    The query is sent to an embedder, which may cost money, so this answers a form.
    """
    form = await read_form(request)
    path, base, query = form.exact("path"), form.text("base"), form.text("q")[:_QUERY]
    embedder, given = form.text("embedder"), form.exact("config") or clean_path(form.text("config"))
    await run_in_threadpool(_check_browsed, Path(path))
    answers, problem, field = [], "", "embedder"
    config = Path(given) if given else None
    try:
        if not query:
            field = "q"
            raise WrongUsage(problem=tr("there is nothing to search for"), hint=tr("type a word"))
        if not embedder:
            raise WrongUsage(
                problem=tr("no embedder was given"), hint=tr("enter the name of an embedder in the configuration file")
            )
        for mode in _MODES:
            made: dict[str, Any] = {} if mode == "bm25" else {"embedder": embedder, "config": config}
            options = {"mode": mode, "count": _BESIDE, **made}
            answers.append((mode, await run_in_threadpool(api.search, path, query, base=base or None, **options)))
    except RegraftError as error:
        problem = shown(error)
    command = _format_search_command(path, query, base, {"mode": "hybrid", "count": _BESIDE, "embedder": embedder})
    more = {"answers": answers, "problem": problem, "field": field, "embedder": embedder, "config": given}
    return await _browse_page(request, path, base, "", query, command, status=400 if problem else 200, **more)


async def _browse_page(
    request: Request, path: str, base: str, item: str, query: str, command: str, *, status: int = 200, **values: Any
) -> Response:
    """Show the contents of a store, with search results.

    Args:
        request: the request.
        path: the store.
        base: the id of the chosen base, or empty.
        item: the id of the chosen item, or empty.
        query: the text that was searched for, or empty.
        command: the command that does the same; empty: ``inspect``.
        status: the status of the response.
        values: further values of the template; ``answers`` are pairs of mode and search report.
    """
    report = await run_in_threadpool(api.inspect, path, items=bool(base))
    chosen = _find_by_id(report.bases, base)
    listed = None if chosen is None else _find_by_id(chosen.item_list or (), item)
    ranks = {
        mode: {hit.unit_id: hit.rank for hit in answer.hits}
        for mode, answer in values["answers"]
        if len(values["answers"]) > 1
    }
    # Only these pages need what searches and reads indexes.
    from regraft.formats.cherry_v2.index.search import compile_query  # noqa: PLC0415

    compiled = compile_query(query)
    inspect_words = ("regraft", "inspect", path_argument(path), *(["--items"] if base else []))
    return render(
        request,
        "browse.html",
        status,
        path=path,
        report=report,
        base=chosen,
        base_id=base,
        item=listed,
        item_id=item,
        q=query,
        # What a search by words looks for, the longest first.
        terms=tuple(sorted({*compiled.tokens, *compiled.terms, *compiled.shorts}, key=len, reverse=True)),
        ranks=ranks,
        limit=_TEXT,
        page=_UNITS,
        mode_label=lambda mode: shown(mode_label(mode)),
        command=command or join_command(inspect_words),
        **{"field": "q", "found": None, "neighbors": None, **values},
    )


def _find_by_id(listed: Iterable[Any], wanted: str) -> Any:
    """Return the entry of a list that has an id, or None."""
    return next((one for one in listed if str(one.id) == wanted), None)


def _format_search_command(path: str, query: str, base: str, options: dict[str, Any]) -> str:
    """Format the command that searches a store as the page does."""
    words = ["regraft", "search", path_argument(path), query, *(["--base", base] if base else [])]
    return join_command([*words, *_option_words(SearchOptions(**options))])


def _read_item(path: Path, base: str, item: str, first: int, unit: str) -> dict[str, Any]:
    """Read units of an item from number ``first`` on, and the neighbors of the unit with the id ``unit``, if any."""
    from regraft.ranking import cherry_v2  # noqa: PLC0415 - as above

    try:
        found = cherry_v2.read_units(path, base, item, first=first, count=_UNITS)
        neighbors = cherry_v2.find_neighbors(path, base, unit, _NEIGHBORS) if unit else None
    except RegraftError as error:
        return {"problem": shown(error), "first": first, "unit": unit}
    return {"found": found, "neighbors": neighbors, "first": first, "unit": unit}


def mark_terms(text: str, terms: tuple[str, ...]) -> Markup:
    """Escape a text for HTML, and mark where one of the terms occurs."""
    if not terms:
        return escape(printable(text))
    # Every second part is a match.
    parts = re.split("(" + "|".join(map(re.escape, terms)) + ")", text, flags=re.IGNORECASE)
    marked = (
        Markup("<mark>{}</mark>").format(printable(part)) if place % 2 else escape(printable(part))
        for place, part in enumerate(parts)
    )
    return Markup("").join(marked)


def matched_terms(text: str, terms: tuple[str, ...]) -> list[str]:
    """Return the terms that occur in a text, in any letter case."""
    folded = text.casefold()
    return [term for term in terms if term.casefold() in folded]


# --- files of the page, and its end ----------------------------------------------------------------------------------


@cache
def _read_page_file(name: str) -> str:
    """Read the style sheet or the script of the page."""
    own = (files("regraft.page") / name).read_text("utf-8")
    return (files("regraft.report") / "style.css").read_text("utf-8") + own if name == "page.css" else own


async def _send_style(_: Request) -> Response:
    """Send the style sheet."""
    return Response(_read_page_file("page.css"), media_type="text/css")


async def _send_script(_: Request) -> Response:
    """Send the script."""
    return Response(_read_page_file("page.js"), media_type="text/javascript")


async def _quit(request: Request) -> Response:
    """End regraft, unless a job is running."""
    await read_form(request)
    desk = desk_of(request)
    if desk.jobs.running():
        text = tr("A job is running. Stop it first, or wait for its end.")
        return render(request, "message.html", 409, title=tr("Not ended"), text=text)
    desk.is_ended = True
    return render(
        request, "message.html", title=tr("regraft has ended"), text=tr("You can close this page."), is_over=True
    )


ROUTES = [
    Route("/", _show_first_page),
    Route("/home", show_home),
    Route("/store", _show_store),
    Route("/folder", _show_folder),
    Route("/folder.json", _send_folder_json),
    Route("/dropped", _receive_dropped, methods=["PUT"]),
    Route("/browse", _browse, methods=["GET"]),
    Route("/browse", _browse_by_meaning, methods=["POST"]),
    Route("/page.css", _send_style),
    Route("/page.js", _send_script),
    Route("/quit", _quit, methods=["POST"]),
]
