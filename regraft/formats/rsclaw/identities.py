"""What rsclaw names sources, chunks and files of markdown by (``docs/formats/rsclaw.md``, "Identities").

The system reads a URL with the ``url`` crate, which follows the WHATWG's standard. Here another parser of that standard
does so; the form of the query is made by :mod:`urllib`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from urllib.parse import quote_plus, unquote_to_bytes

import ada_url
import msgspec


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Parameters that no canonical form has, whatever the site; names are told apart by case, and exact but for the prefix.
TRACKER_PREFIX = "utm_"
TRACKERS = _names(
    "fbclid gclid msclkid yclid dclid _ga _gl ref ref_src ref_url referrer source mc_cid mc_eid spm share_session_id"
    " share_id"
)
_WEB = frozenset({"http:", "https:"})
_HASH_OF_FILE = re.compile(r"file:sha256:([0-9a-f]{64})")
_MARKDOWN_NAME = re.compile(r"(.*?)--([0-9a-f]{8})(?:--([0-9a-f]{8}))?\.md", re.DOTALL)


# --- URLs ------------------------------------------------------------------------------------------------------------


def canonical_url(url: str) -> str | None:
    """Return the form under which the system knows a URL; None where a text is no URL of http or https.

    The scheme and the host are in lower case, the fragment and trackers are gone, and what is left of the query is
    sorted by name, then by value, and encoded as a form. The standard decides the rest:

    - A default port goes, any other stays. Tabs, line breaks, and blanks at both ends go; ``\\`` is ``/``.
    - Name and password stay.
    - A host becomes ASCII: of an IDN its punycode, of numbers the IPv4 address, of IPv6 the shortest form. Its last dot
      stays.
    - A path loses ``.`` and ``..``, gets an escape for what must have one, and keeps the escapes that it has, in their
      case. Its last slash, and two in a row, stay; no path at all is ``/``.
    - A name or value of the query is decoded first, ``+`` as a blank; what is not UTF-8 becomes U+FFFD. A blank is
      written as ``+``. So a tracker with escapes in its name is one, too, while ``UTM_source`` is none.
    - Parameters may be there twice, and may be blank: ``a`` is ``a=``. A query of nothing but trackers, or of
      nothing, goes with its question mark.

    Parsers of the standard differ in what it changed lately: a ``^`` in a path, or a character new to IDN.
    """
    return _kept(url, lambda name: not _is_tracker(name))


def _kept(url: str, keep: Callable[[str], bool]) -> str | None:
    """Return a URL without its fragment, with the parameters whose names are to be kept, in their order."""
    try:
        parsed = ada_url.URL(url)
    except ValueError:
        # Half a surrogate, which no text of the system can have, is refused with one, too.
        return None
    if parsed.protocol not in _WEB:
        return None
    parsed.hash = ""
    parsed.search = _form(sorted(pair for pair in _parameters(parsed.search) if keep(pair[0])))
    return str(parsed.href)


def _parameters(search: str) -> list[tuple[str, str]]:
    """Return names and values of a query as a form has them."""
    parts = (part.partition("=") for part in search.removeprefix("?").split("&") if part)
    return [(_decoded(name), _decoded(value)) for name, _, value in parts]


def _decoded(text: str) -> str:
    return unquote_to_bytes(text.replace("+", " ")).decode("utf-8", "replace")


def _form(parameters: Iterable[tuple[str, str]]) -> str:
    return "&".join(f"{_encoded(name)}={_encoded(value)}" for name, value in parameters)


def _encoded(text: str) -> str:
    # A form leaves an asterisk, and escapes a tilde.
    return quote_plus(text, safe="*").replace("~", "%7E")


def _is_tracker(name: str) -> bool:
    return name in TRACKERS or name.startswith(TRACKER_PREFIX)


# --- likely twins ----------------------------------------------------------------------------------------------------


class _Site(msgspec.Struct, frozen=True, kw_only=True):
    """Which pages a site has, as a pattern of host and path, and which of their parameters say only who came how."""

    pages: re.Pattern[str]
    session: frozenset[str]


def _site(pages: str, session: str) -> _Site:
    return _Site(pages=re.compile(pages), session=_names(session))


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


def same_page(url: str) -> str | None:
    """Return a key that addresses of one page are likely to share, though the system tells them apart.

    Nothing is identified by it: it tells a person about likely twins. Beside what :func:`canonical_url` does, the
    parameters go by which some well-known sites tell visits apart, and escapes of a path are in upper case.
    """
    canonical = canonical_url(url)
    if canonical is None:
        return None
    parsed = ada_url.URL(canonical)
    page = f"{parsed.hostname}{parsed.pathname}"
    session = next((site.session for site in _SITES if site.pages.match(page)), frozenset[str]())
    parsed.pathname = re.sub("%[0-9a-f]{2}", lambda escape: escape[0].upper(), parsed.pathname, flags=re.IGNORECASE)
    return _kept(parsed.href, lambda name: name not in session)


# --- sources ---------------------------------------------------------------------------------------------------------


class SourceKind(StrEnum):
    """What a source is; OTHER where its id is of no form that is known, such as ``file:custom:NAME``."""

    FILE = "file"
    URL = "url"
    CHAT = "chat"
    MAIL = "mail"
    OTHER = "other"


class SourceId(msgspec.Struct, frozen=True, kw_only=True):
    """The id of a source in its parts.

    ``value`` is the SHA-256 of a file in hex, a URL, channel and time of a chat, a Message-ID, or a whole id of OTHER.
    """

    kind: SourceKind
    value: str

    def __str__(self) -> str:
        """Return the id as it is stored."""
        prefix = {SourceKind.OTHER: "", SourceKind.FILE: "file:sha256:"}.get(self.kind, f"{self.kind}:")
        return prefix + self.value


def parse_source_id(text: str) -> SourceId:
    """Return the parts of a source's id; whatever it is, it is of some kind."""
    if found := _HASH_OF_FILE.fullmatch(text):
        return SourceId(kind=SourceKind.FILE, value=found[1])
    kind, _, value = text.partition(":")
    if kind in (SourceKind.URL, SourceKind.CHAT, SourceKind.MAIL) and value:
        return SourceId(kind=SourceKind(kind), value=value)
    return SourceId(kind=SourceKind.OTHER, value=text)


