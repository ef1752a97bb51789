"""The page as people use it: a headless Chromium goes through all journeys, in English and Chinese."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import angel_store
import chromium_driver
import lacking
import page_site
import planted_v2
import pytest
import stranded
from browser_tab import AXE
from chromium_driver import Browser, browsing
from extras import needs
from harness import GOLDEN, golden
from page_site import Reader
from page_walk import SAMPLE, embed, furnish, move, repair_and_back, rescue_and_back, submit, undo, walk
from patience import NEVER_SECONDS
from profiles import rows, tables

pytestmark = needs("browser")

#: Texts smaller than 14 px, as they are drawn.
_SMALL = """[...document.querySelectorAll('body *')].filter(one => one.checkVisibility() &&
  [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim()) &&
  parseFloat(getComputedStyle(one).fontSize) < 14).map(one => one.outerHTML.slice(0, 100))"""
_TOO_WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
#: What is not regraft's own on a Chinese page: names of bases and of a note, and what SQLite says.
FOREIGN = ("child with unusable vectors", "Remember the lamp", "text 0 of P", "database disk image is malformed")
#: Where the run leaves its pictures, for a person to look at.
PICTURES = os.environ.get("REGRAFT_PICTURES")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium_driver.need(chromium_driver.missing())
    with browsing(tmp_path_factory.mktemp("browser")) as started:
        yield started


def look_closely(name: str, reader: Reader, language: str) -> None:
    """Assert that a page keeps nobody out: on a phone and a screen, in light and dark."""
    tab = reader.tab
    for width, dark in ((360, False), (800, True), (1_400, False), (1_400, True)):
        tab.look(width, dark=dark)
        if PICTURES:
            shot = Path(PICTURES) / f"{name}.{language}.{width}{'.dark' if dark else ''}.png"
            shot.write_bytes(tab.screenshot())
        assert tab.value(_SMALL) == [], (name, width)
        assert not tab.value(_TOO_WIDE), (name, width)
        if AXE.is_file():
            assert tab.violations(only_drawn=dark) == [], (name, width, dark)
    assert tab.value("document.documentElement.lang") == language
    assert tab.value("document.querySelectorAll('.command code').length") == (
        0 if name in ("folder", "missing", "browse-refused") else 1
    )


@pytest.mark.parametrize("language", [pytest.param("en", marks=pytest.mark.thorough), "zh"])
def test_a_reader_upgrades_and_undoes_without_a_terminal(browser, tmp_path, language):
    home = tmp_path / "home"
    profile = furnish(home)
    before = tables(profile)
    seen: dict[str, str] = {}

    def look(name: str, reader: Reader) -> None:
        seen[name] = reader.text()
        look_closely(name, reader, language)
        if name == "done":
            assert (home / "Downloads" / "library" / "catalog.sqlite").is_file() and tables(profile) != before

    with page_site.site(home) as server, page_site.reading(browser, server, language=language) as reader:
        walk(reader, server, home, look)
        complaints = [one for one in reader.tab.complaints() if "status of 40" not in str(one)]
        assert complaints == []
        addresses = {address.partition("?")[0] for address in reader.tab.requests()}
        assert all(
            address.startswith(f"http://{server.root.split('/')[2]}/") or address == "about:blank"
            for address in addresses
        )
    assert tables(profile) == before and not (home / "Downloads" / "library").exists()
    words = {"en": ("Done", "100.00% of the hits are the same."), "zh": ("完成", "100.00% 的结果相同")}[language]
    assert words[0] in seen["done"] and words[1] in seen["compare"]
    if language == "zh":
        # What is left in English are names, paths, ids and codes.
        for name, text in seen.items():
            for english in (" the ", " of ", " and ", " was ", " with "):
                assert english not in without_texts(name, text), (name, english)


@pytest.mark.thorough
@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_failed_upgrade_is_rescued_without_a_terminal(browser, tmp_path, language):
    home = tmp_path / "home"
    profile = home / ".config" / "CherryStudio"
    profile.parent.mkdir(parents=True)
    shutil.move(stranded.profile(tmp_path / "made", stranded.some_source(), ("kb",)), profile)
    index = f"Data/KnowledgeBase/{stranded.base_of('kb')}/.cherry/index.sqlite"
    seen: dict[str, str] = {}

    def look(name: str, reader: Reader) -> None:
        look_and_read(name, reader, language, seen)
        assert (profile / index).exists() == (name in ("rescued", "rescue-undo")), name

    with page_site.site(home) as server, page_site.reading(browser, server, language=language) as reader:
        rescue_and_back(reader, server, profile, look)
        assert reader.tab.complaints() == []
    assert ("It can be undone." if language == "en" else "可以撤销") in seen["rescued"]
    assert "base.failed" in seen["check-profile"]


@golden
@pytest.mark.parametrize("language", ["en", "zh"])
def test_profiles_of_the_application_are_rescued_and_filled(browser, tmp_path, language):
    """The application's own profiles: one with three failed bases, and one without bases."""
    home = tmp_path / "home"
    furnish(home)
    profile = home / ".config" / "CherryStudio"
    shutil.rmtree(profile)
    writable_copy(GOLDEN / "profile_208_empty", profile)
    seen: dict[str, str] = {}
    names = "SELECT name, status FROM knowledge_base ORDER BY name"

    def look(name: str, reader: Reader) -> None:
        look_and_read(name, reader, language, seen)

    with page_site.site(home) as server, page_site.reading(browser, server, language=language) as reader:
        submit(reader, '.card a.primary[href*="/upgrade?"]')
        submit(reader, "form.journey button.primary")
        submit(reader, "form:has(select) button")
        submit(reader, "form[action$=confirm] button")
        look("done-empty", reader)
        assert len(rows(profile / "Data" / "cherrystudio.sqlite", names)) == 4
        undo(reader, look, "empty")
        assert rows(profile / "Data" / "cherrystudio.sqlite", names) == []
        shutil.rmtree(profile)
        writable_copy(GOLDEN / "profile_208_stranded", profile)
        before = rows(profile / "Data" / "cherrystudio.sqlite", names)
        assert [status for _, status in before].count("failed") == 3

        def look_at_bases(name: str, reader: Reader) -> None:
            look(name, reader)
            failed = [status for _, status in rows(profile / "Data" / "cherrystudio.sqlite", names)].count("failed")
            assert failed == (0 if name in ("rescued", "rescue-undo") else 3), name

        rescue_and_back(reader, server, profile, look_at_bases)


