"""Search in codex-mem notes: by words as the application does, and by meaning if vectors are available.

If vectors cannot be used, the word results are returned unchanged, with a note that gives the reason
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
from regraft.formats.codex_mem.database import FULL_TEXT, NOTES, Note, NoteStatus, StatusCounts
from regraft.formats.codex_mem.health import HealthState, NoteSurvey
from regraft.formats.codex_mem.sidecar import SidecarUnreadable
from regraft.formats.vector_table import make_text_decoder
from regraft.identity import replace
from regraft.language import format_count, join_list, tr
from regraft.ranking.cherry_v2 import Embed, Mode, NoVector
from regraft.report.labels import format_labeled_count

#: The application's default number of hits.
DEFAULT_COUNT = 5
#: White space as defined by Go, in which the application is written; Python's definition is wider.
_WHITE_SPACE = re.compile("[\t\n\v\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
#: Vectors compared per query.
_AT_ONCE = 500
_COLUMNS = "n.type, n.status, CAST(n.title AS BLOB), CAST(n.content AS BLOB)"


class NoteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A search request. ``mode`` None: hybrid if the query has a vector or an embedder, else by words."""

    query: str
    project: str | None = None
    mode: Mode | None = None
    count: int | None = None
    vector: tuple[float, ...] | None = None
    embed: Embed | None = None


class NoteMatch(msgspec.Struct, frozen=True, kw_only=True):
    """A note that was found. In ``hit``, the unit is the note and the material its project."""

    hit: Hit
    title: str
    type: str
    status: str


class NoteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a search: notes, best first, and messages for the user."""

    project: str | None
    mode: Mode
    state: HealthState
    count: int
    found: tuple[NoteMatch, ...]
    notes: tuple[str, ...]


def split_query(query: str) -> list[str]:
    """Split a query at white space, as the application does."""
    return [word for word in _WHITE_SPACE.split(query) if word]


def search(database: Path, request: NoteRequest) -> NoteAnswer:
    """Search the notes of one project or of all.

    Raises:
        ProjectUnknown: the project does not exist.
        QueryWithoutWord: the query is blank.
        SourceUnreadable: the database is damaged.
    """
    if not split_query(request.query):
        raise QueryWithoutWord
    try:
        with health.open_memory(database) as memory:
            projects = codex_mem_database.read_projects(memory.db)
            project = (
                request.project
                if request.project is None
                else codex_mem_database.find_project_id(projects, request.project)
            )
            if project is None and request.project is not None:
                raise ProjectUnknown(base=request.project, known=join_list(projects) or "none")
            return _Search(health.survey_notes(memory), project, request).answer()
    except (apsw.Error, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=database, reason=error) from error


class _Search(msgspec.Struct):
    """A single search."""

    survey: NoteSurvey
    project: str | None
    request: NoteRequest
    notes: list[str] = msgspec.field(default_factory=list)

    def answer(self) -> NoteAnswer:
        """Run the search."""
        count = self.request.count or DEFAULT_COUNT
        by_words = list(self._search_words(count * FUSION_DEPTH))
        by_meaning = self._search_vectors(count * FUSION_DEPTH)
        mode = Mode.BM25 if by_meaning is None else Mode.HYBRID
        hits = by_words[:count] if by_meaning is None else _combine(by_words, by_meaning, count)
        found = tuple(one for hit in hits for one in self._load_match(hit))
        return NoteAnswer(
            project=self.project, mode=mode, state=self.survey.state, count=count, found=found, notes=tuple(self.notes)
        )

    # --- words -------------------------------------------------------------------------------------------------------

    def _search_words(self, count: int) -> Iterator[Hit]:
        """Yield the best ``count`` notes by words, in the application's order.

        Scores are negated bm25: higher is better.
        """
        db = self.survey.memory.db
        match = " ".join('"' + word.replace('"', '""') + '"' for word in split_query(self.request.query))
        rows = db.execute(
            f"""SELECT n.id, n.project_id, -bm25({FULL_TEXT})
                  FROM {FULL_TEXT} JOIN {NOTES} n ON n.rowid = {FULL_TEXT}.rowid
                 WHERE {FULL_TEXT} MATCH :match AND n.searchable = 1 AND (:project IS NULL OR n.project_id = :project)
                 ORDER BY bm25({FULL_TEXT}), n.importance DESC, n.created_at DESC, n.rowid LIMIT :count""",
            {"match": match, "project": self.project, "count": count},
        )
        # bm25 may be NULL in a damaged index.
        yield from (_hit(str(note), str(project), score or 0.0) for note, project, score in rows)

    # --- meaning -----------------------------------------------------------------------------------------------------

    def _search_vectors(self, count: int) -> list[Hit] | None:
        """Return the ``count`` notes nearest to the query's vector; None if vectors are not searched.

        If they were to be searched and cannot be, a message in the result gives the reason.
        """
        wanted = self.request.vector is not None or self.request.embed is not None
        if self.request.mode is Mode.BM25 or (self.request.mode is None and not wanted):
            return None
        obstacle = self._find_obstacle()
        if obstacle is None:
            try:
                distances = self._distances(self._vector())
                # Of equally near notes, the oldest come first.
                best = heapq.nsmallest(count, distances, key=lambda one: (one[0], one[1].rowid))
                hits = [_hit(note.id, note.project, 1 - distance) for distance, note in best]
            except (NoVector, SidecarUnreadable) as error:
                obstacle = str(error)
            else:
                self._note_missing_vectors()
                return hits
        self.notes.append(tr("searched by words only: {obstacle}", obstacle=obstacle))
        return None

    def _find_obstacle(self) -> str | None:
        """Return why vectors cannot be searched, as a text for the user, or None if they can."""
        reason = health.find_obstacle(self.survey)
        if reason is None and (self.survey.memory.vectors is None or not self._counts().ready):
            reason = tr("no note has a current vector")
        if reason is not None:
            return reason
        if self.request.vector is None and self.request.embed is None:
            return tr("the query has no vector; use --vector or --embedder")
        return None

    def _counts(self) -> StatusCounts:
        """Return how many of the notes to search have each status of their vector."""
        return self.survey.total if self.project is None else self.survey.counts.get(self.project, StatusCounts())

    def _vector(self) -> bytes:
        """Return the query's vector, given or embedded, in the format of the sidecar, regraft's file of vectors.

        Raises:
            NoVector: it has other dimensions than the notes' vectors, or is all zeros.
        """
        memory, numbers = self.survey.memory, self.request.vector
        assert memory.vectors is not None
        meta = memory.vectors.meta
        if numbers is None:
            assert self.request.embed is not None
            numbers = self.request.embed(meta.model_id)
        if len(numbers) != meta.dimensions:
            raise NoVector(
                tr(
                    "the query's vector has {numbers} dimensions, but the notes' vectors have {dimensions}",
                    numbers=len(numbers),
                    dimensions=meta.dimensions,
                )
            )
        blob = vector_blob(numbers)
        if not any(blob):
            raise NoVector(tr("the query's vector is all zeros, so it is similar to nothing"))
        return blob

    def _distances(self, vector: bytes) -> Iterator[tuple[float, Note]]:
        """Yield (distance from ``vector``, note) of the notes to search that have a current vector."""
        memory = self.survey.memory
        assert memory.vectors is not None
        ready = (note for note in memory.notes.iterate(self.project) if note.status is NoteStatus.READY)
        while group := list(islice(ready, _AT_ONCE)):
            distances = memory.vectors.distances([note.id for note in group], vector)
            yield from ((distances[note.id], note) for note in group if note.id in distances)

    def _note_missing_vectors(self) -> None:
        """Note how many notes without a current vector could be found by words only."""
        counts = self._counts()
        missing = {"pending": counts.pending, "stale": counts.stale, "failed": counts.failed}
        if any(missing.values()):
            message = join_list(format_labeled_count(number, name) for name, number in missing.items() if number)
            number = format_count(sum(missing.values()), "note")
            self.notes.append(tr("{number} could be found by words only ({what})", number=number, what=message))

    # --- both --------------------------------------------------------------------------------------------------------

    def _load_match(self, hit: Hit) -> Iterator[NoteMatch]:
        """Yield the hit's note with its texts; nothing if the note has been deleted."""
        db = self.survey.memory.db
        for kind, status, *texts in db.execute(f"SELECT {_COLUMNS} FROM {NOTES} n WHERE n.id = ?", (hit.unit_id,)):
            title, content = (make_text_decoder(db)(raw) or "" for raw in texts)
            yield NoteMatch(
                hit=replace(hit, text=f"{title}\n\n{content}"), title=title, type=str(kind), status=str(status)
            )


def _hit(note: str, project: str, score: float) -> Hit:
    """Build a hit for a note, given by its id and that of its project."""
    return Hit(unit_id=note, material_id=project, relative_path=None, unit_index=0, text="", score=score)


def _combine(by_words: list[Hit], by_meaning: Iterable[Hit], count: int) -> list[Hit]:
    """Combine hits by words and by vector by reciprocal rank; return the best ``count``, keeping the best word hits.

    If words find fewer than ``count`` notes, all of them are kept, otherwise the first half of ``count``. Of equal
    ranks the word hit comes first.
    """
    ranked = fused(by_words, by_meaning, 0.5)
    kept = {hit.unit_id for hit in by_words[: count if len(by_words) < count else (count + 1) // 2]}
    others = (hit.unit_id for hit in ranked if hit.unit_id not in kept)
    chosen = kept | set(islice(others, count - len(kept)))
    return [hit for hit in ranked if hit.unit_id in chosen]
