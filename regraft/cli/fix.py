"""``regraft fix``: what ``regraft check`` offers, in the right order, as one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from regraft import api
from regraft.cli.changing import ChangeRequest, carry_out, change_options
from regraft.cli.options import now_option, only_option
from regraft.cli.output import reports_errors


@click.command()
@change_options
@now_option
@only_option
@reports_errors
def fix(path: Path, now: int | None, only: tuple[str, ...], **options: Any) -> None:
    """Do what regraft check offers for the store at PATH: upgrade, rescue, repair, reconcile and gc, in this order.

    One question is asked, and regraft undo takes all of it back. Nothing is embedded and nothing guessed. A text or
    vector that could be listed or attached again is kept, unless another copy is proven or --only names its finding.
    What is left is named at the end, with what to do about it.

    \b
    Example:
      regraft fix library --dry-run
    """
    carry_out(api.fix, path, ChangeRequest(**options), only=only, now_ms=now)
