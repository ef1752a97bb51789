"""``regraft check`` of a v1 source: every finding by damage that makes it, its document, its text, its exit status."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from doc_text import keys, section, spans, text_of
from faults import said, untouched
from golden_cases import CASES, as_backup
from harness import REPO, command_words, run
from planted_v1 import GONE, PLANTED, VECTORS, bases, both, bytes_of, gone, insert, items, kb, profile, vectors, whole
from v1 import MODEL, Source, base, note, vector_of

import migrators
from checks.audit import findings
from checks.audit.findings import FINDINGS, Audit, Finding
from checks.cherry_v1 import findings as v1_findings
from migrators.pipeline import plan as plan_module
from migrators.pipeline.survey import BasePlanner
from regraft.report import notices
from regraft.report.notices import CODES, PATH_TOO_LONG, is_at_least

SAMPLE = REPO / "sample_v1" / "cherry-studio.202503141200.zip"
FINDING = {"name", "severity", "base", "subject", "message", "count", "samples", "repair"}
posix = pytest.mark.skipif(os.name == "nt", reason="links as POSIX systems have them")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Run every test in an empty folder, with a temporary folder of its own, and see that both stay empty."""
    temporary, here = tmp_path / "temporary", tmp_path / "here"
    temporary.mkdir()
    here.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.chdir(here)
    yield tmp_path
    assert [*temporary.iterdir(), *here.iterdir()] == []


def check(source: Path, *options: object) -> dict[str, Any]:
    done = run("check", source, "--json", *options)
    assert done.status in (0, 1), done.stderr
    assert done.stderr == ""
    return done.document


def found(source: Path, *options: object) -> list[dict[str, Any]]:
    return list(check(source, *options)["findings"])


#: Codes that only carrying finds, or a target, or an option of ``migrate`` alone.
BEYOND_A_PLAN = {
    "archive_salvaged",
    "differing_vector",
    "completed_base_kept",
    "base_changed_since",
    "lost_duplicate",
    "carried_without_vector",
    "salvaged",
    "rows_lost",
    "row_lost",
    "row_broken",
    "row_unproven",
    "vector_unproven",
    "row_contradicted",
}
#: Codes that a preview build's store has of its own.
OF_PREVIEWS = {
    "current_layout",
    "item_deleting",
    "catalog_unreadable",
    "item_data_mended",
    "item_data_incomplete",
}
#: Findings of v1 sources; v1.leftover is one of a v2 profile.
OF_V1 = {name for name in vars(v1_findings).values() if isinstance(name, str) and name in FINDINGS}
NEEDS_LINKS = {"an application that is running"}
planted = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=posix if name in NEEDS_LINKS else ()) for name in PLANTED]
)


