"""Real paths of a folder's files, told from what v1's loader ids hash, and readable names where the folder is gone."""

from __future__ import annotations

import json
import os
import shutil
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest
from harness import REPO
from hypothesis import given
from hypothesis import strategies as st
from v1 import Row, base, carried, folder, opened

from migrators.cherry_v1 import file_matching
from migrators.cherry_v1.draft import draft_library
from migrators.cherry_v1.file_matching import (
    ENCODINGS,
    WIDE_ENCODINGS,
    WantedLoaders,
    clean_text,
    find_file_paths,
    normalize_json,
)
from regraft.disk import links
from regraft.formats.cherry_v1.state import V1State
from regraft.formats.cherry_v2.models import ModelOverrides
from regraft.formats.vector_survey import LoaderRows, RowTally, VectorSurvey

SAMPLE = REPO / "sample_v1"
CHINESE = "新华社北京电：这是一段中文文本，用来测试编码的。后面还有很多很多很多很多很多很多很多很多话。\r\n"
TRADITIONAL = "這是一段繁體中文，用來測試編碼「標點」。後面還有很多很多很多很多很多很多很多很多很多話。\n"
JAPANESE = "これは日本語のテストです。～カタカナ、漢字。" * 3
RUSSIAN = "Съешь же ещё этих мягких французских булок, да выпей чаю. " * 2
WESTERN = "Größe, café, naïve, señor: a text of more than fifty units, façade included.\n"


#: Where the reader has another view of some signs than Python; that has a test of its own.
MENDED = ("euc_jisx0213", "big5hkscs")


def digest(text: str | bytes) -> str:
    return md5(text.encode() if isinstance(text, str) else text).hexdigest()


def snippet(text: str) -> str:
    """Return what v1 keeps of a text: at most 50 units of UTF-16, a half of an emoji as U+FFFD."""
    units = text.encode("utf-16-le")
    if len(units) <= 100:
        return text
    return units[:48].decode("utf-16-le", "replace") + "..." + units[-46:].decode("utf-16-le", "replace")


def look_for(place: Path | str, sources: dict[str, str | None]) -> dict[str, Path]:
    """Look for the files of one completed folder; an entry without a source has no rows."""
    state = V1State(
        bases=[base("kb", folder("d", *sources, path=str(place)))],
        providers=None,
        files={},
        notes={},
        pending_delete=frozenset(),
        notices=(),
    )
    [draft] = draft_library(state, ModelOverrides()).bases
    found = {
        loader: LoaderRows(rows=1, source=source, kinds={16: RowTally(1, 1)})
        for loader, source in sources.items()
        if source is not None
    }
    return find_file_paths(draft, VectorSurvey(rows=len(found), loaders={**found}, lengths={16: len(found)}))


# --- encodings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("utf-8", CHINESE),
        ("utf-8-sig", CHINESE),
        ("utf-16", CHINESE),
        ("utf-16-le", CHINESE),
        ("utf-16-be", WESTERN),
        ("utf-32", RUSSIAN),
        ("gb18030", CHINESE),
        ("gbk", CHINESE),
        ("big5", TRADITIONAL),
        ("cp932", JAPANESE),
        ("cp949", "이것은 한국어 시험입니다. " * 5),
        ("cp1250", "Příliš žluťoučký kůň úpěl ďábelské ódy, a ještě něco."),
        ("cp1251", RUSSIAN),
        ("koi8-r", RUSSIAN),
        ("iso8859-5", RUSSIAN),
        ("cp866", RUSSIAN),
        ("cp1252", WESTERN + "“quoted” – €"),
        ("latin-1", WESTERN + "\x80\x9f"),
        ("iso8859-15", WESTERN + "€"),
        ("mac_roman", WESTERN),
        ("cp1253", "Καλημέρα κόσμε, τι κάνεις σήμερα; Όλα καλά εδώ πέρα, ναι."),
        ("cp874", "สวัสดีชาวโลก วันนี้อากาศดีมาก เราไปเที่ยวกันเถอะ เพื่อนๆ ทุกคน"),
    ],
)
def test_a_file_is_found_whatever_its_encoding(tmp_path: Path, encoding: str, text: str) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(text.encode(encoding))
    (tmp_path / "another.txt").write_bytes(text[::-1].encode(encoding))
    loader = f"TextLoader_{digest(text)}"
    assert look_for(tmp_path, {loader: snippet(text)}) == {loader: path}


