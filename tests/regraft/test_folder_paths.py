"""The prefix of a migrated folder and the paths of its files: readable, safe, and free by fold."""

from __future__ import annotations

import errno
import os
import unicodedata
from pathlib import Path, PurePosixPath

import pytest
from faults import posix
from hypothesis import given
from hypothesis import strategies as st

from regraft.disk import file_paths
from regraft.disk.file_paths import ChildPaths, FolderPrefixes, path_segments, safe_segment
from regraft.text import utf16_len


def fold(text: str) -> str:
    return unicodedata.normalize("NFC", text).lower()


# --- segments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/home/alice/docs", ["home", "alice", "docs"]),
        ("/home//alice/./docs/", ["home", "alice", "docs"]),
        ("C:\\Users\\Al\\docs\\", ["C:", "Users", "Al", "docs"]),
        ("\\\\server\\share/docs", ["server", "share", "docs"]),
        ("\\\\?\\C:\\docs", ["?", "C:", "docs"]),
        ("../up", ["..", "up"]),
        ("/", []),
        ("", []),
        (".", []),
        (" a / b ", [" a ", " b "]),
        ("a\nb", ["a\nb"]),
    ],
)
def test_segments_are_those_of_any_system(path: str, parts: list[str]) -> None:
    assert path_segments(path) == parts


@pytest.mark.parametrize(
    ("segment", "safe"),
    [
        ("..", "untitled"),
        ("C:", "C_"),
        ("con", "_"),
        ("nul.tar.gz", "_.tar.gz"),
        ("  lead", "  lead"),
        ("trail . ", "trail"),
        (" ", "untitled"),
        ("?", "_"),
        ("x" * 300, "x" * 255),
        ("x" * 254 + "\U0001f600", "x" * 254),
        ("\U0001f600" * 128, "\U0001f600" * 127),
    ],
)
def test_segments_are_made_safe(segment: str, safe: str) -> None:
    assert safe_segment(segment) == safe


# --- prefixes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folders", "prefixes"),
    [
        (["/a/docs", "/b/docs", "/c/Docs"], ["docs", "docs_1", "Docs_2"]),
        (["/a/docs", "/b/docs", "/c/Docs", "/d/docs_1"], ["docs", "docs_1", "Docs_2", "docs_1_1"]),
        (["/d/docs_1", "/a/docs", "/b/docs"], ["docs_1", "docs", "docs_2"]),
        (["/", "\\", "//"], ["root", "root_1", "root_2"]),
        (["C:\\", "/root"], ["C_", "root"]),
        (["/a/.cherry", "/b/.CHERRY"], [".cherry_1", ".CHERRY_2"]),
        (["/a/report.v2", "/b/report.v2"], ["report.v2", "report.v2_1"]),
        (["/é", "/e\u0301", "/É"], ["é", "e\u0301_1", "É_2"]),
        (["/STRASSE", "/straße"], ["STRASSE", "straße"]),
        (["/a/..", "/b/.. "], ["untitled", "untitled_1"]),
        (["/" + "x" * 300, "/" + "x" * 255], ["x" * 255, "x" * 253 + "_1"]),
        (["/" + "\U0001f600" * 128] * 2, ["\U0001f600" * 127, "\U0001f600" * 126 + "_1"]),
    ],
)
def test_prefixes_are_free_by_fold(folders: list[str], prefixes: list[str]) -> None:
    free = FolderPrefixes()
    assert [free.take(folder) for folder in folders] == prefixes


def test_prefixes_yield_to_what_is_there() -> None:
    assert FolderPrefixes(["Docs", "docs_1"]).take("/x/docs") == "docs_2"


# --- files of folders ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "source", "path"),
    [
        ("/home/alice/docs", "/home/alice/docs/sub/a.md", "p/sub/a.md"),
        ("/home/alice/docs/", "/home//alice/./docs/a.md", "p/a.md"),
        ("/home/alice/docs", "/HOME/Alice/Docs/Sub/A.md", "p/Sub/A.md"),
        ("C:\\docs", "c:/docs\\sub\\a.md", "p/sub/a.md"),
        ("C:\\docs", "\\\\?\\C:\\docs\\sub\\a.md", "p/a.md"),
        ("/docs", "/docs", "p/docs"),
        ("/docs", "/other/docs/a.md", "p/a.md"),
        ("/docs", "/docsets/a.md", "p/a.md"),
        ("/docs", "/docs/../a.md", "p/untitled/a.md"),
        ("/docs", "/docs/con/x:y/a .md ", "p/_/x_y/a .md"),
        ("/docs", "/docs/..", "p/untitled"),
        ("/docs", "///", "p/untitled"),
        ("/", "/a/b.md", "p/a/b.md"),
        ("/docs", "The keeper r...sbon and then.", "p/The keeper r...sbon and then"),
        ("/docs", "one/two?\nthree", "p/two__three"),
        ("/e\u0301", "/é/a.md", "p/a.md"),
    ],
)
def test_a_file_has_its_place_in_the_folder(folder: str, source: str, path: str) -> None:
    assert ChildPaths(folder, "p").take(source) == path


