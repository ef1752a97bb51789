"""The options of every command, as values: one struct per command.

The functions of :mod:`regraft.api` take them, and the command line builds its options from them: one option per field,
named after the field unless :func:`_option` names another. The limits of a field are checked wherever a struct is
decoded, or given to a function of the API.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from regraft.kinds import Kind
from regraft.language import tr

#: The lowest severity of a finding or notice that makes the exit status 1.
FailOn = Literal["error", "warning", "note", "never"]
#: Days that removed files, and the data for ``regraft undo``, are kept.
GRACE_DAYS = 14


def _option(text: str, metavar: str | None = None, *, option: str = "", off: str = "") -> Meta:
    """Describe a field of an options struct, for the command line and its help.

    Args:
        text: the help of its command line option.
        metavar: what the help calls its value.
        option: names of its option, separated by a blank; default: the name of the field.
        off: the name of the flag that sets the field to False.
    """
    return Meta(title=metavar, description=text, extra={"option": option, "off": off})


# Fields that several commands have.

Bases = Annotated[tuple[str, ...], _option(tr("Only this base; may be repeated."), "ID", option="--base")]
PlannedBases = Annotated[
    tuple[str, ...], _option(tr("Only this base (v1 or v2 id); may be repeated."), "ID", option="--base")
]
Only = Annotated[tuple[str, ...], _option(tr("Only findings of this name; may be repeated."), "NAME")]
DryRun = Annotated[bool, _option(tr("Show the plan; change nothing."))]
#: Unix time in milliseconds; None: the time of the call.
AgesAt = Annotated[
    int | None,
    _option(tr("The time to which ages are relative, ISO 8601 with Z. [default: now]"), "TIME", option="--now"),
]
RunTime = Annotated[int | None, _option(tr("The run's time, ISO 8601 with Z. [default: now]"), "TIME", option="--now")]
MapModel = Annotated[
    dict[str, str],
    _option(
        tr(
            "Treat vectors of model OLD (or of the v1 base or vector file OLD) as those of model NEW; ids are "
            "provider::model."
        ),
        "OLD=NEW",
    ),
]
RecreateModel = Annotated[
    tuple[str, ...],
    _option(tr("Migrate bases of model ID, which v1 no longer lists: the model is created again."), "ID"),
]
RecreateProvider = Annotated[
    tuple[str, ...], _option(tr("Create this provider if the profile lacks it: disabled, without keys."), "ID")
]
AsNew = Annotated[bool, _option(tr("Install a base that exists already as a new base beside it."))]
AdoptOrphans = Annotated[
    bool,
    _option(tr("v1: make a base of each vector file that no base names; --map-model FILE=MODEL names its model.")),
]
Salvage = Annotated[
    bool,
    _option(
        tr(
            "Migrate the rows of damaged vector files that can be verified, and the intact members of a "
            "damaged zip archive; report the others."
        )
    ),
]
VisibleTo = Annotated[
    tuple[str, ...],
    _option(
        tr("rsclaw: also documents for user:ID, agent:ID or channel:ID; may be repeated.  [default: everybody's]"),
        "WHO",
    ),
]
Config = Annotated[
    Path | None, _option(tr("The configuration file with the embedders.  [default: regraft.yaml]"), "FILE")
]
Embedder = Annotated[
    str | None,
    _option(tr("Name of the embedder in the configuration; optional if only one fits."), "NAME"),
]
Reuse = Annotated[
    tuple[Path, ...],
    _option(
        tr("Take vectors from this store, backup or export instead of sending their texts; may be repeated."), "PATH"
    ),
]
#: Whether the sources in the configuration are used too.
ReuseConfigured = Annotated[
    bool, _option(tr("Do not use the sources of vectors in the configuration."), off="--no-reuse")
]
Limit = Annotated[Annotated[int, Meta(ge=1)] | None, _option(tr("Embed at most N texts."), "N")]
MaxRequests = Annotated[Annotated[int, Meta(ge=1)] | None, _option(tr("Send at most N requests."), "N")]
#: In the currency of the configured price.
MaxCost = Annotated[Annotated[float, Meta(gt=0)] | None, _option(tr("Spend at most N, at the configured price."), "N")]
Probe = Annotated[
    bool,
    _option(tr("Do not check first that the embedder has the model of the existing vectors."), off="--no-probe"),
]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of every command that reads a path; ``kind`` None: recognize it."""

    kind: Annotated[
        Kind | None,
        _option(tr("What PATH is, if it is not recognized correctly: v1-backup, v1-export, library…"), "KIND"),
    ] = None


