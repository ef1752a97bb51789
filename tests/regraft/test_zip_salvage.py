"""Damaged zip archives: members are read by their local headers with ``--salvage``, whole or not at all.

Of a SQLite file in which the archive ends, the bytes before that are read.
"""

from __future__ import annotations

import io
import os
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
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
    """Return the members of the new archive, as Python's own reader gives them, and what was found."""
    path, new = folder / "damaged.zip", folder / "new.zip"
    path.write_bytes(data)
    with disk_writable.allow_writes(folder):
        found = zip_salvage.salvage_zip(path, new)
    assert path.read_bytes() == data
    with zipfile.ZipFile(new) as made:
        assert made.testzip() is None
        names = made.namelist()
        assert len(names) == len(set(names)) == found.whole + (found.partial is not None)
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


# --- SQLite files in which an archive ends ---------------------------------------------------------------------------

#: What is salvaged is decided by these bytes alone.
DATABASE = b"SQLite format 3\0" + random.Random(4).randbytes(200_000)


@pytest.mark.parametrize("streamed", [False, True], ids=["sized", "streamed"])
@pytest.mark.parametrize("method", ["stored", "deflated", "lzma"])
def test_the_beginning_of_a_sqlite_file_is_read_up_to_the_end_of_the_archive(
    tmp_path: Path, method: str, streamed: bool
) -> None:
    data = archive({"a": b"1", "folder/b": DATABASE, "c": b"2"}, method=METHODS[method], streamed=streamed)
    places = headers(data)
    for number, end in enumerate((places[1].header_offset + 150_000, places[2].header_offset - 30)):
        (tmp_path / str(number)).mkdir()
        found, told = salvaged(tmp_path / str(number), data[:end])
        assert [*found] == ["a", "folder/b"]
        read = found["folder/b"]
        assert DATABASE.startswith(read)
        # Random bytes cannot be packed: nearly all that is there is read.
        least = end - places[1].header_offset - 5000
        assert least <= len(read) <= len(DATABASE)
        assert told.partial == ("folder/b", len(read))
        assert (told.whole, told.lost, told.missing) == (1, 0, {})


def test_bzip2_gives_nothing_of_a_block_that_is_cut(tmp_path: Path) -> None:
    """A block has up to 900,000 bytes."""
    found, told = salvaged(tmp_path, archive({"a": b"1", "b": DATABASE}, method=zipfile.ZIP_BZIP2)[:150_000])
    assert (found, told.partial, told.missing) == ({"a": b"1"}, None, {"b": "it is truncated"})


def test_an_archive_may_have_nothing_but_the_beginning_of_a_sqlite_file(tmp_path: Path) -> None:
    found, told = salvaged(tmp_path, member(b"a", DATABASE[:5000], DATABASE, packed=len(DATABASE)))
    assert found == {"a": DATABASE[:5000]}
    assert (told.whole, told.lost, told.partial) == (0, 0, ("a", 5000))


@pytest.mark.parametrize(
    ("what", "tail"),
    {
        "another file": b"SQLite format 2\0" + DATABASE[16:5000],
        "too short to tell": DATABASE[:15],
        "nothing": b"",
    }.items(),
)
def test_no_other_file_is_read_in_part(tmp_path: Path, what: str, tail: bytes) -> None:
    found, told = salvaged(tmp_path, GOOD + member(b"a", tail, DATABASE, packed=200_016, size=200_016))
    assert found == {"good": b"content"}, what
    assert (told.partial, told.missing) == (None, {"a": "it is truncated"})


def test_a_sqlite_file_that_is_damaged_and_not_cut_is_not_read_in_part(tmp_path: Path) -> None:
    """Its bytes before the damage cannot be told from the others."""
    for number, method in enumerate(METHODS.values()):
        raw = bytearray(archive({"a": DATABASE, "b": b"2"}, method=method)[:-22])
        raw[100_000] ^= 0x55
        (tmp_path / str(number)).mkdir()
        found, told = salvaged(tmp_path / str(number), bytes(raw))
        assert (found, told.partial, [*told.missing]) == ({"b": b"2"}, None, ["a"])


def test_data_that_cannot_be_unpacked_up_to_the_end_is_not_read_in_part(tmp_path: Path) -> None:
    packed = deflated(DATABASE)
    # The first block of the damaged part says that it is of a type that does not exist.
    raw = member(b"a", packed[:100], DATABASE, method=8, packed=len(packed), size=len(DATABASE))
    assert salvaged(tmp_path, GOOD + raw)[1].partial is not None
    flushed = zlib.compressobj(9, zlib.DEFLATED, -15)
    broken = flushed.compress(DATABASE[:9000]) + flushed.flush(zlib.Z_FULL_FLUSH) + b"\xff" * 500
    (tmp_path / "broken").mkdir()
    raw = member(b"a", broken, DATABASE, method=8, packed=len(packed), size=len(DATABASE))
    found, told = salvaged(tmp_path / "broken", GOOD + raw)
    assert (found, told.partial, told.missing) == ({"good": b"content"}, None, {"a": "it is truncated"})


def test_more_content_than_the_header_states_is_not_read_in_part(tmp_path: Path) -> None:
    raw = member(b"a", DATABASE[:5000], DATABASE, packed=len(DATABASE), size=4999)
    found, told = salvaged(tmp_path, GOOD + raw)
    assert (found, told.partial, told.missing) == ({"good": b"content"}, None, {"a": "it is truncated"})


def test_a_bomb_is_not_read_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zip_salvage, "BOMB_BYTES", 5000)
    packed = deflated(b"SQLite format 3\0" + bytes(9_000_000))
    raw = member(b"a", packed[:-50], b"", method=8, packed=len(packed), size=9_000_016)
    for ratio, is_read in ((500, False), (2000, True)):
        monkeypatch.setattr(zip_salvage, "BOMB_RATIO", ratio)
        (tmp_path / str(ratio)).mkdir()
        assert ("a" in salvaged(tmp_path / str(ratio), GOOD + raw)[0]) is is_read


def test_a_member_after_which_an_intact_one_follows_was_not_cut(tmp_path: Path) -> None:
    """Its header lies: the bytes after it are those of other members."""
    raw = member(b"a", DATABASE[:5000], DATABASE, packed=len(DATABASE), size=len(DATABASE))
    found, told = salvaged(tmp_path, raw + GOOD)
    assert (found, told.partial, told.missing) == ({"good": b"content"}, None, {"a": "it is truncated"})


