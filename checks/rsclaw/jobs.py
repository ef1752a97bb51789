"""The outbox of a KB: its ledger, the jobs, and what is kept beside them to find and to claim these."""

from __future__ import annotations

from checks.rsclaw import findings as kb
from checks.rsclaw.seen import DAY_MS, NAMED, Seen
from regraft.formats.rsclaw import rows
from regraft.formats.rsclaw.rows import CLEANUP, DONE, INDEXED, PENDING, JobStatus
from regraft.language import tr

#: What a job is about: its document, else what it calls that, else the job itself.
_ABOUT = NAMED.format(id="j.doc_id, j.id")
_JOBS = "job j LEFT JOIN doc d ON d.id = j.doc_id"
#: A job that a worker has is stale where the claim is missing or over.
IS_STALE = """j.status = 'running'
              AND NOT EXISTS (SELECT 1 FROM claim c WHERE c.job_id = j.id AND c.expires_at > {now:d})"""
#: Ledger entries by the documents that they are of; what each has of jobs.
_ENTRIES = f"""
    SELECT {NAMED.format(id="e.doc_id, e.id")} || ': ' || e.status FROM entry e LEFT JOIN doc d ON d.id = e.doc_id
     WHERE e.status IN ('{PENDING}', '{INDEXED}') AND """
_OF_ENTRY = "EXISTS (SELECT 1 FROM job j WHERE j.doc_id = e.doc_id AND {what})"
_KEY = "chunk_embed:"
_CHUNK_JOB = "chunk_and_embed"
_KNOWN = ", ".join(f"'{one.name.lower()}'" for one in JobStatus)
#: The numbers that stand for states of jobs.
_NUMBERS = " ".join(f"WHEN '{one.name.lower()}' THEN {one.value}" for one in JobStatus)


def check(seen: Seen) -> None:
    """Look at jobs and ledger."""
    _check_states(seen)
    _check_jobs(seen)
    if seen.mirror.is_whole(rows.JOBS):
        _check_ledger(seen)
        _check_dedupe(seen)
        _check_queue(seen)


def _check_states(seen: Seen) -> None:
    jobs = f"SELECT j.id || ': ' || j.status FROM job j WHERE j.status NOT IN ({_KNOWN}) ORDER BY j.id"
    seen.say(kb.ROW, tr("{n} in a state that is not known: {named}"), noun="job", samples=seen.texts(jobs))
    entries = "SELECT e.id || ': ' || e.status FROM entry e WHERE e.status NOT IN (?, ?, ?, ?) ORDER BY e.id"
    message = tr("{n} in a state that is not known: {named}")
    seen.say(kb.ROW, message, noun="ledger entry", samples=seen.texts(entries, PENDING, INDEXED, CLEANUP, DONE))


def _check_jobs(seen: Seen) -> None:
    failed = f"""SELECT {_ABOUT} || coalesce(': ' || j.error, '') FROM {_JOBS}
                  WHERE j.status = 'failed' ORDER BY j.id"""
    seen.say(kb.JOB_FAILED, tr("{n} that rsclaw has given up: {named}"), noun="job", samples=seen.texts(failed))
    if seen.mirror.is_whole(rows.CLAIMS):
        stale = f"SELECT {_ABOUT} FROM {_JOBS} WHERE {IS_STALE.format(now=seen.now_ms)} ORDER BY j.id"
        message = tr("{n} said to be running, without a claim that still holds: {named}")
        seen.say(kb.JOB_STALE, message, noun="job", samples=seen.texts(stale))


