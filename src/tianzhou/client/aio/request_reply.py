"""Requests that wait for a reply, by correlation id."""

import asyncio
import uuid

from tianzhou.client.core.replying import Reply, reply_of
from tianzhou.client.errors import ClientClosed
from tianzhou.client.session.shared_client import SharedClient
from tianzhou.net import rpc as exchange
from tianzhou.net.rpc import Request
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_send import PushReplyRequest


class Requests:
    """The requests of one producer that wait for a reply.

    Owner: the event loop.
    """

    def __init__(self, shared: SharedClient) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, asyncio.Future[Reply]] = {}
        self._stop = shared.on_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._pushed)

    def expect(self) -> tuple[str, "asyncio.Future[Reply]"]:
        """Return an id for a request, and the future of its reply. Call `forget` afterwards."""
        correlation_id = str(uuid.uuid4())
        waiting = self._waiting[correlation_id] = self._loop.create_future()
        return correlation_id, waiting

    def forget(self, correlation_id: str) -> None:
        self._waiting.pop(correlation_id, None)

    def _pushed(self, request: Request) -> exchange.Reply | None:
        pushed = PushReplyRequest.from_ext(request.header.ext)
        correlation_id, reply = reply_of(pushed, request.body)
        waiting = self._waiting.get(correlation_id or "")
        if waiting is None:
            # Another producer of this client may wait for it. If none does, the consumer that
            # replied gets an error.
            return None
        if not waiting.done():
            waiting.set_result(reply)
        return exchange.Reply(ResponseCode.SUCCESS)

    def close(self) -> None:
        self._stop()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ClientClosed("the producer was closed while it waited"))
