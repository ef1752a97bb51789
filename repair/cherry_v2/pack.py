"""``regraft pack``: write chosen bases of a store to one ZIP file, which is a library that any ZIP program can extract.

The catalog's rows are copied inside SQLite, so that texts of any bytes are unchanged. Constraints and references are
not enforced: a pack keeps invalid rows, and ``regraft check`` reports them there as in the source
(``docs/formats/catalog.md``).

Files are stored uncompressed: compressing texts would take longest, and vectors do not compress. The archive is written
beside its final path, read back, and renamed. The same files and the same time give the same bytes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import apsw
import msgspec

from checks.cherry_v2 import findings as v2
from migrators.pipeline import preflight
from regraft.disk import durable, file_paths, links, lock_files, scratch, sqlite, untrusted_sqlite, writable
from regraft.disk.checksums import update_in_background
from regraft.disk.trees import ZipTree
from regraft.disk.zip_directory import LONGEST_NAME, MOST_PARTS
from regraft.errors import (
    CopyDiffers,
    NothingToPack,
    PackThere,
    PackUnreadable,
    PlanOutdated,
    RegraftError,
    SourceUnreadable,
    TargetLocked,
    TargetNotWritable,
    WrongUsage,
)
from regraft.formats.cherry_v2 import catalog
from regraft.formats.cherry_v2.catalog import EMBEDDING, RERANK
from regraft.formats.cherry_v2.catalog_generation import (
    BASES,
    ITEMS,
    MODELS,
    PROVIDERS,
    make_model_row,
    make_provider_row,
    read_model,
)
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.cherry_v2.models import SEPARATOR
from regraft.formats.cherry_v2.pack import MANIFEST, Manifest, PackedBase, PackedFile, read_manifest
from regraft.formats.order_keys import order_key
from regraft.identity import iso_time, utc_datetime
from regraft.kinds import Kind
from regraft.language import format_count, join_list, tr
from regraft.report.document import Report, Run
from regraft.report.progress import Progress, stage
from regraft.stores.locate import CATALOG_FILE, KNOWLEDGE_FOLDER
from regraft.stores.write_checks import places_read
from regraft.text import one_line
from repair.changes.files import copy_database
from repair.changes.plan import Unresolved
from repair.changes.run import BaseName
from repair.cherry_v2.source import BaseSource, open_base_source

# --- the catalog of the pack -----------------------------------------------------------------------------------------

#: Time of rows that the source lacks, for models and providers that bases use.
_NO_TIME = 0


def write_pack_catalog(path: Path, source: BaseSource, bases: Sequence[str]) -> None:
    """Write a new catalog at ``path`` with the rows of some bases of the source, their items and models.

    Raises:
        apsw.Error, OSError: the source cannot be read, or the file not written.
    """
    with sqlite.open_writable(path, create=True) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        for statement in catalog.TABLES:
            db.execute(statement)
        with sqlite.attach_readonly(db, source.catalog_path, "source"), sqlite.transaction(db):
            for table, values in _model_rows(db, source, bases):
                _insert(db, table, values)
            for base in bases:
                _copy(db, BASES, "id", base)
                _copy(db, ITEMS, "base_id", base)
            # Groups belong to one profile.
            db.execute(f"UPDATE main.{BASES} SET group_id = NULL WHERE group_id IS NOT NULL")


def _copy(db: apsw.Connection, table: str, key: str, base: str) -> None:
    """Copy the rows of a table whose column ``key`` is the id ``base`` from the attached catalog of the source.

    Columns that one of the two tables lacks are left out.
    """
    there, own = (untrusted_sqlite.list_columns(db, table, schema) for schema in ("source", "main"))
    names = ", ".join(untrusted_sqlite.quote_name(name) for name in own if name in there)
    rows = f"SELECT {names} FROM source.{table} NOT INDEXED WHERE {key} = ? ORDER BY rowid"
    db.execute(f"INSERT INTO main.{table} ({names}) {rows}", (base,))


def _model_rows(db: apsw.Connection, source: BaseSource, bases: Sequence[str]) -> Iterator[tuple[str, Row]]:
    """Yield table and row of each provider and model that the bases use. Keys of the user are left out."""
    #: The number of models, by provider.
    counts: dict[str, int] = {}
    # The ids of the models that the bases use, with default capabilities.
    rows = [source.bases[base] for base in bases]
    embedding = {row.get("embedding_model_id"): EMBEDDING for row in rows}
    rerank = {row.get("rerank_model_id"): RERANK for row in rows}
    used_models = {str(name): can for name, can in {**rerank, **embedding}.items() if isinstance(name, str)}
    for named, capabilities in used_models.items():
        row = _model_row(source, named)
        provider = str(row["provider_id"])
        if provider not in counts:
            known = source.providers.get(provider, {})
            name, is_enabled = str(known.get("name") or provider), known.get("is_enabled") == 1
            values = make_provider_row(provider, name, order_key(len(counts)), _NO_TIME, is_enabled=is_enabled)
            yield PROVIDERS, values | _kept_values(db, PROVIDERS, "provider_id", provider)
        place = counts.get(provider, 0)
        counts[provider] = place + 1
        values = make_model_row(read_model(row, capabilities), order_key(place), _NO_TIME)
        yield MODELS, values | _kept_values(db, MODELS, "id", named)


def _model_row(source: BaseSource, named: str) -> Row:
    """Make the row of the model with the id ``named`` (``provider::model``) from what the source has of it."""
    known = source.models.get(named, {})
    provider, _, model = named.partition(SEPARATOR)
    stated = {name: known.get(name) or default for name, default in (("provider_id", provider), ("model_id", model))}
    return {**known, "id": named, **stated}


def _kept_values(db: apsw.Connection, table: str, column: str, value: str) -> Row:
    """Return sort key and times of the row of the source whose ``column`` has a value, without invalid ones."""
    there = untrusted_sqlite.list_columns(db, table, "source")
    kinds = {"order_key": str, "created_at": int, "updated_at": int}
    names = [name for name in kinds if name in there]
    if not names:
        return {}
    query = f"SELECT {', '.join(names)} FROM source.{table} WHERE {column} = ?"
    stored = zip(names, db.execute(query, (value,)).fetchone() or (), strict=False)
    return {name: one for name, one in stored if isinstance(one, kinds[name]) and one != ""}


def _insert(db: apsw.Connection, table: str, row: Row) -> None:
    """Insert a row in the pack's catalog; one with the same key is kept."""
    names = ", ".join(untrusted_sqlite.quote_name(name) for name in row)
    values = tuple(json.dumps(value) if isinstance(value, list | tuple) else value for value in row.values())
    db.execute(f"INSERT OR IGNORE INTO main.{table} ({names}) VALUES ({', '.join('?' * len(row))})", values)


