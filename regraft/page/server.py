"""The server of the page, and what protects it (``docs/page.md``, "Security").

It listens on the loopback interface only. The first address has a token that works once and is exchanged for a cookie;
each request must have that cookie, the right Host, and, where a browser sends them, the right Origin and
Sec-Fetch-Site. What writes is a POST with the form token. Another user of the computer, or a web page that the reader
visits, can neither read nor start anything.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import webbrowser
from collections.abc import Awaitable, Callable
from html import escape
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regraft.api.outcome import as_regraft_error
from regraft.language import ENGLISH, available_languages, tr, use_language
from regraft.page.jobs import IdleTimer, JobBoard

HOST = "127.0.0.1"
#: Minutes without a request or a job after which the server ends.
IDLE_MINUTES = 30
#: Default limit of a dropped file, in megabytes.
DROP_LIMIT = 4_000
#: Limits of a form: its bytes, and its fields.
_FORM_BYTES, _FORM_FIELDS = 1 << 18, 2_000
_SESSION, _LANGUAGE = "regraft", "language"
_WRITING = ("POST", "PUT")
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


#: Answers a request that an error ended.
Handler = Callable[[Request, Exception], Awaitable[Response]]


class Entrance:
    """The secrets of one server, made when it starts. Only the first page, for the browser, writes one to disk."""

    def __init__(self, port: int) -> None:
        self.host = f"{HOST}:{port}"
        self.origin = f"http://{self.host}"
        #: First segment of every path. Cookies are shared between the ports of a computer, but not between paths.
        self.segment = secrets.token_urlsafe(16)
        self.cookie = secrets.token_urlsafe(32)
        self.form_token = secrets.token_urlsafe(32)
        self._token: str | None = secrets.token_urlsafe(32)

    @property
    def root(self) -> str:
        """The path below which all pages are, with a slash at its end."""
        return f"/{self.segment}/"

    @property
    def address(self) -> str:
        """The first address for the browser, whose token works once."""
        return f"{self.origin}{self.root}enter/{self._token}"

    def spend(self, token: str) -> bool:
        """Whether a token is that of the first address, which is accepted once."""
        if self._token is None or not _is_same(token, self._token):
            return False
        self._token = None
        return True


def _is_same(given: str, right: str) -> bool:
    """Whether a given secret is the right one, compared in constant time."""
    return secrets.compare_digest(given.encode("utf-8", "surrogateescape"), right.encode())


class Desk:
    """The objects that all requests of one server share."""

    def __init__(
        self,
        entrance: Entrance,
        folder: Path,
        *,
        start: str | None = None,
        drop_limit: int = DROP_LIMIT,
        timer: IdleTimer,
    ) -> None:
        self.entrance = entrance
        #: The run's own folder, removed at its end.
        self.folder = folder
        #: The path that the command was given, which Home opens.
        self.start = start
        self.drop_bytes = drop_limit * 1_000_000
        self.timer = timer
        self.jobs = JobBoard(folder)
        #: Open streams of progress.
        self.streams = 0
        #: The application, if this server has started it.
        self.application: subprocess.Popen[bytes] | None = None
        #: Set by the Quit button.
        self.is_ended = False


def desk_of(request: Request) -> Desk:
    """Return the objects that the requests of this server share."""
    desk: Desk = request.app.state.desk
    return desk


# --- what every request has to pass ----------------------------------------------------------------------------------


class Guard:
    """Refuses requests that are not from the reader's own page, sets the language, and adds security headers."""

    def __init__(self, app: ASGIApp, desk: Desk, show_error: Handler) -> None:
        self._app, self._desk, self._show_error = app, desk, show_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI calls it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        cookies: dict[str, str] = {}
        with contextlib.suppress(CookieError):
            cookies = {name: morsel.value for name, morsel in SimpleCookie(headers.get("cookie", "")).items()}

        has_begun = False

        async def send_with_headers(message: Message) -> None:
            """Send a part of the response; its start gets the security headers."""
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                message["headers"] = [
                    *message.get("headers", ()),
                    *((name.lower().encode(), value.encode()) for name, value in _HEADERS.items()),
                ]
            await send(message)

        with use_language(_choose_language(cookies.get(_LANGUAGE), headers.get("accept-language", ""))):
            refusal = self._refusal(scope, headers, cookies)
            if refusal is not None:
                await refusal(scope, receive, send_with_headers)
                return
            self._desk.timer.note_use()
            try:
                await self._app(scope, receive, send_with_headers)
            except Exception as error:
                if has_begun:
                    raise
                answer = await self._show_error(Request(scope), as_regraft_error(error))
                await answer(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope, headers: dict[str, str], cookies: dict[str, str]) -> Response | None:
        """Return the response that refuses a request; None to let the request pass.

        Requests are refused if they come from another page, or lack the session's cookie.
        """
        entrance = self._desk.entrance
        if headers.get("host") != entrance.host:
            return _refuse(tr("Open the address that regraft ui printed; this server answers no other."))
        segment, _, rest = scope["path"].removeprefix("/").partition("/")
        if not _is_same(segment, entrance.segment):
            return PlainTextResponse(tr("This page does not exist."), 404)
        is_entering = rest.startswith("enter/") and scope["method"] == "GET"
        if self._is_foreign(scope["method"], headers, is_entering=is_entering):
            return _refuse(tr("The request comes from another page."))
        if not is_entering and not _is_same(cookies.get(_SESSION, ""), entrance.cookie):
            message = tr(
                "This page was not opened by its address. Run regraft ui again, and use the address that it opens."
            )
            return _refuse(message)
        return None

    def _is_foreign(self, method: str, headers: dict[str, str], *, is_entering: bool) -> bool:
        """Whether a request comes from a page of another origin, or writes and does not say where it comes from.

        ``is_entering``: it is the request for the first address.
        """
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        # A form whose page sends no referrer has the origin "null"; that it is ours is what Sec-Fetch-Site says then.
        is_own_form = origin == "null" and site == "same-origin"
        if origin not in (None, self._desk.entrance.origin) and not is_own_form:
            return True
        if is_entering:
            return False
        return site not in (None, "same-origin", "none") or (
            method in _WRITING and origin is None and site != "same-origin"
        )


