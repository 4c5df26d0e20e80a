"""The Python producer under load, as a process: the shapes of `produce_load.py` of the C++ client.

    python -m bench.producing NAMESERVER TOPIC LOOP SHAPE:COUNT...

LOOP is asyncio, uvloop or blocking. A shape is `single`, `many` (64 senders that each wait for
their answers), `gathered` (512 senders, whose messages are put together) or `cold` (all sends at
once, before the producer has a route or a connection; not with blocking). One JSON line each.
"""

import asyncio
import json
import sys
import threading
from collections.abc import Awaitable, Callable
from time import perf_counter, process_time

from tianzhou.client import Batching, Message, Producer, ProducerOptions
from tianzhou.client import sync as blocking

BODY = b"x" * 128
IN_FLIGHT = 64
GATHERED = 512
Shape = Callable[[Producer, str, int], Awaitable[dict[str, float]]]


def message(topic: str) -> Message:
    return Message(topic, BODY, tags="tag", keys="key")


def percentiles(times: list[float]) -> dict[str, float]:
    times.sort()
    return {"p50": times[len(times) // 2], "p99": times[len(times) * 99 // 100]}


async def single(producer: Producer, topic: str, count: int) -> dict[str, float]:
    times: list[float] = []
    for _ in range(count):
        begun = perf_counter()
        await producer.send(message(topic))
        times.append(perf_counter() - begun)
    return percentiles(times)


async def together(producer: Producer, topic: str, count: int, senders: int) -> dict[str, float]:
    async def work() -> None:
        for _ in range(count // senders):
            await producer.send(message(topic))

    await asyncio.gather(*(work() for _ in range(senders)))
    return {}


async def many(producer: Producer, topic: str, count: int) -> dict[str, float]:
    return await together(producer, topic, count, IN_FLIGHT)


async def gathered(producer: Producer, topic: str, count: int) -> dict[str, float]:
    return await together(producer, topic, count, GATHERED)


async def cold(producer: Producer, topic: str, count: int) -> dict[str, float]:
    await asyncio.gather(*[producer.send_async(message(topic)) for _ in range(count)])
    return {}


SHAPES: dict[str, Shape] = {"single": single, "many": many, "gathered": gathered, "cold": cold}


def say(shape: str, count: int, facts: dict[str, float], begun: float, cpu: float) -> None:
    seconds, used = perf_counter() - begun, process_time() - cpu
    told = {"shape": shape, "rate": count / seconds, "cpu_us": used / count * 1e6, **facts}
    print(json.dumps(told), flush=True)


async def measure(nameserver: str, topic: str, shapes: list[tuple[str, int]]) -> None:
    for shape, count in shapes:
        options = ProducerOptions(batching=Batching() if shape == "gathered" else None)
        async with Producer("our-load", nameserver=nameserver, options=options) as producer:
            for _ in range(0 if shape == "cold" else 200):
                await producer.send(message(topic))
            cpu, begun = process_time(), perf_counter()
            facts = await SHAPES[shape](producer, topic, count)
            say(shape, count, facts, begun, cpu)


def measure_blocking(nameserver: str, topic: str, shapes: list[tuple[str, int]]) -> None:
    with blocking.Producer("our-load", nameserver=nameserver) as producer:
        for _ in range(200):
            producer.send(message(topic))
        for shape, count in shapes:
            cpu, begun = process_time(), perf_counter()
            times: list[float] = []
            if shape == "single":
                for _ in range(count):
                    sent = perf_counter()
                    producer.send(message(topic))
                    times.append(perf_counter() - sent)
            else:

                def work(rounds: int = count // IN_FLIGHT) -> None:
                    for _ in range(rounds):
                        producer.send(message(topic))

                workers = [threading.Thread(target=work) for _ in range(IN_FLIGHT)]
                for worker in workers:
                    worker.start()
                for worker in workers:
                    worker.join()
            say(shape, count, percentiles(times) if times else {}, begun, cpu)


def main(nameserver: str, topic: str, loop: str, *wanted: str) -> None:
    shapes = [(name, int(count)) for name, _, count in (text.partition(":") for text in wanted)]
    if loop == "blocking":
        measure_blocking(nameserver, topic, shapes)
    elif loop == "uvloop":
        import uvloop

        uvloop.run(measure(nameserver, topic, shapes))
    else:
        asyncio.run(measure(nameserver, topic, shapes))


if __name__ == "__main__":
    main(*sys.argv[1:])
