"""A search in the notes of codex-mem: by words as the application does, and by meaning where that can be had.

Whatever is in the way of meaning leaves the answer by words as it would be without it, and is said
(``docs/codex-mem.md``, "Searching").
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import apsw
import msgspec

from regraft.errors import ProjectUnknown, QueryWithoutWord, SourceUnreadable
from regraft.formats.cherry_v2.index.search import FUSION_DEPTH, Hit, fused, vector_blob
from regraft.formats.codex_mem import database as codex_mem_database
from regraft.formats.codex_mem import health
from regraft.formats.codex_mem.database import FULL_TEXT, NOTES, Counts, Note, Status
from regraft.formats.codex_mem.health import State, Survey
from regraft.formats.codex_mem.sidecar import SidecarUnreadable
from regraft.formats.vector_table import make_text_decoder
from regraft.identity import replace
from regraft.language import format_count, join_list, tr
from regraft.ranking.cherry_v2 import Mode
from regraft.ranking.fusion import Embed, NoVector

#: How many hits the application gives where nobody says.
DEFAULT_COUNT = 5
#: The application is written in Go, which takes less for white space than Python.
_WHITE_SPACE = re.compile("[\t\n\v\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
#: How many vectors are compared in one statement.
_AT_ONCE = 500
_COLUMNS = "n.type, n.status, CAST(n.title AS BLOB), CAST(n.content AS BLOB)"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked; ``mode`` None: hybrid where there is a vector of the query, or something that makes one."""

    query: str
    project: str | None = None
    mode: Mode | None = None
    count: int | None = None
    vector: tuple[float, ...] | None = None
    embed: Embed | None = None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A note that was found: as a hit, whose unit is the note and whose material its project, and what it is."""

    hit: Hit
    title: str
    type: str
    status: str


class NoteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, best first, how, and what was in the way of meaning."""

    project: str | None
    mode: Mode
    state: State
    count: int
    found: tuple[Found, ...]
    notes: tuple[str, ...]


def words(query: str) -> list[str]:
    """Return the words of a query as the application takes them: whatever stands between white space."""
    return [word for word in _WHITE_SPACE.split(query) if word]


def search(database: Path, request: Request) -> NoteAnswer:
    """Search the notes of one project, or of all.

    Raises:
        ProjectUnknown: there is no such project.
        QueryWithoutWord: the query is blank.
        SourceUnreadable: the database is damaged.
    """
    if not words(request.query):
        raise QueryWithoutWord
    try:
        with health.opened(database) as memory:
            projects = codex_mem_database.projects(memory.db)
            project = (
                request.project if request.project is None else codex_mem_database.project_id(projects, request.project)
            )
            if project is None and request.project is not None:
                raise ProjectUnknown(base=request.project, known=join_list(projects) or "none")
            return _Search(health.survey(memory), project, request).answer()
    except (apsw.Error, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=database, reason=error) from error