def test_files_that_lie_elsewhere_are_counted() -> None:
    paths = ChildPaths("/docs", "docs")
    for source in ("/docs/a", "/docs/sub/b", "/docs", "/c", "snippet", ""):
        paths.take(source)
    assert paths.outside == 4


@pytest.mark.parametrize(
    ("sources", "paths"),
    [
        (["/d/x.tar.gz", "/e/x.tar.gz"], ["d/x.tar.gz", "d/x.tar_1.gz"]),
        (["/d/.env", "/e/.env"], ["d/.env", "d/.env_1"]),
        (["/d/a.md", "/d/A.MD", "/d/a_1.md"], ["d/a.md", "d/A_1.MD", "d/a_1_1.md"]),
        (["/d/s/a.md", "/d/t/a.md", "/d/S/a.md"], ["d/s/a.md", "d/t/a.md", "d/S/a_1.md"]),
        (["/e/" + "x" * 255] * 2, ["d/" + "x" * 255, "d/" + "x" * 253 + "_1"]),
        (["/e/" + "x" * 300 + ".md"] * 2, ["d/" + "x" * 255, "d/" + "x" * 253 + "_1"]),
        (["/e/" + "x" * 252 + ".md"] * 2, ["d/" + "x" * 252 + ".md", "d/" + "x" * 250 + "_1.md"]),
        (["/e/a." + "y" * 253] * 2, ["d/a." + "y" * 253, "d/_1." + "y" * 252]),
        (["/e/a." + "y" * 251 + " y"] * 2, ["d/a." + "y" * 251 + " y", "d/a_1." + "y" * 251]),
    ],
)
def test_paths_are_free_within_the_folder(sources: list[str], paths: list[str]) -> None:
    free = ChildPaths("/d", "d")
    assert [free.take(source) for source in sources] == paths


def test_paths_yield_to_what_is_there() -> None:
    assert ChildPaths("/d", "d", ["d/A.md"]).take("/d/a.md") == "d/a_1.md"


def test_many_files_of_one_name_stay_fast() -> None:
    free = ChildPaths("/d", "d")
    assert [free.take("/x/a.md") for _ in range(20_000)][-1] == "d/a_19999.md"


# --- whatever they are called --------------------------------------------------------------------------------------

_PIECES = st.one_of(
    st.sampled_from(["a", "A", "a_1", "a.md", "A.MD", "a_1.md", "é.md", "e\u0301.md", "..", "C:", "con", ".env", " "]),
    st.sampled_from(["x" * 255, "X" * 256, "x" * 253 + "_1", "y." + "z" * 254, "\U0001f600" * 130, ".cherry"]),
    st.text(st.characters(codec="utf-8"), max_size=8),
)
_PATHS = st.builds(
    lambda parts, between: between.join(["", *parts]), st.lists(_PIECES, max_size=4), st.sampled_from(["/", "\\", "//"])
)


@given(st.lists(_PATHS, max_size=8), st.lists(_PATHS, max_size=12))
def test_paths_are_unique_and_safe_whatever_they_come_from(folders: list[str], sources: list[str]) -> None:
    def laid_out() -> dict[str, list[str]]:
        prefixes = FolderPrefixes()
        paths = {prefixes.take(folder): folder for folder in folders}
        free = {prefix: ChildPaths(folder, prefix) for prefix, folder in paths.items()}
        below = [f"{folder}/{source}" for folder in folders[:2] for source in sources]
        return {prefix: [one.take(source) for source in (*sources, *below)] for prefix, one in free.items()}

    found = laid_out()
    assert found == laid_out()
    assert len({fold(prefix) for prefix in found}) == len(folders)
    every = [path for paths in found.values() for path in paths]
    assert len({fold(path) for path in every}) == len(every)
    for prefix, paths in found.items():
        assert fold(prefix) != ".cherry"
        for path in paths:
            first, *rest = path.split("/")
            assert first == prefix
            assert rest
            for part in (first, *rest):
                assert part not in ("", ".", "..")
                assert utf16_len(part) <= 255
                assert not set(part) & set('<>:"/\\|?*\0\n')


# --- files that are stored -------------------------------------------------------------------------------------------


