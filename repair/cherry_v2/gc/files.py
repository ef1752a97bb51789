"""Plan which files ``gc`` moves to the trash: raw files, folders of bases, and vector files that v1 left behind.

A file is moved only if no item or catalog row names it, and if its data exists elsewhere or the user named the finding.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path

import apsw
import msgspec

from checks.cherry_v2 import audit as checked
from checks.cherry_v2 import findings as v2
from checks.cherry_v2 import raw_files
from checks.cherry_v2.raw_files import walk_files
from regraft import identity
from regraft.disk import file_paths, links, sqlite, untrusted_sqlite
from regraft.formats import okf
from regraft.formats.cherry_preview import IndexLayout
from regraft.formats.cherry_v1.layout import VECTOR_TABLE
from regraft.formats.cherry_v2.catalog_reader import (
    PATH_FIELDS,
    Row,
    StoredCatalog,
    base_id_text,
    list_paths,
    parse_item_data,
)
from regraft.formats.cherry_v2.layout import RAW_FOLDER
from regraft.formats.vector_survey import StoreProblem, VectorSurvey
from regraft.formats.vector_table import check_file
from regraft.language import format_count, tr
from regraft.ledger.ledger import RunRecord
from regraft.report.notices import MISSING_MODEL, MISSING_STORE
from regraft.text import one_line, path_text, printable
from repair.changes.execution import undo_data_path
from repair.changes.options import GcOptions
from repair.changes.plan import FileChange, Plan, Unresolved, move_to_trash
from repair.changes.store import Store
from repair.cherry_v2.gc.rows import is_wanted
from repair.cherry_v2.item_paths import named_paths
from repair.cherry_v2.orphan_folders import find_unnamed_folders
from repair.cherry_v2.protection import Protection

#: The action that moves a vector file of v1 to the trash.
TRASH_VECTOR_FILE = "trash-vector-file"

# --- other copies of a raw file -------------------------------------------------------------------------------------


#: In bytes. Larger files are compared with files, and not with indexed texts.
_LARGEST_TEXT = 64 << 20
#: The text of an item in an index.
_TEXT = """SELECT m.material_id, CAST(c.text AS BLOB) FROM content c
  JOIN material m ON m.current_content_hash = c.content_hash WHERE c.content_hash = ?"""


class CopyFinder:
    """Finds other copies of raw files of one base: a file that an item names, or the indexed text of an item.

    Args:
        store: the store.
        base: the base's id.
        items: its items.
        raw: its folder of raw files.
    """

    def __init__(self, store: Store, base: str, items: list[Row], raw: Path) -> None:
        self._raw = raw
        self._listed = {item.get("id") for item in items if item.get("status") != "deleting"}
        self._named = named_paths(items)
        one = store.stores.get(base)
        self._index = None if one is None else store.root / one.name

    def of(self, name: str) -> str | None:
        """Describe another file or text that equals the file at a path below ``raw/``, or return None."""
        path = self._raw / name
        try:
            candidates = self._by_size.get(file_paths.lstat(path).st_size, [])
            digest = links.hash_file(path) if candidates else None
            found = next((one for one in candidates if links.hash_file(one) == digest), None)
            same_file = None if found is None else f"raw/{found.relative_to(self._raw).as_posix()}"
            return same_file or self._text_like(path)
        except (apsw.Error, OSError, UnicodeDecodeError):
            return None

    @cached_property
    def _by_size(self) -> dict[int, list[Path]]:
        """The files below ``raw/`` that items refer to, by size in bytes."""
        found: dict[int, list[Path]] = defaultdict(list)
        for name, _ in walk_files(self._raw):
            if name in self._named and not file_paths.is_link(self._raw / name):
                found[file_paths.lstat(self._raw / name).st_size].append(self._raw / name)
        return found

    def _text_like(self, path: Path) -> str | None:
        """Name the item whose indexed text equals that of a file, with or without front matter; None if unknown."""
        if self._index is None or file_paths.lstat(path).st_size > _LARGEST_TEXT:
            return None
        text = links.read_bytes(path).decode()
        bodies = {identity.text_hash(one): one.encode() for one in (text, okf.strip_block(text))}
        with sqlite.open_readonly(self._index) as db:
            for key, body in bodies.items():
                for material, stored in db.execute(_TEXT, (key,)):
                    if stored == body and material in self._listed:
                        return tr("the indexed text of item {item}", item=material)
        return None


#: Tables of an index that hold the user's data.
_HOLDING = ("material", "content", "search_unit", "search_text", "embedding")


def plan_raw(
    store: Store,
    catalog: StoredCatalog | None,
    options: GcOptions,
    damaged: set[str | None],
    protection: Protection,
) -> Plan:
    """Plan to move files below ``raw/`` that no item names to the trash; nothing if the catalog has no table of items.

    A file without a known copy is moved only if the user names the finding.

    Args:
        store: the store.
        catalog: its catalog, if it has one.
        options: the options of ``gc``.
        damaged: ids of bases of which nothing is removed.
        protection: tells which bases are protected.
    """
    made = Plan()
    if catalog is None or catalog.items is None or not is_wanted(options, v2.RAW_ORPHAN):
        return made
    items = _items_by_base(catalog)
    for row in catalog.bases:
        base = base_id_text(row)
        if store.wants(base) and base not in damaged and isinstance(row.get("id"), str):
            raw = _RawFiles(store=store, base=base, items=items.get(base, []), options=options, protection=protection)
            folder = _find_raw_folder(store, base, row)
            if folder is not None:
                made.add(raw.plan(folder))
    return made


def _items_by_base(catalog: StoredCatalog) -> dict[str, list[Row]]:
    """Group the items of a catalog by the id of their base."""
    return {str(base): rows for base, rows in (catalog.items or {}).items()}


def find_reason_to_keep(store: Store, path: Path) -> str | None:
    """Return why a file or folder must not be moved to the trash, such as being young; None if it may."""
    try:
        path.relative_to(store.root).as_posix().encode()
        if file_paths.is_link(path):
            return tr("it is a symbolic link")
        if _latest_change(path) > store.now_ms / 1000 - raw_files.YOUNG_SECONDS:
            return (
                tr("something in it is younger than an hour")
                if file_paths.is_folder(path)
                else tr("it is younger than an hour")
            )
    except UnicodeEncodeError:
        return tr("its name is not UTF-8")
    except OSError as error:
        return tr("it cannot be read: {strerror}", strerror=error.strerror)
    return None


def _latest_change(path: Path) -> float:
    """Return the latest modification time, in seconds, of a file, or of a folder and all its contents."""

    def fail(error: OSError) -> None:
        """Raise the error of an unreadable folder."""
        raise error

    latest = file_paths.lstat(path).st_mtime
    if not file_paths.is_folder(path):
        return latest
    for folder, folders, names in file_paths.walk(path, fail):
        latest = max(latest, *(file_paths.lstat(Path(folder, name)).st_mtime for name in (*folders, *names)), 0)
    return latest


# --- raw files -------------------------------------------------------------------------------------------------------


class _RawFiles(msgspec.Struct, kw_only=True):
    """Plans the removal of raw files of one base; ``items`` are the base's."""

    store: Store
    base: str
    items: list[Row]
    options: GcOptions
    protection: Protection

    def plan(self, raw: Path) -> Plan:
        """Plan to move the files below the base's folder ``raw/`` that no item names."""
        made = Plan()
        if not file_paths.is_folder(raw):
            return made
        names = sorted(raw_files.find_orphan_files(raw, self.items, self.store.now_ms))
        if not names:
            return made
        why_not = _find_unknown_names(raw, self.items) or self.protection.reason(self.base)
        if why_not is not None:
            reason = tr("{files} in raw/: {reason}", files=format_count(len(names), "file"), reason=why_not)
            return Plan(left=[Unresolved(finding=v2.RAW_ORPHAN, reason=reason, base=self.base, count=len(names))])
        find_other_name = _make_name_test(self.store, self.base, self.items)
        copies = CopyFinder(self.store, self.base, self.items, raw)
        for name in names:
            change = self._decide_file(raw / name, name, find_other_name(name), copies)
            if isinstance(change, FileChange):
                made.changes.append(change)
            else:
                made.left.append(change)
        if not made.left:
            made.resolves.add((v2.RAW_ORPHAN, self.base))
        return made

    def _decide_file(
        self, path: Path, name: str, other_name: str | None, copies: CopyFinder
    ) -> FileChange | Unresolved:
        """Return the change that moves a raw file to the trash, or why it is kept.

        Args:
            path: the file.
            name: its path below ``raw/``.
            other_name: why the file may be needed although no item names it, or None.
            copies: finds other copies of the file.
        """
        kept = other_name or find_reason_to_keep(self.store, path)
        is_named = v2.RAW_ORPHAN in self.options.only
        copy = None if is_named or kept is not None else copies.of(name)
        if kept is None and not is_named and copy is None:
            kept = tr("kept: no other copy of it is known; --only {name} removes it", name=v2.RAW_ORPHAN)
        if kept is not None:
            reason = f"raw/{printable(name)}: {kept}"
            return Unresolved(finding=v2.RAW_ORPHAN, reason=reason, base=self.base, subject=path_text(name))
        message = tr("move raw/{name}, which no item names, to the trash", name=name)
        if copy is not None:
            message = tr("{what}: it is the same as {copy}", what=message, copy=copy)
        return move_to_trash(self.store, path, "trash-file", v2.RAW_ORPHAN, message, self.base)


