"""``regraft search`` in a KB of rsclaw that is damaged, in use, of another format or large, and with an embedder."""

from __future__ import annotations

import json
import subprocess
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fault_server import FaultServer, failing, numbers_of, vector_of, wrong_length
from faults import said, untouched
from harness import run
from lacking import configured
from rsclaw_store import RsclawStore

from regraft import embedders as server_module

HIDDEN: dict[str, Any] = {"visibility": {"type": "private"}, "owner": "eve"}
DAMAGED = "pages of the database are damaged; their content is not searched"


@pytest.fixture
def store(tmp_path: Path) -> RsclawStore:
    made = RsclawStore(tmp_path / "kb")
    for number in range(12):
        made.doc(f"Doc {number}", [f"A river, number{number:02}."])
    made.doc("Secret", ["A river that is hidden."], **HIDDEN)
    return made


def spoil(root: Path, text: bytes) -> None:
    """Change every place of the database where a text stands."""
    path = root / "kb.redb"
    raw = path.read_bytes()
    assert text in raw
    path.write_bytes(raw.replace(text, b"#" * len(text)))


# --- damage --------------------------------------------------------------------------------------------------------


def test_damaged_pages_are_passed_over_and_said(store: RsclawStore) -> None:
    root = store.write(most=2)
    spoil(root, b"A river, number07.")
    with untouched(root):
        outcome = run("search", root, "river", "-k", 50, "--json")
    found = {hit["item_name"] for hit in outcome.document["hits"]}
    assert outcome.status == 1
    assert outcome.document["notes"] == [DAMAGED]
    assert outcome.stderr == f"note: {DAMAGED}\n"
    assert "Doc 7" not in found
    assert len(found) >= 10
    assert "Secret" not in found
    quiet = run("search", root, "river", "-q")
    assert (quiet.status, quiet.stderr) == (1, "")


def test_documents_in_damaged_pages_are_hidden(store: RsclawStore) -> None:
    root = store.write(most=2)
    spoil(root, b'"title":"Doc 7"')
    outcome = run("search", root, "river", "-k", 50, "--json")
    assert (outcome.status, outcome.document["notes"]) == (1, [DAMAGED])
    assert 10 <= len(outcome.document["hits"]) < 12


def test_what_is_said_of_damage_is_the_same_whatever_lies_there(store: RsclawStore) -> None:
    """That a damaged page had rows of a hidden document, and how many, nobody is told."""
    told = set()
    for text in (b"A river that is hidden.", b"A river, number01."):
        root = store.write(most=1)
        spoil(root, text)
        outcome = run("search", root, "zeppelin")
        told.add((outcome.status, outcome.stdout, outcome.stderr))
    assert len(told) == 1
    assert "ecret" not in str(told)


def test_a_database_of_which_nothing_can_be_read_is_refused(store: RsclawStore) -> None:
    root = store.write()
    path = root / "kb.redb"
    raw = bytearray(path.read_bytes())
    raw[64:320] = bytes(256)
    path.write_bytes(raw)
    with untouched(root):
        outcome = run("search", root, "river", "--json")
    assert outcome.status == 2
    assert outcome.document["error"]["code"].startswith("Redb")


@pytest.mark.parametrize(("version", "code"), [(1, "RedbTooOld"), (4, "RedbTooNew")])
def test_a_database_of_another_format_is_refused(version: int, code: str, store: RsclawStore) -> None:
    root = store.write(version=version)
    with untouched(root):
        said(run("search", root, "river", "--json"), code, 2)


def test_a_database_of_format_2_is_searched(store: RsclawStore) -> None:
    assert len(run("search", store.write(version=2), "river", "--json", "-k", 50).document["hits"]) == 12


def test_a_database_that_is_in_use_is_refused(store: RsclawStore) -> None:
    fcntl = pytest.importorskip("fcntl")
    root = store.write()
    with (root / "kb.redb").open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with untouched(root):
            said(run("search", root, "river", "--json"), "RedbInUse", 2)
    assert run("search", root, "river").status == 0


def test_a_kb_without_a_row(tmp_path: Path) -> None:
    root = RsclawStore(tmp_path / "kb").write()
    (tmp_path / "query.json").write_text("[1, 2]")
    for options in ((), ("--vector", tmp_path / "query.json")):
        outcome = run("search", root, "river", "--json", *options)
        assert (outcome.status, outcome.document["hits"]) == (0, [])


# --- an embedder ---------------------------------------------------------------------------------------------------


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    pytest.importorskip("openai", reason="the client of embedding servers is not installed")
    monkeypatch.setattr(server_module, "FIRST_WAIT_S", 0.0)
    with FaultServer() as one:
        yield one


