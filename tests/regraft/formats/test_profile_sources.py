"""Profiles and backups of version 6 as sources: one state, wherever it lies, gives one library."""

from __future__ import annotations

import json
import os
import shutil
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chromium_files import FILES, NOTES, idb_folder, local_key, local_text, names, row, row_key
from harness import NOW, REPO, Outcome, run, snapshot
from leveldb_files import Folder, TableSpec, batch

BACKUP = REPO / "sample_v1" / "backup"
STATE = json.loads((BACKUP / "data.json").read_text("utf-8"))
KEY = "persist:cherry-studio"
APPLICATION = "file://"


def local_storage(profile: Path, entries: dict[bytes, bytes | None], older: dict[bytes, bytes] | None = None) -> None:
    folder = Folder(profile / "Local Storage" / "leveldb", logs={4: [batch(100, list(entries.items()))]})
    if older:
        folder.tables = [TableSpec(3, [(key, 1 + at, value) for at, (key, value) in enumerate(sorted(older.items()))])]
    folder.write()


def indexed_db(profile: Path, tables: dict[str, list[dict[str, Any]]], origin: str = "file__0") -> Path:
    entries: dict[bytes, bytes | None] = dict(names({FILES: "files", NOTES: "knowledge_notes"}))
    for store, name in ((FILES, "files"), (NOTES, "knowledge_notes")):
        for value in sorted(tables.get(name, ()), key=lambda one: str(one["id"])):
            entries[row_key(store, value["id"])] = row(value)
    return idb_folder(profile / "IndexedDB" / f"{origin}.indexeddb.leveldb", entries).write()


def make_profile(folder: Path, data: Path | None = None) -> Path:
    """Make a profile that holds the sample's state; its data lie in ``data``."""
    text = STATE["localStorage"][KEY]
    local_storage(folder, {local_key(APPLICATION, KEY): local_text(text, wide=True)})
    indexed_db(folder, STATE["indexedDB"])
    shutil.copytree(BACKUP / "Data", (data or folder) / "Data")
    return folder


def metadata(folder: Path) -> Path:
    (folder / "metadata.json").write_text(
        json.dumps({"version": 6, "appName": "Cherry Studio", "platform": "linux"}), "utf-8"
    )
    return folder


def packed(folder: Path) -> Path:
    archive = folder.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(folder.rglob("*")):
            file.write(path, path.relative_to(folder))
    return archive


def browser_root(folder: Path) -> Path:
    make_profile(folder / "Default", folder)
    return folder


