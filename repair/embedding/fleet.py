"""Backfill of all libraries of a fleet: each distinct text is sent once (``docs/fleet.md``).

A run has four phases. Jobs collect the texts of each library; the embedder is compared with the vectors of each base;
the texts are sent, and their answers stored in the work folder; jobs fill each library with the answers. A resumed run
uses the answers of an interrupted one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from itertools import chain, islice
from pathlib import Path

import msgspec

from regraft import identity
from regraft.disk import durable, scratch, untrusted_sqlite, writable
from regraft.embedders import TextsRejected, Unanswered
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import (
    STOPPED,
    AnswerUnfit,
    BackfillStopped,
    Declined,
    EmbedderUnsteady,
    FleetRefused,
    RegraftError,
)
from regraft.fleet import results
from regraft.fleet.engine import Pool, Task, TaskError, TaskResult
from regraft.fleet.results import LIMITED, ResultRow
from regraft.fleet.run import Fleet, FleetReport
from regraft.language import tr
from regraft.options import BackfillOptions
from regraft.report.document import Run
from regraft.report.progress import Progress, SilentProgress, stage
from repair.embedding import answers, fleet_texts, probing
from repair.embedding.answers import (
    NOTHING_SPENT,
    KnownEmbedder,
    SendingTerms,
    SpentTotals,
    StopReason,
    TextAnswer,
)
from repair.embedding.budget import Limits, Rates
from repair.embedding.fleet_sending import LocalSending, RaySending
from repair.embedding.fleet_texts import BackfillSummary, DistinctTexts, EmbeddingJob, WantedText
from repair.embedding.report import EmbedderName, Estimate, ScopeReport, cost_of, empty_estimate
from repair.embedding.sender import VectorLengths
from repair.embedding.survey import estimate_sending

logger = logging.getLogger(__name__)

#: The processes that send.
Sending = LocalSending | RaySending
#: Texts for which the keeper is asked at a time.
_CHUNK = 256
#: Why a text has no answer although no limit or error kept it from being sent.
_CHANGED = tr("the library was changed during the run")
#: Counts of a scope's report that are summed up for its library.
_COUNTS = ("eligible", "skipped_ready", "newly_ready", "shared", "reused", "ready", "failed")


# --- reports ---------------------------------------------------------------------------------------------------------


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was sent to compare the embedder with existing vectors; ``texts`` are distinct.

    ``cost`` counts against ``--max-cost``. ``remembered``: an earlier run has compared the same texts.
    """

    texts: int
    requests: int
    tokens: int
    cost: float | None
    remembered: bool


class FleetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet will send.

    ``wanted`` texts of ``libraries`` lack a vector; ``distinct`` of them are to be sent, without those that an earlier
    run has an answer to. ``planned`` is the estimate, within the limits. ``reused`` texts more get a vector of another
    store and are not sent.
    """

    libraries: int
    wanted: int
    distinct: int
    planned: Estimate
    reused: int = 0


class SentReport(FleetPlan, frozen=True, kw_only=True):
    """What a fleet was to send and has sent (``docs/commands.md``, "fleet").

    ``answered`` texts got a vector, ``failed`` were rejected. ``stopped`` is why not all were sent.
    """

    answered: int
    failed: int
    requests: int
    tokens: int
    cost: float | None
    currency: str
    stopped: str | None
    probe: ProbeReport


class FleetBackfillReport(FleetReport, kw_only=True):
    """Counts of the libraries of a fleet, and what was sent to which embedder."""

    embedder: EmbedderName
    sent: SentReport


class SurveyedLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """What the run keeps of a library that lacks vectors.

    ``dimensions`` are the vector lengths of its bases that lack vectors; None: unknown for one of them.
    ``reused`` texts get a vector of another store. ``ended`` is the result of the job that collected its texts.
    """

    ended: TaskResult
    dimensions: frozenset[int | None]
    reused: int


# --- the comparison --------------------------------------------------------------------------------------------------


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Compares the embedder with the vectors that bases have, or with itself.

    Args:
        work: the fleet's work folder.
        settings: the embedder's.
        sending: the processes that send.
        compared: the texts of all samples.
        step: called with the number of texts that got an answer.
    """

    work: Path
    settings: EmbedderSettings
    sending: Sending
    compared: DistinctTexts
    step: Callable[[int], None]

    @property
    def _known(self) -> KnownEmbedder:
        return KnownEmbedder(self.settings, partial(self.sending.keeper.find, kind="probes"), _CHANGED)

    def recall(self) -> bool:
        """Send one of the texts that an earlier run has compared; keep the other answers if its vector is the same.

        The server may serve another model under the same name by now.
        """
        keeper = self.sending.keeper
        sentences = ((identity.text_hash(text), text) for text in probing.SENTENCES)
        texts = chain(self.compared.keyed(), sentences)
        before: dict[str, TextAnswer] = {}
        # Many at a time: the keeper may be another process.
        while not before and (chunk := dict(islice(texts, _CHUNK))):
            before = {key: one for key, one in keeper.find(list(chunk), "probes").items() if one.vector is not None}
        if not before:
            keeper.forget_compared()
            return False
        key, known = min(before.items(), key=lambda one: len(chunk[one[0]]))
        try:
            [vector] = self._ask([chunk[key]])
        except Unanswered:
            # Nothing more is sent by this run either.
            return True
        except TextsRejected:
            vector = b""
        is_same = probing.is_same_vector(known.vector or b"", vector)
        if not is_same:
            keeper.forget_compared()
        return is_same

    def _ask(self, texts: Sequence[str]) -> Sequence[bytes]:
        """Send texts as probes, whether or not they have an answer, in this order; returns their vectors.

        Raises:
            TextsRejected: one of them was rejected.
            Unanswered: one of them was not sent.
        """
        self.sending.keeper.forget_compared([identity.text_hash(text) for text in texts])
        with fleet_texts.open_distinct_texts(self.work, "asked") as asked:
            asked.add([WantedText.of(text, 0) for text in texts], None)
            self.sending.send(asked, "probes", None, lambda _: None)
        return self._known.embed(texts).vectors

    def run(self, libraries: Collection[int]) -> dict[int, StopReason]:
        """Send the samples of all bases; returns the libraries that have a base of another model, and the error."""
        self.sending.send(self.compared, "probes", None, self.step)
        keeper = self.sending.keeper
        has_empty_base = any(
            not sample.raw for library in libraries for sample in fleet_texts.read_samples(self.work, library)
        )
        unsteady = self._check_steadiness() if has_empty_base and keeper.stopped() is None else None
        refusals = ((library, self._check(library, unsteady, keeper.stopped())) for library in libraries)
        return {library: refusal for library, refusal in refusals if refusal is not None}

    def _check_steadiness(self) -> StopReason | None:
        """Check that the embedder gives one vector for one text; returns the error for bases without vectors, or None.

        If the embedder does not answer, the keeper permits no more requests.
        """
        keeper, name = self.sending.keeper, self.settings.name
        sentences = [identity.text_hash(text) for text in probing.SENTENCES]
        if len(keeper.find(sentences, "probes")) == len(sentences):
            # An earlier run has checked it.
            return None
        try:
            probing.compare_vectors(name, name, [], None, self._ask)
        except (EmbedderUnsteady, AnswerUnfit) as error:
            keeper.forget_compared(sentences)
            return StopReason.of(error)
        except RegraftError as error:
            keeper.stop(StopReason.of(error))
        except Unanswered:
            # The keeper knows why.
            pass
        return None

    def _check(self, library: int, unsteady: StopReason | None, stop: StopReason | None) -> StopReason | None:
        """Compare the answers with the bases of a library; returns the error if one differs, or None.

        Args:
            library: the library's number.
            unsteady: the error for bases without vectors, if any.
            stop: why some samples have no answer, if so.
        """
        for sample in fleet_texts.read_samples(self.work, library):
            if not sample.raw and unsteady is not None:
                return unsteady
            canary = sample.canary()
            try:
                if canary is not None:
                    canary.compare(self._known)
                else:
                    probing.compare_with_base(self._known, sample.base, sample.known, sample.dimensions)
            except Unanswered as unanswered:
                return stop or StopReason(code=BackfillStopped.__name__, reason=str(unanswered), exit_status=STOPPED)
            except RegraftError as error:
                return StopReason.of(error)
        return None


# --- the run ---------------------------------------------------------------------------------------------------------


class _Sent(msgspec.Struct, frozen=True, kw_only=True):
    """The end of sending: the libraries that are not filled, and why not all texts have an answer."""

    refused: dict[int, StopReason]
    stop: StopReason | None


