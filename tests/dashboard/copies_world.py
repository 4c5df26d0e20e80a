"""Groups of real brokers, each a process with pages of its own: a master with slaves, and Raft."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tianzhou.client import Message
from tianzhou.client.options import ProducerOptions
from tianzhou.client.sync import Producer
from tianzhou.testing.chaos.processes import HOST, Server, spare_ports

NAME: Final = "broker-a"
WAIT_S: Final = 30.0


class Copied:
    """A group, its NameServer, and where its pages are. Owner: a test."""

    def __init__(self, nameserver: str, url: str, others: list[str], servers: list[Server]) -> None:
        self.nameserver = nameserver
        self.url = url
        self.others = others
        """Pages of the other brokers."""
        self.servers = servers

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    def send(self, count: int, topic: str = "orders") -> None:
        options = ProducerOptions(send_timeout_s=WAIT_S)
        with Producer("makers", nameserver=self.nameserver, options=options) as producer:
            for number in range(count):
                producer.send(Message(topic, b"order %d" % number))


@contextmanager
def master_and_slaves(directory: Path, slaves: int = 2) -> Generator[Copied]:
    with ExitStack() as stack:

        def run(name: str, *arguments: str) -> tuple[Server, dict[str, str]]:
            server = Server(name, list(arguments), directory / name)
            stack.callback(server.end)
            server.start()
            return server, server.wait_ready()

        _, facts = run("names", "nameserver", "-p", "0")
        nameserver, found = facts["nameserver"], list[tuple[Server, dict[str, str]]]()
        for broker_id in range(slaves + 1):
            conf = directory / f"broker-{broker_id}.conf"
            settings = {
                "brokerName": NAME,
                "brokerId": broker_id,
                "listenPort": spare_ports(2),
                "brokerRole": "SLAVE" if broker_id else "ASYNC_MASTER",
                "vip_port": "false",
                "registerNameServerPeriod": 1000,
                "ha_retry_ms": 500,
                "metadata_ms": 300,
                "bindAddress": HOST,
            }
            conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            found.append(
                run(
                    f"broker-{broker_id}",
                    "broker",
                    "-n",
                    nameserver,
                    "-c",
                    str(conf),
                    "--data",
                    str(directory / f"data-{broker_id}"),
                    "--http-port",
                    "0",
                )
            )
        urls = [facts["http"] for _, facts in found]
        yield Copied(nameserver, urls[0], urls[1:], [server for server, _ in found])


@contextmanager
def raft_group(directory: Path) -> Generator[tuple[Copied, dict[str, int]]]:
    """As `tianzhou up --replicas 3` makes it; with the processes of its members."""
    server = Server(
        "up",
        [
            "up",
            "--replicas",
            "3",
            "--data",
            str(directory / "data"),
            "--broker-port",
            "0",
            "--nameserver-port",
            "0",
            "--http-port",
            "0",
        ],
        directory,
    )
    server.start()
    try:
        facts = server.wait_ready()
        pids: dict[str, int] = facts["pids"]  # type: ignore[assignment]
        pages: list[str] = facts["pages"]  # type: ignore[assignment]
        yield Copied(facts["nameserver"], facts["http"], pages[1:], [server]), pids
    finally:
        server.stop()
