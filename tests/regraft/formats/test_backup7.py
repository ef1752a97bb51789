"""Backups of version 7: full, slim and early, zipped and unpacked, read by every command that takes them."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from backup7 import SLIM, backup, full
from extras import needs
from faults import REFUSED, files_of, migrate, said, small_source, untouched
from harness import NOW, Outcome, run
from profiles import profile, rows, tables

from regraft import identity

ALPHA, BETA, GAMMA = (identity.base_id(name) for name in ("alpha", "beta", "gamma"))
FORMS = ["folder", "zip", "zip of its folder"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a profile with three bases."""
    place = tmp_path_factory.mktemp("installed")
    assert migrate(small_source(place / "v1").write(), place / "library").status == 1
    done = run("install", place / "library", "--profile", profile(place / "profile"), "--now", NOW, "-y")
    assert done.status == 0, done.stderr
    return place / "profile"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """See that the temporary folder of every run stays empty."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    assert list(place.iterdir()) == []


def slim(installed: Path, folder: Path) -> Path:
    backup(installed, folder, **SLIM)
    for name in ("KnowledgeBase", "Files"):
        shutil.rmtree(folder / "Data" / name)
    return folder


def early(installed: Path, folder: Path) -> Path:
    backup(installed, folder, database=True, appClaude=True)
    (folder / "Data" / "cherrystudio.sqlite").rename(folder / "cherrystudio.sqlite")
    (folder / ".claude").mkdir()
    return folder


def shaped(folder: Path, form: str) -> Path:
    """Return a backup as a folder or an archive."""
    if form == "folder":
        return folder
    inside = (folder.parent, folder.name) if form == "zip of its folder" else (folder, ".")
    return Path(shutil.make_archive(str(folder.with_name(f"{folder.name}-packed")), "zip", *inside))


def findings(path: Path, *options: object) -> list[tuple[str, str | None, str]]:
    found = run("check", path, "--json", *options).document["findings"]
    return [(one["name"], one["base"], one["severity"]) for one in found]


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", [full, early])
def test_a_backup_is_read_as_its_profile_is(installed, tmp_path, make: Callable[..., Path], form):
    path = shaped(make(installed, tmp_path / "backup"), form)
    with untouched(path):
        checked = run("check", path, "--json")
        assert checked.document["source"]["kind"] == "v2-backup"
        assert findings(path) == findings(installed)
        assert {one["repair"] for one in checked.document["findings"]} <= {None}
        assert findings(path, "--deep", "--base", BETA) == findings(installed, "--deep", "--base", BETA)
        looked, expected = (run("inspect", place, "--json").document for place in (path, installed))
        # Without the ledger of the profile, nothing shows that a migration made the failed base.
        of_migration = "failed during the migration: missing_vector_store"
        assert expected["bases"][-1]["problem"] == of_migration
        expected["bases"][-1]["problem"] = "failed during the upgrade: missing_vector_store"
        assert (looked["kind"], looked["bases"]) == ("v2-backup", expected["bases"])
        query = ("lamp", "--base", ALPHA, "--mode", "bm25", "--json")
        hits = run("search", path, *query).document["hits"]
        assert hits
        assert hits == run("search", installed, *query).document["hits"]


@pytest.mark.parametrize("form", FORMS)
@needs("parquet")
def test_a_backup_is_exported(installed, tmp_path, form):
    path = shaped(full(installed, tmp_path / "backup"), form)
    target = tmp_path / "out.parquet"
    done = run("export", path, target, "--json")
    assert sum(base["rows"]["carried"] for base in done.document["bases"]) > 0
    expected = run("export", installed, target, "--json").document["bases"]
    assert done.document["bases"] == expected


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
def test_a_slim_backup_has_rows_alone_and_no_damage(installed, tmp_path, form):
    path = shaped(slim(installed, tmp_path / "backup"), form)
    checked = run("check", path, "--json")
    found = {(one["name"], one["severity"]) for one in checked.document["findings"]}
    assert ("backup.slim", "note") in found
    assert found - {("backup.slim", "note")} <= {(name, severity) for name, _, severity in findings(installed)}
    assert not {name for name, _ in found} & {"base.no-index", "raw.missing", "item.no-material"}
    (note,) = [one for one in checked.document["findings"] if one["name"] == "backup.slim"]
    assert "4 bases" in note["message"]
    looked = run("inspect", path, "--json").document
    assert "slim" in looked["health"]["notes"][0]
    assert [base["problem"] for base in looked["bases"] if base["status"] == "completed"] == [None, None]
    assert "note: a slim backup" in run("inspect", path).stdout
    said(run("search", path, "lamp", "--base", ALPHA, "--mode", "bm25", "--json"), "BackupSlim", REFUSED)
    said(run("pack", path, tmp_path / "base.zip", "--json"), "NothingToPack", REFUSED)


def test_of_a_slim_backup_nothing_is_installed_and_why_is_said(installed, tmp_path):
    path = shaped(slim(installed, tmp_path / "backup"), "zip")
    place = profile(tmp_path / "profile")
    before = tables(place)
    done = run("install", path, "--profile", place, "--json", "-y")
    left = {one["base"]: one for one in done.document["left"]}
    assert (done.status, done.document["actions"]) == (1, [])
    assert {ALPHA, BETA} <= left.keys()
    assert "slim" in left[BETA]["reason"]
    assert tables(place) == before


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", [full, early])
def test_bases_of_a_backup_come_into_another_profile(installed, tmp_path, make: Callable[..., Path], form):
    path = shaped(make(installed, tmp_path / "backup"), form)
    place = profile(tmp_path / "profile")
    before = tables(place)
    with untouched(path):
        done = run("install", path, "--profile", place, "--base", "Base beta", "--json", "-y")
    assert (done.status, done.document["left"]) == (0, []), done.stderr
    folders = [place / "Data" / "KnowledgeBase", installed / "Data" / "KnowledgeBase"]
    assert [one.name for one in folders[0].iterdir()] == [BETA]
    assert files_of(folders[0] / BETA) == files_of(folders[1] / BETA)
    query = f"SELECT * FROM knowledge_item WHERE base_id = '{BETA}' ORDER BY id"
    assert rows(place / "cherrystudio.sqlite", query) == rows(installed / "cherrystudio.sqlite", query)
    assert run("undo", place, "-y").status == 0
    assert tables(place) == before


@pytest.mark.thorough
def test_a_backup_is_packed(installed, tmp_path):
    packed = [
        run("pack", shaped(full(installed, tmp_path / form), form), tmp_path / f"{form}.zip", "--now", NOW, "--json")
        for form in ("folder", "zip")
    ]
    assert [done.status for done in packed] == [0, 0], packed
    assert (tmp_path / "folder.zip").read_bytes() == (tmp_path / "zip.zip").read_bytes()


def changing(path: Path) -> Iterator[Outcome]:
    for command in ("repair", "gc", "reconcile", "upgrade"):
        yield run(command, path, "-y", "--json")


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
def test_a_backup_is_never_changed(installed, tmp_path, form):
    path = shaped(full(installed, tmp_path / "backup"), form)
    with untouched(path):
        for done in changing(path):
            assert said(done, "NotChanged", REFUSED)


@pytest.mark.thorough
def test_a_damaged_backup(installed, tmp_path):
    folder = full(installed, tmp_path / "backup")
    index = folder / "Data" / "KnowledgeBase" / BETA / ".cherry" / "index.sqlite"
    index.write_bytes(index.read_bytes()[:5000])
    for path in (folder, shaped(folder, "zip")):
        assert ("file.unreadable", BETA, "error") in findings(path)
        assert run("inspect", path).status == 0
    (folder / "Data" / "cherrystudio.sqlite").write_bytes(b"SQLite format 3\0" + b"x" * 4000)
    for path in (folder, shaped(folder, "zip")):
        assert ("file.unreadable", None, "error") in findings(path)
        said(run("install", path, "--profile", profile(path.with_suffix(".p")), "--json"), "SourceUnreadable", REFUSED)


@pytest.mark.thorough
def test_resources_that_say_nothing_are_no_slim_backup(installed, tmp_path):
    for number, resources in enumerate(("null", "[]", '{"indexedDB": 0}')):
        folder = full(installed, tmp_path / f"backup-{number}")
        (folder / "metadata.json").write_text(f'{{"version": 7, "resources": {resources}}}', "utf-8")
        assert findings(folder) == findings(installed)


@pytest.mark.parametrize("form", FORMS)
def test_a_backup_of_the_database_alone_is_slim_where_it_does_not_say_so(installed, tmp_path, form):
    folder = slim(installed, tmp_path / "backup")
    (folder / "metadata.json").write_text('{"version": 7}')
    found = findings(shaped(folder, form))
    assert ("backup.slim", None, "note") in found
    assert "base.no-index" not in {name for name, _, _ in found}


@pytest.mark.thorough
def test_what_a_mac_puts_beside_a_packed_folder_is_passed_over(installed, tmp_path):
    path = shaped(full(installed, tmp_path / "backup"), "zip of its folder")
    with zipfile.ZipFile(path, "a") as archive:
        for name in (".DS_Store", "._backup", "__MACOSX/._backup", "__MACOSX/backup/._metadata.json"):
            archive.writestr(name, b"x")
    assert run("inspect", path, "--json").document["kind"] == "v2-backup"
    assert findings(path) == findings(installed)
