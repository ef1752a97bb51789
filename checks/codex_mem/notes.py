"""What is wrong with codex-mem's notes and their vectors, note by note (``docs/formats/codex_mem.md``, "Judgement")."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from checks.audit.collector import FindingCollector, named
from checks.codex_mem import findings as codex
from regraft.formats.codex_mem import database
from regraft.formats.codex_mem.database import NOTES
from regraft.formats.codex_mem.health import State, Survey, obstacle
from regraft.formats.codex_mem.notes import Note, Status
from regraft.formats.codex_mem.sidecar import Flaw
from regraft.language import tr

_FLAWS = {
    Flaw.LENGTH: tr("{n} with a vector of another length than the file's"),
    Flaw.NON_FINITE: tr("{n} with a vector that has NaN or infinity, or a norm too large for single precision"),
    Flaw.ZERO: tr("{n} with a vector of zeros"),
}
#: What of a code that a program wrote is shown.
_LONGEST_CODE = 60


def check(survey: Survey, known: Collection[str], chosen: Collection[str], ledger: FindingCollector) -> None:
    """File what is wrong.

    Args:
        survey: of the whole database.
        known: ids of its projects, under which a finding is filed.
        chosen: those that are looked at; empty: all, and notes of none.
        ledger: what is wrong goes there.

    Raises:
        apsw.Error, UnicodeDecodeError: the database is damaged.
        SidecarUnreadable: the sidecar is.
    """
    _check_whole(survey, ledger)
    of_notes = _said_of_each if _are_notes_told(survey) else _said_of_excluded
    for note in _notes(survey, chosen):
        ledger.check_time()
        found = of_notes(note)
        if found is not None:
            name, message = found
            base = note.project if note.project in known else None
            # Backfill is told of a project.
            is_beyond = (name == codex.PENDING and base is None) or (name == codex.ORPHAN and not note.is_eligible)
            ledger.add(name, message, base=base, noun="note", sample=note.id, is_beyond_repair=is_beyond)
    if survey.gone and not chosen:
        for note_id in _gone(survey):
            ledger.check_time()
            ledger.add(codex.ORPHAN, tr("{n} of no note"), noun="vector", sample=note_id)


def _check_whole(survey: Survey, ledger: FindingCollector) -> None:
    name = {
        State.INCOMPATIBLE: codex.INDEX_INCOMPATIBLE,
        State.REBUILDING: codex.REBUILDING,
        # Where no note has ever had one, they are pending.
        State.MISSING: codex.INDEX_MISSING if survey.memory.problem or _are_said_to_be_ready(survey) else None,
    }.get(survey.state)
    if name is not None:
        ledger.add(name, str(obstacle(survey)))


def _are_said_to_be_ready(survey: Survey) -> bool:
    """Tell whether any note says that it has a vector."""
    db = survey.memory.db
    if "embedding_status" not in survey.memory.columns:
        return False
    may = database.eligible(db, "n")
    return bool(db.execute(f"SELECT EXISTS (SELECT 1 FROM {NOTES} n WHERE n.embedding_status = 'ready' AND {may})").get)


def _are_notes_told(survey: Survey) -> bool:
    """Tell whether what notes lack is told one by one: not where all are mended by one command for the whole."""
    if not database.is_migrated(survey.memory.db) or survey.state in (State.REBUILDING, State.INCOMPATIBLE):
        return False
    return survey.state is not State.MISSING or not (survey.memory.problem or _are_said_to_be_ready(survey))


def _notes(survey: Survey, chosen: Collection[str]) -> Iterator[Note]:
    projects: Iterable[str | None] = chosen or (None,)
    for project in projects:
        yield from survey.memory.notes.judged(project)


def _gone(survey: Survey) -> Iterator[str]:
    """Yield the ids of vectors of which no note is."""
    vectors, db = survey.memory.vectors, survey.memory.db
    for held in () if vectors is None else vectors.every():
        if not db.execute(f"SELECT EXISTS (SELECT 1 FROM {NOTES} WHERE id = ?)", (held.note_id,)).get:
            yield held.note_id


def _said_of_excluded(note: Note) -> tuple[str, str] | None:
    """Return what is said of a note while a command for the whole has to be run."""
    if note.status is Status.EXCLUDED and note.held is not None:
        return codex.EXCLUDED_VECTOR, tr("{n} excluded, with a vector")
    return None


def _said_of_each(note: Note) -> tuple[str, str] | None:
    """Return the finding that a note is, with what is said of it; None where nothing is wrong."""
    if not note.is_eligible:
        return _said_of_excluded(note) or _said_of_unwanted(note)
    if note.is_adoptable:
        return codex.ORPHAN, tr("{n} with a good vector that its row does not name")
    if note.held is not None and note.held.flaw is not None:
        return codex.VECTOR, _FLAWS[note.held.flaw]
    return None if note.status is Status.READY else _said_of_lacking(note)


def _said_of_unwanted(note: Note) -> tuple[str, str] | None:
    """Return the finding that a note is that is not to be embedded, or is excluded; None where nothing is wrong."""
    if note.is_astray:
        return codex.ORPHAN, tr("{n} with a vector that is not to have one")
    is_said = note.metadata.embedding_status in (None, Status.NOT_APPLICABLE)
    if is_said:
        return None
    if note.status is Status.EXCLUDED:
        return codex.METADATA, tr("{n} excluded, with a status that says otherwise")
    return codex.METADATA, tr("{n} not to be embedded, with a status that says otherwise")


def _said_of_lacking(note: Note) -> tuple[str, str]:
    """Return the finding that a note is that may be embedded and has no vector of its present text."""
    if note.status is Status.FAILED:
        code = note.metadata.embedding_error_code
        cause = "" if code is None else f" ({named(code)[:_LONGEST_CODE]})"
        return codex.FAILED, tr("{{n}} that could not be embedded{cause}", cause=cause)
    if note.status is Status.STALE:
        return codex.STALE, tr("{n} changed since its vector was made, or with one of another model")
    return _said_of_pending(note)


def _said_of_pending(note: Note) -> tuple[str, str]:
    stated = note.metadata.embedding_status
    if stated == Status.READY:
        return codex.METADATA, tr("{n} said to be ready, and without a vector")
    if stated == Status.NOT_APPLICABLE:
        return codex.METADATA, tr("{n} said to be eligible and not to be embedded")
    if stated is not None and stated not in database.STATUSES:
        return codex.METADATA, tr("{n} with a status that there is not")
    return codex.PENDING, tr("{n} without a vector")
