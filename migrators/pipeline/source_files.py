"""Files of a source other than its rows: names and fingerprints, copies of uploads, and hashes of what was written.

The process pool does this work in the background. Without a pool, or if a job fails, this process does it.
"""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections.abc import Callable, Iterator
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
from regraft.language import document_in_english, tr
from regraft.processes.pool import JobFailed, ProcessPool
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.stores.locate import INDEX_FILE, RAW_FOLDER, Located


def upload_names(uploads: str | None, upload: Upload) -> list[str]:
    """Return the paths that an uploaded file may have in the source. ``uploads`` is the source's folder for uploads."""
    folder = uploads if upload.folder is None else upload.folder
    if folder is None:
        return []
    names = (upload.name, upload.other_name)
    return [join_path(folder, name) for name in names if name is not None and is_plain_name(name)]


def find_upload(tree: Tree, uploads: str | None, upload: Upload) -> str | None:
    """Return the path of an uploaded file in the source, or None if it does not exist.

    ``uploads`` is the source's folder for uploads, None if it has none.
    """
    return first_existing_file(tree, upload_names(uploads, upload))


def upload_problem(tree: Tree, uploads: str | None, upload: Upload) -> str:
    """Explain, for a person to read, why an uploaded file is not in the source.

    ``uploads`` is its folder for uploads.
    """
    for problem in map(tree.problem, upload_names(uploads, upload)):
        if problem:
            return tr("the uploaded file {name} was not read ({problem})", name=upload.name, problem=problem)
    return tr("the uploaded file {name} is not in the source", name=upload.name)


def missing_upload_notice(path: str, problem: str, base: str, item: str | None) -> Notice:
    """Make the notice that the file of an item is missing because of ``problem``.

    ``path`` is its path below ``raw/``. ``base`` and ``item`` are v1 ids.
    """
    message = tr("{path}: {problem}; the item can be searched but not reindexed without it", path=path, problem=problem)
    return Notice(code=notices.MISSING_UPLOAD, message=message, base=base, item=item)


def copy_upload(tree: Tree, uploads: str | None, upload: Upload, earlier: Path, target: Path) -> str:
    """Copy an uploaded file to ``target``. Return why it cannot be read, or an empty string.

    If it cannot be read, the copy from an earlier run is kept. A file that does not exist in the source is no problem
    here: the plan reports it.

    Args:
        tree: the source.
        uploads: the folder for uploads in the source.
        upload: the file.
        earlier: the same file in the base that an earlier run wrote.
        target: path of the copy; no file exists there.

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


#: Raise it when the same input gives different output: bases of earlier runs are then migrated again.
WRITER_VERSION = 4


def vector_file_in_tree(source: Located, draft: BaseDraft) -> str:
    """Return the path of a base's vector file in the source; empty if the source holds no vector files."""
    return "" if source.places.vectors is None else join_path(source.places.vectors, draft.vector_file)


class _NamedDraft(ItemDraft, frozen=True, kw_only=True, array_like=False):
    """An item draft that is encoded with field names: fingerprints in existing ledgers were made that way."""


class FileHashes(NamedTuple):
    """Sizes and checksums of a base's files: of the vector file with its log and journal, and of the uploads."""

    vectors: list[object]
    uploads: list[object]


def vector_file_names(source: Located, draft: BaseDraft) -> list[str]:
    """Return the paths of a base's vector file, and of the log and journal that may be beside it.

    The file may not exist.
    """
    vectors = vector_file_in_tree(source, draft)
    return [vectors, f"{vectors}-wal", f"{vectors}-journal"] if vectors else []


def base_fingerprint(
    source: Located, draft: BaseDraft, unread: frozenset[str] = frozenset(), marks: FileHashes | None = None
) -> str:
    """Hash everything that a base is made from: its draft, its vector file and its uploads.

    Files count by size and CRC-32, so that a backup and the same backup unpacked have one fingerprint. Options that
    affect few bases are not included; the planner compares them with the ledger entry.

    Args:
        source: the source.
        draft: the base.
        unread: names of files that could not be read, whatever checksums an archive states for them. The fingerprint
            changes once they can be.
        marks: sizes and checksums of the files if they are known.
    """

    def mark(name: str | None) -> object:
        """Return size and checksum of a file, or that it could not be read."""
        return UNREADABLE if name in unread else content_mark(source.tree, name)

    if marks is None:
        uploads = (item.upload for item in draft.items if item.upload is not None)
        names = (find_upload(source.tree, source.places.uploads, upload) for upload in uploads)
        marks = FileHashes(list(map(mark, vector_file_names(source, draft))), list(map(mark, names)))
    hasher = hashlib.blake2b(digest_size=20)
    # In English: the messages of its notices must not give another fingerprint in another language.
    described = document_in_english(msgspec.to_builtins(replace(draft, items=()), order="deterministic"))
    for part in (WRITER_VERSION, described, marks.vectors, marks.uploads):
        hasher.update(_encode(part) + b"\n")
    for item in draft.items:
        hasher.update(_encode(_NamedDraft(**structs.asdict(item))) + b"\n")
    return hasher.hexdigest()


def _encode(part: object) -> bytes:
    """Encode a part of a fingerprint so that equal values give equal bytes; a dict must have its keys in order."""
    try:
        return msgspec.json.encode(part, order=None if isinstance(part, dict) else "deterministic")
    except UnicodeEncodeError:
        # A file name that is not UTF-8, which JSON cannot represent.
        return repr(part).encode("utf-8", "surrogatepass")


logger = logging.getLogger(__name__)

