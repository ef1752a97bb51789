"""Copies of uploaded files: from the source, or, where it lacks one, from the base that is carried anew."""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from migrators.pipeline import publication
from migrators.pipeline.source import BaseDraft, ItemDraft, Upload
from regraft.disk import links, trees
from regraft.disk.trees import (
    UNREADABLE,
    FolderTree,
    SourceFolder,
    SourceReadFailed,
    Tree,
    content_mark,
    copy_from_tree,
    copy_stream,
    first_existing_file,
    is_plain_name,
    join_path,
)
from regraft.errors import SourceUnreadable
from regraft.identity import replace
from regraft.language import tr
from regraft.processes.pool import JobFailed, ProcessPool
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.stores.locate import INDEX_FILE, RAW_FOLDER, Located


def upload_names(uploads: str | None, upload: Upload) -> list[str]:
    """Return the names that an uploaded file may have in the source; ``uploads`` is the folder of such files."""
    folder = uploads if upload.folder is None else upload.folder
    if folder is None:
        return []
    names = (upload.name, upload.other_name)
    return [join_path(folder, name) for name in names if name is not None and is_plain_name(name)]


def find_upload(tree: Tree, uploads: str | None, upload: Upload) -> str | None:
    """Return the name of an uploaded file in the source, or None where it is not there."""
    return first_existing_file(tree, upload_names(uploads, upload))


def upload_problem(tree: Tree, uploads: str | None, upload: Upload) -> str:
    """Say why an uploaded file that has no name in the source is not there."""
    for problem in map(tree.problem, upload_names(uploads, upload)):
        if problem:
            return tr("the uploaded file {name} is not read ({problem})", name=upload.name, problem=problem)
    return tr("the uploaded file {name} is not in the source", name=upload.name)


def missing_upload_notice(path: str, problem: str, base: str, item: str | None) -> Notice:
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
    name = find_upload(tree, uploads, upload)
    problem = ""
    if name is not None:
        try:
            copy_from_tree(tree, name, target)
        except SourceReadFailed as failed:
            problem = tr("the uploaded file {name} cannot be read ({failed})", name=upload.name, failed=failed)
        except SourceUnreadable as error:
            problem = tr(
                "the uploaded file {name} cannot be read ({reason})", name=upload.name, reason=error.facts["reason"]
            )
        else:
            return ""
    if earlier.is_file():
        with links.open_for_reading(earlier) as file:
            copy_stream(file, target)
    return problem


#: Changes when the same input makes different output: an earlier run's bases are then carried anew.
WRITER_VERSION = 4


def vector_file_in_tree(source: Located, draft: BaseDraft) -> str:
    """Return the name of a base's vector file in the source's tree."""
    return "" if source.places.vectors is None else join_path(source.places.vectors, draft.vector_file)


class _NamedDraft(ItemDraft, frozen=True, kw_only=True, array_like=False):
    """A draft that is written with the names of its fields, as fingerprints have always had it."""


class FileHashes(NamedTuple):
    """What tells whether files of a base changed: of the vector file with what lies beside it, and of its uploads."""

    vectors: list[object]
    uploads: list[object]


def vector_file_names(source: Located, draft: BaseDraft) -> list[str]:
    """Return the names of a base's vector file and of what may lie beside it."""
    vectors = vector_file_in_tree(source, draft)
    return [vectors, f"{vectors}-wal", f"{vectors}-journal"] if vectors else []


def _hash_files(source: Located, draft: BaseDraft, unread: frozenset[str]) -> FileHashes:
    """Read a base's files whole and return their marks."""
    uploads = (item.upload for item in draft.items if item.upload is not None)
    names = (find_upload(source.tree, source.places.uploads, upload) for upload in uploads)
    return FileHashes(
        [content_mark(source.tree, name) for name in vector_file_names(source, draft)],
        [UNREADABLE if name in unread else content_mark(source.tree, name) for name in names],
    )


def base_fingerprint(
    source: Located, draft: BaseDraft, unread: frozenset[str] = frozenset(), marks: FileHashes | None = None
) -> str:
    """Return a hash over everything that a base is made from: its draft, its vector file and its uploads.

    Files count by size and CRC-32, so that a backup and the same backup unpacked are the same source. Options that make
    a difference to few bases only are not part of it (:func:`_other_wish`).

    Args:
        source: where they are.
        draft: the base.
        unread: names of uploads that could not be read when they were copied: if they can be the next time, that is
            another source.
        marks: of the files, where they have been read.
    """
    if marks is None:
        marks = _hash_files(source, draft, unread)
    hasher = hashlib.blake2b(digest_size=20)
    for part in (WRITER_VERSION, replace(draft, items=()), marks.vectors, marks.uploads):
        hasher.update(_encode(part) + b"\n")
    for item in draft.items:
        hasher.update(_encode(_NamedDraft(**structs.asdict(item))) + b"\n")
    return hasher.hexdigest()


def _encode(part: object) -> bytes:
    try:
        return msgspec.json.encode(part, order="deterministic")
    except UnicodeEncodeError:
        # A name on the disk that is not UTF-8, which JSON has no way to write.
        return repr(part).encode("utf-8", "surrogatepass")


# What helpers do of a migration meanwhile: they read files of the source whole, copy uploads, and hash the result.
#
# All of that this process can do as well, and does where there are no helpers, or where one of them fails.


logger = logging.getLogger(__name__)

