"""The notes of a project of codex-mem as texts to be embedded: the vector first, what the note says of it after.

A run that is killed between the two leaves a vector that no note tells of; it is found by its text, and not paid for
again (``docs/formats/codex_mem.md``, "Writing").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft import clock, sqlite, untouched
from regraft.embedders.checking import unfit
from regraft.formats.codex_mem import database as codex_mem_database
from regraft.formats.codex_mem import sidecar
from regraft.formats.codex_mem.database import CONTENT_VERSION, NOTES
from regraft.formats.codex_mem.notes import Note, Notes, Status
from regraft.formats.codex_mem.sidecar import Meta, Vectors
from regraft.language import tr
from repair.backfill.scope import Lacking, Survey, Written
from repair.changes.incremental import IncrementalChange, writer
from repair.codex_mem import writing

#: How many keys are read at once: a query that is still open would keep others from writing.
_AT_ONCE = 1000
#: Which places of :class:`NotesScope` ``growing`` are of which file.
_SIDECAR, _DATABASE = 0, 1
_FAILED = f"""UPDATE {NOTES} SET embedding_eligible = 1, embedding_status = 'failed', embedding_model_id = :model,
     embedding_content_hash = :hash, embedding_content_version = :version, embedding_error_code = :code,
     embedding_error_at = :now
   WHERE id = :note AND searchable = 1"""
_VECTOR = f"""INSERT INTO {sidecar.TABLE} (note_id, content_hash, content_version, vector, embedded_at)
   VALUES (:note, :hash, :version, :vector, :now)
   ON CONFLICT (note_id) DO UPDATE SET content_hash = excluded.content_hash,
     content_version = excluded.content_version, vector = excluded.vector, embedded_at = excluded.embedded_at"""


class NotesScope:
    """The notes of one project; see :func:`opened`. Keys are the hashes of their texts."""

    def __init__(
        self,
        db: apsw.Connection,
        side: apsw.Connection | None,
        scratch: apsw.Connection,
        *,
        name: str,
        label: str,
        model_id: str,
        growing: Sequence[IncrementalChange],
    ) -> None:
        self._db = db
        self._side = side
        self._scratch = scratch
        self.name = name
        self.label = label
        self._model = model_id
        self._growing = growing
        self._meta: Meta | None = None
        self._notes = Notes(db)
        self._vectors: Vectors | None = None
        self._counts: Counter[Status] | None = None
        self._read_sidecar()

    def _read_sidecar(self) -> None:
        if self._side is not None:
            self._meta = sidecar.read_meta(self._side)
            self._vectors = Vectors(self._side, self._meta)
            self._notes = Notes(self._db, self._vectors)

    @property
    def dimensions(self) -> int | None:
        """Return what the sidecar says; None before the first vector."""
        return None if self._meta is None else self._meta.dimensions

    # --- what lacks a vector -----------------------------------------------------------------------------------------

    def survey(self) -> Survey:
        """See :class:`~repair.backfill.scope.Scope`; it counts notes, some of which may have the same text."""
        counts = self._looked()
        pending = counts[Status.PENDING] + counts[Status.FAILED]
        return Survey(
            ready=counts[Status.READY], pending=pending, stale=counts[Status.STALE], failed=counts[Status.FAILED]
        )

    def lacking(self) -> Iterator[str]:
        """See :class:`~repair.backfill.scope.Scope`."""
        self._looked()
        after: Any = ""
        query = f"SELECT DISTINCT hash FROM lacking WHERE hash > ? ORDER BY hash LIMIT {_AT_ONCE}"
        while keys := self._scratch.execute(query, (after,)).fetchall():
            yield from (str(key) for (key,) in keys)
            after = keys[-1][0]

    def _looked(self) -> Counter[Status]:
        """Count the notes by what they are, and list those that lack a vector: which notes a text is of."""
        # Whoever only looks sees what he saw at first.
        if self._counts is None or self._growing:
            counts = Counter[Status]()
            with sqlite.transaction(self._scratch):
                self._scratch.execute("DROP TABLE IF EXISTS lacking")
                self._scratch.execute(
                    "CREATE TABLE lacking (hash TEXT, note TEXT, PRIMARY KEY (hash, note)) WITHOUT ROWID"
                )
                self._scratch.executemany("INSERT INTO lacking VALUES (?, ?)", self._counted(counts))
            self._counts = counts
        return self._counts

    def _counted(self, counts: Counter[Status]) -> Iterator[tuple[str, str]]:
        for note in self._notes.judged(self.name):
            counts[note.status] += 1
            if _lacks(note):
                yield note.hash, note.id

    def _lacking(self, keys: Sequence[str]) -> list[Note]:
        """Return the notes of these texts that lack a vector now, as long as they have these texts."""
        if self._counts is None:
            self._looked()
        query = "SELECT note FROM lacking WHERE hash IN (SELECT value FROM json_each(?))"
        ids = [str(note) for (note,) in self._scratch.execute(query, (_json(keys),)).fetchall()]
        wanted = set(keys)
        return [note for note in self._notes.of(ids).values() if _lacks(note) and note.hash in wanted]

    def texts(self, keys: Sequence[str]) -> dict[str, Lacking]:
        """See :class:`~repair.backfill.scope.Scope`."""
        return {note.hash: Lacking(note.text, note.status is Status.STALE) for note in self._lacking(keys)}

    def vectors(self, keys: Sequence[str]) -> dict[str, bytes]:
        """See :class:`~repair.backfill.scope.Scope`: those of any note, and those that no note tells of."""
        if self._side is None or self._vectors is None:
            return {}
        found: dict[str, bytes] = {}
        query = f"""SELECT content_hash, note_id, vector FROM {sidecar.TABLE}
           WHERE content_hash IN (SELECT value FROM json_each(?)) AND content_version = ?"""
        rows: Any = self._side.execute(query, (_json(keys), CONTENT_VERSION)).fetchall()
        for key, note, vector in rows:
            held = None if key in found else self._vectors.of(note)
            if held is not None and held.flaw is None:
                found[str(key)] = vector
        return found

    # --- writing -----------------------------------------------------------------------------------------------------

    def write(self, vectors: Mapping[str, bytes], now_ms: int) -> Written:
        """Write vectors into the sidecar in one transaction, and in another what their notes say of them.

        Raises:
            AnswerUnfit: they are not as long as the others.
        """
        keys = list(vectors)
        if not self._lacking(keys):
            return Written(0, 0)
        now = clock.iso_time(now_ms)
        with self._writing(_SIDECAR, (sidecar.TABLE, "meta")) as side:
            # Whoever else writes vectors waits now: what he wrote before, of a text that is newer, stays.
            notes = self._lacking(keys)
            self._demand_length(side, set(map(len, vectors.values())))
            for note in notes:
                if not note.has_vector:
                    side.execute(_VECTOR, {**_of(note), "vector": vectors[note.hash], "now": now})
        if self.dimensions is None:
            self._read_sidecar()
        with self._writing(_DATABASE, (NOTES,)) as db:
            same = list(self._as_before(notes))
            writing.mark_ready(db, self._model, ((note.id, note.hash, now) for note in same))
        stale = sum(note.status is Status.STALE for note in same)
        return Written(len(same) - stale, stale)

    def _demand_length(self, side: apsw.Connection, lengths: set[int]) -> None:
        """Keep the length of vectors with the first ones, and refuse others."""
        first = max(lengths) // 4
        side.execute("UPDATE meta SET dimensions = ? WHERE dimensions IS NULL", (first,))
        stated: Any = side.execute("SELECT dimensions FROM meta").get
        if lengths != {4 * stated}:
            reason = tr(
                "vectors have {lengths:g} dimensions, and those of the sidecar {stated}",
                lengths=min(lengths) / 4,
                stated=stated,
            )
            raise unfit("wrong_dimensions", reason, embedder=self._model)

    def _as_before(self, notes: Sequence[Note]) -> Iterator[Note]:
        """Return those of the notes that nobody edited, excluded or deleted since they were looked at."""
        now = self._notes.of([note.id for note in notes])
        yield from (
            note for note in notes if note.id in now and now[note.id].is_eligible and now[note.id].hash == note.hash
        )

    def failed(self, key: str, code: str, now_ms: int) -> None:
        """Let the notes of a text say that it cannot be embedded."""
        with self._writing(_DATABASE, (NOTES,)) as db:
            # What another run embedded meanwhile did not fail.
            for note in self._lacking([key]):
                values = {**_of(note), "model": self._model, "code": code, "now": clock.iso_time(now_ms)}
                db.execute(_FAILED, values)

    def finished(self, now_ms: int, *, wrote: bool) -> None:
        """Let the sidecar say when it was filled last; a rebuild is at its end where no note lacks a vector."""
        assert self._meta is not None
        ends = self._meta.is_rebuilding and not any(map(_waits, self._notes.judged()))
        if not (wrote or ends):
            return
        now = clock.iso_time(now_ms)
        with self._writing(_SIDECAR, ("meta",)) as side:
            side.execute("UPDATE meta SET backfilled_at = ?", (now,))
            if ends:
                side.execute("UPDATE meta SET state = 'ready', rebuilt_at = ?", (now,))

    @contextmanager
    def _writing(self, place: int, tables: Sequence[str]) -> Iterator[apsw.Connection]:
        """Change one of the two files in one transaction, and record what takes that back."""
        db = self._side if place == _SIDECAR else self._db
        assert db is not None
        with self._growing[place].transaction(db, tables):
            yield db

    def sample(self, count: int) -> list[tuple[str, bytes]]:
        """See :class:`~repair.backfill.scope.Scope`; they lie all over the sidecar, and are always the same ones."""
        if self._side is None:
            return []
        row: Any = self._side.execute(f"SELECT min(rowid), max(rowid) FROM {sidecar.TABLE}").get
        low, high = row
        if low is None:
            return []
        found = {}
        for start in sorted({low + (high - low) * place // count for place in range(count)}):
            query = f"SELECT note_id, vector FROM {sidecar.TABLE} WHERE rowid >= ? ORDER BY rowid LIMIT 1"
            # A damaged file may have no row where it says that one is.
            near: list[Any] = self._side.execute(query, (start,)).fetchall()
            for note_id, vector in near:
                note = self._notes.of([note_id]).get(note_id)
                if note is not None and note.status is Status.READY:
                    found[note.text] = vector
        return list(found.items())


def _lacks(note: Note) -> bool:
    return note.is_eligible and note.status is not Status.READY


def _waits(note: Note) -> bool:
    """Tell whether a rebuild has to wait for a note; for one that failed it does not."""
    return _lacks(note) and note.status is not Status.FAILED


def _of(note: Note) -> dict[str, Any]:
    return {"note": note.id, "hash": note.hash, "version": CONTENT_VERSION}


def _json(keys: Sequence[str]) -> str:
    return msgspec.json.encode(keys).decode()


@contextmanager
def opened(
    database: Path,
    project: str,
    *,
    label: str,
    model_id: str,
    growing: Sequence[IncrementalChange] = (),
    anew: bool = False,
) -> Iterator[NotesScope]:
    """Open the notes of a project as a scope.

    Args:
        database: codex-mem's.
        project: its id.
        label: what a person calls it.
        model_id: what its vectors are of.
        growing: what records the changes of the sidecar and of the database; none: nothing is written.
        anew: as if there were no sidecar yet.

    Raises:
        SidecarProblem: the sidecar cannot be used.
        SchemaForeign: rows of either cannot be written without changing other rows.
        apsw.Error, OSError: one of both files cannot be read, or written.
    """
    with ExitStack() as stack:
        side: apsw.Connection | None = None
        place = codex_mem_database.sidecar_of(database)
        if growing:
            side, db = (stack.enter_context(writer(path)) for path in (place, database))
            sqlite.load_vectors(side)
            stack.enter_context(writing.metadata(db))
        else:
            db = stack.enter_context(sqlite.reading(database, beside_writers=True))
            if place.is_file() and not anew:
                side, _ = stack.enter_context(sidecar.reading(place))
        # What could not be written is not to be paid for.
        untouched.demand_own_rules(db, database, (codex_mem_database.NOTES,))
        if side is not None:
            untouched.demand_own_rules(side, place, (sidecar.TABLE,))
            untouched.demand_open_to_rows(side, place, sidecar.TABLE)
        scratch = stack.enter_context(sqlite.scratch())
        yield NotesScope(db, side, scratch, name=project, label=label, model_id=model_id, growing=growing)
