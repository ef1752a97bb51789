"""Vector files that v1 left: each goes to the trash once one index of the store has every one of its vectors.

A row counts where its vector is usable (``docs/rules.md``, "Rows"). Its text must be a body of the index, whose unit is
there, and the bytes of that body's vector must be those of the row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import apsw
import msgspec

from checks.cherry_v2 import audit as checked
from checks.cherry_v2 import findings as v2
from regraft import identity, sqlite
from regraft.formats.cherry_v1.embedjs import VECTORS
from regraft.formats.cherry_v2.catalog_reader import Row, StoredCatalog, base_key
from regraft.formats.vector_survey import StoreProblem, Survey
from regraft.formats.vector_table import check_file
from regraft.language import tr
from regraft.report.notices import MISSING_MODEL, MISSING_STORE
from regraft.text import counted, one_line, path_text, shown
from repair.changes.plan import FileChange, Plan, Unresolved
from repair.changes.store import Store
from repair.changes.trash import trashed
from repair.cherry_v2.gc.choice import is_wanted
from repair.cherry_v2.gc.files import why_kept
from repair.options import GcOptions

#: Rows held against an index at once.
_BATCH = 200
_ALL_ROWS = ((-(1 << 63), (1 << 63) - 1),)
#: Characters of a text that are quoted.
_QUOTED = 40
#: Bodies and their vectors by hash: JSON in, so that a batch is one statement.
_BODIES = """
    SELECT t.embedding_text_hash, CAST(t.text AS BLOB), e.vector_blob
      FROM json_each(?) wanted
      CROSS JOIN search_text t ON t.embedding_text_hash = wanted.value
      JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash
     WHERE EXISTS (SELECT 1 FROM search_unit u WHERE u.unit_id = t.target_id)"""


_HAS_TEXT = "SELECT 1 FROM search_text WHERE embedding_text_hash = ? AND text = ? LIMIT 1"


class Proof(msgspec.Struct):
    """How far the usable vectors of a file are in an index."""

    base: str
    proven: int = 0
    #: What the first row that is not there lacks, for a person; None where all are.
    first: str | None = None


class _File(msgspec.Struct):
    """A vector file that v1 left, and the bases whose indexes have all of its vectors."""

    path: Path
    survey: Survey
    provers: set[str]
    #: How far the best index goes, where none has all.
    best: Proof | None

    @property
    def base(self) -> str:
        """Return the id that regraft gives to the base of such a file."""
        return identity.base_id(self.path.name)

    @property
    def usable(self) -> int:
        """Return how many of its rows have a usable vector."""
        return sum(self.survey.lengths.values())


def plan(store: Store, catalog: StoredCatalog | None, options: GcOptions, indexes: dict[str, str]) -> Plan:
    """Return what moves the vector files that v1 left.

    Args:
        store: where they are.
        catalog: its rows, None where there is none.
        options: whether they are meant.
        indexes: the index files that are whole and keep their vectors, below the store's root, by the base's id.
    """
    if not is_wanted(options, v2.LEFTOVER) or not store.found.stores.is_whole:
        return Plan()
    made = Plan()
    for one in _decisions(store, catalog, _proving(store, catalog, indexes), options):
        if isinstance(one, FileChange):
            made.changes.append(one)
        else:
            made.left.append(one)
    made.resolves = {(v2.LEFTOVER, None)} if made.changes and not made.left else set()
    # Which of the other files are of chosen bases, nobody knows.
    made.left = [one for one in made.left if store.wants(one.base)]
    return made


def _proving(store: Store, catalog: StoredCatalog | None, indexes: dict[str, str]) -> dict[str, Path]:
    """Return the indexes that count as proof: of completed bases, where a catalog says which these are."""
    completed = set(indexes)
    if catalog is not None:
        completed = {base_key(row) for row in catalog.bases if row.get("status") == "completed"}
    return {base: store.root / name for base, name in indexes.items() if base in completed}


def _looked(store: Store, path: Path, proving: dict[str, Path]) -> _File | Unresolved:
    kept = why_kept(store, path)
    if kept is not None:
        return _left(path, kept)
    try:
        survey = VECTORS.survey(path)
        return _File(path, survey, *_proven(path, survey, proving))
    except StoreProblem as problem:
        return _left(path, tr("it {problem}", problem=problem))


def _left(path: Path, why: str, base: str | None = None, count: int = 1) -> Unresolved:
    name = path_text(path.name)
    return Unresolved(
        finding=v2.LEFTOVER,
        reason=tr("the vector file {name} of v1 stays: {why}", name=name, why=why),
        base=base,
        subject=name,
        count=count,
    )


def _is_stranded(store: Store, row: Row) -> bool:
    """Tell whether a base still needs what v1 left: it failed at the upgrade, or its index is missing."""
    return row.get("error") in (MISSING_MODEL, MISSING_STORE) or base_key(row) not in store.stores


def _owners(files: list[_File], named: set[str]) -> dict[Path, str]:
    """Return which base was made of which file: each of one at most, those that leave no choice first.

    The ids of regraft follow from v1's; those of the application say nothing.
    """
    owners: dict[Path, str] = {}
    for file in sorted(files, key=lambda file: len(file.provers)):
        free = {file.base} & file.provers if file.base in named else file.provers - set(owners.values())
        if free:
            owners[file.path] = min(free)
    return _undisputed(owners, files)


def _undisputed(owners: dict[Path, str], files: list[_File]) -> dict[Path, str]:
    """Return which bases are of which files; where several have but the one base, nobody can tell whose it is."""
    shared = set().union(*(file.provers for file in files if file.path not in owners))
    sure = {file.path for file in files if file.base in file.provers}
    return {path: base for path, base in owners.items() if base not in shared or path in sure}


def _decisions(
    store: Store, catalog: StoredCatalog | None, proving: dict[str, Path], options: GcOptions
) -> Iterator[FileChange | Unresolved]:
    """Yield of each file what moves it, or why it stays."""
    strays = checked.strays(store.root / store.bases, store.names, store.stores)
    looked = [_looked(store, path, proving) for finding, path in strays if finding == v2.LEFTOVER]
    owners = _owners([one for one in looked if isinstance(one, _File) and one.usable], set(store.names))
    in_doubt = proving if _has_stranded(store, catalog) else {}
    for one in looked:
        if isinstance(one, _File):
            yield (
                _unproven(one)
                or _with_other_texts(one, proving, options)
                or _decided(store, one, owners.get(one.path), in_doubt)
            )
        else:
            yield one


def _has_stranded(store: Store, catalog: StoredCatalog | None) -> bool:
    return catalog is not None and any(_is_stranded(store, row) for row in catalog.bases)


def _unproven(file: _File) -> Unresolved | None:
    """Return that a file stays whose vectors no index has, each of them; None where one has, or there are no rows."""
    usable, path = file.usable, file.path
    if not file.survey.rows:
        return None
    if not usable:
        rows = file.survey.rows
        return _left(
            path,
            tr("none of its {rows} has a usable vector, so that nothing proves it", rows=counted(rows, "row")),
            None,
            rows,
        )
    if file.best is not None:
        proven, first = file.best.proven, tr("; for example, {first}", first=file.best.first)
        base = file.best.base if proven else None
        return _left(
            path,
            tr(
                "{proven:,} of its {vectors} are in v2{first}",
                proven=proven,
                vectors=counted(usable, "vector"),
                first=first,
            ),
            base,
            usable - proven,
        )
    return None if file.provers else _left(path, tr("no index is whole that could have its vectors"), None, usable)


def _with_other_texts(file: _File, proving: dict[str, Path], options: GcOptions) -> Unresolved | None:
    """Return that a file stays whose rows without a usable vector have texts that no index has.

    None where there are none, and where the finding is named.
    """
    if v2.LEFTOVER in options.only or file.usable == file.survey.rows:
        return None
    lost = min((_texts_lost(file.path, proving[base]) for base in file.provers), default=0)
    if not lost:
        return None
    rows = counted(lost, "row")
    reason = tr(
        "{rows} without a usable vector have texts that are not in v2; --only {name} removes it all the same",
        rows=rows,
        name=v2.LEFTOVER,
    )
    return _left(file.path, reason, None, lost)


def _texts_lost(path: Path, index: Path) -> int:
    """Count the rows of a file whose text is not a body of an index; rows without a text do not count."""
    lost = 0
    with sqlite.reading(path) as db, sqlite.reading(index) as v2_index:
        for (raw,) in db.execute(f"SELECT CAST({VECTORS.body} AS BLOB) FROM {VECTORS.name} NOT INDEXED"):
            text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else ""
            known = not text or v2_index.execute(_HAS_TEXT, (identity.text_hash(text), text)).get is not None
            lost += not known
    return lost


def _decided(store: Store, file: _File, owner: str | None, in_doubt: dict[str, Path]) -> FileChange | Unresolved:
    """Return what moves a file whose vectors are proven, or why it stays.

    Args:
        store: where it is.
        file: the file.
        owner: the base that was made of it.
        in_doubt: the indexes of bases that may have been made of another file, where one still needs its own.
    """
    usable, path = file.usable, file.path
    more = file.survey.rows - usable
    where = (
        tr("its {vectors} are in v2, byte for byte", vectors=counted(usable, "vector"))
        if file.survey.rows
        else tr("it has no rows")
    )
    if file.survey.rows and owner is None:
        return _left(
            path, tr("{where}, but of a base that was made of another file", where=where), min(file.provers), usable
        )
    if owner in in_doubt and owner != file.base and not _has_no_more(in_doubt[owner], file):
        reason = tr(
            "{where}, but it may be that of a base which failed at the upgrade: bring those back first", where=where
        )
        return _left(path, reason, owner, usable)
    rest = tr("; {rows} without a usable vector were never carried", rows=counted(more, "row")) if more else ""
    message = tr(
        "move the vector file {name} of v1 to the trash: {where}{rest}", name=shown(path.name), where=where, rest=rest
    )
    return trashed(store, path, "trash-vector-file", v2.LEFTOVER, message, owner)


def _has_no_more(index: Path, file: _File) -> bool:
    """Tell whether an index has no vector beyond those of a file, all of which it has."""
    with sqlite.reading(index) as db:
        return int(db.execute("SELECT count(*) FROM embedding NOT INDEXED").get or 0) <= file.usable


# --- proof -----------------------------------------------------------------------------------------------------------


def _proven(path: Path, survey: Survey, indexes: dict[str, Path]) -> tuple[set[str], Proof | None]:
    """Return the bases whose indexes have all vectors; where none has, the proof by the one that comes closest.

    Raises:
        StoreProblem: the file cannot be read.
    """
    proofs = [_proof(path, survey, base, index, stop=True) for base, index in sorted(indexes.items())]
    complete = {proof.base for proof in proofs if proof.first is None}
    if complete or not proofs:
        return complete, None
    likely = identity.base_id(path.name)
    best = max(proofs, key=lambda proof: (proof.proven, proof.base == likely))
    return set(), _proof(path, survey, best.base, indexes[best.base], stop=False)


def _proof(path: Path, survey: Survey, base: str, index: Path, *, stop: bool) -> Proof:
    """Hold the rows of a file against an index; with ``stop`` until the first that differs."""
    proof = Proof(base)
    check_file(path)
    try:
        with sqlite.reading(path) as db, sqlite.reading(index) as v2_index:
            rows = (row for length in survey.lengths for row in VECTORS.rows(db, _ALL_ROWS, length, any_number=True))
            for body, vector, has in _held(rows, v2_index):
                if has == vector:
                    proof.proven += 1
                    continue
                proof.first = proof.first or _lacks(body, has)
                if stop:
                    break
    except (apsw.Error, OSError, UnicodeDecodeError) as error:
        proof.first = proof.first or tr("one of the two cannot be read: {error}", error=error)
    return proof


def _lacks(body: str, has: object) -> str:
    """Return what is missing of a text, for a person."""
    quoted = one_line(body[:_QUOTED]) + ("…" if len(body) > _QUOTED else "")
    if has is None:
        return tr("the text “{quoted}” is not in it", quoted=quoted)
    return tr("the text “{quoted}” has another vector in it", quoted=quoted)


def _held(rows: Iterable[tuple[str, bytes]], index: apsw.Connection) -> Iterator[tuple[str, bytes, object]]:
    """Return each text with its vector, and with the one that an index has for it, None where it has none."""
    more = iter(rows)
    while batch := list(itertools.islice(more, _BATCH)):
        texts = {identity.text_hash(body): body for body, _ in batch}
        found = {
            key: vector
            for key, text, vector in index.execute(_BODIES, (msgspec.json.encode(list(texts)).decode(),))
            if text == texts[key].encode()
        }
        yield from ((body, vector, found.get(identity.text_hash(body))) for body, vector in batch)