# --- the archive -----------------------------------------------------------------------------------------------------

#: Bytes that are read, hashed and written at once.
COPY_BYTES = 4 << 20
#: A larger catalog or manifest is stored uncompressed: a high compression ratio looks like a ZIP bomb.
_DEFLATED_BYTES = 1 << 20
#: Range of years in a ZIP file.
_FIRST_YEAR, _LAST_YEAR = 1980, 2107


class PackMember(msgspec.Struct, frozen=True, kw_only=True):
    """A file to pack: its name in the pack, its path, its size, and its modification time (ns)."""

    name: str
    path: Path
    size: int
    changed_ns: int

    @classmethod
    def of(cls, name: str, path: Path) -> PackMember:
        """Describe the file at ``path``, with its present size and time, as a member called ``name``.

        Raises:
            OSError: the file cannot be read.
        """
        status = file_paths.stat(path)
        return cls(name=name, path=path, size=status.st_size, changed_ns=status.st_mtime_ns)

    def demand_unchanged(self) -> None:
        """Check that the file has the size and time that it had when it was listed.

        Raises:
            PlanOutdated
        """
        with contextlib.suppress(OSError):
            status = file_paths.stat(self.path)
            if (status.st_size, status.st_mtime_ns) == (self.size, self.changed_ns):
                return
        raise PlanOutdated(path=self.path, reason=tr("it was changed in the meantime"))


def hash_members(members: Sequence[PackMember], progress: Progress) -> tuple[PackedFile, ...]:
    """Read the files and make their entries for the manifest, with checksums.

    Raises:
        PlanOutdated: a file was written to in the meantime.
        OSError: a file cannot be read.
    """
    return tuple(_copy_member(member, lambda _: None, progress) for member in members)


