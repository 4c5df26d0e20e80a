"""How soon a consumer gets messages of a new queue: `python -m bench.route_changes [ROUNDS]`.

Measured from before the request that adds a queue to the topic until the consumer has a message
that was sent to this queue as soon as the request was done. The server is a process of its own.
In a group with several members each waits a little before it reads the offset of a new queue, so
that the previous owner can commit it.
"""

import asyncio
import statistics
import sys
import time
from contextlib import AsyncExitStack

from bench.broker import broker, served
from tianzhou.client import Admin, Message, Producer, PushConsumer, ReceivedMessage
from tianzhou.wire.queues import MessageQueue

ROUNDS = 40
PAUSE_S = 1.0
"""Between two changes: notices of changes that follow each other quickly are coalesced."""


async def measure(nameserver: str, members: int, rounds: int) -> list[float]:
    """Return the seconds that each change took, for a group of `members` consumers."""
    topic, group = f"growing-{members}", f"readers-{members}"
    received: asyncio.Queue[int] = asyncio.Queue()

    async def take(message: ReceivedMessage) -> None:
        received.put_nowait(message.queue_id)

    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Admin(nameserver=nameserver))
        producer = await stack.enter_async_context(Producer("writers", nameserver=nameserver))
        await admin.topics.create(topic, queues=members)
        for _ in range(members):
            consumer = PushConsumer(group, nameserver=nameserver, subscribe={topic: "*"})
            consumer.listen(take)
            await stack.enter_async_context(consumer)
        found: list[float] = []
        for count in range(members + 1, members + 1 + rounds):
            await asyncio.sleep(PAUSE_S)
            place = (await producer.queues(topic))[0].broker_name
            new = MessageQueue(topic=topic, broker_name=place, queue_id=count - 1)
            begun = time.perf_counter()
            await admin.topics.update(topic, read_queues=count, write_queues=count)
            await producer.send(Message(topic, b"new"), queue=new)
            while await received.get() != new.queue_id:
                pass
            found.append(time.perf_counter() - begun)
        return found


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with served(broker()) as server:
        for members in (1, 2):
            found = sorted(asyncio.run(measure(server["nameserver"], members, rounds)))
            print(
                f"a message of a new queue, group of {members}, {rounds} changes: "
                f"median {statistics.median(found):.2f} s, slowest {found[-1]:.2f} s"
            )


if __name__ == "__main__":
    main()
