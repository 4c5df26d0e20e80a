"""How soon a consumer gets messages of a new queue: `python -m bench.route_changes [ROUNDS]`.

Measured from before the request that adds a queue to the topic until the consumer has a message
that was sent to this queue as soon as the request was done. The server is a process of its own.
"""

import asyncio
import statistics
import sys
import time

from bench.broker import broker, served
from tianzhou.client import Admin, Message, Producer, PushConsumer, ReceivedMessage
from tianzhou.wire.queues import MessageQueue

ROUNDS = 40
PAUSE_S = 1.0
"""Between two changes: notices of changes that follow each other quickly are coalesced."""
TOPIC = "growing"


async def measure(nameserver: str, rounds: int) -> list[float]:
    """Return the seconds that each change took."""
    received: asyncio.Queue[int] = asyncio.Queue()

    async def take(message: ReceivedMessage) -> None:
        received.put_nowait(message.queue_id)

    consumer = PushConsumer("growing-readers", nameserver=nameserver, subscribe={TOPIC: "*"})
    consumer.listen(take)
    async with (
        Admin(nameserver=nameserver) as admin,
        Producer("growing-writers", nameserver=nameserver) as producer,
    ):
        await admin.topics.create(TOPIC, queues=1)
        async with consumer:
            found: list[float] = []
            for count in range(2, rounds + 2):
                await asyncio.sleep(PAUSE_S)
                place = (await producer.queues(TOPIC))[0].broker_name
                new = MessageQueue(topic=TOPIC, broker_name=place, queue_id=count - 1)
                begun = time.perf_counter()
                await admin.topics.update(TOPIC, read_queues=count, write_queues=count)
                await producer.send(Message(TOPIC, b"new"), queue=new)
                while await received.get() != new.queue_id:
                    pass
                found.append(time.perf_counter() - begun)
            return found


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with served(broker()) as server:
        found = sorted(asyncio.run(measure(server["nameserver"], rounds)))
    print(
        f"a message of a new queue, {rounds} changes: median {statistics.median(found):.2f} s, "
        f"slowest {found[-1]:.2f} s"
    )


if __name__ == "__main__":
    main()
