"""Plan ``reconcile`` of codex-mem without an embedder: delete vectors without a note, and correct the notes' status.

A vector of a note that is excluded or not eligible could be used again, so it is deleted only with ``--only``. Vectors
are kept if many notes disappeared at once. The status is written before vectors are deleted: if the run is killed in
between, the next run deletes the remaining vectors (``docs/formats/codex_mem.md``, "Following the notes").
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import apsw
import msgspec

from checks.audit.collector import Level
from checks.audit.findings import CORRUPT, FINDINGS, UNREADABLE
from checks.codex_mem import findings as codex
from regraft.errors import PlanOutdated
from regraft.formats.codex_mem import database, health, sidecar
from regraft.formats.codex_mem.database import CONTENT_VERSION, NOTES, Note, NoteStatus
from regraft.formats.codex_mem.health import Memory
from regraft.formats.codex_mem.sidecar import SidecarUnreadable, SidecarVectors, StoredVector
from regraft.language import format_count, insert_at_mark, tr
from regraft.stores.derived import OutOfOrder, compare_sorted
from regraft.text import join_command, path_argument
from repair.changes.options import ReconcileOptions
from repair.changes.plan import Action, Plan, RowsChange, Unresolved, many_disappeared
from repair.changes.store import Store
from repair.codex_mem import note_changes

#: Findings that ``reconcile`` resolves.
NAMES = (codex.ORPHAN, codex.EXCLUDED_VECTOR, codex.VECTOR, codex.METADATA, codex.STALE)
#: Findings with which notes and vectors cannot be compared.
_BLOCKING = {UNREADABLE, CORRUPT, codex.SCHEMA, codex.INDEX_MISSING, codex.INDEX_INCOMPATIBLE}
#: For notes without a vector: the finding, the command that fixes it, and the message.
_WITHOUT_VECTOR = {
    NoteStatus.PENDING: (codex.PENDING, "backfill", tr("without a vector")),
    NoteStatus.STALE: (codex.STALE, "backfill", tr("without a vector of the current text")),
    NoteStatus.FAILED: (codex.FAILED, "clear-failed", tr("without a vector: the embedder refused the text")),
}
#: For each status, stored values that need no correction: none yet, or any that leads to a new vector as well.
_ACCEPTED: dict[NoteStatus, tuple[object, ...]] = {
    **dict.fromkeys(_WITHOUT_VECTOR, (None, *_WITHOUT_VECTOR)),
    NoteStatus.NOT_APPLICABLE: (None,),
    NoteStatus.EXCLUDED: (None, NoteStatus.NOT_APPLICABLE),
}
_CORRECTIONS = {
    NoteStatus.READY: ("adopt-embeddings", tr("mark {n} as embedded: their vectors exist"), codex.ORPHAN),
    NoteStatus.PENDING: ("mark-pending", tr("mark {n} without a vector as pending"), codex.METADATA),
    NoteStatus.STALE: ("mark-stale", tr("mark {n} as stale: their text or model changed"), codex.STALE),
    NoteStatus.NOT_APPLICABLE: ("mark-not-applicable", tr("mark {n} as not applicable"), codex.METADATA),
    NoteStatus.EXCLUDED: (
        "withdraw-status",
        tr("clear the status of {n}, which are excluded and have no vector"),
        codex.METADATA,
    ),
}
#: Why a vector is deleted: the finding, and a description of the vectors.
_Reason = tuple[str, str]
_NO_NOTE: _Reason = codex.ORPHAN, tr("of deleted notes")
_NOT_WANTED: _Reason = codex.ORPHAN, tr("of notes that must not be embedded")
_EXCLUDED: _Reason = codex.EXCLUDED_VECTOR, tr("of excluded notes")
_UNUSABLE: _Reason = codex.VECTOR, tr("that no search can use")
#: Vectors that their notes could use again; deleted only with ``--only``.
_ONLY_IF_NAMED = {_NOT_WANTED, _EXCLUDED}
_OTHER_RULE: _Reason = codex.STALE, tr("of texts built by another version of the rules")
_OTHER_MODEL: _Reason = codex.STALE, tr("from a different model than their notes record")


def plan(store: Store, options: ReconcileOptions) -> Plan:
    """Plan the changes of notes and vectors."""
    with health.open_memory(store.found.path) as memory:
        if not memory.columns and not memory.is_present:
            return Plan()
        blocking = _BLOCKING if database.is_migrated(memory.db) else {*_BLOCKING, codex.MIGRATION}
        damage = [one for one in store.audit(Level.QUICK).findings if one.name in blocking]
        if damage:
            return Plan(left=[_unresolved(one.name, one.message, _remedy_line(store, one.name)) for one in damage])
        try:
            return _Comparison(store, memory, options).plan()
        except (SidecarUnreadable, OutOfOrder) as problem:
            name = codex.INDEX_INCOMPATIBLE
            return Plan(left=[_unresolved(name, str(problem), _remedy_line(store, name))])


def _unresolved(
    finding: str, reason: str, repair: str | None, project: str | None = None, count: int = 1
) -> Unresolved:
    """Report a finding about ``count`` notes of a project (its id) that reconcile leaves.

    ``repair`` is the command line that resolves it.
    """
    return Unresolved(
        finding=finding, reason=reason, base=project, count=count, severity=FINDINGS[finding].severity, repair=repair
    )


def _command_line(store: Store, words: Sequence[str], project: str | None = None) -> str | None:
    """Format a command line for the store: ``words`` are the command and its options; None without words.

    ``project`` is the id of a project to choose.
    """
    chosen = [] if project is None else ["--base", project]
    return join_command(["regraft", *words, path_argument(store.path), *chosen]) if words else None


def _remedy_line(store: Store, finding: str) -> str | None:
    """Format the command line that fixes a finding, given by name; None if no command does."""
    return _command_line(store, FINDINGS[finding].command)


class _StatusChange(msgspec.Struct, frozen=True, kw_only=True):
    """A note whose status is corrected, and the vector that it has."""

    note: str
    project: str
    status: NoteStatus
    held: StoredVector | None


class _Comparison(msgspec.Struct):
    """Compares notes with their vectors and collects what to change. ``memory`` has the open database and sidecar."""

    store: Store
    memory: Memory
    options: ReconcileOptions
    due: list[_StatusChange] = msgspec.field(default_factory=list)
    #: Notes whose vectors are deleted, by reason and project.
    gone: dict[tuple[_Reason, str | None], list[str]] = msgspec.field(default_factory=lambda: defaultdict(list))
    lacking: Counter[tuple[str, NoteStatus]] = msgspec.field(default_factory=Counter)

    @property
    def vectors(self) -> SidecarVectors | None:
        """The stored vectors, or None if there is no sidecar file yet."""
        return self.memory.vectors

    def plan(self) -> Plan:
        """Compare notes and vectors, and plan the changes.

        Raises:
            OutOfOrder: ids are not texts, or sort differently in the two files.
        """
        if self.vectors is not None:
            self._compare_vectors(self.vectors)
        for note in self.memory.notes.iterate():
            if self.store.wants(note.project):
                self._compare_status(note)
        kept = list(self._keep_vectors())
        made = Plan(changes=[*filter(None, (self._status_change(), self._deletion_change()))])
        made.left = [*kept, *([] if self.options.only else self._missing_vectors())]
        stays = {(one.finding, one.base) for one in made.left}
        done = {(str(one.finding), one.base) for one in made.actions} - stays
        made.resolves = {(name, base) for name, base in done if name != codex.STALE}
        return made

    # --- vectors to delete -------------------------------------------------------------------------------------------

    def _compare_vectors(self, vectors: SidecarVectors) -> None:
        """Compare the notes that need a vector with the stored vectors, both in the order of their ids."""
        db = self.memory.db
        rows = db.execute(
            f"SELECT id FROM {NOTES} WHERE typeof(id) = 'text' AND {database.eligible_sql(db)} ORDER BY id"
        )
        wanted = ((str(note), None) for (note,) in rows)
        odd: list[tuple[Any, _Reason | None]] = []

        def named() -> Iterator[tuple[str, _Reason | None]]:
            """Yield the ids of the stored vectors, each with its problem or None.

            Ids that are no texts are collected apart.
            """
            for held in vectors.iterate():
                key: Any = held.note_id
                if isinstance(key, str):
                    yield key, _vector_problem(held)
                else:
                    odd.append((key, _vector_problem(held)))

        for one in compare_sorted(wanted, named()):
            if one.kind != "missing":
                self._delete_vector(one.id, one.found)
        # The note id of a vector may be a value other than text. Such a vector has no note.
        for note_id, problem in odd:
            self._delete_vector(note_id, problem)

    def _delete_vector(self, note_id: str, problem: _Reason | None) -> None:
        """Plan to delete the vector of a note id; ``problem`` says why no search can use it, None if one can."""
        note = self.memory.notes.read_notes([note_id]).get(note_id)
        project = None if note is None else note.project
        if note is None:
            why = _NO_NOTE
        elif note.is_eligible:
            why = problem or _UNUSABLE
        else:
            kept = _EXCLUDED if note.status is NoteStatus.EXCLUDED else _NOT_WANTED
            # A vector that no search can use is deleted even if its note could be included again.
            why = problem if problem == _UNUSABLE else kept
        if self.store.wants(project):
            self.gone[why, project].append(note_id)

    def _keep_vectors(self) -> Iterator[Unresolved]:
        """Drop the vectors that must be kept from those planned to be deleted, and yield why they are kept."""
        notes = int(self.memory.db.execute(f"SELECT count(*) FROM {NOTES}").get or 0)
        lost = sum(len(every) for (why, _), every in self.gone.items() if why == _NO_NOTE)
        for why, project in list(self.gone):
            finding, words = why
            if not self.options.wants(finding):
                del self.gone[why, project]
                continue
            if why == _NO_NOTE and many_disappeared(lost, notes):
                reason = tr(
                    "kept because {gone} of {all} disappeared at once; the database may be older than the vectors",
                    gone=f"{lost:,}",
                    all=format_count(lost + notes, "note"),
                )
            elif why in _ONLY_IF_NAMED and finding not in self.options.only:
                reason = tr("kept because a note may use it again; use --only {name} to delete it", name=finding)
            else:
                continue
            vectors = format_count(len(self.gone.pop((why, project))), "vector")
            yield _unresolved(finding, f"{vectors} {words}, {reason}", None, project)

    # --- status to correct -------------------------------------------------------------------------------------------

    def _compare_status(self, note: Note) -> None:
        """Plan to correct the embedding status of a note if it should be another one."""
        stated = note.metadata.embedding_status
        # The status that the note has once its vector is recorded.
        status = NoteStatus.READY if note.can_adopt_vector else note.status
        if status in _WITHOUT_VECTOR:
            self.lacking[note.project, status] += 1
            if note.has_vector:
                self.gone[_OTHER_MODEL, note.project].append(note.id)
        if not self.options.wants(_CORRECTIONS[status][2] if status in _CORRECTIONS else codex.METADATA):
            return
        is_due = note.can_adopt_vector if status is NoteStatus.READY else stated not in (status, *_ACCEPTED[status])
        if is_due:
            self.due.append(_StatusChange(note=note.id, project=note.project, status=status, held=note.held))

    @property
    def _model(self) -> str:
        """Id of the model of the stored vectors."""
        return "" if self.vectors is None else self.vectors.meta.model_id

    # --- the changes -------------------------------------------------------------------------------------------------

    def _status_change(self) -> RowsChange | None:
        """Build the change that corrects the notes' embedding states; None if none is wrong."""
        if not self.due:
            return None
        path, due, model = self.store.found.path, tuple(self.due), self._model

        def apply(db: apsw.Connection) -> None:
            """Write the status of every note; refuse if some of them changed since the plan."""
            before = db.total_changes()
            with note_changes.metadata_update(db):
                adopted = ((one.note, one.held) for one in due if one.status is NoteStatus.READY)
                note_changes.mark_ready(
                    db, model, ((note, had.content_hash, had.embedded_at) for note, had in adopted if had)
                )
                note_changes.withdraw_status(db, (one.note for one in due if one.status is NoteStatus.EXCLUDED))
                marked = (one for one in due if one.status not in (NoteStatus.READY, NoteStatus.EXCLUDED))
                note_changes.set_status(db, ((one.note, one.status.value) for one in marked))
            if db.total_changes() - before != len(due):
                raise PlanOutdated(path=path, reason=tr("notes were excluded or deleted in the meantime"))

        return RowsChange(
            path=path.name,
            actions=tuple(self._status_actions()),
            apply=apply,
            tables=(NOTES,),
            bytes=note_changes.METADATA_BYTES * len(due),
        )

    def _status_actions(self) -> Iterator[Action]:
        """Yield one action for each project and new status of its notes."""
        by_kind: dict[tuple[str, NoteStatus], list[str]] = defaultdict(list)
        for one in self.due:
            by_kind[one.project, one.status].append(one.note)
        for (project, status), notes in by_kind.items():
            name, message, finding = _CORRECTIONS[status]
            yield _make_action(
                name, insert_at_mark(message, "{n}", format_count(len(notes), "note")), project, notes, 0, finding
            )

    def _deletion_change(self) -> RowsChange | None:
        """Build the change that deletes vectors from the sidecar; None if it would delete nothing."""
        if self.vectors is None or not self.gone:
            return None
        size, path = self.vectors.size, database.sidecar_path(self.store.found.path)
        notes = [note for every in self.gone.values() for note in every]

        def apply(db: apsw.Connection) -> None:
            """Delete the vectors; refuse if they changed since the plan."""
            before = db.total_changes()
            db.executemany(f"DELETE FROM {sidecar.TABLE} WHERE note_id = ?", ((note,) for note in notes))
            if db.total_changes() - before != len(notes):
                raise PlanOutdated(path=path, reason=tr("the vectors changed since the plan"))

        actions = tuple(
            _make_action(
                "delete-embeddings",
                tr("delete {vectors} {words}", vectors=format_count(len(every), "vector"), words=words),
                project,
                every,
                size * len(every),
                finding,
            )
            for ((finding, words), project), every in self.gone.items()
        )
        return RowsChange(
            path=path.name, actions=actions, apply=apply, tables=(sidecar.TABLE,), bytes=size * len(notes)
        )

    def _missing_vectors(self) -> Iterator[Unresolved]:
        """Yield a finding for notes that stay without a vector, by project and status, with the command to run."""
        if self.vectors is not None and self.vectors.meta.is_rebuilding:
            message, name = tr("an unfinished rebuild will fill the missing vectors"), codex.REBUILDING
            yield _unresolved(name, message, _remedy_line(self.store, name))
            return
        known = database.read_projects(self.memory.db)
        for (project, status), count in sorted(self.lacking.items()):
            name, command, message = _WITHOUT_VECTOR[status]
            repair = _command_line(self.store, [command], project) if project in known else None
            yield _unresolved(
                name,
                tr("{counted} {which}", counted=format_count(count, "note"), which=message),
                repair,
                project,
                count,
            )


def _vector_problem(stored: StoredVector) -> _Reason | None:
    """Why no search can use a stored vector, as a finding's name and words for it; None if one can."""
    if stored.flaw is not None:
        return _UNUSABLE
    return None if stored.content_version == CONTENT_VERSION else _OTHER_RULE


def _make_action(name: str, message: str, project: str | None, notes: list[str], size: int, finding: str) -> Action:
    """Make an action of this name on ``notes`` (ids) of a project (id); ``size`` is the bytes that it frees."""
    return Action(
        action=name,
        message=message,
        base=project,
        subject=notes[0] if len(notes) == 1 else None,
        count=len(notes),
        bytes=size,
        finding=finding,
    )
