"""Audit a database of codex-mem and its vectors (``docs/findings.md``, "codex-mem"), and summarize it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import apsw
import msgspec
from msgspec import UNSET, UnsetType, structs

from checks.audit import sqlite_checks
from checks.audit.collector import CheckOptions, CommandLine, FindingCollector, Level, add_commands, display_text
from checks.audit.findings import CORRUPT, UNREADABLE, Audit, BaseStatistics, Statistics
from checks.audit.sqlite_checks import find_open_problem
from checks.codex_mem import findings as codex
from checks.codex_mem import schema
from checks.inspect import BaseSummary, HealthSummary, StoreSummary, format_base_heading
from checks.systems import Checks
from regraft.formats.codex_mem import database, health, sidecar
from regraft.formats.codex_mem.database import NOTES, Note, NoteStatus, Project, StatusCounts
from regraft.formats.codex_mem.health import HealthState, Memory, NoteSurvey, Signals, find_obstacle
from regraft.formats.codex_mem.sidecar import StoredVectorFlaw
from regraft.identity import replace
from regraft.language import format_count, join_list, tr
from regraft.report.labels import format_labeled_count, label_of, state_label
from regraft.report.progress import stage
from regraft.stores.locate import Located
from regraft.text import one_line, pad_right

# --- notes and their vectors (``docs/formats/codex_mem.md``, "Judgement") -------------------------------------------


_FLAWS = {
    StoredVectorFlaw.LENGTH: tr("{n} whose vector has a different length than the others in the file"),
    StoredVectorFlaw.NON_FINITE: tr(
        "{n} with a vector that contains NaN or infinity, or has a norm too large for single precision"
    ),
    StoredVectorFlaw.ZERO: tr("{n} with a vector of all zeros"),
}
#: Characters of an error code that are shown.
_LONGEST_CODE = 60


def check_notes(
    survey: NoteSurvey, known: Collection[str], chosen: Collection[str], findings: FindingCollector
) -> None:
    """Report notes and vectors that do not belong together, are not usable, or are still to be made.

    Args:
        survey: the notes and vectors of the database.
        known: ids of the projects of the database; notes of others are reported under no project.
        chosen: ids of the projects to check; empty: all, and notes of no project.
        findings: collects what is wrong.

    Raises:
        apsw.Error, UnicodeDecodeError: the database is damaged.
        SidecarUnreadable: the file of vectors is damaged.
    """
    _report_vector_file_state(survey, findings)
    of_notes = _judge_note if _must_report_each_note(survey) else _judge_excluded
    projects: Iterable[str | None] = chosen or (None,)
    for note in chain.from_iterable(map(survey.memory.notes.iterate, projects)):
        findings.check_time()
        found = of_notes(note)
        if found is not None:
            name, message = found
            base = note.project if note.project in known else None
            # Backfill needs the id of a project.
            beyond = {codex.PENDING: base is None, codex.ORPHAN: not note.is_eligible}
            is_beyond = beyond.get(name, False)
            findings.add(name, message, base=base, noun="note", sample=note.id, is_beyond_repair=is_beyond)
    if survey.gone and not chosen:
        for note_id in _orphan_vectors(survey):
            findings.check_time()
            findings.add(codex.ORPHAN, tr("{n} belonging to no note"), noun="vector", sample=note_id)


def _report_vector_file_state(survey: NoteSurvey, findings: FindingCollector) -> None:
    """Report a vector file that no note can use, because it is missing, incompatible or being rebuilt."""
    name = {
        HealthState.INCOMPATIBLE: codex.INDEX_INCOMPATIBLE,
        HealthState.REBUILDING: codex.REBUILDING,
        # If no note ever had a vector, the notes are pending instead.
        HealthState.MISSING: codex.INDEX_MISSING if survey.memory.problem or _has_notes_marked_ready(survey) else None,
    }.get(survey.state)
    if name is not None:
        findings.add(name, str(find_obstacle(survey)))


def _has_notes_marked_ready(survey: NoteSurvey) -> bool:
    """Whether the row of any note says that the note has a vector."""
    db = survey.memory.db
    if "embedding_status" not in survey.memory.columns:
        return False
    may = database.eligible_sql(db, "n")
    return bool(db.execute(f"SELECT EXISTS (SELECT 1 FROM {NOTES} n WHERE n.embedding_status = 'ready' AND {may})").get)


def _must_report_each_note(survey: NoteSurvey) -> bool:
    """Whether problems of notes are reported one by one, as no single command fixes them for the whole database."""
    if not database.is_migrated(survey.memory.db) or survey.state in (HealthState.REBUILDING, HealthState.INCOMPATIBLE):
        return False
    return survey.state is not HealthState.MISSING or not (survey.memory.problem or _has_notes_marked_ready(survey))


def _orphan_vectors(survey: NoteSurvey) -> Iterator[str]:
    """Yield the ids of notes that do not exist but have a stored vector."""
    vectors, db = survey.memory.vectors, survey.memory.db
    for held in () if vectors is None else vectors.iterate():
        if not db.execute(f"SELECT EXISTS (SELECT 1 FROM {NOTES} WHERE id = ?)", (held.note_id,)).get:
            yield held.note_id


def _judge_excluded(note: Note) -> tuple[str, str] | None:
    """Return the finding and its message for a note that is excluded from search but has a vector; otherwise None."""
    if note.status is NoteStatus.EXCLUDED and note.held is not None:
        return codex.EXCLUDED_VECTOR, tr("{n} excluded, but with a vector")
    return None


def _judge_note(note: Note) -> tuple[str, str] | None:
    """Return the name of the finding for a note and its message; None if the note is in order."""
    if not note.is_eligible:
        return _judge_excluded(note) or _judge_unwanted(note)
    if note.can_adopt_vector:
        return codex.ORPHAN, tr("{n} with a valid vector that its row does not mention")
    if note.held is not None and note.held.flaw is not None:
        return codex.VECTOR, _FLAWS[note.held.flaw]
    return None if note.status is NoteStatus.READY else _judge_lacking(note)


def _judge_unwanted(note: Note) -> tuple[str, str] | None:
    """Return the finding and its message for a note that must not have a vector; None if it is in order."""
    if note.is_orphaned:
        return codex.ORPHAN, tr("{n} with a vector although it must not have one")
    is_said = note.metadata.embedding_status in (None, NoteStatus.NOT_APPLICABLE)
    if is_said:
        return None
    if note.status is NoteStatus.EXCLUDED:
        return codex.METADATA, tr("{n} excluded, but with a status that contradicts this")
    return codex.METADATA, tr("{n} not to be embedded, but with a status that contradicts this")


def _judge_lacking(note: Note) -> tuple[str, str]:
    """Return the finding and its message for a note that should have a vector, but has none of its present text."""
    if note.status is NoteStatus.FAILED:
        code = note.metadata.embedding_error_code
        cause = "" if code is None else f" ({display_text(code)[:_LONGEST_CODE]})"
        return codex.FAILED, tr("{{n}} that could not be embedded{cause}", cause=cause)
    if note.status is NoteStatus.STALE:
        return codex.STALE, tr("{n} changed since its vector was made, or with a vector from a different model")
    stated = note.metadata.embedding_status
    if stated == NoteStatus.READY:
        return codex.METADATA, tr("{n} marked as ready but without a vector")
    if stated == NoteStatus.NOT_APPLICABLE:
        return codex.METADATA, tr("{n} marked both as eligible and as not to be embedded")
    if stated is not None and stated not in database.STATUSES:
        return codex.METADATA, tr("{n} with an unknown status")
    return codex.PENDING, tr("{n} without a vector")


# --- scope of the rows, and reasons for exclusions ------------------------------------------------------------------


#: The parts of the scope that the rows of each table refer to.
_ABOVE = {
    "projects": ("system",),
    "workspaces": ("project",),
    "sessions": ("workspace", "project", "system"),
    NOTES: ("session", "workspace", "project", "system"),
    "handoffs": ("session", "workspace", "project", "system"),
}
_NOUNS = {"projects": "project", "workspaces": "workspace", "sessions": "session", NOTES: "note", "handoffs": "handoff"}


def check_scope(
    db: apsw.Connection, known: Collection[str], chosen: Collection[str], findings: FindingCollector
) -> None:
    """Report rows whose project, workspace or session is missing or contradicts another, and unexplained exclusions.

    Args:
        db: the database.
        known: ids of the projects of the database; rows of others are reported under no project.
        chosen: ids of the projects to check; empty: all, and rows of no project.
        findings: collects what is wrong.

    Raises:
        apsw.Error, UnicodeDecodeError: the file is damaged.
    """
    for table in _ABOVE:
        for message, query in _scope_queries(table):
            for key, project in db.execute(query):
                if not chosen or project in chosen:
                    name = codex.EXCLUSION if message == _NO_REASON else codex.SCOPE
                    base = project if project in known else None
                    findings.add(name, message, base=base, noun=_NOUNS[table], sample=key)


_NO_REASON = tr("{n} excluded without a reason")


def _scope_queries(table: str) -> Iterator[tuple[str, str]]:
    """Yield the messages of findings about the scope of a table's rows, each with a query for these rows.

    A query returns the id and the project's id of each row.
    """
    above = _ABOVE[table]
    project = {"projects": "t.id"}.get(table, "t.project_id")
    select = f"SELECT CAST(t.id AS BLOB), {project} FROM {table} t"
    # A row without an id cannot be named.
    yield tr("{n} without an id"), f"{select} WHERE typeof(t.id) <> 'text'"
    gone = " OR ".join(f"NOT EXISTS (SELECT 1 FROM {one}s a WHERE a.id = t.{one}_id)" for one in above)
    named = join_list(above, tr(" or "))
    yield tr("{{n}} whose {named} is missing", named=named), f"{select} WHERE {gone}"
    odds = [
        f"EXISTS (SELECT 1 FROM {one}s a WHERE a.id = t.{one}_id AND a.{other}_id IS NOT t.{other}_id)"
        for one in above
        for other in _ABOVE.get(f"{one}s", ())
        if other in above
    ]
    if odds:
        yield tr("{n} whose scope contradicts itself"), f"{select} WHERE {' OR '.join(odds)}"
    if table in (NOTES, "handoffs"):
        yield _NO_REASON, f"{select} WHERE t.searchable <> 1 AND trim(ifnull(t.exclusion_reason, '')) = ''"


#: Commands that take the id of a project.
_OF_ONE_PROJECT = {"reconcile", "backfill", "clear-failed"}


class _StoreAudit(msgspec.Struct):
    """State of the audit of one database."""

    findings: FindingCollector
    chosen: tuple[str, ...] = ()
    #: Whether all tables that the checks need exist.
    is_whole: bool = False
    projects: dict[str, Project] = msgspec.field(default_factory=dict)
    survey: NoteSurvey | None = None
    #: State of search by meaning in the whole database.
    signals: health.Signals | None = None
    checked: dict[str, int] = msgspec.field(default_factory=dict)


def audit(store: Located, options: CheckOptions, command_line: CommandLine | None = None) -> Audit:
    """Audit a database of codex-mem without writing. The data never makes this raise.

    Args:
        store: the database.
        options: what to check; ``bases`` are ids of projects.
        command_line: makes the command lines that fix findings; None: findings get no command.
    """
    state = _StoreAudit(FindingCollector(options.level, options.max_duration, options.progress), options.bases)
    path = store.path
    problem = find_open_problem(path)
    try:
        if problem is None:
            with health.open_memory(path) as memory, stage(options.progress, "Checking", 1, "databases"):
                _Audit(path, memory, state).run()
    except (apsw.Error, OSError, UnicodeDecodeError) as error:
        problem = str(error)
    if problem is not None:
        state.findings.add(
            UNREADABLE, tr("{named} cannot be read: {problem}", named=display_text(path.name), problem=problem)
        )
    audited = _as_audit(path, state)
    # Add command lines to the findings, unless the database is damaged.
    if any(finding.name in (UNREADABLE, CORRUPT) for finding in audited.findings):
        return audited  # what cannot be read as a whole is not changed
    return add_commands(audited, command_line, _OF_ONE_PROJECT)


def read_project_ids(source: Located) -> Sequence[str]:
    """Return the ids of the projects of a database."""
    return list(_read_projects(source.path))


def read_ids_by_name(source: Located) -> Mapping[str, str]:
    """Map the names and slugs of projects to their ids."""
    known = _read_projects(source.path)
    words = [word for one in known.values() for word in (one.name, one.slug)]
    ids = {word: database.find_project_id(known, word) for word in words}
    return {word: project for word, project in ids.items() if project is not None}


def _read_projects(path: Path) -> dict[str, Project]:
    """Read the projects of a database by id; none if they cannot be read."""
    try:
        with health.open_memory(path) as memory:
            return database.read_projects(memory.db)
    except (apsw.Error, OSError, UnicodeDecodeError):
        return {}  # which an audit says


class _Audit:
    """Runs the checks of one open database."""

    def __init__(self, path: Path, memory: Memory, state: _StoreAudit) -> None:
        self._path = path
        self._memory = memory
        self._state = state
        self._findings = state.findings

    def run(self) -> None:
        """Run all checks that the level of the audit includes."""
        db, vectors, state, findings = self._memory.db, self._memory.vectors, self._state, self._findings
        size = self._path.stat().st_size
        steps: list[tuple[str, Callable[[], None]]] = [
            ("structure", self._check_structure),
            ("counts", self._if_complete(self._check_counts)),
            ("scope", self._if_complete(lambda: check_scope(db, state.projects, state.chosen, findings))),
            (tr("full text"), self._if_complete(self._check_full_text)),
            (
                "migration",
                self._if_complete(lambda: schema.check_migration(db, findings, has_vectors=self._memory.is_present)),
            ),
            ("vectors", self._if_complete(self._check_vectors)),
        ]
        if self._findings.level >= Level.DEEP:
            steps.append(("integrity", self._check_integrity))
        with ExitStack() as stack:
            stack.enter_context(self._findings.limit_statements(db, size))
            if vectors is not None:
                beside = database.sidecar_path(self._path).stat().st_size
                stack.enter_context(self._findings.limit_statements(vectors.db, beside))
            self._findings.run(self._path.name, steps, None)

    def _check_structure(self) -> None:
        """Report missing tables and foreign objects, and read the projects if the tables are complete."""
        missing = schema.find_missing_schema(self._memory.db)
        for what in missing:
            self._findings.add(codex.SCHEMA, tr("missing: {n} of codex-mem's tables"), noun="part", sample=what)
        self._state.is_whole = not missing
        if not missing:
            self._state.projects = database.read_projects(self._memory.db)
            schema.check_triggers(self._memory.db, self._findings)
        sqlite_checks.add_foreign_objects(schema.find_foreign_in_notes(self._memory.db), self._findings, None)
        if self._memory.vectors is not None:
            beside = sqlite_checks.find_foreign_on_tables(self._memory.vectors.db, (sidecar.TABLE, "meta"))
            sqlite_checks.add_foreign_objects((replace(one, removal=()) for one in beside), self._findings, None)

    def _if_complete(self, check: Callable[[], None]) -> Callable[[], None]:
        """Return a function that runs a check if :meth:`_check_structure` found all tables complete."""
        return lambda: check() if self._state.is_whole else None

    def _check_counts(self) -> None:
        """Count the notes and handoffs."""
        for name, table in (("notes", NOTES), ("handoffs", "handoffs")):
            self._state.checked[name] = self._memory.db.execute(f"SELECT count(*) FROM {table}").get

    def _check_full_text(self) -> None:
        """Check the full-text index; its words only if its triggers are as usual."""
        is_usual = not self._findings.count(codex.TRIGGER, None)
        schema.check_full_text(self._memory.db, self._findings, can_compare_words=is_usual)

    def _check_vectors(self) -> None:
        """Compare the vectors with the notes."""
        survey = self._state.survey = health.survey_notes(self._memory, self._findings.check_time)
        self._state.signals = health.collect_signals(survey)
        if survey.state is not HealthState.DISABLED:
            check_notes(survey, self._state.projects, self._state.chosen, self._findings)

    def _check_integrity(self) -> None:
        """Run SQLite's integrity check over the database and the file of vectors."""
        vectors = self._memory.vectors
        files = [(self._path.name, self._memory.db)]
        files += [] if vectors is None else [(database.sidecar_path(self._path).name, vectors.db)]
        for name, db in files:
            for (message,) in db.execute("PRAGMA integrity_check(20)"):
                if message != "ok":
                    self._findings.add(
                        CORRUPT,
                        tr("SQLite's integrity check reports {n}"),
                        noun="complaint",
                        sample=f"{name}: {message}",
                    )


