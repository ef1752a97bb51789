"""Plan ``regraft install``: which bases of another store are copied into a profile, and under which ids.

A copy is the folder of a base, and rows of the profile's database. Rules: ``docs/rules.md``, "Install".
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import apsw
import msgspec
from msgspec import UNSET

from checks.audit.collector import Level
from checks.audit.findings import Finding
from checks.cherry_v2 import findings as v2
from migrators.pipeline import preflight
from regraft.disk import file_paths, links, sqlite, untrusted_sqlite
from regraft.errors import SourceUnreadable, WrongUsage
from regraft.formats.cherry_v2.catalog_generation import (
    ASSISTANT_LINKS,
    MODELS,
    PROVIDERS,
    OrderKeys,
    make_model_row,
    make_provider_row,
    read_tables,
)
from regraft.formats.cherry_v2.catalog_reader import Row, relative_path
from regraft.formats.cherry_v2.index.schema import stated_dimensions
from regraft.formats.cherry_v2.layout import DATA_FOLDER
from regraft.formats.cherry_v2.models import ModelOverrides
from regraft.identity import replace
from regraft.language import format_count, join_parts, tr
from regraft.ledger.values import WORK
from regraft.stores.locate import INDEX_FILE, KNOWLEDGE_FOLDER, RAW_FOLDER
from regraft.text import decode_halves, join_command, one_line, path_argument, path_text
from repair.changes.files import find_damage
from repair.changes.plan import Action, FileChange, Plan, RowsChange, Unresolved
from repair.changes.store import Store
from repair.cherry_v2.catalog_changes import demand_known_version, demand_profile
from repair.cherry_v2.install import profile_rows
from repair.cherry_v2.install.base_copy import (
    BaseVectors,
    CopyIds,
    FilledBase,
    FolderCopy,
    find_base_vectors,
    is_same_base_folder,
    list_files,
)
from repair.cherry_v2.install.profile_rows import (
    ModelMissing,
    NewBase,
    NewRows,
    RowsRehearsal,
    demand_insertable,
    read_models,
)
from repair.cherry_v2.source import BaseSource
from repair.embedding.report import ScopeOutcome
from repair.embedding.reuse import Reuse

#: Folder of all bases in a profile.
BASES = f"{DATA_FOLDER}/{KNOWLEDGE_FOLDER}"
#: Columns that are compared to decide whether an item is the same. Times do not count.
_ITEM_COLUMNS = ("id", "group_id", "type", "data", "status", "error")
#: Those of them that an outline has as the library will have them.
_OUTLINE_COLUMNS = ("id", "type")
_SAME = tr("the same base")
#: A path as long as that of the work folder in which a run creates a base.
_WORK_PATH = f"{'r' * 23}/{'0' * 6}"


class InstallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an installation. ``now_ms`` is the time of new models, providers and links."""

    now_ms: int
    models: ModelOverrides = msgspec.field(default_factory=ModelOverrides)
    #: Providers that are created if the profile lacks them.
    providers: frozenset[str] = frozenset()
    #: Whether a base that exists with other content is installed as a new base.
    as_new: bool = False
    #: New name of the only chosen base; None: its own.
    name: str | None = None
    #: Whether items of type external are installed as files.
    external_as_files: bool = False
    #: Whether nothing is written, so that no disk space is needed.
    dry_run: bool = False
    #: Whether the source is the outline of a library that is not written yet: its indexes have no rows, and its items
    #: lack the paths of snapshots. What the profile already has cannot be compared with it.
    is_outline: bool = False
    #: Stores whose vectors fill what the copies lack; None: there are none.
    reuse: Reuse | None = None
    #: Gets the outcome of each base that is filled, in order.
    filled: list[ScopeOutcome] = msgspec.field(default_factory=list)


