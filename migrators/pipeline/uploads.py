"""Copies of uploaded files: from the source, or, where it lacks one, from the base that is carried anew."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import BinaryIO

from migrators.pipeline.drafts import Upload
from regraft import links
from regraft.errors import SourceUnreadable
from regraft.language import tr
from regraft.ledger import durable
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.tree import CHUNK_BYTES, Tree, is_plain_name, join


class SourceFailed(Exception):
    """Something of the source could not be read to its end, though it looked well; the text says why."""


def upload_name(tree: Tree, uploads: str | None, upload: Upload) -> str | None:
    """Return the name of an uploaded file in the source, or None where it is not there."""
    folder = uploads if upload.folder is None else upload.folder
    for name in (upload.name, upload.other_name):
        if folder is not None and name is not None and is_plain_name(name) and tree.kind(join(folder, name)) == "file":
            return join(folder, name)
    return None


def upload_problem(tree: Tree, uploads: str | None, upload: Upload) -> str:
    """Say why an uploaded file that has no name in the source is not there."""
    folder = uploads if upload.folder is None else upload.folder
    for name in (upload.name, upload.other_name):
        if folder is not None and name is not None and is_plain_name(name):
            problem = tree.problem(join(folder, name))
            if problem:
                return tr("the uploaded file {name} is not read ({problem})", name=upload.name, problem=problem)
    return tr("the uploaded file {name} is not in the source", name=upload.name)


def missing_upload(path: str, problem: str, base: str, item: str | None) -> Notice:
    """Say that an item's uploaded file is not there, for a reason; ``path`` is its name under ``raw/``."""
    message = tr(
        "{path}: {problem}; the item stays searchable, but cannot be reindexed without it", path=path, problem=problem
    )
    return Notice(code=notices.MISSING_UPLOAD, message=message, base=base, item=item)


def copy_upload(tree: Tree, uploads: str | None, upload: Upload, earlier: Path, target: Path) -> str:
    """Copy an uploaded file to ``target`` and return why it cannot be read, or nothing.

    Where it cannot, the file of an earlier run is copied. One that is not in the source is no news: the plan says so.

    Args:
        tree: the source.
        uploads: the folder of uploaded files in the source.
        upload: the file.
        earlier: the same file in the base that an earlier run wrote: a poorer source never takes it away.
        target: where no file is yet.

    Raises:
        OSError: the target cannot be written.
    """
    name = upload_name(tree, uploads, upload)
    problem = ""
    if name is not None:
        try:
            with tree.open(name) as file:
                _copy(file, target)
                return ""
        except SourceFailed as failed:
            problem = tr("the uploaded file {name} cannot be read ({failed})", name=upload.name, failed=failed)
            durable.remove(target, missing_ok=True)
        except SourceUnreadable as error:
            problem = tr(
                "the uploaded file {name} cannot be read ({reason})", name=upload.name, reason=error.facts["reason"]
            )
    if earlier.is_file():
        with links.reading(earlier) as file:
            _copy(file, target)
    return problem


def _copy(file: BinaryIO, target: Path) -> None:
    durable.make_folders(target.parent, flush=False)
    with durable.open_binary(target, "xb") as copy:
        shutil.copyfileobj(_Reader(file), copy, CHUNK_BYTES)


class _Reader:
    """Reads from the source, with its errors told apart from those of the target."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = -1, /) -> bytes:
        """Read up to ``size`` bytes."""
        try:
            return self._file.read(size)
        except OSError as error:
            reason = error.facts["reason"] if isinstance(error, SourceUnreadable) else error.strerror or error
            raise SourceFailed(str(reason)) from error
