"""Health of the vector search of a codex-mem database: eight states, and signals for details.

States and signals follow an upstream draft; ``docs/formats/codex_mem.md``, "Health", defines their precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec import Struct

from regraft.disk import sqlite
from regraft.formats.codex_mem import database as codex_mem_database
from regraft.formats.codex_mem import sidecar
from regraft.formats.codex_mem.database import CONTENT_VERSION, NOTES, NoteReader, StatusCounts, sum_counts
from regraft.formats.codex_mem.sidecar import SidecarMeta, SidecarOfOtherVersion, SidecarUnreadable, SidecarVectors
from regraft.identity import replace
from regraft.language import tr
from regraft.stores.systems import SidecarProblem


class HealthState(StrEnum):
    """A health state; the values are those of the draft."""

    DISABLED = "disabled"
    READY = "ready"
    MISSING = "degraded_missing_index"
    REBUILDING = "rebuilding"
    INCOMPATIBLE = "degraded_incompatible_index"
    FAILED = "degraded_failed_embeddings"
    STALE = "degraded_stale_embeddings"
    PARTIAL = "degraded_partial_coverage"


#: States in which vectors are not used.
WORDS_ONLY_STATES = (HealthState.DISABLED, HealthState.MISSING, HealthState.REBUILDING, HealthState.INCOMPATIBLE)


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """An open database of codex-mem with its sidecar, the file with the vectors.

    ``problem`` is the reason if the sidecar exists but cannot be used.
    """

    db: apsw.Connection
    notes: NoteReader
    #: None if the sidecar is missing, unreadable, or has another layout.
    vectors: SidecarVectors | None
    is_present: bool
    #: Whether the sidecar can be read at all.
    is_readable: bool
    problem: str | None
    #: Layout version of the sidecar; None if the sidecar is missing or has no version.
    sidecar_version: int | None = None

    @property
    def meta(self) -> SidecarMeta | None:
        """The identity row of the sidecar; None if there is no usable sidecar."""
        return None if self.vectors is None else self.vectors.meta

    @property
    def columns(self) -> list[str]:
        """The columns of migration 006 that the database has."""
        return codex_mem_database.list_migrated_columns(self.db)


@contextmanager
def open_memory(database: Path) -> Iterator[Memory]:
    """Open a database and its sidecar for reading, leaving no files behind.

    Raises:
        apsw.Error, OSError: the database cannot be read. An unreadable sidecar is a health state, not an error.
    """
    sidecar_file = codex_mem_database.sidecar_path(database)
    with ExitStack() as stack:
        db = stack.enter_context(sqlite.open_readonly(database, beside_writers=True))
        vectors, problem, is_readable, version = None, None, True, None
        try:
            vectors = SidecarVectors(*stack.enter_context(sidecar.open_sidecar(sidecar_file)))
            version = vectors.meta.version
        except FileNotFoundError:
            pass
        except SidecarProblem as error:
            problem, is_readable = str(error), not isinstance(error, SidecarUnreadable)
            version = error.version if isinstance(error, SidecarOfOtherVersion) else None
        yield Memory(
            db=db,
            notes=NoteReader(db, vectors),
            vectors=vectors,
            is_present=sidecar_file.is_file(),
            is_readable=is_readable,
            problem=problem,
            sidecar_version=version,
        )


def find_incompatibility(memory: Memory) -> str | None:
    """Describe why none of the sidecar's vectors can be used for the notes; None if some can.

    Raises:
        SidecarUnreadable: the sidecar is damaged.
        apsw.Error, UnicodeDecodeError: the database is damaged.
    """
    vectors = memory.vectors
    if vectors is None:
        return memory.problem
    stored = vectors.count()
    matching_size, matching_version = vectors.count_fitting(CONTENT_VERSION)
    if stored and not matching_size:
        return tr("no vector has the stated {dimensions} dimensions", dimensions=vectors.meta.dimensions or "unknown")
    if stored and not matching_version:
        return tr("its vectors were computed from texts built by another rule")
    return _find_model_mismatch(memory, vectors.meta.model_id)


def _find_model_mismatch(memory: Memory, model: str) -> str | None:
    """Describe the problem if the notes with a vector name only other models than ``model``, the sidecar's.

    None if there is none.
    """
    if not {"embedding_status", "embedding_model_id"} <= set(memory.columns):
        return None
    row: Any = memory.db.execute(
        f"""SELECT count(*), total(n.embedding_model_id = ?), min(n.embedding_model_id) FROM {NOTES} n
             WHERE n.embedding_status = 'ready' AND {codex_mem_database.eligible_sql(memory.db, "n")}""",
        (model,),
    ).fetchone()
    ready, of_model, other = row
    if not ready or of_model:
        return None
    return tr("its vectors are of {model}, those of the notes of {other}", model=model, other=other or tr("no model"))


class NoteSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """State of a database of notes; ``counts`` are by project id."""

    memory: Memory
    state: HealthState
    counts: dict[str, StatusCounts]
    #: Number of vectors without a note; None if the sidecar cannot be read.
    gone: int | None

    @property
    def total(self) -> StatusCounts:
        """Number of notes by status, of all projects."""
        return sum_counts(self.counts.values())


def survey_notes(memory: Memory, each: Callable[[], None] | None = None) -> NoteSurvey:
    """Compute the status of every note and the overall state.

    If the sidecar turns out to be damaged, the survey is repeated without it, and its ``memory`` has no vectors.

    Args:
        memory: the open database.
        each: called once for every note.

    Raises:
        apsw.Error, UnicodeDecodeError: the database is damaged.
    """
    try:
        return _count_notes(memory, each)
    except SidecarUnreadable as error:
        blind = replace(memory, notes=NoteReader(memory.db), vectors=None, is_readable=False, problem=str(error))
        return _count_notes(blind, each)


def _count_notes(memory: Memory, each: Callable[[], None] | None) -> NoteSurvey:
    """Count the notes by status and the vectors whose note no longer exists; ``each`` is called for every note."""
    before = _state_before_counting(memory)
    counts = memory.notes.counts(each)
    summed = sum_counts(counts.values())
    gone = None if memory.vectors is None else memory.vectors.count() - summed.held
    return NoteSurvey(memory=memory, state=_determine_state(before, summed), counts=counts, gone=gone)


def _state_before_counting(memory: Memory) -> HealthState | None:
    """Return the health state that files and columns alone determine, or None if the notes decide."""
    if not memory.is_present and not memory.columns:
        return HealthState.DISABLED
    if not memory.is_present or not memory.is_readable:
        return HealthState.MISSING
    if memory.meta is not None and memory.meta.is_rebuilding:
        return HealthState.REBUILDING
    return HealthState.INCOMPATIBLE if find_incompatibility(memory) is not None else None


def _determine_state(before: HealthState | None, counts: StatusCounts) -> HealthState:
    """Return the health state: the one that was known before counting, else the one that the counts show."""
    if before is HealthState.MISSING and not counts.eligible:
        return HealthState.READY  # no note needs a vector
    of_notes = (
        (HealthState.FAILED, counts.failed),
        (HealthState.STALE, counts.stale),
        (HealthState.PARTIAL, counts.pending),
    )
    return before or next((state for state, number in of_notes if number), HealthState.READY)


def find_obstacle(survey: NoteSurvey) -> str | None:
    """Return why vectors cannot be used at present, for messages; None if they can.

    Raises:
        SidecarUnreadable: the sidecar is damaged.
        apsw.Error, UnicodeDecodeError: the database is damaged.
    """
    memory = survey.memory
    if survey.state is HealthState.INCOMPATIBLE:
        return tr("the vector file does not match the notes: {incompatible}", incompatible=find_incompatibility(memory))
    return {
        HealthState.DISABLED: tr("no note has ever been embedded"),
        HealthState.MISSING: tr(
            "the vector file cannot be used: {problem}", problem=memory.problem or tr("there is none")
        ),
        HealthState.REBUILDING: tr("a rebuild of the vectors was started and is not complete"),
    }.get(survey.state)


class Signals(Struct, frozen=True, kw_only=True):
    """Signals of the draft; None if the files do not tell."""

    state: str
    retrieval_mode: str
    semantic_enabled: bool
    #: Setting of the application, not stored in the files.
    implicit_resurfacing: bool | None = None
    model_id: str | None
    dimensions: int | None
    eligible: int
    ready: int
    pending: int
    stale: int
    failed: int
    excluded: int
    not_applicable: int
    sidecar_present: bool
    sidecar_compatible: bool | None
    sidecar_version: int | None
    orphans: int | None
    last_backfill: str | None
    last_rebuild: str | None


def collect_signals(survey: NoteSurvey) -> Signals:
    """Compute the signals of a database's health, which the upstream draft defines.

    Raises:
        apsw.Error, UnicodeDecodeError: the database is damaged.
    """
    memory, state, counts, meta = survey.memory, survey.state, survey.total, survey.memory.meta
    is_hybrid = state not in WORDS_ONLY_STATES and counts.ready > 0
    is_compatible = memory.vectors is not None and state is not HealthState.INCOMPATIBLE
    return Signals(
        state=state.value,
        retrieval_mode="hybrid" if is_hybrid else "lexical",
        semantic_enabled=state is not HealthState.DISABLED,
        model_id=_find_usual_model(memory) if meta is None else meta.model_id,
        dimensions=None if meta is None else meta.dimensions,
        eligible=counts.eligible,
        ready=counts.ready,
        pending=counts.pending,
        stale=counts.stale,
        failed=counts.failed,
        excluded=counts.excluded,
        not_applicable=counts.not_applicable,
        sidecar_present=memory.is_present,
        sidecar_compatible=is_compatible if memory.is_present else None,
        sidecar_version=memory.sidecar_version,
        orphans=None if survey.gone is None else survey.gone + counts.orphaned,
        last_backfill=None if meta is None else meta.backfilled_at,
        last_rebuild=None if meta is None else meta.rebuilt_at,
    )


def _find_usual_model(memory: Memory) -> str | None:
    """Return the model that most notes name, or None."""
    if "embedding_model_id" not in memory.columns:
        return None
    model = memory.db.execute(
        f"""SELECT embedding_model_id FROM {NOTES} WHERE embedding_model_id IS NOT NULL
             GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 1"""
    ).get
    return None if model is None else str(model)
