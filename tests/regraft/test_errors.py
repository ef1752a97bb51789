"""Every refusal: one line that names the path and says what to do, its exit status, and not a byte written."""

from __future__ import annotations

import ast
import errno
import json
import os
import pickle
import shutil
import sqlite3
import string
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from faults import (
    MODEL,
    REFUSED,
    Source,
    changed_source,
    library,
    line,
    migrate,
    said,
    small_source,
    untouched,
    whole_path,
)
from golden_cases import as_backup
from harness import HERE, run

from regraft import cli, errors
from regraft.errors import RegraftError, error_classes
from regraft.ledger import ledger


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give every run a temporary folder of its own, and see that it leaves nothing there."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return small_source(tmp_path / "source")


def refused(code: str, *arguments: object, names: object, advice: str) -> None:
    """Run a command that must be refused, for a person and for a program, and hold both answers to the contract."""
    text = line(run(*arguments), REFUSED)
    message = said(run(*arguments, "--json"), code, REFUSED)
    assert text == message
    assert str(names) in message
    assert advice in message
    assert "Traceback" not in message


# --- sources -------------------------------------------------------------------------------------------------------


def zip_of(path: Path, members: dict[str, str | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def data_json(slices: dict[str, str] | str, version: object = 5) -> str:
    state = slices if isinstance(slices, str) else json.dumps(slices)
    return json.dumps({"version": version, "localStorage": {"persist:cherry-studio": state}, "indexedDB": {}})


def file(name: str, content: str | bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return folder / name

    return make


def archive(**members: str | bytes) -> Callable[[Path], Path]:
    """Make an archive; ``data_json`` stands for data.json."""
    return lambda folder: zip_of(
        folder / "backup.zip", {name.replace("_json", ".json"): content for name, content in members.items()}
    )


def named(*names: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        with zipfile.ZipFile(folder / "backup.zip", "w") as archive:
            archive.writestr("data.json", data_json({}))
            for name in names:
                archive.writestr(zipfile.ZipInfo(name), "{}")
        return folder / "backup.zip"

    return make


def twice(folder: Path) -> Path:
    """Make an archive with one name twice."""
    path = zip_of(folder / "backup.zip", {"data.json": data_json({}), "dbtb.json": "{}"})
    path.write_bytes(path.read_bytes().replace(b"dbtb.json", b"data.json"))
    return path


def folder_with(name: str, content: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        place = folder / "export"
        place.mkdir()
        (place / name).write_text(content, "utf-8")
        return place

    return make


def protected(folder: Path) -> Path:
    """Make an archive whose members say that they are encrypted."""
    path = zip_of(folder / "backup.zip", {"data.json": data_json({})})
    raw = bytearray(path.read_bytes())
    for signature, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = raw.index(signature) + place
        struct.pack_into("<H", raw, at, struct.unpack_from("<H", raw, at)[0] | 1)
    path.write_bytes(raw)
    return path


def truncated(folder: Path) -> Path:
    path = as_backup(small_source(folder / "v1").folder, folder / "backup.zip")
    path.write_bytes(path.read_bytes()[:-400])
    return path


def damaged_state(folder: Path) -> Path:
    """Make a whole archive with one byte of data.json turned."""
    with zipfile.ZipFile(folder / "backup.zip", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("data.json", data_json({"knowledge": "{}"}))
    raw = (folder / "backup.zip").read_bytes()
    (folder / "backup.zip").write_bytes(raw.replace(b"knowledge", b"knowledgE", 1))
    return folder / "backup.zip"


def empty_folder(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def database(statement: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        with closing(sqlite3.connect(folder / "some.sqlite")) as db, db:
            db.execute(statement)
        return folder / "some.sqlite"

    return make


def version_folder(version: int) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "backup" / "Data").mkdir(parents=True)
        (folder / "backup" / "metadata.json").write_text(
            json.dumps({"version": version, "appName": "Cherry Studio"}), "utf-8"
        )
        return folder / "backup"

    return make


def profile(folder: Path) -> Path:
    for name in ("Local Storage/leveldb", "IndexedDB", "Data/KnowledgeBase"):
        (folder / "profile" / name).mkdir(parents=True)
    return folder / "profile"


def v2(inner: str) -> Callable[[Path], Path]:
    """Make a library and give a path in it."""

    def make(folder: Path) -> Path:
        assert migrate(small_source(folder / "v1").folder, folder / "library").status == 1
        return next((folder / "library").glob(inner)) if inner else folder / "library"

    return make


@dataclass(frozen=True)
class Bad:
    """A path that is refused: how to make it, as what, and what the message says besides the path."""

    make: Callable[[Path], Path]
    code: str
    #: ``{path}`` stands for the path.
    advice: str
    more: tuple[str, ...] = ()


KNOWN = "give a v1 backup (zip or folder), a profile folder, an export folder, a knowledge JSON file, a library"
COMPLETE = "check that the file is complete and that you have permission to read it"
ANOTHER = "the source is incomplete or damaged, use another copy"

#: What neither ``inspect`` nor ``migrate`` can read.
UNREADABLE = {
    "nothing there": Bad(lambda folder: folder / "mistyped.zip", "SourceNotFound", "check the spelling"),
    "a dangling link": Bad(lambda folder: link(folder / "a", folder / "b"), "SourceNotFound", "check the spelling"),
    "a name too long": Bad(lambda folder: folder / ("x" * 300), "SourceUnreadable", COMPLETE),
    "a text file": Bad(file("notes.txt", "just notes\n"), "SourceUnrecognised", f"(a text file); {KNOWN}"),
    "an empty file": Bad(file("backup.zip", b""), "SourceUnrecognised", f"(an empty file); {KNOWN}"),
    "another kind of file": Bad(file("a.png", b"\x89PNG\r\n\0\0"), "SourceUnrecognised", KNOWN),
    "an empty folder": Bad(empty_folder, "SourceUnrecognised", f"(a folder that contains nothing); {KNOWN}"),
    "an empty zip": Bad(archive(), "SourceUnrecognised", f"(an archive that contains nothing); {KNOWN}"),
    "a zip of something else": Bad(archive(letter="dear"), "SourceUnrecognised", "(an archive that contains letter)"),
    "JSON without knowledge": Bad(file("a.json", '{"name": 1}'), "SourceUnrecognised", KNOWN),
    "an unknown database": Bad(database("CREATE TABLE cats (name)"), "SourceUnrecognised", KNOWN),
    "another kind than told": Bad(
        archive(data_json=data_json({})),
        "SourceUnrecognised",
        "(it does not contain a v1 export folder)",
        ("--kind", "v1-export"),
    ),
    "a truncated zip": Bad(
        truncated,
        "SourceUnreadable",
        "to recover its intact members, run regraft migrate {path} --to LIBRARY --salvage; if it contains v2 data, "
        f"extract them with another program and use that folder); {COMPLETE}",
    ),
    "half a zip": Bad(file("backup.zip", b"PK\x03\x04" + bytes(90)), "SourceUnreadable", COMPLETE),
    "a damaged data.json": Bad(damaged_state, "SourceUnreadable", "data.json is damaged: Bad CRC-32"),
    "a damaged database": Bad(file("a", b"SQLite format 3\0" + b"\xff" * 99), "SourceUnreadable", COMPLETE),
    "a password": Bad(protected, "ArchiveEncrypted", "unpack it yourself and give the folder"),
    "a bomb": Bad(archive(data_json=bytes(17 << 20)), "ArchiveUnsafe", "data.json would grow from"),
    "a climber": Bad(named("Data/../../evil"), "ArchiveUnsafe", "Data/../../evil leads out of the archive"),
    "a climber on Windows": Bad(named("..\\evil"), "ArchiveUnsafe", "leads out of the archive"),
    "an absolute name": Bad(named("/etc/evil"), "ArchiveUnsafe", "/etc/evil is an absolute path"),
    "a drive": Bad(named("C:\\evil"), "ArchiveUnsafe", "is an absolute path"),
    "one name twice": Bad(twice, "ArchiveUnsafe", "data.json is in it twice"),
    "a file and a folder": Bad(named("Data", "Data/x"), "ArchiveUnsafe", "Data is both a file and a folder"),
    "a truncated data.json": Bad(archive(data_json=data_json({})[:30]), "BrokenJson", f"truncated; {ANOTHER}"),
    "an empty data.json": Bad(archive(data_json=""), "BrokenJson", ANOTHER),
    "no object for data.json": Bad(archive(data_json="null"), "BrokenJson", "data.json is not valid JSON: Expected"),
    "a broken persist text": Bad(
        archive(data_json=data_json('{"knowledge": ')), "BrokenJson", "persist:cherry-studio in data.json is not valid"
    ),
    "a broken slice": Bad(
        archive(data_json=data_json({"knowledge": '{"bases": [}'})), "BrokenJson", "the `knowledge` state is not valid"
    ),
    "bases that are no list": Bad(
        archive(data_json=data_json({"knowledge": '{"bases": 3}'})), "BrokenJson", "`bases` is not a list"
    ),
    "a broken export": Bad(
        folder_with("redux.json", '{"knowledge": {"bases": ['), "BrokenJson", "redux.json is not valid"
    ),
    "a broken state file": Bad(file("redux.json", '{"knowledge": '), "BrokenJson", "redux.json is not valid JSON"),
    "version 6 without its state, zip": Bad(
        archive(metadata_json='{"version": 6}', IndexedDB=""), "SourceUnreadable", COMPLETE
    ),
    "version 6 without its state, folder": Bad(version_folder(6), "SourceUnreadable", COMPLETE),
    "a profile without its state": Bad(profile, "SourceUnreadable", COMPLETE),
    "a version to come": Bad(
        archive(data_json=data_json({}, version=9)),
        "SourceNotMigratable",
        "a backup of version 9; regraft reads data.json of",
    ),
}
#: What ``inspect`` looks into, but ``migrate`` cannot carry.
NOT_MIGRATABLE = {
    "version 7, zip": Bad(
        archive(metadata_json='{"version": 7}'),
        "SourceNotMigratable",
        "a v2 backup (version 7); its bases are in the v2",
    ),
    "version 7, folder": Bad(version_folder(7), "SourceNotMigratable", "its bases are in the v2 layout already"),
    "a vector file": Bad(
        lambda folder: small_source(folder / "v1").vectors("alpha"),
        "SourceNotMigratable",
        "give the backup, or a folder with the knowledge state beside",
    ),
    "a library": Bad(v2(""), "SourceNotMigratable", "a v2 library; it is in the v2 layout already"),
    "a library's bases": Bad(v2("KnowledgeBase"), "SourceNotMigratable", "it is in the v2 layout already"),
    "a base": Bad(v2("KnowledgeBase/cd2d*"), "SourceNotMigratable", "it is in the v2 layout already"),
    "an index": Bad(v2("KnowledgeBase/cd2d*/.cherry/index.sqlite"), "SourceNotMigratable", "in the v2 layout already"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.parametrize("command", ["inspect", "migrate", "migrate --dry-run"])
def test_what_cannot_be_read_is_refused(command: str, name: str, tmp_path: Path) -> None:
    check_source(command, UNREADABLE[name], tmp_path)


@pytest.mark.parametrize("name", NOT_MIGRATABLE)
@pytest.mark.parametrize("command", ["migrate", "migrate --dry-run"])
def test_what_cannot_be_migrated_is_refused(command: str, name: str, tmp_path: Path) -> None:
    check_source(command, NOT_MIGRATABLE[name], tmp_path)


def check_source(command: str, bad: Bad, tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    path = bad.make(tmp_path / "given")
    verb, *options = command.split()
    more = ["--to", tmp_path / "new" / "library", *options] if verb == "migrate" else []
    with untouched(tmp_path / "given"):
        refused(bad.code, verb, path, *more, *bad.more, names=path, advice=bad.advice.replace("{path}", str(path)))
    assert not (tmp_path / "new").exists()


def test_the_line_holds_nothing_that_moves_the_cursor(tmp_path: Path) -> None:
    """Names come from an archive that anyone may have made: they must not write on the terminal."""
    path = named("../a\nregraft: all is well\x1b[2J")(tmp_path)
    message = said(run("inspect", path, "--json"), "ArchiveUnsafe", REFUSED)
    assert message.isprintable()


def test_a_file_that_may_not_be_read(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = as_backup(source.folder, tmp_path / "backup.zip")
    real = Path.open

    def deny(self: Path, *arguments: Any, **named: Any) -> Any:
        if self == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return real(self, *arguments, **named)

    monkeypatch.setattr(Path, "open", deny)
    for command in (("inspect", path), ("migrate", path, "--to", tmp_path / "library")):
        refused("SourceUnreadable", *command, names=path, advice=f"(Permission denied); {COMPLETE}")
    assert not (tmp_path / "library").exists()


def test_a_folder_that_may_not_be_read(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_listing, real_scan = os.listdir, os.scandir

    def deny(real: Callable[..., Any]) -> Callable[..., Any]:
        def listing(path: Any = ".") -> Any:
            if Path(path) == source.folder:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return real(path)

        return listing

    (source.folder / "redux.json").rename(source.folder / "state.json")
    monkeypatch.setattr(os, "listdir", deny(real_listing))
    monkeypatch.setattr(os, "scandir", deny(real_scan))
    refused("SourceUnreadable", "inspect", source.folder, names=source.folder, advice="Permission denied")


# --- targets -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BadTarget:
    """A target that is refused: how to make it beside the source, and what the message says besides its path."""

    make: Callable[[Path, Path], Path]
    code: str
    advice: str


def made(path: Path, **files: str) -> Path:
    path.mkdir(parents=True)
    for name, content in files.items():
        (path / name).write_text(content, "utf-8")
    return path


def at_file(tmp_path: Path, *inner: str) -> Path:
    (tmp_path / "file").write_text("mine")
    return tmp_path.joinpath("file", *inner)


def link(path: Path, to: Path) -> Path:
    path.symlink_to(to)
    return path


OUTSIDE = "give a target outside of the source"
INSIDE = ("inside the source", "deep inside the source", "the source by another way")
TARGETS = {
    "inside the source": BadTarget(lambda _, source: source / "library", "TargetOverlapsSource", OUTSIDE),
    "deep inside the source": BadTarget(lambda _, source: source / "a" / "b", "TargetOverlapsSource", OUTSIDE),
    "the source itself": BadTarget(lambda _, source: source, "TargetOverlapsSource", OUTSIDE),
    "around the source": BadTarget(lambda _, source: source.parent, "TargetOverlapsSource", OUTSIDE),
    "the source by another way": BadTarget(
        lambda _, source: source / "Files" / ".." / "library", "TargetOverlapsSource", OUTSIDE
    ),
    "a file": BadTarget(lambda path, _: at_file(path), "TargetNotOurs", "it is a file); give an empty or a new folder"),
    "below a file": BadTarget(lambda path, _: at_file(path, "new"), "TargetNotWritable", "choose another place"),
    "deep below a file": BadTarget(lambda path, _: at_file(path, "a", "b"), "TargetNotWritable", "file is a file)"),
    "someone's folder": BadTarget(
        lambda path, _: made(path / "photos", cat="meow"),
        "TargetNotOurs",
        "(it contains cat); give an empty or a new folder",
    ),
    "a library without its ledger": BadTarget(
        lambda path, _: made(path / "old", **{"catalog.sqlite": "", "report.json": ""}),
        "TargetNotOurs",
        "give an empty or a new folder",
    ),
    "a name too long": BadTarget(
        lambda path, _: path / ("x" * 300), "TargetNotWritable", os.strerror(errno.ENAMETOOLONG)
    ),
    "a name too long in a new folder": BadTarget(
        lambda path, _: path / "new" / ("x" * 300), "TargetNotWritable", os.strerror(errno.ENAMETOOLONG)
    ),
    "a circle of links": BadTarget(
        lambda path, _: link(path / "a", path / "a"), "TargetNotWritable", "choose another place"
    ),
    "a dangling link": BadTarget(
        lambda path, _: link(path / "a", path / "b"), "TargetNotWritable", "choose another place"
    ),
}


# An archive has no inside that a target could be in.
@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in ("folder", "zip") for name in TARGETS if kind == "folder" or name not in INSIDE],
)
def test_a_target_that_must_not_be_written_to(kind: str, name: str, tmp_path: Path) -> None:
    case = TARGETS[name]
    place = tmp_path / "place"
    folder = small_source(place / "given" / "v1").folder
    path = folder if kind == "folder" else as_backup(folder, place / "given" / "backup.zip")
    target = case.make(place, path)
    names = place / "file" if "below" in name else target
    with untouched(place):
        refused(case.code, "migrate", path, "--to", target, names=names, advice=case.advice)
        refused(case.code, "migrate", path, "--to", target, "--dry-run", names=names, advice=case.advice)


def test_beside_a_single_state_file_is_no_inside(source: Source, tmp_path: Path) -> None:
    path = source.folder / "redux.json"
    inside = source.folder / "KnowledgeBase" / "library"
    with untouched(source.folder):
        refused("TargetOverlapsSource", "migrate", path, "--to", inside, names=inside, advice=OUTSIDE)
    assert migrate(path, source.folder / "library").status == 1
    assert library(source.folder / "library") == library_of(source.folder, tmp_path)


def library_of(source: Path, tmp_path: Path) -> dict[str, bytes]:
    shutil.copytree(source, tmp_path / "copy", ignore=shutil.ignore_patterns("library"))
    assert migrate(tmp_path / "copy", tmp_path / "other").status == 1
    return library(tmp_path / "other")


def test_a_folder_without_permission(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = made(tmp_path / "locked")
    monkeypatch.setattr(os, "access", lambda path, *_: Path(path) != parent)
    advice = f"no permission to write to {parent}); choose another place"
    with untouched(parent):
        for more in ((), ("--dry-run",)):
            refused(
                "TargetNotWritable", "migrate", source.folder, "--to", parent / "a", *more, names=parent, advice=advice
            )


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_target_that_cannot_be_made(
    number: int, depth: int, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of its folders cannot be made, none of them stays."""
    parent = made(tmp_path / "disk")
    target = parent / "a" / "b"
    failing = [parent / "a", target, target / ".regraft"][depth - 1]
    real = os.mkdir

    def mkdir(path: Any, *arguments: Any, **named: Any) -> None:
        if whole_path(path, named.get("dir_fd")) == str(failing) and failing.parent.exists():
            raise OSError(number, os.strerror(number), str(path))
        real(path, *arguments, **named)

    monkeypatch.setattr(os, "mkdir", mkdir)
    advice = f"({os.strerror(number)}); choose another place"
    refused("TargetNotWritable", "migrate", source.folder, "--to", target, names=target, advice=advice)
    assert list(parent.iterdir()) == []


def test_a_target_whose_folder_cannot_be_listed(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = made(tmp_path / "target")
    real = Path.iterdir

    def deny(self: Path) -> Any:
        if self == target:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return real(self)

    monkeypatch.setattr(Path, "iterdir", deny)
    refused("TargetNotWritable", "migrate", source.folder, "--to", target, names=target, advice="(Permission denied)")


# --- room ----------------------------------------------------------------------------------------------------------


def little_room(monkeypatch: pytest.MonkeyPatch, below: Path, free: int = 1000) -> None:
    """Let the disk below a folder have next to no room."""
    real = shutil.disk_usage

    def usage(path: Any) -> Any:
        told = real(path)
        return told._replace(free=free) if Path(path).resolve().is_relative_to(below.resolve()) else told

    monkeypatch.setattr(shutil, "disk_usage", usage)


@pytest.mark.parametrize("kind", ["folder", "zip"])
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_too_little_disk(
    kind: str, more: tuple[str, ...], source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = source.folder if kind == "folder" else as_backup(source.folder, tmp_path / "backup.zip")
    disk = made(tmp_path / "disk")
    little_room(monkeypatch, disk)
    target = disk / "new" / "library"
    advice = "are needed, but only 1.0 kB are free; free some space or choose another disk"
    with untouched(path):
        refused("NotEnoughSpace", "migrate", path, "--to", target, *more, names=target, advice=advice)
    assert list(disk.iterdir()) == []


def test_too_little_disk_for_more_in_an_old_target(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "library"
    migrate(source.folder, target)
    changed_source(source)
    little_room(monkeypatch, target)
    with untouched(target):
        refused("NotEnoughSpace", "migrate", source.folder, "--to", target, names=target, advice="free some space")


def test_too_little_room_to_look_into_an_archive(
    source: Source, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = as_backup(source.folder, tmp_path / "backup.zip")
    little_room(monkeypatch, temporary)
    arguments = ("migrate", path, "--to", tmp_path / "library", "--dry-run")
    for message in (line(run(*arguments), REFUSED), said(run(*arguments, "--json"), "WorkFolderTooSmall", REFUSED)):
        assert message.startswith(str(temporary))
        assert "1.0 kB are free; set TMPDIR to a folder on a larger disk" in message
    assert not (tmp_path / "library").exists()


# --- targets with a ledger -----------------------------------------------------------------------------------------


def set_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE ledger SET version = 99")


def foreign(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE cats (name)")


def other_shape(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE ledger (name)")


def unreadable_entry(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE entry SET detail = x'00' WHERE length(detail) > 0")


def damage(path: Path, first: int) -> None:
    """Write over every page of the ledger from a page on; the first one (0) holds the tables' names."""
    raw = bytearray(path.read_bytes())
    size = int.from_bytes(raw[16:18], "big")
    start = (first % (len(raw) // size)) * size
    raw[start:] = b"\xa5" * (len(raw) - start)
    path.write_bytes(raw)


LEDGERS: dict[str, Callable[[Path], object]] = {
    "no database": lambda path: path.write_bytes(b"not a database " * 100),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:3000]),
    "damaged behind its first page": lambda path: damage(path, 1),
    "damaged in its last pages": lambda path: damage(path, -2),
    "of a later regraft": set_version,
    "of another program": foreign,
    "of another shape": other_shape,
    "with an unreadable entry": unreadable_entry,
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", LEDGERS)
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_ledger_that_cannot_be_read(name: str, more: tuple[str, ...], source: Source, tmp_path: Path) -> None:
    target = tmp_path / "library"
    migrate(source.folder, target)
    LEDGERS[name](ledger.ledger_path(target))
    advice = "migrate to another folder"
    with untouched(target, source.folder):
        refused("LedgerUnreadable", "migrate", source.folder, "--to", target, *more, names=target, advice=advice)


def test_a_copy_that_was_changed_is_not_written_over(source: Source, tmp_path: Path) -> None:
    target = tmp_path / "library"
    report = migrate(source.folder, target, "--json").document
    base = target / "KnowledgeBase" / report["ids"]["bases"]["beta"]
    with closing(sqlite3.connect(base / ".cherry" / "index.sqlite")) as db, db:
        db.execute("UPDATE meta SET updated_at = 7")
    changed_source(source)
    for more in ((), ("--dry-run",)):
        with untouched(target, source.folder):
            refused(
                "TargetBaseChanged",
                *("migrate", source.folder, "--to", target, *more),
                names=base,
                advice='base "Base beta" would be rewritten',
            )
            refused(
                "TargetBaseChanged",
                *("migrate", source.folder, "--to", target, *more),
                names=base,
                advice="migrate to another folder, or remove this copy first",
            )


def test_a_base_folder_that_is_not_ours_is_not_written_over(source: Source, tmp_path: Path) -> None:
    target = tmp_path / "library"
    report = migrate(source.folder, target, "--base", "alpha", "--json").document
    assert list(report["ids"]["bases"]) == ["alpha"]
    beta = migrate(source.folder, tmp_path / "other", "--json").document["ids"]["bases"]["beta"]
    made(target / "KnowledgeBase" / beta, notes="mine")
    with untouched(target):
        refused(
            "TargetNotOurs",
            *("migrate", source.folder, "--to", target),
            names=target / "KnowledgeBase" / beta,
            advice="(the ledger has no record of it)",
        )


def test_an_empty_ledger_folder_gives_no_right_to_write_over_files(source: Source, tmp_path: Path) -> None:
    target = made(tmp_path / "mine", **{"catalog.sqlite": "mine", "report.json": "mine"})
    (target / ".regraft").mkdir()
    with untouched(target):
        refused(
            "TargetNotOurs", "migrate", source.folder, "--to", target, names=target, advice="give an empty or a new"
        )


def test_a_target_that_another_run_holds(source: Source, tmp_path: Path) -> None:
    target = tmp_path / "library"
    migrate(source.folder, target)
    changed_source(source)
    with ledger.open_exclusive(target), untouched(target):
        refused(
            "TargetLocked", "migrate", source.folder, "--to", target, names=target, advice="wait until it has finished"
        )


# --- options -------------------------------------------------------------------------------------------------------

OPTIONS = {
    "an unknown base": (("--base", "omega"), "BaseUnknown", "omega", "known bases: Base alpha ("),
    "one unknown base": (("--base", "alpha", "--base", "Alpha"), "BaseUnknown", "Alpha", "known bases: Base alpha ("),
    "a mapping without =": (
        ("--map-model", "acme::a"),
        "ModelOptionInvalid",
        "acme::a",
        "write OLD=NEW, NEW as provider",
    ),
    "a mapping to no id": (
        ("--map-model", "a=b"),
        "ModelOptionInvalid",
        "a=b",
        "write OLD=NEW, NEW as provider::model",
    ),
    "a mapping of nothing": (("--map-model", "=a::b"), "ModelOptionInvalid", "=a::b", "write OLD=NEW"),
    "a mapping to half an id": (("--map-model", "a=b::"), "ModelOptionInvalid", "a=b::", "write OLD=NEW"),
    "a model that is no id": (
        ("--recreate-model", "embed"),
        "ModelOptionInvalid",
        "embed",
        "write it as provider::model",
    ),
    "a report nowhere": (
        ("--report", "/nowhere/at/all.html"),
        "ReportNotWritable",
        "all.html",
        "its folder does not exist",
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_makes_no_sense(name: str, source: Source, tmp_path: Path) -> None:
    options, code, names, advice = OPTIONS[name]
    with untouched(source.folder):
        refused(code, "migrate", source.folder, "--to", tmp_path / "new" / "out", *options, names=names, advice=advice)
    assert not (tmp_path / "new").exists()


def test_a_report_page_that_cannot_be_written(source: Source, tmp_path: Path) -> None:
    page = made(tmp_path / "folder.html")
    arguments = ("migrate", source.folder, "--to", tmp_path / "library", "--report", page)
    refused("ReportNotWritable", *arguments, names=page, advice="it is a folder); give another file")
    assert not (tmp_path / "library").exists()


def test_the_models_of_a_mapping_may_hold_anything_else(source: Source, tmp_path: Path) -> None:
    done = migrate(source.folder, tmp_path / "library", "--map-model", f"acme::{MODEL['id']}=x::y=z", "--json")
    assert done.status == 1
    assert {base["status"] for base in done.document["bases"]} == {"completed", "failed"}


#: What the command line itself refuses, before a command begins.
USAGE = {
    "a time that is none": ("--now", "yesterday"),
    "a time without a zone": ("--now", "2026-01-31T12:00:00"),
    "no process": ("--jobs", "0"),
    "an unknown kind": ("--kind", "diary"),
    "an unknown severity": ("--fail-on", "sometimes"),
    "an unknown option": ("--frobnicate",),
}


@pytest.mark.parametrize("name", USAGE)
def test_wrong_usage_is_one_line_and_one_document_too(name: str, source: Source, tmp_path: Path) -> None:
    arguments = ("migrate", source.folder, "--to", tmp_path / "library", *USAGE[name])
    with untouched(source.folder):
        refused("WrongUsage", *arguments, names=USAGE[name][0], advice="see regraft migrate --help")
    assert not (tmp_path / "library").exists()


def test_a_command_without_its_target(source: Source) -> None:
    refused("WrongUsage", "migrate", source.folder, names="--to", advice="see regraft migrate --help")


def test_the_help_of_a_command_of_a_group_is_named(tmp_path: Path) -> None:
    arguments = ("fleet", "resume", tmp_path / "m.jsonl", "--only", "finished")
    refused("WrongUsage", *arguments, names="--only", advice="(see regraft fleet resume --help)")


def test_a_command_that_there_is_not() -> None:
    refused("WrongUsage", "migrated", names="migrated", advice="see regraft --help")


# --- what is said --------------------------------------------------------------------------------------------------


def test_where_an_error_came_from_is_said_when_asked(tmp_path: Path) -> None:
    done = run("inspect", tmp_path / "gone", "-vv")
    assert "Traceback" in done.stderr
    assert done.stderr.endswith(f"regraft: {tmp_path / 'gone'}: no such file or folder; check the spelling.\n")
    assert "Traceback" not in run("inspect", tmp_path / "gone", "-v").stderr


def test_an_answer_of_no_writes_nothing(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import migrators

    real = migrators.migrate

    def migrate_with_no(*arguments: Any) -> Any:
        return real(*arguments[:-1], lambda _: False)

    monkeypatch.setattr(migrators, "migrate", migrate_with_no)
    target = tmp_path / "new" / "library"
    refused("Declined", "migrate", source.folder, "--to", target, names=target, advice="nothing was written")
    assert not (tmp_path / "new").exists()


def facts(kind: type[RegraftError]) -> dict[str, object]:
    names = {name for _, name, _, _ in string.Formatter().parse(kind.template()) if name}
    return {name: f"<{name}>" for name in sorted(names)}


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_every_error_is_one_line_and_survives_a_process(kind: type[RegraftError]) -> None:
    error = kind(**facts(kind))
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.facts) == (kind, str(error), error.facts)
    assert error.code == kind.__name__
    assert error.exit_status in (errors.WORTH_READING, errors.REFUSED, errors.STOPPED, errors.INTERRUPTED)
    assert str(error).endswith(".")
    assert "\n" not in str(error)
    assert all(str(value) in str(error) for value in error.facts.values())


@pytest.mark.parametrize(
    ("kind", "standard"),
    [
        (errors.SourceNotFound, FileNotFoundError),
        (errors.TargetNotOurs, FileExistsError),
        (errors.TargetLocked, BlockingIOError),
        (errors.TargetNotWritable, PermissionError),
        (errors.ReportNotWritable, PermissionError),
        (errors.BrokenJson, ValueError),
        (errors.BaseUnknown, LookupError),
        (errors.StoppedMidway, OSError),
    ],
)
def test_errors_are_what_a_caller_would_catch(kind: type[RegraftError], standard: type[Exception]) -> None:
    assert issubclass(kind, standard)


def asserted_codes() -> set[str]:
    """Return every text in the tests' code: an error's name is there where a test asserts that code."""
    found: set[str] = set()
    for path in HERE.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


@pytest.mark.thorough
def test_a_reason_of_windows_in_chinese_does_not_end_a_sentence_twice() -> None:
    error = errors.StoppedBySystem(reason=f"笔记。: {OSError(13, '拒绝访问。').strerror}")
    assert str(error) == "Stopped by the system: 笔记。: 拒绝访问."


def test_every_error_is_asserted_somewhere() -> None:
    assert {kind.__name__ for kind in error_classes()} - asserted_codes() == set()


def test_ctrl_c_while_a_command_loads_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: object, name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.LazyCommands, "__getitem__", interrupted)
    done = run("history", ".", "--json")
    assert (done.status, done.document["error"]["code"]) == (errors.INTERRUPTED, "Interrupted")
    assert done.stderr.split() == f"regraft: {done.document['error']['message']}".split()


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (("check", "--part"), "regraft check --help"),
        (("fleet", "check", "--results"), "regraft fleet check --help"),
        (("check", "--nothing"), "regraft check --help"),
        (("fleet", "check"), "regraft fleet check --help"),
        (("--nothing",), "regraft --help"),
    ],
)
def test_a_mistake_in_the_options_names_the_help_of_its_command(words: tuple[str, ...], place: str) -> None:
    done = run(*words)
    assert (done.status, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.endswith(f"(see {place}).\n")
