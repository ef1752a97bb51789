r"""Read large JSON written by JavaScript without parsing more of it than needed.

Where JavaScript cut a text inside a surrogate pair, it writes an unpaired surrogate (``\ud83d``), and strict parsers
then refuse the whole document. Such surrogates are replaced by U+FFFD in place, with the same number of bytes, before
parsing (``docs/formats/v1.md``, "JSON").
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
#: Matches up to the closing quote of a string.
_UNESCAPED_QUOTE = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
#: After this many plain bytes no escape can be split: the longest is a backslash and five more bytes.
_NO_ESCAPE = re.compile(rb"[ !#-\[\]-~]{6}")
_PIECE_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
#: Integers with up to this many digits are parsed exactly: more digits than any float has, fewer than Python refuses.
MAX_EXACT_DIGITS = 400


class JsonProblem(ValueError):
    """Text that is not valid JSON or does not have the requested shape. The message says what is wrong and where."""


def loads(text: str | bytes) -> Any:
    """Parse JSON from an untrusted source. A number beyond all floats becomes infinity, as in JavaScript.

    Integers are exact up to :data:`MAX_EXACT_DIGITS` digits and floats beyond that.

    Raises:
        JsonProblem: the text is not JSON, nested too deeply, or not UTF-8.
    """
    try:
        return json.loads(
            text, parse_int=lambda digits: int(digits) if len(digits.lstrip("-")) <= MAX_EXACT_DIGITS else float(digits)
        )
    except (ValueError, RecursionError) as error:
        raise JsonProblem(_reason(error)) from error


def load_object(text: object) -> dict[str, Any]:
    """Parse a JSON object from an untrusted source; empty if the value is no text, or another value of JSON."""
    try:
        found = loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _reason(error: Exception) -> str:
    """Describe an error of the JSON decoder, for messages."""
    return tr("nested too deeply") if isinstance(error, RecursionError) else str(error)


def replace_lone_surrogates(text: bytearray) -> memoryview:
    """Replace every unpaired surrogate in ``text`` by U+FFFD, in place; return a view without the byte order mark."""
    done = 0
    for match in _SURROGATE_ESCAPE.finditer(text):
        start = match.start()
        first = start
        while first > 0 and text[first - 1] == 0x5C:
            first -= 1
        # After an odd number of backslashes this one is itself escaped, so that plain text follows.
        if start < done or (start - first) % 2 == 1:
            continue
        high = text[start + 3] in b"89abAB"
        if high and _LOW_ESCAPE.match(text, start + 6):
            done = start + 12
        else:
            text[start : start + 6] = _REPLACEMENT_ESCAPE
    for match in _RAW_SURROGATE.finditer(text):
        text[match.start() : match.end()] = _REPLACEMENT
    return memoryview(text)[3:] if text.startswith(_BOM) else memoryview(text)


def decode(text: bytearray, shape: type[T]) -> T:
    """Parse ``text`` as JSON of the type ``shape``.

    ``text`` is modified in place (:func:`replace_lone_surrogates`) and must be kept as long as any Raw field of the
    result.

    Raises:
        JsonProblem: the text is not valid JSON or has another shape.
    """
    return _decode(replace_lone_surrogates(text), shape)


def _decode(text: memoryview | msgspec.Raw, shape: type[T]) -> T:
    """Decode JSON to a type; numbers beyond all floats become infinity."""
    try:
        return msgspec.json.decode(text, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if shape in (Any, object) and "out of range" in str(error):
            # A number beyond all floats is valid JSON: infinity, as in JavaScript.
            return loads(bytes(text))  # type: ignore[no-any-return]
        raise JsonProblem(_reason(error)) from error


def decode_raw(raw: msgspec.Raw, shape: type[T]) -> T:
    """Parse a part of a JSON text that was left unparsed, as the type ``shape``.

    Raises:
        JsonProblem: the part is not valid JSON or has another shape.
    """
    return _decode(raw, shape)


def decode_any(raw: msgspec.Raw) -> Any:
    """Parse a part of a JSON text that was left unparsed, as plain Python values.

    Raises:
        JsonProblem: the part is not valid JSON.
    """
    return _decode(raw, object)


def unwrap_string(raw: msgspec.Raw) -> bytearray:
    """Return the JSON text in ``raw``, or the text inside it if ``raw`` is a string that contains JSON text.

    redux-persist nests JSON this way.

    Raises:
        JsonProblem: a string is broken.
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
    """Replace ``text``, which is a JSON string from ``begin`` on, by the value of the string, piece by piece.

    Raises:
        JsonProblem: the string is incomplete.
    """
    at = text.index(b'"', begin) + 1
    written = 0
    while True:
        # A piece ends where it splits neither an escape nor a character.
        plain = _NO_ESCAPE.search(text, at + _PIECE_BYTES)
        end = len(text) if plain is None else plain.end()
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


def _start(text: memoryview | msgspec.Raw) -> bytes:
    """Return up to 64 bytes of ``text`` after leading white space, without copying the rest."""
    view = memoryview(text)
    blank = _BLANK.match(view)
    return bytes(view[blank.end() if blank else 0 :][:64])


class _Entry(msgspec.Struct):
    """An entry of a list that represents an object."""

    key: Any = None
    value: msgspec.Raw = msgspec.Raw(b"null")


def _entry(raw: msgspec.Raw) -> _Entry:
    """Decode a list entry of the form {key, value}; an entry without key if it has another form."""
    try:
        return msgspec.json.decode(raw, type=_Entry)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Entry()


def read_fields(text: bytearray | msgspec.Raw, names: tuple[str, ...]) -> dict[str, msgspec.Raw]:
    """Return the requested fields of the object ``text``, unparsed. A list of {key, value} is read like an object.

    Raises:
        JsonProblem: the text is not valid JSON, or neither an object nor such a list.
    """
    source = replace_lone_surrogates(text) if isinstance(text, bytearray) else text
    if _start(source).startswith(b"["):
        entries = [_entry(raw) for raw in _decode(source, list[msgspec.Raw])]
        return {entry.key: entry.value for entry in entries if isinstance(entry.key, str) and entry.key in names}
    shape = msgspec.defstruct(
        "Fields",
        [(f"field_{number}", msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for number in range(len(names))],
        rename={f"field_{number}": name for number, name in enumerate(names)},
    )
    found = _decode(source, shape)
    values = {name: getattr(found, f"field_{number}") for number, name in enumerate(names)}
    return {name: value for name, value in values.items() if value is not msgspec.UNSET}


def is_list(text: bytearray | msgspec.Raw) -> bool:
    """Whether ``text`` starts like a JSON list."""
    return _start(text if isinstance(text, msgspec.Raw) else memoryview(text)).startswith(b"[")


def is_object(text: bytearray) -> bool:
    """Whether ``text`` starts like a JSON object."""
    return _start(memoryview(text)).startswith(b"{")


def is_string(text: bytearray) -> bool:
    """Whether ``text`` starts like a JSON string."""
    return _start(memoryview(text)).startswith(b'"')


def is_null(raw: msgspec.Raw) -> bool:
    """Whether ``raw`` is the JSON value null."""
    return _start(raw).rstrip() == b"null"
