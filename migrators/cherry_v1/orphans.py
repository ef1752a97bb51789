"""Bases of vector files that no state names, made of their rows alone (``migrate --adopt-orphans``).

Each becomes the base that v1's state would have had, so that all the rest of a migration is the same. Rules:
``docs/rules.md``, "Vector files that no state names".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from migrators.cherry_v1.orphan_folders import FoundFolder
from migrators.cherry_v1.orphan_items import Beside, FoundItems, items_of
from migrators.cherry_v1.orphan_rows import FileFacts, NotVectors, read_facts
from migrators.pipeline.drafts import BaseDraft
from regraft.errors import SourceUnreadable
from regraft.folder_paths import segments
from regraft.formats.cherry_v1.layout import StatePlaces
from regraft.formats.cherry_v1.state import V1State, is_of_v1, named_files, vector_files
from regraft.formats.cherry_v1.tables import Items
from regraft.formats.cherry_v2.models import SEPARATOR, ModelOverrides, unique_model_id
from regraft.formats.vector_survey import StoreProblem
from regraft.language import joined, tr
from regraft.names import vector_file_name
from regraft.records import replace
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.text import counted
from regraft.tree import Tree, join

logger = logging.getLogger(__name__)

#: What a person calls the items of each type.
_NOUNS = {"directory": "folder", "file": "file", "url": "url", "sitemap": "sitemap", "note": "note"}
#: Gives a file on disk in a form that SQLite reads.
Opened = Callable[[Path], AbstractContextManager[Path]]


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """A vector file that no state names: its name, what is known of it, and the model that it may be of.

    ``problem`` says why nothing can be read of it, for a person; nothing where it can.
    """

    file: str
    dimensions: int | None
    problem: str = ""
    #: The one model that the state's bases of the same dimensions have; None where there are none, or several.
    likely_model: str | None = None


class Adoption(msgspec.Struct, frozen=True, kw_only=True):
    """A state with a base for each vector file that it does not name, and what these are by the ids of the bases."""

    state: V1State
    orphans: dict[str, Orphan]

    def overrides(self, given: ModelOverrides) -> ModelOverrides:
        """Return the user's word on models, with the name of a vector file where they mean one."""
        return replace(given, mapped={self._base(old): new for old, new in given.mapped.items()})

    def _base(self, old: str) -> str:
        # A path of the file, or the id of a base that has another one for its file's name.
        names = [] if SEPARATOR in old else [vector_file_name(old), *segments(old)[-1:]]
        return next((name for name in names if name in self.orphans), old)

    def completed(self, draft: BaseDraft) -> BaseDraft:
        """Return the draft of a base with what only the vector file tells of it."""
        orphan = self.orphans.get(draft.legacy_id)
        if orphan is None:
            return draft
        embedding = draft.embedding
        if embedding.id is None:
            embedding = replace(embedding, problem=_missing_model(orphan))
        return replace(draft, vector_file=orphan.file, embedding=embedding)


def _missing_model(orphan: Orphan) -> str:
    """Say that nobody knows which model made the vectors of a file, and how to tell it."""
    if orphan.problem:
        return tr("its vector file {vector_file} {problem}", vector_file=orphan.file, problem=orphan.problem)
    option = f"--adopt-orphans --map-model '{orphan.file}={orphan.likely_model or 'PROVIDER::MODEL'}'"
    if orphan.likely_model is not None:
        return tr(
            "nothing says which model made its vectors of {dimensions} dimensions; if it was {model}, as of the other "
            "bases, they are carried with {option}",
            dimensions=orphan.dimensions,
            model=orphan.likely_model,
            option=option,
        )
    return tr(
        "nothing says which model made its vectors of {dimensions} dimensions; they are carried with {option}",
        dimensions=orphan.dimensions,
        option=option,
    )


