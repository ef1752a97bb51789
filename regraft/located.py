"""What a recognised path is, and where to read it from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from regraft.formats.cherry_v1.layout import LOCAL_STORAGE, StatePlaces
from regraft.formats.cherry_v2.layout import Stores
from regraft.kinds import Kind
from regraft.report.notices import Notice
from regraft.tree import Tree, ZipTree


class Located(msgspec.Struct, frozen=True, kw_only=True):
    """A recognised path: its kind, the tree to read it from, and where a v1 source keeps its state."""

    kind: Kind
    path: Path
    tree: Tree
    places: StatePlaces = msgspec.field(default_factory=StatePlaces)
    #: The backup's own version number, where it states one.
    version: int | None = None
    #: What is worth saying about how it was found.
    notices: tuple[Notice, ...] = ()
    #: The catalog that the user named as a file, below ``path``; None where a folder was named.
    named_catalog: str | None = None
    #: The stores of v2 and of preview builds.
    stores: Stores = msgspec.field(default_factory=Stores)
    #: Of a backup: whether it is a slim one, which has the database and neither indexes nor files of its bases.
    is_slim: bool = False
    #: Members of an archive that could not be extracted, each with the reason.
    damaged: Mapping[str, str] = msgspec.field(default_factory=dict)
    #: The SHA-256, in hex, of the members of a pack that were extracted.
    digests: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def profile(self) -> Path | None:
        """Return the folder of a live profile, which an application may be writing to."""
        if self.is_archive:
            return None
        if self.kind is Kind.V2_PROFILE:
            return self.tree.path
        return None if self.places.profile is None else self.tree.path / self.places.profile

    @property
    def v1_left(self) -> bool:
        """Tell whether a v2 profile still has what v1 kept its state in: ``--kind v1-profile`` reads that."""
        return self.kind is Kind.V2_PROFILE and self.tree.kind(LOCAL_STORAGE) == "folder"

    @property
    def is_archive(self) -> bool:
        """Tell whether members have to be extracted before a program can open them."""
        return isinstance(self.tree, ZipTree)
