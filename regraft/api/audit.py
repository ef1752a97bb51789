"""``check``: the audit of a store or of a source of a migration."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from checks import systems
from checks.audit import collector, findings, rolling
from checks.audit.collector import CommandLine, Level
from checks.cherry_v2 import audit as store
from regraft import identity
from regraft.api.arguments import merge_options, parse_model_overrides, progress_or_silent, time_or_now
from regraft.disk import links, writable
from regraft.errors import NotChecked, OutputLost, SourceNotMigratable, SourceUnreadable, SourceUnrecognised, WrongUsage
from regraft.identity import replace
from regraft.kinds import KIND_NAMES, V2_STORES, Kind
from regraft.language import tr
from regraft.ledger import ledger
from regraft.options import CheckOptions
from regraft.report import html
from regraft.report.document import Head, Run
from regraft.report.progress import Progress
from regraft.stores.locate import INDEX_FILE, Located, open_store, unpack_archive
from regraft.stores.write_checks import places_read
from regraft.text import join_command, path_argument, path_text

if TYPE_CHECKING:
    from regraft.report.metrics_file import MetricsFile

#: Commands with ``--now``.
_OF_AGES = ("gc",)


@contextmanager
def recognize(path: Path, kind: Kind | None) -> Iterator[Located | SourceUnreadable]:
    """Open the store at a path, of this kind (None: recognize it).

    An unreadable index file is yielded as SourceUnreadable, because its damage is a finding.
    """
    with ExitStack() as keep:
        found: Located | SourceUnreadable
        try:
            found = keep.enter_context(open_store(path, kind))
        except (SourceUnreadable, SourceUnrecognised) as error:
            if not path.is_file() or (path.name != Path(INDEX_FILE).name and kind != Kind.INDEX):
                raise
            found = SourceUnreadable(path=path, reason=error.facts.get("reason", error.facts.get("found")))
        yield found


def check(
    path: str | Path, options: CheckOptions | None = None, *, progress: Progress | None = None, **fields: Any
) -> findings.CheckReport:
    """Audit v2 data, data of another system, or a source of :func:`migrate`.

    Nothing is written but the state of a rolling check (``part``), and the file of ``metrics``.

    Raises:
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(CheckOptions, options, fields)
    report, _, lost = run_check(Path(path), options, progress_or_silent(progress))
    if lost is not None:
        raise lost
    return report


def run_check(
    path: Path,
    options: CheckOptions,
    progress: Progress,
    *,
    page: Path | None = None,
) -> tuple[findings.CheckReport, findings.Audit, OutputLost | None]:
    """Do what :func:`check` does, but return the report even if its metrics cannot be written.

    Args:
        path: what is checked.
        options: the user's options.
        progress: receives the progress.
        page: the HTML page that the caller is going to write; None: none.

    Returns:
        The report, the audit that it was made from, and the error of writing the metrics, if any.

    Raises:
        WrongUsage: two options name the same output file, or prometheus_client is not installed.
        TargetNotWritable, ReportNotWritable: an output file may not be written.
        RegraftError: as :func:`audit_source`.
    """
    systems.require_finding_names(options.only)
    outputs: dict[Path, str] = {}
    for option, file in {"--report": page, "--state": options.state, "--metrics": options.metrics}.items():
        if file is not None and (other := outputs.setdefault(links.real_path(file), option)) != option:
            problem = tr("{first} and {second} name the same file", first=other, second=option)
            raise WrongUsage(problem=problem, hint=tr("use another file"))
    with recognize(path, options.kind) as found:
        places = places_read(path, found if isinstance(found, Located) else None)
        html.check_page_path("check", page, *places)
        metrics = None
        if options.metrics is not None:
            # It imports much that no other check needs.
            from regraft.report.metrics_file import MetricsFile  # noqa: PLC0415

            metrics = MetricsFile(options.metrics, "check", {"store": path_text(links.real_path(path))})
            metrics.demand_path(places)
        head, audit = audit_source(path, found, options, progress)
    report = audit.report(head)
    lost = None if metrics is None else _write_metrics(metrics, report)
    return report, audit, lost