def adopt(tree: Tree, places: StatePlaces, state: V1State, opened: Opened) -> Adoption:
    """Return a state with a base for each vector file that none of its own bases names.

    Files of bases that v1 was going to delete get none, and it is said; neither do files without v1's table of vectors,
    or with no row in it.
    """
    beside = Beside(tree=tree, uploads=places.uploads, files=state.files, notes=state.notes)
    files = vector_files(tree, places) - named_files(state.bases)
    to_delete = {vector_file_name(one): one for one in state.pending_delete}
    bases: list[dict[str, Any]] = []
    orphans: dict[str, Orphan] = {}
    said: list[Notice] = []
    for name in sorted(files):
        if name in to_delete:
            # A base that is skipped for its reason: it is named, and does not come back.
            bases.append({"id": to_delete[name], "name": name})
            continue
        try:
            facts = _facts(tree, join(places.vectors or "", name), opened)
        except NotVectors as problem:
            said.append(_not_adopted(name, problem))
            continue
        found = items_of(name, facts.loaders, beside)
        logger.info("vector file %s: %s items told from %s rows", name, len(found.raws), facts.rows)
        bases.append(_base(name, facts, found))
        orphans[name] = Orphan(
            file=name,
            dimensions=facts.dimensions,
            problem=facts.problem,
            likely_model=_likely_model(state, facts),
        )
        said.append(_adopted(name, facts, found))
    others = (notice for notice in state.notices if notice.code not in (notices.LOST_STATE, notices.UNNAMED_VECTORS))
    adopted = replace(state, bases=[*state.bases, *bases], notices=(*others, *said))
    return Adoption(state=adopted, orphans=orphans)


def _facts(tree: Tree, name: str, opened: Opened) -> FileFacts:
    """Return what a file tells; one of v1's that is damaged tells why it does not.

    Raises:
        NotVectors: no base is made of it.
    """
    try:
        with tree.local(name, None) as origin, opened(origin) as path:
            return read_facts(path)
    except (StoreProblem, SourceUnreadable) as error:
        problem = str(error) if isinstance(error, StoreProblem) else tr("cannot be read")
        if not is_of_v1(tree, name):
            raise NotVectors(tr("it {problem}", problem=problem)) from error
        return FileFacts(problem=problem)


def _base(name: str, facts: FileFacts, found: FoundItems) -> dict[str, Any]:
    """Return a base as v1's state has one."""
    items = Items([msgspec.Raw(msgspec.json.encode(raw)) for raw in found.raws])
    called = _folder_name(found.folders) or name
    return {"id": name, "name": called, "dimensions": facts.dimensions, "items": items}


def _folder_name(folders: list[FoundFolder]) -> str:
    """Return the name of the only folder of a base, nothing where there is none, or several."""
    return segments(folders[0].path)[-1] if len(folders) == 1 else ""


def _likely_model(state: V1State, facts: FileFacts) -> str | None:
    """Return the model that all bases of the state have, where they have these dimensions, too."""
    bases = [base for base in state.bases if isinstance(base, dict) and isinstance(base.get("model"), dict)]
    models = {unique_model_id(base["model"].get("provider"), base["model"].get("id")) for base in bases}
    same = facts.dimensions is not None and all(base.get("dimensions") == facts.dimensions for base in bases)
    return next(iter(models)) if len(models) == 1 and same else None


def _not_adopted(name: str, reason: NotVectors) -> Notice:
    message = tr("no base is made of the file {name}: {reason}", name=name, reason=reason)
    return Notice(code=notices.NOT_ADOPTED, message=message)


def _adopted(name: str, facts: FileFacts, found: FoundItems) -> Notice:
    """Say what was told from the rows of a file, and how surely."""
    if facts.problem:
        message = tr("no base of the state names this vector file, and nothing can be read of it")
        return Notice(code=notices.ADOPTED, message=message, base=name)
    kinds = joined(counted(found.types[kind], noun) for kind, noun in _NOUNS.items() if found.types[kind])
    message = tr(
        "no base of the state names this vector file; told from {rows}: {kinds}",
        rows=counted(facts.rows, "row"),
        kinds=kinds or tr("no item"),
    )
    if found.unnamed:
        message += tr("; the names of {files} are not known", files=counted(found.unnamed, "file"))
    if found.partial:
        message += tr("; of {notes} only what was indexed is known", notes=counted(found.partial, "note"))
    return Notice(code=notices.ADOPTED, message=message, base=name, count=max(len(found.raws), 1))
