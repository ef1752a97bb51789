"""A page of ours in a tab of a headless Chromium: what it measures, what it looks like, what it prints."""

from __future__ import annotations

import base64
import contextlib
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chromium_driver import PATIENCE, Browser, BrowserFailed

#: axe-core, which ``make browser`` installs.
AXE = Path(__file__).resolve().parents[1] / "browser" / "node_modules" / "axe-core" / "axe.min.js"
_VIOLATIONS = """axe.run(document, {{resultTypes: ["violations"], {rules}}}).then(
  found => found.violations.map(one => [one.id, one.nodes.map(node => node.html.slice(0, 160)).slice(0, 3)]))"""
#: The rules whose result depends on how a page is drawn.
_DRAWN = """runOnly: {
  type: "rule", values: ["color-contrast", "link-in-text-block", "scrollable-region-focusable", "target-size"]}"""

Pixel = tuple[int, int, int]


@dataclass(frozen=True)
class Box:
    """Where an element stands, in CSS pixels from the page's corner."""

    x: float
    y: float
    width: float
    height: float


class Tab:
    """A tab with one page."""

    def __init__(self, browser: Browser, page: Path | str) -> None:
        self._browser = browser
        self._target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.ask("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self._ask(f"{domain}.enable")
        # They would move what stands beside them when the page is taken as a whole.
        self._ask("Emulation.setScrollbarsHidden", hidden=True)
        browser.events.clear()
        self.url = page if isinstance(page, str) else page.as_uri()
        self.go(self.url)
        self.wait_for(f"document.URL === {self.url!r} && document.readyState === 'complete'")

    def go(self, url: str) -> None:
        """Navigate to an address, without waiting for it."""
        self._ask("Page.navigate", url=url)

    def wait_for(self, condition: str) -> None:
        """Wait until an expression is true in the page, over navigations."""
        end = time.monotonic() + PATIENCE
        while True:
            # While a page is replaced by another one, there is nothing to ask.
            with contextlib.suppress(BrowserFailed):
                if self.value(f"Boolean({condition})"):
                    return
            if time.monotonic() > end:
                raise BrowserFailed(f"{self.value('document.URL')}: {condition} did not come true")
            time.sleep(0.02)

    def key(self, name: str) -> None:
        """Press a key."""
        code = {"Tab": 9, "Enter": 13}[name]
        text = {"text": "\r"} if name == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self._ask("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, **more)

    def languages(self, *names: str) -> None:
        """Let the browser ask for pages in these languages."""
        self._ask("Network.setExtraHTTPHeaders", headers={"Accept-Language": ",".join(names)})

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.ask(method, self._session, **parameters)

    def value(self, expression: str) -> Any:
        """Return what an expression gives in the page."""
        return self._browser.evaluate(self._session, expression)

    def violations(self, *, only_drawn: bool = False) -> list[Any]:
        """Return what axe-core finds: rules with elements. ``only_drawn``: by rules on how the page is drawn."""
        if not self.value("'axe' in window"):
            self.value(AXE.read_text("utf-8") + "; 0")
        found: list[Any] = self.value(_VIOLATIONS.format(rules=_DRAWN if only_drawn else ""))
        return found

    def look(self, width: int, *, dark: bool = False, medium: str = "") -> None:
        """Give the window a width in CSS pixels, and the person a liking; ``medium`` may be "print"."""
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", media=medium, features=[scheme])

    def requests(self) -> list[str]:
        """Return the addresses that the page has asked for, its own among them."""
        return [one["params"]["request"]["url"] for one in self._events("Network.requestWillBeSent")]

    def complaints(self) -> list[dict[str, Any]]:
        """Return what the page's console has shown."""
        return self._events("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")

    def _events(self, *methods: str) -> list[dict[str, Any]]:
        # What was told before the answer to an order is there with it.
        self.value("0")
        return [event for event in self._browser.events if event["method"] in methods]

    def box(self, selector: str) -> Box:
        """Return where the first such element stands."""
        rect = f"document.querySelector({selector!r}).getBoundingClientRect()"
        x, y, width, height, down = self.value(f"(r => [r.x, r.y, r.width, r.height, scrollY])({rect})")
        return Box(x, y + down, width, height)

    def line(self, box: Box) -> list[Pixel]:
        """Return the pixels in the middle of a box, from left to right."""
        y = round(box.y + box.height / 2)
        return pixels(self.screenshot(Box(round(box.x), y, round(box.width), 1)))[0]

    def screenshot(self, box: Box | None = None) -> bytes:
        """Return a PNG of a box, or of the whole page."""
        if box is None:
            size = self._ask("Page.getLayoutMetrics")["cssContentSize"]
            box = Box(0, 0, size["width"], size["height"])
        clip = {**vars(box), "scale": 1}
        shot = self._ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    def printed(self) -> bytes:
        """Return the page as a PDF on A4."""
        self._ask("Emulation.clearDeviceMetricsOverride")
        paper = {"paperWidth": 8.27, "paperHeight": 11.69, "preferCSSPageSize": True, "printBackground": False}
        return base64.b64decode(self._ask("Page.printToPDF", **paper)["data"])

    def close(self) -> None:
        """Close the tab."""
        self._browser.ask("Target.closeTarget", targetId=self._target)


@contextmanager
def showing(browser: Browser, page: Path | str) -> Iterator[Tab]:
    """Show a page in a tab of its own."""
    tab = Tab(browser, page)
    try:
        yield tab
    finally:
        tab.close()


def pixels(png: bytes) -> list[list[Pixel]]:
    """Return the lines of a PNG of 8 bits for red, green and blue, without or with opacity."""
    width, height, depth, kind = struct.unpack_from(">IIBB", png, 16)
    assert (depth, png[28]) == (8, 0)  # not interlaced
    channels = {2: 3, 6: 4}[kind]
    packed, at = b"", 8
    while at < len(png):
        (size,) = struct.unpack_from(">I", png, at)
        if png[at + 4 : at + 8] == b"IDAT":
            packed += png[at + 8 : at + 8 + size]
        at += size + 12
    raw, before, lines = zlib.decompress(packed), bytearray(width * channels), []
    for row in range(height):
        start = row * (width * channels + 1)
        line = bytearray(raw[start + 1 : start + 1 + width * channels])
        _undo_filter(raw[start], line, before, channels)
        lines.append([(line[x], line[x + 1], line[x + 2]) for x in range(0, len(line), channels)])
        before = line
    return lines


def _undo_filter(kind: int, line: bytearray, above: bytearray, channels: int) -> None:
    for at in range(len(line)):
        left = line[at - channels] if at >= channels else 0
        corner = above[at - channels] if at >= channels else 0
        up = above[at]
        estimate = left + up - corner
        nearest = min((left, up, corner), key=lambda value: abs(estimate - value))
        line[at] = (line[at] + (0, left, up, (left + up) // 2, nearest)[kind]) & 0xFF
