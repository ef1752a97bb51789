"""Valid libraries and damaged ones, made by the strategies: what ``regraft check`` and a search make of them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from faults import untouched
from harness import Outcome, examples, run, snapshot
from hypothesis import HealthCheck, given, settings

from checks.audit.findings import FINDINGS
from regraft.disk import sqlite
from regraft.formats.cherry_v2.index import IndexStore
from regraft.formats.cherry_v2.index.search import bm25_hits, tokens
from regraft.testing import DAMAGES, DamagedCase, LibraryCase, damaged_libraries, damages, libraries

few = settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
LEVELS = ("quick", "default", "deep")


@contextmanager
def a_place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="regraft-") as folder:
        yield Path(folder) / "library"


def check(library: Path, level: str) -> Outcome:
    return run("check", library, "--json", *([] if level == "default" else [f"--{level}"]))


@few
@given(libraries())
def test_a_valid_library_has_nothing_graver_than_notes_but_what_failed_in_v1(case: LibraryCase) -> None:
    with a_place() as library:
        case.write(library)
        with untouched(library):
            answers = [check(library, level) for level in LEVELS]
        for answer in answers:
            graver = [one for one in answer.document["findings"] if one["severity"] != "note"]
            assert {one["name"] for one in graver} <= {"base.failed", "item.tombstone"}, graver
            assert answer.status == int(bool(graver))
        checked = answers[-1].document["checked"]
        assert checked["bases"] == len(case.bases)
        assert checked["items"] == sum(len(base.items) for base in case.bases)
        assert checked["materials"] == sum(len(base.materials) for base in case.bases)
        assert checked["units"] == sum(len(one.units) for base in case.bases for one in base.materials)


@few
@given(libraries())
def test_a_valid_library_is_whole_to_sqlite_and_its_texts_are_found(case: LibraryCase) -> None:
    with a_place() as library:
        for path in sorted(case.write(library).rglob("*.sqlite")):
            with sqlite.open_readonly(path) as db:
                assert db.execute("PRAGMA integrity_check").get == "ok"
                assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        for base in case.bases:
            if base.materials:
                with sqlite.open_readonly(library / "KnowledgeBase" / base.id / ".cherry" / "index.sqlite") as db:
                    for one in base.materials:
                        for body in one.bodies:
                            found = {hit.text for hit in bm25_hits(db, body, 1000)}
                            assert body in found or not tokens(body)


@pytest.mark.thorough
@few
@given(damaged_libraries())
def test_damage_is_found_wherever_it_is(case: DamagedCase) -> None:
    with a_place() as library:
        planted = case.write(library)
        assert planted.finding == case.expected
        with untouched(library):
            answers = {level: check(library, level) for level in LEVELS}
        for level in LEVELS[LEVELS.index(case.damage.level) :]:
            findings = answers[level].document["findings"]
            about = [one for one in findings if (one["name"], one["base"]) == (planted.finding, planted.base)]
            assert about, findings
            if planted.subject is not None:
                assert planted.subject in {one["subject"] for one in about}
            # A note is nothing to complain about, but what was planted may have done more than that.
            assert answers[level].status == any(one["severity"] != "note" for one in findings)
            assert answers[level].status == 1 or FINDINGS[case.expected].severity == "note"


@pytest.mark.thorough
@settings(few, max_examples=1)
@given(libraries(whole=True, max_bases=1))
def test_a_whole_library_has_something_for_every_damage(case: LibraryCase) -> None:
    with a_place() as library:
        case.write(library)
        for damage in DAMAGES.values():
            copy = shutil.copytree(library, library.with_name("copy"))
            assert snapshot(copy) == snapshot(library)
            damage.plant(copy, case.bases[0].id, choice=1)
            assert snapshot(copy) != snapshot(library)
            shutil.rmtree(copy)


@settings(max_examples=10)
@given(damages("embedding.missing", "raw.orphan"))
def test_damage_of_some_kinds_only(damage: Any) -> None:
    assert damage.finding in ("embedding.missing", "raw.orphan")


def test_damage_that_a_base_has_nothing_for(tmp_path: Path) -> None:
    base = "00000000-0000-4000-8000-000000000000"
    index = tmp_path / "KnowledgeBase" / base / ".cherry" / "index.sqlite"
    index.parent.mkdir(parents=True)
    IndexStore(index, base, create=True).close()
    with pytest.raises(ValueError, match="nothing for this damage to hit"):
        DAMAGES["no vector"].plant(tmp_path, base)
