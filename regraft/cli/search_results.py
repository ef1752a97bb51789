"""What ``regraft search`` tells a person of bases."""

from __future__ import annotations

from collections import Counter

from regraft.formats.cherry_v2.index.search import Hit
from regraft.labels import mode_label
from regraft.language import joined, tr
from regraft.ranking.cherry_v2 import Answer
from regraft.ranking.several_bases import Answers, label
from regraft.text import counted, one_line, shown_lines

#: How much of a body is shown, in code points; ``-v`` shows all of it.
EXCERPT = 160


def as_text(found: Answer | Answers, title: str, *, whole: bool, raw: bool) -> str:
    """Return what was found as text.

    Args:
        found: the hits.
        title: the first line.
        whole: show all of every body.
        raw: the index alone was asked: scores are shown as it gives them.
    """
    if isinstance(found, Answers):
        return _several_as_text(found, title, whole=whole)
    base = found.base_id if found.base_name is None else f"{one_line(found.base_name)} ({found.base_id})"
    lines = [title, tr("Base {base}: {counted}.", base=base, counted=_counted(found))]
    has_score = raw or not found.is_by_length
    for rank, hit in enumerate(found.hits, 1):
        score = f"{hit.score:.6g}  " if has_score else ""
        lines += hit_lines(f"{rank:>3}  {score}{_where(found, hit)}", hit, whole=whole)
    return shown_lines(lines)


def _several_as_text(found: Answers, title: str, *, whole: bool) -> str:
    modes = Counter(answer.mode.value for answer in found.answers)
    said = joined(
        tr("{bases} by {mode}", bases=counted(number, "base"), mode=mode_label(mode)) for mode, number in modes.items()
    )
    lines = [
        title,
        tr("{hits} in all bases, merged by rank; searched: {said}.", hits=counted(len(found.hits), "hit"), said=said),
    ]
    if found.not_searched:
        names = joined(label(one.base_id, one.base_name) for one in found.not_searched)
        lines.append(tr("Not searched: {names}.", names=names))
    names_of = Counter(answer.base_name for answer in found.answers)
    for rank, ranked in enumerate(found.hits, 1):
        answer = ranked.answer
        base = label(answer.base_id, answer.base_name)
        if answer.base_name is not None and names_of[answer.base_name] > 1:
            base += f" ({answer.base_id})"
        lines += hit_lines(f"{rank:>3}  {base}: {_where(answer, ranked.hit)}", ranked.hit, whole=whole)
    return shown_lines(lines)


def _counted(answer: Answer) -> str:
    weight = "" if answer.alpha is None else tr(", alpha {alpha:g}", alpha=answer.alpha)
    dropped = tr(", {dropped} dropped by the catalog", dropped=answer.dropped) if answer.dropped else ""
    return tr(
        "{hits} by {mode}{weight}{dropped}",
        hits=counted(len(answer.hits), "hit"),
        mode=mode_label(answer.mode),
        weight=weight,
        dropped=dropped,
    )


def hit_lines(head: str, hit: Hit, *, whole: bool) -> list[str]:
    """Return the lines of a hit: an empty one, its head, and its text, all of it or an excerpt."""
    body = one_line(hit.text, None if whole else EXCERPT + 1)
    excerpt = body if whole or len(body) <= EXCERPT else f"{body[:EXCERPT]}…"
    return ["", tr("{head}, unit {unit_index}", head=head, unit_index=hit.unit_index), f"     {excerpt}"]


def _where(answer: Answer, hit: Hit) -> str:
    """Return the name of a hit's item, and its path where that says more."""
    path = one_line(hit.relative_path or hit.material_id)
    name = one_line(answer.item_names.get(hit.material_id) or path)
    return name if name == path else f"{name} ({path})"
