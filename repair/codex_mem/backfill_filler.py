"""Which notes of codex-mem an embedder can fill, and what is done before (``docs/codex-mem.md``)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import msgspec

from checks.audit.file_findings import FOREIGN_COLUMN
from checks.codex_mem import findings as codex
from regraft import clock, sqlite
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import ModelDiffers, RegraftError
from regraft.formats.codex_mem import database as codex_mem_database
from regraft.formats.codex_mem import sidecar
from regraft.formats.codex_mem.sidecar import Meta
from regraft.language import tr
from regraft.schema_errors import SchemaForeign
from regraft.system import SidecarProblem
from regraft.system_errors import SidecarUnfit
from repair.backfill.request import BackfillOptions
from repair.backfill.scope import Scope, Step, Targets
from repair.changes.incremental import IncrementalChange
from repair.changes.plan import Action, FileChange, Plan, Unresolved
from repair.changes.store import Store
from repair.codex_mem import backfill_scope, migration, reconcile
from repair.codex_mem.backfill_scope import NotesScope
from repair.options import ReconcileOptions

#: Why the notes of a project are left.
NOT_ASKED = tr("a project that was not asked for")


class NotesTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A project whose notes can be filled; ``database`` is codex-mem's, below the store's root."""

    base_id: str
    label: str
    database: str
    model_id: str
    #: As if there were no vectors yet: they are all made anew.
    anew: bool = False
    finding: str = codex.PENDING
    is_new: bool = False
    #: Whether a rebuild was begun that no run has told the sidecar the end of.
    is_unfinished: bool = False
    shares_with_itself: bool = True
    needs_dimensions: bool = False
    resolves: frozenset[str] = frozenset({codex.PENDING, codex.STALE, codex.FAILED})

    @property
    def files(self) -> tuple[str, ...]:
        """Return the sidecar and the database: a vector is written first, and what its note says of it after."""
        return codex_mem_database.sidecar_of(Path(self.database)).name, self.database

    def demand_fit(self, scope: Scope) -> None:
        """Do nothing: a sidecar that does not fit is no target."""

    def finish(self, root: Path, growing: Sequence[IncrementalChange], now_ms: int, *, wrote: bool) -> None:
        """Let the sidecar say so."""
        with self.opened(root, growing) as scope:
            scope.finished(now_ms, wrote=wrote)

    def finding_of(self, error: RegraftError) -> str | None:
        """Return the finding that keeps the notes from being written."""
        return FOREIGN_COLUMN if isinstance(error, SchemaForeign) else None

    def opened(self, root: Path, growing: Sequence[IncrementalChange] = ()) -> AbstractContextManager[NotesScope]:
        """Open its notes as a scope."""
        return backfill_scope.opened(
            root / self.database,
            self.base_id,
            label=self.label,
            model_id=self.model_id,
            growing=growing,
            anew=self.anew,
        )


class NotesFiller:
    """The notes of a database of codex-mem."""

    def models(self, store: Store, options: BackfillOptions) -> frozenset[str]:
        """Return the model of the sidecar; of one that is made anew, any will do."""
        meta = _meta(store, options)
        return frozenset() if meta is None else frozenset({meta.model_id})

    def targets(self, store: Store, settings: EmbedderSettings, options: BackfillOptions) -> Targets:
        """Return the projects that are meant.

        Raises:
            ModelDiffers: the sidecar holds vectors of another model.
            SidecarUnfit: it cannot be used.
        """
        meta = _filled(store, settings, options)
        _demand_model(store, settings, meta)
        follows = options.command == "reconcile"
        if follows and (meta is None or not _is_migrated(store)):
            # There is nothing to follow, and what is lacking is left with what mends it.
            return Targets((), (), (Step(_followed),))
        model = settings.model if meta is None else meta.model_id
        name = store.found.path.name
        anew = meta is None and options.command == "rebuild"
        meant, others = _projects(store, options)
        goes_on = meta is not None and meta.is_rebuilding
        targets = (
            NotesTarget(base_id=key, label=label, database=name, model_id=model, anew=anew, is_unfinished=goes_on)
            for key, label in meant
        )
        left = (
            Unresolved(finding=codex.PENDING, reason=f"{NOT_ASKED}: {label}", base=key, severity="note")
            for key, label in others
        )
        step = _followed if follows else partial(_prepared, settings=settings, model=model, options=options)
        return Targets(tuple(targets), tuple(left), (Step(step),))


