"""Materials to store: a content, how it is cut into units, and a vector for every body."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from regraft import identity
from regraft.testing.texts import texts, vectors

_PATHS = (
    "a.md",
    "b.md",
    "c.pdf",
    "notes/n.md",
    "notes/deep/x.txt",
    "名字.md",
    "é.md",
    "🎉.md",
    "_.cherry",
    "a b.md",
)
_IDS = tuple(f"item-{number}" for number in range(8))
_SEPARATORS = ("", "\n\n", " ", "🎉")
#: Bodies that several materials have.
_SHARED = ("one", "two", "three words here", "🎉", "")


@dataclass(frozen=True)
class MaterialInput:
    """One material as a store takes it. ``units`` are offsets in UTF-16 units of ``content``, in order.

    ``embeddings`` holds a vector for the hash of every unit's body.
    """

    material_id: str
    relative_path: str
    content: str
    units: tuple[tuple[int, int], ...]
    embeddings: dict[str, bytes]

    @property
    def bodies(self) -> list[str]:
        """Return the body of every unit: the slice of the content that JavaScript would give."""
        wide = self.content.encode("utf-16-le")
        return [wide[2 * start : 2 * end].decode("utf-16-le") for start, end in self.units]


@st.composite
def materials(draw: st.DrawFn, dimensions: int = 4, *, degenerate: bool = True) -> MaterialInput:
    """Return valid materials with vectors of so many dimensions. Few ids, paths and texts: they meet again.

    ``degenerate``: as :func:`~regraft.testing.texts.vectors` has it.
    """
    bodies = draw(st.lists(st.one_of(st.sampled_from(_SHARED), texts(max_size=12)), max_size=5))
    separator = draw(st.sampled_from(_SEPARATORS))
    parts: list[str] = []
    units: list[tuple[int, int]] = []
    place = 0
    for body in bodies:
        if parts:
            parts.append(separator)
            place += _units(separator)
        parts.append(body)
        units.append((place, place + _units(body)))
        place += _units(body)
    return MaterialInput(
        material_id=draw(st.sampled_from(_IDS)),
        relative_path=draw(st.sampled_from(_PATHS)),
        content="".join(parts),
        units=tuple(units),
        embeddings={identity.text_hash(body): draw(vectors(dimensions, degenerate=degenerate)) for body in bodies},
    )


def _units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2
