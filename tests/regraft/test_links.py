"""Links in a source: which paths lead out of it, and when they are followed nevertheless."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from faults import posix

from regraft.disk import file_paths, links
from regraft.disk.links import LinkLeadsOut


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Make a source with links of every kind, beside a folder of the user's."""
    outside, source = tmp_path / "outside", tmp_path / "source"
    (outside / "docs").mkdir(parents=True)
    (outside / "docs" / "secret").write_text("secret")
    (source / "folder" / "deep").mkdir(parents=True)
    (source / "folder" / "file").write_text("mine")
    try:
        for name, goal in {
            "to a file inside": source / "folder" / "file",
            "relative inside": Path("folder", "file"),
            "to a folder inside": source / "folder",
            "to the source itself": source,
            "to a file outside": outside / "docs" / "secret",
            "relative outside": Path("..", "outside", "docs", "secret"),
            "to a folder outside": outside,
            "to nothing inside": source / "missing",
            "to nothing outside": outside / "missing",
            "to itself": Path("to itself"),
            "to a link outside": source / "to a file outside",
        }.items():
            (source / name).symlink_to(goal)
    except OSError:
        pytest.skip("links need a right of their own here")
    # Its name begins like that of the source.
    (tmp_path / "source of another").mkdir()
    (source / "to a neighbor").symlink_to(tmp_path / "source of another")
    return source


INSIDE = [
    "folder/file",
    "folder",
    "missing",
    "folder/../folder/file",
    "to a file inside",
    "relative inside",
    "to a folder inside/file",
    "to the source itself/folder/file",
    "to nothing inside",
    "",
]
OUTSIDE = [
    "to a file outside",
    "relative outside",
    "to a folder outside",
    "to a folder outside/docs/secret",
    "to a folder outside/missing",
    "to nothing outside",
    "to a link outside",
    "to a neighbor",
    "to the source itself/to a file outside",
    "../outside/docs/secret",
    "to a folder inside/../to a file outside",
]


@pytest.mark.parametrize("name", INSIDE)
def test_what_stays_inside_may_be_read(source: Path, name: str) -> None:
    assert links.check_inside(source, source / name) == source / name
    assert not links.leads_outside(source, source / name)


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_leads_outside_may_not_be_read(source: Path, name: str) -> None:
    assert links.leads_outside(source, source / name)
    with pytest.raises(LinkLeadsOut, match="outside of the source; use --follow-links to follow it") as caught:
        links.check_inside(source, source / name)
    assert caught.value.target == os.path.realpath(source / name)


@pytest.mark.parametrize("name", [*INSIDE, *OUTSIDE])
def test_a_user_may_let_all_of_them_be_followed(source: Path, name: str) -> None:
    with links.follow_links(True):
        assert links.are_links_followed()
        assert links.check_inside(source, source / name) == source / name
        assert not links.leads_outside(source, source / name)
    assert not links.are_links_followed()


def test_the_choice_ends_with_its_context(source: Path) -> None:
    with links.follow_links(True):
        with links.follow_links(False):
            assert links.leads_outside(source, source / "to a file outside")
        assert not links.leads_outside(source, source / "to a file outside")
    assert links.leads_outside(source, source / "to a file outside")


def test_a_link_to_itself_leads_nowhere(source: Path) -> None:
    assert links.leads_outside(source, source / "to itself")
    with pytest.raises(OSError):
        links.check_inside(source, source / "to itself")


@pytest.mark.parametrize("name", ["to a folder inside", "to the source itself"])
def test_a_source_may_itself_be_named_by_a_link(source: Path, name: str) -> None:
    named = source / name
    inner = "file" if name == "to a folder inside" else "folder/file"
    assert not links.leads_outside(named, named / inner)
    (named / "out").symlink_to(source.parent / "outside")
    assert links.leads_outside(named, named / "out" / "docs")


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    assert links.read_bytes(tmp_path / "file") == b"bytes"
    with pytest.raises(IsADirectoryError):
        links.read_bytes(tmp_path)
    with pytest.raises(FileNotFoundError):
        links.read_bytes(tmp_path / "missing")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(OSError, match="a pipe, a socket or a device, not a file"):
            links.read_bytes(tmp_path / "pipe")


@posix
def test_a_pipe_is_not_opened_and_a_file_that_became_one_is_closed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reads from a pipe takes from it."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("x")
    regular = (tmp_path / "file").stat()
    opened, closed = [], []
    real_open, real_close = os.open, os.close
    monkeypatch.setattr(os, "open", lambda *given: (opened.append(real_open(*given)), opened[-1])[1])
    monkeypatch.setattr(os, "close", lambda number: (closed.append(number), real_close(number))[1])
    for is_replaced in (False, True):
        if is_replaced:
            monkeypatch.setattr(file_paths, "stat", lambda _: regular)
        with pytest.raises(OSError, match="a pipe, a socket or a device, not a file"):
            links.open_descriptor(tmp_path / "pipe")
        assert (len(opened), closed) == (is_replaced, opened)


def test_at_or_below_in_any_spelling(tmp_path: Path) -> None:
    top = tmp_path / "Top"
    top.mkdir()
    assert links.is_at_or_below(top, top)
    assert links.is_at_or_below(top / "a" / "b", top)
    assert links.is_at_or_below(top / ".." / "Top" / "a", top)
    assert not links.is_at_or_below(tmp_path, top)
    assert not links.is_at_or_below(tmp_path / "Topmost", top)
    assert not links.is_at_or_below(top / ".." / "other", top)
