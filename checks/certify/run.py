"""``regraft certify``: prove what can be proven about the bases of A, and of B, and name what cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import apsw
import msgspec
import numpy as np
from msgspec import Struct

from checks.audit.collector import FindingCollector
from checks.audit.findings import Finding, FindingReport, Summary
from checks.certify import findings as names
from checks.certify import index_search, known_texts, measures, neighbors
from checks.certify.base import CertifiedBase, measure, require_readable
from checks.certify.known_texts import EmbeddingStopped, EmbedTexts, KnownTexts, ModelCheck
from checks.certify.measures import Adder, Measured
from regraft.disk import sqlite
from regraft.errors import SourceUnreadable
from regraft.language import format_count, tr
from regraft.report.document import Report
from regraft.report.notices import Severity
from regraft.report.progress import Progress, SilentProgress, stage

#: Vectors from which two bases of one model are compared for suspicion.
_MIN_VECTORS = 20
#: Steps of a base that progress counts.
_STEPS = 6
#: What damage raises.
_DAMAGE = (apsw.Error, SourceUnreadable, ValueError, TypeError, OverflowError)
#: Outcomes of a proof.
PROVEN, FOUND, SAMPLED, NOT_CHECKED = "proven", "found", "sampled", "not-checked"
#: The findings that contradict each proof.
CONTRADICTIONS = {
    "texts": (names.UNREADABLE,),
    "vectors": (names.VECTOR_UNUSABLE, names.VECTOR_LENGTH, names.NORM_OUTLIER),
    "coverage": (names.TEXT_WITHOUT_VECTOR,),
    "hashes": (names.HASH_FOREIGN,),
    "shared": (names.VECTOR_SHARED,),
    "reachable": (names.UNREACHABLE,),
    "self": (names.SELF_MISSED,),
    "index": (names.INDEX_DIFFERS,),
    "words": (names.WORDS_DIFFER,),
    "sets": (
        *(names.BASE_MISSING, names.TEXT_MISSING, names.TEXT_ADDED),
        *(names.VECTOR_MISSING, names.VECTOR_ADDED, names.VECTOR_DIFFERS),
    ),
    "neighbors": (names.NEIGHBORS_DIFFER,),
    "model": (names.MODEL_DIFFERS,),
    "known-item": (names.KNOWN_ITEM,),
}


class CertifyRequest(Struct, frozen=True, kw_only=True):
    """What is certified: how many queries, and with which embedder."""

    #: Number of queries of each base; None: all of its texts.
    sample: int | None
    embed: EmbedTexts | None = None
    embedder: str = ""
    #: What is sent for each base, by its id.
    known: Mapping[str, KnownTexts] = {}
    #: Why a base gets no check with the embedder, by its id.
    skipped: Mapping[str, str] = {}
    progress: Progress = msgspec.field(default_factory=SilentProgress)


class Proof(Struct, frozen=True, kw_only=True):
    """One proof of a base.

    ``outcome`` is ``proven`` (for all of the base), ``sampled`` (for the ``checked`` ones), ``found`` (a finding
    contradicts it) or ``not-checked``. ``checked`` counts what was compared.
    """

    name: str
    outcome: str
    checked: int


class Norms(Struct, frozen=True, kw_only=True):
    """Norms of the usable vectors, and a histogram of equal steps from the smallest to the largest."""

    least: float
    median: float
    most: float
    bars: list[int]


class Neighbors(Struct, frozen=True, kw_only=True):
    """Neighbors in A compared with those in B.

    ``overlap`` is the mean share of the 10 nearest texts that are the same, ``lowest`` the smallest one. ``reordered``
    counts the queries with the same texts in another order. ``bars`` counts queries by the number of common texts.
    """

    queries: int
    overlap: float
    lowest: float
    reordered: int
    bars: list[int]


class CertifiedBaseReport(Struct, frozen=True, kw_only=True):
    """What was proven about one base. ``side`` is ``a`` or ``b``; ``compared_with`` the id of its counterpart in B."""

    side: str
    id: str
    name: str
    model: str | None
    compared_with: str | None
    texts: int
    findable: int
    vectors: int
    dimensions: int | None
    proofs: list[Proof]
    norms: Norms | None
    neighbors: Neighbors | None
    model_check: ModelCheck | None


class CertifyFinding(FindingReport, frozen=True, kw_only=True):
    """A finding about a base of A (also where B differs from it), or of B."""

    side: str
    base_name: str


class Suspicion(Struct, frozen=True, kw_only=True):
    """A reason to look at a base, which proves nothing: ``two-groups`` or ``base-apart``."""

    side: str
    name: str
    base: str
    message: str


class CertifyReport(Report, kw_only=True):
    """The report of ``regraft certify`` (``docs/commands.md``)."""

    #: Queries of each base at most; null: all.
    sample: int | None
    bases: list[CertifiedBaseReport]
    findings: list[CertifyFinding]
    suspicions: list[Suspicion]
    summary: Summary
    not_checked: list[str]


class Outcome(Struct, kw_only=True):
    """What a run found."""

    bases: list[CertifiedBaseReport] = []
    #: By side.
    findings: dict[str, tuple[Finding, ...]] = {}
    suspicions: list[Suspicion] = []
    #: Checks with the embedder that stopped, each with the reason.
    not_checked: list[str] = []


class _BaseState(Struct, kw_only=True):
    """Intermediate results of one base while it is certified."""

    side: str
    measured: Measured
    adder: Adder
    checked: dict[str, tuple[bool, int]] = {}
    neighbors: Neighbors | None = None
    model_check: ModelCheck | None = None
    #: Mean of the sampled unit vectors.
    mean: Any = None

    def record_proof(self, name: str, checked: int, *, is_complete: bool) -> None:
        """Record that a statement was tested.

        Args:
            name: the name of the proof.
            checked: the number of texts, vectors or queries that were tested.
            is_complete: whether these are all of the base.
        """
        self.checked[name] = is_complete, checked


class Certification:
    """One run of ``certify``. Single use."""

    def __init__(self, request: CertifyRequest) -> None:
        self._request = request
        self._findings = {"a": FindingCollector(), "b": FindingCollector()}
        self._outcome = Outcome()
        self._means: dict[str, list[tuple[CertifiedBase, Any]]] = {}

    def run(self, pairs: Sequence[tuple[CertifiedBase, CertifiedBase | None]], *, has_second: bool) -> Outcome:
        """Certify bases of A, each with its counterpart in B or None; ``has_second``: whether there is a B.

        Raises:
            RegraftError: the embedder cannot be used.
        """
        progress = self._request.progress
        if not pairs:
            self._outcome.not_checked.append(tr("There is no base to certify."))
        with stage(progress, "Certifying", len(pairs) * _STEPS, "steps"):
            for first, second in pairs:
                progress.at(first.name)
                self._certify_pair(first, second, has_second=has_second)
        self._suspect_bases()
        self._outcome.findings = {side: found.to_findings() for side, found in self._findings.items()}
        return self._outcome

    def _certify_pair(self, first: CertifiedBase, second: CertifiedBase | None, *, has_second: bool) -> None:
        """Measure and prove a base of A, and its counterpart in B unless that is None.

        ``has_second``: whether there is a B.
        """
        with sqlite.open_scratch() as scratch, ExitStack() as stack:
            one = self._measure_base(stack, first, scratch, "a")
            self._step()
            other = None if second is None else self._measure_base(stack, second, scratch, "b")
            self._step()
            for state in filter(None, (one, other)):
                with self._report_damage(state.side, state.measured.base):
                    self._prove_base(state)
                self._step()
            if has_second and second is None and first.open is not None:
                self._findings["a"].add(names.BASE_MISSING, tr("B has no base that belongs to it"), base=first.id)
            if one is not None and other is not None:
                with self._report_damage("a", first):
                    self._prove_pair(one, other)
            for state in filter(None, (one, other)):
                self._outcome.bases.append(self._report(state, second if state.side == "a" else None))

    def _step(self) -> None:
        """Advance the progress by one step."""
        self._request.progress.step(1, 0)

    @contextmanager
    def _report_damage(self, side: str, base: CertifiedBase) -> Iterator[None]:
        """Context that turns an error about damaged data of a base into a finding. ``side`` is "a" or "b"."""
        try:
            yield
        except _DAMAGE as error:
            self._add_damage(side, base, error)

    def _add_damage(self, side: str, base: CertifiedBase, error: Exception) -> None:
        """Report that a base of a side ("a" or "b") cannot be read; ``error`` says why.

        Failures to write temporary files are raised again.
        """
        if sqlite.is_write_failure(error):
            raise error
        reason = error.facts["reason"] if isinstance(error, SourceUnreadable) else error
        message = tr("it cannot be read as a whole: {reason}", reason=reason)
        self._findings[side].add(names.UNREADABLE, message, base=base.id)

    def _measure_base(
        self, stack: ExitStack, base: CertifiedBase, scratch: apsw.Connection, side: str
    ) -> _BaseState | None:
        """Open and measure a base; add a finding and return None if it cannot be read.

        Args:
            stack: closes the file of the base.
            base: how the base is read.
            scratch: a temporary database for the measurements.
            side: "a" or "b".
        """
        if base.open is None:
            message = base.problem or tr("it has no file of texts and vectors")
            self._findings[side].add(names.UNREADABLE, message, base=base.id)
            return None
        try:
            db = stack.enter_context(base.open())
            require_readable(base, db)
            measure(db, base, scratch, side)
            measured = Measured(base=base, db=db, scratch=scratch, prefix=side)
            measured.materialize()
        except _DAMAGE as error:
            self._add_damage(side, base, error)
            return None
        return _BaseState(side=side, measured=measured, adder=Adder(self._findings[side], measured))

    # --- one base --------------------------------------------------------------------------------------------------

    def _prove_base(self, state: _BaseState) -> None:
        """Run all proofs of a measured base that need no second base."""
        of, counts = state.measured, state.measured.counts()
        state.record_proof("texts", counts.texts, is_complete=True)
        measures.prove_vectors(of, state.adder)
        measures.prove_texts(of, state.adder)
        for name, checked in (("vectors", counts.vectors), ("coverage", counts.texts), ("shared", counts.findable)):
            if of.length is not None:
                state.record_proof(name, checked, is_complete=True)
        rows = _select_evenly(of, f"SELECT at, body FROM {of.prefix}found ORDER BY at", self._request.sample)
        if of.base.table is None:
            self._prove_index(state, rows, counts)
        elif of.base.recall is not None:
            self._prove_recall(state)
        if of.base.words is not None:
            most = None if self._request.sample is None else min(self._request.sample, index_search.WORD_SEARCHES)
            tried, every = index_search.prove_word_index(of.base.words, state.adder, most)
            state.record_proof("words", tried, is_complete=tried >= every)
        if rows:
            self._look_for_groups(state, rows)
        self._check_model(state)

    def _prove_index(self, state: _BaseState, rows: list[tuple[int, int]], counts: measures.BaseCounts) -> None:
        """Run the proofs about an index file: hashes, reachable texts, vector searches and word searches.

        Args:
            state: the base.
            rows: row number of each vector to search for, and row number of its text.
            counts: the numbers of texts and vectors of the base.
        """
        of, sample = state.measured, self._request.sample
        state.record_proof("hashes", counts.texts, is_complete=True)
        hidden = 0
        if of.length is not None:
            hidden = index_search.prove_reachable(of, state.adder)
            state.record_proof("reachable", counts.findable, is_complete=True)
            few = rows if sample is None else rows[:: max(1, -(-len(rows) // index_search.SEARCHES))]
            searches = index_search.prove_searches(of, state.adder, few, hidden)
            for name in ("self", "index"):
                state.record_proof(name, searches, is_complete=searches == counts.findable)
        most = None if sample is None else min(sample, index_search.WORD_SEARCHES)
        bodies = [body for body, _ in _select_evenly(of, f"SELECT rowid, 0 FROM {of.prefix}body ORDER BY rowid", most)]
        words = index_search.prove_words(of, state.adder, bodies)
        state.record_proof("words", words, is_complete=words >= of.number(f"SELECT count(*) FROM {of.prefix}body"))

    def _prove_recall(self, state: _BaseState) -> None:
        """Report a base of Chroma whose own vector index misses too many of the nearest vectors."""
        found = None if state.measured.base.recall is None else state.measured.base.recall()
        if found is None:
            return
        if isinstance(found, str):
            state.adder.finding(names.INDEX_DIFFERS, tr("chromadb cannot search it: {problem}", problem=found))
        elif found < LEAST_RECALL:
            message = tr("its index finds {share:.1%} of the {count} nearest vectors", share=found, count=10)
            state.adder.finding(names.INDEX_DIFFERS, message)
        state.record_proof("index", RECALL_QUERIES, is_complete=False)

    def _look_for_groups(self, state: _BaseState, rows: list[tuple[int, int]]) -> None:
        """Add a suspicion if the vectors of a base fall into two groups; otherwise keep their mean, to compare bases.

        ``rows`` has row numbers of vectors, and of their texts.
        """
        of = state.measured
        few = rows[:: max(1, len(rows) // neighbors.QUERIES_AT_ONCE)][: neighbors.QUERIES_AT_ONCE]
        units = of.units([at for at, _ in few])
        groups = neighbors.find_two_groups(units)
        if groups is not None:
            message = tr(
                "its vectors fall into two groups far apart ({share:.0%} in the smaller one, cosine of the means "
                "{cosine:.2f}), as those of two models do",
                share=groups.share,
                cosine=groups.cosine,
            )
            suspicion = Suspicion(side=state.side, name=names.TWO_GROUPS, base=of.base.id, message=message)
            self._outcome.suspicions.append(suspicion)
        elif len(units) >= _MIN_VECTORS and of.base.model is not None and state.side == "a":
            self._means.setdefault(of.base.model, []).append((of.base, units.mean(axis=0)))

    def _suspect_bases(self) -> None:
        """Add a suspicion for each base whose mean vector is far from those of all other bases of the same model."""
        for same in self._means.values():
            for at, (base, mean) in enumerate(same):
                others = [other for place, (_, other) in enumerate(same) if place != at]
                apart = neighbors.highest_cosine_if_far(mean, others)
                if apart is not None:
                    message = tr(
                        "its vectors point in other directions than those of the other bases of {model} (cosine of the "
                        "means {cosine:.2f} at most), as those of another model do",
                        model=base.model,
                        cosine=apart,
                    )
                    suspicion = Suspicion(side="a", name=names.BASE_APART, base=base.id, message=message)
                    self._outcome.suspicions.append(suspicion)

    # --- with the model --------------------------------------------------------------------------------------------

    def _check_model(self, state: _BaseState) -> None:
        """Embed some texts of a base of A again, and report stored vectors that differ.

        Without an embedder, do nothing.
        """
        request = self._request
        if request.embed is None or state.side != "a":
            return
        state.model_check = found = self._compare_model(state.measured, request.embed)
        if not found.texts:
            return
        state.record_proof("model", found.texts, is_complete=False)
        if found.same < found.texts:
            message = tr(
                "{other} of {texts} texts ({share:.0%}) have another vector than embedder {embedder} makes of them; "
                "lowest cosine {lowest:.3f}",
                other=found.texts - found.same,
                texts=found.texts,
                share=1 - found.same / found.texts,
                embedder=request.embedder,
                lowest=found.lowest,
            )
            state.adder.finding(names.MODEL_DIFFERS, message, found.texts - found.same)
        if found.ends:
            state.record_proof("known-item", found.ends, is_complete=False)
            if 2 * found.found < found.ends and found.same == found.texts:
                message = tr(
                    "only {found} of {ends} texts are found by their last third", found=found.found, ends=found.ends
                )
                state.adder.finding(names.KNOWN_ITEM, message, found.ends - found.found)

    def _compare_model(self, measured: Measured, embed: EmbedTexts) -> ModelCheck:
        """Embed the known texts of a base again and compare the vectors.

        The result says why if that is not possible.
        """
        request, key = self._request, measured.base.id
        if measured.length is None or key not in request.known:
            return ModelCheck(embedder=request.embedder, problem=request.skipped.get(key))
        try:
            return known_texts.compare_model(measured, request.known[key], embed, request.embedder)
        except EmbeddingStopped as stopped:
            self._outcome.not_checked.append(f"{measured.base.name}: {stopped}")
            return ModelCheck(embedder=request.embedder, problem=str(stopped))

    # --- two bases -------------------------------------------------------------------------------------------------

    def _prove_pair(self, first_state: _BaseState, second_state: _BaseState) -> None:
        """Compare the texts, vectors and nearest neighbors of a base of A with those of B."""
        first, second = first_state.measured, second_state.measured
        measures.prove_sets(first, second, first_state.adder, Adder(self._findings["a"], second, first.base.id))
        first_state.record_proof("sets", first.counts().texts, is_complete=True)
        if first.length is None or second.length is None:
            return
        both = f"FROM {first.prefix}found f JOIN {second.prefix}found g ON g.text = f.text"
        shared = _select_evenly(first, f"SELECT f.at, g.at {both} ORDER BY f.at", self._request.sample)
        if not shared:
            return
        total = first.number(f"SELECT count(*) {both}")
        first_state.neighbors = found = _compare_neighbors(first, second, shared)
        first_state.record_proof("neighbors", found.queries, is_complete=found.queries == total)
        if found.overlap < 1 or found.reordered:
            message = tr(
                "{overlap:.2%} of the {count} nearest texts are the same in A and B, over {queries}; "
                "for {reordered} the same texts come in another order",
                overlap=found.overlap,
                count=neighbors.NEAREST,
                queries=format_count(found.queries, "query"),
                reordered=format_count(found.reordered, "query"),
            )
            models = {first.base.model, second.base.model} - {None}
            is_expected = len(models) > 1 or first.length != second.length
            first_state.adder.finding(
                names.NEIGHBORS_DIFFER,
                message,
                found.queries - found.bars[-1] + found.reordered,
                severity="note" if is_expected else None,
            )

    # --- the report ------------------------------------------------------------------------------------------------

    def _report(self, state: _BaseState, second: CertifiedBase | None) -> CertifiedBaseReport:
        """Convert the results of a base to its part of the report.

        ``second`` is the base of B that it was compared with.
        """
        of, counts = state.measured, state.measured.counts()
        ends, bars = measures.norm_statistics(of)
        norms = Norms(least=ends[0], median=ends[1], most=ends[2], bars=bars) if ends else None
        return CertifiedBaseReport(
            side=state.side,
            id=of.base.id,
            name=of.base.name,
            model=of.base.model,
            compared_with=None if second is None else second.id,
            texts=counts.texts,
            findable=counts.findable,
            vectors=counts.vectors,
            dimensions=None if of.length is None else of.length // 4,
            proofs=[self._proof(state, name) for name in names.PROOFS],
            norms=norms,
            neighbors=state.neighbors,
            model_check=state.model_check,
        )

    def _proof(self, state: _BaseState, name: str) -> Proof:
        """Return the outcome of the proof ``name`` for a base: proven, sampled, contradicted, or not checked."""
        every, checked = state.checked.get(name, (False, 0))
        findings, base = self._findings[state.side], state.measured.base.id
        is_found = any(findings.count(finding, base) for finding in CONTRADICTIONS[name])
        if is_found and (name in state.checked or name == "texts"):
            outcome = FOUND
        elif name not in state.checked:
            outcome = NOT_CHECKED
        else:
            outcome = PROVEN if every else SAMPLED
        return Proof(name=name, outcome=outcome, checked=checked)


#: As for ``regraft check --deep`` of Chroma: queries, and the share of nearest vectors below which there is a finding.
RECALL_QUERIES, LEAST_RECALL = 20, 0.8


def _select_evenly(measured: Measured, query: str, count: int | None) -> list[tuple[int, int]]:
    """Return rows of a query that computes two numbers: at most ``count``, evenly spread; None: all."""
    total = measured.number(f"SELECT count(*) FROM ({query})")
    step = 1.0 if count is None else max(1.0, total / count)
    rows, due = [], 0.0
    for place, (one, two) in enumerate(measured.scratch.execute(query)):
        if place >= due:
            rows.append((int(str(one)), int(str(two))))
            due += step
    return rows


def _compare_neighbors(first: Measured, second: Measured, shared: list[tuple[int, int]]) -> Neighbors:
    """Search both bases for the nearest texts of the same texts, and compare what is found.

    ``shared`` has the row numbers of each text's vector in the first and the second base.
    """
    place_of = f"""SELECT g.at FROM {first.prefix}found f JOIN {second.prefix}found g ON g.text = f.text
                    WHERE f.at = ?"""
    bars = [0] * (neighbors.NEAREST + 1)
    shares: list[float] = []
    reordered = 0
    for start in range(0, len(shared), neighbors.QUERIES_AT_ONCE):
        rows = shared[start : start + neighbors.QUERIES_AT_ONCE]
        left, right = ([int(row[side]) for row in rows] for side in (0, 1))
        nearest = neighbors.find_nearest(first.blocks, first.units(left), np.array(left, dtype=np.int64))
        units = second.units(right)
        others = neighbors.find_nearest(second.blocks, units, np.array(right, dtype=np.int64))
        for line, unit in enumerate(units):
            wanted = [int(row) for row in nearest.rowids[line] if row >= 0]
            if not wanted:
                continue
            least = float(others.cosines[line][min(len(wanted), neighbors.NEAREST) - 1])
            places = [first.scratch.execute(place_of, (row,)).get for row in wanted]
            there = [int(str(place)) for place in places if place is not None]
            cosines = iter((second.units(there) @ unit).tolist()) if there else iter(())
            found = neighbors.compare_neighbors([None if place is None else next(cosines) for place in places], least)
            shares.append(found.common / found.of)
            bars[round(neighbors.NEAREST * found.common / found.of)] += 1
            reordered += found.is_reordered
    return Neighbors(
        queries=len(shares),
        overlap=sum(shares) / len(shares) if shares else 1.0,
        lowest=min(shares, default=1.0),
        reordered=reordered,
        bars=bars,
    )


def summarize(findings: Sequence[CertifyFinding]) -> Summary:
    """Count findings of ``certify`` by severity and by name."""
    severities: tuple[Severity, ...] = ("error", "warning", "note")
    return Summary(
        by_severity={one: sum(finding.severity == one for finding in findings) for one in severities},
        by_name=dict(sorted(Counter(finding.name for finding in findings).items())),
    )


def report_findings(outcome: Outcome, names_of: Mapping[str, Mapping[str, str]]) -> list[CertifyFinding]:
    """Convert the findings of both sides for the report, errors first.

    Args:
        outcome: the result of the run.
        names_of: for each side, "a" and "b", the names of its bases by id.
    """
    order = ("error", "warning", "note")
    every = [(side, finding) for side, found in outcome.findings.items() for finding in found]
    every.sort(key=lambda one: order.index(one[1].severity))
    return [
        CertifyFinding(
            side=side,
            base_name=names_of[side].get(finding.base or "", finding.base or ""),
            name=finding.name,
            severity=finding.severity,
            message=finding.message,
            base=finding.base,
            subject=finding.subject,
            count=finding.count,
            samples=finding.samples,
            repair=finding.repair,
        )
        for side, finding in every
    ]