def writable_copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target)
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.mark.thorough
@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_damaged_library_a_pack_missing_vectors_and_other_systems(browser, server, tmp_path, language):
    home = tmp_path / "home"
    furnish(home)
    (home / "Documents").mkdir()
    profile = home / ".config" / "CherryStudio"
    whole = planted_v2.library(home / "Documents")
    library = Path(shutil.copytree(whole, home / "Documents" / "damaged"))
    for damage in ("a gap", "a vector of nobody"):
        planted_v2.plant(damage, library)
    lacks = lacking.taken_away(lacking.library(home / "Desktop"))
    angel = angel_store.damaged(tmp_path / "angel").root
    # What no page may read wrong is there as well: an index that is no database.
    broken = Path(shutil.copytree(whole, tmp_path / "broken"))
    for index in broken.glob("KnowledgeBase/*/.cherry/index.sqlite"):
        index.write_bytes(index.read_bytes()[:3000])
    seen: dict[str, str] = {}

    def look(name: str, reader: Reader) -> None:
        look_and_read(name, reader, language, seen)

    with page_site.site(home) as site, page_site.reading(browser, site, language=language) as reader:
        repair_and_back(reader, site, library, look)
        move(reader, site, whole, profile, look)
        embed(reader, site, lacks, lacking.configured(tmp_path / "regraft.yaml", server), look)
        for name, store in (("angel", angel), ("broken", broken)):
            reader.open(f"{site.root}store?at={store}")
            look(f"{name}-store", reader)
            reader.open(f"{site.root}check?at={store}")
            submit(reader, "form.journey button.primary")
            look(f"{name}-check", reader)
            reader.open(f"{site.root}history?at={store}")
            look(f"{name}-history", reader)
        reader.open(f"{site.root}browse?at={angel}")
        look("browse-refused", reader)
        complaints = [one for one in reader.tab.complaints() if "status of 40" not in str(one)]
        assert complaints == []
    assert server.texts, "the embedder was asked"
    assert "unreadable" in seen["broken-check"] and "angel." in seen["angel-check"]


