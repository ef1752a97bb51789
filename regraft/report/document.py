"""The base class of all reports, and the fields with which every JSON document begins.

A command returns its own subclass of :class:`Report`; :func:`encoded` turns it into the document of ``--json``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from regraft import __version__, identity
from regraft.kinds import KIND_NAMES, Kind
from regraft.language import tr
from regraft.text import path_text

#: The version of the documents' format.
SCHEMA = 1


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """The version of regraft, the command, and the version of the document's format (:data:`SCHEMA`)."""

    version: str
    command: str
    schema: int


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The source or the target of a command; ``kind`` is a :class:`~regraft.kinds.Kind` or "parquet"."""

    kind: str | None
    path: str


class RunTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Id and times of one run (ISO 8601, UTC; None: not yet)."""

    id: str
    started_at: str | None
    finished_at: str | None
    dry_run: bool


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The first fields of every document."""

    regraft: Program
    source: Endpoint | None
    target: Endpoint | None
    run: RunTimes

    @property
    def title(self) -> str:
        """A sentence that says which kind the source has; empty if that is unknown."""
        if self.source is None or self.source.kind is None:
            return ""
        return tr("{path} is {names}.", path=self.source.path, names=KIND_NAMES[Kind(self.source.kind)])


class Report(msgspec.Struct, kw_only=True):
    """The result of a command. Each command's subclass adds its fields."""

    head: Head


def encoded(report: msgspec.Struct) -> dict[str, Any]:
    """Convert a report to its JSON document (``docs/commands.md``): the fields of the head, then the report's own.

    ``UNSET`` fields are omitted.
    """
    document: dict[str, Any] = msgspec.to_builtins(report, builtin_types=(bytes,))
    head = document.pop("head", {})
    return {**head, **document}


class Run(msgspec.Struct, kw_only=True):
    """Id, paths and times (Unix ms) of a command while it runs."""

    command: str
    dry_run: bool = False
    source_kind: str | None = None
    source: Path | None = None
    target_kind: str | None = None
    target: Path | None = None
    id: str = msgspec.field(default_factory=identity.new_run_id)
    started_at: int = msgspec.field(default_factory=identity.now_ms)
    finished_at: int | None = None

    def end(self) -> None:
        """Record the current time as the end of the run."""
        self.finished_at = identity.now_ms()

    def head(self) -> Head:
        """Make the head of the run's document, as it is now."""

        def endpoint(kind: str | None, path: Path | None) -> Endpoint | None:
            """Describe the source or the target; None without a path."""
            return None if path is None else Endpoint(kind=kind, path=path_text(path))

        finished_at = None if self.finished_at is None else identity.iso_time(self.finished_at)
        return Head(
            regraft=Program(version=__version__, command=self.command, schema=SCHEMA),
            source=endpoint(self.source_kind, self.source),
            target=endpoint(self.target_kind, self.target),
            run=RunTimes(
                id=self.id,
                started_at=identity.iso_time(self.started_at),
                finished_at=finished_at,
                dry_run=self.dry_run,
            ),
        )

    def document(self) -> dict[str, object]:
        """Return the head of the run's document as JSON values."""
        document: dict[str, object] = msgspec.to_builtins(self.head())
        return document


# Suggest what to write into a configuration file, and which command to run then.


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """A suggestion for a configuration file: its path, what to add, and the commands to run next."""

    config: str
    snippet: str
    next: list[str]

    def lines(self) -> list[str]:
        """Format the suggestion as lines of text."""
        return [
            tr("Add this to {path}, and put the key into the environment:", path=self.config),
            "",
            *(f"  {line}" for line in self.snippet.splitlines()),
            "",
            *(tr("Next: {command}", command=command) for command in self.next),
        ]
