"""Take vectors that other stores have already, instead of sending their texts again (``docs/reuse.md``).

A run names sources: stores, backups, packs, exports. For each scope that lacks vectors, :class:`Reuse` finds the bases
of the sources with the same vector length and model, and the texts that both have. The name of a model proves nothing:
vectors of up to eight texts that both have must agree; where no text has a vector in both, eight texts are embedded
once (the canary) before any vector is taken. A source whose vectors are another model's, or differ in length from
those of the scope, is refused. Vectors keep their bytes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft import identity
from regraft.disk import links, sqlite
from regraft.embedders import Embedder, TextsRejected, check
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import ProbeRefused, RegraftError, ReuseDiffers, SourceUnreadable, WrongUsage
from regraft.language import tr
from regraft.processes import interrupts
from regraft.report.progress import Progress, SilentProgress, stage
from regraft.text import is_blank, printable
from repair.embedding import probing
from repair.embedding.budget import BudgetedEmbedder
from repair.embedding.report import ReusedVectors, ScopeOutcome
from repair.embedding.scope import ReusePath, Scope
from repair.embedding.vector_sources import (
    IndexedBase,
    SourceIndex,
    is_unit_length,
    open_index,
    read_source,
    usable_rows,
    vector_norm,
)

logger = logging.getLogger(__name__)

#: Texts with a vector in both that are compared, and texts of a canary.
COMPARED = 8
#: Two stored vectors of one text by one model have at least this cosine: rounding to float16 explains the rest.
MIN_STORED_COSINE = 0.9999
#: Their norms differ at most by this share.
_NORM_TOLERANCE = 2e-3
_CHUNK = 256
#: A text hash; a damaged index may have other keys.
_HASH = re.compile("[0-9a-f]{64}")
_TABLES = (
    "CREATE TABLE wanted (scope INTEGER, hash BLOB, PRIMARY KEY (scope, hash)) WITHOUT ROWID",
    # The texts of a base of a source whose vectors are read.
    "CREATE TABLE needed (source INTEGER, base INTEGER, hash BLOB, PRIMARY KEY (source, base, hash)) WITHOUT ROWID",
    """CREATE TABLE vector (source INTEGER, base INTEGER, hash BLOB, vector BLOB, PRIMARY KEY (source, base, hash))
         WITHOUT ROWID""",
    # Which vector each text of a scope gets.
    """CREATE TABLE given (scope INTEGER, hash BLOB, source INTEGER, base INTEGER, PRIMARY KEY (scope, hash))
         WITHOUT ROWID""",
    # Texts of a base that is skipped after the plan was shown: not sent, because the plan says less.
    "CREATE TABLE withheld (scope INTEGER, hash BLOB, PRIMARY KEY (scope, hash)) WITHOUT ROWID",
)


class Canary(msgspec.Struct, frozen=True, kw_only=True):
    """Texts that are embedded once, with the vectors that a source has of them.

    ``base`` is the display name of the base in the source, ``store`` that of the base that is filled. ``origin`` is the
    position of the base in the database of the run, if the source does not name its model: a difference is then a
    reason to skip the base, and no mistake.
    """

    source: Path
    base: str
    store: str
    dimensions: int
    sample: tuple[tuple[str, bytes], ...]
    origin: tuple[int, int] | None = None

    def texts(self, embedder: Embedder) -> list[tuple[str, bytes]]:
        """Return the sample texts that are sent, with the source's vectors: those that fit into one request."""
        return probing.texts_for_probe(self.sample, embedder.tokens, embedder.settings.batch)

    def compare(self, embedder: Embedder, meter: BudgetedEmbedder | None = None) -> None:
        """Embed the sample texts, and compare the answers with the source's vectors.

        ``meter`` counts the request, within the limits of the run; None: no limit.

        Raises:
            ReuseDiffers: the source's vectors are not those of this model.
            ProbeRefused, AnswerUnfit, EmbedderRefused, ServerFailing, LimitReached: the embedder does not answer.
        """
        known = self.texts(embedder)
        embed = probing.embed_in_batches(
            embedder, meter.embed if meter is not None else lambda texts: embedder.embed(texts).vectors
        )
        try:
            answers = embed([text for text, _ in known])
        except TextsRejected as rejected:
            raise ProbeRefused(embedder=embedder.settings.name, base=self.base, reason=rejected.reason) from rejected
        check(answers, len(known), self.dimensions, embedder=embedder.settings.name)
        pairs = [(answer, vector) for answer, (_, vector) in zip(answers, known, strict=True)]
        problem = find_difference(pairs, probing.MIN_COSINE, tr("the vectors that the embedder returns"))
        if problem is not None:
            raise ReuseDiffers(path=self.source, base=self.base, store=self.store, reason=problem)


