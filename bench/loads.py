"""The cost of large numbers: queues, consumer groups, timed messages, undecided transactions.

    python -m bench.loads [DIRECTORY] [queues | groups | timers | halves]...

Each load has a broker process of its own. An innocent client sends one message at a time all the
while: its p99 and its longest wait show whether the event loop ever stands still. Memory is what
the broker's process has beyond what it had before the load. A start is measured in CPU time of its
process too, which other processes of the machine disturb less.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, sleep
from urllib.request import urlopen

from bench.broker import broker, cpu_seconds, served
from bench.crowds import STALL_MS_MAX, Innocent, Latencies, heap_bytes
from bench.load import Connection, drive, pull_frame, send_frame
from bench.measure import Limit
from tianzhou.cmd.clock import SystemClock
from tianzhou.store.files import RealFiles
from tianzhou.store.tables import Tables
from tianzhou.wire.codec import Header, Language, decode_headers, encode_command
from tianzhou.wire.tables import TopicConfig, TopicConfigTable

TOPICS, QUEUES = 5_000, 10
START_S_MAX, START_CPU_S_MAX = 5.0, 3.5
KILLED_START_S_MAX = 15.0
"""Units of one message for each queue are derived again."""
PAGES = ("/metrics", "/", "/topics", "/groups", "/metrics")
GROUPS, ROUNDS = 1_000, 5
TIMERS = 1_000_000
TIMERS_MB_MAX = 100.0
HALVES = 100_000
WAITING_BYTES_MAX = 64.0
"""Memory for each pending message."""
WARM_UP_MAX = 100_000
"""Messages that need no memory once they are stored, sent before the memory is measured."""
AHEAD_MS = 7_200_000
SETTLE_S = 15.0
"""How long the observed client continues after a load, to include checkpoints and statistics."""
CHECKPOINT_MS = 2_000
OFFSETS_SAVED_S = 7.0
"""Longer than `offsets_save_ms`."""


@contextmanager
def watched(address: str) -> Generator[list[Latencies]]:
    """Yield a list that gets the latencies of the observed client when the block ends."""
    innocent, seen = Innocent(address), list[Latencies]()
    yield seen
    seen.append(innocent.stop())


def stalls(name: str, seen: list[Latencies]) -> Iterator[Limit]:
    yield Limit("loads", f"{name}: innocent client, p99", seen[0].p99_ms, STALL_MS_MAX, "ms")
    worst = seen[0].worst_ms
    yield Limit("loads", f"{name}: innocent client, longest wait", worst, STALL_MS_MAX, "ms")


def pipelined(address: str, frames: Iterator[bytes], window: int = 64) -> None:
    """Send all requests over one connection, with a limited number in flight."""
    peer, burst = Connection(address), list[bytes]()
    for frame in frames:
        burst.append(frame)
        if len(burst) == window:
            peer.exchange(b"".join(burst), len(burst))
            burst.clear()
    if burst:
        peer.exchange(b"".join(burst), len(burst))
    peer.socket.close()


# Queues


def queues(directory: str) -> Iterator[Limit]:
    data = tempfile.mkdtemp(prefix="tianzhou-bench-", dir=directory)
    tianzhou = str(Path(sys.executable).with_name("tianzhou"))
    command = [
        tianzhou,
        "up",
        "--data",
        data,
        "--http-port",
        "0",
        "--nameserver-port",
        "0",
        "--broker-port",
        "0",
        "--set",
        f"queue_flush_thorough_ms={CHECKPOINT_MS}",
        "--ready-file",
    ]
    name = f"{TOPICS:,} topics with {TOPICS * QUEUES:,} queues"
    try:
        write_topics(data)
        with served(command) as server:
            address, pid = server["broker"], int(server["pid"])
            before = heap_bytes(pid)
            with watched(address) as seen:
                for _ in range(2):  # new queues, then queues that have files
                    pipelined(address, queue_frames())
                    sleep(SETTLE_S)
            grown = heap_bytes(pid) - before
        yield from stalls(name, seen)
        yield Limit("loads", f"{name}: memory", grown / 1e6, 200, "MB")
        yield from starts(name, command)
    finally:
        shutil.rmtree(data)


def starts(name: str, command: list[str]) -> Iterator[Limit]:
    """Restart after a clean stop, and after a kill."""
    begun = perf_counter()
    with served(command) as server:
        yield from started(f"{name}: start after a clean stop", begun, server)
        address = server["broker"]
        pipelined(address, commits())
        sleep(OFFSETS_SAVED_S)
        with watched(address) as seen:
            for page in PAGES:
                with urlopen(server["http"].rstrip("/") + page, timeout=60) as response:
                    response.read()
            pipelined(address, (request(215, 1, {"topic": f"topic-{n}"}) for n in range(8)))
            sleep(OFFSETS_SAVED_S)
        yield from stalls(f"{name}: a group that reads all, pages, 8 deleted topics", seen)
        pipelined(address, queue_frames())
        os.kill(int(server["pid"]), signal.SIGKILL)
    begun = perf_counter()
    with served(command):
        start_s = perf_counter() - begun
    yield Limit("loads", f"{name}: start after kill -9", start_s, KILLED_START_S_MAX, "s")


def started(name: str, begun: float, server: dict[str, str]) -> Iterator[Limit]:
    start_s, cpu_s = perf_counter() - begun, cpu_seconds(int(server["pid"]))
    yield Limit("loads", name, start_s, START_S_MAX, "s")
    yield Limit("loads", f"{name}, CPU time", cpu_s, START_CPU_S_MAX, "s")


def commits() -> Iterator[bytes]:
    """One group reads every queue."""
    for topic in range(TOPICS):
        for queue in range(QUEUES):
            ext = {
                "consumerGroup": "all",
                "topic": f"topic-{topic}",
                "queueId": str(queue),
                "commitOffset": "0",
            }
            yield request(15, topic * QUEUES + queue, ext)


def write_topics(data: str) -> None:
    """The table of topics, before the broker starts: to create them one by one takes longer."""
    topics = {
        f"topic-{number}": TopicConfig(
            topic_name=f"topic-{number}", read_queue_nums=QUEUES, write_queue_nums=QUEUES
        )
        for number in range(TOPICS)
    }
    table = Tables(RealFiles(), f"{data}/config").topics
    table.save(TopicConfigTable(topic_config_table=topics))


def queue_frames() -> Iterator[bytes]:
    for topic in range(TOPICS):
        for queue in range(QUEUES):
            yield send_frame(f"topic-{topic}", bytes(128), topic * QUEUES + queue, queue=queue)


# Groups


def groups() -> Iterator[Limit]:
    name = f"{GROUPS:,} consumer groups"
    with served(broker()) as server:
        address, pid = server["broker"], int(server["pid"])
        pipelined(address, (send_frame("read", bytes(128), number) for number in range(64)))
        before = heap_bytes(pid)
        with watched(address) as seen:
            members = [join(address, number) for number in range(GROUPS)]
            for round_ in range(ROUNDS):
                for number, member in enumerate(members):
                    ask(member, pull_frame("read", round_, number) + commit(number, round_), 2)
            grown = heap_bytes(pid) - before
        for member in members:
            member.socket.close()
    yield from stalls(name, seen)
    yield Limit("loads", f"{name}: memory", grown / 1e6, 100, "MB")


def request(code: int, number: int, ext: dict[str, str], body: bytes = b"") -> bytes:
    header = Header(code=code, opaque=number, language=Language.JAVA, version=409, ext=ext)
    return encode_command(header, body)


def join(address: str, number: int) -> Connection:
    """A client that is the only member of its group."""
    beat = {
        "clientID": f"client-{number}",
        "producerDataSet": [],
        "consumerDataSet": [
            {
                "groupName": f"group-{number}",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [{"topic": "read", "subString": "*", "subVersion": 1}],
            }
        ],
    }
    # A broker accepts 1,000 connections from one address.
    member = Connection(address, source=f"127.0.0.{2 + number % 8}")
    ask(member, request(34, number, {}, json.dumps(beat).encode()))
    return member


def ask(member: Connection, frames: bytes, answers: int = 1) -> None:
    """Like `exchange`, for a connection on which the broker also sends requests."""
    member.socket.sendall(frames)
    while answers > 0:
        size = member.socket.recv_into(member.buffer.writable())
        assert size > 0, "the server closed the connection"
        member.buffer.wrote(size)
        answers -= sum(header.is_response for header in decode_headers(member.buffer.take()))


def commit(number: int, offset: int) -> bytes:
    ext = {
        "consumerGroup": f"group-{number}",
        "topic": "read",
        "queueId": "0",
        "commitOffset": str(offset),
    }
    return request(15, number, ext)


# Pending messages


def waiting(
    directory: str, name: str, frame: Callable[[int], bytes], count: int, *, total_mb_max: float
) -> Iterator[Limit]:
    """Send `count` pending messages and measure their cost, also after a restart."""
    data = tempfile.mkdtemp(prefix="tianzhou-bench-", dir=directory)
    command = [*broker(), data]
    command[command.index("--ephemeral")] = "--data"
    command.insert(command.index("--data") + 1, command.pop())
    # The dashboard is loaded in the background after the start; its memory is not of messages.
    command.insert(command.index("--data"), "--no-http")
    try:
        with served(command) as server:
            address, pid = server["broker"], int(server["pid"])
            # Buffers grow to their final size, then the first of the pending messages' own.
            send_many(address, ordinary_frame, min(count, WARM_UP_MAX))
            send_many(address, frame, count // 10)
            before = heap_bytes(pid)
            with watched(address) as seen:
                send_many(address, frame, count)
                sleep(SETTLE_S)
            grown = heap_bytes(pid) - before
        yield from stalls(name, seen)
        yield Limit("loads", f"{name}: memory of each", grown / count, WAITING_BYTES_MAX, "bytes")
        yield Limit("loads", f"{name}: memory", grown / 1e6, total_mb_max, "MB")
        begun = perf_counter()
        with served(command) as server:
            yield from started(f"{name}: start after a clean stop", begun, server)
            with watched(server["broker"]) as seen:
                sleep(SETTLE_S)
        yield from stalls(f"{name}: after that start", seen)
    finally:
        shutil.rmtree(data)


def send_many(address: str, frame: Callable[[int], bytes], count: int) -> None:
    def burst(rank: int) -> bytes:
        return b"".join(frame(rank * 1000 + number) for number in range(64))

    drive(address, burst, connections=8, window=64, total=count)


def ordinary_frame(number: int) -> bytes:
    return send_frame("ordinary", bytes(128), number)


def timed_frame(number: int) -> bytes:
    deliver_ms = SystemClock().now_ms() + AHEAD_MS + number * 7_919 % AHEAD_MS
    return send_frame("timed", bytes(128), number, more=f"\x02TIMER_DELIVER_MS\x01{deliver_ms}")


def half_frame(number: int) -> bytes:
    return send_frame(
        "halves", bytes(128), number, sys_flag=4, more="\x02TRAN_MSG\x01true\x02PGROUP\x01bench"
    )


# Rows


def limits(directory: str, only: Collection[str] = ()) -> Iterator[Limit]:
    rows = {
        "queues": lambda: queues(directory),
        "groups": groups,
        "timers": lambda: waiting(
            directory, f"{TIMERS:,} timers", timed_frame, TIMERS, total_mb_max=TIMERS_MB_MAX
        ),
        "halves": lambda: waiting(
            directory, f"{HALVES:,} half messages", half_frame, HALVES, total_mb_max=10
        ),
    }
    for name in only or rows:
        yield from rows[name]()


def main() -> None:
    missed = 0
    directory = sys.argv[1] if len(sys.argv) > 1 else tempfile.gettempdir()
    for limit in limits(directory, sys.argv[2:]):
        missed += not limit.holds
        sign = "" if limit.holds else "  MISSED"
        text = f"{limit.name}: {limit.value:.1f} {limit.unit}, at most {limit.maximum:g}{sign}"
        print(text, flush=True)
    raise SystemExit(missed > 0)


if __name__ == "__main__":
    main()
