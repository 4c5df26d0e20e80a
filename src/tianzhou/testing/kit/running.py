"""A NameServer and a broker in this process, on free ports, with their own store.

They run in their own event loop in their own thread, so that tests may be blocking or asynchronous
and may use any client that speaks the protocol. All methods may be called from any thread.
"""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar

from tianzhou.base.errors import UsageError
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.names import dead_topic
from tianzhou.broker.server import Broker
from tianzhou.nameserver.config import NameServerConfig
from tianzhou.nameserver.server import NameServer
from tianzhou.record.message import MessageView
from tianzhou.store.config import StoreConfig
from tianzhou.store.store import MessageStore
from tianzhou.testing.kit import inspection, waiting
from tianzhou.testing.kit.clock import KitClock
from tianzhou.testing.kit.deliveries import Deliveries
from tianzhou.testing.kit.disk import KitDisk
from tianzhou.testing.kit.faults import Faults
from tianzhou.testing.kit.gate import Gate
from tianzhou.testing.kit.loop_thread import LoopThread
from tianzhou.testing.kit.waiting import WITHIN_S
from tianzhou.wire.tables import TopicConfig

T = TypeVar("T")

HOST: Final = "127.0.0.1"
SMALL_STORE: Final = StoreConfig(
    commit_log_file_bytes=16 * 1024 * 1024,
    consume_queue_file_bytes=20 * 1024,
    index_slots=1024,
    index_entries=8192,
    commit_log_preallocate_bytes=64 * 1024,
    # A clock that jumps over the cleaning hour must not skip the cleaning.
    retention_at_hours=tuple(range(24)),
)
"""Files that are small enough to create quickly and large enough for the largest message."""


