"""The commands that a fleet runs, and the command line of one library."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """How the command line of one library is made: ``target`` stands before its target, if there is one.

    ``asks`` tells whether the command may ask a person, ``changes`` whether it changes the library itself, ``ending``
    how a target's name ends.
    """

    target: str | None = None
    has_target: bool = False
    asks: bool = False
    changes: bool = False
    ending: str = ""


FORMS = {
    "migrate": Form(target="--to", has_target=True, asks=True),
    "check": Form(),
    "repair": Form(asks=True, changes=True),
    "upgrade": Form(asks=True, changes=True),
    "export": Form(has_target=True, ending=".parquet"),
    # What a library lacks is sent with that of all others, by a command of its own.
    "backfill": Form(changes=True),
}


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done with one library: a plain value, for another process.

    ``source`` and ``target`` are paths, or URLs of a store; ``fleet`` is the fleet's id, by which it knows its own
    leases, and ``cores`` how many of them the library has.
    """

    command: str
    options: tuple[str, ...]
    source: str
    target: str | None = None
    fleet: str = ""
    cores: int = 1

    @property
    def form(self) -> Form:
        """Return how its command line is made."""
        return FORMS[self.command]

    @property
    def is_dry(self) -> bool:
        """Tell whether nothing is to be written."""
        return "--dry-run" in self.options

    def arguments(self, source: str, target: str | None) -> tuple[str, ...]:
        """Return its command line over these paths. Behind ``--`` stand names alone, whatever they begin with."""
        form = self.form
        targets: Sequence[str] = () if target is None else (target,)
        named = () if form.target is None else (form.target, *targets)
        return (
            self.command,
            *self.options,
            *(("--yes",) if form.asks else ()),
            "--json",
            *named,
            "--",
            source,
            *(targets if form.target is None else ()),
        )
