"""Cuts a text into units: slices of it, word for word (``docs/indexing.md``, "Units").

The application cuts in its own way. It need not be the same: the ids of units follow from where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from regraft.extras import needed
from regraft.formats.cherry_v2.defaults import Settings
from regraft.formats.cherry_v2.settings import unescaped_separator
from regraft.language import tr
from regraft.text import is_blank, utf16_len

_DELIMITER = "delimiter"
#: Characters that are cut at once, unless so many units are longer: on text without any break the splitter's time
#: grows with the square of the length.
_WINDOW, _UNITS_IN_WINDOW = 20_000, 8
#: Where a window ends, by preference; behind its middle.
_BREAKS = ("\n\n", "\n", " ")

Span = tuple[int, int]


def cut(text: str, settings: Settings) -> list[Span]:
    """Return where the units of a text begin and end, in UTF-16 units, in their order.

    None of them is blank, and none is longer than the base's chunk size, in characters.

    Raises:
        WrongUsage: the splitter is not installed.
    """
    size = settings.chunk_size
    splitter = needed("semantic_text_splitter", tr("texts without units"), "indexing").MarkdownSplitter(
        size, settings.chunk_overlap
    )
    spans = [
        span
        for piece in _pieces(text, settings)
        for span in ([piece] if _is_short(piece, settings) else _split(splitter, text, piece, size))
        if not is_blank(text[slice(*span)])
    ]
    return _in_utf16(text, spans)


def separator_of(settings: Settings) -> str:
    """Return what stands between two units of a base that is cut at a separator, else nothing."""
    if settings.chunk_strategy != _DELIMITER:
        return ""
    return unescaped_separator(settings)


def _pieces(text: str, settings: Settings) -> Iterator[Span]:
    separator = separator_of(settings)
    start = 0
    while separator and (end := text.find(separator, start)) >= 0:
        yield start, end
        start = end + len(separator)
    yield start, len(text)


def _is_short(piece: Span, settings: Settings) -> bool:
    """Tell whether a piece between two separators is a unit as it is."""
    start, end = piece
    return settings.chunk_strategy == _DELIMITER and end - start <= settings.chunk_size


def _split(splitter: Any, text: str, piece: Span, size: int) -> Iterator[Span]:
    for start, end in _windows(text, piece, max(_WINDOW, _UNITS_IN_WINDOW * size)):
        for place, unit in splitter.chunk_indices(text[start:end]):
            yield start + place, start + place + len(unit)


def _windows(text: str, piece: Span, length: int) -> Iterator[Span]:
    start, last = piece
    while last - start > length:
        middle, end = start + length // 2, start + length
        found = ((text.rfind(mark, middle, end), len(mark)) for mark in _BREAKS)
        end = next((place + width for place, width in found if place >= 0), end)
        yield start, end
        start = end
    yield start, last


def _in_utf16(text: str, spans: list[Span]) -> list[Span]:
    if text.isascii():
        return spans
    at = dict(_offsets(text, sorted({place for span in spans for place in span})))
    return [(at[start], at[end]) for start, end in spans]


def _offsets(text: str, places: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Return each place in a text, which ascend, with the UTF-16 units before it."""
    before = units = 0
    for place in places:
        units += utf16_len(text[before:place])
        before = place
        yield place, units
