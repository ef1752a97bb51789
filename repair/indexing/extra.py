"""What reading and cutting texts needs besides regraft itself."""

from __future__ import annotations

import importlib
from typing import Any

from regraft.errors import WrongUsage


def imported(module: str) -> Any:
    """Return a module of the extra ``backfill``.

    Raises:
        WrongUsage: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        hint = 'install it: pip install "regraft[backfill]"'
        raise WrongUsage(
            problem=f"cutting texts into units needs {module}, which is not installed", hint=hint
        ) from error
