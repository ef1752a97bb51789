"""The report that a migration leaves in a library, as far as others read it (``docs/formats/library.md``)."""

from __future__ import annotations

import errno
from typing import Any

from regraft.errors import SourceUnreadable
from regraft.formats import json_text
from regraft.tree import Tree, join

REPORT_FILE = "report.json"
REPORT_PAGE = "report.html"

#: A report that is larger, in bytes, is none of ours.
_LARGEST = 256 << 20


def report_bytes(tree: Tree, folder: str = "") -> bytes:
    """Return the report beside a library's catalog; nothing where there is none, or none that can be ours.

    Raises:
        SourceUnreadable: the disk fails: nobody knows whether there is one.
    """
    name = join(folder, REPORT_FILE)
    try:
        if tree.kind(name) != "file" or tree.size(name) > _LARGEST:
            return b""
        with tree.open(name) as file:
            return file.read()
    except OSError as error:
        cause = error.__cause__ if isinstance(error, SourceUnreadable) else error
        if isinstance(cause, OSError) and cause.errno == errno.EIO:
            raise SourceUnreadable(path=name, reason=cause.strerror) from error
        return b""


def reported_ids(tree: Tree, folder: str = "") -> dict[str, str]:
    """Return the ids of bases by their v1 ids, as the report of the last migration gives them.

    Raises:
        SourceUnreadable: as for :func:`report_bytes`.
    """
    try:
        reported: Any = json_text.loads(report_bytes(tree, folder))
        return {old: new for old, new in reported["ids"]["bases"].items() if isinstance(new, str)}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
