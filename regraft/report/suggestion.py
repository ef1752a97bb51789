"""What is to be written into a file before a command can be run, and the command: of reports and of errors."""

from __future__ import annotations

import msgspec

from regraft.language import tr


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """What to write into which file, as words of a command line, and the commands that come then."""

    config: str
    snippet: str
    next: list[str]

    def lines(self) -> list[str]:
        """Return it as lines for a person."""
        return [
            tr("Write into {path}; a key goes into the environment:", path=self.config),
            "",
            *(f"  {line}" for line in self.snippet.splitlines()),
            "",
            *(tr("Next: {command}", command=command) for command in self.next),
        ]
