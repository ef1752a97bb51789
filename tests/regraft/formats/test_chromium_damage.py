"""Damaged Chromium storage: whatever the bytes, a result or a word about the damage, and never a made-up value.

``REGRAFT_DAMAGE_SEEDS`` sets how many damaged folders are tried (default 300).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium_files import (
    BLOCKS,
    DATABASE,
    FILES,
    IDB,
    NOTES,
    OPEN_SCOPE,
    blob_entry,
    blob_key,
    idb_order,
    in_blob,
    local_key,
    local_text,
    names,
    packed,
    row,
    row_key,
    scope_key,
    serialized,
    undo_key,
    undo_put,
    write_blob,
)
from leveldb_files import BYTEWISE, Entry, Folder, TableSpec, added, batch, log, removed, varint

from regraft.disk.trees import FolderTree
from regraft.formats.chromium import StorageDamaged, StorageResult, StoredText, StoreRows, read_key, read_stores

KEY = "persist:cherry-studio"
ORIGINS = ("file://", "http://127.0.0.1:8765")
LOCAL, INDEXED = "Local Storage/leveldb", "IndexedDB/file__0.indexeddb.leveldb"
STORES = {FILES: "files", BLOCKS: "message_blocks", NOTES: "knowledge_notes"}
WANTED = ("files", "knowledge_notes")
SEEDS = int(os.environ.get("REGRAFT_DAMAGE_SEEDS", "300"))
CHUNKS = 6
IN_A_BLOB = "a text in a blob"


class Writer:
    """Generations of entries, each spread over tables and logs as a database has them after a while."""

    def __init__(self) -> None:
        self.sequence = 0

    def entries(self, values: Iterable[tuple[bytes, bytes | None]]) -> list[Entry]:
        return [(key, self._next(), value) for key, value in values]

    def batches(self, values: Iterable[tuple[bytes, bytes | None]]) -> list[bytes]:
        return [batch(self._next(), [value]) for value in values]

    def _next(self) -> int:
        self.sequence += 1
        return self.sequence

    def folder(
        self,
        path: Path,
        comparator: str,
        order: Callable[[bytes], Any],
        generations: list[list[tuple[bytes, bytes | None]]],
    ) -> Folder:
        first, second, third, fourth, fifth, last = generations
        tables = [
            TableSpec(5, self.entries(first), level=2, kind=1, block_bytes=700),
            TableSpec(7, self.entries(second), level=1, block_bytes=700, shorten=comparator == BYTEWISE),
            TableSpec(8, self.entries(third), level=0, kind=1, block_bytes=700),
            TableSpec(9, self.entries(fourth), level=0, suffix="sst", block_bytes=700),
        ]
        dead = TableSpec(3, [(b"_x", 1, b"v")], level=0)
        logs = {11: self.batches(fifth), 12: self.batches(last)}
        return Folder(path, comparator, order, tables, logs, earlier_edits=[added(dead), removed(0, 3)])


def local_generation(number: int) -> list[tuple[bytes, bytes | None]]:
    found: list[tuple[bytes, bytes | None]] = []
    for place, origin in enumerate(ORIGINS):
        for other in range(4):
            found.append((local_key(origin, f"other{other}"), local_text("o" * 300 + str(number))))
        wide = (number + place) % 2 == 0
        text = f"value {number} of {origin} " + ("中" if wide else "z") * 500
        found.append((local_key(origin, KEY), None if number == 3 and place else local_text(text, wide)))
    return found


def row_generation(number: int) -> list[tuple[bytes, bytes | None]]:
    found: list[tuple[bytes, bytes | None]] = [] if number else list(names(STORES).items())
    for key in range(8):
        value = row({"id": f"f{key}", "generation": number, "name": "n" * 40})
        found.append((row_key(FILES, f"f{key}"), None if key == number else value))
    note = {"id": "n", "generation": number, "content": "a long note " * 300}
    found.append((row_key(NOTES, "n"), varint(number) + packed(serialized(note))))
    found.append((row_key(BLOCKS, f"m{number}"), row("m" * 900)))
    if number == 2:
        value = serialized(IN_A_BLOB * 50)
        found.append((row_key(NOTES, "z"), varint(1) + in_blob(len(value))))
        found.append((blob_key(NOTES, "z"), blob_entry(3, len(value))))
    if number == 4:
        found.append((scope_key(6), OPEN_SCOPE))
        found.append((undo_key(6, 5), undo_put(row_key(FILES, "f6"), row({"id": "f6", "generation": "before"}))))
    return found


def build(root: Path) -> None:
    Writer().folder(root / LOCAL, BYTEWISE, bytes, [local_generation(number) for number in range(6)]).write()
    folder = Writer().folder(root / INDEXED, IDB, idb_order, [row_generation(number) for number in range(6)]).write()
    (folder / "000003.ldb").write_bytes(b"not in use")
    write_blob(folder, 3, serialized(IN_A_BLOB * 50))


class Outcome:
    """What reading a profile came to: results, or the damage in place of them."""

    def __init__(self, root: Path) -> None:
        tree, work = FolderTree(root), root / "work"
        self.texts: StorageResult[list[StoredText]] | StorageDamaged
        self.stores: StorageResult[dict[str, StoreRows] | None] | StorageDamaged
        try:
            self.texts = read_key(tree, LOCAL, KEY, work)
        except StorageDamaged as error:
            self.texts = error
        try:
            self.stores = read_stores(tree, INDEXED, DATABASE, WANTED, work)
        except StorageDamaged as error:
            self.stores = error

    def found_texts(self) -> list[tuple[str, str]]:
        return [] if isinstance(self.texts, StorageDamaged) else [(it.origin, it.text) for it in self.texts.value]

    def found_rows(self) -> Iterator[Any]:
        if not isinstance(self.stores, StorageDamaged):
            for store in (self.stores.value or {}).values():
                yield from store.rows

    def is_whole(self) -> bool:
        """Tell whether nothing was said to be damaged."""
        return not isinstance(self.texts, StorageDamaged) and not isinstance(self.stores, StorageDamaged)


def written_texts() -> set[tuple[str, str]]:
    return {
        (origin, value[1:].decode("utf-16-le" if value[0] == 0 else "latin-1"))
        for number in range(6)
        for origin in ORIGINS
        for key, value in local_generation(number)
        if key == local_key(origin, KEY) and value is not None
    }


def is_written_row(found: Any) -> bool:
    if not isinstance(found, dict):
        return False
    number = found.get("generation")
    if found.get("id") == "n":
        return number in range(6) and found["content"] == "a long note " * 300
    if number == "before":
        return found == {"id": "f6", "generation": "before"}
    return number in range(6) and found == {"id": found["id"], "generation": number, "name": "n" * 40}


# --- ways to damage a file -----------------------------------------------------------------------------------------


def flip(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def zero(data: bytearray, chance: random.Random) -> None:
    start, end = part(data, chance)
    data[start:end] = bytes(end - start)


def swap(data: bytearray, chance: random.Random) -> None:
    start, end = part(data, chance)
    other = chance.randrange(len(data))
    data[start:end], data[other : other + end - start] = data[other : other + end - start], data[start:end]


def double(data: bytearray, chance: random.Random) -> None:
    start, end = part(data, chance)
    at = chance.randrange(len(data))
    data[at:at] = data[start:end]


def scramble(data: bytearray, chance: random.Random) -> None:
    start, end = part(data, chance)
    data[start:end] = chance.randbytes(min(end - start, 64))


def part(data: bytearray, chance: random.Random) -> tuple[int, int]:
    start = chance.randrange(len(data))
    return start, min(len(data), start + chance.choice([1, 8, 100, 5000]))


WAYS = [flip, flip, cut, zero, swap, double, scramble]


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("profile")
    build(root)
    return root


@pytest.fixture(scope="module")
def whole(profile: Path) -> Outcome:
    return Outcome(profile)


def test_the_undamaged_profile_is_read_whole(whole):
    assert whole.is_whole()
    assert [text[:7] for _, text in whole.found_texts()] == ["value 5"] * 2
    assert isinstance(whole.stores, StorageResult)
    stores = whole.stores.value
    assert stores is not None
    assert [(row["id"], row["generation"]) for row in stores["files"].rows] == [
        *((f"f{number}", 5) for number in (0, 1, 2, 3, 4)),
        ("f6", "before"),
        ("f7", 5),
    ]
    assert stores["knowledge_notes"].rows[0]["generation"] == 5
    assert stores["knowledge_notes"].rows[1] == IN_A_BLOB * 50
    assert whole.stores.passed_over == 0


@pytest.mark.parametrize("chunk", [0, *(pytest.param(chunk, marks=pytest.mark.slow) for chunk in range(1, CHUNKS))])
def test_damage_gives_a_result_or_a_word_about_it(profile, whole, chunk):
    paths = sorted(path for path in profile.rglob("*") if path.is_file() and path.stat().st_size)
    texts = written_texts()
    for seed in range(chunk, SEEDS, CHUNKS):
        chance = random.Random(seed)
        chosen = chance.sample(paths, chance.choice([1, 1, 2]))
        kept = {path: path.read_bytes() for path in chosen}
        for path in chosen:
            data = bytearray(kept[path])
            for _ in range(chance.choice([1, 1, 3])):
                if data:
                    chance.choice(WAYS)(data, chance)
            path.write_bytes(data)
        outcome = Outcome(profile)
        for path, data in kept.items():
            path.write_bytes(data)
        check(outcome, whole, texts, chosen, seed)
    assert Outcome(profile).found_texts() == whole.found_texts()


def check(outcome: Outcome, whole: Outcome, texts: set[tuple[str, str]], chosen: list[Path], seed: int) -> None:
    """Check that nothing was made up, and nothing old taken for new where only tables are damaged."""
    assert set(outcome.found_texts()) <= texts, seed
    if not any(".blob" in str(path) for path in chosen):
        # A blob has no checksum: a value from it may be anything.
        assert all(row == IN_A_BLOB * 50 or is_written_row(row) for row in outcome.found_rows()), seed
    if all(path.suffix in (".ldb", ".sst") for path in chosen):
        if isinstance(outcome.texts, StorageResult):
            # The values are in the logs: a damaged table counts, and takes nothing away.
            assert isinstance(whole.texts, StorageResult)
            assert outcome.texts.value == whole.texts.value, seed
            assert outcome.texts.passed_over <= len(chosen), seed
        if isinstance(outcome.stores, StorageResult):
            assert isinstance(whole.stores, StorageResult)
            assert outcome.stores.value is not None
            assert whole.stores.value is not None
            for name, store in outcome.stores.value.items():
                assert store.problem is not None or store == whole.stores.value[name], seed


def test_many_damaged_folders_are_read_and_many_are_refused(profile):
    """The damage above is neither harmless nor always fatal."""
    path = profile / LOCAL / "000011.log"
    kept = path.read_bytes()
    path.write_bytes(kept[:50] + bytes([kept[50] ^ 1]) + kept[51:])
    outcome = Outcome(profile)
    path.write_bytes(kept)
    assert isinstance(outcome.texts, StorageResult)
    assert outcome.texts.passed_over == 1
    path = profile / LOCAL / "000005.ldb"
    kept = path.read_bytes()
    path.write_bytes(kept[:-1])
    outcome = Outcome(profile)
    logs = {place: place.read_bytes() for place in path.parent.glob("*.log")}
    for place in logs:
        place.write_bytes(b"")
    without_logs = Outcome(profile)
    for place, data in (*logs.items(), (path, kept)):
        place.write_bytes(data)
    assert isinstance(outcome.texts, StorageResult)
    assert outcome.texts.passed_over == 1
    assert isinstance(outcome.stores, StorageResult)
    assert isinstance(without_logs.texts, StorageDamaged)


def test_a_log_of_nothing_but_beginnings_is_bounded(profile):
    """Every part says that it goes on; what is held is never more than the log itself."""
    path = profile / LOCAL / "000012.log"
    kept = path.read_bytes()
    path.write_bytes(log([b"x" * 3_000_000])[: 32768 * 80])
    outcome = Outcome(profile)
    path.write_bytes(kept)
    assert isinstance(outcome.texts, StorageResult)
    assert [text[:7] for _, text in outcome.found_texts()] == ["value 4"] * 2