@pytest.fixture
def damaged(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return what plants damage in a whole source."""

    def plant(name: str) -> Path:
        if PLANTED[name].code == "content_too_large":
            monkeypatch.setattr(plan_module, "MAX_CONTENT_BYTES", 200)
        for variable in ("HOME", "USERPROFILE"):
            monkeypatch.setenv(variable, str(place / "home"))
        return PLANTED[name].damage(whole(place / "v1"))

    return plant


def test_a_whole_source_has_nothing_to_complain_about(place: Path) -> None:
    source = whole(place / "v1")
    live = profile(source)
    sixth = shutil.copytree(live, place / "version 6")
    (sixth / "metadata.json").write_text('{"version": 6, "appName": "Cherry Studio"}', "utf-8")
    for path in (source, as_backup(source, place / "backup.zip"), live, sixth):
        document = check(path)
        assert document["findings"] == []
        assert document["checked"]["rows"] == 16
        assert run("check", path).status == 0


@pytest.mark.one_in(3)
@planted
def test_damage_is_found_and_nothing_written(name: str, damaged: Callable[[str], Path], place: Path) -> None:
    case = PLANTED[name]
    source = damaged(name)
    # Only folders in the temporary one come and go.
    with untouched(*(path for path in place.iterdir() if path.name != "temporary")):
        answer = found(source, *case.options)
    assert {finding["name"] for finding in answer} == {case.finding, *case.more}
    assert all(set(finding) - {"names"} == FINDING for finding in answer)
    about = [one for one in answer if one["name"] == case.finding and one["base"] == case.base]
    wanted = (case.severity, case.subject, case.count)
    [finding] = [one for one in about if (one["severity"], one["subject"], one["count"]) == wanted]
    assert finding["message"]
    assert is_at_least(FINDINGS[case.finding].severity, finding["severity"])


@pytest.mark.one_in(3)
@planted
def test_the_books_are_those_of_a_dry_run(name: str, damaged: Callable[[str], Path], place: Path) -> None:
    """Every warning of a dry run is a finding, with its count; nothing but what a plan does not say comes on top."""
    case = PLANTED[name]
    source = damaged(name)
    dry = run("migrate", source, "--to", place / "out", "--dry-run", "--json", "--while-running", *case.options)
    assert case.code in {warning["code"] for warning in dry.document["warnings"]}
    books: Counter[tuple[str, str | None]] = Counter()
    for warning in dry.document["warnings"]:
        # The items that it sums up say it themselves.
        if warning["code"] != "v1_deduplicated":
            books[warning["message"], warning["base"]] += warning["count"]
    answer = check(source, *case.options)
    counts: Counter[tuple[str, str | None]] = Counter()
    for finding in answer["findings"]:
        counts[finding["message"], finding["base"]] += finding["count"]
    assert counts == books
    assert answer["checked"]["rows"] == dry.document["totals"]["rows"]["read"]


#: What a check of a source can say. A KB of rsclaw is audited as it is, and has findings of its own; some codes are
#: about the target.
OF_SOURCES = {name: code for name, code in CODES.items() if code.finding}


OF_OTHER_SYSTEMS = (
    "NOT_VISIBLE",
    "TOMBSTONED",
    "UPDATING",
    "SUPERSEDED",
    "OTHER_EMBEDDER",
    "RANGE_OUTSIDE",
    "ROW_UNREADABLE",
    "PAGES_DAMAGED",
    "VISIBILITY_DROPPED",
    "NOTHING_VISIBLE",
    "DOCUMENT_CHANGED",
    "NOT_INDEXED",
    "NO_DOCUMENT",
)


def test_codes_of_other_systems_and_of_the_target_are_no_finding_of_a_source() -> None:
    own = {getattr(notices, name) for name in OF_OTHER_SYSTEMS}
    assert CODES.keys() - OF_SOURCES.keys() == own | {PATH_TOO_LONG}


def test_every_code_is_one_finding() -> None:
    assert {code.finding for code in OF_SOURCES.values()} <= set(FINDINGS)
    for code in OF_SOURCES.values():
        assert is_at_least(FINDINGS[code.finding].severity, code.severity), code.name


def test_every_finding_is_planted() -> None:
    assert {case.finding for case in PLANTED.values()} | {"v1.disk-space"} == OF_V1
    # Check refuses a source with a damaged state; only a migration with --adopt-orphans goes on.
    found = {case.code for case in PLANTED.values()} | BEYOND_A_PLAN | OF_PREVIEWS
    assert found | {"damaged_state"} == set(OF_SOURCES)


# --- what no plan says ---------------------------------------------------------------------------------------------


def test_too_little_room_beside_the_source(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = whole(place / "v1")
    real = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: real(path)._replace(free=1000))
    [finding] = found(source)
    assert (finding["name"], finding["severity"], finding["base"]) == ("v1.disk-space", "error", None)
    assert finding["subject"] == str(source)
    assert "1.0 kB are free" in finding["message"]
    assert finding["repair"] is None


@pytest.mark.parametrize(
    ("damage", "name"),
    [(gone(VECTORS), "v1.no-vectors"), (bytes_of(VECTORS, lambda data: data[:5000]), "v1.unreadable")],
)
def test_a_base_may_lack_its_model_and_its_vectors(damage: Callable[[Path], Path], name: str, place: Path) -> None:
    """Who knows the model must hear at once that it does not help."""
    source = damage(kb(model=GONE)(whole(place / "v1")))
    answer = {finding["name"]: finding for finding in found(source)}
    assert (answer[name]["severity"], answer[name]["subject"]) == ("error", VECTORS)
    assert answer["v1.model"]["repair"] is None


# --- repairs -------------------------------------------------------------------------------------------------------


def test_the_repair_of_a_lost_model_is_the_command_that_carries_it(place: Path) -> None:
    # On Windows, commands are quoted for PowerShell, too, where $ begins a variable: cmd.exe passes on what hides it.
    name = "text $HOME" if os.name != "nt" else "text & HOME"
    odd = {**MODEL, "provider": "my provider's", "id": name}
    source = kb(model=odd)(whole(place / "it's v1"))
    [finding] = [one for one in found(source) if one["name"] == "v1.model"]
    words = command_words(finding["repair"])
    assert words == ["regraft", "migrate", str(source), "--to", "OUT", "--recreate-model", f"my provider's::{name}"]
    words[words.index("OUT")] = str(place / "out")
    assert run(*words[1:], "--fail-on", "error").status == 0


def test_what_only_a_person_knows_has_no_repair(place: Path) -> None:
    [finding] = [one for one in found(kb(model=None)(whole(place / "v1"))) if one["name"] == "v1.model"]
    assert "--map-model kb=PROVIDER::MODEL" in finding["message"]
    assert finding["repair"] is None


def test_the_repair_keeps_the_options_that_were_given(place: Path) -> None:
    source = kb(model=GONE)(whole(place / "v1"))
    options = ("--base", "kb", "--kind", "v1-export", "--map-model", "a::b=c::d")
    repairs = [one["repair"] for one in found(source, *options) if one["repair"]]
    kept = "--kind v1-export --base kb --map-model a::b=c::d"
    assert repairs == [f"regraft migrate {source} --to OUT {kept} --recreate-model gone::embed-3"]


def test_a_path_that_looks_like_an_option(place: Path) -> None:
    whole(place / "here" / "-v1")
    text = run("check", "--", "-v1").stdout
    shutil.rmtree(place / "here" / "-v1")
    assert text.splitlines()[-1].endswith(f"regraft migrate .{os.sep}-v1 --to OUT")


def test_samples_name_rows(place: Path) -> None:
    rows = [insert(f"G_{number}", "G", f"left {number}") for number in range(5)]
    [finding] = found(vectors(*rows)(whole(place / "v1")))
    assert (finding["count"], finding["samples"]) == (5, ["G_0", "G_1", "G_2"])


def test_what_a_row_is_called_or_a_user_wrote_makes_no_samples(place: Path) -> None:
    odd = both(vectors(insert("a, b", "G", "left")), kb(description="mine (for example this, that)"))
    samples = {finding["name"]: finding["samples"] for finding in found(odd(whole(place / "v1")))}
    assert samples == {"v1.unmapped": ["a, b"], "v1.dropped-field": []}


# --- the document --------------------------------------------------------------------------------------------------


def test_the_document(place: Path) -> None:
    source = both(kb(model=GONE, description="about"), gone("Files/up-f.pdf"))(whole(place / "v1"))
    document = check(source)
    assert list(document) == ["regraft", "source", "target", "run", "findings", "summary", "checked", "statistics"]
    assert document["regraft"]["command"] == "check"
    assert document["source"] == {"kind": "v1-export", "path": str(source)}
    assert document["target"] is None
    assert document["run"]["dry_run"] is False
    assert document["run"]["finished_at"] >= document["run"]["started_at"]
    assert [finding["severity"] for finding in document["findings"]] == ["error", "warning", "warning", "note"]
    assert document["summary"] == {
        "by_severity": {"error": 1, "warning": 2, "note": 1},
        "by_name": {"v1.dropped-field": 1, "v1.folder": 1, "v1.missing-upload": 1, "v1.model": 1},
    }
    checked = document["checked"]
    size = sum((source / "KnowledgeBase" / name).stat().st_size for name in ("kb", "other"))
    assert checked == {"bases": 2, "items": 5, "rows": 16, "uploads": 1, "vector_files": 2, "bytes": size}


def test_every_key_is_in_the_reference(place: Path) -> None:
    document = check(kb(model=GONE)(whole(place / "v1")))
    by_name = document["summary"].pop("by_name")
    reference = section(text_of("docs/commands.md"), "JSON")
    words = set(re.findall(r"\w+", " ".join(spans(reference.partition("\n### ")[0] + section(reference, "check")))))
    assert {*keys(document), "by_name"} - words == set()
    assert set(by_name) <= set(FINDINGS)


def test_what_is_skipped_was_looked_at_too(place: Path) -> None:
    source = both(items(None), bases(None, base("kb", note("x"))))(whole(place / "v1"))
    assert {key: check(source)["checked"][key] for key in ("bases", "items")} == {"bases": 4, "items": 6}


def test_one_base_alone(place: Path) -> None:
    source = gone(VECTORS)(whole(place / "v1"))
    assert found(source, "--base", "other") == []
    assert check(source, "--base", "other")["checked"]["rows"] == 1
    assert {finding["base"] for finding in found(source, "--base", "kb")} == {"kb"}


# --- golden cases and the sample -----------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_golden_cases(case: str, packed: bool, golden: Callable[[str], Path], place: Path) -> None:
    source = golden(case) / "v1"
    source = as_backup(source, place / "backup.zip") if packed else source
    dry = run("migrate", source, "--to", place / "out", "--dry-run", "--json").document
    answer = check(source)
    books: Counter[str] = Counter()
    for warning in dry["warnings"]:
        name = CODES[warning["code"]].finding
        books["a vector file" if name == "v1.no-vectors" else name] += warning["count"]
    counts: Counter[str] = Counter()
    for finding in answer["findings"]:
        lost = finding["name"] in ("v1.no-vectors", "v1.unreadable")
        counts["a vector file" if lost else finding["name"]] += finding["count"]
    assert counts == books
    assert answer["checked"]["rows"] == dry["totals"]["rows"]["read"]
    assert answer["checked"]["bases"] >= len(dry["bases"])


def test_the_sample(place: Path) -> None:
    errors = [finding for finding in found(SAMPLE) if finding["severity"] == "error"]
    assert [(finding["name"], finding["count"]) for finding in errors] == [("v1.unreadable", 1)]


# --- what a person reads -------------------------------------------------------------------------------------------


def test_the_text(place: Path) -> None:
    source = both(kb(model=GONE, description="about\nit"), gone("Files/up-f.pdf"))(whole(place / "v1"))
    done = run("check", source)
    assert (done.status, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"{source} is a v1 export folder."
    headings = [text for text in lines if re.fullmatch("(error|warning|note)s:", text)]
    assert headings == ["errors:", "warnings:", "notes:"]
    assert lines.count("  Base kb  (kb)") == 3
    assert f"      fix: regraft migrate {source} --to OUT --recreate-model gone::embed-3" in lines
    assert "    description: about it [v1.dropped-field]" in lines
    summed = "2 bases, 5 items, 16 rows: 1 error, 2 warnings, 1 note. Fix the errors first, or migrate what can be "
    assert lines[-1] == f"{summed}migrated: regraft migrate {source} --to OUT"


def test_a_source_that_is_ready(place: Path) -> None:
    source = whole(place / "with space")
    quoted = f"'{source}'" if os.name != "nt" else f'"{source}"'
    lines = run("check", source).stdout.splitlines()
    assert lines[-1] == f"2 bases, 5 items, 16 rows: nothing found. Ready: regraft migrate {quoted} --to OUT"
    lines = run("check", gone("Files/up-f.pdf")(source)).stdout.splitlines()
    assert f"1 warning. Ready: regraft migrate {quoted} --to OUT" in lines[-1]


def test_a_source_without_bases(place: Path) -> None:
    done = run("check", Source([]).write(place / "v1"))
    assert done.status == 0
    assert done.stdout.splitlines()[-1] == "0 bases, 0 items, 0 rows: nothing found. There is nothing to migrate."


@posix
def test_a_running_application_is_to_be_quit_first(damaged: Callable[[str], Path]) -> None:
    source = damaged("an application that is running")
    last = run("check", source).stdout.splitlines()[-1]
    assert last.endswith(f"1 warning. Quit the application, then: regraft migrate {source} --to OUT")
    done = run("migrate", source, "--to", "out")
    assert (done.status, done.stdout, Path("out").exists()) == (2, "", False)
    assert "is running" in done.stderr


def test_many_of_one_name_are_counted(place: Path) -> None:
    source = items(*[{"id": f"m{number}", "type": "memory"} for number in range(20)])(whole(place / "v1"))
    plain, verbose = run("check", source).stdout, run("check", source, "-v").stdout
    assert plain.count("[v1.item]") == findings.SHOWN_PER_NAME
    assert f"… and {20 - findings.SHOWN_PER_NAME} more of v1.item (-v shows all)" in plain
    assert verbose.count("[v1.item]") == 20
    assert "more of" not in verbose
    assert check(source)["summary"]["by_name"] == {"v1.item": 20}


def test_what_a_user_wrote_cannot_write_on_the_terminal(place: Path) -> None:
    text = f"\x1b[2J all is well\n{'long ' * 200}the end"
    source = kb(description=text, name="\x1b[2J")(whole(place / "v1"))
    plain, verbose = run("check", source).stdout, run("check", source, "-v").stdout
    assert "\x1b" not in plain + verbose
    assert "\\x1b[2J all is well long" in plain
    assert "the end" not in plain
    assert "the end" in verbose


def test_bases_come_in_their_order_and_what_is_about_none_first() -> None:
    made = [("error", "b"), ("note", None), ("error", None), ("warning", "a"), ("error", "a"), ("error", "gone")]
    all_of_it = Audit(
        findings=tuple(
            Finding(name="v1.state", severity=severity, message="said", base=base) for severity, base in made
        ),
        checked={},
        names={"a": "A", "b": "B"},
        closing="",
    )
    assert [(finding.severity, finding.base) for finding in all_of_it.in_order()] == [
        ("error", None),
        ("error", "a"),
        ("error", "b"),
        ("error", "gone"),
        ("warning", "a"),
        ("note", None),
    ]


# --- exit status and options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "warning", "error"),
    [("a description", 0, 0), ("an upload that is gone", 1, 0), ("no file", 1, 1)],
)
def test_exit_status(name: str, warning: int, error: int, damaged: Callable[[str], Path]) -> None:
    source = damaged(name)
    status = {line: run("check", source, "--fail-on", line).status for line in ("warning", "error", "never")}
    assert status == {"warning": warning, "error": error, "never": 0}
    assert run("check", source).status == warning


def test_only_some_findings(place: Path) -> None:
    source = both(gone("Files/up-f.pdf"), kb(description="about", chunkSize=0))(whole(place / "v1"))
    document = check(source, "--only", "v1.dropped-field", "--only", "v1.settings")
    assert document["summary"]["by_name"] == {"v1.dropped-field": 1, "v1.settings": 1}
    done = run("check", source, "--only", "v1.dropped-field")
    assert done.status == 0
    assert done.stdout.splitlines()[-1].endswith("1 note. Looked for v1.dropped-field only.")


def test_a_finding_that_there_is_not(place: Path) -> None:
    message = said(run("check", "nothing-here", "--only", "v1.unread", "--json"), "WrongUsage", 2)
    assert message.startswith("--only v1.unread: no finding has this name (the nearest are v1.unreadable, ")


def test_a_base_that_there_is_not(place: Path) -> None:
    source = whole(place / "v1")
    assert "known bases: Base kb (" in said(run("check", source, "--base", "x", "--json"), "BaseUnknown", 2)


def test_a_wrong_model_option(place: Path) -> None:
    source = whole(place / "v1")
    assert "provider::model" in said(run("check", source, "--map-model", "x", "--json"), "ModelOptionInvalid", 2)


def test_a_preview_store_is_checked_too(place: Path) -> None:
    """What ``migrate`` takes, ``check`` takes: no kind is named twice."""
    path = place / "KnowledgeBase" / "base-1" / ".cherry" / "index.sqlite"
    path.parent.mkdir(parents=True)
    with closing(apsw.Connection(str(path))) as db:
        db.execute(
            "CREATE TABLE libsql_vectorstores_embedding (id TEXT PRIMARY KEY, external_id TEXT, collection TEXT,"
            " document TEXT, metadata TEXT, embeddings F32_BLOB(4))"
        )
        values = ("row", "item", "base-1", "a text", '{"itemType": "note"}', vector_of("a text"))
        db.execute("INSERT INTO libsql_vectorstores_embedding VALUES (?, ?, ?, ?, ?, ?)", values)
    [finding] = found(place)
    assert (finding["name"], finding["base"], finding["repair"]) == ("v1.model", "base-1", None)
    answer = check(place, "--recreate-model", "acme::embed-3")
    assert "error" not in {finding["severity"] for finding in answer["findings"]}
    assert (answer["checked"]["rows"], answer["checked"]["vector_files"]) == (1, 1)
    assert answer["checked"]["bytes"] == path.stat().st_size


def test_what_is_nothing_known_is_refused(place: Path) -> None:
    (place / "v1").mkdir()
    for path, code in ((place / "v1", "SourceUnrecognised"), (place / "no", "SourceNotFound")):
        assert str(path) in said(run("check", path, "--json"), code, 2)


def test_a_backup_of_a_version_to_come_is_refused_as_such(place: Path) -> None:
    backup = as_backup(whole(place / "v1"), place / "backup.zip", version=9)
    assert "a backup of version 9" in said(run("check", backup, "--json"), "SourceNotMigratable", 2)


def test_too_little_room_to_look_into_an_archive(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backup = as_backup(whole(place / "v1"), place / "backup.zip")
    real = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: real(path)._replace(free=1000))
    said(run("check", backup, "--json"), "WorkFolderTooSmall", 2)


def test_an_interrupted_check(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backup = as_backup(whole(place / "v1"), place / "backup.zip")
    real = BasePlanner._plan_base

    def interrupted(self: BasePlanner, position: int, *more: Any) -> Any:
        if position == 1:
            raise KeyboardInterrupt
        return real(self, position, *more)

    monkeypatch.setattr(BasePlanner, "_plan_base", interrupted)
    said(run("check", backup, "--json"), "Interrupted", 130)


def test_the_command_in_a_process_of_its_own(place: Path) -> None:
    source = whole(place / "v1")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "regraft", "check", str(source)], env=environment, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"Ready: regraft migrate" in done.stdout


# --- the registry and its page -------------------------------------------------------------------------------------


def test_every_finding_is_on_its_page() -> None:
    text = text_of("docs/findings.md")
    for definition in FINDINGS.values():
        assert f"| `{definition.name}` | {definition.severity} |" in text
        assert definition.meaning.endswith(".")
        assert definition.remedy.endswith(".")
    for code in OF_SOURCES.values():
        assert re.search(rf"^\| `{re.escape(code.finding)}` \|.*`{code.name}`", text, re.MULTILINE), code.name


def test_a_plan_without_a_target_is_a_dry_run(place: Path) -> None:
    from regraft.report.document import encoded
    from regraft.report.progress import SilentProgress
    from regraft.stores.locate import open_store

    source = kb(model=GONE)(whole(place / "v1"))
    dry = run("migrate", source, "--to", place / "out", "--dry-run", "--json").document
    with open_store(source) as opened:
        planned = migrators.plan_only(opened, migrators.Options(now_ms=0), SilentProgress())
    document = json.loads(json.dumps(encoded(planned.report)))
    for key in ("skipped", "warnings", "totals", "source"):
        assert document[key] == dry[key]
    assert document["target"] is None
    assert planned.room.bytes_needed == dry["preflight"]["bytes_needed"]
