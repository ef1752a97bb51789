"""``regraft migrate --profile``: one plan, one run and one undo for a migration and its installation."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import zipfile
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from faults import (
    INTERRUPTED,
    REFUSED,
    STOPPED,
    Source,
    Tripwire,
    forked,
    item,
    posix,
    said,
    small_source,
    untouched,
    write_vectors,
)
from harness import GOLDEN, NOW, REPO, Outcome, run_as_given
from profiles import profile, start_application
from stand_ins import KILLED, die

import migrators
import regraft
from migrators.pipeline import publication
from regraft.disk import durable
from regraft.errors import CopyDiffers, Declined
from regraft.ledger import ledger
from repair.changes import execution
from repair.cherry_v2.install import base_copy

SAMPLE = REPO / "sample_v1" / "cherry-studio.202503141200.zip"
PROVIDERS = ("--recreate-provider", "openai", "--recreate-provider", "silicon")
golden = pytest.mark.skipif(
    not (GOLDEN / "profile_21x_empty").is_dir(),
    reason="no profiles of the application: REGRAFT_GOLDEN is not set, and no shared/golden beside the repository",
)


class Case(NamedTuple):
    source: Path
    profile: Path

    def migrate(self, *options: object) -> Outcome:
        return run_as_given("migrate", self.source, "--profile", self.profile, "--now", NOW, "--json", *options)

    def both(self, *options: object) -> Outcome:
        return self.migrate("--yes", "--fail-on", "never", *options)

    def undo(self, *options: object) -> Outcome:
        return run_as_given("undo", self.profile, "--yes", "--json", *options)


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    """Return a source and a profile; the current directory has nothing else, and no temporary file may stay."""
    (tmp_path / "here").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    yield Case(small_source(tmp_path / "v1").write(), profile(tmp_path / "profile"))
    assert list((tmp_path / "temporary").iterdir()) == []


def dump(folder: Path) -> dict[str, Any]:
    """Read a profile with Python's own SQLite: the rows of every table, and the bytes of every other file."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or name.startswith(".regraft/") or name.endswith(("-wal", "-shm")):
            continue
        if path.read_bytes()[:15] != b"SQLite format 3" or not path.name.endswith(".sqlite"):
            found[name] = path.read_bytes()
            continue
        with closing(sqlite3.connect(path)) as db:
            db.text_factory = bytes
            names = [one.decode() for (one,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
            plain = [one for one in names if not one.endswith(("_fts", "_data", "_idx", "_docsize", "_config"))]
            found[name] = {one: sorted(db.execute(f'SELECT * FROM "{one}"').fetchall(), key=repr) for one in plain}
    return found


def library_of(folder: Path) -> dict[str, Any]:
    """Read a library, without its report, which names the run and its time."""
    return {name: content for name, content in dump(folder).items() if not name.startswith("report.")}


def here() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


def actions(outcome: Outcome) -> list[tuple[str, str | None]]:
    return [(one["action"], one["base"]) for one in outcome.document["install"]["actions"]]


def refused(case: Case, code: str, *options: object) -> str:
    """Assert that a run is refused, dry or not, and writes nothing; return the message."""
    before = here()
    with untouched(case.profile):
        message = said(case.migrate("--dry-run", *options), code, REFUSED)
        assert said(case.migrate("--yes", *options), code, REFUSED) == message
    assert here() == before
    return message


# --- what it does ----------------------------------------------------------------------------------------------------


def two_commands(source: Path, place: Path, options: tuple[str, ...]) -> None:
    library = place.parent / "two" / "library"
    migrated = run_as_given("migrate", source, "--to", library, "--now", NOW, "--json", "--fail-on", "never")
    assert migrated.status == 0, migrated.stdout
    done = run_as_given("install", library, "--profile", place, "--now", NOW, "--json", "--yes", *options)
    assert done.document["undo"], done.stdout


@pytest.mark.one_in(2)
@pytest.mark.parametrize("with_keys", [True, False], ids=["providers are there", "providers are created"])
def test_it_gives_what_two_commands_give(case, tmp_path, with_keys):
    more = [
        f"INSERT INTO user_provider VALUES ('{name}', NULL, '{name}', '[\"key\"]', 1, 'b{name}', 1, 1)"
        for name in ("openai", "silicon")
        if with_keys
    ]
    options = () if with_keys else PROVIDERS
    one, two = profile(tmp_path / "one", *more), profile(tmp_path / "two-commands", *more)
    before = dump(one)
    done = Case(SAMPLE, one).both(*options)
    assert done.status == 0, done.stdout
    two_commands(SAMPLE, two, options)
    assert dump(one) == dump(two) != before
    assert library_of(Path("library")) == library_of(tmp_path / "two" / "library")
    assert [base["outcome"] for base in done.document["bases"]] == ["written"] * 3 + ["failed"]


@pytest.mark.thorough
@golden
@pytest.mark.parametrize("name", ["profile_21x_empty", "profile_upgraded", "profile_208_empty"])
def test_it_gives_what_two_commands_give_in_a_real_profile(case, tmp_path, name):
    one, two = (
        shutil.copytree(GOLDEN / name, tmp_path / folder, copy_function=shutil.copyfile) for folder in ("one", "second")
    )
    before = dump(one)
    done = Case(SAMPLE, one).both(*PROVIDERS)
    assert done.status == 0, done.stdout
    two_commands(SAMPLE, two, PROVIDERS)
    assert dump(one) == dump(two) != before
    assert Case(SAMPLE, one).undo().status == 0
    assert dump(one) == before
    assert here() == []


@pytest.mark.thorough
def test_the_document_names_source_library_and_profile(case):
    done = case.both()
    document = done.document
    assert document["regraft"]["command"] == "migrate"
    assert document["source"]["path"] == str(case.source)
    assert document["target"] == {"kind": "library", "path": "library"}
    assert document["profile"] == {"kind": "v2-profile", "path": str(case.profile)}
    assert document["run"]["finished_at"] is not None
    assert document["install"]["undo"] == run_as_given("history", case.profile, "--json").document["runs"][0]["id"]
    assert document["install"]["left"] == []
    assert set(document["install"]) == {"bases", "actions", "left", "undo"}


def test_a_dry_run_writes_nothing_and_says_what_is_done(case):
    with untouched(case.profile, case.source):
        dry = case.migrate("--dry-run")
    assert dry.document["run"]["dry_run"] is True
    assert dry.document["install"]["undo"] is None
    assert here() == []
    with untouched(case.source):
        done = case.both()
    assert actions(dry) == actions(done)
    again = case.migrate("--dry-run")
    assert actions(again) == []
    assert [base["outcome"] for base in again.document["bases"]] == ["unchanged", "unchanged", "failed"]


def test_one_undo_takes_both_back(case):
    before = dump(case.profile)
    assert case.both().status == 0
    with untouched(case.profile, Path("library")):
        dry = case.undo("--dry-run")
    gone = case.undo()
    assert dump(case.profile) == before
    assert here() == []
    removed = [one for one in gone.document["actions"] if one["action"] == "remove-library"]
    assert [one["subject"] for one in removed] == [str(Path("library").absolute())]
    assert [one["action"] for one in dry.document["actions"]] == [one["action"] for one in gone.document["actions"]]
    assert said(case.undo(), "RunUnknown", REFUSED)
    assert case.both().status == 0


def test_an_open_file_among_what_was_taken_back_does_not_stop_undo(case, monkeypatch):
    before = dump(case.profile)
    assert case.both().status == 0
    work = case.profile.resolve() / ".regraft" / "work"
    real = durable.remove_tree

    def refuse(path: Path, **more: Any) -> None:
        if path.resolve().is_relative_to(work):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        real(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "remove_tree", refuse)
        assert case.undo().status == 0
    assert dump(case.profile) == before
    assert here() == []
    assert work.exists()
    assert case.both().status == 0
    assert not work.exists()


@pytest.mark.thorough
def test_a_second_run_changes_nothing(case):
    assert case.both().status == 0
    with untouched(case.profile, Path("library") / "KnowledgeBase"):
        again = case.both()
    assert again.status == 0
    assert actions(again) == []
    assert here() == ["library"]


@pytest.mark.thorough
def test_more_bases_of_the_same_source_come_into_the_same_library(case):
    assert case.both("--base", "alpha").status == 0
    assert case.both("--base", "beta").status == 0
    assert here() == ["library"]
    bases = {path.name for path in (case.profile / "Data" / "KnowledgeBase").iterdir()}
    assert bases == {path.name for path in Path("library/KnowledgeBase").iterdir()}
    assert len(bases) == 2


@pytest.mark.thorough
@pytest.mark.parametrize("there", ["file", "folder", "library of another source", "broken link"])
def test_the_library_has_the_first_free_name(case, tmp_path, there):
    if there == "file":
        Path("library").write_text("mine")
    elif there == "folder":
        Path("library").mkdir()
        Path("library/mine.txt").write_text("mine")
    elif there == "broken link":
        Path("library").symlink_to("nowhere")
    else:
        assert run_as_given("migrate", SAMPLE, "--to", "library", "--fail-on", "never", "-q").status == 0
    Path("library-2").mkdir()
    done = case.both()
    assert done.document["target"]["path"] == "library-2"
    assert Path("library-2/catalog.sqlite").is_file()


@pytest.mark.thorough
def test_as_new_installs_beside_what_is_there(case):
    assert case.both().status == 0
    done = case.both("--as-new")
    assert [name for name, _ in actions(done)].count("insert-base") == 3
    with closing(sqlite3.connect(case.profile / "cherrystudio.sqlite")) as db:
        assert db.execute("SELECT count(*) FROM knowledge_base").fetchone() == (7,)


@pytest.mark.thorough
def test_a_model_can_be_mapped_to_one_of_the_profile(case):
    done = case.both("--map-model", "acme::embed-small=acme::other")
    assert done.status == 0
    assert "insert-model" not in [name for name, _ in actions(done)]
    with closing(sqlite3.connect(case.profile / "cherrystudio.sqlite")) as db:
        assert set(db.execute("SELECT embedding_model_id FROM knowledge_base WHERE id != 'own'")) == {("acme::other",)}


# --- the question ----------------------------------------------------------------------------------------------------


def test_without_a_terminal_it_needs_yes(case):
    with untouched(case.profile):
        message = said(case.migrate(), "ConsentMissing", REFUSED)
        assert "--yes" in message
    assert here() == []


@pytest.mark.thorough
def test_it_shows_both_plans_and_asks_once(case, monkeypatch):
    asked: list[list[str]] = []

    def answer(lines: Any, **_: object) -> bool:
        asked.append(list(lines))
        return True

    monkeypatch.setattr("regraft.cli.migrate.confirm_plan", answer)
    done = run_as_given("migrate", case.source, "--profile", case.profile, "--now", NOW)
    assert done.status == 1, done.stderr
    [lines] = asked
    text = "\n".join(lines)
    assert "Base alpha" in text
    assert f"In the profile {case.profile}:" in text
    assert ", with the model acme::embed-small" in text
    assert f"To undo: regraft undo {case.profile}" in done.stdout
    assert "Start the application: it has 3 of 3 bases; 2 can be used.\nCannot be used: Base gamma: " in done.stdout
    assert case.undo().status == 0


def test_what_a_person_declines_is_not_written(case, monkeypatch):
    monkeypatch.setattr("regraft.cli.migrate.confirm_plan", lambda *_, **__: False)
    with untouched(case.profile):
        assert "nothing was written" in said(case.migrate(), "Declined", REFUSED)
    assert here() == []


@pytest.mark.thorough
def test_a_library_that_is_complete_is_installed_after_a_question(case, monkeypatch):
    assert run_as_given("migrate", case.source, "--to", "library", "--now", NOW, "--fail-on", "never").status == 0
    monkeypatch.setattr("regraft.cli.migrate.confirm_plan", lambda *_, **__: False)
    with untouched(case.profile):
        said(case.migrate(), "Declined", REFUSED)
    assert case.both().status == 0
    # An earlier command had written the library: it is not this run's to remove.
    assert case.undo().status == 0
    assert here() == ["library"]


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_nothing_is_migrated_if_the_profile_takes_no_base(case):
    text = run_as_given("migrate", SAMPLE, "--profile", case.profile, "--yes")
    assert text.status == 1
    assert "Nothing was written: the bases above cannot be installed in the profile." in text.stdout
    with untouched(case.profile):
        done = Case(SAMPLE, case.profile).migrate("--yes")
    assert done.status == 1
    assert actions(done) == []
    assert {one["finding"] for one in done.document["install"]["left"]} == {"base.model"}
    assert done.document["install"]["undo"] is None
    assert here() == []


@pytest.mark.thorough
def test_bases_that_the_profile_refuses_are_named_and_the_others_installed(case):
    done = Case(SAMPLE, case.profile).both("--recreate-provider", "silicon")
    assert [name for name, _ in actions(done)].count("insert-base") == 1
    assert len([one for one in done.document["install"]["left"] if "provider openai" in one["reason"]]) == 3


@pytest.mark.thorough
def test_wrong_paths(case, tmp_path):
    refused(Case(tmp_path / "nothing", case.profile), "SourceNotFound")
    with_empty = Case(case.source, tmp_path / "empty")
    (tmp_path / "empty").mkdir()
    refused(with_empty, "SourceUnrecognised")
    missing = Case(case.source, tmp_path / "nothing")
    assert said(missing.migrate("--yes"), "SourceNotFound", REFUSED).startswith(str(missing.profile))
    assert "v2 profile with --profile" in refused(Case(case.source, case.source), "NotChanged")
    assert "with --to" in refused(case, "WrongUsage", "--to", case.profile / "library")
    assert "with --to" in refused(case, "WrongUsage", "--to", case.profile.parent)
    assert refused(case, "TargetOverlapsSource", "--to", case.source / "library")
    assert refused(case, "BaseUnknown", "--base", "nobody")
    assert refused(case, "ModelOptionInvalid", "--map-model", "acme::embed-small")


def test_a_library_of_another_kind(case):
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("mine")
    assert refused(case, "TargetNotOurs", "--to", "mine")


def test_a_running_application(case):
    start_application(case.profile)
    with untouched(case.profile):
        said(case.migrate("--yes"), "ApplicationOpen", REFUSED)
    assert here() == []


def test_options_of_the_profile_need_one(case):
    for option in (("--as-new",), ("--recreate-provider", "openai")):
        found = run_as_given("migrate", case.source, "--to", "library", "--json", *option)
        assert "--profile" in said(found, "WrongUsage", REFUSED)
    assert "--to" in said(run_as_given("migrate", case.source, "--json"), "WrongUsage", REFUSED)
    assert here() == []


@pytest.mark.thorough
def test_no_room_for_the_copy(case, monkeypatch):
    usage = namedtuple("usage", "total used free")
    real = shutil.disk_usage

    def nearly_full(path: Any) -> Any:
        return usage(10**9, 10**9, 1000) if Path(path) == case.profile else real(path)

    monkeypatch.setattr("regraft.api.profile.shutil.disk_usage", nearly_full)
    assert str(case.profile) in refused(case, "NotEnoughSpace")


# --- runs that are stopped -------------------------------------------------------------------------------------------


def messages(outcome: Outcome) -> list[str]:
    found = outcome.document["install"]["actions"]
    return [one["message"] for one in found if one["action"] == "write-library"]


def test_a_failed_installation_leaves_the_profile_and_the_next_run_finishes(case, monkeypatch):
    before, real = dump(case.profile), base_copy.FolderCopy.make
    made: list[Path] = []

    def fail_at_the_second(self: base_copy.FolderCopy, new: Path) -> None:
        made.append(new)
        if len(made) == 2:
            raise CopyDiffers(path=new, reason="it differs")
        real(self, new)

    with monkeypatch.context() as patch:
        patch.setattr(base_copy.FolderCopy, "make", fail_at_the_second)
        message = said(case.both(), "InstallationStopped", STOPPED)
    assert "library" in message
    assert dump(case.profile) == before
    # The first run wrote the library: the plan of the second does not say that it writes it.
    for options in (["--dry-run"], []):
        done = case.both(*options)
        assert (done.status, messages(done)) == (0, ["use the library library, which already existed"])
    assert case.undo().status == 0
    assert dump(case.profile) == before
    assert here() == []


@pytest.mark.thorough
@pytest.mark.parametrize("owner, name", [(publication.TargetLibrary, "publish_base"), (base_copy, "_copy_bytes")])
def test_ctrl_c_leaves_nothing_half(case, monkeypatch, owner, name):
    before, calls, real = dump(case.profile), [], getattr(owner, name)

    def stop_at_the_second(*arguments: Any, **named: Any) -> Any:
        calls.append(name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, stop_at_the_second)
        assert "run the same command again" in said(case.both(), "Interrupted", INTERRUPTED)
    assert dump(case.profile) == before
    assert not list(Path("library/.regraft").glob("staging/*/*"))
    assert case.both().status == 0
    assert run_as_given("check", case.profile, "--json").document["findings"] is not None
    assert case.undo().status == 0
    assert (dump(case.profile), here()) == (before, [])


def wire(patch: pytest.MonkeyPatch, spring: Callable[[], object], at: int) -> Tripwire:
    found = Tripwire(patch, spring, at)
    found.watch(os, "mkdir", "replace").watch(base_copy, "_copy_bytes").watch(execution, "back_up_database")
    return found.watch(ledger.Ledger, "begin_run", "end_run", "done").watch(ledger.ChangeLog, "intend", "set_state")


def one_base(tmp_path: Path) -> Case:
    source = Source(tmp_path / "small")
    source.base("beta", [source.upload("f2", "b.txt", b"b"), item("rota", "note", "")])
    write_vectors(source.vectors("beta"), {"item-f2": 3, "rota": 2})
    return Case(source.write(), tmp_path / "small-profile")


@posix
@pytest.mark.slow
def test_killed_at_every_step_the_next_run_finishes_and_one_undo_takes_all_back(case, tmp_path, monkeypatch):
    small, start = one_base(tmp_path), profile(tmp_path / "start")
    before = dump(start)
    shutil.copytree(start, small.profile)
    with monkeypatch.context() as patch:
        counter = wire(patch, lambda: None, 10**9)
        assert small.both("--jobs", 1).status == 0
    after, steps = dump(small.profile), len(counter.steps)
    assert steps > 20
    for at in range(1, steps + 1):
        shutil.rmtree(small.profile)
        shutil.rmtree("library", ignore_errors=True)
        shutil.copytree(start, small.profile)
        with monkeypatch.context() as patch:
            wire(patch, die, at)
            assert forked(lambda: small.both("--jobs", 1)) == KILLED, at
        assert small.both().status == 0, at
        assert dump(small.profile) == after, at
        assert here() == ["library"]
        assert small.undo().status == 0, at
        assert (dump(small.profile), here()) == (before, []), at
    # A killed process cannot remove its temporary files.
    for left in (tmp_path / "temporary").iterdir():
        shutil.rmtree(left)


@pytest.mark.thorough
@posix
def test_an_undo_that_is_killed_is_finished_by_the_next(case, tmp_path, monkeypatch):
    small, start = one_base(tmp_path), profile(tmp_path / "start")
    before = dump(start)

    def watched(patch: pytest.MonkeyPatch, spring: Callable[[], object], at: int) -> Tripwire:
        found = Tripwire(patch, spring, at).watch(durable, "replace", "remove_tree")
        return found.watch(ledger.ChangeLog, "set_state")

    def both_again() -> None:
        shutil.rmtree(small.profile, ignore_errors=True)
        shutil.copytree(start, small.profile)
        assert small.both().status == 0

    both_again()
    with monkeypatch.context() as patch:
        counter = watched(patch, lambda: None, 10**9)
        assert small.undo().status == 0
    steps = len(counter.steps)
    assert steps > 8
    for at in range(1, steps + 1):
        both_again()
        with monkeypatch.context() as patch:
            watched(patch, die, at)
            assert forked(small.undo) == KILLED, at
        again = small.undo()
        assert again.status in (0, REFUSED), at
        assert (dump(small.profile), here()) == (before, []), at


# --- when undo keeps the library -------------------------------------------------------------------------------------


def kept(case: Case, reason: str) -> None:
    """Assert that undo takes the profile back and keeps the library, for a reason that it names."""
    before = dump(Path("library"))
    done = case.undo()
    assert done.status == 0, done.stdout
    [one] = [one for one in done.document["actions"] if one["action"] == "keep-library"]
    assert reason in one["message"]
    assert dump(Path("library")) == before
    assert "remove-library" not in [one["action"] for one in done.document["actions"]]


def test_undo_removes_a_library_whose_models_were_mapped(case):
    """The source is read with the models of the library: it still has everything."""
    before = dump(case.profile)
    assert case.both("--map-model", "acme::embed-small=acme::other").status == 0
    done = case.undo()
    assert (done.status, Path("library").exists()) == (0, False)
    assert dump(case.profile) == before
    assert "remove-library" in [one["action"] for one in done.document["actions"]]


@pytest.mark.thorough
def test_undo_keeps_the_library_if_the_source_is_gone(case):
    assert case.both().status == 0
    case.source.rename(case.source.with_name("elsewhere"))
    kept(case, "is gone or changed")


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_undo_keeps_the_library_if_the_source_has_lost_vectors(case, form, tmp_path):
    """Neither size nor time of a file shows that; an archive still states the checksum of what it had."""
    files = sorted(path for path in case.source.rglob("*") if path.is_file())
    [vectors] = [path for path in files if path.parent.name == "KnowledgeBase" and path.name == "alpha"]
    if form == "folder":
        assert case.both().status == 0
        before = vectors.stat()
        with closing(sqlite3.connect(vectors)) as db, db:
            db.execute("UPDATE vectors SET vector = zeroblob(length(vector))")
        os.utime(vectors, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert vectors.stat().st_size == before.st_size
    else:
        packed = tmp_path / "packed.zip"
        with zipfile.ZipFile(packed, "w") as archive:
            for path in files:
                archive.write(path, path.relative_to(case.source))
        case = case._replace(source=packed)
        assert case.both().status == 0
        content = bytearray(packed.read_bytes())
        content[content.index(vectors.read_bytes()) + vectors.stat().st_size // 2] ^= 1
        packed.write_bytes(content)
    kept(case, "is gone or changed")


@pytest.mark.thorough
def test_undo_keeps_a_library_that_was_changed(case):
    assert case.both().status == 0
    base = next(Path("library/KnowledgeBase").glob("*/.cherry/index.sqlite"))
    with closing(sqlite3.connect(base)) as db, db:
        db.execute("UPDATE meta SET created_at = created_at + 1")
    kept(case, "it was changed since")


@pytest.mark.thorough
def test_undo_keeps_a_library_with_files_of_others(case):
    assert case.both().status == 0
    Path("library/KnowledgeBase/notes.txt").write_text("mine")
    kept(case, "KnowledgeBase/notes.txt")


@pytest.mark.thorough
def test_undo_keeps_a_library_that_another_command_wrote_to(case):
    assert case.both("--base", "alpha").status == 0
    done = run_as_given("migrate", case.source, "--to", "library", "--now", NOW, "--fail-on", "never", "--json")
    assert done.status == 0
    kept(case, "another command has written to it since")


def test_undo_keeps_a_library_that_another_run_installed_from(case):
    for name in ("alpha", "beta"):
        assert case.both("--base", name).status == 0
    kept(case, "another run has installed bases from it, too")
    bases = {path.name for path in (case.profile / "Data" / "KnowledgeBase").iterdir()}
    assert len(bases) == 1 and bases < {path.name for path in Path("library/KnowledgeBase").iterdir()}
    assert case.undo().status == 0
    assert here() == []


@pytest.mark.thorough
def test_a_copied_profile_has_no_say_over_the_library(case, tmp_path):
    assert case.both().status == 0
    copy = Case(case.source, shutil.copytree(case.profile, tmp_path / "copy"))
    kept(copy, "another command has written to it since")
    assert case.undo().status == 0
    assert here() == []


@pytest.mark.thorough
@posix
def test_undo_does_not_follow_a_link_in_the_place_of_the_library(case):
    assert case.both().status == 0
    Path("library").rename("moved")
    Path("library").symlink_to("moved")
    kept(case, "symbolic link")
    assert Path("moved/catalog.sqlite").is_file()


@pytest.mark.thorough
def test_a_library_that_is_gone_is_no_obstacle(case):
    before = dump(case.profile)
    assert case.both().status == 0
    shutil.rmtree("library")
    done = case.undo()
    assert done.status == 0
    assert {"remove-library", "keep-library"}.isdisjoint(one["action"] for one in done.document["actions"])
    assert dump(case.profile) == before


# --- the API ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_function_returns_what_the_command_prints(case, tmp_path):
    plans: list[Any] = []
    report = regraft.migrate_into_profile(
        case.source, case.profile, tmp_path / "there", confirm=lambda plan: not plans.append(plan)
    )
    assert isinstance(report, migrators.MigrationReport)
    [plan] = plans
    assert [one.action for one in plan.install.actions] == [one.action for one in report.install.actions]
    assert plan.head.run.finished_at is None
    assert report.head.target.path == str(tmp_path / "there")
    assert report.install.undo is not None
    assert here() == []
    with pytest.raises(Declined):
        regraft.migrate_into_profile(case.source, case.profile, as_new=True, confirm=lambda _: False)