def _as_audit(path: Path, state: _StoreAudit) -> Audit:
    """Convert the state of the finished checks to the result of the audit."""
    findings, survey = state.findings, state.survey
    embeddings = 0
    if survey is not None and survey.memory.vectors is not None:
        embeddings = (survey.gone or 0) + survey.total.held
    files = (path, database.sidecar_path(path))
    closing = findings.closing(tr("the words of the full-text index"), tr("all pages of the databases"))
    if state.signals is not None:
        meaning = state_label(state.signals.state)
        closing = tr("Search by meaning: {state}. {closing}", state=meaning, closing=closing)
    return findings.to_audit(
        checked={
            "projects": len(state.projects),
            **{name: state.checked.get(name, 0) for name in ("notes", "handoffs")},
            "embeddings": embeddings,
            "bytes": sum(file.stat().st_size for file in files if file.is_file()),
        },
        names={key: one.name for key, one in state.projects.items()},
        closing=closing,
        statistics=Statistics(
            bases=[_statistics(one, survey) for one in state.projects.values()],
            semantic=state.signals,
        ),
    )


def _statistics(project: Project, survey: NoteSurvey | None) -> BaseStatistics:
    """Return the numbers of a project for the HTML page, where notes take the place of units and bodies.

    Without a survey of the notes, no numbers are known.
    """
    unknown = BaseStatistics(
        id=project.id,
        name=project.name,
        units=None,
        bodies=None,
        covered=None,
        embeddings=None,
        lengths={},
        norms=None,
    )
    if survey is None:
        return unknown
    counts, meta = survey.counts.get(project.id, StatusCounts()), survey.memory.meta
    return structs.replace(
        unknown,
        units=counts.eligible + counts.excluded + counts.not_applicable,
        bodies=counts.eligible,
        covered=None if survey.state is HealthState.DISABLED else counts.ready,
        embeddings=counts.held,
        lengths={str(meta.dimensions): counts.held} if meta is not None and counts.held else {},
    )


