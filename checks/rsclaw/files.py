"""Check the files of a KB: files that documents name, files that nothing names, and caches.

``gc`` plans from :func:`find_loose_files`, which is stricter than rsclaw's own compactor.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
import unicodedata
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, TypeVar

import apsw
import msgspec

from checks.audit.collector import Level
from checks.rsclaw import findings as kb
from checks.rsclaw.tables import HOUR_MS, NAMED, SEARCHED, TITLED, KbAudit, usual_dimensions
from regraft.disk import file_paths, links
from regraft.formats.rsclaw import database
from regraft.formats.rsclaw.chunks import resolve_kb_file
from regraft.formats.rsclaw.database import FULL_TEXT, HNSW, INDEXED, MARKDOWN, PENDING, RAW, SNAPSHOT, Mirror
from regraft.formats.rsclaw.documents import read_body
from regraft.language import format_count, tr
from regraft.report.notices import Severity
from regraft.text import format_bytes, path_text

#: A younger file may belong to a document that is being added. rsclaw uses the same time.
GRACE_MS = HOUR_MS
#: If at least this number of files, and most files, are unnamed, they are not garbage: the database is new, or an older
#: copy.
_MANY = 10
_PIECE = 1 << 20


class LooseReason(StrEnum):
    """Why a file belongs to no document. ``gc`` moves only those in :data:`MOVED`."""

    #: No document and no ledger entry names it.
    ORPHAN = "orphan"
    #: Most files are unnamed: the database may be new, or an older copy.
    UNSURE = "unsure"
    #: Only the ledger entry of an indexed document names it, as a replaced file.
    REPLACED = "replaced"
    YOUNG = "young"
    #: Only settled ledger entries name it.
    SETTLED = "settled"
    #: It is named in another letter case or Unicode form.
    SPELLING = "spelling"
    #: It is a link or not a regular file, or its name is not text.
    ODD = "odd"


#: Reasons for which ``gc`` moves a file.
MOVED = (LooseReason.ORPHAN, LooseReason.REPLACED)
_SCHEMA = """
CREATE TEMP TABLE file (path TEXT PRIMARY KEY, folded TEXT, changed_at INTEGER, size INTEGER, is_odd INTEGER);
CREATE TEMP TABLE named (folded TEXT, path TEXT, how TEXT);
"""
#: How a path is named: by a document, an open entry, an indexed entry as replaced, or a settled entry.
_DOC, _OPEN, _REPLACED, _SETTLED = "doc", "open", "replaced", "settled"
_NAMED_PATHS = f"""
    SELECT md_path, '{_DOC}' FROM doc UNION ALL SELECT raw_path, '{_DOC}' FROM doc WHERE raw_path IS NOT NULL
    UNION ALL
    SELECT p.path, CASE WHEN e.status = '{INDEXED}' AND NOT p.is_new THEN '{_REPLACED}'
                        WHEN e.status IN ('{PENDING}', '{INDEXED}') THEN '{_OPEN}' ELSE '{_SETTLED}' END
      FROM entry_path p JOIN entry e ON e.id = p.entry_id"""
#: Files that no document and no open entry names, with the reason; ``?1`` is the latest modification time that counts.
_LOOSE_FILES = f"""
    SELECT f.path, f.size,
           CASE WHEN f.is_odd THEN '{LooseReason.ODD}'
                WHEN NOT EXISTS (SELECT 1 FROM named n WHERE n.folded = f.folded)
                THEN CASE WHEN f.changed_at > ?1 THEN '{LooseReason.YOUNG}' ELSE '{LooseReason.ORPHAN}' END
                WHEN EXISTS (SELECT 1 FROM named n WHERE n.folded = f.folded AND n.how IN ('{_DOC}', '{_OPEN}'))
                  OR NOT EXISTS (SELECT 1 FROM named n WHERE n.folded = f.folded AND n.path = f.path)
                THEN '{LooseReason.SPELLING}'
                WHEN EXISTS (SELECT 1 FROM named n WHERE n.folded = f.folded AND n.how = '{_SETTLED}')
                THEN '{LooseReason.SETTLED}'
                WHEN f.changed_at > ?1 THEN '{LooseReason.YOUNG}' ELSE '{LooseReason.REPLACED}' END
      FROM file f
     WHERE NOT EXISTS (SELECT 1 FROM named n
                        WHERE n.folded = f.folded AND n.path = f.path AND n.how IN ('{_DOC}', '{_OPEN}'))
     ORDER BY f.path"""

#: The number of regular files, and the number of regular files that nothing names.
_NAMELESS = """
    SELECT count(*), count(*) FILTER (WHERE folded NOT IN (SELECT folded FROM named)) FROM file WHERE NOT is_odd"""


class LooseFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that no document and no open ledger entry names; ``path`` is relative to the KB's folder."""

    path: str
    size: int
    why: LooseReason


