"""What a salvage comes to, in numbers (``docs/salvage.md``, "The report")."""

from __future__ import annotations

from dataclasses import dataclass, field

from regraft.language import tr


@dataclass(frozen=True, kw_only=True)
class SalvageTally:
    """What is left of a damaged vector file.

    Attributes:
        rows: rows that prove themselves.
        about: rows that there were, as far as what is left tells.
        is_exact: whether that is what the file itself says: then holes in the numbers of a loader are no losses.
        refused: rows that do not prove themselves, by reason; of these codes only their key is left of some.
        weaker: rows that come along by their origin, but for those that the tree of the table reaches.
        deleted: rows of pages that are free, which were deleted.
        pages: pages of the file; ``read`` are those of which it is known what they are.
        page_bytes: how long a page is.
        size: bytes of the file.
    """

    rows: int
    about: int
    is_exact: bool = False
    refused: dict[str, int] = field(default_factory=dict)
    weaker: dict[str, int] = field(default_factory=dict)
    deleted: int = 0
    pages: int = 0
    read: int = 0
    page_bytes: int = 0
    size: int = 0

    @property
    def offer(self) -> str:
        """Return what to say of it to who did not ask for it."""
        return tr(
            "{rows:,} of about {about:,} rows can be salvaged with {option}",
            rows=self.rows,
            about=self.about,
            option="--salvage",
        )
