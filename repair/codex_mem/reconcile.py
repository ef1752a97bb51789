"""``reconcile`` of codex-mem without an embedder: vectors follow the notes, and metadata follow the vectors.

Rules: ``docs/formats/codex_mem.md``, "Following the notes". A vector without a note that may have one goes; what the
metadata say becomes what is there. A vector that its note may use again, once it is included again, stays unless its
finding is named; so do the vectors of notes of which many are gone at once. Metadata are written first: killed before
the vectors have gone, a run leaves some that no note claims, which the next one deletes.
"""

from __future__ import annotations

import shlex
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
from regraft.formats.codex_mem.database import CONTENT_VERSION, NOTES, Note, Status
from regraft.formats.codex_mem.health import Memory
from regraft.formats.codex_mem.sidecar import Held, SidecarUnreadable, Vectors
from regraft.language import format_count, insert_at_mark, tr
from regraft.stores.derived import OutOfOrder, compare_sorted
from regraft.text import path_argument
from repair.changes.plan import Action, Plan, RowsChange, Unresolved, many_disappeared
from repair.changes.store import Store
from repair.codex_mem import note_changes
from repair.options import ReconcileOptions

#: Findings that are resolved.
NAMES = (codex.ORPHAN, codex.EXCLUDED_VECTOR, codex.VECTOR, codex.METADATA, codex.STALE)
#: With these nobody knows what the vectors are, or the notes.
_BLOCKING = {UNREADABLE, CORRUPT, codex.SCHEMA, codex.INDEX_MISSING, codex.INDEX_INCOMPATIBLE}
#: Notes that stay without a vector, and what gives them one.
_LACKING = {
    Status.PENDING: (codex.PENDING, "backfill", tr("without a vector")),
    Status.STALE: (codex.STALE, "backfill", tr("without a vector of the present text")),
    Status.FAILED: (codex.FAILED, "clear-failed", tr("without a vector: the embedder refused the text")),
}
#: What may be said of a note in place of its status: nothing yet, and what gives it a vector all the same.
_LEFT: dict[Status, tuple[object, ...]] = {
    **dict.fromkeys(_LACKING, (None, *_LACKING)),
    Status.NOT_APPLICABLE: (None,),
    Status.EXCLUDED: (None, Status.NOT_APPLICABLE),
}
_MARKED = {
    Status.READY: ("adopt-embeddings", tr("say of {n} that their vector is there"), codex.ORPHAN),
    Status.PENDING: ("mark-pending", tr("mark {n} as pending: they have no vector"), codex.METADATA),
    Status.STALE: ("mark-stale", tr("mark {n} as stale: the text or the model is another one"), codex.STALE),
    Status.NOT_APPLICABLE: ("mark-not-applicable", tr("mark {n} as not applicable, as they are"), codex.METADATA),
    Status.EXCLUDED: (
        "withdraw-status",
        tr("withdraw the status of {n}, which are excluded and have no vector"),
        codex.METADATA,
    ),
}
#: Why a vector goes: the finding, and what it is.
_Why = tuple[str, str]
_NO_NOTE: _Why = codex.ORPHAN, tr("of notes that are gone")
_NOT_WANTED: _Why = codex.ORPHAN, tr("of notes that are not to be embedded")
_EXCLUDED: _Why = codex.EXCLUDED_VECTOR, tr("of excluded notes")
_UNUSABLE: _Why = codex.VECTOR, tr("that no search can use")
#: Vectors that their notes may use again: they go only where the finding is named.
_BY_NAME = {_NOT_WANTED, _EXCLUDED}
_OTHER_RULE: _Why = codex.STALE, tr("of texts that were made by another rule")
_OTHER_MODEL: _Why = codex.STALE, tr("of another model than their notes name")


def plan(store: Store, options: ReconcileOptions) -> Plan:
    """Return what makes the vectors follow the notes; nothing is written."""
    with health.opened(store.found.path) as memory:
        if not memory.columns and not memory.is_present:
            return Plan()
        blocking = _BLOCKING if database.is_migrated(memory.db) else {*_BLOCKING, codex.MIGRATION}
        damage = [one for one in store.audit(Level.QUICK).findings if one.name in blocking]
        if damage:
            return Plan(left=[_left(one.name, one.message, _mended(store, one.name)) for one in damage])
        try:
            return _Follows(store, memory, options).plan()
        except (SidecarUnreadable, OutOfOrder) as problem:
            name = codex.INDEX_INCOMPATIBLE
            return Plan(left=[_left(name, str(problem), _mended(store, name))])


