"""Text as JavaScript sees it: UTF-16 lengths and cuts, its white space, and bytes that are not quite UTF-8; text shown.

The v1 and v2 applications are written in JavaScript; offsets count UTF-16 code units and trimming follows its rules
(``docs/formats/index.md``, "Offsets"; ``docs/formats/v1.md``, "Text").
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from regraft.language import tr

if TYPE_CHECKING:
    import regex


#: What JavaScript's ``\s`` and ``trim`` take for white space: U+FEFF is, U+0085 is not.
JS_WHITESPACE = (
    "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)

#: Surrogates coded each by itself, one or more in a row; no byte of them can be part of another character.
_RAW_SURROGATES = re.compile(rb"(?:\xed[\xa0-\xbf][\x80-\xbf])+")
_SURROGATE = re.compile("[\ud800-\udfff]")
#: What writes elsewhere than where it stands, or cannot be seen: controls, line ends, changes of direction, format
#: characters, blanks of no width, unpaired surrogates, private use and what is no character (Unicode's categories Cc,
#: Cf, Zl, Zp, Cs, Co, and what it calls ignorable).
_HIDDEN = (
    "\x00-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890-\u0891\u08e2\u115f-\u1160\u17b4-\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\uf8ff\ufdd0-\ufdef\ufeff\uffa0\ufff0-\ufffb\ufffe-\uffff"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    + "".join(f"{chr(plane * 0x10000 + 0xFFFE)}-{chr(plane * 0x10000 + 0xFFFF)}" for plane in range(1, 14))
    + "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff\U000efffe-\U0010ffff"
)
_EMOJI = "\u2600-\u27bf\U0001f000-\U0001faff"
_JOINED_WORDS = "\u0620-\u06d3\u0900-\u0dff\u1000-\u109f\u1780-\u17b3"
#: Joiners that join: in a picture of several, and in the words of scripts that are written with them.
_JOINERS = f"(?<=[{_EMOJI}\ufe0f])\u200d(?=[{_EMOJI}])|(?<=[{_JOINED_WORDS}])[\u200c\u200d](?=[{_JOINED_WORDS}])"
#: What is hidden and has to stay as it is: on one line nothing, in lines their ends and tabs, in JSON line ends alone.
_STAYS, _STAYS_IN_LINES, _STAYS_IN_JSON = _JOINERS, f"{_JOINERS}|[\n\t]", f"\n|{_JOINERS}"
#: Marks that stand on one character in any script; more are piled up over the lines above.
_MOST_MARKS = 8
#: Code points of one value that are shown: the longest path of any system.
LONGEST_SHOWN = 4_096
#: Of a name that stands before what is said of it.
LONGEST_NAME = 200
#: Of one line that several values are in.
_LONGEST_LINE = 4 * LONGEST_SHOWN


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


def replace_surrogates(text: str) -> str:
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
    return _RAW_SURROGATES.sub(_pair_surrogates, raw).decode("utf-8", "replace")


def decode_halves(raw: bytes) -> str:
    """Decode UTF-8 in which surrogates may stand: each half of a pair is U+FFFD.

    Raises:
        UnicodeDecodeError: other bytes are no UTF-8, which is damage.
    """
    return replace_surrogates(raw.decode("utf-8", "surrogatepass"))


def lenient_text(value: object) -> str:
    """Return a column's value as text, whatever the file has there: read it with ``CAST(column AS BLOB)``.

    Bytes are decoded as by :func:`decode_utf8`, so that half surrogates become U+FFFD. SQLite gives text that is no
    UTF-8 to Python as an error, and the application stores such names (``docs/formats/index.md``).
    """
    return decode_utf8(value) if isinstance(value, bytes) else replace_surrogates(str(value))


def _pair_surrogates(match: re.Match[bytes]) -> bytes:
    """Return surrogates that stand as if they were characters as UTF-8: those that pair, else U+FFFD for each."""
    return replace_surrogates(match.group().decode("utf-8", "surrogatepass")).encode()


def utf16_units(text: str) -> tuple[int, ...]:
    """Return the UTF-16 code units of ``text``, which has no unpaired surrogate."""
    raw = text.encode("utf-16-le")
    return struct.unpack(f"<{len(raw) // 2}H", raw)


def without_nul(text: str) -> str:
    """Return ``text`` without NUL, where SQLite's own functions take a text for ended."""
    return text.replace("\0", "")


