"""What the page of a job shows of its report: values for the templates, by the type of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.audit.findings import FINDINGS, BaseStatistics, CheckReport
from checks.cherry_v2.findings import BASE_MODEL
from checks.systems import load_findings
from migrators.compare import CompareReport
from regraft import api
from regraft.api import application
from regraft.api.profile import ProfileMigrationReport
from regraft.errors import RegraftError
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, StoredCatalog, read_catalog
from regraft.formats.cherry_v2.models import SEPARATOR
from regraft.language import tr
from regraft.page.jobs import Job, Task
from regraft.page.views import SHOWN, Chart, charts_of, in_context
from regraft.report import notices
from regraft.report.document import encoded
from regraft.report.html import BarPart
from regraft.report.labels import severity_heading
from regraft.report.migration import MigrationReport, count_codes, row_bar_parts
from regraft.stores.locate import open_store
from repair.changes.plan import Action, Unresolved
from repair.changes.run import BaseName, ChangeReport, describe_removed_vectors
from repair.cherry_v2.pack import PackReport
from repair.cherry_v2.source import open_base_source
from repair.embedding.report import BackfillReport

#: Parts of the bar of rows that are named by codes.
_PART_NAMES = {
    "v1_deduplicated": tr("duplicates that v1 never stored"),
    "restored_duplicate": tr("duplicates that are restored"),
    notices.WITHOUT_VECTOR: tr("without a vector"),
}


def _migration_values(job: Job, report: MigrationReport) -> dict[str, Any]:
    """Return the values that the template of a migration or its plan needs, by name."""
    names = {base.source_id: base.name for base in report.bases}
    values: dict[str, Any] = {
        "parts": [
            part._replace(name=_PART_NAMES.get(part.name, part.name))
            for part in row_bar_parts(encoded(report)["totals"]["rows"])
            if part.number
        ],
        "reasons": count_codes({**report.totals.rows.skipped, **report.skipped}),
        "notices": _sort_notices(report, names),
        "library": job.task.paths[-1],
        "profile": job.task.paths[1] if isinstance(report, ProfileMigrationReport) else None,
        "install": None,
        "groups": [],
        "most": SHOWN,
        "does_something": True,
        "can_start": False,
    }
    if isinstance(report, ProfileMigrationReport):
        values |= {"install": report.install, "does_something": bool(report.install.actions)}
        values["groups"] = _group_by_base(report.install.bases, report.install.actions, report.install.left)
        values["can_start"] = not job.task.is_plan and application.can_start(job.task.paths[1])
    values["known"], values["missing"] = _list_model_choices(job, report, names) if job.task.is_plan else ([], [])
    return values


def _list_model_choices(
    job: Job, report: MigrationReport, names: dict[str, str]
) -> tuple[list[str], list[dict[str, Any]]]:
    """List the models of the profile, and those about which the reader has to choose.

    ``names`` are the names of the bases by their ids in the source. Returns as :func:`find_missing_models`.
    """
    missing = {
        one.model: {"id": one.model, "bases": [names.get(str(one.base), "")], "provider": "", "has_provider": True}
        for one in report.warnings
        if one.model and one.code == "missing_embedding_model"
    }
    if not isinstance(report, ProfileMigrationReport):
        return [], list(missing.values())
    models = _source_models(job.task.paths[0], report)
    known, lacking = find_missing_models(job.task.paths[1], report.install.left, models)
    return known, list({**missing, **{one["id"]: one for one in lacking}}.values())


def _source_models(path: str, report: MigrationReport) -> dict[str, tuple[str, str]]:
    """Map the new id of each base to its model and its name; bases whose model is unknown are left out."""
    try:
        found = {str(base.id): base.model for base in api.inspect(path).bases}
    except RegraftError:
        return {}
    bases = ((base.id, found.get(base.source_id), base.name) for base in report.bases)
    return {base: (model, name) for base, model, name in bases if isinstance(model, str)}


def _sort_notices(report: MigrationReport, names: dict[str, str]) -> list[dict[str, Any]]:
    """List the notices of a migration for the template, the gravest first, each with the name of its base.

    ``names`` are the names of the bases by their ids in the source.
    """
    order = ("error", "warning", "note")
    found = [
        {
            "severity": notices.EVERY_CODE[one.code].severity,
            "code": one.code,
            "message": one.message,
            "base": names.get(str(one.base), "") if one.base else "",
        }
        for one in report.warnings
    ]
    return sorted(found, key=lambda one: order.index(str(one["severity"])))


def _group_by_base(
    bases: Iterable[BaseName], actions: Iterable[Action], left: Iterable[Unresolved]
) -> list[dict[str, Any]]:
    """Group actions and unresolved findings (``left``) by base, for the template; those without a base come last."""
    names = {base.id: base.name for base in bases}
    groups: dict[str | None, dict[str, Any]] = {}

    def group(base: str | None) -> dict[str, Any]:
        """Return the group of a base, created on first use."""
        return groups.setdefault(base, {"name": names.get(base or "", base), "actions": [], "left": []})

    for action in actions:
        group(action.base)["actions"].append(action)
    for one in left:
        if notices.is_at_least(one.severity, "warning"):
            group(one.base)["left"].append(one)
    ordered = sorted(groups.items(), key=lambda item: (item[0] is None, str(item[1]["name"])))
    return [one for _, one in ordered]


def _change_values(job: Job, report: ChangeReport | BackfillReport) -> dict[str, Any]:
    """Return the values that the template of a change or its plan needs, by name."""
    scopes = getattr(report, "scopes", [])
    target = job.task.paths[1] if job.task.function == "install" else job.task.paths[0]
    values: dict[str, Any] = {
        "groups": _group_by_base(report.bases, report.actions, report.left),
        "most": SHOWN,
        "scopes": scopes,
        "suggestion": getattr(report, "suggestion", None),
        "store": target,
        "does_something": bool(report.actions) or any(scope.planned.texts for scope in scopes),
        "missing": [],
        "known": [],
        "warning": None,
        "can_start": not job.task.is_plan and bool(report.actions) and application.can_start(target),
    }
    if isinstance(report, ChangeReport) and job.task.is_plan:
        values["warning"] = describe_removed_vectors(report, Path(target))
    if job.task.function == "install" and job.task.is_plan:
        models = _library_models(job.task)
        values["known"], values["missing"] = find_missing_models(job.task.paths[1], report.left, models)
    return values


def _library_models(task: Task) -> dict[str, tuple[str, str]]:
    """Map the id of each base of an installation's source to its model and its name."""
    options: Any = task.options
    try:
        with open_base_source(Path(task.paths[0]), options.kind, options.bases, "install") as source:
            found = {
                base: (source.bases[base].get("embedding_model_id"), source.name_of(base)) for base in source.chosen
            }
    except RegraftError:
        return {}
    return {base: (model, name) for base, (model, name) in found.items() if isinstance(model, str)}