def test_no_stored_file_is_where_a_folder_is_or_below_another_file(tmp_path: Path) -> None:
    """Whether these are on disk already or were chosen before."""
    (tmp_path / "p" / "folder").mkdir(parents=True)
    (tmp_path / "p" / "file").write_text("x")
    names = ["/d/folder", "/d/file/a", "/d/one", "/d/ONE/b", "/d/new/c", "/d/new", "/d/taken/d", "/d/file/e"]
    stored = ChildPaths("/d", "p", ["p/taken", "p/above/x"], raw=tmp_path)
    assert [stored.take(name) for name in [*names, "/d/above"]] == [
        *("p/folder_1", "p/file_1/a", "p/one", "p/ONE_1/b", "p/new/c", "p/new_1", "p/taken_1/d", "p/file_1/e"),
        "p/above_1",
    ]
    # Names alone may be those of a folder, or below a file.
    only = ChildPaths("/d", "p", ["p/taken"])
    assert [only.take(name) for name in names] == [f"p{name.removeprefix('/d')}" for name in names]


# --- walking and lengths ---------------------------------------------------------------------------------------------


@posix
def test_folders_are_walked_in_their_order_and_links_are_not_followed(tmp_path: Path) -> None:
    for name in ("a/x", "a/b/y", "c/z", "c/d/e/f"):
        (tmp_path / "top" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "top" / name).write_text(name, "utf-8")
    (tmp_path / "top" / "link").symlink_to(tmp_path / "top" / "a")
    (tmp_path / "top" / "dangling").symlink_to(tmp_path / "missing")
    found = {}
    for folder, folders, files in file_paths.walk(tmp_path / "top"):
        found[os.path.relpath(folder, tmp_path)] = (sorted(folders), sorted(files))
        folders[:] = sorted(name for name in folders if name != "d")
    assert found == {
        "top": (["a", "c", "link"], ["dangling"]),
        "top/a": (["b"], ["x"]),
        "top/a/b": ([], ["y"]),
        "top/c": (["d"], ["z"]),
    }
    assert list(found) == ["top", "top/a", "top/a/b", "top/c"]
    below = {path.relative_to(tmp_path / "top").as_posix() for path in file_paths.iterate_below(tmp_path / "top")}
    assert below == {"a", "a/x", "a/b", "a/b/y", "c", "c/z", "c/d", "c/d/e", "c/d/e/f", "link", "dangling"}
    assert list(file_paths.iterate_below(tmp_path / "missing")) == []
    errors: list[OSError] = []
    assert list(file_paths.walk(tmp_path / "missing", errors.append)) == []
    assert [(error.errno, error.filename) for error in errors] == [(errno.ENOENT, str(tmp_path / "missing"))]


def test_errors_of_walking_have_no_extended_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_paths, "MAX_PLAIN_LENGTH", 1)
    errors: list[OSError] = []
    assert list(file_paths.walk(tmp_path / "missing", errors.append)) == []
    assert [error.filename for error in errors] == [str(tmp_path / "missing")]


def test_errors_that_say_that_a_path_is_too_long() -> None:
    too_long, missing, other = (OSError(number, "") for number in (errno.ENAMETOOLONG, errno.ENOENT, errno.EACCES))
    windows = OSError(errno.EINVAL, "")
    windows.winerror = 206  # type: ignore[attr-defined]
    found = [file_paths.is_too_long_error(error) for error in (too_long, windows, missing, other)]
    assert found == [True, True, False, False]
    for length, is_one in ((259, False), (260, True)):
        path = PurePosixPath("/" + "x" * (length - 1))
        assert file_paths.is_too_long_write_error(missing, path) is is_one
        assert not file_paths.is_too_long_write_error(other, path)
        assert file_paths.is_too_long_write_error(too_long, path)


@posix
def test_a_path_that_the_system_does_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = "x" * 255
    (tmp_path / "folder").mkdir()
    for name, fits in ((longest, True), (longest + "x", False), (f"a/{longest}x/b", False), ("a/b", True)):
        assert file_paths.fits_system(tmp_path / "folder" / name, tmp_path / "folder") is fits
    (tmp_path / "folder" / "listed").write_text("x")
    real = os.lstat

    def lstat(path: str) -> os.stat_result:
        if "listed" in path:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        return real(path)

    assert not file_paths.is_hidden_by_length(tmp_path / "folder" / "listed")
    monkeypatch.setattr(os, "lstat", lstat)
    names = ("listed", "unlisted", "missing", "a\0b", "no/listed")
    hidden = [file_paths.is_hidden_by_length(tmp_path / "folder" / name) for name in names]
    assert hidden == [True, False, False, False, False]
