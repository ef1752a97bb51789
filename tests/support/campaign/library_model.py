"""What must be in a library that the state machine walks over: every text of every base, and which has its vector."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from random import Random

import apsw

from campaign import corpus
from regraft import identity
from regraft.disk import sqlite
from regraft.errors import RegraftError
from regraft.formats.cherry_v2.index import IndexStore
from regraft.testing import DAMAGES

from fault_server import vector_of  # isort: skip
from faults import Source, item  # isort: skip
from lacking import write_vectors  # isort: skip
from older import make_version_1  # isort: skip

NOW_MS = 1_795_262_400_000
_FIRST = {
    "kb": {
        "item-f1": ["lamp 1 is lit", "lamp 2 is lit", "lamp 3 is out"],
        "memo": ["the keeper comes", "the bell rings"],
    },
    "other": {"page": ["the tide turns", "the tide waits"]},
}
_READ = """SELECT t.text, e.vector_blob FROM material m JOIN search_unit u USING (material_id)
  JOIN search_text t ON t.target_id = u.unit_id LEFT JOIN embedding e USING (embedding_text_hash)"""

Texts = dict[str, dict[str, list[str]]]


def write_source(folder: Path, bases: Texts) -> Path:
    """Write a v1 export of bases: texts of every item; an item called ``item-…`` is an upload, ``page…`` a page."""
    source = Source(folder)
    for base, items in bases.items():
        made = []
        for name in items:
            if name.startswith("item-"):
                made.append(source.upload(name.removeprefix("item-"), f"{name}.txt", name.encode()))
            else:
                is_page = name.startswith("page")
                made.append(
                    item(name, "url" if is_page else "note", f"https://example.org/{name}" if is_page else name)
                )
        source.base(base, made)
        write_vectors(source.vectors(base), items, vector_of)
    return source.write()


def first_library(folder: Path) -> None:
    """Make the library that every walk begins with."""
    source = write_source(folder / "v1", _FIRST)
    done = corpus.run("migrate", source, "--to", folder / "library", "--yes", "-q", "--jobs", "1", "--now", corpus.NOW)
    assert done.status == 0, done
    shutil.rmtree(folder / "v1")


def _index(store: Path, base: str) -> Path:
    return store / "KnowledgeBase" / base / ".cherry" / "index.sqlite"


def _write(path: Path, sql: str, rows: Iterable[tuple[apsw.SQLiteValue, ...]]) -> None:
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA foreign_keys = ON")
        db.executemany(sql, rows)


class Model:
    """Texts by base, each with whether its vector must be there."""

    def __init__(self) -> None:
        self.texts: dict[str, dict[str, bool]] = {}
        self._count = 0

    @classmethod
    def of_first_library(cls) -> Model:
        """Return the model of what :func:`first_library` makes."""
        model = cls()
        model.add(_FIRST)
        return model

    # --- what there is -----------------------------------------------------------------------------------------------

    def add(self, bases: Texts) -> None:
        """Take note of migrated bases."""
        for base, items in bases.items():
            self.texts[identity.base_id(base)] = {text: True for texts in items.values() for text in texts}

    def all(self) -> set[tuple[str, str]]:
        """Return every text with its base."""
        return {(base, text) for base, texts in self.texts.items() for text in texts}

    def lacking(self) -> set[tuple[str, str]]:
        """Return the texts that have no vector."""
        return {(base, text) for base, texts in self.texts.items() for text, there in texts.items() if not there}

    def refresh(self, store: Path, those: set[tuple[str, str]]) -> None:
        """Read of some texts whether they have a vector; of the others nothing may have changed."""
        for base in {base for base, _ in those} & self.texts.keys():
            found = _vectors(store, base)
            for text in [text for text in self.texts[base] if (base, text) in those and text in found]:
                self.texts[base][text] = found[text] is not None

    def differences(self, store: Path) -> list[str]:
        """Return how a library differs from the model."""
        problems = []
        there = {path.name for path in (store / "KnowledgeBase").iterdir()}
        if there != self.texts.keys():
            problems.append(f"bases {sorted(there ^ self.texts.keys())}")
        for base in sorted(there & self.texts.keys()):
            try:
                found = _vectors(store, base)
            except apsw.Error as error:
                problems.append(f"{base} cannot be read ({error})")
                continue
            if found.keys() != self.texts[base].keys():
                problems.append(f"texts of {base}: {sorted(found.keys() ^ self.texts[base].keys())[:3]}")
            for text, vector in found.items():
                wanted = vector_of(text) if self.texts[base].get(text) else None
                if vector != wanted:
                    problems.append(f"the vector of {text!r} is {'gone' if vector is None else 'another one'}")
        return problems

    # --- what happens ------------------------------------------------------------------------------------------------

    def new_source(self, random: Random, folder: Path) -> tuple[Path, Texts]:
        """Write a v1 source of a new base, or of two."""
        bases: Texts = {}
        for _ in range(random.choice([1, 1, 2])):
            self._count += 1
            name = f"b{self._count}"
            items = [
                f"{kind}{name}-{at}"
                for at, kind in enumerate(random.choices(["item-", "page-", "note-"], k=random.randrange(1, 4)))
            ]
            bases[name] = {one: [f"text {at} of {one}" for at in range(random.randrange(1, 5))] for one in items}
        folder.mkdir(parents=True)
        return write_source(folder / "v1", bases), bases

    def _base(self, random: Random) -> str:
        return random.choice(sorted(self.texts))

    def edit(self, random: Random, store: Path) -> str:
        """Add or delete a note, as the application does: its row, its file, its index."""
        base = self._base(random)
        with sqlite.open_readonly(store / "catalog.sqlite") as db:
            notes = db.execute(
                "SELECT id, data FROM knowledge_item WHERE base_id = ? AND type = 'note'", (base,)
            ).fetchall()
        try:
            if notes and random.random() < 0.4:
                return self._delete(store, base, *random.choice(notes))
            return self._add(random, store, base)
        except RegraftError as error:
            # An older index, or a damaged one: the application would not either.
            return f"no edit ({error.code})"

    def _delete(self, store: Path, base: str, note: object, data: object) -> str:
        before = _vectors(store, base)
        with IndexStore(_index(store, base), base) as index:
            index.delete_materials([str(note)])
        (store / "KnowledgeBase" / base / "raw" / json.loads(str(data))["relativePath"]).unlink(missing_ok=True)
        _write(store / "catalog.sqlite", "DELETE FROM knowledge_item WHERE id = ?", [(str(note),)])
        for text in before.keys() - _vectors(store, base).keys():
            del self.texts[base][text]
        return "a note deleted"

    def _add(self, random: Random, store: Path, base: str) -> str:
        self._count += 1
        texts = [f"note {self._count}, text {at}" for at in range(random.randrange(1, 4))]
        note, name = str(uuid.UUID(int=random.getrandbits(128), version=4)), f"note {self._count}.md"
        places, at = [], 0
        for text in texts:
            places.append((at, at + len(text)))
            at += len(text) + 1
        vectors = {identity.text_hash(text): vector_of(text) for text in texts}
        with IndexStore(_index(store, base), base) as index:
            index.rebuild_material(note, name, "\n".join(texts), places, vectors, NOW_MS)
        (store / "KnowledgeBase" / base / "raw").mkdir(exist_ok=True)
        (store / "KnowledgeBase" / base / "raw" / name).write_text("\n".join(texts), "utf-8")
        data = json.dumps({"source": name, "content": "\n".join(texts), "relativePath": name})
        _write(
            store / "catalog.sqlite",
            "INSERT INTO knowledge_item (id, base_id, group_id, type, data, status, error, created_at, updated_at)"
            " VALUES (?, ?, NULL, 'note', ?, 'completed', NULL, ?, ?)",
            [(note, base, data, NOW_MS, NOW_MS)],
        )
        self.texts[base] |= dict.fromkeys(texts, True)
        return "a note added"

    def lose_vectors(self, random: Random, store: Path) -> str:
        """Delete some vectors, as a crash of the application may leave it."""
        base = self._base(random)
        texts = random.sample(sorted(self.texts[base]), min(len(self.texts[base]), random.randrange(1, 4)))
        keys = [(identity.text_hash(text),) for text in texts]
        _write(_index(store, base), "DELETE FROM embedding WHERE embedding_text_hash = ?", keys)
        self.texts[base] |= dict.fromkeys(texts, False)
        return f"{len(texts)} vectors lost"

    def damage(self, random: Random, store: Path, name: str) -> str:
        """Do damage that takes no text and no vector away."""
        base = self._base(random)
        try:
            DAMAGES[name].plant(store, base)
        except (ValueError, OSError, apsw.Error):
            return f"{name}: nothing to do it to"
        return name

    def make_older(self, random: Random, store: Path) -> str:
        """Give an index the layout of version 1."""
        try:
            make_version_1(_index(store, self._base(random)))
        except apsw.Error:
            return "older already"
        return "an older index"


def _vectors(store: Path, base: str) -> dict[str, bytes | None]:
    with sqlite.open_readonly(_index(store, base)) as db:
        return {str(text): None if vector is None else bytes(vector) for text, vector in db.execute(_READ)}