class _Search(msgspec.Struct):
    """One search, step by step; used once."""

    survey: Survey
    project: str | None
    request: Request
    notes: list[str] = msgspec.field(default_factory=list)

    def answer(self) -> NoteAnswer:
        count = self.request.count or DEFAULT_COUNT
        by_words = list(self._by_words(count * FUSION_DEPTH))
        by_meaning = self._by_meaning(count * FUSION_DEPTH)
        mode = Mode.BM25 if by_meaning is None else Mode.HYBRID
        hits = by_words[:count] if by_meaning is None else _both(by_words, by_meaning, count)
        found = tuple(one for hit in hits for one in self._found(hit))
        return NoteAnswer(
            project=self.project, mode=mode, state=self.survey.state, count=count, found=found, notes=tuple(self.notes)
        )

    # --- words -------------------------------------------------------------------------------------------------------

    def _by_words(self, count: int) -> Iterator[Hit]:
        """Yield the best notes by words, in the application's order; its scores are lower the better, these higher."""
        db = self.survey.memory.db
        match = " ".join('"' + word.replace('"', '""') + '"' for word in words(self.request.query))
        rows = db.execute(
            f"""SELECT n.id, n.project_id, -bm25({FULL_TEXT})
                  FROM {FULL_TEXT} JOIN {NOTES} n ON n.rowid = {FULL_TEXT}.rowid
                 WHERE {FULL_TEXT} MATCH :match AND n.searchable = 1 AND (:project IS NULL OR n.project_id = :project)
                 ORDER BY bm25({FULL_TEXT}), n.importance DESC, n.created_at DESC, n.rowid LIMIT :count""",
            {"match": match, "project": self.project, "count": count},
        )
        # Where an index counts next to nothing, its ranks are none.
        yield from (_hit(str(note), str(project), score or 0.0) for note, project, score in rows)

    # --- meaning -----------------------------------------------------------------------------------------------------

    def _by_meaning(self, count: int) -> list[Hit] | None:
        """Return the nearest notes; None, with a note that says why, where nobody can tell."""
        wanted = self.request.vector is not None or self.request.embed is not None
        if self.request.mode is Mode.BM25 or (self.request.mode is None and not wanted):
            return None
        obstacle = self._obstacle()
        if obstacle is None:
            try:
                hits = list(self._nearest(self._vector(), count))
            except (NoVector, SidecarUnreadable) as error:
                obstacle = str(error)
            else:
                self._say_who_is_missing()
                return hits
        self.notes.append(tr("searched by words alone: {obstacle}", obstacle=obstacle))
        return None

    def _obstacle(self) -> str | None:
        """Return what is in the way of meaning, by the database's state."""
        told = health.obstacle(self.survey)
        if told is None and (self.survey.memory.vectors is None or not self._counts().ready):
            told = tr("no note has its vector")
        if told is not None:
            return told
        if self.request.vector is None and self.request.embed is None:
            return tr("there is no vector of the query; --vector or --embedder gives one")
        return None

    def _counts(self) -> Counts:
        """Return the counts of the notes that are searched."""
        return self.survey.total if self.project is None else self.survey.counts.get(self.project, Counts())

    def _vector(self) -> bytes:
        """Return the query's vector as the sidecar compares it."""
        memory, numbers = self.survey.memory, self.request.vector
        assert memory.vectors is not None
        meta = memory.vectors.meta
        if numbers is None:
            assert self.request.embed is not None
            numbers = self.request.embed(meta.model_id)
        if len(numbers) != meta.dimensions:
            raise NoVector(
                tr(
                    "the query's vector has {numbers} dimensions, those of the notes have {dimensions}",
                    numbers=len(numbers),
                    dimensions=meta.dimensions,
                )
            )
        blob = vector_blob(numbers)
        if not any(blob):
            raise NoVector(tr("the query's vector is all zeros, which is near to nothing"))
        return blob

    def _nearest(self, vector: bytes, count: int) -> Iterator[Hit]:
        """Yield the notes that are ready and nearest by cosine; of equally near ones the one that was written first."""
        best = heapq.nsmallest(count, self._distances(vector), key=lambda one: (one[0], one[1].rowid))
        yield from (_hit(note.id, note.project, 1 - distance) for distance, note in best)

    def _distances(self, vector: bytes) -> Iterator[tuple[float, Note]]:
        memory = self.survey.memory
        assert memory.vectors is not None
        ready = (note for note in memory.notes.judged(self.project) if note.status is Status.READY)
        while group := list(islice(ready, _AT_ONCE)):
            distances = memory.vectors.distances([note.id for note in group], vector)
            yield from ((distances[note.id], note) for note in group if note.id in distances)

    def _say_who_is_missing(self) -> None:
        counts = self._counts()
        missing = {"pending": counts.pending, "stale": counts.stale, "failed": counts.failed}
        if any(missing.values()):
            message = join_list(f"{number:,} {name}" for name, number in missing.items() if number)
            number = format_count(sum(missing.values()), "note")
            self.notes.append(
                tr("{number} could be found by words alone ({message_})", number=number, message_=message)
            )

    # --- both --------------------------------------------------------------------------------------------------------

    def _found(self, hit: Hit) -> Iterator[Found]:
        """Yield a hit with its text; a note that was deleted meanwhile is none."""
        db = self.survey.memory.db
        for kind, status, *texts in db.execute(f"SELECT {_COLUMNS} FROM {NOTES} n WHERE n.id = ?", (hit.unit_id,)):
            title, content = (make_text_decoder(db)(raw) or "" for raw in texts)
            yield Found(hit=replace(hit, text=f"{title}\n\n{content}"), title=title, type=str(kind), status=str(status))


def _hit(note: str, project: str, score: float) -> Hit:
    return Hit(unit_id=note, material_id=project, relative_path=None, unit_index=0, text="", score=score)


def _both(by_words: list[Hit], by_meaning: Iterable[Hit], count: int) -> list[Hit]:
    """Return the ``count`` best of both by reciprocal rank; nothing that words find is lost that need not be.

    Where words find fewer than ``count`` notes, all of them are among the hits, else the better half of the hits that
    words alone would give. Of equal ranks the one by words comes first.
    """
    ranked = fused(by_words, by_meaning, 0.5)
    kept = {hit.unit_id for hit in by_words[: count if len(by_words) < count else (count + 1) // 2]}
    others = (hit.unit_id for hit in ranked if hit.unit_id not in kept)
    chosen = kept | set(islice(others, count - len(kept)))
    return [hit for hit in ranked if hit.unit_id in chosen]
