"""Administration: inspect and change a cluster, by noun.

    async with Admin(nameserver="10.0.0.1:9876") as admin:
        await admin.topics.create("orders", queues=8)
        progress = await admin.offsets.progress("billing")
        print(progress.lag, progress.behind_s)

The requests are RocketMQ's, except for the lists of pending transactions and of timers, and for
`views`, whose responses each contain what a page of the dashboard shows.
"""

from types import TracebackType
from typing import Final, Self

from tianzhou.base.errors import UsageError
from tianzhou.client.aio.admin_brokers import Brokers
from tianzhou.client.aio.admin_calls import AdminCalls
from tianzhou.client.aio.admin_dead_letters import DeadLetterBox
from tianzhou.client.aio.admin_groups import Groups
from tianzhou.client.aio.admin_messages import Messages
from tianzhou.client.aio.admin_offsets import Offsets
from tianzhou.client.aio.admin_timers import Timers
from tianzhou.client.aio.admin_topics import Topics
from tianzhou.client.aio.admin_transactions import Transactions
from tianzhou.client.aio.admin_views import Views
from tianzhou.client.aio.shared_client import SharedClient
from tianzhou.client.errors import ClientClosed
from tianzhou.client.options import ClientOptions, client_repr

_DEFAULTS: Final = ClientOptions()


class Admin:
    """Inspect and change a cluster. Use it in an `async with` block.

    Each attribute is a noun with its own methods. They raise UsageError for invalid arguments, and
    ClientError if a broker or name server does not respond or reports an error.

        async with Admin(nameserver="10.0.0.1:9876") as admin:
            await admin.topics.create("orders", queues=8)

    Owner: the event loop in which it was started.
    """

    brokers: Brokers
    topics: Topics
    groups: Groups
    offsets: Offsets
    messages: Messages
    dead_letters: DeadLetterBox
    views: Views
    transactions: Transactions
    timers: Timers

    def __init__(self, *, nameserver: str | None = None, client: ClientOptions = _DEFAULTS) -> None:
        self._nameserver = nameserver
        self._options = client
        self._shared: SharedClient | None = None
        self._calls: AdminCalls | None = None

    def __repr__(self) -> str:
        state = "not running" if self._shared is None else "running"
        return client_repr(self, state, nameserver=self._nameserver)

    def __getattr__(self, name: str) -> object:
        # Python calls this only for missing attributes.
        if name in type(self).__annotations__:
            raise ClientClosed("this admin client was not started; use it in an async with block")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    async def start(self) -> Self:
        if self._shared is not None:
            raise UsageError("this admin client is already running")
        shared = self._shared = SharedClient.join(self._nameserver, self._options)
        calls = self._calls = AdminCalls(shared)
        self.brokers = Brokers(calls)
        self.topics = Topics(calls)
        self.groups = Groups(calls, self.topics)
        self.offsets = Offsets(calls)
        self.messages = Messages(calls, self.offsets)
        self.dead_letters = DeadLetterBox(calls, self.offsets)
        self.views = Views(calls)
        self.transactions = Transactions(calls)
        self.timers = Timers(calls)
        return self

    def leave_out(self, *brokers: str) -> None:
        """Skip these brokers in requests to all brokers, because they do not respond."""
        if self._calls is None:
            raise ClientClosed("this admin client was not started; use it in an async with block")
        self._calls.left_out |= set(brokers)

    async def close(self) -> None:
        """Disconnect. A second call has no effect."""
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.leave()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
