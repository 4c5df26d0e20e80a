"""Sends at the master while a cold topic is read, with and without a slave.

    python -m bench.cold_reading [DIRECTORY]

The reader is the one of Spark's tasks, in a process of its own: Spark itself would need most of the
two cores to start, and would hide what the broker does. Every message counts as old
(`memory_ratio = 0`), and the topic leaves the page cache before each round, so that a broker reads
it from the disk. Master, slave, reader and sender share this machine, so p99 depends on what else
runs here, and only what the master itself spends has a limit.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

from bench.broker import cpu_seconds, served
from bench.crowds import Innocent
from bench.measure import Row
from bench.replication import broker, look, until
from tianzhou.client.bulk.brokers import Brokers
from tianzhou.client.bulk.reader import QueueRange, QueueReader
from tianzhou.client.bulk.sender import BatchSender, Entry
from tianzhou.client.errors import TopicNotFound
from tianzhou.net.blocking import BlockingPeer
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_pull import GetMaxOffsetRequest
from tianzhou.wire.tables import decode_topic_table

TOPIC: Final = "cold"
COUNT: Final = 262_144
BODY: Final = 1024
ROUNDS: Final = 5
OLD: Final = {"memory_ratio": "0"}
DISK_MAX: Final = 0.1
"""What the master may still read from the disk when there is a slave."""
TIANZHOU: Final = str(Path(sys.executable).with_name("tianzhou"))


@dataclass(frozen=True, slots=True)
class Pair:
    """A master with a cold topic, and perhaps a slave."""

    nameserver: str
    master: dict[str, str]
    logs: tuple[Path, ...]
    p99s_ms: list[float] = field(default_factory=list[float])
    rates: list[float] = field(default_factory=list[float])
    read_bytes: list[int] = field(default_factory=list[int])
    """What the master read from the disk in each round."""
    cpu_s: list[float] = field(default_factory=list[float])
    """What the master spent in each round, for the sends too."""


@contextmanager
def pair(directory: str, *, slave: bool) -> Generator[Pair]:
    with (
        tempfile.TemporaryDirectory(prefix="tianzhou-bench-", dir=directory) as name,
        ExitStack() as stack,
    ):
        place = Path(name)
        names = stack.enter_context(served([TIANZHOU, "nameserver", "-p", "0", "--ready-file"]))
        options = ["-n", names["nameserver"], "--ready-file"]
        master = stack.enter_context(served([*broker(place / "master", **OLD)[:-1], *options]))
        fill(names["nameserver"])
        if slave:
            settings = {"brokerRole": "SLAVE", "brokerId": "1", **OLD}
            copy = stack.enter_context(
                served([*broker(place / "slave", **settings)[:-1], *options])
            )
            until(lambda: bool(look(master).slaves), "the slave follows")
            until(lambda: all(s.lag_bytes == 0 for s in look(master).slaves), "it has all")
            until(lambda: end_of(copy["broker"]) == COUNT, "it serves the topic")
        count = 2 if slave else 1
        until(lambda: replicas(names["nameserver"]) == count, "the route has all replicas")
        yield Pair(names["nameserver"], master, tuple(place.glob("*/data/commitlog")))


def fill(nameserver: str) -> None:
    """Send the topic, in batches that are repeated if a busy broker rejects them."""
    with Brokers(nameserver) as brokers:
        sender = BatchSender(brokers, "bench")
        for number in range(COUNT):
            sender.add(TOPIC, Entry(bytes(BODY), b"UNIQ_KEY\x01%032X\x02" % number))
        sender.flush()


def end_of(address: str) -> int:
    """How many messages of the topic a broker serves."""
    with BlockingPeer(address) as peer:
        _, body = peer.call(RequestCode.GET_ALL_TOPIC_CONFIG)
        topic = decode_topic_table(body).topic_config_table.get(TOPIC)
        queues = range(topic.read_queue_nums if topic else 0)
        fields = [GetMaxOffsetRequest(topic=TOPIC, queue_id=queue).to_ext() for queue in queues]
        answers = [peer.call(RequestCode.GET_MAX_OFFSET, ext)[0] for ext in fields]
    return sum(int(answer.ext["offset"]) for answer in answers)


def replicas(nameserver: str) -> int:
    """How many replicas the route of the topic has."""
    with Brokers(nameserver) as brokers:
        try:
            return len(brokers.route(TOPIC).brokers["bench"])
        except TopicNotFound:  # not registered yet
            return 0


def cool(logs: tuple[Path, ...]) -> None:
    """Remove these logs from the page cache."""
    for file in (file for log in logs for file in log.iterdir()):
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def disk_bytes(pid: int) -> int:
    """How much this process has read from the disk."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


def read_all(nameserver: str) -> int:
    """Read the topic as tasks of Spark do; return the number of messages."""
    with Brokers(nameserver) as brokers:
        ends = brokers.max_offsets(brokers.route(TOPIC).read_queues)
        reader = QueueReader(brokers, "bench-tasks")
        ranges = [QueueRange(queue, 0, end) for queue, end in ends.items()]
        return sum(len(run.starts) for one in ranges for run in reader.read(one))


def measure(one: Pair) -> None:
    """One round: read everything while another client sends."""
    cool(one.logs)
    pid = int(one.master["pid"])
    before, cpu_before_s = disk_bytes(pid), cpu_seconds(pid)
    command = [sys.executable, "-m", "bench.cold_reading", "read", one.nameserver]
    innocent, begun = Innocent(one.master["broker"]), perf_counter()
    subprocess.run(command, check=True)
    one.rates.append(COUNT / (perf_counter() - begun))
    one.p99s_ms.append(innocent.stop().p99_ms)
    one.read_bytes.append(disk_bytes(pid) - before)
    one.cpu_s.append(cpu_seconds(pid) - cpu_before_s)


def rows(directory: str) -> Iterator[Row]:
    """All rounds in turn, so that other load on the machine affects both alike."""
    with pair(directory, slave=False) as alone, pair(directory, slave=True) as followed:
        for _ in range(ROUNDS):
            for one in (alone, followed):
                measure(one)
    # Of each the round with the least disturbance.
    p99_ms = {"without a slave": min(alone.p99s_ms), "with a slave": min(followed.p99s_ms)}
    for one, (name, ms) in zip((alone, followed), p99_ms.items(), strict=True):
        rate, is_base = max(one.rates), one is alone
        yield Row(
            "cold reading",
            f"{name}: p99 of sends {ms:.1f} ms",
            rate,
            rate * BODY,
            min(one.cpu_s) / COUNT * 1e6,
            "" if is_base else "without a slave",
            None if is_base else ms / p99_ms["without a slave"],
            smaller_is_better=True,
        )
    read = [median(one.read_bytes) for one in (alone, followed)]
    rate = max(followed.rates)
    yield Row(
        "cold reading",
        f"with a slave: the master reads {read[1] / 1e6:.0f} MB from the disk, not "
        f"{read[0] / 1e6:.0f}",
        rate,
        rate * BODY,
        min(followed.cpu_s) / COUNT * 1e6,
        "without a slave",
        read[1] / max(read[0], 1),
        DISK_MAX,
        smaller_is_better=True,
    )


def main() -> None:
    if sys.argv[1:2] == ["read"]:
        raise SystemExit(read_all(sys.argv[2]) != COUNT)
    from bench.measure import show

    directory = sys.argv[1] if len(sys.argv) > 1 else tempfile.gettempdir()
    show(list(rows(directory)), [], Path("build/bench-cold-reading.jsonl"))


if __name__ == "__main__":
    main()