def _refuse(reason: str) -> Response:
    """Make the response that refuses a request."""
    return PlainTextResponse(reason, 403)


def _choose_language(chosen: str | None, accepted: str) -> str:
    """Return the language in the cookie, or the first available one that the browser accepts, or English.

    ``chosen`` is the cookie's value, if any; ``accepted`` is the Accept-Language header.
    """
    available = available_languages()
    if chosen in available:
        return str(chosen)
    wanted = []
    for part in accepted[:500].split(","):
        name, _, weight = part.strip().partition(";q=")
        with contextlib.suppress(ValueError):
            wanted.append((-float(weight or 1), name.split("-")[0].lower()))
    return next((name for _, name in sorted(wanted, key=lambda one: one[0]) if name in available), ENGLISH)


class Form:
    """The fields of a form that was sent, as pairs of name and value."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self.fields = fields

    def exact(self, name: str) -> str:
        """Return the path in the hidden field ``NAME_at``, which was encoded so that every byte is kept."""
        return unquote(self.text(f"{name}_at"), errors="surrogateescape")

    def text(self, name: str, default: str = "") -> str:
        """Return the last value of a field, without blanks around it, or the default."""
        return next((value.strip() for key, value in reversed(self.fields) if key == name), default)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return all values of a field that are not empty."""
        return tuple(value for key, value in self.fields if key == name and value)

    def pairs(self, start: str) -> dict[str, str]:
        """Return the values of the fields whose names begin with ``start``, by the rest of their names."""
        return {key[len(start) :]: value for key, value in self.fields if key.startswith(start)}