def look_and_read(name: str, reader: Reader, language: str, seen: dict[str, str]) -> None:
    """Look at a page, and assert that a Chinese one is Chinese but for names, paths, ids, codes and texts."""
    look_closely(name, reader, language)
    seen[name] = reader.text()
    if language == "zh":
        text = without_texts(name, seen[name])
        for foreign in FOREIGN:
            text = text.replace(foreign, "")
        for english in (" the ", " of ", " and ", " was ", " with ", " is "):
            assert english not in text, (name, english)


def without_texts(name: str, text: str) -> str:
    """Leave out the texts of bases."""
    return "" if name in ("search", "items", "base", "units", "neighbors") else text


def test_quit_ends_the_command(browser, tmp_path):
    home = tmp_path / "home"
    furnish(home)
    with page_site.site(home) as server, page_site.reading(browser, server) as reader:
        reader.tab.value("document.body.dataset.left = '1'")
        reader.choose("form[action$=quit] button")
        reader.see("You can close this page.")
        assert server.process.wait(NEVER_SECONDS) == 0


def test_files_are_picked_dropped_and_reached_by_keyboard(browser, tmp_path):
    home = tmp_path / "home"
    furnish(home)
    with page_site.site(home, SAMPLE) as server, page_site.reading(browser, server, first="store") as reader:
        tab = reader.tab
        reader.see("Harbour museum")
        reader.open(f"{server.root}home")
        # Picking.
        reader.choose("[data-pick]")
        for name in ("Downloads /", SAMPLE.name):
            entry = f"[...document.querySelectorAll('#picker-list button')].find(one => one.textContent === {name!r})"
            tab.wait_for(entry)
            tab.value(f"{entry}.click()")
        assert tab.value("document.querySelector('#path').value") == str(home / "Downloads" / SAMPLE.name)
        # Dropping.
        data = base64.b64encode(SAMPLE.read_bytes()).decode()
        tab.value(
            f"""(() => {{ const data = new DataTransfer();
            data.items.add(new File([Uint8Array.from(atob({data!r}), one => one.charCodeAt(0))], 'mine.zip'));
            const event = new DragEvent('drop', {{dataTransfer: data, bubbles: true}});
            document.querySelector('#drop').dispatchEvent(event); }})()"""
        )
        tab.wait_for("document.URL.includes('store?at=') && document.readyState === 'complete'")
        assert "Harbour museum" in reader.text() and "mine.zip" in reader.text()
        # By keyboard alone: the first Tab leads to the content, links are reached in their order.
        tab.key("Tab")
        assert tab.value("document.activeElement.className") == "skip"
        for _ in range(30):
            tab.key("Tab")
            if tab.value("document.activeElement.textContent") == "Upgrade":
                break
        tab.value("document.body.dataset.left = '1'")
        tab.key("Enter")
        tab.wait_for("document.URL.includes('upgrade?at=') && !document.body.dataset.left")


@pytest.mark.thorough
def test_another_page_of_this_computer_can_do_nothing(browser, tmp_path):
    """A page that the reader visits knows the address, and still neither reads nor starts anything."""
    home = tmp_path / "home"
    furnish(home)
    with page_site.site(home) as server, page_site.reading(browser, server) as reader:
        evil = tmp_path / "evil.html"
        form = f'<form method="post" action="{server.root}quit"><button>x</button></form>'
        evil.write_text(f'{form}<iframe src="{server.root}home"></iframe>', "utf-8")
        reader.tab.go(evil.as_uri())
        reader.tab.wait_for("document.readyState === 'complete' && document.forms.length")
        ask = f"fetch('{server.root}folder.json', {{credentials: 'include'}}).then(() => 'read', () => 'refused')"
        assert reader.tab.value(ask) == "refused"
        reader.tab.value("document.forms[0].submit()")
        reader.tab.wait_for(f"document.URL === {server.root + 'quit'!r} && document.readyState === 'complete'")
        assert "The request comes from another page." in reader.tab.value("document.body.innerText")
        assert server.process.poll() is None
        # The reader's own tab still works.
        reader.open(f"{server.root}home")
        assert "Your knowledge bases" in reader.text()
