"""Prove that the search of the product finds what an index of the current layout holds, by vectors and by words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Any

import apsw
import numpy as np

from checks.certify import findings as names
from checks.certify.base import WordIndex, read_text, read_vector
from checks.certify.measures import Adder, Measured
from checks.certify.neighbors import NEAREST, find_nearest
from regraft.formats.cherry_v2.index.search import (
    compile_query,
    full_text_column,
    rank_bodies_by_distance,
)
from regraft.language import format_count, tr

#: Queries of the product's own search, which reads every vector for each of them; ``--all``: every vector.
SEARCHES = 30
#: Distances of sqlite-vec and of NumPy, both in single precision, differ by less.
_NEAR = 1e-3
#: A text's own vector has at least this score.
_OWN_SCORE = 0.999
#: Texts that are searched for by their own words; ``--all``: every text.
WORD_SEARCHES = 500
#: Words of a text that are searched for, and characters in which they are.
_WORDS, WORD_CHARACTERS = 3, 600
#: Characters of a part of a text that is searched for in an index of trigrams, and the shortest that it finds.
_PART, _SHORTEST_PART = 16, 3
_WORD = re.compile(r"[^\W_]+")
#: Characters of a text that is shown.
_SAMPLE_CHARACTERS = 80
#: Words whose texts are compared with a plain scan, and the most texts that such a word may have.
_SCANNED, _MOST_TEXTS = 8, 2_000
_BATCH = 500


def prove_reachable(measured: Measured, adder: Adder) -> int:
    """Report texts with a vector that the search leaves out, as they have no unit or no item; return their number."""
    scratch, p = measured.scratch, measured.prefix
    scratch.execute(f"CREATE TABLE {p}hidden (body INTEGER PRIMARY KEY)")
    add_hidden = f"INSERT OR IGNORE INTO {p}hidden VALUES (?)"
    without_unit: Any = measured.db.execute(
        "SELECT t.rowid FROM search_text t WHERE t.kind IS NOT 'body'"
        " OR NOT EXISTS (SELECT 1 FROM search_unit u WHERE u.unit_id = t.target_id)"
    )
    scratch.executemany(add_hidden, without_unit)
    for material in _materials_without_item(measured):
        bodies: Any = measured.db.execute(
            "SELECT t.rowid FROM search_unit u CROSS JOIN search_text t ON t.target_type = 'search_unit'"
            " AND t.target_id = u.unit_id WHERE u.material_id = ?",
            (material,),
        )
        scratch.executemany(add_hidden, bodies)
    # A text is left out if all of its units are.
    query = f"""SELECT f.body FROM {p}found f WHERE NOT EXISTS
                 (SELECT 1 FROM {p}body b WHERE b.text = f.text AND b.rowid NOT IN (SELECT body FROM {p}hidden))"""
    message = tr("{n} with a vector that the search leaves out: without a unit, or without an item")
    return adder.rows(names.UNREACHABLE, message, "text", query)


def _materials_without_item(measured: Measured) -> Iterator[object]:
    """Yield the ids of materials whose item the catalog does not list in this base."""
    if measured.base.items is None:
        return
    rows = measured.db.execute("SELECT DISTINCT material_id FROM search_unit")
    while batch := [row[0] for row in islice(rows, _BATCH)]:
        ids = [one for one in batch if isinstance(one, str)]
        listed = measured.base.items(ids)
        if listed is None:
            return
        yield from (one for one in ids if listed.get(one) != measured.base.id)


def prove_searches(measured: Measured, adder: Adder, rows: Sequence[tuple[int, int]], hidden: int) -> int:
    """Search for stored vectors; report those that miss their own text, or whose results are not the nearest texts.

    Args:
        measured: the base.
        adder: adds findings.
        rows: row number of each vector to search for, and row number of a text that has it.
        hidden: number of texts that the search leaves out. If there are any, nothing is reported.

    Returns:
        The number of searches.
    """
    if not rows:
        return 0
    queries = measured.units([at for at, _ in rows])
    nearest = find_nearest(measured.blocks, queries, np.full(len(rows), -1, dtype=np.int64))
    searches = [_search(measured, at) for at, _ in rows]
    if hidden:
        return len(rows)
    missed = [body for (_, body), (_, is_found) in zip(rows, searches, strict=True) if not is_found]
    differing = []
    for (_, body), (scores, _), cosines in zip(rows, searches, nearest.cosines, strict=True):
        expected = cosines[np.isfinite(cosines)]
        if len(scores) != len(expected) or not np.allclose(scores, expected, rtol=0, atol=_NEAR):
            differing.append(body)
    if missed:
        message = tr("{count} of {of} vectors do not find their own text", count=len(missed), of=len(rows))
        adder.finding(names.SELF_MISSED, message, len(missed), measured.sample_of(missed[0]))
    if differing:
        message = tr(
            "{count} of {of} searches find other texts than a comparison with every vector",
            count=len(differing),
            of=len(rows),
        )
        adder.finding(names.INDEX_DIFFERS, message, len(differing), measured.sample_of(differing[0]))
    return len(rows)


def _search(measured: Measured, rowid: int) -> tuple[list[float], bool]:
    """Search with the product's own search for a stored vector, whose row number is ``rowid``.

    Returns:
        The best scores in descending order, one for each vector that was found, and whether the vector found itself.
    """
    vector_of = f"SELECT vector FROM {measured.prefix}body WHERE rowid = ?"
    scores: list[float] = []
    is_found = False
    seen: set[int] = set()
    for body, score in rank_bodies_by_distance(measured.db, read_vector(measured.db, measured.base, rowid)):
        vector = int(str(measured.scratch.execute(vector_of, (body,)).get))
        is_found |= vector == rowid
        if len(scores) < NEAREST and vector not in seen:
            scores.append(score)
            seen.add(vector)
        if len(scores) == NEAREST and (is_found or score < _OWN_SCORE):
            break
    return scores, is_found


# --- words -----------------------------------------------------------------------------------------------------------


def prove_words(measured: Measured, adder: Adder, bodies: Sequence[int]) -> int:
    """Report texts that the full-text index lacks, or that it does not find by their own words.

    ``bodies`` are row numbers of the texts to search for. Return how many these are.
    """
    try:
        column = full_text_column(measured.db)
        _prove_rows(measured, adder, column)
        missed = [body for body in bodies if not _finds_itself(measured, column, body)]
        if missed:
            message = tr("{count} of {of} texts are not found by their own words", count=len(missed), of=len(bodies))
            adder.finding(names.WORDS_DIFFER, message, len(missed), measured.sample_of(missed[0]))
        _prove_against_scan(measured, adder, column, bodies)
    except apsw.SQLError as error:
        adder.finding(names.WORDS_DIFFER, tr("the full-text index cannot be searched: {error}", error=error))
    return len(bodies)


def prove_word_index(index: WordIndex, adder: Adder, limit: int | None) -> tuple[int, int]:
    """Report texts that the full-text index of another system lacks, or that it does not find by their own words.

    Args:
        index: the index.
        adder: adds findings.
        limit: maximum number of texts to search for; None: all.

    Returns:
        How many texts were searched for, and how many there are.
    """
    tried = total = missed = 0
    sample = ""
    try:
        with index.open() as db:
            total = _number(db, f"SELECT count(*) FROM ({index.rows})", index)
            there = f"SELECT 1 FROM {index.table}_docsize d WHERE d.id = r.id"
            lacking = _number(db, f"SELECT count(*) FROM ({index.rows}) r WHERE NOT EXISTS ({there})", index)
            if lacking:
                message = tr("not in the full-text index: {texts}", texts=format_count(lacking, "text"))
                adder.finding(names.WORDS_DIFFER, message, lacking)
            differing = 0 if index.differing is None else _number(db, index.differing, index) - lacking
            if differing > 0:
                message = tr("the full-text index has another text of {texts}", texts=format_count(differing, "text"))
                adder.finding(names.WORDS_DIFFER, message, differing)
            rows: Any = db.execute(index.rows, index.values)
            search = f"SELECT 1 FROM {index.table} WHERE {index.table} MATCH ? AND rowid = ?"
            for rowid, text in islice(rows, 0, None, 1 if limit is None else max(1, -(-total // limit))):
                query = _own_words(text if isinstance(text, str) else "", is_trigram=index.is_trigram)
                tried += 1
                if query and db.execute(search, (query, rowid)).get is None:
                    missed, sample = missed + 1, sample or text
    except apsw.SQLError as error:
        adder.finding(names.WORDS_DIFFER, tr("the full-text index cannot be searched: {error}", error=error))
    if missed:
        message = tr("{count} of {of} texts are not found by their own words", count=missed, of=tried)
        adder.finding(names.WORDS_DIFFER, message, missed, sample[:_SAMPLE_CHARACTERS])
    return tried, total


def _number(db: apsw.Connection, query: str, index: WordIndex) -> int:
    """Return the integer that a query of the index's database computes; the parameters are those of ``index``."""
    return int(str(db.execute(query, index.values).get))