def find_difference(pairs: Sequence[tuple[bytes, bytes]], least: float, others: str) -> str | None:
    """Say how vectors of the same texts differ, or return None if they are by one model and of one length.

    Args:
        pairs: for each text, a vector to compare with, and the vector of the source.
        least: the cosine that each pair must have at least.
        others: names the vectors to compare with, in the message.
    """
    for theirs, ours in pairs:
        norms = vector_norm(theirs), vector_norm(ours)
        if abs(norms[0] - norms[1]) > _NORM_TOLERANCE * max(norms):
            message = tr(
                "its vectors have norm {own:.3g}, {others} have norm {other:.3g}",
                own=norms[1],
                others=others,
                other=norms[0],
            )
            if is_unit_length(norms[1]) != is_unit_length(norms[0]):
                message = tr("{message}: one of them is normalized", message=message)
            return message
    cosine = min((probing.cosine(theirs, ours) for theirs, ours in pairs), default=1.0)
    if cosine >= least:
        return None
    return tr(
        "the lowest cosine of its vectors and {others} is {cosine:.4f} in {count} texts; at least {least} is needed",
        count=len(pairs),
        cosine=cosine,
        others=others,
        least=least,
    )


# --- one scope -------------------------------------------------------------------------------------------------------


class _Candidate(msgspec.Struct, kw_only=True):
    """A base of a source that has texts which a scope lacks.

    ``source`` is the position of its source, ``vectors`` the number of the texts. ``known`` has the scope's vectors of
    some texts that both have, by text hash.
    """

    source: int
    index: SourceIndex
    base: IndexedBase
    known: dict[str, bytes] = msgspec.field(default_factory=dict)
    vectors: int = 0


