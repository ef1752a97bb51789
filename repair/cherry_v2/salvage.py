"""Plan ``regraft repair --salvage``: rewrite a damaged index file from its readable rows.

Without ``--salvage`` the plan only counts what could be salvaged, and recommends the command
(``docs/formats/index.md``, "Salvage").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

import apsw
import msgspec
from msgspec import structs

from checks.audit.findings import FINDINGS, Finding
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import get_indexed_path
from regraft.disk import durable, links, untrusted_sqlite
from regraft.disk.durable import NO_ROOM
from regraft.errors import PlanOutdated, WorkFolderTooSmall
from regraft.formats.cherry_v2 import salvage
from regraft.formats.cherry_v2.catalog_reader import Row, item_name, parse_item_data
from regraft.formats.cherry_v2.layout import INDEX_FILE
from regraft.formats.cherry_v2.layout import StoreFile as Place
from regraft.formats.cherry_v2.salvage import Expected, Refused, Tally
from regraft.language import format_count, join_first, tr
from regraft.text import one_line
from repair.changes import files
from repair.changes.plan import Action, FileChange, Plan, SalvagedFile, SalvagedItem, SalvagedItems, Unresolved
from repair.changes.store import Store

#: Findings of a file that SQLite cannot open or cannot read to the end.
DAMAGED = (v2.UNREADABLE, v2.CORRUPT)
#: Number of items that a message names.
_MAX_NAMED = 5


class DamagedIndex(msgspec.Struct, frozen=True, kw_only=True):
    """A damaged index file, the audit's findings about it, and what the catalog has of its base."""

    store: Store
    base: str
    findings: Sequence[Finding]
    row: Row | None
    items: Sequence[Row] | None
    now_ms: int

    @property
    def place(self) -> Place:
        """The index file."""
        return self.store.stores[self.base]

    @property
    def path(self) -> Path:
        """Path of the index file."""
        return self.store.root / self.place.name

    @property
    def folder(self) -> str | None:
        """Folder of the base, relative to the store's root; None if the index file shares a folder with other bases."""
        return str(PurePosixPath(self.place.name).parent) if self.place.name.endswith(INDEX_FILE) else None

    @property
    def expected(self) -> Expected:
        """What the salvaged rows must match, by the file's path and the catalog."""
        dimensions = None if self.row is None else self.row.get("dimensions")
        paths = None
        if self.items is not None:
            paths = {str(item.get("id")): get_indexed_path(item) for item in self._indexed_items()}
        return Expected(
            base_id=self.place.base_id,
            paths=paths,
            dimensions=dimensions if isinstance(dimensions, int) else None,
            now_ms=self.now_ms,
        )

    def _indexed_items(self) -> Iterator[Row]:
        """Yield the item rows of the base that may have a text in the index."""
        yield from (
            item for item in self.items or () if item.get("type") != "directory" and item.get("status") != "deleting"
        )

    def parts(self, tally: Tally) -> SalvagedItems:
        """Sort the completed items by how much of their text was salvaged; ``tally`` counts the salvaged rows."""
        completed = [item for item in self._indexed_items() if item.get("status") == "completed"]
        partial: list[SalvagedItem] = []
        lost: list[SalvagedItem] = []
        whole = 0
        for item in completed:
            key = str(item.get("id"))
            salvaged_item = SalvagedItem(id=key, name=item_name(item.get("type"), parse_item_data(item)) or key)
            if tally.traced is not None and key not in tally.traced:
                # The file had no rows of this item.
                continue
            if not tally.units.get(key):
                lost.append(salvaged_item)
            elif key in tally.partial:
                partial.append(salvaged_item)
            else:
                whole += 1
        return SalvagedItems(whole=whole, partial=partial, lost=lost)


def is_damaged(findings: Sequence[Finding]) -> bool:
    """Whether the findings about a base say that SQLite cannot read its index file."""
    return any(one.name in DAMAGED for one in findings)


def suggest_salvage(index: DamagedIndex) -> list[Unresolved]:
    """Report a damaged index, with how many rows can be salvaged and the command for that."""
    line = index.store.command_line("repair", "--salvage", *index.store.base_option(index.base))
    try:
        with salvage.salvage_index(index.path, index.expected) as found:
            tally = found.tally
    except (Refused, apsw.Error, OSError) as error:
        return [_leave(one, _describe_error(error)) for one in _file_findings(index)]
    offered = tr(
        "{salvaged:,} of about {about:,} texts and vectors can be salvaged with {option}",
        salvaged=tally.salvaged,
        about=tally.about,
        option="--salvage",
    )
    return [_leave(one, offered, repair=line) for one in _file_findings(index)]


def plan(index: DamagedIndex) -> Plan:
    """Plan to rewrite an index from its readable rows. Without any, the file is left as it is."""
    made = Plan()
    stamps = {name: files.file_stamp(index.store.root / name) for name in index_file_names(index)}
    try:
        with salvage.salvage_index(index.path, index.expected) as found:
            tally = found.tally
    except (Refused, apsw.Error, OSError) as error:
        made.left += [_leave(one, _describe_error(error)) for one in _file_findings(index)]
        return made
    made.read |= stamps
    beside = list(stamps)[1:]
    if beside and index.folder is None:
        reason = tr("it has a log or journal ({name})", name=beside[0])
        made.left += [_leave(one, reason) for one in _file_findings(index)]
        return made
    made.changes.append(_rewrite_change(index, tally))
    made.resolves |= {(name, index.base) for name in DAMAGED}
    parts = index.parts(tally)
    made.left += _find_losses(index, tally, parts)
    salvaged_item = SalvagedFile(
        base=index.base,
        path=index.place.name,
        rows=tally.rows,
        deleted=tally.deleted,
        pages=tally.pages,
        items=parts,
    )
    made.salvaged.append(salvaged_item)
    return made


