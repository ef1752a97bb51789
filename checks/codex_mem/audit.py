"""The audit of a database of codex-mem and its vectors (``docs/findings.md``, "codex-mem")."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import apsw
import msgspec
from msgspec import structs

from checks.audit import foreign_schema
from checks.audit.collector import FindingCollector, Level, named
from checks.audit.command_lines import with_commands
from checks.audit.file_findings import CORRUPT, UNREADABLE
from checks.audit.findings import FINDINGS, Audit, BaseStatistics, Finding, Statistics
from checks.audit.options import CheckOptions, CommandLine
from checks.audit.sqlite_file import problem_with
from checks.codex_mem import findings as codex
from checks.codex_mem import foreign_schema as own_schema
from checks.codex_mem import full_text, layout, notes, scope
from regraft.formats.codex_mem import database, health, sidecar
from regraft.formats.codex_mem.database import NOTES, Project
from regraft.formats.codex_mem.health import Memory, State, Survey
from regraft.formats.codex_mem.notes import Counts
from regraft.labels import state_label
from regraft.language import tr
from regraft.locate import Located
from regraft.records import replace
from regraft.report.progress import stage

#: Commands that take the id of a project.
_OF_ONE_PROJECT = {"reconcile", "backfill", "clear-failed"}


class _Seen(msgspec.Struct):
    """What an audit has seen."""

    ledger: FindingCollector
    chosen: tuple[str, ...] = ()
    #: The tables that an audit needs are there.
    is_whole: bool = False
    projects: dict[str, Project] = msgspec.field(default_factory=dict)
    survey: Survey | None = None
    #: The draft's state and signals of the whole.
    signals: health.Signals | None = None
    checked: dict[str, int] = msgspec.field(default_factory=dict)


def audit(found: Located, options: CheckOptions, command_line: CommandLine | None = None) -> Audit:
    """Check a database of codex-mem without writing anything.

    Args:
        found: the database.
        options: what to look at; its bases are ids of projects.
        command_line: gives the command lines that mend what is found; without it, none is given.

    Never raises for what is in the data.
    """
    seen = _Seen(FindingCollector(options.level, options.max_duration, options.progress), options.bases)
    path = found.path
    problem = problem_with(path)
    try:
        if problem is None:
            with health.opened(path) as memory, stage(options.progress, "Checking", 1, "databases"):
                _Audit(path, memory, seen).run()
    except (apsw.Error, OSError, UnicodeDecodeError) as error:
        problem = str(error)
    if problem is not None:
        seen.ledger.add(UNREADABLE, tr("{named} cannot be read: {problem}", named=named(path.name), problem=problem))
    audited = _as_audit(path, seen)
    return audited if command_line is None else _with_commands(audited, command_line)


def base_ids(found: Located) -> Sequence[str]:
    """Return the ids of a database's projects."""
    return list(_projects(found.path))


def ids_by_name(found: Located) -> Mapping[str, str]:
    """Return the ids of a database's projects by what else tells one of them: its name and its slug."""
    known = _projects(found.path)
    words = [word for one in known.values() for word in (one.name, one.slug)]
    ids = {word: database.project_id(known, word) for word in words}
    return {word: project for word, project in ids.items() if project is not None}


def _projects(path: Path) -> dict[str, Project]:
    try:
        with health.opened(path) as memory:
            return database.projects(memory.db)
    except (apsw.Error, OSError, UnicodeDecodeError):
        return {}  # which an audit says


