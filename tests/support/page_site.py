"""``regraft ui`` as people use it: the command in a process of its own, and its page in a tab of a browser."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from browser_tab import Tab, showing
from chromium_driver import Browser
from patience import NEVER_SECONDS

from regraft.language import VARIABLE

#: When a page that was asked for is there: it is not the one before.
_LOADED = "document.readyState === 'complete' && !document.body.dataset.left"


@dataclass
class Site:
    """A running server."""

    process: subprocess.Popen[str]
    address: str

    @property
    def root(self) -> str:
        """The address below which all pages are."""
        return self.address.partition("enter/")[0]


@contextmanager
def site(home: Path, *arguments: object) -> Iterator[Site]:
    """Run ``regraft ui`` for a person with this home folder; it is stopped by Ctrl-C in the end."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "REGRAFT_", "LC_"))}
    environment = {**kept, "HOME": str(home), VARIABLE: "en", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-P", "-m", "regraft", "ui", "--no-browser", "--json", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=home, text=True, encoding="utf-8")
    try:
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n") or text.count("{") != text.count("}"):
            line = process.stdout.readline()
            assert line, f"no address: {text}"
            text += line
        yield Site(process, json.loads(text)["address"])
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(NEVER_SECONDS)
        process.stdout.close()


class Reader:
    """A person with a tab on the page."""

    def __init__(self, tab: Tab) -> None:
        self.tab = tab

    def press(self, text: str) -> None:
        """Press the button or link of this text, and wait for the page that it leads to."""
        found = (
            f"[...document.querySelectorAll('main button, main a')].find(one => one.textContent.trim() === {text!r})"
        )
        assert self.tab.value(f"Boolean({found})"), f"{text!r} is not on the page: {self.text()}"
        self.tab.value("document.body.dataset.left = '1'")
        self.tab.value(f"{found}.click()")
        self.tab.wait_for(_LOADED)

    def type(self, field: str, value: str) -> None:
        """Fill a field."""
        self.tab.value(f"document.querySelector('[name={json.dumps(field)}]').value = {json.dumps(value)}")

    def choose(self, selector: str) -> None:
        """Click an element."""
        self.tab.value(f"document.querySelector({selector!r}).click()")

    def see(self, text: str) -> None:
        """Wait until the page shows a text."""
        self.tab.wait_for(f"document.readyState === 'complete' && document.body.innerText.includes({json.dumps(text)})")

    def open(self, address: str) -> None:
        """Go to an address by hand."""
        self.tab.value("document.body.dataset.left = '1'")
        self.tab.go(address)
        self.tab.wait_for(_LOADED)

    def text(self) -> str:
        """Return what the page says."""
        text: str = self.tab.value("document.querySelector('main').innerText")
        return text

    @property
    def address(self) -> str:
        """The address of the page."""
        address: str = self.tab.value("document.URL")
        return address


@contextmanager
def reading(browser: Browser, site: Site, *, language: str = "en", first: str = "") -> Iterator[Reader]:
    """Open the first address in a tab, and wait for the page that it leads to."""
    with showing(browser, "about:blank") as tab:
        tab.languages(language)
        reader = Reader(tab)
        tab.go(site.address)
        tab.wait_for(
            f"document.URL.startsWith({site.root + first!r}) && "
            "document.readyState === 'complete' && document.querySelector('main')"
        )
        yield reader
