"""A NameServer and a Broker inside this process, in a separate event loop."""

import asyncio
import threading
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.server import Broker
from tianzhou.cmd.clock import SystemClock
from tianzhou.nameserver.config import NameServerConfig
from tianzhou.nameserver.server import NameServer
from tianzhou.store.config import StoreConfig
from tianzhou.store.files import RealFiles
from tianzhou.store.store import MessageStore
from tianzhou.wire.tables import TopicConfig

T = TypeVar("T")
HOST: Final = "127.0.0.1"
QUEUES: Final = 4


class DemoCluster:
    """A cluster for the demo; `run` passes work to its loop and waits for it.

    Owner: the thread that created it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tianzhou-demo")
        self._clock = SystemClock()
        self.nameserver = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self._names, self._broker = self.run(self._start())
        return self

    async def _start(self) -> tuple[NameServer, Broker]:
        names = NameServer(NameServerConfig(bind_address=HOST, listen_port=0), self._clock)
        self.nameserver = f"{HOST}:{await names.start()}"
        # Small files: the demo should not preallocate gigabytes.
        config = StoreConfig(
            commit_log_file_bytes=64 * 1024 * 1024, index_slots=50_000, index_entries=200_000
        )
        store = MessageStore(RealFiles(), str(self._directory), config, self._clock)
        settings = BrokerConfig(host=HOST, port=0, vip_port=False)
        broker = Broker(replace(settings, nameservers=self.nameserver), store, self._clock)
        await broker.start()
        return names, broker

    def create_topics(self, *names: str) -> None:
        async def create() -> None:
            for name in names:
                topic = TopicConfig(
                    topic_name=name, read_queue_nums=QUEUES, write_queue_nums=QUEUES
                )
                self._broker.slices.topics.topics.put(topic)
            await self._broker.register()

        self.run(create())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.begin(work).result()

    def begin(self, work: Coroutine[Any, Any, T]) -> Any:
        """Like `run`, but return a future instead of waiting."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        async def close() -> None:
            await self._broker.close()
            await self._names.close()

        try:
            self.run(close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
