"""Damage of documents, jobs and the ledger of a KB of rsclaw: one finding at a time."""

from __future__ import annotations

from planting import planting
from rsclaw_store import DAY_MS, RsclawStore
from whole_rsclaw import CUSTOM, caches, doc, drop, entry, job

# --- documents -------------------------------------------------------------------------------------------------------


@planting(
    "kb.url-twins",
    "warning",
    "1 web page used as the source of several documents",
    "Page (",
    "Twin (",
    "rsclaw kb rm DOC",
)
def a_page_under_two_sources(store: RsclawStore) -> None:
    store.doc(
        "Twin", ["Says it anew."], source={"type": "url", "url": "HTTPS://Example.com/page?a=1&b=2&utm_source=x#y"}
    )
    caches(store)


@planting("kb.url-twins", "note", "probably", "Page (", "Share (")
def a_page_of_two_addresses(store: RsclawStore) -> None:
    doc(store, "Page")["source"]["url"] = "https://zh.wikipedia.org/wiki/%e4%b8%ad"
    store.doc("Share", ["Wiki."], source={"type": "url", "url": "https://zh.wikipedia.org/wiki/%E4%B8%AD?wprov=sfla1"})
    caches(store)


@planting("kb.superseded", "warning", "1 document in an older version that is still active: Old (", "rsclaw kb rm DOC")
def an_older_version_that_is_active(store: RsclawStore) -> None:
    doc(store, "Old")["status"] = "active"


@planting(
    "kb.rolled-back",
    "note",
    "1 document not in use because the latest-version pointer refers to a different version",
    "New (",
)
def a_source_that_was_rolled_back(store: RsclawStore) -> None:
    old = doc(store, "Old")
    old["status"] = "active"
    store.put("kb_doc_latest_version", CUSTOM, {"doc_id": old["id"], "version": old["version"]})


@planting("kb.unreachable", "warning", "private without an owner: Diary (", "rsclaw kb visibility DOC")
def a_private_document_without_an_owner(store: RsclawStore) -> None:
    doc(store, "Diary")["owner_user_id"] = None


@planting("kb.unreachable", "warning", "limited to an agent or channel that is not named: Agent (")
def an_agent_without_a_name(store: RsclawStore) -> None:
    doc(store, "Agent")["visibility"] = {"type": "agent"}


@planting("kb.unreachable", "warning", "its visibility is unknown: Diary (")
def an_unknown_visibility(store: RsclawStore) -> None:
    doc(store, "Diary")["visibility"] = {"type": "team"}


@planting("kb.tombstone-expired", "warning", "1 document removed more than 30 days ago", "Old (")
def a_tombstone_of_long_ago(store: RsclawStore) -> None:
    doc(store, "Old")["updated_at"] = store.now_ms - 30 * DAY_MS - 1


@planting("kb.latest", "error", "1 source whose latest version is missing", f"{CUSTOM} → 01GONE")
def a_latest_version_that_is_not_there(store: RsclawStore) -> None:
    store.put("kb_doc_latest_version", CUSTOM, {"doc_id": "01GONE", "version": 2})


@planting(
    "kb.latest",
    "error",
    "1 source whose latest-version pointer refers to a document of a different source",
    "→ Handbook (",
)
def a_latest_version_of_another_source(store: RsclawStore) -> None:
    store.put("kb_doc_latest_version", CUSTOM, {"doc_id": doc(store, "Handbook")["id"], "version": 2})


@planting("kb.latest", "error", "marked as the latest with a wrong version", "New (")
def a_latest_version_of_another_number(store: RsclawStore) -> None:
    store.put("kb_doc_latest_version", CUSTOM, {"doc_id": doc(store, "New")["id"], "version": 3})


@planting("kb.latest", "error", "inactive and older than another", "Old (")
def a_latest_version_that_was_removed(store: RsclawStore) -> None:
    old = doc(store, "Old")
    store.put("kb_doc_latest_version", CUSTOM, {"doc_id": old["id"], "version": old["version"]})


@planting("kb.latest", "error", "1 document of a source whose latest version is unknown: Handbook (")
def a_source_without_a_latest_version(store: RsclawStore) -> None:
    drop(store, "kb_doc_latest_version", doc(store, "Handbook")["logical_source_id"])


@planting("kb.row", "error", "1 document with an unknown state: Old (", "): lost")
def a_document_in_an_unknown_state(store: RsclawStore) -> None:
    doc(store, "Old")["status"] = "lost"