def _find_raw_folder(store: Store, base: str, row: Row) -> Path | None:
    """Return the folder of raw files of a base; None if the base is completed, but its index is missing."""
    known = store.stores.get(base)
    if known is not None:
        return store.root / known.raw
    if not store.found.stores.is_whole or row.get("status") == "completed" or not checked.is_folder_name(base):
        return None
    return store.root / store.bases / base / RAW_FOLDER


def _find_unknown_names(raw: Path, items: list[Row]) -> str | None:
    """Return why it cannot be known which files below ``raw/`` the items of a base name, or None."""
    if file_paths.is_link(raw) or file_paths.is_link(raw.parent):
        return tr("the folder is a link, and links are not followed")
    for item in items:
        data = parse_item_data(item)
        paths = map(data.get, PATH_FIELDS)
        if not data or any(not isinstance(path, str | None) for path in paths):
            return tr("the paths of item {get} cannot be read", get=item.get("id"))
    return None


def _make_name_test(store: Store, base: str, items: list[Row]) -> Callable[[str], str | None]:
    """Make a function that returns why the file at a path below ``raw/`` may still be needed, or None.

    The file is one that no item names, but an item or the index may mean it by a similar path.
    """
    known: set[str] = set()
    folders: tuple[str, ...] = ()
    for item in items:
        data = parse_item_data(item)
        known |= {_fold_path(path) for path in list_paths(data) if path}
        if item.get("type") == "directory" and data.get("relativePath"):
            folders += (_fold_path(data["relativePath"]).rstrip("/") + "/",)
    indexed = {_fold_path(path) for path in _read_indexed_paths(store, base, {str(item.get("id")) for item in items})}

    def why(name: str) -> str | None:
        """Return the reason why the file at this path must be kept, or None."""
        folded = _fold_path(name)
        if folded in known or folded.startswith(folders):
            return tr("an item refers to it with other letter case or Unicode normalization")
        return (
            tr("the index uses it for an item that has another path; run regraft reconcile first")
            if folded in indexed
            else None
        )

    return why


