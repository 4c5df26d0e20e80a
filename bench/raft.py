"""Three Raft members on this machine, compared with one broker that flushes synchronously.

All three, and the load, share the cores of this machine, so a group does four times the work.
"""

from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any, cast

from bench.broker import broker, served
from bench.measure import Row
from bench.replication import BODY, latencies, rate
from tianzhou.net.blocking import BlockingPeer
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.raft_bodies import decode_raft_view

TOTAL = 20_000
ROUNDS = 5
FLOOR = 0.35
WAIT_S = 30.0


def leader(server: dict[str, Any]) -> dict[str, str]:
    """Return the address of the group's leader."""
    members = cast("dict[str, str]", server["members"])
    deadline = monotonic() + WAIT_S
    while True:
        for address in members.values():
            with BlockingPeer(address) as peer:
                _, body = peer.call(RequestCode.VIEW_RAFT)
            if decode_raft_view(body).is_leading:
                return {"broker": address}
        assert monotonic() < deadline, f"no leader after {WAIT_S} s"
        sleep(0.05)


def rows() -> Iterator[Row]:
    up = broker()
    alone = [*up[:2], "--sync-flush", *up[2:]]
    group = [*up[:2], "--replicas", "3", *up[2:]]
    with served(alone) as one, served(group) as three:
        servers = {"one broker, synchronous flush": one, "a group of three": leader(three)}
        best = dict.fromkeys(servers, 0.0)
        for server in servers.values():
            rate(server, connections=1, window=64, total=TOTAL // 10)
        for _ in range(ROUNDS):
            for name, server in servers.items():
                found = rate(server, connections=1, window=64, total=TOTAL)
                best[name] = max(best[name], found)
        alone_rate = best["one broker, synchronous flush"]
        for name, server in servers.items():
            times = sorted(latencies(server["broker"]))
            p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
            ratio = best[name] / alone_rate if name.startswith("a group") else None
            said = f"{name}, 64 in flight (1: p50 {p50 * 1e6:.0f}, p99 {p99 * 1e6:.0f} µs)"
            yield Row(
                "raft",
                said,
                best[name],
                best[name] * BODY,
                0.0,
                "one broker" if ratio else "",
                ratio,
                FLOOR if ratio else None,
            )


if __name__ == "__main__":
    from bench.measure import show

    show(list(rows()), [], Path("build/bench-raft.jsonl"))
