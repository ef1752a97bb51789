"""Who may search what in a KB of rsclaw: nothing of a hidden document reaches an answer, whatever is asked."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import codex_mem_store
import pytest
from faults import said, untouched
from harness import SAMPLES, Outcome, needs_samples, run
from rsclaw_store import RsclawStore, embed

import regraft
from regraft.errors import WrongUsage

#: By name: a visibility, its owner, and those who may see it (None: everybody).
WHO: dict[str, tuple[dict[str, Any], str | None, tuple[str, ...] | None]] = {
    "global": ({"type": "global"}, None, None),
    "global with an owner": ({"type": "global"}, "ada", None),
    "private": ({"type": "private"}, "ada", ("user:ada",)),
    "private of another": ({"type": "private"}, "bob", ("user:bob",)),
    "private of nobody": ({"type": "private"}, None, ()),
    "private, blank owner": ({"type": "private"}, "", ()),
    "private, white owner": ({"type": "private"}, " ", ("user: ",)),
    "private, other case": ({"type": "private"}, "ADA", ("user:ADA",)),
    "private, an agent's id": ({"type": "private", "agent_id": "a1", "channel_id": "c1"}, None, ()),
    "agent": ({"type": "agent", "agent_id": "a1"}, None, ("agent:a1",)),
    "agent with an owner": ({"type": "agent", "agent_id": "a1"}, "ada", ("agent:a1",)),
    "agent named ada": ({"type": "agent", "agent_id": "ada"}, "bob", ("agent:ada",)),
    "agent without an id": ({"type": "agent"}, "ada", ()),
    "agent of a channel's id": ({"type": "agent", "channel_id": "c1"}, "ada", ()),
    "agent, null": ({"type": "agent", "agent_id": None}, None, ()),
    "agent, blank": ({"type": "agent", "agent_id": ""}, None, ()),
    "channel": ({"type": "channel", "channel_id": "c1"}, None, ("channel:c1",)),
    "channel with a colon": ({"type": "channel", "channel_id": "a:b|c"}, None, ("channel:a:b|c",)),
    "channel with a bar": ({"type": "channel", "channel_id": "x|y"}, None, ("channel:x|y",)),
    "channel of an agent's id": ({"type": "channel", "agent_id": "a1"}, "ada", ()),
    "unknown type": ({"type": "team", "agent_id": "a1", "channel_id": "c1"}, "ada", ()),
    "another case of a type": ({"type": "Global"}, "ada", ()),
    "a blank type": ({"type": ""}, "ada", ()),
}
CALLERS = (
    *((), ("user:ada",), ("user:bob",), ("user:ADA",), ("user:nobody",), ("user: ",), ("user:None",), ("user:null",)),
    *(("agent:a1",), ("agent:A1",), ("agent:ada",), ("agent:None",), ("channel:c1",), ("channel:a1",)),
    *(("channel:a:b|c",), ("channel:x|y",), ("channel:x", "channel:y"), ("user:global",), ("user:%",), ("user:*",)),
    *(("user:ada", "agent:a1"), ("user:ada|agent:a1|channel:c1",), ("user:ada", "user:bob", "channel:a:b|c")),
)
STATUSES = ("active", "tombstoned", "updating", "Active", "")


def named(callers: Iterable[str]) -> list[str]:
    return [word for caller in callers for word in ("--as", caller)]


def everything(path: Path, callers: Iterable[str]) -> list[dict[str, Any]]:
    outcome = run("search", path, "common", "--json", "-k", 1000, *named(callers))
    assert outcome.status == 0, outcome
    return outcome.document["hits"]


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> RsclawStore:
    """Make a KB of every visibility in every status, as the latest version and as one before."""
    store = RsclawStore(tmp_path_factory.mktemp("grid") / "kb")
    for (name, (visibility, owner, _)), status in itertools.product(WHO.items(), STATUSES):
        for version in (1, 2):
            title = f"{name} / {status} / {version}"
            text = [f"common word{len(store.tables['kb_chunks'])} of it."]
            lsid = f"url:https://example.org/{name}/{status}"
            more: dict[str, Any] = {"visibility": visibility, "owner": owner, "status": status}
            store.doc(title, text, lsid=lsid, version=version, **more)
    store.write()
    return store


@pytest.mark.thorough
@pytest.mark.parametrize("callers", CALLERS, ids=str)
def test_a_caller_finds_what_they_may_see_and_nothing_else(callers: tuple[str, ...], grid: RsclawStore) -> None:
    asked = {"user:ada", "agent:a1", "channel:c1"} if "|agent" in "".join(callers) else set(callers)
    expected = {
        f"{name} / active / 2" for name, (_, _, seers) in WHO.items() if seers is None or asked.intersection(seers)
    }
    hits = everything(grid.root, callers)
    assert {hit["item_name"] for hit in hits} == expected
    assert len(hits) == len(expected)


def without_hidden(store: RsclawStore, root: Path, shown: set[str]) -> RsclawStore:
    """Return a copy of a KB that never had the documents that are not shown."""
    twin = RsclawStore(root)
    docs = {key: doc for key, doc in store.tables["kb_docs"].items() if isinstance(doc, dict) and doc["title"] in shown}
    twin.tables["kb_docs"] = docs
    latest = {doc["logical_source_id"].encode(): doc for doc in docs.values()}
    for lsid, doc in latest.items():
        twin.put("kb_doc_latest_version", lsid, {"doc_id": doc["id"], "version": doc["version"]})
    chunks = store.tables["kb_chunks"]
    twin.tables["kb_chunks"] = {key: one for key, one in chunks.items() if one["doc_id"].encode() in docs}
    twin.write()
    return twin


def told(outcome: Outcome, root: Path) -> tuple[int, str, str]:
    """Return all that a run says, but for where and when it was."""
    out = outcome.stdout
    if out.startswith("{"):
        document = json.loads(out)
        for name in ("run", "source"):
            document.pop(name, None)
        out = json.dumps(document)
    return outcome.status, out.replace(str(root), "KB"), outcome.stderr.replace(str(root), "KB")


VARIANTS: tuple[tuple[object, ...], ...] = (
    ("common", "-k", 1000),
    ("common word17 of", "-k", 3),
    ("of", "-k", 4),
    ("word3",),
    ("nothing of the kind", "--mode", "hybrid"),
    ("common", "--mode", "vector"),
    ("common", "--vector", "VECTOR", "-k", 50),
    ("common", "--vector", "VECTOR", "--mode", "vector"),
    ("common", "--vector", "SHORT"),
    ("common", "--vector", "LONG"),
    ("common", "--vector", "LONG", "--mode", "vector"),
)


@pytest.mark.thorough
@pytest.mark.parametrize("callers", [(), ("user:ada",), ("agent:a1", "user:bob"), ("channel:nobody",)], ids=str)
def test_an_answer_is_the_same_as_if_hidden_documents_were_not_there(
    callers: tuple[str, ...], grid: RsclawStore, tmp_path: Path
) -> None:
    """Their words, lengths, vectors, embedders and damage change no score, no order, no count and no sentence."""
    store = RsclawStore(tmp_path / "kb")
    store.tables = {name: dict(rows) for name, rows in grid.tables.items()}
    secret: dict[str, Any] = {"visibility": {"type": "private"}, "owner": "eve"}
    store.doc("Secret", ["common " * 50, "word3 secret"], embedder="secret-8", dimensions=8, **secret)
    for number in range(30):
        store.doc("Secret", [f"common secret {number}"], embedder="secret-8", dimensions=8, **secret)
    odd = store.doc("Secret", (), **secret)
    for seq, vector in enumerate(([], [0, 0, 0, 0], "text", [None])):
        store.chunk(odd, seq, "common secret", (0, 1), vector=vector)
    broken = store.doc("Secret", ["common secret of a row that cannot be read"])
    store.tables["kb_docs"][broken["id"].encode()] = b"{" + json.dumps(broken).encode()
    gone = store.doc("Secret", ["common secret of a row that is not there"])
    del store.tables["kb_docs"][gone["id"].encode()]
    root = store.write()
    shown = {hit["item_name"] for hit in everything(root, callers)}
    assert "Secret" not in shown
    twin = without_hidden(store, tmp_path / "twin", shown).root
    files = {"VECTOR": embed("q"), "SHORT": [1, 2], "LONG": embed("q", 8)}
    for name, numbers in files.items():
        (tmp_path / name).write_text(json.dumps(numbers), "utf-8")
    for words, form in itertools.product(VARIANTS, ((), ("--json",), ("-v",))):
        options = [tmp_path / str(word) if word in files else word for word in words]
        with untouched(root):
            found = told(run("search", root, *options, *named(callers), *form), root)
        assert found == told(run("search", twin, *options, *named(callers), *form), twin)
        assert "ecret" not in "".join(map(str, found))


def spoiled(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], bytes]:
    def write(doc: dict[str, Any]) -> bytes:
        doc = json.loads(json.dumps(doc))
        change(doc)
        return json.dumps(doc).encode()

    return write


@pytest.mark.thorough
@pytest.mark.parametrize(
    "write",
    [
        lambda _: b"",
        lambda doc: json.dumps(doc).encode()[:-1],
        lambda doc: json.dumps(doc).encode() + b"x",
        lambda _: b"[]",
        spoiled(lambda doc: doc.pop("visibility")),
        spoiled(lambda doc: doc.update(visibility="global")),
        spoiled(lambda doc: doc.update(visibility=None)),
        spoiled(lambda doc: doc.update(visibility={"type": None})),
        spoiled(lambda doc: doc.update(visibility={"type": ["global"]})),
        spoiled(lambda doc: doc.update(id="another")),
        spoiled(lambda doc: doc.update(version="1")),
        lambda doc: json.dumps(doc).encode().replace(b'"Doc"', b'"\xff"'),
    ],
)
def test_a_document_whose_row_cannot_be_read_is_hidden(
    write: Callable[[dict[str, Any]], bytes], tmp_path: Path
) -> None:
    store = RsclawStore(tmp_path / "kb")
    doc = store.doc("Doc", ["common text"])
    store.doc("Seen", ["common text, too"])
    store.tables["kb_docs"][doc["id"].encode()] = write(doc)
    assert [hit["item_name"] for hit in everything(store.write(), ("user:ada",))] == ["Seen"]
    assert run("search", store.root, "common").stderr == ""


def test_a_chunk_is_searched_for_the_document_that_it_names(tmp_path: Path) -> None:
    """Neither its source nor its key puts it into the document of another; one that was deleted is not searched."""
    store = RsclawStore(tmp_path / "kb")
    seen = store.doc("Seen", ["common text"])
    hidden = store.doc("Hidden", ["common secret"], visibility={"type": "private"}, owner="ada")
    store.chunk(hidden, 7, "common, filed under another source", (0, 1), logical_source_id=seen["logical_source_id"])
    store.chunk(seen, 8, "common, deleted", (0, 1), status="tombstoned")
    store.chunk(seen, 9, "common, without a document", (0, 1), doc_id="gone")
    moved = store.chunk(seen, 10, "common, under another key", (0, 1))
    store.tables["kb_chunks"][b"0" * 32] = store.tables["kb_chunks"].pop(moved["id"].encode())
    store.tables["kb_chunks"][b"f" * 32] = b"{"
    assert [hit["text"] for hit in everything(store.write(), ())] == ["Seen\n\ncommon text"]
    assert len(everything(store.root, ("user:ada",))) == 3


@pytest.mark.parametrize(
    "word", ["ada", "user:", "User:ada", "user", ":ada", "", "team:x", "user:ada|agent:", " user:ada"]
)
def test_a_caller_of_another_form_is_refused(word: str, grid: RsclawStore) -> None:
    message = said(run("search", grid.root, "common", "--json", "--as", word), "WrongUsage", 2)
    assert "user:ID, agent:ID or channel:ID" in message
    with pytest.raises(WrongUsage):
        regraft.search(grid.root, "common", as_=[word])


def test_only_a_kb_knows_callers(tmp_path: Path) -> None:
    store = RsclawStore(tmp_path / "kb")
    store.doc("Doc", ["common text"])
    library, memory = tmp_path / "library", codex_mem_store.write(tmp_path / "memory", notes=1)
    assert run("migrate", store.write(), "--to", library, "-q", "--fail-on", "never").status == 0
    for path in (library, memory):
        message = said(run("search", path, "common", "--json", "--as", "user:ada"), "WrongUsage", 2)
        assert re.fullmatch(r"--as is not for .*; only rsclaw has documents with restricted visibility\)\.", message)
        with pytest.raises(WrongUsage):
            regraft.search(path, "common", as_=["user:ada"])


# --- the sample ----------------------------------------------------------------------------------------------------

SAMPLE = SAMPLES / "rsclaw" / "kb"


@needs_samples
def test_the_sample_is_searched_for_everybody_and_for_its_agent() -> None:
    with untouched(SAMPLE):
        for query, callers, titles in (
            ("classified", ("user:ada",), []),  # private, and nobody's
            ("gone", (), []),  # deleted
            ("only for", (), []),
            ("only for", ("agent:a1",), ["Agent note"]),
            ("Page", (), ["Page", "Page"]),
            ("内容3", (), ["Handbook"] * 5),
            ("different body", (), ["Rotating", "Edited by hand"]),
            ("trailing paragraph", (), ["Handbook", "Handbook"]),
        ):
            outcome = run("search", SAMPLE, query, "--json", *named(callers))
            assert [hit["item_name"] for hit in outcome.document["hits"]] == titles, query


@needs_samples
def test_a_chunk_of_the_sample_is_the_nearest_to_itself(tmp_path: Path) -> None:
    rows = json.loads((SAMPLES / "rsclaw" / "rows.json").read_text("utf-8"))["kb_chunks"]
    chunks = [json.loads(bytes.fromhex(value)) for _, value in rows.items()]
    chunk = next(one for one in chunks if one["heading_path"] == ["Handbook", "Section 3"] and one["seq"] == 7)
    (tmp_path / "query.json").write_text(json.dumps(chunk["vector"]), "utf-8")
    outcome = run("search", SAMPLE, "x", "--json", "--mode", "vector", "--vector", tmp_path / "query.json")
    [first, *_] = outcome.document["hits"]
    assert (first["unit_id"], first["score"]) == (chunk["id"], pytest.approx(1, abs=1e-6))
    assert outcome.document["notes"] == [
        "1 chunk with another embedder or other dimensions than the query (stub-sha256-1024) can be found by words only"
    ]