class FleetBackfill(Fleet, kw_only=True):
    """One run over a fleet. Single use.

    Args:
        settings: the embedder's.
        open_sending: returns the processes that send; called with the pool and the terms.
        limits: the most that may be sent; of these, only the cost limit includes probes.
        rates: the most that may be sent per minute.
        probes: whether each library is compared with the embedder once more while it is filled.
        reuse: stores whose vectors are taken instead of sending their texts; absolute paths.
        dry_run: only collect, and report what would be sent.
        show_plan: called with the plan before anything is sent; returns False to stop.
        progress: told of libraries and texts.
    """

    settings: EmbedderSettings
    open_sending: Callable[[Pool, SendingTerms], Sending]
    limits: Limits = Limits()
    rates: Rates = Rates()
    probes: bool = True
    reuse: tuple[Path, ...] = ()
    show_plan: Callable[[FleetPlan], bool] = lambda _: True
    progress: Progress = msgspec.field(default_factory=SilentProgress)
    #: The size in bytes of each library, by its number.
    _sizes: dict[int, int] = msgspec.field(default_factory=dict)
    _sent: SentReport | None = None

    @property
    def folder(self) -> Path:
        """The work folder, with texts and answers."""
        return work_folder(self.path)

    def lock(self) -> AbstractContextManager[None]:
        """Lock the results; a dry run has a work folder beside them."""
        return results.lock_results(self.path)

    def report(self, run: Run) -> FleetBackfillReport:
        """Report on all libraries, and on what was sent."""
        assert self._sent is not None
        fields = msgspec.structs.asdict(super().report(run))
        return FleetBackfillReport(**fields, embedder=EmbedderName.of(self.settings), sent=self._sent)

    def work(self) -> None:
        """Run all phases, and write the results.

        Raises:
            Declined: the plan was declined, and nothing was sent.
            WrongUsage: another process works on these results, or the stored answers are another embedder's.
            RegraftError, OSError, apsw.Error: the run cannot go on; the next one resumes it.
        """
        before = [path for path in (self.folder, results.journal_path(self.path)) if path.exists()]
        try:
            self._run_phases()
        except BaseException as error:
            # Files of a run that has sent nothing are removed, unless it can be resumed after an interrupt.
            is_interrupted = self._journal is not None and isinstance(error, KeyboardInterrupt | FleetRefused)
            is_kept = not self.dry_run and (self._sent is not None or is_interrupted)
            self._remove_texts() if is_kept else self._remove_new_files(before)
            raise
        if self.dry_run:
            self._remove_new_files(before)
        else:
            self._finish()

    def _run_phases(self) -> None:
        with ExitStack() as stack:
            # Runs last, when all processes have ended.
            stack.callback(scratch.remove_leftovers)
            # Before anything is written: the pool may be refused.
            pool = stack.enter_context(closing(self.pool()))
            answers.demand_same_embedder(self.folder, self.settings)
            # The journal first: a work folder without one cannot be resumed.
            if not self.dry_run:
                self.open_journal(self.left, stack)
            with writable.allow_writes(self.folder.parent, entries_only=True):
                durable.make_folder(self.folder, exist_ok=True)
                durable.sync_folder(self.folder.parent)
            libraries = self._collect_texts(pool)
            texts = stack.enter_context(fleet_texts.open_distinct_texts(self.folder, "texts"))
            plan = self._make_plan(texts, libraries)
            if libraries and not self.dry_run:
                if not self.show_plan(plan):
                    raise Declined(path=self.path)
                self._fill(pool, libraries, self._send(pool, texts, libraries, plan))
            else:
                self._sent = _make_sent_report(self.settings, plan)

    def _collect_texts(self, pool: Pool) -> dict[int, SurveyedLibrary]:
        """Run the collecting job of each library; returns those that lack vectors, by number. The others have ended."""
        surveyed: dict[int, SurveyedLibrary] = {}
        left = self.left
        self._sizes = self.measure(left)
        with stage(self.progress, "Looking", len(left), "libraries"):
            for task, ended in self._run_jobs(pool, left, fills=False):
                self.progress.step(1, task.bytes)
                summary = ended.summary
                if isinstance(summary, BackfillSummary) and summary.collected is not None:
                    surveyed[task.number] = SurveyedLibrary(
                        ended=msgspec.structs.replace(ended, summary=None),
                        dimensions=frozenset(scope.dimensions for scope in summary.scopes if scope.planned.texts),
                        reused=sum(scope.planned.reused for scope in summary.scopes),
                    )
                if task.number not in surveyed or self.dry_run:
                    self._end_library(task, ended, None)
        return dict(sorted(surveyed.items()))

    def _make_plan(self, texts: DistinctTexts, libraries: dict[int, SurveyedLibrary]) -> FleetPlan:
        """Merge the texts of all libraries, without those that have an answer, and estimate what sending them takes."""
        with answers.read_answers(self.folder) as db:
            for library in libraries:
                texts.add(fleet_texts.read_wanted(self.folder, library), db)
        planned = estimate_sending(texts.sized(), self.settings, self.limits, empty_estimate(self.settings))
        return FleetPlan(
            libraries=len(libraries),
            wanted=texts.added,
            distinct=texts.count,
            planned=planned,
            reused=sum(one.reused for one in libraries.values()),
        )

    def _send(self, pool: Pool, texts: DistinctTexts, libraries: dict[int, SurveyedLibrary], plan: FleetPlan) -> _Sent:
        """Compare the embedder with the bases, then send all texts."""
        terms = SendingTerms(folder=self.folder, settings=self.settings, limits=self.limits, rates=self.rates)
        with (
            closing(self.open_sending(pool, terms)) as sending,
            fleet_texts.open_distinct_texts(self.folder, "compared") as compared,
        ):
            # From here on, files of the run stay: something may have been paid for.
            self._sent = _make_sent_report(self.settings, plan)
            for library in libraries:
                for sample in fleet_texts.read_samples(self.folder, library):
                    compared.add((WantedText.of(text, 0) for text, _ in sample.known), None)
            comparison = Comparison(
                work=self.folder, settings=self.settings, sending=sending, compared=compared, step=self._step
            )
            remembered = bool(texts.count) and comparison.recall()
            with stage(self.progress, "Comparing", compared.count, "texts"):
                refused = comparison.run(libraries)
            if refused:
                texts.clear()
                for library in libraries.keys() - refused:
                    texts.add(fleet_texts.read_wanted(self.folder, library), None)
            lengths = _vector_lengths(one for number, one in libraries.items() if number not in refused)
            with stage(self.progress, "Embedding", texts.count, "texts"):
                sending.send(texts, "texts", lengths, self._step)
            keeper = sending.keeper
            stop = keeper.stopped()
            self._sent = _make_sent_report(
                self.settings,
                plan,
                keeper.spent("texts"),
                keeper.spent("probes"),
                compared=compared.count,
                stopped=None if stop is None else stop.reason,
                remembered=remembered,
            )
        return _Sent(refused=refused, stop=stop)

    def _fill(self, pool: Pool, libraries: dict[int, SurveyedLibrary], sent: _Sent) -> None:
        """End the libraries that were refused, and fill the others with the answers."""
        for number, refusal in sent.refused.items():
            error = None if refusal.code is None else TaskError(code=refusal.code, message=refusal.reason)
            ended = msgspec.structs.replace(libraries[number].ended, status=refusal.exit_status, error=error)
            rows = self.rows_of(Task(number=number, job=None, bytes=self._sizes[number]), ended)
            if refusal.code is None:
                rows = [msgspec.structs.replace(rows[0], outcome=LIMITED, message=refusal.reason)]
            self.end_library(rows)
        fillable = [number for number in libraries if number not in sent.refused]
        why = _CHANGED if sent.stop is None else sent.stop.reason
        with stage(self.progress, "Filling", len(fillable), "libraries"):
            for task, ended in self._run_jobs(pool, fillable, fills=True, why=why):
                self.progress.step(1, task.bytes)
                self._end_library(task, ended, sent.stop)

    def _step(self, count: int) -> None:
        self.progress.step(count, 0)
        # No pool refreshes the metrics while texts are sent.
        if self.metrics is not None:
            self.metrics.refresh()

    # --- libraries ---------------------------------------------------------------------------------------------------

    def _run_jobs(
        self, pool: Pool, numbers: Iterable[int], *, fills: bool, why: str = ""
    ) -> Iterator[tuple[Task, TaskResult]]:
        sizes = {number: self._sizes[number] for number in numbers}

        def job(number: int, cores: int) -> EmbeddingJob:
            line = self.make_job(number, cores)
            assert isinstance(line.options.values, BackfillOptions)
            values = msgspec.structs.replace(
                line.options.values,
                dry_run=not fills,
                probe=self.probes,
                reuse=(*line.options.values.reuse, *self.reuse),
                reuse_configured=False,
            )
            line = msgspec.structs.replace(line, options=msgspec.structs.replace(line.options, values=values))
            work = str(self.folder)
            return EmbeddingJob(embedder=self.settings, library=number, line=line, work=work, fills=fills, why=why)

        return self.run_jobs(pool, sizes, job, notes_starts=fills)

    def _end_library(self, task: Task, ended: TaskResult, stop: StopReason | None) -> None:
        """Record how a library ended."""
        rows = self.rows_of(task, ended)
        if isinstance(ended.summary, BackfillSummary):
            rows = filled_library_rows(rows, ended.summary.scopes, stop)
        self.end_library(rows)

    # --- files -------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Write the results; the answers stay until every library is filled."""
        # First, so that a failure below leaves no texts behind, and the limits of the next run start at zero.
        self._remove_texts()
        answers.end_run(self.folder)
        self.write_results()
        if self._tally.good == len(self.order.libraries):
            self._remove(self.folder)

    def _remove_texts(self) -> None:
        """Remove everything but the answers from the work folder."""
        kept = {
            answers.ANSWERS_FILE,
            *(f"{answers.ANSWERS_FILE}{ending}" for ending in untrusted_sqlite.COMPANION_SUFFIXES),
        }
        if self.folder.is_dir():
            self._remove(*(path for path in self.folder.iterdir() if path.name not in kept))

    def _remove_new_files(self, before: list[Path]) -> None:
        """Remove the work folder and the journal unless they existed before the run."""
        self._remove_texts()
        every = (self.folder, results.journal_path(self.path))
        self._remove(*(path for path in every if path not in before))

    def _remove(self, *paths: Path) -> None:
        with writable.allow_writes(self.folder.parent, entries_only=True), writable.allow_writes(self.folder):
            for path in paths:
                durable.remove_tree(path)


