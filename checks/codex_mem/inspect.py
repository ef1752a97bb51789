"""Summarize a database of codex-mem for ``inspect``: its projects, and the state of search by meaning."""

from __future__ import annotations

from collections.abc import Iterator

import apsw
from msgspec import UNSET, UnsetType, structs

from checks.codex_mem import audit, schema
from checks.inspect import BaseSummary, HealthSummary, StoreSummary, format_base_heading
from checks.systems import Checks
from regraft.formats.codex_mem import database
from regraft.formats.codex_mem import health as codex_mem_health
from regraft.formats.codex_mem.database import StatusCounts
from regraft.formats.codex_mem.health import HealthState, NoteSurvey, Signals
from regraft.language import format_count, join_list, tr
from regraft.report.labels import label_of, state_label
from regraft.stores.systems import Located
from regraft.text import one_line, pad_right

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
        """Yield its lines of text output."""
        yield format_base_heading(self.id, self.name)
        if self.notes:
            yield tr("  notes       {notes:,} ({listed})", notes=self.notes, listed=_listed(self.by_status))
            yield f"              {_listed(self.by_type)}"
            yield tr("  vectors     {listed}", listed=_listed(self.semantic))
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
        """Yield its lines of text output."""
        if self.semantic is None:
            return
        yield tr("search by meaning: {state}", state=state_label(self.semantic.state))
        for name, value in structs.asdict(self.semantic).items():
            # Unknown values are left out.
            if name != "state" and value is not None:
                yield f"  {pad_right(label_of(name.replace('_', ' ')), 22)}{_written(value)}"
        yield ""


def inspect_store(source: Located) -> StoreSummary:
    """Summarize a database and its vectors."""
    files = (source.path, database.sidecar_path(source.path))
    size = sum(file.stat().st_size for file in files if file.is_file())
    try:
        with codex_mem_health.open_memory(source.path) as memory:
            missing = schema.find_missing_schema(memory.db)
            if missing:
                return _nothing(size, tr("tables of codex-mem are missing: {missing}", missing=join_list(missing)))
            survey = codex_mem_health.survey_notes(memory)
            bases = [_project(survey, one) for one in database.read_projects(memory.db).values()]
            signals, problems = codex_mem_health.collect_signals(survey), list(_problems(survey))
    except (apsw.Error, OSError, UnicodeDecodeError) as error:
        return _nothing(size, tr("it cannot be read: {error}", error=error))
    has_vectors = signals.semantic_enabled and signals.eligible
    health = NotesHealthSummary(
        coverage=signals.ready / signals.eligible if has_vectors else None,
        orphans=signals.orphans or 0,
        stale=signals.stale,
        bytes=size,
        problems=problems,
        semantic=signals,
    )
    return StoreSummary(bases, health)


def _nothing(size: int, problem: str) -> StoreSummary:
    """Return the summary of a database that cannot be read."""
    return StoreSummary([], NotesHealthSummary(orphans=0, stale=0, bytes=size, problems=[problem], semantic=None))


def _problems(survey: NoteSurvey) -> Iterator[str]:
    if survey.state not in (HealthState.READY, HealthState.DISABLED):
        why = codex_mem_health.find_obstacle(survey)
        state = state_label(survey.state)
        if why is not None:
            state = tr("{what}: {why}", what=state, why=why)
        yield tr("search by meaning: {state}", state=state)


def _project(survey: NoteSurvey, project: database.Project) -> BaseSummary:
    db = survey.memory.db

    def count(table: str) -> int:
        return int(db.execute(f"SELECT count(*) FROM {table} WHERE project_id = ?", (project.id,)).get)

    def notes_by(column: str) -> dict[str, int]:
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


def _listed(numbers: dict[str, int]) -> str:
    return join_list(f"{number:,} {name.replace('_', ' ')}" for name, number in numbers.items() if number)


def _written(value: object) -> str:
    if isinstance(value, bool):
        return label_of("yes" if value else "no")
    return one_line(str(value))


CHECKS = Checks(
    inspect=lambda found, _: inspect_store(found),
    audit=audit.audit,
    part_ids=audit.read_project_ids,
    ids_by_name=audit.read_ids_by_name,
)
