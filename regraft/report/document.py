"""What every JSON document of regraft begins with: version, command, source, target and run.

A command's result is a :class:`Report` of its own; :func:`encoded` makes its JSON document at the edge.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from regraft import __version__, identity
from regraft.kinds import KIND_NAMES, Kind
from regraft.language import tr
from regraft.text import path_text

#: The version of the documents' shape.
SCHEMA = 1


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """Which regraft made a document, and in what shape; ``schema`` is :data:`SCHEMA`."""

    version: str
    command: str
    schema: int


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One end of a command, its source or its target: what kind of thing it is, and where."""

    kind: str | None
    path: str


class RunTimes(msgspec.Struct, frozen=True, kw_only=True):
    """One run: its id, and when it began and ended (ISO 8601, UTC; None: not yet)."""

    id: str
    started_at: str | None
    finished_at: str | None
    dry_run: bool


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What every document begins with."""

    regraft: Program
    source: Endpoint | None
    target: Endpoint | None
    run: RunTimes

    @property
    def title(self) -> str:
        """Return what the source is, in a sentence; empty where nobody knows."""
        if self.source is None or self.source.kind is None:
            return ""
        return tr("{path} is {names}.", path=self.source.path, names=KIND_NAMES[Kind(self.source.kind)])


class Report(msgspec.Struct, kw_only=True):
    """The result of a command: what all have in common; each command's own has its fields beside it."""

    head: Head


def encoded(report: msgspec.Struct) -> dict[str, Any]:
    """Return the JSON document of a report (``docs/commands.md``): the fields of its head, then its own.

    Fields that are ``UNSET`` are left out.
    """
    document: dict[str, Any] = msgspec.to_builtins(report, builtin_types=(bytes,))
    head = document.pop("head", {})
    return {**head, **document}


class Run(msgspec.Struct, kw_only=True):
    """One run of a command; times in ms."""

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
        """Take the time at which the run ends."""
        self.finished_at = identity.now_ms()

    def head(self) -> Head:
        """Return the head of the run's document."""
        return Head(
            regraft=Program(version=__version__, command=self.command, schema=SCHEMA),
            source=_end(self.source_kind, self.source),
            target=_end(self.target_kind, self.target),
            run=RunTimes(
                id=self.id,
                started_at=_time(self.started_at),
                finished_at=_time(self.finished_at),
                dry_run=self.dry_run,
            ),
        )

    def document(self) -> dict[str, object]:
        """Return the head of the run's document as JSON has it."""
        document: dict[str, object] = msgspec.to_builtins(self.head())
        return document


def _end(kind: str | None, path: Path | None) -> Endpoint | None:
    if path is None:
        return None
    return Endpoint(kind=kind, path=path_text(path))


def _time(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    return identity.iso_time(milliseconds)
