"""The kinds of stores and sources, and groups of them."""

from __future__ import annotations

from enum import StrEnum

from regraft.language import tr


class Kind(StrEnum):
    """The kind of a store or source. The value is used in output and by ``--kind``.

    This is the only list of other systems than Cherry Studio: a member with a ``system`` has a module
    ``regraft.formats.SYSTEM.system`` with its :class:`regraft.stores.systems.System`, and, where it has them,
    ``checks.SYSTEM.inspect`` and ``checks.SYSTEM.findings``, ``repair.SYSTEM`` and ``migrators.SYSTEM``.
    """

    #: The kind in a sentence.
    label: str
    #: The name of the system's packages; empty for Cherry Studio.
    system: str

    def __new__(cls, value: str, label: str = "", system: str = "") -> Kind:
        """Make a member whose value is also its text."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.label = label
        member.system = system
        return member

    V1_BACKUP = "v1-backup", tr("a v1 backup")
    V1_EXPORT = "v1-export", tr("a v1 export folder")
    V1_KNOWLEDGE = "v1-knowledge", tr("a v1 knowledge state beside its vector files")
    V1_BACKUP_6 = "v1-backup-6", tr("a v1 backup in the newer backup format (format 6)")
    V1_PROFILE = "v1-profile", tr("a v1 profile folder")
    V1_VECTORS = "v1-vectors", tr("the vector file of one v1 base")
    V1_VECTOR_FOLDER = "v1-vector-folder", tr("a folder of v1 vector files without a state")
    V2_BACKUP = "v2-backup", tr("a v2 backup (version 7)")
    V2_PROFILE = "v2-profile", tr("a v2 profile folder")
    LIBRARY = "library", tr("a v2 library")
    PACK = "pack", tr("a pack of bases")
    BASE = "base", tr("the folder of one v2 base")
    INDEX = "index", tr("the index file of one v2 base")
    PREVIEW = "preview-index", tr("an index file of a preview build")
    PREVIEW_LIBRARY = "preview-library", tr("a library of a preview build")
    CODEX_MEM = "codex-mem", tr("a database of codex-mem"), "codex_mem"
    ANGEL_MEMORY = "angel-memory", tr("a data folder of AngelMemory"), "angel_memory"
    RSCLAW = "rsclaw", tr("a knowledge base of rsclaw"), "rsclaw"
    CHROMA = "chroma", tr("a folder of Chroma"), "chroma"


#: Each kind in a sentence.
KIND_NAMES = {kind: kind.label for kind in Kind}
#: v2 data that is changed in place
V2_STORES = (Kind.LIBRARY, Kind.BASE, Kind.INDEX, Kind.V2_PROFILE)
#: Other systems than Cherry Studio.
SYSTEMS = tuple(kind for kind in Kind if kind.system)
#: v1 sources: a state and vector files, which can be migrated
V1_SOURCES = (Kind.V1_BACKUP, Kind.V1_BACKUP_6, Kind.V1_PROFILE, Kind.V1_EXPORT, Kind.V1_KNOWLEDGE)
#: Vector files without a state; they become bases only if the user asks for it.
V1_ORPHANS = (Kind.V1_VECTORS, Kind.V1_VECTOR_FOLDER)
#: Also migrated; bases of preview builds inside of a v2 library, profile or backup are migrated out of it.
PREVIEW_SOURCES = (Kind.PREVIEW, Kind.PREVIEW_LIBRARY)
#: Kinds with the folder layout of v2 and of preview builds.
V2_LAYOUTS = (*PREVIEW_SOURCES, Kind.V2_BACKUP, Kind.V2_PROFILE, Kind.LIBRARY, Kind.PACK, Kind.BASE, Kind.INDEX)
#: Kinds with a catalog, whose bases can be packed and installed.
BASE_SOURCES = (Kind.LIBRARY, Kind.PACK, Kind.V2_BACKUP, Kind.V2_PROFILE)
