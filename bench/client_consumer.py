"""Consumers of the Python client compared with RocketMQ's C++ client: same messages, same broker.

Throughput: a topic that is full of messages is consumed from its beginning, by each in turn, as a
process of its own. Counted is from the first message to the last. Both do the same with each: a
Python function looks at the body. Of the C++ client the number of threads counts with which it is
fastest.

Latency: messages come one at a time, so that nothing queues; from before the send to when the
consumer has the body.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from bench.broker import broker, served
from bench.client_producer import ROOT, YARDSTICK, cpp_python
from bench.measure import Row
from tianzhou.client import Batching, Message, Producer, ProducerOptions

BODY = b"x" * 128
THROUGHPUT = 100_000
LATENCY = 1_500
PAUSE_S = 0.002
ROUNDS = 3
CPP_THREADS = (1, 4, 20)
OURS = (
    ("asyncio", "loop"),
    ("asyncio", "batches"),
    ("asyncio", "coroutine"),
    ("asyncio", "function"),
    ("asyncio", "orderly"),
    ("uvloop", "coroutine"),
    ("blocking", "loop"),
)
LEAST = 1.0
"""Times the rate of the C++ client."""

Facts = dict[str, float | list[int]]
_groups = count()


async def fill(nameserver: str, topic: str, number: int) -> None:
    options = ProducerOptions(batching=Batching())
    async with Producer("fillers", nameserver=nameserver, options=options) as producer:
        for _ in range(0, number, 1_000):
            await asyncio.gather(*(producer.send(Message(topic, BODY)) for _ in range(1_000)))


async def send_slowly(nameserver: str, topic: str, number: int) -> None:
    async with Producer("senders", nameserver=nameserver) as producer:
        for _ in range(number):
            await producer.send(Message(topic, b"%d" % time.time_ns()))
            await asyncio.sleep(PAUSE_S)


@contextmanager
def consuming(command: list[str]) -> Generator[subprocess.Popen[str]]:
    """A process that has reported that it is ready."""
    with tempfile.TemporaryDirectory() as home:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "HOME": home},
        )
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert ready, process.communicate()[1]
            yield process
        finally:
            process.kill()
            process.wait()


def result(process: subprocess.Popen[str]) -> Facts:
    told, errors = process.communicate(timeout=180)
    lines = told.splitlines()
    assert lines, errors
    return json.loads(lines[0])


def theirs(python: Path, nameserver: str, topic: str, number: int, threads: int) -> list[str]:
    script = ROOT / "tests" / "clients" / "scripts" / "consume_load.py"
    group = f"cpp-{next(_groups)}"
    return [str(python), str(script), nameserver, group, topic, str(number), str(threads)]


def ours(nameserver: str, topic: str, number: int, loop: str, kind: str) -> list[str]:
    group = f"our-{next(_groups)}"
    return [
        sys.executable,
        "-m",
        "bench.consuming",
        nameserver,
        group,
        topic,
        str(number),
        loop,
        kind,
    ]


def throughput(nameserver: str, python: Path) -> Iterator[Row]:
    asyncio.run(fill(nameserver, "full", THROUGHPUT))
    commands = {
        f"C++, {threads} threads": lambda threads=threads: theirs(
            python, nameserver, "full", THROUGHPUT, threads
        )
        for threads in CPP_THREADS
    } | {
        f"{loop}, {kind}": lambda loop=loop, kind=kind: ours(
            nameserver, "full", THROUGHPUT, loop, kind
        )
        for loop, kind in OURS
    }
    best: dict[str, Facts] = {}
    for _ in range(ROUNDS):
        for name, command in commands.items():
            with consuming(command()) as process:
                facts = result(process)
            if name not in best or facts["rate"] > best[name]["rate"]:  # pyright: ignore[reportOperatorIssue] # both are rates
                best[name] = facts
    yard = max(float(best[name]["rate"]) for name in best if name.startswith("C++"))  # pyright: ignore[reportArgumentType] # a rate
    for name, facts in best.items():
        yield _rate_row(name, facts, 0.0 if name.startswith("C++") else yard)


def _rate_row(name: str, facts: Facts, yard: float) -> Row:
    rate, cpu_us = facts["rate"], facts["cpu_us"]
    assert isinstance(rate, float)
    assert isinstance(cpu_us, float)
    return Row(
        "consumer",
        name,
        rate,
        rate * len(BODY),
        cpu_us,
        YARDSTICK if yard else "",
        rate / yard if yard else None,
        LEAST if yard else None,
    )


def latency(nameserver: str, python: Path) -> Iterator[Row]:
    yard = 0.0
    for name in ("C++", "asyncio, coroutine", "uvloop, coroutine", "asyncio, loop"):
        topic = f"slow-{next(_groups)}"
        asyncio.run(fill(nameserver, topic, 1_000))  # creates the topic; not measured
        number = LATENCY + 1_000
        command = (
            theirs(python, nameserver, topic, number, 4)
            if name == "C++"
            else ours(nameserver, topic, number, *name.split(", "))
        )
        with consuming(command) as process:
            asyncio.run(send_slowly(nameserver, topic, LATENCY))
            facts = result(process)
        times = facts["latencies"]
        assert isinstance(times, list)
        assert len(times) == LATENCY
        p50, p99 = times[LATENCY // 2] / 1e3, times[LATENCY * 99 // 100] / 1e3
        cpu_us = facts["cpu_us"]
        assert isinstance(cpu_us, float)
        yield Row(
            "consumer",
            f"{name}, end to end: p50 {p50:.0f} µs, p99 {p99:.0f} µs",
            1e6 / p50,
            0.0,
            cpu_us,
            YARDSTICK if yard else "",
            p50 / yard if yard else None,
            None,
            smaller_is_better=True,
        )
        yard = yard or p50


def rows() -> Iterator[Row]:
    python = cpp_python()
    with served(broker()) as server:
        yield from throughput(server["nameserver"], python)
        yield from latency(server["nameserver"], python)


if __name__ == "__main__":
    from bench.measure import show

    show(list(rows()), [], ROOT / "build" / "bench-client-consumer.jsonl")