def test_the_intact_member_of_the_same_name_counts(tmp_path: Path) -> None:
    raw = member(b"a", DATABASE[:5000], DATABASE, packed=len(DATABASE), size=len(DATABASE))
    found, told = salvaged(tmp_path, member(b"a", DATABASE) + raw)
    assert (found, told.partial, [*told.missing]) == ({"a": DATABASE}, None, ["a"])


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
    with pytest.raises(zipfile.BadZipFile, match="look like members but are damaged"):
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


@pytest.mark.thorough
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


# --- headers by hand -------------------------------------------------------------------------------------------------


def member(
    name: bytes,
    data: bytes,
    content: bytes | None = None,
    *,
    method: int = 0,
    version: int = 20,
    flags: int = 0,
    crc: int | None = None,
    packed: int | None = None,
    size: int | None = None,
    extra: bytes = b"",
) -> bytes:
    """Return a local header and data, with the CRC-32 and size of ``content`` (default: the data) unless given."""
    content = data if content is None else content
    stated = (
        zlib.crc32(content) if crc is None else crc,
        len(data) if packed is None else packed,
        len(content) if size is None else size,
    )
    return (
        struct.pack("<4s5H3L2H", b"PK\3\4", version, flags, method, 0x6000, 0x5CCF, *stated, len(name), len(extra))
        + name
        + extra
        + data
    )


def listed(name: bytes, *, extra: bytes = b"", comment: bytes = b"") -> bytes:
    """Return an entry of the directory for a file whose sizes nobody looks at."""
    sizes = 0, 0, 0, len(name), len(extra), len(comment), 0, 0, 0, 0
    return struct.pack("<4sBB5H3L5H2L", b"PK\1\2", 20, 3, 20, 0, 0, 0, 0, *sizes) + name + extra + comment


def deflated(content: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(content) + packer.flush()


GOOD = member(b"good", b"content")


def test_a_salvaged_archive_is_written_as_the_format_says(tmp_path: Path) -> None:
    names = {b"one": b"content", "zwölf".encode(): b"", b"far": b"x" * 1000}
    salvaged(tmp_path, b"noise" + b"".join(member(name, content, flags=0x800) for name, content in names.items()))
    expected, directory = b"", b""
    for name, content in names.items():
        start, crc, length = len(expected), zlib.crc32(content), len(content)
        common = 0x800, 0, 0x6000, 0x5CCF, crc, 0xFFFFFFFF, 0xFFFFFFFF, len(name)
        expected += struct.pack("<4s5H3L2H", b"PK\3\4", 45, *common, 20) + name
        expected += struct.pack("<2H2Q", 1, 16, length, length) + content
        directory += struct.pack("<4s6H3L5H2L", b"PK\1\2", 45, 45, *common, 28, 0, 0, 0, 0, 0xFFFFFFFF) + name
        directory += struct.pack("<2H3Q", 1, 24, length, length, start)
    start, length = len(expected), len(directory)
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 3, 3, length, start)
    end += struct.pack("<4sLQL", b"PK\6\7", 0, start + length, 1)
    end += struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    assert (tmp_path / "new.zip").read_bytes() == expected + directory + end