def path_text(path: object) -> str:
    """Return a path as text that can be stored: where its bytes are no UTF-8, there is U+FFFD."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def path_argument(path: object) -> str:
    """Return a path as a word that a command line takes, not yet quoted: never one that looks like an option."""
    name = path_text(path)
    return f".{os.sep}{name}" if name.startswith("-") else name


def printable(value: object, limit: int | None = LONGEST_SHOWN, *, lines: bool = False) -> str:
    """Return any text of a user's, or of a store's, so that it can be shown: in a terminal, a message or a page.

    It stays on its line and in its order, and nothing of it is hidden: controls, line ends, changes of direction, what
    has no width, unpaired surrogates and private characters are escapes (``\\x1b``, ``\\u202e``); marks piled up on one
    character are cut. Of more than ``limit`` code points only the start is shown, and how many there are. Text that
    is shown already stays as it is.

    Args:
        value: text, or anything else by its ``str``.
        limit: the most code points that are shown; None: all.
        lines: line feeds and tabs stay what they are: for a text of several lines.
    """
    text = str(value)
    if limit is not None and len(text) > limit:
        text = tr("{text}…({text2:,} characters)", text=text[:limit], text2=len(text))
    if text.isascii() and text.isprintable():
        return text
    text = _not_shown(_STAYS_IN_LINES if lines else _STAYS).sub(_escape, text)
    return text if text.isascii() else _piled_marks().sub(r"\1…", text)


def printable_lines(lines: Iterable[object]) -> str:
    """Return lines for a person as one text: each as by :func:`shown`, with a line end."""
    return "".join(f"{printable(line, _LONGEST_LINE)}\n" for line in lines)


def one_line(text: str, limit: int | None = LONGEST_SHOWN) -> str:
    """Return a text, of several lines too, in one: as :func:`shown`, with single blanks for its white space."""
    start = text if limit is None else text[: 4 * limit]
    words = " ".join(start.split())
    return printable(words, limit) + ("…" if len(start) < len(text) and len(words) <= (limit or 0) else "")


def escape_json(document: str) -> str:
    """Return JSON text with what :func:`shown` escapes as JSON's own escapes: it says the same, and hides nothing.

    Unpaired surrogates, which strict readers refuse, are U+FFFD.
    """
    is_plain = document.isascii() and "\x7f" not in document
    return document if is_plain else _not_shown(_STAYS_IN_JSON).sub(_json_escape, document)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _json_escape(found: re.Match[str]) -> str:
    units = utf16_units(replace_surrogates(found[0]))
    return "".join(f"\\u{unit:04x}" for unit in units)


@cache
def _not_shown(stays: str) -> re.Pattern[str]:
    """Return what finds hidden characters, but for those that stay; made once it is needed, which takes its time."""
    return re.compile(f"(?!{stays})[{_HIDDEN}]")


@cache
def _piled_marks() -> regex.Pattern[str]:
    import regex  # noqa: PLC0415 - takes its time, and names in ASCII need none of it

    return regex.compile(rf"([\p{{Mn}}\p{{Me}}]{{{_MOST_MARKS}}})[\p{{Mn}}\p{{Me}}]+")


# How many columns a text takes in a terminal, and text filled up to some.


def text_width(text: str) -> int:
    """Return how many columns a text of one line takes in a terminal."""
    text = text.rstrip("\n")
    if text.isascii():
        return len(text)
    from wcwidth import wcswidth  # noqa: PLC0415 - takes its time, and ASCII needs none of it

    width = wcswidth(text)
    return width if width >= 0 else len(text)


def pad_right(text: str, width: int) -> str:
    """Return a text with blanks behind it, of so many columns at least."""
    return text + " " * (width - text_width(text))


def pad_left(text: str, width: int) -> str:
    """Return a text with blanks before it, of so many columns at least."""
    return " " * (width - text_width(text)) + text


def format_bytes(size: float) -> str:
    """Return a size for a person, in powers of 1000."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return tr("{size:,.0f} bytes", size=size) if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
