"""Packing: chosen bases of a store as one zip file, which is a library that any zip program unpacks.

Format: ``docs/formats/pack.md``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal

import apsw
import msgspec

from checks.cherry_v2 import findings as v2
from regraft.disk import durable, file_paths, links, sqlite, untrusted_sqlite, writable
from regraft.disk.checksums import Update, update_in_background
from regraft.disk.trees import ZipTree
from regraft.disk.zip_directory import LONGEST_NAME, MOST_PARTS
from regraft.errors import (
    CopyDiffers,
    NotEnoughSpace,
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
from regraft.text import format_bytes, one_line
from repair.changes.files import copy_database
from repair.changes.plan import Unresolved
from repair.changes.run import BaseName
from repair.cherry_v2.source import BaseSource, open_base_source

# The catalog of a pack: rows of chosen bases as they are, in the form of a library's (``docs/formats/catalog.md``).
#
# Rows are copied inside SQLite, so that texts of any bytes stay what they are. Checks and references are not enforced: a
# pack carries what is wrong with a row along, and ``regraft check`` names it there as it does in the source.


#: What a row is of that the source has not got: it names a model or provider that is not there.
_NO_TIME = 0


def write_pack_catalog(path: Path, source: BaseSource, bases: Sequence[str]) -> None:
    """Write the catalog of a pack to ``path``, where no file is yet.

    Raises:
        apsw.Error, OSError: the source cannot be read, or the file cannot be written.
    """
    with sqlite.open_writable(path, create=True) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        for statement in catalog.TABLES:
            db.execute(statement)
        with sqlite.attach_readonly(db, source.rows, "source"), sqlite.transaction(db):
            for table, values in _models(db, source, bases):
                _insert(db, table, values)
            for base in bases:
                _copy(db, BASES, "id", base)
                _copy(db, ITEMS, "base_id", base)
            # A group is of one profile alone.
            db.execute(f"UPDATE main.{BASES} SET group_id = NULL WHERE group_id IS NOT NULL")


def _copy(db: apsw.Connection, table: str, key: str, base: str) -> None:
    there = {str(row[1]) for row in db.execute(f"PRAGMA source.table_info('{table}')")}
    own = [str(row[1]) for row in db.execute(f"PRAGMA main.table_info('{table}')")]
    names = ", ".join(untrusted_sqlite.quote_name(name) for name in own if name in there)
    rows = f"SELECT {names} FROM source.{table} NOT INDEXED WHERE {key} = ? ORDER BY rowid"
    db.execute(f"INSERT INTO main.{table} ({names}) {rows}", (base,))


def _models(db: apsw.Connection, source: BaseSource, bases: Sequence[str]) -> Iterator[tuple[str, Row]]:
    """Yield the rows of the models that bases name, in full, each after its provider's; never a key of the user's."""
    providers: set[str] = set()
    places: dict[str, int] = {}
    for named, capabilities in _named(source, bases).items():
        row = _row(source, named)
        provider = str(row["provider_id"])
        if provider not in providers:
            key = _key(db, PROVIDERS, "provider_id", provider) or order_key(len(providers))
            yield PROVIDERS, _provider(db, source, provider, key)
            providers.add(provider)
        place = places.setdefault(provider, 0)
        places[provider] += 1
        key = _key(db, MODELS, "id", named) or order_key(place)
        yield MODELS, make_model_row(read_model(row, capabilities), key, _NO_TIME) | _times(db, MODELS, "id", named)


def _named(source: BaseSource, bases: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the models that bases name, each with what it can do where nothing says so."""
    rows = [source.bases[base] for base in bases]
    embedding = {row.get("embedding_model_id"): EMBEDDING for row in rows}
    rerank = {row.get("rerank_model_id"): RERANK for row in rows}
    return {str(name): can for name, can in {**rerank, **embedding}.items() if isinstance(name, str)}


def _row(source: BaseSource, named: str) -> Row:
    known = source.models.get(named, {})
    provider, _, model = named.partition(SEPARATOR)
    stated = {name: known.get(name) or default for name, default in (("provider_id", provider), ("model_id", model))}
    return {**known, "id": named, **stated}


def _provider(db: apsw.Connection, source: BaseSource, provider: str, key: str) -> Row:
    known = source.providers.get(provider, {})
    values = make_provider_row(
        provider, str(known.get("name") or provider), key, _NO_TIME, is_enabled=known.get("is_enabled") == 1
    )
    return values | _times(db, PROVIDERS, "provider_id", provider)


