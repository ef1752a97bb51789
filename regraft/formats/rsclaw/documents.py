"""Documents of a KB: which ones a caller may search, their ids, and their Markdown files.

A document is searched if the caller may see it, it is active, and it is the latest version of its source
(``docs/formats/rsclaw.md``, "What is searched"). Visibility is checked first; nothing else is reported about a hidden
document.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, unquote_to_bytes

import ada_url
import msgspec

from regraft.disk import links
from regraft.errors import WrongUsage
from regraft.formats.rsclaw.database import ACTIVE, DOCS, TOMBSTONED, Mirror, Visibility
from regraft.language import tr

# Visibility (``docs/formats/rsclaw.md``, "Visibility").


#: Separates several callers in one argument.
_BAR = re.compile(r"\|(?=(?:user|agent|channel):)")


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """The users, agents and channels on whose behalf a KB is read. If empty, only global documents are visible."""

    users: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    channels: frozenset[str] = frozenset()

    def sees(self, visibility: Visibility, owner: str | None) -> bool:
        """Whether these callers may see a document. Not if its visibility is unknown.

        Args:
            visibility: visibility of the document.
            owner: id of the document's owner, or None.
        """
        match visibility.type:
            case "global":
                return True
            case "private":
                return owner in self.users
            case "agent":
                return visibility.agent_id in self.agents
            case "channel":
                return visibility.channel_id in self.channels
            case _:
                return False

    @property
    def words(self) -> tuple[str, ...]:
        """The callers as on the command line: ``user:ID``, ``agent:ID`` and ``channel:ID``."""
        named = {"user": self.users, "agent": self.agents, "channel": self.channels}
        return tuple(f"{kind}:{one}" for kind, ids in named.items() for one in sorted(ids))

    def __str__(self) -> str:
        return " ".join(self.words)


def parse_scope(words: Iterable[str], option: str) -> Scope:
    """Parse arguments that name callers: ``user:ID``, ``agent:ID`` or ``channel:ID``, several separated by ``|``.

    Args:
        words: the arguments.
        option: name of the command-line option, for the error message.

    Raises:
        WrongUsage: a caller has another form.
    """
    found: dict[str, set[str]] = {"user": set(), "agent": set(), "channel": set()}
    for word in words:
        for one in _BAR.split(word):
            kind, _, name = one.partition(":")
            if kind not in found or not name:
                raise WrongUsage(
                    problem=tr("{option} {word}: not a valid user, agent or channel", option=option, word=word),
                    hint=tr("give user:ID, agent:ID or channel:ID"),
                )
            found[kind].add(name)
    return Scope(users=frozenset(found["user"]), agents=frozenset(found["agent"]), channels=frozenset(found["channel"]))


class ExclusionReason(StrEnum):
    """Why a document is not searched; migrations report it as the reason for skipped rows."""

    NOT_VISIBLE = "not_visible"
    TOMBSTONED = "tombstoned"
    UPDATING = "updating"
    SUPERSEDED = "superseded"


#: SQL for the origin of a document, for messages.
SOURCE_SQL = "coalesce(nullif(d.url, ''), nullif(d.source_path, ''), d.title)"
#: Temporary table of :func:`select_documents`: one row per document in creation order; ``reason`` NULL if searched.
_VERDICTS = """CREATE TEMP TABLE verdict (doc_id TEXT PRIMARY KEY, place INTEGER UNIQUE, reason TEXT)"""


def latest_version_sql(mirror: Mirror) -> str:
    """Return an SQL condition: the document in table ``d`` is the latest version of its source.

    The table of latest versions decides. If it has no row, or names a document of another source, the highest version
    is the latest, provided that every document could be read. If the latest version cannot be read, no other one
    replaces it, because the current visibility of the source is unknown.
    """
    highest = """NOT EXISTS (SELECT 1 FROM doc other WHERE other.lsid = d.lsid
                              AND (other.version, other.id) > (d.version, d.id))"""
    return f"""
        CASE WHEN EXISTS (SELECT 1 FROM latest l WHERE l.lsid = d.lsid
                           AND NOT EXISTS (SELECT 1 FROM doc named WHERE named.id = l.doc_id AND named.lsid <> d.lsid))
             THEN EXISTS (SELECT 1 FROM latest l WHERE l.lsid = d.lsid AND l.doc_id = d.id)
             ELSE {highest if mirror.is_whole(DOCS) else "0"} END"""


def select_documents(mirror: Mirror, scope: Scope) -> None:
    """Decide which documents the callers may search, in the temporary table ``verdict``.

    It has ``doc_id``, ``place`` (position in creation order) and ``reason`` (NULL if the document is searched).

    Args:
        mirror: mirror of a KB with at least the documents and the latest versions.
        scope: the callers.
    """
    db = mirror.db

    def sees(*facts: Any) -> bool:
        """SQL function: whether the scope may see a document, by visibility, its agent or channel, and owner."""
        kind, of, owner = facts
        return scope.sees(Visibility(type=kind, agent_id=of, channel_id=of), owner)

    db.create_scalar_function("regraft_sees", sees, 3)
    db.execute(_VERDICTS)
    db.execute(
        f"""INSERT INTO verdict
            SELECT d.id, row_number() OVER (ORDER BY d.created_at, d.id),
                   CASE WHEN NOT regraft_sees(d.visibility, d.visible_to, d.owner) THEN ?1
                        WHEN d.status = ?2 THEN ?3
                        WHEN d.status <> ?4 THEN ?5
                        WHEN NOT ({latest_version_sql(mirror)}) THEN ?6 END
              FROM doc d""",
        (
            ExclusionReason.NOT_VISIBLE,
            TOMBSTONED,
            ExclusionReason.TOMBSTONED,
            ACTIVE,
            ExclusionReason.UPDATING,
            ExclusionReason.SUPERSEDED,
        ),
    )


# Canonical URLs and ids (``docs/formats/rsclaw.md``, "Identities").


def _split_names(names: str) -> frozenset[str]:
    """Return the names in a text that separates them by blanks."""
    return frozenset(names.split())


#: Query parameters that are removed from every URL; names are case-sensitive and, except for the prefix, exact.
TRACKER_PREFIX = "utm_"
TRACKERS = _split_names(
    "fbclid gclid msclkid yclid dclid _ga _gl ref ref_src ref_url referrer source mc_cid mc_eid spm share_session_id"
    " share_id"
)
_WEB = frozenset({"http:", "https:"})


def canonical_url(url: str) -> str | None:
    r"""Return the canonical form of a URL, as rsclaw uses it for ids; None if it is not an HTTP(S) URL.

    Scheme and host are lower-cased, fragment and tracking parameters removed, and the remaining parameters sorted by
    name and value and form-encoded. The WHATWG URL standard determines the rest:

    - Default ports are removed. Tabs, line breaks and surrounding blanks are removed; ``\\`` becomes ``/``.
    - User name and password are kept.
    - A host becomes ASCII: punycode for an IDN, IPv4 address for numbers, shortest form for IPv6. A final dot is kept.
    - In a path, ``.`` and ``..`` are resolved and required escapes added; existing escapes keep their case. Repeated
      and final slashes are kept; an empty path becomes ``/``.
    - Names and values of parameters are decoded first, with ``+`` as a blank; invalid UTF-8 becomes U+FFFD. Blanks are
      written as ``+``. So a tracker with escapes in its name is removed, but ``UTM_source`` is not.
    - Parameters may be repeated and empty: ``a`` becomes ``a=``. An empty query is removed with its question mark.

    Parsers differ in recent changes to the standard: ``^`` in a path, or characters new to IDN.
    """
    return _filter_parameters(url, lambda name: name not in TRACKERS and not name.startswith(TRACKER_PREFIX))


def _filter_parameters(url: str, keep: Callable[[str], bool]) -> str | None:
    """Return a URL without fragment, its query parameters sorted and reduced to those whose name ``keep`` accepts.

    None if it is not an HTTP(S) URL.
    """
    try:
        parsed = ada_url.URL(url)
    except ValueError:
        # Half a surrogate, which no text of the system can have, is refused with one, too.
        return None
    if parsed.protocol not in _WEB:
        return None
    parsed.hash = ""
    parts = (part.partition("=") for part in parsed.search.removeprefix("?").split("&") if part)
    pairs = sorted((_decode_component(name), _decode_component(value)) for name, _, value in parts)
    parsed.search = "&".join(
        f"{_encode_component(name)}={_encode_component(value)}" for name, value in pairs if keep(name)
    )
    return str(parsed.href)


def _decode_component(text: str) -> str:
    """Decode a form-encoded name or value of a query parameter."""
    return unquote_to_bytes(text.replace("+", " ")).decode("utf-8", "replace")


def _encode_component(text: str) -> str:
    # Form encoding keeps an asterisk and escapes a tilde.
    """Form-encode a name or value of a query parameter as the WHATWG URL standard requires."""
    return quote_plus(text, safe="*").replace("~", "%7E")


class _Site(msgspec.Struct, frozen=True, kw_only=True):
    """A website: pattern of its pages (host and path), and query parameters that only identify a visit."""

    pages: re.Pattern[str]
    session: frozenset[str]


def _site(pages: str, session: str) -> _Site:
    """Describe a website by a pattern of its pages and by its visit parameters, separated by blanks."""
    return _Site(pages=re.compile(pages), session=_split_names(session))


_SITES = (
    _site(
        r"(www\.)?google(\.com?)?\.[a-z]{2,3}/search",
        "ved ei sca_esv sca_upv sxsrf gs_lcp gs_lcrp gs_lp gs_ssp gs_ivs sclient oq aqs sourceid ie oe client uact bih"
        " biw dpr iflsig rlz fbs usg sa sei vet prmd cshid pccc",
    ),
    _site(
        r"(\w+\.)?zhihu\.com/",
        "share_code s_r s_s_i rf ssr_src native hybrid_search_extra hybrid_search_source ivk_sa zhida_source",
    ),
    _site(
        r"github\.com/",
        "notification_referrer_id notifications_query email_source email_token ref_cta ref_loc ref_page",
    ),
    _site(
        r"(www\.|m\.)?bilibili\.com/video/",
        "spm_id_from vd_source from_spmid spmid from from_source share_source share_medium share_plat share_from"
        " share_tag share_times bbid ts timestamp unique_k up_id buvid mid is_story_h5 plat_id seid launch_id"
        " session_id msource bsource trackid track_id",
    ),
    _site(
        r"(\w+\.)?weibo\.(com|cn)/",
        "refer_flag Refer luicode lfid featurecode oid from wm sourcetype jumpfrom launchid uicode _T_WM",
    ),
    _site(r"([\w-]+\.)+wikipedia\.org/", "wprov"),
)


def likely_page_key(url: str) -> str | None:
    """Return a key that different URLs of one page likely share; None if it is not an HTTP(S) URL.

    The key is only used to report likely duplicates, never as an identity. In addition to :func:`canonical_url`, it
    drops the visit parameters of some well-known sites, and upper-cases the escapes of a path.
    """
    canonical = canonical_url(url)
    if canonical is None:
        return None
    parsed = ada_url.URL(canonical)
    page = f"{parsed.hostname}{parsed.pathname}"
    session = next((site.session for site in _SITES if site.pages.match(page)), frozenset[str]())
    parsed.pathname = re.sub("%[0-9a-f]{2}", lambda escape: escape[0].upper(), parsed.pathname, flags=re.IGNORECASE)
    return _filter_parameters(parsed.href, lambda name: name not in session)


def chunk_id(source_id: str, seq: int, body: str) -> str:
    """Return the id of a chunk of a document.

    Args:
        source_id: id of the document's source.
        seq: number of the chunk in the document.
        body: the chunk's own text, without the headings that are embedded with it.

    Raises:
        OverflowError: ``seq`` does not fit into four bytes.
    """
    key = source_id.encode() + b"\0" + seq.to_bytes(4, "big") + b"\0" + body.encode()
    return hashlib.sha256(key).hexdigest()[:32]


# Markdown files: YAML front matter, a blank line, and the body (``docs/formats/rsclaw.md``, "Markdown").
# The YAML is not parsed: the database has the same values.

_BEGIN, _END = b"---\n", b"\n---\n"
#: Front matter has to end within this many bytes.
_MOST_HEAD = 1 << 20
_PIECE = 1 << 20


class MarkdownBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a Markdown file: offset, length in bytes, and SHA-256 in hex."""

    start: int
    size: int
    sha256: str


def read_body(path: Path) -> MarkdownBody:
    """Locate and hash the body of a Markdown file. Memory use is bounded.

    Raises:
        OSError: the file cannot be read.
    """
    with links.open_for_reading(path) as file:
        head = file.read(_MOST_HEAD)
        start = body_start(head)
        digest, size = hashlib.sha256(head[start:]), len(head) - start
        while piece := file.read(_PIECE):
            digest.update(piece)
            size += len(piece)
    return MarkdownBody(start=start, size=size, sha256=digest.hexdigest())


def body_start(head: bytes) -> int:
    """Return the offset at which the body begins after the YAML front matter, in the first bytes of a file.

    0 without front matter.
    """
    if not head.startswith(_BEGIN):
        return 0
    # The front matter may be empty.
    end = head.find(_END, len(_BEGIN) - 1)
    if end < 0:
        return 0
    start = end + len(_END)
    return start + (head[start : start + 1] == b"\n")
