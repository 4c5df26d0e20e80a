"""Producers at two brokers, one of which has a disk that stalls, with and without fail fast.

    python -m bench.fail_fast [python] [cpp] [java]

Both brokers flush synchronously. Each producer sends 100 messages a second for 16 s; after 4 s the
disk of one broker does not respond for 7 s. It prints, for each producer, with fail fast off, with
the defaults, and with a limit of 200 ms for the disk too, how many sends succeeded and failed, how
many messages are stored twice, how many are stored although their send failed, and the latency of
the successful sends. The C++ client is installed, and the Java client built, on first use; see
tests/clients and tests/interop.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from tianzhou.client import Message, Producer
from tianzhou.client.errors import ClientError

ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/e2e"), str(ROOT / "tests/interop")]

from e2e.two_brokers import TwoBrokers  # noqa: E402 - found through the line above

RATE: Final = 100
SECONDS: Final = 16
STALL_AT_S: Final = 4.0
STALL_S: Final = 7.0
TOPIC: Final = "orders"

Sends = list[tuple[str, bool, float]]
"""Body, success and seconds of each send."""
Load = Callable[[str, Path, threading.Event], Sends]


MODES: Final = {
    "off": ("fail_fast=false",),
    "on": (),
    "on, 200 ms": ("store_stall_max_ms=200",),
}


class Result(NamedTuple):
    sent: int
    failed: int
    twice: int
    stored_though_failed: int
    rejected: int
    p50_ms: float
    p99_ms: float
    longest_ms: float


def load_python(nameserver: str, _directory: Path, begun: threading.Event) -> Sends:
    async def load() -> Sends:
        results: Sends = []
        async with Producer("rate", nameserver=nameserver) as producer:
            await producer.send(Message(TOPIC, b"warm"))
            begun.set()
            start = time.monotonic()

            async def send(number: int) -> None:
                await asyncio.sleep(start + number / RATE - time.monotonic())
                body, at = f"p{number}", time.monotonic()
                try:
                    result = await producer.send(Message(TOPIC, body.encode()))
                    is_sent = result.status.name == "SEND_OK"
                except ClientError:
                    is_sent = False
                results.append((body, is_sent, time.monotonic() - at))

            await asyncio.gather(*(send(number) for number in range(RATE * SECONDS)))
        return results

    return asyncio.run(load())


def load_cpp(nameserver: str, directory: Path, begun: threading.Event) -> Sends:
    from clients.cpp_client import SCRIPTS, installed

    script = [str(installed()), str(SCRIPTS / "produce_rate.py")]
    process = subprocess.Popen(
        [*script, nameserver, TOPIC, str(RATE), str(SECONDS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"HOME": str(directory)},
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"begun": True}
        begun.set()
        return [tuple(row) for row in json.loads(process.stdout.readline())["sends"]]


def load_java(nameserver: str, directory: Path, begun: threading.Event) -> Sends:
    from interop import client_build, client_probe

    classpath = client_build.build(client_build.FIVE)
    with client_probe.running(classpath, nameserver, directory / "java") as probe:
        probe.ask("producer", "rate")
        probe.send("rate", TOPIC, "warm")
        begun.set()
        found: Any = probe.ask("load", "rate", topic=TOPIC, rate=RATE, seconds=SECONDS)
    return [(body, is_sent, ms / 1000) for body, is_sent, ms in found["sends"]]


LOADS: Final[dict[str, Load]] = {"python": load_python, "cpp": load_cpp, "java": load_java}


def measure(load: Load, *settings: str) -> Result:
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        brokers = TwoBrokers(directory, "flushDiskType=SYNC_FLUSH", *settings)
        try:
            asyncio.run(brokers.create(TOPIC))
            begun = threading.Event()
            stalling = threading.Thread(target=stall, args=(brokers, begun))
            stalling.start()
            sends = load(brokers.nameserver, directory, begun)
            stalling.join()
            stored = asyncio.run(brokers.stored(TOPIC))
            rejected = asyncio.run(brokers.rejected())
        finally:
            brokers.end()
    del stored["warm"]
    times = sorted(seconds * 1000 for _, is_sent, seconds in sends if is_sent)
    failed = [body for body, is_sent, _ in sends if not is_sent]
    lost = [body for body, is_sent, _ in sends if is_sent and not stored[body]]
    assert not lost, f"acknowledged and not stored: {lost}"
    return Result(
        len(times),
        len(failed),
        sum(count > 1 for count in stored.values()),
        sum(stored[body] > 0 for body in failed),
        rejected,
        times[len(times) // 2],
        times[len(times) * 99 // 100],
        times[-1],
    )


def stall(brokers: TwoBrokers, begun: threading.Event) -> None:
    begun.wait(60)
    time.sleep(STALL_AT_S)
    brokers.stall.begin()
    time.sleep(STALL_S)
    brokers.stall.end()


def main() -> None:
    print("| producer | fail fast | sent | failed | stored twice | failed and stored | rejected |"
          " p50 | p99 | longest |")  # fmt: skip
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in sys.argv[1:] or LOADS:
        for mode, settings in MODES.items():
            found = measure(LOADS[name], *settings)
            times = [f"{ms:.0f} ms" for ms in (found.p50_ms, found.p99_ms, found.longest_ms)]
            cells = [name, mode, *map(str, found[:5]), *times]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