def _key(db: apsw.Connection, table: str, column: str, value: str) -> str | None:
    found = _value(db, table, "order_key", column, value)
    return found if isinstance(found, str) and found else None


def _times(db: apsw.Connection, table: str, column: str, value: str) -> Row:
    found = {name: _value(db, table, name, column, value) for name in ("created_at", "updated_at")}
    return {name: time for name, time in found.items() if isinstance(time, int)}


def _value(db: apsw.Connection, table: str, wanted: str, column: str, value: str) -> Any:
    if wanted not in {str(row[1]) for row in db.execute(f"PRAGMA source.table_info('{table}')")}:
        return None
    return db.execute(f"SELECT {wanted} FROM source.{table} WHERE {column} = ?", (value,)).get


def _insert(db: apsw.Connection, table: str, row: Row) -> None:
    names = ", ".join(untrusted_sqlite.quote_name(name) for name in row)
    values = tuple(json.dumps(value) if isinstance(value, list | tuple) else value for value in row.values())
    db.execute(f"INSERT OR IGNORE INTO main.{table} ({names}) VALUES ({', '.join('?' * len(row))})", values)


# Writing a pack: one zip file, beside its place first, read back, and then put there in one step.
#
# Files are stored: deflating texts takes longer than all the rest, and vectors do not shrink. The same files and the same
# time give the same bytes.


#: Read, hashed and written at once.
COPY_BYTES = 4 << 20
#: A larger catalog or manifest is stored: what shrinks much would be taken for a bomb.
_DEFLATED_BYTES = 1 << 20
#: The years that a zip file can tell.
_FIRST_YEAR, _LAST_YEAR = 1980, 2107


