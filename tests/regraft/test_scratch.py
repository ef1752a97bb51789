"""Temporary folders: removed at the end, and after a kill by the next run, which removes nothing else."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from faults import posix
from harness import NOW, run
from planted_v1 import whole
from planted_v2 import KB, index, run_sql

from regraft.disk import durable, file_paths, lock_files, scratch, writable

#: Makes a temporary folder with a file in it, says so, and keeps it until it is told to end.
KEEPER = """
import os, sys
from regraft.disk import durable, scratch
with scratch.temporary_folder() as folder:
    durable.write_text_atomically(folder / "rows", "private", folder / "new")
    print(folder, flush=True)
    sys.stdin.readline()
"""
#: Runs a command and kills this process before one of its operations in the temporary folder; 0: counts them.
KILLED_COMMAND = """
import os, signal, sys
at, seen = int(sys.argv[1]), 0
def hook(event, arguments):
    global seen
    if event in ("open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "shutil.rmtree", "tempfile.mkdtemp"):
        is_meant = any("regraft-run-" in str(argument) for argument in arguments[:2])
        seen += is_meant
        if is_meant and seen == at:
            # Windows ends a process by any signal but two, and with that status.
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
sys.addaudithook(hook)
import regraft.cli
try:
    regraft.cli.cli(sys.argv[2:])
finally:
    print(seen, file=sys.stderr)
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a temporary folder of the system, for this process and those that it starts."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    return folder


@contextmanager
def keeper() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Run :data:`KEEPER` in a process, and yield the process and its temporary folder."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", KEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def leftover(root: Path, name: str = "regraft-run-0123abc_") -> Path:
    """Make a run folder whose lock no process holds."""
    folder = root / name
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "rows.sqlite").write_text("private")
    (folder / "lock").touch()
    folder.chmod(0o700)
    return folder


# --- within a process ------------------------------------------------------------------------------------------------


def test_a_folder_is_private_and_goes_with_its_context(root: Path) -> None:
    with scratch.temporary_folder() as folder:
        run_folder = folder.parent
        assert run_folder.parent == root
        assert sqlite_is_held(run_folder / "lock")
        durable.put_text(folder / "a", "x")
        if os.name != "nt":
            assert stat.S_IMODE(run_folder.stat().st_mode) == stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert names(root) == []


def sqlite_is_held(lock: Path) -> bool:
    try:
        with lock_files.hold_lock(lock):
            return False
    except lock_files.LockHeld:
        return True


def test_several_folders_share_one_run_folder_until_the_last_one_ends(root: Path) -> None:
    with ExitStack() as outer:
        first = outer.enter_context(scratch.temporary_folder())
        with scratch.temporary_folder() as second:
            assert first.parent == second.parent
            assert first != second
        assert first.is_dir()
        assert not second.exists()
        assert len(list(root.iterdir())) == 1
    assert names(root) == []


def test_a_folder_is_made_while_another_thread_removes_one(root: Path) -> None:
    with scratch.temporary_folder(), writable.allow_writes(root, entries_only=True):
        with scratch.temporary_folder() as folder:
            durable.put_text(folder / "a", "x")
            assert (folder / "a").read_text("utf-8") == "x"
        assert not folder.exists()


def test_threads_share_it_too(root: Path) -> None:
    ready, problems = threading.Barrier(4), []

    def work() -> None:
        try:
            ready.wait()
            for number in range(20):
                with scratch.temporary_folder() as folder:
                    durable.put_text(folder / "a", str(number))
                    assert (folder / "a").read_text("utf-8") == str(number)
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert names(root) == []


def test_folders_of_other_processes_are_seen_and_ones_own_are_not(root: Path) -> None:
    assert not scratch.is_used_by_others()
    assert not scratch.is_used_by_others(root / "missing")
    with scratch.temporary_folder():
        assert not scratch.is_used_by_others()
        other = leftover(root)
        assert not scratch.is_used_by_others()
        with writable.allow_writes(other), lock_files.hold_lock(other / "lock", is_kept=lambda: True):
            assert scratch.is_used_by_others()
            assert scratch.is_used_by_others(root)
            other.rename(root / "another-0123abc_")
            assert not scratch.is_used_by_others()
            (root / "another-0123abc_").rename(other)