def index_file_names(index: DamagedIndex) -> Iterator[str]:
    """Yield the path of the index file, and of a log or journal beside it that has content, relative to the root."""
    yield index.place.name
    for beside in untrusted_sqlite.find_companions(links.real_path(index.path)):
        yield index.place.name + beside.name[len(links.real_path(index.path).name) :]


def _file_findings(index: DamagedIndex) -> Iterator[Finding]:
    """Yield the findings that say that the file is damaged."""
    yield from (one for one in index.findings if one.name in DAMAGED)


def _leave(finding: Finding, why: str, *, repair: str | None = None) -> Unresolved:
    """Report that a finding of the damaged file stays, and why; ``repair`` is a command line that may help."""
    reason = tr("{what}: {why}", what=finding.message, why=why)
    return Unresolved.of(finding, reason, repair=finding.repair if repair is None else repair)


def _describe_error(error: Exception) -> str:
    """Say that nothing can be salvaged, and why; errors because of a full disk are raised again."""
    if isinstance(error, WorkFolderTooSmall) or (isinstance(error, OSError) and error.errno in NO_ROOM):
        raise error
    return tr("nothing can be salvaged: {reason}", reason=getattr(error, "strerror", None) or error)


def _rewrite_change(index: DamagedIndex, tally: Tally) -> FileChange:
    """Make the change that writes the salvaged rows, as counted by ``tally``, to a new index file."""
    bodies, vectors = tally.rows["bodies"], tally.rows["embeddings"]
    message = tr(
        (
            "rewrite the index from the readable rows of the damaged file: {texts:,} of about {of_texts:,} texts, "
            "{vectors:,} of about {of_vectors:,} vectors"
        ),
        texts=bodies.in_new_file,
        of_texts=bodies.about,
        vectors=vectors.in_new_file,
        of_vectors=vectors.about,
    )
    action = Action(
        action="salvage-index",
        message=message,
        base=index.base,
        subject=index.place.name,
        count=tally.salvaged,
        bytes=tally.bytes,
        finding=next(one.name for one in _file_findings(index)),
    )

    def make(new: Path) -> None:
        """Write the salvaged rows; refused if another salvage finds other rows than the plan."""
        with salvage.salvage_index(index.path, index.expected) as found:
            if found.tally != tally:
                raise PlanOutdated(path=index.path, reason=tr("it was changed in the meantime"))
            found.write(new, index.now_ms)

    return plan_replacement(index, (action,), make, tally.bytes)


def plan_replacement(
    index: DamagedIndex, actions: tuple[Action, ...], make: Callable[[Path], None], size: int
) -> FileChange:
    """Make the change that replaces a damaged index file, which is kept for undo.

    With a log or journal beside it, its whole folder is replaced: SQLite would apply the log to the new file.

    Args:
        index: the damaged index.
        actions: the actions of the change.
        make: writes the new index file.
        size: approximate number of bytes to write.
    """

    def make_file(new: Path) -> None:
        """Write the new index file; refused if another program has the damaged one open."""
        # Refuses if another program has the file open, as far as SQLite can tell. If it cannot open the file, other
        # programs cannot either.
        with suppress(apsw.Error):
            files.flush_log(index.path)
        make(new)

    def make_folder(new: Path) -> None:
        """Copy the folder of the index without the index, and write the new one there."""
        durable.copy_tree(index.path.parent, new, without=(index.path.name, *untrusted_sqlite.COMPANION_SUFFIXES))
        make(new / index.path.name)
        durable.copy_mode(index.path, new / index.path.name)

    with_folder = index.folder is not None and len(list(index_file_names(index))) > 1
    # Do not checkpoint the damaged file: SQLite may not be able to open it.
    path, chosen = (str(index.folder), make_folder) if with_folder else (index.place.name, make_file)
    return FileChange(path=path, actions=actions, make=chosen, bytes=size, as_is=True)


def _find_losses(index: DamagedIndex, tally: Tally, parts: SalvagedItems) -> Iterator[Unresolved]:
    """Report the texts and vectors that could not be salvaged, with commands that restore them.

    ``tally`` counts the salvaged rows, ``parts`` are the items by how much of them was salvaged.
    """
    # A base without a model only lacks vectors if it had some.
    has_model = index.row is not None and index.row.get("embedding_model_id") is not None
    if tally.lacking and (has_model or tally.rows["embeddings"].about):
        reason = tr(
            "the vectors of {texts} are lost; they have to be embedded again", texts=format_count(tally.lacking, "text")
        )
        words = FINDINGS[v2.VECTOR_MISSING].command
        line = index.store.command_line(*words, *index.store.base_option(index.base))
        repair = line if index.row is not None else None
        left = Unresolved.registered(v2.VECTOR_MISSING, reason, base=index.base, count=tally.lacking)
        yield structs.replace(left, repair=repair)
    for finding, items, message in (
        (v2.ITEM_NO_MATERIAL, parts.lost, _LOST),
        (v2.UNIT_MISSING, parts.partial, _PARTIAL),
    ):
        if items:
            names = join_first([one_line(item.name) for item in items], _MAX_NAMED)
            reason = tr(message, items=format_count(len(items), "item"), names=names)
            yield Unresolved.registered(finding, reason, base=index.base, count=len(items))
    if tally.unnamed:
        reason = tr(
            "{materials} lost their paths; the item's id is used until the catalog has another path",
            materials=format_count(len(tally.unnamed), "material"),
        )
        yield Unresolved.registered(v2.MATERIAL_PATH, reason, base=index.base, count=len(tally.unnamed))


_LOST = tr("{items} lost all text: {names}. Index them again in the application")
_PARTIAL = tr("{items} lost part of their text: {names}. Index them again in the application")
