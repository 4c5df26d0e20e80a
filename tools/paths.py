"""Traces five operations in a real run and counts the files and moves that each of them takes.

    python tools/paths.py             print the numbers
    python tools/paths.py send        print every step of one path
    python tools/paths.py --json      print one line of JSON for each path

What counts is defined in path_tracer.py: an event is one entry into a function of src/tianzhou.
A *file* of a path is one with at least one event. A *move* is a pair of consecutive events of one
thread in different files. Each operation runs several times after a warm-up, and the shortest run
counts: in the others a timer or a heartbeat came in between.
"""

import asyncio
import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from path_tracer import Event, Recorder, environment_for, events_in
from tianzhou.client import ConsumerOptions, Message, Producer, PushConsumer, ReceivedMessage
from tianzhou.testing import RunningBroker, running_broker

TIANZHOU: Final = [sys.executable, "-m", "tianzhou"]
WARM_UP: Final = 20
RUNS: Final = 8
WITHIN_S: Final = 120.0
TOPIC: Final = "orders"


@dataclass(frozen=True, slots=True)
class Trace:
    """What one operation executed."""

    name: str
    events: tuple[Event, ...]
    places: dict[str, str]
    """The names of processes and threads by their ids; the others are background work."""

    @property
    def files(self) -> list[str]:
        return sorted({file_of(event.step) for event in self.events})

    @property
    def moves(self) -> int:
        steps = self.steps.values()
        return sum(
            file_of(a) != file_of(b) for place in steps for a, b in itertools.pairwise(place)
        )

    @property
    def steps(self) -> dict[str, list[str]]:
        """The steps of each place, in order."""
        found: dict[str, list[str]] = {}
        for event in self.events:
            found.setdefault(self.places.get(event.place, "background"), []).append(event.step)
        return found

    @property
    def tour(self) -> dict[str, list[str]]:
        """The step at which each place enters a file for the first time."""
        found: dict[str, dict[str, str]] = {}
        for place, steps in self.steps.items():
            for step in steps:
                found.setdefault(place, {}).setdefault(file_of(step), step)
        return {place: list(entered.values()) for place, entered in found.items()}


def file_of(step: str) -> str:
    return step.partition(":")[0]


def shortest(runs: list[Trace]) -> Trace:
    return min(runs, key=lambda run: (len(run.files), run.moves))


def threads() -> dict[str, str]:
    """The names of this process's threads."""
    return {
        f"{os.getpid()}/{thread.ident}": "client" if thread is threading.main_thread() else "broker"
        for thread in threading.enumerate()
    }


# In one process: sends and deliveries


@contextlib.asynccontextmanager
async def _broker() -> AsyncGenerator[RunningBroker]:
    async with running_broker() as mq:
        mq.create_topic(TOPIC, queues=1)
        yield mq


async def _sends(recorder: Recorder) -> Trace:
    async with _broker() as mq, Producer("paths", nameserver=mq.nameserver) as producer:
        message = Message(TOPIC, b"two apples")
        for _ in range(WARM_UP):
            await producer.send(message)
        runs: list[Trace] = []
        for _ in range(RUNS):
            await asyncio.sleep(0.02)  # the broker finishes what follows the previous response
            with recorder.recording() as events:
                await producer.send(message)
            runs.append(Trace("send", tuple(events), threads()))
        return shortest(runs)


async def _deliveries(recorder: Recorder) -> Trace:
    received: asyncio.Queue[ReceivedMessage] = asyncio.Queue()
    options = ConsumerOptions(commit_interval_s=3600.0)
    async with _broker() as mq, Producer("paths", nameserver=mq.nameserver) as producer:
        consumer = PushConsumer(
            "paths", nameserver=mq.nameserver, subscribe={TOPIC: "*"}, options=options
        )

        @consumer.listen
        async def listen(message: ReceivedMessage) -> None:  # pyright: ignore[reportUnusedFunction]
            received.put_nowait(message)

        async with consumer:
            message = Message(TOPIC, b"two apples")

            async def once() -> None:
                await producer.send(message)
                await received.get()
                await asyncio.sleep(0)  # the consumer records that the listener returned
                await consumer.commit()

            for _ in range(WARM_UP):
                await once()
            runs: list[Trace] = []
            for _ in range(RUNS):
                await asyncio.sleep(0.02)  # the next pull is waiting at the broker again
                with recorder.recording() as events:
                    await once()
                runs.append(Trace("consume", tuple(events), threads()))
            return shortest(runs)


