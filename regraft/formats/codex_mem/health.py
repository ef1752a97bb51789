"""How well codex-mem's notes can be found by meaning: eight states, and the signals behind them.

The states and signals are those of an upstream draft; which state comes before which is fixed in
``docs/formats/codex_mem.md``, "Health".
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
from regraft.formats.codex_mem.database import CONTENT_VERSION, NOTES, Counts, Notes, total
from regraft.formats.codex_mem.sidecar import Meta, SidecarOfOtherVersion, SidecarUnreadable, Vectors
from regraft.identity import replace
from regraft.language import tr
from regraft.stores.systems import SidecarProblem


class State(StrEnum):
    """A health state; the values are the draft's words."""

    DISABLED = "disabled"
    READY = "ready"
    MISSING = "degraded_missing_index"
    REBUILDING = "rebuilding"
    INCOMPATIBLE = "degraded_incompatible_index"
    FAILED = "degraded_failed_embeddings"
    STALE = "degraded_stale_embeddings"
    PARTIAL = "degraded_partial_coverage"


#: States in which no vector is looked at.
WORDS_ONLY = (State.DISABLED, State.MISSING, State.REBUILDING, State.INCOMPATIBLE)


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """An open database with what can be used of its sidecar.

    ``problem`` says why a sidecar that is there cannot be used, and is None where it can be.
    """

    db: apsw.Connection
    notes: Notes
    #: None where the sidecar is missing, cannot be read, or is of another layout.
    vectors: Vectors | None
    is_present: bool
    #: Whether it can be read at all.
    is_readable: bool
    problem: str | None
    #: The version of the sidecar's layout; None where there is none, or it states none.
    sidecar_version: int | None = None

    @property
    def meta(self) -> Meta | None:
        """Return what the sidecar says of itself."""
        return None if self.vectors is None else self.vectors.meta

    @property
    def columns(self) -> list[str]:
        """Return which columns of migration 006 there are."""
        return codex_mem_database.columns_there(self.db)


@contextmanager
def opened(database: Path) -> Iterator[Memory]:
    """Open a database and its sidecar for reading, without a trace.

    Raises:
        apsw.Error, OSError: the database cannot be read. A sidecar that cannot be is a state.
    """
    place = codex_mem_database.sidecar_of(database)
    with ExitStack() as stack:
        db = stack.enter_context(sqlite.open_readonly(database, beside_writers=True))
        vectors, problem, is_readable, version = None, None, True, None
        try:
            vectors = Vectors(*stack.enter_context(sidecar.reading(place)))
            version = vectors.meta.version
        except FileNotFoundError:
            pass
        except SidecarProblem as error:
            problem, is_readable = str(error), not isinstance(error, SidecarUnreadable)
            version = error.version if isinstance(error, SidecarOfOtherVersion) else None
        yield Memory(
            db=db,
            notes=Notes(db, vectors),
            vectors=vectors,
            is_present=place.is_file(),
            is_readable=is_readable,
            problem=problem,
            sidecar_version=version,
        )


def incompatible(memory: Memory) -> str | None:
    """Return why the vectors of a sidecar are of no use to the notes as they are, None where they may be.

    A vector or a note that differs by itself is stale, or is embedded anew; only where none fits has the whole to go.

    Raises:
        SidecarUnreadable: the sidecar is damaged.
        apsw.Error, UnicodeDecodeError: the database is damaged.
    """
    vectors = memory.vectors
    if vectors is None:
        return memory.problem
    there = vectors.count()
    of_size, of_version = vectors.fitting(CONTENT_VERSION)
    if there and not of_size:
        return tr(
            "none of its vectors has its {dimensions} dimensions", dimensions=vectors.meta.dimensions or "unknown"
        )
    if there and not of_version:
        return tr("its vectors are of texts that were made by another rule")
    return _of_other_model(memory, vectors.meta.model_id)


def _of_other_model(memory: Memory, model: str) -> str | None:
    """Say so where notes that are ready name other models than that of the vectors, all of them."""
    if not {"embedding_status", "embedding_model_id"} <= set(memory.columns):
        return None
    row: Any = memory.db.execute(
        f"""SELECT count(*), total(n.embedding_model_id = ?), min(n.embedding_model_id) FROM {NOTES} n
             WHERE n.embedding_status = 'ready' AND {codex_mem_database.eligible(memory.db, "n")}""",
        (model,),
    ).fetchone()
    ready, of_model, other = row
    if not ready or of_model:
        return None
    return tr("its vectors are of {model}, those of the notes of {other}", model=model, other=other or tr("no model"))


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """What the notes of a database come to; ``counts`` by the ids of their projects."""

    memory: Memory
    state: State
    counts: dict[str, Counts]
    #: Vectors of the sidecar of which no note is; None where it cannot be read.
    gone: int | None

    @property
    def total(self) -> Counts:
        """Return the counts of all projects."""
        return total(self.counts.values())


