"""Whether a folder is what a first run left that was killed before anything was in its place."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path

from regraft.errors import RegraftError
from regraft.ledger import ledger
from regraft.ledger.sources import word_of
from regraft.move_errors import MigrationUnfinished
from regraft.text import argument

#: The commands that make a library.
_COMMANDS = ("migrate", "import")


def unfinished_in(folder: Path) -> MigrationUnfinished | None:
    """Return the error of a folder in which a run was killed before it put anything into its place; else None.

    The folder is known to be nothing else. Nothing is written.
    """
    with suppress(RegraftError, OSError):
        if not ledger.path_of(folder).is_file() or ledger.read_entries(folder):
            return None
        runs = ledger.read_runs(folder)
        if any(run.command not in _COMMANDS for run in runs):
            return None
        # A run that was killed while it planned has recorded nothing of itself yet.
        command, source = (runs[-1].command, word_of(runs[-1].source)) if runs else ("migrate", None)
        words = ["regraft", command, source or "SOURCE", "--to", argument(folder)]
        return MigrationUnfinished(path=folder, command=shlex.join(words))
    return None