def below(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        make_profile(folder / name)
        (folder / "Cherry Studio.exe").touch()
        return folder

    return make


def upgraded(folder: Path) -> Path:
    make_profile(folder)
    (folder / "cherrystudio.sqlite").touch()
    return folder


SOURCES: dict[str, tuple[Callable[[Path], Path], str, tuple[str, ...]]] = {
    "profile": (make_profile, "v1-profile", ()),
    "portable": (below("data"), "v1-profile", ()),
    "browser": (browser_root, "v1-profile", ()),
    "upgraded": (upgraded, "v1-profile", ("--kind", "v1-profile")),
    "folder 6": (lambda folder: metadata(make_profile(folder)), "v1-backup-6", ()),
    "zip 6": (lambda folder: packed(metadata(make_profile(folder))), "v1-backup-6", ()),
}


def library_of(target: Path) -> dict[str, bytes]:
    """Return what a library holds but for its report and regraft's own record."""
    files = {path.relative_to(target).as_posix(): path for path in target.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if not name.startswith(("report.", ".regraft"))}


def migrate(source: Path, target: Path, *more: object) -> Outcome:
    return run("migrate", source, "--to", target, "--json", "--now", NOW, *more)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    target = tmp_path_factory.mktemp("expected") / "library"
    assert migrate(BACKUP, target).status == 1
    return library_of(target)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return make_profile(tmp_path / "CherryStudio")


def codes(outcome: Outcome) -> list[str]:
    return [warning["code"] for warning in outcome.document["warnings"]]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", SOURCES)
def test_one_library_from_every_kind_of_source(name: str, expected: dict[str, bytes], tmp_path: Path) -> None:
    make, kind, more = SOURCES[name]
    source = make(tmp_path / "source")
    before = snapshot(source) if source.is_dir() else source.read_bytes()
    done = migrate(source, tmp_path / "library", *more)
    assert (done.status, done.document["source"]) == (1, {"kind": kind, "path": str(source)})
    assert library_of(tmp_path / "library") == expected
    assert (snapshot(source) if source.is_dir() else source.read_bytes()) == before
    again = migrate(source, tmp_path / "library", *more)
    assert {base["outcome"] for base in again.document["bases"]} == {"unchanged", "failed"}


@pytest.mark.thorough
def test_a_profile_after_a_backup_of_it_changes_nothing(profile: Path, tmp_path: Path) -> None:
    assert migrate(BACKUP, tmp_path / "library").status == 1
    before = snapshot(tmp_path / "library" / "KnowledgeBase")
    again = migrate(profile, tmp_path / "library")
    assert {base["outcome"] for base in again.document["bases"]} == {"unchanged", "failed"}
    assert snapshot(tmp_path / "library" / "KnowledgeBase") == before


@pytest.mark.parametrize("command", ["migrate", "inspect"])
def test_a_v2_profile_says_how_its_v1_data_are_read(command: str, tmp_path: Path) -> None:
    source = upgraded(tmp_path / "profile")
    if command == "migrate":
        done = run("migrate", source, "--to", tmp_path / "library")
        assert done.status == 2
        assert "--kind v1-profile" in done.stderr
    else:
        assert run("inspect", source, "--kind", "v1-profile", "--json").document["kind"] == "v1-profile"


# --- which state counts --------------------------------------------------------------------------------------------


def state_of(*base_names: str) -> str:
    bases = [{"id": f"id-{name}", "name": name, "items": []} for name in base_names]
    return json.dumps({"knowledge": json.dumps({"bases": bases}), "settings": json.dumps("x" * 1000)})


def bases_of(profile: Path) -> list[str]:
    return [base["name"] for base in run("inspect", profile, "--json").document["bases"]]


def test_the_newest_generation_counts(tmp_path: Path) -> None:
    key = local_key(APPLICATION, KEY)
    local_storage(tmp_path, {key: local_text(state_of("new"))}, {key: local_text(state_of("old", "older"))})
    assert bases_of(tmp_path) == ["new"]


def test_a_state_that_was_deleted_does_not_come_back(tmp_path: Path) -> None:
    key = local_key(APPLICATION, KEY)
    local_storage(tmp_path, {key: None}, {key: local_text(state_of("old"))})
    done = run("inspect", tmp_path, "--json")
    assert done.document["bases"] == []


def test_the_origin_with_the_tables_counts(tmp_path: Path) -> None:
    """A page that a user looked at may have a key of the same name."""
    entries = {
        local_key(origin, KEY): local_text(state_of(origin))
        for origin in (APPLICATION, "http://localhost:5173", "https://a.b")
    }
    local_storage(tmp_path, entries)
    assert bases_of(tmp_path) == [APPLICATION]
    indexed_db(tmp_path, {}, "http_localhost_5173")
    assert bases_of(tmp_path) == ["http://localhost:5173"]
    indexed_db(tmp_path, {})
    assert bases_of(tmp_path) == [APPLICATION]


def test_surrogates_of_chats_do_no_harm(tmp_path: Path) -> None:
    state = json.dumps(
        {"assistants": '"cut \\ud83d"', "knowledge": json.dumps({"bases": [{"id": "1", "name": "中 \ud83d"}]})}
    )
    raw = (
        '{"knowledge": '
        + json.dumps(json.dumps({"bases": [{"id": "1", "name": "raw \ud83d"}]}, ensure_ascii=False), ensure_ascii=False)
        + "}"
    )
    for name, text in (("中 \ufffd", state), ("raw \ufffd", raw)):
        shutil.rmtree(tmp_path / "Local Storage", ignore_errors=True)
        local_storage(tmp_path, {local_key(APPLICATION, KEY): local_text(text, wide=True)})
        assert bases_of(tmp_path) == [name]


# --- what is missing or damaged ------------------------------------------------------------------------------------


def test_without_its_tables_a_profile_is_read_with_a_warning(profile: Path, tmp_path: Path) -> None:
    shutil.rmtree(profile / "IndexedDB")
    done = migrate(profile, tmp_path / "library")
    assert done.status == 1
    assert codes(done).count("dexie_table_unreadable") == 1
    assert done.document["totals"]["rows"]["carried"] > 0


def test_damaged_tables_are_named(profile: Path, tmp_path: Path) -> None:
    manifest = next((profile / "IndexedDB").rglob("MANIFEST-*"))
    next((profile / "IndexedDB").rglob("*.log")).write_bytes(os.urandom(200_000))
    manifest.write_bytes(b"x" * 300)
    done = migrate(profile, tmp_path / "library")
    assert done.status == 1
    assert {"dexie_table_unreadable", "storage_damaged"} & set(codes(done))


def test_a_damaged_state_is_one_line(profile: Path, tmp_path: Path) -> None:
    next((profile / "Local Storage").rglob("*.log")).write_bytes(os.urandom(100_000))
    before = snapshot(tmp_path)
    done = run("migrate", profile, "--to", tmp_path / "library")
    assert done.status == 2
    assert done.stderr.count("\n") == 1
    assert "Local Storage/leveldb: cannot be read (it is damaged or incomplete" in done.stderr
    assert snapshot(tmp_path) == before


def test_a_damaged_end_is_named(profile: Path, tmp_path: Path) -> None:
    """What was written last is not readable: the state before it counts, and that is said."""
    log = next((profile / "Local Storage").rglob("*.log"))
    whole = log.read_bytes()
    log.write_bytes(whole + bytes([1, 2, 3, 4, 100, 0, 1]) + bytes(range(1, 101)))
    done = migrate(profile, tmp_path / "library")
    assert "storage_damaged" in codes(done)
    assert done.document["totals"]["rows"]["carried"] > 0


@pytest.mark.parametrize("version", [5, 6])
def test_a_slim_backup_is_named(version: int, tmp_path: Path) -> None:
    source = tmp_path / "backup"
    if version == 6:
        metadata(make_profile(source))
    else:
        shutil.copytree(BACKUP, source)
    shutil.rmtree(source / "Data")
    done = migrate(source, tmp_path / "library")
    assert done.status == 1
    assert codes(done).count("slim_backup") == 1
    assert {base["error"] for base in done.document["bases"]} == {"missing_vector_store"}
    assert "slim backup" in run("inspect", source).stdout


def test_a_slim_backup_with_empty_folders_is_one_too(tmp_path: Path) -> None:
    shutil.copy(BACKUP / "data.json", tmp_path)
    for name in ("KnowledgeBase", "Files"):
        (tmp_path / "Data" / name).mkdir(parents=True)
    assert "slim backup" in run("inspect", tmp_path).stdout


@pytest.mark.thorough
def test_folders_of_an_older_layout_are_named(profile: Path, tmp_path: Path) -> None:
    folder = profile / "Data" / "KnowledgeBase"
    [failed] = [base["id"] for base in json.loads(json.loads(STATE["localStorage"][KEY])["knowledge"])["bases"]][-1:]
    next(folder.glob(f"{failed}*")).unlink()
    for name in (failed, "an old one", "v2 already/.cherry"):
        (folder / name).mkdir(parents=True)
    done = migrate(profile, tmp_path / "library", "--fail-on", "never")
    [notice] = [one for one in done.document["warnings"] if one["code"] == "older_layout"]
    assert (notice["count"], "an old one" in notice["message"], "v2 already" in notice["message"]) == (2, True, False)
    [store] = [one for one in done.document["warnings"] if one["code"] == "missing_vector_store"]
    assert "is a folder, not a vector file" in store["message"]


def test_what_v1_was_going_to_delete_does_not_come_back(profile: Path, tmp_path: Path) -> None:
    first = json.loads(json.loads(STATE["localStorage"][KEY])["knowledge"])["bases"][0]["id"]
    (profile / "Data" / "KnowledgeBase" / "knowledge_pending_delete.json").write_text(json.dumps([first]), "utf-8")
    done = migrate(profile, tmp_path / "library")
    assert done.document["skipped"]["pending_delete"] == 1
    assert first not in [base["legacy_id"] for base in done.document["bases"]]


# --- running, and elsewhere ----------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.skipif(os.name == "nt", reason="a link as POSIX systems have it")
def test_a_running_application_is_named(profile: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    (profile / "SingletonLock").symlink_to(f"{socket.gethostname()}-{os.getpid()}")
    target = tmp_path / "new" / "library"
    for more in ((), ("--dry-run",)):
        done = run("migrate", profile, "--to", target, *more)
        assert done.status == 2
        assert done.stderr.startswith(
            f"regraft: {profile}: the application is running (process {os.getpid()}), so its data may change"
        )
        assert done.stderr.count("\n") == 1
        assert not target.parent.exists()
    refused = migrate(profile, target)
    assert refused.document["error"]["code"] == "ApplicationRunning"
    assert "the application is running" in run("inspect", profile).stdout
    done = migrate(profile, target, "--while-running")
    assert (done.status, codes(done)[0]) == (1, "application_running")
    assert library_of(target) == expected


@pytest.mark.thorough
def test_the_folder_that_the_settings_name_is_read(
    profile: Path, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    config = home / ".cherrystudio" / "config" / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps({"appDataPath": [{"executablePath": "/opt/x", "dataPath": str(profile)}]}), "utf-8")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("APPDATA", raising=False)
    default = home / ".config" / "CherryStudio"
    done = migrate(default, tmp_path / "library")
    assert (done.status, done.document["source"]["path"], codes(done)[0]) == (1, str(profile), "profile_moved")
    assert library_of(tmp_path / "library") == expected
    assert run("inspect", config, "--json").document["source"]["path"] == str(profile)
    (default / "Local Storage" / "leveldb").mkdir(parents=True)
    literal = run("inspect", default, "--kind", "v1-profile", "--json")
    assert literal.document["error"]["code"] == "SourceUnreadable"
    other = tmp_path / "other"
    other.mkdir()
    config.write_text(json.dumps({"appDataPath": [{"dataPath": str(profile)}, {"dataPath": str(other)}]}), "utf-8")
    refused = migrate(default, tmp_path / "second")
    assert (refused.status, refused.document["error"]["code"]) == (2, "ProfileAmbiguous")
    assert str(other) in refused.stderr
    assert str(profile) in refused.stderr
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize("damage", ["garbage", "no log", "empty"])
def test_a_damaged_database_of_the_application_still_chooses_its_state(damage: str, tmp_path: Path) -> None:
    """Another page's state must not slip in because the application's tables cannot be read."""
    page = "http://localhost:5173"
    local_storage(tmp_path, {local_key(origin, KEY): local_text(state_of(origin)) for origin in (APPLICATION, page)})
    folder = indexed_db(tmp_path, {})
    indexed_db(tmp_path, {}, "http_localhost_5173")
    for path in folder.iterdir():
        if damage == "empty" or (damage == "no log" and path.suffix == ".log"):
            path.unlink()
        elif path.suffix == ".log":
            path.write_bytes(bytes(range(1, 201)) * 300)
    done = run("inspect", tmp_path, "--json").document
    assert [base["name"] for base in done["bases"]] == [APPLICATION]
    assert any("file__0.indexeddb.leveldb" in problem for problem in done["health"]["problems"])


def test_damage_of_an_origin_that_is_not_read_is_no_news(tmp_path: Path) -> None:
    page = "http://localhost:5173"
    local_storage(tmp_path, {local_key(origin, KEY): local_text(state_of(origin)) for origin in (APPLICATION, page)})
    indexed_db(tmp_path, {})
    other = indexed_db(tmp_path, {}, "http_localhost_5173")
    next(other.glob("*.log")).write_bytes(bytes(range(1, 201)) * 300)
    problems = run("inspect", tmp_path, "--json").document["health"]["problems"]
    assert not any("5173" in problem for problem in problems)


@pytest.mark.thorough
@pytest.mark.parametrize("text", [None, "{}", '{"knowledge": "null"}', '{"knowledge": "{\\"bases\\": []}"}'])
def test_a_lost_state_beside_vector_files_is_a_warning(text: str | None, profile: Path, tmp_path: Path) -> None:
    shutil.rmtree(profile / "Local Storage")
    key = KEY if text is not None else "another"
    local_storage(profile, {local_key(APPLICATION, key): local_text(text or "x")})
    done = migrate(profile, tmp_path / "library")
    assert done.status == 1
    [notice] = [one for one in done.document["warnings"] if one["code"] == "lost_state"]
    assert notice["count"] == sum(path.is_file() for path in (profile / "Data" / "KnowledgeBase").iterdir())


def test_a_profile_without_data_is_named(profile: Path, tmp_path: Path) -> None:
    shutil.rmtree(profile / "Data")
    done = migrate(profile, tmp_path / "library")
    assert codes(done).count("data_missing") == 1
    assert "slim_backup" not in codes(done)


@pytest.mark.parametrize("part", ["Data", "Data/KnowledgeBase", "Local Storage", "Local Storage/leveldb", "IndexedDB"])
def test_a_part_of_a_profile_says_what_to_give(part: str, profile: Path) -> None:
    done = run("inspect", profile / part)
    assert done.status == 2
    assert f"(it is part of the profile {profile}; give that instead)" in done.stderr


def test_a_profile_without_its_state_says_what_is_missing(profile: Path) -> None:
    shutil.rmtree(profile / "Local Storage")
    done = run("inspect", profile)
    assert done.status == 0
    assert "no state names these vector files; regraft migrate --adopt-orphans" in done.stdout
    for path in (profile / "Data" / "KnowledgeBase").iterdir():
        path.unlink()
    done = run("inspect", profile)
    assert done.status == 2
    assert "without `Local Storage`, where the application keeps its state" in done.stderr


@pytest.mark.thorough
def test_the_profile_below_a_browser_finds_the_data_beside_it(expected: dict[str, bytes], tmp_path: Path) -> None:
    source = browser_root(tmp_path / "source")
    done = migrate(source / "Default", tmp_path / "library")
    assert (done.status, done.document["source"]["path"]) == (1, str(source))
    assert library_of(tmp_path / "library") == expected
    assert migrate(source / "Default", source / "library").document["error"]["code"] == "TargetOverlapsSource"


@pytest.mark.skipif(os.name == "nt", reason="a link as POSIX systems have it")
@pytest.mark.parametrize("kind", ["v1-backup-6", "v1-profile"])
def test_a_running_application_is_seen_whatever_the_kind(kind: str, tmp_path: Path) -> None:
    profile = make_profile(tmp_path / "Local Storage copy" / "CherryStudio")
    (profile / "SingletonLock").symlink_to(f"{socket.gethostname()}-{os.getpid()}")
    done = migrate(profile, tmp_path / "library", "--kind", kind)
    assert done.document["error"]["code"] == "ApplicationRunning"


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("gone", "the data folder named in the application's settings does not exist)"),
        ("not a profile", "the application's settings name the data folder {named}, which is not a profile)"),
    ],
)
def test_settings_that_name_no_profile(
    named: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    config = home / ".cherrystudio" / "config" / "config.json"
    config.parent.mkdir(parents=True)
    (tmp_path / "not a profile").mkdir()
    config.write_text(json.dumps({"appDataPath": str(tmp_path / named)}), "utf-8")
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(home))
    done = run("inspect", config)
    assert done.status == 2
    reason = reason.format(named=tmp_path / named)
    assert done.stderr.startswith(f"regraft: {config}: not a knowledge base that regraft knows ({reason}")


def test_an_upgraded_profile_says_how_it_is_checked(tmp_path: Path) -> None:
    done = run("check", upgraded(tmp_path / "profile"))
    assert done.status == 1
    assert "--kind v1-profile checks what v1 left" in done.stdout