# Commands that look.


class InspectOptions(Options, frozen=True, kw_only=True):
    """Options of ``regraft inspect``."""

    items: Annotated[bool, _option(tr("List every item of every base; of AngelMemory, every record and vector."))] = (
        False
    )
    now_ms: AgesAt = None


class CheckOptions(Options, frozen=True, kw_only=True):
    """Options of ``regraft check``; those on models and orphans are for v1 sources, ``level`` is for v2 data."""

    only: Only = ()
    #: ``--quick`` and ``--deep`` of the command line.
    level: Literal["quick", "default", "deep"] = "default"
    max_duration: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        _option(tr("v2: stop after SECONDS, with the findings so far."), "SECONDS"),
    ] = None
    part: Annotated[
        str | None,
        _option(
            tr(
                "v2: read only this part of all rows, and begin where the last run ended. Writes a state file. For "
                "example 1/20, or 5%."
            ),
            "PART",
        ),
    ] = None
    state: Annotated[
        Path | None,
        _option(tr("With --part: the file with its state.  [default: .regraft/check.sqlite in the store]"), "FILE"),
    ] = None
    metrics: Annotated[Path | None, _option(tr("Write what was found to FILE, as Prometheus metrics."), "FILE")] = None
    now_ms: AgesAt = None
    adopt_orphans: AdoptOrphans = False
    bases: PlannedBases = ()
    map_model: MapModel = {}
    recreate_model: RecreateModel = ()


class SearchOptions(Options, frozen=True, kw_only=True):
    """Options of ``regraft search``."""

    base: Annotated[str | None, _option(tr("Only this base (its name, v1 or v2 id).  [default: all]"), "NAME")] = None
    mode: Annotated[
        Literal["vector", "bm25", "hybrid", "simple"] | None,
        _option(
            tr(
                "By words (bm25), by meaning (vector), or both (hybrid); notes of AngelMemory by tags (simple) or by "
                "meaning.  [default: both where the base has a model, else by words]"
            )
        ),
    ] = None
    count: Annotated[
        Annotated[int, Meta(ge=1, le=10_000)] | None,
        _option(tr("Maximum number of hits.  [default: the base's setting, else 10]"), "N", option="-k"),
    ] = None
    alpha: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        _option(tr("Weight of search by meaning in hybrid mode.  [default: 0.5]"), "A"),
    ] = None
    #: The vector of the query; the command line reads it from a file.
    vector: tuple[float, ...] | None = None
    embedder: Annotated[
        str | None,
        _option(tr("Embed the query with this embedder of the configuration; only the query is sent."), "NAME"),
    ] = None
    config: Config = None
    as_: Annotated[
        tuple[str, ...],
        _option(
            tr(
                "rsclaw: also search what user:ID, agent:ID or channel:ID may see; may be repeated.  [default: "
                "global documents]"
            ),
            "WHO",
            option="--as",
        ),
    ] = ()
    raw: Annotated[bool, _option(tr("Search the index alone, without the settings and rules of the catalog."))] = False


class RecallOptions(Options, frozen=True, kw_only=True):
    """Options of ``regraft recall``; ``first`` and ``last`` are line numbers from 1 on, both included."""

    first: int | None = None
    last: int | None = None
    token_budget: Annotated[
        Annotated[int, Meta(ge=1)] | None, _option(tr("At most about N tokens: lines at the end are omitted."), "N")
    ] = None


