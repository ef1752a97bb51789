"""No advice deletes the last copy: every command that check, fix and explain recommend is followed.

An independent reader, which is plain sqlite3 over all databases of the store and the bytes of all raw files, lists the
distinct texts and vectors before and after. Nothing may be gone, and undo gives every row and file back.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from aged_files import a_folder_of_nobody, aged
from failed_bases import FAILED, KNOWLEDGE, NO_MODEL, Damage, held, state, tombstoned, without_items
from harness import NOW, Outcome, command_words, run
from planted_v1 import whole
from planted_v2 import KB, KB_ROW, OTHER, PLANTED, an_old_stray_file, catalog, index, library, several, sql

MODEL = "acme::embed-3"
#: Commands that are followed. The others only read, or need an embedder that costs money.
CHANGING = {"fix", "repair", "gc", "reconcile", "upgrade", "rescue"}
#: What a page names as the deletion that the user may choose instead, and no advice.
CHOICES = {("gc", "--only", "embedding.unexpected")}
#: More than any of these stores has recommendations.
MOST = 15

# --- the independent reader ------------------------------------------------------------------------------------------


# --- recommendations -------------------------------------------------------------------------------------------------

_LINE = re.compile(r"(?:fix|try|Next): (regraft .*)")
_QUOTED = re.compile(r"`(regraft [^`]*)`")


def said(*outcomes: Outcome) -> str:
    return "\n".join(f"{one.stdout}\n{one.stderr}" for one in outcomes)


@cache
def explained(name: str) -> tuple[str, ...]:
    """Return the commands that the page of a finding recommends."""
    return tuple(_QUOTED.findall(said(run("explain", name))))


def recommended(store: Path) -> list[tuple[str, ...]]:
    """Return the commands that check, fix and explain recommend, in their order, each once; without their program."""
    found = run("check", store, "--json").document["findings"]
    text = said(run("check", store, "-v"), run("fix", store, "--dry-run", "-v"))
    lines = [one["repair"] for one in found if one["repair"]]
    lines += _LINE.findall(text) + _QUOTED.findall(text)
    for name in sorted({one["name"] for one in found}):
        lines += explained(name)
    commands = []
    for line in lines:
        words = [MODEL if word in ("PROVIDER::MODEL", "ID") else word for word in command_words(line)[1:]]
        if words[0] not in CHANGING:
            continue
        if tuple(words) in CHOICES:
            continue
        # A page does not know the store.
        words = words if str(store) in words else [words[0], str(store), *words[1:]]
        commands.append(tuple(words))
    return list(dict.fromkeys(commands))


def follow(store: Path) -> list[tuple[str, ...]]:
    """Follow recommendations one after the other, asking again after each, until all were followed."""
    followed: list[tuple[str, ...]] = []
    for _ in range(MOST):
        new = next((one for one in recommended(store) if one not in followed), None)
        if new is None:
            break
        followed.append(new)
        before = held(store)
        done = run(*new, "--yes", "--json")
        assert done.status in (0, 1, 2), done
        assert before <= held(store), (new, done.stdout)
    return followed


def take_all_back(store: Path) -> None:
    for _ in range(MOST + 2):
        if run("undo", store, "--yes", "-q").status != 0:
            return


# --- damaged stores --------------------------------------------------------------------------------------------------

MATERIAL = "(SELECT min(material_id) FROM material)"


def without_raw(store: Path) -> None:
    shutil.rmtree(store / KNOWLEDGE / KB / "raw")


def with_vector_files(store: Path) -> None:
    """Put v1's vector files beside the bases, one with a row that v2 does not have."""
    source = whole(store.parent / f"{store.name}-v1")
    for name in ("kb", "other"):
        aged(Path(shutil.copy(source / KNOWLEDGE / name, store / KNOWLEDGE / name)))
    with closing(sqlite3.connect(store / KNOWLEDGE / "kb")) as db, db:
        db.execute(
            "INSERT INTO vectors (id, pageContent, uniqueLoaderId, source)"
            " SELECT id || 'x', 'only in v1', uniqueLoaderId, source FROM vectors LIMIT 1"
        )
    aged(store / KNOWLEDGE / "kb")
    shutil.rmtree(source)


