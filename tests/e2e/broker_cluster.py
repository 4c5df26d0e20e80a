"""A NameServer and brokers as processes, started and killed by name."""

from pathlib import Path

from cli.conftest import Said, run_command
from clients import server_process
from clients.server_process import ServerProcess


class Cluster:
    """A NameServer, and brokers by name. Ends all its processes after the test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.names = server_process.run(["nameserver", "-p", "0"], directory / "names")
        self.brokers: dict[str, ServerProcess] = {}

    @property
    def nameserver(self) -> str:
        return self.names.nameserver

    def arguments(self, name: str, *more: str) -> list[str]:
        return [
            "broker",
            "-n",
            self.nameserver,
            "-p",
            "0",
            "--set",
            f"brokerName={name}",
            "--set",
            "registerNameServerPeriod=1000",
            "--http-port",
            "0",
            *more,
        ]

    def start(self, name: str, *more: str, place: str = "") -> ServerProcess:
        self._directory.joinpath(place or name).mkdir(exist_ok=True)
        data = str(self._directory / (place or name) / "data")
        arguments = [*self.arguments(name, *more), "--data", data]
        self.brokers[name] = server_process.run(arguments, self._directory / (place or name))
        return self.brokers[name]

    def tell(self, *arguments: str) -> Said:
        return run_command(*arguments, "-n", self.nameserver)

    def end(self) -> None:
        for server in (*self.brokers.values(), self.names):
            server.end()