@pytest.mark.parametrize("at_once", [5, 1 << 20])
@pytest.mark.parametrize("leading", [0, 1, 1020, 1021, 1022, 1023, 1024, 1025])
def test_a_member_is_found_wherever_it_begins(
    tmp_path: Path, leading: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its signature is at the end of one piece that is read and the beginning of the next."""
    monkeypatch.setattr(zip_salvage, "_AT_ONCE", at_once)
    content = b"some of it repeats, some of it repeats" * 9
    data = bytes(leading) + member(b"a", deflated(content), content, method=8) + member(b"b", content)
    found, told = salvaged(tmp_path, data)
    assert found == {"a": content, "b": content}
    assert (told.lost, told.missing) == (0, {})


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("layout", ["<4s3L", "<4sL2Q", "<3L", "<L2Q"])
def test_a_descriptor_of_any_layout_may_be_the_end_of_the_file(tmp_path: Path, method: str, layout: str) -> None:
    streamed = archive({"a": b"content" * 50}, method=METHODS[method], streamed=True)
    streamed = streamed[: directory_of(streamed)]
    packed = headers(archive({"a": b"content" * 50}, method=METHODS[method]))[0].compress_size
    sizes = zlib.crc32(b"content" * 50), packed, 350
    data = streamed[:-16] + struct.pack(layout, *([b"PK\7\x08"] if "4s" in layout else []), *sizes)
    if "4s" in layout or method != "stored":
        assert salvaged(tmp_path, data)[0] == {"a": b"content" * 50}
    else:
        # Nothing tells where such data ends.
        with pytest.raises(zipfile.BadZipFile, match="none of its members is intact"):
            salvaged(tmp_path, data)


def test_an_archive_of_holes_is_not_searched(tmp_path: Path) -> None:
    path = tmp_path / "holes.zip"
    with path.open("wb") as file:
        file.write(GOOD)
        file.truncate(1 << 40)
    if getattr(path.stat(), "st_blocks", 1 << 40) * 512 > 1 << 30:
        pytest.skip("this file system makes no holes")
    with disk_writable.allow_writes(tmp_path), pytest.raises(OSError, match="the rest are holes"):
        zip_salvage.salvage_zip(path, tmp_path / "new.zip")
    assert [one.name for one in tmp_path.iterdir()] == ["holes.zip"]


def test_an_empty_file_is_said_to_be_empty(tmp_path: Path) -> None:
    with pytest.raises(zipfile.BadZipFile, match="it is empty"):
        salvaged(tmp_path, b"")


def test_what_looks_like_a_descriptor_in_the_data_is_data(tmp_path: Path) -> None:
    content = b"PK\7\x08" * 5 + b"PK\7\x08PK\3\4" + b"x" * 40 + b"PK\7\x08"
    found, told = salvaged(tmp_path, archive({"a": content, "b": b"2"}, method=0, streamed=True)[:-22])
    assert found == {"a": content, "b": b"2"}
    assert told.missing == {}


def test_sizes_in_the_header_count_though_a_descriptor_is_announced(tmp_path: Path) -> None:
    content = b"content" * 9
    data = member(b"a", content, flags=8) + member(b"b", deflated(content), content, method=8, flags=8)
    found, told = salvaged(tmp_path, data + GOOD)
    assert found == {"a": content, "b": content, "good": b"content"}
    assert told.missing == {}


def test_the_system_that_made_a_member_says_nothing_of_the_version_that_reads_it(tmp_path: Path) -> None:
    """The version takes the lower byte. Later ones than 6.3 are not known."""
    versions = {b"a": 63, b"b": 64, b"c": 0x033F, b"d": 0x0340, b"e": 0x0314}
    data = b"".join(member(name, b"content", version=version) for name, version in versions.items())
    found, told = salvaged(tmp_path, data)
    assert ([*found], told.missing) == (["a", "c", "e"], {})


@pytest.mark.parametrize(
    "noise",
    [
        member(b"", b"content"),
        member(b"a\0b", b"content"),
        member(b"x" * 4097, b"content"),
        member(b"a", b"content", method=11),
        member(b"a", b"content", packed=0xFFFFFFFF),
        member(b"a", b"content", packed=0xFFFFFFFF, extra=struct.pack("<2H", 1, 16)),
        member(b"a", b"content", packed=0xFFFFFFFF, extra=struct.pack("<2H15s", 1, 16, b"")),
        member(b"a", b"content", packed=0xFFFFFFFF, extra=struct.pack("<2H16s", 2, 16, b"")),
        member(b"a", b"content")[:29],
    ],
    ids=["nameless", "NUL", "long name", "method", "no size", "cut field", "short field", "other field", "cut header"],
)
def test_what_cannot_be_a_member_is_passed_over(tmp_path: Path, noise: bytes) -> None:
    found, told = salvaged(tmp_path, noise + GOOD if len(noise) > 29 else GOOD + noise)
    assert (found, told.lost, told.missing) == ({"good": b"content"}, 0, {})


def test_a_name_of_the_greatest_length_is_read(tmp_path: Path) -> None:
    assert salvaged(tmp_path, member(b"x" * 4096, b"content"))[0] == {"x" * 4096: b"content"}


CONTENT = random.Random(5).randbytes(3000)
#: Members that are not intact: why, and the bytes that were read and unpacked to find that out.
FAILING = {
    "stored": (member(b"a", CONTENT, crc=1), "its checksum or size does not match", 6000),
    "deflated": (
        member(b"a", deflated(CONTENT), CONTENT, method=8, crc=1),
        "its checksum or size does not match",
        3000 + len(deflated(CONTENT)),
    ),
    "more than stated": (
        member(b"a", deflated(CONTENT), CONTENT, method=8, size=2999),
        "its checksum or size does not match",
        3000,
    ),
    "packed size": (
        member(b"a", deflated(CONTENT) + b"x", CONTENT, method=8),
        "its checksum or size does not match",
        len(deflated(CONTENT)) + 1 + 3000,
    ),
    "damaged": (
        member(b"a", CONTENT[:1024].join((b"\0\x00\x04\xff\xfb", b"\7" * 100)), method=8),
        "it cannot be unpacked",
        1024 + 1019,
    ),
    "cut": (
        member(b"a", deflated(CONTENT)[:2000], CONTENT, method=8),
        "it is truncated",
        2000 + len(zlib.decompressobj(-15).decompress(deflated(CONTENT)[:2000])),
    ),
    "no descriptor": (member(b"a", CONTENT, flags=8, crc=0, packed=0, size=0), "it is truncated", 3000),
    "descriptors": (
        member(b"a", b"PK\7\x08" * 10, flags=8, crc=0, packed=0, size=0),
        "it is truncated",
        10 * 30 + 40,
    ),
    "bomb": (
        member(b"a", deflated(bytes(5001)), bytes(5001), method=8),
        "it unpacks to too many bytes (a zip bomb)",
        5001,
    ),
}


@pytest.mark.parametrize("how", FAILING)
def test_all_that_is_read_in_vain_is_counted(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forged headers could make every byte be read again and again, so there is a limit."""
    data, reason, cost = FAILING[how]
    monkeypatch.setattr(zip_salvage, "_MOST_FAILED", 0)
    monkeypatch.setattr(zip_salvage, "BOMB_BYTES", 5000)
    monkeypatch.setattr(zip_salvage, "BOMB_RATIO", 100)
    for limit, message in (
        (cost, "none of its members is intact"),
        (cost - 1, "it contains too many parts that look like members but are damaged"),
    ):
        monkeypatch.setattr(zip_salvage, "_LEAST_BUDGET", limit)
        (tmp_path / str(limit)).mkdir()
        with pytest.raises(zipfile.BadZipFile, match=message):
            salvaged(tmp_path / str(limit), data)
    monkeypatch.setattr(zip_salvage, "_MOST_FAILED", 4)
    monkeypatch.setattr(zip_salvage, "_LEAST_BUDGET", 1 << 20)
    before = b"" if how in ("no descriptor", "descriptors") else GOOD
    (tmp_path / "both").mkdir()
    found, told = salvaged(tmp_path / "both", before + data + (GOOD if not before else b""))
    assert found == {"good": b"content"}
    assert (told.whole, told.lost, told.missing) == (1, 1, {"a": reason})


def test_zeros_are_a_bomb_beyond_a_size_and_a_factor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zip_salvage, "BOMB_BYTES", 5000)
    # The first that unpacks to a whole multiple of its size.
    size = next(count for count in range(5001, 9000) if not count % len(deflated(bytes(count))))
    factor = size // len(deflated(bytes(size)))
    data = b"".join(
        member(b"%d" % count, deflated(bytes(count)), bytes(count), method=8) for count in (4999, 5000, 5001, size)
    )
    for ratio, whole in ((factor, ["4999", "5000", "5001", str(size)]), (factor - 1, ["4999", "5000"])):
        monkeypatch.setattr(zip_salvage, "BOMB_RATIO", ratio)
        (tmp_path / str(ratio)).mkdir()
        found, told = salvaged(tmp_path / str(ratio), data)
        assert [name for name in found if name != "5001" or ratio == factor] == whole
        assert str(size) in found or told.missing[str(size)] == "it unpacks to too many bytes (a zip bomb)"


def test_a_member_that_is_intact_further_on_is_not_lost(tmp_path: Path) -> None:
    data = member(b"a", b"content", crc=1) + member(b"b", b"content", crc=1) + member(b"a", b"content")
    found, told = salvaged(tmp_path, data)
    assert found == {"a": b"content"}
    assert (told.lost, [*told.missing]) == (1, ["b"])


def test_only_so_many_members_are_named_and_all_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zip_salvage, "MOST_NAMED", 2)
    lost = b"".join(member(name, b"content", crc=1) for name in (b"a", b"b", b"c"))
    found, told = salvaged(tmp_path, lost + GOOD + listed(b"d"))
    assert [*found] == ["good"]
    assert (told.lost, [*told.missing]) == (4, ["a", "b"])


