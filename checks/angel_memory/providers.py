"""Which embedding provider's vectors AngelMemory uses (``docs/formats/angel_memory.md``, "The provider in use").

The choice itself stands in the system's own settings, elsewhere. In the data folder there are the state file, which
names the provider of the last sync, and the folder of each provider, in which the system makes an empty collection as
soon as it starts with that provider.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import apsw
import msgspec

from regraft.formats.angel_memory import chroma, database
from regraft.formats.angel_memory.chroma import ChromaProblem
from regraft.formats.angel_memory.database import AngelProblem, ProviderFolder

T = TypeVar("T")
#: An empty collection that was not written to for so long before the last maintenance was given up, in s.
GIVEN_UP = 86_400


class Providers(msgspec.Struct, frozen=True, kw_only=True):
    """Whose vectors are used, and whose are not."""

    #: The provider of the last sync, as it stands in its folder's name; "" where none is known.
    stated: str
    #: The provider in use, whose folder may still be missing; None: notes have no vectors.
    in_use: ProviderFolder | None
    #: The folders that are of no use, in the order of names.
    leftovers: tuple[ProviderFolder, ...]
    #: Why the state file cannot be read, None where it can.
    problem: str | None = None

    @property
    def is_changed(self) -> bool:
        """Tell whether the provider in use is not the one that the state file names."""
        return self.problem is None and self.in_use is not None and self.in_use.name != self.stated


def providers(root: Path, chosen: str | None = None) -> Providers:
    """Look at the state file and the folders of providers.

    Args:
        root: the data folder.
        chosen: the provider in use, where the user says so; its folder may be missing.
    """
    stated, saved_at, problem = _state(root)
    folders = database.provider_folders(root)
    if chosen is not None:
        in_use: ProviderFolder | None = database.provider_folder(root, chosen)
    else:
        in_use = _in_use(root, folders, stated, saved_at)
    # Until the new provider has its vectors, the old one's are what there is.
    kept = {stated} if in_use is None else {stated, in_use.name}
    return Providers(
        stated=stated,
        in_use=in_use,
        leftovers=tuple(folder for folder in folders if folder.name not in kept),
        problem=problem,
    )


def _state(root: Path) -> tuple[str, float, str | None]:
    """Return the provider of the last sync, when the state was written (s), and why neither is known."""
    try:
        state = database.read_state(root)
    except AngelProblem as problem:
        return "", 0.0, str(problem)
    saved_at = state.get("last_updated_at")
    return database.stated_provider(state), saved_at if isinstance(saved_at, int | float) else 0.0, None


def _in_use(root: Path, folders: list[ProviderFolder], stated: str, saved_at: float) -> ProviderFolder | None:
    named = next((folder for folder in folders if folder.name == stated), None)
    found = _begun(folders, stated, saved_at) or named or _latest(folders)
    return database.provider_folder(root, stated) if found is None and stated else found


def _begun(folders: list[ProviderFolder], stated: str, saved_at: float) -> ProviderFolder | None:
    """Return the folder of a provider that was chosen since the last sync: it is not filled, or only in part."""
    others = (folder for folder in folders if folder.name != stated)
    return _latest([folder for folder in others if _is_due(folder, saved_at)])


def _is_due(folder: ProviderFolder, saved_at: float) -> bool:
    if entries_of(folder) == 0:
        return folder.database.stat().st_mtime >= saved_at - GIVEN_UP
    written_at = _asked(folder, chroma.written_at)
    # A sync that was stopped has not told the state file.
    return written_at is not None and saved_at > 0 and written_at > saved_at


def _latest(folders: list[ProviderFolder]) -> ProviderFolder | None:
    """Return the folder that was written to last, of those that have a collection for notes."""
    of_notes = [folder for folder in folders if entries_of(folder) is not None]
    return max(of_notes, key=lambda folder: (folder.database.stat().st_mtime_ns, folder.name), default=None)


def entries_of(folder: ProviderFolder) -> int | None:
    """Return how many vectors of notes a provider's folder has, None where it has no collection for them.

    One that cannot be read counts as none.
    """
    return _asked(folder, chroma.count)


def _asked(folder: ProviderFolder, question: Callable[[apsw.Connection, chroma.Collection], T | None]) -> T | None:
    """Ask the collection of notes in a provider's folder; None where there is none that can be read."""
    try:
        with chroma.reading(folder.database) as db:
            found = chroma.collection(db, database.COLLECTION)
            return None if found is None else question(db, found)
    except (ChromaProblem, OSError, apsw.Error, UnicodeDecodeError):
        return None


def entries_elsewhere(folder: ProviderFolder) -> list[str]:
    """Return the names of a provider's other collections that hold something: memories of it, as a rule."""
    try:
        with chroma.reading(folder.database) as db:
            names = [name for name in chroma.names(db) if name != database.COLLECTION]
            found = ((name, chroma.collection(db, name)) for name in names)
            return [name for name, one in found if one is not None and chroma.count(db, one)]
    except (ChromaProblem, OSError, apsw.Error, UnicodeDecodeError):
        return []