def _read_profile_catalog(profile: str) -> StoredCatalog | None:
    """Read the catalog of a profile; None if it cannot be read."""
    try:
        with open_store(Path(profile)) as found:
            return read_catalog(found.tree.path / str(found.stores.catalog), data=False)
    except (RegraftError, CatalogProblem, apsw.Error, OSError):
        return None


def find_missing_models(
    profile: str, left: Iterable[Unresolved], models: dict[str, tuple[str, str]]
) -> tuple[list[str], list[dict[str, Any]]]:
    """List the ids of the models that a profile has, and describe those that it lacks.

    Args:
        profile: the profile's folder.
        left: the findings that a plan leaves unresolved.
        models: model and name of each base, by base id.

    Returns:
        The ids, and for each missing model its id, the bases that need it, and its provider.
    """
    catalog = _read_profile_catalog(profile)
    if catalog is None:
        return [], []
    providers = {str(row.get("provider_id")) for row in catalog.providers or ()}
    # Models for embedding first.
    known = sorted(
        (str(row.get("id")) for row in catalog.models or ()), key=lambda model: ("embed" not in model.lower(), model)
    )
    needed: dict[str, list[str]] = {}
    for one in left:
        if one.finding == BASE_MODEL and one.base in models:
            model, name = models[one.base]
            needed.setdefault(model, []).append(name)
    missing = []
    for model in needed.keys() - set(known):
        provider = model.partition(SEPARATOR)[0]
        missing.append(
            {"id": model, "bases": needed[model], "provider": provider, "has_provider": provider in providers}
        )
    return known, sorted(missing, key=lambda one: str(one["id"]))