def find_loose_files(db: apsw.Connection, now_ms: int) -> Iterator[LooseFile]:
    """Yield the files that nothing needs, sorted by path.

    Args:
        db: has the tables of the KB and those of :func:`list_files`.
        now_ms: the time to which ages are relative.
    """
    # The database seems older or newer than the files if it has no document, or names few files.
    if db.execute("SELECT 1 FROM doc LIMIT 1").get is None:
        is_of_another_time = True
    else:
        files, nameless = db.execute(_NAMELESS).fetchall()[0]
        is_of_another_time = int(str(nameless)) >= _MANY and 2 * int(str(nameless)) > int(str(files))
    orphans = LooseReason.UNSURE if is_of_another_time else LooseReason.ORPHAN
    for path, size, why in db.execute(_LOOSE_FILES, (now_ms - GRACE_MS,)):
        yield LooseFile(
            path=str(path), size=int(str(size)), why=orphans if why == LooseReason.ORPHAN else LooseReason(str(why))
        )


def list_files(mirror: Mirror, root: Path, check_time: Callable[[], None] = lambda: None) -> int:
    """Fill temporary tables with the files on disk and the paths that rows name, and return the number of files.

    Args:
        mirror: the tables of the KB.
        root: the folder of the KB.
        check_time: called for each file; raises to stop.

    Raises:
        OSError: a folder cannot be read.
    """
    db = mirror.db
    db.execute(_SCHEMA)
    db.executemany("INSERT OR IGNORE INTO file VALUES (?, ?, ?, ?, ?)", _rows_of_files(root, check_time))
    has_links = db.execute("SELECT 1 FROM file WHERE is_odd LIMIT 1").fetchone() is not None
    named = db.execute(_NAMED_PATHS).fetchall() if has_links else db.execute(_NAMED_PATHS)
    db.executemany(
        "INSERT INTO named VALUES (?, ?, ?)",
        ((spelt, path, how) for path, how in named for spelt in _spell_path(root, str(path), follow_links=has_links)),
    )
    db.execute("CREATE INDEX temp.named_folded ON named (folded)")
    return int(str(db.execute("SELECT count(*) FROM file").get))


def _rows_of_files(root: Path, check_time: Callable[[], None]) -> Iterator[tuple[str, str, int, int, bool]]:
    """Yield a row for each file below the folders of files.

    Its values are the path as text, a key that is equal for all spellings of the path, modification time in ms, size,
    and whether it is a link, a special file or has a name that is not text.
    """
    for entry in _walk_files(root):
        check_time()
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        path = Path(file_paths.plain_path(entry.path)).relative_to(root).as_posix()
        shown = path_text(path)
        is_odd = not stat.S_ISREG(status.st_mode) or shown != path
        yield shown, _fold_path(shown), status.st_mtime_ns // 1_000_000, status.st_size, is_odd


def _walk_files(root: Path) -> Iterator[os.DirEntry[str]]:
    """Yield every entry below the folders of files that is not a folder. Links are yielded, not followed."""
    folders = (root / name for name in (MARKDOWN, RAW))
    waiting = [folder for folder in folders if folder.is_dir() and not file_paths.is_link(folder)]
    while waiting:
        with os.scandir(file_paths.extended_path(waiting.pop())) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False) and not file_paths.is_link_entry(entry):
                    waiting.append(Path(file_paths.plain_path(entry.path)))
                else:
                    yield entry


def _fold_path(path: str) -> str:
    """Return a key of a path that is equal for all spellings of the path, on any file system."""
    plain = posixpath.normpath(path.replace("\\", "/"))
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", plain).casefold())


