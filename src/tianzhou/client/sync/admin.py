"""The blocking admin client: the same nouns and methods as `tianzhou.client.Admin`.

    with Admin(nameserver="10.0.0.1:9876") as admin:
        admin.topics.create("orders", queues=8)
        print(admin.offsets.progress("billing").lag)

Every method calls the one of `tianzhou.client.aio.admin` and waits for it.
"""

import functools
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

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
from tianzhou.client.sync.runner import ChangesNameServers, runner

Inner = TypeVar("Inner")
P = ParamSpec("P")
T = TypeVar("T")

_DEFAULTS: Final = ClientOptions()


class Noun(Generic[Inner]):
    """A noun of the blocking client, around the one of the asyncio client."""

    def __init__(self, inner: Inner) -> None:
        self._inner = inner


def blocking(
    method: Callable[Concatenate[Inner, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Noun[Inner], P], T]:
    """Return a blocking version of a coroutine method, with its name and docstring."""

    @functools.wraps(method)
    def call(noun: Noun[Inner], *args: P.args, **kwargs: P.kwargs) -> T:
        inner = noun._inner  # pyright: ignore[reportPrivateUsage] # `call` becomes a method of it
        return runner().run(method(inner, *args, **kwargs))

    return call


class Brokers(Noun[brokers.Brokers]):
    """The methods of `tianzhou.client.admin.brokers.Brokers`, blocking."""

    all = blocking(brokers.Brokers.all)
    missing = blocking(brokers.Brokers.missing)
    forget = blocking(brokers.Brokers.forget)
    status = blocking(brokers.Brokers.status)
    statuses = blocking(brokers.Brokers.statuses)
    statistic = blocking(brokers.Brokers.statistic)
    producers = blocking(brokers.Brokers.producers)
    config = blocking(brokers.Brokers.config)
    configure = blocking(brokers.Brokers.configure)
    acknowledge = blocking(brokers.Brokers.acknowledge)
    cleaning = blocking(brokers.Brokers.cleaning)
    clean = blocking(brokers.Brokers.clean)
    stop_writes = blocking(brokers.Brokers.stop_writes)
    allow_writes = blocking(brokers.Brokers.allow_writes)
    traffic = blocking(brokers.Brokers.traffic)


class Topics(Noun[topics.Topics]):
    """The methods of `tianzhou.client.admin.topics.Topics`, blocking."""

    all = blocking(topics.Topics.all)
    show = blocking(topics.Topics.show)
    create = blocking(topics.Topics.create)
    update = blocking(topics.Topics.update)
    spread = blocking(topics.Topics.spread)
    shrink = blocking(topics.Topics.shrink)
    delete = blocking(topics.Topics.delete)


class Groups(Noun[groups.Groups]):
    """The methods of `tianzhou.client.admin.groups.Groups`, blocking."""

    all = blocking(groups.Groups.all)
    show = blocking(groups.Groups.show)
    create = blocking(groups.Groups.create)
    update = blocking(groups.Groups.update)
    delete = blocking(groups.Groups.delete)
    consumers = blocking(groups.Groups.consumers)
    producers = blocking(groups.Groups.producers)
    running = blocking(groups.Groups.running)


class Offsets(Noun[offsets.Offsets]):
    """The methods of `tianzhou.client.admin.offsets.Offsets`, blocking."""

    progress = blocking(offsets.Offsets.progress)
    owners = blocking(offsets.Offsets.owners)
    reset_to_time = blocking(offsets.Offsets.reset_to_time)
    reset_to_offset = blocking(offsets.Offsets.reset_to_offset)
    clone = blocking(offsets.Offsets.clone)
    committed = blocking(offsets.Offsets.committed)
    by_time = blocking(offsets.Offsets.by_time)
    bounds = blocking(offsets.Offsets.bounds)


class Messages(Noun[messages.Messages]):
    """The methods of `tianzhou.client.admin.messages.Messages`, blocking."""

    by_id = blocking(messages.Messages.by_id)
    by_unique_id = blocking(messages.Messages.by_unique_id)
    by_key = blocking(messages.Messages.by_key)
    between = blocking(messages.Messages.between)
    at = blocking(messages.Messages.at)
    trace = blocking(messages.Messages.trace)


class Dlq(Noun[dlq.Dlq]):
    """The methods of `tianzhou.client.admin.dlq.Dlq`, blocking."""

    all = blocking(dlq.Dlq.all)
    show = blocking(dlq.Dlq.show)
    peek = blocking(dlq.Dlq.peek)
    replay = blocking(dlq.Dlq.replay)
    replay_messages = blocking(dlq.Dlq.replay_messages)
    record = blocking(dlq.Dlq.record)
    replayed = blocking(dlq.Dlq.replayed)
    recorded_groups = blocking(dlq.Dlq.recorded_groups)
    add_to_record = blocking(dlq.Dlq.add_to_record)


class Views(Noun[views.Views]):
    """The methods of `tianzhou.client.admin.views.Views`, blocking."""

    brokers = blocking(views.Views.brokers)
    cluster = blocking(views.Views.cluster)
    broker = blocking(views.Views.broker)
    topics = blocking(views.Views.topics)
    groups = blocking(views.Views.groups)
    topic = blocking(views.Views.topic)
    light_queues = blocking(views.Views.light_queues)
    group = blocking(views.Views.group)
    messages = blocking(views.Views.messages)
    timers = blocking(views.Views.timers)
    transactions = blocking(views.Views.transactions)
    parked = blocking(views.Views.parked)


class Transactions(Noun[transactions.Transactions]):
    """The methods of `tianzhou.client.admin.transactions.Transactions`, blocking."""

    all = blocking(transactions.Transactions.all)
    parked = blocking(transactions.Transactions.parked)
    commit = blocking(transactions.Transactions.commit)
    rollback = blocking(transactions.Transactions.rollback)
    recheck = blocking(transactions.Transactions.recheck)
    resume = blocking(transactions.Transactions.resume)


class Timers(Noun[timers.Timers]):
    """The methods of `tianzhou.client.admin.timers.Timers`, blocking."""

    all = blocking(timers.Timers.all)
    cancel = blocking(timers.Timers.cancel)
    delayed = blocking(timers.Timers.delayed)


class Admin(ChangesNameServers[aio.Admin]):
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
