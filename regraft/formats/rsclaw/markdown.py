"""The markdown files of a KB: a block of YAML, a blank line, and the body (``docs/formats/rsclaw.md``, "Markdown").

The YAML is never interpreted: what it says stands in the database, too, and a date in it has to stay text.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from regraft import links

_BEGIN, _END = b"---\n", b"\n---\n"
#: A block of YAML is looked for in so many bytes.
_MOST_HEAD = 1 << 20
_PIECE = 1 << 20


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """What a file's body is: where it begins, its length in bytes, and the SHA-256 of them in hex."""

    start: int
    size: int
    sha256: str


def body_of(path: Path) -> Body:
    """Read a file and return what its body is; memory does not grow with it.

    Raises:
        OSError: it cannot be read.
    """
    with links.reading(path) as file:
        head = file.read(_MOST_HEAD)
        start = body_start(head)
        digest, size = hashlib.sha256(head[start:]), len(head) - start
        while piece := file.read(_PIECE):
            digest.update(piece)
            size += len(piece)
    return Body(start=start, size=size, sha256=digest.hexdigest())


def body_start(head: bytes) -> int:
    """Return where the body begins in the first bytes of a file: 0 where no block of YAML is."""
    if not head.startswith(_BEGIN):
        return 0
    # An empty block ends where it begins.
    end = head.find(_END, len(_BEGIN) - 1)
    if end < 0:
        return 0
    start = end + len(_END)
    return start + (head[start : start + 1] == b"\n")