def _copy_member(member: PackMember, write: Callable[[bytes], object], progress: Progress) -> PackedFile:
    """Read a file, pass its bytes to ``write``, and return its entry for the manifest."""
    digest, size = hashlib.sha256(), 0
    with (
        links.open_for_reading(member.path, buffering=0) as file,
        (
            update_in_background(digest.update) if member.size > COPY_BYTES else contextlib.nullcontext(digest.update)
        ) as update,
    ):
        while chunk := file.read(COPY_BYTES):
            update(chunk)
            write(chunk)
            size += len(chunk)
            progress.step(len(chunk), 0)
    member.demand_unchanged()
    if size != member.size:
        raise PlanOutdated(path=member.path, reason=tr("it was changed in the meantime"))
    return PackedFile(path=member.name, bytes=size, sha256=digest.hexdigest())


def write_archive(
    target: Path,
    members: Sequence[PackMember],
    manifest_of: Callable[[tuple[PackedFile, ...]], Manifest],
    now_ms: int,
    progress: Progress,
) -> None:
    """Write a pack to a new file at ``target``, and read it back.

    Args:
        target: the final path; its folder exists.
        members: the files, in order.
        manifest_of: creates the manifest from the checksums.
        now_ms: the modification time of all members.
        progress: receives the number of bytes.

    Raises:
        PlanOutdated: a file was written to in the meantime.
        PackThere: a file was created at ``target`` in the meantime.
        TargetLocked, TargetNotWritable: another regraft process writes it, or its folder is not writable.
        CopyDiffers: the written file cannot be read back.
        OSError: a file cannot be read, or the disk is full.
    """
    with writable.allow_writes(target.parent, entries_only=True), _new_part_file(target) as temporary:
        with durable.new_zip(temporary) as archive:
            packed = tuple(_add_member(archive, member, now_ms, progress) for member in members)
            manifest = manifest_of(packed)
            encoded = manifest.encoded()
            archive.writestr(_zip_info(MANIFEST, len(encoded), now_ms), encoded)
        durable.sync_file(temporary)
        _read_back(temporary, manifest)
        _rename_new(temporary, target)


def remove_leftovers(target: Path) -> None:
    """Remove the partial file that a killed run left beside a finished pack, unless another run is writing it."""
    if os.path.lexists(_part_path(target)):
        with (
            contextlib.suppress(TargetLocked, TargetNotWritable, OSError),
            writable.allow_writes(target.parent, entries_only=True),
            _new_part_file(target),
        ):
            pass


def _part_path(target: Path) -> Path:
    """Return the path of the partial file for a pack."""
    return target.with_name(f".{target.name}.regraft-part")


@contextmanager
def _new_part_file(target: Path) -> Iterator[Path]:
    """Context with the path of a partial file beside ``target`` that no other process writes; removed at the end.

    A lock file excludes other processes, and a leftover of a killed run is removed. On a file system without locks the
    path is random.

    Raises:
        TargetLocked, TargetNotWritable
    """
    path = _part_path(target)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock_files.hold_lock(target.with_name(f".{target.name}.regraft-lock")))
        except lock_files.LockHeld as error:
            raise TargetLocked(path=target) from error
        except apsw.IOError:
            path = path.with_name(f"{path.name}-{secrets.token_hex(4)}")
        except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError) as error:
            raise TargetNotWritable(path=target, reason=_find_refusal(target) or error) from error
        durable.remove(path, missing_ok=True)
        try:
            yield path
        finally:
            durable.remove(path, missing_ok=True)


def _find_refusal(target: Path) -> str | None:
    """Return why no file can be created beside ``target``, or None if one can."""
    probe = target.with_name(f"{_part_path(target).name}-{secrets.token_hex(4)}")
    try:
        durable.touch(probe)
    except OSError as error:
        if error.errno in durable.NO_ROOM - {errno.EROFS}:
            raise
        return error.strerror
    durable.remove(probe)
    return None


