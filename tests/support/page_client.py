"""The page's application with a client that speaks to it as a browser does, and jobs that are waited for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from patience import NEVER_SECONDS

pytest.importorskip("starlette", reason='regraft ui is not installed: pip install "regraft[ui]"')

from httpx import Response
from starlette.testclient import TestClient

from regraft.disk import writable
from regraft.page.jobs import IdleTimer, Job
from regraft.page.journeys import make_app
from regraft.page.server import Desk, Entrance

PORT = 40_123


class Client:
    """A reader who has entered. ``desk`` is the server's side."""

    def __init__(self, desk: Desk, client: TestClient) -> None:
        self.desk, self.http = desk, client
        self.root = desk.entrance.root

    def enter(self) -> Response:
        """Use the first address."""
        return self.http.get(self.desk.entrance.address)

    def get(self, page: str, *, headers: dict[str, str] | None = None, **query: object) -> Response:
        """Load a page; paths in the query keep every byte."""
        words = "&".join(
            f"{name}={quote(str(value), errors='surrogateescape', safe='')}" for name, value in query.items()
        )
        return self.http.get(f"{self.root}{page}{'?' if words else ''}{words}", headers=headers)

    def post(
        self, page: str, *, token: str | None = None, headers: dict[str, str] | None = None, **fields: Any
    ) -> Response:
        """Send a form of this server; a field ``path`` is exact."""
        data = {"form_token": self.desk.entrance.form_token if token is None else token}
        for name, value in fields.items():
            is_exact = isinstance(value, Path)
            data[f"{name}_at" if is_exact else name] = (
                quote(str(value), errors="surrogateescape", safe="") if is_exact else value
            )
        given = {"origin": self.desk.entrance.origin} if headers is None else headers
        return self.http.post(f"{self.root}{page}", data=data, headers=given)

    def start(self, page: str, **fields: Any) -> Job:
        """Send a form that starts a job, wait for its end, and return it."""
        return self.wait(self.post(page, **fields))

    def wait(self, answer: Response) -> Job:
        """Wait for the job to whose page an answer leads."""
        job = self.job_of(answer)
        job.join(NEVER_SECONDS)
        assert job.outcome is not None
        return job

    def job_of(self, answer: Response) -> Job:
        """Return the job to whose page an answer leads."""
        assert answer.status_code == 303, answer.text
        job = self.desk.jobs.find(answer.headers["location"].rpartition("/")[2])
        assert job is not None
        return job

    def confirm(self, planned: Job) -> Job:
        """Press the button of a plan."""
        return self.start(f"job/{planned.id}/confirm")

    def page(self, job: Job) -> str:
        """Return what the page of a job says."""
        return said(self.get(f"job/{job.id}"))


def said(answer: Response) -> str:
    """Return the text of a page without its marks."""
    body = re.sub(r"(?s)<(script|style|head).*?</\1>", "", answer.text)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


@contextmanager
def client(folder: Path, *, has_entered: bool = True, clock: Any = None, **settings: Any) -> Iterator[Client]:
    """Serve the page to a client; its jobs are ended with it."""
    own = folder / "run"
    own.mkdir()
    timer = IdleTimer(60, clock) if clock else IdleTimer(60)
    desk = Desk(Entrance(PORT), own, timer=timer, **settings)
    with (
        writable.allow_writes(own),
        TestClient(make_app(desk), base_url=desk.entrance.origin, follow_redirects=False) as http,
    ):
        made = Client(desk, http)
        if has_entered:
            assert made.enter().status_code == 200
        try:
            yield made
        finally:
            desk.jobs.end()
