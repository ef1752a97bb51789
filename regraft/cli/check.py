"""``regraft check``: an audit, without writing."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

import migrators
from checks import systems
from checks.audit import findings
from checks.audit import page as audit_page
from checks.audit.collector import Level
from checks.audit.options import CheckOptions
from checks.cherry_v1 import audit as cherry_v1_audit
from checks.cherry_v2 import audit as store
from regraft import clock, links
from regraft.cli.options import PATH, model_word, only_option, output_options, plan_options
from regraft.cli.output import echo_json, note, reports_errors, say, written_list
from regraft.errors import (
    NotChecked,
    SourceNotMigratable,
    SourceUnreadable,
    SourceUnrecognised,
    WrongUsage,
)
from regraft.kinds import NAMES, V2_STORES, Kind
from regraft.language import tr
from regraft.locate import INDEX_FILE, Located, located
from regraft.report import html as report_html
from regraft.report import progress
from regraft.report.document import Head, Run, encoded
from regraft.text import argument
from regraft.unpacking import on_disk
from repair.cherry_v2 import proven_hints


def _levels(command: Any) -> Any:
    """Add how deep v2 data are looked at, and how long."""
    for option in (
        click.option(
            "--max-duration",
            type=click.FloatRange(min=0),
            metavar="SECONDS",
            help=tr("v2: end after so long, with what was found so far."),
        ),
        click.option("--deep", is_flag=True, help=tr("v2: SQLite's own integrity check and every snapshot, too.")),
        click.option("--quick", is_flag=True, help=tr("v2: structure, counts and coverage only.")),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("path", type=PATH)
@only_option
@_levels
@click.option(
    "--report", "page", type=PATH, metavar="FILE.html", help=tr("Write numbers and charts, and no text or name, here.")
)
@plan_options
@output_options
@reports_errors
def check(  # noqa: PLR0913, PLR0917 - one parameter for every option
    path: Path,
    only: tuple[str, ...],
    quick: bool,
    deep: bool,
    max_duration: float | None,
    page: Path | None,
    bases: tuple[str, ...],
    map_model: tuple[str, ...],
    recreate_model: tuple[str, ...],
    fail_on: str,
    as_json: bool,
    quiet: bool,
    verbose: int,
    kind: str | None,
) -> None:
    """Audit PATH: findings, and what mends each. Nothing is written but FILE.html.

    PATH is v2 data (a library, a profile, a base's folder, an index file), a database of codex-mem, a data folder of
    AngelMemory, or whatever regraft migrate takes: then what is found is what migrate would say, without a target.

    \b
    Example:
      regraft check library --deep
    """
    findings.check_names(only)
    bar = progress.for_person(quiet=quiet or as_json)
    options = CheckOptions(level=_level(quick=quick, deep=deep), max_duration=max_duration, bases=bases, progress=bar)
    models = {"--map-model": map_model, "--recreate-model": recreate_model}
    with _recognised(path, kind) as found:
        if page is not None:
            _check_page(page, path, found)
        if isinstance(found, SourceUnreadable):
            head, audit = _head(path, Kind.INDEX), store.unreadable(path, str(found.facts["reason"]))
        elif found.kind in systems.AUDITED:
            _refuse(models, tr("of a v1 source or a preview build"))
            head, audit = _v2_audit(path, found, options, kind)
        else:
            _refuse({"--quick": quick, "--deep": deep, "--max-duration": max_duration is not None}, tr("of v2 data"))
            # A look harms nobody: that the application is running is a finding.
            carrying = migrators.Options(
                now_ms=clock.now_ms(),
                model_overrides=model_word(map_model, recreate_model),
                bases=bases,
                while_running=True,
            )
            command = _migrate_command(path, kind, {"--base": bases, **models})
            head, audit = _v1_audit(path, found, carrying, command, bar)
    audit = audit.only(only)
    report = audit.report(head)
    written = "" if page is None else _written_page(page, report, only, quiet=quiet)
    if as_json:
        echo_json(encoded(report))
        for line in written.splitlines():
            note(line)
    else:
        text = findings.as_text(audit, head.title, verbose=verbose > 0)
        say(f"{text}\n{written}" if written else text)
    sys.exit(audit.exit_status(fail_on))


def _level(*, quick: bool, deep: bool) -> Level:
    if quick and deep:
        raise WrongUsage(problem=tr("--quick and --deep contradict each other"), hint=tr("leave one of them out"))
    return Level.QUICK if quick else Level.DEEP if deep else Level.DEFAULT


def _written_page(page: Path, report: findings.CheckReport, only: tuple[str, ...], *, quiet: bool) -> str:
    """Write the report page; return what is said of that."""
    report_html.write(page, audit_page.as_page(encoded(report), only))
    return "" if quiet else written_list([page])


def _check_page(page: Path, path: Path, found: Located | SourceUnreadable) -> None:
    """Refuse a page in what is read: PATH, the base that an index belongs to, a data folder that settings name."""
    read = [path, *([path.absolute().parents[1]] if path.match(INDEX_FILE) else [])]
    # The tree of a base begins above it, where a page may lie.
    if isinstance(found, Located) and not links.real_path(path).is_relative_to(links.real_path(found.tree.path)):
        read.append(found.tree.path)
    report_html.check_place("check", page, *read)


@contextmanager
def _recognised(path: Path, kind: str | None) -> Iterator[Located | SourceUnreadable]:
    """Recognise a path; where an index lies, damage to it is a finding and no refusal."""
    with ExitStack() as keep:
        found: Located | SourceUnreadable
        try:
            found = keep.enter_context(located(path, Kind(kind) if kind else None))
        except (SourceUnreadable, SourceUnrecognised) as error:
            if not path.is_file() or (path.name != Path(INDEX_FILE).name and kind != Kind.INDEX):
                raise
            found = SourceUnreadable(path=path, reason=error.facts.get("reason", error.facts.get("found")))
        yield found


def _refuse(options: dict[str, Any], about: str) -> None:
    for name, given in options.items():
        if given:
            raise WrongUsage(
                problem=tr("{name} is for a check {about}", name=name, about=about), hint=tr("leave it out")
            )


def _v2_audit(path: Path, found: Located, options: CheckOptions, kind: str | None) -> tuple[Head, findings.Audit]:
    run = Run(command="check", source_kind=found.kind, source=path)
    line_for = partial(command_line, path, kind)
    # What lies in an archive, or is a backup, is nothing that a command mends.
    is_fixed = found.is_archive or found.kind is Kind.V2_BACKUP
    with on_disk(found, _chosen_in(found, options.bases)) as unpacked:
        options = replace(options, bases=systems.chosen_bases(unpacked, options.bases))
        audit = systems.audit(unpacked, options, None if is_fixed else line_for)
    if found.kind in V2_STORES and not is_fixed:
        audit = proven_hints.with_hints(audit, found, options.level, options.bases, line_for)
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


def _v1_audit(
    path: Path, found: Located, options: migrators.Options, command: list[str], bar: progress.Progress
) -> tuple[Head, findings.Audit]:
    try:
        migrators.pipeline_of(found)
    except SourceNotMigratable as error:
        advice = tr(
            "regraft inspect gives a first look{v1_left}",
            v1_left=tr("; --kind v1-profile checks what v1 left") if found.v1_left else "",
        )
        raise NotChecked(path=path, what=NAMES[found.kind], advice=advice) from error
    plan = migrators.plan_only(found, options, bar)
    return plan.report.head, cherry_v1_audit.audit(plan, command)


def command_line(path: Path, kind: str | None, command: Sequence[str], options: Sequence[str]) -> str:
    """Return the command line for the path that was given."""
    kind_option = ("--kind", kind) if kind else ()
    return shlex.join(["regraft", *command, argument(path), *options, *kind_option])


def _migrate_command(path: Path, kind: str | None, options: dict[str, tuple[str, ...]]) -> list[str]:
    """Return the words of the command that migrates a source, with options that were given for it."""
    words = [
        model_overrides for option, values in options.items() for value in values for model_overrides in (option, value)
    ]
    return ["regraft", "migrate", argument(path), "--to", "OUT", *(("--kind", kind) if kind else ()), *words]
