"""Master and slave on one machine: the cost of replication and of waiting for it."""

import os
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter, sleep

from bench.broker import TOPIC, cpu_seconds, sends, served
from bench.load import Connection, batch_frame, drive, send_frame
from bench.measure import Row
from tianzhou.net.blocking import BlockingPeer
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.replication_bodies import ReplicationView, decode_replication_view

BODY = 128
TOTAL = 60_000
IN_FLIGHT = {
    "64 in flight on 8 connections": {"connections": 8, "window": 8},
    "64 producers": {"connections": 64, "window": 1},
}
"""The same number of concurrent sends. A connection per producer would cost a system call for every
message."""
ROUNDS = 3
TURNS = 6
WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Mode:
    sync_flush: bool
    sync_replication: bool

    @property
    def name(self) -> str:
        flush = "sync" if self.sync_flush else "async"
        return f"{flush} flush, {'sync' if self.sync_replication else 'async'} replication"


MODES = [Mode(flush, replication) for flush in (False, True) for replication in (False, True)]


def broker(directory: Path, **settings: str) -> list[str]:
    """A broker without a NameServer, on free ports."""
    directory.mkdir(parents=True, exist_ok=True)
    conf = directory / "broker.conf"
    lines = {"vip_port": "false", "listenPort": "0", "brokerName": "bench", **settings}
    conf.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    tianzhou = str(Path(sys.executable).with_name("tianzhou"))
    return [
        tianzhou,
        "broker",
        "-c",
        str(conf),
        "--data",
        str(directory / "data"),
        "--no-http",
        "--ready-file",
    ]


@contextmanager
def pair(mode: Mode, *, slave: bool = True) -> Generator[dict[str, str]]:
    """A master, and unless it is to be alone a slave that follows it."""
    flush = "SYNC_FLUSH" if mode.sync_flush else "ASYNC_FLUSH"
    role = "SYNC_MASTER" if mode.sync_replication else "ASYNC_MASTER"
    with tempfile.TemporaryDirectory(prefix="tianzhou-bench-") as name, ExitStack() as stack:
        directory = Path(name)
        master = stack.enter_context(
            served(broker(directory / "master", brokerRole=role, flushDiskType=flush))
        )
        if slave:
            made = broker(
                directory / "slave",
                brokerRole="SLAVE",
                brokerId="1",
                flushDiskType=flush,
                haMasterAddress=master["ha"],
            )
            stack.enter_context(served(made))
            until(lambda: bool(look(master).slaves), "the slave follows")
        yield master


def look(server: dict[str, str]) -> ReplicationView:
    with BlockingPeer(server["broker"]) as peer:
        _, body = peer.call(RequestCode.VIEW_REPLICATION)
    return decode_replication_view(body)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = monotonic() + WAIT_S
    while not condition():
        assert monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        sleep(0.02)


def rate(server: dict[str, str], *, connections: int, window: int, total: int) -> float:
    seconds = drive(
        server["broker"],
        lambda rank: sends(BODY, rank, window),
        connections=connections,
        window=window,
        total=total,
    )
    return total / seconds


def rows() -> Iterator[Row]:
    yield from cost()
    yield from waiting()
    yield catching_up()


