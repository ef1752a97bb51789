"""The manifest of a pack: its bases, and each file with its size and SHA-256 (``docs/formats/pack.md``)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any

import msgspec

from regraft import __version__
from regraft.disk import links
from regraft.disk.trees import CHUNK_BYTES, Tree, join_path
from regraft.errors import PackUnreadable, SourceUnreadable
from regraft.language import tr
from regraft.ledger.values import Count

#: The name of the manifest in a pack.
MANIFEST = "pack.json"
#: The version of the manifest's shape.
FORMAT = 1
#: A manifest takes some hundred bytes for each file; more than this is none.
_LONGEST = 512 << 20


class PackedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a pack: its name in it, its size in bytes and the SHA-256 of its bytes in hex."""

    path: str
    bytes: Count
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class PackedBase(msgspec.Struct, frozen=True, kw_only=True):
    """A base of a pack, for people and for lists; the catalog is what counts."""

    id: str
    name: str
    status: str
    #: The id that it had in v1, where the packed library knew that.
    legacy_id: str | None = None
    model: str | None = None
    dimensions: Count | None = None
    items: Count = 0
    files: Count = 0
    bytes: Count = 0


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What ``pack.json`` holds."""

    #: The version of its shape.
    pack: int
    created_at: str
    regraft: dict[str, Any] = msgspec.field(default_factory=lambda: {"version": __version__})
    source: dict[str, Any] = msgspec.field(default_factory=dict)
    bases: tuple[PackedBase, ...] = ()
    files: tuple[PackedFile, ...] = ()

    def encoded(self) -> bytes:
        """Return it as the bytes of ``pack.json``."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    @property
    def legacy_ids(self) -> dict[str, str]:
        """Return the ids of its bases by those that they had in v1."""
        return {base.legacy_id: base.id for base in self.bases if base.legacy_id is not None}


def read_manifest(tree: Tree, inside: str = "") -> Manifest | None:
    """Read the manifest of a pack, zipped or unpacked; None where there is none.

    Args:
        tree: a folder or an archive.
        inside: the folder in it where the pack begins.

    Raises:
        PackUnreadable: it is there, and broken or of a later regraft.
    """
    name = join_path(inside, MANIFEST)
    if tree.kind(name) != "file":
        return None
    path = f"{tree.path}/{name}"
    try:
        if tree.size(name) > _LONGEST:
            raise PackUnreadable(path=path, reason=tr("it is too long to be one"))
        with tree.open(name) as file:
            found = msgspec.json.decode(file.read(), type=Manifest)
    except SourceUnreadable as error:
        raise PackUnreadable(path=path, reason=error.facts["reason"]) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError, RecursionError) as error:
        raise PackUnreadable(path=path, reason=error) from error
    if found.pack != FORMAT:
        raise PackUnreadable(
            path=path, reason=tr("its form is {pack}, and this regraft knows {format}", pack=found.pack, format=FORMAT)
        )
    if len({one.path for one in found.files}) < len(found.files):
        raise PackUnreadable(path=path, reason=tr("it names a file twice"))
    return found


def find_file_problem(path: Path, packed: PackedFile, digest: str | None = None) -> str | None:
    """Return why a file is not the one that was packed; None where it is.

    ``digest`` is its SHA-256 where that is known; else it is read.

    Raises:
        OSError: it cannot be read.
    """
    if not path.is_file():
        return tr("it is missing")
    size = path.stat().st_size
    if size != packed.bytes:
        return tr("it has {size:,} bytes, not {bytes:,}", size=size, bytes=packed.bytes)
    return None if (digest or hash_file(path)) == packed.sha256 else tr("its bytes do not match their checksum")


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hex.

    Raises:
        OSError: it cannot be read.
    """
    with links.open_for_reading(path, buffering=0) as file:
        return hashlib.file_digest(file, "sha256", _bufsize=CHUNK_BYTES).hexdigest()