class RunningBroker:
    """A NameServer and a broker for a test, started by a `with` or `async with` block.

    `config` and `store_config` are the settings of the broker and its store; by default it rejects
    no send because the machine is slow (`fail_fast`). `nameserver` is an
    existing NameServer: an address, or another test broker, whose clock is then shared. Ports of 0
    are chosen by the system. `directory` holds the store and is kept; by default it is temporary.

        with running_broker() as mq:
            mq.create_topic("orders")

    Without a block, call `start` and `close`. Methods that need a running broker raise UsageError
    if it does not run.
    """

    def __init__(
        self,
        *,
        config: BrokerConfig | None = None,
        store_config: StoreConfig = SMALL_STORE,
        nameserver: "RunningBroker | str | None" = None,
        nameserver_port: int = 0,
        broker_port: int = 0,
        clock: KitClock | None = None,
        directory: Path | None = None,
    ) -> None:
        beside = nameserver if isinstance(nameserver, RunningBroker) else None
        self.clock = clock or (beside.clock if beside else KitClock())
        self._config = replace(
            config or BrokerConfig(fail_fast=False), host=HOST, port=broker_port, vip_port=False
        )
        self._store_config = store_config
        self.directory = directory or Path()
        self._is_temporary = directory is None
        self._disk = KitDisk()
        self._gate = Gate()
        self.faults = Faults(
            self._gate, self._disk, self._do, lambda: self._process and self._process.broker
        )
        self._names = _NameServer(nameserver, nameserver_port)
        self._process: _Process | None = None
        self._thread: LoopThread | None = None
        self._clean_up = contextlib.ExitStack()
        """Run after the broker has stopped."""

    # Starting and stopping

    def start(self) -> Self:
        """Start the broker; after `stop` or `kill`, on the same ports with the same store.

        Raises UsageError if it is already running.
        """
        if self._process is not None:
            raise UsageError(f"the broker at {self.broker} is already running")
        self._check_name()
        if self._thread is None:
            self._open()
        thread = self._running_thread()
        if not self._names.is_running:
            self.start_nameserver()
        thread.run(self._start_broker())
        return self

    def _check_name(self) -> None:
        """Check for a second broker of the same name: clients would find only the last one."""
        other = self._names.beside
        if other is None or other._process is None:
            return
        mine, its = self._config, other._config
        if (mine.name, mine.broker_id) == (its.name, its.broker_id):
            raise UsageError(
                f"the broker at {other.broker} already has the name {mine.name!r}; give this one"
                " another: config=BrokerConfig(name=...)"
            )

    def _open(self) -> None:
        self._thread = LoopThread("tianzhou-testing")
        if self._is_temporary:
            self.directory = Path(tempfile.mkdtemp(prefix="tianzhou-test-"))
            self._clean_up.callback(shutil.rmtree, self.directory, ignore_errors=True)
        self._clean_up.callback(self.clock.on_move(self._catch_up))

    async def _start_broker(self) -> None:
        config = replace(self._config, nameservers=self.nameserver)
        store = MessageStore(
            self._disk, str(self.directory / "store"), self._store_config, self.clock
        )
        broker = Broker(config, store, self.clock, around=self._gate.around)
        # Clients reconnect to the same port.
        self._config = replace(self._config, port=broker.port)
        await broker.start()
        self._process = _Process(broker, store)

    def stop(self) -> None:
        """Stop gracefully: pending requests get their responses, everything is saved."""
        broker = self._running()
        self._process = None
        self._running_thread().run(broker.close())

    def kill(self) -> None:
        """Stop like a killed process. Acknowledged messages are stored; offsets that consumers
        committed in the last seconds are lost."""
        broker = self._running()
        self._process = None
        self._do(broker.abort)

    def restart(self) -> None:
        """Stop gracefully, then start again with the same store."""
        self.stop()
        self.start()

    def start_nameserver(self) -> None:
        """Start the NameServer again after `stop_nameserver`.

        Raises UsageError if it is already running.
        """
        if self._names.is_running:
            raise UsageError(f"the NameServer at {self.nameserver} is already running")
        self._running_thread().run(self._names.start(self.clock))

    def stop_nameserver(self) -> None:
        """Stop the NameServer. The broker keeps running.

        The broker registers again within two seconds of the next start of the NameServer. Raises
        UsageError if the NameServer is not running, or is another broker's.
        """
        if self._names.server is None:
            raise UsageError("the NameServer of this broker is not running")
        self._running_thread().run(self._names.stop())

    def close(self) -> None:
        """Stop everything and delete the directory, unless it was given."""
        thread = self._thread
        if thread is None:
            return
        self._disk.is_full = False  # an active fault must not hide why the test failed
        with contextlib.ExitStack() as stack:  # every step runs even if another fails
            stack.callback(self._end_loop, thread)
            if self._names.server is not None:
                stack.callback(self.stop_nameserver)
            if self._process is not None:
                stack.callback(self.stop)
        assert not thread.errors, f"the broker had unreported errors: {thread.errors}"

    def _end_loop(self, thread: LoopThread) -> None:
        self._thread = None
        with self._clean_up:
            thread.close()

    def __enter__(self) -> Self:
        return self._guarded_start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self._guarded_start)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)

    def _guarded_start(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            self.start()
            stack.pop_all()
        return self

    # Addresses

    @property
    def nameserver(self) -> str:
        """The address of the NameServer as `host:port`, for clients."""
        return self._names.address

    @property
    def broker(self) -> str:
        """`host:port` of the broker; clients get it from the NameServer."""
        return f"{HOST}:{self._config.port}"

    @property
    def name(self) -> str:
        """The name of the broker."""
        return self._config.name

    # Topics

    def create_topic(self, name: str, *, queues: int = 4) -> None:
        """Create a topic with this many queues. Clients can use it when this returns."""
        topic = TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
        broker = self._running()
        self._do(lambda: broker.slices.topics.topics.put(topic))
        self._running_thread().run(broker.register())

    # Inspecting

    def stored(self, topic: str, queue_id: int | None = None) -> list[MessageView]:
        """Return the messages that can be consumed, of all queues or one, in stored order."""
        return self._look(lambda _, store: inspection.messages(store, topic, queue_id))

    def dead_letters(self, group: str) -> list[MessageView]:
        """Return the dead letters of a group."""
        return self.stored(dead_topic(group))

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return the committed offset of a group by queue."""
        return self._look(
            lambda broker, _: dict(broker.slices.groups.tables.offsets.of(group, topic))
        )

    def lag(self, group: str, topic: str) -> int:
        """Return the number of messages that the group has not committed yet."""
        return self._look(
            lambda broker, store: sum(inspection.lags(broker, store, group, topic).values())
        )

    def record_deliveries(self) -> Deliveries:
        """Record what consumers receive from now on, until the block ends.

        The result lists the messages that the broker sent, by group and topic.

            with mq.record_deliveries() as given:
                ...
            assert [message.body for message in given.to("billing", "orders")] == [b"two apples"]
        """

        def end(notes: Deliveries) -> None:
            self._do(lambda: self._gate.deliveries.remove(notes))

        notes = Deliveries(end)
        self._do(lambda: self._gate.deliveries.append(notes))
        return notes

    def describe(self) -> str:
        """Return topics, last messages, groups and clients as text."""
        if self._process is None:
            return "the broker is not running"
        return self._look(inspection.describe)

    def wait_until(
        self,
        look: Callable[[], T | None],
        *,
        within_s: float = WITHIN_S,
        what: str = "the condition",
    ) -> T:
        """Wait until `look` returns a true value, and return it.

        Raises AssertionError with `what` and the state of the broker after `within_s` seconds; a
        busy machine gets more time.

            mq.wait_until(lambda: mq.lag("billing", "orders") == 0)
        """
        return waiting.wait_until(look, self.describe, within_s=within_s, what=what)

    async def until(
        self,
        look: Callable[[], T | None],
        *,
        within_s: float = WITHIN_S,
        what: str = "the condition",
    ) -> T:
        """Wait like `wait_until`, in a coroutine. Raises AssertionError."""
        return await waiting.until(look, self.describe, within_s=within_s, what=what)

    # The loop

    def _look(self, look: Callable[[Broker, MessageStore], T]) -> T:
        broker, store = self._running_process()

        def looked() -> T:
            broker.slices.base.writer.catch_up()
            return look(broker, store)

        return self._do(looked)

    def _catch_up(self) -> None:
        if self._process is not None:
            self._do(self._process.broker.catch_up)

    def _do(self, work: Callable[[], T], /) -> T:
        return self._running_thread().call(work)

    def _running(self) -> Broker:
        return self._running_process().broker

    def _running_process(self) -> "_Process":
        if self._process is None:
            raise UsageError("the broker is not running; start it first")
        return self._process

    def _running_thread(self) -> LoopThread:
        if self._thread is None:
            raise UsageError("the broker was never started, or is closed")
        return self._thread


class _Process(NamedTuple):
    """What a broker process would own, from its start until it is stopped or killed."""

    broker: Broker
    store: MessageStore


class _NameServer:
    """The NameServer of a test broker: its own, or an existing one.

    `beside` is the test broker whose NameServer is shared, `server` the own one while it runs.
    """

    def __init__(self, existing: RunningBroker | str | None, port: int) -> None:
        self.beside = existing if isinstance(existing, RunningBroker) else None
        self.server: NameServer | None = None
        self._existing = existing.nameserver if isinstance(existing, RunningBroker) else existing
        self._port = port

    @property
    def address(self) -> str:
        return self._existing or f"{HOST}:{self._port}"

    @property
    def is_running(self) -> bool:
        """Whether there is nothing to start. An existing NameServer counts as running."""
        return self._existing is not None or self.server is not None

    async def start(self, clock: KitClock) -> None:
        """Start the own NameServer; again on the same port after `stop`."""
        server = NameServer(NameServerConfig(), clock)
        self._port = await server.start(HOST, self._port)
        self.server = server

    async def stop(self) -> None:
        server, self.server = self.server, None
        assert server is not None, "only a running NameServer is stopped"
        await server.close()


running_broker = RunningBroker
"""The name for use in a `with` statement."""