def _demand_model(store: Store, settings: EmbedderSettings, meta: Meta | None) -> None:
    """Refuse an embedder of another model than the sidecar's.

    Raises:
        ModelDiffers
    """
    if meta is not None and not settings.serves(meta.model_id):
        reason = tr(
            "the vectors of {name} are of {model_id}; regraft rebuild makes all anew",
            name=store.found.path.name,
            model_id=meta.model_id,
        )
        raise ModelDiffers(embedder=settings.name, model=settings.model, reason=reason)


def _meta(store: Store, options: BackfillOptions) -> Meta | None:
    """Return what the sidecar that is to be filled says of itself; None where a new one is made.

    Raises:
        SidecarUnfit: it cannot be used.
    """
    place = codex_mem_database.sidecar_of(store.found.path)
    try:
        with sidecar.reading(place) as (db, meta):
            # A rebuild that was stopped goes on; of any other, nothing is kept.
            goes_on = options.command != "rebuild" or (meta.is_rebuilding and sidecar.is_sound(db))
            return meta if goes_on else None
    except FileNotFoundError:
        return None
    except SidecarProblem as problem:
        if options.command == "rebuild":
            return None
        raise SidecarUnfit(path=place, reason=problem) from problem


def _filled(store: Store, settings: EmbedderSettings, options: BackfillOptions) -> Meta | None:
    """Return :func:`_meta`, but of a rebuild that was begun with another model nothing is kept.

    Raises:
        SidecarUnfit: it cannot be used.
    """
    meta = _meta(store, options)
    is_other = meta is not None and not settings.serves(meta.model_id)
    return None if is_other and options.command == "rebuild" else meta


def _is_migrated(store: Store) -> bool:
    with sqlite.reading(store.found.path) as db:
        return codex_mem_database.is_migrated(db)


def _projects(store: Store, options: BackfillOptions) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the projects that are meant, and those that the user may not know of, each with its name."""
    with sqlite.reading(store.found.path) as db:
        every = codex_mem_database.projects(db)
        wanted: set[str | None] = set(every)
        if store.chosen:
            wanted = {codex_mem_database.project_id(every, word) for word in store.chosen}
        elif options.command == "backfill" and not options.all_projects:
            wanted = {codex_mem_database.project_at_hand(db, Path.cwd())}
    meant: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []
    for key, project in every.items():
        (meant if key in wanted else others).append((key, project.name))
    return meant, [] if store.chosen else others


def _prepared(store: Store, settings: EmbedderSettings, model: str, options: BackfillOptions) -> Plan:
    """Return the plan that gives a database the columns of its notes' metadata, and a sidecar."""
    now = clock.now_ms()
    made = migration.plan(store, now)
    place = codex_mem_database.sidecar_of(store.found.path)
    if options.command == "rebuild" and _filled(store, settings, options) is None:
        message = tr("make {name} anew, for vectors of {model}", name=place.name, model=model)
    elif not place.exists():
        message = tr("make {name}, for vectors of {model}", name=place.name, model=model)
    else:
        return made
    make = partial(_made, model=model, now=clock.iso_time(now), rebuilding=place.exists())
    action = Action(action="make-sidecar", message=message, base=None, subject=place.name)
    return Plan([*made.changes, FileChange(path=place.name, actions=(action,), make=make)], made.left, made.resolves)


def _made(new: Path, model: str, now: str, rebuilding: bool) -> None:
    sidecar.create(new, model, None, now, rebuilding=rebuilding)


def _followed(store: Store) -> Plan:
    """Plan what makes vectors follow notes, without deleting what a note may use again."""
    return reconcile.plan(store, ReconcileOptions())