def _fold_path(path: str) -> str:
    """Return a path in the form that ignores letter case and Unicode normalization."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _read_indexed_paths(store: Store, base: str, items: set[str]) -> Iterator[str]:
    """Yield the paths that a base's index has for the materials of the items with these ids."""
    known = store.stores.get(base)
    if known is None:
        return
    with sqlite.open_readonly(store.root / known.name) as db:
        for key, path in db.execute("SELECT CAST(material_id AS BLOB), CAST(relative_path AS BLOB) FROM material"):
            if (key or b"").decode("utf-8", "replace") in items:
                yield (path or b"").decode("utf-8", "replace")


# --- folders ---------------------------------------------------------------------------------------------------------


def plan_folders(store: Store, catalog: StoredCatalog | None, options: GcOptions) -> tuple[Plan, set[str]]:
    """Plan to move the folders of bases that no catalog row names to the trash.

    Returns:
        The plan, and the names of the moved folders.
    """
    made, gone = Plan(), set[str]()
    if catalog is None or catalog.items is None:
        return made, gone
    if not is_wanted(options, v2.INDEX_ORPHAN) or not store.found.stores.is_whole:
        return made, gone
    found, items = list(find_unnamed_folders(store, catalog)), _items_by_base(catalog)
    for path in found:
        if not store.wants(path.name):
            continue
        rows = items.get(path.name)
        if rows is None:
            kept = find_reason_to_keep(store, path)
        else:
            kept = tr("{items} of the catalog still belong to it", items=format_count(len(rows), "item"))
        if kept is None and v2.INDEX_ORPHAN not in options.only and _holds_anything(store, path):
            kept = tr("kept: it can be listed again; --only {name} removes it", name=v2.INDEX_ORPHAN)
        if kept is not None:
            reason = tr("the folder {name} is kept: {kept}", name=printable(path.name), kept=kept)
            made.left.append(Unresolved(finding=v2.INDEX_ORPHAN, reason=reason, subject=path_text(path.name)))
        else:
            message = tr("move the folder {name}, which no row of the catalog names, to the trash", name=path.name)
            made.changes.append(move_to_trash(store, path, "trash-folder", v2.INDEX_ORPHAN, message))
            gone.add(path.name)
    if gone and len(gone) == len(found):
        made.resolves.add((v2.INDEX_ORPHAN, None))
    return made, gone


