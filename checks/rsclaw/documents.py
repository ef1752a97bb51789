"""Documents of a KB: versions, visibility, pages that are there twice, and collections."""

from __future__ import annotations

from collections.abc import Iterator

from checks.rsclaw import findings as kb
from checks.rsclaw.seen import DAY_MS, TITLED, Seen
from regraft.formats.rsclaw import rows
from regraft.formats.rsclaw.database import Mirror
from regraft.formats.rsclaw.identities import canonical_url, same_page
from regraft.formats.rsclaw.rows import ACTIVE, TOMBSTONED, UPDATING
from regraft.formats.rsclaw.selection import is_latest
from regraft.language import tr

#: How long the system keeps what was removed.
KEPT_MS = 30 * DAY_MS
_VISIBILITIES = ("global", "private", "agent", "channel")


def prepare(mirror: Mirror) -> None:
    """Make the temporary table ``current``: the documents that are active and the latest of their source."""
    mirror.db.execute("CREATE TEMP TABLE current (id TEXT PRIMARY KEY) WITHOUT ROWID")
    mirror.db.execute(
        f"INSERT INTO current SELECT d.id FROM doc d WHERE d.status = ? AND {is_latest(mirror)}", (ACTIVE,)
    )


def check(seen: Seen) -> None:
    """Look at the documents."""
    _check_statuses(seen)
    if seen.mirror.is_whole(rows.DOCS, rows.LATEST):
        _check_latest(seen)
        _check_superseded(seen)
    _check_visibility(seen)
    _check_tombstones(seen)
    _check_pages(seen)
    _check_collections(seen)


def _check_statuses(seen: Seen) -> None:
    query = f"SELECT {TITLED} || ': ' || d.status FROM doc d WHERE d.status NOT IN (?, ?, ?) ORDER BY d.id"
    message = tr("{n} of a state that is not known: {named}")
    seen.say(kb.ROW, message, noun="document", samples=seen.texts(query, ACTIVE, TOMBSTONED, UPDATING))


def _check_latest(seen: Seen) -> None:
    """Hold what says which version is the latest against the documents."""
    lost = """SELECT l.lsid || ' → ' || l.doc_id FROM latest l
               WHERE l.doc_id NOT IN (SELECT id FROM doc) ORDER BY l.lsid"""
    message = tr("{n} whose latest version is not there, so that no search finds anything of it: {named}")
    seen.say(kb.LATEST, message, noun="source", samples=seen.texts(lost))
    foreign = f"""SELECT l.lsid || ' → ' || {TITLED} FROM latest l JOIN doc d ON d.id = l.doc_id AND d.lsid <> l.lsid
                   ORDER BY l.lsid"""
    message = tr("{n} whose latest version is said to be a document of another: {named}")
    seen.say(kb.LATEST, message, noun="source", samples=seen.texts(foreign))
    # An older version that is active is the latest after a rollback, which is no damage.
    other = f"""SELECT {TITLED} FROM latest l JOIN doc d ON d.id = l.doc_id AND d.lsid = l.lsid
                 WHERE l.version <> d.version
                    OR (d.status <> ? AND l.version < (SELECT max(version) FROM doc every WHERE every.lsid = l.lsid))
                 ORDER BY d.id"""
    message = tr("{n} said to be the latest under another version, or out of use and older than another: {named}")
    seen.say(kb.LATEST, message, noun="document", samples=seen.texts(other, ACTIVE))
    unlisted = f"""SELECT {TITLED} FROM doc d WHERE d.lsid NOT IN (SELECT lsid FROM latest) ORDER BY d.id"""
    seen.say(
        kb.LATEST,
        tr("{n} of a source whose latest version is not known: {named}"),
        noun="document",
        samples=seen.texts(unlisted),
    )


def _check_superseded(seen: Seen) -> None:
    """Report active documents that no search finds: older versions, and newer ones after a rollback.

    The version that the system's pointer names is in use. Where the pointer names none, the highest version is.
    """
    unused = f"SELECT {TITLED} FROM doc d WHERE d.status = ? AND d.id NOT IN (SELECT id FROM current)"
    named = """FROM latest l JOIN doc named ON named.id = l.doc_id AND named.lsid = l.lsid WHERE l.lsid = d.lsid"""
    older = f"""{unused} AND d.version < CASE WHEN EXISTS (SELECT 1 {named}) THEN (SELECT named.version {named})
                  ELSE (SELECT max(version) FROM doc every WHERE every.lsid = d.lsid) END ORDER BY d.id"""
    message = tr("{n} in an older version that is still active: {named}")
    seen.say(kb.SUPERSEDED, message, noun="document", samples=seen.texts(older, ACTIVE))
    newer = f"{unused} AND d.version >= (SELECT named.version {named} AND named.status = '{ACTIVE}') ORDER BY d.id"
    message = tr("{n} not in use, since the latest pointer names another version, as after a rollback: {named}")
    seen.say(kb.ROLLED_BACK, message, noun="document", samples=seen.texts(newer, ACTIVE))


