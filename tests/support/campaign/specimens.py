"""The commands that read input of each kind.

``{in}`` in a command is the copy that was changed (``{in!}`` where the command may change it), ``{out}`` a place for
what is written, any other name in braces a companion: a copy of other input, whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from campaign import corpus
from regraft import identity

_KB = identity.base_id("kb")
#: The time that runs are told, so that what they write is the same each time.
_NOW = "2026-11-21T12:00:00.000Z"


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


READ = _lines("""
    inspect {in} --json
    inspect {in}
    check {in} --json
    check {in} -v
    check {in} --deep --json
""")
_WRITE_V1 = _lines(f"""
    migrate {{in}} --to {{out}} --yes --json --jobs 1 --now {_NOW}
    migrate {{in}} --to {{out}} --yes --json --jobs 1 --now {_NOW}
    migrate {{in}} --to {{out}} --yes --json --jobs 1 --now {_NOW}
    migrate {{in}} --to {{out}} --yes --carry-text --jobs 1 --now {_NOW}
    migrate {{in}} --to {{out}} --dry-run --json
    migrate {{in}} --to {{out}} --dry-run
""")
_V1 = (
    *READ,
    *_WRITE_V1,
    *_lines("""
    compare {in} {library} --json
    export {in} {out} --v1 --json
    rescue {profile} --v1 {in} --dry-run --json
    """),
)
_BY_WORDS = _lines("search {in} text --mode bm25 --json")
_V2 = (
    *READ,
    *_BY_WORDS,
    *_lines(f"""
    search {{in}} text --base kb --mode bm25
    search {{in}} tide --vector {{vector}} --base {_KB} --json
    export {{in}} {{out}} --json
    pack {{in}} {{out}} --yes --json
    history {{in}} --json
    history {{in}} -v
    compare {{v1}} {{in}} --json
    gc {{in}} --dry-run --json
    repair {{in}} --dry-run
    upgrade {{in}} --dry-run --json
    reconcile {{in}} --dry-run --json
    undo {{in}} --dry-run --json
    install {{in}} --profile {{fresh!}} --yes --json
    install {{in}} --profile {{fresh}} --dry-run
    """),
)
CHANGES = _lines("""
    gc {in!} --yes --grace 0 --json
    repair {in!} --yes --json
    upgrade {in!} --yes --json
    undo {in!} --yes --json
    reconcile {in!} --yes --json
    restore {in!} --config {config} --embedder mine --yes --json
    backfill {in!} --config {config} --embedder mine --yes --json
""")
_LIBRARY = (
    *_V2,
    *CHANGES,
    *_lines(f"""
    migrate {{v1}} --to {{in!}} --yes --json --jobs 1 --now {_NOW}
    import {{parquet}} --to {{in!}} --yes --json --now {_NOW}
    """),
)
_PROFILE = (
    *_V2,
    *CHANGES,
    *_lines("""
    rescue {in!} --yes --json
    rescue {in} --dry-run -v
    install {library} --profile {in!} --yes --json
    """),
)
_BASE = (
    *READ,
    *_BY_WORDS,
    *_lines("""
    gc {in!} --yes --json
    repair {in!} --yes --json
    upgrade {in!} --yes --json
    undo {in!} --yes --json
    export {in} {out} --json
    """),
)
_PARQUET = _lines(f"""
    import {{in}} --to {{out}} --yes --json --now {_NOW}
    import {{in}} --to {{out}} --dry-run --json
    import {{in}} --to {{out}} --yes
    inspect {{in}} --json
""")
CODEX_CHANGES = _lines("""
    repair {in!} --yes --json
    reconcile {in!} --yes --config {config} --embedder mine --json
    rebuild {in!} --config {config} --embedder mine --yes --json
    clear-failed {in!} --yes --json
    backfill {in!} --config {config} --embedder mine --all-projects --yes --json
    undo {in!} --yes --json
    gc {in!} --yes
""")
_CODEX = (*READ, *CODEX_CHANGES, "search {in} body --json", "history {in}")
ANGEL_CHANGES = _lines("""
    repair {in!} --yes --json
    gc {in!} --yes --json
    undo {in!} --yes --json
""")
_ANGEL = (
    *READ,
    *ANGEL_CHANGES,
    *_lines("""
    recall {in} 1 --json
    recall {in} 2
    reconcile {in} --dry-run --json
    history {in}
    """),
)
KB_CHANGES = _lines("""
    gc {in!} --yes --json
    reconcile {in!} --yes --json
    fix {in!} --yes --json
    undo {in!} --yes --json
""")
_RSCLAW = (
    *READ,
    *KB_CHANGES,
    *_lines("""
    migrate {in} --to {out} --yes --json
    migrate {in} --to {out} --visible-to user:anna --carry-text --yes
    export {in} {out}.parquet --json
    search {in} paragraph --json
    search {in} paragraph --as user:anna --as agent:a1
    """),
)
_CONFIG = _lines("""
    backfill {lacking!} --config {in} --embedder mine --yes --json
    backfill {lacking!} --config {in} --embedder mine --yes
    search {library} text --embedder mine --config {in} --base kb --json