class CompareOptions(Options, frozen=True, kw_only=True):
    """Options of ``regraft compare``; ``kind`` is about the first path."""

    sample: Annotated[
        Annotated[int, Meta(ge=1, le=100_000)],
        _option(tr("Without --queries: how many vectors of each base are used as queries."), "N"),
    ] = 20
    count: Annotated[
        Annotated[int, Meta(ge=1, le=10_000)],
        _option(tr("How many hits of each query are compared."), "N", option="-k"),
    ] = 10
    bases: PlannedBases = ()
    map_model: MapModel = {}
    recreate_model: RecreateModel = ()


class CertifyOptions(Options, frozen=True, kw_only=True):
    """Options of ``regraft certify``; ``kind`` and ``bases`` are about A. Texts are only sent with an embedder."""

    sample: Annotated[
        Annotated[int, Meta(ge=1, le=100_000)],
        _option(tr("How many texts of each base are used as queries."), "N"),
    ] = 2_000
    all_: Annotated[bool, _option(tr("Use every text as a query; takes long."), option="--all")] = False
    bases: PlannedBases = ()
    config: Config = None
    embedder: Annotated[
        str | None,
        _option(tr("Also embed 32 texts of each base again with this embedder of the configuration."), "NAME"),
    ] = None
    limit: Limit = None
    max_requests: MaxRequests = None
    max_cost: MaxCost = None


class EmbeddersOptions(Options, frozen=True, kw_only=True):
    """Options of ``regraft embedders``."""

    config: Config = None
    bases: Bases = ()
    #: True: send two short texts to every embedder; a name: to that one.
    test: bool | str = False
    write: Annotated[
        bool, _option(tr("Write the suggested configuration to the configuration file, which must not exist yet."))
    ] = False


# Commands that move bases.


class MigrateOptions(Options, frozen=True, kw_only=True):
    """Options of ``regraft migrate``."""

    dry_run: Annotated[bool, _option(tr("Show the plan and the report; change nothing."))] = False
    bases: PlannedBases = ()
    map_model: MapModel = {}
    recreate_model: RecreateModel = ()
    visible_to: VisibleTo = ()
    jobs: Annotated[
        Annotated[int, Meta(ge=1, le=64)] | None,
        _option(tr("Bases migrated in parallel. [default: cores, up to 4]"), "N"),
    ] = None
    while_running: Annotated[bool, _option(tr("Read a profile even if its application is running."))] = False
    restore_duplicates: Annotated[
        bool,
        _option(
            tr("Keep files without chunks that v1 left without chunks because another file has the same bytes."),
            off="--no-restore-duplicates",
        ),
    ] = True
    carry_text: Annotated[
        bool, _option(tr("Migrate texts whose vector cannot be migrated, without a vector; also of failed bases."))
    ] = False
    adopt_orphans: AdoptOrphans = False
    salvage: Salvage = False
    verify: Annotated[bool, _option(tr("Compare every byte that an earlier run wrote."))] = False
    now_ms: RunTime = None


class ProfileMigrationOptions(MigrateOptions, frozen=True, kw_only=True):
    """Options of ``regraft migrate --profile``: those of a migration, and those of the installation that follows."""

    recreate_provider: RecreateProvider = ()
    as_new: AsNew = False


Collection = Annotated[
    str | None, _option(tr("Name of the new collection, with --format chroma."), "NAME", option="--collection")
]
Distance = Annotated[
    Literal["l2", "cosine", "ip"] | None,
    _option(
        tr("Distance of the new collection.  [default: cosine if all vectors have length 1, else l2]"),
        option="--distance",
    ),
]


class ImportOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of ``regraft import``."""

    dry_run: Annotated[bool, _option(tr("Show the plan and the report; change nothing."))] = False
    bases: Bases = ()
    now_ms: RunTime = None
    format: Annotated[
        Literal["library", "chroma"], _option(tr("What to write: a library, or a collection of Chroma."))
    ] = "library"
    collection: Collection = None
    distance: Distance = None


class ExportOptions(Options, frozen=True, kw_only=True):
    """Options of ``regraft export``."""

    bases: Bases = ()
    visible_to: VisibleTo = ()
    from_v1: Annotated[
        bool, _option(tr("PATH is v1 data: export the rows of its vector files, with the same columns."), option="--v1")
    ] = False
    format: Annotated[
        Literal["parquet", "chroma"], _option(tr("What to write: a Parquet file, or a collection of Chroma."))
    ] = "parquet"
    collection: Collection = None
    distance: Distance = None
    dry_run: Annotated[bool, _option(tr("With --format chroma: show what would be written; write nothing."))] = False


class PackOptions(Options, frozen=True, kw_only=True):
    """Options of ``regraft pack``."""

    bases: Annotated[tuple[str, ...], _option(tr("Only this base; may be repeated."), "NAME", option="--base")] = ()
    dry_run: Annotated[bool, _option(tr("Show what would be packed; write nothing."))] = False
    now_ms: RunTime = None


# Commands that change a store.


class ChangeOptions(Options, frozen=True, kw_only=True):
    """What every command that changes a store takes, and all that ``regraft clear-failed`` takes."""

    dry_run: DryRun = False
    bases: Bases = ()


class FixOptions(ChangeOptions, frozen=True, kw_only=True):
    """Options of ``regraft fix``."""

    now_ms: AgesAt = None
    only: Only = ()


class RepairOptions(ChangeOptions, frozen=True, kw_only=True):
    """Options of ``regraft repair``."""

    only: Only = ()
    model: Annotated[
        str | None,
        _option(
            tr("Model (provider::model) that made the vectors of bases that have vectors but no model in the catalog."),
            "ID",
        ),
    ] = None
    adopt: Annotated[
        bool,
        _option(
            tr("With --only index.orphan or material.orphan: add bases or items to the catalog again that it lacks.")
        ),
    ] = False
    salvage: Annotated[bool, _option(tr("Rewrite damaged index files from the data in them that can be verified."))] = (
        False
    )
    source: Annotated[
        Path | None,
        _option(
            tr("Take missing texts, vectors and indexes from another copy: v1 data, a library, a pack, a v2 profile."),
            "SOURCE",
            option="--from",
        ),
    ] = None
    moved: Annotated[
        dict[str, str],
        _option(
            tr("Correct the catalog: the original files at or below OLD are now at NEW. May be repeated."), "OLD=NEW"
        ),
    ] = {}
    unproven: Annotated[
        bool,
        _option(tr("Chroma: also keep vectors whose text or length nothing in the folder proves.")),
    ] = False


class GcOptions(ChangeOptions, frozen=True, kw_only=True):
    """Options of ``regraft gc``."""

    grace: Annotated[
        Annotated[float, Meta(ge=0)],
        _option(tr("How many days removed files, and the data for undo, are kept."), "DAYS"),
    ] = GRACE_DAYS
    vacuum: Annotated[bool, _option(tr("Shrink index files that have much free space."))] = False
    v1_leftovers: Annotated[bool, _option(tr("Also remove vector files of v1 whose vectors are all in v2."))] = False
    now_ms: AgesAt = None
    only: Only = ()


class UpgradeOptions(ChangeOptions, frozen=True, kw_only=True):
    """Options of ``regraft upgrade``."""

    map_model: MapModel = {}
    recreate_model: RecreateModel = ()


class RescueOptions(ChangeOptions, frozen=True, kw_only=True):
    """Options of ``regraft rescue``."""

    v1: Annotated[Path | None, _option(tr("A v1 source with the state, if the profile has none."), "SOURCE")] = None
    map_model: MapModel = {}
    recreate_model: RecreateModel = ()
    salvage: Salvage = False
    now_ms: RunTime = None


class InstallOptions(ChangeOptions, frozen=True, kw_only=True):
    """Options of ``regraft install``; ``kind`` and ``bases`` are about the source, not the profile."""

    map_model: MapModel = {}
    recreate_model: RecreateModel = ()
    recreate_provider: RecreateProvider = ()
    as_new: AsNew = False
    name: Annotated[str | None, _option(tr("The name of the installed base; for one base only."), "NAME")] = None
    external_as_files: Annotated[
        bool, _option(tr("Install documents that a newer application syncs from a service as files."))
    ] = False
    reuse: Annotated[
        tuple[Path, ...],
        _option(
            tr("Take vectors that a base lacks from this store, backup or export; may be repeated. Nothing is sent."),
            "PATH",
        ),
    ] = ()
    reuse_configured: ReuseConfigured = True
    config: Annotated[
        Path | None, _option(tr("The configuration file with the sources of vectors.  [default: regraft.yaml]"), "FILE")
    ] = None
    now_ms: RunTime = None


class UndoOptions(Options, frozen=True, kw_only=True):
    """Options of ``regraft undo``."""

    dry_run: Annotated[bool, _option(tr("Show what would be undone; change nothing."))] = False


# Commands that embed texts.


class RebuildOptions(ChangeOptions, frozen=True, kw_only=True):
    """Options of ``regraft rebuild``, and of every command that embeds texts in place; ``rebuild`` takes no bases."""

    config: Config = None
    embedder: Embedder = None
    limit: Limit = None
    max_requests: MaxRequests = None
    max_cost: MaxCost = None
    probe: Probe = True


class BackfillOptions(RebuildOptions, frozen=True, kw_only=True):
    """Options of ``regraft backfill``; ``model`` needs ``dimensions``."""

    reuse: Reuse = ()
    reuse_configured: ReuseConfigured = True

    model: Annotated[str | None, _option(tr("Give bases without a model this one, provider::model."), "ID")] = None
    dimensions: Annotated[Annotated[int, Meta(ge=1, le=65536)] | None, _option(tr("Length of its vectors."), "N")] = (
        None
    )
    all_projects: Annotated[bool, _option(tr("codex-mem: every project, not just the current one."))] = False


class ReconcileOptions(RebuildOptions, frozen=True, kw_only=True):
    """Options of ``regraft reconcile``; those on embedders are for codex-mem and AngelMemory with ``embed``."""

    provider: Annotated[
        str | None, _option(tr("AngelMemory: the provider in use.  [default: from the data]"), "ID")
    ] = None
    now_ms: AgesAt = None
    only: Only = ()
    #: Whether vectors are made of notes that lack one, as the command does; without it nothing is sent.
    embed: bool = False


class SyncOptions(RebuildOptions, frozen=True, kw_only=True):
    """Options of ``regraft sync``; those on embedders are for the texts that are new."""

    sources: Annotated[
        tuple[Path, ...],
        _option(tr("Also follow the folder DIR; may be repeated."), "DIR", option="--source"),
    ] = ()
    moved: Annotated[
        dict[str, str],
        _option(tr("The file or folder OLD is at NEW now; may be repeated."), "OLD=NEW"),
    ] = {}
    delete: Annotated[bool, _option(tr("Remove items whose file no longer exists; the copies go to the trash."))] = (
        False
    )
    extractor: Annotated[
        tuple[str, ...],
        _option(
            tr(
                'Read PDF and Office files with this command, which prints the text of {}, such as "pdftotext {} -"; '
                '".docx=COMMAND" is for one type.'
            ),
            "COMMAND",
        ),
    ] = ()
    embed: Annotated[bool, _option(tr("Leave new texts without a vector for regraft backfill."), off="--no-embed")] = (
        True
    )
    reuse: Reuse = ()
    reuse_configured: ReuseConfigured = True
    now_ms: RunTime = None


class RestoreOptions(Options, frozen=True, kw_only=True):
    """Options of ``regraft restore``."""

    dry_run: DryRun = False
    #: The base whose texts are taken; None: the one that the path is.
    base: str | None = None
    config: Config = None
    embedder: Embedder = None
    model: Annotated[
        str | None,
        _option(
            tr(
                "Id of the new base's model in the catalog, as provider::model.  "
                "[default: the one in the configuration]"
            ),
            "ID",
        ),
    ] = None
    dimensions: Annotated[
        Annotated[int, Meta(ge=1, le=65536)] | None,
        _option(tr("Length of the new model's vectors.  [default: the embedder's]"), "N"),
    ] = None
    name: Annotated[str | None, _option(tr("The name of the new base.  [default: that of the old one]"), "NAME")] = None
    reuse: Reuse = ()
    reuse_configured: ReuseConfigured = True
    now_ms: Annotated[
        int | None, _option(tr("The run's time, ISO 8601 with Z.  [default: now]"), "TIME", option="--now")
    ] = None


# Commands over many libraries.


class FleetOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of every ``regraft fleet`` command; the options of the libraries come beside them."""

    engine: Annotated[Literal["local", "ray"], _option(tr("Processes on this machine, or a Ray cluster."))] = "local"
    address: Annotated[
        str | None,
        _option(
            tr("Address of a Ray cluster, such as auto or ray://host:10001. [default: a local cluster]"), "ADDRESS"
        ),
    ] = None
    workers: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        _option(tr("Libraries processed in parallel. [default: cores]"), "N"),
    ] = None
    attempts: Annotated[
        Annotated[int, Meta(ge=1, le=100)],
        _option(tr("Maximum number of attempts for a library whose process the system kills.")),
    ] = 3
    keep_going: Annotated[
        bool, _option(tr("Continue even if the first ten libraries are refused for the same reason."))
    ] = False
    max_wait: Annotated[
        Annotated[float, Meta(gt=0)],
        _option(tr("Ray: fail waiting libraries if no node of the cluster has had room for SECONDS."), "SECONDS"),
    ] = 600.0
    metrics: Annotated[
        Path | None, _option(tr("Write the state of the run to FILE, as Prometheus metrics."), "FILE")
    ] = None


