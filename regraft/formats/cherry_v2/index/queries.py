"""What a query asks the full-text index for (``docs/search.md``, "Words of a query").

Text without spaces between words is cut by its script, not by dictionaries: Chinese and Japanese text into windows of
three characters, everything else at what is no letter, number or ``_``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import regex

#: The trigram index knows nothing shorter, in code points; windows are as long.
TRIGRAM = 3
#: How many terms full text is asked for; those after them have no part in a search.
MAX_TERMS = 64

_TOKEN = r"[\p{L}\p{N}_]+"
#: Characters of Chinese and Japanese, those with several scripts among them, such as the prolonged sound mark.
_UNSEGMENTED = r"\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}"
_RUN = rf"(?P<unsegmented>[{_UNSEGMENTED}]+)|[^{_UNSEGMENTED}]+"


class Compiled(msgspec.Struct, frozen=True):
    """A query as full text is asked for it."""

    #: Runs of letters, numbers and ``_``, as they stand in the query.
    tokens: tuple[str, ...]
    #: What the trigram index is asked for, any of it: words, then windows, each term once.
    terms: tuple[str, ...]
    #: Different words that are too short for it.
    shorts: tuple[str, ...]


def tokens(query: str) -> list[str]:
    r"""Return what of a query can be searched: its longest runs of letters, numbers and ``_``.

    Letters and numbers are Unicode's categories L and N, as JavaScript's ``\p{L}`` and ``\p{N}``; combining marks end
    a run.
    """
    found: list[str] = _pattern(_TOKEN).findall(query)
    return found


def compiled(query: str) -> Compiled:
    """Return what the full-text index is asked for."""
    every = tokens(query)
    runs = [(run[0], run["unsegmented"] is not None) for token in every for run in _pattern(_RUN).finditer(token)]
    words = [run for run, is_unsegmented in runs if not is_unsegmented or len(run) <= TRIGRAM]
    # Distinct over words and windows together: bm25() would count a term that is both twice.
    terms = dict.fromkeys(chain((word for word in words if len(word) >= TRIGRAM), _windows(runs)))
    shorts = dict.fromkeys(word for word in words if len(word) < TRIGRAM)
    return Compiled(tuple(every), tuple(islice(terms, MAX_TERMS)), tuple(shorts))


def is_unsegmented(text: str) -> bool:
    """Whether a text consists of characters of a script without spaces between words: Han, Hiragana, Katakana."""
    return _pattern(f"[{_UNSEGMENTED}]+").fullmatch(text) is not None


@cache
def _pattern(pattern: str) -> regex.Pattern[str]:
    """Return a compiled pattern: the standard library knows no Script_Extensions, and its categories are older."""
    import regex  # noqa: PLC0415 - takes its time, and only searches need it

    return regex.compile(pattern)


def _windows(runs: list[tuple[str, bool]]) -> Iterator[str]:
    for run, is_unsegmented in runs:
        if is_unsegmented and len(run) > TRIGRAM:
            yield from (run[at : at + TRIGRAM] for at in range(len(run) - TRIGRAM + 1))
