"""Two checkouts beside each other, row by row: did a change slow down a hot path?

    python -m bench.compare OTHER_CHECKOUT [PART_OF_A_ROW'S_NAME...]

OTHER_CHECKOUT needs a `.venv` of its own. Both run the benchmarks of this checkout, in turn, one
round of each after the other. Compared is the CPU time of their processes, of every row the
smallest of all rounds: on a busy machine it is the figure that others disturb least.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Final

from bench.broker import broker, cpu_seconds, fill, sends, served
from bench.load import Connection, batch_frame, drive, pull_frame, send_frame
from bench.loads import half_frame, request, timed_frame
from tianzhou.cmd.clock import SystemClock
from tianzhou.wire.codec import Header, Language, decode_header, encode_command
from tianzhou.wire.frame import SerialiseType

ROOT: Final = Path(__file__).parents[1]
ROUNDS: Final = 7
TOPIC: Final = "bench"

Measure = Callable[[], float]
"""Runs one round; CPU in µs per message."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests for a broker, `window` of them in flight on each connection."""

    name: str
    burst: Callable[[int], bytes]
    total: int
    window: int = 64
    connections: int = 8
    messages: int = 1
    settle_s: float = 0.0
    """Work that the requests cause later is counted too."""


def loads() -> list[Load]:
    batch = [bytes(128)] * 32
    few = {"connections": 4, "window": 4, "messages": 32}
    return [
        Load("send V2 JSON, 128 B", lambda r: sends(128, r, 64), 40_000),
        Load("send V2 JSON, 1 KiB", lambda r: sends(1024, r, 64), 40_000),
        Load("send V2 JSON, a key", lambda r: bursts(r, key_frame), 40_000),
        Load("send V1 JSON, 128 B", lambda r: bursts(r, v1_frame), 40_000),
        Load("send V2 binary, 128 B", lambda r: bursts(r, binary_frame), 40_000),
        Load("send V2 JSON, one in flight", lambda r: sends(128, r, 1), 6_000, 1, 1),
        Load(
            "batches of 32 x 128 B",
            lambda r: batch_frame(TOPIC, batch, r * 1000) * 8,
            3_000,
            8,
            messages=32,
        ),
        Load("pulls of 32 x 1 KiB", lambda r: pull_frame("pulled", 0, r) * 4, 8_000, **few),
        Load(
            "pulls of 32 x 1 KiB, one tag of ten",
            lambda r: pull_frame("pulled", 0, r, tags="tag-3") * 4,
            3_000,
            **few,
        ),
        Load("pulls of 32 x 1 KiB, SQL", lambda r: sql_frame(r) * 4, 2_000, **few),
        Load(
            "send delayed by 1 s, and deliver",
            lambda r: bursts(r, delayed_frame),
            20_000,
            settle_s=4,
        ),
        Load(
            "send timed for 1 s later, and deliver",
            lambda r: bursts(r, soon_frame),
            20_000,
            settle_s=4,
        ),
        Load("send timed for hours later", lambda r: bursts(r, timed_frame), 20_000),
        Load("send half messages", lambda r: bursts(r, half_frame), 20_000),
        Load("send back, retried after 1 s", lambda r: bursts(r, back_frame), 10_000, settle_s=4),
    ]


def bursts(rank: int, frame: Callable[[int], bytes], window: int = 64) -> bytes:
    return b"".join(frame(rank * 1000 + number) for number in range(window))


def key_frame(number: int) -> bytes:
    return send_frame(TOPIC, bytes(128), number, more=f"\x02KEYS\x01order-{number}")


def delayed_frame(number: int) -> bytes:
    return send_frame(TOPIC, bytes(128), number, more="\x02DELAY\x011")


def soon_frame(number: int) -> bytes:
    deliver_ms = SystemClock().now_ms() + 1_000
    return send_frame(TOPIC, bytes(128), number, more=f"\x02TIMER_DELIVER_MS\x01{deliver_ms}")


def back_frame(number: int) -> bytes:
    """A request to retry the first message of the log."""
    ext = {
        "offset": "0",
        "group": "bench-readers",
        "delayLevel": "1",
        "originTopic": "pulled",
        "originMsgId": "",
        "unitMode": "false",
        "maxReconsumeTimes": "16",
    }
    return request(36, number, ext)


def v1_frame(number: int) -> bytes:
    ext = {
        "producerGroup": "bench",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "0",
        "properties": f"UNIQ_KEY\x017F000001{number:024X}\x02WAIT\x01true\x02TAGS\x01tag-1",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    }
    return request(10, number, ext, bytes(128))