def _zip_info(name: str, size: int, now_ms: int) -> zipfile.ZipInfo:
    """Describe a member of the archive with fixed attributes; only a small catalog or manifest is compressed."""
    moment = utc_datetime(now_ms)
    year = min(max(moment.year, _FIRST_YEAR), _LAST_YEAR)
    info = zipfile.ZipInfo(name, (year, *moment.timetuple()[1:6]))
    info.create_system = 3
    info.external_attr = 0o100644 << 16
    is_small = name in (CATALOG_FILE, MANIFEST) and size <= _DEFLATED_BYTES
    info.compress_type = zipfile.ZIP_DEFLATED if is_small else zipfile.ZIP_STORED
    info.file_size = size
    return info


def _add_member(archive: zipfile.ZipFile, member: PackMember, now_ms: int, progress: Progress) -> PackedFile:
    """Copy a file into the open archive, and return its entry for the manifest."""
    progress.at(member.name)
    with archive.open(_zip_info(member.name, member.size, now_ms), "w") as file:
        return _copy_member(member, file.write, progress)


def _read_back(temporary: Path, manifest: Manifest) -> None:
    """Read every member of the archive at ``temporary``, which verifies its checksum.

    Raises:
        CopyDiffers
    """
    problem = None
    try:
        with zipfile.ZipFile(temporary) as archive:
            for packed in (*(file.path for file in manifest.files), MANIFEST):
                with archive.open(packed) as file:
                    while file.read(COPY_BYTES):
                        pass
    except (zipfile.BadZipFile, KeyError, zlib.error, EOFError) as error:
        problem = str(error)
    if problem is not None:
        raise CopyDiffers(path=temporary, reason=problem)


def find_archive_problem(path: Path, manifest: Manifest) -> str | None:
    """Return how the files in a pack differ from the checksums of a manifest, or None.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for packed in manifest.files:
                with archive.open(packed.path) as file:
                    digest = hashlib.sha256()
                    while chunk := file.read(COPY_BYTES):
                        digest.update(chunk)
                if digest.hexdigest() != packed.sha256:
                    return tr("{path} differs when read back", path=packed.path)
    except (zipfile.BadZipFile, KeyError, zlib.error, EOFError) as error:
        return str(error)
    return None


def _rename_new(temporary: Path, target: Path) -> None:
    """Rename the file ``temporary`` to ``target``, but never replace another file.

    Raises:
        PackThere
    """
    try:
        # Unlike a rename, a hard link never replaces a file that was created in the meantime.
        is_there = not durable.try_link(temporary, target) and os.path.lexists(target)
    except FileExistsError as error:
        raise PackThere(path=target, what=tr("another file")) from error
    if is_there:
        raise PackThere(path=target, what=tr("another file"))
    if not os.path.lexists(target):
        durable.replace(temporary, target)
    durable.sync_folder(target.parent)


# --- the command -----------------------------------------------------------------------------------------------------

Outcome = Literal["planned", "written", "unchanged"]
#: Overhead of a ZIP file for each member in addition to its name, and for the end of its directory.
_MEMBER_BYTES, _END_BYTES = 512, 1 << 16


class PackOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``regraft pack``.

    ``bases`` are names or ids (v1 or v2); empty: all. ``now_ms`` is the modification time of all members.
    """

    source: Path
    target: Path
    now_ms: int
    kind: Kind | None = None
    bases: tuple[str, ...] = ()
    dry_run: bool = False


class PackedBaseReport(BaseName, frozen=True, kw_only=True):
    """What the report says of a packed base: its v1 id, if known, its model and its size."""

    legacy_id: str | None
    status: str
    model: str | None
    dimensions: int | None
    items: int
    files: int
    bytes: int


class PackReport(Report, kw_only=True):
    """Report of ``regraft pack``. ``outcome`` is "unchanged" if the same pack exists already."""

    outcome: Outcome
    bases: list[PackedBaseReport]
    left: list[Unresolved]
    files: int
    bytes: int


class _Contents(msgspec.Struct):
    """The files and bases of a pack, and reports about omitted objects."""

    members: list[PackMember] = msgspec.field(default_factory=list)
    bases: list[PackedBase] = msgspec.field(default_factory=list)
    left: list[Unresolved] = msgspec.field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(member.size for member in self.members)


