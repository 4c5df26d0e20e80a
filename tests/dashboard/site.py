"""A broker in this process and its dashboard, put together as `tianzhou up` does it."""

import asyncio
import http.client
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self
from urllib.parse import urlencode, urlsplit

from clients.waiting import wait_until
from tianzhou.broker.config import BrokerConfig
from tianzhou.cmd import http as http_server
from tianzhou.cmd.http import HttpOptions, HttpServer
from tianzhou.dashboard.access import hash_of
from tianzhou.testing import RunningBroker

STUCK_MS = 1_000


class Site:
    """Owner: a test."""

    def __init__(self, *, password: str | None = None) -> None:
        """With a password it is on another address than loopback, where one is needed."""
        self._password = password
        host = "127.0.0.1" if password is None else "0.0.0.0"
        self.mq = RunningBroker(
            config=BrokerConfig(
                consumer_stuck_after_ms=STUCK_MS, light_queues=True, multi_dispatch=True
            )
        )
        self._options = HttpOptions(host=host, port=0, names=("dashboard.example",))
        self.server: HttpServer | None = None

    def __enter__(self) -> Self:
        self.mq.start()
        if self._password is not None:
            kept = self.mq.directory / http_server.PASSWORD_FILE
            kept.write_text(hash_of(self._password))
        self.server = self.mq._running_thread().run(self._serve())
        return self

    async def _serve(self) -> HttpServer:
        made = http_server.serve(
            self._options,
            self.mq._running(),
            self.mq.clock,
            nameservers=lambda: self.mq._running().nameservers,
            data=self.mq.directory,
        )
        assert made is not None
        return made

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self.server is not None
        try:
            self.mq._running_thread().run(asyncio.wait_for(self.server.close(), 60))
        finally:
            self.mq.close()

    @property
    def url(self) -> str:
        assert self.server is not None
        return self.server.url

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    def wait_for_stuck(self, group: str) -> None:
        broker = self.mq._running()
        # Not the kit's own way of waiting, which sees the loop that Playwright has in this thread.
        wait_until(
            lambda: any(e.group == group and not e.ended_ms for e in broker.events()),
            within_s=15,
            what=f"the watchdog has found something of {group}",
        )


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.text = body.decode("utf-8", "replace")


def ask(
    port: int,
    path: str,
    *,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    form: Mapping[str, object] | None = None,
    body: bytes | None = None,
) -> Answer:
    """One request as no browser sends it; the answer as it comes."""
    sent = {"Host": f"127.0.0.1:{port}", **(headers or {})}
    data = body
    if form is not None:
        data = urlencode(form, doseq=True).encode()
        sent.setdefault("Content-Type", "application/x-www-form-urlencoded")
        sent.setdefault("Origin", f"http://{sent['Host']}")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method if form is None else "POST", path, data, sent)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, found, answer.read())
    finally:
        connection.close()


def token_of(text: str) -> str:
    """The token of a form on a page."""
    return text.split('name="token" value="', 1)[1].split('"', 1)[0]


def now_ms() -> int:
    return int(time.time() * 1000)