class PackMember(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is packed: its name in the pack, where its bytes are, how many, and its time of change in ns."""

    name: str
    path: Path
    size: int
    changed_ns: int

    @classmethod
    def of(cls, name: str, path: Path) -> PackMember:
        """Return a file as it is now.

        Raises:
            OSError: it cannot be looked at.
        """
        status = file_paths.stat(path)
        return cls(name=name, path=path, size=status.st_size, changed_ns=status.st_mtime_ns)

    def demand_unchanged(self) -> None:
        """Refuse a file that was written to since it was listed.

        Raises:
            PlanOutdated
        """
        with contextlib.suppress(OSError):
            status = file_paths.stat(self.path)
            if (status.st_size, status.st_mtime_ns) == (self.size, self.changed_ns):
                return
        raise PlanOutdated(path=self.path, reason=tr("it was written to meanwhile"))


def hash_members(members: Sequence[PackMember], progress: Progress) -> tuple[PackedFile, ...]:
    """Return what a manifest says of files, without writing one.

    Raises:
        PlanOutdated: one was written to meanwhile.
        OSError: one cannot be read.
    """
    return tuple(_packed(member, lambda _: None, progress) for member in members)


def _packed(member: PackMember, write: Callable[[bytes], object], progress: Progress) -> PackedFile:
    """Read a file to its end, give its bytes to ``write``, and return what a manifest says of it."""
    digest, size = hashlib.sha256(), 0
    with links.open_for_reading(member.path, buffering=0) as file, _hashing(digest.update, member.size) as update:
        while chunk := file.read(COPY_BYTES):
            update(chunk)
            write(chunk)
            size += len(chunk)
            progress.step(len(chunk), 0)
    member.demand_unchanged()
    if size != member.size:
        raise PlanOutdated(path=member.path, reason=tr("it was written to meanwhile"))
    return PackedFile(path=member.name, bytes=size, sha256=digest.hexdigest())


def _hashing(update: Update, size: int) -> AbstractContextManager[Update]:
    """Hash a large file while it is read and written; for a small one a thread costs more than it saves."""
    return update_in_background(update) if size > COPY_BYTES else contextlib.nullcontext(update)


def write_archive(
    target: Path,
    members: Sequence[PackMember],
    manifest_of: Callable[[tuple[PackedFile, ...]], Manifest],
    now_ms: int,
    progress: Progress,
) -> None:
    """Write a pack to ``target``, whole and read back, where nothing is yet.

    Args:
        target: its place; its folder exists.
        members: its files, in their order.
        manifest_of: makes the manifest when the checksums are known.
        now_ms: the time that members carry.
        progress: told of bytes.

    Raises:
        PlanOutdated: a file was written to meanwhile.
        PackThere: something came to its place meanwhile.
        TargetLocked, TargetNotWritable: another regraft writes it, or its folder is not to be written to.
        CopyDiffers: what was written does not read back.
        OSError: a file cannot be read, or the disk is full.
    """
    with writable.allow_writes(target.parent, entries_only=True), _temporary(target) as temporary:
        with durable.new_zip(temporary) as archive:
            packed = tuple(_add(archive, member, now_ms, progress) for member in members)
            manifest = manifest_of(packed)
            encoded = manifest.encoded()
            archive.writestr(_info(MANIFEST, len(encoded), now_ms), encoded)
        durable.sync_file(temporary)
        _read_back(temporary, manifest)
        _put(temporary, target)


def remove_leftovers(target: Path) -> None:
    """Remove what a killed run left beside a pack that is in its place, unless another run is writing it."""
    if os.path.lexists(_part_of(target)):
        with (
            contextlib.suppress(TargetLocked, TargetNotWritable, OSError),
            writable.allow_writes(target.parent, entries_only=True),
            _temporary(target),
        ):
            pass


def _part_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.regraft-part")


@contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """Give the path of a new file beside ``target`` that no other pack writes, and remove it at the end.

    A lock file beside it excludes other packs; what a killed run left at that path is removed. On a file system without
    locks the path is one that no other run has.

    Raises:
        TargetLocked, TargetNotWritable
    """
    path = _part_of(target)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(sqlite.hold_lock(target.with_name(f".{target.name}.regraft-lock")))
        except sqlite.LockHeld as error:
            raise TargetLocked(path=target) from error
        except apsw.IOError:
            path = path.with_name(f"{path.name}-{secrets.token_hex(4)}")
        except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError) as error:
            raise TargetNotWritable(path=target, reason=_refusal(target) or error) from error
        durable.remove(path, missing_ok=True)
        try:
            yield path
        finally:
            durable.remove(path, missing_ok=True)


def _refusal(target: Path) -> str | None:
    """Return why no file can be made beside ``target``; None where one can."""
    probe = target.with_name(f"{_part_of(target).name}-{secrets.token_hex(4)}")
    try:
        durable.touch(probe)
    except OSError as error:
        if error.errno in durable.NO_ROOM - {errno.EROFS}:
            raise
        return error.strerror
    durable.remove(probe)
    return None


def _info(name: str, size: int, now_ms: int) -> zipfile.ZipInfo:
    moment = utc_datetime(now_ms)
    year = min(max(moment.year, _FIRST_YEAR), _LAST_YEAR)
    info = zipfile.ZipInfo(name, (year, *moment.timetuple()[1:6]))
    info.create_system = 3
    info.external_attr = 0o100644 << 16
    is_small = name in (CATALOG_FILE, MANIFEST) and size <= _DEFLATED_BYTES
    info.compress_type = zipfile.ZIP_DEFLATED if is_small else zipfile.ZIP_STORED
    info.file_size = size
    return info


def _add(archive: zipfile.ZipFile, member: PackMember, now_ms: int, progress: Progress) -> PackedFile:
    progress.at(member.name)
    with archive.open(_info(member.name, member.size, now_ms), "w") as file:
        return _packed(member, file.write, progress)


def _read_back(temporary: Path, manifest: Manifest) -> None:
    """Read every member of the written file to its end; its checksum in the archive is that of what was read.

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
    """Return why a zip file does not hold what a manifest lists; None where it does.

    Raises:
        OSError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for packed in manifest.files:
                with archive.open(packed.path) as file:
                    digest = hashlib.sha256()
                    while chunk := file.read(COPY_BYTES):
                        digest.update(chunk)
                if digest.hexdigest() != packed.sha256:
                    return tr("{path} does not read back", path=packed.path)
    except (zipfile.BadZipFile, KeyError, zlib.error, EOFError) as error:
        return str(error)
    return None


def _put(temporary: Path, target: Path) -> None:
    """Give a written file its name, where nothing has it.

    Raises:
        PackThere
    """
    try:
        # Unlike a rename, a link never takes the place of a file that came meanwhile.
        is_there = not durable.try_link(temporary, target) and os.path.lexists(target)
    except FileExistsError as error:
        raise PackThere(path=target, what=tr("another file")) from error
    if is_there:
        raise PackThere(path=target, what=tr("another file"))
    if not os.path.lexists(target):
        durable.replace(temporary, target)
    durable.sync_folder(target.parent)


# ``regraft pack``: which bases and files go into a pack, and what became of it.


Outcome = Literal["planned", "written", "unchanged"]
#: What a zip file takes for each member, besides its bytes and its name, and for its end.
_MEMBER_BYTES, _END_BYTES = 512, 1 << 16


class PackOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is packed, and where to.

    ``bases`` are names or ids (v1 or v2); empty: all. ``now_ms`` is the time that members carry.
    """

    source: Path
    target: Path
    now_ms: int
    kind: Kind | None = None
    bases: tuple[str, ...] = ()
    dry_run: bool = False


class PackedBaseReport(BaseName, frozen=True, kw_only=True):
    """A base of a pack: its v1 id where that is known, and how much of it there is."""

    legacy_id: str | None
    status: str
    model: str | None
    dimensions: int | None
    items: int
    files: int
    bytes: int


class PackReport(Report, kw_only=True):
    """What was packed: ``outcome`` is planned, written, or unchanged where the pack was there already."""

    outcome: Outcome
    bases: list[PackedBaseReport]
    left: list[Unresolved]
    files: int
    bytes: int


class _Contents(msgspec.Struct):
    """The files of a pack, and what stays out of it."""

    members: list[PackMember] = msgspec.field(default_factory=list)
    bases: list[PackedBase] = msgspec.field(default_factory=list)
    left: list[Unresolved] = msgspec.field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(member.size for member in self.members)


def pack(options: PackOptions, progress: Progress) -> PackReport:
    """Write chosen bases of a store to one file, and return what was done; the store is only read.

    Raises:
        WrongUsage, TargetNotWritable, PackThere: there is no place for it, or something else is there.
        NothingToPack: no base of it can be packed.
        NotEnoughSpace
        PlanOutdated: a file of the source was written to meanwhile.
        RegraftError: the source cannot be read.
        OSError: stopped by the system.
    """
    run = Run(command="pack", dry_run=options.dry_run, target_kind=Kind.PACK.value, target=options.target)
    _check_target(options.target)
    with (
        open_base_source(options.source, options.kind, options.bases, "pack") as source,
        durable.temporary_folder() as work,
    ):
        run.source_kind, run.source = source.store.found.kind.value, options.source
        _check_outside(source, options)
        _demand_early_room(source, options)
        contents = _contents(source, work)
        if not contents.bases:
            raise NothingToPack(path=options.source, reason=_reasons(contents))
        outcome = _carry_out(source, contents, options, progress)
    run.end()
    return PackReport(
        head=run.head(),
        outcome=outcome,
        bases=[PackedBaseReport(**msgspec.structs.asdict(base)) for base in contents.bases],
        left=contents.left,
        files=len(contents.members),
        bytes=contents.bytes,
    )


def _reasons(contents: _Contents) -> str:
    return join_list(dict.fromkeys(left.reason for left in contents.left), between=tr("; ")) or tr("it has none")


# --- where to --------------------------------------------------------------------------------------------------------


def _check_target(target: Path) -> None:
    if target.suffix.lower() != ".zip":
        raise WrongUsage(
            problem=tr("{target} is not a name for a pack", target=one_line(str(target))), hint=tr("give FILE.zip")
        )
    if target.is_dir():
        raise PackThere(path=target, what="a folder")
    if not target.parent.is_dir():
        raise TargetNotWritable(path=target, reason=tr("its folder does not exist"))


def _check_outside(source: BaseSource, options: PackOptions) -> None:
    root = options.source if options.source.is_dir() else source.store.root
    if links.is_at_or_below(options.target, root):
        raise TargetNotWritable(path=options.target, reason=tr("it lies in the source"))


# --- what goes into it -----------------------------------------------------------------------------------------------


def _contents(source: BaseSource, work: Path) -> _Contents:
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
                Unresolved(
                    finding=problem.name, reason=tr("not packed: {message_}", message_=problem.message), base=base
                )
            )
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
    row = source.bases[base]
    found = source.files(base)
    named = [(path, path.relative_to(source.folder(base)).as_posix()) for path in found.files]
    unfit = [name for _, name in named if not _is_fit(name)]
    members = [_member(base, path, name, work) for path, name in named if _is_fit(name)]
    contents.members += members
    dimensions = row.get("dimensions")
    contents.bases.append(
        PackedBase(
            id=base,
            name=source.name_of(base),
            status=str(row.get("status")),
            legacy_id=source.legacy_id(base),
            model=_text(row.get("embedding_model_id")),
            dimensions=dimensions if isinstance(dimensions, int) else None,
            items=len((source.catalog.items or {}).get(base, ())),
            files=len(members),
            bytes=sum(member.size for member in members),
        )
    )
    contents.left += _left(base, row, found.links, unfit)