def test_a_byte_order_mark_counts_or_not(tmp_path: Path) -> None:
    """Some builds read it as a character of the text, others drop it."""
    (tmp_path / "a.txt").write_bytes("\ufeff".encode() + CHINESE.encode())
    for text in (CHINESE, "\ufeff" + CHINESE):
        loader = f"TextLoader_{digest(text)}"
        assert look_for(tmp_path, {loader: snippet(text)}) == {loader: tmp_path / "a.txt"}


def test_bytes_that_cannot_be_read_count_as_u_fffd(tmp_path: Path) -> None:
    raw = b"Plain at the start, for more than twenty-three units, then " + b"\xff\xfe\xc3(" + b" and on and on"
    (tmp_path / "a.txt").write_bytes(raw)
    text = raw.decode("utf-8", "replace")
    loader = f"TextLoader_{digest(text)}"
    assert look_for(tmp_path, {loader: snippet(text)}) == {loader: tmp_path / "a.txt"}


def test_the_wave_dash_of_japanese_files_is_the_one_that_browsers_read(tmp_path: Path) -> None:
    text = "営業時間は１０：００～１８：００です。" * 4
    (tmp_path / "a.txt").write_bytes(text.replace("～", "\u301c").encode("euc_jp"))
    loader = f"TextLoader_{digest(text)}"
    assert look_for(tmp_path, {loader: snippet(text)}) == {loader: tmp_path / "a.txt"}


@given(
    encoding=st.sampled_from([one for one in ENCODINGS + WIDE_ENCODINGS if one not in MENDED]),
    text=st.one_of(st.text(max_size=120), st.sampled_from([CHINESE, TRADITIONAL, RUSSIAN, WESTERN, "🎉" * 40])),
    start=st.text(max_size=30),
)
def test_a_snippet_never_hides_a_file_that_matches(encoding: str, text: str, start: str) -> None:
    """The snippet only saves work: whatever a file can be read as is found."""
    raw = (start + text).encode(encoding, "replace")
    read = raw.decode(encoding, "replace")
    loader = f"TextLoader_{digest(read)}"
    assert loader in set(WantedLoaders({loader: snippet(read)}).match(raw, ".txt"))


# --- HTML and JSON -------------------------------------------------------------------------------------------------


def test_every_file_of_the_samples_folder_is_told_by_its_loader_id(tmp_path: Path) -> None:
    """The ids and snippets are those that v1's own software wrote."""
    place = tmp_path / "Boat workshop"
    shutil.copytree(SAMPLE / "content" / "workshop", place)
    with opened(SAMPLE / "backup" / "Data" / "KnowledgeBase" / "E5CiaimJp06icDac5j8qM") as db:
        rows = dict(db.execute("SELECT uniqueLoaderId, source FROM vectors").fetchall())
    wanted = {loader: source for loader, source in rows.items() if loader.startswith(("Text", "Web", "Json"))}
    found = look_for(place, wanted)
    assert {path.name for path in found.values()} == {
        "safety.txt",
        "poster.html",
        "inventory-2023.json",
        "inventory-2024.json",
    }
    assert found.keys() == wanted.keys()
    # Two lists with one snippet are told apart.
    assert rows["JsonLoader_88758f277fe8df80f710a795a00cc88b"] == rows["JsonLoader_fb9a8c1c3496c96eb93b5740d5b6bf8b"]
    assert found["JsonLoader_88758f277fe8df80f710a795a00cc88b"].name == "inventory-2023.json"


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (' { "b" : 1 , "a" : [ ] } ', '{"b":1,"a":[]}'),
        ('{"10":1,"b":2,"2":3,"01":4}', '{"2":3,"10":1,"b":2,"01":4}'),
        ('{"a":1,"b":2,"a":3}', '{"a":3,"b":2}'),
        ("[1.0, -0, 1e5, 1E+2, 0.000001, 1e-7, 1.5e-9]", "[1,0,100000,100,0.000001,1e-7,1.5e-9]"),
        ("[12345678901234567890, 1e20, 1e21, 1e400]", "[12345678901234567000,100000000000000000000,1e+21,null]"),
        ('["\\u00e9\\u2028\\/\\u0001\\t\\ud83d"]', '["é\u2028/\\u0001\\t\\ud83d"]'),
        ("true", "true"),
        ("[1,]", None),
        ("NaN", None),
        ('"line\nbreak"', None),
        ("", None),
        ("[" * 100_000, None),
    ],
)
def test_json_is_written_as_javascript_writes_it(text: str, form: str | None) -> None:
    assert normalize_json(text) == form


