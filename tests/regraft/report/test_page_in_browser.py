"""Report pages as people see them: in a headless Chromium on a telephone, on a screen, in the dark and on paper."""

from __future__ import annotations

import json
import random
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chromium_driver
import pytest
from browser_tab import AXE, Box, Pixel, Tab, showing
from chromium_driver import Browser, browsing
from extras import needs
from harness import run
from planted_v1 import PLANTED as PLANTED_V1
from planted_v1 import whole
from planted_v2 import library, plant

from checks.audit import page
from checks.audit.findings import FINDINGS, Audit, BaseStatistics, Finding, Statistics
from regraft.report import html as report_html
from regraft.report.document import Run, encoded

pytestmark = needs("browser")

PHONE, SCREEN = 360, 1280


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium_driver.need(chromium_driver.missing())
    with browsing(tmp_path_factory.mktemp("browser")) as started:
        yield started


# --- pages ---------------------------------------------------------------------------------------------------------


def many_bases() -> dict[str, Any]:
    """Return the document of an audit of a hundred bases, of which every finding was found."""
    pick = random.Random(3)
    bases = []
    for place in range(100):
        bodies = pick.choice((0, 1, 345, 1_234_567))
        covered = pick.randint(0, bodies)
        skipped = {"unmapped_loader": bodies // 3, "dimension_mismatch": bodies // 5, "unsupported_vector_encoding": 2}
        rows = {"read": bodies, "carried": bodies // 2, "skipped": skipped}
        norms = {f"{step / 10:.1f}": 1 + step * bodies for step in pick.sample(range(101 if place % 9 == 0 else 20), 4)}
        bases.append(
            {
                "id": str(uuid.UUID(int=pick.getrandbits(128))),
                "name": f"Base {place}",
                "units": bodies,
                "bodies": bodies,
                "covered": covered if place % 10 else None,
                "embeddings": covered,
                "lengths": {"1536": covered, "768": 3},
                "norms": norms if place % 10 else None,
                "rows": {**rows, "v1_deduplicated": place, "restored_duplicate": place // 2} if place % 7 else None,
            }
        )
    found = tuple(
        Finding(
            name=name,
            severity=one.severity,
            message="said",
            base=pick.choice(bases)["id"],
            count=10 ** pick.randint(0, 6),
        )
        for name, one in FINDINGS.items()
    )
    checked = {"bases": 100, "items": 123_456_789, "units": 12_345_678, "bodies": 0, "raw_files": 4, "bytes": 10**12}
    audit = Audit(
        findings=found,
        checked=checked,
        names={base["id"]: base["name"] for base in bases},
        closing="",
        statistics=Statistics(bases=[BaseStatistics(**base) for base in bases]),
        level="default",
    )
    run_of_it = Run(command="check", source_kind="library", source=Path("library"))
    run_of_it.end()
    return encoded(audit.report(run_of_it.head()))


def checked(source: Path, place: Path) -> dict[str, Any]:
    done = run("check", source, "--json", "--report", place)
    assert done.status in (0, 1), done.stderr
    return done.document


def of_a_library(place: Path) -> dict[str, Any]:
    target = library(place.parent)
    for name in ("no vector", "zeros", "a stray file"):
        plant(name, target)
    return checked(target, place)


def of_a_source(place: Path) -> dict[str, Any]:
    return checked(PLANTED_V1["vectors of another model"].damage(whole(place.parent / "v1")), place)


def of_nothing(place: Path) -> dict[str, Any]:
    (place.parent / "index.sqlite").write_bytes(b"x")
    return checked(place.parent / "index.sqlite", place)


def of_many(place: Path) -> dict[str, Any]:
    document = many_bases()
    report_html.write_page(place, page.render_check_page(document))
    return document


def of_a_migration(place: Path) -> dict[str, Any]:
    source = PLANTED_V1["vectors of another model"].damage(whole(place.parent / "v1"))
    state = json.loads((source / "redux.json").read_text("utf-8"))
    state["knowledge"]["bases"][0]["name"] = "anameofonewordthatneverends" * 12
    (source / "redux.json").write_text(json.dumps(state), "utf-8")
    done = run("migrate", source, "--to", place.parent / "library", "--json", "--report", place)
    assert done.status == 1
    return done.document


PAGES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "a library": of_a_library,
    "a source": of_a_source,
    "nothing": of_nothing,
    "a hundred bases": of_many,
    "a migration": of_a_migration,
}
#: Sheets of paper that each may take; that of a hundred bases has every finding that there is.
SHEETS = {"a library": 3, "a source": 2, "nothing": 1, "a hundred bases": 54, "a migration": 2}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, dict[str, Any]]]:
    """Return what makes a page, once."""
    there: dict[str, tuple[Path, dict[str, Any]]] = {}

    def make(name: str) -> tuple[Path, dict[str, Any]]:
        if name not in there:
            place = tmp_path_factory.mktemp("page") / "page.html"
            there[name] = place, PAGES[name](place)
        return there[name]

    return make


