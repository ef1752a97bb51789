"""Planning an installation: which bases of a library come into a profile, and as what. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from checks import v2_findings as v2
from checks.findings import FINDINGS, Finding
from migrators.stages.models import ModelWord
from regraft import sqlite
from regraft.errors import NotChanged, ProfileHolds, SourceUnreadable
from regraft.formats.catalog_generation import ASSISTANT_LINKS, MODELS, OrderKeys, model_values, read_tables
from regraft.formats.catalog_reader import Row
from regraft.formats.v2_places import DATA_FOLDER
from regraft.locate import KNOWLEDGE_FOLDER, NAMES, Kind
from regraft.text import counted
from repair.copies import damage_of
from repair.install import assistants
from repair.install.copying import copied, is_same, listed
from repair.install.library import Library, open_library
from repair.install.models import ModelMissing, read_models
from repair.install.rows import NewBase, NewRows, Rehearsal, demand_insertable, recorded_tables
from repair.plan import Action, FileChange, Left, Plan, RowsChange
from repair.rescue.held import demand_known_version
from repair.store import Store

#: What tells whether an item is as the library has it; its times do not.
_ITEM = "id, group_id, type, data, status, error"


@dataclass(frozen=True)
class Wish:
    """What is to be installed: a library, of the given kind (None: as it is recognised), all of it or some bases.

    ``bases`` are v1 or v2 ids. ``now_ms`` is the time that new models and links get.
    """

    library: Path
    now_ms: int
    kind: Kind | None = None
    bases: tuple[str, ...] = ()
    word: ModelWord = field(default_factory=ModelWord)


def plan(store: Store, wish: Wish) -> Plan:
    """Return what comes into the profile; nothing is written.

    Raises:
        NotChanged: one is no profile, or the other is no library.
        BaseUnknown: the library has no such base.
        ProfileHolds: the profile has a base, an item or a folder of one of these ids, with other content.
        ProfileUnknown: the profile is of another time than this regraft.
        SourceUnreadable: one of both databases cannot be read.
    """
    if store.found.kind is not Kind.V2_PROFILE or store.catalog is None or not store.is_profile:
        advice = "give the application's profile folder with --profile"
        raise NotChanged(path=store.path, what=NAMES[store.found.kind], command="install", advice=advice)
    library, chosen = open_library(wish.library, wish.kind, wish.bases)
    demand_known_version(store)
    path = store.root / store.catalog
    try:
        with sqlite.reading(path) as db, sqlite.reading(library.rows) as source:
            damage = damage_of(db)
            if damage is not None:
                raise SourceUnreadable(path=path, reason=damage)
            return _Planner(store, path, db, library, source, wish).plan(chosen)
    except (apsw.Error, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=path, reason=error) from error


class _Planner:
    def __init__(
        self, store: Store, path: Path, db: apsw.Connection, library: Library, source: apsw.Connection, wish: Wish
    ) -> None:
        self._store = store
        self._path = path
        self._db = db
        self._library = library
        self._source = source
        self._wish = wish
        self._tables = read_tables(path, db)
        demand_insertable(self._tables, source)
        self._models = read_models(db, library, wish.word)
        self._made = Plan()
        self._rows: list[Action] = []

    def plan(self, chosen: list[str]) -> Plan:
        findings = self._library.store.findings()
        left_out = {base: found for base in chosen if (found := self._library.problem(base, findings)) is not None}
        for base, finding in left_out.items():
            self._leave(base, finding.name, f"the library's own audit finds: {finding.message}")
        wanted = [base for base in chosen if base not in left_out and not self._is_done(base)]
        # What a person calls them: the profile does not know them yet.
        self._store.names.update({base: str(self._library.bases[base].get("name")) for base in wanted})
        with closing(Rehearsal(self._db, self._source, self._tables)) as rehearsal:
            new = [made for base in wanted if (made := self._base(base, rehearsal)) is not None]
            for one in new:
                self._folder(one.id)
                self._promise(one.id, findings)
            inserted = tuple(one for one in new if not self._has_row(one.id))
            if inserted:
                self._insert(inserted, rehearsal)
        for word in self._models.unused() if wanted else ():
            self._made.left.append(Left(v2.BASE_MODEL, f"no base that is installed uses the model {word}"))
        return self._made

    # --- what is there already ----------------------------------------------------------------------------------------

    def _has_row(self, base: str) -> bool:
        return self._db.execute("SELECT 1 FROM knowledge_base WHERE id = ?", (base,)).get is not None

    def _is_done(self, base: str) -> bool:
        """Tell whether a base was installed already; refuse what is there under its ids and is something else."""
        place, own = self._place(base), self._library.folder(base)
        if place.is_symlink() or (place.exists() and not (own.exists() and is_same(own, place))):
            raise ProfileHolds(path=self._store.root, what=f"a folder of base {base}")
        if self._has_row(base):
            if self._items(self._db, base) != self._items(self._source, base):
                raise ProfileHolds(path=self._store.root, what=f"base {base}")
            return place.exists() or not any(self._library.files(base))
        for (item,) in self._source.execute("SELECT id FROM knowledge_item WHERE base_id = ?", (base,)):
            if self._db.execute("SELECT 1 FROM knowledge_item WHERE id = ?", (item,)).get is not None:
                raise ProfileHolds(path=self._store.root, what=f"item {item} of base {base}")
        return False

    def _items(self, db: apsw.Connection, base: str) -> list[Any]:
        return db.execute(f"SELECT {_ITEM} FROM knowledge_item WHERE base_id = ? ORDER BY id", (base,)).fetchall()

    def _place(self, base: str) -> Path:
        return self._store.root / self._bases / base

    @property
    def _bases(self) -> str:
        return self._store.bases or f"{DATA_FOLDER}/{KNOWLEDGE_FOLDER}"

    # --- one base -----------------------------------------------------------------------------------------------------

    def _base(self, base: str, rehearsal: Rehearsal) -> NewBase | None:
        """Return a base as it is inserted; what keeps it out is said."""
        row = self._library.bases[base]
        try:
            model = self._models.embedding(base, row.get("embedding_model_id"))
        except ModelMissing as missing:
            self._leave(base, v2.BASE_MODEL, str(missing))
            return None
        rerank = self._models.rerank(row.get("rerank_model_id"))
        new = NewBase(base, model, rerank)
        problem = rehearsal.problem(new)
        if problem is not None:
            self._leave(base, v2.BASE_STATUS, f"the profile's own rules refuse it: {problem}")
            return None
        if rerank is None and row.get("rerank_model_id") is not None:
            self._leave(base, v2.BASE_MODEL, f"its rerank model {row['rerank_model_id']} is not there: it has none now")
        return new

    def _leave(self, base: str, finding: str, why: str) -> None:
        self._made.left.append(Left(finding, why, base))

    def _folder(self, base: str) -> None:
        every = list(self._library.files(base))
        links = [path for path in every if path.is_symlink()]
        if links:
            said = f"{counted(len(links), 'link')} in its folder, not copied"
            self._made.left.append(Left(v2.RAW_MISSING, said, base, links[0].name, len(links)))
        own = listed([path for path in every if not path.is_symlink()])
        if not own or self._place(base).exists():
            return
        size = sum(mark[0] for _, mark in own)
        name = f"{self._bases}/{base}"
        action = Action("copy-base", f"copy its folder, {counted(len(own), 'file')}", base, name, len(own), size)
        make = copied(self._library.folder(base), base, own)
        self._made.changes.append(FileChange(name, (action,), make, size))

    def _promise(self, base: str, findings: list[Finding]) -> None:
        """Name what must not be found afterwards: every error that the library itself has not."""
        had = {one.name for one in findings if one.base == base}
        grave = (one.name for one in FINDINGS.values() if one.severity == "error" and not one.name.startswith("v1."))
        self._made.mends |= {(name, base) for name in grave if name not in had}

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _insert(self, bases: tuple[NewBase, ...], rehearsal: Rehearsal) -> None:
        ids = {base.id for base in bases}
        links = assistants.links(self._store, self._db, lambda old: self._new_base_of(old, ids))
        times = dict.fromkeys(("created_at", "updated_at"), self._wish.now_ms)
        new_links = tuple({"assistant_id": one, "knowledge_base_id": base, **times} for one, base in links)
        models = tuple(self._model_rows(bases))
        rehearsal.demand(MODELS, models)
        rehearsal.demand(ASSISTANT_LINKS, new_links)
        mark = sqlite.file_mark(self._library.rows)
        rows = NewRows(self._tables, self._library.rows, mark, models, bases, new_links)
        size = self._path.stat().st_size
        name = str(self._store.catalog)
        actions = [
            Action("back-up-database", f"back up {self._path.name}", None, name, 1, size),
            *(Action("insert-model", f"add the model {row['id']}", None, str(row["id"])) for row in models),
            *(self._insert_action(base) for base in bases),
            *(
                Action("link-assistant", f"let assistant {assistant} use it as it did in v1", base, assistant)
                for assistant, base in links
            ),
        ]
        held = sum(action.bytes for action in actions[1:])
        recorded = recorded_tables(self._db, rows.changed)
        self._made.changes.append(RowsChange(name, tuple(actions), rows.apply, recorded, held, backup=True))

    def _model_rows(self, bases: tuple[NewBase, ...]) -> Iterator[Row]:
        """Yield the rows of the models that come with bases, each behind the last of its provider."""
        used, keys = {model for base in bases for model in (base.model, base.rerank)}, OrderKeys(self._db)
        for model in self._models.new.values():
            if model.id in used:
                yield model_values(model, keys.next_model(model.provider_id), self._wish.now_ms)

    def _insert_action(self, base: NewBase) -> Action:
        size = "ifnull(sum(length(CAST(data AS BLOB))), 0)"
        query = f"SELECT count(*), {size} FROM knowledge_item WHERE base_id = ?"
        (count, held), *_ = self._source.execute(query, (base.id,))
        model = "without a model" if base.model is None else f"with the model {base.model}"
        said = f"list it {model} and {counted(count, 'item')}"
        return Action("insert-base", said, base.id, None, 1 + count, held)

    def _new_base_of(self, old: str, ids: set[str]) -> str | None:
        base = self._library.base_of(old)
        return base if base in ids else None