def _holds_anything(store: Store, path: Path) -> bool:
    """Whether the folder of a base has a text, a vector or a file; unreadable data counts as present."""
    one = store.stores.get(path.name)
    index = None if one is None else store.root / one.name
    own = set() if index is None else {index, *untrusted_sqlite.find_companions(index)}
    has_files = any(
        file not in own
        for file in file_paths.iterate_below(path)
        if file_paths.is_link(file) or not file_paths.is_folder(file)
    )
    if has_files or one is None:
        return has_files
    return one.look.layout is not IndexLayout.CURRENT or _has_rows(store.root / one.name)


def _has_rows(index: Path) -> bool:
    """Whether an index file has any rows of the user's data; True if it cannot be read."""
    try:
        with sqlite.open_readonly(index) as db:
            return any(db.execute(f"SELECT 1 FROM {table} LIMIT 1").get for table in _HOLDING)
    except (apsw.Error, OSError, UnicodeDecodeError):
        return True


# --- vector files that v1 left behind -------------------------------------------------------------------------------
#
# Such a file goes to the trash if one index of the store has all of its usable vectors (``docs/rules.md``, "Rows"). The
# text of each row must be a body whose unit exists, with a vector that is equal byte by byte.


#: Rows that are compared with an index at once.
_BATCH = 200
_ALL_ROWS = ((-(1 << 63), (1 << 63) - 1),)
#: Characters of a text that a message quotes.
_QUOTED = 40
#: Bodies and their vectors, by a JSON list of hashes.
_BODIES = """
    SELECT t.embedding_text_hash, CAST(t.text AS BLOB), e.vector_blob
      FROM json_each(?) wanted
      CROSS JOIN search_text t ON t.embedding_text_hash = wanted.value
      JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash
     WHERE EXISTS (SELECT 1 FROM search_unit u WHERE u.unit_id = t.target_id)"""