JSON_VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.text(st.characters(codec="utf-8"), max_size=5)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=8,
)


@given(value=JSON_VALUES, indent=st.sampled_from([None, 2]))
def test_json_keeps_its_values_and_has_no_spaces(value: Any, indent: int | None) -> None:
    form = normalize_json(json.dumps(value, indent=indent))
    assert form == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def test_cleaning_is_that_of_the_format_page() -> None:
    assert clean_text(" \\a#b. .c  d\n\ne\nf\u00a0\u3000g\u0085 ") == "a b.c d e f g\u0085"
    assert clean_text("#one\\n. .two \t three\nfour ") == "onen.two three four"


def test_a_json_file_that_was_read_as_text_is_found_as_text(tmp_path: Path) -> None:
    text = '[{"thing": "oakum", "count": 9}, "and more of it, so that it is long enough"'
    (tmp_path / "broken.json").write_text(text, "utf-8")
    loader = f"TextLoader_{digest(text)}"
    assert look_for(tmp_path, {loader: snippet(text)}) == {loader: tmp_path / "broken.json"}


# --- paths ---------------------------------------------------------------------------------------------------------


def test_files_without_rows_are_found_by_their_path(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    paths = {name: tmp_path / "sub" / f"file.{name}" for name in ("md", "odt", "ods", "odp", "epub", "png")}
    for path in paths.values():
        path.touch()
    loaders = {
        f"LocalPathLoader_{digest(str(paths['md']))}": paths["md"],
        f"OdtLoader_{digest(str(paths['odt']))}": paths["odt"],
        f"OdsLoader_{digest(str(paths['ods']))}": paths["ods"],
        f"OdpLoader_{digest(str(paths['odp']))}": paths["odp"],
        str(paths["epub"]): paths["epub"],
        f"ImageLoader_{paths['png']}": paths["png"],
    }
    assert look_for(tmp_path, dict.fromkeys([*loaders, "LocalPathLoader_gone"])) == loaders
    kept = {loader: str(path) for loader, path in loaders.items()}
    assert look_for(tmp_path, {**kept}) == {}, "their rows have the path"


@pytest.mark.parametrize(
    "place",
    [
        "C:\\Users\\mei\\Documents",
        "\\\\server\\share\\docs",
        "/Users/mei/Documents/no such folder",
        "relative/folder",
        "docs",
        "~/docs",
        "/home/\0/docs",
        "/home/\ud83d/docs",
    ],
)
def test_a_folder_of_another_machine_has_no_files(place: str) -> None:
    wanted: dict[str, str | None] = {f"TextLoader_{digest('x')}": "x", "LocalPathLoader_lost": None}
    assert look_for(place, wanted) == {}


def test_odd_things_in_a_folder_are_passed_over(tmp_path: Path) -> None:
    text = "A text that stands in several places, and is found in one."
    (tmp_path / "outside.txt").write_text(text, "utf-8")
    place = tmp_path / "docs"
    place.mkdir()
    (place / "link.txt").symlink_to(tmp_path / "outside.txt")
    (place / "folder link").symlink_to(tmp_path, target_is_directory=True)
    (place / "empty.txt").touch()
    if hasattr(os, "mkfifo"):
        os.mkfifo(place / "pipe.txt")
    loader = f"TextLoader_{digest(text)}"
    assert look_for(place, {loader: snippet(text)}) == {}
    (place / "z.txt").write_text(text, "utf-8")
    assert look_for(place, {loader: snippet(text)}) == {loader: place / "z.txt"}


def test_a_file_that_cannot_be_opened_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_bytes(WESTERN.encode())
    real = links.open_descriptor

    def refusing(path: Path) -> int:
        if path.name == "a.txt":
            raise PermissionError(13, "no")
        return real(path)

    monkeypatch.setattr(links, "open_descriptor", refusing)
    loader = f"TextLoader_{digest(WESTERN)}"
    assert look_for(tmp_path, {loader: snippet(WESTERN)}) == {loader: tmp_path / "b.txt"}


@pytest.mark.parametrize(
    ("bound", "value", "found"),
    [("MAX_FILES", 2, "ab"), ("MAX_BYTES", 1, "a"), ("MAX_FILE_BYTES", 60, "ac"), ("MAX_FILES", 3, "abc")],
)
def test_the_look_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: int, found: str
) -> None:
    """Three files in a row; the second is the largest."""
    texts = {name: f"The text of {name}. ".ljust(90 if name == "b" else 55, name) for name in "abc"}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text, "utf-8")
    loaders = {f"TextLoader_{digest(text)}": snippet(text) for text in texts.values()}
    monkeypatch.setattr(file_matching, bound, value)
    assert {path.stem for path in look_for(tmp_path, {**loaders}).values()} == set(found)


