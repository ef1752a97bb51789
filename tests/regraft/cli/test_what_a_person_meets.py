"""Messages of everyday situations: read-only media, limits on file sizes, failing servers, wrong words."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import fault_server
import lacking
import pseudo_terminal
import pytest
import stranded
import toys
from faults import fails, forked, give_up_rights, posix, untouched
from harness import HERE, NOW, run, run_as_given

from checks.systems import load_findings
from regraft import __version__
from regraft.cli.options import PATH, PathType
from regraft.disk import sqlite
from regraft.errors import error_classes
from regraft.report.notices import EVERY_CODE

# --- the command line -----------------------------------------------------------------------------------------------


def test_help_and_version_work_as_words() -> None:
    assert run("help").stdout == run("--help").stdout
    assert run("help", "migrate").stdout == run("migrate", "--help").stdout
    assert run("version").stdout == f"regraft, version {__version__}\n"
    unknown = run("help", "nothing")
    assert (unknown.status, unknown.stdout) == (2, "")
    assert "nothing" in unknown.stderr
    group = run_as_given("fleet")
    assert (group.status, group.stdout, group.stderr) == (2, run("fleet", "--help").stdout, "")


def test_a_backslash_before_a_closing_quote_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, the shell takes `check "C:\\My Data\\" --quick` for one word with a quote in it."""
    (tmp_path / "My Data").mkdir()
    monkeypatch.setattr(PathType, "windows", False)
    whole = run("check", f'{tmp_path}/My Data"')
    assert (whole.status, 'My Data"' in whole.stderr) == (2, True)
    monkeypatch.setattr(PathType, "windows", True)
    whole = run("check", f'{tmp_path}/My Data"')
    assert (whole.status, str(tmp_path / "My Data") in whole.stderr, '"' in whole.stderr) == (2, True, False)
    swallowed = run("check", f'{tmp_path}/My Data" --quick')
    assert swallowed.status == 2
    assert 'My Data" --quick has a double quote; leave out the backslash before it' in swallowed.stderr.replace(
        "\n", " "
    )


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("知识库. ", "知识库"),
        ("D:\\my library..", "D:\\my library"),
        ("backup.zip ", "backup.zip"),
        *((word, word) for word in (".", "..", "D:\\x\\..", "D:.", "x/. ", "a.b c", "\\\\?\\D:\\x.")),
    ],
)
def test_dots_and_blanks_at_the_end_of_a_name_are_ignored_on_windows(
    word: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PathType, "windows", True)
    assert PATH.convert(word, None, None) == Path(meant)
    monkeypatch.setattr(PathType, "windows", False)
    assert PATH.convert(word, None, None) == Path(word)


def test_explain_always_ends_with_what_to_do() -> None:
    names = [*load_findings(), *EVERY_CODE, *(error.__name__ for error in error_classes())]
    explained = run("explain", "--json", *names).document["explained"]
    assert {one["name"] for one in explained} == set(names)
    assert [one["name"] for one in explained if not one["remedy"]] == []
    for name in ("duplicate", "TargetLocked", "base.model"):
        assert run("explain", name).stdout.splitlines()[2].startswith("  What to do: ")
    assert "--map-model" in run("explain", "base.model").stdout
    assert "--recreate-provider" in run("explain", "base.model").stdout