_HAS_TEXT = "SELECT 1 FROM search_text WHERE embedding_text_hash = ? AND text = ? LIMIT 1"


class Proof(msgspec.Struct):
    """How many of the usable vectors of a v1 vector file the index of ``base`` has."""

    base: str
    proven: int = 0
    #: What the first missing row lacks, for a message; None: no row is missing.
    first: str | None = None


class _VectorFile(msgspec.Struct):
    """A vector file of v1: the survey of its rows, and the ids of the bases whose indexes have all of its vectors."""

    path: Path
    survey: VectorSurvey
    provers: set[str]
    #: The index with the most of its vectors, if none has all.
    best: Proof | None

    @property
    def base(self) -> str:
        """The id that regraft derives for a base that is migrated from a file of this name."""
        return identity.base_id(self.path.name)

    @property
    def usable(self) -> int:
        """Number of rows with a usable vector."""
        return sum(self.survey.lengths.values())


def plan_leftovers(store: Store, catalog: StoredCatalog | None, options: GcOptions, indexes: dict[str, str]) -> Plan:
    """Plan to move the vector files that v1 left behind to the trash, if an index has their vectors.

    Args:
        store: the store.
        catalog: the catalog of the store, if it has one.
        options: the options of ``gc``.
        indexes: intact index files whose vectors are kept, relative to the root, by base id.
    """
    if not is_wanted(options, v2.LEFTOVER) or not store.found.stores.is_whole:
        return Plan()
    made = Plan()
    for one in _decide_files(store, catalog, _proving_indexes(store, catalog, indexes), options):
        if isinstance(one, FileChange):
            made.changes.append(one)
        else:
            made.left.append(one)
    made.resolves = {(v2.LEFTOVER, None)} if made.changes and not made.left else set()
    # It is not known to which bases the other files belong.
    made.left = [one for one in made.left if store.wants(one.base)]
    return made


def make_trash_test(
    store: Store, catalog: StoredCatalog | None, indexes: dict[str, str]
) -> Callable[[RunRecord], list[Unresolved]]:
    """Make a function that reports the v1 vector files a run moved to the trash whose vectors no index has any more.

    Since that run, an undo or the application may have removed the base that had them.

    Args:
        store: the store.
        catalog: the catalog of the store, if it has one.
        indexes: intact index files whose vectors are kept, relative to the root, by base id.
    """

    def find_needed(run: RunRecord) -> list[Unresolved]:
        """Report the vector files in the trash of this run that may be the last copy of their vectors."""
        proving = _proving_indexes(store, catalog, indexes)
        reasons = ((path, _find_lost_proof(path, proving)) for path in _find_trashed_vector_files(store, run))
        return [_leave_in_trash(store, run, path, why) for path, why in reasons if why is not None]

    return find_needed


def _find_trashed_vector_files(store: Store, run: RunRecord) -> Iterator[Path]:
    """Yield the v1 vector files that a run moved to the trash and that are still there."""
    for change in run.changes:
        path = undo_data_path(store.root, change) if change.state == "done" else None
        start, count = change.detail.actions
        actions = {action.action for action in run.actions[start : start + count]}
        if path is not None and TRASH_VECTOR_FILE in actions and file_paths.is_file(path):
            yield path


def _find_lost_proof(path: Path, proving: dict[str, Path]) -> str | None:
    """Return why the ``proving`` indexes no longer prove a v1 vector file in the trash; None if one still does."""
    try:
        survey = VECTOR_TABLE.survey(path)
        complete, best = _find_proof(path, survey, proving)
    except StoreProblem as problem:
        return tr("it {problem}", problem=problem)
    usable = sum(survey.lengths.values())
    if complete or not usable:
        return None
    proven, first = (0, "") if best is None else (best.proven, tr("; for example, {first}", first=best.first))
    return tr(
        "v2 has {proven:,} of its {vectors}{first}",
        proven=proven,
        vectors=format_count(usable, "vector"),
        first=first,
    )