def _left(base: str, row: Row, links: Sequence[str], unfit: Sequence[str]) -> Iterator[Unresolved]:
    """Yield what of a base stays out of a pack, and what is odd about what comes into it."""
    if links:
        message = tr("{links} in its folder, not followed and not packed", links=format_count(len(links), "link"))
        yield Unresolved(finding=v2.RAW_MISSING, reason=message, base=base, subject=links[0], count=len(links))
    if unfit:
        message = tr(
            "{files} with a name that no zip file can hold, not packed", files=format_count(len(unfit), "file")
        )
        yield Unresolved(
            finding=v2.RAW_MISSING, reason=message, base=base, subject=one_line(unfit[0]), count=len(unfit)
        )
    if row.get("status") == "failed":
        message = tr("it failed ({get}), and is packed as it is", get=one_line(str(row.get("error"))))
        yield Unresolved(finding=v2.BASE_FAILED, reason=message, base=base, severity="note")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _is_fit(name: str) -> bool:
    """Tell whether a name can stand in an archive: UTF-8, and no part that would lead out of it on any system."""
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
    """Return a file as it is packed: a database with a log beside it as its readers see it."""
    whole = f"{KNOWLEDGE_FOLDER}/{base}/{name}"
    if untrusted_sqlite.find_companions(links.real_path(path)) and untrusted_sqlite.is_database(path):
        copy = work / f"{base}.sqlite"
        copy_database(path, copy)
        return PackMember.of(whole, copy)
    return PackMember.of(whole, path)