def plan(store: Store, source: BaseSource, options: InstallOptions) -> Plan:
    """Plan which chosen bases of the source are installed in the profile ``store``, and under which ids.

    Raises:
        NotChanged: the store is not a profile.
        PackDamaged: a file of the pack differs from its manifest.
        ProfileUnknown: the profile is of a generation that this release does not know.
        NotEnoughSpace: the disk has no room for the bases.
        SourceUnreadable: one of the databases cannot be read.
        WrongUsage: the profile is the source itself, or a name is given for several bases.
    """
    if options.name is not None and len(source.chosen) != 1:
        raise WrongUsage(
            problem=tr(
                "--name applies to a single base, but {bases} are selected",
                bases=format_count(len(source.chosen), "base"),
            ),
            hint=tr("select one with --base"),
        )
    database = demand_profile(
        store, command="install", advice=tr("name the application's profile folder with --profile")
    )
    if links.real_path(store.root) == links.real_path(source.store.root):
        raise WrongUsage(
            problem=tr("the source and the profile are the same folder"), hint=tr("name another profile with --profile")
        )
    path = store.root / database
    if not options.dry_run:
        _demand_early_room(store, path, source, options)
    source.demand_whole()
    demand_known_version(store)
    try:
        with sqlite.open_readonly(path) as db, sqlite.open_readonly(source.catalog_path) as rows:
            damage = find_damage(db)
            if damage is not None:
                raise SourceUnreadable(path=path, reason=damage)
            return _Planner(store, path, db, source, rows, options).plan()
    except (apsw.Error, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=path, reason=error) from error


def _demand_early_room(store: Store, path: Path, source: BaseSource, options: InstallOptions) -> None:
    """Check the disk space for bases that are certainly new, before checksums are verified.

    ``path`` is the profile's database.

    Raises:
        NotEnoughSpace
    """
    needed = 0
    # Read errors are reported later, when everything is read.
    with suppress(apsw.Error, UnicodeDecodeError), sqlite.open_readonly(path) as db:
        models = read_models(db, source, options.models, options.providers)
        for base in source.chosen:
            there = db.execute("SELECT 1 FROM knowledge_base WHERE id = ?", (base,)).get is not None
            if there or source.problem(base, []) is not None:
                continue
            with suppress(ModelMissing):
                models.embedding(base, source.bases[base].get("embedding_model_id"))
                place = store.root / (store.bases or BASES) / base
                new = () if os.path.lexists(place) else source.files(base).files
                needed += sum(file_paths.lstat(one).st_size for one in new)
    preflight.check_space(store.root, needed)