def _leave_in_trash(store: Store, run: RunRecord, path: Path, why: str) -> Unresolved:
    """Report that a v1 vector file stays in the trash of a run, and why."""
    name = path_text(path.name)
    return Unresolved(
        finding=v2.LEFTOVER,
        reason=tr("the vector file {name} of v1 is kept in the trash: {why}", name=name, why=why),
        subject=name,
        repair=store.command_line("undo", run.run_id),
    )


def _proving_indexes(store: Store, catalog: StoredCatalog | None, indexes: dict[str, str]) -> dict[str, Path]:
    """Return the index files, by base id, that count as proof: of completed bases, or of all if there is no catalog."""
    completed = set(indexes)
    if catalog is not None:
        completed = {base_id_text(row) for row in catalog.bases if row.get("status") == "completed"}
    return {base: store.root / name for base, name in indexes.items() if base in completed}


def _survey_file(store: Store, path: Path, proving: dict[str, Path]) -> _VectorFile | Unresolved:
    """Survey a v1 vector file and compare its vectors with the ``proving`` indexes; or report why that is not possible.

    ``proving`` are index files by base id.
    """
    kept = find_reason_to_keep(store, path)
    if kept is not None:
        return _leave_file(path, kept)
    try:
        survey = VECTOR_TABLE.survey(path)
        return _VectorFile(path, survey, *_find_proof(path, survey, proving))
    except StoreProblem as problem:
        return _leave_file(path, tr("it {problem}", problem=problem))


def _leave_file(path: Path, why: str, base: str | None = None, count: int = 1) -> Unresolved:
    """Report that the v1 vector file at ``path`` is kept, and why.

    ``base`` is the id of the base that it belongs to, if known; ``count`` is the number of rows concerned.
    """
    name = path_text(path.name)
    return Unresolved(
        finding=v2.LEFTOVER,
        reason=tr("the vector file {name} of v1 is kept: {why}", name=name, why=why),
        base=base,
        subject=name,
        count=count,
    )


def _find_owners(files: list[_VectorFile], named: set[str]) -> dict[Path, str]:
    """Map the path of each vector file to the id of the base that was migrated from it; unclear ones are left out.

    Ids that regraft gave follow from the v1 id; ids that the application gave do not. ``named`` are the ids of all
    bases.
    """
    owners: dict[Path, str] = {}
    for file in sorted(files, key=lambda file: len(file.provers)):
        free = {file.base} & file.provers if file.base in named else file.provers - set(owners.values())
        if free:
            owners[file.path] = min(free)
    return _drop_disputed(owners, files)


def _drop_disputed(owners: dict[Path, str], files: list[_VectorFile]) -> dict[Path, str]:
    """Return the ``owners`` (base ids by the path of a vector file) that cannot belong to another file.

    A match is disputed if another file without a match could have the same base, unless the id proves the match.
    """
    disputed = set().union(*(file.provers for file in files if file.path not in owners))
    sure = {file.path for file in files if file.base in file.provers}
    return {path: base for path, base in owners.items() if base not in disputed or path in sure}


def _decide_files(
    store: Store, catalog: StoredCatalog | None, proving: dict[str, Path], options: GcOptions
) -> Iterator[FileChange | Unresolved]:
    """Yield, for each v1 vector file in the store, the change that moves it to the trash, or why it is kept.

    ``proving`` are the indexes, by base id, that count as proof of its vectors.
    """
    strays = checked.find_strays(store.root / store.bases, store.names, store.stores)
    looked = [_survey_file(store, path, proving) for finding, path in strays if finding == v2.LEFTOVER]
    owners = _find_owners([one for one in looked if isinstance(one, _VectorFile) and one.usable], set(store.names))
    in_doubt = proving if _has_stranded(store, catalog) else {}
    for one in looked:
        if isinstance(one, _VectorFile):
            yield (
                _leave_unproven(one)
                or _leave_with_other_texts(one, proving, options)
                or _decide_file(store, one, owners.get(one.path), in_doubt)
            )
        else:
            yield one


