"""RocketMQ's own clients in a separate process, driven by `java-client/…/ClientProbe.java`."""

import json
import subprocess
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any, Final

from client_build import JAVA

from clients.waiting import wait_until

ANSWER_SECONDS_MAX: Final = 40
ARRIVAL_SECONDS_MAX: Final = 40
"""A consumer that missed the first rebalance tries again after 20 s."""
END_SECONDS_MAX: Final = 30

Line = dict[str, Any]


class ProbeError(Exception):
    """The client threw an exception."""


class ClientProbe:
    """A running probe. Owner: `running`. Events are kept by the name of their client."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._answers: Queue[Line] = Queue()
        self._events: list[Line] = []
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line: Line = json.loads(text)
            if "event" in line:
                self._events.append(line)
            else:
                self._answers.put(line)

    def ask(self, verb: str, name: str, **options: object) -> Line:
        """`property_x` is the user property x."""
        assert self._process.stdin is not None
        pairs = [
            f"{key.replace('property_', 'property.')}={value}" for key, value in options.items()
        ]
        self._process.stdin.write("\t".join([verb, name, *pairs]) + "\n")
        self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=ANSWER_SECONDS_MAX)
        except Empty:
            raise AssertionError(f"no answer to {verb} {name} {pairs}") from None
        if "error" in line:
            raise ProbeError(line["error"])
        return line["answer"]

    def send(self, name: str, topic: str, body: str = "", **options: object) -> Line:
        if body:
            options["body"] = body
        return self.ask("send", name, topic=topic, **options)

    def events(self, client: str, kind: str = "message") -> list[Line]:
        found = [line for line in list(self._events) if line.get("client") == client]
        return [line["message"] for line in found if line["event"] == kind]

    def bodies(self, *clients: str) -> list[str]:
        return [message["body"] for client in clients for message in self.events(client)]

    def wait_events(
        self,
        client: str,
        count: int = 1,
        *,
        kind: str = "message",
        within_s: float = ARRIVAL_SECONDS_MAX,
    ) -> list[Line]:
        def look() -> list[Line] | None:
            found = self.events(client, kind)
            return found if len(found) >= count else None

        return wait_until(look, within_s=within_s, what=f"{client} has {count} of {kind}")

    def wait_bodies(self, expected: Iterable[str], *clients: str) -> None:
        """Wait until the clients got exactly these bodies, in any order."""
        wanted = sorted(expected)
        self.wait_for(
            lambda: len(self.bodies(*clients)) >= len(wanted),
            what=f"{clients} have {len(wanted)} messages",
        )
        assert sorted(self.bodies(*clients)) == wanted

    def wait_for(self, look: Callable[[], bool], what: str) -> None:
        wait_until(look, within_s=ARRIVAL_SECONDS_MAX, what=what)

    def poll(self, name: str, count: int) -> list[Line]:
        """Poll with a consumer until it has `count` messages."""
        got: list[Line] = []

        def look() -> bool:
            got.extend(self.ask("poll", name, waitMs=1000)["polled"])
            return len(got) >= count

        wait_until(look, within_s=ARRIVAL_SECONDS_MAX, what=f"{name} polls {count} messages")
        return got

    def stop(self, *names: str) -> None:
        for name in names:
            assert self.ask("stop", name) == {"stopped": True}

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(END_SECONDS_MAX) == 0
        self._reader.join(END_SECONDS_MAX)


@contextmanager
def running(
    classpath: str, nameserver: str, directory: Path, *options: str
) -> Generator[ClientProbe]:
    """Run a probe. Its log and the offsets of broadcasting consumers are below the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    command = [*JAVA, f"-Duser.home={directory}", *options]
    command += [f"-Drocketmq.client.localOffsetStoreDir={directory / 'offsets'}"]
    command += ["-cp", classpath, "tianzhou.interop.ClientProbe", nameserver]
    with (directory / "stderr.log").open("wb") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    with process:
        try:
            probe = ClientProbe(process)
            yield probe
            probe.end()
        finally:
            process.kill()
