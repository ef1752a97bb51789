"""What programs call: the commands as functions (``docs/api.md``). ``import regraft`` gives each of them.

Every function returns the typed document that ``regraft COMMAND --json`` prints, raises errors by their classes
(:mod:`regraft.errors`), and prints nothing. The command line is a layer over these functions.
A module is loaded when the first of its functions is asked for: a first look needs nothing of what changes a store.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regraft.api.auditing import check as check
    from regraft.api.carrying import export as export
    from regraft.api.carrying import import_ as import_
    from regraft.api.carrying import migrate as migrate
    from regraft.api.carrying import pack as pack
    from regraft.api.changing import clear_failed as clear_failed
    from regraft.api.changing import fix as fix
    from regraft.api.changing import gc as gc
    from regraft.api.changing import history as history
    from regraft.api.changing import install as install
    from regraft.api.changing import reconcile as reconcile
    from regraft.api.changing import repair as repair
    from regraft.api.changing import rescue as rescue
    from regraft.api.changing import undo as undo
    from regraft.api.changing import upgrade as upgrade
    from regraft.api.embedders import list_embedders as list_embedders
    from regraft.api.filling import backfill as backfill
    from regraft.api.filling import rebuild as rebuild
    from regraft.api.looking import inspect as inspect
    from regraft.api.querying import compare as compare
    from regraft.api.querying import recall as recall
    from regraft.api.querying import search as search
    from regraft.api.restoring import restore as restore
    from regraft.report.document import encoded as encoded

#: The module of each function.
_MODULES = {
    "backfill": "regraft.api.filling",
    "check": "regraft.api.auditing",
    "clear_failed": "regraft.api.changing",
    "compare": "regraft.api.querying",
    "encoded": "regraft.report.document",
    "export": "regraft.api.carrying",
    "fix": "regraft.api.changing",
    "gc": "regraft.api.changing",
    "history": "regraft.api.changing",
    "import_": "regraft.api.carrying",
    "inspect": "regraft.api.looking",
    "install": "regraft.api.changing",
    "list_embedders": "regraft.api.embedders",
    "migrate": "regraft.api.carrying",
    "pack": "regraft.api.carrying",
    "rebuild": "regraft.api.filling",
    "recall": "regraft.api.querying",
    "reconcile": "regraft.api.changing",
    "repair": "regraft.api.changing",
    "rescue": "regraft.api.changing",
    "restore": "regraft.api.restoring",
    "search": "regraft.api.querying",
    "undo": "regraft.api.changing",
    "upgrade": "regraft.api.changing",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Return a function of one of the modules; Python asks here for what this module does not have yet."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_MODULES[name]), name)
    return found


def __dir__() -> list[str]:
    """Return the names of this module, with those that are not loaded yet."""
    return sorted({*globals(), *_MODULES})
