"""Optional parts of regraft: libraries that are imported when they are needed, never before."""

from __future__ import annotations

import importlib
from typing import Any

from regraft.errors import WrongUsage
from regraft.language import tr


def needed(module: str, purpose: str, extra: str) -> Any:
    """Return a module of an optional library.

    Args:
        module: its name, for example ``pyarrow.parquet``.
        purpose: what needs it, in the plural, as an error says it: ``Parquet files``.
        extra: the extra of regraft that brings it.

    Raises:
        WrongUsage: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise not_installed(module, purpose, extra) from error


def not_installed(module: str, purpose: str, extra: str) -> WrongUsage:
    """Return the error that says which extra brings a module; the arguments are those of :func:`needed`."""
    library = module.partition(".")[0]
    problem = tr("{purpose} need {library}, which is not installed", purpose=purpose, library=library)
    return WrongUsage(problem=problem, hint=tr('install it: pip install "regraft[{extra}]"', extra=extra))
