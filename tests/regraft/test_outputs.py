"""Files that options name for output: refused before the command starts where a command that reads must not write."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from extras import needs
from faults import REFUSED, STOPPED, said, state_of
from harness import run
from planted_v2 import index

from checks import systems
from regraft.disk import durable, file_paths, writable
from regraft.errors import OutputLost
from repair.cherry_v2 import pack as packing

#: The words of each command that writes one file, by the option: the path that is read, the file, the error.
OUTPUTS: dict[str, tuple[Callable[[Path, Path], tuple[object, ...]], str, str]] = {
    "check --report": (lambda path, out: ("check", path, "--report", out), "ReportNotWritable", "out.html"),
    "check --state": (
        lambda path, out: ("check", path, "--part", "1/2", "--state", out),
        "CheckStateNotWritable",
        "out.sqlite",
    ),
    "certify --report": (lambda path, out: ("certify", path, "--report", out), "ReportNotWritable", "out.html"),
    "pack": (lambda path, out: ("pack", path, out), "TargetNotWritable", "out.zip"),
    "fleet check --results": (
        lambda path, out: ("fleet", "check", path.parent, "--results", out),
        "TargetNotWritable",
        "out.jsonl",
    ),
}
WITH_EXTRAS = {
    "check --metrics": (lambda path, out: ("check", path, "--metrics", out), "TargetNotWritable", "out.prom"),
    "export": (lambda path, out: ("export", path, out), "TargetNotWritable", "out.parquet"),
}
ALL = OUTPUTS | WITH_EXTRAS
EVERY = [*OUTPUTS, "check --metrics", pytest.param("export", marks=needs("parquet"))]


@pytest.fixture(autouse=True)
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the work of a command fail: a refusal comes before it."""

    def begin(*_: object, **__: object) -> None:
        raise AssertionError("the work has begun")

    monkeypatch.setattr(systems, "audit", begin)
    monkeypatch.setattr(packing, "_collect_contents", begin)


def refused(option: str, path: Path, out: Path, reason: str, *, code: str = "") -> None:
    words, expected, _ = ALL[option]
    before = state_of(path.parent if path.name == "library" else path)
    assert reason in said(run(*words(path, out), "--json"), code or expected, REFUSED)
    assert state_of(path.parent if path.name == "library" else path) == before
    assert not out.exists()


@pytest.mark.parametrize("option", EVERY)
def test_a_file_inside_the_store_that_is_read_is_refused(option: str, store: Path) -> None:
    code, reason = ("WrongUsage", "would be inside a library") if option.startswith("fleet") else ("", "it is inside ")
    for folder in (store, store / "KnowledgeBase", index(store).parent):
        refused(option, store, folder / ALL[option][2], reason, code=code)


@pytest.mark.skipif(os.name == "nt", reason="making links takes a privilege there")
@pytest.mark.parametrize("option", EVERY)
def test_a_link_to_the_store_is_no_way_around(option: str, store: Path, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere" / "link"
    link.parent.mkdir()
    link.symlink_to(store, target_is_directory=True)
    code, reason = ("WrongUsage", "would be inside a library") if option.startswith("fleet") else ("", "it is inside ")
    refused(option, store, link / ALL[option][2], reason, code=code)


@pytest.mark.parametrize("option", [one for one in EVERY if one not in ("pack", "fleet check --results")])
def test_a_file_beside_an_index_that_is_read_is_refused(option: str, store: Path) -> None:
    path = index(store)
    refused(option, path, path.with_name(ALL[option][2]), "it is inside ")
    refused(option, path, path.parents[1] / ALL[option][2], "it is inside ")


@pytest.mark.parametrize("option", ["check --report", "check --state", "certify --report", "pack"])
def test_a_file_beside_a_catalog_that_is_read_is_refused(option: str, store: Path) -> None:
    refused(option, store / "catalog.sqlite", store / ALL[option][2], "it is inside ")


@pytest.mark.parametrize("option", EVERY)
def test_a_folder_that_is_not_there_is_refused(option: str, store: Path, tmp_path: Path) -> None:
    refused(option, store, tmp_path / "nowhere" / ALL[option][2], "its folder does not exist")


@pytest.mark.parametrize("option", EVERY)
def test_a_name_with_a_colon_is_refused_on_windows(
    option: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, it would be written into a stream of another file, which no folder lists."""
    monkeypatch.setattr(writable, "_HAS_STREAMS", True)
    refused(option, store, tmp_path / f"today:{ALL[option][2]}", "must not have a colon")


@pytest.mark.parametrize("option", EVERY)
def test_a_name_that_windows_does_not_allow_is_refused_before_the_work(
    option: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_paths, "is_storable", partial(file_paths.is_storable, windows=True))
    refused(option, store, tmp_path / f"what?{ALL[option][2]}", "Windows does not allow the name")


@pytest.mark.parametrize("option", EVERY)
def test_a_folder_without_permission_is_refused_before_the_work(
    option: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "locked").mkdir()
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda path, *more, **named: "locked" not in str(path) and real(path, *more, **named)
    )
    refused(option, store, tmp_path / "locked" / ALL[option][2], "no permission to write to its folder")


def test_the_state_may_be_in_the_folder_of_regraft(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    state = store / ".regraft" / "other.sqlite"
    done = run("check", store, "--part", "1/2", "--state", state, "--json", "--fail-on", "never")
    assert (done.status, done.document["part"]["number"]) == (0, 1)
    assert state.is_file()


@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize("option", ["check --report", "check --metrics", "certify --report"])
def test_a_result_is_printed_whose_file_cannot_be_written(
    option: str, form: tuple[str, ...], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    words, _, name = ALL[option]
    out = tmp_path / name
    whole = run(*words(store, out), *form)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    full = os.strerror(errno.ENOSPC)

    def refuse(_: Path) -> None:
        raise OSError(errno.ENOSPC, full)

    with monkeypatch.context() as patched:
        patched.setattr(durable, "sync_file", refuse)
        done = run(*words(store, out), *form)
    assert (whole.status, done.status) == (0, STOPPED)
    assert done.stderr == f"regraft: {OutputLost(output=out, reason=full)}\n"
    if form:
        assert done.document["summary"] == whole.document["summary"]
    else:
        assert done.stdout.splitlines()[0] == whole.stdout.splitlines()[0]
        assert str(out) not in done.stdout
    # The earlier file stays, and nothing beside it.
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