#: So many files are copied in one job: what says so can wait in a pipe.
_FILES = 16
#: Of more files than this the jobs themselves would take much memory.
_MOST_MARKED = 1 << 16


def _folder_place(tree: Tree) -> SourceFolder | None:
    """Return how helpers read a source; None where they cannot: an archive is read by one process."""
    return SourceFolder(tree, links.are_links_followed()) if isinstance(tree, FolderTree) else None


# --- marks -----------------------------------------------------------------------------------------------------------


class ContentHashJobs:
    """The marks of a base's files, which helpers make while the base is planned.

    Raises:
        JobFailed: there are no helpers.
    """

    def __init__(self, helpers: ProcessPool, source: Located, draft: BaseDraft) -> None:
        self._helpers = helpers
        self._jobs: list[int] = []
        place = _folder_place(source.tree)
        if place is None or len(draft.items) > _MOST_MARKED:
            return
        folder = source.places.uploads
        uploads = [upload_names(folder, item.upload) for item in draft.items if item.upload is not None]
        # Nobody deals out what waits while the base is planned: there is a job for all uploads, and it comes first, to
        # whom nothing else is said before.
        for files in (uploads, [[name] for name in vector_file_names(source, draft)]):
            self._jobs.append(helpers.put(trees.content_marks, place, files))

    def marks(self) -> FileHashes | None:
        """Return the marks, once they are made; None where nobody made them."""
        try:
            parts: list[list[object]] = [self._helpers.take(job) for job in self._jobs]
        except JobFailed as problem:
            logger.info("files are read whole by one process: %s", problem)
            return None
        if not parts:
            return None
        uploads, vectors = parts
        return FileHashes(vectors, uploads)


# --- uploads ---------------------------------------------------------------------------------------------------------


class UploadCopies:
    """Uploads on their way to the target, copied by helpers while they have nothing else to do.

    Args:
        files: of each its item's number, itself, and its path below ``target``, where no file is yet.
        tree: the source.
        uploads: the folder of uploaded files in it.
        target: the folder that they are copied to.
        helpers: None, or processes, which help where they have been started.
    """

    def __init__(
        self,
        files: Iterator[tuple[int, Upload, str]],
        tree: Tree,
        uploads: str | None,
        target: Path,
        helpers: ProcessPool | None,
    ) -> None:
        self._files = files
        self._uploads = uploads
        self._target = target
        self._place = _folder_place(tree)
        self._helpers = None if self._place is None else helpers
        self._dealt: list[tuple[int, array[int]]] = []

    def deal(self, left: int = 1) -> None:
        """Let helpers copy some files, where they have so many other jobs left at most."""
        while self._helpers is not None and self._helpers.has_room(left):
            some = list(islice(self._files, _FILES))
            if not some:
                return
            numbers = array("q", (number for number, _, _ in some))
            try:
                given = [(upload_names(self._uploads, upload), path) for _, upload, path in some]
                job = self._helpers.put(trees.copy_files, self._place, given, self._target)
            except JobFailed as problem:
                self._stop(problem)
                job = 0
            self._dealt.append((job, numbers))

    def left(self) -> Iterator[tuple[int, bool]]:
        """Yield the numbers of the items whose files this process has to copy, and whether helpers have tried to."""
        # This process has nothing else to do: helpers that have are left at it.
        self.deal(left=0)
        for number, _, _ in self._files:
            yield number, False
            self.deal(left=0)
        for job, numbers in self._dealt:
            is_copied = self._answer(job) or [False] * len(numbers)
            yield from ((number, True) for number, is_there in zip(numbers, is_copied, strict=True) if not is_there)

    def _answer(self, job: int) -> list[bool]:
        try:
            answer: list[bool] = [] if self._helpers is None else self._helpers.take(job)
        except JobFailed as problem:
            self._stop(problem)
            return []
        return answer

    def _stop(self, problem: JobFailed) -> None:
        logger.info("uploads are copied by one process: %s", problem)
        self._helpers = None


# --- hashes ----------------------------------------------------------------------------------------------------------


@contextmanager
def hash_in_background(staging: Path, helpers: ProcessPool | None) -> Iterator[Callable[[], tuple[str, str]]]:
    """Hash the index and the files under ``raw/`` meanwhile; what is given returns both hashes and waits for them."""
    calls: tuple[tuple[Callable[..., str], Any], ...] = (
        (trees.file_hash, (staging / INDEX_FILE,)),
        (trees.folder_hash, (staging, RAW_FOLDER)),
    )
    if helpers is not None and helpers.is_started and (staging / INDEX_FILE).is_file():
        try:
            jobs = [helpers.put(function, *given) for function, given in calls]
        except JobFailed as problem:
            logger.info("files are hashed by one process: %s", problem)
        else:
            yield lambda: _take_hashes(helpers, jobs, staging)
            return
    # Whoever hashes large pieces leaves another thread its time.
    with ThreadPoolExecutor(1) as beside:
        both = beside.submit(_hash_written, staging)
        yield both.result


def _hash_written(staging: Path) -> tuple[str, str]:
    return publication.index_hash(staging), publication.raw_hash(staging)


def _take_hashes(helpers: ProcessPool, jobs: Iterable[int], staging: Path) -> tuple[str, str]:
    try:
        index, raw = (helpers.take(job) for job in jobs)
    except JobFailed as problem:
        logger.info("files are hashed again: %s", problem)
        return _hash_written(staging)
    return index, raw