class _Planner:
    """Plans one installation. ``db`` is the profile's database at ``path``, ``rows`` the catalog of the source."""

    def __init__(
        self,
        store: Store,
        path: Path,
        db: apsw.Connection,
        source: BaseSource,
        rows: apsw.Connection,
        options: InstallOptions,
    ) -> None:
        self._store = store
        self._path = path
        self._db = db
        self._library = source
        self._source = rows
        self._options = options
        self._tables = read_tables(path, db)
        demand_insertable(self._tables, rows)
        self._models = read_models(db, source, options.models, options.providers)
        # Copies are verified byte for byte, so their texts need no second audit.
        self._made = Plan(level=Level.SHAPE)

    def plan(self) -> Plan:
        """Plan the copies of folders, and the rows that are inserted in the profile."""
        findings = self._library.findings()
        chosen_bases = [one for one in map(self._choose_ids, self._installable(findings)) if one is not None]
        with closing(RowsRehearsal(self._db, self._source, self._tables)) as rehearsal:
            new = [made for one in chosen_bases if (made := self._with_models(one, rehearsal)) is not None]
            vectors = self._find_vectors(new)
            for one in new:
                self._add_folder(one, vectors.get(one.id))
                self._set_allowed_errors(one, findings)
            self._add_rows(tuple(one for one in new if not self._has_row(one.id)), rehearsal)
        if not self._options.is_outline:
            installed = {one.origin: one.id for one in new}
            lost = (one for one in self._library.losses(is_recorded=True) if one.base in installed)
            self._made.left += [replace(one, base=installed[str(one.base)]) for one in lost]
        unused = self._models.unused() if chosen_bases else ()
        self._made.left += [
            Unresolved(finding=v2.BASE_MODEL, reason=tr("no installed base uses {word}", word=word)) for word in unused
        ]
        return self._made

    def _installable(self, findings: list[Finding]) -> list[str]:
        """Return the ids of the chosen bases without a finding that prevents copying; report the others."""
        wanted = []
        for base in self._library.chosen:
            finding = self._library.problem(base, findings)
            if finding is None:
                # The profile does not have the base's name yet.
                self._store.names[base] = self._library.name_of(base)
                wanted.append(base)
            else:
                self._leave(base, finding.name, tr("the check of the source found: {what}", what=finding.message))
        return wanted

    # --- existing bases -----------------------------------------------------------------------------------------------

    def _has_row(self, base: str) -> bool:
        """Whether the profile has a row for a base."""
        return self._db.execute("SELECT 1 FROM knowledge_base WHERE id = ?", (base,)).get is not None

    def _choose_ids(self, base: str) -> NewBase | None:
        """Choose the ids for a base of the source in the profile; None if it is not installed.

        A base that the profile has already with the same content is not reported.
        """
        own = NewBase(base, base, external_as_files=self._options.external_as_files)
        there = self._find_existing(own)
        if there is None:
            return own
        if there is _SAME and not self._options.as_new:
            if self._options.is_outline:
                message = tr("the profile already has base {base}; it stays as it is", base=base)
                self._leave(base, v2.BASE_EXISTS, message)
            return None
        if not self._options.as_new:
            message = tr(
                ("the profile already has {there} with different content; use --as-new to install it as a new base"),
                there=there,
            )
            self._leave(base, v2.BASE_EXISTS, message)
            return None
        return self._as_copy(base, is_same_there=there is _SAME)

    def _as_copy(self, base: str, *, is_same_there: bool) -> NewBase | None:
        """Choose new ids, derived from the old ones, for a base of the source; None if that copy exists already.

        If ``is_same_there``, the profile also has the base itself, with the same content; that is reported.
        """
        query = "SELECT id, created_at FROM knowledge_item WHERE base_id = ?"
        created = {item: time if isinstance(time, int) else None for item, time in self._source.execute(query, (base,))}
        ids = CopyIds(base, created)
        copy = NewBase(ids.base, base, new_ids=ids, external_as_files=self._options.external_as_files)
        there = self._find_existing(copy)
        if there is None:
            self._store.names[ids.base] = self._library.name_of(base)
            if is_same_there and self._options.name is None:
                message = tr(
                    "the profile already has the same base {base}; this is a copy of it, with the same texts", base=base
                )
                self._made.left.append(
                    Unresolved(finding=v2.BASE_EXISTS, reason=message, base=ids.base, severity="note")
                )
            return copy
        if there is not _SAME:
            self._leave(
                base, v2.BASE_EXISTS, tr("its copy, base {base}, already exists with different content", base=ids.base)
            )
        return None

    def _find_existing(self, base: NewBase) -> str | None:
        """Describe what the profile already has of a base: :data:`_SAME` for all of it, or None for nothing."""
        place, has_files = self._folder_path(base.id), bool(self._library.files(base.origin).files)
        if file_paths.is_link(place) or (file_paths.exists(place) and not self._is_same_folder(base, place)):
            return tr("a folder of base {id}", id=base.id)
        if self._has_row(base.id):
            if self._comparable(self._read_items(self._db, base.id)) != self._comparable(self._own_items(base)):
                return tr("base {id}", id=base.id)
            return _SAME if file_paths.exists(place) or not has_files else None
        for row in self._own_items(base):
            if self._db.execute("SELECT 1 FROM knowledge_item WHERE id = ?", (row["id"],)).get is not None:
                return tr("item {id}", id=row["id"])
        return None

    def _is_same_folder(self, base: NewBase, folder: Path) -> bool:
        """Whether a folder in the profile is that of the base to install."""
        if base.new_ids is not None:
            # The rows of a copy have other ids. Its row in the profile identifies it.
            return self._has_row(base.id) and file_paths.is_file(folder / INDEX_FILE)
        if self._options.is_outline:
            return True
        own = self._library.folder(base.origin)
        return file_paths.exists(own) and is_same_base_folder(own, folder)

    def _comparable(self, rows: list[Row]) -> list[Row]:
        """Return the columns of item rows by which the source and the profile are compared."""
        names = _OUTLINE_COLUMNS if self._options.is_outline else _ITEM_COLUMNS
        return [{name: row[name] for name in names} for row in rows]

    def _own_items(self, base: NewBase) -> list[Row]:
        """Read the items of a base from the source as they will be in the profile, sorted by id."""
        rows = self._read_items(self._source, base.origin)
        mapped = ({name: row[name] for name in _ITEM_COLUMNS} for row in base.items(rows))
        return sorted(mapped, key=lambda row: str(row["id"]))

    def _read_items(self, db: apsw.Connection, base: str) -> list[Row]:
        """Read the compared columns of the items of a base from an open catalog, sorted by id."""
        where = "knowledge_item WHERE base_id = ? ORDER BY id"
        rows = untrusted_sqlite.read_lenient_rows(db, _ITEM_COLUMNS, where, (base,), decode_halves)
        return [dict(zip(_ITEM_COLUMNS, row, strict=True)) for row in rows]

    def _folder_path(self, base: str) -> Path:
        """Return the path of the folder that a base has in the profile."""
        return self._store.root / self._bases / base

    @property
    def _bases(self) -> str:
        """Path of the folder of all bases, relative to the profile."""
        return self._store.bases or BASES

    # --- one base -----------------------------------------------------------------------------------------------------

    def _with_models(self, chosen: NewBase, rehearsal: RowsRehearsal) -> NewBase | None:
        """Add the models that a base gets in the profile; None, with a report, if the profile refuses the base.

        ``rehearsal`` tests rows on copies of the profile's tables.
        """
        base = chosen.origin
        row = self._library.bases[base]
        try:
            model = self._models.embedding(base, row.get("embedding_model_id"))
        except ModelMissing as missing:
            self._leave(base, v2.BASE_MODEL, str(missing), missing.model)
            return None
        rerank = self._models.rerank(row.get("rerank_model_id"))
        new = replace(chosen, model=model, rerank=rerank, name=self._options.name)
        if self._is_refused(new, rehearsal):
            return None
        if rerank is None and row.get("rerank_model_id") is not None:
            # Of the base in the profile, which has another id if it is a copy.
            self._leave(
                new.id,
                v2.BASE_MODEL,
                tr(
                    (
                        "its rerank model {rerank_model_id} does not exist in the profile, so it was removed from "
                        "the base"
                    ),
                    rerank_model_id=row["rerank_model_id"],
                ),
            )
        return new

    def _is_refused(self, base: NewBase, rehearsal: RowsRehearsal) -> bool:
        """Whether the profile or its file system refuses a base; the reason is reported."""
        refused = rehearsal.refused_items(base)
        if refused:
            self._leave(base.origin, v2.ITEM_FOREIGN, profile_rows.describe_refused_items(refused))
            return True
        if base.external_as_files and not self._has_external_files(base.origin):
            return True
        path = self._too_long_path(base)
        if path is not None:
            message = tr("the path of its file {path} would be too long in the profile", path=path)
            self._leave(base.origin, v2.RAW_MISSING, message)
            return True
        problem = rehearsal.problem(base)
        if problem is not None:
            message = tr("a constraint of the profile's database refuses it: {problem}", problem=problem)
            self._leave(base.origin, v2.BASE_STATUS, message)
            return True
        return False

    def _too_long_path(self, base: NewBase) -> str | None:
        """Return the first file of a base whose path in the profile would be too long for the file system, or None."""
        folder, root = self._library.folder(base.origin), self._store.root
        for file in self._library.files(base.origin).files:
            # The path in the work folder is longer than the final one.
            name = file.relative_to(folder)
            if not file_paths.fits_system(self._store.own_folder / WORK / _WORK_PATH / name, root):
                return one_line(name.as_posix())
        return None

    def _has_external_files(self, base: str) -> bool:
        """Whether every external item of a base in the source has its file; items without one are reported."""
        rows = self._read_items(self._source, base)
        folder = self._library.folder(base) / RAW_FOLDER
        there = {
            path.relative_to(folder).as_posix() for path in self._library.files(base).files if folder in path.parents
        }
        lost = [row for row in rows if row.get("type") == profile_rows.EXTERNAL and relative_path(row) not in there]
        staged = profile_rows.unfinished_external_items(rows)
        lost = [row for row in lost if row not in staged]
        if lost:
            message = tr(
                "{items} of type external without a file ({names}) cannot be installed",
                items=format_count(len(lost), "item"),
                names=profile_rows.name_some_items(lost),
            )
            self._leave(base, v2.RAW_MISSING, message)
        elif staged:
            message = tr(
                "{items} left out: unfinished or being deleted ({names})",
                items=format_count(len(staged), "item"),
                names=profile_rows.name_some_items(staged),
            )
            self._leave(base, v2.ITEM_FOREIGN, message)
        return not lost

    def _leave(self, base: str, finding: str, reason: str, subject: str | None = None) -> None:
        """Report that a base of the source is not installed, or only in part: the closest finding, and the reason."""
        self._made.left.append(Unresolved(finding=finding, reason=reason, base=base, subject=subject))

    def _find_vectors(self, new: Sequence[NewBase]) -> dict[str, BaseVectors]:
        """Find vectors of other stores for the texts of new bases that lack one, by the id of the base in the profile.

        Texts that stay without a vector are reported.
        """
        self._options.filled.clear()
        if self._options.reuse is None or self._options.is_outline:
            return {}
        problems: dict[str, str] = {}
        found = find_base_vectors(self._options.reuse, self._library, list(self._bases_to_fill(new)), problems)
        for key, problem in problems.items():
            self._leave(key, v2.VECTOR_MISSING, tr("vectors of other stores are not taken: {problem}", problem=problem))
        for key, vectors in found.items():
            self._options.filled.append(vectors.outcome)
            if vectors.missing:
                words = ["regraft", "backfill", path_argument(self._store.path), "--base", key]
                left = Unresolved(
                    finding=v2.VECTOR_MISSING,
                    reason=vectors.describe_missing(),
                    base=key,
                    count=vectors.missing,
                    repair=join_command(words),
                )
                self._made.left.append(left)
        return {key: vectors for key, vectors in found.items() if vectors.outcome.planned.reused}

    def _bases_to_fill(self, new: Sequence[NewBase]) -> Iterator[FilledBase]:
        """Yield the new bases whose index is copied, described for the search of vectors."""
        for one in new:
            row, index = self._library.bases[one.origin], self._library.folder(one.origin) / INDEX_FILE
            if index in self._library.files(one.origin).files and not file_paths.exists(self._folder_path(one.id)):
                own = row.get("embedding_model_id")
                yield FilledBase(
                    origin=one.origin,
                    id=one.id,
                    label=one.name or self._library.name_of(one.origin),
                    models=tuple(dict.fromkeys(model for model in (own, one.model) if isinstance(model, str))),
                    dimensions=stated_dimensions(row),
                )

    def _add_folder(self, base: NewBase, vectors: BaseVectors | None) -> None:
        """Plan to copy the folder of a base, unless the profile has it; ``vectors`` are added to the copied index.

        Links in the folder are not copied, but reported.
        """
        found = self._library.files(base.origin)
        if found.links:
            message = tr("{links} in its folder not copied", links=format_count(len(found.links), "link"))
            self._made.left.append(
                Unresolved(
                    finding=v2.RAW_MISSING, reason=message, base=base.id, subject=found.links[0], count=len(found.links)
                )
            )
        own = list_files(found.files)
        if not own or self._folder_path(base.id).exists():
            return
        size = sum(mark[0] for _, mark in own)
        name = f"{self._bases}/{base.id}"
        message = tr("copy its folder, {files}", files=format_count(len(own), "file"))
        action = Action(
            action="copy-base",
            # An outline has not all of the files.
            message=tr("copy its folder") if self._options.is_outline else message,
            base=base.id,
            subject=name,
            count=len(own),
            bytes=0 if self._options.is_outline else size,
            origin=UNSET if self._options.is_outline else self._origin(base.origin),
        )
        actions = (action, *(() if vectors is None else vectors.actions()))
        copy = FolderCopy(self._library, base.origin, own, base.new_ids, vectors)
        self._made.changes.append(FileChange(path=name, actions=actions, make=copy.make, bytes=size, mark=copy.mark))

    def _origin(self, base: str) -> str:
        """Return the absolute path of the source's archive, or of its index of a base."""
        archive = self._library.archive
        path = self._library.folder(base) / INDEX_FILE if archive is None else self._library.store.path
        return path_text(links.real_path(path.absolute()))

    def _set_allowed_errors(self, base: NewBase, findings: list[Finding]) -> None:
        """Record that the installed base may have only errors that the source has, according to its ``findings``."""
        had = {one.name for one in findings if one.base == base.origin}
        if self._library.files(base.origin).links:
            # The targets of links were not checked in the source.
            had.add(v2.MATERIAL_PATH)
        self._made.new_bases[base.id] = frozenset(had)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _add_rows(self, bases: tuple[NewBase, ...], rehearsal: RowsRehearsal) -> None:
        """Plan the transaction that inserts rows of bases, items, models and links in the profile's database."""
        if not bases:
            return
        new_links = self._link_rows(bases)
        used = [model for base in bases for model in (base.model, base.rerank) if model is not None]
        keys = OrderKeys(self._db)
        providers = tuple(self._provider_rows(used, keys))
        models = tuple(self._model_rows(used, keys))
        rehearsal.demand(PROVIDERS, providers)
        rehearsal.demand(MODELS, models)
        rehearsal.demand(ASSISTANT_LINKS, new_links)
        mark = untrusted_sqlite.database_mark(self._library.catalog_path)
        rows = NewRows(
            tables=self._tables,
            catalog=self._library.catalog_path,
            mark=mark,
            providers=providers,
            models=models,
            bases=bases,
            links=new_links,
        )
        size = self._path.stat().st_size
        name = str(self._store.catalog)
        actions = [
            Action(
                action="back-up-database", message=tr("back up {name}", name=self._path.name), subject=name, bytes=size
            ),
            *(
                Action(
                    action="insert-provider",
                    message=tr("add provider {provider}, disabled and without API keys", provider=row["provider_id"]),
                    subject=str(row["provider_id"]),
                )
                for row in providers
            ),
            *(
                Action(action="insert-model", message=tr("add model {id}", id=row["id"]), subject=str(row["id"]))
                for row in models
            ),
            *(self._insert_action(base) for base in bases),
            *(
                Action(
                    action="link-assistant",
                    message=tr("link assistant {assistant} to it, as in v1", assistant=row["assistant_id"]),
                    base=row["knowledge_base_id"],
                    subject=row["assistant_id"],
                )
                for row in new_links
            ),
        ]
        held = sum(action.bytes for action in actions[1:])
        recorded = tuple(rows.changed)
        self._made.changes.append(
            RowsChange(path=name, actions=tuple(actions), apply=rows.apply, tables=recorded, bytes=held, backup=True)
        )

    def _link_rows(self, bases: tuple[NewBase, ...]) -> tuple[Row, ...]:
        """Make the rows that link the profile's assistants with the installed bases that they used in v1."""
        # Assistants used the base itself in v1, not a copy of it.
        ids = {base.id for base in bases if base.new_ids is None}

        def installed_base(old: str) -> str | None:
            """Return the id of the installed base that had the id ``old`` in v1, or None."""
            base = self._library.base_of(old)
            return base if base in ids else None

        found = profile_rows.find_assistant_links(self._store, self._db, installed_base)
        times = dict.fromkeys(("created_at", "updated_at"), self._options.now_ms)
        return tuple({"assistant_id": one, "knowledge_base_id": base, **times} for one, base in found)

    def _provider_rows(self, used: Sequence[str], keys: OrderKeys) -> Iterator[Row]:
        """Yield the rows of missing providers of ``used`` models, as the application creates custom providers."""
        needed = {model.provider_id for model in self._models.new.values() if model.id in used}
        for provider in sorted(needed & self._models.recreated):
            name = self._library.providers.get(provider, {}).get("name")
            yield make_provider_row(provider, str(name or provider), keys.next_provider(), self._options.now_ms)

    def _model_rows(self, used: Sequence[str], keys: OrderKeys) -> Iterator[Row]:
        """Yield the rows of missing ``used`` models, each the last one of its provider."""
        for model in self._models.new.values():
            if model.id in used:
                yield make_model_row(model, keys.next_model(model.provider_id), self._options.now_ms)

    def _insert_action(self, base: NewBase) -> Action:
        """Describe the insertion of a base and its items for the report."""
        size = "ifnull(sum(length(CAST(data AS BLOB))), 0)"
        query = f"SELECT count(*), {size} FROM knowledge_item WHERE base_id = ?"
        (count, held), *_ = self._source.execute(query, (base.origin,))
        query = "SELECT id FROM knowledge_item WHERE base_id = ? ORDER BY id"
        ids = (item for (item,) in self._source.execute(query, (base.origin,)) if item in self._library.lost_items)
        lost = [item if base.new_ids is None else base.new_ids.item(item) for item in ids]
        model = tr("without a model") if base.model is None else tr("with the model {model}", model=base.model)
        parts = [tr("add it to the profile with {items}, {model}", items=format_count(count, "item"), model=model)]
        if base.new_ids is not None:
            parts.append(tr(", as a new base of {origin}", origin=base.origin))
        if base.name is not None:
            parts.append(tr(", under the name {name}", name=one_line(base.name)))
        return Action(
            action="insert-base",
            message=join_parts(parts),
            base=base.id,
            subject=None if base.new_ids is None else base.origin,
            count=1 + count,
            bytes=held,
            lost=lost or UNSET,
            without_rows=self._library.files_without_rows(base.origin),
        )


__all__ = ["InstallOptions", "plan"]
