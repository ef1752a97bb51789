"""The body of an answer with vectors, of any server that speaks as OpenAI's does."""

from __future__ import annotations

import binascii
from array import array
from typing import Any

import msgspec

from regraft.embedders.checking import check, check_each, unfit
from regraft.formats import json_text
from regraft.language import tr


class BrokenAnswer(Exception):
    """What came is not an answer, or only a part of one."""


class _Item(msgspec.Struct):
    embedding: bytes | list[float]
    index: int | None = None


class _Answer(msgspec.Struct):
    data: list[_Item]
    usage: Any = None


class _LooseItem(msgspec.Struct):
    embedding: Any = None
    index: Any = None


class _LooseAnswer(msgspec.Struct):
    data: list[_LooseItem]
    usage: Any = None


#: A count of more is none: nothing could add it up.
_MOST_TOKENS = 2**53 - 1
_DECODER = msgspec.json.Decoder(_Answer)


def vectors_of(body: bytes, count: int, dimensions: int | None, *, embedder: str) -> tuple[list[bytes], int | None]:
    """Return the vectors of an answer, checked, and the tokens that the server counted.

    Args:
        body: JSON, with vectors as base64 of little-endian float32 or as lists of numbers.
        count: how many texts were sent.
        dimensions: of each vector; None: all have the same.
        embedder: its name, for errors.

    Raises:
        BrokenAnswer
        AnswerUnfit
    """
    answer: _Answer | _LooseAnswer
    try:
        answer = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        answer = _loose(body)
    if len(answer.data) != count:
        check([b""] * len(answer.data), count, dimensions, embedder=embedder)
    _demand_order([item.index for item in answer.data], embedder)
    vectors = [_vector(item.embedding) for item in answer.data]
    check_each("not_numbers", [place for place, vector in enumerate(vectors) if vector is None], embedder)
    found = [vector for vector in vectors if vector is not None]
    check(found, count, dimensions, embedder=embedder)
    return found, _tokens(answer.usage)


def _loose(body: bytes) -> _LooseAnswer:
    """Return an answer that is not as it should be: with NaN, infinities and things of any type."""
    try:
        found = json_text.loads(body)
    except (ValueError, RecursionError):
        raise BrokenAnswer(tr("the answer is cut off, or not JSON")) from None
    try:
        return msgspec.convert(found, _LooseAnswer)
    except (msgspec.ValidationError, UnicodeEncodeError):
        # The latter of names with half a surrogate pair.
        raise BrokenAnswer(
            tr("the answer has no vectors: {decode}", decode=body[:1000].decode("utf-8", "replace"))
        ) from None


def _vector(found: Any) -> bytes | None:
    """Return a vector as raw float32; None where it is none."""
    if isinstance(found, bytes):
        return found
    try:
        if isinstance(found, str):
            return binascii.a2b_base64(found, strict_mode=True)
        return array("f", found).tobytes() if isinstance(found, list) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _tokens(usage: Any) -> int | None:
    """Return the tokens that an answer says it took."""
    counts = [usage.get(name) for name in ("total_tokens", "prompt_tokens")] if isinstance(usage, dict) else []
    return next((count for count in counts if type(count) is int and 0 <= count <= _MOST_TOKENS), None)


def _demand_order(order: list[Any], embedder: str) -> None:
    for place, index in enumerate(order):
        if index != place:
            marked = tr("is marked {index}", index=index) if type(index) is int else tr("has no number")
            raise unfit(
                "wrong_order",
                tr("vector {place}, counted from 0, {marked}", place=place, marked=marked),
                embedder=embedder,
            )
