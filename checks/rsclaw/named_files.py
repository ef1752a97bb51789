"""Whether the files that documents name are there, and still what the system wrote; and files that nothing needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from checks.audit.collector import Level
from checks.rsclaw import findings as kb
from checks.rsclaw.files import MOVED, Why, listed, loose, place_of, sha256_of
from checks.rsclaw.seen import NAMED, TITLED, Seen
from regraft.formats.rsclaw import database, rows
from regraft.formats.rsclaw.carrying import inside
from regraft.formats.rsclaw.markdown import body_of
from regraft.language import tr
from regraft.report.notices import Severity

_SCHEMA = """
CREATE TEMP TABLE body (doc_id TEXT PRIMARY KEY, start INTEGER, size INTEGER) WITHOUT ROWID;
CREATE TEMP TABLE told (what TEXT, is_current INTEGER, path TEXT, sample TEXT);
"""
#: Every file that a document names, with its hash, and whether it is the body that it is of.
_FILES = f"""
    SELECT d.id, {TITLED}, d.md_path, d.md_sha, 1, EXISTS (SELECT 1 FROM current c WHERE c.id = d.id)
           OR d.status = '{rows.UPDATING}' FROM doc d
    UNION ALL
    SELECT d.id, {TITLED}, d.raw_path, d.raw_sha, 0, EXISTS (SELECT 1 FROM current c WHERE c.id = d.id)
           OR d.status = '{rows.UPDATING}' FROM doc d WHERE d.raw_path IS NOT NULL
    ORDER BY 1"""
_CURRENT_PATHS = "SELECT d.md_path FROM doc d JOIN current c ON c.id = d.id"
_MISSING, _UNREADABLE, _OUTSIDE, _CHANGED, _CHANGED_RAW = "missing", "unreadable", "outside", "changed", "changed raw"
#: By what is wrong: the finding, what is said of it, and how grave it is of a document that is searched.
_SAID: dict[str, tuple[str, str, Severity]] = {
    _OUTSIDE: (kb.FILE_OUTSIDE, tr("{n} leading out of md/ and raw/: {named}"), "error"),
    _MISSING: (kb.FILE_MISSING, tr("{n} missing: {named}"), "error"),
    _UNREADABLE: (kb.FILE_MISSING, tr("{n} that cannot be read: {named}"), "error"),
    _CHANGED: (kb.FILE_CHANGED, tr("{n} whose text is not what was indexed: {named}"), "error"),
    _CHANGED_RAW: (kb.FILE_CHANGED, tr("{n} other than what the documents were made of: {named}"), "warning"),
}
_OF_OTHERS = {
    _MISSING: tr("{n} missing of documents that were removed, or of older versions: {named}"),
    _UNREADABLE: tr("{n} that cannot be read, of documents that were removed, or of older versions: {named}"),
    _CHANGED: tr(
        "{n} whose text is not what was indexed, of documents that were removed, or of older versions: {named}"
    ),
    _CHANGED_RAW: tr("{n} other than what documents were made of that were removed, or are older versions: {named}"),
}
_LOOSE: dict[Why, tuple[str, Severity]] = {
    Why.ORPHAN: (tr("{n} that no document and no ledger entry names: {named}"), "warning"),
    Why.UNSURE: (
        tr(
            "{n} of no document, as most are, or all: the database may be new, or older than the files, and gc leaves "
            "them: {named}"
        ),
        "warning",
    ),
    Why.REPLACED: (tr("{n} replaced, and waiting for the next compaction: {named}"), "note"),
    Why.YOUNG: (tr("{n} of no document, younger than an hour: {named}"), "note"),
    Why.SETTLED: (tr("{n} of no document, which a settled ledger entry names: {named}"), "note"),
    Why.SPELLING: (tr("{n} named only in another letter case or form of characters: {named}"), "note"),
    Why.ODD: (
        tr("{n} of no document that gc leaves, links or not plain files, or with names that are no text: {named}"),
        "note",
    ),
}


class _Named(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a document names."""

    doc: str
    title: str
    path: str
    sha256: str | None
    is_body: bool
    is_current: bool


