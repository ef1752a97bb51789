"""The manifest of a pack: its bases, and the size and SHA-256 of each file (``docs/formats/pack.md``)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec

from regraft import __version__
from regraft.disk import links
from regraft.disk.trees import Tree, join_path
from regraft.errors import PackUnreadable, SourceUnreadable
from regraft.language import tr
from regraft.ledger.values import Count

#: Path of the manifest in a pack.
MANIFEST = "pack.json"
#: Version of the manifest format.
FORMAT = 1
#: A manifest takes some hundred bytes per file; a larger file, in bytes, is not one.
_MAX_MANIFEST_BYTES = 512 << 20


class PackedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file in a pack: path, size in bytes, SHA-256 in hex."""

    path: str
    bytes: Count
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class PackedBase(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a base in a pack. The catalog is authoritative."""

    id: str
    name: str
    status: str
    #: Its id in v1, if the packed library recorded it.
    legacy_id: str | None = None
    model: str | None = None
    dimensions: Count | None = None
    items: Count = 0
    files: Count = 0
    bytes: Count = 0


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of ``pack.json``."""

    #: Version of the format.
    pack: int
    created_at: str
    regraft: dict[str, Any] = msgspec.field(default_factory=lambda: {"version": __version__})
    source: dict[str, Any] = msgspec.field(default_factory=dict)
    bases: tuple[PackedBase, ...] = ()
    files: tuple[PackedFile, ...] = ()

    def encoded(self) -> bytes:
        """Encode the manifest as ``pack.json``."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    @property
    def legacy_ids(self) -> dict[str, str]:
        """The id of each base by its v1 id."""
        return {base.legacy_id: base.id for base in self.bases if base.legacy_id is not None}


def read_manifest(tree: Tree, inside: str = "") -> Manifest | None:
    """Read the manifest of a pack; None if it has no manifest.

    Args:
        tree: a folder or an archive.
        inside: folder of the pack in the tree.

    Raises:
        PackUnreadable: the manifest is broken or was written by a later regraft.
    """
    name = join_path(inside, MANIFEST)
    if tree.kind(name) != "file":
        return None
    path = f"{tree.path}/{name}"
    try:
        if tree.size(name) > _MAX_MANIFEST_BYTES:
            raise PackUnreadable(path=path, reason=tr("it is too large for a manifest"))
        with tree.open(name) as file:
            found = msgspec.json.decode(file.read(), type=Manifest)
    except SourceUnreadable as error:
        raise PackUnreadable(path=path, reason=error.facts["reason"]) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError, RecursionError) as error:
        raise PackUnreadable(path=path, reason=error) from error
    if found.pack != FORMAT:
        raise PackUnreadable(
            path=path,
            reason=tr(
                "its format version is {pack}, but this regraft supports {format}", pack=found.pack, format=FORMAT
            ),
        )
    if len({one.path for one in found.files}) < len(found.files):
        raise PackUnreadable(path=path, reason=tr("it lists a file twice"))
    return found


def find_file_problem(path: Path, packed: PackedFile, digest: str | None = None) -> str | None:
    """Describe how a file differs from what the manifest states; None if it does not.

    The file is read unless ``digest``, its SHA-256, is given.

    Raises:
        OSError: the file cannot be read.
    """
    if not path.is_file():
        return tr("it is missing")
    size = path.stat().st_size
    if size != packed.bytes:
        return tr("it has {size:,} bytes, not {bytes:,}", size=size, bytes=packed.bytes)
    return None if (digest or links.hash_file(path)) == packed.sha256 else tr("its bytes do not match their checksum")
