"""What a user can ask of this migration."""

from __future__ import annotations

import msgspec

from regraft.formats.cherry_v2.models import ModelOverrides


class Options(msgspec.Struct, frozen=True):
    """Everything that a command line or a program can say besides source and target.

    ``bases`` are v1 or v2 ids (empty: all); ``now_ms`` is the run's time; ``jobs`` None means as many as pay.
    """

    now_ms: int
    model_overrides: ModelOverrides = msgspec.field(default_factory=ModelOverrides)
    bases: tuple[str, ...] = ()
    jobs: int | None = None
    dry_run: bool = False
    #: Read a profile although its application is running.
    while_running: bool = False
    #: Give files that v1 left without rows the rows of a file with the same bytes.
    restore_duplicates: bool = True
    #: Carry the texts of rows that have no vector which could be carried.
    carry_text: bool = False
    #: Carry the rows of damaged vector files that prove themselves (``docs/salvage.md``).
    salvage: bool = False
    #: Of a source whose documents are for some people only: whose, besides everybody's, are carried.
    visible_to: tuple[str, ...] = ()
    #: Make a base of each vector file that v1's state does not name.
    adopt_orphans: bool = False
    #: Read back every byte that earlier runs published, also where size and time of a file are what they were.
    verify: bool = False