def _has_stranded(store: Store, catalog: StoredCatalog | None) -> bool:
    """Whether a base may still need its v1 vector file: it failed in the upgrade, or its index is missing.

    False without a catalog.
    """
    return catalog is not None and any(
        row.get("error") in (MISSING_MODEL, MISSING_STORE) or base_id_text(row) not in store.stores
        for row in catalog.bases
    )


def _leave_unproven(file: _VectorFile) -> Unresolved | None:
    """Report that a vector file is kept because no single index has all of its vectors.

    None if an index has them, or if the file has no rows.
    """
    usable, path = file.usable, file.path
    if not file.survey.rows:
        return None
    if not usable:
        rows = file.survey.rows
        return _leave_file(
            path,
            tr(
                "none of its {rows} has a usable vector, so nothing proves that it was migrated",
                rows=format_count(rows, "row"),
            ),
            None,
            rows,
        )
    if file.best is not None:
        proven, first = file.best.proven, tr("; for example, {first}", first=file.best.first)
        base = file.best.base if proven else None
        return _leave_file(
            path,
            tr(
                "v2 has {proven:,} of its {vectors}{first}",
                proven=proven,
                vectors=format_count(usable, "vector"),
                first=first,
            ),
            base,
            usable - proven,
        )
    return None if file.provers else _leave_file(path, tr("no intact index could contain its vectors"), None, usable)


def _leave_with_other_texts(file: _VectorFile, proving: dict[str, Path], options: GcOptions) -> Unresolved | None:
    """Report that a vector file is kept because rows without a usable vector have texts that no index has; else None.

    If the user names the finding, the file is not kept for that. ``proving`` are the indexes by base id.
    """
    if v2.LEFTOVER in options.only or file.usable == file.survey.rows:
        return None
    lost = min((_count_lost_texts(file.path, proving[base]) for base in file.provers), default=0)
    if not lost:
        return None
    rows = format_count(lost, "row")
    reason = tr(
        "{rows} without a usable vector have texts that are not in v2; --only {name} removes the file anyway",
        rows=rows,
        name=v2.LEFTOVER,
    )
    return _leave_file(file.path, reason, None, lost)


def _count_lost_texts(path: Path, index: Path) -> int:
    """Count the rows of the vector file at ``path`` whose text is not a body in ``index``; empty texts do not count."""
    lost = 0
    with sqlite.open_readonly(path) as db, sqlite.open_readonly(index) as v2_index:
        for (raw,) in db.execute(f"SELECT CAST({VECTOR_TABLE.body} AS BLOB) FROM {VECTOR_TABLE.name} NOT INDEXED"):
            text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else ""
            known = not text or v2_index.execute(_HAS_TEXT, (identity.text_hash(text), text)).get is not None
            lost += not known
    return lost


def _decide_file(
    store: Store, file: _VectorFile, owner: str | None, in_doubt: dict[str, Path]
) -> FileChange | Unresolved:
    """Return the change that moves a v1 vector file whose vectors are proven to the trash, or why it is kept.

    Args:
        store: the store of the file.
        file: the file.
        owner: the id of the base that was migrated from it, if known.
        in_doubt: indexes, by base id, that may belong to another file; empty unless a base still needs its v1 file.
    """
    usable, path = file.usable, file.path
    more = file.survey.rows - usable
    where = (
        tr("v2 has its {vectors}, byte for byte", vectors=format_count(usable, "vector"))
        if file.survey.rows
        else tr("it has no rows")
    )
    if file.survey.rows and owner is None:
        return _leave_file(
            path, tr("{where}, but in a base that was made from another file", where=where), min(file.provers), usable
        )
    if owner in in_doubt and owner != file.base and not _has_no_more(in_doubt[owner], file):
        reason = tr(
            "{where}, but it may belong to a base that failed in the upgrade; run regraft rescue first", where=where
        )
        return _leave_file(path, reason, owner, usable)
    rest = tr("; never migrated: {rows} without a usable vector", rows=format_count(more, "row")) if more else ""
    message = tr(
        "move the vector file {name} of v1 to the trash: {where}{rest}",
        name=printable(path.name),
        where=where,
        rest=rest,
    )
    return move_to_trash(store, path, TRASH_VECTOR_FILE, v2.LEFTOVER, message, owner)