def _spell_path(root: Path, path: str, *, follow_links: bool) -> Iterator[str]:
    """Yield the keys of all paths that a path in the database can mean: itself, and relative to the KB.

    ``follow_links``: whether a link on the path can lead to another file.
    """
    yield _fold_path(path)
    top = links.real_path(root)
    for spelt in dict.fromkeys((path, path.replace("\\", "/"))):
        plain = posixpath.normpath(spelt)
        if posixpath.isabs(plain) or os.path.isabs(plain) or plain.startswith("..") or follow_links:  # noqa: PTH117 - a str
            real = Path(os.path.realpath(root / spelt.replace("\0", "")))
            if real.is_relative_to(top):
                yield _fold_path(path_text(real.relative_to(top).as_posix()))


# --- what a file holds -----------------------------------------------------------------------------------------------


def resolve_file(root: Path, path: str) -> tuple[Path | None, str | None]:
    """Find the file that a document names.

    Args:
        root: the folder of the KB.
        path: the path as the document has it.

    Returns:
        The location, and why the file cannot be read: None if it can, "" if it is missing. The location is None if the
        path leads out of the folders of files.
    """
    place = resolve_kb_file(root, path)
    if place is None:
        return None, None
    try:
        links.require_regular_file(file_paths.stat(place).st_mode)
    except FileNotFoundError:
        return place, ""
    except OSError as error:
        return place, error.strerror or str(error)
    return place, None


def hash_file(path: Path, check_time: Callable[[], None]) -> str:
    """Return the SHA-256 of a file as hexadecimal digits; ``check_time`` is called for each part and raises to stop.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with links.open_for_reading(path) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            check_time()
    return digest.hexdigest()


# --- files that documents name --------------------------------------------------------------------------------------


_BODY_TABLES = """
CREATE TEMP TABLE body (doc_id TEXT PRIMARY KEY, start INTEGER, size INTEGER) WITHOUT ROWID;
CREATE TEMP TABLE told (what TEXT, is_current INTEGER, path TEXT, sample TEXT);
"""
#: Every file that a document names, with its hash, and whether it is the document's Markdown body.
_NAMED_FILES = f"""
    SELECT d.id, {TITLED}, d.md_path, d.md_sha, 1, EXISTS (SELECT 1 FROM current c WHERE c.id = d.id)
           OR d.status = '{database.UPDATING}' FROM doc d
    UNION ALL
    SELECT d.id, {TITLED}, d.raw_path, d.raw_sha, 0, EXISTS (SELECT 1 FROM current c WHERE c.id = d.id)
           OR d.status = '{database.UPDATING}' FROM doc d WHERE d.raw_path IS NOT NULL
    ORDER BY 1"""
_CURRENT_PATHS = "SELECT d.md_path FROM doc d JOIN current c ON c.id = d.id"
_MISSING, _UNREADABLE, _OUTSIDE, _CHANGED, _CHANGED_RAW = "missing", "unreadable", "outside", "changed", "changed raw"
#: Finding, message and severity by problem, for documents that are searched.
_FILE_MESSAGES: dict[str, tuple[str, str, Severity]] = {
    _OUTSIDE: (kb.FILE_OUTSIDE, tr("{n} pointing outside md/ and raw/: {named}"), "error"),
    _MISSING: (kb.FILE_MISSING, tr("{n} missing: {named}"), "error"),
    _UNREADABLE: (kb.FILE_MISSING, tr("{n} that cannot be read: {named}"), "error"),
    _CHANGED: (kb.FILE_CHANGED, tr("{n} whose text differs from the indexed text: {named}"), "error"),
    _CHANGED_RAW: (kb.FILE_CHANGED, tr("{n} changed since documents were made from it: {named}"), "warning"),
}
_OLD_FILE_MESSAGES = {
    _MISSING: tr("{n} missing for removed documents or older versions: {named}"),
    _UNREADABLE: tr("{n} of removed documents or older versions that cannot be read: {named}"),
    _CHANGED: tr("{n} of removed documents or older versions whose text differs from the indexed text: {named}"),
    _CHANGED_RAW: tr("{n} changed since removed documents or older versions were made from it: {named}"),
}
_LOOSE_MESSAGES: dict[LooseReason, tuple[str, Severity]] = {
    LooseReason.ORPHAN: (tr("{n} not referenced by any document or ledger entry: {named}"), "warning"),
    LooseReason.UNSURE: (
        tr(
            "{n} belonging to no document, like all or most others: the database may be new, or older than "
            "the files, so gc keeps them: {named}"
        ),
        "warning",
    ),
    LooseReason.REPLACED: (tr("{n} replaced and waiting for the next compaction: {named}"), "note"),
    LooseReason.YOUNG: (tr("{n} belonging to no document, less than an hour old: {named}"), "note"),
    LooseReason.SETTLED: (tr("{n} belonging to no document but named by a completed ledger entry: {named}"), "note"),
    LooseReason.SPELLING: (tr("{n} found only by a different letter case or Unicode form: {named}"), "note"),
    LooseReason.ODD: (
        tr("{n} belonging to no document but kept by gc (a link, a special file, or a name that is not text): {named}"),
        "note",
    ),
}


class _NamedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a document names."""

    doc: str
    title: str
    path: str
    sha256: str | None
    is_body: bool
    is_current: bool


