"""Large JSON written by JavaScript, read without holding more of it than is asked for.

JavaScript writes unpaired surrogates as escapes (``\\ud83d`` alone, where a text was cut); strict parsers refuse the
whole document for one. They are made U+FFFD in place, byte for byte, before the text is parsed
(``docs/formats/v1.md``, "JSON").
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import msgspec

from regraft.language import tr

T = TypeVar("T")

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_LOW_ESCAPE = re.compile(rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_RAW_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
_REPLACEMENT_ESCAPE = b"\\ufffd"
_REPLACEMENT = b"\xef\xbf\xbd"
_BLANK = re.compile(rb"[ \t\r\n]*")
#: A string up to its end: what is not its end is neither a quote nor a backslash, or escaped.
_UNESCAPED_QUOTE = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
#: Behind so many plain bytes no escape is cut in two: the longest has a backslash and five more.
_NO_ESCAPE = re.compile(rb"[ !#-\[\]-~]{6}")
_PIECE_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
#: Digits of a whole number that is kept exact: more than a float can be large, fewer than Python refuses.
MAX_EXACT_DIGITS = 400


class JsonProblem(ValueError):
    """Text that is not valid JSON, or not of the shape asked for; the text says what and where."""


def loads(text: str | bytes) -> Any:
    """Parse JSON that anybody may have written; a number beyond all floats is infinite, as JavaScript reads it.

    Whole numbers are exact, those with too many digits for any use (:data:`MOST_DIGITS`) floats.

    Raises:
        JsonProblem: it is no JSON, nested too deeply, or no UTF-8.
    """
    try:
        return json.loads(text, parse_int=_whole_number)
    except (ValueError, RecursionError) as error:
        raise JsonProblem(_reason(error)) from error


def _whole_number(digits: str) -> int | float:
    return int(digits) if len(digits.lstrip("-")) <= MAX_EXACT_DIGITS else float(digits)


def _reason(error: Exception) -> str:
    return tr("nested too deeply") if isinstance(error, RecursionError) else str(error)


def replace_lone_surrogates(text: bytearray) -> memoryview:
    """Make every unpaired surrogate in ``text`` U+FFFD, in place, and return the text without a byte order mark."""
    done = 0
    for match in _SURROGATE_ESCAPE.finditer(text):
        start = match.start()
        if start < done or _is_escaped(text, start):
            continue
        high = text[start + 3] in b"89abAB"
        if high and _LOW_ESCAPE.match(text, start + 6):
            done = start + 12
        else:
            text[start : start + 6] = _REPLACEMENT_ESCAPE
    for match in _RAW_SURROGATE.finditer(text):
        text[match.start() : match.end()] = _REPLACEMENT
    return memoryview(text)[3:] if text.startswith(_BOM) else memoryview(text)


def _is_escaped(text: bytearray, start: int) -> bool:
    """Tell whether the backslash at ``start`` is itself escaped, so that what follows is plain text."""
    first = start
    while first > 0 and text[first - 1] == 0x5C:
        first -= 1
    return (start - first) % 2 == 1


def decode(text: bytearray, shape: type[T]) -> T:
    """Parse ``text`` as ``shape``.

    It is changed in place (see :func:`harmless`) and must be kept while fields of type Raw live.

    Raises:
        JsonProblem: it is no valid JSON, or of another shape.
    """
    return _decode(replace_lone_surrogates(text), shape)


def _decode(text: memoryview | msgspec.Raw, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if shape in (Any, object) and "out of range" in str(error):
            # A number beyond all floats is valid JSON: infinite, as JavaScript reads it.
            return loads(bytes(text))  # type: ignore[no-any-return]
        raise JsonProblem(_reason(error)) from error


def decode_raw(raw: msgspec.Raw, shape: type[T]) -> T:
    """Parse a part of a text that was parsed before.

    Raises:
        JsonProblem: it is no valid JSON, or of another shape.
    """
    return _decode(raw, shape)


def decode_any(raw: msgspec.Raw) -> Any:
    """Return the value of a part of a text that was parsed before, of any shape.

    Raises:
        JsonProblem: it is no valid JSON.
    """
    return _decode(raw, object)


def unwrap_string(raw: msgspec.Raw) -> bytearray:
    """Return the JSON text in ``raw``: where it is a string that holds JSON text (redux-persist), that text.

    Raises:
        JsonProblem: a string of it is broken.
    """
    text = bytearray(raw)
    for _ in range(4):
        view = replace_lone_surrogates(text)
        if not _start(view).startswith(b'"'):
            return text
        begin = len(text) - len(view)
        view.release()
        _unquote(text, begin)
    return text


def _unquote(text: bytearray, begin: int) -> None:
    """Make a text that is a JSON string from ``begin`` on what the string says, piece by piece in the same memory.

    Raises:
        JsonProblem: it is no whole string.
    """
    at = text.index(b'"', begin) + 1
    written = 0
    while True:
        end = _piece_end(text, at)
        quote = _UNESCAPED_QUOTE.match(text, at, end)
        stop = end if quote is None else quote.end() - 1
        with memoryview(text) as view:
            piece = _decode(memoryview(b"".join((b'"', view[at:stop], b'"'))), str).encode()
        text[written : written + len(piece)] = piece
        written += len(piece)
        if quote is not None:
            break
        if end == len(text):
            raise JsonProblem("Input data was truncated")
        at = end
    if _BLANK.fullmatch(text, stop + 1) is None:
        raise JsonProblem(f"JSON is malformed: trailing characters (byte {stop + 1})")
    del text[written:]


def _piece_end(text: bytearray, at: int) -> int:
    """Return where a string can be cut: some way behind ``at``, where no escape and no character is cut in two."""
    found = _NO_ESCAPE.search(text, at + _PIECE_BYTES)
    return len(text) if found is None else found.end()


def _start(text: memoryview | msgspec.Raw) -> bytes:
    """Return the first bytes of ``text`` after white space, without copying the rest."""
    view = memoryview(text)
    blank = _BLANK.match(view)
    return bytes(view[blank.end() if blank else 0 :][:64])


class _Entry(msgspec.Struct):
    key: Any = None
    value: msgspec.Raw = msgspec.Raw(b"null")


def _entry(raw: msgspec.Raw) -> _Entry:
    try:
        return msgspec.json.decode(raw, type=_Entry)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Entry()


def read_fields(text: bytearray | msgspec.Raw, names: tuple[str, ...]) -> dict[str, msgspec.Raw]:
    """Return those of ``names`` that the object ``text`` has, unparsed; a list of {key, value} reads as an object.

    Raises:
        JsonProblem: it is no valid JSON, or neither an object nor such a list.
    """
    source = replace_lone_surrogates(text) if isinstance(text, bytearray) else text
    return _listed_fields(source, names) if _start(source).startswith(b"[") else _object_fields(source, names)


def _listed_fields(source: memoryview | msgspec.Raw, names: tuple[str, ...]) -> dict[str, msgspec.Raw]:
    entries = [_entry(raw) for raw in _decode(source, list[msgspec.Raw])]
    return {entry.key: entry.value for entry in entries if isinstance(entry.key, str) and entry.key in names}


def _object_fields(source: memoryview | msgspec.Raw, names: tuple[str, ...]) -> dict[str, msgspec.Raw]:
    shape = msgspec.defstruct(
        "Fields",
        [(f"field_{number}", msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for number in range(len(names))],
        rename={f"field_{number}": name for number, name in enumerate(names)},
    )
    found = _decode(source, shape)
    values = {name: getattr(found, f"field_{number}") for number, name in enumerate(names)}
    return {name: value for name, value in values.items() if value is not msgspec.UNSET}


def is_list(text: bytearray | msgspec.Raw) -> bool:
    """Tell whether ``text`` is a JSON list."""
    return _start(text if isinstance(text, msgspec.Raw) else memoryview(text)).startswith(b"[")


def is_object(text: bytearray) -> bool:
    """Tell whether ``text`` is a JSON object."""
    return _start(memoryview(text)).startswith(b"{")


def is_string(text: bytearray) -> bool:
    """Tell whether ``text`` is a JSON string."""
    return _start(memoryview(text)).startswith(b'"')


def is_null(raw: msgspec.Raw) -> bool:
    """Tell whether ``raw`` is the JSON value null."""
    return _start(raw).rstrip() == b"null"