def test_more_members_than_an_archive_may_have_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"".join(member(b"%d" % number, b"content") for number in range(3))
    monkeypatch.setattr(zip_salvage, "MOST_ENTRIES", 3)
    assert [*salvaged(tmp_path, data)[0]] == ["0", "1", "2"]
    monkeypatch.setattr(zip_salvage, "MOST_ENTRIES", 2)
    (tmp_path / "again").mkdir()
    with pytest.raises(zipfile.BadZipFile, match="it has more than 2 members"):
        salvaged(tmp_path / "again", data)


def test_what_is_left_of_the_directory_names_the_files_that_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [
        listed(b"before"),
        listed(b"good", extra=b"\x99\x99\2\0xx"),
        listed(b"one", extra=b"\x99\x99\2\0xx", comment=b"a note"),
        listed(b"folder/"),
        listed(b"x" * 4097),
        listed(b""),
        listed("zwölf".encode()),
        listed("zwölf".encode("cp437"), comment=b"PK\1\2"),
        listed(b"z"),
    ]
    # Those that are cut off are not known.
    for number, end in enumerate((b"", listed(b"cut")[:-1], listed(b"cut")[:30])):
        folder = tmp_path / str(number)
        folder.mkdir()
        found, told = salvaged(folder, lost[0] + GOOD + b"".join(lost[1:]) + end)
        assert [*found] == ["good"]
        assert told.missing == dict.fromkeys(("one", "zwölf", "z"), "only the archive's directory lists it")
        assert told.lost == 3
    monkeypatch.setattr(zip_salvage, "MOST_ENTRIES", 2)
    (tmp_path / "few").mkdir()
    assert [*salvaged(tmp_path / "few", GOOD + b"".join(lost[1:]))[1].missing] == ["one"]


@pytest.mark.parametrize("place", [4, 5, 6, 7, 8])
@pytest.mark.parametrize("value", [0, 1, 0x2C, 0xE1, 0xFF])
def test_a_byte_of_how_lzma_packed_leaves_out_its_member_alone(tmp_path: Path, place: int, value: int) -> None:
    data = archive({"m": b"hello " * 100}, method=zipfile.ZIP_LZMA)
    data = data[: directory_of(data)]
    raw = bytearray(data)
    raw[31 + place] = value
    found, told = salvaged(tmp_path, bytes(raw) + GOOD)
    assert found["good"] == b"content"
    # A smaller or larger dictionary may do as well.
    assert found.get("m", b"hello " * 100) == b"hello " * 100
    assert told.missing in ({}, {"m": "it cannot be unpacked"}, {"m": "it is truncated"})
    assert ("m" in found) is not bool(told.missing)


def test_lzma_is_unpacked_with_as_much_memory_as_any_packer_makes_it_take(tmp_path: Path) -> None:
    data = archive({"m": b"hello " * 100}, method=zipfile.ZIP_LZMA)
    for size, missing in ((1 << 27, {}), ((1 << 27) + 1, {"m": "it cannot be unpacked"})):
        raw = bytearray(data[: directory_of(data)])
        struct.pack_into("<L", raw, 31 + 5, size)
        (tmp_path / str(size)).mkdir()
        assert salvaged(tmp_path / str(size), bytes(raw) + GOOD)[1].missing == missing


def test_lzma_without_a_mark_at_its_end_is_whole_when_its_size_is_reached(tmp_path: Path) -> None:
    """7-Zip writes none. Without its last byte, Python's mark is not one, and the text is there."""
    content = random.Random(2).randbytes(500) * 3
    with_mark = archive({"m": content}, method=zipfile.ZIP_LZMA)
    packed = with_mark[31 : directory_of(with_mark) - 1]
    unmarked = member(b"m", packed, content, method=14, version=63)
    found, told = salvaged(tmp_path, unmarked + GOOD)
    assert (found, told.missing) == ({"m": content, "good": b"content"}, {})
    (tmp_path / "short").mkdir()
    short = member(b"m", packed, content, method=14, version=63, size=len(content) + 1)
    assert salvaged(tmp_path / "short", short + GOOD)[1].missing == {"m": "it is truncated"}


def test_a_member_of_a_method_that_is_not_read_here_is_named(tmp_path: Path) -> None:
    lzma = archive({"m": b"hello " * 100}, method=zipfile.ZIP_LZMA)
    packed = lzma[31 : directory_of(lzma)]
    data = b"".join(member(b"%d" % method, packed, b"hello " * 100, method=method) for method in (1, 9, 93, 99))
    found, told = salvaged(tmp_path, data + member(b"cut", packed[:8], b"hello " * 100, method=14) + GOOD)
    assert [*found] == ["good"]
    assert told.missing == dict.fromkeys(("1", "9", "93", "99", "cut"), "it cannot be unpacked")


def test_an_archive_is_known_by_a_member_near_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zip_salvage, "MOST_LEADING", 50)
    path = tmp_path / "a"
    for leading, is_one in ((0, True), (1, True), (49, True), (50, False), (2000, False)):
        for before in (bytes(leading), (b"PK\3\4" * leading)[:leading], b"P" * leading):
            path.write_bytes(before + GOOD)
            assert zip_salvage.looks_like_zip(path) is is_one, (leading, before)
    for data in (b"", b"PK\3\4", bytes(5000)):
        path.write_bytes(data)
        assert not zip_salvage.looks_like_zip(path)


# --- the commands ----------------------------------------------------------------------------------------------------


def backup(folder: Path, texts: tuple[str, ...] = ("one",)) -> bytes:
    source = Source(
        bases=[base("kb", note("n", "L1"), file("f", "F1")), base("other", note("o", "L1"))],
        stores={"kb": [*(Row("L1", text) for text in texts), Row("F1", "two")], "other": [Row("L1", "three")]},
        uploads={"up-f.pdf": b"a pdf" * 100},
    ).write(folder / "v1")
    return pack(source, folder / "whole.zip").read_bytes()


@pytest.mark.parametrize("damage", WHOLE)
def test_a_damaged_backup_is_offered_for_salvage_and_migrated_with_it(tmp_path: Path, damage: str) -> None:
    path, library = tmp_path / "a damaged.zip", tmp_path / "library"
    path.write_bytes(WHOLE[damage](backup(tmp_path)))
    before = snapshot(tmp_path)
    for command in (("inspect", path), ("check", path), ("migrate", path, "--to", library)):
        refused = run(*command, "--json")
        assert (refused.status, refused.document["error"]["code"]) == (2, "SourceUnreadable")
        message = refused.document["error"]["message"]
        assert "damaged or incomplete zip archive" in message
        quote = '"' if os.name == "nt" else "'"
        assert f"regraft migrate {quote}{path}{quote} --to LIBRARY --salvage" in message
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
    assert {one.name for one in tmp_path.iterdir()} == {"v1", "whole.zip", path.name, "library"}


