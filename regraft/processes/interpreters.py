"""Python interpreters that import nothing from the working directory.

Users run regraft inside folders that other people made. Python puts the working directory on the import path of
``python -c`` (how :mod:`multiprocessing` starts its processes), of ``python -m``, and for every empty or relative entry
of ``PYTHONPATH``; a file ``pickle.py`` there would run. This module is the one place that decides how an interpreter
is started: worker processes and Python's resource tracker (:mod:`regraft.processes.pool` asks for :func:`options` and
:func:`import_path`), a restart of the command (:func:`command`), and what a library or a cluster starts
(:func:`variables`).

It imports only what every interpreter has loaded already: the command line calls :func:`secure` before anything else.
"""

from __future__ import annotations

import os
import sys

#: Python's own variables: the second one set to anything keeps the working directory off the path of ``-c`` and ``-m``.
SEARCH_PATH, _SAFE_PATH = "PYTHONPATH", "PYTHONSAFEPATH"
#: Windows looks for programs in the working directory first, unless this is set.
_NO_PROGRAMS = "NoDefaultCurrentDirectoryInExePath"
#: The folder that this very package was imported from: its code runs already.
_HOME = os.path.abspath(os.path.join(__file__, *[os.pardir] * 3))  # noqa: PTH100, PTH118 - pathlib is not loaded yet


def is_frozen() -> bool:
    """Whether this program was packed together with its interpreter, which then takes no options of Python's."""
    return bool(getattr(sys, "frozen", False))


def secure_import_path() -> None:
    """Keep the working directory off the import path of this process and of all that it starts.

    For the command line alone: a program that uses regraft as a library decides this for itself.
    """
    sys.path[:] = safe_import_path()
    os.environ.update(interpreter_environment())
    if os.name == "nt":
        os.environ[_NO_PROGRAMS] = "1"
        _forget_libraries_of_the_working_directory()


def _forget_libraries_of_the_working_directory() -> None:
    """Take the working directory out of the places where Windows looks for DLLs."""
    import ctypes  # noqa: PLC0415 - on Windows alone

    ctypes.WinDLL("kernel32").SetDllDirectoryW("")  # type: ignore[attr-defined,unused-ignore]


def interpreter_options() -> list[str]:
    """Return the interpreter options that keep the working directory off the import path; a frozen program has none."""
    return [] if is_frozen() else ["-P"]


def interpreter_command(*arguments: str) -> list[str]:
    """Return the command line that starts this interpreter with these arguments."""
    # A checkout that is run in place is found through its working directory.
    return [sys.executable, *([] if _HOME in _unsafe_folders() else interpreter_options()), *arguments]


def interpreter_environment() -> dict[str, str]:
    """Return the environment variables for a started interpreter that differ from this process's own."""
    changed = {_SAFE_PATH: "1"}
    found = os.environ.get(SEARCH_PATH)
    if found and (relative := _relative(found)):
        changed[SEARCH_PATH] = os.pathsep.join(entry for entry in found.split(os.pathsep) if entry not in relative)
    return changed


def safe_import_path() -> list[str]:
    """Return the import path of this process without the working directory.

    The working directory stays where a program put it on the path by its full name, and where regraft itself was
    imported from it.
    """
    unsafe = _unsafe_folders()
    kept = []
    for entry in sys.path:
        is_safe = _is_absolute(entry) and entry not in unsafe
        if is_safe or _absolute(entry) == _HOME:
            kept.append(entry if is_safe else _HOME)
    return kept


def _unsafe_folders() -> set[str]:
    """Return the folders that Python itself put on the import path for the working directory."""
    given = "" if sys.flags.ignore_environment else os.environ.get(SEARCH_PATH, "")
    # An empty variable is no entry.
    relative = _relative(given) if given else []
    started_as_module = getattr(sys.modules.get("__main__"), "__spec__", None) is not None
    if started_as_module and not sys.flags.safe_path:
        relative.append("")
    unsafe = {folder for entry in relative if (folder := _absolute(entry))}
    return unsafe.difference(given.split(os.pathsep))


def _relative(path: str) -> list[str]:
    """Return the entries of an import path that depend on the working directory."""
    return [entry for entry in path.split(os.pathsep) if not _is_absolute(entry)]


def _absolute(entry: str) -> str | None:
    """Return the full name of a folder; None where the working directory is gone: nothing is imported from there."""
    try:
        return os.path.abspath(entry)  # noqa: PTH100 - pathlib is not loaded yet
    except OSError:
        return None


def _is_absolute(entry: str) -> bool:
    drive = os.path.splitdrive(entry)[0]
    return os.path.isabs(entry) and (os.name != "nt" or bool(drive))  # noqa: PTH117 - pathlib is not loaded yet
