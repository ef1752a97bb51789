"""Jobs of the page: one call of :mod:`regraft.api` each, in a process of its own.

A job goes on when the page is closed, and a reload finds it again. Two jobs never work on the same store. A plan is a
job with ``dry_run``; confirming it starts a job that makes the same plan again and goes on only if it is still the plan
that the reader has seen.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import structs

from regraft import api, identity
from regraft.api.outcome import as_regraft_error
from regraft.disk import durable
from regraft.disk.links import real_path
from regraft.errors import Declined, FaultOfRegraft, Interrupted, StoppedBySystem
from regraft.language import ENGLISH, language_of_children, to_english
from regraft.processes import interrupts, pool
from regraft.report.document import encoded

#: Finished jobs whose reports are kept; the oldest ones go first.
_MOST_KEPT = 30
#: Seconds between two reports of progress, and between two looks for a request to stop.
_PROGRESS_SECONDS, _STOP_SECONDS = 0.1, 0.1
#: Seconds that jobs have to stop when the server ends.
_END_SECONDS = 60.0
#: Parts of a report that differ from run to run although the plan is the same.
_NOT_OF_PLAN = ("regraft", "source", "target", "run", "preflight", "undo", "ids")

#: Fields of reports that hold messages.
_MESSAGES = frozenset({"message", "reason", "problem", "problems", "notes", "stopped", "missing"})

State = Literal["running", "stopping", "done", "changed", "stopped", "failed", "killed"]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a function of :mod:`regraft.api`; ``seen`` is the digest of the plan that the reader has confirmed."""

    function: str
    paths: tuple[str, ...]
    options: msgspec.Struct | None = None
    seen: str | None = None
    #: The language of the reader who started it.
    language: str = ENGLISH

    @property
    def is_plan(self) -> bool:
        """Whether the call writes nothing and only returns a plan."""
        return bool(getattr(self.options, "dry_run", False))


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is: the name of its stage, the object being processed, and the rows (or bytes) that are done."""

    name: str = ""
    label: str = ""
    unit: str = "rows"
    done: float = 0
    total: int = 0
    #: Seconds since the stage began.
    seconds: float = 0

    @property
    def seconds_left(self) -> float | None:
        """Estimate how many seconds the stage still takes; None if nothing is done yet."""
        return self.seconds * (self.total - self.done) / self.done if 0 < self.done <= self.total else None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a job. Texts are English, as in the JSON document of a command."""

    state: State
    report: Any = None
    code: str = ""
    message: str = ""
    #: The texts in the language of the task, by the English ones.
    translations: dict[str, str] = {}

    @classmethod
    def of(cls, state: State, *, report: Any = None, code: str = "", message: str = "") -> Outcome:
        """Make the outcome of a report and a message, which are in the language of this process."""
        found: dict[str, str] = {}
        english = _in_english(report, found)
        return cls(
            state=state,
            report=english,
            code=code,
            message=_in_english(message, found, is_message=True),
            translations=found,
        )


def _in_english(value: Any, found: dict[str, str], *, is_message: bool = False) -> Any:
    """Return a report (or a part of one) with every message in it in English.

    Only fields that hold messages are translated (``is_message``): a base may be called like a word that regraft
    translates. The messages are added to ``found`` by their English form.
    """
    if isinstance(value, str):
        if not is_message:
            return value
        plain = str(to_english(value))
        found[plain] = value
        return plain
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        english = {name: _in_english(old, found, is_message=name in _MESSAGES) for name, old in fields.items()}
        return structs.replace(value, **english)
    if isinstance(value, dict):
        return {key: _in_english(inner, found, is_message=is_message) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_in_english(inner, found, is_message=is_message) for inner in value)
    return value


def plan_digest(report: msgspec.Struct) -> str:
    """Return the SHA-256 of what a plan is going to do, without times, run ids and free disk space."""
    document = {name: value for name, value in encoded(_in_english(report, {})).items() if name not in _NOT_OF_PLAN}
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()


# --- in the process of the job ---------------------------------------------------------------------------------------


class _SentProgress:
    """A progress that sends each stage to the server, a few times a second."""

    def __init__(self) -> None:
        self._stage, self._began, self._sent = Stage(), 0.0, 0.0

    def start(self, what: str, rows: int, unit: str = "rows") -> None:
        """Begin a stage of ``rows`` steps, counted in ``unit``; numbers of "bytes" are shown as sizes.

        ``what`` names the work of the stage.
        """
        self._began = time.monotonic()
        self._change(0.0, name=what, label="", unit=unit, done=0, total=rows)

    def at(self, label: str) -> None:
        """Name the object that is being processed."""
        self._change(_PROGRESS_SECONDS, label=label)

    def step(self, rows: float, _size: int) -> None:
        """Report that so many more rows (fractions are allowed) and bytes are done."""
        self._change(_PROGRESS_SECONDS, done=min(self._stage.done + rows, self._stage.total))

    def end(self) -> None:
        """End the stage."""
        self._change(0.0, done=self._stage.total)

    def _change(self, pause: float, **changes: Any) -> None:
        """Change the stage, and send it at most every ``pause`` seconds."""
        now = time.monotonic()
        self._stage = structs.replace(self._stage, seconds=now - self._began, **changes)
        if now - self._sent >= pause:
            self._sent = now
            pool.report_progress(self._stage)


