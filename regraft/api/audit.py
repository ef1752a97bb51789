"""An audit of whatever a path is, as ``regraft check`` and programs ask for it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import msgspec

import migrators
from checks import systems
from checks.audit import findings
from checks.audit.collector import CheckOptions, CommandLine, Level
from checks.cherry_v1 import audit as cherry_v1_audit
from checks.cherry_v2 import audit as store
from regraft import identity
from regraft.api.arguments import as_path, parse_kind, parse_model_overrides, progress_or_silent, time_or_now
from regraft.errors import NotChecked, SourceNotMigratable, SourceUnreadable, SourceUnrecognised, WrongUsage
from regraft.identity import replace
from regraft.kinds import KIND_NAMES, V2_STORES, Kind
from regraft.language import tr
from regraft.report.document import Head, Run
from regraft.report.progress import Progress, SilentProgress
from regraft.stores.locate import INDEX_FILE, Located, open_store, unpack_archive
from regraft.text import path_argument
from repair.cherry_v2 import recommendations

#: Commands that go by how old something is.
_OF_AGES = ("gc",)


@contextmanager
def recognize(path: Path, kind: Kind | None) -> Iterator[Located | SourceUnreadable]:
    """Recognise a path; where an index lies, damage to it is a finding and no refusal."""
    with ExitStack() as keep:
        found: Located | SourceUnreadable
        try:
            found = keep.enter_context(open_store(path, kind))
        except (SourceUnreadable, SourceUnrecognised) as error:
            if not path.is_file() or (path.name != Path(INDEX_FILE).name and kind != Kind.INDEX):
                raise
            found = SourceUnreadable(path=path, reason=error.facts.get("reason", error.facts.get("found")))
        yield found


class AuditRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit is asked; ``max_duration`` in seconds, ``bases`` are names or ids, empty: all."""

    level: Level = Level.DEFAULT
    max_duration: float | None = None
    bases: tuple[str, ...] = ()
    map_model: Mapping[str, str] = msgspec.field(default_factory=dict)
    recreate_model: tuple[str, ...] = ()
    #: Whether bases are planned of vector files that v1's state does not name.
    adopt_orphans: bool = False
    #: What ages are relative to; None: the present time.
    now_ms: int | None = None
    progress: Progress = msgspec.field(default_factory=SilentProgress)


def check(
    path: str | Path,
    *,
    kind: Kind | str | None = None,
    bases: Sequence[str] = (),
    level: str = "default",
    only: Sequence[str] = (),
    max_duration: float | None = None,
    map_model: Mapping[str, str] | None = None,
    recreate_model: Iterable[str] = (),
    adopt_orphans: bool = False,
    now_ms: int | None = None,
    progress: Progress | None = None,
) -> findings.CheckReport:
    """Return what an audit finds; options as of ``regraft check``.

    Args:
        path: v2 data, data of another system, or what :func:`migrate` takes.
        kind: what the path is, where that is not recognised rightly.
        bases: names or ids of the only bases to look at; empty: all.
        level: "quick", "default" or "deep".
        only: names of the only findings to return; empty: all.
        max_duration: seconds after which it ends with what was found so far.
        map_model: of v1 data: new ids of models by old ones, or by ids of v1 bases.
        recreate_model: of v1 data: ids of models that will be there again.
        adopt_orphans: of v1 data: whether to plan bases of vector files that no base names.
        now_ms: what ages are relative to, in ms; None: the present time.
        progress: is told how far it is.

    Raises:
        ValueError: there is no such level.
        RegraftError: as ``docs/errors.md`` has them.
    """
    systems.require_finding_names(only)
    place, of_kind = as_path(path), parse_kind(kind)
    wanted = AuditRequest(
        level=Level[level.upper()],
        max_duration=max_duration,
        bases=tuple(bases),
        map_model=map_model or {},
        recreate_model=tuple(recreate_model),
        adopt_orphans=adopt_orphans,
        now_ms=now_ms,
        progress=progress_or_silent(progress),
    )
    with recognize(place, of_kind) as found:
        head, audit = audit_source(place, found, of_kind, wanted)
    return audit.only(only).report(head)


