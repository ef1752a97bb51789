"""Read the text of an item from its file below ``raw/`` or from the catalog, and cut it into units.

Nothing is fetched from the network. Formats that are not plain text are not read. Rules: ``docs/indexing.md``.
"""

from __future__ import annotations

import codecs
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from checks.cherry_v2.raw_files import find_path_problem
from regraft import identity
from regraft.disk import file_paths, links
from regraft.disk.file_paths import NO_TEXT_EXTENSIONS
from regraft.disk.links import leads_outside
from regraft.errors import import_optional
from regraft.formats import okf
from regraft.formats.cherry_v2.catalog_reader import Row, parse_item_data
from regraft.formats.cherry_v2.settings import Settings, unescape_separator
from regraft.language import tr
from regraft.text import decode_utf8, is_blank, replace_surrogates, utf16_len

#: Largest file that is read, in bytes.
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
    """The text of an item is not available; the message says why."""


class ItemText(msgspec.Struct, frozen=True):
    """The text of an item, and the name of its encoding if that was guessed."""

    text: str
    guessed: str | None = None


def read_item_text(item: Row, raw: Path) -> ItemText:
    """Return the text of an item in the form in which the index stores it; never blank.

    Args:
        item: its row in the catalog.
        raw: the base's folder of raw files.

    Raises:
        NoText: the item has no text, or it cannot be read.
        WrongUsage: a library that reads it is not installed.
    """
    kind, data = item.get("type"), parse_item_data(item)
    if kind == "file":
        found = _read_processed_or_uploaded(data.get("indexedRelativePath"), data.get("relativePath"), raw)
    elif kind in ("url", "note"):
        file = find_raw_file(data.get("relativePath"), raw)
        found = ItemText("" if file is None else okf.strip_block(decode_utf8(_read_bytes(file))))
        if is_blank(found.text) and kind == "note" and isinstance(data.get("content"), str):
            found = ItemText(data["content"])
    else:
        raise NoText(tr("it has no text of its own"))
    if is_blank(found.text):
        raise NoText(tr("its snapshot does not exist: {elsewhere}", elsewhere=_ELSEWHERE) if kind == "url" else BLANK)
    return ItemText(replace_surrogates(found.text), found.guessed)


def find_raw_file(path: object, raw: Path) -> Path | None:
    """Return the file at a path below the folder ``raw``; None if it does not exist or a link leads elsewhere."""
    if not isinstance(path, str) or find_path_problem(path) is not None:
        return None
    try:
        if leads_outside(raw.parent, raw):
            return None  # the folder itself is elsewhere
        place = links.real_path(raw / path)
        return raw / path if file_paths.is_file(place) and place.is_relative_to(links.real_path(raw)) else None
    except (OSError, RuntimeError, UnicodeEncodeError):
        return None  # an invalid name, an unpaired surrogate, or a cycle of links


def _read_processed_or_uploaded(processed: object, uploaded: object, raw: Path) -> ItemText:
    """Return the text of the processed copy of a file, else of the uploaded file; both are paths below ``raw``."""
    file = find_raw_file(processed, raw) or find_raw_file(uploaded, raw)
    if file is None:
        raise NoText(tr("its file is not in raw/: {elsewhere}", elsewhere=_ELSEWHERE))
    return read_file_text(file)


def read_file_text(file: Path) -> ItemText:
    """Return the text of a file: plain text as it is, a web page as Markdown.

    Raises:
        NoText: it is not text, too large, or cannot be read.
        WrongUsage: a library that reads it is not installed.
    """
    suffix = PurePosixPath(file.name).suffix.lower()
    if suffix in NO_TEXT_EXTENSIONS:
        raise NoText(tr("{name} is not plain text: {elsewhere}", name=file.name, elsewhere=_ELSEWHERE))
    found = _decode(_read_bytes(file))
    if found is None:
        raise NoText(
            tr(
                "the encoding of {name} is unknown: {elsewhere}",
                name=file.name,
                elsewhere=_ELSEWHERE,
            )
        )
    return ItemText(_web_page_to_markdown(found.text), found.guessed) if suffix in _WEB else found