# --- what cannot be written -----------------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("read_only", [".regraft/ledger.sqlite", ".regraft"])
def test_a_store_whose_ledger_is_read_only_is_refused(read_only: str, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        store = shutil.copytree(toys.library(tmp_path), Path(folder, "library"))
        toys.change(store, toys.COPIES)
        for path in (store, *store.rglob("*")):
            path.chmod(0o777)
        (store / read_only).chmod(0o555)

        def refused() -> None:
            give_up_rights()
            with untouched(store), fails("StoreNotWritable"):
                toys.change(store, toys.planner(toys.bodies))

        assert forked(refused) == 0


@pytest.mark.parametrize("dry", [True, False])
def test_an_unusable_vector_extension_is_no_damage_of_the_source(
    dry: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "library"
    sample = HERE.parent / "sample_v1" / "cherry-studio.202503141200.zip"
    monkeypatch.setattr(sqlite, "_find_vector_extension", lambda: str(tmp_path / "vec0"))
    options = ["--dry-run"] if dry else ["--yes"]
    refused = run("migrate", sample, "--to", library, "--jobs", "1", *options, "--json")
    assert (refused.status, refused.document["error"]["code"]) == (3, "VectorExtensionUnusable")
    assert "The SQLite extension sqlite-vec cannot be loaded (" in refused.stderr
    assert "nothing was written. Reinstall regraft for this system." in refused.stderr
    assert not library.exists()
    monkeypatch.undo()
    assert run("migrate", sample, "--to", library, "--yes", "--fail-on", "never").status == 0


@pytest.mark.thorough
@posix
@pytest.mark.parametrize(("limit", "code"), [(30_000, "TemporaryCopyFailed"), (160_000, "StoppedBySystem")])
def test_a_limit_on_file_sizes_is_no_damage_of_what_is_packed(limit: int, code: str, tmp_path: Path) -> None:
    """One base has a log beside its index, so that reading it takes a temporary copy."""
    library = lacking.library(tmp_path / "library")
    index = next(library.glob("KnowledgeBase/*/.cherry/index.sqlite"))
    with closing(sqlite3.connect(index)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE soon_gone (a)")
        db.execute("DROP TABLE soon_gone")
        db.commit()
        for path in (index, index.with_name("index.sqlite-wal")):
            shutil.copy(path, tmp_path / path.name)
    for name in ("index.sqlite", "index.sqlite-wal"):
        shutil.copy(tmp_path / name, index.with_name(name))

    def limited() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    with untouched(library):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "regraft", "pack", library, "pack.zip", "--json"],
            cwd=tmp_path,
            preexec_fn=limited,
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (3, code)
    assert "File too large" in done.stderr
    assert "damaged" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.sqlite", "index.sqlite-wal", "library"]


# --- rescuing -------------------------------------------------------------------------------------------------------


def cut_off(tmp_path: Path) -> tuple[Path, Path]:
    """Return a profile without the vector files of its failed base, and a v1 source whose file of it is truncated."""
    source = stranded.some_source()
    profile = stranded.profile(tmp_path, source, ("kb",))
    (profile / "Data" / "KnowledgeBase" / "kb").unlink()
    backup = source.write(tmp_path / "backup")
    vectors = backup / "KnowledgeBase" / "kb"
    vectors.write_bytes(vectors.read_bytes()[:-3000])
    return profile, backup


def test_a_cut_off_vector_file_is_named_as_that(tmp_path: Path) -> None:
    profile, backup = cut_off(tmp_path)
    with untouched(profile, backup):
        done = run("rescue", profile, "--v1", backup, "--dry-run", "--now", NOW)
    assert "does not exist" not in done.stdout
    assert "is truncated" in done.stdout
    assert "--salvage" in done.stdout


@pytest.mark.thorough
@posix
def test_a_person_sees_what_is_left_before_the_question(tmp_path: Path) -> None:
    source = stranded.some_source()
    profile = stranded.profile(tmp_path, source, ("kb", "other"))
    (profile / "Data" / "KnowledgeBase" / "other").unlink()
    before = stranded.contents(profile)
    shown = pseudo_terminal.on_terminal(100, "rescue", profile, "--now", NOW, typed="n\n", NO_COLOR="1")
    assert stranded.contents(profile) == before
    assert "Done" not in shown
    assert shown.index("Plan:") < shown.index("Not changed:")
    assert "its vector file other does not exist" in shown


# --- bars and servers -----------------------------------------------------------------------------------------------


@pytest.mark.thorough
@posix
def test_what_follows_a_progress_bar_begins_at_the_first_column(tmp_path: Path) -> None:
    """Both streams are one terminal: at each line end, what the cursor wrote since is worked out."""
    import fcntl
    import os
    import pty
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [
        sys.executable,
        "-P",
        "-m",
        "regraft",
        "migrate",
        str(pseudo_terminal.SAMPLE),
        "--to",
        str(tmp_path / "new"),
        "-y",
    ]
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave):
        os.close(slave)
        shown = b"".join(iter(lambda: pseudo_terminal._read(master), b"")).decode()
    os.close(master)
    drawn = [_drawn(line) for line in shown.split("\n")]
    assert any("Carrying" in line or "Reading" in line for line in shown.split("\n")), shown
    assert [line for line in drawn if line.startswith("   ") and not line.startswith("    regraft ")] == []
    assert any(line.startswith("Plan: ") for line in drawn)
    assert any(line.startswith("base  ") for line in drawn)


def _drawn(line: str) -> str:
    """Return what a terminal shows of a line: after a carriage return the first column is written again."""
    cells: list[str] = []
    for part in line.rstrip("\r").split("\r"):
        cells[: len(part)] = list(part)
    return "".join(cells)


def test_each_failed_attempt_at_a_server_is_told(tmp_path: Path, server: Any) -> None:
    store = lacking.library(tmp_path / "library")
    lacking.taken_away(store)
    config = lacking.configured(tmp_path / "regraft.yaml", server, retries=2)
    server.behave = [fault_server.failing(503, "come back later")]
    done = run("backfill", store, "--config", config, "--no-probe")
    assert done.status == 0
    lines = [line for line in done.stderr.splitlines() if "attempt" in line]
    assert lines == ["mine: attempt 1 of 3 failed (503: come back later); next attempt in 1 s"]
    lacking.taken_away(store)
    server.behave = [fault_server.failing(503, "come back later")]
    assert run("backfill", store, "--config", config, "--no-probe", "--json").stderr == ""
