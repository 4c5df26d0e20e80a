"""A NameServer and two brokers in processes of their own; the disk of broker-a stalls on demand."""

import sys
from collections import Counter
from pathlib import Path
from typing import Final

from e2e import stalling_server
from tianzhou.client import Admin, PullConsumer
from tianzhou.testing.kit.server_process import ServerProcess, server_command, spare_ports

SERVER: Final = Path(stalling_server.__file__)


class TwoBrokers:
    """Owner: a test, which calls `end`."""

    def __init__(self, directory: Path, *settings: str, point: str = "flush.before_sync") -> None:
        """`settings` are `name=value`, for both brokers."""
        self.directory = directory
        self.stall = stalling_server.Stall(directory / "stall")
        directory.mkdir(parents=True, exist_ok=True)
        port = spare_ports(1)
        self.nameserver = f"127.0.0.1:{port}"
        self._names = ServerProcess(
            "names", server_command(["nameserver", "-p", str(port)]), directory / "names"
        )
        self.a = self._broker(
            "broker-a", settings, [sys.executable, str(SERVER), str(self.stall.path), point]
        )
        self.b = self._broker("broker-b", settings, [])
        for server in (self._names, self.a, self.b):
            server.start()
        for server in (self._names, self.a, self.b):
            server.wait_ready()

    def _broker(self, name: str, settings: tuple[str, ...], within: list[str]) -> ServerProcess:
        directory = self.directory / name
        words = ["broker", "-n", self.nameserver, "-p", "0", "--data", str(directory / "data")]
        for setting in (f"brokerName={name}", "vip_port=false", *settings):
            words += ["--set", setting]
        command = [*within, *words, "--ready-file"] if within else server_command(words)
        return ServerProcess(name, command, directory)

    async def create(self, topic: str) -> None:
        async with Admin(nameserver=self.nameserver) as admin:
            await admin.topics.create(topic, queues=4)

    async def rejected(self, broker: str = "broker-a") -> int:
        """How many sends a broker has rejected as busy."""
        async with Admin(nameserver=self.nameserver) as admin:
            return int((await admin.brokers.status(broker)).facts["sendsRejectedBusy"])

    async def stored(self, topic: str) -> Counter[str]:
        """How often each body is stored, at both brokers."""
        found: Counter[str] = Counter()
        async with PullConsumer("counters", nameserver=self.nameserver) as consumer:
            for queue in await consumer.queues(topic):
                offset, end = await consumer.first(queue), await consumer.end(queue)
                while offset < end:
                    pulled = await consumer.pull(queue, offset)
                    found.update(message.body.decode() for message in pulled.messages)
                    offset = pulled.next_offset
        return found

    def end(self) -> None:
        for server in (self.a, self.b, self._names):
            server.end()
        self.stall.close()