@pytest.fixture
def embedded(tmp_path: Path) -> Path:
    """Write a KB whose vectors the server makes, but for those that are hidden: they are of another model."""
    made = RsclawStore(tmp_path / "embedded")
    for number in range(3):
        doc = made.doc(f"Doc {number}", ())
        text = f"A river, number {number}."
        made.chunk(doc, 0, text, (0, 1), vector=numbers_of(vector_of(text)), embedder_id="embed-small")
    for number in range(9):
        made.doc(f"Secret {number}", ["A river that is hidden."], embedder="secret-model", **HIDDEN)
    return made.write()


def test_an_embedder_makes_the_vector_of_the_query(embedded: Path, server: FaultServer, config: Path) -> None:
    text = "A river, number 1."
    with untouched(embedded):
        outcome = run("search", embedded, text, "--json", "--embedder", "mine", "--config", config)
    assert (outcome.status, outcome.document["mode"], outcome.document["notes"]) == (0, "hybrid", [])
    assert outcome.document["hits"][0]["item_name"] == "Doc 1"
    assert server.texts == [text]


@pytest.mark.thorough
def test_an_embedder_that_gives_no_vector_leaves_the_hits_by_words(
    embedded: Path, server: FaultServer, config: Path
) -> None:
    options = ("--json", "--embedder", "mine", "--config", config)
    before = run("search", embedded, "river", "--json").document["hits"]
    for behaviour, why in (
        (failing(500), "did not embed the query"),
        (failing(400, "too long"), "too long"),
        (wrong_length, "has 7 dimensions"),
    ):
        server.behave = behaviour
        found = run("search", embedded, "river", *options).document
        assert (found["mode"], found["hits"]) == ("bm25", before)
        assert why in found["notes"][0]
        assert "secret" not in str(found)
        said(run("search", embedded, "river", *options, "--mode", "vector"), "WrongUsage", 2)


def test_nothing_is_sent_where_it_is_of_no_use(
    embedded: Path, store: RsclawStore, server: FaultServer, tmp_path: Path, config: Path
) -> None:
    """Another model, a KB whose only vectors are hidden, words alone, or no word at all."""
    other = configured(tmp_path / "other.yaml", server, model="embed-large")
    told = run("search", embedded, "river", "--json", "--embedder", "mine", "--config", other).document
    assert "the vectors are of embed-small" in told["notes"][0]
    options = ("--json", "--embedder", "mine", "--config", config)
    assert run("search", embedded, "river", *options, "--mode", "bm25").document["mode"] == "bm25"
    said(run("search", embedded, "…", *options), "QueryWithoutWord", 2)
    bare = RsclawStore(tmp_path / "bare")
    bare.doc("Bare", ["A river."], dimensions=0)
    bare.doc("Secret", ["A river that is hidden."], embedder="embed-small", **HIDDEN)
    assert "no chunk has a vector" in run("search", bare.write(), "river", *options).document["notes"][0]
    assert server.requests == []
    assert (
        "EmbedderUnknown"
        in run("search", store.write(), "river", "--json", "--embedder", "x", "--config", other).stdout
    )


# --- size ----------------------------------------------------------------------------------------------------------

_SEARCH = """
import sys
from regraft.cli import cli
try:
    cli(sys.argv[1:])
except SystemExit as end:
    assert end.code == 0, end.code
"""
#: Keeps every chunk after a search.
_KEEP = (
    _SEARCH
    + """
from pathlib import Path
from regraft.formats.redb import read_redb
with read_redb(Path(sys.argv[2]) / "kb.redb") as file:
    kept = list(file.rows("kb_chunks"))
"""
)
_PEAK = """
# What getrusage tells of a process begins with the memory of the one that started it.
print(*[line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")], file=sys.stderr)
"""


def peak(program: str, *words: object) -> int:
    """Return the most memory (KiB) of a program in a process of its own."""
    command = [sys.executable, "-P", "-c", program + _PEAK, *map(str, words)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stderr.split()[-1])


def large(root: Path, chunks: int) -> Path:
    """Write a KB of so many chunks of 600 characters, in documents of fifty."""
    store, random = RsclawStore(root), Random(chunks)
    words = ["".join(random.choices("abcdefghijklmnop", k=random.randint(2, 9))) for _ in range(5000)]
    for number in range(chunks // 50):
        texts = [" ".join(random.choices(words, k=100)) + f" chunk{number}x{one}" for one in range(50)]
        store.doc(f"Doc {number}", texts, dimensions=0)
    for chunk in store.tables["kb_chunks"].values():
        chunk["vector"] = [number / 1000 for number in array("h", random.randbytes(64))]
    return store.write()


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    query = tmp_path / "query.json"
    query.write_text(json.dumps([1.0] * 32), "utf-8")
    peaks = []
    for count in (1_000, 20_000):
        root = large(tmp_path / str(count), count)
        line = ("search", root, f"chunk{count // 100}x7", "--vector", query, "-q")
        peaks.append(peak(_SEARCH, *line))
    # The texts alone have 12 MB, and the rows 60 MB.
    assert peaks[1] - peaks[0] < 8_000
    assert peak(_KEEP, *line) - peaks[0] > 10_000, "the measure notices nothing"
