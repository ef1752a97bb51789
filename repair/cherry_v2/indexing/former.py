"""The units that a text had, told by the bodies that are left of them: they come back with their vectors.

A body names its unit, and the id of a unit follows from its place in the text (``docs/formats/index.md``,
"Identities"): where a body is found whose place gives the very id that it names, that place is proven.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from regraft import identity
from regraft.text import is_blank, utf16_len
from repair.cherry_v2.indexing.cutting import Span

#: Characters by which bodies are looked up.
_PREFIX = 16


class Former:
    """Bodies whose units are gone: texts by the ids of these units."""

    def __init__(self, bodies: Mapping[str, str]) -> None:
        self._bodies = bodies
        self._length = min((_PREFIX, *(len(body) for body in bodies.values() if body)))
        self._begun: dict[str, set[str]] = defaultdict(set)
        for body in bodies.values():
            if body:
                self._begun[body[: self._length]].add(body)

    def spans(self, material: str, content_hash: str, text: str, separator: str) -> list[Span]:
        """Return where the units of a material were, in UTF-16 units; nothing where not all of them are known.

        Args:
            material: its id.
            content_hash: the hash of its text.
            text: its text.
            separator: what may stand between units besides white space.
        """
        found = []
        rest, end = "", 0
        for place, body, span in self._proven(material, content_hash, text):
            rest += text[end:place]
            end = max(end, place + len(body))
            found.append(span)
        rest += text[end:]
        return found if is_blank(rest.replace(separator, "") if separator else rest) else []

    def _proven(self, material: str, content_hash: str, text: str) -> Iterator[tuple[int, str, Span]]:
        index = start = 0
        for place, char in enumerate(text if self._begun else ""):
            for body in self._begun.get(text[place : place + self._length], ()):
                end = start + utf16_len(body)
                if text.startswith(body, place) and self._is_unit(material, content_hash, index, (start, end), body):
                    yield place, body, (start, end)
                    index += 1
                    break
            start += 1 if char <= "\uffff" else 2

    def _is_unit(self, material: str, content_hash: str, index: int, span: Span, body: str) -> bool:
        return self._bodies.get(identity.unit_id(material, content_hash, index, *span)) == body
