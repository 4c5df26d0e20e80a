"""A `tianzhou` server as a process of its own, that can be asked, stopped and killed."""

import json
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from clients.waiting import wait_until

TIANZHOU: Final = str(Path(sys.executable).parent / "tianzhou")
READY_S: Final = 30.0
"""A busy machine; how long it takes on a calm one is measured in tests/e2e."""
STOP_S: Final = 5.0
STOP_SLACK: Final = 12


class ServerProcess:
    """One life of a server. Its words are in `log_path`."""

    def __init__(self, arguments: list[str], directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.log_path = directory / "server.log"
        self.ready_path = directory / "ready.json"
        self.ready_path.unlink(missing_ok=True)
        self._begun_s = time.monotonic()
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [TIANZHOU, *arguments, "--ready-file", str(self.ready_path)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory,
            )  # fmt: skip
        self.facts: dict[str, str] = {}

    def wait_ready(self) -> float:
        """Seconds from the start of the process to the moment it serves."""

        def is_ready() -> bool:
            assert self.process.poll() is None, f"it ended: {self.log()}"
            return self.ready_path.exists()

        try:
            wait_until(is_ready, within_s=READY_S, what=f"{self.process.args} serves")
        except AssertionError:
            self.kill()
            raise
        seconds = time.monotonic() - self._begun_s
        self.facts = json.loads(self.ready_path.read_text())
        return seconds

    @property
    def nameserver(self) -> str:
        return self.facts["nameserver"]

    @property
    def broker(self) -> str:
        return self.facts["broker"]

    def log(self) -> str:
        return self.log_path.read_text()

    def stop(
        self, number: signal.Signals = signal.SIGTERM, *, within_s: float = STOP_S * STOP_SLACK
    ) -> int:
        """Ask it to stop; its exit code. Raises AssertionError if that takes longer."""
        self.process.send_signal(number)
        try:
            wait_until(
                lambda: self.process.poll() is not None, within_s=within_s, what="it has stopped"
            )
        except AssertionError:
            self.kill()
            raise
        return self.process.returncode

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """However the test went."""
        if self.process.poll() is None:
            self.stop()


def run(arguments: list[str], directory: Path) -> ServerProcess:
    server = ServerProcess(arguments, directory)
    server.wait_ready()
    return server


def up(directory: Path, *options: str, nameserver_port: int = 0, broker_port: int = 0
       ) -> ServerProcess:  # fmt: skip
    """`tianzhou up` that keeps its messages below the directory."""
    ports = ["--nameserver-port", str(nameserver_port), "--broker-port", str(broker_port)]
    data = [] if "--ephemeral" in options else ["--data", str(directory / "data")]
    return run(["up", *ports, *data, *options], directory)


def spare_port() -> int:
    """A port to come back to after a kill: below those that the system hands out by itself, so
    that nobody's outgoing connection takes it in between."""
    dice = random.SystemRandom()
    while True:
        port = dice.randrange(20_000, 32_000)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Lives:
    """A server that is started again and again on the same data and ports."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = {"nameserver_port": spare_port(), "broker_port": spare_port()}
        self._lives: list[ServerProcess] = []

    @property
    def last(self) -> ServerProcess:
        return self._lives[-1]

    def start(self, *options: str) -> ServerProcess:
        # Hundreds of starts, none of which is about pages.
        self._lives.append(up(self._directory, "--no-http", *options, **self._ports))
        return self.last

    def end(self) -> None:
        """However the test went."""
        for life in self._lives:
            life.end()
