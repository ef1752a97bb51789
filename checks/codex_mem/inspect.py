"""A first look at a database of codex-mem: its projects, and how well their notes can be found by meaning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import apsw

from checks.codex_mem import layout
from regraft.formats.codex_mem import database
from regraft.formats.codex_mem import health as codex_mem_health
from regraft.formats.codex_mem.health import State, Survey
from regraft.formats.codex_mem.notes import Counts
from regraft.locate import Located
from regraft.text import counted, one_line

#: How many rows of what a project has; of notes by something that they are.
_COUNTS = {"workspaces": "workspaces", "sessions": "sessions", "notes": database.NOTES, "handoffs": "handoffs"}
_STATUSES = ("ready", "pending", "stale", "failed", "excluded", "not_applicable")


def look(source: Located) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Look at a database and its vectors."""
    files = (source.path, database.sidecar_of(source.path))
    health: dict[str, Any] = {"coverage": None, "orphans": 0, "stale": 0}
    health |= {"bytes": sum(file.stat().st_size for file in files if file.is_file()), "problems": [], "semantic": None}
    try:
        with codex_mem_health.opened(source.path) as memory:
            missing = layout.lacking(memory.db)
            if missing:
                return [], {**health, "problems": [f"tables of codex-mem are missing: {', '.join(missing)}"]}
            survey = codex_mem_health.survey(memory)
            bases = [_project(survey, one) for one in database.projects(memory.db).values()]
            signals, problems = codex_mem_health.signals(survey), list(_problems(survey))
    except (apsw.Error, OSError, UnicodeDecodeError) as error:
        return [], {**health, "problems": [f"it cannot be read: {error}"]}
    has_vectors = signals["semantic_enabled"] and signals["eligible"]
    health["coverage"] = signals["ready"] / signals["eligible"] if has_vectors else None
    return bases, {
        **health,
        "orphans": signals["orphans"] or 0,
        "stale": signals["stale"],
        "problems": problems,
        "semantic": signals,
    }


def _problems(survey: Survey) -> Iterator[str]:
    if survey.state not in (State.READY, State.DISABLED):
        why = codex_mem_health.obstacle(survey)
        yield survey.state.value if why is None else f"{survey.state}: {why}"


def _project(survey: Survey, project: database.Project) -> dict[str, Any]:
    db = survey.memory.db

    def count(table: str) -> int:
        return int(db.execute(f"SELECT count(*) FROM {table} WHERE project_id = ?", (project.id,)).get)

    def notes_by(column: str) -> dict[str, int]:
        query = f"SELECT {column}, count(*) FROM {database.NOTES} WHERE project_id = ? GROUP BY 1 ORDER BY 1"
        return {str(value): int(number) for value, number in db.execute(query, (project.id,))}

    counts = asdict(survey.counts.get(project.id, Counts()))
    return {
        "id": project.id,
        "name": project.name,
        "slug": project.slug,
        **{name: count(table) for name, table in _COUNTS.items()},
        "by_status": notes_by("status"),
        "by_type": notes_by("type"),
        "semantic": {name: counts[name] for name in _STATUSES},
        "problem": None,
    }


def base_lines(base: dict[str, Any]) -> Iterator[str]:
    """Yield what a person is told of a project, beside its name."""
    yield f"  notes       {base['notes']:,} ({_listed(base['by_status'])})" if base["notes"] else "  notes       none"
    if base["notes"]:
        yield f"              {_listed(base['by_type'])}"
        yield f"  vectors     {_listed(base['semantic'])}"
    rest = ((base[name], name.removesuffix("s")) for name in ("handoffs", "workspaces", "sessions"))
    yield f"  beside      {', '.join(counted(number, noun) for number, noun in rest)}"


def _listed(numbers: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in numbers.items() if number)


def health_lines(health: dict[str, Any]) -> Iterator[str]:
    """Yield the signals of search by meaning for a person."""
    semantic = health["semantic"]
    if semantic is None:
        return
    yield f"search by meaning: {semantic['state']}"
    for name, value in semantic.items():
        if name != "state":
            yield f"  {name.replace('_', ' '):<22}{_said(value)}"
    yield ""


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "unknown" if value is None else one_line(str(value))
