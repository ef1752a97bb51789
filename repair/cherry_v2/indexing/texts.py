"""The text of an item, from what is there of it: its file below ``raw/``, or the catalog.

Rules: ``docs/indexing.md``, "Where texts come from". Nothing is fetched; what needs a program of its own is not read.
"""

from __future__ import annotations

import codecs
from pathlib import Path, PurePosixPath

import msgspec

from checks.cherry_v2.index_file import path_problem
from regraft import links
from regraft.extras import needed
from regraft.formats.cherry_v2 import okf
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.cherry_v2.item_data import data_of
from regraft.language import tr
from regraft.links import leads_out
from regraft.names import NO_TEXT_EXTENSIONS
from regraft.text import decode_utf8, is_blank, whole

#: The longest file that is read, in bytes.
LARGEST_FILE = 256 << 20
_WEB = frozenset({".html", ".htm", ".xhtml"})
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
BLANK = tr("its text is blank")
_ELSEWHERE = tr("index it in the application")


class NoText(Exception):
    """An item whose text cannot be had here; the exception's own text says why, for a person."""


class Text(msgspec.Struct, frozen=True):
    """A text, and the encoding that it was taken to be in where nothing says which it is."""

    text: str
    guessed: str | None = None


def text_of(item: Row, raw: Path) -> Text:
    """Return the text of an item, as it can be stored; never a blank one.

    Args:
        item: its row in the catalog.
        raw: the base's folder of raw files.

    Raises:
        NoText: there is none, or it cannot be read.
        WrongUsage: the extra that reads it is not installed.
    """
    kind, data = item.get("type"), data_of(item)
    if kind == "file":
        found = _of_file(data.get("indexedRelativePath"), data.get("relativePath"), raw)
    elif kind in ("url", "note"):
        found = Text(_of_snapshot(data.get("relativePath"), raw))
        if is_blank(found.text) and kind == "note" and isinstance(data.get("content"), str):
            found = Text(data["content"])
    else:
        raise NoText(tr("it holds no text itself"))
    if is_blank(found.text):
        raise NoText(tr("no snapshot of it is there: {elsewhere}", elsewhere=_ELSEWHERE) if kind == "url" else BLANK)
    return Text(whole(found.text), found.guessed)


def file_of(path: object, raw: Path) -> Path | None:
    """Return the file that a path below ``raw/`` leads to; None where it leads to none, or out of it."""
    if not isinstance(path, str) or path_problem(path.encode("utf-8", "surrogatepass")) is not None:
        return None
    try:
        if leads_out(raw.parent, raw):
            return None  # the whole folder is somewhere else
        place = links.real_path(raw / path)
        return raw / path if place.is_file() and place.is_relative_to(links.real_path(raw)) else None
    except (OSError, RuntimeError, UnicodeEncodeError):
        return None  # a name that no disk takes, half of a surrogate pair in it, or links in a circle


def _of_snapshot(path: object, raw: Path) -> str:
    file = file_of(path, raw)
    return "" if file is None else okf.strip_block(decode_utf8(_bytes(file)))


def _of_file(processed: object, uploaded: object, raw: Path) -> Text:
    """Return what a file processor made of a file, else the file's own text."""
    file = file_of(processed, raw) or file_of(uploaded, raw)
    if file is None:
        raise NoText(tr("its file is not in raw/: {elsewhere}", elsewhere=_ELSEWHERE))
    suffix = PurePosixPath(file.name).suffix.lower()
    if suffix in NO_TEXT_EXTENSIONS:
        raise NoText(tr("{name} is not plain text: {elsewhere}", name=file.name, elsewhere=_ELSEWHERE))
    found = _decoded(_bytes(file))
    if found is None:
        raise NoText(
            tr(
                "{name} is not text in an encoding that is known here: {elsewhere}",
                name=file.name,
                elsewhere=_ELSEWHERE,
            )
        )
    return Text(_readable(found.text), found.guessed) if suffix in _WEB else found


def _bytes(file: Path) -> bytes:
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise NoText(
                tr(
                    "{name} is larger than {largest_file} MiB: {elsewhere}",
                    name=file.name,
                    largest_file=LARGEST_FILE >> 20,
                    elsewhere=_ELSEWHERE,
                )
            )
        return links.content(file)
    except OSError as error:
        raise NoText(tr("{name} cannot be read ({strerror})", name=file.name, strerror=error.strerror)) from error


def _decoded(raw: bytes) -> Text | None:
    """Return what a file reads as: UTF-8, what its byte order mark says, else what is most likely; None for no text."""
    mark, encoding = next((one for one in _MARKS if raw.startswith(one[0])), (b"", "utf-8"))
    try:
        found = Text(raw.removeprefix(mark).decode(encoding))
    except UnicodeDecodeError:
        guessed = needed("chardet", tr("files in older encodings"), "indexing").detect(raw)["encoding"]
        if guessed is None:
            return None
        found = Text(raw.decode(guessed, "replace"), guessed)
    return None if "\0" in found.text else found


def _readable(page: str) -> str:
    """Return what a person reads of a web page, as Markdown."""
    try:
        return str(needed("markdownify", tr("web pages"), "indexing").markdownify(page, heading_style="ATX"))
    except RecursionError as error:
        raise NoText(tr("its page is nested too deeply: {elsewhere}", elsewhere=_ELSEWHERE)) from error