def work_folder(path: Path) -> Path:
    """Return the folder beside the results that holds texts and answers until all libraries are filled."""
    return path.with_name(f"{path.name}.backfill")


def _vector_lengths(libraries: Iterable[SurveyedLibrary]) -> VectorLengths:
    """Return the lengths that an answer may have: one of another length would fit no base, in any run."""
    dimensions = frozenset(size for one in libraries for size in one.dimensions)
    return None if None in dimensions else frozenset(size for size in dimensions if size is not None)


# --- results ---------------------------------------------------------------------------------------------------------


def filled_library_rows(
    rows: list[ResultRow], found: Sequence[ScopeReport], stop: StopReason | None
) -> list[ResultRow]:
    """Add the counts and stop reasons of a backfill's scopes to the rows of its library.

    Args:
        rows: made by :func:`regraft.fleet.results.result_rows`.
        found: the scopes of the library.
        stop: why the fleet did not send all texts, if so.
    """
    if not found:
        return rows
    own, *bases = rows
    scopes = {scope.scope: scope for scope in found}
    base_rows = []
    for base in bases:
        scope = scopes.get(str(base.base))
        if scope is None:
            base_rows.append(base)
        else:
            outcome = base.outcome if scope.stopped is None else "stopped"
            totals = _sum_counts([scope])
            base_rows.append(msgspec.structs.replace(base, outcome=outcome, message=scope.stopped, totals=totals))
    reason = next((scope.stopped for scope in found if scope.stopped), None)
    own = msgspec.structs.replace(own, totals=_sum_counts(found))
    if reason is None:
        return [own, *base_rows]
    if stop is None:
        # The fleet sent everything: these texts were added to the library after its survey.
        stop = StopReason(reason=reason, code=BackfillStopped.__name__, exit_status=STOPPED)
    if stop.code is None:
        own = msgspec.structs.replace(own, outcome=LIMITED, message=reason)
    else:
        outcome = "stopped" if stop.exit_status == STOPPED else "refused"
        own = msgspec.structs.replace(
            own, outcome=outcome, message=reason, code=stop.code, exit_status=stop.exit_status
        )
    return [own, *base_rows]


def _sum_counts(scopes: Sequence[ScopeReport]) -> str:
    """Sum the counts of scopes; returns a JSON object."""
    counts = {name: sum(getattr(scope, name) for scope in scopes) for name in _COUNTS}
    return msgspec.json.encode(counts, order="sorted").decode()


def _make_sent_report(
    settings: EmbedderSettings,
    plan: FleetPlan,
    texts: SpentTotals = NOTHING_SPENT,
    probes: SpentTotals = NOTHING_SPENT,
    *,
    compared: int = 0,
    stopped: str | None = None,
    remembered: bool = False,
) -> SentReport:
    probe = ProbeReport(
        texts=compared,
        requests=probes.requests,
        tokens=probes.tokens,
        cost=cost_of(probes.tokens, settings),
        remembered=remembered,
    )
    return SentReport(
        **msgspec.structs.asdict(plan),
        **msgspec.structs.asdict(texts),
        cost=cost_of(texts.tokens, settings),
        currency=settings.currency,
        stopped=stopped,
        probe=probe,
    )
