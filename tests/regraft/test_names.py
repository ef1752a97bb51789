"""Names that every platform takes, and which one is still free."""

from __future__ import annotations

import unicodedata
from pathlib import PureWindowsPath

import pytest
from harness import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.disk.file_paths import (
    FreeNames,
    is_storable,
    sanitize_material_name,
    sanitize_name,
    split_extension,
    vector_file_name,
)

QUICK = settings(max_examples=examples(200), deadline=None)

ILLEGAL = set('<>:"/\\|?*') | {chr(point) for point in range(0x20)}
DEVICES = {"con", "prn", "aux", "nul"} | {f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10)}
UPLOADS_WITH_ARTEFACT = (".pdf",)

SPELLINGS = [*sorted(DEVICES), "CON", "Nul", "cOm7", "LPT9"]
NAMES = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=30),
    st.text("aAéÉ.\u0301 _1:/\\*\0\t\ufeff\u00a0中\U0001f600", max_size=12),
    st.builds("{}{}".format, st.sampled_from(SPELLINGS), st.sampled_from(["", ".", " ", ".txt", "0", " .", "/"])),
)


def same_file(name: str) -> str:
    """What two names that count as one have in common."""
    return unicodedata.normalize("NFC", name).lower()


def is_legal(name: str) -> bool:
    return (
        bool(name)
        and not set(name) & ILLEGAL
        and name[-1] not in ". "
        and name.partition(".")[0].lower() not in DEVICES
    )


# --- sanitise ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("character", sorted(ILLEGAL))
def test_every_illegal_character_becomes_an_underscore(character: str) -> None:
    assert sanitize_name(f"a{character}b") == "a_b"


@pytest.mark.parametrize("character", [" ", "'", "%", ";", "~", "\x7f", "\x80", "中", "\U0001f600", "\u202e"])
def test_other_characters_stay(character: str) -> None:
    assert sanitize_name(f"a{character}b") == f"a{character}b"


@pytest.mark.parametrize("device", sorted(DEVICES))
@pytest.mark.parametrize("spell", [str.lower, str.upper, str.title])
def test_reserved_devices_lose_their_stem_and_keep_their_extension(device: str, spell) -> None:
    assert sanitize_name(spell(device)) == "_"
    assert sanitize_name(f"{spell(device)}.txt") == "_.txt"
    assert sanitize_name(f"{spell(device)}.tar.gz") == "_.tar.gz"


@pytest.mark.parametrize("name", ["CONS", "COM0", "COM10", "LPT", "AUXILIARY.md", "xCON", "a.con", "_CON.txt", "CON_"])
def test_what_only_resembles_a_device_stays(name: str) -> None:
    assert sanitize_name(name) == name


@pytest.mark.parametrize(
    ("name", "legal"),
    [
        ("", ""),
        (" ", "untitled"),
        ("...", "untitled"),
        (". . ", "untitled"),
        ("\ufeff", "untitled"),
        ("untitled", "untitled"),
        ("dot.", "dot"),
        ("trailing dots...", "trailing dots"),
        ("name .txt ", "name .txt"),
        ("nbsp\u00a0.txt\u00a0", "nbsp\u00a0.txt"),
        ("next line\x85", "next line\x85"),
        (" lead", " lead"),
        (".hidden", ".hidden"),
        ("../../etc/passwd", ".._.._etc_passwd"),
        ("a\tb\r\n", "a_b__"),
        ("\0", "_"),
        ("CON. ", "_"),
        ("con:", "con_"),
    ],
)
def test_sanitised_names(name: str, legal: str) -> None:
    assert sanitize_name(name) == legal


@QUICK
@given(NAMES)
def test_material_names_are_legal_by_windows_rules(name: str) -> None:
    legal = sanitize_material_name(name)
    assert is_legal(legal) if name else legal == ""
    assert PureWindowsPath(legal).name == legal
    assert legal not in (".", "..")
    assert sanitize_material_name(legal) == legal


