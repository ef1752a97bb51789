"""Text output of ``regraft search`` in a data folder of AngelMemory."""

from __future__ import annotations

from regraft.labels import mode_label
from regraft.language import joined, tr
from regraft.ranking.angel_search import Answer
from regraft.ranking.cherry_v2 import Mode
from regraft.text import counted, one_line, shown_lines


def as_text(answer: Answer, title: str) -> str:
    """Return the answer as text; ``title`` is its first line."""
    hits = counted(len(answer.hits), "hit")
    lines = [title, tr("Notes: {hits} by {mode}.", hits=hits, mode=mode_label(answer.mode))]
    for rank, hit in enumerate(answer.hits, 1):
        record = hit.record
        place = one_line(" > ".join(filter(None, (record.path, *record.headings))))
        if record.short_id is None:
            head = f"{rank:>3}  {hit.score:.6g}  {place}"
        else:
            note = tr("note {short_id}", short_id=record.short_id)
            head = f"{rank:>3}  {hit.score:.6g}  {place}  ({note})"
        tags = hit.matched if answer.mode is Mode.SIMPLE else record.names
        label = tr("matching tags: {tags}") if answer.mode is Mode.SIMPLE else tr("tags: {tags}")
        lines += ["", head, "     " + one_line(label.format(tags=joined(tags)))]
    if answer.hits:
        lines += ["", tr("regraft recall reads a note by its number.")]
    return shown_lines(lines)