def _check_visibility(seen: Seen) -> None:
    visible = f"SELECT {TITLED} FROM doc d WHERE d.status <> '{TOMBSTONED}' AND"
    private = f"{visible} d.visibility = 'private' AND coalesce(d.owner, '') = '' ORDER BY d.id"
    message = tr("{n} that nobody can see, private and without an owner: {named}")
    seen.say(kb.UNREACHABLE, message, noun="document", samples=seen.texts(private))
    bare = f"{visible} d.visibility IN ('agent', 'channel') AND coalesce(d.visible_to, '') = '' ORDER BY d.id"
    message = tr("{n} that nobody can see, for an agent or a channel that is not named: {named}")
    seen.say(kb.UNREACHABLE, message, noun="document", samples=seen.texts(bare))
    known = ", ".join("?" * len(_VISIBILITIES))
    other = f"{visible} d.visibility NOT IN ({known}) ORDER BY d.id"
    message = tr("{n} that nobody can see, of a visibility that is not known: {named}")
    seen.say(kb.UNREACHABLE, message, noun="document", samples=seen.texts(other, *_VISIBILITIES))


def _check_tombstones(seen: Seen) -> None:
    query = f"SELECT {TITLED} FROM doc d WHERE d.status = ? AND d.updated_at < ? ORDER BY d.updated_at, d.id"
    removed = seen.texts(query, TOMBSTONED, seen.now_ms - KEPT_MS)
    message = tr("{n} removed more than 30 days ago, with what belongs to it: {named}")
    seen.say(kb.TOMBSTONE_EXPIRED, message, noun="document", samples=removed)


# --- pages that are there twice --------------------------------------------------------------------------------------

_PAGES = """CREATE TEMP TABLE page (doc_id TEXT PRIMARY KEY, lsid TEXT, address TEXT, likely TEXT) WITHOUT ROWID"""
#: Documents of one key, each group with what names it.
_TWINS = f"""
    SELECT {{key}} || ': ' || group_concat({TITLED}, ', ')
      FROM page p JOIN doc d ON d.id = p.doc_id
     GROUP BY {{key}} HAVING count(DISTINCT p.lsid) > 1 {{more}} ORDER BY {{key}}"""


def _check_pages(seen: Seen) -> None:
    """Find documents of one page under sources of their own."""
    seen.db.execute(_PAGES)
    seen.db.executemany("INSERT INTO page VALUES (?, ?, ?, ?)", list(_addresses(seen)))
    message = tr("{n} that several documents are of: {named}")
    seen.say(kb.URL_TWINS, message, noun="page", samples=seen.texts(_TWINS.format(key="p.address", more="")))
    likely = _TWINS.format(key="p.likely", more="AND count(DISTINCT p.address) > 1")
    message = tr("{n} that several documents are likely of, under addresses of their own: {named}")
    seen.say(kb.URL_TWINS, message, noun="page", samples=seen.texts(likely), severity="note")


def _addresses(seen: Seen) -> Iterator[tuple[str, str, str, str]]:
    """Yield the document, the source, and the address in both forms, of what is a page and is searched."""
    query = """SELECT d.id, d.lsid, coalesce(nullif(d.url, ''), substr(d.lsid, 5)) FROM doc d JOIN current USING (id)
                WHERE d.url <> '' OR d.lsid LIKE 'url:%' ORDER BY d.id"""
    for doc, lsid, url in seen.db.execute(query):
        seen.ledger.check_time()
        address, likely = canonical_url(str(url)), same_page(str(url))
        if address is not None and likely is not None:
            yield str(doc), str(lsid), address, likely


# --- collections -----------------------------------------------------------------------------------------------------


def _check_collections(seen: Seen) -> None:
    if not seen.mirror.is_whole(rows.COLLECTIONS, rows.COLLECTIONS_BY_NAME):
        return
    lost = """SELECT n.name || ' → ' || n.id FROM collection_name n LEFT JOIN collection c ON c.id = n.id
               WHERE c.id IS NULL OR c.name <> n.name ORDER BY 1"""
    message = tr("{n} of a collection that is not there, or has another name: {named}")
    seen.say(kb.COLLECTION, message, noun="name", samples=seen.texts(lost))
    unlisted = """SELECT c.name || ' (' || c.id || ')' FROM collection c
                   WHERE NOT EXISTS (SELECT 1 FROM collection_name n WHERE n.name = c.name AND n.id = c.id)
                   ORDER BY c.id"""
    seen.say(kb.COLLECTION, tr("{n} not found by name: {named}"), noun="collection", samples=seen.texts(unlisted))
