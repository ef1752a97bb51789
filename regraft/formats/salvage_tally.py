"""What a salvage of a damaged vector file comes to, in numbers (``docs/salvage.md``, "What is said")."""

from __future__ import annotations

import msgspec

from regraft.language import tr

#: The option that asks for it.
OPTION = "--salvage"


class SalvageTally(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a damaged vector file.

    Attributes:
        problem: why SQLite does not read it, for a person.
        rows: rows that prove themselves.
        about: rows that there were, as far as what is left tells.
        is_exact: whether an index that is whole tells all rows: then holes in the numbers of a loader are no losses.
        refused: rows that do not prove themselves, by the code of the reason.
        weaker: rows that prove themselves and are not reached from the root of their table, by how they were found.
        deleted: rows that were left of what had been deleted.
        pages: pages of the file; ``pages_read`` are those of which it is known what they hold.
        page_bytes: the length of a page.
        is_carried: whether the rows are wanted, and not only counted.
    """

    problem: str = ""
    rows: int
    about: int
    is_exact: bool = False
    refused: dict[str, int] = msgspec.field(default_factory=dict)
    weaker: dict[str, int] = msgspec.field(default_factory=dict)
    deleted: int = 0
    pages: int = 0
    pages_read: int = 0
    page_bytes: int = 0
    is_carried: bool = False

    @property
    def offer(self) -> str:
        """Return what to say to who did not ask for it, or asked in vain."""
        if not self.rows:
            return tr("none of about {about:,} rows can be salvaged", about=self.about)
        return tr(
            "{rows:,} of about {about:,} rows can be salvaged with {option}",
            rows=self.rows,
            about=self.about,
            option=OPTION,
        )
