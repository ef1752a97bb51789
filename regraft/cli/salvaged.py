"""What was left of damaged index files, as lines for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from regraft.language import joined, tr
from regraft.text import counted, shown
from repair.changes.salvaged import SalvagedFile

#: What is said of the reasons for which rows stay behind (:mod:`regraft.formats.cherry_v2.salvage.scratch`).
_REASONS = {
    "damaged": tr("what they hold does not prove itself"),
    "contradicted": tr("they are read in two ways"),
    "unnamed": tr("nothing that comes along names them"),
    "unlike": tr("vectors of another length or norm than the others"),
    "lost": tr("of them only a key is left"),
}
_NOUNS = {"materials": "material", "contents": "text", "units": "unit", "bodies": "body", "embeddings": "vector"}


def salvaged_lines(files: Iterable[SalvagedFile]) -> Iterator[str]:
    """Yield what was read of each file, what stays behind and why, and how much of its items is whole."""
    for file in files:
        pages = file.pages
        yield tr(
            "{path}: {read:,} of {pages} are known for what they are",
            path=shown(file.path),
            read=pages.read,
            pages=counted(pages.pages, "page"),
        )
        derived = {kind: table.derived for kind, table in file.rows.items() if table.derived}
        if derived:
            yield tr("  derived from what is proven: {rows}", rows=_counted(derived))
        refused: Counter[str] = Counter()
        for table in file.rows.values():
            refused.update(table.refused)
        for reason, count in refused.items():
            yield tr("  {rows} stay behind: {reason}", rows=counted(count, "row"), reason=_REASONS[reason])
        items = file.items
        if items.whole or items.partial or items.lost:
            yield tr(
                "  items: {whole:,} whole, {partial:,} in part, {lost:,} lost",
                whole=items.whole,
                partial=len(items.partial),
                lost=len(items.lost),
            )


def _counted(numbers: dict[str, int]) -> str:
    return joined(counted(number, _NOUNS[kind]) for kind, number in numbers.items())
