"""A v1 profile made by a real browser: headless Chromium writes the state of a v1 backup into its own storage.

The application keeps its state in the storage of the Chromium that it is built on (``docs/formats/v1.md``, "Profile
folder"). A page (``tests/browser/page.html``) plays steps: it sets keys of Local Storage and writes Dexie tables. Here
the browser is driven (:mod:`chromium_driver`), and closed or killed; the vector files and uploads are put beside.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chromium_driver
from chromium_driver import PATIENCE, BrowserFailed, need, scratch_folder
from harness import HERE, REPO

STATE_KEY = "persist:cherry-studio"
SAMPLE_ZIP = REPO / "sample_v1" / "cherry-studio.202503141200.zip"
SAMPLE_FOLDER = REPO / "sample_v1" / "backup"

PAGE_FOLDER = HERE / "browser"
DEXIE = PAGE_FOLDER / "node_modules" / "dexie" / "dist" / "dexie.min.js"

Step = dict[str, Any]


# --- what there must be --------------------------------------------------------------------------------------------


def missing() -> str | None:
    """Return what is missing for a profile made by a browser, for a person; None where all is there."""
    reason = chromium_driver.missing()
    if reason is None and not DEXIE.is_file():
        reason = "the npm package dexie is not installed (make browser)"
    return reason


def need_browser() -> None:
    """Skip the test where no browser can make a profile, or fail where there must be one."""
    need(missing())


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Hold a lock that one process has at a time."""
    import fcntl  # not there on Windows, where no browser is driven

    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# --- the browser ---------------------------------------------------------------------------------------------------


class Browser(chromium_driver.Browser):
    """A browser with the page that plays steps."""

    def __init__(self, profile: Path, page: str, scratch: Path) -> None:
        self.page = page
        super().__init__(profile, scratch)

    def _open_tab(self) -> tuple[str, str]:
        """Open the page in a new tab; return the tab and the session to give it orders in."""
        tab = self.ask("Target.createTarget", url=self.page)["targetId"]
        session = self.ask("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        end = time.monotonic() + PATIENCE
        while self.evaluate(session, "document.readyState + typeof globalThis.play") != "completefunction":
            if time.monotonic() > end:
                raise BrowserFailed(f"{self.page} was not loaded")
            time.sleep(0.02)
        return tab, session

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
        self.evaluate(session, f"play({json.dumps(played)})")
        self.ask("Target.closeTarget", targetId=tab)
        self._wait_for(mark.encode())

    def begin(self, *steps: Step) -> None:
        """Let the page begin to play these steps in a tab that stays open, and wait for nothing."""
        _, session = self._open_tab()
        self.evaluate(session, f"void play({json.dumps([{'do': 'open'}, *steps])})")

    def _wait_for(self, mark: bytes) -> None:
        """Wait until ``mark`` is in the files of Local Storage: a commit is written as a whole, into one log."""
        storage = self.profile / "Local Storage" / "leveldb"
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if any(mark in path.read_bytes() for path in storage.glob("*.log")):
                return
            time.sleep(0.05)
        raise BrowserFailed(f"Local Storage was not written; it has {[path.name for path in storage.iterdir()]}")


@contextmanager
def browsing(profile: Path, *, over_http: bool = False) -> Iterator[Browser]:
    """Start a browser on ``profile`` and end it in any case.

    Args:
        profile: the profile folder, new or one that a browser left.
        over_http: the page comes from a local server, as in a development build; else from a file, as in the
            application.
    """
    with scratch_folder() as scratch, _served(over_http) as page:
        browser = Browser(profile, page, scratch)
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
    (target / "metadata.json").write_text(json.dumps(metadata, indent=2), "utf-8")
    return target


def packed(folder: Path, target: Path) -> Path:
    """Pack a folder's content, folders too, into a zip."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))
    return target
