"""Which notes of codex-mem an embedder can fill, and what is done before (``docs/codex-mem.md``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.audit.findings import FOREIGN_COLUMN
from checks.codex_mem import findings as codex
from regraft import identity
from regraft.disk import sqlite, untrusted_sqlite
from regraft.embedders.protocol import unusable_answer
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import ModelDiffers, RegraftError, SchemaForeign, SidecarUnfit
from regraft.formats.codex_mem import database as codex_mem_database
from regraft.formats.codex_mem import sidecar
from regraft.formats.codex_mem.database import CONTENT_VERSION, NOTES, Note, Notes, Status
from regraft.formats.codex_mem.sidecar import Meta, Vectors
from regraft.language import tr
from regraft.stores.systems import SidecarProblem
from repair.changes.changesets import IncrementalChange, open_writer
from repair.changes.plan import Action, FileChange, Plan, Unresolved
from repair.changes.store import Store
from repair.codex_mem import note_changes, reconcile
from repair.embedding.scope import (
    BackfillOptions,
    FillTargets,
    PreparationStep,
    Scope,
    TextCounts,
    TextWithoutVector,
    WrittenCounts,
)
from repair.options import ReconcileOptions

# The notes of a project of codex-mem as texts to be embedded: the vector first, what the note says of it after.
#
# A run that is killed between the two leaves a vector that no note tells of; it is found by its text, and not paid for
# again (``docs/formats/codex_mem.md``, "Writing").


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

    def survey(self) -> TextCounts:
        """See :class:`~repair.embedding.scope.Scope`; it counts notes, some of which may have the same text."""
        counts = self._looked()
        pending = counts[Status.PENDING] + counts[Status.FAILED]
        return TextCounts(
            ready=counts[Status.READY], pending=pending, stale=counts[Status.STALE], failed=counts[Status.FAILED]
        )

    def lacking(self) -> Iterator[str]:
        """See :class:`~repair.embedding.scope.Scope`."""
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

    def texts(self, keys: Sequence[str]) -> dict[str, TextWithoutVector]:
        """See :class:`~repair.embedding.scope.Scope`."""
        return {note.hash: TextWithoutVector(note.text, note.status is Status.STALE) for note in self._lacking(keys)}

    def vectors(self, keys: Sequence[str]) -> dict[str, bytes]:
        """See :class:`~repair.embedding.scope.Scope`: those of any note, and those that no note tells of."""
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

    def write(self, vectors: Mapping[str, bytes], now_ms: int) -> WrittenCounts:
        """Write vectors into the sidecar in one transaction, and in another what their notes say of them.

        Raises:
            AnswerUnfit: they are not as long as the others.
        """
        keys = list(vectors)
        if not self._lacking(keys):
            return WrittenCounts(0, 0)
        now = identity.iso_time(now_ms)
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
            note_changes.mark_ready(db, self._model, ((note.id, note.hash, now) for note in same))
        stale = sum(note.status is Status.STALE for note in same)
        return WrittenCounts(len(same) - stale, stale)

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
            raise unusable_answer("wrong_dimensions", reason, embedder=self._model)

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
                values = {**_of(note), "model": self._model, "code": code, "now": identity.iso_time(now_ms)}
                db.execute(_FAILED, values)

    def finished(self, now_ms: int, *, wrote: bool) -> None:
        """Let the sidecar say when it was filled last; a rebuild is at its end where no note lacks a vector."""
        assert self._meta is not None
        ends = self._meta.is_rebuilding and not any(map(_waits, self._notes.judged()))
        if not (wrote or ends):
            return
        now = identity.iso_time(now_ms)
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
        """See :class:`~repair.embedding.scope.Scope`; they lie all over the sidecar, and are always the same ones."""
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
def open_notes_scope(
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
            side, db = (stack.enter_context(open_writer(path)) for path in (place, database))
            sqlite.load_vector_extension(side)
            stack.enter_context(note_changes.metadata_update(db))
        else:
            db = stack.enter_context(sqlite.open_readonly(database, beside_writers=True))
            if place.is_file() and not anew:
                side, _ = stack.enter_context(sidecar.reading(place))
        # What could not be written is not to be paid for.
        untrusted_sqlite.refuse_foreign_rules(db, database, (codex_mem_database.NOTES,))
        if side is not None:
            untrusted_sqlite.refuse_foreign_rules(side, place, (sidecar.TABLE,))
            untrusted_sqlite.refuse_restrictive_indexes(side, place, sidecar.TABLE)
        scratch = stack.enter_context(sqlite.open_scratch())
        yield NotesScope(db, side, scratch, name=project, label=label, model_id=model_id, growing=growing)


#: Why the notes of a project are left.
NOT_ASKED = tr("a project that was not asked for")


class NotesTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A project whose notes can be filled; ``database`` is codex-mem's, below the store's root."""

    base_id: str
    label: str
    database: str
    model_id: str
    #: As if there were no vectors yet: they are all made anew.
    anew: bool = False
    finding: str = codex.PENDING
    is_new: bool = False
    #: Whether a rebuild was begun that no run has told the sidecar the end of.
    is_unfinished: bool = False
    shares_with_itself: bool = True
    needs_dimensions: bool = False
    resolves: frozenset[str] = frozenset({codex.PENDING, codex.STALE, codex.FAILED})

    @property
    def files(self) -> tuple[str, ...]:
        """Return the sidecar and the database: a vector is written first, and what its note says of it after."""
        return codex_mem_database.sidecar_of(Path(self.database)).name, self.database

    def demand_fit(self, scope: Scope) -> None:
        """Do nothing: a sidecar that does not fit is no target."""

    def finish(self, root: Path, growing: Sequence[IncrementalChange], now_ms: int, *, wrote: bool) -> None:
        """Let the sidecar say so."""
        with self.opened(root, growing) as scope:
            scope.finished(now_ms, wrote=wrote)

    def finding_of(self, error: RegraftError) -> str | None:
        """Return the finding that keeps the notes from being written."""
        return FOREIGN_COLUMN if isinstance(error, SchemaForeign) else None

    def opened(self, root: Path, growing: Sequence[IncrementalChange] = ()) -> AbstractContextManager[NotesScope]:
        """Open its notes as a scope."""
        return open_notes_scope(
            root / self.database,
            self.base_id,
            label=self.label,
            model_id=self.model_id,
            growing=growing,
            anew=self.anew,
        )