@pytest.mark.parametrize(
    "name",
    [
        "a:b.md",
        "a?.md",
        "a.md.",
        "a.md ",
        "NUL",
        "com1.txt",
        "con .txt",
        "lpt².md",
        "..",
        "a\x1f",
        "字" * 256,
        'say "hi"',
    ],
)
def test_names_that_windows_does_not_store_as_they_are(name: str) -> None:
    assert not is_storable(name, windows=True)
    assert is_storable(name, windows=False)


@given(NAMES)
@QUICK
def test_windows_stores_every_name_that_is_given_out(name: str) -> None:
    assert is_storable(FreeNames().take(sanitize_material_name(name) or "x"), windows=True)


@pytest.mark.parametrize("name", ["笔记　", ".env", "a b.md", "console", "x.con", "com", "lpt0.txt"])
def test_names_that_windows_stores(name: str) -> None:
    assert is_storable(name, windows=True)


@pytest.mark.parametrize("name", [".cherry", ".CHERRY", ".Cherry"])
def test_the_folder_of_the_index_is_taken_from_the_start(name: str) -> None:
    assert sanitize_material_name(f"{name} .") == name
    assert taken_in_turn([name, name, ".cherry_x"]) == [f"{name}_1", f"{name}_2", ".cherry_x"]


def test_trimming_never_lays_bare_a_device() -> None:
    assert sanitize_material_name("CON ") == "_"
    assert sanitize_material_name("nul\u00a0. ") == "_"


# --- vector files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base_id", "name"),
    [
        ("Qm7vXk2LpT9s", "Qm7vXk2LpT9s"),
        ("kb:测试/\U0001f389?*", "kb_测试_\U0001f389__"),
        ("CON", "_"),
        ("ends.", "ends"),
        ("...", "untitled"),
        ("../up", ".._up"),
        (".cherry", ".cherry"),
        # v1 replaced the devices with digits, and no others: its files are found by its own rule.
        ("COM1", "_"),
        ("COM\u00b9", "COM\u00b9"),
        ("lpt\u00b3.x", "lpt\u00b3.x"),
        ("x" * 300, "x" * 255),
        ("中" * 256, "中" * 255),
        ("x" * 254 + "\U0001f600", "x" * 254),
        ("x" * 253 + "\U0001f600y", "x" * 253 + "\U0001f600"),
    ],
)
def test_vector_file_of_a_base(base_id: str, name: str) -> None:
    assert vector_file_name(base_id) == name


# --- extensions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "stem", "extension"),
    [
        ("a.txt", "a", ".txt"),
        ("a.tar.gz", "a.tar", ".gz"),
        ("README", "README", ""),
        (".env", ".env", ""),
        (".env.local", ".env", ".local"),
        ("..foo", ".", ".foo"),
        ("a.", "a", "."),
        ("a b.c d", "a b", ".c d"),
        ("报告.文档", "报告", ".文档"),
        ("", "", ""),
        (".", ".", ""),
    ],
)
def test_extensions_are_javascripts(name: str, stem: str, extension: str) -> None:
    assert split_extension(name) == (stem, extension)


# --- free names ----------------------------------------------------------------------------------------------------


def taken_in_turn(names: list[str], *, reserve_processed: bool = False) -> list[str]:
    free = FreeNames(reserve_processed=reserve_processed)
    return [free.take(name) for name in names]


@pytest.mark.parametrize(
    ("names", "given_out"),
    [
        (["a.txt"] * 3, ["a.txt", "a_1.txt", "a_2.txt"]),
        (["a.tar.gz"] * 2, ["a.tar.gz", "a.tar_1.gz"]),
        ([".env", ".env"], [".env", ".env_1"]),
        (["README", "README"], ["README", "README_1"]),
        (["..foo", "..foo"], ["..foo", "._1.foo"]),
        # Every request counts from its own stem.
        (["a.pdf", "a_1.pdf", "a.pdf", "a_1.pdf"], ["a.pdf", "a_1.pdf", "a_2.pdf", "a_1_1.pdf"]),
        (["a_1.txt", "a.txt", "a.txt"], ["a_1.txt", "a.txt", "a_2.txt"]),
        (["a.txt", "a.md"], ["a.txt", "a.md"]),
        # Case and normalisation make no new name; the request keeps its own spelling.
        (["Report.PDF", "report.pdf", "REPORT.pdf"], ["Report.PDF", "report_1.pdf", "REPORT_2.pdf"]),
        (["\u00e9.txt", "e\u0301.txt"], ["\u00e9.txt", "e\u0301_1.txt"]),
        (["STRASSE", "straße"], ["STRASSE", "straße"]),
        (["ΟΔΟΣ", "οδος", "οδοσ"], ["ΟΔΟΣ", "οδος_1", "οδοσ"]),
        (["İ", "i\u0307", "i"], ["İ", "i\u0307_1", "i"]),
        (["\u00c5", "\u212b", "a\u030a"], ["\u00c5", "\u212b_1", "a\u030a_2"]),
    ],
)
def test_names_are_given_out_once(names: list[str], given_out: list[str]) -> None:
    assert taken_in_turn(names) == given_out


