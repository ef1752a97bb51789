"""Who may read the page and press its buttons: nobody but the reader who has its first address."""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import page_client
import pytest
from page_client import PORT, Client
from starlette.routing import Mount, Route

from regraft.disk import scratch
from regraft.page import server
from regraft.page.journeys import make_app


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Client]:
    with page_client.client(tmp_path) as made:
        yield made


def routes(client: Client) -> list[tuple[str, str]]:
    """Return method and path of every route, with values in the place of its parameters."""
    (mount,) = (one for one in make_app(client.desk).routes if isinstance(one, Mount))
    found = []
    for route in mount.routes:
        assert isinstance(route, Route)
        path = re.sub(r"\{\w+\}", "check", route.path).lstrip("/")
        found += [(method, path) for method in sorted(route.methods or ()) if method != "HEAD"]
    return found


def test_every_page_has_the_headers_of_security(reader):
    for answer in (reader.get(""), reader.get("page.css"), reader.get("nothing/here"), reader.http.get("/other")):
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'")
        assert "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers


def test_the_cookie_is_for_this_server_alone(reader):
    reader.http.cookies.clear()
    with page_client.TestClient(reader.http.app, base_url=reader.desk.entrance.origin) as other:
        other.headers["user-agent"] = "another"
        reader.desk.entrance._token = "again"
        cookie = other.get(f"{reader.root}enter/again").headers["set-cookie"]
    assert f"Path={reader.root}" in cookie and "HttpOnly" in cookie and "samesite=strict" in cookie.lower()


def test_the_first_address_works_once(tmp_path):
    with page_client.client(tmp_path, has_entered=False) as reader:
        address = reader.desk.entrance.address
        assert reader.get("").status_code == 403
        wrong = reader.http.get(f"{reader.root}enter/{'x' * 43}")
        assert (wrong.status_code, wrong.headers.get("set-cookie")) == (403, None)
        assert reader.http.head(address).status_code == 403
        assert reader.http.get(address).status_code == 200
        assert reader.get("").status_code == 200
        # A reload by the same reader leads on; anybody else is refused.
        assert reader.http.get(address).headers["location"] == reader.root
        reader.http.cookies.clear()
        again = reader.http.get(address)
        assert (again.status_code, again.text) == (
            403,
            "This address was used already. Run regraft ui again, and use the address that it opens.",
        )
        assert "set-cookie" not in again.headers


def refused_alike(reader: Client, headers: dict[str, str], status: int, text: str) -> None:
    """Assert that every route refuses a request with these headers, and that it starts nothing."""
    for method, path in routes(reader):
        body = {"form_token": reader.desk.entrance.form_token, "path_at": "%2F"}
        given = {"origin": reader.desk.entrance.origin, **headers} if method != "GET" else headers
        answer = reader.http.request(method, reader.root + path, headers=given, data=body if method == "POST" else None)
        assert (answer.status_code, answer.text) == (status, text), (method, path)
    assert not reader.desk.jobs._jobs and not reader.desk.is_ended
    assert list(reader.desk.folder.iterdir()) == []


@pytest.mark.thorough
@pytest.mark.parametrize("host", ["localhost:40123", "evil.example", "127.0.0.1", "127.0.0.1:1", ""])
def test_another_host_is_refused(reader, host):
    refused_alike(
        reader, {"host": host}, 403, "Open the address that regraft ui printed; this server answers no other."
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": f"https://127.0.0.1:{PORT}"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "null"},
        {"origin": "null", "sec-fetch-site": "cross-site"},
        {"origin": "null", "sec-fetch-site": "same-site"},
    ],
)
def test_another_origin_is_refused(reader, headers):
    refused_alike(reader, headers, 403, "The request comes from another page.")


def test_a_link_on_another_page_is_refused(reader):
    for site in ("cross-site", "same-site"):
        assert reader.get("", headers={"sec-fetch-site": site}).status_code == 403
    assert reader.get("", headers={"sec-fetch-site": "none"}).status_code == 200


@pytest.mark.thorough
def test_without_the_cookie_nothing_is_shown(reader):
    reader.http.cookies.clear()
    text = "This page was not opened by its address. Run regraft ui again, and use the address that it opens."
    for method, path in routes(reader):
        if path.startswith("enter/"):
            continue
        for cookie in ("", "regraft=", f"regraft={'x' * 43}", 'regraft="\\', "a=b; regraft"):
            headers = {"cookie": cookie, "origin": reader.desk.entrance.origin}
            answer = reader.http.request(method, reader.root + path, headers=headers)
            assert (answer.status_code, answer.text) == (403, text), (method, path)