def cost() -> Iterator[Row]:
    """The same load on a master alone and on one with a slave, in turn. On a small
    machine the slave and the load take their time from the same processors as the master, so what
    the master itself spends is shown too."""
    many = {"connections": 8, "window": 64, "total": TOTAL}
    with pair(MODES[0], slave=False) as alone, pair(MODES[0]) as followed:
        spent: dict[int, list[float]] = {0: [], 1: []}
        rates: dict[int, list[float]] = {0: [], 1: []}
        for server in (alone, followed):
            rate(server, connections=8, window=64, total=TOTAL // 10)
        for _ in range(ROUNDS):
            for which, server in enumerate((alone, followed)):
                before = cpu_seconds(int(server["pid"]))
                rates[which].append(rate(server, **many))
                until(lambda: all(s.lag_bytes == 0 for s in look(followed).slaves), "it is there")
                spent[which].append((cpu_seconds(int(server["pid"])) - before) / TOTAL)
    costs, speeds = [min(spent[n]) for n in (0, 1)], [max(rates[n]) for n in (0, 1)]
    for name, ratio, floor, smaller in (
        ("with a slave: CPU of the master", costs[1] / costs[0], 1.3, True),
        ("with a slave: rate, all on this machine", speeds[1] / speeds[0], 0.7, False),
    ):
        yield Row(
            "replication",
            name,
            speeds[1],
            speeds[1] * BODY,
            costs[1] * 1e6,
            "a master alone",
            ratio,
            floor,
            smaller_is_better=smaller,
        )


def waiting() -> Iterator[Row]:
    """All four modes, compared with the weakest guarantee. In turn, so that other load on the
    machine affects all of them alike."""
    rates: dict[tuple[str, Mode], float] = {}
    costs: dict[tuple[str, Mode], float] = {}
    times: dict[Mode, list[float]] = {mode: [] for mode in MODES}
    with ExitStack() as stack:
        servers = {mode: stack.enter_context(pair(mode)) for mode in MODES}
        for turn in range(TURNS):
            total = TOTAL // 20 if turn == 0 else TOTAL // 6
            for mode, server in servers.items():
                for name, shape in IN_FLIGHT.items():
                    before = cpu_seconds(int(server["pid"]))
                    found = rate(server, **shape, total=total)
                    spent = (cpu_seconds(int(server["pid"])) - before) / total
                    rates[name, mode] = max(rates.get((name, mode), 0.0), found)
                    costs[name, mode] = min(costs.get((name, mode), spent), spent)
                times[mode] += latencies(server["broker"])
    weakest = MODES[0]
    for (name, mode), best in rates.items():
        floor = 0.4 if mode == Mode(False, True) else None
        yield Row(
            "replication",
            f"{mode.name}: {name}",
            best,
            best * BODY,
            costs[name, mode] * 1e6,
            weakest.name,
            best / rates[name, weakest],
            floor,
        )
    p50 = {mode: sorted(taken)[len(taken) // 2] for mode, taken in times.items()}
    for mode, taken in p50.items():
        yield Row(
            "replication",
            f"{mode.name}: p50 of one at a time",
            1 / taken,
            BODY / taken,
            0.0,
            weakest.name,
            taken / p50[weakest],
            smaller_is_better=True,
        )


def catching_up() -> Row:
    """A new slave copies the log of its master; compared with a copy of the same files."""
    batches, count = 2_000, 64
    frame = batch_frame(TOPIC, [bytes(1024)] * count, 0) * 8
    with tempfile.TemporaryDirectory(prefix="tianzhou-bench-") as name, ExitStack() as stack:
        directory = Path(name)
        master = stack.enter_context(served(broker(directory / "master")))
        drive(master["broker"], lambda _: frame, connections=4, window=8, total=batches)
        size = look(master).end
        made = broker(
            directory / "slave", brokerRole="SLAVE", brokerId="1", haMasterAddress=master["ha"]
        )
        slave = stack.enter_context(served(made))
        begun, before = perf_counter(), cpu_seconds(int(slave["pid"]))
        left = size - look(slave).end
        until(lambda: look(slave).end >= size, "it has caught up")
        seconds = perf_counter() - begun
        cpu = (cpu_seconds(int(slave["pid"])) - before) / (batches * count) * size / max(left, 1)
        copied_s = _copy_seconds(directory / "master" / "data" / "commitlog", size)
    speed = left / seconds
    return Row(
        "replication",
        "a fresh slave catches up, 1 KiB",
        speed / size * batches * count,
        speed,
        cpu * 1e6,
        "copying the file, synced",
        speed / (size / copied_s),
    )


def _copy_seconds(log: Path, size: int) -> float:
    """Return how long it takes to write the first bytes of a log a second time."""
    data = memoryview(min(log.iterdir()).read_bytes())[:size]
    begun = perf_counter()
    with (log.parent / "copy").open("wb") as copy:
        copy.write(data)
        copy.flush()
        os.fdatasync(copy.fileno())
    return perf_counter() - begun


def latencies(address: str) -> list[float]:
    """Return how long single sends take, one after the other."""
    peer, times = Connection(address), list[float]()
    frame = send_frame(TOPIC, bytes(BODY), 1)
    for _ in range(200):
        begun = perf_counter()
        peer.exchange(frame)
        times.append(perf_counter() - begun)
    peer.socket.close()
    return times


if __name__ == "__main__":
    from bench.measure import show

    show(list(rows()), [], Path("build/bench-replication.jsonl"))