def test_the_directory_of_a_document_in_a_cut_backup_is_not_taken_for_that_of_the_backup(tmp_path: Path) -> None:
    whole, document = tmp_path / "whole.zip", archive({"word/document.xml": b"a text"})
    backup(tmp_path)
    with zipfile.ZipFile(whole, "a") as made:
        made.writestr("Data/Files/report.docx", document, zipfile.ZIP_STORED)
        made.writestr("Data/Files/last.bin", b"x" * 1000)
    data = whole.read_bytes()
    path, library = tmp_path / "damaged.zip", tmp_path / "library"
    path.write_bytes(data[: headers(data)[-1].header_offset + 100])
    refused = run("inspect", path, "--json")
    assert (refused.status, refused.document["error"]["code"]) == (2, "SourceUnreadable")
    assert f"regraft migrate {path} --to LIBRARY --salvage" in refused.document["error"]["message"]
    done = run("migrate", path, "--to", library, "--salvage", "--yes", "--json")
    assert {one["legacy_id"]: one["rows"]["carried"] for one in done.document["bases"]} == {"kb": 2, "other": 1}
    (warning,) = [one for one in done.document["warnings"] if one["code"] == "archive_salvaged"]
    assert "left out: Data/Files/last.bin (it is truncated)" in warning["message"]


