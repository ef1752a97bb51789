"""What a backup of the application states of itself: ``metadata.json``, since version 6 (``docs/formats/v1.md``)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from regraft.errors import SourceUnreadable
from regraft.formats import json_text, v1_state
from regraft.tree import Tree


class _Metadata(msgspec.Struct):
    version: Any = None
    resources: Any = None


@dataclass(frozen=True)
class Backup:
    """What a backup states of itself: its version, and which parts of a profile it has."""

    version: int | None = None
    resources: Mapping[str, Any] = field(default_factory=dict)


def backup_of(tree: Tree, name: str) -> Backup:
    """Return what the metadata at ``name`` state; nothing where they cannot be read."""
    with contextlib.suppress(json_text.JsonProblem, SourceUnreadable):
        stated = json_text.decode(v1_state.read_text(tree, name), _Metadata)
        resources = stated.resources if isinstance(stated.resources, dict) else {}
        return Backup(stated.version if isinstance(stated.version, int) else None, resources)
    return Backup()
