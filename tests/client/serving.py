"""A NameServer and brokers in the event loop of a test, each of which can be stopped."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.server import Broker
from tianzhou.cmd.clock import SystemClock
from tianzhou.nameserver.config import NameServerConfig
from tianzhou.nameserver.server import NameServer
from tianzhou.store.config import StoreConfig
from tianzhou.store.files import RealFiles
from tianzhou.store.store import MessageStore

SMALL = StoreConfig(commit_log_file_bytes=1 << 24, index_slots=64, index_entries=1024)
CONFIG = BrokerConfig(host="127.0.0.1", port=0)


class Serving:
    """Owner: the event loop of the test."""

    def __init__(self, directory: Path, config: BrokerConfig) -> None:
        self._directory = directory
        self._config = config
        self._clock = SystemClock()
        self._names: list[NameServer] = []
        self.nameservers: list[str] = []
        self.brokers: dict[str, Broker] = {}

    @property
    def nameserver(self) -> str:
        return ";".join(self.nameservers)

    async def start_nameserver(self, port: int = 0) -> str:
        names = NameServer(
            NameServerConfig(bind_address="127.0.0.1", listen_port=port), self._clock
        )
        address = f"127.0.0.1:{await names.start()}"
        self._names.append(names)
        self.nameservers.append(address)
        return address

    async def stop_nameserver(self) -> int:
        """The last one; its port."""
        await self._names.pop().close()
        return int(self.nameservers.pop().rpartition(":")[2])

    async def start_broker(self, name: str = "broker-a", **settings: object) -> Broker:
        config = replace(self._config, name=name, nameservers=self.nameserver, **settings)  # pyright: ignore[reportArgumentType]  # the class checks them
        store = MessageStore(RealFiles(), str(self._directory / name), SMALL, self._clock)
        broker = Broker(config, store, self._clock)
        await broker.start()
        self.brokers[name] = broker
        return broker

    async def stop_broker(self, name: str) -> None:
        await self.brokers.pop(name).close()

    async def close(self) -> None:
        for name in tuple(self.brokers):
            await self.stop_broker(name)
        while self._names:
            await self.stop_nameserver()


@asynccontextmanager
async def serving(
    directory: Path, *names: str, config: BrokerConfig = CONFIG
) -> AsyncGenerator[Serving]:
    """A NameServer and a broker of each name; one if none is said."""
    made = Serving(directory, config)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(made.close)
        await made.start_nameserver()
        for name in names or ("broker-a",):
            await made.start_broker(name)
        yield made
