"""The loader ids that v1 gave to a text file, told from the file's bytes.

The ids of text, HTML and JSON files hash what v1 read (``docs/formats/v1.md``, "Loader ids" and "Text"). v1 guessed the
encoding, and its guess is not kept, so that every usual one is tried, guided by the snippet that v1 did keep.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import cache, cached_property
from typing import Any

from regraft.names import NO_TEXT_EXTENSIONS
from regraft.text import JS_WHITESPACE, trim, whole

TEXT, WEB, JSON = "TextLoader_", "WebLoader_", "JsonLoader_"
#: Loaders that are named after a file's text; their rows have a snippet of it for a ``source``.
TEXT_KINDS = (TEXT, WEB, JSON)
#: Where v1 cut a snippet, in UTF-16 units.
FRONT_UNITS = 24
#: Units at the start of a text and of its snippet that are surely the same: the cut may halve the one after them.
_SURE_UNITS = FRONT_UNITS - 1
#: Bytes in which they are, whatever the encoding, after a byte order mark.
_START_BYTES = 4 * _SURE_UNITS + 4
#: Bytes in which the first character surely is.
_FIRST_BYTES = 4

#: What v1's detection can name and its decoder knows, most likely first; ASCII is ASCII in all of them.
ENCODINGS = (
    *("utf-8", "gb18030", "gbk", "big5hkscs", "cp950", "cp932", "euc_jisx0213", "cp949"),
    *("cp1252", "latin-1", "cp1251", "cp1250", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258"),
    *(f"iso8859-{part}" for part in (*range(2, 12), *range(13, 17))),
    *("koi8-r", "koi8-u", "cp866", "cp855", "cp874", "mac_roman", "mac_cyrillic", "mac_latin2", "ascii"),
)
#: Those in which ASCII is not ASCII.
WIDE_ENCODINGS = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
#: Where v1's decoder, like browsers, has the full-width form of a sign for which Python's table has another one.
_FULL_WIDTH = {
    "euc_jisx0213": {0x301C: 0xFF5E, 0x2016: 0x2225, 0x2212: 0xFF0D, 0xA2: 0xFFE0, 0xA3: 0xFFE1, 0xAC: 0xFFE2},
    "big5hkscs": {0x223C: 0xFF5E},
}
_BOM = "\ufeff"
#: What reading a byte as JSON takes, compared with hashing it.
_JSON_WEIGHT = 20
#: What trying one JSON file in many encodings may come to; 1 is hashing a byte.
MAX_JSON_WORK = 512 << 20


class WantedText:
    """Loader ids of text files that are looked for, each with the snippet that v1 kept.

    ``spent`` counts the bytes that were decoded and hashed, JSON several times over, for a bound on the work.
    """

    def __init__(self, snippets: Mapping[str, str]) -> None:
        self.loaders = set(snippets)
        self.spent = 0
        self._snippets = snippets
        #: How many of each kind are left.
        self._left = Counter(_kind(loader) for loader in snippets)

    def __bool__(self) -> bool:
        return bool(self.loaders)

    def can_be(self, suffix: str) -> bool:
        """Tell whether a file with this extension (lower case, with the dot) can be one that is looked for."""
        return bool(
            (self._left[TEXT] and suffix not in NO_TEXT_EXTENSIONS)
            or (self._left[WEB] and suffix in (".html", ".htm"))
            or (self._left[JSON] and suffix == ".json")
        )

    def of_file(self, raw: bytes, suffix: str) -> Iterator[str]:
        """Yield every wanted loader id that v1 can have given to a file of these bytes; each is wanted no more.

        ``suffix`` is its extension in lower case, with the dot.
        """
        for text in self._texts(raw):
            self.spent += len(text)
            digest = _md5(text)
            yield from self._take(f"{TEXT}{digest}", f"{WEB}{digest}")
        if suffix == ".json" and self._left[JSON]:
            end = self.spent + MAX_JSON_WORK
            for plain in _json_texts(raw):
                self.spent += _JSON_WEIGHT * len(plain)
                if self.spent > end:
                    return
                form = json_form(plain)
                if form is not None:
                    yield from self._take(f"{JSON}{_md5(cleaned(form).encode())}")

    def _take(self, *loaders: str) -> Iterator[str]:
        for loader in loaders:
            if loader in self.loaders:
                self.loaders.discard(loader)
                self._left[_kind(loader)] -= 1
                yield loader

    def _texts(self, raw: bytes) -> Iterator[bytes]:
        """Yield what v1 can have read in a file, as UTF-8."""
        if self._left[TEXT] or self._left[WEB]:
            yield raw
            if raw.startswith(codecs.BOM_UTF8):
                yield raw.removeprefix(codecs.BOM_UTF8)
            for encoding in self._likely(raw):
                text = _as_v1(raw.decode(encoding, "replace"), encoding)
                yield text.encode()
                if text.startswith(_BOM):
                    yield text[1:].encode()

    def _likely(self, raw: bytes) -> Iterator[str]:
        """Yield the encodings in which a file begins as one of the snippets does."""
        for encoding in ENCODINGS + WIDE_ENCODINGS:
            # Decoding a few bytes tells nearly always.
            if self._first(_begun(raw, _FIRST_BYTES, encoding)) and self._begins(_begun(raw, _START_BYTES, encoding)):
                self.spent += len(raw)
                yield encoding

    def _first(self, text: str) -> bool:
        return not text or text[0] in self._firsts or text[0] == _BOM

    def _begins(self, text: str) -> bool:
        return _start(text) in self._starts or _start(text.removeprefix(_BOM)) in self._starts

    @cached_property
    def _starts(self) -> set[bytes]:
        return {_start(text) for loader, text in self._snippets.items() if not loader.startswith(JSON)}

    @cached_property
    def _firsts(self) -> set[str]:
        return {start.decode("utf-16-le", "replace")[:1] for start in self._starts}


def _kind(loader: str) -> str:
    return loader.partition("_")[0] + "_"


def _begun(raw: bytes, size: int, encoding: str) -> str:
    """Return what the first bytes of a file read as, without a character that is not whole yet."""
    text = _decoder(encoding)("replace").decode(raw[:size], len(raw) <= size)
    return _as_v1(text, encoding)


@cache
def _decoder(encoding: str) -> Callable[[str], codecs.IncrementalDecoder]:
    return codecs.getincrementaldecoder(encoding)


def _as_v1(text: str, encoding: str) -> str:
    """Return a decoded text as v1's decoder has it."""
    return whole(text.translate(_FULL_WIDTH[encoding]) if encoding in _FULL_WIDTH else text)