class Supply:
    """The vectors that one scope can take, made by :meth:`Reuse.supply`.

    A base of a source is named by (position of the source, number of the base).

    Args:
        db: the temporary database of the run.
        scope: the number of the scope in that database.
        outcomes: how much is taken from which base of a source.
        canaries: what has to be embedded before anything is taken.
        unused: bases that are not used, with the reason.
    """

    def __init__(
        self,
        db: apsw.Connection,
        scope: int,
        outcomes: dict[tuple[int, int], ReusedVectors],
        canaries: Sequence[Canary],
        unused: Sequence[ReusedVectors],
    ) -> None:
        self._db = db
        self._scope = scope
        self._outcomes = outcomes
        self.canaries = tuple(canaries)
        self._unused = list(unused)

    def compare(self, embedder: Embedder, meter: BudgetedEmbedder) -> None:
        """Embed the texts of all canaries, to test the bases that no stored vector proves.

        A base whose vectors differ is skipped if its source does not name its model.

        Raises:
            ReuseDiffers: a base that names its model has other vectors.
            RegraftError: see :meth:`Canary.compare`.
        """
        for canary in self.canaries:
            try:
                canary.compare(embedder, meter)
            except ReuseDiffers as differs:
                if canary.origin is None:
                    raise
                skipped, reason = self._outcomes.pop(canary.origin), str(differs.facts["reason"])
                self._unused.append(msgspec.structs.replace(skipped, planned=0, compared=0, reason=reason))
                # Other bases that are used give what they have; the other texts are withheld.
                with sqlite.transaction(self._db):
                    given, values = "given WHERE scope = ? AND source = ? AND base = ?", (self._scope, *canary.origin)
                    self._db.execute(f"INSERT INTO withheld SELECT scope, hash FROM {given}", values)
                    self._db.execute(f"DELETE FROM {given}", values)
                    for (source, base), outcome in self._outcomes.items():
                        outcome.planned += _give(self._db, "withheld", self._scope, source, base)
                    self._db.execute("DELETE FROM withheld WHERE (scope, hash) IN (SELECT scope, hash FROM given)")

    @property
    def withheld(self) -> int:
        """The number of texts that are neither filled nor sent, because the base with their vectors was skipped."""
        count: Any = self._db.execute("SELECT count(*) FROM withheld WHERE scope = ?", (self._scope,)).get
        return int(count)

    def sendable(self, keys: Iterable[str]) -> Iterator[str]:
        """Yield the text hashes in ``keys`` that may be sent, in their order: all that are not withheld."""
        query = (
            "SELECT lower(hex(hash)) FROM withheld WHERE scope = ? AND hash IN (SELECT unhex(value) FROM json_each(?))"
        )
        keys = iter(keys)
        while chunk := list(islice(keys, _CHUNK)):
            withheld = {key for (key,) in self._db.execute(query, (self._scope, sqlite.json_array(chunk)))}
            yield from (key for key in chunk if key not in withheld)

    def known(self, keys: Sequence[str]) -> set[str]:
        """Select the text hashes in ``keys`` that have a vector in the supply."""
        query = """SELECT lower(hex(hash)) FROM given
           WHERE scope = ? AND hash IN (SELECT unhex(value) FROM json_each(?))"""
        return {str(key) for (key,) in self._db.execute(query, (self._scope, sqlite.json_array(keys)))}

    def vectors(self, keys: Sequence[str]) -> dict[tuple[int, int], dict[str, bytes]]:
        """Return the supplied vectors for text hashes, grouped by the base that they come from.

        The key of a group is (position of the source, number of the base); it maps text hashes to vectors.
        """
        query = """SELECT g.source, g.base, lower(hex(g.hash)), v.vector FROM given g JOIN vector v USING
             (source, base, hash)
           WHERE g.scope = ? AND g.hash IN (SELECT unhex(value) FROM json_each(?)) ORDER BY 1, 2, 3"""
        found: dict[tuple[int, int], dict[str, bytes]] = {}
        rows: Any = self._db.execute(query, (self._scope, sqlite.json_array(keys)))
        for source, base, key, vector in rows:
            found.setdefault((source, base), {})[key] = vector
        return found

    def copy_to(self, scope: Scope, outcome: ScopeOutcome) -> None:
        """Write the supplied vectors that a scope, open for writing, still lacks, and count them in its outcome."""
        lacking = scope.lacking()
        while keys := list(islice(lacking, _CHUNK)):
            for base, found in self.vectors(keys).items():
                # The count must include what is written, even if Ctrl-C comes in between.
                with interrupts.defer_stops():
                    written = scope.write(found, identity.now_ms())
                    count = written.pending + written.stale
                    self._outcomes[base].reused += count
                    outcome.reused += count
                    outcome.filled.newly_ready += count

    def outcomes(self) -> list[ReusedVectors]:
        """Report how many vectors each base of the sources gives, and why a base gives none."""
        return [*self._outcomes.values(), *self._unused]


# --- the run ---------------------------------------------------------------------------------------------------------


