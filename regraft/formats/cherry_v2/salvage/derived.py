"""What is lost and follows from what is proven: texts out of their units, and units by their ids.

Nothing is guessed: a text is taken for right where it has the hash, and a unit where it has the id, that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product

import msgspec

from regraft.formats.cherry_v2.salvage.scratch import hash_of
from regraft.text import decode_utf8

#: What may stand between two units of a text, by its length in UTF-16 units, and behind the last one.
_BETWEEN = {0: ("",), 1: ("\n", " "), 2: ("\n\n", "\r\n", "  ", "\n "), 3: ("\n\n\n",), 4: ("\r\n\r\n", "\n\n\n\n")}
_BEHIND = ("", "\n", "\r\n", " ", "\n\n")
#: Of one body so many places in a text are tried.
_MOST_PLACES = 64

#: Where a unit begins and ends, in UTF-16 units.
Span = tuple[int, int]


def joined_text(key: bytes, pieces: Iterable[tuple[int, int, bytes]]) -> bytes | None:
    """Return a text that is lost, joined from the bodies of its units, where that has its hash; else None.

    Args:
        key: the text's hash.
        pieces: where units begin and end, in UTF-16 units, each with its body; in the order in which they begin.
    """
    parts: list[str] = []
    gaps: list[int] = []
    end = 0
    for start, stop, body in pieces:
        wide = decode_utf8(body).encode("utf-16-le")
        if len(wide) != 2 * (stop - start) or (start > end and start - end not in _BETWEEN):
            return None
        gaps.append(max(0, start - end))
        # Units may overlap: what is there already is not put in twice.
        parts.append(wide[2 * max(0, end - start) :].decode("utf-16-le", "replace"))
        end = max(end, stop)
    lengths = sorted(set(gaps))
    for chosen in product(*(_BETWEEN[length] for length in lengths), _BEHIND):
        between = dict(zip(lengths, chosen, strict=False))
        whole = "".join(between[gap] + part for gap, part in zip(gaps, parts, strict=True)) + chosen[-1]
        raw = whole.encode("utf-8", "replace")
        if hash_of(raw).encode() == key:
            return raw
    return None


@dataclass
class WholeText:
    """A text with its places in UTF-16 units; ``is_exact`` where it holds no half of a surrogate pair."""

    raw: bytes
    is_exact: bool = field(init=False)
    _text: str = field(init=False)
    _wide: bytes | None = field(init=False)

    def __post_init__(self) -> None:
        self._text = decode_utf8(self.raw)
        self.is_exact = self._text.encode() == self.raw
        self._wide = None if self._text.isascii() else self._text.encode("utf-16-le")

    def slice(self, start: int, stop: int) -> str | None:
        """Return what lies between two places; None where there is no such slice."""
        if self._wide is None:
            return self._text[start:stop] if 0 <= start <= stop <= len(self._text) else None
        if not 0 <= start <= stop <= len(self._wide) // 2:
            return None
        try:
            return self._wide[2 * start : 2 * stop].decode("utf-16-le")
        except UnicodeDecodeError:
            return None

    def places_of(self, body: str) -> Iterator[Span]:
        """Yield where a body stands in the text, the first ones."""
        part = body.encode("utf-16-le") if self._wide is not None else b""
        at, step = -1, 1
        for _ in range(_MOST_PLACES):
            if self._wide is None:
                at = self._text.find(body, at + 1)
                length = len(body)
            else:
                at = self._wide.find(part, at + step)
                while at > 0 and at % 2:
                    at = self._wide.find(part, at + 1)
                length, step = len(part) // 2, 2
            if at < 0:
                return
            start = at if self._wide is None else at // 2
            yield start, start + length

    def __len__(self) -> int:
        """Return its length in UTF-16 units."""
        return len(self._text) if self._wide is None else len(self._wide) // 2


class LostUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of which only the id is known, and perhaps its number among those of its material, and its body."""

    key: bytes
    place: int | None
    body: str | None


def span_of(
    lost: LostUnit, text: WholeText, known: dict[int, Span], is_it: Callable[[int, int, int], bool]
) -> tuple[int, Span] | None:
    """Return the number and the place of a unit that is lost, where its id proves them.

    Args:
        lost: what is known of it.
        text: that it is a slice of.
        known: where the other units of its material are, by their numbers.
        is_it: tells whether a unit with a number, a beginning and an end has the id.
    """
    places = [lost.place] if lost.place is not None else list(_free_places(known))
    if lost.body is not None:
        tried = ((place, span) for span in text.places_of(lost.body) for place in places)
    else:
        tried = ((place, span) for place in places for span in _between(text, known, place))
    return next(((place, span) for place, span in tried if is_it(place, *span)), None)


def _free_places(known: dict[int, Span]) -> Iterator[int]:
    """Yield numbers that units may have that are lost: the holes, and some behind the last one."""
    last = max(known, default=-1)
    yield from (number for number in range(last + 1 + _MOST_PLACES) if number not in known)


def _between(text: WholeText, known: dict[int, Span], place: int) -> Iterator[Span]:
    """Yield where a unit can be of whose body nothing is left, while its neighbours are there: between them."""
    starts = [0] if place == 0 else [known[place - 1][1] + gap for gap in _BETWEEN] if place - 1 in known else []
    if place + 1 in known:
        stops = [known[place + 1][0] - gap for gap in _BETWEEN]
    else:
        stops = [len(text) - length for length in range(3)] if place > max(known, default=-1) else []
    yield from ((start, stop) for start in starts for stop in stops if 0 <= start <= stop)