def test_another_first_segment_is_not_there(reader):
    for path in ("/", "/favicon.ico", "/wrong/", "/wrong/page.css", f"//{reader.root}", "/%2e%2e/", f"/x{reader.root}"):
        answer = reader.http.get(f"{reader.desk.entrance.origin}{path}")
        assert answer.status_code == 404, path
        assert reader.desk.entrance.segment not in answer.text


def test_a_form_needs_the_token_and_says_so(reader):
    for method, path in routes(reader):
        if method == "GET":
            continue
        for token in ("", "x" * 43):
            headers = {"origin": reader.desk.entrance.origin, "x-form-token": token}
            data = {"form_token": token, "path_at": "%2F"} if method == "POST" else None
            answer = reader.http.request(method, reader.root + path, headers=headers, data=data)
            assert answer.status_code == 403, (method, path)
            assert "The form does not belong to this page. Reload the page and try again." in answer.text
    assert not reader.desk.jobs._jobs and not reader.desk.is_ended


def test_a_form_without_an_origin_is_refused(reader):
    for page in ("quit", "fix", "language"):
        assert reader.post(page, headers={}).status_code == 403
    # As browsers send a form of a page that sends no referrer.
    own = {"origin": "null", "sec-fetch-site": "same-origin"}
    assert reader.post("language", headers=own, to="zh").status_code == 303


def test_other_methods_are_refused(reader):
    for method, path in (
        ("GET", "quit"),
        ("GET", "dropped"),
        ("DELETE", ""),
        ("POST", "home"),
        ("PUT", "fix"),
        ("PATCH", "home"),
    ):
        answer = reader.http.request(method, reader.root + path, headers={"origin": reader.desk.entrance.origin})
        assert answer.status_code in (404, 405), (method, path)


def test_a_form_that_is_too_large_is_refused(reader):
    answer = reader.post("check", path_at="x" * 300_000)
    assert answer.status_code == 413 and "The form is too large." in answer.text
    fields = {f"base{number}": "x" for number in range(2_100)}
    assert reader.post("check", **fields).status_code == 413


def test_the_language_form_leads_only_to_pages_of_this_server(reader):
    for back in ("http://evil.example/", "//evil.example/", "/other", f"{reader.root}\\evil", ""):
        answer = reader.post("language", to="zh", back=back)
        assert answer.headers["location"] == reader.root
    answer = reader.post("language", to="zh", back=f"{reader.root}store?at=%2Ftmp")
    assert answer.headers["location"] == f"{reader.root}store?at=%2Ftmp"
    assert reader.post("language", to="../x", back="").headers.get("set-cookie") is None


def test_no_file_of_the_computer_is_served(reader, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    for path in (
        f"{secret}",
        f"..{secret}",
        f"%2e%2e{secret}",
        f"page.css/..{secret}",
        f"folder?at={secret}",
        f"store?at={secret}",
    ):
        answer = reader.http.get(f"{reader.root}{path}")
        assert "the secret" not in answer.text, path


# --- how the browser is opened ----------------------------------------------------------------------------------------


def test_the_browser_is_opened_through_a_file_of_this_user(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(server.webbrowser, "open", lambda address: opened.append(address) or True)
    with scratch.temporary_folder() as folder:
        assert server.open_browser("http://127.0.0.1:1/a/enter/b", folder)
        page = folder / "open.html"
        # Others see the file's name in the command line of the browser, and not what is in it.
        assert opened == [page.as_uri()]
        assert 'url=http://127.0.0.1:1/a/enter/b"' in page.read_text("utf-8")
        if os.name == "posix":
            assert stat.S_IMODE(page.stat().st_mode) == 0o600
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.exists()


def test_a_port_in_use_is_one_line(tmp_path):
    from harness import run

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = run("ui", "--no-browser", "--port", port)
    assert outcome.status == 2 and outcome.stdout == ""
    assert outcome.stderr.startswith(f"regraft: port {port} cannot be used: ")
    assert "--port" in outcome.stderr and outcome.stderr.count("\n") == 1


def test_a_path_that_is_not_there_is_refused_before_anything_is_served(tmp_path):
    from harness import run

    outcome = run("ui", tmp_path / "nowhere")
    assert outcome.status == 2
    assert outcome.stderr == f"regraft: {tmp_path / 'nowhere'}: no such file or folder; check the spelling.\n"
