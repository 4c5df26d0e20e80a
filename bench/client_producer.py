"""The Python producer compared with RocketMQ's C++ client: same messages, broker and run.

Both are processes of their own, and take turns, so that a busy moment of the machine does not
meet only one of them. Of each shape the best round counts. The C++ client's `send_batch` is not
measured: brokers store what it sends as a single message. Its rate is the better one of 64 threads
and 64 callbacks.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.broker import broker, served
from bench.measure import Row

ROOT = Path(__file__).parents[1]
ROUNDS = 3
BODY_BYTES = 128
SINGLE, MANY, GATHERED, COLD = 3_000, 19_200, 51_200, 10_000
TOPIC = "load"
YARDSTICK = "C++ client"
FAILED_MAX = 64
"""Sends that the C++ client had to repeat: once for each thread, while it learns the route."""

Facts = dict[str, float]


def cpp_python() -> Path:
    """Return the interpreter with the C++ client, which the tests create on first use."""
    sys.path.insert(0, str(ROOT / "tests"))
    from clients.cpp_client import installed

    return installed()


def run(command: list[str]) -> dict[str, Facts]:
    """Return the results of a load process, by shape."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            cwd=ROOT,
            env={**os.environ, "HOME": home},
            check=False,
        )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    for line in lines:
        assert len(line.get("failed", ())) <= FAILED_MAX, line
    return {line.pop("shape"): line for line in lines}


def theirs(python: Path, nameserver: str) -> dict[str, Facts]:
    script = ROOT / "tests" / "clients" / "scripts" / "produce_load.py"
    shapes = [f"single:{SINGLE}", f"threads:{MANY}", f"async:{MANY // 8}"]
    return run([str(python), str(script), nameserver, TOPIC, *shapes])


def ours(nameserver: str, loop: str, *shapes: str) -> dict[str, Facts]:
    command = [sys.executable, "-m", "bench.producing", nameserver, TOPIC, loop, *shapes]
    return run(command)


def measured() -> tuple[dict[str, list[Facts]], dict[str, list[Facts]]]:
    """Their rounds and ours, by shape."""
    python = cpp_python()
    cpp: dict[str, list[Facts]] = {}
    our: dict[str, list[Facts]] = {}
    with served(broker()) as server:
        names = server["nameserver"]
        ours(names, "asyncio", "single:64")  # creates the topic
        for _ in range(ROUNDS):
            for shape, facts in theirs(python, names).items():
                cpp.setdefault(shape, []).append(facts)
            plain = [f"single:{SINGLE}", f"many:{MANY}", f"gathered:{GATHERED}"]
            full = [*plain, f"cold:{COLD}"]
            for loop, shapes in (
                ("asyncio", full),
                ("uvloop", full),
                ("blocking", plain[:2]),
            ):
                for shape, facts in ours(names, loop, *shapes).items():
                    our.setdefault(f"{shape}, {loop}", []).append(facts)
    return cpp, our


def fastest(rounds: list[Facts]) -> Facts:
    return max(rounds, key=lambda facts: facts["rate"])


def latency_row(name: str, rounds: list[Facts], yard_p50: float, most: float | None) -> Row:
    best = min(rounds, key=lambda facts: facts["p50"])
    p50, p99 = best["p50"], best["p99"]
    told = f"{name}: p50 {p50 * 1e6:.0f} µs, p99 {p99 * 1e6:.0f} µs"
    is_ours = yard_p50 > 0
    return Row(
        "producer",
        told,
        best["rate"],
        best["rate"] * BODY_BYTES,
        best["cpu_us"],
        YARDSTICK if is_ours else "",
        p50 / yard_p50 if is_ours else None,
        most,
        smaller_is_better=True,
    )


def rate_row(name: str, best: Facts, yard_rate: float, least: float | None) -> Row:
    is_ours = yard_rate > 0
    return Row(
        "producer",
        name,
        best["rate"],
        best["rate"] * BODY_BYTES,
        best["cpu_us"],
        YARDSTICK if is_ours else "",
        best["rate"] / yard_rate if is_ours else None,
        least,
    )


def rows() -> Iterator[Row]:
    cpp, our = measured()
    yield latency_row("C++, 1 in flight", cpp["single"], 0.0, None)
    yard_p50 = min(facts["p50"] for facts in cpp["single"])
    for loop in ("asyncio", "uvloop", "blocking"):
        yield latency_row(f"{loop}, 1 in flight", our[f"single, {loop}"], yard_p50, 1.5)
    threads, callbacks = fastest(cpp["threads"]), fastest(cpp["async"])
    yield rate_row("C++, 64 threads", threads, 0.0, None)
    yield rate_row("C++, 64 callbacks", callbacks, 0.0, None)
    best = max(threads["rate"], callbacks["rate"])
    for loop in ("asyncio", "uvloop"):
        yield rate_row(f"{loop}, 64 in flight", fastest(our[f"many, {loop}"]), best, 0.8)
    yield rate_row("blocking, 64 threads", fastest(our["many, blocking"]), best, None)
    for loop in ("asyncio", "uvloop"):
        name = f"{loop}, 512 senders, gathered"
        yield rate_row(name, fastest(our[f"gathered, {loop}"]), best, 2.0)
    for loop in ("asyncio", "uvloop"):
        name = f"{loop}, cold burst of {COLD:,}"
        yield rate_row(name, fastest(our[f"cold, {loop}"]), best, None)


if __name__ == "__main__":
    from bench.measure import show

    show(list(rows()), [], ROOT / "build" / "bench-client-producer.jsonl")
