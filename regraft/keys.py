"""API keys: told from other words, and taken out of what is shown or written."""

from __future__ import annotations

import re

#: What stands in the place of a key.
HIDDEN = "(key)"
#: As providers make them: a short mark and a random text; tokens of three parts; whatever follows Bearer.
_MARKED = re.compile(
    r"\b(?:sk|pk|pa|gsk|hf|xai|nvapi|jina)[-_](?=[\w*.-]*[\d*])[\w*.-]{8,}"
    r"|\bAIza[\w-]{16,}"
    r"|\beyJ[\w-]{8,}\.[\w.-]+"
    r"|(?<=\bbearer )\S{4,}",
    re.IGNORECASE,
)
#: Letters and digits without a break, longer than any word.
_RANDOM = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{20,}(?![A-Za-z0-9])")
_WORD = re.compile(r"[^\s\"'<>(){}\[\],;]+")
#: The characters of a text: letters and digits, and what may stand between those of a key that is spelled out, as it is
#: or as JSON, URLs and HTML write it.
_CHARACTERS = re.compile(r"\\[nrtbf]|\\u[0-9a-fA-F]{4}|%[0-9a-fA-F]{2}|&#?[A-Za-z0-9]{1,8};|.", re.DOTALL)
#: So many letters and digits in a row that are a key's are taken for a part of it; a shorter key than this one is none.
_SPELLED, _LEAST_SPELLED = 8, 5
#: A word that has so many characters in a row with a key is taken for a part of it.
_PIECE = 6


def looks_like_key(text: str) -> bool:
    """Tell whether a text holds what only a key looks like. Paths and addresses may hold random letters and digits."""
    if _MARKED.search(text) is not None:
        return True
    return _RANDOM.search(text) is not None and not re.search(r"[/\\]", text)


def redacted(text: str, key: str | None = None) -> str:
    """Return a text without ``key``, without words that share a piece with it, and without what looks like a key."""
    if key:
        text = text.replace(key, HIDDEN)
        text = _WORD.sub(lambda word: HIDDEN if _shares(word[0], key) else word[0], text)
        text = _without_spelled(text, key)
    return _RANDOM.sub(HIDDEN, _MARKED.sub(HIDDEN, text))


def _shares(word: str, key: str) -> bool:
    word, key = word.lower(), key.lower()
    size = min(_PIECE, len(key))
    return any(key[start : start + size] in word for start in range(len(key) - size + 1))


def _without_spelled(text: str, key: str) -> str:
    """Return a text without parts of ``key`` whose characters something stands between, such as blanks."""
    sought = "".join(filter(str.isalnum, key.lower()))
    size = min(_SPELLED, len(sought))
    if size < _LEAST_SPELLED:
        return text
    pieces = {sought[start : start + size] for start in range(len(sought) - size + 1)}
    # Keys are ASCII; of other letters, the small form may be longer.
    places = [found.start() for found in _CHARACTERS.finditer(text) if (one := found[0]).isascii() and one.isalnum()]
    said = "".join(text[place].lower() for place in places)
    found = [start for start in range(len(said) - size + 1) if said[start : start + size] in pieces]
    parts, at = [], 0
    for start in found:
        first, end = places[start], places[start + size - 1] + 1
        if first >= at:
            parts += [text[at:first], HIDDEN]
        at = max(at, end)
    return "".join((*parts, text[at:]))