def binary_frame(number: int) -> bytes:
    ext = {
        "a": "bench",
        "b": TOPIC,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": f"UNIQ_KEY\x017F000001{number:024X}\x02WAIT\x01true\x02TAGS\x01tag-1",
        "j": "0",
        "k": "false",
        "m": "false",
    }
    header = Header(
        code=310,
        opaque=number,
        language=Language.JAVA,
        version=409,
        ext=ext,
        serialise_type=SerialiseType.BINARY,
    )
    return encode_command(header, bytes(128))


def sql_frame(number: int) -> bytes:
    ext = {
        "consumerGroup": "bench-readers",
        "topic": "pulled",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "TAGS IN ('tag-1', 'tag-2', 'tag-3')",
        "subVersion": "0",
        "expressionType": "SQL92",
    }
    return request(11, number, ext)


def check(address: str, load: Load) -> None:
    """Check that every response is a success: rejections are cheap and would distort the result."""
    peer = Connection(address)
    frames, codes = load.burst(0), list[int]()
    peer.socket.sendall(frames)
    while len(codes) < load.window:
        size = peer.socket.recv_into(peer.buffer.writable())
        assert size > 0, f"{load.name}: the broker closed the connection"
        peer.buffer.wrote(size)
        batch = peer.buffer.take()
        headers = [
            decode_header(batch.header(index), batch.serialise_types[index])
            for index in range(batch.count)
        ]
        codes += [header.code for header in headers]
        assert not any(codes), f"{load.name}: {headers[0]}"
    peer.socket.close()


def one_round(server: dict[str, str], load: Load) -> float:
    pid, shape = int(server["pid"]), {"connections": load.connections, "window": load.window}
    drive(server["broker"], load.burst, total=load.total // 10, **shape)
    sleep(load.settle_s)
    before = cpu_seconds(pid)
    drive(server["broker"], load.burst, total=load.total, **shape)
    sleep(load.settle_s)
    return (cpu_seconds(pid) - before) * 1e6 / (load.total * load.messages)


@contextmanager
def brokers(
    trees: list[Path], wanted: Callable[[str], bool]
) -> Generator[dict[str, list[Measure]]]:
    """A broker of each checkout."""
    with ExitStack() as stack:
        servers = list[dict[str, str]]()
        for tree in trees:
            command = [str(tree / ".venv/bin/tianzhou"), *broker()[1:]]
            servers.append(stack.enter_context(served(command)))
            fill(servers[-1]["broker"])
        rows = dict[str, list[Measure]]()
        for load in filter(lambda load: wanted(load.name), loads()):
            for server in servers:
                check(server["broker"], load)
            rows[load.name] = [
                lambda server=server, load=load: one_round(server, load) for server in servers
            ]
        yield rows


@contextmanager
def stores(trees: list[Path], wanted: Callable[[str], bool]) -> Generator[dict[str, list[Measure]]]:
    """A process with stores of each checkout."""
    with ExitStack() as stack:
        workers = [stack.enter_context(worker(tree)) for tree in trees]
        names = [name for name in workers[0]("?").split("\t") if wanted(name)]
        yield {
            name: [lambda name=name, ask=ask: float(ask(name)) for ask in workers] for name in names
        }


@contextmanager
def worker(tree: Path) -> Generator[Callable[[str], str]]:
    command = [str(tree / ".venv/bin/python"), "-m", "bench.compare_store"]
    with tempfile.TemporaryDirectory(prefix="tianzhou-bench-") as directory:
        process = subprocess.Popen(
            [*command, directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def ask(line: str) -> str:
            stdin.write(f"{line}\n")
            stdin.flush()
            answer = stdout.readline()
            assert answer, f"{command} ended with {process.wait()}"
            return answer.rstrip("\n")

        try:
            yield ask
        finally:
            stdin.close()
            process.wait(60)


def compared(trees: list[Path], wanted: Callable[[str], bool]) -> Iterator[tuple[str, list[float]]]:
    for part in (stores, brokers):
        with part(trees, wanted) as rows:
            for name, measures in rows.items():
                rounds = [[measure() for measure in measures] for _ in range(ROUNDS)]
                yield name, [min(times) for times in zip(*rounds, strict=True)]


def main(other: str, *parts: str) -> None:
    def wanted(name: str) -> bool:
        return not parts or any(part in name for part in parts)

    print(f"{'CPU in µs per message':50} {'other':>8} {'this':>8} {'change':>8}")
    for name, (before, after) in compared([Path(other).resolve(), ROOT], wanted):
        print(f"{name:50} {before:8.2f} {after:8.2f} {after / before - 1:+8.1%}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
