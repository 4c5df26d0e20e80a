"""How other clients affect one client: many new connections, and readers that do not read.

    python -m bench.crowds

The innocent client sends one message at a time, all the while. What counts is its p99 and its
longest wait, beside what it sees of an idle broker, and the memory of the broker's process.
"""

import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import NamedTuple
from urllib.request import urlopen

from bench.broker import broker, served
from bench.load import Connection, pull_frame, send_frame
from bench.measure import Limit

CONNECTIONS_PER_S, HELD_S = 2_000, 60
CONNECT_P99_MS_MAX = 15.0
"""Of the innocent client, while connections come. One core does both sides of them here."""
READERS, PULLS, MESSAGE_BYTES = 300, 200, 1 << 20
STALL_MS_MAX = 50.0
MEMORY_BYTES_MAX = 1000 * 1000 * 1000
"""512 MiB of responses that peers do not read are allowed, and as much that was freed and not yet
given back to the system."""
PAUSE_S = 0.001


class Latencies(NamedTuple):
    """Latencies of the observed client, in milliseconds."""

    p99_ms: float
    worst_ms: float


class Innocent:
    """The observed client: sends one message after another in its own thread."""

    def __init__(self, address: str) -> None:
        self._peer = Connection(address)
        self._frame = send_frame("innocent", bytes(128), 1)
        for _ in range(100):  # warm up: the topic exists, and the broker has measured this client
            self._peer.exchange(self._frame)
        self._times: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_S):
            begun = perf_counter()
            self._peer.exchange(self._frame)
            self._times.append(perf_counter() - begun)

    def stop(self) -> Latencies:
        self._stop.set()
        self._thread.join()
        self._peer.socket.close()
        times = sorted(1000 * one for one in self._times)
        return Latencies(times[len(times) * 99 // 100], times[-1])


def watched(address: str, crowd: Callable[[], None]) -> Latencies:
    innocent = Innocent(address)
    crowd()
    return innocent.stop()


def heap_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this kernel does not report RssAnon")


def wait_loaded(server: dict[str, str]) -> None:
    """Until the dashboard answers: a thread of the broker loads it after the start, and the two
    share an interpreter meanwhile."""
    with urlopen(server["http"].rstrip("/") + "/healthz", timeout=60) as response:
        response.read()


# Crowds


def connect(address: str, seconds: float) -> int:
    """Open, use once and close connections, evenly spread over time; return how many."""
    host, _, port = address.rpartition(":")
    frame = send_frame("innocent", bytes(16), 2)
    begun, count = monotonic(), 0
    while (passed := monotonic() - begun) < seconds:
        if count > passed * CONNECTIONS_PER_S:
            sleep(PAUSE_S)
            continue
        with socket.create_connection((host, int(port)), 10) as peer:
            peer.sendall(frame)
            peer.recv(1024)
        count += 1
    return count


def fill(address: str) -> None:
    """A queue whose pulls return 4 MiB each."""
    peer = Connection(address)
    for number in range(16):
        peer.exchange(send_frame("large", bytes(MESSAGE_BYTES), number))
    peer.socket.close()


def pull_and_read_nothing(address: str, stack: ExitStack) -> None:
    host, _, port = address.rpartition(":")
    asked = b"".join(pull_frame("large", 0, number) for number in range(PULLS))
    peers: list[socket.socket] = []
    for _ in range(READERS):
        made = stack.enter_context(socket.socket())
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        made.connect((host, int(port)))
        peers.append(made)
    for peer in peers:
        peer.sendall(asked)
    sleep(5)


# Rows


def limits(seconds: float = HELD_S) -> Iterator[Limit]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield from connections(seconds)
        yield from slow_readers()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connections(seconds: float) -> Iterator[Limit]:
    with served(broker()) as server:
        wait_loaded(server)
        before = heap_bytes(int(server["pid"]))
        done: list[int] = []
        seen = watched(server["broker"], lambda: done.append(connect(server["broker"], seconds)))
        rate = done[0] / seconds
        grown = heap_bytes(int(server["pid"])) - before
        name = f"{rate:,.0f} connections a second for {seconds:.0f} s: innocent client"
        yield Limit("crowds", f"{name}, p99", seen.p99_ms, CONNECT_P99_MS_MAX, "ms")
        yield Limit("crowds", f"{name}, longest wait", seen.worst_ms, STALL_MS_MAX, "ms")
        yield Limit("crowds", "memory that they left behind", grown / 1e6, 20, "MB")


def slow_readers() -> Iterator[Limit]:
    with served(broker()) as server, ExitStack() as stack:
        address, pid = server["broker"], int(server["pid"])
        wait_loaded(server)
        fill(address)
        before = heap_bytes(pid)
        seen = watched(address, lambda: pull_and_read_nothing(address, stack))
        grown = heap_bytes(pid) - before
        name = f"{READERS} readers of {PULLS} x 4 MiB that read nothing: innocent client"
        yield Limit("crowds", f"{name}, p99", seen.p99_ms, STALL_MS_MAX, "ms")
        yield Limit("crowds", f"{name}, longest wait", seen.worst_ms, STALL_MS_MAX, "ms")
        yield Limit(
            "crowds", "memory of the broker for them", grown / 1e6, MEMORY_BYTES_MAX / 1e6, "MB"
        )


def main() -> None:
    missed = 0
    for limit in limits(float(os.environ.get("SECONDS_HELD", HELD_S))):
        missed += not limit.holds
        print(f"{limit.name}: {limit.value:.1f} {limit.unit}, at most {limit.maximum:g}")
    raise SystemExit(missed > 0)


if __name__ == "__main__":
    main()
