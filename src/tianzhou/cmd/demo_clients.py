"""The clients of the demo: a producer, and a consumer group of two."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from tianzhou.client.aio.producer import Producer
from tianzhou.client.aio.push_consumer import PushConsumer
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.offsets import StartPosition
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.core.send_request import SendResult
from tianzhou.client.options import Batching, ClientOptions, ProducerOptions
from tianzhou.cmd.demo_traffic import FAILED, ORDERS, STATES
from tianzhou.record.message import Message

GROUP: Final = "stock"
_RANK: Final = {state: rank for rank, state in enumerate(STATES)} | {FAILED: len(STATES) - 1}
_SENDING: Final = ProducerOptions(
    batching=Batching(), send_timeout_s=30, try_timeout_s=15, in_flight_count_max=2_000
)


async def send_all(nameserver: str, messages: Iterable[Message]) -> int:
    """Send concurrently; return how many messages the broker stored. Raises SendFailed."""
    stored = 0
    async with Producer("demo", nameserver=nameserver, options=_SENDING) as producer:
        waiting: list[asyncio.Future[SendResult]] = []
        for message in messages:
            waiting.append(asyncio.ensure_future(producer.send(message)))
            if len(waiting) >= 1_000:
                stored += len(await asyncio.gather(*waiting))
                waiting.clear()
        stored += len(await asyncio.gather(*waiting))
    return stored


@dataclass(slots=True)
class Group:
    """The orders that a consumer group received. Owner: the event loop."""

    received: int = 0
    disordered: int = 0
    by_state: Counter[str] = field(default_factory=Counter[str])
    _last: dict[str, int] = field(default_factory=dict[str, int])

    async def take(self, message: ReceivedMessage) -> None:
        body = json.loads(message.body)
        order, rank = body["orderId"], _RANK[body["state"]]
        self.received += 1
        self.by_state[body["state"]] += 1
        self.disordered += rank != self._last.get(order, -1) + 1
        self._last[order] = rank

    async def consume(self, nameserver: str, stop: asyncio.Event) -> None:
        """Consume with two members until `stop` is set."""
        options = ConsumerOptions(orderly=True, start_from=StartPosition.FIRST)
        async with AsyncExitStack() as stack:
            for rank in range(2):
                member = PushConsumer(
                    GROUP,
                    nameserver=nameserver,
                    subscribe={ORDERS: "*"},
                    options=options,
                    client=ClientOptions(instance_name=f"member-{rank}"),
                )
                member.listen(self.take)
                await stack.enter_async_context(member)
            await stop.wait()
