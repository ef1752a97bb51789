"""How much of a server's answer is read: no more than the vectors that were asked for can take.

A server, or whoever answers in its place, may send without an end, or a packed answer that unpacks to a thousand times
its size. The client reads answers whole; here they are cut off on their way to it.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from regraft.language import tr

#: What an error may take: more of it is not read, and not needed.
ERROR_BYTES = 64 << 10
#: What one number of a vector may take as text, with blanks around it.
_NUMBER_BYTES = 64
#: What an answer and each of its vectors may take besides.
_MORE_BYTES = 1 << 10
#: The vectors of a server that has not answered yet may be so long, in numbers.
_UNKNOWN_DIMENSIONS = 8192
_PACKED = ("gzip", "x-gzip", "deflate")


class TooMuch(Exception):
    """An answer is longer than it can be, or packed in a way that was not asked for; the text says which."""


def answer_bytes(texts: int, dimensions: int | None) -> int:
    """Return the most bytes that an answer with the vectors of ``texts`` texts can have.

    Args:
        texts: how many were sent.
        dimensions: of each vector; None: not known yet.
    """
    return ERROR_BYTES + texts * (_MORE_BYTES + _NUMBER_BYTES * (dimensions or _UNKNOWN_DIMENSIONS))


def bound(response: Any, most: int) -> None:
    """Let at most ``most`` bytes of a response be read, unpacked, and of an error its beginning.

    The response is one of httpx, or of the library that took its place, before its body is read.
    """
    is_error = not response.is_success
    packed = response.headers.get("content-encoding", "identity").strip().lower()
    library = sys.modules[type(response).__module__.partition(".")[0]]
    stream = response.stream

    class Bounded(library.SyncByteStream):  # type: ignore[misc, name-defined]
        """The body of the response."""

        def __iter__(self) -> Iterator[bytes]:
            return _beginning(stream, packed, ERROR_BYTES) if is_error else _whole(stream, packed, most)

        def close(self) -> None:
            stream.close()

    response.stream = Bounded()
    # It comes unpacked.
    if "content-encoding" in response.headers:
        del response.headers["content-encoding"]


def _whole(stream: Any, packed: str, most: int) -> Iterator[bytes]:
    size = 0
    for chunk in _unpacked(stream, packed, most):
        size += len(chunk)
        if size > most:
            raise TooMuch(tr("the answer is longer than {most:,} bytes, which its vectors cannot take", most=most))
        yield chunk


def _beginning(stream: Any, packed: str, most: int) -> Iterator[bytes]:
    left = most
    # What cannot be unpacked has its status all the same.
    with suppress(TooMuch):
        for chunk in _unpacked(stream, packed, most):
            yield chunk[:left]
            left -= len(chunk)
            if left <= 0:
                return


def _unpacked(stream: Any, packed: str, most: int) -> Iterator[bytes]:
    """Yield the parts of a body, unpacked, none much longer than ``most``.

    Raises:
        TooMuch: it is packed in another way than gzip and deflate.
    """
    if packed in ("", "identity"):
        yield from stream
        return
    if packed not in _PACKED:
        raise TooMuch(tr("the answer is packed ({packed}), which was not asked for", packed=packed[:20]))
    # Both forms, told by their beginnings.
    unpacking = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        for chunk in stream:
            yield unpacking.decompress(chunk, most + 1)
            if unpacking.unconsumed_tail:
                # There is more of it than may be.
                yield unpacking.decompress(unpacking.unconsumed_tail, 1)
    except zlib.error:
        raise TooMuch(tr("the answer is damaged: it cannot be unpacked")) from None