def _start(text: str) -> bytes:
    return text[:_SURE_UNITS].encode("utf-16-le")[: 2 * _SURE_UNITS]


def _md5(text: bytes) -> str:
    return hashlib.md5(text, usedforsecurity=False).hexdigest()


# --- JSON ----------------------------------------------------------------------------------------------------------


def _json_texts(raw: bytes) -> Iterator[str]:
    """Yield what a JSON file can have been read as: UTF-8, or, where it is none, any other encoding."""
    try:
        yield raw.decode().removeprefix(_BOM)
    except UnicodeDecodeError:
        for encoding in (*ENCODINGS, *WIDE_ENCODINGS):
            yield raw.decode(encoding, "replace").removeprefix(_BOM)


class _Number(str):
    """A number as JavaScript writes it."""

    __slots__ = ()


def json_form(text: str) -> str | None:
    """Return JSON as JavaScript's ``JSON.stringify`` writes it again, or None for what is no JSON.

    Numbers are doubles in their shortest form, and keys that are array indexes come first.
    """
    try:
        value = json.loads(
            text,
            parse_int=_number,
            parse_float=_number,
            parse_constant=_refuse,
            object_pairs_hook=_ordered,
        )
        return _written(value)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _number(text: str) -> _Number:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        return _Number("null")
    if value == 0:
        return _Number("0")
    if 1e-6 <= abs(value) < 1e21:
        plain = format(Decimal(repr(value)), "f")
        return _Number(plain.removesuffix(".0"))
    digits, _, exponent = repr(value).partition("e")
    return _Number(f"{digits.removesuffix('.0')}e{int(exponent):+d}")


_INDEX = re.compile("0|[1-9][0-9]{0,9}")
_LAST_INDEX = (1 << 32) - 2


def _ordered(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    indexes = sorted((key for key in found if _INDEX.fullmatch(key) and int(key) <= _LAST_INDEX), key=int)
    return {key: found[key] for key in indexes} | found if indexes else found


def _written(value: Any) -> str:
    if isinstance(value, _Number):
        return value
    if isinstance(value, str):
        quoted = json.dumps(value, ensure_ascii=False)
        return re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", quoted)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_written(key)}:{_written(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return {None: "null", True: "true", False: "false"}[value]


_SPACES = re.compile(f"[{JS_WHITESPACE}]{{2,}}")


def cleaned(text: str) -> str:
    """Return a text as v1 cleans it, also before it hashes a JSON file's (``docs/formats/v1.md``, "Text")."""
    text = text.replace("\\", "").replace("#", " ").replace(". .", ".")
    text = re.sub(r"\r\n|\n|\r", " ", _SPACES.sub(" ", text))
    return trim(text)
