"""What a backup states of itself (``metadata.json``, since version 6), and where in an archive it lies.

The source of both is ``docs/formats/v1.md``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec

from regraft.errors import SourceUnreadable
from regraft.formats import json_text
from regraft.formats.cherry_v1 import state
from regraft.formats.cherry_v2.layout import KNOWLEDGE_FOLDER
from regraft.tree import Tree, join

#: Folders that mean something by their name: an archive is not read from inside them.
_NAMED_FOLDERS = {"Data", "data", "Local Storage", "IndexedDB", KNOWLEDGE_FOLDER, ".cherry"}
#: In so many folders within one another what was packed may lie; a folder may have a link to itself in it.
_MOST_FOLDERS = 16


class _Metadata(msgspec.Struct):
    version: Any = None
    resources: Any = None


class Backup(msgspec.Struct, frozen=True):
    """What a backup states of itself: its version, and which parts of a profile it has."""

    version: int | None = None
    resources: Mapping[str, Any] = msgspec.field(default_factory=dict)


def backup_of(tree: Tree, name: str) -> Backup:
    """Return what the metadata at ``name`` state; nothing where they cannot be read."""
    with contextlib.suppress(json_text.JsonProblem, SourceUnreadable):
        stated = json_text.decode(state.read_text(tree, name), _Metadata)
        resources = stated.resources if isinstance(stated.resources, dict) else {}
        return Backup(stated.version if isinstance(stated.version, int) else None, resources)
    return Backup()


def inner_folder(tree: Tree) -> str:
    """Return the folder of an archive that holds everything, where things were packed together with their folder."""
    folder = ""
    for _ in range(_MOST_FOLDERS):
        # macOS adds a folder of its own to every archive, and files of its own beside what it shows.
        own = ("__MACOSX", ".DS_Store")
        inside = [name for name in tree.children(folder) if name not in own and not name.startswith("._")]
        if len(inside) != 1 or inside[0] in _NAMED_FOLDERS or tree.kind(join(folder, inside[0])) != "folder":
            break
        folder = join(folder, inside[0])
    return folder
