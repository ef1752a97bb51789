"""Damaged zip archives: members are read by their local headers with ``--salvage``, whole or not at all."""

from __future__ import annotations

import io
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import run, snapshot
from v1 import Row, Source, base, file, note, opened, pack, vector_of

from regraft.disk import writable as disk_writable
from regraft.disk import zip_salvage

MEMBERS = {
    "a.txt": b"a text" * 1000,
    "folder/b.bin": random.Random(7).randbytes(200_000),
    "empty": b"",
    "über/ü.md": "# Überschrift".encode(),
    "last.json": b'{"a": 1}' * 50,
}
METHODS = {
    "stored": zipfile.ZIP_STORED,
    "deflated": zipfile.ZIP_DEFLATED,
    "bzip2": zipfile.ZIP_BZIP2,
    "lzma": zipfile.ZIP_LZMA,
}


class _Stream(io.RawIOBase):
    """A file that cannot be sought in: sizes stand behind each member."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        self.data += bytes(memoryview(data))  # type: ignore[arg-type]
        return len(memoryview(data))  # type: ignore[arg-type]


def archive(
    members: dict[str, bytes] = MEMBERS, *, method: int = zipfile.ZIP_DEFLATED, streamed: bool = False
) -> bytes:
    target = _Stream() if streamed else io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as made:  # type: ignore[call-overload]
        for name, content in members.items():
            made.writestr(name, content)
    return bytes(target.data) if isinstance(target, _Stream) else target.getvalue()


def salvaged(folder: Path, data: bytes) -> tuple[dict[str, bytes], zip_salvage.ZipSalvage]:
    """Return the members that are whole, as Python's own reader gives them, and what was found."""
    path, new = folder / "damaged.zip", folder / "new.zip"
    path.write_bytes(data)
    with disk_writable.allow_writes(folder):
        found = zip_salvage.salvage_zip(path, new)
    assert path.read_bytes() == data
    with zipfile.ZipFile(new) as made:
        assert made.testzip() is None
        names = made.namelist()
        assert len(names) == len(set(names)) == found.whole
        return {name: made.read(name) for name in names}, found


def headers(data: bytes) -> list[zipfile.ZipInfo]:
    with zipfile.ZipFile(io.BytesIO(data)) as made:
        return made.infolist()


def directory_of(data: bytes) -> int:
    with zipfile.ZipFile(io.BytesIO(data)) as made:
        return made.start_dir


