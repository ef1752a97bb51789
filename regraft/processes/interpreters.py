"""Start Python interpreters that import nothing from the working directory.

Users run regraft inside folders that other people made. Python puts the working directory on the import path of
``python -c`` (how :mod:`multiprocessing` starts its processes), of ``python -m``, and for every empty or relative entry
of ``PYTHONPATH``; a file ``pickle.py`` there would run. Only this module decides how an interpreter is started: child
processes and Python's resource tracker (:mod:`regraft.processes.pool` uses :func:`interpreter_options` and
:func:`safe_import_path`), a restart of the command (:func:`interpreter_command`), and what a library or a cluster
starts (:func:`interpreter_environment`).

It imports only modules that every interpreter has loaded already, because the command line calls
:func:`secure_import_path` before any other import.
"""

from __future__ import annotations

import os
import sys

#: Variables of Python; any value of the second one keeps the working directory off the path of ``-c`` and ``-m``.
SEARCH_PATH, _SAFE_PATH = "PYTHONPATH", "PYTHONSAFEPATH"
#: Unless this is set, Windows looks for programs in the working directory first.
_NO_PROGRAMS = "NoDefaultCurrentDirectoryInExePath"
#: The folder that this package was imported from: its code runs already.
_HOME = os.path.abspath(os.path.join(__file__, *[os.pardir] * 3))  # noqa: PTH100, PTH118 - pathlib is not loaded yet


def is_frozen() -> bool:
    """Whether this program is frozen: packed with its interpreter, which then takes no options."""
    return bool(getattr(sys, "frozen", False))


def secure_import_path() -> None:
    """Keep the working directory off the import path of this process and of all that it starts.

    Only the command line calls this: a program that uses regraft as a library decides for itself.
    """
    sys.path[:] = safe_import_path()
    os.environ.update(interpreter_environment())
    if os.name == "nt":
        os.environ[_NO_PROGRAMS] = "1"
        import ctypes  # noqa: PLC0415 - on Windows only

        # Windows would search the working directory for DLLs as well.
        ctypes.WinDLL("kernel32").SetDllDirectoryW("")  # type: ignore[attr-defined,unused-ignore]


def interpreter_options() -> list[str]:
    """Return the interpreter options that keep the working directory off the import path; none for a frozen program."""
    return [] if is_frozen() else ["-P"]


def interpreter_command(*arguments: str) -> list[str]:
    """Return the command line that starts this interpreter with these arguments."""
    # A checkout that is run in place is found through the working directory.
    return [sys.executable, *([] if _HOME in _unsafe_folders() else interpreter_options()), *arguments]


def interpreter_environment() -> dict[str, str]:
    """Return the environment variables to change for an interpreter that this process starts.

    They keep the working directory off its import path.
    """
    changed = {_SAFE_PATH: "1"}
    found = os.environ.get(SEARCH_PATH)
    if found and (relative := _relative_entries(found)):
        changed[SEARCH_PATH] = os.pathsep.join(entry for entry in found.split(os.pathsep) if entry not in relative)
    return changed


def safe_import_path() -> list[str]:
    """Return the import path of this process without the working directory.

    The working directory stays if a program added it by its absolute path, or if regraft itself was imported from it.
    """
    unsafe = _unsafe_folders()
    kept = []
    for entry in sys.path:
        is_safe = _is_absolute(entry) and entry not in unsafe
        if is_safe or _absolute(entry) == _HOME:
            kept.append(entry if is_safe else _HOME)
    return kept


def _unsafe_folders() -> set[str]:
    """Return the absolute paths that Python put on the import path because of the working directory."""
    given = "" if sys.flags.ignore_environment else os.environ.get(SEARCH_PATH, "")
    # An empty variable means no entry.
    relative = _relative_entries(given) if given else []
    started_as_module = getattr(sys.modules.get("__main__"), "__spec__", None) is not None
    if started_as_module and not sys.flags.safe_path:
        relative.append("")
    unsafe = {folder for entry in relative if (folder := _absolute(entry))}
    return unsafe.difference(given.split(os.pathsep))


def _relative_entries(path: str) -> list[str]:
    """Return the entries of ``path``, an import path as in ``PYTHONPATH``, that depend on the working directory."""
    return [entry for entry in path.split(os.pathsep) if not _is_absolute(entry)]


def _absolute(entry: str) -> str | None:
    """Return the absolute path of an entry of the import path; None if the working directory no longer exists."""
    try:
        return os.path.abspath(entry)  # noqa: PTH100 - pathlib is not loaded yet
    except OSError:
        return None


def _is_absolute(entry: str) -> bool:
    """Whether an entry of the import path is absolute; on Windows, one without a drive is not."""
    drive = os.path.splitdrive(entry)[0]
    return os.path.isabs(entry) and (os.name != "nt" or bool(drive))  # noqa: PTH117 - pathlib is not loaded yet
