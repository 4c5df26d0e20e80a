"""Master and slave on one machine: what copies cost the master, and what waiting for them costs."""

import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter, sleep

from bench.broker import TOPIC, cpu_seconds, sends, served
from bench.load import Connection, drive, send_frame
from bench.measure import Row
from tianzhou.net.blocking import BlockingPeer
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.replication_bodies import ReplicationLook, decode_replication_look

BODY = 128
TOTAL = 60_000
PRODUCERS = {"connections": 8, "window": 8}
"""64 sends in flight."""
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
    """A broker by itself, without a NameServer, on free ports."""
    directory.mkdir(parents=True, exist_ok=True)
    conf = directory / "broker.conf"
    lines = {"vip_port": "false", "listenPort": "0", **settings}
    conf.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    tianzhou = str(Path(sys.executable).with_name("tianzhou"))
    return [tianzhou, "broker", "-c", str(conf), "--data", str(directory / "data"), "--no-http",
            "--ready-file"]  # fmt: skip


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
                directory / "slave", brokerRole="SLAVE", brokerId="1", flushDiskType=flush,
                haMasterAddress=master["ha"],
            )  # fmt: skip
            stack.enter_context(served(made))
            until(lambda: bool(look(master).slaves), "the slave follows")
        yield master


def look(server: dict[str, str]) -> ReplicationLook:
    with BlockingPeer(server["broker"]) as peer:
        _, body = peer.call(RequestCode.LOOK_AT_REPLICATION)
    return decode_replication_look(body)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = monotonic() + WAIT_S
    while not condition():
        assert monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        sleep(0.02)


def rate(server: dict[str, str], *, connections: int, window: int, total: int) -> float:
    seconds = drive(
        server["broker"], lambda rank: sends(BODY, rank, window), connections=connections,
        window=window, total=total,
    )  # fmt: skip
    return total / seconds


def rows() -> Iterator[Row]:
    yield from cost()
    yield from waiting()


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
            "replication", name, speeds[1], speeds[1] * BODY, costs[1] * 1e6, "a master alone",
            ratio, floor, smaller_is_better=smaller,
        )  # fmt: skip


def waiting() -> Iterator[Row]:
    """All four promises, with 64 in flight, beside the weakest. In turn, so that whatever else the
    machine does disturbs all of them alike."""
    rates: dict[Mode, float] = dict.fromkeys(MODES, 0.0)
    times: dict[Mode, list[float]] = {mode: [] for mode in MODES}
    with ExitStack() as stack:
        servers = {mode: stack.enter_context(pair(mode)) for mode in MODES}
        for turn in range(TURNS):
            for mode, server in servers.items():
                total = TOTAL // 20 if turn == 0 else TOTAL // 6
                found = rate(server, **PRODUCERS, total=total)
                rates[mode] = max(rates[mode], found)
                times[mode] += latencies(server["broker"])
    weakest = MODES[0]
    p50 = {mode: sorted(taken)[len(taken) // 2] for mode, taken in times.items()}
    for mode in MODES:
        name = f"{mode.name}, 64 in flight (1: p50 x {p50[mode] / p50[weakest]:.1f})"
        floor = 0.4 if mode == Mode(False, True) else None
        ratio = rates[mode] / rates[weakest]
        yield Row(
            "replication", name, rates[mode], rates[mode] * BODY, 0.0, "async, async", ratio, floor
        )


def latencies(address: str) -> list[float]:
    """How long single sends take, one after the other."""
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
