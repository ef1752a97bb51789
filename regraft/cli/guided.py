"""``regraft`` without arguments on a terminal: asks for source and profile, shows the plan, and migrates.

Ctrl-C at a question ends it with status 130, the end of the input with 1; nothing is written before the last answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

from msgspec import structs

from checks.cherry_v2 import findings as v2
from checks.cherry_v2.installed import find_backups, list_user_folders
from migrators import pipeline_of
from regraft.api import application, inspection
from regraft.api.arguments import parse_model_id
from regraft.api.profile import ProfileMigrationReport, choose_library, run_profile_migration
from regraft.cli.migrate import ProfilePrompt, run_into_profile
from regraft.cli.options import Output
from regraft.cli.output import echo, echo_error, parse_agreement, read_line, report_errors
from regraft.errors import ApplicationNotStarted, InputEnded, RegraftError, SourceNotFound
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, read_catalog
from regraft.formats.cherry_v2.models import SEPARATOR
from regraft.kinds import V1_SOURCES, Kind
from regraft.language import join_list, tr
from regraft.options import ProfileMigrationOptions
from regraft.stores.locate import PROFILE_DATABASE, open_store
from regraft.text import one_line, printable

Value = TypeVar("Value")


def start() -> NoReturn:
    """Run the questions and the migration, and exit; errors are reported as by any command."""
    _start(as_json=False, verbose=0)
    sys.exit(0)


@report_errors
def _start(**_: object) -> None:
    """Run :func:`run` with the reporting of errors, which expects the options of a command."""
    run()


def run() -> NoReturn:
    """Ask for a source and a profile, and migrate the source into the profile, after a question about the plan."""
    echo(
        tr("Upgrade a knowledge base of Cherry Studio from v1 to v2. Nothing is written before you confirm the plan.\n")
    )
    echo(tr("All commands: regraft --help\n"))
    found = inspection.inspect_computer().found
    # Backups first, the newest at the top, then data folders of v1.
    there = [*find_backups([Path(), *list_user_folders()]), *(one for one in found if one.kind in V1_SOURCES)]
    known = {Path(one.path).absolute(): (Path(one.path), one.facts[0].rstrip(".。")) for one in there}
    sources = list(known.values())
    source = choose(tr("Which v1 data?"), sources, partial(_parse_store, None), _path_hint(sources))
    profiles = [(Path(one.path), one.why) for one in found if one.kind == Kind.V2_PROFILE]
    profile = choose(
        tr("Into which v2 profile of the application?"),
        profiles,
        partial(_parse_store, Kind.V2_PROFILE),
        _path_hint(profiles),
    )
    output = Output(as_json=False, quiet=False, verbose=0)
    with open_store(source) as store:
        # Of a v2 profile, the v1 data are read that are left in it.
        kind = Kind.V1_PROFILE if store.has_v1_state else None
    library = choose_library(source)
    options = _choose_models(source, profile, library, ProfileMigrationOptions(kind=kind), output)
    run_into_profile(source, profile, library, None, options, GuidedPrompt(output=output))


class GuidedPrompt(ProfilePrompt):
    """Shows the plan and asks; if the input ends at a question, an error says so."""

    def asks(self, question: str) -> bool:
        """Ask whether to go on; the default is yes."""
        while True:
            agrees = parse_agreement(read_line(tr("{question} [Y/n]", question=question)))
            if agrees is not None:
                return agrees

    def finish(self, report: ProfileMigrationReport) -> None:
        """Offer to start the application, if it is installed and uses the profile; the end of the input means no."""
        if not report.install.actions or not application.can_start(report.profile.path):
            return
        try:
            if self.asks("\n" + tr("Start the application now?")):
                application.start_application(report.profile.path)
                echo(tr("The application was started. Quit it before you undo.\n"))
        except ApplicationNotStarted as error:
            echo_error(tr("regraft: {error}", error=error))
        except (InputEnded, KeyboardInterrupt):
            # The upgrade is done and printed: not to start anything is no failure.
            echo("\n")


# --- questions -------------------------------------------------------------------------------------------------------


def choose(question: str, known: Sequence[tuple[Value, str]], parse: Callable[[str], Value], hint: str) -> Value:
    """Ask for one of the known values by its number, or for another value that ``parse`` accepts.

    Args:
        question: shown above the known values.
        known: values, each with a description.
        parse: converts an answer; its RegraftError is shown, and the question is asked again.
        hint: the prompt.
    """
    lines = [f"  {number}  {printable(value)}  ({why})" for number, (value, why) in enumerate(known, 1)]
    echo("\n".join([question, *lines]) + "\n")
    while True:
        answer = read_line(hint)
        if not answer and known:
            return known[0][0]
        if answer.isascii() and answer.isdigit() and 1 <= int(answer) <= len(known):
            return known[int(answer) - 1][0]
        if not answer:
            continue
        try:
            return parse(answer)
        except RegraftError as error:
            echo_error(tr("regraft: {error}", error=error))


def _path_hint(known: Sequence[object]) -> str:
    """Return the prompt for a path; if paths are known, also for the number of one."""
    return tr("Number (Enter: 1) or path:") if known else tr("Path:")


def parse_path(answer: str) -> Path:
    """Convert an answer to a path: without the quotes that a terminal adds to a dropped file, ``~`` expanded.

    Raises:
        SourceNotFound
    """
    text = answer[1:-1] if len(answer) > 1 and answer[0] == answer[-1] and answer[0] in "'\"" else answer
    try:
        path = Path(text).expanduser()
        if not path.exists():
            # Terminals of macOS and Linux put a backslash before a blank of a dropped file.
            path = Path(text.replace("\\ ", " ")).expanduser()
        if path.exists():
            return path
    except (OSError, RuntimeError, ValueError) as error:
        raise SourceNotFound(path=text) from error
    raise SourceNotFound(path=text)


# --- source and profile ----------------------------------------------------------------------------------------------


def _parse_store(kind: Kind | None, answer: str) -> Path:
    """Convert an answer to the path of a store of this kind; None: of any store that can be migrated.

    Raises:
        RegraftError: there is no such store.
    """
    path = parse_path(answer)
    with open_store(path, kind) as found:
        if kind is None and not found.has_v1_state:
            pipeline_of(found)
    return path


# --- models ----------------------------------------------------------------------------------------------------------


def _choose_models(
    source: Path, profile: Path, library: Path, options: ProfileMigrationOptions, output: Output
) -> ProfileMigrationOptions:
    """Ask what to do about each embedding model that the profile lacks; return the options with the answers.

    ``library`` is the folder of the library that the migration would write.
    """
    dry = structs.replace(options, dry_run=True)
    planned = run_profile_migration(source, profile, library, dry, progress=output.progress()).report
    for model, bases in _missing_models(planned).items():
        provider, _, name = model.partition(SEPARATOR)
        if provider in options.recreate_provider:
            continue
        same = [one for one in _model_ids(profile) if one.partition(SEPARATOR)[2].lower() == name.lower()]
        choices = [
            (
                f"+{provider}",
                tr("add it with the provider {provider}, disabled and without API keys", provider=provider),
            ),
            *((one, tr("the same model in the profile")) for one in same),
            ("-", tr("leave these bases out")),
        ]
        echo(tr("\nThe profile lacks the model {model} of {bases}.\n", model=model, bases=join_list(bases)))
        answer = choose(
            tr("What do you want to do?"),
            choices,
            partial(parse_model_id, "--map-model"),
            tr("Number (Enter: 1), or the id of another model:"),
        )
        if answer.startswith("+"):
            options = structs.replace(options, recreate_provider=(*options.recreate_provider, provider))
        elif answer != "-":
            options = structs.replace(options, map_model={**options.map_model, model: answer})
    return options


def _missing_models(planned: ProfileMigrationReport) -> dict[str, list[str]]:
    """Map each missing embedding model to the names of the bases that need it."""
    names = {base.id: base.name for base in planned.bases}
    found: dict[str, list[str]] = {}
    for one in planned.install.left:
        if one.finding == v2.BASE_MODEL and one.subject and one.base is not None:
            found.setdefault(one.subject, []).append(one_line(names.get(one.base, one.base)))
    return found


def _model_ids(profile: Path) -> list[str]:
    """List the ids of the models in a profile's database; empty if it cannot be read."""
    try:
        rows = read_catalog(profile / PROFILE_DATABASE, data=False).models or ()
    except CatalogProblem:
        return []
    return [one for one in (row.get("id") for row in rows) if isinstance(one, str)]
