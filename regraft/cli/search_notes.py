"""How ``regraft search`` shows what it found in a database of codex-mem."""

from __future__ import annotations

from regraft.labels import mode_label, state_label
from regraft.language import tr
from regraft.ranking.codex_mem import Answer
from regraft.text import counted, one_line, shown_lines


def as_text(answer: Answer, title: str, excerpt: int | None) -> str:
    """Return an answer for a person.

    Args:
        answer: what was found.
        title: the first line.
        excerpt: how many code points of a note are shown; None: all.
    """
    where = tr("All projects") if answer.project is None else tr("Project {project}", project=one_line(answer.project))
    lines = [
        title,
        tr(
            "{where}: {hits} by {mode}; search by meaning: {state}.",
            where=where,
            hits=counted(len(answer.found), "hit"),
            mode=mode_label(answer.mode),
            state=state_label(answer.state),
        ),
    ]
    for rank, found in enumerate(answer.found, 1):
        body = one_line(found.hit.text.removeprefix(found.title), None if excerpt is None else excerpt + 1)
        shown = body if excerpt is None or len(body) <= excerpt else f"{body[:excerpt]}…"
        kind = one_line(f"{found.type}, {found.status}, {found.hit.material_id}")
        lines += ["", f"{rank:>3}  {found.hit.score:.6g}  {one_line(found.title)}  ({kind})", f"     {shown}"]
    return shown_lines(lines)
