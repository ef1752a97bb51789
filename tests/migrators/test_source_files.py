"""Files of a source: their names and hashes, and what a pool of processes does with them, or this process without."""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from planned_bases import planned
from v1 import file, note

from migrators.pipeline import source_files
from migrators.pipeline.source import Upload
from migrators.pipeline.source_files import (
    ContentHashJobs,
    FileHashes,
    UploadCopies,
    base_fingerprint,
    copy_upload,
    hash_in_background,
    upload_names,
    upload_problem,
)
from regraft.disk import trees
from regraft.disk.trees import FolderTree, SourceReadFailed
from regraft.errors import SourceUnreadable
from regraft.identity import replace
from regraft.processes.pool import JobFailed


class Pool:
    """Stands for a pool of processes: it runs a job when its result is taken, and fails as it is told."""

    is_started = True

    def __init__(self, *, fails_at: str = "", room: int = 1 << 20) -> None:
        self._fails_at = fails_at
        self.room = room
        self.asked: list[int] = []
        self.jobs: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.taken: list[int] = []

    def has_room(self, left: int) -> bool:
        self.asked.append(left)
        self.room -= 1
        return self.room >= 0

    def put(self, function: Callable[..., Any], *given: Any) -> int:
        if self._fails_at == "put":
            raise JobFailed("no process")
        self.jobs.append((function, given))
        return len(self.jobs)

    def take(self, job: int) -> Any:
        self.taken.append(job)
        function, given = self.jobs[job - 1]
        if self._fails_at == function.__name__:
            raise JobFailed("it was killed")
        return function(*given)


def located(folder: Path, tree: Any = None, vectors: str | None = "Vectors") -> Any:
    places = SimpleNamespace(uploads="Files", vectors=vectors)
    return SimpleNamespace(tree=tree or FolderTree(folder), places=places)


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def mark(content: bytes) -> list[int]:
    return [len(content), zlib.crc32(content)]


@pytest.fixture
def source(tmp_path: Path) -> Any:
    """A source with a vector file, its log, and one of two uploads."""
    put(tmp_path / "source" / "Vectors" / "kb", b"vectors")
    put(tmp_path / "source" / "Vectors" / "kb-wal", b"log")
    put(tmp_path / "source" / "Files" / "up-b.txt", b"upload")
    return located(tmp_path / "source")


DRAFT = planned("kb", file("a", "L", name="a.txt"), note("n"), file("b", "M", name="b.txt")).draft


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "upload", "names"),
    [
        ("Files", Upload("a.txt"), ["Files/a.txt"]),
        ("Files", Upload("a.txt", other_name="b.txt"), ["Files/a.txt", "Files/b.txt"]),
        ("Files", Upload("a.txt", folder="Other"), ["Other/a.txt"]),
        ("Files", Upload("../a.txt", other_name="b.txt"), ["Files/b.txt"]),
        ("", Upload("a.txt"), ["a.txt"]),
        (None, Upload("a.txt"), []),
        (None, Upload("a.txt", folder="Other"), ["Other/a.txt"]),
    ],
)
def test_names_that_an_upload_may_have(folder: str | None, upload: Upload, names: list[str]) -> None:
    assert upload_names(folder, upload) == names


def test_why_an_upload_is_not_there() -> None:
    def tree(**problems: str) -> Any:
        return SimpleNamespace(problem=lambda name: problems.get(name[6:], ""))

    upload = Upload("a", other_name="b")
    assert upload_problem(tree(), "Files", upload) == "the uploaded file a is not in the source"
    assert upload_problem(tree(b="it is a link"), "Files", upload) == "the uploaded file a was not read (it is a link)"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SourceReadFailed("cut short"), "the uploaded file a.txt cannot be read (cut short)"),
        (SourceUnreadable(path="x", reason="not allowed"), "the uploaded file a.txt cannot be read (not allowed)"),
        (None, ""),
    ],
)
@pytest.mark.parametrize("has_earlier", [False, True])
def test_an_upload_that_cannot_be_read_keeps_the_copy_of_an_earlier_run(
    error: Exception | None, said: str, has_earlier: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "Files" / "a.txt", b"new")
    if has_earlier:
        put(tmp_path / "earlier", b"old")
    if error is not None:

        def fail(*_: object) -> None:
            raise error

        monkeypatch.setattr(source_files, "copy_from_tree", fail)
    target = tmp_path / "target"
    assert copy_upload(FolderTree(tmp_path), "Files", Upload("a.txt"), tmp_path / "earlier", target) == said
    content = target.read_bytes() if target.exists() else None
    assert content == (b"new" if error is None else b"old" if has_earlier else None)


