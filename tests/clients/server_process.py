"""`tianzhou` servers as processes for tests: started, stopped, killed and started again."""

import signal
from pathlib import Path
from typing import Final

from tianzhou.testing.kit import server_process
from tianzhou.testing.kit.server_process import TIANZHOU, server_command, spare_ports

__all__ = ["STOP_S", "TIANZHOU", "Lives", "ServerProcess", "run", "spare_port", "up"]

STOP_S: Final = 5.0
STOP_SLACK: Final = 12


class ServerProcess(server_process.ServerProcess):
    """A server that is started at once and stopped gracefully at the end of the test."""

    def __init__(self, arguments: list[str], directory: Path) -> None:
        super().__init__(" ".join(arguments), server_command(arguments), directory)
        self.start()

    @property
    def nameserver(self) -> str:
        return self.facts["nameserver"]

    @property
    def broker(self) -> str:
        return self.facts["broker"]

    def stop(
        self, number: signal.Signals = signal.SIGTERM, *, within_s: float = STOP_S * STOP_SLACK
    ) -> int:
        """Stop the server gracefully and return its exit code. Raises AssertionError if it does
        not end in time."""
        return super().stop(number, within_s=within_s)

    def end(self) -> None:
        """Stop the server if it still runs."""
        if self.is_alive:
            self.stop()


def run(arguments: list[str], directory: Path) -> ServerProcess:
    server = ServerProcess(arguments, directory)
    server.wait_ready()
    return server


def up(
    directory: Path, *options: str, nameserver_port: int = 0, broker_port: int = 0
) -> ServerProcess:
    """`tianzhou up` that keeps its messages below the directory."""
    ports = ["--nameserver-port", str(nameserver_port), "--broker-port", str(broker_port)]
    data = [] if "--ephemeral" in options else ["--data", str(directory / "data")]
    return run(["up", *ports, *data, *options], directory)


def spare_port() -> int:
    """Return a free port that stays free while its server is down."""
    return spare_ports(1)


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