_STATUSES = ("ready", "pending", "stale", "failed", "excluded", "not_applicable")


class ProjectSummary(BaseSummary, frozen=True, kw_only=True):
    """A project; ``semantic`` counts its notes by the state of their vectors. A project has no file of its own."""

    store: UnsetType | None = UNSET
    slug: str
    workspaces: int
    sessions: int
    notes: int
    handoffs: int
    by_status: dict[str, int]
    by_type: dict[str, int]
    semantic: dict[str, int]
    problem: None = None

    def lines(self, *, verbose: bool) -> Iterator[str]:  # noqa: ARG002 - all of it is short
        """Yield the text output's lines about this project; ``verbose`` adds nothing."""
        yield format_base_heading(self.id, self.name)
        if self.notes:
            yield tr("  notes       {notes:,} ({listed})", notes=self.notes, listed=_format_counts(self.by_status))
            yield f"              {_format_counts(self.by_type)}"
            yield tr("  vectors     {listed}", listed=_format_counts(self.semantic))
        else:
            yield tr("  notes       none")
        rest = (format_count(self.handoffs, "handoff"), format_count(self.workspaces, "workspace"))
        yield tr(
            "  beside      {rest}, {sessions}", rest=join_list(rest), sessions=format_count(self.sessions, "session")
        )
        yield ""