@planting("kb.collection", "warning", "1 name for a collection that is missing", "Nobody → col_2")
def a_name_of_no_collection(store: RsclawStore) -> None:
    store.put("kb_collection_by_name", "Nobody", b"col_2")


@planting("kb.collection", "warning", "1 collection not found by name: 手册 (col_1)")
def a_collection_without_its_name(store: RsclawStore) -> None:
    drop(store, "kb_collection_by_name", "手册")


# --- jobs and ledger -------------------------------------------------------------------------------------------------


@planting(
    "kb.job-failed",
    "error",
    *("1 job given up by rsclaw: Poison (", "handler panicked", "rsclaw kb add"),
    notes=("kb.ledger-pending",),
)
def a_job_that_failed(store: RsclawStore) -> None:
    store.doc("Poison", ["Never cut."], job="failed")


@planting("kb.job-stale", "warning", "without a valid claim: Working (", "at its next start")
def a_claim_that_is_over(store: RsclawStore) -> None:
    store.tables["kb_job_claims"][job(store, "Working")["id"].encode()]["expires_at"] = store.now_ms


@planting("kb.job-stale", "warning", "without a valid claim: Working (")
def a_running_job_without_a_claim(store: RsclawStore) -> None:
    drop(store, "kb_job_claims", job(store, "Working")["id"])


@planting("kb.row", "error", "1 job in an unknown state", ": lost")
def a_job_in_an_unknown_state(store: RsclawStore) -> None:
    one = job(store, "Handbook")
    drop(
        store, "kb_jobs_by_status_priority", bytes([2, 128]) + one["created_at"].to_bytes(8, "big") + one["id"].encode()
    )
    one["status"] = "lost"


@planting("kb.row", "error", "1 ledger entry in an unknown state", ": lost")
def an_entry_in_an_unknown_state(store: RsclawStore) -> None:
    entry(store, "Handbook")["status"] = "lost"


@planting(
    "kb.ledger-pending", "warning", "1 ledger entry still open, but without a job", "Handbook (", ": pending", "compact"
)
def an_open_entry_without_a_job(store: RsclawStore) -> None:
    entry(store, "Handbook")["status"] = "pending"


@planting("kb.ledger-pending", "warning", "still open", "Handbook (", ": indexing_complete")
def an_indexed_entry_of_long_ago(store: RsclawStore) -> None:
    entry(store, "Handbook").update(status="indexing_complete", updated_at=store.now_ms - DAY_MS - 1)


@planting("kb.ledger-pending", "note", "waiting for more than a day: Waiting (")
def a_job_that_waits_for_long(store: RsclawStore) -> None:
    entry(store, "Waiting")["updated_at"] = store.now_ms - DAY_MS - 1


@planting("kb.dedupe", "warning", "1 key referring to no waiting or running job: chunk_embed:GONE:1")
def a_key_of_no_job(store: RsclawStore) -> None:
    store.put("kb_jobs_by_dedupe_active", "chunk_embed:GONE:1", b"01GONE")


@planting("kb.dedupe", "warning", "1 key referring to no waiting or running job")
def a_key_of_a_job_that_is_done(store: RsclawStore) -> None:
    key = f"chunk_embed:{doc(store, 'Handbook')['id']}:1"
    store.put("kb_jobs_by_dedupe_active", key, job(store, "Handbook")["id"].encode())


@planting("kb.dedupe", "note", "1 job that could be queued twice: Waiting (")
def a_job_without_its_key(store: RsclawStore) -> None:
    drop(store, "kb_jobs_by_dedupe_active", f"chunk_embed:{doc(store, 'Waiting')['id']}:1")


@planting("kb.queue", "warning", "1 entry in the queue for a job that is missing", "01GONE")
def a_place_in_the_queue_of_no_job(store: RsclawStore) -> None:
    store.put("kb_jobs_by_status_priority", bytes([0, 128]) + bytes(8) + b"01GONE")


@planting("kb.queue", "warning", "1 job not in the queue", "Handbook (")
def a_job_without_a_place_in_the_queue(store: RsclawStore) -> None:
    one = job(store, "Handbook")
    drop(
        store, "kb_jobs_by_status_priority", bytes([2, 128]) + one["created_at"].to_bytes(8, "big") + one["id"].encode()
    )


@planting("kb.queue", "warning", "1 claim belonging to no running job")
def a_claim_of_a_job_that_is_done(store: RsclawStore) -> None:
    claim = {"worker_id": "w", "claimed_at": 1, "expires_at": store.now_ms + 1, "token": "t"}
    store.put("kb_job_claims", job(store, "Handbook")["id"], claim)
