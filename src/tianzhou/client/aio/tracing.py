"""Telling traces: gathered, sent now and then, and never in the way of what they tell of.

The records of one process go to the trace topic through a producer of their own, which is not
traced itself. A trace that can't be sent is dropped and counted: messages matter more.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from tianzhou.base.errors import TianzhouError
from tianzhou.client.core.sending import SendResult
from tianzhou.client.core.trace import TraceRecord, encode_trace, keys_of
from tianzhou.record.message import Message

log: Final = logging.getLogger("tianzhou.client")

COUNT_MAX: Final = 10
"""Records of one trace message, as other clients have it; tools show a message at a time."""
LINGER_S: Final = 5.0
WAITING_MAX: Final = 2_048
"""Records that wait to be sent; beyond that new ones are dropped."""
BODY_BYTES_MAX: Final = 128_000

Send = Callable[[Message], Awaitable[SendResult]]


class Tracer:
    """Owner: the event loop. `send` is that of a producer which is not traced."""

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
                await self._tell(records)

    async def _tell(self, records: list[TraceRecord]) -> None:
        body = encode_trace(records)
        if len(body) > BODY_BYTES_MAX and len(records) > 1:
            half = len(records) // 2
            await self._tell(records[:half])
            await self._tell(records[half:])
            return
        keys = sorted(keys_of(records))
        try:
            await self._send(Message(self._topic, body, keys=keys))
        except TianzhouError as error:
            self.dropped_count += len(records)
            log.warning("%d trace records were dropped: %s", len(records), error)

    async def close(self) -> None:
        """Send what waits."""
        self._closing = True
        self._wake.set()
        await self._task