def _read_bytes(file: Path) -> bytes:
    """Read a file; raises NoText if it is too large or cannot be read."""
    try:
        if file_paths.stat(file).st_size > LARGEST_FILE:
            raise NoText(
                tr(
                    "{name} is larger than {largest_file} MiB: {elsewhere}",
                    name=file.name,
                    largest_file=LARGEST_FILE >> 20,
                    elsewhere=_ELSEWHERE,
                )
            )
        return links.read_bytes(file)
    except OSError as error:
        raise NoText(tr("{name} cannot be read ({strerror})", name=file.name, strerror=error.strerror)) from error


def _decode(raw: bytes) -> ItemText | None:
    """Decode bytes as UTF-8, by their byte order mark, or in the most likely encoding; None if they are not text."""
    mark, encoding = next((one for one in _MARKS if raw.startswith(one[0])), (b"", "utf-8"))
    try:
        found = ItemText(raw.removeprefix(mark).decode(encoding))
    except UnicodeDecodeError:
        guessed = import_optional("chardet", tr("files in older encodings"), "indexing").detect(raw)["encoding"]
        if guessed is None:
            return None
        found = ItemText(raw.decode(guessed, "replace"), guessed)
    return None if "\0" in found.text else found


def _web_page_to_markdown(page: str) -> str:
    """Convert the readable part of an HTML page to Markdown."""
    try:
        return str(import_optional("markdownify", tr("web pages"), "indexing").markdownify(page, heading_style="ATX"))
    except RecursionError as error:
        raise NoText(tr("its page is nested too deeply: {elsewhere}", elsewhere=_ELSEWHERE)) from error


# --- cutting a text into units (``docs/indexing.md``, "Units") ------------------------------------------------------
#
# The units may differ from those of the application, because their ids follow from their offsets.


_DELIMITER = "delimiter"
#: Characters that are split at once, or the length of this number of units if that is longer. On text without breaks,
#: the splitter takes quadratic time.
_WINDOW, _UNITS_IN_WINDOW = 20_000, 8
#: Where a window ends, by preference, in its second half.
_BREAKS = ("\n\n", "\n", " ")

Span = tuple[int, int]


def cut_text(text: str, settings: Settings) -> list[Span]:
    """Cut a text into units, and return their spans in UTF-16 units and in order.

    No unit is blank or longer than the base's chunk size, in characters.

    Raises:
        WrongUsage: the splitter is not installed.
    """
    size = settings.chunk_size
    splitter = import_optional("semantic_text_splitter", tr("texts without units"), "indexing").MarkdownSplitter(
        size, settings.chunk_overlap
    )
    is_delimited = settings.chunk_strategy == _DELIMITER
    spans: list[Span] = []
    for start, end in _split_at_separator(text, settings):
        is_unit = is_delimited and end - start <= size
        spans += [(start, end)] if is_unit else _split(splitter, text, (start, end), size)
    return _to_utf16(text, [span for span in spans if not is_blank(text[slice(*span)])])


def _to_utf16(text: str, spans: list[Span]) -> list[Span]:
    """Convert spans of a text from characters to UTF-16 units."""
    if text.isascii():
        return spans
    # Count from one offset to the next.
    units_before: dict[int, int] = {}
    before = units = 0
    for offset in sorted({offset for span in spans for offset in span}):
        units += utf16_len(text[before:offset])
        before, units_before[offset] = offset, units
    return [(units_before[start], units_before[end]) for start, end in spans]


def get_unit_separator(settings: Settings) -> str:
    """Return the text at which the base's texts are cut, or "" if they are not cut at a separator."""
    if settings.chunk_strategy != _DELIMITER:
        return ""
    return unescape_separator(settings)