class NotesFiller:
    """The notes of a database of codex-mem."""

    def models(self, store: Store, options: BackfillOptions) -> frozenset[str]:
        """Return the model of the sidecar; of one that is made anew, any will do."""
        meta = _meta(store, options)
        return frozenset() if meta is None else frozenset({meta.model_id})

    def targets(self, store: Store, settings: EmbedderSettings, options: BackfillOptions) -> FillTargets:
        """Return the projects that are meant.

        Raises:
            ModelDiffers: the sidecar holds vectors of another model.
            SidecarUnfit: it cannot be used.
        """
        meta = _filled(store, settings, options)
        _demand_model(store, settings, meta)
        follows = options.command == "reconcile"
        if follows and (meta is None or not _is_migrated(store)):
            # There is nothing to follow, and what is lacking is left with what mends it.
            return FillTargets((), (), (PreparationStep(_followed),))
        model = settings.model if meta is None else meta.model_id
        name = store.found.path.name
        anew = meta is None and options.command == "rebuild"
        meant, others = _projects(store, options)
        goes_on = meta is not None and meta.is_rebuilding
        targets = (
            NotesTarget(base_id=key, label=label, database=name, model_id=model, anew=anew, is_unfinished=goes_on)
            for key, label in meant
        )
        left = (
            Unresolved(finding=codex.PENDING, reason=f"{NOT_ASKED}: {label}", base=key, severity="note")
            for key, label in others
        )
        step = _followed if follows else partial(_prepared, settings=settings, model=model, options=options)
        return FillTargets(tuple(targets), tuple(left), (PreparationStep(step),))


