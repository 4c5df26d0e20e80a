"""Requests of brokers to clients: notices, checks, resets. They are rare; each gets a task."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.client.session.heartbeats import group_of
from tianzhou.client.transport.aio import Connection
from tianzhou.net.rpc import Reply, Request
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.codec import encode_command, response_to

log: Final = logging.getLogger("tianzhou.client")

ClientHandler = Callable[[Request], Reply | Awaitable[Reply | None] | None]
"""A reply, now or later; None for a one-way request, or if another handler must reply."""


class BrokerRequests:
    """The handlers of one client, by request code and group.

    Owner: the event loop.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, dict[str | None, list[ClientHandler]]] = {}
        self._serving: set[asyncio.Task[None]] = set()

    def on_request(
        self, code: int, handler: ClientHandler, *, group: str | None
    ) -> Callable[[], None]:
        handlers = self._handlers.setdefault(code, {}).setdefault(group, [])
        if group is not None and handlers:
            raise UsageError(
                f"a client of group {group!r} handles {RequestCode(code).name} in this process"
                " already; use that one, or give this one a ClientOptions(instance_name=...)"
            )
        handlers.append(handler)

        def stop() -> None:
            if handler in handlers:
                handlers.remove(handler)

        return stop

    def requested(self, connection: Connection, request: Request) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(request))
        self._serving.add(task)
        task.add_done_callback(lambda done: self._served(request, done))

    async def _serve(self, request: Request) -> None:
        code = request.header.code
        by_group = self._handlers.get(code)
        if not by_group:
            answer(
                request,
                Reply(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    remark=f" request type {code} not supported",
                ),
            )
            return
        group = group_of(request)
        for handler in [*by_group.get(group, ()), *(by_group.get(None, ()) if group else ())]:
            made = handler(request)
            reply = await made if inspect.isawaitable(made) else made
            if reply is not None:
                answer(request, reply)
                return
        remark = f"request {code} has no handler in this client; group: {group}"
        answer(request, Reply(ResponseCode.SYSTEM_ERROR, remark=remark))

    def _served(self, request: Request, done: "asyncio.Task[None]") -> None:
        self._serving.discard(done)
        if done.cancelled() or (error := done.exception()) is None:
            return
        # A handler is often a user's function. Its failure must not close the connection; the
        # broker gets an error and repeats the request.
        log.error(
            "request %s of broker %s failed: %r",
            request.header.code,
            request.peer.remote,
            error,
            exc_info=error,
        )
        answer(request, Reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}"))

    def cancel(self) -> None:
        for task in tuple(self._serving):
            task.cancel()


def answer(request: Request, reply: Reply) -> None:
    asked = request.header
    if not asked.is_oneway:
        header = response_to(asked, reply.code, remark=reply.remark, ext=reply.ext)
        request.peer.send(encode_command(header, reply.body))