class Reuse:
    """The sources of vectors for one run.

    Call :meth:`want` for every scope, then :meth:`load`, then :meth:`supply` for each scope. Every source is read once,
    whatever the number of scopes; memory does not grow with them.

    Args:
        db: a temporary database.
        sources: the indexes of the sources, in the order in which they are used.
        progress: notified of the sources that are read.
    """

    def __init__(self, db: apsw.Connection, sources: Sequence[SourceIndex], progress: Progress) -> None:
        self._db = db
        self._sources = sources
        self._progress = progress
        self._scopes: dict[str, int] = {}
        self._candidates: dict[int, list[_Candidate]] = {}
        for statement in _TABLES:
            db.execute(statement)

    def want(self, scope: Scope, model_id: str | None, settings: EmbedderSettings, coming: Iterable[str] = ()) -> None:
        """Find the bases of the sources with vectors that a scope lacks, and note which vectors to read.

        Args:
            scope: open; its keys are text hashes.
            model_id: the model of its vectors; None: unknown.
            settings: the embedder's, which say what its model is called.
            coming: hashes of further texts that the run adds to the scope first.
        """
        number = self._scopes.setdefault(scope.name, len(self._scopes))
        found: list[_Candidate] = []
        self._candidates[number] = found
        keys = (
            (number, bytes.fromhex(key)) for keys in (scope.lacking(), coming) for key in keys if _HASH.fullmatch(key)
        )
        with sqlite.transaction(self._db):
            self._db.executemany("INSERT OR IGNORE INTO wanted VALUES (?, ?)", keys)
        for position, index in enumerate(self._sources):
            fitting = [base for base in index.bases if _fits(base, scope, model_id, settings)]
            if not fitting:
                continue
            with _report_damage(index), sqlite.attach_readonly(self._db, index.file, "other"):
                candidates = [self._find_texts(number, position, index, base) for base in fitting]
                found += filter(None, candidates)
        for one in found:
            self._find_known(one, scope)

    def _find_texts(self, scope: int, position: int, index: SourceIndex, base: IndexedBase) -> _Candidate | None:
        """Note the texts that a scope lacks and a base of a source has; None if there is no such text.

        Args:
            scope: the number of the scope.
            position: the position of the source.
            index: the index of the source, attached to the temporary database.
            base: the base.
        """
        query = """INSERT OR IGNORE INTO needed SELECT ?, ?, w.hash FROM wanted w
           WHERE w.scope = ? AND EXISTS (SELECT 1 FROM other.entry e WHERE e.hash = w.hash AND e.base = ?)"""
        count = """SELECT count(*) FROM wanted w
           WHERE w.scope = ? AND EXISTS (SELECT 1 FROM other.entry e WHERE e.hash = w.hash AND e.base = ?)"""
        vectors: Any = self._db.execute(count, (scope, base.number)).get
        if not vectors:
            return None
        with sqlite.transaction(self._db):
            self._db.execute(query, (position, base.number, scope, base.number))
        return _Candidate(source=position, index=index, base=base, vectors=vectors)

    def _find_known(self, candidate: _Candidate, scope: Scope) -> None:
        """Find texts with a vector in both the scope and the candidate, and note to read the candidate's vectors."""
        hashes = _read_hashes(candidate)
        while len(candidate.known) < COMPARED and (keys := list(islice(hashes, _CHUNK))):
            vectors = scope.vectors(keys)
            candidate.known.update(islice(sorted(vectors.items()), COMPARED - len(candidate.known)))
        with sqlite.transaction(self._db):
            needed = ((candidate.source, candidate.base.number, bytes.fromhex(key)) for key in candidate.known)
            self._db.executemany("INSERT OR IGNORE INTO needed VALUES (?, ?, ?)", needed)

    def load(self) -> None:
        """Read the vectors that are needed, from each source once.

        Raises:
            SourceUnreadable: a source changed in the meantime.
            RegraftError: it cannot be read.
        """
        used = [number for (number,) in self._db.execute("SELECT DISTINCT source FROM needed ORDER BY 1").fetchall()]
        with stage(self._progress, "Reading", len(used), "files"):
            for position in (int(str(number)) for number in used):
                self._load(position, self._sources[position])
                self._progress.step(1, 0)

    def _load(self, position: int, index: SourceIndex) -> None:
        """Read the needed vectors of one source into the temporary database; ``position`` is that of the source."""
        wanted: Any = self._db.execute("SELECT DISTINCT base FROM needed WHERE source = ?", (position,)).fetchall()
        needed = """INSERT OR IGNORE INTO vector SELECT ?1, ?2, ?3, ?4
           WHERE EXISTS (SELECT 1 FROM needed WHERE source = ?1 AND base = ?2 AND hash = ?3)"""
        left = {int(number) for (number,) in wanted}
        for number, base in enumerate(read_source(index.source)):
            if number not in left:
                continue
            self._progress.at(base.name)
            stated = index.bases[number] if number < len(index.bases) else None
            if stated is None or (stated.model_id, stated.dimensions) != (base.model_id, base.dimensions):
                raise SourceUnreadable(path=index.source, reason=tr("it was changed in the meantime"))
            rows = ((position, number, key, vector) for key, vector, _ in usable_rows(base))
            with sqlite.transaction(self._db):
                self._db.executemany(needed, rows)
            left.discard(number)
            if not left:
                break

    def supply_alone(self, scope: Scope, model_id: str | None, settings: EmbedderSettings) -> Supply:
        """Find, read and judge what one scope can take, for a run that fills only this scope.

        See :meth:`want` for the arguments, and :meth:`load` and :meth:`supply` for the errors.
        """
        self.want(scope, model_id, settings)
        self.load()
        supply = self.supply(scope)
        # Nothing is published before every text has a vector, so that a base which differs is not skipped.
        supply.canaries = tuple(msgspec.structs.replace(canary, origin=None) for canary in supply.canaries)
        return supply

    # --- judging -----------------------------------------------------------------------------------------------------

    def supply(
        self,
        scope: Scope,
        bodies: Callable[[], Iterable[tuple[str, str]]] = lambda: (),
        *,
        can_embed: bool = True,
        refuses: bool = True,
    ) -> Supply:
        """Decide what a scope takes from which base, in the order of the sources; bases that need a canary come last.

        Args:
            scope: open; :meth:`want` was called with it.
            bodies: returns texts that the run adds to the scope first, as pairs of hash and text.
            can_embed: whether an embedder can compare bases that have no text with a vector in common with the scope.
                Otherwise these are not used.
            refuses: whether a base that calls its model the same, and has other vectors, is an error. Otherwise it is
                not used.

        Raises:
            ReuseDiffers: there is such a base.
        """
        number = self._scopes[scope.name]
        # A plan may be made again.
        self._db.execute("DELETE FROM given WHERE scope = ?", (number,))
        outcomes: dict[tuple[int, int], ReusedVectors] = {}
        canaries: list[Canary] = []
        unused: list[ReusedVectors] = []
        # What stored vectors prove comes first: it costs nothing.
        for one in sorted(self._candidates[number], key=lambda one: not one.known):
            canary, reason = None, self._find_problem(one, scope)
            if reason is not None and one.base.model_id is not None and refuses:
                raise ReuseDiffers(path=one.index.source, base=one.base.name, store=scope.label, reason=reason)
            if reason is None and not self._count_new(number, one):
                continue
            if reason is None and not one.known:
                canary = self._make_canary(number, one, scope, bodies) if can_embed else None
                if not can_embed:
                    reason = tr("no text has a vector in both, and nothing can be compared without an embedder")
                elif canary is None or self._count_new(number, one) <= len(canary.sample):
                    reason = tr("it could fill no more texts than would have to be embedded to verify it")
            if reason is not None:
                unused.append(_outcome(one, reason=reason))
                continue
            with sqlite.transaction(self._db):
                count = _give(self._db, "wanted", number, one.source, one.base.number)
            if canary is not None:
                canaries.append(canary)
            compared = len(one.known) if canary is None else len(canary.sample)
            outcomes[one.source, one.base.number] = _outcome(one, planned=count, compared=compared)
        unused += self._find_damaged(scope)
        return Supply(self._db, number, outcomes, canaries, unused)

    def _find_damaged(self, scope: Scope) -> Iterator[ReusedVectors]:
        """Yield a report for each unreadable base that has the scope's name or is the only one of its source."""
        used = {(one.source, one.base.number) for one in self._candidates[self._scopes[scope.name]]}
        for position, index in enumerate(self._sources):
            for base in index.bases:
                is_meant = base.name == scope.label or len(index.bases) == 1
                if base.problem is not None and is_meant and (position, base.number) not in used:
                    candidate = _Candidate(source=position, index=index, base=base, vectors=0)
                    yield _outcome(candidate, reason=base.problem)

    def _find_problem(self, candidate: _Candidate, scope: Scope) -> str | None:
        """Say why a candidate's vectors are not those of the scope's model, as stored vectors tell; else None."""
        loaded = """SELECT lower(hex(hash)), vector FROM vector
           WHERE source = ? AND base = ? AND hash IN (SELECT unhex(value) FROM json_each(?)) ORDER BY 1"""
        rows: Any = self._db.execute(
            loaded, (candidate.source, candidate.base.number, sqlite.json_array(list(candidate.known)))
        )
        stored: dict[str, bytes] = dict(rows)
        pairs = [(candidate.known[key], vector) for key, vector in stored.items()]
        if pairs:
            return find_difference(pairs, MIN_STORED_COSINE, tr("those of {base}", base=printable(scope.label)))
        norms = [vector_norm(vector) for _, vector in scope.sample(COMPARED)]
        form = candidate.base.is_normalized
        if norms and form is not None and all(map(is_unit_length, norms)) is not form:
            return tr("its vectors are normalized") if form else tr("its vectors are not normalized")
        return None

    def _make_canary(
        self, scope_number: int, candidate: _Candidate, scope: Scope, bodies: Callable[[], Iterable[tuple[str, str]]]
    ) -> Canary | None:
        """Choose texts of a candidate to embed, the same ones each time; None if it has no text that could be sent.

        ``scope_number`` is that of the scope in the database. ``bodies`` returns texts that the run adds to the scope
        first, as pairs of hash and text.
        """
        query = """SELECT lower(hex(v.hash)), v.vector FROM wanted w JOIN vector v USING (hash)
           WHERE w.scope = ? AND v.source = ? AND v.base = ?
             AND NOT EXISTS (SELECT 1 FROM given g WHERE g.scope = w.scope AND g.hash = w.hash)
           ORDER BY v.hash LIMIT ?"""
        rows: Any = self._db.execute(query, (scope_number, candidate.source, candidate.base.number, _CHUNK)).fetchall()
        vectors = dict(rows)
        found = {key: lacking.text for key, lacking in scope.texts(list(vectors)).items()}
        if len(found) < COMPARED:
            found.update((key, text) for key, text in bodies() if key in vectors)
        texts = [(text, vectors[key]) for key, text in sorted(found.items()) if text is not None and not is_blank(text)]
        if not texts:
            return None
        return Canary(
            source=candidate.index.source,
            base=candidate.base.name,
            store=scope.label,
            dimensions=candidate.base.dimensions,
            sample=tuple(texts[:COMPARED]),
            origin=None if candidate.base.model_id is not None else (candidate.source, candidate.base.number),
        )

    def _count_new(self, scope: int, candidate: _Candidate) -> int:
        """Count the texts that a candidate has and that no earlier base gives to the scope (its number)."""
        query = """SELECT count(*) FROM wanted w JOIN vector v USING (hash) WHERE w.scope = ? AND v.source = ?
           AND v.base = ? AND NOT EXISTS (SELECT 1 FROM given g WHERE g.scope = w.scope AND g.hash = w.hash)"""
        found: Any = self._db.execute(query, (scope, candidate.source, candidate.base.number)).get
        return int(found)