def of_one(prefix: str, what: str, path: str) -> str:
    """Return the statement that lists a row of nobody in ``raw/``."""
    return f"INSERT INTO material VALUES ('{prefix}', '{path}', {what}, 0, 0)"


def aged_raw(store: Path) -> None:
    aged(store / KNOWLEDGE / KB / "raw")


def unlisted(*bases: str) -> Damage:
    return catalog(
        *(f"DELETE FROM knowledge_item WHERE base_id = '{base}'" for base in bases),
        *(f"DELETE FROM knowledge_base WHERE id = '{base}'" for base in bases),
    )


STORES: dict[str, Damage] = {
    "one item row is gone": without_items("type = 'url'"),
    "one file's row is gone, and its file is old": several(
        without_items("type = 'file' AND group_id IS NULL"), aged_raw
    ),
    "all item rows are gone": without_items("TRUE"),
    "all item rows are gone, and the files are old": several(without_items("TRUE"), aged_raw),
    "the rows of a folder's files are gone": without_items("group_id IS NOT NULL"),
    "a folder and its files are gone": without_items("group_id IS NOT NULL OR type = 'directory'"),
    "the base failed": FAILED,
    "the base failed and lost its model": NO_MODEL,
    "the base failed, and all item rows are gone": several(FAILED, without_items("TRUE")),
    "the base failed without model and items": several(NO_MODEL, without_items("TRUE"), aged_raw),
    "the base failed, and its folders are tombstones": several(FAILED, tombstoned),
    "folders are tombstones": tombstoned,
    "the base failed, and a body has no vector": several(
        FAILED, without_items("TRUE"), sql("DELETE FROM embedding WHERE rowid = 1")
    ),
    "the base failed, and a vector is of another length": several(
        FAILED, without_items("TRUE"), sql("UPDATE embedding SET vector_blob = zeroblob(8) WHERE rowid = 1")
    ),
    "the base failed, and a vector is not finite": several(FAILED, PLANTED["NaN"].damage),
    "the base failed, and its model is gone": several(FAILED, catalog("DELETE FROM user_model")),
    "the base failed, with garbage": several(FAILED, PLANTED["a vector of nobody"].damage, an_old_stray_file),
    "the base failed without an index": several(FAILED, lambda store: shutil.rmtree(index(store).parent), aged_raw),
    "items gone, and its garbage is new": several(
        without_items("TRUE"), sql("DELETE FROM search_unit WHERE rowid = 1")
    ),
    "the catalog knows no base": unlisted(KB, OTHER),
    "the catalog knows one base less": several(unlisted(KB), lambda store: aged(store / KNOWLEDGE)),
    "the catalog has items of a base and not the base": catalog(f"DELETE FROM knowledge_base WHERE id = '{KB}'"),
    "a folder of no base": several(a_folder_of_nobody, sql("DELETE FROM embedding")),
    "an item is being deleted": catalog(
        f"UPDATE knowledge_item SET status = 'deleting' WHERE base_id = '{KB}' AND type = 'url'"
    ),
    "items have other ids": catalog(f"UPDATE knowledge_item SET id = 'new-' || id WHERE base_id = '{KB}'"),
    "items are of another base": catalog(f"UPDATE knowledge_item SET base_id = '{OTHER}' WHERE base_id = '{KB}'"),
    "an item has another path": PLANTED["another path"].damage,
    "an item has another id and the same path": PLANTED["a material of no item"].damage,
    "materials without units": sql("DELETE FROM search_unit"),
    "one material without units": sql(f"DELETE FROM search_unit WHERE material_id = {MATERIAL}"),
    "a unit is gone": sql("DELETE FROM search_unit WHERE rowid = 1"),
    "units of a material are gone but for one": sql(
        "DELETE FROM search_unit WHERE rowid IN (SELECT rowid FROM search_unit WHERE unit_index > 0)"
    ),
    "a material is gone": sql("PRAGMA foreign_keys = ON", f"DELETE FROM material WHERE material_id = {MATERIAL}"),
    "a material is gone and its units stay": sql(f"DELETE FROM material WHERE material_id = {MATERIAL}"),
    "all materials are gone": sql("PRAGMA foreign_keys = ON", "DELETE FROM material"),
    "bodies are gone": sql("DELETE FROM search_text"),
    "a body is gone": sql("DELETE FROM search_text WHERE rowid = 1"),
    "a text is gone": sql("DELETE FROM content WHERE rowid = 1"),
    "a body names another hash": sql("UPDATE search_text SET embedding_text_hash = 'h' WHERE rowid = 1"),
    "a unit has another id": sql("UPDATE search_unit SET unit_id = 'u' WHERE rowid = 1"),
    "raw files are gone": without_raw,
    "raw files that no item names": an_old_stray_file,
    "vectors without a model": PLANTED["vectors without a model"].damage,
    "the model is lost": catalog(KB_ROW.format("embedding_model_id = NULL")),
    "vector files of v1": with_vector_files,
    "the index is of another base": PLANTED["another base"].damage,
    "an index of version 1 whose items are gone": several(without_items("TRUE"), PLANTED["version 1"].damage),
    "two bases, each with its own loss": several(
        without_items("type = 'note'"), catalog(f"DELETE FROM knowledge_item WHERE base_id = '{OTHER}'"), FAILED
    ),
}


