"""The page of ``regraft check --report``: nothing of the user's, the numbers of ``--json``, and where it may be put."""

from __future__ import annotations

import errno
import html
import json
import os
import re
import shutil
from contextlib import closing
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any

import apsw
import pytest
from check_pages import Page
from faults import line, said, state_of, untouched
from harness import run
from planted_v1 import PLANTED as PLANTED_V1
from planted_v1 import whole
from planted_v2 import KB, OTHER, index, plant, run_sql
from v1 import LLM, MODEL, Row, Source, base, file, folder, note, page

from checks.audit import page as audit_page
from checks.audit.findings import FINDINGS
from checks.cherry_v2 import audit
from regraft.disk import durable
from regraft.errors import OutputLost
from regraft.report import html as report_html

SECRET = "unmistakable"
#: How the page begins.
CHECK = report_html._START.format("en", "check")


class Charts(HTMLParser):
    """What a page draws and says: its charts with their labels, its rows, its tables."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.svgs: list[dict[str, str | None]] = []
        self.sections: dict[str, list[str]] = {}
        self.cells: list[list[str]] = []
        self._path: list[str] = []
        self._title = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "svg":
            self.svgs.append(dict(attrs))
        elif tag == "tr":
            self.cells.append([])
        elif tag == "td":
            self.cells[-1].append("")
        if tag not in Page.VOID:
            self._path.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._path.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self._path:
            self.cells[-1][-1] += data
        if self._path[-1:] == ["h2"]:
            self._title = data
        elif self._path[-1:] != ["title"]:
            self.sections.setdefault(self._title, []).append(data)

    def words(self, section: str) -> str:
        return " ".join(" ".join(self.sections.get(section, [])).split())


def checked(source: Path, place: Path, *options: object) -> tuple[str, dict[str, Any]]:
    """Check a source; return its page and its document."""
    done = run("check", source, "--json", "--report", place, *options)
    assert done.status in (0, 1), done.stderr
    assert done.stderr == f"Written:\n  {place}\n"
    text = place.read_text("utf-8")
    assert text.startswith(CHECK)
    return text, done.document


def secret_source(place: Path) -> Path:
    """Write a v1 source in which every text, id and name of a user holds a word of its own."""
    model = {**MODEL, "id": f"{SECRET}-model", "name": f"{SECRET} model"}
    llm = {"providers": [{**LLM["providers"][0], "models": [model]}]}
    items = [
        file("f", "F", name=f"{SECRET}.pdf"),
        file(f"{SECRET}-item", "X", name=f"{SECRET} 2.pdf"),
        page("p", "P", address=f"https://example.com/{SECRET}"),
        note("n", "N", text=f"{SECRET} note", remark=f"{SECRET} remark"),
        folder("d", "D1", "D2", "gone", path=f"/home/{SECRET}"),
    ]
    rows = [Row(loader, f"{SECRET} {loader} {at}", source=f"/home/{SECRET}/x") for at in range(3) for loader in "FPN"]
    rows += [Row("D1", f"{SECRET} D1"), Row("left", f"{SECRET} left over", id=f"{SECRET}-row")]
    bases = [
        base(f"{SECRET}-kb", *items, name=f"<b>{SECRET}</b> & more", description=f"{SECRET} about", model=model),
        base("lost", note("l", "L"), name=f"{SECRET} lost", model={**model, "id": SECRET, "provider": SECRET}),
        base(f"{SECRET}-empty", name=SECRET, model=model),
    ]
    stores = {f"{SECRET}-kb": rows, "lost": [Row("L", SECRET)]}
    return Source(bases, stores, uploads={"up-f.pdf": SECRET.encode()}, llm=llm).write(place / SECRET / "v1")


def secret_library(source: Path, place: Path) -> Path:
    """Migrate it, and damage the library so that findings have samples to quote."""
    target = place / SECRET / "library"
    assert run("migrate", source, "--to", target, "-q").status == 1
    bases = target / "KnowledgeBase"
    path = next(bases.glob("*/.cherry/index.sqlite"))
    path.with_name("other").mkdir()
    run_sql(
        path,
        "DELETE FROM embedding WHERE rowid = 1",
        f"UPDATE content SET text = '{SECRET}' WHERE rowid = 1",
        f"UPDATE material SET relative_path = '../{SECRET}' WHERE rowid = 2",
    )
    stray = path.parents[1] / "raw" / f"{SECRET}.bin"
    stray.write_bytes(b"stray")
    os.utime(stray, (1_600_000_000, 1_600_000_000))
    run_sql(bases / f"{SECRET}-v1", "CREATE TABLE vectors (id)")
    with closing(apsw.Connection(str(target / "catalog.sqlite"))) as db:
        columns = [row[1] for row in db.execute("PRAGMA table_info(knowledge_base)")]
        values = [f"'{SECRET}-id'" if name == "id" else f'"{name}"' for name in columns]
        db.execute(f"INSERT INTO knowledge_base SELECT {', '.join(values)} FROM knowledge_base LIMIT 1")
        db.execute("UPDATE knowledge_item SET data = '{' WHERE rowid = 1")
    report = json.loads((target / "report.json").read_text("utf-8"))
    report["bases"][0]["rows"]["skipped"][f"{SECRET}_reason"] = 3
    (target / "report.json").write_text(json.dumps(report), "utf-8")
    return target


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("secrets")
    source = secret_source(place)
    target = secret_library(source, place)
    return {"v1": source, "library": target, "index": next(target.glob("KnowledgeBase/*/.cherry/index.sqlite"))}


@pytest.fixture
def damaged(healthy: Path, tmp_path: Path) -> Path:
    target = shutil.copytree(healthy, tmp_path / "library")
    for name in ("no vector", "zeros", "a stray file"):
        plant(name, target)
    return target


# --- what is in it -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("v1", []),  # a v1 source has no levels
        *product(["library", "index"], [[], ["--quick"], ["--deep"], ["--max-duration", "0"]]),
    ],
)
def test_nothing_of_the_users_is_in_it(secrets: dict[str, Path], name: str, options: list[str], tmp_path: Path) -> None:
    text, document = checked(secrets[name], tmp_path / "page.html", *options)
    assert SECRET in json.dumps(document)
    assert document["findings"] or options
    assert SECRET not in text
    assert not any(part in text for part in (str(tmp_path), str(secrets["v1"].parents[1]), "/home/", "example.com"))
    for finding in document["findings"]:
        assert finding["message"] not in text
        # An id that the application made says nothing of its user; only its start is shown.
        assert not any(sample in text for sample in finding["samples"] if len(sample) > 8)


def test_commands_that_mend_something_are_code_and_its_words_are_text(secrets: dict[str, Path], tmp_path: Path) -> None:
    text, document = checked(secrets["library"], tmp_path / "page.html")
    remedies = {FINDINGS[finding["name"]].remedy for finding in document["findings"]}
    commands = {part for remedy in remedies for part in remedy.split("`")[1::2]}
    assert commands
    assert all(f"<code>{html.escape(command)}</code>" in text for command in commands)
    assert "&lt;" not in text
    assert "`" not in text.partition("</style>")[2]


def test_it_stands_alone(secrets: dict[str, Path], tmp_path: Path) -> None:
    for name, source in secrets.items():
        text, _ = checked(source, tmp_path / f"{name}.html")
        found = Page(text)
        assert found.open == []
        assert not {"script", "link", "img", "iframe", "a", "object", "embed", "form"} & set(found.tags)
        assert not {"src", "href", "srcset", "action", "style"} & {key for key, _ in found.attributes}
        assert not re.search(r"https?:|//|@import|url\(|javascript:", text)
        policy = ("content", "default-src 'none'; style-src 'unsafe-inline'; img-src data:")
        assert [("http-equiv", "Content-Security-Policy"), policy] == found.attributes[4:6]


def test_every_chart_says_its_numbers(damaged: Path, tmp_path: Path) -> None:
    text, document = checked(damaged, tmp_path / "page.html")
    charts = Charts(text)
    drawn = [svg for svg in charts.svgs if svg["class"] != "swatch"]
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in drawn)
    assert all(svg["aria-hidden"] == "true" for svg in charts.svgs if svg["class"] == "swatch")
    labels = [svg["aria-label"] for svg in drawn]
    [kb, other] = document["statistics"]["bases"]
    for place, one in ((1, kb), (2, other)):
        label = f"base {place} {one['id'][:8]}"
        norms = ", ".join(f"{norm}: {count}" for norm, count in one["norms"].items())
        assert f"{label}, {one['bodies']} bodies. with a vector: {one['covered']}" in labels
        assert f"{label}. {norms}" in labels
        assert [label, norms] in charts.cells
    assert "Findings by severity. errors: 1, warnings: 2, notes: 0" in labels


def test_its_numbers_are_those_of_the_document(damaged: Path, tmp_path: Path) -> None:
    text, document = checked(damaged, tmp_path / "page.html")
    charts = Charts(text)
    assert "1 error, 2 warnings." in charts.words("")
    for name, count in document["checked"].items():
        assert name == "bytes" or f"{name.replace('_', ' ')} {count}" in charts.words("")
    found = charts.words("Findings")
    for finding in document["findings"]:
        assert f"{finding['severity']} {finding['name']} {finding['count']} in 1 base" in found
    assert f"base 1 {KB[:8]} 14 of 15 93.3 % base 2 {OTHER[:8]} 1 of 1 100 %" in charts.words("Coverage")
    assert f"base 1 {KB[:8]} 15 read migrated: 15" in charts.words("Where the rows went")
    rows = {cells[0]: cells[1:] for cells in charts.cells if len(cells) == 7}
    [kb, other] = document["statistics"]["bases"]
    for place, one in ((1, kb), (2, other)):
        numbers = [str(one[key]) for key in ("units", "bodies", "covered", "embeddings")]
        assert rows[f"base {place} {one['id'][:8]}"][:5] == [*numbers, "4"]
    assert sum(kb["norms"].values()) == 13
    assert re.search(r"13 vectors, [\d.]+ to [\d.]+, most at", charts.words("Norms of the vectors"))


SKIPPING = ("rows of nobody", "vectors of another model", "chunks that v1 left out", "no file", "a copy of a file")


@pytest.mark.parametrize("name", SKIPPING)
def test_where_the_rows_of_a_source_would_go(name: str, tmp_path: Path) -> None:
    source = PLANTED_V1[name].damage(whole(tmp_path / "v1"))
    text, document = checked(source, tmp_path / "page.html")
    charts = Charts(text)
    assert set(charts.sections) == {"", "Findings", "Where the rows would go", "Bases"}
    words = charts.words("Where the rows would go")
    dry = run("migrate", source, "--to", tmp_path / "out", "--dry-run", "--json").document
    for place, (one, planned) in enumerate(zip(document["statistics"]["bases"], dry["bases"], strict=True), 1):
        rows = one["rows"]
        assert rows in (planned["rows"], None)
        if rows is None:
            assert f"base {place} not known" in words
            assert [f"base {place}", *"----"] in [cells[:5] for cells in charts.cells]
            continue
        assert f"base {place} {rows['read']} read migrated: {rows['carried']}" in words
        left = {**rows["skipped"], "v1_deduplicated": rows["v1_deduplicated"]}
        assert all(f"{reason}: {count}" in words for reason, count in left.items() if count)
        numbers = (rows["read"], rows["carried"], sum(rows["skipped"].values()), rows["v1_deduplicated"])
        assert [f"base {place}", *map(str, numbers)] in [cells[:5] for cells in charts.cells]


def test_what_nobody_has_looked_at_is_said(damaged: Path, tmp_path: Path) -> None:
    quick, _ = checked(damaged, tmp_path / "quick.html", "--quick")
    assert "Not checked: --quick reads no vector." in Charts(quick).words("Norms of the vectors")
    assert "structure, counts and coverage (--quick)" in quick
    cut, document = checked(damaged, tmp_path / "cut.html", "--max-duration", "0")
    words = Charts(cut).words("")
    assert f"time limit reached: {len(document['not_checked'])} checks not looked at" in words
    assert f"base 1 {KB[:8]} not looked at" in Charts(cut).words("Coverage")
    (damaged / "report.json").unlink()
    index(damaged).unlink()
    text, _ = checked(damaged, tmp_path / "page.html")
    assert f"base 1 {KB[:8]} not counted" in Charts(text).words("Coverage")
    assert "Not known: there is no report of a migration here." in Charts(text).words("Where the rows went")


def test_nothing_at_all(tmp_path: Path) -> None:
    source = Source([]).write(tmp_path / "v1")
    text, _ = checked(source, tmp_path / "page.html")
    assert "There are no bases." in Charts(text).words("Bases")
    broken = tmp_path / "index.sqlite"
    broken.write_bytes(b"x")
    text, document = checked(broken, tmp_path / "broken.html")
    assert document["summary"]["by_name"] == {"file.unreadable": 1}
    assert "There are no bases." in Charts(text).words("Bases")


def test_a_report_of_another_program_says_nothing(damaged: Path, tmp_path: Path) -> None:
    path = damaged / "report.json"
    report = json.loads(path.read_text("utf-8"))
    for skipped in ({"": -1}, {"x": 10**30}, {"x": "1"}):
        report["bases"][0]["rows"]["skipped"] = skipped
        path.write_text(json.dumps(report), "utf-8")
        assert checked(damaged, tmp_path / "page.html")[1]["statistics"]["bases"][0]["rows"] is None
    report["bases"][0]["rows"]["skipped"] = {"carried": 2, "another reason": 3, "<i>": 4, "unmapped_loader": 1234}
    path.write_text(json.dumps(report), "utf-8")
    text, _ = checked(damaged, tmp_path / "page.html")
    assert "another reason: 9" in Charts(text).words("Where the rows went")
    assert "unmapped_loader: 1,234" in Charts(text).words("Where the rows went")
    assert "<i>" not in text


def test_only_what_was_asked_for(damaged: Path, tmp_path: Path) -> None:
    text, document = checked(damaged, tmp_path / "page.html", "--only", "raw.orphan")
    assert [finding["name"] for finding in document["findings"]] == ["raw.orphan"]
    assert "only findings of the name raw.orphan" in Charts(text).words("")
    assert "embedding.missing" not in text
    text, _ = checked(damaged, tmp_path / "page.html", "--only", "meta.missing")
    assert "Nothing of that name was found." in Charts(text).words("Findings")


def test_a_share_is_whole_only_where_nothing_is_missing() -> None:
    shares = {one: audit_page._format_share(*one) for one in ((999_999, 1_000_000), (7, 7), (1, 3), (0, 9))}
    assert list(shares.values()) == ["99.9\u00a0%", "100\u00a0%", "33.3\u00a0%", "0.0\u00a0%"]


# --- the run -------------------------------------------------------------------------------------------------------


def test_a_run_is_as_it_is_without(damaged: Path, tmp_path: Path) -> None:
    place = tmp_path / "page.html"
    for options in ((), ("--fail-on", "never"), ("-q",)):
        without = run("check", damaged, *options)
        with untouched(damaged):
            done = run("check", damaged, *options, "--report", place)
        assert (done.status, done.stderr) == (without.status, "")
        written = "" if "-q" in options else f"\nWritten:\n  {place}\n"
        assert done.stdout == f"{without.stdout}{written}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["library", "page.html"]


def test_an_earlier_page_is_replaced(damaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, _ = checked(damaged, Path("page.html"))
    second, _ = checked(damaged, Path("page.html"), "--only", "raw.orphan")
    assert first != second


def test_a_full_disk_leaves_the_earlier_page(damaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "page.html"
    text, _ = checked(damaged, place)

    def full(_: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(durable, "sync_file", full)
    done = run("check", damaged, "--report", place, "--json")
    assert (done.status, done.stderr) == (3, f"regraft: {OutputLost(output=place, reason=os.strerror(errno.ENOSPC))}\n")
    assert done.document["findings"]
    assert place.read_text("utf-8") == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["library", "page.html"]


# --- where it may be put -------------------------------------------------------------------------------------------


def a_folder(place: Path) -> Path:
    place.mkdir()
    return place


def with_text(place: Path, text: str) -> Path:
    place.write_text(text, "utf-8")
    return place


def a_link(place: Path) -> Path:
    place.symlink_to(with_text(place.with_name("page.html"), f"{CHECK}1"))
    return place


def a_pipe(place: Path) -> Path:
    os.mkfifo(place)
    return place


posix = pytest.mark.skipif(os.name == "nt", reason="links and pipes as POSIX systems have them")
REFUSED = {
    "in the library": (lambda place: place / "library" / "new.html", "it is inside "),
    "deep in the library": (lambda place: place / "library" / "KnowledgeBase" / KB / "new.html", "it is inside "),
    "the library": (lambda place: place / "library", "it is inside "),
    "a way around": (lambda place: place / "x" / ".." / "library" / "new.html", "its folder does not exist"),
    "no folder": (lambda place: place / "none" / "new.html", "its folder does not exist"),
    "a folder": (lambda place: a_folder(place / "new.html"), "it is a folder"),
    "another file": (
        lambda place: with_text(place / "a.html", "<!doctype html>"),
        "is not a report page of regraft check",
    ),
    "a file of no text": (
        lambda place: with_text(place / "a.html", "\0" * 999),
        "is not a report page of regraft check",
    ),
    "a migration's page": (
        lambda place: with_text(place / "a.html", report_html._START.format("en", "migrate") + "1"),
        "is not a report page of regraft check",
    ),
    "a name that is too long": (lambda place: place / ("x" * 300), os.strerror(errno.ENAMETOOLONG)),
    "a link": (lambda place: a_link(place / "a.html"), "it is a link"),
    "a pipe": (lambda place: a_pipe(place / "a.html"), "it is a device"),
}
# Windows leaves out a folder that ".." follows, whether it exists or not.
NEED_POSIX = {"a way around", "a name that is too long", "a link", "a pipe"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=posix if name in NEED_POSIX else ()) for name in REFUSED])
def test_a_place_is_refused_before_the_audit(name: str, damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, reason = REFUSED[name]
    place = make(damaged.parent)
    monkeypatch.setattr(audit, "audit", None)
    before = state_of(damaged.parent)
    message = said(run("check", damaged, "--report", place, "--json"), "ReportNotWritable", 2)
    assert reason in message
    assert message == line(run("check", damaged, "--report", place), 2)
    assert state_of(damaged.parent) == before


@posix
def test_a_link_leads_into_the_library_too(damaged: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(damaged, target_is_directory=True)
    for path, page_at in ((damaged, link / "new.html"), (link, damaged / "new.html")):
        assert "it is inside " in said(run("check", path, "--report", page_at, "--json"), "ReportNotWritable", 2)


def test_what_belongs_to_an_index_is_left_alone(damaged: Path, tmp_path: Path) -> None:
    path = index(damaged)
    for page_at in (path, path.with_name("new.html"), path.parents[1] / "raw" / "new.html"):
        assert "it is inside " in said(run("check", path, "--report", page_at, "--json"), "ReportNotWritable", 2)
    # Another base's audit is not about the library's own folder.
    checked(path.parents[1], damaged / "new.html")
    alone = shutil.copy(path, tmp_path / "index.sqlite")
    checked(Path(alone), tmp_path / "new.html")


def test_data_that_settings_name_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(tmp_path / "home"))
    settings = PLANTED_V1["a profile elsewhere"].damage(whole(tmp_path / "v1"))
    elsewhere = Path(json.loads(settings.read_text("utf-8"))["appDataPath"])
    done = run("check", settings, "--report", elsewhere / "new.html", "--json")
    assert f"it is inside {elsewhere}, which" in said(done, "ReportNotWritable", 2)


def test_a_folder_that_nobody_may_write_to(damaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _, mode, **__: mode != os.W_OK)
    done = run("check", damaged, "--report", tmp_path / "new.html", "--json")
    assert "no permission to write to its folder" in said(done, "ReportNotWritable", 2)


# --- its values, of documents of the tests' own ----------------------------------------------------------------------


def counted(base_id: str, **more: Any) -> dict[str, Any]:
    known = {"units": 2, "bodies": 4, "covered": 3, "embeddings": 5, "lengths": {"4": 5}, "rows": None}
    return {"id": base_id, **known, "norms": {"1.0": 5}, **more}


def reported(name: str, severity: str, base: str | None, count: int = 1) -> dict[str, Any]:
    return {"name": name, "severity": severity, "base": base, "count": count}


def values(
    bases: list[dict[str, Any]], *found: dict[str, Any], only: tuple[str, ...] = (), **more: Any
) -> dict[str, Any]:
    severities = {one: sum(finding["severity"] == one for finding in found) for one in ("error", "warning", "note")}
    document = {
        "run": {"started_at": "2026-11-21T12:00:00.000Z", "finished_at": "2026-11-21T12:00:01.500Z"},
        "checked": {"bases": len(bases), "bytes": 2048},
        "statistics": {"bases": bases},
        "findings": list(found),
        "summary": {"by_severity": severities},
        "level": "default",
        "not_checked": [],
    }
    return audit_page._Page({**document, **more}, only).values()


def test_a_page_of_nothing() -> None:
    shown = values([])
    assert (shown["lead"], shown["findings"], shown["most"]) == ("Nothing found.", [], 0)
    assert (shown["nothing_found"], shown["coverage"], shown["rows"], shown["norms"]) == (
        "Nothing was found.",
        None,
        None,
        None,
    )
    assert shown["table"]["rows"] == []
    assert values([], only=("unit.id",))["nothing_found"] == "Nothing of that name was found."
    assert values([], reported("raw.orphan", "note", None))["table"]["rows"] == []
    assert values([], statistics={})["table"] is None


def test_findings_are_grouped_by_name_and_by_base() -> None:
    shown = values(
        [counted("a"), counted("b")],
        reported("raw.orphan", "warning", "b", 4),
        reported("unit.id", "error", "a", 1200),
        reported("unit.id", "error", "b", 34),
        reported("unit.id", "error", "a", 1),
        reported("catalog.pending", "error", None),
        reported("body.id", "error", "x", 2000),
    )
    assert shown["lead"] == "5 errors, 1 warning."
    assert [(one["name"], one["cases"], one["where"]) for one in shown["findings"]] == [
        ("body.id", 2000, "2,000 in 1 base"),
        ("unit.id", 1235, "1,235 in 2 bases"),
        ("catalog.pending", 1, "1"),
        ("raw.orphan", 4, "4 in 1 base"),
    ]
    assert shown["most"] == 2000
    rows = [(row["label"] and str(row["label"]), dict(row["findings"])) for row in shown["table"]["rows"]]
    assert rows == [
        ("base 1", {"unit.id": 1201}),
        ("base 2", {"raw.orphan": 4, "unit.id": 34}),
        # Those of no base, and of bases that are not listed.
        (None, {"catalog.pending": 1, "body.id": 2000}),
    ]
    assert shown["table"]["rows"][0]["cells"] == [("2",), ("4",), ("3",), ("5",), ("4",)]
    assert shown["table"]["rows"][2]["cells"] == [()] * 5
    assert len(values([counted("a")], reported("unit.id", "error", "a"))["table"]["rows"]) == 1


def test_how_vector_lengths_are_shown() -> None:
    bases = [counted("a", lengths={"4": 1, "8": 1234}), counted("b", lengths={}), counted("c", units=None)]
    cells = [row["cells"] for row in values(bases)["table"]["rows"]]
    assert [cell[4] for cell in cells] == [("4: 1", "8: 1,234"), ("-",), ("4",)]
    assert cells[2][0] == ("-",)


def test_how_many_bodies_have_a_vector() -> None:
    bases = [counted("a"), counted("b", bodies=0, covered=0), counted("c", covered=None), counted("d", bodies=None)]
    shown = values(bases)["coverage"]
    assert [(one["share"], one.get("reason")) for one in shown] == [
        ("75.0\u00a0%", None),
        ("", "no bodies"),
        ("", "not counted"),
        ("", "not counted"),
    ]
    assert (shown[0]["about"], shown[0]["bodies"], shown[0]["covered"]) == ("base 1, 4 bodies. ", 4, 3)
    assert values(bases, not_checked=["x"])["coverage"][2]["reason"] == "not looked at"


def test_where_rows_went() -> None:
    rows = {"read": 1234, "carried": 1200, "restored_duplicate": 0, "v1_deduplicated": 0, "without_vector": 0}
    skipped = {"unmapped_loader": 30, "unheard of": 4}
    none = {**rows, "read": 0, "carried": 0, "skipped": {}}
    bases = [
        counted("a", rows={**rows, "skipped": skipped}),
        counted("b", rows={**rows, "skipped": {"unmapped_loader": 2}}),
        counted("c", rows=none),
        counted("d"),
    ]
    shown = values(bases)["rows"]
    assert [one["message"] for one in shown["bases"]] == ["1,234 read", "1,234 read", "none counted", "not known"]
    assert [len(one["parts"]) > 0 for one in shown["bases"]] == [True, True, False, False]
    assert [tuple(one)[:2] for one in shown["reasons"]] == [("unmapped_loader", 32)]


@pytest.mark.parametrize(
    ("norms", "ends", "columns", "message"),
    [
        ({"1.0": 5}, "012", [("50.000%", "0.000%", "5.000%", "100.000%")], "5 vectors, all at 1.0"),
        (
            {"0.0": 1, "1.9": 100, "0.5": 50},
            "012",
            [
                ("0.000%", "97.000%", "5.000%", "3.000%"),
                ("95.000%", "0.000%", "5.000%", "100.000%"),
                ("25.000%", "50.000%", "5.000%", "50.000%"),
            ],
            "151 vectors, 0.0 to 1.9, most at 1.9 (100)",
        ),
        (
            {"2.0": 1000, "10.0": 500},
            ("0", "5", "10+"),
            [("19.802%", "0.000%", "0.990%", "100.000%"), ("99.010%", "50.000%", "0.990%", "50.000%")],
            "1,500 vectors, 2.0 to 10 and more, most at 2.0 (1,000)",
        ),
        (
            {"2.0": 5},
            ("0", "5", "10+"),
            [("19.802%", "0.000%", "0.990%", "100.000%")],
            "5 vectors, all at 2.0",
        ),
        (None, None, [], "not counted"),
        ({}, None, [], "no vector with a nonzero norm"),
    ],
)
def test_a_histogram_of_norms(norms: Any, ends: Any, columns: list[tuple[str, ...]], message: str) -> None:
    shown = values([counted("a", norms=norms), counted("b")])["norms"]["bases"][0]
    assert [tuple(one[key] for key in ("x", "y", "width", "height")) for one in shown["columns"]] == columns
    assert (shown.get("ends"), shown["message"]) == (ends, message)


@pytest.mark.parametrize(
    ("norms", "level", "expected"),
    [
        ([None, None], "default", "Not checked."),
        ([None, None], "quick", "Not checked: --quick reads no vector."),
        ([{}, None], "default", "Every vector has the norm 0."),
    ],
)
def test_why_there_are_no_norms(norms: list[Any], level: str, expected: str) -> None:
    bases = [counted("a", norms=norms[0]), counted("b", norms=norms[1])]
    assert values(bases, level=level)["norms"] == {"unknown": expected}


def test_the_facts_of_a_run() -> None:
    first = "2026-11-21 12:00:00 UTC, 1.5 s"
    level = "checked: structure, counts, coverage, texts, ids and vectors"
    assert values([])["facts"] == [first, level]
    cut = values([], only=("unit.id", "body.id"), not_checked=["x", "y"])["facts"]
    assert cut == [
        first,
        level,
        "time limit reached: 2 checks not looked at",
        "only findings of the name unit.id, body.id",
    ]