def test_an_upload_that_is_gone_comes_from_an_earlier_run(tmp_path: Path) -> None:
    put(tmp_path / "earlier", b"old")
    tree = FolderTree(tmp_path)
    assert copy_upload(tree, "Files", Upload("a.txt"), tmp_path / "earlier", tmp_path / "target") == ""
    assert (tmp_path / "target").read_bytes() == b"old"
    assert copy_upload(tree, "Files", Upload("a.txt"), tmp_path / "none", tmp_path / "other") == ""
    assert not (tmp_path / "other").exists()


# --- fingerprints ----------------------------------------------------------------------------------------------------


def test_a_fingerprint_is_of_the_draft_and_of_the_bytes_of_all_files(source: Any) -> None:
    folder = source.tree.path
    made = base_fingerprint(source, DRAFT)
    # Ledgers have it: it changes with `WRITER_VERSION`, or else all bases are migrated again without need.
    assert made == "2924714d2439834ba4e836154744b82eacdfcad3"
    marks = FileHashes([mark(b"vectors"), mark(b"log"), None], [None, mark(b"upload")])
    assert base_fingerprint(source, DRAFT, marks=marks) == made
    assert base_fingerprint(source, DRAFT, marks=FileHashes(marks.uploads, marks.vectors)) != made
    others = {
        base_fingerprint(source, replace(DRAFT, name="Another")),
        base_fingerprint(source, replace(DRAFT, items=DRAFT.items[:2])),
        base_fingerprint(source, DRAFT, frozenset({"Files/up-b.txt"})),
        base_fingerprint(located(folder, vectors=None), DRAFT),
    }
    assert base_fingerprint(source, DRAFT, frozenset({"Files/up-a.txt"})) == made
    for name in ("Vectors/kb", "Vectors/kb-wal", "Vectors/kb-journal", "Files/up-a.txt", "Files/up-b.txt"):
        before = (folder / name).read_bytes() if (folder / name).exists() else None
        put(folder / name, b"changed")
        others.add(base_fingerprint(source, DRAFT))
        if before is None:
            (folder / name).unlink()
        else:
            put(folder / name, before)
    assert len(others) == 9
    assert made not in others
    assert base_fingerprint(source, DRAFT) == made


def test_a_name_that_is_not_utf8_has_a_fingerprint(source: Any) -> None:
    odd = replace(DRAFT, name="half \ud800")
    assert base_fingerprint(source, odd) == base_fingerprint(source, odd)
    assert base_fingerprint(source, odd) != base_fingerprint(source, replace(DRAFT, name="half \ud801"))


def test_files_are_hashed_by_processes_as_they_are_by_this_one(source: Any, caplog: pytest.LogCaptureFixture) -> None:
    pool: Any = Pool()
    jobs = ContentHashJobs(pool, source, DRAFT)
    # The uploads go first: only an idle process takes a long message.
    assert [(one.__name__, given[1]) for one, given in pool.jobs] == [
        ("content_marks", [["Files/up-a.txt"] * 2, ["Files/up-b.txt"] * 2]),
        ("content_marks", [["Vectors/kb"], ["Vectors/kb-wal"], ["Vectors/kb-journal"]]),
    ]
    marks = jobs.file_hashes()
    assert marks == FileHashes([mark(b"vectors"), mark(b"log"), None], [None, mark(b"upload")])
    assert base_fingerprint(source, DRAFT, marks=marks) == base_fingerprint(source, DRAFT)
    caplog.set_level(logging.INFO)
    failing: Any = Pool(fails_at="content_marks")
    assert ContentHashJobs(failing, source, DRAFT).file_hashes() is None
    assert "files are read whole by one process: it was killed" in caplog.text


