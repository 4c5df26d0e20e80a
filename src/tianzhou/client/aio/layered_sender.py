"""The sender of producers with spans, hooks or a namespace; all others have a plain `Sender`.

    Producer ──▶ hooks ──▶ spans ──▶ names on the wire ──▶ Sender

A layer runs code around a send. It sees names as the user does; behind the last one, topics and
queues get the namespace, and results lose it again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from tianzhou.client.aio.batcher import PendingMessage
from tianzhou.client.aio.sender import Sender
from tianzhou.client.core.namespace import Namespace
from tianzhou.client.core.routing import Pick, Selector, check_message
from tianzhou.client.core.send import Failure
from tianzhou.client.core.send_request import SendResult
from tianzhou.client.hooks import Send, SendAll, SendHooks
from tianzhou.client.options import ClientOptions, ProducerOptions, checked_group
from tianzhou.client.session.shared_client import SharedClient
from tianzhou.client.tracing import SendTrace, send_spans
from tianzhou.record.message import Message
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.queues import MessageQueue

SendOneway = Callable[[Message], Awaitable[None]]


class SendLayer(Protocol):
    """Code around the sends of a producer."""

    def around(self, message: Message, send: Send) -> "asyncio.Future[SendResult]": ...
    async def around_all(self, messages: Sequence[Message], send: SendAll) -> list[SendResult]: ...
    async def around_oneway(self, message: Message, send: SendOneway) -> None: ...


class LayeredSender(Sender):
    """A sender with layers around it, and a namespace.

    Owner: the event loop.
    """

    def __init__(
        self,
        shared: SharedClient,
        options: ProducerOptions,
        *,
        group: str,
        trace: SendTrace | None,
        names: Namespace,
        layers: Sequence[SendLayer],
    ) -> None:
        """`group` is its name on the wire. The last layer is the outermost."""
        super().__init__(shared, options, group, trace)
        self.names = names
        self._layers = layers

    def send(
        self,
        message: Message,
        queue: MessageQueue | None,
        select: Selector | None,
        timeout_s: float | None,
    ) -> "asyncio.Future[SendResult]":
        names, send = self.names, super().send
        queue, select = names.full_queue(queue), names.full_selector(select)
        return self._send(message, lambda m: send(names.full_message(m), queue, select, timeout_s))

    def send_with(
        self,
        message: Message,
        added: Mapping[bytes, str],
        *,
        sys_flag: int = 0,
        code: int = RequestCode.SEND_MESSAGE_V2,
        pick: Pick | None = None,
        timeout_s: float | None = None,
    ) -> "asyncio.Future[SendResult]":
        names, send = self.names, super().send_with

        def send_full(m: Message) -> "asyncio.Future[SendResult]":
            full = names.full_message(m)
            return send(full, added, sys_flag=sys_flag, code=code, pick=pick, timeout_s=timeout_s)

        return self._send(message, send_full)

    def _send(self, message: Message, send: Send) -> "asyncio.Future[SendResult]":
        check_message(message)
        for layer in self._layers:
            send = partial(layer.around, send=send)
        return send(message)

    async def send_batch(
        self, messages: Sequence[Message], queue: MessageQueue | None, timeout_s: float | None
    ) -> list[SendResult]:
        names, send = self.names, super().send_batch

        async def send_full(batch: Sequence[Message]) -> list[SendResult]:
            full = [names.full_message(message) for message in batch]
            results = await send(full, names.full_queue(queue), timeout_s)
            return [names.plain_result(result) for result in results]

        send_all: SendAll = send_full
        for layer in self._layers:
            send_all = partial(layer.around_all, send=send_all)
        return await send_all(messages)

    async def send_oneway(
        self, message: Message, queue: MessageQueue | None, select: Selector | None
    ) -> None:
        check_message(message)
        names, send = self.names, super().send_oneway

        async def send_full(m: Message) -> None:
            full_queue, selector = names.full_queue(queue), names.full_selector(select)
            await send(names.full_message(m), full_queue, selector)

        oneway: SendOneway = send_full
        for layer in self._layers:
            oneway = partial(layer.around_oneway, send=oneway)
        await oneway(message)

    async def recall(self, topic: str, handle: str | None) -> str:
        return await super().recall(self.names.full(topic), handle)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        return self.names.plain_queues(await super().queues(self.names.full(topic)))

    def _expect(
        self, message: Message, *, is_half: bool = False
    ) -> "tuple[asyncio.Future[SendResult], PendingMessage]":
        answer, (message_id, on_end) = super()._expect(message, is_half=is_half)

        def on_sent(results: Sequence[SendResult], failure: Failure | None) -> None:
            on_end([self.names.plain_result(result) for result in results], failure)

        return answer, PendingMessage(message_id, on_sent)


class SendLayers:
    """What is around the sends of a producer, according to its options."""

    def __init__(self, group: str, options: ProducerOptions, client: ClientOptions) -> None:
        """Raises UsageError for invalid hooks, and if the group is too long with its namespace."""
        self.names = Namespace(client.namespace)
        self._group = checked_group(self.names.full(group))
        self._options = options
        self._layers: list[SendLayer] = [send_spans(group)] if options.spans else []
        if options.hooks:
            self._layers.append(SendHooks(group, options.hooks))

    def sender(self, shared: SharedClient, trace: SendTrace | None) -> Sender:
        """Return the sender for a producer that starts."""
        options, group = self._options, self._group
        if not self.names and not self._layers:
            return Sender(shared, options, group, trace)
        return LayeredSender(
            shared, options, group=group, trace=trace, names=self.names, layers=self._layers
        )
