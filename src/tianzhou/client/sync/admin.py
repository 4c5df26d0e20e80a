"""The blocking admin client: the same nouns and methods as `tianzhou.client.Admin`.

    with Admin(nameserver="10.0.0.1:9876") as admin:
        admin.topics.create("orders", queues=8)
        print(admin.offsets.progress("billing").lag)

Every method calls the one of `tianzhou.client.aio.admin` and waits for it.
"""

import functools
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar

from tianzhou.client.admin import (
    brokers,
    dlq,
    groups,
    messages,
    offsets,
    timers,
    topics,
    transactions,
    views,
)
from tianzhou.client.aio import admin as aio
from tianzhou.client.options import ClientOptions
from tianzhou.client.sync.runner import runner

P = ParamSpec("P")
T = TypeVar("T")

_DEFAULTS: Final = ClientOptions()


def blocking(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return a blocking version of a coroutine method, with its name and docstring."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return runner().run(method(*args, **kwargs))

    return call


class Brokers:
    """The methods of `tianzhou.client.admin.brokers.Brokers`, blocking."""

    def __init__(self, inner: brokers.Brokers) -> None:
        self.all = blocking(inner.all)
        self.missing = blocking(inner.missing)
        self.forget = blocking(inner.forget)
        self.status = blocking(inner.status)
        self.statuses = blocking(inner.statuses)
        self.statistic = blocking(inner.statistic)
        self.producers = blocking(inner.producers)
        self.config = blocking(inner.config)
        self.configure = blocking(inner.configure)
        self.acknowledge = blocking(inner.acknowledge)
        self.stop_writes = blocking(inner.stop_writes)
        self.allow_writes = blocking(inner.allow_writes)
        self.traffic = blocking(inner.traffic)


class Topics:
    """The methods of `tianzhou.client.admin.topics.Topics`, blocking."""

    def __init__(self, inner: topics.Topics) -> None:
        self.all = blocking(inner.all)
        self.show = blocking(inner.show)
        self.create = blocking(inner.create)
        self.update = blocking(inner.update)
        self.shrink = blocking(inner.shrink)
        self.delete = blocking(inner.delete)


class Groups:
    """The methods of `tianzhou.client.admin.groups.Groups`, blocking."""

    def __init__(self, inner: groups.Groups) -> None:
        self.all = blocking(inner.all)
        self.show = blocking(inner.show)
        self.create = blocking(inner.create)
        self.update = blocking(inner.update)
        self.delete = blocking(inner.delete)
        self.consumers = blocking(inner.consumers)
        self.producers = blocking(inner.producers)
        self.running = blocking(inner.running)


class Offsets:
    """The methods of `tianzhou.client.admin.offsets.Offsets`, blocking."""

    def __init__(self, inner: offsets.Offsets) -> None:
        self.progress = blocking(inner.progress)
        self.owners = blocking(inner.owners)
        self.reset_to_time = blocking(inner.reset_to_time)
        self.reset_to_offset = blocking(inner.reset_to_offset)
        self.clone = blocking(inner.clone)
        self.committed = blocking(inner.committed)
        self.by_time = blocking(inner.by_time)
        self.bounds = blocking(inner.bounds)


class Messages:
    """The methods of `tianzhou.client.admin.messages.Messages`, blocking."""

    def __init__(self, inner: messages.Messages) -> None:
        self.by_id = blocking(inner.by_id)
        self.by_unique_id = blocking(inner.by_unique_id)
        self.by_key = blocking(inner.by_key)
        self.between = blocking(inner.between)
        self.at = blocking(inner.at)
        self.trace = blocking(inner.trace)


class Dlq:
    """The methods of `tianzhou.client.admin.dlq.Dlq`, blocking."""

    def __init__(self, inner: dlq.Dlq) -> None:
        self.all = blocking(inner.all)
        self.show = blocking(inner.show)
        self.peek = blocking(inner.peek)
        self.replay = blocking(inner.replay)
        self.replay_messages = blocking(inner.replay_messages)
        self.record = blocking(inner.record)
        self.replayed = blocking(inner.replayed)
        self.recorded_groups = blocking(inner.recorded_groups)
        self.add_to_record = blocking(inner.add_to_record)


class Views:
    """The methods of `tianzhou.client.admin.views.Views`, blocking."""

    def __init__(self, inner: views.Views) -> None:
        self.brokers = blocking(inner.brokers)
        self.cluster = blocking(inner.cluster)
        self.broker = blocking(inner.broker)
        self.topics = blocking(inner.topics)
        self.groups = blocking(inner.groups)
        self.topic = blocking(inner.topic)
        self.group = blocking(inner.group)
        self.messages = blocking(inner.messages)
        self.timers = blocking(inner.timers)
        self.transactions = blocking(inner.transactions)
        self.parked = blocking(inner.parked)


class Transactions:
    """The methods of `tianzhou.client.admin.transactions.Transactions`, blocking."""

    def __init__(self, inner: transactions.Transactions) -> None:
        self.all = blocking(inner.all)
        self.parked = blocking(inner.parked)
        self.commit = blocking(inner.commit)
        self.rollback = blocking(inner.rollback)
        self.recheck = blocking(inner.recheck)
        self.resume = blocking(inner.resume)


class Timers:
    """The methods of `tianzhou.client.admin.timers.Timers`, blocking."""

    def __init__(self, inner: timers.Timers) -> None:
        self.all = blocking(inner.all)
        self.cancel = blocking(inner.cancel)
        self.delayed = blocking(inner.delayed)


class Admin:
    """Inspect and change a cluster, from any thread. Use it in a `with` block.

    Nouns, methods and errors are those of `tianzhou.client.Admin`.

        with Admin(nameserver="10.0.0.1:9876") as admin:
            admin.topics.create("orders", queues=8)
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
        self._inner = aio.Admin(nameserver=nameserver, client=client)

    def __getattr__(self, name: str) -> object:
        # Python calls this only for missing attributes: a noun is created when it is first used.
        wrap = _NOUNS.get(name)
        if wrap is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        noun = wrap(getattr(self._inner, name))
        setattr(self, name, noun)
        return noun

    def __repr__(self) -> str:
        return repr(self._inner)

    def start(self) -> Self:
        """Start the client; a `with` block does this.

        Raises UsageError if it is already running, or the name servers are invalid.
        """
        inner = runner().run(self._inner.start())
        for name in _NOUNS:
            self.__dict__.pop(name, None)  # from before an earlier close
        self.leave_out = inner.leave_out
        return self

    def close(self) -> None:
        """Disconnect. A second call has no effect."""
        runner().run(self._inner.close())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_NOUNS: Final[Mapping[str, Callable[[Any], object]]] = {
    "brokers": Brokers,
    "topics": Topics,
    "groups": Groups,
    "offsets": Offsets,
    "messages": Messages,
    "dlq": Dlq,
    "views": Views,
    "transactions": Transactions,
    "timers": Timers,
}