#: One store for each table and folder that can be damaged; ``make test-dose`` takes some of the others.
FIRST = {
    "all item rows are gone, and the files are old",
    "the base failed and lost its model",
    "the base failed, and its folders are tombstones",
    "the base failed, with garbage",
    "the base failed without an index",
    "the catalog knows no base",
    "items have other ids",
    "an item is being deleted",
    "an item has another id and the same path",
    "materials without units",
    "all materials are gone",
    "a text is gone",
    "a body names another hash",
    "raw files are gone",
    "vector files of v1",
    "two bases, each with its own loss",
}
EVERY_STORE = [name if name in FIRST else pytest.param(name, marks=pytest.mark.slow) for name in STORES]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("healthy")
    made = library(place)
    # Neither the source nor what is recorded of it is another copy.
    shutil.rmtree(place / "v1")
    shutil.rmtree(made / ".regraft")
    return made


@pytest.fixture
def damaged(name: str, healthy: Path, tmp_path: Path) -> Path:
    store = shutil.copytree(healthy, tmp_path / "library")
    STORES[name](store)
    return store


@pytest.mark.thorough
@pytest.mark.parametrize("name", EVERY_STORE)
def test_nothing_is_lost_by_following_advice(damaged: Path) -> None:
    before, rows_before = held(damaged), state(damaged)
    followed = follow(damaged)
    assert len(followed) < MOST, followed
    assert before <= held(damaged), followed
    take_all_back(damaged)
    assert state(damaged) == rows_before, followed


def telling(done: Outcome) -> list[dict[str, Any]]:
    """Return the actions of a run that list, complete or delete something."""
    prefixes = ("insert-", "complete-", "delete-", "trash-")
    return [one for one in done.document["actions"] if one["action"].startswith(prefixes)]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", EVERY_STORE)
def test_fix_does_what_it_shows_and_loses_nothing(damaged: Path) -> None:
    before, rows_before = held(damaged), state(damaged)
    planned = run("fix", damaged, "--dry-run", "--json", "--now", NOW)
    assert state(damaged) == rows_before
    done = run("fix", damaged, "--yes", "--json", "--now", NOW)
    assert before <= held(damaged), done.stdout
    if planned.status != 2:
        assert telling(planned) == telling(done)
        assert not any(one["action"].startswith(("delete-", "trash-")) for one in telling(done)), done.stdout
    take_all_back(damaged)
    assert state(damaged) == rows_before