class FleetResumeOptions(FleetOptions, frozen=True, kw_only=True):
    """Options of ``regraft fleet resume``."""

    only: Annotated[
        tuple[Literal["failed", "refused", "unfinished"], ...],
        _option(tr("Only the libraries that ended like this; can be repeated. [default: all three]"), "KIND"),
    ] = ()
    limit: Limit = None
    max_requests: MaxRequests = None
    max_cost: MaxCost = None


class FleetBackfillOptions(FleetOptions, frozen=True, kw_only=True):
    """Options of ``regraft fleet backfill``; limits and rates are those of all workers together."""

    dry_run: Annotated[bool, _option(tr("Only show what would be sent; write nothing."))] = False
    requests_per_minute: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        _option(tr("Send at most N requests per minute, all workers together."), "N"),
    ] = None
    tokens_per_minute: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        _option(tr("Send at most N tokens per minute, all workers together."), "N"),
    ] = None
    config: Config = None
    embedder: Embedder = None
    limit: Limit = None
    max_requests: MaxRequests = None
    max_cost: MaxCost = None
    probe: Probe = True
    reuse: Reuse = ()
    reuse_configured: ReuseConfigured = True


#: The struct of each command that takes options, by the command's name.
OPTIONS: dict[str, type[msgspec.Struct]] = {
    "backfill": BackfillOptions,
    "certify": CertifyOptions,
    "check": CheckOptions,
    "clear-failed": ChangeOptions,
    "compare": CompareOptions,
    "embedders": EmbeddersOptions,
    "export": ExportOptions,
    "fix": FixOptions,
    "gc": GcOptions,
    "history": Options,
    "import": ImportOptions,
    "inspect": InspectOptions,
    "install": InstallOptions,
    "migrate": MigrateOptions,
    "migrate-into-profile": ProfileMigrationOptions,
    "pack": PackOptions,
    "rebuild": RebuildOptions,
    "recall": RecallOptions,
    "reconcile": ReconcileOptions,
    "repair": RepairOptions,
    "rescue": RescueOptions,
    "restore": RestoreOptions,
    "search": SearchOptions,
    "sync": SyncOptions,
    "undo": UndoOptions,
    "upgrade": UpgradeOptions,
}
