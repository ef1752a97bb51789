"""regraft moves a knowledge base to a new storage layout without losing its vectors, and keeps it intact there.

The commands are also functions: ``regraft.migrate``, ``regraft.check`` and so on (``docs/api.md``).
"""

from __future__ import annotations

# Import no module here: with ``python -m regraft``, Python would search the working directory for it
# (regraft/processes/interpreters.py).
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from regraft.api import backfill as backfill
    from regraft.api import certify as certify
    from regraft.api import check as check
    from regraft.api import clear_failed as clear_failed
    from regraft.api import compare as compare
    from regraft.api import encoded as encoded
    from regraft.api import export as export
    from regraft.api import fix as fix
    from regraft.api import gc as gc
    from regraft.api import history as history
    from regraft.api import import_ as import_
    from regraft.api import import_collection as import_collection
    from regraft.api import inspect as inspect
    from regraft.api import install as install
    from regraft.api import list_embedders as list_embedders
    from regraft.api import migrate as migrate
    from regraft.api import migrate_into_profile as migrate_into_profile
    from regraft.api import pack as pack
    from regraft.api import rebuild as rebuild
    from regraft.api import recall as recall
    from regraft.api import reconcile as reconcile
    from regraft.api import repair as repair
    from regraft.api import rescue as rescue
    from regraft.api import restore as restore
    from regraft.api import search as search
    from regraft.api import sync as sync
    from regraft.api import undo as undo
    from regraft.api import upgrade as upgrade

__version__ = "0.1.0"

#: The functions of :mod:`regraft.api`, imported on first use.
_FUNCTIONS = frozenset(
    [
        "backfill",
        "certify",
        "check",
        "clear_failed",
        "compare",
        "encoded",
        "export",
        "fix",
        "gc",
        "history",
        "import_",
        "import_collection",
        "inspect",
        "install",
        "list_embedders",
        "migrate",
        "migrate_into_profile",
        "pack",
        "rebuild",
        "recall",
        "reconcile",
        "repair",
        "rescue",
        "restore",
        "search",
        "sync",
        "undo",
        "upgrade",
    ]
)


def __getattr__(name: str) -> Any:
    """Return a function of :mod:`regraft.api`; Python calls this for names that a module does not have."""
    if name in _FUNCTIONS:
        from importlib import import_module  # noqa: PLC0415 - see above

        return getattr(import_module("regraft.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of this module, including those not imported yet."""
    return sorted({*globals(), *_FUNCTIONS})
