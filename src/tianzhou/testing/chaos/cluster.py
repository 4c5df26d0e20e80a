"""A NameServer and broker groups as processes, with every link between brokers through a proxy."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tianzhou.base.errors import TianzhouError
from tianzhou.testing.chaos import looking
from tianzhou.testing.chaos.processes import HOST, SMALL_FILES, Server, spare_ports
from tianzhou.testing.chaos.proxy import Proxies
from tianzhou.testing.kit.patience import Patience

TOPIC: Final = "chaos"
QUEUES: Final = 4
PAUSE_S: Final = 0.05
TOPIC_S: Final = 20.0

# Short intervals, so that a scenario sees effects that would otherwise take a minute.
SETTINGS: Final = {
    **SMALL_FILES,
    "registerNameServerPeriod": "1000",
    "flushConsumerOffsetInterval": "1000",
    "autoCreateTopicEnable": "false",
    "metadata_ms": "500",
    "ha_retry_ms": "500",
    "slaveTimeout": "1000",
    "messageDelayLevel": "1s 5s",
    "flushDelayOffsetInterval": "1000",
    "transactionTimeOut": "500",
    "transactionCheckInterval": "500",
    "transactionCheckMax": "1000",
}


@dataclass(frozen=True, slots=True)
class Mode:
    """When a send is acknowledged."""

    sync_flush: bool = False
    sync_replication: bool = False

    @property
    def name(self) -> str:
        flush = "sync" if self.sync_flush else "async"
        return f"{flush} flush, {'sync' if self.sync_replication else 'async'} replication"

    @property
    def short(self) -> str:
        return f"{'sf' if self.sync_flush else 'af'}-{'sr' if self.sync_replication else 'ar'}"

    def settings(self) -> dict[str, str]:
        return {"flushDiskType": "SYNC_FLUSH" if self.sync_flush else "ASYNC_FLUSH"}


MODES: Final = tuple(
    Mode(flush, replication) for flush in (False, True) for replication in (False, True)
)


FILLER: Final = "filler"
CHUNK_BYTES: Final = 1 << 16


class CannotMount(Exception):
    """This machine or user may not mount file systems."""


class Disk:
    """A small disk that can be filled to the last byte and freed again: a file system in memory.

    Mounting one requires root. As on a real disk, the data survives the process that uses it.
    Owner: a scenario, which must unmount it.
    """

    def __init__(self, place: Path, size: int) -> None:
        place.mkdir(parents=True, exist_ok=True)
        options = ["-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(place)]
        tried = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
        if tried.returncode:
            raise CannotMount(tried.stderr.strip())
        self._place = place

    def fill(self) -> None:
        """Fill the disk to the last byte."""
        chunk = bytes(CHUNK_BYTES)
        with (self._place / FILLER).open("ab", buffering=0) as file:
            while chunk:
                try:
                    file.write(chunk)
                except OSError:
                    chunk = chunk[: len(chunk) // 2]

    def free(self) -> None:
        (self._place / FILLER).unlink()

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", str(self._place)], check=True)


class Broker:
    """One broker of a group."""

    def __init__(
        self,
        group: str,
        directory: Path,
        nameserver: str,
        settings: Mapping[str, str],
        *,
        is_witness: bool = False,
    ) -> None:
        """`directory` has the name of the broker. A witness is a member without messages."""
        port = spare_ports(2)
        self.group = group
        self.address = f"{HOST}:{port}"
        self.ha_address = f"{HOST}:{port + 1}"
        self.data = directory / "data"
        self.raft_id = self.raft_address = ""
        self._disk: Disk | None = None
        directory.mkdir(parents=True)
        self._conf = directory / "broker.conf"
        self._settings = {
            **SETTINGS,
            "brokerName": group,
            "listenPort": str(port),
            "haListenPort": str(port + 1),
            **settings,
        }
        self.configure({})
        where = ["-c", str(self._conf), "--data", str(self.data)]
        arguments = ["witness"] if is_witness else ["broker", "-n", nameserver, "--no-http"]
        self.server = Server(directory.name, [*arguments, *where], directory)

    def configure(self, changes: Mapping[str, str]) -> None:
        """Change settings for the next start."""
        self._settings |= changes
        lines = [f"{key}={value}\n" for key, value in self._settings.items()]
        self._conf.write_text("".join(lines))

    @property
    def name(self) -> str:
        return self.server.name

    # A separate disk, if the broker has one

    def mount_disk(self, size: int) -> None:
        """Mount a disk of this size for the broker's data. Raises CannotMount."""
        self._disk = Disk(self.data, size)

    def fill_disk(self) -> None:
        assert self._disk is not None, f"{self.name} has no disk of its own"
        self._disk.fill()

    def free_disk(self) -> None:
        assert self._disk is not None, f"{self.name} has no disk of its own"
        self._disk.free()

    def unmount_disk(self) -> None:
        if self._disk is not None:
            self._disk.unmount()
            self._disk = None

    def log_end(self) -> int:
        return looking.log_end(self.address)


class Cluster:
    """A NameServer and its brokers. Owner: a scenario; `close` ends all processes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.proxies = Proxies()
        self.brokers: list[Broker] = []
        port = spare_ports(1)
        self.nameserver = f"{HOST}:{port}"
        self.names = Server("nameserver", ["nameserver", "-p", str(port)], directory / "nameserver")
        self.names.start()
        self.names.wait_ready()

    def add(
        self, group: str, name: str, settings: Mapping[str, str], *, is_witness: bool = False
    ) -> Broker:
        """Add a broker or a witness without starting it."""
        place = self.directory / name
        made = Broker(group, place, self.nameserver, settings, is_witness=is_witness)
        self.brokers.append(made)
        return made

    def create_topic(self, topic: str = TOPIC, queues: int = QUEUES) -> None:
        """Create a topic on all masters. Retries while a group elects a master, which may happen on
        a busy machine."""
        from tianzhou.client.sync import Admin

        def made() -> bool:
            with Admin(nameserver=self.nameserver) as admin:
                admin.topics.create(topic, queues=queues)
            return True

        wait_for(made, TOPIC_S, lambda: f"{looking.masters(self.nameserver)} lead")

    def start(self, brokers: Sequence[Broker]) -> None:
        """Start brokers in parallel and wait until they serve."""
        for broker in brokers:
            broker.server.start()
        for broker in brokers:
            broker.server.wait_ready()

    # Stopping

    def stop_all(self) -> None:
        """Stop all brokers gracefully, so that everything is on disk."""
        for broker in self.brokers:
            if broker.server.is_alive:
                broker.server.stop()

    def close(self) -> None:
        for broker in self.brokers:
            broker.server.end()
            broker.unmount_disk()
        self.names.end()
        self.proxies.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def wait_for(look: Callable[[], bool], within_s: float, describe: Callable[[], str]) -> None:
    """Wait until `look` returns true; errors of unreachable brokers are retried."""
    patience = Patience(within_s)
    while True:
        is_over, reason = patience.is_over(), ""
        try:
            if look():
                return
        except TianzhouError as error:
            reason = f" ({error})"
        if is_over:
            try:
                said = describe()
            except TianzhouError as error:
                said = str(error)
            raise AssertionError(f"not within {within_s} s: {said}{reason}")
        time.sleep(PAUSE_S)