@pytest.mark.parametrize("kind", ["Json", "Web", "Text"])
def test_only_files_that_can_be_what_is_looked_for_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    names = ("a.jpg", "b.HTM", "c.json", "d.txt", "e.pdf", "f")
    for name in names:
        (tmp_path / name).write_text(f"text of {name}", "utf-8")
    read: list[str] = []
    real = links.open_descriptor

    def watching(path: Path) -> int:
        read.append(path.name)
        return real(path)

    monkeypatch.setattr(links, "open_descriptor", watching)
    assert look_for(tmp_path, {f"{kind}Loader_{digest('none')}": "none"}) == {}
    assert read == {"Json": ["c.json"], "Web": ["b.HTM"], "Text": ["b.HTM", "c.json", "d.txt", "f"]}[kind]


def test_bytes_count_that_were_read_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that begin in another way than what is looked for are told apart after they were read."""
    for name in "abcd":
        (tmp_path / f"{name}.json").write_text("[" + name * 99, "utf-8")
    (tmp_path / "z.json").write_text("[1]")
    wanted: dict[str, str | None] = {f"JsonLoader_{digest('[1]')}": "[1]"}
    monkeypatch.setattr(file_matching, "MAX_BYTES", 350)
    assert look_for(tmp_path, wanted) == {}
    monkeypatch.setattr(file_matching, "MAX_BYTES", 401)
    assert look_for(tmp_path, wanted).keys() == wanted.keys()


def test_one_json_file_in_an_odd_encoding_does_not_end_the_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried in the likeliest encodings, as far as a bound of its own allows."""
    odd, plain = json.dumps(["naïve"] * 500, ensure_ascii=False), '["found"]'
    (tmp_path / "a.json").write_bytes(odd.encode("latin-1"))
    (tmp_path / "z.json").write_text(plain, "utf-8")
    size = 20 * len(odd)
    monkeypatch.setattr(file_matching, "MAX_JSON_WORK", 3 * size)
    monkeypatch.setattr(file_matching, "MAX_WORK", 5 * size)
    tried: list[str] = []
    real = file_matching.normalize_json

    def watching(text: str) -> str | None:
        tried.append(text)
        return real(text)

    monkeypatch.setattr(file_matching, "normalize_json", watching)
    loader = f"JsonLoader_{digest(plain)}"
    assert look_for(tmp_path, {loader: plain}) == {loader: tmp_path / "z.json"}
    assert 1 <= len(tried) - 1 <= 3
    monkeypatch.setattr(file_matching, "MAX_WORK", size)
    assert look_for(tmp_path, {loader: plain}) == {}


# --- names ---------------------------------------------------------------------------------------------------------


def test_what_children_are_called(tmp_path: Path) -> None:
    place = tmp_path / "docs"
    place.mkdir()
    (place / "here.txt").write_bytes(CHINESE.encode("gb18030"))
    (place / "list.json").write_text('[ {"thing": "oakum", "count": 9.0} ]')
    form = '[{"thing":"oakum","count":9}]'
    sources = {
        f"TextLoader_{digest(CHINESE)}": snippet(CHINESE),
        f"JsonLoader_{digest(form)}": form,
        "WebLoader_gone": "<!doctype html>\n<html la.... ⚓</p>\n</body></html>\n",
        "LocalPathLoader_path": "/home/mei/docs/odd \n name.pdf",
    }
    rows = [Row(loader, f"text of {loader}", source=source) for loader, source in sources.items()]
    library = carried(tmp_path, base("kb", folder("d", *sources, path=str(place))), stores={"kb": rows})
    assert [tuple(child["data"].values()) for child in library.children("d")] == [
        (str(place / "here.txt"), "docs/here.txt"),
        (str(place / "list.json"), "docs/list.json"),
        (sources["WebLoader_gone"], "docs/html__"),
        ("/home/mei/docs/odd \n name.pdf", "docs/odd _ name.pdf"),
    ]