def _check_ledger(seen: Seen) -> None:
    """Find entries that nothing will settle; a stale job is told by itself."""
    day_ago = seen.now_ms - DAY_MS
    live = _OF_ENTRY.format(what="j.status IN ('ready', 'running')")
    any_job = _OF_ENTRY.format(what="j.status IN ('ready', 'running', 'failed')")
    # What is indexed waits for the next compaction, which takes its time.
    lost = f"{_ENTRIES} NOT {any_job} AND (e.status = '{PENDING}' OR e.updated_at < ?) ORDER BY e.id"
    message = tr("{n} still open, with no job that would settle it: {named}")
    seen.say(kb.LEDGER_PENDING, message, noun="ledger entry", samples=seen.texts(lost, day_ago))
    failed = _OF_ENTRY.format(what="j.status = 'failed'")
    given_up = f"{_ENTRIES} {failed} AND NOT {live} ORDER BY e.id"
    message = tr("{n} pending for ever, as their job was given up: {named}")
    seen.say(kb.LEDGER_PENDING, message, noun="ledger entry", samples=seen.texts(given_up), severity="note")
    alive = f"j.status IN ('ready', 'running') AND NOT ({IS_STALE.format(now=seen.now_ms)})"
    waiting = f"{_ENTRIES} {_OF_ENTRY.format(what=alive)} AND e.updated_at < ? ORDER BY e.id"
    message = tr("{n} whose job has been waiting for more than a day: {named}")
    seen.say(kb.LEDGER_PENDING, message, noun="ledger entry", samples=seen.texts(waiting, day_ago), severity="note")


def _check_dedupe(seen: Seen) -> None:
    if not seen.mirror.is_whole(rows.JOBS_BY_DEDUPE):
        return
    lost = """SELECT x.key FROM dedupe x LEFT JOIN job j ON j.id = x.job_id
               WHERE j.id IS NULL OR j.status NOT IN ('ready', 'running') ORDER BY x.key"""
    message = tr("{n} of no job that is waiting or running: {named}")
    seen.say(kb.DEDUPE, message, noun="key", samples=seen.texts(lost))
    unlisted = f"""SELECT {_ABOUT} FROM {_JOBS}
                    WHERE j.status IN ('ready', 'running') AND j.kind = '{_CHUNK_JOB}' AND j.doc_id IS NOT NULL
                      AND NOT EXISTS (SELECT 1 FROM dedupe x WHERE x.job_id = j.id
                                         AND x.key = '{_KEY}' || j.doc_id || ':' || j.doc_version) ORDER BY j.id"""
    message = tr("{n} that could be queued twice: {named}")
    seen.say(kb.DEDUPE, message, noun="job", samples=seen.texts(unlisted), severity="note")


def _check_queue(seen: Seen) -> None:
    """Hold the order of jobs, and the claims, against the jobs."""
    fits = f"""q.job_id = j.id AND q.status = CASE j.status {_NUMBERS} END
               AND q.priority = j.priority AND q.created_at = j.created_at"""
    if seen.mirror.is_whole(rows.JOBS_BY_STATUS):
        lost = f"""SELECT q.job_id FROM queue q WHERE NOT EXISTS (SELECT 1 FROM job j WHERE {fits}) ORDER BY 1"""
        message = tr("{n} in the queue of a job that is not there, or in another state: {named}")
        seen.say(kb.QUEUE, message, noun="entry", samples=seen.texts(lost))
        unlisted = f"""SELECT {_ABOUT} FROM {_JOBS}
                        WHERE j.status IN ({_KNOWN}) AND NOT EXISTS (SELECT 1 FROM queue q WHERE {fits})
                        ORDER BY j.id"""
        seen.say(
            kb.QUEUE,
            tr("{n} not in the queue, or there in another state: {named}"),
            noun="job",
            samples=seen.texts(unlisted),
        )
    if seen.mirror.is_whole(rows.CLAIMS):
        claims = """SELECT c.job_id FROM claim c LEFT JOIN job j ON j.id = c.job_id
                     WHERE j.id IS NULL OR j.status <> 'running' ORDER BY 1"""
        seen.say(kb.QUEUE, tr("{n} of no running job: {named}"), noun="claim", samples=seen.texts(claims))