def check_named_files(state: KbAudit) -> None:
    """Report files that documents name and that are missing, outside, unreadable or changed.

    Unchanged bodies are added to the temporary table ``body``, for the check of chunks.
    """
    state.db.execute(_BODY_TABLES)
    state.checked["bytes"] = 0
    for doc, title, path, sha256, is_body, is_current in state.db.execute(_NAMED_FILES):
        state.findings.check_time()
        one = _NamedFile(
            doc=str(doc),
            title=str(title),
            path=str(path),
            sha256=None if sha256 is None else str(sha256).lower(),
            is_body=bool(is_body),
            is_current=bool(is_current),
        )
        what = _find_file_problem(state, one)
        if what is not None:
            problem, text = what
            sample = f"{one.path}, {one.title}" + (f": {text}" if text else "")
            state.db.execute("INSERT INTO told VALUES (?, ?, ?, ?)", (problem, one.is_current, one.path, sample))
    for problem, (name, message, severity) in _FILE_MESSAGES.items():
        of_others = _OLD_FILE_MESSAGES.get(problem)
        query = "SELECT sample FROM told WHERE what = ?"
        if of_others is None:
            state.report(name, message, noun="path", samples=state.texts(query, problem))
            continue
        # Before file names contained the hash of the body, all versions of a document shared one file.
        current, others = f"{query} AND is_current", f"{query} AND NOT is_current AND path NOT IN ({_CURRENT_PATHS})"
        state.report(name, message, noun="file", samples=state.texts(current, problem), severity=severity)
        state.report(name, of_others, noun="file", samples=state.texts(others, problem), severity="note")
    _check_ledger_paths(state)


def _find_file_problem(state: KbAudit, file: _NamedFile) -> tuple[str, str] | None:
    """Return what is wrong with a file, as a key of the messages, and a detail or ""; None if it is in order."""
    place, problem = resolve_file(state.root, file.path)
    if place is None:
        return _OUTSIDE, ""
    if problem is not None:
        return (_UNREADABLE, problem) if problem else (_MISSING, "")
    try:
        return _find_change(state, file, place)
    except OSError as error:
        return _UNREADABLE, error.strerror or str(error)


def _find_change(state: KbAudit, file: _NamedFile, location: Path) -> tuple[str, str] | None:
    """Compare a file with the hash that its document records; at lower levels not every file is read.

    Returns:
        What changed, as a key of the messages, and ""; None if nothing did. The values are as in
        :func:`_find_file_problem`.
    """
    if file.is_body and state.level >= Level.DEFAULT:
        body = read_body(location)
        state.checked["bytes"] += body.start + body.size
        if file.sha256 is not None and body.sha256 != file.sha256:
            return _CHANGED, ""
        state.db.execute("INSERT OR IGNORE INTO body VALUES (?, ?, ?)", (file.doc, body.start, body.size))
    elif not file.is_body and state.level >= Level.DEEP and file.sha256 is not None:
        state.checked["bytes"] += location.stat().st_size
        if hash_file(location, state.findings.check_time) != file.sha256:
            return _CHANGED_RAW, ""
    return None