def audit_source(
    path: Path, source: Located | SourceUnreadable, options: CheckOptions, progress: Progress
) -> tuple[Head, findings.Audit]:
    """Audit a recognized path; return the head of the report, and the findings.

    Raises:
        WrongUsage: an option has no meaning for such data.
        NotChecked: the path has nothing that can be audited.
        RegraftError: it cannot be read.
    """
    of_sources = {
        "--map-model": options.map_model,
        "--recreate-model": options.recreate_model,
        "--adopt-orphans": options.adopt_orphans,
    }
    size = _part_size(source, options)
    if isinstance(source, SourceUnreadable):
        run = Run(command="check", source_kind=Kind.INDEX, source=path)
        run.end()
        head, audit = run.head(), store.audit_unreadable_file(path, str(source.facts["reason"]))
    elif systems.is_audited(source.kind):
        _refuse_options(of_sources, tr("of a v1 source or a preview build"))
        wanted = collector.CheckOptions(
            level=Level[options.level.upper()],
            max_duration=options.max_duration,
            bases=options.bases,
            now_ms=time_or_now(options.now_ms),
            progress=progress,
        )
        line_for = partial(command_line, path, options.kind, now_ms=options.now_ms)
        if size is None:
            head, audit = _v2_audit(path, source, wanted, line_for)
        else:
            head, audit = _audit_part(path, source, wanted, line_for, options.state, size)
    else:
        levels = {f"--{level}": options.level == level for level in ("quick", "deep")}
        _refuse_options({**levels, "--max-duration": options.max_duration is not None}, tr("of v2 data"))
        head, audit = _v1_audit(path, source, options, progress)
    return head, audit.only(options.only)


def _refuse_options(given: Mapping[str, object], about: str) -> None:
    """Raise WrongUsage if an option is given that does not apply to this kind of check.

    ``given`` maps option names to their values; ``about`` says for which data they are.
    """
    for name, value in given.items():
        if value:
            raise WrongUsage(
                problem=tr("{name} can only be used for a check {about}", name=name, about=about),
                hint=tr("leave it out"),
            )


def _v2_audit(
    path: Path, source: Located, options: collector.CheckOptions, line_for: CommandLine
) -> tuple[Head, findings.Audit]:
    """Audit v2 data, and adjust the recommended commands to what they would do.

    ``line_for`` formats the command line of a recommended command. Returns the head of the report, and the findings.
    """
    run = Run(command="check", source_kind=source.kind, source=path)
    # No command repairs archives and backups.
    is_fixed = source.is_archive or source.kind is Kind.V2_BACKUP
    # Everything is extracted if only the catalog in the archive knows the names of the bases.
    known = {store.base_id for store in (*source.stores.current, *source.stores.preview)}
    chosen = options.bases if known.issuperset(options.bases) else ()
    with unpack_archive(source, chosen) as unpacked:
        options = replace(options, bases=systems.resolve_base_ids(unpacked, options.bases))
        audit = systems.audit(unpacked, options, None if is_fixed else line_for)
    if source.kind in V2_STORES and not is_fixed and audit.findings:
        # It imports all planners of repairs, which a store without findings does not need.
        from repair.fix import recommendations  # noqa: PLC0415

        audit = recommendations.remove_idle_commands(audit, source, options.bases, options.now_ms)
        audit = recommendations.add_rescue_hints(audit, source, options.level, options.bases, line_for)
        audit = recommendations.recommend_copies(audit, source, path)
    run.end()
    return run.head(), audit


def _part_size(source: Located | SourceUnreadable, options: CheckOptions) -> Fraction | None:
    """Return the share of the rows that ``--part`` reads, or None for a check of everything.

    Raises:
        WrongUsage: the size is not valid, or options or the kind of the store exclude it.
    """
    if options.part is None:
        if options.state is not None:
            raise WrongUsage(
                problem=tr("--state is the state of a check with --part"), hint=tr("add --part 5%, or leave it out")
            )
        return None
    size = rolling.parse_part(options.part)
    others = {
        f"--{options.level}": options.level != "default",
        "--max-duration": options.max_duration is not None,
        "--base": options.bases,
    }
    for name, given in others.items():
        if given:
            raise WrongUsage(problem=tr("--part and {name} exclude each other", name=name), hint=tr("use one of them"))
    if isinstance(source, Located) and (source.kind not in V2_STORES or source.is_archive):
        raise WrongUsage(
            problem=tr(
                "--part is for v2 libraries, profiles, bases and indexes, and this is {kind}",
                kind=KIND_NAMES[source.kind],
            ),
            hint=tr("leave it out"),
        )
    return size


def _audit_part(
    path: Path,
    source: Located,
    options: collector.CheckOptions,
    line_for: CommandLine,
    state: Path | None,
    size: Fraction,
) -> tuple[Head, findings.Audit]:
    """Run one part of a rolling check, which reads the share ``size`` of all rows.

    The state file, ``state`` or one in the store's folder, records which rows were read. Returns as :func:`_v2_audit`.
    """
    names: Collection[str] = store.read_base_names(source)
    checked, name = links.real_path(source.tree.path), "check.sqlite"
    own = checked / ledger.FOLDER
    if source.kind in (Kind.BASE, Kind.INDEX):
        # A base in a library has a state of its own beside that of the library.
        names = [str(one.base_id or one.name) for one in (*source.stores.current, *source.stores.preview)]
        checked = links.real_path(path)
        name = f"check-{hashlib.sha256(''.join(names).encode('utf-8', 'replace')).hexdigest()[:16]}.sqlite"
    # The store's own folder is the place of its state, under any name.
    is_outside = state is not None and links.real_path(state).parent != links.real_path(own)
    places = places_read(path, source) if is_outside else ()
    with rolling.open_part(checked, own / name, state, size, options.now_ms, places) as part:
        part.require_known_base(names)
        # Of the levels, the structure of each file; the rows of the part come on top.
        head, audit = _v2_audit(path, source, replace(options, level=Level.SHAPE, part=part), line_for)
        report = part.finish(names)
    counts = {name: audit.checked[name] for name in ("bases", "items", "raw_files", "bytes")}
    closing = tr("Only a check without --part finds what concerns several rows.")
    audit = replace(audit, level="part", part=report, checked={**counts, "rows": report.read}, closing=closing)
    return head, audit


