"""Runs chromadb's own core in a child process, on copies of a folder (``docs/formats/chroma.md``, "chromadb").

Native code reads files that may be damaged or malicious, and a crash must not reach this process. When the child ends,
no file of the copy is open any more. Only chromadb's Rust core is used: it reads numbers and texts and never unpickles
anything.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from regraft import errors
from regraft.disk import writable
from regraft.errors import CollectionOfOtherVersion, CollectionRefused, WrongUsage
from regraft.language import tr
from regraft.processes.pool import ProcessKilled, ProcessPool

#: What chromadb is needed for, and the extra that installs it.
_EXTRA = (tr("collections of Chroma"), "chroma")
_CORE = "chromadb.api.rust.RustBindingsAPI"
#: Entries that are read or written at once.
PAGE_SIZE = 1000
#: Word in chromadb's message if it would have to migrate the database first.
_VERSION_ERROR = "migration"


class ChromaFailed(Exception):
    """chromadb raised an error. ``is_other_version``: another version of chromadb wrote the database."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.is_other_version = _VERSION_ERROR in reason.lower()


def is_installed() -> bool:
    """Whether chromadb is installed."""
    return find_spec("chromadb") is not None


def demand_chromadb() -> str:
    """Return the installed version of chromadb.

    Raises:
        WrongUsage: chromadb is not installed, lacks its Rust core, or cannot be loaded.
    """
    if not is_installed():
        raise errors.not_installed_error("chromadb", *_EXTRA)
    try:
        version = _load_version()
    except ChromaFailed as failed:
        problem = tr("chromadb cannot be loaded ({reason})", reason=failed)
        raise WrongUsage(problem=problem, hint=tr("reinstall it, or install another version")) from failed
    if version is None:
        raise errors.not_installed_error("chromadb", *_EXTRA)
    return version


@cache
def _load_version() -> str | None:
    """Return the version of chromadb, or None without it; it is loaded, which takes seconds, once for each process.

    Raises:
        ChromaFailed: it cannot be loaded.
    """
    version: str | None = run_in_child(_read_version)
    return version


@contextmanager
def reporting_refusals(path: Path, version: str) -> Iterator[None]:
    """Context that converts errors of chromadb to errors about the folder ``path``; ``version`` is chromadb's.

    Raises:
        CollectionOfOtherVersion, CollectionRefused: chromadb raised an error.
    """
    try:
        yield
    except ChromaFailed as failed:
        if failed.is_other_version:
            raise CollectionOfOtherVersion(path=path, version=version, reason=failed) from failed
        raise CollectionRefused(path=path, reason=failed) from failed


def run_in_child(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a child process, because chromadb can crash and changes global state.

    The function writes to copies only, so a crash does no harm.

    Raises:
        ChromaFailed: it raised an exception, or the process ended.
    """
    with ProcessPool(1) as processes:
        try:
            result, problem = processes.take(processes.put(_call, function, args))
        except ProcessKilled as killed:
            result, problem = None, tr("its process ended (exit status {end})", end=killed.exit_status)
    if problem is not None:
        raise ChromaFailed(problem)
    return result


def _call(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, str | None]:
    """Call a function in the child process; return its result, and a message if it raised an exception."""
    args = tuple(arg.absolute() if isinstance(arg, Path) else arg for arg in args)
    # Importing chromadb reads a file ``.env`` of the working directory, which may be untrusted.
    os.chdir(sys.prefix)
    try:
        return function(*args), None
    # A panic of chromadb's Rust core is not an Exception.
    except BaseException as error:
        return None, f"{type(error).__name__}: {' '.join(str(error).split())}"


def _read_version() -> str | None:
    """Import chromadb, in a child process, and return its version; None if it or its Rust core is not installed."""
    try:
        import chromadb.api.rust  # noqa: PLC0415 - as in _client
    except ImportError:
        return None
    return str(chromadb.__version__)


def open_client(folder: Path, *, migrates: bool = False) -> Any:
    """Open a copy with chromadb; call it in a child process only.

    Args:
        folder: the copy, below a writable root.
        migrates: whether chromadb may bring an existing database to its own version.
    """
    import chromadb  # noqa: PLC0415 - an extra, and only ever in a process of its own
    from chromadb.config import Settings  # noqa: PLC0415

    is_there = folder.is_dir() and any(folder.iterdir())
    # No setting may come from the environment or from a file.
    settings: dict[str, Any] = {
        "_env_file": None,
        "anonymized_telemetry": False,
        "chroma_api_impl": _CORE,
        "chroma_otel_collection_endpoint": "",
        "allow_reset": False,
        # Never migrate an existing database: the application may have an older chromadb.
        "migrations": "validate" if is_there and not migrates else "apply",
    }
    path = str(writable.require_writable(folder))
    if is_there and migrates:
        # Connections that are open during a migration may not know the new columns, and chromadb panics then.
        first: Any = chromadb.PersistentClient(path=path, settings=Settings(**settings))
        # The first versions of 1.x have no such method.
        if hasattr(first, "close"):
            first.close()
    # Closed when the process ends.
    return chromadb.PersistentClient(path=path, settings=Settings(**settings))
