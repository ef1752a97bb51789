"""What v1 left of a profile: its state, as drafts against the profile's own models, and its files."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import msgspec

from migrators import cherry_v1
from migrators.cherry_v1.draft import draft_library
from migrators.pipeline import preflight
from migrators.pipeline.drafts import BaseDraft, LibraryDraft, Upload
from migrators.pipeline.options import Options
from migrators.pipeline.salvage import Wish, demand_sound, look_into
from migrators.pipeline.source import Hints
from migrators.pipeline.uploads import upload_name
from regraft import links, steady
from regraft.errors import SourceNotMigratable, SourceUnreadable, SourceUnrecognised
from regraft.formats.cherry_v1.layout import StatePlaces, vector_file_in
from regraft.formats.cherry_v1.state import V1State, read_state
from regraft.formats.cherry_v2.layout import DATA_FOLDER
from regraft.formats.cherry_v2.models import ModelOverrides
from regraft.formats.vector_survey import StoreProblem, Survey
from regraft.formats.vector_table import VectorTable
from regraft.kinds import NAMES, V1_SOURCES, Kind
from regraft.language import tr
from regraft.ledger import durable
from regraft.locate import Located, located
from regraft.records import replace
from regraft.room import demand_room
from regraft.tree import Tree, ZipTree, join
from repair.changes.store import Store


class VectorFile(msgspec.Struct, frozen=True, kw_only=True):
    """A base's vector file on disk, or what was salvaged of it: what it holds, how it is read, where it comes from."""

    survey: Survey
    path: Path
    table: VectorTable
    tree: Tree
    #: What tells the state of ``path``.
    mark: steady.Mark


class V1Left(msgspec.Struct, frozen=True, kw_only=True):
    """What v1 left: where its files are, first choice first, and its bases as drafts."""

    source: Located
    places: tuple[tuple[Tree, StatePlaces], ...]
    library: LibraryDraft
    keep: ExitStack
    #: Whether rows of damaged vector files are wanted that prove themselves.
    salvage: bool = False

    def survey(self, draft: BaseDraft) -> VectorFile:
        """Read a base's vector file; of a damaged one what is left, where that is wanted.

        Raises:
            StoreProblem: it cannot be used; the text says why.
            WorkFolderTooSmall: it is in an archive, and there is no room for it.
        """
        missing = tr("does not exist")
        problems: list[str] = []
        leftover: VectorFile | None = None
        for tree, places in self.places:
            if places.vectors is None:
                continue
            name = join(places.vectors, vector_file_in(tree, places.vectors, draft.vector_file))
            try:
                if isinstance(tree, ZipTree) and tree.kind(name) == "file":
                    demand_room(durable.temporary_place(), tree.size(name))
                path = self.keep.enter_context(tree.local(name, None))
                mark = steady.mark_of(path)
                found = self._surveyed(path, tree, draft)
                if steady.mark_of(path) != mark:
                    problems.append(tr("cannot be read: {moved}", moved=steady.MOVED))
                elif found.survey.salvage is None:
                    return found
                else:
                    # Another place may have it whole.
                    leftover = leftover or found
            except StoreProblem as unusable:
                problems.append(str(unusable))
            except SourceUnreadable as unreadable:
                problems.append(tr("cannot be read: {reason}", reason=unreadable.facts["reason"]))
        if leftover is not None:
            return leftover
        # A damaged file in one place says more than its absence from another.
        problem = next((one for one in problems if one != missing), missing)
        raise StoreProblem(
            tr("its vector file {vector_file} {problem}", vector_file=draft.vector_file, problem=problem)
        )

    def _surveyed(self, path: Path, tree: Tree, draft: BaseDraft) -> VectorFile:
        mark = steady.mark_of(path)
        pipeline = cherry_v1.PIPELINE
        try:
            survey = pipeline.table.survey(path)
            demand_sound(pipeline.salvager, path, None, is_wanted=self.salvage)
            return VectorFile(survey=survey, path=path, tree=tree, mark=mark, table=pipeline.table)
        except StoreProblem as problem:
            wish = Wish(is_wanted=self.salvage, work=None)
            left = look_into(pipeline.salvager, path, draft, problem, wish, self.keep)
            if isinstance(left.found, StoreProblem) or left.vectors is None or left.table is None:
                raise left.found if isinstance(left.found, StoreProblem) else problem from problem
            mark = steady.mark_of(left.vectors)
            return VectorFile(survey=left.found, path=left.vectors, tree=tree, mark=mark, table=left.table)

    def hints(self, draft: BaseDraft, survey: Survey, now_ms: int) -> Hints:
        """Return what other files tell of a base."""
        return cherry_v1.PIPELINE.hints(self.source, draft, survey, Options(now_ms=now_ms))

    def upload(self, upload: Upload) -> tuple[Tree, str, int] | None:
        """Return where an uploaded file is (tree, folder of uploads, size), None where it is nowhere."""
        for tree, places in self.places:
            name = upload_name(tree, places.uploads, upload)
            if name is not None and places.uploads is not None:
                return tree, places.uploads, tree.size(name)
        return None


def read_v1(
    store: Store, given: Path | None, model_overrides: ModelOverrides, keep: ExitStack, *, salvage: bool = False
) -> V1Left:
    """Read v1's state, from the profile or from the source that the user gives.

    Models count as existing: whether they do is for the profile to say, not for v1.

    Raises:
        SourceNotMigratable: there is none.
        RegraftError: it cannot be read, or an application is using the given profile.
    """
    path = store.root if given is None else given
    source, state = _found(path, keep, salvage=salvage)
    if (
        given is not None
        and source.profile is not None
        and links.real_path(source.profile) != links.real_path(store.root)
    ):
        preflight.check_running(source.profile, Options(now_ms=0))
    tree = store.found.tree
    uploads = next((name for name in (f"{DATA_FOLDER}/Files", "Files") if tree.kind(name) == "folder"), None)
    own = StatePlaces(vectors=store.bases, uploads=uploads)
    library = draft_library(replace(state, providers=None), model_overrides)
    places = ((source.tree, source.places), (tree, own))
    return V1Left(source=source, places=places, library=library, keep=keep, salvage=salvage)


def _found(path: Path, keep: ExitStack, *, salvage: bool) -> tuple[Located, V1State]:
    """Return the first kind of v1 source that a path is and that has bases."""
    found = keep.enter_context(located(path, salvage=salvage))
    kinds = [found.kind] if found.kind in V1_SOURCES else [Kind.V1_PROFILE, Kind.V1_EXPORT]
    for kind in kinds:
        try:
            source = keep.enter_context(located(path, kind, salvage=salvage))
        except SourceUnrecognised:
            continue
        state = read_state(source.tree, source.places)
        if state.bases:
            return source, state
    advice = tr("--v1 SOURCE gives one: a backup, a profile or an export of v1")
    raise SourceNotMigratable(
        path=path, what=tr("{names} without knowledge bases of v1", names=NAMES[found.kind]), advice=advice
    )
