"""Traces of sent and consumed messages: collected and sent in the background.

A separate producer, which is not traced itself, sends the records to the trace topic. A record that
cannot be sent is dropped and counted: traces must not slow down messages.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from tianzhou.base.errors import TianzhouError
from tianzhou.client.core.namespace import Namespace
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.core.send_request import SendResult
from tianzhou.client.core.trace import (
    ConsumeBegun,
    ConsumeEnded,
    ContextCode,
    MessageType,
    Published,
    Recalled,
    TraceRecord,
    TransactionEnded,
    encode_trace,
    keys_of,
)
from tianzhou.client.core.transaction import TransactionState
from tianzhou.client.options import GROUP_CHARS_MAX
from tianzhou.record import names
from tianzhou.record.ids import decode_offset_id
from tianzhou.record.message import Message, MessageView
from tianzhou.wire.names import TRACE_TOPIC

if TYPE_CHECKING:
    from tianzhou.client.spans import SendSpans

log: Final = logging.getLogger("tianzhou.client")

COUNT_MAX: Final = 10
"""Records of one trace message, as in other clients."""
LINGER_S: Final = 5.0
WAITING_MAX: Final = 2_048
"""Records that wait to be sent; further ones are dropped."""
BODY_BYTES_MAX: Final = 128_000

Send = Callable[[Message], Awaitable[SendResult]]


class Tracer:
    """Collect trace records and send them; `send` is the method of an untraced producer.

    Owner: the event loop.
    """

    def __init__(self, topic: str, send: Send) -> None:
        self._topic = topic
        self._send = send
        self._waiting: list[TraceRecord] = []
        self._wake = asyncio.Event()
        self._closing = False
        self._task = asyncio.get_running_loop().create_task(self._run())
        self.dropped_count = 0

    def add(self, record: TraceRecord) -> None:
        if len(self._waiting) >= WAITING_MAX or self._task.done():
            self.dropped_count += 1
            return
        self._waiting.append(record)
        if len(self._waiting) >= COUNT_MAX:
            self._wake.set()

    async def _run(self) -> None:
        while not (self._closing and not self._waiting):
            try:
                async with asyncio.timeout(0 if self._closing else LINGER_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            while self._waiting:
                records = self._waiting[:COUNT_MAX]
                del self._waiting[:COUNT_MAX]
                await self._send_records(records)

    async def _send_records(self, records: list[TraceRecord]) -> None:
        body = encode_trace(records)
        if len(body) > BODY_BYTES_MAX and len(records) > 1:
            half = len(records) // 2
            await self._send_records(records[:half])
            await self._send_records(records[half:])
            return
        keys = sorted(keys_of(records))
        try:
            await self._send(Message(self._topic, body, keys=keys))
        except TianzhouError as error:
            self.dropped_count += len(records)
            log.warning("%d trace records were dropped: %s", len(records), error)

    async def close(self) -> None:
        """Send the records that wait, and stop."""
        self._closing = True
        self._wake.set()
        await self._task


_STATES: Final = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}


class Untraced(Protocol):
    """The producer that traces are sent with."""

    async def start(self) -> Self: ...
    async def send(self, message: Message) -> SendResult: ...
    async def close(self) -> None: ...


def untraced_group(group: str, purpose: str) -> str:
    """Return the group of the producer that sends the traces of a client of `group`."""
    return f"_INNER_TRACE_PRODUCER-{group}-{purpose}"[:GROUP_CHARS_MAX]


class SendTrace:
    """Traces of what a producer does.

    Owner: the event loop.
    """

    def __init__(self, group: str, topic: str, producer: Untraced, names: Namespace) -> None:
        """`names` is the producer's namespace, which traces do not show, as in Java."""
        self._group = group
        self._topic = topic
        self._producer = producer
        self._names = names

    async def start(self) -> Self:
        await self._producer.start()
        self._tracer = Tracer(self._topic, self._producer.send)
        return self

    def sent(
        self,
        message: Message,
        message_id: str,
        result: SendResult | None,
        *,
        times_ms: tuple[int, int],
        is_half: bool = False,
    ) -> None:
        """Record a send; `times_ms` are the times at which it began and ended."""
        (begun_ms, now_ms), topic = times_ms, self._names.plain(message.topic)
        if topic == self._topic or (result is not None and not result.is_traced):
            return
        self._tracer.add(
            Published(
                timestamp_ms=begun_ms,
                region_id=result.region_id if result else "",
                group=self._group,
                topic=topic,
                message_id=message_id,
                tags=message.tags or "",
                keys=" ".join(message.keys),
                store_host=_host_of(result),
                body_length=len(message.body),
                cost_ms=now_ms - begun_ms,
                message_type=_type_of(message, is_half=is_half),
                offset_id=result.offset_id if result else "",
                is_success=result is not None,
            )
        )

    def transaction_ended(
        self, message: Message, half: SendResult, state: TransactionState, now_ms: int
    ) -> None:
        self._tracer.add(
            TransactionEnded(
                timestamp_ms=now_ms,
                region_id=half.region_id,
                group=self._group,
                topic=message.topic,
                message_id=half.message_id,
                tags=message.tags or "",
                keys=" ".join(message.keys),
                store_host=_host_of(half),
                transaction_id=half.transaction_id or half.message_id,
                state=_STATES[state],
            )
        )

    def transaction_checked(
        self, message: MessageView, state: TransactionState, now_ms: int
    ) -> None:
        self._tracer.add(
            TransactionEnded(
                timestamp_ms=now_ms,
                region_id=message.properties.get("MSG_REGION", ""),
                group=self._group,
                topic=message.topic,
                message_id=message.message_id,
                tags=message.tags or "",
                keys=" ".join(message.keys),
                store_host="{}:{}".format(*message.store_host),
                transaction_id=message.message_id,
                state=_STATES[state],
                from_check=True,
            )
        )

    def recalled(self, topic: str, message_id: str, now_ms: int) -> None:
        topic = self._names.plain(topic)
        self._tracer.add(
            Recalled(timestamp_ms=now_ms, group=self._group, topic=topic, message_id=message_id)
        )

    async def close(self) -> None:
        await self._tracer.close()
        await self._producer.close()