class NotesHealthSummary(HealthSummary, frozen=True, kw_only=True):
    """Health of a database; ``semantic`` is the state of search by meaning, None if it cannot be read."""

    semantic: Signals | None

    def lines(self) -> Iterator[str]:
        """Yield the text output's lines about search by meaning, if its state is known."""
        if self.semantic is None:
            return
        yield tr("search by meaning: {state}", state=state_label(self.semantic.state))
        for name, value in structs.asdict(self.semantic).items():
            # Unknown values are left out.
            if name != "state" and value is not None:
                yield f"  {pad_right(label_of(name.replace('_', ' ')), 22)}{_format_value(value)}"
        yield ""


def inspect_store(source: Located) -> StoreSummary:
    """Summarize a database of codex-mem and its vectors."""
    files = (source.path, database.sidecar_path(source.path))
    size = sum(file.stat().st_size for file in files if file.is_file())
    try:
        with health.open_memory(source.path) as memory:
            missing = schema.find_missing_schema(memory.db)
            if missing:
                return _empty_summary(
                    size, tr("tables of codex-mem are missing: {missing}", missing=join_list(missing))
                )
            survey = health.survey_notes(memory)
            bases = [_summarize_project(survey, one) for one in database.read_projects(memory.db).values()]
            signals, problems = health.collect_signals(survey), list(_describe_problems(survey))
    except (apsw.Error, OSError, UnicodeDecodeError) as error:
        return _empty_summary(size, tr("it cannot be read: {error}", error=error))
    has_vectors = signals.semantic_enabled and signals.eligible
    summary = NotesHealthSummary(
        coverage=signals.ready / signals.eligible if has_vectors else None,
        orphans=signals.orphans or 0,
        stale=signals.stale,
        bytes=size,
        problems=problems,
        semantic=signals,
    )
    return StoreSummary(bases, summary)


