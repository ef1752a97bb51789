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
from checks.certify.base import CertifiedBase, demand_readable, measure
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


class _Base(Struct, kw_only=True):
    """One base while it is certified."""

    side: str
    measured: Measured
    adder: Adder
    checked: dict[str, tuple[bool, int]] = {}
    neighbors: Neighbors | None = None
    model_check: ModelCheck | None = None
    #: Mean of the sampled unit vectors.
    mean: Any = None

    def record_proof(self, name: str, checked: int, *, every: bool) -> None:
        """Record that a proof was tried with so many objects; ``every``: with all of the base."""
        self.checked[name] = every, checked


class Certification:
    """One run. Single use."""

    def __init__(self, request: CertifyRequest) -> None:
        self._request = request
        self._findings = {"a": FindingCollector(), "b": FindingCollector()}
        self._outcome = Outcome()
        self._means: dict[str, list[tuple[CertifiedBase, Any]]] = {}

    def run(self, pairs: Sequence[tuple[CertifiedBase, CertifiedBase | None]], *, has_second: bool) -> Outcome:
        """Certify bases, each with its counterpart in B.

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
        """Measure and prove a base of A and, unless it is None, that of B; ``has_second``: whether there is a B."""
        with sqlite.open_scratch() as scratch, ExitStack() as stack:
            one = self._measure_base(stack, first, scratch, "a")
            self._step()
            other = None if second is None else self._measure_base(stack, second, scratch, "b")
            self._step()
            for part in filter(None, (one, other)):
                with self._damage(part.side, part.measured.base):
                    self._prove_base(part)
                self._step()
            if has_second and second is None and first.open is not None:
                self._findings["a"].add(names.BASE_MISSING, tr("B has no base that belongs to it"), base=first.id)
            if one is not None and other is not None:
                with self._damage("a", first):
                    self._prove_pair(one, other)
            for part in filter(None, (one, other)):
                self._outcome.bases.append(self._report(part, second if part.side == "a" else None))

    def _step(self) -> None:
        self._request.progress.step(1, 0)

    @contextmanager
    def _damage(self, side: str, base: CertifiedBase) -> Iterator[None]:
        """Make a finding of damage that is met in this block."""
        try:
            yield
        except _DAMAGE as error:
            self._add_damage(side, base, error)

    def _add_damage(self, side: str, base: CertifiedBase, error: Exception) -> None:
        """Report that a base cannot be read. Failures to write temporary files are raised again."""
        if sqlite.is_write_failure(error):
            raise error
        reason = error.facts["reason"] if isinstance(error, SourceUnreadable) else error
        message = tr("it cannot be read as a whole: {reason}", reason=reason)
        self._findings[side].add(names.UNREADABLE, message, base=base.id)

    def _measure_base(self, stack: ExitStack, base: CertifiedBase, scratch: apsw.Connection, side: str) -> _Base | None:
        """Measure a base; None and a finding if it cannot be read."""
        if base.open is None:
            message = base.problem or tr("it has no file of texts and vectors")
            self._findings[side].add(names.UNREADABLE, message, base=base.id)
            return None
        try:
            db = stack.enter_context(base.open())
            demand_readable(base, db)
            measure(db, base, scratch, side)
            measured = Measured(base=base, db=db, scratch=scratch, prefix=side)
            measured.materialize()
        except _DAMAGE as error:
            self._add_damage(side, base, error)
            return None
        return _Base(side=side, measured=measured, adder=Adder(self._findings[side], measured))

    # --- one base --------------------------------------------------------------------------------------------------

    def _prove_base(self, part: _Base) -> None:
        """Run all proofs of one base that need no second base."""
        of, counts = part.measured, part.measured.counts()
        part.record_proof("texts", counts.texts, every=True)
        measures.prove_vectors(of, part.adder)
        measures.prove_texts(of, part.adder)
        for name, checked in (("vectors", counts.vectors), ("coverage", counts.texts), ("shared", counts.findable)):
            if of.length is not None:
                part.record_proof(name, checked, every=True)
        rows = _select_evenly(of, f"SELECT at, body FROM {of.prefix}found ORDER BY at", self._request.sample)
        if of.base.table is None:
            self._prove_index(part, rows, counts)
        elif of.base.recall is not None:
            self._prove_recall(part)
        if of.base.words is not None:
            most = None if self._request.sample is None else min(self._request.sample, index_search.WORD_SEARCHES)
            tried, every = index_search.prove_word_index(of.base.words, part.adder, most)
            part.record_proof("words", tried, every=tried >= every)
        if rows:
            self._look_for_groups(part, rows)
        self._check_model(part)

    def _prove_index(self, part: _Base, rows: list[tuple[int, int]], counts: measures.BaseCounts) -> None:
        """Prove hashes, reachability, vector searches and word searches of an index; ``rows``: of vector and text."""
        of, sample = part.measured, self._request.sample
        part.record_proof("hashes", counts.texts, every=True)
        hidden = 0
        if of.length is not None:
            hidden = index_search.prove_reachable(of, part.adder)
            part.record_proof("reachable", counts.findable, every=True)
            few = rows if sample is None else rows[:: max(1, -(-len(rows) // index_search.SEARCHES))]
            searches = index_search.prove_searches(of, part.adder, few, hidden)
            for name in ("self", "index"):
                part.record_proof(name, searches, every=searches == counts.findable)
        most = None if sample is None else min(sample, index_search.WORD_SEARCHES)
        bodies = [body for body, _ in _select_evenly(of, f"SELECT rowid, 0 FROM {of.prefix}body ORDER BY rowid", most)]
        words = index_search.prove_words(of, part.adder, bodies)
        part.record_proof("words", words, every=words >= of.number(f"SELECT count(*) FROM {of.prefix}body"))

    def _prove_recall(self, part: _Base) -> None:
        """Compare the index of Chroma with every vector."""
        found = None if part.measured.base.recall is None else part.measured.base.recall()
        if found is None:
            return
        if isinstance(found, str):
            part.adder.finding(names.INDEX_DIFFERS, tr("chromadb cannot search it: {problem}", problem=found))
        elif found < LEAST_RECALL:
            message = tr("its index finds {share:.1%} of the {count} nearest vectors", share=found, count=10)
            part.adder.finding(names.INDEX_DIFFERS, message)
        part.record_proof("index", RECALL_QUERIES, every=False)

    def _look_for_groups(self, part: _Base, rows: list[tuple[int, int]]) -> None:
        """Note a base whose vectors fall into two groups; keep the mean of the others, to compare bases."""
        of = part.measured
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
            suspicion = Suspicion(side=part.side, name=names.TWO_GROUPS, base=of.base.id, message=message)
            self._outcome.suspicions.append(suspicion)
        elif len(units) >= _MIN_VECTORS and of.base.model is not None and part.side == "a":
            self._means.setdefault(of.base.model, []).append((of.base, units.mean(axis=0)))

    def _suspect_bases(self) -> None:
        """Suspect bases whose vectors point elsewhere than those of all other bases of the same model."""
        for same in self._means.values():
            for at, (base, mean) in enumerate(same):
                others = [other for place, (_, other) in enumerate(same) if place != at]
                apart = neighbors.find_apart(mean, others)
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

    def _check_model(self, part: _Base) -> None:
        """Embed some texts of A again and compare the vectors; nothing without an embedder."""
        request = self._request
        if request.embed is None or part.side != "a":
            return
        part.model_check = found = self._compare_model(part.measured, request.embed)
        if not found.texts:
            return
        part.record_proof("model", found.texts, every=False)
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
            part.adder.finding(names.MODEL_DIFFERS, message, found.texts - found.same)
        if found.ends:
            part.record_proof("known-item", found.ends, every=False)
            if 2 * found.found < found.ends and found.same == found.texts:
                message = tr(
                    "only {found} of {ends} texts are found by their last third", found=found.found, ends=found.ends
                )
                part.adder.finding(names.KNOWN_ITEM, message, found.ends - found.found)

    def _compare_model(self, of: Measured, embed: EmbedTexts) -> ModelCheck:
        request, key = self._request, of.base.id
        if of.length is None or key not in request.known:
            return ModelCheck(embedder=request.embedder, problem=request.skipped.get(key))
        try:
            return known_texts.compare_model(of, request.known[key], embed, request.embedder)
        except EmbeddingStopped as stopped:
            self._outcome.not_checked.append(f"{of.base.name}: {stopped}")
            return ModelCheck(embedder=request.embedder, problem=str(stopped))

    # --- two bases -------------------------------------------------------------------------------------------------

    def _prove_pair(self, one: _Base, other: _Base) -> None:
        """Compare the texts, vectors and nearest neighbors of a base of A with those of B."""
        first, second = one.measured, other.measured
        measures.prove_sets(first, second, one.adder, Adder(self._findings["a"], second, first.base.id))
        one.record_proof("sets", first.counts().texts, every=True)
        if first.length is None or second.length is None:
            return
        both = f"FROM {first.prefix}found f JOIN {second.prefix}found g ON g.text = f.text"
        shared = _select_evenly(first, f"SELECT f.at, g.at {both} ORDER BY f.at", self._request.sample)
        if not shared:
            return
        total = first.number(f"SELECT count(*) {both}")
        one.neighbors = found = _compare_neighbors(first, second, shared)
        one.record_proof("neighbors", found.queries, every=found.queries == total)
        if found.overlap < 1 or found.reordered:
            message = tr(
                "{overlap:.2%} of the {count} nearest texts are the same in A and B, over {queries}; "
                "{reordered:,} in another order",
                overlap=found.overlap,
                count=neighbors.NEAREST,
                queries=format_count(found.queries, "query"),
                reordered=found.reordered,
            )
            models = {first.base.model, second.base.model} - {None}
            is_expected = len(models) > 1 or first.length != second.length
            one.adder.finding(
                names.NEIGHBORS_DIFFER,
                message,
                found.queries - found.bars[-1] + found.reordered,
                severity="note" if is_expected else None,
            )

    # --- the report ------------------------------------------------------------------------------------------------

    def _report(self, part: _Base, second: CertifiedBase | None) -> CertifiedBaseReport:
        """Describe a base and its proofs for the report; ``second`` is the base that it was compared with."""
        of, counts = part.measured, part.measured.counts()
        ends, bars = measures.norm_statistics(of)
        norms = Norms(least=ends[0], median=ends[1], most=ends[2], bars=bars) if ends else None
        return CertifiedBaseReport(
            side=part.side,
            id=of.base.id,
            name=of.base.name,
            model=of.base.model,
            compared_with=None if second is None else second.id,
            texts=counts.texts,
            findable=counts.findable,
            vectors=counts.vectors,
            dimensions=None if of.length is None else of.length // 4,
            proofs=[self._proof(part, name) for name in names.PROOFS],
            norms=norms,
            neighbors=part.neighbors,
            model_check=part.model_check,
        )

    def _proof(self, part: _Base, name: str) -> Proof:
        """Return how far a statement about a base is proven: fully, for a sample, contradicted, not checked."""
        every, checked = part.checked.get(name, (False, 0))
        findings, base = self._findings[part.side], part.measured.base.id
        is_found = any(findings.count(finding, base) for finding in CONTRADICTIONS[name])
        if is_found and (name in part.checked or name == "texts"):
            outcome = FOUND
        elif name not in part.checked:
            outcome = NOT_CHECKED
        else:
            outcome = PROVEN if every else SAMPLED
        return Proof(name=name, outcome=outcome, checked=checked)


#: As for ``regraft check --deep`` of Chroma: queries, and the share of nearest vectors below which there is a finding.
RECALL_QUERIES, LEAST_RECALL = 20, 0.8


def _select_evenly(of: Measured, query: str, count: int | None) -> list[tuple[int, int]]:
    """Return rows of a query with two numbers, evenly spread; at most ``count``."""
    total = of.number(f"SELECT count(*) FROM ({query})")
    step = 1.0 if count is None else max(1.0, total / count)
    rows, due = [], 0.0
    for place, (one, two) in enumerate(of.scratch.execute(query)):
        if place >= due:
            rows.append((int(str(one)), int(str(two))))
            due += step
    return rows


def _compare_neighbors(first: Measured, second: Measured, shared: list[tuple[int, int]]) -> Neighbors:
    """Compare the nearest texts of texts in both bases, each by its own vector there."""
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
    """Count findings by severity and by name."""
    severities: tuple[Severity, ...] = ("error", "warning", "note")
    return Summary(
        by_severity={one: sum(finding.severity == one for finding in findings) for one in severities},
        by_name=dict(sorted(Counter(finding.name for finding in findings).items())),
    )


def report_findings(outcome: Outcome, names_of: Mapping[str, Mapping[str, str]]) -> list[CertifyFinding]:
    """Return the findings of both sides, errors first.

    Args:
        outcome: of the run.
        names_of: names of the bases by id, by side.
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