#: Months that are shown one by one, and bases in a chart.
_MOST_MONTHS, _MOST_BASES = 24, 100
#: The command that repairs a finding, if one does.
_REPAIR = attrgetter("repair")


def _content_charts(bases: Iterable[BaseStatistics]) -> list[Chart]:
    """Make charts of texts that a base has more than once, and of items by age.

    The age is the month in which an item was added, or the year if there are many months.
    """
    charts: list[Chart] = []
    repeated: list[tuple[str, int]] = []
    months: Counter[str] = Counter()
    for base in bases:
        if isinstance(base.duplicates, int) and base.duplicates:
            repeated.append((base.name, base.duplicates))
        months.update(base.ages or {})
    if repeated:
        charts.append(Chart(tr("Duplicates"), "texts", sorted(repeated, key=lambda row: -row[1])[:_MOST_BASES]))
    if months:
        years: Counter[str] = Counter()
        for month, number in months.items():
            years[month[:4]] += number
        rows = months if len(months) <= _MOST_MONTHS else years
        charts.append(Chart(tr("Items by age"), "items", sorted(rows.items())))
    return charts


def _check_values(job: Job, report: CheckReport) -> dict[str, Any]:
    """Return the values that the template of an audit needs, by name."""
    load_findings()
    charts: list[Chart] = []
    bases = report.statistics.bases or []
    names: dict[Any, str] = {base.id: base.name for base in bases}
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for finding in report.findings:
        new = {
            "name": finding.name,
            "severity": finding.severity,
            "known": FINDINGS[finding.name],
            "cases": [],
            "count": 0,
        }
        one = groups.setdefault((finding.severity, finding.name), new)
        one["count"] += finding.count
        one["cases"].append({"finding": finding, "base": names.get(finding.base, finding.base)})
    severities = [
        BarPart(severity, in_context("severity", severity_heading(severity)), number)
        for severity, number in report.summary.by_severity.items()
        if number
    ]
    numbers = dict(report.checked)
    with suppress(RegraftError):
        charts = charts_of(api.inspect(job.task.paths[0]).bases)
    return {
        "bytes": numbers.pop("bytes", None),
        "numbers": numbers,
        "groups": list(groups.values()),
        "most": SHOWN,
        "severities": severities,
        "coverage": [base for base in bases if isinstance(base.bodies, int) and base.bodies],
        "charts": [*_content_charts(bases), *charts],
        "is_repaired": report.level is not msgspec.UNSET and any(map(_REPAIR, report.findings)),
    }


def _no_values(_job: Job, _report: msgspec.Struct) -> dict[str, Any]:
    """Return no values: the template needs only the report."""
    return {}


_REPORTS: tuple[tuple[type, str, Callable[[Job, Any], dict[str, Any]]], ...] = (
    (MigrationReport, "migration.html", _migration_values),
    (CheckReport, "check.html", _check_values),
    (BackfillReport, "change.html", _change_values),
    (ChangeReport, "change.html", _change_values),
    (PackReport, "pack.html", _no_values),
    (CompareReport, "compare.html", _no_values),
)


def describe(job: Job, report: msgspec.Struct) -> tuple[str, dict[str, Any]]:
    """Return the template for a job's report, and the values that the template needs."""
    template, values_of = next(
        (template, values_of) for kind, template, values_of in _REPORTS if isinstance(report, kind)
    )
    return template, values_of(job, report)