Made = Callable[[str], tuple[Path, dict[str, Any]]]
each_page = pytest.mark.parametrize("name", PAGES)
#: Where one page is like another: those of the most kinds of contents.
some_pages = pytest.mark.parametrize(
    "name",
    [name if name in ("a library", "a migration") else pytest.param(name, marks=pytest.mark.slow) for name in PAGES],
)

# --- layout --------------------------------------------------------------------------------------------------------

#: Elements that reach beyond the window, or that hold more than they show.
STICKING_OUT = """[...document.querySelectorAll("body *:not(main)")].filter(one => {
  const box = one.getBoundingClientRect();
  return box.left < 0 || box.right > innerWidth + 0.5 ||
    (one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display === "block" && one.clientWidth > 0);
}).map(one => one.outerHTML.slice(0, 200))"""


@each_page
def test_nothing_scrolls_sideways(browser: Browser, made: Made, name: str) -> None:
    with showing(browser, made(name)[0]) as tab:
        for width in (320, PHONE, 500, 840, SCREEN):
            tab.look(width)
            assert tab.value("innerWidth") == width
            assert tab.value("document.documentElement.scrollWidth") <= width
            assert tab.value(STICKING_OUT) == []
            tab.value("document.querySelectorAll('details').forEach(one => { one.open = true })")
            assert tab.value("document.documentElement.scrollWidth") <= width


@some_pages
def test_a_page_asks_for_nothing_and_complains_of_nothing(browser: Browser, made: Made, name: str) -> None:
    with showing(browser, made(name)[0]) as tab:
        tab.look(SCREEN)
        tab.screenshot(Box(0, 0, 10, 10))
        assert tab.requests() == [tab.url]
        assert tab.complaints() == []


def test_the_policy_holds(browser: Browser, made: Made) -> None:
    """What the page would load if somebody had put it in is neither loaded nor run; and we would see it."""
    path = made("a library")[0]
    text = path.read_text("utf-8")
    image = path.with_name("image.svg")
    image.write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    planted = path.with_name("planted.html")
    planted.write_text(
        text.replace("<footer>", f'<img src="{image.as_uri()}"><script>let a = 1</script><footer>'), "utf-8"
    )
    with showing(browser, planted) as tab:
        assert len(tab.complaints()) == 2


# --- charts --------------------------------------------------------------------------------------------------------


def section_with(title: str) -> str:
    return f"[...document.querySelectorAll('section')].find(one => one.children[0].textContent === {title!r})"


def widths(tab: Tab, section: str) -> list[list[float]]:
    """Return of every bar of a section which shares of its width its parts take, but for the ground beneath them."""
    width = "getBoundingClientRect().width"
    shares = f"[...bar.querySelectorAll('rect:not(.track)')].map(one => one.{width} / bar.{width})"
    bars = f"{section_with(section)}.querySelectorAll('svg.bar')"
    found: list[list[float]] = tab.value(f"[...{bars}].map(bar => {shares})")
    return found


@pytest.mark.parametrize("name", ["a library", "a hundred bases"])
@pytest.mark.parametrize("width", [PHONE, SCREEN])
def test_bars_are_as_long_as_their_numbers(browser: Browser, made: Made, name: str, width: int) -> None:
    path, document = made(name)
    bases = document["statistics"]["bases"]
    with showing(browser, path) as tab:
        tab.look(width)
        coverage = [one["covered"] / one["bodies"] for one in bases if one["bodies"] and one["covered"] is not None]
        drawn = [sum(parts) for parts in widths(tab, "Coverage")]
        assert drawn == pytest.approx(coverage, abs=1e-3)
        wanted = []
        for rows in (one["rows"] for one in bases if one["rows"]):
            parts = [rows["carried"], rows["restored_duplicate"], rows["v1_deduplicated"], *rows["skipped"].values()]
            if sum(parts):
                wanted.append([part / sum(parts) for part in parts if part])
        for parts, numbers in zip(widths(tab, "Where the rows went"), wanted, strict=True):
            assert parts == pytest.approx(numbers, abs=1e-3)
        [severities, *found] = widths(tab, "Findings")
        numbers = [number for number in document["summary"]["by_severity"].values() if number]
        assert severities == pytest.approx([number / sum(numbers) for number in numbers], abs=1e-3)
        assert len(found) == len(document["summary"]["by_name"])
        assert max(map(sum, found)) == pytest.approx(1)


