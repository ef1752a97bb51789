"""Values of JavaScript as Chromium serializes them: Blink's envelope around V8's tagged values.

The rules are in ``docs/formats/chromium.md``, "Script values". What data needs is decoded; functions of the browser
(files, images, keys) are not.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, ClassVar

from regraft.formats.chromium.leveldb import Bytes, Malformed
from regraft.language import tr

VERSION_TAG = 0xFF
_TRAILER_TAG = 0xFE
#: The tag, an offset of 8 bytes and a size of 4.
_TRAILER_BYTES = 13
#: From here on Blink's version stands before V8's.
_FIRST_BLINK_VERSION = 16
#: Strings inside of other values have a tag from here on.
_TAGGED_STRINGS = 12
#: Views of buffers have flags from here on.
_VIEW_FLAGS = 14
MAX_DEPTH = 100
#: What may be made of holes and of views, beyond the size of the value itself.
_ROOM_BYTES = 4096

_PADDING, _HOLE, _VIEW, _COUNT = 0, ord("-"), ord("V"), ord("?")


def decode_script_value(data: bytes) -> Any:
    """Return a serialized value as plain Python: dict, list, str, int, float, bool, bytes and None.

    Undefined, holes, errors and references to browser objects are None; a Date is its ms since 1970 (float); a Map is
    a list of ``[key, value]``, a Set a list; a regular expression is its source. Keys of objects are str. An object
    that is referred to twice is the same Python object twice, and a reference to an object that holds it is None. Text
    may hold lone surrogates.

    Raises:
        Malformed: it is no such value, cut off, nested too deeply, or holds what is not data.
    """
    source = Bytes(data)
    version = _version(source)
    if version >= _FIRST_BLINK_VERSION:
        if source.left > _TRAILER_BYTES and data[source.at] == _TRAILER_TAG:
            source.skip(_TRAILER_BYTES)
        version = _version(source)
    try:
        return _Decoder(source, version).value()
    except RecursionError as error:
        raise Malformed(tr("nested too deeply")) from error


def _version(source: Bytes) -> int:
    if source.byte() != VERSION_TAG:
        raise Malformed(tr("is not a serialized value"))
    return source.number()


def _number_name(number: float) -> str:
    """Return a number as JavaScript writes it as the name of a property, for the numbers that are whole."""
    return str(int(number)) if number == number // 1 and abs(number) < 1e21 else repr(number)


class _Decoder:
    """One value and what it refers to."""

    def __init__(self, source: Bytes, version: int) -> None:
        self._source = source
        self._version = version
        #: Every object in the order in which it began; None while it is not finished, so that a cycle ends there.
        self._objects: list[Any] = []
        self._depth = 0
        self._room = len(source.data) + _ROOM_BYTES

    def value(self) -> Any:
        """Read the next value with what follows it."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Malformed(tr("nested too deeply"))
        tag = self._tag()
        if tag == _COUNT:
            self._source.number()
            tag = self._tag()
        read = self._READERS.get(tag)
        if read is None:
            raise Malformed(tr("holds something that is not data (tag {tag})", tag=tag))
        value = read(self)
        if self._source.left and self._source.data[self._source.at] == _VIEW and isinstance(value, bytes):
            value = self._view(value)
        self._depth -= 1
        return value

    def _tag(self) -> int:
        while (tag := self._source.byte()) == _PADDING:
            pass
        return tag

    def _peek(self) -> int:
        """Return the next tag and leave it there."""
        tag = self._tag()
        self._source.at -= 1
        return tag

    def _spend(self, size: int) -> None:
        """Count what is made without having been read: a few bytes must not become gigabytes."""
        self._room -= size
        if self._room < 0:
            raise Malformed(tr("announces far more than it holds"))

    # --- plain values ----------------------------------------------------------------------------------------------

    def _int32(self) -> int:
        coded = self._source.number()
        return (coded >> 1) ^ -(coded & 1)

    def _double(self) -> float:
        return float(struct.unpack("<d", self._source.take(8))[0])

    def _bigint(self) -> int:
        field = self._source.number()
        value = int.from_bytes(self._source.take(field >> 1), "little")
        return -value if field & 1 else value

    def _utf8(self) -> str:
        try:
            return self._source.sized().decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise Malformed(tr("holds a text that is not UTF-8")) from error

    def _one_byte(self) -> str:
        return self._source.sized().decode("latin-1")

    def _two_byte(self) -> str:
        coded = self._source.sized()
        if len(coded) % 2:
            raise Malformed(tr("holds a text with half a character at its end"))
        return coded.decode("utf-16-le", "surrogatepass")

    def _inner_text(self) -> str:
        """Read a text inside another value."""
        if self._version < _TAGGED_STRINGS:
            return self._utf8()
        text = self.value()
        if not isinstance(text, str):
            raise Malformed(tr("has no text where one belongs"))
        return text

    # --- objects ---------------------------------------------------------------------------------------------------

    def _object(self, read: Callable[[_Decoder], Any]) -> Any:
        number = len(self._objects)
        self._objects.append(None)
        value = read(self)
        self._objects[number] = value
        return value

    def _reference(self) -> Any:
        number = self._source.number()
        if number >= len(self._objects):
            raise Malformed(tr("refers to an object that is not there"))
        return self._objects[number]

    def _properties(self, end: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self._peek() != ord(end):
            name = self.value()
            if isinstance(name, int | float) and not isinstance(name, bool):
                name = _number_name(name)
            if not isinstance(name, str):
                raise Malformed(tr("has a property whose name is not text"))
            found[name] = self.value()
        self._tag()
        self._source.number()
        return found

    def _plain_object(self) -> dict[str, Any]:
        return self._properties("{")

    def _dense_array(self) -> list[Any]:
        length = self._source.number()
        if length > self._source.left:
            raise Malformed(tr("announces far more than it holds"))
        found: list[Any] = []
        for _ in range(length):
            if self._peek() == _HOLE:
                self._tag()
                found.append(None)
            else:
                found.append(self.value())
        self._properties("$")
        self._source.number()
        return found

    def _sparse_array(self) -> list[Any]:
        length = self._source.number()
        self._spend(length)
        found: list[Any] = [None] * length
        for name, value in self._properties("@").items():
            if name.isascii() and name.isdigit() and len(name) < 10 and int(name) < length:
                found[int(name)] = value
        self._source.number()
        return found

    def _map(self) -> list[Any]:
        flat = self._until(":")
        return [list(pair) for pair in zip(flat[::2], flat[1::2], strict=False)]

    def _set(self) -> list[Any]:
        return self._until(",")

    def _until(self, end: str) -> list[Any]:
        found: list[Any] = []
        while self._peek() != ord(end):
            found.append(self.value())
        self._tag()
        self._source.number()
        return found

    def _regexp(self) -> str:
        source = self._inner_text()
        self._source.number()
        return source

    def _error(self) -> None:
        """Pass over an error: one tag for each thing it has, texts and its cause behind theirs."""
        while (tag := self._source.byte()) != ord("."):
            if tag in b"ms":
                self._inner_text()
            elif tag == ord("c"):
                self.value()
            elif tag not in b"ERFSTU":
                raise Malformed(tr("holds an error of an unknown shape"))

    # --- buffers ---------------------------------------------------------------------------------------------------

    def _buffer(self) -> bytes:
        return self._source.sized()

    def _resizable_buffer(self) -> bytes:
        size = self._source.number()
        self._source.number()
        return self._source.take(size)

    def _view(self, buffer: bytes) -> bytes:
        self._tag()
        self._source.byte()
        offset, length = self._source.number(), self._source.number()
        if self._version >= _VIEW_FLAGS:
            self._source.number()
        if offset + length > len(buffer):
            raise Malformed(tr("looks past the end of a buffer"))
        self._spend(length)
        view = buffer[offset : offset + length]
        self._objects.append(view)
        return view

    def _elsewhere(self) -> None:
        """Pass over a number that stands for something outside of the value."""
        self._source.number()

    def _host_object(self) -> None:
        """Pass over a file or a blob; what else the browser may have put here has no length of its own."""
        tag = self._source.byte()
        count = self._source.number() if tag == ord("L") else 1
        if tag not in b"ieL" or count > self._source.left:
            raise Malformed(tr("holds an object of the browser"))
        for _ in range(count):
            self._source.number()

    _READERS: ClassVar[dict[int, Callable[[_Decoder], Any]]] = {
        ord("_"): lambda _: None,
        ord("0"): lambda _: None,
        ord("T"): lambda _: True,
        ord("F"): lambda _: False,
        _HOLE: lambda _: None,
        ord("I"): _int32,
        ord("U"): lambda self: self._source.number(),
        ord("N"): _double,
        ord("Z"): _bigint,
        ord("S"): _utf8,
        ord('"'): _one_byte,
        ord("c"): _two_byte,
        ord("^"): _reference,
        ord("o"): lambda self: self._object(_Decoder._plain_object),
        ord("A"): lambda self: self._object(_Decoder._dense_array),
        ord("a"): lambda self: self._object(_Decoder._sparse_array),
        ord("D"): lambda self: self._object(_Decoder._double),
        ord("y"): lambda self: self._object(lambda _: True),
        ord("x"): lambda self: self._object(lambda _: False),
        ord("n"): lambda self: self._object(_Decoder._double),
        ord("z"): lambda self: self._object(_Decoder._bigint),
        ord("s"): lambda self: self._object(_Decoder._inner_text),
        ord("R"): lambda self: self._object(_Decoder._regexp),
        ord(";"): lambda self: self._object(_Decoder._map),
        ord("'"): lambda self: self._object(_Decoder._set),
        ord("B"): lambda self: self._object(_Decoder._buffer),
        ord("~"): lambda self: self._object(_Decoder._resizable_buffer),
        ord("u"): lambda self: self._object(_Decoder._elsewhere),
        ord("t"): lambda self: self._object(_Decoder._elsewhere),
        ord("r"): lambda self: self._object(_Decoder._error),
        ord("\\"): lambda self: self._object(_Decoder._host_object),
    }
