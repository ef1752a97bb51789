"""The program to double-click: built by PyInstaller, started without Python and without any variable."""

from __future__ import annotations

import json
import locale
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener

import pytest
from harness import REPO, run
from profiles import profile

SAMPLE = REPO / "sample_v1" / "cherry-studio.202503141200.zip"
MOST_BYTES = 120 << 20
#: Of the program's output through a pipe.
CODING = "utf-8" if os.name != "nt" else locale.getencoding()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "REGRAFT_APP" not in os.environ and find_spec("PyInstaller") is None,
        reason="no PyInstaller, and REGRAFT_APP does not name a program that make app has built",
    ),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program: the one that REGRAFT_APP names, or a new one."""
    name = "regraft.exe" if os.name == "nt" else "regraft"
    if "REGRAFT_APP" in os.environ:
        return Path(os.environ["REGRAFT_APP"]) / name
    folder = tmp_path_factory.mktemp("app")
    places = ["--distpath", str(folder / "dist"), "--workpath", str(folder / "build")]
    command = [sys.executable, "-P", "-m", "PyInstaller", "--noconfirm", "--log-level", "WARN", *places]
    subprocess.run([*command, str(REPO / "packaging" / "regraft.spec")], check=True, cwd=folder)
    return folder / "dist" / "regraft" / name


def started(program: Path, folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Start the program in a folder, with no variable but an empty PATH (Windows needs its own folder, too)."""
    environment = {"PATH": "", **{name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}}
    words = [str(program), *map(str, arguments)]
    return subprocess.run(
        words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, encoding=CODING, check=False
    )


def test_it_is_small(program: Path) -> None:
    assert sum(path.lstat().st_size for path in program.parent.rglob("*") if path.is_file()) <= MOST_BYTES


def test_it_does_what_the_installed_command_does(program: Path, tmp_path: Path) -> None:
    done = started(program, tmp_path, "migrate", SAMPLE, "--to", "library", "--jobs", 3, "--json", "--fail-on", "never")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["totals"]["rows"]["carried"] == 76
    assert run("migrate", SAMPLE, "--to", tmp_path / "other", "--fail-on", "never", "-q").status == 0
    indexes = sorted(path.relative_to(tmp_path / "other") for path in (tmp_path / "other").rglob("index.sqlite"))
    assert len(indexes) == 3
    for index in indexes:
        vectors = []
        for library in ("library", "other"):
            with closing(sqlite3.connect(tmp_path / library / index)) as db:
                vectors.append(db.execute("SELECT * FROM embedding ORDER BY 1").fetchall())
        assert [row[:2] for row in vectors[0]] == [row[:2] for row in vectors[1]]
    audit = started(program, tmp_path, "--lang", "zh", "check", "library", "--report", "page.html")
    assert audit.returncode == 1
    # Where the code page of Windows has no Chinese, it is written as escapes.
    counts = "4 个知识库、31 个数据源、76 个片段"
    assert counts.encode(CODING, "backslashreplace").decode(CODING) in audit.stdout
    assert (tmp_path / "page.html").stat().st_size > 1000
    assert started(program, tmp_path, "search", "library", "lamp", "--mode", "bm25", "--json").returncode == 0
    assert "What to do" in started(program, tmp_path, "explain", "base.model").stdout


def test_it_migrates_into_a_profile_and_back(program: Path, tmp_path: Path) -> None:
    place = profile(tmp_path / "profile")
    providers = ("--recreate-provider", "openai", "--recreate-provider", "silicon")
    done = started(program, tmp_path, "migrate", SAMPLE, "--profile", place, *providers, "--yes", "--fail-on", "never")
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(place / "cherrystudio.sqlite")) as db:
        assert db.execute("SELECT count(*) FROM knowledge_base").fetchone() == (5,)
    assert started(program, tmp_path, "undo", place, "--yes").returncode == 0
    assert not (tmp_path / "library").exists()


def test_opened_without_a_terminal_it_serves_its_page(program: Path, tmp_path: Path) -> None:
    """A double-click: no argument, no terminal; here no browser either, so it prints the address."""
    environment = {"PATH": "", "HOME": str(tmp_path), "USERPROFILE": str(tmp_path)}
    environment |= {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}
    process = subprocess.Popen(
        [program], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, encoding="utf-8"
    )
    assert process.stdout is not None
    try:
        found = None
        while found is None:
            line = process.stdout.readline()
            assert line, "it ended"
            found = re.search(r"http://127\.0\.0\.1:\d+/\S+", line)
        address = found[0]
        root = address.partition("enter/")[0]
        reader = build_opener(HTTPCookieProcessor())
        reader.open(address).read()
        page = reader.open(f"{root}upgrade?at={quote(str(SAMPLE), safe='')}").read().decode()
        token = re.search(r'name="form_token" value="([^"]+)"', page)
        assert token is not None

        def press(action: str, **fields: str) -> str:
            body = urlencode({"form_token": token[1], **fields}).encode()
            origin = root.split("/")[2]
            answer = reader.open(Request(f"{root}{action}", body, {"Origin": f"http://{origin}"}))
            job = answer.geturl()
            while b"data-job" in answer.read():
                # The stream ends with the job.
                reader.open(f"{job}/events").read()
                answer = reader.open(job)
            return str(job[len(root) :])

        library = tmp_path / "library"
        fields = {"path_at": quote(str(SAMPLE), safe=""), "profile_at": "-", "library": str(library)}
        planned = press("upgrade", **fields)
        assert not library.exists()
        done = press(f"{planned}/confirm")
        report = json.loads(reader.open(f"{root}{done}/report.json").read())
        assert report["totals"]["rows"]["carried"] == 76
        rows = 0
        for index in library.rglob("index.sqlite"):
            with closing(sqlite3.connect(index)) as db:
                rows += db.execute("SELECT count(*) FROM search_unit").fetchone()[0]
        assert rows == 76
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def test_it_needs_no_file_of_the_checkout(program: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(program.parent, tmp_path / "a folder of another name")
    assert started(moved / program.name, tmp_path, "--version").stdout.startswith("regraft, version ")
