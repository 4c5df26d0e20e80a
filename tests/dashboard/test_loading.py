"""Loading the dashboard in a broker that is short of memory."""

import asyncio
import socket
import urllib.request
from typing import Any

import pytest

from tianzhou.cmd import http
from tianzhou.cmd.http import HttpOptions, HttpServer


class PageContext:
    async def close(self) -> None:
        pass


async def app(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"loaded"})


@pytest.mark.parametrize("error", [MemoryError(), ImportError("failed to map segment")])
def test_dashboard_that_ran_out_of_memory_is_loaded_later(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http, "RETRY_S", 0.01)
    attempts = 0

    def load() -> Any:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise error
        return app, PageContext()

    async def fetched() -> bytes:
        bound = socket.create_server(("127.0.0.1", 0))
        bound.setblocking(False)
        server = HttpServer(HttpOptions(), bound, load)
        try:
            return await asyncio.to_thread(
                lambda: urllib.request.urlopen(server.url, timeout=30).read()
            )
        finally:
            await server.close()

    assert asyncio.run(fetched()) == b"loaded"
    assert attempts == 3
    logged = [record.message for record in caplog.records if record.name == "tianzhou.http"]
    assert logged == ["http.not_loaded"] * 2
