"""How ``regraft search`` shows what it found in a KB of rsclaw."""

from __future__ import annotations

from regraft.cli.search_results import hit_lines
from regraft.labels import mode_label
from regraft.language import joined, tr
from regraft.ranking.rsclaw import Answer
from regraft.text import counted, one_line, shown_lines


def as_text(answer: Answer, title: str, *, whole: bool) -> str:
    """Return an answer for a person.

    Args:
        answer: what was found.
        title: the first line.
        whole: show all of every text.
    """
    callers = joined(map(one_line, answer.scope.words)) or tr("everybody")
    hits, mode = counted(len(answer.hits), "hit"), mode_label(answer.mode)
    lines = [title, tr("What {callers} may see: {hits} by {mode}.", callers=callers, hits=hits, mode=mode)]
    for rank, hit in enumerate(answer.hits, 1):
        score = "" if answer.is_by_length else f"{hit.score:.6g}  "
        where = f"{one_line(answer.titles[hit.material_id])} ({one_line(hit.relative_path or hit.material_id)})"
        lines += hit_lines(f"{rank:>3}  {score}{where}", hit, whole=whole)
    return shown_lines(lines)
