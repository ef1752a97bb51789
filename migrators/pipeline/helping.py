"""What helpers do of a migration meanwhile: they read files of the source whole, copy uploads, and hash the result.

All of that this process can do as well, and does where there are no helpers, or where one of them fails.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from migrators.pipeline import published
from migrators.pipeline.drafts import BaseDraft, Upload
from migrators.pipeline.survey import FileMarks, vector_names
from migrators.pipeline.uploads import upload_names
from regraft import links, tree_files
from regraft.crew import Crew, JobFailed
from regraft.locate import INDEX_FILE, RAW_FOLDER, Located
from regraft.tree import FolderTree, Tree
from regraft.tree_files import Place

logger = logging.getLogger(__name__)

#: So many files are copied in one job: what says so can wait in a pipe.
_FILES = 16
#: Of more files than this the jobs themselves would take much memory.
_MOST_MARKED = 1 << 16


def _place(tree: Tree) -> Place | None:
    """Return how helpers read a source; None where they cannot: an archive is read by one process."""
    return Place(tree, links.are_followed()) if isinstance(tree, FolderTree) else None


# --- marks -----------------------------------------------------------------------------------------------------------


class Marking:
    """The marks of a base's files, which helpers make while the base is planned.

    Raises:
        JobFailed: there are no helpers.
    """

    def __init__(self, helpers: Crew, source: Located, draft: BaseDraft) -> None:
        self._helpers = helpers
        self._jobs: list[int] = []
        place = _place(source.tree)
        if place is None or len(draft.items) > _MOST_MARKED:
            return
        folder = source.places.uploads
        uploads = [upload_names(folder, item.upload) for item in draft.items if item.upload is not None]
        # Nobody deals out what waits while the base is planned: there is a job for all uploads, and it comes first, to
        # whom nothing else is said before.
        for files in (uploads, [[name] for name in vector_names(source, draft)]):
            self._jobs.append(helpers.put(tree_files.marks, place, files))

    def marks(self) -> FileMarks | None:
        """Return the marks, once they are made; None where nobody made them."""
        try:
            parts: list[list[object]] = [self._helpers.take(job) for job in self._jobs]
        except JobFailed as problem:
            logger.info("files are read whole by one process: %s", problem)
            return None
        if not parts:
            return None
        uploads, vectors = parts
        return FileMarks(vectors, uploads)


# --- uploads ---------------------------------------------------------------------------------------------------------


class Copies:
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
        helpers: Crew | None,
    ) -> None:
        self._files = files
        self._uploads = uploads
        self._target = target
        self._place = _place(tree)
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
                job = self._helpers.put(tree_files.copies, self._place, given, self._target)
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
def hashes(staging: Path, helpers: Crew | None) -> Iterator[Callable[[], tuple[str, str]]]:
    """Hash the index and the files under ``raw/`` meanwhile; what is given returns both hashes and waits for them."""
    calls: tuple[tuple[Callable[..., str], Any], ...] = (
        (tree_files.file_hash, (staging / INDEX_FILE,)),
        (tree_files.folder_hash, (staging, RAW_FOLDER)),
    )
    if helpers is not None and helpers.is_started and (staging / INDEX_FILE).is_file():
        try:
            jobs = [helpers.put(function, *given) for function, given in calls]
        except JobFailed as problem:
            logger.info("files are hashed by one process: %s", problem)
        else:
            yield lambda: _taken(helpers, jobs, staging)
            return
    # Whoever hashes large pieces leaves another thread its time.
    with ThreadPoolExecutor(1) as beside:
        both = beside.submit(_hashed, staging)
        yield both.result


def _hashed(staging: Path) -> tuple[str, str]:
    return published.index_hash(staging), published.raw_hash(staging)


def _taken(helpers: Crew, jobs: Iterable[int], staging: Path) -> tuple[str, str]:
    try:
        index, raw = (helpers.take(job) for job in jobs)
    except JobFailed as problem:
        logger.info("files are hashed again: %s", problem)
        return _hashed(staging)
    return index, raw