def _give(db: apsw.Connection, texts: str, scope: int, source: int, base: int) -> int:
    """Assign the vectors of a base to the texts of a scope; returns how many texts had no vector assigned before.

    Args:
        db: the temporary database of the run.
        texts: the table with the texts: "wanted" or "withheld".
        scope: the number of the scope.
        source: the position of the source.
        base: the number of the base in it.
    """
    query = f"""INSERT OR IGNORE INTO given SELECT w.scope, w.hash, v.source, v.base FROM {texts} w
       JOIN vector v USING (hash) WHERE w.scope = ? AND v.source = ? AND v.base = ?"""
    db.execute(query, (scope, source, base))
    return int(db.changes())


def _read_hashes(candidate: _Candidate) -> Iterator[str]:
    """Yield the hashes of all texts of a candidate, ascending.

    Raises:
        SourceUnreadable: the index of the source is damaged.
    """
    with _report_damage(candidate.index), sqlite.open_readonly(candidate.index.file) as db:
        query = "SELECT hash FROM entry WHERE base = ? AND typeof(hash) = 'blob' ORDER BY hash"
        for (key,) in db.execute(query, (candidate.base.number,)):
            raw: Any = key
            yield bytes(raw).hex()


@contextmanager
def _report_damage(index: SourceIndex) -> Iterator[None]:
    """Context that reports errors of reading the index of a source as :exc:`SourceUnreadable`."""
    try:
        yield
    except (apsw.Error, OSError) as error:
        raise SourceUnreadable(path=index.file, reason=error) from error


