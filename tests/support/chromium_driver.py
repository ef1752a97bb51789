"""Drives a headless Chromium through a pipe, by the DevTools protocol: what tests that need a real browser share."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from patience import NEVER_SECONDS

BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
#: With this in ``REGRAFT_BROWSER`` tests fail where no browser is, instead of being skipped.
REQUIRED = "required"
#: Seconds for anything that the browser is asked to do.
PATIENCE = float(NEVER_SECONDS)

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


# --- what there must be --------------------------------------------------------------------------------------------


def browser_program() -> str | None:
    """Return the path of a Chromium, or None; ``REGRAFT_CHROMIUM`` names another one."""
    named = os.environ.get("REGRAFT_CHROMIUM")
    return named or next((found for name in BROWSERS if (found := shutil.which(name))), None)


def missing() -> str | None:
    """Return what is missing for driving a browser, for a person; None where all is there."""
    if os.name != "posix":
        return "driving a browser through a pipe needs a POSIX system"
    if browser_program() is None:
        return f"no Chromium is installed ({', '.join(BROWSERS)})"
    return None


def need(reason: str | None) -> None:
    """Skip the test where something is missing for a browser, or fail where there must be one."""
    if reason is not None:
        if os.environ.get("REGRAFT_BROWSER") == REQUIRED:
            pytest.fail(f"REGRAFT_BROWSER is {REQUIRED}, but {reason}", pytrace=False)
        pytest.skip(reason)


# --- the browser ---------------------------------------------------------------------------------------------------


class BrowserFailed(Exception):
    """The browser did not do what it was asked; the text says what."""


class Browser:
    """A headless Chromium on a profile in Electron's layout: its folders lie in the profile's root."""

    def __init__(self, profile: Path, scratch: Path) -> None:
        self.profile = profile
        #: What the browser told by itself since it began, or since somebody emptied the list.
        self.events: list[dict[str, Any]] = []
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
            self.ask("Browser.getVersion")
        except BaseException:
            self.kill()
            raise

    # --- orders ----------------------------------------------------------------------------------------------------

    def ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send one order of the DevTools protocol and return its result; events are kept."""
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
            if "method" in answer:
                self.events.append(answer)

    def _said(self) -> str:
        return (self._scratch / "said").read_text(errors="replace", encoding="utf-8")[-2000:]

    def evaluate(self, session: str, expression: str) -> Any:
        done = self.ask(
            "Runtime.evaluate", session, expression=expression, awaitPromise=True, returnByValue=True, timeout=1e6
        )
        if "exceptionDetails" in done:
            thrown = done["exceptionDetails"]
            raise BrowserFailed(thrown.get("exception", {}).get("description") or thrown.get("text"))
        return done["result"].get("value")

    # --- the end ---------------------------------------------------------------------------------------------------

    def quit(self) -> None:
        """Close the browser as its user would."""
        self.ask("Browser.close")
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
def browsing(profile: Path) -> Iterator[Browser]:
    """Start a browser on ``profile`` and end it in any case."""
    with scratch_folder() as scratch:
        browser = Browser(profile, scratch)
        try:
            yield browser
        finally:
            browser.kill()


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder for what a browser needs besides its profile."""
    # Short, since a socket's path may only have about a hundred bytes.
    with tempfile.TemporaryDirectory(prefix="v1-", ignore_cleanup_errors=True) as scratch:
        yield Path(scratch)
