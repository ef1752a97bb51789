"""Copies of uploaded files: from the source, or, where it lacks one, from the base that is carried anew."""

from __future__ import annotations

from pathlib import Path

from migrators.pipeline.drafts import Upload
from regraft import links
from regraft.errors import SourceUnreadable
from regraft.language import tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.tree import Tree, is_plain_name, join
from regraft.tree_files import SourceFailed, copy, copy_to, first_file


def upload_names(uploads: str | None, upload: Upload) -> list[str]:
    """Return the names that an uploaded file may have in the source; ``uploads`` is the folder of such files."""
    folder = uploads if upload.folder is None else upload.folder
    if folder is None:
        return []
    names = (upload.name, upload.other_name)
    return [join(folder, name) for name in names if name is not None and is_plain_name(name)]


def upload_name(tree: Tree, uploads: str | None, upload: Upload) -> str | None:
    """Return the name of an uploaded file in the source, or None where it is not there."""
    return first_file(tree, upload_names(uploads, upload))


def upload_problem(tree: Tree, uploads: str | None, upload: Upload) -> str:
    """Say why an uploaded file that has no name in the source is not there."""
    for problem in map(tree.problem, upload_names(uploads, upload)):
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
            copy_to(tree, name, target)
        except SourceFailed as failed:
            problem = tr("the uploaded file {name} cannot be read ({failed})", name=upload.name, failed=failed)
        except SourceUnreadable as error:
            problem = tr(
                "the uploaded file {name} cannot be read ({reason})", name=upload.name, reason=error.facts["reason"]
            )
        else:
            return ""
    if earlier.is_file():
        with links.reading(earlier) as file:
            copy(file, target)
    return problem