def _demand_model(store: Store, settings: EmbedderSettings, meta: Meta | None) -> None:
    """Refuse an embedder of another model than the sidecar's.

    Raises:
        ModelDiffers
    """
    if meta is not None and not settings.serves(meta.model_id):
        reason = tr(
            "the vectors of {name} are of {model_id}; regraft rebuild makes all anew",
            name=store.found.path.name,
            model_id=meta.model_id,
        )
        raise ModelDiffers(embedder=settings.name, model=settings.model, reason=reason)


def _meta(store: Store, options: BackfillOptions) -> Meta | None:
    """Return what the sidecar that is to be filled says of itself; None where a new one is made.

    Raises:
        SidecarUnfit: it cannot be used.
    """
    place = codex_mem_database.sidecar_of(store.found.path)
    try:
        with sidecar.reading(place) as (db, meta):
            # A rebuild that was stopped goes on; of any other, nothing is kept.
            goes_on = options.command != "rebuild" or (meta.is_rebuilding and sidecar.is_sound(db))
            return meta if goes_on else None
    except FileNotFoundError:
        return None
    except SidecarProblem as problem:
        if options.command == "rebuild":
            return None
        raise SidecarUnfit(path=place, reason=problem) from problem


def _filled(store: Store, settings: EmbedderSettings, options: BackfillOptions) -> Meta | None:
    """Return :func:`_meta`, but of a rebuild that was begun with another model nothing is kept.

    Raises:
        SidecarUnfit: it cannot be used.
    """
    meta = _meta(store, options)
    is_other = meta is not None and not settings.serves(meta.model_id)
    return None if is_other and options.command == "rebuild" else meta


def _is_migrated(store: Store) -> bool:
    with sqlite.open_readonly(store.found.path) as db:
        return codex_mem_database.is_migrated(db)


def _projects(store: Store, options: BackfillOptions) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the projects that are meant, and those that the user may not know of, each with its name."""
    with sqlite.open_readonly(store.found.path) as db:
        every = codex_mem_database.projects(db)
        wanted: set[str | None] = set(every)
        if store.chosen:
            wanted = {codex_mem_database.project_id(every, word) for word in store.chosen}
        elif options.command == "backfill" and not options.all_projects:
            wanted = {codex_mem_database.project_at_hand(db, Path.cwd())}
    meant: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []
    for key, project in every.items():
        (meant if key in wanted else others).append((key, project.name))
    return meant, [] if store.chosen else others


def _prepared(store: Store, settings: EmbedderSettings, model: str, options: BackfillOptions) -> Plan:
    """Return the plan that gives a database the columns of its notes' metadata, and a sidecar."""
    now = identity.now_ms()
    made = note_changes.plan_migration(store, now)
    place = codex_mem_database.sidecar_of(store.found.path)
    if options.command == "rebuild" and _filled(store, settings, options) is None:
        message = tr("make {name} anew, for vectors of {model}", name=place.name, model=model)
    elif not place.exists():
        message = tr("make {name}, for vectors of {model}", name=place.name, model=model)
    else:
        return made
    make = partial(_made, model=model, now=identity.iso_time(now), rebuilding=place.exists())
    action = Action(action="make-sidecar", message=message, base=None, subject=place.name)
    return Plan([*made.changes, FileChange(path=place.name, actions=(action,), make=make)], made.left, made.resolves)


def _made(new: Path, model: str, now: str, rebuilding: bool) -> None:
    sidecar.create(new, model, None, now, rebuilding=rebuilding)


def _followed(store: Store) -> Plan:
    """Plan what makes vectors follow notes, without deleting what a note may use again."""
    return reconcile.plan(store, ReconcileOptions())