def _empty_summary(size: int, problem: str) -> StoreSummary:
    """Return the summary of a database that cannot be read; ``size`` is that of its files in bytes."""
    return StoreSummary([], NotesHealthSummary(orphans=0, stale=0, bytes=size, problems=[problem], semantic=None))


def _describe_problems(survey: NoteSurvey) -> Iterator[str]:
    """Yield a sentence if search by meaning does not work as it should."""
    if survey.state not in (HealthState.READY, HealthState.DISABLED):
        why = health.find_obstacle(survey)
        state = state_label(survey.state)
        if why is not None:
            state = tr("{what}: {why}", what=state, why=why)
        yield tr("search by meaning: {state}", state=state)


def _summarize_project(survey: NoteSurvey, project: database.Project) -> BaseSummary:
    """Summarize a project: its notes by status, type and state of their vectors, and counts of other rows."""
    db = survey.memory.db

    def count(table: str) -> int:
        """Count the rows of a table that belong to the project."""
        return int(db.execute(f"SELECT count(*) FROM {table} WHERE project_id = ?", (project.id,)).get)

    def notes_by(column: str) -> dict[str, int]:
        """Count the notes of the project by the value of a column."""
        query = f"SELECT {column}, count(*) FROM {database.NOTES} WHERE project_id = ? GROUP BY 1 ORDER BY 1"
        return {str(value): int(number) for value, number in db.execute(query, (project.id,))}

    counts = structs.asdict(survey.counts.get(project.id, StatusCounts()))
    return ProjectSummary(
        id=project.id,
        name=project.name,
        slug=project.slug,
        workspaces=count("workspaces"),
        sessions=count("sessions"),
        notes=count(database.NOTES),
        handoffs=count("handoffs"),
        by_status=notes_by("status"),
        by_type=notes_by("type"),
        semantic={name: counts[name] for name in _STATUSES},
    )


def _format_counts(numbers: dict[str, int]) -> str:
    """Format the counts that are not 0 as a list; ``numbers`` maps names to counts."""
    return join_list(format_labeled_count(number, name.replace("_", " ")) for name, number in numbers.items() if number)


def _format_value(value: object) -> str:
    """Format a value of the health report as text."""
    if isinstance(value, bool):
        return label_of("yes" if value else "no")
    if value in ("hybrid", "lexical"):
        return label_of(value)
    return one_line(str(value))


CHECKS = Checks(
    inspect=lambda found, _: inspect_store(found),
    audit=audit,
    part_ids=read_project_ids,
    ids_by_name=read_ids_by_name,
)