def test_columns_are_as_high_as_their_numbers(browser: Browser, made: Made) -> None:
    path, document = made("a hundred bases")
    heights = (
        "[...document.querySelectorAll('svg.columns')].map(one => [...one.children].map(bar => "
        "[bar.getBoundingClientRect().height / one.getBoundingClientRect().height, "
        "(bar.getBoundingClientRect().x - one.getBoundingClientRect().x) / one.getBoundingClientRect().width]))"
    )
    with showing(browser, path) as tab:
        tab.look(SCREEN)
        charts = tab.value(heights)
    norms = [one["norms"] for one in document["statistics"]["bases"] if one["norms"]]
    for columns, counts in zip(charts, norms, strict=True):
        steps = 20 if max(map(float, counts)) < 2 else 101
        wanted = [[max(count / max(counts.values()), 0.03), 10 * float(norm) / steps] for norm, count in counts.items()]
        for column, expected in zip(columns, wanted, strict=True):
            assert column == pytest.approx(expected, abs=2e-3)


def color_of(tab: Tab, selector: str, name: str = "fill") -> Pixel:
    text = tab.value(f"getComputedStyle(document.querySelector({selector!r})).{name}")
    red, green, blue = map(int, re.findall(r"\d+", text)[:3])
    return red, green, blue


COVERED, GROUND = "svg.bar rect.covered", "svg.bar:has(rect.covered) rect.track"


@pytest.mark.parametrize("width", [PHONE, SCREEN])
def test_a_bar_is_seen_in_light_and_dark(browser: Browser, made: Made, width: int) -> None:
    """What is on the screen, pixel by pixel: 14 of 15 bodies have their vector."""
    path, document = made("a library")
    one = document["statistics"]["bases"][0]
    assert (one["covered"], one["bodies"]) == (14, 15)
    seen = {}
    with showing(browser, path) as tab:
        for dark in (False, True):
            tab.look(width, dark=dark)
            covered, ground = color_of(tab, COVERED), color_of(tab, GROUND)
            line = tab.line(tab.box("svg.bar:has(rect.covered)"))
            counts = [sum(pixel == color for pixel in line) for color in (covered, ground)]
            assert counts[0] == pytest.approx(len(line) * 14 / 15, abs=2)
            assert counts[1] == pytest.approx(len(line) / 15, abs=2)
            assert line[: counts[0] - 2] == [covered] * (counts[0] - 2)
            paper = tab.line(Box(2, 2, 6, 1))
            seen[dark] = (covered, ground, paper[0], color_of(tab, "body", "color"))
    assert all(light != dark for light, dark in zip(seen[False], seen[True], strict=True))
    assert min(seen[False][2]) > 230
    assert max(seen[True][2]) < 40


def luminance(color: Pixel) -> float:
    """Return the relative luminance of a colour as WCAG 2 has it."""
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in (c / 255 for c in color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Pixel, other: Pixel) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_words_and_bars_stand_out(browser: Browser, made: Made, dark: bool) -> None:
    with showing(browser, made("a hundred bases")[0]) as tab:
        tab.look(SCREEN, dark=dark)
        paper = color_of(tab, "section", "backgroundColor")
        for selector in ("body", ".soft", ".badge.error", ".badge.warning", ".badge.note", "td", "th", ".brand"):
            assert contrast(color_of(tab, selector, "color"), paper) >= 4.5, selector
        for kind in ("covered", "carried", "skipped", "error", "warning", "note", "column"):
            assert contrast(color_of(tab, f"rect.{kind}"), paper) >= 3, kind
        # Parts that stand side by side are told apart in grey, too.
        for one, other in (("carried", "restored"), ("restored", "left"), ("skipped", "other"), ("covered", "track")):
            assert contrast(color_of(tab, f"rect.{one}"), color_of(tab, f"rect.{other}")) >= 1.5, (one, other)


# --- people who see or hear it otherwise ---------------------------------------------------------------------------


@each_page
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_keeps_anybody_out(browser: Browser, made: Made, name: str, dark: bool) -> None:
    """What axe-core looks for: contrast, names of charts, order of headings, heads of tables, the language."""
    chromium_driver.need(None if AXE.is_file() else "the npm package axe-core is not installed (make browser)")
    with showing(browser, made(name)[0]) as tab:
        for width in (PHONE, SCREEN):
            tab.look(width, dark=dark)
            tab.value("document.querySelectorAll('details').forEach(one => { one.open = true })")
            assert tab.violations(only_drawn=dark) == []


# --- paper ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@some_pages
def test_a_page_is_printed(browser: Browser, made: Made, name: str) -> None:
    with showing(browser, made(name)[0]) as tab:
        tab.look(SCREEN, dark=True)
        sheets = len(re.findall(rb"/Type\s*/Page\b", tab.printed()))
        assert 1 <= sheets <= SHEETS[name], sheets
        tab.look(SCREEN, dark=True, medium="print")
        assert tab.line(Box(2, 2, 6, 1)) == [(255, 255, 255)] * 6
        assert max(color_of(tab, "body", "color")) < 60
        inside = "one => getComputedStyle(one).breakInside === 'avoid'"
        assert tab.value(f"[...document.querySelectorAll('.row, .finding, figure, tr')].every({inside})")