def check(seen: Seen) -> None:
    """Look at the files that documents name; the bodies that are what was indexed come into the table ``body``."""
    seen.db.execute(_SCHEMA)
    seen.checked["bytes"] = 0
    for doc, title, path, sha256, is_body, is_current in seen.db.execute(_FILES):
        seen.ledger.check_time()
        one = _Named(
            doc=str(doc),
            title=str(title),
            path=str(path),
            sha256=None if sha256 is None else str(sha256).lower(),
            is_body=bool(is_body),
            is_current=bool(is_current),
        )
        what = _problem_with(seen, one)
        if what is not None:
            problem, said = what
            sample = f"{one.path}, {one.title}" + (f": {said}" if said else "")
            seen.db.execute("INSERT INTO told VALUES (?, ?, ?, ?)", (problem, one.is_current, one.path, sample))
    _tell(seen)
    _check_entries(seen)


def _problem_with(seen: Seen, one: _Named) -> tuple[str, str] | None:
    """Return what is wrong with a file, and what more is to be said of it; None where nothing is."""
    place, problem = place_of(seen.root, one.path)
    if place is None:
        return _OUTSIDE, ""
    if problem is not None:
        return (_UNREADABLE, problem) if problem else (_MISSING, "")
    try:
        return _changed(seen, one, place)
    except OSError as error:
        return _UNREADABLE, error.strerror or str(error)


def _changed(seen: Seen, one: _Named, place: Path) -> tuple[str, str] | None:
    if one.is_body and seen.level >= Level.DEFAULT:
        body = body_of(place)
        seen.checked["bytes"] += body.start + body.size
        if one.sha256 is not None and body.sha256 != one.sha256:
            return _CHANGED, ""
        seen.db.execute("INSERT OR IGNORE INTO body VALUES (?, ?, ?)", (one.doc, body.start, body.size))
    elif not one.is_body and seen.level >= Level.DEEP and one.sha256 is not None:
        seen.checked["bytes"] += place.stat().st_size
        if sha256_of(place, seen.ledger.check_time) != one.sha256:
            return _CHANGED_RAW, ""
    return None


def _tell(seen: Seen) -> None:
    for problem, (name, message, severity) in _SAID.items():
        of_others = _OF_OTHERS.get(problem)
        query = "SELECT sample FROM told WHERE what = ?"
        if of_others is None:
            seen.say(name, message, noun="path", samples=seen.texts(query, problem))
            continue
        # Before names had the hash of the body, all versions of a document had one file.
        current, others = f"{query} AND is_current", f"{query} AND NOT is_current AND path NOT IN ({_CURRENT_PATHS})"
        seen.say(name, message, noun="file", samples=seen.texts(current, problem), severity=severity)
        seen.say(name, of_others, noun="file", samples=seen.texts(others, problem), severity="note")


def _check_entries(seen: Seen) -> None:
    """Find paths of ledger entries that lead out: the system's own compactor would follow them."""
    query = f"""SELECT p.path, {NAMED.format(id="e.doc_id")} FROM entry_path p JOIN entry e ON e.id = p.entry_id
                  LEFT JOIN doc d ON d.id = e.doc_id
                 WHERE p.path NOT IN (SELECT md_path FROM doc UNION SELECT raw_path FROM doc WHERE raw_path IS NOT NULL)
                 ORDER BY 1, 2"""
    found = (f"{path}, {doc}" for path, doc in seen.db.execute(query) if inside(seen.root, str(path)) is None)
    seen.say(
        kb.FILE_OUTSIDE, tr("{n} of a ledger entry leading out of md/ and raw/: {named}"), noun="path", samples=found
    )


# --- files that nothing needs ----------------------------------------------------------------------------------------


def is_certain(seen: Seen) -> bool:
    """Tell whether it is known of every file whether something names it."""
    return seen.path.name == database.FILE and seen.mirror.is_whole(rows.DOCS, rows.LEDGER)


def check_loose(seen: Seen) -> None:
    """Find files that nothing needs, where it is known what everything needs.

    Raises:
        OSError: a folder cannot be read.
    """
    seen.checked["files"] = listed(seen.mirror, seen.root, seen.ledger.check_time)
    if not is_certain(seen):
        return
    for why, (message, severity) in _LOOSE.items():
        is_beyond_repair = why not in MOVED
        paths = _paths(seen, why)
        seen.say(
            kb.FILE_ORPHAN, message, noun="file", samples=paths, severity=severity, is_beyond_repair=is_beyond_repair
        )


def _paths(seen: Seen, why: Why) -> Iterator[str]:
    return (one.path for one in loose(seen.db, seen.now_ms) if one.why is why)