def pack(options: PackOptions, progress: Progress) -> PackReport:
    """Write chosen bases of a store to one ZIP file. The store is only read.

    Raises:
        WrongUsage, TargetNotWritable, PackThere: the target cannot be used, or is another file.
        NothingToPack: no base can be packed.
        NotEnoughSpace
        PlanOutdated: a file of the source was written to in the meantime.
        RegraftError: the source cannot be read.
        OSError: reading or writing failed.
    """
    run = Run(command="pack", dry_run=options.dry_run, target_kind=Kind.PACK.value, target=options.target)
    if options.target.suffix.lower() != ".zip":
        raise WrongUsage(
            problem=tr("{target} does not end in .zip", target=one_line(str(options.target))),
            hint=tr("use a name such as FILE.zip"),
        )
    if options.target.is_dir():
        raise PackThere(path=options.target, what="a folder")
    writable.demand_output(options.target)
    with (
        open_base_source(options.source, options.kind, options.bases, "pack") as source,
        scratch.temporary_folder() as work,
    ):
        run.source_kind, run.source = source.store.found.kind.value, options.source
        writable.demand_outside(options.target, places_read(options.source, source.store.found))
        _demand_early_room(source, options)
        contents = _collect_contents(source, work)
        if not contents.bases:
            raise NothingToPack(
                path=options.source,
                reason=join_list(dict.fromkeys(left.reason for left in contents.left), between=tr("; "))
                or tr("it has no bases"),
            )
        outcome = _write_pack(source, contents, options, progress)
    run.end()
    return PackReport(
        head=run.head(),
        outcome=outcome,
        bases=[PackedBaseReport(**msgspec.structs.asdict(base)) for base in contents.bases],
        left=contents.left,
        files=len(contents.members),
        bytes=contents.bytes,
    )


# --- choosing files --------------------------------------------------------------------------------------------------


def _collect_contents(source: BaseSource, work: Path) -> _Contents:
    """Collect the files of the pack, and report chosen bases that cannot be packed; ``work`` is a folder for copies."""
    source.demand_whole()
    contents = _Contents()
    findings = source.findings()
    chosen = []
    for base in source.chosen:
        problem = source.problem(base, findings)
        if problem is None:
            chosen.append(base)
        else:
            contents.left.append(
                Unresolved(finding=problem.name, reason=tr("not packed: {what}", what=problem.message), base=base)
            )
    contents.left += [one for one in source.losses(is_recorded=False) if one.base in chosen]
    rows = work / CATALOG_FILE
    try:
        write_pack_catalog(rows, source, chosen)
        contents.members.append(PackMember.of(CATALOG_FILE, rows))
        for base in chosen:
            _add_base(contents, source, base, work)
    except (apsw.Error, UnicodeDecodeError) as error:
        if sqlite.is_write_failure(error):
            raise
        raise SourceUnreadable(path=source.store.path, reason=error) from error
    return contents


def _add_base(contents: _Contents, source: BaseSource, base: str, work: Path) -> None:
    """Add the files of a base to the contents of the pack, and report those that are left out."""
    row = source.bases[base]
    found = source.files(base)
    named = [(path, path.relative_to(source.folder(base)).as_posix()) for path in found.files]
    unfit = [name for _, name in named if not _is_packable(name)]
    members = [_member(base, path, name, work) for path, name in named if _is_packable(name)]
    contents.members += members
    model, dimensions = row.get("embedding_model_id"), row.get("dimensions")
    contents.bases.append(
        PackedBase(
            id=base,
            name=source.name_of(base),
            status=str(row.get("status")),
            legacy_id=source.legacy_id(base),
            model=model if isinstance(model, str) else None,
            dimensions=dimensions if isinstance(dimensions, int) else None,
            items=len(source.catalog.items_of(base)),
            files=len(members),
            bytes=sum(member.size for member in members),
        )
    )
    contents.left += _report_left(base, row, found.links, unfit)


def _report_left(base: str, row: Row, links: Sequence[str], unfit: Sequence[str]) -> Iterator[Unresolved]:
    """Report files of a base that are not packed, and whether it is a failed base.

    ``links`` are not followed, ``unfit`` are names that an archive cannot hold.
    """
    if links:
        message = tr("{links} in its folder not packed", links=format_count(len(links), "link"))
        yield Unresolved(finding=v2.RAW_MISSING, reason=message, base=base, subject=links[0], count=len(links))
    if unfit:
        message = tr(
            "{files} not packed because a ZIP file cannot hold their names", files=format_count(len(unfit), "file")
        )
        yield Unresolved(
            finding=v2.RAW_MISSING, reason=message, base=base, subject=one_line(unfit[0]), count=len(unfit)
        )
    if row.get("status") == "failed":
        message = tr("it is a failed base ({get}), packed as it is", get=one_line(str(row.get("error"))))
        yield Unresolved(finding=v2.BASE_FAILED, reason=message, base=base, severity="note")


