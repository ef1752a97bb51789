"""Codecs for keys and values by type (``docs/formats/redb.md``, "Types")."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from regraft.language import tr

#: Classification byte before a type name: built-in or user-defined, and for tuples their encoding.
BUILT_IN, USER_DEFINED, TUPLE, COMPOSITE = 1, 2, 3, 4
#: Lengths below this are one byte; this byte is followed by a 2-byte length, the next one by a 4-byte length.
_SHORT = 254
_SURROGATES = range(0xD800, 0xE000)


class Codec(msgspec.Struct, frozen=True, kw_only=True):
    """Decoder and sort key for the stored values of a type. Both raise ValueError for invalid bytes."""

    #: Fixed width in bytes, or None.
    width: int | None
    decode: Callable[[bytes], object]
    #: Returns the sort key of a value; None if the order of the type is unknown.
    rank: Callable[[bytes], Any] | None


def _same(data: bytes) -> bytes:
    """Return stored bytes as they are: their own value, or sort key."""
    return data


#: For unknown types.
RAW = Codec(width=None, decode=_same, rank=None)
_BYTES = Codec(width=None, decode=_same, rank=_same)


def _decode_text(data: bytes) -> str:
    """Decode UTF-8."""
    return data.decode("utf-8")


def _integer_codec(width: int, signed: bool) -> Codec:
    """Return the codec of an integer of ``width`` bytes."""

    def decode(data: bytes) -> int:
        """Decode a little-endian integer."""
        return int.from_bytes(data, "little", signed=signed)

    return Codec(width=width, decode=decode, rank=decode)


def _float_codec(form: str) -> Codec:
    """Return the codec of a float with this struct format; a float cannot be a key."""
    number = struct.Struct(form)
    return Codec(width=number.size, decode=lambda data: number.unpack(data)[0], rank=None)


def _decode_bool(data: bytes) -> bool:
    """Decode a boolean; raises ValueError for a byte other than 0 and 1."""
    if data[0] > 1:
        raise ValueError(tr("a boolean is neither 0 nor 1"))
    return data[0] == 1


def _decode_character(data: bytes) -> str:
    """Decode a character; raises ValueError for an invalid code point."""
    point = int.from_bytes(data, "little")
    if point in _SURROGATES:
        raise ValueError(tr("invalid character code"))
    return chr(point)


def _decode_unit(_: bytes) -> tuple[()]:
    """Decode the unit type ``()``, which takes no bytes."""
    return ()


_PLAIN = {
    "()": Codec(width=0, decode=_decode_unit, rank=_decode_unit),
    "bool": Codec(width=1, decode=_decode_bool, rank=_decode_bool),
    "char": Codec(width=3, decode=_decode_character, rank=_decode_character),
    "&str": Codec(width=None, decode=_decode_text, rank=_same),
    "String": Codec(width=None, decode=_decode_text, rank=_same),
    "&[u8]": _BYTES,
    "f32": _float_codec("<f"),
    "f64": _float_codec("<d"),
    **{f"u{8 * width}": _integer_codec(width, signed=False) for width in (1, 2, 4, 8, 16)},
    **{f"i{8 * width}": _integer_codec(width, signed=True) for width in (1, 2, 4, 8, 16)},
}


def plain_codec(name: str) -> Codec | None:
    """Return the codec of a type without type parameters, or None if the name is unknown."""
    return _PLAIN.get(name)


# --- types made of others ------------------------------------------------------------------------------------------

Split = Callable[[bytes], Sequence[bytes]]


def _composed_codec(inner: Sequence[Codec], width: int | None, split: Split, build: Callable[[Any], object]) -> Codec:
    """Return the codec of values that consist of pieces of different types.

    Args:
        inner: codec of each piece.
        width: fixed width of a value in bytes, or None.
        split: divides the bytes of a value into its pieces.
        build: makes the value from the list of decoded pieces.
    """
    decoders = [codec.decode for codec in inner]
    ranks = [codec.rank for codec in inner if codec.rank is not None]

    def decode(data: bytes) -> object:
        """Decode each piece and build the value."""
        return build([read(piece) for read, piece in zip(decoders, split(data), strict=True)])

    def rank(data: bytes) -> object:
        """Return the sort keys of the pieces."""
        return tuple(read(piece) for read, piece in zip(ranks, split(data), strict=True))

    return Codec(width=width, decode=decode, rank=rank if len(ranks) == len(decoders) else None)


def option_codec(inner: Codec) -> Codec:
    """Return the codec of ``Option<T>``, given that of T; None sorts first."""
    wanted = inner.rank

    def some(data: bytes) -> bytes | None:
        """Return the bytes of the value in an option, or None."""
        if not data or data[0] > 1:
            raise ValueError(tr("an option has an invalid tag"))
        return data[1:] if data[0] else None

    def decode(data: bytes) -> object:
        """Decode an option."""
        value = some(data)
        return None if value is None else inner.decode(value)

    def rank(data: bytes) -> object:
        """Return the sort key of an option."""
        value = some(data)
        return () if value is None or wanted is None else (wanted(value),)

    return Codec(
        width=None if inner.width is None else inner.width + 1, decode=decode, rank=None if wanted is None else rank
    )


def array_codec(inner: Codec, count: int) -> Codec | None:
    """Return the codec of ``[T; N]``, given that of T and N: bytes for ``[u8; N]``, otherwise a list.

    None if T takes no bytes.
    """
    if inner.width == 0:
        return None
    if inner is _PLAIN["u8"]:
        return Codec(width=count, decode=_same, rank=_same)
    fixed = inner.width

    def split(data: bytes) -> Sequence[bytes]:
        """Split the bytes of a ``[T; N]`` into its elements; raises ValueError if they do not fit."""
        if fixed is not None:
            return _split_evenly(data, fixed, count)
        if len(data) < 4 * count:
            raise ValueError(tr("a sequence is truncated"))
        ends = struct.unpack_from(f"<{count}I", data)
        starts = (4 * count, *ends)[:count]
        return [_checked_slice(data, start, end) for start, end in zip(starts, ends, strict=True)]

    return _repeated_codec(inner, None if fixed is None else fixed * count, split)


def vector_codec(inner: Codec) -> Codec | None:
    """Return the codec of ``Vec<T>``, given that of T: bytes for ``Vec<u8>``, otherwise a list.

    None if T takes no bytes.
    """
    if inner.width == 0:
        return None
    fixed = inner.width

    def split(data: bytes) -> Sequence[bytes]:
        """Split the bytes of a ``Vec<T>`` into its elements; raises ValueError if they do not fit."""
        count, at = _read_length(data, 0)
        if fixed is not None:
            return _split_evenly(data[at:], fixed, count)
        pieces = []
        for _ in range(count):
            length, at = _read_length(data, at)
            pieces.append(_checked_slice(data, at, at + length))
            at += length
        if at != len(data):
            raise ValueError(tr("extra bytes follow the end of a sequence"))
        return pieces

    if inner is _PLAIN["u8"]:
        return Codec(width=None, decode=lambda data: b"".join(split(data)), rank=None)
    return Codec(width=None, decode=_repeated_codec(inner, None, split).decode, rank=None)


def _repeated_codec(inner: Codec, width: int | None, split: Split) -> Codec:
    """Return the codec of a list whose elements all have the codec ``inner``.

    Args:
        inner: codec of an element.
        width: fixed width of a list in bytes, or None.
        split: divides the bytes of a list into its elements.
    """
    decode, wanted = inner.decode, inner.rank

    def rank(data: bytes) -> object:
        """Return the sort keys of the elements."""
        return [wanted(piece) for piece in split(data)] if wanted is not None else None

    return Codec(
        width=width,
        decode=lambda data: [decode(piece) for piece in split(data)],
        rank=rank if wanted is not None else None,
    )


def tuple_codec(inner: Sequence[Codec], *, has_wide_lengths: bool) -> Codec:
    """Return the codec of a tuple.

    Args:
        inner: the codecs of its elements.
        has_wide_lengths: redb up to 2 writes the length of every element but the last as 4 bytes. Later versions write
            shorter lengths, and only for elements of variable width.
    """
    if len(inner) == 1:
        return _composed_codec(inner, inner[0].width, lambda data: (data,), tuple)
    widths = [codec.width for codec in inner]
    fixed = [width for width in widths if width is not None]
    if len(fixed) == len(widths):
        return _composed_codec(inner, sum(fixed), lambda data: _cut_pieces(data, 0, fixed[:-1]), tuple)

    def split_wide(data: bytes) -> Sequence[bytes]:
        """Split the bytes of a tuple that begin with the end of each element but the last."""
        count = len(widths) - 1
        if len(data) < 4 * count:
            raise ValueError(tr("a tuple is truncated"))
        return _cut_pieces(data, 4 * count, struct.unpack_from(f"<{count}I", data))

    def split_short(data: bytes) -> Sequence[bytes]:
        """Split the bytes of a tuple that begin with the length of each element of variable width but the last."""
        at = 0
        lengths = []
        for width in widths[:-1]:
            length = width
            if length is None:
                length, at = _read_length(data, at)
            lengths.append(length)
        return _cut_pieces(data, at, lengths)

    split = split_wide if has_wide_lengths else split_short

    def split_checked(data: bytes) -> Sequence[bytes]:
        """Split a tuple, and check the elements of fixed width."""
        pieces = split(data)
        if any(width not in (None, len(piece)) for width, piece in zip(widths, pieces, strict=True)):
            raise ValueError(tr("an element has another width than its type"))
        return pieces

    return _composed_codec(inner, None, split_checked, tuple)


def _cut_pieces(data: bytes, at: int, lengths: Sequence[int]) -> Sequence[bytes]:
    """Cut bytes, from an offset on, into pieces of the given lengths and a last piece that is the rest."""
    pieces = []
    for length in lengths:
        pieces.append(_checked_slice(data, at, at + length))
        at += length
    pieces.append(data[at:])
    return pieces


def _split_evenly(data: bytes, width: int, count: int) -> Sequence[bytes]:
    """Split bytes into ``count`` elements of ``width`` bytes."""
    if len(data) != width * count:
        raise ValueError(tr("a sequence has an unexpected length"))
    return [data[at : at + width] for at in range(0, len(data), width)]


def _checked_slice(data: bytes, start: int, end: int) -> bytes:
    """Return the bytes between two offsets; raises ValueError if they are not in order or beyond the end."""
    if not start <= end <= len(data):
        raise ValueError(tr("an element exceeds its container"))
    return data[start:end]


def _read_length(data: bytes, at: int) -> tuple[int, int]:
    """Read the length at an offset, which takes 1, 3 or 5 bytes; return it and the offset after it."""
    first = _checked_slice(data, at, at + 1)[0]
    if first < _SHORT:
        return first, at + 1
    width = 2 if first == _SHORT else 4
    return int.from_bytes(_checked_slice(data, at + 1, at + 1 + width), "little"), at + 1 + width
