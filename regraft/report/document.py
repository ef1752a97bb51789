"""What every JSON document of regraft begins with: version, command, source, target and run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from regraft import __version__, clock
from regraft.text import path_text

#: The version of the documents' shape.
SCHEMA = 1


@dataclass(kw_only=True)
class Run:
    """One run of a command; times in ms."""

    command: str
    dry_run: bool = False
    source_kind: str | None = None
    source: Path | None = None
    target_kind: str | None = None
    target: Path | None = None
    id: str = field(default_factory=clock.new_run_id)
    started_at: int = field(default_factory=clock.now_ms)
    finished_at: int | None = None

    def end(self) -> None:
        """Take the time at which the run ends."""
        self.finished_at = clock.now_ms()

    def document(self) -> dict[str, object]:
        """Return the head of the run's document."""
        return {
            "regraft": {"version": __version__, "command": self.command, "schema": SCHEMA},
            "source": _end(self.source_kind, self.source),
            "target": _end(self.target_kind, self.target),
            "run": {
                "id": self.id,
                "started_at": None if self.started_at is None else clock.iso_time(self.started_at),
                "finished_at": None if self.finished_at is None else clock.iso_time(self.finished_at),
                "dry_run": self.dry_run,
            },
        }


def _end(kind: str | None, path: Path | None) -> dict[str, object] | None:
    return None if path is None else {"kind": kind, "path": path_text(path)}