@pytest.mark.parametrize("extension", UPLOADS_WITH_ARTEFACT)
@pytest.mark.parametrize("spell", [str.lower, str.upper])
def test_a_processed_upload_reserves_its_markdown(extension: str, spell) -> None:
    upload = f"paper{spell(extension)}"
    assert taken_in_turn([upload, "paper.md"], reserve_processed=True) == [upload, "paper_1.md"]
    assert taken_in_turn(["paper.md", upload], reserve_processed=True) == ["paper.md", f"paper_1{spell(extension)}"]
    assert taken_in_turn([upload, "paper.md"]) == [upload, "paper.md"]


def test_a_reserved_markdown_must_be_free_at_the_same_number() -> None:
    names = ["paper.pdf", "Paper.PDF", "paper_1.md", "paper.pdf", "PAPER.MD", "paper.txt"]
    assert taken_in_turn(names, reserve_processed=True) == [
        "paper.pdf",
        "Paper_1.PDF",
        "paper_1_1.md",
        "paper_2.pdf",
        "PAPER_3.MD",
        "paper.txt",
    ]


@pytest.mark.parametrize(
    "extension", [".png", ".md", ".txt", ".pdfx", ".html", ".csv", ".doc", ".docx", ".pptx", ".XLSX", ".xls", ""]
)
def test_other_uploads_reserve_nothing(extension: str) -> None:
    names = [f"paper{extension}", "paper.rtf", "paper.rst"]
    assert taken_in_turn(names, reserve_processed=True) == names
    other = "paper.md" if extension != ".md" else "paper.txt"
    assert taken_in_turn([f"paper{extension}", other], reserve_processed=True)[1] == other


def test_a_later_round_continues_where_the_first_ended() -> None:
    files = FreeNames(reserve_processed=True)
    assert [files.take("Page.pdf"), files.take("page.txt")] == ["Page.pdf", "page.txt"]
    snapshots = FreeNames(files.taken(), reserve_processed=True)
    assert [snapshots.take("page.md"), snapshots.take("page.txt")] == ["page_1.md", "page_1.txt"]
    # The first round is not touched by the second.
    assert files.take("page_1.md") == "page_1.md"


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("x" * 300, "x" * 255, "x" * 253 + "_1"),
        ("x" * 255 + ".txt", "x" * 251 + ".txt", "x" * 249 + "_1.txt"),
        ("x" * 251 + ".txt", "x" * 251 + ".txt", "x" * 249 + "_1.txt"),
        ("中" * 100 + ".md", "中" * 84 + ".md", "中" * 83 + "_1.md"),
        ("\U0001f600" * 80 + ".md", "\U0001f600" * 63 + ".md", "\U0001f600" * 62 + "_1.md"),
        # 100 bytes are an extension, 101 are part of the stem.
        ("x" * 200 + "." + "e" * 99, "x" * 155 + "." + "e" * 99, "x" * 153 + "_1." + "e" * 99),
        ("x" * 200 + "." + "e" * 100, "x" * 200 + "." + "e" * 54, "x" * 200 + "." + "e" * 52 + "_1"),
        ("a." + "é" * 50, "a." + "é" * 50, "a." + "é" * 50 + "_1"),
        # What a cut lays bare at the end goes too.
        ("x" * 254 + "." + "e" * 101, "x" * 254, "x" * 253 + "_1"),
    ],
)
def test_long_names_are_cut_in_their_stem(name: str, first: str, second: str) -> None:
    assert taken_in_turn([name, name]) == [first, second]