async def read_form(request: Request) -> Form:
    """Read the form that a request sends, and check its token.

    Raises:
        HTTPException: it is too large, or has not the token of this server.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _FORM_BYTES:
            raise HTTPException(413, tr("The form is too large."))
    try:
        fields = parse_qsl(
            body.decode("ascii", "replace"),
            keep_blank_values=True,
            errors="surrogateescape",
            max_num_fields=_FORM_FIELDS,
        )
    except ValueError as error:
        raise HTTPException(413, tr("The form is too large.")) from error
    form = Form(fields)
    check_token(request, form.text("form_token"))
    # A plan sends the fields of the form that made it along, and its own choices after them.
    before = parse_qsl(
        form.text("again"), keep_blank_values=True, errors="surrogateescape", max_num_fields=_FORM_FIELDS
    )
    return Form([*before, *((name, value) for name, value in fields if name not in ("form_token", "again"))])


def check_token(request: Request, token: str) -> None:
    """Check the token that a form or an upload has sent.

    Raises:
        HTTPException: it is not the token of this server.
    """
    if not _is_same(token, desk_of(request).entrance.form_token):
        raise HTTPException(403, tr("The form does not belong to this page. Reload the page and try again."))


def query_text(request: Request, name: str) -> str:
    """Return a value from the query of the address, or an empty text; a path in it may have any bytes."""
    raw = request.scope["query_string"].decode("latin-1")
    pairs = parse_qsl(raw, keep_blank_values=True, errors="surrogateescape", max_num_fields=50) if raw else []
    return next((value for key, value in reversed(pairs) if key == name), "")


# --- entering, leaving, the language ---------------------------------------------------------------------------------


def _page_to(where: str) -> str:
    """Make an HTML page that loads another address at once."""
    target = escape(where)
    head = f'<meta charset="utf-8"><meta http-equiv="refresh" content="0; url={target}"><title>regraft</title>'
    # Without an icon, a browser asks for one outside of the first segment.
    icon = '<link rel="icon" href="data:,">'
    return f'<!doctype html><html lang="en">{head}{icon}<p><a href="{target}">regraft</a></p></html>\n'


async def enter(request: Request) -> Response:
    """Exchange the token of the first address for the session's cookie.

    The next page is loaded by the page that this returns, so that the browser sends the cookie.
    """
    entrance = desk_of(request).entrance
    if _is_same(request.cookies.get(_SESSION, ""), entrance.cookie):
        return RedirectResponse(entrance.root, 303)
    if not entrance.spend(request.path_params["token"]):
        message = tr("This address was used already. Run regraft ui again, and use the address that it opens.")
        return PlainTextResponse(message, 403)
    response = HTMLResponse(_page_to(entrance.root))
    response.set_cookie(_SESSION, entrance.cookie, path=entrance.root, httponly=True, samesite="strict")
    return response


async def switch_language(request: Request) -> Response:
    """Keep the reader's choice of a language in a cookie, and go back to the page."""
    form = await read_form(request)
    entrance = desk_of(request).entrance
    back = form.text("back")
    # Only a page of this server: a path below its own root, and no address of another one.
    is_own = back.startswith(entrance.root) and "\\" not in back
    response = RedirectResponse(back if is_own else entrance.root, 303)
    if form.text("to") in available_languages():
        response.set_cookie(_LANGUAGE, form.text("to"), path=entrance.root, httponly=True, samesite="strict")
    return response


# --- opening a browser ------------------------------------------------------------------------------------------------


def open_browser(address: str, folder: Path) -> bool:
    """Open an address in the browser; return whether that worked.

    The address is in a file in ``folder`` that only this user can read: others can read the command lines of programs.
    """
    page = folder / "open.html"
    with os.fdopen(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(_page_to(address))
    try:
        return webbrowser.open(page.as_uri())
    except (webbrowser.Error, OSError):
        return False
