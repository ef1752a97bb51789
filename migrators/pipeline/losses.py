"""Which items of a salvaged base lost rows, and what is said of it (``docs/salvage.md``, "What is said")."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import msgspec

from migrators.pipeline.duplicates import holes
from migrators.pipeline.ownership import Owners
from regraft.formats.salvage_tally import SalvageTally
from regraft.formats.vector_survey import Survey
from regraft.language import joined, tr
from regraft.report import salvage_notices
from regraft.report.notices import Notice
from regraft.text import counted


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """The items of a salvaged base that have rows, or had some.

    ``lost`` counts rows that do not come along, by the id of their item. ``open`` are items whose numbers have holes,
    of which nobody can tell whether v1 left them; ``whole`` counts the others.
    """

    lost: Counter[str]
    open: frozenset[str]
    whole: int

    @property
    def damaged(self) -> int:
        """Return how many items lost rows, or may have."""
        return len(self.lost.keys() | self.open)


def losses(survey: Survey, owners: Owners) -> Losses:
    """Return what the items of a base lost; nothing of one that was not salvaged."""
    tally = survey.salvage
    lost: Counter[str] = Counter()
    seen: set[str] = set()
    unsure: set[str] = set()
    for loader, rows in survey.loaders.items() if tally is not None else ():
        owner = owners.owner(loader)
        if owner is None:
            continue
        seen.add(owner)
        lost[owner] += sum(one.count for one in rows.refused.values())
        if holes(rows) and tally is not None and not tally.is_exact:
            unsure.add(owner)
    lost = +lost
    return Losses(lost=lost, open=frozenset(unsure), whole=len(seen - lost.keys() - unsure))


def _said_of_items(found: Losses, tally: SalvageTally) -> str:
    whole = counted(found.whole, "item")
    if tally.is_exact:
        return tr("{whole} whole, {damaged} damaged", whole=whole, damaged=found.damaged)
    # The last rows of an item leave no trace.
    return tr(
        "{whole} whole as far as the numbers of their rows tell, {damaged} damaged", whole=whole, damaged=found.damaged
    )


def said_of_losses(
    base: str,
    vector_file: str,
    tally: SalvageTally,
    found: Losses,
    named: Callable[[], Iterable[tuple[str, str, str | None]]],
) -> Iterator[Notice]:
    """Yield what is said of a salvaged base, and of each of its items that lost rows.

    Args:
        base: the base's id in v1.
        vector_file: its vector file.
        tally: what is left of that.
        found: which items lost rows.
        named: gives for every item its id, what a person calls it, and the id of v1 that it goes by.
    """
    share = 100 * tally.pages_read // max(1, tally.pages)
    parts = [
        tr(
            "its vector file {vector_file} {problem}; {rows:,} of about {about:,} rows are salvaged",
            vector_file=vector_file,
            problem=tally.problem,
            rows=tally.rows,
            about=tally.about,
        ),
        tr(
            "{read:,} of its {pages} could be read ({share} %)",
            read=tally.pages_read,
            pages=counted(tally.pages, "page"),
            share=share,
        ),
        _said_of_items(found, tally),
    ]
    if tally.weaker:
        rows = counted(sum(tally.weaker.values()), "row")
        parts.append(tr("{rows} found beside the tree of their table", rows=rows))
    yield Notice(
        code=salvage_notices.SALVAGED,
        message=joined(parts, between=tr("; ")),
        base=base,
        count=max(1, tally.about - tally.rows),
    )
    for item, name, legacy_id in named() if found.damaged else ():
        if found.lost[item]:
            said = tr("{rows} of {name} lost with the damage", rows=counted(found.lost[item], "row"), name=name)
        elif item in found.open:
            said = tr("rows of {name} may be lost: numbers are missing among its rows", name=name)
        else:
            continue
        yield Notice(
            code=salvage_notices.ROWS_LOST, message=said, base=base, item=legacy_id, count=max(1, found.lost[item])
        )