def _split_at_separator(text: str, settings: Settings) -> Iterator[Span]:
    """Yield the spans of a text between separators, in characters; one span if the settings have no separator."""
    separator = get_unit_separator(settings)
    start = 0
    while separator and (end := text.find(separator, start)) >= 0:
        yield start, end
        start = end + len(separator)
    yield start, len(text)


def _split(splitter: Any, text: str, piece: Span, size: int) -> Iterator[Span]:
    """Cut the part ``piece`` of a text into spans with the splitter; where that fails, at line ends and blanks.

    ``size`` is the longest unit in characters. All spans are in characters.
    """
    for start, end in _cut_windows(text, piece, max(_WINDOW, _UNITS_IN_WINDOW * size)):
        try:
            found = splitter.chunk_indices(text[start:end])
        except BaseException as error:
            # A fault of the splitter, which some texts trigger: cut at line ends and blanks instead.
            if type(error).__name__ != "PanicException":
                raise
            yield from _cut_windows(text, (start, end), size)
            continue
        yield from ((start + place, start + place + len(unit)) for place, unit in found)


def _cut_windows(text: str, piece: Span, length: int) -> Iterator[Span]:
    """Cut the part ``piece`` of a text into spans of up to ``length`` characters, if possible at line ends or blanks.

    All spans are in characters.
    """
    start, last = piece
    while last - start > length:
        middle, end = start + length // 2, start + length
        found = ((text.rfind(mark, middle, end), len(mark)) for mark in _BREAKS)
        end = next((place + width for place, width in found if place >= 0), end)
        yield start, end
        start = end
    yield start, last


# --- former units of a text -----------------------------------------------------------------------------------------
#
# A body names its unit, and a unit's id follows from its offsets (``docs/formats/index.md``, "Identities"). If the
# offsets of a body in the text give the id that it names, they are proven, and the unit keeps its vector.


#: Characters of the prefix by which bodies are looked up.
_PREFIX = 16


class FormerUnits:
    """Bodies in an index whose units are missing, by the id of the unit; finds their spans in a text."""

    def __init__(self, bodies: Mapping[str, str]) -> None:
        """Prepare the search for ``bodies`` by their first characters."""
        self._bodies = bodies
        self._length = min((_PREFIX, *(len(body) for body in bodies.values() if body)))
        self._begun: dict[str, set[str]] = defaultdict(set)
        for body in bodies.values():
            if body:
                self._begun[body[: self._length]].add(body)

    def spans(self, material: str, content_hash: str, text: str, separator: str) -> list[Span]:
        """Return the spans of the former units of a material, in UTF-16 units; empty unless they cover the text.

        Args:
            material: its id.
            content_hash: the hash of its text.
            text: its text.
            separator: text that may separate units in addition to white space.
        """
        found = []
        rest, end = "", 0
        for place, body, span in self._proven(material, content_hash, text):
            rest += text[end:place]
            end = max(end, place + len(body))
            found.append(span)
        rest += text[end:]
        return found if is_blank(rest.replace(separator, "") if separator else rest) else []

    def _proven(self, material: str, content_hash: str, text: str) -> Iterator[tuple[int, str, Span]]:
        """Yield the former units in a text: the character offset, the body, and the span in UTF-16 units.

        A unit is proven if its id follows from the material, the hash, its number and its span.
        """
        index = start = 0
        for place, char in enumerate(text if self._begun else ""):
            for body in self._begun.get(text[place : place + self._length], ()):
                end = start + utf16_len(body)
                if text.startswith(body, place) and self._is_unit(material, content_hash, index, (start, end), body):
                    yield place, body, (start, end)
                    index += 1
                    break
            start += 1 if char <= "\uffff" else 2

    def _is_unit(self, material: str, content_hash: str, index: int, span: Span, body: str) -> bool:
        """Whether a unit with this number (``index``) and span would have the id that a body with this text names."""
        return self._bodies.get(identity.unit_id(material, content_hash, index, *span)) == body