class _Audit:
    def __init__(self, path: Path, memory: Memory, seen: _Seen) -> None:
        self._path = path
        self._memory = memory
        self._seen = seen
        self._ledger = seen.ledger

    def run(self) -> None:
        db, vectors = self._memory.db, self._memory.vectors
        size = self._path.stat().st_size
        steps: list[tuple[str, Callable[[], None]]] = [("structure", self._structure), ("counts", self._counts)]
        steps += [("scope", self._scope), (tr("full text"), self._full_text), ("migration", self._migration)]
        steps.append(("vectors", self._vectors))
        if self._ledger.level >= Level.DEEP:
            steps.append(("integrity", self._integrity))
        with ExitStack() as stack:
            stack.enter_context(self._ledger.watched(db, size))
            if vectors is not None:
                beside = database.sidecar_of(self._path).stat().st_size
                stack.enter_context(self._ledger.watched(vectors.db, beside))
            self._ledger.run(self._path.name, steps, None)

    def _structure(self) -> None:
        missing = layout.lacking(self._memory.db)
        for what in missing:
            self._ledger.add(codex.SCHEMA, tr("missing: {n} of codex-mem's tables"), noun="part", sample=what)
        self._seen.is_whole = not missing
        if not missing:
            self._seen.projects = database.projects(self._memory.db)
            layout.check_triggers(self._memory.db, self._ledger)
        foreign_schema.add(own_schema.of_notes(self._memory.db), self._ledger, None)
        if self._memory.vectors is not None:
            beside = foreign_schema.on_tables(self._memory.vectors.db, (sidecar.TABLE, "meta"))
            foreign_schema.add((replace(one, mended=()) for one in beside), self._ledger, None)

    def _counts(self) -> None:
        if self._seen.is_whole:
            for name, table in (("notes", NOTES), ("handoffs", "handoffs")):
                self._seen.checked[name] = self._memory.db.execute(f"SELECT count(*) FROM {table}").get

    def _scope(self) -> None:
        if self._seen.is_whole:
            scope.check(self._memory.db, self._seen.projects, self._seen.chosen, self._ledger)

    def _full_text(self) -> None:
        if self._seen.is_whole:
            is_usual = not self._ledger.count(codex.TRIGGER, None)
            full_text.check(self._memory.db, self._ledger, with_words=is_usual)

    def _migration(self) -> None:
        if self._seen.is_whole:
            present = self._memory.is_present
            layout.check_migration(self._memory.db, self._ledger, has_vectors=present)

    def _vectors(self) -> None:
        if self._seen.is_whole:
            survey = self._seen.survey = health.survey(self._memory, self._ledger.check_time)
            self._seen.signals = health.signals(survey)
            if survey.state is not State.DISABLED:
                notes.check(survey, self._seen.projects, self._seen.chosen, self._ledger)

    def _integrity(self) -> None:
        vectors = self._memory.vectors
        files = [(self._path.name, self._memory.db)]
        files += [] if vectors is None else [(database.sidecar_of(self._path).name, vectors.db)]
        for name, db in files:
            for (message,) in db.execute("PRAGMA integrity_check(20)"):
                if message != "ok":
                    self._ledger.add(
                        CORRUPT, tr("SQLite's own check says {n}"), noun="time", sample=f"{name}: {message}"
                    )


def _as_audit(path: Path, seen: _Seen) -> Audit:
    ledger, survey = seen.ledger, seen.survey
    vectors = None if survey is None else survey.memory.vectors
    files = (path, database.sidecar_of(path))
    closing = ledger.closing(tr("the words of the full-text index"), tr("all pages of the databases"))
    return Audit(
        findings=ledger.findings(),
        checked={
            "projects": len(seen.projects),
            **{name: seen.checked.get(name, 0) for name in ("notes", "handoffs")},
            "embeddings": 0 if vectors is None or survey is None else (survey.gone or 0) + survey.total.held,
            "bytes": sum(file.stat().st_size for file in files if file.is_file()),
        },
        names={key: one.name for key, one in seen.projects.items()},
        closing=f"{_state_of(seen)}{closing}",
        statistics=Statistics(
            bases=[_statistics(one, survey) for one in seen.projects.values()],
            semantic=seen.signals,
        ),
        not_checked=ledger.missing(),
        level=ledger.level.name.lower(),
    )


def _state_of(seen: _Seen) -> str:
    return "" if seen.signals is None else tr("Search by meaning: {state}. ", state=state_label(seen.signals.state))


def _statistics(project: Project, survey: Survey | None) -> BaseStatistics:
    """Return the numbers of a project as a page of an audit draws them: notes have the place of units and bodies."""
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
    counts, meta = survey.counts.get(project.id, Counts()), survey.memory.meta
    return structs.replace(
        unknown,
        units=counts.eligible + counts.excluded + counts.not_applicable,
        bodies=counts.eligible,
        covered=None if survey.state is State.DISABLED else counts.ready,
        embeddings=counts.held,
        lengths={str(meta.dimensions): counts.held} if meta is not None and counts.held else {},
    )


def _with_commands(audited: Audit, command_line: CommandLine) -> Audit:
    """Return an audit whose findings give the command lines that mend them."""
    if any(finding.name in (UNREADABLE, CORRUPT) for finding in audited.findings):
        return audited  # what cannot be read as a whole is not changed
    return with_commands(audited, command_line, _project_of)


def _project_of(finding: Finding) -> tuple[str, ...]:
    words = FINDINGS[finding.name].command
    return ("--base", finding.base) if finding.base is not None and words[0] in _OF_ONE_PROJECT else ()
