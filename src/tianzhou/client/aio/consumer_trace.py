"""Traces of what consumers do: when a message was handed over, and what became of it.

Threads tell it as well as the event loop, so records are made where they are told and posted to the
loop, which sends them.
"""

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

from tianzhou.client.aio.producer import Producer
from tianzhou.client.aio.tracing import Tracer
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.core.trace import ConsumeBegun, ConsumeEnded, ContextCode, TraceRecord
from tianzhou.client.options import GROUP_CHARS_MAX, ClientOptions
from tianzhou.record import names
from tianzhou.wire.names import TRACE_TOPIC

_REGION: Final = names.MSG_REGION.decode()
_TRACE_ON: Final = names.TRACE_ON.decode()


class Consumption(NamedTuple):
    """One call of a listener, or one message handed to a loop."""

    request_id: str
    begun_ms: int
    messages: tuple[tuple[str, str], ...]
    """Id and keys of each message that is traced."""


class ConsumeTrace:
    def __init__(self, group: str, nameserver: str | None, client: ClientOptions) -> None:
        self._group = group
        own = f"_INNER_TRACE_PRODUCER-{group}-CONSUME"[:GROUP_CHARS_MAX]
        self._producer = Producer(own, nameserver=nameserver, client=client)

    async def start(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await self._producer.start()
        self._tracer = Tracer(TRACE_TOPIC, self._producer.send)
        return self

    def began(self, messages: Sequence[ReceivedMessage]) -> Consumption:
        """In any thread. Brokers say of which messages they want no traces."""
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

    def ended(self, consumption: Consumption, code: ContextCode) -> None:
        """In any thread."""
        now_ms = time.time_ns() // 1_000_000
        cost_ms = (now_ms - consumption.begun_ms) // max(1, len(consumption.messages))
        for message_id, keys in consumption.messages:
            self._send_record(
                ConsumeEnded(
                    request_id=consumption.request_id,
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
        """Send what waits."""
        await asyncio.sleep(0)  # behind everything that was posted
        await self._tracer.close()
        await self._producer.close()