#: Number of files copied in one job. The message must fit into a pipe.
_FILES_PER_JOB = 16
#: For more files than this, describing the jobs would take too much memory.
_MAX_HASHED_FILES = 1 << 16


def _source_folder(tree: Tree) -> SourceFolder | None:
    """Describe a source folder for the process pool. None for an archive, which only one process reads."""
    return SourceFolder(tree, links.are_links_followed()) if isinstance(tree, FolderTree) else None


# --- content hashes ------------------------------------------------------------------------------------------------


class ContentHashJobs:
    """Computes sizes and checksums of a base's files in the process pool while the base is planned.

    Raises:
        JobFailed: the pool has no processes.
    """

    def __init__(self, pool: ProcessPool, source: Located, draft: BaseDraft) -> None:
        self._pool = pool
        self._jobs: list[int] = []
        place = _source_folder(source.tree)
        if place is None or len(draft.items) > _MAX_HASHED_FILES:
            return
        folder = source.places.uploads
        uploads = [upload_names(folder, item.upload) for item in draft.items if item.upload is not None]
        # No further messages are sent while the base is planned. So one job gets all uploads; it goes first, as the
        # only message that an idle process takes at any length.
        for files in (uploads, [[name] for name in vector_file_names(source, draft)]):
            self._jobs.append(pool.put(trees.content_marks, place, files))

    def file_hashes(self) -> FileHashes | None:
        """Wait for the sizes and checksums of the files. None if the pool could not compute them."""
        try:
            parts: list[list[object]] = [self._pool.take(job) for job in self._jobs]
        except JobFailed as problem:
            logger.info("files are read whole by one process: %s", problem)
            return None
        if not parts:
            return None
        uploads, vectors = parts
        return FileHashes(vectors, uploads)


# --- uploads ---------------------------------------------------------------------------------------------------------


class UploadCopies:
    """Copies uploads to the target, in the process pool while it has nothing else to do.

    Args:
        files: number of the item, the upload, and its path below ``target``, where no file exists.
        tree: the source.
        uploads: the folder for uploads in the source.
        target: the folder of the copies.
        pool: the process pool, used if it is started; or None.
    """

    def __init__(
        self,
        files: Iterator[tuple[int, Upload, str]],
        tree: Tree,
        uploads: str | None,
        target: Path,
        pool: ProcessPool | None,
    ) -> None:
        self._files = files
        self._uploads = uploads
        self._target = target
        self._place = _source_folder(tree)
        self._pool = None if self._place is None else pool
        self._assigned: list[tuple[int, array[int]]] = []

    def assign(self, remaining: int = 1) -> None:
        """Give the pool some files to copy if its processes have at most ``remaining`` other jobs."""
        while self._pool is not None and self._pool.has_room(remaining):
            some = list(islice(self._files, _FILES_PER_JOB))
            if not some:
                return
            numbers = array("q", (number for number, _, _ in some))
            try:
                given = [(upload_names(self._uploads, upload), path) for _, upload, path in some]
                job = self._pool.put(trees.copy_files, self._place, given, self._target)
            except JobFailed as problem:
                self._stop_using_pool(problem)
                job = 0
            self._assigned.append((job, numbers))

    def remaining(self) -> Iterator[tuple[int, bool]]:
        """Yield the numbers of the items whose files this process must copy.

        With each comes whether the pool tried before, so that a part of the file may exist.
        """
        # This process only copies files from here on, so idle processes of the pool do so too.
        self.assign(remaining=0)
        for number, _, _ in self._files:
            yield number, False
            self.assign(remaining=0)
        for job, numbers in self._assigned:
            is_copied: list[bool] = []
            try:
                is_copied = [] if self._pool is None else self._pool.take(job)
            except JobFailed as problem:
                self._stop_using_pool(problem)
            is_copied = is_copied or [False] * len(numbers)
            yield from ((number, True) for number, is_there in zip(numbers, is_copied, strict=True) if not is_there)

    def _stop_using_pool(self, problem: JobFailed) -> None:
        """Copy the remaining uploads in this process because of a problem of the pool."""
        logger.info("uploads are copied by one process: %s", problem)
        self._pool = None


# --- hashes ----------------------------------------------------------------------------------------------------------


@contextmanager
def hash_in_background(staging: Path, pool: ProcessPool | None) -> Iterator[Callable[[], tuple[str, str]]]:
    """Hash the files in a base's staging folder in the background.

    Yield a function that waits and returns two hashes: of the index and of the files in ``raw/``.
    """
    calls: tuple[tuple[Callable[..., str], Any], ...] = (
        (trees.file_hash, (staging / INDEX_FILE,)),
        (trees.folder_hash, (staging, RAW_FOLDER)),
    )
    if pool is not None and pool.is_started and (staging / INDEX_FILE).is_file():
        try:
            jobs = [pool.put(function, *given) for function, given in calls]
        except JobFailed as problem:
            logger.info("files are hashed by one process: %s", problem)
        else:

            def take() -> tuple[str, str]:
                """Wait for the hashes of the index and of the uploads; if a process was killed, compute them here."""
                try:
                    index, raw = (pool.take(job) for job in jobs)
                except JobFailed as problem:
                    logger.info("files are hashed again: %s", problem)
                    return _hash_written(staging)
                return index, raw

            yield take
            return
    # Hashing large blocks releases the interpreter lock.
    with ThreadPoolExecutor(1) as beside:
        both = beside.submit(_hash_written, staging)
        yield both.result


def _hash_written(staging: Path) -> tuple[str, str]:
    """Return two hashes of a base's staging folder: of the index and of the files in ``raw/``."""
    return publication.index_hash(staging), publication.raw_hash(staging)