@pytest.mark.parametrize("streamed", [False, True], ids=["sized", "streamed"])
@pytest.mark.parametrize("method", ["stored", "deflated"])
def test_rows_of_the_vector_file_in_which_a_backup_ends_are_migrated(
    tmp_path: Path, method: str, streamed: bool
) -> None:
    rows = [Row(f"L{number}", f"text {number} " * 40) for number in range(60)]
    source = Source(
        bases=[base("kb", *(note(f"n{number}", f"L{number}") for number in range(60)))], stores={"kb": rows}
    ).write(tmp_path / "v1")
    with zipfile.ZipFile(pack(source, tmp_path / "whole.zip")) as whole:
        members = {name: whole.read(name) for name in sorted(whole.namelist()) if not name.endswith("/")}
    # The vector file comes last.
    members["Data/KnowledgeBase/kb"] = members.pop("Data/KnowledgeBase/kb")
    data = archive(members, method=METHODS[method], streamed=streamed)
    place = headers(data)[-1]
    path, library = tmp_path / "damaged.zip", tmp_path / "library"
    path.write_bytes(data[: place.header_offset + place.compress_size * 3 // 4])
    done = run("migrate", path, "--to", library, "--salvage", "--yes", "--json")
    (found,) = done.document["bases"]
    codes = {one["code"]: one for one in done.document["warnings"]}
    assert "recovered in part: Data/KnowledgeBase/kb (the first " in codes["archive_salvaged"]["message"]
    assert "no checksum, so any of its rows may be altered" in codes["archive_salvaged"]["message"]
    assert codes["archive_salvaged"]["samples"] == ["Data/KnowledgeBase/kb"]
    (index,) = library.glob("KnowledgeBase/*/.cherry/index.sqlite")
    with opened(index) as db:
        migrated = dict(
            db.execute("SELECT text, vector_blob FROM search_text JOIN embedding USING (embedding_text_hash)")
        )
    expected = {row.body: vector_of(row.body) for row in rows}
    assert migrated.items() <= expected.items()
    assert 20 <= len(migrated) == found["rows"]["carried"] < 60
    skipped = sum(found["rows"]["skipped"].values())
    # How many the missing pages held can only be estimated.
    assert found["rows"]["read"] - skipped == len(migrated)


def test_a_backup_that_is_cut_names_what_is_missing(tmp_path: Path) -> None:
    data = backup(tmp_path)
    lost = next(one for one in headers(data) if one.filename == "Data/KnowledgeBase/other")
    path = tmp_path / "damaged.zip"
    # Only the name of the vector file is left.
    path.write_bytes(data[: lost.header_offset + 30 + len(lost.filename)])
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


# --- vector files with a wrong checksum ------------------------------------------------------------------------------


def flipped(data: bytes, name: str, find: Callable[[bytes], int], bit: int = 0x10) -> bytes:
    """Change one bit of a member that is stored; ``find`` returns where in its content."""
    (place,) = [one for one in headers(data) if one.filename == name]
    start = place.header_offset + 30 + len(name)
    content = data[start : start + place.compress_size]
    at = start + find(content)
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


def stored_backup(folder: Path, *texts: str) -> bytes:
    backup(folder, texts or ("one",))
    with zipfile.ZipFile(folder / "whole.zip") as whole:
        members = {name: whole.read(name) for name in whole.namelist() if not name.endswith("/")}
    return archive(members, method=zipfile.ZIP_STORED)


def migrated_vectors(library: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for index in library.glob("KnowledgeBase/*/.cherry/index.sqlite"):
        with opened(index) as db:
            found |= dict(
                db.execute("SELECT text, vector_blob FROM search_text JOIN embedding USING (embedding_text_hash)")
            )
    return found


def test_rows_of_a_vector_file_with_a_wrong_checksum_are_offered_and_migrated_with_salvage(tmp_path: Path) -> None:
    name, library = "Data/KnowledgeBase/kb", tmp_path / "library"
    path, texts = tmp_path / "damaged.zip", [f"text {number}" for number in range(12)]
    data = stored_backup(tmp_path, *texts)
    # The highest bit of the exponent of the last number: this vector is out of the range of the others.
    path.write_bytes(flipped(data, name, lambda content: content.index(vector_of("text 5")) + 15, 0x40))
    refused = run("migrate", path, "--to", library, "--yes", "--json")
    bases = {one["legacy_id"]: (one["status"], one["rows"]["carried"]) for one in refused.document["bases"]}
    assert (refused.status, bases) == (1, {"kb": ("failed", 0), "other": ("completed", 1)})
    (said,) = [one["message"] for one in refused.document["warnings"] if one["code"] == "missing_vector_store"]
    assert "cannot be verified (Data/KnowledgeBase/kb is damaged: Bad CRC-32" in said
    assert "so any of its rows may be altered; --salvage can salvage 12 of about 13 rows" in said
    assert migrated_vectors(library) == {"three": vector_of("three")}
    before = path.read_bytes()
    done = run("migrate", path, "--to", library, "--salvage", "--yes", "--json")
    bases = {one["legacy_id"]: (one["status"], one["rows"]["carried"]) for one in done.document["bases"]}
    assert bases["kb"] == ("completed", 12)
    assert migrated_vectors(library) == {text: vector_of(text) for text in (*texts, "two", "three") if text != "text 5"}
    (said,) = [one["message"] for one in done.document["warnings"] if one["code"] == "salvaged"]
    assert "so any of its rows may be altered; 12 of about 13 rows were salvaged" in said
    assert path.read_bytes() == before
    assert {one.name for one in tmp_path.iterdir()} == {"v1", "whole.zip", "damaged.zip", "library"}
    again = run("migrate", path, "--to", library, "--salvage", "--yes", "--json")
    assert {one["outcome"] for one in again.document["bases"]} == {"unchanged"}


def test_data_that_cannot_be_unpacked_gives_the_rows_before_the_damage(tmp_path: Path) -> None:
    rows = [Row(f"L{number}", random.Random(number).randbytes(300).hex()) for number in range(60)]
    source = Source(
        bases=[base("kb", *(note(f"n{number}", f"L{number}") for number in range(60)))], stores={"kb": rows}
    ).write(tmp_path / "v1")
    with zipfile.ZipFile(pack(source, tmp_path / "whole.zip")) as whole:
        members = {name: whole.read(name) for name in whole.namelist() if not name.endswith("/")}
    content = members.pop("Data/KnowledgeBase/kb")
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(content[: len(content) * 3 // 4]) + packer.flush(zlib.Z_FULL_FLUSH)
    packed += b"\xff" * (len(deflated(content)) - len(packed))
    with zipfile.ZipFile(tmp_path / "damaged.zip", "w", zipfile.ZIP_DEFLATED) as made:
        for name, value in members.items():
            made.writestr(name, value)
        made.writestr("Data/KnowledgeBase/kb", content)
    data = (tmp_path / "damaged.zip").read_bytes()
    place = headers(data)[-1]
    start = place.header_offset + 30 + len(place.filename)
    (tmp_path / "damaged.zip").write_bytes(
        data[:start]
        + packed[: place.compress_size].ljust(place.compress_size, b"\xff")
        + data[start + place.compress_size :]
    )
    done = run("migrate", tmp_path / "damaged.zip", "--to", tmp_path / "library", "--salvage", "--yes", "--json")
    found = migrated_vectors(tmp_path / "library")
    assert found.items() <= {row.body: vector_of(row.body) for row in rows}.items()
    assert 20 <= len(found) == done.document["bases"][0]["rows"]["carried"] < 60


def test_a_vector_file_of_which_nothing_can_be_read_is_not_offered_for_salvage(tmp_path: Path) -> None:
    """It is overwritten, or packed by a method that is not known."""
    data = stored_backup(tmp_path)
    directory = data.rindex(b"PK\1\2", 0, data.index(b"Data/KnowledgeBase/kb", directory_of(data)))
    (place,) = [one for one in headers(data) if one.filename == "Data/KnowledgeBase/kb"]
    start = place.header_offset + 30 + len(place.filename)
    damages = {
        "overwritten": data[:start] + b"x" * place.file_size + data[start + place.file_size :],
        "method": data[: directory + 10] + b"\x63" + data[directory + 11 :],
    }
    for what, damaged in damages.items():
        path = tmp_path / f"{what}.zip"
        path.write_bytes(damaged)
        done = run("migrate", path, "--to", tmp_path / what, "--salvage", "--yes", "--json")
        bases = {one["legacy_id"]: (one["status"], one["rows"]["carried"]) for one in done.document["bases"]}
        assert bases == {"kb": ("failed", 0), "other": ("completed", 1)}, what
        (said,) = [one["message"] for one in done.document["warnings"] if one["code"] == "missing_vector_store"]
        assert "cannot be read: Data/KnowledgeBase/kb" in said, what
        assert "salvage" not in said, what


@pytest.mark.parametrize("salvages", [False, True])
def test_an_intact_copy_of_a_damaged_backup_completes_its_bases(tmp_path: Path, salvages: bool) -> None:
    """Both archives state the same checksums."""
    texts = [f"text {number}" for number in range(12)]
    data = stored_backup(tmp_path, *texts)
    path, whole, library = tmp_path / "damaged.zip", tmp_path / "intact.zip", tmp_path / "library"
    whole.write_bytes(data)
    at = "Data/KnowledgeBase/kb"
    path.write_bytes(flipped(data, at, lambda content: content.index(vector_of("text 5")) + 15, 0x40))
    options = ("--salvage",) if salvages else ()
    expected = {text: vector_of(text) for text in (*texts, "two", "three")}

    def migrated(source: Path) -> str:
        done = run("migrate", source, "--to", library, "--yes", "--json", *options)
        outcomes = {one["legacy_id"]: one["outcome"] for one in done.document["bases"]}
        return str(outcomes["kb"])

    first = migrated(path)
    assert migrated_vectors(library).keys() == (expected.keys() - {"text 5"} if salvages else {"three"})
    before = snapshot(library / "KnowledgeBase")
    assert migrated(path) == ("unchanged" if salvages else first)
    assert snapshot(library / "KnowledgeBase") == before
    assert migrated(whole) == "written"
    assert migrated_vectors(library) == expected
    # The damaged one takes nothing away again.
    assert migrated(whole) == migrated(path) == "unchanged"
    assert migrated_vectors(library) == expected


def test_an_intact_copy_of_a_damaged_backup_brings_an_upload(tmp_path: Path) -> None:
    data = stored_backup(tmp_path)
    path, whole, library = tmp_path / "damaged.zip", tmp_path / "intact.zip", tmp_path / "library"
    whole.write_bytes(data)
    path.write_bytes(flipped(data, "Data/Files/up-f.pdf", lambda content: len(content) // 2))
    damaged = run("migrate", path, "--to", library, "--yes", "--json")
    (said,) = [one["message"] for one in damaged.document["warnings"] if one["code"] == "missing_upload"]
    assert "is damaged: Bad CRC-32" in said
    assert not list(library.glob("KnowledgeBase/*/raw/report.pdf"))
    run("migrate", whole, "--to", library, "--yes", "--json")
    (upload,) = library.glob("KnowledgeBase/*/raw/report.pdf")
    assert upload.read_bytes() == b"a pdf" * 100


def test_a_run_with_a_damaged_upload_writes_nothing_again(tmp_path: Path) -> None:
    data = stored_backup(tmp_path)
    path, library = tmp_path / "damaged.zip", tmp_path / "library"
    data = flipped(data, "Data/Files/up-f.pdf", lambda content: len(content) // 2)
    for damaged in (data, flipped(data, "Data/KnowledgeBase/kb", lambda content: content.index(b"one"))):
        path.write_bytes(damaged)
        run("migrate", path, "--to", library, "--salvage", "--yes", "--json")
        before = snapshot(library / "KnowledgeBase")
        again = run("migrate", path, "--to", library, "--salvage", "--yes", "--json")
        assert {one["outcome"] for one in again.document["bases"]} == {"unchanged"}
        assert snapshot(library / "KnowledgeBase") == before


def test_a_member_of_a_size_that_no_file_has_is_named(tmp_path: Path) -> None:
    data = archive(method=zipfile.ZIP_STORED)
    name, extra = b"huge", struct.pack("<2H2Q", 1, 16, 2**64 - 1, 2**64 - 1)
    header = struct.pack("<4s5H3L2H", b"PK\3\4", 45, 0, 0, 0, 0, 1, 2**32 - 1, 2**32 - 1, len(name), len(extra))
    found, told = salvaged(tmp_path, header + name + extra + data[: directory_of(data)])
    assert found == MEMBERS
    assert told.missing == {"huge": "it is truncated"}


# --- vector files with a write-ahead log -----------------------------------------------------------------------------

LOGGED = "Data/KnowledgeBase/kb"


def logged_members(folder: Path) -> dict[str, bytes]:
    """Return the members of a backup with rows of a base in the log of its vector file; the log comes last."""
    backup(folder, tuple(f"text {number}" for number in range(12)))
    with zipfile.ZipFile(folder / "whole.zip") as whole:
        members = {name: whole.read(name) for name in whole.namelist() if not name.endswith("/")}
    path = folder / "logged"
    path.write_bytes(members[LOGGED])
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA journal_mode = wal; PRAGMA wal_autocheckpoint = 0")
        for number in range(12, 20):
            values = (f"L1_{number}", f"text {number}", "L1", "/a", vector_of(f"text {number}"), "{}")
            db.execute("INSERT INTO vectors VALUES (?, ?, ?, ?, ?, ?)", values)
        log = path.with_name("logged-wal").read_bytes()
        members |= {LOGGED: path.read_bytes(), f"{LOGGED}-wal": log}
    for left in folder.glob("logged*"):
        left.unlink()
    return members


def all_vectors() -> dict[str, bytes]:
    return {text: vector_of(text) for text in (*(f"text {number}" for number in range(20)), "two", "three")}


def test_an_archive_that_ends_in_the_log_of_a_vector_file_takes_no_rows_away(tmp_path: Path) -> None:
    data = archive(logged_members(tmp_path), method=zipfile.ZIP_STORED)
    path, library = tmp_path / "backup.zip", tmp_path / "library"
    path.write_bytes(data)
    run("migrate", path, "--to", library, "--yes", "--json")
    assert migrated_vectors(library) == all_vectors()
    path.write_bytes(data[: headers(data)[-1].header_offset + 100])
    for _ in range(2):
        done = run("migrate", path, "--to", library, "--salvage", "--yes", "--json")
        assert {one["outcome"] for one in done.document["bases"]} == {"unchanged"}
        (said,) = [one["message"] for one in done.document["warnings"] if one["code"] == "completed_base_kept"]
        assert said == "the damaged archive has only 13 rows of it; the base from an earlier run is kept"
        assert migrated_vectors(library) == all_vectors()
    fresh = run("migrate", path, "--to", tmp_path / "fresh", "--salvage", "--yes", "--json")
    assert fresh.document["bases"][0]["rows"]["carried"] == 13
    (said,) = [one["message"] for one in fresh.document["warnings"] if one["code"] == "archive_salvaged"]
    assert "left out: Data/KnowledgeBase/kb-wal (it is truncated)" in said


def test_a_log_whose_first_bytes_are_damaged_is_not_passed_over(tmp_path: Path) -> None:
    whole = archive(logged_members(tmp_path), method=zipfile.ZIP_STORED)
    path, library = tmp_path / "backup.zip", tmp_path / "library"
    path.write_bytes(flipped(whole, f"{LOGGED}-wal", lambda content: 1))
    refused = run("migrate", path, "--to", library, "--yes", "--json")
    assert refused.document["bases"][0]["status"] == "failed"
    (said,) = [one["message"] for one in refused.document["warnings"] if one["code"] == "missing_vector_store"]
    assert "kb-wal is damaged: Bad CRC-32" in said
    done = run("migrate", path, "--to", library, "--salvage", "--yes", "--json")
    assert [one["rows"]["carried"] for one in done.document["bases"]] == [13, 1]
    (said,) = [one["message"] for one in done.document["warnings"] if one["code"] == "salvaged"]
    assert "kb-wal is damaged" in said
    path.write_bytes(whole)
    run("migrate", path, "--to", library, "--yes", "--json")
    assert migrated_vectors(library) == all_vectors()


def test_the_log_of_a_vector_file_with_a_wrong_checksum_is_read(tmp_path: Path) -> None:
    data = archive(logged_members(tmp_path), method=zipfile.ZIP_STORED)
    damages = {
        # The header of the file, whose current state is in the log.
        LOGGED: (lambda content: 40, 20),
        # The last frame of the log, of which no other state exists.
        f"{LOGGED}-wal": (lambda content: len(content) - 8, 19),
    }
    for name, (find, rows) in damages.items():
        path, library = tmp_path / f"{len(name)}.zip", tmp_path / f"library-{len(name)}"
        path.write_bytes(flipped(data, name, find))
        done = run("migrate", path, "--to", library, "--salvage", "--yes", "--json")
        found = migrated_vectors(library)
        assert found.items() <= all_vectors().items()
        assert len(found) >= rows, name
        again = run("migrate", path, "--to", library, "--salvage", "--yes", "--json")
        assert {one["outcome"] for one in again.document["bases"]} == {"unchanged"}
        assert done.document["bases"][0]["status"] == "completed"


# --- a directory that is not safe to read because it is damaged ------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "change", "code"),
    [
        (8, b"\x01", "ArchiveEncrypted"),
        (20, b"\xff\xff\xff\x0f", "ArchiveUnsafe"),
        (24, b"\xff\xff\xff\x7f", "ArchiveUnsafe"),
        (42, b"\x01\0\0\0", "ArchiveUnsafe"),
        (46, b"\0", "ArchiveUnsafe"),
        (46, b"/", "ArchiveUnsafe"),
    ],
    ids=["encrypted", "overlaps", "bomb", "offset", "NUL", "absolute"],
)
def test_a_damaged_directory_that_is_not_safe_to_read_is_salvaged(
    tmp_path: Path, field: int, change: bytes, code: str
) -> None:
    data = bytearray(archive(logged_members(tmp_path), method=zipfile.ZIP_STORED))
    at = data.rindex(LOGGED.encode() + b"-wal") - 46
    data[at + field : at + field + len(change)] = change
    path, library = tmp_path / "backup.zip", tmp_path / "library"
    path.write_bytes(data)
    refused = run("migrate", path, "--to", library, "--yes", "--json")
    assert (refused.status, refused.document["error"]["code"]) == (2, code)
    done = run("migrate", path, "--to", library, "--salvage", "--yes", "--json")
    assert {one["status"] for one in done.document["bases"]} == {"completed"}
    assert "archive_salvaged" in {one["code"] for one in done.document["warnings"]}
    assert migrated_vectors(library) == all_vectors()
    assert path.read_bytes() == bytes(data)


def test_an_archive_that_is_encrypted_or_unsafe_stays_refused(tmp_path: Path) -> None:
    path = tmp_path / "backup.zip"
    encrypted = bytearray(archive({"data.json": b"{}"}))
    for flags in (6, encrypted.index(b"PK\1\2") + 8):
        encrypted[flags] |= 1
    outside = archive({"../outside": b"x", "data.json": b"{}"})
    for data, code in ((bytes(encrypted), "ArchiveEncrypted"), (outside, "ArchiveUnsafe")):
        path.write_bytes(data)
        for options in ((), ("--salvage",)):
            done = run("migrate", path, "--to", tmp_path / "library", *options, "--yes", "--json")
            assert (done.status, done.document["error"]["code"]) == (2, code)
    assert [one.name for one in tmp_path.iterdir()] == ["backup.zip"]


# --- members with two names ------------------------------------------------------------------------------------------


def with_name(data: bytes, old: str, new: str, *, is_local: bool) -> bytes:
    """Put another name in a member's local header, or in the archive's directory."""
    at = data.index(old.encode()) if is_local else data.rindex(old.encode())
    assert data[at : at + len(old)] == old.encode()
    assert len(new) == len(old)
    return data[:at] + new.encode() + data[at + len(old) :]


@pytest.mark.parametrize("is_local", [False, True], ids=["directory", "header"])
@pytest.mark.parametrize("other", [f"{LOGGED}-7al", "Data/KnowladgeBase/kb-wal"])
def test_a_log_with_another_name_in_one_place_takes_no_rows_away(tmp_path: Path, is_local: bool, other: str) -> None:
    data = archive(logged_members(tmp_path), method=zipfile.ZIP_STORED)
    path, library = tmp_path / "backup.zip", tmp_path / "library"
    damaged = with_name(data, f"{LOGGED}-wal", other, is_local=is_local)
    path.write_bytes(damaged)
    refused = run("migrate", path, "--to", library, "--yes", "--json")
    bases = {one["legacy_id"]: (one["status"], one["rows"]["carried"]) for one in refused.document["bases"]}
    assert (refused.status, bases) == (1, {"kb": ("failed", 0), "other": ("completed", 1)})
    (said,) = [one["message"] for one in refused.document["warnings"] if one["code"] == "missing_vector_store"]
    assert "kb-wal: its names in the archive's directory and in its own header differ)" in said
    assert "--salvage can salvage 21 of about 21 rows" in said
    done = run("migrate", path, "--to", library, "--salvage", "--yes", "--json")
    assert done.document["bases"][0]["status"] == "completed"
    assert migrated_vectors(library) == all_vectors()
    (said,) = [one["message"] for one in done.document["warnings"] if one["code"] == "archive_salvaged"]
    first, second = (f"{LOGGED}-wal", other) if is_local else (other, f"{LOGGED}-wal")
    assert said.endswith(f"members read by both names: {first} / {second}")
    assert path.read_bytes() == damaged
    path.write_bytes(data)
    run("migrate", path, "--to", library, "--yes", "--json")
    assert migrated_vectors(library) == all_vectors()


def test_a_vector_file_and_a_state_with_another_name_in_the_directory_are_named_and_salvaged(tmp_path: Path) -> None:
    data = archive(logged_members(tmp_path), method=zipfile.ZIP_STORED)
    path = tmp_path / "backup.zip"
    path.write_bytes(with_name(data, "data.json", "dada.json", is_local=False))
    refused = run("migrate", path, "--to", tmp_path / "library", "--yes", "--json")
    assert (refused.status, refused.document["error"]["code"]) == (2, "SourceUnreadable")
    assert "data.json: its names in the archive's directory" in refused.document["error"]["message"]
    for number, (old, new) in enumerate((("data.json", "dada.json"), ("KnowledgeBase/other", "KnowledgeBase/odher"))):
        path.write_bytes(with_name(data, old, new, is_local=False))
        library = tmp_path / f"library-{number}"
        done = run("migrate", path, "--to", library, "--salvage", "--yes", "--json")
        assert {one["status"] for one in done.document["bases"]} == {"completed"}
        assert migrated_vectors(library) == all_vectors()


@pytest.mark.parametrize("is_local", [False, True], ids=["directory", "header"])
def test_vector_files_whose_names_were_swapped_in_one_place_are_not_migrated(tmp_path: Path, is_local: bool) -> None:
    source = Source(
        bases=[base("kb", note("n1", "L1")), base("hm", note("n2", "L2"))],
        stores={"kb": [Row("L1", "one")], "hm": [Row("L2", "two")]},
    ).write(tmp_path / "v1")
    with zipfile.ZipFile(pack(source, tmp_path / "whole.zip")) as whole:
        members = {name: whole.read(name) for name in whole.namelist() if not name.endswith("/")}
    first, second = "KnowledgeBase/kb", "KnowledgeBase/hm"
    data = archive(members, method=zipfile.ZIP_STORED)
    for old, new in ((first, "KnowledgeBase/??"), (second, first), ("KnowledgeBase/??", second)):
        data = with_name(data, old, new, is_local=is_local)
    path, library = tmp_path / "swapped.zip", tmp_path / "library"
    path.write_bytes(data)
    for options in ((), ("--salvage",)):
        done = run("migrate", path, "--to", library, *options, "--yes", "--json")
        assert {one["status"] for one in done.document["bases"]} == {"failed"}
        said = [one["message"] for one in done.document["warnings"] if one["code"] == "missing_vector_store"]
        assert all("header differ" in one for one in said)
        assert migrated_vectors(library) == {}
