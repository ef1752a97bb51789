"""A v1 profile made by a real browser: headless Chromium writes the state of a v1 backup into its own storage.

The application keeps its state in the storage of the Chromium that it is built on (``docs/formats/v1.md``, "Profile
folder"). A page (``tests/browser/page.html``) plays steps: it sets keys of Local Storage and writes Dexie tables. Here
the browser is started, driven through a pipe, and closed or killed; the vector files and uploads are put beside.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from conftest import HERE, REPO

STATE_KEY = "persist:cherry-studio"
SAMPLE_ZIP = REPO / "sample_v1" / "cherry-studio.202503141200.zip"
SAMPLE_FOLDER = REPO / "sample_v1" / "backup"

PAGE_FOLDER = HERE / "browser"
DEXIE = PAGE_FOLDER / "node_modules" / "dexie" / "dist" / "dexie.min.js"
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
#: With this in ``REGRAFT_BROWSER`` tests fail where no browser is, instead of being skipped.
REQUIRED = "required"
#: Seconds for anything that the browser is asked to do.
PATIENCE = 40.0

#: Newer browsers may keep the same data in SQLite; no v1 application was built on one that does.
_NOT_THESE = ",".join(
    (
        "DomStorageSqlite",
        "DomStorageSqliteNewDatabases",
        "DomStorageSqliteMigration",
        "LocalStorageSqlite",
        "IdbSqliteBackingStore",
        "IdbSqliteOnDiskRollout",
    )
)
_FLAGS = (
    "--headless",
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",  # a container may have little of it
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--no-first-run",
    "--no-default-browser-check",
    "--password-store=basic",
    "--remote-debugging-pipe",
    f"--disable-features={_NOT_THESE}",
)
#: Chromium takes orders on descriptor 3 and answers on 4, whatever numbers the pipes have here.
_ON_PIPES = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(number), fcntl.F_DUPFD_CLOEXEC, 10) for number in sys.argv[1:3]]
for number in sys.argv[1:3]:
    os.set_inheritable(int(number), False)
for pipe, number in zip(pipes, (3, 4)):
    os.dup2(pipe, number)
os.execv(sys.argv[3], sys.argv[3:])
"""

Step = dict[str, Any]


# --- what there must be --------------------------------------------------------------------------------------------


def browser_program() -> str | None:
    """Return the path of a Chromium, or None; ``REGRAFT_CHROMIUM`` names another one."""
    named = os.environ.get("REGRAFT_CHROMIUM")
    return named or next((found for name in BROWSERS if (found := shutil.which(name))), None)


def missing() -> str | None:
    """Return what is missing for a profile made by a browser, for a person; None where all is there."""
    if os.name != "posix":
        return "driving a browser through a pipe needs a POSIX system"
    if browser_program() is None:
        return f"no Chromium is installed ({', '.join(BROWSERS)})"
    if not DEXIE.is_file():
        return "the npm package dexie is not installed (make browser)"
    return None


