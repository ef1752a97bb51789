"""What commands that write a library show: the plan, a question before it is carried out, and the result."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import msgspec

import migrators
from regraft.cli.output import confirmed, echo_json, say, written_list
from regraft.formats.cherry_v2.library_report import REPORT_FILE, REPORT_PAGE
from regraft.language import joined, tr
from regraft.ledger import interrupts, ledger
from regraft.locate import CATALOG_FILE, KNOWLEDGE_FOLDER
from regraft.report import notices, render
from regraft.report.document import encoded
from regraft.text import LONGEST_NAME, argument, counted, one_line, shown, shown_lines

#: Bases that are named at the end, before the rest is counted.
_SHOWN = 5


class PlanView(msgspec.Struct):
    """Shows a plan and asks, in a terminal, before something is left behind; a call tells whether to go on."""

    yes: bool
    silent: bool
    #: The warnings that a person has read in the plan.
    warnings: list[dict[str, Any]] = msgspec.field(default_factory=list)

    def __call__(self, planned: migrators.MigrationReport) -> bool:
        """Show a plan, and ask if something would be left behind; return whether to go on."""
        if self.silent:
            return True
        asks = not self.yes and sys.stdin.isatty() and migrators.exit_status(planned, "error") != 0
        document = encoded(planned)
        if not asks:
            say(render.as_line(document) + "\n")
            return True
        say(f"{tr('Plan:')}\n{render.as_text(document)}")
        self.warnings = document["warnings"]
        return confirmed(tr("Some of it cannot be carried. Go on?"))


def tell(
    migration: migrators.Migration,
    target: Path,
    page: Path | None,
    asked: PlanView,
    *,
    as_json: bool,
    quiet: bool,
    verbose: int,
) -> None:
    """Print what a run came to.

    Args:
        migration: the run.
        target: the library.
        page: the second place of its report page.
        asked: what was shown before: warnings that were read there are not said again.
        as_json: print the document alone.
        quiet: leave out what was written.
        verbose: name every note, too.
    """
    document = encoded(migration.report)
    if as_json:
        echo_json(document)
    else:
        known = [] if verbose else asked.warnings
        news = {**document, "warnings": [one for one in document["warnings"] if one not in known]}
        text = render.as_text(news, verbose=verbose > 0) + "\n"
        say(text + _closing(document, _written(target, page, wrote=migration.wrote), quiet=quiet))
    interrupts.over()


def _written(target: Path, page: Path | None, *, wrote: bool) -> list[Path]:
    """Return the paths that a run has written, as far as they are there."""
    names = (CATALOG_FILE, KNOWLEDGE_FOLDER, REPORT_FILE, REPORT_PAGE, ledger.FOLDER) if wrote else ()
    return [*(target / name for name in names if (target / name).exists()), *([page] if page else [])]


def _closing(document: dict[str, Any], written: list[Path], *, quiet: bool) -> str:
    if written:
        return ("" if quiet else written_list(written) + "\n") + shown_lines(_done(document))
    if document["run"]["dry_run"]:
        return tr("Dry run: nothing was written.\n")
    return shown_lines(_unwritten(document))


def _done(document: dict[str, Any]) -> list[str]:
    """Say how many bases are done, which are not and why, and what to do next."""
    meant = [base for base in document["bases"] if base["outcome"] != "unchanged"]
    failed = [base for base in meant if base["error"]]
    lines = [tr("Done: {bases:,} of {bases2}.", bases=len(meant) - len(failed), bases2=counted(len(meant), "base"))]
    unchanged = len(document["bases"]) - len(meant)
    if unchanged:
        lines.append(tr("Unchanged since the last run: {bases}.", bases=counted(unchanged, "base")))
    for base in failed[:_SHOWN]:
        name = one_line(base["name"], LONGEST_NAME)
        lines.append(
            tr("Not done: {name}; why, and what to do: regraft explain {error}", name=name, error=base["error"])
        )
    if len(failed) > _SHOWN:
        lines.append(tr("Not done: {more_bases}, listed above", more_bases=counted(len(failed) - _SHOWN, "more base")))
    target = argument(document["target"]["path"])
    lines.append(tr("Next: {value}", value=shlex.join(["regraft", "check", target])))
    lines.append(
        tr(
            "Then, to use it in the application: {value} --profile PROFILE",
            value=shlex.join(["regraft", "install", target]),
        )
    )
    return lines


def _unwritten(document: dict[str, Any]) -> list[str]:
    """Say that nothing was written, and what was changed by others since."""
    changed = [one["base"] for one in document["warnings"] if one["code"] == notices.CHANGED_SINCE]
    if not changed:
        return [tr("Nothing has changed since the last run: nothing was written.")]
    names = {base.get("legacy_id", base["id"]): base["name"] for base in document["bases"]}
    named = joined(one_line(names.get(base, base), LONGEST_NAME) for base in changed)
    target = document["target"]["path"]
    return [
        tr(
            "Changed in {target} since they were migrated, and left as they are: {named}",
            target=shown(target),
            named=named,
        ),
        tr("The source is the same as at the last run: nothing was written."),
        tr("Next: {value}", value=shlex.join(["regraft", "check", argument(target)])),
    ]
