"""Text as JavaScript handles it (UTF-16 lengths and cuts, white space), imperfect UTF-8, command lines, and the safe
display of untrusted text.

The v1 and v2 applications are written in JavaScript: offsets count UTF-16 code units, and trimming follows its rules
(``docs/formats/index.md``, "Offsets"; ``docs/formats/v1.md``, "Text").
"""

from __future__ import annotations

import os
import re
import shlex
import struct
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from regraft.language import tr

if TYPE_CHECKING:
    import regex


#: White space of JavaScript's ``\s`` and ``trim``: includes U+FEFF, not U+0085.
JS_WHITESPACE = (
    "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)

#: One or more surrogates encoded as UTF-8; none of their bytes can belong to another character.
_RAW_SURROGATES = re.compile(rb"(?:\xed[\xa0-\xbf][\x80-\xbf])+")
_SURROGATE = re.compile("[\ud800-\udfff]")
#: Characters that are invisible or move the output: controls, line ends, changes of direction, format characters,
#: zero-width blanks, unpaired surrogates, private use and noncharacters (Unicode categories Cc, Cf, Zl, Zp, Cs, Co, and
#: default-ignorable code points).
_HIDDEN = (
    "\x00-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890-\u0891\u08e2\u115f-\u1160\u17b4-\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\uf8ff\ufdd0-\ufdef\ufeff\uffa0\ufff0-\ufffb\ufffe-\uffff"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    + "".join(f"{chr(plane * 0x10000 + 0xFFFE)}-{chr(plane * 0x10000 + 0xFFFF)}" for plane in range(1, 14))
    + "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff\U000efffe-\U0010ffff"
)
_EMOJI = "\u2600-\u27bf\U0001f000-\U0001faff"
_JOINED_WORDS = "\u0620-\u06d3\u0900-\u0dff\u1000-\u109f\u1780-\u17b3"
#: Joiners with an effect: inside of emoji sequences, and in words of scripts that use them.
_JOINERS = f"(?<=[{_EMOJI}\ufe0f])\u200d(?=[{_EMOJI}])|(?<=[{_JOINED_WORDS}])[\u200c\u200d](?=[{_JOINED_WORDS}])"
#: Hidden characters that stay: in one line only joiners, in several lines also line feeds and tabs, in JSON line feeds.
_STAYS, _STAYS_IN_LINES, _STAYS_IN_JSON = _JOINERS, f"{_JOINERS}|[\n\t]", f"\n|{_JOINERS}"
#: Combining marks on one character in any language; more of them pile up over other lines.
_MOST_MARKS = 8
#: Code points shown of one value: the longest path of any system.
LONGEST_SHOWN = 4_096
#: Code points shown of a name at the start of a message.
LONGEST_NAME = 200
#: Code points shown of a line with several values.
_LONGEST_LINE = 4 * LONGEST_SHOWN


def decode_utf16(wide: bytes) -> str | None:
    """Decode little-endian UTF-16; None if it is not valid."""
    try:
        return wide.decode("utf-16-le")
    except UnicodeDecodeError:
        return None


def decode_text(raw: object) -> str | None:
    """Decode bytes as UTF-8; None for other values, and for bytes that are not UTF-8."""
    try:
        return raw.decode() if isinstance(raw, bytes) else None
    except UnicodeDecodeError:
        return None


def trim(text: str) -> str:
    """Remove leading and trailing JavaScript white space."""
    return text.strip(JS_WHITESPACE)


def is_blank(value: object) -> bool:
    """Whether ``value`` is not a text, or only white space."""
    return not isinstance(value, str) or not trim(value)


def utf16_len(text: str) -> int:
    """Return the length of ``text`` in UTF-16 code units."""
    if text.isascii():
        return len(text)
    return len(text.encode("utf-16-le")) // 2


def utf16_cut(text: str, units: int) -> str:
    """Return the longest prefix of at most ``units`` UTF-16 code units that ends between code points."""
    start = text[:units]
    while utf16_len(start) > units:
        excess = utf16_len(start) - units
        start = start[: len(start) - max(1, excess // 2)]
    return start


def utf8_cut(text: str, size: int) -> str:
    """Return the longest prefix of at most ``size`` UTF-8 bytes that ends between code points."""
    return text.encode()[: max(size, 0)].decode(errors="ignore")


def replace_surrogates(text: str) -> str:
    """Replace unpaired surrogates by U+FFFD, so that the text can be stored."""
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def decode_utf8(raw: bytes) -> str:
    """Decode UTF-8 written by any program: surrogates are combined to pairs, and unpaired ones become U+FFFD.

    Other invalid bytes become U+FFFD as in Python's ``replace`` handler.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        pass

    def combine(match: re.Match[bytes]) -> bytes:
        """Convert adjacent encoded surrogates to the characters that they form in pairs, or to U+FFFD."""
        return replace_surrogates(match.group().decode("utf-8", "surrogatepass")).encode()

    return _RAW_SURROGATES.sub(combine, raw).decode("utf-8", "replace")


def decode_halves(raw: bytes) -> str:
    """Decode UTF-8 in which surrogates (halves of a UTF-16 pair) may be encoded: each becomes U+FFFD.

    Raises:
        UnicodeDecodeError: other bytes are not UTF-8, which means damage.
    """
    return replace_surrogates(raw.decode("utf-8", "surrogatepass"))


def lenient_text(value: object) -> str:
    """Convert the value of a database column to text, whatever the file contains.

    Read the column with ``CAST(column AS BLOB)``: SQLite reports text that is not UTF-8 as an error, and the
    application stores such names (``docs/formats/index.md``). Bytes are decoded by :func:`decode_utf8`.
    """
    return decode_utf8(value) if isinstance(value, bytes) else replace_surrogates(str(value))


def utf16_units(text: str) -> tuple[int, ...]:
    """Return the UTF-16 code units of ``text``, which must not contain unpaired surrogates."""
    raw = text.encode("utf-16-le")
    return struct.unpack(f"<{len(raw) // 2}H", raw)


def without_nul(text: str) -> str:
    """Remove NUL characters, at which SQLite's functions end a text."""
    return text.replace("\0", "")


def path_text(path: object) -> str:
    """Return a path as text that can be stored: invalid UTF-8 becomes U+FFFD."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def path_argument(path: object) -> str:
    """Return a path as an unquoted command-line argument that does not look like an option."""
    name = path_text(path)
    return f".{os.sep}{name}" if name.startswith("-") else name


#: Words that cmd.exe and PowerShell pass on unchanged.
_PLAIN_ON_WINDOWS = re.compile(r"-{0,2}[\w-]+|[\w\\/.][\w\\/.:+=-]*")
#: Backslashes before a quote, where programs on Windows take two for one.
_BACKSLASHES = re.compile(r'(\\*)("|\Z)')
#: What PowerShell expands in double quotes, or takes for one.
_OF_POWERSHELL = "`$\u201c\u201d\u201e"
#: The beginning of what cmd.exe replaces by a part of a variable, which may be a quote.
_VARIABLE_PART = r"%{}(?=[^%]*:[^%]*%)"
_WINDOWS_WORD = re.compile(r"""(?:"(?:[^"]|"")*"|'[^']*'|[^\s"'])+""")
_WINDOWS_PART = re.compile(r""""((?:[^"]|"")*)"|'([^']*)'|([^"']+)""")


def quote_word(word: str, *, windows: bool = os.name == "nt") -> str:
    """Quote a word of a command line for the shell of the user, so that nothing in the word takes effect.

    On Windows that is cmd.exe or PowerShell. A word with a dollar sign, a backtick, a double quote of any kind, or the
    beginning of a variable (``%a:``) cannot be quoted for both: it is right in PowerShell, or nowhere, and harmless.
    """
    if not windows:
        return shlex.quote(word)
    if _PLAIN_ON_WINDOWS.fullmatch(word):
        return word
    word = _BACKSLASHES.sub(lambda found: found[1] * 2 + found[2] * 2, word)
    word = re.sub(f"[{_OF_POWERSHELL}]", r"`\g<0>", word)
    return f'"{re.sub(_VARIABLE_PART.format(""), "%^", word)}"'


def join_command(words: Iterable[str], *, windows: bool = os.name == "nt") -> str:
    """Join the words of a command line, quoted as :func:`quote_word` does."""
    return " ".join(quote_word(word, windows=windows) for word in words)


def split_command(line: str, *, windows: bool = os.name == "nt") -> list[str]:
    """Split a command line of :func:`join_command`, or one that a user wrote; on Windows, backslashes are kept.

    Raises:
        ValueError: a quote is not closed.
    """
    if not windows:
        return shlex.split(line)
    if _WINDOWS_WORD.sub("", line).strip():
        raise ValueError(tr("a quote is not closed"))

    def decode(part: re.Match[str]) -> str:
        """Decode a part of a word, which may be in quotes."""
        if part[1] is None:
            return str(part[2] or part[3] or "")
        text = re.sub(_VARIABLE_PART.format(r"\^"), "%", part[1])
        text = re.sub(f"`([{_OF_POWERSHELL}])", r"\1", text)
        return re.sub(r'(\\*)(""|\Z)', lambda found: found[1][: (len(found[1]) + 1) // 2] + found[2][:1], text)

    return [_WINDOWS_PART.sub(decode, word) for word in _WINDOWS_WORD.findall(line)]


def printable(value: object, limit: int | None = LONGEST_SHOWN, *, lines: bool = False) -> str:
    r"""Return an untrusted text in a form that is safe in a terminal, a message or a page.

    It stays on one line, in order, and completely visible: controls, line ends, changes of direction, zero-width
    characters, unpaired surrogates and private characters become escapes (``\\x1b``, ``\\u202e``); excessive combining
    marks are cut. If there are more than ``limit`` code points, only the first ones are shown, and their number. Safe
    text stays unchanged.

    Args:
        value: text, or any other value by its ``str``.
        limit: maximum number of code points; None: no limit.
        lines: keep line feeds and tabs, for a text of several lines.
    """
    text = str(value)
    if limit is not None and len(text) > limit:
        text = tr("{text}…({text2:,} characters)", text=text[:limit], text2=len(text))
    if text.isascii() and text.isprintable():
        return text
    hidden = _hidden_characters(_STAYS_IN_LINES if lines else _STAYS)
    text = hidden.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return text if text.isascii() else _excess_marks().sub(r"\1…", text)


def printable_lines(lines: Iterable[object]) -> str:
    """Join lines, each as :func:`printable` returns it, with line ends."""
    return "".join(f"{printable(line, _LONGEST_LINE)}\n" for line in lines)


def one_line(text: str, limit: int | None = LONGEST_SHOWN) -> str:
    """Return a text in one line, safe to show: white space and line ends are collapsed to single blanks.

    ``limit`` is the maximum number of code points; the rest is escaped and cut as by :func:`printable`.
    """
    start = text if limit is None else text[: 4 * limit]
    words = " ".join(start.split())
    return printable(words, limit) + ("…" if len(start) < len(text) and len(words) <= (limit or 0) else "")


def escape_json(document: str) -> str:
    """Escape invisible characters in JSON text with JSON's own escapes, which does not change its meaning.

    Unpaired surrogates, which strict parsers reject, become U+FFFD.
    """
    is_plain = document.isascii() and "\x7f" not in document
    if is_plain:
        return document

    def escape(match: re.Match[str]) -> str:
        """Escape hidden characters as UTF-16 code units."""
        return "".join(f"\\u{unit:04x}" for unit in utf16_units(replace_surrogates(match[0])))

    return _hidden_characters(_STAYS_IN_JSON).sub(escape, document)


@cache
def _hidden_characters(stays: str) -> re.Pattern[str]:
    """Compile a pattern of invisible characters, except those that match the pattern ``stays``.

    The pattern is compiled on first use, because that is slow.
    """
    return re.compile(f"(?!{stays})[{_HIDDEN}]")


@cache
def _excess_marks() -> regex.Pattern[str]:
    """Compile a pattern of too many combining marks on one character; group 1 are the marks to keep."""
    import regex  # noqa: PLC0415 - slow to import, and not needed for ASCII

    return regex.compile(rf"([\p{{Mn}}\p{{Me}}]{{{_MOST_MARKS}}})[\p{{Mn}}\p{{Me}}]+")


# Columns in a terminal


def text_width(text: str) -> int:
    """Return the number of terminal columns of a text of one line."""
    text = text.rstrip("\n")
    if text.isascii():
        return len(text)
    from wcwidth import wcswidth  # noqa: PLC0415 - slow to import, and not needed for ASCII

    width = wcswidth(text)
    return width if width >= 0 else len(text)


def pad_right(text: str, width: int) -> str:
    """Pad a text with blanks on the right to a number of columns."""
    return text + " " * (width - text_width(text))


def pad_left(text: str, width: int) -> str:
    """Pad a text with blanks on the left to a number of columns."""
    return " " * (width - text_width(text)) + text


def format_bytes(size: float) -> str:
    """Format a number of bytes for people, in powers of 1000."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return tr("{size:,.0f} bytes", size=size) if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
