"""What tests of consumers share: both event loops, messages to consume, notes of what came."""

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, ParamSpec

import uvloop

from tianzhou.client.aio.producer import Producer
from tianzhou.client.aio.push_consumer import PushConsumer
from tianzhou.client.consume.listener import MessageListener
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.core.subscription import Sql92
from tianzhou.client.options import ClientOptions, ProducerOptions
from tianzhou.record.message import Message
from tianzhou.testing import RunningBroker
from tianzhou.testing.kit.patience import Patience
from tianzhou.wire.queues import MessageQueue

P = ParamSpec("P")
UNHURRIED = ProducerOptions(send_timeout_s=60.0)
"""For sends of tests that are not about timeouts: a slow machine is none of their business."""
WITHIN_S = 60.0


def asynchronous(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **named), WITHIN_S))

    return run


def on_both_loops(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """The same, on asyncio's own loop and on uvloop."""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **named), WITHIN_S))
        uvloop.run(asyncio.wait_for(test(*arguments, **named), WITHIN_S))

    return run


def loop_name() -> str:
    """A group for each of both loops."""
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


async def send(mq: RunningBroker, topic: str, bodies: Iterable[bytes], **more: Any) -> None:
    """One message for each body, round robin over the queues."""
    async with Producer("senders", nameserver=mq.nameserver, options=UNHURRIED) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, **more))


async def send_to(mq: RunningBroker, queue: MessageQueue, bodies: Iterable[bytes]) -> None:
    async with Producer("senders", nameserver=mq.nameserver, options=UNHURRIED) as producer:
        for body in bodies:
            await producer.send(Message(queue.topic, body), queue=queue)


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


class Notes:
    """What consumers got, in the order in which they got it."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)

    async def take(self, message: ReceivedMessage) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in list(self.messages)]

    @property
    def values(self) -> list[int]:
        return sorted(int(body) for body in self.bodies)


async def until(look: Callable[[], object], *, within_s: float = 20.0, what: str = "") -> None:
    """Wait for something that happens in this event loop or in another thread."""
    patience = Patience(within_s)
    while not (seen := look()):
        assert not patience.is_over(), f"not within {within_s} s: {what or look}; now {seen!r}"
        await asyncio.sleep(0.005)


@asynccontextmanager
async def consuming(
    mq: RunningBroker | str,
    group: str,
    topics: Mapping[str, str | Sql92],
    listener: MessageListener[Any],
    *,
    client: ClientOptions | None = None,
    **options: Any,
) -> AsyncGenerator[PushConsumer]:
    nameserver = mq if isinstance(mq, str) else mq.nameserver
    consumer = PushConsumer(
        group,
        nameserver=nameserver,
        subscribe=topics,
        options=ConsumerOptions(**options),
        client=client or ClientOptions(),
    )
    consumer.listen(listener)
    async with consumer:
        yield consumer
