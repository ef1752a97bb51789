"""What processes of a fleet do in tests in the place of a command: they get into trouble by the name of the source."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from regraft.fleet.engine import Ended


def work(arguments: tuple[str, ...]) -> Ended:
    """End as the source's name says; ``once``: only the first time."""
    source = Path(arguments[-1])
    trouble = source.name.partition(" ")[2]
    if trouble.endswith(" once") and _is_first(source):
        trouble = trouble.removesuffix(" once")
    if trouble == "killed":
        os.kill(os.getpid(), signal.SIGTERM if os.name == "nt" else signal.SIGKILL)
    status, code = {"full": (3, "StoppedBySystem"), "fault": (3, "FaultOfRegraft"), "refused": (2, "WrongUsage")}.get(
        trouble, (0, None)
    )
    document = {} if code is None else {"error": {"code": code, "message": f"{trouble}."}}
    return Ended(status=status, document=document, seconds=0.1)


def _is_first(source: Path) -> bool:
    mark = source.with_name(f"{source.name}.seen")
    if mark.exists():
        return False
    mark.touch()
    return True


TROUBLE = work