def _own_words(text: str, *, is_trigram: bool) -> str:
    """Return a full-text query for some words of a text, or for parts of it; empty if the text has none.

    ``is_trigram``: whether the index finds parts of a text, not words.
    """
    # FTS5 ends a text at NUL.
    plain = text.partition("\0")[0]
    if is_trigram:
        found = [plain[at : at + _PART] for at in range(0, len(plain), max(_PART, len(plain) // _WORDS))]
        found = [part for part in found if len(part) >= _SHORTEST_PART]
    else:
        # The last word may be cut.
        found = _WORD.findall(plain)[: -1 if len(text) >= WORD_CHARACTERS else None]
    chosen = dict.fromkeys(found[at * len(found) // _WORDS] for at in range(_WORDS)) if found else {}
    return " AND ".join('"{}"'.format(part.replace('"', '""')) for part in chosen)


def _prove_rows(measured: Measured, adder: Adder, column: str) -> None:
    """Report texts without an entry in the full-text index, and entries without a text.

    ``column`` of the table of texts has the row number of the entry.
    """
    lacking: Any = measured.db.execute(
        f"""SELECT count(*), min(rowid) FROM search_text
             WHERE {column} IS NULL OR {column} NOT IN (SELECT id FROM search_text_fts_docsize)"""
    ).fetchone()
    if lacking[0]:
        message = tr("not in the full-text index: {texts}", texts=format_count(lacking[0], "text"))
        adder.finding(names.WORDS_DIFFER, message, lacking[0], measured.sample_of(lacking[1]))
    extra: Any = measured.db.execute(
        f"SELECT count(*) FROM search_text_fts_docsize WHERE id NOT IN"
        f" (SELECT {column} FROM search_text WHERE {column} IS NOT NULL)"
    ).get
    if extra:
        adder.finding(
            names.WORDS_DIFFER,
            tr("without a text: {entries} of the full-text index", entries=format_count(extra, "entry")),
            extra,
        )


def _terms(measured: Measured, body: int) -> tuple[str, ...]:
    """Return the search terms of the beginning of the text with row number ``body``."""
    # FTS5 ends a text at NUL.
    text = read_text(measured.db, measured.base, body, WORD_CHARACTERS).partition("\0")[0]
    return compile_query(text).terms


def _finds_itself(measured: Measured, column: str, body: int) -> bool:
    """Whether a search for some words of a text finds that text; True if it has no words.

    ``body`` is the row number of the text. ``column`` has the row number of its entry in the full-text index.
    """
    terms = _terms(measured, body)
    if not terms:
        return True
    chosen = dict.fromkeys(terms[at * len(terms) // _WORDS] for at in range(_WORDS))
    query = " AND ".join(f'"{term}"' for term in chosen)
    found = measured.db.execute(
        f"""SELECT 1 FROM search_text_fts WHERE search_text_fts MATCH ?
              AND rowid = (SELECT {column} FROM search_text WHERE rowid = ?)""",
        (query, body),
    ).get
    return found is not None


def _prove_against_scan(measured: Measured, adder: Adder, column: str, bodies: Sequence[int]) -> None:
    """Compare the full-text index with a scan of all texts, for some words; report the number of hits that differ.

    ``bodies`` are row numbers of the texts from which the words are chosen, ``column`` has the row number of a text's
    entry in the index.
    """
    words = _choose_words(measured, bodies)
    wrong = 0
    for word, (expected, is_whole) in zip(words, _scan(measured.db, column, words), strict=True):
        indexed = {int(str(rowid)) for rowid in _matches(measured.db, word)}
        extra = indexed - expected if is_whole else ()
        wrong += len(expected - indexed)
        for rowid in extra:
            raw = measured.db.execute(f"SELECT CAST(text AS BLOB) FROM search_text WHERE {column} = ?", (rowid,)).get
            # A text may have the word in letters whose case only the index ignores.
            text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else ""
            wrong += word.casefold() not in text.casefold()
    if wrong:
        message = tr(
            "the full-text index and a scan of the texts differ for {count:,} hits of {words} words",
            count=wrong,
            words=len(words),
        )
        adder.finding(names.WORDS_DIFFER, message, wrong)


def _scan(db: apsw.Connection, column: str, words: Sequence[str]) -> list[tuple[set[int], bool]]:
    """Search all texts for each word by comparing the texts, without the full-text index.

    Returns:
        For each word: the values of ``column`` of the texts that have it, and whether these are all such texts.
    """
    # LIKE ignores the case of ASCII letters, and ends a text at NUL, as the index does.
    tests = ", ".join(["NULL", *("text LIKE ?" for _ in words)])
    found: list[set[int]] = [set() for _ in words]
    patterns = tuple(f"%{word}%" for word in words)
    for rowid, _, *has in db.execute(f"SELECT {column}, {tests} FROM search_text NOT INDEXED", patterns):
        for at, is_there in enumerate(has):
            if is_there and isinstance(rowid, int) and len(found[at]) < 10 * _MOST_TEXTS:
                found[at].add(rowid)
    return [(rows, len(rows) < 10 * _MOST_TEXTS) for rows in found]


def _choose_words(measured: Measured, bodies: Sequence[int]) -> list[str]:
    """Choose words from texts with the row numbers ``bodies``: words that few texts have.

    Scanning and indexing ignore the case of these words alike.
    """
    chosen: dict[str, None] = {}
    for body in bodies[:: max(1, len(bodies) // (4 * _SCANNED))]:
        for word, _ in groupby(_terms(measured, body)[1:4]):
            lower = word.lower()
            is_plain = lower.isascii() or not any(one.isupper() or one.islower() for one in word)
            hits = islice(_matches(measured.db, lower), _MOST_TEXTS + 1)
            if is_plain and "_" not in lower and len(list(hits)) <= _MOST_TEXTS:
                chosen[lower] = None
                break
        if len(chosen) == _SCANNED:
            break
    return list(chosen)


def _matches(db: apsw.Connection, word: str) -> Iterator[object]:
    """Yield the row numbers of the entries of the full-text index that contain a word."""
    rows = db.execute("SELECT rowid FROM search_text_fts WHERE search_text_fts MATCH ?", (f'"{word}"',))
    return (rowid for (rowid,) in rows)
