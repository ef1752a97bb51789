"""A walk through the journeys of ``regraft ui`` in a browser: for tests, and for the pictures of ``docs/page.md``.

``python -P tests/support/page_walk.py FOLDER LANGUAGE...`` writes the pictures of the page into a folder, with
``tests/support`` in ``PYTHONPATH``.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import profiles
from chromium_driver import Browser, browsing
from page_site import Reader, Site, reading, site

SAMPLE = Path(__file__).parents[2] / "sample_v1" / "cherry-studio.202503141200.zip"
#: Gets the name of each page on the way.
Look = Callable[[str, Reader], object]
#: The page of a job that has ended.
_ENDED = "document.readyState === 'complete' && !document.querySelector('[data-job]')"
#: Pages that are pictures of the documentation, each with its greatest height.
PICTURES = {"home": 900, "plan": 1_060, "done": 1_060}  # three in each language


def furnish(home: Path) -> Path:
    """Put the backup of the sample and a v2 profile into a home folder; return the profile."""
    (home / "Downloads").mkdir(parents=True)
    shutil.copyfile(SAMPLE, home / "Downloads" / SAMPLE.name)
    return profiles.profile(home / ".config" / "CherryStudio")


def submit(reader: Reader, selector: str) -> None:
    """Press a button, and wait for the end of the job that it may start."""
    reader.tab.value("document.body.dataset.left = '1'")
    reader.choose(selector)
    reader.tab.wait_for("document.readyState === 'complete' && !document.body.dataset.left")
    reader.tab.wait_for(_ENDED)


def walk(reader: Reader, server: Site, home: Path, look: Look) -> None:
    """Go from a backup to an upgraded profile and back, and by the other journeys, and look at every page."""
    library, profile = home / "Downloads" / "library", home / ".config" / "CherryStudio"
    look("home", reader)
    submit(reader, '.card a.primary[href*="/upgrade?"]')
    look("upgrade", reader)
    submit(reader, "form.journey button.primary")
    look("models", reader)
    submit(reader, "form:has(select) button")
    look("plan", reader)
    submit(reader, "form[action$=confirm] button")
    look("done", reader)
    submit(reader, "form[action$=compare] button")
    look("compare", reader)
    pages = {
        "store": f"store?at={library}",
        "install": f"install?at={library}",
        "rescue": f"rescue?at={profile}",
        "search": f"browse?at={library}&q=boat",
        "items": f"browse?at={library}",
        "history": f"history?at={profile}",
        "folder": f"folder?at={home}",
        "wrong": "store?path=/nowhere",
        "missing": "nothing/here",
    }
    for name, page in pages.items():
        reader.open(server.root + page)
        look(name, reader)
    reader.open(f"{server.root}browse?at={library}")
    for name, link in (("base", "ul.list a"), ("units", "ul.list a"), ("neighbors", ".finding p a")):
        submit(reader, link)
        look(name, reader)
    for page in ("check", "fix", "pack", "backfill"):
        reader.open(f"{server.root}{page}?at={library}")
        look(f"{page}-form", reader)
        submit(reader, "form.journey button.primary")
        look(page, reader)
    reader.open(f"{server.root}history?at={profile}")
    submit(reader, "form[action$=undo] button")
    look("undo", reader)
    submit(reader, "form[action$=confirm] button")
    look("undone", reader)


def rescue_and_back(reader: Reader, server: Site, profile: Path, look: Look) -> None:
    """Bring back what a failed upgrade left behind, from the first page on, and undo it."""
    reader.open(f"{server.root}home")
    look("home-failed", reader)
    submit(reader, '.card a.primary[href*="/rescue?"]')
    look("rescue-form", reader)
    submit(reader, "form.journey button.primary")
    look("rescue-plan", reader)
    submit(reader, "form[action$=confirm] button")
    look("rescued", reader)
    undo(reader, look, "rescue")
    reader.open(f"{server.root}check?at={profile}")
    submit(reader, "form.journey button.primary")
    look("check-profile", reader)


def undo(reader: Reader, look: Look, name: str) -> None:
    """Undo what a result shows, by its button."""
    submit(reader, "form[action$=undo] button")
    look(f"{name}-undo", reader)
    submit(reader, "form[action$=confirm] button")
    look(f"{name}-undone", reader)


def repair_and_back(reader: Reader, server: Site, library: Path, look: Look) -> None:
    """Check a damaged library, repair it, look at its history, and undo the repair from there."""
    reader.open(f"{server.root}check?at={library}")
    submit(reader, "form.journey button.primary")
    look("findings", reader)
    submit(reader, "form[action$=fix] button")
    look("repair-plan", reader)
    submit(reader, "form[action$=confirm] button")
    look("repaired", reader)
    reader.open(f"{server.root}history?at={library}")
    look("history-repaired", reader)
    undo(reader, look, "repair")


def move(reader: Reader, server: Site, library: Path, profile: Path, look: Look) -> None:
    """Pack the bases of a library, put the pack into a profile, and undo that."""
    pack = library.parent / "moved.zip"
    reader.open(f"{server.root}pack?at={library}")
    reader.type("target", str(pack))
    submit(reader, "form.journey button.primary")
    look("pack-plan", reader)
    submit(reader, "form[action$=confirm] button")
    look("packed", reader)
    reader.open(f"{server.root}install?at={pack}")
    reader.type("profile", str(profile))
    submit(reader, "form.journey button.primary")
    look("install-plan", reader)
    submit(reader, "form[action$=confirm] button")
    look("installed", reader)
    undo(reader, look, "install")


def embed(reader: Reader, server: Site, library: Path, config: Path, look: Look) -> None:
    """Compute the vectors that a library lacks, and undo that."""
    reader.open(f"{server.root}backfill?at={library}")
    reader.type("config", str(config))
    reader.type("embedder", "mine")
    submit(reader, "form.journey button.primary")
    look("backfill-plan", reader)
    submit(reader, "form[action$=confirm] button")
    look("embedded", reader)
    undo(reader, look, "backfill")


def take_pictures(browser: Browser, folder: Path, language: str) -> None:
    """Write the pictures of the documentation in one language."""
    from browser_tab import Box

    def look(name: str, reader: Reader) -> None:
        if name in PICTURES:
            reader.tab.look(1_000)
            height = reader.tab.value("Math.ceil(document.documentElement.getBoundingClientRect().height)")
            box = Box(0, 0, 1_000, min(height, PICTURES[name]))
            (folder / f"{name}.{language}.png").write_bytes(reader.tab.screenshot(box))

    with tempfile.TemporaryDirectory(prefix="mei-") as scratch:
        home = Path(scratch) / "home"
        furnish(home)
        with site(home) as server, reading(browser, server, language=language) as reader:
            walk(reader, server, home, look)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place, browsing(Path(place) / "browser") as started:
        for wanted in sys.argv[2:]:
            take_pictures(started, Path(sys.argv[1]), wanted)
