"""Helpers of the tests about refusals, faults and repeated runs: a small v1 source, and ways to make a run fail."""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import importlib
import json
import os
import pkgutil
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest
from conftest import NOW, Outcome, run
from patience import NEVER_SECONDS

from migrators.parquet import library as imported
from migrators.parquet.rebuild import Rebuilt
from migrators.stages import crew, publish
from regraft import durable, interrupts, workers
from regraft.cli import OnDemand
from regraft.errors import BooksDoNotBalance, RegraftError, VerificationFailed
from regraft.formats import index
from regraft.formats.index.bulk import IndexBuilder
from regraft.ledger import Ledger

DIMENSIONS = 8
MODEL = {"id": "embed-small", "name": "Embed small", "provider": "acme", "group": "embed"}
#: What a killed process leaves as its exit status.
KILLED = 137
REFUSED, STOPPED, INTERRUPTED = 2, 3, 130
posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no fork and none of these signals")

# --- a small v1 source ---------------------------------------------------------------------------------------------


class Source:
    """An export folder that a test builds up and changes; :meth:`write` puts its state on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bases: list[dict[str, Any]] = []
        self.files: list[dict[str, Any]] = []
        self.providers = [{"id": "acme", "name": "Acme", "enabled": True, "models": [MODEL]}]
        for name in ("dexie", "KnowledgeBase", "Files"):
            (folder / name).mkdir(parents=True)

    def base(self, base_id: str, items: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """Add a base to the state."""
        base = {"id": base_id, "name": f"Base {base_id}", "model": MODEL, "created_at": 1_700_000_000_000, **more}
        self.bases.append({**base, "items": items})
        return self.bases[-1]

    def upload(self, file_id: str, name: str, content: bytes) -> dict[str, Any]:
        """Add an uploaded file and return the item that stands for it."""
        (self.folder / "Files" / f"{file_id}.txt").write_bytes(content)
        self.files.append(
            {
                "id": file_id,
                "name": f"{file_id}.txt",
                "origin_name": name,
                "path": f"/home/mei/{name}",
                "ext": ".txt",
                "type": "text",
                "created_at": "2025-01-01T00:00:00.000Z",
                "size": len(content),
                "count": 1,
            }
        )
        return item(f"item-{file_id}", "file", {"id": file_id})

    def vectors(self, base_id: str) -> Path:
        """Return where a base's vector file is."""
        return self.folder / "KnowledgeBase" / base_id

    def write(self) -> Path:
        """Write the state and return the folder."""
        state = {"knowledge": {"bases": self.bases}, "llm": {"providers": self.providers}}
        (self.folder / "redux.json").write_text(json.dumps(state))
        (self.folder / "dexie" / "files.json").write_text(json.dumps(self.files))
        (self.folder / "dexie" / "knowledge_notes.json").write_text("[]")
        return self.folder


def item(item_id: str, kind: str, content: Any, **more: Any) -> dict[str, Any]:
    """Return a completed item whose loader is called after it."""
    done = {"processingStatus": "completed", "uniqueId": f"L_{item_id}", "uniqueIds": [f"L_{item_id}"]}
    times = {"created_at": 1_700_000_000_000, "updated_at": 1_700_000_100_000}
    return {"id": item_id, "type": kind, "content": content, **done, **times, **more}


def vector(seed: object) -> bytes:
    """Return a vector that follows from ``seed``."""
    chance = Random(str(seed))
    return struct.pack(f"<{DIMENSIONS}f", *(chance.uniform(-1, 1) for _ in range(DIMENSIONS)))