def test_a_cut_leaves_room_for_the_reserved_markdown() -> None:
    name = "x" * 300 + ".pdf"
    assert taken_in_turn([name], reserve_processed=True) == ["x" * 251 + ".pdf"]
    # An extension shorter than `.md` cannot push the reserved name over the limit either.
    free = FreeNames(reserve_processed=True)
    upload = free.take("中" * 90 + ".PDF")
    assert len(upload.encode()) <= 255
    assert free.take(upload.removesuffix(".PDF") + ".md") != upload.removesuffix(".PDF") + ".md"


def numbered(name: str, number: int, *, reserved: bool) -> str:
    """The reference: the candidate of that number, cut code point by code point."""
    stem, extension = split_extension(name)
    if len(extension.encode()) > 100:
        stem, extension = name, ""
    suffix = f"_{number}" if number else ""
    room = 255 - len(suffix) - max(len(extension.encode()), 3 if reserved else 0)
    cut = False
    while len(stem.encode()) > room:
        stem, cut = stem[:-1], True
    if cut and not suffix and not extension:
        stem = stem.rstrip(" .")
    return f"{stem}{suffix}{extension}"


REQUESTS = st.lists(
    st.one_of(
        st.builds(
            "{}{}{}".format,
            st.sampled_from(["a", "A", "\u00e9", "e\u0301", "É", "中" * 84, "x" * 252, "X" * 253, "\U0001f600" * 63]),
            st.sampled_from(["", "_1", "_2", "_1_1"]),
            st.sampled_from(["", ".md", ".MD", ".pdf", ".PDF", ".xls", ".txt", "." + "e" * 120]),
        ),
        NAMES.map(sanitize_material_name).filter(bool),
    ),
    max_size=12,
)


@QUICK
@given(REQUESTS, st.booleans())
def test_every_request_gets_its_lowest_free_number(names: list[str], reserve: bool) -> None:
    free = FreeNames(reserve_processed=reserve)
    taken = {".cherry"}
    for name in names:
        reserved = reserve and split_extension(name)[1].lower() in UPLOADS_WITH_ARTEFACT
        number = 0
        while True:
            candidate = numbered(name, number, reserved=reserved)
            wanted = {same_file(candidate)}
            if reserved:
                wanted.add(same_file(split_extension(candidate)[0] + ".md"))
            if not wanted & taken:
                break
            number += 1
        assert free.take(name) == candidate
        taken |= wanted


@QUICK
@given(REQUESTS, st.booleans())
def test_names_given_out_fit_every_platform(names: list[str], reserve: bool) -> None:
    given_out = taken_in_turn(names, reserve_processed=reserve)
    assert len({same_file(name) for name in given_out}) == len(names)
    for wanted, name in zip(names, given_out, strict=True):
        assert is_legal(name)
        assert len(name.encode()) <= 255
        extension = split_extension(wanted)[1]
        assert name.endswith(extension if len(extension.encode()) <= 100 else "")


def test_many_equal_requests_stay_fast_and_distinct() -> None:
    free = FreeNames()
    given_out = [free.take("same.txt") for _ in range(20_000)]
    assert given_out[-1] == "same_19999.txt"
    assert len(set(given_out)) == 20_000


def test_another_spelling_of_a_long_name_counts_for_itself() -> None:
    """Both are one name by fold, but a cut leaves more characters of the one that is shorter in bytes."""
    free = FreeNames()
    short, long = "\u00e9" * 90 + ".txt", "e\u0301" * 90 + ".txt"
    assert free.take(short) == short
    # Cut to 83 characters it is another name, and free as it is.
    assert free.take(long) == "e\u0301" * 83 + "e.txt"
    assert free.take(long) == "e\u0301" * 83 + "_1.txt"
    assert free.take(short) == "\u00e9" * 90 + "_1.txt"