def _in_process(run: Callable[[Recorder], Coroutine[None, None, Trace]]) -> Trace:
    recorder = Recorder()
    with recorder.installed():
        return asyncio.run(run(recorder))


def trace_send() -> Trace:
    """A steady send, from `Producer.send` to its result: client and broker."""
    return _in_process(_sends)


def trace_consume() -> Trace:
    """A steady send, its delivery to a waiting consumer, and the commit of its offset."""
    return _in_process(_deliveries)


# In several processes


class Program:
    """One `tianzhou` process that records its events."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        self._ready = self.folder / "ready.json"
        self._output = (self.folder / "output").open("wb")
        self._process = subprocess.Popen(
            [*TIANZHOU, *arguments, "--ready-file", str(self._ready)],
            env=environment_for(self.folder),
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def ready(self) -> dict[str, object]:
        """Wait for the ready file and return what it says."""
        wait_until(lambda: self._ready.exists() and bool(self._ready.read_text()), self.output)
        return json.loads(self._ready.read_text())

    def output(self) -> str:
        return (self.folder / "output").read_text(encoding="utf-8")

    def events(self, start_ns: int, end_ns: int) -> list[Event]:
        return events_in(self.folder, start_ns, end_ns)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(WITHIN_S)
        self._output.close()


def wait_until(condition: Callable[[], object], describe: Callable[[], str]) -> None:
    end = time.monotonic() + WITHIN_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(describe())
        time.sleep(0.05)


@contextlib.contextmanager
def _cluster() -> Generator[tuple[Path, Program, dict[str, object]]]:
    with tempfile.TemporaryDirectory(prefix="tianzhou-paths-") as directory:
        ports = ("--nameserver-port", "0", "--broker-port", "0", "--http-port", "0")
        program = Program(Path(directory), "up", "up", "--ephemeral", *ports)
        try:
            yield Path(directory), program, program.ready()
        finally:
            program.close()


def trace_topic_list() -> Trace:
    """`tianzhou topic list`: the process of the command."""
    with _cluster() as (folder, _, ready):
        traced = folder / "command"
        traced.mkdir()
        start_ns = time.monotonic_ns()
        command = [*TIANZHOU, "topic", "list", "-n", str(ready["nameserver"])]
        subprocess.run(command, env=environment_for(traced), check=True, stdout=subprocess.DEVNULL)
        events = events_in(traced, start_ns, time.monotonic_ns())
        return Trace("topic list", tuple(events), {event.place: "command" for event in events})


def trace_dashboard_page() -> Trace:
    """The page of topics, requested by a browser for the second time."""
    with _cluster() as (_, program, ready):
        runs: list[Trace] = []
        for _ in range(RUNS):
            time.sleep(0.2)
            start_ns = time.monotonic_ns()
            with urllib.request.urlopen(f"{ready['http']}/topics") as page:
                page.read()
            events = program.events(start_ns, time.monotonic_ns())
            places = {event.place: "broker" for event in events}
            runs.append(Trace("dashboard page", tuple(events), places))
        return shortest(runs[1:])


def _free_ports(count: int) -> list[str]:
    with contextlib.ExitStack() as stack:
        bound = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in bound:
            each.bind(("127.0.0.1", 0))
        return [str(each.getsockname()[1]) for each in bound]


def _replica(folder: Path, nameserver: str, broker_id: int, ports: list[str]) -> Program:
    settings = {
        "brokerName": "broker-a",
        "brokerId": str(broker_id),
        "brokerRole": "SLAVE" if broker_id else "ASYNC_MASTER",
        "listenPort": ports[0],
        "haListenPort": ports[1],
        "mappedFileSizeCommitLog": str(4 * 1024 * 1024),
    }
    name = "slave" if broker_id else "master"
    conf = folder / f"{name}.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    data = str(folder / f"{name}-data")
    return Program(
        folder, name, "broker", "-n", nameserver, "-c", str(conf), "--data", data, "--no-http"
    )


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TIANZHOU, *arguments], capture_output=True, text=True, timeout=WITHIN_S, check=False
    )


def trace_promotion() -> Trace:
    """`tianzhou broker promote --switch`: the process of the slave that becomes the master.

    Left out are steps that the slave also takes while nothing happens (heartbeats, registrations),
    and the way of requests through `net` and `wire`, which the path of a send shows.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tianzhou-paths-")))

        def run(program: Program) -> Program:
            stack.callback(program.close)
            program.ready()
            return program

        ports = _free_ports(5)
        run(Program(folder, "nameserver", "nameserver", "-p", ports[0]))
        nameserver = f"127.0.0.1:{ports[0]}"
        run(_replica(folder, nameserver, 0, ports[1:3]))
        slave = run(_replica(folder, nameserver, 1, ports[3:5]))
        idle_ns = time.monotonic_ns()
        wait_until(lambda: "master.agreed" in slave.output(), slave.output)
        time.sleep(2.0)  # long enough for the periodic work of a slave
        start_ns = time.monotonic_ns()
        done = _command("broker", "promote", "broker-a", "--switch", "--yes", "-n", nameserver)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr + slave.output())
        idle = {event.step for event in slave.events(idle_ns, start_ns)}
        traced = slave.events(start_ns, time.monotonic_ns())
    packages = ("broker/", "replication/", "store/")
    events = tuple(e for e in traced if e.step not in idle and e.step.startswith(packages))
    return Trace("promotion", events, {event.place: "slave" for event in events})


