"""The Python consumer under load, as a process: the same as `consume_load.py` of the C++ client.

    python -m bench.consuming NAMESERVER GROUP TOPIC COUNT LOOP KIND

LOOP is asyncio, uvloop or blocking; KIND is loop, batches, coroutine, function or orderly. It gets
COUNT messages and looks at each body. One JSON line.
"""

import asyncio
import json
import sys
import time
from time import perf_counter, process_time

from tianzhou.client import ConsumerOptions, PushConsumer, ReceivedMessage, StartPosition
from tianzhou.client import sync as blocking

BATCH = 64


class Count:
    """The listener: reads the body and the clock."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.seen = 0
        self.latencies: list[int] = []

    def __call__(self, message: ReceivedMessage) -> None:
        body = message.body
        if body[:1] != b"x":
            self.latencies.append(time.time_ns() - int(body))
        self.seen += 1
        if self.seen == 1:
            self.begun, self._cpu = perf_counter(), process_time()
        if self.seen == self.count:
            self.seconds = perf_counter() - self.begun
            self.cpu = process_time() - self._cpu
            self.finished()

    async def take(self, message: ReceivedMessage) -> None:
        self(message)

    def finished(self) -> None:
        """Set when all messages have arrived."""

    def say(self) -> None:
        facts = {
            "rate": (self.count - 1) / self.seconds,
            "cpu_us": self.cpu / self.count * 1e6,
            "latencies": sorted(self.latencies),
        }
        print(json.dumps(facts), flush=True)


def done_soon(loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> None:
    """Called from the thread that counted the last message."""
    loop.call_soon_threadsafe(done.set)


def options(kind: str) -> ConsumerOptions:
    return ConsumerOptions(start_from=StartPosition.FIRST, orderly=kind == "orderly")


async def consume(nameserver: str, group: str, topic: str, count: Count, kind: str) -> None:
    consumer = PushConsumer(
        group, nameserver=nameserver, subscribe={topic: "*"}, options=options(kind)
    )
    done, loop = asyncio.Event(), asyncio.get_running_loop()
    count.finished = lambda: done_soon(loop, done)
    if kind in ("coroutine", "orderly"):
        consumer.listen(count.take)
    elif kind == "function":
        consumer.listen(count)
    async with consumer:
        print(json.dumps({"ready": True}), flush=True)
        if kind == "loop":
            async for message in consumer:
                count(message)
                if count.seen == count.count:
                    break
        elif kind == "batches":
            async for batch in consumer.batches(BATCH):
                for message in batch:
                    count(message)
                if count.seen == count.count:
                    break
        else:
            await asyncio.wait_for(done.wait(), 120)


def consume_blocking(nameserver: str, group: str, topic: str, count: Count, kind: str) -> None:
    consumer = blocking.PushConsumer(
        group, nameserver=nameserver, subscribe={topic: "*"}, options=options(kind)
    )
    with consumer:
        print(json.dumps({"ready": True}), flush=True)
        for message in consumer:
            count(message)
            if count.seen == count.count:
                break


def main(nameserver: str, group: str, topic: str, number: str, loop: str, kind: str) -> None:
    count = Count(int(number))
    if loop == "blocking":
        consume_blocking(nameserver, group, topic, count, kind)
    elif loop == "uvloop":
        import uvloop

        uvloop.run(consume(nameserver, group, topic, count, kind))
    else:
        asyncio.run(consume(nameserver, group, topic, count, kind))
    count.say()


if __name__ == "__main__":
    main(*sys.argv[1:])