def _left(finding: str, reason: str, repair: str | None, project: str | None = None, count: int = 1) -> Unresolved:
    return Unresolved(
        finding=finding, reason=reason, base=project, count=count, severity=FINDINGS[finding].severity, repair=repair
    )


def _command_line(store: Store, words: Sequence[str], project: str | None = None) -> str | None:
    chosen = [] if project is None else ["--base", project]
    return shlex.join(["regraft", *words, path_argument(store.path), *chosen]) if words else None


def _mended(store: Store, finding: str) -> str | None:
    return _command_line(store, FINDINGS[finding].command)


class _Due(msgspec.Struct, frozen=True, kw_only=True):
    """A note whose metadata get another status, and the vector that it has then."""

    note: str
    project: str
    status: Status
    held: Held | None


class _Follows(msgspec.Struct):
    """Notes held against their vectors."""

    store: Store
    memory: Memory
    options: ReconcileOptions
    due: list[_Due] = msgspec.field(default_factory=list)
    #: Notes whose vectors go, by the reason and the project.
    gone: dict[tuple[_Why, str | None], list[str]] = msgspec.field(default_factory=lambda: defaultdict(list))
    lacking: Counter[tuple[str, Status]] = msgspec.field(default_factory=Counter)

    @property
    def vectors(self) -> Vectors | None:
        """Return the vectors; None where there is no sidecar yet."""
        return self.memory.vectors

    def plan(self) -> Plan:
        """Return what is done.

        Raises:
            OutOfOrder: ids are no texts that sort alike in both files.
        """
        if self.vectors is not None:
            self._compare_vectors(self.vectors)
        self._compare_metadata()
        kept = list(self._kept())
        made = Plan(changes=[one for one in (self._metadata_change(), self._vectors_change()) if one is not None])
        made.left = [*kept, *([] if self.options.only else self._left())]
        stays = {(one.finding, one.base) for one in made.left}
        done = {(str(one.finding), one.base) for one in made.actions} - stays
        made.resolves = {(name, base) for name, base in done if name != codex.STALE}
        return made

    # --- vectors follow the notes ------------------------------------------------------------------------------------

    def _compare_vectors(self, vectors: Vectors) -> None:
        db = self.memory.db
        rows = db.execute(f"SELECT id FROM {NOTES} WHERE typeof(id) = 'text' AND {database.eligible(db)} ORDER BY id")
        wanted = ((str(note), None) for (note,) in rows)
        odd: list[tuple[Any, _Why | None]] = []

        def named() -> Iterator[tuple[str, _Why | None]]:
            for held in vectors.every():
                key: Any = held.note_id
                if isinstance(key, str):
                    yield key, _problem(held)
                else:
                    odd.append((key, _problem(held)))

        for one in compare_sorted(wanted, named()):
            if one.kind != "missing":
                self._goes(one.id, one.found)
        # What names a vector's note need not be text, and is then no note's.
        for note_id, problem in odd:
            self._goes(note_id, problem)

    def _goes(self, note_id: str, problem: _Why | None) -> None:
        note = self.memory.notes.of([note_id]).get(note_id)
        project = None if note is None else note.project
        if note is None:
            why = _NO_NOTE
        elif note.is_eligible:
            why = problem or _UNUSABLE
        else:
            kept = _EXCLUDED if note.status is Status.EXCLUDED else _NOT_WANTED
            # A vector that no search can use is of no use to a note that is included again, either.
            why = problem if problem == _UNUSABLE else kept
        if self.store.wants(project):
            self.gone[why, project].append(note_id)

    def _kept(self) -> Iterator[Unresolved]:
        """Take away what stays from what goes, and say why; nothing else goes where findings are named."""
        notes = int(self.memory.db.execute(f"SELECT count(*) FROM {NOTES}").get or 0)
        lost = sum(len(every) for (why, _), every in self.gone.items() if why == _NO_NOTE)
        for why, project in list(self.gone):
            finding, words = why
            if not self.options.wants(finding):
                del self.gone[why, project]
                continue
            if why == _NO_NOTE and many_disappeared(lost, notes):
                reason = tr(
                    "kept: {gone} of {all} are gone at once: the database may be older than the vectors",
                    gone=f"{lost:,}",
                    all=format_count(lost + notes, "note"),
                )
            elif why in _BY_NAME and finding not in self.options.only:
                reason = tr("kept: a note may use it again; --only {name} deletes it", name=finding)
            else:
                continue
            vectors = format_count(len(self.gone.pop((why, project))), "vector")
            yield _left(finding, f"{vectors} {words}, {reason}", None, project)

    # --- metadata follow the vectors ---------------------------------------------------------------------------------

    def _compare_metadata(self) -> None:
        for note in self.memory.notes.judged():
            if self.store.wants(note.project):
                self._compare(note)

    def _compare(self, note: Note) -> None:
        stated = note.metadata.embedding_status
        # What a note is once its metadata say of its vector what is so.
        status = Status.READY if note.is_adoptable else note.status
        if status in _LACKING:
            self.lacking[note.project, status] += 1
            if note.has_vector:
                self.gone[_OTHER_MODEL, note.project].append(note.id)
        if not self.options.wants(_MARKED[status][2] if status in _MARKED else codex.METADATA):
            return
        is_due = note.is_adoptable if status is Status.READY else stated not in (status, *_LEFT[status])
        if is_due:
            self.due.append(_Due(note=note.id, project=note.project, status=status, held=note.held))

    @property
    def _model(self) -> str:
        return "" if self.vectors is None else self.vectors.meta.model_id

    # --- the changes -------------------------------------------------------------------------------------------------

    def _metadata_change(self) -> RowsChange | None:
        if not self.due:
            return None
        path, due, model = self.store.found.path, tuple(self.due), self._model

        def apply(db: apsw.Connection) -> None:
            before = db.total_changes()
            with note_changes.metadata_update(db):
                adopted = ((one.note, one.held) for one in due if one.status is Status.READY)
                note_changes.mark_ready(
                    db, model, ((note, had.content_hash, had.embedded_at) for note, had in adopted if had)
                )
                note_changes.withdraw_status(db, (one.note for one in due if one.status is Status.EXCLUDED))
                marked = (one for one in due if one.status not in (Status.READY, Status.EXCLUDED))
                note_changes.set_status(db, ((one.note, one.status.value) for one in marked))
            if db.total_changes() - before != len(due):
                raise PlanOutdated(path=path, reason=tr("notes were excluded or deleted meanwhile"))

        return RowsChange(
            path=path.name,
            actions=tuple(self._marks()),
            apply=apply,
            tables=(NOTES,),
            bytes=note_changes.METADATA_BYTES * len(due),
        )

    def _marks(self) -> Iterator[Action]:
        by_kind: dict[tuple[str, Status], list[str]] = defaultdict(list)
        for one in self.due:
            by_kind[one.project, one.status].append(one.note)
        for (project, status), notes in by_kind.items():
            name, message, finding = _MARKED[status]
            yield _action(
                name, insert_at_mark(message, "{n}", format_count(len(notes), "note")), project, notes, 0, finding
            )

    def _vectors_change(self) -> RowsChange | None:
        if self.vectors is None or not self.gone:
            return None
        size, path = self.vectors.size, database.sidecar_of(self.store.found.path)
        notes = [note for every in self.gone.values() for note in every]

        def apply(db: apsw.Connection) -> None:
            before = db.total_changes()
            db.executemany(f"DELETE FROM {sidecar.TABLE} WHERE note_id = ?", ((note,) for note in notes))
            if db.total_changes() - before != len(notes):
                raise PlanOutdated(path=path, reason=tr("other vectors are there now"))

        actions = tuple(
            _action(
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

    def _left(self) -> Iterator[Unresolved]:
        if self.vectors is not None and self.vectors.meta.is_rebuilding:
            message, name = tr("a rebuild was begun and is not at its end: it fills what is missing"), codex.REBUILDING
            yield _left(name, message, _mended(self.store, name))
            return
        known = database.projects(self.memory.db)
        for (project, status), count in sorted(self.lacking.items()):
            name, command, message = _LACKING[status]
            repair = _command_line(self.store, [command], project) if project in known else None
            yield _left(name, f"{format_count(count, 'note')} {message}", repair, project, count)


def _problem(held: Held) -> _Why | None:
    """Return why no search can use a vector, whatever text it is of; None where one can."""
    if held.flaw is not None:
        return _UNUSABLE
    return None if held.content_version == CONTENT_VERSION else _OTHER_RULE


def _action(name: str, message: str, project: str | None, notes: list[str], size: int, finding: str) -> Action:
    return Action(
        action=name,
        message=message,
        base=project,
        subject=notes[0] if len(notes) == 1 else None,
        count=len(notes),
        bytes=size,
        finding=finding,
    )