def _check_ledger_paths(state: KbAudit) -> None:
    """Report paths of ledger entries that lead out of the KB; rsclaw's compactor would follow them."""
    query = f"""SELECT p.path, {NAMED.format(id="e.doc_id")} FROM entry_path p JOIN entry e ON e.id = p.entry_id
                  LEFT JOIN doc d ON d.id = e.doc_id
                 WHERE p.path NOT IN (SELECT md_path FROM doc UNION SELECT raw_path FROM doc WHERE raw_path IS NOT NULL)
                 ORDER BY 1, 2"""
    found = (
        f"{path}, {doc}" for path, doc in state.db.execute(query) if resolve_kb_file(state.root, str(path)) is None
    )
    state.report(
        kb.FILE_OUTSIDE, tr("{n} of a ledger entry pointing outside md/ and raw/: {named}"), noun="path", samples=found
    )


# --- files that nothing needs ----------------------------------------------------------------------------------------


def knows_all_paths(state: KbAudit) -> bool:
    """Whether all paths that documents and ledger entries name can be read, so that other files are not needed."""
    return state.path.name == database.FILE and state.mirror.is_whole(database.DOCS, database.LEDGER)


def check_loose_files(state: KbAudit) -> None:
    """Report files that nothing needs, if all paths that the database names can be read.

    Raises:
        OSError: a folder cannot be read.
    """
    state.checked["files"] = list_files(state.mirror, state.root, state.findings.check_time)
    if not knows_all_paths(state):
        return
    for why, (message, severity) in _LOOSE_MESSAGES.items():
        is_beyond_repair = why not in MOVED
        paths = (one.path for one in find_loose_files(state.db, state.now_ms) if one.why is why)
        state.report(
            kb.FILE_ORPHAN, message, noun="file", samples=paths, severity=severity, is_beyond_repair=is_beyond_repair
        )


# --- caches that rsclaw builds from the database --------------------------------------------------------------------


#: Prefix of the snapshot's files in the folder of the vector index.
SNAPSHOT_FILES = "snapshot."
_FULL_TEXT_META = f"{FULL_TEXT}/meta.json"
_SCHEMA_VERSION = 1
#: Longest description of a cache that is read, in bytes.
_MOST_BYTES = 1 << 28
T = TypeVar("T")


class _Snapshot(msgspec.Struct):
    """The snapshot of the vector index, as its JSON file describes it."""

    schema_version: database.Int64
    dimension: database.Int64
    id_to_chunk: list[str]


class _Deletes(msgspec.Struct):
    """Number of deleted texts of a segment of the full-text index."""

    num_deleted_docs: database.NonNegativeInt64 = 0


class _Segment(msgspec.Struct):
    """A segment of the full-text index."""

    max_doc: Annotated[int, msgspec.Meta(ge=0, le=(1 << 40))]
    deletes: _Deletes | None = None


class _FullText(msgspec.Struct):
    """The full-text index, as its JSON file describes it."""

    segments: list[_Segment]


def snapshot_files(root: Path) -> list[Path]:
    """Return the regular files of the snapshot of the vector index.

    Raises:
        OSError: the folder cannot be read.
    """
    return [path for path, is_plain in _snapshot_entries(root) if is_plain]


def odd_snapshot_files(root: Path) -> list[Path]:
    """Return links, folders and special files that are named like files of the snapshot. They are never changed.

    Raises:
        OSError: the folder cannot be read.
    """
    return [path for path, is_plain in _snapshot_entries(root) if not is_plain]


def has_full_text(root: Path) -> bool:
    """Whether the KB has a full-text index.

    Raises:
        OSError: the folder cannot be read.
    """
    return _is_plain_folder(root, FULL_TEXT) and any((root / FULL_TEXT).iterdir())