def _host_of(result: SendResult | None) -> str:
    return "{}:{}".format(*decode_offset_id(result.offset_id).host) if result else ""


def _type_of(message: Message, *, is_half: bool) -> MessageType:
    if is_half:
        return MessageType.TRANSACTION_HALF
    if message.is_delayed:
        return MessageType.DELAY
    return MessageType.ORDER if message.sharding_key is not None else MessageType.NORMAL


_REGION: Final = names.MSG_REGION.decode()
_TRACE_ON: Final = names.TRACE_ON.decode()


class Consumption(NamedTuple):
    """One call of a listener, or one message delivered to a loop."""

    request_id: str
    begun_ms: int
    messages: tuple[tuple[str, str], ...]
    """Id and keys of each message that is traced."""


class ConsumeTrace:
    """Traces of what a consumer does.

    Threads report as well as the event loop, so records are created where they are reported and
    posted to the loop, which sends them.
    """

    def __init__(self, group: str, producer: Untraced) -> None:
        self._group = group
        self._producer = producer

    async def start(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await self._producer.start()
        self._tracer = Tracer(TRACE_TOPIC, self._producer.send)
        return self

    def began(self, messages: Sequence[ReceivedMessage]) -> Consumption:
        """Record the start of a delivery, in any thread. Brokers exclude messages from tracing."""
        now_ms, request_id = time.time_ns() // 1_000_000, uuid.uuid4().hex.upper()
        traced: list[tuple[str, str]] = []
        for message in messages:
            properties = message.properties
            if properties.get(_TRACE_ON) == "false":
                continue
            keys = " ".join(message.keys)
            traced.append((message.message_id, keys))
            self._send_record(
                ConsumeBegun(
                    timestamp_ms=now_ms,
                    region_id=properties.get(_REGION, ""),
                    group=self._group,
                    request_id=request_id,
                    message_id=message.message_id,
                    retry_times=message.reconsume_times,
                    keys=keys,
                )
            )
        return Consumption(request_id, now_ms, tuple(traced))

    def ended(
        self, delivery: Consumption, code: ContextCode, error: BaseException | None = None
    ) -> None:
        """Record the end of a delivery, in any thread. Traces do not contain the error."""
        now_ms = time.time_ns() // 1_000_000
        cost_ms = (now_ms - delivery.begun_ms) // max(1, len(delivery.messages))
        for message_id, keys in delivery.messages:
            self._send_record(
                ConsumeEnded(
                    request_id=delivery.request_id,
                    message_id=message_id,
                    cost_ms=cost_ms,
                    is_success=code is ContextCode.SUCCESS,
                    keys=keys,
                    context_code=code,
                    timestamp_ms=now_ms,
                    group=self._group,
                )
            )

    def _send_record(self, record: TraceRecord) -> None:
        self._loop.call_soon_threadsafe(self._tracer.add, record)

    async def close(self) -> None:
        """Send the records that wait, and stop."""
        await asyncio.sleep(0)  # after all posted records
        await self._tracer.close()
        await self._producer.close()


def send_spans(group: str) -> "SendSpans":
    """Return the spans of a producer. Raises UsageError without the extra `tracing`."""
    from tianzhou.client.spans import SendSpans

    return SendSpans(group)
