"""``regraft check``: an audit, without writing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

import migrators
from checks import findings, v1_source
from regraft import clock, progress
from regraft.cli.options import PATH, model_word, output_options, plan_options
from regraft.cli.output import echo_json, reports_errors, say
from regraft.errors import NotChecked, SourceNotMigratable
from regraft.locate import NAMES, Kind, located
from regraft.text import shown


@click.command()
@click.argument("path", type=PATH)
@click.option("--only", multiple=True, metavar="NAME", help="Only findings of this name; may be repeated.")
@plan_options
@output_options
@reports_errors
def check(  # noqa: PLR0913, PLR0917 - one parameter for every option
    path: Path,
    only: tuple[str, ...],
    bases: tuple[str, ...],
    map_model: tuple[str, ...],
    recreate_model: tuple[str, ...],
    fail_on: str,
    as_json: bool,
    quiet: bool,
    verbose: int,
    kind: str | None,
) -> None:
    """Audit PATH before it is migrated: findings, and what mends each. Nothing is written.

    PATH is whatever regraft migrate takes. What is found is what migrate would say, without a target.
    """
    findings.check_names(only)
    # A look harms nobody: that the application is running is a finding.
    options = migrators.Options(
        now_ms=clock.now_ms(), word=model_word(map_model, recreate_model), bases=bases, while_running=True
    )
    with located(path, Kind(kind) if kind else None) as found:
        try:
            plan = migrators.plan_only(found, options, progress.for_person(quiet=quiet or as_json))
        except SourceNotMigratable as error:
            if error.facts["what"] != NAMES[found.kind]:
                raise
            v1_left = found.kind is Kind.V2_PROFILE and "--kind" in str(error.facts["advice"])
            advice = f"regraft inspect gives a first look{'; --kind v1-profile checks what v1 left' if v1_left else ''}"
            raise NotChecked(path=path, what=NAMES[found.kind], advice=advice) from error
    given = {"--base": bases, "--map-model": map_model, "--recreate-model": recreate_model}
    words = [word for option, values in given.items() for value in values for word in (option, value)]
    audit = v1_source.audit(plan, _migrate_command(path, kind, words)).only(only)
    head = {key: plan[key] for key in ("regraft", "source", "target", "run")}
    if as_json:
        echo_json({**head, **audit.document()})
    else:
        title = f"{plan['source']['path']} is {NAMES[Kind(plan['source']['kind'])]}."
        say(findings.as_text(audit, title, verbose=verbose > 0))
    sys.exit(audit.exit_status(fail_on))


def _migrate_command(path: Path, kind: str | None, words: list[str]) -> list[str]:
    """Return the words of the command that migrates a source, with options that were given for it."""
    name = shown(path)
    source = f".{os.sep}{name}" if name.startswith("-") else name
    return ["regraft", "migrate", source, "--to", "OUT", *(("--kind", kind) if kind else ()), *words]
