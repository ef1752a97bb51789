"""What programs call: the commands as functions (``docs/api.md``). ``import regraft`` gives each of them.

Every function returns the typed document that ``regraft COMMAND --json`` prints, raises errors by their classes
(:mod:`regraft.errors`), and prints nothing. The command line is a layer over these functions.
"""

from regraft.api.carrying import export, import_, migrate, pack
from regraft.api.changing import clear_failed, fix, gc, history, install, reconcile, repair, rescue, undo, upgrade
from regraft.api.embedders import list_embedders
from regraft.api.filling import backfill, rebuild
from regraft.api.looking import check, compare, inspect, recall, search
from regraft.api.restoring import restore
from regraft.report.document import encoded

__all__ = [
    "backfill",
    "check",
    "clear_failed",
    "compare",
    "encoded",
    "export",
    "fix",
    "gc",
    "history",
    "import_",
    "inspect",
    "install",
    "list_embedders",
    "migrate",
    "pack",
    "rebuild",
    "recall",
    "reconcile",
    "repair",
    "rescue",
    "restore",
    "search",
    "undo",
    "upgrade",
]