# --- writing it ------------------------------------------------------------------------------------------------------


def _carry_out(source: BaseSource, contents: _Contents, options: PackOptions, progress: Progress) -> Outcome:
    manifest = Manifest(
        pack=1,
        created_at=iso_time(options.now_ms),
        source={"kind": source.store.found.kind.value},
        bases=tuple(contents.bases),
    )

    def with_files(files: tuple[PackedFile, ...]) -> Manifest:
        return msgspec.structs.replace(manifest, files=files)

    if os.path.lexists(options.target):
        with stage(progress, "Comparing", contents.bytes, "bytes"):
            _demand_identical(options.target, with_files(hash_members(contents.members, progress)))
        if not options.dry_run:
            remove_leftovers(options.target)
        return "unchanged"
    if options.dry_run:
        return "planned"
    _check_space(options.target, contents)
    with stage(progress, "Packing", contents.bytes, "bytes"):
        try:
            write_archive(options.target, contents.members, with_files, options.now_ms, progress)
        except OSError as error:
            # A full disk or a limit on file sizes concerns the pack, not the file of the source that was being read.
            if error.errno in durable.NO_ROOM:
                raise OSError(error.errno, error.strerror, os.fspath(options.target)) from error
            raise
    return "written"


def _demand_identical(target: Path, wanted: Manifest) -> None:
    """Refuse to write over a file, unless it is the very pack that would be written.

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
        raise PackThere(path=target, what=tr("a pack of something else"))
    problem = find_archive_problem(target, there)
    if problem is not None:
        raise PackThere(path=target, what=tr("the same pack, damaged ({problem}),", problem=problem))


def _demand_early_room(source: BaseSource, options: PackOptions) -> None:
    """Refuse before any base is read whole: all count that a look at their names does not keep out.

    Raises:
        NotEnoughSpace
    """
    if options.dry_run or os.path.lexists(options.target):
        return
    needed = 0
    for base in source.chosen:
        if source.problem(base, []) is None:
            needed += sum(file_paths.lstat(path).st_size for path in source.files(base).files)
    _demand_free(options.target, needed)


def _check_space(target: Path, contents: _Contents) -> None:
    names = sum(2 * len(os.fsencode(member.name)) + _MEMBER_BYTES for member in contents.members)
    _demand_free(target, contents.bytes + names + _END_BYTES + len(MANIFEST))


def _demand_free(target: Path, needed: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if needed > free:
        raise NotEnoughSpace(path=target, needed=format_bytes(needed), free=format_bytes(free))


__all__ = ["PackOptions", "PackReport", "PackedBaseReport", "pack"]
