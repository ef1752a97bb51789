"""Text as JavaScript sees it: UTF-16 lengths and cuts, its white space, and bytes that are not quite UTF-8.

The v1 and v2 applications are written in JavaScript; offsets count UTF-16 code units and trimming follows its rules
(``docs/formats/index.md``, "Offsets"; ``docs/formats/v1.md``, "Text").
"""

from __future__ import annotations

import os
import re

#: What JavaScript's ``\s`` and ``trim`` take for white space: U+FEFF is, U+0085 is not.
JS_WHITESPACE = (
    "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)

#: Surrogates coded each by itself, one or more in a row; no byte of them can be part of another character.
_RAW_SURROGATES = re.compile(rb"(?:\xed[\xa0-\xbf][\x80-\xbf])+")
_SURROGATE = re.compile("[\ud800-\udfff]")
#: What would write elsewhere on a terminal than where it stands: control characters, line ends, changes of direction.
_MOVES_CURSOR = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def trim(text: str) -> str:
    """Return ``text`` without leading and trailing JavaScript white space."""
    return text.strip(JS_WHITESPACE)


def is_blank(value: object) -> bool:
    """Tell whether ``value`` is no text, or text of white space only."""
    return not isinstance(value, str) or not trim(value)


def utf16_len(text: str) -> int:
    """Return the length of ``text`` in UTF-16 code units."""
    if text.isascii():
        return len(text)
    return len(text.encode("utf-16-le")) // 2


def utf16_cut(text: str, units: int) -> str:
    """Return the longest start of ``text`` of at most ``units`` UTF-16 code units that ends between code points."""
    start = text[:units]
    while utf16_len(start) > units:
        excess = utf16_len(start) - units
        start = start[: len(start) - max(1, excess // 2)]
    return start


def utf8_cut(text: str, size: int) -> str:
    """Return the longest start of ``text`` of at most ``size`` bytes of UTF-8 that ends between code points."""
    return text.encode()[: max(size, 0)].decode(errors="ignore")


def whole(text: str) -> str:
    """Return ``text`` with every unpaired surrogate as U+FFFD, so that it can be stored."""
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def decode_utf8(raw: bytes) -> str:
    """Decode UTF-8 written by any program: surrogates are paired where they pair, else each is U+FFFD.

    Other invalid bytes become U+FFFD as Python's ``replace`` handler does it.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        pass
    return _RAW_SURROGATES.sub(_mended, raw).decode("utf-8", "replace")


def decode_halves(raw: bytes) -> str:
    """Decode UTF-8 in which surrogates may stand: each half of a pair is U+FFFD.

    Raises:
        UnicodeDecodeError: other bytes are no UTF-8, which is damage.
    """
    return whole(raw.decode("utf-8", "surrogatepass"))


def lenient_text(value: object) -> str:
    """Return a column's value as text, whatever the file has there: read it with ``CAST(column AS BLOB)``.

    Bytes are decoded as by :func:`decode_utf8`, so that half surrogates become U+FFFD. SQLite gives text that is no
    UTF-8 to Python as an error, and the application stores such names (``docs/formats/index.md``).
    """
    return decode_utf8(value) if isinstance(value, bytes) else whole(str(value))


def _mended(match: re.Match[bytes]) -> bytes:
    """Return surrogates that stand as if they were characters as UTF-8: those that pair, else U+FFFD for each."""
    return whole(match.group().decode("utf-8", "surrogatepass")).encode()


def without_nul(text: str) -> str:
    """Return ``text`` without NUL, where SQLite's own functions take a text for ended."""
    return text.replace("\0", "")


def shown(path: object) -> str:
    """Return a path as text that can be stored and printed, also where its bytes are no UTF-8."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def argument(path: object) -> str:
    """Return a path as a word that a command line takes, not yet quoted: never one that looks like an option."""
    name = shown(path)
    return f".{os.sep}{name}" if name.startswith("-") else name


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where it is not one."""
    if number == 1:
        return f"{number:,} {noun}"
    is_changed = noun.endswith("y") and noun[-2] not in "aeiou"
    return f"{number:,} {noun[:-1]}ies" if is_changed else f"{number:,} {noun}s"


def escaped(text: str) -> str:
    """Return ``text`` with what could move the cursor of a terminal, and unpaired surrogates, as escapes."""
    return _MOVES_CURSOR.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """Return text of a store so that it cannot write on the terminal: on one line, control characters escaped."""
    return escaped(" ".join(text.split()))
