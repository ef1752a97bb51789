"""Helpers of the tests about refusals, faults and repeated runs: a small v1 source, and ways to make a run fail."""

from __future__ import annotations

import codecs
import contextlib
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
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from harness import NOW, Outcome, consenting, run
from patience import NEVER_SECONDS

from migrators import parquet as imported
from migrators.parquet.index_builder import ImportedIndex
from migrators.pipeline import publication
from regraft.disk import durable
from regraft.errors import RegraftError
from regraft.formats.cherry_v2 import index
from regraft.formats.cherry_v2.index.bulk import IndexBuilder
from regraft.ledger.ledger import Ledger

DIMENSIONS = 8
MODEL = {"id": "embed-small", "name": "Embed small", "provider": "acme", "group": "embed"}
REFUSED, STOPPED, INTERRUPTED = 2, 3, 130
posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no fork and none of these signals")
links = pytest.mark.skipif(os.name == "nt", reason="making links takes a privilege there")

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
        (self.folder / "redux.json").write_text(json.dumps(state), "utf-8")
        (self.folder / "dexie" / "files.json").write_text(json.dumps(self.files), "utf-8")
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
    if not hasattr(os, "fork"):
        pytest.skip("Windows has no fork")
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

    Its processes do ``work`` for a base, a function of :mod:`stand_ins`, instead of carrying it.
    """
    return started_command("migrate", str(source), "--to", str(target), "--now", NOW, *more, work=work, hold=hold)


def started_command(
    *arguments: str, work: str = "", before: str = "", hold: Hold | None = None
) -> subprocess.Popen[str]:
    """Start any command as :func:`started` does; ``before`` is called first, a function of :mod:`stand_ins`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    patched = "import stand_ins; stand_ins.begin_as_in_a_terminal(); "
    patched += f"stand_ins.pipeline_workers._in_process = stand_ins.{work}; " if work else ""
    patched += f"stand_ins.{before}(); " if before else ""
    patched += f"stand_ins.hold_still(*{hold.arguments}); " if hold else ""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", f"{patched}import regraft.cli; regraft.cli.main()", *consenting(*arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tempfile.gettempdir(),
        env=environment,
        start_new_session=True,
    )


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
        self.watch(IndexBuilder, "finish").watch(index, "verify").watch(publication, "write_catalog")
        self.watch(ImportedIndex, "finish").watch(imported, "verify_index")
        return self.watch(durable, "sync_tree").watch(os, "unlink", "rmdir").watch_files()


def whole_path(path: object, folder: int | None) -> str:
    """Return the whole path that a call of the system was given, alone or with an open folder."""
    return str(path) if folder is None else str(Path(f"/proc/self/fd/{folder}").readlink() / str(path))