def _has_no_more(index: Path, file: _VectorFile) -> bool:
    """Whether an index has at most as many vectors as the v1 vector file."""
    with sqlite.open_readonly(index) as db:
        return int(db.execute("SELECT count(*) FROM embedding NOT INDEXED").get or 0) <= file.usable


# --- proof that an index has all vectors ----------------------------------------------------------------------------


def _find_proof(path: Path, survey: VectorSurvey, indexes: dict[str, Path]) -> tuple[set[str], Proof | None]:
    """Compare the vector file at ``path`` with each index, given by base id.

    Returns:
        The ids of bases whose index has all vectors; and the comparison with the best index, or None if an index has
        all vectors or ``indexes`` is empty.

    Raises:
        StoreProblem: the file cannot be read.
    """
    proofs = [_compare_with_index(path, survey, base, index, stop=True) for base, index in sorted(indexes.items())]
    complete = {proof.base for proof in proofs if proof.first is None}
    if complete or not proofs:
        return complete, None
    likely = identity.base_id(path.name)
    best = max(proofs, key=lambda proof: (proof.proven, proof.base == likely))
    return set(), _compare_with_index(path, survey, best.base, indexes[best.base], stop=False)


def _compare_with_index(path: Path, survey: VectorSurvey, base: str, index: Path, *, stop: bool) -> Proof:
    """Count the vectors of the file at ``path`` that the index of ``base`` has; ``stop``: at the first one missing."""
    proof = Proof(base)
    check_file(path)
    try:
        with sqlite.open_readonly(path) as db, sqlite.open_readonly(index) as v2_index:
            rows = (
                row for length in survey.lengths for row in VECTOR_TABLE.rows(db, _ALL_ROWS, length, any_number=True)
            )
            for body, vector, has in _match_rows(rows, v2_index):
                if has == vector:
                    proof.proven += 1
                    continue
                proof.first = proof.first or _describe_lack(body, has)
                if stop:
                    break
    except (apsw.Error, OSError, UnicodeDecodeError) as error:
        proof.first = proof.first or tr("one of the two cannot be read: {error}", error=error)
    return proof


def _describe_lack(body: str, vector: object) -> str:
    """Say that an index lacks the text ``body``, or, if ``vector`` is not None, has another vector for it."""
    quoted = one_line(body[:_QUOTED]) + ("…" if len(body) > _QUOTED else "")
    if vector is None:
        return tr("the text “{quoted}” is not in it", quoted=quoted)
    return tr("the text “{quoted}” has another vector in it", quoted=quoted)


def _match_rows(rows: Iterable[tuple[str, bytes]], index: apsw.Connection) -> Iterator[tuple[str, bytes, object]]:
    """Yield each text with its vector, and with the vector that the open index has for that text, or None."""
    more = iter(rows)
    while batch := list(itertools.islice(more, _BATCH)):
        texts = {identity.text_hash(body): body for body, _ in batch}
        found = {
            key: vector
            for key, text, vector in index.execute(_BODIES, (sqlite.json_array(texts),))
            if text == texts[key].encode()
        }
        yield from ((body, vector, found.get(identity.text_hash(body))) for body, vector in batch)