def test_an_archive_and_very_many_items_are_hashed_by_this_process(
    source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool: Any = Pool()
    assert ContentHashJobs(pool, located(Path(), SimpleNamespace()), DRAFT).file_hashes() is None
    monkeypatch.setattr(source_files, "_MAX_HASHED_FILES", len(DRAFT.items) - 1)
    assert ContentHashJobs(pool, source, DRAFT).file_hashes() is None
    assert pool.jobs == []
    monkeypatch.setattr(source_files, "_MAX_HASHED_FILES", len(DRAFT.items))
    assert ContentHashJobs(pool, source, DRAFT).file_hashes() is not None


# --- copies ----------------------------------------------------------------------------------------------------------


def uploads(count: int) -> Iterator[tuple[int, Upload, str]]:
    return ((number, Upload(f"{number}.txt"), f"new-{number}.txt") for number in range(count))


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source with 7 uploads, of which a job copies 3, and one that is not there."""
    monkeypatch.setattr(source_files, "_FILES_PER_JOB", 3)
    for number in (0, 1, 2, 3, 5, 6, 7):
        put(tmp_path / "Files" / f"{number}.txt", b"%d" % number)
    (tmp_path / "raw").mkdir()
    return tmp_path


def copies(folder: Path, pool: Any, tree: Any = None) -> UploadCopies:
    return UploadCopies(uploads(8), tree or FolderTree(folder), "Files", folder / "raw", pool)


def copied(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "raw").iterdir()}


def test_processes_copy_all_uploads_and_name_those_that_they_could_not(many: Path) -> None:
    pool = Pool()
    one = copies(many, pool)
    one.assign()
    assert set(pool.asked) == {1}
    assert [[path for _, path in given[1]] for _, given in pool.jobs] == [
        ["new-0.txt", "new-1.txt", "new-2.txt"],
        ["new-3.txt", "new-4.txt", "new-5.txt"],
        ["new-6.txt", "new-7.txt"],
    ]
    assert list(one.remaining()) == [(4, True)]
    assert pool.taken == [1, 2, 3]
    assert copied(many) == {f"new-{number}.txt": b"%d" % number for number in (0, 1, 2, 3, 5, 6, 7)}


def test_this_process_copies_while_processes_are_busy(many: Path) -> None:
    pool = Pool(room=1)
    one = copies(many, pool)
    one.assign()
    assert len(pool.jobs) == 1
    rest = one.remaining()
    assert [next(rest), next(rest)] == [(3, False), (4, False)]
    # Once it only copies itself, it gives files to idle processes alone, after each file.
    assert pool.asked == [1, 1, 0, 0]
    pool.room = 1
    assert list(rest) == []
    assert (len(pool.jobs), pool.asked[4:6]) == (2, [0, 0])
    assert sorted(copied(many)) == [f"new-{number}.txt" for number in (0, 1, 2, 5, 6, 7)]


@pytest.mark.parametrize("why", ["no pool", "archive", "busy", "no process"])
def test_without_processes_this_one_copies_all(why: str, many: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pool = {"no pool": None, "archive": Pool(), "busy": Pool(room=0), "no process": Pool(fails_at="put")}[why]
    one = copies(many, pool, SimpleNamespace() if why == "archive" else None)
    one.assign()
    left = sorted(one.remaining())
    # Files that were given to a process that could not be started may be there in part.
    tried = 3 if why == "no process" else 0
    assert left == [(number, number < tried) for number in range(8)]
    assert copied(many) == {}
    assert ("uploads are copied by one process: no process" in caplog.text) == bool(tried)


def test_what_a_killed_process_was_given_is_copied_again(many: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    one = copies(many, Pool(fails_at="copy_files"))
    one.assign()
    assert list(one.remaining()) == [(number, True) for number in range(8)]
    assert "uploads are copied by one process: it was killed" in caplog.text


# --- hashes of what was written --------------------------------------------------------------------------------------


@pytest.fixture
def staging(tmp_path: Path) -> tuple[Path, tuple[str, str]]:
    """A base that was written, with its hashes."""
    put(tmp_path / ".cherry" / "index.sqlite", b"index")
    put(tmp_path / "raw" / "a.txt", b"text")
    raw = hashlib.sha256(f"raw/a.txt {hashlib.sha256(b'text').hexdigest()}\n".encode()).hexdigest()
    return tmp_path, (hashlib.sha256(b"index").hexdigest(), raw)


@pytest.mark.parametrize(
    ("fails_at", "is_started", "taken", "said"),
    [
        ("", True, [1, 2], ""),
        ("put", True, [], "files are hashed by one process: no process"),
        ("folder_hash", True, [1, 2], "files are hashed again: it was killed"),
        ("", False, [], ""),
    ],
)
def test_an_index_and_its_files_are_hashed_in_the_background(
    fails_at: str,
    is_started: bool,
    taken: list[int],
    said: str,
    staging: tuple[Path, tuple[str, str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    pool: Any = Pool(fails_at=fails_at)
    pool.is_started = is_started
    folder, hashes = staging
    with hash_in_background(folder, pool) as wait:
        assert wait() == hashes
    assert said in caplog.text
    assert pool.taken == taken
    assert not taken or [one for one, _ in pool.jobs] == [trees.file_hash, trees.folder_hash]
    with hash_in_background(folder, None) as wait:
        assert wait() == hashes


def test_a_base_without_an_index_is_hashed_by_this_process(tmp_path: Path) -> None:
    pool: Any = Pool()
    with hash_in_background(tmp_path, pool) as wait:
        assert wait() == ("", "")
    assert pool.jobs == []
