"""Administration: inspect and change a cluster, by noun.

    async with Admin(nameserver="10.0.0.1:9876") as admin:
        await admin.topics.create("orders", queues=8)
        progress = await admin.offsets.progress("billing")
        print(progress.lag, progress.behind_s)

The requests are RocketMQ's, except for the lists of pending transactions and of timers, and for
`views`, whose responses each contain what a page of the dashboard shows.
"""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self

from tianzhou.base.errors import UsageError
from tianzhou.client.admin.brokers import Brokers
from tianzhou.client.admin.calls import AdminCalls
from tianzhou.client.admin.dlq import Dlq
from tianzhou.client.admin.groups import Groups
from tianzhou.client.admin.messages import Messages
from tianzhou.client.admin.offsets import Offsets
from tianzhou.client.admin.timers import Timers
from tianzhou.client.admin.topics import Topics
from tianzhou.client.admin.transactions import Transactions
from tianzhou.client.admin.views import Views
from tianzhou.client.errors import ClientClosed
from tianzhou.client.options import ClientOptions, client_repr
from tianzhou.client.session.joining import ChangesNameServers
from tianzhou.client.session.shared_client import SharedClient

_DEFAULTS: Final = ClientOptions()


class Admin(ChangesNameServers):
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
    dlq: Dlq
    views: Views
    transactions: Transactions
    timers: Timers

    def __init__(self, *, nameserver: str | None = None, client: ClientOptions = _DEFAULTS) -> None:
        """Create an admin client; it connects at the first request.

        `nameserver` is `host:port;host:port`; None reads it from the environment.
        """
        self._nameserver = nameserver
        self._options = client
        self._shared: SharedClient | None = None
        self._calls: AdminCalls | None = None

    def __repr__(self) -> str:
        state = "not running" if self._shared is None else "running"
        return client_repr(self, state, nameserver=self._nameserver)

    def __getattr__(self, name: str) -> object:
        # Python calls this only for missing attributes: a noun is created when it is first used.
        create = _NOUNS.get(name)
        if create is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if self._calls is None:
            raise ClientClosed("this admin client was not started; use it in an async with block")
        noun = create(self, self._calls)
        setattr(self, name, noun)
        return noun

    async def start(self) -> Self:
        """Start the client; an `async with` block does this.

        Raises UsageError if it is already running, or the name servers are invalid.
        """
        if self._shared is not None:
            raise UsageError("this admin client is already running")
        shared = SharedClient.join(self._nameserver, self._options)
        self._shared = self._joined = shared
        self._calls = AdminCalls(shared)
        for name in _NOUNS:
            self.__dict__.pop(name, None)  # from before an earlier close
        return self

    def leave_out(self, *brokers: str) -> None:
        """Skip these brokers in requests to all brokers, for example because they do not respond.

        Raises ClientClosed if the client was not started.
        """
        if self._calls is None:
            raise ClientClosed("this admin client was not started; use it in an async with block")
        self._calls.left_out |= set(brokers)

    async def close(self) -> None:
        """Disconnect. A second call has no effect."""
        shared, self._shared, self._joined = self._shared, None, None
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


_NOUNS: Final[Mapping[str, Callable[[Admin, AdminCalls], object]]] = {
    "brokers": lambda _, calls: Brokers(calls),
    "topics": lambda _, calls: Topics(calls),
    "groups": lambda admin, calls: Groups(calls, admin.topics),
    "offsets": lambda _, calls: Offsets(calls),
    "messages": lambda admin, calls: Messages(calls, admin.offsets),
    "dlq": lambda admin, calls: Dlq(calls, admin.offsets, admin.topics),
    "views": lambda _, calls: Views(calls),
    "transactions": lambda _, calls: Transactions(calls),
    "timers": lambda _, calls: Timers(calls),
}
