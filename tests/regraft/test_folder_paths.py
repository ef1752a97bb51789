"""The prefix of a migrated folder and the paths of its files: readable, safe, and free by fold."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