def source_id_of_url(url: str) -> str | None:
    """Return the id of a page; None where a text is no URL of http or https."""
    canonical = canonical_url(url)
    return None if canonical is None else f"url:{canonical}"


def source_id_of_file(raw: bytes | str) -> str:
    """Return the id of a file, by its bytes or by their SHA-256 in hex."""
    digest = raw.lower() if isinstance(raw, str) else hashlib.sha256(raw).hexdigest()
    return f"file:sha256:{digest}"


def source_id_of_chat(channel: str, time: int) -> str:
    """Return the id of a stretch of a channel that begins at a time; a channel may have colons in its name."""
    return f"chat:{channel}:{time}"


def source_id_of_mail(message_id: str) -> str:
    """Return the id of a mail; its Message-ID stays as it is."""
    return f"mail:{message_id}"


# --- chunks and files of markdown ------------------------------------------------------------------------------------


def chunk_id(source_id: str, seq: int, body: str) -> str:
    """Return the id of a chunk: ``body`` is its own text, without the headings that its vector has before it.

    Raises:
        OverflowError: ``seq`` does not fit into four bytes.
    """
    key = source_id.encode() + b"\0" + seq.to_bytes(4, "big") + b"\0" + body.encode()
    return hashlib.sha256(key).hexdigest()[:32]


class MarkdownName(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a file of markdown in its parts; older files have no hash of the body in theirs."""

    slug: str
    source_hash: str
    body_hash: str | None = None

    def __str__(self) -> str:
        """Return the name of the file."""
        return "--".join(part for part in (self.slug, self.source_hash, self.body_hash) if part is not None) + ".md"


def markdown_name(slug: str, source_id: str, markdown_sha256: str | None = None) -> MarkdownName:
    """Return the name of the file of a source's text; ``markdown_sha256`` is that of its body, None for an old one."""
    source_hash = hashlib.sha256(source_id.encode()).hexdigest()[:8]
    body_hash = None if markdown_sha256 is None else markdown_sha256[:8]
    return MarkdownName(slug=slug, source_hash=source_hash, body_hash=body_hash)


def parse_markdown_name(name: str) -> MarkdownName | None:
    """Return the parts of a file's name; None where it is not of the form."""
    found = _MARKDOWN_NAME.fullmatch(name)
    if found is None:
        return None
    return MarkdownName(slug=found[1], source_hash=found[2], body_hash=found[3])
