"""Try the installed command in a folder of any kind: a share, a mapped drive, an exFAT volume, a deep path.

``python tests/support/platform_trial.py FOLDER [--deep]`` migrates the sample, installs it in a profile, undoes that,
and packs the library, each in a process of its own with piped output. What was written is read back with plain SQLite.
Then it holds the locks of a running application, and expects that nothing is written to the profile. The workflow runs
this on systems where the tests themselves do not reach such folders.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import profiles

SAMPLE = Path(__file__).parents[2] / "sample_v1" / "cherry-studio.202503141200.zip"
#: Chinese words: neither a path nor the output may depend on the code page.
NAME = "知识库 🎉"
#: The models of the sample, which the profile does not have.
PROVIDERS = ("--recreate-provider", "openai", "--recreate-provider", "silicon")
#: Keeps a file open and locked, as Chromium does, until its standard input ends.
HOLDER = """
import os, sys
path = sys.argv[1]
if os.name == "nt":
    import ctypes
    create = ctypes.windll.kernel32.CreateFileW
    create.restype = ctypes.c_void_p
    handle = create(path, 0xC0000000, 0, None, 4, 0x04000000, None)
    assert handle != ctypes.c_void_p(-1).value, ctypes.GetLastError()
else:
    import fcntl
    file = open(path, "ab")
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""


def reachable(path: Path) -> Path:
    r"""Return a path by which Windows reaches what has a long name, whether or not long paths are on."""
    name = str(path.absolute())
    if os.name != "nt" or name.startswith("\\\\?\\"):
        return path
    return Path("\\\\?\\UNC" + name[1:] if name.startswith("\\\\") else "\\\\?\\" + name)


def regraft(*arguments: object, status: tuple[int, ...] = (0,)) -> dict[str, Any]:
    """Run a command with ``--json`` and piped output; return its document."""
    line = [sys.executable, "-P", "-m", "regraft", *map(str, arguments), "--json"]
    done = subprocess.run(line, capture_output=True, check=False)
    if done.returncode not in status:
        raise AssertionError(f"{line} ended with {done.returncode}: {done.stdout!r} {done.stderr!r}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def vectors(root: Path) -> dict[str, bytes]:
    """Return every vector of every index below a folder, by its hash, read from a copy of the bytes."""
    found: dict[str, bytes] = {}
    for path in sorted(reachable(root).rglob("index.sqlite")):
        with closing(sqlite3.connect(":memory:")) as db:
            raw = bytearray(path.read_bytes())
            # What the header says of a log has no meaning in memory.
            raw[18:20] = b"\1\1"
            db.deserialize(bytes(raw))
            found |= dict(db.execute("SELECT embedding_text_hash, vector_blob FROM embedding"))
    return found


def state_of(folder: Path) -> dict[str, str]:
    """Return the digest of every file of a store, without those of regraft and of SQLite's log."""
    top = reachable(folder)
    files = (path for path in sorted(top.rglob("*")) if path.is_file() and ".regraft" not in path.parts)
    return {
        path.relative_to(top).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if not path.name.endswith(("-wal", "-shm"))
    }


def rows_of(profile: Path) -> dict[str, list[Any]]:
    """Return the rows of the profile's database."""
    return profiles.tables(profile)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a file as a running application does, in another process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "held", path
        try:
            yield
        finally:
            process.stdin.close()
            process.wait()


def try_commands(folder: Path) -> dict[str, int]:
    """Run every step in a folder; return how many vectors each result has."""
    source, library, profile = folder / f"{NAME}.zip", folder / NAME, folder / "profile"
    shutil.copyfile(SAMPLE, source)
    before = source.read_bytes()
    regraft("migrate", source, "--to", library, "--yes", "--fail-on", "never")
    migrated = vectors(library)
    assert migrated
    assert source.read_bytes() == before
    regraft("check", library, "--fail-on", "error")
    profiles.profile(profile)
    untouched = rows_of(profile)
    regraft("install", library, "--profile", profile, "--yes", *PROVIDERS, status=(0, 1))
    installed = vectors(profile)
    assert installed == migrated
    assert rows_of(profile) != untouched
    regraft("undo", profile, "--yes")
    assert rows_of(profile) == untouched
    assert not vectors(profile)
    pack = folder / f"{NAME}-pack.zip"
    regraft("pack", library, pack, status=(0, 1))
    with zipfile.ZipFile(pack) as archive:
        assert archive.testzip() is None
        archive.extractall(reachable(folder / "unpacked"))
    packed = vectors(folder / "unpacked")
    assert packed == migrated
    return {"migrated": len(migrated), "installed": len(installed), "packed": len(packed)}


def try_locks(folder: Path) -> list[str]:
    """Expect that commands refuse a profile whose locks another process holds; return the locks."""
    library, profile = folder / NAME, folder / "profile in use"
    profiles.profile(profile)
    locks = [profile / "Local Storage" / "leveldb" / "LOCK"]
    if os.name == "nt":
        # Elsewhere the application makes a link with its process instead.
        locks.append(profile / "lockfile")
    for lock in locks:
        with held(lock):
            untouched = state_of(profile) if os.name != "nt" else rows_of(profile)
            refused = regraft("install", library, "--profile", profile, "--yes", *PROVIDERS, status=(2,))
            assert refused["error"]["code"] == "ApplicationOpen", refused
            assert untouched == (state_of(profile) if os.name != "nt" else rows_of(profile))
        # Windows deletes its lock with the handle that held it.
        lock.unlink(missing_ok=True)
    regraft("install", library, "--profile", profile, "--yes", *PROVIDERS, status=(0, 1))
    return [lock.name for lock in locks]


def main() -> int:
    """Run the trial in the folder that the command line names."""
    folder = Path(sys.argv[1]) / "regraft trial"
    if "--deep" in sys.argv:
        # With it, an index file has a longer path than the 260 characters that Windows takes without long paths.
        folder = folder.joinpath(*["a folder in a folder in a folder"] * 4)
    reachable(folder).mkdir(parents=True)
    print(json.dumps({"folder": str(folder), **try_commands(folder), "refused while held": try_locks(folder)}))
    shutil.rmtree(reachable(Path(sys.argv[1]) / "regraft trial"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