def trace_micro_batch() -> Trace:
    """A steady micro-batch of a stream from a topic: Spark's Python processes, which plan the
    batch and run its tasks. What the broker does for their pulls is in the path of a delivery."""
    with _cluster() as (folder, _, ready):
        traced = folder / "spark"
        traced.mkdir()
        nameserver = str(ready["nameserver"])
        program = [sys.executable, str(Path(__file__).parent / "paths_spark.py"), nameserver]
        environment = environment_for(traced) | {"PYSPARK_PYTHON": sys.executable}
        done = subprocess.run(
            [*program, str(folder)], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        driver, start_ns, end_ns = map(int, done.stdout.split()[-3:])
        events = [
            event
            for event in events_in(traced, start_ns, end_ns)
            if not event.place.startswith(f"{driver}/")
        ]
    return Trace("micro-batch", tuple(events), _spark_places(events))


def _spark_places(events: list[Event]) -> dict[str, str]:
    """The process that Spark asks for offsets belongs to the driver; the others run tasks."""
    planning = {e.place.partition("/")[0] for e in events if e.step.endswith("latestOffset")}
    return {
        event.place: "driver" if event.place.partition("/")[0] in planning else "task"
        for event in events
    }


TRACES: Final[dict[str, Callable[[], Trace]]] = {
    "send": trace_send,
    "consume": trace_consume,
    "topic-list": trace_topic_list,
    "dashboard-page": trace_dashboard_page,
    "promotion": trace_promotion,
    "micro-batch": trace_micro_batch,
}


def as_json(trace: Trace) -> str:
    ran = {place: sorted(set(steps)) for place, steps in trace.steps.items()}
    return json.dumps(
        {"files": trace.files, "moves": trace.moves, "tour": trace.tour, "steps": ran}
    )


def main(arguments: list[str]) -> int:
    is_json = arguments[:1] == ["--json"]
    names = arguments[is_json:]
    unknown = set(names) - TRACES.keys()
    if unknown:
        print(f"unknown path {sorted(unknown)}; paths: {', '.join(TRACES)}", file=sys.stderr)
        return 2
    for name in names or TRACES:
        trace = TRACES[name]()
        if is_json:
            print(as_json(trace), flush=True)
            continue
        print(f"{name}: {len(trace.files)} files, {trace.moves} moves", flush=True)
        if names:
            for place, steps in trace.steps.items():
                print(f"  {place}", *steps, sep="\n    ")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