def write_vectors(path: Path, rows: dict[str, int], *, length: int = 60, columns: str = "") -> None:
    """Write a v1 vector file with so many rows of so many characters for every item."""
    order = columns or "id TEXT PRIMARY KEY, pageContent TEXT UNIQUE, uniqueLoaderId TEXT, source TEXT, vector BLOB"
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"CREATE TABLE vectors ({order}, metadata TEXT)")
        for item_id, count in rows.items():
            for number in range(count):
                seed = f"{path.name} {item_id} {number}"
                body = (f"{seed} the lamp of the harbour is lit at dusk " * (length // 40 + 1))[: max(length, 1)]
                db.execute(
                    "INSERT INTO vectors (id, pageContent, uniqueLoaderId, source, vector, metadata)"
                    " VALUES (?, ?, ?, ?, ?, '{}')",
                    (f"L_{item_id}_{number}", body, f"L_{item_id}", f"/notes/{item_id}.md", vector(seed)),
                )


def small_source(folder: Path) -> Source:
    """Build three bases: one of every kind of item, one of uploads and a note, and one whose vector file is gone."""
    source = Source(folder)
    pages = source.upload("f1", "pages.txt", b"page one\n" * 40)
    tree = item("tree", "directory", "/notes", uniqueIds=["L_left", "L_right"])
    items = [pages, item("page", "url", "https://example.org/a"), tree, item("memo", "note", "remember the lamp")]
    source.base("alpha", items)
    write_vectors(source.vectors("alpha"), {"f1": 0, "item-f1": 4, "page": 2, "left": 2, "right": 1, "memo": 1})
    same = [source.upload("f2", "same.txt", b"two"), source.upload("f3", "same.txt", b"three")]
    source.base("beta", [*same, item("rota", "note", "who comes on Monday")])
    write_vectors(source.vectors("beta"), {"item-f2": 3, "item-f3": 2, "rota": 2})
    source.base("gamma", [source.upload("f4", "lost.txt", b"four"), item("lost", "note", "no vectors")])
    source.write()
    return source


def changed_source(source: Source) -> None:
    """Change one vector of one base of :func:`small_source`, so that only its index becomes another one."""
    with closing(sqlite3.connect(source.vectors("beta"))) as db, db:
        db.execute("UPDATE vectors SET vector = ? WHERE id = 'L_item-f2_1'", (vector("another"),))


def late_damage(path: Path) -> None:
    """Write a vector file for base ``beta`` and break the chain of pages of one long text.

    Nothing reads along it before that text is carried.
    """
    rows = {"item-f2": 3, "rota": 2}
    # Vectors stand before texts, so that looking at them does not walk along the text.
    order = "id TEXT PRIMARY KEY, uniqueLoaderId TEXT, source TEXT, vector BLOB, pageContent TEXT UNIQUE"
    write_vectors(path, rows, length=30_000, columns=order.replace("TEXT UNIQUE", "TEXT"))
    with closing(sqlite3.connect(path)) as db:
        size = db.execute("PRAGMA page_size").fetchone()[0]
    raw = bytearray(path.read_bytes())
    pages = [
        start
        for start in range(size, len(raw), size)
        # An overflow page begins with the number of the next one, and goes on with text.
        if raw[start] == 0 and raw[start + 4 : start + 40].isascii() and b"lamp" in raw[start : start + size]
    ]
    raw[pages[1] : pages[1] + 4] = (0x00FFFFFF).to_bytes(4, "big")
    path.write_bytes(raw)


# --- what a run leaves ---------------------------------------------------------------------------------------------


def migrate(source: Path, target: Path, *more: object) -> Outcome:
    """Run the command with a fixed time."""
    return run("migrate", source, "--to", target, "--now", NOW, *more)


def library(target: Path) -> dict[str, bytes]:
    """Return the bytes of the catalog and of every file of every base."""
    return {"catalog.sqlite": (target / "catalog.sqlite").read_bytes(), **files_of(target / "KnowledgeBase")}


def base_files(target: Path) -> dict[str, dict[str, bytes]]:
    """Return the bytes of what stands in a target's base folders, by base id."""
    return {folder.name: files_of(folder) for folder in sorted((target / "KnowledgeBase").glob("*"))}


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file below a folder, by its path."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def left_over(target: Path) -> list[str]:
    """Return what a run has left of its work beside the library."""
    return [name for name in ("staging", "replaced", "work") if (target / ".regraft" / name).exists()]


def marks(target: Path) -> dict[str, tuple[int, int]]:
    """Return inode and time of change of every index, by base id."""
    found = {}
    for path in sorted((target / "KnowledgeBase").glob("*/.cherry/index.sqlite")):
        status = path.stat()
        found[path.parent.parent.name] = (status.st_ino, status.st_mtime_ns)
    return found


@contextmanager
def untouched(*places: Path) -> Iterator[None]:
    """Assert that nothing in or at these places is written, made or removed."""
    before = {place: state_of(place) for place in places}
    yield
    for place, state in before.items():
        assert state_of(place) == state, place


def state_of(place: Path) -> list[tuple[str, int, int, bytes]]:
    """Return all that can be told of a file, or of a folder and of what is in it: times, links and bytes too.

    Only the time of regraft's own folder does not count: work folders come and go in it.
    """
    found = []
    for path in (place, *sorted(place.rglob("*"))):
        if os.path.lexists(path):
            status = path.lstat()
            time_of_change = 0 if path.name == ".regraft" else status.st_mtime_ns
            content = path.read_bytes() if path.is_file() else b""
            found.append((str(path), status.st_mode, time_of_change, content))
    return found


# --- what a command says when it fails -----------------------------------------------------------------------------


def said(outcome: Outcome, code: str, status: int) -> str:
    """Assert that a run with ``--json`` failed as it should and return its message."""
    error = outcome.document["error"]
    assert (error["code"], error["exit_status"], outcome.status) == (code, status, status), outcome
    assert list(outcome.document) == ["regraft", "error"]
    assert outcome.stderr == f"regraft: {error['message']}\n"
    assert "\n" not in error["message"]
    return str(error["message"])


@contextmanager
def fails(code: str, status: int = REFUSED, match: str | None = None) -> Iterator[None]:
    """Assert that what is done here ends with an error of regraft's own, in one line."""
    with pytest.raises(RegraftError, match=match) as caught:
        yield
    assert (caught.value.code, caught.value.exit_status) == (code, status)
    assert "\n" not in str(caught.value)


def line(outcome: Outcome, status: int) -> str:
    """Assert that a run without ``--json`` failed with one line on stderr and return it."""
    assert outcome.status == status, outcome
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("regraft: ")
    assert outcome.stderr.count("\n") == 1
    return outcome.stderr.removeprefix("regraft: ").removesuffix("\n")


# --- processes that die --------------------------------------------------------------------------------------------


def give_up_rights() -> None:
    """Go on as a user who owns nothing, where this process is root.

    All that is imported late is imported before: that user may not be able to read the interpreter's own files.
    """
    if os.geteuid() != 0:
        return
    for package in ("regraft", "migrators", "checks", "repair"):
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    for encoding in ("utf-16-le", "utf-16-be", "utf-8-sig", "latin-1", "idna"):
        codecs.lookup(encoding)
    os.setuid(65534)


def forked(work: Callable[[], object]) -> int:
    """Do ``work`` in a copy of this process and return its exit status (128 + n for a signal)."""
    with warnings.catch_warnings():
        # Test runners keep threads; the copy only runs ``work``, which needs none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 99
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def started(source: Path, target: Path, *more: str, work: str = "", hold: Hold | None = None) -> subprocess.Popen[str]:
    """Start the real command in a process (and process group) of its own.

    Its processes do ``work`` for a base, a function of this module, instead of carrying it.
    """
    return started_command("migrate", str(source), "--to", str(target), "--now", NOW, *more, work=work, hold=hold)


def started_command(
    *arguments: str, work: str = "", before: str = "", hold: Hold | None = None
) -> subprocess.Popen[str]:
    """Start any command as :func:`started` does; ``before`` is called first, a function of this module or another."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    patched = "import faults; faults.begin_as_in_a_terminal(); "
    patched += f"faults.crew._in_process = faults.{work}; " if work else ""
    module, _, function = before.rpartition(".")
    patched += f"import {module or 'faults'} as patch; patch.{function}(); " if before else ""
    patched += f"import faults; faults.hold_still(*{hold.arguments}); " if hold else ""
    return subprocess.Popen(
        [sys.executable, "-c", f"{patched}import regraft.cli; regraft.cli.main()", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tempfile.gettempdir(),
        env=environment,
        start_new_session=True,
    )


def begin_as_in_a_terminal() -> None:
    """Let a process that was just started heed stops, however the tests were started, and not outlive them."""
    for number in interrupts.STOPS:
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def wait_until(true: Callable[[], object], process: subprocess.Popen[str]) -> bool:
    """Poll until something is true; False where the process ended before."""
    end = time.monotonic() + NEVER_SECONDS
    while not true():
        if process.poll() is not None:
            return False
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.001)
    return True


def output_of(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return what a process says on stdout and stderr until its end; one that never ends is killed with its own."""
    try:
        return process.communicate(timeout=NEVER_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def _kept(root: Path) -> int:
    return len(list((root / ".regraft" / "undo").glob("*/*")))


#: Moments of a migration, and of a run that changes a store, by what is there.
MOMENTS: dict[str, Callable[[Path], bool]] = {
    "the ledger is there": lambda target: (target / ".regraft" / "ledger.sqlite").exists(),
    "the first index is begun": lambda target: any((target / ".regraft" / "staging").rglob(".cherry/index.sqlite")),
    "a base is in place": lambda target: any((target / "KnowledgeBase").glob("*")),
    "two bases are in place": lambda target: len(list((target / "KnowledgeBase").glob("*"))) >= 2,
    "the catalog is there": lambda target: (target / "catalog.sqlite").exists(),
    "what takes one change back is there": lambda target: _kept(target) >= 1,
    "what takes two changes back is there": lambda target: _kept(target) >= 2,
}


class Hold:
    """Lets a process that a test starts stand still once a moment of :data:`MOMENTS` is reached.

    What a test does to it then comes at that moment, however loaded the machine is.
    """

    def __init__(self, moment: str, target: Path, folder: Path) -> None:
        self._reached, self._on = folder / "reached", folder / "on"
        self.arguments = (moment, str(target), str(self._reached), str(self._on))

    def wait(self, process: subprocess.Popen[str]) -> None:
        """Wait until the process stands still."""
        assert wait_until(self._reached.exists, process), "it ended before it was held"

    def release(self) -> None:
        """Let it go on."""
        self._on.touch()


def hold_still(moment: str, target: str, reached: str, on: str) -> None:
    """Stand still at a moment, from the next step at which files are made, moved or flushed, until ``on`` is there."""

    def held(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            result = real(*arguments, **named)
            if MOMENTS[moment](Path(target)) and not Path(reached).exists():
                Path(reached).touch()
                # A signal may be held back here: it must not be the only way on.
                while not Path(on).exists():
                    time.sleep(0.001)
            return result

        return step

    for name in ("mkdir", "replace", "fsync"):
        setattr(os, name, held(getattr(os, name)))


def die() -> None:
    """End this process at once, as a power cut or ``kill -9`` would."""
    os._exit(KILLED)


# --- tripwires -----------------------------------------------------------------------------------------------------


class Tripwire:
    """Counts the steps of a run, and springs before one of them.

    The moment after a step is the moment before the next one, so that these moments are all there are.
    """

    def __init__(self, patch: pytest.MonkeyPatch, spring: Callable[[], object], at: int) -> None:
        self._patch = patch
        self._spring = spring
        self._at = at
        self.steps: list[str] = []

    @property
    def sprung(self) -> bool:
        """Tell whether the run came as far as the wire."""
        return len(self.steps) >= self._at

    @property
    def where(self) -> str:
        """Return the step at which it sprang, for a person."""
        return f"at step {self._at}, {self.steps[self._at - 1] if self.sprung else 'never reached'}"

    def watch(self, owner: object, *names: str) -> Tripwire:
        """Count the calls of these functions."""
        for name in names:
            self._watch(owner, name)
        return self

    def _watch(self, owner: object, name: str) -> None:
        real = getattr(owner, name)

        def watched(*arguments: Any, **named: Any) -> Any:
            self.step(name)
            return real(*arguments, **named)

        self._patch.setattr(owner, name, watched)

    def step(self, name: str) -> None:
        """Count one step."""
        self.steps.append(name)
        if len(self.steps) == self._at:
            self._spring()

    def watch_files(self) -> Tripwire:
        """Watch what makes, moves, fills and flushes files and folders, and what may fail for want of room."""
        self.watch(os, "mkdir", "replace", "fsync")
        return self.watch(shutil, "copyfileobj")

    def watch_all(self) -> Tripwire:
        """Watch whatever changes the target: the ledger, what is built, moved and flushed, and what is removed."""
        self.watch(Ledger, "begin_run", "intend", "done", "drop", "end_run")
        self.watch(IndexBuilder, "finish").watch(index, "verify").watch(publish, "write_catalog")
        self.watch(Rebuilt, "finish").watch(imported, "verify")
        return self.watch(durable, "sync_tree").watch(os, "unlink", "rmdir").watch_files()


def whole_path(path: object, folder: int | None) -> str:
    """Return the whole path that a call of the system was given, alone or with an open folder."""
    return str(path) if folder is None else str(Path(f"/proc/self/fd/{folder}").readlink() / str(path))


# --- disks that fail -----------------------------------------------------------------------------------------------


class _File(apsw.VFSFile):
    """A SQLite file whose writes and flushes are counted, and fail where they should."""

    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        super().__init__(disk.real, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.write(len(data))
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._disk.sync()
        super().xSync(flags)


class Disk(apsw.VFS):
    """SQLite's view of a disk, in place of the real one until :meth:`unregister`."""

    def __init__(self) -> None:
        self.writes = self.bytes = self.syncs = 0
        self.errors: list[BaseException] = []
        self.real = apsw.vfs_names()[0]
        super().__init__("failing-disk", self.real, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> _File:
        return _File(self, name, flags)

    def write(self, size: int) -> None:
        """Count a write."""
        self.writes += 1
        self.bytes += size

    def sync(self) -> None:
        """Count a flush."""
        self.syncs += 1

    def fail(self, error: apsw.Error) -> None:
        """Raise an error of this disk."""
        self.errors.append(error)
        raise error


class FullDisk(Disk):
    """A disk that has room for so many more writes, and none for a larger file after that."""

    def __init__(self, writes: int) -> None:
        self.room = writes
        super().__init__()

    def write(self, size: int) -> None:
        super().write(size)
        if self.writes > self.room:
            self.fail(apsw.FullError("database or disk is full"))


class FailingFlush(Disk):
    """A disk of which one flush fails."""

    def __init__(self, at: int) -> None:
        self._at = at
        super().__init__()

    def sync(self) -> None:
        super().sync()
        if self.syncs == self._at:
            self.fail(apsw.IOError("disk I/O error"))


@contextmanager
def on_disk(disk: Disk) -> Iterator[Disk]:
    """Let SQLite use ``disk`` meanwhile.

    SQLite goes on after some errors, as where it cannot give up a log: it keeps the log. An error of this disk that it
    does not pass on is no fault of anybody's.
    """
    told = sys.unraisablehook

    def tell(one: Any) -> None:
        if not any(one.exc_value is error for error in disk.errors):
            told(one)

    sys.unraisablehook = tell
    try:
        yield disk
    finally:
        sys.unraisablehook = told
        disk.unregister()


# --- processes of a run --------------------------------------------------------------------------------------------
# They stand in for the work on one base, in a process that knows nothing of the test that made it.


def die_in_process(*_: object) -> None:
    """Be killed, as for want of memory."""
    die()


def raise_VerificationFailed(*_: object) -> None:
    """Find an index that is not what was read."""
    raise VerificationFailed(base="alpha", reason="texts or vectors differ")


def raise_BooksDoNotBalance(*_: object) -> None:
    """Lose a row."""
    raise BooksDoNotBalance(base="alpha", read=3, carried=2, skipped=0)


def fill_up_in_process(job: crew.Job, teller: Any) -> object:
    """Work on a base until the disk is full."""
    with on_disk(FullDisk(20)):
        return real_work(job, teller)


def talk_and_fail(job: crew.Job, teller: Any) -> object:
    """Report more steps than a pipe holds, and then fail."""
    for _ in range(5_000):
        teller.tell(job.work.draft.name)
    raise VerificationFailed(base="alpha", reason="texts or vectors differ")


def held(job: crew.Job, wait: Callable[[], object]) -> None:
    """Tell through a pipe beside the target that a process has come to a base, and hold it there.

    The pipe is open for as long as the process lives.
    """
    pipe = os.open(job.earlier.parent.parent.parent / "pipe", os.O_WRONLY)
    os.write(pipe, b".")
    wait()


def hold_in_native_code(job: crew.Job, *_: object) -> None:
    """Hold a process where no thread of it can do anything, nor a stop reach it."""
    held(job, lambda: ctypes.PyDLL(None).sleep(1_000_000))


def hold_without_the_system(job: crew.Job, *_: object) -> None:
    """Hold a process that the system does not end with its parent."""
    ctypes.CDLL(None).prctl(1, 0)
    held(job, threading.Event().wait)


def stop_when_a_base_is_done(*numbers: int) -> None:
    """Let signals come when the first base is in its place."""
    done = Ledger.done

    def stopped(*arguments: Any) -> None:
        done(*arguments)
        for number in numbers:
            os.kill(os.getpid(), number)

    Ledger.done = stopped  # type: ignore[method-assign]


def hang_up_twice() -> None:
    """Do what a terminal does that is closed."""
    stop_when_a_base_is_done(signal.SIGHUP, signal.SIGHUP, signal.SIGTERM)


def terminate_twice() -> None:
    """Do what ``timeout`` does."""
    stop_when_a_base_is_done(signal.SIGTERM, signal.SIGTERM)


def terminate_while_text_runs() -> None:
    """Let a signal come while a command is loaded, in the midst of code that Python runs out of a text."""
    load = OnDemand.__getitem__

    def loaded(commands: OnDemand, name: str) -> Any:
        exec("import signal; signal.raise_signal(signal.SIGTERM)")
        return load(commands, name)

    OnDemand.__getitem__ = loaded  # type: ignore[method-assign]


def ignore_that_the_terminal_goes() -> None:
    """Do what ``nohup`` does, and then what a terminal does that is closed."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop_when_a_base_is_done(signal.SIGHUP)


def stay(job: crew.Job, teller: Any) -> object:
    """Build a base, and then stay at it until the run is over."""
    real_work(job, teller)
    return threading.Event().wait()


def interrupt_what_is_half_made() -> None:
    """Let Ctrl-C come when a process has begun and nobody is yet there to end it."""
    start = workers.Worker.__init__
    # The threads of libraries let it through, too.
    threading.Thread(target=threading.Event().wait, daemon=True).start()

    def started(worker: workers.Worker) -> None:
        start(worker)
        os.kill(os.getpid(), signal.SIGINT)

    workers.Worker.__init__ = started  # type: ignore[method-assign]


real_work = crew._in_process