def audit_source(
    path: Path, found: Located | SourceUnreadable, kind: Kind | None, wanted: AuditRequest
) -> tuple[Head, findings.Audit]:
    """Return what an audit of a recognised path comes to.

    Raises:
        WrongUsage: an option says nothing about such data.
        NotChecked: there is nothing in it that is audited.
        RegraftError: it cannot be read.
    """
    of_sources = {
        "--map-model": wanted.map_model,
        "--recreate-model": wanted.recreate_model,
        "--adopt-orphans": wanted.adopt_orphans,
    }
    if isinstance(found, SourceUnreadable):
        return _head(path, Kind.INDEX), store.audit_unreadable_file(path, str(found.facts["reason"]))
    if systems.is_audited(found.kind):
        _refuse(of_sources, tr("of a v1 source or a preview build"))
        options = CheckOptions(
            level=wanted.level,
            max_duration=wanted.max_duration,
            bases=wanted.bases,
            now_ms=time_or_now(wanted.now_ms),
            progress=wanted.progress,
        )
        return _v2_audit(path, found, options, partial(command_line, path, kind, now_ms=wanted.now_ms))
    levels = {"--quick": wanted.level is Level.QUICK, "--deep": wanted.level is Level.DEEP}
    _refuse({**levels, "--max-duration": wanted.max_duration is not None}, tr("of v2 data"))
    return _v1_audit(path, found, kind, wanted)


def _refuse(options: Mapping[str, object], about: str) -> None:
    for name, given in options.items():
        if given:
            raise WrongUsage(
                problem=tr("{name} is for a check {about}", name=name, about=about), hint=tr("leave it out")
            )


def _v2_audit(path: Path, found: Located, options: CheckOptions, line_for: CommandLine) -> tuple[Head, findings.Audit]:
    run = Run(command="check", source_kind=found.kind, source=path)
    # What lies in an archive, or is a backup, is nothing that a command mends.
    is_fixed = found.is_archive or found.kind is Kind.V2_BACKUP
    with unpack_archive(found, _chosen_in(found, options.bases)) as unpacked:
        options = replace(options, bases=systems.resolve_base_ids(unpacked, options.bases))
        audit = systems.audit(unpacked, options, None if is_fixed else line_for)
    if found.kind in V2_STORES and not is_fixed:
        audit = recommendations.remove_idle_commands(audit, found, options.bases, options.now_ms)
        audit = recommendations.add_rescue_hints(audit, found, options.level, options.bases, line_for)
        audit = recommendations.recommend_copies(audit, found, path)
    run.end()
    return run.head(), audit


def _chosen_in(found: Located, bases: tuple[str, ...]) -> tuple[str, ...]:
    """Return the bases that have to be extracted; none where that is all, or where only the catalog can tell."""
    known = {store.base_id for store in (*found.stores.current, *found.stores.preview)}
    return bases if known.issuperset(bases) else ()


def _head(path: Path, kind: Kind) -> Head:
    run = Run(command="check", source_kind=kind, source=path)
    run.end()
    return run.head()


def _v1_audit(path: Path, found: Located, kind: Kind | None, wanted: AuditRequest) -> tuple[Head, findings.Audit]:
    try:
        # A look at vector files alone says what can be made of them.
        migrators.pipeline_of(found, adopt_orphans=wanted.adopt_orphans or found.kind is Kind.V1_VECTOR_FOLDER)
    except SourceNotMigratable as error:
        advice = tr(
            "regraft inspect gives a first look{v1_left}",
            has_v1_state=tr("; --kind v1-profile checks what v1 left") if found.has_v1_state else "",
        )
        raise NotChecked(path=path, what=KIND_NAMES[found.kind], advice=advice) from error
    # A look harms nobody: that the application is running is a finding.
    options = migrators.Options(
        now_ms=time_or_now(wanted.now_ms),
        model_overrides=parse_model_overrides(wanted.map_model, wanted.recreate_model),
        bases=wanted.bases,
        while_running=True,
        adopt_orphans=wanted.adopt_orphans,
    )
    plan = migrators.plan_only(found, options, wanted.progress)
    return plan.report.head, cherry_v1_audit.audit_plan(plan, _migrate_command(path, kind, wanted))


def command_line(
    path: Path, kind: Kind | None, command: Sequence[str], options: Sequence[str], *, now_ms: int | None = None
) -> str:
    """Return the command line for the path that was given, with the time that was, where ages decide."""
    kind_option = ("--kind", kind) if kind else ()
    now_option = ("--now", identity.iso_time(now_ms)) if now_ms is not None and command[0] in _OF_AGES else ()
    return shlex.join(["regraft", *command, path_argument(path), *options, *now_option, *kind_option])


def _migrate_command(path: Path, kind: Kind | None, wanted: AuditRequest) -> list[str]:
    """Return the words of the command that migrates a source, with options that were given for it."""
    words = ["regraft", "migrate", path_argument(path), "--to", "OUT", *(("--kind", kind) if kind else ())]
    for base in wanted.bases:
        words += ["--base", base]
    for old, new in wanted.map_model.items():
        words += ["--map-model", f"{old}={new}"]
    for model in wanted.recreate_model:
        words += ["--recreate-model", model]
    if wanted.adopt_orphans:
        words.append("--adopt-orphans")
    return words
