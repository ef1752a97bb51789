"""Decodes serialized JavaScript values: Blink's envelope around V8's tagged values.

Format: ``docs/formats/chromium.md``, "Script values". Data types are decoded; browser objects (files, images, keys) are
not.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, ClassVar

from regraft.formats.chromium.leveldb import ByteReader, MalformedStorage
from regraft.language import tr

VERSION_TAG = 0xFF
_TRAILER_TAG = 0xFE
#: Tag, 8-byte offset and 4-byte size.
_TRAILER_BYTES = 13
#: From this version on, Blink's version precedes V8's.
_FIRST_BLINK_VERSION = 16
#: From this version on, nested strings have a tag.
_TAGGED_STRINGS = 12
#: From this version on, buffer views have flags.
_VIEW_FLAGS = 14
MAX_DEPTH = 100
#: Bytes that array holes and buffer views may add to the size of the value itself.
_ROOM_BYTES = 4096

_PADDING, _HOLE, _VIEW, _COUNT = 0, ord("-"), ord("V"), ord("?")


def decode_script_value(data: bytes) -> Any:
    """Decode a serialized value to Python: dict, list, str, int, float, bool, bytes and None.

    Undefined, holes, errors and references to browser objects become None, a Date a float (milliseconds since 1970), a
    Map a list of ``[key, value]``, a Set a list, a regular expression its source, and object keys str. Repeated
    references give the same Python object; a reference to an enclosing object is None. Texts may contain lone
    surrogates.

    Raises:
        MalformedStorage: the value is invalid, truncated, nested too deeply, or contains a browser object.
    """
    source = ByteReader(data)
    version = _version(source)
    if version >= _FIRST_BLINK_VERSION:
        if source.left > _TRAILER_BYTES and data[source.at] == _TRAILER_TAG:
            source.skip(_TRAILER_BYTES)
        version = _version(source)
    try:
        return _Decoder(source, version).value()
    except RecursionError as error:
        raise MalformedStorage(tr("nested too deeply")) from error


def _version(source: ByteReader) -> int:
    if source.byte() != VERSION_TAG:
        raise MalformedStorage(tr("is not a serialized value"))
    return source.number()


def _number_name(number: float) -> str:
    """Format a number as JavaScript does for property names (exact for integers only)."""
    return str(int(number)) if number == number // 1 and abs(number) < 1e21 else repr(number)


class _Decoder:
    """Decodes one value and the objects that it refers to."""

    def __init__(self, source: ByteReader, version: int) -> None:
        self._source = source
        self._version = version
        #: Objects in the order in which they begin; None while incomplete, which ends cycles.
        self._objects: list[Any] = []
        self._depth = 0
        self._room = len(source.data) + _ROOM_BYTES

    def value(self) -> Any:
        """Decode the next value."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise MalformedStorage(tr("nested too deeply"))
        tag = self._tag()
        if tag == _COUNT:
            self._source.number()
            tag = self._tag()
        read = self._READERS.get(tag)
        if read is None:
            raise MalformedStorage(tr("contains something that is not data (tag {tag})", tag=tag))
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
        """Return the next tag without consuming it."""
        tag = self._tag()
        self._source.at -= 1
        return tag

    def _spend(self, size: int) -> None:
        """Limit the size of output that is not backed by input bytes."""
        self._room -= size
        if self._room < 0:
            raise MalformedStorage(tr("states a much larger size than it has"))

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
            raise MalformedStorage(tr("contains a text that is not UTF-8")) from error

    def _two_byte(self) -> str:
        coded = self._source.sized()
        if len(coded) % 2:
            raise MalformedStorage(tr("contains a text that ends with half a character"))
        return coded.decode("utf-16-le", "surrogatepass")

    def _nested_text(self) -> str:
        """Decode a nested text."""
        if self._version < _TAGGED_STRINGS:
            return self._utf8()
        text = self.value()
        if not isinstance(text, str):
            raise MalformedStorage(tr("has no text where one is expected"))
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
            raise MalformedStorage(tr("refers to an object that does not exist"))
        return self._objects[number]

    def _properties(self, end: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self._peek() != ord(end):
            name = self.value()
            if isinstance(name, int | float) and not isinstance(name, bool):
                name = _number_name(name)
            if not isinstance(name, str):
                raise MalformedStorage(tr("has a property whose name is not text"))
            found[name] = self.value()
        self._tag()
        self._source.number()
        return found

    def _dense_array(self) -> list[Any]:
        length = self._source.number()
        if length > self._source.left:
            raise MalformedStorage(tr("states a much larger size than it has"))
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

    def _until(self, end: str) -> list[Any]:
        found: list[Any] = []
        while self._peek() != ord(end):
            found.append(self.value())
        self._tag()
        self._source.number()
        return found

    def _regexp(self) -> str:
        source = self._nested_text()
        self._source.number()
        return source

    def _skip_error(self) -> None:
        """Skip an error object: tagged properties up to an end tag."""
        while (tag := self._source.byte()) != ord("."):
            if tag in b"ms":
                self._nested_text()
            elif tag == ord("c"):
                self.value()
            elif tag not in b"ERFSTU":
                raise MalformedStorage(tr("contains an error object of unknown structure"))

    # --- buffers ---------------------------------------------------------------------------------------------------

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
            raise MalformedStorage(tr("refers to bytes past the end of a buffer"))
        self._spend(length)
        view = buffer[offset : offset + length]
        self._objects.append(view)
        return view

    def _skip_external(self) -> None:
        """Skip the number of an external object."""
        self._source.number()

    def _skip_host_object(self) -> None:
        """Skip a file or blob; other browser objects have no length and cannot be skipped."""
        tag = self._source.byte()
        count = self._source.number() if tag == ord("L") else 1
        if tag not in b"ieL" or count > self._source.left:
            raise MalformedStorage(tr("contains a browser object"))
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
        ord('"'): lambda self: self._source.sized().decode("latin-1"),
        ord("c"): _two_byte,
        ord("^"): _reference,
        ord("o"): lambda self: self._object(lambda _: self._properties("{")),
        ord("A"): lambda self: self._object(_Decoder._dense_array),
        ord("a"): lambda self: self._object(_Decoder._sparse_array),
        ord("D"): lambda self: self._object(_Decoder._double),
        ord("y"): lambda self: self._object(lambda _: True),
        ord("x"): lambda self: self._object(lambda _: False),
        ord("n"): lambda self: self._object(_Decoder._double),
        ord("z"): lambda self: self._object(_Decoder._bigint),
        ord("s"): lambda self: self._object(_Decoder._nested_text),
        ord("R"): lambda self: self._object(_Decoder._regexp),
        ord(";"): lambda self: self._object(_Decoder._map),
        ord("'"): lambda self: self._object(lambda _: self._until(",")),
        ord("B"): lambda self: self._object(lambda _: self._source.sized()),
        ord("~"): lambda self: self._object(_Decoder._resizable_buffer),
        ord("u"): lambda self: self._object(_Decoder._skip_external),
        ord("t"): lambda self: self._object(_Decoder._skip_external),
        ord("r"): lambda self: self._object(_Decoder._skip_error),
        ord("\\"): lambda self: self._object(_Decoder._skip_host_object),
    }
