"""A model of full-text ranking and exact vector search, to judge searches by."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import apsw
from v1 import sha

from regraft import identity
from regraft.formats.cherry_v2.index import schema

BASE = "11111111-1111-4111-8111-111111111111"


@dataclass(frozen=True)
class Body:
    """A unit of the model: its text, its vector (any bytes, None for no embedding), its material."""

    text: str
    vector: object = b""
    material: str = "m"


def write_index(path: Path, bodies: Sequence[Body], *, version: int = 2) -> Path:
    """Write an index row by row, through the triggers, as the application does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(apsw.Connection(str(path))) as db:
        db.execute("BEGIN")
        for statement in (*schema.TABLES, *schema.INDEXES, schema.FULL_TEXT, *schema.TRIGGERS):
            db.execute(statement)
        db.execute("INSERT INTO meta VALUES (1, ?, ?, 0, 0)", (version, BASE))
        for number, body in enumerate(bodies):
            add_body(db, number, body)
        db.execute("COMMIT")
    return path


def add_body(db: apsw.Connection, number: int, body: Body) -> None:
    content, text_hash = sha(f"content of {body.material}"), sha(body.text)
    unit = identity.unit_id(body.material, content, number, 0, 0)
    db.execute("INSERT INTO content VALUES (?, ?, 0) ON CONFLICT DO NOTHING", (content, body.material))
    path = f"{body.material}.md"
    db.execute("INSERT INTO material VALUES (?, ?, ?, 0, 0) ON CONFLICT DO NOTHING", (body.material, path, content))
    values = (unit, body.material, content, number)
    db.execute("INSERT INTO search_unit VALUES (?, ?, ?, 'chunk', ?, NULL, 0, 0, NULL, 0)", values)
    if body.vector != b"":
        db.execute("INSERT INTO embedding VALUES (?, ?, 0) ON CONFLICT DO NOTHING", (text_hash, body.vector))
    values = (identity.body_id(unit), unit, body.text, text_hash)
    db.execute("INSERT INTO search_text VALUES (?, 'search_unit', ?, 'body', ?, ?, NULL, 0)", values)


def exact_cosine(first: bytes, second: bytes) -> float | None:
    """Return 1 - the distance, with exact sums; None where there is none."""
    one, two = (struct.unpack(f"<{len(blob) // 4}f", blob) for blob in (first, second))
    if not all(map(math.isfinite, (*one, *two))):
        return None
    dot = sum(Fraction(a) * Fraction(b) for a, b in zip(one, two, strict=True))
    norms = [sum(Fraction(a) ** 2 for a in vector) for vector in (one, two)]
    if not all(norms):
        return None
    return float(dot) / (math.sqrt(norms[0]) * math.sqrt(norms[1]))


def folded(text: str) -> str:
    """Return a text as LIKE sees it: without regard to the case of ASCII letters only."""
    return "".join(point.lower() if point.isascii() else point for point in text)


#: What the model knows of characters: those of scripts without spaces, and other letters, digits and ``_``.
UNSEGMENTED = frozenset("知识库搜索天气道原因々〆ーｰかなカナｶ〇㊀𠮷㈠ゝ")
SEGMENTED = frozenset("abcdexABCDEÉéßД한국어ไทยខ01239９½²_𝒳ǅ")
#: These end a token: marks, signs, spaces, wildcards, quotes, half surrogates.
ENDS = " \t\n\0%\\\"'*^()。，・\u0301\u3099\u0e31😀\u200d-"


def model_query(query: str) -> tuple[list[str], list[str], list[str]]:
    """Return tokens, terms and short words of a query, character by character."""
    found, runs = [""], [""]
    for before, point in zip([" ", *query], query, strict=False):
        is_part = point in UNSEGMENTED or point in SEGMENTED
        found[-1:] = [found[-1] + point] if is_part else [found[-1], ""]
        cut = not is_part or (point in UNSEGMENTED) != (before in UNSEGMENTED)
        runs[-1:] = [runs[-1] + point] if not cut else [runs[-1], point if is_part else ""]
    words, windows = [], []
    for part in filter(None, runs):
        if part[0] in UNSEGMENTED and len(part) > 3:
            windows += [part[at : at + 3] for at in range(len(part) - 2)]
        else:
            words.append(part)
    wide = [word for word in words if len(word) >= 3] + windows
    terms = [term for at, term in enumerate(wide) if term not in wide[:at]]
    short = [word for at, word in enumerate(words) if len(word) < 3 and word not in words[:at]]
    return [token for token in found if token], terms[:64], short


def model_words(texts: Sequence[str], query: str) -> list[tuple[int, float]]:
    """Return (number, score) of what the lane of words finds, best first."""
    every, terms, short = model_query(query)
    if not every:
        return []
    if not terms:
        found = [at for at, text in enumerate(texts) if all(folded(token) in folded(text) for token in every)]
        return sorted(((at, -float(len(texts[at]))) for at in found), key=lambda entry: (-entry[1], entry[0]))
    ranked = model_bm25(texts, terms)
    filtered = [entry for entry in ranked if all(folded(word) in folded(texts[entry[0]]) for word in short)]
    return filtered or ranked


def model_bm25(texts: Sequence[str], terms: Sequence[str]) -> list[tuple[int, float]]:
    """Return (number, score) of the texts with any term, best first, by the formula that FTS5 documents."""
    k1, b = 1.2, 0.75
    lengths = [max(len(text) - 2, 0) for text in texts]
    average = sum(lengths) / len(texts)

    def count(text: str, term: str) -> int:
        return sum(text.lower().startswith(term.lower(), at) for at in range(len(text)))

    having = {term: sum(count(text, term) > 0 for text in texts) for term in terms}
    scored = []
    for number, text in enumerate(texts):
        found = [(term, count(text, term)) for term in terms]
        if not any(times for _, times in found):
            continue
        score = 0.0
        for term, times in found:
            weight = math.log((len(texts) - having[term] + 0.5) / (having[term] + 0.5))
            weight = weight if weight > 0 else 1e-6
            score += weight * times * (k1 + 1) / (times + k1 * (1 - b + b * lengths[number] / average))
        scored.append((number, score))
    return sorted(scored, key=lambda entry: (-round(entry[1], 12), entry[0]))
