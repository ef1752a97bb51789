"""What programs call: the commands as functions (``docs/api.md``). ``import regraft`` gives each of them.

Every function returns the typed document that ``regraft COMMAND --json`` prints, raises errors by their classes
(:mod:`regraft.errors`), and prints nothing. The command line is a layer over these functions.

A module is imported when the first of its functions is used, so that a program that only inspects a store does not load
the modules that change stores.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regraft.api.audit import check as check
    from regraft.api.certification import certify as certify
    from regraft.api.changes import clear_failed as clear_failed
    from regraft.api.changes import fix as fix
    from regraft.api.changes import gc as gc
    from regraft.api.changes import history as history
    from regraft.api.changes import install as install
    from regraft.api.changes import repair as repair
    from regraft.api.changes import rescue as rescue
    from regraft.api.changes import undo as undo
    from regraft.api.changes import upgrade as upgrade
    from regraft.api.embedders import list_embedders as list_embedders
    from regraft.api.embedding import backfill as backfill
    from regraft.api.embedding import rebuild as rebuild
    from regraft.api.embedding import reconcile as reconcile
    from regraft.api.embedding import restore as restore
    from regraft.api.embedding import sync as sync
    from regraft.api.inspection import inspect as inspect
    from regraft.api.profile import migrate_into_profile as migrate_into_profile
    from regraft.api.queries import compare as compare
    from regraft.api.queries import recall as recall
    from regraft.api.queries import search as search
    from regraft.api.transfer import export as export
    from regraft.api.transfer import import_ as import_
    from regraft.api.transfer import import_collection as import_collection
    from regraft.api.transfer import migrate as migrate
    from regraft.api.transfer import pack as pack
    from regraft.report.document import encoded as encoded

#: The module of each function.
_MODULES = {
    "backfill": "regraft.api.embedding",
    "certify": "regraft.api.certification",
    "check": "regraft.api.audit",
    "clear_failed": "regraft.api.changes",
    "compare": "regraft.api.queries",
    "encoded": "regraft.report.document",
    "export": "regraft.api.transfer",
    "fix": "regraft.api.changes",
    "gc": "regraft.api.changes",
    "history": "regraft.api.changes",
    "import_": "regraft.api.transfer",
    "import_collection": "regraft.api.transfer",
    "inspect": "regraft.api.inspection",
    "install": "regraft.api.changes",
    "list_embedders": "regraft.api.embedders",
    "migrate": "regraft.api.transfer",
    "migrate_into_profile": "regraft.api.profile",
    "pack": "regraft.api.transfer",
    "rebuild": "regraft.api.embedding",
    "recall": "regraft.api.queries",
    "reconcile": "regraft.api.embedding",
    "repair": "regraft.api.changes",
    "rescue": "regraft.api.changes",
    "restore": "regraft.api.embedding",
    "search": "regraft.api.queries",
    "sync": "regraft.api.embedding",
    "undo": "regraft.api.changes",
    "upgrade": "regraft.api.changes",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a function of the API on first use; Python calls this for names that a module does not have."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_MODULES[name]), name)
    return found


def __dir__() -> list[str]:
    """Return the names of this module, including functions that are not imported yet."""
    return sorted({*globals(), *_MODULES})
