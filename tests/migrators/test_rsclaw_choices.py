"""What a user says of a migration from rsclaw: whose documents, which model, which target; and what is refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from extras import needs
from harness import run, snapshot
from hypothesis import given
from hypothesis import strategies as st
from rsclaw_migrated import carried, items, library_of, migrate, only_base, rows, skipped
from rsclaw_store import RsclawStore

from regraft.formats.rsclaw import chunks, documents

VISIBILITIES: list[tuple[dict[str, Any], str | None]] = [
    ({"type": "global"}, None),
    ({"type": "global"}, "u1"),
    ({"type": "private"}, None),
    ({"type": "private"}, ""),
    ({"type": "private"}, "u1"),
    ({"type": "private"}, "u2"),
    ({"type": "agent", "agent_id": "a1"}, None),
    ({"type": "agent", "agent_id": "a2"}, "u1"),
    ({"type": "agent"}, None),
    ({"type": "channel", "channel_id": "c1"}, "u1"),
    ({"type": "channel", "channel_id": "a1"}, None),
    ({"type": "team", "agent_id": "a1", "channel_id": "c1"}, "u1"),
    ({"type": "Global"}, "u1"),
]
CALLERS = [
    [],
    ["user:u1"],
    ["agent:a1"],
    ["channel:c1"],
    ["user:u1", "agent:a2"],
    ["user:u2|agent:a1|channel:c1"],
    ["user:U1"],
]


@pytest.fixture
def store(tmp_path: Path) -> RsclawStore:
    return RsclawStore(tmp_path / "kb")


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def seen(visibility: dict[str, Any], owner: str | None, callers: list[str]) -> bool:
    """Return what the facts say, from what is written in a word each."""
    words = set(itertools.chain.from_iterable(word.split("|") for word in callers))
    kind = visibility["type"]
    if kind == "private":
        return bool(owner) and f"user:{owner}" in words
    if kind in ("agent", "channel"):
        return f"{kind}:{visibility.get(kind + '_id')}" in words
    return kind == "global"


@pytest.mark.thorough
@pytest.mark.parametrize("callers", CALLERS, ids=" ".join)
def test_only_what_those_may_see_for_whom_is_migrated_is_carried(store, callers):
    for number, (visibility, owner) in enumerate(VISIBILITIES):
        store.doc(f"D{number}", [f"secret {number}"], visibility=visibility, owner=owner)
    outcome = migrate(store.write(), *(word for who in callers for word in ("--visible-to", who)))
    expected = {f"D{at}.md" for at, (visibility, owner) in enumerate(VISIBILITIES) if seen(visibility, owner, callers)}
    assert {path for path, *_ in carried(store.root)} == expected
    assert set(items(store.root)) == expected
    hidden = len(VISIBILITIES) - len(expected)
    assert skipped(outcome) == {"not_visible": hidden}
    # Not a word of what is hidden is anywhere in the target, nor what else would tell of it.
    for chunk in store.tables["kb_chunks"].values():
        title = store.tables["kb_docs"][chunk["doc_id"].encode()]["title"]
        if f"{title}.md" not in expected:
            for secret in (chunk["id"], chunk["doc_id"]):
                assert not any(secret.encode() in path.read_bytes() for path in files(library_of(store.root)))
    everything = b"".join(path.read_bytes() for path in files(library_of(store.root)))
    for number in range(len(VISIBILITIES)):
        assert (f"secret {number}\n".encode() in everything.replace(b"\0", b"\n") or f"D{number}.md" in expected) == (
            f"D{number}.md" in expected
        )
    told = [one for one in outcome.document["warnings"] if one["code"] == "visibility_dropped"]
    assert bool(told) == any(name not in ("D0.md", "D1.md") for name in expected)


def test_times_of_what_is_hidden_are_not_those_of_the_base(store):
    store.doc("Hidden", ["a"], visibility={"type": "private"}, owner="me", age_days=99)
    shown = store.doc("Seen", ["b"], age_days=5)
    migrate(store.write())
    query = "SELECT created_at, updated_at FROM knowledge_base"
    assert rows(library_of(store.root) / "catalog.sqlite", query) == [(shown["created_at"], shown["updated_at"])]


def test_a_kb_of_which_nothing_is_visible_is_told_so(store):
    store.doc("Hidden", ["a"], visibility={"type": "private"}, owner="me")
    outcome = migrate(store.write())
    assert (outcome.status, outcome.document["bases"]) == (1, [])
    assert outcome.document["skipped"] == {"nothing_visible": 1}
    assert [one["message"] for one in outcome.document["warnings"]] == [
        "1 document, none of them visible to the given users"
    ]


def test_another_word_for_whom_is_another_migration(store):
    store.doc("All", ["a"])
    store.doc("Mine", ["b"], visibility={"type": "private"}, owner="me")
    migrate(store.write(), "--visible-to", "user:me")
    assert set(items(store.root)) == {"All.md", "Mine.md"}
    migrate(store.root)
    assert set(items(store.root)) == {"All.md"}
    assert not (only_base(store.root) / "raw/Mine.md").exists()


@pytest.mark.parametrize("word", ["", "user", "user:", "bob", "User:u1", "team:t", "user:u|", "|"])
def test_a_word_for_nobody_is_refused(store, word):
    store.doc("All", ["a"])
    outcome = run("migrate", store.write(), "--to", library_of(store.root), "--yes", "--visible-to", word)
    if word == "user:u|":
        assert outcome.status == 0  # an id may have a bar in it
        return
    assert outcome.status == 2
    assert outcome.stderr == (
        f"regraft: --visible-to {word}: not a valid user, agent or channel (give user:ID, agent:ID or channel:ID).\n"
    )
    assert not library_of(store.root).exists()


def test_other_sources_have_no_visibility(tmp_path, golden):
    outcome = run("migrate", golden("basic") / "v1", "--to", tmp_path / "out", "--yes", "--visible-to", "user:u")
    assert outcome.status == 2
    assert (
        outcome.stderr
        == "regraft: --visible-to only applies to documents of a knowledge base of rsclaw (leave it out).\n"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("old", ["stub-4", "rsclaw::stub-4", "the base"])
def test_the_user_says_which_model_the_vectors_are_of(store, old):
    store.doc("All", ["a"])
    outcome = migrate(store.write(), "--map-model", f"{'rsclaw' if old == 'the base' else old}=my::model")
    assert outcome.status == 0, outcome.document["warnings"]
    ((model,),) = rows(library_of(store.root) / "catalog.sqlite", "SELECT embedding_model_id FROM knowledge_base")
    assert model == "my::model"
    assert "model_option_unused" not in {one["code"] for one in outcome.document["warnings"]}


def test_a_model_that_no_base_uses_is_told(store):
    store.doc("All", ["a"])
    codes = {one["code"] for one in migrate(store.write(), "--map-model", "x::y=my::model").document["warnings"]}
    assert "model_option_unused" in codes


def test_collections_and_tags_are_in_the_report(store):
    store.doc("All", ["a"], tags=["x"])
    store.put("kb_collections", "c1", {"id": "c1", "name": "手册"})
    messages = [one["message"] for one in migrate(store.write()).document["warnings"] if one["code"] == "dropped_field"]
    assert messages == ["collections: 手册", "tags of 1 document"]


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    "path", ["md/doc/../../../../secret.md", "/etc/hostname", "secret.md", "md", "md//a.md", "md/a\\b.md"]
)
def test_a_path_that_leads_elsewhere_is_no_file_of_the_kb(store, path):
    (store.root.parent / "secret.md").write_text("secret")
    (store.root / "secret.md").write_text("secret")
    store.doc("All", ["a"], markdown_path=path)
    outcome = migrate(store.write())
    assert outcome.status == 1
    assert [one["code"] for one in outcome.document["warnings"]].count("missing_upload") == 1
    assert not list(only_base(store.root).glob("raw/*"))
    assert len(carried(store.root)) == 1


def test_a_link_in_the_place_of_a_file_is_not_followed(store):
    (store.root.parent / "secret.md").write_text("secret")
    doc = store.doc("All", ["a"])
    (store.root / doc["markdown_path"]).unlink()
    (store.root / doc["markdown_path"]).symlink_to(store.root.parent / "secret.md")
    outcome = migrate(store.write())
    assert "missing_upload" in {one["code"] for one in outcome.document["warnings"]}
    assert not list(only_base(store.root).glob("raw/*"))


@pytest.mark.thorough
@given(st.lists(st.text(max_size=20), min_size=1, max_size=6))
def test_titles_of_any_text_give_names_of_files(tmp_path_factory, titles):
    store = RsclawStore(tmp_path_factory.mktemp("titles") / "kb")
    for number, title in enumerate(titles):
        store.doc(title, [f"text {number}"], markdown_path=f"md/doc/{number}.md")
        store.file(f"md/doc/{number}.md", b"---\n---\n\nbody")
    migrate(store.write())
    found = items(store.root)
    assert len(found) == len(titles)
    for path in found:
        assert (only_base(store.root) / "raw" / path).is_file()
        assert Path(path).name == path


# --- what is refused -----------------------------------------------------------------------------------------------


def test_a_target_inside_the_kb_is_refused(store):
    store.doc("All", ["a"])
    store.write()
    before = snapshot(store.root)
    outcome = run("migrate", store.root, "--to", store.root / "md" / "out", "--yes")
    assert outcome.status == 2
    assert "contains the other" in outcome.stderr
    assert snapshot(store.root) == before


def test_a_kb_in_use_is_refused(store):
    fcntl = pytest.importorskip("fcntl")
    store.doc("All", ["a"])
    store.write()
    with (store.root / "kb.redb").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        outcome = run("migrate", store.root, "--to", library_of(store.root), "--yes")
    assert outcome.status == 2
    assert outcome.stderr == (
        f"regraft: {store.root / 'kb.redb'}: another program has this redb file open; quit that program first, "
        "or use a copy of the file.\n"
    )
    assert not library_of(store.root).exists()


def test_a_database_that_is_damaged_as_a_whole_is_refused(store):
    store.doc("All", ["a"])
    store.write()
    content = bytearray((store.root / "kb.redb").read_bytes())
    for slot in (64, 192):
        content[slot + 8] ^= 1
    (store.root / "kb.redb").write_bytes(content)
    outcome = run("migrate", store.root, "--to", library_of(store.root), "--yes")
    assert (outcome.status, "both commit slots are damaged" in outcome.stderr) == (2, True)
    assert not library_of(store.root).exists()


def test_a_dry_run_writes_nothing_and_says_the_same(store):
    store.doc("All", ["a", "b"])
    store.doc("Gone", ["c"], status="tombstoned")
    store.write()
    before = snapshot(store.root.parent)
    planned = migrate(store.root, "--dry-run").document
    assert snapshot(store.root.parent) == before
    done = migrate(store.root).document
    assert planned["bases"][0]["rows"] == done["bases"][0]["rows"]
    assert planned["ids"] == done["ids"]


def test_search_in_the_new_base_finds_by_words_and_by_meaning(store):
    store.doc("Apples", ["an apple a day"])
    store.doc("Pears", ["a pear a day"])
    migrate(store.write())
    vector = store.root.parent / "vector.json"
    chunk = next(one for one in store.tables["kb_chunks"].values() if "pear" in one["indexed_text"])
    vector.write_text(json.dumps(chunk["vector"]), "utf-8")
    library = library_of(store.root)
    assert run("search", library, "apple", "--json").document["hits"][0]["item_name"] == "Apples.md"
    found = run("search", library, "x", "--mode", "vector", "--vector", vector, "--json").document
    assert found["hits"][0]["item_name"] == "Pears.md"


# --- a database that changes between two readings --------------------------------------------------------------------


def changed_after(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, store: RsclawStore) -> None:
    """Let the database be written anew as soon as a function is done, which the first reading ends with."""
    done = getattr(module, name)

    def then(*arguments: Any) -> Any:
        answer = done(*arguments)
        store.doc("Later", ["another text"])
        store.write()
        return answer

    monkeypatch.setattr(module, name, then)


@needs("parquet")
def test_an_export_of_two_states_is_none(store, monkeypatch):
    store.doc("All", ["a"])
    root = store.write()
    changed_after(monkeypatch, chunks, "choose_chunks", store)
    outcome = run("export", root, store.root.parent / "rows.parquet")
    assert (outcome.status, "this redb file changed while it was read" in outcome.stderr) == (2, True)
    assert not (store.root.parent / "rows.parquet").exists()


def test_a_search_of_two_states_is_none(store, monkeypatch):
    store.doc("All", ["a text"])
    root = store.write()
    changed_after(monkeypatch, documents, "select_documents", store)
    outcome = run("search", root, "text", "--json")
    assert (outcome.status, outcome.document["error"]["code"]) == (2, "RedbChanged")
