"""A folder full of modules that nothing may import: each writes its name to a file when it runs."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

#: What Python starts by itself where it finds it on the import path.
BY_PYTHON = ("sitecustomize", "usercustomize")


@cache
def names() -> list[str]:
    """Return the names of all modules of the standard library, and of all that is installed here."""
    installed = importlib.metadata.packages_distributions()
    return sorted({*sys.stdlib_module_names, *installed, *BY_PYTHON} - {"__main__"})


def plant(folder: Path, mark: Path) -> None:
    """Write a module of every name into a folder; a few are packages, which come before modules."""
    text = f"import sys\nopen({str(mark)!r}, 'a').write(f'{{__name__}} {{sys.orig_argv}}\\n')\n"
    folder.mkdir(parents=True, exist_ok=True)
    for name in names():
        (folder / f"{name}.py").write_text(text, "utf-8")
    for name in ("multiprocessing", "numpy", "regraft", "json"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "__init__.py").write_text(text, "utf-8")


def environment(**more: str) -> dict[str, str]:
    """Return the variables of this process without those that say how Python looks for modules.

    Its cache of compiled modules stays, so that a process need not compile all that it imports.
    """
    cache = "PYTHONPYCACHEPREFIX"
    given = {name: value for name, value in os.environ.items() if name == cache or not name.startswith("PYTHON")}
    return {**given, "PYTHONDONTWRITEBYTECODE": "1", **more}


def run_in(folder: Path, *command: object, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, and return how it ended and what it said."""
    return subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
