"""The kinds of stores and sources, and which of them have something in common."""

from __future__ import annotations

from enum import StrEnum

from regraft.language import tr


class Kind(StrEnum):
    """What a path can be. The value is what output and ``--kind`` call it."""

    V1_BACKUP = "v1-backup"
    V1_EXPORT = "v1-export"
    V1_KNOWLEDGE = "v1-knowledge"
    V1_BACKUP_6 = "v1-backup-6"
    V1_PROFILE = "v1-profile"
    V1_VECTORS = "v1-vectors"
    V1_VECTOR_FOLDER = "v1-vector-folder"
    V2_BACKUP = "v2-backup"
    V2_PROFILE = "v2-profile"
    LIBRARY = "library"
    PACK = "pack"
    BASE = "base"
    INDEX = "index"
    PREVIEW = "preview-index"
    PREVIEW_LIBRARY = "preview-library"
    CODEX_MEM = "codex-mem"
    ANGEL_MEMORY = "angel-memory"
    RSCLAW = "rsclaw"


#: What a kind is called in a sentence.
KIND_NAMES = {
    Kind.V1_BACKUP: tr("a v1 backup"),
    Kind.V1_EXPORT: tr("a v1 export folder"),
    Kind.V1_KNOWLEDGE: tr("a v1 knowledge state beside its vector files"),
    Kind.V1_BACKUP_6: tr("a v1 backup of version 6"),
    Kind.V1_PROFILE: tr("a v1 profile folder"),
    Kind.V1_VECTORS: tr("the vector file of one v1 base"),
    Kind.V1_VECTOR_FOLDER: tr("a folder of v1 vector files without a state"),
    Kind.V2_BACKUP: tr("a v2 backup (version 7)"),
    Kind.V2_PROFILE: tr("a v2 profile folder"),
    Kind.LIBRARY: tr("a v2 library"),
    Kind.PACK: tr("a pack of bases"),
    Kind.BASE: tr("the folder of one v2 base"),
    Kind.INDEX: tr("the index file of one v2 base"),
    Kind.PREVIEW: tr("an index file of a preview build"),
    Kind.PREVIEW_LIBRARY: tr("a library of a preview build"),
    Kind.CODEX_MEM: tr("a database of codex-mem"),
    Kind.ANGEL_MEMORY: tr("a data folder of AngelMemory"),
    Kind.RSCLAW: tr("a knowledge base of rsclaw"),
}
#: Kinds of v2 data that are changed in place.
V2_STORES = (Kind.LIBRARY, Kind.BASE, Kind.INDEX, Kind.V2_PROFILE)
#: Kinds of other systems, each with the module that tells what its stores are (:class:`regraft.stores.systems.System`).
SYSTEM_MODULES = {
    Kind.CODEX_MEM: "regraft.formats.codex_mem.system",
    Kind.ANGEL_MEMORY: "regraft.formats.angel_memory.system",
    Kind.RSCLAW: "regraft.formats.rsclaw.system",
}
SYSTEMS = tuple(SYSTEM_MODULES)
#: Kinds whose state and vector files can be migrated.
V1_SOURCES = (Kind.V1_BACKUP, Kind.V1_BACKUP_6, Kind.V1_PROFILE, Kind.V1_EXPORT, Kind.V1_KNOWLEDGE)
#: Kinds of vector files alone, of which bases are made where the user asks for it.
V1_ORPHANS = (Kind.V1_VECTORS, Kind.V1_VECTOR_FOLDER)
#: Kinds that are migrated, too. Bases of preview builds in a v2 library, profile or backup are migrated out of it.
PREVIEW_SOURCES = (Kind.PREVIEW, Kind.PREVIEW_LIBRARY)
#: Kinds whose bases lie as v2 and preview builds lay them out.
V2_LAYOUTS = (*PREVIEW_SOURCES, Kind.V2_BACKUP, Kind.V2_PROFILE, Kind.LIBRARY, Kind.PACK, Kind.BASE, Kind.INDEX)
#: Kinds with a catalog, of which bases can be packed and installed.
BASE_SOURCES = (Kind.LIBRARY, Kind.PACK, Kind.V2_BACKUP, Kind.V2_PROFILE)
