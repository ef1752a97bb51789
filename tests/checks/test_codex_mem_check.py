"""What `check` and `inspect` say of codex-mem's databases: planted damage, health states, and no trace of a look."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import codex_mem_store as store
import planted_codex_mem
import pytest
from codex_mem_store import MODEL, note_id, project_id, run_sql
from fault_server import vector_of
from faults import untouched
from harness import Outcome, run
from planted_codex_mem import (
    COLUMNS,
    FIRST,
    PLANTINGS,
    SECOND,
    THIRD,
    added,
    copied,
    migrated_alone,
    replaced,
)

from checks.audit.findings import FINDINGS
from checks.codex_mem.schema import _decode_varints
from regraft.formats.codex_mem import database, health, sidecar
from regraft.formats.codex_mem.database import NoteReader, NoteStatus
from regraft.formats.fts5 import encode_varints

templates = planted_codex_mem.templates


@pytest.fixture
def pristine(templates: dict[str, Path], tmp_path: Path) -> Path:
    return copied(templates, "pristine", tmp_path)


@pytest.fixture
def whole(templates: dict[str, Path], tmp_path: Path) -> Path:
    return copied(templates, "whole", tmp_path)


def checked(path: Path, *options: object) -> dict[str, Any]:
    with untouched(path.parent):
        outcome = run("check", path, "--json", *options)
    assert outcome.status in (0, 1), outcome
    return outcome.document


def names(path: Path, *options: object) -> set[str]:
    return {finding["name"] for finding in checked(path, *options)["findings"]}


def semantic(path: Path) -> dict[str, Any]:
    with untouched(path.parent):
        outcome = run("inspect", path, "--json")
    assert outcome.status == 0, outcome
    found = outcome.document["health"]["semantic"]
    assert isinstance(found, dict)
    return found


# --- nothing wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["--quick", None, "--deep"])
@pytest.mark.parametrize("name", ["pristine", "whole"])
def test_a_healthy_database_has_no_finding(
    name: str, level: str | None, templates: dict[str, Path], tmp_path: Path
) -> None:
    document = checked(copied(templates, name, tmp_path), *([level] if level else []))
    assert document["findings"] == []
    vectors = 12 if name == "whole" else 0
    size = document["checked"].pop("bytes")
    assert size > 0
    assert document["checked"] == {"projects": 2, "notes": 14, "handoffs": 2, "embeddings": vectors}
    assert document["level"] == (level or "--default").removeprefix("--")


@pytest.mark.parametrize("wal", [True, False])
@pytest.mark.parametrize("notes", [0, 1])
def test_an_empty_or_small_database_is_healthy(notes: int, wal: bool, tmp_path: Path) -> None:
    path = store.write(tmp_path / "memory", projects=notes, notes=notes, wal=wal)
    assert names(path, "--deep") == set()
    assert semantic(path)["state"] == "disabled"
    store.embed(path)
    assert names(path, "--deep") == set()
    assert semantic(path)["state"] == "ready"


def test_a_database_is_told_by_its_folder_too(whole: Path) -> None:
    assert run("check", whole.parent).stdout.startswith(f"{whole.parent} is a database of codex-mem.")


@store.needs_samples
def test_real_databases(tmp_path: Path) -> None:
    found = {}
    for sample in store.SAMPLES.glob("*.db"):
        path = tmp_path / sample.stem / sample.name
        path.parent.mkdir()
        shutil.copyfile(sample, path)
        found[sample.name] = sorted((one["name"], one["severity"]) for one in checked(path, "--deep")["findings"])
    said = [("codex.exclusion-reason", "note"), ("codex.fts-skewed", "error")]
    assert found == {"codex-mem.db": [], "codex-mem-excluded.db": said}


# --- planted damage ------------------------------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", PLANTINGS)
def test_planted_damage_is_found_and_nothing_else(name: str, whole: Path) -> None:
    planting = PLANTINGS[name]
    planting.damage(whole)
    found = checked(whole)["findings"]
    counts: dict[str, int] = {}
    for one in found:
        counts[one["name"]] = counts.get(one["name"], 0) + one["count"]
    assert counts == planting.findings
    first = next(one for one in found if one["name"] == next(iter(planting.findings)))
    assert first["severity"] == FINDINGS[first["name"]].severity
    repair = None if planting.repair is None else f"regraft {planting.repair.replace('PATH', str(whole))}"
    assert first["repair"] == repair
    assert name == "a workspace of no project" or first["base"] == planting.base


@pytest.mark.parametrize(
    "name", ["a vector of a note that is not to have one", "a note was excluded after it had its vector"]
)
def test_a_vector_that_its_note_may_use_again_goes_only_where_its_finding_is_named(name: str, whole: Path) -> None:
    PLANTINGS[name].damage(whole)
    [finding] = PLANTINGS[name].findings
    query = f"SELECT * FROM {sidecar.TABLE} ORDER BY note_id"
    before = store.rows(database.sidecar_path(whole), query)
    run("reconcile", whole, "--json")
    assert store.rows(database.sidecar_path(whole), query) == before
    run("reconcile", whole, "--only", finding, "--json")
    assert store.rows(database.sidecar_path(whole), query) == [row for row in before if FIRST not in row]
    assert finding not in names(whole)


def test_every_finding_has_a_planting() -> None:
    assert {name for name in FINDINGS if name.startswith("codex.")} == {
        name for planting in PLANTINGS.values() for name in planting.findings
    }


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", PLANTINGS)
def test_planted_damage_is_no_crash_of_any_level(name: str, whole: Path) -> None:
    PLANTINGS[name].damage(whole)
    deep = names(whole, "--deep")
    assert set(PLANTINGS[name].findings) <= deep
    assert not deep & {"file.corrupt", "file.unreadable"}
    assert names(whole, "--quick") == set(PLANTINGS[name].findings) - {"codex.fts-words"}
    run("inspect", whole, "--json")


@pytest.mark.parametrize("columns", [COLUMNS[:1], COLUMNS[2:5], COLUMNS])
@pytest.mark.parametrize("recorded", [True, False])
def test_the_migration_there_in_part(columns: list[str], recorded: bool, pristine: Path) -> None:
    store.add_columns(pristine, columns)
    if recorded:
        store.record(pristine)
    is_whole = columns == COLUMNS
    assert ("codex.migration" in names(pristine)) == (not is_whole or not recorded)
    # The vectors are mended by the same command.
    assert ("codex.pending" in names(pristine)) == is_whole


def test_a_record_without_columns(pristine: Path) -> None:
    store.record(pristine)
    assert names(pristine) == {"codex.migration"}
    assert semantic(pristine)["state"] == "disabled"


def test_another_migration_of_that_number_is_nothing_to_mend(pristine: Path) -> None:
    store.record(pristine, "006_something_else.sql")
    [finding] = checked(pristine)["findings"]
    assert (finding["name"], finding["repair"]) == ("codex.migration", None)
    assert "006_something_else.sql" in finding["message"]
    # It is that one by another name where it has made the same columns.
    store.add_columns(pristine)
    assert "codex.migration" not in names(pristine)


def test_a_column_that_must_not_be_empty_is_nothing_to_mend(pristine: Path) -> None:
    run_sql(pristine, "ALTER TABLE memory_items ADD COLUMN embedded_at TEXT NOT NULL DEFAULT ''")
    [finding] = checked(pristine)["findings"]
    assert (finding["name"], finding["subject"], finding["repair"]) == ("codex.migration", "embedded_at", None)


def test_notes_of_a_project_that_is_gone_are_told_and_cannot_be_named(whole: Path) -> None:
    added(whole)
    run_sql(whole, "UPDATE memory_items SET project_id = 'x' WHERE id = ?", note_id(0, 20), triggers=False)
    found = {one["name"]: one for one in checked(whole)["findings"]}
    assert found.keys() == {"codex.scope", "codex.pending"}
    assert found["codex.pending"]["base"] is None
    assert found["codex.pending"]["repair"] is None


def test_what_failed_is_told_by_its_code(whole: Path) -> None:
    store.mark_failed(whole, FIRST, "too_long")
    store.mark_failed(whole, SECOND, "too_long")
    store.mark_failed(whole, THIRD, "x" * 500)
    said = [one["message"] for one in checked(whole)["findings"]]
    assert said[0] == "2 notes that could not be embedded (too_long)"
    assert len(said[1]) < 120


# --- what is looked at ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", [project_id(1), "P 1", "p-1"])
def test_a_project_is_chosen_by_id_name_or_slug(word: str, whole: Path) -> None:
    store.edit(whole, FIRST)
    store.edit(whole, note_id(1, 0))
    [finding] = checked(whole, "--base", word)["findings"]
    assert (finding["base"], finding["samples"]) == (project_id(1), [note_id(1, 0)])


def test_an_unknown_or_ambiguous_project_is_refused(whole: Path) -> None:
    run_sql(whole, "UPDATE projects SET name = 'same'")
    for word in ("same", "x"):
        outcome = run("check", whole, "--base", word)
        assert outcome.status == 2
        assert f"p-0 ({project_id(0)}), p-1 ({project_id(1)})" in outcome.stderr


def test_time_that_is_over_is_told(whole: Path) -> None:
    document = checked(whole, "--max-duration", 0)
    assert len(document["not_checked"]) == 6
    assert document["findings"] == []


def test_a_page_tells_how_many_notes_are_covered(whole: Path, tmp_path: Path) -> None:
    store.edit(whole, FIRST)
    page = tmp_path / "page.html"
    assert run("check", whole, "--report", page).status == 1
    text = page.read_text("utf-8")
    assert "5 of 6" in text
    assert FIRST not in text


def test_a_database_cut_off_cannot_be_read(whole: Path) -> None:
    whole.write_bytes(whole.read_bytes()[:-5000])
    outcome = run("check", whole, "--json")
    assert outcome.status == 1
    assert {one["name"] for one in outcome.document["findings"]} == {"file.unreadable"}
    assert all(one["repair"] is None for one in outcome.document["findings"])


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(3))
def test_random_damage_ends_in_findings(part: int, whole: Path) -> None:
    files = [whole, database.sidecar_path(whole)]
    kept = {file: file.read_bytes() for file in files}
    for seed in range(part, 36, 3):
        chance = random.Random(seed)
        file = chance.choice(files)
        raw = bytearray(kept[file])
        for _ in range(chance.choice((1, 20, 400))):
            raw[chance.randrange(100, len(raw))] = chance.randrange(256)
        file.write_bytes(raw)
        for outcome in damaged(whole):
            assert "FaultOfRegraft" not in outcome.stdout + outcome.stderr, (seed, outcome)
        file.write_bytes(kept[file])


def damaged(path: Path) -> list[Outcome]:
    return [
        run("check", path, "--deep", "--json"),
        run("inspect", path, "--json"),
        run("search", path, "queue", "--json"),
    ]


def test_numbers_are_packed_as_sqlite_does() -> None:
    numbers = [0, 1, 127, 128, 300, 1 << 20, 1 << 40, (1 << 56) - 1]
    assert list(_decode_varints(encode_varints(numbers))) == numbers
    assert list(_decode_varints(b"\xff" * 9)) == [(1 << 64) - 1]


# --- states --------------------------------------------------------------------------------------------------------


def nothing(_: Path) -> None:
    pass


STATES: dict[str, tuple[Callable[[Path], object], str]] = {
    "all are ready": (nothing, "ready"),
    "no sidecar": (migrated_alone, "degraded_missing_index"),
    "a sidecar that cannot be read": (partial(replaced, b"nothing"), "degraded_missing_index"),
    "a rebuild goes before what does not fit": (
        lambda path: store.set_sidecar(path, state="rebuilding", model_id="other"),
        "rebuilding",
    ),
    "another model goes before failures": (
        lambda path: [store.mark_failed(path, FIRST), store.set_sidecar(path, model_id="other")],
        "degraded_incompatible_index",
    ),
    "failures go before stale ones": (
        lambda path: [store.mark_failed(path, FIRST), store.edit(path, SECOND), added(path)],
        "degraded_failed_embeddings",
    ),
    "stale ones go before those without": (
        lambda path: [store.edit(path, SECOND), added(path)],
        "degraded_stale_embeddings",
    ),
    "some are without": (added, "degraded_partial_coverage"),
    "one of another model is stale": (
        lambda path: store.set_metadata(path, FIRST, model_id="other"),
        "degraded_stale_embeddings",
    ),
    "an excluded note needs no vector": (lambda path: store.exclude(path, FIRST), "ready"),
    "what failed and was changed is to be tried again": (
        lambda path: [store.mark_failed(path, FIRST), store.edit(path, FIRST)],
        "degraded_partial_coverage",
    ),
    "nothing eligible": (
        lambda path: [
            database.sidecar_path(path).unlink(),
            run_sql(path, "UPDATE memory_items SET embedding_eligible = 0", triggers=False),
        ],
        "ready",
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_the_state_of_a_database(name: str, whole: Path) -> None:
    change, state = STATES[name]
    change(whole)
    assert semantic(whole)["state"] == state


def test_all_states_are_met() -> None:
    assert {state for _, state in STATES.values()} | {"disabled"} == set(health.HealthState)


def test_all_signals_in_both_forms(whole: Path) -> None:
    store.edit(whole, FIRST)
    store.mark_failed(whole, SECOND)
    store.delete(whole, THIRD)
    added(whole)
    store.set_sidecar(whole, rebuilt_at="2026-05-01T00:00:00Z")
    assert semantic(whole) == {
        "state": "degraded_failed_embeddings",
        "retrieval_mode": "hybrid",
        "semantic_enabled": True,
        "implicit_resurfacing": None,
        "model_id": MODEL,
        "dimensions": 8,
        "eligible": 12,
        "ready": 9,
        "pending": 1,
        "stale": 1,
        "failed": 1,
        "excluded": 2,
        "not_applicable": 0,
        "sidecar_present": True,
        "sidecar_compatible": True,
        "sidecar_version": 1,
        "orphans": 1,
        "last_backfill": store.EMBEDDED,
        "last_rebuild": "2026-05-01T00:00:00Z",
    }
    document = run("inspect", whole, "--json").document
    assert document["health"]["coverage"] == 9 / 12
    [first, _] = document["bases"]
    assert (first["id"], first["name"], first["notes"], first["handoffs"]) == (project_id(0), "P 0", 7, 1)
    assert first["semantic"] == {
        "ready": 3, "pending": 1, "stale": 1, "failed": 1, "excluded": 1, "not_applicable": 0
    }  # fmt: skip
    text = run("inspect", whole).stdout
    for said in (
        *("search by meaning: partly: some notes could not be embedded", "stale                 1"),
        *("sidecar compatible    yes", "problem: search by meaning: partly", "1 failed", "1 handoff"),
    ):
        assert said in text


def test_without_a_sidecar_the_notes_tell_the_model(whole: Path) -> None:
    migrated_alone(whole)
    found = semantic(whole)
    assert (found["model_id"], found["ready"], found["pending"], found["orphans"]) == (MODEL, 0, 12, None)
    assert (found["sidecar_present"], found["sidecar_compatible"], found["last_backfill"]) == (False, None, None)
    replaced(b"nothing", whole)
    assert semantic(whole)["sidecar_compatible"] is False
    assert semantic(whole)["sidecar_version"] is None


def test_the_version_of_a_sidecar_is_told_also_where_it_is_another_one(whole: Path) -> None:
    store.set_sidecar(whole, version=7)
    found = semantic(whole)
    assert (found["sidecar_version"], found["sidecar_compatible"]) == (7, False)
    assert "sidecar version       7" in run("inspect", whole).stdout


# --- the judgement -------------------------------------------------------------------------------------------------


def judged(path: Path, note: str) -> tuple[NoteStatus, bool]:
    with health.open_memory(path) as memory:
        found = memory.notes.read_notes([note])[note]
        assert found in list(memory.notes.iterate(found.project))
        return found.status, found.can_adopt_vector


def test_a_note_that_changes_while_it_is_embedded_is_stale(whole: Path) -> None:
    """The vector of the text before comes after the change, and the metadata say ready."""
    old = database.note_content_hash(*store.parts_of(whole, FIRST))
    store.edit(whole, FIRST)
    store.mark_ready(whole, FIRST)
    store.put_vector(whole, FIRST, content_hash=old)
    assert judged(whole, FIRST) == (NoteStatus.STALE, False)


def test_a_note_whose_vector_of_the_new_text_is_there_already_is_adoptable(whole: Path) -> None:
    store.edit(whole, FIRST)
    store.put_vector(whole, FIRST)
    assert judged(whole, FIRST) == (NoteStatus.STALE, True)
    store.mark_ready(whole, FIRST)
    assert judged(whole, FIRST) == (NoteStatus.READY, False)


def test_white_space_and_normal_form_are_no_change(whole: Path) -> None:
    title, _, content = store.parts_of(whole, FIRST)
    store.edit(whole, FIRST, f"  {content.replace(' ', chr(9))}\n\n")
    assert judged(whole, FIRST) == (NoteStatus.READY, False)
    run_sql(whole, "UPDATE memory_items SET type = 'todo' WHERE id = ?", FIRST)
    assert judged(whole, FIRST) == (NoteStatus.STALE, False)
    assert title


def test_the_application_decides_what_is_embedded(pristine: Path) -> None:
    store.migrate(pristine)
    for number, (eligible, status, judgement) in enumerate(
        [
            (0, None, NoteStatus.NOT_APPLICABLE),
            (None, "not_applicable", NoteStatus.NOT_APPLICABLE),
            (1, "not_applicable", NoteStatus.PENDING),
            (1, None, NoteStatus.PENDING),
        ]
    ):
        store.set_metadata(pristine, note_id(0, number), eligible=eligible, status=status)
        assert judged(pristine, note_id(0, number)) == (judgement, False)


def test_notes_are_read_a_few_at_a_time_and_in_order(tmp_path: Path) -> None:
    path = store.write(tmp_path / "memory", projects=1, notes=0)
    with closing(apsw.Connection(str(path))) as db, db:
        ids = [store.add_note(db, 0, number) for number in range(1203)]
        notes = NoteReader(db)
        assert [note.id for note in notes.iterate()] == ids
        assert [note.id for note in notes.iterate(after=1000)] == ids[1000:]
        assert notes.counts()[project_id(0)].pending == 1203


def test_texts_that_are_no_utf_8_are_judged_all_the_same(whole: Path) -> None:
    run_sql(whole, "UPDATE memory_items SET content = CAST(x'6162ff' AS TEXT) WHERE id = ?", FIRST, triggers=False)
    assert judged(whole, FIRST) == (NoteStatus.STALE, False)


# --- no trace, and the log of a writer -----------------------------------------------------------------------------


def test_what_a_writer_has_in_its_log_is_seen(whole: Path) -> None:
    with closing(apsw.Connection(str(whole))) as db:
        db.execute("PRAGMA wal_autocheckpoint = 0")
        store.add_note(db, 0, 20)
        assert whole.with_name(f"{whole.name}-wal").stat().st_size > 0
        assert names(whole) == {"codex.pending"}
        assert semantic(whole)["pending"] == 1


def test_a_sidecar_of_vectors_is_read_beside_a_writer(whole: Path) -> None:
    with closing(apsw.Connection(str(database.sidecar_path(whole)))) as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute(f"DELETE FROM {sidecar.TABLE}")
        assert names(whole) == set()


def test_a_vector_is_what_the_fault_server_makes(whole: Path) -> None:
    """What tests of backfill compare with."""
    [(vector,)] = store.rows(database.sidecar_path(whole), "SELECT vector FROM embedding WHERE note_id = ?", FIRST)
    assert vector == vector_of(database.note_source_text(*store.parts_of(whole, FIRST)))
