"""What was left of a damaged file, as the document of a run has it (``docs/commands.md``, "regraft repair")."""

from __future__ import annotations

from msgspec import Struct

from regraft.formats.cherry_v2.salvage.tally import PagesTally, TableTally


class SalvagedItem(Struct, frozen=True, kw_only=True):
    """An item of which something is lost: its id, and what a person calls it."""

    id: str
    name: str


class SalvagedItems(Struct, frozen=True, kw_only=True):
    """How many items of a base are ``whole``, and which are so in part or have nothing left; without a catalog none."""

    whole: int
    partial: list[SalvagedItem]
    lost: list[SalvagedItem]


class SalvagedFile(Struct, frozen=True, kw_only=True):
    """What was left of one damaged index.

    ``rows`` counts by what they are; ``deleted`` are rows that had been deleted before and were still there to be read.
    """

    base: str
    path: str
    rows: dict[str, TableTally]
    deleted: int
    pages: PagesTally
    items: SalvagedItems