def _fits(base: IndexedBase, scope: Scope, model_id: str | None, settings: EmbedderSettings) -> bool:
    """Whether the vectors of a base may be by the model of a scope, judged by their length and the model's name.

    ``model_id`` is the model of the scope; None: unknown. ``settings`` are the embedder's, which say what its model is
    called.
    """
    if not base.vectors or base.dimensions != scope.dimensions:
        return False
    return base.model_id is None or base.model_id == model_id or settings.serves(base.model_id)


def _outcome(candidate: _Candidate, *, planned: int = 0, compared: int = 0, reason: str | None = None) -> ReusedVectors:
    """Report what a candidate gives: planned vectors, compared texts, or the reason why it gives nothing."""
    return ReusedVectors(
        source=str(candidate.index.source),
        base=candidate.base.name,
        model_id=candidate.base.model_id,
        planned=planned,
        compared=compared,
        reason=reason,
    )


# --- opening ---------------------------------------------------------------------------------------------------------


@contextmanager
def open_reuse(paths: Sequence[ReusePath], store: Path | None, progress: Progress) -> Iterator[Reuse | None]:
    """Open the sources of vectors for a run; yields None without a source.

    Args:
        paths: the sources, in the order in which they are used.
        store: the store that is filled, which is no source; None: every store may be one.
        progress: notified of the sources that are read.

    Raises:
        WrongUsage: a source that the user named is the store itself.
        RegraftError: a source that the user named cannot be used.
    """
    if not paths:
        yield None
        return
    with ExitStack() as stack:
        found: list[SourceIndex] = []
        with stage(progress, "Reading", len(paths), "files"):
            for one in paths:
                progress.at(one.path.name)
                index = _open_source(one, store, progress, stack)
                if index is not None:
                    found.append(index)
                progress.step(1, 0)
        yield Reuse(stack.enter_context(sqlite.open_scratch()), found, progress)