def need_browser() -> None:
    """Skip the test where there is no browser, or fail where there must be one."""
    reason = missing()
    if reason is not None:
        if os.environ.get("REGRAFT_BROWSER") == REQUIRED:
            pytest.fail(f"REGRAFT_BROWSER is {REQUIRED}, but {reason}", pytrace=False)
        pytest.skip(reason)


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Hold a lock that one process has at a time."""
    import fcntl  # not there on Windows, where no browser is driven

    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# --- the browser ---------------------------------------------------------------------------------------------------


class BrowserFailed(Exception):
    """The browser did not do what it was asked; the text says what."""


class Browser:
    """A headless Chromium on a profile in Electron's layout: its folders lie in the profile's root."""

    def __init__(self, profile: Path, page: str, scratch: Path) -> None:
        self.profile = profile
        self.page = page
        self._scratch = scratch
        self._numbers = count(1)
        self._unread = b""
        self._ended = False
        profile.mkdir(parents=True, exist_ok=True)
        # Chromium has its profiles in folders below its own; Electron does not.
        self._inner = profile / "Default"
        self._inner.symlink_to(".", target_is_directory=True)
        self._start()

    def _start(self) -> None:
        theirs_in, self._orders = os.pipe()
        self._answers, theirs_out = os.pipe()
        pipes = (theirs_in, theirs_out)
        program = [str(browser_program()), *_FLAGS, f"--user-data-dir={self.profile}", "about:blank"]
        # Its home and its temporary folder are not those of the person who runs the tests.
        environment = {**os.environ, "HOME": str(self._scratch), "TMPDIR": str(self._scratch)}
        with (self._scratch / "said").open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-S", "-c", _ON_PIPES, *map(str, pipes), *program],
                pass_fds=pipes,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        for pipe in pipes:
            os.close(pipe)
        try:
            self._ask("Browser.getVersion")
        except BaseException:
            self.kill()
            raise

    # --- orders ----------------------------------------------------------------------------------------------------

    def _ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send one order of the DevTools protocol and return its result; events are passed over."""
        number = next(self._numbers)
        order = {"id": number, "method": method, "params": parameters}
        if session is not None:
            order["sessionId"] = session
        message = json.dumps(order).encode() + b"\0"
        try:
            while message:
                message = message[os.write(self._orders, message) :]
        except BrokenPipeError as error:
            raise BrowserFailed(f"{method}: the browser is gone; it said: {self._said()}") from error
        return self._answer_to(number, method)

    def _answer_to(self, number: int, method: str) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while True:
            while b"\0" not in self._unread:
                ready, _, _ = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
                read = os.read(self._answers, 1 << 20) if ready else b""
                if not read:
                    what = "no answer" if not ready else "the browser is gone"
                    raise BrowserFailed(f"{method}: {what}; it said: {self._said()}")
                self._unread += read
            message, _, self._unread = self._unread.partition(b"\0")
            answer = json.loads(message)
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserFailed(f"{method}: {answer['error'].get('message')}")
                result: dict[str, Any] = answer["result"]
                return result

    def _said(self) -> str:
        return (self._scratch / "said").read_text(errors="replace")[-2000:]

    def _open_tab(self) -> tuple[str, str]:
        """Open the page in a new tab; return the tab and the session to give it orders in."""
        tab = self._ask("Target.createTarget", url=self.page)["targetId"]
        session = self._ask("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        end = time.monotonic() + PATIENCE
        while self._evaluate(session, "document.readyState + typeof globalThis.play") != "completefunction":
            if time.monotonic() > end:
                raise BrowserFailed(f"{self.page} was not loaded")
            time.sleep(0.02)
        return tab, session

    def _evaluate(self, session: str, expression: str) -> Any:
        done = self._ask(
            "Runtime.evaluate", session, expression=expression, awaitPromise=True, returnByValue=True, timeout=1e6
        )
        if "exceptionDetails" in done:
            thrown = done["exceptionDetails"]
            raise BrowserFailed(thrown.get("exception", {}).get("description") or thrown.get("text"))
        return done["result"].get("value")

    def play(self, *steps: Step, release: int | None = None) -> None:
        """Let the page play these steps.

        Chromium holds back what a page puts into Local Storage: five seconds at first, a minute and more after that,
        but not beyond the life of the tab. So the tab is closed, and what it did is on disk at the end.

        Args:
            steps: what to do; ``page.html`` says what there is.
            release: how many versions of the database the application knows; all of them where not given.
        """
        mark = os.urandom(16).hex()
        tab, session = self._open_tab()
        played = [{"do": "open", "release": release}, *steps, {"do": "set", "key": "written", "value": mark}]
        self._evaluate(session, f"play({json.dumps(played)})")
        self._ask("Target.closeTarget", targetId=tab)
        self._wait_for(mark.encode())

    def begin(self, *steps: Step) -> None:
        """Let the page begin to play these steps in a tab that stays open, and wait for nothing."""
        _, session = self._open_tab()
        self._evaluate(session, f"void play({json.dumps([{'do': 'open'}, *steps])})")

    def _wait_for(self, mark: bytes) -> None:
        """Wait until ``mark`` is in the files of Local Storage: a commit is written as a whole, into one log."""
        storage = self.profile / "Local Storage" / "leveldb"
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if any(mark in path.read_bytes() for path in storage.glob("*.log")):
                return
            time.sleep(0.05)
        raise BrowserFailed(f"Local Storage was not written; it has {[path.name for path in storage.iterdir()]}")

    # --- the end ---------------------------------------------------------------------------------------------------

    def quit(self) -> None:
        """Close the browser as its user would."""
        self._ask("Browser.close")
        try:
            self.process.wait(PATIENCE)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the browser with all its processes, at once; nothing where it has ended."""
        if self._ended:
            return
        self._ended = True
        # Helpers may outlive a browser that was closed.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        os.close(self._orders)
        os.close(self._answers)
        self._inner.unlink()


@contextmanager
def browsing(profile: Path, *, over_http: bool = False) -> Iterator[Browser]:
    """Start a browser on ``profile`` and end it in any case.

    Args:
        profile: the profile folder, new or one that a browser left.
        over_http: the page comes from a local server, as in a development build; else from a file, as in the
            application.
    """
    # Short, since a socket's path may only have about a hundred bytes.
    with tempfile.TemporaryDirectory(prefix="v1-", ignore_cleanup_errors=True) as scratch, _served(over_http) as page:
        browser = Browser(profile, page, Path(scratch))
        try:
            yield browser
        finally:
            browser.kill()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def _served(over_http: bool) -> Iterator[str]:
    if not over_http:
        yield (PAGE_FOLDER / "page.html").as_uri()
        return
    handler = functools.partial(_Silent, directory=str(PAGE_FOLDER))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/page.html"
        finally:
            server.shutdown()
            thread.join()


# --- what a v1 application has --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """The state of a v1 application: its slices as JSON text, and its Dexie tables."""

    slices: dict[str, str]
    tables: dict[str, list[dict[str, Any]]]

    @classmethod
    def of_backup(cls, folder: Path) -> State:
        """Return the state in the ``data.json`` of an unpacked backup."""
        data = json.loads((folder / "data.json").read_bytes())
        return cls(json.loads(data["localStorage"][STATE_KEY]), data["indexedDB"])

    @classmethod
    def of_export(cls, folder: Path) -> State:
        """Return the state in an export folder."""
        slices = {name: as_json(part) for name, part in json.loads((folder / "redux.json").read_bytes()).items()}
        return cls(slices, {path.stem: json.loads(path.read_bytes()) for path in (folder / "dexie").glob("*.json")})

    def steps(self) -> list[Step]:
        """Return the steps by which the application comes to this state; rows of other ids stay."""
        tables = [{"do": "put", "table": name, "rows": rows} for name, rows in self.tables.items() if rows]
        return [{"do": "set", "key": STATE_KEY, "value": as_json(self.slices)}, *tables]


def as_json(value: object) -> str:
    """Return a value as ``JSON.stringify`` writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def put_data_beside(profile: Path, vectors: Path, uploads: Path) -> None:
    """Copy vector files and uploads to where a profile has them."""
    shutil.copytree(vectors, profile / "Data" / "KnowledgeBase")
    shutil.copytree(uploads, profile / "Data" / "Files")


def as_backup_6(profile: Path, target: Path) -> Path:
    """Write the unpacked version 6 backup of a profile."""
    metadata = {
        "version": 6,
        "timestamp": 1741953600000,
        "appName": "Cherry Studio",
        "appVersion": "1.7.0",
        "platform": "linux",
        "arch": "x64",
    }
    for name in ("IndexedDB", "Local Storage", "Data"):
        shutil.copytree(profile / name, target / name)
    (target / "metadata.json").write_text(json.dumps(metadata, indent=2))
    return target


def packed(folder: Path, target: Path) -> Path:
    """Pack a folder's content, folders too, into a zip."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))
    return target