def test_a_folder_that_cannot_be_made_is_no_user_of_the_run_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkdtemp", full)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)), scratch.temporary_folder():
            pass
    with scratch.temporary_folder() as folder:
        assert folder.is_dir()
    assert names(root) == []


def test_a_folder_in_a_store_is_made_there(root: Path, tmp_path: Path) -> None:
    with writable.allow_writes(tmp_path / "store"), scratch.temporary_folder(tmp_path / "store" / "work") as folder:
        assert folder.parent == tmp_path / "store" / "work"
        assert names(root) == []
    assert names(tmp_path / "store") == ["work"]


def test_a_file_system_without_locks_still_has_temporary_folders(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def refuse(path: Path, **_: object) -> Iterator[None]:
        path.touch()
        raise OSError("no locks available")
        yield

    monkeypatch.setattr(lock_files, "hold_lock", refuse)
    with scratch.temporary_folder() as folder:
        # It has not the name of a leftover.
        assert not folder.parent.name.startswith("regraft-run-")
        scratch.remove_leftovers()
        assert folder.is_dir()
    assert names(root) == []


def test_a_run_folder_that_is_removed_before_it_is_locked_is_made_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, made = tempfile.mkdtemp, []

    def mkdtemp(**options: object) -> str:
        made.append(real(**options))
        if len(made) == 1:
            scratch.remove_leftovers()
            assert not Path(made[0]).exists()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    with scratch.temporary_folder() as folder:
        assert folder.parent == Path(made[1])
        assert sqlite_is_held(folder.parent / "lock")
    assert names(root) == []


def test_a_child_that_was_forked_leaves_the_folder_of_its_parent(root: Path) -> None:
    if not hasattr(os, "fork"):
        pytest.skip("the system has no fork")
    program = """
import os, sys
from regraft.disk import scratch
with scratch.temporary_folder() as folder:
    child = os.fork()
    if not child:
        with scratch.temporary_folder() as own:
            assert own.parent != folder.parent
        os._exit(0)
    else:
        assert os.waitpid(child, 0)[1] == 0
        assert (folder.parent / "lock").is_file()
"""
    subprocess.run([sys.executable, "-P", "-c", program], check=True)
    assert names(root) == []


# --- what is removed, and what is not --------------------------------------------------------------------------------


def test_the_folder_of_a_killed_process_goes_with_the_next_run_and_that_of_a_running_one_stays(root: Path) -> None:
    with keeper() as (killed, left), keeper() as (_, held):
        killed.kill()
        killed.wait()
        assert (left / "rows").read_text("utf-8") == "private"
        scratch.remove_leftovers()
        assert not left.parent.exists()
        assert (held / "rows").read_text("utf-8") == "private"
        assert sqlite_is_held(held.parent / "lock")
    scratch.remove_leftovers()
    assert names(root) == []


def test_a_run_that_ends_by_itself_leaves_nothing(root: Path) -> None:
    with keeper() as (process, folder):
        assert folder.is_dir()
        assert process.communicate("end\n")[0] == ""
        assert process.returncode == 0
    assert names(root) == []


def test_the_first_temporary_folder_of_a_process_removes_leftovers(root: Path) -> None:
    leftover(root)
    with scratch.temporary_folder() as folder:
        assert list(root.iterdir()) == [folder.parent]


@pytest.mark.parametrize("name", ["regraft-run-0123abcd9", "regraft-run-0123ABCD", "regraft-abcdefgh", "run-0123abcd"])
def test_a_folder_with_another_name_stays(root: Path, name: str) -> None:
    leftover(root, name)
    before = names(root)
    scratch.remove_leftovers()
    assert names(root) == before


def test_a_folder_with_content_and_no_lock_file_stays(root: Path) -> None:
    (leftover(root) / "lock").unlink()
    before = names(root)
    scratch.remove_leftovers()
    assert names(root) == before


def test_an_empty_run_folder_goes(root: Path) -> None:
    """Its process was killed before it made the lock file, or after it removed it."""
    (root / "regraft-run-0123abc_").mkdir(mode=0o700)
    scratch.remove_leftovers()
    assert names(root) == []


@posix
@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_folder_that_is_open_to_others_stays(root: Path, mode: int) -> None:
    leftover(root).chmod(mode)
    before = names(root)
    scratch.remove_leftovers()
    assert names(root) == before


@posix
def test_the_folder_of_another_user_stays(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leftover(root)
    before = names(root)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    scratch.remove_leftovers()
    assert names(root) == before


@posix
def test_no_link_is_followed(root: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    victim = leftover(mine)
    before = names(mine)
    (root / "regraft-run-aaaaaaaa").symlink_to(victim, target_is_directory=True)
    folder = leftover(root, "regraft-run-bbbbbbbb")
    (folder / "way").symlink_to(victim, target_is_directory=True)
    (folder / "deep" / "way").symlink_to(victim / "lock")
    locked_by_link = leftover(root, "regraft-run-cccccccc")
    (locked_by_link / "lock").unlink()
    (locked_by_link / "lock").symlink_to(victim / "lock")
    scratch.remove_leftovers()
    assert names(mine) == before
    assert sorted(path.name for path in root.iterdir()) == ["regraft-run-aaaaaaaa", "regraft-run-cccccccc"]
    assert (locked_by_link / "deep" / "er" / "rows.sqlite").read_text("utf-8") == "private"


def test_a_junction_of_windows_is_a_link(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks like a folder."""
    folder = leftover(root)
    before, real = names(root), file_paths.is_link_stat
    monkeypatch.setattr(file_paths, "is_link_stat", lambda one: one.st_ino == folder.stat().st_ino or real(one))
    scratch.remove_leftovers()
    assert names(root) == before


def test_what_cannot_be_removed_stays_for_the_next_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = leftover(root)
    other = leftover(root, "regraft-run-zzzzzzzz")

    def refuse(path: Path, **options: object) -> None:
        if folder in path.parents:
            raise PermissionError(13, "The process cannot access the file", str(path))
        shutil.rmtree(path)

    with monkeypatch.context() as patched:
        patched.setattr(durable, "remove_tree", refuse)
        scratch.remove_leftovers()
    assert folder.is_dir()
    assert not other.exists()
    scratch.remove_leftovers()
    assert names(root) == []


def test_no_temporary_folder_is_no_error(tmp_path: Path) -> None:
    scratch.remove_leftovers(tmp_path / "missing")
    assert [*tmp_path.iterdir()] == []


# --- commands --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a v1 source, and a library of it that lost some vectors."""
    place = tmp_path_factory.mktemp("built")
    assert run("migrate", whole(place / "v1"), "--to", place / "library", "--now", NOW, "-q").status == 0
    run_sql(index(place / "library", KB), "DELETE FROM embedding WHERE rowid % 3 = 0")
    return place


def killed(at: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that kills itself before its operation ``at`` in the temporary folder."""
    words = [str(argument) for argument in arguments]
    return subprocess.run(
        [sys.executable, "-P", "-c", KILLED_COMMAND, str(at), *words], capture_output=True, text=True, check=False
    )


@pytest.mark.thorough
def test_a_command_that_is_killed_at_any_moment_leaves_nothing_after_the_next_one(
    built: Path, root: Path, tmp_path: Path
) -> None:
    """``repair --from`` makes a whole library there."""

    def repaired(at: int) -> subprocess.CompletedProcess[str]:
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        shutil.copytree(built / "library", tmp_path / "store")
        return killed(at, "repair", tmp_path / "store", "--from", built / "v1", "--yes", "-q")

    whole_run = repaired(0)
    assert whole_run.returncode == 0, whole_run.stderr
    assert names(root) == []
    operations = int(whole_run.stderr.split()[-1])
    assert operations > 30
    with_content = 0
    # The first operations make the run folder, the last ones remove it; between them, a sample.
    moments = {1, 2, 3, *range(4, operations, operations // 6), operations - 1, operations}
    for at in sorted(moments):
        assert repaired(at).returncode == (signal.SIGTERM if os.name == "nt" else -signal.SIGKILL)
        with_content += any(path.is_file() for path in root.rglob("*"))
        assert run("inspect", built / "library").status == 0
        assert names(root) == [], f"killed before operation {at} of {operations}"
    assert with_content >= 5