def _snapshot_entries(root: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the entries that are named like files of the snapshot, and whether each is a regular file."""
    if _is_plain_folder(root, HNSW):
        for path in sorted((root / HNSW).iterdir()):
            if path.name.startswith(SNAPSHOT_FILES):
                yield path, stat.S_ISREG(path.lstat().st_mode)


def _is_plain_folder(root: Path, name: str) -> bool:
    """Whether the folder ``name`` of the KB exists, and no part of its path is a link."""
    path = PurePosixPath(name)
    way = [root / part for part in (*reversed(path.parents), path) if part.parts]
    return not any(part.is_symlink() for part in way) and way[-1].is_dir()


def check_caches(state: KbAudit) -> None:
    """Compare the vector index and the full-text index with the database. Missing ones are not reported.

    Raises:
        OSError: a folder cannot be read.
    """
    if not state.mirror.is_whole(database.CHUNKS):
        return
    odd = [path.relative_to(state.root).as_posix() for path in odd_snapshot_files(state.root)]
    message = tr(
        "{n} with the names of snapshot files that are links, folders or special files, which are kept: {named}"
    )
    severity: Severity = "warning" if SNAPSHOT in odd else "note"
    state.report(kb.SNAPSHOT, message, noun="entry", samples=odd, severity=severity, is_beyond_repair=True)
    if snapshot_files(state.root) and SNAPSHOT not in odd:
        _check_snapshot(state)
    if has_full_text(state.root):
        _check_full_text(state)


def _read_description(state: KbAudit, finding: str, name: str, decoder: msgspec.json.Decoder[T]) -> T | None:
    """Read the JSON file ``name`` that describes a cache. If it cannot be read, add ``finding`` and return None."""
    try:
        with links.open_for_reading(state.root / name) as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) <= _MOST_BYTES:
            return decoder.decode(content)
        problem = tr("it has more than {size}", size=format_bytes(_MOST_BYTES))
    except OSError as error:
        problem = error.strerror or str(error)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        problem = str(error)
    state.findings.add(finding, tr("{name} cannot be read: {problem}", name=name, problem=problem), sample=name)
    return None


def _check_snapshot(state: KbAudit) -> None:
    """Report chunks and dimensions for which the snapshot of the vector index differs from the database."""
    found = _read_description(state, kb.SNAPSHOT, SNAPSHOT, msgspec.json.Decoder(_Snapshot))
    if found is None:
        return
    if found.schema_version != _SCHEMA_VERSION:
        message = tr("{name} is of version {version}, which is not known", name=SNAPSHOT, version=found.schema_version)
        state.findings.add(kb.SNAPSHOT, message, sample=SNAPSHOT)
        return
    usual = usual_dimensions(state)
    if usual is not None and found.dimension != usual:
        message = tr(
            "the snapshot is of vectors of {found} dimensions, and most have {usual}",
            found=found.dimension,
            usual=usual,
        )
        state.findings.add(kb.SNAPSHOT, message, sample=SNAPSHOT)
    state.db.execute("CREATE TEMP TABLE snapshot (chunk_id TEXT PRIMARY KEY) WITHOUT ROWID")
    state.db.executemany("INSERT OR IGNORE INTO snapshot VALUES (?)", ((one,) for one in found.id_to_chunk))
    unknown = "SELECT chunk_id FROM snapshot WHERE chunk_id NOT IN (SELECT id FROM chunk) ORDER BY 1"
    state.report(
        kb.SNAPSHOT,
        tr("{n} in the snapshot for a chunk that does not exist: {named}"),
        noun="id",
        samples=state.texts(unknown),
    )
    # Vectors of another length are not in the snapshot.
    missing = f"""SELECT {NAMED.format(id="c.doc_id")} || ', ' || c.id FROM {SEARCHED}
                   WHERE c.flaw IS NULL AND c.dimensions = ? AND c.id NOT IN (SELECT chunk_id FROM snapshot)
                   ORDER BY d.id, c.seq, c.id"""
    lacking = state.texts(missing, found.dimension)
    state.report(kb.SNAPSHOT, tr("{n} missing from the snapshot: {named}"), noun="chunk", samples=lacking)


def _check_full_text(state: KbAudit) -> None:
    """Report a full-text index that has another number of texts than the database has chunks."""
    found = _read_description(state, kb.FULL_TEXT, _FULL_TEXT_META, msgspec.json.Decoder(_FullText))
    if found is None:
        return
    deleted = sum(one.deletes.num_deleted_docs for one in found.segments if one.deletes is not None)
    texts = sum(one.max_doc for one in found.segments) - deleted
    chunks = int(str(state.db.execute("SELECT count(*) FROM chunk").get))
    if texts != chunks:
        message = tr(
            "the full-text index has {texts}, the database {chunks}",
            texts=format_count(texts, "text"),
            chunks=format_count(chunks, "chunk"),
        )
        state.findings.add(kb.FULL_TEXT, message, sample=_FULL_TEXT_META)