WHOLE: dict[str, Callable[[bytes], bytes]] = {
    "the end record is cut off": lambda data: data[:-22],
    "the directory is cut off": lambda data: data[: directory_of(data)],
    "half of the directory": lambda data: data[: (directory_of(data) + len(data)) // 2],
    "noise in front": lambda data: b"HTTP/1.1 200 OK\r\n\r\n" + data,
    "noise behind": lambda data: data + random.Random(3).randbytes(70_000),
    "the directory is overwritten": lambda data: data[: directory_of(data)] + bytes(len(data) - directory_of(data)),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("streamed", [False, True], ids=["sized", "streamed"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("damage", WHOLE)
def test_without_a_directory_every_member_is_found(tmp_path: Path, damage: str, method: str, streamed: bool) -> None:
    data = archive(method=METHODS[method], streamed=streamed)
    found, told = salvaged(tmp_path, WHOLE[damage](data))
    assert found == MEMBERS
    assert (told.whole, told.lost, told.missing) == (5, 0, {})


@pytest.mark.parametrize("streamed", [False, True], ids=["sized", "streamed"])
@pytest.mark.parametrize("method", METHODS)
def test_a_member_that_is_cut_is_named_and_never_read_in_part(tmp_path: Path, method: str, streamed: bool) -> None:
    data = archive(method=METHODS[method], streamed=streamed)
    places = headers(data)
    for end in range(places[1].header_offset + 100, places[2].header_offset, 60_000):
        (tmp_path / str(end)).mkdir()
        found, told = salvaged(tmp_path / str(end), data[:end])
        assert found == {"a.txt": MEMBERS["a.txt"]}
        assert told.missing == {"folder/b.bin": "it is truncated"}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("streamed", [False, True], ids=["sized", "streamed"])
def test_a_byte_that_changed_leaves_out_its_member_alone(tmp_path: Path, method: str, streamed: bool) -> None:
    data = bytearray(archive(method=METHODS[method], streamed=streamed)[:-22])
    place = headers(archive(method=METHODS[method], streamed=streamed))[1].header_offset + 100_000
    data[place] ^= 0x55
    found, told = salvaged(tmp_path, bytes(data))
    assert found == {name: content for name, content in MEMBERS.items() if name != "folder/b.bin"}
    assert (told.lost, [*told.missing]) == (1, ["folder/b.bin"])


def test_what_only_the_directory_names_is_missing(tmp_path: Path) -> None:
    data = bytearray(archive())
    place = headers(bytes(data))[1].header_offset
    data[place : place + 4] = b"xxxx"
    found, told = salvaged(tmp_path, bytes(data[:-22]))
    assert "folder/b.bin" not in found
    assert told.missing == {"folder/b.bin": "only the archive's directory lists it"}


@pytest.mark.parametrize("whole", [True, False])
def test_members_of_a_document_inside_are_no_members(tmp_path: Path, whole: bool) -> None:
    inner = archive({"data.json": b"forged", "word/document.xml": b"<x/>"}, method=zipfile.ZIP_STORED)
    data = bytearray(archive({"first": b"1", "doc.docx": inner, "data.json": b"true"}, method=zipfile.ZIP_STORED)[:-22])
    if not whole:
        data[data.find(b"<x/>")] ^= 1
    found, told = salvaged(tmp_path, bytes(data))
    assert found["data.json"] == b"true"
    assert "word/document.xml" not in found
    assert ("doc.docx" in found) is whole
    assert [*told.missing] == ([] if whole else ["doc.docx"])


def test_of_two_whole_members_of_one_name_the_first_is_taken_and_that_is_said(tmp_path: Path) -> None:
    one, other = (archive({"a": content})[:-22] for content in (b"one", b"other"))
    found, told = salvaged(tmp_path, one + other)
    assert found == {"a": b"one"}
    assert told.missing == {"a": "another intact member has its name"}


def test_encrypted_members_are_named(tmp_path: Path) -> None:
    data = bytearray(archive({"secret": b"x" * 100, "open": b"y"})[:-22])
    data[6] |= 1
    found, told = salvaged(tmp_path, bytes(data))
    assert found == {"open": b"y"}
    assert told.missing == {"secret": "it is encrypted"}


def test_a_bomb_is_not_unpacked_to_its_end(tmp_path: Path) -> None:
    data = archive({"bomb": bytes(64 << 20), "a": b"1"}, streamed=True)
    found, told = salvaged(tmp_path, data[:-22])
    assert found == {"a": b"1"}
    assert told.missing == {"bomb": "it unpacks to too many bytes (a zip bomb)"}


def test_forged_headers_cannot_make_it_read_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zip_salvage, "_LEAST_BUDGET", 1 << 20)
    # Each says that its member is all of the rest.
    rest = 4_000_000
    forged = b"".join(
        struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 0, 1, rest - at * 31, rest - at * 31, 1, 0) + b"x"
        for at in range(10_000)
    )
    with pytest.raises(zipfile.BadZipFile, match="look like members that are not intact"):
        salvaged(tmp_path, forged + bytes(rest))


def test_a_salvaged_archive_says_what_it_takes_to_read_it_and_can_be_salvaged_again(tmp_path: Path) -> None:
    """Its members have sizes of 64 bits, which readers know since version 4.5 of the format."""
    salvaged(tmp_path, archive()[:-22])
    made = (tmp_path / "new.zip").read_bytes()
    for member in headers(made):
        assert (member.create_version, member.extract_version, member.create_system) == (45, 45, 0)
        assert made[member.header_offset : member.header_offset + 6] == struct.pack("<4sH", b"PK\3\4", 45)
    (tmp_path / "again").mkdir()
    found, told = salvaged(tmp_path / "again", made[: directory_of(made)])
    assert found == MEMBERS
    assert (told.whole, told.lost, told.missing) == (5, 0, {})


def test_large_sizes_are_found_behind_other_extra_fields(tmp_path: Path) -> None:
    """A field of times comes first; a field with one size alone is not enough to find the end of the data."""
    times, sizes = struct.pack("<2H5x", 0x5455, 5), struct.pack("<2H2Q", 1, 16, 7, 7)
    members = [(b"a", times + sizes), (b"b", times + struct.pack("<2HQ", 1, 8, 7)), (b"c", sizes + times)]
    data = b"".join(
        struct.pack("<4s5H3L2H", b"PK\3\4", 45, 0, 0, 0, 0, zlib.crc32(b"content"), *[0xFFFFFFFF] * 2, 1, len(extra))
        + name
        + extra
        + b"content"
        for name, extra in members
    )
    found, told = salvaged(tmp_path, data)
    assert found == {"a": b"content", "c": b"content"}
    assert told.whole == 2


def test_noise_is_no_archive(tmp_path: Path) -> None:
    for number, data in enumerate((b"", b"PK\3\4", b"PK\3\4" * 1000, random.Random(1).randbytes(50_000))):
        (tmp_path / str(number)).mkdir()
        with pytest.raises(zipfile.BadZipFile):
            salvaged(tmp_path / str(number), data)


def test_any_damage_gives_members_as_they_were_or_none(tmp_path: Path) -> None:
    rng = random.Random(11)
    for number in range(60):
        (tmp_path / str(number)).mkdir()
        data = bytearray(archive(method=rng.choice([*METHODS.values()]), streamed=rng.random() < 0.5))
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        data = data[: rng.randrange(len(data) // 2, len(data))]
        try:
            found, _ = salvaged(tmp_path / str(number), bytes(data))
        except zipfile.BadZipFile:
            continue
        for name, content in found.items():
            # A name has no checksum.
            assert content in MEMBERS.values() or zlib.crc32(content) in map(zlib.crc32, MEMBERS.values()), name


# --- the commands ----------------------------------------------------------------------------------------------------


def backup(folder: Path) -> bytes:
    source = Source(
        bases=[base("kb", note("n", "L1"), file("f", "F1")), base("other", note("o", "L1"))],
        stores={"kb": [Row("L1", "one"), Row("F1", "two")], "other": [Row("L1", "three")]},
        uploads={"up-f.pdf": b"a pdf" * 100},
    ).write(folder / "v1")
    return pack(source, folder / "whole.zip").read_bytes()


@pytest.mark.parametrize("damage", WHOLE)
def test_a_damaged_backup_is_offered_for_salvage_and_migrated_with_it(tmp_path: Path, damage: str) -> None:
    path, library = tmp_path / "damaged.zip", tmp_path / "library"
    path.write_bytes(WHOLE[damage](backup(tmp_path)))
    before = snapshot(tmp_path)
    for command in (("inspect", path), ("check", path), ("migrate", path, "--to", library)):
        refused = run(*command, "--json")
        assert (refused.status, refused.document["error"]["code"]) == (2, "SourceUnreadable")
        message = refused.document["error"]["message"]
        assert "damaged or incomplete zip archive" in message
        assert f"regraft migrate {path} --to LIBRARY --salvage" in message
    assert snapshot(tmp_path) == before
    done = run("migrate", path, "--to", library, "--salvage", "--yes", "--json")
    assert (done.status, {one["legacy_id"]: one["rows"]["carried"] for one in done.document["bases"]}) == (
        1,
        {"kb": 2, "other": 1},
    )
    (warning,) = [one for one in done.document["warnings"] if one["code"] == "archive_salvaged"]
    assert "members recovered by their own headers" in warning["message"]
    assert done.document["source"]["path"] == str(path)
    vectors = set()
    for index in library.glob("KnowledgeBase/*/.cherry/index.sqlite"):
        with opened(index) as db:
            vectors |= {bytes(blob) for (blob,) in db.execute("SELECT vector_blob FROM embedding")}
    assert vectors == {vector_of(text) for text in ("one", "two", "three")}
    (upload,) = library.glob("KnowledgeBase/*/raw/report.pdf")
    assert upload.read_bytes() == b"a pdf" * 100
    assert {one.name for one in tmp_path.iterdir()} == {"v1", "whole.zip", "damaged.zip", "library"}


def test_a_backup_that_is_cut_names_what_is_missing(tmp_path: Path) -> None:
    data = backup(tmp_path)
    lost = next(one for one in headers(data) if one.filename == "Data/KnowledgeBase/other")
    path = tmp_path / "damaged.zip"
    path.write_bytes(data[: lost.header_offset + 200])
    done = run("migrate", path, "--to", tmp_path / "library", "--salvage", "--yes", "--json")
    bases = {one["legacy_id"]: (one["status"], one["rows"]["carried"]) for one in done.document["bases"]}
    assert bases == {"kb": ("completed", 2), "other": ("failed", 0)}
    (warning,) = [one for one in done.document["warnings"] if one["code"] == "archive_salvaged"]
    assert "left out: Data/KnowledgeBase/other (it is truncated)" in warning["message"]
    text = run("migrate", path, "--to", tmp_path / "again", "--salvage", "--yes")
    assert "Data/KnowledgeBase/other (it is truncated)" in text.stderr


def test_names_that_lead_out_are_refused_in_a_damaged_archive_too(tmp_path: Path) -> None:
    path = tmp_path / "damaged.zip"
    path.write_bytes(archive({"../outside": b"x", "data.json": b"{}"})[:-22])
    done = run("migrate", path, "--to", tmp_path / "library", "--salvage", "--yes", "--json")
    assert (done.status, done.document["error"]["code"]) == (2, "ArchiveUnsafe")
    assert [one.name for one in tmp_path.iterdir()] == ["damaged.zip"]


def test_without_a_whole_member_nothing_is_read(tmp_path: Path) -> None:
    path = tmp_path / "damaged.zip"
    path.write_bytes(archive({"a": random.Random(1).randbytes(5000)})[:1000])
    done = run("migrate", path, "--to", tmp_path / "library", "--salvage", "--yes", "--json")
    assert (done.status, done.document["error"]["code"]) == (2, "SourceUnreadable")
    assert "none of its members is intact" in done.document["error"]["message"]


def test_a_healthy_archive_is_read_by_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "whole.zip"
    backup(tmp_path)
    done = run("migrate", path, "--to", tmp_path / "library", "--salvage", "--yes", "--json")
    assert done.status == 0
    assert "archive_salvaged" not in {one["code"] for one in done.document["warnings"]}
