"""Other files of regraft's own beside a store: what a stranger could have written there is refused, or made anew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from faults import REFUSED, untouched
from planted_v2 import library
from restored import NEW, Embedder, restored_by

from regraft.disk.trees import FolderTree
from regraft.errors import LedgerUnreadable, PackUnreadable
from regraft.formats.cherry_v2 import pack
from regraft.formats.codex_mem import sidecar
from regraft.stores.systems import SidecarProblem
from repair.embedding import queue
from repair.embedding.queue import _reset_queue

# --- a base that waits for its vectors -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with a base that was built, and whose texts were not sent."""
    store = library(tmp_path_factory.mktemp("waiting"))
    with pytest.raises(KeyboardInterrupt):
        restored_by(store, Embedder(most=0))
    return store


def record_of(store: Path) -> Path:
    (record,) = (store / ".regraft" / "restoring" / NEW).glob("*/restored.json")
    return record


def values(**changed: Any) -> Callable[[Path], None]:
    def lie(record: Path) -> None:
        record.write_bytes(json.dumps({**json.loads(record.read_bytes()), **changed}).encode())

    return lie


RECORDS: dict[str, Callable[[Path], object]] = {
    "not JSON": lambda record: record.write_bytes(b"{"),
    "not UTF-8": lambda record: record.write_bytes(b'"\xff"'),
    "deep": lambda record: record.write_bytes(b"[" * 100_000),
    "nothing": lambda record: record.unlink(),
    "a folder": lambda record: (record.unlink(), record.mkdir()),
    "a link": lambda record: (record.rename(record.with_name("x")), record.symlink_to(record.with_name("x"))),
    "another base": values(base="../../victim"),
    "another source": values(source="x"),
    "another mark": values(mark=".."),
    "a file outside": values(files=["../../../../etc/passwd"]),
    "an absolute file": values(files=["/etc/passwd"]),
    "an own file": values(files=[".cherry/index.sqlite"]),
    "half a name": lambda record: record.write_bytes(
        record.read_bytes().replace(b'"files":[', b'"files":["\\ud800",').replace(b'",]', b'"]')
    ),
    "an item outside": values(
        items=[{"old": "a", "id": "b", "group": None, "status": "x", "error": None, "path": "/x"}]
    ),
    "a guess outside": values(guessed={"../x": "latin-1"}),
    "an unknown finding": values(left=[{"finding": "odd", "reason": "x"}]),
    "numbers below zero": values(units=-1),
    "numbers that are texts": values(texts="seven"),
}


@pytest.mark.parametrize("how", RECORDS)
def test_no_waiting_base_says_what_regraft_does_not_write(how: str, waiting: Path, tmp_path: Path) -> None:
    store = Path(shutil.copytree(waiting, tmp_path / "library"))
    RECORDS[how](record_of(store))
    embedder = Embedder()
    with untouched(store), pytest.raises(LedgerUnreadable) as caught:
        restored_by(store, embedder)
    assert (caught.value.exit_status, embedder.sent) == (REFUSED, [])
    assert "restored.json" in str(caught.value)


def test_what_waits_is_gone_on_with(waiting: Path, tmp_path: Path) -> None:
    store = Path(shutil.copytree(waiting, tmp_path / "library"))
    assert restored_by(store, Embedder())["undo"]


# --- the queue -------------------------------------------------------------------------------------------------------

QUEUES = {
    "a trigger": "CREATE TRIGGER t AFTER UPDATE ON job BEGIN DELETE FROM job; END",
    "a table": "CREATE TABLE t (x)",
    "a view": "DROP TABLE job; CREATE VIEW job AS SELECT 1 AS scope, 'x' AS key, 'ready' AS state, 1 AS attempts",
    "attempts of text": "UPDATE job SET attempts = 'many'",
    "attempts without end": "UPDATE job SET attempts = 9223372036854775807",
    "attempts below zero": "UPDATE job SET attempts = -1",
    "a time of text": "UPDATE job SET expires_at = 'never'",
    "a key of bytes": "UPDATE job SET key = x'ff'",
    "a reason of bytes": "UPDATE job SET reason = x'ff'",
}


@pytest.mark.parametrize("how", QUEUES)
def test_a_queue_of_a_stranger_is_made_anew(how: str, tmp_path: Path) -> None:
    path = tmp_path / "backfill.sqlite"
    with queue.open_queue(path) as one:
        one.fill("base", ["a"])
    with closing(apsw.Connection(str(path))) as db:
        for statement in [QUEUES[how]] if "BEGIN" in QUEUES[how] else QUEUES[how].split("; "):
            db.execute(statement)
    with pytest.raises(queue.QueueUnreadable), queue.open_queue(path):
        pass
    _reset_queue(path)
    assert not path.exists()


def test_a_damaged_queue_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "backfill.sqlite"
    with queue.open_queue(path) as one:
        one.fill("base", [f"{number:04}" for number in range(2000)])
    raw = path.read_bytes()
    path.write_bytes(raw[:4096] + b"\xa5" * (len(raw) - 4096))
    _reset_queue(path)
    assert not path.exists()


# --- the sidecar -----------------------------------------------------------------------------------------------------

SIDECARS = {
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON embedding BEGIN DELETE FROM embedding; END",
    "a table": "CREATE TABLE t (x)",
    "a view": "ALTER TABLE embedding RENAME TO e; CREATE VIEW embedding AS SELECT * FROM e",
    "a column": "ALTER TABLE meta ADD COLUMN more",
    "a state": "PRAGMA ignore_check_constraints = ON; UPDATE meta SET state = 'odd'",
    "a time": "UPDATE meta SET created_at = x'00'",
    "a model": "UPDATE meta SET model_id = x'00'",
    "a length": "PRAGMA ignore_check_constraints = ON; UPDATE meta SET dimensions = -1",
    "a length of text": "PRAGMA ignore_check_constraints = ON; UPDATE meta SET dimensions = 'x'",
    "a version": "UPDATE meta SET version = 'x'",
}


@pytest.mark.parametrize("how", SIDECARS)
def test_a_sidecar_of_a_stranger_is_not_read(how: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors.sqlite"
    sidecar.create_sidecar(path, "embed-small", 8, "2026-04-01T12:00:00Z")
    with sidecar.open_sidecar(path) as (_, meta):
        assert meta.dimensions == 8
    with closing(apsw.Connection(str(path))) as db:
        for statement in [SIDECARS[how]] if "BEGIN" in SIDECARS[how] else SIDECARS[how].split("; "):
            db.execute(statement)
    with pytest.raises(SidecarProblem), sidecar.open_sidecar(path):
        pass


# --- the manifest of a pack ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "listed",
    [
        [{"path": "a", "bytes": -1, "sha256": "0" * 64}],
        [{"path": "a", "bytes": 1 << 70, "sha256": "0" * 64}],
        [{"path": "a", "bytes": 1.5, "sha256": "0" * 64}],
        [{"path": "a", "bytes": 1, "sha256": "0" * 63}],
        [{"path": "a", "bytes": 1, "sha256": "x" * 64}],
        [{"path": None, "bytes": 1, "sha256": "0" * 64}],
        [{"path": "a", "bytes": 1, "sha256": "0" * 64}] * 2,
    ],
)
def test_a_manifest_lists_files_with_sizes_and_checksums(listed: list[dict[str, Any]], tmp_path: Path) -> None:
    manifest = {"pack": 1, "created_at": "", "files": listed}
    (tmp_path / pack.MANIFEST).write_text(json.dumps(manifest), "utf-8")
    with pytest.raises(PackUnreadable):
        pack.read_manifest(FolderTree(tmp_path))
