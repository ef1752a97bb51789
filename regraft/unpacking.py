"""An archive of v2 data as a folder: what is needed of it, extracted member by member and removed at the end.

Names and sizes were checked as a whole when the archive was opened (:class:`regraft.tree.ZipTree`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from regraft.errors import ArchiveUnsafe, SourceUnreadable
from regraft.formats.cherry_v1.backup import inner_folder
from regraft.formats.cherry_v2 import layout, pack
from regraft.formats.cherry_v2.library_report import REPORT_FILE
from regraft.language import tr
from regraft.ledger import durable, ledger
from regraft.locate import Located
from regraft.records import replace
from regraft.room import demand_room
from regraft.sqlite import TRACES
from regraft.tree import FolderTree, ZipTree, join

#: Small files beside a catalog that say where its bases come from.
_BESIDE = (pack.MANIFEST, REPORT_FILE, "metadata.json")


@contextmanager
def on_disk(source: Located, bases: Collection[str] = (), *, raw: bool = True) -> Iterator[Located]:
    """Give an archive of v2 data as a folder of the same kind; a folder as it is.

    Args:
        source: v2 data; its ``path`` stays the archive's.
        bases: ids of the only bases whose folders are needed; empty: all.
        raw: whether the files of bases are needed too, not only their indexes.

    Yields:
        The source over a temporary folder. ``damaged`` has the members that could not be extracted.

    Raises:
        WorkFolderTooSmall: the temporary folder has no room for it.
        ArchiveUnsafe: two of its members would be one file here.
        OSError: the temporary folder cannot be written.
    """
    tree = source.tree
    if not isinstance(tree, ZipTree):
        yield source
        return
    inside = inner_folder(tree)
    needed = dict.fromkeys(_needed(source, tree, inside, frozenset(bases), raw))
    names = [name for name in needed if not tree.is_link(name)]
    with durable.temporary_folder() as folder:
        demand_room(folder, sum(tree.size(name) for name in names))
        damaged, digests = {}, {}
        is_pack = tree.kind(join(inside, pack.MANIFEST)) == "file"
        for name in names:
            own = PurePosixPath(name).relative_to(inside or ".")
            try:
                digest = _extract(tree, name, folder / own, hashed=is_pack)
                if digest is not None:
                    digests[str(own)] = digest
            except SourceUnreadable as error:
                damaged[str(own)] = str(error.facts["reason"])
        extracted = FolderTree(folder)
        stores = layout.find_stores(extracted, "")
        # Where no base has a folder, one is looked for in the place that the layout gives it.
        place = str(PurePosixPath(source.stores.bases).relative_to(inside)) if inside else source.stores.bases
        yield replace(source, tree=extracted, stores=replace(stores, bases=place), damaged=damaged, digests=digests)


def _beside_bases(catalog: str | None, tree: ZipTree, inside: str) -> Iterator[str]:
    """Yield the catalog with its traces, and what else lies beside the bases."""
    names = [] if catalog is None else [f"{catalog}{end}" for end in ("", *TRACES)]
    names += [join(inside, beside) for beside in _BESIDE]
    yield from (name for name in names if tree.kind(name) == "file")


def _needed(source: Located, tree: ZipTree, inside: str, bases: frozenset[str], raw: bool) -> Iterator[str]:
    stores = source.stores
    yield from _beside_bases(stores.catalog, tree, inside)
    own = {store.name for store in (*stores.current, *stores.preview)}
    start = len(join(stores.bases, "x")) - 1
    # A source without a folder of bases has anything at its root.
    has_bases = own or PurePosixPath(stores.bases).name == layout.KNOWLEDGE_FOLDER
    for name in tree.files(stores.bases) if has_bases else ():
        base, _, rest = name[start:].partition("/")
        if (not bases or base in bases or layout.base_id_of(name) in bases) and _is_needed(name, rest, own, raw):
            yield name


def _is_needed(name: str, rest: str, own: Collection[str], raw: bool) -> bool:
    """Tell whether a file below the folder of all bases is read: vector files of v1 beside those of bases are not."""
    if not rest:
        return name in own
    return raw or rest.startswith(f"{layout.INDEX_FILE}")


def _extract(tree: ZipTree, name: str, target: Path, *, hashed: bool) -> str | None:
    """Extract a member to a file that is not there yet, and return its checksum where that is wanted."""
    try:
        durable.make_folders(target.parent, flush=False)
        durable.open_binary(target, "xb").close()
        if hashed:
            return tree.extract_hashed(name, target)
        tree.extract(name, target)
    except SourceUnreadable:
        durable.remove(target, missing_ok=True)
        raise
    except (FileExistsError, NotADirectoryError) as error:
        raise ArchiveUnsafe(
            path=tree.path, reason=tr("{name} and another member are one file on this system", name=name)
        ) from error
    return None


def is_pristine(root: Path) -> bool:
    """Tell whether an unpacked pack is as it was packed, as far as regraft knows: no run has changed it since."""
    return not (root / ledger.FOLDER).exists()