def choose_readable(paths: Sequence[ReusePath]) -> tuple[Path, ...]:
    """Return the paths of the sources that a fleet uses: without those of the configuration that cannot be read."""
    with ExitStack() as stack:
        return tuple(
            one.path for one in paths if one.is_required or _open_source(one, None, SilentProgress(), stack) is not None
        )


def _open_source(one: ReusePath, store: Path | None, progress: Progress, stack: ExitStack) -> SourceIndex | None:
    """Open the index of a source of vectors; None if the source is the filled ``store``, or optional and not readable.

    ``stack`` closes the index.
    """
    if store is not None and links.real_path(one.path) == links.real_path(store):
        if one.is_required:
            raise WrongUsage(
                problem=tr("--reuse {path} is the store that is filled", path=printable(one.path)),
                hint=tr("name other copies of the data; equal texts of one store share their vectors anyway"),
            )
        return None
    try:
        return stack.enter_context(open_index(one.path, progress))
    except RegraftError as error:
        if one.is_required:
            raise
        # It may be on a drive that is not connected. Without it, more texts are sent.
        logger.warning(tr("a source of vectors in the configuration is left out: {error}", error=error))
        return None


__all__ = ["COMPARED", "Canary", "Reuse", "ReusePath", "Supply", "choose_readable", "find_difference", "open_reuse"]