def _is_packable(name: str) -> bool:
    """Whether an archive can hold a path in a base's folder: short enough, UTF-8, and without ".."."""
    try:
        whole = f"{KNOWLEDGE_FOLDER}/{name}"
        return (
            len(whole.encode()) < LONGEST_NAME
            and whole.count("/") < MOST_PARTS
            and ".." not in whole.replace("\\", "/").split("/")
        )
    except UnicodeEncodeError:
        return False


def _member(base: str, path: Path, name: str, work: Path) -> PackMember:
    """Describe the file at ``path``, called ``name`` in the folder of a base, as a member of the pack.

    A database with a log is copied to ``work`` first, as readers see it.
    """
    whole = f"{KNOWLEDGE_FOLDER}/{base}/{name}"
    if untrusted_sqlite.has_log(path):
        copy = work / f"{base}.sqlite"
        copy_database(path, copy)
        return PackMember.of(whole, copy)
    return PackMember.of(whole, path)


# --- writing ---------------------------------------------------------------------------------------------------------


def _write_pack(source: BaseSource, contents: _Contents, options: PackOptions, progress: Progress) -> Outcome:
    """Write the pack unless this is a dry run, and return the outcome; an existing pack must be identical."""
    manifest = Manifest(
        pack=1,
        created_at=iso_time(options.now_ms),
        source={"kind": source.store.found.kind.value},
        bases=tuple(contents.bases),
    )

    def with_files(files: tuple[PackedFile, ...]) -> Manifest:
        """Return the manifest with the list of files."""
        return msgspec.structs.replace(manifest, files=files)

    if os.path.lexists(options.target):
        with stage(progress, "Comparing", contents.bytes, "bytes"):
            _demand_identical(options.target, with_files(hash_members(contents.members, progress)))
        if not options.dry_run:
            remove_leftovers(options.target)
        return "unchanged"
    if options.dry_run:
        return "planned"
    names = sum(2 * len(os.fsencode(member.name)) + _MEMBER_BYTES for member in contents.members)
    preflight.check_space(options.target, contents.bytes + names + _END_BYTES + len(MANIFEST))
    with stage(progress, "Packing", contents.bytes, "bytes"):
        try:
            write_archive(options.target, contents.members, with_files, options.now_ms, progress)
        except OSError as error:
            # A full disk or a limit on file sizes is a problem of the target, not of the source file being read.
            if error.errno in durable.NO_ROOM:
                raise OSError(error.errno, error.strerror, os.fspath(options.target)) from error
            raise
    return "written"


def _demand_identical(target: Path, wanted: Manifest) -> None:
    """Check that the existing file ``target`` is an intact pack with the wanted bases and files.

    Raises:
        PackThere
    """
    try:
        tree = ZipTree(target)
        try:
            there = read_manifest(tree)
        finally:
            tree.close()
    except (PackUnreadable, RegraftError):
        there = None
    if there is None:
        raise PackThere(path=target, what=tr("another file"))
    if (there.files, [base.id for base in there.bases]) != (wanted.files, [base.id for base in wanted.bases]):
        raise PackThere(path=target, what=tr("a pack with other content"))
    problem = find_archive_problem(target, there)
    if problem is not None:
        raise PackThere(path=target, what=tr("a damaged copy of the same pack ({problem})", problem=problem))


def _demand_early_room(source: BaseSource, options: PackOptions) -> None:
    """Check the disk space for the files of the chosen bases before they are read.

    Raises:
        NotEnoughSpace
    """
    if options.dry_run or os.path.lexists(options.target):
        return
    needed = 0
    for base in source.chosen:
        if source.problem(base, []) is None:
            needed += sum(file_paths.lstat(path).st_size for path in source.files(base).files)
    preflight.check_space(options.target, needed)


__all__ = ["PackOptions", "PackReport", "PackedBaseReport", "pack"]