def run_task(task: Task, stop_file: str) -> Outcome:
    """Run a task in this process, and return its outcome.

    The task is stopped, as by Ctrl-C, if a file at ``stop_file`` exists.
    """
    interrupts.accept_stops()
    pool.set_core_limit(pool.usable_cores())
    changed: list[msgspec.Struct] = []

    def watch_for_stop() -> None:
        """Interrupt the main thread when the file that asks the task to stop exists."""
        while not Path(stop_file).exists():
            time.sleep(_STOP_SECONDS)
        interrupts.stop_main_thread()

    def confirm(planned: msgspec.Struct) -> bool:
        """Whether the plan is still the one that the reader has confirmed."""
        if task.seen is not None and plan_digest(planned) != task.seen:
            changed.append(planned)
        return not changed

    threading.Thread(target=watch_for_stop, daemon=True).start()
    settings: dict[str, Any] = {"progress": _SentProgress()}
    if task.seen is not None:
        settings["confirm"] = confirm
    try:
        report = getattr(api, task.function)(*task.paths, options=task.options, **settings)
        return Outcome.of("done", report=report)
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, Declined) and changed:
            return Outcome.of("changed", report=changed[0])
        found = as_regraft_error(error)
        is_stopped = isinstance(found, Interrupted)
        return Outcome.of("stopped" if is_stopped else "failed", code=found.code, message=str(found))
    finally:
        interrupts.ignore_stops()


# --- in the server ---------------------------------------------------------------------------------------------------


class Job:
    """A task that was started, its progress, and its outcome."""

    def __init__(self, task: Task, stores: frozenset[Path], folder: Path) -> None:
        self.id = secrets.token_hex(8)
        self.task, self.stores = task, stores
        #: The journey that started the job, and its form; set by the page.
        self.journey: str = ""
        self.form: Any = None
        self.started_at, self.finished_at = identity.now_ms(), 0
        self.stage = Stage()
        self.outcome: Outcome | None = None
        self._stop_file = folder / f"stop-{self.id}"
        self._pool = pool.ProcessPool(1, on_demand=True, may_start=True, on_progress=partial(setattr, self, "stage"))
        self._thread = threading.Thread(target=self._wait, daemon=True)
        with language_of_children(task.language):
            self._number = self._pool.put(run_task, task, str(self._stop_file))
        self._thread.start()

    @property
    def state(self) -> State:
        """What the job is doing, or how it ended."""
        if self.outcome is not None:
            return self.outcome.state
        return "stopping" if self._stop_file.exists() else "running"

    @property
    def is_running(self) -> bool:
        """Whether the job has not ended yet."""
        return self.outcome is None

    def stop(self) -> None:
        """Stop the job as Ctrl-C stops a command; the job ends a moment later."""
        if self.is_running:
            durable.put_bytes(self._stop_file, b"")

    def join(self, seconds: float) -> None:
        """Wait for the end of the job, and kill it after ``seconds``."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._pool.end()

    def _wait(self) -> None:
        """Wait for the job's process, and store its outcome."""
        try:
            outcome = self._pool.take(self._number)
        except pool.ProcessKilled:
            outcome = Outcome(state="killed")
        except Exception as error:
            fault = FaultOfRegraft(kind=type(error).__name__, reason=error)
            outcome = Outcome(state="failed", code=fault.code, message=str(fault))
        self._pool.end()
        self.finished_at = identity.now_ms()
        self.outcome = outcome


class StoreInUse(Exception):
    """Another job works on the same store."""

    def __init__(self, job: Job) -> None:
        super().__init__("another job works on the same store")
        self.job = job


class JobBoard:
    """All jobs of a server. At most one works on a store at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jobs: dict[str, Job] = {}

    def start(self, task: Task, stores: Iterable[str | Path]) -> Job:
        """Start a job that works on ``stores``; the running job is returned if it has the same task (a second click).

        Must be called in the main thread: a process ends with the thread that started it.

        Raises:
            StoreInUse: another job works on one of the stores.
            StoppedBySystem: no process can be started.
        """
        touched = frozenset(real_path(Path(store).absolute()) for store in stores)
        for job in self.running():
            if structs.replace(job.task, language=task.language) == task:
                return job
            if job.stores & touched:
                raise StoreInUse(job)
        try:
            job = Job(task, touched, self._folder)
        except pool.JobFailed as error:
            raise StoppedBySystem(reason=error) from error
        self._jobs[job.id] = job
        ended = [one for one in self._jobs.values() if not one.is_running]
        for one in ended[: max(0, len(ended) - _MOST_KEPT)]:
            del self._jobs[one.id]
        return job

    def find(self, job_id: str) -> Job | None:
        """Return the job with an id, or None."""
        return self._jobs.get(job_id)

    def running(self) -> list[Job]:
        """Return the jobs that have not ended, the latest first."""
        return [job for job in reversed(self._jobs.values()) if job.is_running]

    def ended(self) -> list[Job]:
        """Return the jobs that have ended and were no plans, the latest first."""
        return [job for job in reversed(self._jobs.values()) if not job.is_running and not job.task.is_plan]

    def end(self) -> None:
        """Stop all jobs as Ctrl-C does, and wait for their end."""
        jobs = self.running()
        for job in jobs:
            job.stop()
        until = time.monotonic() + _END_SECONDS
        for job in jobs:
            job.join(max(0.0, until - time.monotonic()))


class IdleTimer:
    """Measures for how many seconds nobody has used the page."""

    def __init__(self, limit: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = limit, clock
        self._latest = clock()

    def note_use(self) -> None:
        """Record that the page is in use now."""
        self._latest = self._clock()

    def is_over(self, running: Collection[Job]) -> bool:
        """Whether the server may end: no job of ``running``, and no use of the page for the time limit."""
        if running:
            self.note_use()
        return self._clock() - self._latest >= self._limit