def _write_metrics(metrics: MetricsFile, report: findings.CheckReport) -> OutputLost | None:
    """Write the metrics of a check (``docs/rolling-check.md``).

    Return the error if that fails, or None: it is not raised, because the check is done.
    """
    counts: Counter[tuple[str, ...]] = Counter()
    for finding in report.findings:
        counts[finding.name, finding.severity] += finding.count
    metrics.add("timestamp_seconds", "When the check ended.", identity.now_ms() / 1000)
    metrics.add_labelled(
        "checked", "What the check counted.", ("what",), {(what,): count for what, count in report.checked.items()}
    )
    metrics.add_labelled("findings", "Rows or files that have a finding.", ("finding", "severity"), counts)
    part = report.part
    if part is not UNSET:
        metrics.add("cycle", "The number of the cycle.", part.cycle)
        metrics.add("part", "Runs of the cycle so far.", part.number)
        metrics.add("parts", "Runs that the cycle takes with parts of this size.", part.parts)
        metrics.add("rows", "Rows of the store.", part.rows)
        metrics.add("rows_read", "Rows that this run read.", part.read)
        metrics.add("rows_covered", "Rows that the cycle has read.", part.covered)
        metrics.add("coverage_ratio", "Share of the rows that the cycle has read.", part.coverage)
        if part.last_complete_at is not None:
            ended = datetime.fromisoformat(part.last_complete_at).timestamp()
            metrics.add("cycle_complete_timestamp_seconds", "When the last whole cycle ended.", ended)
    return writable.write_last_output(metrics.path, metrics.write)


def _v1_audit(path: Path, source: Located, options: CheckOptions, progress: Progress) -> tuple[Head, findings.Audit]:
    """Audit a source of a migration by planning it; return the head of the report, and the findings."""
    # They import all readers of v1 data, which a check of v2 data does not need.
    import migrators  # noqa: PLC0415
    from checks.cherry_v1 import audit as cherry_v1_audit  # noqa: PLC0415

    try:
        # A look at vector files alone says what can be made of them.
        migrators.pipeline_of(source, adopt_orphans=options.adopt_orphans or source.kind is Kind.V1_VECTOR_FOLDER)
    except SourceNotMigratable as error:
        advice = tr(
            "regraft inspect gives a first look{v1_left}",
            v1_left=tr("; --kind v1-profile checks what v1 left") if source.has_v1_state else "",
        )
        raise NotChecked(path=path, what=KIND_NAMES[source.kind], advice=advice) from error
    # Reading is safe while the application runs; that it runs is a finding.
    wanted = migrators.Options(
        now_ms=time_or_now(options.now_ms),
        model_overrides=parse_model_overrides(options.map_model, options.recreate_model),
        bases=options.bases,
        while_running=True,
        adopt_orphans=options.adopt_orphans,
    )
    plan = migrators.plan_only(source, wanted, progress)
    return plan.report.head, cherry_v1_audit.audit_plan(plan, _migrate_command(path, options))


def command_line(
    path: Path, kind: Kind | None, command: Sequence[str], options: Sequence[str], *, now_ms: int | None = None
) -> str:
    """Format the command line of a recommended command.

    Args:
        path: the path of the check.
        kind: its ``--kind``, if given.
        command: the words of the command, such as ``("gc",)``.
        options: words that follow the path.
        now_ms: the ``--now`` of the check; repeated only for commands that judge ages.
    """
    kind_option = ("--kind", kind) if kind else ()
    now_option = ("--now", identity.iso_time(now_ms)) if now_ms is not None and command[0] in _OF_AGES else ()
    return join_command(["regraft", *command, path_argument(path), *options, *now_option, *kind_option])


def _migrate_command(path: Path, options: CheckOptions) -> list[str]:
    """Return the words of the command that migrates the checked source, with the same options."""
    words = [
        "regraft",
        "migrate",
        path_argument(path),
        "--to",
        "OUT",
        *(("--kind", options.kind) if options.kind else ()),
    ]
    for base in options.bases:
        words += ["--base", base]
    for old, new in options.map_model.items():
        words += ["--map-model", f"{old}={new}"]
    for model in options.recreate_model:
        words += ["--recreate-model", model]
    if options.adopt_orphans:
        words.append("--adopt-orphans")
    return words
