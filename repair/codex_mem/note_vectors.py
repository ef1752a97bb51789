"""Backfill of codex-mem: which projects an embedder can fill, and reading and writing the vectors of their notes.

A vector is written to the sidecar first, and then its note in the database is marked. A run that is killed in between
leaves a vector without a mark; the next run finds it by its text and does not pay for it again
(``docs/formats/codex_mem.md``, "Writing").
"""

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
from regraft.formats.codex_mem.database import CONTENT_VERSION, NOTES, Note, NoteReader, NoteStatus
from regraft.formats.codex_mem.sidecar import SidecarMeta, SidecarVectors
from regraft.language import tr
from regraft.stores.systems import SidecarProblem
from repair.changes.changesets import IncrementalChange, open_writer
from repair.changes.options import ReconcileOptions
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

#: Keys read at a time: an open query would block other writers.
_CHUNK = 1000
#: The indexes of the two files in ``growing``.
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
    """The notes of one project, opened by :func:`open_notes_scope`. Keys are the hashes of their texts.

    Args:
        db: codex-mem's database.
        side: the sidecar with the vectors; None before it is created.
        scratch: a temporary database.
        name: the project's id.
        label: its display name.
        model_id: the model of its vectors.
        growing: records what undo needs, for the sidecar and the database; empty: read-only.
    """

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
        self._meta: SidecarMeta | None = None
        self._notes = NoteReader(db)
        self._vectors: SidecarVectors | None = None
        self._counts: Counter[NoteStatus] | None = None
        self._read_sidecar()

    def _read_sidecar(self) -> None:
        """Read the sidecar's metadata, if there is a sidecar, and read notes with their vectors from now on."""
        if self._side is not None:
            self._meta = sidecar.read_meta(self._side)
            self._vectors = SidecarVectors(self._side, self._meta)
            self._notes = NoteReader(self._db, self._vectors)

    @property
    def dimensions(self) -> int | None:
        """The length of vectors that the sidecar states; None before the first vector."""
        return None if self._meta is None else self._meta.dimensions

    # --- texts without a vector ---------------------------------------------------------------------------------------

    def survey(self) -> TextCounts:
        """Count notes, not texts: several notes may have the same text."""
        counts = self._survey_notes()
        pending = counts[NoteStatus.PENDING] + counts[NoteStatus.FAILED]
        return TextCounts(
            ready=counts[NoteStatus.READY],
            pending=pending,
            stale=counts[NoteStatus.STALE],
            failed=counts[NoteStatus.FAILED],
        )

    def lacking(self) -> Iterator[str]:
        """Yield the hash of every text without a usable vector, in ascending order."""
        self._survey_notes()
        after: Any = ""
        query = f"SELECT DISTINCT hash FROM lacking WHERE hash > ? ORDER BY hash LIMIT {_CHUNK}"
        while keys := self._scratch.execute(query, (after,)).fetchall():
            yield from (str(key) for (key,) in keys)
            after = keys[-1][0]

    def _survey_notes(self) -> Counter[NoteStatus]:
        """Count the notes by status, and list those without a usable vector in the temporary database."""
        # A read-only scope is surveyed once.
        if self._counts is None or self._growing:
            counts = Counter[NoteStatus]()

            def list_lacking() -> Iterator[tuple[str, str]]:
                """Yield text hash and id of the notes without a usable vector, and count all notes."""
                for note in self._notes.iterate(self.name):
                    counts[note.status] += 1
                    if _lacks_vector(note):
                        yield note.hash, note.id

            with sqlite.transaction(self._scratch):
                self._scratch.execute("DROP TABLE IF EXISTS lacking")
                self._scratch.execute(
                    "CREATE TABLE lacking (hash TEXT, note TEXT, PRIMARY KEY (hash, note)) WITHOUT ROWID"
                )
                self._scratch.executemany("INSERT INTO lacking VALUES (?, ?)", list_lacking())
            self._counts = counts
        return self._counts

    def _notes_without_vector(self, keys: Sequence[str]) -> list[Note]:
        """Return the notes that lack a usable vector now and whose text hash is one of ``keys``."""
        if self._counts is None:
            self._survey_notes()
        query = "SELECT note FROM lacking WHERE hash IN (SELECT value FROM json_each(?))"
        ids = [str(note) for (note,) in self._scratch.execute(query, (sqlite.json_array(keys),)).fetchall()]
        wanted = set(keys)
        return [note for note in self._notes.read_notes(ids).values() if _lacks_vector(note) and note.hash in wanted]

    def texts(self, keys: Sequence[str]) -> dict[str, TextWithoutVector]:
        """Return the texts of the given keys that still lack a usable vector, by key."""
        return {
            note.hash: TextWithoutVector(note.text, note.status is NoteStatus.STALE)
            for note in self._notes_without_vector(keys)
        }

    def vectors(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the usable vectors in the sidecar for text hashes, whether or not a note is marked as having them."""
        if self._side is None or self._vectors is None:
            return {}
        found: dict[str, bytes] = {}
        query = f"""SELECT content_hash, note_id, vector FROM {sidecar.TABLE}
           WHERE content_hash IN (SELECT value FROM json_each(?)) AND content_version = ?"""
        rows: Any = self._side.execute(query, (sqlite.json_array(keys), CONTENT_VERSION)).fetchall()
        for key, note, vector in rows:
            held = None if key in found else self._vectors.read_vector(note)
            if held is not None and held.flaw is None:
                found[str(key)] = vector
        return found

    # --- writing -----------------------------------------------------------------------------------------------------

    def write(self, vectors: Mapping[str, bytes], now_ms: int) -> WrittenCounts:
        """Write vectors (by text hash) to the sidecar in one transaction, and mark their notes in another.

        Raises:
            AnswerUnfit: the vectors have another length than the others.
        """
        keys = list(vectors)
        if not self._notes_without_vector(keys):
            return WrittenCounts(0, 0)
        now = identity.iso_time(now_ms)
        with self._writing(_SIDECAR, (sidecar.TABLE, "meta")) as side:
            # Other writers wait from here on. Vectors that they wrote before, for newer texts, are not replaced.
            notes = self._notes_without_vector(keys)
            self._require_length(side, set(map(len, vectors.values())))
            for note in notes:
                if not note.has_vector:
                    side.execute(_VECTOR, {**_note_values(note), "vector": vectors[note.hash], "now": now})
        if self.dimensions is None:
            self._read_sidecar()
        with self._writing(_DATABASE, (NOTES,)) as db:
            same = list(self._filter_unchanged(notes))
            note_changes.mark_ready(db, self._model, ((note.id, note.hash, now) for note in same))
        stale = sum(note.status is NoteStatus.STALE for note in same)
        return WrittenCounts(len(same) - stale, stale)

    def _require_length(self, side: apsw.Connection, lengths: set[int]) -> None:
        """Record the length of the first vectors in the sidecar (``side``), and refuse vectors of another length.

        ``lengths`` are those of the vectors to write, in bytes.
        """
        first = max(lengths) // 4
        side.execute("UPDATE meta SET dimensions = ? WHERE dimensions IS NULL", (first,))
        stated: Any = side.execute("SELECT dimensions FROM meta").get
        if lengths != {4 * stated}:
            reason = tr(
                "the vectors have {lengths:g} dimensions, those of the sidecar have {stated}",
                lengths=min(lengths) / 4,
                stated=stated,
            )
            raise unusable_answer("wrong_dimensions", reason, embedder=self._model)

    def _filter_unchanged(self, notes: Sequence[Note]) -> Iterator[Note]:
        """Yield the notes that were not edited, excluded or deleted since they were read."""
        now = self._notes.read_notes([note.id for note in notes])
        yield from (
            note for note in notes if note.id in now and now[note.id].is_eligible and now[note.id].hash == note.hash
        )

    def failed(self, key: str, code: str, now_ms: int) -> None:
        """Mark the notes whose text hash is ``key`` as failed, with the reason code."""
        with self._writing(_DATABASE, (NOTES,)) as db:
            # Not those that another run has embedded.
            for note in self._notes_without_vector([key]):
                values = {**_note_values(note), "model": self._model, "code": code, "now": identity.iso_time(now_ms)}
                db.execute(_FAILED, values)

    def record_completion(self, now_ms: int, *, wrote: bool) -> None:
        """Record in the sidecar when it was last filled.

        A rebuild is complete once no note waits for a vector, except those that failed.
        """
        assert self._meta is not None
        # Failed notes do not delay the end of a rebuild.
        ends = self._meta.is_rebuilding and not any(
            _lacks_vector(note) and note.status is not NoteStatus.FAILED for note in self._notes.iterate()
        )
        if not (wrote or ends):
            return
        now = identity.iso_time(now_ms)
        with self._writing(_SIDECAR, ("meta",)) as side:
            side.execute("UPDATE meta SET backfilled_at = ?", (now,))
            if ends:
                side.execute("UPDATE meta SET state = 'ready', rebuilt_at = ?", (now,))

    @contextmanager
    def _writing(self, file: int, tables: Sequence[str]) -> Iterator[apsw.Connection]:
        """Open a transaction on the sidecar or the database (``file``), recorded for undo."""
        db = self._side if file == _SIDECAR else self._db
        assert db is not None
        with self._growing[file].transaction(db, tables):
            yield db

    def sample(self, count: int) -> list[tuple[str, bytes]]:
        """Return up to ``count`` texts with their vectors from all over the sidecar, the same ones each time."""
        if self._side is None:
            return []
        row: Any = self._side.execute(f"SELECT min(rowid), max(rowid) FROM {sidecar.TABLE}").get
        low, high = row
        if low is None:
            return []
        found = {}
        for start in sorted({low + (high - low) * number // count for number in range(count)}):
            query = f"SELECT note_id, vector FROM {sidecar.TABLE} WHERE rowid >= ? ORDER BY rowid LIMIT 1"
            # A damaged file may have no row here.
            near: list[Any] = self._side.execute(query, (start,)).fetchall()
            for note_id, vector in near:
                note = self._notes.read_notes([note_id]).get(note_id)
                if note is not None and note.status is NoteStatus.READY:
                    found[note.text] = vector
        return list(found.items())


def _lacks_vector(note: Note) -> bool:
    """Whether a note should have a vector, and has none or one that no search can use."""
    return note.is_eligible and note.status is not NoteStatus.READY


def _note_values(note: Note) -> dict[str, Any]:
    """Return the SQL parameters that identify a note and the version of its text."""
    return {"note": note.id, "hash": note.hash, "version": CONTENT_VERSION}


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
        database: codex-mem's database.
        project: the project's id.
        label: its display name.
        model_id: the model of its vectors.
        growing: records what undo needs, for the sidecar and the database; empty: read-only.
        anew: ignore an existing sidecar.

    Raises:
        SidecarProblem: the sidecar cannot be used.
        SchemaForeign: rows of one of the files cannot be written without changing other rows.
        apsw.Error, OSError: one of the files cannot be read, or written.
    """
    with ExitStack() as stack:
        side: apsw.Connection | None = None
        sidecar_path = codex_mem_database.sidecar_path(database)
        if growing:
            side, db = (stack.enter_context(open_writer(path)) for path in (sidecar_path, database))
            sqlite.load_vector_extension(side)
            stack.enter_context(note_changes.metadata_update(db))
        else:
            db = stack.enter_context(sqlite.open_readonly(database, beside_writers=True))
            if sidecar_path.is_file() and not anew:
                side, _ = stack.enter_context(sidecar.open_sidecar(sidecar_path))
        # Check before anything is paid for that vectors can be written.
        untrusted_sqlite.refuse_foreign_rules(db, database, (codex_mem_database.NOTES,))
        if side is not None:
            untrusted_sqlite.refuse_foreign_rules(side, sidecar_path, (sidecar.TABLE,))
            untrusted_sqlite.refuse_restrictive_indexes(side, sidecar_path, sidecar.TABLE)
        scratch = stack.enter_context(sqlite.open_scratch())
        yield NotesScope(db, side, scratch, name=project, label=label, model_id=model_id, growing=growing)


#: The reason for projects that were not selected.
NOT_ASKED = tr("project not selected")


class NotesTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A project whose notes a backfill can fill; ``database`` is codex-mem's, relative to the store's root."""

    base_id: str
    label: str
    database: str
    model_id: str
    #: Ignore existing vectors: all are made again.
    anew: bool = False
    finding: str = codex.PENDING
    is_new: bool = False
    #: Whether a rebuild was started and not completed.
    is_unfinished: bool = False
    is_file_shared: bool = True
    needs_dimensions: bool = False
    resolves: frozenset[str] = frozenset({codex.PENDING, codex.STALE, codex.FAILED})

    @property
    def files(self) -> tuple[str, ...]:
        """The sidecar and the database, in the order in which they are written."""
        return codex_mem_database.sidecar_path(Path(self.database)).name, self.database

    def demand_fit(self, scope: Scope) -> None:
        """Do nothing: a sidecar that does not fit was refused before."""

    def finish(self, root: Path, growing: Sequence[IncrementalChange], now_ms: int, *, wrote: bool) -> None:
        """Record in the sidecar that the run is complete."""
        with self.open_scope(root, growing) as scope:
            scope.record_completion(now_ms, wrote=wrote)

    def finding_of(self, error: RegraftError) -> str | None:
        """Return the finding for an error about notes that cannot be written; None for any other error."""
        return FOREIGN_COLUMN if isinstance(error, SchemaForeign) else None

    def open_scope(self, root: Path, growing: Sequence[IncrementalChange] = ()) -> AbstractContextManager[NotesScope]:
        """Open the notes of the project as a scope."""
        return open_notes_scope(
            root / self.database,
            self.base_id,
            label=self.label,
            model_id=self.model_id,
            growing=growing,
            anew=self.anew,
        )


class NotesFiller:
    """Backfill of the notes of codex-mem."""

    def models(self, store: Store, options: BackfillOptions) -> frozenset[str]:
        """Return the model of the sidecar; empty if a new sidecar is made, for which any model will do."""
        meta = _read_meta(store, options)
        return frozenset() if meta is None else frozenset({meta.model_id})

    def targets(self, store: Store, settings: EmbedderSettings, options: BackfillOptions) -> FillTargets:
        """Return the selected projects as targets.

        Raises:
            ModelDiffers: the sidecar has vectors of another model.
            SidecarUnfit: it cannot be used.
        """
        meta = _read_usable_meta(store, settings, options)
        _require_model(store, settings, meta)
        is_reconcile = options.command == "reconcile"
        if is_reconcile and (meta is None or not _is_migrated(store)):
            # Nothing to reconcile; what is missing is reported with the command that fixes it.
            return FillTargets((), (), (PreparationStep(_plan_reconcile),))
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
        step = (
            _plan_reconcile if is_reconcile else partial(_plan_sidecar, settings=settings, model=model, options=options)
        )
        return FillTargets(tuple(targets), tuple(left), (PreparationStep(step),))


def _require_model(store: Store, settings: EmbedderSettings, meta: SidecarMeta | None) -> None:
    """Refuse an embedder that does not serve the model of the sidecar ``meta``, if there is a sidecar.

    Raises:
        ModelDiffers
    """
    if meta is not None and not settings.serves(meta.model_id):
        reason = tr(
            "the vectors of {name} were made by {model_id}; use regraft rebuild to make all of them again",
            name=store.found.path.name,
            model_id=meta.model_id,
        )
        raise ModelDiffers(embedder=settings.name, model=settings.model, reason=reason)


def _read_meta(store: Store, options: BackfillOptions) -> SidecarMeta | None:
    """Read the metadata of the sidecar that the run fills; None if the run makes a new one.

    Raises:
        SidecarUnfit: the sidecar cannot be used.
    """
    path = codex_mem_database.sidecar_path(store.found.path)
    try:
        with sidecar.open_sidecar(path) as (db, meta):
            # A stopped rebuild is continued; any other starts with an empty sidecar.
            goes_on = options.command != "rebuild" or (meta.is_rebuilding and sidecar.is_readable(db))
            return meta if goes_on else None
    except FileNotFoundError:
        return None
    except SidecarProblem as problem:
        if options.command == "rebuild":
            return None
        raise SidecarUnfit(path=path, reason=problem) from problem


def _read_usable_meta(store: Store, settings: EmbedderSettings, options: BackfillOptions) -> SidecarMeta | None:
    """Read the metadata of the sidecar that the run fills; None if the run makes a new one.

    Unlike with :func:`_read_meta`, a rebuild that was started with another model is not continued.

    Raises:
        SidecarUnfit: the sidecar cannot be used.
    """
    meta = _read_meta(store, options)
    is_other = meta is not None and not settings.serves(meta.model_id)
    return None if is_other and options.command == "rebuild" else meta


def _is_migrated(store: Store) -> bool:
    """Whether the database has the columns of migration 006."""
    with sqlite.open_readonly(store.found.path) as db:
        return codex_mem_database.is_migrated(db)


def _projects(store: Store, options: BackfillOptions) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the selected projects, and the others that the report mentions as not selected: (id, name) of each."""
    with sqlite.open_readonly(store.found.path) as db:
        every = codex_mem_database.read_projects(db)
        wanted: set[str | None] = set(every)
        if store.chosen:
            wanted = {codex_mem_database.find_project_id(every, word) for word in store.chosen}
        elif options.command == "backfill" and not options.all_projects:
            wanted = {codex_mem_database.find_current_project(db, Path.cwd())}
    meant: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []
    for key, project in every.items():
        (meant if key in wanted else others).append((key, project.name))
    return meant, [] if store.chosen else others


def _plan_sidecar(store: Store, settings: EmbedderSettings, model: str, options: BackfillOptions) -> Plan:
    """Plan what must precede a backfill: metadata columns of the database, and a new sidecar for ``model``."""
    now = identity.now_ms()
    made = note_changes.plan_migration(store, now)
    path = codex_mem_database.sidecar_path(store.found.path)
    if options.command == "rebuild" and _read_usable_meta(store, settings, options) is None:
        message = tr("recreate {name} for vectors of {model}", name=path.name, model=model)
    elif not path.exists():
        message = tr("create {name} for vectors of {model}", name=path.name, model=model)
    else:
        return made
    # Until it is complete, so that the next run continues instead of starting over.
    rebuilding = options.command == "rebuild"

    def make(new: Path) -> None:
        """Write an empty sidecar."""
        sidecar.create_sidecar(new, model, None, identity.iso_time(now), rebuilding=rebuilding)

    action = Action(action="make-sidecar", message=message, subject=path.name)
    return Plan([*made.changes, FileChange(path=path.name, actions=(action,), make=make)], made.left, made.resolves)


def _plan_reconcile(store: Store) -> Plan:
    """Plan to make vectors match the notes, without deleting vectors that a note may use again."""
    return reconcile.plan(store, ReconcileOptions())