""")
_ANSWERS = _lines("""
    backfill {in!} --config {config} --embedder mine --yes --json
    backfill {in!} --config {config} --embedder mine --yes
    search {in} tide --config {config} --embedder mine --base other --json
""")
_QUERIES = _lines("""
    compare {v1} {library} --queries {in} --json
    compare {v1} {library} --queries {in}
""")


@dataclass(frozen=True)
class Specimen:
    """Input of one kind: who makes it in a folder, which path of it commands are given, how often it comes."""

    make: Callable[[Path], object]
    subject: str
    commands: tuple[str, ...]
    weight: int = 10
    #: Patterns of the files that are changed most.
    prefer: tuple[str, ...] = ()
    #: Makes it with other values inside, in half of the cases; told where the whole one is.
    craft: Callable[[Random, Path, Path], str] | None = None


_STATE = ("redux.json", "KnowledgeBase/*", "files.json")
_STORAGE = ("*.log", "MANIFEST*", "CURRENT", "metadata.json")
_DATABASES = ("index.sqlite", "catalog.sqlite")
_LIVE = ("cherrystudio.sqlite*", "index.sqlite")
_LEDGER = ("ledger.sqlite", ".regraft/*", "report.json", ".regraft/*/*/*")
_STRANDED = ("cherrystudio.sqlite*", "redux.json", "KnowledgeBase/*")
_NOTES = ("*.db", "*.sqlite3", "*.json", "*.md")
SPECIMENS: dict[str, Specimen] = {
    "v1 export": Specimen(corpus.export_input, "v1", _V1, 20, _STATE),
    "v1 vector file": Specimen(corpus.export_input, "v1", _V1, 20, ("KnowledgeBase/*",)),
    "v1 vector file alone": Specimen(corpus.export_input, "v1/KnowledgeBase/kb", READ, 4, ("KnowledgeBase/kb",)),
    "v1 backup, zip": Specimen(corpus.zip_input, "backup.zip", _V1, 20),
    "v1 backup, unpacked": Specimen(corpus.unpacked, "backup", _V1),
    "v1 profile": Specimen(corpus.profile_input, "profile", _V1, 20, _STORAGE, corpus.craft_profile),
    "v1 backup 6, unpacked": Specimen(corpus.direct, "backup", _V1, 8, _STORAGE),
    "v1 backup 6, zip": Specimen(corpus.direct_zip, "backup.zip", _V1, 8),
    "preview profile": Specimen(corpus.preview_profile, "profile", (*READ, *_WRITE_V1, *_BY_WORDS), 15),
    "library": Specimen(corpus.used, "library", _LIBRARY, 30, _DATABASES),
    "ledger": Specimen(corpus.used, "library", (*CHANGES, *_LIBRARY), 30, _LEDGER),
    "library, older": Specimen(corpus.older_library, "library", _LIBRARY, 15, _DATABASES),
    "base": Specimen(corpus.index_input, "base", _BASE, 8),
    "profile, before release": Specimen(corpus.profile_of("before release"), "profile", _PROFILE, 8, _LIVE),
    "profile, 2.0.0": Specimen(corpus.profile_of("2.0.0"), "profile", _PROFILE, 4, _LIVE),
    "profile, 2.1": Specimen(corpus.profile_of("2.1"), "profile", _PROFILE, 12, _LIVE),
    "profile with tombstones": Specimen(corpus.tombstones, "profile", _PROFILE, 12, _STRANDED),
    "backup 7": Specimen(corpus.backup_7, "backup.zip", _V2),
    "pack": Specimen(corpus.pack_input, "pack.zip", _V2, 15),
    "parquet": Specimen(corpus.parquet_input, "rows.parquet", _PARQUET, 15, (), corpus.craft_parquet),
    "codex-mem": Specimen(corpus.codex_input, "codex-mem.db", _CODEX, 25),
    "AngelMemory": Specimen(corpus.angel_input, "angel", _ANGEL, 20, _NOTES),
    "rsclaw": Specimen(corpus.rsclaw_input, "kb", _RSCLAW, 25, ("kb.redb", "*.md", "*.json")),
    "configuration": Specimen(corpus.config_input, "regraft.yaml", _CONFIG, 15, (), corpus.craft_config),
    "query vectors": Specimen(corpus.queries, "queries.jsonl", _QUERIES, 5),
    "a query vector": Specimen(
        corpus.vector_input, "vector.json", (f"search {{library}} text --vector {{in}} --base {_KB} --json",), 5
    ),
    "embedder answers": Specimen(corpus.lacking_input, "library", _ANSWERS, 15),
}
#: Whole input beside that under test: who makes it, and which path of it a command is given.
COMPANIONS: dict[str, tuple[Callable[[Path], object], str]] = {
    "library": (corpus.migrated, "library"),
    "v1": (corpus.export_input, "v1"),
    "lacking": (corpus.lacking_input, "library"),
    "fresh": (corpus.fresh, "profile"),
    "profile": (corpus.profile_of("2.1"), "profile"),
    "parquet": (corpus.parquet_input, "rows.parquet"),
    "vector": (corpus.vector_input, "vector.json"),
}
