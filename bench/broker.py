"""The broker over real sockets: CPU per message of its process, compared with a server that only
acknowledges."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from bench.load import Connection, batch_frame, drive, pull_frame, send_frame
from bench.measure import Row
from tianzhou.testing.kit.server_process import ServerProcess

TOPIC = "bench"
TICK = os.sysconf("SC_CLK_TCK")


@contextmanager
def served(command: list[str]) -> Generator[dict[str, str]]:
    """Start a server, and yield the content of its ready file, whose path ends the command."""
    directory = Path(tempfile.mkdtemp(prefix="tianzhou-bench-"))
    server = ServerProcess(command[0], command, directory, cwd=Path.cwd())
    server.start()
    try:
        yield server.wait_ready(within_s=60)
    finally:
        if server.is_alive:
            server.stop(within_s=300)
        shutil.rmtree(directory)


def broker() -> list[str]:
    tianzhou = str(Path(sys.executable).with_name("tianzhou"))
    return [
        tianzhou,
        "up",
        "--ephemeral",
        "--nameserver-port",
        "0",
        "--broker-port",
        "0",
        "--ready-file",
    ]


def yardstick() -> list[str]:
    return [sys.executable, "-m", "bench.yardstick"]


def cpu_seconds(pid: int) -> float:
    """Of all threads that run now. In nanoseconds, not in the kernel's ticks of 10 ms, which are
    too coarse for the yardstick: a whole round of it takes five of them."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


class Shape:
    """One way of loading a server."""

    def __init__(
        self,
        name: str,
        burst: Callable[[int], bytes],
        *,
        connections: int,
        window: int,
        total: int,
        messages_per_request: int = 1,
        size: int = 0,
        most: float | None = None,
    ) -> None:
        self.name = name
        self.burst = burst
        self.connections = connections
        self.window = window
        self.total = total
        self.messages = messages_per_request
        self.size = size
        self.most = most
        """The allowed CPU per message, as a multiple of the yardstick's."""

    def measure(self, server: dict[str, str], times: int = 1) -> tuple[float, float]:
        """Messages per second, and CPU seconds per message of the server."""
        pid, total = int(server["pid"]), self.total * times
        drive(
            server["broker"],
            self.burst,
            connections=self.connections,
            window=self.window,
            total=self.total // 10,
        )
        before = cpu_seconds(pid)
        seconds = drive(
            server["broker"],
            self.burst,
            connections=self.connections,
            window=self.window,
            total=total,
        )
        messages = total * self.messages
        return messages / seconds, (cpu_seconds(pid) - before) / messages


def sends(body_bytes: int, rank: int, window: int) -> bytes:
    body = bytes(body_bytes)
    return b"".join(
        send_frame(TOPIC, body, rank * 1000 + number, queue=rank % 4) for number in range(window)
    )


def shapes() -> list[Shape]:
    many = {"connections": 8, "window": 64}
    batch = [bytes(128)] * 32
    return [
        Shape("send 128 B, 8 x 64 in flight", lambda r: sends(128, r, 64), **many, total=200_000,
              size=128, most=15),
        Shape("send 1 KiB, 8 x 64 in flight", lambda r: sends(1024, r, 64), **many, total=150_000,
              size=1024, most=17),
        Shape("batches of 32 x 128 B", lambda r: batch_frame(TOPIC, batch, r * 1000) * 8,
              connections=8, window=8, total=12_000, messages_per_request=32, size=128, most=9),
        Shape("pulls of 32 x 1 KiB", lambda r: pull_frame("pulled", 0, r) * 4, connections=4,
              window=4, total=20_000, messages_per_request=32, size=1024, most=2.5),
        Shape("pulls of 32 x 1 KiB, one tag of ten",
              lambda r: pull_frame("pulled", 0, r, tags="tag-3") * 4, connections=4, window=4,
              total=10_000, messages_per_request=32, size=1024),
    ]  # fmt: skip


def fill(address: str) -> None:
    """A queue to pull from."""
    peer = Connection(address)
    for first in range(0, 6_400, 64):
        frames = b"".join(send_frame("pulled", bytes(1024), first + n) for n in range(64))
        peer.exchange(frames, 64)
    peer.socket.close()


def rows() -> Iterator[Row]:
    with served(yardstick()) as server:
        # Longer than the others: the clock of a process ticks a hundred times a second.
        plain = [shape.measure(server, times=5) for shape in shapes()[:2]]
    with served(broker()) as server:
        fill(server["broker"])
        for shape in shapes():
            # The yardstick's cost depends on the number of frames only, so it is per frame.
            _, yard_cpu = plain[1 if shape.size == 1024 else 0]
            rate, cpu = shape.measure(server)
            yield Row(
                "broker",
                shape.name,
                rate,
                rate * shape.size,
                cpu * 1e6,
                "acknowledging only",
                cpu / yard_cpu,
                shape.most,
                smaller_is_better=True,
            )
        yield from latency(server["broker"])
        yield one_way(server)
        yield woken(server)


def latency(address: str) -> Iterator[Row]:
    peer = Connection(address)
    frame = send_frame(TOPIC, bytes(128), 1)
    times: list[float] = []
    for _ in range(5_000):
        begun = perf_counter()
        peer.exchange(frame)
        times.append(perf_counter() - begun)
    times.sort()
    p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
    name = f"send, 1 in flight: p50 {p50 * 1e6:.0f} µs, p99 {p99 * 1e6:.0f} µs"
    yield Row("broker", name, 1 / p50, 128 / p50, 0.0)


def one_way(server: dict[str, str]) -> Row:
    """One-way requests have no response; one final request with a response marks the end."""
    rounds, window = 800, 64
    frames = b"".join(
        send_frame(TOPIC, bytes(128), number, oneway=True) for number in range(window)
    )
    last = send_frame(TOPIC, bytes(128), 1)
    peer, pid = Connection(server["broker"]), int(server["pid"])
    peer.exchange(frames + last)
    before, begun = cpu_seconds(pid), perf_counter()
    for _ in range(rounds // 16):
        peer.exchange(frames * 16 + last)
    seconds = perf_counter() - begun
    messages = rounds * window
    cpu = (cpu_seconds(pid) - before) / messages
    rate = messages / seconds
    return Row("broker", "one-way 128 B, 1 connection", rate, rate * 128, cpu * 1e6)


def woken(server: dict[str, str]) -> Row:
    """Pulls that wait, each on a queue of its own topic, each woken by one message."""
    count, window = 1_000, 50
    address, pid = server["broker"], int(server["pid"])
    waiting, sender = [Connection(address) for _ in range(window)], Connection(address)
    topics = [f"woken-{number}" for number in range(count)]
    for topic in topics:  # create each with one message, to start after it
        sender.exchange(send_frame(topic, bytes(128), 1))
    before, begun = cpu_seconds(pid), perf_counter()
    for number, topic in enumerate(topics):
        peer = waiting[number % window]
        peer.outstanding += 1
        peer.socket.sendall(pull_frame(topic, 1, number, wait_ms=15_000))
    for topic in topics:
        sender.exchange(send_frame(topic, bytes(128), 1))
    for peer in waiting:
        while peer.outstanding:
            peer.receive()
    seconds = perf_counter() - begun
    cpu = (cpu_seconds(pid) - before) / count
    for peer in (*waiting, sender):
        peer.socket.close()
    name = f"{count} long polls woken by one message each"
    return Row("broker", name, count / seconds, count / seconds * 128, cpu * 1e6)
