"""What the rows of a vector file tell of the items that they were made of (``docs/formats/v1.md``, "Loader ids")."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft import sqlite
from regraft.formats import json_text
from regraft.formats.cherry_v1 import embedjs
from regraft.formats.cherry_v2.catalog import MAX_NOTE_UNITS
from regraft.formats.vector_survey import StoreProblem
from regraft.formats.vector_table import check_file
from regraft.language import tr
from regraft.text import is_blank

NOTE, WEB, SITEMAP, DIRECTORY = "NoteLoader_", "WebLoader_", "SitemapLoader_", "DirectoryLoader_"
#: Units of the first chunk of a page that are kept: an address is no longer, and a name far shorter.
_BEGIN_UNITS = 4_000
#: Of two chunks that follow each other at most so much is the same: v1's settings allow no more overlap that is used.
_MOST_OVERLAP = 4_000
#: Of a row's own text: a note's, which is all that is left of it, and the begin of a page's.
_BODY = f"""CASE WHEN uniqueLoaderId LIKE '{NOTE}%' THEN pageContent
                 WHEN uniqueLoaderId LIKE '{WEB}%' THEN substr(pageContent, 1, {_BEGIN_UNITS}) END"""
#: Texts of a row: its loader, its source, its id, what it says of a sitemap, and its own text where that tells.
_WANTED = (
    embedjs.VECTORS.loader,
    embedjs.VECTORS.source,
    embedjs.VECTORS.row_id,
    (("metadata", f"CASE WHEN uniqueLoaderId LIKE '{SITEMAP}%' THEN metadata END"),),
    (("pageContent", _BODY),),
)


class NotVectors(Exception):
    """A file that no base is made of: it is none of v1's, or has no row. The text says why, for a person."""


class LoaderFacts(msgspec.Struct):
    """What the rows of one loader tell."""

    loader: str
    rows: int = 0
    #: The first source that is text and not blank, empty where there is none.
    source: str = ""
    #: Of a sitemap: its own address.
    original: str = ""
    #: Of a page: the begin of its first chunk.
    begin: str = ""
    #: Of a note: its chunks, each with its number.
    chunks: list[tuple[int, str]] = msgspec.field(default_factory=list)
    _units: int = 0

    def see(self, source: str | None, row_id: str | None, metadata: str | None, body: str | None) -> None:
        """Take one row into account."""
        self.rows += 1
        if not self.source and not is_blank(source):
            self.source = str(source)
        if metadata is not None and not self.original:
            self.original = _original_source(metadata)
        if body is None:
            return
        if not self.loader.startswith(NOTE):
            self.begin = self.begin or body
        elif self._units <= MAX_NOTE_UNITS:
            # A note is cut there anyway.
            self._units += len(body)
            number = embedjs.chunk_number((row_id or "").encode(), self.loader.encode())
            self.chunks.append((number, body))

    def text(self) -> str:
        """Return a note's text as its chunks have it, in their order; what two have in common counts once."""
        parts: list[str] = []
        last = ""
        for _, chunk in sorted(self.chunks, key=lambda one: one[0]):
            shared = _overlap(last, chunk)
            parts.append(chunk[shared:] if shared or not parts else f" {chunk}")
            last = chunk
        return "".join(parts)


def _overlap(before: str, after: str) -> int:
    """Return how many characters at the end of one chunk are whole words that the next one begins with."""
    for size in range(min(len(before), len(after) - 1, _MOST_OVERLAP), 0, -1):
        begins = len(before) == size or before[-size - 1] == " "
        if begins and after[size] == " " and before.endswith(after[:size]):
            return size
    return 0


def _original_source(metadata: str) -> str:
    try:
        found: Any = json_text.decode(bytearray(metadata.encode()), object)
    except json_text.JsonProblem:
        return ""
    original = found.get("originalSource") if isinstance(found, dict) else None
    return original if isinstance(original, str) and not is_blank(original) else ""


class FileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a vector file tells: its loaders in the order of their first rows, and the dimensions of its vectors."""

    loaders: list[LoaderFacts] = msgspec.field(default_factory=list)
    rows: int = 0
    #: Of most usable vectors; None where there is none.
    dimensions: int | None = None
    #: Why it tells nothing, for a person.
    problem: str = ""


def read_facts(path: Path, *, work: Path | None = None) -> FileFacts:
    """Read what the rows of a vector file tell. Vectors are not read.

    Raises:
        NotVectors: it is another SQLite file, without v1's table, or one without a row.
        StoreProblem: it is damaged.
    """
    check_file(path)
    facts: dict[str, LoaderFacts] = {}
    rows = 0
    try:
        with sqlite.reading(path, work=work) as db:
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'vectors' COLLATE NOCASE").fetchone() is None:
                raise NotVectors(tr("it has no table `vectors`"))
            for loader, source, row_id, metadata, body in embedjs.VECTORS.texts(db, _WANTED):
                rows += 1
                if loader is not None and not is_blank(loader):
                    one = facts.get(loader) or facts.setdefault(loader, LoaderFacts(loader))
                    one.see(source, row_id, metadata, body)
            length = embedjs.VECTORS.usual_length(db)
    except (apsw.Error, UnicodeDecodeError, OSError) as error:
        raise StoreProblem(tr("cannot be read: {error}", error=error)) from error
    if not rows:
        raise NotVectors(tr("it has no row"))
    return FileFacts(loaders=list(facts.values()), rows=rows, dimensions=None if length is None else length // 4)