def survey(memory: Memory, each: Callable[[], None] | None = None) -> Survey:
    """Judge every note, and the whole.

    A sidecar that turns out to be damaged is one that cannot be read: the survey's own ``memory`` has none then.

    Args:
        memory: the open database.
        each: called once for every note.

    Raises:
        apsw.Error, UnicodeDecodeError: the database is damaged.
    """
    try:
        return _survey(memory, each)
    except SidecarUnreadable as error:
        blind = replace(memory, notes=Notes(memory.db), vectors=None, is_readable=False, problem=str(error))
        return _survey(blind, each)


def _survey(memory: Memory, each: Callable[[], None] | None) -> Survey:
    before = _state_before_counting(memory)
    counts = memory.notes.counts(each)
    summed = total(counts.values())
    gone = None if memory.vectors is None else memory.vectors.count() - summed.held
    return Survey(memory=memory, state=_state(before, summed), counts=counts, gone=gone)


def _state_before_counting(memory: Memory) -> State | None:
    """Return the state that does not depend on single notes; None where only they tell."""
    if not memory.is_present and not memory.columns:
        return State.DISABLED
    if not memory.is_present or not memory.is_readable:
        return State.MISSING
    if memory.meta is not None and memory.meta.is_rebuilding:
        return State.REBUILDING
    return State.INCOMPATIBLE if incompatible(memory) is not None else None


def _state(before: State | None, counts: Counts) -> State:
    if before is State.MISSING and not counts.eligible:
        return State.READY  # nothing is missing of nothing
    of_notes = ((State.FAILED, counts.failed), (State.STALE, counts.stale), (State.PARTIAL, counts.pending))
    return before or next((state for state, number in of_notes if number), State.READY)


def obstacle(found: Survey) -> str | None:
    """Return why no vector can be used as things are, for a person; None where the state is none of those.

    Raises:
        SidecarUnreadable: the sidecar is damaged.
        apsw.Error, UnicodeDecodeError: the database is damaged.
    """
    memory = found.memory
    if found.state is State.INCOMPATIBLE:
        return tr("the file of vectors does not fit: {incompatible}", incompatible=incompatible(memory))
    return {
        State.DISABLED: tr("no note has ever been given a vector"),
        State.MISSING: tr("the file of vectors is of no use: {problem}", problem=memory.problem or tr("there is none")),
        State.REBUILDING: tr("a rebuild of the vectors was begun and is not at its end"),
    }.get(found.state)


class Signals(Struct, frozen=True, kw_only=True):
    """The draft's signals of search by meaning, None for what nobody can know from the files."""

    state: str
    retrieval_mode: str
    semantic_enabled: bool
    #: A setting of the application.
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


def signals(found: Survey) -> Signals:
    """Return the draft's signals.

    Raises:
        apsw.Error, UnicodeDecodeError: the database is damaged.
    """
    memory, state, counts, meta = found.memory, found.state, found.total, found.memory.meta
    is_hybrid = state not in WORDS_ONLY and counts.ready > 0
    is_compatible = memory.vectors is not None and state is not State.INCOMPATIBLE
    return Signals(
        state=state.value,
        retrieval_mode="hybrid" if is_hybrid else "lexical",
        semantic_enabled=state is not State.DISABLED,
        model_id=_usual_model(memory) if meta is None else meta.model_id,
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
        orphans=None if found.gone is None else found.gone + counts.astray,
        last_backfill=None if meta is None else meta.backfilled_at,
        last_rebuild=None if meta is None else meta.rebuilt_at,
    )


def _usual_model(memory: Memory) -> str | None:
    """Return the model that most notes name."""
    if "embedding_model_id" not in memory.columns:
        return None
    model = memory.db.execute(
        f"""SELECT embedding_model_id FROM {NOTES} WHERE embedding_model_id IS NOT NULL
             GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 1"""
    ).get
    return None if model is None else str(model)
